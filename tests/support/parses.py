"""Counts how often texts of filters are parsed."""

from collections import Counter
from collections.abc import Mapping

import pytest

from ramify.content.events.events import AttributeType
from ramify.content.filters import sql, subscriptions
from ramify.content.filters.filters import Filter
from ramify.content.filters.parse_cache import ParseCache

__all__ = ["counted_parses"]


def counted_parses(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each SQL text is parsed from now on; nothing is known yet."""
    texts: Counter[str] = Counter()
    parse = sql.parse_sql

    def counted(text: str, schema: Mapping[str, AttributeType] | None = None) -> Filter:
        texts[text] += 1
        return parse(text, schema)

    monkeypatch.setattr(sql, "parse_sql", counted)
    monkeypatch.setattr(subscriptions, "_PARSES", ParseCache())
    return texts
