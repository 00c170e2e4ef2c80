"""One pass over the events of a source: read, match, count, in one step per task.

Owns the pass and what comes out of it (`PassResult`). A task reads its share of the source, matches it,
counts it into distinct patterns in a compiled hash table, and gives back the patterns and, beside them,
what else is to be told: rejected records, pieces done, unknown publishers, spans of time. That small
result is kept; Spark adds up equal patterns of different tasks. So events are read once, and no event
crosses from Python to Java.

Guarantee: every record of the source is counted, unknown, thinned out or quarantined, and the totals are
checked (`Totals`). All sums are of integers: the result does not depend on partitions or order.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.filters.filters import Filter
from ramify.errors import InputError, SparkError
from ramify.pipeline.passes.files import absolute, absolute_rows
from ramify.pipeline.passes.matching import Shards, compile_shards, ship_matcher
from ramify.pipeline.passes.sources import Chunk, Reject, Source
from ramify.pipeline.passes.table_files import TABLES, spark_schema
from ramify.pipeline.session.engine import Engine, InProcess
from ramify.planning.demand.patterns import PATTERNS, Patterns, class_rows, hosts_away
from ramify.planning.demand.tally import PatternTally, TallySettings
from ramify.planning.demand.windows import Span, Windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "PARTIAL",
    "Digest",
    "PassKind",
    "PassResult",
    "Totals",
    "partial_rows",
    "reckon",
    "reckoned",
    "unpacked",
]


class PassKind(IntEnum):
    """What a row that comes out of a task is."""

    PATTERN = 0  # raw: many patterns, packed (`Patterns`); count: how many
    REJECTED = 1  # file, start, position, line, reason, detail, raw; count: records it stands for
    PIECE = 2  # file, start; position: lines, count: records in it
    UNKNOWN = 3  # split, client; count: events
    SPAN = 4  # split; count: events, start: first and position: last time in microseconds
    UNREACHED = 5  # file: the path; count: values that no filter can reach
    # count: events read, bytes: records rejected, line: rejects, position: thinned out, start: patterns
    READ = 6
    DIGEST = 7  # raw: what a digest makes of a task's patterns


_LARGE = (PassKind.PATTERN, PassKind.REJECTED, PassKind.DIGEST)
_EXTRA: dict[str, Any] = {
    "kind": pa.int32(),
    "file": pa.string(),
    "start": pa.int64(),
    "position": pa.int64(),
    "line": pa.int64(),
    "reason": pa.string(),
    "detail": pa.string(),
    "raw": pa.binary(),
}
PARTIAL = pa.schema([*PATTERNS, *pa.schema(_EXTRA)])
"""The columns that a task gives back."""

Digest: TypeAlias = Callable[[Patterns], Iterator[pa.RecordBatch]]
"""In a task: what to give back for some patterns, instead of them."""

Step: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# A task gives its patterns back and starts afresh when it holds so many patterns, or classes in them.
_MOST_PATTERNS = 1 << 21
_MOST_ENTRIES = 1 << 26
_MOST_REJECTS = 1 << 14
_PACKED_PATTERNS = 1 << 16
# Patterns of all tasks together up to which the driver adds them up by itself.
_MOST_COLLECTED = 1 << 22
_KEYS = PATTERNS.names[:-2]
_PLACE = ("file", "start", "position")


@dataclass(frozen=True, slots=True)
class Totals:
    """What became of the records of a source: `rows_in == good + quarantined`.

    Of the good ones, `thinned` were not in the sample and `unknown` have a publisher without a known
    broker; the others are counted. `faults` is 0 when everything could be used: a file that cannot be
    opened is a fault, although nobody knows how many records it has. `files` were read, at least in part.
    """

    rows_in: int
    good: int
    quarantined: int
    thinned: int
    unknown: int
    faults: int
    files: int

    @property
    def counted(self) -> int:
        """Events that are in patterns."""
        return self.good - self.thinned - self.unknown


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows that tasks gave back (`PARTIAL`), in this process."""

    engine: Engine
    table: pa.Table

    def of(self, kind: PassKind) -> list[dict[str, Any]]:
        """The rows of a kind as values."""
        return self.table.filter(_equal(self.table["kind"], int(kind))).to_pylist()

    def patterns(self) -> Patterns:
        """All patterns, those of different tasks not added up."""
        at = np.flatnonzero(np.asarray(self.table["kind"]) == int(PassKind.PATTERN))
        return _unpacked(self.table["raw"], at)

    def rejects(self, unread: Sequence[Reject]) -> list[dict[str, Any]]:
        """The rows of `quarantine`, by file, position and reason."""
        rows = [{**row, "rows": row["count"]} for row in self.of(PassKind.REJECTED)]
        rows += [{**(given := _reject_row(reject)), "rows": given["count"]} for reject in unread]
        pieces = [{**row, "lines": row["position"]} for row in self.of(PassKind.PIECE)]
        names = TABLES["quarantine"].schema.names
        placed = [{name: row[name] for name in names} for row in absolute_rows(rows, pieces)]
        return sorted(placed, key=lambda row: (row["file"] or "", row["position"], row["reason"]))

    def frame(self) -> DataFrame:
        """The rows as a frame; `InputError` without Spark."""
        if isinstance(self.engine, InProcess):
            raise InputError("tables are written by Spark: leave out --spark none")
        return self.engine.createDataFrame(self.table)


@dataclass(frozen=True)
class PassResult:
    """What a pass found. The frames are computed from kept rows, not by reading the source again.

    The rows are kept by Spark, or here where the source is tiny: what a command wants of those costs no
    further job, and they become a frame only when a caller asks for one.

    Attributes
    ----------
    totals         see there
    spans          per window the events and the time they span
    unknown        per window and publisher the events that no broker is known for
    unreached      per path the values that no filter can reach
    """

    totals: Totals
    spans: dict[int, Span]
    unknown: dict[tuple[int, str | None], int]
    unreached: dict[str, int]
    counting: TallySettings
    tag_filters: int
    _rows: DataFrame | KeptRows
    _pattern_rows: int
    _unread: tuple[Reject, ...]

    def windows(self) -> Windows:
        """The demands, in this process.

        Equal patterns of different tasks are added up here, unless they are so many that Spark must.
        """
        if isinstance(self._rows, KeptRows):
            return self.windows_of(self._rows.patterns())
        if self._pattern_rows <= _MOST_COLLECTED:
            raw = _arrow(self.packed)["raw"]
            return self.windows_of(_unpacked(raw, range(len(raw))))
        return self.windows_of(Patterns.of_table(_arrow(self.patterns)))

    def windows_of(self, patterns: Patterns) -> Windows:
        """The demands of patterns that are here already."""
        return Windows.of_patterns(
            patterns,
            self.counting.split,
            self.spans,
            self.unknown,
            self.tag_filters,
            half_life_s=self.counting.half_life_s,
            pane_us=self.counting.pane_us,
        )

    @property
    def patterns(self) -> DataFrame:
        """Frame of `PATTERNS`: distinct patterns with sums."""
        from pyspark.sql import functions as sf

        grouped = self.packed.mapInArrow(_unpacked_rows, spark_schema(PATTERNS)).groupBy(*_KEYS)
        return grouped.agg(sf.sum("count").alias("count"), sf.sum("bytes").alias("bytes"))

    @property
    def quarantine(self) -> DataFrame:
        """Records and parts of files that could not be used (table `quarantine`)."""
        from pyspark.sql import functions as sf

        rejects = self._of(PassKind.REJECTED, *_PLACE, "line", "reason", "detail", "raw", rows="count")
        if self._unread:
            extra = _rows([_reject_row(reject) for reject in self._unread])
            made = rejects.sparkSession.createDataFrame(pa.Table.from_batches([extra]))
            rejects = rejects.union(made.withColumn("rows", sf.col("count")).select(rejects.columns))
        pieces = self._of(PassKind.PIECE, "file", "start", lines="position", rows_in="count")
        return absolute(rejects, pieces).select(TABLES["quarantine"].schema.names)

    def first_rejects(self, most: int) -> tuple[dict[str, Any], ...]:
        """Rows of `quarantine` by file and position; no job when there are none.

        The first of each file and reason come before any second one: a file of bad records hides no other.
        """
        if not self.totals.faults:
            return ()
        if isinstance(self._rows, KeptRows):
            return tuple(_of_each_first(self._rows.rejects(self._unread), most))
        from pyspark.sql import Window
        from pyspark.sql import functions as sf

        number = sf.row_number().over(Window.partitionBy("file", "reason").orderBy("position"))
        numbered = self.quarantine.withColumn("_number", number)
        chosen = numbered.orderBy("_number", "file", "position", "reason").limit(most)
        ordered = chosen.orderBy("file", "position", "reason").drop("_number")
        return tuple(_arrow(ordered).to_pylist())

    def reject_reasons(self) -> dict[str, int]:
        """How many records could not be used, by reason; no job when there are none."""
        if not self.totals.faults:
            return {}
        if isinstance(self._rows, KeptRows):
            found: dict[str, int] = {}
            for row in self._rows.rejects(self._unread):
                found[row["reason"]] = found.get(row["reason"], 0) + row["rows"]
            return dict(sorted(found.items()))
        from pyspark.sql import functions as sf

        counted = self.quarantine.groupBy("reason").agg(sf.sum("rows").alias("rows")).orderBy("reason")
        return {row["reason"]: row["rows"] for row in _arrow(counted).to_pylist()}

    @property
    def packed(self) -> DataFrame:
        """The patterns as tasks gave them (column `raw`, see `unpacked`), those of different tasks not
        added up: for a transform that does not mind, this saves the way through Java."""
        return self._of(PassKind.PATTERN, "raw")

    def digests(self) -> DataFrame:
        """What the digest of the pass gave, as it came."""
        from pyspark.sql import functions as sf

        return self._frame.where(sf.col("kind") == int(PassKind.DIGEST))

    def _of(self, kind: PassKind, *columns: str, **renamed: str) -> DataFrame:
        from pyspark.sql import functions as sf

        mine = self._frame.where(sf.col("kind") == int(kind))
        return mine.select(*columns, *(sf.col(name).alias(alias) for alias, name in renamed.items()))

    @property
    def _frame(self) -> DataFrame:
        return self._rows.frame() if isinstance(self._rows, KeptRows) else self._rows

    def demand(self, hosts: npt.ArrayLike) -> DataFrame:
        """The demand table; `hosts` is the broker of each class."""
        return self.patterns.mapInArrow(
            _with_destinations(np.asarray(hosts, dtype=np.int32)), spark_schema(TABLES["demand"].schema)
        )

    def about(self) -> dict[str, Any]:
        """The facts that readers of a stored demand need."""
        split = self.counting.split
        return {
            "shares": list(split.shares),
            "keep": split.keep,
            "seed": split.seed,
            "tag_filters": self.tag_filters,
            "classes": self.counting.classes,
            "pane_us": self.counting.pane_us,
        }


@contextmanager
def reckoned(
    spark: Engine,
    source: Source,
    filters: Sequence[Filter] | Shards,
    counting: TallySettings,
    *,
    digest: Digest | None = None,
    partitions: int | None = None,
) -> Iterator[PassResult]:
    """Run a pass and keep its rows until the end of the `with` block. See `reckon`.

    A pass over a tiny source is one job, and its rows are kept here.
    """
    if isinstance(spark, InProcess) or (source.tiny and digest is None):
        yield _kept(spark, source, filters, counting, digest, partitions)
        return
    from pyspark.sql import functions as sf

    shards = filters if isinstance(filters, Shards) else ship_matcher(spark, filters)
    rows = _run(spark, source, shards, counting, digest, partitions)
    rows.persist()
    try:
        large = [int(kind) for kind in _LARGE]
        told = _arrow(rows.where(~sf.col("kind").isin(large)))
        yield _gathered(told, rows, source, counting, shards.total - counting.classes)
    finally:
        rows.unpersist()


def reckon(
    spark: Engine,
    source: Source,
    filters: Sequence[Filter] | Shards,
    counting: TallySettings,
    *,
    partitions: int | None = None,
) -> tuple[Windows, Totals]:
    """Match and count the events of a source: their demands, and what became of every record.

    `filters` are those of the classes, then those of the tags; several passes with the same ones can share
    what `ship_matcher` made of them. `partitions` overrides how many tasks the
    source is handed out to. Memory of a task: a batch, the index of the filters (or one shard of it), and
    its distinct patterns up to a bound.
    """
    if isinstance(spark, InProcess) or source.tiny or not source.small:
        with reckoned(spark, source, filters, counting, partitions=partitions) as found:
            return found.windows(), found.totals
    from pyspark.sql import functions as sf

    shards = filters if isinstance(filters, Shards) else ship_matcher(spark, filters)
    rows = _run(spark, source, shards, counting, None, partitions)
    # One job and nothing kept: all that is wanted fits this process, patterns too.
    told = _arrow(rows.where(sf.col("kind") != int(PassKind.REJECTED)))
    found = _gathered(told, rows, source, counting, shards.total - counting.classes)
    patterns = np.flatnonzero(np.asarray(told["kind"]) == int(PassKind.PATTERN))
    return found.windows_of(_unpacked(told["raw"], patterns)), found.totals


def _kept(
    engine: Engine,
    source: Source,
    filters: Sequence[Filter] | Shards,
    counting: TallySettings,
    digest: Digest | None,
    partitions: int | None,
) -> PassResult:
    """A pass whose rows all come here: from one job, or from the one task that this process is."""
    if not isinstance(engine, InProcess):
        shards = filters if isinstance(filters, Shards) else ship_matcher(engine, filters)
        table = _arrow(_run(engine, source, shards, counting, digest, partitions))
    else:
        with tempfile.TemporaryDirectory() as directory:
            shards = filters if isinstance(filters, Shards) else compile_shards(filters, Path(directory))
            narrow = _narrow(source, shards, counting)
            task = _Task(narrow, shards, counting, digest)
            table = pa.Table.from_batches(task(narrow.here()), schema=PARTIAL)
    tags = shards.total - counting.classes
    return _gathered(table, KeptRows(engine, table), source, counting, tags)


def _narrow(source: Source, shards: Shards, counting: TallySettings) -> Source:
    """The source with what is looked at."""
    axes = counting.grid.axes if counting.grid is not None else ()
    return source.only({*shards.paths, *(axis.path for axis in axes)})


def _run(
    spark: SparkSession,
    source: Source,
    shards: Shards,
    counting: TallySettings,
    digest: Digest | None,
    partitions: int | None,
) -> DataFrame:
    narrow = _narrow(source, shards, counting)
    task = _Task(narrow, shards, counting, digest)
    handed_out = narrow.frame(spark)
    if partitions is not None:
        handed_out = handed_out.repartition(partitions)
    return handed_out.mapInArrow(task, spark_schema(PARTIAL))


# ------------------------------------------------------------------------------------------- in a task


@dataclass(frozen=True)
class _Task:
    """What one task does. Picklable."""

    source: Source
    shards: Shards
    counting: TallySettings
    digest: Digest | None

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally, report = PatternTally(self.counting), _TaskReport()
        # how many patterns the task gave back, of how many events
        given = seen = 0
        chunks = self.shards.match_each(self.source.read(rows), lambda chunk: chunk.batch)
        for chunk, matches in chunks:
            report.add(chunk)
            tally.add(chunk.batch, matches, chunk.arrived)
            seen += chunk.batch.num_rows
            if _is_enough(tally, seen):
                given += len(tally)
                yield from self._patterns(tally)
            if len(report.rejected) > _MOST_REJECTS:
                yield report.drain()
        given += len(tally)
        yield from self._patterns(tally)
        yield report.drain()
        yield report.summary(tally, given)

    def _patterns(self, tally: PatternTally) -> Iterator[pa.RecordBatch]:
        drained = tally.drain()
        if not len(drained):
            return
        if self.digest is not None:
            yield from self.digest(drained)
            return
        for first in range(0, len(drained), _PACKED_PATTERNS):
            last = min(len(drained), first + _PACKED_PATTERNS)
            yield _rows(
                [{"kind": PassKind.PATTERN, "raw": drained.packed(first, last), "count": last - first}]
            )


def _is_enough(tally: PatternTally, seen: int) -> bool:
    """Whether a task that has seen so many events should give its patterns back and start afresh.

    When the table is full; and when hardly an event repeats another, so that a larger one would save
    nothing and a small one stays in the processor's cache. A long task tries larger ones again.
    """
    if len(tally) > _MOST_PATTERNS or tally.class_entries > _MOST_ENTRIES:
        return True
    return len(tally) >= max(_PACKED_PATTERNS, seen // 4) and 4 * len(tally) > 3 * tally.events


class _TaskReport:
    """What a task has to tell besides patterns."""

    def __init__(self) -> None:
        self.rejected: list[dict[str, Any]] = []
        self._pieces: list[dict[str, Any]] = []
        self._unreached: dict[str, int] = {}
        self._good = self._bad = self._faults = 0

    def add(self, chunk: Chunk) -> None:
        """Note a chunk."""
        self._good += chunk.batch.num_rows
        for path, count in chunk.unaddressable.items():
            self._unreached[path] = self._unreached.get(path, 0) + count
        for reject in chunk.rejected:
            self._bad += reject.rows
            self._faults += 1
            self.rejected.append(_reject_row(reject))
        for piece in chunk.counted:
            place = {"kind": PassKind.PIECE, "file": piece.file, "start": piece.start}
            self._pieces.append({**place, "position": piece.lines, "count": piece.rows_in})

    def drain(self) -> pa.RecordBatch:
        """The rejected records so far."""
        rows, self.rejected = self.rejected, []
        return _rows(rows)

    def summary(self, tally: PatternTally, patterns: int) -> pa.RecordBatch:
        """Everything else, at the end."""
        rows: list[dict[str, Any]] = [*self._pieces]
        for (split, name), count in tally.unknown.items():
            rows.append({"kind": PassKind.UNKNOWN, "split": split, "client": name, "count": count})
        for split, span in tally.spans.items():
            times = {"start": span.first_us, "position": span.last_us}
            rows.append({"kind": PassKind.SPAN, "split": split, "count": span.events, **times})
        for path, count in self._unreached.items():
            rows.append({"kind": PassKind.UNREACHED, "file": path, "count": count})
        read = {"count": self._good, "bytes": self._bad, "line": self._faults, "position": tally.thinned}
        rows.append({"kind": PassKind.READ, "start": patterns, **read})
        return _rows(rows)


def partial_rows(kind: PassKind, columns: pa.RecordBatch) -> pa.RecordBatch:
    """Some columns of `PARTIAL` as rows of it; the others are null."""
    rows = columns.num_rows
    arrays: list[Any] = []
    for wanted in PARTIAL:
        index = columns.schema.get_field_index(wanted.name)
        arrays.append(pa.nulls(rows, wanted.type) if index < 0 else columns.column(index))
    arrays[PARTIAL.get_field_index("kind")] = pa.array(np.full(rows, int(kind), dtype=np.int32))
    return pa.RecordBatch.from_arrays(arrays, schema=PARTIAL)


def _rows(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    plain = [{**row, "kind": int(row["kind"])} for row in rows]
    return pa.RecordBatch.from_pylist(plain, schema=PARTIAL)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[Patterns]:
    """In a task: the patterns in a column of packed ones, value by value."""
    return (_unpacked(batch.column("raw"), [k]) for batch in batches for k in range(batch.num_rows))


def _unpacked_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (patterns.batch() for patterns in unpacked(batches))


def _unpacked(raw: Any, rows: Iterable[int]) -> Patterns:
    """The patterns in these rows of a column of packed ones; the large values are not copied."""
    return Patterns.joined([raw[int(row)].as_buffer() for row in rows])


def _reject_row(reject: Reject) -> dict[str, Any]:
    given = {name: getattr(reject, name) for name in (*_PLACE, "line", "reason", "detail", "raw")}
    return {"kind": PassKind.REJECTED, **given, "count": reject.rows}


def _with_destinations(host: npt.NDArray[np.int32]) -> Step:
    """A step that spells classes as lists and adds the brokers where they are hosted."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = TABLES["demand"].schema
        for batch in batches:
            start, classes = class_rows(batch.column("classes"))
            lists = _lists(start, classes)
            away = _lists(*hosts_away(np.asarray(batch.column("publisher")), start, host[classes]))
            given = {name: batch.column(name) for name in batch.schema.names} | {
                "classes": lists,
                "destinations": away,
            }
            yield pa.RecordBatch.from_arrays([given[name] for name in schema.names], schema=schema)

    return step


def _lists(start: Any, values: Any) -> Any:
    offsets: Any = pa.array(np.asarray(start, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values, pa.int32()))


# -------------------------------------------------------------------------------------- on the driver


def _gathered(
    told: pa.Table, rows: DataFrame | KeptRows, source: Source, counting: TallySettings, tag_filters: int
) -> PassResult:
    by_kind: dict[PassKind, list[dict[str, Any]]] = {kind: [] for kind in PassKind}
    few = [int(kind) for kind in PassKind if kind not in _LARGE]
    for row in told.filter(_among(told["kind"], few)).to_pylist():
        by_kind[PassKind(row["kind"])].append(row)
    spans: dict[int, Span] = {}
    for row in by_kind[PassKind.SPAN]:
        spans.setdefault(row["split"], Span()).add(Span(row["count"], row["start"], row["position"]))
    unknown = _summed(((row["split"], row["client"]), row["count"]) for row in by_kind[PassKind.UNKNOWN])
    unread = source.unread({row["file"] for row in by_kind[PassKind.PIECE]})
    return PassResult(
        totals=_totals(by_kind, sum(unknown.values()), len(unread)),
        spans=spans,
        unknown=unknown,
        unreached=_summed((row["file"], row["count"]) for row in by_kind[PassKind.UNREACHED]),
        counting=counting,
        tag_filters=tag_filters,
        _rows=rows,
        _pattern_rows=sum(row["start"] for row in by_kind[PassKind.READ]),
        _unread=tuple(unread),
    )


def _totals(by_kind: dict[PassKind, list[dict[str, Any]]], unknown: int, unread: int) -> Totals:
    columns = ("count", "bytes", "position", "line")
    good, bad, thinned, faults = (sum(row[name] for row in by_kind[PassKind.READ]) for name in columns)
    pieces = by_kind[PassKind.PIECE]
    rows_in = sum(row["count"] for row in pieces) if pieces else good + bad
    if rows_in != good + bad:
        raise SparkError(
            f"{rows_in:,} records went in, but {good:,} were used and {bad:,} rejected. "
            "A file may have changed while it was read: run again."
        )
    files = len({row["file"] for row in pieces})
    return Totals(rows_in, good, bad, thinned, unknown, faults + unread, files)


def _summed(pairs: Any) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for key, count in pairs:
        found[key] = found.get(key, 0) + count
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def _of_each_first(rejects: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Some rows of the quarantine, in order: the first of each file and reason, then the second ones."""
    seen: Counter[tuple[str | None, str]] = Counter()
    turns = []
    for index, row in enumerate(rejects):
        turns.append((seen[row["file"], row["reason"]], index))
        seen[row["file"], row["reason"]] += 1
    return [rejects[index] for index in sorted(index for _, index in sorted(turns)[:most])]


def _equal(column: Any, value: int) -> Any:
    import pyarrow.compute as pc

    return pc.equal(column, pa.scalar(value))


def _among(column: Any, values: Sequence[int]) -> Any:
    import pyarrow.compute as pc

    return pc.is_in(column, value_set=pa.array(values, column.type))


def _arrow(frame: DataFrame) -> pa.Table:
    return frame.toArrow()
