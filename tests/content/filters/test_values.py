"""Sets of scalars: cuts against brute force, and the set laws on values with tests."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.filters.strings import TestKind, ignore_case
from ramify.content.filters.values import (
    EVERY_VALUE,
    NO_VALUE,
    ValueSet,
    booleans,
    cut_and,
    cut_contains,
    cut_minus,
    cut_not,
    cut_or,
    cut_within,
    cuts_miss,
    microseconds,
    next_prefix,
    number_above,
    number_below,
    numbers_equal,
    prefixed,
    singletons,
    strings_below,
    strings_equal,
    strings_from,
    times_above,
    times_below,
    times_equal,
    where_tests,
)
from strategies import BOOLEANS, FLOATS, INTEGERS, STRINGS, TIMES

POINTS = range(8)
CUTS = st.sets(st.integers(0, 7)).map(lambda cuts: tuple(sorted(cuts)))
SCALARS = [*INTEGERS, *FLOATS, *STRINGS, *BOOLEANS, *TIMES]


def members(cuts: tuple[int, ...]) -> set[int]:
    """The points of a line of eight, straight from what a cut means: membership flips there."""
    return {p for p in POINTS if sum(c <= p for c in cuts) % 2}


@given(CUTS, CUTS)
def test_cut_operations_are_those_of_sets(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert members(cut_and(a, b)) == members(a) & members(b)
    assert members(cut_or(a, b)) == members(a) | members(b)
    assert members(cut_minus(a, b)) == members(a) - members(b)
    assert members(cut_not(a, 0)) == set(POINTS) - members(a)
    assert cut_within(a, b) == (members(a) <= members(b))
    assert all(cut_contains(a, p) == (p in members(a)) for p in POINTS)
    if a and b:
        assert cuts_miss(a, b) == (not members(a) & members(b))


@given(CUTS, CUTS)
def test_cuts_are_canonical(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for cuts in (cut_and(a, b), cut_or(a, b), cut_minus(a, b), cut_not(a, 0)):
        assert all(low < high for low, high in itertools.pairwise(cuts))
    assert cut_and(a, b) == cut_and(b, a)
    assert cut_or(a, b) == cut_or(b, a)


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        (number_above(1, True), lambda v: v >= 1),
        (number_above(1, False), lambda v: v > 1),
        (number_below(1, True), lambda v: v <= 1),
        (number_below(1, False), lambda v: v < 1),
        (numbers_equal([1, 2.5]), lambda v: v in (1, 2.5)),
    ],
)
def test_number_ranges(values: ValueSet, holds: object) -> None:
    for value in [*INTEGERS, *FLOATS]:
        assert (value in values) == holds(value)  # type: ignore[operator]
    assert not any(v in values for v in [*STRINGS, *BOOLEANS, *TIMES])


@given(st.sampled_from(STRINGS), st.sampled_from(STRINGS))
def test_string_ranges_and_prefixes(bound: str, text: str) -> None:
    assert (text in strings_from(bound, True)) == (text >= bound)
    assert (text in strings_from(bound, False)) == (text > bound)
    assert (text in strings_below(bound, True)) == (text <= bound)
    assert (text in strings_below(bound, False)) == (text < bound)
    assert (text in strings_equal([bound])) == (text == bound)
    assert (text in prefixed(bound)) == text.startswith(bound)


@given(st.sampled_from(TIMES), st.sampled_from(TIMES))
def test_time_ranges(bound: datetime, time: datetime) -> None:
    assert (time in times_above(bound, True)) == (time >= bound)
    assert (time in times_above(bound, False)) == (time > bound)
    assert (time in times_below(bound, True)) == (time <= bound)
    assert (time in times_below(bound, False)) == (time < bound)
    assert (time in times_equal([bound])) == (time == bound)


def test_the_edge_of_unicode_has_a_next_prefix_or_none() -> None:
    assert next_prefix("a") == "b"
    assert next_prefix("a\U0010ffff") == "b"
    assert next_prefix("\U0010ffff") is None
    assert next_prefix("") is None
    assert next_prefix("\ud7ff") == "\ue000"  # no string holds half a surrogate pair
    assert "\U0010ffffz" in prefixed("\U0010ffff")


def test_numbers_have_one_spelling() -> None:
    assert numbers_equal([5.0]) == numbers_equal([5])
    assert numbers_equal([5.0]).spelling == numbers_equal([5]).spelling
    assert numbers_equal([-0.0]).spelling == numbers_equal([0]).spelling


def test_integers_beyond_doubles_are_told_apart() -> None:
    assert 2**53 + 1 in numbers_equal([2**53 + 1])
    assert 2**53 not in numbers_equal([2**53 + 1])


def test_microseconds_are_exact_and_naive_times_are_utc() -> None:
    time = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert microseconds(time) % 1_000_000 == 999_999
    assert microseconds(datetime(1970, 1, 2)) == 86_400_000_000
    assert microseconds(datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)) == -1


def test_finite_sets_list_their_members() -> None:
    assert singletons(numbers_equal([2, 1]).numbers, "number") == [1, 2]
    assert singletons(strings_equal(["a", "a\0", "b"]).strings, "string") == ["a", "a\0", "b"]
    assert singletons(times_equal([TIMES[0]]).times, "time") == [microseconds(TIMES[0])]
    assert singletons(number_above(1, True).numbers, "number") is None
    assert singletons(prefixed("a").strings, "string") is None


@st.composite
def value_sets(draw: st.DrawFn) -> ValueSet:
    """Unions and intersections of simple sets, some with tests."""
    one = st.one_of(
        st.sampled_from(INTEGERS).map(lambda n: number_above(n, True)),
        st.lists(st.sampled_from(STRINGS), max_size=3).map(strings_equal),
        st.sampled_from(STRINGS).map(prefixed),
        st.sampled_from(STRINGS).map(lambda s: strings_from(s, True)),
        st.sampled_from(BOOLEANS).map(booleans),
        st.sampled_from(TIMES).map(lambda t: times_below(t, True)),
        st.lists(st.sampled_from(["a", "B", ""]), min_size=1, max_size=2).map(
            lambda words: where_tests([ignore_case(w, TestKind.NOCASE_SUFFIX) for w in words])
        ),
        st.just(EVERY_VALUE),
    )
    out = draw(one)
    for other in draw(st.lists(one, max_size=2)):
        united = out.union(other)
        out = out.intersect(other) if united is None or draw(st.booleans()) else united
    return out


@given(value_sets(), value_sets())
def test_value_sets_obey_the_laws_of_sets(a: ValueSet, b: ValueSet) -> None:
    both, either = a.intersect(b), a.union(b)
    others = a.complement()
    for v in SCALARS:
        assert (v in both) == (v in a and v in b)
        assert either is None or (v in either) == (v in a or v in b)
        assert any(v in part for part in others) == (v not in a)
        assert not (a.within(b) and v in a and v not in b)
        assert not (a.misses(b) and v in a and v in b)
        assert not (a.is_empty and v in a)
    assert a.misses(b) == both.is_empty
    assert both.within(a)
    assert both.within(b)


def test_tests_of_finite_sets_are_decided() -> None:
    ends_with_b = where_tests([ignore_case("b", TestKind.NOCASE_SUFFIX)])
    found = strings_equal(["a", "ab", "aB"]).intersect(ends_with_b)
    assert found == strings_equal(["ab", "aB"])
    assert found.within(ends_with_b)
    assert not strings_equal(["a", "ab"]).within(ends_with_b)
    assert NO_VALUE.within(ends_with_b)
