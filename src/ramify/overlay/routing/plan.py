"""A plan made ready for routing: what the routers of one process share, in arrays.

Owns what routing needs of a plan and no more: the compiled filters, the host of each class, where each
channel serves it, the trees, and the members of a class. Filters and subscriptions as objects are
not kept: 100,000 subscriptions take some tens of megabytes.

A `RoutingPlan` does not change. `revised` makes the next one from a few changes without compiling anything
but the new filters; it shares all else with the one before. It routes exactly as `RoutingPlan` of the plan
with the same changes (`ramify.planning.choosing.revise.redo`, `delete_subscription`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, OverlayError
from ramify.memo import is_known, preset
from ramify.overlay.routing.parts import ClassFilters, Members
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.expressions import ChannelExpressions, expressions_of
from ramify.planning.plans.growth import NO_GROWTH, Growth, flows_down, regrown, serving_broker
from ramify.planning.plans.layout import Layout, layout_of, read_only
from ramify.planning.plans.plan import AnyOf, Cells, Everything, Holds, Path, Plan, Serves, Stamped

__all__ = ["AddedSubscription", "RemovedSubscription", "Revision", "RoutingPlan"]

MOST_LOOKED_UP = 16_384
"""Classes whose members are kept as Python objects; then that starts over."""

_NO_ENTRIES = Serves(*(np.zeros(0, dtype=np.int32) for _ in range(3)))


@dataclass(frozen=True, slots=True)
class AddedSubscription:
    """A subscription that joins class `class_id`; one that the plan lacks joins `channels`, which may have
    to grow for it first."""

    subscription: Subscription
    class_id: int
    channels: tuple[int, ...] = ()
    growth: Growth = NO_GROWTH


@dataclass(frozen=True, slots=True)
class RemovedSubscription:
    """A subscription that is gone, and what is pruned with it."""

    id: str
    growth: Growth = NO_GROWTH


Revision: TypeAlias = AddedSubscription | RemovedSubscription


@dataclass(frozen=True, slots=True)
class _PlanParts:
    """What a `RoutingPlan` is made of where it is not made from a plan."""

    layout: Layout
    vacant: npt.NDArray[np.bool_]
    members: Members
    filters: ClassFilters
    # what depends on trees alone, shared by revisions
    spans: dict[int, tuple[list[int], list[int]]]
    below: dict[int, dict[int, list[int]]]


class RoutingPlan:
    """See the module. Of `plan`, classes say only where they are when it was read or revised."""

    def __init__(self, plan: Plan, made: _PlanParts | None = None) -> None:
        self.plan = plan
        self.layout: Layout = layout_of(plan) if made is None else made.layout
        self.vacant: npt.NDArray[np.bool_] = plan.classes.vacant if made is None else made.vacant
        self.hosts: list[int] = plan.classes.broker.tolist()
        self._spans = {} if made is None else made.spans
        self._below = {} if made is None else made.below
        self._regions = [frozenset(cells.tolist()) for cells in plan.regions]
        # the arrays of the layout as sequences of Python numbers, entries by class, channels ascending: a
        # look-up costs what a list's would, and no memory
        t = self.layout.tables
        parts = (t.class_start, t.entry_channel, t.entry_at, t.entry_region)
        self._start, self._channel, self._at, self._region = (part.data for part in parts)
        self._receivers: dict[int, tuple[tuple[str, tuple[str, ...]], ...]] = {}
        if made is not None:
            preset(self, members=made.members, matcher=made.filters)

    @classmethod
    def of_parts(
        cls, plan: Plan, vacant: npt.NDArray[np.bool_], members: Members, filters: ClassFilters
    ) -> "RoutingPlan":
        """Of a plan whose filters are compiled and whose members are known apart."""
        layout = layout_of(plan)
        slim = _slim(plan, plan.classes.broker)
        kept = Layout(slim, layout.tables, layout.trees, layout.hops)
        return cls(slim, _PlanParts(kept, vacant, members, filters, {}, {}))

    @classmethod
    def read(cls, content: bytes) -> "RoutingPlan":
        """From the routing form of a plan (`form.encode_routing`). Nothing is parsed or compiled.

        Raises `InputError` for bytes that are none.
        """
        from ramify.overlay.routing.form import decode_routing

        return decode_routing(content)

    @cached_property
    def matcher(self) -> ClassFilters:
        """All filters; its ids are class ids."""
        return ClassFilters.of(self.plan.classes)

    @cached_property
    def members(self) -> Members:
        """The subscriptions of each class."""
        return Members.of(self.plan.classes)

    def receivers(self, k: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The clients of a class, each with its subscriptions there."""
        found = self._receivers.get(k)
        if found is None:
            if len(self._receivers) >= MOST_LOOKED_UP:
                self._receivers.clear()
            clients: dict[str, list[str]] = {}
            for id_, client in self.members.of_class(k):
                clients.setdefault(client, []).append(id_)
            found = self._receivers[k] = tuple((name, tuple(ids)) for name, ids in clients.items())
        return found

    def clients_at(self, broker: int) -> set[str]:
        """The clients with a subscription at a broker. O(subscriptions)."""
        return self.members.clients_of(np.flatnonzero(self.plan.classes.broker == broker))

    # ------------------------------------------------------------------------------------------ entries

    def served(self, channel: int, k: int) -> list[tuple[int, int]]:
        """The brokers that serve a class on a channel, with their regions. O(log(its entries))."""
        end = self._start[k + 1]
        at = bisect_left(self._channel, channel, self._start[k], end)
        found = []
        while at < end and self._channel[at] == channel:
            found.append((self._at[at], self._region[at]))
            at += 1
        return found

    @cached_property
    def open_channels(self) -> list[int]:
        """The channels that admit events by something else than classes."""
        channels = enumerate(self.plan.channels)
        return [c for c, channel in channels if not isinstance(channel.admits.content, AnyOf | Holds)]

    @cached_property
    def expressions(self) -> ChannelExpressions:
        """The channels that admit events by an expression over classes."""
        return expressions_of(self.plan)

    def admitted(self, origin: int, cell: int, classes: tuple[int, ...]) -> list[int]:
        """The channels that carry an event published at a broker, ascending."""
        touched = {
            c
            for k in classes
            for c, region in self._entries_of(k)
            if self.holds(region, cell) and self._admits(c, origin)
        }
        taken = {c for c in touched if isinstance(self.plan.channels[c].admits.content, AnyOf)}
        taken.update(c for c in self.expressions.holding(classes) if self._admits(c, origin))
        stamped: list[int] = []
        for c in self.open_channels:
            if not self._admits(c, origin):
                continue
            match self.plan.channels[c].admits.content:
                case Everything():
                    taken.add(c)
                case Cells(cells):
                    at = int(np.searchsorted(cells, cell))
                    if at < len(cells) and cells[at] == cell:
                        taken.add(c)
                case Stamped():
                    stamped += [c] if c in touched else []
        if stamped:
            # one alone is chosen whatever it costs
            chosen = stamped[0] if len(stamped) == 1 else self.stamped(origin, cell, classes)
            assert chosen is not None, "some stamped channel serves a matching class"
            taken.add(chosen)
        return sorted(taken)

    def _entries_of(self, k: int) -> Iterable[tuple[int, int]]:
        """Channel and region of each entry of a class."""
        mine = slice(self._start[k], self._start[k + 1])
        return zip(self._channel[mine], self._region[mine], strict=True)

    def is_stamped(self, channel: int) -> bool:
        """Whether a channel carries only the events that the publisher's broker chose it for."""
        return isinstance(self.plan.channels[channel].admits.content, Stamped)

    def is_expressed(self, channel: int) -> bool:
        """Whether a channel admits events by an expression over classes."""
        return isinstance(self.plan.channels[channel].admits.content, Holds)

    def _admits(self, channel: int, origin: int) -> bool:
        allowed = self.plan.channels[channel].admits.publishers
        return allowed is None or origin in allowed

    def holds(self, region: int, cell: int) -> bool:
        """Whether an entry for a region counts for an event in a cell."""
        return region < 0 or cell in self._regions[region]

    def stamped(self, origin: int, cell: int, classes: tuple[int, ...]) -> int | None:
        """The stamped channel that carries an event, or None. By the pricer's own code: ties must agree."""
        from ramify.planning.demand.demand import Demand

        one = Demand.of([(origin, classes, 1, 0)], cells=[cell])
        rides = self._walker.rides(one, 0, 1).columns
        for channel in rides.channel[rides.chosen != 0].tolist():
            if isinstance(self.plan.channels[channel].admits.content, Stamped):
                return int(channel)
        return None

    @cached_property
    def _walker(self) -> Any:
        # most plans have no stamped channels: their brokers need neither the kernels nor the memory
        from ramify.planning.pricing.walk import Walker

        return Walker(self.layout)

    # -------------------------------------------------------------------------------------------- trees

    def neighbour(self, channel: int, here: int, there: int) -> int:
        """The next broker from `here` on a channel's tree on the way to `there`. O(log degree)."""
        tree = self.layout.trees[channel]
        assert tree is not None
        position, end = self._span(channel)
        if not position[here] <= position[there] < end[here]:
            return int(tree.parent[here])
        below = self.children(channel)[here]
        return below[bisect_right([position[child] for child in below], position[there]) - 1]

    def neighbours(self, channel: int, here: int) -> list[int]:
        """All logical neighbours on a channel's tree."""
        tree = self.layout.trees[channel]
        assert tree is not None
        above = int(tree.parent[here])
        return ([above] if above >= 0 else []) + self.children(channel)[here]

    def carries(self, channel: int, here: int, came_from: int | None) -> bool:
        """Whether a broker takes an event of a channel from a neighbour on its tree (None: by a leg).

        It does not if the branch or channel is only in the sender's revision of the plan, not in this one.
        No subscriber of both revisions is behind it (`planning.plans.growth`).
        """
        if channel >= len(self.layout.trees):
            return False
        tree = self.layout.trees[channel]
        if tree is None or tree.parent[here] < -1:
            return False
        return came_from is None or channel not in self.flowing_down or tree.parent[here] == came_from

    @cached_property
    def flowing_down(self) -> frozenset[int]:
        """The channels whose trees may grow and be pruned."""
        return frozenset(c for c, channel in enumerate(self.plan.channels) if flows_down(channel))

    def way(self, label: tuple[int, int], *, leg: bool) -> Path | None:
        """The brokers on the logical link, or leg, that a label names; None where none is known here.

        A label stands for several links, so that a single link between its ends is not what it means.
        """
        try:
            found = self.plan.leg(*label) if leg else self.plan.path(*label)
        except OverlayError:
            return None
        return found if len(found) > 2 else None

    def children(self, channel: int) -> dict[int, list[int]]:
        """The brokers below each broker of a channel's tree, in preorder."""
        if channel not in self._below:
            tree = self.layout.trees[channel]
            assert tree is not None
            below: dict[int, list[int]] = {broker: [] for broker in tree.order.tolist()}
            for above, child in tree.links().tolist():
                below[above].append(child)
            self._below[channel] = below
        return self._below[channel]

    def _span(self, channel: int) -> tuple[list[int], list[int]]:
        """Preorder positions and ends: `there` hangs below `here` when its position is within."""
        if channel not in self._spans:
            tree = self.layout.trees[channel]
            assert tree is not None
            n = len(tree.parent)
            position, size = [-1] * n, [1] * n
            for at, broker in enumerate(tree.order.tolist()):
                position[broker] = at
            for broker in tree.order[:0:-1].tolist():
                size[int(tree.parent[broker])] += size[broker]
            self._spans[channel] = position, [a + b for a, b in zip(position, size, strict=True)]
        return self._spans[channel]

    # ----------------------------------------------------------------------------------------- revisions

    def revised(self, changes: Iterable[Revision]) -> "RoutingPlan":
        """The routing plan after these changes, in order. This one stays as it is.

        O(classes + entries) copied once, a few milliseconds at 100,000, and the parsing of new filters.
        Where channels grow or a class is served by a proxy, all is laid out anew: O(channels * brokers +
        entries), most of a second at 3,000 channels and 300 brokers.
        Raises `InputError` for changes that are none of this plan; nothing is changed then.
        """
        going = _Reviser(self)
        for change in changes:
            going.add(change) if isinstance(change, AddedSubscription) else going.remove(change)
        return going.done()


class _Reviser:
    """A routing plan while changes are made to it."""

    def __init__(self, old: RoutingPlan) -> None:
        self._old = old
        self._members = old.members.changing()
        self._rows: list[Subscription] = []
        self._hosts: list[int] = []
        # class -> the channels that it joins
        self._joined: dict[int, tuple[int, ...]] = {}
        # what the plan comes to, where its channels change, and classes that they serve no more
        self._plan = old.plan
        self._left: set[int] = set()

    def add(self, change: AddedSubscription) -> None:
        row, k, plan = change.subscription, change.class_id, self._old.plan
        self._grow(change.growth)
        host = plan.overlay.index.get(row.broker)
        count = len(self._old.hosts) + len(self._hosts)
        if host is None or not 0 <= k <= count or (k < count and self._host(k) != host):
            raise InputError(
                f"subscription {row.id!r} cannot join class {k}: that is not at {row.broker!r}"
            )
        channels = change.channels
        if not self._carried(k):
            if channels and not 0 <= min(channels) <= max(channels) < len(self._plan.channels):
                raise InputError(
                    f"subscription {row.id!r} joins channels {list(channels)}, which are not all there"
                )
            if channels:
                self._joined[k] = tuple(sorted(set(channels)))
        self._members.add(k, row.id, row.client)
        if k == count:
            self._rows.append(row)
            self._hosts.append(host)

    def remove(self, change: RemovedSubscription) -> None:
        self._members.remove(change.id)
        self._grow(change.growth)

    def _grow(self, growth: Growth) -> None:
        if growth:
            self._plan = regrown(self._plan, growth)
            if growth.without >= 0:
                self._left.add(growth.without)
                self._joined.pop(growth.without, None)

    def done(self) -> RoutingPlan:
        old = self._old
        schema = old.plan.classes.schema
        filters = old.matcher.extended([row.parse(schema) for row in self._rows])
        host = np.append(old.plan.classes.broker, np.array(self._hosts, dtype=np.int32)).astype(np.int32)
        members = self._members.changed()
        vacant = np.append(old.vacant, np.zeros(len(self._hosts), dtype=np.bool_))
        for k in self._members.touched:
            vacant[k] = not members.of_class(k)
        if self._plan is not old.plan or self._by_proxy(host):
            return RoutingPlan.of_parts(self._rebuilt(host), vacant, members, filters)
        plan = _slim(old.plan, host)
        layout = self._layout(plan, host)
        return RoutingPlan(plan, _PlanParts(layout, vacant, members, filters, old._spans, old._below))

    def _by_proxy(self, host: npt.NDArray[np.int32]) -> bool:
        """Whether a class joins a channel by another broker than its own: that may be a new hop."""
        joined = ((k, c) for k, channels in self._joined.items() for c in channels)
        return any(serving_broker(self._plan.channels[c], int(host[k])) != host[k] for k, c in joined)

    def _rebuilt(self, host: npt.NDArray[np.int32]) -> Plan:
        """The plan with its entries, to be laid out anew: trees or hops are others."""
        t = self._old.layout.tables
        old = np.stack((t.entry_class, t.entry_at, t.entry_region, t.entry_channel), axis=1)
        entries = [old[~np.isin(t.entry_class, list(self._left))] if self._left else old]
        for k, joined in self._joined.items():
            rows = [(k, serving_broker(self._plan.channels[c], int(host[k])), -1, c) for c in joined]
            entries.append(np.array(rows, dtype=np.int32))
        every = np.concatenate(entries)
        every = every[np.lexsort((every[:, 0], every[:, 3]))]
        ends = np.searchsorted(every[:, 3], np.arange(len(self._plan.channels) + 1))
        channels = [
            replace(channel, serves=Serves(*np.ascontiguousarray(every[ends[c] : ends[c + 1], :3].T)))
            for c, channel in enumerate(self._plan.channels)
        ]
        classes = Classes.hosts_alone(host, self._plan.classes.schema)
        return replace(self._plan, classes=classes, channels=tuple(channels))

    def _host(self, k: int) -> int:
        known = self._old.hosts
        return known[k] if k < len(known) else self._hosts[k - len(known)]

    def _carried(self, k: int) -> bool:
        start = self._old.layout.tables.class_start
        held = k < len(self._old.hosts) and k not in self._left and start[k] < start[k + 1]
        return k in self._joined or bool(held)

    def _layout(self, plan: Plan, host: npt.NDArray[np.int32]) -> Layout:
        """The old layout with the new classes and entries; trees, hops and rules are the same."""
        old = self._old.layout
        t = old.tables
        added = sorted(self._joined)
        counts = np.diff(t.class_start, append=np.full(len(self._hosts), t.class_start[-1]))
        where = [int(t.class_start[min(k, len(t.host))]) for k in added for _ in self._joined[k]]
        classes = np.array([k for k in added for _ in self._joined[k]], dtype=np.int32)
        channels = np.array([c for k in added for c in self._joined[k]], dtype=np.int32)
        np.add.at(counts, classes, 1)
        always = np.full(len(classes), -1, dtype=np.int32)
        here = t.serves_here
        if len(classes):
            here = here.copy()
            here[channels, host[classes]] = 1
        columns = {
            "entry_class": classes,
            "entry_channel": channels,
            "entry_at": host[classes],
            "entry_region": always,
            "entry_note": always,
        }
        # no expression names a new class: channels would have changed with it
        terms = np.append(t.term_start, np.full(len(self._hosts), t.term_start[-1]))
        tables = t._replace(
            term_start=read_only(terms.astype(np.int64)),
            class_start=read_only(np.concatenate(([0], np.cumsum(counts))).astype(np.int64)),
            host=read_only(host),
            serves_here=read_only(here),
            **{name: read_only(np.insert(getattr(t, name), where, new)) for name, new in columns.items()},
        )
        made = Layout(plan, tables, old.trees, old.hops)
        # both depend on the overlay and the rule alone, and may have taken long
        preset(made, **{name: getattr(old, name) for name in _KEPT if is_known(old, name)})
        return made


_KEPT = ("steiner", "toward")


def _slim(plan: Plan, broker: npt.NDArray[np.int32]) -> Plan:
    """What routing asks a plan itself: its classes say only where they are, entries are in the layout."""
    return replace(
        plan,
        classes=Classes.hosts_alone(broker, plan.classes.schema),
        channels=tuple(replace(channel, serves=_NO_ENTRIES) for channel in plan.channels),
        attachments={},
    )
