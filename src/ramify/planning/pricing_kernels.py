"""The compiled walk of every pattern through a plan: what it crosses, where it arrives, whom it reaches.

Owns the rules of `plan.py` in compiled form, as four steps that hand each other arrays:

    gather_rides     pattern -> rides. A ride is one pattern on one channel that may carry it, with the
    broker
                     where it enters and the served entries that it must reach.
    choose_rides     of the stamped rides of a pattern, keep the cheapest.
    walk_*_rides     ride -> crossings (hop, header bytes), and the arrival time of each of its entries.
    charge           crossings -> messages, bytes, duplicates, visits.

The router has the same rules a second time, for one broker and one event at a time; that both come to
the same counts, link by link, is what the tests of every scheme assert.

Scratch arrays are told apart by stamps, so that a ride costs what it touches. Kernels take plain
arrays: handing named tuples of arrays from function to function is slow to compile and to run.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.compiled import Flag, Int, compiled, inlined
from ramify.network.steiner_kernels import grow_better_tree
from ramify.planning.layout import OP_ALL, OP_MATCH, OP_SOME

__all__ = [
    "charge",
    "choose_rides",
    "gather_rides",
    "leg_crossings",
    "settle",
    "walk_copy_rides",
    "walk_header_rides",
    "walk_list_rides",
    "walk_tree_rides",
]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.uint8]

FILTER, FLOOD, HEADER_TREE, DESTINATIONS, COPIES = range(5)
ANY_OF, STAMPED, EVERYTHING, CELLS, HOLDS = range(5)

FIXED_BYTES = 2
"""Header of a message: kind and hop count, then the publisher's broker and what its kind needs."""


@compiled
def varint(value: Int) -> int:
    """Bytes of a number, seven bits to a byte."""
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


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
def _expression(program: Ints, at: Int, end: Int, of_class: Longs, stamp: Int, truth: Flags) -> bool:
    """Run a postfix program on the classes that carry the stamp."""
    top: Int = 0
    while at < end:
        code = program[at]
        if code == OP_MATCH:
            count = program[at + 1]
            hit = 0
            for k in range(at + 2, at + 2 + count):
                if of_class[program[k]] == stamp:
                    hit = 1
            truth[top] = hit
            top += 1
            at += 2 + count
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
    fill: Flag,
    first: Int,
    last: Int,
    publisher: Ints,
    cell: Ints,
    start: Longs,
    classes: Ints,
    class_start: Longs,
    entry_class: Ints,
    entry_channel: Ints,
    entry_region: Ints,
    host: Ints,
    set_start: Longs,
    set_cell: Ints,
    any_publisher: Flags,
    publisher_start: Longs,
    publishers: Ints,
    open_start: Longs,
    open_channel: Ints,
    content: Ints,
    cells_of: Ints,
    program_start: Longs,
    program: Ints,
    target_row: Ints,
    targets: Ints,
    of_class: Longs,
    touched: Longs,
    head: Ints,
    next_entry: Ints,
    listed: Ints,
    truth: Flags,
    group_stamp: Longs,
    group_of: Longs,
    clock: Longs,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_enters: Ints,
    ride_group: Longs,
    ride_start: Longs,
    ride_entry: Ints,
) -> tuple[int, int]:
    """The rides of patterns `first` to `last - 1`, pattern by pattern; returns how many, and their entries.

    Without `fill` it only counts. An entry is on a ride when its class matches, its region holds, and
    its host is not the publisher's broker, which serves itself. Rides of a pattern that enter at the
    same broker share a group. Channels found by class come first, then those that are looked at for
    every event.
    """
    rides, entries = 0, 0
    for i in range(first, last):
        origin = publisher[i]
        clock[0] += 1
        stamp = clock[0]
        found = 0
        for j in range(start[i + 1] - 1, start[i] - 1, -1):
            k = classes[j]
            of_class[k] = stamp
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
        for j in range(open_start[origin], open_start[origin + 1]):
            channel = open_channel[j]
            how = content[channel]
            if (
                how == EVERYTHING
                or (how == STAMPED and touched[channel] == stamp)
                or (how == CELLS and _has(set_start, set_cell, cells_of[channel], cell[i]))
                or (
                    how == HOLDS
                    and _expression(
                        program, program_start[channel], program_start[channel + 1], of_class, stamp, truth
                    )
                )
            ):
                listed[found] = channel
                found += 1
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
            if fill:
                ride_pattern[rides] = i
                ride_channel[rides] = channel
                ride_enters[rides] = enters
                ride_group[rides] = group_of[enters]
                ride_start[rides] = entries
            rides += 1
            e = head[channel] if touched[channel] == stamp else -1
            while e >= 0:
                if fill:
                    ride_entry[entries] = e
                entries += 1
                e = next_entry[e]
    if fill:
        ride_start[rides] = entries
    return rides, entries


@compiled
def _climb(
    channel: Int,
    enters: Int,
    entry_from: Int,
    entry_to: Int,
    ride_entry: Ints,
    entry_at: Ints,
    parent: Ints,
    up: Ints,
    down: Ints,
    hop_ms: Floats,
    hop_length: Ints,
    stamp: Int,
    on_tree: Longs,
    ms: Floats,
    hops: Ints,
    chain: Ints,
    chain_place: Ints,
    chain_stamp: Longs,
    walk: Ints,
    crossed: Ints,
    arrived: Ints,
) -> int:
    """The hops of a filtered channel from the broker where a ride enters to those that serve its entries.

    Climbs from the entry toward the root, and from every served broker up to what has been reached. Fills
    `crossed` and `arrived` so that every copy arrives before it is sent on, and the arrival times of the
    brokers stamped `on_tree`. `ms` and `hops` of the entry are given. Returns how many hops.
    """
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
def _flood(
    channel: Int,
    enters: Int,
    order_start: Longs,
    order: Ints,
    parent: Ints,
    up: Ints,
    down: Ints,
    hop_ms: Floats,
    hop_length: Ints,
    stamp: Int,
    on_tree: Longs,
    ms: Floats,
    hops: Ints,
    crossed: Ints,
    arrived: Ints,
) -> int:
    """Every hop of a tree, away from the entry; otherwise as `_climb`."""
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
    rides: Int,
    publisher: Ints,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_enters: Ints,
    ride_start: Longs,
    ride_entry: Ints,
    entry_at: Ints,
    content: Ints,
    pruning: Ints,
    target_row: Ints,
    legs: Ints,
    order_start: Longs,
    order: Ints,
    parent: Ints,
    up: Ints,
    down: Ints,
    hop_weight: Floats,
    hop_ms: Floats,
    hop_length: Ints,
    clock: Longs,
    on_tree: Longs,
    ms: Floats,
    hops: Ints,
    chain: Ints,
    chain_place: Ints,
    chain_stamp: Longs,
    walk: Ints,
    crossed: Ints,
    arrived: Ints,
    chosen: Flags,
) -> None:
    """Mark the rides that are taken: all but stamped ones, and of a pattern's stamped ones the cheapest.

    The cost of a stamped ride is that of its leg and tree by the plan's rule; of equals the first, which is
    the lowest channel, is taken. A single stamped ride needs no walk.
    """
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
                    done = _flood(
                        channel, enters, order_start, order, parent, up, down, hop_ms, hop_length,
                        clock[0], on_tree, ms, hops, crossed, arrived,
                    )  # fmt: skip
                else:
                    done = _climb(
                        channel, enters, ride_start[r], ride_start[r + 1], ride_entry, entry_at,
                        parent, up, down, hop_ms, hop_length, clock[0], on_tree, ms, hops, chain,
                        chain_place, chain_stamp, walk, crossed, arrived,
                    )  # fmt: skip
                for k in range(done):
                    cost += hop_weight[crossed[k]]
                if cost < cheapest:
                    best, cheapest = r, cost
        chosen[best] = 1
        at = end


@compiled
def walk_tree_rides(
    rides: Int,
    publisher: Ints,
    counts: Longs,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_enters: Ints,
    ride_group: Longs,
    ride_start: Longs,
    ride_entry: Ints,
    chosen: Flags,
    entry_at: Ints,
    entry_note: Ints,
    entry_class: Ints,
    host: Ints,
    pruning: Ints,
    serves_here: Flags,
    target_row: Ints,
    legs: Ints,
    order_start: Longs,
    order: Ints,
    parent: Ints,
    up: Ints,
    down: Ints,
    hop_ms: Floats,
    hop_length: Ints,
    clock: Longs,
    on_tree: Longs,
    ms: Floats,
    hops: Ints,
    chain: Ints,
    chain_place: Ints,
    chain_stamp: Longs,
    walk: Ints,
    crossed: Ints,
    arrived: Ints,
    noted: Longs,
    cross_pattern: Ints,
    cross_hop: Ints,
    cross_header: Ints,
    reach_ms: Floats,
    reach_hops: Ints,
    matchings: Longs,
) -> int:
    """Crossings of rides on filtered and flooded trees, final notifications included; returns how many."""
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
            done = _flood(
                channel, enters, order_start, order, parent, up, down, hop_ms, hop_length, stamp, on_tree,
                ms, hops, crossed, arrived,
            )  # fmt: skip
        else:
            done = _climb(
                channel, enters, ride_start[r], ride_start[r + 1], ride_entry, entry_at, parent, up, down,
                hop_ms, hop_length, stamp, on_tree, ms, hops, chain, chain_place, chain_stamp, walk,
                crossed, arrived,
            )  # fmt: skip
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
def _arc(start: Ints, neighbor: Ints, arc: Ints, u: Int, v: Int) -> int:
    """The number of the arc from u to v, which must exist. O(log degree)."""
    low, high = start[u], start[u + 1] - 1
    while low < high:
        middle = (low + high) >> 1
        if neighbor[middle] < v:
            low = middle + 1
        else:
            high = middle
    return int(arc[low])


@compiled
def walk_header_rides(
    rides: Int,
    publisher: Ints,
    counts: Longs,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_start: Longs,
    ride_entry: Ints,
    chosen: Flags,
    entry_class: Ints,
    host: Ints,
    pruning: Ints,
    adjacent_start: Ints,
    adjacent: Ints,
    adjacent_arc: Ints,
    hop_ms: Floats,
    dist: Any,
    pred: Any,
    clock: Longs,
    to_broker: Longs,
    destinations: Ints,
    tree_clock: Longs,
    tree_stamps: Longs,
    tree_near: Any,
    tree_work: Ints,
    tree_worth: Floats,
    tree_node: Ints,
    tree_parent: Ints,
    place: Ints,
    children: Ints,
    below: Ints,
    ms: Floats,
    hops: Ints,
    cross_pattern: Ints,
    cross_hop: Ints,
    cross_header: Ints,
    reach_ms: Floats,
    reach_hops: Ints,
    matchings: Longs,
) -> int:
    """Crossings of the rides whose header carries their tree: `grow_better_tree` from the origin.

    What a broker's header says, from the leaves up: twice its number of children, plus 1 when it is a
    destination; then each child and what that child's header will say.
    """
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
            hop = _arc(adjacent_start, adjacent, adjacent_arc, u, v)
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
    rides: Int,
    publisher: Ints,
    counts: Longs,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_start: Longs,
    ride_entry: Ints,
    chosen: Flags,
    entry_class: Ints,
    host: Ints,
    pruning: Ints,
    adjacent_start: Ints,
    adjacent: Ints,
    adjacent_arc: Ints,
    hop_ms: Floats,
    toward: Any,
    clock: Longs,
    to_broker: Longs,
    destinations: Ints,
    spare: Ints,
    stack_broker: Ints,
    stack_start: Ints,
    stack_end: Ints,
    stack_hops: Ints,
    stack_ms: Floats,
    ms: Floats,
    hops: Ints,
    cross_pattern: Ints,
    cross_hop: Ints,
    cross_header: Ints,
    reach_ms: Floats,
    reach_hops: Ints,
    matchings: Longs,
) -> int:
    """Crossings of the rides that carry destinations: each broker takes itself off and splits the rest."""
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
                hop = _arc(adjacent_start, adjacent, adjacent_arc, here, following)
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
    rides: Int,
    publisher: Ints,
    counts: Longs,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_start: Longs,
    ride_entry: Ints,
    chosen: Flags,
    entry_class: Ints,
    host: Ints,
    pruning: Ints,
    parent: Ints,
    up: Ints,
    down: Ints,
    adjacent_start: Ints,
    adjacent: Ints,
    adjacent_arc: Ints,
    hop_ms: Floats,
    hop_length: Ints,
    toward: Any,
    clock: Longs,
    to_broker: Longs,
    destinations: Ints,
    chain: Ints,
    chain_place: Ints,
    chain_stamp: Longs,
    walk: Ints,
    ms: Floats,
    hops: Ints,
    cross_pattern: Ints,
    cross_hop: Ints,
    cross_header: Ints,
    reach_ms: Floats,
    reach_hops: Ints,
    matchings: Longs,
) -> int:
    """Crossings of one copy per destination, along the channel's tree or by next hops, none merged."""
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
                    cross_hop[total] = _arc(adjacent_start, adjacent, adjacent_arc, v, following)
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
    rides: Int,
    publisher: Ints,
    counts: Longs,
    ride_pattern: Ints,
    ride_channel: Ints,
    ride_enters: Ints,
    ride_group: Longs,
    chosen: Flags,
    pruning: Ints,
    serves_here: Flags,
    target_row: Ints,
    legs: Ints,
    cross_pattern: Ints,
    cross_hop: Ints,
    cross_header: Ints,
    matchings: Longs,
) -> int:
    """One leg for each group of rides that enters elsewhere; its header lists the channels."""
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


@compiled
def charge(
    cross_pattern: Ints,
    cross_hop: Ints,
    cross_header: Ints,
    publisher: Ints,
    counts: Longs,
    sizes: Longs,
    tags: npt.NDArray[np.uint64],
    start: Longs,
    classes: Ints,
    host: Ints,
    hop_start: Longs,
    hop_arc: Ints,
    label_bytes: Ints,
    arc_head: Ints,
    of_link: Longs,
    at_broker: Longs,
    wanted: Longs,
    messages: Longs,
    payload: Longs,
    header: Longs,
    tally: Longs,
    entered: npt.NDArray[np.uint64],
) -> None:
    """Add up crossings, which come sorted by pattern, all of a pattern in one call: stamps are pattern + 1.

    `tally`: broker duplicates, link duplicates, visits, waste. The publisher's broker has the event
    from its client, so that any reception there is a duplicate.
    """
    i: Int = -1
    stamp: Int = 0
    for c in range(len(cross_pattern)):
        if cross_pattern[c] != i:
            i = cross_pattern[c]
            stamp = i + 1
            at_broker[publisher[i]] = stamp
            for k in range(start[i], start[i + 1]):
                wanted[host[classes[k]]] = stamp
        hop = cross_hop[c]
        for k in range(hop_start[hop], hop_start[hop + 1]):
            arc = hop_arc[k]
            messages[arc] += counts[i]
            payload[arc] += sizes[i]
            header[arc] += counts[i] * (cross_header[c] + label_bytes[hop])
            link = arc >> 1
            if of_link[link] == stamp:
                tally[1] += counts[i]
            of_link[link] = stamp
            broker = arc_head[arc]
            if at_broker[broker] == stamp:
                tally[0] += counts[i]
                continue
            at_broker[broker] = stamp
            tally[2] += counts[i]
            entered[broker] |= tags[i]
            if wanted[broker] != stamp:
                tally[3] += counts[i]


@compiled
def settle(
    first: Int,
    last: Int,
    rides: Int,
    publisher: Ints,
    counts: Longs,
    start: Longs,
    classes: Ints,
    host: Ints,
    ride_pattern: Ints,
    ride_start: Longs,
    ride_entry: Ints,
    chosen: Flags,
    entry_class: Ints,
    reach_ms: Floats,
    reach_hops: Ints,
    class_stamp: Longs,
    class_ms: Floats,
    class_hops: Ints,
    host_stamp: Longs,
    host_place: Longs,
    worst_ms: Floats,
    out_start: Longs,
    out_ms: Floats,
    out_hops: Ints,
    tally: Longs,
) -> None:
    """When each class and each destination broker had the event first, and who never did.

    `tally`: deliveries, undelivered (event, class) pairs. Stamps are pattern + 1.
    """
    r: Int = 0
    for i in range(first, last):
        stamp = i + 1
        while r < rides and ride_pattern[r] == i:
            if chosen[r] != 0:
                for j in range(ride_start[r], ride_start[r + 1]):
                    k = entry_class[ride_entry[j]]
                    if reach_ms[j] >= 0 and (class_stamp[k] != stamp or reach_ms[j] < class_ms[k]):
                        class_stamp[k] = stamp
                        class_ms[k] = reach_ms[j]
                        class_hops[k] = reach_hops[j]
            r += 1
        found = out_start[i]
        for j in range(start[i], start[i + 1]):
            k = classes[j]
            if host[k] == publisher[i]:
                tally[0] += counts[i]
                continue
            if class_stamp[k] != stamp:
                tally[1] += counts[i]
                continue
            tally[0] += counts[i]
            worst_ms[k] = max(worst_ms[k], class_ms[k])
            broker = host[k]
            if host_stamp[broker] != stamp:
                host_stamp[broker] = stamp
                host_place[broker] = found
                out_ms[found] = class_ms[k]
                out_hops[found] = class_hops[k]
                found += 1
            elif class_ms[k] < out_ms[host_place[broker]]:
                out_ms[host_place[broker]] = class_ms[k]
                out_hops[host_place[broker]] = class_hops[k]
