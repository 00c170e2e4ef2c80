"""Every filter within the size limit is accepted or refused after a bounded amount of work.

Counted, not timed: calls of functions from the text to the filter's key, as the interpreter sees them. A
call takes a tenth of a microsecond or more, so the bound stands for some 200 ms.
"""

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramify.content.filters import pattern as pattern_module
from ramify.content.filters.filters import Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.limits import FILTER_TEXT
from ramify.content.filters.pattern import parse_pattern, parse_pattern_expression
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.work import ALGEBRA_STEPS, COMPILE_STEPS, Work, WorkAllowance, charge
from ramify.errors import FilterError

MOST_CALLS = 1_500_000


def calls_of(make: Callable[[], Filter]) -> int:
    """How many functions are called to make a filter and its key, or to refuse it."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        _ = make().key
    except FilterError:
        pass
    finally:
        sys.setprofile(None)
    return calls


def filled(part: Callable[[int], str], joint: str, most: int = FILTER_TEXT) -> str:
    """As many parts as fit the size limit."""
    parts: list[str] = []
    size = 0
    while size + len(joint) + len(part(len(parts))) <= most:
        parts.append(part(len(parts)))
        size += len(joint) + len(parts[-1])
    return joint.join(parts)


def like(texts: Sequence[str], joint: str, name: str = "s", word: str = "LIKE") -> str:
    return joint.join(f"{name} {word} '{text}'" for text in texts)


HALF = FILTER_TEXT // 2 - 20
SQL = {
    "open ranges": filled(lambda i: f"(x<{i} OR y>{i + 2})", " AND "),
    "open ranges of three": filled(lambda i: f"(x<{i} OR y>{i + 2} OR z={i})", " AND "),
    "not of ands": f"NOT ({filled(lambda i: f'(x<{i} AND y>{i + 2})', ' OR ', FILTER_TEXT - 8)})",
    "ranges under not": "NOT " * 20
    + f"({filled(lambda i: f'(x<{i} OR y>{i})', ' AND ', FILTER_TEXT - 99)})",
    "globs under or": filled(lambda i: f"s LIKE '%w{i}%'", " OR "),
    "globs under and": filled(lambda i: f"s LIKE '%w{i}%'", " AND "),
    "two times globs": " AND ".join(
        "(" + filled(lambda i, name=name: f"{name} LIKE '%w{i}%'", " OR ", HALF) + ")" for name in "st"
    ),
    "globs that imply each other": filled(
        lambda i: f"s LIKE '%{'a' * (i % 60)}%{'b' * (i // 60)}'", " OR "
    ),
    "globs of many stars": filled(lambda i: f"s LIKE '%{'a%' * (i % 40)}{i}%'", " OR "),
    "a huge glob": "s LIKE '" + "%a_" * ((FILTER_TEXT - 10) // 3) + "'",
    "two huge globs": " OR ".join(f"s LIKE '{f'%{c}' * (FILTER_TEXT // 4 - 20)}'" for c in "ab"),
    "no glob": filled(lambda i: f"s NOT LIKE '%w{i}%'", " AND "),
    "no glob or no glob": filled(lambda i: f"s NOT LIKE '%w{i}%'", " OR "),
    "globs of two attributes": filled(lambda i: f"(s LIKE '%w{i}%' AND t NOT LIKE '%v{i}%')", " OR "),
    "globs of two attributes, any": filled(lambda i: f"(s LIKE '%w{i}%' OR t LIKE '%v{i}%')", " AND "),
    "in any case": filled(lambda i: f"(s ILIKE '%w{i}%' OR lower(t) IN ('a{i}', 'b'))", " AND "),
    "long lists": filled(
        lambda i: f"(x IN ({','.join(str(i * k % 997) for k in range(60))}) OR y={i})", " AND "
    ),
    "one list": f"x IN ({filled(str, ',', FILTER_TEXT - 10)})",
    "many attributes": filled(lambda i: f"c{i}={i}", " OR "),
    "many attributes, all": filled(lambda i: f"c{i} IN ({i},{i + 1})", " AND "),
    "pairs of attributes": filled(lambda i: f"c{i}={i} AND d{i % 7}<{i}", " OR "),
    "rectangles": filled(lambda i: f"x>{i} AND x<{i + 900} AND y>{i * 37 % 500}", " OR "),
    "brackets": filled(lambda i: "(" * 8 + f"x<>{i}" + ")" * 8, " AND "),
    "deep": "(" * 32 + filled(lambda i: f"(x={i} OR y={i})", " AND ", FILTER_TEXT - 70) + ")" * 32,
}


@pytest.mark.parametrize("text", SQL.values(), ids=SQL.keys())
def test_predicates_take_bounded_work(text: str) -> None:
    assert len(text) <= FILTER_TEXT
    assert calls_of(lambda: parse_sql(text)) < MOST_CALLS


PATTERNS = {
    "wildcards": {"s": [{"wildcard": f"*w{i}*"} for i in range(250)]},
    "wildcards of many fields": {f"a{k}": [{"wildcard": f"*w{i}*"} for i in range(20)] for k in range(12)},
    "suffixes or not": {
        f"a{k}": [{"suffix": "x"}, {"anything-but": {"wildcard": "*y*"}}] for k in range(40)
    },
    "anything but wildcards": {
        "s": [{"anything-but": {"wildcard": [f"a{k}*", f"*b{k}"]}} for k in range(150)]
    },
    "or": {"$or": [{"x": [{"numeric": [">", i]}], "s": [{"suffix": str(i)}]} for i in range(150)]},
    "ors of ors": {
        f"f{k}": {"$or": [{"x": [i]} if i % 2 else {"y": [i]} for i in range(9)]} for k in range(15)
    },
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_patterns_take_bounded_work(pattern: dict[str, Any]) -> None:
    assert calls_of(lambda: parse_pattern(pattern)) < MOST_CALLS


def test_fields_beside_many_alternatives_are_copied_once_and_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(pattern_module, "charge", spent.append)
    alternatives = [{"a": [k % 9]} for k in range(300)]
    parse_pattern_expression({"$or": alternatives, **{f"b{k}": [1] for k in range(400)}})
    parse_pattern_expression({"$or": alternatives, **{f"b{k}": {"c": [1]} for k in range(300)}})
    copied = 300 * (1 + 400) + 300 * (1 + 300)
    assert 0.95 * copied < 64 * sum(spent) < 1.05 * copied
    monkeypatch.setattr(pattern_module, "charge", charge)
    deep = {"$or": [{"$or": alternatives}, *alternatives], **{f"b{k}": [1] for k in range(9)}}
    monkeypatch.setattr(pattern_module, "_COPIES_A_STEP", 0.1)
    with pytest.raises(FilterError, match="too much work"):
        parse_pattern_expression(deep)


def test_keywords_have_the_size_limit_of_every_filter() -> None:
    words = [f"w{k:05}" for k in range(FILTER_TEXT // 10)]
    assert len(parse_keywords(words).boxes) == 1
    with pytest.raises(FilterError, match="characters long"):
        parse_keywords([*words, "x" * 20])
    with pytest.raises(FilterError, match="characters long"):
        parse_keywords([words, ["x" * 20]])


@pytest.mark.parametrize(("clauses", "words"), [(1, 1400), (640, 2), (29, 50), (220, 6), (1, 60)])
def test_keywords_take_bounded_work(clauses: int, words: int) -> None:
    lists = [[f"w{i * k % 997}" for k in range(words)] for i in range(1, clauses + 1)]
    assert calls_of(lambda: parse_keywords(lists)) < MOST_CALLS


@pytest.mark.parametrize("seed", range(6))
def test_random_predicates_take_bounded_work(seed: int) -> None:
    rng = random.Random(seed)

    def atom() -> str:
        k = rng.randrange(40)
        return rng.choice(
            [
                *(f"x<{k}", f"y>{k}", f"z={k}", f"s LIKE '%a{k}%'", f"s NOT LIKE '{k}%b%{k}'"),
                *(f"t ILIKE '%{k}'", f"x IN ({k},{k + 3})", f"u = '{k}'", f"x BETWEEN {k} AND {k + 5}"),
                "b IS NULL",
            ]
        )

    def tree(depth: int) -> str:
        if depth == 0:
            return atom()
        joint = rng.choice([" AND ", " OR "])
        inner = f"({joint.join(tree(depth - 1) for _ in range(rng.randrange(2, 5)))})"
        return f"NOT {inner}" if rng.random() < 0.2 else inner

    for _ in range(12):
        text = tree(rng.randrange(2, 6))
        if len(text) <= FILTER_TEXT:
            assert calls_of(lambda text=text: parse_sql(text)) < MOST_CALLS, text  # type: ignore[misc]


def test_string_tests_of_one_attribute_under_or_are_one_box() -> None:
    some = [f"%w{i}x%" for i in range(20)]
    text = f"({like(some, ' OR ')}) AND ({like(some, ' OR ', 't', 'ILIKE')})"
    text += f" AND NOT ({like(some, ' OR ', 'u')})"
    assert len(parse_sql(text).boxes) == 1
    assert len(parse_sql(like(["a%b", "c%d", "%e"], " OR ")).boxes) == 1


def test_a_long_list_of_globs_is_accepted() -> None:
    f = parse_sql(filled(lambda i: f"s LIKE '%w{i:03d}%'", " OR "))
    assert len(f.boxes) <= 4
    assert f.holds({"s": "-w255-"})
    assert not f.holds({"s": "w"})


def test_what_runs_inside_is_charged_to_the_innermost_budget() -> None:
    with Work(10) as outer:
        charge(3)
        with Work(5) as inner:
            charge(5)
            with pytest.raises(FilterError, match="too much work"):
                charge(1)
        charge(7)
    assert (outer.left, inner.left) == (0, -1)
    charge(10**9)
    assert COMPILE_STEPS < ALGEBRA_STEPS


def test_many_comparisons_together_spend_no_more_than_they_are_allowed() -> None:
    """Beyond the allowance the answer is the safe one, and parsing has its own budget."""
    many = [parse_sql(filled(lambda i, k=k: f"s NOT LIKE '%w{i}_{k}%'", " OR ", 4_000)) for k in range(3)]
    with WorkAllowance(1_000) as allowed:
        for _ in range(5):
            assert not many[0].covers(many[1])
            assert many[0].overlaps(many[2])
        assert allowed.left >= 0
        spent = allowed.left
        assert parse_sql("x < 5").covers(parse_sql("x < 3")) == (spent > 10)
        assert parse_sql(SQL["rectangles"]).boxes
        assert allowed.left >= 0
    assert parse_sql("x < 5").covers(parse_sql("x < 3"))
