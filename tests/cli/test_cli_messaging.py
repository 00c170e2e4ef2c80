"""`ramify pub` and `ramify sub`: what a user gets, against a real server."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
from typer.testing import CliRunner

from imports import command, loaded
from lane_server import LaneServer
from ramify.cli import app
from ramify.cli.messages import _lines, as_published
from ramify.content.events.flatten import FieldMapping
from ramify.overlay.control.frames import decode_events, encode_events
from ramify.overlay.control.intake import ARROW_TYPE, ClientMessage, take_in
from ramify.overlay.control.names import token
from ramify.overlay.control.records import Answer
from ramify.overlay.live.client.client import Client

T = TypeVar("T")
LIMIT_S = 240.0


class Behind:
    """The server and its stand-in for a broker, in a thread that lives as long as the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.at = LaneServer(directory / "site")
        self.run(self.at.start())
        self.keys: dict[str, Path] = {}
        (directory / "clients").mkdir()
        for name in ("alice", "bob"):
            self.keys[name] = directory / f"{name}.nk"
            self.keys[name].write_text(self.at.seed(name))
            self.keys[name].chmod(0o600)
            place = {
                "client": name,
                "broker": "v0",
                "url": self.at.server.url,
                "seed_file": str(self.keys[name]),
            }
            (directory / "clients" / f"{token(name)}.json").write_text(json.dumps(place))

    def run(self, work: Awaitable[T]) -> T:
        async def done() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(LIMIT_S)

    def end(self) -> None:
        try:
            self.run(self.at.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LIMIT_S)
            self._loop.close()

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        )

    def told(self, *words: str, given: str | None = None, code: int = 0) -> tuple[list[str], str]:
        """What a command prints, run in this process: starting one takes seconds."""
        found = CliRunner().invoke(app, list(words), input=given)
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        assert found.exit_code == code, found.stderr
        return found.stdout.splitlines(), found.stderr


MAIN = "from ramify.cli import main; main()"


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    made = Behind(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_pub_publishes_lines_and_names_the_bad_ones(behind: Behind, tmp_path: Path) -> None:
    lines = [
        '{"id": "1", "x": 1}',
        "not json",
        "",
        '{"id": "2", "x": 2, "publisher": "somebody"}',
        '{"x": 3}',
    ]
    log = tmp_path / "log.ndjson"
    log.write_text("\n".join(lines))
    at = ("--url", behind.at.server.url, "--key", str(behind.keys["alice"]), "--client", "alice")
    _, said = behind.told("pub", *at, str(log), code=1)
    assert "published 2 events, 2 could not be used" in said
    assert "line 2:" in said
    assert "line 5:" in said
    _, said = behind.told("pub", "--dir", str(tmp_path), "--client", "bob", given="\n".join(lines), code=1)
    assert "line 2:" in said
    assert "line 5:" in said
    stored = behind.run(behind.at.published())
    assert [subject for subject, _, _ in stored] == ["ramify.publish.alice", "ramify.publish.bob"]
    assert [decode_events(data).column("id").to_pylist() for _, data, _ in stored] == [["1", "2"]] * 2


def test_pub_publishes_all_of_a_mixed_file(behind: Behind, tmp_path: Path) -> None:
    tasks = ["7", 7, [{"id": 7}], None, 2**70]
    rows = [{"id": str(k), "task": tasks[k % 5]} for k in range(300)]
    log = tmp_path / "log.ndjson"
    log.write_text("\n".join(map(json.dumps, rows)))
    _, said = behind.told("pub", "--dir", str(tmp_path), "--client", "alice", str(log))
    assert said.split() == ["published", "300", "events"]
    stored = [decode_events(data) for _, data, _ in behind.run(behind.at.published())]
    bodies = [body for batch in stored for body in batch.column("_body").to_pylist()]
    assert [json.loads(body) for body in bodies] == rows


def test_pub_loads_nothing_heavy_to_publish(behind: Behind, tmp_path: Path) -> None:
    words = ("pub", "--dir", str(tmp_path), "--client", "alice")
    assert loaded(command(*words), given='{"id": "1", "x": 1}\n') == []
    assert len(behind.run(behind.at.published())) == 1


def test_pub_of_the_same_again_says_that_it_was_accepted_before(behind: Behind, tmp_path: Path) -> None:
    place = ("pub", "--dir", str(tmp_path), "--client", "alice")
    lines = '{"id": "1", "x": 1}\n{"id": "2", "x": 2}\n'
    _, said = behind.told(*place, given=lines)
    assert said.split() == ["published", "2", "events"]
    _, said = behind.told(*place, given=lines)
    assert "published 2 events, 2 of them were accepted before and are not delivered again" in said
    _, said = behind.told(*place, given='{"id": "3"}\n')
    assert "before" not in said
    assert len(behind.run(behind.at.published())) == 2


def test_sub_prints_events_as_they_were_published() -> None:
    plain = {
        "id": "e1",
        "time": "2026-03-01T09:00:00Z",
        "type": "order.created",
        "customer": {"tier": "gold"},
    }
    event = {
        "specversion": "1.0",
        "id": "e2",
        "source": "s",
        "type": "ramify.event",
        "data": {"type": "own"},
    }
    for given, wanted in (
        (plain | {"publisher": "shop"}, plain | {"publisher": "bob"}),
        (event, event | {"publisher": "bob"}),
    ):
        (part,) = _lines(io.BytesIO(json.dumps(given).encode()), FieldMapping())
        taken, _ = take_in([ClientMessage("bob", encode_events(part.batch), ARROW_TYPE, None, 0)])
        assert taken is not None
        assert as_published(taken, 0) == wanted


def test_brokers_that_are_late_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    answer = Answer(ok=True, missing={f"v{i}": "not heard of" for i in range(9)})
    Client._warn(SimpleNamespace(name="alice"), "the end of s", answer)  # type: ignore[arg-type]
    (warning,) = caplog.messages
    assert "v0: not heard of" in warning
    assert "and 6 more" in warning
    caplog.clear()
    Client._warn(SimpleNamespace(name="alice"), "the end of s", Answer(ok=True))  # type: ignore[arg-type]
    assert not caplog.messages


def test_pub_takes_cloudevents_and_names_what_has_no_id(behind: Behind, tmp_path: Path) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"x": 1}}
    place = ("--dir", str(tmp_path), "--client", "alice")
    behind.told("pub", *place, "-", given=json.dumps(event) + "\n")
    behind.told("pub", *place, "--id-field", "none", given='{"x": 1}\n{"x": 2}\n')
    behind.told("pub", *place, "--id-field", "none", given='{"x": 1}\n{"x": 2}\n')
    found = [decode_events(data) for _, data, _ in behind.run(behind.at.published())]
    assert found[0].column("data.x").to_pylist() == [1]
    assert len({id for batch in found for id in batch.column("id").to_pylist()}) == 5


def test_sub_prints_its_events_and_goes_on_at_its_position(behind: Behind, tmp_path: Path) -> None:
    at = behind.at
    behind.run(at.deliver(["alice/mine"], "a", "b", "c"))
    behind.run(at.deliver(["alice/other"], "z"))
    behind.run(at.deliver(["alice/mine"], "d"))
    place = ("--dir", str(tmp_path), "--client", "alice")
    mine = (*place, "--sql", "x = 1", "--id", "mine", "--position-file", str(tmp_path / "position"))
    out, _ = behind.told("sub", *mine, "--count", "2")
    assert [json.loads(line)["id"] for line in out] == ["a", "b"]
    assert json.loads((tmp_path / "position").read_text()) == {"after": 0, "rows": 2}
    out, said = behind.told("sub", *mine, "--count", "2")
    assert [json.loads(line)["id"] for line in out] == ["c", "d"]
    assert "left out: 1 event for other subscriptions" in said
    assert json.loads((tmp_path / "position").read_text()) == {"after": 3, "rows": 0}
    assert [request.op for request in at.asked] == ["subscribe", "subscribe"]
    behind.run(at.deliver(["alice/other"], "y"))
    out, _ = behind.told("sub", *place, "--count", "1")  # without a filter: whatever comes, after d
    assert json.loads(out[0])["id"] == "y"


def test_pub_does_not_wait_for_the_end_of_standard_input(behind: Behind, tmp_path: Path) -> None:
    process = behind.start("pub", "--dir", str(tmp_path), "--client", "alice")
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        assert process.stdin is not None
        process.stdin.write('{"id": "1"}\n{"id": "2"')
        process.stdin.flush()
        while not behind.run(behind.at.published()):
            assert process.poll() is None
            time.sleep(0.05)
        _, said = process.communicate("}\nbad\n")
        assert (process.returncode, "line 3:" in said) == (1, True), said
        ids = [
            decode_events(data).column("id").to_pylist() for _, data, _ in behind.run(behind.at.published())
        ]
        assert ids == [["1"], ["2"]]
    finally:
        timer.cancel()
        process.kill()


def test_ctrl_c_ends_sub_and_a_subscription_without_id_with_it(behind: Behind, tmp_path: Path) -> None:
    process = behind.start("sub", "--dir", str(tmp_path), "--client", "alice", "--keywords", "news,sport")
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        while not behind.at.asked:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        (request,) = behind.at.asked
        assert request.filter is not None
        assert request.filter.keywords == ["news", "sport"]
        behind.run(behind.at.deliver([f"alice/{request.id}"], "a"))
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == "a"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, said) == (0, "")
        assert [asked.op for asked in behind.at.asked] == ["subscribe", "unsubscribe"]
        # a moment for the brokers to know it: without, all of them would be reported as late
        assert behind.at.asked[-1].wait_s >= 1
    finally:
        timer.cancel()
        process.kill()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sub", "--client", "alice"], "--url and --key"),
        (["sub", "--client", "nobody", "--dir", "."], "no overlay here"),
        (
            ["sub", "--client", "alice", "--url", "nats://127.0.0.1:1", "--key", "no-such-file"],
            "no such key",
        ),
        (["pub", "--client", "alice", "--dir", ".", "--url", "x"], "--url and --key"),
    ],
)
def test_what_cannot_be_done_is_one_message(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 2
    assert says in found.stderr
    assert "Traceback" not in found.stderr


def test_a_filter_that_is_wrong_is_shown_with_its_place(behind: Behind, tmp_path: Path) -> None:
    place = ("--dir", str(tmp_path), "--client", "alice")
    _, said = behind.told("sub", *place, "--sql", "x <", code=2)
    assert "^" in said
    for bad in (("--pattern", "{"), ("--sql", "x = 1", "--keywords", "a"), ("--id", "i")):
        _, said = behind.told("sub", *place, *bad, code=2)
        assert "InputError" in said
    assert not behind.at.asked


def test_sub_tells_of_a_suspension_and_goes_on_when_it_is_run_again(behind: Behind, tmp_path: Path) -> None:
    at = behind.at
    behind.run(at.deliver(["alice/mine"], "lost"))
    behind.run(at.suspend())
    mine = (
        "--dir", str(tmp_path), "--client", "alice", "--sql", "x = 1", "--id", "mine",
        "--position-file", str(tmp_path / "position"), "--count", "1",
    )  # fmt: skip
    _, said = behind.told("sub", *mine, code=2)
    assert "quota" in said
    behind.run(at.write("alice", b"", {"X": "", "R": "1"}))
    behind.run(at.deliver(["alice/mine"], "new"))
    out, _ = behind.told("sub", *mine)
    assert json.loads(out[0])["id"] == "new"
