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
    """The filter that was given: in the spelling that is named, or else by its Python type.

    Raises FilterError, and InputError for an unknown spelling.
    """
    if isinstance(given, Filter):
        return given
    if isinstance(given, Subscription):
        return given.parse()
    if spelling not in (None, *SPELLINGS):
        raise InputError(f"unknown spelling {spelling!r}: it is one of {', '.join(SPELLINGS)}")
    match spelling or _spelling_of(given):
        case "sql":
            from ramify.content.filters.sql import parse_sql

            if not isinstance(given, str):
                raise FilterError(f"{type(given).__name__} is not SQL", allowed="a predicate as text")
            return parse_sql(given)
        case "pattern":
            from ramify.content.filters.pattern import parse_pattern

            return parse_pattern(given)  # type: ignore[arg-type]  # it says itself what it takes
        case "sigma":
            from ramify.content.filters.sigma import parse_sigma

            return parse_sigma(given)  # type: ignore[arg-type]  # it says itself what it takes
    from ramify.content.filters.keywords import parse_keywords

    return parse_keywords(_listed(given) if isinstance(given, str) else given)  # type: ignore[arg-type]


def _spelling_of(given: AnyFilter) -> str:
    """SQL is text, a pattern a mapping, and keywords are a list."""
    if isinstance(given, str):
        return "sql"
    return "pattern" if isinstance(given, Mapping) else "keywords"


def _listed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FilterError(f"keywords are not JSON ({error.msg})", text=text, position=error.pos) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or deep nesting
        raise FilterError(f"keywords are not JSON ({error})") from None
