"""The same jobs give the same rows on local[2], on a standalone cluster and over Connect.

The Connect server is that of `ramify spark start`, which commands join as well.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from clusters import HERE, Place, run_here, run_jobs, run_python, standalone_cluster
from project import EXAMPLES
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.session import warm
from ramify.workloads.catalog import workload_from

REFUSED = """
import sys
from ramify.errors import SparkError
from ramify.pipeline.session.session import spark_session
try:
    with spark_session(sys.argv[1]):
        print("let in")
except SparkError as error:
    print(error)
"""


def log_with_bad_rows(folder: Path) -> str:
    """Files of three kinds, and all that can be wrong with them."""
    workload = workload_from("demo:events=3000", overlay_from("cloud-regions"), 5)
    folder.mkdir()
    table = pa.Table.from_batches(list(workload.batches()))
    pq.write_table(table.slice(0, 1200), folder / "a.parquet", row_group_size=250)
    pq.write_table(table.slice(1200, 800), folder / "b.parquet")
    (folder / "cut.parquet").write_bytes((folder / "b.parquet").read_bytes()[:-100])
    lines = [b'{"id": "x%d", "publisher": "aws-eu-west-1", "price": %d}' % (i, i) for i in range(300)]
    lines[17:17] = [
        b"{",
        b"",
        b'{"id": "\xff"}',
        b'{"price": "much", "id": "y"}',
    ]
    (folder / "c.ndjson").write_bytes(b"\n".join(lines))
    (folder / "readme.txt").write_text("not a log")
    return str(folder)


Jobs = Sequence[tuple[Path, Sequence[str]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return log_with_bad_rows(tmp_path_factory.mktemp("clusters") / "log")


@pytest.fixture(scope="module")
def local(spark: SparkSession, folder: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the jobs write on local[2]."""
    written = [file.read_text() for file in run_here(spark, jobs(folder), tmp_path_factory.mktemp("local"))]
    found = json.loads(written[1])
    assert "4" in written[0]
    reasons = {json.loads(row)["reason"] for row in found["quarantine"]}
    assert reasons == {"not_json", "bad_utf8", "damaged_file", "unknown_kind"}
    assert all(found.values()), "every table has rows"
    return written


def jobs(folder: str, which: str = "all") -> Jobs:
    return [(HERE / "job_smoke.py", ("1000",)), (HERE / "job_pipeline.py", (folder, which))]


# Tables that are plain frames over the demand run on the cluster in the long form only: the tasks that are
# ours, the files they read and write and the code that travels are in every part.
@pytest.mark.parametrize("which", ["core", pytest.param("all", marks=pytest.mark.long)])
def test_a_job_gives_the_same_rows_on_a_standalone_cluster_as_locally(
    local: list[str], folder: str, tmp_path: Path, which: str
) -> None:
    with standalone_cluster(tmp_path / "cluster") as place:
        smoke, found = (f.read_text() for f in run_jobs(place, jobs(folder, which), tmp_path / "out"))
    assert smoke == local[0]
    tables, expected = json.loads(found), json.loads(local[1])
    assert len(tables) >= 8
    assert tables == {name: expected[name] for name in tables}
    assert which == "core" or tables == expected


@pytest.mark.long  # a cluster of its own, which also needs time to start executors anew
def test_a_job_that_loses_executors_gives_the_same_rows(
    local: list[str], folder: str, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    job = (HERE / "job_lost_executors.py", (folder, str(marks)))
    with standalone_cluster(tmp_path / "cluster") as place:
        (found,) = run_jobs(place, [job], tmp_path / "out")
    killed = [int(mark.read_text()) for mark in marks.iterdir()]
    assert len(set(killed)) == 3
    started = list((tmp_path / "cluster").glob("work-*/app-*/*"))
    assert len(started) >= 2 + 2, "executors were started in place of those killed"
    tables, expected = json.loads(found.read_text()), json.loads(local[1])
    assert tables == {name: expected[name] for name in tables}


# -------------------------------------------------------------------------- a Spark that commands join


def ramify(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ramify.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@contextmanager
def started_spark(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The server of `ramify spark start`; it is ended, and leaves nothing."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    began = ramify("spark", "start", "--slots", "2")
    assert began.returncode == 0, began.stderr
    try:
        running = warm.found()
        assert running is not None
        yield Place(running.url)
    finally:
        ended = ramify("spark", "stop")
    assert ended.returncode == 0
    assert f"pid {running.pid}" in ended.stdout
    assert warm._began(running.pid) is None
    assert list((runtime / "ramify").iterdir()) == []
    assert not json.loads(ramify("spark", "status", "--json").stdout)["runs"]


def test_jobs_and_commands_give_the_same_on_a_spark_that_stays_as_without_it(
    local: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started_spark(tmp_path, monkeypatch) as place:
        assert [f.read_text() for f in run_jobs(place, jobs(folder), tmp_path / "out")] == local
        refused = run_python(REFUSED, place.url.partition("token=")[0] + "token=wrong").stdout
        assert "refused the token" in refused
        assert "wrong" not in refused
        _commands_join()


def _commands_join() -> None:
    again = ramify("spark", "start")
    assert again.returncode == 2
    assert "runs already" in again.stderr
    told = json.loads(ramify("spark", "status", "--json").stdout)
    assert told["runs"]
    assert "token" not in told
    files = [
        *("--events", str(EXAMPLES / "events.ndjson")),
        *("--subscriptions", str(EXAMPLES / "subscriptions.jsonl")),
        *("--attachments", str(EXAMPLES / "attachments.json"), "--schemes", "mst", "--json"),
    ]
    joined, alone = ramify("plan", *files), ramify("plan", *files, "--spark", "none")
    assert f"joined the running Spark at {told['url']}" in joined.stderr
    assert "joined" not in alone.stderr
    mine, theirs = json.loads(alone.stdout), json.loads(joined.stdout)
    for found in (mine, theirs):
        for row in found["schemes"].values():
            row.pop("seconds")
    assert mine == theirs
