"""Streams that lose what they had: what can be read again is, what is gone is told, and routing goes on."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from nats.aio.client import Client as Nats

from machines import small_line
from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.overlay.control.names import IN, OUT
from ramify.overlay.live.broker import broker as broker_module
from ramify.overlay.live.client import lane as lane_module
from ramify.overlay.live.wire.security import RouterRole
from ramify.overlay.live.wire.streams import api, connect
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import Running, running
from worlds import World

OVERLAY = small_line(2)
SUBSCRIPTIONS = (Subscription("s", "r", "v1", sql="x >= 0"),)
AT = {"w": "v0", "r": "v1"}


def some(first: int, end: int) -> World:
    events = tuple(Event(f"e{i}", "w", attributes={"x": i}, size_bytes=1) for i in range(first, end))
    return World(OVERLAY, SUBSCRIPTIONS, AT, events)


class Scene:
    """Events go from w at v0 over the link to r at v1."""

    def __init__(self, live: Running, directory: Path) -> None:
        self.live = live
        self.published = 0
        self._copy = directory / "copy"

    async def publish(self, count: int) -> None:
        await self.live.publish(some(self.published, self.published + count), size=1)
        self.published += count

    async def until_came(self, first: int = 0) -> None:
        """Wait for all events from the first on."""
        await self.until(
            lambda: all(self.live.delivered[f"e{i}", "s"] for i in range(first, self.published))
        )

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not what():
                assert not self.live.failed(), self.live.failed()
                await asyncio.sleep(0.02)

    def alarms(self, broker: str) -> str:
        return " | ".join(each.what for each in self.live.brokers[broker].alarms.shown)

    async def stop(self, broker: str) -> None:
        await end_tasks([self.live._tasks.pop(broker)])
        await self.live.servers[broker].stop()

    async def start(self, broker: str) -> None:
        await self.live.servers[broker].start()
        self.live.start_broker(broker)
        await self.live.brokers[broker].ready.wait()

    async def roll_back(self, broker: str, *streams: str) -> None:
        """Have a server as it was at `keep`: all of its store, or some streams without their consumers."""
        await self.live.servers[broker].stop()
        for stream in streams or [""]:
            part = f"jetstream/jetstream/RAMIFY/streams/{stream}/msgs" if stream else "jetstream"
            shutil.rmtree(self.store(broker) / part)
            shutil.copytree(self._copy / part, self.store(broker) / part)
        await self.live.servers[broker].start()

    async def keep(self, broker: str) -> None:
        """Remember what a server has on its disk."""
        await self.live.servers[broker].stop()
        shutil.copytree(self.store(broker), self._copy)
        await self.live.servers[broker].start()

    async def connection(self, broker: str) -> Nats:
        """As the broker's router, to its server."""
        live = self.live
        return await connect(live.site.endpoint(RouterRole(broker), live.servers[broker].url))

    def store(self, broker: str) -> Path:
        return self.live.servers[broker].config.store


def play(directory: Path, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    world = some(0, 1)
    plan = make_plan("mst", world.problem, 1)

    async def run() -> None:
        async with running(plan, world, directory) as live:
            scene = Scene(live, directory)
            await scene.publish(5)
            await scene.until_came()
            await scenario(scene)
            assert not live.failed(), live.failed()

    run_to_end(run())


def test_publishes_that_somebody_purged_do_not_stop_those_that_follow(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        broker = scene.live.brokers["v0"]
        await end_tasks([scene.live._tasks.pop("v0")])
        await scene.publish(4)
        connection = await scene.connection("v0")
        await api(connection, f"STREAM.PURGE.{IN}", {})
        scene.live.start_broker("v0")
        await scene.publish(3)
        await scene.until_came(9)
        assert "numbers 6 to 9 are gone" in scene.alarms("v0")
        assert broker is not scene.live.brokers["v0"]

    play(tmp_path, scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_reader_whose_disk_went_back_reads_again_what_it_lost(tmp_path: Path, restarted: bool) -> None:
    """The lane is kept for longer than a server keeps acknowledged writes from its disk."""

    async def scenario(scene: Scene) -> None:
        await scene.keep("v1")
        await scene.publish(12)
        await scene.until_came()
        await scene.live.brokers["v0"].purge()
        scene.live.delivered.clear()
        if restarted:
            await end_tasks([scene.live._tasks.pop("v1")])
        await scene.roll_back("v1")
        if restarted:
            scene.live.start_broker("v1")
        await scene.publish(3)
        await scene.until_came(5)
        assert scene.live.losses, "the client had read what its broker has no more"
        if not restarted:
            assert "the log lost its end" in scene.alarms("v1")

    play(tmp_path, scenario)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("streams", [(), (OUT,), (IN,)])
def test_what_is_published_after_a_disk_went_back_arrives(
    tmp_path: Path, restarted: bool, streams: tuple[str, ...]
) -> None:
    """The sender's streams begin again behind what its neighbour has read: new messages are new."""

    async def scenario(scene: Scene) -> None:
        await scene.keep("v0")
        await scene.publish(12)
        await scene.until_came()
        if restarted:
            await end_tasks([scene.live._tasks.pop("v0")])
        await scene.roll_back("v0", *streams)
        if restarted:
            scene.live.start_broker("v0")
        await scene.publish(20)
        await scene.until_came()
        if streams != (IN,):
            assert "lost its end" in scene.alarms("v1")
        else:
            assert "lost its end: numbers 6 to 17" in scene.alarms("v0")

    play(tmp_path, scenario)


@pytest.mark.parametrize("broker", ["v0", "v1"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_store_that_was_wiped_begins_anew(tmp_path: Path, broker: str, restarted: bool) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.live.brokers["v0"].purge()
        if restarted:
            await end_tasks([scene.live._tasks.pop(broker)])
        await scene.live.servers[broker].stop()
        shutil.rmtree(scene.store(broker) / "jetstream")
        await scene.live.servers[broker].start()
        if restarted:
            scene.live.start_broker(broker)
        await scene.publish(20)
        await scene.until_came()
        assert scene.live.losses or scene.alarms("v1")

    play(tmp_path, scenario)


@pytest.mark.parametrize("what", ["PURGE", "DELETE"])
@pytest.mark.parametrize("broker", ["v0", "v1"])
def test_streams_that_somebody_purged_or_deleted_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str, what: str
) -> None:
    monkeypatch.setattr(broker_module, "_PURGE_EVERY_S", 0.2)
    monkeypatch.setattr(lane_module, "_GONE_S", 1.5)

    async def scenario(scene: Scene) -> None:
        connection = scene.live.brokers[broker].connection
        # something is unread on the lane that is read from there
        reader = "v1" if broker == "v0" else "reader r"
        await end_tasks([scene.live._tasks.pop(reader)])
        await scene.publish(3)
        await scene.until(lambda: scene.live.brokers[broker].counters.events == 8)
        for stream in (IN, OUT):
            await api(connection, f"STREAM.{what}.{stream}", {})
        if reader == "v1":
            scene.live.start_broker("v1")
        else:
            scene.live.read(["r"])
        await scene.publish(20)
        await scene.until_came(8)
        for _ in range(2):
            await end_tasks([scene.live._tasks.pop(broker)])
            scene.live.start_broker(broker)
            await scene.publish(5)
            await scene.until_came(8)
        assert scene.alarms("v1") or scene.live.losses

    play(tmp_path, scenario)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("stream", [IN, OUT])
def test_what_a_damaged_block_held_is_told_and_the_rest_arrives(
    tmp_path: Path, stream: str, share: float
) -> None:
    """The server skips what it cannot read, or cuts the block there."""

    async def scenario(scene: Scene) -> None:
        reader = "v0" if stream == IN else "v1"
        await end_tasks([scene.live._tasks.pop(reader)])
        await scene.publish(12)
        if stream == OUT:
            await scene.until(lambda: scene.live.brokers["v0"].counters.events == 17)
        await scene.live.servers["v0"].stop()
        (block,) = (scene.store("v0") / f"jetstream/jetstream/RAMIFY/streams/{stream}/msgs").glob("*.blk")
        data = bytearray(block.read_bytes())
        data[int(len(data) * share)] ^= 0x20
        block.write_bytes(data)
        await scene.live.servers["v0"].start()
        scene.live.start_broker(reader)
        await scene.publish(8)
        await scene.until_came(17)
        lost = [i for i in range(17) if not scene.live.delivered[f"e{i}", "s"]]
        print(lost, scene.alarms("v0"), "-", scene.alarms("v1"))
        assert not lost or scene.alarms("v0") or scene.alarms("v1")

    play(tmp_path, scenario)
