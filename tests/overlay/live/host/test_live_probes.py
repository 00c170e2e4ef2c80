"""A control server whose streams are dead is found and started again, as those of brokers are."""

import asyncio
import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from machines import machine_of, small_line
from ramify.overlay.live.host import machine as machine_module
from ramify.overlay.live.host.machine import Machine, StreamProbe
from ramify.overlay.live.host.server import Server, Supervisor
from ramify.overlay.live.wire.streams import api, connect
from ramify.overlay.live.wire.tasks import run_to_end


async def stop(machine: Machine) -> None:
    with contextlib.suppress(Exception):
        await machine.stop()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(machine_module, "_CHILD_LOOK_S", 0.05)
    monkeypatch.setattr(machine_module, "Supervisor", partial(Supervisor, probe_limit_s=6.0))


@pytest.mark.usefixtures("hasty")
def test_a_control_server_that_lives_and_does_not_answer_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = machine_of(tmp_path / "m", small_line(1), {})
        try:
            async with asyncio.timeout(200):
                await machine._start_servers()
                control = machine._servers[""]
                assert isinstance(control.server, Server)
                seed = machine.directory.control_endpoint("coordinator", "nats://127.0.0.1")
                probe = StreamProbe(control.server, seed)
                machine._probes.append(probe)
                while not await probe():
                    await asyncio.sleep(0.1)
                pid = control.server.pid
                assert pid is not None
                # alive, and of no use: as after a full disk
                os.kill(pid, signal.SIGSTOP)
                while not control.restarts or not control.server.alive or control.server.pid == pid:
                    await asyncio.sleep(0.1)
                assert "probe" in (control.reason or "")
                while True:
                    with contextlib.suppress(Exception):
                        if await probe():
                            break
                    await asyncio.sleep(0.1)
                # and then it is left in peace
                before = control.restarts
                await asyncio.sleep(2.0)
                assert control.restarts == before
        finally:
            await stop(machine)

    run_to_end(scenario())


def test_a_server_that_died_is_started_again_long_before_its_next_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away nothing is routed at its broker."""
    monkeypatch.setattr(machine_module, "_PROBE_EVERY_S", 3600.0)

    async def scenario() -> None:
        machine = machine_of(tmp_path / "m", small_line(1), {})
        try:
            async with asyncio.timeout(200):
                await machine._start_servers()
                for name in ("v0", ""):
                    server = machine._servers[name].server
                    assert isinstance(server, Server)
                    pid = server.pid
                    server.kill()
                    while not server.alive or server.pid == pid:
                        await asyncio.sleep(0.05)
        finally:
            await stop(machine)

    run_to_end(scenario())


@pytest.mark.usefixtures("hasty")
def test_a_probe_whose_stream_is_gone_makes_it_again(tmp_path: Path) -> None:
    """Else a server whose disk was full at the first probe would be restarted for ever."""

    async def scenario() -> None:
        machine = machine_of(tmp_path / "m", small_line(1), {})
        try:
            async with asyncio.timeout(200):
                await machine._start_servers()
                server = machine._servers[""].server
                assert isinstance(server, Server)
                probe = StreamProbe(
                    server, machine.directory.control_endpoint("coordinator", "nats://127.0.0.1")
                )
                machine._probes.append(probe)
                assert await probe()
                own = await connect(machine.directory.control_endpoint("coordinator", server.url))
                await api(own, "STREAM.DELETE.PROBE", {})
                await own.close()
                with contextlib.suppress(Exception):
                    await probe()
                assert await probe()
        finally:
            await stop(machine)

    run_to_end(scenario())


@pytest.mark.usefixtures("hasty")
def test_probes_go_where_a_server_is_when_its_old_port_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = machine_of(tmp_path / "m", small_line(1), {})
        await machine._start_servers()
        port = machine._servers[""].server.config.port  # type: ignore[attr-defined]
        await stop(machine)
        squatter = await asyncio.start_server(lambda r, w: None, "127.0.0.1", port)
        again = machine_of(tmp_path / "m", small_line(1), {})
        try:
            async with asyncio.timeout(200):
                await again._start_servers()
                control = again._servers[""]
                assert control.server.config.port != port  # type: ignore[attr-defined]
                await asyncio.sleep(1.5)
                assert control.restarts == 0
                assert control._probe is not None
                assert await control._probe()
        finally:
            await stop(again)
            squatter.close()

    run_to_end(scenario())
