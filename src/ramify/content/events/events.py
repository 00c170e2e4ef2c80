"""Events as rows of an Arrow record batch.

Owns the schema of a batch, the conversion between `Event` values and batches, and what decoders give back
(`DecodedBatch`). The values themselves are in `attributes` and handed on. It reads no JSON and no file: see
`flatten`, `cloudevents` and `readers`.

A batch has the fixed columns of `FIXED_COLUMNS` first, then one flat column per attribute, named by its
dotted path and sorted by name, so that equal schemas give equal Arrow schemas. Arrow's null means "absent";
a path whose JSON value was an explicit null is listed in `_nulls`, with or without a column of its own.
What no column holds is in a last column `_others`, which only batches with such a value have: see `others`.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from ramify.content.events.attributes import (
    BODY,
    BODY_IS_JSON,
    CONTEXT_NAMES,
    ENTRY,
    NULLS,
    OTHERS,
    RESERVED_NAMES,
    SIZE_BYTES,
    AttributeType,
    AttributeValue,
    Event,
    LeafList,
    RejectedRecord,
    RejectReason,
)
from ramify.content.events.others import others_in, others_of_values, values_of_others, with_others
from ramify.errors import SchemaError

__all__ = [
    "BODY",
    "BODY_IS_JSON",
    "CONTEXT_NAMES",
    "ENTRY",
    "FIXED_COLUMNS",
    "NULLS",
    "OTHERS",
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
    "common_type",
    "events_to_batch",
    "values_at",
]

_TIMESTAMP = pa.timestamp("us", tz="UTC")

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

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


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
        """The schema of a batch without `_others`: the fixed columns, then the attributes by name."""
        columns = [pa.field(path, kind.arrow) for path, kind in self.attributes.items()]
        return pa.schema([*FIXED_COLUMNS, *columns])

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch | pa.Table | pa.Schema) -> Self:
        """The attributes of an event batch, from its columns after the fixed ones."""
        schema = batch if isinstance(batch, pa.Schema) else batch.schema
        missing = [name for name in FIXED_COLUMNS.names if name not in schema.names]
        if missing:
            raise SchemaError(f"not an event batch: it has no column {', '.join(missing)}")
        fixed = {*FIXED_COLUMNS.names, OTHERS}
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


@dataclass
class DecodedBatch:
    """What became of some records: every one is either a row of `batch` or in `rejected`.

    `unaddressable` counts, per path, the values that no filter can reach, since a fixed column that holds
    another field has their name. They are still in the body.
    """

    batch: pa.RecordBatch
    rejected: list[RejectedRecord] = field(default_factory=list)
    unaddressable: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """How many records went in."""
        return self.batch.num_rows + len(self.rejected)


def events_to_batch(events: Iterable[Event], schema: EventSchema | None = None) -> pa.RecordBatch:
    """The events as one batch, in order. Without a schema, each attribute has the type of most values.

    What does not fit its column, or has none, is in `_others`.

    Raises
    ------
    SchemaError
        When an event has no id, or an attribute with the name of another field (id, publisher, time), or a
        time has no zone.
    """
    events = list(events)
    if schema is None:
        schema = _infer(events)
    columns: dict[str, list[Any]] = {path: [None] * len(events) for path in schema.attributes}
    nulls: list[list[str]] = []
    others: list[dict[str, AttributeValue]] = []
    for row, event in enumerate(events):
        if not isinstance(event.id, str) or not event.id:
            raise SchemaError(f"event {row} has no id; give it a non-empty string")
        rest: dict[str, AttributeValue] = {}
        for path in sorted(event.attributes):
            value = event.attributes[path]
            if path in CONTEXT_NAMES:
                raise SchemaError(f"event {event.id!r}: no attribute can be called {path!r}; rename it")
            if isinstance(value, datetime):
                value = _utc(value, path, event.id)
            if value is None or path not in columns or not _fits(value, schema.attributes[path]):
                rest[path] = value
            else:
                columns[path][row] = value
        nulls.append([path for path, value in rest.items() if value is None])
        others.append({path: value for path, value in rest.items() if value is not None})
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
        column = others_of_values(others) if any(others) else None
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"an event does not fit its columns: {error}") from error
    return with_others(pa.RecordBatch.from_arrays(arrays, schema=arrow), column)


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
    others = others_in(batch)
    for row, found in enumerate(() if others is None else values_of_others(others)):
        flat[row].update(found)
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


def values_at(batch: pa.RecordBatch, path: str, absent: Any = None) -> list[Any]:
    """The value of one path in each row, wherever the batch holds it; `absent` where a row has none.

    An explicit null is None. Python per row: for single attributes, and where values of any type are due.
    """
    values = [absent] * batch.num_rows
    if path in batch.schema.names and path not in RESERVED_NAMES:
        column = batch.column(path)
        is_array = pa.types.is_list(column.type)
        for row, value in enumerate(column.to_pylist()):
            if value is not None:
                values[row] = tuple(value) if is_array else value
    for row, nulls in enumerate(batch.column(NULLS).to_pylist()):
        if path in (nulls or ()):
            values[row] = None
    others = others_in(batch)
    for row, found in enumerate(() if others is None else values_of_others(others, path)):
        values[row] = found.get(path, values[row])
    return values


def widen(one: AttributeType, other: AttributeType) -> AttributeType | None:
    """The type that holds the values of both, or None when there is none."""
    if one is other:
        return one
    if {one, other} == {AttributeType.INT64, AttributeType.DOUBLE}:
        return AttributeType.DOUBLE
    return None


_TYPE_NAMES = frozenset(kind.value for kind in AttributeType)
_ARRAY_TYPES = (AttributeType.STRINGS, AttributeType.NUMBERS)


def _infer(events: Sequence[Event]) -> EventSchema:
    votes: dict[str, Counter[AttributeType]] = {}
    for event in events:
        for path, value in event.attributes.items():
            kind = _type_of(value)
            if kind is not None and path and path not in RESERVED_NAMES | CONTEXT_NAMES:
                votes.setdefault(path, Counter())[kind] += 1
    return EventSchema({path: common_type(counts) for path, counts in votes.items()})


def common_type(votes: Counter[AttributeType]) -> AttributeType:
    """The type of most values, the first of `AttributeType` among equals; integers and doubles together."""
    numbers = votes[AttributeType.INT64] + votes[AttributeType.DOUBLE]
    counts = {**votes, AttributeType.INT64: 0, AttributeType.DOUBLE: numbers}
    winner = max(AttributeType, key=lambda kind: counts.get(kind, 0))
    return winner if winner is not AttributeType.DOUBLE or votes[winner] else AttributeType.INT64


def _type_of(value: AttributeValue) -> AttributeType | None:
    """The type whose column takes a value; None for what no column takes."""
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
    return next((kind for kind in _ARRAY_TYPES if value is not None and _fits(value, kind)), None)


def _fits(value: AttributeValue, kind: AttributeType) -> bool:
    """Whether a column of this type gives the value back as it was."""
    match kind, value:
        case (AttributeType.STRING, str()) | (AttributeType.BOOLEAN, bool()):
            return True
        case AttributeType.INT64, int():
            return not isinstance(value, bool) and _INT64_MIN <= value <= _INT64_MAX
        case AttributeType.DOUBLE, _:
            return _is_double(value)
        case AttributeType.TIMESTAMP, datetime():
            return True
        case AttributeType.STRINGS, tuple() if not isinstance(value, LeafList):
            return all(isinstance(v, str) for v in value)
        case AttributeType.NUMBERS, tuple() if not isinstance(value, LeafList):
            return all(map(_is_double, value))
    return False


def _is_double(value: object) -> bool:
    """Whether a value is a finite number that a double holds, and no other integer rounds to."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


def _utc(value: datetime, path: str, event_id: str) -> datetime:
    if value.tzinfo is None:
        raise SchemaError(f"event {event_id!r}: {path!r} has no time zone; use one, such as UTC")
    return value.astimezone(UTC)
