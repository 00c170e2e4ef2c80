"""Compiled loops for Steiner trees: growing one, bounding one from below, finding the best of small sets.

Owns the inner loops only: plain arrays in, arrays filled. Checking and meaning belong to `steiner.py`.
Nothing is allocated per set: scratch is made once per call and told apart by stamps, so a set costs what
it touches and not the size of the graph. Every tie goes to what comes first: the earlier terminal of a
set, the broker that joined the tree earlier.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Flag, Int, compiled, inlined

__all__ = [
    "GraphArcs",
    "GrowRoom",
    "SearchMemory",
    "TreeLinks",
    "arc_between",
    "ascend_sets",
    "better_trees",
    "dreyfus_wagner",
    "emit_trees",
    "grow_better_tree",
    "grow_tree",
    "grow_trees",
    "measure_trees",
    "tree_cost",
    "tree_scratch",
]

Rows = npt.NDArray[Any]  # distances or predecessors, in whichever width the caller chose
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ALL_CANDIDATES = 64
"""Up to this many nodes, `grow_better_tree` looks at all of them; above it, at those next to the tree."""

MOST_TRIES = 16
"""Candidates that it grows a tree or two for, between one improvement and the next."""

MOST_MOVES = 16
"""Improvements that it makes; hardly ever more than three are found."""

PROMISE = 0.03
"""It tries nodes that seem to lose less than this share of the tree's cost: they may still gain."""

MARGIN = 1.0 - 1e-12
"""A tree is cheaper when it costs less than this share: rounding does not count."""


class GraphArcs(NamedTuple):
    """A graph in compressed rows with the link and the weight of every arc; `unit`: all weights are 1."""

    start: Ints
    neighbor: Ints
    link: Ints
    weight: Floats
    unit: Flag


class TreeLinks(NamedTuple):
    """Trees as links from parent to child: those of tree i are `start[i]:start[i + 1]`."""

    start: Longs
    parent: Ints
    child: Ints
    link: Ints


class GrowRoom(NamedTuple):
    """Scratch of `grow_tree`, of any content but for `mark`, and the tree that it fills.

    `left`, `near` (of the type of the distances) and `via` have an entry per terminal, the others one per
    node. No entry of `mark` may equal the stamp of a call: start from zeros and pass 1, 2, 3...
    """

    mark: Longs
    left: Ints
    near: Rows
    via: Ints
    tree_node: Ints
    tree_parent: Ints


class SearchMemory(NamedTuple):
    """Scratch of `grow_better_tree`: see `tree_scratch`."""

    clock: Longs
    stamps: Longs
    near: Rows
    work: Ints
    worth: Floats


@compiled
def grow_tree(
    dist: Rows, pred: Rows, terminals: Ints, count: Int, first: Int, stamp: Int, room: GrowRoom
) -> int:
    """Grow a tree from `terminals[first]` over `terminals[:count]`; return how many nodes it has.

    Takahashi and Matsuyama (Math. Japonica 24, 1980): join the terminal nearest to the tree by a shortest
    path, again and again. `dist[u, v]` and `pred[u, v]` are those of `Distances`, a row for every node.
    Fills `tree_node[:size]` and `tree_parent[:size]`, every parent before its children, the start first
    (its parent is -1). When a path crosses the tree, as links of weight 0 allow, only what follows the last
    crossing is added; so every leaf is a terminal. O(size * count) look-ups. Afterwards `mark[v] == stamp`
    says that `v` is in the tree.
    """
    return _grow(dist, pred, terminals, count, first, 0, np.inf, stamp, room)[0]


@compiled
def _grow(
    dist: Rows,
    pred: Rows,
    terminals: Ints,
    count: Int,
    first: Int,
    ahead: Int,
    limit: float,
    stamp: Int,
    room: GrowRoom,
) -> tuple[int, float]:
    """`grow_tree`, where the first `ahead` terminals after the start join before the nearest do, in order.

    Returns the nodes and what the paths cost together; no nodes when that reaches `limit`. A terminal may
    be named twice.
    """
    mark, left, near, via, tree_node, tree_parent = room
    source = terminals[first]
    tree_node[0] = source
    tree_parent[0] = -1
    mark[source] = stamp
    size = 1
    waiting = 0
    spent = 0.0
    for i in range(count):
        if i != first:
            left[waiting] = terminals[i]
            near[waiting] = dist[source, terminals[i]]
            via[waiting] = source
            waiting += 1
    while waiting > 0:
        at = 0
        if ahead == 0:
            for i in range(1, waiting):
                if near[i] < near[at]:
                    at = i
        row = via[at]
        v = left[at]
        spent += near[at]
        if spent >= limit:
            return 0, spent
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
        kept, first_kept = 0, 0
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
            if i < ahead:
                first_kept += 1
        waiting, ahead = kept, first_kept
        size = end
    return size, spent


def tree_scratch(nodes: int) -> tuple[Longs, Longs, Ints, Floats]:
    """The `clock`, `stamps`, `work` and `worth` of `grow_better_tree`, for any number of sets."""
    clock, stamps = np.zeros(1, dtype=np.int64), np.zeros((2, nodes), dtype=np.int64)
    return clock, stamps, np.empty((9, 2 * nodes + 1), dtype=np.int32), np.empty((3, nodes))


@compiled
def grow_better_tree(
    dist: Rows,
    pred: Rows,
    start: Ints,
    neighbor: Ints,
    terminals: Ints,
    count: Int,
    clock: Longs,
    stamps: Longs,
    near: Rows,
    work: Ints,
    worth: Floats,
    tree_node: Ints,
    tree_parent: Ints,
) -> int:
    """`grow_tree` from `terminals[0]`, then local search: never dearer, and much cheaper where arcs differ.

    A move names one more node that must join and grows the tree again: the node joins ahead of the
    terminals, as one should that is dear to reach and cheap to leave, or when its turn comes. Leaves that
    nobody wants are taken off. Of the moves that may pay (`_promising`) the `MOST_TRIES` best are tried
    and the cheapest is made; when there is none, one that was named before is given up if that pays. Each
    move lowers the cost, so it ends. A move takes O(count) look-ups for each candidate, and a tree for
    each that is tried; there are at most `MOST_MOVES`.

    `start` and `neighbor` are the graph in compressed rows. Fills `tree_node[:size]` and
    `tree_parent[:size]` as `grow_tree` does. Scratch comes from `tree_scratch`, with `near` of the type of
    `dist`, two entries per node and one more. Nothing in `stamps` may exceed `clock[0]`.
    """
    early, late, wanted = work[3], work[4], stamps[1]
    clock[0] += 1
    one = clock[0]
    for i in range(count):
        wanted[terminals[i]] = one
    memory = SearchMemory(clock, stamps, near, work, worth)
    # typed: what is called with a literal is compiled once more for it
    earlies, lates, nobody = np.int64(0), np.int64(0), np.int64(-1)
    size, cost = _try(
        dist, pred, terminals, count, earlies, lates, nobody, np.inf, one, memory, tree_node, tree_parent
    )
    for _ in range(min(MOST_MOVES, len(dist)) if count > 2 else 0):
        found = _promising(
            dist, start, neighbor, one, clock, stamps, work, worth, tree_node, tree_parent, size, cost
        )
        best, best_soon, gone = -1, 0, -1
        for k in range(min(found, MOST_TRIES)):
            v = _next_best(work[8], worth[1], k, found)
            early[earlies] = v
            for turn in range(1 if wanted[v] == one else 2):
                late[lates] = v
                grown, spent = _try(
                    dist, pred, terminals, count, earlies + 1 - turn, lates + turn, nobody, cost * MARGIN,
                    one, memory, tree_node, tree_parent,
                )  # fmt: skip
                if grown > 0:
                    size, cost, best, best_soon = grown, spent, v, 1 - turn
        for i in range(earlies + lates if best < 0 else 0):
            grown, spent = _try(
                dist, pred, terminals, count, earlies, lates, i, cost * MARGIN, one, memory, tree_node,
                tree_parent,
            )  # fmt: skip
            if grown > 0:
                size, cost, gone = grown, spent, i
        if best < 0 and gone < 0:
            break
        if best >= 0:
            early[earlies] = best
            late[lates] = best
            earlies += best_soon
            lates += 1 - best_soon
        elif gone < earlies:
            earlies -= 1
            for i in range(gone, earlies):
                early[i] = early[i + 1]
        else:
            lates -= 1
            for i in range(gone - earlies, lates):
                late[i] = late[i + 1]
    return size


@compiled
def _try(
    dist: Rows,
    pred: Rows,
    terminals: Ints,
    count: Int,
    earlies: Int,
    lates: Int,
    without: Int,
    limit: float,
    one: Int,
    memory: SearchMemory,
    tree_node: Ints,
    tree_parent: Ints,
) -> tuple[int, float]:
    """Grow a tree with the named nodes but one; when it costs less than `limit`, put it into `tree_*`.

    Returns its nodes, none when it is dearer, and its cost.
    """
    clock, stamps, work = memory.clock, memory.stamps, memory.work
    joins, early, late, node, parent = work[2], work[3], work[4], work[5], work[6]
    joins[0] = terminals[0]
    length = np.int64(1)
    for i in range(earlies):
        if i != without:
            joins[length] = early[i]
            length += 1
    ahead = length - 1
    for i in range(lates):
        if earlies + i != without:
            joins[length] = late[i]
            length += 1
    for i in range(1, count):
        joins[length] = terminals[i]
        length += 1
    clock[0] += 1
    room = GrowRoom(stamps[0], work[0], memory.near, work[1], node, parent)
    size, cost = _grow(dist, pred, joins, length, 0, ahead, limit, clock[0], room)
    if size == 0:
        return 0, cost
    size, cost = _without_loose_ends(dist, stamps[1], one, work[7], node, parent, size)
    if cost >= limit:
        return 0, cost
    for j in range(size):
        tree_node[j] = node[j]
        tree_parent[j] = parent[j]
    return size, cost


@compiled
def _without_loose_ends(
    dist: Rows, wanted: Longs, one: Int, children: Ints, node: Ints, parent: Ints, size: Int
) -> tuple[int, float]:
    """Take off leaves that are not wanted, again and again; how many nodes stay, and what they cost."""
    for j in range(size):
        children[node[j]] = 0
    for j in range(size - 1, 0, -1):
        if children[node[j]] == 0 and wanted[node[j]] != one:
            children[node[j]] = -1
        else:
            children[parent[j]] += 1
    kept, cost = 1, 0.0
    for j in range(1, size):
        if children[node[j]] >= 0:
            node[kept] = node[j]
            parent[kept] = parent[j]
            cost += dist[parent[j], node[j]]
            kept += 1
    return kept, cost


@compiled
def _promising(
    dist: Rows,
    start: Ints,
    neighbor: Ints,
    one: Int,
    clock: Longs,
    stamps: Longs,
    work: Ints,
    worth: Floats,
    tree_node: Ints,
    tree_parent: Ints,
    size: Int,
    cost: float,
) -> int:
    """The nodes that may be worth naming, into `work[8]`, and by how much, into `worth[1]`; how many.

    `worth[0]` becomes the cost of the path that ends at a node and began at the terminal or fork before
    it; `work[1]` the terminal or fork to whose path a node belongs.
    """
    mark, wanted, children, forks, upto = stamps[0], stamps[1], work[7], work[2], worth[0]
    owner = work[1]
    nodes, root = len(dist), tree_node[0]
    clock[0] += 2
    seen, inside = clock[0] - 1, clock[0]
    for j in range(size):
        mark[tree_node[j]] = inside
        children[tree_node[j]] = 0
        if j > 0:
            children[tree_parent[j]] += 1
    ends = np.int64(0)
    for j in range(1, size):
        v, above = tree_node[j], tree_parent[j]
        upto[v] = dist[above, v]
        if above != root and wanted[above] != one and children[above] == 1:
            upto[v] += upto[above]
        if wanted[v] == one or children[v] > 1:
            forks[ends] = v
            ends += 1
    for j in range(size - 1, 0, -1):
        v, above = tree_node[j], tree_parent[j]
        if wanted[v] == one or children[v] > 1:
            owner[v] = v
        if wanted[above] != one and children[above] == 1:
            owner[above] = owner[v]
    owner[root] = root
    listed = 0
    for v in range(nodes if nodes <= ALL_CANDIDATES else 0):
        work[8, listed] = v
        listed += 1
    for j in range(size if nodes > ALL_CANDIDATES else 0):
        work[8, listed] = tree_node[j]
        listed += 1
        for p in range(start[tree_node[j]], start[tree_node[j] + 1]):
            if mark[neighbor[p]] < seen:
                mark[neighbor[p]] = seen
                work[8, listed] = neighbor[p]
                listed += 1
    found = 0
    for i in range(listed):
        v = work[8, i]
        found = _weigh(
            dist, v, mark[v] == inside, cost, work, worth, ends, tree_node, tree_parent, size, found
        )
    return found


@compiled
def _weigh(
    dist: Rows,
    v: Int,
    inside: Flag,
    cost: float,
    work: Ints,
    worth: Floats,
    ends: Int,
    tree_node: Ints,
    tree_parent: Ints,
    size: Int,
    found: Int,
) -> int:
    """List a node if it may be worth naming; how many are listed then.

    It saves what the paths to terminals and forks cost more than those from itself, less the way to it:
    from the root if it is on the tree and would move up; else from any node of the tree, where the paths
    that lead to that node are not saved. The rest of the tree may change too when it is grown again, so
    a node is listed even if it seems to lose a little.
    """
    forks, owner, upto, lost, root = work[2], work[1], worth[0], worth[2], tree_node[0]
    if v == root:
        return int(found)
    saved = 0.0
    for i in range(ends):
        x = forks[i]
        if upto[x] > dist[v, x]:
            saved += upto[x] - dist[v, x]
    reach = float(dist[root, v])
    if not inside and saved > 0.0:
        lost[root] = 0.0
        for j in range(1, size):
            u, above = tree_node[j], tree_parent[j]
            x = owner[u]
            lost[u] = lost[above]
            if owner[above] != x:
                lost[u] += max(0.0, upto[x] - dist[v, x])
            reach = min(reach, float(dist[u, v]) + lost[u])
    if saved > 0.0 and saved - reach > -PROMISE * cost:
        work[8, found] = v
        worth[1, found] = saved - reach
        found += 1
    return int(found)


@compiled
def _next_best(node: Ints, gain: Floats, k: Int, found: Int) -> int:
    """Bring the best of `k` and those after it to place `k`: the largest gain, of equals the least node."""
    at = k
    for i in range(k + 1, found):
        if gain[i] > gain[at] or (gain[i] == gain[at] and node[i] < node[at]):
            at = i
    node[k], node[at] = node[at], node[k]
    gain[k], gain[at] = gain[at], gain[k]
    return int(node[k])


@inlined
def arc_between(start: Ints, neighbor: Ints, i: Int, j: Int) -> int:
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
        cost += weight[arc_between(start, neighbor, tree_parent[j], tree_node[j])]
    return cost


@compiled
def _room(dist: Rows, set_start: Longs, done: Int) -> GrowRoom:
    """Room for the trees of the sets from `done` on."""
    nodes = len(dist)
    most = 0
    for s in range(done, len(set_start) - 1):
        most = max(most, set_start[s + 1] - set_start[s])
    return GrowRoom(
        np.zeros(nodes, dtype=np.int64),
        np.empty(most, dtype=np.int32),
        np.empty(most, dtype=dist.dtype),
        np.empty(most, dtype=np.int32),
        np.empty(nodes, dtype=np.int32),
        np.empty(nodes, dtype=np.int32),
    )


@compiled
def measure_trees(
    dist: Rows,
    pred: Rows,
    graph: GraphArcs,
    every: Flag,
    set_start: Longs,
    set_node: Ints,
    cost: Floats,
    size: Longs,
    chosen: Ints,
) -> None:
    """For each set the cost of its tree, its nodes and its start; `every` tries all terminals as start."""
    start, neighbor, weight, unit = graph.start, graph.neighbor, graph.weight, graph.unit
    room = _room(dist, set_start, 0)
    stamp = 0
    for s in range(len(set_start) - 1):
        terminals = set_node[set_start[s] : set_start[s + 1]]
        count = len(terminals)
        cost[s] = np.inf
        for first in range(count if every else 1):
            stamp += 1
            grown = grow_tree(dist, pred, terminals, count, first, stamp, room)
            found = tree_cost(start, neighbor, weight, unit, room.tree_node, room.tree_parent, grown)
            if found < cost[s]:
                cost[s] = found
                size[s] = grown
                chosen[s] = first


@compiled
def emit_trees(
    dist: Rows,
    pred: Rows,
    graph: GraphArcs,
    set_start: Longs,
    set_node: Ints,
    chosen: Ints,
    links: TreeLinks,
) -> None:
    """Grow each set's tree again from its chosen start, write its links from the set's root outwards."""
    start, neighbor, arc_link = graph.start, graph.neighbor, graph.link
    tree_start, parent, child, link = links
    room = _room(dist, set_start, 0)
    mark, tree_node, tree_parent = room.mark, room.tree_node, room.tree_parent
    above = np.empty(len(dist), dtype=np.int32)
    for s in range(len(set_start) - 1):
        terminals = set_node[set_start[s] : set_start[s + 1]]
        stamp = 2 * s + 1
        size = grow_tree(dist, pred, terminals, len(terminals), chosen[s], stamp, room)
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
            link[k] = arc_link[arc_between(start, neighbor, parent[k], child[k])]


@compiled
def grow_trees(
    dist: Rows,
    pred: Rows,
    graph: GraphArcs,
    set_start: Longs,
    set_node: Ints,
    done: Int,
    cost: Floats,
    links: TreeLinks,
) -> int:
    """Grow and write the trees of the sets from `done` on, from their roots; returns how many are done.

    Stops before a set whose tree might not fit the room that is left: enlarge the arrays and call again.
    `tree_start[done]` says where the next tree begins.
    """
    start, neighbor, arc_link, weight, unit = graph
    tree_start, parent, child, link = links
    room = _room(dist, set_start, done)
    nodes, tree_node, tree_parent = len(dist), room.tree_node, room.tree_parent
    for s in range(done, len(set_start) - 1):
        at = tree_start[s]
        if at + nodes > len(parent):
            return s
        terminals = set_node[set_start[s] : set_start[s + 1]]
        size = grow_tree(dist, pred, terminals, len(terminals), 0, s + 1, room)
        total = 0.0
        for j in range(1, size):
            arc = arc_between(start, neighbor, tree_parent[j], tree_node[j])
            parent[at] = tree_parent[j]
            child[at] = tree_node[j]
            link[at] = arc_link[arc]
            total += 1.0 if unit else weight[arc]
            at += 1
        cost[s] = total
        tree_start[s + 1] = at
    return len(set_start) - 1


@compiled
def better_trees(
    dist: Rows,
    pred: Rows,
    graph: GraphArcs,
    set_start: Longs,
    set_node: Ints,
    memory: SearchMemory,
    fill: Flag,
    cost: Floats,
    links: TreeLinks,
) -> None:
    """`grow_better_tree` for each set: what it costs and where its links end, and with `fill` the links."""
    start, neighbor, arc_link, weight, unit = graph
    clock, stamps, near, work, worth = memory
    tree_start, parent, child, link = links
    tree_node = np.empty(len(dist), dtype=np.int32)
    tree_parent = np.empty(len(dist), dtype=np.int32)
    for s in range(len(set_start) - 1):
        terminals = set_node[set_start[s] : set_start[s + 1]]
        size = grow_better_tree(
            dist, pred, start, neighbor, terminals, len(terminals), clock, stamps, near, work, worth,
            tree_node, tree_parent,
        )  # fmt: skip
        cost[s] = tree_cost(start, neighbor, weight, unit, tree_node, tree_parent, size)
        tree_start[s + 1] = tree_start[s] + size - 1
        if fill:
            for j in range(1, size):
                at = tree_start[s] + j - 1
                parent[at] = tree_parent[j]
                child[at] = tree_node[j]
                link[at] = arc_link[arc_between(start, neighbor, tree_parent[j], tree_node[j])]


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
        waits[root] = one  # the root counts as active too: a terminal reached from it retires
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
