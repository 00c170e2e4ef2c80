"""A Spark driver of our own: its settings, its JVM, its end.

Owns the settings of classic sessions, the launch of the JVM through pyspark, and its stop. Knows nothing of
Connect, nor of where the scratch directory comes from: `session` calls it.

pyspark keeps the JVM of a stopped context for the next one, with the memory and the directories of the
first. We end it, so that every session has its own settings and nothing outlives it.
"""

import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from ramify.errors import SparkError
from ramify.pipeline.session.failures import root_cause
from ramify.pipeline.session.java import find_java
from ramify.pipeline.session.launch import classic_settings, launch_variables, tail

__all__ = ["classic", "environment", "quiet"]


@contextmanager
def classic(url: str, memory: str | None, conf: Mapping[str, str], own: Path) -> Iterator[SparkSession]:
    """A session with a JVM of its own, which ends with it."""
    java = find_java(own)
    for name in ("tmp", "local"):
        (own / name).mkdir()
    settings = classic_settings(url, memory, conf, own)
    log = Path(os.environ.get("RAMIFY_SPARK_LOG") or own / "jvm.log")
    with environment(launch_variables(url, java.home, settings, own)), log.open("ab") as sink:
        process = _start_jvm(sink)
        try:
            yield _start_context(log)
        except (SparkError, PySparkException, Py4JError, ConnectionError) as error:
            if not _ended(process, 0.5):
                raise
            how = f"exit code {process.returncode}" if process.returncode >= 0 else "it was killed"
            raise SparkError(f"Spark's JVM ended before its work was done ({how}){tail(log)}") from error
        finally:
            _stop(process)


def _start_jvm(sink: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Launch the JVM with its output in `sink`; pyspark's contexts will use it."""
    try:
        gateway: Any = launch_gateway(popen_kwargs={"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkError(f"Spark's JVM did not start{tail(Path(sink.name))}") from error
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def _start_context(log: Path) -> SparkSession:
    try:
        return SparkSession(SparkContext())
    except (PySparkException, Py4JError, ConnectionError, ValueError) as error:
        raise SparkError(f"Spark did not start: {root_cause(error)}{tail(log)}") from error


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop the context, then the JVM, which ends by itself when its standard input closes.

    pyspark would keep the JVM for the next context, with the memory and the scratch directory of this one.
    """
    gateway: Any = SparkContext._gateway
    with suppress(Exception):
        if SparkSession._instantiatedSession is not None:
            SparkSession._instantiatedSession.stop()
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    if not _ended(process, 20.0):
        process.kill()
        process.wait()


def _ended(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    return process.returncode is not None


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """The environment of this process with `changes`; as it was before, at the end.

    A change to None only brings the variable back at the end: pyspark sets a few by itself.
    """
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what pyspark and py4j log beside raising it, tracebacks and JSON: we say it in our words."""

    def foreign(record: logging.LogRecord) -> bool:
        # py4j logs broken connections to the root logger.
        return f"{os.sep}py4j{os.sep}" not in record.pathname

    loggers: list[logging.Logger] = [
        PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in _CONTEXTS
    ]
    loggers.append(logging.getLogger("py4j"))
    before = [logger.level for logger in loggers]
    root = logging.getLogger()
    root.addFilter(foreign)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.removeFilter(foreign)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


_CONTEXTS = ("DataFrame", "SQL")
