"""The simulated server does what a real one does: the same calls, through the same client, on both."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.output import Output
from ramify.overlay.live.broker.log import OutLog
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.connection import TRANSPORT
from ramify.overlay.live.wire.security import CoordinatorRole, RouterRole, accounts_config
from ramify.overlay.live.wire.store import INITIAL, ConflictError, Lease, Store
from ramify.overlay.live.wire.streams import (
    Endpoint,
    Sizes,
    api,
    connect,
    disconnect,
    ensure_lanes,
    ensure_streams,
)
from ramify.overlay.live.wire.tasks import run_to_end
from simulation.clock import simulated
from simulation.network import Network
from simulation.server import SimulatedServer

SIZES = Sizes(published=1 << 20, out=1 << 20, rejected=1 << 20, samples=1 << 20)


class Notes(list[Any]):
    """What a server said, without what differs by nature: times, names of servers, inboxes."""

    def told(self, answer: Msg) -> None:
        self.append(json.loads(answer.data) if answer.data else b"")

    def came(self, message: Msg) -> None:
        reply = (
            re.sub(r"\.\d{19}\.", ".time.", message.reply) if message.reply.startswith("$JS.ACK") else ""
        )
        headers = dict(message.headers or {})
        headers.pop("Nats-Time-Stamp", None)
        subject = "" if message.subject.startswith("_I") else message.subject
        self.append((subject, message.data, headers, reply))


class Inbox:
    """Pulls, and what came."""

    def __init__(self, connection: Nats) -> None:
        self.connection = connection
        self.messages: list[Msg] = []

    async def open(self) -> "Inbox":
        async def came(message: Msg) -> None:
            self.messages.append(message)

        self.subject = self.connection.new_inbox()
        self.subscription = await self.connection.subscribe(self.subject, cb=came)
        return self

    async def pull(self, path: str, **body: int) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{path}"
        await self.connection.publish(subject, json.dumps(body).encode(), reply=self.subject)

    async def until(self, count: int) -> list[Msg]:
        async with asyncio.timeout(20):
            while len(self.messages) < count:
                await asyncio.sleep(0.01)
        found, self.messages = self.messages, []
        return found


async def publish(connection: Nats, subject: str, data: bytes, **headers: str) -> Msg:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await connection.request(subject, data, timeout=5, headers=named or None)


async def info(connection: Nats, consumer: str) -> dict[str, Any]:
    told = await api(connection, f"CONSUMER.INFO.OUT.{consumer}", {})
    kept = ("delivered", "ack_floor", "num_ack_pending", "num_waiting", "num_pending", "num_redelivered")
    found = {name: told[name] for name in kept}
    for part in ("delivered", "ack_floor"):
        found[part] = {k: v for k, v in found[part].items() if k != "last_active"}
    return found


async def state(connection: Nats, stream: str) -> dict[str, Any]:
    told = (await api(connection, f"STREAM.INFO.{stream}", {}))["state"]
    return {k: told[k] for k in ("messages", "first_seq", "last_seq", "consumer_count", "bytes")}


async def publishes(nc: Nats, notes: Notes) -> None:
    await ensure_streams(nc, SIZES)
    notes.append(sorted((await api(nc, "STREAM.NAMES", {}))["streams"]))
    notes.told(await publish(nc, "ramify.publish.a", b"one", Nats_Msg_Id="1"))
    notes.told(await publish(nc, "ramify.publish.a", b"one", Nats_Msg_Id="1"))
    notes.told(await publish(nc, "ramify.publish.b", b"two"))
    notes.told(await publish(nc, "out.log", b"x", Nats_Expected_Last_Sequence="0", S="a"))
    notes.told(await publish(nc, "out.log", b"x", Nats_Expected_Last_Sequence="7"))
    notes.told(await publish(nc, "out.link.b", b"y", Nats_Expected_Last_Subject_Sequence="0"))
    notes.told(await publish(nc, "out.link.b", b"y", Nats_Expected_Last_Subject_Sequence="1"))
    for wanted in ({"seq": 1}, {"last_by_subj": "out.link.b"}):
        told = (await api(nc, "STREAM.MSG.GET.OUT", wanted))["message"]
        notes.append({k: v for k, v in told.items() if k != "time"})
    notes.append(await api(nc, "STREAM.MSG.GET.OUT", {"seq": 99}, missing=10037))
    notes.append(await api(nc, "STREAM.INFO.NONE", {}, missing=10059))
    notes.append(await state(nc, "OUT"))
    notes.append(await state(nc, "IN"))
    direct = await nc.request("$JS.API.DIRECT.GET.OUT.out.log", b"", timeout=5)
    notes.came(direct)
    missing = await nc.request("$JS.API.DIRECT.GET.OUT.out.deliver.none", b"", timeout=5)
    notes.append(missing.headers)


async def batches(nc: Nats, notes: Notes) -> None:
    await ensure_streams(nc, SIZES)
    log = OutLog(nc)
    await log.load()
    await log.claim()
    await log.commit(
        [Output("out.link.b", b"1"), Output("out.deliver.c", b"2"), Output("out.link.b", b"3")], {"*": 4}
    )
    # numbers of a log that is claimed begin with the clock's
    link, client = await log.number("out.link.b"), await log.number("out.deliver.c")
    notes.append((log.last, link - client))
    other = OutLog(nc)
    notes.append(dict((await other.load()).positions))
    batch = {"Nats_Batch_Id": "b1", "Nats_Batch_Sequence": "1", "Nats_Expected_Last_Sequence": "1"}
    await nc.publish("out.link.b", b"a", headers={k.replace("_", "-"): v for k, v in batch.items()})
    ends = {"Nats_Batch_Id": "b1", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}
    notes.told(await publish(nc, "out.link.b", b"b", **ends))
    # a hole in a batch
    first = {"Nats_Batch_Id": "b2", "Nats_Batch_Sequence": "1"}
    notes.told(await publish(nc, "out.link.b", b"a", **first))
    ends = {"Nats_Batch_Id": "b2", "Nats_Batch_Sequence": "3", "Nats_Batch_Commit": "1"}
    notes.told(await publish(nc, "out.link.b", b"b", **ends))
    ends = {"Nats_Batch_Id": "b3", "Nats_Batch_Sequence": "1", "Nats_Batch_Commit": "1"}
    told = json.loads((await publish(nc, "out.log", b"b", **ends)).data)
    notes.append((told.get("seq"), told.get("count"), told.get("error")))
    notes.append(await state(nc, "OUT"))


async def lanes(nc: Nats, notes: Notes) -> None:
    await ensure_streams(nc, SIZES)
    await ensure_lanes(nc, ["b"], ["c"])
    inbox = await Inbox(nc).open()
    for i in range(6):
        await publish(nc, "out.link.b", b"%d" % i, L=str(i + 1))
        await publish(nc, "out.log", b"")
    notes.append(await info(nc, "link_b"))
    await inbox.pull("OUT.link_b", batch=4, max_bytes=1 << 20, expires=10**9)
    came = await inbox.until(4)
    for message in came:
        notes.came(message)
    notes.append(await info(nc, "link_b"))
    await nc.publish(came[1].reply, b"+ACK")
    await nc.flush()
    notes.append(await info(nc, "link_b"))
    # all of it, and the request ends
    await inbox.pull("OUT.link_b", batch=9, max_bytes=1 << 20, expires=int(0.3 * 10**9))
    for message in await inbox.until(3):
        notes.came(message)
    notes.append(await info(nc, "link_b"))
    # a reset goes back to what was acknowledged
    answer = await nc.request("$JS.API.CONSUMER.RESET.OUT.link_b", b"", timeout=5)
    notes.append("error" in json.loads(answer.data))
    notes.append(await info(nc, "link_b"))
    await inbox.pull("OUT.link_b", batch=2, max_bytes=1 << 20, expires=10**9)
    came = await inbox.until(2)
    for message in came:
        notes.came(message)
    # a request for too few bytes
    await inbox.pull("OUT.link_b", batch=2, max_bytes=10, expires=10**9)
    notes.append([m.headers and m.headers.get("Status") for m in await inbox.until(1)])
    # an old acknowledgement changes nothing
    await nc.publish(came[1].reply, b"+ACK")
    await nc.publish(came[0].reply, b"+ACK")
    await nc.flush()
    notes.append(await info(nc, "link_b"))
    # purging what was read, and more than that
    told = await api(nc, "STREAM.PURGE.OUT", {"filter": "out.link.b", "seq": 6})
    notes.append(told["purged"])
    notes.append(await info(nc, "link_b"))
    told = await api(nc, "STREAM.PURGE.OUT", {"filter": "out.link.b", "seq": 11})
    notes.append(told["purged"])
    notes.append(await info(nc, "link_b"))
    notes.append(await state(nc, "OUT"))
    await inbox.pull("OUT.link_b", batch=2, max_bytes=1 << 20, expires=int(0.3 * 10**9))
    for message in await inbox.until(2):
        notes.came(message)
    # nothing there, no wait
    await inbox.pull("OUT.client_c", batch=1, no_wait=True)  # type: ignore[arg-type]
    notes.append([m.headers and m.headers.get("Status") for m in await inbox.until(1)])
    told = await api(nc, "STREAM.INFO.OUT", {"subjects_filter": "out.*.*"})
    notes.append((told["state"]["subjects"], told["total"]))


async def full(nc: Nats, notes: Notes) -> None:
    await ensure_streams(nc, Sizes(published=10_000, out=10_000, rejected=10_000, samples=10_000))
    for _ in range(12):
        told = json.loads((await publish(nc, "out.link.b", b"x" * 1_000)).data)
        notes.append((told.get("seq"), told.get("error")))
    await api(nc, "STREAM.PURGE.OUT", {"filter": "out.link.b", "seq": 4})
    told = json.loads((await publish(nc, "out.link.b", b"x" * 1_000)).data)
    notes.append((told.get("seq"), told.get("error")))
    ends = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}
    await nc.publish("out.link.b", b"x" * 9_000, headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"})
    told = json.loads((await publish(nc, "out.link.b", b"x" * 9_000, **ends)).data)
    notes.append((told.get("seq"), told.get("error")))
    for i in range(12):
        told = json.loads((await publish(nc, "rejected.b", b"x" * 1_000)).data)
        notes.append((told.get("seq"), (await state(nc, "REJECTED"))["messages"] if i > 8 else None))


async def core(nc: Nats, notes: Notes) -> None:
    try:
        await nc.request("nobody.there", b"", timeout=2)
    except Exception as error:
        notes.append(type(error).__name__)

    async def answer(message: Msg) -> None:
        await message.respond(message.data + b"!")

    subscription = await nc.subscribe("asked.*", cb=answer)
    notes.append((await nc.request("asked.x", b"a", timeout=2)).data)
    await subscription.unsubscribe()
    await nc.flush()
    try:
        await nc.request("asked.x", b"a", timeout=2)
    except Exception as error:
        notes.append(type(error).__name__)


async def control(endpoint: Endpoint, notes: Notes) -> None:
    """A store and its watches, of which leases and their end are part."""
    store = await Store.connect(endpoint)
    revisions: list[int] = [await store.put("a.x", b"1"), await store.put("a.y", b"2")]
    revisions.append(await store.put("a.x", b"3", revisions[0]))
    for revision in (revisions[0], None):
        try:
            await store.put("a.x", b"4", revision)
        except ConflictError as error:
            notes.append(str(error))
    notes.append((revisions, await store.get("a.x"), await store.get("a.z"), await store.keys("a")))
    seen: list[Any] = []

    async def watch() -> None:
        async for change in store.watch("a"):
            news = "initial" if change is INITIAL else (change.key, change.value, change.revision)
            seen.append(news)

    watching = asyncio.create_task(watch())

    async def until(count: int) -> None:
        async with asyncio.timeout(30):
            while len(seen) < count:
                await asyncio.sleep(0.02)

    await until(3)
    await store.delete("a.y")
    await until(4)
    lease = Lease(store, "a.lease", "me", 1)
    other = Lease(store, "a.lease", "you", 1)
    notes.append((await lease.take(), await other.take(), await lease.renew()))
    # nobody renews it: the server lets it go, and says so
    await until(7)
    notes.append((await other.take(), await lease.renew()))
    await other.release()
    await until(9)
    notes.append(
        [each if each == "initial" else (each[0], each[1] and each[1][:10], each[2]) for each in seen]
    )
    await store.put_large("big", b"x" * 2_000_000)
    found = await store.get_large("big")
    notes.append(found and (len(found[0]), found[1]))
    notes.append(await state_of_store(store))
    watching.cancel()
    await store.close()


async def joined(endpoint: Endpoint, notes: Notes) -> None:
    """A store as those see it who watch by notices."""
    early = await Store.join(endpoint)
    notes.append((await early.get("b.x"), await early.values("b"), await early.count("b")))
    store = await Store.connect(endpoint)
    revisions = [await store.put(f"b.{i}", str(i).encode()) for i in range(3)]
    seen: list[Any] = []

    async def watch() -> None:
        async for change in early.watch("b"):
            news = "initial" if change is INITIAL else (change.key, change.value, change.revision)
            seen.append(news)

    async def until(count: int) -> None:
        async with asyncio.timeout(30):
            while len(seen) < count:
                await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    await until(4)
    await early.put("b.1", b"new", revisions[1])
    await until(5)
    await store.delete("b.2")
    await until(6)
    notes.append((seen, await early.values("b"), await early.count("b"), await early.keys("b")))
    watching.cancel()
    for each in (early, store):
        await each.close()


async def state_of_store(store: Store) -> Any:
    told = await api(store._nats, "STREAM.INFO.KV_CTL", {})
    return {k: told["state"][k] for k in ("messages", "first_seq", "last_seq", "num_subjects")}


async def with_connection(script: Any, endpoint: Endpoint, notes: Notes) -> None:
    if script in STORES:
        await script(endpoint, notes)
        return
    connection = await connect(endpoint)
    await script(connection, notes)
    await disconnect(connection)


STORES = (control, joined)
SCRIPTS = [publishes, batches, lanes, full, core, *STORES]


def simulation_of(script: Any) -> Notes:
    notes = Notes()
    with simulated(1) as loop:
        network = Network(loop, loop.rng)
        server = SimulatedServer("s", 1, network, loop.rng)
        before = TRANSPORT.set(network.transport)
        try:
            loop.run_until_complete(with_connection(script, Endpoint(server.url), notes))
        finally:
            TRANSPORT.reset(before)
    return notes


def reality_of(script: Any, directory: Path) -> Notes:
    notes = Notes()

    async def main() -> None:
        site = BrokerSite(Overlay.build("one", ["s"], []), directory, {}, SIZES)
        role: RouterRole | CoordinatorRole = RouterRole("s")
        if script in STORES:
            role = CoordinatorRole("s")
            hub, user = site.ring.pair(RouterRole(".control")).public, site.ring.pair(role).public
            accounts = accounts_config(hub, {}, {}, {role: user})
            server = Server(ServerConfig(".control", directory / "control", accounts))
        else:
            server = site.server("s")
        await server.start()
        try:
            await with_connection(script, site.endpoint(role, server.url), notes)
        finally:
            await server.stop()

    run_to_end(main())
    return notes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_servers_say_the_same(script: Any, tmp_path: Path) -> None:
    ours, theirs = simulation_of(script), reality_of(script, tmp_path)
    for place, (mine, real) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == real, f"note {place}"
    assert len(ours) == len(theirs)
