"""Subscriptions: filter, client and broker, and the JSON-lines file that lists them.

One line is one subscription:

    {"id": "s1", "client": "billing", "broker": "aws-us-east-1", "sql": "type = 'order.created'"}
    {"id": "s2", "client": "audit", "broker": "gcp-europe-west1", "pattern": {"type": ["alert.fraud"]}}
    {"id": "s3", "client": "search", "broker": "azure-westeurope", "keywords": ["sale"], "latency_ms": 80}
    {"id": "s4", "client": "soc", "broker": "aws-us-east-1", "sigma": {"s": {"x": 1}, "condition": "s"}}

with the filter in exactly one of the four spellings. A line that cannot be used is reported with its
number and the reason; the others are kept.
"""

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.content.events.attributes import AttributeType
from ramify.content.filters.filters import Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.parse_cache import ParseCache
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sigma import parse_sigma
from ramify.errors import FilterError, InputError

__all__ = [
    "JSON_SPELLINGS",
    "SPELLINGS",
    "BadSubscription",
    "Subscription",
    "Subscriptions",
    "read_subscriptions",
    "write_subscriptions",
]

Keywords = tuple[str, ...] | tuple[tuple[str, ...], ...]
SPELLINGS = ("sql", "pattern", "keywords", "sigma")
JSON_SPELLINGS = ("pattern", "sigma")
"""The spellings that are JSON objects: a `Subscription` has their text, files and records the object."""

_FIELDS = ("id", "client", "broker", *SPELLINGS, "latency_ms")
MAX_LINE_BYTES = 1 << 20
_PARSES = ParseCache()


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter of one client at one broker, in exactly one of the four spellings.

    `pattern` and `sigma` are JSON text. `keywords` is any-of when it holds strings, and a disjunction of
    conjunctions when it holds tuples. `latency_ms` bounds how long an event may take to arrive, where it
    is given.
    """

    id: str
    client: str
    broker: str
    sql: str | None = None
    pattern: str | None = None
    keywords: Keywords | None = None
    latency_ms: float | None = None
    sigma: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "client", "broker"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InputError(f"a subscription needs {name}: a non-empty string, not {value!r}")
        given = [name for name in SPELLINGS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InputError(
                f"subscription {self.id} needs its filter in one of {', '.join(SPELLINGS)}; it has {found}"
            )
        if self.latency_ms is not None and not _is_positive(self.latency_ms):
            raise InputError(f"subscription {self.id}: latency_ms must be a positive number")

    def parse(self, schema: Mapping[str, AttributeType] | None = None) -> Filter:
        """The filter. Raises FilterError. Recent texts are not parsed again: `parse_cache`."""
        sql, pattern, keywords, sigma = self.sql, self.pattern, self.keywords, self.sigma
        if sql is not None:
            from ramify.content.filters.sql import parse_sql  # sqlglot: a client leaves it to brokers

            return _PARSES.get("sql", sql, schema, lambda: parse_sql(sql, schema))
        if pattern is not None:
            return _PARSES.get("pattern", pattern, schema, lambda: parse_pattern(pattern, schema))
        if sigma is not None:
            return _PARSES.get("sigma", sigma, schema, lambda: parse_sigma(sigma, schema))
        assert keywords is not None, "exactly one spelling is given"
        return _PARSES.get("keywords", keywords, None, lambda: parse_keywords(keywords))

    @property
    def spelling(self) -> str:
        """sql, pattern, keywords or sigma."""
        return next(name for name in SPELLINGS if getattr(self, name) is not None)

    @property
    def text(self) -> str:
        """The filter as it was written."""
        value = getattr(self, self.spelling)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def to_json(self) -> str:
        """One line of a subscription file."""
        row: dict[str, Any] = {"id": self.id, "client": self.client, "broker": self.broker}
        row[self.spelling] = getattr(self, self.spelling)
        for name in JSON_SPELLINGS:
            if name in row:
                row[name] = json.loads(row[name])
        if self.latency_ms is not None:
            row["latency_ms"] = self.latency_ms
        return json.dumps(row, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class BadSubscription:
    """A line that cannot be used: its number (from 1), the id when it has one, and why."""

    line: int
    id: str | None
    reason: str

    def __str__(self) -> str:
        name = "" if self.id is None else f" (subscription {self.id})"
        return f"line {self.line}{name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """What a file held: the usable subscriptions with their filters, in order, and the others."""

    good: tuple[Subscription, ...]
    filters: tuple[Filter, ...]
    bad: tuple[BadSubscription, ...]


def read_subscriptions(
    source: str | Path | Iterable[str],
    schema: Mapping[str, AttributeType] | None = None,
    brokers: Container[str] | None = None,
) -> Subscriptions:
    """Read a JSON-lines file (or its lines). A missing file raises InputError; a bad line never does.

    With `brokers`, a subscription at a broker that is not among them is bad.
    """
    good: list[Subscription] = []
    filters: list[Filter] = []
    bad: list[BadSubscription] = []
    seen: dict[str, int] = {}
    for number, line in _lines(source):
        row: Any = None
        try:
            row = _object(line)
            subscription = _subscription(row)
            if subscription.id in seen:
                raise InputError(f"the id was already used on line {seen[subscription.id]}")
            if brokers is not None and subscription.broker not in brokers:
                raise InputError(
                    f"the overlay has no broker {subscription.broker!r}: correct the name or add it"
                )
            filter_ = subscription.parse(schema)
        except (InputError, FilterError) as error:
            id_ = row.get("id") if isinstance(row, dict) else None
            bad.append(BadSubscription(number, id_ if isinstance(id_, str) else None, str(error)))
            continue
        seen[subscription.id] = number
        good.append(subscription)
        filters.append(filter_)
    return Subscriptions(tuple(good), tuple(filters), tuple(bad))


def write_subscriptions(path: str | Path, subscriptions: Iterable[Subscription]) -> int:
    """Write a JSON-lines file; returns how many lines."""
    count = 0
    with Path(path).open("w", encoding="utf-8") as file:
        for subscription in subscriptions:
            file.write(subscription.to_json() + "\n")
            count += 1
    return count


def _lines(source: str | Path | Iterable[str]) -> Iterator[tuple[int, str | bytes]]:
    """Numbered lines that are not blank. Files are read as bytes, so one bad byte spoils one line."""
    if not isinstance(source, str | Path):
        yield from ((n, line) for n, line in enumerate(source, 1) if line.strip())
        return
    try:
        with Path(source).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except OSError as error:
        raise InputError(
            f"cannot read the subscriptions ({error.strerror or error})", path=str(source)
        ) from None


def _object(line: str | bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        row = json.loads(line, object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise InputError("nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"not JSON that can be read ({error})") from None
    if not isinstance(row, dict):
        raise InputError("a subscription is a JSON object")
    return row


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{twice!r} appears twice in one object")
    return row


def _subscription(row: dict[str, Any]) -> Subscription:
    unknown = [name for name in row if name not in _FIELDS]
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}: the fields are {', '.join(_FIELDS)}")
    if row.get("sql") is not None and not isinstance(row["sql"], str):
        raise InputError("sql must be a string")
    pattern, sigma = (_json_text(row.get(name)) for name in JSON_SPELLINGS)
    return Subscription(
        row.get("id"),  # type: ignore[arg-type]  # checked by Subscription itself
        row.get("client"),  # type: ignore[arg-type]
        row.get("broker"),  # type: ignore[arg-type]
        row.get("sql"),
        pattern,
        _keywords(row.get("keywords")),
        row.get("latency_ms"),
        sigma,
    )


def _json_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _keywords(value: Any) -> Keywords | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise InputError("keywords must be a list")
    return tuple(tuple(word) if isinstance(word, list) else word for word in value)


def _is_positive(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )
