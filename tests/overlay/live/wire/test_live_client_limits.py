"""What one client can take of a server, and learn of others there, with raw connections."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import nats.errors
from nats.aio.client import Client as Nats

from lane_server import LaneServer, lane_server
from ramify.overlay.live.wire.security import (
    CLIENT_CONNECTIONS,
    CLIENT_SUBSCRIPTIONS,
    MOST_CLIENT_ACCOUNTS,
    ClientRole,
    accounts_config,
    new_user,
)
from ramify.overlay.live.wire.streams import connect
from ramify.overlay.live.wire.tasks import run_to_end

EVENT = {"specversion": "1.0", "id": "order-77-of-alice", "source": "shop", "type": "t"}


def on_server(directory: Path, scenario: Callable[[LaneServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(480), lane_server(directory) as at:
            await scenario(at)

    run_to_end(run())


async def quiet(error: Exception) -> None: ...


async def raw(at: LaneServer, name: str) -> Nats:
    """A connection that is not made again. Raises what the server says."""
    to = at.site.endpoint(ClientRole(name), at.server.url)
    return await nats.connect(
        to.url,
        nkeys_seed_str=to.seed,
        inbox_prefix=to.inbox_prefix.encode(),
        allow_reconnect=False,
        error_cb=quiet,
    )


async def served(at: LaneServer) -> None:
    """Another client connects, subscribes and publishes."""
    async with at.client("alice") as alice:
        await alice.subscribe("x = 1", id="s")
        await alice.publish(EVENT)


def test_a_client_that_opens_connections_without_end_is_refused_and_others_are_served(
    tmp_path: Path,
) -> None:
    async def scenario(at: LaneServer) -> None:
        opened: list[Nats] = []
        refused: list[str] = []

        async def open_one() -> None:
            try:
                opened.append(await raw(at, "bob"))
            except (nats.errors.Error, OSError) as error:
                refused.append(str(error))

        try:
            await asyncio.gather(*(open_one() for _ in range(CLIENT_CONNECTIONS + 40)))
            assert len(opened) == CLIENT_CONNECTIONS
            assert len(refused) == 40
            assert all("maximum account active connections" in why for why in refused)
            await served(at)
        finally:
            for each in opened:
                await each.close()

    on_server(tmp_path, scenario)


def test_a_connection_with_too_many_subscriptions_is_closed_and_others_are_served(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        wire = await raw(at, "bob")
        try:
            for k in range(CLIENT_SUBSCRIPTIONS // 2):
                await wire.subscribe(f"_I.client_bob.{k}")
            await wire.flush()
            assert wire.is_connected
            with contextlib.suppress(nats.errors.Error):
                for k in range(4 * CLIENT_SUBSCRIPTIONS):
                    await wire.subscribe(f"_I.client_bob.more.{k}")
            while not wire.is_closed:
                await asyncio.sleep(0.02)
            await served(at)
        finally:
            await wire.close()

    on_server(tmp_path, scenario)


def test_very_many_clients_share_an_account() -> None:
    public = new_user().public
    users = {f"c{k}": new_user().public for k in range(MOST_CLIENT_ACCOUNTS + 1)}
    assert "CLIENT_" not in accounts_config(public, {}, users)
    del users["c0"]
    assert accounts_config(public, {}, users).count('"CLIENT_') == MOST_CLIENT_ACCOUNTS


def test_what_a_refused_publish_tells_of_anothers_is_worth_nothing(tmp_path: Path) -> None:
    """A server names the id of the last publish. It is a keyed hash: it says nothing of the event, and who
    has it can neither use it up nor tell the next one."""

    async def scenario(at: LaneServer) -> None:
        async with at.client("alice") as alice:
            await alice.publish(EVENT)
            bob = await connect(at.site.endpoint(ClientRole("bob"), at.server.url))
            try:
                asked = {"Nats-Expected-Last-Msg-Id": "something"}
                answer = await bob.request("ramify.publish.bob", b"{}", timeout=60, headers=asked)
                said = json.loads(answer.data)["error"]["description"]
                assert not any(word in said for word in ("order", "alice", "shop"))
                leaked = said.rpartition(" ")[2]
                assert len(bytes.fromhex(leaked)) == 16
                stolen = {"Nats-Msg-Id": leaked}
                told = json.loads(
                    (await bob.request("ramify.publish.bob", b"{}", timeout=60, headers=stolen)).data
                )
                assert told["duplicate"]
            finally:
                await bob.close()
            await alice.publish({**EVENT, "id": "order-78-of-alice"})
            assert alice.accepted_before == 0
            ids = [headers["Nats-Msg-Id"] for _, _, headers in await at.published()]
            assert len(ids) == 2
            assert ids[0] == leaked

    on_server(tmp_path, scenario)
