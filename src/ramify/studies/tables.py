"""What a log says, as tables; and logs of built-in workloads, as files.

Owns `write_tables` and `generate`: the checks before, the session, and what is told afterwards. What is
in a table is documented in `pipeline.passes.table_files`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.errors import InputError
from ramify.planning.choosing.study import SHARES
from ramify.planning.demand.splits import Split
from ramify.studies.fields import half_life_s
from ramify.studies.inputs import AnyOverlay, as_overlay
from ramify.studies.logs import Log
from ramify.studies.rejects import Rejects
from ramify.studies.sessions import DEFAULT_SPARK, Spark, session_of
from ramify.studies.text_tables import text_table
from ramify.workloads.catalog import workload_from

if TYPE_CHECKING:
    from ramify.pipeline.passes.generated import Form, GeneratedLog

__all__ = ["LogTables", "generate", "write_tables"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogTables:
    """The tables of a log.

    Attributes
    ----------
    under       the directory or URL that they are below, a folder of Parquet files each
    rows        table -> rows
    summaries   table -> what a row of it is
    recall      the share of overlapping pairs that were found, where they were sketched; None when exact
    rejected    what of the log could not be used
    """

    under: str
    rows: Mapping[str, int]
    summaries: Mapping[str, str]
    recall: float | None = None
    rejected: Rejects = field(default_factory=Rejects)

    def __repr__(self) -> str:
        rows = [[name, f"{count:,}", self.summaries[name]] for name, count in self.rows.items()]
        lines = [text_table(["table", "rows", "a row is"], rows), f"written to {self.under}"]
        return "\n".join([*lines, *([self.rejected.summary] if self.rejected else [])])


def write_tables(
    log: Log,
    out: str,
    *,
    keep: float = 1.0,
    pane_s: float = 300.0,
    half_life: str | float | None = None,
    jaccard: float = 0.1,
    axes: Sequence[str] = (),
    overwrite: bool = False,
    seed: int = 1,
    spark: Spark | None = None,
) -> LogTables:
    """Write what a log says: demand, selectivity, overlap, traffic, histograms, profile, quarantine.

    Parameters
    ----------
    out          a directory or URL; it must be empty unless `overwrite`
    pane_s       the width of a pane of time, seconds
    half_life    of selectivity; all events count alike without one
    jaccard      the least overlap of two classes to keep
    axes         attributes to make histograms of

    Raises `InputError` for what can be seen to be wrong before anything is written.
    """
    from ramify.pipeline.jobs import TableRequest
    from ramify.pipeline.jobs import write_tables as write
    from ramify.pipeline.passes.table_files import TABLES
    from ramify.pipeline.session.failures import doing

    asked = TableRequest(pane_s, half_life_s(half_life), jaccard, tuple(axes))
    split = Split(SHARES, keep, seed)
    if "://" not in out and not overwrite and any(Path(out).glob("*")):
        raise InputError(
            "the directory is not empty: name an empty one, or --overwrite its tables", path=out
        )
    with session_of(log.spark if spark is None else spark) as session, doing("writing the tables"):
        opened = log.open(session)
        found = write(
            session, opened.source, opened.classes, log.overlay, opened.attachments, out, asked, split
        )
        log.note(opened.rejects(found.found, shown=found.shown, reasons=found.reasons))
    summaries = {name: TABLES[name].summary for name in found.rows}
    return LogTables(out, found.rows, summaries, found.recall, log.rejected)


def generate(
    workload: str,
    out: str,
    *,
    overlay: AnyOverlay = "cloud-regions",
    form: "Form" = "parquet",
    files: int | None = None,
    overwrite: bool = False,
    seed: int = 1,
    spark: Spark = DEFAULT_SPARK,
) -> "GeneratedLog":
    """Write the events of a built-in workload, with its subscriptions, attachments and overlay beside them.

    `form` is `parquet`, `ndjson` or `cloudevents`. The same workload and seed give the same events, however
    many `files` there are. Raises `InputError` where something is there already, unless `overwrite`.
    """
    from ramify.pipeline.passes.generated import generate as write
    from ramify.pipeline.session.failures import doing

    graph = as_overlay(overlay)
    made = workload_from(workload, graph, seed)
    with session_of(spark) as session, doing("writing the workload"):
        return write(session, made, out, form=form, files=files, overlay=graph, overwrite=overwrite)
