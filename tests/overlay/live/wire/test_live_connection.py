"""Reading survives whatever stands in a message. Real servers, raw bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.connection import SteadyConnection, read_headers
from ramify.overlay.live.wire.security import accounts_config, new_user
from ramify.overlay.live.wire.streams import Endpoint, connect
from ramify.overlay.live.wire.tasks import run_to_end
from raw_messages import BAD_BLOCKS, BAD_MESSAGES, send_raw

USER = new_user()
names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


def block_of(headers: dict[str, str], status: str = "") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0{status}\r\n{lines}\r\n".encode()


@given(st.dictionaries(names, values, min_size=1, max_size=5))
def test_good_headers_are_read_as_the_library_does(headers: dict[str, str]) -> None:
    block = block_of(headers)
    assert read_headers(block) == headers == run_to_end(Nats()._process_headers(block))


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (" 404", {"Status": "404"}),
        (" 503", {"Status": "503"}),
        (" 404 No Messages", {"Status": "404", "Description": "No Messages"}),
        (" 100 Idle Heartbeat", {"Status": "100", "Description": "Idle Heartbeat"}),
        (" abc", {}),
    ],
)
def test_a_status_of_the_server_is_read(status: str, found: dict[str, str]) -> None:
    for more in ({}, {"Nats-Last-Consumer": "1016"}):
        assert (read_headers(block_of(more, status)) or {}) == found | more


@given(st.binary(max_size=200), st.booleans())
@example(BAD_BLOCKS[0], False)
def test_no_block_raises(block: bytes, begun: bool) -> None:
    found = read_headers(b"NATS/1.0" + block if begun else block)
    assert found is None or all(isinstance(value, str) for value in found.values())


def test_of_a_repeated_name_the_first_counts() -> None:
    assert read_headers(b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n") == {"A": "1"}


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[Nats, Nats]]:
    """A connection of ours, and a raw one to the same server."""
    server = Server(ServerConfig("v", directory, accounts_config(USER.public, {}, {})))
    await server.start()
    ours = await connect(Endpoint(server.url, USER.seed))
    raw = await nats.connect(server.url, nkeys_seed_str=USER.seed)
    try:
        yield ours, raw
    finally:
        await raw.close()
        await ours.close()
        await server.stop()


def test_a_reader_survives_every_bad_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(240), pair(tmp_path) as (ours, raw):
            came: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: Msg) -> None:
                await came.put(message.data)

            await ours.subscribe("news", cb=take)
            await ours.flush()
            for i, (block, reply) in enumerate(BAD_MESSAGES):
                await send_raw(raw, b"news", block, reply, b"bad")
                await raw.publish("news", b"good %d" % i)
                while await came.get() != b"good %d" % i:
                    pass
            assert isinstance(ours, SteadyConnection)
            assert ours.unreadable == 1, "only the reply that is no text"
            assert ours.stats["reconnects"] == 0

    run_to_end(scenario())


def test_a_reader_that_ends_is_a_broken_connection(tmp_path: Path) -> None:
    """Whatever ended it: the connection is made anew, and what is published then comes."""

    async def scenario() -> None:
        async with asyncio.timeout(240), pair(tmp_path) as (ours, raw):
            inbox = await ours.subscribe("news")
            await ours.flush()

            async def broken(data: bytes = b"") -> None:
                raise ValueError("as a fault of the library would")

            right, ours._ps.parse = ours._ps.parse, broken
            await raw.publish("news", b"lost")
            await raw.flush()
            while not ours.stats["reconnects"]:
                await asyncio.sleep(0.01)
                if ours.is_reconnecting:
                    ours._ps.parse = right
            await ours.flush(60)
            await raw.publish("news", b"good")
            assert (await inbox.next_msg(60)).data == b"good"

    run_to_end(scenario())
