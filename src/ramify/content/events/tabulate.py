"""From leaf columns to the columns of an event batch: inference, and what has no place in a column.

Owns which attributes have a column, and the faults that a record has because of the fields that are its id,
publisher and time. An attribute is no fault: what has no place in its column is in `_others` (see `kinds`
for what fits). A column whose values all have one JSON type, the usual case, is never looked at value by
value in Python; that is why a record can still be rejected after it was parsed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramify.content.events.attributes import (
    CONTEXT_NAMES,
    RESERVED_NAMES,
    TEXT_MARK,
    AttributeType,
    ElementKind,
    RejectReason,
    text_path,
)
from ramify.content.events.events import DecodedBatch, EventSchema
from ramify.content.events.kinds import add_misfits, common_kind, fit, list_array
from ramify.content.events.leaves import Leaf, Leaves
from ramify.content.events.others import ItemTable, with_others
from ramify.content.events.records import Fault, Records, spelled
from ramify.content.events.timestamps import TimeUnit, from_epoch, parse_timestamps, written_otherwise

__all__ = ["MAX_ATTRIBUTES", "PLAIN", "FieldMapping", "ParsedRecords", "tabulate"]

MAX_ATTRIBUTES = 1024
"""Inference stops adding columns here: a log with a new key in every record must not make a batch of
rows x records cells. Paths seen later are in `_others`. A given schema may be wider."""

_FEW = 8  # values that are put into `_others` one by one
_INT64 = range(-(2**63), 2**63)
_NONE = type(None)


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
    def paths(self) -> frozenset[str]:
        """The fields that are named."""
        return frozenset(path for path in (self.id, self.publisher, self.time) if path is not None)

    @property
    def shadowed(self) -> frozenset[str]:
        """Paths that no filter can reach: their name is that of a column for another field."""
        return CONTEXT_NAMES - {name for name in CONTEXT_NAMES if getattr(self, name) == name}


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
    most_columns: int = MAX_ATTRIBUTES,
) -> DecodedBatch:
    """The rows as a batch, without those that have no usable id, publisher or time.

    A path has the type that the schema says; without a schema, that of most of its values, for at most
    `most_columns` paths. O(cells + rows x columns).
    """
    assembly = _Assembly(parsed, mapping)
    unreachable = assembly.take_unreachable()
    if schema is None:
        schema = assembly.inferred(most_columns)
    context = [assembly.ids(records), assembly.publishers(), assembly.times()]
    columns = [assembly.column(path, kind) for path, kind in schema.attributes.items()]
    arrays = [*context, *assembly.payload(records), *columns]
    others = assembly.others(schema)
    batch = with_others(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow), others)
    if parsed.faults:
        kept = assembly.kept()
        batch = batch.filter(pa.array(kept))
        if others is not None:
            batch = with_others(batch, others.filter(pa.array(kept)))
        unreachable = {path: rows[kept[rows]] for path, rows in unreachable.items()}
    counts = {path: len(rows) for path, rows in sorted(unreachable.items()) if len(rows)}
    return DecodedBatch(batch, records.rejected(parsed.faults), counts)


class _Assembly:
    """Turns leaf columns into Arrow columns, and collects what has no place in one."""

    def __init__(self, parsed: ParsedRecords, mapping: FieldMapping) -> None:
        self.parsed = parsed
        self.leaves = parsed.leaves.columns
        self.elements = parsed.leaves.elements
        self.count = len(parsed.index)
        self.mapping = mapping
        self.items = ItemTable()

    def take_unreachable(self) -> dict[str, NDArray[np.int64]]:
        """Forget the values that no filter can name; the rows of each, by path."""
        found: dict[str, NDArray[np.int64]] = {}
        shadowed = self.mapping.shadowed - self.mapping.paths
        for path in [p for p in {*self.leaves, *self.elements} if p in shadowed or p.endswith(TEXT_MARK)]:
            leaf, elements = self.leaves.pop(path, None), self.elements.pop(path, None)
            rows = [] if leaf is None else leaf.rows[~leaf.nulls()].tolist()
            rows += [] if elements is None else elements.rows
            found[path] = np.unique(np.array(rows, np.int64))
        return found

    def inferred(self, most: int) -> EventSchema:
        """The schema of the rows themselves."""
        hidden = CONTEXT_NAMES | RESERVED_NAMES | {""}
        found = {path: common_kind(leaf) for path, leaf in self.leaves.items() if path not in hidden}
        kinds = {path: kind for path, kind in found.items() if kind is not None}
        if len(kinds) > most:
            first = {path: _first_typed(self.leaves[path]) for path in kinds}
            kinds = {path: kinds[path] for path in sorted(kinds, key=first.__getitem__)[:most]}
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
        self._reject_elements(path, RejectReason.BAD_TIME, "an RFC 3339 time")
        if leaf is None:
            return pa.array([None] * self.count, AttributeType.TIMESTAMP.arrow)
        values = leaf.dense(self.count)
        texts = _texts(values, leaf.kinds)
        column, bad = parse_timestamps(texts)
        self._keep_texts("time", np.arange(self.count), texts, column)
        numbers = [] if leaf.kinds <= {str, _NONE} else _no_texts(values)
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
        return list_array(np.bincount(where, minlength=self.count), values)

    def column(self, path: str, kind: AttributeType) -> "pa.Array[Any]":
        """One attribute's column; what does not fit is noted for `_others`."""
        leaf = self.leaves.get(path)
        if leaf is None:
            return pa.nulls(self.count, kind.arrow)  # type: ignore[call-overload, no-any-return]
        rows = leaf.rows
        if kind is AttributeType.TIMESTAMP:
            column, bad = self._timestamps(path, leaf, rows)
            if bad is not None:
                add_misfits(self.items, path, leaf, rows, bad)
        else:
            column, chosen = fit(leaf, kind)
            if chosen is not None:
                add_misfits(self.items, path, leaf, rows, ~chosen)
                rows = rows[chosen]
        if len(rows) == self.count and bool((rows[1:] > rows[:-1]).all()):
            return column
        places = np.full(self.count, -1)
        places[rows] = np.arange(len(rows))
        return column.take(pa.array(places, mask=places < 0))

    def others(self, schema: EventSchema) -> "pa.Array[Any] | None":
        """The column of all that no other column holds, once those are made."""
        for path in self.leaves.keys() - schema.attributes.keys() - CONTEXT_NAMES:
            self._add_rest(path, self.leaves[path])
        for path in self.elements.keys() - CONTEXT_NAMES:
            for row, value, place in self.elements[path].items():
                self.items.add(path, row, value, place)
        return self.items.column(self.count)

    def _add_rest(self, path: str, leaf: Leaf) -> None:
        """Note the values of an attribute without a column."""
        if len(leaf.values) >= _FEW:
            add_misfits(self.items, path, leaf, leaf.rows)
            return
        for row, value in zip(leaf.rows.tolist(), leaf.values, strict=True):
            if type(value) is list:
                self.items.add_array(path, row, value)
            elif value is not None:
                self.items.add(path, row, value)

    def kept(self) -> NDArray[np.bool_]:
        """Which rows have no fault."""
        faults = self.parsed.faults
        return np.fromiter((i not in faults for i in self.parsed.index), np.bool_, self.count)

    def _timestamps(
        self, path: str, leaf: Leaf, rows: NDArray[np.int64]
    ) -> "tuple[pa.Array[Any], NDArray[np.bool_] | None]":
        texts = _texts(leaf.values, leaf.kinds)
        column, unreadable = parse_timestamps(texts)
        self._keep_texts(path, rows, texts, column)
        bad = np.zeros(len(rows), np.bool_)
        bad[[*unreadable, *_no_texts(leaf.values)]] = True
        return column, bad if bad.any() else None

    def _keep_texts(self, path: str, rows: NDArray[np.int64], texts: Any, times: "pa.Array[Any]") -> None:
        """Note the text of each time that was not written in the canonical form: patterns compare it."""
        name = text_path(path)
        if not self.parsed.leaves.keeps(name):
            return
        other = written_otherwise(texts, times)
        if other.any():
            found = pa.array(list(compress(texts, other.tolist())), pa.string())
            self.items.add_alike(name, rows[other], ElementKind.STRING, texts=found)

    def _reject_elements(self, path: str | None, reason: RejectReason, wanted: str) -> None:
        """An array of objects is no id, publisher or time."""
        if path in self.elements:
            for row in self.elements[path].rows:
                self._reject(row, reason, f"{path!r} is an array; it must be {wanted}")

    def _names(self, path: str) -> list[str | None]:
        """The values of an identifying field as strings: integers are common there and mean the same."""
        leaf = self.leaves.get(path, _EMPTY)
        self._reject_elements(path, RejectReason.WRONG_TYPE, "a string or an integer of 64 bits")
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


_EMPTY = Leaf()


def _texts(values: list[Any], kinds: set[type]) -> list[str | None]:
    return values if kinds <= {str, _NONE} else [v if type(v) is str else None for v in values]


def _no_texts(values: Iterable[Any]) -> list[int]:
    """Where neither strings nor nulls are."""
    return [k for k, value in enumerate(values) if value is not None and type(value) is not str]


def _first_typed(leaf: Leaf) -> int:
    """The first row with a value."""
    return leaf.first_row() if _NONE not in leaf.kinds else int(leaf.rows[~leaf.nulls()].min())
