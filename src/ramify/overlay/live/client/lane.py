"""A client on the wire: publishing until it is accepted, and reading the own lane without loss or doubles.

Owns the client's side of the lanes. `publish` returns when the event is stored by the broker's server,
and asks again with the same id until then; the server knows ids for ten minutes, so an answer that was
lost does no harm. Before they are over it gives up with `OutcomeUnknownError`.

`LaneReader` takes what comes on the lane, each number once and in order, and acknowledges what it is told
to. `deliveries` is the simple form of it: what was yielded is acknowledged when the next is asked for. A
client that keeps the number of the last one it has dealt with, together with the effects, and gives it as
`after` when it comes back, gets every delivery exactly once. Another may get the last ones again.

A server may lose what it had. No number is used twice on a lane (`broker.log`): where numbers jump, the
header J says what was before. A lane that ends before the position, or jumps from before it, lost its end:
that is a `LostPositionError`, once, and what comes behind it is taken when the reader goes on. A message
before which others are missing for good is a `LostDeliveriesError`, likewise.

A message with the header X and a reason says that the broker suspended the client: what was unread before
it is gone, and nothing follows until the client resumes. It is raised as `SuspendedError`, at its number.
One with an empty X says that the client is served again; it is a delivery without events.

A message with the header M says that the client has moved to another broker, and is the last one of the
lane; it is a delivery without events too. `moves` goes on from there.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import Client as Nats

from ramify.errors import LiveError
from ramify.overlay.control.lanes import Inlet, LaneVerdict
from ramify.overlay.control.moves import LaneEnd
from ramify.overlay.control.names import OUT, PUBLISH, token
from ramify.overlay.live.wire.pauses import FULL_CODES, LANE_GAP_S
from ramify.overlay.live.wire.pull import PulledMessage, Puller
from ramify.overlay.live.wire.security import INFO, LAST
from ramify.overlay.live.wire.streams import DUPLICATE_WINDOW_S, Endpoint, connect, disconnect

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DeliveredBatch",
    "LaneClient",
    "LaneReader",
    "LostDeliveriesError",
    "LostPositionError",
    "OutcomeUnknownError",
    "SuspendedError",
]

_TRY_S = 2.0
_WAIT_S = 0.2
# Longer than anything that was handed out to a reader that is gone takes to come again.
_GONE_S = 30.0


class OutcomeUnknownError(LiveError):
    """The broker's server did not answer in time: the events may have been accepted or not."""


class LostDeliveriesError(LiveError):
    """Something of the lane is gone. It is told once; who asks for more gets what comes behind it."""


class LostPositionError(LostDeliveriesError):
    """The lane ends at `last`, before `position`, up to which everything is said to be dealt with."""

    def __init__(self, client: str, position: int, last: int) -> None:
        self.position = position
        self.last = last
        super().__init__(
            f"the lane of client {client!r} ends at {last}, before the position {position}. The position "
            "is of another lane, or the broker's server has lost data: events may be missing, others may "
            f"come again. What is new comes when you ask again, or go on after {last}"
        )


class SuspendedError(LiveError):
    """The broker stopped serving this client. `reason` is quota or lease; `number` is where on the lane."""

    code = "suspended"

    def __init__(self, reason: str, number: int = 0, text: str | None = None) -> None:
        self.reason = reason
        self.number = number
        why = _SUSPENSIONS.get(reason, f"it was suspended: {reason}")
        super().__init__(
            text
            or f"{why}. Unread events are gone, and events that are published until the client resumes do "
            "not come. Call resume() (or subscribe again) to go on."
        )


_SUSPENSIONS = {
    "quota": "more waited for this client than its quota allows",
    "lease": "this client did not read for longer than its lease",
}


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """Events for some subscriptions of the client; `number` is the position on its lane.

    `subscriptions` are those that some event is for. `by_row` says which each event is for, where they
    differ; without it each event is for all of them.
    """

    number: int
    subscriptions: tuple[str, ...]
    events: "pa.RecordBatch"
    by_row: tuple[tuple[str, ...], ...] | None = None

    def subscriptions_of(self, row: int) -> tuple[str, ...]:
        """The subscriptions that the event of a row is for."""
        return self.subscriptions if self.by_row is None else self.by_row[row]

    def runs(self) -> list[tuple[tuple[str, ...], range]]:
        """The rows in their order, those that follow each other for the same subscriptions together."""
        rows = range(self.events.num_rows)
        runs = [list(some) for _, some in groupby(rows, key=self.subscriptions_of)]
        return [(self.subscriptions_of(some[0]), range(some[0], some[-1] + 1)) for some in runs]


class LaneClient:
    """See the module. One per client name and process."""

    def __init__(self, name: str, connection: Nats) -> None:
        self.name = name
        self.token = token(name)
        self.connection = connection
        # what the server said when it refused something for good; empty while it does not
        self.refused = ""

    @classmethod
    async def connect(
        cls,
        name: str,
        endpoint: Endpoint,
        *,
        failed: Callable[[Exception], None] = lambda error: None,
        **options: Any,
    ) -> "LaneClient":
        """Connect to the server of the client's broker; waits until it is there.

        `failed` hears of each attempt that did not succeed; `options` are those of nats-py.
        """
        client: LaneClient | None = None

        async def noted(error: Exception) -> None:
            failed(error)
            if client is not None and "permissions violation" in str(error).lower():
                client.refused = str(error)

        client = cls(name, await connect(endpoint, **{"error_cb": noted, **options}))
        return client

    async def close(self) -> None:
        """Disconnect."""
        await disconnect(self.connection)

    def check_allowed(self) -> None:
        """Raise `LiveError` when the server has refused what every client may do under its own name."""
        if self.refused:
            raise LiveError(f"{self.refused}: the key is not that of client {self.name!r}, or not one here")
        if self.connection.is_closed:
            raise LiveError(f"client {self.name!r} is closed")

    async def publish(
        self,
        events: "pa.RecordBatch | bytes",
        *,
        id: str | None = None,
        give_up_s: float = 60.0,
        content_type: str | None = None,
    ) -> int:
        """As `accepted`, without whether it was there."""
        return (await self.accepted(events, id=id, give_up_s=give_up_s, content_type=content_type))[0]

    async def accepted(
        self,
        events: "pa.RecordBatch | bytes",
        *,
        id: str | None = None,
        give_up_s: float = 60.0,
        content_type: str | None = None,
    ) -> tuple[int, bool]:
        """Publish a batch of events, or one CloudEvent as JSON; returns its place in the broker's stream,
        and whether it was there before this call.

        `id` tells two publishes apart from one that is tried again. A stream that is full is tried again
        too.

        Raises
        ------
        OutcomeUnknownError
            When no answer came within `give_up_s`, which counts up to half the time that ids are known.
        LiveError
            When the server refuses, and nothing was accepted.
        """
        headers = {"Nats-Msg-Id": id or uuid.uuid4().hex}
        if isinstance(events, bytes):
            payload = events
        else:
            content_type, payload = _encoded(events)
        if content_type is not None:
            headers["Content-Type"] = content_type
        deadline = time.monotonic() + min(give_up_s, DUPLICATE_WINDOW_S / 2)
        full, unanswered = "", False
        while (left := deadline - time.monotonic()) > 0:
            self.check_allowed()
            try:
                answer = await self.connection.request(
                    f"{PUBLISH}.{self.token}", payload, timeout=min(left, _TRY_S), headers=headers
                )
            except nats.errors.MaxPayloadError:
                raise LiveError(
                    f"the message has {len(payload)} bytes, the server takes {self.connection.max_payload}"
                ) from None
            except nats.errors.NoRespondersError:
                await asyncio.sleep(min(0.1, left))  # it was not stored: there is no stream yet
                continue
            except (nats.errors.Error, TimeoutError):
                unanswered = True
                await asyncio.sleep(min(0.1, left))
                continue
            told = json.loads(answer.data)
            if "error" not in told:
                # after a try without an answer nobody knows whose it is
                return int(told["seq"]), bool(told.get("duplicate")) and not unanswered
            said = str(told["error"].get("description"))
            if told["error"].get("err_code") not in FULL_CODES:
                raise LiveError(f"the broker refused the publish: {said}")
            full = said
            await asyncio.sleep(min(0.5, left))
        if full and not unanswered:
            raise LiveError(f"the broker has no room for more events ({full}): try again later")
        raise OutcomeUnknownError(
            f"no answer to publish {headers['Nats-Msg-Id']} within {give_up_s:g} s: it may have "
            "been accepted. Publish it again with the same id within ten minutes, or look for it."
        )

    async def last_headers(self) -> dict[str, str]:
        """The headers of the last message on the lane, none without one; waits for the server.

        The broker keeps the last one of every lane, for its number.
        """
        while True:
            self.check_allowed()
            try:
                told = await self.connection.request(f"{LAST}.{self.token}", b"", timeout=_TRY_S)
                headers = told.headers or {}
                if "L" in headers:
                    return headers
                if headers.get("Status") == "404":
                    return {}
            except (nats.errors.Error, TimeoutError):
                pass
            await asyncio.sleep(_WAIT_S)

    async def unread(self) -> tuple[int, int]:
        """How many messages of the lane are not acknowledged, and how many requests wait for some.

        Waits for the server and its router.
        """
        while True:
            self.check_allowed()
            try:
                told = await self.connection.request(f"{INFO}.client_{self.token}", b"", timeout=_TRY_S)
                state = json.loads(told.data)
                unread = int(state["num_pending"]) + int(state["num_ack_pending"])
                return unread, int(state["num_waiting"])
            except (nats.errors.Error, TimeoutError, KeyError):
                await asyncio.sleep(_WAIT_S)

    async def deliveries(self, after: int | None = None) -> AsyncIterator[DeliveredBatch]:
        """What comes on the lane after a number, in order, without end. See the module.

        Without a number it goes on after what was acknowledged last.
        """
        reader = LaneReader(self, after)
        try:
            while True:
                delivered = await reader.take()
                yield delivered
                await reader.acknowledge(delivered.number)
        finally:
            await reader.stop()


class LaneReader:
    """Takes what comes on a client's lane; `take` may be cancelled and called again, nothing is lost.

    What was taken stays unacknowledged until `acknowledge`: bound how much that is. Numbers are those of
    the lane and `base`, also in errors. What the lane has up to `start` is old.
    """

    def __init__(
        self, client: LaneClient, after: int | None = None, *, base: int = 0, start: int = 0
    ) -> None:
        self._client = client
        self._base, self._start = base, start
        self._nats = client.connection
        self._arrived = asyncio.Event()
        consumer = f"client_{client.token}"
        self._info = f"{INFO}.{consumer}"
        self._puller = Puller(self._nats, OUT, consumer, self._arrived, self._info)
        self._inlet = Inlet(start if after is None else max(start, after - base))
        # where the lane stands is known, or shows in what comes first: it comes in order after a reset
        self._known = after is not None
        self._started = False
        self._connections = -1
        # a number before which something is missing, and since when
        self._behind, self._since = 0, 0.0
        # since when nothing could be taken although something came, and the lowest number of that
        self._stuck, self._lowest = 0.0, 0
        # number -> where to acknowledge what was taken
        self._replies: dict[int, str] = {}
        self._suspension: tuple[int, str] | None = None
        # the last message of the lane, once it was taken
        self._onward: tuple[int, LaneEnd] | None = None

    @property
    def position(self) -> int:
        """The number of what was taken last."""
        return self._base + self._inlet.taken

    @property
    def onward(self) -> tuple[int, LaneEnd] | None:
        """The end of the lane as numbered there, and where to go on; None before all of it was taken."""
        return None if self._suspension is not None else self._onward

    @staticmethod
    def ended(headers: Mapping[str, str]) -> tuple[int, LaneEnd] | None:
        """As `onward`, by the headers of the last message of a lane."""
        if "M" not in headers:
            return None
        said = LaneEnd.decode(headers["M"])
        return said.end or int(headers["L"]), said

    @property
    def is_acknowledged(self) -> bool:
        """Whether all that was taken is."""
        return not self._replies

    async def take(self) -> DeliveredBatch:
        """The next one.

        Raises
        ------
        SuspendedError
            When the client is suspended; taking goes on behind that.
        LostPositionError
            When the lane ends before the position, at the start or after an outage.
        LiveError
            When what would be next can never come: another reader of this client has acknowledged it.
        """
        if not self._started:
            self._known = self._known or not await self._was_read()
            await self._check_position()
            await self._puller.start()
            self._started = True
        while True:
            self._client.check_allowed()
            self._arrived.clear()
            if self._suspension is not None:
                await self._raise_suspension(*self._suspension)
            await self._set_right()
            if self._connections != self._nats.stats["reconnects"]:
                continue
            if not self._puller.buffer:
                await self._wait(LANE_GAP_S)
                continue
            message = self._puller.take()
            number = int(message.headers.get("L", "0"))
            before = self._inlet.taken if self._known else -1
            jump = _jump(message)
            if self._known and jump is not None and self._inlet.taken > jump and number > self._inlet.taken:
                self._puller.put_back(message)
                self._lose_end(jump)
            verdict = self._verdict(number, message)
            if verdict is LaneVerdict.OLD and number <= self._inlet.committed:
                await self._puller.acknowledge(message.reply)  # the server did not hear it
            if verdict is not LaneVerdict.NEXT:
                continue
            self._replies[number] = message.reply
            self._onward = self.ended(message.headers)
            reason = message.headers.get("X")
            # the end of a lane repeats the suspension that is right before it: a reader of that one knows
            last = number - 1 if jump is None else jump
            repeated = before == last and self._onward is not None and self._onward[0] == number
            if reason and not repeated:
                self._suspension = number, reason
            elif reason is not None or self._onward is not None:
                return DeliveredBatch(self._base + number, (), _nothing())
            else:
                named = json.loads(message.headers.get("F", "[]"))
                return _delivered(self._base + number, named, message.payload)

    async def acknowledge(self, number: int) -> None:
        """This one and all before it are dealt with. Never raises for a server that is away: what it does
        not hear comes again, and is dropped."""
        number -= self._base
        self._inlet.commit(number)
        last = max((n for n in self._replies if n <= number), default=None)
        if last is None:
            return
        reply = self._replies[last]
        self._replies = {n: r for n, r in self._replies.items() if n > number}
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._puller.acknowledge(reply)

    async def stop(self) -> None:
        """Read no more."""
        if self._started:
            await self._puller.stop()

    def _verdict(self, number: int, message: PulledMessage) -> LaneVerdict:
        if not self._known:
            if self._connections != self._nats.stats["reconnects"]:
                return LaneVerdict.GAP
            self._inlet.forget_taken(max(number - 1, self._start))
            self._known = True
        verdict = self._inlet.verdict(number)
        if verdict is LaneVerdict.GAP and ("X" in message.headers or _jump(message) == self._inlet.taken):
            # what was before it is purged, or there is nothing
            if "X" in message.headers:
                self._inlet.forget_taken(number - 1)
                self._replies.clear()
            self._inlet.taken = number - 1
            verdict = self._inlet.verdict(number)
        now = time.monotonic()
        if verdict is LaneVerdict.GAP:
            self._since = self._since if self._behind else now
            self._lowest = min(self._lowest, number) if self._stuck else number
            self._stuck = self._stuck or now
            self._behind = max(self._behind, number)
        elif verdict is LaneVerdict.NEXT:
            self._stuck = 0.0
            if self._inlet.taken >= self._behind:
                self._behind = 0
        elif number > self._inlet.committed:
            self._replies[number] = message.reply  # after a reset the earlier one counts no more
        return verdict

    async def _set_right(self) -> None:
        """Have the lane delivered again from what was acknowledged, if something is missing."""
        while self._connections != (connections := self._nats.stats["reconnects"]):
            self._stuck = 0.0
            if not self._known:
                await self._reset()
            elif self._connections >= 0:
                # the server may have come back with less than it had
                await self._check_position()
            self._connections = connections
        if self._stuck and time.monotonic() - self._stuck > _GONE_S:
            self._stuck = 0.0
            said = (
                f"the deliveries after {self.position} of client {self._client.name!r} were "
                f"acknowledged before, or are lost: go on after {self._base + self._lowest - 1}, and keep "
                "the position with what it stands for"
            )
            self._inlet.taken = self._lowest - 1
            raise LostDeliveriesError(said)
        late = self._behind > self._inlet.taken + 1 and time.monotonic() - self._since > LANE_GAP_S
        if late or (self._puller.strayed and await self._has_strayed()):
            self._behind = 0
            await self._reset()

    async def _reset(self) -> None:
        self._replies.clear()
        await self._insist(self._puller.reset)
        await self._check_position()

    async def _check_position(self) -> None:
        """Raise `LostPositionError` when the lane ends before what was taken."""
        if self._inlet.taken == 0:
            return
        last = int((await self._client.last_headers()).get("L", "0"))
        if last < self._inlet.taken:
            self._lose_end(last)

    def _lose_end(self, last: int) -> None:
        """The lane has nothing behind a number that is before the position: tell, and go on behind it."""
        said = LostPositionError(self._client.name, self.position, self._base + last)
        self._replies = {n: reply for n, reply in self._replies.items() if n <= last}
        self._inlet.forget_taken(last)
        raise said

    async def _has_strayed(self) -> bool:
        """Whether the server waits for more acknowledgements than there are messages taken and held."""
        self._puller.strayed = False
        try:
            told = json.loads((await self._nats.request(self._info, b"", timeout=_TRY_S)).data)
        except (nats.errors.Error, TimeoutError):
            return False
        return int(told.get("num_ack_pending", 0)) > len(self._replies) + len(self._puller.buffer)

    async def _raise_suspension(self, number: int, reason: str) -> None:
        """A reader that begins again finds it, until the client has resumed: then something follows."""
        if not self._puller.buffer:
            await self._wait(LANE_GAP_S)
        if self._puller.buffer:
            await self.acknowledge(self._base + number)
        self._suspension = None
        raise SuspendedError(reason, self._base + number)

    async def _wait(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._arrived.wait()

    async def _was_read(self) -> bool:
        """Whether anything on the lane was ever acknowledged."""
        while True:
            self._client.check_allowed()
            try:
                told = json.loads((await self._nats.request(self._info, b"", timeout=_TRY_S)).data)
                return int(told["ack_floor"]["stream_seq"]) > 0
            except (nats.errors.Error, TimeoutError, KeyError):
                # its router makes the consumer: until then nothing can be read
                await asyncio.sleep(_WAIT_S)

    async def _insist(self, what: Callable[[], Awaitable[None]]) -> None:
        while True:
            self._client.check_allowed()
            try:
                return await what()
            except (LiveError, nats.errors.Error, TimeoutError):
                await asyncio.sleep(_WAIT_S)


def _jump(message: PulledMessage) -> int | None:
    """What a message says is before it on its lane, where that is not the number before its own."""
    return int(message.headers["J"]) if "J" in message.headers else None


# Arrow is loaded with the first batch: a client that only waits has a third of the memory.


def _encoded(events: "pa.RecordBatch") -> tuple[str, bytes]:
    """Content type and bytes of a batch."""
    from ramify.overlay.control.frames import encode_events
    from ramify.overlay.control.intake import ARROW_TYPE

    return ARROW_TYPE, encode_events(events)


def _delivered(number: int, named: list[Any], payload: bytes) -> DeliveredBatch:
    """A delivery, from what its header `F` says and its payload. Raises `InputError`."""
    from ramify.overlay.control.frames import decode_entries

    events, places = decode_entries(payload)
    if places is None:
        return DeliveredBatch(number, tuple(named), events)
    sets = [tuple(ids) for ids in named]
    if len(places) and not 0 <= places.min() <= places.max() < len(sets):
        raise LiveError(f"delivery {number} has an event for none of its {len(sets)} lists of ids")
    union = tuple(dict.fromkeys(id for ids in sets for id in ids))
    return DeliveredBatch(number, union, events, tuple(sets[place] for place in places.tolist()))


def _nothing() -> "pa.RecordBatch":
    import pyarrow as pa

    from ramify.content.events.events import FIXED_COLUMNS

    return pa.RecordBatch.from_pylist([], FIXED_COLUMNS)
