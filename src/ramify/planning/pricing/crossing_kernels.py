"""Compiled: ride to crossings. Every hop that a ride crosses, its header's bytes, and when it arrives.

Owns the walk on trees, by trees in headers, by destination lists and by copies, and the legs onto
trees. See `ride_kernels.py` for the steps before, `ramify.overlay.routing.headers` for the form of headers.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled
from ramify.network.trees.steiner_kernels import arc_between, grow_better_tree
from ramify.planning.plans.layout import LayoutTables
from ramify.planning.pricing.ride_kernels import (
    COPIES,
    DESTINATIONS,
    FILTER,
    FLOOD,
    HEADER_TREE,
    DemandColumns,
    RideColumns,
    TreeMemory,
    TreeTables,
    climb,
    flood,
)

__all__ = [
    "CrossingRoom",
    "GrowMemory",
    "StackMemory",
    "leg_crossings",
    "walk_copy_rides",
    "walk_header_rides",
    "walk_list_rides",
    "walk_tree_rides",
]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.uint8]

FIXED_BYTES = 2
"""Header of a message: kind and hop count, then the publisher's broker and what its kind needs."""


class CrossingRoom(NamedTuple):
    """Room for crossings; when and after how many links each entry of the rides was reached."""

    pattern: Ints
    hop: Ints
    header: Ints
    reach_ms: Floats
    reach_hops: Ints
    matchings: Longs  # [1]


class GrowMemory(NamedTuple):
    """Scratch of `grow_better_tree`."""

    clock: Longs
    stamps: Longs
    near: Any
    work: Ints
    worth: Floats


class StackMemory(NamedTuple):
    """Scratch of `walk_list_rides`: parts of lists that are still to be carried on."""

    spare: Ints
    broker: Ints
    start: Ints
    end: Ints
    hops: Ints
    ms: Floats


@compiled
def varint(value: Int) -> int:
    """Bytes of a number, seven bits to a byte."""
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@compiled
def walk_tree_rides(
    taken: RideColumns,
    demand: DemandColumns,
    t: LayoutTables,
    trees: TreeTables,
    memory: TreeMemory,
    noted: Longs,
    out: CrossingRoom,
) -> int:
    """Crossings of rides on filtered and flooded trees, final notifications included; returns how many."""
    rides = len(taken.pattern)
    ride_pattern, ride_channel, ride_enters = taken.pattern, taken.channel, taken.enters
    ride_group, ride_start, ride_entry, chosen = taken.group, taken.start, taken.entry, taken.chosen
    publisher, counts = demand.publisher, demand.counts
    entry_at, entry_note, entry_class, host = t.entry_at, t.entry_note, t.entry_class, t.host
    pruning, serves_here, target_row, legs = t.pruning, t.serves_here, t.target_row, t.legs
    hop_ms, hop_length = t.hop_ms, t.hop_length
    clock, on_tree, ms, hops = memory.clock, memory.on_tree, memory.ms, memory.hops
    crossed, arrived = memory.crossed, memory.arrived
    cross_pattern, cross_hop, cross_header, reach_ms = out.pattern, out.hop, out.header, out.reach_ms
    reach_hops, matchings = out.reach_hops, out.matchings
    total = 0
    for r in range(rides):
        channel = ride_channel[r]
        if chosen[r] == 0 or pruning[channel] > FLOOD:
            continue
        i, enters = ride_pattern[r], ride_enters[r]
        origin = publisher[i]
        ms[enters] = 0.0
        hops[enters] = 0
        if enters != origin:
            leg = legs[target_row[channel], origin]
            ms[enters] = hop_ms[leg]
            hops[enters] = hop_length[leg]
        clock[0] += 1
        stamp = clock[0]
        if pruning[channel] == FLOOD:
            done = flood(channel, enters, trees, stamp, memory)
        else:
            begin, until = ride_start[r], ride_start[r + 1]
            done = climb(channel, enters, begin, until, ride_entry, entry_at, trees, stamp, memory)
        header = FIXED_BYTES + varint(origin) + varint(channel)
        for k in range(done):
            cross_pattern[total] = i
            cross_hop[total] = crossed[k]
            cross_header[total] = header
            total += 1
            if pruning[channel] == FILTER or serves_here[channel, arrived[k]] != 0:
                matchings[0] += counts[i]
        for j in range(ride_start[r], ride_start[r + 1]):
            e = ride_entry[j]
            at, hop = entry_at[e], entry_note[e]
            if on_tree[at] != stamp:
                continue
            reach_ms[j] = ms[at]
            reach_hops[j] = hops[at]
            if hop < 0:
                continue
            reach_ms[j] += hop_ms[hop]
            reach_hops[j] += hop_length[hop]
            arrival = ride_group[r] if at == enters else stamp
            if noted[hop] != arrival:  # one notification per host and arrival
                noted[hop] = arrival
                cross_pattern[total] = i
                cross_hop[total] = hop
                cross_header[total] = FIXED_BYTES + varint(origin) + varint(host[entry_class[e]])
                total += 1
                matchings[0] += counts[i]
    return total


@compiled
def _destinations(
    origin: Int,
    entry_from: Int,
    entry_to: Int,
    ride_entry: Ints,
    entry_class: Ints,
    host: Ints,
    stamp: Int,
    to_broker: Longs,
    out: Ints,
) -> int:
    """The origin, then the other hosts of a ride's entries, ascending. Returns how many in all."""
    count = 1
    out[0] = origin
    for j in range(entry_from, entry_to):
        broker = host[entry_class[ride_entry[j]]]
        if to_broker[broker] != stamp:
            to_broker[broker] = stamp
            out[count] = broker
            count += 1
    if count > 48:  # scanning all brokers is cheaper than sorting
        count = 1
        for v in range(len(to_broker)):
            if to_broker[v] == stamp:
                out[count] = v
                count += 1
        return count
    for i in range(2, count):
        value = out[i]
        j = i
        while j > 1 and out[j - 1] > value:
            out[j] = out[j - 1]
            j -= 1
        out[j] = value
    return count


@compiled
def walk_header_rides(
    taken: RideColumns,
    demand: DemandColumns,
    t: LayoutTables,
    dist: Any,
    pred: Any,
    growing: GrowMemory,
    memory: TreeMemory,
    out: CrossingRoom,
) -> int:
    """Crossings of the rides whose header carries their tree: `grow_better_tree` from the origin.

    What a broker's header says, from the leaves up: twice its number of children, plus 1 when it is a
    destination; then each child and what that child's header will say.
    """
    rides = len(taken.pattern)
    ride_pattern, ride_channel, ride_start = taken.pattern, taken.channel, taken.start
    ride_entry, chosen = taken.entry, taken.chosen
    publisher, counts = demand.publisher, demand.counts
    entry_class, host, pruning, adjacent_start = t.entry_class, t.host, t.pruning, t.adjacent_start
    adjacent, adjacent_arc, hop_ms = t.adjacent, t.adjacent_arc, t.hop_ms
    tree_clock, tree_stamps, tree_near = growing.clock, growing.stamps, growing.near
    tree_work, tree_worth = growing.work, growing.worth
    clock, to_broker, destinations = memory.clock, memory.to_broker, memory.destinations
    tree_node, tree_parent, place = memory.chain, memory.walk, memory.chain_place
    children, below, ms, hops = memory.crossed, memory.arrived, memory.ms, memory.hops
    cross_pattern, cross_hop, cross_header, reach_ms = out.pattern, out.hop, out.header, out.reach_ms
    reach_hops, matchings = out.reach_hops, out.matchings
    total = 0
    for r in range(rides):
        channel = ride_channel[r]
        if chosen[r] == 0 or pruning[channel] != HEADER_TREE or ride_start[r] == ride_start[r + 1]:
            continue
        i = ride_pattern[r]
        origin = publisher[i]
        clock[0] += 1
        stamp = clock[0]
        terminals = _destinations(
            origin, ride_start[r], ride_start[r + 1], ride_entry, entry_class, host, stamp, to_broker,
            destinations,
        )  # fmt: skip
        nodes = grow_better_tree(
            dist, pred, adjacent_start, adjacent, destinations, terminals, tree_clock, tree_stamps,
            tree_near, tree_work, tree_worth, tree_node, tree_parent,
        )  # fmt: skip
        for j in range(nodes):
            place[tree_node[j]] = j
            children[j] = 0
            below[j] = 0
        for j in range(nodes - 1, 0, -1):
            v = tree_node[j]
            above = place[tree_parent[j]]
            below[j] += varint(2 * children[j] + (1 if to_broker[v] == stamp else 0))
            children[above] += 1
            below[above] += varint(v) + below[j]
        ms[origin] = 0.0
        hops[origin] = 0
        base = FIXED_BYTES + varint(origin) + varint(channel)
        for j in range(1, nodes):
            u, v = tree_parent[j], tree_node[j]
            hop = adjacent_arc[arc_between(adjacent_start, adjacent, u, v)]
            ms[v] = ms[u] + hop_ms[hop]
            hops[v] = hops[u] + 1
            cross_pattern[total] = i
            cross_hop[total] = hop
            cross_header[total] = base + below[j]
            total += 1
        matchings[0] += counts[i] * (terminals - 1)
        for j in range(ride_start[r], ride_start[r + 1]):
            at = host[entry_class[ride_entry[j]]]
            reach_ms[j] = ms[at]
            reach_hops[j] = hops[at]
    return total


@compiled
def _list_bytes(nodes: Ints, start: Int, end: Int) -> int:
    """A list of ascending brokers: how many, then the differences."""
    size = varint(end - start)
    before = 0
    for k in range(start, end):
        size += varint(nodes[k] - before)
        before = nodes[k]
    return size


@compiled
def _bring_forward(nodes: Ints, start: Int, end: Int, here: Int, toward: Any, spare: Ints) -> int:
    """Reorder a part of a list: first those with the first one's next hop, both groups still ascending."""
    following = toward[nodes[start], here]
    with_it, others = 0, start
    for k in range(start, end):
        if toward[nodes[k], here] == following:
            with_it += 1
    front = start
    back = 0
    for k in range(start, end):
        d = nodes[k]
        if toward[d, here] == following:
            nodes[front] = d
            front += 1
        else:
            spare[back] = d
            back += 1
    others = start + with_it
    for k in range(back):
        nodes[others + k] = spare[k]
    return int(others)


@compiled
def walk_list_rides(
    taken: RideColumns,
    demand: DemandColumns,
    t: LayoutTables,
    toward: Any,
    stack: StackMemory,
    memory: TreeMemory,
    out: CrossingRoom,
) -> int:
    """Crossings of the rides that carry destinations: each broker takes itself off and splits the rest."""
    rides = len(taken.pattern)
    ride_pattern, ride_channel, ride_start = taken.pattern, taken.channel, taken.start
    ride_entry, chosen = taken.entry, taken.chosen
    publisher, counts = demand.publisher, demand.counts
    entry_class, host, pruning, adjacent_start = t.entry_class, t.host, t.pruning, t.adjacent_start
    adjacent, adjacent_arc, hop_ms = t.adjacent, t.adjacent_arc, t.hop_ms
    spare, stack_broker, stack_start, stack_end = stack.spare, stack.broker, stack.start, stack.end
    stack_hops, stack_ms = stack.hops, stack.ms
    clock, to_broker, destinations, ms = memory.clock, memory.to_broker, memory.destinations, memory.ms
    hops = memory.hops
    cross_pattern, cross_hop, cross_header, reach_ms = out.pattern, out.hop, out.header, out.reach_ms
    reach_hops, matchings = out.reach_hops, out.matchings
    total = 0
    for r in range(rides):
        channel = ride_channel[r]
        if chosen[r] == 0 or pruning[channel] != DESTINATIONS or ride_start[r] == ride_start[r + 1]:
            continue
        i = ride_pattern[r]
        origin = publisher[i]
        clock[0] += 1
        stack_broker[0] = origin
        stack_start[0] = 1
        stack_end[0] = _destinations(
            origin, ride_start[r], ride_start[r + 1], ride_entry, entry_class, host, clock[0], to_broker,
            destinations,
        )  # fmt: skip
        stack_hops[0] = 0
        stack_ms[0] = 0.0
        depth = 1
        base = FIXED_BYTES + varint(origin) + varint(channel)
        while depth > 0:
            depth -= 1
            here, begin, end = stack_broker[depth], stack_start[depth], stack_end[depth]
            hops_here, ms_here = stack_hops[depth], stack_ms[depth]
            kept = begin
            for k in range(begin, end):
                if destinations[k] == here:
                    matchings[0] += counts[i]
                    ms[here] = ms_here
                    hops[here] = hops_here
                else:
                    destinations[kept] = destinations[k]
                    kept += 1
            while begin < kept:
                following = toward[destinations[begin], here]
                cut = _bring_forward(destinations, begin, kept, here, toward, spare)
                hop = adjacent_arc[arc_between(adjacent_start, adjacent, here, following)]
                cross_pattern[total] = i
                cross_hop[total] = hop
                cross_header[total] = base + _list_bytes(destinations, begin, cut)
                total += 1
                stack_broker[depth] = following
                stack_start[depth] = begin
                stack_end[depth] = cut
                stack_hops[depth] = hops_here + 1
                stack_ms[depth] = ms_here + hop_ms[hop]
                depth += 1
                begin = np.int32(cut)
        for j in range(ride_start[r], ride_start[r + 1]):
            at = host[entry_class[ride_entry[j]]]
            reach_ms[j] = ms[at]
            reach_hops[j] = hops[at]
    return total


@compiled
def walk_copy_rides(
    taken: RideColumns,
    demand: DemandColumns,
    t: LayoutTables,
    toward: Any,
    memory: TreeMemory,
    out: CrossingRoom,
) -> int:
    """Crossings of one copy per destination, along the channel's tree or by next hops, none merged."""
    rides = len(taken.pattern)
    ride_pattern, ride_channel, ride_start = taken.pattern, taken.channel, taken.start
    ride_entry, chosen = taken.entry, taken.chosen
    publisher, counts = demand.publisher, demand.counts
    entry_class, host, pruning, parent, up = t.entry_class, t.host, t.pruning, t.parent, t.up
    down, adjacent_start, adjacent, adjacent_arc = t.down, t.adjacent_start, t.adjacent, t.adjacent_arc
    hop_ms, hop_length = t.hop_ms, t.hop_length
    clock, to_broker, destinations = memory.clock, memory.to_broker, memory.destinations
    chain, chain_place, chain_stamp = memory.chain, memory.chain_place, memory.chain_stamp
    walk, ms, hops = memory.walk, memory.ms, memory.hops
    cross_pattern, cross_hop, cross_header, reach_ms = out.pattern, out.hop, out.header, out.reach_ms
    reach_hops, matchings = out.reach_hops, out.matchings
    total = 0
    for r in range(rides):
        channel = ride_channel[r]
        if chosen[r] == 0 or pruning[channel] != COPIES or ride_start[r] == ride_start[r + 1]:
            continue
        i = ride_pattern[r]
        origin = publisher[i]
        clock[0] += 1
        stamp = clock[0]
        terminals = _destinations(
            origin, ride_start[r], ride_start[r + 1], ride_entry, entry_class, host, stamp, to_broker,
            destinations,
        )  # fmt: skip
        on_tree = parent[channel, origin] != -2
        length = 0
        v: Int = origin
        while on_tree and v >= 0:
            chain[length] = v
            chain_place[v] = length
            chain_stamp[v] = stamp
            length += 1
            v = parent[channel, v]
        base = FIXED_BYTES + varint(origin) + varint(channel)
        for k in range(1, terminals):
            target = destinations[k]
            begin = total
            v = target
            steps = 0
            if on_tree:
                while chain_stamp[v] != stamp:
                    walk[steps] = v
                    steps += 1
                    v = parent[channel, v]
                for j in range(chain_place[v]):
                    cross_hop[total] = up[channel, chain[j]]
                    total += 1
                for j in range(steps - 1, -1, -1):
                    cross_hop[total] = down[channel, walk[j]]
                    total += 1
            else:
                v = origin
                while v != target:
                    following = toward[target, v]
                    cross_hop[total] = adjacent_arc[arc_between(adjacent_start, adjacent, v, following)]
                    total += 1
                    v = following
            ms[target] = 0.0
            hops[target] = 0
            for j in range(begin, total):
                cross_pattern[j] = i
                cross_header[j] = base + varint(target)
                ms[target] += hop_ms[cross_hop[j]]
                hops[target] += hop_length[cross_hop[j]]
            matchings[0] += counts[i]
        for j in range(ride_start[r], ride_start[r + 1]):
            at = host[entry_class[ride_entry[j]]]
            reach_ms[j] = ms[at]
            reach_hops[j] = hops[at]
    return total


@compiled
def leg_crossings(
    taken: RideColumns,
    demand: DemandColumns,
    t: LayoutTables,
    out: CrossingRoom,
) -> int:
    """One leg for each group of rides that enters elsewhere; its header lists the channels."""
    rides = len(taken.pattern)
    ride_pattern, ride_channel, ride_enters = taken.pattern, taken.channel, taken.enters
    ride_group, chosen = taken.group, taken.chosen
    publisher, counts = demand.publisher, demand.counts
    pruning, serves_here, target_row, legs = t.pruning, t.serves_here, t.target_row, t.legs
    cross_pattern, cross_hop, cross_header, matchings = out.pattern, out.hop, out.header, out.matchings
    total = 0
    for r in range(rides):
        i, enters = ride_pattern[r], ride_enters[r]
        origin = publisher[i]
        if enters == origin or chosen[r] == 0:
            continue
        before: Int = r - 1
        leader = True
        while leader and before >= 0 and ride_pattern[before] == i:
            if ride_group[before] == ride_group[r] and chosen[before] != 0:
                leader = False
            before -= 1
        if not leader:
            continue
        together, ids, matches = 0, 0, False
        after: Int = r
        while after < rides and ride_pattern[after] == i:
            channel = ride_channel[after]
            if ride_group[after] == ride_group[r] and chosen[after] != 0:
                together += 1
                ids += varint(channel)
                if pruning[channel] == FILTER or serves_here[channel, enters] != 0:
                    matches = True
            after += 1
        cross_pattern[total] = i
        cross_hop[total] = legs[target_row[ride_channel[r]], origin]
        cross_header[total] = FIXED_BYTES + varint(origin) + varint(enters) + varint(together) + ids
        total += 1
        if matches:
            matchings[0] += counts[i]
    return total
