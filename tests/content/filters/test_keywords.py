"""The keyword spelling: any-of lists and disjunctions of conjunctions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import keywords_match
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.sql import parse_sql
from ramify.errors import FilterError
from strategies import keyword_lists, rows


@given(keyword_lists(), st.lists(rows(), min_size=4, max_size=8))
def test_keywords_agree_with_the_second_evaluator(words: list[Any], events: list[dict[str, Any]]) -> None:
    f = parse_keywords(words, "tags")
    for event in events:
        assert f.holds(event) == keywords_match(words, event.get("tags"))


def test_any_of_and_normal_form() -> None:
    any_of, both = parse_keywords(["nokia", "apple"]), parse_keywords([["nokia", "apple"], ["motorola"]])
    assert any_of.holds({"keywords": ("x", "apple")})
    assert any_of.holds({"keywords": "apple"})
    assert not any_of.holds({"keywords": ("Apple",)})
    assert both.holds({"keywords": ("apple", "nokia")})
    assert both.holds({"keywords": ("motorola",)})
    assert not both.holds({"keywords": ("apple",)})
    assert not both.holds({})


def test_the_algebra_sees_keywords() -> None:
    a, b, ab = parse_keywords(["a"]), parse_keywords(["b"]), parse_keywords([["a", "b"]])
    assert a.covers(ab)
    assert (a & b) == ab
    assert parse_keywords(["a", "b"]) == (a | b) == parse_keywords([["b"], ["a"], ["a", "a"]])
    assert a.overlaps(b)
    assert not a.covers(b)
    assert a.covers(parse_sql("array_contains(keywords, 'a')"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "keywords are a non-empty list"),
        ("nokia", "keywords are a non-empty list"),
        (5, "keywords are a non-empty list"),
        ([""], "'' is not a keyword"),
        ([["a"], []], "an empty list of words would match everything"),
        ([["a"], "b"], "words and lists of words are mixed"),
        (["a", ["b"]], "words and lists of words are mixed"),
        ([["a", 5]], "5 is not a keyword"),
        ([["a", ["b"]]], "['b'] is not a keyword"),
        ([5], "words and lists of words are mixed"),
        (["\ud800"], "a keyword holds half a surrogate pair"),
    ],
)
def test_what_is_no_list_of_keywords_is_refused(words: Any, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_keywords(words)
    assert caught.value.reason == reason
    assert "allowed: " in str(caught.value)


def test_an_attribute_may_have_the_name_of_a_column() -> None:
    assert parse_keywords(["a"], "_body").holds({"_body": ("a", "b")})
