"""Edge swaps: never dearer, gains as predicted, no better single swap left (brute force), deterministic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import OverlayError
from ramify.network.graphs.distances import Weight
from ramify.network.graphs.generators import line, random_overlay, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.transit_stub import majumder
from ramify.network.trees import swaps as module
from ramify.network.trees.swaps import improve
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.trees import (
    Tree,
    best_root_spt,
    measured,
    minimum_spanning_tree,
    shortest_path_tree,
)

WEIGHTS: list[Weight] = ["hops", "mean_price", "latency"]
Case = tuple[Overlay, Tree, TerminalSets]


@st.composite
def cases(draw: st.DrawFn, most: int = 12) -> Case:
    """A connected overlay with ties and links for nothing, a spanning tree of it, and terminal sets."""
    count = draw(st.integers(1, most))
    name = draw(st.permutations(range(count)))
    pairs = [(name[draw(st.integers(0, v - 1))], name[v]) for v in range(1, count)]
    spanning = len(pairs)
    known = {frozenset(pair) for pair in pairs}
    more = [(a, b) for b in range(count) for a in range(b) if frozenset((a, b)) not in known]
    pairs += draw(st.lists(st.sampled_from(more), unique=True, max_size=20)) if more else []
    number = st.integers(0, 6).map(float)
    overlay = Overlay.build(
        "drawn",
        [f"v{i}" for i in range(count)],
        [Link(f"v{a}", f"v{b}", draw(number), draw(number), draw(number)) for a, b in pairs],
    )
    broker = st.integers(0, count - 1)
    rows = draw(st.lists(st.tuples(broker, st.lists(broker, max_size=6)), max_size=8))
    sets = TerminalSets.of(rows, [draw(st.sampled_from([0.0, 1.0, 2.5])) for _ in rows])
    return overlay, Tree.of_links(count, pairs[:spanning], draw(broker)), sets


def neighbours(overlay: Overlay, tree: Tree) -> list[Tree]:
    """Every spanning tree that differs by one link."""
    links = [frozenset(pair) for pair in tree.links().tolist()]
    spare = [pair for pair in map(frozenset, overlay.ends.tolist()) if pair not in links]
    found = []
    for out in links:
        for new in spare:
            ends = [sorted(pair) for pair in links if pair != out] + [sorted(new)]
            try:
                found.append(Tree.of_links(len(overlay), ends, tree.root))
            except OverlayError:
                continue
    return found


def local_sets(overlay: Overlay, count: int, seed: int) -> TerminalSets:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        root = int(rng.integers(len(overlay)))
        near = shortest_path_tree(overlay, root, "hops").depth_hops()
        rows.append((root, rng.choice(np.argsort(near, kind="stable")[:25], 6, replace=False).tolist()))
    return TerminalSets.of(rows)


@given(cases(), st.sampled_from(WEIGHTS))
def test_gains_are_as_predicted_and_the_result_spans(case: Case, weight: Weight) -> None:
    overlay, tree, sets = case
    found = improve(overlay, tree, sets, weight, check=True)
    assert found.finished
    assert found.start_cost == measured(overlay, tree, weight).total(sets)
    assert found.cost == measured(overlay, found.tree, weight).total(sets)
    assert found.cost <= found.start_cost
    assert (len(found.tree), found.tree.root) == (len(overlay), tree.root)
    assert (found.tree == tree) == (found.swaps == 0) or found.cost < found.start_cost


@given(cases(8), st.sampled_from(WEIGHTS))
def test_no_single_swap_improves_the_result(case: Case, weight: Weight) -> None:
    overlay, tree, sets = case
    found = improve(overlay, tree, sets, weight)
    for other in neighbours(overlay, found.tree):
        assert measured(overlay, other, weight).total(sets) >= found.cost - 1e-6


@given(cases(8), st.sampled_from(WEIGHTS))
def test_a_tree_with_a_better_neighbour_is_left(case: Case, weight: Weight) -> None:
    overlay, tree, sets = case
    costs = [measured(overlay, other, weight).total(sets) for other in neighbours(overlay, tree)]
    once = improve(overlay, tree, sets, weight, swaps=1)
    if costs and min(costs) < once.start_cost - 1e-6:
        assert once.swaps == 1
        assert any(once.cost == pytest.approx(cost) for cost in costs)
        assert once.cost < once.start_cost
    else:
        assert (once.swaps, once.tree) == (0, tree)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_large_searches_keep_their_promises(weight: Weight) -> None:
    overlay = majumder(200, 3)
    sets = local_sets(overlay, 150, 4)
    ends = []
    for tree in (minimum_spanning_tree(overlay, weight), best_root_spt(overlay, sets, weight)):
        found = improve(overlay, tree, sets, weight, check=True)
        assert found.finished
        ends.append(found.cost)
    assert max(ends) < 1.05 * min(ends)
    assert max(ends) < measured(overlay, minimum_spanning_tree(overlay, weight), weight).total(sets)


def test_chunks_and_repeats_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = random_overlay(120, 6)
    sets = local_sets(overlay, 80, 7)
    tree = minimum_spanning_tree(overlay, "hops")
    whole = improve(overlay, tree, sets, "hops")
    assert whole.swaps > 20
    assert improve(overlay, tree, sets, "hops").tree == whole.tree
    monkeypatch.setattr(module, "CHUNK", 500)
    parts = improve(overlay, tree, sets, "hops")
    assert (parts.tree, parts.cost, parts.swaps) == (whole.tree, whole.cost, whole.swaps)


def test_sets_larger_than_a_few_dozen_are_handled() -> None:
    overlay = random_overlay(150, 2)
    rng = np.random.default_rng(5)
    sets = TerminalSets.of([(0, rng.integers(150, size=size).tolist()) for size in (2, 20, 60, 90, 140)])
    assert improve(overlay, minimum_spanning_tree(overlay, "hops"), sets, "hops", check=True).finished


def test_budgets_end_the_search() -> None:
    overlay = random_overlay(120, 6)
    sets = local_sets(overlay, 80, 7)
    tree = minimum_spanning_tree(overlay, "hops")
    few = improve(overlay, tree, sets, "hops", swaps=3)
    assert (few.swaps, few.finished) == (3, False)
    assert few.cost < few.start_cost
    none = improve(overlay, tree, sets, "hops", seconds=0.0)
    assert (none.tree, none.swaps, none.finished) == (tree, 0, False)
    assert improve(overlay, tree, sets, "hops", seconds=60.0).finished


def test_a_ring_is_opened_where_nobody_looks() -> None:
    overlay = ring(10)
    sets = TerminalSets.of([(9, [0]), (0, [1, 2]), (8, [9])])
    found = improve(overlay, Tree.of_links(10, [(v, v + 1) for v in range(9)], 4), sets, "hops")
    assert found.start_cost == 9 + 2 + 1
    assert found.cost == 4
    links = {frozenset(link) for link in found.tree.links().tolist()}
    assert {frozenset(link) for link in ring(10).ends.tolist()} - links <= {
        frozenset((v, v + 1)) for v in range(2, 8)
    }


def test_what_cannot_be_searched_is_refused() -> None:
    sets = TerminalSets.of([(0, [1])])
    with pytest.raises(OverlayError, match="joins 2 of 3 brokers"):
        improve(line(3), Tree.of_links(3, [(0, 1)], 0), sets, "hops")
    with pytest.raises(OverlayError, match="no link joins"):
        improve(line(3), Tree.of_links(3, [(0, 1), (0, 2)], 0), sets, "hops")
    with pytest.raises(OverlayError, match="no length by 'price'"):
        improve(line(3), minimum_spanning_tree(line(3), "hops"), sets, "price")
    with pytest.raises(OverlayError, match=r"outside 0\.\.2"):
        improve(line(3), minimum_spanning_tree(line(3), "hops"), TerminalSets.of([(0, [7])]), "hops")
    alone = improve(line(1), minimum_spanning_tree(line(1), "hops"), TerminalSets.of([(0, [])]), "hops")
    assert (alone.cost, alone.finished) == (0.0, True)


def test_a_wrong_prediction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = module._Search.run
    monkeypatch.setattr(module._Search, "run", lambda self, swaps: right(self, swaps) + 1)
    overlay = ring(4)
    sets = TerminalSets.of([(0, [3])])
    with pytest.raises(AssertionError, match="predicted"):
        improve(overlay, minimum_spanning_tree(overlay, "hops"), sets, "hops", check=True)
