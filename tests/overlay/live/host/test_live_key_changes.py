"""Keys rotated and clients kept out while an overlay runs and events flow."""

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

import nats
import nats.errors
import pytest
from typer.testing import CliRunner

from machines import machine_of, small_line, started
from ramify.cli import app
from ramify.content.events.events import Event
from ramify.errors import InputError, LiveError
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.host.overview import looking_here
from ramify.overlay.live.wire.security import ClientRole, KeyPair, Role
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

LIMIT_S = 240.0
CLIENTS = {"alice": "v0", "bob": "v1", "carol": "v1"}


async def admits(machine: Machine, broker: str, pair: KeyPair, role: Role) -> bool:
    """Whether a server lets a key in now."""
    try:
        connection = await nats.connect(
            machine.urls[broker],
            nkeys_seed_str=pair.seed,
            inbox_prefix=role.inbox_prefix.encode(),
            allow_reconnect=False,
            error_cb=_quiet,
        )
    except (nats.errors.Error, OSError):
        return False
    await connection.close()
    return True


async def _quiet(_: Exception) -> None:
    return


class Flow:
    """A publisher and a reader; how often each event came."""

    def __init__(self, alice: Client, bob: Client) -> None:
        self.alice, self.bob = alice, bob
        self.published = 0
        self.came: Counter[str] = Counter()

    async def publish(self) -> None:
        while True:
            await self.alice.publish(
                {"id": f"e{self.published}", "type": "t", "source": "s", "specversion": "1.0"}
            )
            self.published += 1
            await asyncio.sleep(0.02)

    async def read(self, subscription: object) -> None:
        async for event in subscription:  # type: ignore[attr-defined]
            assert isinstance(event, Event)
            self.came[event.id] += 1

    async def past(self, more: int) -> None:
        """Until so many more were published and all of those came."""
        wanted = self.published + more
        while self.published < wanted or sum(self.came.values()) < wanted:
            await asyncio.sleep(0.05)


async def until(true: object) -> None:
    while not true():  # type: ignore[operator]
        await asyncio.sleep(0.05)


def test_keys_are_rotated_and_a_client_is_kept_out_under_load(tmp_path: Path) -> None:
    machine = machine_of(tmp_path / "m", small_line(2), CLIENTS)
    directory = machine.directory

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), started(machine):
            where = directory.path
            async with (
                Client.at(where, "alice") as alice,
                Client.at(where, "bob") as bob,
                Client.at(where, "carol") as carol,
            ):
                flow = Flow(alice, bob)
                subscription = await bob.subscribe("type = 't'", wait_s=60.0)
                assert not subscription.missing
                tasks = [asyncio.create_task(flow.publish()), asyncio.create_task(flow.read(subscription))]
                try:
                    await flow.past(20)
                    await _rotated(machine, flow)
                    await _revoked(machine, flow, carol)
                    for task in tasks:
                        assert not task.done()
                finally:
                    await end_tasks(tasks)
                assert set(flow.came.values()) == {1}
                # whose keys did not change kept their connection through all of it
                assert bob._wires.all[0].connection.stats["reconnects"] == 0

    run_to_end(scenario())


async def _rotated(machine: Machine, flow: Flow) -> None:
    directory = machine.directory
    names = ("alice", "v0", "v1", "coordinator", "viewer", "operator")
    roles = [(name, role) for name in names for role in directory.roles_of(name)]
    former = {role: directory.ring.pair(role) for _, role in roles}
    for name in names:
        assert directory.rotate(name, 6.0) == directory.roles_of(name)
    alice, new = ClientRole("alice"), directory.ring.pair(ClientRole("alice"))
    assert new != former[alice]
    # both count for a while, then the new one alone
    while not await admits(machine, "v0", new, alice):
        await asyncio.sleep(0.05)
    began_s = time.time()
    admitted = await admits(machine, "v0", former[alice], alice)
    ends_s = min(each.until for each in directory._former_keys())
    assert admitted or began_s > ends_s - 1.0
    while await admits(machine, "v0", former[alice], alice):
        await asyncio.sleep(0.1)
    await flow.past(50)
    assert flow.alice._wires.all[0].connection.stats["reconnects"] >= 1
    running = directory.running()
    assert running is not None
    async with looking_here(directory, running) as look:
        while not (await look()).routing:
            await asyncio.sleep(0.1)


async def _revoked(machine: Machine, flow: Flow, carol: Client) -> None:
    role, kept = ClientRole("carol"), machine.directory.ring.pair(ClientRole("carol"))
    assert await admits(machine, "v1", kept, role)
    assert machine.directory.revoke("carol") == "v1"
    await until(lambda: not carol._wires.all[0].connection.is_connected)
    assert not await admits(machine, "v1", kept, role)
    with pytest.raises(LiveError):
        await carol.publish({"id": "late", "type": "t", "source": "s", "specversion": "1.0"}, give_up_s=1.0)
    await flow.past(20)
    # let in again, it has another key
    machine.directory.add_clients({"carol": "v1"})
    new = machine.directory.ring.pair(role)
    assert new != kept
    while not await admits(machine, "v1", new, role):
        await asyncio.sleep(0.05)
    assert not await admits(machine, "v1", kept, role)


def told(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


def test_the_command_says_what_to_reload(tmp_path: Path) -> None:
    where = ("keys", "--dir", tmp_path / "d")
    assert told(*where, "--overlay", "ring:3", "--client", "alice@v0", "--client", "v1@v1")[0] == 0
    files = Directory(tmp_path / "d")
    before = files.ring.pair(ClientRole("alice"))
    conf = tmp_path / "d" / "accounts" / "v0.conf"
    code, said = told(*where, "--rotate", "alice", "--overlap", "1h")
    assert code == 0, said
    new = files.ring.pair(ClientRole("alice"))
    assert "give them v0.conf and reload them" in said
    assert "client-alice.nk" in said
    assert before.public in conf.read_text()
    assert new.public in conf.read_text()
    # a stolen key: the old one is out at once, and so is the one before
    code, said = told(*where, "--rotate", "alice", "--overlap", "0s")
    assert code == 0, said
    assert new.public not in conf.read_text()
    code, said = told(*where, "--revoke", "alice")
    assert code == 0, said
    assert "v0.conf" in said
    assert before.public not in conf.read_text()
    assert not files.ring.path(ClientRole("alice")).exists()
    code, said = told(*where, "--rotate", "v2")
    assert code == 0, said
    for name in ("router-v2.nk", "link-v2.nk", "control-v2.nk"):
        assert name in said
    for wrong, why in (
        (("--rotate", "nobody"), "nobody here is named 'nobody'"),
        (("--rotate", "v1"), "give client:v1 for the client"),
        (("--revoke", "alice"), "no client is named 'alice'"),
        (("--rotate", "alice", "--overlap", "soon"), "--overlap"),
    ):
        code, said = told(*where, *wrong)
        assert code == 2, said
        assert why in said
    assert told(*where, "--rotate", "client:v1")[0] == 0


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    files = Directory(tmp_path / "d")
    assert told("keys", "--dir", files.path, "--overlay", "ring:3", "--client", "alice@v0")[0] == 0
    assert told("keys", "--dir", files.path, "--rotate", "alice", "--rotate", "v0")[0] == 0
    for directory in (files.path, *(path for path in files.path.iterdir() if path.is_dir())):
        assert directory.stat().st_mode & 0o7777 == 0o700, directory
    for key in (files.path / "keys").iterdir():
        assert key.stat().st_mode & 0o7777 == 0o600, key


def test_a_damaged_list_of_former_keys_is_named(tmp_path: Path) -> None:
    files = Directory(tmp_path / "d")
    assert told("keys", "--dir", files.path, "--overlay", "ring:3")[0] == 0
    (files.path / "rotated.json").write_text("{")
    with pytest.raises(InputError, match=r"rotated\.json: is not a list of keys"):
        files.former()
    with contextlib.suppress(FileNotFoundError):
        (files.path / "rotated.json").unlink()
    assert files.former() == {}
