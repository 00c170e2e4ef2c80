"""A local Spark that stays: started once, joined by later commands, stopped by `ramify spark stop`.

Owns the Connect server of `ramify spark start`, the file by which commands find it, and the choice of
what `--spark` means. Imports no pyspark before it is needed.

    auto       the Spark that runs already, else an own one as local[*]
    none       this process, no Spark
    others     see `session`: always what they say, never the Spark that runs

The server is a JVM on loopback with a token. `spark.json` in the user's runtime directory says where it is;
only its owner can read that file, since the token is in it. A file whose process is gone is removed. A
process counts as the same only if its start time is that of the file: pids are used again.

The file is there from the moment that the JVM has a pid, with `ready` false until tasks can run. So a start
that is interrupted, even killed, leaves nothing that `stop` or the next start does not find and end. One
start runs at a time: it holds a lock, which the kernel takes from a process that dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

from ramify.errors import MissingExtraError, SparkError
from ramify.pipeline.session.engine import NONE, Engine, InProcess, note_local

__all__ = ["AUTO", "WarmSpark", "found", "opened", "runtime_directory", "start", "stop"]

AUTO = "auto"
"""The URL that joins the Spark which runs already, and else starts one."""

_START_S = 180.0
_STOP_S = 30.0
_START_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class WarmSpark:
    """The server that `start` began: what `spark.json` holds.

    `began` is its start in ticks since the machine's, `python` the one that its tasks run, `code` where
    that one finds ramify, `slots` how many tasks run at a time; `ready` says that it takes tasks.
    """

    pid: int
    began: int
    port: int
    token: str
    ramify: str
    python: str
    code: str
    slots: int
    scratch: str
    ready: bool = False

    @property
    def url(self) -> str:
        """How to connect."""
        return f"sc://localhost:{self.port}/;token={self.token}"

    @property
    def where(self) -> str:
        """The URL without its token."""
        return f"sc://localhost:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return _began(self.pid) == self.began

    @property
    def mismatch(self) -> str | None:
        """Why this process cannot use it, if so."""
        if (self.ramify, self.code) != (_version(), _code()):
            return f"is of ramify {self.ramify} at {self.code}, and this one is {_version()} at {_code()}"
        if self.python != sys.executable:
            return f"runs the tasks with {self.python}, and this is {sys.executable}"
        return None


@contextmanager
def opened(
    url: str, joined: Callable[[str], None] = lambda where: None, *, brief: bool = False
) -> Iterator[Engine]:
    """What a pass runs on, for the value of `--spark`. `joined` is told where a Spark ran already;
    `brief`: see `spark_session`.

    Raises `InputError` for another value, `SparkError` as `spark_session` does and when the Spark that runs
    is of another version, `MissingExtraError` when pyspark is needed and not installed.
    """
    from ramify.pipeline.session.launch import check_url

    check_url(url, AUTO, NONE)
    if url == NONE:
        yield InProcess()
        return
    if find_spec("pyspark") is None:
        raise MissingExtraError("pyspark", "spark")
    from ramify.pipeline.session.session import spark_session

    running = found() if url == AUTO else None
    if running is None:
        with spark_session("local[*]" if url == AUTO else url, brief=brief) as spark:
            yield spark
        return
    if running.mismatch is not None:
        raise SparkError(
            f"the Spark that runs (pid {running.pid}) {running.mismatch}: end it with `ramify spark stop`, "
            "or give --spark 'local[*]' for an own one"
        )
    with spark_session(running.url, trusted=True) as spark:
        note_local(spark, running.slots)
        joined(running.where)
        yield spark


def runtime_directory() -> Path:
    """Where `spark.json` is: below XDG_RUNTIME_DIR, else below the user's cache."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ramify"


def found() -> WarmSpark | None:
    """The Spark that takes tasks; a file that a killed one left is removed, with its scratch directory.

    Raises `SparkError` for a file that others could have written or read.
    """
    record = _recorded()
    return record if record is not None and record.ready else None


def start(slots: int | None = None, memory: str | None = None) -> WarmSpark:
    """Start a Spark that outlives this process; returns when its Python workers have taken a task.

    Raises `SparkError` when one runs or is being started already, or when this one does not come up. Then,
    and after Ctrl-C, nothing of it is left.
    """
    directory = runtime_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _sole_start():
        record = _recorded()
        if record is not None and record.ready:
            raise SparkError(f"a Spark runs already (pid {record.pid}): `ramify spark stop` ends it")
        if record is not None:  # of a start that was killed
            _end(record)
            _forget(record)
        scratch = Path(tempfile.mkdtemp(prefix="spark-", dir=directory))
        try:
            return _started(scratch, slots or os.cpu_count() or 1, memory)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def stop() -> WarmSpark | None:
    """End the Spark that `start` began, ready or not; returns what it was, None when none runs."""
    running = _recorded()
    if running is not None:
        _end(running)
        _forget(running)
    return running


# ------------------------------------------------------------------------------------------- the server


def _started(scratch: Path, slots: int, memory: str | None) -> WarmSpark:
    """Start the server and have it take a first task; whatever stops us ends the server too."""
    record: WarmSpark | None = None
    try:
        with _signals_later():
            process, record = _launch(scratch, slots, memory)
            _write(record)
        _await_port(process, record)
        _warm_up(record)
        ready = replace(record, ready=True)
        _write(ready)
    except BaseException:
        if record is not None:
            _end(record)
            _forget(record)
        raise
    return ready


def _launch(scratch: Path, slots: int, memory: str | None) -> tuple[subprocess.Popen[bytes], WarmSpark]:
    """Start the server's JVM: a process that ends only when it is told to."""
    import pyspark

    from ramify.pipeline.session.launch import server_settings

    port, token = _free_port(), secrets.token_urlsafe(24)
    environment, properties = server_settings(slots, memory, scratch, port, token)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--properties-file", str(properties)]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    log = scratch / "spark.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
    began = _began(process.pid)
    if began is None:
        raise SparkError(f"Spark ended at once{_said(log)}")
    return process, WarmSpark(
        process.pid, began, port, token, _version(), sys.executable, _code(), slots, str(scratch)
    )


@contextmanager
def _signals_later() -> Iterator[None]:
    """Let Ctrl-C and requests to end wait: a JVM whose pid we do not know yet could not be ended."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other thread gets them
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    for first in came[:1]:
        signal.raise_signal(first)


def _await_port(process: subprocess.Popen[bytes], record: WarmSpark) -> None:
    """Wait until the server listens."""
    end = time.monotonic() + _START_S
    while not _listens(record.port):
        if process.poll() is not None or time.monotonic() > end:
            raise SparkError(f"Spark did not come up{_said(Path(record.scratch) / 'spark.log')}")
        time.sleep(_START_LOOK_S)


def _warm_up(record: WarmSpark) -> None:
    """Run a first task: it starts the Python workers, which later commands then find."""
    from ramify.pipeline.session.session import require_workers, spark_session

    with spark_session(record.url, trusted=True) as spark:
        note_local(spark, record.slots)
        require_workers(spark)


def _end(record: WarmSpark) -> None:
    """Ask the process to end, and end it if it does not.

    Its whole group: until it is the JVM, it is a script that runs another one.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            if record.runs:
                os.killpg(record.pid, number)
        end = time.monotonic() + _STOP_S
        while time.monotonic() < end:
            with suppress(ChildProcessError):
                os.waitpid(record.pid, os.WNOHANG)  # ours, when the process that started it stops it
            if not record.runs:
                return
            time.sleep(_START_LOOK_S)
    raise SparkError(f"the process {record.pid} of Spark does not end: end it by hand")


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None when it is gone or only waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _said(log: Path) -> str:
    from ramify.pipeline.session.launch import tail

    return tail(log)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


# ----------------------------------------------------------------------------------------------- the file


def _file() -> Path:
    return runtime_directory() / "spark.json"


@contextmanager
def _sole_start() -> Iterator[None]:
    """Raise `SparkError` where another process is inside this block."""
    lock = os.open(runtime_directory(), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SparkError(
            "a Spark is being started already: wait for it, or end it with `ramify spark stop`"
        ) from None
    finally:
        os.close(lock)


def _recorded() -> WarmSpark | None:
    """What the file says, if that process is there. The file and the scratch of one that is gone go."""
    file = _file()
    try:
        state = file.stat()
        if state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise SparkError(f"{file} is not private to you: remove it, and start Spark again")
        record = WarmSpark(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SparkError(f"{file} cannot be read ({error}): remove it, and start Spark again") from None
    if not record.runs:
        _forget(record)
        return None
    return record


def _write(record: WarmSpark) -> None:
    """Write the file whole, private from its first byte on."""
    part = _file().with_suffix(f".{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file)
    part.replace(_file())


def _forget(record: WarmSpark) -> None:
    """Remove the scratch directory of a server that is gone, and the file if it is still about that one."""
    scratch = Path(record.scratch)
    if scratch.parent == runtime_directory():
        shutil.rmtree(scratch, ignore_errors=True)
    with suppress(OSError, ValueError):
        told = json.loads(_file().read_text(encoding="utf-8"))
        if (told["pid"], told["began"]) == (record.pid, record.began):
            _file().unlink()


def _version() -> str:
    return installed("ramify")


def _code() -> str:
    """Where this process has ramify from: tasks must have the same."""
    return str(Path(__file__).resolve().parents[2])
