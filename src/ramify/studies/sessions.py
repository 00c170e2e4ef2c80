"""Where the events of a log are counted: a Spark by its URL, or a session that the caller has.

Owns the one place where a use case gets its session. Spark is imported here, and nowhere before it is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

__all__ = ["DEFAULT_SPARK", "Spark", "on_this_machine", "sees_local_files", "session_of"]

Spark: TypeAlias = Any
"""A URL such as `local[*]`, `spark://host:port` or `sc://host:port`, or a session of PySpark."""

DEFAULT_SPARK = "local[*]"


_HERE = ("local", "auto", "none")


def on_this_machine(spark: Spark) -> bool:
    """Whether a URL is plainly of this machine, so that its files can be looked for without starting it."""
    return isinstance(spark, str) and spark.startswith(_HERE)


def sees_local_files(session: Any) -> bool:
    """Whether the tasks of a session open files of this machine."""
    from ramify.pipeline.session.local_files import lists_here

    return lists_here(session)


@contextmanager
def session_of(spark: Spark) -> Iterator[Any]:
    """The session at a URL, stopped at the end unless it ran before; a session that is given stays open.

    Raises `InputError` for another form of URL, `SparkError` where Spark cannot start or be reached.
    """
    if not isinstance(spark, str):
        yield spark
        return
    from ramify.pipeline.session.session import spark_session

    with spark_session(spark) as session:
        yield session
