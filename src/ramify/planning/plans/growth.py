"""How the channels of a plan change with a revision: trees grow and are pruned, channels open and close.

Owns what such a change may be, and making it, for plans whose channels admit by expressions and whose
events come down trees from a root. Channel numbers never change their meaning: an opened channel comes
last, a closed one keeps its number and carries nothing. A tree only gains branches and loses branches that
serve nobody, so the way from its root to a broker that stays on it stays the same. Brokers that hold
different revisions for a moment then still bring every event once to the subscribers of both revisions
(`overlay.router` has the other half of the rule: an event is taken from the parent on the tree alone).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ramify.errors import InputError, OverlayError
from ramify.network.graphs.distances import Weight
from ramify.planning.plans.lateness import bounds_latency
from ramify.planning.plans.layout import rooted_tree
from ramify.planning.plans.legs import Legs, legs_to
from ramify.planning.plans.plan import (
    Admission,
    All,
    Cells,
    Channel,
    ChannelTree,
    Entry,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
)

__all__ = [
    "NEVER",
    "NO_GROWTH",
    "Growth",
    "Links",
    "OpenedChannel",
    "flows_down",
    "mapped",
    "open_channel",
    "regrown",
    "serving_broker",
    "simple",
    "terms",
]

Links: TypeAlias = tuple[tuple[int, int], ...]
"""Logical links (above, below) of a tree."""

NEVER = Match(())
"""The expression of a channel that admits nothing any more."""


@dataclass(frozen=True, slots=True)
class OpenedChannel:
    """A channel for events that match a class. They enter at the root of its tree."""

    name: str
    root: int
    links: Links
    class_id: int
    pruning: Pruning = Pruning.NONE


@dataclass(frozen=True, slots=True)
class Growth:
    """See the module.

    Attributes
    ----------
    like      (class, other): the class counts in every term of expressions that the other counts in
    without   a class that counts in no term and is served nowhere any more; -1: none
    grown     (channel, links that its tree gets)
    pruned    (channel, links that it loses)
    opened    channels that are made
    closed    channels that carry nothing any more
    """

    like: tuple[int, int] | None = None
    without: int = -1
    grown: tuple[tuple[int, Links], ...] = ()
    pruned: tuple[tuple[int, Links], ...] = ()
    opened: tuple[OpenedChannel, ...] = ()
    closed: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_GROWTH


NO_GROWTH = Growth()


def regrown(plan: Plan, growth: Growth) -> Plan:
    """The plan after a growth. Opened channels serve nobody yet. O(channels and their expressions).

    Raises `InputError` for one that is none of this plan: an unknown channel or link, a tree that is none
    afterwards.
    """
    made = list(plan.channels)
    if growth.like is not None:
        made = [_reworded(channel, _joining(*growth.like)) for channel in made]
    if growth.without >= 0:
        made = [_left(channel, growth.without) for channel in made]
    for c, links in growth.grown:
        made[c] = _with_links(_known(made, c), links, ())
    for c, links in growth.pruned:
        made[c] = _with_links(_known(made, c), (), links)
    for c in growth.closed:
        made[c] = _closed(_known(made, c))
    paths, own = dict(plan.paths), dict(plan.legs)
    for new in growth.opened:
        channel, legs = open_channel(plan, new)
        made.append(channel)
        paths, own = {**legs.paths, **paths}, {**legs.own, **own}
    touched = {c for c, _ in (*growth.grown, *growth.pruned)} | set(range(len(plan.channels), len(made)))
    for c in sorted(touched):
        try:
            rooted_tree(made[c], len(plan.overlay))
        except (OverlayError, IndexError) as error:
            raise InputError(f"channel {made[c].name} has no tree after a change: {error}") from None
    return replace(plan, channels=tuple(made), paths=paths, legs=own)


def flows_down(channel: Channel) -> bool:
    """Whether events come down a channel's tree from its root alone, so that it may grow."""
    tree, targets, publishers = channel.tree, channel.entry.targets, channel.admits.publishers
    if tree is None or tree.root is None or targets is None:
        return False
    if channel.pruning not in (Pruning.NONE, Pruning.FILTER):
        return False
    entering = targets if publishers is None else targets[sorted(publishers)]
    return bool((entering == tree.root).all())


def serving_broker(channel: Channel, host: int) -> int:
    """The broker that serves a class at `host` which joins a channel later.

    Where channels divide the content space, events of a broker enter by its proxy: it gets them from there
    too. Else the host itself.
    """
    return channel.entry.target(host) if isinstance(channel.admits.content, Cells) else host


# ----------------------------------------------------------------------------------------- expressions


def terms(expression: Expression) -> list[Match]:
    """The terms of an expression, as often as they are in it."""
    match expression:
        case Match():
            return [expression]
        case All(parts) | Some(parts):
            return [term for part in parts for term in terms(part)]
        case Negation(part):
            return terms(part)


def mapped(expression: Expression, change: Callable[[Match], Match]) -> Expression:
    """The expression with every term changed."""
    match expression:
        case Match():
            return change(expression)
        case All(parts):
            return All(tuple(mapped(part, change) for part in parts))
        case Some(parts):
            return Some(tuple(mapped(part, change) for part in parts))
        case Negation(part):
            return Negation(mapped(part, change))


def simple(expression: Expression) -> Expression:
    """The same without terms that have no class left: never true. `NEVER` for what can never be."""
    match expression:
        case All(parts):
            kept = tuple(part for part in map(simple, parts) if part != Negation(NEVER))
            return NEVER if NEVER in kept else kept[0] if len(kept) == 1 else All(kept)
        case Some(parts):
            some = tuple(part for part in map(simple, parts) if part != NEVER)
            return NEVER if not some else some[0] if len(some) == 1 else Some(some)
        case Negation(part):
            inner = simple(part)
            return inner.part if isinstance(inner, Negation) else Negation(inner)
        case _:
            return expression


def _joining(k: int, other: int) -> Callable[[Expression], Expression]:
    def join(term: Match) -> Match:
        return Match((*term.classes, k)) if other in term.classes and k not in term.classes else term

    return lambda expression: mapped(expression, join)


def _reworded(channel: Channel, change: Callable[[Expression], Expression]) -> Channel:
    content = channel.admits.content
    if not isinstance(content, Holds):
        return channel
    after = change(content.expression)
    if after == content.expression:
        return channel
    return replace(channel, admits=replace(channel.admits, content=Holds(after)))


def _left(channel: Channel, k: int) -> Channel:
    def leave(term: Match) -> Match:
        return Match(tuple(x for x in term.classes if x != k)) if k in term.classes else term

    made = _reworded(channel, lambda expression: simple(mapped(expression, leave)))
    kept = made.serves.classes != k
    if kept.all():
        return made
    serves = Serves(made.serves.classes[kept], made.serves.at[kept], made.serves.region[kept])
    return replace(made, serves=serves)


# ----------------------------------------------------------------------------------------------- trees


def _known(channels: Sequence[Channel], c: int) -> Channel:
    if not 0 <= c < len(channels):
        raise InputError(f"a change of channel {c}, and there are {len(channels)}")
    return channels[c]


def _rooted(channel: Channel) -> tuple[ChannelTree, int]:
    if channel.tree is None or channel.tree.root is None:
        raise InputError(f"channel {channel.name} has no tree with a root: it cannot change")
    return channel.tree, channel.tree.root


def _with_links(channel: Channel, more: Links, less: Links) -> Channel:
    tree, root = _rooted(channel)
    links = [(int(u), int(v)) for u, v in tree.links.tolist()]
    gone = {frozenset(link) for link in less}
    kept = [link for link in links if frozenset(link) not in gone]
    if len(kept) != len(links) - len(gone):
        raise InputError(f"channel {channel.name} lacks some of the links that a change takes away")
    both = np.array([*kept, *more], dtype=np.int32).reshape(-1, 2)
    return replace(channel, tree=ChannelTree(both, root))


def _nobody() -> Serves:
    return Serves(*(np.zeros(0, dtype=np.int32) for _ in range(3)))


def _closed(channel: Channel) -> Channel:
    _, root = _rooted(channel)
    alone = ChannelTree(np.zeros((0, 2), dtype=np.int32), root)
    never = replace(channel.admits, content=Holds(NEVER))
    return replace(channel, admits=never, serves=_nobody(), tree=alone)


def open_channel(
    plan: Plan, new: OpenedChannel, publishers: frozenset[int] | None = None
) -> tuple[Channel, Legs]:
    """A channel that serves nobody yet, and the legs to its root.

    It admits the publishers that the others admit, unless told. Legs are as fast as can be where the plan's
    trees bound latency.
    """
    n = len(plan.overlay)
    allowed = publishers
    if allowed is None:
        allowed = next((channel.admits.publishers for channel in plan.channels), None)
    origins = list(range(n)) if allowed is None else sorted(allowed)
    targets = np.full(n, -1, dtype=np.int32)
    targets[origins] = new.root
    made = Channel(
        new.name,
        Admission(Holds(Match((new.class_id,))), allowed),
        _nobody(),
        new.pruning,
        ChannelTree(np.array(new.links, dtype=np.int32).reshape(-1, 2), new.root),
        Entry(targets),
    )
    by: Weight | None = "latency" if bounds_latency(plan) else None
    return made, legs_to(plan.overlay, [new.root], origins, by)
