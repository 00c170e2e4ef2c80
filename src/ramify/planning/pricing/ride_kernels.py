"""Compiled: which channels carry a pattern, and the hops of a tree that a ride on one crosses.

The pricer walks every pattern of a demand through a plan in steps that hand each other arrays:

    gather_rides    pattern -> rides: one pattern on one channel that may carry it, with the broker where it
                    enters and the served entries that it must reach
    choose_rides    of the stamped rides of a pattern, keep the cheapest
    walk_*_rides    ride -> crossings (hop, header bytes), and the arrival of each of its entries
                    (`crossing_kernels.py`)
    charge, settle  crossings -> messages, bytes, duplicates, visits; arrivals -> delivery times
                    (`charge_kernels.py`)

Owns the rules of `plan.py` in compiled form. The router has the same rules a second time, for one
broker and one event at a time; that both come to the same counts, link by link, is what the tests of
every scheme assert.

Scratch arrays are told apart by stamps, so that a ride costs what it touches. Arrays that belong together
come as named tuples; a kernel takes those it reads out of them once, before its loops, and a function that
it calls for every ride gets a small tuple, since a call passes seven words per array. (numba does not see
that a kernel of another file has changed: after an edit here, touch the files that call it.)
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled, inlined
from ramify.planning.plans.layout import OP_ALL, OP_SOME, OP_TERM, LayoutTables

__all__ = [
    "ANY_OF",
    "COPIES",
    "DESTINATIONS",
    "FILTER",
    "FLOOD",
    "HEADER_TREE",
    "STAMPED",
    "DemandColumns",
    "GatherMemory",
    "RideColumns",
    "RideRoom",
    "TreeMemory",
    "TreeTables",
    "choose_rides",
    "climb",
    "flood",
    "gather_rides",
]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.uint8]

FILTER, FLOOD, HEADER_TREE, DESTINATIONS, COPIES = range(5)
ANY_OF, STAMPED, ADMITS_ALL, CELLS, HOLDS = range(5)


class DemandColumns(NamedTuple):
    """What kernels read of a demand; see `Demand`."""

    publisher: Ints
    cell: Ints
    start: Longs
    classes: Ints
    counts: Longs
    sizes: Longs
    tags: npt.NDArray[np.uint64]


class RideColumns(NamedTuple):
    """Rides: ride r has the entries `entry[start[r]:start[r + 1]]`; `chosen` are those that are taken."""

    pattern: Ints
    channel: Ints
    enters: Ints
    group: Longs
    start: Longs
    entry: Ints
    chosen: Flags


class RideRoom(NamedTuple):
    """Room for rides that are being gathered."""

    pattern: Ints
    channel: Ints
    enters: Ints
    group: Longs
    start: Longs
    entry: Ints


class GatherMemory(NamedTuple):
    """Scratch of `gather_rides`: per term, per channel, per entry, per broker."""

    clock: Longs
    of_term: Longs
    true_term: Ints
    touched: Longs
    head: Ints
    next_entry: Ints
    listed: Ints
    truth: Flags
    group_stamp: Longs
    group_of: Longs


class TreeTables(NamedTuple):
    """The columns of `LayoutTables` that a walk on a tree reads."""

    order_start: Longs
    order: Ints
    parent: Ints
    up: Ints
    down: Ints
    hop_ms: Floats
    hop_length: Ints


class TreeMemory(NamedTuple):
    """Scratch of a walk: per broker, and the hops that it crossed."""

    clock: Longs
    on_tree: Longs
    to_broker: Longs
    destinations: Ints
    ms: Floats
    hops: Ints
    chain: Ints
    chain_place: Ints
    chain_stamp: Longs
    walk: Ints
    crossed: Ints
    arrived: Ints


@inlined
def _has(start: Longs, values: Ints, row: Int, value: Int) -> bool:
    """Whether a compressed row of ascending values holds one. O(log)."""
    low, high = start[row], start[row + 1]
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return bool(low < start[row + 1] and values[low] == value)


@compiled
def _holds(
    channel: Int,
    need_start: Longs,
    need: Ints,
    program_start: Longs,
    program: Ints,
    of_term: Longs,
    stamp: Int,
    truth: Flags,
) -> bool:
    """Whether an expression is true when exactly the terms that carry the stamp are."""
    for j in range(need_start[channel], need_start[channel + 1]):
        if of_term[need[j]] != stamp:
            return False
    at, end = program_start[channel], program_start[channel + 1]
    truth[0] = 1
    top: Int = 0
    while at < end:
        code = program[at]
        if code == OP_TERM:
            truth[top] = of_term[program[at + 1]] == stamp
            top += 1
            at += 2
        elif code == OP_ALL or code == OP_SOME:
            count = program[at + 1]
            value = 1 if code == OP_ALL else 0
            for k in range(top - count, top):
                if code == OP_ALL and truth[k] == 0:
                    value = 0
                if code == OP_SOME and truth[k] != 0:
                    value = 1
            top -= count
            truth[top] = value
            top += 1
            at += 2
        else:
            truth[top - 1] = 1 - truth[top - 1]
            at += 1
    return bool(truth[0] != 0)


@compiled
def gather_rides(
    first: Int,
    last: Int,
    rides: Int,
    entries: Int,
    demand: DemandColumns,
    t: LayoutTables,
    memory: GatherMemory,
    into: RideRoom,
) -> tuple[int, int, int]:
    """Append the rides of patterns `first` to `last - 1`, pattern by pattern, to those that there are.

    Returns the first pattern that there was no room for (`last`: none), how many rides there are then, and
    their entries. An entry is on a ride when its class matches, its region holds, and its host is not the
    publisher's broker, which serves itself. Rides of a pattern that enter at the same broker share a group.
    Channels found by class come first; then, ascending, those found by a term that their expression needs
    and those that are looked at for every event; stamped ones last.
    """
    publisher, cell, start, classes = demand.publisher, demand.cell, demand.start, demand.classes
    class_start, entry_channel, entry_region = t.class_start, t.entry_channel, t.entry_region
    host, set_start, set_cell, any_publisher = t.host, t.set_start, t.set_cell, t.any_publisher
    publisher_start, publishers, open_start = t.publisher_start, t.publishers, t.open_start
    open_channel, content, cells_of, term_start = t.open_channel, t.content, t.cells_of, t.term_start
    term, filed_start, filed_channel, need_start = t.term, t.filed_start, t.filed_channel, t.need_start
    need, program_start, program, target_row = t.need, t.program_start, t.program, t.target_row
    targets = t.targets
    of_term, true_term, touched, head = memory.of_term, memory.true_term, memory.touched, memory.head
    next_entry, listed, truth = memory.next_entry, memory.listed, memory.truth
    group_stamp, group_of, clock = memory.group_stamp, memory.group_of, memory.clock
    ride_pattern, ride_channel, ride_enters = into.pattern, into.channel, into.enters
    ride_group, ride_start, ride_entry = into.group, into.start, into.entry
    for i in range(first, last):
        origin = publisher[i]
        clock[0] += 1
        stamp = clock[0]
        found, linked, true = 0, 0, 0
        for j in range(start[i + 1] - 1, start[i] - 1, -1):
            k = classes[j]
            for x in range(term_start[k], term_start[k + 1]):
                if of_term[term[x]] != stamp:
                    of_term[term[x]] = stamp
                    true_term[true] = term[x]
                    true += 1
            for e in range(class_start[k + 1] - 1, class_start[k] - 1, -1):
                channel = entry_channel[e]
                if any_publisher[channel] == 0 and not _has(publisher_start, publishers, channel, origin):
                    continue
                if entry_region[e] >= 0 and not _has(set_start, set_cell, entry_region[e], cell[i]):
                    continue
                if touched[channel] != stamp:
                    touched[channel] = stamp
                    head[channel] = -1
                    if content[channel] == ANY_OF:
                        listed[found] = channel
                        found += 1
                if host[k] != origin:
                    next_entry[e] = head[channel]
                    head[channel] = e
                    linked += 1
        by_class = found
        for j in range(true):
            for x in range(filed_start[true_term[j]], filed_start[true_term[j] + 1]):
                channel = filed_channel[x]
                if any_publisher[channel] == 0 and not _has(publisher_start, publishers, channel, origin):
                    continue
                if _holds(channel, need_start, need, program_start, program, of_term, stamp, truth):
                    listed[found] = channel
                    found += 1
        by_term = found
        plain = found
        for j in range(open_start[origin], open_start[origin + 1]):
            channel = open_channel[j]
            how = content[channel]
            if (
                how == ADMITS_ALL
                or (how == STAMPED and touched[channel] == stamp)
                or (how == CELLS and _has(set_start, set_cell, cells_of[channel], cell[i]))
                or (
                    how == HOLDS
                    and _holds(channel, need_start, need, program_start, program, of_term, stamp, truth)
                )
            ):
                listed[found] = channel
                found += 1
                if how != STAMPED:
                    plain = found
        if by_term > by_class:
            listed[by_class:plain].sort()
        if rides + found > len(ride_pattern) or entries + linked > len(ride_entry):
            return i, rides, entries
        for j in range(found):
            channel = listed[j]
            enters = origin
            row = target_row[channel]
            if row >= 0 and targets[row, origin] >= 0:
                enters = targets[row, origin]
            if group_stamp[enters] != stamp:
                group_stamp[enters] = stamp
                clock[0] += 1
                group_of[enters] = clock[0]
            ride_pattern[rides] = i
            ride_channel[rides] = channel
            ride_enters[rides] = enters
            ride_group[rides] = group_of[enters]
            ride_start[rides] = entries
            rides += 1
            e = head[channel] if touched[channel] == stamp else -1
            while e >= 0:
                ride_entry[entries] = e
                entries += 1
                e = next_entry[e]
        ride_start[rides] = entries
    return last, rides, entries


@compiled
def climb(
    channel: Int,
    enters: Int,
    entry_from: Int,
    entry_to: Int,
    ride_entry: Ints,
    entry_at: Ints,
    trees: TreeTables,
    stamp: Int,
    memory: TreeMemory,
) -> int:
    """The hops of a filtered channel from the broker where a ride enters to those that serve its entries.

    Climbs from the entry toward the root, and from every served broker up to what has been reached. Fills
    `crossed` and `arrived` so that every copy arrives before it is sent on, and the arrival times of the
    brokers stamped `on_tree`. `ms` and `hops` of the entry are given. Returns how many hops.
    """
    parent, up, down, hop_ms = trees.parent, trees.up, trees.down, trees.hop_ms
    hop_length = trees.hop_length
    on_tree, ms, hops, chain = memory.on_tree, memory.ms, memory.hops, memory.chain
    chain_place, chain_stamp, walk = memory.chain_place, memory.chain_stamp, memory.walk
    crossed, arrived = memory.crossed, memory.arrived
    length = 0
    v = enters
    while v >= 0:
        chain[length] = v
        chain_place[v] = length
        chain_stamp[v] = stamp
        length += 1
        v = parent[channel, v]
    on_tree[enters] = stamp
    top, done = 0, 0
    for j in range(entry_from, entry_to):
        v = entry_at[ride_entry[j]]
        steps = 0
        while on_tree[v] != stamp and chain_stamp[v] != stamp:
            walk[steps] = v
            steps += 1
            v = parent[channel, v]
        if on_tree[v] != stamp:
            while top < chain_place[v]:
                below, above = chain[top], chain[top + 1]
                top += 1
                hop = up[channel, below]
                crossed[done] = hop
                arrived[done] = above
                done += 1
                on_tree[above] = stamp
                ms[above] = ms[below] + hop_ms[hop]
                hops[above] = hops[below] + hop_length[hop]
        for k in range(steps - 1, -1, -1):
            below = walk[k]
            above = parent[channel, below]
            hop = down[channel, below]
            crossed[done] = hop
            arrived[done] = below
            done += 1
            on_tree[below] = stamp
            ms[below] = ms[above] + hop_ms[hop]
            hops[below] = hops[above] + hop_length[hop]
    return done


@compiled
def flood(
    channel: Int,
    enters: Int,
    trees: TreeTables,
    stamp: Int,
    memory: TreeMemory,
) -> int:
    """Every hop of a tree, away from the entry; otherwise as `climb`."""
    order_start, order, parent, up = trees.order_start, trees.order, trees.parent, trees.up
    down, hop_ms, hop_length = trees.down, trees.hop_ms, trees.hop_length
    on_tree, ms, hops, crossed = memory.on_tree, memory.ms, memory.hops, memory.crossed
    arrived = memory.arrived
    on_tree[enters] = stamp
    done = 0
    v = enters
    while parent[channel, v] >= 0:
        above = parent[channel, v]
        hop = up[channel, v]
        crossed[done] = hop
        arrived[done] = above
        done += 1
        on_tree[above] = stamp
        ms[above] = ms[v] + hop_ms[hop]
        hops[above] = hops[v] + hop_length[hop]
        v = above
    for k in range(order_start[channel], order_start[channel + 1]):
        v = order[k]
        if on_tree[v] != stamp:
            above = parent[channel, v]
            hop = down[channel, v]
            crossed[done] = hop
            arrived[done] = v
            done += 1
            on_tree[v] = stamp
            ms[v] = ms[above] + hop_ms[hop]
            hops[v] = hops[above] + hop_length[hop]
    return done


@compiled
def choose_rides(
    taken: RideColumns,
    publisher: Ints,
    t: LayoutTables,
    trees: TreeTables,
    memory: TreeMemory,
) -> None:
    """Mark the rides that are taken: all but stamped ones, and of a pattern's stamped ones the cheapest.

    The cost of a stamped ride is that of its leg and tree by the plan's rule; of equals the first, which is
    the lowest channel, is taken. A single stamped ride needs no walk.
    """
    rides = len(taken.pattern)
    ride_pattern, ride_channel, ride_enters = taken.pattern, taken.channel, taken.enters
    ride_start, ride_entry, chosen = taken.start, taken.entry, taken.chosen
    entry_at, content, pruning, target_row = t.entry_at, t.content, t.pruning, t.target_row
    legs, hop_weight = t.legs, t.hop_weight
    clock, ms, hops, crossed = memory.clock, memory.ms, memory.hops, memory.crossed
    at: Int = 0
    while at < rides:
        chosen[at] = 1
        if content[ride_channel[at]] != STAMPED:
            at += 1
            continue
        end = at
        while (
            end < rides and ride_pattern[end] == ride_pattern[at] and content[ride_channel[end]] == STAMPED
        ):
            chosen[end] = 0
            end += 1
        best, cheapest = at, np.inf
        if end - at > 1:
            for r in range(at, end):
                channel, enters = ride_channel[r], ride_enters[r]
                origin = publisher[ride_pattern[r]]
                cost = 0.0
                if enters != origin:
                    cost = hop_weight[legs[target_row[channel], origin]]
                ms[enters] = 0.0
                hops[enters] = 0
                clock[0] += 1
                if pruning[channel] == FLOOD:
                    done = flood(channel, enters, trees, clock[0], memory)
                else:
                    begin, until = ride_start[r], ride_start[r + 1]
                    done = climb(
                        channel, enters, begin, until, ride_entry, entry_at, trees, clock[0], memory
                    )
                for k in range(done):
                    cost += hop_weight[crossed[k]]
                if cost < cheapest:
                    best, cheapest = r, cost
        chosen[best] = 1
        at = end
