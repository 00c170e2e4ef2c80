"""Live samples -> the same pass as a log -> panes, micro-batch by micro-batch, exactly once.

Owns the streaming job (`follow`, `PaneJob`): which samples of a micro-batch are counted, and the order of
steps that makes a restart harmless. Counting is `passes`, the stored panes and their windows are `panes`,
where samples come from is `samples`. Both inputs, `landed` files and `live_samples`, go the same way.

Exactly once: Spark writes down which samples a micro-batch has before it runs, and gives the same number
and samples again after a crash. What is made of them depends on earlier batches alone. A batch becomes
visible by one rename, the last step, and is left alone from then on. So kill -9 at any moment and a restart
with the same checkpoint lose nothing and double nothing. Checkpoint and panes belong together: `follow`
refuses one without the other.

Time is event time. The *mark* is the newest time seen in earlier batches.

    quarantined no event: its id is null or empty, or it came as a `FAULT`, a line or file that could not
                be read. Kept beside the panes (`PaneStore.quarantine`), never a duplicate, moves no mark.
    duplicate   its id was counted already: in this batch (the earliest time stays, then the smallest hash
                of the row), or in an earlier one, after which the newest time was not more than `dedupe_s`
                before the mark. Left out. Ids are compared as texts, so different events are never taken
                for one.
    dropped     not a duplicate, and more than `keep_s` older than the mark. Left out.
    late        neither, and more than `late_s` older than the mark. Counted in its pane all the same: a
                window that is read again later has it.

Events without a time are neither late nor dropped; they are in no window, only in `PaneStore.everything`.

The driver decides who is counted: it holds the ids and times of one micro-batch, and about as many ids of
earlier ones; so limit how many rows a trigger takes. Events themselves stay in tasks.

Where it runs: classic sessions, local or on a cluster, with `out` in a file system of the driver. Over
Connect Spark calls the job in a process beside the server: `out` and checkpoint are paths there, and
`follow` cannot check them against each other.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from ramify.content.events.events import BODY, FIXED_COLUMNS
from ramify.content.filters.filters import Filter
from ramify.durable import write_parquet
from ramify.errors import InputError
from ramify.pipeline.passes.matching import Shards, ship_matcher
from ramify.pipeline.passes.passes import PassResult, reckoned
from ramify.pipeline.passes.sources import FrameSource
from ramify.pipeline.passes.table_files import QUARANTINE, spark_schema
from ramify.pipeline.session.failures import doing
from ramify.pipeline.session.session import is_connect
from ramify.pipeline.stream.panes import UNKNOWN, Facts, PaneStore
from ramify.pipeline.stream.samples import FAULT, landed
from ramify.planning.demand.tally import TallySettings

__all__ = ["PaneJob", "Sifting", "finish", "follow", "landed", "sift"]

_TIME, _HASH, _ROW, _FAULTY = "_us", "_hash", "_row", "_faulty"


def follow(
    spark: SparkSession,
    samples: DataFrame,
    filters: Sequence[Filter],
    counting: TallySettings,
    out: str | Path,
    *,
    checkpoint: str | Path | None = None,
    pane_s: float = 300.0,
    late_s: float = 900.0,
    dedupe_s: float | None = 3600.0,
    keep_s: float | None = None,
    trigger_s: float | None = None,
    merge_every: int = 64,
) -> StreamingQuery:
    """Count a streaming frame of events into panes below `out` (read them with `PaneStore`).

    `filters` and `counting` are those of `reckon`; panes are `pane_s` long. `dedupe_s=None` looks for no
    duplicates, `keep_s=None` drops nothing. The checkpoint is `out/checkpoint` unless given. With
    `trigger_s` a micro-batch starts every so many seconds, until the query is stopped; without, the query
    counts what is there, in as many micro-batches as the source's limit asks for, and ends. Every
    `merge_every` micro-batches, what is finished is merged (`PaneStore.compact`).

    Subscriptions, split, grid and panes stay the same for all of a directory; when they change, follow into
    another one. Which client is attached where, and the times above, may change at a restart. Cost of a
    micro-batch: a pass, and reading the ids of the last `dedupe_s`.

    Raises
    ------
    InputError
        When the panes here were counted for something else, or do not belong to the checkpoint.
    """
    if pane_s <= 0 or min(late_s, dedupe_s or 0, keep_s or 0, trigger_s or 0) < 0 or merge_every < 1:
        raise InputError("a pane must be longer than 0 s, merge_every at least 1, and no time below 0")
    counting = replace(counting, pane_us=round(pane_s * 1e6))
    job = PaneJob.of(filters, counting, out, late_s=late_s, dedupe_s=dedupe_s, keep_s=keep_s)
    job.merge_every = merge_every
    place = f"file://{job.store.out}/checkpoint" if checkpoint is None else str(checkpoint)
    if not is_connect(spark):
        job.store.begin(job.about)
        _check_together(job.store, place)
    writer = samples.writeStream.foreachBatch(job).option("checkpointLocation", place)
    if trigger_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{trigger_s} seconds")
    with doing("following samples"):
        return writer.start()


def finish(query: StreamingQuery) -> None:
    """Wait for a query to end by itself. Raises `SparkError` when it failed."""
    with doing("following samples"):
        query.awaitTermination()


@dataclass
class PaneJob:
    """What is done with every micro-batch. Picklable: over Connect it runs in another process."""

    filters: Sequence[Filter]
    counting: TallySettings
    store: PaneStore
    about: Mapping[str, Any]
    paths: frozenset[str]
    late_us: int
    dedupe_us: int | None
    keep_us: int | None
    merge_every: int = 64
    # The session that the matcher was sent in, once. Spark makes a new handle for every batch; this one
    # must stay, as what was sent waits as long as the handle lives.
    _session: SparkSession | None = field(default=None, repr=False)
    _shards: Shards | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        filters: Sequence[Filter],
        counting: TallySettings,
        out: str | Path,
        *,
        late_s: float,
        dedupe_s: float | None,
        keep_s: float | None,
    ) -> "PaneJob":
        """A job; see `follow` for its parts."""
        axes = counting.grid.axes if counting.grid is not None else ()
        paths = {path for one in filters for path in one.paths} | {axis.path for axis in axes}
        return cls(
            filters=tuple(filters),
            counting=counting,
            store=PaneStore(Path(out).absolute()),
            about=_about(filters, counting),
            paths=frozenset(paths),
            late_us=round(late_s * 1e6),
            dedupe_us=None if dedupe_s is None else round(dedupe_s * 1e6),
            keep_us=None if keep_s is None else round(keep_s * 1e6),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_shards": None}

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Count a micro-batch, unless that has been done. Deterministic, given the batches before it."""
        store = self.store
        store.begin(self.about)
        if store.has(number):
            return
        if self._session is None or self._shards is None:
            self._session = batch.sparkSession
            self._shards = ship_matcher(self._session, self.filters)
        mark_us = store.facts().mark_us
        frame, names = self._numbered(batch)
        frame.persist()
        try:
            rows = frame.select("_id", _TIME, _HASH, _ROW, _FAULTY).toArrow()
            rows, faults = _apart(rows, frame)
            sifting = self._sift(rows, number, mark_us)
            self._publish(number, sifting.facts, _without(frame, sifting, names), faults)
        finally:
            frame.unpersist()
        if self.dedupe_us is not None:
            self._ids.forget(number, mark_us, self.dedupe_us)
        if (number + 1) % self.merge_every == 0:
            store.compact()

    @property
    def _ids(self) -> "_Ids":
        return _Ids(self.store.out / "ids")

    def _sift(self, rows: pa.Table, number: int, mark_us: int | None) -> "Sifting":
        """Decide who is counted, and note the ids."""
        if self.dedupe_us is None:
            return sift(rows, mark_us, None, self.late_us, self.keep_us)
        seen = self._ids.before(number, mark_us, self.dedupe_us)
        sifting = sift(rows, mark_us, seen, self.late_us, self.keep_us)
        self._ids.write(number, sifting.fresh, sifting.facts.mark_us)
        return sifting

    def _publish(self, number: int, facts: Facts, events: DataFrame, faults: pa.Table) -> None:
        assert self._session is not None, "a batch has come"
        assert self._shards is not None, "the matcher was sent"
        with reckoned(self._session, FrameSource.of(events), self._shards, self.counting) as found:
            patterns = found.patterns.toArrow()
            unknown = _strangers(events, self.counting, found)
            totals = found.totals
            nameless = found.quarantine.toArrow() if totals.quarantined else QUARANTINE.empty_table()
        lost = int(np.asarray(faults["rows"]).sum())
        facts = replace(
            facts,
            rows_in=facts.rows_in + lost,
            quarantined=facts.quarantined + lost,
            thinned=totals.thinned,
            unknown=totals.unknown,
            spans=found.spans,
        )
        quarantine = pa.concat_tables([faults, nameless.cast(QUARANTINE)])
        self.store.publish(number, facts, patterns, unknown, quarantine)

    def _numbered(self, batch: DataFrame) -> tuple[DataFrame, list[str]]:
        """The needed columns under numbers, what is decided by beside them; and the columns' own names.

        By number, because Spark stumbles over names with dots and over those that differ in case alone.
        """
        wanted = ({*FIXED_COLUMNS.names} - {BODY}) | self.paths
        kept = [i for i, name in enumerate(batch.columns) if name in wanted]
        names = [batch.columns[i] for i in kept]
        for needed in ("id", "time"):
            if needed not in names:
                raise InputError(f"the samples have no column {needed!r}; give them the columns of events")
        numbered = batch.toDF(*(f"c{i}" for i in range(len(batch.columns))))
        fault = sf.col(f"c{len(batch.columns) - 1}") if _has_faults(batch) else sf.lit(None)
        columns = (sf.col(f"c{i}").alias(f"c{k}") for k, i in enumerate(kept))
        frame = numbered.select(*columns, fault.alias(FAULT))
        beside = {
            _FAULTY: sf.col(FAULT).isNotNull(),
            "_id": sf.col(f"c{names.index('id')}"),
            _TIME: sf.unix_micros(f"c{names.index('time')}"),
            _HASH: sf.xxhash64(*(f"c{k}" for k in range(len(names)))),
            _ROW: sf.monotonically_increasing_id(),
        }
        return frame.withColumns(beside), names


# ---------------------------------------------------------------------------------- which are counted


def _has_faults(batch: DataFrame) -> bool:
    last = batch.schema[-1]
    return last.name == FAULT and isinstance(last.dataType, StructType)


def _apart(rows: pa.Table, frame: DataFrame) -> tuple[pa.Table, pa.Table]:
    """The rows that are events, and what the others tell (`QUARANTINE`). No job when there are none."""
    faulty: Any = rows[_FAULTY]
    if not pc.any(faulty).as_py():
        return rows, QUARANTINE.empty_table()
    told = frame.where(sf.col(_FAULTY)).select(f"{FAULT}.*").toArrow()
    return rows.filter(pc.invert(faulty)), told.select(QUARANTINE.names).cast(QUARANTINE)


@dataclass(frozen=True, slots=True)
class Sifting:
    """Who of a batch is counted: all rows but `removed` (numbers of rows); and the ids to remember."""

    facts: Facts
    removed: npt.NDArray[np.int64]
    fresh: Any


def sift(
    rows: pa.Table, mark_us: int | None, seen: Iterable[Any] | None, late_us: int, keep_us: int | None
) -> Sifting:
    """Decide by ids, times, hashes and numbers of rows (`_id`, `_us`, `_hash`, `_row`); see the module.

    `seen` are columns of ids of earlier batches; None looks for no duplicates. Which of several rows that
    are equal in all columns stays makes no difference; all else depends on the rows, not on their order.
    Rows without an id are told as quarantined, and not among the removed: the pass quarantines them.
    No Python per row.
    """
    compute: Any = pc  # the stubs take each result for a scalar
    rows_in = len(rows)
    rows = rows.filter(compute.fill_null(compute.not_equal(rows["_id"], ""), False))
    ids = rows["_id"].combine_chunks()
    duplicate = np.zeros(len(rows), dtype=np.bool_)
    if seen is not None:
        duplicate |= _repeated(rows)
        for earlier in _lots(seen, len(ids)):
            known = earlier.filter(compute.is_in(earlier, value_set=ids))
            duplicate |= np.asarray(compute.is_in(ids, value_set=known))
    times = rows[_TIME].combine_chunks()
    timed = np.asarray(times.is_valid())
    age = (0 if mark_us is None else mark_us) - np.asarray(times.fill_null(0))
    timed &= mark_us is not None
    dropped = np.zeros_like(duplicate) if keep_us is None else ~duplicate & timed & (age > keep_us)
    late = ~duplicate & ~dropped & timed & (age > late_us)
    marks = [us for us in (mark_us, compute.max(times).as_py()) if us is not None]
    counts = [int(flag.sum()) for flag in (duplicate, dropped, late)]
    facts = Facts(
        rows_in, rows_in - len(rows), counts[0], counts[1], counts[2], mark_us=max(marks, default=None)
    )
    removed = np.asarray(rows[_ROW].combine_chunks())[duplicate | dropped]
    return Sifting(facts, removed, ids.filter(pa.array(~duplicate)))


def _lots(columns: Iterable[Any], rows: int) -> Iterator[Any]:
    """The same ids, at least so many at a time: every lookup goes through the whole batch once."""
    held: list[Any] = []
    for column in columns:
        held.append(column)
        if sum(map(len, held)) >= rows:
            yield pa.concat_arrays(held)
            held = []
    if held:
        yield pa.concat_arrays(held)


def _repeated(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """The rows whose id another row has too, but for the first of each by time, then hash."""
    compute: Any = pc
    found = np.zeros(len(rows), dtype=np.bool_)
    coded = rows["_id"].combine_chunks().dictionary_encode(null_encoding="encode")
    code = np.asarray(coded.indices)
    several = np.flatnonzero(np.bincount(code, minlength=1)[code] > 1)
    if len(several):
        columns: dict[str, Any] = {name: rows[name] for name in (_TIME, _HASH, _ROW)}
        some = pa.table({"code": pa.array(code), **columns}).take(several)
        keys = [(name, "ascending") for name in ("code", _TIME, _HASH, _ROW)]
        order = np.asarray(compute.sort_indices(some, sort_keys=keys))
        ordered = code[several][order]
        found[several[order[1:][ordered[1:] == ordered[:-1]]]] = True
    return found


def _without(frame: DataFrame, sifting: Sifting, names: Sequence[str]) -> DataFrame:
    """The events to count, and those without an id, under their own names."""
    frame = frame.where(~sf.col(_FAULTY))
    if len(sifting.removed):
        table = pa.table({_ROW: pa.array(sifting.removed)})
        removed = frame.sparkSession.createDataFrame(table)
        frame = frame.join(sf.broadcast(removed), _ROW, "left_anti")
    return frame.select(*(f"c{k}" for k in range(len(names)))).toDF(*names)


@dataclass(frozen=True, slots=True)
class _Ids:
    """The ids that each batch counted: a file `batch=<n>.parquet`, with the mark after the batch in it.

    A batch is compared with those of smaller numbers only, and by marks that are known before it: a replay
    decides the same.
    """

    under: Path

    def before(self, number: int, mark_us: int | None, dedupe_us: int) -> Iterator[Any]:
        """The ids that count for a batch, one column for each earlier one."""
        for n, gone in self._batches(number, mark_us, dedupe_us):
            if not gone:
                yield pq.ParquetFile(self._place(n)).read()["id"].combine_chunks()

    def write(self, number: int, ids: Any, mark_us: int | None) -> None:
        """Note the ids of a batch, over what a run that broke off has left."""
        self.under.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": ids.cast(pa.string())})
        write_parquet(self._place(number), table.replace_schema_metadata({"mark_us": json.dumps(mark_us)}))

    def forget(self, number: int, mark_us: int | None, dedupe_us: int) -> None:
        """Remove the ids that did not count for a batch, nor will for a later one."""
        for n, gone in self._batches(number, mark_us, dedupe_us):
            if gone:
                self._place(n).unlink(missing_ok=True)

    def _place(self, number: int) -> Path:
        return self.under / f"batch={number:012d}.parquet"

    def _batches(self, number: int, mark_us: int | None, dedupe_us: int) -> Iterator[tuple[int, bool]]:
        """Batches with smaller numbers, and whether each is too long ago."""
        names = (path.stem.removeprefix("batch=") for path in self.under.glob("batch=*.parquet"))
        for n in sorted(int(name) for name in names if int(name) < number):
            noted = pq.read_schema(self._place(n)).metadata or {}
            mark = json.loads(noted[b"mark_us"])
            yield n, mark is not None and mark_us is not None and mark < mark_us - dedupe_us


# ---------------------------------------------------------------------------------- unknown publishers


def _strangers(events: DataFrame, counting: TallySettings, found: PassResult) -> pa.Table:
    """Events without a known broker per pane, which a pass tells per window of the split only.

    Costs nothing when there are none.
    """
    if not found.totals.unknown:
        return UNKNOWN.empty_table()
    columns = ("id", "publisher", "time") if "publisher" in events.columns else ("id", "time")
    named = events.where(sf.col("id") != "")  # and not null
    rows = named.select(*columns).mapInArrow(_Strangers(counting), spark_schema(UNKNOWN))
    return rows.groupBy(*UNKNOWN.names[:-1]).agg(sf.sum("events").alias("events")).toArrow()


@dataclass(frozen=True)
class _Strangers:
    """In a task: counts the events whose publisher has no known broker. Picklable."""

    counting: TallySettings

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            kept = self.counting.split.kept(batch.column("id"))
            lost = _lost(batch, self.counting.brokers)
            mine = batch.filter(pa.array(lost if kept is None else lost & kept))
            if mine.num_rows:
                yield self._summed(mine)

    def _summed(self, mine: pa.RecordBatch) -> pa.RecordBatch:
        pane_us, time = self.counting.pane_us, mine.column("time")
        ticks: Any = time.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        absent = np.asarray(ticks.is_null())
        panes = np.asarray(ticks.fill_null(0)) // pane_us * pane_us
        columns: list[Any] = [
            pa.array(self.counting.split.windows(mine.column("id")).astype(np.int32)),
            pa.array(panes, mask=absent),
            _publishers(mine),
            pa.array(np.ones(mine.num_rows, dtype=np.int64)),
        ]
        table = pa.Table.from_arrays(columns, schema=UNKNOWN)
        summed = table.group_by(UNKNOWN.names[:-1]).aggregate([("events", "sum")])
        whole = summed.rename_columns(UNKNOWN.names).select(UNKNOWN.names).cast(UNKNOWN)
        return whole.combine_chunks().to_batches()[0]


def _publishers(batch: pa.RecordBatch) -> Any:
    index = batch.schema.get_field_index("publisher")
    return batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, pa.string())


def _lost(batch: pa.RecordBatch, brokers: Collection[str]) -> Any:
    """bool per row; a Python step per distinct name only."""
    coded: Any = _publishers(batch).dictionary_encode()
    names = coded.dictionary.to_pylist()
    lost = np.array([*(name not in brokers for name in names), True], dtype=np.bool_)
    return lost[np.asarray(coded.indices.fill_null(len(names)), dtype=np.int64)]


# ------------------------------------------------------------------------------- what belongs together


def _about(filters: Sequence[Filter], counting: TallySettings) -> dict[str, Any]:
    """What the numbers in panes depend on."""
    digest = hashlib.sha256(b"".join(one.key for one in filters))
    digest.update(np.packbits(np.asarray(counting.vacant, dtype=np.bool_)).tobytes())
    split = {**asdict(counting.split), "shares": list(counting.split.shares)}
    return {
        "format": "ramify-panes/1",
        "subscriptions": digest.hexdigest(),
        "classes": counting.classes,
        "tag_filters": len(filters) - counting.classes,
        "grid": None if counting.grid is None else repr(counting.grid),
        "by_client": counting.by_client,
        "pane_us": counting.pane_us,
        **split,
    }


def _check_together(store: PaneStore, checkpoint: str) -> None:
    """Raise `InputError` for panes without their checkpoint, or a checkpoint without its panes."""
    path = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
    if "://" in checkpoint and not checkpoint.startswith("file:"):
        return
    done = [int(entry.name) for entry in (path / "commits").glob("*") if entry.name.isdecimal()]
    begun = any(entry.name.isdecimal() for entry in (path / "offsets").glob("*"))
    if not begun and store.facts().rows_in:
        raise InputError(
            f"there are panes here, and the checkpoint {path} is empty: samples would be counted again, or "
            "not at all. Put the checkpoint back, or take another directory",
            path=str(store.out),
        )
    if done and not store.has(max(done)):
        raise InputError(
            f"the checkpoint {path} has {len(done)} batches done whose panes are not here: they would be "
            "missing. Put the panes back, or take another checkpoint",
            path=str(store.out),
        )
