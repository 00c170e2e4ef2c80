"""Live samples as sources for Structured Streaming: files that land, and a numbered log.

Owns the frame of landed files (`landed`), what a replayable stream of samples is (`Replayable`), one on
disk (`SampleLog`), and the Spark data source over either (`SampleDataSource`). What is made of the samples
is `streaming`.

Landed files are read by the decoders that read a log (`pieces`), not by Spark's: what is wrong with a file
or a line is a row of the frame, and the stream goes on.

Events are numbered from 0 without gaps, and a range of numbers [start, stop) holds the same events, always:
that is all that exactly-once needs of a source. A Python data source runs in a process of its own beside
the driver, and its tasks in others; all of them open the log anew, from the options of the source.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ramify.content.events.events import BODY, EventSchema
from ramify.content.events.flatten import PLAIN, FieldMapping
from ramify.durable import flush_directory
from ramify.errors import InputError
from ramify.pipeline.passes.pieces import Piece, PieceReader, merged, shown
from ramify.pipeline.passes.sources import Chunk, Reject, fitted
from ramify.pipeline.passes.table_files import QUARANTINE, spark_schema

__all__ = [
    "FAULT",
    "FORMAT",
    "Replayable",
    "SampleDataSource",
    "SampleLog",
    "SampleStream",
    "landed",
    "live_samples",
]

FAULT = "_fault"
"""The last column of `landed`: null for an event, else a row of `QUARANTINE`, all other columns empty."""

FORMAT = "ramify-samples"
"""The name of the data source in `spark.readStream.format`."""

TASK_ROWS = 50_000
"""How many events a task of the data source reads, unless told otherwise."""

_SUFFIX = ".arrow"
_DIGITS = 19


_BINARY_FILES = "path string, modificationTime timestamp, length bigint, content binary"


def landed(
    spark: SparkSession,
    directory: str | Path,
    schema: EventSchema,
    *,
    files_per_trigger: int | None = None,
    mapping: FieldMapping = PLAIN,
) -> DataFrame:
    """A streaming frame of the events in the files that land in a directory, with these attributes.

    Files are of the kinds of a log: Parquet, JSON lines, CloudEvents, one JSON array. What is no event, be
    it a line or a damaged file, is a row with a `FAULT`. Bodies are left out.

    A file must appear complete, by a rename, under a name of its own: Spark reads it once. Files without a
    byte it passes over; one that is gone, or longer than `spark.sql.sources.binaryFile.maxLength` (2 GiB),
    ends the query. Micro-batches take files in the order of their times of change. A task holds a file
    whole, in Spark's JVM too.
    """
    place = os.path.abspath(directory) if os.path.isdir(directory) else str(directory)
    stream = spark.readStream.format("binaryFile").schema(_BINARY_FILES)
    if files_per_trigger is not None:
        stream = stream.option("maxFilesPerTrigger", str(files_per_trigger))
    root = shown(place).rstrip("/") + "/"
    task = _Landed(PieceReader(schema, mapping, root, frozenset(schema.attributes), through_spark=True))
    files = stream.load(place).select("path", "length", "content")
    # Under numbers: Spark finds the columns of mapInArrow by name, and stumbles over dots.
    return files.mapInArrow(task, task.columns).toDF(*task.names)


@dataclass(frozen=True)
class _Landed:
    """In a task: whole files, with their bytes, become rows of events and of faults. Picklable."""

    reader: PieceReader

    @property
    def names(self) -> list[str]:
        return [name for name in self.reader.schema.arrow.names if name != BODY] + [FAULT]

    @property
    def columns(self) -> StructType:
        """The columns that come out, c0, c1, ..."""
        arrow = self.reader.schema.arrow
        kept = [arrow.field(name) for name in self.names[:-1]] + [pa.field(FAULT, _FAULT_TYPE)]
        return spark_schema(pa.schema([field.with_name(f"c{i}") for i, field in enumerate(kept)]))

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target: Any = to_arrow_schema(self.columns, timezone="UTC")
        for chunk in merged(chunk for piece in _whole(rows) for chunk in self.reader.read(piece)):
            for columns in self._parts(chunk):
                cast = [column.cast(f.type) for column, f in zip(columns, target, strict=True)]
                yield pa.RecordBatch.from_arrays(cast, schema=target)

    def _parts(self, chunk: Chunk) -> Iterator[list[Any]]:
        """The columns of the events, then those of the faults."""
        names, events, bad = self.names[:-1], chunk.batch, chunk.rejected
        if events.num_rows:
            yield [*events.select(names).columns, pa.nulls(events.num_rows, _FAULT_TYPE)]
        if bad:
            no_ids: Any = pa.nulls(len(bad), pa.string())
            empty = fitted(pa.RecordBatch.from_arrays([no_ids], names=["id"]), self.reader.schema)
            yield [*empty.select(names).columns, pa.array(map(_fault, bad), _FAULT_TYPE)]


_FAULT_TYPE: Any = pa.struct(list(QUARANTINE))


def _whole(rows: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in rows:
        columns: Any = [batch.column(name) for name in ("path", "length", "content")]
        for path, length, content in zip(*columns, strict=True):
            stop = length.as_py()
            yield Piece(shown(path.as_py()), 0, stop, stop, content.as_buffer())


def _fault(reject: Reject) -> dict[str, Any]:
    # The piece is the file, so position and line are those of the file.
    return {name: getattr(reject, name) for name in QUARANTINE.names}


class Replayable(Protocol):
    """A numbered stream of event batches that gives the same events for the same numbers, every time."""

    def earliest(self) -> int:
        """The number of the first event that is still there; `latest` when there is none."""
        ...

    def latest(self) -> int:
        """The number that the next event will get."""
        ...

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The events from `start` on, before `stop`, in order. Raises `InputError` for one not there."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class _Segment:
    """A file with the events [first, stop)."""

    first: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.first:0{_DIGITS}d}-{self.stop:0{_DIGITS}d}{_SUFFIX}"


class SampleLog:
    """An append-only log of event batches: a directory of Arrow files, named by the numbers in them.

    A file appears under its name by one rename, complete and flushed; a writer that dies leaves at most a
    hidden part, which the next one overwrites. Writers take turns by a lock; readers need none. Batches may
    differ in their attributes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, batch: pa.RecordBatch) -> range:
        """Add events at the end; returns their numbers. They are on disk when this returns.

        Cost: one file and three flushes; gather some thousands of events first. Nothing for an empty batch.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            first = self.latest()
            if not batch.num_rows:
                return range(first, first)
            segment = _Segment(first, first + batch.num_rows)
            part = self.path / ".part"
            with part.open("wb") as file:
                with pa.ipc.new_file(file, batch.schema) as writer:
                    writer.write_batch(batch)
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, self.path / segment.name)
            flush_directory(self.path)
        return range(segment.first, segment.stop)

    def earliest(self) -> int:
        """The number of the first event that is still there."""
        segments = self._segments()
        return segments[0].first if segments else 0

    def latest(self) -> int:
        """The number that the next event will get. Raises `InputError` when there is no such log."""
        segments = self._segments()
        return segments[-1].stop if segments else 0

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The events from `start` on, before `stop`: as they were appended, cut to the range.

        Raises
        ------
        InputError
            When some were trimmed away, are not there yet, or a file is damaged or missing.
        """
        if start >= stop:
            return
        segments = [s for s in self._segments() if s.stop > start and s.first < stop]
        self._check(segments, start, stop)
        for segment in segments:
            whole = self._batch(segment)
            low, high = max(start, segment.first), min(stop, segment.stop)
            yield whole.slice(low - segment.first, high - low)

    def trim(self, before: int) -> None:
        """Remove files whose events all have numbers below `before`. The newest stays: it has the count."""
        for segment in self._segments()[:-1]:
            if segment.stop <= before:
                (self.path / segment.name).unlink(missing_ok=True)

    def _segments(self) -> list[_Segment]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            raise InputError("there is no log of samples here; append to it", path=str(self.path)) from None
        found = (name.removesuffix(_SUFFIX).split("-") for name in names if name.endswith(_SUFFIX))
        return sorted(_Segment(int(first), int(stop)) for first, stop in found)

    def _check(self, segments: Sequence[_Segment], start: int, stop: int) -> None:
        expected = start
        for segment in segments:
            if segment.first > expected:
                break
            expected = segment.stop
        if expected >= stop:
            return
        earliest, latest = self.earliest(), self.latest()
        if expected < earliest:
            why = f"they were trimmed away: the log begins at {earliest}. What was not counted is lost"
        elif expected >= latest:
            why = f"the log ends before {latest}. It may be another log than the one followed so far"
        else:
            why = "a file of the log is missing"
        raise InputError(f"events {expected} to {stop - 1} cannot be read: {why}", path=str(self.path))

    def _batch(self, segment: _Segment) -> pa.RecordBatch:
        path = self.path / segment.name
        try:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"the file cannot be read: {error}", path=str(path)) from None
        if table.num_rows != segment.stop - segment.first:
            raise InputError(
                f"the file holds {table.num_rows} events, not those it is named for", path=str(path)
            )
        return table.combine_chunks().to_batches()[0]


def live_samples(
    spark: SparkSession,
    path: str | Path,
    schema: EventSchema,
    *,
    rows_per_trigger: int | None = None,
    rows_per_task: int = TASK_ROWS,
) -> DataFrame:
    """A streaming frame of the events of a `SampleLog`, from its earliest on, with these attributes.

    Attributes that a batch lacks are absent, those beyond the schema are left out. The path must be
    readable wherever the driver and tasks run.
    """
    spark.dataSource.register(SampleDataSource)
    options = {"path": str(path), "schema": schema.to_json(), "rowsPerTask": str(rows_per_task)}
    if rows_per_trigger is not None:
        options["rowsPerTrigger"] = str(rows_per_trigger)
    return spark.readStream.format(FORMAT).options(**options).load()


class SampleDataSource(DataSource):
    """The events of a replayable stream, for `spark.readStream` and `spark.read`.

    Options: `path` of the log; `schema`, the JSON of an `EventSchema`; `rowsPerTrigger`, the most events of
    a micro-batch (no limit without); `rowsPerTask`. For a stream that is no directory, derive from this
    class and override `name` and `log`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def log(self) -> Callable[[], Replayable]:
        """How to open the stream, in whatever process this happens. Picklable."""
        return _Opener(self._option("path"))

    def schema(self) -> StructType:
        """The columns of an event."""
        return spark_schema(EventSchema.from_json(self._option("schema")).arrow)

    def streamReader(self, schema: StructType) -> "SampleStream":  # noqa: N802
        """For `spark.readStream`."""
        most = self._count("rowsPerTrigger", 0)
        return SampleStream(self.log(), schema, self._count("rowsPerTask", TASK_ROWS), most or None)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`: what is there when the query is planned."""
        return _SampleTable(self.log(), schema, self._count("rowsPerTask", TASK_ROWS))

    def _option(self, name: str) -> str:
        if name not in self.options:
            raise InputError(f"the data source {self.name()} needs the option {name!r}")
        return str(self.options[name])

    def _count(self, name: str, default: int) -> int:
        text = str(self.options.get(name, default))
        if not text.isdecimal() or (name in self.options and int(text) < 1):
            raise InputError(f"{name} = {text!r}. Allowed: a whole number from 1.")
        return int(text)


@dataclass(frozen=True, slots=True)
class _Opener:
    path: str

    def __call__(self) -> Replayable:
        return SampleLog(self.path)


class _Range(InputPartition):
    """The events that a task reads."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__((start, stop))
        self.start, self.stop = start, stop


class _SampleTable(DataSourceReader):
    """All events of a stream, as a table."""

    def __init__(self, log: Callable[[], Replayable], schema: StructType, task_rows: int) -> None:
        self._log, self._schema, self._task_rows = log, schema, task_rows

    def partitions(self) -> Sequence[InputPartition]:
        """The events there are now."""
        log = self._log()
        return _ranges(log.earliest(), log.latest(), self._task_rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the events of a range."""
        return _read(self._log, self._schema, partition)


class SampleStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The events of a stream, micro-batch by micro-batch. An offset is {"next": number}.

    A stream that cannot be asked for its latest number gives no new events, and the query goes on: it asks
    again at the next trigger. Events that were trimmed away before they were read end the query, by name.
    """

    def __init__(
        self, log: Callable[[], Replayable], schema: StructType, task_rows: int, most: int | None
    ) -> None:
        self._log, self._schema, self._task_rows, self._most = log, schema, task_rows, most
        # where a query that takes only what is there will end
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """A new query begins at the earliest event."""
        return {"next": self._log().earliest()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the options."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where to end. A stream that cannot be asked is an error here: nothing would be read."""
        self._target = self._log().latest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """How far the next micro-batch goes; `start` when nothing is new or nobody can say."""
        latest = self._latest(start["next"])
        if latest < start["next"]:
            raise InputError(
                f"the stream ends at {latest}, and {start['next']} events have been read of it: it is "
                "another one. Take another checkpoint and another directory for panes."
            )
        if isinstance(limit, ReadMaxRows):
            latest = min(latest, start["next"] + limit.max_rows)
        return {"next": latest}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """For the query's progress."""
        latest = self._latest(-1)
        return None if latest < 0 else {"next": latest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Ranges of at most so many events for each task."""
        return _ranges(start["next"], end["next"], self._task_rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the events of a range, the same every time."""
        return _read(self._log, self._schema, partition)

    def _latest(self, otherwise: int) -> int:
        if self._target is not None:
            return max(self._target, otherwise)
        try:
            return self._log().latest()
        except Exception:  # whatever a stream may raise: an error here would end the query
            return otherwise


def _ranges(start: int, stop: int, most: int) -> list[InputPartition]:
    return [_Range(low, min(low + most, stop)) for low in range(start, stop, most)]


def _read(
    log: Callable[[], Replayable], schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The events of a range in exactly the columns and types that Spark expects."""
    assert isinstance(partition, _Range), "partitions are those that were planned here"
    target: Any = to_arrow_schema(schema, timezone="UTC")
    events = EventSchema.of_batch(target)
    for batch in log().read(partition.start, partition.stop):
        yield fitted(batch, events).select(target.names).cast(target)
