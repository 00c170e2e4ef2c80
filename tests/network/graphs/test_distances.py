"""Distances against networkx on random graphs; ties, directions and unreachable brokers by hand."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import LimitError, OverlayError
from ramify.network.graphs import distances as module
from ramify.network.graphs import kernels
from ramify.network.graphs.distances import Weight, all_pairs, arc_weights, figures
from ramify.network.graphs.generators import line, random_overlay, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.transit_stub import transit_stub

WEIGHTS: list[Weight] = ["hops", "price", "mean_price", "latency"]


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    """Small overlays, connected or not, with many ties and with links that cost nothing."""
    count = draw(st.integers(1, 10))
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    chosen = draw(st.lists(st.sampled_from(pairs), unique_by=frozenset)) if pairs else []
    prices = st.integers(0, 3).map(float)
    return Overlay.build(
        "drawn",
        [f"v{i}" for i in range(count)],
        [Link(f"v{a}", f"v{b}", draw(prices), draw(prices), draw(prices)) for a, b in chosen],
    )


def oracle(overlay: Overlay, weight: Weight) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(overlay)))
    for (a, b), (there, back), ms in zip(
        overlay.ends.tolist(), overlay.price.tolist(), overlay.latency_ms.tolist(), strict=True
    ):
        mean = (there + back) / 2
        costs = {"hops": (1, 1), "price": (there, back), "mean_price": (mean, mean), "latency": (ms, ms)}[
            weight
        ]
        graph.add_edge(a, b, w=costs[0])
        graph.add_edge(b, a, w=costs[1])
    return graph


@settings(deadline=None)
@given(overlays(), st.sampled_from(WEIGHTS))
def test_distances_and_paths_are_shortest(overlay: Overlay, weight: Weight) -> None:
    graph = oracle(overlay, weight)
    found = all_pairs(overlay, weight)
    for i, expected in nx.all_pairs_dijkstra_path_length(graph, weight="w"):
        for j in range(len(overlay)):
            assert found.between(i, j) == expected.get(j, math.inf)
            if j in expected:
                path = found.path(i, j)
                assert (path[0], path[-1]) == (i, j)
                assert len(set(path)) == len(path)
                assert nx.path_weight(graph, path, "w") == expected[j]
            else:
                assert found.distance[i, j] == found.far
                assert found.predecessor[i, j] == -1
                with pytest.raises(OverlayError, match=f"from broker {i} to broker {j}"):
                    found.path(i, j)


@settings(deadline=None)
@given(overlays())
def test_the_predecessor_is_the_smallest_of_those_possible(overlay: Overlay) -> None:
    found = all_pairs(overlay)
    distance = np.where(found.distance == found.far, -9, found.distance)
    start, neighbor, _, _ = overlay.adjacency
    for i in range(len(overlay)):
        for j in range(len(overlay)):
            if i != j and distance[i, j] > 0:
                before = [
                    k for k in neighbor[start[j] : start[j + 1]] if distance[i, k] == distance[i, j] - 1
                ]
                assert found.predecessor[i, j] == min(before)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_threads_change_nothing(weight: Weight) -> None:
    overlay = transit_stub(120, 7)
    start, neighbor, _, _ = overlay.adjacency
    rows = np.arange(len(overlay), dtype=np.int32)
    plain = all_pairs(overlay, weight)
    distance, predecessor = np.empty_like(plain.distance), np.empty_like(plain.predecessor)
    if weight == "hops":
        kernels.bfs_parallel(rows, start, neighbor, distance, predecessor, np.iinfo(np.int16).max)
    else:
        arcs = arc_weights(overlay, weight)
        kernels.dijkstra_parallel(rows, start, neighbor, arcs, distance, predecessor)
    np.testing.assert_array_equal(distance, plain.distance)
    np.testing.assert_array_equal(predecessor, plain.predecessor)


def test_price_is_paid_by_the_sender() -> None:
    overlay = Overlay.build(
        "pair",
        "abc",
        [Link("a", "b", 1.0, 10.0, 1.0), Link("b", "c", 1.0, 10.0, 1.0), Link("a", "c", 5.0, 5.0, 1.0)],
    )
    priced = all_pairs(overlay, "price")
    assert (priced.between(0, 2), priced.path(0, 2)) == (2.0, [0, 1, 2])
    assert (priced.between(2, 0), priced.path(2, 0)) == (5.0, [2, 0])
    mean = all_pairs(overlay, "mean_price")
    assert mean.between(0, 2) == mean.between(2, 0) == 5.0


def test_rows_can_be_restricted() -> None:
    overlay = random_overlay(40, 3)
    every = all_pairs(overlay, "latency")
    some = all_pairs(overlay, "latency", sources=[9, 4, 9])
    assert some.sources.tolist() == [4, 9]
    np.testing.assert_array_equal(some.distance, every.distance[[4, 9]])
    np.testing.assert_array_equal(some.predecessor, every.predecessor[[4, 9]])
    assert some.path(9, 4) == every.path(9, 4)
    with pytest.raises(OverlayError, match="broker 5 is not among the sources"):
        some.path(5, 4)
    with pytest.raises(OverlayError, match="source 40 is not a broker index"):
        all_pairs(overlay, sources=[40])
    assert all_pairs(overlay, sources=[]).distance.shape == (0, 40)


def test_types_are_narrow_and_closed() -> None:
    hops = all_pairs(ring(9))
    assert hops.distance.dtype == hops.predecessor.dtype == np.int16
    single = all_pairs(ring(9), "price", dtype=np.float32)
    assert single.distance.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        hops.distance[0, 0] = 1
    wide = all_pairs(line(40_000), sources=[0])
    assert wide.distance.dtype == np.int32
    assert wide.between(0, 39_999) == 39_999


def test_empty_and_single_overlays_have_distances() -> None:
    for weight in WEIGHTS:
        assert all_pairs(line(0), weight).distance.shape == (0, 0)
        assert all_pairs(line(1), weight).path(0, 0) == [0]


def test_what_would_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISTANCE_ENTRIES", 80)
    with pytest.raises(LimitError, match="81 entries"):
        all_pairs(ring(9))
    with pytest.raises(OverlayError, match="unknown weight 'money'"):
        all_pairs(ring(3), "money")  # type: ignore[arg-type]


def test_figures_of_a_ring_and_of_islands() -> None:
    circle = figures(ring(6))
    assert (circle.brokers, circle.links, circle.mean_degree, circle.diameter_hops) == (6, 6, 2.0, 3)
    assert circle.mean_hops == pytest.approx((1 + 1 + 2 + 2 + 3) / 5)
    islands = figures(Overlay.build("i", "abc", [Link.symmetric("a", "b")]))
    assert (islands.components, islands.diameter_hops, islands.mean_hops) == (2, 1, 1.0)
    assert figures(line(0)).mean_degree == 0.0
