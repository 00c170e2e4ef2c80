"""COMPUTETREE: spanning trees of overlay links, priced as built, optimal where it can be."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType
from ramify.errors import InputError, OverlayError
from ramify.network.graphs.distances import arc_weights
from ramify.network.graphs.examples import majumder_i2, majumder_i3
from ramify.network.graphs.generators import line, random_overlay
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.steiner import Steiner, exact_cost
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.trees import Tree, measured
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder.compute_tree import Method, TreeMaker

METHODS: list[Method] = ["star", "akpw", "swap"]
Sets = list[list[int]]


def problem_on(overlay: Overlay) -> Problem:
    classes = Classes.collapse([], overlay, {"keywords": AttributeType.STRINGS})
    return Problem.of(overlay, classes, Demand.of([]))


def overlay_of(draw: st.DrawFn, most: int) -> Overlay:
    """Connected, with ties, links for nothing and prices that differ by direction."""
    count = draw(st.integers(1, most))
    pairs = {(draw(st.integers(0, v - 1)), v) for v in range(1, count)}
    more = [(a, b) for b in range(count) for a in range(b) if (a, b) not in pairs]
    pairs |= set(draw(st.lists(st.sampled_from(more), max_size=8))) if more else set()
    number = st.sampled_from(draw(st.sampled_from([[1.0], [0.0], [0.0, 1.0, 2.0, 5.0]])))
    links = [Link(f"v{a}", f"v{b}", draw(number), draw(number), 1.0) for a, b in sorted(pairs)]
    return Overlay.build("drawn", [f"v{i}" for i in range(count)], links)


@st.composite
def cases(draw: st.DrawFn, most: int = 9) -> tuple[Problem, Sets, list[float]]:
    overlay = overlay_of(draw, most)
    brokers = st.lists(st.integers(0, len(overlay) - 1), min_size=1, max_size=4, unique=True).map(sorted)
    sets = draw(st.lists(brokers, max_size=6))
    return problem_on(overlay), sets, [draw(st.sampled_from([1.0, 2.0, 7.0])) for _ in sets]


def ids_of(maker: TreeMaker, sets: Sets) -> np.ndarray:
    start = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    return maker.ids(start, np.array([v for row in sets for v in row], dtype=np.int32))


def total(problem: Problem, tree: Tree, sets: Sets, weight: list[float]) -> float:
    return measured(problem.overlay, tree, problem.weight).total(
        TerminalSets.of([(row[0], row) for row in sets], weight)
    )


def spanning_trees(overlay: Overlay) -> list[Tree]:
    found = []
    for chosen in combinations(overlay.ends.tolist(), len(overlay) - 1):
        try:
            tree = Tree.of_links(len(overlay), list(chosen), 0)
        except OverlayError:
            continue
        found.append(tree)
    return found


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=50)
@given(case=cases())
def test_the_tree_spans_the_overlay_by_its_own_links(
    method: Method, case: tuple[Problem, Sets, list[float]]
) -> None:
    problem, sets, weight = case
    maker = TreeMaker(problem, method)
    tree = maker.tree(ids_of(maker, sets), np.array(weight))
    assert len(tree) == len(problem.overlay)
    measured(problem.overlay, tree, problem.weight)  # raises for a link that the overlay has not


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=50)
@given(case=cases())
def test_a_group_is_priced_as_its_tree_is_built(
    method: Method, case: tuple[Problem, Sets, list[float]]
) -> None:
    problem, sets, weight = case
    maker = TreeMaker(problem, method)
    ids = ids_of(maker, sets)
    priced = maker.cost(ids, np.array(weight))
    built = total(problem, maker.tree(ids, np.array(weight)), sets, weight)
    if method == "swap":
        assert built <= priced + 1e-9
    else:
        assert built == pytest.approx(priced, abs=1e-9)


@settings(max_examples=50)
@given(case=cases(most=6))
def test_no_cost_is_below_the_best_tree_or_the_bounds(case: tuple[Problem, Sets, list[float]]) -> None:
    problem, sets, weight = case
    maker = TreeMaker(problem)
    ids = ids_of(maker, sets)
    best = min(total(problem, tree, sets, weight) for tree in spanning_trees(problem.overlay))
    assert maker.cost(ids, np.array(weight)) >= best - 1e-9
    assert best >= maker.bounds(ids) @ np.array(weight) - 1e-9


@settings(max_examples=50)
@given(case=cases(most=6), hub=st.integers(0, 5))
def test_pairs_with_one_broker_in_common_get_the_best_tree(
    case: tuple[Problem, Sets, list[float]], hub: int
) -> None:
    problem, sets, weight = case
    hub %= len(problem.overlay)
    pairs = [sorted({hub, row[0]}) for row in sets]
    maker = TreeMaker(problem)
    best = min(total(problem, tree, pairs, weight) for tree in spanning_trees(problem.overlay))
    assert maker.cost(ids_of(maker, pairs), np.array(weight)) == pytest.approx(best)


def test_pairs_with_one_broker_in_common_cost_their_distances() -> None:
    problem = problem_on(random_overlay(80, 2))
    maker = TreeMaker(problem)
    pairs = [sorted((17, v)) for v in range(80) if v != 17]
    distances = float(problem.steiner.distance[17].sum())
    assert maker.cost(ids_of(maker, pairs), np.ones(79)) == distances
    assert total(problem, maker.tree(ids_of(maker, pairs), np.ones(79)), pairs, [1.0] * 79) == distances


@settings(max_examples=50)
@given(case=cases(most=7))
def test_bounds_are_below_the_exact_cost_of_each_set(case: tuple[Problem, Sets, list[float]]) -> None:
    problem, sets, _ = case
    maker = TreeMaker(problem)
    adjacency = problem.overlay.adjacency
    arcs = arc_weights(problem.overlay, problem.weight)
    for row, bound in zip(sets, maker.bounds(ids_of(maker, sets)), strict=True):
        assert bound <= exact_cost(adjacency.start, adjacency.neighbor, arcs, row[0], row) + 1e-9


def test_each_distinct_set_is_joined_by_a_steiner_tree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = []
    original = Steiner.trees

    def counted(self: Steiner, sets: TerminalSets, roots: str = "first") -> object:
        grown.append(len(sets))
        return original(self, sets, roots)  # type: ignore[arg-type]

    monkeypatch.setattr(Steiner, "trees", counted)
    maker = TreeMaker(problem_on(random_overlay(20, 1)))
    sets = [[0, 3, 7], [1, 2], [0, 3, 7], [5]]
    first = ids_of(maker, sets)
    again = ids_of(maker, [[1, 2], [0, 3, 7], [4, 9]])
    united = maker.united(first[:2], first[2:])
    maker.tree(first, np.ones(4))
    assert sum(grown) == len(maker) == 5  # 3 distinct, one new, and [1, 2, 5]: [0, 3, 7] with itself is old
    assert first.tolist() == [0, 1, 0, 2]
    assert again.tolist() == [1, 0, 3]
    assert united.tolist() == [0, 4]


def test_trees_that_do_not_touch_are_joined_and_cost_what_each_costs() -> None:
    maker = TreeMaker(problem_on(line(9)))
    ids = ids_of(maker, [[0, 1], [3, 4], [7, 8]])
    assert maker.cost(ids, np.array([1.0, 2.0, 4.0])) == 7.0
    assert len(maker.tree(ids, np.array([1.0, 2.0, 4.0]))) == 9


def test_parts_with_cycles_are_joined_too() -> None:
    """Two squares far apart, all corner pairs wanted: a tree must cut each square once."""
    corners = [(0, 1), (1, 2), (2, 3), (0, 3)]
    squares = [(a + s, b + s) for s in (0, 6) for a, b in corners]
    links = [Link.symmetric(f"v{a}", f"v{b}") for a, b in [*squares, (3, 4), (4, 5), (5, 6)]]
    problem = problem_on(Overlay.build("squares", [f"v{i}" for i in range(10)], links))
    maker = TreeMaker(problem)
    sets = [list(pair) for pair in squares]
    tree = maker.tree(ids_of(maker, sets), np.ones(len(sets)))
    assert total(problem, tree, sets, [1.0] * 8) == maker.cost(ids_of(maker, sets), np.ones(8)) == 12.0


@settings(max_examples=50)
@given(case=cases())
def test_costs_do_not_depend_on_what_was_asked_before(case: tuple[Problem, Sets, list[float]]) -> None:
    problem, sets, weight = case
    fresh, used = TreeMaker(problem), TreeMaker(problem)
    for i in range(len(sets)):
        used.cost(ids_of(used, sets[i:]), np.array(weight[i:]))
    assert used.cost(ids_of(used, sets), np.array(weight)) == fresh.cost(
        ids_of(fresh, sets), np.array(weight)
    )
    assert used.tree(ids_of(used, sets), np.array(weight)) == fresh.tree(
        ids_of(fresh, sets), np.array(weight)
    )


def test_example_i2_the_tree_is_the_shortest_path_tree_and_not_the_steiner_tree() -> None:
    example = majumder_i2(5, 10.0)
    problem, index = problem_on(example.overlay), example.overlay.index
    sets = [sorted((index["v0"], index[leaf])) for (leaf,) in example.subscriptions.values()]
    maker = TreeMaker(problem)
    assert maker.cost(ids_of(maker, sets), np.ones(len(sets))) == example.costs["spt"]


@pytest.mark.parametrize("method", METHODS)
def test_example_i3_one_tree_costs_what_the_paper_says(method: Method) -> None:
    example = majumder_i3(8)
    problem, index = problem_on(example.overlay), example.overlay.index
    sets = [sorted({0, *(index[v] for v in wants)}) for wants in example.subscriptions.values()]
    maker = TreeMaker(problem, method)
    tree = maker.tree(ids_of(maker, sets), np.ones(2))
    assert total(problem, tree, sets, [1.0, 1.0]) == example.costs["one_tree"]


def test_swaps_make_the_tree_no_dearer_and_on_a_flat_overlay_cheaper() -> None:
    problem = problem_on(random_overlay(60, 3))
    rng = np.random.default_rng(3)
    sets = [sorted(rng.choice(60, 5, replace=False).tolist()) for _ in range(80)]
    costs = {}
    for method in METHODS:
        maker = TreeMaker(problem, method)
        costs[method] = total(problem, maker.tree(ids_of(maker, sets), np.ones(80)), sets, [1.0] * 80)
    assert costs["swap"] < costs["star"]
    assert costs["swap"] < costs["akpw"]


def test_an_unknown_method_is_refused_with_those_allowed() -> None:
    with pytest.raises(InputError, match="Allowed: star, akpw, swap"):
        TreeMaker(problem_on(line(3)), "steiner")  # type: ignore[arg-type]


@settings(max_examples=50)
@given(case=cases())
def test_brokers_outside_the_union_hang_from_it_by_shortest_paths(
    case: tuple[Problem, Sets, list[float]],
) -> None:
    problem, sets, _ = case
    terminals = sorted({v for row in sets for v in row})
    if len(terminals) < 3:
        return  # a pair gets the shortest-path tree of one end
    maker = TreeMaker(problem)
    tree = measured(problem.overlay, maker.tree(ids_of(maker, [terminals]), np.ones(1)), problem.weight)
    every = np.arange(len(problem.overlay))
    through = [
        tree.distance(a, every) + tree.distance(every, b) - tree.distance(a, b)
        for a in terminals
        for b in terminals
    ]
    inside = every[(np.array(through) < 1e-9).any(axis=0)]
    on_tree = np.array([tree.distance(every, np.full(len(every), v)) for v in inside]).min(axis=0)
    assert on_tree == pytest.approx(problem.steiner.distance[inside].min(axis=0).astype(float))
