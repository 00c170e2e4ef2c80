"""Where a pass gets its events from: the form that all sources share, and Spark frames as one of them.

Owns `Source`, the `Chunk` that a source hands to a pass, and `FrameSource`. Files are in `files`, generated
events in `generated`. A source has two halves: `frame`, on the driver, says what is handed out to tasks;
`read`, in a task, turns what it got into batches of events. A pass does both in one step with what follows
(matching, counting), so that events never travel between Java and Python only to be looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.events.events import (
    BODY,
    FIXED_COLUMNS,
    NULLS,
    OTHERS,
    SIZE_BYTES,
    EventSchema,
    RejectReason,
)
from ramify.content.events.others import as_others, others_in, with_others
from ramify.errors import InputError, SchemaError
from ramify.planning.demand.splits import Split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Chunk", "FrameSource", "PieceCount", "Reject", "SampledSource", "Source", "fitted", "numbered"]


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
class PieceCount:
    """What a piece of a file held, when it is done: lines (blank ones too) and records."""

    file: str
    start: int
    lines: int
    rows_in: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some events, what could not become one, and pieces that are done.

    `unaddressable` counts, per path, the values that no filter can reach. `arrived` is when each event
    arrived (microseconds), where panes go by that and not by the events' own times.
    """

    batch: pa.RecordBatch
    rejected: Sequence[Reject] = ()
    unaddressable: Mapping[str, int] = field(default_factory=dict)
    counted: Sequence[PieceCount] = ()
    arrived: npt.NDArray[np.int64] | None = None


class Source(Protocol):
    """Where events come from. Picklable without its driver's half: Spark ships it to tasks."""

    @property
    def schema(self) -> EventSchema:
        """The attributes that its events have."""
        ...

    @property
    def small(self) -> bool:
        """Whether its patterns are few enough to be collected as tasks give them, without Spark's help."""
        ...

    @property
    def tiny(self) -> bool:
        """Whether all that tasks give back can be collected at once, rejected records too."""
        ...

    def here(self) -> Iterator[pa.RecordBatch]:
        """What the one task of a pass without Spark gets. `InputError` where it takes Spark."""
        ...

    def only(self, paths: Collection[str]) -> Source:
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
class FrameSource:
    """A Spark frame whose rows are events already.

    Missing fixed columns are filled: no publisher, no time, size 0. The frame must have an `id`; a row
    whose id is null or empty is a reject, with its number among the rows that the task got.
    """

    schema: EventSchema
    columns: tuple[str, ...]
    events: DataFrame | None

    @classmethod
    def of(cls, events: DataFrame) -> FrameSource:
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

    @property
    def small(self) -> bool:
        """Nobody knows how many rows a frame has."""
        return False

    @property
    def tiny(self) -> bool:
        """Likewise."""
        return False

    def here(self) -> Iterator[pa.RecordBatch]:
        """A frame is Spark's."""
        raise InputError("a frame of Spark's cannot be counted without Spark: give files")

    def __reduce__(self) -> tuple[Any, ...]:
        # The frame stays on the driver; a task gets its rows.
        return type(self), (self.schema, self.columns, None)

    def only(self, paths: Collection[str]) -> FrameSource:
        """The frame with these attributes alone, and no bodies."""
        assert self.events is not None, "this half of the source is for tasks"
        kept = {name: kind for name, kind in self.schema.attributes.items() if name in paths}
        wanted = {*FIXED_COLUMNS.names, OTHERS, *kept} - {BODY}
        at = [i for i, name in enumerate(self.columns) if name in wanted]
        frame = numbered(self.events.select([f"c{i}" for i in at]))
        return FrameSource(EventSchema(kept), tuple(self.columns[i] for i in at), frame)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The events themselves."""
        assert self.events is not None, "this half of the source is for tasks"
        return self.events

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        """The rows, in the columns of the schema. Python steps for rows without an id only."""
        before = 0
        for batch in rows:
            events = fitted(batch.rename_columns(list(self.columns)), self.schema)
            yield _with_ids(events, before)
            before += events.num_rows

    def unread(self, counted: Collection[str]) -> Sequence[Reject]:
        """None: rows have no files."""
        return ()


@dataclass(frozen=True)
class SampledSource:
    """The events of another source that a split keeps: the same ones that a pass with that split counts."""

    source: Source
    split: Split

    @property
    def schema(self) -> EventSchema:
        """That of the source."""
        return self.source.schema

    @property
    def small(self) -> bool:
        """As the source is."""
        return self.source.small

    @property
    def tiny(self) -> bool:
        """Whether the source is."""
        return self.source.tiny

    def here(self) -> Iterator[pa.RecordBatch]:
        """That of the source."""
        return self.source.here()

    def only(self, paths: Collection[str]) -> SampledSource:
        """The same with fewer attributes."""
        return SampledSource(self.source.only(paths), self.split)

    def frame(self, spark: SparkSession) -> DataFrame:
        """That of the source."""
        return self.source.frame(spark)

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        """The chunks of the source, with the events that are kept."""
        for chunk in self.source.read(rows):
            kept = self.split.kept(chunk.batch.column("id"))
            if kept is not None:
                arrived = None if chunk.arrived is None else chunk.arrived[kept]
                chunk = replace(chunk, batch=chunk.batch.filter(pa.array(kept)), arrived=arrived)
            yield chunk

    def unread(self, counted: Collection[str]) -> Sequence[Reject]:
        """Those of the source."""
        return self.source.unread(counted)


def numbered(frame: DataFrame) -> DataFrame:
    """The same columns under the names c0, c1, ...

    Spark 4.3 finds the columns of `mapInArrow` by name, and so stumbles over dots (order.price) and over
    names that differ in case only.
    """
    return frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))


def fitted(batch: pa.RecordBatch, schema: EventSchema) -> pa.RecordBatch:
    """A batch in the columns of a schema, with its `_others`. What it lacks is absent, others are cast."""
    columns: list[Any] = []
    for wanted in schema.arrow:
        index = batch.schema.get_field_index(wanted.name)
        column: Any = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, wanted.type)
        column = column if column.type == wanted.type else column.cast(wanted.type)
        if column.null_count and not wanted.nullable:
            column = column.fill_null(_FILL[wanted.name]) if wanted.name in _FILL else _no_lists(column)
        columns.append(column)
    made = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    others = others_in(batch)
    return made if others is None else with_others(made, as_others(others))


def _with_ids(events: pa.RecordBatch, before: int) -> Chunk:
    """The rows that have an id; the others as rejects, numbered from `before` on."""
    import pyarrow.compute as pc

    ids: Any = events.column("id")
    length: Any = pc.binary_length(ids)
    least: Any = pc.min(length)
    if least.as_py() != 0:  # None for no rows
        return Chunk(events)
    named: Any = pc.not_equal(length, pa.scalar(0, length.type))
    nameless: Any = pc.indices_nonzero(pc.invert(named))
    rejected = [
        Reject(None, 0, before + row, None, RejectReason.NO_ID, _NO_ID) for row in nameless.to_pylist()
    ]
    return Chunk(events.filter(named), rejected)


_NO_ID = "the row has no 'id'; give it a non-empty string"
_FILL: dict[str, Any] = {"id": "", SIZE_BYTES: 0, "_body_is_json": False}


def _no_lists(column: Any) -> Any:
    import pyarrow.compute as pc

    assert pa.types.is_list(column.type), f"only {NULLS} is a list that may not be null"
    return pc.coalesce(column, pa.scalar([], column.type))
