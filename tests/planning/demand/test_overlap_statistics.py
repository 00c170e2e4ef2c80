"""SemCast's statistics and hierarchies: by brute force over sets, and the paper's own table."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.generators import line
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.overlap import Overlap, Profiles, Statistics
from ramify.planning.plans.files import encode_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.semcast.hierarchies import (
    EdgeEstimate,
    build_hierarchies,
    containers,
    covering_profiles,
    parents_by_overlap,
)
from worked_tables import TABLE_1
from worlds import SCHEMA, World, overlays, worlds

matches = st.lists(st.sets(st.integers(0, 5)), max_size=90)


def compressed(rows: list[set[int]]) -> tuple[list[int], list[int]]:
    start = np.cumsum([0, *map(len, rows)]).tolist()
    return start, [p for row in rows for p in sorted(row)]


@given(rows=matches, weights=st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=90, max_size=90))
def test_overlap_is_shared_weight_over_that_of_the_column(
    rows: list[set[int]], weights: list[float]
) -> None:
    seen = Statistics.of_rows(6, *compressed(rows), weights[: len(rows)])
    messages = [{m for m, row in enumerate(rows) if p in row} for p in range(6)]
    weight = [sum(weights[m] for m in own) for own in messages]
    np.testing.assert_allclose(seen.rate, weight)
    assert seen.counts().tolist() == [len(own) for own in messages]
    expected = np.zeros((6, 6))
    for r in range(6):
        for c in range(6):
            shared = sum(weights[m] for m in messages[r] & messages[c])
            expected[r, c] = shared / weight[c] if shared else 0.0
    found = seen.overlap()
    np.testing.assert_allclose(found.dense(), expected)
    for r in range(6):
        columns, values = found.row(r)
        assert sorted(columns.tolist()) == columns.tolist()
        for c, value in zip(columns.tolist(), values.tolist(), strict=True):
            assert (value == 1) == (messages[c] <= messages[r])  # to the last bit


def tables_of(demand: Demand, classes: int, *, least: float = 0.0) -> tuple[pa.Table, pa.Table]:
    """What the pipeline writes of a demand, by sets: classes, and pairs alike enough or contained."""
    own = [{i for i in range(len(demand)) if k in demand[i]} for k in range(classes)]

    def sums(rows: set[int]) -> tuple[int, int]:
        return int(demand.count[list(rows)].sum()), int(demand.size[list(rows)].sum())

    pairs = [
        (a, b, *sums(own[a] & own[b]))
        for b in range(classes)
        for a in range(b)
        if own[a] & own[b]
        and (
            sums(own[a] & own[b])[0] >= least * sums(own[a] | own[b])[0]
            or own[a] <= own[b]
            or own[b] <= own[a]
        )
    ]
    named = ("class_a", "class_b", "both", "both_bytes")
    columns = list(zip(*pairs, strict=True)) or [()] * 4
    overlap = {n: pa.array(c, type=pa.int64()) for n, c in zip(named, columns, strict=True)}
    events, size = zip(*map(sums, own), strict=True) if own else ((), ())
    numbers = [range(classes), events, size]
    selectivity = {
        name: pa.array(list(column), type=pa.int64())
        for name, column in zip(("class", "events", "bytes"), numbers, strict=True)
    }
    return pa.table(selectivity), pa.table(overlap)


@given(world=worlds())
def test_a_demand_and_the_pipelines_tables_say_the_same(world: World) -> None:
    profiles = Profiles.of(world.classes)
    selectivity, overlap = tables_of(world.demand, len(world.classes))
    seen = Statistics.of_demand(world.demand, profiles, world.demand.weight)
    found = Overlap.of_tables(selectivity, overlap, profiles)
    np.testing.assert_array_equal(found.rate, seen.rate)
    np.testing.assert_allclose(found.dense(), seen.overlap().dense())
    unsized = overlap.drop_columns(["both_bytes"])
    counted = Statistics.of_demand(world.demand, profiles, world.demand.count).overlap().dense()
    np.testing.assert_allclose(Overlap.of_tables(selectivity, unsized, profiles).dense(), counted)


@settings(max_examples=60)
@given(world=worlds(), seed=st.integers(0, 3), least=st.sampled_from([0.0, 0.4, 1.0]))
def test_tables_of_the_same_events_make_the_same_hierarchies_and_plan(
    world: World, seed: int, least: float
) -> None:
    """However few pairs are kept for being alike: those where one contains the other always are."""
    problem = world.problem
    profiles = Profiles.of(problem.classes)
    tables = tables_of(world.demand, len(world.classes), least=least)
    found = Overlap.of_tables(*tables, profiles)
    seen = Statistics.of_demand(problem.demand, profiles, problem.pattern_weight)
    hosts = profiles.hosts(problem.classes)
    made = []
    for overlap in (seen.overlap(), found):
        rng = np.random.default_rng(seed)
        estimate = EdgeEstimate(problem.steiner.distance, 1, rng)
        points = rng.integers(len(problem.overlay), size=len(profiles))
        made.append(build_hierarchies(overlap, hosts, estimate, points))
    assert made[0].members == made[1].members
    assert made[0].parent.tolist() == made[1].parent.tolist()
    by_tables = replace(problem, overlap=found)
    plans = [encode_plan(make_plan("semcast", each, seed)) for each in (problem, by_tables)]
    assert plans[0] == plans[1]


def test_hierarchies_go_by_the_tables_where_a_problem_has_them() -> None:
    """The demand shows the narrow profile within the wide one; the tables, of more events, do not."""
    problem = _two_profiles([1, 2], [(0, (0,), 2, 0), (0, (0, 1), 4, 0)])
    wider = Demand.of([(0, (0,), 2, 0), (0, (0, 1), 4, 0), (0, (1,), 1, 0)])
    found = Overlap.of_tables(*tables_of(wider, 2), Profiles.of(problem.classes))

    def hierarchies(of: Problem) -> set[int]:
        return {int(str(make_plan("semcast", of, seed).settings["hierarchies"])) for seed in range(12)}

    assert hierarchies(problem) == {1, 2}
    assert hierarchies(replace(problem, overlap=found)) == {2}
    with pytest.raises(InputError, match="of 1 profiles, the classes have 2"):
        make_plan("semcast", replace(problem, overlap=Overlap.of_dense([[1.0]])), 0)


def test_tables_that_do_not_fit_are_refused() -> None:
    none = Profiles((), np.zeros(0, dtype=np.int32), ())
    with pytest.raises(InputError, match="'events'"):
        Overlap.of_tables(pa.table({"class": [0]}), pa.table({}), none)
    selectivity, overlap = tables_of(Demand.of([(0, (0, 1), 3, 9)]), 2)
    profiles = Profiles.of(_two_profiles([1, 2], []).classes)
    with pytest.raises(InputError, match="the tables are of 2 classes, and there are 0"):
        Overlap.of_tables(selectivity, overlap, none)
    with pytest.raises(InputError, match="the tables are of 1 classes, and there are 2"):
        Overlap.of_tables(selectivity.slice(0, 1), overlap.slice(0, 0), profiles)
    for name in ("recent_events", "recent_bytes"):
        selectivity = selectivity.append_column(name, pa.nulls(2, pa.float64()))
    with pytest.raises(InputError, match="without a half-life"):
        Overlap.of_tables(selectivity, overlap, profiles, recent=True)


def test_rates_of_tables_decay_and_overlaps_do_not() -> None:
    selectivity, overlap = tables_of(Demand.of([(0, (0, 1), 3, 9), (0, (0,), 1, 1)]), 2)
    selectivity = selectivity.append_column("recent_events", [[2.0, 1.5]])
    selectivity = selectivity.append_column("recent_bytes", [[5.0, 4.5]])
    profiles = Profiles.of(_two_profiles([1, 2], []).classes)
    found = Overlap.of_tables(selectivity, overlap, profiles, recent=True)
    assert found.rate.tolist() == [7.0, 6.0]
    whole = Overlap.of_tables(selectivity, overlap, profiles)
    assert whole.rate.tolist() == [14.0, 12.0]
    np.testing.assert_array_equal(found.dense(), whole.dense())


def test_table_1_of_the_paper() -> None:
    parent = parents_by_overlap(Overlap.of_dense(TABLE_1))
    assert parent.tolist() == [-1, 3, 3, -1, 0, 3, 5]  # P1..P7 are 0..6


@given(rows=matches)
def test_candidates_match_supersets_and_equals_are_one(rows: list[set[int]]) -> None:
    seen = Statistics.of_rows(6, *compressed(rows), np.ones(len(rows)))
    messages = [frozenset(m for m, row in enumerate(rows) if p in row) for p in range(6)]
    found, first = containers(seen.overlap())
    for p in range(6):
        equal = [q for q in range(6) if messages[q] == messages[p] and messages[p]]
        assert first[p] == min([p, *equal])
    for c in range(6):
        wanted = {p for p in range(6) if messages[c] < messages[p] and first[p] == p and messages[c]}
        assert {p for p, _ in found[c]} == (wanted if first[c] == c else set())


@given(overlay=overlays(symmetric=True), data=st.data(), orders=st.integers(1, 3))
def test_edge_estimates_are_what_joining_costs(overlay: object, data: st.DataObject, orders: int) -> None:
    distance = all_pairs(overlay, "hops").distance  # type: ignore[arg-type]
    n = len(distance)
    estimate = EdgeEstimate(distance, orders, np.random.default_rng(3))
    brokers = st.sets(st.integers(0, n - 1), min_size=1)
    one, other = data.draw(brokers), data.draw(brokers)
    point = data.draw(st.integers(0, n - 1))

    def plain(chosen: set[int]) -> float:
        total = 0.0
        for rank in estimate.rank:
            inside: list[int] = []
            for broker in sorted(chosen, key=lambda b: rank[b]):
                total += min(distance[b, broker] for b in inside or [point])
                inside.append(broker)
        return total / orders

    a, b = estimate.reach(sorted(one)), estimate.reach(sorted(other))
    assert estimate.edges(a, point) == pytest.approx(plain(one))
    assert estimate.together(a, b, point) == pytest.approx(plain(one | other))
    both = estimate.unite(a, b)
    assert both.brokers.tolist() == sorted(one | other)
    assert estimate.edges(both, point) == pytest.approx(plain(one | other))


@settings(max_examples=60)
@given(world=worlds(), seed=st.integers(0, 3))
def test_every_profile_is_in_one_hierarchy_under_what_contains_it(world: World, seed: int) -> None:
    problem, rng = world.problem, np.random.default_rng(seed)
    profiles = Profiles.of(problem.classes)
    seen = Statistics.of_demand(problem.demand, profiles, problem.pattern_weight)
    estimate = EdgeEstimate(problem.steiner.distance, 2, rng)
    points = rng.integers(len(problem.overlay), size=len(profiles))
    hosts = profiles.hosts(problem.classes)
    made = build_hierarchies(
        seen.overlap(),
        hosts,
        estimate,
        points,
        lambda unseen: covering_profiles(profiles.filters, unseen)[0],
    )
    assert sorted(p for row in made.members for p in row) == list(range(len(profiles)))
    for h, row in enumerate(made.members):
        assert sum(made.parent[p] < 0 for p in row) == 1
        assert set(made.reach[h].brokers.tolist()) == {int(b) for p in row for b in hosts[p]}
        for p in row:
            assert made.of[p] == h
            above = int(made.parent[p])
            if above >= 0:
                assert made.of[above] == h
                inside = not (seen.bits[p] & ~seen.bits[above]).any() and seen.rate[p] > 0
                assert inside or profiles.filters[above].covers(profiles.filters[p])


def _two_profiles(hosts: list[int], patterns: list[tuple[int, tuple[int, ...], int, int]]) -> Problem:
    overlay = line(9, name="line")
    rows = [
        Subscription(f"s{i}", f"c{i}", overlay.brokers[host], sql=f"x < {9 - i}")
        for i, host in enumerate(hosts)
    ]
    return Problem.of(overlay, Classes.collapse(rows, overlay, SCHEMA.attributes), Demand.of(patterns))


def test_a_contained_profile_joins_only_where_its_edges_cost_less_than_a_channel() -> None:
    """On a line: wide (rate 6) at 1 from 0; narrow (rate 4) would be rooted at 8.

    At 2 joining takes one link more at rate 6, alone six at rate 4. At 6 it is five against two.
    """
    for host, channels in ((2, 1), (6, 2)):
        problem = _two_profiles([1, host], [(0, (0,), 2, 0), (0, (0, 1), 4, 0)])
        profiles = Profiles.of(problem.classes)
        seen = Statistics.of_demand(problem.demand, profiles, problem.demand.count)
        estimate = EdgeEstimate(problem.steiner.distance, 1, np.random.default_rng(0))
        made = build_hierarchies(seen.overlap(), profiles.hosts(problem.classes), estimate, [0, 8])
        assert len(made) == channels


def test_a_profile_that_matched_nothing_joins_what_covers_it_only_for_free() -> None:
    for host, count in ((1, 1), (2, 2)):
        problem = _two_profiles([1, host], [(0, (0,), 5, 0)])
        profiles = Profiles.of(problem.classes)
        seen = Statistics.of_demand(problem.demand, profiles, problem.demand.count)
        estimate = EdgeEstimate(problem.steiner.distance, 1, np.random.default_rng(0))
        covered, left = covering_profiles(profiles.filters, [1])
        assert covered == {1: [0]}
        assert left == 0
        made = build_hierarchies(
            seen.overlap(),
            profiles.hosts(problem.classes),
            estimate,
            [0, 0],
            lambda _, found=covered: found,
        )
        assert len(made) == count
    assert covering_profiles(profiles.filters, [0, 1], most=1)[1] == 1
