"""Blocks against networkx; problems cut along them against the optimum of the whole."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import DisconnectedError, OverlayError
from ramify.network.graphs.distances import arc_weights
from ramify.network.graphs.generators import line, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.transit_stub import transit_stub
from ramify.network.trees.blocks import Blocks, split
from ramify.network.trees.steiner import dual_ascent, exact_cost, lower_bounds
from ramify.network.trees.terminals import TerminalSets


@st.composite
def overlays(draw: st.DrawFn, most: int = 12) -> Overlay:
    """Small connected overlays with many articulation brokers, ties, and links that cost nothing."""
    count = draw(st.integers(1, most))
    label = draw(st.permutations(range(count)))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, count)}
    every = [(i, j) for j in range(count) for i in range(j)]
    pairs |= set(draw(st.lists(st.sampled_from(every), max_size=6)) if every else [])
    prices = st.integers(0, 3).map(float)
    return Overlay.build(
        "drawn",
        [f"v{i}" for i in range(count)],
        [
            Link(f"v{label[a]}", f"v{label[b]}", draw(prices), draw(prices), draw(prices))
            for a, b in sorted(pairs)
        ],
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Overlay, TerminalSets]:
    overlay = draw(overlays())
    brokers = st.integers(0, len(overlay) - 1)
    rows = draw(st.lists(st.tuples(brokers, st.lists(brokers, max_size=5)), min_size=1, max_size=4))
    return overlay, TerminalSets.of(rows)


def graph_of(overlay: Overlay) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(overlay)))
    graph.add_edges_from(overlay.ends.tolist())
    return graph


@given(overlays())
def test_blocks_are_those_of_networkx(overlay: Overlay) -> None:
    blocks = Blocks.of(overlay)
    graph = graph_of(overlay)
    ours: list[set[frozenset[int]]] = [set() for _ in range(len(blocks))]
    for block, ends in zip(blocks.link.tolist(), overlay.ends.tolist(), strict=True):
        ours[block].add(frozenset(ends))
    theirs = [{frozenset(edge) for edge in edges} for edges in nx.biconnected_component_edges(graph)]
    assert set(map(frozenset, ours)) == set(map(frozenset, theirs))
    assert len(ours) == len(theirs)
    assert set(np.flatnonzero(blocks.articulation)) == set(nx.articulation_points(graph))


@given(overlays())
def test_taken_apart_every_arc_stays_in_its_block(overlay: Overlay) -> None:
    blocks = Blocks.of(overlay)
    start, neighbor, link, _ = overlay.adjacency
    source = np.repeat(np.arange(len(overlay)), np.diff(start))
    apart = np.repeat(np.arange(len(blocks.member)), np.diff(blocks.start))
    block, broker = np.divmod(blocks.member, len(overlay))
    assert sorted(blocks.arc.tolist()) == list(range(len(neighbor)))
    np.testing.assert_array_equal(broker[apart], source[blocks.arc])
    np.testing.assert_array_equal(broker[blocks.neighbor], neighbor[blocks.arc])
    np.testing.assert_array_equal(block[apart], blocks.link[link[blocks.arc]])
    np.testing.assert_array_equal(block[blocks.neighbor], block[apart])


@given(problems(), st.sampled_from(["hops", "price", "latency"]))
def test_the_optima_of_the_parts_sum_to_the_optimum_of_the_whole(
    problem: tuple[Overlay, TerminalSets], weight: str
) -> None:
    overlay, sets = problem
    start, neighbor, _, _ = overlay.adjacency
    arcs = arc_weights(overlay, weight)  # type: ignore[arg-type]
    parts = split(sets, Blocks.of(overlay))
    summed = np.zeros(len(sets))
    for i, owner in enumerate(parts.owner):
        summed[owner] += exact_cost(start, neighbor, arcs, parts.sets[i][0], parts.sets[i][1:])
    whole = [exact_cost(start, neighbor, arcs, sets[i][0], sets[i][1:]) for i in range(len(sets))]
    assert summed.tolist() == whole


@given(problems())
def test_parts_are_sets_of_one_block_each_entered_from_the_root(
    problem: tuple[Overlay, TerminalSets],
) -> None:
    overlay, sets = problem
    blocks = Blocks.of(overlay)
    parts = split(sets, blocks)
    graph = graph_of(overlay)
    members = [set(overlay.ends[blocks.link == b].ravel().tolist()) for b in range(len(blocks))]
    assert (np.diff(parts.owner) >= 0).all()
    assert len(set(zip(parts.owner.tolist(), parts.block.tolist(), strict=True))) == len(parts.owner)
    for s in range(len(sets)):
        root, own = int(sets[s][0]), set(sets[s].tolist())
        reached = {root}
        for i in np.flatnonzero(parts.owner == s):
            entry, *others = parts.sets[int(i)].tolist()
            block = members[parts.block[i]]
            assert others
            assert others == sorted(set(others) - {entry})
            assert block >= {entry, *others}
            assert entry in reached
            reached |= {entry, *others}
            assert all(v in own or blocks.articulation[v] for v in [entry, *others])
            between = min(block, key=lambda v: nx.shortest_path_length(graph, root, v))
            assert entry == between
        assert own <= reached


@given(problems())
def test_bounds_of_the_parts_are_bounds_of_the_whole(problem: tuple[Overlay, TerminalSets]) -> None:
    overlay, sets = problem
    start, neighbor, _, _ = overlay.adjacency
    arcs = arc_weights(overlay, "price")
    bound = lower_bounds(overlay, sets)
    for i in range(len(sets)):
        assert bound[i] <= exact_cost(start, neighbor, arcs, sets[i][0], sets[i][1:])


def test_cutting_makes_the_bound_tighter_on_a_transit_stub_overlay() -> None:
    overlay = transit_stub(300, 5)
    rng = np.random.default_rng(3)
    sets = TerminalSets.of((int(row[0]), row.tolist()) for row in rng.integers(0, 300, (200, 10)))
    start, neighbor, _, _ = overlay.adjacency
    whole = dual_ascent(start, neighbor, arc_weights(overlay, "latency"), sets)
    assert lower_bounds(overlay, sets, "latency").sum() >= whole.sum()


def test_trees_and_rings_are_the_two_extremes() -> None:
    chain = Blocks.of(line(5))
    assert (len(chain), chain.articulation.tolist()) == (4, [False, True, True, True, False])
    parts = split(TerminalSets.of([(3, [1]), (2, [2])], [7.0, 1.0]), chain)
    assert [parts.sets[i].tolist() for i in range(2)] == [[3, 2], [2, 1]]
    assert (parts.owner.tolist(), parts.sets.weight.tolist()) == ([0, 0], [7.0, 7.0])
    circle = Blocks.of(ring(5))
    assert (len(circle), circle.articulation.any()) == (1, False)
    whole = split(TerminalSets.of([(3, [1, 4])]), circle)
    assert (len(whole.sets), whole.sets[0].tolist()) == (1, [3, 1, 4])


def test_a_long_line_does_not_exhaust_the_stack() -> None:
    blocks = Blocks.of(line(20_000))
    assert len(split(TerminalSets.of([(19_999, [0])]), blocks).sets) == len(blocks) == 19_999


def test_empty_and_single_overlays_have_no_blocks() -> None:
    assert len(Blocks.of(line(0))) == len(Blocks.of(line(1))) == 0
    assert len(split(TerminalSets.of([]), Blocks.of(line(0))).sets) == 0
    assert len(split(TerminalSets.of([(0, [])]), Blocks.of(line(1))).sets) == 0
    assert lower_bounds(line(1), TerminalSets.of([(0, [])])).tolist() == [0.0]


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(DisconnectedError):
        Blocks.of(Overlay.build("islands", "abc", [Link.symmetric("a", "b")]))
    with pytest.raises(OverlayError, match="set 1 names broker 5"):
        split(TerminalSets.of([(0, [1]), (0, [5])]), Blocks.of(ring(5)))
    with pytest.raises(OverlayError, match="at least its root"):
        split(TerminalSets(np.array([0, 0]), np.empty(0, np.int32), np.ones(1)), Blocks.of(ring(5)))
