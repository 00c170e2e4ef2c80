"""What no column of a batch holds: the values of each row that differ from their column, by path.

Owns the column `_others` of a batch: its Arrow type, and the way between it and Python values. A batch has
one column per attribute, of one type. Everything else that an event holds stands here, so no event is ever
refused for an attribute: an explicit null, a value of another type than its column, an array of mixed
types, the fields of objects in an array, attributes that have no column. A path of a row stands either in
its column or here, never in both.

One item is one value. The items of an array follow each other in the order of the event; an array without a
value is one item of kind EMPTY. `number` holds an integer, the bits of a double, a boolean, or microseconds
since 1970; `text` a string. `place` says in which arrays of objects, and at which index of each, a value
stands: pairs of (number of the array within the event, index), flat, from the outside in. A value of a
plain array has no place of its own: only objects and arrays inside an array are told apart, as EventBridge
does.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from ramify.content.events.attributes import AttributeValue, ElementKind, LeafList, Place, Scalar

__all__ = ["OTHERS_TYPE", "others_of_values", "values_of_others"]

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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT64 = range(-(2**63), 2**63)


def others_of_values(rows: Iterable[Mapping[str, AttributeValue]]) -> "pa.Array[Any]":
    """The column for rows of path -> value. Python per value: for tests and single events."""
    return pa.array([[*_items(row)] for row in rows], OTHERS_TYPE)


def values_of_others(column: "pa.Array[Any]") -> list[dict[str, AttributeValue]]:
    """The inverse of `others_of_values`: an array whose values have places is a `LeafList`."""
    return [dict(_values(items or ())) for items in column.to_pylist()]


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
