"""The live broker: pulls its inputs, routes them in steps, writes its log, and comes back from anything.

Owns the loop. A step takes what waits on all inputs (clients' publishes and neighbours' lanes), routes
it, writes the outputs with the positions that they complete, and only then acknowledges the inputs.
Whatever goes wrong (a timeout, a dead server, another router's write), the broker loads its positions
from the log and has its inputs delivered again from there: an event that was acknowledged is never lost,
and none is doubled.

A neighbour that is dead or slow is a lane that is not read; a client likewise. Neither stops the loop. When
the log is full the broker pulls nothing until there is room: that is the backpressure.

The broker under control (`controlled`) has a *gate*: while it is closed no step is taken. Under
`between_steps` no step is under way, and what the log has is known.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

import nats.errors

from ramify.errors import LiveError
from ramify.overlay.control.counters import Counters
from ramify.overlay.control.health import HealthFigures
from ramify.overlay.control.intake import RAW_BYTES, Limits, RejectedMessage
from ramify.overlay.control.names import DELIVER, IN, LINK, OUT, name_of, token
from ramify.overlay.control.output import MOST_MESSAGES, Output
from ramify.overlay.control.records import LinkCount, Status
from ramify.overlay.control.rejects import entries
from ramify.overlay.control.steps import Stepper, StepResult
from ramify.overlay.live.broker.alarms import Alarms
from ramify.overlay.live.broker.inputs import CLIENTS, Input, Inputs, StepInput, reached, rows_of
from ramify.overlay.live.broker.log import (
    LogEnd,
    LogEntry,
    LogFullError,
    OutLog,
    SupersededError,
    WriteRefusedError,
)
from ramify.overlay.live.broker.memory import StepSize, give_back
from ramify.overlay.live.broker.published import look_at_published
from ramify.overlay.live.broker.retention import UNSYNCED_S, Keeper
from ramify.overlay.live.wire.connection import SteadyConnection
from ramify.overlay.live.wire.pauses import REPEAT_LOG_S
from ramify.overlay.live.wire.pull import Puller
from ramify.overlay.live.wire.security import INFO
from ramify.overlay.live.wire.streams import (
    DUPLICATE_WINDOW_S,
    ApiError,
    Endpoint,
    Sizes,
    connect,
    ensure_consumer,
    ensure_lanes,
    ensure_streams,
    sparing,
)
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["Broker", "BrokerConfig"]

_log = logging.getLogger(__name__)

_MOST_STEP_MESSAGES = 512
_PURGE_EVERY_S = 5.0
_RETRIES_S = (0.05, 0.1, 0.25, 0.5, 1.0)
_MOST_STATE_BYTES = 16 << 20
"""Of states of the node that are out of date: then they are forgotten at once."""
_FULL_WAIT_S = 0.5
_RESET_AGAIN_S = 0.5
_STEP_IDLE_S = 0.005
_GONE_CODES = frozenset({10059, 10014})
"""There is no such stream, or consumer: somebody deleted it."""

_READ_BESIDE_BYTES = 128 << 10
"""Messages of clients are read in a thread from so many bytes on: to hand them over takes a millisecond."""

_READER = ThreadPoolExecutor(1, thread_name_prefix="ramify-intake")
"""One for all brokers of a process: several would take the loop's turns."""


@dataclass(frozen=True)
class BrokerConfig:
    """The name of a broker, and where its server and its neighbours' servers are.

    `linger_s` is how long the first events of a step wait for others when events come fast. `client_url` is
    where clients reach its server, if not where the broker does.
    """

    name: str
    server: Endpoint
    neighbours: Mapping[str, Endpoint]
    clients: tuple[str, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    limits: Limits = field(default_factory=Limits)
    linger_s: float = 0.005
    client_url: str = ""


@dataclass(frozen=True, slots=True)
class _Post:
    """Messages to be written, as they are when it is their turn; `told` gets the outcome."""

    make: Callable[[], Sequence[Output]]
    then: Callable[[], None]
    told: asyncio.Future[None]


class Broker:
    """See the module. `run` until cancelled; `node` holds the plans.

    `on_commit` hears of every step once it is in the log, with what was written.
    """

    def __init__(
        self,
        config: BrokerConfig,
        node: Stepper,
        *,
        gate: Callable[[], bool] = lambda: True,
        on_commit: Callable[[StepResult, Sequence[LogEntry]], None] | None = None,
    ) -> None:
        self.config = config
        self.node = node
        self.counters = Counters()
        # the clients whose lanes have a reader's consumer
        self.clients: set[str] = set(config.clients)
        self.keeper = Keeper(config.sizes)
        self.ready = asyncio.Event()
        # what went wrong last, until a step is committed or nothing waits
        self.trouble = ""
        # input -> why its server cannot be reached, or does not answer, as long as that is known to be so
        self._silent: dict[str, str] = {}
        # what was lost
        self.alarms = Alarms(config.name)
        # input -> what it seems to have lost: seen, and not told yet
        self._losses: list[tuple[str, str]] = []
        self._gate = gate
        self._on_commit = on_commit
        self._arrived = asyncio.Event()
        self._between = asyncio.Lock()
        self._posts: deque[_Post] = deque()
        self._inputs = Inputs(self._arrived, self._lost)
        self._own: SteadyConnection | None = None
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
        # a step that was written, perhaps, and the positions that it reaches
        self._unsure: tuple[StepResult, Mapping[str, int]] | None = None
        # since when the log has taken no write although one was tried; 0 when the last one was taken
        self._stuck_since = 0.0
        # since when it has had no room, likewise; and when something was last committed, or nothing waited
        self._full_since = 0.0
        self._moved_at = time.monotonic()
        # faults in a row, what was last said of one, and messages for a step that a server refused
        self._faults, self._said = 0, ""
        self._narrow: int | None = None
        # bytes of states that were written since the old ones were forgotten
        self._state_bytes = 0
        self._crowded = asyncio.Event()

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

    # ------------------------------------------------------------------------------ for its governor

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
        if CLIENTS not in self._inputs:
            return 0, links
        source = self._inputs[CLIENTS]
        # by what the stream had when it was last looked at: also of messages that do not come
        return max(source.lag, self.keeper.published_last - source.inlet.committed), links

    @property
    def stuck_s(self) -> float:
        """For how long the log has taken no write although some were tried; 0 when it takes them, or has
        no room, or none may be tried now."""
        return time.monotonic() - self._stuck_since if self._stuck_since and self._gate() else 0.0

    def figures(self) -> HealthFigures:
        """How this broker fares, by what it can see."""
        now = time.monotonic()
        published, links = self.lags()
        waiting = {name: lag for name, lag in {CLIENTS: published, **links}.items() if lag}
        if not waiting:
            self._moved_at = now
        readers = self.keeper.readers.items()
        return HealthFigures(
            ready=self.ready.is_set(),
            waiting=waiting,
            waiting_s=now - self._moved_at,
            full_s=now - self._full_since if self._full_since else 0.0,
            holders={name: reader.unread for name, reader in readers if reader.unread},
            stuck_s=self.stuck_s,
            silence=self._silent.get(CLIENTS, ""),
            unreached={
                name: self._silent.get(name, "")
                for name in self.config.neighbours
                if name not in self._inputs or not self._inputs[name].connection.is_answered
            },
            trouble=self.trouble,
        )

    def status(self, session: str, started_s: float) -> Status:
        """What every broker says of itself; what its governor knows is added to it."""
        c = self.counters
        published, links = self.lags()
        return Status(
            broker=self.config.name,
            session=session,
            at=time.time(),
            started=started_s,
            events=c.events,
            published=c.published,
            published_bytes=c.published_bytes,
            frames=c.frames,
            matchings=c.matchings,
            deliveries=c.deliveries,
            rejects=c.rejects,
            redeliveries=c.redeliveries,
            strays=c.strays,
            recoveries=c.recoveries,
            links={n: LinkCount(c.messages[n], c.payload_bytes[n], c.wire_bytes[n]) for n in c.messages},
            entered=dict(c.entered),
            lag_published=published,
            lag_links=links,
            trouble=self.trouble,
            alarms=self.alarms.shown,
            alarms_told=self.alarms.count,
        )

    async def post(self, output: Output, then: Callable[[], None] = lambda: None) -> None:
        """Write one message of the broker's own to a lane, and do `then` before any step that follows.

        Raises `LiveError` when its outcome is unknown, `LogFullError` when there was no room.
        """
        await self.write(lambda: [output], then)

    async def write(
        self, make: Callable[[], Sequence[Output]], then: Callable[[], None] = lambda: None
    ) -> None:
        """As `post`, for messages that `make` decides between two steps, perhaps none: they are one write.

        What `make` decides counts when `then` is called. After a fault the node is told what the log has.
        """
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._posts.append(_Post(make, then, told))
        self._arrived.set()
        await told

    @property
    def routed(self) -> int:
        """The last message of clients that is routed whole, by its place in their stream."""
        return self._out.positions.get(CLIENTS, 0)

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
        await self._ensure_streams()
        await self.alarms.load(own)
        self.node.most_bytes = own.max_payload
        if CLIENTS not in self._inputs:
            puller = Puller(own, IN, "router", self._arrived, f"$JS.API.CONSUMER.INFO.{IN}.router")
            await puller.start()
            self._inputs[CLIENTS] = Input(CLIENTS, puller, own)

    async def _ensure_streams(self) -> None:
        """Make what there is not. What the router knows of a stream that is gone shows the loss."""
        own = self.connection
        await ensure_streams(own, self.config.sizes)
        await ensure_consumer(own, IN, "router")
        await ensure_lanes(own, self.config.neighbours, sorted(self.clients))

    async def _link(self, name: str, endpoint: Endpoint) -> None:
        """Read a neighbour's lane to here, from when its server and its router are there."""
        connection = await self._connected(name, endpoint)
        consumer = f"link_{token(self.config.name)}"
        # a router that comes back waits for what was handed out to the one before
        puller = Puller(connection, OUT, consumer, self._arrived, f"{INFO}.{consumer}", short=True)
        source = Input(name, puller, connection)
        for attempt in count():
            try:
                # its router makes the consumer: until then there is nothing to read
                await connection.request(f"{INFO}.{consumer}", b"", timeout=2)
                break
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(_RETRIES_S[min(attempt, len(_RETRIES_S) - 1)])
        await source.puller.start()
        # nothing may come between these: a position that is out of date would lose or double events
        source.go_to(self._out.positions)
        self._inputs[name] = source
        self._arrived.set()

    async def _connected(self, name: str, endpoint: Endpoint) -> SteadyConnection:
        """A connection, once its server is there."""

        def told(why: str) -> None:
            what = "its server" if name == CLIENTS else f"the server of {name}"
            _log.warning("broker %s cannot reach %s: %s", self.config.name, what, why)
            self._silent[name] = f"it cannot reach its server: {why}" if name == CLIENTS else why

        failed = sparing(told, REPEAT_LOG_S)
        while True:
            try:
                connection = await connect(endpoint, failed=failed, reconnected_cb=self._again(name))
            except LiveError as error:
                self._silent[name] = str(error)
                await asyncio.sleep(_RETRIES_S[-1])
            else:
                self._silent.pop(name, None)
                return connection

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
                self.trouble = str(error) or repr(error)
                await self._make_anew(error)
                await asyncio.sleep(_RETRIES_S[min(attempt, len(_RETRIES_S) - 1)])

    async def _make_anew(self, error: Exception) -> None:
        """A stream or a consumer of ours was deleted: have it again."""
        if isinstance(error, ApiError) and error.code in _GONE_CODES:
            with contextlib.suppress(LiveError, nats.errors.Error, TimeoutError, OSError):
                await self._ensure_streams()
                if CLIENTS in self._inputs:
                    self._inputs[CLIENTS].stale = True
                    self._arrived.set()

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
                    pause = _STEP_IDLE_S
            except LogFullError:
                self._full_since = self._full_since or time.monotonic()
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
        self.trouble = said = str(error) or repr(error)
        self.counters.recoveries += 1
        self._faults += 1
        if said != self._said:
            _log.warning("broker %s starts over from its log: %s", self.config.name, said)
            self._said = said
        if self._faults > len(_RETRIES_S):
            # what fails again and again must not take the time of others
            await asyncio.sleep(min(1.0, 0.02 * 2 ** min(self._faults - len(_RETRIES_S), 8)))
        await self._until_done(self._recover)

    async def _say(self) -> None:
        """Write what was posted. The poster hears of a fault and decides anew."""
        while self._posts and self._begun is None:
            post = self._posts.popleft()
            told = post.told
            try:
                outputs = post.make()
                if len(outputs) > MOST_MESSAGES:
                    raise LiveError(f"{len(outputs)} messages cannot be one write: at most {MOST_MESSAGES}")
                if outputs:
                    epoch = max(self.node.epoch, 0)
                    await self._out.commit(outputs, self._out.positions, epoch, divisible=False)
            except BaseException as error:
                if not told.done():
                    known = isinstance(error, LiveError)
                    told.set_exception(error if known else LiveError(f"not known to be written: {error!r}"))
                raise
            post.then()
            self._note_states(outputs)
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

    async def _read_again(self, source: Input) -> None:
        source.stale = False
        source.inlet.forget_taken(source.inlet.committed)
        source.order = 0
        try:
            if source.name == CLIENTS:
                await self._look_at_published(source)
                await self._tell_losses()
            await source.puller.reset(source.place)
        except BaseException:
            source.stale = True
            raise

    async def _look_at_published(self, source: Input) -> None:
        known = source.inlet.committed if CLIENTS in self._out.positions else None
        routed, lost = await look_at_published(self.connection, known, source.stored_us)
        if lost:
            self._lost(CLIENTS, lost)
            source.stored_us = 0
        source.inlet.forget_taken(routed)

    def _lost(self, name: str, what: str) -> None:
        """An input lost something. A step that was begun with it can be finished no more."""
        self._losses.append((name, what))
        key = CLIENTS if name == CLIENTS else token(name)
        if self._begun is not None and self._begun.get(key, 0) != self._out.positions.get(key, 0):
            self._begun = None
            self._out.abandon()

    async def _tell_losses(self) -> None:
        """Tell of what is lost, if this is the broker's router still: what another one that took its place
        has read and acknowledged is gone too, and no loss."""
        if self._losses:
            await self._out.check_claim()
            for name, what in dict.fromkeys(self._losses):
                self._alarm(name, what)
            self._losses.clear()

    def _alarm(self, about: str, what: str) -> None:
        self.alarms.tell(about, what)
        self._crowded.set()

    async def _read_link_again(self, source: Input) -> None:
        """Nothing is taken from it meanwhile: see `Input.waiting`."""
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
        most = self._size.messages if self._narrow is None and self._size.events is None else 1
        taken = self._inputs.gather(self._out.positions, self._begun, most)
        self.counters.redeliveries = self._inputs.redeliveries
        await self._tell_losses()
        if not taken:
            await self._acknowledge()
            return False
        if not await self._is_read(taken):
            return False
        try:
            done, taken, end = self._attempt(taken, epoch)
            await self._reject(done.rejected)
            await self._commit(taken, done, end, epoch)
        except WriteRefusedError as error:
            if self._begun is not None or not self._narrowed(error):
                raise
            end, id_ = self._next_event(taken, epoch)
            done = await self._give_up(taken, id_, error)
            await self._out.commit([], reached(self._out.positions, taken, end), epoch)
        self._begun = None
        self._stuck_since = self._full_since = 0.0
        self._moved_at = time.monotonic()
        self._count(done)
        self._busy = len(taken) > 1
        self._size.learn(len(taken), done.outputs)
        self._inputs.commit(taken, end)
        self._faults, self._said, self._narrow = 0, "", None
        self.trouble = ""
        if end is None:
            self.node.forget_intake()
        await self._acknowledge()
        return True

    async def _is_read(self, taken: Sequence[StepInput]) -> bool:
        """Whether clients' messages are read and may be routed. Large ones are read beside the loop, which
        meanwhile renews leases and serves other brokers."""
        published = [p for each in taken if (p := each.published) is not None]
        if sum(len(p.payload) for p in published) < _READ_BESIDE_BYTES:
            return True
        # a fault of ours shows again where the step is attempted, and is dealt with there
        with contextlib.suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(_READER, self.node.take_in, published)
        if self._gate():
            return True
        self._inputs.give_back(taken)
        return False

    async def _commit(
        self, taken: Sequence[StepInput], done: StepResult, end: int | None, epoch: int
    ) -> None:
        positions = reached(self._out.positions, taken, end)
        self._unsure = done, positions
        try:
            await self._out.commit(done.outputs, positions, epoch, divisible=not done.changed)
        except WriteRefusedError:
            raise
        except (LiveError, nats.errors.Error, TimeoutError) as error:
            if not isinstance(error, LogFullError):
                self._stuck_since = self._stuck_since or time.monotonic()
            # no room for all of it, or not in time: perhaps there is for some
            self._size.shrink(len(taken), done.events_in)
            raise

    def _attempt(
        self, taken: list[StepInput], epoch: int
    ) -> tuple[StepResult, list[StepInput], int | None]:
        """As `_routed`. A fault of ours that a message brings out is found like one that a server refuses,
        and set aside: it must not stop all others."""
        try:
            return self._routed(taken, epoch)
        except Exception as error:
            _log.exception("broker %s cannot route what it took in", self.config.name)
            raise WriteRefusedError(f"it cannot be routed: {error!r}") from error

    def _next_event(self, taken: Sequence[StepInput], epoch: int) -> tuple[int | None, str | None]:
        """Up to where a message is routed without its next event, and the id of that; None for the first
        when the message has no other event, or none of it can be read."""
        first, _ = self._rows(taken)
        end, id_ = None, None
        with contextlib.suppress(Exception):  # told when it was routed
            whole = self._route(taken, epoch, first, first).readable
            end = first + 1 if first + 1 < whole else None
            published = self._route(taken, epoch, first, first + 1).published
            id_ = next((str(ids[0]) for batch in published if (ids := batch.column("id"))), None)
        return end, id_

    def _routed(self, taken: list[StepInput], epoch: int) -> tuple[StepResult, list[StepInput], int | None]:
        """What the messages come to; as many of them as one write can have, or some events of the first.

        The number says up to which event of the one message; None is all.
        """
        first, end = self._rows(taken)
        if self._begun is None and self._narrow == 0:
            done = self._route(taken, epoch, first, first + 1)
            return done, taken, None if first + 1 >= done.readable else first + 1
        done = self._route(taken, epoch, first, end)
        if self._begun is not None:
            return done, taken, end
        while len(taken) > 1 and not done.fits:
            half = len(taken) // 2
            self._size.shrink(len(taken))
            self._inputs.give_back(taken[half:])
            taken = taken[:half]
            done = self._route(taken, epoch, first, end)
        last = whole = done.readable
        if len(taken) > 1:
            return done, taken, None
        few = self._size.events
        most = whole if few is None else min(whole, first + few)
        while last - first > 1 and (not done.fits or last > most):
            last = most if last > most else first + (last - first) // 2
            done = self._route(taken, epoch, first, last)
        return done, taken, None if last >= whole else last

    def _rows(self, taken: Sequence[StepInput]) -> tuple[int, int | None]:
        """The events of a message to route: those that are not yet, and of a begun step up to its end."""
        return rows_of(self._out.positions, taken[0]) or 0, rows_of(self._begun or {}, taken[0])

    def _route(self, taken: Sequence[StepInput], epoch: int, first: int, end: int | None) -> StepResult:
        published = [each.published for each in taken]
        linked = [each.linked for each in taken]
        return self.node.step(
            [p for p in published if p is not None],
            [m for m in linked if m is not None],
            epoch,
            (first, end),
        )

    def _narrowed(self, error: WriteRefusedError) -> bool:
        """A server refused a step: try it with one message, then with one event. True when that failed."""
        if self._narrow == 0:
            return True
        self._narrow = 1 if self._narrow is None else 0
        _log.error("broker %s: %s", self.config.name, error)
        return False

    async def _give_up(
        self, taken: Sequence[StepInput], id_: str | None, error: WriteRefusedError
    ) -> StepResult:
        """An event that can be written in no form goes to the rejected ones; all others go on."""
        (one,) = taken
        first, _ = self._rows(taken)
        who = one.source.name if one.published is None else one.published.client
        detail = f"event {first} of the message: {error}"
        raw = one.message.payload[:RAW_BYTES]
        rejected = [RejectedMessage(who, one.number, id_, "refused", detail, raw)]
        await self._reject(rejected)
        return StepResult(rejected=rejected, frames_in=0 if first else 1, epoch=max(self.node.epoch, 0))

    def _count(self, done: StepResult) -> None:
        """A step is in the log: count it, and tell the listeners."""
        self._unsure = None
        self.counters.add(done)
        self._note_sent(self._out.written)
        if done.changed and self.node.kept is not None:
            self.node.kept.settled()
            self._note_states(done.outputs)
        if self._on_commit is not None:
            self._on_commit(done, self._out.written)

    def _note_sent(self, written: Sequence[LogEntry]) -> None:
        for each in written:
            lane, _, to = each.output.lane.rpartition(".")
            if lane == LINK:
                self._counted[name_of(to), int(each.output.headers["E"])] = each.number

    def _note_states(self, outputs: Sequence[Output]) -> None:
        kept = self.node.kept
        self._state_bytes += sum(len(o.payload) for o in outputs if kept and o.lane == kept.state_lane)
        if self._state_bytes > _MOST_STATE_BYTES:
            self._state_bytes = 0
            self._crowded.set()

    async def _acknowledge(self) -> None:
        """Tell the servers what is safe."""
        for source in list(self._inputs.values()):
            due = source.due or source.again
            source.due = source.again = None
            if due is not None:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await source.puller.acknowledge(due.reply)

    async def _reject(self, rejected: list[RejectedMessage]) -> None:
        """Keep what could not be used, with the reason. The id makes a second try harmless."""
        for entry in entries(rejected):
            answer = await self.connection.request(
                entry.subject, entry.payload, timeout=5, headers=entry.headers
            )
            if error := json.loads(answer.data or b"{}").get("error"):
                raise LiveError(f"a rejected event could not be kept: {error.get('description')}")

    async def _take_over(self) -> None:
        """Become the one router of this broker."""
        await self._out.load()
        try:
            await self._out.claim()
        except LogFullError as error:
            # The first write that finds room claims it too. Until then readers must be served, and what
            # they have be forgotten: who waits for room here waits for ever.
            self.trouble = str(error)
        await self._recover()

    async def _recover(self) -> None:
        """Go back to what the log says."""
        recovered: LogEnd = await self._out.load()
        if recovered.lost:
            self._alarm("log", recovered.lost)
            # nothing of it is under way any more
            self._counted.clear()
        if self._unsure is not None:
            done, positions = self._unsure
            self._unsure = None
            if recovered.begun is None and dict(recovered.positions) == positions:
                # it was written, only the answer was lost
                self._count(done)
        # what was written without an answer is counted by this, with every epoch
        names = list(self.config.neighbours)
        ends = await asyncio.gather(*(self._out.number(f"{LINK}.{token(name)}") for name in names))
        self._ends = dict(zip(names, ends, strict=True))
        self._begun = recovered.begun
        self._begun_epoch = recovered.epoch or 0
        if self.node.kept is not None:
            self.node.kept.load(await self._out.value(self.node.kept.state_lane))
        for source in list(self._inputs.values()):
            source.go_to(recovered.positions)
        await self._refresh()

    # ----------------------------------------------------------------------------------- keeping house

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PURGE_EVERY_S):
                    await self._crowded.wait()
            self._crowded.clear()
            try:
                await self.alarms.save(self.connection)
                await self.purge()
                self._silent.pop(CLIENTS, None)
                if not self._waits():
                    self.trouble = ""
            except (LiveError, nats.errors.Error, TimeoutError, OSError) as error:
                # a server that hangs, or cannot be reached, says nothing by itself: nothing waits, it seems
                self._silent[CLIENTS] = f"its server does not answer: {str(error) or repr(error)}"
                await self._make_anew(error)
            if self._size.settle():
                await asyncio.to_thread(give_back)

    def _waits(self) -> bool:
        """Whether there is anything that trouble could hold up."""
        published, links = self.lags()
        return bool(published or any(links.values()) or self._posts or self._begun is not None)

    async def look(self) -> None:
        """See where readers stand (`keeper.readers`). Cost: a request per 256 lanes."""
        await self.keeper.look(self.connection)

    async def purge(self, *, window_s: float = DUPLICATE_WINDOW_S) -> None:
        """Forget what everyone has: publishes that are routed and whose ids no client may send again, and
        of each lane all before the last message that its reader has."""
        await self.look()
        if self.keeper.log_last and not self.keeper.log_messages:
            # the last message is never forgotten here: somebody purged the log
            async with self._between:
                await self._until_done(self._recover)
        lanes = [(f"link_{token(n)}", f"{LINK}.{token(n)}") for n in self.config.neighbours]
        lanes += [(f"client_{token(c)}", f"{DELIVER}.{token(c)}") for c in sorted(self.clients)]
        await self.keeper.purge_lanes(self._out, lanes, min(window_s, UNSYNCED_S))
        if self.node.kept is not None:
            await self._out.purge_value(self.node.kept.state_lane)
        routed = self._inputs[CLIENTS].inlet.committed
        await self.keeper.purge_published(self.connection, routed, window_s)

    @property
    def connection(self) -> SteadyConnection:
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
