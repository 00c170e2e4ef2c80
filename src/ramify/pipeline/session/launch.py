"""The settings of a Spark driver's JVM, its environment, and the directory of all that it writes.

Owns what is decided before a JVM starts, and imports no pyspark for it. `jvm` starts one.
"""

import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ramify.errors import InputError
from ramify.pipeline.session.java import find_java

__all__ = [
    "SQL",
    "brief_settings",
    "check_url",
    "classic_settings",
    "launch_variables",
    "scratch_directory",
    "server_settings",
    "tail",
    "without_token",
]

SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",  # price and Price are two attributes
}
"""Settings of every session, Connect's too."""

_URLS = "local[*], local[4], spark://host:port, sc://host:port/;token=..., yarn, k8s://https://host:port"
_FORMS = (
    r"local(\[(\*|[1-9]\d*)\])?",
    r"spark://[^\s/,:]+:\d+(,[^\s/,:]+:\d+)*",
    r"sc://([^\s/:;]+|\[[0-9a-fA-F:]+\])(:\d+)?(/?(;\S*)?)?",
    r"yarn",
    r"k8s://\S+",
)

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

_PREFIX = "ramify-spark"


def check_url(url: str, *words: str) -> None:
    """Raise `InputError` for what is neither one of `words` nor the URL of a Spark."""
    if url not in words and not any(re.fullmatch(form, url) for form in _FORMS):
        allowed = ", ".join((*words, _URLS))
        raise InputError(f"{without_token(url)!r} is not the URL of a Spark; allowed are {allowed}")


def without_token(url: str) -> str:
    """`url` as it may be shown."""
    return re.sub(r"(token=)[^;]*", r"\1...", url)


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
    variables = launch_variables(url, java.home, classic_settings(url, memory, connect, own), own)
    kept = {name: value for name, value in variables.items() if value is not None}
    kept.pop("PYSPARK_SUBMIT_ARGS")
    return kept, own / "spark.properties"


def launch_variables(
    url: str, java_home: Path, settings: Mapping[str, str], own: Path
) -> dict[str, str | None]:
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


def classic_settings(url: str, memory: str | None, conf: Mapping[str, str], own: Path) -> dict[str, str]:
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


def brief_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """`conf` for a JVM that has little to do: it compiles its code once and lightly."""
    options = "spark.driver.extraJavaOptions"
    return {**conf, options: f"-XX:TieredStopAtLevel=1 {conf.get(options, '')}".strip()}


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of the JVM's output, to end a message with."""
    with suppress(OSError):
        text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
        told = [line.rstrip() for line in text.splitlines() if not re.match(_NOISE, line)]
        if told:
            return "; the last it said:\n" + "\n".join(f"  {line[:300]}" for line in told[-lines:])
    return ""


@contextmanager
def scratch_directory(parent: Path | None) -> Iterator[Path]:
    """One directory for all that Spark writes here, removed at the end; first, those of dead processes."""
    root = Path(parent or tempfile.gettempdir())
    root.mkdir(parents=True, exist_ok=True)
    prefix = f"{_PREFIX}-{re.sub(r'[^a-zA-Z0-9.]', '_', socket.gethostname())}-"
    for left in root.glob(f"{prefix}*-*"):
        _remove_if_dead(left, left.name.removeprefix(prefix).partition("-")[0])
    own = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=root))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _remove_if_dead(left: Path, pid: str) -> None:
    """Remove a scratch directory of ours whose process is gone."""
    with suppress(OSError):
        if left.is_symlink() or not pid.isdecimal() or left.stat().st_uid != os.getuid():
            return
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            shutil.rmtree(left, ignore_errors=True)
