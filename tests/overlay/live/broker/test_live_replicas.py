"""A broker's site of three servers: the one that leads may be killed and its disk wiped, nothing is lost."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.names import IN, OUT, REJECTED, token
from ramify.overlay.control.steps import Node
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.client.lane import LaneClient
from ramify.overlay.live.host.server import Server, ServerConfig, free_port
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.security import ClientRole
from ramify.overlay.live.wire.streams import Sizes, api
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.overlay.routing.router import RoutingPlan
from ramify.planning.schemes.catalog import make_plan
from worlds import World

SIZES = Sizes(published=8 << 20, out=16 << 20, rejected=1 << 20, samples=1 << 20, replicas=3)
ONE = Overlay.build("one", ["v"], [])
AT = {"w": "v", "r": "v"}


def some(first: int, end: int) -> World:
    events = tuple(Event(f"e{i}", "w", attributes={"x": i}, size_bytes=1) for i in range(first, end))
    return World(ONE, (Subscription("s", "r", "v", sql="x >= 0"),), AT, events)


@asynccontextmanager
async def cluster(site: BrokerSite, directory: Path) -> AsyncIterator[list[Server]]:
    """Three servers with the accounts of one broker, as docs/live.md says."""
    ports, clients = ([free_port() for _ in range(3)] for _ in range(2))
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    made = []
    for i, port in enumerate(ports):
        block = f'cluster {{ name: v, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
        config = ServerConfig(f"v-{i}", directory / f"v-{i}", site.accounts("v") + block, port=clients[i])
        made.append(Server(config))
    try:
        await asyncio.gather(*(server.start() for server in made))
        yield made
    finally:
        await asyncio.gather(*(server.stop() for server in made))


async def until_whole(broker: Broker) -> None:
    """Until all replicas of all streams have all that there is."""
    async with asyncio.timeout(240):
        while True:
            try:
                told = [await api(broker.connection, f"STREAM.INFO.{s}", {}) for s in (IN, OUT, REJECTED)]
                replicas = [each for info in told for each in info["cluster"].get("replicas", ())]
                if len(replicas) == 6 and all(each["current"] for each in replicas):
                    return
            except Exception:  # no leader at this moment
                pass
            await asyncio.sleep(0.2)


def test_one_server_of_three_may_die_with_its_disk(tmp_path: Path) -> None:
    async def run() -> None:
        site = BrokerSite(ONE, tmp_path, AT, SIZES)
        async with cluster(site, tmp_path) as servers:
            urls = ",".join(server.url for server in servers)
            node = Node("v")
            node.install(0, RoutingPlan(make_plan("mst", some(0, 1).problem, 1)))
            node.flip(0)
            broker = Broker(site.broker("v", {"v": urls}), node)
            routing = asyncio.create_task(broker.run())
            writer = await LaneClient.connect("w", site.endpoint(ClientRole("w"), urls))
            reader = await LaneClient.connect("r", site.endpoint(ClientRole("r"), urls))
            came: Counter[str] = Counter()

            async def read() -> None:
                async for delivered in reader.deliveries():
                    came.update(delivered.events.column("id").to_pylist())

            reading = asyncio.create_task(read())
            published = 0

            async def publish(count: int) -> None:
                nonlocal published
                for i in range(published, published + count):
                    await writer.publish(some(i, i + 1).batch, id=f"p{i}", give_up_s=240)
                published += count

            try:
                await publish(10)
                await until_whole(broker)
                info = await api(broker.connection, f"STREAM.INFO.{OUT}", {})
                leader = next(s for s in servers if token(s.config.name) == info["cluster"]["leader"])
                leader.kill()
                shutil.rmtree(leader.config.store / "jetstream")
                await publish(20)
                await leader.start()
                await until_whole(broker)
                await publish(5)
                async with asyncio.timeout(240):
                    while len(came) < published and not routing.done() and not reading.done():
                        await asyncio.sleep(0.05)
                assert not routing.done() and not reading.done()
                assert came == Counter({f"e{i}": 1 for i in range(published)})
                assert not broker.alarms.shown, "nothing was lost"
            finally:
                await end_tasks([routing, reading])
                await writer.close()
                await reader.close()

    run_to_end(run())


def test_replicas_are_as_many_as_a_cluster_can_agree_on() -> None:
    with pytest.raises(InputError, match="give 1, 3 or 5"):
        replace(SIZES, replicas=2)
