"""`ramify verify`: a history is judged, a running overlay is tried."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from machines import machine_of, small_line, started
from ramify.cli import app
from ramify.overlay.histories.files import HistoryFile, read_history
from ramify.overlay.histories.rows import EndRow, PublishRow, RunRow, SubscribeRow
from ramify.overlay.live.wire.tasks import run_to_end


def written(path: Path) -> Path:
    rows = [
        RunRow("r", 0.0),
        SubscribeRow("c", "s", ((("x", "<", 5),),), 1.0, "active", 1.5),
        PublishRow("p", 2.0, (("e", {"x": 1}),), "acknowledged", 2.5),
        EndRow(9.0),
    ]
    with HistoryFile(path) as file:
        for row in rows:
            file.add(row)
    return path


def test_a_history_is_judged_offline(tmp_path: Path) -> None:
    history = written(tmp_path / "h.jsonl")
    found = CliRunner().invoke(app, ["verify", str(history)])
    assert found.exit_code == 1
    assert "lost: event e never came to s" in found.output
    assert "THE PROMISE WAS BROKEN" in found.output
    told = CliRunner().invoke(app, ["verify", str(history), "--json"])
    assert told.exit_code == 1
    assert json.loads(told.output)["lost"] == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["absent.jsonl"], "absent.jsonl"),
        (["--dir", "nothing-here"], "no overlay runs"),
        (["--client-file", "absent.json"], "absent.json"),
    ],
)
def test_what_cannot_be_tried_is_said(arguments: list[str], why: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["verify", *arguments])
    assert found.exit_code == 2
    assert why in found.output


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running overlay of two brokers, in a thread of its own."""
    path = tmp_path_factory.mktemp("verify")
    machine = machine_of(path, small_line(2), {"a": "v0", "b": "v1"}, scheme="single")
    begun, over = threading.Event(), threading.Event()

    async def run() -> None:
        async with started(machine):
            begun.set()
            while not over.is_set():
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: run_to_end(run()))
    thread.start()
    try:
        assert begun.wait(240)
        yield path
    finally:
        over.set()
        thread.join()


def test_a_running_overlay_is_tried_and_its_history_can_be_judged_again(
    overlay: Path, tmp_path: Path
) -> None:
    out = tmp_path / "h.jsonl"
    options = ["--for", "3", "--churn", "0.5", "--seed", "4", "--out", str(out), "--json"]
    found = CliRunner().invoke(app, ["verify", "--dir", str(overlay), *options])
    assert found.exit_code == 0, found.output
    figures = json.loads(found.output)
    assert figures["kept"]
    assert figures["acknowledged"] > 50
    assert figures["due"] > 50
    assert figures["looks"] > 0
    again = CliRunner().invoke(app, ["verify", str(out), "--json"])
    assert json.loads(again.output) == figures
    assert sum(isinstance(row, PublishRow) for row in read_history(out)) > 5


def test_clients_elsewhere_are_named_by_their_files(overlay: Path) -> None:
    files = [f"--client-file={overlay / 'clients' / name}.json" for name in ("a", "b")]
    found = CliRunner().invoke(app, ["verify", *files, "--for", "2", "--churn", "0", "--json"])
    assert found.exit_code == 0, found.output
    figures = json.loads(found.output)
    assert figures["acknowledged"] > 20
    assert figures["looks"] == 0
