"""Clients that do not read: how much waits for each, and when it ends.

Owns the suspension of clients at their broker. A client has a quota of unread bytes and a lease that it
renews by whatever it does: asking, reading, acknowledging. Past either, the last message of its lane says
so (header X, with the reason), what was before it is purged, and deliveries to it are dropped and counted
until it asks for more (`resume`, or a new subscription): then a message with an empty X follows. The
leader is told, and takes the subscriptions out of the plans.

The suspension is in the log before the first delivery is dropped, so no crash can hide it: a client that
reads the lane learns of it. A lane whose last message has X is muted after a restart too.

The lane of a client that has moved to another broker ends with a message with the header M. What
waits on it is under quota and lease like any other; past either, a message with M and X follows. Once all
of it is read the leader is told, and it is watched no more.

A client's quota is the largest of its subscriptions, since they share a lane; so is its lease. When the log
is nearly full of what clients have not read, the client with the most is suspended although it is within
its quota: otherwise all would stand still.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import nats.errors
from nats.aio.client import Client as Nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from ramify.errors import LiveError
from ramify.overlay.control.moves import LaneEnd
from ramify.overlay.control.names import DELIVER, OUT, name_of, token
from ramify.overlay.control.output import Output
from ramify.overlay.control.records import (
    CLIENT_LEASE_S,
    CLIENT_QUOTA_BYTES,
    Answer,
    ClientRecord,
    ForwardedRequest,
    Request,
)
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.broker.log import LogEntry
from ramify.overlay.live.broker.retention import Reader
from ramify.overlay.live.wire.pauses import LANES_AT_ONCE
from ramify.overlay.live.wire.streams import api
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["Allowance", "Guard", "UnreadBytes", "overdue"]

QUOTA, LEASE = "quota", "lease"
"""Reasons of a suspension."""

_QUOTA_LOOK_S = 2.0
_RECORDS_PER_LOOK = 64
_MERGED_BYTES = 64 << 10
_MESSAGE_BYTES = 256  # of a message beside its payload, about
_TELL_AGAIN_S = 1.0
# shares of the log: nearly full; what clients must hold of it for one of them to be suspended
_NEARLY_FULL, _CLIENTS_PART = 7 / 8, 1 / 4


class UnreadBytes:
    """Bytes on lanes beyond the position of their readers. Pure.

    Never too low, and too high by less than 64 KiB and a message; O(unread / 64 KiB) memory.
    """

    def __init__(self) -> None:
        # lane -> (the sequence of the last of some messages, their bytes), oldest first
        self._lanes: dict[str, deque[tuple[int, int]]] = {}
        self._sum: dict[str, int] = {}

    def wrote(self, lane: str, sequence: int, size: int) -> None:
        """A message was written; sequences of a lane grow."""
        kept = self._lanes.setdefault(lane, deque())
        self._sum[lane] = self._sum.get(lane, 0) + size
        if kept and kept[-1][1] + size <= _MERGED_BYTES:
            size += kept.pop()[1]
        kept.append((sequence, size))

    def had(self, lane: str, sequence: int, size: int) -> None:
        """So much was there before all that is counted."""
        self._lanes.setdefault(lane, deque()).appendleft((sequence, size))
        self._sum[lane] = self._sum.get(lane, 0) + size

    def read(self, lane: str, floor: int) -> None:
        """Everything up to a sequence is acknowledged."""
        kept = self._lanes.get(lane)
        while kept and kept[0][0] <= floor:
            self._sum[lane] -= kept.popleft()[1]
        if not kept:
            self.forget(lane)

    def forget(self, lane: str) -> None:
        """Nothing waits on a lane."""
        self._lanes.pop(lane, None)
        self._sum.pop(lane, None)

    def size(self, lane: str) -> int:
        """What waits on a lane."""
        return self._sum.get(lane, 0)

    def sizes(self) -> Mapping[str, int]:
        """What waits on each lane that has something."""
        return self._sum


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a client may leave unread, and for how long it may be silent."""

    quota_bytes: int = CLIENT_QUOTA_BYTES
    lease_s: float = CLIENT_LEASE_S

    @classmethod
    def of(cls, record: ClientRecord | None) -> "Allowance":
        """The largest of a client's subscriptions."""
        held = [] if record is None else list(record.subscriptions.values())
        if not held:
            return cls()
        return cls(max(h.quota_bytes for h in held), max(h.lease_s for h in held))


def overdue(
    unread: Mapping[str, int],
    silent_s: Mapping[str, float],
    allowed: Mapping[str, Allowance],
    log_bytes: int,
    most_log_bytes: int,
) -> dict[str, str]:
    """The clients to suspend, each with the reason. Pure.

    `unread` and `silent_s` are by client; one without an allowance is left alone but for a full log.
    """
    found: dict[str, str] = {}
    for client, allowance in allowed.items():
        if unread.get(client, 0) > allowance.quota_bytes:
            found[client] = QUOTA
        elif silent_s.get(client, 0.0) > allowance.lease_s:
            found[client] = LEASE
    used = log_bytes - sum(unread.get(client, 0) for client in found)
    left = sorted(((size, c) for c, size in unread.items() if c not in found), reverse=True)
    held = sum(size for size, _ in left)
    for size, client in left:
        if used <= _NEARLY_FULL * most_log_bytes or held <= _CLIENTS_PART * most_log_bytes:
            break
        found[client] = QUOTA
        used -= size
        held -= size
    return found


@dataclass
class _ClientState:
    """What is known of a client here. Times are seconds since 1970: the server's are."""

    since_s: float
    allowance: Allowance | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # unread bytes include messages of before this process, of which only the number is known
    guessed: bool = False


class Guard:
    """Watches over the lanes of one broker's clients. See the module.

    `record` reads what a client asked for; `tell` passes a request on to the leader.
    """

    def __init__(
        self,
        broker: Broker,
        record: Callable[[str], Awaitable[ClientRecord | None]],
        tell: Callable[[ForwardedRequest], Awaitable[Answer]],
    ) -> None:
        self._broker = broker
        self._record = record
        self._tell = tell
        self._unread = UnreadBytes()
        self._known: dict[str, _ClientState] = {}
        self._telling: dict[str, asyncio.Task[None]] = {}
        # client -> why
        self.suspended: dict[str, str] = {}
        # clients that have moved away -> what their lane ends with; and those whose lane is over for good
        self._ended: dict[str, LaneEnd] = {}
        self._given_up: set[str] = set()

    # ---------------------------------------------------------------------------------- what is heard

    def wrote(self, written: Sequence[LogEntry]) -> None:
        """Count what a step put on lanes."""
        for each in written:
            kind, _, client = each.output.lane.rpartition(".")
            if kind == DELIVER:
                self._unread.wrote(client, each.sequence, len(each.output.payload) + _MESSAGE_BYTES)
                if self._ended or self._given_up:
                    self._ended.pop(name_of(client), None)
                    self._given_up.discard(name_of(client))

    def seen(self, client: str) -> None:
        """A client has shown itself."""
        self._of(client).since_s = time.time()

    def changed(self, client: str) -> None:
        """What a client asked for may have changed."""
        self._of(client).allowance = None

    def lags(self) -> dict[str, int]:
        """Messages that wait, by client; clients with none are left out."""
        found = {}
        for consumer, reader in self._broker.keeper.readers.items():
            kind, _, client = consumer.partition("_")
            if kind == "client" and reader.unread:
                found[name_of(client)] = reader.unread
        return found

    async def learn(self, clients: Iterable[str]) -> None:
        """Know of clients that a plan has here, before it is routed by: which of them are muted.

        Cost: one request, and one more for every new client whose lane has something.
        """
        new = [client for client in clients if client not in self._known]
        if not new:
            return
        lanes = await self._filled()
        filled = [client for client in new if token(client) in lanes]
        for at in range(0, len(filled), LANES_AT_ONCE):
            some = filled[at : at + LANES_AT_ONCE]
            found = await asyncio.gather(*(self._broker.last_headers(_lane(client)) for client in some))
            for client, headers in zip(some, found, strict=True):
                if "M" in headers:
                    self._has_ended(client, headers)
                elif reason := headers.get("X"):
                    self._mute(client, reason)
                    self._begin_telling(client, reason)
                else:
                    self._of(client).guessed = True
        for client in new:
            self._of(client)

    async def recall(self) -> None:
        """Know of the lanes that ended here before this process: no plan has their clients here.

        Cost: one request, and one more for every lane with something on it that is not known.
        """
        lanes = [lane for lane in await self._filled() if name_of(lane) not in self._known]
        for at in range(0, len(lanes), LANES_AT_ONCE):
            some = lanes[at : at + LANES_AT_ONCE]
            found = await asyncio.gather(*(self._broker.last_headers(f"{DELIVER}.{lane}") for lane in some))
            for lane, headers in zip(some, found, strict=True):
                if "M" in headers and name_of(lane) not in self._known:
                    self._has_ended(name_of(lane), headers)

    def _has_ended(self, client: str, headers: Mapping[str, str]) -> None:
        self._of(client).guessed = True
        self._ended[client] = LaneEnd.decode(headers["M"])
        if headers.get("X"):
            self._given_up.add(client)

    async def _filled(self) -> dict[str, int]:
        """Lanes of clients by token, with how many messages they have."""
        found: dict[str, int] = {}
        while True:
            body = {"subjects_filter": f"{DELIVER}.*", "offset": len(found)}
            told = await api(self._broker.connection, f"STREAM.INFO.{OUT}", body)
            some = told["state"].get("subjects") or {}
            found |= {subject.rsplit(".", 1)[1]: int(n) for subject, n in some.items()}
            if not some or len(found) >= int(told.get("total", 0)):
                return found

    # -------------------------------------------------------------------------------------- the watch

    async def run(self, every_s: float = _QUOTA_LOOK_S) -> None:
        """Look again and again. The broker must be ready."""
        recalled = False
        try:
            while True:
                with contextlib.suppress(LiveError, nats.errors.Error, TimeoutError, OSError):
                    if not recalled:
                        await self.recall()
                        recalled = True
                    await self.look()
                await asyncio.sleep(every_s)
        finally:
            await end_tasks(self._telling.values())

    async def look(self) -> None:
        """See where readers stand, and suspend clients that are due. Lanes get their readers' consumers."""
        await self._broker.add_clients(self._known)
        # a lane that ends while readers are looked at has more than they are seen to have
        over = set(self._ended)
        await self._broker.look()
        now = time.time()
        for client in list(self._known):
            reader = self._broker.keeper.readers.get(f"client_{token(client)}")
            if reader is not None:
                await self._note(client, reader, now)
                if reader.unread == 0 and client in over and client in self._ended:
                    self._leave(client)
        await self._read_records()
        watched = {
            c: k for c, k in self._known.items() if c not in self.suspended and c not in self._given_up
        }
        late = overdue(
            {name_of(t): size for t, size in self._unread.sizes().items()},
            {c: now - k.since_s for c, k in watched.items()},
            {c: k.allowance for c, k in watched.items() if k.allowance is not None},
            self._broker.keeper.log_bytes,
            self._broker.config.sizes.out,
        )
        for client, reason in late.items():
            # one that is asking for more right now is not gone
            if client not in self.suspended and not self._of(client).lock.locked():
                await self.suspend(client, reason)

    async def _note(self, client: str, reader: Reader, now: float) -> None:
        known, lane = self._of(client), token(client)
        known.since_s = max(known.since_s, now if reader.waiting else min(reader.active_s, now))
        self._unread.read(lane, reader.floor)
        if reader.unread == 0:
            known.guessed = False
            self._unread.forget(lane)
        elif known.guessed:
            # what is written while this is measured may count twice
            self._unread.forget(lane)
            self._unread.had(lane, *await lane_bytes(self._broker.connection, _lane(client), reader.floor))
            known.guessed = False

    async def _read_records(self) -> None:
        """Allowances that are not known, some at a time; clients with something unread first."""
        lacking = [c for c, k in self._known.items() if k.allowance is None and c not in self.suspended]
        lacking.sort(key=lambda client: -self._unread.size(token(client)))
        for client in lacking[:_RECORDS_PER_LOOK]:
            try:
                self._of(client).allowance = Allowance.of(await self._record(client))
            except LiveError:
                return  # without the control server, allowances that are known still hold

    # ----------------------------------------------------------------------------- suspending, resuming

    async def suspend(self, client: str, reason: str) -> None:
        """End the deliveries to a client. Raises `LiveError` when the log does not take it: try again."""
        lane = _lane(client)
        async with self._of(client).lock:
            headers = await self._broker.last_headers(lane)
            if "M" in headers:
                await self._give_up(client, reason, headers)
                return
            if headers.get("X"):
                self._mute(client, reason)
            else:
                said = Output(lane, b"", {"X": reason, "N": "0"})
                await self._broker.post(said, lambda: self._mute(client, reason))
            await self._broker.purge_lane(lane)
            self._unread.forget(token(client))
        self._begin_telling(client, reason)

    async def _give_up(self, client: str, reason: str, headers: Mapping[str, str]) -> None:
        """Drop what a client that has moved away left unread. Nothing else comes here, so that is all."""
        lane, onward = _lane(client), LaneEnd.decode(headers["M"])
        if not headers.get("X"):
            onward = msgspec.structs.replace(onward, end=onward.end or int(headers["L"]))
            await self._broker.post(Output(lane, b"", {"X": reason, "M": onward.encode(), "N": "0"}))
        await self._broker.purge_lane(lane)
        self._unread.forget(token(client))
        self._given_up.add(client)

    async def begin_lane(self, client: str) -> int:
        """Have a lane for a client that is to move here; returns the number that it ends with so far."""
        await self._broker.add_clients([client])
        async with self._of(client).lock:
            lane = _lane(client)
            if (await self._broker.last_headers(lane)).get("X"):
                await self._broker.post(Output(lane, b"", {"X": "", "R": "1", "N": "0"}))
            self._broker.node.muted.discard(client)
            self.suspended.pop(client, None)
            self._ended.pop(client, None)
            self._given_up.discard(client)
            self.seen(client)
            return int((await self._broker.last_headers(lane)).get("L", "0"))

    async def end_lane(self, client: str, onward: LaneEnd) -> int:
        """Write the last message of the lane of a client that has moved away, if it is not there; returns
        its number. The suspension of a client is passed on."""
        await self._broker.add_clients([client])
        async with self._of(client).lock:
            lane = _lane(client)
            headers = await self._broker.last_headers(lane)
            if "M" not in headers or LaneEnd.decode(headers["M"]).move != onward.move:
                said = {"M": onward.encode(), "N": "0"}
                if headers.get("X"):
                    said["X"] = headers["X"]
                await self._broker.post(Output(lane, b"", said))
                headers = await self._broker.last_headers(lane)
            self._ended[client] = found = LaneEnd.decode(headers["M"])
            self.suspended.pop(client, None)
            return found.end or int(headers["L"])

    def _leave(self, client: str) -> None:
        """All of an ended lane is read: say so, and watch it no more."""
        onward = self._ended.pop(client)
        self._given_up.add(client)
        name = self._broker.config.name
        self._begin(f"{client}/left", ForwardedRequest(name, client, Request("left", onward.move)))

    @contextlib.asynccontextmanager
    async def serving(self, client: str) -> AsyncIterator[None]:
        """Deliver to a client again, if that had ended; inside, it is not suspended."""
        await end_tasks([self._telling[client]] if client in self._telling else [])
        async with self._of(client).lock:
            lane = _lane(client)
            headers = await self._broker.last_headers(lane)
            if headers.get("X") and "M" not in headers:
                await self._broker.post(Output(lane, b"", {"X": "", "R": "1", "N": "0"}))
            self._broker.node.muted.discard(client)
            self.suspended.pop(client, None)
            yield

    def _mute(self, client: str, reason: str) -> None:
        self._broker.node.muted.add(client)
        self.suspended[client] = reason

    def _begin_telling(self, client: str, reason: str) -> None:
        self._begin(client, ForwardedRequest(self._broker.config.name, client, Request("suspend"), reason))

    def _begin(self, about: str, passed: ForwardedRequest) -> None:
        if about in self._telling:
            return
        task = asyncio.create_task(self._tell_leader(passed))
        self._telling[about] = task
        task.add_done_callback(lambda _: self._telling.pop(about, None))

    async def _tell_leader(self, passed: ForwardedRequest) -> None:
        """Until it answers: only then do plans stop sending events here for a client that is suspended."""
        while True:
            answer = await self._tell(passed)
            if answer.ok or (answer.error and answer.error.code not in ("no_coordinator", "unavailable")):
                return
            await asyncio.sleep(_TELL_AGAIN_S)

    def _of(self, client: str) -> _ClientState:
        if client not in self._known:
            self._known[client] = _ClientState(time.time())
        return self._known[client]


def _lane(client: str) -> str:
    return f"{DELIVER}.{token(client)}"


async def lane_bytes(connection: Nats, lane: str, floor: int) -> tuple[int, int]:
    """(the last sequence, the bytes) of what a lane has beyond a sequence. Reads headers only."""
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=floor + 1,
        headers_only=True,
        inactive_threshold=30.0,
    )
    last = size = 0
    try:
        pulled = await connection.jetstream().pull_subscribe(lane, stream=OUT, config=config)
        left = (await pulled.consumer_info()).num_pending or 0
        while left > 0:
            for message in await pulled.fetch(min(left, 500), timeout=5):
                size += int((message.headers or {}).get("Nats-Msg-Size", 0)) + _MESSAGE_BYTES
                last = message.metadata.sequence.stream
                left -= 1
        await pulled.unsubscribe()
    except nats.errors.Error as error:
        raise LiveError(f"the lane {lane} cannot be measured: {error!r}") from error
    return last, size
