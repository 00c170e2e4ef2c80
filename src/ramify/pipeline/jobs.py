"""Jobs: read, call transforms, write tables. What commands run; no computing of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from ramify.content.events.events import CONTEXT_NAMES
from ramify.content.filters.space import Grid
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.pipeline.passes.passes import PassResult, reckoned
from ramify.pipeline.passes.sources import SampledSource, Source
from ramify.pipeline.passes.table_files import TABLES, spark_schema, write_table
from ramify.pipeline.tables.histograms import content_space, equal_depth_axis, generating, histograms
from ramify.pipeline.tables.overlap import EXACT_CLASSES, overlap
from ramify.pipeline.tables.profile import profile
from ramify.pipeline.tables.selectivity import selectivity
from ramify.pipeline.tables.stored_overlap import about_selectivity
from ramify.pipeline.tables.traffic import published, traffic
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings

__all__ = ["TableRequest", "TableResult", "write_demand", "write_tables"]

_AXIS_SLOTS = 16
_JOINT_CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class TableRequest:
    """What tables are made with.

    Attributes
    ----------
    pane_s         the width of a pane of time in seconds
    half_life_s    of selectivity; None when all events count alike
    jaccard        the least overlap of two classes to keep; pairs where one contains the other are kept
                   however unlike they are, as long as all pairs are counted
    axes           attributes to make histograms of, each by itself and all together
    """

    pane_s: float = 300.0
    half_life_s: float | None = None
    jaccard: float = 0.1
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1e-6 <= self.pane_s < 1e9:
            raise InputError(f"a pane of {self.pane_s} seconds. Allowed: from a microsecond to 30 years.")
        if self.half_life_s is not None and not self.half_life_s > 0:
            raise InputError(f"a half-life of {self.half_life_s} seconds. Allowed: above 0.")
        if not 0 <= self.jaccard <= 1:
            raise InputError(f"a least Jaccard of {self.jaccard}. Allowed: from 0 to 1.")
        if len(set(self.axes)) < len(self.axes):
            raise InputError("an attribute is named twice as an axis. Name each once.")


@dataclass(frozen=True, slots=True)
class TableResult:
    """What a job read and wrote: the pass (its frames are gone), the first rejects, rejects by reason, rows
    of each table, and the measured recall of the overlap where it is not exact."""

    found: PassResult
    shown: tuple[dict[str, Any], ...]
    reasons: dict[str, int]
    rows: dict[str, int]
    recall: float | None


def write_tables(
    spark: SparkSession,
    source: Source,
    classes: Classes,
    overlay: Overlay,
    attachments: Mapping[str, str],
    under: str,
    asked: TableRequest,
    split: Split,
    shown: int = 10,
) -> TableResult:
    """Write every table of a log below `under`.

    The source is read once for the demand and what follows from it, once for the profile, once per axis to
    cut it, and once for all histograms. `shown` is how many rejects are kept to be shown.
    """
    _check(source, classes, asked)
    kept: Source = source if split.keep == 1 else SampledSource(source, split)
    grids = _grids(spark, kept, asked.axes)
    counting = TallySettings.of(
        classes, overlay, attachments, split=split, pane_us=round(asked.pane_s * 1e6)
    )
    with reckoned(spark, source, classes.filters, counting) as found:
        demand = found.demand(classes.broker).persist()
        try:
            rows = dict(write_demand(found, classes, under, demand))
            # what contains another is what SemCast asks for, however unlike the two are
            contained = 1.0 if len(classes) <= EXACT_CLASSES else None
            pairs = overlap(demand, len(classes), least=asked.jaccard, contained=contained, with_bytes=True)
            facts = {"exact": pairs.exact, "recall": pairs.recall, "pairs_measured": pairs.measured}
            rows["overlap"] = _written(pairs.pairs, "overlap", under, {**facts, "least": asked.jaccard})
            for name, frame in _from_demand(demand, classes, counting, asked).items():
                about = about_selectivity(classes, asked.half_life_s) if name == "selectivity" else None
                rows[name] = _written(frame, name, under, about)
        finally:
            demand.unpersist()
        first, reasons = found.first_rejects(shown), found.reject_reasons()
        wrote = TableResult(found, first, reasons, rows, None if pairs.exact else pairs.recall)
    rows["profile"] = _written(profile(spark, kept), "profile", under)
    if grids:
        space = spark.createDataFrame(_spaces(spark, kept, grids, classes))
        rows["content_space"] = _written(space, "content_space", under)
        widest = list(grids.values())[-1]  # the joint one, where there is one
        rows["generating"] = _written(generating(spark, kept, widest), "generating", under)
    return wrote


def write_demand(
    found: PassResult, classes: Classes, under: str, demand: DataFrame | None = None
) -> list[tuple[str, int]]:
    """Write what a pass found: demand, quarantine, unknown publishers, spans; names and rows of them."""
    spark = found.patterns.sparkSession
    unknown = [(split, name, events) for (split, name), events in found.unknown.items()]
    spans = [(split, span.events, span.first_us, span.last_us) for split, span in found.spans.items()]
    rows = _written(demand or found.demand(classes.broker), "demand", under, found.about())
    done = [("demand", rows), ("quarantine", _written(found.quarantine, "quarantine", under))]
    for name, listed in (("unknown", unknown), ("spans", spans)):
        frame = spark.createDataFrame(listed, spark_schema(TABLES[name].schema)).coalesce(1)
        done.append((name, _written(frame, name, under)))
    return done


def _from_demand(
    demand: DataFrame, classes: Classes, counting: TallySettings, asked: TableRequest
) -> dict[str, DataFrame]:
    half_life, pane_us = asked.half_life_s, counting.pane_us
    return {
        "selectivity": selectivity(demand, len(classes), half_life_s=half_life, pane_us=pane_us),
        "traffic": traffic(demand, classes.broker.tolist()),
        "published": published(demand),
    }


def _check(source: Source, classes: Classes, asked: TableRequest) -> None:
    """Refuse what can be seen to be wrong before the log is read."""
    lacking = [path for path in asked.axes if path not in {*source.schema.attributes, *CONTEXT_NAMES}]
    if lacking:
        raise InputError(
            f"the events have no attribute {lacking[0]!r} to be an axis. "
            f"They have: {', '.join(source.schema.attributes)}."
        )
    if len(classes) > EXACT_CLASSES and not asked.jaccard:
        raise InputError(
            f"{len(classes):,} classes are too many to keep every pair that overlaps: ask for a least "
            "Jaccard above 0 (--jaccard 0.1)."
        )


def _grids(spark: SparkSession, source: Source, paths: tuple[str, ...]) -> dict[str, Grid]:
    """A grid per attribute, and one of all of them where it has few enough cells."""
    if not paths:
        return {}
    axes = [equal_depth_axis(spark, source, path, _AXIS_SLOTS) for path in paths]
    grids = {axis.path: Grid((axis,)) for axis in axes}
    joint = Grid(tuple(axes))
    return grids | ({" x ".join(paths): joint} if len(axes) > 1 and joint.size <= _JOINT_CELLS else {})


def _spaces(spark: SparkSession, source: Source, grids: Mapping[str, Grid], classes: Classes) -> pa.Table:
    """The content space of every grid, one below the other."""
    counted = histograms(spark, source, list(grids.values())).toArrow()
    parts = []
    for k, (name, grid) in enumerate(grids.items()):
        column: Any = counted["grid"]
        mine = content_space(counted.filter(pc.equal(column, pa.scalar(k))), grid, classes.filters)
        names: Any = pa.array([name] * mine.num_rows, pa.string())
        parts.append(mine.add_column(0, "grid", names))
    return pa.concat_tables(parts)


def _written(frame: DataFrame, name: str, under: str, about: Mapping[str, Any] | None = None) -> int:
    """Write a table; returns how many rows it has now."""
    where = write_table(frame, name, under, about=about)
    return frame.sparkSession.read.schema(spark_schema(TABLES[name].schema)).parquet(where).count()
