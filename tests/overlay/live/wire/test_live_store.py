"""The control plane's store on a real server: compare-and-set, watches, large values, leases."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError, LiveError
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire import store as module
from ramify.overlay.live.wire.security import ControlRole, CoordinatorRole, accounts_config, new_user
from ramify.overlay.live.wire.store import INITIAL, ConflictError, KeyChange, Lease, Store
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

KEYS = {f"c{i}": new_user() for i in range(3)}
ACCOUNTS = accounts_config(
    new_user().public, {}, {}, {CoordinatorRole(n): p.public for n, p in KEYS.items()}
)
LIMIT_S = 240.0


class Site:
    def __init__(self, directory: Path) -> None:
        self.server = Server(ServerConfig("control", directory / "control", ACCOUNTS, max_payload=1 << 20))
        self._stores: list[Store] = []

    async def store(self, name: str = "c0") -> Store:
        role = ControlRole(name)
        endpoint = Endpoint(self.server.url, KEYS[name].seed, role.inbox_prefix, name)
        made = await Store.connect(endpoint, most_bytes=256 << 20, timeout_s=2.0)
        self._stores.append(made)
        return made

    async def restart(self) -> None:
        self.server.kill()
        await self.server.start()

    async def end(self) -> None:
        for store in self._stores:
            await store.close()
        await self.server.stop()


def play(directory: Path, scenario: Callable[[Site], Awaitable[None]]) -> None:
    """Run a scenario; the server ends with it, whatever happens."""

    async def bounded() -> None:
        site = Site(directory)
        try:
            async with asyncio.timeout(LIMIT_S):
                await site.server.start()
                await scenario(site)
        finally:
            await site.end()

    run_to_end(bounded())


class Watcher:
    """What a watch has yielded: the picture it gives of the keys, and every change in order."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.picture: dict[str, bytes] = {}
        self.changes: list[KeyChange] = []
        self._store, self._prefix = store, prefix

    @property
    def initial(self) -> int:
        return self.changes.count(INITIAL)

    async def run(self) -> None:
        async for change in self._store.watch(self._prefix):
            self.changes.append(change)
            if change.value is not None:
                self.picture[change.key] = change.value
            elif change is not INITIAL:
                del self.picture[change.key]


@contextlib.asynccontextmanager
async def watching(store: Store, prefix: str) -> AsyncIterator[Watcher]:
    watcher = Watcher(store, prefix)
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
        if task.done():
            task.result()
    finally:
        await end_tasks([task])


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(240):
        while not true():
            await asyncio.sleep(0.01)


async def surely(write: Callable[[], Awaitable[object]]) -> None:
    """Write through an outage."""
    while True:
        try:
            await write()
            return
        except ConflictError:
            raise
        except LiveError:
            await asyncio.sleep(0.05)


def test_two_writers_that_count_lose_no_step(tmp_path: Path) -> None:
    async def count(store: Store, times: int) -> int:
        conflicts = 0
        while times:
            found = await store.get("n.count")
            value, revision = (0, None) if found is None else (int(found[0]), found[1])
            try:
                await store.put("n.count", str(value + 1).encode(), revision)
                times -= 1
            except ConflictError:
                conflicts += 1
        return conflicts

    async def scenario(site: Site) -> None:
        stores = [await site.store("c0"), await site.store("c1")]
        conflicts = await asyncio.gather(*(count(store, 60) for store in stores))
        found = await stores[0].get("n.count")
        assert found is not None
        assert found[0] == b"120"
        assert sum(conflicts) > 0

    play(tmp_path, scenario)


def test_a_key_is_made_once_and_again_after_it_was_deleted(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store, other = await site.store("c0"), await site.store("c1")
        assert await store.get("a.b") is None
        first = await store.put("a.b", b"1")
        with pytest.raises(ConflictError, match=f"exists at revision {first}"):
            await other.put("a.b", b"2")
        second = await other.put("a.b", b"2", first)
        with pytest.raises(ConflictError, match=f"no longer at revision {first}"):
            await store.put("a.b", b"3", first)
        with pytest.raises(ConflictError):
            await store.delete("a.b", first)
        assert await store.get("a.b") == (b"2", second)
        await store.delete("a.b", second)
        assert await other.get("a.b") is None
        with pytest.raises(ConflictError, match="deleted by another"):
            await other.delete("a.b", second)
        with pytest.raises(ConflictError):
            await other.put("a.b", b"4", second)
        third = await other.put("a.b", b"")
        assert await store.get("a.b") == (b"", third)
        forced = await store.put("a.b", b"5", force=True)
        assert first < second < third < forced
        await store.put("a.c.d", b"")
        await store.put("ab", b"")
        assert await store.keys("a") == ["a.b", "a.c.d"]
        await store.delete("a.b")
        await store.delete("a.b")
        assert await store.keys("a") == ["a.c.d"]
        assert await store.keys("nothing") == []

    play(tmp_path, scenario)


@given(st.text(max_size=20))
def test_a_key_is_whole_tokens_or_refused(key: str) -> None:
    plain = all(
        token and all(c.isascii() and (c.isalnum() or c in "_=/-") for c in token)
        for token in key.split(".")
    )
    if plain and key.split(".")[0] != "chunks":
        assert module._checked(key) == key
    else:
        with pytest.raises(InputError, match="not a key"):
            module._checked(key)


def test_a_watch_yields_what_is_there_then_the_mark_then_changes(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store, other = await site.store("c0"), await site.store("c1")
        await other.put("w.gone", b"0")
        await other.delete("w.gone")
        revisions = [await other.put(f"w.{i}", b"old") for i in range(3)]
        await other.put("v", b"beside")
        async with watching(store, "w") as watcher, watching(store, "empty") as empty:
            await until(lambda: watcher.initial and empty.initial)
            before = [KeyChange(f"w.{i}", b"old", r) for i, r in enumerate(revisions)]
            assert watcher.changes == [*before, INITIAL]
            assert empty.changes == [INITIAL]
            at = await other.put("w.1", b"new", revisions[1])
            await other.delete("w.2")
            await until(lambda: len(watcher.changes) == 6)
            assert watcher.changes[4] == KeyChange("w.1", b"new", at)
            assert watcher.changes[5].key == "w.2"
            assert watcher.picture == {"w.0": b"old", "w.1": b"new"}

    play(tmp_path, scenario)


def test_a_watch_sees_every_final_value_through_restarts(tmp_path: Path) -> None:
    async def write(
        store: Store, name: str, rng: random.Random, wanted: dict[str, bytes], times: int
    ) -> None:
        for i in range(times):
            key = f"w.{name}.{rng.randrange(8)}"
            if rng.random() < 0.25:
                await surely(lambda key=key: store.delete(key))  # type: ignore[misc]
                wanted.pop(key, None)
            else:
                value = f"{name} {i}".encode()
                await surely(lambda key=key, value=value: store.put(key, value, force=True))  # type: ignore[misc]
                wanted[key] = value
            await asyncio.sleep(rng.random() * 0.01)

    async def scenario(site: Site) -> None:
        stores = [await site.store(name) for name in KEYS]
        wanted: dict[str, bytes] = {}
        async with watching(stores[0], "w") as watcher:
            await until(lambda: watcher.initial)
            writers = [
                asyncio.create_task(write(store, name, random.Random(name), wanted, 80))
                for store, name in zip(stores[1:], ("x", "y"), strict=True)
            ]
            for _ in range(2):
                await asyncio.sleep(0.2)
                await site.restart()
            await asyncio.gather(*writers)
            await until(lambda: watcher.picture == wanted)
            assert watcher.initial == 1
            by_key: dict[str, int] = {}
            for change in watcher.changes:
                assert change is INITIAL or change.revision >= by_key.get(change.key, 0)
                by_key[change.key] = change.revision
            await stores[1].put("w.after", b"1")
            await until(lambda: watcher.picture.get("w.after") == b"1")

    play(tmp_path, scenario)


def test_a_watch_notices_what_vanished_without_a_trace_during_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        store, other = await site.store("c0"), await site.store("c1")
        for i in range(3):
            await other.put(f"w.{i}", b"x")
        async with watching(store, "w") as watcher:
            await until(lambda: watcher.initial)
            # the watcher is deaf while a key goes, without a mark
            monkeypatch.setattr(module._Watch, "_create", _deaf)
            await site.restart()
            purge = b'{"filter": "$KV.CTL.w.1"}'
            await surely(lambda: other._ask("$JS.API.STREAM.PURGE.KV_CTL", purge))
            assert await other._last("w.1") is None
            assert "w.1" in watcher.picture
            monkeypatch.undo()
            await until(lambda: watcher.picture == {"w.0": b"x", "w.2": b"x"})

    async def _deaf(*_: object) -> int:
        raise LiveError("deaf")

    play(tmp_path, scenario)


def test_a_watch_ends_with_its_store(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store = await site.store()
        watch = store.watch("w")
        assert await anext(watch) is INITIAL
        following = asyncio.create_task(anext(watch, None))
        await asyncio.sleep(0)
        await store.close()
        assert await following is None
        with pytest.raises(LiveError, match="Connect again"):
            await anext(store.watch("w"))

    play(tmp_path, scenario)


def test_large_values_come_back_whole_and_leave_no_chunks(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store, other = await site.store("c0"), await site.store("c1")
        rng = random.Random(5)
        big = rng.randbytes(3 << 20)
        changed = big[: 2 << 20] + rng.randbytes(1 << 20)
        for name, value in {"empty": b"", "small": b"x", "zeros": bytes(20 << 20), "big": big}.items():
            at = await store.put_large(f"p.{name}", value)
            assert await other.get_large(f"p.{name}") == (value, at)
        assert await store.keys("p") == ["p.big", "p.empty", "p.small", "p.zeros"]
        first = await store.get_large("p.big")
        assert first is not None
        with pytest.raises(ConflictError):
            await other.put_large("p.big", b"never seen", first[1] - 1)
        assert await other.get_large("p.big") == first
        await other.put_large("p.big", changed, first[1])
        found = await store.get_large("p.big")
        assert found is not None
        assert found[0] == changed
        chunks = await store._revisions("chunks.p.big", chunks=True)
        assert len(chunks) == len(
            module.msgspec.json.decode((await store.get("p.big") or (b"",))[0])["chunks"]
        )
        await store.delete("p.big")
        assert await store.get_large("p.big") is None
        assert await store._revisions("chunks.p.big", chunks=True) == {}
        assert await store._revisions("chunks.p.zeros", chunks=True) != {}

    play(tmp_path, scenario)


def test_readers_of_a_large_value_see_one_write_or_another(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        stores = [await site.store(name) for name in KEYS]
        rng = random.Random(7)
        shared = rng.randbytes(700_000)
        values = [shared + rng.randbytes(500_000) for _ in range(4)]
        await stores[0].put_large("p", values[0])
        done = False

        async def write(store: Store, seed: int) -> None:
            own = random.Random(seed)
            for _ in range(6):
                with contextlib.suppress(ConflictError):
                    await store.put_large("p", own.choice(values), force=True)

        async def read() -> int:
            times = 0
            while not done:
                found = await stores[2].get_large("p")
                assert found is not None
                assert found[0] in values
                times += 1
            return times

        reader = asyncio.create_task(read())
        await asyncio.gather(*(write(store, seed) for seed, store in enumerate(stores[:2])))
        done = True
        assert await reader > 0

    play(tmp_path, scenario)


def test_a_write_whose_chunks_were_removed_meanwhile_does_not_come_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        slow, quick = await site.store("c0"), await site.store("c1")
        real = Store._write

        async def overtaken(self: Store, key: str, *given: object) -> int:
            if self is slow and key == "p":
                await quick.put_large("p", b"other")
                await quick.delete("p")
            return await real(self, key, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(Store, "_write", overtaken)
        with pytest.raises(ConflictError):
            await slow.put_large("p", b"late")
        assert await slow.get_large("p") is None

    play(tmp_path, scenario)


def test_a_damaged_large_value_is_not_handed_out(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store = await site.store()
        await store.put_large("p", b"value" * 1000)
        (chunk,) = await store._revisions("chunks.p", chunks=True)
        kept = await store._last(chunk)
        assert kept is not None
        assert kept.value is not None
        await store._write(chunk, kept.value[:-1] + b"?", None, {})
        with pytest.raises(LiveError, match="damaged chunk"):
            await store.get_large("p")
        await store._write(chunk, b"", None, {"KV-Operation": "DEL"})
        with pytest.raises(LiveError, match="lacks a chunk"):
            await store.get_large("p")
        await store.put("q", b"plain")
        with pytest.raises(LiveError, match="not a large value"):
            await store.get_large("q")
        index = module._Index(4, "00", [])
        await store.put("bomb", module.msgspec.json.encode(index))
        with pytest.raises(LiveError, match=r"not what was written|cannot be unpacked"):
            await store.get_large("bomb")

    play(tmp_path, scenario)


def test_one_leader_at_a_time_among_three_and_takeover_after_a_silent_death(tmp_path: Path) -> None:
    claims: list[tuple[float, float, str]] = []

    async def claim(lease: Lease, limit_s: float) -> None:
        begin = now = time.monotonic()
        # the time is taken before it is asked: this process may be paused in between
        while lease.held and now < begin + limit_s:
            claims.append((begin, now, lease.holder))
            await asyncio.sleep(0.01)
            now = time.monotonic()

    async def contend(store: Store, name: str, lead: Callable[[], bool]) -> None:
        """Take, renew for a while, then fall silent or release, and contend again."""
        rng = random.Random(name)
        lease = Lease(store, "leader", name, 1)
        while lead():
            try:
                if not await lease.take():
                    await asyncio.sleep(0.05)
                    continue
                for _ in range(rng.randint(1, 3)):
                    await claim(lease, 0.2)
                    if not await lease.renew():
                        break
                if rng.random() < 0.4:
                    await lease.release()
                else:
                    # cut off: it does not renew, believes as long as it may, and comes back as another
                    await claim(lease, 9.0)
                    lease = Lease(store, "leader", name, 1)
                # the others' turn
                await asyncio.sleep(0.2)
            except LiveError:
                await asyncio.sleep(0.05)

    async def scenario(site: Site) -> None:
        restarted = float("inf")

        def goes_on() -> bool:
            """Until two have led since the restart."""
            return len({name for begin, _, name in claims if begin > restarted}) < 2

        stores = [await site.store(name) for name in KEYS]
        tasks = [asyncio.create_task(contend(s, n, goes_on)) for s, n in zip(stores, KEYS, strict=True)]
        await until(lambda: len({name for _, _, name in claims}) > 1)
        await site.restart()
        restarted = time.monotonic()
        async with asyncio.timeout(240):
            await asyncio.gather(*tasks)

    play(tmp_path, scenario)
    assert len({name for _, _, name in claims}) > 1
    ordered = sorted(claims, key=lambda claim: claim[1])
    for (_, former_end, former), (begin, _, later) in itertools.pairwise(ordered):
        assert former == later or former_end <= begin, f"{former} and {later} led at once"


async def renewed_in_time(lease: Lease) -> bool:
    """Renew a lease of a second for longer than that; False if this machine was too slow for it."""
    for _ in range(4):
        before = time.monotonic()
        await asyncio.sleep(0.3)
        if not await lease.renew():
            assert time.monotonic() - before > 0.6, "it was let go too early"
            return False
    return True


def test_a_lease_that_is_not_renewed_is_seen_as_deleted_and_can_be_taken(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store, other = await site.store("c0"), await site.store("c1")
        lease = Lease(store, "leases.b1", "b1", 1)
        async with watching(other, "leases") as watcher:
            assert await lease.take()
            await until(lambda: "leases.b1" in watcher.picture)
            assert Lease.read(watcher.picture["leases.b1"]) == ("b1", lease.session)
            second = Lease(other, "leases.b1", "c", 1)
            assert not await second.take()
            while not await renewed_in_time(lease):
                while not await lease.take():
                    await asyncio.sleep(0.05)
            assert "leases.b1" in watcher.picture
            while "leases.b1" in watcher.picture:
                await asyncio.sleep(0.005)
            assert not lease.held, "the server let go before the holder did"
            assert await second.take()
            assert not await lease.renew()
            assert not lease.held
            await lease.release()
            assert second.held
            assert await second.renew()
            await second.release()
            assert not second.held
            assert await lease.take()

    play(tmp_path, scenario)


def test_a_stalled_holder_does_not_believe_that_it_leads(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store, other = await site.store("c0"), await site.store("c1")
        lease, rival = Lease(store, "leader", "a", 1), Lease(other, "leader", "b", 1)
        assert await lease.take()
        session = lease.session
        # the whole process stands still: nothing of it runs, no watch tells it
        time.sleep(1.0)
        assert not lease.held
        while not await rival.take():
            await asyncio.sleep(0.02)
        assert not await lease.renew()
        assert not lease.held
        assert rival.session != session

    play(tmp_path, scenario)


def test_a_holder_whose_answer_was_lost_still_has_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        store = await site.store()
        lease = Lease(store, "leader", "a", 5)
        real = Store._write

        async def lossy(self: Store, *given: object) -> int:
            await real(self, *given)  # type: ignore[arg-type]
            raise LiveError("no answer")

        for attempt in (lease.take, lease.renew):
            monkeypatch.setattr(Store, "_write", lossy)
            with pytest.raises(LiveError, match="no answer"):
                await attempt()
            monkeypatch.undo()
            assert await attempt()
            assert lease.held

    play(tmp_path, scenario)


def test_a_bucket_that_cannot_expire_is_refused(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store = await site.store()
        await store._ask("$JS.API.STREAM.DELETE.KV_CTL", b"")
        await store._ask(
            "$JS.API.STREAM.CREATE.KV_CTL",
            b'{"name": "KV_CTL", "subjects": ["$KV.CTL.>"], "max_bytes": 1000000}',
        )
        with pytest.raises(LiveError, match="cannot expire leases"):
            await site.store("c1")

    play(tmp_path, scenario)


def test_nothing_is_sent_later_when_the_server_is_away(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        store = await site.store()
        at = await store.put("k", b"1")
        site.server.kill()
        await until(lambda: not store._nats.is_connected)
        with pytest.raises(LiveError, match="nothing was sent"):
            await store.put("k", b"2", at)
        await site.server.start()
        await until(lambda: store._nats.is_connected)
        assert await store.get("k") == (b"1", at)

    play(tmp_path, scenario)
