"""The whole pipeline as one job: files with bad rows among them, tables, and a plan's price.

With the argument `core` it leaves out the tables that are plain frames over the demand.
"""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ramify.content.filters.space import Axis, Grid
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.jobs import write_demand
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.generated import GeneratedEvents
from ramify.pipeline.passes.passes import reckoned
from ramify.pipeline.passes.pricing import price_log
from ramify.pipeline.passes.table_files import read_table
from ramify.pipeline.tables.histograms import generating, histograms
from ramify.pipeline.tables.overlap import overlap
from ramify.pipeline.tables.profile import profile
from ramify.pipeline.tables.selectivity import selectivity
from ramify.pipeline.tables.traffic import published, traffic
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload


def rows(frame: DataFrame) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in frame.toArrow().to_pylist())


def counted_by() -> tuple[Overlay, Workload, Classes, TallySettings]:
    """Where the events come from, and how they are counted."""
    overlay = overlay_from("cloud-regions")
    workload = workload_from("demo:events=3000", overlay, 5)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    counting = TallySettings.of(
        classes, overlay, workload.attachments, split=Split((0.5, 0.25, 0.25), seed=2), pane_us=60_000_000
    )
    return overlay, workload, classes, counting


def run(spark: SparkSession, output: Path, folder: str, which: str = "all") -> None:
    overlay, workload, classes, counting = counted_by()
    found: dict[str, Any] = {}
    files = Files.of(spark, [folder])
    with reckoned(spark, files, classes.filters, counting) as passed:
        demand = passed.demand(classes.broker).persist()
        found["totals"] = repr(passed.totals)
        found["quarantine"] = rows(passed.quarantine)
        found["demand"] = rows(demand)
        if which == "all":
            by_class = selectivity(demand, len(classes), half_life_s=60, pane_us=60_000_000)
            found["selectivity"] = rows(by_class)
            found["overlap"] = rows(overlap(demand, len(classes), least=0.2).pairs)
            found["traffic"] = rows(traffic(demand, classes.broker.tolist()))
            found["published"] = rows(published(demand))
        stored = output.parent / f"{output.name}-tables"
        write_demand(passed, classes, str(stored), demand)
        found["stored"] = sorted(json.dumps(row) for row in read_table(stored, "demand").to_pylist())
        problem = Problem.of(overlay, classes, passed.windows().whole, workload.attachments)
        demand.unpersist()
    found["profile"] = rows(profile(spark, files))
    grid = Grid((Axis("price", (10.0, 50.0)), Axis("region", ("azure", "gcp"))))
    if which == "all":
        found["generating"] = rows(generating(spark, files, grid))
    found["histograms"] = rows(histograms(spark, files, [grid]))
    for source in (files, GeneratedEvents.of(workload)):
        with price_log(spark, make_plan("explicit", problem), source) as priced:
            found[f"price of {type(source).__name__}"] = dict(priced.price.figures())
    output.write_text(json.dumps(found, indent=1, sort_keys=True))
