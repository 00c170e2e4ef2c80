"""Connections to servers, and the streams and consumers that a broker's server has.

Owns their settings. Only a router creates streams and consumers.
"""

import asyncio
import contextlib
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import nats.errors
from nats.aio.client import Client as Nats

from ramify.errors import InputError, LiveError
from ramify.overlay.control.names import (
    DELIVER,
    IN,
    LINK,
    LOG,
    MATCH,
    OUT,
    PUBLISH,
    REJECTED,
    SAMPLES,
    token,
)
from ramify.overlay.live.wire.connection import TRANSPORT, SteadyConnection
from ramify.overlay.live.wire.pauses import LANES_AT_ONCE
from ramify.overlay.live.wire.security import check_clear_text, read_seed
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.overlay.live.wire.tls import TlsTransport, why_hopeless

__all__ = [
    "DUPLICATE_WINDOW_S",
    "ApiError",
    "Endpoint",
    "Sizes",
    "api",
    "connect",
    "consumers",
    "disconnect",
    "ensure_consumer",
    "ensure_lanes",
    "ensure_samples",
    "ensure_streams",
    "sparing",
]

DUPLICATE_WINDOW_S = 600
"""How long a server knows the ids of publishes: a client that got no answer may ask again so long."""

_ACK_WAIT_S = 60
_MOST_UNACKNOWLEDGED = 5_000
_MOST_CONSUMERS = 100_000
# many connect at once when a machine starts them all
_CONNECT_S = 10
_CONNECTING = 16
_SLOT_S = 1.0
_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_LOOPBACK = ("nats://127.0.0.1:", "nats://[::1]:")


class ApiError(LiveError):
    """A server refused a call of JetStream's API; `code` is its reason."""

    def __init__(self, said: str, code: int) -> None:
        self.code = code
        super().__init__(said)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and the user that connects to it. Without a seed the server must not ask for one (tests).

    With `tls`, or a URL tls://, nothing is sent before the handshake, whatever the server says. Without a
    context the authorities of this system are trusted. In the clear only this machine is spoken to, unless
    `insecure_clear_text` says otherwise. Raises `InputError`.
    """

    url: str
    seed: str | None = field(default=None, repr=False)
    inbox_prefix: str = "_INBOX"
    name: str = "ramify"
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    insecure_clear_text: bool = False
    seed_file: Path | None = None
    """The seed is read anew from there for each connection: it may have been rotated."""

    def __post_init__(self) -> None:
        check_clear_text(self.url, tls=self.tls is not None, insecure=self.insecure_clear_text)

    def context(self) -> ssl.SSLContext | None:
        """The authorities to trust; None for a connection in the clear."""
        if self.tls is None and self.url.startswith("tls://"):
            return ssl.create_default_context()
        return self.tls


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that each stream of a broker may take; they are reserved on the server's disk."""

    published: int = 1 << 30
    out: int = 2 << 30
    rejected: int = 64 << 20
    samples: int = 256 << 20


async def connect(
    endpoint: Endpoint, *, failed: Callable[[Exception], None] = lambda error: None, **callbacks: Any
) -> SteadyConnection:
    """Connect, and again whenever the connection breaks, for good. Waits until the server is there.

    `failed` hears of every attempt before that which did not succeed.

    Raises
    ------
    LiveError
        When waiting is of no use: the certificate is not trusted, or the server has no TLS.
    """

    async def quiet(_: Exception) -> None:
        """Every failed attempt would be logged; callers see what matters as their own errors."""

    context = endpoint.context()
    client = SteadyConnection(
        trusts_announced=context is not None or endpoint.insecure_clear_text,
        seed=None if endpoint.seed_file is None else partial(_seed_now, endpoint.seed_file),
    )
    hopeless: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    told: Callable[[Exception], Awaitable[None]] = callbacks.pop("error_cb", quiet)

    async def noted(error: Exception) -> None:
        if not made.done():
            failed(error)
            why = why_hopeless(error)
            if why is not None and not hopeless.done():
                hopeless.set_result(why)
        await told(error)

    options: dict[str, Any] = {
        "servers": [endpoint.url],
        "name": endpoint.name,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.1 + 0.2 * random.random(),
        "connect_timeout": _CONNECT_S,
        # on loopback the kernel says at once when the other end is gone
        "ping_interval": 30 if endpoint.url.startswith(_LOOPBACK) else 5,
        "max_outstanding_pings": 2,
        "pending_size": 64 << 20,
        "inbox_prefix": endpoint.inbox_prefix.encode(),
        "error_cb": noted,
        **callbacks,
    }
    if endpoint.seed is not None:
        options["nkeys_seed_str"] = endpoint.seed
    if context is not None:
        options["tls"] = context
        client._transport = TlsTransport(context)
    if (transport := TRANSPORT.get()) is not None:
        client._transport = transport()
    made = asyncio.create_task(_made(client, options))
    try:
        waiting: list[asyncio.Future[Any]] = [made, hopeless]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            raise LiveError(
                f"cannot connect to {endpoint.url} as {endpoint.name}: {hopeless.result()}"
            ) from None
        return made.result()
    except (nats.errors.Error, OSError) as error:
        raise LiveError(f"cannot connect to {endpoint.url} as {endpoint.name}: {error!r}") from error
    finally:
        if not made.done():
            await end_tasks([made])


def _seed_now(file: Path) -> str | None:
    try:
        return read_seed(file).seed
    except InputError:
        return None  # as before, for the server to judge


async def _made(client: SteadyConnection, options: Mapping[str, Any]) -> SteadyConnection:
    connecting: asyncio.Task[None] | None = None
    try:
        async with _slots():
            connecting = asyncio.create_task(client.connect(**options))
            # a server that is away keeps its slot no longer than this
            await asyncio.wait([connecting], timeout=_SLOT_S)
        await connecting
    except BaseException:
        if connecting is not None:
            await end_tasks([connecting])
            with contextlib.suppress(nats.errors.Error, OSError):
                await client.close()
        raise
    return client


async def disconnect(connection: Nats) -> None:
    """Close a connection, also one that breaks while what waits in it is sent: it never raises for that.

    The library stops half-way then, with its tasks alive, and takes the connection for closed.
    """
    try:
        await connection.close()
    except (nats.errors.Error, OSError):
        connection._status = Nats.DISCONNECTED
        with contextlib.suppress(nats.errors.Error, OSError):
            await connection.close()


def sparing(say: Callable[[str], None], every_s: float = 5.0) -> Callable[[Exception], None]:
    """For `failed`: says the reason at once when it is another, else at most once in a while."""
    last, said_at, count = "", 0.0, 0

    def failed(error: Exception) -> None:
        nonlocal last, said_at, count
        reason, now = str(error) or repr(error), time.monotonic()
        count += 1
        if reason != last or now - said_at >= every_s:
            last, said_at = reason, now
            say(f"{reason} (attempt {count})")

    return failed


def _slots() -> asyncio.Semaphore:
    """How many connections of a process may be opened at once. A server hangs up on a client that does not
    say its name within 2 s. A process that opens hundreds at once is slower: all would start over."""
    loop = asyncio.get_running_loop()
    return _waiting.setdefault(loop, asyncio.Semaphore(_CONNECTING))


async def api(
    connection: Nats,
    call: str,
    body: Mapping[str, object],
    *,
    timeout_s: float = 5.0,
    missing: int | None = None,
) -> dict[str, Any]:
    """Call JetStream's API. Raises `ApiError` with what the server said, `LiveError` when it said nothing;
    `missing` is the code of an error that is none to the caller: the answer is then empty."""
    try:
        answer = await connection.request(f"$JS.API.{call}", json.dumps(body).encode(), timeout=timeout_s)
    except (nats.errors.Error, TimeoutError) as error:
        raise LiveError(f"no answer to {call}: {error!r}") from error
    told: dict[str, Any] = json.loads(answer.data)
    refused = told.get("error")
    if refused and missing is not None and refused.get("err_code") == missing:
        return {}
    if refused:
        said = f"{refused.get('description')} ({refused.get('err_code')})"
        raise ApiError(f"the server refused {call}: {said}", int(refused.get("err_code") or 0))
    return told


async def ensure_streams(connection: Nats, sizes: Sizes) -> None:
    """Create the broker's streams, or bring their settings up to date."""
    keep = {"retention": "limits", "storage": "file", "num_replicas": 1, "max_consumers": -1}
    bounded = {**keep, "discard": "new"}
    passing = {**keep, "discard": "old"}
    wanted: list[dict[str, object]] = [
        {
            "name": IN,
            "subjects": [f"{PUBLISH}.*"],
            "max_bytes": sizes.published,
            "duplicate_window": DUPLICATE_WINDOW_S * 10**9,
            **bounded,
        },
        {
            "name": OUT,
            "subjects": [f"{LINK}.*", f"{DELIVER}.*", LOG, MATCH],
            "max_bytes": sizes.out,
            "allow_atomic": True,
            "allow_direct": True,
            **bounded,
            "max_consumers": _MOST_CONSUMERS,
        },
        {"name": REJECTED, "subjects": ["rejected.*"], "max_bytes": sizes.rejected, **passing},
    ]
    listed = await api(connection, "STREAM.NAMES", {})
    there = set(listed.get("streams") or ())
    for config in wanted:
        verb = "UPDATE" if config["name"] in there else "CREATE"
        await api(connection, f"STREAM.{verb}.{config['name']}", config)


async def ensure_samples(connection: Nats, most_bytes: int = 256 << 20) -> None:
    """Create the stream of sampled events, on the control server; one that exists stays as it is."""
    listed = await api(connection, "STREAM.NAMES", {"subject": "samples.*"})
    if SAMPLES not in (listed.get("streams") or ()):
        config = {
            "name": SAMPLES,
            "subjects": ["samples.*"],
            "max_bytes": most_bytes,
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "duplicate_window": DUPLICATE_WINDOW_S * 10**9,
        }
        await api(connection, f"STREAM.CREATE.{SAMPLES}", config)


async def consumers(connection: Nats, stream: str) -> list[dict[str, Any]]:
    """The state of every consumer of a stream. Cost: a request per 256."""
    found: list[dict[str, Any]] = []
    while True:
        told = await api(connection, f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        some = told.get("consumers") or []
        found += some
        if not some or len(found) >= int(told.get("total", 0)):
            return found


async def ensure_consumer(connection: Nats, stream: str, name: str, subject: str | None = None) -> None:
    """Create a durable pull consumer; one that exists stays as it is."""
    config: dict[str, object] = {
        "durable_name": name,
        "name": name,
        "ack_policy": "all",
        "ack_wait": _ACK_WAIT_S * 10**9,
        "deliver_policy": "all",
        "max_ack_pending": _MOST_UNACKNOWLEDGED,
        "max_deliver": -1,
        "max_waiting": 16,
    }
    if subject is not None:
        config["filter_subject"] = subject
    path = f"{stream}.{name}" + ("" if subject is None else f".{subject}")
    await api(connection, f"CONSUMER.CREATE.{path}", {"stream_name": stream, "config": config})


async def ensure_lanes(connection: Nats, neighbours: Iterable[str], clients: Iterable[str]) -> None:
    """A consumer for every lane that is read from here."""
    lanes = [(f"link_{token(name)}", f"{LINK}.{token(name)}") for name in neighbours]
    lanes += [(f"client_{token(name)}", f"{DELIVER}.{token(name)}") for name in clients]
    for at in range(0, len(lanes), LANES_AT_ONCE):
        some = lanes[at : at + LANES_AT_ONCE]
        await asyncio.gather(*(ensure_consumer(connection, OUT, name, lane) for name, lane in some))
