"""Trees, bounds and optima: each against the next stronger oracle, down to trying every choice of arcs."""

from itertools import combinations, permutations

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import DisconnectedError, InputError, LimitError, OverlayError
from ramify.network.graphs.distances import Weight, all_pairs, arc_weights
from ramify.network.graphs.generators import line, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.transit_stub import transit_stub
from ramify.network.trees import steiner as module
from ramify.network.trees.steiner import Roots, Steiner, dual_ascent, exact_cost, lower_bounds
from ramify.network.trees.steiner_kernels import GrowRoom, grow_tree
from ramify.network.trees.terminals import TerminalSets

WEIGHTS: list[Weight] = ["hops", "price", "mean_price", "latency"]
SYMMETRIC: list[Weight] = ["hops", "mean_price", "latency"]
CHOICES: list[tuple[Weight, Roots]] = [
    (weight, roots)
    for weight in WEIGHTS
    for roots in ("first", "all", "blocks", "insert")
    if (weight, roots) != ("price", "all")
]
Rows = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    """Small connected overlays with many ties and with links that cost nothing."""
    count = draw(st.integers(1, 10))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, count)}
    every = [(i, j) for j in range(count) for i in range(j)]
    pairs |= set(draw(st.lists(st.sampled_from(every), max_size=12)) if every else [])
    prices = st.integers(0, 4).map(float)
    return Overlay.build(
        "drawn",
        [f"v{i}" for i in range(count)],
        [Link(f"v{a}", f"v{b}", draw(prices), draw(prices), draw(prices)) for a, b in sorted(pairs)],
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Overlay, TerminalSets]:
    overlay = draw(overlays())
    brokers = st.integers(0, len(overlay) - 1)
    rows = draw(st.lists(st.tuples(brokers, st.lists(brokers, max_size=6)), min_size=1, max_size=4))
    return overlay, TerminalSets.of(rows)


@st.composite
def directed(draw: st.DrawFn, most: int, arcs: int) -> tuple[Rows, int, list[int]]:
    """Compressed rows of any directed graph, connected or not; a root and terminals."""
    count = draw(st.integers(1, most))
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    chosen = sorted(draw(st.lists(st.sampled_from(pairs), unique=True, max_size=arcs)) if pairs else [])
    start = np.searchsorted([i for i, _ in chosen], np.arange(count + 1)).astype(np.int32)
    neighbor = np.array([j for _, j in chosen], dtype=np.int32)
    weights = draw(st.lists(st.integers(0, 4), min_size=len(chosen), max_size=len(chosen)))
    brokers = st.integers(0, count - 1)
    terminals = draw(st.lists(brokers, max_size=5))
    return (start, neighbor, np.array(weights, dtype=np.float64)), draw(brokers), terminals


def optimum(overlay: Overlay, weight: Weight, brokers: npt.NDArray[np.int32]) -> float:
    start, neighbor, _, _ = overlay.adjacency
    return exact_cost(start, neighbor, arc_weights(overlay, weight), int(brokers[0]), brokers[1:].tolist())


def by_every_choice_of_arcs(rows: Rows, root: int, terminals: list[int]) -> float:
    start, neighbor, weight = rows
    tail = np.repeat(np.arange(len(start) - 1), np.diff(start))
    best = np.inf
    for size in range(len(neighbor) + 1):
        for chosen in map(list, combinations(range(len(neighbor)), size)):
            if weight[chosen].sum() < best:
                graph = nx.DiGraph([(int(tail[a]), int(neighbor[a])) for a in chosen])
                graph.add_node(root)
                if set(terminals) <= nx.descendants(graph, root) | {root}:
                    best = float(weight[chosen].sum())
    return best


@given(directed(most=5, arcs=9))
def test_the_exact_cost_is_that_of_the_best_choice_of_arcs(problem: tuple[Rows, int, list[int]]) -> None:
    rows, root, terminals = problem
    assert exact_cost(*rows, root, terminals) == by_every_choice_of_arcs(rows, root, terminals)


@given(directed(most=9, arcs=40))
def test_dual_ascent_never_exceeds_the_optimum(problem: tuple[Rows, int, list[int]]) -> None:
    rows, root, terminals = problem
    exact = exact_cost(*rows, root, terminals)
    (bound,) = dual_ascent(*rows, TerminalSets.of([(root, terminals)]))
    assert 0 <= bound <= exact
    assert np.isinf(bound) == np.isinf(exact)


@given(directed(most=9, arcs=40), st.randoms(use_true_random=False))
def test_dual_ascent_holds_for_weights_that_do_not_add_up_evenly(
    problem: tuple[Rows, int, list[int]], random: object
) -> None:
    (start, neighbor, weight), root, terminals = problem
    uneven = weight * np.array([random.uniform(0.01, 1) for _ in weight])  # type: ignore[attr-defined]
    exact = exact_cost(start, neighbor, uneven, root, terminals)
    (bound,) = dual_ascent(start, neighbor, uneven, TerminalSets.of([(root, terminals)]))
    assert bound <= exact * (1 + 1e-9)


@given(directed(most=9, arcs=40), st.integers(0, 8))
def test_for_one_terminal_bound_and_optimum_are_the_distance(
    problem: tuple[Rows, int, list[int]], target: int
) -> None:
    (start, neighbor, weight), root, _ = problem
    target %= len(start) - 1
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(start) - 1))
    for i in range(len(start) - 1):
        for a in range(start[i], start[i + 1]):
            graph.add_edge(i, int(neighbor[a]), weight=weight[a])
    distance = nx.single_source_dijkstra_path_length(graph, root).get(target, np.inf)
    assert exact_cost(start, neighbor, weight, root, [target]) == distance
    assert dual_ascent(start, neighbor, weight, TerminalSets.of([(root, [target])])).tolist() == [distance]


@given(problems(), st.sampled_from(SYMMETRIC), st.sampled_from(["first", "all", "blocks", "insert"]))
def test_trees_are_within_the_guarantee(
    problem: tuple[Overlay, TerminalSets], weight: Weight, roots: Roots
) -> None:
    overlay, sets = problem
    for i, cost in enumerate(Steiner.of(overlay, weight).costs(sets, roots)):
        best = optimum(overlay, weight, sets[i])
        assert best <= cost <= 2 * (1 - 1 / len(sets[i])) * best


@given(problems(), st.sampled_from(["first", "blocks", "insert"]))
def test_priced_trees_cost_no_more_than_a_path_to_each(
    problem: tuple[Overlay, TerminalSets], roots: Roots
) -> None:
    overlay, sets = problem
    priced = Steiner.of(overlay, "price")
    for i, cost in enumerate(priced.costs(sets, roots)):
        assert optimum(overlay, "price", sets[i]) <= cost <= priced.distance[sets[i][0], sets[i]].sum()


@given(problems(), st.sampled_from(CHOICES))
def test_trees_are_trees_of_existing_links_away_from_the_root(
    problem: tuple[Overlay, TerminalSets], choice: tuple[Weight, Roots]
) -> None:
    overlay, sets = problem
    weight, roots = choice
    trees = Steiner.of(overlay, weight).trees(sets, roots)
    start, neighbor, _, _ = overlay.adjacency
    arcs = arc_weights(overlay, weight)
    assert len(trees) == len(sets)
    np.testing.assert_array_equal(trees.cost, Steiner.of(overlay, weight).costs(sets, roots))
    for i in range(len(sets)):
        row = slice(trees.start[i], trees.start[i + 1])
        parents, children = trees.parent[row].tolist(), trees.child[row].tolist()
        reached = {int(sets[i][0])}
        cost = 0.0
        for parent, child, link in zip(parents, children, trees.link[row].tolist(), strict=True):
            assert parent in reached
            assert child not in reached
            assert {parent, child} == set(overlay.ends[link].tolist())
            reached.add(child)
            at = start[parent] + np.searchsorted(neighbor[start[parent] : start[parent + 1]], child)
            cost += arcs[at]
        assert cost == trees.cost[i]
        assert set(sets[i].tolist()) <= reached
        assert set(children) - set(parents) <= set(sets[i].tolist())
        assert not parents or parents.count(int(sets[i][0])) >= 1


def grown_from(steiner: Steiner, brokers: npt.NDArray[np.int32], first: int) -> int:
    count = len(steiner.overlay)
    room = grow_room(count, steiner.distance.dtype)
    return grow_tree(steiner.distance, steiner.predecessor, brokers, len(brokers), first, 1, room)


def grow_room(nodes: int, kind: npt.DTypeLike) -> GrowRoom:
    left, via, node, parent = (np.empty(nodes, dtype=np.int32) for _ in range(4))
    return GrowRoom(np.zeros(nodes, dtype=np.int64), left, np.empty(nodes, dtype=kind), via, node, parent)


def test_the_start_is_the_root_or_the_best_of_all_terminals() -> None:
    steiner = Steiner.of(transit_stub(150, 4))
    rng = np.random.default_rng(1)
    sets = TerminalSets.of((int(row[0]), row.tolist()) for row in rng.integers(0, 150, (100, 9)))
    links = [[grown_from(steiner, sets[i], k) - 1 for k in range(len(sets[i]))] for i in range(len(sets))]
    assert steiner.costs(sets).tolist() == [row[0] for row in links]
    assert steiner.costs(sets, "all").tolist() == [min(row) for row in links]
    assert any(min(row) < row[0] for row in links)


@pytest.mark.parametrize(("weight", "roots"), CHOICES)
def test_a_set_costs_the_same_in_any_company(weight: Weight, roots: Roots) -> None:
    overlay = transit_stub(150, 4)
    rng = np.random.default_rng(8)
    sets = TerminalSets.of((int(row[0]), row.tolist()) for row in rng.integers(0, 150, (60, 9)))
    order = rng.permutation(len(sets))
    shuffled = sets.take(order)
    steiner = Steiner.of(overlay, weight)
    np.testing.assert_array_equal(steiner.costs(sets, roots)[order], steiner.costs(shuffled, roots))
    np.testing.assert_array_equal(
        lower_bounds(overlay, sets, weight)[order], lower_bounds(overlay, shuffled, weight)
    )
    some = steiner.trees(sets.take(order[:1]), roots)
    trees = steiner.trees(shuffled, roots)
    np.testing.assert_array_equal(some.link, trees.link[: trees.start[1]])


@given(problems(), st.sampled_from(WEIGHTS))
def test_local_search_never_makes_a_tree_dearer(
    problem: tuple[Overlay, TerminalSets], weight: Weight
) -> None:
    overlay, sets = problem
    steiner = Steiner.of(overlay, weight)
    assert (steiner.costs(sets, "insert") <= steiner.costs(sets, "first")).all()


def mesh(brokers: int, seed: int) -> Overlay:
    """Every pair joined, at a price that depends on the direction."""
    ends = list(combinations(range(brokers), 2))
    price = np.random.default_rng(seed).integers(1, 20, (len(ends), 2)).astype(float)
    return Overlay.from_arrays("mesh", [f"v{i}" for i in range(brokers)], ends, price=price)


def sparse(brokers: int, seed: int) -> Overlay:
    """More brokers than local search looks at one by one, on a ring with chords."""
    rng = np.random.default_rng(seed)
    chords = {(min(a, b), max(a, b)) for a, b in rng.integers(0, brokers, (brokers, 2)).tolist() if a != b}
    ends = sorted(chords | {(i, i + 1) for i in range(brokers - 1)} | {(0, brokers - 1)})
    price = rng.integers(1, 20, (len(ends), 2)).astype(float)
    return Overlay.from_arrays("sparse", [f"v{i}" for i in range(brokers)], ends, price=price)


@pytest.mark.parametrize(
    ("overlay", "found", "over"), [(mesh(12, 2), 0.6, 1.05), (sparse(90, 3), 0.6, 1.02)]
)
def test_local_search_mostly_finds_the_best_tree(overlay: Overlay, found: float, over: float) -> None:
    rng = np.random.default_rng(4)
    rows = [rng.choice(len(overlay), 6, replace=False).tolist() for _ in range(150)]
    sets = TerminalSets.of((row[0], row) for row in rows)
    best = np.array([optimum(overlay, "price", sets[i]) for i in range(len(sets))])
    steiner = Steiner.of(overlay, "price")
    cost, first = steiner.costs(sets, "insert"), steiner.costs(sets, "first")
    assert ((best <= cost) & (cost <= first)).all()
    assert (cost == best).mean() >= found > (first == best).mean()
    assert cost.sum() <= over * best.sum() < first.sum()


def test_a_broker_that_nobody_asked_for_joins_where_it_saves() -> None:
    # From the root to each terminal costs 10; by way of the hub, 8 once and then 3 each.
    ends = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 4)]
    price = [(10.0, 9.0)] * 3 + [(8.0, 9.0)] + [(9.0, 3.0)] * 3
    overlay = Overlay.from_arrays("hub", "rabch", ends, price=price)
    steiner, sets = Steiner.of(overlay, "price"), TerminalSets.of([(0, [1, 2, 3]), (0, [1, 2]), (0, [1])])
    assert steiner.costs(sets, "first").tolist() == [30.0, 20.0, 10.0]
    trees = steiner.trees(sets, "insert")
    assert trees.cost.tolist() == [17.0, 14.0, 10.0]
    assert trees.parent[:4].tolist() == [0, 4, 4, 4]
    assert trees.child[:4].tolist() == [4, 1, 2, 3]


def test_a_terminal_that_is_cheap_to_leave_joins_first() -> None:
    # The last is a little farther from the root than the others, but only it leads on for 1.
    ends = [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]
    price = [(10.0, 10.0)] * 2 + [(11.0, 10.0)] + [(10.0, 1.0)] * 2
    overlay = Overlay.from_arrays("gate", "rabg", ends, price=price)
    steiner, sets = Steiner.of(overlay, "price"), TerminalSets.of([(0, [1, 2, 3])])
    assert steiner.costs(sets, "first").tolist() == [30.0]
    assert steiner.costs(sets, "insert").tolist() == [13.0]


def test_bounds_and_trees_nearly_meet_on_a_transit_stub_overlay() -> None:
    overlay = transit_stub(400, 2)
    rng = np.random.default_rng(5)
    sets = TerminalSets.of((int(row[0]), row.tolist()) for row in rng.integers(0, 400, (300, 11)))
    for weight in SYMMETRIC:
        steiner = Steiner.of(overlay, weight)
        first, blocks = steiner.costs(sets).sum(), steiner.costs(sets, "blocks").sum()
        bound = lower_bounds(overlay, sets, weight).sum()
        assert bound <= blocks <= first
        assert bound >= 0.98 * first
        assert bound >= 0.998 * blocks


def test_a_path_that_crosses_the_tree_adds_only_its_end() -> None:
    # From 0 and from 1 it is equally far to 2, and the way from 0, which joined first, leads through 1.
    overlay = Overlay.from_arrays("line", "abc", [(0, 1), (1, 2)], latency_ms=[0.0, 1.0])
    trees = Steiner.of(overlay, "latency").trees(TerminalSets.of([(0, [1, 2])]))
    assert (trees.cost.tolist(), trees.child.tolist(), trees.parent.tolist()) == ([1.0], [1, 2], [0, 1])


def test_kernels_of_others_can_grow_one_tree() -> None:
    found = all_pairs(ring(6))
    room = grow_room(6, found.distance.dtype)
    node, parent = room.tree_node, room.tree_parent
    for stamp, terminals in enumerate(permutations([0, 2, 3]), start=1):
        chosen = np.array(terminals, dtype=np.int32)
        size = grow_tree(found.distance, found.predecessor, chosen, 3, 0, stamp, room)
        assert set(node[:size].tolist()) == {0, 1, 2, 3}
        assert (node[0], parent[0]) == (terminals[0], -1)


def test_single_brokers_cost_nothing() -> None:
    sets = TerminalSets.of([(2, []), (0, [0]), (4, [3])])
    for weight, roots in CHOICES:
        steiner = Steiner.of(ring(5), weight)
        assert steiner.costs(sets, roots).tolist() == [0.0, 0.0, 1.0]
        assert steiner.trees(sets, roots).start.tolist() == [0, 0, 0, 1]
        assert lower_bounds(ring(5), sets, weight).tolist() == [0.0, 0.0, 1.0]
    assert Steiner.of(line(1)).costs(TerminalSets.of([(0, [])])).tolist() == [0.0]
    assert len(Steiner.of(line(0)).trees(TerminalSets.of([]))) == 0


def test_trees_need_a_connected_overlay() -> None:
    islands = Overlay.build("islands", "abc", [Link.symmetric("a", "b")])
    with pytest.raises(DisconnectedError):
        Steiner.of(islands)
    with pytest.raises(DisconnectedError):
        lower_bounds(islands, TerminalSets.of([(0, [1])]))


def test_what_kernels_could_not_survive_is_refused() -> None:
    outside = TerminalSets.of([(0, [1]), (0, [2, 5])])
    empty = TerminalSets(np.array([0, 0]), np.empty(0, dtype=np.int32), np.ones(1))
    steiner = Steiner.of(ring(5))
    rows = (*ring(5).adjacency[:2], arc_weights(ring(5), "hops"))
    for call in (steiner.costs, steiner.trees, lambda sets: dual_ascent(*rows, sets)):
        with pytest.raises(OverlayError, match="set 1 names broker 5"):
            call(outside)
        with pytest.raises(OverlayError, match="at least its root"):
            call(empty)
    with pytest.raises(OverlayError, match="broker -1"):
        exact_cost(*rows, -1, [0])
    start, neighbor, weight = rows
    one = TerminalSets.of([(0, [1])])
    for bad in ((start[:-1], neighbor, weight), (start, neighbor + 3, weight), (start, neighbor, -weight)):
        with pytest.raises(OverlayError):
            dual_ascent(*bad, one)
    with pytest.raises(OverlayError, match="9 weights for 10 arcs"):
        dual_ascent(start, neighbor, weight[:-1], one)


def test_choices_without_meaning_are_refused() -> None:
    one = TerminalSets.of([(0, [1])])
    with pytest.raises(InputError, match="no meaning for the weight 'price'"):
        Steiner.of(ring(5), "price").costs(one, "all")
    with pytest.raises(InputError, match="unknown choice of roots 'some'"):
        Steiner.of(ring(5)).trees(one, "some")  # type: ignore[arg-type]


def test_the_exact_cost_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (*ring(20).adjacency[:2], arc_weights(ring(20), "hops"))
    assert exact_cost(*rows, 0, range(13)) == 12.0
    with pytest.raises(LimitError, match="13 terminals besides the root"):
        exact_cost(*rows, 0, range(14))
    monkeypatch.setattr(module, "MAX_EXACT_ENTRIES", 79)
    with pytest.raises(LimitError, match="79 entries"):
        exact_cost(*rows, 0, [1, 2])
