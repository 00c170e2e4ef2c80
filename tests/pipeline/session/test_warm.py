"""A Spark that stays: found by a private file, refused when another's, ended by its owner.

One that commands and jobs join is in test_clusters.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ramify.errors import SparkError
from ramify.pipeline.session import warm
from ramify.pipeline.session.engine import InProcess, runs_here, task_slots


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "ramify"


def record(pid: int, began: int, scratch: Path, **changes: object) -> warm.WarmSpark:
    known = {
        "pid": pid,
        "began": began,
        "port": 1,
        "token": "secret",
        "ramify": warm._version(),
        "python": sys.executable,
        "code": warm._code(),
        "slots": 2,
        "scratch": str(scratch),
        "ready": True,
    }
    return warm.WarmSpark(**{**known, **changes})  # type: ignore[arg-type]


def put(runtime: Path, made: warm.WarmSpark) -> Path:
    Path(made.scratch).mkdir(parents=True)
    warm._write(made)
    return runtime / "spark.json"


def test_none_is_this_process_and_needs_no_pyspark() -> None:
    with warm.opened("none") as engine:
        assert isinstance(engine, InProcess)
        assert runs_here(engine)
        assert task_slots(engine) == 1


def test_a_file_of_a_process_that_is_gone_is_removed(runtime: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    began = warm._began(gone.pid)
    gone.wait()
    made = record(gone.pid, began or 0, runtime / "spark-x")
    file = put(runtime, made)
    assert warm.found() is None
    assert not file.exists()
    assert not Path(made.scratch).exists()


def test_a_process_that_has_the_pid_of_another_is_neither_joined_nor_ended(runtime: Path) -> None:
    own = warm._began(os.getpid())
    assert own is not None
    put(runtime, record(os.getpid(), own - 1, runtime / "spark-x"))
    assert warm.stop() is None  # and we are still here


def test_only_the_owner_can_read_the_file(runtime: Path) -> None:
    own = warm._began(os.getpid())
    assert own is not None
    file = put(runtime, record(os.getpid(), own, runtime / "spark-x"))
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(SparkError, match="not private"):
        warm.found()


@pytest.mark.parametrize("change", [{"ramify": "0.0.1"}, {"python": "/other/python"}, {"code": "/other"}])
def test_a_spark_of_another_version_is_refused_with_what_to_do(
    runtime: Path, change: dict[str, str]
) -> None:
    own = warm._began(os.getpid())
    assert own is not None
    put(runtime, record(os.getpid(), own, runtime / "spark-x", **change))
    with pytest.raises(SparkError, match=r"ramify spark stop.*local\[\*\]"), warm.opened("auto"):
        pass


def test_one_start_runs_at_a_time(runtime: Path) -> None:
    runtime.mkdir()
    with warm._sole_start(), pytest.raises(SparkError, match="being started already"):
        warm.start()
    with warm._sole_start():  # the one that was refused holds nothing
        pass


def test_a_server_that_nobody_waits_for_is_ended_by_the_next_start(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    began = warm._began(left.pid)
    assert began is not None
    put(runtime, record(left.pid, began, runtime / "spark-x", ready=False))
    assert warm.found() is None, "commands do not join what takes no tasks yet"
    new = record(1, 1, runtime / "spark-y")
    monkeypatch.setattr(warm, "_started", lambda *_: new)
    assert warm.start() is new
    assert warm._began(left.pid) is None
    left.communicate()


def test_a_file_about_another_server_stays(runtime: Path) -> None:
    own = warm._began(os.getpid())
    assert own is not None
    file = put(runtime, record(os.getpid(), own, runtime / "spark-x"))
    warm._forget(record(os.getpid(), own - 1, runtime / "spark-y"))
    assert file.exists()


@contextmanager
def start_in_between(runtime: Path) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """A command `ramify spark start` whose server has a process and takes no tasks yet; and its pid."""
    command = subprocess.Popen([sys.executable, "-m", "ramify.cli", "spark", "start"])
    try:
        end = time.monotonic() + 300
        while not (runtime / "spark.json").exists():
            assert command.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        told = json.loads((runtime / "spark.json").read_text())
        assert not told["ready"]
        yield command, told["pid"]
    finally:
        command.kill()
        command.wait()
        warm.stop()


def test_ctrl_c_during_a_start_leaves_no_server(runtime: Path) -> None:
    with start_in_between(runtime) as (command, server):
        command.send_signal(signal.SIGINT)
        assert command.wait(300) != 0
        assert warm._began(server) is None
        assert list(runtime.iterdir()) == []


def test_a_start_that_was_killed_leaves_a_server_that_stop_ends(runtime: Path) -> None:
    with start_in_between(runtime) as (command, server):
        command.kill()
        command.wait()
        assert warm._began(server) is not None
        ended = warm.stop()
        assert ended is not None
        assert ended.pid == server
        assert warm._began(server) is None
        assert list(runtime.iterdir()) == []
