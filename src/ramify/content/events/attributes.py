"""What an event is as one value: its attributes, their types, and why a record cannot become one.

Owns the values that clients, filters and control messages share. Arrow is imported when a type is first
asked for its column: a client that has sent no batch needs none. Batches are in `events`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Self, TypeAlias

from ramify.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BODY",
    "BODY_IS_JSON",
    "CONTEXT_NAMES",
    "ENTRY",
    "NULLS",
    "OTHERS",
    "RESERVED_NAMES",
    "SIZE_BYTES",
    "TEXT_MARK",
    "AttributeType",
    "AttributeValue",
    "ElementKind",
    "Event",
    "LeafList",
    "Place",
    "RejectReason",
    "RejectedRecord",
    "Scalar",
    "text_path",
    "time_text",
]

Scalar: TypeAlias = str | int | float | bool | datetime
AttributeValue: TypeAlias = Scalar | tuple[Scalar | None, ...] | None

Place: TypeAlias = tuple[tuple[int, int], ...]
"""Where a value stands in arrays of objects: (number of the array in the event, index), outermost first."""

SIZE_BYTES = "_size_bytes"
BODY = "_body"
BODY_IS_JSON = "_body_is_json"
NULLS = "_nulls"

OTHERS = "_others"
"""The column for what no other column of a batch holds: see `others`."""

ENTRY = "_entry"
"""The column of a message of brokers that says which entry of its headers a row has."""

CONTEXT_NAMES = frozenset({"id", "publisher", "time"})
"""Fixed columns that a filter may name as if they were attributes."""

RESERVED_NAMES = frozenset({SIZE_BYTES, BODY, BODY_IS_JSON, NULLS, OTHERS, ENTRY})
"""Columns that are no attributes. An attribute of such a name has no column: it is in `_others`."""

TEXT_MARK = "\0text"


def text_path(path: str) -> str:
    """The path under which a filter asks for the text of a timestamp, as patterns do.

    The text is the one that the event was written with; where an event has none, RFC 3339 in UTC.
    """
    return path + TEXT_MARK


def time_text(moment: datetime) -> str:
    """The canonical text of a time: RFC 3339 in UTC, with as many of 0, 3 or 6 digits as it needs."""
    digits = "seconds" if not moment.microsecond else "microseconds"
    if moment.microsecond and moment.microsecond % 1000 == 0:
        digits = "milliseconds"
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=digits) + "Z"


class ElementKind(IntEnum):
    """What one value is, where values of different types stand together."""

    EMPTY = -1
    NULL = 0
    INT = 1
    FLOAT = 2
    BOOL = 3
    TIME = 4
    STRING = 5


class LeafList(tuple["Scalar | None", ...]):
    """The values of a field that stands in objects of an array, or in arrays of arrays; `places` in step.

    A plain tuple is an array of scalars: its values have no places. Equality looks at the places too.
    """

    places: tuple[Place, ...]

    def __new__(cls, values: "Iterable[Scalar | None]", places: Iterable[Place]) -> Self:
        """A list whose `places` are as many as its `values`."""
        made = super().__new__(cls, values)
        made.places = tuple(places)
        if len(made.places) != len(made):
            raise ValueError(f"{len(made)} values have {len(made.places)} places")
        return made

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.places == getattr(other, "places", ((),) * len(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return super().__hash__()

    def __getnewargs__(self) -> tuple[tuple["Scalar | None", ...], tuple[Place, ...]]:
        return tuple(self), self.places


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
    def arrow(self) -> "pa.DataType":
        """The Arrow type of this attribute's column."""
        return _arrow_types()[self]

    @classmethod
    def of_arrow(cls, dtype: "pa.DataType") -> Self:
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
    """Why a record was not used: one code per thing that a user would fix differently.

    No attribute is a reason: whatever it holds has a place in a batch. `WRONG_TYPE` is for the fields that
    are to be an event's id or publisher.
    """

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_ID = "no_id"
    WRONG_TYPE = "wrong_type"
    TOO_LARGE = "too_large"
    TOO_DEEP = "too_deep"
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


@cache
def _arrow_types() -> "dict[AttributeType, pa.DataType]":
    import pyarrow as pa

    return {
        AttributeType.STRING: pa.string(),
        AttributeType.INT64: pa.int64(),
        AttributeType.DOUBLE: pa.float64(),
        AttributeType.BOOLEAN: pa.bool_(),
        AttributeType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
        AttributeType.STRINGS: pa.list_(pa.string()),
        AttributeType.NUMBERS: pa.list_(pa.float64()),
    }


def _of_arrow(dtype: "pa.DataType") -> AttributeType | None:
    from pyarrow import types

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
