"""Start, join, check and stop Spark: one URL in, one session out.

Owns the session: its URL, its scratch directory, the Connect client, and the check that its executors can
run our tasks. Does not read or transform anything: sources and passes are handed a session. The driver's
JVM is in `jvm`, the words of a failed job are in `failures`; `doing` and `job_failed` are handed on.

    local[*] | local[4]          embedded, the default; on loopback only, the JVM ends with the session
    spark://host:port            a standalone cluster; this process is the driver
    sc://host:port/;token=...    Spark Connect; no JVM here
    yarn | k8s://https://...     as Spark documents them (HADOOP_CONF_DIR, images, ...)

Settings that are not ours come from `conf`, from SPARK_CONF_DIR/spark-defaults.conf and from
PYSPARK_SUBMIT_ARGS as always. Logs are quiet; RAMIFY_SPARK_LOG=FILE keeps Spark's warnings, and whatever
tasks print, in that file. Importing this module starts nothing.
"""

import os
import platform
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ramify.errors import SparkError
from ramify.pipeline.session.engine import is_connect, task_slots
from ramify.pipeline.session.failures import doing, job_failed, root_cause
from ramify.pipeline.session.jvm import classic, environment, quiet
from ramify.pipeline.session.launch import (
    SQL,
    brief_settings,
    check_url,
    scratch_directory,
    without_token,
)

__all__ = ["doing", "is_connect", "job_failed", "require_workers", "spark_session", "task_slots"]

_REACH_S = 10.0
_HANDSHAKE_S = 20.0


@contextmanager
def spark_session(
    url: str = "local[*]",
    *,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
    scratch: Path | None = None,
    trusted: bool = False,
    brief: bool = False,
) -> Iterator[SparkSession]:
    """A Spark session at `url`; at the end it is stopped and all that it left on this machine is removed.

    `memory` is the heap of the driver's JVM ("2g"; by default a quarter of the machine, 1 to 4 GiB; without
    meaning over Connect). `conf` holds Spark settings that win over ours (`spark.driver.extraJavaOptions`
    is added to ours). `scratch` is where the one scratch directory is made (default: the system's temporary
    directory); those that killed processes left there are removed first. `trusted` is for a server that
    is known to have our version: its executors are not looked at. `brief` says that little work follows:
    a JVM of our own then compiles its code once and lightly, which saves a third of the CPU of a short run
    and makes a long one slower.

    One session lives per process: when one runs already on the same master, or both are local, it is joined
    as it is (`memory` and `conf` do not apply) and left running at the end.

    Raises InputError for another form of URL, SparkError when Spark cannot start or cannot be reached, or
    when executors elsewhere have no Ramify of this version (`require_workers`).
    Starting takes 5 to 10 s in local mode, the first query 3 s more.
    """
    check_url(url)
    running = _running()
    if running is not None:
        yield _joined(running, url)
    elif url.startswith("sc://"):
        with quiet(), _connected(url, conf or {}) as spark:
            if not trusted:
                require_workers(spark)
            yield spark
    else:
        if url.startswith("spark://"):
            _require_port(url.removeprefix("spark://").split(","), f"the Spark master {url}")
        settings = brief_settings(conf or {}) if brief and url.startswith("local") else conf or {}
        with quiet(), scratch_directory(scratch) as own, classic(url, memory, settings, own) as spark:
            if not url.startswith("local"):
                require_workers(spark)
            yield spark


def require_workers(spark: SparkSession, timeout_s: float = 180.0) -> None:
    """Make sure that the executors can run our tasks; one small job, about 3 s on a cold cluster.

    Raises SparkError when the executors' Python is of another minor version than ours, cannot import ramify
    or has another version of it, or when no executor takes a task within `timeout_s`. Nothing to check in
    local mode, where tasks run in this very Python.
    """
    if not is_connect(spark) and _master(spark).startswith("local"):
        return
    slots = task_slots(spark)
    frame = spark.range(0, slots, 1, slots).mapInArrow(
        _probe(), "host string, python string, ramify string"
    )
    with doing("looking at the executors"), _interrupted_after(spark, timeout_s) as late:
        try:
            answers = [row.asDict() for row in frame.distinct().collect()]
        except (PySparkException, Py4JError) as error:
            if late.is_set():
                raise SparkError(
                    f"no executor took a task within {timeout_s:g} s: the cluster has too few free cores "
                    "or too little memory for this application, or its executors cannot connect back to us"
                ) from error
            if "PYTHON_VERSION_MISMATCH" in str(error):
                raise SparkError(_other_python(str(error))) from error
            raise
    faults = sorted({fault for answer in answers if (fault := _fault(answer))})
    if faults:
        raise SparkError("the executors cannot run Ramify's tasks:\n" + "\n".join(f"  {f}" for f in faults))


# ---- what executors have ----


def _probe() -> Any:
    """A task that tells what its Python has.

    An inner function travels by value: the other side may have no ramify to import it from.
    """

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import importlib.metadata
        import platform
        import socket

        import pyarrow

        for _ in batches:
            try:
                importlib.import_module("ramify.pipeline")
                importlib.import_module("ramify.compiled")
                found = importlib.metadata.version("ramify")
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            rows = {
                "host": [socket.gethostname()],
                "python": [platform.python_version()],
                "ramify": [found],
            }
            yield pyarrow.RecordBatch.from_pydict(rows)

    return probe


def _fault(answer: Mapping[str, str]) -> str | None:
    """What is wrong with the Python of one executor, and what to do."""
    ours, theirs = platform.python_version(), answer["python"]
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        return f"{answer['host']}: " + _other_python(f"Python {theirs}")
    wanted = installed("ramify")
    if answer["ramify"] == wanted:
        return None
    has = f"has ramify {answer['ramify']}" if answer["ramify"][:1].isdigit() else answer["ramify"]
    return (
        f"{answer['host']}: {has}; install ramify=={wanted} into the Python {theirs} that its workers run"
    )


def _other_python(text: str) -> str:
    theirs = re.search(r"Python (?:in worker )?\D*(\d+\.\d+)|worker_version\D*(\d+\.\d+)", text)
    shown = f"Python {theirs[1] or theirs[2]}" if theirs else "another Python"
    ours = ".".join(platform.python_version_tuple()[:2])
    return (
        f"the executors run {shown} and this process Python {ours}: install Python {ours} with ramify on "
        "them and set PYSPARK_PYTHON to it where they start (spark.pyspark.python)"
    )


@contextmanager
def _interrupted_after(spark: SparkSession, timeout_s: float) -> Iterator[threading.Event]:
    """Interrupt what runs inside the block after `timeout_s`; the event tells that it happened.

    Without executors a job waits for ever, and the warning that says so is in a log that nobody reads.
    """
    late, done = threading.Event(), threading.Event()
    tag = f"ramify-{os.getpid()}-{id(late)}"

    def watch() -> None:
        # Again and again: an interrupt that comes while the job is still being planned is lost.
        while not done.wait(1.0 if late.is_set() else timeout_s):
            late.set()
            with suppress(Exception):
                cancel(tag)

    # The session's own interruptTag finds nothing in classic mode (seen with 4.3.0).
    remote = is_connect(spark)
    cancel = spark.interruptTag if remote else spark.sparkContext.cancelJobsWithTag
    (spark.addTag if remote else spark.sparkContext.addJobTag)(tag)
    threading.Thread(target=watch, name="ramify-timeout", daemon=True).start()
    try:
        yield late
    finally:
        done.set()
        with suppress(Exception):
            (spark.removeTag if remote else spark.sparkContext.removeJobTag)(tag)


# ---- a session that runs already ----


def _running() -> SparkSession | None:
    """The session of this process, if there is one."""
    context = SparkContext._active_spark_context
    if context is not None and context._jsc is not None:
        return SparkSession.builder.getOrCreate()
    if "pyspark.sql.connect.session" not in sys.modules:
        return None
    from pyspark.sql.connect.session import SparkSession as Remote

    remote: Any = Remote._get_default_session()
    return None if remote is None or remote.is_stopped else remote


def _joined(running: SparkSession, url: str) -> SparkSession:
    """`running`, if it is what `url` asks for."""
    if is_connect(running):
        remote: Any = running
        master = f"sc://{remote.client.host}"
        same = url.startswith("sc://") and urlsplit(_by_name(url)).hostname == remote.client.host
    else:
        master = _master(running)
        same = master == url or (master.startswith("local") and url.startswith("local"))
    if same:
        return running
    raise SparkError(
        f"this process has a Spark session on {master} already and cannot have another on "
        f"{without_token(url)}: end that one first, or use another process"
    )


def _master(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""


# ---- Connect: a server elsewhere ----


@contextmanager
def _connected(url: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session on a Connect server that was reached, understood, and of our version."""
    try:
        from pyspark.sql.connect.session import SparkSession as Remote
    except (ImportError, PySparkException) as error:
        raise SparkError(
            f"Spark Connect needs more packages here: pip install 'pyspark[connect]' ({error})"
        ) from error
    parts = urlsplit(_by_name(url))
    _require_port(
        [f"{parts.hostname}:{parts.port or 15002}"], f"the Spark Connect server {without_token(url)}"
    )
    # pyspark.sql.functions decide by this variable which expressions to make.
    variables = {
        "SPARK_CONNECT_MODE_ENABLED": "1",
        "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE"),
    }
    with environment(variables):
        remote: Any = Remote(_by_name(url))
        try:
            _shake_hands(remote, url)
            Remote._set_default_and_active_session(remote)
            with doing("setting up the Connect session"):
                for name, value in {**SQL, **conf}.items():
                    remote.conf.set(name, value)
            yield remote
        finally:
            _leave(remote)


def _shake_hands(remote: Any, url: str) -> None:
    """Ask the server for its version, once and with a deadline: pyspark would try for ten minutes."""
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client.core import RpcDeadlines

    client = remote.client
    remote.release_session_on_close = False
    policies, deadlines = client.get_retry_policies(), client._rpc_deadlines
    client.set_retry_policies([])
    client._rpc_deadlines = RpcDeadlines(analyze_plan=_HANDSHAKE_S, config=_HANDSHAKE_S)
    try:
        grpc.channel_ready_future(client._channel).result(_HANDSHAKE_S)
        theirs = remote.version
    except grpc.FutureTimeoutError:
        raise SparkError(
            f"what listens at {without_token(url)} did not answer as a Spark Connect server within "
            f"{_HANDSHAKE_S:g} s: check the port, and whether it wants TLS (;use_ssl=true)"
        ) from None
    except (PySparkException, grpc.RpcError) as error:
        raise SparkError(
            f"the Spark Connect server {without_token(url)} did not let us in: {root_cause(error)}"
        ) from error
    finally:
        client.set_retry_policies(policies)
        client._rpc_deadlines = deadlines
    if theirs.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        raise SparkError(
            f"the Spark Connect server {without_token(url)} is Spark {theirs} and pyspark here is "
            f"{pyspark.__version__}: install pyspark=={theirs} here, or the other Spark there"
        )
    remote.release_session_on_close = True


def _leave(remote: Any) -> None:
    """End the session on the server, if it is still there: pyspark would look for it for ten minutes."""
    from pyspark.sql.connect.client.core import RpcDeadlines

    remote.client.set_retry_policies([])
    remote.client._rpc_deadlines = RpcDeadlines(release_session=_REACH_S)
    remote.stop()


def _by_name(url: str) -> str:
    """`url` with localhost for 127.0.0.1: only for that name does the client send a token without TLS."""
    return re.sub(r"^sc://127\.0\.0\.1(?=[:/;]|$)", "sc://localhost", url)


# ---- surroundings ----


def _require_port(endpoints: Sequence[str], what: str) -> None:
    """Make sure that one of the endpoints listens: Spark itself would try for minutes, in silence."""
    reasons = []
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{endpoint}: {error.strerror if isinstance(error, OSError) else None or error}")
        else:
            return
    raise SparkError(
        f"{what} cannot be reached ({'; '.join(reasons)}): is it running, and is the port right?"
    )
