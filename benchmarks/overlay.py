"""The live overlay: what routing by content costs over moving the same frames, and what it saves.

A chain of three brokers, each with a NATS server of its own; a client publishes at one end. Beside it a
bare relay on the same servers' settings, streams and consumers: per broker one loop that pulls a frame,
publishes it to its own stream, and acknowledges when the stream has it. It has up to 512 frames in
flight at each broker, as many as a broker takes into one step, and the same pull requests. Both sides run
in this process on one event loop with the same publisher and a reader that decodes what comes, on empty
servers, one run after the other.

    python benchmarks/overlay.py --quick     about two minutes
    python benchmarks/overlay.py             longer runs

The last line is one JSON object; the exit code is 1 when a limit is broken.

    events_per_s, relay_events_per_s   200-byte events in frames of 100, from the first publish to the last
                                       delivery: the median of five runs of each, in turn
    ratio                              the median of the five ratios
    sync_always_ratio                  events a second where servers sync every write to the disk, over
                                       those where they do not: the median of pairs of shorter runs
    added_ms_p50, added_ms_p99         such frames at a moderate rate, publish to delivery: what the brokers
                                       take longer than the relay, per link crossed (two)
    flood_bytes_over_ours              bytes over the two links when every event goes everywhere and clients
                                       filter, over those of the brokers; a shop's events and teams
    broker_mb_100k                     resident memory of a broker's process with 100,000 subscriptions that
                                       has routed events
    missed                             the keys whose limit is broken
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from nats.aio.client import Client as Nats

from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.frames import decode_events, encode_events
from ramify.overlay.control.intake import ARROW_TYPE
from ramify.overlay.control.names import DELIVER, IN, LINK, OUT, PUBLISH, token
from ramify.overlay.control.steps import Node
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.client.lane import LaneClient
from ramify.overlay.live.host.server import Server
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.pull import PulledMessage, Puller
from ramify.overlay.live.wire.security import INFO, ClientRole, NeighbourRole, RouterRole
from ramify.overlay.live.wire.streams import Sizes, connect, ensure_consumer, ensure_lanes, ensure_streams
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.overlay.routing.router import RoutingPlan
from ramify.planning.demand.classes import Classes

if TYPE_CHECKING:
    # the process whose memory is measured reads this file too: it imports no more than a broker does
    from ramify.planning.plans.plan import Plan
    from ramify.workloads.workload import Workload

LIMITS = {  # key -> the limit, and whether it is the most (or else the least) that is allowed
    "ratio": (0.6, False),
    "broker_mb_100k": (400, True),
}
RUNS = 5
SYNC_RUNS = 3
EVENT_BYTES = 200
FRAME_EVENTS = 100
IN_FLIGHT = 512
PUBLISHING = 64
LINKS = 2
RATE = 25
TURN = 50
TEAMS = 60
CHAIN = Overlay.build(
    "chain", ["b0", "b1", "b2"], [Link("b0", "b1", 1.0, 1.0, 5.0), Link("b1", "b2", 1.0, 1.0, 5.0)]
)
ENDS = {"source": "b0", "reader": "b2"}
SIZES = Sizes(published=512 << 20, out=1 << 30, rejected=8 << 20, samples=8 << 20)
SCHEMA = EventSchema(
    {"topic": AttributeType.STRING, "price": AttributeType.DOUBLE, "quantity": AttributeType.INT64}
)


def main() -> None:
    options = argparse.ArgumentParser(description="See the top of the file.")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--memory", metavar="DIRECTORY", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.memory:
        print(json.dumps(run_to_end(memory_of_broker(Path(asked.memory)))))
        return
    result: dict[str, Any] = {"quick": asked.quick}
    with tempfile.TemporaryDirectory(prefix="ramify-overlay-") as directory:
        result |= run_to_end(live_figures(Path(directory), asked.quick))
        result |= in_own_process(Path(directory), events=2000 if asked.quick else 10_000)
    missed = [key for key, (limit, most) in LIMITS.items() if (result[key] > limit) == most]
    for key in missed:
        say(f"LIMIT BROKEN: {key} = {result[key]}, allowed: {LIMITS[key][0]}")
    print(json.dumps(result | {"missed": missed}))
    sys.exit(1 if missed else 0)


async def live_figures(directory: Path, quick: bool) -> dict[str, Any]:
    found = await throughput(directory, frames=1000 if quick else 6000)
    found |= await syncing(directory, frames=150 if quick else 1000)
    found |= await latency(directory, frames=250 if quick else 2000)
    return found | await flood(directory, events=20_000 if quick else 100_000)


# ----------------------------------------------------------------------------------------------- events


def plain_events(count: int, seed: int) -> pa.RecordBatch:
    """Events of 200 bytes, as names and values are counted; bodies that do not compress."""
    rng = np.random.default_rng(seed)
    named = sum(len(name) for name in ("id", "topic", "price", "quantity"))
    made = []
    for i in range(count):
        id_, topic = f"e{seed:03d}{i:08d}", f"topic{rng.integers(50):02d}"
        body = rng.bytes(EVENT_BYTES - named - len(id_) - len(topic) - 16)
        attributes: dict[str, Any] = {
            "topic": topic,
            "price": float(rng.random()),
            "quantity": int(rng.integers(1000)),
        }
        made.append(Event(id_, "source", attributes=attributes, body=body, size_bytes=EVENT_BYTES))
    return events_to_batch(made, SCHEMA)


def frames_of(events: pa.RecordBatch, size: int = FRAME_EVENTS) -> list[bytes]:
    return [encode_events(events.slice(at, size)) for at in range(0, events.num_rows, size)]


def chain_plan() -> "Plan":
    """The reader at the far end wants everything; 300 others, of topics that do not come, nothing."""
    rows = [Subscription("all", "reader", "b2", sql="price >= 0")]
    for i in range(300):
        sql = f"topic = 'other{i:03d}' AND quantity > {i}"
        rows.append(Subscription(f"s{i}", "reader", f"b{i % 3}", sql=sql))
    classes = Classes.collapse(rows, CHAIN, SCHEMA.attributes)
    return single_plan(classes, [plain_events(1000, 0)], ENDS)


def single_plan(classes: Classes, batches: Sequence[pa.RecordBatch], clients: Mapping[str, str]) -> "Plan":
    """One tree for all."""
    from ramify.planning.demand.tally import tally
    from ramify.planning.plans.problem import Problem
    from ramify.planning.schemes.catalog import make_plan

    demand = tally(batches, classes, CHAIN, clients)
    return make_plan("single", Problem.of(CHAIN, classes, demand, clients), 1)


# ---------------------------------------------------------------------------------------------- both sides


class Servers:
    """The servers of the chain, empty at first, each with the streams and lanes of its broker."""

    def __init__(self, directory: Path, clients: Mapping[str, str], sync_always: bool = False) -> None:
        place = directory / uuid.uuid4().hex[:8]
        self.site = BrokerSite(CHAIN, place, clients, SIZES, sync_always=sync_always)
        self.servers: dict[str, Server] = {name: self.site.server(name) for name in CHAIN.brokers}
        self.tasks: list[asyncio.Task[None]] = []
        self.connections: list[Nats] = []

    @property
    def urls(self) -> dict[str, str]:
        """By broker."""
        return {name: server.url for name, server in self.servers.items()}

    async def start(self) -> None:
        """Start them, and make streams and lanes."""
        await asyncio.gather(*(server.start() for server in self.servers.values()))
        for name in CHAIN.brokers:
            own = await self.connect(RouterRole(name), name)
            await ensure_streams(own, SIZES)
            await ensure_consumer(own, IN, "router")
            await ensure_lanes(own, self.site.neighbours(name), self.site.attached(name))

    async def connect(self, role: RouterRole | NeighbourRole | ClientRole, broker: str) -> Nats:
        """A connection that ends with the servers."""
        connection = await connect(self.site.endpoint(role, self.urls[broker]))
        self.connections.append(connection)
        return connection

    async def client(self, name: str) -> Nats:
        """A client's connection to its broker's server."""
        return await self.connect(ClientRole(name), self.site.clients[name])

    def run(self, what: Any) -> None:
        """Run a loop until the servers stop."""
        self.tasks.append(asyncio.create_task(what))

    def check(self) -> None:
        """Raise what a loop ended with."""
        for task in self.tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """End the loops, then the servers."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in self.connections:
            await connection.close()
        await asyncio.gather(*(server.stop() for server in self.servers.values()))


@asynccontextmanager
async def servers(
    directory: Path, clients: Mapping[str, str], sync_always: bool = False
) -> AsyncIterator[Servers]:
    made = Servers(directory, clients, sync_always)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@dataclass
class Reader:
    """What came to a client: events, and when the last of them did."""

    events: int = 0
    bytes: int = 0
    at: float = 0.0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    # how many had come, and when
    came: list[tuple[int, float]] = field(default_factory=list)

    def took(self, events: int) -> None:
        """Count events that came now."""
        self.events += events
        self.at = time.perf_counter()
        self.came.append((self.events, self.at))
        self.arrived.set()

    async def until(self, events: int, on: Servers) -> None:
        """Wait until so many came. Raises when a loop has ended."""
        async with asyncio.timeout(120):
            while self.events < events:
                self.arrived.clear()
                on.check()
                await self.arrived.wait()


async def publish(connection: Nats, client: str, frames: Sequence[bytes]) -> None:
    """Publish frames as a client does, a number of them under way at once."""
    waiting = iter(frames)

    async def one_by_one() -> None:
        for frame in waiting:
            headers = {"Nats-Msg-Id": uuid.uuid4().hex, "Content-Type": ARROW_TYPE}
            answer = await connection.request(
                f"{PUBLISH}.{token(client)}", frame, timeout=30, headers=headers
            )
            told = json.loads(answer.data)
            if "error" in told:
                raise RuntimeError(f"a publish was refused: {told['error']}")

    await asyncio.gather(*(one_by_one() for _ in range(min(PUBLISHING, len(frames)))))


# ---------------------------------------------------------------------------------------------- the brokers


async def start_brokers(on: Servers, routing: RoutingPlan) -> dict[str, Broker]:
    brokers = {}
    for name in CHAIN.brokers:
        node = Node(name)
        node.install(0, routing)
        node.flip(0)
        brokers[name] = Broker(on.site.broker(name, on.urls), node)
        on.run(brokers[name].run())
    await asyncio.gather(*(broker.ready.wait() for broker in brokers.values()))
    return brokers


async def read_lane(on: Servers, client: str, reader: Reader) -> None:
    async for delivered in LaneClient(client, await on.client(client)).deliveries():
        reader.took(delivered.events.num_rows)


# ------------------------------------------------------------------------------------------------ the relay


class Relay:
    """One broker's relay: what comes from each input is published to the lanes that `ways` says."""

    def __init__(self, on: Servers, name: str, ways: Mapping[str, Sequence[str]]) -> None:
        self._on, self._name, self._ways = on, name, ways
        self.bytes: Counter[str] = Counter()

    async def start(self) -> None:
        """Connect and begin."""
        own = await self._on.connect(RouterRole(self._name), self._name)
        for source, lanes in self._ways.items():
            arrived = asyncio.Event()
            if source == IN:
                puller = puller_of(own, IN, "router", arrived)
            else:
                upstream = await self._on.connect(NeighbourRole(self._name), source)
                puller = puller_of(upstream, OUT, f"link_{token(self._name)}", arrived)
            await puller.start()
            self._on.run(self._relay(own, puller, arrived, lanes))

    async def _relay(self, own: Nats, puller: Puller, arrived: asyncio.Event, lanes: Sequence[str]) -> None:
        stream = own.jetstream(publish_async_max_pending=IN_FLIGHT)
        flying = Flying()
        self._on.run(self._acknowledge(puller, flying))
        while True:
            arrived.clear()
            while puller.buffer:
                message = puller.take()
                stored = []
                for lane in lanes:
                    stored.append(await stream.publish_async(lane, message.payload))
                    self.bytes[lane] += len(message.payload)
                flying.frames.append((message, stored))
                flying.some.set()
            await arrived.wait()

    @staticmethod
    async def _acknowledge(puller: Puller, flying: "Flying") -> None:
        frames = flying.frames
        while True:
            flying.some.clear()
            if not frames:
                await flying.some.wait()
            for one in frames[0][1]:
                await one
            # an acknowledgement covers all before it: one for all that are stored by now
            while frames and all(one.done() for one in frames[0][1]):
                message, stored = frames.popleft()
                for one in stored:
                    one.result()
            await puller.acknowledge(message.reply)


@dataclass
class Flying:
    """Frames that were published and perhaps not stored yet, in order."""

    frames: deque[tuple[PulledMessage, list[asyncio.Future[Any]]]] = field(default_factory=deque)
    some: asyncio.Event = field(default_factory=asyncio.Event)


def puller_of(connection: Nats, stream: str, consumer: str, arrived: asyncio.Event) -> Puller:
    """As brokers and clients pull."""
    info = f"$JS.API.CONSUMER.INFO.{IN}" if stream == IN else INFO
    return Puller(connection, stream, consumer, arrived, f"{info}.{consumer}")


async def start_relay(on: Servers, ways: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Relay]:
    relays = {name: Relay(on, name, ways[name]) for name in CHAIN.brokers}
    for relay in relays.values():
        await relay.start()
    return relays


async def read_relayed(on: Servers, client: str, reader: Reader) -> None:
    arrived = asyncio.Event()
    puller = puller_of(await on.client(client), OUT, f"client_{token(client)}", arrived)
    await puller.start()
    while True:
        arrived.clear()
        while puller.buffer:
            message = puller.take()
            reader.took(decode_events(message.payload).num_rows)
            reader.bytes += len(message.payload)
            await puller.acknowledge(message.reply)
        await arrived.wait()


ONE_WAY = {
    "b0": {IN: [f"{LINK}.b1"]},
    "b1": {"b0": [f"{LINK}.b2"]},
    "b2": {"b1": [f"{DELIVER}.reader"]},
}


# -------------------------------------------------------------------------------------------------- figures


async def start_side(on: Servers, side: str, routing: RoutingPlan) -> tuple[Nats, Reader]:
    """Brokers or relays, and both clients."""
    reader = Reader()
    if side == "ours":
        await start_brokers(on, routing)
        on.run(read_lane(on, "reader", reader))
    else:
        await start_relay(on, ONE_WAY)
        on.run(read_relayed(on, "reader", reader))
    return await on.client("source"), reader


async def throughput(directory: Path, frames: int) -> dict[str, Any]:
    routing = RoutingPlan(chain_plan())
    encoded = frames_of(plain_events(frames * FRAME_EVENTS, 1))
    say(f"{frames} frames of {FRAME_EVENTS} events, {len(encoded[0]):,} bytes each")
    rates: dict[str, list[float]] = {"ours": [], "relay": []}
    for run in range(RUNS):
        # who goes first takes turns
        for side in ("ours", "relay") if run % 2 == 0 else ("relay", "ours"):
            rates[side].append(await rate_of(directory, side, routing, encoded))
        ours, relay = rates["ours"][-1], rates["relay"][-1]
        say(f"run {run + 1}: {ours:,.0f} events/s, relay {relay:,.0f}: {ours / relay:.2f}")
    ratios = [ours / relay for ours, relay in zip(rates["ours"], rates["relay"], strict=True)]
    return {
        "events_per_s": round(statistics.median(rates["ours"])),
        "relay_events_per_s": round(statistics.median(rates["relay"])),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


async def rate_of(
    directory: Path, side: str, routing: RoutingPlan, encoded: Sequence[bytes], sync_always: bool = False
) -> float:
    """Events a second, on empty servers."""
    async with servers(directory, ENDS, sync_always) as on:
        source, reader = await start_side(on, side, routing)
        warm = encoded[:50]
        await publish(source, "source", warm)
        await reader.until(len(warm) * FRAME_EVENTS, on)
        wanted = reader.events + len(encoded) * FRAME_EVENTS
        begin = time.perf_counter()
        await asyncio.gather(publish(source, "source", encoded), reader.until(wanted, on))
        return len(encoded) * FRAME_EVENTS / (reader.at - begin)


async def syncing(directory: Path, frames: int) -> dict[str, Any]:
    """The brokers on servers that sync every write, and on servers that do not, in turn."""
    routing = RoutingPlan(chain_plan())
    encoded = frames_of(plain_events(frames * FRAME_EVENTS, 3))
    ratios = []
    for _ in range(SYNC_RUNS):
        always, interval = [await rate_of(directory, "ours", routing, encoded, on) for on in (True, False)]
        say(f"synced always {always:,.0f} events/s, else {interval:,.0f}: {always / interval:.2f}")
        ratios.append(always / interval)
    return {"sync_always_ratio": round(statistics.median(ratios), 3)}


async def latency(directory: Path, frames: int) -> dict[str, Any]:
    """Frames at a steady moderate rate, some on each side in turn. All servers run all the time."""
    routing = RoutingPlan(chain_plan())
    (frame,) = frames_of(plain_events(FRAME_EVENTS, 2))
    took: dict[str, list[float]] = {"ours": [], "relay": []}
    async with servers(directory, ENDS) as one, servers(directory, ENDS) as other:
        sides = {
            "ours": (one, *await start_side(one, "ours", routing)),
            "relay": (other, *await start_side(other, "relay", routing)),
        }
        for turn in range(1 + frames // TURN):
            for name, (on, source, reader) in sides.items():
                measured = await paced(on, source, reader, frame, TURN)
                if turn:  # the first warms up
                    took[name] += measured
    points = {name: np.percentile(times, [50, 99]) for name, times in took.items()}
    for name, (p50, p99) in points.items():
        say(f"{name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms from publish to delivery, {RATE} frames/s")
    added = (points["ours"] - points["relay"]) / LINKS
    return {
        "added_ms_p50": round(float(added[0]), 3),
        "added_ms_p99": round(float(added[1]), 3),
        "ms_p50": round(float(points["ours"][0]), 3),
        "ms_p99": round(float(points["ours"][1]), 3),
        "relay_ms_p50": round(float(points["relay"][0]), 3),
        "relay_ms_p99": round(float(points["relay"][1]), 3),
    }


async def paced(on: Servers, source: Nats, reader: Reader, frame: bytes, count: int) -> list[float]:
    """Milliseconds from publish to delivery of frames that are sent whether or not those before came."""
    first, mark = reader.events, len(reader.came)
    begun: list[float] = []
    sent: list[asyncio.Task[None]] = []
    start = time.perf_counter()
    for i in range(count):
        await asyncio.sleep(max(0.0, start + i / RATE - time.perf_counter()))
        begun.append(time.perf_counter())
        sent.append(asyncio.create_task(publish(source, "source", [frame])))
    await asyncio.gather(*sent, reader.until(first + count * FRAME_EVENTS, on))
    # all frames are alike and come in order, some of them together
    ends = iter(reader.came[mark:])
    upto, at = next(ends)
    times = []
    for i, begin in enumerate(begun):
        while upto < first + (i + 1) * FRAME_EVENTS:
            upto, at = next(ends)
        times.append(1e3 * (at - begin))
    return times


async def flood(directory: Path, events: int) -> dict[str, Any]:
    """A shop in three regions: teams want some events of some regions. Bytes on the links, both run."""
    from ramify.workloads.catalog import workload_from

    shop = workload_from(f"demo:subscriptions={TEAMS},size_bytes={EVENT_BYTES}", CHAIN, 1)
    batches = list(shop.batches(0, events))
    plan = plan_of(shop, batches)
    clients = dict(shop.attachments)
    frames = {name: frames_of(part) for name, part in by_publisher(batches).items()}
    wanted = deliveries_of(plan, batches)
    async with servers(directory, clients) as on:
        brokers = await start_brokers(on, RoutingPlan(plan))
        readers = {name: Reader() for name in wanted}
        for name, reader in readers.items():
            on.run(read_lane(on, name, reader))
        await publish_all(on, frames)
        await asyncio.gather(*(readers[name].until(count, on) for name, count in wanted.items()))
        crossed = sum(sum(broker.counters.messages.values()) for broker in brokers.values())
        ours = sum(sum(broker.counters.wire_bytes.values()) for broker in brokers.values())
    published = sum(len(frame) for part in frames.values() for frame in part)
    async with servers(directory, clients) as on:
        relays = await start_relay(on, everywhere(on.site, list(wanted)))
        readers = {name: Reader() for name in wanted}
        for name, reader in readers.items():
            on.run(read_relayed(on, name, reader))
        await publish_all(on, frames)
        await asyncio.gather(*(reader.until(events, on) for reader in readers.values()))
        lanes = sum((relay.bytes for relay in relays.values()), Counter())
    flooded = sum(bytes_ for lane, bytes_ in lanes.items() if lane.startswith(LINK))
    say(
        f"{events:,} events, {len(wanted)} clients: {ours:,} bytes over links, flooded {flooded:,} "
        f"(published: {published:,}); clients get {sum(wanted.values()):,} events, flooded "
        f"{events * len(wanted):,}"
    )
    return {
        "flood_bytes_over_ours": round(flooded / ours, 3),
        "flood_messages_over_ours": round(LINKS * events / crossed, 3),
        "flood_events_at_clients_over_ours": round(events * len(wanted) / sum(wanted.values()), 3),
    }


def plan_of(workload: "Workload", batches: Sequence[pa.RecordBatch]) -> "Plan":
    classes = Classes.collapse(workload.subscriptions, CHAIN, workload.schema.attributes)
    return single_plan(classes, batches, workload.attachments)


def by_publisher(batches: Sequence[pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
    """Each publisher's events, in order."""
    table = pa.Table.from_batches(batches).combine_chunks()
    publisher = table.column("publisher").to_pylist()
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(publisher):
        rows.setdefault(str(name), []).append(row)
    return {
        name: table.take(pa.array(mine)).combine_chunks().to_batches()[0] for name, mine in rows.items()
    }


def deliveries_of(plan: "Plan", batches: Sequence[pa.RecordBatch]) -> dict[str, int]:
    """How many events each client gets, one that several of its subscriptions want counted once."""
    members = plan.classes.members
    clients = [{row.client for row in members[k]} for k in range(len(members))]
    found: Counter[str] = Counter()
    matcher = RoutingPlan(plan).matcher
    for batch in batches:
        for ids in matcher.match(batch):
            found.update({name for k in ids.tolist() for name in clients[k]})
    return dict(found)


async def publish_all(on: Servers, frames: Mapping[str, Sequence[bytes]]) -> None:
    sources = {name: await on.client(name) for name in frames}
    await asyncio.gather(*(publish(sources[name], name, part) for name, part in frames.items()))


def everywhere(site: BrokerSite, readers: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Flooding: from each input to all neighbours but the sender, and to every client here."""
    ways: dict[str, dict[str, list[str]]] = {}
    for name in CHAIN.brokers:
        here = [f"{DELIVER}.{token(client)}" for client in readers if site.clients[client] == name]
        around = site.neighbours(name)
        ways[name] = {
            source: [f"{LINK}.{token(to)}" for to in around if to != source] + here
            for source in (IN, *around)
        }
    return ways


# --------------------------------------------------------------------------------------------------- memory


MANY = 100_000
KEYWORDS = 20_000
MANY_SCHEMA = EventSchema({**SCHEMA.attributes, "keywords": AttributeType.STRINGS})


def many_subscriptions() -> list[Subscription]:
    """Four in five are a pair of keywords, the fifth a pattern: a topic and a range. Few are equal."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(MANY):
        client, broker = f"client{i % 3000}", f"b{i % 3}"
        if i % 5:
            words = tuple(f"word{k:05d}" for k in rng.choice(KEYWORDS, 2, replace=False))
            rows.append(Subscription(f"s{i}", client, broker, keywords=words))
            continue
        low = round(0.9 * float(rng.random()), 4)
        topic, price = f"topic{rng.integers(500):03d}", {"numeric": [">=", low, "<", round(low + 0.1, 4)]}
        pattern = json.dumps({"topic": [topic], "price": [price]})
        rows.append(Subscription(f"s{i}", client, broker, pattern=pattern))
    return rows


def many_events(count: int) -> pa.RecordBatch:
    rng = np.random.default_rng(4)
    made = []
    for i in range(count):
        attributes: dict[str, Any] = {
            "topic": f"topic{rng.integers(500):03d}",
            "price": float(rng.random()),
            "quantity": int(rng.integers(1000)),
            "keywords": tuple(f"word{k:05d}" for k in rng.choice(KEYWORDS, 2, replace=False)),
        }
        made.append(Event(f"e{i}", "source", attributes=attributes, body=rng.bytes(80), size_bytes=200))
    return events_to_batch(made, MANY_SCHEMA)


def many_plan() -> "Plan":
    """Every subscription is a class of its own; one channel serves them all, with explicit headers."""
    from ramify.planning.plans.plan import Admission, Channel, Plan, Pruning, Serves, Stamped

    rows = many_subscriptions()
    hosts = np.array([CHAIN.index[row.broker] for row in rows], dtype=np.int32)
    classes = Classes(tuple(rows), tuple((row,) for row in rows), hosts, MANY_SCHEMA.attributes)
    serves = Serves.at_hosts(np.arange(len(rows)), classes)
    return Plan("explicit", CHAIN, classes, (Channel("all", Admission(Stamped()), serves, Pruning.TREE),))


def in_own_process(directory: Path, events: int) -> dict[str, Any]:
    """The routing form is made here and read there, as a broker gets it from the control store."""
    from ramify.overlay.routing.form import encode_routing

    begin = time.perf_counter()
    (directory / "routing").write_bytes(encode_routing(many_plan()))
    made_s = time.perf_counter() - begin
    for i, frame in enumerate(frames_of(many_events(events))):
        (directory / f"frame{i:04d}").write_bytes(frame)
    command = [sys.executable, __file__, "--memory", str(directory)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError("the process with 100,000 subscriptions failed: see above")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(
        "a broker with {subscriptions:,} subscriptions: {broker_mb_100k} MB ({broker_mb_empty} MB before "
        "it read the plan, {broker_peak_mb_100k} MB at most); read in {read_s} s".format(**found)
        + f", its form was made in {made_s:.1f} s ({(directory / 'routing').stat().st_size / 1e6:.1f} MB)"
    )
    return found


async def memory_of_broker(directory: Path) -> dict[str, Any]:
    """The first broker of the chain runs here alone: it routes, and hands to its own 1,000 clients."""
    from ramify.overlay.live.broker import controlled  # what a broker's process has, too

    assert controlled
    empty_mb = resident_mb()["VmRSS"]
    begin = time.perf_counter()
    routing = RoutingPlan.read((directory / "routing").read_bytes())
    read_s = time.perf_counter() - begin
    node = Node("b0")
    node.install(0, routing)
    node.flip(0)
    frames = [path.read_bytes() for path in sorted(directory.glob("frame*"))]
    clients = {f"client{i}": "b0" for i in range(0, 3000, 3)} | {"source": "b0"}
    async with servers(directory, clients) as on:
        broker = Broker(on.site.broker("b0", on.urls), node)
        on.run(broker.run())
        await broker.ready.wait()
        await publish(await on.client("source"), "source", frames)
        async with asyncio.timeout(120):
            while broker.counters.frames < len(frames):
                on.check()
                await asyncio.sleep(0.05)
        memory = resident_mb()
    return {
        "broker_mb_100k": round(memory["VmRSS"]),
        "broker_peak_mb_100k": round(memory["VmHWM"]),
        "broker_mb_empty": round(empty_mb),
        "broker_deliveries": broker.counters.deliveries,
        "read_s": round(read_s, 2),
        "subscriptions": len(routing.hosts),
    }


def resident_mb() -> dict[str, float]:
    """What the kernel says of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        name: int(rest.split()[0]) / 1000
        for name, _, rest in (x.partition(":") for x in lines)
        if name in ("VmRSS", "VmHWM")
    }


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
