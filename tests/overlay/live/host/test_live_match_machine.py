"""An overlay of brokers that make matches, on one machine: no coordinator, no control server."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from machines import LIMITS, Collected, machine_of, pids, small_line, started, until_seen
from ramify.cli import app
from ramify.content.events.events import Event
from ramify.errors import InputError
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine, MachineConfig
from ramify.overlay.live.host.overview import Overview
from running import SMALL

AT = {"alice": "v0", "bob": "v2"}


def matching(directory: Path, trees: str = "shared") -> Machine:
    files = Directory(directory)
    files.create(small_line(3))
    files.add_clients(AT)
    return Machine(MachineConfig(small_line(3), files, (), 2, SMALL, LIMITS, matchmaking=trees))


def event(id_: str, x: int) -> Event:
    return Event(id_, attributes={"x": x, "source": "s"})


def test_clients_meet_without_a_coordinator_and_a_second_run_goes_on(tmp_path: Path) -> None:
    async def first() -> None:
        async with started(matching(tmp_path)) as machine:
            assert sorted(pids(machine)) == ["routers-1", "routers-2", "v0", "v1", "v2"]
            async with Client.at(tmp_path, "bob") as bob, Client.at(tmp_path, "alice") as alice:
                await bob.subscribe("x > 0", id="s")
                await alice.advertise("x < 5", id="a")
                # the channel passes three brokers
                await until_seen(machine, lambda view: channels(view) >= 3)
                await alice.publish([event("in", 1), event("unwanted", 0), event("outside", 9)])
                collected = Collected()
                collected.read(bob)
                await collected.until_has(Counter({("in", "s"): 1}))
                view = await until_seen(machine, lambda view: sum(rejects(view)) == 1)
                assert rejects(view) == [1, 0, 0]
                assert (view.clients, view.matchmaking, view.leader) == (2, "shared", None)
                assert sum(b.status.descriptors for b in view.brokers if b.status) > 0
                assert collected.counts == {("in", "s"): 1}
                await collected.stop()
            shown = await asyncio.to_thread(CliRunner().invoke, app, ["status", "--dir", str(tmp_path)])
            assert shown.exit_code == 0, shown.output
            assert "no coordinator: matches over shared trees; 2 clients" in shown.output

    async def second() -> None:
        with pytest.raises(
            InputError, match="was run with matchmaking over shared trees, not coordinators"
        ):
            await machine_of(tmp_path, small_line(3), AT).start()
        with pytest.raises(InputError, match="not matchmaking over per-source trees"):
            await matching(tmp_path, "per-source").start()
        async with (
            started(matching(tmp_path)),
            Client.at(tmp_path, "bob") as bob,
            Client.at(tmp_path, "alice") as alice,
        ):
            assert list(await alice.advertisements()) == ["a"]
            collected = Collected()
            collected.read(bob)
            await alice.publish(event("again", 2))
            await collected.until_has(Counter({("again", "s"): 1}))
            await collected.stop()

    with asyncio.Runner() as runner:
        runner.run(first())
        runner.run(second())


def channels(view: Overview) -> int:
    return sum(b.status.channels for b in view.brokers if b.status)


def rejects(view: Overview) -> list[int]:
    return [b.status.rejects if b.status else 0 for b in view.brokers]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--matchmaking", "odd"], "give shared or per-source"),
        (["--matchmaking", "shared", "--scheme", "mult"], "--scheme cannot go with --matchmaking"),
        (["--matchmaking", "shared", "--replan-every", "5"], "--replan-every cannot go with --matchmaking"),
    ],
)
def test_what_matchmaking_cannot_do_is_said_before_anything_starts(
    tmp_path: Path, options: list[str], said: str
) -> None:
    found = CliRunner().invoke(app, ["up", "--dir", str(tmp_path / "new"), *options])
    assert found.exit_code != 0
    assert said in " ".join(found.output.split())
    assert not (tmp_path / "new" / "ports.json").exists()
