"""Does this filter accept this event? One question, or a file of them.

Owns the answer for one event (`matches`), and cases that say what the answer should be (`read_cases`,
`judge`): Amazon's TestEventPattern, for every spelling.
"""

import json
import math
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ramify.content.events.attributes import AttributeValue, Event, text_path, time_text
from ramify.content.events.flatten import FieldMapping
from ramify.content.events.framing import WHITESPACE
from ramify.content.events.timestamps import parse_timestamps
from ramify.content.filters.expressions import Explanation
from ramify.content.filters.expressions import explain as explain_filter
from ramify.content.filters.spellings import SPELLINGS, AnyFilter, as_filter
from ramify.errors import InputError
from ramify.studies.fields import AnyEvent, as_event

__all__ = ["Case", "Verdict", "judge", "matches", "read_cases"]

# An event is read as a field of a record, so that none of its own fields has a meaning beforehand.
_READ = FieldMapping(id=None, publisher=None, time=None)
_FIELD = "e"
_CASE_FIELDS = frozenset({"name", "event", "expect", *SPELLINGS})


def matches(
    filter: AnyFilter,  # the word of this trade
    event: AnyEvent,
    spelling: str | None = None,
) -> bool:
    """Whether a filter accepts an event. Nothing is compiled: for many events use a `Matcher`.

    The filter is SQL as text, an EventBridge pattern as a mapping, keywords as a list, or a `Filter`; a
    Sigma rule is a mapping or text with `spelling="sigma"`. The event is a mapping, JSON text, or an
    `Event`. Raises `FilterError` or `InputError` for what cannot be read.

    >>> import ramify
    >>> order = {"type": "order.created", "price": 120, "tags": ["sale", "books"]}
    >>> ramify.matches("price >= 100 AND type LIKE 'order.%'", order)
    True
    >>> ramify.matches({"price": [{"numeric": ["<", 100]}]}, order)
    False
    >>> ramify.matches(["books", "music"], {"keywords": ["books"]})
    True
    >>> rule = {"small": {"price|lt": 100}, "condition": "not small"}
    >>> ramify.matches(rule, order, spelling="sigma")
    True
    """
    return as_filter(filter, spelling).holds(_attributes(event))


def _attributes(given: AnyEvent) -> Mapping[str, AttributeValue]:
    """What a filter sees of an event. `id`, `publisher` and `time` are fields like others: an event may
    lack them or hold anything there; a time is one, with its text beside it, where it can be read so.

    Raises
    ------
    InputError
        When it is not an event: no JSON object, values that JSON does not have, nested too deep.
    """
    if isinstance(given, Event):
        return given.values
    if isinstance(given, Mapping):
        try:
            given = json.dumps(dict(given), default=_as_text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the event cannot be written as JSON: {error}") from None
    if not isinstance(given, str | bytes):
        raise InputError(f"{type(given).__name__} is not an event: give a mapping, JSON text or an Event")
    try:
        text = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        raise InputError("the event has half of a surrogate pair, which is no character") from None
    text = text.removeprefix(BOM_UTF8).strip(WHITESPACE)
    # read on its own first: as a field of a record it could end that record, and begin another field
    as_event(text, _READ)
    read = as_event(b'{"%s":%s}' % (_FIELD.encode(), text), _READ)
    prefix = f"{_FIELD}."
    held = {path.removeprefix(prefix): value for path, value in read.attributes.items()}
    written = held.get("time")
    times, bad = parse_timestamps([written if isinstance(written, str) else None])
    if isinstance(written, str) and not bad:
        held |= {"time": times[0].as_py(), text_path("time"): written}
    return held


@dataclass(frozen=True, slots=True)
class Case:
    """A filter in one spelling, an event, and what the answer should be; `expect` is None for any answer.

    `expect` may be "refused": the filter must not be accepted.
    """

    name: str
    spelling: str
    filter: Any
    event: Any
    expect: bool | str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case: `matched` is None where the filter or the event was refused, with `error`."""

    case: Case
    matched: bool | None
    explanation: Explanation | None = None
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the answer is as expected. A case that expects nothing passes unless it is refused."""
        if self.case.expect == "refused":
            return self.error is not None
        return self.error is None and self.case.expect in (None, self.matched)


def judge(case: Case) -> Verdict:
    """The verdict on one case. Never raises for what a case holds."""
    try:
        parsed = as_filter(case.filter, case.spelling)
        found = explain_filter(_attributes(case.event), parsed)
    except InputError as error:
        return Verdict(case, None, error=str(error))
    return Verdict(case, found.matched, found)


def read_cases(path: str | Path) -> Iterator[Case]:
    """The cases of a JSON-lines file, or of a JSON array.

    A case is {"name": ..., "sql" | "pattern" | "keywords" | "sigma": ..., "event": {...}, "expect": true}.
    Name and expectation may be missing. Raises `InputError` with the number of the case for one that is
    not so.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"the cases cannot be read ({error.strerror or error})", path=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"the cases are not UTF-8 (byte {error.start})", path=str(path)) from None
    for number, row in enumerate(_rows(text, str(path)), 1):
        try:
            yield _case(row, number)
        except InputError as error:
            raise InputError(f"case {number}: {error.reason}", path=str(path)) from None


def _rows(text: str, path: str) -> Iterator[Any]:
    lines = [text] if text.lstrip().startswith("[") else text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, parse_float=_number)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} is not JSON ({error})", path=path) from None
        if isinstance(found, list):
            yield from found
        else:
            yield found


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return time_text(value)
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _number(text: str) -> float | int:
    """A number of a case; beyond the largest double, an integer that is beyond it too."""
    found = float(text)
    return found if math.isfinite(found) else int(math.copysign(1, found)) * 10**309


def _case(row: Any, number: int) -> Case:
    if not isinstance(row, dict):
        raise InputError("a case is a JSON object")
    unknown = sorted(row.keys() - _CASE_FIELDS)
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}: the fields are {', '.join(sorted(_CASE_FIELDS))}")
    given = [name for name in SPELLINGS if name in row]
    if len(given) != 1 or "event" not in row:
        raise InputError(f"a case has an event, and a filter in one of {', '.join(SPELLINGS)}")
    expect = row.get("expect")
    if not (expect is None or isinstance(expect, bool) or expect == "refused"):
        raise InputError(f'expect is true, false or "refused", not {expect!r}')
    return Case(str(row.get("name", f"case {number}")), given[0], row[given[0]], row["event"], expect)
