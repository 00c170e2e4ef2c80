"""Clients' requests at their broker: checked here, decided by the leader.

Owns the subject `ramify.control.<client>` of a broker's server. The subject names the client: the
server lets nobody use another's. Form, sizes and filter are checked before anything is passed on, so that
the coordinator sees no nonsense; the lane of the client gets its consumer; and a client that was suspended
and asks for more is served again.

A request may be made again at will: the same one has the same effect.

No client delays another. Filters are checked beside the loop, clients in turn. A client that asks too
often, whose requests take too much CPU, or that has too many open requests is told so at once (`busy`), and
when to ask again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import SPELLINGS
from ramify.errors import FilterError, InputError, LimitError, LiveError
from ramify.overlay.control.fairness import ClientBudgets, RequestRates
from ramify.overlay.control.names import CONTROL, COORDINATE, name_of, token
from ramify.overlay.control.records import (
    OPS,
    Answer,
    ForwardedRequest,
    Refusal,
    Request,
    decode,
    encode,
    subscription_of,
)
from ramify.overlay.control.requests import LONGEST_ID, MOST_NUMBER, busy
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.broker.quotas import Guard
from ramify.overlay.live.wire.beside import Workbench

__all__ = [
    "MOST_OPEN",
    "MOST_REQUEST_BYTES",
    "Leader",
    "MoveWatch",
    "RequestDecider",
    "RequestDesk",
    "check_request",
    "respond",
]

MOST_REQUEST_BYTES = 128 << 10
LONGEST_WAIT_S = 60.0

MOST_OPEN = 64
"""Requests of one client that a broker works on, or waits with, at a time."""

_MOST_AT_ONCE = 4_096
_OPEN_RETRY_S = 0.5
_LEADER_RETRY_S = 0.2
_ANSWER_GRACE_S = 2.0
_TURN_S = 2.0
_NEEDS_ID = ("subscribe", "unsubscribe", "advertise", "unadvertise", "accept", "decline")
_NEEDS_FILTER = ("subscribe", "advertise")
_BY_ITSELF = ("where", "offer")
"""What a library asks without its user: no sign that somebody will read."""


def check_request(
    data: bytes, client: str, broker: str, schema: Mapping[str, AttributeType]
) -> Request | Refusal:
    """The request in these bytes, or what is wrong with it. Pure; a filter takes bounded time."""
    if len(data) > MOST_REQUEST_BYTES:
        return Refusal("limit", f"the request has {len(data)} bytes: at most {MOST_REQUEST_BYTES} are read")
    try:
        request = decode(data, Request)
        if request.op not in OPS:
            return Refusal("bad_request", f"op is {request.op[:40]!r}: give one of {', '.join(OPS)}")
        if request.op in _NEEDS_ID and not 0 < len(request.id.encode()) <= LONGEST_ID:
            return Refusal("bad_request", f"{request.op} needs id: 1 to {LONGEST_ID} bytes that name it")
        if not (1 <= request.quota_bytes <= MOST_NUMBER and 1 <= request.lease_s <= MOST_NUMBER):
            return Refusal("bad_request", f"quota_bytes and lease_s must be 1 to {MOST_NUMBER}")
        if request.op in _NEEDS_FILTER:
            if request.filter is None:
                return Refusal("bad_request", f"{request.op} needs filter: {', '.join(SPELLINGS)}")
            subscription_of(client, broker, request.id, request.filter).parse(schema)
    except FilterError as error:
        # what filters say when their boxes, or the work to find them, become too many
        code = "too_complex" if "normal form" in error.reason else "bad_filter"
        return Refusal(code, str(error))
    except LimitError as error:
        return Refusal("too_complex", str(error))
    except (InputError, UnicodeEncodeError, RecursionError) as error:
        return Refusal("bad_request", str(error))
    wait_s = min(max(0.0, request.wait_s), LONGEST_WAIT_S)
    return msgspec.structs.replace(request, wait_s=wait_s)


class Leader:
    """The way to the leader, at the subject of the one that asks."""

    def __init__(self, subject: str) -> None:
        self.connection: Nats | None = None
        self._subject = subject

    @classmethod
    def of_broker(cls, broker: str) -> "Leader":
        """The way of a broker."""
        return cls(f"{COORDINATE}.{token(broker)}")

    async def ask(self, passed: ForwardedRequest) -> Answer:
        """Pass a request on until it is answered, as long as it waits and a little longer. Never raises for
        what servers and leaders do: that is an answer too.

        It is asked in short turns, since requests may be repeated and a leader may die with one in hand.
        """
        wait_s = passed.request.wait_s
        deadline = time.monotonic() + wait_s
        last: Answer | None = None
        while True:
            left = deadline - time.monotonic()
            answer = await self._ask_once(passed, min(max(left, 0.0), _TURN_S))
            last = answer or last
            if answer is not None and _is_final(answer):
                return answer
            if deadline - time.monotonic() <= _LEADER_RETRY_S:
                if last is not None:
                    return last
                reason = f"no coordinator decides now (tried for {wait_s:g} s). Ask again later."
                return Answer(error=Refusal("no_coordinator", reason))
            await asyncio.sleep(_LEADER_RETRY_S)

    async def _ask_once(self, passed: ForwardedRequest, wait_s: float) -> Answer | None:
        """One turn; None when nobody is there to answer."""
        connection = self.connection
        if connection is None or not connection.is_connected:
            return None
        replace = msgspec.structs.replace
        turn = replace(passed, request=replace(passed.request, wait_s=wait_s))
        try:
            answer = await connection.request(self._subject, encode(turn), timeout=wait_s + _ANSWER_GRACE_S)
            return decode(answer.data, Answer)
        except nats.errors.NoRespondersError:
            return None
        except (nats.errors.Error, TimeoutError, OSError):
            reason = "no answer from the coordinator: it may have been done or not. Ask again."
            return Answer(error=Refusal("unavailable", reason))
        except InputError as error:
            return Answer(error=Refusal("unavailable", f"the coordinator's answer: {error}"))


class RequestDecider(Protocol):
    """What answers requests that are well formed."""

    async def ask(self, passed: ForwardedRequest) -> Answer:
        """The answer; servers that are away are an answer too."""


def _is_final(answer: Answer) -> bool:
    """Whether asking again could not make it better."""
    return not answer.missing and (answer.error is None or answer.error.code != "unavailable")


class MoveWatch(Protocol):
    """What knows of clients that move (`moves`)."""

    async def ask(self, client: str, request: Request, message: Msg) -> Answer | None:
        """The answer to what is about moves, or for a client that is elsewhere; None when it is another's,
        or comes later."""

    async def improved(self, client: str, answer: Answer) -> Answer:
        """A leader's answer, with where the client has moved to."""


class RequestDesk:
    """Answers the clients of one broker until cancelled."""

    def __init__(
        self,
        broker: Broker,
        guard: Guard,
        leader: RequestDecider,
        schema: Callable[[], Mapping[str, AttributeType]],
        moves: MoveWatch | None = None,
        rates: RequestRates | None = None,
    ) -> None:
        self.budgets = ClientBudgets(rates)
        self._bench = Workbench()
        self._open: Counter[str] = Counter()
        self._broker = broker
        self._guard = guard
        self._leader = leader
        self._schema = schema
        self._moves = moves
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer for good; the broker must be ready."""
        subscription = await self._broker.connection.subscribe(f"{CONTROL}.*", cb=self._came)
        try:
            await asyncio.Event().wait()
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if not self._broker.connection.is_closed:
                await subscription.unsubscribe()

    async def _came(self, message: Msg) -> None:
        if not message.reply:
            return
        try:
            client = name_of(message.subject.rsplit(".", 1)[1])
        except InputError as error:
            await respond(message, _problem("bad_request", str(error)))
            return
        refused = self._refusal(client)
        if refused is not None:
            await respond(message, Answer(error=refused))
            return
        self._open[client] += 1
        # not awaited: one that waits for the leader must not hold up the others
        task = asyncio.create_task(self._serve(client, message))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._closed(client, done))

    def _refusal(self, client: str) -> Refusal | None:
        """Why a client has to wait before it asks more. What is refused does not count."""
        now = time.monotonic()
        wait_s = self.budgets.wait_s(client, now)
        if wait_s:
            return busy(client, "asks too often, or its filters take too much work", wait_s)
        if self._open[client] >= MOST_OPEN:
            return busy(client, f"has {MOST_OPEN} open requests", _OPEN_RETRY_S)
        if len(self._tasks) >= _MOST_AT_ONCE:
            reason = "the broker has too many requests: ask later"
            return Refusal("unavailable", reason, retry_s=_OPEN_RETRY_S)
        self.budgets.count(client, now)
        return None

    def _closed(self, client: str, done: "asyncio.Task[None]") -> None:
        self._tasks.discard(done)
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    async def _serve(self, client: str, message: Msg) -> None:
        try:
            answer = await self._answer(client, message)
        except (LiveError, nats.errors.Error, TimeoutError, OSError) as error:
            answer = _problem("unavailable", f"the broker cannot do this now: {error}. Ask again.")
        if answer is not None:
            await respond(message, answer)

    async def _answer(self, client: str, message: Msg) -> Answer | None:
        checked = await self._checked(client, message.data)
        if isinstance(checked, Refusal):
            return Answer(error=checked)
        if checked.op not in _BY_ITSELF:
            self._guard.seen(client)
        if self._moves is not None:
            told = await self._moves.ask(client, checked, message)
            if told is not None or checked.op == "offer":
                return told
        if checked.op in ("subscribe", "resume"):
            await self._broker.add_clients([client])
            async with self._guard.serving(client):
                return await self._pass(client, checked)
        return await self._pass(client, checked)

    async def _checked(self, client: str, data: bytes) -> Request | Refusal:
        """Check a request beside the loop, at the client's expense: a filter may take a while."""
        name, schema = self._broker.config.name, self._schema()
        done = await self._bench.do(client, lambda: check_request(data, client, name, schema))
        self.budgets.charge(client, done.cpu_s, time.monotonic())
        return done.result

    async def _pass(self, client: str, request: Request) -> Answer:
        answer = await self._leader.ask(ForwardedRequest(self._broker.config.name, client, request))
        self._guard.changed(client)
        return answer if self._moves is None else await self._moves.improved(client, answer)


def _problem(code: str, reason: str) -> Answer:
    return Answer(error=Refusal(code, reason))


async def respond(message: Msg, answer: Answer) -> None:
    """Answer a request; one that does not arrive is made again."""
    try:
        try:
            await message.respond(encode(answer))
        except nats.errors.MaxPayloadError:
            reason = "the answer is larger than a message of this server may be: raise its max_payload"
            await message.respond(encode(Answer(error=Refusal("limit", reason))))
    except (nats.errors.Error, OSError):
        return  # the client asks again
