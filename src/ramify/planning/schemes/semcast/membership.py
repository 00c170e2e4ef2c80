"""Subscriptions come and go on a SemCast plan, without planning again.

Owns the next revision of a plan when a subscription is added or deleted, as data that brokers can apply:
which expressions and trees change, link by link. Nothing here talks to a broker.

Joining    A profile that a hierarchy's filters cover joins it: the hierarchy's term gets the new class in
           every expression that names it, and the class is served by every channel that serves the
           hierarchy, noise channels included. Its gateway joins their trees at low cost. Of several such
           hierarchies the one that takes fewest new links is joined. A profile that none covers gets a
           channel of its own.
Bounds     Where trees are made within latency bounds, a newcomer's bound holds for every channel it joins:
           its gateway climbs each tree until an ancestor keeps it. No member is moved. A hierarchy that
           would have to move a member, or that is late, is passed over. The newcomer then gets a channel of
           its own, rooted at its gateway: no way is faster. If that is late too, the newcomer is refused,
           or connected by the fastest path from the root, as the plan was asked to (`lateness`).
Leaving    The class of the last member leaves its channels and terms; gateways without classes leave
           trees, which shrink upward. A channel with nobody left to serve vanishes: it keeps its number,
           admits nothing, and has its root alone for a tree. One that can carry nothing any more, but
           serves somebody, stays: events that were sent on it before may be under way.

Guarantee  Every class is still served exactly once per event that it matches, and channel numbers keep
           their meaning. No way from a root to a broker that stays changes, so nobody gets events later.
Cost       Joining: a comparison per distinct filter, O(channels served * destinations). Leaving: O(tree)
           per channel served.
Departures As printed a covered profile joins one channel; noise channels then miss it. A new channel is
           rooted at its own gateway unless told, so that its tree needs no link; the paper picks a root at
           random, and has no channel for a newcomer that would be late. A newcomer to a class that is
           served already cannot move it: for a stricter bound than its place keeps, plan again.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", sections 3.2.4 and 4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.memo import derived
from ramify.network.graphs.distances import Weight
from ramify.network.trees.steiner import Steiner
from ramify.network.trees.trees import Tree
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.growth import NEVER, Links, OpenedChannel, mapped, open_channel, simple, terms
from ramify.planning.plans.lateness import (
    LateSubscription,
    TooLateError,
    bounds_latency,
    class_ms,
    leg_ms,
    refuses,
)
from ramify.planning.plans.legs import directed, keeps, latencies, legs_to, slowest_but
from ramify.planning.plans.plan import (
    Channel,
    ChannelTree,
    Expression,
    Holds,
    Match,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.schemes.semcast.trees import GrowingTree, TreeWays

__all__ = ["Membership", "growing_tree", "joined", "late_in_class", "left", "ways_for"]


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
    late        the newcomer, where its bound cannot be kept
    """

    plan: Plan
    class_id: int
    channels: tuple[int, ...] = ()
    reworded: tuple[int, ...] = ()
    added: Mapping[int, Links] = field(default_factory=dict)
    removed: Mapping[int, Links] = field(default_factory=dict)
    opened: int | None = None
    vanished: tuple[int, ...] = ()
    late: LateSubscription | None = None


def ways_for(plan: Plan) -> TreeWays:
    """The searches that joins need, kept with the overlay."""

    def search() -> TreeWays:
        weight: Weight = "hops" if directed(plan.overlay) == "hops" else "mean_price"
        return TreeWays.of(plan.overlay, Steiner.of(plan.overlay, weight))

    return derived(plan.overlay, "_semcast_ways", search)


def joined(
    plan: Plan,
    subscription: Subscription,
    ways: TreeWays | None = None,
    *,
    point: int | None = None,
    publishers: Iterable[int] | None = None,
) -> Membership:
    """The plan with one more subscription. See the module.

    `point` is the rendezvous point if a channel must be made; `publishers` are the brokers that it admits,
    those of the plan's other channels unless told. Raises `PlanError` for plans of other schemes, and for a
    bound that only another plan might keep; `TooLateError` for one that is refused; `InputError` for an id
    that exists or a client that is elsewhere.
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
        return Membership(revised, k, late=late_in_class(plan, k, subscription))
    known = ways_for(plan) if ways is None else ways
    homes = _covering(plan, classes, k)
    tried = [_joining(revised, k, home, known, subscription) for home in homes]
    found = [each for each in tried if each is not None]
    if not any(each.late is None for each in found):
        alone = _opened(revised, k, point, publishers, subscription)
        if alone.late is not None and refuses(plan):
            raise TooLateError(plan.scheme, [alone.late])
        if alone.late is None or not found:
            return alone
    return min(found, key=lambda each: (each.late is not None, sum(map(len, each.added.values()))))


def late_in_class(plan: Plan, k: int, subscription: Subscription) -> LateSubscription | None:
    """Whether a subscription that joins class k, which is served already, is late there; None: it is not.

    `TooLateError` where it is refused for that. `PlanError` where another plan might keep its bound.
    """
    bound = _bound(plan, subscription)
    if bound == np.inf:
        return None
    late = _late(subscription, class_ms(plan, [k])[k])
    if late is None:
        return None
    if refuses(plan):
        raise TooLateError(plan.scheme, [late])
    host, channels = int(plan.classes.broker[k]), plan.channels
    served = (channel for channel in channels if (channel.serves.classes == k).any())
    allowed = next(served).admits.publishers
    origins = range(len(plan.overlay)) if allowed is None else allowed
    least = legs_to(plan.overlay, [host], origins, "latency").worst_ms(host, host)
    if keeps(least, bound):
        raise PlanError(
            f"plan {plan.scheme} cannot take a stricter bound; it must be planned again:",
            [f"{late}: its class would have to move"],
        )
    return late


def _bound(plan: Plan, subscription: Subscription) -> float:
    """What counts of a subscription's bound: nothing where trees are not made within bounds."""
    counts = bounds_latency(plan) and subscription.latency_ms is not None
    return subscription.latency_ms or np.inf if counts else np.inf


def _late(subscription: Subscription, ms: float) -> LateSubscription | None:
    bound = subscription.latency_ms
    if bound is None or keeps(ms, bound):
        return None
    return LateSubscription(subscription.id, subscription.broker, bound, ms)


def left(plan: Plan, id_: str) -> Membership:
    """The plan without one subscription. `InputError` for an id that is not in it."""
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


def _covering(plan: Plan, classes: Classes, k: int) -> list[frozenset[int]]:
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
    return [term for term in known if any(covers(other) for other in sorted(term))]


def _joining(
    plan: Plan, k: int, home: frozenset[int], ways: TreeWays, subscription: Subscription
) -> Membership | None:
    """The plan with the class in a hierarchy; None where somebody would have to move."""
    host, bound = int(plan.classes.broker[k]), _bound(plan, subscription)
    ms = latencies(plan.overlay)
    made = list(plan.channels)
    channels, reworded, added, worst = [], [], {}, 0.0
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
            growing = growing_tree(plan, channel, ways, ms)
            leg = -np.inf if bound == np.inf else slowest_but(leg_ms(plan, channel, ms), host)
            came = _grown(growing, host, bound - leg)
            if came is None:
                return None
            worst = max(worst, leg + growing.from_root_ms[host])
            if came:
                added[c] = came
                tree = ChannelTree(growing.links(), growing.root)
        if c in channels or after != before:
            made[c] = replace(
                channel,
                admits=replace(channel.admits, content=Holds(after)),
                serves=Serves.at_hosts(served, plan.classes),
                tree=tree,
            )
    revised = replace(plan, channels=tuple(made))
    late = None if bound == np.inf else _late(subscription, worst)
    return Membership(revised, k, tuple(channels), tuple(reworded), added=added, late=late)


def _grown(growing: GrowingTree, host: int, within_ms: float) -> Links | None:
    """The links that a tree gets for a gateway; None where brokers that are on it would have to move."""
    if within_ms == np.inf:
        return tuple(growing.join(host))
    before = dict(growing.parent)
    growing.join_within(host, within_ms)
    if any(growing.parent.get(broker) != above for broker, above in before.items()):
        return None
    return tuple((above, below) for below, above in growing.parent.items() if below not in before)


def _opened(
    plan: Plan,
    k: int,
    point: int | None,
    publishers: Iterable[int] | None,
    subscription: Subscription,
) -> Membership:
    c, host, bound = len(plan.channels), int(plan.classes.broker[k]), _bound(plan, subscription)
    root = host if point is None else point
    pruning = next((channel.pruning for channel in plan.channels), Pruning.NONE)
    allowed = None if publishers is None else frozenset(publishers)
    bare, legs = open_channel(plan, OpenedChannel(f"hierarchy {c}", root, (), k, pruning), allowed)
    leg, down = legs.worst_ms(root, host), 0.0
    came: Links = ()
    if root != host:
        growing = GrowingTree(root, ways_for(plan), latencies(plan.overlay))
        came = _grown(growing, host, np.inf if bound == np.inf else bound - leg) or ()
        down = growing.from_root_ms[host]
    tree = ChannelTree(np.array(came, dtype=np.int32).reshape(-1, 2), root)
    channel = replace(bare, serves=Serves.at_hosts([k], plan.classes), tree=tree)
    paths, own = {**legs.paths, **plan.paths}, {**legs.own, **plan.legs}
    revised = replace(plan, channels=(*plan.channels, channel), paths=paths, legs=own)
    late = None if bound == np.inf else _late(subscription, leg + down)
    return Membership(revised, k, (c,), (c,), {c: came} if came else {}, opened=c, late=late)


# --------------------------------------------------------------------------------------------- leaving


def _shrunk(
    plan: Plan,
    channel: Channel,
    expression: Expression,
    served: "np.typing.NDArray[np.int32]",
    classes: Classes,
) -> tuple[Channel, Links]:
    growing = growing_tree(plan, channel, None, latencies(plan.overlay))
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


def growing_tree(
    plan: Plan, channel: Channel, ways: TreeWays | None, ms: dict[tuple[int, int], float]
) -> GrowingTree:
    """A channel's tree, to be joined and left. Without ways it only shrinks."""
    assert channel.tree is not None
    assert channel.tree.root is not None
    tree = Tree.of_links(len(plan.overlay), channel.tree.links, channel.tree.root)
    return GrowingTree.resume(tree, channel.serves.at.tolist(), ways, ms)
