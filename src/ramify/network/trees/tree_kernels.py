"""Compiled loops over rooted trees: preorder, depths, lowest common ancestors, the cost of terminal sets.

Owns the inner loops only: arrays in, arrays filled. `trees.py` and `swaps.py` own what they mean.

Most loops work on *positions*: a node's place in the preorder of its tree, so that a sub-tree is a range
and a tree of k nodes out of n needs arrays of k. numba compiles again for every mixture of read-only and
writable arguments: callers pass terminal sets and graphs closed (`trees.closed`), parents and lengths open.
"""

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, Ints, SmallInts, compiled

__all__ = [
    "costs_of_sets",
    "depths",
    "fill_meetings",
    "kruskal",
    "meeting",
    "orient",
    "preorder",
    "sort_small",
]

Floats = npt.NDArray[np.float64]
Table = npt.NDArray[np.int32]  # of two dimensions

OUTSIDE = -2
SORTED_BY_INSERTION = 24  # up to here insertion is quicker than a heap


@compiled
def orient(ends: SmallInts, root: Int, parent: SmallInts) -> int:
    """Fill `parent` by a search from the root over undirected pairs; how many it reached. O(n + k)."""
    nodes, count = len(parent), len(ends)
    first = np.full(nodes, -1, np.int32)
    following = np.empty(2 * count, np.int32)
    for arc in range(2 * count):
        a = ends[arc >> 1, arc & 1]
        following[arc] = first[a]
        first[a] = arc
    for v in range(nodes):
        parent[v] = OUTSIDE
    queue = np.empty(nodes, np.int32)
    queue[0] = root
    parent[root] = -1
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        arc = first[u]
        while arc >= 0:
            v = ends[arc >> 1, 1 - (arc & 1)]
            if parent[v] == OUTSIDE:
                parent[v] = u
                queue[tail] = v
                tail += 1
            arc = following[arc]
    return tail


@compiled
def preorder(parent: SmallInts, root: Int, order: SmallInts, tin: SmallInts, tout: SmallInts) -> int:
    """Fill the preorder, children ascending, and each node's range of positions; how many were reached.

    Nodes that the root does not reach keep what `tin` and `tout` held. `order` has room for every node
    that names a parent, and one. O(n).
    """
    nodes = len(parent)
    first = np.full(nodes, -1, np.int32)
    following = np.full(nodes, -1, np.int32)
    for below in range(nodes - 1, -1, -1):
        above = parent[below]
        if above >= 0:
            following[below] = first[above]
            first[above] = below
    count = 0
    v: Int = root
    while True:
        order[count] = v
        tin[v] = count
        count += 1
        if first[v] >= 0:
            v = first[v]
            continue
        while v != root and following[v] < 0:
            tout[v] = count
            v = parent[v]
        tout[v] = count
        if v == root:
            return count
        v = following[v]


@compiled
def depths(order: SmallInts, parent: SmallInts, tin: SmallInts, length: Floats, depth: Floats) -> None:
    """Fill the weighted depth per position. `length[v]` is of the link from v's parent. O(k)."""
    depth[0] = 0.0
    for i in range(1, len(order)):
        v = order[i]
        depth[i] = depth[tin[parent[v]]] + length[v]


@compiled
def fill_meetings(
    order: SmallInts, parent: SmallInts, tin: SmallInts, table: Table, log: SmallInts
) -> None:
    """Fill the sparse table that `meeting` reads: row j holds minima over 2^j positions. O(k log k).

    The lowest common ancestor of positions i < j is the smallest parent position in i + 1..j: all of
    these lie below the ancestor, and the child that leads to j is among them.
    """
    count = len(order)
    log[0] = 0
    log[1] = 0
    for i in range(2, count + 1):
        log[i] = log[i >> 1] + 1
    table[0, 0] = 0
    for i in range(1, count):
        table[0, i] = tin[parent[order[i]]]
    for level in range(1, log[count] + 1):
        half = 1 << (level - 1)
        for i in range(count - 2 * half + 1):
            left, right = table[level - 1, i], table[level - 1, i + half]
            table[level, i] = left if left < right else right


@compiled
def meeting(i: Int, j: Int, table: Table, log: SmallInts) -> int:
    """The position of the lowest common ancestor of positions i <= j. O(1)."""
    found = i
    if i < j:
        level = log[j - i]
        left = table[level, i + 1]
        right = table[level, j + 1 - (1 << level)]
        found = left if left < right else right
    return found  # type: ignore[no-any-return]


@compiled
def sort_small(values: SmallInts, count: Int) -> None:
    """Sort the first `count` values in place: insertion when few, else a heap. O(k log k)."""
    if count <= SORTED_BY_INSERTION:
        for i in range(1, count):
            value = values[i]
            j = i - 1
            while j >= 0 and values[j] > value:
                values[j + 1] = values[j]
                j -= 1
            values[j + 1] = value
        return
    size = count
    begin = count >> 1
    while size > 1:
        if begin > 0:
            begin -= 1
            value = values[begin]
        else:
            size -= 1
            value = values[size]
            values[size] = values[0]
        at = begin
        below = 2 * at + 1
        while below < size:
            if below + 1 < size and values[below + 1] > values[below]:
                below += 1
            if values[below] <= value:
                break
            values[at] = values[below]
            at = below
            below = 2 * at + 1
        values[at] = value


@compiled
def costs_of_sets(
    start: Ints, node: SmallInts, tin: SmallInts, depth: Floats, table: Table, log: SmallInts, cost: Floats
) -> int:
    """Fill the length of the smallest sub-tree that joins each set; -1, or a set that leaves the tree.

    With terminals t1..tk by position: depth(t1) - depth(lca(t1, tk)) + the sum of depth(t[i+1]) -
    depth(lca(t[i], t[i+1])). `depth` is per position. O(k log k) per set.
    """
    most = 1
    for s in range(len(start) - 1):
        most = max(most, start[s + 1] - start[s])
    at = np.empty(most, np.int32)
    for s in range(len(start) - 1):
        count = start[s + 1] - start[s]
        for i in range(count):
            at[i] = tin[node[start[s] + i]]
            if at[i] < 0:
                return s
        sort_small(at, count)
        total = 0.0
        if count > 1:
            total = depth[at[0]] - depth[meeting(at[0], at[count - 1], table, log)]
            for i in range(1, count):
                total += depth[at[i]] - depth[meeting(at[i - 1], at[i], table, log)]
        cost[s] = total
    return -1


@compiled
def kruskal(ends: SmallInts, order: Ints, nodes: Int, chosen: SmallInts) -> int:
    """Fill `chosen` with the links that join two parts, taken in `order`; how many. O(m a(n))."""
    above = np.empty(nodes, np.int32)
    for v in range(nodes):
        above[v] = v
    count = 0
    for k in range(len(order)):
        link = order[k]
        a, b = ends[link, 0], ends[link, 1]
        while above[a] != a:
            above[a] = above[above[a]]
            a = above[a]
        while above[b] != b:
            above[b] = above[above[b]]
            b = above[b]
        if a != b:
            above[max(a, b)] = min(a, b)
            chosen[count] = link
            count += 1
    return count
