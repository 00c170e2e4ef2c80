"""Expressions: explanations agree with the verdict, and follow what was written."""

from datetime import UTC, datetime

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event
from ramify.content.filters.expressions import Atom, Not, boxes_of, compile_filter, evaluate, explain
from ramify.content.filters.filters import Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern, parse_pattern_expression
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.work import Work
from ramify.errors import FilterError
from strategies import filters, patterns, rows

EVENTS = st.lists(rows(), min_size=4, max_size=8)


@given(filters(), filters(), EVENTS)
def test_an_explanation_agrees_with_the_filter(
    f: Filter, g: Filter, events: list[dict[str, object]]
) -> None:
    for filter_ in (f, f & g, ~f):
        for event in events:
            found = explain(event, filter_)
            assert found.matched == filter_.holds(event)
            assert (found.steps[0].verdict is True) == found.matched
            assert len(str(found).splitlines()) == len(found.steps) + 1
            if filter_.expression is not None:
                assert (evaluate(filter_.expression, event) is True) == found.matched


@given(patterns(), EVENTS)
@settings(max_examples=50)
def test_patterns_are_two_valued_under_not_too(
    pattern: dict[str, object], events: list[dict[str, object]]
) -> None:
    expression = parse_pattern_expression(pattern)
    try:
        negated = compile_filter(Not(expression))
    except FilterError:  # its complement takes too many boxes
        reject()
    assert all(evaluate(expression, e) in (True, False) for e in events)
    assert all(negated.holds(e) == (not evaluate(expression, e)) for e in events)


def test_an_explanation_shows_each_predicate_with_what_it_saw() -> None:
    f = parse_sql("x > 1 AND (s LIKE 'a%' OR NOT b) AND ts < TIMESTAMP '2026-01-31 00:00:00' AND NULL")
    event = {"x": 5, "s": None, "b": False, "ts": datetime(2026, 1, 30, tzinfo=UTC)}
    assert str(explain(event, f)).splitlines() == [
        "does not match",
        "  unknown all of",
        "    yes     x > 1   x is 5",
        "    yes     any of",
        "      unknown s LIKE 'a%'   s is null",
        "      yes     NOT",
        "        no      b   b is False",
        "    yes     ts < TIMESTAMP '2026-01-31 00:00:00'   ts is 2026-01-30T00:00:00+00:00",
        "    unknown NULL",
    ]


def test_a_pattern_and_keywords_are_explained_as_written() -> None:
    pattern = parse_pattern({"s": [{"prefix": "a"}, None], "d": {"e": [1]}})
    assert str(explain({"s": "b"}, pattern)).splitlines() == [
        "does not match",
        "  no      all of",
        '    no      s: [{"prefix": "a"}, null]   s is \'b\'',
        "    no      d.e: [1]   d.e is absent",
    ]
    words = parse_keywords([["a", "b"], ["c"]], "tags")
    assert str(explain({"tags": ("a", "b")}, words)).splitlines()[:4] == [
        "matches",
        "  yes     any of",
        "    yes     all of",
        "      yes     tags has 'a'   tags is ['a', 'b']",
    ]


def test_what_the_algebra_made_is_explained_box_by_box() -> None:
    made = parse_sql("x >= 1") & parse_sql("x < 5 OR b")
    lines = str(explain({"x": 7, "b": True}, made)).splitlines()
    assert lines[:2] == ["matches", "  yes     any of 2 boxes"]
    assert "      no      x >= 1 and < 5   x is 7" in lines
    assert "      yes     b is true   b is True" in lines


def test_long_values_are_cut_in_explanations() -> None:
    line = str(explain({"s": "a" * 500}, parse_sql("s = 'b'"))).splitlines()[1]
    assert line.endswith("...")
    assert len(line) < 120


def test_boxes_of_an_atom_follow_what_is_wanted() -> None:
    atom = parse_sql("x = 5").expression
    assert isinstance(atom, Atom)
    assert Filter(boxes_of(atom, False, Work())) == parse_sql("x <> 5")


def test_an_event_is_explained_with_its_id_publisher_and_time() -> None:
    event = Event("e1", publisher="shop", time=datetime(2026, 1, 1, tzinfo=UTC), attributes={"x": None})
    f = parse_sql("id = 'e1' AND publisher = 'shop' AND time >= TIMESTAMP '2026-01-01' AND x IS NULL")
    assert explain(event, f).matched
    assert not explain(Event("e2"), f).matched
