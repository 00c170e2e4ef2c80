"""Walks a demand through a plan, chunk by chunk: rides, crossings, arrivals.

Owns the memory of the compiled steps in `ride_kernels.py` and `crossing_kernels.py` and the order in
which they run. A chunk holds as many patterns as fit the buffers in the worst case, so that memory
stays bounded however large the demand.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ramify.network.trees.steiner_kernels import tree_scratch
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.layout import Layout, read_only
from ramify.planning.plans.plan import Pruning
from ramify.planning.pricing.crossing_kernels import (
    CrossingRoom,
    GrowMemory,
    StackMemory,
    leg_crossings,
    walk_copy_rides,
    walk_header_rides,
    walk_list_rides,
    walk_tree_rides,
)
from ramify.planning.pricing.ride_kernels import (
    COPIES,
    DESTINATIONS,
    STAMPED,
    DemandColumns,
    GatherMemory,
    RideColumns,
    RideRoom,
    TreeMemory,
    TreeTables,
    choose_rides,
    gather_rides,
)

__all__ = ["Crossings", "Rides", "Walker", "demand_columns"]

MOST_CROSSINGS = 4_000_000
"""Crossings that a chunk has room for; a single pattern that needs more gets it."""
_FIRST_PATTERNS, _PATTERNS_AT_ONCE = 1_024, 65_536
_FIRST_RIDES = 1_024

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def demand_columns(demand: Demand) -> DemandColumns:
    """A demand as kernels take it."""
    return DemandColumns(
        publisher=read_only(demand.publisher),
        cell=read_only(demand.cell),
        start=read_only(demand.start),
        classes=read_only(demand.classes),
        counts=read_only(demand.count),
        sizes=read_only(demand.size),
        tags=read_only(demand.tags),
    )


@dataclass(slots=True)
class Rides:
    """Patterns `first` to `last - 1` on the channels that may carry them."""

    first: int
    last: int
    columns: RideColumns

    def part(self, first: int, last: int, begin: int, end: int) -> "Rides":
        """Rides `begin` to `end - 1` alone, which must be all those of patterns `first` to `last - 1`."""
        c = self.columns
        if (begin, end) == (0, len(c.pattern)):
            return replace(self, first=first, last=last)
        rides, low, high = slice(begin, end), c.start[begin], c.start[end]
        alone = RideColumns(
            pattern=c.pattern[rides],
            channel=c.channel[rides],
            enters=c.enters[rides],
            group=c.group[rides],
            start=c.start[begin : end + 1] - low,
            entry=c.entry[low:high],
            chosen=c.chosen[rides],
        )
        return Rides(first, last, alone)


def _room_for(rides: int, entries: int) -> RideRoom:
    whose = _ints(rides), _ints(rides), _ints(rides)
    return RideRoom(*whose, _longs(rides), _longs(rides + 1), _ints(entries))


def _doubled(room: RideRoom, rides: int, entries: int) -> RideRoom:
    """Twice the room, with the rides and entries that are used."""
    grown = _room_for(2 * len(room.pattern), 2 * len(room.entry))
    used = _used(room, rides, entries)
    for k in range(len(used)):
        grown[k][: len(used[k])] = used[k]
    return grown


def _used(room: RideRoom, rides: int, entries: int) -> RideRoom:
    return RideRoom(
        room.pattern[:rides],
        room.channel[:rides],
        room.enters[:rides],
        room.group[:rides],
        room.start[: rides + 1],
        room.entry[:entries],
    )


@dataclass(slots=True)
class Crossings:
    """Hops crossed, sorted by pattern, with the bytes of their headers; legs onto trees apart."""

    pattern: Ints
    hop: Ints
    header: Ints
    legs: tuple[Ints, Ints, Ints]
    reach_ms: Floats
    reach_hops: Ints
    matchings: int


class Walker:
    """The compiled walk over one plan, with its working memory. Not for several threads at once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._brokers = len(layout.plan.overlay)
        t = self._tables = layout.tables
        channels = len(t.pruning)
        n = self._brokers
        clock = np.zeros(1, dtype=np.int64)
        terms = len(t.filed_start) - 1
        self._gathering = GatherMemory(
            clock=clock,
            of_term=_longs(terms),
            true_term=_ints(terms),
            touched=_longs(channels),
            head=_ints(channels),
            next_entry=_ints(len(t.entry_at)),
            listed=_ints(channels),
            truth=np.zeros(len(t.program) + 1, dtype=np.uint8),
            group_stamp=_longs(n),
            group_of=_longs(n),
        )
        self._trees = TreeTables(*(getattr(t, name) for name in TreeTables._fields))
        self._memory = TreeMemory(
            clock=clock,
            on_tree=_longs(n),
            to_broker=_longs(n),
            destinations=_ints(n + 1),
            ms=np.zeros(n),
            hops=_ints(n),
            chain=_ints(n + 1),
            chain_place=_ints(n),
            chain_stamp=_longs(n),
            walk=_ints(n + 1),
            crossed=_ints(2 * n + 2),
            arrived=_ints(2 * n + 2),
        )
        self._noted = _longs(len(t.hop_ms))
        self._gathered = _room_for(_FIRST_RIDES, _FIRST_RIDES)

    def chunks(self, demand: Demand) -> Iterator[Rides]:
        """The rides of a demand, so many patterns at a time that what they cross stays in bounds.

        How many that are is learnt on the way: the worst case would be far off where few of many channels
        admit an event. Patterns whose rides turn out to be too many are handed out in parts.
        """
        first, step = 0, _FIRST_PATTERNS
        while first < len(demand):
            last = min(len(demand), first + step)
            rides = self.rides(demand, first, last)
            yield from self._parts(rides)
            share = self._room(rides) / MOST_CROSSINGS
            if share > 1:
                step = max(1, int((last - first) / (2 * share)))
            elif share < 0.25:
                step = min(2 * step, _PATTERNS_AT_ONCE)
            first = last

    def rides(self, demand: Demand, first: int, last: int) -> Rides:
        """Which channels carry which patterns, stamped ones chosen."""
        columns = demand_columns(demand)
        made = self._gather(columns, first, last)
        if (self._tables.content == STAMPED).any():
            choose_rides(made.columns, columns.publisher, self._tables, self._trees, self._memory)
        return made

    def _parts(self, rides: Rides) -> Iterator[Rides]:
        """The same rides, as many patterns at a time as there is room for, at least one."""
        ends = np.searchsorted(rides.columns.pattern, np.arange(rides.first, rides.last + 1))
        needs = np.concatenate(([0], np.cumsum(self._rooms(rides))))[ends]
        at = 0
        while at < rides.last - rides.first:
            fits = int(np.searchsorted(needs, needs[at] + MOST_CROSSINGS - 1, side="right")) - 1
            until = max(at + 1, fits)
            yield rides.part(rides.first + at, rides.first + until, int(ends[at]), int(ends[until]))
            at = until

    def cross(self, demand: Demand, rides: Rides) -> Crossings:
        """What the chosen rides cross."""
        room, columns = self._room(rides), demand_columns(demand)
        reached = len(rides.columns.entry)
        reach = np.full(reached, -1.0), _ints(reached), _longs(1)
        parts: list[tuple[Ints, ...]] = [(_ints(0), _ints(0), _ints(0))]
        for kinds, walk in (
            ((Pruning.FILTER, Pruning.NONE), self._walk_trees),
            ((Pruning.TREE,), self._walk_headers),
            ((Pruning.DESTINATIONS,), self._walk_lists),
            ((Pruning.COPIES,), self._walk_copies),
        ):
            if self._layout.uses(*kinds):
                out = CrossingRoom(_ints(room), _ints(room), _ints(room), *reach)
                used = walk(columns, rides.columns, out)
                parts.append(tuple(buffer[:used] for buffer in out[:3]))
        pattern, hop, header = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(parts) > 2:
            order = np.argsort(pattern, kind="stable")
            pattern, hop, header = pattern[order], hop[order], header[order]
        legs = self._legs(columns, rides.columns, reach)
        reach_ms, reach_hops, matchings = reach
        return Crossings(pattern, hop, header, legs, reach_ms, reach_hops, int(matchings[0]))

    def _room(self, rides: Rides) -> int:
        """Crossings that these rides may need at most."""
        return int(self._rooms(rides).sum()) + 1

    def _rooms(self, rides: Rides) -> Longs:
        """The same ride by ride; those that are not taken need none."""
        how = self._tables.pruning[rides.columns.channel]
        entries = np.diff(rides.columns.start)
        separate = (how == COPIES) | (how == DESTINATIONS)
        links = self._brokers * np.where(separate, entries, 1)
        return np.where(rides.columns.chosen != 0, links + entries, 0)

    def _gather(self, demand: DemandColumns, first: int, last: int) -> Rides:
        """One pass; where there is no room for a pattern, it goes on from there with more."""
        at, rides, entries = first, 0, 0
        while True:
            into = self._gathered
            at, rides, entries = gather_rides(
                at, last, rides, entries, demand, self._tables, self._gathering, into
            )
            if at == last:
                return Rides(first, last, _all_chosen(_used(into, rides, entries)))
            self._gathered = _doubled(into, rides, entries)

    def _walk_trees(self, demand: DemandColumns, rides: RideColumns, out: CrossingRoom) -> int:
        return walk_tree_rides(rides, demand, self._tables, self._trees, self._memory, self._noted, out)

    def _walk_headers(self, demand: DemandColumns, rides: RideColumns, out: CrossingRoom) -> int:
        steiner, n = self._layout.steiner, self._brokers
        clock, stamps, work, worth = tree_scratch(n)
        near = np.empty(2 * n + 1, dtype=steiner.distance.dtype)
        growing = GrowMemory(clock, stamps, near, work, worth)
        return walk_header_rides(
            rides, demand, self._tables, steiner.distance, steiner.predecessor, growing, self._memory, out
        )

    def _walk_lists(self, demand: DemandColumns, rides: RideColumns, out: CrossingRoom) -> int:
        n = self._brokers + 2
        stack = StackMemory(_ints(n), _ints(n), _ints(n), _ints(n), _ints(n), np.zeros(n))
        toward = self._layout.toward.predecessor
        return walk_list_rides(rides, demand, self._tables, toward, stack, self._memory, out)

    def _walk_copies(self, demand: DemandColumns, rides: RideColumns, out: CrossingRoom) -> int:
        toward = self._layout.toward.predecessor
        return walk_copy_rides(rides, demand, self._tables, toward, self._memory, out)

    def _legs(
        self, demand: DemandColumns, rides: RideColumns, reach: tuple[Floats, Ints, Longs]
    ) -> tuple[Ints, Ints, Ints]:
        count = len(rides.pattern) if len(self._tables.targets) else 0
        out = CrossingRoom(_ints(count), _ints(count), _ints(count), *reach)
        used = leg_crossings(rides, demand, self._tables, out) if count else 0
        return out.pattern[:used], out.hop[:used], out.header[:used]


def _all_chosen(room: RideRoom) -> RideColumns:
    """A copy, so that the room can be used again."""
    return RideColumns(
        room.pattern.copy(),
        room.channel.copy(),
        room.enters.copy(),
        room.group.copy(),
        room.start.copy(),
        room.entry.copy(),
        np.ones(len(room.pattern), dtype=np.uint8),
    )


def _ints(count: int) -> Ints:
    return np.zeros(count, dtype=np.int32)


def _longs(count: int) -> Longs:
    return np.zeros(count, dtype=np.int64)
