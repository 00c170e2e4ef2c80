"""The algebra's laws, on filters of all three spellings; and its bounds."""

import doctest
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from project import ROOT
from ramify.content.filters.constraints import Constraint
from ramify.content.filters.filters import EVERYTHING, MAX_BOXES, NOTHING_AT_ALL, Box, Filter, merge_boxes
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.values import number_above, numbers_equal
from ramify.errors import FilterError
from strategies import filters, rows, sql_filters, within_limits

EVENTS = st.lists(rows(), min_size=4, max_size=8)


@given(filters(), filters(), EVENTS)
def test_operators_are_those_of_sets(f: Filter, g: Filter, events: list[dict[str, object]]) -> None:
    with within_limits():
        both, either, neither, minus = f & g, f | g, ~f, f - g
    for event in events:
        a, b = f.holds(event), g.holds(event)
        assert both.holds(event) == (a and b)
        assert either.holds(event) == (a or b)
        assert neither.holds(event) == (not a)
        assert minus.holds(event) == (a and not b)


@given(filters(), filters(), EVENTS)
@settings(max_examples=60)
def test_derived_laws(f: Filter, g: Filter, events: list[dict[str, object]]) -> None:
    with within_limits():
        not_both, either_not, twice, simple = ~(f & g), ~f | ~g, ~~f, (f | g).simplify()
        whole, nothing = f | ~f, f & ~f
    for event in events:
        assert not_both.holds(event) == either_not.holds(event)
        assert twice.holds(event) == f.holds(event)
        assert simple.holds(event) == (f.holds(event) or g.holds(event))
        assert whole.holds(event)
        assert not nothing.holds(event)


@given(filters(), filters(), EVENTS)
def test_covers_and_overlaps_never_contradict_evaluation(
    f: Filter, g: Filter, events: list[dict[str, object]]
) -> None:
    covers, overlaps, empty = f.covers(g), f.overlaps(g), f.is_empty
    for event in events:
        a, b = f.holds(event), g.holds(event)
        assert a or not b or not covers
        assert overlaps or not (a and b)
        assert not (empty and a)
    assert overlaps == g.overlaps(f)


@given(filters(), filters())
def test_covers_sees_what_the_algebra_built(f: Filter, g: Filter) -> None:
    with within_limits():
        both, either = f & g, f | g
    assert f.covers(f)
    assert f.covers(both)
    assert either.covers(f)
    assert either.covers(g)
    assert EVERYTHING.covers(f)
    assert f.covers(NOTHING_AT_ALL)
    assert not f.overlaps(g) or not (f & g).is_empty


@given(sql_filters(plain=True), sql_filters(plain=True), sql_filters(plain=True))
def test_covers_is_a_preorder_and_exact_without_tests(f: Filter, g: Filter, h: Filter) -> None:
    if f.covers(g) and g.covers(h):
        assert f.covers(h)
    assert f.covers(g) == (g - f).is_empty
    assert f.overlaps(g) == (not (f & g).is_empty)
    assert (f.covers(g) and g.covers(f)) == (f == g)


@given(filters(), filters(), filters())
@settings(max_examples=40)
def test_covers_is_transitive_where_the_algebra_built_the_chain(f: Filter, g: Filter, h: Filter) -> None:
    inner, middle = f & g & h, f & g
    assert middle.covers(inner)
    assert f.covers(middle)
    assert f.covers(inner)


@given(filters(), EVENTS)
def test_simplify_keeps_the_set_and_the_expression(f: Filter, events: list[dict[str, object]]) -> None:
    simple = f.simplify()
    assert simple.expression is f.expression
    assert len(simple.boxes) <= len(f.boxes)
    assert simple == f
    assert all(simple.holds(e) == f.holds(e) for e in events)


def test_complement_is_not_sqls_not() -> None:
    f, negated = parse_sql("x = 5"), parse_sql("NOT x = 5")
    assert (~f).holds({})
    assert not negated.holds({})
    assert (~f).covers(negated)


def test_covers_needs_several_boxes_at_once() -> None:
    assert parse_sql("x < 5 OR x >= 5").covers(parse_sql("x > 0 AND x < 9"))
    assert not parse_sql("x < 5 OR x > 5").covers(parse_sql("x > 0 AND x < 9"))
    assert parse_sql("x < 5 AND b OR x >= 3 AND b").covers(parse_sql("b AND x BETWEEN 0 AND 9"))


def test_what_cannot_be_decided_is_answered_safely() -> None:
    like, other = parse_sql("s LIKE '%a'"), parse_sql("s LIKE 'a%'")
    assert like.overlaps(other)
    assert not like.covers(other)
    assert not like.covers(parse_sql("s LIKE '%b' AND s LIKE '%a%'"))
    assert not like.overlaps(parse_sql("s NOT LIKE '%a'"))
    assert like.covers(parse_sql("s LIKE '%ba'"))
    assert like.covers(parse_sql("s IN ('a', 'ba')"))


def test_neighbouring_ranges_merge_into_one_box() -> None:
    ranges = " OR ".join(f"x >= {k} AND x < {k + 1}" for k in range(300))
    assert len(parse_sql(ranges).boxes) == 1
    assert parse_sql(ranges) == parse_sql("x >= 0 AND x < 300")


# ----------------------------------------------------------------- bounds: FilterError, not a hang


def points(first: int, count: int) -> Filter:
    at = {k: Constraint(scalars=numbers_equal([k])) for k in range(first, first + count)}
    return Filter(merge_boxes(Box((("x", c), ("y", c))) for c in at.values()))


def test_and_of_ors_past_the_limit_is_refused() -> None:
    text = " AND ".join(f"(a{k} = 1 OR b{k} = 1)" for k in range(40))
    with pytest.raises(FilterError, match=r"more than 1024 boxes|too much work") as caught:
        parse_sql(text)
    assert caught.value.text == text
    assert "split it into several subscriptions" in str(caught.value)


def test_complements_past_the_limit_are_refused() -> None:
    text = " OR ".join(f"(a{k} = 1 AND b{k} = 1)" for k in range(40))
    with pytest.raises(FilterError, match=r"more than 1024 boxes|too much work"):
        parse_sql(f"NOT ({text})")
    with pytest.raises(FilterError, match=r"more than 1024 boxes|too much work"):
        parse_sql(text).complement()


def test_too_many_alternatives_are_refused() -> None:
    with pytest.raises(FilterError, match="more than 1024 boxes"):
        points(0, MAX_BOXES + 1)
    assert len(points(0, MAX_BOXES).boxes) == MAX_BOXES


def test_patterns_past_the_limit_are_refused() -> None:
    wide = {f"a{k}": [{"suffix": "x"}, {"anything-but": {"wildcard": "*y*"}}] for k in range(40)}
    with pytest.raises(FilterError, match=r"more than 1024 boxes|too much work") as caught:
        parse_pattern(wide)
    assert caught.value.text is not None


def test_a_part_that_has_tests_is_taken_out_of_a_larger_one() -> None:
    """What is left of "ends with x, or is -1" without "ends with x" is -1, in arrays too."""
    f = parse_pattern({"$or": [{"b": [{"suffix": "x"}]}, {"b": [-1], "tags": ["a"]}]})
    assert f.covers(f & parse_keywords(["a"], "tags"))
    plain = parse_pattern({"b": [{"prefix": {"equals-ignore-case": ""}}, {"equals-ignore-case": "1-2"}]})
    assert plain == parse_pattern({"b": [{"prefix": ""}]})


def test_a_field_with_many_undecidable_matches_takes_no_exponential_time() -> None:
    items = [{"anything-but": {"wildcard": [f"a{k}*", f"*b{k}"]}} for k in range(60)]
    f = parse_pattern({"s": items})
    assert f.holds({"s": "a0"})
    assert not f.holds({})


def test_large_filters_are_still_compared() -> None:
    f, g = points(0, 1000), points(5000, 1000)
    assert f.covers(f)
    assert not f.covers(g)
    assert not f.overlaps(g)
    assert f.overlaps(points(999, 2))
    assert (f & g).is_empty
    assert (f - g) == f
    assert len((f - points(0, 500)).boxes) == 500


def test_filters_that_overlap_everywhere_are_answered_safely_or_refused() -> None:
    def rectangles(shift: int) -> Filter:
        sides = [(k, 2000 - k, (k * 37) % 500 + shift, (k * 53) % 500 + 900) for k in range(190)]
        return parse_sql(
            " OR ".join(f"x > {a} AND x < {b} AND y > {c} AND y < {d}" for a, b, c, d in sides)
        )

    f, g = rectangles(0), rectangles(250)
    assert f.covers(f)
    assert f.overlaps(g)
    assert f.covers(g) in (True, False)
    assert f.key == f.key
    try:
        assert (f - g).covers(NOTHING_AT_ALL)
    except FilterError as error:
        assert "boxes" in error.reason or "work" in error.reason  # noqa: PT017


# --------------------------------------------------------------------------- boxes


def test_boxes_drop_what_asks_nothing_and_vanish_when_empty() -> None:
    assert Box.of({"x": Constraint()}) is None
    assert Box.of({}) == Box()
    box = Box.of({"x": Constraint(scalars=numbers_equal([1]))})
    assert box is not None
    assert box["y"].is_anything
    assert box.union(Box()) is None
    assert [b.constraints for b in Box().minus(box)] == [
        (("x", c),) for c in Constraint(scalars=numbers_equal([1])).complement()
    ]


@pytest.mark.parametrize("text", ["TRUE", "x > 0", "x > 0 AND x < 9 AND s <> 'b'", "x < 5"])
def test_what_a_box_leaves_of_another_is_disjoint(text: str) -> None:
    (mine,), (other,) = parse_sql(text).boxes, parse_sql("x > 5 AND s = 'a' AND b").boxes
    pieces = [*mine.minus(other), other]
    assert all(a.misses(b) for a, b in itertools.combinations(pieces, 2))


def test_merging_absorbs_and_unites() -> None:
    def x(constraint: Constraint) -> Box:
        return Box((("x", constraint),))

    wide, narrow = Constraint(scalars=number_above(0, True)), Constraint(scalars=numbers_equal([5]))
    assert merge_boxes([x(narrow), x(wide)]) == (x(wide),)
    assert merge_boxes([x(narrow), Box()]) == (Box(),)
    assert merge_boxes([]) == ()


def test_paths_are_those_that_a_filter_looks_at() -> None:
    assert parse_sql("x = 5 OR (d.e = 1 AND s LIKE '%a')").paths == {"x", "d.e", "s"}
    assert EVERYTHING.paths == frozenset()


def test_filters_compare_by_meaning() -> None:
    f, g = parse_sql("x = 1 OR x = 2"), parse_sql("x IN (2, 1)")
    assert f == g
    assert hash(f) == hash(g)
    assert f != parse_sql("x IN (1, 3)")
    assert f != "x IN (1, 2)"


def test_the_guide_tells_the_truth() -> None:
    guide = ROOT / "docs" / "filters.md"
    found = doctest.testfile(str(guide), module_relative=False, encoding="utf-8")
    assert found.attempted > 20
    assert found.failed == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: parse_sql(" AND ".join(f"s LIKE '%q{i}%'" for i in range(480))),
        lambda: parse_pattern({"a": [{"wildcard": f"*s{i}*"} for i in range(400)]}),
        lambda: parse_keywords([[f"a{i}" for i in range(500)]]),
        lambda: ~~parse_keywords([[f"a{i}", f"b{i}"] for i in range(8)]),
    ],
    ids=["tests under AND", "tests of one field", "words under AND", "complements of arrays"],
)
def test_one_box_cannot_grow_without_bound_either(make: Any) -> None:
    # without the bound these take from half a minute to forever
    with pytest.raises(FilterError, match=r"more than \d+ (string tests|things)"):
        make()
