"""Subscriptions come and go on a SemCast plan, without planning again.

Owns the next revision of a plan when a subscription is added or deleted, as data that brokers can apply:
which expressions and trees change, link by link. Nothing here talks to a broker.

Joining    A profile that a hierarchy's filters cover joins it: the hierarchy's term gets the new class in
           every expression that names it, and the class is served by every channel that serves the
           hierarchy, noise channels included. Its gateway joins their trees at low cost. Of several such
           hierarchies the one that takes fewest new links is joined. A profile that none covers gets a
           channel of its own.
Leaving    The class of the last member leaves its channels and terms; gateways without classes leave
           trees, which shrink upward. A channel with nobody left to serve vanishes: it keeps its number,
           admits nothing, and has its root alone for a tree. One that can carry nothing any more, but
           serves somebody, stays: events that were sent on it before may be under way.

Guarantee  Every class is still served exactly once per event that it matches, and channel numbers keep
           their meaning.
Cost       Joining: a comparison per distinct filter, O(channels served * destinations). Leaving: O(tree)
           per channel served.
Departures As printed a covered profile joins one channel; noise channels then miss it. A new channel is
           rooted at its own gateway unless told, so that its tree needs no link; the paper picks a root at
           random. Joins are at low cost here also where trees were made within bounds: check latencies
           afterwards.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.4.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ramify.content.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.distances import Weight
from ramify.network.steiner import Steiner
from ramify.network.trees import Tree
from ramify.planning.classes import Classes
from ramify.planning.growth import NEVER, Links, Opened, mapped, open_channel, simple, terms
from ramify.planning.plan import (
    Channel,
    ChannelTree,
    Expression,
    Holds,
    Match,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.semcast.legs import directed
from ramify.planning.semcast.trees import GrowingTree, Ways, latencies

__all__ = ["Membership", "joined", "left", "ways_for"]


@dataclass(frozen=True, slots=True)
class Membership:
    """The next revision of a plan.

    Attributes
    ----------
    plan        the revision itself
    class_id    the class that was joined or left
    channels    those that began or ceased to serve the class
    reworded    channels whose expression changed
    added       channel -> (parent, child) links that its tree got
    removed     channel -> (parent, child) links that it lost
    opened      the channel that was made, if any
    vanished    channels that carry nothing any more
    """

    plan: Plan
    class_id: int
    channels: tuple[int, ...] = ()
    reworded: tuple[int, ...] = ()
    added: Mapping[int, Links] = field(default_factory=dict)
    removed: Mapping[int, Links] = field(default_factory=dict)
    opened: int | None = None
    vanished: tuple[int, ...] = ()


def ways_for(plan: Plan) -> Ways:
    """The searches that joins need, kept with the overlay."""
    held = plan.overlay.__dict__
    if "_semcast_ways" not in held:
        weight: Weight = "hops" if directed(plan.overlay) == "hops" else "mean_price"
        held["_semcast_ways"] = Ways.of(plan.overlay, Steiner.of(plan.overlay, weight))
    found = held["_semcast_ways"]
    assert isinstance(found, Ways)
    return found


def joined(
    plan: Plan,
    subscription: Subscription,
    ways: Ways | None = None,
    *,
    point: int | None = None,
    publishers: Iterable[int] | None = None,
    among: Container[int] | None = None,
) -> Membership:
    """The plan with one more subscription. See the module.

    Only classes in `among` are asked whether they cover it, all unless told. `point` is the rendezvous
    point if a channel must be made; `publishers` are the brokers that it admits, those of the plan's other
    channels unless told. Raises `PlanError` for plans of other schemes, `InputError` for an id that exists
    or a client that is elsewhere.
    """
    _require_semcast(plan)
    at = plan.attachments.get(subscription.client, subscription.broker)
    if at != subscription.broker:
        raise InputError(
            f"subscription {subscription.id!r} is at {subscription.broker!r}, but its client "
            f"{subscription.client!r} is attached to {at!r}. Subscribe there, or attach it anew."
        )
    classes, k = plan.classes.with_subscription(subscription, plan.overlay)
    revised = replace(plan, classes=classes)
    if any((channel.serves.classes == k).any() for channel in plan.channels):
        return Membership(revised, k)
    homes = _covering(plan, classes, k, among)
    if not homes:
        return _opened(revised, k, point, publishers)
    known = ways_for(plan) if ways is None else ways
    tried = [_joining(revised, k, home, known) for home in homes]
    return min(tried, key=lambda each: sum(map(len, each.added.values())))


def left(plan: Plan, id_: str) -> Membership:
    """The plan without one subscription. `InputError` for an id that it has not."""
    _require_semcast(plan)
    classes, k = plan.classes.without_subscription(id_)
    revised = replace(plan, classes=classes)
    if not classes.vacant[k]:
        return Membership(revised, k)
    made = list(plan.channels)
    channels, reworded, vanished, removed = [], [], [], {}
    for c, channel in enumerate(plan.channels):
        before = _expression(channel)
        after = simple(mapped(before, lambda term: Match(tuple(x for x in term.classes if x != k))))
        served = channel.serves.classes[channel.serves.classes != k]
        if len(served) < len(channel.serves):
            channels.append(c)
        if after == before and c not in channels:
            continue
        if not len(served):
            after = NEVER
            vanished.append(c)
        if after != before:
            reworded.append(c)
        made[c], went = _shrunk(plan, channel, after, served, classes)
        if went:
            removed[c] = went
    return Membership(
        replace(revised, channels=tuple(made)),
        k,
        tuple(channels),
        tuple(reworded),
        removed=removed,
        vanished=tuple(vanished),
    )


# --------------------------------------------------------------------------------------------- joining


def _covering(plan: Plan, classes: Classes, k: int, among: Container[int] | None) -> list[frozenset[int]]:
    """The terms, as sets of classes, one of whose filters covers that of class k, by first channel."""
    wanted = classes.filters[k]
    verdict: dict[bytes, bool] = {}

    def covers(other: int) -> bool:
        filter_ = classes.filters[other]
        if filter_.key not in verdict:
            verdict[filter_.key] = filter_.paths <= wanted.paths and filter_.covers(wanted)
        return verdict[filter_.key]

    known = dict.fromkeys(
        frozenset(term.classes) for channel in plan.channels for term in terms(_expression(channel))
    )
    return [
        term
        for term in known
        if any(covers(other) for other in sorted(term) if among is None or other in among)
    ]


def _joining(plan: Plan, k: int, home: frozenset[int], ways: Ways) -> Membership:
    host = int(plan.classes.broker[k])
    ms = latencies(plan.overlay)
    made = list(plan.channels)
    channels, reworded, added = [], [], {}
    for c, channel in enumerate(plan.channels):
        before = _expression(channel)
        after = mapped(
            before, lambda term: Match((*term.classes, k)) if home == frozenset(term.classes) else term
        )
        served, tree = channel.serves.classes, channel.tree
        if after != before:
            reworded.append(c)
        if home & set(served.tolist()):
            channels.append(c)
            served = np.append(served, np.int32(k))
            growing = _growing(plan, channel, ways, ms)
            came = growing.join(host)
            if came:
                added[c] = tuple(came)
                tree = ChannelTree(growing.links(), growing.root)
        if c in channels or after != before:
            made[c] = replace(
                channel,
                admits=replace(channel.admits, content=Holds(after)),
                serves=Serves.at_hosts(served, plan.classes),
                tree=tree,
            )
    return Membership(replace(plan, channels=tuple(made)), k, tuple(channels), tuple(reworded), added=added)


def _opened(plan: Plan, k: int, point: int | None, publishers: Iterable[int] | None) -> Membership:
    c, host = len(plan.channels), int(plan.classes.broker[k])
    root = host if point is None else point
    growing = GrowingTree(root, ways_for(plan), latencies(plan.overlay)) if root != host else None
    came = tuple([] if growing is None else growing.join(host))
    pruning = next((channel.pruning for channel in plan.channels), Pruning.NONE)
    allowed = None if publishers is None else frozenset(publishers)
    bare, legs = open_channel(plan, Opened(f"hierarchy {c}", root, came, k, pruning), allowed)
    channel = replace(bare, serves=Serves.at_hosts([k], plan.classes))
    paths = {**legs, **plan.paths}
    revised = replace(plan, channels=(*plan.channels, channel), paths=paths)
    return Membership(revised, k, (c,), (c,), {c: came} if came else {}, opened=c)


# --------------------------------------------------------------------------------------------- leaving


def _shrunk(
    plan: Plan,
    channel: Channel,
    expression: Expression,
    served: "np.typing.NDArray[np.int32]",
    classes: Classes,
) -> tuple[Channel, Links]:
    growing = _growing(plan, channel, None, latencies(plan.overlay))
    went: list[tuple[int, int]] = []
    for gateway in sorted(growing.gateways - set(classes.broker[served].tolist())):
        went += growing.leave(gateway)
    made = replace(
        channel,
        admits=replace(channel.admits, content=Holds(expression)),
        serves=Serves.at_hosts(served, classes),
        tree=ChannelTree(growing.links(), growing.root) if went else channel.tree,
    )
    return made, tuple(went)


# --------------------------------------------------------------------------------------------- reading


def _require_semcast(plan: Plan) -> None:
    for channel in plan.channels:
        if (
            not isinstance(channel.admits.content, Holds)
            or channel.tree is None
            or channel.tree.root is None
        ):
            raise PlanError(
                f"plan {plan.scheme} cannot take subscriptions as SemCast does:",
                [f"channel {channel.name} has no expression, or no tree with a root. Use its own way."],
            )


def _expression(channel: Channel) -> Expression:
    assert isinstance(channel.admits.content, Holds)
    return channel.admits.content.expression


def _growing(
    plan: Plan, channel: Channel, ways: Ways | None, ms: dict[tuple[int, int], float]
) -> GrowingTree:
    assert channel.tree is not None
    assert channel.tree.root is not None
    tree = Tree.of_links(len(plan.overlay), channel.tree.links, channel.tree.root)
    return GrowingTree.resume(tree, channel.serves.at.tolist(), ways, ms)
