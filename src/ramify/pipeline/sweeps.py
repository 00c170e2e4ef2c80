"""Sweeps: many seeded experiments as Spark tasks, kept one by one, so that a rerun goes on where one ended.

Owns trials and their keys, the file of results, and the order in which trials become jobs. What an
experiment does is its own business: it gets a trial (a mapping of parameters, the seed among them) and
gives a mapping of results back, both as JSON has them (a tuple arrives as a list).

    trials = grid(scheme=["mst", "auto"], brokers=[20, 40], seeds=10)
    table = sweep(spark, run, trials, Path("results.jsonl"))

A result is known by its key: a digest of the experiment's name (module:function) and the trial's
parameters. What else an experiment depends on (its code, what a closure holds, the version of Ramify) is
not in the key: give another file when that changes.

Results are one file of JSON lines, written by this process alone, so tasks need no shared disk. Long trials
are jobs of their own; where the last ones took less than a second, up to 16 share a job. The lines of a
job are on disk as soon as it is over: after a kill -9 at any moment, at most the trials of the jobs under
way (one more than there are task slots) run again. A line that was cut by a kill is passed over.
"""

import fcntl
import hashlib
import json
import os
import sys
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from ramify import __version__
from ramify.errors import InputError, SparkError
from ramify.pipeline.passes.table_files import spark_schema
from ramify.pipeline.session.failures import doing, root_cause
from ramify.pipeline.session.session import task_slots
from ramify.planning.schemes.scheme import Progress, silent

__all__ = ["RESULTS", "Experiment", "grid", "records", "sweep"]

Experiment: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_COLUMNS: dict[str, Any] = {
    "trial": pa.int64(),
    "key": pa.string(),
    "experiment": pa.string(),
    "parameters": pa.string(),
    "result": pa.string(),
    "seconds": pa.float64(),
    "error": pa.string(),
    "version": pa.string(),
}
RESULTS = pa.schema(_COLUMNS)
"""The columns of a sweep's table; `parameters` and `result` are JSON objects, `error` is a sentence."""

_OUTCOME: dict[str, Any] = {
    "id": pa.int64(),
    "result": pa.string(),
    "seconds": pa.float64(),
    "error": pa.string(),
    "fault": pa.string(),
}
# Trials that are over in less share a job, so that starting jobs does not cost more than the trials.
_JOB_SECONDS = 2.0
_MOST_IN_A_JOB = 16
_LONGEST_ERROR = 400


def grid(*, seeds: int = 1, first_seed: int = 0, **axes: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the values of some parameters, each with `seeds` seeds: the trials of a sweep.

    The seed varies fastest, then the last axis.

    Raises
    ------
    InputError
        When an axis is no list of values, is empty, or is called `seed`.
    """
    if "seed" in axes:
        raise InputError("the seed is not an axis: seeds is how many, first_seed is where they begin")
    if seeds < 1:
        raise InputError(f"seeds = {seeds!r}: a trial has at least one seed")
    for name, values in axes.items():
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            raise InputError(f"the axis {name!r} needs a list of values, not {values!r}")
    numbers = range(first_seed, first_seed + seeds)
    return [dict(zip((*axes, "seed"), values, strict=True)) for values in product(*axes.values(), numbers)]


def sweep(
    spark: SparkSession,
    experiment: Experiment,
    trials: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    progress: Progress | None = None,
    retry_failed: bool = False,
) -> pa.Table:
    """Run the trials that `out` has no result of, each as a Spark task, and give all results: `RESULTS`.

    Rows come in the order of the trials, whatever finished first; equal trials run once. A trial that
    fails, or that ends its Python worker, is kept with its error, and the others go on; with
    `retry_failed` such trials run again. Without `progress`, a bar is shown on standard error where that
    is a terminal.

    An experiment is a function with a name, importable where the tasks run, or defined in the script or
    in another function: then it travels with what it refers to, which must be picklable.

    Raises
    ------
    InputError
        When the experiment is a lambda or an object without a name, or cannot be pickled; when a trial is
        not JSON; when `out` is something else, or another sweep is writing to it.
    SparkError
        When tasks cannot import the experiment, or Spark is lost. What was finished is kept.
    """
    name = _name(experiment)
    given = [_Trial.of(name, number, trial) for number, trial in enumerate(trials)]
    load = _Load.of(experiment, name)
    with _Results.opened(Path(out)) as results, _watched(progress) as report:
        wanted = {trial.key: trial for trial in given}
        todo = [trial for key, trial in wanted.items() if not results.has(key, retry_failed)]
        done, failed = len(wanted) - len(todo), 0
        report(done / max(len(wanted), 1), f"{done:,} of {len(wanted):,} trials")
        for finished in _Jobs(spark, load).run(todo):
            results.append(name, finished)
            done += len(finished)
            failed += sum(outcome.error is not None for _, outcome in finished)
            lost = f", {failed:,} failed" if failed else ""
            report(done / len(wanted), f"{done:,} of {len(wanted):,} trials{lost}")
        return results.table(given)


def records(table: pa.Table) -> list[dict[str, Any]]:
    """The trials of a table that have a result, each as one mapping of its parameters and results.

    Where both have a name, the result's value is given.
    """
    rows = table.select(["parameters", "result"]).to_pylist()
    return [
        {**json.loads(row["parameters"]), **json.loads(row["result"])}
        for row in rows
        if row["result"] is not None
    ]


# --------------------------------------------------------------------------- trials, and what they give


@dataclass(frozen=True, slots=True)
class _Trial:
    number: int
    key: str
    parameters: str

    @classmethod
    def of(cls, name: str, number: int, trial: Mapping[str, Any]) -> "_Trial":
        if not isinstance(trial, Mapping) or not all(isinstance(key, str) for key in trial):
            raise InputError(f"trial {number} is not a mapping of names to values: {trial!r}")
        try:
            text = _json(trial)
        except (TypeError, ValueError) as error:
            raise InputError(f"trial {number} cannot be kept as JSON: {error}") from None
        digest = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
        return cls(number, digest[:32], text)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a trial: its result as JSON, or an error."""

    result: str | None
    seconds: float
    error: str | None


def _json(found: Mapping[str, Any]) -> str:
    """The canonical text: equal mappings give equal texts."""
    form: dict[str, Any] = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False}
    return json.dumps(dict(found), allow_nan=False, default=_plain, **form)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _name(experiment: Experiment) -> str:
    module = getattr(experiment, "__module__", None)
    name = getattr(experiment, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or name.endswith("<lambda>"):
        raise InputError(
            f"an experiment is a function with a name of its own, not {experiment!r}: results are known by "
            "it. Define one with def, and put what varies into the trials."
        )
    return f"{module}:{name}"


# -------------------------------------------------------------------------------------------- in a task


@dataclass(frozen=True, slots=True)
class _Load:
    """An experiment on its way to tasks, and where this process finds modules: tasks look there too."""

    pickled: bytes
    paths: tuple[str, ...]

    @classmethod
    def of(cls, experiment: Experiment, name: str) -> "_Load":
        try:
            pickled = cloudpickle.dumps(experiment)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InputError(
                f"the experiment {name} cannot be sent to tasks ({_sentence(error)}): it refers to what "
                "cannot be pickled. Make that inside the function, from the trial's parameters."
            ) from None
        return cls(pickled, tuple(os.path.abspath(path) for path in sys.path))

    @contextmanager
    def unpacked(self) -> Iterator[Experiment]:
        """The experiment; its modules can be found meanwhile."""
        added = [path for path in self.paths if path not in sys.path]
        sys.path.extend(added)
        try:
            yield cloudpickle.loads(self.pickled)
        finally:
            for path in added:
                with suppress(ValueError):
                    sys.path.remove(path)


@dataclass(frozen=True, slots=True)
class _Task:
    """Runs the trials with the numbers that it is handed. Picklable."""

    load: _Load
    parameters: tuple[str, ...]

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            numbers: Any = batch.column(0)
            found = [{"id": number, **self._attempt(number)} for number in numbers.to_pylist()]
            yield pa.RecordBatch.from_pylist(found, schema=pa.schema(_OUTCOME))

    def _attempt(self, number: int) -> dict[str, Any]:
        begin, unpacked = time.perf_counter(), False
        try:
            with self.load.unpacked() as experiment:
                unpacked, begin = True, time.perf_counter()
                found = experiment(json.loads(self.parameters[number]))
                if not isinstance(found, Mapping):
                    raise TypeError(f"the experiment gave {type(found).__name__}, not a mapping of results")
                result = _json(found)
            return {"result": result, "seconds": time.perf_counter() - begin}
        except (Exception, SystemExit) as error:
            told = "error" if unpacked else "fault"
            return {"seconds": time.perf_counter() - begin, told: _sentence(error)}


def _sentence(error: BaseException) -> str:
    """Kind, message and place of an error, on one line."""
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return (text if len(text) <= _LONGEST_ERROR else f"{text[: _LONGEST_ERROR - 3]}...") + place


# --------------------------------------------------------------------------------------- on the driver

_TrialOutcomes: TypeAlias = list[tuple[_Trial, _Outcome]]


@dataclass(slots=True)
class _Jobs:
    """Keeps as many jobs under way as there are task slots, and one more that waits for the next slot."""

    spark: SparkSession
    load: _Load
    # to call all of them off by
    tag: str = field(default_factory=lambda: f"ramify-sweep-{uuid.uuid4().hex}")
    # trials that were in a job that failed as a whole: each gets a job of its own
    apart: deque[_Trial] = field(default_factory=deque)
    # how long the last trials took
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=2 * _MOST_IN_A_JOB))

    def run(self, todo: Sequence[_Trial]) -> Iterator[_TrialOutcomes]:
        """Trials as they finish, those of a job together."""
        waiting = deque(todo)
        lanes = task_slots(self.spark) + 1
        running: dict[Future[list[_Outcome]], list[_Trial]] = {}
        with ThreadPoolExecutor(lanes, "sweep") as pool:
            try:
                while waiting or self.apart or running:
                    while (waiting or self.apart) and len(running) < lanes:
                        batch = self._next(waiting, lanes)
                        running[pool.submit(self._job, batch)] = batch
                    over, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in over:
                        yield self._finished(future, running.pop(future))
            except BaseException:
                self._call_off(running)
                raise

    def _next(self, waiting: deque[_Trial], lanes: int) -> list[_Trial]:
        """The trials of the next job: one when trials were long lately, few towards the end."""
        if self.apart:
            return [self.apart.popleft()]
        fair = -(-len(waiting) // lanes)
        short = int(_JOB_SECONDS / max(self.recent)) if self.recent else 1
        return [waiting.popleft() for _ in range(max(1, min(fair, short, _MOST_IN_A_JOB)))]

    def _job(self, batch: Sequence[_Trial]) -> list[_Outcome]:
        """In a thread: run some trials, one to a task."""
        task = _Task(self.load, tuple(trial.parameters for trial in batch))
        self.spark.addTag(self.tag)
        try:
            frame = self.spark.range(0, len(batch), 1, len(batch))
            with doing("running trials"):
                found = frame.mapInArrow(task, spark_schema(pa.schema(_OUTCOME))).toArrow()
        finally:
            with suppress(Exception):  # the session may be gone, and why is known already
                self.spark.removeTag(self.tag)
        rows = sorted(found.to_pylist(), key=lambda row: row["id"])
        fault = next((row["fault"] for row in rows if row["fault"] is not None), None)
        if fault is not None:
            raise _UnloadableError(
                f"tasks cannot load the experiment ({fault}): what it imports must be installed where they "
                "run, or be defined in the script that calls the sweep"
            )
        return [_Outcome(row["result"], row["seconds"], row["error"]) for row in rows]

    def _finished(self, future: "Future[list[_Outcome]]", batch: list[_Trial]) -> _TrialOutcomes:
        try:
            outcomes = future.result()
        except _UnloadableError:
            raise
        except SparkError as error:
            self._still_there(error)
            if len(batch) > 1:
                self.apart.extend(batch)
                return []
            outcomes = [_Outcome(None, 0.0, " ".join(str(error).split())[:_LONGEST_ERROR])]
        self.recent.extend(max(outcome.seconds, 1e-6) for outcome in outcomes)
        return list(zip(batch, outcomes, strict=True))

    def _still_there(self, error: SparkError) -> None:
        """Blame the trial for a failed job only if Spark can still run one."""
        try:
            self.spark.range(1).count()
        except Exception as lost:
            text = (
                f"Spark was lost during the sweep ({root_cause(lost)}). Run it again: it goes on from here."
            )
            raise SparkError(text) from error

    def _call_off(self, running: Mapping[Future[Any], Any]) -> None:
        for future in running:
            future.cancel()
        with suppress(Exception):  # the reason for calling off is what the user must see
            self.spark.interruptTag(self.tag)


class _UnloadableError(SparkError):
    """No trial can run."""


class _Results:
    """The file of results: read once, then only added to."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._rows: dict[str, dict[str, Any]] = {}
        content = file.read()
        unread = 0
        for line in content.split(b"\n"):
            row = _row(line)
            if row is not None:
                self._rows[row["key"]] = row  # the last one counts: it may be a retry
            elif line.strip():
                unread += 1
        if unread > 1 and not self._rows:
            raise InputError("this is not a file of results; name another", path=str(path))
        if content and not content.endswith(b"\n"):
            self._write(b"\n")  # a line that was cut stays apart from the next

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator["_Results"]:
        """The results at `path`, locked for this process; the lock goes when the process ends, however."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        except OSError as error:
            raise InputError(f"results cannot be kept here: {error.strerror}", path=str(path)) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError("another sweep is writing to this file", path=str(path)) from None
            file.seek(0)
            yield cls(path, file)

    def has(self, key: str, retry_failed: bool) -> bool:
        """Whether a trial need not run."""
        row = self._rows.get(key)
        return row is not None and not (retry_failed and row["error"] is not None)

    def append(self, experiment: str, finished: _TrialOutcomes) -> None:
        """Keep some results: on disk when this returns."""
        lines = []
        for trial, outcome in finished:
            row = {
                "key": trial.key,
                "experiment": experiment,
                "parameters": json.loads(trial.parameters),
                "result": None if outcome.result is None else json.loads(outcome.result),
                "seconds": outcome.seconds,
                "error": outcome.error,
                "version": __version__,
            }
            self._rows[trial.key] = row
            lines.append(json.dumps(row, ensure_ascii=False))
        self._write("".join(f"{line}\n" for line in lines).encode())

    def table(self, trials: Sequence[_Trial]) -> pa.Table:
        """The results of some trials, in their order."""
        rows = []
        for trial in trials:
            row = self._rows[trial.key]
            result = None if row["result"] is None else _json(row["result"])
            rows.append({**row, "trial": trial.number, "parameters": trial.parameters, "result": result})
        return pa.Table.from_pylist(rows, schema=RESULTS)

    def _write(self, content: bytes) -> None:
        try:
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(
                f"results cannot be kept here: {error.strerror}", path=str(self._path)
            ) from None


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of results; None for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and row.keys() >= {*RESULTS.names} - {"trial"}
    return row if whole else None


@contextmanager
def _watched(progress: Progress | None) -> Iterator[Progress]:
    """The caller's progress, or a bar where standard error is a terminal."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("trials", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)
