"""Samples of a stream land as files: each event once, through crashes, whatever the types."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest

from obedient import ACCOUNTS, endpoint
from ramify.content.events.events import Event, events_to_batch
from ramify.content.events.readers import read_events
from ramify.errors import InputError
from ramify.overlay.control.frames import encode_events
from ramify.overlay.live.coordinator.collector import Collector, CollectorConfig, _tables
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.streams import api, connect, ensure_samples
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

LIMIT_S = 600.0


def event(i: int, x: object) -> Event:
    return Event(id=f"e{i}", publisher="p", attributes={"x": x, "t": "a"}, size_bytes=9)  # type: ignore[dict-item]


class Site:
    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.sent: list[str] = []
        self._ids = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def collect(self, **more: object) -> Collector:
        given = CollectorConfig("k0", endpoint(self.server, "k0"), self.directory, linger_s=0.1, **more)  # type: ignore[arg-type]
        made = Collector(given)
        self._tasks.append(asyncio.create_task(made.run()))
        return made

    async def crash(self) -> None:
        """Collectors end in the middle of whatever they do."""
        await end_tasks(self._tasks)
        self._tasks.clear()

    async def ship(self, events: int, *, x: object = 1) -> None:
        connection = await connect(endpoint(self.server, "test"))
        try:
            await ensure_samples(connection)
            made = [event(next(self._ids), x) for _ in range(events)]
            await connection.request("samples.v0", encode_events(events_to_batch(made)), timeout=240)
            self.sent += [event.id for event in made]
        finally:
            await connection.close()

    async def ship_bytes(self, data: bytes) -> None:
        connection = await connect(endpoint(self.server, "test"))
        await ensure_samples(connection)
        await connection.request("samples.v0", data, timeout=240)
        await connection.close()

    def landed(self) -> Counter[str]:
        """Ids in the files, as everyone reads them."""
        found: Counter[str] = Counter()
        for path in sorted(self.directory.glob("*.parquet")):
            for decoded in read_events(path):
                assert not decoded.rejected
                found.update(decoded.batch.column("id").to_pylist())
        return found

    async def until_all_landed(self) -> None:
        while set(self.landed()) != set(self.sent):
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        await self.crash()


def play(directory: Path, scenario: Callable[[Site], Awaitable[None]]) -> None:
    async def bounded() -> None:
        server = Server(ServerConfig("control", directory / "control", ACCOUNTS))
        site = Site(server, directory / "samples")
        try:
            async with asyncio.timeout(LIMIT_S):
                await server.start()
                await scenario(site)
        finally:
            await site.end()
            await server.stop()

    run_to_end(bounded())


def test_every_sample_lands_once_through_crashes(tmp_path: Path) -> None:
    rng = random.Random(3)

    async def scenario(site: Site) -> None:
        site.collect(most_events=30)
        for turn in range(40):
            # types that do not go together among them
            await site.ship(rng.randint(1, 9), x=rng.choice([1, 2.5, "text"]))
            if turn % 7 == 3:
                await asyncio.sleep(0.15 * rng.random())
                await site.crash()
                site.collect(most_events=30)
            if turn == 20:
                site.server.kill()
                await site.server.start()
        await site.until_all_landed()
        assert site.landed() == Counter(site.sent)
        assert not list(site.directory.glob(".*"))

    play(tmp_path, scenario)


def test_what_was_landed_but_not_acknowledged_does_not_land_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        with monkeypatch.context() as patch:

            async def lost(self: object, reply: str) -> None:
                """An acknowledgement that does not arrive."""

            patch.setattr("ramify.overlay.live.wire.pull.Puller.acknowledge", lost)
            site.collect()
            await site.ship(5)
            await site.until_all_landed()
            await site.crash()
        site.collect()
        await site.ship(5)
        await site.until_all_landed()
        assert site.landed() == Counter(site.sent)

    play(tmp_path, scenario)


def test_what_is_no_sample_is_counted_and_the_rest_lands(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        collector = site.collect()
        await site.ship(2)
        await site.ship_bytes(b"nonsense")
        await site.ship(2)
        await site.until_all_landed()
        assert collector.bad == 1

    play(tmp_path, scenario)


def test_a_stream_that_dropped_its_oldest_or_was_made_anew_goes_on(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        await site.ship(4)
        await site.ship(4)
        connection = await connect(endpoint(site.server, "test"))
        await api(connection, "STREAM.PURGE.SAMPLES", {"keep": 1})
        site.sent = site.sent[4:]
        site.collect()
        await site.until_all_landed()
        await site.crash()
        await api(connection, "STREAM.DELETE.SAMPLES", {})
        await connection.close()
        await site.ship(3)
        site.collect()
        await site.until_all_landed()
        assert len(site.landed()) == 7

    play(tmp_path, scenario)


def test_the_directory_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        site.collect(keep_bytes=1)
        for _ in range(3):
            await site.ship(2)
            newest = site.sent[-2:]
            while set(site.landed()) != set(newest):
                await asyncio.sleep(0.05)
        assert len(list(site.directory.glob("*.parquet"))) == 1

    play(tmp_path, scenario)


def test_tables_hold_all_events_of_messages_that_follow_each_other() -> None:
    def batch(i: int, x: object) -> pa.RecordBatch:
        return events_to_batch([event(i, x)])

    rng = random.Random(1)
    for _ in range(50):
        kinds = [rng.choice([1, 2.5, "a", None]) for _ in range(rng.randint(1, 12))]
        taken = [(i + 5, None if x is None else batch(i, x)) for i, x in enumerate(kinds)]
        made = list(_tables(taken))
        assert [first for first, *_ in made] == [5, *(last + 1 for _, last, _ in made[:-1])]
        assert made[-1][1] == taken[-1][0]
        ids = [id_ for *_, table in made if table is not None for id_ in table.column("id").to_pylist()]
        assert ids == [f"e{i}" for i, x in enumerate(kinds) if x is not None]


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = CollectorConfig("k0", None, tmp_path / "file" / "below")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="directory for samples"):
        run_to_end(Collector(config).run())
