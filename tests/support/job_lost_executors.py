"""A pass and a price on a cluster that loses executors meanwhile: two in the middle of a task, and one that
keeps rows of the pass. Its arguments are the folder of the log, and one for a mark of each kill."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from job_pipeline import counted_by, rows
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.passes import reckoned
from ramify.pipeline.passes.pricing import price_log
from ramify.pipeline.passes.sources import Chunk
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan


def kill_executor(mark: Path) -> None:
    """In a task: kill the JVM that this Python works for, unless some task did so by this mark."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    executor = parent(os.getppid())  # the parent is the daemon that forks workers
    command = Path(f"/proc/{executor}/cmdline").read_text()
    if "CoarseGrainedExecutorBackend" not in command:
        raise RuntimeError(f"process {executor} is no executor: {command[:200]}")
    mark.write_text(str(executor))
    os.kill(executor, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@dataclass(frozen=True)
class DeadlyFiles(Files):
    """Files whose first reader dies when it has read something."""

    mark: str = ""

    def read(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        for chunk in Files.read(self, pieces):
            kill_executor(Path(self.mark))
            yield chunk


def run(spark: SparkSession, output: Path, folder: str, marks: str) -> None:
    overlay, workload, classes, counting = counted_by()
    found: dict[str, Any] = {}
    given = DeadlyFiles.of(spark, [folder])
    files = replace(given, mark=f"{marks}/pass")

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kill_executor(Path(marks) / "rows")
        yield from batches

    with reckoned(spark, files, classes.filters, counting) as passed:
        found["totals"] = repr(passed.totals)
        assert spark.range(1).mapInArrow(kill, "id long").count() == 1
        found["demand"] = rows(passed.demand(classes.broker))
        found["quarantine"] = rows(passed.quarantine)
        problem = Problem.of(overlay, classes, passed.windows().whole, workload.attachments)
    plan = make_plan("explicit", problem)
    with price_log(spark, plan, replace(given, mark=f"{marks}/price")) as priced:
        found["price of Files"] = dict(priced.price.figures())
    output.write_text(json.dumps(found, indent=1, sort_keys=True))
