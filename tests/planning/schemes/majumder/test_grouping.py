"""Grouping: merges by overlap as by brute force, lazy greedy as eager, homes for what no group needs."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LimitError
from ramify.network.graphs.generators import line, random_overlay, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import measured, minimum_spanning_tree, tree_lengths
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder import grouping
from ramify.planning.schemes.majumder.compute_tree import TreeMaker
from ramify.planning.schemes.majumder.grouping import (
    Group,
    Ledger,
    agglomerate,
    alike,
    merge_by_gain,
    merge_free,
)
from ramify.planning.schemes.majumder.grouping_kernels import distances_on_tree
from ramify.planning.schemes.scheme import silent

SCHEMA = {"keywords": AttributeType.STRINGS}
Patterns = list[tuple[int, list[int], int, int]]


def classes_at(overlay: Overlay, hosts: list[int], words: list[list[str]] | None = None) -> Classes:
    """A class per host, each with a keyword of its own unless said."""
    given_words = words or [[f"k{i}"] for i in range(len(hosts))]
    rows = [
        Subscription(f"s{i}", f"c{i}", overlay.brokers[host], keywords=tuple(given_words[i]))
        for i, host in enumerate(hosts)
    ]
    return Classes.collapse(rows, overlay, SCHEMA)


def drawn_problem(seed: int, brokers: int, classes: int, patterns: int, *, priced: bool) -> Problem:
    """Random hosts and patterns, on a random overlay with prices from few values, some 0."""
    rng = np.random.default_rng(seed)
    flat = random_overlay(brokers, seed, links=min(2 * brokers, brokers * (brokers - 1) // 2))
    price = (
        rng.choice([0.0, 1.0, 3.0], size=(len(flat.ends), 2)) if priced else np.ones((len(flat.ends), 2))
    )
    links = [
        Link(flat.brokers[a], flat.brokers[b], *price[i].tolist(), 1.0)
        for i, (a, b) in enumerate(flat.ends.tolist())
    ]
    overlay = Overlay.build("drawn", flat.brokers, links)
    rows: Patterns = []
    for _ in range(patterns):
        around = int(rng.integers(classes))
        matched = {(around + int(k)) % classes for k in rng.integers(0, 4, size=rng.integers(1, 4))}
        rows.append((int(rng.integers(brokers)), sorted(matched), int(rng.integers(1, 4)), 0))
    hosts = rng.integers(brokers, size=classes).tolist()
    return Problem.of(overlay, classes_at(overlay, hosts), Demand.of(rows))


# ---------------------------------------------------------------------------------------------- by overlap


@st.composite
def demands(draw: st.DrawFn) -> tuple[Demand, int]:
    classes = draw(st.integers(1, 8))
    row = st.tuples(
        st.integers(0, 2), st.lists(st.integers(0, classes - 1), max_size=4), st.integers(1, 3), st.just(0)
    )
    return Demand.of(draw(st.lists(row, max_size=14))), classes


def documents(demand: Demand, classes: int) -> list[frozenset[tuple[int, int]]]:
    """Per class the documents that match it: a pattern seen three times is three of them."""
    return [
        frozenset((i, n) for i in range(len(demand)) if k in demand[i] for n in range(demand.count[i]))
        for k in range(classes)
    ]


@given(drawn=demands())
def test_merges_by_overlap_are_those_of_brute_force(drawn: tuple[Demand, int]) -> None:
    demand, classes = drawn
    found = agglomerate(demand, classes)
    clusters = dict(enumerate(dict.fromkeys(d for d in documents(demand, classes) if d)))
    for (i, j), similarity in zip(found.merges.tolist(), found.similarity.tolist(), strict=True):
        overlap = {
            pair: Fraction(
                len(clusters[pair[0]] & clusters[pair[1]]), len(clusters[pair[0]] | clusters[pair[1]])
            )
            for pair in combinations(sorted(clusters), 2)
        }
        assert (i, j) == min(overlap, key=lambda pair: (-overlap[pair], pair))
        assert similarity == pytest.approx(float(overlap[i, j]))
        clusters[i] |= clusters.pop(j)
    assert len(clusters) <= 1


@given(drawn=demands())
def test_classes_are_one_cluster_when_they_match_the_same_documents(drawn: tuple[Demand, int]) -> None:
    demand, classes = drawn
    matched = documents(demand, classes)
    cluster = agglomerate(demand, classes).cluster
    for a, b in combinations(range(classes), 2):
        assert (cluster[a] == cluster[b]) == (matched[a] == matched[b])
    assert all((cluster[k] < 0) == (not matched[k]) for k in range(classes))


@given(drawn=demands())
def test_every_step_merges_two_clusters_and_leaves_the_others(drawn: tuple[Demand, int]) -> None:
    found = agglomerate(*drawn)
    assert found.after(0).tolist() == found.cluster.tolist()
    for step in range(len(found.merges)):
        before, after = found.after(step), found.after(step + 1)
        assert after.max() == before.max() - 1
        assert len(set(zip(before.tolist(), after.tolist(), strict=True)) - {(-1, -1)}) == before.max() + 1


def test_a_merged_cluster_that_ties_with_the_nearest_wins_by_its_smaller_number() -> None:
    """1 and 2 merge first, at 1/2; then 0 is 1/3 like both the merged cluster and 3."""
    matched = {"a": [0, 1], "b": [0, 2], "c": [0, 3], "d": [0, 3], "x": [1, 2], "y": [1, 2], "p": [3]}
    rows = [(i, classes, 1, 0) for i, classes in enumerate(matched.values())]
    found = agglomerate(Demand.of([*rows, (7, [3], 1, 0)]), 4)
    assert found.merges[:2].tolist() == [[1, 2], [0, 1]]
    assert found.similarity[:2].tolist() == [1 / 2, 1 / 3]


def test_more_clusters_than_the_table_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MOST_CLUSTERS", 2)
    with pytest.raises(LimitError, match="3 subscriptions with different documents; at most 2"):
        agglomerate(Demand.of([(0, [k], 1, 0) for k in range(3)]), 3)


# ----------------------------------------------------------------------------------------- groups and costs


@pytest.mark.parametrize("seed", range(4))
def test_joined_groups_are_the_group_of_all_their_classes(seed: int) -> None:
    problem = drawn_problem(seed, 12, 9, 40, priced=seed % 2 == 1)
    ledger = Ledger(problem, TreeMaker(problem))
    label = np.arange(9, dtype=np.int32) % 3
    groups = ledger.start(label)
    joined = ledger.joined(groups[0], groups[2])
    label[label == 2] = 0
    whole = ledger.start(label)[0]
    assert joined.classes.tolist() == whole.classes.tolist()
    assert joined.pattern.tolist() == whole.pattern.tolist()
    assert joined.sets.tolist() == whole.sets.tolist()
    assert joined.cost == whole.cost


def test_classes_are_alike_at_one_broker_with_the_same_documents() -> None:
    overlay = line(3)
    problem = Problem.of(
        overlay,
        classes_at(overlay, [1, 1, 2, 1, 0]),
        Demand.of([(0, [0, 1, 2], 1, 0), (2, [0, 1, 2, 3], 1, 0)]),
    )
    assert alike(problem).tolist() == [0, 0, 1, 2, -1]


# ------------------------------------------------------------------------------------------------- by gain


def merge_eagerly(ledger: Ledger, groups: list[Group]) -> tuple[list[tuple[int, int]], list[float]]:
    """Algorithm 2 as printed: price every pair in every step."""
    left: dict[int, Group] = dict(enumerate(groups))
    merges = []
    while True:
        gains = {}
        for i, j in combinations(sorted(left), 2):
            apart = left[i].cost + left[j].cost
            if apart > 0:
                gains[i, j] = (apart - ledger.joined(left[i], left[j]).cost) / apart
        best = min(gains, key=lambda pair: (-gains[pair], pair), default=None)
        if best is None or gains[best] <= grouping.GAIN_TOLERANCE:
            return merges, [left[k].cost for k in sorted(left)]
        merges.append(best)
        left[best[0]] = ledger.joined(left[best[0]], left.pop(best[1]))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), brokers=st.integers(2, 16), classes=st.integers(1, 9), priced=st.booleans()
)
def test_lazy_merging_is_eager_merging_ties_included(
    seed: int, brokers: int, classes: int, priced: bool
) -> None:
    problem = drawn_problem(seed, brokers, classes, 25, priced=priced)
    ledger = Ledger(problem, TreeMaker(problem))
    groups = ledger.start(alike(problem))
    lazy = merge_by_gain(ledger, groups, silent)
    merges, costs = merge_eagerly(ledger, groups)
    assert lazy.merges == merges
    assert [group.cost for group in lazy.groups] == costs
    assert lazy.finished


@pytest.mark.parametrize("seed", range(6))
def test_lazy_merging_is_eager_merging_of_groups_that_cost_more_than_their_steiner_trees(seed: int) -> None:
    """Many documents on a flat overlay have slack: without it bounds would rule out good pairs."""
    problem = drawn_problem(seed, 40, 24, 150, priced=False)
    ledger = Ledger(problem, TreeMaker(problem))
    groups = ledger.start((np.arange(24, dtype=np.int32) * 5 % 24) // 4)
    weight = problem.pattern_weight
    assert any(g.cost > ledger.maker.steiner_sum(g.sets, weight[g.pattern]) for g in groups)
    lazy = merge_by_gain(ledger, groups, silent)
    assert (lazy.merges, [group.cost for group in lazy.groups]) == merge_eagerly(ledger, groups)


def test_lazy_merging_prices_few_of_the_pairs() -> None:
    problem = drawn_problem(5, 60, 60, 400, priced=False)
    ledger = Ledger(problem, TreeMaker(problem))
    merged = merge_by_gain(ledger, ledger.start(alike(problem)), silent)
    assert len(merged.merges) > 10
    assert merged.tried < 0.5 * 60 * 59 / 2


def test_merging_by_gain_stops_when_its_time_is_over() -> None:
    problem = drawn_problem(5, 20, 20, 60, priced=False)
    ledger = Ledger(problem, TreeMaker(problem))
    merged = merge_by_gain(ledger, ledger.start(alike(problem)), silent, deadline=0.0)
    assert not merged.finished
    assert not merged.merges


def test_groups_that_cost_nothing_become_one() -> None:
    overlay = Overlay.build(
        "free ends", ["a", "b", "c", "d"],
        [Link.symmetric("a", "b", 0.0), Link.symmetric("b", "c", 5.0), Link.symmetric("c", "d", 0.0)],
    )  # fmt: skip
    problem = Problem.of(
        overlay,
        classes_at(overlay, [1, 0, 3, 3]),
        Demand.of([(0, [0], 1, 1), (1, [1], 1, 1), (2, [2], 1, 1), (0, [3], 1, 1)]),
    )
    ledger = Ledger(problem, TreeMaker(problem))
    kept = merge_free(ledger, ledger.start(np.arange(4, dtype=np.int32)))
    assert [(group.classes.tolist(), group.cost > 0) for group in kept] == [([3], True), ([0, 1, 2], False)]


# --------------------------------------------------------------------------------------------------- homes


@pytest.mark.parametrize("seed", range(3))
def test_distances_on_a_tree_are_sums_over_its_paths(seed: int) -> None:
    overlay = random_overlay(15, seed)
    tree = minimum_spanning_tree(overlay, "hops").rerooted(7)
    demand = np.random.default_rng(seed).integers(0, 4, size=15).astype(np.float64)
    total = np.empty(15)
    distances_on_tree(tree.order, tree.parent, tree_lengths(overlay, tree, "hops"), demand, total)
    there = measured(overlay, tree, "hops")
    every = np.arange(15)
    expected = [float(there.distance(every, np.full(15, v)) @ demand) for v in range(15)]
    assert total.tolist() == pytest.approx(expected)


def planned_homes(words: list[list[str]], hosts: list[int], seen: Patterns) -> list[list[int]]:
    overlay = ring(9)
    problem = Problem.of(overlay, classes_at(overlay, hosts, words), Demand.of(seen))
    ledger = Ledger(problem, TreeMaker(problem))
    plan = grouping.grouped_plan("test", ledger, ledger.start(alike(problem)), {}, silent)
    return [channel.serves.classes.tolist() for channel in plan.channels]


def test_an_unseen_class_joins_the_group_that_shares_most_keywords() -> None:
    words = [["x", "y"], ["z"], ["y", "x"], ["z", "q"]]
    assert planned_homes(words, [1, 7, 8, 0], [(4, [0], 1, 0), (4, [1], 1, 0)]) == [[0, 2], [1, 3]]


def test_unseen_classes_with_one_keyword_join_the_same_group_one_after_the_other() -> None:
    """From broker 4, broker 6 is nearer on the second group's tree; it follows its keyword to the first."""
    seen: Patterns = [(4, [0], 1, 0), (4, [1], 1, 0)]
    apart = planned_homes([["x"], ["z"], ["new"], ["newer"]], [1, 7, 5, 6], seen)
    assert apart == [[0, 2], [1, 3]]
    together = planned_homes([["x"], ["z"], ["new"], ["new"]], [1, 7, 5, 6], seen)
    assert together == [[0, 2, 3], [1]]


def test_classes_whose_documents_stay_home_need_no_tree_of_their_own() -> None:
    found = planned_homes([["x"], ["y"]], [1, 4], [(4, [0], 1, 0), (4, [1], 5, 0)])
    assert found == [[0, 1]]


def test_limits_say_what_is_allowed() -> None:
    with pytest.raises(InputError, match="Allowed: more than 0"):
        grouping.require_limits(0.0)
    with pytest.raises(InputError, match="most_trees = 0"):
        grouping.require_limits(None, most_trees=0)
