"""A filter's text is parsed once in a process."""

from collections import Counter
from dataclasses import replace

import pytest

from parses import counted_parses
from ramify.content.events.events import AttributeType
from ramify.content.filters.filters import EVERYTHING, Filter
from ramify.content.filters.parse_cache import ParseCache
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import FilterError

SCHEMA = {"x": AttributeType.INT64}


def test_another_schema_and_a_fault_are_parsed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = counted_parses(monkeypatch)
    row = Subscription("s", "c", "a", sql="x = 1")
    assert row.parse(SCHEMA) is replace(row, id="t", client="d", broker="b").parse(dict(SCHEMA))
    row.parse({"x": AttributeType.DOUBLE})
    row.parse()
    assert parsed["x = 1"] == 3
    bad = Subscription("s", "c", "a", sql="x >")
    for _ in range(2):
        with pytest.raises(FilterError):
            bad.parse(SCHEMA)
    assert parsed["x >"] == 2


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    made: Counter[str] = Counter()

    def ask_for(cache: ParseCache, text: str) -> None:
        def parse() -> Filter:
            made[text] += 1
            return EVERYTHING

        cache.get("sql", text, None, parse)

    few = ParseCache(most_filters=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        ask_for(few, text)
    assert made == {"a": 1, "b": 2, "c": 1}
    made.clear()
    short = ParseCache(most_characters=5)
    for text in ("aaa", "bb", "cccccc", "aaa", "bb", "cccccc", "d", "bb", "aaa"):
        ask_for(short, text)
    assert made == {"aaa": 2, "bb": 1, "cccccc": 2, "d": 1}
