"""A live overlay in this process: real servers, a router per broker, a reader per client."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.steps import Node
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.broker.log import OutLog
from ramify.overlay.live.client.lane import LaneClient, LaneReader, LostDeliveriesError
from ramify.overlay.live.host.server import Server
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.security import ClientRole, RouterRole
from ramify.overlay.live.wire.streams import Sizes, api, connect
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.overlay.routing.router import RoutingPlan
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.plans.plan import Plan
from worlds import FILTERS, World

SMALL = Sizes(published=64 << 20, out=128 << 20, rejected=8 << 20, samples=8 << 20)


def crossings(plan: Plan, world: World) -> Counter[tuple[str, str]]:
    """The simulator's messages by sender and receiver."""
    done = Simulator(plan).simulate_events([world.batch])
    names = world.overlay.brokers
    found: Counter[tuple[str, str]] = Counter()
    for link, (a, b) in enumerate(world.overlay.ends.tolist()):
        found[names[a], names[b]] = int(done.messages[link, 0])
        found[names[b], names[a]] = int(done.messages[link, 1])
    return +found


def seeded_world(seed: int, brokers: int, subscriptions: int, events: int) -> World:
    """A connected overlay with a few cycles, random subscriptions, publishers at every broker."""
    rng = np.random.default_rng(seed)
    pairs = {(int(rng.integers(i)), i) for i in range(1, brokers)}
    while len(pairs) < brokers + 4 and brokers > 4:
        a, b = sorted(rng.choice(brokers, 2, replace=False).tolist())
        pairs.add((a, b))
    links = [
        Link(f"v{a}", f"v{b}", float(rng.integers(1, 6)), float(rng.integers(1, 6)), 5.0)
        for a, b in sorted(pairs)
    ]
    overlay = Overlay.build("seeded", [f"v{i}" for i in range(brokers)], links)
    clients = subscriptions * 2 // 3 + 1
    at = {f"c{i}": f"v{rng.integers(brokers)}" for i in range(clients)}
    rows = tuple(
        Subscription(f"s{i}", f"c{i % clients}", at[f"c{i % clients}"], **FILTERS[int(rng.integers(9))])  # type: ignore[arg-type]
        for i in range(subscriptions)
    )
    publishers = {f"p{i}": f"v{i}" for i in range(brokers)}
    words = ["news", "sport", "art"]
    made = tuple(
        Event(
            id=f"e{i}",
            publisher=f"p{rng.integers(brokers)}",
            attributes={"topic": "abc"[rng.integers(3)], "keywords": tuple(rng.choice(words, 1).tolist())}
            | ({} if rng.random() < 0.2 else {"x": int(rng.integers(10))}),
            size_bytes=int(rng.integers(1, 400)),
        )
        for i in range(events)
    )
    return World(overlay, rows, at | publishers, made)


class Running:
    """Servers, brokers and readers of one overlay. Deliveries are counted by (event id, subscription
    id)."""

    def __init__(self, overlay: Overlay, attachments: Mapping[str, str], directory: Path) -> None:
        self.site = BrokerSite(overlay, directory, attachments, SMALL)
        self.servers: dict[str, Server] = {name: self.site.server(name) for name in overlay.brokers}
        self.nodes = {name: Node(name) for name in overlay.brokers}
        self.brokers: dict[str, Broker] = {}
        self.delivered: Counter[tuple[str, str]] = Counter()
        # what readers were told to be gone
        self.losses: list[LostDeliveriesError] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clients: dict[str, LaneClient] = {}
        self._read_to: dict[str, int] = {}

    async def start(self, plan: Plan, readers: list[str]) -> None:
        await asyncio.gather(*(server.start() for server in self.servers.values()))
        self.install(0, plan)
        for name in self.servers:
            self.start_broker(name)
        await asyncio.gather(*(broker.ready.wait() for broker in self.brokers.values()))
        self.read(readers)

    def read(self, readers: list[str]) -> None:
        for client in readers:
            self._tasks[f"reader {client}"] = asyncio.create_task(self._read(client))

    def install(self, epoch: int, plan: Plan) -> None:
        routing = RoutingPlan(plan)
        for node in self.nodes.values():
            node.install(epoch, routing)
        for node in self.nodes.values():
            node.flip(epoch)

    @property
    def urls(self) -> dict[str, str]:
        return {name: server.url for name, server in self.servers.items()}

    def start_broker(self, name: str) -> None:
        broker = self.brokers[name] = Broker(self.site.broker(name, self.urls), self.nodes[name])
        self._tasks[name] = asyncio.create_task(broker.run())

    async def client(self, name: str) -> LaneClient:
        if name not in self._clients:
            url = self.urls[self.site.clients[name]]
            self._clients[name] = await LaneClient.connect(name, self.site.endpoint(ClientRole(name), url))
        return self._clients[name]

    async def _read(self, name: str) -> None:
        reader = LaneReader(await self.client(name), self._read_to.get(name))
        try:
            while True:
                try:
                    delivered = await reader.take()
                except LostDeliveriesError as error:
                    self.losses.append(error)
                    continue
                for row, event in enumerate(delivered.events.column("id").to_pylist()):
                    for subscription in delivered.subscriptions_of(row):
                        self.delivered[event, subscription] += 1
                self._read_to[name] = delivered.number
                await reader.acknowledge(delivered.number)
        finally:
            await reader.stop()

    async def publish(self, world: World, suffix: str = "", size: int = 20) -> None:
        """Publish a world's events from their publishers, in batches of up to `size`."""
        by_publisher: dict[str, list[int]] = {}
        for row, event in enumerate(world.events):
            by_publisher.setdefault(event.publisher, []).append(row)

        async def one(publisher: str, rows: list[int]) -> None:
            client = await self.client(publisher)
            for at in range(0, len(rows), size):
                part = world.batch.take(pa.array(rows[at : at + size]))
                ids = pa.array([f"{id_}{suffix}" for id_ in part.column("id").to_pylist()])
                await client.publish(part.set_column(0, part.schema.field(0), ids), give_up_s=240)

        await asyncio.gather(*(one(name, rows) for name, rows in by_publisher.items()))

    async def until(self, wanted: int, limit_s: float = 240.0) -> None:
        """Wait until so many deliveries were counted, and a moment longer for those that are too many."""
        async with asyncio.timeout(limit_s):
            while self.delivered.total() < wanted:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)

    def messages(self) -> Counter[tuple[str, str]]:
        return Counter(
            {(name, to): n for name, b in self.brokers.items() for to, n in b.counters.messages.items()}
        )

    async def describe(self) -> list[str]:
        """Where everything stands: for reading when a test fails."""
        lines = []
        for name, url in self.urls.items():
            own = await connect(self.site.endpoint(RouterRole(name), url))
            log = OutLog(own)
            recovered = await log.load()
            published = (await api(own, "STREAM.INFO.IN", {}))["state"]["last_seq"]  # type: ignore[index]
            lines.append(f"{name}: IN {published}, positions {dict(recovered.positions)} {recovered.begun}")
            for listed in (await api(own, "CONSUMER.LIST.OUT", {}))["consumers"]:  # type: ignore[attr-defined]
                lane = listed["config"]["filter_subject"]
                lines.append(
                    f"  {lane} ends {await log.number(lane)}, pending {listed['num_pending']}, "
                    f"unacknowledged {listed['num_ack_pending']}, waiting {listed['num_waiting']}, "
                    f"floor {listed['ack_floor']['stream_seq']}"
                )
            await own.close()
        return lines

    def failed(self) -> list[BaseException]:
        done = [task for task in self._tasks.values() if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]

    async def stop(self) -> None:
        await end_tasks(self._tasks.values())
        for client in self._clients.values():
            with suppress(Exception):
                await client.close()
        await asyncio.gather(*(server.stop() for server in self.servers.values()), return_exceptions=True)


@asynccontextmanager
async def running(plan: Plan, world: World, directory: Path) -> AsyncIterator[Running]:
    """The overlay of a plan with all clients of a world reading."""
    live = Running(world.overlay, world.attachments, directory)
    readers = sorted({row.client for row in world.subscriptions})
    try:
        await live.start(plan, readers)
        yield live
    finally:
        await live.stop()
