"""An overlay on one machine: it starts, keeps its data, mends itself, and leaves nothing behind."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imports import command, loaded
from machines import (
    Collected,
    is_running,
    machine_of,
    pids,
    send,
    small_line,
    started,
    until,
    until_routing,
    until_seen,
)
from ramify.content.events.events import Event
from ramify.errors import InputError
from ramify.network.graphs.files import write_overlay
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.directory import Directory
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import write_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

AT = {"alice": "v0", "bob": "v1"}


def event(id_: str) -> Event:
    return Event(id_, attributes={"x": 1, "source": "s"})


def test_a_second_run_has_the_data_of_the_first_and_nothing_is_left_running(tmp_path: Path) -> None:
    async def first() -> tuple[dict[str, str], list[int]]:
        async with started(machine_of(tmp_path, small_line(2), AT)) as machine:
            async with Client.at(tmp_path, "bob") as bob:
                assert not (await bob.subscribe("x = 1", id="s", wait_s=60)).missing
            async with Client.at(tmp_path, "alice") as alice:
                await alice.publish(event("waits"))
            # it waits on bob's lane: the run ends before he reads
            await until_seen(machine, lambda v: any(b.status and b.status.deliveries for b in v.brokers))
            with pytest.raises(InputError, match=f"runs from here .process {os.getpid()}"):
                await machine_of(tmp_path, small_line(2), AT).start()
            found = pids(machine)
            assert sorted(found) == ["", "coordinator", "routers-1", "routers-2", "v0", "v1"]
            assert Directory(tmp_path).running() is not None
            return machine.urls, list(found.values())

    async def second() -> dict[str, str]:
        async with started(machine_of(tmp_path, small_line(2), AT)) as machine:
            async with Client.at(tmp_path, "alice") as alice, Client.at(tmp_path, "bob") as bob:
                assert list(await bob.subscriptions()) == ["s"]
                collected = Collected()
                collected.read(bob)
                await alice.publish(event("fresh"))
                wanted = Counter({("waits", "s"): 1, ("fresh", "s"): 1})
                await collected.until_has(wanted)
                assert collected.counts == wanted
                await collected.stop()
            return machine.urls

    with asyncio.Runner() as runner:
        urls, left = runner.run(first())
        assert not [pid for pid in left if is_running(pid)]
        assert Directory(tmp_path).running() is None
        port = int(urls["v0"].rsplit(":", 1)[1])
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            again = runner.run(second())
        # the port that is free stays, the one that is taken does not
        assert again["v1"] == urls["v1"]
        assert again["v0"] != urls["v0"]


def test_a_process_that_dies_is_started_again_and_a_new_client_gets_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(machine_of(tmp_path, small_line(2), AT)) as machine:
            async with Client.at(tmp_path, "alice") as alice:
                before = pids(machine)
                for name in ("routers-1", "coordinator", "v1", ""):
                    send(before[name], signal.SIGKILL)
                Directory(tmp_path).add_clients({"carol": "v1"})
                await until(lambda: pids(machine).keys() == before.keys())
                await until(lambda: Directory(tmp_path).client_file("carol").exists())
                async with asyncio.timeout(240), Client.at(tmp_path, "carol") as carol:
                    await until_routing(machine)
                    collected = Collected()
                    await carol.subscribe("x = 1", id="s", wait_s=60)
                    collected.read(carol)
                    await alice.publish(event("e"))
                    await collected.until_has(Counter({("e", "s"): 1}))
                    await collected.stop()
            after = pids(machine)
            changed = {name for name in before if before[name] != after[name]}
            assert changed == {"routers-1", "coordinator", "v1", ""}
            assert set(machine.restarts.values()) == {1}
            running = Directory(tmp_path).running()
            assert running is not None
            assert running.processes["routers-1"] == after["routers-1"]
            with pytest.raises(InputError, match="attached to 'v1', not 'v0'"):
                Directory(tmp_path).add_clients({"carol": "v0"})

    with asyncio.Runner() as runner:
        runner.run(scenario())


# ------------------------------------------------------------------------------------- the command itself


@contextlib.contextmanager
def ramify_up(directory: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`ramify up` as a user starts it, once it says that it routes; what it says is in `up.log`."""
    log = directory.parent / "up.log"
    command = [sys.executable, "-m", "ramify.cli", "up", "--dir", str(directory), *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 240
        while "Ctrl-C stops" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def new_overlay(folder: Path, brokers: int = 2) -> tuple[str, ...]:
    """The options of a first run."""
    write_overlay(small_line(brokers), folder / "line.json")
    return "--overlay", str(folder / "line.json"), "--client", "alice@v0"


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(text) for text in found.stdout.split()]


# One test: every run of `up` costs five processes, and each of these needs what the one before it left.
def test_however_up_ends_all_that_it_started_ends_and_the_next_run_says_what_becomes_of_the_plan(
    tmp_path: Path,
) -> None:
    data, plan = tmp_path / "data", tmp_path / "plan.json"
    problem = Problem.of(small_line(1), Classes.collapse([], small_line(1), {}), Demand.of([]), {})
    write_plan(make_plan("mst", problem), plan)
    first = new_overlay(tmp_path, 1)
    # what its brokers have said of themselves outlives them
    assert "epoch 1, plan explicit\n" in _up_and_ended(data, signal.SIGKILL, *first)
    kept = "epoch 1, plan explicit, from the directory; --scheme mult is only for new directories"
    assert kept in _up_and_ended(data, signal.SIGHUP, "--scheme", "mult")
    said = _up_and_ended(data, signal.SIGTERM, "--plan", str(plan))
    assert "epoch 2, plan mst of" in said
    assert "it replaces the directory's plan" in said
    # the same once more is no other epoch
    assert "epoch 2, plan mst of" in _up_and_ended(data, signal.SIGINT, "--plan", str(plan))


def _up_and_ended(data: Path, how: signal.Signals, *words: str) -> str:
    """Run `ramify up` until it routes, end it, see all that it started end, and return what it said."""
    with ramify_up(data, *words) as process:
        running = json.loads((data / "running.json").read_bytes())
        started_ones = [pid for pid in children_of(process.pid) if is_running(pid)]
        # the servers of the broker and of control, the broker's process, a coordinator
        assert len(started_ones) == 4
        assert set(running["processes"].values()) <= set(started_ones)
        if how is signal.SIGINT:
            _is_refused(data.parent, process.pid)
        assert all(is_running(pid) for pid in started_ones)
        process.send_signal(how)
        code = process.wait(timeout=240)
        deadline = time.monotonic() + 240
        while left := [pid for pid in started_ones if is_running(pid)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    said = (data.parent / "up.log").read_text()
    if how is not signal.SIGKILL:
        assert code == 0, said
        assert not (data / "running.json").exists()
        assert "stopped" in said
    assert Directory(data).running() is None
    return said


def _is_refused(directory: Path, holder: int) -> None:
    """A second `up` on the same directory."""
    again = ["up", "--dir", str(directory / "data"), "--overlay", str(directory / "line.json")]
    command = [sys.executable, "-m", "ramify.cli", *again]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert refused.returncode != 0
    assert f"an overlay runs from here (process {holder})" in " ".join(refused.stderr.split())


def _shown(directory: Path, *words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    called = [sys.executable, "-m", "ramify.cli", words[0], "--dir", str(directory), "--json", *words[1:]]
    done = subprocess.run(called, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_rules_of_up_are_records_that_outlive_the_run(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "rules.json"
    rule = {"name": "gdpr", "events": "personal = true", "not_in": {"brokers": ["v1"]}}
    file.write_text(json.dumps({"residency": [rule]}))
    asked = ("--rules", str(file), "--per-matching", "2.5", "--coordinators", "2")
    with ramify_up(data, *new_overlay(tmp_path), *asked) as process:
        assert loaded(command("status", "--dir", str(data))) == []
        shown = _shown(data, "status")["rules"]
        assert shown["rules"] == {"residency": [rule]}
        assert (shown["revision"], shown["per_million_matchings"]) == (1, 2.5)
        assert _shown(data, "rules") == shown
        changed = _shown(data, "rules", "--per-filter", "0.5")
        assert (changed["revision"], changed["per_filter"], changed["rules"]) == (2, 0.5, shown["rules"])
        # the next leader was given the same options, and goes by the record
        killed = _coordinator(data)
        send(killed, signal.SIGKILL)
        deadline = time.monotonic() + 240
        while _coordinator(data) == killed or _shown(data, "status")["leader"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert _shown(data, "status")["rules"] == changed
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 0
    with ramify_up(data):
        assert _shown(data, "rules") == changed


def _coordinator(directory: Path) -> int:
    running = json.loads((directory / "running.json").read_bytes())
    return int(running["processes"]["coordinator"])
