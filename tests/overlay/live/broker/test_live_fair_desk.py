"""A broker's desk: one client's flood of requests, by a raw connection, delays nobody else."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

from lane_server import SMALL
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.fairness import RequestRates
from ramify.overlay.control.records import Answer, FilterText, ForwardedRequest, Request, decode, encode
from ramify.overlay.live.broker.client_requests import MOST_OPEN, RequestDesk
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.security import ClientRole, RouterRole
from ramify.overlay.live.wire.streams import connect
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end


class SlowLeader:
    """Answers everything, once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: Counter[str] = Counter()

    async def ask(self, passed: ForwardedRequest) -> Answer:
        self.asked[passed.client] += 1
        if passed.client == "flood":
            await self.may_answer.wait()
        return Answer(ok=True)


class NoGuard:
    def seen(self, client: str) -> None: ...

    def changed(self, client: str) -> None: ...

    @contextlib.asynccontextmanager
    async def serving(self, client: str) -> AsyncIterator[None]:
        yield


def play(
    directory: Path,
    rates: RequestRates,
    scenario: Callable[[BrokerSite, str, SlowLeader], Awaitable[None]],
) -> None:
    async def bounded() -> None:
        site = BrokerSite(
            Overlay.build("one", ["v0"], []), directory, {"flood": "v0", "other": "v0"}, SMALL
        )
        server = site.server("v0")
        await server.start()
        own = await connect(site.endpoint(RouterRole("v0"), server.url))

        async def add_clients(names: list[str]) -> None: ...

        broker = SimpleNamespace(connection=own, config=SimpleNamespace(name="v0"), add_clients=add_clients)
        leader = SlowLeader()
        desk = RequestDesk(broker, NoGuard(), leader, dict, rates=rates)  # type: ignore[arg-type]
        running = asyncio.create_task(desk.run())
        try:
            async with asyncio.timeout(600):
                await scenario(site, server.url, leader)
        finally:
            await end_tasks([running])
            await own.close()
            await server.stop()

    run_to_end(bounded())


async def flooding(site: BrokerSite, url: str, requests: list[Request]) -> list[Answer]:
    """Ask all at once on a raw connection."""
    wire = await connect(site.endpoint(ClientRole("flood"), url))

    async def ask(request: Request) -> Answer:
        told = await wire.request("ramify.control.flood", encode(request), timeout=500)
        return decode(told.data, Answer)

    try:
        return list(await asyncio.gather(*map(ask, requests)))
    finally:
        await wire.close()


def served(site: BrokerSite, url: str) -> Awaitable[Client]:
    return Client.connect("other", url, seed=site.ring.pair(ClientRole("other")).seed)


def codes(answers: list[Answer]) -> Counter[str]:
    return Counter("ok" if answer.error is None else answer.error.code for answer in answers)


def test_requests_beyond_the_rate_are_refused_and_others_are_served(tmp_path: Path) -> None:
    async def scenario(site: BrokerSite, url: str, leader: SlowLeader) -> None:
        rates = codes(await flooding(site, url, [Request("list")] * 300))
        assert rates["busy"] >= 250
        assert rates["ok"] + rates["busy"] == 300
        assert leader.asked["flood"] == rates["ok"]
        other = await served(site, url)
        try:
            await other.subscribe("x = 1", id="s")
        finally:
            await other.close()

    play(tmp_path, RequestRates(requests_per_s=1.0, request_burst=20.0), scenario)


def test_requests_that_wait_do_not_take_the_places_of_others(tmp_path: Path) -> None:
    async def scenario(site: BrokerSite, url: str, leader: SlowLeader) -> None:
        leader.may_answer.clear()
        flood = asyncio.create_task(flooding(site, url, [Request("list")] * 500))
        while leader.asked["flood"] < MOST_OPEN:
            await asyncio.sleep(0.01)
        other = await served(site, url)
        try:
            await other.subscribe("x = 1", id="s")
            leader.may_answer.set()
            told = codes(await flood)
        finally:
            await end_tasks([flood])
            await other.close()
        assert told == {"ok": MOST_OPEN, "busy": 500 - MOST_OPEN}

    play(tmp_path, RequestRates(), scenario)


def test_hard_filters_are_checked_in_turn_with_those_of_others(tmp_path: Path) -> None:
    async def scenario(site: BrokerSite, url: str, leader: SlowLeader) -> None:
        hard = [" AND ".join(f"(x<{i} OR y>{i + k})" for i in range(450)) for k in range(15)]
        requests = [Request("subscribe", f"s{k}", FilterText(sql)) for k, sql in enumerate(hard)]
        other = await served(site, url)
        flood = asyncio.create_task(flooding(site, url, requests))
        try:
            await asyncio.sleep(0)
            for k in range(3):
                await other.subscribe(f"x = {k}", id=f"s{k}")
            assert not flood.done(), "others wait for all of a client's queue"
            told = codes(await flood)
        finally:
            await end_tasks([flood])
            await other.close()
        assert told == {"too_complex": 15}
        (refused,) = await flooding(site, url, [Request("list")])
        assert refused.error is not None
        assert refused.error.code == "busy"
        assert refused.error.retry_s > 0

    play(tmp_path, RequestRates(cpu_share=0.001, cpu_burst_s=0.5), scenario)
