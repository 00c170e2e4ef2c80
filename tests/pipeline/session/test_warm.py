"""A Spark that stays: found by a private file, joined, refused when another's, ended by who began it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.errors import SparkError
from ramify.pipeline.session import warm
from ramify.pipeline.session.engine import InProcess, runs_here, task_slots

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


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


def test_started_joined_and_stopped(runtime: Path) -> None:
    def ramify(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "ramify.cli", *words], capture_output=True, text=True, timeout=300
        )

    files = [
        *("--events", str(EXAMPLES / "events.ndjson")),
        *("--subscriptions", str(EXAMPLES / "subscriptions.jsonl")),
        *("--attachments", str(EXAMPLES / "attachments.json"), "--schemes", "mst", "--json"),
    ]
    began = ramify("spark", "start", "--slots", "1")
    assert began.returncode == 0, began.stderr
    try:
        again = ramify("spark", "start")
        assert again.returncode == 2
        assert "runs already" in again.stderr
        told = json.loads(ramify("spark", "status", "--json").stdout)
        assert told["runs"]
        assert "token" not in told
        joined = ramify("plan", *files)
        assert f"joined the running Spark at {told['url']}" in joined.stderr
        alone = ramify("plan", *files, "--spark", "none")
        assert "joined" not in alone.stderr
        mine, theirs = json.loads(alone.stdout), json.loads(joined.stdout)
        for found in (mine, theirs):
            for row in found["schemes"].values():
                row.pop("seconds")
        assert mine == theirs
    finally:
        ended = ramify("spark", "stop")
    assert ended.returncode == 0
    assert f"pid {told['pid']}" in ended.stdout
    assert warm._began(told["pid"]) is None
    assert list(runtime.iterdir()) == []
    assert not json.loads(ramify("spark", "status", "--json").stdout)["runs"]
