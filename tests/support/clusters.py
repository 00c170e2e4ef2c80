"""Real Sparks for tests, as processes on loopback: a standalone cluster, and job scripts.

Everything comes from the installed pyspark package and is authenticated. What is started here is ended
here, by process group; the logs are shown when something does not come up.

A job script is a file with `run(spark, output, *arguments)`; `run_jobs` runs several of them in one driver,
a process of its own because a process has one classic session:

    with standalone_cluster(folder) as cluster:
        table = run_job(cluster, Path("job_smoke.py"), folder)
"""

import ctypes
import json
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from ramify.pipeline.session.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
BIN = Path(pyspark.__file__).parent / "bin"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job can run: the URL, and the settings (secrets among them) that a driver needs for it."""

    url: str
    conf: Mapping[str, str] = field(default_factory=dict)


SMALL = {"spark.sql.shuffle.partitions": "2"}  # the jobs are tiny: 200 tasks a shuffle would take minutes
LOCAL = Place("local[2]", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", **SMALL})


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2, timeout_s: float = 400.0) -> Iterator[Place]:
    """A master and `workers` workers of one core each."""
    port, page = free_port(), free_port()
    secret = {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)}
    settings = _settings_file(folder / "cluster.conf", secret | {"spark.master.rest.enabled": "false"})
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    master = [str(BIN / "spark-class"), f"{package}.master.Master", "--host", "127.0.0.1"]
    master += ["--port", str(port), "--webui-port", str(page), "--properties-file", str(settings)]
    worker = [str(BIN / "spark-class"), f"{package}.worker.Worker", "--host", "127.0.0.1", "--cores", "1"]
    worker += ["--memory", "1g", "--webui-port", "0", "--properties-file", str(settings)]
    with ExitStack() as stack:
        log = folder / "master.log"
        running = [(stack.enter_context(_process(master, folder, log)), log)]
        for i in range(workers):
            log = folder / f"worker-{i}.log"
            command = [*worker, "--work-dir", str(folder / f"work-{i}"), url]
            running.append((stack.enter_context(_process(command, folder, log)), log))
        _wait_until(
            lambda: _alive_workers(page) == workers, f"{workers} workers at {url}", running, timeout_s
        )
        driver = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK}
        yield Place(url, {**LOCAL.conf, **secret, **driver})


def run_job(place: Place, script: Path, folder: Path, *arguments: str, timeout_s: float = 1000.0) -> Path:
    """Run one job script at `place` and return the file that it wrote."""
    return run_jobs(place, [(script, arguments)], folder, timeout_s=timeout_s)[0]


def run_here(spark: "SparkSession", jobs: Sequence[tuple[Path, Sequence[str]]], folder: Path) -> list[Path]:
    """Run job scripts in a session of this process; the files they wrote, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"{i}-{script.stem}" for i, (script, _) in enumerate(jobs)]
    for (script, given), output in zip(jobs, outputs, strict=True):
        _run(script, spark, output, given)
    return outputs


def _run(script: Path, spark: "SparkSession", output: Path, arguments: Sequence[str]) -> None:
    # Under a name that nobody can import, the functions of the script travel by value.
    runpy.run_path(str(script), run_name="job")["run"](spark, output, *arguments)


def run_jobs(
    place: Place, jobs: Sequence[tuple[Path, Sequence[str]]], folder: Path, *, timeout_s: float = 1000.0
) -> list[Path]:
    """Run job scripts one after another in one driver process; the files they wrote, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"{i}-{script.stem}" for i, (script, _) in enumerate(jobs)]
    order = {
        "url": place.url,
        "conf": dict(place.conf),
        "scratch": str(folder),
        "jobs": [[str(s), str(o), *given] for (s, given), o in zip(jobs, outputs, strict=True)],
    }
    # Over standard input: arguments can be read by every user of the machine.
    run = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps(order),
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if run.returncode != 0:
        raise AssertionError(f"a job at {place.url.partition(';')[0]} failed:\n{run.stdout}{run.stderr}")
    return outputs


def run_python(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 600.0
) -> "subprocess.CompletedProcess[str]":
    """Run `code` in a Python process of its own, which has to end well; what it printed."""
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=_environment() | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if run.returncode != 0:
        raise AssertionError(f"exit code {run.returncode}:\n{run.stdout}{run.stderr}")
    return run


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment() -> dict[str, str]:
    """Ours, with the test modules in reach, and without what would turn a child to another Spark."""
    foreign = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS")
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {name: value for name, value in os.environ.items() if name not in foreign} | {
        "PYTHONPATH": os.pathsep.join(paths)
    }


def _settings_file(path: Path, settings: Mapping[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


@contextmanager
def _process(
    command: Sequence[str], folder: Path, log: Path, memory: str = "256m"
) -> "Iterator[subprocess.Popen[bytes]]":
    """A process in a group of its own, ended with all its children."""
    environment = _environment() | {
        "JAVA_HOME": str(find_java(folder).home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_LAUNCHER_OPTS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)


def _die_with_parent() -> None:
    """A test run that is killed cannot end what it started: ask the kernel to (PR_SET_PDEATHSIG is 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _wait_until(
    condition: Callable[[], bool],
    what: str,
    running: "Sequence[tuple[subprocess.Popen[bytes], Path]]",
    timeout_s: float,
) -> None:
    """Poll until `condition` holds; fail with the logs when a process ends or the time is over."""
    end = time.monotonic() + timeout_s
    while not condition():
        ended = any(process.poll() is not None for process, _ in running)
        if ended or time.monotonic() > end:
            told = "\n".join(
                f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for _, log in running
            )
            raise AssertionError(f"{what}: not within {timeout_s:g} s\n{told}")
        time.sleep(0.1)


def _alive_workers(page: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):
        return -1


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def _drive() -> None:
    """The driver process of `run_jobs`."""
    from ramify.pipeline.session.session import require_workers, spark_session

    order = json.load(sys.stdin)
    conf = order["conf"] | (
        {}
        if order["url"].startswith("sc:")
        else {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}  # of `_environment`
    )
    memory = None if order["url"].startswith("sc:") else "1g"
    with spark_session(order["url"], memory=memory, conf=conf, scratch=Path(order["scratch"])) as spark:
        require_workers(spark)
        for script, output, *arguments in order["jobs"]:
            _run(Path(script), spark, Path(output), arguments)


if __name__ == "__main__":
    _drive()
