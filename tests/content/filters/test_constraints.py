"""What one attribute can be: the set laws over absent, null, scalars and arrays."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_values import value_sets

from ramify.content.filters.constraints import ABSENT, ANYTHING, EVERY_ARRAY, NOTHING, ArraySet, Constraint
from ramify.content.filters.describe import describe_constraint
from ramify.content.filters.strings import ANY_CHARACTERS, StringTest, TestKind
from ramify.content.filters.values import (
    EVERY_VALUE,
    NO_VALUE,
    ValueSet,
    numbers_equal,
    strings_equal,
    where_tests,
)

# Everything an attribute can be, in small: arrays of up to two elements of these, and the rest.
ELEMENTS = ["a", "b", "ab", "aB", "", 1, 2.5]
VALUES: list[Any] = [ABSENT, None, True, *ELEMENTS]
VALUES += [list(array) for n in range(3) for array in itertools.product(ELEMENTS, repeat=n)]


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    some = draw(st.lists(value_sets().filter(lambda v: not v.is_empty), max_size=2))
    none = draw(st.lists(value_sets().filter(lambda v: not v.is_empty), max_size=2))
    arrays: ArraySet | None = EVERY_ARRAY
    for part in [
        *[ArraySet(some=frozenset([s])) for s in some],
        *[ArraySet(none=frozenset([n])) for n in none],
    ]:
        arrays = None if arrays is None else arrays.intersect(part)
    return Constraint(
        draw(st.booleans()),
        draw(st.booleans()),
        draw(value_sets()),
        arrays if draw(st.booleans()) else None,
    )


@given(constraints(), constraints())
def test_constraints_obey_the_laws_of_sets(a: Constraint, b: Constraint) -> None:
    both, either, others = a.intersect(b), a.union(b), a.complement()
    within, misses = a.within(b), a.misses(b)
    for v in VALUES:
        assert (v in both) == (v in a and v in b)
        assert either is None or (v in either) == (v in a or v in b)
        assert any(v in part for part in others) == (v not in a)
        assert not (within and v in a and v not in b)
        assert not (misses and v in a and v in b)
        assert not (a.is_empty and v in a)
    assert misses == both.is_empty
    assert a.within(a)
    assert describe_constraint(a)


@given(constraints(), constraints(), constraints())
def test_containment_is_transitive_where_it_is_seen(a: Constraint, b: Constraint, c: Constraint) -> None:
    wider = a.intersect(b)
    assert wider.within(a)
    if a.within(c):
        assert all(v in c for v in VALUES if v in wider)


def ends_with(*ends: str) -> Any:
    return where_tests([StringTest(TestKind.GLOB, (ANY_CHARACTERS, *map(ord, end))) for end in ends])


def test_two_conditions_that_imply_each_other_are_not_both_dropped() -> None:
    # "*b or *ab" and "*b" are one set in two spellings: each lies within the other.
    (once_tests, _), *_ = ends_with("b").tests
    (more_tests, _), *_ = ends_with("ab").tests
    once = ends_with("b")
    twice = ValueSet(strings=once.strings, tests=frozenset([(once_tests | more_tests, True)]))
    assert twice.within(once)
    assert once.within(twice)
    some = ArraySet(some=frozenset([twice])).intersect(ArraySet(some=frozenset([once])))
    none = ArraySet(none=frozenset([twice])).intersect(ArraySet(none=frozenset([once])))
    assert some is not None
    assert ["a"] not in some
    assert none is not None
    assert ["ab"] not in none


def test_different_elements_may_meet_different_conditions() -> None:
    both = ArraySet(some=frozenset([strings_equal(["a"])])).intersect(
        ArraySet(some=frozenset([strings_equal(["b"])]))
    )
    assert both is not None
    assert ["a", "b"] in both
    assert ["a"] not in both


def test_asking_for_an_excluded_element_is_empty() -> None:
    wanted = ArraySet(some=frozenset([strings_equal(["a"])]))
    assert wanted.intersect(ArraySet(none=frozenset([strings_equal(["a", "b"])]))) is None


def test_the_least_and_the_greatest() -> None:
    assert NOTHING.is_empty
    assert ANYTHING.is_anything
    assert ANYTHING.complement() == []
    assert NOTHING.complement() == [ANYTHING]
    assert all(v in ANYTHING and v not in NOTHING for v in VALUES)


def test_an_attribute_holds_only_what_events_can_hold() -> None:
    with pytest.raises(TypeError, match="cannot hold set"):
        _ = {1} in ANYTHING  # type: ignore[operator]


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (ANYTHING, "is anything"),
        (NOTHING, "is nothing"),
        (Constraint(absent=True, null=True), "is absent or is null"),
        (Constraint(scalars=EVERY_VALUE), "is any value"),
        (Constraint(scalars=numbers_equal([1, 2.5])), "in (1, 2.5)"),
        (Constraint(scalars=strings_equal(["a"])), "= 'a'"),
        (Constraint(scalars=ends_with("b")), "is a string and (matches '*b')"),
        (Constraint(arrays=EVERY_ARRAY), "is an array"),
        (
            Constraint(arrays=ArraySet(some=frozenset([strings_equal(["a"])]))),
            "is an array that has an element that = 'a'",
        ),
        (Constraint(scalars=NO_VALUE, null=True), "is null"),
    ],
)
def test_constraints_in_words(constraint: Constraint, words: str) -> None:
    assert describe_constraint(constraint) == words
