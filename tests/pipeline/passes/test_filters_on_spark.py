"""A SQL filter means what Spark's `where` means: random predicates, judged by Spark itself.

Every drawn example is one frame and many predicates, evaluated in one query: a query costs far more than a
predicate. Where docs/filters.md says that we differ from Spark, nothing is drawn: tests at the end show it.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from batches import batch_of
from ramify.content.events.events import AttributeType
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.matcher import Matcher
from ramify.errors import FilterError
from strategies import like_literal, like_patterns, sql_literal

Row = dict[str, Any]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TEXTS = ["", " ", "a", "A", "ab", "abb", "b", "ba", "a\0", "a\n", "%", "_", "a_b", "a\\", "'", "é",
         "e\u0301", "É", "ß", "ss", "中b", "\uffff", "😀", "a😀b"]  # fmt: skip
POOLS: dict[str, list[Any]] = {
    "x": [-1, 0, 1, 2, 3],
    "n": [0, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 2, 2**63 - 1, -(2**63), 1 - 2**63],
    "y": [-1.0, -0.0, 0.0, 0.1, 0.5, 1.0, 2.5, 2.0**53, 2.0**53 + 2, 1e10, 2.0**63, 1e300, 5e-324, -1e300],
    "s": TEXTS,
    "t": TEXTS,
    "b": [False, True],
    "ts": [NOON + timedelta(microseconds=k) for k in (-43_200_000_000, -1, 0, 1, 86_400_000_000)]
    + [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    "d.e": [-1, 0, 1, 2],
    "tags": [(), ("a",), ("b", "a"), ("", "É"), ("a\0", "%"), ("😀", "中b")],
    "levels": [(), (0.0,), (-0.0, 2.5), (1.0, 1e300)],
}
TYPES = {
    "x": AttributeType.INT64,
    "n": AttributeType.INT64,
    "y": AttributeType.DOUBLE,
    "s": AttributeType.STRING,
    "t": AttributeType.STRING,
    "b": AttributeType.BOOLEAN,
    "ts": AttributeType.TIMESTAMP,
    "d.e": AttributeType.INT64,
    "tags": AttributeType.STRINGS,
    "levels": AttributeType.NUMBERS,
}
# literals beside the values themselves. Exponents make Spark compare integers as doubles: not for `n`.
LITERALS: dict[str, list[str]] = {
    "x": ["2.0", "0.5", "1e0", "-5e-1", "2.5D", "1L", "3Y", "-0.0", "0.1F", "1.0BD"],
    "n": ["4503599627370495.5", "9007199254740993.0", "-9007199254740993L", "0.0"],
    "y": ["0", "-0.0", "-0.0D", "0.1F", "9007199254740993", "9223372036854775807", "1", "2.50", "1e-1"],
    "s": ['"a"', "r'a\\n'", "'it''s'", "'\\u0041'", "'a' 'b'"],
    "t": ["''"],
    "b": ["true", "FALSE"],
    "ts": ["DATE '2026-01-31'", "'2026-01-31'", "'2026-01-31 12:00:00.000001'", "'2026-01-31T12:00:00Z'",
           "TIMESTAMP '2026-01-31 13:00:00+01:00'", "'2026'"],
    "d.e": ["1.0", "1e0", "0.5"],
}  # fmt: skip


# ------------------------------------------------------------------------------------- what is drawn


def literals(path: str) -> Any:
    """A literal as SQL text: a value, another spelling, or NULL."""
    values = st.sampled_from([sql_literal(value) for value in POOLS[path]])
    others = st.sampled_from(LITERALS[path])
    return st.one_of(values, values, others, st.sampled_from([*LITERALS[path], "NULL"]))


@st.composite
def atoms(draw: st.DrawFn) -> str:
    """One predicate, in any spelling that both sides know."""
    path = draw(st.sampled_from(sorted(TYPES)))
    name = draw(st.sampled_from([path, f"`{path}`"]))
    maybe_not = draw(st.sampled_from(["", "NOT "]))
    if path in ("tags", "levels"):
        if draw(st.booleans()):
            return f"{name} IS {maybe_not}NULL"
        sought = [sql_literal(v) for value in POOLS[path] for v in value] + (
            ["1", "2.5"] if path == "levels" else []
        )
        return f"{maybe_not}array_contains({name}, {draw(st.sampled_from(sought))})"
    forms = (
        ["compare"] * 4
        + ["between", "in", "null"]
        + ["like"] * 3 * (path in "st")
        + ["case"] * 3 * (path in "st")
        + ["bare"] * (path == "b")
    )
    one = literals(path)
    match draw(st.sampled_from(forms)):
        case "compare":
            op = draw(st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="]))
            return draw(st.sampled_from([f"{name} {op} {(a := draw(one))}", f"{a} {op} {name}"]))
        case "between":
            return f"{name} {maybe_not}BETWEEN {draw(one)} AND {draw(one)}"
        case "in":
            return f"{name} {maybe_not}IN ({', '.join(draw(st.lists(one, min_size=1, max_size=4)))})"
        case "null":
            return f"{name} IS {maybe_not}NULL"
        case "like":
            return f"{name} {maybe_not}LIKE {like_literal(draw(like_patterns()))}"
        case "case":
            pattern = like_literal(draw(like_patterns()))
            some = ", ".join(draw(st.lists(one, min_size=1, max_size=3)))
            call = f"{draw(st.sampled_from(['lower', 'upper', 'lcase', 'UCASE']))}({name})"
            return draw(
                st.sampled_from(
                    [
                        f"{name} {maybe_not}ILIKE {pattern}",
                        f"lower({name}) {maybe_not}LIKE {pattern}",
                        f"{call} {maybe_not}IN ({some})",
                        f"{call} {draw(st.sampled_from(['=', '<>']))} {draw(one)}",
                        f"{draw(one)} = {call}",
                    ]
                )
            )
    return name


def predicates() -> Any:
    """Atoms under AND, OR and NOT, with constants among them."""

    def extend(parts: Any) -> Any:
        several = st.lists(parts, min_size=2, max_size=3)
        return st.one_of(
            parts.map(lambda part: f"NOT ({part})"),
            several.map(lambda some: f"({' AND '.join(some)})"),
            several.map(lambda some: f"({' OR '.join(some)})"),
        )

    leaves = st.one_of(atoms(), atoms(), atoms(), atoms(), st.sampled_from(["TRUE", "FALSE", "NULL"]))
    return st.recursive(leaves, extend, max_leaves=5)


# Per path what an event may hold. One number per event is much faster to draw than a choice per attribute.
_CHOICES: dict[str, list[Any]] = {path: ["absent", None, *pool, *pool] for path, pool in POOLS.items()}
_COUNT = math.prod(len(choices) for choices in _CHOICES.values())


def row_of(number: int) -> Row:
    """The event of that number; neighbours have little in common."""
    number = number * 1_000_000_007 % _COUNT
    row: Row = {}
    for path, choices in _CHOICES.items():
        number, k = divmod(number, len(choices))
        if choices[k] != "absent":
            row[path] = choices[k]
    return row


def rows() -> Any:
    """Events of every type; any attribute may be absent or an explicit null."""
    return st.integers(0, _COUNT - 1).map(row_of)


# ------------------------------------------------------------------------------------- the two sides


def batch_for(events: list[Row]) -> pa.RecordBatch:
    return batch_of(events, {path: kind.arrow for path, kind in TYPES.items()})


def frame_for(spark: SparkSession, events: list[Row]) -> DataFrame:
    """The same rows for Spark; `d.e` is both a column of that name and a field of a struct."""
    batch = batch_for(events).append_column("row", pa.array(range(len(events)), pa.int64()))
    nested = pa.StructArray.from_arrays([batch.column("d.e")], ["e"])
    return spark.createDataFrame(pa.Table.from_batches([batch.append_column("d", nested)]))


def spark_accepts(frame: DataFrame, asked: list[str]) -> list[list[int]]:
    """Per row, which predicates are TRUE: all of them in one query."""
    verdicts = ", ".join(f"coalesce(({text}), FALSE)" for text in asked)
    found = frame.selectExpr("row", f"array({verdicts}) AS verdicts").collect()
    return [
        [k for k, true in enumerate(row.verdicts) if true] for row in sorted(found, key=lambda r: r.row)
    ]


def we_accept(events: list[Row], asked: list[str]) -> list[list[int]]:
    """The same by the compiled matcher, which must agree with plain evaluation."""
    filters = [parse_sql(text, TYPES) for text in asked]
    matched = [ids.tolist() for ids in Matcher(filters).match(batch_for(events))]
    assert matched == [[k for k, f in enumerate(filters) if f.holds(event)] for event in events]
    return matched


def differences(
    events: list[Row], asked: list[str], ours: list[list[int]], theirs: list[list[int]]
) -> list[str]:
    """What to look at: each predicate and row on which the two sides disagree."""
    return [
        f"{'only Ramify' if k in our else 'only Spark'} accepts {event} by: {asked[k]}"
        for event, our, their in zip(events, ours, theirs, strict=True)
        for k in sorted(set(our) ^ set(their))
    ]


def assert_agreement(spark: SparkSession, events: list[Row], asked: list[str]) -> None:
    theirs = spark_accepts(frame_for(spark, events), asked)
    assert differences(events, asked, we_accept(events, asked), theirs) == []


# ------------------------------------------------------------------------------------------ the law


# Not shrunk: each step would be a query, and the differences name predicate and row anyway.
@settings(max_examples=25, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(rows(), min_size=40, max_size=60), st.lists(predicates(), min_size=30, max_size=40))
def test_sql_filters_mean_what_spark_means(
    spark: SparkSession, events: list[Row], asked: list[str]
) -> None:
    assert_agreement(spark, events, asked)


KNOTTY = [
    "NOT (x IN (1, NULL))",
    "x NOT IN (1, NULL) OR x IS NULL",
    "NULL OR x = 1",
    "NOT (NULL AND b)",
    "n = 9007199254740993 OR n = -9223372036854775808",
    "n > 9007199254740992.0 AND n < 9223372036854775807",
    "y = -0.0 AND y >= 0",
    "y = 9007199254740993",
    "array_contains(levels, 0.0) AND NOT array_contains(levels, 2.5)",
    "s LIKE 'a\\\\_b' OR s LIKE '%\\\\\\\\' OR s LIKE '_'",
    "s >= '\uffff' AND t NOT LIKE '%é%'",
    "s ILIKE 'A%' AND t NOT ILIKE '%É%' OR lower(s) LIKE 'É'",
    "upper(s) IN ('A', 'É', 'ab', NULL) OR lower(t) NOT IN ('a', 'B')",
    "upper(s) LIKE 'A%' OR lower(t) = 'AB' OR 'ab' <> lower(t)",
    "y = 9007199254740993L OR y = 1L OR y = 9007199254740993D OR x = -1Y",
    "n = -9223372036854775808L OR n = 9223372036854775807L",
    "d.e <> 1 AND `d.e` <= 2",
    "ts < '2026-01-31T13:00:00+01:00' AND ts >= DATE '2026-01-30'",
    "b > FALSE AND NOT (b <> TRUE)",
]


def test_knotty_predicates_mean_what_spark_means(spark: SparkSession) -> None:
    events = [row_of(7_919 * k) for k in range(200)]
    assert_agreement(spark, events, KNOTTY)
    # and `where` keeps just the rows for which a predicate is TRUE
    accepted = we_accept(events, KNOTTY[:3])
    frame = frame_for(spark, events)
    for k, text in enumerate(KNOTTY[:3]):
        kept = {row.row for row in frame.where(text).select("row").collect()}
        assert kept == {at for at, ids in enumerate(accepted) if k in ids}, text


# ------------------------------------------------------------- where docs/filters.md says that we differ

ODD: list[Row] = [{"x": 1, "n": 2**53 + 1, "s": "a", "b": True, "tags": ("a",)}, {}]


def refuses(text: str) -> None:
    with pytest.raises(FilterError):
        parse_sql(text, TYPES)


def is_null(text: str) -> None:
    """Another type than the filter's: neither the predicate nor its negation accepts the event."""
    assert not parse_sql(text, TYPES).holds(ODD[0])
    assert not parse_sql(f"NOT ({text})", TYPES).holds(ODD[0])


@pytest.mark.parametrize("text", ["s > 5", "s = 1.5", "s IN (1, 2)", "s IN ('a', 1)"])
def test_a_string_beside_a_number_fails_the_query_in_spark_and_is_refused_or_null_here(
    spark: SparkSession, text: str
) -> None:
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        spark_accepts(frame_for(spark, ODD), [text])
    if "'" in text:
        refuses(text)
    else:  # whatever most events hold, one may hold anything: the comparison is NULL
        is_null(text)


@pytest.mark.parametrize(
    "text", ["tags = 1", "array_contains(tags, 1)", "array_contains(tags, NULL)", "b = 5.5"]
)
def test_types_that_cannot_meet_are_refused_by_spark_and_null_here(spark: SparkSession, text: str) -> None:
    with pytest.raises(PySparkException):
        spark_accepts(frame_for(spark, ODD), [text])
    if "NULL" in text:
        refuses(text)
    else:
        is_null(text)


@pytest.mark.parametrize("text", ["s LIKE 'a\\\\'", "s LIKE '\\\\a'"])
def test_bad_escapes_in_like_are_refused_by_both(spark: SparkSession, text: str) -> None:
    with pytest.raises(PySparkException, match="INVALID_FORMAT"):
        spark_accepts(frame_for(spark, ODD), [text])
    refuses(text)


def test_letters_whose_other_case_leads_elsewhere_only_equal_themselves(spark: SparkSession) -> None:
    events: list[Row] = [{"s": text} for text in ("\u0130", "\u212a", "\u03a3", "ß", "ẞ", "k")]
    asked = ["s ILIKE 'k'", "lower(s) = 'i\u0307'", "upper(s) = 'SS'", "lower(s) = 'ß'", "s ILIKE '\u03c3'"]
    assert spark_accepts(frame_for(spark, events), asked) == [[1], [0], [4], [2, 3], [3], [0]]
    assert we_accept(events, asked) == [[], [], [4], [3], [], [0]]


def test_we_never_cast_where_spark_does(spark: SparkSession) -> None:
    casts = ["b = 'true'", "x = '1'", "s = X'61'"]
    assert spark_accepts(frame_for(spark, ODD), casts) == [[0, 1, 2], []]
    for text in casts[:2]:
        is_null(text)
    refuses(casts[2])


def test_integers_beyond_2_to_53_stay_exact_beside_an_exponent(spark: SparkSession) -> None:
    asked = ["n = 9007199254740992e0", "n > 9007199254740992e0"]
    assert spark_accepts(frame_for(spark, ODD), asked) == [[0], []]
    assert we_accept(ODD, asked) == [[1], []]


def test_a_fraction_lost_in_a_double_is_refused_where_spark_compares_decimals(spark: SparkSession) -> None:
    text = "n > 9007199254740992.5"
    assert spark_accepts(frame_for(spark, ODD), [text]) == [[0], []]
    refuses(text)


def test_literals_outside_64_bits_leave_null_null(spark: SparkSession) -> None:
    asked = ["NOT (x > 9223372036854775808)", "x < 99999999999999999999999999999999999999"]
    assert spark_accepts(frame_for(spark, ODD), asked) == [[0, 1], [0, 1]]
    assert we_accept(ODD, asked) == [[0, 1], []]


def test_null_on_its_own_accepts_nothing_and_spark_refuses_it(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException):
        frame_for(spark, ODD).where("NULL").collect()
    assert we_accept(ODD, ["NULL"]) == [[], []]


def test_names_keep_their_case(spark: SparkSession) -> None:
    """In Spark they do so in our sessions only: by default x and X are one column there."""
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        spark_accepts(frame_for(spark, ODD), ["X = 1"])
    spark.conf.set("spark.sql.caseSensitive", "false")
    try:
        assert spark_accepts(frame_for(spark, ODD), ["X = 1"]) == [[0], []]
    finally:
        spark.conf.set("spark.sql.caseSensitive", "true")
    assert we_accept(ODD, ["X = 1"]) == [[], []]
