"""From JSON records to rows: parse within limits, flatten to dotted paths, fit to columns.

Owns the limits on a record, the meaning of paths, types and times, and every reason to reject a record for
them. Does not know files (`readers`) or the CloudEvents envelope (`cloudevents`), which hand their records
to `decode` with a parser of their own.

Records are parsed one by one in C, but typed by column: a column whose values all have one JSON type, the
usual case, is never looked at value by value in Python. That is what makes ingest fast, and why a record
can still be rejected after it was parsed.
"""

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events import (
    CONTEXT_NAMES,
    RESERVED_NAMES,
    AttributeType,
    Decoded,
    EventSchema,
    Rejected,
    RejectReason,
)

__all__ = [
    "MAX_ATTRIBUTES",
    "MAX_DEPTH",
    "MAX_RECORD_BYTES",
    "PLAIN",
    "FieldMapping",
    "Records",
    "TimeUnit",
    "decode",
    "decode_records",
    "parse_timestamps",
]

MAX_RECORD_BYTES = 1 << 20
"""A longer record is refused unread."""

MAX_DEPTH = 32
"""Objects and arrays inside each other, the record itself included."""

MAX_ATTRIBUTES = 1024
"""Inference stops adding columns here: a log with a new key in every record must not make a batch of
rows x records cells. Paths seen later count as unaddressable. A given schema may be wider."""

_GROUP = (
    4096  # records whose bytes are scanned together: big enough to vectorise, small enough for the cache
)
_INT64 = range(-(2**63), 2**63)
_NONE = type(None)
_CONFLICT, _SPRAWL = -1, -2  # what `flatten` returns instead of a number of keys

Fault: TypeAlias = tuple[RejectReason, str]


class TimeUnit(StrEnum):
    """What a number in the time field counts. Strings are RFC 3339 whatever the unit."""

    NONE = "none"
    SECONDS = "s"
    MILLISECONDS = "ms"


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Which fields of a record are its id, publisher and time: dotted paths, or None for no such field.

    Without an id field, ids are made from source and line. A number as time needs a `time_unit`: it is
    never guessed. A mapped field with another name than its column stays an attribute too, and a field
    whose name is taken by the column of another is unaddressable.
    """

    id: str | None = "id"
    publisher: str | None = "publisher"
    time: str | None = "time"
    time_unit: TimeUnit = TimeUnit.NONE

    @property
    def shadowed(self) -> frozenset[str]:
        """Paths that can have no column. An empty path is one: no filter can name it."""
        own = {name for name in CONTEXT_NAMES if getattr(self, name) == name}
        return (CONTEXT_NAMES - own) | {""}


PLAIN = FieldMapping()
"""The mapping of records that use our own names."""


@dataclass(slots=True)
class Records:
    """Raw records of one input. `first` is the position of the first; `refused` are known to be bad."""

    raw: Sequence[bytes]
    lines: Sequence[int] | None = None
    first: int = 0
    source: str | None = None
    refused: dict[int, Fault] = field(default_factory=dict)

    def rejected(self, faults: Mapping[int, Fault]) -> list[Rejected]:
        """The faults as values, by position."""
        return [
            Rejected(
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
class Rows:
    """Parsed records: parallel lists. `index` says which raw record each one was.

    `nulls` holds only the rows that have some; an empty `bodies` says that each body is its raw record.
    """

    index: list[int] = field(default_factory=list)
    flat: list[dict[str, Any]] = field(default_factory=list)
    nulls: dict[int, list[str]] = field(default_factory=dict)
    bodies: list[bytes | None] = field(default_factory=list)
    body_is_json: list[bool] = field(default_factory=list)


Parser: TypeAlias = Callable[[Records, FieldMapping], tuple[Rows, dict[int, Fault]]]


def decode_records(
    records: Iterable[bytes],
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    source: str | None = None,
) -> Decoded:
    """Plain JSON objects, one per element, as a batch and the rejected. Never raises for a bad record."""
    return decode(Records(list(records), source=source), parse_plain, schema, mapping)


def decode(
    records: Records,
    parse: Parser,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    inferred: bool = False,
) -> Decoded:
    """Parse and type records: every one becomes a row or a `Rejected`. O(bytes + rows x columns).

    Without a schema the types come from the records: the first value of a path decides, integers widen
    to doubles. Reading the records again with that schema gives the same result. `inferred` says, for the
    messages only, that the schema comes from earlier records of this input.
    """
    with _collector_paused():
        rows, faults = parse(records, mapping)
        assembly = _Assembly(rows, faults, mapping, inferred=inferred or schema is None)
        if schema is None:
            schema = assembly.inferred()
        else:
            assembly.gather(schema.attributes)
        context = [assembly.ids(records), assembly.publishers(), assembly.times()]
        columns = [assembly.column(path, kind) for path, kind in schema.attributes.items()]
        arrays = [*context, *_payload(records, rows), *columns]
        unaddressable = assembly.unaddressable(schema)
    if faults:
        keep = pa.array([i not in faults for i in rows.index], pa.bool_())
        arrays = [array.filter(keep) for array in arrays]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    return Decoded(batch, records.rejected(faults), unaddressable)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Python's cycle collector scans all live objects again and again while a batch of dictionaries
    grows, which took half of the time. Parsed JSON has no cycles, and a batch is bounded."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _payload(records: Records, rows: Rows) -> "list[pa.Array[Any]]":
    """The reserved columns."""
    raw = [records.raw[i] for i in rows.index]
    nulls = [rows.nulls.get(row, ()) for row in range(len(raw))]
    return [
        pa.array([len(r) for r in raw], pa.int64()),
        pa.array(rows.bodies or raw, pa.binary()),
        pa.array(rows.body_is_json or [True] * len(raw), pa.bool_()),
        pa.array(nulls, pa.list_(pa.string())),
    ]


# --- parsing one record ------------------------------------------------------------------------------


def parse_plain(records: Records, mapping: FieldMapping) -> tuple[Rows, dict[int, Fault]]:
    """The parser of plain objects: the fields are the attributes, the whole record is the body."""
    rows, faults = Rows(), dict(records.refused)
    hidden = mapping.shadowed
    for i, found, colons in objects(records, faults):
        if not RESERVED_NAMES.isdisjoint(found):
            faults[i] = reserved(RESERVED_NAMES.intersection(found))
            continue
        kinds = set(map(type, found.values()))
        keys = flatten(found) if dict in kinds else len(found)
        if keys < 0:
            faults[i] = unflattened(records.raw[i], keys)
        elif keys != colons and (fault := duplicate_key(records.raw[i], keys, colons, found.values())):
            faults[i] = fault
        else:
            if (_NONE in kinds or dict in kinds) and (nulls := null_paths(found, hidden)):
                rows.nulls[len(rows.index)] = nulls
            rows.index.append(i)
            rows.flat.append(found)
    return rows, faults


def objects(records: Records, faults: dict[int, Fault]) -> Iterable[tuple[int, dict[str, Any], int]]:
    """(index, object, bound on its key-value pairs) of each record that is one; faults for the others."""
    load = msgspec.json.Decoder().decode
    for start in range(0, len(records.raw), _GROUP):
        group = records.raw[start : start + _GROUP]
        openers, colons = _structure(group)
        for i, (raw, depth_bound, colon_bound) in enumerate(
            zip(group, openers, colons, strict=True), start
        ):
            if i in faults:
                continue
            if len(raw) > MAX_RECORD_BYTES:
                faults[i] = too_large()
                continue
            if depth_bound > MAX_DEPTH and depth(raw) > MAX_DEPTH:
                faults[i] = RejectReason.TOO_DEEP, f"the record is nested deeper than {MAX_DEPTH} levels"
                continue
            try:
                found = load(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                faults[i] = diagnose(raw, error)
                continue
            if type(found) is dict:
                yield i, found, colon_bound
            else:
                faults[i] = (
                    RejectReason.NOT_AN_OBJECT,
                    f"the record is {_a(found)}; it must be a JSON object",
                )


def flatten(found: dict[str, Any]) -> int:
    """Replace the nested objects of `found` by their leaves, named by dotted path; arrays are leaves.

    Returns how many keys there were, or one of `_CONFLICT` and `_SPRAWL`. Works in place because most
    fields of most records are not nested. The depth was checked before.
    """
    keys = len(found)
    budget = MAX_RECORD_BYTES
    stack = [item for item in found.items() if type(item[1]) is dict]
    for key, _ in stack:
        del found[key]
    while stack:
        at, inner = stack.pop()
        keys += len(inner)
        # A long name above many fields would be copied into each of their paths.
        budget -= len(at) * len(inner)
        if budget < 0:
            return _SPRAWL
        for key, value in inner.items():
            path = f"{at}.{key}"
            if type(value) is dict:
                stack.append((path, value))
            elif path in found:
                return _CONFLICT
            else:
                found[path] = value
    return keys


def null_paths(flat: Mapping[str, Any], hidden: frozenset[str]) -> list[str]:
    """The paths with an explicit null, sorted."""
    if None not in flat.values():
        return []
    return sorted(path for path, value in flat.items() if value is None and path not in hidden)


def depth(raw: bytes) -> int:
    """How deep brackets nest outside strings. O(n), whatever the bytes."""
    _, levels = bracket_levels(raw)
    return int(levels.max(initial=0))


def bracket_levels(
    raw: bytes, inside: bool = False, level: int = 0
) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], np.ndarray[Any, np.dtype[np.int32]]]:
    """For every byte: whether it is in a string, and how many brackets are open after it.

    Exact for as far as a JSON decoder would read. Blanking escaped pairs from left to right first leaves
    only the quotes that open or close a string, so that their parity decides.
    """
    data = np.frombuffer(raw.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    quoted = (np.cumsum(data == 0x22, dtype=np.uint8) & 1).astype(np.bool_) ^ inside
    folded = data & 0xDF  # '{' and '[' differ in one bit, and so do '}' and ']'
    steps = (folded == 0x5B).astype(np.int8) - (folded == 0x5D).astype(np.int8)
    steps[quoted] = 0
    return quoted, np.cumsum(steps, dtype=np.int32) + np.int32(level)


def _structure(group: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Upper bounds per record: on its depth (opening brackets) and on its key-value pairs (colons that
    follow a quote or a space). Both count inside strings too, so they are cheap and never too low."""
    data = np.frombuffer(b"".join(group), np.uint8)
    ends = np.cumsum([len(raw) for raw in group])
    openers = np.flatnonzero((data & 0xDF) == 0x5B)
    colons = np.flatnonzero(data[1:] == 0x3A)
    before = data[colons]
    colons = colons[(before == 0x22) | (before <= 0x20)] + 1
    return (
        np.diff(np.searchsorted(openers, ends), prepend=0).tolist(),
        np.diff(np.searchsorted(colons, ends), prepend=0).tolist(),
    )


# --- what was wrong ----------------------------------------------------------------------------------


def too_large() -> Fault:
    """The fault of a record beyond the size limit."""
    return RejectReason.TOO_LARGE, f"the record is longer than {MAX_RECORD_BYTES} bytes"


def reserved(names: Iterable[str]) -> Fault:
    """The fault of a record that uses our names."""
    return RejectReason.RESERVED_NAME, f"the field {min(names)!r} has a reserved name; rename it"


def unflattened(raw: bytes, why: int) -> Fault:
    """The fault of a record whose nested names make no usable paths."""
    if why == _SPRAWL:
        text = f"the dotted paths of its fields, written out, are longer than {MAX_RECORD_BYTES} characters"
        return RejectReason.TOO_LARGE, text
    found = msgspec.json.decode(raw)
    twice = next(path for path, times in Counter(_leaves(found)).items() if times > 1)
    return (
        RejectReason.CONFLICTING_PATHS,
        f"{twice!r} is given twice: as nested objects and as a name with dots; keep one",
    )


def duplicate_key(raw: bytes, keys: int, colons: int, leaves: Iterable[Any]) -> Fault | None:
    """The fault of a record that repeats a key, where decoders disagree on which value holds."""
    if keys + sum(_keys_within(leaf) for leaf in leaves if type(leaf) is list) == colons:
        return None

    def unique(pairs: list[tuple[str, Any]]) -> None:
        names = Counter(name for name, _ in pairs)
        if len(names) < len(pairs):
            raise _DuplicateError(next(name for name, times in names.items() if times > 1))

    try:
        json.loads(raw, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except _DuplicateError as error:
        return RejectReason.DUPLICATE_KEY, f"the key {error.args[0]!r} occurs twice in one object; keep one"
    return None


def diagnose(raw: bytes, error: Exception) -> Fault:
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


def _leaves(found: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in found.items():
        if type(value) is dict:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


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
    """Keys of all objects inside an array."""
    keys, stack = 0, [value]
    while stack:
        inner = stack.pop()
        if type(inner) is dict:
            keys += len(inner)
            stack.extend(inner.values())
        elif type(inner) is list:
            stack.extend(inner)
    return keys


def _a(value: Any) -> str:
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


# --- columns -----------------------------------------------------------------------------------------


class _Assembly:
    """Turns the parsed rows into columns, and collects what does not fit."""

    def __init__(
        self, rows: Rows, faults: dict[int, Fault], mapping: FieldMapping, *, inferred: bool
    ) -> None:
        self.rows = rows
        # Every path of every row, in the order of its first occurrence.
        self.paths = dict.fromkeys(chain.from_iterable(rows.flat))
        # Faults by raw record, shared with the caller: a row gets at most one, the first found.
        self.faults = faults
        self.mapping = mapping
        # Whether the types come from the records, for the message.
        self.types_are_inferred = inferred
        # Values in paths with a column that have no type: (path, row).
        self.untyped: list[tuple[str, int]] = []
        # The values of each path and the rows that they are in, in order; None stands for a null.
        self.gathered: dict[str, tuple[Sequence[int], list[Any]]] = {}

    def gather(self, paths: Collection[str]) -> None:
        """Turn rows into columns. A wide log, most of whose cells are empty, costs only its full cells."""
        rows = self.rows.flat
        if 4 * sum(map(len, rows)) >= len(paths) * len(rows):
            every = range(len(rows))
            self.gathered = {path: (every, [flat.get(path) for flat in rows]) for path in paths}
            return
        where: dict[str, list[int]] = {path: [] for path in paths}
        for row, flat in enumerate(rows):
            for path in flat.keys() & where.keys():
                where[path].append(row)
        self.gathered = {path: (at, [rows[row][path] for row in at]) for path, at in where.items()}

    def inferred(self) -> EventSchema:
        """The schema of the rows themselves."""
        rows, hidden = self.rows.flat, CONTEXT_NAMES | {""}
        paths = [path for path in self.paths if path not in hidden]
        if len(paths) > MAX_ATTRIBUTES:
            # Typing a path looks at every row, so first drop the paths that would get no column anyway.
            cells = (item for flat in rows for item in flat.items() if item[0] not in hidden)
            typed = dict.fromkeys(path for path, value in cells if _kind_of(value) is not None)
            paths = list(typed)[:MAX_ATTRIBUTES]
        self.gather(paths)
        found = {path: _infer(values) for path, (_, values) in self.gathered.items()}
        return EventSchema({path: kind for path, kind in found.items() if kind is not None})

    def ids(self, records: Records) -> "pa.Array[Any]":
        """The id column: strings, integers as strings, or made from source and line."""
        path = self.mapping.id
        if path is None:
            name = records.source or "record"
            numbers = records.lines or range(records.first, records.first + len(records.raw))
            return pa.array([f"{name}:{numbers[i]}" for i in self.rows.index], pa.string())
        values = self._names(path)
        for row, value in enumerate(values):
            if not value:
                self._reject(
                    row, RejectReason.NO_ID, f"the record has no {path!r}; give it a non-empty string"
                )
                values[row] = ""
        return pa.array(values, pa.string())

    def publishers(self) -> "pa.Array[Any]":
        """The publisher column; null where the record has none."""
        path = self.mapping.publisher
        values = [None] * len(self.rows.flat) if path is None else self._names(path)
        return pa.array(values, pa.string())

    def times(self) -> "pa.Array[Any]":
        """The time column: RFC 3339 strings, and numbers when the mapping names their unit."""
        path = self.mapping.time
        if path is None:
            return pa.array([None] * len(self.rows.flat), AttributeType.TIMESTAMP.arrow)
        values = [flat.get(path) for flat in self.rows.flat]
        texts: list[str | None] = [value if type(value) is str else None for value in values]
        numbers = {row: v for row, v in enumerate(values) if v is not None and type(v) is not str}
        column, bad = parse_timestamps(texts)
        for row in bad:
            self._reject(row, RejectReason.BAD_TIME, f"{path!r} is {_a(values[row])}, not an RFC 3339 time")
        if not numbers:
            return column
        moments = column.to_pylist()
        for row, value in numbers.items():
            moments[row] = _from_epoch(value, self.mapping.time_unit)
            if moments[row] is None:
                hint = (
                    ""
                    if self.mapping.time_unit is not TimeUnit.NONE
                    else "; for numbers, name the time unit"
                )
                self._reject(
                    row, RejectReason.BAD_TIME, f"{path!r} is {_a(value)}, not an RFC 3339 time{hint}"
                )
        return pa.array(moments, AttributeType.TIMESTAMP.arrow)

    def column(self, path: str, kind: AttributeType) -> "pa.Array[Any]":
        """One attribute's column; the rows that do not fit are rejected and null."""
        rows, values = self.gathered.pop(path)
        column = self._typed(path, kind, rows, values)
        if len(values) == len(self.rows.flat):
            return column
        places = np.full(len(self.rows.flat), -1)
        places[list(rows)] = np.arange(len(values))
        return column.take(pa.array(places, mask=places < 0))

    def _typed(
        self, path: str, kind: AttributeType, rows: Sequence[int], values: list[Any]
    ) -> "pa.Array[Any]":
        if kind is AttributeType.TIMESTAMP:
            return self._timestamps(path, rows, values)
        kinds = set(map(type, values))
        kinds.discard(_NONE)
        if kinds <= _FITTING[kind] and (list not in kinds or _elements(values) <= _FITTING_ELEMENTS[kind]):
            try:
                return pa.array(values, kind.arrow)
            except (pa.ArrowInvalid, OverflowError):
                pass  # an integer that is beyond its column, or needs rounding: find out which
        fitted = [
            None if value is None else self._fitted(row, path, value, kind)
            for row, value in zip(rows, values, strict=True)
        ]
        return pa.array(fitted, kind.arrow)

    def unaddressable(self, schema: EventSchema) -> dict[str, int]:
        """How many values of the kept rows no filter can reach, by path."""
        counts: Counter[str] = Counter()
        own = CONTEXT_NAMES - self.mapping.shadowed
        known = schema.attributes.keys() | own
        kept = [i not in self.faults for i in self.rows.index]
        if not known >= self.paths.keys():
            for flat in (flat for flat, keep in zip(self.rows.flat, kept, strict=True) if keep):
                counts.update(path for path in flat.keys() - known if flat[path] is not None)
        counts.update(path for path, row in self.untyped if kept[row])
        return dict(sorted(counts.items()))

    def _fitted(self, row: int, path: str, value: Any, kind: AttributeType) -> Any:
        fitted = _fit(value, kind)
        if fitted is not None:
            return fitted
        if type(value) is list and _kind_of(value) is None:
            self.untyped.append((path, row))
        elif kind in _NUMERIC and _is_huge(value):
            self._reject(row, RejectReason.NOT_FINITE, f"{path!r} is beyond the largest double")
        else:
            why = " (the type of its first value in this input)" if self.types_are_inferred else ""
            limit = ", and within 64 bits" if kind is AttributeType.INT64 and type(value) is int else ""
            text = f"{path!r} is {_a(value)}; it must be {kind}{why}{limit}"
            self._reject(row, RejectReason.WRONG_TYPE, text)
        return None

    def _timestamps(self, path: str, rows: Sequence[int], values: list[Any]) -> "pa.Array[Any]":
        texts: list[str | None] = [value if type(value) is str else None for value in values]
        column, bad = parse_timestamps(texts)
        wrong = [k for k, v in enumerate(values) if v is not None and type(v) is not str]
        for k in sorted({*bad, *wrong}):
            if type(values[k]) is list and _kind_of(values[k]) is None:
                self.untyped.append((path, rows[k]))
                continue
            text = f"{path!r} is {_a(values[k])}; it must be an RFC 3339 time"
            self._reject(rows[k], RejectReason.WRONG_TYPE, text)
        return column

    def _names(self, path: str) -> list[str | None]:
        """The values of an identifying field as strings: integers are common there and mean the same."""
        values = [flat.get(path) for flat in self.rows.flat]
        if set(map(type, values)) <= {str, _NONE}:
            return values
        for row, value in enumerate(values):
            if type(value) is int and value in _INT64:
                values[row] = str(value)
            elif value is not None and type(value) is not str:
                text = f"{path!r} is {_a(value)}; it must be a string or an integer of 64 bits"
                self._reject(row, RejectReason.WRONG_TYPE, text)
                values[row] = None
        return values

    def _reject(self, row: int, reason: RejectReason, detail: str) -> None:
        self.faults.setdefault(self.rows.index[row], (reason, detail))


_NUMERIC = frozenset({AttributeType.INT64, AttributeType.DOUBLE, AttributeType.NUMBERS})
_FITTING: dict[AttributeType, frozenset[type]] = {
    AttributeType.STRING: frozenset({str}),
    AttributeType.INT64: frozenset({int}),
    AttributeType.DOUBLE: frozenset({int, float}),
    AttributeType.BOOLEAN: frozenset({bool}),
    AttributeType.STRINGS: frozenset({list}),
    AttributeType.NUMBERS: frozenset({list}),
}
_FITTING_ELEMENTS: dict[AttributeType, frozenset[type]] = {
    AttributeType.STRINGS: frozenset({str}),
    AttributeType.NUMBERS: frozenset({int, float}),
}
_KIND_OF: dict[type, AttributeType] = {
    str: AttributeType.STRING,
    int: AttributeType.INT64,
    float: AttributeType.DOUBLE,
    bool: AttributeType.BOOLEAN,
}


def _elements(values: Iterable[Any]) -> set[type]:
    return set(map(type, chain.from_iterable(filter(None, values))))


def _kind_of(value: Any) -> AttributeType | None:
    """The type that one JSON value suggests; None for null, empty arrays and arrays of no one type."""
    if type(value) is not list:
        return _KIND_OF.get(type(value))
    kinds = set(map(type, value))
    if not kinds:
        return None
    if kinds == {str}:
        return AttributeType.STRINGS
    return AttributeType.NUMBERS if kinds <= {int, float} else None


def _infer(values: Sequence[Any]) -> AttributeType | None:
    """The type of the first value that has one; double when integers and fractions occur."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if len(kinds) == 1 and list not in kinds:
        return _KIND_OF[kinds.pop()]
    first = next((kind for kind in map(_kind_of, values) if kind is not None), None)
    return AttributeType.DOUBLE if first is AttributeType.INT64 and float in kinds else first


def _fit(value: Any, kind: AttributeType) -> Any:
    """`value` as its column takes it; None when it does not fit."""
    if type(value) is list:
        if kind is AttributeType.STRINGS:
            return value if all(type(v) is str for v in value) else None
        if kind is AttributeType.NUMBERS:
            numbers = [_fit(v, AttributeType.DOUBLE) for v in value]
            return None if None in numbers else numbers
        return None
    if type(value) not in _FITTING[kind]:
        return None
    if kind is AttributeType.DOUBLE:
        return None if _is_huge(value) else float(value)
    return None if kind is AttributeType.INT64 and value not in _INT64 else value


def _is_huge(value: Any) -> bool:
    """Whether a number, or one in an array of numbers, rounds to infinity as a double."""
    if type(value) is list:
        return all(type(v) in (int, float) for v in value) and any(_is_huge(v) for v in value)
    try:
        return type(value) is int and math.isinf(float(value))
    except OverflowError:
        return True


# --- times -------------------------------------------------------------------------------------------

_RFC3339 = (
    r"^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))$"
)
_RFC3339_PYTHON = re.compile(_RFC3339.replace("$", r"\Z"))
_EARLIEST: Any = pa.scalar(datetime(1, 1, 1, tzinfo=UTC), AttributeType.TIMESTAMP.arrow)
_LATEST: Any = pa.scalar(datetime.max.replace(tzinfo=UTC), AttributeType.TIMESTAMP.arrow)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        for text in (column, pc.replace_substring_regex(column, r"(\.[0-9]{6})[0-9]+", r"\1")):
            try:
                times: Any = text.cast(target)
            except pa.ArrowInvalid:
                continue
            if pc.all(pc.and_(pc.greater_equal(times, _EARLIEST), pc.less_equal(times, _LATEST))).as_py():
                return times, []
    moments = [None if text is None else _moment(text) for text in column.to_pylist()]
    bad = [row for row, moment in enumerate(moments) if moment is None and column[row].is_valid]
    return pa.array(moments, target), bad


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


def _from_epoch(value: Any, unit: TimeUnit) -> datetime | None:
    if unit is TimeUnit.NONE or type(value) not in (int, float):
        return None
    try:
        microseconds = round(value * (1_000_000 if unit is TimeUnit.SECONDS else 1000))
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None
