"""Compiled loops for Steiner trees: growing one, bounding one from below, finding the best of small sets.

Owns the inner loops only: plain arrays in, arrays filled. Checking and meaning belong to `steiner.py`.
Nothing is allocated per set: scratch is made once per call and told apart by stamps, so a set costs what
it touches and not the size of the graph. Every tie goes to what comes first: the earlier terminal of a
set, the broker that joined the tree earlier.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.compiled import Flag, Int, compiled, inlined

__all__ = [
    "ascend_sets",
    "dreyfus_wagner",
    "emit_trees",
    "grow_tree",
    "measure_trees",
    "tree_cost",
]

Rows = npt.NDArray[Any]  # distances or predecessors, in whichever width the caller chose
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@compiled
def grow_tree(
    dist: Rows,
    pred: Rows,
    terminals: Ints,
    count: Int,
    first: Int,
    mark: Longs,
    stamp: Int,
    left: Ints,
    near: Rows,
    via: Ints,
    tree_node: Ints,
    tree_parent: Ints,
) -> int:
    """Grow a tree from `terminals[first]` over `terminals[:count]`; return how many nodes it has.

    Takahashi and Matsuyama (Math. Japonica 24, 1980): join the terminal nearest to the tree by a shortest
    path, again and again. `dist[u, v]` and `pred[u, v]` are those of `Distances`, a row for every node.
    Fills `tree_node[:size]` and `tree_parent[:size]`, every parent before its children, the start first
    (its parent is -1). When a path crosses the tree, as links of weight 0 allow, only what follows the last
    crossing is added; so every leaf is a terminal. O(size * count) look-ups.

    Scratch, of any content: `left`, `near` (of the type of `dist`) and `via` of `count` entries;
    `tree_node` and `tree_parent` of one per node. `mark` has one entry per node and none may equal
    `stamp`: start from zeros and pass 1, 2, 3... Afterwards `mark[v] == stamp` says that `v` is in the
    tree.
    """
    source = terminals[first]
    tree_node[0] = source
    tree_parent[0] = -1
    mark[source] = stamp
    size = 1
    waiting = 0
    for i in range(count):
        if i != first:
            left[waiting] = terminals[i]
            near[waiting] = dist[source, terminals[i]]
            via[waiting] = source
            waiting += 1
    while waiting > 0:
        at = 0
        for i in range(1, waiting):
            if near[i] < near[at]:
                at = i
        row = via[at]
        v = left[at]
        end = size
        while mark[v] != stamp:
            mark[v] = stamp
            tree_node[end] = v
            end += 1
            v = pred[row, v]
        # The walk went from the terminal back to the tree: turn it round.
        low, high = size, end - 1
        while low < high:
            tree_node[low], tree_node[high] = tree_node[high], tree_node[low]
            low += 1
            high -= 1
        for j in range(size, end):
            tree_parent[j] = v
            v = tree_node[j]
        kept = 0
        for i in range(waiting):
            t = left[i]
            if mark[t] == stamp:
                continue
            best = near[i]
            nearest = via[i]
            for j in range(size, end):
                reach = dist[tree_node[j], t]
                if reach < best:
                    best = reach
                    nearest = tree_node[j]
            left[kept] = t
            near[kept] = best
            via[kept] = nearest
            kept += 1
        waiting = kept
        size = end
    return size


@inlined
def _arc(start: Ints, neighbor: Ints, i: Int, j: Int) -> int:
    """The arc from i to j, which must exist: rows ascend by neighbor. O(log degree)."""
    low, high = start[i], start[i + 1] - 1
    while low < high:
        middle = (low + high) >> 1
        if neighbor[middle] < j:
            low = middle + 1
        else:
            high = middle
    return int(low)


@compiled
def tree_cost(
    start: Ints, neighbor: Ints, weight: Floats, unit: Flag, tree_node: Ints, tree_parent: Ints, size: Int
) -> float:
    """The weight of the arcs from parents to children; `unit` says that every arc weighs 1. O(size)."""
    if unit:
        return float(size - 1)
    cost = 0.0
    for j in range(1, size):
        cost += weight[_arc(start, neighbor, tree_parent[j], tree_node[j])]
    return cost


@compiled
def measure_trees(
    dist: Rows,
    pred: Rows,
    start: Ints,
    neighbor: Ints,
    weight: Floats,
    unit: Flag,
    every: Flag,
    set_start: Longs,
    set_node: Ints,
    cost: Floats,
    size: Longs,
    chosen: Ints,
) -> None:
    """For each set the cost of its tree, its nodes and its start; `every` tries all terminals as start."""
    nodes = len(dist)
    most = 0
    for s in range(len(set_start) - 1):
        most = max(most, set_start[s + 1] - set_start[s])
    mark = np.zeros(nodes, dtype=np.int64)
    left = np.empty(most, dtype=np.int32)
    near = np.empty(most, dtype=dist.dtype)
    via = np.empty(most, dtype=np.int32)
    tree_node = np.empty(nodes, dtype=np.int32)
    tree_parent = np.empty(nodes, dtype=np.int32)
    stamp = 0
    for s in range(len(set_start) - 1):
        terminals = set_node[set_start[s] : set_start[s + 1]]
        count = len(terminals)
        cost[s] = np.inf
        for first in range(count if every else 1):
            stamp += 1
            grown = grow_tree(
                dist, pred, terminals, count, first, mark, stamp, left, near, via, tree_node, tree_parent
            )
            found = tree_cost(start, neighbor, weight, unit, tree_node, tree_parent, grown)
            if found < cost[s]:
                cost[s] = found
                size[s] = grown
                chosen[s] = first


@compiled
def emit_trees(
    dist: Rows,
    pred: Rows,
    start: Ints,
    neighbor: Ints,
    arc_link: Ints,
    set_start: Longs,
    set_node: Ints,
    chosen: Ints,
    tree_start: Longs,
    parent: Ints,
    child: Ints,
    link: Ints,
) -> None:
    """Grow each set's tree again from its chosen start, write its links from the set's root outwards."""
    nodes = len(dist)
    most = 0
    for s in range(len(set_start) - 1):
        most = max(most, set_start[s + 1] - set_start[s])
    mark = np.zeros(nodes, dtype=np.int64)
    left = np.empty(most, dtype=np.int32)
    near = np.empty(most, dtype=dist.dtype)
    via = np.empty(most, dtype=np.int32)
    tree_node = np.empty(nodes, dtype=np.int32)
    tree_parent = np.empty(nodes, dtype=np.int32)
    above = np.empty(nodes, dtype=np.int32)
    for s in range(len(set_start) - 1):
        terminals = set_node[set_start[s] : set_start[s + 1]]
        stamp = 2 * s + 1
        size = grow_tree(
            dist,
            pred,
            terminals,
            len(terminals),
            chosen[s],
            mark,
            stamp,
            left,
            near,
            via,
            tree_node,
            tree_parent,
        )
        for j in range(size):
            above[tree_node[j]] = tree_parent[j]
        # From the root to the start the parents turn round; all others keep theirs and their order.
        at = tree_start[s]
        v = terminals[0]
        mark[v] = stamp + 1
        while above[v] >= 0:
            parent[at] = v
            v = above[v]
            child[at] = v
            mark[v] = stamp + 1
            at += 1
        for j in range(size):
            if mark[tree_node[j]] == stamp:
                parent[at] = tree_parent[j]
                child[at] = tree_node[j]
                at += 1
        for k in range(tree_start[s], at):
            link[k] = arc_link[_arc(start, neighbor, parent[k], child[k])]


@compiled
def ascend_sets(
    in_start: Ints, in_tail: Ints, in_weight: Floats, set_start: Longs, set_node: Ints, bound: Floats
) -> None:
    """Wong's dual ascent for each set, into `bound`. The arcs into node v: `in_start[v]:in_start[v + 1]`.

    Each active terminal t owns W, the nodes that reach it over arcs whose reduced cost is nought. The cut
    of W is lowered by its smallest reduced cost, which the bound earns. A terminal retires when W holds the
    root, or another active terminal: whatever reaches that one then reaches t for nothing.

    The terminal with the fewest cut arcs goes first. Counts are refreshed only when a terminal's turn
    comes: cuts mostly grow, so an old count is an under-estimate, and a terminal whose count proves larger
    than that of another waits. Its W is then found anew; while it stays the smallest, W only grows.
    """
    nodes = len(in_start) - 1
    most = 0
    for s in range(len(set_start) - 1):
        most = max(most, set_start[s + 1] - set_start[s])
    reduced = in_weight.copy()
    lowered = np.zeros(len(in_tail), dtype=np.int64)  # the last set that lowered an arc
    touched = np.empty(len(in_tail), dtype=np.int32)  # the arcs that the present set lowered
    cut = np.empty(len(in_tail), dtype=np.int32)
    inside = np.zeros(nodes, dtype=np.int64)  # the last W a node was in
    queue = np.empty(nodes, dtype=np.int32)
    waits = np.zeros(nodes, dtype=np.int64)  # the last set for which a node is an active terminal
    active = np.empty(most, dtype=np.int32)
    score = np.empty(most, dtype=np.int64)
    stamp = 0
    for s in range(len(set_start) - 1):
        root = set_node[set_start[s]]
        one = s + 1
        count = 0
        for k in range(set_start[s] + 1, set_start[s + 1]):
            t = set_node[k]
            if t != root and waits[t] != one:
                waits[t] = one
                active[count] = t
                score[count] = in_start[t + 1] - in_start[t]
                count += 1
        waits[root] = one  # the root counts as active too: whoever is reached from it retires
        total = 0.0
        lows = 0
        while count > 0:
            at, others = _fewest(score, count)
            stamp += 1
            t = active[at]
            inside[t] = stamp
            queue[0] = t
            head, tail, cuts, step = 0, 1, 0, 0.0
            while True:
                tail, cuts = _widen(
                    in_start, in_tail, reduced, waits, one, inside, stamp, queue, head, tail, cut, cuts
                )
                if tail < 0:
                    break
                cuts, step = _boundary(in_tail, reduced, inside, stamp, cut, cuts)
                if cuts == 0 or cuts > others:
                    break
                total += step
                head = tail
                for i in range(cuts):
                    if lowered[cut[i]] != one:
                        lowered[cut[i]] = one
                        touched[lows] = cut[i]
                        lows += 1
                tail, cuts = _lower(
                    in_tail, in_weight, reduced, waits, one, inside, stamp, queue, tail, cut, cuts, step
                )
                if tail < 0:
                    break
            if tail < 0:
                waits[t] = 0
                count -= 1
                for i in range(at, count):
                    active[i] = active[i + 1]
                    score[i] = score[i + 1]
            elif cuts == 0:
                total = np.inf  # nothing leads into W: the terminal is out of reach
                count = 0
            else:
                score[at] = cuts
        bound[s] = total
        for i in range(lows):
            reduced[touched[i]] = in_weight[touched[i]]


@inlined
def _fewest(score: Longs, count: Int) -> tuple[int, int]:
    """Where the smallest score is, the first of equals, and the smallest of the others."""
    at = 0
    others = np.int64(np.iinfo(np.int64).max)
    for i in range(1, count):
        if score[i] < score[at]:
            others = score[at]
            at = i
        elif score[i] < others:
            others = score[i]
    return at, int(others)


@inlined
def _widen(
    in_start: Ints,
    in_tail: Ints,
    reduced: Floats,
    waits: Longs,
    one: Int,
    inside: Longs,
    stamp: Int,
    queue: Ints,
    head: Int,
    tail: Int,
    cut: Ints,
    cuts: Int,
) -> tuple[int, int]:
    """Add to W what reaches `queue[head:tail]` for nothing, and to the cut the arcs that cost something.

    Returns the new ends of queue and cut; the former is -1 when W meets a node that waits, or the root.
    """
    while head < tail:
        v = queue[head]
        head += 1
        for p in range(in_start[v], in_start[v + 1]):
            u = in_tail[p]
            if inside[u] == stamp:
                continue
            if reduced[p] > 0.0:
                cut[cuts] = p
                cuts += 1
            elif waits[u] == one:
                return -1, cuts
            else:
                inside[u] = stamp
                queue[tail] = u
                tail += 1
    return tail, cuts


@inlined
def _boundary(
    in_tail: Ints, reduced: Floats, inside: Longs, stamp: Int, cut: Ints, cuts: Int
) -> tuple[int, float]:
    """Drop from the cut what has come to lie within W; how many arcs stay, and their least reduced cost."""
    kept = 0
    least = np.inf
    for i in range(cuts):
        p = cut[i]
        if inside[in_tail[p]] != stamp:
            cut[kept] = p
            kept += 1
            least = min(least, reduced[p])
    return kept, least


@inlined
def _lower(
    in_tail: Ints,
    in_weight: Floats,
    reduced: Floats,
    waits: Longs,
    one: Int,
    inside: Longs,
    stamp: Int,
    queue: Ints,
    tail: Int,
    cut: Ints,
    cuts: Int,
    step: float,
) -> tuple[int, int]:
    """Lower the reduced costs of a cut by `step`; nodes behind arcs that become free join W and `queue`.

    Returns as `_widen` does.
    """
    kept = 0
    met = False
    for i in range(cuts):
        p = cut[i]
        reduced[p] -= step
        # Rounding may leave a crumb; to give it up is safe and spares a step.
        if reduced[p] > 1e-12 * in_weight[p]:
            cut[kept] = p
            kept += 1
            continue
        reduced[p] = 0.0
        u = in_tail[p]
        if waits[u] == one:
            met = True
        elif inside[u] != stamp:
            inside[u] = stamp
            queue[tail] = u
            tail += 1
    return (-1 if met else tail), kept


@compiled
def dreyfus_wagner(
    in_start: Ints, in_tail: Ints, in_weight: Floats, root: Int, terminals: Ints, best: Floats
) -> float:
    """The least weight of an arborescence from `root` to all `terminals`, or inf.

    Dreyfus and Wagner (Networks 1, 1971) with arcs: `best[mask, v]` is the cheapest arborescence from v
    that reaches the terminals of `mask`. Two of them join at v, or one is reached over an arc out of v.
    `best` is scratch of 2^k rows and n columns. O(3^k n + 2^k n m) at worst; the queue usually settles in
    O(m).
    """
    nodes = len(in_start) - 1
    full = (1 << len(terminals)) - 1
    queue = np.empty(nodes, dtype=np.int32)
    queued = np.zeros(nodes, dtype=np.uint8)
    for mask in range(1, full + 1):
        for v in range(nodes):
            best[mask, v] = np.inf
        for i in range(len(terminals)):
            if mask == 1 << i:
                best[mask, terminals[i]] = 0.0
        part = (mask - 1) & mask
        while part > mask ^ part:
            for v in range(nodes):
                both = best[part, v] + best[mask ^ part, v]
                if both < best[mask, v]:
                    best[mask, v] = both
            part = (part - 1) & mask
        size = 0
        for v in range(nodes):
            if best[mask, v] < np.inf:
                queue[size] = v
                queued[v] = 1
                size += 1
        head = 0
        while size > 0:
            v = queue[head]
            head = head + 1 if head + 1 < nodes else 0
            size -= 1
            queued[v] = 0
            for p in range(in_start[v], in_start[v + 1]):
                u = in_tail[p]
                reach = best[mask, v] + in_weight[p]
                if reach < best[mask, u]:
                    best[mask, u] = reach
                    if queued[u] == 0:
                        queued[u] = 1
                        place = head + size
                        queue[place if place < nodes else place - nodes] = u
                        size += 1
    return float(best[full, root])
