"""Bad input, end to end: a clear error, or the stream REJECTED with the reason; and the broker lives on."""

import asyncio
import base64
import contextlib
import json
import os
import random
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client as Nats

from any_json import any_text, any_value, is_sound
from machines import LIMITS, machine_of, small_line, started
from ramify.errors import FilterError, InputError, LimitError, LiveError
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE, EVENT_TYPE
from ramify.overlay.control.names import inbox_prefix
from ramify.overlay.control.records import Answer, decode
from ramify.overlay.control.rejects import LINES_TYPE
from ramify.overlay.live.client.client import Client, LiveSubscription, RefusedError, RefusedFilterError
from ramify.overlay.live.wire.security import ClientRole, RouterRole
from ramify.overlay.live.wire.streams import Endpoint, api, connect, ensure_lanes, ensure_streams
from ramify.overlay.routing.headers import Header, HeaderKind
from ramify.planning.schemes.catalog import make_plan
from raw_messages import BAD_MESSAGES, send_raw
from running import Running, seeded_world

GOOD = {"specversion": "1.0", "id": "g", "source": "shop", "type": "order", "x": 1}


class Place:
    """An overlay of two brokers that runs on: alice and bob at one end, carol at the other."""

    def __init__(self, runner: asyncio.Runner, path: Path) -> None:
        self.runner, self.path = runner, path
        self.machine = machine_of(path, small_line(2), {"alice": "v0", "bob": "v0", "carol": "v1"})
        self.number = 0
        self.clients: dict[str, Client] = {}
        self.carols: LiveSubscription

    async def open(self) -> None:
        self.clients = {name: await Client.at(self.path, name) for name in ("alice", "bob", "carol")}
        self.carols = await self.clients["carol"].subscribe("type = 'good'", id="good", wait_s=60)
        await self.is_well()

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()

    async def is_well(self) -> None:
        """A good event of alice reaches carol, over the link."""
        self.number += 1
        event = {**GOOD, "id": f"well{self.number}", "type": "good"}
        await self.clients["alice"].publish(event)
        async with asyncio.timeout(240):
            assert (await anext(self.carols)).id == f"well{self.number}"

    @contextlib.asynccontextmanager
    async def raw(self, client: str, denied: list[str] | None = None) -> AsyncIterator[Nats]:
        """A plain connection with a client's key."""

        async def error(found: Exception) -> None:
            if denied is not None:
                denied.append(str(found))

        ring = self.machine.directory.ring
        connection = await nats.connect(
            self.machine.urls[self.machine.directory.clients()[client]],
            nkeys_seed_str=ring.pair(ClientRole(client)).seed,
            inbox_prefix=inbox_prefix("client", client).encode(),
            error_cb=error,
        )
        try:
            yield connection
        finally:
            await connection.close()

    async def publish_raw(
        self, payload: bytes, kind: str | None = None, more: Mapping[str, str] | None = None
    ) -> int:
        headers = {"Nats-Msg-Id": os.urandom(8).hex()} | ({} if kind is None else {"Content-Type": kind})
        headers |= more or {}
        async with self.raw("alice") as connection:
            answer = await connection.request("ramify.publish.alice", payload, timeout=60, headers=headers)
        return int(json.loads(answer.data)["seq"])

    async def rejected(self, position: int) -> dict[str, str]:
        """The headers of the entry about alice's publish at a position; waits for it."""
        return await rejected_at(self.machine.urls["v0"], self.machine.directory.ring, "v0", position)

    async def names(self, positions: set[int]) -> None:
        """Waits until the stream REJECTED has entries about all of these, alone or on pages of many."""
        role, named, after = RouterRole("v0"), set[int](), 0
        seed = self.machine.directory.ring.pair(role).seed
        connection = await connect(Endpoint(self.machine.urls["v0"], seed, role.inbox_prefix, "test"))
        try:
            async with asyncio.timeout(240):
                while not named >= positions:
                    state = (await api(connection, "STREAM.INFO.REJECTED", {}))["state"]
                    for sequence in range(after + 1, int(state["last_seq"]) + 1):
                        told = (await api(connection, "STREAM.MSG.GET.REJECTED", {"seq": sequence}))[
                            "message"
                        ]
                        headers = base64.b64decode(told["hdrs"]).decode()
                        if LINES_TYPE in headers:
                            page = base64.b64decode(told["data"]).splitlines()
                            named |= {int(json.loads(line)["position"]) for line in page}
                        else:
                            named.add(int(re.search(r"Position: ?(\d+)", headers)[1]))  # type: ignore[index]
                        after = sequence
                    await asyncio.sleep(0.1)
        finally:
            await connection.close()

    async def ask(self, data: bytes) -> Answer:
        async with self.raw("alice") as connection:
            answer = await connection.request("ramify.control.alice", data, timeout=240)
        return decode(answer.data, Answer)


async def rejected_at(url: str, ring: Any, broker: str, position: int) -> dict[str, str]:
    role = RouterRole(broker)
    connection = await connect(Endpoint(url, ring.pair(role).seed, role.inbox_prefix, "test"))
    try:
        async with asyncio.timeout(240):
            while True:
                state = (await api(connection, "STREAM.INFO.REJECTED", {}))["state"]
                for sequence in range(max(1, int(state["first_seq"])), int(state["last_seq"]) + 1):
                    told = await api(connection, "STREAM.MSG.GET.REJECTED", {"seq": sequence})
                    lines = base64.b64decode(told["message"]["hdrs"]).decode().split("\r\n")[1:]
                    pairs = (line.partition(":") for line in lines if line)
                    found = {name: value.strip() for name, _, value in pairs}
                    if found["Position"] == str(position):
                        return found
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        made = Place(runner, tmp_path_factory.mktemp("bad"))
        running = started(made.machine)
        runner.run(running.__aenter__())
        stack.callback(lambda: runner.run(running.__aexit__(None, None, None)))
        runner.run(made.open())
        stack.callback(lambda: runner.run(made.close()))
        yield made


# --------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize(
    ("payload", "kind", "reason"),
    [
        (b"{not json", None, "not_json"),
        (b"\xff\xfe\x00", EVENT_TYPE, "bad_utf8"),
        (b'{"a": 1}', EVENT_TYPE, "bad_cloudevent"),
        (b'[{"a": 1}]', BATCH_TYPE, "bad_cloudevent"),
        (json.dumps({**GOOD, "id": ""}).encode(), EVENT_TYPE, "no_id"),
        (b"[" * 100_000, EVENT_TYPE, "too_deep"),
        (b"ARROW1\0\0garbage", ARROW_TYPE, "bad_arrow"),
        (b"", ARROW_TYPE, "bad_arrow"),
        (json.dumps({**GOOD, "data": "x" * LIMITS.max_event_bytes}).encode(), EVENT_TYPE, "too_large"),
        (b"x", "text/plain", "content_type"),
    ],
)
def test_what_is_no_event_is_rejected_with_the_reason(
    place: Place, payload: bytes, kind: str | None, reason: str
) -> None:
    async def scenario() -> None:
        position = await place.publish_raw(payload, kind)
        found = await place.rejected(position)
        assert found["Reason"] == reason, found
        assert found["Detail"]
        await place.is_well()

    place.runner.run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [("Status", "100"), ("Status", "404"), ("Status", "409"), ("L", "99999"), ("S", "*:7"), ("G", "*:9")]
    + [(name, "0") for name in "AEFHNPWX"],
)
def test_a_header_of_a_client_means_nothing_to_a_broker(place: Place, name: str, value: str) -> None:
    """Whatever brokers and servers use headers for, clients can write them too."""

    async def scenario() -> None:
        place.number += 1
        event = {**GOOD, "id": f"well{place.number}", "type": "good"}
        await place.publish_raw(json.dumps(event).encode(), EVENT_TYPE, {name: value})
        async with asyncio.timeout(240):
            assert (await anext(place.carols)).id == f"well{place.number}"
        await place.is_well()

    place.runner.run(scenario())


@pytest.mark.parametrize("subject", [b"ramify.publish.alice", b"ramify.control.alice"])
def test_no_header_stops_a_broker(place: Place, subject: bytes) -> None:
    """Nor a reply that is no text: the library's reader would end, and the router be deaf."""

    async def scenario() -> None:
        async with place.raw("alice") as connection:
            for block, reply in BAD_MESSAGES:
                await send_raw(connection, subject, block, reply, json.dumps(GOOD).encode())
        await place.is_well()

    place.runner.run(scenario())


def test_every_event_that_is_rejected_is_kept(place: Place) -> None:
    """Also those of one message with one reason, and those with ids that no header can hold."""

    async def scenario() -> None:
        url, ring, role = place.machine.urls["v0"], place.machine.directory.ring, RouterRole("v0")
        connection = await connect(Endpoint(url, ring.pair(role).seed, role.inbox_prefix, "test"))

        async def kept() -> int:
            return int((await api(connection, "STREAM.INFO.REJECTED", {}))["state"]["messages"])

        try:
            before = await kept()
            await place.publish_raw(b'[1, 2, "x", null, 1]', BATCH_TYPE)
            twice = {**GOOD, "id": "y" * 100_000}
            await place.publish_raw(json.dumps([twice, twice, twice]).encode(), BATCH_TYPE)
            async with asyncio.timeout(240):
                while await kept() < before + 5 + 2:
                    await asyncio.sleep(0.05)
            await place.is_well()
            assert await kept() == before + 5 + 2
        finally:
            await connection.close()

    place.runner.run(scenario())


def test_any_json_that_is_acknowledged_is_delivered_or_was_named_before(place: Place) -> None:
    """Through the client, all at once: what it does not refuse arrives over the link as it was sent."""
    rng = random.Random(15)
    made = {
        f"any{k}": {**GOOD, "id": f"any{k}", "type": "any", "data": any_value(rng, faults=0.02)}
        for k in range(400)
    }
    taken: set[str] = set()
    said: dict[str, str] = {}
    got: dict[str, Any] = {}

    async def publish(name: str) -> None:
        try:
            await place.clients["alice"].publish(made[name])
        except InputError as error:
            said[name] = str(error)
        else:
            taken.add(name)

    async def scenario() -> None:
        wanted = await place.clients["carol"].subscribe("type = 'any'", id="any", wait_s=60)
        await asyncio.gather(*map(publish, made))
        async with asyncio.timeout(240):
            async for event in wanted:
                assert event.id not in got
                got[event.id] = json.loads(event.body or b"null")
                if got.keys() >= taken:
                    break
        await place.clients["carol"].unsubscribe("any", wait_s=60)
        await place.is_well()

    place.runner.run(scenario())
    assert taken == {name for name, event in made.items() if is_sound(json.dumps(event).encode())}
    assert got == {name: made[name]["data"] for name in taken}
    assert said.keys() == made.keys() - taken
    assert all(name in text for name, text in said.items())
    assert 0 < len(taken) < len(made)


def test_any_bytes_that_are_acknowledged_are_delivered_or_named(place: Place) -> None:
    """Past the client: single events in JSON, as whatever program writes them."""
    rng = random.Random(16)
    made: list[tuple[bytes, Any]] = []
    for k in range(400):
        data = any_value(rng, faults=0.02)
        made.append((any_text(rng, {**GOOD, "id": f"raw{k}", "type": "raw"}, data), data))
    due = {k for k, (raw, _) in enumerate(made) if is_sound(raw)}
    got: dict[str, bytes | None] = {}
    positions: dict[int, int] = {}

    async def scenario() -> None:
        wanted = await place.clients["carol"].subscribe("type = 'raw'", id="raw", wait_s=60)
        async with place.raw("alice") as connection:

            async def publish(k: int) -> None:
                headers = {"Nats-Msg-Id": f"raw{k}", "Content-Type": EVENT_TYPE}
                answer = await connection.request(
                    "ramify.publish.alice", made[k][0], timeout=60, headers=headers
                )
                positions[k] = int(json.loads(answer.data)["seq"])

            await asyncio.gather(*map(publish, range(len(made))))
        assert len(positions) == len(made)
        async with asyncio.timeout(240):
            async for event in wanted:
                assert event.id not in got
                got[event.id] = event.body
                if len(got) == len(due):
                    break
        await place.names({positions[k] for k in set(positions) - due})
        await place.clients["carol"].unsubscribe("raw", wait_s=60)
        await place.is_well()

    place.runner.run(scenario())
    assert got.keys() == {f"raw{k}" for k in due}
    for k in due:
        body = got[f"raw{k}"]
        assert body is not None
        assert body in made[k][0]
    assert 0 < len(due) < len(made)


def test_what_is_too_large_for_the_wire_is_an_error_at_the_client(place: Place) -> None:
    async def scenario() -> None:
        with pytest.raises(LimitError, match="'big' has"):
            await place.clients["alice"].publish({**GOOD, "id": "big", "data": "x" * (2 << 20)})
        async with place.raw("alice") as connection:
            with pytest.raises(nats.errors.MaxPayloadError):
                await connection.publish("ramify.publish.alice", b"x" * ((8 << 20) + 1))
        await place.is_well()

    place.runner.run(scenario())


# ------------------------------------------------------------------------------------------------- requests

TERMS = " OR ".join(f"x = {k}" for k in range(100_000))


@pytest.mark.parametrize(
    ("request_", "codes"),
    [
        (b"not json", {"bad_request"}),
        (b"[]", {"bad_request"}),
        (b'{"op": "reboot"}', {"bad_request"}),
        (b'{"op": "subscribe", "id": "s", "filter": {"sql": "x = 1"}, "sudo": true}', {"bad_request"}),
        (b'{"op": "subscribe", "id": "s"}', {"bad_request"}),
        (b'{"op": "subscribe", "filter": {"sql": "x = 1"}}', {"bad_request"}),
        (b'{"op": "subscribe", "id": "s", "filter": {"sql": 7}}', {"bad_request"}),
        (b'{"op": "list", "id": "' + b"x" * (1 << 20) + b'"}', {"limit"}),
        (b'{"op": ' * 50_000, {"bad_request", "limit"}),
        (b'{"op": "subscribe", "id": "s", "filter": {"pattern": ' + b"[" * 50_000, {"bad_request"}),
    ],
)
def test_a_request_that_is_none_is_answered_with_why(
    place: Place, request_: bytes, codes: set[str]
) -> None:
    async def scenario() -> None:
        answer = await place.ask(request_)
        assert not answer.ok
        assert answer.error is not None
        assert answer.error.code in codes, answer.error
        assert answer.error.reason
        await place.is_well()

    place.runner.run(scenario())


@pytest.mark.parametrize(
    ("filter_", "codes"),
    [
        ({"sql": "price < UPPER('x')"}, {"bad_filter"}),
        ({"sql": "x ="}, {"bad_filter"}),
        ({"sql": "x = 1; DROP TABLE t"}, {"bad_filter"}),
        ({"pattern": {"x": [{"numeric": ["?", 1]}]}}, {"bad_filter"}),
        ({"keywords": []}, {"bad_filter", "bad_request"}),
        ({"sql": "(" * 5_000 + "x = 1" + ")" * 5_000}, {"bad_filter", "too_complex"}),
        ({"sql": "NOT " * 20_000 + "x = 1"}, {"bad_filter", "too_complex"}),
        ({"sql": " AND ".join(f"(a{k} = 1 OR b{k} = 2)" for k in range(300))}, {"too_complex"}),
        ({"sql": f"topic LIKE '{'%a' * 40_000}'"}, {"bad_filter", "too_complex"}),
        ({"sql": TERMS}, {"limit"}),
    ],
)
def test_a_filter_that_is_wrong_or_too_complex_is_refused(
    place: Place, filter_: dict[str, Any], codes: set[str]
) -> None:
    async def scenario() -> None:
        request = {"op": "subscribe", "id": "s", "filter": filter_}
        answer = await place.ask(json.dumps(request).encode())
        assert answer.error is not None
        assert answer.error.code in codes, answer.error.reason[:300]
        await place.is_well()

    place.runner.run(scenario())


def test_the_client_library_says_it_at_once(place: Place) -> None:
    async def scenario() -> None:
        alice = place.clients["alice"]
        with pytest.raises(FilterError):
            alice.subscribe("x =")
        with pytest.raises(LiveError, match=r"no subscription|unknown"):
            await alice.unsubscribe("never was")
        await alice.subscribe("x = 1", id="mine", wait_s=30)
        with pytest.raises(RefusedError, match="exists"):
            await alice.subscribe("x = 2", id="mine", wait_s=30)
        with pytest.raises((RefusedFilterError, FilterError, RefusedError)):
            await alice.subscribe(" AND ".join(f"(a{k} = 1 OR b{k} = 2)" for k in range(500)), id="s")
        await alice.unsubscribe("mine", wait_s=30)
        await place.is_well()

    place.runner.run(scenario())


# ------------------------------------------------------------------------------------------ as another


@pytest.mark.parametrize(
    "subject",
    [
        "ramify.publish.bob",
        "ramify.control.bob",
        "$JS.API.CONSUMER.MSG.NEXT.OUT.client_bob",
        "$JS.API.CONSUMER.RESET.OUT.client_bob",
        "$JS.API.CONSUMER.INFO.OUT.client_bob",
        "$JS.API.STREAM.PURGE.OUT",
        "$JS.API.CONSUMER.CREATE.OUT.mine",
        "$JS.ACK.OUT.client_bob.1.1.1.1.1",
        "out.deliver.bob",
        "out.link.v1",
        "rejected.alice",
    ],
)
def test_a_client_can_do_nothing_as_another(place: Place, subject: str) -> None:
    async def scenario() -> None:
        denied: list[str] = []
        async with place.raw("alice", denied) as alice:
            with pytest.raises((nats.errors.TimeoutError, nats.errors.NoRespondersError)):
                await alice.request(subject, json.dumps(GOOD).encode(), timeout=0.7)
            await alice.flush()
        assert any("permissions violation" in said.lower() for said in denied), denied
        await place.is_well()

    place.runner.run(scenario())


def test_a_client_hears_nothing_that_is_for_another(place: Place) -> None:
    async def scenario() -> None:
        bob = place.clients["bob"]
        bobs = await bob.subscribe("type = 'good'", id="bobs", wait_s=60)
        denied: list[str] = []
        heard: list[str] = []

        async def hear(message: Any) -> None:
            heard.append(message.subject)

        async with place.raw("alice", denied) as alice:
            for subject in (f"{inbox_prefix('client', 'bob')}.>", "out.>", "ramify.>", ">"):
                await alice.subscribe(subject, cb=hear)
            await alice.flush()
            await place.is_well()
            async with asyncio.timeout(240):
                assert (await anext(bobs)).id == f"well{place.number}"
            await alice.flush()
        assert not heard
        assert len([said for said in denied if "permissions violation" in said.lower()]) == 4, denied
        await bob.unsubscribe("bobs", wait_s=60)

    place.runner.run(scenario())


def test_an_unknown_key_and_anothers_name_are_refused(place: Place) -> None:
    async def scenario() -> None:
        ring = place.machine.directory.ring
        url = place.machine.urls["v1"]
        # alice is not attached there
        with pytest.raises(LiveError, match="cannot connect"):
            await Client.connect("alice", url, seed=ring.pair(ClientRole("alice")).seed, timeout_s=3)
        seed = ring.pair(ClientRole("alice")).seed
        async with Client.connect("bob", place.machine.urls["v0"], seed=seed, timeout_s=5) as fake:
            with pytest.raises(LiveError):
                await fake.publish(GOOD, give_up_s=3)
        await place.is_well()

    place.runner.run(scenario())


# ------------------------------------------------------------------------------------------ over a link


def test_frames_of_a_hostile_neighbour_are_rejected_and_good_ones_behind_arrive(
    tmp_path: Path,
) -> None:
    """v0's router is this test: it writes what it likes to the lane that v1 reads."""
    world = seeded_world(4, brokers=2, subscriptions=6, events=30)
    plan = make_plan("mult", world.problem, 1)
    here = world.overlay.index["v1"]
    readers = sorted({row.client for row in world.subscriptions if row.broker == "v1"})
    assert readers
    channel = next(c for c, ch in enumerate(plan.channels) if ch.tree is not None)
    good = Header(HeaderKind.TREE, 1 - here, 1, (channel,))

    def headers(number: object, header: bytes, epoch: object = 0, **more: str) -> dict[str, str]:
        coded = base64.b64encode(header).decode()
        return {"L": str(number), "E": str(epoch), "H": coded, "N": "1", **more}

    tree = Header(HeaderKind.CARRIED, 0, 1, (channel,), tree=b"\x02\x01\x00").encode()
    hostile: list[bytes] = [
        Header(HeaderKind.TREE, 1 - here, 1, (4711,)).encode(),
        Header(HeaderKind.TREE, 4711, 1, (channel,)).encode(),
        Header(HeaderKind.TREE, 1 - here, 255, (channel,)).encode(),
        Header(HeaderKind.LEG, 0, 1, (channel, 99), target=77).encode(),
        Header(HeaderKind.LIST, 0, 1, (channel,), destinations=(0, 99)).encode(),
        Header(HeaderKind.COPY, 0, 1, (channel,), target=1 << 30).encode(),
        Header(HeaderKind.TREE, 1 - here, 1, (channel,), label=(5, 9)).encode(),
        tree,
        tree[:-1],
        b"",
        b"\xff" * 40,
    ]

    async def scenario() -> None:
        live = Running(world.overlay, world.attachments, tmp_path)
        try:
            await asyncio.gather(*(server.start() for server in live.servers.values()))
            own = await connect(live.site.endpoint(RouterRole("v0"), live.urls["v0"]))
            await ensure_streams(own, live.site.sizes)
            await ensure_lanes(own, ["v1"], ())
            live.install(0, plan)
            live.start_broker("v1")
            await live.brokers["v1"].ready.wait()
            live.read(readers)
            events = encode_events(world.batch)
            sent = [headers(n, header) for n, header in enumerate(hostile, 1)]
            sent.append(headers(len(sent) + 1, good.encode(), epoch=77))
            sent.append({"L": str(len(sent) + 1)})
            sent.append({"L": "no number", "E": "0", "H": "?"})
            payloads = [events] * len(sent)
            bad = len(sent) - 1
            sent.append(headers(bad + 1, good.encode()))
            payloads.append(b"no arrow")
            sent.append(headers(bad + 2, good.encode()))
            payloads.append(events)
            for payload, each in zip(payloads, sent, strict=True):
                await own.request("out.link.v1", payload, timeout=60, headers=each)
            for number in range(1, bad + 2):
                found = await rejected_at(live.urls["v1"], live.site.ring, "v1", number)
                assert found["Reason"] == "bad_frame", found
                assert found["Detail"]
            mine = {row.id for row in world.subscriptions if row.broker == "v1"}
            wanted = {(e, s): 1 for e, s in world.wanted() if s in mine}
            await live.until(len(wanted))
            assert dict(live.delivered) == wanted
            assert not live.failed(), live.failed()
            await own.close()
        finally:
            await live.stop()

    with asyncio.Runner() as runner:
        runner.run(scenario())
