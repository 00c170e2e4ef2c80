"""Covering drops exactly what another filter for the same link stands for."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_tables import Row, broker_table
from ramify.content.filters.filters import EVERYTHING, NOTHING_AT_ALL, Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LimitError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import minimum_spanning_tree
from ramify.planning.choosing.revise import delete_subscription
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans import covering
from ramify.planning.plans.covering import cover_matrix, covered_state
from ramify.planning.plans.layout import layout_of
from ramify.planning.plans.plan import Plan, Pruning
from ramify.planning.plans.problem import Problem
from ramify.planning.plans.state import routing_state
from ramify.planning.schemes.scheme import channel, put_together
from worlds import GRID, SCHEMA, plans, worlds

NUMBERS = st.integers(0, 4)
ATOMS = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from("xy"), st.sampled_from(["<", ">=", "=", "<>"]), NUMBERS),
    st.builds("x BETWEEN {} AND {}".format, NUMBERS, NUMBERS),
    st.sampled_from(
        ["x IS NULL", "y IS NOT NULL", "t = 'a'", "t IN ('a', 'b')", "t LIKE 'a%'", "t LIKE '%a'"]
    ),
    st.sampled_from(["array_contains(w, 'a')", "array_contains(w, 'b')", "flag", "NOT flag"]),
)
SQL = st.recursive(
    ATOMS,
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner),
    max_leaves=4,
)
PATTERNS = st.sampled_from(
    [
        '{"x": [1]}',
        '{"x": [{"exists": false}]}',
        '{"t": [{"prefix": "a"}]}',
        '{"w": [{"anything-but": "a"}]}',
        '{"x": [null]}',
    ]
)
DRAWN = st.one_of(
    SQL.map(parse_sql),
    PATTERNS.map(parse_pattern),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map(parse_keywords),
    st.sampled_from([EVERYTHING, NOTHING_AT_ALL]),
)


@example(
    [
        parse_sql(text)
        for text in (
            "t LIKE '%a'",
            "t IN ('a', 'b')",
            "t = 'a'",
            "array_contains(w, 'a')",
            "array_contains(w, 'b')",
            "array_contains(w, 'a') AND array_contains(w, 'b')",
            "NOT array_contains(w, 'a')",
        )
    ]
)
@given(st.lists(DRAWN, max_size=8))
def test_the_matrix_is_what_covers_says_of_each_pair(filters: list[Filter]) -> None:
    matrix = cover_matrix(filters)
    expected = [[i == j or a.covers(b) for j, b in enumerate(filters)] for i, a in enumerate(filters)]
    np.testing.assert_array_equal(matrix, np.array(expected, dtype=bool).reshape(matrix.shape))


@settings(max_examples=50)
@given(st.lists(DRAWN, max_size=8))
def test_a_sample_of_the_intervals_is_enough_to_start_from(filters: list[Filter]) -> None:
    whole = cover_matrix(filters)
    kept = covering.MOST_POINTS
    covering.MOST_POINTS = 2
    try:
        np.testing.assert_array_equal(cover_matrix(filters), whole)
    finally:
        covering.MOST_POINTS = kept


def left(plan: Plan, rows: Iterable[Row]) -> int:
    """How many distinct (filter, region) pairs no other one of the same set covers, pair by pair."""
    filters = plan.classes.filters
    items = list(
        {
            (filters[row.class_id].key, row.region): (filters[row.class_id], row.region) for row in rows
        }.values()
    )

    def wider(a: int, b: int) -> bool:
        cells = [None if r < 0 else set(plan.regions[r].tolist()) for r in (a, b)]
        return cells[0] is None or (cells[1] is not None and cells[0] >= cells[1])

    covers = [[wider(r, s) and (f == g or f.covers(g)) for g, s in items] for f, r in items]
    return sum(
        not any(covers[j][i] and (not covers[i][j] or j < i) for j in range(len(items)) if j != i)
        for i in range(len(items))
    )


def by_hand(plan: Plan, broker: int) -> int:
    """From the rows of the broker's table, set by set."""
    sets: dict[object, list[Row]] = {}
    for row in broker_table(plan, broker):
        key: object = row.channel
        if plan.channels[row.channel].pruning is Pruning.FILTER:
            key = (row.channel, row.does, -1 if row.does == "admit" else row.broker)
        sets.setdefault(key, []).append(row)
    return sum(left(plan, rows) for rows in sets.values())


@st.composite
def planned(draw: st.DrawFn) -> Plan:
    return draw(plans(draw(worlds())))


@settings(max_examples=60)
@given(planned())
def test_each_broker_keeps_what_a_plain_count_over_its_table_keeps(plan: Plan) -> None:
    expected = [by_hand(plan, broker) for broker in range(len(plan.overlay))]
    assert covered_state(layout_of(plan)).tolist() == expected


@settings(max_examples=60)
@given(planned())
def test_covering_never_stores_more_entries_than_without(plan: Plan) -> None:
    regional = any((ch.serves.region >= 0).any() for ch in plan.channels)
    if not regional:
        assert (covered_state(layout_of(plan)) <= routing_state(layout_of(plan)).entries).all()


def line(*sql: str, hosts: str = "c") -> Plan:
    """a - b - c with one filtered tree; every subscription at `hosts`, or the host of its letter."""
    overlay = Overlay.build("line", "abc", [Link.symmetric("a", "b"), Link.symmetric("b", "c")])
    where = hosts * len(sql) if len(hosts) == 1 else hosts
    rows = [Subscription(f"s{i}", f"c{i}", where[i], sql=text) for i, text in enumerate(sql)]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]))
    tree = minimum_spanning_tree(problem.overlay, "hops")
    return put_together("one", problem, [channel("one", problem, tree, np.arange(len(classes)))])


def test_a_wider_filter_for_the_same_link_stands_for_the_narrower() -> None:
    assert covered_state(layout_of(line("x < 5", "x < 3"))).tolist() == [1, 1, 1]


def test_filters_for_different_links_do_not_stand_for_each_other() -> None:
    assert covered_state(layout_of(line("x < 5", "x < 3", hosts="ac"))).tolist() == [2, 2, 2]


def test_equal_filters_in_other_words_count_once() -> None:
    plan = line("x < 5 AND topic = 'a'", "topic = 'a' AND NOT x >= 5", hosts="bc")
    assert covered_state(layout_of(plan)).tolist() == [1, 2, 2]


def test_of_two_that_cover_each_other_one_stays() -> None:
    plan = line("x < 5", "x < 5", "x < 5", hosts="bcc")
    same = np.arange(2, dtype=np.int32)
    serves = replace(plan.channels[0].serves, region=np.array([0, 1], dtype=np.int32))
    plan = replace(
        plan, channels=(replace(plan.channels[0], serves=serves),), regions=(same, same), grid=GRID
    )
    assert covered_state(layout_of(plan)).tolist() == [1, 2, 2]


def test_a_deleted_subscription_is_stored_nowhere() -> None:
    plan = delete_subscription(line("x < 5", "x > 7"), "s1").plan
    assert covered_state(layout_of(plan)).tolist() == [1, 1, 1]


def test_no_classes_and_no_channels_store_nothing() -> None:
    assert covered_state(layout_of(line())).tolist() == [0, 0, 0]


def test_more_filters_than_can_be_compared_are_refused_with_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(covering, "COVERED_FILTERS", 2)
    assert covered_state(layout_of(line("x < 1", "x < 2"))).tolist() == [1, 1, 1]
    with pytest.raises(LimitError, match="3 distinct filters: covering can be found among 2"):
        covered_state(layout_of(line("x < 1", "x < 2", "x < 3")))
    monkeypatch.setattr(covering, "MOST_CALLS", 0)
    with pytest.raises(LimitError, match="compared one by one"):
        cover_matrix([parse_sql("x < 1 OR topic = 'a'"), parse_sql("x < 1")])
