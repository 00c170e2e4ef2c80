"""Shortest paths between brokers: by hops, by price, by latency, with the path and not only its length.

Owns distances and predecessors over an overlay, and the figures that describe one (mean degree,
diameter). The loops are in `kernels.py`.

Ties are broken the same way everywhere: the predecessor of `v` is the smallest broker index among those
that can come just before `v` on a shortest path (with zero weights: among those settled before `v`). So
two runs, or two machines, plan the same trees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ramify.errors import LimitError, OverlayError
from ramify.network.graphs.kernels import THREADS_FROM, bfs, bfs_parallel, dijkstra, dijkstra_parallel
from ramify.network.graphs.overlay import Overlay

__all__ = ["Distances", "Figures", "Weight", "all_pairs", "arc_weights", "figures"]

Weight = Literal["hops", "price", "mean_price", "latency"]
"""What a path sums: links; price in the direction travelled; the mean of both prices; milliseconds."""

DISTANCE_ENTRIES = 1_000_000_000
"""Rows times brokers that `all_pairs` agrees to hold: 4 GB of hops, 10 GB of prices."""


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances and predecessors from `sources`, one row each, to every broker.

    `distance[r, v]` is from `sources[r]` to `v`, in the direction of travel. Unreachable is the largest
    value of the type (`far`): 32767 for int16, inf for floats. `predecessor[r, v]` is the broker before
    `v` on the path, -1 for the source itself and for what is unreachable. Arrays are read-only.
    """

    weight: Weight
    sources: npt.NDArray[np.int32]
    distance: npt.NDArray[Any]
    predecessor: npt.NDArray[Any]

    @property
    def far(self) -> float:
        """The value of `distance` that means unreachable."""
        kind = self.distance.dtype
        return float(np.iinfo(kind).max) if kind.kind == "i" else np.inf

    def row(self, source: int) -> int:
        """The row of a source broker. Raises `OverlayError` when it was not searched from. O(log rows)."""
        at = int(np.searchsorted(self.sources, source))
        if at == len(self.sources) or self.sources[at] != source:
            raise OverlayError(
                f"broker {source} is not among the sources. Ask for it in all_pairs(sources=...)."
            )
        return at

    def between(self, i: int, j: int) -> float:
        """The distance from broker `i` to broker `j`; inf when unreachable."""
        value = float(self.distance[self.row(i), j])
        return np.inf if value == self.far else value

    def path(self, i: int, j: int) -> list[int]:
        """The brokers from `i` to `j`, both included; just `[i]` when they are the same."""
        row = self.predecessor[self.row(i)]
        if i != j and row[j] < 0:
            raise OverlayError(f"no path leads from broker {i} to broker {j}. Join their components first.")
        path = [j]
        while path[-1] != i:
            path.append(int(row[path[-1]]))
        path.reverse()
        return path


@dataclass(frozen=True, slots=True)
class Figures:
    """What an overlay looks like, for reports: counts, and hop distances over connected pairs."""

    brokers: int
    links: int
    components: int
    mean_degree: float
    diameter_hops: int
    mean_hops: float


def all_pairs(
    overlay: Overlay,
    weight: Weight = "hops",
    *,
    sources: Iterable[int] | None = None,
    dtype: type[np.float32] | type[np.float64] = np.float64,
) -> Distances:
    """Shortest paths from every broker, or from `sources` only (each row once, ascending).

    Hops: a breadth-first search per source, O(n + m) each, int16 (int32 above 32,767 brokers). Others:
    Dijkstra with a binary heap, O(m log n) each, kept as `dtype` (sums are double either way). Price is
    directed: `distance[i, j]` and `distance[j, i]` may differ. Raises `LimitError` before it would take
    more than `DISTANCE_ENTRIES` entries, `OverlayError` on an unknown weight or source.
    """
    count = len(overlay)
    rows = np.arange(count, dtype=np.int32) if sources is None else _sources(sources, count)
    if len(rows) * count > DISTANCE_ENTRIES:
        raise LimitError(
            f"all pairs of {count} brokers from {len(rows)} sources are {len(rows) * count:,} entries, "
            f"more than {DISTANCE_ENTRIES:,}. Search from fewer sources at a time."
        )
    narrow = np.int16 if count <= np.iinfo(np.int16).max else np.int32
    distance = np.empty((len(rows), count), dtype=narrow if weight == "hops" else dtype)
    predecessor = np.empty((len(rows), count), dtype=narrow)
    start, neighbor, _, _ = overlay.adjacency
    work = len(rows) * (len(neighbor) + count)
    if weight == "hops":
        search = bfs_parallel if work > THREADS_FROM else bfs
        search(rows, start, neighbor, distance, predecessor, int(np.iinfo(narrow).max))
    else:
        weighted = dijkstra_parallel if work > THREADS_FROM else dijkstra
        weighted(rows, start, neighbor, arc_weights(overlay, weight), distance, predecessor)
    for array in (rows, distance, predecessor):
        array.setflags(write=False)
    return Distances(weight, rows, distance, predecessor)


def arc_weights(overlay: Overlay, weight: Weight) -> npt.NDArray[np.float64]:
    """float64 per arc of `overlay.adjacency`, in its order."""
    _, neighbor, link, direction = overlay.adjacency
    match weight:
        case "hops":
            return np.ones(len(neighbor))
        case "price":
            there: npt.NDArray[np.float64] = overlay.price[link, direction]
            return there
        case "mean_price":
            mean: npt.NDArray[np.float64] = (overlay.price[link, 0] + overlay.price[link, 1]) / 2
            return mean
        case "latency":
            wait: npt.NDArray[np.float64] = overlay.latency_ms[link]
            return wait
        case _:
            raise OverlayError(f"unknown weight {weight!r}. Use one of: {', '.join(get_args(Weight))}.")


def figures(overlay: Overlay) -> Figures:
    """Realised counts, mean degree, diameter and mean distance in hops. O(n (n + m)), 4 n^2 bytes."""
    count = len(overlay)
    hops = all_pairs(overlay)
    reached = hops.distance[hops.distance != hops.far]
    pairs = len(reached) - count
    return Figures(
        brokers=count,
        links=len(overlay.ends),
        components=len(overlay.components()),
        mean_degree=2 * len(overlay.ends) / count if count else 0.0,
        diameter_hops=int(reached.max(initial=0)),
        mean_hops=float(reached.sum(dtype=np.int64) / pairs) if pairs else 0.0,
    )


def _sources(sources: Iterable[int], count: int) -> npt.NDArray[np.int32]:
    rows = np.unique(np.array(list(sources), dtype=np.int64))
    if len(rows) and not (rows[0] >= 0 and rows[-1] < count):
        outside = rows[0] if rows[0] < 0 else rows[-1]
        raise OverlayError(f"source {outside} is not a broker index. Use 0..{count - 1}.")
    return rows.astype(np.int32)
