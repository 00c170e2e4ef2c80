"""RFC 3339 times and numbers since 1970, as UTC microseconds.

Owns what counts as a time, in any input: years 1 to 9999, digits beyond the microsecond cut, leap seconds
refused because no timestamp can hold them. Owns the one text that a time has where nobody wrote another
(`canonical_texts`).
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events.events import AttributeType

__all__ = [
    "TimeUnit",
    "canonical_texts",
    "from_epoch",
    "parse_timestamps",
    "written_otherwise",
]

_RFC3339 = (
    r"^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))$"
)
_RFC3339_PYTHON = re.compile(_RFC3339.replace("$", r"\Z"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeUnit(StrEnum):
    """What a number in the time field counts. Strings are RFC 3339 whatever the unit."""

    NONE = "none"
    SECONDS = "s"
    MILLISECONDS = "ms"


def parse_timestamps(texts: "Sequence[str | None] | pa.Array[Any]") -> "tuple[pa.Array[Any], list[int]]":
    """RFC 3339 times as UTC microseconds, and the rows that are none (null in the column).

    Digits beyond the microsecond are cut. Leap seconds (":60") are refused: no timestamp can hold them.
    Vectorised unless some time is malformed or uses lower-case letters.
    """
    column: Any = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    target = AttributeType.TIMESTAMP.arrow
    if column.null_count == len(column):
        return column.cast(target), []
    if pc.all(pc.match_substring_regex(column, _RFC3339)).as_py():
        times = _cast(column)
        if times is None:  # Arrow refuses digits beyond its unit
            times = _cast(pc.replace_substring_regex(column, r"(\.[0-9]{6})[0-9]+", r"\1"))
        if times is not None:
            return times, []
    moments = [None if text is None else _moment(text) for text in column.to_pylist()]
    bad = [row for row, moment in enumerate(moments) if moment is None and column[row].is_valid]
    return pa.array(moments, target), bad


def canonical_texts(times: "pa.Array[Any]") -> "pa.Array[Any]":
    """`attributes.time_text` of each time."""
    ticks: Any = times.cast(pa.int64()).fill_null(0).to_numpy()
    # Without the zone, which is UTC always: Arrow would look it up in the machine's own database.
    longest: Any = pc.utf8_replace_slice(times.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    texts = longest
    for unit, length in ((1000, 23), (1_000_000, 19)):
        short = ticks % unit == 0
        if short.any():
            texts = pc.if_else(pa.array(short), pc.utf8_slice_codeunits(longest, 0, length), texts)
    return pc.binary_join_element_wise(texts, "Z", "")  # type: ignore[no-any-return]


def written_otherwise(texts: Any, times: "pa.Array[Any]") -> Any:
    """Which rows have a time whose text, as it was written, is not the canonical one: a numpy mask."""
    written: Any = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return pc.not_equal(written, canonical_texts(times)).fill_null(False).to_numpy(zero_copy_only=False)


def from_epoch(value: Any, unit: TimeUnit) -> datetime | None:
    """The moment that a number names; None when it is no number, or beyond the calendar."""
    if unit is TimeUnit.NONE or type(value) not in (int, float):
        return None
    try:
        microseconds = round(value * (1_000_000 if unit is TimeUnit.SECONDS else 1000))
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def _cast(texts: Any) -> "pa.Array[Any] | None":
    """Well-formed times as timestamps, unless Arrow cannot read one or one is beyond the calendar."""
    try:
        times: Any = texts.cast(AttributeType.TIMESTAMP.arrow)
    except pa.ArrowInvalid:
        return None
    earliest, latest = _bounds()
    within = pc.and_(pc.greater_equal(times, earliest), pc.less_equal(times, latest))
    return times if pc.all(within).as_py() else None


def _moment(text: str) -> datetime | None:
    found = _RFC3339_PYTHON.match(text)
    if found is None:
        return None
    *parts, fraction, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    if offset >= timedelta(days=1) or int(minutes or 0) > 59:
        return None
    try:
        year, month, day, hour, minute, second = map(int, parts)
        microsecond = int((fraction or "0")[:6].ljust(6, "0"))
        local = datetime(year, month, day, hour, minute, second, microsecond, UTC)
        return local + offset if sign == "-" else local - offset
    except (ValueError, OverflowError):
        return None


@cache
def _bounds() -> tuple[Any, Any]:
    """The first and the last time that Python knows. Not at import: Arrow loads pandas to make them."""
    kind = AttributeType.TIMESTAMP.arrow
    both = datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    return pa.scalar(both[0], kind), pa.scalar(both[1], kind)
