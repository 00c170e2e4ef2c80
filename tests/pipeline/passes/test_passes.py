"""A pass on Spark equals counting in one process, whatever the source, the partitions and the shards."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.matcher import Matcher, Matches
from ramify.errors import InputError, SchemaError, SparkError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.jobs import write_demand
from ramify.pipeline.passes import passes
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.generated import GeneratedEvents
from ramify.pipeline.passes.passes import PassKind, Totals, reckon, reckoned
from ramify.pipeline.passes.sources import Chunk, FrameSource, Reject, Source
from ramify.pipeline.passes.table_files import TABLES, read_table, read_windows
from ramify.pipeline.tables.overlap import overlap
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally, TallySettings
from ramify.planning.demand.windows import Windows
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload

EVENTS = 2_500
SPLIT = Split((0.5, 0.25, 0.25), keep=0.8, seed=7)
GRID = Grid((Axis("price", (20.0, 80.0)), Axis("region", ("aws-eu", "gcp"))))
TAGS = ("price > 50", "express", "region LIKE 'aws%'")


@pytest.fixture(scope="module")
def overlay() -> Overlay:
    return overlay_from("cloud-regions")


@pytest.fixture(scope="module")
def workload(overlay: Overlay) -> Workload:
    return workload_from(f"demo:events={EVENTS}", overlay, 3)


@pytest.fixture(scope="module")
def classes(workload: Workload, overlay: Overlay) -> Classes:
    return Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)


def tags(workload: Workload) -> list[object]:
    return [parse_sql(text, workload.schema.attributes) for text in TAGS]


@pytest.fixture(scope="module")
def expected(workload: Workload, classes: Classes, overlay: Overlay) -> Windows:
    counted = Tally(
        classes, overlay, workload.attachments, grid=GRID, tags=tags(workload), by_client=True, split=SPLIT
    )  # type: ignore[arg-type]
    for batch in workload.batches():
        counted.add(batch)
    return counted.windows()


@pytest.fixture(scope="module")
def source_of(workload: Workload, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> object:
    where = tmp_path_factory.mktemp("log")
    batches = list(workload.batches())
    table = pa.Table.from_batches(batches)
    for k in range(3):
        pq.write_table(table.slice(k * 900, 900), where / f"{k}.parquet")

    def made(kind: str) -> Source:
        if kind == "rows":
            return FrameSource.of(spark.createDataFrame(table))
        if kind == "generated":
            return GeneratedEvents.of(workload)
        return Files.of(spark, [str(where)], workload.schema)

    return made


def same(one: Demand, other: Demand) -> None:
    for name in ("publisher", "client", "cell", "start", "classes", "count", "size", "tags"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    for name in ("clients", "seconds", "factor", "tag_filters", "unknown"):
        assert getattr(one, name) == getattr(other, name), name


def same_windows(one: Windows, other: Windows) -> None:
    for a, b in zip((*one.parts, one.whole), (*other.parts, other.whole), strict=True):
        same(a, b)


@pytest.mark.parametrize("partitions", [1, 2, 7])
@pytest.mark.parametrize("kind", ["rows", "files", "generated"])
def test_every_source_and_any_partitions_give_what_one_process_counts(
    kind: str,
    partitions: int,
    spark: SparkSession,
    workload: Workload,
    classes: Classes,
    overlay: Overlay,
    expected: Windows,
    source_of: object,
) -> None:
    counting = TallySettings.of(
        classes, overlay, workload.attachments, grid=GRID, by_client=True, split=SPLIT
    )
    filters = [*classes.filters, *tags(workload)]
    source: Source = source_of(kind)  # type: ignore[operator]
    windows, totals = reckon(spark, source, filters, counting, partitions=partitions)  # type: ignore[arg-type]
    same_windows(windows, expected)
    assert totals.rows_in == totals.good == EVENTS
    assert totals.counted == expected.whole.events
    assert 0 < totals.thinned < EVENTS


class _Whole:
    """A source that hands its batches out as they are, in this process."""

    def __init__(self, schema: EventSchema, rejected: Sequence[Reject] = ()) -> None:
        self.schema, self.rejected = schema, rejected

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        for batch in rows:
            yield Chunk(batch, self.rejected)


class _Matching:
    """Shards that are in this process."""

    def __init__(self, classes: Classes) -> None:
        self.matcher = Matcher(classes.filters)

    def match_each(self, items: Iterable[Chunk], batch_of: Any) -> Iterator[tuple[Chunk, Matches]]:
        return ((item, self.matcher.match(batch_of(item))) for item in items)


@pytest.mark.parametrize("bound", ["_MOST_PATTERNS", "_MOST_ENTRIES", "_MOST_REJECTS", "_PACKED_PATTERNS"])
def test_a_task_that_gives_back_early_gives_the_same(
    bound: str, workload: Workload, classes: Classes, overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = TallySettings.of(classes, overlay, workload.attachments)
    bad = [Reject("f", 0, 3, 4, "not_json", "no", b"x")] * 2

    def run() -> tuple[list[pa.RecordBatch], pa.Table]:
        task: Any = passes._Task(_Whole(workload.schema, bad), _Matching(classes), counting, None)  # type: ignore[arg-type]
        out = list(task(workload.events(at, 100) for at in range(0, EVENTS, 100)))
        return out, pa.Table.from_batches(out)

    def kind(table: pa.Table, wanted: PassKind) -> pa.Table:
        return table.filter(pc.equal(table["kind"], pa.scalar(int(wanted))))

    batches, whole = run()
    monkeypatch.setattr(passes, bound, 5)
    more, cut = run()
    assert len(more) > len(batches)
    packed = (kind(table, PassKind.PATTERN) for table in (whole, cut))
    parts = [passes._unpacked(table["raw"], range(len(table))) for table in packed]
    same(Demand.of_patterns(parts[0]), Demand.of_patterns(parts[1]))
    assert [kind(table, PassKind.REJECTED).num_rows for table in (whole, cut)] == [2 * EVENTS // 100] * 2


def test_patterns_that_spark_adds_up_are_those_that_the_driver_adds_up(
    spark: SparkSession,
    workload: Workload,
    classes: Classes,
    overlay: Overlay,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting = TallySettings.of(classes, overlay, workload.attachments, split=SPLIT)
    with reckoned(spark, GeneratedEvents.of(workload), classes.filters, counting, partitions=3) as found:
        here = found.windows()
        monkeypatch.setattr(passes, "_MOST_COLLECTED", 0)
        same_windows(found.windows(), here)


def test_overlap_of_what_tasks_counted_is_that_of_the_demand(
    spark: SparkSession, workload: Workload, classes: Classes, overlay: Overlay, source_of: object
) -> None:
    counting = TallySettings.of(classes, overlay, workload.attachments, split=SPLIT)
    source: Source = source_of("files")  # type: ignore[operator]
    with reckoned(spark, source, classes.filters, counting, partitions=3) as found:
        rows = [
            overlap(frame, len(classes), least=0.05).pairs.toArrow().to_pylist()
            for frame in (found.packed, found.demand(classes.broker))
        ]
    one, other = (
        sorted((row["class_a"], row["class_b"], row["both"], row["jaccard"]) for row in part)
        for part in rows
    )
    assert one == other
    assert len(one) > 10


def test_panes_add_up_to_the_whole_and_hold_the_right_times(
    spark: SparkSession, workload: Workload, classes: Classes, overlay: Overlay
) -> None:
    counting = TallySettings.of(classes, overlay, workload.attachments, pane_us=10_000_000)
    with reckoned(spark, GeneratedEvents.of(workload), classes.filters, counting) as found:
        rows = found.patterns.groupBy("pane").sum("count").toArrow().to_pylist()
    by_hand: dict[int, int] = {}
    for time in (
        t for batch in workload.batches() for t in batch.column("time").cast(pa.int64()).to_pylist()
    ):
        by_hand[time // 10_000_000 * 10_000_000] = by_hand.get(time // 10_000_000 * 10_000_000, 0) + 1
    assert {row["pane"]: row["sum(count)"] for row in rows} == by_hand


def test_the_demand_table_has_lists_destinations_and_comes_back_from_files(
    spark: SparkSession,
    workload: Workload,
    classes: Classes,
    overlay: Overlay,
    expected: Windows,
    tmp_path: Path,
) -> None:
    counting = TallySettings.of(
        classes, overlay, workload.attachments, grid=GRID, by_client=True, split=SPLIT
    )
    filters: Any = [*classes.filters, *tags(workload)]
    with reckoned(spark, GeneratedEvents.of(workload), filters, counting) as found:
        write_demand(found, classes, str(tmp_path))
    same_windows(read_windows(tmp_path), expected)
    rows = read_table(tmp_path, "demand").to_pylist()
    assert sum(row["count"] for row in rows) == expected.whole.events
    assert any(not row["classes"] for row in rows), "events that match nothing keep their rows"
    for row in rows:
        assert row["classes"] == sorted(row["classes"])
        away = {int(classes.broker[k]) for k in row["classes"]} - {row["publisher"]}
        assert row["destinations"] == sorted(away)
    assert read_table(tmp_path, "quarantine").num_rows == 0
    assert {path.name for path in (tmp_path / "demand").iterdir() if path.is_dir()} == {
        f"split={k}" for k in range(3)
    }


def test_every_bad_row_is_in_quarantine_with_its_place(
    spark: SparkSession, classes: Classes, overlay: Overlay, workload: Workload, tmp_path: Path
) -> None:
    good = {"publisher": overlay.brokers[0], "price": 3.5}
    (tmp_path / "a.ndjson").write_text(
        "\n".join([json.dumps({"id": "a1", **good}), "{broken", "", json.dumps({"id": "a2", **good})])
    )
    (tmp_path / "b.ndjson").write_bytes(b'{"id": "b1", "price": 1.0}\n{"id": "\xff"}\n[1]\n')
    pq.write_table(pa.table({"name": ["x"]}), tmp_path / "c.parquet")
    whole = tmp_path / "d.parquet"
    pq.write_table(pa.table({"id": ["d1"], "publisher": [overlay.brokers[1]]}), whole)
    (tmp_path / "e.parquet").write_bytes(whole.read_bytes()[:-9])
    source = Files.of(spark, [str(tmp_path)], EventSchema({"price": AttributeType.DOUBLE}))
    filters = [parse_sql("price > 1", {"price": AttributeType.DOUBLE})]
    counting = TallySettings(1, np.zeros(1, dtype=np.bool_), overlay.index)
    with reckoned(spark, source, filters, counting) as found:
        bad = {
            (Path(r["file"]).name, r["line"], r["reason"]) for r in found.quarantine.toArrow().to_pylist()
        }
        totals, unknown = found.totals, found.unknown
        assert found.windows().whole.events == 3
        write_demand(found, classes, str(tmp_path / "out"))
    assert bad == {
        ("a.ndjson", 2, "not_json"),
        ("b.ndjson", 2, "bad_utf8"),
        ("b.ndjson", 3, "not_an_object"),
        ("c.parquet", None, "missing_column"),
        ("e.parquet", None, "damaged_file"),
    }
    assert (totals.rows_in, totals.good, totals.quarantined) == (totals.rows_in, 4, totals.rows_in - 4)
    assert totals.faults >= 5
    assert unknown == {(0, None): 1}
    stored = read_table(tmp_path / "out", "quarantine")
    assert stored.schema.equals(TABLES["quarantine"].schema)
    assert stored.num_rows == 5


def test_a_total_that_does_not_add_up_is_an_error_not_a_result() -> None:
    by_kind: Any = {
        **{kind: [] for kind in PassKind},
        PassKind.READ: [{"count": 5, "bytes": 1, "position": 0, "line": 1}],
        PassKind.PIECE: [{"file": "f", "count": 7}],
    }
    with pytest.raises(SparkError, match="7 records went in, but 5 were used and 1 rejected"):
        passes._totals(by_kind, 0, 0)


def test_a_frame_without_an_id_or_with_a_map_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="no column 'id'"):
        FrameSource.of(spark.createDataFrame([(1,)], "x int"))
    with pytest.raises(SchemaError, match="no attribute type holds"):
        FrameSource.of(spark.sql("select 'a' as id, map('k', 1) as m"))


def test_a_frame_with_few_columns_and_odd_types_is_counted(spark: SparkSession, overlay: Overlay) -> None:
    frame = spark.sql(
        "select cast(id as string) as id, 'aws-us-east-1' as publisher, cast(id as short) as n, "
        "cast(id as float) / 2 as `a.b c`, array('x', cast(id as string)) as words from range(10)"
    )
    source = FrameSource.of(frame)
    types = source.schema.attributes
    assert types == {"n": "int64", "a.b c": "double", "words": "array<string>"}
    filters = [parse_sql("n >= 5", types), parse_sql("array_contains(words, '3')", types)]
    counting = TallySettings(2, np.zeros(2, dtype=np.bool_), overlay.index)
    windows, totals = reckon(spark, source, filters, counting)
    assert totals == Totals(10, 10, 0, 0, 0, 0, 0)
    assert {tuple(windows.whole[i].tolist()): int(windows.whole.count[i]) for i in range(3)} == {
        (): 4, (0,): 5, (1,): 1,
    }  # fmt: skip


def test_no_events_and_no_filters_make_an_empty_demand(spark: SparkSession, overlay: Overlay) -> None:
    empty = FrameSource.of(spark.createDataFrame([], "id string, publisher string"))
    counting = TallySettings(0, np.zeros(0, dtype=np.bool_), overlay.index)
    windows, totals = reckon(spark, empty, [], counting)
    assert (windows.whole.events, len(windows.whole), totals.rows_in) == (0, 0, 0)


def test_a_table_that_is_not_there_or_lacks_a_column_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table 'demand'"):
        read_table(tmp_path, "demand")
    (tmp_path / "spans").mkdir()
    pq.write_table(pa.table({"split": [1]}), tmp_path / "spans" / "x.parquet")
    with pytest.raises(InputError, match="no column 'events'"):
        read_table(tmp_path, "spans")
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "x.parquet").write_bytes(b"PAR1nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path, "unknown")
