"""Walks a demand through a plan, chunk by chunk: rides, crossings, arrivals.

Owns the memory of the compiled steps in `ride_kernels.py` and `crossing_kernels.py` and the order in
which they run. A chunk holds as many patterns as fit the buffers in the worst case, so that memory
stays bounded however large the demand.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.network.trees.steiner_kernels import tree_scratch
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.layout import Layout, read_only
from ramify.planning.plans.plan import Pruning
from ramify.planning.pricing import crossing_kernels, ride_kernels

__all__ = ["Crossings", "Rides", "Walker"]

MOST_CROSSINGS = 4_000_000
"""Crossings that a chunk has room for; a single pattern that needs more gets it."""
_FIRST_PATTERNS, _MOST_PATTERNS = 1_024, 65_536
_FIRST_RIDES = 1_024

_rides: Any = ride_kernels  # mypy cannot count the arguments of calls with starred tuples
_crossings: Any = crossing_kernels

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Rides:
    """Patterns `first` to `last - 1` on the channels that may carry them; `chosen` are those that do."""

    first: int
    last: int
    count: int
    pattern: Ints
    channel: Ints
    enters: Ints
    group: Longs
    start: Longs
    entry: Ints
    chosen: npt.NDArray[np.uint8]

    def part(self, first: int, last: int, begin: int, end: int) -> "Rides":
        """Rides `begin` to `end - 1` alone, which must be all those of patterns `first` to `last - 1`."""
        if (begin, end) == (0, self.count):
            return replace(self, first=first, last=last)
        rides, low, high = slice(begin, end), self.start[begin], self.start[end]
        return Rides(
            first,
            last,
            end - begin,
            self.pattern[rides],
            self.channel[rides],
            self.enters[rides],
            self.group[rides],
            self.start[begin : end + 1] - low,
            self.entry[low:high],
            self.chosen[rides],
        )


class _Gathered:
    """Room that rides are gathered in."""

    def __init__(self, rides: int, entries: int) -> None:
        pattern, channel, enters = _ints(rides), _ints(rides), _ints(rides)
        places = _longs(rides), _longs(rides + 1)
        self.arrays: tuple[npt.NDArray[Any], ...] = (pattern, channel, enters, *places, _ints(entries))

    def doubled(self, rides: int, entries: int) -> "_Gathered":
        """Twice the room, with the rides and entries that are used."""
        grown = _Gathered(2 * len(self.arrays[0]), 2 * len(self.arrays[-1]))
        used = rides, rides, rides, rides, rides + 1, entries
        for new, old, count in zip(grown.arrays, self.arrays, used, strict=True):
            new[:count] = old[:count]
        return grown

    def rides(self, first: int, last: int, rides: int, entries: int) -> Rides:
        """A copy of what is used, all chosen."""
        pattern, channel, enters, group, start, entry = self.arrays
        return Rides(
            first,
            last,
            rides,
            pattern[:rides].copy(),
            channel[:rides].copy(),
            enters[:rides].copy(),
            group[:rides].copy(),
            start[: rides + 1].copy(),
            entry[:entries].copy(),
            np.ones(rides, dtype=np.uint8),
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
        self._clock = np.zeros(1, dtype=np.int64)
        terms = len(t.filed_start) - 1
        self._of_term, self._true_term = _longs(terms), _ints(terms)
        self._touched = _longs(channels)
        self._head, self._next_entry = _ints(channels), _ints(len(t.entry_at))
        self._listed, self._truth = _ints(channels), np.zeros(len(t.program) + 1, dtype=np.uint8)
        self._group_stamp, self._group_of = _longs(n), _longs(n)
        self._on_tree, self._to_broker = _longs(n), _longs(n)
        self._chain, self._chain_place, self._chain_stamp = _ints(n + 1), _ints(n), _longs(n)
        self._walk, self._crossed, self._arrived = _ints(n + 1), _ints(2 * n + 2), _ints(2 * n + 2)
        self._ms, self._hops = np.zeros(n), _ints(n)
        self._noted = _longs(len(t.hop_ms))
        self._destinations, self._spare = _ints(n + 1), _ints(n + 1)
        self._gathered = _Gathered(_FIRST_RIDES, _FIRST_RIDES)

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
                step = min(2 * step, _MOST_PATTERNS)
            first = last

    def rides(self, demand: Demand, first: int, last: int) -> Rides:
        """Which channels carry which patterns, stamped ones chosen."""
        made = self._gather(demand, first, last)
        self._choose(demand, made)
        return made

    def _parts(self, rides: Rides) -> Iterator[Rides]:
        """The same rides, as many patterns at a time as there is room for, at least one."""
        ends = np.searchsorted(rides.pattern, np.arange(rides.first, rides.last + 1))
        needs = np.concatenate(([0], np.cumsum(self._rooms(rides))))[ends]
        at = 0
        while at < rides.last - rides.first:
            fits = int(np.searchsorted(needs, needs[at] + MOST_CROSSINGS - 1, side="right")) - 1
            until = max(at + 1, fits)
            yield rides.part(rides.first + at, rides.first + until, int(ends[at]), int(ends[until]))
            at = until

    def cross(self, demand: Demand, rides: Rides) -> Crossings:
        """What the chosen rides cross."""
        room = self._room(rides)
        matchings = _longs(1)
        reach_ms, reach_hops = np.full(len(rides.entry), -1.0), _ints(len(rides.entry))
        parts: list[tuple[Ints, ...]] = [(_ints(0), _ints(0), _ints(0))]
        for kinds, walk in (
            ((Pruning.FILTER, Pruning.NONE), self._walk_trees),
            ((Pruning.TREE,), self._walk_headers),
            ((Pruning.DESTINATIONS,), self._walk_lists),
            ((Pruning.COPIES,), self._walk_copies),
        ):
            if self._layout.uses(*kinds):
                buffers = _ints(room), _ints(room), _ints(room)
                used = walk(demand, rides, buffers, reach_ms, reach_hops, matchings)
                parts.append(tuple(buffer[:used] for buffer in buffers))
        pattern, hop, header = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(parts) > 2:
            order = np.argsort(pattern, kind="stable")
            pattern, hop, header = pattern[order], hop[order], header[order]
        legs = self._legs(demand, rides, matchings)
        return Crossings(pattern, hop, header, legs, reach_ms, reach_hops, int(matchings[0]))

    def _room(self, rides: Rides) -> int:
        """Crossings that these rides may need at most."""
        return int(self._rooms(rides).sum()) + 1

    def _rooms(self, rides: Rides) -> Longs:
        """The same ride by ride; those that are not taken need none."""
        how = self._tables.pruning[rides.channel]
        entries = np.diff(rides.start)
        separate = (how == ride_kernels.COPIES) | (how == ride_kernels.DESTINATIONS)
        links = self._brokers * np.where(separate, entries, 1)
        return np.where(rides.chosen != 0, links + entries, 0)

    def _gather(self, demand: Demand, first: int, last: int) -> Rides:
        """One pass; where there is no room for a pattern, it goes on from there with more."""
        t, at, rides, entries = self._tables, first, 0, 0
        while True:
            into = self._gathered
            at, rides, entries = _rides.gather_rides(
                at,
                last,
                rides,
                entries,
                read_only(demand.publisher),
                read_only(demand.cell),
                read_only(demand.start),
                read_only(demand.classes),
                t.class_start,
                t.entry_class,
                t.entry_channel,
                t.entry_region,
                t.host,
                t.set_start,
                t.set_cell,
                t.any_publisher,
                t.publisher_start,
                t.publishers,
                t.open_start,
                t.open_channel,
                t.content,
                t.cells_of,
                t.term_start,
                t.term,
                t.filed_start,
                t.filed_channel,
                t.need_start,
                t.need,
                t.program_start,
                t.program,
                t.target_row,
                t.targets,
                self._of_term,
                self._true_term,
                self._touched,
                self._head,
                self._next_entry,
                self._listed,
                self._truth,
                self._group_stamp,
                self._group_of,
                self._clock,
                *into.arrays,
            )
            if at == last:
                return into.rides(first, last, rides, entries)
            self._gathered = into.doubled(rides, entries)

    def _choose(self, demand: Demand, rides: Rides) -> None:
        t = self._tables
        if not (t.content == ride_kernels.STAMPED).any():
            return
        _rides.choose_rides(
            rides.count,
            read_only(demand.publisher),
            rides.pattern,
            rides.channel,
            rides.enters,
            rides.start,
            rides.entry,
            t.entry_at,
            t.content,
            t.pruning,
            t.target_row,
            t.legs,
            *self._tree_tables(),
            t.hop_weight,
            t.hop_ms,
            t.hop_length,
            *self._tree_memory(),
            rides.chosen,
        )

    def _tree_tables(self) -> tuple[npt.NDArray[Any], ...]:
        t = self._tables
        return t.order_start, t.order, t.parent, t.up, t.down

    def _tree_memory(self) -> tuple[npt.NDArray[Any], ...]:
        return (
            self._clock,
            self._on_tree,
            self._ms,
            self._hops,
            self._chain,
            self._chain_place,
            self._chain_stamp,
            self._walk,
            self._crossed,
            self._arrived,
        )

    def _walk_trees(
        self,
        demand: Demand,
        rides: Rides,
        buffers: tuple[Ints, Ints, Ints],
        reach_ms: Floats,
        reach_hops: Ints,
        matchings: Longs,
    ) -> int:
        t = self._tables
        used: int = _crossings.walk_tree_rides(
            rides.count,
            read_only(demand.publisher),
            read_only(demand.count),
            rides.pattern,
            rides.channel,
            rides.enters,
            rides.group,
            rides.start,
            rides.entry,
            rides.chosen,
            t.entry_at,
            t.entry_note,
            t.entry_class,
            t.host,
            t.pruning,
            t.serves_here,
            t.target_row,
            t.legs,
            *self._tree_tables(),
            t.hop_ms,
            t.hop_length,
            *self._tree_memory(),
            self._noted,
            *buffers,
            reach_ms,
            reach_hops,
            matchings,
        )
        return used

    def _walk_headers(
        self,
        demand: Demand,
        rides: Rides,
        buffers: tuple[Ints, Ints, Ints],
        reach_ms: Floats,
        reach_hops: Ints,
        matchings: Longs,
    ) -> int:
        t, n = self._tables, self._brokers
        steiner = self._layout.steiner
        tree_clock, tree_stamps, tree_work, tree_worth = tree_scratch(n)
        used: int = _crossings.walk_header_rides(
            *self._off_tree(demand, rides),
            t.adjacent_start,
            t.adjacent,
            t.adjacent_arc,
            t.hop_ms,
            steiner.distance,
            steiner.predecessor,
            self._clock,
            self._to_broker,
            self._destinations,
            tree_clock,
            tree_stamps,
            np.empty(2 * n + 1, dtype=steiner.distance.dtype),
            tree_work,
            tree_worth,
            self._chain,
            self._walk,
            self._chain_place,
            self._crossed,
            self._arrived,
            self._ms,
            self._hops,
            *buffers,
            reach_ms,
            reach_hops,
            matchings,
        )
        return used

    def _walk_lists(
        self,
        demand: Demand,
        rides: Rides,
        buffers: tuple[Ints, Ints, Ints],
        reach_ms: Floats,
        reach_hops: Ints,
        matchings: Longs,
    ) -> int:
        t, n = self._tables, self._brokers
        used: int = _crossings.walk_list_rides(
            *self._off_tree(demand, rides),
            t.adjacent_start,
            t.adjacent,
            t.adjacent_arc,
            t.hop_ms,
            self._layout.toward.predecessor,
            self._clock,
            self._to_broker,
            self._destinations,
            self._spare,
            _ints(n + 2),
            _ints(n + 2),
            _ints(n + 2),
            _ints(n + 2),
            np.zeros(n + 2),
            self._ms,
            self._hops,
            *buffers,
            reach_ms,
            reach_hops,
            matchings,
        )
        return used

    def _walk_copies(
        self,
        demand: Demand,
        rides: Rides,
        buffers: tuple[Ints, Ints, Ints],
        reach_ms: Floats,
        reach_hops: Ints,
        matchings: Longs,
    ) -> int:
        t = self._tables
        used: int = _crossings.walk_copy_rides(
            *self._off_tree(demand, rides),
            t.parent,
            t.up,
            t.down,
            t.adjacent_start,
            t.adjacent,
            t.adjacent_arc,
            t.hop_ms,
            t.hop_length,
            self._layout.toward.predecessor,
            self._clock,
            self._to_broker,
            self._destinations,
            self._chain,
            self._chain_place,
            self._chain_stamp,
            self._walk,
            self._ms,
            self._hops,
            *buffers,
            reach_ms,
            reach_hops,
            matchings,
        )
        return used

    def _off_tree(self, demand: Demand, rides: Rides) -> tuple[Any, ...]:
        t = self._tables
        return (
            rides.count,
            read_only(demand.publisher),
            read_only(demand.count),
            rides.pattern,
            rides.channel,
            rides.start,
            rides.entry,
            rides.chosen,
            t.entry_class,
            t.host,
            t.pruning,
        )

    def _legs(self, demand: Demand, rides: Rides, matchings: Longs) -> tuple[Ints, Ints, Ints]:
        t = self._tables
        if not len(t.targets):
            return _ints(0), _ints(0), _ints(0)
        buffers = _ints(rides.count), _ints(rides.count), _ints(rides.count)
        used = crossing_kernels.leg_crossings(
            rides.count,
            read_only(demand.publisher),
            read_only(demand.count),
            rides.pattern,
            rides.channel,
            rides.enters,
            rides.group,
            rides.chosen,
            t.pruning,
            t.serves_here,
            t.target_row,
            t.legs,
            *buffers,
            matchings,
        )
        return buffers[0][:used], buffers[1][:used], buffers[2][:used]


def _ints(count: int) -> Ints:
    return np.zeros(count, dtype=np.int32)


def _longs(count: int) -> Longs:
    return np.zeros(count, dtype=np.int64)
