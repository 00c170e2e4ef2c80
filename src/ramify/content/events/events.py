"""What an event is, as one value and as a row of an Arrow record batch.

Owns the attribute types, the schema of a batch, the conversion between `Event` values and batches, and the
form in which decoders report what they could not use (`RejectedRecord`, `DecodedBatch`). It reads no JSON
and no file: see `flatten`, `cloudevents` and `readers`.

A batch has the fixed columns of `FIXED_COLUMNS` first, then one flat column per attribute, named by its
dotted path and sorted by name, so that equal schemas give equal Arrow schemas. Arrow's null means "absent";
a path whose JSON value was an explicit null is listed in `_nulls`, with or without a column of its own.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import pyarrow as pa

from ramify.errors import SchemaError

__all__ = [
    "BODY",
    "BODY_IS_JSON",
    "CONTEXT_NAMES",
    "FIXED_COLUMNS",
    "NULLS",
    "RESERVED_NAMES",
    "SIZE_BYTES",
    "AttributeType",
    "AttributeValue",
    "DecodedBatch",
    "Event",
    "EventSchema",
    "RejectReason",
    "RejectedRecord",
    "batch_to_events",
    "events_to_batch",
]

AttributeValue: TypeAlias = str | int | float | bool | datetime | tuple[str, ...] | tuple[float, ...] | None

_TIMESTAMP = pa.timestamp("us", tz="UTC")

SIZE_BYTES = "_size_bytes"
BODY = "_body"
BODY_IS_JSON = "_body_is_json"
NULLS = "_nulls"

_FIXED: "list[pa.Field[Any]]" = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("publisher", pa.string()),
    pa.field("time", _TIMESTAMP),
    pa.field(SIZE_BYTES, pa.int64(), nullable=False),
    pa.field(BODY, pa.binary()),
    pa.field(BODY_IS_JSON, pa.bool_(), nullable=False),
    pa.field(NULLS, pa.list_(pa.string()), nullable=False),
]

FIXED_COLUMNS = pa.schema(_FIXED)
"""The columns that open every batch."""

CONTEXT_NAMES = frozenset({"id", "publisher", "time"})
"""Fixed columns that a filter may name as if they were attributes."""

RESERVED_NAMES = frozenset({SIZE_BYTES, BODY, BODY_IS_JSON, NULLS})
"""Fixed columns that no filter may name and no record may use as a top-level field."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class AttributeType(StrEnum):
    """The type of an attribute: what a filter may compare it with.

    `NUMBERS` exists because EventBridge patterns match the elements of an array.
    """

    STRING = "string"
    INT64 = "int64"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    STRINGS = "array<string>"
    NUMBERS = "array<double>"

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of this attribute's column."""
        return _ARROW[self]

    @classmethod
    def of_arrow(cls, dtype: pa.DataType) -> Self:
        """The attribute type that values of `dtype` can be turned into without loss.

        Unsigned 64-bit integers count as `INT64`, although single values may not fit. Decimals are
        integers when they have no fraction and at most 18 digits, and doubles up to 15 digits, which
        survive the way there and back.

        Raises
        ------
        SchemaError
            When there is none: binary, structs, maps, times of day, durations, long decimals.
        """
        found = _of_arrow(dtype)
        if found is None:
            raise SchemaError(f"no attribute type holds Arrow's {dtype}; allowed: {', '.join(cls)}")
        return cls(found)


_ARROW: dict[AttributeType, pa.DataType] = {
    AttributeType.STRING: pa.string(),
    AttributeType.INT64: pa.int64(),
    AttributeType.DOUBLE: pa.float64(),
    AttributeType.BOOLEAN: pa.bool_(),
    AttributeType.TIMESTAMP: _TIMESTAMP,
    AttributeType.STRINGS: pa.list_(pa.string()),
    AttributeType.NUMBERS: pa.list_(pa.float64()),
}


@dataclass(frozen=True, eq=True)
class EventSchema:
    """The attributes that a batch has columns for: dotted path -> type. Immutable, hashable, picklable.

    Raises
    ------
    SchemaError
        For an empty path, or a path that is the name of a fixed column.
    """

    attributes: Mapping[str, AttributeType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.attributes:
            if not path:
                raise SchemaError("an attribute has an empty path; give it a name")
            if path in CONTEXT_NAMES or path in RESERVED_NAMES:
                raise SchemaError(
                    f"the attribute {path!r} has the name of a fixed column; leave it out of the schema"
                    + (" (it can be filtered without)" if path in CONTEXT_NAMES else " or rename it")
                )
        ordered = {path: AttributeType(self.attributes[path]) for path in sorted(self.attributes)}
        object.__setattr__(self, "attributes", MappingProxyType(ordered))

    def __hash__(self) -> int:
        return hash(tuple(self.attributes.items()))

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, AttributeType]]]:
        # A mapping proxy cannot be pickled, and Spark ships schemas inside closures.
        return type(self), (dict(self.attributes),)

    @property
    def arrow(self) -> pa.Schema:
        """The schema of a batch: the fixed columns, then the attributes by name."""
        columns = [pa.field(path, kind.arrow) for path, kind in self.attributes.items()]
        return pa.schema([*FIXED_COLUMNS, *columns])

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch | pa.Table | pa.Schema) -> Self:
        """The attributes of an event batch, from its columns after the fixed ones."""
        schema = batch if isinstance(batch, pa.Schema) else batch.schema
        missing = [name for name in FIXED_COLUMNS.names if name not in schema.names]
        if missing:
            raise SchemaError(f"not an event batch: it has no column {', '.join(missing)}")
        fixed = set(FIXED_COLUMNS.names)
        return cls({f.name: AttributeType.of_arrow(f.type) for f in schema if f.name not in fixed})

    def merge(self, other: "EventSchema") -> "EventSchema":
        """The attributes of both; int64 and double meet in double.

        Raises
        ------
        SchemaError
            When a path has two other types.
        """
        merged = dict(self.attributes)
        for path, kind in other.attributes.items():
            wider = widen(merged.get(path, kind), kind)
            if wider is None:
                raise SchemaError(
                    f"the attribute {path!r} is {merged[path]} on one side and {kind} on the other; "
                    "give both the same type, or rename one"
                )
            merged[path] = wider
        return EventSchema(merged)

    def to_json(self) -> str:
        """A JSON object of path -> type name, sorted, so equal schemas give equal text."""
        return json.dumps(dict(self.attributes), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` writes.

        Raises
        ------
        SchemaError
            When the text is not such an object, or names a type that does not exist.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the schema is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise SchemaError('the schema must be a JSON object such as {"price": "double"}')
        attributes = {}
        for path, name in found.items():
            if not isinstance(name, str) or name not in _TYPE_NAMES:
                raise SchemaError(
                    f"the attribute {path!r} has the unknown type {name!r}; "
                    f"allowed: {', '.join(AttributeType)}"
                )
            attributes[path] = AttributeType(name)
        return cls(attributes)


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    `attributes` are flat dotted paths; None is an explicit null, an absent path is absent. `publisher` is
    the publishing client. `body` is handed back unread; `body_is_json` says that it is JSON text.
    """

    id: str
    publisher: str | None = None
    time: datetime | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    body: bytes | None = None
    size_bytes: int = 0
    body_is_json: bool = False

    @property
    def values(self) -> Mapping[str, AttributeValue]:
        """What filters look at: the attributes, and id, publisher and time where the event has them."""
        fixed = {"id": self.id, "publisher": self.publisher, "time": self.time}
        return {**self.attributes, **{name: value for name, value in fixed.items() if value is not None}}


class RejectReason(StrEnum):
    """Why a record was not used: one code per thing that a user would fix differently."""

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_ID = "no_id"
    DUPLICATE_KEY = "duplicate_key"
    CONFLICTING_PATHS = "conflicting_paths"
    WRONG_TYPE = "wrong_type"
    NOT_FINITE = "not_finite"
    TOO_LARGE = "too_large"
    TOO_DEEP = "too_deep"
    RESERVED_NAME = "reserved_name"
    BAD_UTF8 = "bad_utf8"
    BAD_TIME = "bad_time"
    BAD_CLOUDEVENT = "bad_cloudevent"


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that could not become an event.

    `position` counts the records of the whole input from 0, `line` its lines from 1. `detail` is a
    sentence for people; `raw` holds the first 256 bytes, empty where there are none (Parquet).
    """

    position: int
    reason: RejectReason
    detail: str
    line: int | None = None
    source: str | None = None
    raw: bytes = b""


@dataclass
class DecodedBatch:
    """What became of some records: every one is either a row of `batch` or in `rejected`.

    `unaddressable` counts, per path, the values that have no column and so can be reached by no filter:
    arrays of objects, mixed arrays, fields outside the schema. They are still in the body.
    """

    batch: pa.RecordBatch
    rejected: list[RejectedRecord] = field(default_factory=list)
    unaddressable: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """How many records went in."""
        return self.batch.num_rows + len(self.rejected)


def events_to_batch(events: Iterable[Event], schema: EventSchema | None = None) -> pa.RecordBatch:
    """The events as one batch, in order. Without a schema, the narrowest one that holds them all.

    An empty tuple says nothing about its element type: it becomes absent when neither the schema nor
    another event knows the type.

    Raises
    ------
    SchemaError
        When a value does not fit its column, is not finite, or has no column in a given schema.
    """
    events = list(events)
    if schema is None:
        schema = _infer(events)
    columns: dict[str, list[Any]] = {path: [None] * len(events) for path in schema.attributes}
    nulls: list[list[str]] = []
    for row, event in enumerate(events):
        if not isinstance(event.id, str) or not event.id:
            raise SchemaError(f"event {row} has no id; give it a non-empty string")
        null_paths = []
        for path, value in event.attributes.items():
            if not path or path in _FIXED_NAMES:
                raise SchemaError(f"event {event.id!r}: no attribute can be called {path!r}; rename it")
            if value is None:
                null_paths.append(path)
            elif path in columns:
                columns[path][row] = _fitted(value, schema.attributes[path], path, event.id)
            elif value != ():
                raise SchemaError(
                    f"event {event.id!r} has the attribute {path!r}, which the schema has not; "
                    "add it to the schema or leave the schema out"
                )
        nulls.append(sorted(null_paths))
    fixed: list[list[Any]] = [
        [e.id for e in events],
        [e.publisher for e in events],
        [None if e.time is None else _utc(e.time, "time", e.id) for e in events],
        [e.size_bytes for e in events],
        [e.body for e in events],
        [e.body_is_json for e in events],
        nulls,
    ]
    arrow = schema.arrow
    try:
        arrays = [
            pa.array(values, type=f.type)
            for values, f in zip([*fixed, *columns.values()], arrow, strict=True)
        ]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"an event does not fit its columns: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def batch_to_events(batch: pa.RecordBatch) -> list[Event]:
    """The rows of a batch as values, in order: the inverse of `events_to_batch`. Python per cell."""
    attributes = EventSchema.of_batch(batch).attributes
    flat: list[dict[str, AttributeValue]] = [{} for _ in range(batch.num_rows)]
    for path, kind in attributes.items():
        is_array = kind in (AttributeType.STRINGS, AttributeType.NUMBERS)
        for row, value in enumerate(batch.column(path).to_pylist()):
            if value is not None:
                flat[row][path] = tuple(value) if is_array else value
    for row, paths in enumerate(batch.column(NULLS).to_pylist()):
        flat[row].update(dict.fromkeys(paths or ()))
    fixed = [batch.column(name).to_pylist() for name in FIXED_COLUMNS.names[:6]]
    return [
        Event(
            id=id_,
            publisher=publisher,
            time=time,
            attributes=attrs,
            body=body,
            size_bytes=size_bytes,
            body_is_json=body_is_json,
        )
        for id_, publisher, time, size_bytes, body, body_is_json, attrs in zip(*fixed, flat, strict=True)
    ]


def widen(one: AttributeType, other: AttributeType) -> AttributeType | None:
    """The type that holds the values of both, or None when there is none."""
    if one is other:
        return one
    if {one, other} == {AttributeType.INT64, AttributeType.DOUBLE}:
        return AttributeType.DOUBLE
    return None


_FIXED_NAMES = CONTEXT_NAMES | RESERVED_NAMES
_TYPE_NAMES = frozenset(kind.value for kind in AttributeType)


def _of_arrow(dtype: pa.DataType) -> AttributeType | None:
    types = pa.types
    if types.is_dictionary(dtype):
        return _of_arrow(dtype.value_type)
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        return AttributeType.STRING
    if types.is_integer(dtype):
        return AttributeType.INT64
    if types.is_floating(dtype):
        return AttributeType.DOUBLE
    if types.is_boolean(dtype):
        return AttributeType.BOOLEAN
    if types.is_timestamp(dtype) or types.is_date(dtype):
        return AttributeType.TIMESTAMP
    if types.is_decimal(dtype):
        if dtype.scale <= 0 and dtype.precision - dtype.scale <= 18:
            return AttributeType.INT64
        return AttributeType.DOUBLE if dtype.scale > 0 and dtype.precision <= 15 else None
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        return _ARRAY_OF.get(_of_arrow(dtype.value_type))
    return None


_ARRAY_OF: dict[AttributeType | None, AttributeType] = {
    AttributeType.STRING: AttributeType.STRINGS,
    AttributeType.INT64: AttributeType.NUMBERS,
    AttributeType.DOUBLE: AttributeType.NUMBERS,
}


def _infer(events: Sequence[Event]) -> EventSchema:
    found: dict[str, AttributeType] = {}
    for event in events:
        for path, value in event.attributes.items():
            kind = _type_of(value)
            if kind is None:
                continue
            wider = widen(found.get(path, kind), kind)
            if wider is None:
                raise SchemaError(
                    f"the attribute {path!r} is {found[path]} in an earlier event "
                    f"and {kind} in event {event.id!r}; give both the same type"
                )
            found[path] = wider
    return EventSchema(found)


def _type_of(value: AttributeValue) -> AttributeType | None:
    """The type that a value suggests; None for a null and for an empty array."""
    match value:
        case bool():
            return AttributeType.BOOLEAN
        case str():
            return AttributeType.STRING
        case int():
            return AttributeType.INT64
        case float():
            return AttributeType.DOUBLE
        case datetime():
            return AttributeType.TIMESTAMP
        case tuple() if value:
            return AttributeType.STRINGS if isinstance(value[0], str) else AttributeType.NUMBERS
    return None


def _fitted(value: AttributeValue, kind: AttributeType, path: str, event_id: str) -> Any:
    """`value` as its column takes it."""
    match kind, value:
        case (AttributeType.STRING, str()) | (AttributeType.BOOLEAN, bool()):
            return value
        case AttributeType.INT64, int() if not isinstance(value, bool):
            if _INT64_MIN <= value <= _INT64_MAX:
                return value
        case AttributeType.DOUBLE, int() | float():
            if _is_finite(value):
                return float(value)
        case AttributeType.TIMESTAMP, datetime():
            return _utc(value, path, event_id)
        case AttributeType.STRINGS, tuple() if all(isinstance(v, str) for v in value):
            return list(value)
        case AttributeType.NUMBERS, tuple() if all(_is_finite(v) for v in value):
            return [float(v) for v in value]
    raise SchemaError(
        f"event {event_id!r}: {path!r} must be {kind}, not the {type(value).__name__} {value!r:.80}"
    )


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest double
        return False


def _utc(value: datetime, path: str, event_id: str) -> datetime:
    if value.tzinfo is None:
        raise SchemaError(f"event {event_id!r}: {path!r} has no time zone; use one, such as UTC")
    return value.astimezone(UTC)
