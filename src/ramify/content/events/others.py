"""What no column of a batch holds: the values of each row that differ from their column, by path.

Owns the column `_others` of a batch: its Arrow type, and the way between it and Python values. A batch has
one column per attribute, of one type. Everything else that an event holds stands here, so no event is ever
refused for an attribute: an explicit null, a value of another type than its column, an array of mixed
types, the fields of objects in an array, attributes that have no column. A path of a row stands either in
its column or here, never in both.

One item is one value. The items of an array follow each other in the order of the event; an array without a
value is one item of kind EMPTY. `number` holds an integer, the bits of a double, a boolean, or microseconds
since 1970; `text` a string. The items of a row are sorted by path.

`place` says in which arrays of objects, and at which index of each, a value stands: pairs of (number of the
array within the event, index), flat, from the outside in. A value of a plain array has no place of its own:
only objects and arrays inside an array are told apart, as EventBridge does.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramify.content.events.attributes import OTHERS, AttributeValue, ElementKind, LeafList, Place, Scalar

__all__ = [
    "EMPTY",
    "OTHERS_TYPE",
    "ItemTable",
    "as_others",
    "end_to_end",
    "no_others",
    "other_paths",
    "others_in",
    "others_of_values",
    "values_of_others",
    "with_others",
]

ITEM = pa.struct(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("list", pa.bool_(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("place", pa.list_(pa.int32())),
    ]
)
OTHERS_TYPE = pa.list_(ITEM)
"""The type of the column `_others`."""

EMPTY = object()
"""Stands for an array that gives its path no value."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT64 = range(-(2**63), 2**63)


def other_paths(batch: pa.RecordBatch) -> frozenset[str]:
    """The paths at which some row of a batch has a value beside its columns."""
    at = batch.schema.get_field_index(OTHERS)
    if at < 0:
        return frozenset()
    items: Any = pc.list_flatten(batch.column(at))
    return frozenset(items.field("path").unique().to_pylist())


def others_of_values(rows: Iterable[Mapping[str, AttributeValue]]) -> "pa.Array[Any]":
    """The column for rows of path -> value. Python per value: for tests and single events."""
    return pa.array([[*_items(row)] for row in rows], OTHERS_TYPE)


def values_of_others(column: "pa.Array[Any]", path: str | None = None) -> list[dict[str, AttributeValue]]:
    """The inverse of `others_of_values`: an array whose values have places is a `LeafList`.

    With a `path`, of that path alone.
    """
    rows = ([*(items or ())] for items in column.to_pylist())
    if path is not None:
        rows = ([item for item in items if item["path"] == path] for items in rows)
    return [dict(_values(items)) for items in rows]


def with_others(batch: pa.RecordBatch, column: "pa.Array[Any] | None") -> pa.RecordBatch:
    """A batch with this column as its `_others`; without one where no row has an item."""
    if OTHERS in batch.schema.names:
        batch = batch.drop_columns([OTHERS])
    if column is None or not len(pc.list_flatten(column)):
        return batch
    return batch.append_column(pa.field(OTHERS, OTHERS_TYPE), column)


def others_in(batch: pa.RecordBatch) -> "pa.Array[Any] | None":
    """The column `_others` of a batch, if it has one."""
    return batch.column(OTHERS) if OTHERS in batch.schema.names else None


def no_others(rows: int) -> "pa.Array[Any]":
    """The column for rows that have no item."""
    offsets: Any = pa.array(np.zeros(rows + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], ITEM), type=OTHERS_TYPE)


def as_others(column: "pa.Array[Any]") -> "pa.Array[Any]":
    """A column with these items that has lost what Arrow's type says of them, as it does in Spark."""
    items: Any = pc.list_flatten(column)
    children = [items.field(f.name).cast(f.type) for f in ITEM]
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    plain: Any = pa.StructArray.from_arrays(children, fields=list(ITEM))
    return pa.ListArray.from_arrays(offsets, plain, type=OTHERS_TYPE)


def end_to_end(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema, end to end; some of them may have `_others`."""
    if len({OTHERS in batch.schema.names for batch in batches}) > 1:
        batches = [_with_room(batch) for batch in batches]
    whole: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    return whole


def _with_room(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the column `_others`, be it empty."""
    if OTHERS in batch.schema.names:
        return batch
    return batch.append_column(pa.field(OTHERS, OTHERS_TYPE), no_others(batch.num_rows))


_PLACES = pa.list_(pa.int32())
_Ints = NDArray[np.int64]


class ItemTable:
    """Items that are collected path by path, then made one column of `count` rows.

    Values of one type come in together, without Python per value. The elements of an array come one by one,
    in their order.
    """

    def __init__(self) -> None:
        # Items that came together: path, rows, whether elements of arrays, kind, numbers, texts.
        self._bulk: list[tuple[str, _Ints, bool, ElementKind, _Ints, pa.Array[Any] | None]] = []
        # Items that came one by one: path, row, list, kind, number, text, place.
        self._single: list[tuple[str, int, bool, int, int, str | None, list[int] | None]] = []
        # Items that were items before: rows, items.
        self._ready: list[tuple[_Ints, pa.Array[Any]]] = []

    def add(self, path: str, row: int, value: Any, place: Place | None = None) -> None:
        """Add one value: an element of an array if it has a place, be that empty."""
        flat = [part for step in place for part in step] if place else None
        if value is EMPTY:
            self._single.append((path, row, True, int(ElementKind.EMPTY), 0, None, None))
            return
        kind, number, text = _encoded(value)
        self._single.append((path, row, place is not None, int(kind), number, text, flat))

    def add_array(self, path: str, row: int, values: Iterable[Any]) -> None:
        """Add the elements of a plain array."""
        any_value = False
        for value in values:
            any_value = True
            self.add(path, row, value, ())
        if not any_value:
            self.add(path, row, EMPTY)

    def add_alike(
        self,
        path: str,
        rows: _Ints,
        kind: ElementKind,
        numbers: _Ints | None = None,
        texts: "pa.Array[Any] | None" = None,
        *,
        in_list: bool = False,
    ) -> None:
        """Add values of one kind, a row each; elements of one array follow each other."""
        numbers = np.zeros(len(rows), np.int64) if numbers is None else numbers
        self._bulk.append((path, rows, in_list, kind, numbers, texts))

    def add_column(self, path: str, rows: _Ints, values: Any) -> None:
        """Add values of an Arrow column without nulls, a row each. Arrays with nulls cost Python."""
        dtype = values.type
        if pa.types.is_list(dtype):
            self._add_lists(path, rows, values)
        elif pa.types.is_string(dtype):
            self.add_alike(path, rows, ElementKind.STRING, texts=values)
        else:
            kind, numbers = _numbers(values)
            self.add_alike(path, rows, kind, numbers)

    def _add_lists(self, path: str, rows: _Ints, lists: Any) -> None:
        elements: Any = pc.list_flatten(lists)
        if elements.null_count:
            for row, values in zip(rows.tolist(), lists.to_pylist(), strict=True):
                self.add_array(path, row, values)
            return
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        if (lengths == 0).any():
            self.add_alike(path, rows[lengths == 0], ElementKind.EMPTY, in_list=True)
        owners = np.repeat(rows, lengths)
        if pa.types.is_string(elements.type):
            self.add_alike(path, owners, ElementKind.STRING, texts=elements, in_list=True)
        else:
            kind, numbers = _numbers(elements)
            self.add_alike(path, owners, kind, numbers, in_list=True)

    def add_items(self, column: "pa.Array[Any]", keep: Iterable[str] | None = None) -> None:
        """Add the items of a whole column of this form, of some paths where those are given."""
        items: Any = pc.list_flatten(column)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(column)), lengths)
        if keep is not None:
            mask = pc.is_in(items.field("path"), value_set=pa.array(list(keep), pa.string()))
            rows, items = rows[mask.to_numpy(zero_copy_only=False)], items.filter(mask)
        if len(items):
            self._ready.append((rows, items))

    def column(self, count: int) -> "pa.Array[Any] | None":
        """The column; None when there is no item."""
        if self._ready:
            return self._sorted_with_ready(count)
        if not self._bulk and not self._single:
            return None
        names = sorted({part[0] for part in self._bulk} | {item[0] for item in self._single})
        rank = {name: k for k, name in enumerate(names)}
        ranks = np.concatenate(
            [
                np.repeat(np.array([rank[part[0]] for part in self._bulk], np.int64), self._sizes()),
                np.array([rank[item[0]] for item in self._single], np.int64),
            ]
        )
        rows, children = self._new_items()
        order = np.argsort(rows * len(names) + ranks, kind="stable")
        at = pa.array(order)
        paths: Any = pa.array(names, pa.string()).take(pa.array(ranks[order]))
        items = pa.StructArray.from_arrays(
            [paths, *(child.take(at) for child in children)], fields=list(ITEM)
        )
        return _lists_of(rows, items, count)

    def _sorted_with_ready(self, count: int) -> "pa.Array[Any]":
        """As `column`, where whole columns of this form are among the items."""
        parts = [*self._ready]
        if self._bulk or self._single:
            rows, children = self._new_items()
            named = [np.repeat(np.array([part[0] for part in self._bulk], object), self._sizes())]
            named.append(np.array([item[0] for item in self._single], object))
            paths: Any = pa.array(np.concatenate(named), pa.string())
            parts.append((rows, pa.StructArray.from_arrays([paths, *children], fields=list(ITEM))))
        rows = np.concatenate([part[0] for part in parts])
        items: Any = pa.concat_arrays([part[1] for part in parts])
        names = items.field("path").dictionary_encode()
        rank = np.empty(len(names.dictionary), np.int64)
        rank[pc.sort_indices(names.dictionary).to_numpy()] = np.arange(len(rank))
        order = np.argsort(rows * len(rank) + rank[names.indices.to_numpy()], kind="stable")
        return _lists_of(rows, items.take(pa.array(order)), count)

    def _sizes(self) -> list[int]:
        return [len(part[1]) for part in self._bulk]

    def _new_items(self) -> tuple[_Ints, list[Any]]:
        """The rows of what was added in bulk and one by one, and the fields of the items after the path."""
        bulk, single, sizes = self._bulk, self._single, self._sizes()

        def filled(values: list[Any], rest: list[Any], dtype: Any) -> NDArray[Any]:
            return np.concatenate([np.repeat(np.array(values, dtype), sizes), np.array(rest, dtype)])

        rows = np.concatenate([*(part[1] for part in bulk), np.array([i[1] for i in single], np.int64)])
        numbers = np.concatenate([*(part[4] for part in bulk), np.array([i[4] for i in single], np.int64)])
        texts = [pa.nulls(len(part[1]), pa.string()) if part[5] is None else part[5] for part in bulk]
        nowhere: Any = pa.nulls(sum(sizes), _PLACES)
        return rows, [
            pa.array(filled([part[2] for part in bulk], [i[2] for i in single], np.bool_)),
            pa.array(filled([int(part[3]) for part in bulk], [i[3] for i in single], np.int8)),
            pa.array(numbers),
            pa.concat_arrays([*texts, pa.array([i[5] for i in single], pa.string())]),
            pa.concat_arrays([nowhere, pa.array([i[6] for i in single], _PLACES)]),
        ]


def _lists_of(rows: _Ints, items: Any, count: int) -> "pa.Array[Any]":
    """Items in the order of their rows as a column of `count` rows."""
    ends = np.cumsum(np.bincount(rows, minlength=count))
    offsets: Any = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, items, type=OTHERS_TYPE)


def _numbers(values: Any) -> tuple[ElementKind, _Ints]:
    """What an Arrow column of numbers, booleans or times is, and how its values are written."""
    if pa.types.is_floating(values.type):
        return ElementKind.FLOAT, values.to_numpy(zero_copy_only=False).astype(np.float64).view(np.int64)
    kind = ElementKind.INT
    if pa.types.is_timestamp(values.type):
        kind = ElementKind.TIME
    elif pa.types.is_boolean(values.type):
        kind = ElementKind.BOOL
    return kind, values.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _items(row: Mapping[str, AttributeValue]) -> Iterator[dict[str, Any]]:
    for path, value in row.items():
        if not isinstance(value, tuple):
            yield _item(path, value, False, ())
            continue
        places = value.places if isinstance(value, LeafList) else ((),) * len(value)
        for element, place in zip(value, places, strict=True):
            yield _item(path, element, True, place)
        if not value:
            kind = int(ElementKind.EMPTY)
            yield {"path": path, "list": True, "kind": kind, "number": 0, "text": None, "place": None}


def _item(path: str, value: Scalar | None, in_list: bool, place: Place) -> dict[str, Any]:
    kind, number, text = _encoded(value)
    flat = [part for step in place for part in step] or None
    return {"path": path, "list": in_list, "kind": int(kind), "number": number, "text": text, "place": flat}


def _encoded(value: Scalar | None) -> tuple[ElementKind, int, str | None]:
    match value:
        case None:
            return ElementKind.NULL, 0, None
        case bool():
            return ElementKind.BOOL, int(value), None
        case int() if value in _INT64:
            return ElementKind.INT, value, None
        case int() | float():
            return ElementKind.FLOAT, struct.unpack("<q", struct.pack("<d", _double(value)))[0], None
        case datetime():
            return ElementKind.TIME, (value - _EPOCH) // _MICROSECOND, None
        case str():
            return ElementKind.STRING, 0, value


def _double(number: float) -> float:
    """A number as a double; beyond the largest it is infinite, so that it is above every other."""
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _values(items: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, AttributeValue]]:
    arrays: dict[str, tuple[list[Any], list[Place]]] = {}
    for item in items:
        if not item["list"]:
            yield item["path"], _decoded(item)
            continue
        elements, places = arrays.setdefault(item["path"], ([], []))
        if item["kind"] != ElementKind.EMPTY:
            elements.append(_decoded(item))
            flat = item["place"] or []
            places.append(tuple(zip(flat[::2], flat[1::2], strict=True)))
    for path, (elements, places) in arrays.items():
        yield path, LeafList(elements, places) if any(places) else tuple(elements)


def _decoded(item: Mapping[str, Any]) -> Scalar | None:
    number: int = item["number"]
    match item["kind"]:
        case ElementKind.INT:
            return number
        case ElementKind.FLOAT:
            double: float = struct.unpack("<d", struct.pack("<q", number))[0]
            return double
        case ElementKind.BOOL:
            return bool(number)
        case ElementKind.TIME:
            return _EPOCH + timedelta(microseconds=number)
        case ElementKind.STRING:
            text: str = item["text"]
            return text
    return None
