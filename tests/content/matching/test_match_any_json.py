"""Events of any JSON: what a filter says of the columns is what it says of the raw event.

The oracle evaluates the raw JSON (`naive_patterns`); filters see it flattened (`naive_events`); the matcher
sees columns, one type each, and beside them the values that do not fit.
"""

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batches import arrow_type
from naive_events import flatten
from naive_patterns import matches
from ramify.content.events.attributes import NULLS, OTHERS, LeafList
from ramify.content.events.flatten import decode_records
from ramify.content.events.others import others_of_values
from ramify.content.filters.expressions import evaluate
from ramify.content.filters.filters import Filter
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.matcher import Matcher
from ramify.errors import FilterError

Row = dict[str, Any]
NAMES = ["a", "b", "c"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 1.5, 2**53 + 1, "", "x", "xy", "1"]


def values(depth: int = 3) -> st.SearchStrategy[Any]:
    scalar = st.sampled_from(SCALARS)
    if not depth:
        return scalar
    inner = values(depth - 1)
    return st.one_of(
        scalar,
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        st.lists(st.dictionaries(st.sampled_from(NAMES), inner, max_size=3), max_size=3),
    )


def events() -> st.SearchStrategy[Row]:
    return st.dictionaries(st.sampled_from(NAMES), values(), max_size=3)


ITEMS = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(
        [
            {"exists": True},
            {"exists": False},
            {"prefix": "x"},
            {"suffix": "y"},
            {"numeric": [">", 0]},
            {"numeric": ["=", 2**53 + 1]},
            {"anything-but": [1, 2]},
            {"anything-but": "x"},
            {"anything-but": {"suffix": "y"}},
            {"wildcard": "*x*"},
        ]
    ),
)


def patterns(depth: int = 2) -> st.SearchStrategy[Any]:
    leaf = st.lists(ITEMS, min_size=1, max_size=3)
    inner = st.one_of(leaf, patterns(depth - 1)) if depth else leaf
    fields = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    if not depth:
        return fields
    forks = st.lists(patterns(0), min_size=2, max_size=2).map(lambda parts: {"$or": parts})
    return st.one_of(fields, fields, st.tuples(fields, forks).map(lambda both: {**both[0], **both[1]}))


def mixed_batch(rows: list[Row], seed: int) -> pa.RecordBatch:
    """Columns for some paths, of the type of some value; all that does not fit stands among the others."""
    rng = random.Random(seed)
    paths = sorted({path for row in rows for path in row})
    columns: dict[str, Any] = {}
    others: list[Row] = [{} for _ in rows]
    nulls: list[list[str]] = [[] for _ in rows]
    for path in paths:
        held = [row.get(path) for row in rows]
        plain = [value for value in held if _has_type(value)]
        dtype = arrow_type(rng.choice(plain)) if plain and rng.random() < 0.7 else None
        cells: list[Any] = []
        for k, row in enumerate(rows):
            fits = path in row and dtype is not None and _has_type(row[path]) and _fits(row[path], dtype)
            cells.append(_cell(row[path]) if fits else None)
            if path in row and not fits:
                if row[path] is None and rng.random() < 0.5:
                    nulls[k].append(path)
                else:
                    others[k][path] = row[path]
        if dtype is not None:
            columns[path] = pa.array(cells, dtype)
    columns[NULLS] = pa.array(nulls, pa.list_(pa.string()))
    columns[OTHERS] = others_of_values(others)
    return pa.record_batch(columns)


def _has_type(value: Any) -> bool:
    if isinstance(value, LeafList):
        return False
    if isinstance(value, tuple):
        kinds = {type(v) for v in value}
        return bool(value) and (kinds == {str} or (kinds <= {int, float} and 2**53 + 1 not in value))
    return value is not None


def _fits(value: Any, dtype: pa.DataType) -> bool:
    return arrow_type(value) == dtype


def _cell(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@given(patterns(), st.lists(events(), max_size=4))
def test_a_pattern_says_of_flat_attributes_what_it_says_of_the_json(pattern: Any, found: list[Row]) -> None:
    filter_ = _parsed(pattern)
    assume(filter_ is not None)
    assert filter_ is not None
    assert filter_.expression is not None
    for event in found:
        flat = flatten(event)
        due = matches(pattern, event)
        assert filter_.holds(flat) is due, event
        assert evaluate(filter_.expression, flat) is due, event


ELEMENT_ATOMS = {
    "number": ["x = 1", "x <> 1", "x > 1", "x BETWEEN 0 AND 1.5", "x IN (2, 1.5)", "x IN (1, NULL)"],
    "string": ["x = 'x'", "x LIKE '%y'", "x LIKE 'x%y'", "x ILIKE '%XY%'", "lower(x) IN ('x', '')"],
    "boolean": ["x", "NOT x", "x = FALSE"],
}


def _conditions(kind: str) -> st.SearchStrategy[str]:
    """Conditions on an element of one type, null among what they ask for."""
    atoms = st.sampled_from([*ELEMENT_ATOMS[kind], "x IS NULL", "x IS NOT NULL"])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            inner.map(lambda text: f"NOT ({text})"),
            st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({' '.join(p)})"),
        ),
        max_leaves=3,
    )


def _exists_filters() -> st.SearchStrategy[Filter]:
    asked = st.sampled_from(sorted(ELEMENT_ATOMS)).flatmap(_conditions)
    whole = st.tuples(st.sampled_from(["", "NOT "]), st.sampled_from(["a", "a.b"]), asked).map(
        lambda p: f"{p[0]}exists({p[1]}, x -> {p[2]})"
    )
    return whole.map(_parsed_sql).filter(lambda found: found is not None)  # type: ignore[return-value]


def _parsed_sql(text: str) -> Filter | None:
    try:
        return parse_sql(text)
    except FilterError:  # a constant condition, or the NOT of one with tests
        return None


def _sql_filters() -> st.SearchStrategy[Filter]:
    texts = [
        "a = 1",
        "NOT a.b = 1",
        "a IS NULL",
        "a.b IS NOT NULL AND c = 'x'",
        "array_contains(a, 1)",
        "NOT array_contains(a, 'x')",
        "array_contains(a.b, 'x') OR b",
        f"array_contains(a, {2**53 + 1})",
        f"a = {2**53 + 1}",
        "exists(a, x -> x > 1)",
        "NOT exists(a, x -> x > 1)",
        "exists(a, x -> x IS NULL)",
        "exists(a, x -> x.b = 1 AND x.c = 'x')",
        "exists(a, x -> x.b = 1 OR x.c = 'x') AND NOT c LIKE 'x%'",
        "exists(a, x -> x.b LIKE '%y' AND (x.c > 0 OR x.a = 1))",
    ]
    return st.one_of(st.sampled_from([parse_sql(text) for text in texts]), _exists_filters())


def pattern_filters(depth: int) -> st.SearchStrategy[Filter]:
    """Filters of patterns, without those that take too many boxes."""
    return patterns(depth).map(_parsed).filter(lambda found: found is not None)  # type: ignore[return-value]


def _parsed(pattern: Any) -> Filter | None:
    try:
        return parse_pattern(pattern)
    except FilterError:
        return None


def filters() -> st.SearchStrategy[Filter]:
    drawn = st.one_of(pattern_filters(2), pattern_filters(1), _sql_filters())
    made = st.tuples(drawn, drawn, st.sampled_from(["&", "|", "-", "~"])).map(_combined)
    return st.one_of(drawn, drawn, made)


def _combined(parts: tuple[Filter, Filter, str]) -> Filter:
    one, other, how = parts
    try:
        match how:
            case "&":
                return one & other
            case "|":
                return one | other
            case "-":
                return one - other
        return ~one
    except FilterError:  # it takes too many boxes
        return one


@given(st.lists(filters(), max_size=6), st.lists(events(), max_size=6), st.integers(0, 1000))
def test_the_matcher_finds_in_columns_what_holds_for_the_attributes(
    asked: list[Filter], found: list[Row], seed: int
) -> None:
    rows = [flatten(event) for event in found]
    matched = Matcher(asked).match(mixed_batch(rows, seed))
    due = [[k for k, filter_ in enumerate(asked) if filter_.holds(row)] for row in rows]
    assert [ids.tolist() for ids in matched] == due


@given(pattern_filters(1) | _sql_filters(), pattern_filters(1), events())
def test_the_algebra_of_filters_with_joints_is_that_of_sets(one: Filter, other: Filter, event: Row) -> None:
    row = flatten(event)
    first, second = one.holds(row), other.holds(row)
    for how, due in (("&", first and second), ("|", first or second), ("-", first and not second)):
        made = _combined((one, other, how))
        assert made is one or made.holds(row) is due
    assert one.simplify().holds(row) is first
    assert first or not second or not one.covers(other)
    assert not (first and second) or one.overlaps(other)
    assert one != other or first is second


@given(st.lists(patterns(1), max_size=5), st.lists(events(), min_size=1, max_size=8))
def test_bytes_that_were_read_match_as_the_json_that_they_are(asked: list[Any], found: list[Row]) -> None:
    parsed = [(pattern, filter_) for pattern in asked if (filter_ := _parsed(pattern)) is not None]
    texts = [json.dumps({"id": str(k), **event}).encode() for k, event in enumerate(found)]
    decoded = decode_records(texts)
    assert not decoded.rejected
    matched = Matcher([filter_ for _, filter_ in parsed]).match(decoded.batch)
    due = [[k for k, (pattern, _) in enumerate(parsed) if matches(pattern, event)] for event in found]
    assert [ids.tolist() for ids in matched] == due


@given(st.lists(events(), max_size=6), st.integers(0, 1000))
def test_a_grid_places_values_that_stand_beside_their_column(found: list[Row], seed: int) -> None:
    grid = Grid((Axis("a", (1, 2.0, 2**53 + 1)), Axis("b", ("x", "xy"))))
    rows = [flatten(event) for event in found]
    assert grid.locate(mixed_batch(rows, seed)).tolist() == [grid.cell(row) for row in rows]


@pytest.mark.parametrize(
    ("pattern", "event", "due"),
    [
        ({"d": {"b": [{"exists": False}]}}, {"d": [{"b": 1}]}, False),
        ({"d": {"a": [1], "b": [2]}}, {"d": [{"a": 1}, {"b": 2}]}, False),
        ({"d": {"a": [1], "b": [2]}}, {"d": [{"a": 1}, {"a": 1, "b": 2}]}, True),
        ({"d": {"a": [1], "b": [{"exists": False}]}}, {"d": [{"a": 1}, {"b": 2}]}, True),
        ({"d": {"b": [2], "a": [{"exists": False}]}}, {"d": [{"a": 1}, {"b": 2}]}, False),
        ({"d": {"e": {"x": [1], "y": [2]}}}, {"d": [{"e": [{"x": 1}, {"y": 2}]}]}, False),
        ({"d": {"e": {"x": [1], "y": [2]}}}, {"d": [{"e": [{"x": 1, "y": 2}]}]}, True),
        ({"d": {"x": [1], "e": {"y": [2]}}}, {"d": [{"x": 1, "e": [{"y": 3}, {"y": 2}]}]}, True),
        ({"t": [None]}, {"t": ["a", None]}, True),
        ({"t": [True]}, {"t": [1, True]}, True),
        ({"n": [3]}, {"n": [[1, 2], [3]]}, True),
        ({"t": [{"anything-but": ["a"]}]}, {"t": ["a", None]}, True),
        ({"t": [{"exists": False}]}, {"t": []}, True),
    ],
)
def test_arrays_match_as_at_amazon(pattern: Any, event: Row, due: bool) -> None:
    assert matches(pattern, event) is due
    assert parse_pattern(pattern).holds(flatten(event)) is due


def test_an_array_with_a_null_is_not_null() -> None:
    row = flatten({"tags": ["a", None]})
    assert not parse_sql("tags IS NULL").holds(row)
    assert parse_sql("array_contains(tags, 'a')").holds(row)
    assert not parse_sql("NOT array_contains(tags, 'b')").holds(row)


def test_a_null_element_is_found_beside_other_values() -> None:
    asked = [
        "x IS NULL OR x > 5",
        "x IS NULL OR x = 'a'",
        "x IS NULL OR x",
        "x IS NULL OR x LIKE '%long text%'",
    ]
    filters = [parse_sql(f"exists(xs, x -> {text})") for text in asked]
    batch = decode_records(
        [b'{"id":"1","xs":[null]}', b'{"id":"2","xs":[7]}', b'{"id":"3","xs":["b"]}']
    ).batch
    assert [ids.tolist() for ids in Matcher(filters).match(batch)] == [[0, 1, 2, 3], [0], []]


def test_many_sibling_arrays_are_searched_without_trying_every_combination() -> None:
    wide = {"d": [{name: [{"v": k} for k in range(60)] for name in "pqrstu"}, {"z": 1}]}
    asked: Row = {"d": {name: {"v": [{"numeric": [">=", 0]}]} for name in "pqrstu"}}
    asked["d"]["z"] = [1]
    filter_ = parse_pattern(asked)
    row = flatten(wide)
    assert not filter_.holds(row)
    # to try 60^6 combinations would not end
    assert not len(Matcher([filter_]).match(mixed_batch([row], 1)).ids)
