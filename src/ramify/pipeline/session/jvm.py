"""A Spark driver of our own: its settings, its JVM, its end.

Owns the settings of classic sessions, the launch of the JVM through pyspark, and its stop. Knows nothing of
Connect, nor of where the scratch directory comes from: `session` calls it.

pyspark keeps the JVM of a stopped context for the next one, with the memory and the directories of the
first. We end it, so that every session has its own settings and nothing outlives it.
"""

import logging
import os
import re
import shlex
import subprocess
import sys
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

__all__ = ["SQL", "classic", "environment", "quiet", "server_settings", "tail"]

SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",  # price and Price are two attributes
}
"""Settings of every session, Connect's too."""

_NOISE = r"\s*$|\tat |WARNING: Using incubator|Setting default log level|To adjust logging level"

_LOG4J2 = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@contextmanager
def classic(url: str, memory: str | None, conf: Mapping[str, str], own: Path) -> Iterator[SparkSession]:
    """A session with a JVM of its own, which ends with it."""
    java = find_java(own)
    for name in ("tmp", "local"):
        (own / name).mkdir()
    settings = _settings(url, memory, conf, own)
    log = Path(os.environ.get("RAMIFY_SPARK_LOG") or own / "jvm.log")
    with environment(_variables(url, java.home, settings, own)), log.open("ab") as sink:
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


def server_settings(
    slots: int, memory: str | None, own: Path, port: int, token: str
) -> tuple[dict[str, str], Path]:
    """The environment and the settings' file of a Connect server on loopback, with its files in `own`."""
    java = find_java(own)
    for name in ("tmp", "local"):
        (own / name).mkdir()
    connect = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
    }
    url = f"local[{slots}]"
    variables = _variables(url, java.home, _settings(url, memory, connect, own), own)
    kept = {name: value for name, value in variables.items() if value is not None}
    kept.pop("PYSPARK_SUBMIT_ARGS")
    return kept, own / "spark.properties"


def _variables(url: str, java_home: Path, settings: Mapping[str, str], own: Path) -> dict[str, str | None]:
    """The environment in which the JVM is launched. Writes the settings to the file that it names.

    A file and not arguments, which every user of the machine could read: secrets may be among them.
    """
    properties = own / "spark.properties"
    properties.touch(mode=0o600)
    properties.write_text(_properties(settings), encoding="utf-8")
    quoted = shlex.quote(str(properties))
    others = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    variables: dict[str, str | None] = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--load-spark-defaults --properties-file {quoted} {others}",
        # The launcher is a JVM of its own that lives for a second.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
        "SPARK_AUTH_SOCKET_TIMEOUT": None,
        "SPARK_BUFFER_SIZE": None,
    }
    return variables | ({"SPARK_LOCAL_IP": "127.0.0.1"} if _on_loopback(url) else {})


# Python workers live for many tasks, and each wants large arrays for a moment. glibc would give every one
# back to the kernel and have its pages zeroed again for the next, which took a fifth of a pass. So up to
# 256 MiB it keeps; other allocators do not know these names.
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
}


def _settings(url: str, memory: str | None, conf: Mapping[str, str], own: Path) -> dict[str, str]:
    """All settings of a classic session, those of `conf` over ours."""
    log4j2 = own / "log4j2.properties"
    log4j2.write_text(_LOG4J2.format(level="warn" if os.environ.get("RAMIFY_SPARK_LOG") else "error"))
    options = f"-XX:-UsePerfData -Djava.io.tmpdir={own / 'tmp'} -Dlog4j2.configurationFile={log4j2}"
    settings = {
        "spark.master": url,
        "spark.app.name": "ramify",
        "spark.submit.deployMode": "client",
        "spark.driver.memory": memory or f"{_memory_mb()}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(own / "local"),
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        **{f"spark.executorEnv.{name}": value for name, value in _ALLOCATOR.items()},
        **SQL,
    }
    if _on_loopback(url):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if url.startswith("local"):
        slots = 1 if url == "local" else int(re.sub(r"\D", "", url) or os.cpu_count() or 1)
        settings["spark.sql.shuffle.partitions"] = str(max(4, slots))
        # No collector threads: this JVM moves batches, and the cores belong to the Python workers.
        options += " -XX:+UseSerialGC"
    given = conf.get("spark.driver.extraJavaOptions", "")
    return {**settings, **conf, "spark.driver.extraJavaOptions": f"{options} {given}".strip()}


def _properties(settings: Mapping[str, str]) -> str:
    """`settings` as the text of a Java properties file."""
    value = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    key = value | str.maketrans({" ": "\\ ", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"})
    return "".join(f"{name.translate(key)}={text.translate(value)}\n" for name, text in settings.items())


def _memory_mb() -> int:
    """A quarter of the memory that this process may use, 1 to 4 GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(1024, min(4096, total // 4 >> 20))


def _on_loopback(url: str) -> bool:
    """Whether driver and master are on this machine, so that nothing need listen to another."""
    masters = url.removeprefix("spark://").split(",") if url.startswith("spark://") else []
    near = all(master.startswith(("localhost:", "127.")) for master in masters)
    return url.startswith("local") or (bool(masters) and near)


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


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of the JVM's output, to end a message with."""
    with suppress(OSError):
        text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
        told = [line.rstrip() for line in text.splitlines() if not re.match(_NOISE, line)]
        if told:
            return "; the last it said:\n" + "\n".join(f"  {line[:300]}" for line in told[-lines:])
    return ""


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
