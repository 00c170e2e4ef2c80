"""Subscriptions come and go: section VI of Majumder et al. (2009), on plans alone.

Owns the next revision of a plan when one subscription is added or deleted. When a re-plan is installed is
in `weigh`. Nothing here talks to a broker.

Problem    Keep a plan serving everyone while subscriptions change, without planning again each time.
Idea       A new subscription joins the group whose cost it raises least on the present sample, on the tree
           that the group has. Now and then a fresh plan is made, and installed when the share of the cost
           that it saves exceeds a threshold.
Guarantee  The increase is exact on the demand, at the price of each direction; the group is a true minimum.
Cost       O(groups * (n log n + what the matched patterns match)) to choose.
Departures Ties, which are the rule where the sample has nothing for the newcomer: the largest overlap of
           filters (values that both ask for; where no group shares any, members that overlap), then the
           least mean price of the way from the publishers, then the lowest channel. A class whose last
           member goes keeps its number and its place, out of all tables, so that a subscriber that asks the
           same again at the same broker finds it there. Re-plans keep the numbers too.

A coordinator keeps plan and sample in step. `matched` says which patterns of its sample the newcomer
matches: it has the events, this module does not. Events of one pattern may differ in that, so it tallies
them with the newcomer's filter as a tag, which keeps them apart.

    demand = tally(sample, plan.classes, overlay, attachments, tags=[subscription.parse(schema)])
    matched = demand.tags != 0
    change = add_subscription(plan, subscription, demand, matched)
    plan, demand = change.plan, change.follow(demand, matched)
    change = delete_subscription(plan, id_)
    plan, demand = change.plan, change.follow(demand)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.content.matching.encoding import access_paths
from ramify.errors import InputError, OverlayError, PlanError
from ramify.network.trees.trees import MeasuredTree, Tree
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.growth import (
    NO_GROWTH,
    Growth,
    regrown,
    serving_broker,
)
from ramify.planning.plans.lateness import LateSubscription
from ramify.planning.plans.layout import Hops, rooted_tree
from ramify.planning.plans.legs import ROUNDING
from ramify.planning.plans.plan import (
    AnyOf,
    Cells,
    Channel,
    Everything,
    Plan,
    Pruning,
    Serves,
    Stamped,
)
from ramify.planning.pricing.bound import GB
from ramify.planning.schemes.catalog import hooks_of

__all__ = [
    "Revision",
    "add_subscription",
    "delete_subscription",
    "redo",
    "undo",
]

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

GROUPS_COMPARED = 8
"""Members of a group that are compared with a filter, where no value of an attribute tells groups apart."""
LOOKED_AT = 2_000
"""Members of all groups whose values are compared with a filter's; of more, every n-th."""


@dataclass(frozen=True)
class Revision:
    """The next revision of a plan.

    Attributes
    ----------
    before      the plan that was changed
    plan        the revision itself
    class_id    the class that was joined or left
    channels    that began or ceased to carry the class
    increase    what the chosen group costs more on the demand; None where there was no group to choose
    growth      how the channels themselves change with it
    late        the newcomer, where a plan that bounds latency cannot keep its bound and does not refuse it
    """

    before: Plan
    plan: Plan
    class_id: int
    channels: tuple[int, ...] = ()
    increase: float | None = None
    growth: Growth = NO_GROWTH
    late: LateSubscription | None = None

    @cached_property
    def messages(self) -> Mapping[str, int]:
        """Kind -> messages between brokers that the scheme takes for it. Computed when asked for."""
        count = hooks_of(self.plan).measures
        changed = self.growth.grown or self.growth.pruned
        return count(self.before, self.plan) if count is not None and changed else {}

    def follow(self, demand: Demand, matched: Bools | None = None) -> Demand:
        """The demand in step with the plan: the class is matched while it has a member."""
        if self.plan.classes.vacant[self.class_id]:
            return demand.without_class(self.class_id)
        return demand if matched is None else demand.with_class(self.class_id, matched)


# --------------------------------------------------------------------------------------- subscriptions


def add_subscription(
    plan: Plan,
    subscription: Subscription,
    demand: Demand,
    matched: Bools | None = None,
) -> Revision:
    """The plan with one more subscription. See the module.

    `matched` is bool[p]: the patterns of the demand that it matches; None is none of them. It joins its
    class where that has a place already; else one group, or every channel where each serves everybody.
    Where the plan's scheme has its own way (`Hooks.join`), that decides.
    Raises `PlanError` for plans of other kinds and where a tree does not reach its broker: those must be
    planned again. `TooLateError` where the plan refuses its latency bound. `InputError` for an id that
    exists, a client that is elsewhere.
    """
    if matched is not None and len(matched) != len(demand):
        raise InputError(
            f"matched says {len(matched)} patterns, the demand has {len(demand)}. Say each once."
        )
    at = plan.attachments.get(subscription.client, subscription.broker)
    if at != subscription.broker:
        raise InputError(
            f"subscription {subscription.id!r} is at {subscription.broker!r}, but its client "
            f"{subscription.client!r} is attached to {at!r}. Subscribe there, or attach it anew."
        )
    classes, k = plan.classes.with_subscription(subscription, plan.overlay)
    hooks, joined = hooks_of(plan), _carrying(plan, k)
    if joined:
        revived = joined if plan.classes.vacant[k] else ()
        late = None if hooks.late is None else hooks.late(plan, k, subscription)
        return Revision(plan, replace(plan, classes=classes), k, revived, late=late)
    if hooks.join is not None:
        came = hooks.join(plan, subscription)
        made = redo(plan, subscription, came.class_id, came.channels, came.growth)
        return Revision(plan, made, came.class_id, came.channels, growth=came.growth, late=came.late)
    chosen, increase = _place(plan, classes, k, demand, matched)
    made = replace(plan, classes=classes, channels=_joined(plan, classes, k, chosen))
    return Revision(plan, made, k, chosen, increase)


def delete_subscription(plan: Plan, id_: str) -> Revision:
    """The plan without one subscription; any kind of plan. `InputError` for an unknown id.

    The last member of a class takes it out of every table; see the module for what becomes of it.
    """
    classes, k = plan.classes.without_subscription(id_)
    left = _carrying(plan, k) if classes.vacant[k] else ()
    leave = hooks_of(plan).leave
    if left and leave is not None:
        growth = leave(plan, id_)
        return Revision(plan, undo(plan, id_, growth), k, left, growth=growth)
    return Revision(plan, replace(plan, classes=classes), k, left)


def redo(
    plan: Plan,
    subscription: Subscription,
    class_id: int,
    channels: Sequence[int],
    growth: Growth = NO_GROWTH,
) -> Plan:
    """The plan with a subscription that was added elsewhere: `class_id` and `channels` say where it went,
    `growth` how channels grew for it.

    Equals `add_subscription(...).plan` of the same plan, without the demand, prices or comparing filters.
    Raises `InputError` for a change that is not one of this plan.
    """
    classes = plan.classes.with_member(subscription, class_id, plan.overlay)
    if growth:
        plan = regrown(plan, growth)
    if class_id < len(plan.classes) and _carrying(plan, class_id):
        return replace(plan, classes=classes)
    if channels and not 0 <= min(channels) <= max(channels) < len(plan.channels):
        raise InputError(
            f"subscription {subscription.id!r} joins channels {list(channels)}, which are not all there"
        )
    return replace(plan, classes=classes, channels=_joined(plan, classes, class_id, channels))


def undo(plan: Plan, id_: str, growth: Growth = NO_GROWTH) -> Plan:
    """The plan without a subscription that was deleted elsewhere, and with what was pruned there.

    Equals `delete_subscription(...).plan` of the same plan.
    """
    classes, _ = plan.classes.without_subscription(id_)
    return replace(regrown(plan, growth) if growth else plan, classes=classes)


def _carrying(plan: Plan, k: int) -> tuple[int, ...]:
    return tuple(c for c, channel in enumerate(plan.channels) if (channel.serves.classes == k).any())


def _joined(plan: Plan, classes: Classes, k: int, chosen: Sequence[int]) -> tuple[Channel, ...]:
    """The channels, those chosen serving class k too."""
    host = int(classes.broker[k])
    return tuple(
        replace(channel, serves=_with_class(channel.serves, k, serving_broker(channel, host)))
        if c in chosen
        else channel
        for c, channel in enumerate(plan.channels)
    )


def _with_class(serves: Serves, k: int, at_broker: int) -> Serves:
    at = int(np.searchsorted(serves.classes, k))
    parts = ((serves.classes, k), (serves.at, at_broker), (serves.region, -1))
    return Serves(*(np.insert(part, at, value).astype(np.int32) for part, value in parts))


def _place(
    plan: Plan, classes: Classes, k: int, demand: Demand, matched: Bools | None
) -> tuple[tuple[int, ...], float | None]:
    """The channels that a class joins, and the increase where one of several groups was chosen."""
    n, host = len(plan.overlay), int(classes.broker[k])
    if not plan.channels:
        raise _must_replan(plan, "it has no channel yet")
    if all(_is_group(plan, channel) for channel in plan.channels):
        found = _Groups(plan, host, demand, matched)
        if not found.spanning:
            raise _must_replan(plan, "none of its trees spans the overlay")
        return found.cheapest(classes.filter_of(k))
    if all(isinstance(channel.admits.content, Cells) for channel in plan.channels):
        return _in_cells(plan, classes, k), None
    if not all(_serves_everybody(plan, channel) for channel in plan.channels):
        raise _must_replan(plan, "its channels divide events by cells, expressions, regions or proxies")
    for channel in plan.channels:
        tree = rooted_tree(channel, n)
        if tree is not None and host not in tree.order:
            at = plan.overlay.brokers[host]
            raise _must_replan(plan, f"the tree of channel {channel.name} does not reach {at}")
    return tuple(range(len(plan.channels))), None


def _in_cells(plan: Plan, classes: Classes, k: int) -> tuple[int, ...]:
    """The channels that admit a cell which a class may get events in; its proxy is on the tree of each."""
    if plan.grid is None:
        raise _must_replan(plan, "its channels divide events by cells of a grid, and it has no grid")
    host, touched = int(classes.broker[k]), plan.grid.cells_touched(classes.filter_of(k))
    admitted = [c.admits.content.cells for c in plan.channels if isinstance(c.admits.content, Cells)]
    if not np.isin(touched, np.concatenate(admitted)).all():
        raise _must_replan(plan, "no channel admits some of the cells that the subscription asks for")
    found = []
    for c, channel in enumerate(plan.channels):
        content = channel.admits.content
        if not isinstance(content, Cells) or not np.isin(content.cells, touched).any():
            continue
        at = serving_broker(channel, host)
        if channel.tree is None or at not in channel.tree.brokers:
            reached = plan.overlay.brokers[at]
            raise _must_replan(plan, f"the tree of channel {channel.name} does not reach {reached}")
        if at != host:
            try:
                plan.path(at, host)
            except OverlayError as error:
                raise _must_replan(plan, str(error)) from None
        found.append(c)
    return tuple(found)


def _must_replan(plan: Plan, why: str) -> PlanError:
    what = f"plan {plan.scheme} cannot take a new class of subscriptions; it must be planned again:"
    return PlanError(what, [why])


def _is_group(plan: Plan, channel: Channel) -> bool:
    return (
        isinstance(channel.admits.content, AnyOf)
        and channel.admits.publishers is None
        and channel.pruning is Pruning.FILTER
        and (channel.entry.targets is None or bool((channel.entry.targets < 0).all()))
        and _at_hosts(plan, channel)
    )


def _serves_everybody(plan: Plan, channel: Channel) -> bool:
    return (
        isinstance(channel.admits.content, AnyOf | Everything | Stamped)
        and len(np.unique(channel.serves.classes)) == len(plan.classes)
        and _at_hosts(plan, channel)
    )


def _at_hosts(plan: Plan, channel: Channel) -> bool:
    serves = channel.serves
    return bool((serves.region < 0).all() and (serves.at == plan.classes.broker[serves.classes]).all())


# ---------------------------------------------------------------------------------------------- groups


class _Groups:
    """What a class at a host would add to the cost of each group.

    Hang a tree from the host. An event that matches travels the least sub-tree that joins its publisher's
    broker and the hosts which the group serves it to; the lowest common ancestor of those is where
    the new branch begins. The increase is the price of the way from there, times the bytes of the event.
    """

    def __init__(self, plan: Plan, host: int, demand: Demand, matched: Bools | None) -> None:
        self._plan = plan
        self._demand = demand
        self._host = host
        rooted = [rooted_tree(channel, len(plan.overlay)) for channel in plan.channels]
        trees = [tree for tree in rooted if tree is not None]  # groups have trees, all of them
        self.spanning = [c for c, tree in enumerate(trees) if len(tree) == len(plan.overlay)]
        self._hung = _priced(plan, [trees[c].rerooted(host) for c in self.spanning])
        seen = (
            np.zeros(len(demand), dtype=np.bool_)
            if matched is None
            else np.asarray(matched, dtype=np.bool_)
        )
        self._rows = np.flatnonzero(seen & (demand.publisher != host))

    def cheapest(self, wanted: Filter) -> tuple[tuple[int, ...], float]:
        """The group to join and what it costs more. Ties: see the module."""
        pairs = self._pairs()
        rises = np.array([self._increase(place, pairs) for place in range(len(self.spanning))])
        least = float(rises.min())
        tied = np.flatnonzero(rises <= least + ROUNDING * abs(least)).tolist()
        if len(tied) > 1:
            tied = _most_alike(self._plan, wanted, [self.spanning[place] for place in tied], tied)
        best = min(tied, key=lambda place: (self._mean_distance(place), place))
        return (self.spanning[best],), float(rises[best])

    def _pairs(self) -> tuple[Longs, npt.NDArray[np.int32]]:
        """(place in the matched rows, class) of all that they match away from their publisher's broker."""
        taken = self._demand.take(self._rows)
        row = np.repeat(np.arange(len(taken)), np.diff(taken.start))
        away = self._plan.classes.broker[taken.classes] != taken.publisher[row]
        return row[away], taken.classes[away]

    def _increase(self, place: int, pairs: tuple[Longs, npt.NDArray[np.int32]]) -> float:
        hung, _ = self._hung[place]
        served = np.zeros(len(self._plan.classes), dtype=np.bool_)
        served[self._plan.channels[self.spanning[place]].serves.classes] = True
        row, classes = pairs[0][served[pairs[1]]], pairs[1][served[pairs[1]]]
        low = hung.tin[self._demand.publisher[self._rows]].copy()
        high = low.copy()
        at = hung.tin[self._plan.classes.broker[classes]]
        np.minimum.at(low, row, at)
        np.maximum.at(high, row, at)
        order = hung.tree.order
        begins = hung.lca(order[low], order[high])
        return float(hung.depth[begins] @ self._demand.size[self._rows].astype(np.float64)) / GB

    def _mean_distance(self, place: int) -> float:
        """From the publishers of the demand, by events; from every broker where there are none."""
        weight = np.bincount(
            self._demand.publisher, weights=self._demand.count, minlength=len(self._plan.overlay)
        )
        if not weight.any():
            weight[:] = 1.0
        hung, length = self._hung[place]
        away = hung.depth if length is None else length
        return float(weight @ away) / float(weight.sum())


def _priced(plan: Plan, trees: Sequence[Tree]) -> list[tuple[MeasuredTree, Floats | None]]:
    """Trees measured by the price from each broker to its parent; and hops, where all links cost alike."""
    hops = Hops(plan)
    numbers = [hops.numbers(tree.order[1:], tree.parent[tree.order[1:]]) for tree in trees]
    start, arc = hops.arcs()
    per_arc = plan.overlay.price.ravel()
    per_hop = np.add.reduceat(per_arc[arc], start[:-1]) if len(arc) else np.zeros(0)
    even = not len(per_arc) or bool((per_arc == per_arc[0]).all())
    found: list[tuple[MeasuredTree, Floats | None]] = []
    for tree, number in zip(trees, numbers, strict=True):
        length = np.zeros(len(tree.parent))
        length[tree.order[1:]] = per_hop[number]
        found.append((MeasuredTree.of(tree, length), tree.depth_hops().astype(float) if even else None))
    return found


def _most_alike(plan: Plan, wanted: Filter, channels: Sequence[int], places: Sequence[int]) -> list[int]:
    """The places whose groups overlap most with a filter; all where none is known to."""
    asked = _values(wanted)
    members = [_live(plan, plan.channels[c]) for c in channels]
    filter_of = plan.classes.filter_of
    step = max(1, -(-sum(map(len, members)) // LOOKED_AT))
    scores = [sum(len(asked & _values(filter_of(k))) for k in own[::step].tolist()) for own in members]
    if not any(scores):
        scores = [
            sum(
                wanted.overlaps(filter_of(k))
                for k in own[:: max(1, -(-len(own) // GROUPS_COMPARED))].tolist()
            )
            for own in members
        ]
    return [place for place, score in zip(places, scores, strict=True) if score == max(scores)]


def _live(plan: Plan, channel: Channel) -> npt.NDArray[np.int32]:
    classes = channel.serves.classes
    return classes[~plan.classes.vacant[classes]]


def _values(wanted: Filter) -> set[object]:
    """The values of attributes that a filter asks for: keywords, numbers, intervals of ranges."""
    return {
        (access.path, feature)
        for box in wanted.boxes
        for access in access_paths(box)
        for feature in access.features
    }
