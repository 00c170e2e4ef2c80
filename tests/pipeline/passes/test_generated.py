"""Generated workloads: the same events whatever the tasks and files, in memory, in a pass and on disk."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ramify.content.events.attributes import text_path
from ramify.content.events.events import Event, EventSchema, batch_to_events
from ramify.content.events.readers import read_events
from ramify.content.filters.subscriptions import Subscription, read_subscriptions
from ramify.content.matching.matcher import Matcher
from ramify.errors import InputError, SparkError
from ramify.network.graphs.files import read_overlay
from ramify.network.graphs.generators import random_overlay
from ramify.pipeline.passes import generated
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.generated import FORMS, Form, GeneratedEvents, below_data, generate
from ramify.pipeline.passes.passes import reckon
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import TallySettings, tally
from ramify.workloads.catalog import WORKLOADS, workload_from
from ramify.workloads.workload import BLOCK_EVENTS, Workload

OVERLAY = random_overlay(12, 3)
SMALL = {"majumder": ["keywords=60"], "semcast": ["clients=150"], "zhao_wu": ["users=60"]}
SEED = 5


def made(name: str, events: int) -> Workload:
    # at this rate times have microseconds, which a log must keep
    asked = (name, f"events={events}", "events_per_second=7000", *SMALL.get(name, ()))
    return workload_from(":".join(asked), OVERLAY, SEED)


def log_files(out: Path) -> list[Path]:
    return sorted((out / "events").glob("part-*"))


def read_back(out: Path) -> Iterator[pa.RecordBatch]:
    for path in log_files(out):
        for part in read_events(path):
            assert not part.rejected
            assert not part.unaddressable
            yield part.batch


def as_published(event: Event, form: Form) -> Event:
    """What a log in JSON keeps of an event, under its first names."""
    inner = dict(event.attributes)
    inner.pop(text_path("time"), None)  # Spark writes six digits, whether the time has them or not
    if form == "cloudevents":
        assert inner.pop("source") == event.publisher
        assert str(inner.pop("type")).startswith("ramify.")
        inner = {path.removeprefix("data."): value for path, value in inner.items()}
    return replace(event, attributes=inner, body=None, body_is_json=False, size_bytes=0)


def assert_same_demand(one: Demand, other: Demand, *, sizes: bool = True) -> None:
    names = ["publisher", "client", "cell", "start", "classes", "count", "tags"]
    for name in names + (["size"] if sizes else []):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.seconds == other.seconds


# ---------------------------------------------------------------------------------------- the events


@pytest.mark.parametrize("number", [10**8 - 2, 10**9 - 2, 10**12 - 4])
def test_ids_and_times_go_on_beyond_a_thousand_million_events(number: int) -> None:
    batch = workload_from(f"kyra:events={10**12}", OVERLAY, SEED).events(number, 4)
    ids = batch.column("id").to_pylist()
    assert [int(str(id_).split("-")[-1]) for id_ in ids] == list(range(number, number + 4))
    assert len(str(ids[-1]).split("-")[-1]) == max(8, len(str(number + 3)))
    assert np.diff(np.asarray(batch.column("time").cast(pa.int64()))).tolist() == [1_000] * 3


def test_an_event_after_the_year_9999_is_refused_and_earlier_ones_are_not() -> None:
    slow = workload_from("kyra:events=1000000:events_per_second=0.000001", OVERLAY, SEED)
    assert slow.events(0, 2).num_rows == 2
    with pytest.raises(InputError, match="after the year 9999"):
        slow.events(999_999, 1)
    with pytest.raises(InputError, match="after the year 9999"):
        GeneratedEvents.of(slow)


# ---------------------------------------------------------------------------------- as a source of a pass


@pytest.mark.parametrize(
    ("start", "count", "piece"),
    [(0, None, BLOCK_EVENTS), (5, 20_000, 1), (BLOCK_EVENTS, 1, 10**6), (7, 0, 1), (9_000, 40_000, 20_000)],
)
def test_pieces_cover_a_range_and_no_block_is_in_two(
    spark: SparkSession, start: int, count: int | None, piece: int
) -> None:
    workload = made("matchmaker", 50_000)
    source = GeneratedEvents.of(workload, start=start, count=count, piece_events=piece)
    ranges = source.frame(spark).toArrow()
    stop = 50_000 if count is None else start + count
    pieces = sorted(zip(*(column.to_pylist() for column in ranges.columns), strict=True))
    assert all(size > 0 for _, size in pieces)
    assert [begin for begin, _ in pieces[1:]] == [begin + size for begin, size in pieces[:-1]]
    assert sum(size for _, size in pieces) == stop - start
    assert all(begin % BLOCK_EVENTS == 0 for begin, _ in pieces[1:])
    chunks = [chunk.batch for chunk in source.read(iter(ranges.to_batches()))]
    drawn = sorted((b.column("id")[0].as_py(), b.num_rows) for b in chunks)
    assert sum(rows for _, rows in drawn) == stop - start
    if chunks:
        table = pa.Table.from_batches(chunks).sort_by("id").combine_chunks()
        assert table.equals(pa.Table.from_batches([workload.events(start, stop - start)]).combine_chunks())


def test_a_range_outside_the_workload_and_an_empty_piece_are_refused() -> None:
    workload = made("kyra", 1_000)
    for wrong in ({"start": -1}, {"start": 1_001}, {"count": 1_001}, {"start": 5, "count": -1}):
        with pytest.raises(InputError, match="it has 1000"):
            GeneratedEvents.of(workload, **wrong)
    with pytest.raises(InputError, match="at least one event"):
        GeneratedEvents.of(workload, piece_events=0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_travels_to_tasks_draws_the_events_and_holds_no_subscriptions(name: str) -> None:
    workload = made(name, 20_000)
    sent = pickle.dumps(GeneratedEvents.of(workload))
    assert len(sent) < 50_000
    source: GeneratedEvents = pickle.loads(sent)
    ranges = pa.RecordBatch.from_pydict({"start": [0], "count": [20_000]})
    batches = [chunk.batch for chunk in source.read(iter([ranges]))]
    assert (
        pa.Table.from_batches(batches).combine_chunks().to_batches()[0].equals(workload.events(0, 20_000))
    )
    assert not source.workload.subscriptions
    assert not source.workload.attachments


def test_only_some_attributes_are_handed_on() -> None:
    workload = made("demo", 9_000)
    narrow = GeneratedEvents.of(workload).only({"price", "type", "nothing"})
    assert set(narrow.schema.attributes) == {"price", "type"}
    (chunk,) = narrow.read(iter([pa.RecordBatch.from_pydict({"start": [10], "count": [20]})]))
    assert chunk.batch.schema.equals(narrow.schema.arrow)
    assert chunk.batch.equals(workload.events(10, 20).select(narrow.schema.arrow.names))


def test_a_pass_counts_the_same_with_1_2_and_7_partitions_as_one_process_does(spark: SparkSession) -> None:
    workload = made("demo", 7 * BLOCK_EVENTS - 100)
    classes = Classes.collapse(workload.subscriptions, OVERLAY, workload.schema.attributes)
    counting = TallySettings.of(classes, OVERLAY, workload.attachments)
    expected = tally(workload.batches(), classes, OVERLAY, workload.attachments)
    for blocks, partitions in ((7, 1), (4, 2), (1, 7)):
        source = GeneratedEvents.of(workload, piece_events=blocks * BLOCK_EVENTS)
        used = source.frame(spark).selectExpr("spark_partition_id()").distinct().count()
        assert used == partitions
        windows, totals = reckon(spark, source, classes.filters, counting)
        assert_same_demand(windows.whole, expected)
        assert totals.rows_in == totals.good == totals.counted == workload.event_count


# ----------------------------------------------------------------------------------------- written out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_reading_a_written_log_gives_the_events_in_order(
    spark: SparkSession, tmp_path: Path, name: str, form: Form
) -> None:
    workload = made(name, 700)
    written = generate(spark, workload, tmp_path / "log", form=form, files=2, overlay=OVERLAY)
    paths = log_files(tmp_path / "log")
    assert (written.events, written.files) == (workload.event_count, len(paths)) == (700, 2)
    assert written.bytes == sum(path.stat().st_size for path in paths)
    found = [event for batch in read_back(tmp_path / "log") for event in batch_to_events(batch)]
    first = batch_to_events(workload.events(0, workload.event_count))
    if form == "parquet":
        assert found == first
        assert all(EventSchema.of_batch(batch) == workload.schema for batch in read_back(tmp_path / "log"))
        return
    assert [as_published(event, form) for event in found] == [replace(e, size_bytes=0) for e in first]
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    assert [event.size_bytes for event in found] == [len(line) for line in lines]


@pytest.mark.parametrize("form", FORMS)
def test_1_2_and_7_files_hold_the_same_rows_and_a_file_always_the_same_bytes(
    spark: SparkSession, tmp_path: Path, form: Form
) -> None:
    workload = made("semcast", 3 * BLOCK_EVENTS)
    rows = []
    for files in (1, 2, 7):
        out = tmp_path / str(files)
        assert generate(spark, workload, out, form=form, files=files).files == files
        rows.append(in_order(out, form))
    assert rows[0] == rows[1] == rows[2]
    generate(spark, workload, tmp_path / "again", form=form, files=7)
    one, again = ([path.read_bytes() for path in log_files(tmp_path / at)] for at in ("7", "again"))
    assert one == again


def in_order(out: Path, form: Form) -> bytes | pa.RecordBatch:
    """All rows of a log, one file after the other."""
    if form == "parquet":
        return pa.concat_batches(list(read_back(out)))
    return b"".join(path.read_bytes() for path in log_files(out))


def test_files_begin_at_blocks_unless_there_are_more_files_than_blocks() -> None:
    few = generated._Log(made("kyra", 10 * BLOCK_EVENTS - 5), "parquet", 3)
    edges = [generated._edge(few, k) for k in range(4)]
    assert edges == [0, 3 * BLOCK_EVENTS, 6 * BLOCK_EVENTS, 10 * BLOCK_EVENTS - 5]
    many = generated._Log(made("kyra", 50), "parquet", 7)
    edges = [generated._edge(many, k) for k in range(8)]
    assert (edges[0], edges[-1]) == (0, 50)
    assert all(a < b for a, b in pairwise(edges))


@pytest.mark.parametrize("form", FORMS)
def test_what_lies_beside_a_log_makes_the_same_demand(
    spark: SparkSession, tmp_path: Path, form: Form
) -> None:
    workload = made("demo", 2_000)
    generate(spark, workload, tmp_path / "log", form=form, files=1, overlay=OVERLAY)
    overlay = read_overlay(tmp_path / "log" / "overlay.json")
    attachments = json.loads((tmp_path / "log" / "attachments.json").read_text())
    assert attachments == workload.attachments
    (batch,) = read_back(tmp_path / "log")
    schema = EventSchema.of_batch(batch).attributes
    listed = read_subscriptions(tmp_path / "log" / "subscriptions.jsonl", schema)
    assert not listed.bad
    found = tally([batch], Classes.collapse(listed.good, overlay, schema), overlay, attachments)
    classes = Classes.collapse(workload.subscriptions, OVERLAY, workload.schema.attributes)
    expected = tally(workload.batches(), classes, OVERLAY, workload.attachments)
    assert_same_demand(found, expected, sizes=form == "parquet")


def test_the_demand_of_a_written_log_on_spark_is_that_of_the_generated_events(
    spark: SparkSession, tmp_path: Path
) -> None:
    workload = made("majumder", 2 * BLOCK_EVENTS)
    generate(spark, workload, tmp_path / "log", files=3)
    classes = Classes.collapse(workload.subscriptions, OVERLAY, workload.schema.attributes)
    counting = TallySettings.of(classes, OVERLAY, workload.attachments)
    stored = Files.of(spark, [str(tmp_path / "log" / "events")])
    from_files, _ = reckon(spark, stored, classes.filters, counting)
    drawn, _ = reckon(spark, GeneratedEvents.of(workload), classes.filters, counting)
    assert_same_demand(from_files.whole, drawn.whole)


def test_a_directory_that_holds_something_is_kept_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    workload, out = made("kyra", 100), tmp_path / "log"
    generate(spark, workload, out, form="ndjson", files=3)
    with pytest.raises(InputError, match="already"):
        generate(spark, workload, out)
    assert generate(spark, workload, f"{out.as_uri()}/", overwrite=True).files == 1
    assert [path.suffix for path in log_files(out)] == [".parquet"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="this is a file"):
        generate(spark, workload, tmp_path / "file")


def test_places_that_are_not_local_are_looked_at_and_written_through_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    where = (tmp_path / "far").as_uri()
    assert not generated._is_taken(spark, where, None)
    generated._write_lines(spark, ["a b", "ä"], where, None, "attachments.json")
    assert generated._is_taken(spark, where, None)
    (part,) = (tmp_path / "far" / "attachments.json").glob("part-*")
    assert part.read_text(encoding="utf-8") == "a b\nä\n"
    with pytest.raises(SparkError, match=r"writing the workload to nowhere://there/log failed"):
        generate(spark, made("kyra", 100), "nowhere://there/log")


def test_forms_and_numbers_of_files_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    nothing: SparkSession = None  # type: ignore[assignment]  # refused before Spark is asked
    with pytest.raises(InputError, match="parquet, ndjson, cloudevents"):
        generate(nothing, made("kyra", 100), tmp_path, form="csv")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one file"):
        generate(nothing, made("kyra", 100), tmp_path, files=0)


def test_paths_that_no_json_object_can_hold_together_are_refused() -> None:
    column = pa.array([1, None])
    with pytest.raises(InputError, match="both 'a'"):
        generated._nested({"a": column, "a.b": column})
    nested = generated._nested({"a.b.c": column, "a.d": pa.array([None, None], pa.int64()), "e": column})
    assert nested["a"].to_pylist() == [{"d": None, "b": {"c": 1}}, None]


# ---------------------------------------------------------------------------------- filters below `data`


@pytest.mark.parametrize("name", WORKLOADS)
def test_filters_below_data_match_what_they_matched(name: str) -> None:
    workload = made(name, 1_000)
    batch = workload.events(0, 1_000)
    inside = {f"data.{path}": kind for path, kind in workload.schema.attributes.items()}
    fixed = batch.schema.names[: -len(inside)]
    moved = batch.rename_columns([*fixed, *inside])
    rows = workload.subscriptions[:300]
    first = Matcher([row.parse(workload.schema.attributes) for row in rows]).match(batch)
    second = Matcher([below_data(row).parse(inside) for row in rows]).match(moved)
    assert np.array_equal(first.ends, second.ends)
    assert np.array_equal(first.ids, second.ids)


@given(st.lists(st.text(min_size=1, max_size=5).filter(lambda t: t.isprintable()), min_size=1, max_size=3))
def test_any_keyword_can_be_said_in_sql(words: list[str]) -> None:
    moved = below_data(Subscription("s", "c", "b", keywords=tuple(words)))
    schema = pa.schema([*EventSchema().arrow, pa.field("data.keywords", pa.list_(pa.string()))])
    event = {"id": "1", "_size_bytes": 0, "_body_is_json": False, "_nulls": []}
    rows = [event | {"data.keywords": [word]} for word in (*words, "neither of them")]
    found = Matcher([moved.parse()]).match(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert np.diff(found.ends).tolist() == [1] * len(words) + [0]


def test_names_of_the_envelope_stay_where_they_are() -> None:
    text = "`a b`.c = 'x.y' AND publisher = 'p' AND time IS NULL"
    assert below_data(Subscription("s", "c", "b", sql=text)).sql == f"data.{text}"
    pattern = below_data(Subscription("s", "c", "b", pattern='{"publisher": ["p"], "a": {"b": [1]}}'))
    assert pattern.pattern is not None
    assert json.loads(pattern.pattern) == {"publisher": ["p"], "data": {"a": {"b": [1]}}}
