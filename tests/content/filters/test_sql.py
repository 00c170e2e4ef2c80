"""The SQL spelling: equal to a second evaluator on random rows, and exact about what it refuses."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import like_regex, sql_verdict
from ramify.content.events.events import AttributeType
from ramify.content.filters.expressions import evaluate
from ramify.content.filters.sql import ALLOWED, FILTER_TEXT, parse_sql, parse_sql_expression
from ramify.errors import FilterError
from strategies import rows, sql_text, sql_trees

A = AttributeType
NO_TIME = "is not a timestamp such as '2026-01-31 12:30:00' or '2026-01-31T12:30:00Z'"
SCHEMA = {"x": A.INT64, "y": A.DOUBLE, "s": A.STRING, "b": A.BOOLEAN, "ts": A.TIMESTAMP, "tags": A.STRINGS}


@given(sql_trees(), st.lists(rows(), min_size=4, max_size=8), st.booleans())
@settings(max_examples=200)
def test_sql_agrees_with_the_second_evaluator(tree: Any, events: list[dict[str, Any]], other: bool) -> None:
    f = parse_sql(sql_text(tree, other))
    assert f.expression is not None
    for event in events:
        verdict = sql_verdict(tree, event)
        assert evaluate(f.expression, event) is verdict
        assert f.holds(event) is (verdict is True)


@pytest.mark.parametrize("text", ["9007199254740992.5", "-9007199254740992.5BD", "0.99999999999999999999"])
def test_a_fraction_that_a_double_loses_is_refused_where_an_integer_could_meet_it(text: str) -> None:
    for schema in (None, {"x": AttributeType.INT64}):
        with pytest.raises(FilterError, match="is lost in a double: write a whole number"):
            parse_sql(f"x >= {text}", schema)
    rounded = float(text.removesuffix("BD"))
    assert parse_sql(f"x = {text}", {"x": AttributeType.DOUBLE}).holds({"x": rounded})
    assert parse_sql(f"array_contains(x, {text})").holds({"x": (rounded,)})
    assert parse_sql(f"x = {text.removesuffix('BD')}D").holds({"x": rounded})


def error_of(text: str, schema: dict[str, AttributeType] | None = None) -> FilterError | None:
    try:
        parse_sql(text, schema)
    except FilterError as error:
        return error
    return None


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_a_filter_error(text: str) -> None:
    error = error_of(text)
    assert error is None or str(error)


PIECES = """x s ts b tags = <> < BETWEEN AND OR NOT IN LIKE IS NULL ( ) , 1 -2.5 'a' "b" `c` TRUE . * ; ' `
TIMESTAMP array_contains( UPPER( SELECT 1e400 5L 1.5BD '%' '\\\\' -- /* ? :p [ ] :: DATE '2026' CASE WHEN
END EXISTS"""


@given(st.lists(st.sampled_from(PIECES.split()), max_size=12).map(" ".join))
@settings(max_examples=300)
def test_any_jumble_of_sql_is_a_filter_or_a_filter_error(text: str) -> None:
    error = error_of(text, SCHEMA)
    if error is not None and error.position is not None:
        assert 0 <= error.position <= len(text)
        assert str(error).splitlines()[2].strip() == "^"


# ----------------------------------------------------------------- what is refused


def refusal(text: str, schema: dict[str, AttributeType] | None = None) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse_sql(text, schema)
    return caught.value


@pytest.mark.parametrize(
    ("marked", "reason"),
    [
        ("price < ‸UPPER('x')", "unknown function UPPER"),
        ("‸TRIM(s) = 'A'", "unknown function TRIM"),
        ("x = 1 AND ‸nonsense(x) = 2", "unknown function NONSENSE"),
        ("ts > ‸current_timestamp()", "unknown function CURRENT_TIMESTAMP"),
        ("ts > ‸now()", "unknown function NOW"),
        ("‸IF(x = 1, TRUE, FALSE)", "unknown function IF"),
        ("x = (‸SELECT 1)", "a sub-query is not allowed"),
        ("x = 1 AND x IN (‸SELECT y FROM t)", "a sub-query is not allowed"),
        ("EXISTS (‸SELECT 1)", "a sub-query is not allowed"),
        ("‸SELECT 1", "a sub-query is not allowed"),
        ("x = 5 ‸UNION SELECT 1", "a sub-query is not allowed"),
        ("x = 5‸;", "only one predicate is allowed, without ;"),
        ("x = 5‸; DROP TABLE t", "only one predicate is allowed, without ;"),
        ("‸CAST(x AS INT) = 5", "CAST is not allowed"),
        ("x = ‸'5'::int", "CAST is not allowed"),
        ("‸CASE WHEN x = 1 THEN TRUE END", "CASE is not allowed"),
        ("s ‸RLIKE 'a'", "RLIKE is not allowed"),
        ("s ILIKE ‸5", "ILIKE needs one string"),
        ("‸lower(s) < 'a'", "lower is only allowed with = <> IN and LIKE"),
        ("‸lower(s) IS NULL", "lower is only allowed with = <> IN and LIKE"),
        ("‸upper(s) BETWEEN 'A' AND 'B'", "upper is only allowed with = <> IN and LIKE"),
        ("x = 1 OR ‸lower(s)", "lower is only allowed with = <> IN and LIKE"),
        ("lower(s) = ‸5", "lower gives a string and is compared with number"),
        ("upper(s) = ‸t", "two attributes cannot be compared"),
        ("s LIKE 'a' ‸ESCAPE '!'", "ESCAPE is not allowed"),
        ("s LIKE ‸ANY ('a', 'b')", "ANY is not allowed"),
        ("x ‸<=> 5", "<=> is not allowed"),
        ("x ‸+ 1 = 2", "+ is not allowed"),
        ("x = 1 ‸+ 1", "+ is not allowed"),
        ("s ‸|| 'a' = 'b'", "|| is not allowed"),
        ("-‸x = 5", "- is only allowed before a number"),
        ("x‸[0] = 1", "[ is not allowed"),
        ("‸x = ?", "a parameter is not allowed"),
        ("(‸x, y) = (1, 2)", "a list of values is not allowed"),
        ("‸x IS TRUE", "IS takes NULL or NOT NULL only"),
        ("x = ‸y", "two attributes cannot be compared (x and y)"),
        ("x IN (1, ‸y)", "only literals may stand here, not another attribute"),
        ("x IN ‸5", "IN needs a list of values in brackets"),
        ("x IN (1‸, )", "a value is missing behind the comma"),
        ("‸1 = 1", "a comparison needs an attribute on one side"),
        ("‸x = 5 = TRUE", "a comparison needs an attribute on one side"),
        ("‸5", "a literal is not a predicate"),
        ("‸t.* = 5", "* is not an attribute"),
        ("‸x BETWEEN SYMMETRIC 1 AND 2", "BETWEEN SYMMETRIC is not allowed"),
        ("s LIKE ‸5", "LIKE needs one string"),
        (r"s LIKE ‸'a\\b'", "a LIKE pattern must not escape 'b': only %, _ and \\"),
        (r"s LIKE ‸'a\\'", "a LIKE pattern must not end with the escape character"),
        ("array_contains(tags, ‸s)", "array_contains needs a literal to look for"),
        ("‸array_contains(tags, NULL)", "array_contains cannot look for NULL"),
        ("array_contains(tags, 'a', ‸'b')", "array_contains takes two arguments"),
        ("array_contains(‸UPPER(s), 'a')", "upper is only allowed with = <> IN and LIKE"),
        ("x = ‸1e400", "1e400 is not a number that fits a double"),
        ("x = ‸" + "9" * 39, "a number of more than 38 digits is not allowed"),
        ("x = ‸300Y", "300 does not fit 8 bits"),
        ("x = 5 ‸AND", "the predicate is not complete or not SQL"),
        ("x = 5 AND (y = ‸6", "the predicate is not complete or not SQL"),
        ("x = 5‸)", "the predicate is not complete or not SQL"),
        ("x ‸y", "the predicate is not complete or not SQL"),
        ("‸DROP TABLE t", "the predicate is not complete or not SQL"),
        ("x = 1 AND s = ‸'a", "' is not closed"),
        ("x = 1 AND\n‸`s = 'a'", "` is not closed"),
        # types, within one filter
        ("x = 5 AND x = ‸'a'", "x was used as number (position 4) and is used as string"),
        ("b OR b = ‸1", "b was used as boolean (position 0) and is used as number"),
        ("x IN (1, ‸'a')", "IN mixes number and string"),
        ("x BETWEEN 1 AND ‸'b'", "x was used as number (position 10) and is used as string"),
        (
            "s = '' AND array_contains(s, ‸'a')",
            "s was used as string (position 4) and is used as array of strings",
        ),
        # the columns that every event has
        ("time > ‸5", "time is a timestamp and is used as number"),
        ("id = ‸5", "id is a string and is used as number"),
        ("time > ‸'soon'", f"'soon' {NO_TIME}"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_place(marked: str, reason: str) -> None:
    text = marked.replace("‸", "")
    error = refusal(text)
    assert error.reason == reason
    assert error.position == marked.index("‸")
    assert error.text == text
    assert error.allowed == ALLOWED


def test_a_schema_is_what_most_events_hold_and_refuses_no_filter() -> None:
    for text, row in (
        ("x = 'a'", {"x": "a"}),
        ("y LIKE 'a'", {"y": "a"}),
        ("s", {"s": True}),
        ("ts = 5", {"ts": 5}),
        ("array_contains(s, 'a')", {"s": ("a",)}),
        ("array_contains(tags, 5)", {"tags": (5, "a")}),
        ("array_contains(tags, TRUE)", {"tags": (True,)}),
        ("tags = 'a'", {"tags": "a"}),
    ):
        assert parse_sql(text, SCHEMA).holds(row), text
    with pytest.raises(FilterError, match="x is a int64 and is used as string"):
        parse_sql("x = 'a'", SCHEMA, strict=True)
    assert refusal("ts > '2026-02-30'", SCHEMA).reason == f"'2026-02-30' {NO_TIME}"


def test_the_error_shows_the_text_a_caret_and_what_is_allowed() -> None:
    assert str(refusal("price < UPPER('x')")).splitlines() == [
        "unknown function UPPER at position 8",
        "  price < UPPER('x')",
        "          ^",
        f"  allowed: {ALLOWED}",
    ]


def test_the_caret_finds_its_line_and_long_lines_are_cut() -> None:
    second = str(refusal("x = 1\nAND TRIM(s) = 'A'")).splitlines()
    assert second[1:3] == ["  AND TRIM(s) = 'A'", "      ^"]
    far = "x = 1 AND " * 50 + "TRIM(s) = 'A'"
    lines = str(refusal(far)).splitlines()
    assert lines[0] == "unknown function TRIM at position 500"
    assert len(lines[1]) < 120
    assert lines[1][lines[2].index("^") :].startswith("TRIM")


def test_a_syntax_error_far_behind_equal_text_points_at_itself() -> None:
    text = "x = 1 OR " * 60 + "x = = 1"
    position = refusal(text).position
    assert position is not None
    assert position >= text.index("= =")


@pytest.mark.parametrize("text", ["+", "x = +", "MAP( ?", "ARRAY[..\n1.5BD$-,", "x = 1.2.3.4", "EXTRACT(*"])
def test_nonsense_that_the_parser_stumbles_over_is_refused(text: str) -> None:
    assert refusal(text).text == text


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "-- only a comment"])
def test_an_empty_text_is_refused(text: str) -> None:
    assert refusal(text).reason == "the filter is empty"


def test_nesting_length_and_surrogates_are_bounded() -> None:
    deep = refusal("(" * 33 + "b" + ")" * 33)
    assert deep.reason == "the filter is nested too deeply"
    assert deep.position == 32
    assert parse_sql("(" * 32 + "b" + ")" * 32).holds({"b": True})
    assert parse_sql("s = '" + "(" * 40 + "'").holds({"s": "(" * 40})  # brackets in a string do not count
    assert refusal("NOT " * 2000 + "b").reason == "the filter is nested too deeply"
    assert (
        refusal("s = '" + "a" * FILTER_TEXT + "'").reason
        == f"the filter is {FILTER_TEXT + 6} characters long"
    )
    assert parse_sql("s = '" + "a" * (FILTER_TEXT - 6) + "'")
    assert refusal("s = '\ud800'").reason == "the filter holds half a surrogate pair"


def test_a_long_chain_is_not_nesting() -> None:
    f = parse_sql(" OR ".join(f"x = {k}" for k in range(900)))
    assert len(f.boxes) == 1
    assert f.holds({"x": 899})


# ----------------------------------------------------------------- literals, checked against Spark 4


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (r"'a\\b'", r"a\b"),
        (r"r'a\b'", r"a\b"),
        (r"'\%'", r"\%"),
        (r"'\_'", r"\_"),
        ("'a''b'", "a'b"),
        (r"'a\'b'", "a'b"),
        ('"a""b"', 'a"b'),
        ("'a' 'b'", "ab"),
        ("'a' \"b\"", "ab"),
        (r"'\u0041'", "A"),
        (r"'\101'", "A"),
        (r"'\U0001F600'", "\U0001f600"),
        (r"'\Z'", "\x1a"),
        (r"'\b'", "\b"),
        (r"'a\nb\tc'", "a\nb\tc"),
        (r"'\x'", "x"),
        (r"'\0'", "\0"),
        ("('a')", "a"),
    ],
)
def test_string_literals_are_read_as_spark_reads_them(literal: str, text: str) -> None:
    assert parse_sql(f"s = {literal}") == parse_sql(
        "s = '" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    )
    assert parse_sql(f"s = {literal}").holds({"s": text})


@pytest.mark.parametrize(
    ("pattern", "accepts", "rejects"),
    [
        (r"'\%'", "%", "a"),
        (r"'\\%'", "%", "a"),
        (r"'a\\\\b'", r"a\b", "ab"),
        (r"r'\%'", "%", r"\%"),
        ("'a_b'", "a%b", "ab"),
        ("'_'", "\U0001f600", ""),
        ("'%'", "", None),
        ("''", "", "a"),
        ("'a%' 'b'", "axb", "a%"),
        ("'a%b'", "a\nb", "ba"),
    ],
)
def test_like_patterns_are_read_as_spark_reads_them(
    pattern: str, accepts: str, rejects: str | None
) -> None:
    f = parse_sql(f"s LIKE {pattern}")
    assert f.holds({"s": accepts})
    assert not f.holds({"s": rejects})


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("5", 5),
        ("+5", 5),
        ("- -5", 5),
        ("-(5)", -5),
        ("5L", 5),
        ("5Y", 5),
        ("5.", 5),
        (".5", 0.5),
        ("1e3", 1000),
        ("1.5D", 1.5),
        ("1.5BD", 1.5),
        ("1.1F", 1.100000023841858),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993.0", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_numbers_are_read_as_spark_reads_them(literal: str, value: float) -> None:
    assert parse_sql(f"x = {literal}").holds({"x": value})
    assert not parse_sql(f"x = {literal}").holds({"x": value + 1 if abs(value) < 2**52 else value - 1})


def test_a_double_attribute_is_compared_as_a_double() -> None:
    text = "y = 9007199254740993"
    assert parse_sql(text, SCHEMA).holds({"y": 9007199254740992.0})  # as Spark rounds the literal
    assert not parse_sql(text).holds({"y": 9007199254740992.0})


NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "literal",
    [
        "TIMESTAMP '2026-01-31 12:00:00'",
        "TIMESTAMP_NTZ '2026-01-31 12:00:00+05:00'",
        "TIMESTAMP_LTZ '2026-01-31T12:00:00Z'",
        "'2026-01-31 12:00:00'",
        "' 2026-1-31 12:0:0 '",
        "'2026-01-31 12'",
        "'2026-01-31 12:00'",
        "'2026-01-31 12:00:00.'",
        "'2026-01-31 12:00:00.000000999'",
        "'2026-01-31T12:00:00Z'",
        "'2026-01-31T14:00:00+02:00'",
        "'2026-01-31T14:00:00+2:00'",
        "'2026-01-31T14:00:00+0200'",
        "'2026-01-31T14:00:00+02'",
        "'2026-01-31 12:00:00 UTC'",
        "'2026-01-31 14:00:00 UTC+02:00'",
        "'2026-01-31 14:00:00 GMT+2'",
        "'2026-01-31 13:00:00 Europe/Berlin'",
        "'2026-01-31 13:00:00 CET'",
    ],
)
def test_timestamps_are_read_as_spark_reads_them(literal: str) -> None:
    f = parse_sql(f"ts = {literal}", SCHEMA)
    assert f.holds({"ts": NOON})
    assert not f.holds({"ts": NOON.replace(microsecond=1)})


@pytest.mark.parametrize(
    "literal", ["DATE '2026-01-31'", "DATE '2026-01-31 12:00:00'", "DATE '2026-1-31Tx'"]
)
def test_of_a_date_only_the_day_counts(literal: str) -> None:
    assert parse_sql(f"ts = {literal}").holds({"ts": datetime(2026, 1, 31, tzinfo=UTC)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nope",
        "now",
        "12:30:00",
        "26-01-31",
        "2026-02-30",
        "2026-01-31T",
        "2026-01-31 24:00:00",
        "2026-01-31 10:30:60",
        "2026-01-31 12:00Z",
        "2026-01-31 12:00:00 utc",
        "2026-01-31 12:00:00 z",
        "2026-01-31 12:00:00+19:00",
        "2026-01-31 12:00:00+01:60",
        "2026-01-31 12:00:00 Nowhere/City",
    ],
)
def test_what_spark_calls_no_timestamp_is_refused(text: str) -> None:
    assert "is not a timestamp" in refusal(f"ts = TIMESTAMP '{text}'").reason


@pytest.mark.parametrize("text", ["2026-01-31Z", "2026 x", "2026-01 x", "x"])
def test_what_spark_calls_no_date_is_refused(text: str) -> None:
    assert "is not a timestamp" in refusal(f"ts = DATE '{text}'").reason


# ----------------------------------------------------------------- names, NULL, kinds


@pytest.mark.parametrize(
    "name", ["load", "desc", "set", "comment", "user", "date", "key", "a.b.c.d.e", "`a b`"]
)
def test_keywords_may_be_attribute_names(name: str) -> None:
    assert parse_sql(f"{name} = 5").paths == {name.strip("`")}


def test_names_keep_their_case_and_dots() -> None:
    assert parse_sql("Price = 5").paths == {"Price"}
    assert (
        parse_sql("`a.b` = 5") == parse_sql("a.b = 5") == parse_sql("a.`b` = 5") == parse_sql("(a.b) = (5)")
    )


def test_time_is_a_timestamp_without_a_schema() -> None:
    assert parse_sql("time >= '2026-01-31'").holds({"time": NOON})
    assert not parse_sql("time >= '2026-02-01'").holds({"time": NOON})


@pytest.mark.parametrize(
    "text", ["x = NULL", "NULL <> x", "x IN (NULL)", "s LIKE NULL", "NULL", "NOT NULL", "x > (NULL)"]
)
def test_null_is_never_true_and_never_false(text: str) -> None:
    expression = parse_sql_expression(text)
    assert evaluate(expression, {"x": 1, "s": "a"}) is None
    assert parse_sql(text).is_empty


def test_a_value_of_another_kind_makes_a_comparison_null() -> None:
    for text in ("x = 5", "NOT x = 5", "x IN (5)", "x < 5 OR x >= 5"):
        assert evaluate(parse_sql_expression(text), {"x": "5"}) is None
        assert evaluate(parse_sql_expression(text), {"x": [5]}) is None
    assert evaluate(parse_sql_expression("x IS NULL"), {"x": "5"}) is False
    assert evaluate(parse_sql_expression("array_contains(tags, 'a')"), {"tags": "a"}) is None
    assert evaluate(parse_sql_expression("array_contains(tags, 5)"), {"tags": (5.0, 6.0)}) is True


def test_comments_and_operators_of_spark_are_read() -> None:
    same = ["x = 5", "x == 5", "x /* the answer */ = 5 -- almost", "NOT x <> 5", "! (x != 5)"]
    assert len({parse_sql(text).key for text in same}) == 1


@pytest.mark.parametrize("text", ["x.upper('a') = 'b'", "s.lower() LIKE 'a%'", "x.y()", "a.count(*) > 1"])
def test_a_call_behind_a_dot_is_a_function_too(text: str) -> None:
    with pytest.raises(FilterError, match="function"):
        parse_sql(text)


# ------------------------------------------------------------------------------------- in any case


def pattern_codes(pattern: str) -> list[Any]:
    return [("%",) if c == "%" else ("_",) if c == "_" else c for c in pattern]


@given(st.text("aAbBéÉ1%_", max_size=5), st.text("aAbBéÉ1", max_size=5))
def test_case_is_folded_before_a_pattern_is_matched(pattern: str, text: str) -> None:
    lower, upper = text.lower(), text.upper()
    event = {"s": text}
    regex = like_regex(pattern_codes(pattern))
    folded = like_regex(pattern_codes(pattern.lower()))
    assert parse_sql(f"s ILIKE '{pattern}'").holds(event) == (folded.fullmatch(lower) is not None)
    assert parse_sql(f"upper(s) ILIKE '{pattern}'").holds(event) == (folded.fullmatch(lower) is not None)
    assert parse_sql(f"lower(s) LIKE '{pattern}'").holds(event) == (regex.fullmatch(lower) is not None)
    assert parse_sql(f"upper(s) LIKE '{pattern}'").holds(event) == (regex.fullmatch(upper) is not None)
    assert parse_sql(f"upper(s) = '{pattern}'").holds(event) == (upper == pattern)
    assert parse_sql(f"lower(s) IN ('{pattern}', 'ab')").holds(event) == (lower in (pattern, "ab"))
    assert parse_sql(f"lower(s) <> '{pattern}'").holds(event) == (lower != pattern)
    assert not parse_sql(f"s NOT ILIKE '{pattern}'").holds({})


def test_what_has_no_case_is_the_same_filter_without_folding() -> None:
    assert parse_sql("s ILIKE '%12%'") == parse_sql("s LIKE '%12%'")
    assert parse_sql("lower(s) = '12'") == parse_sql("s = '12'")
    assert (
        parse_sql("s ILIKE 'AB%'") == parse_sql("lower(s) LIKE 'ab%'") == parse_sql("UPPER(s) LIKE 'AB%'")
    )


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("y = 5L", 5.0, True),
        ("y = 9007199254740993L", 9007199254740992.0, True),
        ("y = 9007199254740993D", 9007199254740992.0, True),
        ("y < -5L", -5.5, True),
        ("y IN (1S, 2Y)", 2.0, True),
    ],
)
def test_suffixed_literals_meet_doubles(text: str, value: float, holds: bool) -> None:
    assert parse_sql(text, SCHEMA).holds({"y": value}) == holds


def test_the_least_integers_have_a_suffix_too() -> None:
    assert parse_sql("x = -128Y AND z = -9223372036854775808L").holds({"x": -128, "z": -(2**63)})
    assert parse_sql("x = 9007199254740993D").holds({"x": 2**53})
    assert refusal("x = 128Y").reason == "128 does not fit 8 bits"
    assert refusal("x = -129Y").reason == "129 does not fit 8 bits"


@pytest.mark.parametrize("name", ["_x", "__", "_", "_1", "_x._y", "d._z", "_5L", "_1D"])
def test_names_may_begin_with_an_underscore(name: str) -> None:
    assert parse_sql(f"{name} = 5 AND {name} IS NOT NULL").holds({name: 5})


@pytest.mark.parametrize(
    "condition",
    [
        "x.a AND NOT x.a",
        "x.a < TRUE AND x.a",
        "x > 5 OR (x.a = 1 AND x.a = 2)",
        "lower(x.s) = 'A' AND x.b = 1",
    ],
)
def test_the_not_of_a_condition_on_fields_is_refused_though_no_field_can_meet_it(condition: str) -> None:
    """In an object without the field it is unknown, and then so is NOT exists."""
    parse_sql(f"exists(xs, x -> {condition})")
    with pytest.raises(FilterError, match="cannot be decided"):
        parse_sql(f"NOT exists(xs, x -> {condition})")
