"""Compressed rows, and compiled searches over them: breadth first and Dijkstra, from many sources.

Owns the inner loops only: arrays in, arrays filled. Meaning (units, names, what is unreachable) belongs
to the callers, `distances.py` and `underlay.py`.

Every search breaks ties the same way, so its tree is the same on every machine and with any number of
threads: among the nodes that lie on a shortest path just before `v`, the one with the smallest index
that was settled before `v`. With positive weights that is the smallest index of all. With zero weights
"settled before" is what keeps the predecessors free of cycles.

Each search exists twice, serial and parallel over sources. The serial one is for small graphs: threads
cost more than they save there, and a process that has started an OpenMP pool can no longer fork safely.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import compiled, compiled_parallel, prange

__all__ = [
    "THREADS_FROM",
    "Adjacency",
    "adjacency",
    "bfs",
    "bfs_parallel",
    "dijkstra",
    "dijkstra_parallel",
    "price_paths",
]

THREADS_FROM = 20_000_000
"""Rows times arcs above which the parallel form is worth its threads: some 0.1 to 0.5 s on one core."""

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[Any]  # distances or predecessors, in whichever width the caller chose


class Adjacency(NamedTuple):
    """Compressed rows: the arcs out of node `i` are `start[i]:start[i + 1]`, by ascending neighbor.

    `link[k]` is the link an arc belongs to; `direction[k]` is 0 when it runs from the link's `a` to its
    `b`, else 1, so `price[link[k], direction[k]]` is what the arc costs.
    """

    start: npt.NDArray[np.int32]
    neighbor: npt.NDArray[np.int32]
    link: npt.NDArray[np.int32]
    direction: npt.NDArray[np.int8]


def adjacency(nodes: int, ends: npt.NDArray[np.int32]) -> Adjacency:
    """Compressed rows of an undirected graph, each link in both directions. O(m log m)."""
    count = len(ends)
    source = np.concatenate((ends[:, 0], ends[:, 1]))
    target = np.concatenate((ends[:, 1], ends[:, 0]))
    order = np.lexsort((target, source))
    start = np.zeros(nodes + 1, dtype=np.int32)
    np.cumsum(np.bincount(source, minlength=nodes), out=start[1:])
    ids = np.arange(count, dtype=np.int32)
    direction = np.repeat(np.array([0, 1], dtype=np.int8), count)
    parts = (start, target[order], np.tile(ids, 2)[order], direction[order])
    for part in parts:
        part.setflags(write=False)
    return Adjacency(*parts)


@compiled
def _bfs_from(
    source: int, start: Ints, neighbor: Ints, queue: Ints, distance: Rows, predecessor: Rows, far: int
) -> None:
    """Fill one row. `far` marks what is not reached; `queue` is scratch of n nodes."""
    distance[:] = far
    predecessor[:] = -1
    distance[source] = 0
    queue[0] = source
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        step = distance[u] + 1
        for k in range(start[u], start[u + 1]):
            v = neighbor[k]
            if distance[v] == far:
                distance[v] = step
                predecessor[v] = u
                queue[tail] = v
                tail += 1
            elif distance[v] == step and u < predecessor[v]:
                predecessor[v] = u


@compiled
def bfs(sources: Ints, start: Ints, neighbor: Ints, distance: Rows, predecessor: Rows, far: int) -> None:
    """Hop counts from each source into `distance[row]`, predecessors likewise. O(rows * (n + m))."""
    queue = np.empty(len(start) - 1, dtype=np.int32)
    for row in range(len(sources)):
        _bfs_from(sources[row], start, neighbor, queue, distance[row], predecessor[row], far)


@compiled_parallel
def bfs_parallel(
    sources: Ints, start: Ints, neighbor: Ints, distance: Rows, predecessor: Rows, far: int
) -> None:
    """The same as `bfs`, sources shared among threads."""
    for row in prange(len(sources)):
        queue = np.empty(len(start) - 1, dtype=np.int32)
        _bfs_from(sources[row], start, neighbor, queue, distance[row], predecessor[row], far)


@compiled
def _before(i: int, j: int, best: Floats) -> bool:
    """Whether node i is settled before node j: nearer first, then the smaller index."""
    return bool(best[i] < best[j] or (best[i] == best[j] and i < j))


@compiled
def _sift_up(heap: Ints, place: Ints, at: int, best: Floats) -> None:
    node = heap[at]
    while at > 0:
        above = (at - 1) >> 1
        if not _before(node, heap[above], best):
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = node
    place[node] = at


@compiled
def _sift_down(heap: Ints, place: Ints, size: int, best: Floats) -> None:
    node = heap[0]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _before(heap[below + 1], heap[below], best):
            below += 1
        if not _before(heap[below], node, best):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = node
    place[node] = at


@compiled
def _dijkstra_from(
    source: int, start: Ints, neighbor: Ints, weight: Floats, distance: Rows, predecessor: Rows
) -> None:
    """Fill one row with an indexed binary heap. `place[v]`: -1 not seen yet, -2 settled."""
    nodes = len(start) - 1
    heap = np.empty(nodes, dtype=np.int32)
    place = np.full(nodes, -1, dtype=np.int32)
    # Sums are kept in double whatever the width of `distance`, so ties do not depend on that width.
    best = np.full(nodes, np.inf)
    predecessor[:] = -1
    best[source] = 0.0
    heap[0] = source
    place[source] = 0
    size = 1
    while size > 0:
        u = heap[0]
        place[u] = -2
        size -= 1
        if size > 0:
            heap[0] = heap[size]
            _sift_down(heap, place, size, best)
        for k in range(start[u], start[u + 1]):
            v = neighbor[k]
            if place[v] == -2:
                continue
            reach = best[u] + weight[k]
            if place[v] == -1 or reach < best[v]:
                best[v] = reach
                predecessor[v] = u
                if place[v] == -1:
                    place[v] = size
                    heap[size] = v
                    size += 1
                _sift_up(heap, place, place[v], best)
            elif reach == best[v] and u < predecessor[v]:
                predecessor[v] = u
    distance[:] = best


@compiled
def dijkstra(
    sources: Ints, start: Ints, neighbor: Ints, weight: Floats, distance: Rows, predecessor: Rows
) -> None:
    """Least weights from each source; `weight` is per arc, not negative. O(rows * m log n)."""
    for row in range(len(sources)):
        _dijkstra_from(sources[row], start, neighbor, weight, distance[row], predecessor[row])


@compiled_parallel
def dijkstra_parallel(
    sources: Ints, start: Ints, neighbor: Ints, weight: Floats, distance: Rows, predecessor: Rows
) -> None:
    """The same as `dijkstra`, sources shared among threads."""
    for row in prange(len(sources)):
        _dijkstra_from(sources[row], start, neighbor, weight, distance[row], predecessor[row])


@compiled
def price_paths(ends: Ints, price: Floats, last: Ints, prices: Floats, walk: Ints) -> None:
    """What the tree path from a root to every node costs, outward and back. O(n).

    `last[v]` is the link into v, -1 for the root and for what is not reached; `prices` is 0 at the root and
    infinite elsewhere, and stays so where there is no path. `walk` is scratch, one entry per node.
    """
    for start in range(len(last)):
        steps = 0
        node = start
        while prices[node, 0] == np.inf and last[node] >= 0:
            walk[steps] = node
            steps += 1
            x, y = ends[last[node], 0], ends[last[node], 1]
            node = x if y == node else y
        for k in range(steps - 1, -1, -1):
            child = walk[k]
            link = last[child]
            outward = 0 if ends[link, 1] == child else 1
            prices[child, 0] = prices[node, 0] + price[link, outward]
            prices[child, 1] = prices[node, 1] + price[link, 1 - outward]
            node = child
