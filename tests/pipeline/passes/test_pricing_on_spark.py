"""A plan priced on a log by Spark: the price that one process computes, in every figure, to the bit."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ramify.content.events.events import NULLS, SIZE_BYTES
from ramify.content.events.readers import read_events
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.matcher import Matcher
from ramify.errors import InputError, PlanError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.passes import PARTIAL, PassKind
from ramify.pipeline.passes.pricing import add_sums, part_rows, price_log
from ramify.pipeline.passes.sources import FrameSource
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.patterns import Patterns
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import PatternTally, Tally, TallySettings, tally
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Admission, Cells, Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import DestinationSets, SetYardstick
from ramify.planning.pricing.price import Price, Volume, price, priced
from ramify.planning.pricing.sums import Sums
from ramify.planning.schemes.catalog import make_plan
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload
from worlds import World, plans, worlds

GRIDDED = "gridded"
EVENTS = 3_000


# ------------------------------------------------------------------------------------- without Spark


@st.composite
def shared_out(draw: st.DrawFn) -> tuple[World, Plan, list[pa.RecordBatch]]:
    """The events of a world, cut into tasks; some tasks may have none."""
    world = draw(worlds(7))
    ends = sorted(draw(st.lists(st.integers(0, len(world.events)), max_size=3)))
    cuts = [0, *ends, len(world.events)]
    parts = [world.batch.slice(a, b - a) for a, b in pairwise(cuts)]
    return world, draw(plans(world)), parts


def counted(world: World, plan: Plan, batch: pa.RecordBatch) -> Patterns:
    """What a task has counted when it is asked for its digest."""
    count = PatternTally(TallySettings.of(plan.classes, plan.overlay, world.attachments, grid=plan.grid))
    count.add(batch, Matcher(list(plan.classes.filters)).match(batch))
    return count.drain()


def all_rows(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, schema=PARTIAL)


@settings(max_examples=40)
@given(shared_out())
def test_what_tasks_give_back_adds_up_to_the_price_of_the_whole(
    case: tuple[World, Plan, list[pa.RecordBatch]],
) -> None:
    world, plan, parts = case
    sent = decode_plan(encode_plan(plan))
    given = [all_rows(part_rows(sent, counted(world, plan, part))) for part in parts]
    assert all(rows["raw"].null_count == len(rows) - 1 for rows in given)
    rows = pa.concat_tables(given)
    assert set(rows["kind"].to_pylist()) == {int(PassKind.DIGEST)}
    each = rows.filter(rows["raw"].is_valid()).to_batches()
    (row,) = pa.Table.from_batches(add_sums(each)).to_pylist()
    sums = Sums.from_bytes(row["raw"])
    sets = rows.filter(rows["classes"].is_valid()).group_by("classes")
    held = DestinationSets.from_table(sets.aggregate([("bytes", "sum"), ("count", "sum")]))
    volume = Volume(sums.events, world.demand.seconds)
    together = priced(plan, sums, volume, SetYardstick(plan.overlay, held))
    assert together.figures() == price(plan, world.demand).figures()


def test_no_sums_are_added_up_to_nothing() -> None:
    assert list(add_sums([])) == []


# ----------------------------------------------------------------------------------------- with Spark


@dataclass(frozen=True)
class Log:
    workload: Workload
    problem: Problem
    demand: Demand

    @property
    def classes(self) -> Classes:
        return self.problem.classes


@cache
def log() -> Log:
    overlay = overlay_from("cloud-regions")
    workload = workload_from(f"demo:events={EVENTS}", overlay, 7)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    demand = tally(workload.batches(), classes, overlay, workload.attachments)
    return Log(workload, Problem.of(overlay, classes, demand, workload.attachments), demand)


@cache
def planned(spec: str) -> Plan:
    return gridded() if spec == GRIDDED else make_plan(spec, log().problem)


@cache
def gridded() -> Plan:
    """A channel for each half of the cells: events must be put in their cells."""
    base = planned("broadcast")
    grid = Grid((Axis("price", (5.0, 20.0, 100.0)),))
    halves = np.arange(grid.size)[: grid.size // 2], np.arange(grid.size)[grid.size // 2 :]
    flood, trees = base.channels[0], planned("explicit").channels[0]
    channels = tuple(
        replace(channel, name=f"half{i}", admits=Admission(Cells(cells.astype(np.int32))))
        for i, (channel, cells) in enumerate(zip((flood, trees), halves, strict=True))
    )
    return replace(base, scheme=GRIDDED, channels=channels, grid=grid)


@cache
def expected(spec: str) -> Price:
    plan, given = planned(spec), log()
    demand = given.demand
    if plan.grid is not None:
        attached = given.workload.attachments
        demand = tally(given.workload.batches(), plan.classes, plan.overlay, attached, grid=plan.grid)
    return price(plan, demand)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("log") / "events.parquet"
    pq.write_table(pa.Table.from_batches(log().workload.batches()), where, row_group_size=400)
    return where


def rows(spark: SparkSession, stored: Path) -> FrameSource:
    return FrameSource.of(spark.read.parquet(str(stored)))


def assert_same(one: Price, other: Price) -> None:
    assert one.figures() == other.figures()
    assert one.yardstick.bound == other.yardstick.bound
    for name in {part.name for part in fields(Price)} - {"layout", "yardstick", "given"}:
        left, right = getattr(one, name), getattr(other, name)
        assert np.array_equal(left, right), name


@pytest.mark.parametrize(
    ("partitions", "spec"),
    [
        (1, "mult"),  # filtered trees
        (2, "portfolio=3"),  # one of several, chosen by the publisher's broker
        (2, "hub=aws-us-east-1"),  # legs
        (7, "explicit"),  # trees in headers
        (7, GRIDDED),  # cells
    ],
)
def test_a_priced_log_has_every_figure_of_the_price_in_one_process(
    spark: SparkSession, stored: Path, partitions: int, spec: str
) -> None:
    with price_log(spark, planned(spec), rows(spark, stored), partitions=partitions) as found:
        pass  # prices outlive the rows of the pass
    assert_same(found.price, expected(spec))
    totals = found.totals
    assert (totals.rows_in, totals.good, totals.quarantined, totals.counted) == (EVENTS, EVENTS, 0, EVENTS)


def test_sampling_tags_unknown_publishers_and_a_given_span_count_as_they_do_in_one_process(
    spark: SparkSession, stored: Path
) -> None:
    plan, given = planned("mst"), log().workload
    attachments = dict(given.attachments)
    gone = given.publishers[0]
    attachments[gone] = "nowhere"
    tags = [parse_sql(text, given.schema.attributes) for text in ("price > 10", "region LIKE 'aws-%'")]
    split = Split((0.5, 0.5), keep=0.6, seed=3)
    whole = Tally(plan.classes, plan.overlay, attachments, tags=tags, split=split)
    for batch in given.batches():
        whole.add(batch)
    demand = replace(whole.windows().whole, seconds=7200.0, factor=2 / 0.6)
    assert demand.tags.any()
    assert demand.unknown.keys() == {gone}
    more = {"attachments": attachments, "tags": tags, "split": split, "seconds": 7200.0, "factor": 2.0}
    with price_log(spark, plan, rows(spark, stored), partitions=3, **more) as found:
        assert_same(found.price, price(plan, demand))
        assert found.totals.unknown == demand.unknown[gone]
        assert found.totals.counted == demand.events


def test_a_log_without_events_costs_nothing(spark: SparkSession, stored: Path) -> None:
    with price_log(
        spark, planned("mst"), FrameSource.of(spark.read.parquet(str(stored)).limit(0))
    ) as found:
        assert_same(found.price, price(planned("mst"), Demand.of([])))
        assert found.totals.rows_in == 0


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same log as JSON lines, with some that are none."""
    where = tmp_path_factory.mktemp("log") / "events.jsonl"
    text = [json.dumps(nested(row)) for batch in log().workload.batches() for row in batch.to_pylist()]
    for at in (0, 17, 2_000):
        text.insert(at, '{"id": "broken", ')
    where.write_text("\n".join(text), encoding="utf-8")
    return where


def nested(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in row.items():
        if value is None or path in (SIZE_BYTES, NULLS, "_body_is_json"):
            continue
        *above, last = path.split(".")
        inner = found
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value.isoformat() if path == "time" else value
    return found


def in_one_process(plan: Plan, path: Path) -> Price:
    decoded = read_events(path, log().workload.schema)
    batches: Iterable[pa.RecordBatch] = (some.batch for some in decoded)
    return price(plan, tally(batches, plan.classes, plan.overlay, log().workload.attachments))


def test_files_of_lines_are_priced_as_one_process_reads_them_and_bad_lines_are_told(
    spark: SparkSession, lines: Path
) -> None:
    plan = planned("mst")
    source = Files.of(spark, [str(lines)], log().workload.schema, piece_bytes=1 << 18)
    with price_log(spark, plan, source) as found:
        assert_same(found.price, in_one_process(plan, lines))
        places = sorted(row["line"] for row in found.quarantine.select("line").collect())
    assert places == [1, 18, 2_001]
    totals = found.totals
    assert (totals.rows_in, totals.good, totals.quarantined) == (EVENTS + 3, EVENTS, 3)


def test_files_of_parquet_are_priced_at_the_numbers_and_prices_of_the_present_problem(
    spark: SparkSession, stored: Path
) -> None:
    given = log().workload
    overlay = altered(log().problem.overlay, price=log().problem.overlay.price * 3)
    turned = Classes.collapse(given.subscriptions[::-1], overlay, given.schema.attributes)
    problem = Problem.of(overlay, turned, Demand.of([]), given.attachments)
    source = Files.of(spark, [str(stored)], given.schema, piece_bytes=1 << 15)
    with price_log(spark, planned("mst"), source, problem=problem) as found:
        assert found.price.plan.classes is turned
        assert_same(found.price, in_one_process(found.price.plan, stored))
    assert found.price.cost == pytest.approx(3 * expected("mst").cost)


def altered(overlay: Overlay, **changes: Any) -> Overlay:
    names = ("name", "brokers", "ends", "price", "latency_ms", "sites", "underlay")
    return Overlay(**({name: getattr(overlay, name) for name in names} | changes))


# ---------------------------------------------------------------------------- before anything is read


def refused(plan: Plan, **more: Any) -> None:
    """Faults of a plan are found before Spark is asked for anything."""
    spark: Any = None
    source: Any = None
    with price_log(spark, plan, source, **more):
        pass


def test_a_plan_for_another_overlay_is_refused() -> None:
    given = log()
    names = ("elsewhere", *given.problem.overlay.brokers[1:])
    overlay = altered(given.problem.overlay, brokers=names)
    with pytest.raises(PlanError, match="other brokers"):
        refused(replace(planned("mst"), overlay=overlay), problem=given.problem)


def test_a_plan_that_leaves_someone_out_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be used"):
        refused(replace(planned("mst"), channels=()), problem=log().problem)


def test_more_tags_than_a_demand_keeps_apart_are_refused() -> None:
    with pytest.raises(InputError, match="65 residency rules"):
        refused(planned("mst"), tags=[parse_sql("price > 1")] * 65)
