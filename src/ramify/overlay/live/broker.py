"""The live broker: pulls its inputs, routes them in steps, writes its log, and comes back from anything.

Owns the loop. A step takes what waits on all inputs (clients' publishes and neighbours' lanes), routes
it, writes the outputs with the positions that they complete, and only then acknowledges the inputs.
Whatever goes wrong (a timeout, a dead server, another router's write), the broker loads its positions
from the log and has its inputs delivered again from there: an event that was acknowledged is never lost,
and none is doubled.

A neighbour that is dead or slow is a lane that is not read; a client likewise. Neither stops the loop. When
the log is full the broker pulls nothing until there is room: that is the backpressure.

Whoever governs the broker (`governed`) gives it a *gate*: while that is closed no step is taken. Under
`between_steps` no step is under way, and what the log has is known.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import nats.errors
from nats.aio.client import Client as Nats

from ramify.errors import InputError, LiveError
from ramify.overlay.live.counters import Counters
from ramify.overlay.live.intake import Limits, Published, Rejected
from ramify.overlay.live.keeping import Keeper
from ramify.overlay.live.lanes import Inlet, Verdict
from ramify.overlay.live.log import LogFullError, OutLog, Output, Recovered, SupersededError, Written
from ramify.overlay.live.memory import StepSize, give_back
from ramify.overlay.live.names import DELIVER, IN, LINK, OUT, name_of, token
from ramify.overlay.live.pulling import Pulled, Puller
from ramify.overlay.live.security import INFO
from ramify.overlay.live.steps import Linked, Node, Stepped
from ramify.overlay.live.streams import (
    DUPLICATE_WINDOW_S,
    Endpoint,
    Sizes,
    connect,
    ensure_consumer,
    ensure_lanes,
    ensure_streams,
)
from ramify.overlay.live.tasks import end_tasks

__all__ = ["Broker", "BrokerConfig"]

CLIENTS = "*"
"""The input of what clients publish, among those of neighbours: no token is like it."""

ROWS = "*rows"
"""Among positions: how many events of the next message of clients are routed already, where some are."""

_MOST_STEP_BYTES = 8 << 20
_MOST_STEP_MESSAGES = 512
_PURGE_EVERY_S = 5.0
_RETRY_S = (0.05, 0.1, 0.25, 0.5, 1.0)
_FULL_WAIT_S = 0.5
_GAP_S = 0.5
_RESET_AGAIN_S = 0.5
_MOST_DIGITS = 20
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


@dataclass(frozen=True, slots=True)
class _Post:
    """A message to be written; `told` gets the outcome."""

    output: Output
    then: Callable[[], None]
    told: asyncio.Future[None]


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
        self.resetting = False
        self.watched = False
        # what waited at the server behind the last message that was taken
        self.behind = 0

    def number(self, message: Pulled) -> int:
        if self.name == CLIENTS:
            return message.sequence
        text = message.headers.get("L", "")
        # not one of a router's: as if it had come before
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self.puller.buffer) and not self.resetting

    @property
    def lag(self) -> int:
        """Messages that wait here and, when it was last heard of, at its server."""
        buffer = self.puller.buffer
        return len(buffer) + _left(buffer[-1]) if buffer else self.behind

    @property
    def key(self) -> str:
        """Its name in positions."""
        return self.name if self.name == CLIENTS else token(self.name)


class Broker:
    """See the module. `run` until cancelled; `node` holds the plans.

    `on_commit` hears of every step once it is in the log, with what was written.
    """

    def __init__(
        self,
        config: BrokerConfig,
        node: Node,
        *,
        gate: Callable[[], bool] = lambda: True,
        on_commit: Callable[[Stepped, Sequence[Written]], None] | None = None,
    ) -> None:
        self.config = config
        self.node = node
        self.counters = Counters()
        # the clients whose lanes have a reader's consumer
        self.clients: set[str] = set(config.clients)
        self.keeper = Keeper(config.sizes)
        self.ready = asyncio.Event()
        # what went wrong last
        self.trouble = ""
        self._gate = gate
        self._on_commit = on_commit
        self._arrived = asyncio.Event()
        self._between = asyncio.Lock()
        self._posts: deque[_Post] = deque()
        self._inputs: dict[str, _Input] = {}
        self._own: Nats | None = None
        self._log: OutLog | None = None
        self._begun: Mapping[str, int] | None = None
        self._begun_epoch = 0
        self._links: list[asyncio.Task[None]] = []
        self._resets: set[asyncio.Task[None]] = set()
        self._busy = False
        self._size = StepSize(_MOST_STEP_MESSAGES)
        # neighbour -> the end of its lane when the log was last loaded; (neighbour, epoch) -> written since
        self._ends: dict[str, int] = {}
        self._counted: dict[tuple[str, int], int] = {}

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

    # ------------------------------------------------------------------------------ for who governs it

    def wake(self) -> None:
        """Look at the gate again."""
        self._arrived.set()

    @contextlib.asynccontextmanager
    async def between_steps(self) -> AsyncIterator[bool]:
        """No step is under way inside; False when one was begun that is still to be finished.

        Waits as long as the broker's server does not say what the log has.
        """
        async with self._between:
            yield self._begun is None

    def sent(self, epochs: Iterable[int]) -> dict[tuple[str, int], int]:
        """(neighbour, epoch) -> the last number with that epoch on the lane to it, or higher."""
        return {
            (name, epoch): max(self._ends.get(name, 0), self._counted.get((name, epoch), 0))
            for name in self.config.neighbours
            for epoch in epochs
        }

    def committed(self) -> dict[str, int]:
        """Neighbour -> the position in the lane from it."""
        return {name: self._out.positions.get(token(name), 0) for name in self.config.neighbours}

    def lags(self) -> tuple[int, dict[str, int]]:
        """Messages that wait: published ones, and by neighbour."""
        links = {name: source.lag for name, source in self._inputs.items() if name != CLIENTS}
        return self._inputs[CLIENTS].lag if CLIENTS in self._inputs else 0, links

    async def post(self, output: Output, then: Callable[[], None] = lambda: None) -> None:
        """Write one message of the broker's own to a lane, and do `then` before any step that follows.

        Raises `LiveError` when its outcome is unknown, `LogFullError` when there was no room.
        """
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._posts.append(_Post(output, then, told))
        self._arrived.set()
        await told

    async def last_headers(self, lane: str) -> dict[str, str]:
        """The headers of the last message on a lane."""
        return await self._out.last_headers(lane)

    async def purge_lane(self, lane: str) -> None:
        """Forget all of a lane but its last message."""
        await self._out.purge(lane, self._out.last + 1)

    async def add_clients(self, clients: Iterable[str]) -> None:
        """Have a reader's consumer for the lanes of these clients. Cost: a request for each new one."""
        new = sorted(set(clients) - self.clients)
        if new:
            await ensure_lanes(self.connection, (), new)
            self.clients.update(new)

    async def check_claim(self) -> None:
        """Raise `SupersededError` when another router has taken this broker over."""
        async with self._between:
            await self._out.check_claim()

    # --------------------------------------------------------------------------------------- set-up

    async def _set_up(self) -> None:
        own = self.connection
        await ensure_streams(own, self.config.sizes)
        await ensure_consumer(own, IN, "router")
        await ensure_lanes(own, self.config.neighbours, self.config.clients)
        self.node.most_bytes = own.max_payload
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
        for attempt in count():
            try:
                # its router makes the consumer: until then there is nothing to read
                await connection.request(f"{INFO}.{consumer}", b"", timeout=2)
                break
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
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
        if not self._posts and not (self._gate() and await self._is_work()):
            since = time.monotonic()
            await self._arrived.wait()
            # after a rest the first message goes at once
            self._busy = self._busy and time.monotonic() - since < self.config.linger_s
            return
        if self._busy and self.config.linger_s and 0 < len(self._inputs[CLIENTS].puller.buffer) < 64:
            await asyncio.sleep(self.config.linger_s)
        pause = 0.0
        async with self._between:
            try:
                await self._say()
                # asked again: a lease may have lapsed while this waited
                if not (self._gate() and await self._step()):
                    pause = _IDLE_S
            except LogFullError:
                pause = _FULL_WAIT_S
                # part of it may have been written
                await self._until_done(self._recover)
            except (LiveError, nats.errors.Error, TimeoutError, OSError) as error:
                await self._start_over(error)
        if pause:
            await asyncio.sleep(pause)

    async def _is_work(self) -> bool:
        """Whether something waits on an input, once all are as they should be."""
        try:
            await self._refresh()
        except (LiveError, nats.errors.Error, TimeoutError, OSError) as error:
            async with self._between:
                await self._start_over(error)
        return any(source.waiting for source in self._inputs.values())

    async def _start_over(self, error: Exception) -> None:
        self.trouble = repr(error)
        self.counters.recoveries += 1
        await self._until_done(self._recover)

    async def _say(self) -> None:
        """Write what was posted. Whoever posted it hears of a fault and decides anew."""
        while self._posts and self._begun is None:
            post = self._posts.popleft()
            told = post.told
            try:
                await self._out.commit([post.output], self._out.positions, max(self.node.epoch, 0))
            except BaseException as error:
                if not told.done():
                    known = isinstance(error, LiveError)
                    told.set_exception(error if known else LiveError(f"not known to be written: {error!r}"))
                raise
            post.then()
            if not told.done():
                told.set_result(None)

    async def _refresh(self) -> None:
        """Have inputs delivered again whose connection was made anew, or that missed something."""
        for source in list(self._inputs.values()):
            if source.resetting or not (source.stale or source.puller.strayed):
                continue
            if source.name == CLIENTS:
                await self._read_again(source)
            elif source.connection.is_connected:
                # not awaited: a neighbour that does not answer must not hold up the others
                source.resetting = True
                task = asyncio.create_task(self._read_link_again(source))
                self._resets.add(task)
                task.add_done_callback(self._resets.discard)

    async def _read_again(self, source: _Input) -> None:
        source.stale = False
        source.inlet.forget_taken(source.inlet.committed)
        try:
            await source.puller.reset()
        except BaseException:
            source.stale = True
            raise

    async def _read_link_again(self, source: _Input) -> None:
        """Nothing is taken from it meanwhile: see `_Input.waiting`."""
        try:
            await self._read_again(source)
        except (LiveError, nats.errors.Error, TimeoutError, OSError):
            await asyncio.sleep(_RESET_AGAIN_S)
        finally:
            source.resetting = False
            self._arrived.set()

    async def _step(self) -> bool:
        """Do one step; False when what waits is nothing to work on, or not yet."""
        # a step that was begun is finished in the epoch that it was begun in
        epoch = self.node.epoch if self._begun is None else self._begun_epoch
        if epoch not in self.node.epochs:
            self.trouble = f"epoch {epoch} is to be routed by, but is not known here yet"
            return False
        published, linked = self._gather()
        if not published and not linked:
            await self._acknowledge()
            return False
        rows = self._out.positions.get(ROWS, 0), (self._begun or {}).get(ROWS)
        done = self.node.step(published, linked, epoch, rows)
        if self._begun is None and not done.fits:
            if len(published) + len(linked) > 1:
                self._size.shrink(len(published) + len(linked))
                await self._until_done(self._recover)
                return True
            done, rows = self._cut(published, linked, epoch, rows[0], done)
        await self._reject(done.rejected)
        await self._out.commit(done.outputs, self._reached(rows[1]), epoch)
        self._begun = None
        self._busy = len(published) > 1
        self._size.learn(len(published) + len(linked), done.outputs)
        if rows[1] is not None:
            self._put_back()
        self.counters.add(done)
        self._note_sent(self._out.written)
        if self._on_commit is not None:
            self._on_commit(done, self._out.written)
        for source in list(self._inputs.values()):
            source.inlet.commit(source.inlet.taken)
        await self._acknowledge()
        return True

    def _cut(
        self, published: list[Published], linked: list[Linked], epoch: int, first: int, whole: Stepped
    ) -> tuple[Stepped, tuple[int, int | None]]:
        """As many of a message's events as one write can have, from `first` on; at least one."""
        end, done = whole.readable, whole
        while published and end - first > 1 and not done.fits:
            end = first + (end - first) // 2
            done = self.node.step(published, linked, epoch, (first, end))
        return done, (first, None if end == whole.readable else end)

    def _reached(self, end: int | None) -> dict[str, int]:
        """The positions that a step reaches; with `end`, it stops in the middle of a client's message."""
        positions = {
            **self._out.positions,
            **{source.key: source.inlet.taken for source in self._inputs.values()},
        }
        positions.pop(ROWS, None)
        if end is not None:
            positions[CLIENTS] -= 1
            positions[ROWS] = end
        return positions

    def _put_back(self) -> None:
        """Have a client's message come again of which only some events are routed."""
        source = self._inputs[CLIENTS]
        assert source.due is not None
        source.puller.put_back(source.due)
        source.due = None
        source.inlet.forget_taken(source.inlet.taken - 1)
        self._arrived.set()

    def _note_sent(self, written: Sequence[Written]) -> None:
        for each in written:
            lane, _, to = each.output.lane.rpartition(".")
            if lane == LINK:
                self._counted[name_of(to), int(each.output.headers["E"])] = each.number

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
        # the rest of a message that was routed in part is a step of its own
        alone = self._begun is None and ROWS in self._out.positions
        for source in [self._inputs[CLIENTS]] if alone else list(self._inputs.values()):
            last = None if self._begun is None else _last(self._begun, source.key)
            if alone:
                last = source.inlet.committed + 1
            while source.waiting:
                full = room <= 0 or len(published) + len(linked) >= self._size.messages
                if full if last is None else source.inlet.taken >= last:
                    break
                message = source.puller.take()
                source.behind = _left(message)
                number = source.number(message)
                verdict = source.inlet.verdict(number)
                if verdict is Verdict.GAP:
                    self._missed(source, number)
                    continue
                if verdict is Verdict.OLD:
                    self.counters.redeliveries += 1
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
        for key in begun.keys() - {ROWS}:
            last = _last(begun, key)
            if self._out.positions.get(key, 0) >= last:
                continue
            if (source := inputs.get(key)) is None or source.resetting:
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
            await self.connection.request(subject, entry.raw, timeout=5, headers=headers)

    async def _take_over(self) -> None:
        """Become the one router of this broker."""
        await self._out.load()
        await self._out.claim()
        await self._recover()

    async def _recover(self) -> None:
        """Go back to what the log says."""
        recovered: Recovered = await self._out.load()
        # what was written without an answer is counted by this, with every epoch
        names = list(self.config.neighbours)
        ends = await asyncio.gather(*(self._out.number(f"{LINK}.{token(name)}") for name in names))
        self._ends = dict(zip(names, ends, strict=True))
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
            if self._size.settle():
                await asyncio.to_thread(give_back)

    async def look(self) -> None:
        """See where readers stand (`keeper.readers`). Cost: a request per 256 lanes."""
        await self.keeper.look(self.connection)

    async def purge(self, *, window_s: float = DUPLICATE_WINDOW_S) -> None:
        """Forget what everyone has: publishes that are routed and whose ids no client may send again, and
        of each lane all before the last message that its reader has."""
        await self.look()
        lanes = [(f"link_{token(n)}", f"{LINK}.{token(n)}") for n in self.config.neighbours]
        lanes += [(f"client_{token(c)}", f"{DELIVER}.{token(c)}") for c in sorted(self.clients)]
        await self.keeper.purge_lanes(self._out, lanes)
        routed = self._inputs[CLIENTS].inlet.committed
        await self.keeper.purge_published(self.connection, routed, window_s)

    @property
    def connection(self) -> Nats:
        """To the own server, from when `run` has connected."""
        assert self._own is not None
        return self._own

    @property
    def _out(self) -> OutLog:
        assert self._log is not None
        return self._log

    async def _close(self) -> None:
        while self._posts:
            told = self._posts.popleft().told
            if not told.done():
                told.set_exception(LiveError("the broker ended before this was written"))
        await end_tasks([*self._links, *self._resets])
        await asyncio.gather(*(s.puller.stop() for s in self._inputs.values()), return_exceptions=True)
        others = {id(s.connection): s.connection for s in self._inputs.values()}
        open_ones = [*others.values(), *([self._own] if self._own else [])]
        await asyncio.gather(*(connection.close() for connection in open_ones), return_exceptions=True)


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


def _last(begun: Mapping[str, int], key: str) -> int:
    """The last message of an input that a step takes in, all of it or, of a client's, some events."""
    return begun.get(key, 0) + (key == CLIENTS and ROWS in begun)


def _left(message: Pulled) -> int:
    """How many messages waited behind this one when it was sent."""
    return int(message.reply.rpartition(".")[2] or 0)


def _ascii(text: str) -> str:
    """What a NATS header can hold."""
    return text.encode("ascii", "replace").decode()
