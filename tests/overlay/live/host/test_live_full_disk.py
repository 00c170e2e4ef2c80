"""A disk that fills up: nothing that was acknowledged is lost, and when there is room again all goes on."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from machines import Collected, machine_of, small_line, started, until, wanted_by
from ramify.content.events.events import Event
from ramify.errors import LiveError
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host import machine as machine_module
from ramify.overlay.live.host.machine import Child
from ramify.overlay.live.host.server import Supervisor
from ramify.overlay.live.wire.tasks import run_to_end

DISK_MIB = 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "ramify-test", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file: Path) -> None:
    """Take all the room that is left."""
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as out:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while out.write(b"x" * size) == size:
                    pass


def event(number: int) -> Event:
    return Event(f"e{number}", attributes={"x": number, "text": "y" * 3_000})


def test_a_full_disk_loses_nothing_and_the_server_comes_back_with_the_room(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_PROBE_EVERY_S", 0.5)
    monkeypatch.setattr(machine_module, "_PROBE_ANSWER_S", 2.0)
    monkeypatch.setattr(machine_module, "_LOG_STUCK_S", 4.0)
    monkeypatch.setattr(machine_module, "Supervisor", partial(Supervisor, longest_wait_s=2.0))
    machine = machine_of(tmp_path / "m", small_line(2), {"w": "v0", "r": "v1"})
    stores = machine.directory.path / "brokers"
    stores.mkdir(parents=True, exist_ok=True)
    # only this broker's store is on the small disk
    (disk / "v0").mkdir()
    (stores / "v0").symlink_to(disk / "v0")

    async def scenario() -> None:
        collected = Collected()
        accepted: list[Event] = []
        async with started(machine):
            writer, reader = await Client.at(tmp_path / "m", "w"), await Client.at(tmp_path / "m", "r")
            try:
                await reader.subscribe("x >= 0", id="all", wait_s=60)
                collected.read(reader)

                async def publish(number: int, give_up_s: float) -> bool:
                    try:
                        await writer.publish(event(number), give_up_s=give_up_s)
                    except LiveError:
                        return False
                    accepted.append(event(number))
                    return True

                assert await publish(0, 60)
                fill(disk / "filling")
                # some are taken still, or are not known to be; then none
                number = 1
                while await asyncio.gather(*(publish(number + i, 2.0) for i in range(20))):
                    number += 20
                    if number > 40 and not any(e.id == f"e{number - 1}" for e in accepted):
                        break
                (disk / "filling").unlink()
                assert await publish(number, 240), "no publish was taken although there is room"
                wanted = wanted_by({"all": "x >= 0"}, accepted)
                await collected.until_has(wanted, 120)
                assert all(count == 1 for count in collected.counts.values()), "something came twice"
                assert machine.restarts["server 'v0'"] >= 1
            finally:
                await collected.stop()
                await writer.close()
                await reader.close()

    run_to_end(scenario())


def test_a_process_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_SILENT_S", 5.0)

    async def hung(name: str, supervisor: Supervisor) -> None:
        child = supervisor.server
        assert isinstance(child, Child)
        pid = child.pid
        assert pid is not None, name
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: child.alive and child.pid not in (pid, None))
        assert supervisor.restarts >= 1

    async def scenario() -> None:
        machine = machine_of(tmp_path / "m", small_line(2), {"w": "v0", "r": "v1"})
        async with started(machine):
            await asyncio.gather(*(hung(*each) for each in machine._children.items()))
            writer, reader = await Client.at(tmp_path / "m", "w"), await Client.at(tmp_path / "m", "r")
            try:
                mine = await reader.subscribe("x >= 0", id="all", wait_s=120)
                await writer.publish(event(1), give_up_s=120)
                async with asyncio.timeout(240):
                    assert (await anext(mine)).id == "e1"
            finally:
                await writer.close()
                await reader.close()

    run_to_end(scenario())
