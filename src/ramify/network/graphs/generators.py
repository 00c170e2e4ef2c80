"""Plain generated overlays: ring, line, star, full mesh, random graphs, points in a plane.

Owns the shapes that take one or two numbers. Transit-stub graphs and the papers' presets are in
`transit_stub.py`, the papers' worked examples in `examples.py`, clouds in `clouds.py`.

Every generator returns a connected overlay (one broker or none is connected too), is the same for the
same arguments, and takes its randomness as a seed or a `numpy.random.Generator`. Prices and latencies
are 1 unless said otherwise, so that price counts messages, as in the papers.
"""

import numpy as np
import numpy.typing as npt

from ramify.errors import OverlayError
from ramify.network.graphs.overlay import Overlay

__all__ = [
    "MAX_LINKS",
    "euclidean_mesh",
    "full_mesh",
    "line",
    "nearest_links",
    "random_overlay",
    "ring",
    "star",
]

MAX_LINKS = 5_000_000
"""Links that a generator agrees to make; a mistyped size then fails at once instead of filling memory."""

Seed = int | np.random.Generator


def ring(brokers: int, *, name: str | None = None) -> Overlay:
    """`brokers` nodes v0, v1, ... in a circle (two nodes: one link)."""
    _require(brokers, least=0)
    name = name or f"ring-{brokers}"
    if brokers < 3:
        return line(brokers, name=name)
    here = np.arange(brokers)
    return Overlay.from_arrays(name, _names(brokers), np.column_stack((here, (here + 1) % brokers)))


def line(brokers: int, *, name: str | None = None) -> Overlay:
    """`brokers` nodes v0, v1, ... one after the other."""
    _require(brokers, least=0)
    here = np.arange(max(brokers - 1, 0))
    return Overlay.from_arrays(
        name or f"line-{brokers}", _names(brokers), np.column_stack((here, here + 1))
    )


def star(brokers: int) -> Overlay:
    """A hub v0 and `brokers` - 1 leaves."""
    _require(brokers, least=1)
    leaves = np.arange(1, brokers)
    return Overlay.from_arrays(
        f"star-{brokers}", _names(brokers), np.column_stack((np.zeros_like(leaves), leaves))
    )


def full_mesh(brokers: int) -> Overlay:
    """Every pair of `brokers` nodes joined."""
    _require(brokers, least=0, links=brokers * (brokers - 1) // 2)
    pairs = np.column_stack(np.triu_indices(brokers, k=1))
    return Overlay.from_arrays(f"mesh-{brokers}", _names(brokers), pairs)


def random_overlay(
    brokers: int,
    seed: Seed,
    *,
    links: int | None = None,
    mean_degree: float = 4.0,
    name: str | None = None,
) -> Overlay:
    """A connected random graph with exactly `links` links, or as many as make `mean_degree`.

    A random recursive tree, then distinct links drawn evenly from the other pairs: G(n, m) conditioned
    on holding that tree. O(n + m) expected for sparse graphs.
    """
    _require(brokers, least=0)
    most = brokers * (brokers - 1) // 2
    least = max(brokers - 1, 0)
    if links is None:
        links = min(max(round(brokers * mean_degree / 2), least), most)
    if not least <= links <= most:
        raise OverlayError(
            f"{brokers} brokers cannot be joined by {links} links. Ask for {least} (tree) to {most} (mesh)."
        )
    _require(brokers, least=0, links=links)
    pairs = random_links(brokers, links, np.random.default_rng(seed))
    return Overlay.from_arrays(name or f"random-{brokers}", _names(brokers), pairs)


def euclidean_mesh(
    brokers: int, seed: Seed, *, mean_price: float = 1.0, name: str | None = None
) -> Overlay:
    """A full mesh of random points in a square; price and latency grow with distance.

    Prices are `mean_price` on average. Distances obey the triangle inequality, which Zhao and Wu assume
    of link costs (section III-A).
    """
    from scipy.spatial.distance import pdist

    _require(brokers, least=0, links=brokers * (brokers - 1) // 2)
    point = np.random.default_rng(seed).random((brokers, 2))
    distance = pdist(point)
    price = distance * (mean_price / distance.mean()) if len(distance) else distance
    pairs = np.column_stack(np.triu_indices(brokers, k=1))
    return Overlay.from_arrays(
        name or f"plane-{brokers}", _names(brokers), pairs, price=price, latency_ms=distance * 100.0
    )


def nearest_links(distance: npt.NDArray[np.float64], nearest: int) -> npt.NDArray[np.int64]:
    """Pairs i < j where either is among the other's `nearest`, plus a minimum spanning tree over all.

    The tree is what keeps the result connected: nearest neighbours alone leave islands. Ties go to the
    smaller index. O(n^2 log n) for the n x n matrix `distance`.
    """
    count = len(distance)
    chosen = np.zeros((count, count), dtype=bool)
    away = distance + np.diag(np.full(count, np.inf))
    order = np.argsort(away, axis=1, kind="stable")[:, : min(nearest, max(count - 1, 0))]
    chosen[np.arange(count)[:, None], order] = True
    for i, j in _prim(away):
        chosen[i, j] = True
    return np.argwhere(np.triu(chosen | chosen.T, k=1))


def random_links(nodes: int, links: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A random recursive tree over shuffled nodes, and distinct further pairs up to `links`, ascending."""
    label = rng.permutation(nodes)
    taken = {
        (min(a, b), max(a, b))
        for a, b in ((int(label[i]), int(label[rng.integers(i)])) for i in range(1, nodes))
    }
    most = nodes * (nodes - 1) // 2
    if links > most // 2:
        # Dense: drawing until a free pair turns up would stall, so choose among the free ones.
        free = [
            pair
            for pair in zip(*map(np.ndarray.tolist, np.triu_indices(nodes, k=1)), strict=True)
            if pair not in taken
        ]
        taken.update(free[k] for k in rng.choice(len(free), links - len(taken), replace=False).tolist())
    while len(taken) < links:
        a, b = (int(x) for x in rng.integers(nodes, size=2))
        if a != b:
            taken.add((min(a, b), max(a, b)))
    return np.array(sorted(taken), dtype=np.int64).reshape(-1, 2)


def _prim(distance: npt.NDArray[np.float64]) -> list[tuple[int, int]]:
    """The pairs of a minimum spanning tree of a full matrix, grown from node 0."""
    count = len(distance)
    if count < 2:
        return []
    near = distance[0].copy()
    via = np.zeros(count, dtype=np.int64)
    outside = np.ones(count, dtype=bool)
    outside[0] = False
    pairs = []
    for _ in range(count - 1):
        node = int(np.argmin(np.where(outside, near, np.inf)))
        pairs.append((int(via[node]), node))
        outside[node] = False
        closer = outside & (distance[node] < near)
        near[closer] = distance[node][closer]
        via[closer] = node
    return pairs


def _names(count: int) -> list[str]:
    return [f"v{i}" for i in range(count)]


def _require(brokers: int, *, least: int, links: int = 0) -> None:
    if brokers < least:
        raise OverlayError(f"{brokers} brokers are too few for this shape. Ask for {least} or more.")
    if max(brokers, links) > MAX_LINKS:
        raise OverlayError(
            f"{brokers} brokers with {links} links are more than {MAX_LINKS:,}. Ask for fewer."
        )
