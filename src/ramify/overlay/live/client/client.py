"""The client of the live overlay: publish, subscribe, advertise; reconnects and goes on by itself.

    async with Client.connect("billing", "nats://127.0.0.1:4222", seed_file="billing.nk") as client:
        await client.publish({"specversion": "1.0", "id": "1", "source": "shop", "type": "order.created"})
        async for event in client.subscribe("type = 'order.created'", id="orders"):
            print(event.id)

Owns the requests to the broker, and how the one lane of a client is shared by its subscriptions.

A subscription belongs to the client's name, not to the process: it stays when the process ends, and events
wait on the lane, up to its quota and for as long as its lease. A process that comes back subscribes again
with the same id and filter, and goes on.

What is guaranteed. An event counts as dealt with when the next one of its subscription is asked for, or
when `event.done()` was called. A delivery on the lane is acknowledged when all events of it and of those
before it are dealt with. While the process lives, each event comes exactly once, whatever servers,
brokers and connections do. After a restart all that was not acknowledged comes again: at least once. For
exactly once read `client.deliveries(after=n)` instead, and store the number of each delivery together with
its effects; the number stored last is the `after` to come back with.

The events of all subscriptions come over one lane, in one order. What was read and is not dealt with is
bounded (`WINDOW_MESSAGES`, `WINDOW_BYTES`), so a subscription that nobody reads stops the others of the
same client once that is full; programs that must not wait for each other use clients of their own.

A client may be asked to move to another broker. It says yes, unless `on_move` says otherwise: an offer is
made when an operator wants it, and the move shows in nothing but the connection. It accepts only what it
has connected to. Reading, asking and publishing go on there by themselves, also in a process that connects
to the old broker later. A publish that was begun is finished where it was begun, and so is one whose
outcome is unknown when it is tried again by the same process.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import ssl
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
import nats.errors

from ramify.content.filters.subscriptions import SPELLINGS
from ramify.errors import InputError, LiveError
from ramify.overlay.control.names import CLIENT, inbox_prefix, token
from ramify.overlay.control.records import (
    CLIENT_LEASE_S,
    CLIENT_QUOTA_BYTES,
    Advertisement,
    Answer,
    ClientRecord,
    ClientSubscription,
    FilterText,
    Refusal,
    Request,
    subscription_of,
)
from ramify.overlay.live.client.errors import (
    TRANSIENT,
    ExistsError,
    NotEverywhereError,
    RefusedError,
    RefusedFilterError,
    UnavailableError,
    UnknownSubscriptionError,
    refused,
)
from ramify.overlay.live.client.inbox import WINDOW_BYTES, WINDOW_MESSAGES, ClientInbox, ReceivedEvent
from ramify.overlay.live.client.lane import (
    DeliveredBatch,
    LaneClient,
    LostDeliveriesError,
    LostPositionError,
    OutcomeUnknownError,
    SuspendedError,
)
from ramify.overlay.live.client.moves import Guide, Offer, Policy, Wires
from ramify.overlay.live.wire.pauses import REQUEST_MARGIN_S, REQUEST_PAUSE_S
from ramify.overlay.live.wire.security import check_clear_text, pair_of, read_seed
from ramify.overlay.live.wire.streams import Endpoint

if TYPE_CHECKING:
    from ramify.overlay.live.client.outbox import Publishable

__all__ = [
    "WINDOW_BYTES",
    "WINDOW_MESSAGES",
    "Client",
    "ClientAddress",
    "DeliveredBatch",
    "ExistsError",
    "Filter",
    "LiveSubscription",
    "LostDeliveriesError",
    "LostPositionError",
    "NotEverywhereError",
    "Offer",
    "OutcomeUnknownError",
    "Policy",
    "ReceivedEvent",
    "RefusedError",
    "RefusedFilterError",
    "SuspendedError",
    "UnavailableError",
    "UnknownSubscriptionError",
    "filter_id",
    "place_of",
    "spelled",
]

_log = logging.getLogger(__name__)

Filter: TypeAlias = str | Mapping[str, Any] | Sequence[str] | Sequence[Sequence[str]]
"""SQL text, a pattern, or keywords. A Sigma rule is named: `sigma=`."""

_MISSING_SHOWN = 3
# below what a broker works on for one client at a time
_MOST_ASKED = 48
_MOST_UNSURE = 10_000


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """How a client connects, as a directory of `ramify up` says."""

    client: str
    broker: str
    url: str
    seed_file: Path


def place_of(directory: str | Path, client: str) -> ClientAddress:
    """Read `<directory>/clients/<token>.json`. Raises `InputError`."""
    path = Path(directory) / "clients" / f"{token(client)}.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        return ClientAddress(
            found["client"], found["broker"], found["url"], Path(directory) / found["seed_file"]
        )
    except FileNotFoundError:
        if not path.parent.is_dir():
            reason, path = "no overlay here: give the directory of a running `ramify up`", Path(directory)
        else:
            reason = f"no client {client!r} here: name one of the clients that `ramify up` was given"
        raise InputError(reason, path=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", path=str(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not the file of a client: {error}", path=str(path)) from None
    except KeyError as error:
        raise InputError(f"not the file of a client: it has no {error}", path=str(path)) from None


def spelled(
    filter: Filter | None = None,
    *,
    sql: str | None = None,
    pattern: Mapping[str, Any] | None = None,
    keywords: Sequence[str] | Sequence[Sequence[str]] | None = None,
    sigma: Mapping[str, Any] | None = None,
) -> FilterText:
    """A filter as requests have it: text is SQL, a mapping is a pattern, a list is keywords.

    It is parsed, so that what is wrong with it shows with its place. Raises `InputError`, `FilterError`.
    """
    given = [value for value in (filter, sql, pattern, keywords, sigma) if value is not None]
    if len(given) != 1:
        raise InputError(f"give one filter, as {', '.join(SPELLINGS)}; {len(given)} were given")
    (value,) = given
    if sigma is not None:
        if not isinstance(sigma, Mapping):
            raise InputError(f"{type(sigma).__name__} is not a Sigma rule: give its detection as a dict")
        found = FilterText(sigma=dict(sigma))
    elif isinstance(value, str) and keywords is None and pattern is None:
        found = FilterText(sql=value)
    elif isinstance(value, Mapping) and sql is None and keywords is None:
        found = FilterText(pattern=dict(value))
    elif isinstance(value, Sequence) and not isinstance(value, str) and sql is None and pattern is None:
        words: Any = [word if isinstance(word, str) else list(word) for word in value]
        found = FilterText(keywords=words)
    else:
        raise InputError(
            f"{type(value).__name__} is not a filter: SQL is text, a pattern a dict, keywords a list"
        )
    try:
        text = subscription_of("client", "broker", "id", found)
    except TypeError as error:
        raise InputError(f"the filter is not JSON: {error}") from None
    text.parse()
    return found


def filter_id(filter: FilterText) -> str:
    """The id of a subscription that was given none: the same for the same filter."""
    return "s-" + hashlib.blake2b(msgspec.json.encode(filter, order="sorted"), digest_size=8).hexdigest()


class Client:
    """A client of the live overlay, made with `connect` or `at`. One per client name, in one event loop."""

    def __init__(
        self,
        wires: Wires,
        secret: bytes,
        *,
        after: int | None,
        timeout_s: float,
        on_move: Policy = "accept",
    ) -> None:
        self.name = wires.home.name
        self._wires = wires
        self._secret = secret
        self._timeout_s = timeout_s
        self._incoming = ClientInbox(wires, after)
        # id of a publish whose outcome is unknown -> where it was tried
        self._unsure: dict[str, LaneClient] = {}
        self._turns = asyncio.Semaphore(_MOST_ASKED)
        self._guide = Guide(wires, on_move, self._ask, lambda: self._incoming.is_read)
        self.accepted_before = 0
        """Events that this client published although the broker's server had them: they are not doubled."""

    @classmethod
    def connect(
        cls,
        name: str,
        url: str,
        *,
        seed: str | None = None,
        seed_file: str | Path | None = None,
        after: int | None = None,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
        on_move: Policy = "accept",
        insecure_clear_text: bool = False,
    ) -> "PendingClient":
        """Connect to the broker that the client is attached to: `await` it, or use it with `async with`.

        `after` is the number of the last delivery that was dealt with, if it was stored before. `timeout_s`
        bounds this and every request. A connection that is lost later is made again without limit.
        `tls` says which authorities to trust (`ssl.create_default_context(cafile=...)`) and makes TLS a
        must; so does a URL tls://, with the authorities of this system. Without TLS only this machine is
        spoken to, unless `insecure_clear_text` is set, for networks where nobody else can listen.
        `on_move` answers offers to move to another broker: "accept", "decline", or a function of the
        `Offer` that says whether, which may be asynchronous.

        Raises
        ------
        LiveError
            When the server cannot be reached, or does not know the key.
        InputError
            For a name or a key that is none, and for a server elsewhere without TLS.
        """
        return PendingClient(
            cls, name, url, seed, seed_file, after, timeout_s, tls, on_move, insecure_clear_text
        )

    @classmethod
    def at(
        cls,
        directory: str | Path,
        name: str,
        *,
        after: int | None = None,
        timeout_s: float = 30.0,
        on_move: Policy = "accept",
    ) -> "PendingClient":
        """Connect to an overlay on this machine, by the directory that `ramify up` was given."""
        place = place_of(directory, name)
        return cls.connect(
            name, place.url, seed_file=place.seed_file, after=after, timeout_s=timeout_s, on_move=on_move
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Acknowledge what is dealt with, and disconnect. Subscriptions stay."""
        await self._guide.stop()
        await self._incoming.stop()
        for lane in self._wires.all:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(REQUEST_MARGIN_S):
                    await lane.connection.flush()
        await self._wires.close()

    # ------------------------------------------------------------------------------------- publishing

    async def publish(
        self, events: "Publishable", *, id: str | None = None, give_up_s: float = 60.0, check: bool = True
    ) -> int:
        """Publish. Returns when the broker's server has stored all events, with the place in its stream.

        Many events go in several messages, one after the other. The place is that of the last message, 0
        without any. The same events may be published again within ten minutes (by source and id, in the
        same cut, or under the same `id`): they are accepted and not doubled, and `accepted_before` counts
        them. For `check` see `outbox.outgoing`.

        Raises
        ------
        OutcomeUnknownError
            When no answer came within `give_up_s` (at most five minutes): publish the same again.
        InputError, LimitError
            When an event is none, or too large. Nothing was sent.
        LiveError
            When the server refuses.
        """
        from ramify.overlay.live.client.outbox import outgoing  # loads Arrow: the first publish needs it

        most = self._wires.home.connection.max_payload
        place = 0
        for message in outgoing(events, self._secret, id=id, max_payload=most, check=check):
            # a server knows the ids of what it was sent itself
            lane = self._unsure.setdefault(message.id, self._wires.home)
            try:
                place, before = await lane.accepted(
                    message.payload, id=message.id, give_up_s=give_up_s, content_type=message.content_type
                )
            except OutcomeUnknownError:
                raise
            except LiveError:
                self._unsure.pop(message.id, None)
                raise
            self._unsure.pop(message.id, None)
            self.accepted_before += message.events if before else 0
            while len(self._unsure) > _MOST_UNSURE:
                del self._unsure[next(iter(self._unsure))]
        return place

    # ------------------------------------------------------------------------------------ subscribing

    def subscribe(
        self,
        filter: Filter | None = None,
        *,
        sql: str | None = None,
        pattern: Mapping[str, Any] | None = None,
        keywords: Sequence[str] | Sequence[Sequence[str]] | None = None,
        sigma: Mapping[str, Any] | None = None,
        id: str | None = None,
        quota_bytes: int = CLIENT_QUOTA_BYTES,
        lease_s: int = CLIENT_LEASE_S,
        wait_s: float = 5.0,
        raise_if_missing: bool = False,
        latency_ms: float | None = None,
    ) -> "LiveSubscription":
        """Subscribe: `await` it, and then iterate over it; or iterate right away.

        The request is sent when the subscription is awaited or iterated. Then every broker knows it, except
        those in `missing` after `wait_s`. Missing brokers are logged; with `raise_if_missing` they raise a
        `NotEverywhereError`. The same id with the same filter is the same subscription. It ends a
        suspension. `latency_ms` is how late events may come, if the plan bounds latency; without it the
        bound stays. A plan may refuse it with a `RefusedError` of code too_late.

        Raises
        ------
        InputError, FilterError
            At once, for a filter that is wrong.
        """
        found = spelled(filter, sql=sql, pattern=pattern, keywords=keywords, sigma=sigma)
        asked = id or filter_id(found)
        request = Request("subscribe", asked, found, quota_bytes, lease_s, wait_s, latency_ms=latency_ms)
        return LiveSubscription(self, request, raise_if_missing)

    async def unsubscribe(self, id: str, *, wait_s: float = 5.0) -> Mapping[str, str]:
        """End a subscription and drop what waits. Returns the brokers that still have it, with why."""
        answer = await self._ask(Request("unsubscribe", id, wait_s=wait_s))
        self._incoming.close(id)
        self._warn(f"the end of {id}", answer)
        return answer.missing

    async def advertise(
        self,
        filter: Filter | None = None,
        *,
        sql: str | None = None,
        pattern: Mapping[str, Any] | None = None,
        keywords: Sequence[str] | Sequence[Sequence[str]] | None = None,
        sigma: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> str:
        """Say what this client will publish; returns the id of the advertisement."""
        found = spelled(filter, sql=sql, pattern=pattern, keywords=keywords, sigma=sigma)
        id = id or filter_id(found)
        await self._ask(Request("advertise", id, found))
        return id

    async def unadvertise(self, id: str) -> None:
        """Take an advertisement back."""
        await self._ask(Request("unadvertise", id))

    async def subscriptions(self) -> dict[str, ClientSubscription]:
        """The subscriptions of this client by id, also those of earlier processes."""
        return {self._own(id): held for id, held in (await self._listed()).subscriptions.items()}

    async def advertisements(self) -> dict[str, Advertisement]:
        """The advertisements of this client by id."""
        return {self._own(id): found for id, found in (await self._listed()).advertisements.items()}

    async def resume(self, *, wait_s: float = 5.0) -> Mapping[str, str]:
        """Go on after a `SuspendedError`. Returns the brokers where it is not active yet, with why."""
        answer = await self._ask(Request("resume", wait_s=wait_s))
        self._incoming.forgive()
        self._warn("what was suspended", answer)
        return answer.missing

    async def deliveries(self, after: int | None = None) -> AsyncGenerator[DeliveredBatch, None]:
        """The events of all subscriptions of this client, in batches with their numbers.

        A batch is acknowledged when the loop asks for the next one. Without `after` reading goes on where
        this process, or the last one, left off. A delivery may be without events: its number counts. Do
        not iterate over subscriptions at the same time: they read the same lane.

        Raises
        ------
        SuspendedError
            See `resume`; come back with `after=error.number`.
        LostPositionError
            When the lane ends before `after`, or lost its end later. Come back with `after=error.last`.
        LostDeliveriesError
            When deliveries before the next one are gone. Come back without `after` for what follows.
        """
        async with contextlib.aclosing(self._incoming.deliveries(after)) as lane:
            async for delivered in lane:
                ids = tuple(map(self._own, delivered.subscriptions))
                by_row = delivered.by_row
                if by_row is not None:
                    by_row = tuple(tuple(map(self._own, some)) for some in by_row)
                yield DeliveredBatch(delivered.number, ids, delivered.events, by_row)

    async def acknowledge(self, number: int) -> None:
        """Deliveries up to this number are dealt with: for programs that read by `deliveries`."""
        await self._incoming.acknowledge(number)

    # --------------------------------------------------------------------------------------- requests

    def _own(self, id: str) -> str:
        """An id as the client gave it."""
        return id.removeprefix(f"{self.name}/")

    async def _listed(self) -> ClientRecord:
        answer = await self._ask(Request("list"))
        return answer.client or ClientRecord(self.name, "")

    def _warn(self, what: str, answer: Answer) -> None:
        if missing := sorted(answer.missing.items()):
            some = "; ".join(f"{broker}: {why}" for broker, why in missing[:_MISSING_SHOWN])
            more = f" and {len(missing) - _MISSING_SHOWN} more" if len(missing) > _MISSING_SHOWN else ""
            _log.warning("client %s: %s is not active everywhere yet (%s%s)", self.name, what, some, more)

    async def _ask(self, request: Request) -> Answer:
        """The broker's answer. One that may be another a moment later is asked for again, under the same
        name: what was done is not done twice."""
        named = msgspec.structs.replace(request, request=uuid.uuid4().hex)
        deadline = time.monotonic() + self._timeout_s + request.wait_s
        problem = Refusal("unreachable", f"the broker of client {self.name!r} did not answer {request.op}")
        async with self._turns:
            while (left := deadline - time.monotonic()) > 0:
                answer = await self._wires.ask_once(named, min(left, request.wait_s + REQUEST_MARGIN_S))
                pause_s = REQUEST_PAUSE_S
                if answer is not None and answer.error is None:
                    return answer
                if answer is not None and answer.error is not None:
                    if answer.error.code in TRANSIENT:
                        problem = answer.error
                        pause_s = max(pause_s, problem.retry_s)
                        if pause_s >= left:
                            break
                    elif not await self._guide.follow(answer.error):
                        raise refused(answer.error)
                await asyncio.sleep(min(pause_s, left))
        raise UnavailableError(problem.code, f"{problem.reason} (tried for {self._timeout_s:g} s)")


class LiveSubscription:
    """What `Client.subscribe` gives: awaitable, and an endless asynchronous iterator of `ReceivedEvent`.

    It ends when it is unsubscribed or the client is closed. `missing` says where it is not active yet.
    """

    def __init__(self, client: Client, request: Request, raise_if_missing: bool) -> None:
        self.id = request.id
        self.missing: Mapping[str, str] = {}
        self.revision = 0
        self._client = client
        self._request = request
        self._raise = raise_if_missing
        self._lock = asyncio.Lock()
        self._asked = False

    def __await__(self) -> Generator[Any, None, "LiveSubscription"]:
        return self._active().__await__()

    async def _active(self) -> "LiveSubscription":
        async with self._lock:
            if self._asked:
                return self
            client = self._client
            # from now on: what comes before the answer is for it too
            client._incoming.open(self.id)
            answer = await client._ask(self._request)
            client._incoming.forgive()
            self.missing, self.revision = answer.missing, answer.revision
            if answer.missing and self._raise:
                raise NotEverywhereError(self.id, answer.missing)
            client._warn(f"subscription {self.id}", answer)
            self._asked = True
        return self

    async def unsubscribe(self) -> None:
        """End it; iterating over it ends."""
        await self._client.unsubscribe(self.id)

    def __aiter__(self) -> "LiveSubscription":
        return self

    async def __anext__(self) -> ReceivedEvent:
        await self._active()
        found = await self._client._incoming.next(self.id)
        if found is None:
            raise StopAsyncIteration
        return found

    async def get(self, timeout_s: float | None = None) -> ReceivedEvent | None:
        """The next event; None when none came in time, or the subscription has ended."""
        await self._active()
        return await self._client._incoming.next(self.id, timeout_s)


class PendingClient:
    """A connection that is to be made: `await` it for a `Client`, or use it with `async with`."""

    def __init__(
        self,
        kind: type[Client],
        name: str,
        url: str,
        seed: str | None,
        seed_file: str | Path | None,
        after: int | None,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        on_move: Policy,
        insecure_clear_text: bool,
    ) -> None:
        check_clear_text(url, tls=tls is not None, insecure=insecure_clear_text)
        if seed is not None and seed_file is not None:
            raise InputError("give seed or seed_file, not both")
        if seed is not None:
            seed = pair_of(seed).seed
        elif seed_file is not None:
            seed = read_seed(Path(seed_file)).seed
        self._kind, self._name, self._url, self._seed = kind, name, url, seed
        self._seed_file = None if seed_file is None else Path(seed_file)
        self._after, self._timeout_s = after, timeout_s
        self._tls, self._on_move, self._insecure = tls, on_move, insecure_clear_text
        if on_move not in ("accept", "decline") and not callable(on_move):
            raise InputError(f"on_move is {on_move!r}: give 'accept', 'decline' or a function of the offer")
        self._made: Client | None = None
        self._prefix = inbox_prefix(CLIENT, name)

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connected().__await__()

    async def __aenter__(self) -> Client:
        self._made = await self._connected()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.close()

    async def _connected(self) -> Client:
        wires = Wires(await self._dial(self._url), self._url, self._dial)
        secret = self._seed.encode() if self._seed else os.urandom(32)
        return self._kind(
            wires, secret, after=self._after, timeout_s=self._timeout_s, on_move=self._on_move
        )

    async def _dial(self, url: str) -> LaneClient:
        last: list[str] = []

        def failed(error: Exception) -> None:
            last[:] = [str(error) or repr(error)]

        who, insecure = f"{CLIENT} {self._name}", self._insecure
        endpoint = Endpoint(url, self._seed, self._prefix, who, self._tls, insecure, self._seed_file)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await LaneClient.connect(self._name, endpoint, failed=failed)
        except (TimeoutError, ValueError) as error:
            why = (last or [str(error) or "no answer"])[0]
            raise LiveError(
                f"client {self._name!r} cannot connect to {url}: {why}. Is the overlay running, "
                "and is the key one that it knows?"
            ) from None
