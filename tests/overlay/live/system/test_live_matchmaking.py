"""Matchmaking on live brokers, with no coordinator and no control server: a match gets it, once."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.files import write_overlay
from ramify.overlay.control.names import CONTROL, token
from ramify.overlay.control.records import Answer, FilterText, Request, decode, encode, subscription_of
from ramify.overlay.live.broker.alarms import ALARMS_SUBJECT
from ramify.overlay.live.broker.matchmaker import Matchmaker, MatchmakerConfig
from ramify.overlay.live.client.client import Client, ExistsError
from ramify.overlay.live.host.broker_files import (
    BrokerFile,
    MatchEntry,
    ServerEntry,
    read_broker_file,
    write_broker_file,
)
from ramify.overlay.live.wire.security import ClientRole, NeighbourRole, Role, RouterRole
from ramify.overlay.live.wire.streams import api, connect
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.overlay.matchmaking.places import PER_SOURCE, SHARED, places_of_overlay
from ramify.overlay.matchmaking.simulate import MatchNetwork
from ramify.overlay.matchmaking.step import OUTSIDE_ADVERTISEMENT
from running import SMALL, Running, seeded_world
from worlds import FILTERS, SCHEMA, World

ALL = FilterText(sql="topic IS NOT NULL")


def spelled(row: Mapping[str, Any]) -> FilterText:
    words = row.get("keywords")
    pattern = None if "pattern" not in row else {"x": [{"numeric": [">", 6]}]}
    sigma = json.loads(row["sigma"]) if "sigma" in row else None
    return FilterText(row.get("sql"), pattern, None if words is None else list(words), sigma)


def holds(filter_: FilterText, event: Event) -> bool:
    return subscription_of("c", "b", "i", filter_).parse(SCHEMA.attributes).holds(event.values)


@dataclass
class Asked:
    """What clients have asked for, from their side."""

    ads: dict[tuple[str, str], FilterText] = field(default_factory=dict)
    subs: dict[tuple[str, str], FilterText] = field(default_factory=dict)

    def inside(self, event: Event) -> bool:
        return any(holds(f, event) for (client, _), f in self.ads.items() if client == event.publisher)

    def wanted(self, world: World, suffix: str = "") -> Counter[tuple[str, str]]:
        return Counter(
            (f"{event.id}{suffix}", f"{client}/{id_}")
            for event in world.events
            if self.inside(event)
            for (client, id_), filter_ in self.subs.items()
            if holds(filter_, event)
        )


class Matching(Running):
    """Brokers that make matches, each with its server and nothing else."""

    def __init__(self, world: World, directory: Path, trees: str) -> None:
        super().__init__(world.overlay, world.attachments, directory)
        self.places = places_of_overlay(world.overlay, trees)
        self.made: dict[str, Matchmaker] = {}
        self.asked = Asked()

    async def begin(self, readers: list[str]) -> None:
        await asyncio.gather(*(server.start() for server in self.servers.values()))
        for name in self.servers:
            self.start_broker(name)
        self.read(readers)

    def start_broker(self, name: str) -> None:
        made = self.made[name] = Matchmaker(
            MatchmakerConfig(self.site.broker(name, self.urls), self.places[name])
        )
        self.brokers[name] = made.broker
        self._tasks[name] = asyncio.create_task(made.run())

    async def stop_broker(self, name: str) -> None:
        await end_tasks([self._tasks[name]])

    async def ask(self, client: str, request: Request) -> Answer:
        """Ask until there is an answer, as the client library does."""
        data = encode(request)
        async with asyncio.timeout(240):
            while True:
                wire = (await self.client(client)).connection
                try:
                    reply = await wire.request(f"{CONTROL}.{token(client)}", data, timeout=5)
                except Exception:
                    await asyncio.sleep(0.1)
                    continue
                answer = decode(reply.data, Answer)
                if answer.error is None or answer.error.code != "unavailable":
                    return answer

    async def done(self, client: str, op: str, id_: str, filter_: FilterText | None = None) -> None:
        answer = await self.ask(client, Request(op, id_, filter_))
        assert answer.ok, answer
        kept: dict[tuple[str, str], FilterText] = self.asked.ads if "advert" in op else self.asked.subs
        if filter_ is None:
            kept.pop((client, id_))
        else:
            kept[client, id_] = filter_

    async def at_rest(self) -> None:
        """Wait until no packet is under way."""
        async with asyncio.timeout(240):
            quiet = 0
            while quiet < 3:
                await asyncio.sleep(0.05)
                states = {name: made.node.match.state for name, made in self.made.items()}
                under_way = [
                    (a, b)
                    for a, state in states.items()
                    for b in state.place.neighbours
                    if state.sent.get(b, 0) != states[b].received.get(a, 0)
                ]
                quiet = 0 if under_way else quiet + 1

    def check_channels(self) -> None:
        """The channels and marks are those of the simulator, told the same descriptors in one go."""
        network = MatchNetwork(self.places.values())
        for name, made in self.made.items():
            network.advertise(name, *made.node.match.state.own_ads.values())
            network.subscribe(name, *made.node.match.state.own_subs.values())
        network.run()
        for name, made in self.made.items():
            live, simulated = made.node.match.state, network.brokers[name].state
            assert _channels(live) == _channels(simulated)
            assert live.stored == simulated.stored

    async def rejected(self) -> Counter[str]:
        """Ids of events that were rejected for lying outside."""
        found: Counter[str] = Counter()
        for name, url in self.urls.items():
            own = await connect(self.site.endpoint(RouterRole(name), url))
            state: Any = (await api(own, "STREAM.INFO.REJECTED", {}))["state"]
            for place in range(max(1, state["first_seq"]), state["last_seq"] + 1):
                message = await own.jetstream().get_msg("REJECTED", place)
                if message.subject == ALARMS_SUBJECT:  # what a server lost when it was killed: no event
                    continue
                assert message.headers is not None
                assert message.headers["Reason"] == OUTSIDE_ADVERTISEMENT, message.headers
                assert "advertise" in message.headers["Detail"]
                assert int(message.headers["Position"]) > 0
                found[_event_id(message.data or b"")] += 1
            await own.close()
        return found


def _event_id(raw: bytes) -> str:
    return str(json.loads(raw)["id"])


def _channels(state: Any) -> set[tuple[str, str, str, str]]:
    return {(c.origin, c.ad.id, c.sub.id, c.to) for held in state.channels.values() for c in held.values()}


@asynccontextmanager
async def matching(world: World, directory: Path, trees: str) -> AsyncIterator[Matching]:
    live = Matching(world, directory, trees)
    try:
        await live.begin(sorted({row.client for row in world.subscriptions}))
        yield live
        assert not live.failed(), live.failed()
    finally:
        await live.stop()


async def churn(live: Matching, client: str, ops: tuple[str, str], rng: random.Random, count: int) -> None:
    """A client that joins and leaves with one filter after another."""
    kept = live.asked.ads if ops[0] == "advertise" else live.asked.subs
    for _ in range(count):
        mine = [id_ for name, id_ in kept if name == client and id_.startswith("x")]
        if mine and rng.random() < 0.4:
            await live.done(client, ops[1], rng.choice(mine))
        else:
            await live.done(client, ops[0], f"x{rng.getrandbits(32)}", spelled(rng.choice(FILTERS)))


def everyone(live: Matching, world: World, seed: int, count: int) -> list[Any]:
    subscribers = sorted({row.client for row in world.subscriptions})
    publishers = sorted({event.publisher for event in world.events if event.publisher})
    jobs = [
        churn(live, name, ("subscribe", "unsubscribe"), random.Random(f"{seed}{name}"), count)
        for name in subscribers
    ]
    return jobs + [
        churn(live, name, ("advertise", "unadvertise"), random.Random(f"{seed}{name}"), count)
        for name in publishers
    ]


async def settle(live: Matching, wanted: Counter[tuple[str, str]]) -> None:
    try:
        await live.until(wanted.total(), limit_s=120)
    except TimeoutError:
        lost = wanted - live.delivered
        lines = "\n".join(await live.describe())
        raise AssertionError(f"{lost.total()} lost: {list(lost)[:5]}\n{lines}") from None
    assert live.delivered == wanted


@pytest.mark.parametrize("trees", [SHARED, PER_SOURCE])
def test_events_reach_exactly_their_matches_and_those_outside_are_rejected(
    tmp_path: Path, trees: str
) -> None:
    world = seeded_world(3, brokers=6, subscriptions=9, events=80)

    async def scenario() -> None:
        async with matching(world, tmp_path, trees) as live:
            rejected: Counter[str] = Counter()
            total: Counter[tuple[str, str]] = Counter()
            for turn in range(2):
                await asyncio.gather(*everyone(live, world, turn, 4 + turn))
                await live.at_rest()
                live.check_channels()
                await live.publish(world, f"/{turn}", size=7)
                total += live.asked.wanted(world, f"/{turn}")
                rejected += Counter(f"{e.id}/{turn}" for e in world.events if not live.asked.inside(e))
                # first the first brokers must have seen all of it
                await settle(live, total)
                async with asyncio.timeout(240):
                    while sum((await live.rejected()).values()) < rejected.total():
                        await asyncio.sleep(0.1)
                assert await live.rejected() == rejected
            assert 0 < rejected.total() < 2 * len(world.events)
            assert total.total() > 50
            assert sum(made.broker.counters.strays for made in live.made.values()) == 0

    run_to_end(scenario())


@pytest.mark.parametrize("trees", [SHARED, PER_SOURCE])
def test_routers_and_servers_that_end_lose_and_double_nothing(tmp_path: Path, trees: str) -> None:
    """Some subscriptions stay throughout, others come and go; both kinds of end, of routers and servers."""
    world = seeded_world(5, brokers=5, subscriptions=8, events=40)
    names = list(world.overlay.brokers)
    rng = np.random.default_rng(2)

    async def faults(live: Matching) -> None:
        for k in range(6):
            name = names[rng.integers(len(names))]
            if k % 3 != 1:
                await live.stop_broker(name)
            if k % 3 != 0:
                live.servers[name].kill()
            await asyncio.sleep(float(rng.uniform(0.1, 0.6)))
            if k % 3 != 0:
                await live.servers[name].start()
            if k % 3 != 1:
                live.start_broker(name)
            await asyncio.sleep(float(rng.uniform(0.3, 0.9)))

    async def scenario() -> None:
        async with matching(world, tmp_path, trees) as live:
            publishers = sorted({e.publisher for e in world.events if e.publisher})
            await asyncio.gather(*(live.done(p, "advertise", "all", ALL) for p in publishers))
            stay = [(row.client, row.id, row) for row in world.subscriptions[:4]]
            for client, id_, row in stay:
                await live.done(client, "subscribe", id_, _of(row))
            await live.at_rest()
            before = Asked(dict(live.asked.ads), dict(live.asked.subs))
            going = asyncio.create_task(faults(live))
            moving = [
                churn(live, row.client, ("subscribe", "unsubscribe"), random.Random(row.client), 12)
                for row in world.subscriptions[5:]
            ]
            changing = asyncio.gather(*moving)
            rounds = 0
            while not going.done():
                await live.publish(world, f"/{rounds}", size=5)
                rounds += 1
            await going
            await changing
            await live.at_rest()
            live.check_channels()
            await live.publish(world, "/last", size=5)
            expected = live.asked.wanted(world, "/last")
            for r in range(rounds):
                expected += before.wanted(world, f"/{r}")
            await _has_all(live, expected)
            assert max(live.delivered.values()) == 1, "nothing is doubled"
            last = {pair: n for pair, n in live.delivered.items() if pair[0].endswith("/last")}
            assert last == live.asked.wanted(world, "/last")
            kept = {f"{client}/{id_}" for client, id_ in before.subs}
            of_kept = {pair: n for pair, n in live.delivered.items() if pair[1] in kept}
            assert of_kept == {pair: n for pair, n in expected.items() if pair[1] in kept}
            assert not await live.rejected()

    run_to_end(scenario())


def _of(row: Subscription) -> FilterText:
    keywords = (
        None if row.keywords is None else [w if isinstance(w, str) else list(w) for w in row.keywords]
    )
    pattern = None if row.pattern is None else {"x": [{"numeric": [">", 6]}]}
    return FilterText(row.sql, pattern, keywords)


async def _has_all(live: Matching, expected: Counter[tuple[str, str]]) -> None:
    try:
        async with asyncio.timeout(180):
            while expected - live.delivered:
                await asyncio.sleep(0.1)
    except TimeoutError:
        lost = expected - live.delivered
        lines = "\n".join(await live.describe())
        raise AssertionError(f"{lost.total()} lost: {list(lost)[:5]}\n{lines}") from None
    await asyncio.sleep(0.3)


def test_what_was_published_before_an_advertisement_ends_is_routed(tmp_path: Path) -> None:
    world = seeded_world(5, brokers=5, subscriptions=3, events=200)

    async def scenario() -> None:
        async with matching(world, tmp_path, SHARED) as live:
            client = world.subscriptions[0].client
            publishers = sorted({e.publisher for e in world.events if e.publisher})
            await asyncio.gather(*(live.done(p, "advertise", "all", ALL) for p in publishers))
            await live.done(client, "subscribe", "all", ALL)
            await live.at_rest()
            wanted = live.asked.wanted(world)
            assert wanted.total() == len(world.events)
            for made in live.made.values():
                made._open = False  # slow brokers: nothing is routed yet when the requests come
            await live.publish(world, size=40)
            ending = [asyncio.create_task(live.done(p, "unadvertise", "all")) for p in publishers]
            await asyncio.sleep(1.0)
            for made in live.made.values():
                made._open = True
                made.broker.wake()
            await asyncio.gather(*ending)
            await settle(live, wanted)
            await live.at_rest()
            assert not await live.rejected()
            assert not any(made.node.match.state.channels for made in live.made.values())

    run_to_end(scenario())


class Processes:
    """A process per broker, from files of settings, as `ramify broker` runs them."""

    def __init__(self, live: Matching, directory: Path, trees: str) -> None:
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        site = live.site
        write_overlay(site.overlay, directory / "overlay.json")
        for name in live.servers:

            def entry(role: Role, at: str) -> ServerEntry:
                site.ring.pair(role)
                return ServerEntry(live.urls[at], site.ring.path(role))

            settings = BrokerFile(
                name,
                entry(RouterRole(name), name),
                None,
                {to: entry(NeighbourRole(name), to) for to in site.neighbours(name)},
                SMALL,
                matchmaking=MatchEntry(directory / "overlay.json", trees),
            )
            write_broker_file(directory / f"{name}.toml", settings)
            assert read_broker_file(directory / f"{name}.toml") == settings
            self.start(name)

    def start(self, name: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            file = str(self.directory / f"{name}.toml")
            command = [sys.executable, "-m", "ramify.overlay.live.host.process", file]
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def test_processes_that_are_killed_go_on_and_the_client_library_works(tmp_path: Path) -> None:
    world = seeded_world(5, brokers=5, subscriptions=3, events=1)
    world = replace(world, attachments={"sub": "v4", "pub": "v3"})

    async def scenario() -> None:
        live = Matching(world, tmp_path / "site", PER_SOURCE)
        await asyncio.gather(*(server.start() for server in live.servers.values()))
        processes = Processes(live, tmp_path, PER_SOURCE)
        try:
            async with asyncio.timeout(600), client(live, "sub") as sub, client(live, "pub") as pub:
                await pub.advertise("x >= 0", id="a")
                wanted = await sub.subscribe("x BETWEEN 10 AND 39", id="s")
                assert list(await sub.subscriptions()) == ["s"]
                assert list(await pub.advertisements()) == ["a"]
                # until the channel is open, which nobody says
                while True:
                    await pub.publish(_event(f"try{time.monotonic_ns()}", 10))
                    if await wanted.get(1.0) is not None:
                        break
                while await wanted.get(1.0) is not None:
                    pass
                for x in range(50):
                    if x % 10 == 5:
                        processes.kill(f"v{x // 10}")
                    await pub.publish(_event(f"e{x}", x))
                    if x % 10 == 9:
                        processes.start(f"v{x // 10}")
                got = [await wanted.get(240.0) for _ in range(30)]
                assert [each.id for each in got if each] == [f"e{x}" for x in range(10, 40)]
                assert await wanted.get(1.0) is None
                with pytest.raises(ExistsError):
                    await sub.subscribe("x = 1", id="s")
                await sub.unsubscribe("s")
                await pub.publish(_event("out", -1))
                while not (found := await live.rejected()):
                    await asyncio.sleep(0.1)
                assert found == {"out": 1}
        except TimeoutError:
            logs = [(tmp_path / f"{name}.log").read_text()[-2000:] for name in live.servers]
            raise AssertionError("\n".join(logs)) from None
        finally:
            processes.end()
            await live.stop()

    run_to_end(scenario())


def client(live: Matching, name: str) -> Any:
    live.site.ring.pair(ClientRole(name))
    url = live.urls[live.site.clients[name]]
    # five processes start at once, and answer nothing before
    return Client.connect(name, url, seed_file=live.site.ring.path(ClientRole(name)), timeout_s=240)


def _event(id_: str, x: int) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id_, "source": "shop", "type": "t", "x": x}
