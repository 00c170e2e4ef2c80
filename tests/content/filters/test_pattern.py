"""The EventBridge spelling: equal to a second evaluator, and refusing what Amazon refuses."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import pattern_matches
from ramify.content.events.attributes import AttributeType, text_path
from ramify.content.filters.expressions import evaluate
from ramify.content.filters.pattern import FILTER_TEXT, OPERATORS, parse_pattern
from ramify.errors import FilterError
from strategies import patterns, rows


@given(patterns(), st.lists(rows(), min_size=4, max_size=8))
@settings(max_examples=150)
def test_patterns_agree_with_the_second_evaluator(
    pattern: dict[str, Any], events: list[dict[str, Any]]
) -> None:
    f = parse_pattern(pattern)
    assert f.expression is not None
    for event in events:
        verdict = pattern_matches(pattern, event)
        assert evaluate(f.expression, event) is verdict
        assert f.holds(event) is verdict


@given(patterns())
@settings(max_examples=50)
def test_text_bytes_and_objects_are_one_pattern(pattern: dict[str, Any]) -> None:
    text = json.dumps(pattern)
    assert parse_pattern(text) == parse_pattern(text.encode()) == parse_pattern(pattern)
    assert parse_pattern(json.dumps(pattern, ensure_ascii=False, indent=1)) == parse_pattern(pattern)


@given(patterns(), st.lists(rows(), min_size=4, max_size=8))
@settings(max_examples=50)
def test_a_schema_changes_nothing_for_events_that_keep_to_it(
    pattern: dict[str, Any], events: list[dict[str, Any]]
) -> None:
    schema = {"x": AttributeType.INT64, "s": AttributeType.STRING, "tags": AttributeType.STRINGS}
    loose, strict = parse_pattern(pattern), parse_pattern(pattern, schema)
    for event in events:
        if not isinstance(event.get("x"), tuple) and not isinstance(event.get("s"), tuple):
            assert loose.holds(event) == strict.holds(event)


def any_json() -> st.SearchStrategy[Any]:
    names = st.sampled_from(["x", "$or", "prefix", "anything-but", "numeric", "exists", "cidr"])
    leaf = st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=3))
    return st.recursive(
        leaf,
        lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(names, part, max_size=3)),
        max_leaves=6,
    )


@given(any_json())
def test_any_json_is_a_pattern_or_a_filter_error(tree: Any) -> None:
    error = None
    try:
        parse_pattern(json.dumps(tree))
    except FilterError as caught:
        error = caught
    assert error is None or str(error)


# ----------------------------------------------------------------- what Amazon refuses

ONE_KEY = "a match expression has exactly one key"
NUMERIC = 'numeric takes ["=", 5], [">", 0] or [">=", 0, "<", 5]'
BUT = "anything-but takes a string, a number, or a list of only strings or only numbers"


@pytest.mark.parametrize(
    ("marked", "reason"),
    [
        ('{‸"x": []}', "empty arrays are not allowed"),
        ("‸{}", "empty objects are not allowed"),
        ('{"y": [1], ‸"x": {}}', "empty objects are not allowed"),
        ('{‸"x": 5}', "'x' must be an object or an array of values"),
        ('{‸"x": "a"}', "'x' must be an object or an array of values"),
        ('{‸"x": null}', "'x' must be an object or an array of values"),
        ('{‸"x": [[1]]}', "a value must be a string, a number, true, false, null or a match expression"),
        ('{"x": [{‸"regex": "a"}]}', "unknown match expression 'regex'"),
        ('{"x": [{"prefix": "a", ‸"suffix": "b"}]}', ONE_KEY),
        ('{‸"x": [{}]}', ONE_KEY),
        ('{"x": [{‸"numeric": 5}]}', NUMERIC),
        ('{"x": [{‸"numeric": []}]}', NUMERIC),
        ('{"x": [{‸"numeric": [">"]}]}', NUMERIC),
        ('{"x": [{‸"numeric": [">", 1, "<"]}]}', NUMERIC),
        ('{"x": [{‸"numeric": [">", "1"]}]}', "the value behind > must be a number"),
        ('{"x": [{‸"numeric": ["=", true]}]}', "the value behind = must be a number"),
        ('{"x": [{‸"numeric": ["~", 1]}]}', "unknown numeric operator '~': it is one of = < <= > >="),
        ('{"x": [{‸"numeric": ["=", 1, "<", 2]}]}', "too many terms behind = in numeric"),
        ('{"x": [{‸"numeric": ["<", 1, ">", 2]}]}', "a numeric range starts with > or >=, not <"),
        ('{"x": [{‸"numeric": [">", 1, ">", 2]}]}', "a numeric range ends with < or <=, not >"),
        (
            '{"x": [{‸"numeric": [">", 2, "<", 1]}]}',
            "the bottom 2 of a numeric range must be below its top 1",
        ),
        (
            '{"x": [{‸"numeric": [">", 1, "<", 1]}]}',
            "the bottom 1 of a numeric range must be below its top 1",
        ),
        ('{"x": [{‸"numeric": [">", 1e999]}]}', "a number does not fit a double"),
        ('{"x": [{‸"wildcard": "a**b"}]}', "a wildcard must not have two * in a row"),
        (r'{"x": [{‸"wildcard": "a\\b"}]}', "in a wildcard a backslash may only escape * or a backslash"),
        (r'{"x": [{‸"wildcard": "a\\"}]}', "in a wildcard a backslash may only escape * or a backslash"),
        ('{"x": [{‸"wildcard": 5}]}', "wildcard takes a string"),
        ('{‸"$or": [{"x": [1]}]}', "$or takes an array of at least two objects"),
        ('{‸"$or": {"x": [1]}}', "$or takes an array of objects"),
        ('{‸"$or": [{"x": [1]}, 5]}', "$or takes an array of at least two objects"),
        ('{‸"$or": [{"x": [1]}, {}]}', "empty objects are not allowed"),
        (
            '{"$or": [{"x": [1]}, {‸"cidr": [1]}]}',
            "'cidr' is reserved and cannot be a field name inside $or",
        ),
        (
            '{"$or": [{"x": [1]}, {"a": {‸">=": [1]}}]}',
            "'>=' is reserved and cannot be a field name inside $or",
        ),
        ('{"x": [{‸"anything-but": []}]}', BUT),
        ('{"x": [{‸"anything-but": ["a", 1]}]}', BUT),
        ('{"x": [{‸"anything-but": null}]}', BUT),
        ('{"x": [{‸"anything-but": [true]}]}', BUT),
        ('{"x": [{"anything-but": {‸"numeric": ["=", 1]}}]}', "anything-but does not take 'numeric'"),
        (
            '{"x": [{"anything-but": {‸"prefix": ""}}]}',
            "anything-but with an empty prefix matches no string",
        ),
        (
            '{"x": [{"anything-but": {‸"suffix": [""]}}]}',
            "anything-but with an empty suffix matches no string",
        ),
        ('{"x": [{"anything-but": {‸"prefix": 5}}]}', "prefix takes a string"),
        ('{"x": [{"anything-but": {‸"prefix": []}}]}', "empty arrays are not allowed"),
        ('{"x": [{"anything-but": {‸"prefix": {"equals-ignore-case": "a"}}}]}', "prefix takes a string"),
        (
            '{"x": [{‸"anything-but": {"prefix": "a", "suffix": "b"}}]}',
            "anything-but takes one match expression",
        ),
        ('{"x": [{"anything-but": {‸"equals-ignore-case": 5}}]}', "equals-ignore-case takes a string"),
        ('{"x": [{‸"exists": 1}]}', "exists takes true or false"),
        ('{"x": [{‸"exists": "true"}]}', "exists takes true or false"),
        ('{"x": [{‸"cidr": 8}]}', "cidr takes a string"),
        ('{"prefix": [{‸"prefix": 5}]}', "prefix takes a string"),
        ('{"x": [{‸"prefix": {"suffix": "a"}}]}', 'prefix takes a string or {"equals-ignore-case": "..."}'),
        ('{"x": [{‸"equals-ignore-case": 5}]}', "equals-ignore-case takes a string"),
        ('{"x": [{‸"exactly": 5}]}', "exactly takes a string"),
        ('{"NaN": [‸NaN]}', "NaN is not a JSON number"),
        ('{"x": [‸-Infinity]}', "-Infinity is not a JSON number"),
        ('{‸"x": [1e999]}', "a number does not fit a double"),
    ],
)
def test_what_amazon_refuses_is_refused_with_its_place(marked: str, reason: str) -> None:
    text = marked.replace("‸", "")
    with pytest.raises(FilterError) as caught:
        parse_pattern(text)
    assert caught.value.reason == reason
    assert caught.value.position == marked.index("‸")
    assert caught.value.text == text
    assert caught.value.allowed == OPERATORS


@pytest.mark.parametrize("block", ["10.0.0.0", "10.0.0.0/32", "10.0.0.0/33", "::/128", "x/8"])
def test_a_bad_cidr_block_is_refused(block: str) -> None:
    with pytest.raises(FilterError, match="is not a CIDR block"):
        parse_pattern({"x": [{"cidr": block}]})


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("not json", "the pattern is not JSON (Expecting value)"),
        ('{"x": [1}', "the pattern is not JSON (Expecting ',' delimiter)"),
        ("[1]", "a pattern is a JSON object"),
        ('"a"', "a pattern is a JSON object"),
        (b"\xff", "the pattern is not UTF-8 (byte 0)"),
        (
            {"x": [float("nan")]},
            "the pattern is not JSON (Out of range float values are not JSON compliant)",
        ),
        ({"x": [{1, 2}]}, "the pattern is not JSON (Object of type set is not JSON serializable)"),
        ('{"x": ["\\ud800"]}', "the pattern holds half a surrogate pair"),
        ({"x": ["\ud800"]}, "the pattern holds half a surrogate pair"),
        ('{"x": ["' + "a" * FILTER_TEXT + '"]}', f"the pattern is {FILTER_TEXT + 11} characters long"),
        ('{"a": ' * 40 + "[1]" + "}" * 40, "the pattern is nested too deeply"),
        ("[" * 100_000, f"the pattern is {100_000} characters long"),
        ("[" * 10_000, "the pattern is nested too deeply"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: Any, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_pattern(pattern)
    assert caught.value.reason.startswith(reason[:60])


def test_the_error_shows_the_text_and_a_caret() -> None:
    with pytest.raises(FilterError) as caught:
        parse_pattern('{"x": [{"prefix": 5}]}')
    assert str(caught.value).splitlines() == [
        "prefix takes a string at position 8",
        '  {"x": [{"prefix": 5}]}',
        "          ^",
        f"  allowed: {OPERATORS}",
    ]


def test_a_time_is_matched_as_the_text_that_it_was_written_with() -> None:
    schema = {"ts": AttributeType.TIMESTAMP}
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    january = parse_pattern({"time": [{"prefix": "2026-01-"}]})
    assert january.holds({"time": noon})
    assert not january.holds({"time": datetime(2026, 2, 1, tzinfo=UTC)})
    assert not january.holds({})
    assert parse_pattern({"time": ["2026-01-31T12:00:00Z"]}).holds({"time": noon})
    assert parse_pattern({"time": ["2026-01-31T12:00:00.25Z"]}).holds(
        {"time": noon.replace(microsecond=250_000), text_path("time"): "2026-01-31T12:00:00.25Z"}
    )
    assert parse_pattern({"time": [{"exists": True}]}).holds({"time": noon})
    assert parse_pattern({"ts": [{"suffix": "Z"}]}, schema).holds({"ts": noon})
    assert parse_pattern({"ts": ["soon"]}, schema).holds({"ts": "soon"})
    assert parse_pattern({"ts": [None, {"exists": False}]}, schema).holds({})


@pytest.mark.parametrize(
    ("pattern", "same"),
    [
        ('{"x": [1], "x": [2]}', '{"x": [2]}'),
        ('{"a": {"b": [1]}, "a": {"c": [2]}}', '{"a": {"b": [1], "c": [2]}}'),
        ('{"a": {"b": [1]}, "a.b": [2]}', '{"a.b": [2]}'),
        ('{"x": [1], "$or": [{"x": [2]}, {"y": [3]}]}', '{"$or": [{"x": [2]}, {"x": [1], "y": [3]}]}'),
        ('{"$or": [{"x": [2]}, {"y": [3]}], "x": [1]}', '{"$or": [{"x": [1]}, {"x": [1], "y": [3]}]}'),
    ],
)
def test_a_path_that_is_asked_for_again_replaces_what_was_asked_before(pattern: str, same: str) -> None:
    assert parse_pattern(pattern) == parse_pattern(same)


def test_numbers_may_be_epoch_milliseconds() -> None:
    recent = parse_pattern({"at": [{"numeric": [">=", 1767225600000]}]})
    assert recent.holds({"at": 1767225600000})
    assert not recent.holds({"at": 1767225599999})


def test_names_of_columns_can_be_asked_for() -> None:
    assert parse_pattern({"_nulls": ["a"]}).holds({"_nulls": "a"})


# ----------------------------------------------------------------- what operators mean


@pytest.mark.parametrize(
    ("listed", "matches", "does_not"),
    [
        (["a", 1], ["a", 1, 1.0, ("b", "a"), (2.0, 1.0)], ["A", "1", True, None, (), "absent"]),
        ([None], [None], ["", "null", 0, (), "absent"]),
        ([""], ["", ("a", "")], [None, " ", (), "absent"]),
        ([True], [True], [1, "true", False]),
        ([{"prefix": "a"}], ["a", "ab", ("b", "ab")], ["A", "ba", 5, None]),
        ([{"prefix": ""}], ["", "x"], [5, None, True]),
        ([{"prefix": {"equals-ignore-case": "aB"}}], ["AbC", "ab"], ["a", "bab"]),
        ([{"suffix": ".png"}], [".png", "a.png"], [".PNG", "png"]),
        ([{"suffix": {"equals-ignore-case": ".PnG"}}], ["a.png", ".PNG"], ["png"]),
        ([{"equals-ignore-case": "Éa"}], ["éA", "ÉA"], ["ea", "éaa"]),
        ([{"exactly": "a"}], ["a"], ["A"]),
        ([{"wildcard": "a*b\\*"}], ["ab*", "axxb*"], ["ab", "xab*"]),
        ([{"cidr": "10.0.0.0/24"}], ["10.0.0.255"], ["10.0.1.0", "10.0.0.256", "::a00:0", 5]),
        ([{"cidr": "2001:db8::/32"}], ["2001:db8::1", "2001:0DB8:0::1"], ["2001:db9::1", "10.0.0.1"]),
        ([{"numeric": ["=", 300]}], [300, 3e2], ["300", 301, True]),
        ([{"numeric": [">", 0, "<=", 5]}], [0.1, 5, (9.0, 3.0)], [0, 5.1, "3"]),
        ([{"exists": True}], [0, "", None, False, ("a",)], [(), "absent"]),
        ([{"exists": False}], [(), "absent"], [None, 0, ("a",)]),
        ([{"anything-but": "a"}], ["b", "", 5, True, None, ("a", "b")], ["a", (), ("a",), "absent"]),
        ([{"anything-but": [1, 2]}], [3, "1", True], [1, 2.0, (1.0, 2.0)]),
        ([{"anything-but": {"prefix": ["a", "b"]}}], ["c", 5, ""], ["ax", "b"]),
        ([{"anything-but": {"suffix": "b"}}], ["bc", 5], ["ab"]),
        ([{"anything-but": {"equals-ignore-case": ["ab", "c"]}}], ["abc"], ["AB", "C"]),
        ([{"anything-but": {"wildcard": ["*/lib/*", "a*"]}}], ["/bin/x"], ["/lib/x", "abc"]),
        (["a", {"prefix": "b"}, {"exists": False}], ["a", "bc", "absent"], ["c", None]),
    ],
)
def test_operators(listed: list[Any], matches: list[Any], does_not: list[Any]) -> None:
    f = parse_pattern({"d": {"x": listed}})
    for value in matches:
        assert f.holds({} if value == "absent" else {"d.x": value}), value
    for value in does_not:
        assert not f.holds({} if value == "absent" else {"d.x": value}), value


def test_or_nests_and_joins_the_fields_around_it() -> None:
    f = parse_pattern({"a": [1], "$or": [{"b": [2], "c": [3]}, {"$or": [{"d": {"e": [4]}}, {"f": [5]}]}]})
    assert f.holds({"a": 1, "b": 2, "c": 3})
    assert f.holds({"a": 1, "d.e": 4})
    assert f.holds({"a": 1, "f": 5})
    assert not f.holds({"a": 1, "b": 2})
    assert not f.holds({"f": 5})


def test_reserved_names_are_fields_outside_or() -> None:
    assert parse_pattern({"prefix": ["a"], "exists": [True]}).holds({"prefix": "a", "exists": True})


def test_only_id_and_publisher_are_known_not_to_be_arrays() -> None:
    assert parse_pattern({"x": [1]}).overlaps(parse_pattern({"x": [2]}))  # an array may hold both
    assert not parse_pattern({"id": ["a"]}).overlaps(parse_pattern({"id": ["b"]}))
