"""Pricing a plan on a full log: part by part where the events are, added up to the last message.

Owns the way from a plan and a source of events to a `Price`. What a price is, and how parts of it add
up, is `planning.pricing.price`; reading, matching and counting are `passes`. A task prices the distinct
patterns that it counted and gives back two things: the sums of that part, in one row, and the distinct
destination sets, which Spark adds up for the references (the bound, `opt`). The patterns stay in the task,
so a log may have more of them than fit in any one memory.

Guarantee: every figure equals, to the bit, that of the same log tallied and priced in one process, however
many partitions there are. What is added up is whole numbers; floats are computed from the totals.
Cost: one pass over the source. A row of sums is O(links + brokers + classes).
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ramify.content.filters.filters import Filter
from ramify.pipeline.passes.passes import PassKind, PassResult, Totals, partial_rows, reckoned
from ramify.pipeline.passes.sources import Source
from ramify.pipeline.passes.table_files import spark_schema
from ramify.pipeline.session.session import task_slots
from ramify.pipeline.session.shipping import ship, shipped, waiting_room
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.patterns import Patterns
from ramify.planning.demand.splits import WHOLE, Split
from ramify.planning.demand.tally import TallySettings, check_tags
from ramify.planning.demand.windows import Span
from ramify.planning.plans.adoption import adopt
from ramify.planning.plans.check import check
from ramify.planning.plans.files import read_plan, write_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import DestinationSets, SetYardstick
from ramify.planning.pricing.price import Price, Volume, priced
from ramify.planning.pricing.sums import Sums, sums_of

__all__ = ["PricedLog", "add_sums", "part_rows", "price_log"]

_SUMS = pa.schema({"raw": pa.binary()})


@dataclass(frozen=True)
class PricedLog:
    """What a plan costs on a log, and what became of the log's records.

    `price` has sums and references, and no patterns (`Price.volume`, not `Price.demand`). `found` is the
    pass itself: its frames can be read until the end of the `with` block of `price_log`.
    """

    price: Price
    found: PassResult

    @property
    def totals(self) -> Totals:
        """What became of every record: `rows_in == good + quarantined`."""
        return self.found.totals

    @property
    def quarantine(self) -> DataFrame:
        """Records that could not be used (table `quarantine`)."""
        return self.found.quarantine


@contextmanager
def price_log(
    spark: SparkSession,
    plan: Plan,
    source: Source,
    *,
    attachments: Mapping[str, str] | None = None,
    problem: Problem | None = None,
    tags: Sequence[Filter] = (),
    seconds: float | None = None,
    factor: float = 1.0,
    split: Split = WHOLE,
    partitions: int | None = None,
) -> Iterator[PricedLog]:
    """Price a plan on every event of a source, in one pass.

    Parameters
    ----------
    attachments    client -> broker; those of the plan unless given
    problem        the plan is taken up on it first (`adopt`) and proved (`check`); without one it is priced
                   as it is, on its own classes and prices
    tags           filters of residency rules, in their order
    seconds        the time that the log spans, where the events' own times do not tell
    factor         how many published events each of the log stands for
    split          which events are sampled; its windows are priced together
    partitions     how many tasks the source is handed out to, where that is not left to it

    Raises
    ------
    PlanError
        When the plan does not fit the problem.
    """
    check_tags(tags)
    if problem is not None:
        plan = check(adopt(plan, problem), problem)
    attached = plan.attachments if attachments is None else attachments
    counting = TallySettings.of(plan.classes, plan.overlay, attached, grid=plan.grid, split=split)
    filters = [*plan.classes.filters, *tags]
    digest = _PriceDigest(_ship_plan(spark, plan))
    with reckoned(spark, source, filters, counting, digest=digest, partitions=partitions) as found:
        sums = _summed(found.digests(), plan, task_slots(spark))
        span = Span()
        for part in found.spans.values():
            span.add(part)
        volume = Volume(
            sums.events, span.seconds if seconds is None else seconds, factor / split.keep, len(tags)
        )
        yield PricedLog(priced(plan, sums, volume, _references(found.digests(), plan)), found)


# ------------------------------------------------------------------------------------------- in a task


def part_rows(plan: Plan, patterns: Patterns) -> Iterator[pa.RecordBatch]:
    """What a task gives back for some patterns: one row with their sums, and one per destination set.

    The sums are in `raw`; a set has its brokers in `classes` (see `DestinationSets.table`), and is added
    up here already.
    """
    demand = Demand.of_patterns(patterns)
    sums = pa.array([sums_of(plan, demand).to_bytes()], pa.binary())
    yield partial_rows(PassKind.DIGEST, pa.RecordBatch.from_arrays([sums], names=["raw"]))
    sets = DestinationSets.of(demand, plan.classes).table().rename_columns(["classes", "bytes", "count"])
    keyed = sets.set_column(0, "classes", sets["classes"].cast(pa.binary()))
    for batch in keyed.to_batches():
        yield partial_rows(PassKind.DIGEST, batch)


def add_sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of sums as one row; none when there are none."""
    each = (part for batch in batches for part in _read(batch.column("raw")))
    first = next(each, None)
    if first is not None:
        total = reduce(add, each, first)
        yield pa.RecordBatch.from_pylist([{"raw": total.to_bytes()}], schema=_SUMS)


def _read(column: Any) -> Iterator[Sums]:
    return (Sums.from_bytes(raw) for raw in column.to_pylist())


@dataclass(frozen=True)
class _PriceDigest:
    """The digest of a pass: prices what a task counted. `plan` is the name of a file that was sent."""

    plan: str

    def __call__(self, patterns: Patterns) -> Iterator[pa.RecordBatch]:
        return part_rows(_opened(self.plan), patterns)


# The plan that this process has open, with its layout; names hold digests.
_OPEN: dict[str, Plan] = {}


def _opened(name: str) -> Plan:
    """The plan of that name, read if it is not open; another one is let go."""
    found = _OPEN.get(name)
    if found is None:
        _OPEN.clear()
        found = _OPEN[name] = read_plan(shipped(name))
    return found


# -------------------------------------------------------------------------------------- on the driver


def _ship_plan(spark: SparkSession, plan: Plan) -> str:
    with tempfile.TemporaryDirectory(dir=waiting_room(spark)) as directory:
        path = Path(directory) / "plan.json"
        write_plan(plan, path)
        return ship(spark, path)


def _summed(digests: DataFrame, plan: Plan, slots: int) -> Sums:
    """The sums of all tasks. They are added up in a few tasks first: there may be thousands of them."""
    rows = digests.where(sf.col("raw").isNotNull()).select("raw").coalesce(slots)
    few = rows.mapInArrow(add_sums, spark_schema(_SUMS)).toArrow()
    nothing = sums_of(plan, Demand.of([]))
    return reduce(add, _read(few["raw"]), nothing)


def _references(digests: DataFrame, plan: Plan) -> SetYardstick:
    """References from the destination sets of all tasks. They are collected, one row per distinct set."""
    sets = digests.where(sf.col("classes").isNotNull()).groupBy("classes")
    rows = sets.agg(sf.sum("bytes").alias("bytes"), sf.sum("count").alias("count"))
    return SetYardstick(plan.overlay, DestinationSets.from_table(rows.toArrow()))
