"""Random events and random filters of all three spellings, drawn from the same few values.

Small pools make matches, ties and overlaps frequent: a law is tested where it could break.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from oracles import All, Bare, Between, Compare, Const, Contains, In, IsNull, Like, Not, Some
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from ramify.errors import FilterError


@contextmanager
def within_limits() -> Iterator[None]:
    """Leave out what the algebra refuses as too much: it says so, which other tests look at."""
    try:
        yield
    except FilterError:
        reject()


STRINGS = ["", "a", "b", "ab", "aB", "Ab", "ba", "abb", "a\0", "%", "_", "a\\", "é", "É", "中b", "10.0.0.7"]
INTEGERS = [-1, 0, 1, 2, 3]
FLOATS = [-1.0, 0.0, 0.5, 1.0, 2.5, 1e10]
TIMES = [
    datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(microseconds=k) for k in (-86_400_000_000, -1, 0, 1)
]
BOOLEANS = [False, True]
# path -> the values that its kind allows; every filter keeps to these kinds
POOLS: dict[str, list[Any]] = {
    "x": INTEGERS,
    "y": FLOATS,
    "s": STRINGS,
    "t": STRINGS,
    "b": BOOLEANS,
    "ts": TIMES,
    "d.e": INTEGERS,
}
SCALAR_PATHS = sorted(POOLS)
WORDS = st.sampled_from(STRINGS)


# ------------------------------------------------------------------------------------------------ events


_ARRAYS: list[Any] = [(), ("a",), ("b",), ("ab", "a"), ("É", "b"), ("ba", "aB", "a\0"), ("10.0.0.7", "%")]
_ODD: list[Any] = [
    1,
    2.5,
    "a",
    "",
    "ab",
    "É",
    True,
    False,
    TIMES[2],
    (),
    (0, 2.5),
    (1,),
    ("ab", "b"),
    *_ARRAYS,
]
# Per path what an event may hold; "absent" twice, so that it is not rare.
_CHOICES: dict[str, list[Any]] = {p: ["absent", None, *pool, *pool] for p, pool in POOLS.items()}
_CHOICES["tags"] = ["absent", None, *_ARRAYS, *_ARRAYS]
# One number per event is much faster to draw, and to shrink, than a choice per attribute.
_COUNT = math.prod(len(choices) for choices in _CHOICES.values())
_SCRAMBLE = 1_000_000_007


def _typed_row(number: int) -> dict[str, Any]:
    number = number * _SCRAMBLE % _COUNT
    row: dict[str, Any] = {}
    for path, choices in _CHOICES.items():
        number, k = divmod(number, len(choices))
        if choices[k] != "absent":
            row[path] = choices[k]
    return row


def typed_rows() -> Any:
    """Attributes whose values have the kind of their path; some absent, some explicitly null."""
    return st.integers(0, _COUNT - 1).map(_typed_row)


def rows() -> Any:
    """As `typed_rows`, but up to two attributes may hold a value of another kind, or any array."""
    odd = st.dictionaries(st.sampled_from([*SCALAR_PATHS, "tags"]), st.sampled_from(_ODD), max_size=2)
    return st.tuples(typed_rows(), odd).map(lambda both: {**both[0], **both[1]})


# ------------------------------------------------------------------------------------------------ SQL


@st.composite
def like_patterns(draw: st.DrawFn) -> tuple[Any, ...]:
    piece = st.sampled_from([("%",), ("_",), "a", "b", "B", "%", "_", "\\", "é", "\0"])
    return tuple(draw(st.lists(piece, max_size=4)))


@st.composite
def sql_atoms(draw: st.DrawFn, paths: tuple[str, ...] = tuple(SCALAR_PATHS), plain: bool = False) -> Any:
    """One predicate. `plain` leaves out LIKE and arrays, which the algebra cannot fully decide."""
    path = draw(st.sampled_from(paths))
    pool = POOLS[path]
    value = st.sampled_from(pool)
    forms = ["compare"] * 4 + ["between", "in", "null", "const"]
    if not plain:
        forms += ["array"] + (["like", "like"] if pool is STRINGS else [])
    if pool is BOOLEANS:
        forms += ["bare", "bare"]
    match draw(st.sampled_from(forms)):
        case "compare":
            literal = draw(st.one_of(value, value, value, st.none()))
            return Compare(path, draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="])), literal)
        case "between":
            return Between(path, draw(value), draw(st.one_of(value, value, st.none())))
        case "in":
            return In(
                path,
                tuple(draw(st.lists(st.one_of(value, value, value, st.none()), min_size=1, max_size=4))),
            )
        case "null":
            return IsNull(path)
        case "bare":
            return Bare(path)
        case "like":
            return Like(path, draw(like_patterns()))
        case "array":
            return draw(st.one_of(WORDS.map(lambda w: Contains("tags", w)), st.just(IsNull("tags"))))
    return Const(draw(st.sampled_from([True, False, None])))


def sql_trees(paths: tuple[str, ...] = tuple(SCALAR_PATHS), plain: bool = False, leaves: int = 6) -> Any:
    """Random predicates under AND, OR and NOT."""

    def extend(parts: Any) -> Any:
        several = st.lists(parts, min_size=2, max_size=3).map(tuple)
        return st.one_of(parts.map(Not), several.map(All), several.map(Some))

    return st.recursive(sql_atoms(paths, plain), extend, max_leaves=leaves)


def sql_text(node: Any, other: bool = False) -> str:
    """The SQL of a tree; `other` takes the second way to write what can be written in two ways."""
    match node:
        case Const(value):
            return {True: "TRUE", False: "false", None: "NULL"}[value]
        case All(parts):
            return "(" + " AND ".join(sql_text(p, other) for p in parts) + ")"
        case Some(parts):
            return "(" + " or ".join(sql_text(p, other) for p in parts) + ")"
        case Not(IsNull(path)) if other:
            return f"{path} IS NOT NULL"
        case Not(Between(path, low, high)) if other:
            return f"{path} NOT BETWEEN {sql_literal(low)} AND {sql_literal(high)}"
        case Not(In(path, values)) if other:
            return f"{path} NOT IN ({', '.join(map(sql_literal, values))})"
        case Not(Like(path, pattern)) if other:
            return f"{path} NOT LIKE {like_literal(pattern)}"
        case Not(part):
            return f"NOT ({sql_text(part, other)})"
        case IsNull(path):
            return f"{path} IS NULL"
        case Bare(path):
            return path
        case Compare(path, op, value) if other:
            flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "<>": "!=", "=": "="}[op]
            return f"{sql_literal(value)} {flipped} `{path}`"
        case Compare(path, op, value):
            return f"{path} {op} {sql_literal(value)}"
        case Between(path, low, high):
            return f"{path} BETWEEN {sql_literal(low)} AND {sql_literal(high)}"
        case In(path, values):
            return f"{path} IN ({', '.join(map(sql_literal, values))})"
        case Like(path, pattern):
            return f"{path} LIKE {like_literal(pattern)}"
        case Contains(path, value):
            return f"array_contains({path}, {sql_literal(value)})"
    raise TypeError(node)


def sql_literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
    return repr(value)


def like_literal(pattern: tuple[Any, ...]) -> str:
    """A LIKE pattern as SQL: % and _ that stand for themselves are escaped, as is the backslash."""
    return sql_literal(
        "".join(p[0] if isinstance(p, tuple) else f"\\{p}" if p in "%_\\" else p for p in pattern)
    )


# ------------------------------------------------------------------------------------------------ patterns


def string_operators() -> Any:
    part = st.sampled_from(["", "a", "b", "B", "ab", "Ab", "é", "中"])
    whole = WORDS
    case_less = part.map(lambda p: {"equals-ignore-case": p})
    return st.one_of(
        st.one_of(part, case_less).map(lambda p: {"prefix": p}),
        st.one_of(part, case_less).map(lambda p: {"suffix": p}),
        whole.map(lambda w: {"equals-ignore-case": w}),
        whole.map(lambda w: {"exactly": w}),
        wildcards().map(lambda w: {"wildcard": w}),
        st.sampled_from(["10.0.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "::/0"]).map(lambda c: {"cidr": c}),
    )


def wildcards() -> Any:
    piece = st.sampled_from(["*", "a", "b", "B", "\\*", "\\\\", "é"])
    return st.lists(piece, max_size=4).filter(lambda p: ("*", "*") not in pairwise(p)).map("".join)


def numeric_operators() -> Any:
    numbers = st.sampled_from([*INTEGERS, *FLOATS[:-1]])
    ranges = st.tuples(st.sampled_from([">", ">="]), numbers, st.sampled_from(["<", "<="]), numbers)
    return st.one_of(
        st.tuples(st.sampled_from(["=", "<", "<=", ">", ">="]), numbers).map(list),
        ranges.filter(lambda r: r[1] < r[3]).map(list),
    ).map(lambda r: {"numeric": r})


def anything_buts() -> Any:
    def one_or_list(values: Any) -> Any:
        return st.one_of(values, st.lists(values, min_size=1, max_size=3))

    tests = st.sampled_from(["prefix", "suffix"]).flatmap(
        lambda op: one_or_list(st.sampled_from(["a", "b", "ab", "é"])).map(lambda v: {op: v})
    )
    return st.one_of(
        one_or_list(WORDS),
        one_or_list(st.sampled_from([*INTEGERS, *FLOATS])),
        tests,
        one_or_list(WORDS).map(lambda v: {"equals-ignore-case": v}),
        one_or_list(wildcards()).map(lambda v: {"wildcard": v}),
    ).map(lambda v: {"anything-but": v})


def pattern_leaves() -> Any:
    plain = st.sampled_from([*STRINGS, *INTEGERS, *FLOATS, True, False, None])
    exists = st.booleans().map(lambda e: {"exists": e})
    item = st.one_of(plain, string_operators(), numeric_operators(), anything_buts(), exists)
    return st.lists(item, min_size=1, max_size=3)


@st.composite
def patterns(draw: st.DrawFn) -> dict[str, Any]:
    """A pattern over the same paths as the events; "d" is nested."""
    left = draw(st.permutations(["x", "y", "s", "t", "b", "tags", "d"]))
    return _object(draw, left, draw(st.integers(1, 3)), draw(st.booleans()))


def _object(draw: st.DrawFn, left: list[str], count: int, with_or: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for _ in range(min(count, len(left))):
        name = left.pop()
        out[name] = {"e": draw(pattern_leaves())} if name == "d" else draw(pattern_leaves())
    if with_or and left:
        # alternatives may share paths with each other, never with the fields around them
        out["$or"] = [_object(draw, list(left), 1 + k % 2, False) for k in range(draw(st.integers(2, 3)))]
    return out


# ------------------------------------------------------------------------------------------ all of them


def keyword_lists() -> Any:
    word = st.sampled_from([s for s in STRINGS if s])
    some = st.lists(word, min_size=1, max_size=3)
    return st.one_of(some, st.lists(some, min_size=1, max_size=3))


def sql_filters(plain: bool = False) -> Any:
    return sql_trees(plain=plain, leaves=5).map(lambda tree: parse_sql(sql_text(tree)))


def filters() -> Any:
    """Filters of every spelling."""
    return st.one_of(
        sql_filters(),
        patterns().map(parse_pattern),
        keyword_lists().map(lambda words: parse_keywords(words, "tags")),
    )
