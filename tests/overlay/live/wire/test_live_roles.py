"""What each role may do: tried on real servers, held against docs/security.md; and ways around it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import role_matrix as matrix
from ramify.errors import InputError, LiveError
from ramify.overlay.control.names import COORDINATE, OPERATE
from ramify.overlay.control.records import ForwardedRequest, Request
from ramify.overlay.control.requests import why_not_believed
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import (
    BrokerRole,
    ControlRole,
    CoordinatorRole,
    Role,
    RouterRole,
    ViewerRole,
    accounts_config,
    new_user,
)
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.streams import Endpoint, api, connect
from ramify.overlay.live.wire.tasks import run_to_end

LIMIT_S = 240.0
DOWN = "docs/security.md is not what servers do: run `make docs`, and read what changed"


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    run_to_end(bounded())


def test_the_table_in_the_docs_is_what_servers_allow(tmp_path: Path) -> None:
    text = matrix.rendered(run_to_end(matrix.matrix(tmp_path)))
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert page.split(matrix.BEGIN)[1].split(matrix.END)[0].strip() == text.strip(), DOWN


def _kinds(of: type[Role]) -> set[type[Role]]:
    below = of.__subclasses__()
    return {of} if not below else set[type[Role]]().union(*map(_kinds, below))


def test_every_role_has_a_column_and_every_subject_that_it_may_use_a_row() -> None:
    columns = [*matrix.ON_BROKER, *matrix.ON_CONTROL]
    assert {type(role) for role in columns} == _kinds(Role)
    for roles, actions in (
        (matrix.ON_BROKER, matrix.BROKER_ACTIONS),
        (matrix.ON_CONTROL, matrix.CONTROL_ACTIONS),
    ):
        for role in roles:
            for listens, subjects in ((False, role.publish), (True, role.subscribe)):
                for subject in subjects or ():
                    if subject.startswith("_I."):
                        continue
                    wanted = re.escape(subject).replace(">", ".*").replace(r"\*", "[^.]*")
                    tried = [each.at(role) for each in actions if each.listens is listens]
                    assert any(re.fullmatch(wanted, each) for each in tried), (role, subject)


def test_a_user_of_the_control_server_cannot_steer_an_answer_or_a_message(tmp_path: Path) -> None:
    """Not into the store, not to the leader as another broker, not into samples, not to another user."""

    async def scenario() -> None:
        place = matrix.Place(tmp_path, matrix.ON_CONTROL, CoordinatorRole("coordinator"))
        async with place.open():
            heard: list[str] = []

            async def noted(message: object) -> None:
                heard.append(message.subject)  # type: ignore[attr-defined]

            await place.admin.subscribe(f"{COORDINATE}.b2", cb=noted)
            victim, _ = await place.connected(BrokerRole("b2"))
            box = await victim.subscribe("_I.control_b2.box")
            await victim.flush()
            broker, complaints = await place.connected(BrokerRole("b1"))
            before = await api(place.admin, "STREAM.INFO.KV_CTL", {"subjects_filter": "$KV.CTL.>"})
            samples = await api(place.admin, "STREAM.INFO.SAMPLES", {})
            for reply in (
                *("$KV.CTL.state", "$KV.CTL.status.b2", f"{COORDINATE}.b2", f"{OPERATE}.operator"),
                *("samples.b2", "_I.control_b2.box", "$JS.API.STREAM.PURGE.KV_CTL", "ramify.changed.state"),
            ):
                await broker.publish("ramify.store.get", b'{"last_by_subj": "$KV.CTL.state"}', reply)
                await broker.publish(f"{COORDINATE}.b1", b"{}", reply)
            # once this is answered all before it was
            await broker.request("ramify.store.info", b"", timeout=20)
            await victim.flush()
            await place.admin.flush()
            after = await api(place.admin, "STREAM.INFO.KV_CTL", {"subjects_filter": "$KV.CTL.>"})
            assert after["state"] == before["state"]
            assert (await api(place.admin, "STREAM.INFO.SAMPLES", {}))["state"] == samples["state"]
            assert heard == []
            assert box.pending_msgs == 0
            for connection in (victim, broker):
                await connection.close()
            assert complaints == []

    play(scenario)


def test_no_request_to_the_store_makes_a_consumer_whatever_its_body_says(tmp_path: Path) -> None:
    """A consumer delivers past all permissions: into the store, or to the leader as another broker."""

    async def scenario() -> None:
        place = matrix.Place(tmp_path, matrix.ON_CONTROL, CoordinatorRole("coordinator"))
        async with place.open():
            config = {"name": "x", "deliver_subject": f"{COORDINATE}.b2", "ack_policy": "none"}
            body = json.dumps({"stream_name": "KV_CTL", "config": config}).encode()
            for role in matrix.ON_CONTROL[:-1]:
                user, complaints = await place.connected(role)
                for subject in ("ramify.store.info", "ramify.store.get"):
                    await user.request(subject, body, timeout=20)
                for call in ("CREATE.KV_CTL", "CREATE.KV_CTL.x", "DURABLE.CREATE.KV_CTL.x"):
                    await user.publish(f"$JS.API.CONSUMER.{call}", body, user.new_inbox())
                await user.flush()
                async with asyncio.timeout(LIMIT_S):
                    while len(complaints) < 3:
                        await asyncio.sleep(0.01)
                await user.close()
            assert (await api(place.admin, "CONSUMER.NAMES.KV_CTL", {}))["total"] == 0

    play(scenario)


def test_who_asks_is_held_against_what_is_asked() -> None:
    def why(subject: str, broker: str, op: str) -> str | None:
        found = why_not_believed(subject, ForwardedRequest(broker, "alice", Request(op, "s")))
        return None if found is None else found.code

    assert why(f"{COORDINATE}.v0", "v0", "unsubscribe") is None
    assert why(f"{COORDINATE}.v0", "v1", "unsubscribe") == "forbidden"
    assert why(f"{COORDINATE}.v0", "v1", "ended") == "forbidden"
    assert why(f"{COORDINATE}.v0", "v0", "move") == "forbidden"
    assert why(f"{COORDINATE}.=FF", "v0", "list") == "bad_request"
    assert why(f"{OPERATE}.operator", "v0", "move") is None
    assert why(f"{OPERATE}.operator", "v0", "unsubscribe") == "forbidden"


USERS = {role: new_user() for role in (CoordinatorRole("c"), BrokerRole("v0"), ViewerRole("viewer"))}


def _endpoint(server: Server, role: ControlRole) -> Endpoint:
    return Endpoint(server.url, USERS[role].seed, role.inbox_prefix, role.name)


def test_a_store_of_an_older_version_is_brought_up_to_date(tmp_path: Path) -> None:
    """It let whoever writes one key purge all with a header."""
    accounts = accounts_config(new_user().public, {}, {}, {r: p.public for r, p in USERS.items()})
    server = Server(ServerConfig("s", tmp_path, accounts))
    old = {
        "name": "KV_CTL",
        "subjects": ["$KV.CTL.>"],
        "max_bytes": 1 << 20,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
        "max_consumers": -1,
        "subject_delete_marker_ttl": 3600 * 10**9,
        "discard": "new",
    }

    async def scenario() -> None:
        await server.start()
        try:
            admin = await connect(_endpoint(server, CoordinatorRole("c")))
            await api(admin, "STREAM.CREATE.KV_CTL", old)
            await admin.request("$KV.CTL.state", b"kept", timeout=20)
            await admin.close()
            store = await Store.connect(_endpoint(server, CoordinatorRole("c")))
            broker = await Store.join(_endpoint(server, BrokerRole("v0")))
            with pytest.raises(LiveError, match="rollup not permitted"):
                await broker._write("status.v0", b"", None, {"Nats-Rollup": "all"})
            found = await broker.get("state")
            assert found is not None
            assert found[0] == b"kept"
            for each in (store, broker):
                await each.close()
        finally:
            await server.stop()

    play(scenario)


def test_accounts_of_an_older_version_are_named(tmp_path: Path) -> None:
    """There everyone was in CONTROL, and might do everything."""
    users = ", ".join(f"{{nkey: {pair.public}}}" for pair in USERS.values())
    old = f"accounts {{ CONTROL {{ jetstream: enabled, users: [{users}] }} }}"
    server = Server(ServerConfig("s", tmp_path, old))

    async def scenario() -> None:
        await server.start()
        try:
            with pytest.raises(LiveError, match=r"older version.*ramify keys.*control\.conf"):
                await Store.join(_endpoint(server, ViewerRole("viewer")))
        finally:
            await server.stop()

    play(scenario)


def test_users_of_the_control_server_have_names_of_their_own() -> None:
    users: dict[ControlRole, str] = {
        BrokerRole("viewer"): new_user().public,
        ViewerRole("viewer"): new_user().public,
    }
    with pytest.raises(InputError, match="two users of the control server are named 'viewer'"):
        accounts_config(new_user().public, {}, {}, users)
    assert RouterRole("v0").publish is None
