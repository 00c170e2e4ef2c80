"""Claims about the log of samples and the Spark source over it: same numbers, same events, always."""

import os
import pickle
import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ramify.content.events.events import Event, EventSchema, batch_to_events, events_to_batch
from ramify.errors import InputError
from ramify.pipeline.passes.table_files import spark_schema
from ramify.pipeline.stream.samples import FORMAT, SampleDataSource, SampleLog, SampleStream

SCHEMA = EventSchema.from_json('{"a.b": "int64", "tags": "array<string>"}')


def events(first: int, count: int) -> pa.RecordBatch:
    made = [
        Event(f"e{k}", None if k % 3 else "p", None, {"a.b": k, "tags": ("x",) * (k % 3)}, size_bytes=k)
        for k in range(first, first + count)
    ]
    return events_to_batch(made, SCHEMA)


def log_of(path: Path, sizes: list[int]) -> SampleLog:
    log = SampleLog(path)
    for size in sizes:
        first = log.latest() if path.exists() else 0
        assert log.append(events(first, size)) == range(first, first + size)
    return log


def ids(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [id_ for batch in batches for id_ in batch.column("id").to_pylist()]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_any_split_of_the_numbers_gives_exactly_the_events_of_the_log(
    sizes: list[int], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = log_of(tmp_path_factory.mktemp("log") / "l", sizes)
    total = log.latest()
    assert total == sum(sizes)
    bounds = sorted({0, total, *(min(cut, total) for cut in cuts)})
    parts = [b for low, high in pairwise(bounds) for b in log.read(low, high)]
    assert ids(iter(parts)) == [f"e{k}" for k in range(total)]
    if total:
        assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([events(0, total)]))


def test_a_half_written_segment_is_never_visible_and_the_next_writer_takes_its_place(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, [3])
    (tmp_path / ".part").write_bytes(b"ARROW1 half a file")
    assert log.latest() == 3
    assert log.append(events(3, 2)) == range(3, 5)
    assert ids(log.read(0, 5)) == [f"e{k}" for k in range(5)]


def test_a_writer_that_dies_before_the_last_step_has_written_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path, [3])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(os, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            log.append(events(3, 2))
    assert log.latest() == 3
    assert log.append(events(3, 4)) == range(3, 7)
    assert ids(log.read(0, 7)) == [f"e{k}" for k in range(7)]


def test_writers_take_turns_and_readers_see_whole_segments(tmp_path: Path) -> None:
    log_of(tmp_path, [1])
    faults: list[object] = []

    def write() -> None:
        for _ in range(10):
            SampleLog(tmp_path).append(events(0, 5))

    def read() -> None:
        try:
            while not written.is_set():
                latest = SampleLog(tmp_path).latest()
                assert len(ids(SampleLog(tmp_path).read(0, latest))) == latest
        except Exception as fault:
            faults.append(fault)

    written = threading.Event()
    writers, reader = [threading.Thread(target=write) for _ in range(2)], threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    reader.join()
    assert not faults
    assert SampleLog(tmp_path).latest() == 101


def test_trimming_keeps_the_numbering_and_says_what_is_gone(tmp_path: Path) -> None:
    log = log_of(tmp_path, [4, 4, 4])
    log.trim(6)
    assert (log.earliest(), log.latest()) == (4, 12)
    assert ids(log.read(5, 9)) == ["e5", "e6", "e7", "e8"]
    with pytest.raises(InputError, match="events 2 to 8 cannot be read: they were trimmed away"):
        list(log.read(2, 9))
    log.trim(99)
    assert (log.earliest(), log.latest()) == (8, 12)
    assert log.append(events(12, 1)) == range(12, 13)


def test_what_is_not_there_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no log of samples"):
        SampleLog(tmp_path / "none").latest()
    log = log_of(tmp_path, [4, 4, 4])
    with pytest.raises(InputError, match="the log ends before 12"):
        list(log.read(10, 13))
    middle = sorted(tmp_path.glob("*.arrow"))[1]
    middle.write_bytes(middle.read_bytes()[:-40])
    with pytest.raises(InputError, match="cannot be read"):
        list(log.read(0, 12))
    middle.unlink()
    with pytest.raises(InputError, match="events 4 to 11 cannot be read: a file of the log is missing"):
        list(log.read(0, 12))


# ------------------------------------------------------------------------------- the source, by hand


def reader_of(path: Path, task_rows: int = 10, most: int | None = None) -> SampleStream:
    options = {"path": str(path), "schema": SCHEMA.to_json(), "rowsPerTask": str(task_rows)}
    if most is not None:
        options["rowsPerTrigger"] = str(most)
    source: Any = pickle.loads(pickle.dumps(SampleDataSource(options)))
    reader: SampleStream = source.streamReader(spark_schema(SCHEMA.arrow))
    return reader


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    most=st.integers(1, 12),
    task_rows=st.integers(1, 9),
)
def test_micro_batches_of_any_size_replay_to_the_same_events(
    sizes: list[int], most: int, task_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "l"
    total = log_of(path, sizes).latest()
    reader = reader_of(path, task_rows, most)
    at, got = reader.initialOffset(), []
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(most)
    while (end := reader.latestOffset(at, limit)) != at:
        assert end["next"] - at["next"] <= most
        tasks = reader.partitions(at, end)
        once, again = ([i for t in tasks for i in ids(reader_of(path).read(t))] for _ in range(2))
        assert once == again
        got += once
        at = end
    assert got == [f"e{k}" for k in range(total)]


def test_a_stream_that_cannot_be_asked_gives_nothing_new_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log_of(path, [5])
    reader = reader_of(path)
    assert reader.latestOffset({"next": 2}, ReadAllAvailable()) == {"next": 5}
    path.rename(tmp_path / "away")
    assert reader.latestOffset({"next": 2}, ReadAllAvailable()) == {"next": 2}
    assert reader.reportLatestOffset() is None
    (tmp_path / "away").rename(path)
    assert reader.latestOffset({"next": 2}, ReadAllAvailable()) == {"next": 5}


def test_taking_what_is_there_ends_where_the_log_ended_at_the_start(tmp_path: Path) -> None:
    log = log_of(tmp_path, [5])
    reader = reader_of(tmp_path)
    reader.prepareForTriggerAvailableNow()
    log.append(events(5, 5))
    assert reader.latestOffset({"next": 0}, ReadAllAvailable()) == {"next": 5}
    assert reader.latestOffset({"next": 5}, ReadAllAvailable()) == {"next": 5}


def test_a_log_that_is_shorter_than_what_was_read_of_it_is_another_one(tmp_path: Path) -> None:
    log_of(tmp_path, [5])
    with pytest.raises(InputError, match="another one"):
        reader_of(tmp_path).latestOffset({"next": 9}, ReadAllAvailable())


@pytest.mark.parametrize("wrong", ["0", "-1", "x", ""])
def test_options_are_checked(tmp_path: Path, wrong: str) -> None:
    source = SampleDataSource({"path": str(tmp_path), "schema": "{}", "rowsPerTask": wrong})
    with pytest.raises(InputError, match="rowsPerTask"):
        source.streamReader(spark_schema(SCHEMA.arrow))
    with pytest.raises(InputError, match="'path'"):
        SampleDataSource({}).log()


# ------------------------------------------------------------------------------------------ on Spark


def test_spark_reads_the_events_as_they_were_appended(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    log = log_of(tmp_path, [random.Random(seed).randrange(1, 9) for _ in range(5)])
    # a batch with fewer and with other columns
    log.append(events_to_batch([Event("extra", attributes={"other": 1.5, "a.b": None})]))
    spark.dataSource.register(SampleDataSource)
    options = {"path": str(tmp_path), "schema": SCHEMA.to_json(), "rowsPerTask": "4"}
    frame = spark.read.format(FORMAT).options(**options).load()
    rows = frame.toArrow()
    got = [e for b in rows.cast(SCHEMA.arrow).to_batches() for e in batch_to_events(b)]
    expected = batch_to_events(events(0, log.latest() - 1))
    assert sorted(got, key=lambda e: e.id) == sorted(
        [*expected, Event("extra", attributes={"a.b": None})], key=lambda e: e.id
    )
