"""From bytes to JSON objects within limits, and what was wrong with the others.

Owns the limits on a record, the decoding, and the reasons for which a record is refused whatever its fields
mean: size, depth, syntax, encoding. Numbers may be of any size, and of equal keys the last holds. Records
are decoded in groups: what can be told from the bytes of a whole group at once is.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ramify.content.events.events import RejectedRecord, RejectReason

__all__ = [
    "MAX_DEPTH",
    "MAX_RECORD_BYTES",
    "Fault",
    "ObjectGroup",
    "Records",
    "bracket_levels",
    "depth",
    "load",
    "read_object",
    "spelled",
    "too_large",
]

MAX_RECORD_BYTES = 1 << 20
"""A longer record is refused unread."""

MAX_DEPTH = 32
"""Objects and arrays inside each other, the record itself included."""

# Records that are decoded together: enough to vectorise, few enough that their objects, which are dropped
# after each group, stay in the cache and their memory is used again.
_GROUP = 512

Fault: TypeAlias = tuple[RejectReason, str]


@dataclass(slots=True)
class Records:
    """Raw records of one input. `first` is the position of the first; `refused` are known to be bad."""

    raw: Sequence[bytes]
    lines: Sequence[int] | None = None
    first: int = 0
    source: str | None = None
    refused: dict[int, Fault] = field(default_factory=dict)

    def rejected(self, faults: Mapping[int, Fault]) -> list[RejectedRecord]:
        """The faults as values, by position."""
        return [
            RejectedRecord(
                position=self.first + i,
                reason=faults[i][0],
                detail=faults[i][1],
                line=None if self.lines is None else self.lines[i],
                source=self.source,
                raw=bytes(self.raw[i][:256]),
            )
            for i in sorted(faults)
        ]


@dataclass(slots=True)
class ObjectGroup:
    """Objects decoded together, and which record each was."""

    index: list[int]
    objects: list[dict[str, Any]]


def load(records: Records, faults: dict[int, Fault]) -> Iterator[ObjectGroup]:
    """The records that are JSON objects within the limits, in order; faults for the others."""
    decode = msgspec.json.Decoder().decode
    for start in range(0, len(records.raw), _GROUP):
        raw = records.raw[start : start + _GROUP]
        lengths, openers = _structure(raw)
        for k in np.flatnonzero((lengths > MAX_RECORD_BYTES) | (openers > MAX_DEPTH)).tolist():
            fault = _limit_fault(raw[k])
            if fault is not None:
                faults.setdefault(start + k, fault)
        index = list(range(start, start + len(raw)))
        if faults:
            index = [i for i in index if i not in faults]
        found = _decoded(index, records.raw, decode, faults)
        if found:
            yield ObjectGroup(index, found)


def read_object(raw: bytes) -> dict[str, Any]:
    """A record that `load` has let through, read again."""
    try:
        found: dict[str, Any] = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        found = _read_slowly(raw)
    return found


def _limit_fault(raw: bytes) -> Fault | None:
    if len(raw) > MAX_RECORD_BYTES:
        return too_large()
    if depth(raw) > MAX_DEPTH:
        return RejectReason.TOO_DEEP, f"the record is nested deeper than {MAX_DEPTH} levels"
    return None


def _decoded(
    index: list[int], raw: Sequence[bytes], decode: Callable[[bytes], Any], faults: dict[int, Fault]
) -> list[dict[str, Any]]:
    """The objects of the records in `index`, from which the others are removed."""
    found: list[Any] = []
    for i in index:
        try:
            found.append(decode(raw[i]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            try:
                found.append(_read_slowly(raw[i]))
            except _UnreadableError as bad:
                faults[i] = bad.fault
            except (ValueError, RecursionError):
                faults[i] = RejectReason.NOT_JSON, f"{error}; each record must be one JSON object"
    if len(found) < len(index):
        index[:] = [i for i in index if i not in faults]
    if set(map(type, found)) <= {dict}:
        return found
    for i, value in zip(index, found, strict=True):
        if type(value) is not dict:
            detail = f"the record is {spelled(value)}; it must be a JSON object"
            faults[i] = RejectReason.NOT_AN_OBJECT, detail
    index[:] = [i for i in index if i not in faults]
    return [value for value in found if type(value) is dict]


# --- the bytes of records ----------------------------------------------------------------------------


def depth(raw: bytes) -> int:
    """How deep brackets nest outside strings. O(n), whatever the bytes."""
    return int(bracket_levels(raw).levels.max(initial=0))


@dataclass(slots=True)
class Brackets:
    """The bytes of a text that give it structure: brackets and commas outside strings.

    `at` holds their places, `marks` the bytes themselves, `levels` how many brackets are open after each.
    `quoted` says whether the text ends inside a string.
    """

    at: NDArray[np.intp]
    marks: NDArray[np.uint8]
    levels: NDArray[np.int64]
    quoted: bool


def bracket_levels(raw: bytes, quoted: bool = False, level: int = 0) -> Brackets:
    """The structure of a JSON text, or of a piece that begins in a string (`quoted`) or at a level.

    Exact for as far as a JSON decoder would read. Blanking escaped pairs from left to right first leaves
    only the quotes that open or close a string, so that their parity decides.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    data = np.frombuffer(raw, np.uint8)
    folded = data & 0xDF  # '{' and '[' differ in one bit, and so do '}' and ']'
    opening, closing, quote = folded == 0x5B, folded == 0x5D, data == 0x22
    places = np.flatnonzero(opening | closing | quote | (data == 0x2C))
    inside = (np.cumsum(quote[places]) & 1).astype(np.bool_) ^ quoted
    outside = ~inside & ~quote[places]
    at = places[outside]
    steps = opening[at].astype(np.int8) - closing[at].astype(np.int8)
    ends_quoted = bool(inside[-1]) if len(inside) else quoted
    return Brackets(at, data[at], np.cumsum(steps, dtype=np.int64) + level, ends_quoted)


def _structure(raw: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per record its length, and a bound on its depth: opening brackets, those inside strings too."""
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    openers = np.flatnonzero((np.frombuffer(b"".join(raw), np.uint8) & 0xDF) == 0x5B)
    return lengths, np.diff(np.searchsorted(openers, np.cumsum(lengths)), prepend=0)


# --- what was wrong ----------------------------------------------------------------------------------


def too_large() -> Fault:
    """The fault of a record beyond the size limit."""
    return RejectReason.TOO_LARGE, f"the record is longer than {MAX_RECORD_BYTES} bytes"


def spelled(value: Any) -> str:
    """A JSON value, named for a person."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {'true' if value else 'false'}"
        case int():
            return f"the integer {value}" if abs(value) < 10**30 else "an integer of over 30 digits"
        case float():
            return f"the number {value!r}"
        case str():
            return f"the string {value[:40]!r}" + ("..." if len(value) > 40 else "")
        case list():
            return f"an array of {len(value)} elements"
    return "an object"


def _read_slowly(raw: bytes) -> Any:
    """A record that the fast decoder refuses. It does so for numbers beyond a double: they are infinite.

    Raises `_UnreadableError`, or `ValueError` for what is no JSON.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as bad:
        text = f"byte {bad.start} is not UTF-8; write the file in UTF-8"
        raise _UnreadableError((RejectReason.BAD_UTF8, text)) from None
    found = json.loads(text, parse_constant=_no_number, parse_int=_integer)
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        fault = RejectReason.BAD_UTF8, "a string has half of a surrogate pair, which is no character"
        raise _UnreadableError(fault) from None
    return found


class _UnreadableError(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault[1])


def _no_number(literal: str) -> NoReturn:
    raise _UnreadableError((RejectReason.NOT_JSON, f"{literal} is no number of JSON; leave the value out"))


def _integer(literal: str) -> float:
    # An integer of so many digits is beyond a double, and Python is slow to read a long one.
    return int(literal) if len(literal) < 400 else float(literal)
