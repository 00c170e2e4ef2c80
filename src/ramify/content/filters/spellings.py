"""A filter in whatever form it is given: parsed, a subscription, or one of the four spellings.

Owns the choice of the parser. Light: a parser is imported when its spelling is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import SPELLINGS, Subscription
from ramify.errors import FilterError, InputError

__all__ = ["SPELLINGS", "AnyFilter", "as_filter"]

AnyFilter: TypeAlias = Filter | Subscription | str | Mapping[str, Any] | Sequence[Any]
"""A filter, a subscription, SQL (text), an EventBridge pattern (a mapping) or keywords (a list).

A Sigma rule is a mapping or text too: only `spelling` tells it from a pattern or SQL.
"""


def as_filter(given: AnyFilter, spelling: str | None = None) -> Filter:
    """The filter that was given: by its Python type, or by its spelling where it is text."""
    if isinstance(given, Filter):
        return given
    if isinstance(given, Subscription):
        return given.parse()
    if isinstance(given, str) and spelling in (None, "sql"):
        from ramify.content.filters.sql import parse_sql

        return parse_sql(given)
    if spelling == "sigma":
        from ramify.content.filters.sigma import parse_sigma

        return parse_sigma(given)  # type: ignore[arg-type]  # it says itself what it takes
    if spelling == "pattern" or isinstance(given, Mapping):
        from ramify.content.filters.pattern import parse_pattern

        return parse_pattern(given)  # type: ignore[arg-type]  # it says itself what it takes
    if spelling not in (None, *SPELLINGS):
        raise InputError(f"unknown spelling {spelling!r}: it is one of {', '.join(SPELLINGS)}")
    from ramify.content.filters.keywords import parse_keywords

    return parse_keywords(_listed(given) if isinstance(given, str) else given)


def _listed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FilterError(f"keywords are not JSON ({error.msg})", text=text, position=error.pos) from None
