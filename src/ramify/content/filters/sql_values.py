"""Literals and comparisons of SQL as sets of values: Spark's times, LIKE, comparison by kind.

Owns what a literal of a predicate means. It knows nothing of the tree that the predicate is parsed to, but
for the types of its comparisons: see `sql`.
"""

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlglot import exp

from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    StringTest,
    TestKind,
    fold,
    has_case,
    literal_prefix,
    nocase_glob,
)
from ramify.content.filters.values import (
    EVERY_VALUE,
    NO_VALUE,
    Number,
    Scalar,
    ValueSet,
    booleans,
    number_above,
    number_below,
    numbers_equal,
    prefixed,
    strings_below,
    strings_equal,
    strings_from,
    times_above,
    times_below,
    times_equal,
    where_tests,
)

__all__ = [
    "EVERY_OF_KIND",
    "as_double",
    "case_codes",
    "compared",
    "equal_to",
    "folded_codes",
    "kind_of",
    "like_values",
    "read_time",
    "spelled",
]

EVERY_OF_KIND = {
    "number": ValueSet(numbers=EVERY_VALUE.numbers),
    "string": ValueSet(strings=EVERY_VALUE.strings),
    "boolean": ValueSet(booleans=EVERY_VALUE.booleans),
    "timestamp": ValueSet(times=EVERY_VALUE.times),
}
_SPARK_TIME = re.compile(
    r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})"
    r"(?::(\d{1,2})(?:\.(\d{0,9}))?(?:\s*([A-Za-z+-][A-Za-z0-9+:/_-]*))?)?)?)?)?)?"
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def like_values(codes: tuple[int, ...], in_case: bool = False, upper: bool = False) -> ValueSet:
    """The strings that match a glob, as an interval where possible and a test beside it where not.

    In case: the strings whose lower (or upper) form does.
    """
    if in_case:
        folded = case_codes(codes, upper)
        if folded is None:
            return NO_VALUE
        if any(code >= 0 and has_case(code) for code in folded):
            return where_tests([nocase_glob(folded)])
    prefix = literal_prefix(codes)
    if len(prefix) == len(codes):
        return strings_equal([prefix])
    if codes[len(prefix) :] == (ANY_CHARACTERS,):
        return prefixed(prefix)
    return where_tests([StringTest(TestKind.GLOB, codes)], within=prefixed(prefix))


def read_time(text: str, zoned: bool = True) -> datetime | None:
    """A timestamp as Spark casts a string to one (session time zone UTC), or None.

    What depends on the clock is not read: a time of day alone, 'now', 'today'.
    """
    match = _SPARK_TIME.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        time = datetime(
            int(year),
            int(month or 1),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            micros,
        )
        return _in_utc(time, zone if zoned else None)
    except (ValueError, OverflowError, KeyError, OSError):  # KeyError, OSError: no such zone
        return None


def _in_utc(time: datetime, zone: str | None) -> datetime:
    """Read a wall-clock time in a zone: Z, UTC, an offset such as +02:00, or a region's name."""
    if zone is None or zone in ("Z", "UTC", "GMT", "UT"):
        return time.replace(tzinfo=UTC)
    offset = _OFFSET.fullmatch(zone)
    if offset is None:
        return time.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    sign, hours, minutes = offset.groups()
    shift = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if int(minutes or 0) > 59 or shift > timedelta(hours=18):
        raise ValueError("no zone is that far away")
    return (time - shift if sign == "+" else time + shift).replace(tzinfo=UTC)


def compared(op: type[exp.Expr], value: Scalar) -> ValueSet:
    """The scalars that compare so with a value."""
    if op is exp.EQ:
        return equal_to([value])
    if op is exp.NEQ:
        (rest,) = equal_to([value]).complement()
        return rest.intersect(EVERY_OF_KIND[kind_of(value)])
    inclusive = op in (exp.LTE, exp.GTE)
    above = op in (exp.GT, exp.GTE)
    if isinstance(value, bool):
        # false < true, as Spark orders them
        keep = [
            b for b in (False, True) if (b > value if above else b < value) or (inclusive and b == value)
        ]
        out = NO_VALUE
        for b in keep:
            out = out.union(booleans(b)) or out
        return out
    if isinstance(value, str):
        return (strings_from if above else strings_below)(value, inclusive)
    if isinstance(value, datetime):
        return (times_above if above else times_below)(value, inclusive)
    return (number_above if above else number_below)(value, inclusive)


def equal_to(values: Iterable[Scalar]) -> ValueSet:
    """The scalars that equal one of some values of one kind."""
    values = list(values)
    kind = kind_of(values[0])
    if kind == "boolean":
        out = NO_VALUE
        for value in values:
            out = out.union(booleans(bool(value))) or out
        return out
    makers: dict[str, Callable[..., ValueSet]] = {
        "string": strings_equal,
        "timestamp": times_equal,
        "number": numbers_equal,
    }
    return makers[kind](values)


def kind_of(value: Scalar) -> str:
    """The name of a literal's kind, as messages have it."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "timestamp" if isinstance(value, datetime) else "number"


def spelled(value: Scalar | None) -> str:
    """A literal as SQL writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)


def folded_codes(codes: tuple[int, ...]) -> tuple[int, ...]:
    """A glob with the case of its letters folded."""
    return tuple(code if code < 0 else fold(chr(code))[0] for code in codes)


def case_codes(codes: tuple[int, ...], upper: bool) -> tuple[int, ...] | None:
    """The folded codes that a lower or upper form is to match; None if no such form has these letters."""
    folded = folded_codes(codes)
    for code, low in zip(codes, folded, strict=True):
        if code >= 0 and has_case(code) and (code == low) is upper:
            return None
    return folded


def as_double(number: Number) -> float:
    """A number as a double; beyond the largest it is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf
