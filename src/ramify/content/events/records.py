"""From bytes to JSON objects within limits, and what was wrong with the others.

Owns the limits on a record, the decoding, and the reasons for which a record is refused whatever its fields
mean: size, depth, syntax, encoding, numbers beyond a double, keys that occur twice. Records are decoded in
groups: what can be told from the bytes of a whole group at once is.
"""

import json
import math
from collections import Counter
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
    "duplicate_keys",
    "load",
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
    """Objects decoded together. Parallel: which record each was, and a bound on its key-value pairs."""

    index: list[int]
    objects: list[dict[str, Any]]
    pairs: NDArray[np.int64]


def load(records: Records, faults: dict[int, Fault]) -> Iterator[ObjectGroup]:
    """The records that are JSON objects within the limits, in order; faults for the others."""
    decode = msgspec.json.Decoder().decode
    for start in range(0, len(records.raw), _GROUP):
        raw = records.raw[start : start + _GROUP]
        lengths, openers, pairs = _structure(raw)
        for k in np.flatnonzero((lengths > MAX_RECORD_BYTES) | (openers > MAX_DEPTH)).tolist():
            fault = _limit_fault(raw[k])
            if fault is not None:
                faults.setdefault(start + k, fault)
        index = list(range(start, start + len(raw)))
        if faults:
            index = [i for i in index if i not in faults]
        found = _decoded(index, records.raw, decode, faults)
        if len(index) < len(raw):
            pairs = pairs[[i - start for i in index]]
        if found:
            yield ObjectGroup(index, found, pairs)


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
            faults[i] = _diagnosis(raw[i], error)
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


def _structure(raw: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per record its length, and bounds on its depth (opening brackets) and on its key-value pairs (colons
    that follow a quote or a space). Both count inside strings too, so they are cheap and never too low."""
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    ends = np.cumsum(lengths)
    data = np.frombuffer(b"".join(raw), np.uint8)
    openers = np.flatnonzero((data & 0xDF) == 0x5B)
    before = data[:-1]
    colons = np.flatnonzero((data[1:] == 0x3A) & ((before == 0x22) | (before <= 0x20))) + 1
    return (
        lengths,
        np.diff(np.searchsorted(openers, ends), prepend=0),
        np.diff(np.searchsorted(colons, ends), prepend=0),
    )


# --- what was wrong ----------------------------------------------------------------------------------


def too_large() -> Fault:
    """The fault of a record beyond the size limit."""
    return RejectReason.TOO_LARGE, f"the record is longer than {MAX_RECORD_BYTES} bytes"


def duplicate_keys(raw: bytes, found: dict[str, Any], pairs: int) -> Fault | None:
    """The fault of a record that repeats a key, where decoders disagree on which value holds."""
    if _keys_within(found) == pairs:
        return None

    def unique(items: list[tuple[str, Any]]) -> None:
        names = Counter(name for name, _ in items)
        if len(names) < len(items):
            raise _DuplicateError(next(name for name, times in names.items() if times > 1))

    try:
        json.loads(raw, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except _DuplicateError as error:
        return RejectReason.DUPLICATE_KEY, f"the key {error.args[0]!r} occurs twice in one object; keep one"
    return None


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


def _diagnosis(raw: bytes, error: Exception) -> Fault:
    """Why the decoder refused `raw`: only reached for bad records, so it may take its time."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as bad:
        return RejectReason.BAD_UTF8, f"byte {bad.start} is not UTF-8; write the file in UTF-8"
    try:
        found = json.loads(text, parse_constant=_not_finite, parse_float=_finite, parse_int=_finite)
        json.dumps(found, ensure_ascii=False).encode()
    except _NotFiniteError as bad:
        return RejectReason.NOT_FINITE, f"{bad} is not a finite number that fits a double; leave it out"
    except UnicodeEncodeError:
        return RejectReason.BAD_UTF8, "a string has half of a surrogate pair, which is no character"
    except (ValueError, RecursionError):
        pass
    return RejectReason.NOT_JSON, f"{error}; each record must be one JSON object"


class _DuplicateError(Exception):
    pass


class _NotFiniteError(Exception):
    pass


def _not_finite(literal: str) -> NoReturn:
    raise _NotFiniteError(literal if len(literal) < 40 else f"{literal[:20]}... ({len(literal)} digits)")


def _finite(literal: str) -> float:
    value = float(literal)
    return value if math.isfinite(value) else _not_finite(literal)


def _keys_within(value: Any) -> int:
    """Keys of an object and of all objects inside it."""
    keys, stack = 0, [value]
    while stack:
        inner = stack.pop()
        if type(inner) is dict:
            keys += len(inner)
            stack.extend(inner.values())
        elif type(inner) is list:
            stack.extend(inner)
    return keys
