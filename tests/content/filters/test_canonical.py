"""Canonical keys: equal exactly when the filters are, by brute force over a small universe."""

import itertools
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import Bare, Between, Compare, In, IsNull
from ramify.content.filters.filters import EVERYTHING, NOTHING_AT_ALL, Filter
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from strategies import filters, rows, sql_filters, sql_text, sql_trees

# Constants are drawn from {0, 1}, {"a", "b"} and {true, false}: these values tell all filters apart.
X: list[Any] = ["absent", None, -1, 0, 0.5, 1, 2, "a", True, datetime(2026, 1, 1, tzinfo=UTC), (1,)]
S: list[Any] = ["absent", None, "", "a", "a\0", "b", "c", 0]
B: list[Any] = ["absent", None, False, True, 1]
UNIVERSE = [
    {p: v for p, v in (("x", x), ("s", s), ("b", b)) if v != "absent"}
    for x, s, b in itertools.product(X, S, B)
]


def tiny_atoms() -> st.SearchStrategy[Any]:
    number, text = st.sampled_from([0, 1]), st.sampled_from(["a", "b"])
    op = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    return st.one_of(
        st.builds(Compare, st.just("x"), op, number),
        st.builds(Compare, st.just("s"), op, text),
        st.builds(Between, st.just("x"), number, number),
        st.builds(In, st.just("s"), st.lists(text, min_size=1, max_size=2).map(tuple)),
        st.just(Bare("b")),
        st.sampled_from(["x", "s", "b"]).map(IsNull),
    )


@st.composite
def tiny_filters(draw: st.DrawFn) -> Filter:
    """One to three predicates, joined by the algebra or negated: many come out equal."""
    out = parse_sql(sql_text(draw(tiny_atoms())))
    for _ in range(draw(st.integers(0, 2))):
        other = parse_sql(sql_text(draw(tiny_atoms())))
        out = draw(st.sampled_from([out & other, out | other, out - other]))
    return ~out if draw(st.booleans()) else out


def accepted(f: Filter) -> frozenset[int]:
    return frozenset(k for k, event in enumerate(UNIVERSE) if f.holds(event))


@given(st.lists(tiny_filters(), min_size=4, max_size=6))
@settings(max_examples=40)
def test_filters_are_equal_exactly_when_their_keys_are(found: list[Filter]) -> None:
    extent = [accepted(f) for f in found]
    for (f, a), (g, b) in itertools.combinations(zip(found, extent, strict=True), 2):
        assert (f.key == g.key) == (a == b)
        assert f.covers(g) == (b <= a)
        assert f.overlaps(g) == bool(a & b)


@given(filters(), filters(), st.lists(rows(), min_size=3, max_size=6))
def test_equal_keys_mean_equal_filters(f: Filter, g: Filter, events: list[dict[str, object]]) -> None:
    if f.key == g.key:
        assert all(f.holds(e) == g.holds(e) for e in events)


@given(sql_filters(plain=True), sql_filters(plain=True), sql_filters(plain=True))
def test_keys_do_not_depend_on_order_or_repetition(f: Filter, g: Filter, h: Filter) -> None:
    assert (f | g | h).key == (h | f | g | f).key
    assert Filter(f.boxes + g.boxes).key == Filter(g.boxes + f.boxes + f.boxes).key


@given(filters())
@settings(max_examples=50)
def test_a_filter_united_with_itself_keeps_its_key(f: Filter) -> None:
    assert (f | f).key == f.key


@given(sql_filters(plain=True))
@settings(max_examples=50)
def test_a_plain_filter_met_with_itself_keeps_its_key(f: Filter) -> None:
    # not promised with tests and arrays: the cross terms of f & f may be spelled in another way
    assert (f & f).key == f.simplify().key == f.key


def test_tests_that_another_test_makes_needless_do_not_change_the_key() -> None:
    b = {"suffix": "b"}
    same = [b], [b, {"suffix": "ab"}], [{"wildcard": "*b"}, {"wildcard": "*a*b"}]
    assert len({parse_pattern({"x": listed}).key for listed in same}) == 1
    assert parse_sql("s LIKE '%ab' AND s LIKE '%b'").key == parse_sql("s LIKE '%ab'").key


@given(sql_trees(plain=True, leaves=4), sql_trees(plain=True, leaves=4))
def test_keys_see_through_the_algebra_without_tests(one: Any, other: Any) -> None:
    f, g = parse_sql(sql_text(one)), parse_sql(sql_text(other))
    assert (f & g).key == (g & f).key
    assert (~(f & g)).key == (~f | ~g).key
    assert (~~f).key == f.key
    assert (f - g).key == (f & ~g).key
    assert ((f & g) | (f - g)).key == f.key
    assert (f | (f & g)).key == f.key


@pytest.mark.parametrize(
    "texts",
    [
        ["x = 1 OR x = 2", "x IN (2, 1)", "x IN (1, 2, 2)", "(x = 2) OR NOT (x <> 1)", "x IN (1.0, 2e0)"],
        ["x BETWEEN 1 AND 3", "x >= 1 AND x <= 3", "NOT (x < 1 OR x > 3)", "3 >= x AND 1 <= x"],
        ["x < 1 OR (x >= 1 AND x < 5) OR x >= 5", "NOT (x IS NULL) AND (x > 0 OR x <= 0)"],
        ["b AND x = 1 OR b AND x = 2", "b AND x IN (1, 2)", "x IN (1, 2) AND b = TRUE"],
        ["s LIKE 'ab%'", "s >= 'ab' AND s < 'ac'", "s LIKE 'ab%%'"],
        ["s LIKE '%a' OR s LIKE '%b'", "s LIKE '%b' OR s LIKE '%a' OR s LIKE '%b'"],
        ["s LIKE 'abc'", "s = 'abc'", "s IN ('abc')"],
        ["b", "b = TRUE", "NOT NOT b", "b > FALSE", "b AND TRUE"],
        ["FALSE", "x = 1 AND x = 2", "x = NULL", "NULL", "s < ''"],
        ["TRUE", "x IS NULL OR x IS NOT NULL"],
    ],
)
def test_spellings_of_one_filter_share_a_key(texts: list[str]) -> None:
    # the number line is as far as "x > 0 OR x <= 0" reaches: both texts of the third row say so
    assert len({parse_sql(text).key for text in texts}) == 1


def test_the_least_and_the_greatest_have_keys_of_their_own() -> None:
    assert EVERYTHING.key != NOTHING_AT_ALL.key
    assert (~EVERYTHING).key == NOTHING_AT_ALL.key
    assert parse_pattern({"x": [{"exists": True}, {"exists": False}]}).key == EVERYTHING.key


def test_absent_null_and_the_empty_array_are_told_apart() -> None:
    keys = {
        parse_sql("x IS NULL").key,
        parse_pattern({"x": [None]}).key,
        parse_pattern({"x": [{"exists": False}]}).key,
        parse_pattern({"x": [{"exists": True}]}).key,
        parse_sql("x IS NOT NULL").key,
    }
    assert len(keys) == 5


LARGE = {
    "many undecidable tests": " OR ".join(f"s LIKE '%{k}%z'" for k in range(500)),
    "many points": " OR ".join(f"x = {k} AND y = {k % 7} AND t = '{k}'" for k in range(250)),
    "many rectangles": " OR ".join(f"x > {k} AND x < {k + 900} AND y > {k * 37 % 500}" for k in range(250)),
}


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE.keys())
def test_large_filters_get_a_key_whatever_their_order(text: str) -> None:
    f = parse_sql(text)
    assert len(f.key) == 16
    assert f.key == parse_sql(" OR ".join(reversed(text.split(" OR ")))).key
    assert f.key != parse_sql(f"{text} OR x = -5").key


def test_keys_are_the_same_in_every_process() -> None:
    script = (
        "from ramify.content.filters.pattern import parse_pattern\n"
        "from ramify.content.filters.sql import parse_sql\n"
        "p = {'t': [{'suffix': 'b'}, {'suffix': 'ab'}], 'x': [{'anything-but': ['a', 'b']}, 5, None]}\n"
        "q = {'t': [{'suffix': 'b'}, {'wildcard': '*c*'}, {'cidr': '10.0.0.0/8'}], 'y': [None]}\n"
        "f, g = parse_pattern(p), parse_pattern(q)\n"
        "h = parse_sql(\"NOT (s LIKE '%a' AND array_contains(tags, 'x')) OR x IN (1, 2.5) AND b\")\n"
        "print([k.key.hex() for k in (f, g, h, f & g, f | h, ~f, ~g, f - g)])\n"
    )
    found = set()
    for seed in "0", "1", "2":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1
