"""Placements against brute force, and what every algorithm of them must keep."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.compiled import compiled
from ramify.errors import InputError, LimitError, PlacementError
from ramify.network.graphs.distances import arc_weights
from ramify.network.trees.steiner import exact_cost
from ramify.planning.placement.capacity import require_room
from ramify.planning.placement.core import Routing, assess, given_of, state_of, trees_of
from ramify.planning.placement.exact import exact_placement
from ramify.planning.placement.heuristics import HEURISTICS, greedy
from ramify.planning.placement.local_search import improved, local_search, starts
from ramify.planning.placement.model import PlacementProblem, core_from_prices
from ramify.planning.placement.rounds import PER_MOVE, in_rounds
from ramify.planning.placement.search_kernels import move, move_cost

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

QUICK = (4, 7, 9)
"""Seeds whose programs are solved in a second."""

SEARCHED: tuple[Routing, ...] = ("mst", "steiner", "tree")


def drawn(seed: int, users: int, brokers: int, channels: int, *, slack: float = 1.7) -> PlacementProblem:
    """Users and brokers on a plane, prices by distance; some users may not use some brokers."""
    rng = np.random.default_rng(seed)
    spots, homes = rng.random((brokers, 2)), rng.random((users, 2))
    core = np.abs(spots[:, None] - spots).sum(axis=2)
    rate = rng.random((users, channels)) * (rng.random((users, channels)) < 0.5)
    subscribed = rng.random((users, channels)) < 0.4
    access = np.abs(homes[:, None] - spots).sum(axis=2) * rng.choice([0.3, 1.0, 3.0])
    access[(rng.random(access.shape) < 0.15) & (np.arange(brokers) > 0)] = np.inf
    names = [f"u{u}" for u in range(users)]
    network = core_from_prices(core, [f"b{b}" for b in range(brokers)])
    free = PlacementProblem.of(names, network, rate, subscribed, access)
    capacity = np.full(brokers, max(slack * free.demand.sum() / brokers, free.demand.max()))
    return PlacementProblem.of(names, network, rate, subscribed, access, capacity)


def plain_cost(problem: PlacementProblem, at: tuple[int, ...]) -> float:
    """The cost by the definition: publisher by publisher, sub-channel by sub-channel, exact trees."""
    arcs = (*problem.core.adjacency[:2], arc_weights(problem.core, "mean_price"))
    total = 0.0
    for u, b in enumerate(at):
        total += problem.access_price[u, b] * (problem.rate_out[u] + problem.rate_in[u])
        for c in range(problem.channels):
            others = {at[j] for j in range(len(at)) if j != u and problem.subscribed[j, c]} - {b}
            if problem.rate[u, c] > 0 and others:
                total += problem.rate[u, c] * exact_cost(*arcs, b, sorted(others))
    return total


def feasible(problem: PlacementProblem) -> list[tuple[int, ...]]:
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed]
    return [at for at in itertools.product(*choices) if (problem.load(at) <= problem.room).all()]


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_placement_is_that_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, brokers, channels = int(rng.integers(2, 7)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    problem = drawn(seed, users, brokers, channels, slack=float(rng.choice([1.05, 1.5, 3.0])))
    every = feasible(problem)
    if not every:
        with pytest.raises(PlacementError) as raised:
            exact_placement(problem)
        assert raised.value.proven
        return
    best = min(assess(problem, at).total for at in every)
    found = exact_placement(problem)
    assert found.optimal
    assert found.placement.total == pytest.approx(best)
    assert found.bound == pytest.approx(best, rel=1e-6)
    assert found.relaxed <= best * (1 + 1e-9)
    assert plain_cost(problem, tuple(found.placement.broker.tolist())) == pytest.approx(best)


@given(seed=st.integers(0, 10**6), users=st.integers(1, 6), brokers=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_placement_costs_what_the_definition_says(seed: int, users: int, brokers: int) -> None:
    problem = drawn(seed, users, brokers, 3, slack=100.0)
    at = tuple(int(np.argmax(row)) for row in problem.allowed)
    assert assess(problem, at, "steiner").total == pytest.approx(plain_cost(problem, at))


@compiled
def exhaustive(
    table: Floats, rate: Floats, wanted: Bools, access: Floats, demand: Floats, room: Floats, best: float
) -> float:
    """The least cost over all placements, user by user; what access alone makes dearer is passed over."""
    users, brokers = access.shape
    channels = rate.shape[1]
    at = np.full(users, -1)
    load = np.zeros(brokers)
    spent = np.zeros(users + 1)
    u = 0
    while u >= 0:
        if at[u] >= 0:
            load[at[u]] -= demand[u]
        at[u] += 1
        if at[u] == brokers:
            at[u] = -1
            u -= 1
            continue
        load[at[u]] += demand[u]
        spent[u + 1] = spent[u] + access[u, at[u]] * demand[u]
        if load[at[u]] > room[at[u]] or spent[u + 1] >= best:
            continue
        if u < users - 1:
            u += 1
            continue
        cost = spent[users]
        for c in range(channels):
            mask = 0
            for v in range(users):
                if wanted[v, c]:
                    mask |= 1 << at[v]
            for v in range(users):
                if mask:
                    cost += rate[v, c] * table[mask | (1 << at[v])]
        best = min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_local_search_is_within_two_percent_of_the_optimum(seed: int) -> None:
    problem = drawn(seed, 10, 5, 4)
    found = local_search(problem, np.random.default_rng(seed)).total
    table = trees_of(problem, "steiner").table
    prices = (problem.access_price, problem.demand, problem.room)
    optimum = exhaustive(table, problem.rate, problem.subscribed, *prices, found * (1 + 1e-9))
    assert found <= 1.02 * optimum
    if seed in QUICK:
        assert exact_placement(problem).placement.total == pytest.approx(optimum)


@pytest.mark.parametrize("routing", SEARCHED)
def test_no_algorithm_breaks_a_capacity_and_local_search_is_never_above_the_best(routing: Routing) -> None:
    for seed in range(6):
        problem = drawn(seed, 40, 14, 5)
        begun = starts(problem, np.random.default_rng(seed), routing)
        for one in begun:
            assert (one.load <= problem.capacity * (1 + 1e-9)).all()
            assert problem.allowed[np.arange(40), one.broker].all()
            better = improved(problem, one.broker, np.random.default_rng(seed), routing)
            assert better.total <= one.total * (1 + 1e-12)
        best = local_search(problem, np.random.default_rng(seed), routing, given=begun)
        assert best.total <= min(one.total for one in begun)
        assert (best.load <= problem.capacity * (1 + 1e-9)).all()


@given(
    seed=st.integers(0, 10**6),
    brokers=st.sampled_from([2, 5, 11, 12, 70]),
    routing=st.sampled_from(SEARCHED),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 69)), max_size=12),
)
@settings(max_examples=60, deadline=None)
def test_a_move_is_priced_as_the_difference_of_two_placements(
    seed: int, brokers: int, routing: Routing, steps: list[tuple[int, int]]
) -> None:
    problem = drawn(seed, 10, brokers, 4, slack=1000.0)
    at = np.array([int(np.argmax(row)) for row in problem.allowed], dtype=np.int32)
    trees, arrays = trees_of(problem, routing), given_of(problem)
    state = state_of(problem, trees, at)
    total = assess(problem, at, routing).total
    for u, b in steps:
        b %= brokers
        if b == at[u] or not problem.allowed[u, b]:
            continue
        rise = move_cost(arrays, trees, state, u, b, np.inf)
        move(arrays, trees, state, u, b)
        at[u] = b
        after = assess(problem, at, routing).total
        assert after - total == pytest.approx(rise, abs=1e-9 * max(total, 1))
        total = after
    fresh = state_of(problem, trees, at)
    for name in ("load", "wanting", "rate_at", "group", "tree"):
        assert np.allclose(getattr(state, name), getattr(fresh, name), atol=1e-9), name
    assert (state.members == fresh.members).all()


@pytest.mark.parametrize("routing", SEARCHED)
def test_rounds_never_raise_the_cost_and_end_where_no_move_pays(routing: Routing) -> None:
    for seed in range(6):
        problem = drawn(seed, 25, 6, 4)
        start = HEURISTICS["random"](problem, np.random.default_rng(seed), routing)
        done = in_rounds(problem, start, routing)
        costs = [one.cost for one in done.rounds]
        assert costs[0] == pytest.approx(start.total)
        assert all(after <= before for before, after in itertools.pairwise(costs))
        assert costs[-1] == pytest.approx(done.placement.total)
        assert done.rounds[-1].moves == 0
        assert done.messages == 6 * 5 + done.moves * (PER_MOVE + 2 * 5)
        at = done.placement.broker
        for u, b in itertools.product(range(25), range(6)):
            moved = at.copy()
            moved[u] = b
            if problem.allowed[u, b] and (problem.load(moved) <= problem.room).all():
                assert assess(problem, moved, routing).total >= done.placement.total * (1 - 1e-8)


def test_users_that_decline_stay_and_are_asked_once_per_broker() -> None:
    problem = drawn(3, 25, 6, 4)
    start = HEURISTICS["random"](problem, np.random.default_rng(3), "steiner")
    asked: list[tuple[str, str]] = []

    def stubborn(user: str, broker: str) -> bool:
        asked.append((user, broker))
        return int(user[1:]) % 2 == 0

    done = in_rounds(problem, start, policy=stubborn)
    odd = np.arange(25) % 2 == 1
    assert (done.placement.broker[odd] == start.broker[odd]).all()
    assert (done.placement.broker[~odd] != start.broker[~odd]).any()
    refused = [one for one in asked if int(one[0][1:]) % 2]
    assert len(refused) == len(set(refused)) == sum(one.declined for one in done.rounds) > 0


def test_algorithms_are_deterministic_for_a_seed() -> None:
    problem = drawn(5, 60, 13, 4)
    for name, heuristic in HEURISTICS.items():
        one, two = (heuristic(problem, np.random.default_rng(7), "mst") for _ in range(2))
        assert (one.broker == two.broker).all(), name
    one, two = (local_search(problem, np.random.default_rng(7)) for _ in range(2))
    assert (one.broker == two.broker).all()


def small(capacity: list[float], access: list[list[float]]) -> PlacementProblem:
    """Users who send 1, 2, 3... and receive nothing."""
    users = len(access)
    core = core_from_prices(
        np.ones((len(capacity), len(capacity))), [f"b{b}" for b in range(len(capacity))]
    )
    rate = np.arange(1.0, users + 1)[:, None]
    return PlacementProblem.of(
        [f"u{u}" for u in range(users)], core, rate, np.zeros((users, 1), dtype=bool), access, capacity
    )


def test_too_little_capacity_names_the_users_and_what_is_missing() -> None:
    inf = np.inf
    problem = small([100, 4], [[1, 1], [inf, 1], [inf, 1]])
    for place in (lambda: require_room(problem), lambda: greedy(problem, np.random.default_rng(0))):
        with pytest.raises(
            PlacementError, match=r"no placement exists.*'u1', 'u2'.*lack 1 together"
        ) as raised:
            place()
        assert raised.value.proven
        assert raised.value.users == ("u1", "u2")
        assert raised.value.missing == pytest.approx(1.0)


def test_a_user_larger_than_its_brokers_is_named() -> None:
    with pytest.raises(
        PlacementError, match=r"'u2' send and receive 3, and the largest lacks 0\.5"
    ) as raised:
        require_room(small([2.5, 2.5, 2.5], [[1, 1, 1]] * 3))
    assert raised.value.users == ("u2",)


def test_a_heuristic_that_fails_says_that_it_is_no_proof() -> None:
    # in order of the users u0 and u1 take the cheap brokers, and u2 finds 1 and 2 left of its 3
    problem = small([3, 3], [[1, 2], [2, 1], [1, 1]])
    with pytest.raises(PlacementError, match=r"greedy packing found no broker.*'u2'.*no proof") as raised:
        greedy(problem, np.random.default_rng(0))
    assert not raised.value.proven
    assert raised.value.missing == pytest.approx(1.0)
    assert exact_placement(problem).placement.load.tolist() == pytest.approx([3, 3])


def test_users_that_fit_only_in_parts_are_refused_by_the_exact_algorithm() -> None:
    problem = small([2.6, 3.6], [[1, 1], [1, 1], [1, 1]])  # 1 + 2 + 3 within 6.2, but 3 in neither pair
    require_room(problem)
    with pytest.raises(PlacementError, match="not whole") as raised:
        exact_placement(problem)
    assert raised.value.proven


def test_large_problems_are_not_given_to_the_exact_algorithm() -> None:
    with pytest.raises(LimitError, match="local_search"):
        exact_placement(drawn(0, 60, 12, 6))


def test_local_search_refuses_paths_that_differ_by_root() -> None:
    problem = drawn(1, 6, 3, 2)
    start = greedy(problem, np.random.default_rng(0))
    with pytest.raises(InputError, match="paths"):
        improved(problem, start.broker, np.random.default_rng(0), "paths")
    with pytest.raises(InputError, match="paths"):
        in_rounds(problem, start, "paths")
