"""A broker under control: it routes what the leader decided, and only while it may.

Owns the broker's side of the control plane (`overlay.control`). It holds a lease, watches the state that
the leader saves, installs, flips and retires as that says, and reports what it has done. It routes only
while its lease is held and it has carried out all of one saved state that has its session as registered;
otherwise clients may publish, and nothing is routed. The control server may be away for any time: the
broker stops when its lease ends, and goes on when it has caught up.

What a report says of the lanes is taken between two steps, with no step begun and unfinished: a flip that
is reported means that nothing more is stamped with an epoch before, and what was sent is never too low.

    Governed    the broker with all its tasks: steps, lease, state, requests, quotas, samples, status
"""

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client as Nats

from ramify.content.events.events import AttributeType
from ramify.errors import InputError, LiveError, RamifyError
from ramify.overlay.control.epochs import BrokerReport, Epochs
from ramify.overlay.control.fairness import DEFAULT_RATES, RequestRates
from ramify.overlay.control.health import health
from ramify.overlay.control.names import token
from ramify.overlay.control.records import (
    STATE,
    ClientRecord,
    ControlState,
    LinkCount,
    LiveEpoch,
    Status,
    decode,
    encode,
)
from ramify.overlay.control.steps import Node, StepResult
from ramify.overlay.live.broker.broker import Broker, BrokerConfig
from ramify.overlay.live.broker.client_requests import Leader, RequestDesk
from ramify.overlay.live.broker.log import LogEntry, SupersededError
from ramify.overlay.live.broker.moves import Porter
from ramify.overlay.live.broker.plan_cache import PlanCache, revision_of
from ramify.overlay.live.broker.quotas import Guard
from ramify.overlay.live.broker.sampler import DEFAULT_PROBABILITY, Sampler
from ramify.overlay.live.wire.pauses import REPEAT_LOG_S, STORE_LIMIT_S, TROUBLE_PAUSE_S
from ramify.overlay.live.wire.store import INITIAL, ConflictError, Lease, Store
from ramify.overlay.live.wire.streams import Endpoint, connect, disconnect, sparing
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["BROKER_LEASE_S", "ControlledBroker", "ControlledConfig"]

_log = logging.getLogger(__name__)

BROKER_LEASE_S = 15
"""Long enough that a machine that is busy for some seconds loses no broker. A router that is started again
inherits its lease, so only one that stays away is waited for."""

_RENEW_SHARE = 0.25
_TAKE_S = 0.3
_CLAIM_S = 2.0
_BETWEEN_STEPS_S = 1.0
_STATUS_S = 2.0


@dataclass(frozen=True)
class ControlledConfig:
    """A broker, and the control server as one of its users."""

    broker: BrokerConfig
    control: Endpoint
    sample_probability: float = DEFAULT_PROBABILITY
    lease_s: int = BROKER_LEASE_S
    look_every_s: float = 2.0
    rates: RequestRates = DEFAULT_RATES


@dataclass(frozen=True, slots=True)
class _Lanes:
    """What was so between two steps: see the module."""

    round: int
    flipped: int
    turn: int
    sent: Mapping[tuple[str, int], int]
    committed: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class _SavedState:
    """The state that was saved last. Brokers of a process share it: nobody changes it."""

    live: list[LiveEpoch] = field(default_factory=list)
    epochs: Epochs = field(default_factory=Epochs)


@functools.lru_cache(maxsize=2)
def _read_state(value: bytes) -> _SavedState:
    """A saved state, read once for all brokers of the process. Raises `InputError`."""
    state = decode(value, ControlState)
    return _SavedState(state.live, Epochs.from_json(bytes(state.epochs)))


class ControlledBroker:
    """See the module. Brokers of one process share `plans`."""

    def __init__(self, config: ControlledConfig, plans: PlanCache | None = None) -> None:
        self.config = config
        self.name = config.broker.name
        self.node = Node(self.name, config.broker.limits)
        self.broker = Broker(config.broker, self.node, gate=self.may_route, on_commit=self._committed)
        self.sampler = Sampler(self.name, config.sample_probability)
        self.started_s = time.time()
        self.run_id = uuid.uuid4().hex
        """Goes with the counters: both begin with the process."""
        self.trouble = ""
        self._plans = plans or PlanCache()
        self._leader = Leader.of_broker(self.name)
        self.guard = Guard(self.broker, self._record, self._leader.ask)
        self.porter = Porter(
            self.name, self.url, self.guard, self._leader.ask, self._at_store, self._record
        )
        self._store: Store | None = None
        self._reached = asyncio.Event()
        self._lease: Lease | None = None
        self._changed = asyncio.Event()
        self._seen: _SavedState | None = None
        # epoch -> revision; the last turn that was carried out
        self._held: dict[int, int] = {}
        self._turn = 0
        # the session that has caught up, and that of the last report
        self._caught_up = ""
        self._reported: tuple[Any, ...] = ()
        self._session = ""
        self._number = 0
        self._lanes: _Lanes | None = None
        self._revisions: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------- what is

    def may_route(self) -> bool:
        """Whether this broker may take a step now."""
        lease = self._lease
        return lease is not None and lease.held and self._caught_up == lease.session

    @property
    def held(self) -> dict[int, int]:
        """Epoch -> revision of the plans that it holds."""
        return dict(self._held)

    @property
    def url(self) -> str:
        """Where clients reach the broker's server."""
        return self.config.broker.client_url or self.config.broker.server.url

    def status(self) -> Status:
        """Counters for people and for the measured cost."""
        sent = {
            e: {n: LinkCount(x.messages, x.payload_bytes, x.wire_bytes) for n, x in to.items()}
            for e, to in self.broker.counters.sent.items()
        }
        counted = self.broker.status(self.run_id, self.started_s)
        figures = replace(
            self.broker.figures(),
            renewed=self._lease is not None and self._lease.held,
            caught_up=self.may_route() and self.node.epoch in self._held,
            trouble=self.trouble or counted.trouble,
        )
        found = health(figures)
        return msgspec.structs.replace(
            counted,
            epoch=max(self.node.epoch, 0),
            revision=self._held.get(self.node.epoch, 0),
            routing=self.may_route() and self.node.epoch in self._held,
            sampled=self.sampler.taken,
            sent=sent,
            lag_clients=self.guard.lags(),
            suspended=dict(self.guard.suspended),
            trouble=self.trouble or counted.trouble,
            health=found.word,
            why=found.why,
            waiting_s=figures.waiting_s,
            url=self.url,
        )

    def _schema(self) -> Mapping[str, AttributeType]:
        return self.node.schema()

    # ----------------------------------------------------------------------------------------- the tasks

    async def run(self) -> None:
        """Serve until cancelled, whatever servers do.

        Raises
        ------
        SupersededError
            When another router of the same broker has started since.
        """
        asker = RequestDesk(
            self.broker, self.guard, self._leader, self._schema, self.porter, self.config.rates
        )
        steps = asyncio.create_task(self.broker.run())
        tasks = [steps]
        ready = asyncio.create_task(self.broker.ready.wait())
        try:
            await asyncio.wait([steps, ready], return_when=asyncio.FIRST_COMPLETED)
            if not steps.done():
                parts = (
                    self._reach(),
                    self._keep_lease(),
                    self._watch(),
                    self._follow(),
                    self._tell_status(),
                    asker.run(),
                    self.guard.run(self.config.look_every_s),
                    self.porter.run(),
                    self.sampler.run(self._wire),
                )
                tasks += [asyncio.create_task(part) for part in parts]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks([*tasks, ready])
            await self._leave()

    async def _leave(self) -> None:
        """Let the lease go, so that nobody waits for this broker, and disconnect."""
        lease, self._lease = self._lease, None
        try:
            if lease is not None and lease.held:
                async with asyncio.timeout(STORE_LIMIT_S):
                    await lease.release()
        except (LiveError, TimeoutError, nats.errors.Error):
            pass
        if self._leader.connection is not None:
            await disconnect(self._leader.connection)
        if self._store is not None:
            await self._store.close()

    async def _reach(self) -> None:
        """Connect to the control server, however long that takes; then it connects again by itself."""

        def told(why: str) -> None:
            self.trouble = f"cannot connect to the control server {self.config.control.url}: {why}"
            _log.warning("broker %s: %s", self.name, self.trouble)

        failed = sparing(told, REPEAT_LOG_S)
        while self._store is None:
            try:
                self._store = await Store.join(self.config.control, timeout_s=STORE_LIMIT_S, failed=failed)
            except LiveError as error:
                await self._trouble(error)
        while self._leader.connection is None:
            try:
                self._leader.connection = await connect(self.config.control, failed=failed)
            except LiveError as error:
                await self._trouble(error)
        self._reached.set()
        await asyncio.Event().wait()

    async def _trouble(self, error: Exception) -> None:
        self.trouble = str(error)
        _log.debug("broker %s: %s", self.name, error)
        await asyncio.sleep(TROUBLE_PAUSE_S)

    async def _at_store(self) -> Store:
        await self._reached.wait()
        assert self._store is not None
        return self._store

    async def _wire(self) -> Nats:
        await self._reached.wait()
        assert self._leader.connection is not None
        return self._leader.connection

    async def _record(self, client: str) -> ClientRecord | None:
        if self._store is None:
            raise LiveError("the control server was not reached yet")
        found = await self._store.get(f"clients.{token(client)}")
        return None if found is None else decode(found[0], ClientRecord)

    def _committed(self, done: StepResult, written: Sequence[LogEntry]) -> None:
        self.guard.wrote(written)
        self.sampler.take(done.published)

    # ------------------------------------------------------------------------------------------ the lease

    async def _keep_lease(self) -> None:
        store = await self._at_store()
        lease = self._lease = Lease(store, f"brokers.{token(self.name)}", self.name, self.config.lease_s)
        # an earlier router of this broker may have left one behind; it has no use for it: the log is ours
        inherit = True
        checked_s = 0.0
        while True:
            pause_s = _RENEW_SHARE * self.config.lease_s
            try:
                held = await (lease.renew() if lease.held else lease.take())
                if held:
                    inherit = False
                elif time.monotonic() - checked_s > _CLAIM_S:
                    await self.broker.check_claim()
                    checked_s = time.monotonic()
                    if inherit:
                        inherit = False
                        await store.delete(lease.key)
                        continue
            except SupersededError:
                raise
            except LiveError as error:
                self.trouble = str(error)
                pause_s = _TAKE_S
            if lease.session != self._session:
                self._new_session(lease.session)
            self.broker.wake()
            await asyncio.sleep(pause_s if lease.held else _TAKE_S)

    def _new_session(self, session: str) -> None:
        self._session, self._number, self._lanes = session, 0, None
        self._changed.set()

    # ------------------------------------------------------------------------------------------ the state

    async def _watch(self) -> None:
        store = await self._at_store()
        async for change in store.watch(STATE):
            if change is INITIAL or change.value is None:
                continue
            try:
                seen = _read_state(change.value)
            except InputError as error:
                self.trouble = f"the saved state is not readable: {error}"
                _log.warning("broker %s: %s", self.name, self.trouble)
                continue
            if self._seen is not None and seen.epochs.version < self._seen.epochs.version:
                self._forget()
            self._seen = seen
            self._changed.set()

    def _forget(self) -> None:
        """The control store was made anew: epochs of the same number are others."""
        _log.warning("broker %s: the control store was made anew, all plans are read again", self.name)
        self._plans.clear()
        self._held.clear()
        self.node.forget()
        self._turn, self._caught_up, self._lanes = 0, "", None

    async def _follow(self) -> None:
        """Do what the last state says, and report, whenever something has changed."""
        await self._at_store()
        while True:
            self._changed.clear()
            again = False
            try:
                if self._seen is not None:
                    seen = self._seen
                    again = not await self._catch_up(seen)
                    again = not await self._report(seen) or again
                    self.trouble = ""
            except SupersededError:
                raise
            except (RamifyError, nats.errors.Error, TimeoutError, OSError) as error:
                again = True
                self.trouble = str(error)
                _log.warning("broker %s: %s", self.name, error)
            if again:
                asyncio.get_running_loop().call_later(TROUBLE_PAUSE_S, self._changed.set)
            await self._changed.wait()

    async def _catch_up(self, seen: _SavedState) -> bool:
        """Carry out a state: install, flip, retire. False when the flip must be tried again."""
        session, epochs = self._session, seen.epochs
        for live in seen.live:
            # what the saved changes come to, not what was decided: only that can be held
            if self._held.get(live.epoch, -1) < revision_of(live):
                await self._install(live)
        if epochs.target is not None and epochs.turn > self._turn:
            try:
                async with asyncio.timeout(_BETWEEN_STEPS_S), self.broker.between_steps():
                    self.node.flip(epochs.target)
                    self._turn = epochs.turn
            except TimeoutError:
                self.trouble = "cannot flip: the broker's server does not say what the log has"
                return False
        for epoch in self._held.keys() - set(epochs.live):
            self.node.retire(epoch)
            del self._held[epoch]
        self._plans.keep(epochs.live)
        if session and epochs.session(self.name) == session and self.node.epoch in self._held:
            self._caught_up = session
            self.broker.wake()
        return True

    async def _install(self, live: LiveEpoch) -> None:
        store = await self._at_store()
        routing = await self._plans.routing(store, live)
        here = routing.plan.overlay.index.get(self.name)
        if here is None:
            raise InputError(f"the plan {live.plan_key} has no broker {self.name!r}: check its overlay")
        await self.guard.learn(routing.clients_at(here))
        self.node.install(live.epoch, routing)
        self._held[live.epoch] = revision_of(live)

    # ----------------------------------------------------------------------------------------- reporting

    async def _report(self, seen: _SavedState) -> bool:
        """Say what is held and done, if that or the state is new. False when it must be tried again."""
        session = self._session
        if self._lease is None or not self._lease.held or not session:
            return True
        whole = await self._take_lanes(seen.epochs)
        lanes = self._lanes or _Lanes(0, 0, 0, {}, {})
        about = (session, seen.epochs.version, lanes.round, lanes.turn, tuple(sorted(self._held.items())))
        if about != self._reported:
            self._number += 1
            report = BrokerReport(
                self.name,
                session,
                self._number,
                frozenset(self._held.items()),
                lanes.flipped,
                lanes.turn,
                lanes.round,
                lanes.sent,
                lanes.committed,
            )
            await self._put(f"reports.{token(self.name)}", report.to_json())
            self._reported = about
        return whole

    async def _take_lanes(self, epochs: Epochs) -> bool:
        """See what is so between two steps; what was seen before stays when that takes too long."""
        session = self._session
        try:
            async with asyncio.timeout(_BETWEEN_STEPS_S), self.broker.between_steps() as finished:
                if not finished:
                    return False
                committed = self.broker.committed()
                lanes = _Lanes(
                    epochs.round,
                    max(self.node.epoch, 0),
                    self._turn,
                    self.broker.sent(self._held),
                    {(name, epoch): n for name, n in committed.items() for epoch in self._held},
                )
        except TimeoutError:
            return False
        if session == self._session:
            self._lanes = lanes
        return True

    async def _tell_status(self) -> None:
        await self._at_store()
        while True:
            try:
                await self._put(f"status.{token(self.name)}", encode(self.status()))
            except LiveError as error:
                _log.debug("broker %s: %s", self.name, error)
            await asyncio.sleep(_STATUS_S)

    async def _put(self, key: str, value: bytes) -> None:
        """Replace a value that only this broker writes. One request, where nobody else did."""
        store = await self._at_store()
        known = self._revisions.pop(key, None)
        if known is not None:
            try:
                self._revisions[key] = await store.put(key, value, known)
                return
            except ConflictError:
                pass
        self._revisions[key] = await store.put(key, value, force=True)
