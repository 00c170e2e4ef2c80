"""Sweeps: every trial once, whatever fails or is killed, and the same table each time."""

import contextlib
import functools
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ramify import __version__
from ramify.errors import InputError, SparkError
from ramify.pipeline import sweeps
from ramify.pipeline.sweeps import RESULTS, grid, records, sweep


def noted(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves a mark for each run, then fails in every way that there is."""
    Path(trial["marks"], f"{trial['seed']}-{uuid.uuid4().hex}").touch()
    match trial["seed"]:
        case 2:
            raise ValueError("two is\nnot allowed")
        case 3:
            sys.exit("gone")
        case 4 if not Path(trial["marks"], "mended").exists():
            os._exit(7)  # as a crash in native code would: no exception, no word
        case 5:
            return [1]  # type: ignore[return-value]
        case 6:
            return {"ratio": float("nan")}
        case seed:
            rng = np.random.default_rng(seed)
            return {"mean": rng.random(10).mean(), "draws": rng.integers(9, size=3), "seed": np.int64(seed)}
    raise AssertionError


def runs(marks: Path, seed: int) -> int:
    return len(list(marks.glob(f"{seed}-*")))


# --------------------------------------------------------------------------------------------- trials


def test_a_grid_is_the_product_of_its_axes_with_the_seed_varying_fastest() -> None:
    assert grid(a=[1, 2], b=["x"], seeds=2, first_seed=7) == [
        {"a": 1, "b": "x", "seed": 7},
        {"a": 1, "b": "x", "seed": 8},
        {"a": 2, "b": "x", "seed": 7},
        {"a": 2, "b": "x", "seed": 8},
    ]
    assert grid() == [{"seed": 0}]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"a": []}, "'a'"),
        ({"a": "xy"}, "'a'"),
        ({"seed": [1]}, "not an axis"),
        ({"seeds": 0}, "at least one"),
    ]
    for axes, what in wrong:
        with pytest.raises(InputError, match=what):
            grid(**axes)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.lists(st.integers())))
def test_a_key_depends_on_the_parameters_and_the_name_not_on_their_order(trial: dict[str, Any]) -> None:
    key = sweeps._Trial.of("m:f", 0, trial).key
    assert key == sweeps._Trial.of("m:f", 5, dict(reversed(trial.items()))).key
    assert key != sweeps._Trial.of("m:g", 0, trial).key
    assert key != sweeps._Trial.of("m:f", 0, {**trial, "one more": 1}).key


@pytest.mark.parametrize("trial", [{"x": {1, 2}}, {"x": float("inf")}, {3: 4}, [1], {"x": object()}])
def test_a_trial_that_json_cannot_hold_is_refused_by_number(tmp_path: Path, trial: Any) -> None:
    with pytest.raises(InputError, match="trial 1"):
        sweep(None, noted, [{"x": 1}, trial], tmp_path / "r.jsonl")  # type: ignore[arg-type]
    assert not (tmp_path / "r.jsonl").exists()


def test_experiments_without_a_name_and_those_that_cannot_travel_are_refused(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(trial: Mapping[str, Any]) -> dict[str, Any]:
        with lock:
            return {}

    refused: list[tuple[Callable[..., Any], str]] = [
        (lambda trial: {}, "name of its own"),
        (functools.partial(noted), "name of its own"),
        (locked, "cannot be pickled"),
    ]
    for experiment, what in refused:
        with pytest.raises(InputError, match=what):
            sweep(None, experiment, [{}], tmp_path / "r.jsonl")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- results


def test_failures_are_kept_the_others_go_on_and_a_rerun_runs_nothing_that_is_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    marks, out = tmp_path / "marks", tmp_path / "deep" / "results.jsonl"
    marks.mkdir()
    trials = grid(marks=[str(marks)], seeds=12)[::-1]
    told: list[float] = []
    table = sweep(spark, noted, [*trials, trials[0]], out, progress=lambda share, _: told.append(share))
    assert table.schema.equals(RESULTS)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
    rows = table.to_pylist()
    assert [row["trial"] for row in rows] == list(range(13))
    assert [json.loads(row["parameters"]) for row in rows] == [*trials, trials[0]]
    assert {**rows[12], "trial": 0} == rows[0]
    assert {row["version"] for row in rows} == {__version__}
    assert {row["experiment"] for row in rows} == {f"{__name__}:noted"}
    error = {json.loads(row["parameters"])["seed"]: row["error"] for row in rows}
    assert "ValueError: two is not allowed (test_sweeps.py:" in error[2]
    assert "SystemExit: gone" in error[3]
    assert "Python worker" in error[4]
    assert "list, not a mapping" in error[5]
    assert "JSON" in error[6]
    good = [seed for seed in error if error[seed] is None]
    assert sorted(good) == [0, 1, *range(7, 12)]
    for record in records(table.slice(0, 12)):
        expected = noted(record)
        assert record["mean"] == expected["mean"]
        assert record["draws"] == expected["draws"].tolist()

    # The next run finds everything done; the one after it tries what failed again, and nothing else.
    before = {seed: runs(marks, seed) for seed in range(12)}
    assert sweep(spark, noted, [*trials, trials[0]], out).equals(table)
    assert {seed: runs(marks, seed) for seed in range(12)} == before
    (marks / "mended").touch()
    again = sweep(spark, noted, trials, out, retry_failed=True).to_pylist()
    assert {seed for seed in range(12) if runs(marks, seed) > before[seed]} == {2, 3, 4, 5, 6}
    assert [row["error"] is None for row in again] == [seed not in (2, 3, 5, 6) for seed in range(12)][::-1]


def test_short_trials_share_jobs_and_a_closure_travels_with_what_it_holds(
    spark: SparkSession, tmp_path: Path
) -> None:
    offset = 100

    def shifted(trial: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": trial["x"] + offset}

    table = sweep(spark, shifted, grid(x=list(range(24))), tmp_path / "r.jsonl")
    assert [record["y"] for record in records(table)] == list(range(100, 124))


def test_a_module_that_tasks_do_not_have_is_named_and_nothing_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghost = types.ModuleType("ghost_of_a_module")
    exec("def run(trial): return {}", ghost.__dict__)
    monkeypatch.setitem(sys.modules, "ghost_of_a_module", ghost)
    with pytest.raises(SparkError, match="ghost_of_a_module"):
        sweep(spark, ghost.run, grid(seeds=3), tmp_path / "r.jsonl")
    assert (tmp_path / "r.jsonl").read_bytes() == b""


def test_when_spark_is_lost_no_trial_is_blamed() -> None:
    class Gone:
        def range(self, _: int) -> None:
            raise ConnectionRefusedError("no answer")

    jobs = sweeps._Jobs(Gone(), sweeps._Load(b"", ()))  # type: ignore[arg-type]
    with pytest.raises(SparkError, match="goes on from here"):
        jobs._still_there(SparkError("running trials failed"))


def test_jobs_grow_while_trials_are_short_and_shrink_towards_the_end() -> None:
    jobs = sweeps._Jobs(None, sweeps._Load(b"", ()))  # type: ignore[arg-type]
    trials = [sweeps._Trial(i, str(i), "{}") for i in range(1_000)]
    waiting = sweeps.deque(trials)
    assert len(jobs._next(waiting, 3)) == 1
    for last, most in ((0.2, 10), (0.001, 10), (5.0, 1), (0.001, 1)):
        jobs.recent.append(last)
        assert len(jobs._next(waiting, 3)) == most
    jobs.recent.extend([0.001] * 100)
    sizes = []
    while waiting:
        sizes.append(len(jobs._next(waiting, 3)))
    assert sizes[0] == 16
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
    jobs.apart.extend(trials[:2])
    assert jobs._next(sweeps.deque(trials), 3) == [trials[0]]


# ------------------------------------------------------------------------------------------- the file


def kept(path: Path, *numbers: int) -> None:
    with sweeps._Results.opened(path) as results:
        trials = [sweeps._Trial.of("m:f", n, {"n": n}) for n in numbers]
        results.append("m:f", [(trial, sweeps._Outcome('{"y":1}', 0.5, None)) for trial in trials])


def test_wherever_a_kill_cut_the_file_whole_lines_count_and_the_rest_does_not(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    kept(path, 0, 1)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    keys = [sweeps._Trial.of("m:f", n, {"n": n}).key for n in range(3)]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept(path, 2)
        with sweeps._Results.opened(path) as results:
            # without its line break a line is whole too
            held = [cut >= first - 1, cut >= len(whole) - 1, True]
            assert [results.has(key, False) for key in keys] == held, cut


def test_what_is_no_file_of_results_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "mine.csv"
    other.write_text("a,b\n1,2\n3,4")
    with pytest.raises(InputError, match="not a file of results"):
        sweep(None, noted, [{}], other)  # type: ignore[arg-type]
    assert other.read_text() == "a,b\n1,2\n3,4"
    with pytest.raises(InputError, match="cannot be kept here"):
        sweep(None, noted, [{}], tmp_path)  # type: ignore[arg-type]


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with (
        sweeps._Results.opened(path),
        pytest.raises(InputError, match="another sweep"),
        sweeps._Results.opened(path),
    ):
        pass
    kept(path, 1)


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with sweeps._watched(None) as report:
            report(0.5, "half of them")
        assert ("half of them" in stream.getvalue()) == shown


# ------------------------------------------------------------------------------------------- kill -9

BOOK = '''
import os, time, uuid
from pathlib import Path


def patient(trial):
    """Leaves a mark, and from the fourth trial on waits until it may go on."""
    Path(trial["marks"], f"{trial['seed']}-{uuid.uuid4().hex}").touch()
    deadline = time.monotonic() + 300
    while trial["seed"] >= 3 and not Path(trial["marks"], "go").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return {"square": trial["seed"] ** 2}
'''
DRIVER = """
import sys
from pathlib import Path
from ramify.pipeline.session.session import spark_session
from ramify.pipeline.sweeps import grid, sweep
from trialbook import patient

marks, out = sys.argv[1:]
with spark_session("local[2]", memory="1g", scratch=Path(marks).parent) as spark:
    sweep(spark, patient, grid(marks=[marks], seeds=9), Path(out))
"""


def _end_session(leader: int) -> None:
    """Kill what is left of a session: Spark's Python workers have their own group and outlive the JVM."""
    deadline = time.monotonic() + 240
    while left := [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session_of(pid) == leader
    ]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _session_of(pid: int) -> int | None:
    """The session of a process that runs."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state == "Z" else int(session)


def test_after_a_kill_9_nothing_is_lost_and_what_was_done_is_not_run_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trialbook.py").write_text(BOOK)
    (tmp_path / "driver.py").write_text(DRIVER)
    marks, out = tmp_path / "marks", tmp_path / "results.jsonl"
    marks.mkdir()
    arguments = [sys.executable, str(tmp_path / "driver.py"), str(marks), str(out)]
    driver = subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 240
        while not out.exists() or out.read_bytes().count(b"\n") < 3 or len(list(marks.iterdir())) < 4:
            assert driver.poll() is None, driver.stderr and driver.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        _end_session(driver.pid)
    assert out.read_bytes().count(b"\n") == 3
    started = [runs(marks, seed) for seed in range(9)]
    (marks / "go").touch()
    monkeypatch.syspath_prepend(tmp_path)
    book = importlib.import_module("trialbook")
    table = sweep(spark, book.patient, grid(marks=[str(marks)], seeds=9), out)
    assert [record["square"] for record in records(table)] == [n * n for n in range(9)]
    assert started[:3] == [1, 1, 1]
    assert 1 <= sum(started[3:]) < 6
    assert [runs(marks, seed) for seed in range(9)] == [1, 1, 1, *(1 + n for n in started[3:])]
