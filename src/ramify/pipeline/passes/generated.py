"""Workloads on Spark: as a source of events that no file holds, and written out as an event log.

Owns how the events of a workload are cut into ranges for tasks, and the form of the logs that are written:
Parquet, JSON lines or CloudEvents, with the subscriptions, attachments and overlay beside them. The events
themselves are `workloads`' business: event `i` depends on the seed and `i` alone, so tasks draw their
ranges without talking, and what comes out does not depend on their number.

    DIR/events/part-*          the events; file k holds the k-th range
    DIR/subscriptions.jsonl    DIR/attachments.json    DIR/overlay.json

A JSON log has no field for an event's size: a reader takes the bytes of its line. In CloudEvents
the attributes are fields of `data`, so the filters that are written beside them name `data.<attribute>`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from ramify.content.events.events import CONTEXT_NAMES, EventSchema
from ramify.content.filters.sigma import detection_of, rename_fields
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.pipeline.passes.sources import Chunk, Reject
from ramify.pipeline.passes.table_files import spark_schema
from ramify.pipeline.session.engine import task_slots
from ramify.pipeline.session.failures import doing
from ramify.workloads.workload import BLOCK_EVENTS, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ramify.network.graphs.overlay import Overlay

__all__ = ["FORMS", "PIECE_EVENTS", "Form", "GeneratedEvents", "GeneratedLog", "below_data", "generate"]

Form: TypeAlias = Literal["parquet", "ndjson", "cloudevents"]
FORMS: tuple[Form, ...] = get_args(Form)
"""What a log can be written as."""

PIECE_EVENTS = 32 * BLOCK_EVENTS
"""Events that a task draws at least, where there are so many: about a second of work."""

_TASKS_PER_SLOT = 32
_MOST_FILES = 1024
_SMALL_EVENTS = 1 << 22
_JSON_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_PARQUET_TIME = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True)
class GeneratedEvents:
    """The events of a workload, drawn where they are used: a source for a pass. Nothing is stored.

    Picklable and light: of the workload only what draws events is kept, no subscriptions and attachments.

    Attributes
    ----------
    workload         draws the events
    schema           the attributes that are handed on
    start, stop      the range of events
    piece_events     events of a piece; whole blocks, so that no block is drawn twice
    """

    workload: Workload
    schema: EventSchema
    start: int
    stop: int
    piece_events: int = PIECE_EVENTS

    @classmethod
    def of(
        cls,
        workload: Workload,
        *,
        start: int = 0,
        count: int | None = None,
        piece_events: int = PIECE_EVENTS,
    ) -> GeneratedEvents:
        """Events `start` to `start + count - 1` of a workload; all from `start` when no count is given.

        `piece_events` is rounded up to whole blocks.

        Raises
        ------
        InputError
            When the range is not within the workload, or a piece would hold nothing.
        """
        stop = workload.event_count if count is None else start + count
        if piece_events < 1:
            raise InputError(f"piece_events = {piece_events!r}: a piece holds at least one event")
        workload.events(max(stop - 1, start), min(stop - start, 1))  # refuses a range that is not there
        workload.events(start, 0)
        whole = -(-piece_events // BLOCK_EVENTS) * BLOCK_EVENTS
        return cls(_drawing(workload), workload.schema, start, stop, whole)

    @property
    def small(self) -> bool:
        """Up to a few million events."""
        return self.stop - self.start <= _SMALL_EVENTS

    @property
    def tiny(self) -> bool:
        """As `small`: nothing is rejected."""
        return self.small

    def here(self) -> Iterator[pa.RecordBatch]:
        """One range of all events."""
        whole = {"start": [self.start], "count": [self.stop - self.start]}
        yield pa.RecordBatch.from_pydict(whole)

    def only(self, paths: Collection[str]) -> GeneratedEvents:
        """The same events with these attributes alone."""
        kept = {path: kind for path, kind in self.schema.attributes.items() if path in paths}
        return replace(self, schema=EventSchema(kept))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Ranges of events (`start`, `count`), neighbours in one task. Costs nothing: Spark counts them."""
        from pyspark.sql import functions as sf

        size = self.piece_events
        first = self.start // size
        last = -(-self.stop // size) if self.stop > self.start else first
        tasks = max(1, min(last - first, _TASKS_PER_SLOT * task_slots(spark)))
        begin = sf.greatest(sf.col("id") * size, sf.lit(self.start))
        end = sf.least((sf.col("id") + 1) * size, sf.lit(self.stop))
        return spark.range(first, last, 1, tasks).select(begin.alias("start"), (end - begin).alias("count"))

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        """In a task: the events of some ranges, a block at a time."""
        names = None if self.schema == self.workload.schema else self.schema.arrow.names
        for ranges in rows:
            for begin, count in zip(*(column.to_pylist() for column in ranges.columns), strict=True):
                for batch in self.workload.batches(begin, count):
                    yield Chunk(batch if names is None else batch.select(names))

    def unread(self, counted: Collection[str]) -> Sequence[Reject]:
        """None: drawn events have no files."""
        return ()


@dataclass(frozen=True, slots=True)
class GeneratedLog:
    """What a log holds: events, files, and their bytes together."""

    events: int
    files: int
    bytes: int


def generate(
    spark: SparkSession,
    workload: Workload,
    out: str | Path,
    *,
    form: Form = "parquet",
    files: int | None = None,
    overlay: Overlay | None = None,
    overwrite: bool = False,
) -> GeneratedLog:
    """Write the events of a workload to `out`/events as a Spark job, and what planning needs beside them.

    `out` is a directory, or any URL that Spark can write. The rows depend on the workload alone; what a
    file holds, and in which order, on the number of files too (without one: about `PIECE_EVENTS` events
    each, at most 1,024 files). Small files are written by this process where `out` is a local path, else
    by Spark, as directories of those names. The overlay is written when it is given. On a cluster, a local
    path must be one that all machines share.

    Raises
    ------
    InputError
        When `out` is not empty and `overwrite` is not given, or the form or number of files is not allowed.
    SparkError
        When Spark cannot write there.
    """
    if form not in FORMS:
        raise InputError(f"unknown form {form!r}. Choose one of: {', '.join(FORMS)}.")
    if files is not None and files < 1:
        raise InputError(f"files = {files!r}: a log has at least one file")
    where, local = _place(out)
    with doing(f"writing the workload to {out}"):
        if not overwrite and _is_taken(spark, where, local):
            raise InputError(
                "there are files here already; name an empty directory, or say to overwrite", path=str(out)
            )
        _write_events(spark, workload, f"{where}/events", form, files)
        for name, lines in _beside(workload, overlay, form).items():
            _write_lines(spark, lines, where, local, name)
        from pyspark.sql import functions as sf

        length = spark.read.format("binaryFile").load(f"{where}/events").select("length")
        (found,) = length.agg(sf.count("length"), sf.sum("length")).collect()
    return GeneratedLog(workload.event_count, int(found[0]), int(found[1]))


def below_data(subscription: Subscription) -> Subscription:
    """The subscription with its filter's attributes looked for in the `data` of CloudEvents.

    Id, publisher and time stay what they are. A keyword list becomes SQL, since it can name no attribute.

    Raises
    ------
    FilterError
        When the filter is not allowed.
    """
    subscription.parse()
    if subscription.sql is not None:
        return replace(subscription, sql=_sql_below_data(subscription.sql))
    if subscription.pattern is not None:
        fields = json.loads(subscription.pattern)
        outer = {name: fields.pop(name) for name in CONTEXT_NAMES.intersection(fields)}
        nested = {**outer, "data": fields} if fields else outer
        return replace(subscription, pattern=json.dumps(nested, ensure_ascii=False))
    if subscription.sigma is not None:
        detection = rename_fields(
            detection_of(json.loads(subscription.sigma)),
            lambda name: name if name in CONTEXT_NAMES else f"data.{name}",
        )
        return replace(subscription, sigma=json.dumps(detection, ensure_ascii=False))
    assert subscription.keywords is not None, "exactly one spelling is given"
    clauses = [(words,) if isinstance(words, str) else words for words in subscription.keywords]
    held = [" AND ".join(f"array_contains(data.keywords, {_quoted(w)})" for w in c) for c in clauses]
    return replace(subscription, keywords=None, sql=" OR ".join(f"({clause})" for clause in held))


# -------------------------------------------------------------------------------------------- in a task


def _drawing(workload: Workload) -> Workload:
    """Only what draws events."""
    nothing: dict[str, Any] = {"attachments": {}, "report": {}, "arrays": {}}
    return replace(workload, subscriptions=(), advertisements=(), **nothing)


@dataclass(frozen=True)
class _Log:
    """What the tasks that write a log do: task k draws the events of file k. Picklable."""

    workload: Workload
    form: Form
    files: int

    @property
    def schema(self) -> pa.Schema:
        """The columns that are written."""
        return self._shaped(self.workload.events(0, 0)).schema

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            numbers: Any = batch.column(0)
            for file in numbers.to_pylist():
                begin, end = _edge(self, file), _edge(self, file + 1)
                for events in self.workload.batches(begin, end - begin):
                    yield self._shaped(events)

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.form == "parquet":
            return batch
        rest = _nested({path: batch.column(path) for path in self.workload.schema.attributes})
        columns: dict[str, Any] = {name: batch.column(name) for name in ("id", "publisher", "time")}
        if self.form == "ndjson":
            taken = columns.keys() & rest.keys()
            if taken:
                raise InputError(f"no JSON object has both {min(taken)!r} and fields below it; rename one")
            return pa.RecordBatch.from_pydict(columns | rest)
        rows = batch.num_rows
        envelope: dict[str, Any] = {
            "specversion": pa.repeat("1.0", rows),
            "id": columns["id"],
            "source": columns["publisher"],
            "type": pa.repeat(f"ramify.{self.workload.name}", rows),
            "time": columns["time"],
        }
        return pa.RecordBatch.from_pydict(envelope | {"data": _struct(rest)})


def _edge(log: _Log, file: int) -> int:
    """Where a file begins: at a block, unless there are more files than blocks."""
    events = log.workload.event_count
    blocks = -(-events // BLOCK_EVENTS)
    if blocks < log.files:
        return events * file // log.files
    return min(blocks * file // log.files * BLOCK_EVENTS, events)


def _nested(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of dotted paths as columns of structs; one whose fields are all absent is absent."""
    inner: dict[str, dict[str, Any]] = {}
    flat: dict[str, Any] = {}
    for path, column in columns.items():
        name, dot, rest = path.partition(".")
        if dot and name and rest:
            inner.setdefault(name, {})[rest] = column
        else:
            flat[path] = column
    both = flat.keys() & inner.keys()
    if both:
        raise InputError(f"no JSON object has both {min(both)!r} and fields below it; rename one")
    return flat | {name: _struct(_nested(fields)) for name, fields in inner.items()}


def _struct(columns: Mapping[str, Any]) -> Any:
    """One column of the given fields, null where all of them are."""
    arrays = list(columns.values())
    absent = np.logical_and.reduce([np.asarray(array.is_null()) for array in arrays])
    return pa.StructArray.from_arrays(arrays, names=list(columns), mask=pa.array(absent))


# --------------------------------------------------------------------------------------- on the driver


def _write_events(
    spark: SparkSession, workload: Workload, where: str, form: Form, files: int | None
) -> None:
    events = workload.event_count
    workload.events(events - 1, 1)  # refuses a rate that leaves the calendar before a task meets it
    wanted = min(-(-events // PIECE_EVENTS), _MOST_FILES) if files is None else min(files, events)
    log = _Log(_drawing(workload), form, wanted)
    # One row in each partition, and a task writes one file: part-<k> is file k.
    frame = spark.range(0, wanted, 1, wanted).mapInArrow(log, spark_schema(log.schema))
    writer = frame.write.mode("overwrite")
    if form == "parquet":
        with _setting(spark, _PARQUET_TIME, "TIMESTAMP_MICROS"):  # else nanoseconds, which end in 2262
            writer.parquet(where)
    else:
        writer.json(where, timestampFormat=_JSON_TIME, ignoreNullFields=True, encoding="UTF-8")


def _beside(workload: Workload, overlay: Overlay | None, form: Form) -> dict[str, Sequence[str]]:
    """The small files: their names and lines."""
    rows: Sequence[Subscription] = workload.subscriptions
    if form == "cloudevents":
        rows = [below_data(row) for row in rows]
    found: dict[str, Sequence[str]] = {
        "subscriptions.jsonl": [row.to_json() for row in rows],
        "attachments.json": [json.dumps(dict(workload.attachments), ensure_ascii=False)],
    }
    if overlay is not None:
        from ramify.network.graphs.files import encode_overlay

        found["overlay.json"] = [encode_overlay(overlay).decode()]
    return found


def _place(out: str | Path) -> tuple[str, Path | None]:
    """Where Spark writes, and the local directory when it is one."""
    parts = urlsplit(str(out))
    if isinstance(out, Path) or not parts.scheme:
        local = Path(out).absolute()
    elif parts.scheme == "file":
        local = Path(parts.path)
    else:
        return str(out).rstrip("/"), None
    return local.as_uri(), local


def _is_taken(spark: SparkSession, where: str, local: Path | None) -> bool:
    if local is not None:
        try:
            return local.exists() and any(local.iterdir())
        except NotADirectoryError:
            raise InputError("this is a file; name a directory", path=str(local)) from None
    from pyspark.errors import AnalysisException

    try:
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(where)
        return bool(files.select("path").limit(1).count())
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise


def _write_lines(
    spark: SparkSession, lines: Sequence[str], where: str, local: Path | None, name: str
) -> None:
    if local is None:
        rows = spark.createDataFrame([(line,) for line in lines], "value string")
        rows.coalesce(1).write.mode("overwrite").text(f"{where}/{name}")
        return
    part = local / f"{name}.part"
    try:
        with part.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(part, local / name)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(local / name)) from None


@contextmanager
def _setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """A setting of the session for a while."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


def _sql_below_data(text: str) -> str:
    """Put `data.` before every attribute; the rest of the text stays as it was written."""
    import sqlglot
    from sqlglot import exp

    starts = []
    for column in sqlglot.parse_one(text, dialect="spark").find_all(exp.Column):
        parts = column.parts
        if len(parts) > 1 or parts[0].name not in CONTEXT_NAMES:
            starts.append(int(parts[0].meta["start"]))
    for start in sorted(starts, reverse=True):
        text = f"{text[:start]}data.{text[start:]}"
    return text


def _quoted(word: str) -> str:
    """A string of Spark SQL."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
