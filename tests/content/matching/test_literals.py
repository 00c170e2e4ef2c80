"""Literals are found in one pass, whatever came and went; they decide nothing that the tests would not."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches import batch_of
from ramify.content.filters.constraints import ArraySet, Constraint
from ramify.content.filters.filters import Box, Filter
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    ONE_CHARACTER,
    StringTest,
    TestKind,
    cidr,
    fold,
    glob,
    nocase_glob,
)
from ramify.content.filters.values import prefixed, strings_equal, where_tests
from ramify.content.matching.literals import literal_of
from ramify.content.matching.matcher import Matcher
from ramify.content.matching.matcher_files import matcher_from_bytes, matcher_to_bytes

LETTERS = "abAB.é中É"
TEXTS = st.text(LETTERS, max_size=12)
GLOBS = st.lists(
    st.sampled_from([ANY_CHARACTERS, ONE_CHARACTER]) | st.sampled_from(LETTERS).map(ord), max_size=8
).map(glob)
TESTS = st.one_of(
    GLOBS.map(lambda codes: StringTest(TestKind.GLOB, codes)),
    GLOBS.map(lambda codes: nocase_glob([c if c < 0 else fold(chr(c))[0] for c in codes])),
    st.just(cidr("10.0.0.0/8")),
)


@st.composite
def filters_of_tests(draw: st.DrawFn) -> Filter:
    """One or two attributes, each with groups of tests that must hold or must not, scalars or arrays."""
    asked = {}
    for path in draw(st.sets(st.sampled_from("st"), min_size=1)):
        within = draw(st.sampled_from([None, prefixed("a"), strings_equal(["ab", "Ab.é"])]))
        values = where_tests(draw(st.sets(TESTS, min_size=1, max_size=3)), draw(st.booleans()), within)
        for _ in range(draw(st.integers(0, 2))):
            values = values.intersect(where_tests([draw(TESTS)], draw(st.booleans())))
        arrays = ArraySet(some=frozenset([values])) if draw(st.booleans()) else None
        asked[path] = Constraint(null=draw(st.booleans()), scalars=values, arrays=arrays)
    box = Box.of(asked)
    return Filter(() if box is None else (box,))


EVENTS = st.lists(st.fixed_dictionaries({}, optional={"s": TEXTS, "t": TEXTS}), min_size=1, max_size=6)
LIST_EVENTS = st.lists(st.fixed_dictionaries({"s": st.lists(TEXTS, max_size=3)}), min_size=1, max_size=6)


def check(matcher: Any, held: dict[int, Filter], events: list[dict[str, Any]], kind: pa.DataType) -> None:
    found = matcher.match(batch_of(events, {"s": kind, "t": pa.string()}))
    assert [ids.tolist() for ids in found] == [
        sorted(id_ for id_, f in held.items() if f.holds(event)) for event in events
    ]


@settings(max_examples=200)
@given(
    st.lists(filters_of_tests(), min_size=1, max_size=12),
    st.lists(filters_of_tests(), max_size=4),
    st.sets(st.integers(0, 11)),
    EVENTS,
    LIST_EVENTS,
)
def test_tests_by_number_equal_plain_evaluation(
    asked: list[Filter],
    later: list[Filter],
    removed: set[int],
    events: list[dict[str, Any]],
    list_events: list[dict[str, Any]],
) -> None:
    matcher = Matcher(asked)
    held = dict(enumerate(asked))
    check(matcher, held, events, pa.string())
    for id_ in removed & held.keys():
        matcher.remove(id_)
        del held[id_]
    for filter_ in later:
        held[matcher.add(filter_)] = filter_
    check(matcher, held, events, pa.string())
    matcher.compact()
    check(matcher, held, events, pa.string())
    check(matcher, held, list_events, pa.list_(pa.string()))
    check(matcher_from_bytes(matcher_to_bytes(matcher)), held, events, pa.string())


@given(TESTS, TEXTS)
def test_a_string_that_passes_holds_the_literal_but_for_case(test: StringTest, text: str) -> None:
    literal = literal_of(test)
    if literal is not None and test.holds(text):
        assert literal.lower() in text.encode().lower()


@pytest.mark.parametrize("count", [1, 300])
def test_a_lone_substring_is_found_by_its_letters_not_tried_on_every_event(count: int) -> None:
    tests = [
        StringTest(TestKind.GLOB, (ANY_CHARACTERS, *map(ord, f"needle{k:03d}"), ANY_CHARACTERS))
        for k in range(count)
    ]
    filters = [Filter((Box((("s", Constraint(scalars=where_tests([test]))),)),)) for test in tests]
    matcher = Matcher(filters)
    assert all(head < 0 for head in matcher.frozen().index.heads)
    check(matcher, dict(enumerate(filters)), [{"s": "a needle007 and needle000"}, {"s": ""}], pa.string())


def test_what_removed_filters_asked_leaves_with_them() -> None:
    def contains(text: str) -> Filter:
        return Filter(
            (Box((("s", Constraint(scalars=where_tests([nocase_glob((-1, *fold(text), -1))]))),)),)
        )

    matcher = Matcher([contains("keep")])
    before = matcher.nbytes
    for _ in range(20):
        for id_ in matcher.extend([contains(f"gone{k}") for k in range(100)]):
            matcher.remove(id_)
    matcher.compact()
    assert matcher.nbytes <= 2 * before
    check(matcher, {0: contains("keep")}, [{"s": "KEEP gone5"}], pa.string())
