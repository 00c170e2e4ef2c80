"""The store as those see it who may not do everything: they watch by notices, without consumers."""

import asyncio
import random
from pathlib import Path

import pytest
from test_live_store import Watcher, surely, until, watching

from ramify.errors import LiveError
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire import store as module
from ramify.overlay.live.wire.security import (
    BrokerRole,
    ControlRole,
    CoordinatorRole,
    ViewerRole,
    accounts_config,
    new_user,
)
from ramify.overlay.live.wire.store import INITIAL, KeyChange, Lease, Store
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import run_to_end

LEADER, BROKER, VIEWER = CoordinatorRole("k"), BrokerRole("v0"), ViewerRole("viewer")
PAIRS = {role: new_user() for role in (LEADER, BROKER, VIEWER)}
ACCOUNTS = accounts_config(new_user().public, {}, {}, {role: pair.public for role, pair in PAIRS.items()})
LIMIT_S = 240.0


class Joined:
    """A control server, its coordinator's store, and what others see of it."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(ServerConfig("control", directory, ACCOUNTS))
        self._stores: list[Store] = []

    def endpoint(self, role: ControlRole) -> Endpoint:
        return Endpoint(self.server.url, PAIRS[role].seed, role.inbox_prefix, role.name)  # type: ignore[index]

    async def __aenter__(self) -> "Joined":
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self._stores:
            await store.close()
        await self.server.stop()

    async def leader(self) -> Store:
        self._stores.append(await Store.connect(self.endpoint(LEADER), most_bytes=64 << 20, timeout_s=2.0))
        return self._stores[-1]

    async def join(self, role: ControlRole = VIEWER) -> Store:
        self._stores.append(await Store.join(self.endpoint(role), timeout_s=2.0))
        return self._stores[-1]


def test_what_is_there_then_the_mark_then_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), Joined(tmp_path) as at:
            early = await at.join()
            # before any coordinator has made the bucket it is empty
            assert await early.get("moves.a") is None
            assert await early.values("moves") == {}
            assert await early.count("moves") == 0
            async with watching(early, "moves") as begun:
                await until(lambda: begun.changes == [INITIAL])
                leader = await at.leader()
                revisions = [await leader.put(f"moves.{i}", b"old") for i in range(3)]
                await leader.put("movesx", b"beside")
                async with watching(await at.join(BROKER), "moves") as watcher:
                    await until(lambda: watcher.initial)
                    before = [KeyChange(f"moves.{i}", b"old", r) for i, r in enumerate(revisions)]
                    assert watcher.changes == [*before, INITIAL]
                    await leader.put("moves.1", b"new", revisions[1])
                    await leader.delete("moves.2")
                    await until(lambda: watcher.picture == {"moves.0": b"old", "moves.1": b"new"})
                await until(lambda: begun.picture == {"moves.0": b"old", "moves.1": b"new"})
            assert await early.values("moves") == {"moves.0": b"old", "moves.1": b"new"}
            assert await early.keys("moves") == ["moves.0", "moves.1"]

    run_to_end(scenario())


def test_every_final_value_is_seen_through_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), Joined(tmp_path) as at:
            leader, rng, wanted = await at.leader(), random.Random(11), dict[str, bytes]()
            async with watching(await at.join(), "moves") as watcher:
                for i in range(120):
                    key = f"moves.{rng.randrange(6)}"
                    if rng.random() < 0.25:
                        await surely(lambda key=key: leader.delete(key))  # type: ignore[misc]
                        wanted.pop(key, None)
                    else:
                        value = str(i).encode()
                        await surely(lambda key=key, value=value: leader.put(key, value, force=True))  # type: ignore[misc]
                        wanted[key] = value
                    if i in (40, 80):
                        at.server.kill()
                        await at.server.start()
                await until(lambda: watcher.picture == wanted)
                assert watcher.initial == 1

    run_to_end(scenario())


def test_a_bucket_that_was_made_anew_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers start over: what comes is below what was seen."""
    monkeypatch.setattr(module, "_NOTICE_LIMIT_S", 0.1)

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), Joined(tmp_path) as at:
            leader = await at.leader()
            for i in range(9):
                await leader.put("state", str(i).encode(), force=True)
            async with watching(await at.join(BROKER), "state") as watcher:
                await until(lambda: watcher.picture == {"state": b"8"})
                await leader._ask("$JS.API.STREAM.DELETE.KV_CTL", b"")
                again = await at.leader()
                await again.put("state", b"anew")
                await until(lambda: watcher.picture == {"state": b"anew"})

    run_to_end(scenario())


def test_a_watch_that_heard_no_notice_looks_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notices are lost when a reader is slow. What they tell is read all the same."""
    monkeypatch.setattr(module, "_NOTICE_LIMIT_S", 0.1)

    async def deaf(*_: object) -> None:
        return

    monkeypatch.setattr(module._NoticeWatch, "_noticed", deaf)

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), Joined(tmp_path) as at:
            leader = await at.leader()
            async with watching(await at.join(BROKER), "state") as watcher:
                await until(lambda: watcher.initial)
                await leader.put("state", b"1")
                await until(lambda: watcher.picture == {"state": b"1"})

    run_to_end(scenario())


def test_a_broker_holds_its_lease_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), Joined(tmp_path) as at:
            leader, broker = await at.leader(), await at.join(BROKER)
            async with watching(leader, "brokers") as watcher:
                own = Lease(broker, "brokers.v0", "v0", 1)
                assert await own.take()
                await until(lambda: "brokers.v0" in watcher.picture)
                # not renewed: the leader sees it go, although an expired key leaves no mark
                await until(lambda: watcher.picture == {})
            with pytest.raises(LiveError, match=r"no answer|forbids"):
                await Lease(broker, "brokers.v1", "v1", 1).take()
            with pytest.raises(LiveError, match=r"forbids \$KV\.CTL\.state"):
                await broker.put("state", b"mine", force=True)

    run_to_end(scenario())


def test_a_watch_ends_with_its_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), Joined(tmp_path) as at:
            store = await at.join()
            watcher = Watcher(store, "state")
            following = asyncio.create_task(watcher.run())
            await until(lambda: watcher.initial)
            await store.close()
            await following

    run_to_end(scenario())
