"""What strangers, clients and neighbours may do on a broker's server, asked of a real one; and the keys."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import nats.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as Connection
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, StreamConfig
from nats.js.errors import APIError

from ramify.errors import InputError
from ramify.overlay.control.names import token
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import (
    ClientRole,
    ControlRole,
    CoordinatorRole,
    KeyPair,
    KeyRing,
    NeighbourRole,
    Role,
    RouterRole,
    Tls,
    accounts_config,
    check_listen,
    new_user,
    pair_of,
    quote,
    tls_config,
)
from ramify.overlay.live.wire.tasks import run_to_end

ODD = "zoë *.> x"
"""A name that would break subjects if it were not made a token."""
WAIT_S = 60.0
NAMES = st.text(min_size=1, max_size=16).filter(lambda name: name.isprintable())


class World:
    """A server with its streams and consumers, and the keys of everyone."""

    def __init__(self, store: Path) -> None:
        self.ring = KeyRing(store / "keys")
        self.clients = [ClientRole("alice"), ClientRole("bob"), ClientRole(ODD)]
        self.neighbours = [NeighbourRole("b2"), NeighbourRole("b3")]
        self.router, self.leader = RouterRole("b1"), CoordinatorRole("leader")
        accounts = accounts_config(
            self.ring.pair(self.router).public,
            {n.name: self.ring.pair(n).public for n in self.neighbours},
            {c.name: self.ring.pair(c).public for c in self.clients},
            {self.leader: self.ring.pair(self.leader).public},
        )
        self.server = Server(ServerConfig("b1", store / "b1", accounts))

    @asynccontextmanager
    async def user(self, role: Role) -> AsyncIterator["Seat"]:
        seat = await connect(self.server.url, self.ring.pair(role), role.inbox_prefix)
        try:
            yield seat
        finally:
            await seat.nc.close()

    async def prepare(self) -> None:
        async with self.user(self.router) as router:
            await make_streams(router.nc)
            js = router.nc.jetstream()
            for role in (*self.clients, *self.neighbours):
                lane = f"out.{'link' if role.kind == 'link' else 'deliver'}.{role.token}"
                config = ConsumerConfig(
                    durable_name=f"{role.kind}_{role.token}", filter_subject=lane, ack_policy=AckPolicy.ALL
                )
                await js.add_consumer("OUT", config)
                for i in range(3):
                    await js.publish(lane, f"{role.name}-{i}".encode())


class Seat:
    """A connection with what the server complained about."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.nc = Connection()

    async def on_error(self, error: Exception) -> None:
        self.complaints.append(str(error).lower())

    async def refused(self, verb: str, subject: str) -> None:
        """Wait for the server's word that `subject` is not allowed."""
        await self.nc.flush()
        wanted = f'permissions violation for {verb} to "{subject}"'.lower()
        async with asyncio.timeout(WAIT_S):
            while not any(wanted in said for said in self.complaints):
                await asyncio.sleep(0.005)


async def connect(url: str, pair: KeyPair | None, prefix: str = "_INBOX") -> Seat:
    seat = Seat()
    seed = None if pair is None else pair.seed
    await seat.nc.connect(
        url, nkeys_seed_str=seed, inbox_prefix=prefix, error_cb=seat.on_error, allow_reconnect=False
    )
    return seat


async def make_streams(router: Connection) -> None:
    js = router.jetstream()
    subjects = {"IN": ["ramify.publish.*"], "OUT": ["out.link.*", "out.deliver.*", "out.log"]}
    for name, those in subjects.items():
        await js.add_stream(
            StreamConfig(name=name, subjects=those, max_bytes=1 << 24, discard=DiscardPolicy.NEW)
        )


async def state(router: Connection) -> dict[str, dict[str, int]]:
    """Messages per subject, of both streams."""
    js = router.jetstream()
    infos = {name: await js.stream_info(name, subjects_filter=">") for name in ("IN", "OUT")}
    return {name: dict(info.state.subjects or {}) for name, info in infos.items()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("security"))
    run_to_end(world.server.start())
    try:
        run_to_end(world.prepare())
        yield world
    finally:
        run_to_end(world.server.stop())


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(240):
            await scenario()

    run_to_end(bounded())


# What is allowed works.


@pytest.mark.parametrize("name", ["alice", ODD])
def test_a_client_publishes_and_gets_a_pub_ack(world: World, name: str) -> None:
    async def scenario() -> None:
        async with world.user(ClientRole(name)) as client:
            ack = await client.nc.request(f"ramify.publish.{token(name)}", b"x", timeout=WAIT_S)
            assert json.loads(ack.data)["stream"] == "IN"
            assert client.complaints == []

    play(scenario)


@pytest.mark.parametrize(
    "role", [ClientRole("alice"), ClientRole(ODD), NeighbourRole("b2")], ids=lambda r: r.kind
)
def test_its_owner_pulls_acks_resets_and_looks_at_a_lane(world: World, role: Role) -> None:
    async def scenario() -> None:
        consumer = f"{role.kind}_{role.token}"
        api = f"$JS.API.CONSUMER.%s.OUT.{consumer}"

        async with world.user(role) as reader:

            async def pull() -> list[bytes]:
                box = reader.nc.new_inbox()
                sub = await reader.nc.subscribe(box)
                ask = {"batch": 3, "max_bytes": 1 << 20, "expires": int(WAIT_S * 1e9)}
                await reader.nc.publish(api % "MSG.NEXT", json.dumps(ask).encode(), box)
                taken = [await sub.next_msg(timeout=WAIT_S) for _ in range(3)]
                await sub.unsubscribe()
                await reader.nc.request(taken[-1].reply, b"+ACK", timeout=WAIT_S)
                return [message.data for message in taken]

            async def ack_floor() -> int:
                info = await reader.nc.request(f"ramify.info.{consumer}", timeout=WAIT_S)
                return int(json.loads(info.data)["ack_floor"]["stream_seq"])

            async def reset() -> None:
                answer = json.loads(
                    (await reader.nc.request(api % "RESET", b'{"seq":1}', timeout=WAIT_S)).data
                )
                assert "error" not in answer

            async def answers(subject: str) -> int:
                box = await reader.nc.subscribe(reader.nc.new_inbox())
                for _ in range(5):
                    await reader.nc.publish(subject, b"", box.subject)
                async with asyncio.timeout(WAIT_S):
                    while box.pending_msgs < 5:
                        await asyncio.sleep(0.005)
                # time for second answers to show
                for _ in range(3):
                    await ack_floor()
                return box.pending_msgs

            expected = [f"{role.name}-{i}".encode() for i in range(3)]
            assert await answers(f"ramify.info.{consumer}") == 5
            assert await answers(api % "RESET") == 5
            await reset()
            before = await ack_floor()
            assert await pull() == expected
            assert await ack_floor() > before
            await reset()
            assert await pull() == expected
            assert reader.complaints == []

    play(scenario)


def test_a_control_request_reaches_the_router_and_is_answered(world: World) -> None:
    async def scenario() -> None:
        async with world.user(world.router) as router, world.user(ClientRole("alice")) as alice:
            requests = await router.nc.subscribe("ramify.control.*")
            await router.nc.flush()
            asked = asyncio.create_task(alice.nc.request("ramify.control.alice", b"{}", timeout=WAIT_S))
            request = await requests.next_msg(timeout=WAIT_S)
            assert request.subject == "ramify.control.alice"
            await request.respond(b"done")
            assert (await asked).data == b"done"

    play(scenario)


def test_control_users_keep_their_own_buckets_and_see_no_stream_of_the_broker(world: World) -> None:
    async def scenario() -> None:
        async with world.user(world.leader) as leader:
            js = leader.nc.jetstream()
            bucket = await js.create_key_value(bucket="CTL")
            await bucket.put("plan", b"1")
            assert (await bucket.get("plan")).value == b"1"
            with pytest.raises(APIError):
                await js.stream_info("OUT")

    play(scenario)


# What is not allowed is refused.


def test_strangers_are_refused(world: World) -> None:
    async def scenario() -> None:
        for pair in (None, new_user()):
            with pytest.raises(nats.errors.Error, match=r"(?i)authorization violation"):
                await connect(world.server.url, pair)

    play(scenario)


FORBIDDEN = [
    "ramify.publish.bob",
    "ramify.publish.alice.more",
    "ramify.control.bob",
    "$JS.API.CONSUMER.MSG.NEXT.OUT.client_bob",
    "$JS.API.CONSUMER.MSG.NEXT.OUT.link_b2",
    "$JS.API.CONSUMER.MSG.NEXT.IN.router",
    "$JS.API.CONSUMER.RESET.OUT.client_bob",
    "$JS.API.CONSUMER.INFO.OUT.client_bob",
    "ramify.info.client_bob",
    "$JS.ACK.OUT.client_bob.1.1.1.1.0",
    "_I.client_bob.box",
    "out.link.b2",
    "out.deliver.alice",
    "out.log",
    "$JS.API.STREAM.MSG.GET.OUT",
    "$JS.API.DIRECT.GET.OUT",
    "$JS.API.STREAM.INFO.OUT",
    "$JS.API.STREAM.PURGE.OUT",
    "$JS.API.STREAM.DELETE.OUT",
    "$JS.API.CONSUMER.CREATE.OUT.mine",
    "$JS.API.CONSUMER.CREATE.OUT.mine.out.deliver.bob",
    "$JS.API.CONSUMER.DURABLE.CREATE.OUT.client_alice",
    "$JS.API.CONSUMER.DELETE.OUT.client_alice",
    "$KV.CTL.plan",
    "$SYS.REQ.SERVER.PING",
]


@pytest.mark.parametrize("subject", FORBIDDEN)
def test_a_client_may_not_publish_to(world: World, subject: str) -> None:
    async def scenario() -> None:
        async with world.user(world.router) as router, world.user(ClientRole("alice")) as alice:
            before = await state(router.nc)
            await alice.nc.publish(subject, b"{}", alice.nc.new_inbox())
            await alice.refused("publish", subject)
            assert await state(router.nc) == before

    play(scenario)


@pytest.mark.parametrize(
    "subject",
    [
        "ramify.publish.b2",
        "ramify.control.b2",
        "$JS.API.CONSUMER.MSG.NEXT.OUT.link_b3",
        "$JS.ACK.OUT.link_b3.1.1.1.1.0",
        "$JS.API.CONSUMER.CREATE.OUT.mine",
        "$JS.API.STREAM.MSG.GET.OUT",
        "out.link.b3",
    ],
)
def test_a_neighbour_may_not_publish_to(world: World, subject: str) -> None:
    async def scenario() -> None:
        async with world.user(NeighbourRole("b2")) as neighbour:
            await neighbour.nc.publish(subject, b"{}", neighbour.nc.new_inbox())
            await neighbour.refused("publish", subject)

    play(scenario)


@pytest.mark.parametrize(
    "subject", [">", "_I.>", "_I.client_bob.>", "_I.*.box", "out.>", "ramify.publish.*", "_R_.>", "$KV.>"]
)
def test_a_client_may_not_listen_to(world: World, subject: str) -> None:
    async def scenario() -> None:
        async with world.user(ClientRole("alice")) as alice:
            await alice.nc.subscribe(subject)
            await alice.refused("subscription", subject)

    play(scenario)


async def trick(client: Connection, reply: str) -> None:
    """Publish with a reply subject of the client's choice, and return when that was answered."""
    await client.publish("ramify.publish.alice", b"x", reply)
    await client.request("ramify.publish.alice", b"x", timeout=WAIT_S)


def test_in_one_account_a_pub_ack_lands_in_out(tmp_path: Path) -> None:
    """Why there are two accounts: the trick below works without them."""
    router, alice = new_user(), new_user()
    rights = 'permissions: {publish: ["ramify.publish.alice"], subscribe: ["_I.client_alice.>"]}'
    users = f"{{nkey: {router.public}}}, {{nkey: {alice.public}, {rights}}}"
    server = Server(
        ServerConfig("b1", tmp_path, f"accounts {{ ONE {{ jetstream: enabled, users: [{users}] }} }}")
    )

    async def scenario() -> None:
        await server.start()
        try:
            one = await connect(server.url, router)
            two = await connect(server.url, alice, "_I.client_alice")
            await make_streams(one.nc)
            await trick(two.nc, "out.link.x")
            assert (await state(one.nc))["OUT"] == {"out.link.x": 1}
            await one.nc.close()
            await two.nc.close()
        finally:
            await server.stop()

    play(scenario)


def test_an_answer_cannot_be_steered_into_a_stream_or_a_service(world: World) -> None:
    """The PubAck goes wherever the reply says, in EDGE: not into OUT, not into IN as another's publish, not
    to the router as another's request."""

    async def scenario() -> None:
        async with world.user(world.router) as router, world.user(ClientRole("alice")) as alice:
            requests = await router.nc.subscribe("ramify.control.*")
            await router.nc.flush()
            before = await state(router.nc)
            replies = [
                "out.link.x",
                "out.deliver.bob",
                "out.log",
                "ramify.publish.bob",
                "ramify.control.bob",
            ]
            for reply in replies:
                await trick(alice.nc, reply)
            await router.nc.flush()
            after = await state(router.nc)
            before["IN"]["ramify.publish.alice"] = before["IN"].get("ramify.publish.alice", 0) + 2 * len(
                replies
            )
            assert after == before
            assert requests.pending_msgs == 0

    play(scenario)


def test_an_answer_cannot_be_steered_into_anothers_consumer(world: World) -> None:
    """Nor does an answer reset, pull or acknowledge the lane of another."""

    async def scenario() -> None:
        async with world.user(world.router) as router, world.user(ClientRole("alice")) as alice:
            js = router.nc.jetstream()
            async with world.user(ClientRole("bob")) as bob:
                box = await bob.nc.subscribe(bob.nc.new_inbox())
                ask = "$JS.API.CONSUMER.MSG.NEXT.OUT.client_bob"
                await bob.nc.publish(ask, b'{"batch": 2}', box.subject)
                reply = [await box.next_msg(timeout=WAIT_S) for _ in range(2)][-1].reply
            before = await js.consumer_info("OUT", "client_bob")
            assert before.num_ack_pending == 2
            for call in ("RESET", "MSG.NEXT"):
                await trick(alice.nc, f"$JS.API.CONSUMER.{call}.OUT.client_bob")
            # a reply below $JS.ACK is a violation of its own: the server says so
            await alice.nc.publish("ramify.publish.alice", b"+ACK", reply)
            await alice.nc.flush()
            after = await js.consumer_info("OUT", "client_bob")
            assert (after.delivered, after.ack_floor) == (before.delivered, before.ack_floor)
            assert after.num_ack_pending == 2

    play(scenario)


# Names, keys and files.


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_no_two_users_share_a_subject(names: list[str]) -> None:
    one, two = names
    roles: list[Role] = [ClientRole(one), ClientRole(two), NeighbourRole(one), NeighbourRole(two)]
    for i, a in enumerate(roles):
        for b in roles[:i]:
            assert not set(a.publish or ()) & set(b.publish or ())
            assert not set(a.subscribe or ()) & set(b.subscribe or ())
            assert a.inbox_prefix != b.inbox_prefix


@given(NAMES)
def test_a_name_never_leaves_its_token(name: str) -> None:
    """No name brings wildcards, spaces, quotes or further tokens into a subject."""
    plain = [subject.count(".") for subject in ClientRole("plain").publish]
    allowed = (*ClientRole(name).publish, *ClientRole(name).subscribe)
    assert [subject.count(".") for subject in ClientRole(name).publish] == plain
    for subject in allowed:
        assert re.fullmatch(r"[$A-Za-z_.=0-9-]+>?", subject)


def test_accounts_are_the_same_text_in_any_order_and_keys_are_checked() -> None:
    keys = [new_user().public for _ in range(3)]
    both = {"a": keys[1], "b": keys[2]}
    assert accounts_config(keys[0], {}, both) == accounts_config(keys[0], {}, dict(reversed(both.items())))
    with pytest.raises(InputError, match=r"client 'a' and client 'b' have the same key"):
        accounts_config(keys[0], {}, {"a": keys[1], "b": keys[1]})
    damaged = keys[1][:-1] + ("A" if keys[1][-1] != "A" else "B")
    for bad in ("", "U", damaged, keys[1] + "}", new_user().seed, "Ü" * 56):
        with pytest.raises(InputError, match=r"link 'n'.*not the public NKey"):
            accounts_config(keys[0], {"n": bad}, {})


@given(st.binary(min_size=1, max_size=3), st.integers(0, 57))
def test_a_damaged_seed_is_noticed_and_never_shown(noise: bytes, at: int) -> None:
    pair = new_user()
    assert pair_of(pair.seed) == pair
    assert pair.seed not in repr(pair)
    text = (pair.seed[:at] + noise.decode("latin-1") + pair.seed[at + len(noise) :])[:58]
    if text != pair.seed:
        with pytest.raises(InputError, match="not the NKey seed") as error:
            pair_of(text)
        assert pair.seed[5:30] not in str(error.value)


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys")
    roles: list[Role] = [
        RouterRole("b1"),
        NeighbourRole("b1"),
        ClientRole("b1"),
        ControlRole("b1"),
        ClientRole(ODD),
    ]
    pairs = [ring.pair(role) for role in roles]
    assert len({pair.public for pair in pairs}) == len(roles)
    assert [KeyRing(tmp_path / "keys").pair(role) for role in roles] == pairs
    assert (tmp_path / "keys" / "client-b1.nk").stat().st_mode & 0o7777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o7777 == 0o700
    assert {p.name for p in (tmp_path / "keys").iterdir()} == {ring.path(role).name for role in roles}


def test_two_that_make_a_key_at_once_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring, role = KeyRing(tmp_path / "keys"), ClientRole("a")
    first = ring.pair(role)
    # as if the file had appeared after the second one looked
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert ring.pair(role) == first


def test_wrong_modes_and_broken_files_are_errors(tmp_path: Path) -> None:
    ring, role = KeyRing(tmp_path / "keys"), ClientRole("a")
    with pytest.raises(InputError, match="no key for client 'a'"):
        ring.read(role)
    ring.pair(role)
    ring.path(role).chmod(0o640)
    with pytest.raises(InputError, match=r"client-a\.nk: mode is 0640.*chmod 600"):
        ring.pair(role)
    ring.path(role).chmod(0o600)
    for broken in (b"", b"\xff\xfe", b"SUA"):
        ring.path(role).write_bytes(broken)
        with pytest.raises(InputError, match=r"client-a\.nk: .*damaged"):
            ring.pair(role)
    os.chmod(tmp_path / "keys", 0o755)
    with pytest.raises(InputError, match=r"mode is 0755.*chmod 700"):
        KeyRing(tmp_path / "keys")


def test_a_server_beyond_loopback_needs_tls(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        check_listen(host, None)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", ""):
        with pytest.raises(InputError, match="give TLS files"):
            check_listen(host, None)
        with pytest.raises(InputError, match="give TLS files"):
            ServerConfig("b", tmp_path, "", host=host)
        check_listen(host, Tls(pem, pem))


def test_tls_files_are_checked(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    assert "verify: true" in tls_config(Tls(pem, pem, pem, verify=True))
    assert "verify" not in tls_config(Tls(pem, pem))
    with pytest.raises(InputError, match="needs ca"):
        tls_config(Tls(pem, pem, verify=True))
    with pytest.raises(InputError, match="key_file"):
        tls_config(Tls(pem, tmp_path / "none"))


@given(st.text())
def test_a_quoted_string_stays_one_string(text: str) -> None:
    if re.search(r"[\x00-\x1f\x7f]", text):
        with pytest.raises(InputError, match="control characters"):
            quote(text)
    else:
        inner = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', quote(text))
        assert inner
        assert re.sub(r"\\(.)", r"\1", inner[1]) == text
