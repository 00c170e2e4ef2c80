"""What it costs to join a set of brokers, compiled: minimum spanning trees, Steiner trees, one fixed tree.

Owns `Trees`, the arrays that the loops work on, and `joined`, the cost of one set. Sets are rows of bits,
64 brokers a word. A cost is computed once: up to `MOST_TABLE` brokers all sets are in a table, above that
costs are kept by set in a hash table, which is emptied when it is half full. Not for several threads.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled
from ramify.network.trees.steiner_kernels import grow_better_tree, tree_cost
from ramify.planning.demand.overlap_kernels import ONE

__all__ = [
    "MST",
    "ONE_TREE",
    "STEINER",
    "Trees",
    "fill_table",
    "has",
    "joined",
    "merged_paths",
    "put",
    "shortest",
]

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

MST, STEINER, ONE_TREE = 0, 1, 2


class Trees(NamedTuple):
    """See the module. `kind` is MST, STEINER or ONE_TREE.

    distance, predecessor     between brokers, as in `Distances`; for ONE_TREE distances along it
    start, neighbor, weight   the core's arcs
    order, parent, length     the one tree: brokers with parents first, and the links above them
    table                     float64[2^b], or empty
    keys, values, filled      the hash table: a free place has the value nan
    others                    scratch
    """

    kind: int
    distance: Floats
    predecessor: npt.NDArray[np.int16]
    start: Ints
    neighbor: Ints
    weight: Floats
    order: Ints
    parent: Ints
    length: Floats
    table: Floats
    keys: Words
    values: Floats
    filled: Longs
    clock: Longs
    stamps: Longs
    near: Floats
    work: Ints
    worth: Floats
    nodes: Ints


@compiled
def has(row: Words, b: Int) -> bool:
    """Whether broker b is in the set."""
    return bool((row[b >> 6] >> np.uint64(b & 63)) & ONE)


@compiled
def put(row: Words, b: Int, there: bool) -> None:
    """Put broker b into the set, or take it out."""
    bit = ONE << np.uint64(b & 63)
    if there:
        row[b >> 6] |= bit
    else:
        row[b >> 6] &= ~bit


@compiled
def joined(trees: Trees, row: Words) -> float:
    """What the tree over a set costs; 0 for fewer than two brokers."""
    if len(trees.table):
        return float(trees.table[np.int64(row[0])])
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in row:
        mixed = (mixed ^ word) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
    mask = len(trees.values) - 1
    at = np.int64(mixed & np.uint64(mask))
    while not np.isnan(trees.values[at]):
        same = True
        for i in range(len(row)):
            if trees.keys[at, i] != row[i]:
                same = False
                break
        if same:
            return float(trees.values[at])
        at = (at + 1) & mask
    cost = _compute(trees, row)
    if 2 * trees.filled[0] > mask:
        trees.values[:] = np.nan
        trees.filled[0] = 0
        at = np.int64(mixed & np.uint64(mask))
    trees.keys[at] = row
    trees.values[at] = cost
    trees.filled[0] += 1
    return cost


@compiled
def fill_table(trees: Trees) -> None:
    """The cost of every set of brokers; Steiner trees by Dreyfus and Wagner, so exact. O(3^b b)."""
    row = np.zeros(1, dtype=np.uint64)
    if trees.kind != STEINER:
        for mask in range(len(trees.table)):
            row[0] = np.uint64(mask)
            trees.table[mask] = _compute(trees, row)
        return
    count = len(trees.distance)
    # best[mask, v]: the least tree that joins the set with v
    best = np.full((len(trees.table), count), np.inf)
    for v in range(count):
        for w in range(count):
            best[1 << v, w] = trees.distance[v, w]
    best[0] = 0.0
    here = np.empty(count)
    for mask in range(1, len(trees.table)):
        part = (mask - 1) & mask
        if part:
            here[:] = np.inf
            while part:
                rest = mask ^ part
                if part >= rest:
                    for v in range(count):
                        here[v] = min(here[v], best[part, v] + best[rest, v])
                part = (part - 1) & mask
            for v in range(count):
                for w in range(count):
                    best[mask, v] = min(best[mask, v], here[w] + trees.distance[w, v])
        trees.table[mask] = best[mask].min()
    trees.table[0] = 0.0


@compiled
def _compute(trees: Trees, row: Words) -> float:
    member = trees.nodes[0]
    count = np.int64(0)  # typed: callees are not compiled once more for a literal
    for b in range(len(trees.distance)):
        if has(row, b):
            member[count] = b
            count += 1
    if count < 2:
        return 0.0
    if trees.kind == ONE_TREE:
        return _within(trees, member, count)
    cost = _spanning(trees, member, count)
    if trees.kind == MST:
        return cost
    size = grow_better_tree(
        trees.distance, trees.predecessor, trees.start, trees.neighbor, member, count, trees.clock,
        trees.stamps, trees.near, trees.work, trees.worth, trees.nodes[1], trees.nodes[2],
    )  # fmt: skip
    grown = tree_cost(
        trees.start, trees.neighbor, trees.weight, False, trees.nodes[1], trees.nodes[2], size
    )
    return min(cost, grown)


@compiled
def _spanning(trees: Trees, member: Ints, count: Int) -> float:
    """Prim's minimum spanning tree of the complete graph on the members. O(count^2)."""
    left = trees.nodes[3]
    near = trees.near
    for i in range(1, count):
        left[i] = member[i]
        near[i] = trees.distance[member[0], member[i]]
    cost = 0.0
    waiting = count
    while waiting > 1:
        at = 1
        for i in range(2, waiting):
            if near[i] < near[at]:
                at = i
        cost += near[at]
        joining = left[at]
        waiting -= 1
        left[at] = left[waiting]
        near[at] = near[waiting]
        for i in range(1, waiting):
            near[i] = min(near[i], trees.distance[joining, left[i]])
    return cost


@compiled
def _within(trees: Trees, member: Ints, count: Int) -> float:
    """The links of the one tree that lie between members. O(b)."""
    below = trees.nodes[1]
    below[:] = 0
    for i in range(count):
        below[member[i]] = 1
    cost = 0.0
    for i in range(len(trees.order) - 1, 0, -1):
        v = trees.order[i]
        if 0 < below[v] < count:
            cost += trees.length[v]
        below[trees.parent[v]] += below[v]
    return cost


@compiled
def merged_paths(trees: Trees, root: Int, row: Words, mark: Longs, stamp: Int) -> float:
    """The shortest paths from a root to a set, each link once. `mark` holds no `stamp` yet."""
    cost = 0.0
    mark[root] = stamp
    for b in range(len(trees.distance)):
        v = b
        while has(row, b) and mark[v] != stamp:
            mark[v] = stamp
            before = trees.predecessor[root, v]
            cost += trees.distance[before, v]
            v = before
    return cost


@compiled
def shortest(trees: Trees, members: Words, rate_at: Floats) -> float:
    """C2 by shortest paths, for the sets `members[c]` and the rates `rate_at[b, c]`."""
    mark = np.zeros(len(trees.distance), dtype=np.int64)
    stamp = 0
    total = 0.0
    for c in range(len(members)):
        for b in range(len(rate_at)):
            if rate_at[b, c] > 0:
                stamp += 1
                total += rate_at[b, c] * merged_paths(trees, b, members[c], mark, stamp)
    return total
