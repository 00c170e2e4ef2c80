"""Ways between brokers that no link joins, or none so short: distances, and the paths of logical links.

Owns all-pairs distances by an undirected weight, and the collection of `Plan.paths` for the pairs that a
plan sends between. A pair whose own link is as short as any path needs no path of its own.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from ramify.memo import derived
from ramify.network.graphs.distances import Distances, all_pairs, arc_weights
from ramify.network.graphs.overlay import Overlay
from ramify.planning.plans.plan import Path
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.shared.rings import ring_steps, without_loops

__all__ = ["Length", "Ways", "distances_of"]

Length = Literal["latency", "mean_price", "hops"]
"""What brokers are near by: the same both ways."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


def distances_of(problem: Problem, weight: Length) -> Distances:
    """All pairs by a weight, computed once per problem."""
    kept = derived(problem, "_kyra_distances", dict[Length, Distances])
    if weight not in kept:
        kept[weight] = all_pairs(problem.overlay, weight)
    return kept[weight]


class Ways:
    """Distances and the paths that were asked for.

    Attributes
    ----------
    distance    float64[n, n], symmetric
    paths       for `Plan.paths`: those of `join`ed pairs that need one
    """

    def __init__(self, problem: Problem, weight: Length = "latency") -> None:
        found = distances_of(problem, weight)
        self._found = found
        self._overlay: Overlay = problem.overlay
        self._weight = weight
        # a sum of the same links in another order may differ by a rounding
        self.distance: Floats = np.minimum(found.distance, found.distance.T).astype(np.float64)
        self.paths: dict[tuple[int, int], Path] = {}
        self._rings: dict[int, tuple[int, ...]] = {}

    def ring(self, members: Sequence[int]) -> None:
        """From now on these reach one another by the fingers of a ring only, in this order."""
        ring = tuple(int(broker) for broker in members)
        for broker in ring:
            self._rings[broker] = ring

    def join(self, u: Iterable[int] | Ints, v: Iterable[int] | Ints) -> None:
        """Make sure that each u and each v can be a logical link, both ways. O(path) per new pair."""
        low, high = np.asarray(u, dtype=np.int64), np.asarray(v, dtype=np.int64)
        low, high = np.minimum(low, high), np.maximum(low, high)
        apart = low != high
        pairs = np.unique(low[apart] * len(self.distance) + high[apart])
        a, b = pairs // len(self.distance), pairs % len(self.distance)
        if not self._rings:  # most pairs of a dense overlay are linked by their shortest path
            direct = self._found.predecessor[a, b] == a
            a, b = a[~direct], b[~direct]
        for i, j in zip(a.tolist(), b.tolist(), strict=True):
            self._join(i, j)

    def _join(self, i: int, j: int) -> None:
        if (i, j) in self.paths:
            return
        ring = self._rings.get(i)
        if ring is not None and j in ring:
            # the way back has other fingers, so both are kept, links too
            for u, v in ((i, j), (j, i)):
                steps = pairwise(ring_steps(u, v, ring))
                self.paths[u, v] = without_loops(x for a, b in steps for x in self._path(a, b))
            return
        path = self._path(i, j)
        if len(path) > 2:
            self.paths[i, j] = path

    def _path(self, u: int, v: int) -> Path:
        """The shortest way: the link itself where none is shorter. The same brokers in both directions."""
        i, j = min(u, v), max(u, v)
        length = self._link_length(i, j)
        path = [i, j] if length <= self.distance[i, j] * (1 + 1e-12) else self._found.path(i, j)
        return tuple(path if u == i else path[::-1])

    def _link_length(self, i: int, j: int) -> float:
        """Of the link between two brokers; inf without one."""
        start, neighbor, _, _ = self._overlay.adjacency
        first, end = int(start[i]), int(start[i + 1])
        at = first + int(np.searchsorted(neighbor[first:end], j))
        if at == end or neighbor[at] != j:
            return float("inf")
        return float(self._arc_weights[at])

    @cached_property
    def _arc_weights(self) -> Floats:
        return arc_weights(self._overlay, self._weight)
