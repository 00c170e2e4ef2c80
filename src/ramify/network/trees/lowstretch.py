"""Spanning trees of low average stretch: star decomposition and AKPW, for weighted multigraphs.

Problem    A connected multigraph with a length and a multiplicity per edge. Find a spanning tree T with a
           small average stretch: the sum of m(e) dist_T(e) / length(e) over the sum of m(e).
Idea       Star decomposition: around a centre grow a ball whose boundary is light for its volume, then cut
           the rest into cones that hang from the ball by one edge each; recurse into all of them. AKPW:
           cluster the short edges into pieces of few hops, contract the pieces, go on with longer edges.
Guarantee  A spanning tree. The published bounds, O(log^2 n log log n) and exp(O(sqrt(log n log log n))),
           are not claimed: their statements needed corrections. `average_stretch` recomputes.
Cost       Star: O(m log n) per level and O(log(n length ratio)) levels, unless many cones overlap before
           they are cut back. AKPW: O(m log m), and O(n + m) per round: one per class, and O(log n) more.
Departures Star: edges too short to matter at a level are contracted by counting them as length 0 there;
           the first centre is the centroid of a shortest-path tree; balls and cones take the best ratio of
           boundary to volume in their range of radii instead of the first that is good enough; an edge
           u -> v costs a cone length + dist(u) - dist(v), which is 0 on shortest paths as in the paper and
           continuous elsewhere, so rounding cannot tear a cone; cones may be wider than the proof allows
           (`spread`). AKPW: classes are of length over multiplicity, so that edges which many use are
           contracted first; the order of the first nodes is drawn from a seed.

References: M. Elkin, Y. Emek, D. A. Spielman, S.-H. Teng, "Lower-Stretch Spanning Trees", STOC 2005,
doi:10.1145/1060590.1060665. N. Alon, R. M. Karp, D. Peleg, D. West, "A Graph-Theoretic Game and Its
Application to the k-Server Problem", SIAM J. Comput. 24 (1995), doi:10.1137/S0097539792224474.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from ramify.compiled import Int, SmallInts, compiled
from ramify.errors import DisconnectedError, OverlayError
from ramify.network.trees.trees import Tree, closed

__all__ = ["akpw_tree", "average_stretch", "star_decomposition_tree"]

Floats = npt.NDArray[np.float64]

SPREAD = 0.15
"""Radius of a cone as a share of the part's radius, at most. See `star_decomposition_tree`."""
CLASS = 2.0
"""AKPW: the ratio of the longest to the shortest edge of a class, each over its multiplicity."""
STAR_SHARE = 0.25
"""AKPW: a piece grows until its boundary is at most this share of its inside, by multiplicity."""


def star_decomposition_tree(
    nodes: int,
    ends: npt.ArrayLike,
    length: npt.ArrayLike,
    multiplicity: npt.ArrayLike,
    *,
    spread: float = SPREAD,
) -> SmallInts:
    """Edge ids, ascending, of the tree of Elkin, Emek, Spielman and Teng. Deterministic.

    `ends` is int[m, 2] (edges may repeat; loops are never chosen), `length` positive, `multiplicity` not
    negative. `spread` bounds the radius of cones by a share of the part's radius; the paper's is
    1 / (4 log_{4/3}(n + 32)), which makes cones of unit lengths trivial. Raises `OverlayError`,
    `DisconnectedError`.
    """
    graph = _Multigraph.checked(nodes, ends, length, multiplicity)
    if not spread >= 0:
        raise OverlayError(f"a spread of {spread} is not the radius of a cone. Use 0 or more.")
    chosen = np.empty(nodes - 1, dtype=np.int32)
    count = _star_tree(nodes, graph.ends, graph.length, graph.multiplicity, float(spread), chosen)
    return graph.spanning(chosen[:count])


def akpw_tree(
    nodes: int,
    ends: npt.ArrayLike,
    length: npt.ArrayLike,
    multiplicity: npt.ArrayLike,
    *,
    seed: int | np.random.Generator = 0,
) -> SmallInts:
    """Edge ids, ascending, of the tree of Alon, Karp, Peleg and West. The same for the same seed.

    Arguments and errors as for `star_decomposition_tree`.
    """
    graph = _Multigraph.checked(nodes, ends, length, multiplicity)
    first = closed(np.random.default_rng(seed).permutation(nodes), np.int32)
    least = graph.multiplicity.max(initial=0.0) * 1e-9
    worth = graph.length / np.maximum(graph.multiplicity, least if least > 0 else 1.0)
    order = closed(np.argsort(worth, kind="stable"), np.int32)
    chosen = np.empty(nodes - 1, dtype=np.int32)
    count = _akpw(
        graph.ends, closed(worth, np.float64), graph.multiplicity, order, first, CLASS, STAR_SHARE, chosen
    )
    return graph.spanning(chosen[:count])


def average_stretch(
    nodes: int,
    ends: npt.ArrayLike,
    length: npt.ArrayLike,
    multiplicity: npt.ArrayLike,
    tree_edge_ids: npt.ArrayLike,
) -> float:
    """The mean of dist_T(e) / length(e) over all edges, by multiplicity; 1 when there is nothing to weigh.

    Sums along the paths: differences of depths would lose short edges far from the root. O(m depth).
    Raises `OverlayError` when the edges are not a spanning tree.
    """
    graph = _Multigraph.checked(nodes, ends, length, multiplicity)
    chosen = np.asarray(tree_edge_ids, dtype=np.int64)
    tree = Tree.of_links(nodes, graph.ends[chosen], 0)
    if len(tree) < nodes:
        raise OverlayError(
            f"{len(chosen)} edges do not span {nodes} nodes. Give all edges of a spanning tree."
        )
    above = np.zeros(nodes)
    a, b = graph.ends[chosen].T
    above[np.where(tree.parent[b] == a, b, a)] = graph.length[chosen]
    along = np.empty(len(graph.ends))
    _path_lengths(tree.parent, tree.depth_hops(), above, graph.ends, along)
    total = graph.multiplicity.sum()
    return float((graph.multiplicity * (along / graph.length)).sum() / total) if total > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Multigraph:
    """The arrays of a graph, checked and closed."""

    nodes: int
    ends: SmallInts
    length: Floats
    multiplicity: Floats

    @classmethod
    def checked(
        cls, nodes: int, ends: npt.ArrayLike, length: npt.ArrayLike, multiplicity: npt.ArrayLike
    ) -> Self:
        pairs = np.asarray(ends).reshape(-1, 2)
        lengths, counts = closed(length, np.float64), closed(multiplicity, np.float64)
        if nodes < 1:
            raise OverlayError("a tree needs a node, and the graph has none. Add one.")
        if not lengths.shape == counts.shape == (len(pairs),):
            raise OverlayError(
                f"{len(pairs)} edges, {len(lengths)} lengths and {len(counts)} multiplicities. "
                "Give one of each per edge."
            )
        if len(pairs) and not (pairs.min() >= 0 and pairs.max() < nodes):
            raise OverlayError(f"an edge ends outside 0..{nodes - 1}. Use indices of the nodes.")
        if len(pairs) and not (lengths.min() > 0 and lengths.max() < np.inf):
            raise OverlayError("an edge has no positive, finite length. Give it one.")
        if len(pairs) and not (counts.min() >= 0 and counts.max() < np.inf):
            raise OverlayError("an edge has a negative or infinite multiplicity. Use 0 or more.")
        return cls(nodes, closed(pairs, np.int32), lengths, counts)

    def spanning(self, chosen: SmallInts) -> SmallInts:
        """The chosen edges ascending, or an error when they are too few to span: the graph is in parts."""
        if len(chosen) < self.nodes - 1:
            ones = np.ones(len(self.ends), dtype=np.int8)
            shape = (self.nodes, self.nodes)
            _, part = connected_components(
                csr_array((ones, tuple(self.ends.T)), shape=shape), directed=False
            )
            groups = [np.flatnonzero(part == i).astype(str).tolist() for i in range(part.max() + 1)]
            raise DisconnectedError(groups)
        chosen.sort()
        return chosen


class EdgeRows(NamedTuple):
    """A multigraph in compressed rows (`_rows`), and what its edges are."""

    start: SmallInts
    to: SmallInts
    edge: SmallInts
    length: Floats
    multiplicity: Floats


class BallMemory(NamedTuple):
    """What `_settle` fills and `_cut` reads: parts, distances, nodes by distance, a heap."""

    label: SmallInts
    reach: Floats
    settled: SmallInts
    key: Floats
    item: SmallInts


class PieceMemory(NamedTuple):
    """AKPW's clusters, its live edges as lists by cluster, and what `_grow` fills."""

    cluster: SmallInts
    live: SmallInts
    head: SmallInts
    following: SmallInts
    piece: SmallInts
    layer: SmallInts
    via: SmallInts
    queue: SmallInts


@compiled
def _path_lengths(
    parent: SmallInts, hops: SmallInts, above: Floats, ends: SmallInts, along: Floats
) -> None:
    """Fill the length of the tree path between the ends of each edge, by climbing from both."""
    for e in range(len(ends)):
        a, b = ends[e, 0], ends[e, 1]
        total = 0.0
        while a != b:
            if hops[a] < hops[b]:
                a, b = b, a
            total += above[a]
            a = parent[a]
        along[e] = total


@compiled
def _rows(nodes: Int, ends: SmallInts, start: SmallInts, to: SmallInts, edge: SmallInts) -> None:
    """Compressed rows of a multigraph without its loops, each by ascending edge."""
    for v in range(nodes + 1):
        start[v] = 0
    for e in range(len(ends)):
        if ends[e, 0] != ends[e, 1]:
            start[ends[e, 0]] += 1
            start[ends[e, 1]] += 1
    total = 0
    for v in range(nodes):
        total += start[v]
        start[v] = total
    start[nodes] = total
    for e in range(len(ends) - 1, -1, -1):
        a, b = ends[e, 0], ends[e, 1]
        if a != b:
            start[a] -= 1
            to[start[a]] = b
            edge[start[a]] = e
            start[b] -= 1
            to[start[b]] = a
            edge[start[b]] = e


@compiled
def _push(key: Floats, item: SmallInts, size: Int, reach: float, node: Int) -> None:
    """Put a node into a heap of `size` entries: smallest reach first, then smallest index."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if key[above] < reach or (key[above] == reach and item[above] <= node):
            break
        key[at] = key[above]
        item[at] = item[above]
        at = above
    key[at] = reach
    item[at] = node


@compiled
def _pop(key: Floats, item: SmallInts, size: Int) -> None:
    """Take the first of `size` entries out of a heap: the last one moves to its place and sinks."""
    last = size - 1
    reach, node = key[last], item[last]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= last:
            break
        right = below + 1
        if right < last and (
            key[right] < key[below] or (key[right] == key[below] and item[right] < item[below])
        ):
            below = right
        if reach < key[below] or (reach == key[below] and node <= item[below]):
            break
        key[at] = key[below]
        item[at] = item[below]
        at = below
    key[at] = reach
    item[at] = node


@compiled
def _settle(
    source: Int,
    mine: Int,
    limit: float,
    tiny: float,
    graph: EdgeRows,
    height: Floats,
    free: SmallInts,
    via: SmallInts,
    memory: BallMemory,
) -> int:
    """Dijkstra from `source` over the nodes labelled `mine`, as far as `limit`; how many were settled.

    A step u -> v over e costs length[e] + height[u] - height[v], with 0 for lengths below `tiny` and for
    v's free edge. Fills `reach`, `via` (the edge used; ties to the larger multiplicity, then the smaller
    id) and `settled`, nearest first. `reach` must be inf on entry where `label` is `mine`.
    """
    start, to, edge, length, multiplicity = graph
    label, reach, settled, key, item = memory
    reach[source] = 0.0
    via[source] = -1
    key[0] = 0.0
    item[0] = source
    size, count = np.int64(1), 0  # typed: numba would compile once more for the literal
    while size > 0:
        u, near = item[0], key[0]
        _pop(key, item, size)
        size -= 1
        if near != reach[u] or label[u] != mine:
            continue
        settled[count] = u
        count += 1
        label[u] = -1 - mine  # settled: put back below
        for k in range(start[u], start[u + 1]):
            v = to[k]
            if label[v] != mine:
                continue
            e = edge[k]
            step = length[e] if length[e] >= tiny else 0.0
            step = max(step + height[u] - height[v], 0.0) if free[v] != e else 0.0
            far = near + step
            if far > limit:
                continue
            if far < reach[v]:
                reach[v] = far
                via[v] = e
                _push(key, item, size, far, v)
                size += 1
            elif far == reach[v] and (
                multiplicity[e] > multiplicity[via[v]]
                or (multiplicity[e] == multiplicity[via[v]] and e < via[v])
            ):
                via[v] = e
    for i in range(count):
        label[settled[i]] = mine
    return count


@compiled
def _cut(
    count: Int, mine: Int, low: float, high: float, tiny: float, graph: EdgeRows, memory: BallMemory
) -> int:
    """How many settled nodes to keep: the radius in low..high with the lightest boundary for its volume.

    Boundary: multiplicity over length of the edges that leave. Volume: multiplicity of the edges that
    touch. Ties to the smaller radius. The paper proves that a good radius is there; we take the best.
    """
    start, to, edge, length, multiplicity = graph
    label, reach, settled = memory.label, memory.reach, memory.settled
    boundary, volume, best, kept = 0.0, 0.0, np.inf, 0
    for i in range(count):
        u = settled[i]
        if reach[u] > high:
            break
        label[u] = -1 - mine
        for k in range(start[u], start[u + 1]):
            e = edge[k]
            if length[e] < tiny:
                continue
            if label[to[k]] == mine:
                boundary += multiplicity[e] / length[e]
                volume += multiplicity[e]
            elif label[to[k]] == -1 - mine:
                boundary -= multiplicity[e] / length[e]
        following = reach[settled[i + 1]] if i + 1 < count else np.inf
        if following > low and following > reach[u]:
            ratio = max(boundary, 0.0) / volume if volume > 0 else 0.0
            if kept == 0 or ratio < best:
                best = ratio
                kept = i + 1
    for i in range(count):
        label[settled[i]] = mine
    return kept


@compiled
def _middle(
    start: SmallInts,
    edge: SmallInts,
    ends: SmallInts,
    multiplicity: Floats,
    via: SmallInts,
    settled: SmallInts,
    below: Floats,
) -> int:
    """The centroid of a shortest-path tree: half of all edge ends, by multiplicity, are below it."""
    nodes = len(settled)
    total = 0.0
    for v in range(nodes):
        below[v] = 0.0
        for k in range(start[v], start[v + 1]):
            below[v] += multiplicity[edge[k]]
        total += below[v]
    at = nodes - 1
    while at > 0 and 2 * below[settled[at]] < total:
        u = settled[at]
        below[ends[via[u], 0] + ends[via[u], 1] - u] += below[u]
        at -= 1
    return np.int64(settled[at])  # type: ignore[return-value]


@compiled
def _star_tree(
    nodes: Int, ends: SmallInts, length: Floats, multiplicity: Floats, spread: float, chosen: SmallInts
) -> int:
    """Fill the edges of the tree; how many: fewer than nodes - 1 when the graph is not connected.

    Parts wait on a stack as ranges of `member` with a centre each; a node's label is its part.
    """
    arcs = 2 * len(ends)
    start = np.empty(nodes + 1, np.int32)
    to = np.empty(arcs, np.int32)
    edge = np.empty(arcs, np.int32)
    _rows(nodes, ends, start, to, edge)
    key = np.empty(arcs + 1)
    item = np.empty(arcs + 1, np.int32)
    label = np.zeros(nodes, np.int32)
    flat = np.zeros(nodes)
    none = np.empty(nodes, np.int32)
    reach = np.empty(nodes)
    height = np.empty(nodes)
    via = np.empty(nodes, np.int32)
    above = np.empty(nodes, np.int32)
    member = np.empty(nodes, np.int32)
    settled = np.empty(nodes, np.int32)
    rest = np.empty(nodes, np.int32)
    graph = EdgeRows(start, to, edge, length, multiplicity)
    memory = BallMemory(label, reach, settled, key, item)
    part = np.empty((nodes + 1, 4), np.int64)  # begin, end, centre, label
    for v in range(nodes):
        none[v] = -1
        reach[v] = np.inf
    shortest = np.inf
    for e in range(len(ends)):
        shortest = min(shortest, length[e])
    # beta / n of the paper's section 5: what is shorter, by the radius, is contracted.
    share = np.log(4.0 / 3.0) / (2.0 * np.log(nodes + 32.0)) / nodes

    centre: Int = np.int64(0)
    for _ in range(2):
        count = _settle(centre, np.int64(0), np.inf, 0.0, graph, flat, none, via, memory)
        if count < nodes:
            return 0
        for v in range(nodes):
            reach[v] = np.inf
        centre = _middle(start, edge, ends, multiplicity, via, settled, height)
    for v in range(nodes):
        member[v] = v

    part[0, 0], part[0, 1], part[0, 2], part[0, 3] = 0, nodes, centre, 0
    waiting, labels, taken = 1, 1, 0
    while waiting > 0:
        waiting -= 1
        begin, end, centre, mine = part[waiting, 0], part[waiting, 1], part[waiting, 2], part[waiting, 3]
        tiny = 0.0
        for attempt in range(2):
            for i in range(begin, end):
                reach[member[i]] = np.inf
            count = _settle(centre, mine, np.inf, tiny, graph, flat, none, above, memory)
            radius = reach[settled[count - 1]]
            if attempt == 1 or shortest >= radius * share:
                break
            tiny = radius * share
        kept = _cut(count, mine, radius / 3, radius * 2 / 3, tiny, graph, memory)
        for i in range(count):
            v = settled[i]
            member[begin + i] = v
            height[v] = reach[v]
            reach[v] = np.inf
            if i < kept:
                label[v] = labels
        if kept > 1:
            part[waiting, 0], part[waiting, 1], part[waiting, 2] = begin, begin + kept, centre
            part[waiting, 3] = labels
            waiting += 1
        ball = labels
        labels += 1
        filled = begin + kept
        for i in range(kept, count):
            anchor = np.int64(member[begin + i])
            if label[anchor] != mine:
                continue
            bridge = above[anchor]
            inner = ends[bridge, 0] + ends[bridge, 1] - anchor
            if label[inner] != ball:
                continue
            size = _settle(anchor, mine, radius * spread, tiny, graph, height, above, via, memory)
            cone = _cut(size, mine, 0.0, radius * spread, tiny, graph, memory)
            chosen[taken] = bridge
            taken += 1
            for j in range(size):
                v = settled[j]
                reach[v] = np.inf
                if j < cone:
                    label[v] = labels
                    rest[filled + j] = v
            if cone > 1:
                part[waiting, 0], part[waiting, 1], part[waiting, 2] = filled, filled + cone, anchor
                part[waiting, 3] = labels
                waiting += 1
            labels += 1
            filled += cone
        for i in range(begin + kept, end):
            member[i] = rest[i]
    return taken


@compiled
def _akpw(
    ends: SmallInts,
    worth: Floats,
    multiplicity: Floats,
    by_worth: SmallInts,
    first: SmallInts,
    ratio: float,
    share: float,
    chosen: SmallInts,
) -> int:
    """Fill the edges of the tree; how many: fewer than nodes - 1 when the graph is not connected.

    A round takes in the next class of `worth` (length over multiplicity), drops edges inside a cluster,
    grows pieces of clusters hop by hop until their boundary is light, and merges each piece.
    """
    nodes = len(first)
    cluster = np.empty(nodes, np.int32)
    live = np.empty(len(ends), np.int32)
    head = np.empty(nodes, np.int32)
    following = np.empty(2 * len(ends), np.int32)
    piece = np.empty(nodes, np.int32)
    layer = np.empty(nodes, np.int32)
    via = np.empty(nodes, np.int32)
    queue = np.empty(nodes, np.int32)
    memory = PieceMemory(cluster, live, head, following, piece, layer, via, queue)
    for v in range(nodes):
        cluster[v] = v
    alive, read, clusters = 0, 0, nodes
    taken: Int = np.int64(0)
    bound = worth[by_worth[0]] if len(by_worth) > 0 else 1.0
    while clusters > 1:
        bound *= ratio
        if alive == 0 and read < len(by_worth):
            bound = max(bound, worth[by_worth[read]] * ratio)
        while read < len(by_worth) and worth[by_worth[read]] <= bound:
            live[alive] = by_worth[read]
            alive += 1
            read += 1
        for c in range(clusters):
            head[c] = -1
            piece[c] = -1
        kept = 0
        for i in range(alive):
            e = live[i]
            a, b = cluster[ends[e, 0]], cluster[ends[e, 1]]
            if a != b:
                following[2 * kept] = head[a]
                head[a] = 2 * kept
                following[2 * kept + 1] = head[b]
                head[b] = 2 * kept + 1
                live[kept] = e
                kept += 1
        alive = kept
        if alive == 0:
            if read == len(by_worth):
                return int(taken)
            continue
        pieces = np.int64(0)
        for order in range(nodes):
            seed = np.int64(cluster[first[order]])
            if piece[seed] >= 0:
                continue
            taken = _grow(seed, pieces, ends, multiplicity, memory, share, chosen, taken)
            pieces += 1
        for v in range(nodes):
            cluster[v] = piece[cluster[v]]
        clusters = int(pieces)
    return int(taken)


@compiled
def _grow(
    seed: Int,
    mine: Int,
    ends: SmallInts,
    multiplicity: Floats,
    memory: PieceMemory,
    share: float,
    chosen: SmallInts,
    taken: Int,
) -> int:
    """Grow a piece around a cluster by whole layers, one at least where an edge leaves; edges taken so far.

    A cluster joins by its heaviest edge from the layer before, ties to the smaller id.
    """
    cluster, live, head, following, piece, layer, via, queue = memory
    piece[seed] = mine
    queue[0] = seed
    begin, end, depth = 0, 1, 0
    inside = 0.0
    while begin < end:
        boundary = 0.0
        reached = end
        for i in range(begin, end):
            u = queue[i]
            arc = head[u]
            while arc >= 0:
                e = live[arc >> 1]
                v = cluster[ends[e, 0]] + cluster[ends[e, 1]] - u
                if piece[v] == -1:
                    piece[v] = -2  # seen in this layer
                    via[v] = e
                    queue[reached] = v
                    reached += 1
                    boundary += multiplicity[e]
                elif piece[v] == -2:
                    boundary += multiplicity[e]
                    if multiplicity[e] > multiplicity[via[v]] or (
                        multiplicity[e] == multiplicity[via[v]] and e < via[v]
                    ):
                        via[v] = e
                elif piece[v] == mine and u < v and layer[v] == depth:
                    inside += multiplicity[e]
                arc = following[arc]
            layer[u] = depth
        join = depth == 0 or boundary > share * inside
        for i in range(end, reached):
            piece[queue[i]] = mine if join else -1
            if join:
                layer[queue[i]] = depth + 1
                chosen[taken] = via[queue[i]]
                taken += 1
        inside += boundary
        begin, end = (end, reached) if join else (reached, reached)
        depth += 1
    return int(taken)
