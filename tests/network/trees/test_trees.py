"""Trees against brute force (unions of paths, naive ancestors) and networkx; refusals by hand."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import DisconnectedError, OverlayError
from ramify.network.graphs.distances import Weight, all_pairs
from ramify.network.graphs.generators import line, random_overlay, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.trees import (
    MeasuredTree,
    Tree,
    best_root_spt,
    link_lengths,
    measured,
    minimum_spanning_tree,
    shortest_path_tree,
    tree_lengths,
)

WEIGHTS: list[Weight] = ["hops", "mean_price", "latency"]


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    """Connected overlays of a few brokers with many ties and with links that cost nothing."""
    count = draw(st.integers(1, 12))
    pairs = [(draw(st.integers(0, v - 1)), v) for v in range(1, count)]
    more = [(a, b) for b in range(count) for a in range(b) if (a, b) not in pairs]
    pairs += draw(st.lists(st.sampled_from(more), unique=True)) if more else []
    number = st.integers(0, 4).map(float)
    return Overlay.build(
        "drawn",
        [f"v{i}" for i in range(count)],
        [Link(f"v{a}", f"v{b}", draw(number), draw(number), draw(number)) for a, b in pairs],
    )


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees over some of up to 40 brokers, numbered at random."""
    count = draw(st.integers(1, 40))
    names = draw(st.permutations(range(count)))
    size = draw(st.integers(1, count))
    ends = [(names[draw(st.integers(0, v - 1))], names[v]) for v in range(1, size)]
    return Tree.of_links(count, ends, names[draw(st.integers(0, size - 1))])


@st.composite
def sets_of(draw: st.DrawFn, brokers: list[int], most: int = 6) -> TerminalSets:
    choice = st.sampled_from(brokers)
    rows = draw(st.lists(st.tuples(choice, st.lists(choice)), max_size=most))
    return TerminalSets.of(rows, [draw(st.integers(0, 5)) for _ in rows])


def path_to_root(tree: Tree, broker: int) -> list[int]:
    path = [broker]
    while tree.parent[path[-1]] >= 0:
        path.append(int(tree.parent[path[-1]]))
    return path


def graph_of(tree: Tree, length: np.ndarray) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(tree.order.tolist())
    graph.add_weighted_edges_from((a, b, length[b]) for a, b in tree.links().tolist())
    return graph


def union_of_paths(graph: nx.Graph, terminals: list[int]) -> float:
    used = {
        frozenset(step) for t in terminals for step in pairwise(nx.shortest_path(graph, terminals[0], t))
    }
    return float(sum(graph.edges[tuple(step)]["weight"] for step in used))


@given(trees(), st.data())
def test_a_set_costs_the_union_of_its_paths(tree: Tree, data: st.DataObject) -> None:
    length = np.array(data.draw(st.lists(st.integers(0, 9), min_size=40, max_size=40)), dtype=np.float64)
    length = length[: len(tree.parent)]
    sets = data.draw(sets_of(tree.order.tolist()))
    graph = graph_of(tree, length)
    expected = [union_of_paths(graph, sets[i].tolist()) for i in range(len(sets))]
    found = MeasuredTree.of(tree, length)
    np.testing.assert_array_equal(found.costs(sets), expected)
    assert found.total(sets) == pytest.approx(np.dot(expected, sets.weight))


def test_large_sets_cost_the_union_of_their_paths() -> None:
    overlay = random_overlay(300, 5)
    rng = np.random.default_rng(11)
    tree = shortest_path_tree(overlay, 17, "hops")
    sets = TerminalSets.of(
        [(int(rng.integers(300)), rng.integers(300, size=size).tolist()) for size in (23, 24, 25, 90, 280)]
    )
    graph = graph_of(tree, np.ones(300))
    expected = [union_of_paths(graph, sets[i].tolist()) for i in range(len(sets))]
    np.testing.assert_array_equal(measured(overlay, tree, "hops").costs(sets), expected)


@given(trees(), st.data())
def test_ancestors_and_distances_equal_the_naive_ones(tree: Tree, data: st.DataObject) -> None:
    some = st.sampled_from(tree.order.tolist())
    pairs = data.draw(st.lists(st.tuples(some, some), min_size=1))
    u, v = np.array(pairs).T
    length = np.arange(len(tree.parent)) + 0.5
    found = MeasuredTree.of(tree, length)
    up = {b: path_to_root(tree, b) for b in tree.order.tolist()}
    expected = [next(x for x in up[a] if x in up[b]) for a, b in pairs]
    assert found.lca(u, v).tolist() == expected
    graph = graph_of(tree, length)
    between = [nx.shortest_path_length(graph, a, b, weight="weight") for a, b in pairs]
    np.testing.assert_allclose(found.distance(u, v), between)


@given(trees())
def test_the_order_is_a_preorder_with_children_ascending(tree: Tree) -> None:
    graph = nx.DiGraph(tree.links().tolist())
    graph.add_node(tree.root)
    walk = nx.dfs_preorder_nodes(graph, tree.root, sort_neighbors=sorted)
    assert tree.order.tolist() == list(walk)
    found = MeasuredTree.of(tree, np.ones(len(tree.parent)))
    for v in tree.order.tolist():
        below = set(nx.descendants(graph, v)) | {v}
        assert set(tree.order[found.tin[v] : found.tout[v]].tolist()) == below
    hops = nx.single_source_shortest_path_length(graph, tree.root)
    assert tree.depth_hops().tolist() == [hops.get(v, -1) for v in range(len(tree.parent))]


@given(trees(), st.data())
def test_another_root_keeps_the_links(tree: Tree, data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(tree.order.tolist()))
    other = tree.rerooted(root)
    assert other.root == other.order[0] == root
    assert {frozenset(x) for x in other.links().tolist()} == {frozenset(x) for x in tree.links().tolist()}
    assert other.rerooted(tree.root) == tree
    assert hash(other.rerooted(tree.root)) == hash(tree)


@given(st.integers(1, 7), st.data())
def test_only_trees_with_the_root_are_accepted(count: int, data: st.DataObject) -> None:
    index = st.integers(-1, count)
    ends = data.draw(st.lists(st.tuples(index, index), max_size=count))
    root = data.draw(st.integers(0, count - 1))
    graph = nx.MultiGraph(ends)
    graph.add_node(root)
    valid = nx.is_tree(graph) and all(0 <= v < count for pair in ends for v in pair)
    if valid:
        assert len(Tree.of_links(count, ends, root)) == len(ends) + 1
    else:
        with pytest.raises(OverlayError):
            Tree.of_links(count, ends, root)


def test_refusals_name_the_fault() -> None:
    for ends, root, fault in [
        ([(0, 1), (1, 2), (2, 0)], 0, "link 2 joins 2 and 0 a second time"),
        ([(0, 1), (1, 0)], 0, "link 1 joins 1 and 0 a second time"),
        ([(1, 1)], 1, "link 0 joins 1 and 1 a second time"),
        ([(0, 1), (2, 3)], 0, "link 1, 2 and 3, is cut off from the root 0"),
        ([(0, 4)], 0, "link 0 joins 0 and 4, outside 0..3"),
        ([], 4, "root 4 is not a broker index"),
    ]:
        with pytest.raises(OverlayError, match=fault):
            Tree.of_links(4, ends, root)
    for parent, fault in [
        ([0, -1], "broker 0 is not the root"),
        ([-1, 5], "parent 5 is not a broker index"),
        ([-1, 2, 1], "broker 1 does not hang from the root 0"),
        ([-1, -1], "broker 1 does not hang from the root 0"),
    ]:
        with pytest.raises(OverlayError, match=fault):
            Tree.of_parents(parent, 0)
    part = Tree.of_links(4, [(0, 1)], 0)
    with pytest.raises(OverlayError, match="broker 2 is not in the tree"):
        part.rerooted(2)
    short = MeasuredTree.of(part, np.ones(4))
    with pytest.raises(OverlayError, match="terminal set 1 has a broker"):
        short.costs(TerminalSets.of([(0, [1]), (0, [2])]))
    with pytest.raises(OverlayError, match=r"outside 0\.\.3"):
        short.costs(TerminalSets.of([(0, [9])]))
    with pytest.raises(OverlayError, match="not in the tree"):
        short.lca(0, 3)
    with pytest.raises(OverlayError, match="lengths for 4 brokers"):
        MeasuredTree.of(part, np.ones(3))


@given(overlays(), st.sampled_from([*WEIGHTS, "price"]), st.data())
def test_a_shortest_path_tree_has_the_distances(
    overlay: Overlay, weight: Weight, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, len(overlay) - 1))
    tree = shortest_path_tree(overlay, root, weight)
    np.testing.assert_array_equal(
        measured(overlay, tree, weight).depth, all_pairs(overlay, weight, sources=[root]).distance[0]
    )


@given(overlays(), st.sampled_from(WEIGHTS))
def test_a_minimum_spanning_tree_weighs_what_networkx_finds(overlay: Overlay, weight: Weight) -> None:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(overlay)))
    lengths = link_lengths(overlay, weight).tolist()
    graph.add_weighted_edges_from(
        (a, b, length) for (a, b), length in zip(overlay.ends.tolist(), lengths, strict=True)
    )
    tree = minimum_spanning_tree(overlay, weight)
    assert len(tree) == len(overlay)
    assert tree_lengths(overlay, tree, weight).sum() == nx.minimum_spanning_tree(graph).size("weight")


@given(overlays(), st.sampled_from(WEIGHTS), st.data())
def test_the_best_root_is_the_best_of_all(overlay: Overlay, weight: Weight, data: st.DataObject) -> None:
    sets = data.draw(sets_of(list(range(len(overlay)))))
    totals = [
        measured(overlay, shortest_path_tree(overlay, root, weight), weight).total(sets)
        for root in range(len(overlay))
    ]
    assert best_root_spt(overlay, sets, weight).root == int(np.argmin(totals))
    few = best_root_spt(overlay, sets, weight, budget=0)
    assert measured(overlay, few, weight).total(sets) == totals[few.root]


def test_a_small_budget_tries_the_brokers_near_the_demand() -> None:
    overlay = line(50)
    sets = TerminalSets.of([(30, [34]), (31, [35])])
    assert best_root_spt(overlay, sets, "hops", budget=0).root in range(30, 36)


def test_ties_go_to_the_smaller_link() -> None:
    assert minimum_spanning_tree(ring(5), "hops").parent.tolist() == [-1, 0, 1, 2, 3]


def test_islands_empty_overlays_and_foreign_trees_are_refused() -> None:
    islands = Overlay.build("i", "abc", [Link.symmetric("a", "b")])
    assert shortest_path_tree(islands, 1, "latency").parent.tolist() == [1, -1, -2]
    for refuse in (minimum_spanning_tree, lambda o, w: best_root_spt(o, TerminalSets.of([]), w)):
        with pytest.raises(DisconnectedError):
            refuse(islands, "hops")
        with pytest.raises(OverlayError):
            refuse(line(0), "hops")
        with pytest.raises(OverlayError, match="mean_price"):
            refuse(ring(3), "price")
    with pytest.raises(OverlayError, match="no link joins"):
        tree_lengths(line(3), Tree.of_links(3, [(0, 2), (2, 1)], 0), "hops")
    with pytest.raises(OverlayError, match="a tree over 3 brokers"):
        tree_lengths(line(4), Tree.of_links(3, [(0, 1)], 0), "hops")


def test_arrays_are_closed_and_single_brokers_work() -> None:
    tree = minimum_spanning_tree(line(1), "hops")
    assert (tree.parent.tolist(), tree.order.tolist(), tree.links().shape) == ([-1], [0], (0, 2))
    only = measured(line(1), tree, "hops")
    assert only.costs(TerminalSets.of([(0, [])])).tolist() == [0.0]
    assert only.lca(0, 0) == 0
    with pytest.raises(ValueError, match="read-only"):
        tree.parent[0] = 1
