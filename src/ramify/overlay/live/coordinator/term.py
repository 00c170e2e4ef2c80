"""A coordinator's term: requests in, decisions written, answers out.

Owns the loop of a leader. What it knows is its `Book`; only the loop changes that, so everything that comes
in (watches, requests, plans that were made) waits in queues. Each turn of the loop

    1. takes in what brokers say, and up to `MOST_AT_ONCE` requests, clients in turn, as one revision;
    2. looks after plans: makes one where the head lacks a subscription, weighs a new one each period,
       takes back one whose measured cost rose; proposes one for clients that move (`moves`);
    3. writes the state when a decision was made, and what became of moves, and
    4. answers the requests that are active everywhere, or whose time is over.

What takes CPU (filters, records, revisions) is done beside the event loop, and charged to the clients that
it is done for. A client that has used up its share is refused for a while (`busy`).

Any write that fails ends the term: the next leader reads the store and goes on from there.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec
import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LiveError
from ramify.overlay.control.epochs import BrokerReport
from ramify.overlay.control.fairness import ClientBudgets, FairQueue
from ramify.overlay.control.names import COORDINATE, OPERATE, name_of
from ramify.overlay.control.records import (
    OPS,
    RULES,
    Answer,
    ClientRecord,
    ForwardedRequest,
    Refusal,
    Status,
    decode,
    encode,
)
from ramify.overlay.control.registry import Book
from ramify.overlay.control.requests import (
    MOST_RECORD_BYTES,
    RequestLimits,
    RequestOutcome,
    ask,
    busy,
    why_not_believed,
)
from ramify.overlay.control.rules import NO_RULES, OverlayRules
from ramify.overlay.live.coordinator.adaptation import Adapter, Make, Replanner, Settings
from ramify.overlay.live.coordinator.leader_store import Stores
from ramify.overlay.live.coordinator.moves import MOVE_OPS, MoveConductor
from ramify.overlay.live.wire.beside import beside
from ramify.overlay.live.wire.store import INITIAL, KeyChange, Lease
from ramify.overlay.live.wire.tasks import together

__all__ = ["MOST_AT_ONCE", "Term"]

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 128
"""Requests that one revision takes."""

_MOST_WAITING = 10_000
_LONGEST_WAIT_S = 60.0
_REVISION_ASKS_S = 0.25
"""CPU time after which a revision takes no more requests: those of others wait no longer than that."""

_TURN_IDLE_S = 0.25
_REVISION_S = 1.0
# rounds of a drain alone need no haste, and each costs every broker a reading of the state
_ROUND_S = 0.1


@dataclass(slots=True)
class _OpenRequest:
    """A request and what it waits for."""

    message: Msg
    passed: ForwardedRequest
    until: float
    revision: int = 0
    outcome: RequestOutcome | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The subscriptions whose place in plans may change with it."""
        return () if self.outcome is None else self.outcome.ids


@dataclass(slots=True)
class _Came:
    """What watches yielded, until the loop takes it."""

    brokers: deque[KeyChange] = field(default_factory=deque)
    reports: deque[KeyChange] = field(default_factory=deque)
    status: deque[KeyChange] = field(default_factory=deque)
    rules: deque[KeyChange] = field(default_factory=deque)


class Term:
    """See the module. `run` ends with a `RamifyError`, or when it is cancelled."""

    def __init__(
        self,
        settings: Settings,
        replanner: Replanner | None,
        stores: Stores,
        connection: Nats,
        book: Book,
        make: Make,
    ) -> None:
        self.book = book
        self._settings, self._stores, self._nats = settings, stores, connection
        self._wake = asyncio.Event()
        self.plans = Adapter(settings, replanner, stores, book, make, self._wake.set)
        self.moving = MoveConductor(stores, book, make, settings.scheme, self._wake.set)
        self._came = _Came()
        # set once all that was there has been seen
        self._seen = {prefix: asyncio.Event() for prefix in ("brokers", "reports", "status", RULES)}
        self._sessions: dict[str, str] = {}
        self._reports: dict[str, BrokerReport] = {}
        self._requests: FairQueue[_OpenRequest] = FairQueue()
        self._waiting: list[_OpenRequest] = []
        self.budgets = ClientBudgets(settings.rates)
        """The CPU time of this process that each client may still use."""
        self._at_once = MOST_AT_ONCE
        self._saved = -1
        self._saved_at = 0.0
        self._hurry = True
        self._garbage: deque[tuple[float, str]] = deque()
        # the rules changed, and with them what plans may have
        self._judge_all = False

    # ------------------------------------------------------------------------------------------- run

    async def run(self) -> None:
        """Lead. Requests that wait when it ends are told that their outcome is unknown."""
        try:
            watches = (self._watch(prefix) for prefix in self._seen)
            await together(*watches, self._lead())
        finally:
            await self.plans.end()
            await self.moving.end()
            await self._refuse_all()

    async def _lead(self) -> None:
        await self.plans.begin()
        await self.moving.begin()
        for seen in self._seen.values():
            await seen.wait()
        self._absorb()
        for broker in self.book.epochs.registered - self._sessions.keys():
            self.book.epochs.on_lost(broker)
        await self._revise(None)
        await self._save()
        subjects = [f"{subject}.*" for subject in (COORDINATE, OPERATE)]
        subscriptions = [await self._nats.subscribe(subject, cb=self._asked) for subject in subjects]
        try:
            while True:
                await self._turn()
        finally:
            # what has come is taken, and then refused: dropped, it would keep its asker waiting
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    for each in subscriptions:
                        await each.drain()  # type: ignore[no-untyped-call]

    async def _turn(self) -> None:
        self._wake.clear()
        self._absorb()
        if self._judge_all:
            self._judge_all = False
            await self._revise(None)
        await self._take_requests()
        self._hurry = await self.plans.step() or self._hurry
        self._hurry = await self.moving.step() or self._hurry
        await self._rebase()
        await self._save()
        if self._saved == self.book.epochs.version:
            await self.moving.settle()
        await self._answer()
        await self._sweep()
        if self._requests:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_IDLE_S):
                await self._wake.wait()

    async def _watch(self, prefix: str) -> None:
        into: deque[KeyChange] = getattr(self._came, prefix)
        async with contextlib.aclosing(self._stores.store.watch(prefix)) as changes:
            async for change in changes:
                if change is INITIAL:
                    self._seen[prefix].set()
                else:
                    into.append(change)
                    self._wake.set()
        raise LiveError(f"the watch of {prefix} ended")

    # --------------------------------------------------------------------------------------- brokers

    def _absorb(self) -> None:
        """Take in what brokers said. A lease counts before the reports made with it."""
        came = self._came
        while came.rules:
            self._obey(came.rules.popleft())
        while came.brokers:
            self._lease(came.brokers.popleft())
        while came.reports:
            self._report(came.reports.popleft())
        while came.status:
            change = came.status.popleft()
            if change.value is not None:
                try:
                    status = decode(change.value, Status)
                    if status.broker != _broker(change.key):
                        raise InputError(f"it speaks for broker {status.broker!r}")
                    self.plans.measured.add(status)
                    self.moving.urls[status.broker] = status.url
                except InputError as error:
                    _log.warning("%s is ignored: %s", change.key, error)

    def _obey(self, change: KeyChange) -> None:
        """Rules of the record. While they cannot be used, no plan is installed."""
        rules, schema = NO_RULES, self.book.head.plan.classes.schema
        if change.value is not None:
            rules = OverlayRules.stored(change.value, self.book.overlay, schema)
        if rules.unusable:
            _log.warning("%s cannot be used, so no plan is installed: %s", change.key, rules.unusable)
        self.plans.obey(rules)
        self._judge_all = True

    def _lease(self, change: KeyChange) -> None:
        epochs, broker = self.book.epochs, _broker(change.key)
        if broker not in self.book.overlay.index:
            _log.warning("%s: the overlay has no such broker; it is ignored", change.key)
            return
        self._hurry = True
        if change.value is None:
            epochs.on_lost(broker, self._sessions.pop(broker, None))
            return
        try:
            session = Lease.read(change.value)[1]
        except InputError as error:
            _log.warning("%s is unreadable: %s", change.key, error)
            return
        self._sessions[broker] = session
        epochs.on_register(broker, session)
        # the watches are two, so its report may have come first
        if broker in self._reports:
            epochs.on_report(self._reports[broker])

    def _report(self, change: KeyChange) -> None:
        if change.value is None:
            return
        try:
            report = BrokerReport.from_json(change.value)
        except InputError as error:
            _log.warning("%s is unreadable: %s", change.key, error)
            return
        if report.broker != _broker(change.key):
            _log.warning("%s speaks for broker %r; it is ignored", change.key, report.broker)
            return
        self._reports[report.broker] = report
        turn = self.book.epochs.turn
        self.book.epochs.on_report(report)
        self._hurry = self._hurry or self.book.epochs.turn != turn

    # -------------------------------------------------------------------------------------- requests

    async def _asked(self, message: Msg) -> None:
        """A request came."""
        if not self._stores.lease.held:
            # not silence: the broker would wait in vain for as long as it is willing to
            reason = "this coordinator no longer leads: ask again"
            await _respond(message, Answer(error=Refusal("unavailable", reason)))
            return
        try:
            passed = decode(message.data, ForwardedRequest)
        except InputError as error:
            await _respond(message, Answer(error=Refusal("bad_request", error.reason)))
            return
        if (why := why_not_believed(message.subject, passed)) is not None:
            _log.warning("a request on %s was refused: %s", message.subject, why.reason)
            await _respond(message, Answer(error=why))
            return
        if await self._is_refused(message, passed):
            return
        if len(self._requests) + len(self._waiting) >= _MOST_WAITING:
            reason = f"{_MOST_WAITING} requests wait already: ask again later"
            await _respond(message, Answer(error=Refusal("unavailable", reason)))
            return
        wait_s = min(max(passed.request.wait_s, 0.0), _LONGEST_WAIT_S)
        self._requests.put(passed.client, _OpenRequest(message, passed, time.monotonic() + wait_s))
        self._wake.set()

    async def _is_refused(self, message: Msg, passed: ForwardedRequest) -> bool:
        """Whether a client has used up its share, and was told so. Brokers and operators have no share."""
        if passed.request.op not in OPS:
            return False
        wait_s = self.budgets.wait_s(passed.client, time.monotonic())
        if wait_s:
            reason = "made requests that took much of the coordinator's time"
            await _respond(message, Answer(error=busy(passed.client, reason, wait_s)))
        return wait_s > 0

    async def _take_requests(self) -> None:
        """Do up to `MOST_AT_ONCE` requests as one revision, fewer where they take long."""
        if not self._requests:
            return
        book, records, owner = self.book, dict[str, ClientRecord](), dict[str, str | None]()
        taken: list[_OpenRequest] = []
        rules = (await beside(lambda: self._rules(owner))).result
        spent_s = 0.0
        while self._requests and len(taken) < self._at_once and spent_s < _REVISION_ASKS_S:
            waiting = self._requests.take()
            client = waiting.passed.client
            if waiting.passed.request.op in MOVE_OPS:
                # it may change records: those of this revision must be written before
                if taken:
                    self._requests.put_back(client, waiting)
                    break
                await _respond(waiting.message, await self.moving.take(waiting.passed))
                continue
            # once more: what it asked before may have taken its share meanwhile
            if await self._is_refused(waiting.message, waiting.passed):
                continue
            before = records.get(client, book.records.get(client))
            spent_s += await self._do(waiting, before, rules)
            asked = waiting.outcome
            if asked is None:
                continue
            _note(before, asked.record, owner)
            records[client] = asked.record
            taken.append(waiting)
        # before any write: should one fail, these too are told so
        self._waiting += taken
        changed = [record for client, record in records.items() if book.records.get(client) != record]
        # a record has up to 10,000 subscriptions, and is read and written as a whole
        written = await beside(lambda: book.put_records(changed))
        await self._stores.write(written.result)
        took_s = await self._revise({id_ for waiting in taken for id_ in waiting.ids})
        for waiting in taken:
            waiting.revision = book.epochs.revision
            self._charge(waiting, (took_s + written.cpu_s) / len(taken))

    async def _do(self, waiting: _OpenRequest, before: ClientRecord | None, rules: RequestLimits) -> float:
        """See what a request does; one that is refused, or changes nothing, is answered. Returns its CPU
        time."""
        passed = waiting.passed
        done = await beside(lambda: _asked(before, passed, rules))
        self._charge(waiting, done.cpu_s)
        asked, revision = done.result, self.book.epochs.revision
        if asked.problem is not None or passed.request.op == "list":
            listed = msgspec.structs.replace(asked.record, done=[], gone=[])
            await _respond(
                waiting.message, Answer(asked.problem is None, asked.problem, revision, client=listed)
            )
        else:
            waiting.outcome = asked
        return done.cpu_s

    def _charge(self, waiting: _OpenRequest, cpu_s: float) -> None:
        if waiting.passed.request.op in OPS:
            self.budgets.charge(waiting.passed.client, cpu_s, time.monotonic())

    def _rules(self, owner: dict[str, str | None]) -> RequestLimits:
        plan = self.book.head.plan
        bars = self.book.bars(plan)

        def barred(row: Subscription) -> str:
            return "" if bars is None else "; ".join(map(str, bars.against(row, plan)))

        return RequestLimits(
            frozenset(self.book.overlay.index),
            plan.classes.schema,
            {**self._newcomers(), **plan.attachments},
            lambda id_: owner[id_] if id_ in owner else self.book.owner.get(id_),
            # half: a suspension makes a record longer
            most_bytes=min(MOST_RECORD_BYTES, self._stores.store.most_value_bytes // 2),
            moving=self.moving.under_way,
            too_late=self.book.too_late,
            barred=barred,
        )

    def _newcomers(self) -> dict[str, str]:
        """Where clients are attached that have no record yet: no other broker may ask for them."""
        records = self.book.records
        return {name: at for name, at in self._settings.homes().items() if name not in records}

    async def _revise(self, touched: Collection[str] | None) -> float:
        """Bring the live plans up to the records. Returns the CPU time that it took.

        In a thread: with very many classes it takes long, and the lease must be renewed meanwhile. The next
        revision takes no more requests than a second is enough for.
        """
        began = time.monotonic()
        done = await beside(lambda: self.book.revise(touched))
        if touched:
            each_s = (time.monotonic() - began) / len(touched)
            self._at_once = min(MOST_AT_ONCE, max(1, int(_REVISION_S / max(each_s, 1e-6))))
        if done.result:
            self._hurry = True
            await self._stores.write(done.result)
        return done.cpu_s

    async def _rebase(self) -> None:
        for epoch in self.book.long():
            await self._stores.write(await asyncio.to_thread(self.book.rebase, epoch))
            self._hurry, self._saved = True, -1

    async def _answer(self) -> None:
        now, left = time.monotonic(), list[_OpenRequest]()
        for waiting in self._waiting:
            missing = self.book.missing(waiting.ids, waiting.revision) if waiting.ids else {}
            if missing and now < waiting.until:
                left.append(waiting)
            elif not self._stores.lease.held:
                raise LiveError("the lease of the leader lapsed before requests were answered")
            else:
                await _respond(waiting.message, Answer(True, None, waiting.revision, missing))
        self._waiting = left

    async def _refuse_all(self) -> None:
        reason = "the coordinator lost its lead, and the outcome is unknown: ask again"
        for waiting in (*self._waiting, *self._requests):
            await _respond(waiting.message, Answer(error=Refusal("unavailable", reason)))
        self._waiting.clear()
        self._requests.clear()

    # ----------------------------------------------------------------------------------------- state

    async def _save(self) -> None:
        """Write the state when a decision was made since; those of a drain's rounds wait a moment."""
        book, now = self.book, time.monotonic()
        if book.epochs.version == self._saved or (not self._hurry and now - self._saved_at < _ROUND_S):
            return
        version = book.epochs.version
        await self._stores.write([book.state()])
        self._saved, self._saved_at, self._hurry = version, time.monotonic(), False
        self._garbage.extend((self._saved_at + self._settings.grace_s, key) for key in book.dropped)
        book.dropped = []

    async def _sweep(self) -> None:
        """Delete plans and changes that nobody needs, once brokers that are behind had time."""
        now = time.monotonic()
        for _ in range(16):
            if not self._garbage or self._garbage[0][0] > now:
                return
            await self._stores.delete(self._garbage.popleft()[1])


def _note(before: ClientRecord | None, after: ClientRecord, owner: dict[str, str | None]) -> None:
    """Remember whose ids are whose within a revision."""
    had: set[str] = set() if before is None else {*before.subscriptions}
    owner.update(dict.fromkeys(after.subscriptions.keys() - had, after.client))
    owner.update(dict.fromkeys(had - after.subscriptions.keys(), None))


def _broker(key: str) -> str:
    try:
        return name_of(key.partition(".")[2])
    except InputError:
        return ""


def _asked(before: ClientRecord | None, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    """As `ask`. One that trips over a fault of ours is refused: the same again would end every term."""
    try:
        return ask(before, passed, rules)
    except Exception as error:
        _log.exception("a request %s of client %s failed", passed.request.op, passed.client)
        record = before or ClientRecord(passed.client, passed.broker)
        reason = f"the coordinator failed at this request: {error!r}. Its log says where."
        return RequestOutcome(record, problem=Refusal("bad_request", reason))


async def _respond(message: Msg, answer: Answer) -> None:
    try:
        try:
            await message.respond(encode(answer))
        except nats.errors.MaxPayloadError:
            reason = "the answer is larger than a message of this server may be: raise its max_payload"
            await message.respond(encode(Answer(error=Refusal("limit", reason))))
    except (nats.errors.Error, OSError) as error:
        _log.warning("an answer could not be sent: %r", error)
