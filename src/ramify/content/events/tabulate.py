"""From leaf columns to the columns of an event batch: inference, fitting, and what does not fit.

Owns the meaning of attribute types for JSON values, and the faults that a record has because of them: no
id, a wrong type, a bad time. A column whose values all have one JSON type, the usual case, is never looked
at value by value in Python; that is why a record can still be rejected after it was parsed.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramify.content.events.events import (
    CONTEXT_NAMES,
    AttributeType,
    DecodedBatch,
    EventSchema,
    RejectReason,
)
from ramify.content.events.leaves import Leaf, Leaves
from ramify.content.events.records import Fault, Records, spelled
from ramify.content.events.timestamps import TimeUnit, from_epoch, parse_timestamps

__all__ = ["MAX_ATTRIBUTES", "PLAIN", "FieldMapping", "ParsedRecords", "kind_of", "tabulate"]

MAX_ATTRIBUTES = 1024
"""Inference stops adding columns here: a log with a new key in every record must not make a batch of
rows x records cells. Paths seen later count as unaddressable. A given schema may be wider."""

_INT64 = range(-(2**63), 2**63)
_NONE = type(None)
_SLICE = 2048  # arrays whose elements are handled together


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
class ParsedRecords:
    """What a parser makes of records: the rows of `leaves`, and faults by record for those it refused.

    `index` says which record each row was. A row may have a fault too: its values must then be gone.
    `bodies` and `body_is_json` are by row; None says that each body is its record.
    """

    leaves: Leaves
    faults: dict[int, Fault]
    index: list[int] = field(default_factory=list)
    bodies: list[bytes | None] | None = None
    body_is_json: list[bool] | None = None


def tabulate(
    parsed: ParsedRecords,
    records: Records,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    inferred: bool = False,
) -> DecodedBatch:
    """The rows as a batch, without those that do not fit. O(cells + rows x columns).

    `inferred` says, for the messages only, that a given schema comes from earlier records.
    """
    assembly = _Assembly(parsed, mapping, inferred=inferred or schema is None)
    if schema is None:
        schema = assembly.inferred()
    context = [assembly.ids(records), assembly.publishers(), assembly.times()]
    columns = [assembly.column(path, kind) for path, kind in schema.attributes.items()]
    arrays = [*context, *assembly.payload(records), *columns]
    unaddressable = assembly.unaddressable(schema)
    if parsed.faults:
        kept = pa.array(assembly.kept())
        arrays = [array.filter(kept) for array in arrays]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    return DecodedBatch(batch, records.rejected(parsed.faults), unaddressable)


class _Assembly:
    """Turns leaf columns into Arrow columns, and collects what does not fit."""

    def __init__(self, parsed: ParsedRecords, mapping: FieldMapping, *, inferred: bool) -> None:
        self.parsed = parsed
        self.leaves = parsed.leaves.columns
        self.count = len(parsed.index)
        self.mapping = mapping
        # Whether the types come from the records, for the message.
        self.types_are_inferred = inferred
        # Values in paths with a column that have no type: (path, row).
        self.untyped: list[tuple[str, int]] = []

    def inferred(self) -> EventSchema:
        """The schema of the rows themselves."""
        hidden = CONTEXT_NAMES | {""}
        found = {path: _infer(leaf) for path, leaf in self.leaves.items() if path not in hidden}
        kinds = {path: kind for path, kind in found.items() if kind is not None}
        if len(kinds) > MAX_ATTRIBUTES:
            first = {path: _first_typed(self.leaves[path]) for path in kinds}
            kinds = {path: kinds[path] for path in sorted(kinds, key=first.__getitem__)[:MAX_ATTRIBUTES]}
        return EventSchema(kinds)

    def ids(self, records: Records) -> "pa.Array[Any]":
        """The id column: strings, integers as strings, or made from source and line."""
        path = self.mapping.id
        if path is None:
            name = records.source or "record"
            numbers = records.lines or range(records.first, records.first + len(records.raw))
            return pa.array([f"{name}:{numbers[i]}" for i in self.parsed.index], pa.string())
        values = self._names(path)
        if all(values):
            return pa.array(values, pa.string())
        text = f"the record has no {path!r}; give it a non-empty string"
        for row, value in enumerate(values):
            if not value:
                self._reject(row, RejectReason.NO_ID, text)
        return pa.array([value or "" for value in values], pa.string())

    def publishers(self) -> "pa.Array[Any]":
        """The publisher column; null where the record has none."""
        path = self.mapping.publisher
        return pa.array([None] * self.count if path is None else self._names(path), pa.string())

    def times(self) -> "pa.Array[Any]":
        """The time column: RFC 3339 strings, and numbers when the mapping names their unit."""
        path, unit = self.mapping.time, self.mapping.time_unit
        leaf = None if path is None else self.leaves.get(path)
        if leaf is None:
            return pa.array([None] * self.count, AttributeType.TIMESTAMP.arrow)
        values = leaf.dense(self.count)
        column, bad = parse_timestamps(_texts(values, leaf.kinds))
        numbers = [] if leaf.kinds <= {str, _NONE} else _others(values)
        moments = column.to_pylist() if numbers else []
        for row in numbers:
            moments[row] = from_epoch(values[row], unit)
        hint = "" if unit is not TimeUnit.NONE else "; for numbers, name the time unit"
        for row in bad:
            text = f"{path!r} is {spelled(values[row])}, not an RFC 3339 time"
            self._reject(row, RejectReason.BAD_TIME, text)
        for row in numbers:
            if moments[row] is None:
                text = f"{path!r} is {spelled(values[row])}, not an RFC 3339 time{hint}"
                self._reject(row, RejectReason.BAD_TIME, text)
        return pa.array(moments, AttributeType.TIMESTAMP.arrow) if numbers else column

    def payload(self, records: Records) -> "list[pa.Array[Any]]":
        """The reserved columns."""
        index, bodies, are_json = self.parsed.index, self.parsed.bodies, self.parsed.body_is_json
        raw = [records.raw[i] for i in index]
        return [
            pa.array(np.fromiter(map(len, raw), np.int64, len(raw))),
            pa.array(raw if bodies is None else bodies, pa.binary()),
            pa.array([True] * len(raw) if are_json is None else are_json, pa.bool_()),
            self._nulls(),
        ]

    def _nulls(self) -> "pa.Array[Any]":
        """The sorted paths of each row that have an explicit null."""
        hidden = self.mapping.shadowed
        paths = sorted(p for p, leaf in self.leaves.items() if _NONE in leaf.kinds and p not in hidden)
        rows = [self.leaves[path].rows[self.leaves[path].nulls()] for path in paths]
        names = np.repeat(np.arange(len(paths)), list(map(len, rows)))
        where = np.concatenate([np.zeros(0, np.int64), *rows])
        names = names[np.argsort(where, kind="stable")]
        values: Any = pa.array(paths, pa.string()).take(pa.array(names, pa.int64()))
        return _lists(np.bincount(where, minlength=self.count), values)

    def column(self, path: str, kind: AttributeType) -> "pa.Array[Any]":
        """One attribute's column; the rows that do not fit are rejected and null."""
        leaf = self.leaves.get(path, _EMPTY)
        column = self._typed(path, kind, leaf)
        rows = leaf.rows
        if len(rows) == self.count and bool((rows[1:] > rows[:-1]).all()):
            return column
        places = np.full(self.count, -1)
        places[rows] = np.arange(len(rows))
        return column.take(pa.array(places, mask=places < 0))

    def kept(self) -> NDArray[np.bool_]:
        """Which rows have no fault."""
        faults = self.parsed.faults
        return np.fromiter((i not in faults for i in self.parsed.index), np.bool_, self.count)

    def unaddressable(self, schema: EventSchema) -> dict[str, int]:
        """How many values of the kept rows no filter can reach, by path."""
        counts: Counter[str] = Counter()
        known = schema.attributes.keys() | (CONTEXT_NAMES - self.mapping.shadowed)
        kept = self.kept() if self.parsed.faults else None
        for path in self.leaves.keys() - known:
            leaf = self.leaves[path]
            if kept is not None and _NONE in leaf.kinds:
                counts[path] = int((~leaf.nulls() & kept[leaf.rows]).sum())
            elif kept is not None:
                counts[path] = int(kept[leaf.rows].sum())
            else:
                counts[path] = len(leaf.values) - leaf.values.count(None)
        counts.update(path for path, row in self.untyped if kept is None or kept[row])
        return {path: count for path, count in sorted(counts.items()) if count}

    def _typed(self, path: str, kind: AttributeType, leaf: Leaf) -> "pa.Array[Any]":
        if kind is AttributeType.TIMESTAMP:
            return self._timestamps(path, leaf)
        if leaf.kinds - {_NONE} <= _FITTING[kind]:
            try:
                column = _arrays(leaf, kind) if kind in _ELEMENT else pa.array(leaf.values, kind.arrow)
            except (pa.ArrowInvalid, OverflowError):
                column = None  # an integer that is beyond its column, or needs rounding: find out which
            if column is not None:
                return column
        fitted = [
            None if value is None else self._fitted(row, path, value, kind)
            for row, value in zip(leaf.rows.tolist(), leaf.values, strict=True)
        ]
        return pa.array(fitted, kind.arrow)

    def _fitted(self, row: int, path: str, value: Any, kind: AttributeType) -> Any:
        fitted = _fit(value, kind)
        if fitted is not None:
            return fitted
        if type(value) is list and kind_of(value) is None:
            self.untyped.append((path, row))
        elif kind in _NUMERIC and _is_huge(value):
            self._reject(row, RejectReason.NOT_FINITE, f"{path!r} is beyond the largest double")
        else:
            why = " (the type of its first value in this input)" if self.types_are_inferred else ""
            limit = ", and within 64 bits" if kind is AttributeType.INT64 and type(value) is int else ""
            text = f"{path!r} is {spelled(value)}; it must be {kind}{why}{limit}"
            self._reject(row, RejectReason.WRONG_TYPE, text)
        return None

    def _timestamps(self, path: str, leaf: Leaf) -> "pa.Array[Any]":
        rows, values = leaf.rows.tolist(), leaf.values
        column, bad = parse_timestamps(_texts(values, leaf.kinds))
        for k in sorted({*bad, *_others(values)}):
            if type(values[k]) is list and kind_of(values[k]) is None:
                self.untyped.append((path, rows[k]))
                continue
            text = f"{path!r} is {spelled(values[k])}; it must be an RFC 3339 time"
            self._reject(rows[k], RejectReason.WRONG_TYPE, text)
        return column

    def _names(self, path: str) -> list[str | None]:
        """The values of an identifying field as strings: integers are common there and mean the same."""
        leaf = self.leaves.get(path, _EMPTY)
        if leaf.kinds <= {str, _NONE}:
            return leaf.dense(self.count)
        values = list(leaf.dense(self.count))
        for row, value in enumerate(values):
            if type(value) is int and value in _INT64:
                values[row] = str(value)
            elif value is not None and type(value) is not str:
                text = f"{path!r} is {spelled(value)}; it must be a string or an integer of 64 bits"
                self._reject(row, RejectReason.WRONG_TYPE, text)
                values[row] = None
        return values

    def _reject(self, row: int, reason: RejectReason, detail: str) -> None:
        self.parsed.faults.setdefault(self.parsed.index[row], (reason, detail))


# --- values and their types --------------------------------------------------------------------------

_EMPTY = Leaf()
_NUMERIC = frozenset({AttributeType.INT64, AttributeType.DOUBLE, AttributeType.NUMBERS})
_ELEMENT = {
    AttributeType.STRINGS: AttributeType.STRING,
    AttributeType.NUMBERS: AttributeType.DOUBLE,
}
_FITTING: dict[AttributeType, frozenset[type]] = {
    AttributeType.STRING: frozenset({str}),
    AttributeType.INT64: frozenset({int}),
    AttributeType.DOUBLE: frozenset({int, float}),
    AttributeType.BOOLEAN: frozenset({bool}),
    AttributeType.STRINGS: frozenset({list}),
    AttributeType.NUMBERS: frozenset({list}),
}
_KIND_OF: dict[type, AttributeType] = {
    str: AttributeType.STRING,
    int: AttributeType.INT64,
    float: AttributeType.DOUBLE,
    bool: AttributeType.BOOLEAN,
}


def _texts(values: list[Any], kinds: set[type]) -> list[str | None]:
    return values if kinds <= {str, _NONE} else [v if type(v) is str else None for v in values]


def _others(values: Iterable[Any]) -> list[int]:
    """Where neither strings nor nulls are."""
    return [k for k, value in enumerate(values) if value is not None and type(value) is not str]


def _arrays(leaf: Leaf, kind: AttributeType) -> "pa.Array[Any] | None":
    """A column of arrays, unless one has an element that does not fit.

    Built from the elements of many arrays at once, since Arrow takes longer for a list of lists, but not of
    all: the elements are looked at several times and should still be in the cache.
    """
    dtype, fitting = _ELEMENT[kind].arrow, _FITTING[_ELEMENT[kind]]
    arrays = [value or () for value in leaf.values] if _NONE in leaf.kinds else leaf.values
    parts: list[pa.Array[Any]] = [pa.array([], dtype)]
    lengths = [np.zeros(0, np.int64)]
    for start in range(0, len(arrays), _SLICE):
        some = arrays[start : start + _SLICE]
        elements = list(chain.from_iterable(some))
        if not set(map(type, elements)) <= fitting:
            return None
        lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
        parts.append(pa.array(elements, dtype))
    nulls = leaf.nulls() if _NONE in leaf.kinds else None
    return _lists(np.concatenate(lengths), pa.concat_arrays(parts), nulls)


def _lists(
    lengths: NDArray[np.int64], elements: "pa.Array[Any]", nulls: NDArray[np.bool_] | None = None
) -> "pa.Array[Any]":
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, mask=None if nulls is None else pa.array(nulls))


def kind_of(value: Any) -> AttributeType | None:
    """The type that one JSON value suggests; None for null, empty arrays and arrays of no one type."""
    if type(value) is not list:
        return _KIND_OF.get(type(value))
    kinds = set(map(type, value))
    if not kinds:
        return None
    if kinds == {str}:
        return AttributeType.STRINGS
    return AttributeType.NUMBERS if kinds <= {int, float} else None


def _infer(leaf: Leaf) -> AttributeType | None:
    """The type of the first value that has one; double when integers and fractions occur."""
    kinds = leaf.kinds - {_NONE}
    if len(kinds) == 1 and list not in kinds:
        return _KIND_OF[next(iter(kinds))]
    if not kinds:
        return None
    first = next((kind for kind in map(kind_of, leaf.in_order()) if kind is not None), None)
    if first is None and [] in leaf.values:
        # nothing tells the element type; absent would be wrong, since an empty array is not NULL
        return AttributeType.STRINGS
    return AttributeType.DOUBLE if first is AttributeType.INT64 and float in kinds else first


def _first_typed(leaf: Leaf) -> int:
    """The first row with a value that has a type."""
    if leaf.kinds.isdisjoint({_NONE, list}):
        return leaf.first_row()
    typed = [kind_of(value) is not None for value in leaf.values]
    if not any(typed):
        typed = [value == [] for value in leaf.values]
    return int(leaf.rows[typed].min())


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
