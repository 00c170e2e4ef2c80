"""The live broker: pulls its inputs, routes them in steps, writes its log, and comes back from anything.

Owns the loop. A step takes what waits on all inputs (clients' publishes and neighbours' lanes), routes
it, writes the outputs with the positions that they complete, and only then acknowledges the inputs.
Whatever goes wrong (a timeout, a dead server, another router's write), the broker loads its positions
from the log and has its inputs delivered again from there: an event that was acknowledged is never lost,
and none is doubled.

A neighbour that is dead or slow is a lane that is not read; a client likewise. Neither stops the loop. When
the log is full the broker pulls nothing until there is room: that is the backpressure.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

import nats.errors
from nats.aio.client import Client as Nats

from ramify.errors import InputError, LiveError
from ramify.overlay.live.intake import Limits, Published, Rejected
from ramify.overlay.live.lanes import Inlet, Verdict
from ramify.overlay.live.log import LogFullError, OutLog, Recovered, SupersededError
from ramify.overlay.live.names import DELIVER, IN, LINK, LOG, OUT, name_of, token
from ramify.overlay.live.pulling import Pulled, Puller
from ramify.overlay.live.security import INFO
from ramify.overlay.live.steps import Linked, Node, Stepped
from ramify.overlay.live.streams import (
    DUPLICATE_WINDOW_S,
    Endpoint,
    Sizes,
    api,
    connect,
    ensure_consumer,
    ensure_lanes,
    ensure_streams,
)

__all__ = ["Broker", "BrokerConfig", "Counters"]

CLIENTS = "*"
"""The input of what clients publish, among those of neighbours: no token is like it."""

_MOST_STEP_BYTES = 8 << 20
_MOST_STEP_MESSAGES = 512
_PURGE_EVERY_S = 5.0
_RETRY_S = (0.05, 0.1, 0.25, 0.5, 1.0)
_FULL_WAIT_S = 0.5
_GAP_S = 0.5
_IDLE_S = 0.005


@dataclass(frozen=True)
class BrokerConfig:
    """Who a broker is, where its server and its neighbours' servers are.

    `linger_s` is how long the first events of a step wait for others when events come fast.
    """

    name: str
    server: Endpoint
    neighbours: Mapping[str, Endpoint]
    clients: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    limits: Limits = field(default_factory=Limits)
    linger_s: float = 0.005


@dataclass(slots=True)
class Counters:
    """What a broker has done since it started; per neighbour where that is the key."""

    steps: int = 0
    frames: int = 0
    events: int = 0
    matchings: int = 0
    deliveries: int = 0
    rejects: int = 0
    recoveries: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    payload_bytes: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, done: Stepped) -> None:
        """Count a step that was committed."""
        self.steps += 1
        self.frames += done.frames_in
        self.events += done.events_in
        self.matchings += done.matchings
        self.deliveries += done.deliveries
        self.rejects += len(done.rejected)
        self.messages += done.messages
        self.payload_bytes += done.payload
        self.wire_bytes += done.wire


class _Input:
    """An input with its buffer. `due` is the last message of a step, to be acknowledged when it is safe."""

    def __init__(self, name: str, puller: Puller, connection: Nats) -> None:
        self.name = name
        self.puller = puller
        self.connection = connection
        self.inlet = Inlet()
        self.due: Pulled | None = None
        self.again: Pulled | None = None
        # to be delivered again from what is committed
        self.stale = False
        self.watched = False

    def number(self, message: Pulled) -> int:
        return message.sequence if self.name == CLIENTS else int(message.headers.get("L", "0"))

    @property
    def key(self) -> str:
        """Its name in positions."""
        return self.name if self.name == CLIENTS else token(self.name)


class Broker:
    """See the module. `run` until cancelled; `node` holds the plans."""

    def __init__(self, config: BrokerConfig, node: Node) -> None:
        self.config = config
        self.node = node
        self.counters = Counters()
        self._arrived = asyncio.Event()
        self._inputs: dict[str, _Input] = {}
        self._own: Nats | None = None
        self._log: OutLog | None = None
        self._begun: Mapping[str, int] | None = None
        self._begun_epoch = 0
        self._links: list[asyncio.Task[None]] = []
        self._busy = False
        self._old: list[tuple[float, int]] = []
        self.ready = asyncio.Event()
        # what went wrong last
        self.trouble = ""

    async def run(self) -> None:
        """Serve until cancelled; whatever servers do is survived.

        Raises
        ------
        SupersededError
            When another router of the same broker has started since.
        """
        try:
            self._own = await self._connected(CLIENTS, self.config.server)
            self._log = OutLog(self._own)
            await self._until_done(self._set_up)
            await self._until_done(self._take_over)
            # only now: what they need is where the log says that their lanes stand
            self._links = [
                asyncio.create_task(self._link(name, endpoint))
                for name, endpoint in self.config.neighbours.items()
            ]
            self.ready.set()
            keeper = asyncio.create_task(self._keep())
            self._links.append(keeper)
            while True:
                await self._turn()
        finally:
            await self._close()

    # --------------------------------------------------------------------------------------- set-up

    async def _set_up(self) -> None:
        own = self._connection
        await ensure_streams(own, self.config.sizes)
        await ensure_consumer(own, IN, "router")
        await ensure_lanes(own, self.config.neighbours, self.config.clients)
        if CLIENTS not in self._inputs:
            puller = Puller(own, IN, "router", self._arrived, f"$JS.API.CONSUMER.INFO.{IN}.router")
            await puller.start()
            self._inputs[CLIENTS] = _Input(CLIENTS, puller, own)

    async def _link(self, name: str, endpoint: Endpoint) -> None:
        """Read a neighbour's lane to here, from when its server and its router are there."""
        connection = await self._connected(name, endpoint)
        consumer = f"link_{token(self.config.name)}"
        puller = Puller(connection, OUT, consumer, self._arrived, f"{INFO}.{consumer}")
        source = _Input(name, puller, connection)
        while True:
            try:
                # its router makes the consumer: until then there is nothing to read
                await connection.request(f"{INFO}.{consumer}", b"", timeout=2)
                break
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(0.2)
        await source.puller.start()
        # nothing may come between these: a position that is out of date would lose or double events
        source.inlet.forget_taken(self._out.positions.get(source.key, 0))
        source.stale = True
        self._inputs[name] = source
        self._arrived.set()

    async def _connected(self, name: str, endpoint: Endpoint) -> Nats:
        """A connection, once its server is there."""
        while True:
            try:
                return await connect(endpoint, reconnected_cb=self._again(name))
            except LiveError as error:
                self.trouble = str(error)
                await asyncio.sleep(_RETRY_S[-1])

    def _again(self, name: str) -> Callable[[], Awaitable[None]]:
        async def stale() -> None:
            if name in self._inputs:
                self._inputs[name].stale = True
                self._arrived.set()

        return stale

    async def _until_done(self, what: Callable[[], Awaitable[None]]) -> None:
        for attempt in count():
            try:
                await what()
                return
            except SupersededError:
                raise
            except (LiveError, nats.errors.Error, TimeoutError, OSError) as error:
                self.trouble = repr(error)
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])

    # ---------------------------------------------------------------------------------------- steps

    async def _turn(self) -> None:
        """Wait for something to do and do one step; on any fault start over from the log."""
        self._arrived.clear()
        try:
            await self._refresh()
            if not any(source.puller.buffer for source in self._inputs.values()):
                await self._arrived.wait()
                return
            if self._busy and self.config.linger_s and len(self._inputs[CLIENTS].puller.buffer) < 64:
                await asyncio.sleep(self.config.linger_s)
            if not await self._step():
                await asyncio.sleep(_IDLE_S)
        except LogFullError:
            await asyncio.sleep(_FULL_WAIT_S)
            await self._until_done(self._recover)
        except (LiveError, nats.errors.Error, TimeoutError, OSError) as error:
            self.trouble = repr(error)
            self.counters.recoveries += 1
            await self._until_done(self._recover)

    async def _refresh(self) -> None:
        """Have inputs delivered again whose connection was made anew, or that missed something."""
        for source in list(self._inputs.values()):
            if source.stale or source.puller.strayed:
                source.stale = False
                source.inlet.forget_taken(source.inlet.committed)
                try:
                    await source.puller.reset()
                except (LiveError, nats.errors.Error, TimeoutError, OSError):
                    source.stale = True
                    if source.name == CLIENTS:
                        raise
                    asyncio.get_running_loop().call_later(0.5, self._arrived.set)

    async def _step(self) -> bool:
        """Do one step; False when what waits is nothing to work on, or not yet."""
        published, linked = self._gather()
        if not published and not linked:
            await self._acknowledge()
            return False
        # a step that was begun is finished in the epoch that it was begun in
        epoch = self.node.epoch if self._begun is None else self._begun_epoch
        done = self.node.step(published, linked, epoch)
        await self._reject(done.rejected)
        positions = {
            **self._out.positions,
            **{source.key: source.inlet.taken for source in self._inputs.values()},
        }
        await self._out.commit(done.outputs, positions, epoch)
        self._begun = None
        self._busy = len(published) > 1
        self.counters.add(done)
        for source in list(self._inputs.values()):
            source.inlet.commit(source.inlet.taken)
        await self._acknowledge()
        return True

    async def _acknowledge(self) -> None:
        """Tell the servers what is safe."""
        for source in list(self._inputs.values()):
            due = source.due or source.again
            source.due = source.again = None
            if due is not None:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await source.puller.acknowledge(due.reply)

    def _gather(self) -> tuple[list[Published], list[Linked]]:
        """What waits, in bounds; of a step that a crash cut, exactly its inputs, once all are here.

        Its inputs may come in another order than the first time, so the bounds could cut it: it has none.
        """
        published: list[Published] = []
        linked: list[Linked] = []
        if self._begun is not None and not self._is_whole(self._begun):
            return published, linked
        room = _MOST_STEP_BYTES
        for source in list(self._inputs.values()):
            last = None if self._begun is None else self._begun.get(source.key, 0)
            while source.puller.buffer:
                full = room <= 0 or len(published) + len(linked) >= _MOST_STEP_MESSAGES
                if full if last is None else source.inlet.taken >= last:
                    break
                message = source.puller.take()
                number = source.number(message)
                verdict = source.inlet.verdict(number)
                if verdict is Verdict.GAP:
                    self._missed(source, number)
                    continue
                if verdict is Verdict.OLD:
                    if number <= source.inlet.committed and source.due is None:
                        source.again = message  # its acknowledgement was lost
                    continue
                room -= len(message.payload)
                source.due = message
                if source.name == CLIENTS:
                    published.append(_published(message))
                else:
                    linked.append(Linked(source.name, number, message.headers, message.payload))
        return published, linked

    def _missed(self, source: _Input, number: int) -> None:
        """Something before a message did not come. After a reset that is normal for a moment: messages that
        were under way come first. If it stays so, have the input delivered again."""
        if source.watched:
            return
        source.watched = True

        def look() -> None:
            source.watched = False
            if source.inlet.taken < number - 1:
                source.stale = True
                self._arrived.set()

        asyncio.get_running_loop().call_later(_GAP_S, look)

    def _is_whole(self, begun: Mapping[str, int]) -> bool:
        """Whether every input of a step that was begun is in the buffers."""
        inputs = {source.key: source for source in self._inputs.values()}
        for key, last in begun.items():
            if self._out.positions.get(key, 0) >= last:
                continue
            if (source := inputs.get(key)) is None:
                return False
            here = {source.number(message) for message in source.puller.buffer}
            if not here.issuperset(range(source.inlet.taken + 1, last + 1)):
                return False
        return True

    async def _reject(self, rejected: list[Rejected]) -> None:
        """Keep what could not be used, with the reason. The id makes a second try harmless."""
        for entry in rejected:
            headers = {
                "Reason": entry.reason,
                "Detail": _ascii(" ".join(entry.detail.split())[:1000]),
                "Position": str(entry.position),
                "Nats-Msg-Id": _ascii(f"{entry.client}/{entry.position}/{entry.event_id}/{entry.reason}"),
            }
            subject = f"rejected.{token(entry.client)}"
            await self._connection.request(subject, entry.raw, timeout=5, headers=headers)

    async def _take_over(self) -> None:
        """Become the one router of this broker."""
        await self._out.load()
        await self._out.claim()
        await self._recover()

    async def _recover(self) -> None:
        """Go back to what the log says."""
        recovered: Recovered = await self._out.load()
        self._begun = recovered.begun
        self._begun_epoch = recovered.epoch or 0
        for source in list(self._inputs.values()):
            source.due = None
            source.inlet.forget_taken(recovered.positions.get(source.key, 0))
            source.stale = True
        await self._refresh()

    # ----------------------------------------------------------------------------------- keeping house

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_PURGE_EVERY_S)
            with contextlib.suppress(LiveError, nats.errors.Error, TimeoutError, OSError):
                await self.purge()

    async def purge(self, *, window_s: float = DUPLICATE_WINDOW_S) -> None:
        """Forget what everyone has: publishes that are routed and whose ids no client may send again, and
        of each lane all before the last message that its reader has."""
        own = self._connection
        lanes = [(f"link_{token(n)}", f"{LINK}.{token(n)}") for n in self.config.neighbours]
        lanes += [(f"client_{token(c)}", f"{DELIVER}.{token(c)}") for c in self.config.clients]
        for consumer, lane in lanes:
            told = await api(own, f"CONSUMER.INFO.{OUT}.{consumer}", {})
            floor = told.get("ack_floor")
            seq = int(floor["stream_seq"]) if isinstance(floor, dict) else 0
            if seq > 1:
                await self._out.purge(lane, seq)
        await self._out.purge(LOG, self._out.last)
        committed = self._inputs[CLIENTS].inlet.committed
        info = await api(own, f"STREAM.INFO.{IN}", {})
        state = info.get("state")
        full = isinstance(state, dict) and int(state["bytes"]) > self.config.sizes.published // 2
        now = time.monotonic()
        self._old.append((now, committed))
        old = [seq for at, seq in self._old if full or now - at >= window_s]
        if old and old[-1] > 1:
            await api(own, f"STREAM.PURGE.{IN}", {"seq": old[-1]})
        self._old = [(at, seq) for at, seq in self._old if now - at < window_s]

    @property
    def _connection(self) -> Nats:
        assert self._own is not None
        return self._own

    @property
    def _out(self) -> OutLog:
        assert self._log is not None
        return self._log

    async def _close(self) -> None:
        for task in self._links:
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        for source in list(self._inputs.values()):
            await source.puller.stop()
        others = {id(s.connection): s.connection for s in self._inputs.values()}
        for connection in [*others.values(), *([self._own] if self._own else [])]:
            with contextlib.suppress(Exception):
                await connection.close()


def _published(message: Pulled) -> Published:
    subject = message.subject.rsplit(".", 1)[1]
    try:
        client = name_of(subject)
    except InputError:
        client = subject
    headers = message.headers
    return Published(
        client, message.payload, headers.get("Content-Type"), headers.get("Nats-Msg-Id"), message.sequence
    )


def _ascii(text: str) -> str:
    """What a NATS header can hold."""
    return text.encode("ascii", "replace").decode()
