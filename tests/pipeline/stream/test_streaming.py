"""Claims about streaming: it counts what one pass over the same samples would, through crashes too."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import streaming_job as world
from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, SparkError
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.passes import reckon, reckoned
from ramify.pipeline.passes.sources import FrameSource
from ramify.pipeline.stream.panes import UNKNOWN, Facts, PaneStore
from ramify.pipeline.stream.samples import SampleLog, live_samples
from ramify.pipeline.stream.streaming import PaneJob, finish, follow, landed, sift
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.pattern_rows import PATTERNS
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings
from ramify.planning.demand.windows import Windows


def us(event: Event) -> int | None:
    return None if event.time is None else round(event.time.timestamp() * 1e6)


class Oracle:
    """A loop that decides, sample by sample, what the module says; no events are equal but duplicates."""

    def __init__(self, late_us: int, dedupe_us: int | None, keep_us: int | None) -> None:
        self.late_us, self.dedupe_us, self.keep_us = late_us, dedupe_us, keep_us
        self.mark: int | None = None
        self.batches: list[tuple[set[str], int | None]] = []
        self.counted: list[Event] = []
        self.duplicates = self.dropped = self.late = 0

    def add(self, batch: Iterable[Event]) -> None:
        mark, mine = self.mark, set[str]()
        known = {
            id_
            for ids, after in self.batches
            for id_ in ids
            if self.dedupe_us is not None
            and not (after is not None and mark is not None and after < mark - self.dedupe_us)
        }
        newest = mark
        for event in batch:
            time_us = us(event)
            if time_us is not None:
                newest = time_us if newest is None else max(newest, time_us)
            if self.dedupe_us is not None and event.id in known | mine:
                self.duplicates += 1
                continue
            mine.add(event.id)
            age = None if time_us is None or mark is None else mark - time_us
            if self.keep_us is not None and age is not None and age > self.keep_us:
                self.dropped += 1
                continue
            self.late += age is not None and age > self.late_us
            self.counted.append(event)
        self.mark = newest
        self.batches.append((mine, newest))


def told(facts: Facts) -> tuple[int, int, int, int | None]:
    return facts.duplicates, facts.dropped, facts.late, facts.mark_us


def check_same(one: Windows, other: Windows) -> None:
    for a, b in zip((*one.parts, one.whole), (*other.parts, other.whole), strict=True):
        for name in ("publisher", "client", "cell", "start", "classes", "count", "size", "tags"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert (a.clients, a.unknown, a.seconds, a.factor) == (b.clients, b.unknown, b.seconds, b.factor)


def table_of(events: Sequence[Event]) -> pa.Table:
    return pa.Table.from_batches([events_to_batch(events, world.SCHEMA)])


# ------------------------------------------------------------------------------------ without Spark

sample = st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 100)))
limit = st.one_of(st.none(), st.integers(0, 60))


@given(
    batches=st.lists(st.lists(sample, max_size=8), max_size=5),
    late=st.integers(0, 60),
    keep=limit,
    dedupe=limit,
    order=st.randoms(use_true_random=False),
)
def test_who_is_counted_is_what_a_loop_decides_in_any_order_of_rows(
    batches: list[list[tuple[int, int | None]]],
    late: int,
    keep: int | None,
    dedupe: int | None,
    order: random.Random,
) -> None:
    oracle, seen = Oracle(late, dedupe, keep), list[tuple[Any, int | None]]()
    facts = Facts()
    for batch in batches:
        # A loop meets the earliest first; the column `_hash` breaks ties, and 0 is a row without an id.
        ordered = sorted(batch, key=lambda row: (row[1] is None, row[1] or 0))
        oracle.add(
            Event(
                f"e{id_}",
                time=None if t is None else world.START + timedelta(microseconds=t - world.START_US % 1),
            )
            for id_, t in ordered
            if id_
        )
        rows = [
            (f"e{id_}" if id_ else order.choice(["", None]), t, k) for k, (id_, t) in enumerate(ordered)
        ]
        order.shuffle(rows)
        columns: dict[str, Any] = {
            "_id": pa.array([row[0] for row in rows], pa.string()),
            "_us": pa.array([None if r[1] is None else r[1] + world.START_US for r in rows], pa.int64()),
            "_hash": pa.array([row[2] for row in rows], pa.int64()),
            "_row": pa.array(range(len(rows)), pa.int64()),
        }
        mark = facts.mark_us
        known = [
            ids
            for ids, after in seen
            if dedupe is not None and not (after is not None and mark is not None and after < mark - dedupe)
        ]
        found = sift(pa.table(columns), mark, None if dedupe is None else known, late, keep)
        facts = facts.add(found.facts)
        seen.append((found.fresh, facts.mark_us))
        assert len(found.removed) == found.facts.duplicates + found.facts.dropped
    assert told(facts) == (oracle.duplicates, oracle.dropped, oracle.late, oracle.mark)
    assert facts.quarantined == sum(id_ == 0 for batch in batches for id_, _ in batch)
    assert facts.counted == len(oracle.counted)


def test_of_two_rows_with_one_id_the_earlier_one_stays() -> None:
    columns: dict[str, Any] = {
        "_id": ["a", "b", "a"],
        "_us": [9, 5, 3],
        "_hash": [1, 1, 1],
        "_row": [7, 8, 9],
    }
    assert sift(pa.table(columns), None, [], 0, None).removed.tolist() == [7]


def test_panes_and_checkpoint_belong_together(tmp_path: Path) -> None:
    class NoSpark:
        __module__ = "classic"

    def begin(**more: Any) -> None:
        spark: Any = NoSpark()
        follow(spark, spark, world.CLASSES.filters, world.counting(), tmp_path / "out", **more)

    counting = world.counting(pane_us=300 * 10**6)
    job = PaneJob.of(world.CLASSES.filters, counting, tmp_path / "out", late_s=0, dedupe_s=0, keep_s=0)
    job.store.begin(job.about)
    job.store.publish(0, Facts(rows_in=1, thinned=1), PATTERNS.empty_table(), UNKNOWN.empty_table())
    with pytest.raises(InputError, match="is empty: samples would be counted again"):
        begin()
    for name in ("offsets/0", "commits/0", "offsets/1", "commits/1"):
        (tmp_path / "checkpoint" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / name).touch()
    with pytest.raises(InputError, match="whose panes are not here"):
        begin(checkpoint=tmp_path / "checkpoint")
    with pytest.raises(InputError, match="another pane_us"):
        begin(pane_s=7)


# ------------------------------------------------------------------------------------------ on Spark


def test_streams_from_files_and_from_a_log_count_what_one_pass_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    events = world.random_samples(random.Random(seed), 300)
    lots = [events[k : k + 150] for k in range(0, len(events), 150)]
    log, land = SampleLog(tmp_path / "log"), tmp_path / "land"
    land.mkdir()
    for number, lot in enumerate(lots):
        pq.write_table(table_of(lot), land / f"{number}.parquet")
        os.utime(land / f"{number}.parquet", (number * 10, number * 10))
        log.append(events_to_batch(lot, world.SCHEMA))
    counting = world.counting(split=Split((0.5, 0.5), keep=0.8, seed=3), by_client=True)
    stores = []
    for name, samples in (
        ("files", landed(spark, land, world.SCHEMA, files_per_trigger=1)),
        ("log", live_samples(spark, log.path, world.SCHEMA, rows_per_trigger=150, rows_per_task=40)),
    ):
        times = {"pane_s": 10, "late_s": 20, "dedupe_s": 40, "keep_s": 60}
        finish(follow(spark, samples, world.CLASSES.filters, counting, tmp_path / name, **times))  # type: ignore[arg-type]
        stores.append(PaneStore(tmp_path / name))
    oracle = Oracle(20 * 10**6, 40 * 10**6, 60 * 10**6)
    for lot in lots:
        oracle.add(lot)
    batch = spark.createDataFrame(table_of(oracle.counted))
    expected, totals = reckon(spark, FrameSource.of(batch), world.CLASSES.filters, counting)
    for store in stores:
        check_same(store.everything(), expected)
        facts = store.facts()
        assert told(facts) == (oracle.duplicates, oracle.dropped, oracle.late, oracle.mark)
        assert (facts.rows_in, facts.counted) == (len(events), totals.counted)
    assert stores[0].patterns().equals(stores[1].patterns())
    assert oracle.duplicates
    assert oracle.dropped
    assert oracle.late


def test_rows_without_an_id_are_rejected_by_number_and_the_others_stay() -> None:
    ids = [["a", None], [""], [], ["b", "", "c", None]]
    batches = [pa.RecordBatch.from_pydict({"c0": pa.array(lot, pa.string())}) for lot in ids]
    chunks = list(FrameSource(EventSchema(), ("id",), None).read(iter(batches)))
    assert [chunk.batch.column("id").to_pylist() for chunk in chunks] == [["a"], [], [], ["b", "c"]]
    assert [[r.position for r in chunk.rejected] for chunk in chunks] == [[1], [2], [], [4, 6]]
    first = chunks[0].rejected[0]
    assert (first.file, first.start, first.line, first.reason, first.rows) == (None, 0, None, "no_id", 1)


def test_a_stream_of_files_counts_and_quarantines_what_a_batch_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    land, out = tmp_path / "land", tmp_path / "out"
    _land_all_kinds(land)
    schema = EventSchema({"price": AttributeType.INT64, "Price": AttributeType.STRING})
    filters = ("price < 3", "`Price` = 'b'", "`Price` IS NULL")
    held = [Subscription(f"s{k}", f"c{k}", f"v{k}", sql=sql) for k, sql in enumerate(filters)]
    classes = Classes.collapse(held, world.OVERLAY, schema.attributes)
    counting = TallySettings.of(
        classes, world.OVERLAY, world.ATTACHED, split=Split((0.5, 0.5), keep=0.9, seed=3)
    )
    files = Files.of(spark, [str(land)], schema)
    with reckoned(spark, files, classes.filters, counting) as found:
        expected, totals = found.windows(), found.totals
        order = [("file", "ascending"), ("position", "ascending"), ("reason", "ascending")]
        quarantine = found.quarantine.toArrow().sort_by(order)
    for _ in range(2):  # the second time, nothing is new
        samples = landed(spark, land, schema, files_per_trigger=2)
        finish(follow(spark, samples, classes.filters, counting, out, pane_s=10, merge_every=2))
    store = PaneStore(out)
    check_same(store.everything(), expected)
    assert store.quarantine().to_pylist() == quarantine.to_pylist()
    reasons = {(Path(row["file"]).name, row["reason"], row["line"]) for row in quarantine.to_pylist()}
    assert reasons == {
        ("cut.parquet", "damaged_file", None),
        ("nameless.parquet", "missing_column", None),
        ("ids.parquet", "no_id", None),
        ("lines.ndjson", "no_id", 2),
        ("lines.ndjson", "not_json", 3),
        ("notes.txt", "unknown_kind", None),
    }
    facts = store.facts()
    assert (facts.rows_in, facts.quarantined, facts.faults) == (totals.rows_in, totals.quarantined, 7)
    assert (facts.thinned, facts.unknown, facts.counted) == (totals.thinned, totals.unknown, totals.counted)
    assert facts.counted > 0


def _land_all_kinds(land: Path) -> None:
    """Good events of every form, with price and Price; and one file or line for each thing to go wrong."""
    land.mkdir()
    schema = EventSchema({"price": AttributeType.INT64, "Price": AttributeType.STRING})
    events = [Event(f"p{k}", "ann", None, {"price": k, "Price": "ab"[k % 2]}) for k in range(40)]
    whole = pa.Table.from_batches([events_to_batch(events, schema)])
    pq.write_table(whole, land / "good.parquet")
    data = (land / "good.parquet").read_bytes()
    (land / "cut.parquet").write_bytes(data[: len(data) // 2])
    pq.write_table(whole.select(["price", "Price"]), land / "nameless.parquet")
    columns: dict[str, Any] = {
        "id": ["q0", None, "", "q3"],
        "publisher": ["bob"] * 4,
        "price": [1, 1, 1, 9],
    }
    pq.write_table(pa.table(columns), land / "ids.parquet")
    lines = ['{"id": "j0", "publisher": "bob", "price": 1, "Price": "b"}', '{"price": 1}', '{"id": "j1', ""]
    (land / "lines.ndjson").write_text("\n".join([*lines, '{"id": "j2", "publisher": "eve"}']))
    cloud = {"specversion": "1.0", "id": "k", "source": "/s", "type": "t", "data": {"price": 2}}
    (land / "cloud.ndjson").write_text(json.dumps(cloud))
    (land / "notes.txt").write_text("nothing of ours")


def test_samples_without_an_id_are_quarantined_and_told(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(6)
    lot = table_of([world.random_event(rng, k) for k in range(30)])
    ids = [None if k % 7 == 0 else "" if k % 7 == 1 else f"e{k}" for k in range(30)]
    time = pa.array([None] * 28 + [world.START + timedelta(days=9)] * 2, lot.schema.field("time").type)
    lot = lot.set_column(lot.schema.names.index("time"), "time", time)
    lot = lot.set_column(lot.schema.names.index("id"), "id", pa.array(ids, pa.string()))  # type: ignore[arg-type]
    job = PaneJob.of(
        world.CLASSES.filters, world.counting(pane_us=10**7), tmp_path, late_s=5, dedupe_s=9, keep_s=None
    )
    job(spark.createDataFrame(lot), 0)
    facts = job.store.facts()
    assert (facts.rows_in, facts.quarantined, facts.duplicates) == (30, 10, 0)
    assert facts.counted + facts.unknown == 20
    assert facts.mark_us is None  # the two with a time have no id
    assert job.store.quarantine()["reason"].to_pylist() == ["no_id"] * 10
    assert job.store.everything().whole.events == facts.counted
    assert sum(job.store.everything().whole.unknown.values()) == facts.unknown


def test_attributes_that_differ_in_case_alone_are_two_in_a_log_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = EventSchema({"price": AttributeType.INT64, "Price": AttributeType.STRING})
    events = [Event(f"p{k}", "ann", None, {"price": k, "Price": "ab"[k % 2]}) for k in range(10)]
    batch = events_to_batch(events, schema)
    log = SampleLog(tmp_path / "log")
    log.append(batch)
    held = [
        Subscription(f"s{k}", "c", "v1", sql=sql) for k, sql in enumerate(("price < 3", "`Price` = 'b'"))
    ]
    classes = Classes.collapse(held, world.OVERLAY, schema.attributes)
    counting = TallySettings.of(classes, world.OVERLAY, world.ATTACHED)
    samples = live_samples(spark, log.path, schema)
    finish(follow(spark, samples, classes.filters, counting, tmp_path / "out"))
    frame = spark.createDataFrame(pa.Table.from_batches([batch]))
    expected, _ = reckon(spark, FrameSource.of(frame), classes.filters, counting)
    check_same(PaneStore(tmp_path / "out").everything(), expected)
    assert sorted(expected.whole.count.tolist()) == [1, 2, 3, 4]  # both, price alone, none, Price alone


def test_a_stream_that_spark_cannot_read_ends_with_the_file_and_the_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "land").mkdir()
    (tmp_path / "land" / "cut.parquet").write_bytes(b"PAR1 and no more")
    own = spark.readStream.schema("id string, time timestamp").parquet(str(tmp_path / "land"))
    with pytest.raises(SparkError, match=r"cut\.parquet.*is not a Parquet file") as raised:
        finish(follow(spark, own, world.CLASSES.filters, world.counting(), tmp_path / "out"))
    assert "awaitResult" not in str(raised.value)


def test_a_replayed_batch_changes_nothing_and_one_that_broke_off_is_done_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    events = [world.random_event(rng, k) for k in range(60)]
    job = PaneJob.of(
        world.CLASSES.filters, world.counting(pane_us=10**7), tmp_path, late_s=5, dedupe_s=99, keep_s=None
    )
    first, second = (spark.createDataFrame(table_of(lot)) for lot in (events[:40], events[20:]))
    job(first, 0)
    with monkeypatch.context() as broken:
        broken.setattr(PaneStore, "publish", _fail)
        with pytest.raises(OSError, match="disk full"):
            job(second, 1)
    before = job.store.patterns()
    job(second, 1)
    assert job.store.facts().duplicates == 20  # and not 40: its own ids were there already
    after, facts = job.store.patterns(), job.store.facts()
    assert not after.equals(before)
    for frame, number in ((first, 0), (second, 1), (first, 1)):
        job(frame, number)
    assert job.store.patterns().equals(after)
    assert job.store.facts() == facts


def _fail(*_: object) -> None:
    raise OSError("disk full")


def test_a_log_that_was_trimmed_too_early_ends_the_stream_with_the_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = SampleLog(tmp_path / "log")
    log.append(events_to_batch([Event("e0")], world.SCHEMA))
    finish(world.start(spark, log.path, tmp_path / "out"))
    for k in (1, 2, 3):
        log.append(events_to_batch([Event(f"e{k}")], world.SCHEMA))
    log.trim(3)
    with pytest.raises(SparkError, match="events 1 to 3 cannot be read: they were trimmed away"):
        finish(world.start(spark, log.path, tmp_path / "out"))


# --------------------------------------------------------------------------------------- kill -9


def test_killed_drivers_lose_nothing_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = SampleLog(tmp_path / "log")
    for event in _lots(world.random_samples(rng, 220), 23):
        log.append(events_to_batch(event, world.SCHEMA))
    out, k = tmp_path / "out", rng.randrange(1, 3)
    # In the middle of a batch, when its ids are noted; and right after one has appeared, uncommitted.
    _run_and_kill(log.path, out, lambda: (out / "ids" / f"batch={k:012d}.parquet").exists())
    assert not PaneStore(out).has(k + 1)
    _run_and_kill(log.path, out, lambda: PaneStore(out).has(k + 1))
    finish(world.start(spark, log.path, out))
    finish(world.start(spark, log.path, tmp_path / "calm"))
    killed, calm = PaneStore(out), PaneStore(tmp_path / "calm")
    assert killed.patterns().equals(calm.patterns())
    assert killed.facts() == calm.facts()
    assert killed.facts().rows_in == log.latest()
    check_same(killed.everything(), calm.everything())


def _lots(events: Sequence[Event], size: int) -> Iterable[Sequence[Event]]:
    return (events[k : k + size] for k in range(0, len(events), size))


def _run_and_kill(log: Path, out: Path, moment: Callable[[], bool]) -> None:
    """Start a driver in a process group of its own; kill all of it when the moment has come."""
    command = [sys.executable, world.__file__, str(log), str(out)]
    with (out.parent / "driver.log").open("ab") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while not moment():
            assert driver.poll() is None, (out.parent / "driver.log").read_text()
            assert time.monotonic() < deadline, "the driver has not come so far"
            time.sleep(0.002)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
