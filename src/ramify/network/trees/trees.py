"""Rooted trees over brokers: which links, in which order, and what a terminal set costs on them.

Owns the tree value, its validation, weighted depths with constant-time lowest common ancestors, and the
trees that need no demand beyond a price: shortest-path, minimum spanning, the best of all roots. It owns
no search for better trees (`swaps.py`, `lowstretch.py`). The loops are in `tree_kernels.py`.

A tree has symmetric lengths: what a set costs on it does not depend on which terminal sends. Where a link
costs more one way than the other, use `mean_price` here and hold the results against each other by
`directed_costs`.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramify.errors import OverlayError
from ramify.network.graphs.distances import Weight, all_pairs, arc_weights
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.tree_kernels import (
    OUTSIDE,
    costs_of_sets,
    depths,
    fill_meetings,
    kruskal,
    orient,
    preorder,
)

__all__ = [
    "MeasuredTree",
    "Tree",
    "best_root_spt",
    "closed",
    "directed_costs",
    "link_lengths",
    "measured",
    "minimum_spanning_tree",
    "same_both_ways",
    "shortest_path_tree",
    "tree_lengths",
]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

ROOT_BUDGET = 100_000_000
"""Steps that `best_root_spt` may spend: two or three seconds on one core."""
ROOTS_AT_ONCE = 128
"""Roots that are searched from at a time: bounds the memory, not the work."""
GAUGES = 64
"""Brokers whose distances rank the roots when not every root can be tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A rooted tree over brokers 0..n-1, or over some of them. Arrays are read-only.

    Attributes
    ----------
    root     its first broker
    parent   int32[n]: the broker above; -1 for the root, -2 for a broker that is not in the tree
    order    int32[k]: the brokers of the tree in preorder, children by ascending index
    """

    root: int
    parent: Ints
    order: Ints

    @classmethod
    def of_links(cls, nodes: int, ends: npt.ArrayLike, root: int) -> Self:
        """From undirected pairs int[k, 2]. `OverlayError` unless they are one tree with the root. O(n)."""
        pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
        if not 0 <= root < nodes:
            raise OverlayError(f"the root {root} is not a broker index. Use 0..{nodes - 1}.")
        outside = ((pairs < 0) | (pairs >= nodes)).any(axis=1)
        if outside.any():
            row = int(np.argmax(outside))
            raise OverlayError(
                f"tree link {row} joins {pairs[row, 0]} and {pairs[row, 1]}, outside 0..{nodes - 1}. "
                "Use indices of the brokers."
            )
        parent = np.empty(nodes, dtype=np.int32)
        # k links that reach k + 1 brokers are all needed to do so: they close no cycle, none is apart.
        if orient(closed(pairs, np.int32), root, parent) != len(pairs) + 1:
            raise _not_a_tree(nodes, pairs, root)
        return cls.of_parents(parent, root)

    @classmethod
    def of_parents(cls, parent: npt.ArrayLike, root: int) -> Self:
        """From the broker above each: -1 for the root, -2 outside the tree. `OverlayError` if no tree."""
        above = np.array(parent, dtype=np.int32)
        if not 0 <= root < len(above) or above[root] != -1:
            raise OverlayError(f"broker {root} is not the root of these parents. Give it the parent -1.")
        if above.max() >= len(above):
            raise OverlayError(f"parent {above.max()} is not a broker index. Use 0..{len(above) - 1}.")
        order = np.empty(len(above), dtype=np.int32)
        spare = np.empty((2, len(above)), dtype=np.int32)
        count = preorder(above, root, order, spare[0], spare[1])
        if count != np.count_nonzero(above != OUTSIDE):
            lost = np.setdiff1d(np.flatnonzero(above != OUTSIDE), order[:count])[0]
            raise OverlayError(
                f"broker {lost} does not hang from the root {root}. Join it or leave it out."
            )
        return cls(root, closed(above, np.int32), closed(order[:count].copy(), np.int32))

    def __len__(self) -> int:
        """How many brokers it joins."""
        return len(self.order)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return self.root == other.root and np.array_equal(self.parent, other.parent)

    def __hash__(self) -> int:
        return hash((self.root, self.parent.tobytes()))

    def links(self) -> Ints:
        """int32[k - 1, 2]: (parent, child) in preorder."""
        below = self.order[1:]
        return np.column_stack((self.parent[below], below))

    def rerooted(self, root: int) -> Self:
        """The same links hung from another of its brokers. O(n)."""
        if not 0 <= root < len(self.parent) or self.parent[root] == OUTSIDE:
            raise OverlayError(f"broker {root} is not in the tree. Choose a root among its own brokers.")
        parent = self.parent.copy()
        above, at = -1, root
        while at >= 0:
            following = int(self.parent[at])
            parent[at] = above
            above, at = at, following
        return type(self).of_parents(parent, root)

    def depth_hops(self) -> Ints:
        """int32[n]: links between each broker and the root; -1 for brokers not in the tree. O(n)."""
        return np.nan_to_num(MeasuredTree.of(self, np.ones(len(self.parent))).depth, nan=-1).astype(
            np.int32
        )


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredTree:
    """A tree with a length per link, ready for look-ups. Make it with `of` or `measured`; O(n log n).

    Attributes
    ----------
    tree      the links
    length    float64[n]: of the link from each broker's parent; not read for the root
    depth     float64[n]: the summed length from the root; nan for brokers not in the tree
    tin       int32[n]: the broker's position in preorder; -1 when not in the tree
    tout      int32[n]: past the last position of its sub-tree, which is tin[v]..tout[v] - 1
    by_rank   float64[k]: depth by position
    table     int32[levels, k]: ancestors, see `tree_kernels.fill_meetings`
    log       int32[k + 2]: whole logarithms of base 2
    """

    tree: Tree
    length: Floats
    depth: Floats
    tin: Ints
    tout: Ints
    by_rank: Floats
    table: Ints
    log: Ints

    @classmethod
    def of(cls, tree: Tree, length: npt.ArrayLike) -> Self:
        """Measure `tree` by float64[n] lengths, each of the link from the broker's parent."""
        lengths = np.array(length, dtype=np.float64)
        nodes, count = len(tree.parent), len(tree.order)
        if lengths.shape != (nodes,):
            raise OverlayError(f"{lengths.shape} lengths for {nodes} brokers. Give one per broker.")
        tin, tout = np.full(nodes, -1, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
        order = np.empty(count, dtype=np.int32)
        parent = tree.parent.copy()  # writable, as in `swaps`: see `tree_kernels`
        preorder(parent, tree.root, order, tin, tout)
        by_rank = np.empty(count)
        depths(order, parent, tin, lengths, by_rank)
        table = np.empty((count.bit_length(), count), dtype=np.int32)
        log = np.empty(count + 2, dtype=np.int32)
        fill_meetings(order, parent, tin, table, log)
        depth = np.full(nodes, np.nan)
        depth[order] = by_rank
        for array in (lengths, depth, tin, tout, by_rank, table, log):
            array.setflags(write=False)
        return cls(tree, lengths, depth, tin, tout, by_rank, table, log)

    def costs(self, sets: TerminalSets) -> Floats:
        """float64[s]: the length of the smallest sub-tree that joins each set. O(k log k) per set.

        Exact up to rounding of depths. Raises `OverlayError` when a terminal is not in the tree.
        """
        self._require(sets.node)
        cost = np.empty(len(sets))
        at = costs_of_sets(
            closed(sets.start, np.int64),
            closed(sets.node, np.int32),
            self.tin,
            self.by_rank,
            self.table,
            self.log,
            cost,
        )
        if at >= 0:
            raise OverlayError(
                f"terminal set {at} has a broker that the tree does not join. Span all brokers."
            )
        return cost

    def total(self, sets: TerminalSets) -> float:
        """The sum of weight times cost over the sets."""
        return float(self.costs(sets) @ sets.weight)

    def lca(self, u: npt.ArrayLike, v: npt.ArrayLike) -> Ints:
        """The lowest common ancestors of brokers, element by element. O(1) each."""
        a, b = self._positions(u), self._positions(v)
        low, high = np.minimum(a, b), np.maximum(a, b)
        level = self.log[high - low]
        # Where low == high both look-ups would leave the range: any valid place does, it is not used.
        left = self.table[level, np.minimum(low + 1, high)]
        right = self.table[level, np.minimum(high + 1 - (1 << level), high)]
        found: Ints = self.tree.order[np.where(low == high, low, np.minimum(left, right))]
        return found

    def distance(self, u: npt.ArrayLike, v: npt.ArrayLike) -> Floats:
        """The length of the path between brokers, element by element. O(1) each."""
        meet = self.lca(u, v)
        along: Floats = self.depth[np.asarray(u)] + self.depth[np.asarray(v)] - 2 * self.depth[meet]
        return along

    def _positions(self, brokers: npt.ArrayLike) -> Ints:
        at = np.asarray(brokers)
        self._require(at)
        position: Ints = self.tin[at]
        if np.any(position < 0):
            raise OverlayError("a broker is not in the tree. Choose from the tree's own.")
        return position

    def _require(self, brokers: npt.NDArray[Any]) -> None:
        if brokers.size and not (brokers.min() >= 0 and brokers.max() < len(self.tin)):
            raise OverlayError(f"a broker index is outside 0..{len(self.tin) - 1}. Use the overlay's own.")


def measured(overlay: Overlay, tree: Tree, weight: Weight) -> MeasuredTree:
    """A tree of overlay links with their lengths."""
    return MeasuredTree.of(tree, tree_lengths(overlay, tree, weight))


def tree_lengths(overlay: Overlay, tree: Tree, weight: Weight) -> Floats:
    """float64[n]: the weight of the link from each broker's parent, 0 for the root and outside the tree.

    `price` is of the direction away from the root. Raises `OverlayError` when no link is there. O(n log m).
    """
    start, neighbor, _, _ = overlay.adjacency
    nodes = len(overlay)
    if len(tree.parent) != nodes:
        raise OverlayError(
            f"a tree over {len(tree.parent)} brokers, an overlay of {nodes}. Use its own trees."
        )
    key = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(start)) * nodes + neighbor
    above, below = tree.links().astype(np.int64).T
    arc = np.minimum(np.searchsorted(key, above * nodes + below), max(len(key) - 1, 0))
    missing = key[arc] != above * nodes + below if len(key) else np.ones(len(below), dtype=bool)
    if missing.any():
        row = int(np.argmax(missing))
        raise OverlayError(
            f"no link joins {overlay.brokers[above[row]]} and {overlay.brokers[below[row]]} in overlay "
            f"{overlay.name}. Use trees of its links."
        )
    length = np.zeros(nodes)
    length[below] = arc_weights(overlay, weight)[arc] if len(arc) else 0.0
    return length


def same_both_ways(overlay: Overlay) -> bool:
    """Whether every link costs the same in both directions."""
    return np.array_equal(overlay.price[:, 0], overlay.price[:, 1])


def directed_costs(overlay: Overlay, tree: Tree, sets: TerminalSets, sender: npt.ArrayLike) -> Floats:
    """float64[s]: what each set costs when `sender`, one of its brokers, publishes, by the way travelled.

    Only the links between the sender and the highest broker of the set's sub-tree are crossed upward.
    """
    turned = Overlay(
        overlay.name, overlay.brokers, overlay.ends, overlay.price[:, ::-1], overlay.latency_ms
    )
    down, up = tree_lengths(overlay, tree, "price"), tree_lengths(turned, tree, "price")
    downward = MeasuredTree.of(tree, down)
    position = downward.tin[sets.node]
    leftmost = tree.order[np.minimum.reduceat(position, sets.start[:-1])]
    rightmost = tree.order[np.maximum.reduceat(position, sets.start[:-1])]
    top = downward.lca(leftmost, rightmost)
    further = MeasuredTree.of(tree, up - down).depth
    cost: Floats = downward.costs(sets) + further[np.asarray(sender)] - further[top]
    return cost


def shortest_path_tree(overlay: Overlay, root: int, weight: Weight) -> Tree:
    """The shortest paths from `root` to all it reaches; ties to the smallest predecessor. O(m log n)."""
    found = all_pairs(overlay, weight, sources=[root])
    parent = found.predecessor[0].astype(np.int32)
    parent[found.distance[0] == found.far] = OUTSIDE
    return Tree.of_parents(parent, root)


def minimum_spanning_tree(overlay: Overlay, weight: Weight) -> Tree:
    """Kruskal's tree, ties to the smaller link id, rooted at broker 0. O(m log m).

    `weight` is hops, mean_price or latency: a price per direction has no undirected tree. Raises
    `DisconnectedError` when the overlay is not connected.
    """
    overlay.require_connected()
    order = np.argsort(link_lengths(overlay, weight), kind="stable")
    chosen = np.empty(max(len(overlay) - 1, 0), dtype=np.int32)
    kruskal(overlay.ends, closed(order, np.int64), len(overlay), chosen)
    return Tree.of_links(len(overlay), overlay.ends[chosen], 0)


def best_root_spt(
    overlay: Overlay, sets: TerminalSets, weight: Weight, *, budget: int = ROOT_BUDGET
) -> Tree:
    """The shortest-path tree on which the sets cost least by weight; ties to the smaller root.

    Every root is tried when that takes at most `budget` steps, n (4 n + terminals) in all. Else
    as many as it allows, those first whose distances to the `GAUGES` brokers of most demand, summed by
    demand, are smallest: there is no randomness. At least one root is tried. Raises `DisconnectedError`.
    """
    overlay.require_connected()
    if weight == "price":
        raise OverlayError("sets have no undirected cost by price. Use mean_price, hops or latency.")
    nodes = len(overlay)
    _require_root(nodes)
    affordable = max(1, budget // (4 * nodes + len(sets.node)))
    roots = np.arange(nodes, dtype=np.int32)
    if affordable < nodes:
        roots = np.sort(_central(overlay, sets, weight)[:affordable])
    total = np.zeros(nodes)
    for at in range(0, len(roots), ROOTS_AT_ONCE):
        part = roots[at : at + ROOTS_AT_ONCE]
        total[part] = _priced(overlay, sets, weight, part)
    return shortest_path_tree(overlay, int(roots[np.argmin(total[roots])]), weight)


def link_lengths(overlay: Overlay, weight: Weight) -> Floats:
    """float64[m]: the weight of each link, the same both ways. `OverlayError` for `price`, which is not."""
    match weight:
        case "hops":
            return np.ones(len(overlay.ends))
        case "mean_price":
            mean: Floats = overlay.price.mean(axis=1)
            return mean
        case "latency":
            return overlay.latency_ms
        case _:
            raise OverlayError(
                f"links have no length by {weight!r}. Use one of: hops, mean_price, latency."
            )


def closed(values: npt.ArrayLike, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A contiguous read-only view of `values` (a copy when the type differs), as kernels expect it."""
    view = np.ascontiguousarray(values, dtype=dtype).view()
    view.setflags(write=False)
    return view


def _require_root(nodes: int) -> None:
    if nodes == 0:
        raise OverlayError("a tree needs a root, and the overlay has no brokers. Add one.")


def _not_a_tree(nodes: int, pairs: npt.NDArray[np.int64], root: int) -> OverlayError:
    """Which pair closes a cycle, or else which is cut off from the root."""
    part = list(range(nodes))

    def top(v: int) -> int:
        while part[v] != v:
            part[v] = part[part[v]]
            v = part[v]
        return v

    for row, (a, b) in enumerate(pairs.tolist()):
        if top(a) == top(b):
            return OverlayError(f"tree link {row} joins {a} and {b} a second time: a cycle. Leave it out.")
        part[top(a)] = top(b)
    for row, (a, b) in enumerate(pairs.tolist()):
        if top(a) != top(root):
            return OverlayError(f"tree link {row}, {a} and {b}, is cut off from the root {root}. Join it.")
    raise AssertionError("these pairs are a tree")


def _priced(overlay: Overlay, sets: TerminalSets, weight: Weight, roots: Ints) -> Floats:
    """What the sets cost on the shortest-path tree of each root."""
    found = all_pairs(overlay, weight, sources=roots.tolist())
    total = np.empty(len(roots))
    for row, root in enumerate(roots.tolist()):
        parent, distance = found.predecessor[row], found.distance[row].astype(np.float64)
        length = distance - distance[np.maximum(parent, 0)]
        total[row] = MeasuredTree.of(Tree.of_parents(parent, root), length).total(sets)
    return total


def _central(overlay: Overlay, sets: TerminalSets, weight: Weight) -> Ints:
    """All brokers, nearest to the demand first."""
    demand = np.bincount(
        sets.node, weights=np.repeat(sets.weight, np.diff(sets.start)), minlength=len(overlay)
    )
    gauges = np.argsort(-demand, kind="stable")[:GAUGES]
    found = all_pairs(overlay, weight, sources=gauges.tolist())
    nearness = demand[found.sources] @ found.distance.astype(np.float64)
    return np.argsort(nearness, kind="stable").astype(np.int32)
