"""Steiner trees over an overlay: cheap trees, a bound from below, and the optimum of small sets.

Problem    Join a set of brokers (its root and its other terminals) by the links of least total weight.
Trees      `Steiner` grows one per set by Takahashi and Matsuyama (Math. Japonica 24, 1980): the terminal
           nearest to the tree joins it by a shortest path. At most 2 (1 - 1/k) times the optimum for k
           terminals when a link weighs the same both ways; no more than k - 1 times for `price`, where the
           tree leads away from the root. O(tree * k) look-ups after one search from every broker. With
           roots="insert" local search follows, which closes most of the gap: name one more broker that
           must join, or one fewer, and grow again while that is cheaper.
Bounds     `dual_ascent` is Wong's (Math. Programming 28, 1984): what no tree can beat, in any direction of
           payment. `lower_bounds` does the same block by block (`blocks.py`), which is faster and on
           average tighter.
Optimum    `exact_cost` by Dreyfus and Wagner (Networks 1, 1971), for up to 12 terminals besides the root.

Owns checking and meaning; the loops are in `steiner_kernels.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError, LimitError, OverlayError
from ramify.network.graphs.distances import Weight, all_pairs, arc_weights
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.blocks import Blocks, Parts, checked, closed, split
from ramify.network.trees.steiner_kernels import (
    GraphArcs,
    SearchMemory,
    TreeLinks,
    ascend_sets,
    better_trees,
    dreyfus_wagner,
    emit_trees,
    grow_trees,
    measure_trees,
    tree_scratch,
)
from ramify.network.trees.terminals import TerminalSets

__all__ = [
    "MAX_EXACT_TERMINALS",
    "Roots",
    "Steiner",
    "SteinerTrees",
    "dual_ascent",
    "exact_cost",
    "lower_bounds",
]

Roots = Literal["first", "all", "blocks", "insert"]
"""Where a tree starts to grow.

`first`: at the set's root. `all`: at whichever terminal makes it cheapest. `blocks`: block by block (see
`blocks.py`), in each at whichever terminal makes that part cheapest. `insert`: at the set's root, and
again with other brokers among its terminals as long as that makes it cheaper.
"""

MAX_EXACT_TERMINALS = 12
"""Terminals besides the root that `exact_cost` accepts: each one more takes three times as long."""

MAX_EXACT_ENTRIES = 100_000_000
"""Table entries that `exact_cost` accepts: 800 MB."""


@dataclass(frozen=True, slots=True)
class SteinerTrees:
    """A tree per set: the links of tree `i` are `start[i]:start[i + 1]`, none for a set of one broker.

    Each link leads from `parent` to `child`, away from the set's root; every parent is the root or an
    earlier child of the same tree. `link` is the overlay's number of it, `cost` the sum of the weights.
    """

    cost: npt.NDArray[np.float64]
    start: npt.NDArray[np.int64]
    parent: npt.NDArray[np.int32]
    child: npt.NDArray[np.int32]
    link: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """How many trees there are."""
        return len(self.cost)


@dataclass(frozen=True, slots=True, eq=False)
class Steiner:
    """Trees over one overlay by one weight; make it with `Steiner.of`, use it for many sets.

    `distance[i, j]` is from broker `i` to broker `j`, `predecessor[i, j]` the broker before `j` on the way.
    Hops take 4 bytes per pair (100 MB at 5,000 brokers), the other weights 10 (250 MB): they stay doubles,
    so that rounding does not make ties of what the predecessors tell apart.
    """

    overlay: Overlay
    weight: Weight
    distance: npt.NDArray[Any]
    predecessor: npt.NDArray[Any]
    arc_weight: npt.NDArray[np.float64]
    blocks: Blocks

    @classmethod
    def of(cls, overlay: Overlay, weight: Weight = "hops") -> Self:
        """Search from every broker. `DisconnectedError` unless all reach each other."""
        arcs = closed(arc_weights(overlay, weight), np.float64)
        blocks = Blocks.of(overlay)
        found = all_pairs(overlay, weight)
        return cls(overlay, weight, found.distance, found.predecessor, arcs, blocks)

    def costs(self, sets: TerminalSets, roots: Roots = "first") -> npt.NDArray[np.float64]:
        """What each set's tree costs, every link once.

        "all" grows a tree from each terminal in turn and keeps the cheapest (the earliest of equals): k
        times the work for about one percent. It has no meaning for `price`, where only the root pays.
        "blocks" takes about as long as "all" or less (a third at 5,000 brokers) and is on average cheaper
        still; by `price` it starts each part where the set's root enters it.
        "insert" is never dearer than "first", for any weight. By `price` it is by far the cheapest.
        """
        if roots == "insert":
            return self._insert(sets, fill=False).cost
        if roots != "blocks":
            return self._measure(sets, roots)[0]
        parts = split(sets, self.blocks)
        return _gather(parts, self._measure(parts.sets, self._in_parts)[0], len(sets))

    def trees(self, sets: TerminalSets, roots: Roots = "first") -> SteinerTrees:
        """The trees themselves; `cost` is what `costs` says. Up to three times its time."""
        if roots == "insert":
            return self._insert(sets, fill=True)
        if roots != "blocks":
            return self._grow(sets, roots)
        parts = split(sets, self.blocks)
        pieces = self._grow(parts.sets, self._in_parts)
        first = np.searchsorted(parts.owner, np.arange(len(sets) + 1))
        cost = _gather(parts, pieces.cost, len(sets))
        return SteinerTrees(cost, pieces.start[first], pieces.parent, pieces.child, pieces.link)

    @property
    def _in_parts(self) -> Roots:
        return "first" if self.weight == "price" else "all"

    def _grow(self, sets: TerminalSets, roots: Roots) -> SteinerTrees:
        if roots == "first":
            return self._grow_once(sets)
        cost, size, chosen = self._measure(sets, roots)
        start = np.concatenate(([0], np.cumsum(size - 1))).astype(np.int64)
        links = TreeLinks(start, *np.empty((3, int(start[-1])), dtype=np.int32))
        given = checked(sets, len(self.overlay))
        emit_trees(self.distance, self.predecessor, self._arcs, *given, chosen, links)
        return SteinerTrees(cost, *links)

    def _grow_once(self, sets: TerminalSets) -> SteinerTrees:
        """Trees from the sets' own roots, in one pass, in arrays that grow with them."""
        search = (self.distance, self.predecessor, self._arcs, *checked(sets, len(self.overlay)))
        cost, start = np.empty(len(sets)), np.zeros(len(sets) + 1, dtype=np.int64)
        links = np.empty((3, 4 * len(sets.node) + len(self.overlay)), dtype=np.int32)
        done = 0
        while True:
            done = grow_trees(*search, done, cost, TreeLinks(start, *links))
            if done == len(sets):
                break
            links = np.concatenate((links, np.empty_like(links)), axis=1)
        parent, child, link = links[:, : int(start[-1])]
        return SteinerTrees(cost, start, parent, child, link)

    def _insert(self, sets: TerminalSets, *, fill: bool) -> SteinerTrees:
        """Trees by local search, their links only if asked for."""
        clock, stamps, work, worth = tree_scratch(len(self.overlay))
        near = np.empty(2 * len(self.overlay) + 1, dtype=self.distance.dtype)
        memory = SearchMemory(clock, stamps, near, work, worth)
        search = (self.distance, self.predecessor, self._arcs, *checked(sets, len(self.overlay)))
        cost, start = np.empty(len(sets)), np.zeros(len(sets) + 1, dtype=np.int64)
        for emit in (False, True) if fill else (False,):
            links = TreeLinks(start, *np.empty((3, int(start[-1]) if emit else 0), dtype=np.int32))
            better_trees(*search, memory, emit, cost, links)
        return SteinerTrees(cost, *links)

    def _measure(
        self, sets: TerminalSets, roots: Roots
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The cost of each set's tree, how many brokers it has, and at which terminal it starts."""
        if roots not in get_args(Roots):
            raise InputError(
                f"unknown choice of roots {roots!r}. Use one of: {', '.join(get_args(Roots))}."
            )
        if roots == "all" and self.weight == "price":
            raise InputError(
                "roots='all' has no meaning for the weight 'price': what a link costs depends on its "
                "direction, so a tree must grow from the set's root. Use 'first' or 'blocks', or the "
                "weight 'mean_price'."
            )
        cost = np.empty(len(sets), dtype=np.float64)
        size = np.empty(len(sets), dtype=np.int64)
        chosen = np.empty(len(sets), dtype=np.int32)
        given = checked(sets, len(self.overlay))
        search = (self.distance, self.predecessor, self._arcs, roots == "all")
        measure_trees(*search, *given, cost, size, chosen)
        return cost, size, chosen

    @property
    def _arcs(self) -> GraphArcs:
        rows, neighbor, link, _ = self.overlay.adjacency
        return GraphArcs(rows, neighbor, link, self.arc_weight, self.weight == "hops")


def dual_ascent(
    start: npt.NDArray[np.int32],
    neighbor: npt.NDArray[np.int32],
    arc_weight: npt.NDArray[np.float64],
    sets: TerminalSets,
) -> npt.NDArray[np.float64]:
    """For each set a weight that no arborescence from its root to its other terminals can be below.

    The graph is compressed rows, arcs out of node `i` in `start[i]:start[i + 1]`: `overlay.adjacency` and
    `arc_weights`. Weights may be zero. inf where the root does not reach a terminal. Work is proportional
    to what the growing cuts touch. Usually within a percent or two of the optimum; not guaranteed.
    """
    into = _incoming(start, neighbor, arc_weight)
    bound = np.empty(len(sets), dtype=np.float64)
    ascend_sets(*into, *checked(sets, len(start) - 1), bound)
    return bound


def lower_bounds(overlay: Overlay, sets: TerminalSets, weight: Weight = "price") -> npt.NDArray[np.float64]:
    """`dual_ascent` on a connected overlay, block by block: the cutting is exact, so the bound is as valid.

    On average slightly tighter than on the whole overlay. On transit-stub overlays it takes between as long
    and a thirtieth: most where sets are spread out and weights uneven.
    """
    blocks = Blocks.of(overlay)
    parts = split(sets, blocks)
    weights = arc_weights(overlay, weight)[blocks.arc]
    bound = dual_ascent(blocks.start, blocks.neighbor, weights, parts.apart(blocks))
    return _gather(parts, bound, len(sets))


def exact_cost(
    start: npt.NDArray[np.int32],
    neighbor: npt.NDArray[np.int32],
    arc_weight: npt.NDArray[np.float64],
    root: int,
    terminals: Iterable[int],
) -> float:
    """The least weight of an arborescence from `root` to `terminals`; inf when one is out of reach.

    O(3^k n) time and 8 * 2^k * n bytes for k terminals besides the root. Raises `LimitError` above
    `MAX_EXACT_TERMINALS` of them.
    """
    into = _incoming(start, neighbor, arc_weight)
    nodes = len(start) - 1
    sets = TerminalSets.of([(int(root), [int(t) for t in terminals])])
    others = checked(sets, nodes)[1][1:]
    if len(others) > MAX_EXACT_TERMINALS or nodes << len(others) > MAX_EXACT_ENTRIES:
        raise LimitError(
            f"the exact cost of {len(others)} terminals besides the root among {nodes} nodes: at most "
            f"{MAX_EXACT_TERMINALS} terminals and {MAX_EXACT_ENTRIES:,} entries (2^terminals * nodes) are "
            "feasible. Use a tree and dual_ascent to bracket it."
        )
    if not len(others):
        return 0.0
    best = np.empty((1 << len(others), nodes), dtype=np.float64)
    return dreyfus_wagner(*into, int(root), others, best)


def _gather(parts: Parts, value: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """What the parts of each set sum to."""
    return np.bincount(parts.owner, weights=value, minlength=count).astype(np.float64)


def _incoming(
    start: npt.NDArray[np.int32], neighbor: npt.NDArray[np.int32], arc_weight: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """The same arcs by the node they lead to: rows, tails, weights. O(m log m)."""
    nodes = len(start) - 1
    if nodes < 0 or start[0] != 0 or start[-1] != len(neighbor) or (np.diff(start) < 0).any():
        raise OverlayError("the rows of the graph do not fit its arcs. Use those of overlay.adjacency.")
    if len(arc_weight) != len(neighbor):
        raise OverlayError(f"{len(arc_weight)} weights for {len(neighbor)} arcs. Give one for each arc.")
    if len(neighbor) and not (neighbor.min() >= 0 and neighbor.max() < nodes):
        raise OverlayError(f"an arc leads to a node that is not there. Use 0..{nodes - 1}.")
    if not (np.isfinite(arc_weight) & (arc_weight >= 0)).all():
        raise OverlayError("an arc weight is negative or not a finite number. Use 0 or more.")
    order = np.argsort(neighbor, kind="stable")
    into = np.zeros(nodes + 1, dtype=np.int32)
    np.cumsum(np.bincount(neighbor, minlength=nodes), out=into[1:])
    tail = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(start))[order]
    return closed(into, np.int32), closed(tail, np.int32), closed(arc_weight[order], np.float64)
