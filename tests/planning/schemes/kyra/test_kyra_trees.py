"""Trees of zones, rings of large cliques, and the paths that logical links take."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.generators import full_mesh, line
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.shared.rings import ring_steps, without_loops
from ramify.planning.schemes.shared.shortest_trees import (
    joined_tree,
    nearest_on,
    spanning_links,
    whole_tree,
)
from ramify.planning.schemes.shared.ways import Ways
from worlds import overlays


@st.composite
def points(draw: st.DrawFn) -> np.ndarray:
    count = draw(st.integers(1, 9))
    at = np.array(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)), dtype=float)
    return np.abs(np.subtract.outer(at, at))


def by_hand(
    distance: np.ndarray, members: list[int], balance: int, degree: dict[int, int]
) -> list[tuple[int, int]]:
    """Section V-D, looking at every connection again in each step."""
    part = {v: {v} for v in members}
    chosen = []
    pairs = [(a, b) for i, a in enumerate(members) for b in members[i + 1 :]]
    pairs.sort(key=lambda pair: distance[pair])
    while len(chosen) < len(members) - 1:
        valid = [(a, b) for a, b in pairs if part[a] is not part[b]][:balance]
        a, b = min(valid, key=lambda pair: max(degree[pair[0]], degree[pair[1]]))
        degree[a] += 1
        degree[b] += 1
        joined = part[a] | part[b]
        for v in joined:
            part[v] = joined
        chosen.append((a, b))
    return chosen


@given(distance=points(), balance=st.integers(1, 40), data=st.data())
def test_trees_are_those_of_the_rule_step_by_step(
    distance: np.ndarray, balance: int, data: st.DataObject
) -> None:
    """Two trees, one after the other: the second knows the degrees of the first."""
    counted, by_broker = np.zeros(len(distance), dtype=np.int64), dict.fromkeys(range(len(distance)), 0)
    for _ in range(2):
        members = sorted(data.draw(st.sets(st.integers(0, len(distance) - 1), min_size=1)))
        links = spanning_links(distance, np.array(members, dtype=np.int32), balance, counted)
        assert [tuple(link) for link in links.tolist()] == by_hand(distance, members, balance, by_broker)
        assert counted.tolist() == list(by_broker.values())


@given(distance=points())
def test_a_balance_of_one_is_a_minimum_spanning_tree(distance: np.ndarray) -> None:
    """Prim's, in a few lines: the same length."""
    links = spanning_links(distance, np.arange(len(distance), dtype=np.int32), 1)
    inside, length = {0}, 0.0
    while len(inside) < len(distance):
        step, v = min((distance[u, v], v) for u in inside for v in range(len(distance)) if v not in inside)
        inside.add(v)
        length += step
    assert distance[links[:, 0], links[:, 1]].sum() == pytest.approx(length)


def test_balance_lowers_the_highest_degree() -> None:
    """A hub 1 from everyone, all others 1.5 apart: Kruskal makes a star."""
    distance = np.full((12, 12), 1.5)
    distance[0] = distance[:, 0] = 1.0
    np.fill_diagonal(distance, 0)
    everyone = np.arange(12, dtype=np.int32)
    assert np.bincount(spanning_links(distance, everyone).ravel()).max() == 11
    assert np.bincount(spanning_links(distance, everyone, 66).ravel()).max() == 2


def problem_on(overlay: Overlay) -> Problem:
    return Problem.of(overlay, Classes.collapse([], overlay, {}), Demand.of([]))


@given(overlay=overlays(), data=st.data())
def test_joined_pairs_have_shortest_paths_both_ways(overlay: Overlay, data: st.DataObject) -> None:
    ways = Ways(problem_on(overlay))
    brokers = st.integers(0, len(overlay) - 1)
    pairs = data.draw(st.lists(st.tuples(brokers, brokers), max_size=8))
    ways.join([u for u, _ in pairs], [v for _, v in pairs])
    found = all_pairs(overlay, "latency")
    for (u, v), path in ways.paths.items():
        assert path[0] == u
        assert path[-1] == v
        assert len(path) > 2
    for u, v in pairs:
        if u == v:
            continue
        path = ways.paths.get((u, v), ways.paths.get((v, u), (v, u))[::-1])
        links = [overlay.link_between(overlay.brokers[a], overlay.brokers[b]) for a, b in pairwise(path)]
        assert overlay.latency_ms[links].sum() == pytest.approx(found.between(u, v))
        assert (path[0], path[-1]) == (u, v)


@given(overlay=overlays())
def test_the_tree_of_everybody_is_as_short_as_that_of_all_distances(overlay: Overlay) -> None:
    problem = problem_on(overlay)
    ways = Ways(problem)
    tree = joined_tree(ways, np.arange(len(overlay), dtype=np.int32))
    whole = whole_tree(problem, "latency")

    def length(links: np.ndarray) -> float:
        return float(ways.distance[links[:, 0], links[:, 1]].sum())

    assert length(tree.links) == pytest.approx(length(whole.links))
    assert len(whole.brokers) == len(tree.brokers) == len(overlay)


def test_the_nearest_member_is_oneself_where_one_is() -> None:
    distance = np.zeros((3, 3))  # all in one place
    assert nearest_on(distance, np.array([1, 2], dtype=np.int32)).tolist() == [1, 1, 2]


@given(count=st.integers(1, 70), data=st.data())
def test_rings_reach_everybody_in_few_steps(count: int, data: st.DataObject) -> None:
    members = data.draw(st.permutations(range(count)))
    u, v = data.draw(st.sampled_from(members)), data.draw(st.sampled_from(members))
    steps = ring_steps(u, v, members)
    assert (steps[0], steps[-1]) == (u, v)
    assert len(steps) - 1 <= (count - 1).bit_length()  # ceil(log2 k)
    for a, b in pairwise(steps):
        # a broker knows those 1, 2, 4, ... places on
        assert ((members.index(b) - members.index(a)) % count).bit_count() == 1


@given(walk=st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_walks_lose_their_loops_and_keep_their_ends_and_steps(walk: list[int]) -> None:
    path = without_loops(walk)
    assert (path[0], path[-1]) == (walk[0], walk[-1])
    assert len(set(path)) == len(path)
    steps = set(pairwise(walk))
    assert all(step in steps for step in pairwise(path))


def test_brokers_of_a_ring_meet_through_its_fingers() -> None:
    ways = Ways(problem_on(full_mesh(8)))
    ways.ring(range(8))
    ways.join([0], [7])
    assert ways.paths[0, 7] == (0, 4, 6, 7)
    assert ways.paths[7, 0] == (7, 0)
    chain = Ways(problem_on(line(8)))
    chain.ring(range(8))
    chain.join([0, 2], [7, 5])
    assert chain.paths[0, 7] == tuple(range(8))
    assert chain.paths[5, 2] == (5, 4, 3, 2)  # by fingers 5, 1, 2: the way below 2 is a loop
