"""Low-stretch trees: spanning on any connected multigraph, stretch by networkx, sane on known graphs."""

from collections.abc import Callable

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import DisconnectedError, OverlayError
from ramify.network.graphs.generators import random_overlay, ring
from ramify.network.trees.lowstretch import akpw_tree, average_stretch, star_decomposition_tree

Graph = tuple[int, list[tuple[int, int]], list[float], list[float]]
Method = Callable[..., npt.NDArray[np.int32]]
METHODS: list[Method] = [star_decomposition_tree, akpw_tree]
every_method = pytest.mark.parametrize("method", METHODS)


@st.composite
def multigraphs(draw: st.DrawFn) -> Graph:
    """Connected, with repeated edges, loops, extreme lengths and edges that nobody uses."""
    nodes = draw(st.integers(1, 25))
    name = draw(st.permutations(range(nodes)))
    ends = [(name[draw(st.integers(0, v - 1))], name[v]) for v in range(1, nodes)]
    index = st.integers(0, nodes - 1)
    ends += draw(st.lists(st.tuples(index, index), max_size=40))
    some = st.sampled_from([1.0, 1.0, 2.0, 1e-6, 1e6]) | st.floats(1e-6, 1e6)
    lengths = draw(st.lists(some, min_size=len(ends), max_size=len(ends)))
    counts = draw(
        st.lists(st.sampled_from([0.0, 1.0, 1.0, 7.5, 1e4]), min_size=len(ends), max_size=len(ends))
    )
    return nodes, ends, lengths, counts


def grid(side: int) -> Graph:
    at = [(i, j) for i in range(side) for j in range(side)]
    ends = [(i * side + j, i * side + j + 1) for i, j in at if j + 1 < side]
    ends += [(i * side + j, i * side + side + j) for i, j in at if i + 1 < side]
    return side * side, ends, [1.0] * len(ends), [1.0] * len(ends)


def spans(nodes: int, ends: npt.ArrayLike, chosen: npt.NDArray[np.int32]) -> bool:
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(np.asarray(ends).reshape(-1, 2)[chosen].tolist())
    return bool(nx.is_tree(graph)) and chosen.tolist() == sorted(set(chosen.tolist()))


@every_method
@given(multigraphs())
def test_the_tree_spans_any_connected_multigraph(method: Method, graph: Graph) -> None:
    nodes, ends, _, _ = graph
    chosen = method(*graph)
    assert chosen.dtype == np.int32
    assert len(chosen) == nodes - 1
    assert spans(nodes, ends, chosen)
    assert method(*graph).tolist() == chosen.tolist()


@given(multigraphs(), st.floats(0, 2))
def test_any_spread_spans(graph: Graph, spread: float) -> None:
    assert spans(graph[0], graph[1], star_decomposition_tree(*graph, spread=spread))


@given(multigraphs(), st.integers(0, 9))
def test_any_seed_spans_and_repeats(graph: Graph, seed: int) -> None:
    chosen = akpw_tree(*graph, seed=seed)
    assert spans(graph[0], graph[1], chosen)
    assert akpw_tree(*graph, seed=np.random.default_rng(seed)).tolist() == chosen.tolist()


@given(multigraphs())
def test_the_average_stretch_is_what_networkx_finds(graph: Graph) -> None:
    nodes, ends, lengths, counts = graph
    chosen = akpw_tree(*graph)
    tree = nx.Graph()
    tree.add_nodes_from(range(nodes))
    tree.add_weighted_edges_from((*ends[e], lengths[e]) for e in chosen.tolist())
    along = dict(nx.all_pairs_dijkstra_path_length(tree))
    total = sum(m * along[a][b] / length for (a, b), length, m in zip(ends, lengths, counts, strict=True))
    expected = total / sum(counts) if sum(counts) else 1.0
    assert average_stretch(*graph, chosen) == pytest.approx(expected)


@every_method
@given(st.integers(2, 60), st.data())
def test_a_cycle_is_stretched_less_than_twice(method: Method, nodes: int, data: st.DataObject) -> None:
    ends = [(v, (v + 1) % nodes) for v in range(nodes)]
    ones = [1.0] * nodes
    chosen = method(nodes, ends, ones, ones)
    assert average_stretch(nodes, ends, ones, ones, chosen) == pytest.approx(2 * (nodes - 1) / nodes)


@every_method
def test_a_grid_is_stretched_less_than_by_rows(method: Method) -> None:
    nodes, ends, ones, _ = grid(30)
    # A comb of rows on the first column: the worst of the usual trees here.
    comb = [e for e, (a, b) in enumerate(ends) if b == a + 1 or a % 30 == 0]
    assert average_stretch(nodes, ends, ones, ones, comb) > 15
    assert average_stretch(nodes, ends, ones, ones, method(nodes, ends, ones, ones)) < 10


@every_method
def test_random_graphs_are_stretched_by_a_few_logarithms(method: Method) -> None:
    overlay = random_overlay(500, 1)
    ones = np.ones(len(overlay.ends))
    chosen = method(500, overlay.ends, ones, ones)
    assert 1 <= average_stretch(500, overlay.ends, ones, ones, chosen) < np.log2(500)


@every_method
def test_of_parallel_edges_the_short_one_is_taken(method: Method) -> None:
    ends, ones = [(0, 1), (1, 0), (0, 1)], [1.0] * 3
    assert method(2, ends, [3.0, 1.0, 2.0], ones).tolist() == [1]
    assert method(2, ends, ones, [1.0, 1.0, 5.0]).tolist() == [2]
    assert method(2, ends, ones, ones).tolist() == [0]


@every_method
def test_clusters_joined_by_long_edges_stay_whole(method: Method) -> None:
    """Two rings of short edges with two long ones between: exactly one long edge is in the tree."""
    ends = [(v, (v + 1) % 8) for v in range(8)] + [(8 + v, 8 + (v + 1) % 8) for v in range(8)]
    ends += [(0, 8), (4, 12)]
    lengths = [1e-3] * 16 + [1e3] * 2
    chosen = method(16, ends, lengths, [1.0] * 18)
    assert np.count_nonzero(chosen >= 16) == 1
    assert average_stretch(16, ends, lengths, [1.0] * 18, chosen) < 2


def test_edges_far_shorter_than_the_radius_are_contracted() -> None:
    """A hub with long edges to all and a tiny edge between two of them: cones of no width keep it."""
    ends = [(0, v) for v in range(1, 8)] + [(1, 2)]
    chosen = star_decomposition_tree(8, ends, [1.0] * 7 + [1e-9], [1.0] * 8, spread=0.0)
    assert 7 in chosen


def test_akpw_keeps_the_edges_that_many_use() -> None:
    overlay = ring(12)
    counts = np.ones(12)
    counts[[2, 7]] = 50.0
    assert {2, 7} <= set(akpw_tree(12, overlay.ends, np.ones(12), counts).tolist())


@every_method
def test_faults_are_named(method: Method) -> None:
    assert method(1, [], [], []).tolist() == []
    with pytest.raises(DisconnectedError, match="2 components") as caught:
        method(4, [(0, 1), (2, 3), (0, 0)], [1.0] * 3, [1.0] * 3)
    assert caught.value.components == [["0", "1"], ["2", "3"]]
    with pytest.raises(DisconnectedError):
        method(2, [], [], [])
    for ends, lengths, counts, fault in [
        ([(0, 2)], [1.0], [1.0], r"outside 0\.\.1"),
        ([(0, -1)], [1.0], [1.0], r"outside 0\.\.1"),
        ([(0, 1)], [0.0], [1.0], "length"),
        ([(0, 1)], [np.nan], [1.0], "length"),
        ([(0, 1)], [np.inf], [1.0], "length"),
        ([(0, 1)], [1.0], [-1.0], "multiplicity"),
        ([(0, 1)], [1.0, 1.0], [1.0], "2 lengths"),
    ]:
        with pytest.raises(OverlayError, match=fault):
            method(2, ends, lengths, counts)
    with pytest.raises(OverlayError, match="has none"):
        method(0, [], [], [])


def test_numbers_at_the_ends_of_their_range_still_give_trees() -> None:
    ends = [(v, (v + 1) % 6) for v in range(6)] + [(0, 3)]
    lengths = [1e-310, 1.0, 1e300, 1e-310, 1.0, 1e300, 1.0]
    for method in METHODS:
        assert spans(6, ends, method(6, ends, lengths, [1e300] * 7))
    with pytest.raises(OverlayError, match="spread"):
        star_decomposition_tree(6, ends, lengths, [1.0] * 7, spread=-1.0)
    with pytest.raises(OverlayError, match="outside"):
        akpw_tree(2, [(0, 1 + 2**32)], [1.0], [1.0])


def test_only_spanning_trees_have_a_stretch() -> None:
    with pytest.raises(OverlayError, match="1 edges do not span 3 nodes"):
        average_stretch(3, [(0, 1), (1, 2)], [1.0, 1.0], [1.0, 1.0], [0])
