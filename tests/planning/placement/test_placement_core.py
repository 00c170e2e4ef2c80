"""Routing in the core, the model, and the paper's algorithms against plain versions of themselves."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import InputError, LimitError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.planning.placement.core import Routing, assess
from ramify.planning.placement.heuristics import clustering, greedy, mixing, mixing_weights
from ramify.planning.placement.model import MOST_PAIRS, PlacementProblem, core_from_prices
from ramify.workloads.catalog import workload_from

HUB = np.array([[0, 2, 2, 1], [2, 0, 2, 1], [2, 2, 0, 1], [1, 1, 1, 0]], dtype=float)


def names(count: int, letter: str = "u") -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def one_publisher(core: Overlay, at: list[int], rate: float = 1.0) -> PlacementProblem:
    """A user at each of some brokers; the first publishes, the others want it; access is free."""
    users = len(at)
    rates = np.zeros((users, 1))
    rates[0] = rate
    wanted = np.ones((users, 1), dtype=bool)
    wanted[0] = False
    return PlacementProblem.of(names(users), core, rates, wanted, np.zeros((users, len(core))))


def test_a_spanning_tree_of_the_group_is_not_the_optimum_under_the_triangle_inequality() -> None:
    """Section III-A claims that it is: three brokers 2 apart, a hub 1 from each."""
    problem = one_publisher(core_from_prices(HUB, names(4, "b")), [0, 1, 2])
    cost = {routing: assess(problem, [0, 1, 2], routing).core for routing in ("mst", "steiner", "tree")}
    assert cost == {"mst": 4.0, "steiner": 3.0, "tree": 3.0}


def test_more_brokers_than_a_table_holds_find_the_hub_too() -> None:
    core = np.full((16, 16), 50.0)
    core[:4, :4] = HUB
    problem = one_publisher(core_from_prices(core, names(16, "b")), [0, 1, 2])
    assert assess(problem, [0, 1, 2], "mst").core == 4.0
    assert assess(problem, [0, 1, 2], "steiner").core == 3.0


@given(seed=st.integers(0, 10**6), brokers=st.sampled_from([3, 8, 15, 66]))
@settings(max_examples=40, deadline=None)
def test_each_routing_costs_what_a_plain_version_says(seed: int, brokers: int) -> None:
    rng = np.random.default_rng(seed)
    spots = rng.random((brokers, 2))
    core = core_from_prices(np.abs(spots[:, None] - spots).sum(axis=2), names(brokers, "b"))
    at = rng.permutation(brokers)[: int(rng.integers(2, min(brokers, 12) + 1))].tolist()
    problem = one_publisher(core, at, rate=2.0)
    graph = nx.Graph()
    for (a, b), price in zip(core.ends.tolist(), core.price[:, 0].tolist(), strict=True):
        graph.add_edge(a, b, weight=price)
    far = dict(nx.all_pairs_dijkstra_path_length(graph))
    complete = nx.Graph()
    complete.add_weighted_edges_from((a, b, far[a][b]) for a in at for b in at if a < b)
    mst = nx.minimum_spanning_tree(complete).size(weight="weight")
    assert assess(problem, at, "mst").core == pytest.approx(2 * mst)
    steiner = assess(problem, at, "steiner").core
    assert steiner <= 2 * mst * (1 + 1e-9)
    assert steiner >= mst * (1 - 1e-9)  # a spanning tree costs at most twice the optimum
    one = nx.minimum_spanning_tree(graph)
    used = {frozenset(pair) for b in at for pair in _pairs(nx.shortest_path(one, at[0], b))}
    assert assess(problem, at, "tree").core == pytest.approx(
        2 * sum(far[a][b] for a, b in map(tuple, used))
    )
    paths = assess(problem, at, "paths").core
    assert paths <= 2 * sum(far[at[0]][b] for b in at) * (1 + 1e-9)
    assert paths >= 2 * max(far[at[0]][b] for b in at) * (1 - 1e-9)


def _pairs(path: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(path))


@given(seed=st.integers(0, 10**6), brokers=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_links_that_are_left_out_change_no_distance(seed: int, brokers: int) -> None:
    rng = np.random.default_rng(seed)
    price = rng.choice([0.0, 1.0, 2.0, 3.5, np.inf], (brokers, brokers), p=[0.1, 0.3, 0.3, 0.2, 0.1])
    price = np.minimum(price, price.T)
    price[0] = np.minimum(price[0], 6.0)  # connected
    price[:, 0] = price[0]
    core = core_from_prices(price, names(brokers, "b"))
    problem = one_publisher(core, [0])
    far = price.copy()
    np.fill_diagonal(far, 0)
    for k in range(brokers):
        far = np.minimum(far, far[:, k, None] + far[k])
    assert np.allclose(problem.paths.distance, far)


def test_publishers_at_one_broker_share_a_tree_and_nobody_pays_for_what_nobody_wants() -> None:
    core = core_from_prices(1 - np.eye(3), names(3, "b"))
    rate = np.array([[2.0, 5.0], [3.0, 0.0], [0.0, 0.0]])
    wanted = np.array([[False, False], [True, False], [True, False]])
    problem = PlacementProblem.of(names(3), core, rate, wanted, np.ones((3, 3)))
    placed = assess(problem, [0, 0, 2])
    assert placed.core == pytest.approx(2 + 3)
    assert placed.access == pytest.approx((2 + 5) + (3 + 2) + (2 + 3))
    assert problem.groups[0].tolist() == [[2.0], [3.0], [0.0]]
    assert problem.traffic_matrix().tolist() == [[0, 2, 2], [0, 0, 3], [0, 0, 0]]


def workload_problem(spec: str, brokers: int, seed: int = 1) -> PlacementProblem:
    overlay = overlay_from(f"majumder:{brokers}")
    workload = workload_from(spec, overlay, seed)
    return PlacementProblem.of_arrays(workload.publishers, overlay.brokers, workload.arrays)


def test_the_workload_of_the_paper_becomes_a_problem() -> None:
    problem = workload_problem("zhao_wu:users=200,sub_channels=8", 20)
    assert problem.channels == 8
    assert problem.capacity.sum() == pytest.approx(2 * problem.demand.sum())
    heard = problem.traffic_matrix().sum(axis=0)
    # whole bins: the cover of an interval holds at least the interval
    assert (problem.rate_in <= heard * (1 + 1e-9) + 1e-9).all()


def test_greedy_takes_the_cheapest_broker_with_room_in_the_order_of_users() -> None:
    problem = workload_problem("zhao_wu:users=120,sub_channels=4,capacity_factor=1.2", 12)
    load, expected = np.zeros(12), []
    for u in range(120):
        fits = [b for b in range(12) if load[b] + problem.demand[u] <= problem.room[b]]
        expected.append(min(fits, key=lambda b: (problem.access_price[u, b], b)))
        load[expected[-1]] += problem.demand[u]
    assert greedy(problem, np.random.default_rng(0)).broker.tolist() == expected


def test_clustering_takes_the_largest_ratio_of_traffic_to_price() -> None:
    problem = workload_problem("zhao_wu:users=60,sub_channels=4,access=random", 5)
    traffic = problem.traffic_matrix()
    both = traffic + traffic.T
    price, load = problem.access_price, np.zeros(5)
    at = np.full(60, -1)

    def fits(b: int, *users: int) -> bool:
        return bool(load[b] + problem.demand[list(users)].sum() <= problem.room[b])

    for b in range(5):
        free = np.flatnonzero(at < 0).tolist()
        pairs = [(i, j) for i in free for j in free if i < j and fits(b, i, j)]
        best = max(pairs, key=lambda pair: both[pair] / (price[pair[0], b] + price[pair[1], b]))
        at[list(best)] = b
        load[b] += problem.demand[list(best)].sum()
    for u in np.flatnonzero(at < 0).tolist():
        ratio = {b: both[u, at == b].sum() / price[u, b] for b in range(5) if fits(b, u)}
        at[u] = max(ratio, key=lambda b: ratio[b])
        load[at[u]] += problem.demand[u]
    assert clustering(problem, np.random.default_rng(0)).broker.tolist() == at.tolist()


def plain_weights(problem: PlacementProblem) -> np.ndarray:
    """Algorithm 3 by its words: one user at a time, for each publisher and sub-channel by itself."""
    users, brokers = problem.access_price.shape
    rate, wanted = problem.groups
    far, before = problem.paths.distance, problem.paths.predecessor
    weight = np.zeros((users, brokers))

    def way(b: int, u: int) -> tuple[float, float, int]:
        """From a broker to a user: length, access price and last broker of the best way."""
        ends = range(brokers)
        best = min(far[b, end] + problem.access_price[u, end] for end in ends)
        near = [e for e in ends if far[b, e] + problem.access_price[u, e] <= best * (1 + 1e-11)]
        last = min(near, key=lambda end: problem.access_price[u, end])
        return best, problem.access_price[u, last], last

    for s, c in np.argwhere(rate > 0).tolist():
        waiting = [u for u in range(users) if wanted[u, c] and u != s]
        if not waiting:
            continue
        price = problem.access_price[s]
        root = min(range(brokers), key=lambda b: (price[b] + min(way(b, u)[0] for u in waiting), price[b]))
        weight[s, root] += rate[s, c]
        tree = [root]
        while waiting:
            _, u, via = min((way(b, u)[0], u, b) for u in waiting for b in tree)
            last = way(via, u)[2]
            weight[u, last] += rate[s, c]
            waiting.remove(u)
            b = last
            while b not in tree:
                tree.append(b)
                b = int(before[via, b])
    return weight


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_mixing_weighs_access_links_as_the_trees_of_single_publishers_do(ratio: float) -> None:
    """Publishers that want nothing themselves, so that sharing a tree is no departure."""
    spec = f"zhao_wu:users=24,sub_channels=3,access=random,access_to_core_ratio={ratio}"
    drawn = workload_problem(spec, 7, seed=3)
    silent = np.arange(24) % 2 == 0
    problem = PlacementProblem.of(
        drawn.users,
        drawn.core,
        np.where(silent[:, None], 0.0, drawn.rate),
        drawn.subscribed & silent[:, None],
        drawn.access_price,
    )
    assert np.allclose(mixing_weights(problem), plain_weights(problem))


def test_mixing_draws_only_brokers_that_some_tree_joined_while_they_have_room() -> None:
    problem = workload_problem("zhao_wu:users=80,sub_channels=4,access=random,capacity_factor=100", 9)
    weight = mixing_weights(problem)
    total = weight.sum(axis=1)
    for seed in range(5):
        at = mixing(problem, np.random.default_rng(seed)).broker
        assert (weight[np.arange(80), at] > 0)[total > 0].all()
    # the weight of a user is all its traffic by sub-channels
    heard = problem.rate.sum(axis=1) + problem.traffic_matrix().sum(axis=0)
    told = problem.traffic_matrix().any(axis=1)
    assert np.allclose(total[told], heard[told])


def test_faults_of_a_problem_are_named() -> None:
    core = core_from_prices(1 - np.eye(2), names(2, "b"))
    fine = {
        "rate": np.ones((2, 1)),
        "subscribed": np.ones((2, 1), dtype=bool),
        "access_price": np.ones((2, 2)),
    }
    for change, said in (
        ({"rate": -np.ones((2, 1))}, "rate holds a number below 0"),
        ({"rate": np.full((2, 1), np.inf)}, "infinite"),
        ({"subscribed": np.ones((2, 3), dtype=bool)}, "subscribed has the shape"),
        ({"access_price": np.full((2, 2), np.inf)}, "may use no broker"),
        ({"capacity": [1.0]}, "capacity has the shape"),
    ):
        with pytest.raises(InputError, match=said):
            PlacementProblem.of(names(2), core, **(fine | change))
    with pytest.raises(InputError, match="twice"):
        PlacementProblem.of(["u", "u"], core, **fine)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="direction"):
        core_from_prices([[0, 1], [2, 0]], names(2, "b"))
    problem = PlacementProblem.of(names(2), core, **fine, capacity=[3.0, 1.0])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="would bear 4 of at most 3"):
        assess(problem, [0, 0])
    unknown: Routing = "fly"  # type: ignore[assignment]
    with pytest.raises(InputError, match="unknown routing"):
        assess(PlacementProblem.of(names(2), core, **fine), [0, 1], unknown)  # type: ignore[arg-type]


def test_a_traffic_matrix_has_a_limit() -> None:
    users = int(MOST_PAIRS**0.5) + 1
    core = core_from_prices([[0.0]], ["b0"])
    problem = PlacementProblem.of(
        names(users), core, np.zeros((users, 1)), np.zeros((users, 1), dtype=bool), np.ones((users, 1))
    )
    with pytest.raises(LimitError, match="traffic matrix"):
        problem.traffic_matrix()
