"""What a pass runs on: a Spark session of some kind, or this process alone (`--spark none`).

Owns what is asked of any of them: whether it is Connect, whether it sees the files of this machine, how
many tasks it runs at a time. Imports no pyspark, so a pass without Spark needs none installed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NONE", "Engine", "InProcess", "is_connect", "note_local", "runs_here", "task_slots"]

NONE = "none"
"""The URL that asks for no Spark at all."""


class InProcess:
    """Stands where a Spark session would: one task, one thread, this process."""


Engine: TypeAlias = "SparkSession | InProcess"

# Connect sessions on a server of this machine that `ramify spark start` began, with its task slots.
_LOCAL_SERVERS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def is_connect(engine: Engine) -> bool:
    """Whether the session talks to a Spark Connect server (and so has no `sparkContext`)."""
    return type(engine).__module__.startswith("pyspark.sql.connect")


def note_local(spark: SparkSession, slots: int) -> None:
    """Remember that a Connect session is on a server of this machine, with our files and our Python."""
    _LOCAL_SERVERS[spark] = slots


def runs_here(engine: Engine) -> bool:
    """Whether tasks run on this machine, and a path without a scheme means a file of it."""
    if isinstance(engine, InProcess) or engine in _LOCAL_SERVERS:
        return True
    if is_connect(engine) or not (engine.sparkContext.master or "").startswith("local"):
        return False
    settings = engine.sparkContext._jsc.hadoopConfiguration()
    return str(settings.get("fs.defaultFS") or "file:///").startswith("file:")


def task_slots(engine: Engine) -> int:
    """How many tasks run at the same time: Spark's default parallelism. Over Connect, one small query."""
    if isinstance(engine, InProcess):
        return 1
    if not is_connect(engine):
        return engine.sparkContext.defaultParallelism
    if engine in _LOCAL_SERVERS:
        return _LOCAL_SERVERS[engine]
    from pyspark.sql import functions as sf

    from ramify.pipeline.session.failures import doing

    with doing("asking the Connect server for its parallelism"):
        given = engine.conf.get("spark.default.parallelism", None)
        if given is not None:
            return int(given)
        last = engine.range(100_000).select(sf.spark_partition_id().alias("n")).agg(sf.max("n")).first()
    return 1 if last is None else int(last[0]) + 1
