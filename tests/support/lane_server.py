"""One server with clients on it, a lane that a test writes, and a stand-in for the broker's answers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.content.events.events import Event, events_to_batch
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.names import DELIVER, name_of, token
from ramify.overlay.control.output import Output
from ramify.overlay.control.records import (
    Advertisement,
    Answer,
    ClientPlace,
    ClientRecord,
    ClientSubscription,
    Refusal,
    Request,
    decode,
    encode,
)
from ramify.overlay.live.broker.log import OutLog
from ramify.overlay.live.client.client import Client, PendingClient
from ramify.overlay.live.host.server import Server
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.security import ClientRole, RouterRole
from ramify.overlay.live.wire.streams import Sizes, api, connect, ensure_lanes, ensure_streams

SMALL = Sizes(published=16 << 20, out=64 << 20, rejected=4 << 20, samples=4 << 20)


class LaneServer:
    """A server whose router is the test."""

    def __init__(
        self, directory: Path, clients: tuple[str, ...] = ("alice", "bob"), name: str = "v0"
    ) -> None:
        overlay = Overlay.build("one", [name], [])
        self.site = BrokerSite(overlay, directory, dict.fromkeys(clients, name), SMALL)
        self.server: Server = self.site.server(name)
        self.name = name
        # what it says of where a client is
        self.place = ClientPlace(name, name)
        self.own: Nats
        self.log: OutLog
        self.records: dict[str, ClientRecord] = {}
        self.asked: list[Request] = []
        # answers instead of the usual ones, first come first served; None does not answer
        self.instead: list[Answer | None] = []
        self.missing: dict[str, str] = {}

    async def start(self) -> None:
        await self.server.start()
        self.own = await connect(self.site.endpoint(RouterRole(self.name), self.server.url))
        await ensure_streams(self.own, SMALL)
        await ensure_lanes(self.own, [], self.site.clients)
        self.log = OutLog(self.own)
        await self.log.load()
        await self.own.subscribe("ramify.control.*", cb=self._answer)

    async def stop(self) -> None:
        await self.own.close()
        await self.server.stop()

    def seed(self, name: str) -> str:
        return self.site.ring.pair(ClientRole(name)).seed

    def client(self, name: str = "alice", **options: object) -> PendingClient:
        return Client.connect(name, self.server.url, seed=self.seed(name), **options)  # type: ignore[arg-type]

    async def deliver(self, ids: list[str], *events: str, client: str = "alice") -> None:
        """Put events, named by their ids, on a client's lane."""
        batch = events_to_batch([Event(name, "p", attributes={"x": 1}) for name in events])
        await self.write(client, encode_events(batch), {"F": json.dumps(ids), "N": str(len(events))})

    async def write(self, client: str, payload: bytes, headers: dict[str, str]) -> None:
        await self.log.commit([Output(f"{DELIVER}.{token(client)}", payload, headers)], {})

    async def suspend(self, client: str = "alice", reason: str = "quota") -> None:
        """As a broker does it: the last word on the lane, and all before it gone."""
        await self.write(client, b"", {"X": reason})
        await self.log.purge(f"{DELIVER}.{token(client)}", self.log.last)

    async def consumer(self, client: str = "alice") -> dict[str, object]:
        return await api(self.own, f"CONSUMER.INFO.OUT.client_{token(client)}", {})

    async def until(self, holds: Callable[[dict[str, object]], bool], client: str = "alice") -> None:
        async with asyncio.timeout(240):
            while not holds(await self.consumer(client)):
                await asyncio.sleep(0.02)

    async def published(self) -> list[tuple[str, bytes, dict[str, str]]]:
        """Subject, payload and headers of what clients published."""
        info = await api(self.own, "STREAM.INFO.IN", {})
        found = []
        for seq in range(1, int(info["state"]["last_seq"]) + 1):
            told = (await api(self.own, "STREAM.MSG.GET.IN", {"seq": seq}))["message"]
            lines = base64.b64decode(told.get("hdrs", "")).decode().split("\r\n")[1:]
            headers = dict(line.split(": ", 1) for line in lines if line)
            found.append((told["subject"], base64.b64decode(told.get("data", "")), headers))
        return found

    async def _answer(self, message: Msg) -> None:
        request = decode(message.data, Request)
        if request.op == "offer":
            return  # nobody is asked to move here
        if request.op == "where":
            await message.respond(encode(Answer(ok=True, place=self.place)))
            return
        self.asked.append(request)
        answer = self.instead.pop(0) if self.instead else self._usual(message.subject, request)
        if answer is not None:
            await message.respond(encode(answer))

    def _usual(self, subject: str, request: Request) -> Answer:
        name = name_of(subject.rsplit(".", 1)[1])
        record = self.records.setdefault(name, ClientRecord(name, self.name))
        key = f"{name}/{request.id}"
        if request.op == "subscribe":
            there = record.subscriptions.get(key)
            assert request.filter is not None
            if there is not None and there.filter != request.filter:
                return Answer(error=Refusal("exists", f"{request.id} has another filter"))
            record.subscriptions[key] = ClientSubscription(
                request.filter, request.quota_bytes, request.lease_s
            )
        if request.op in ("unsubscribe", "unadvertise"):
            kept: dict[str, ClientSubscription] | dict[str, Advertisement] = record.subscriptions
            kept = kept if request.op == "unsubscribe" else record.advertisements
            if kept.pop(key, None) is None:
                return Answer(error=Refusal("unknown", f"there is no {request.id}"))
        if request.op == "advertise":
            assert request.filter is not None
            record.advertisements[key] = Advertisement(request.filter)
        return Answer(ok=True, revision=len(self.asked), missing=self.missing, client=record)


@asynccontextmanager
async def lane_server(directory: Path) -> AsyncIterator[LaneServer]:
    made = LaneServer(directory)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
