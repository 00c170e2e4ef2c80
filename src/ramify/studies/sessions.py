"""Where the events of a log are counted: a Spark by its URL, a session of the caller, or this process.

Owns the one place where a use case gets what it counts on. Spark is imported here, and nowhere before it is
used.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from ramify.errors import InputError

__all__ = [
    "DEFAULT_SPARK",
    "Spark",
    "engine_of",
    "joins_told_to",
    "on_this_machine",
    "sees_local_files",
    "session_of",
]

_log = logging.getLogger(__name__)

Spark: TypeAlias = Any
"""A URL such as `local[*]`, `spark://host:port` or `sc://host:port`; `auto`, which joins the Spark of
`ramify spark start` or starts one; `none`, which counts in this process; or a session of PySpark."""

DEFAULT_SPARK = "local[*]"


_HERE = ("local", "auto", "none")
_NONE = "none"


def _log_join(where: str) -> None:
    _log.info("joined the Spark that runs at %s", where)


_told: ContextVar[Callable[[str], None]] = ContextVar("told", default=_log_join)


@contextmanager
def joins_told_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Have `tell` called with the URL when a use case joins a Spark that ran already. Else it is logged."""
    token = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(token)


def on_this_machine(spark: Spark) -> bool:
    """Whether a URL is plainly of this machine, so that its files can be looked for without starting it."""
    return isinstance(spark, str) and spark.startswith(_HERE)


def sees_local_files(engine: Any) -> bool:
    """Whether the tasks of a session open files of this machine."""
    from ramify.pipeline.session.engine import runs_here

    return runs_here(engine)


@contextmanager
def engine_of(spark: Spark, *, brief: bool = False) -> Iterator[Any]:
    """What a pass runs on; stopped at the end unless it ran before. A session that is given stays open.

    `brief` says that the log is small, so that a Spark of our own starts the cheap way. Raises `InputError`
    for another form of URL, `SparkError` where Spark cannot start or be reached.
    """
    if not isinstance(spark, str):
        yield spark
        return
    from ramify.pipeline.session.warm import opened

    with opened(spark, _told.get(), brief=brief) as engine:
        yield engine


@contextmanager
def session_of(spark: Spark) -> Iterator[Any]:
    """As `engine_of`, for work that only Spark does: `InputError` for `none`."""
    if spark == _NONE:
        raise InputError(
            "spark none can only count a log for a plan. This work needs Spark: use auto or local[*]."
        )
    with engine_of(spark) as session:
        yield session
