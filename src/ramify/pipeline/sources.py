"""Where a pass gets its events from: the form that all sources share, and Spark frames as one of them.

Owns `Source`, the `Chunk` that a source hands to a pass, and `Rows`. Files are in `files`, generated
events in `generated`. A source has two halves: `frame`, on the driver, says what is handed out to tasks;
`read`, in a task, turns what it got into batches of events. A pass does both in one step with what follows
(matching, counting), so that events never travel between Java and Python only to be looked at.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ramify.content.events import BODY, FIXED_COLUMNS, NULLS, SIZE_BYTES, EventSchema
from ramify.errors import SchemaError

__all__ = ["Chunk", "Counted", "Reject", "Rows", "Source", "fitted", "numbered"]


@dataclass(frozen=True, slots=True)
class Reject:
    """A record, or a whole part of a file, that could not be used.

    Attributes
    ----------
    file, start      the file, and the byte where the piece of it begins that the record was in
    position         the record within the piece, from 0
    line             its line within the piece, from 1, where there are lines
    reason, detail   a code, and a sentence for people
    raw              the first bytes of it
    rows             how many records this stands for
    """

    file: str | None
    start: int
    position: int
    line: int | None
    reason: str
    detail: str
    raw: bytes = b""
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Counted:
    """What a piece of a file held, when it is done: lines (blank ones too) and records."""

    file: str
    start: int
    lines: int
    rows_in: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some events, what could not become one, and pieces that are done.

    `unaddressable` counts, per path, the values that no filter can reach.
    """

    batch: pa.RecordBatch
    rejected: Sequence[Reject] = ()
    unaddressable: Mapping[str, int] = field(default_factory=dict)
    counted: Sequence[Counted] = ()


class Source(Protocol):
    """Where events come from. Picklable without its driver's half: Spark ships it to tasks."""

    @property
    def schema(self) -> EventSchema:
        """The attributes that its events have."""
        ...

    def only(self, paths: Collection[str]) -> "Source":
        """The same events with these attributes at least; others, and bodies, need not be read."""
        ...

    def frame(self, spark: SparkSession) -> DataFrame:
        """What is handed out to tasks."""
        ...

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        """In a task: the events behind some rows of the frame."""
        ...

    def unread(self, counted: Collection[str]) -> Sequence[Reject]:
        """Files that no task counted, though they should have been read."""
        ...


@dataclass(frozen=True)
class Rows:
    """A Spark frame whose rows are events already.

    Missing fixed columns are filled: no publisher, no time, size 0. The frame must have an `id`.
    """

    schema: EventSchema
    columns: tuple[str, ...]
    events: DataFrame | None

    @classmethod
    def of(cls, events: DataFrame) -> "Rows":
        """A frame of events; its columns beyond the fixed ones are the attributes.

        Raises
        ------
        SchemaError
            When there is no column `id`, or a column has a type that no attribute has.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(events.schema, timezone="UTC")
        if "id" not in columns.names:
            raise SchemaError("the frame has no column 'id'; every event needs one, give it a string")
        missing = [f for f in FIXED_COLUMNS if f.name not in columns.names]
        schema = EventSchema.of_batch(pa.schema([*columns, *missing]))
        return cls(schema, tuple(columns.names), numbered(events))

    def __reduce__(self) -> tuple[Any, ...]:
        # The frame stays on the driver; a task gets its rows.
        return type(self), (self.schema, self.columns, None)

    def only(self, paths: Collection[str]) -> "Rows":
        """The frame with these attributes alone, and no bodies."""
        assert self.events is not None, "this half of the source is for tasks"
        kept = {name: kind for name, kind in self.schema.attributes.items() if name in paths}
        wanted = {*FIXED_COLUMNS.names, *kept} - {BODY}
        at = [i for i, name in enumerate(self.columns) if name in wanted]
        frame = numbered(self.events.select([f"c{i}" for i in at]))
        return Rows(EventSchema(kept), tuple(self.columns[i] for i in at), frame)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The events themselves."""
        assert self.events is not None, "this half of the source is for tasks"
        return self.events

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        """The rows, in the columns of the schema."""
        for batch in rows:
            yield Chunk(fitted(batch.rename_columns(list(self.columns)), self.schema))

    def unread(self, counted: Collection[str]) -> Sequence[Reject]:
        """None: rows have no files."""
        return ()


def numbered(frame: DataFrame) -> DataFrame:
    """The same columns under the names c0, c1, ...

    Spark 4.3 finds the columns of `mapInArrow` by name, and so stumbles over dots (order.price) and over
    names that differ in case only.
    """
    return frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))


def fitted(batch: pa.RecordBatch, schema: EventSchema) -> pa.RecordBatch:
    """A batch in the columns of a schema: what it lacks is absent, numbers and texts are cast."""
    columns: list[Any] = []
    for wanted in schema.arrow:
        index = batch.schema.get_field_index(wanted.name)
        column: Any = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, wanted.type)
        column = column if column.type == wanted.type else column.cast(wanted.type)
        if column.null_count and not wanted.nullable:
            column = column.fill_null(_FILL[wanted.name]) if wanted.name in _FILL else _no_lists(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


_FILL: dict[str, Any] = {"id": "", SIZE_BYTES: 0, "_body_is_json": False}


def _no_lists(column: Any) -> Any:
    import pyarrow.compute as pc

    assert pa.types.is_list(column.type), f"only {NULLS} is a list that may not be null"
    return pc.coalesce(column, pa.scalar([], column.type))
