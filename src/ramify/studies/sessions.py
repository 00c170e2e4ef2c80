"""Where the events of a log are counted: a Spark by its URL, or a session that the caller has.

Owns the one place where a use case gets its session. Spark is imported here, and nowhere before it is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

__all__ = ["DEFAULT_SPARK", "Spark", "session_of"]

Spark: TypeAlias = Any
"""A URL such as `local[*]`, `spark://host:port` or `sc://host:port`, or a session of PySpark."""

DEFAULT_SPARK = "local[*]"


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
