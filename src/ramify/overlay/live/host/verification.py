"""Clients of our own on an overlay that runs: they publish, subscribe, come and go, and note all of it.

Owns the load and the history of a verification; `overlay.histories` judges it. All events carry the name of
the run, and all subscriptions ask for it, so nothing of others is touched, seen or counted.

    writers     publish one message after the other, again under the same ids while the outcome is unknown
    readers     take whole lanes; a reader may end and come back at the position that it had reached
    churn       subscriptions that come and go at the readers
    look        asks the overlay for its status, once a second

Where brokers make matches there is no moment at which all brokers know a subscription. It counts as active
once an event of every writer has come.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramify.content.events.events import Event, batch_to_events
from ramify.errors import LiveError
from ramify.overlay.control.health import SILENT_S
from ramify.overlay.histories.conditions import digest, holds, sql_of
from ramify.overlay.histories.rows import (
    Condition,
    DeliveryRow,
    EndRow,
    HistoryRow,
    PublishRow,
    RunRow,
    StatusRow,
    SubscribeRow,
    SuspensionRow,
    UnsubscribeRow,
)
from ramify.overlay.live.client.client import (
    Client,
    DeliveredBatch,
    LostDeliveriesError,
    OutcomeUnknownError,
    PendingClient,
    SuspendedError,
)
from ramify.overlay.live.host.overview import Look, Overview
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["MARK", "Verification", "VerificationSettings", "tells_of"]

MARK = "verification"
"""The attribute that names the run."""

_LOOK_S = 1.0
_LOOK_ANSWER_S = 5.0
_ACTIVE_LIMIT_S = 120.0
_SETTLED_S = 1.0
"""How long after the last due event readers wait for what is too much."""
_WORDS = ("a", "ab", "b", "c", "d")
_TOP = 100
_PUBLISH_TRY_S = 20.0


@dataclass(frozen=True, slots=True)
class VerificationSettings:
    """What the clients do. `rate_per_s` is in events, over all writers; `churn_s` is between two changes of
    one reader, 0 for none. Readers wait `settle_s` for what is due after the last publish."""

    run: str
    seed: int
    duration_s: float = 60.0
    rate_per_s: float = 200.0
    most_events: int = 10
    subscriptions: int = 3
    churn_s: float = 3.0
    settle_s: float = 120.0
    ordered: bool = False
    patience_s: float = 15.0
    payload_bytes: int = 0
    about: str = ""


Dial = Callable[[int | None], PendingClient]
"""Connects a client, at a position of its lane if one is given."""


class Verification:
    """See the module. `run` once; `note` takes rows of others, such as faults, on the clock `now`."""

    def __init__(
        self,
        writers: Mapping[str, Dial],
        readers: Mapping[str, Dial],
        settings: VerificationSettings,
        sink: Callable[[HistoryRow], None],
        look: Look | None = None,
        *,
        matchmaking: bool = False,
    ) -> None:
        self.settings = settings
        self.matchmaking = matchmaking
        self.note = sink
        self.acknowledged = 0
        self.publishing = asyncio.Event()
        """Set once all subscriptions are active and writers publish."""
        # (subscription, event) that is due and has not come; what came before its publish was answered
        self.missing: set[tuple[str, str]] = set()
        self._early: set[tuple[str, str]] = set()
        # the subscriptions that stay, with their clients
        self._lasting: dict[str, tuple[str, Condition]] = {}
        # (subscription, writer) of which something came
        self._heard: set[tuple[str, str]] = set()
        self._look = look
        self._began = time.monotonic()
        self._ended = False
        rng = random.Random(settings.seed)
        self._writers = [_Writer(self, name, dial, rng.random()) for name, dial in writers.items()]
        self._readers = [_Reader(self, name, dial, rng.random()) for name, dial in readers.items()]
        self._everyone: list[_Writer | _Reader] = [*self._readers, *self._writers]

    def now(self) -> float:
        """Seconds since the run began."""
        return round(time.monotonic() - self._began, 6)

    def lasting(self) -> Mapping[str, tuple[str, Condition]]:
        """The subscriptions that stay to the end, with their clients."""
        return self._lasting

    async def run(self) -> None:
        """All of it, to the end row. Raises `LiveError` when the overlay does not take part."""
        s = self.settings
        started = RunRow(
            s.run, self.now(), seed=s.seed, ordered=s.ordered, patience_s=s.patience_s, about=s.about
        )
        self.note(started)
        tasks: list[asyncio.Task[None]] = []
        try:
            if self._look is not None:
                tasks.append(asyncio.create_task(self._watch(self._look)))
            await asyncio.gather(*(each.connect() for each in self._everyone))
            if self.matchmaking:
                await asyncio.gather(*(each.advertise() for each in self._writers))
            await asyncio.gather(*(each.begin(s.subscriptions) for each in self._readers))
            tasks += [asyncio.create_task(each.read()) for each in self._readers]
            if self.matchmaking:
                await self._until_matched()
            self.publishing.set()
            tasks += [asyncio.create_task(each.churn()) for each in self._readers if s.churn_s > 0]
            writing = [asyncio.create_task(each.write()) for each in self._writers]
            tasks += writing
            await self._while_well(tasks, s.duration_s)
            self._ended = True
            await asyncio.gather(*writing)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(s.settle_s):
                    while self.missing:
                        await self._while_well(tasks, 0.1)
            await asyncio.sleep(_SETTLED_S)
            self.note(EndRow(self.now()))
        finally:
            await end_tasks(tasks)
            await asyncio.gather(*(each.leave() for each in self._everyone))

    async def _while_well(self, tasks: Sequence[asyncio.Task[None]], limit_s: float) -> None:
        """Wait; raise what a task ended with."""
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _until_matched(self) -> None:
        """Publish until something of every writer came to every subscription; then they are active."""
        wanted = {(id, writer.name) for id in self._lasting for writer in self._writers}
        async with asyncio.timeout(_ACTIVE_LIMIT_S):
            while not wanted <= self._heard:
                await asyncio.gather(*(each.publish() for each in self._writers))
                await asyncio.sleep(0.2)
        for reader in self._readers:
            reader.count_active()

    async def _watch(self, look: Look) -> None:
        while True:
            at = self.now()
            try:
                async with asyncio.timeout(_LOOK_ANSWER_S):
                    view = await look()
                row = StatusRow(at, self.now(), *tells_of(view))
            except (LiveError, TimeoutError, OSError) as error:
                row = StatusRow(at, self.now(), (f"status: {str(error) or type(error).__name__}",))
            self.note(row)
            await asyncio.sleep(_LOOK_S)

    # -------------------------------------------------------------------- what writers and readers tell

    def _published(self, row: PublishRow) -> None:
        self.note(row)
        if row.outcome != "acknowledged":
            return
        self.acknowledged += len(row.events)
        if not self.publishing.is_set():
            return
        for id, values in row.events:
            for subscription, (_, condition) in self._lasting.items():
                if not holds(condition, values):
                    continue
                if (subscription, id) in self._early:
                    self._early.discard((subscription, id))
                else:
                    self.missing.add((subscription, id))

    def _came(self, row: DeliveryRow) -> None:
        self.note(row)
        for subscription in row.subscriptions:
            if subscription not in self._lasting:
                continue
            for id, _ in row.events:
                writer = id.removeprefix(f"{self.settings.run}.").rpartition(".")[0]
                self._heard.add((subscription, writer))
                if (subscription, id) in self.missing:
                    self.missing.discard((subscription, id))
                elif self.publishing.is_set():
                    self._early.add((subscription, id))


class _Writer:
    def __init__(self, whole: Verification, name: str, dial: Dial, seed: float) -> None:
        self.name = name
        self._whole = whole
        self._dial = dial
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._client: Client | None = None
        self._mark = whole.settings.run

    async def connect(self) -> None:
        self._client = await self._dial(None)

    async def advertise(self) -> None:
        assert self._client is not None
        await self._client.advertise(f"{MARK} = '{self._mark}'", id=MARK)

    async def write(self) -> None:
        """Publish at a steady rate; what could not be published in time is not made up for."""
        whole = self._whole
        rate = whole.settings.rate_per_s / max(1, len(whole._writers))
        due = time.monotonic()
        while not whole._ended:
            due = max(due + await self.publish() / rate, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def publish(self) -> int:
        """Publish some events, until the outcome is known or the run is long over; how many."""
        whole, client = self._whole, self._client
        assert client is not None
        events = [self._event() for _ in range(self._rng.randint(1, whole.settings.most_events))]
        sent = [Event(id, attributes=values) for id, values in events]
        at = whole.now()
        outcome = "unknown"
        tries = 0
        limit = time.monotonic() + whole.settings.settle_s
        while outcome == "unknown" and time.monotonic() < limit:
            tries += 1
            try:
                await client.publish(sent, give_up_s=_PUBLISH_TRY_S, check=False)
                outcome = "acknowledged"
            except OutcomeUnknownError:
                continue
            except LiveError as error:
                # after a try without an answer nobody knows
                if tries == 1 and "no room" in str(error):
                    outcome = "refused"
                break
        answered = None if outcome == "unknown" else whole.now()
        whole._published(PublishRow(self.name, at, tuple(events), outcome, answered))  # type: ignore[arg-type]
        return len(events)

    def _event(self) -> tuple[str, dict[str, str | int]]:
        rng = self._rng
        values: dict[str, str | int] = {MARK: self._mark, "x": rng.randrange(_TOP), "t": rng.choice(_WORDS)}
        if self._whole.settings.payload_bytes:
            values["pad"] = rng.randbytes(self._whole.settings.payload_bytes // 2).hex()
        return f"{self._mark}.{self.name}.{next(self._numbers)}", values

    async def leave(self) -> None:
        if self._client is not None:
            if self._whole.matchmaking:
                await _quietly(self._client.unadvertise(MARK))
            await self._client.close()


class _Reader:
    def __init__(self, whole: Verification, name: str, dial: Dial, seed: float) -> None:
        self.name = name
        self._whole = whole
        self._dial = dial
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._client: Client | None = None
        # subscriptions by id, those that stay first
        self._asked: dict[str, Condition] = {}
        self._lasting = 0
        self._number: int | None = None
        self._restart = asyncio.Event()
        self._connected = asyncio.Event()

    async def connect(self) -> None:
        self._client = client = await self._dial(None)
        self._connected.set()
        for id in await client.subscriptions():
            await client.unsubscribe(id)  # of a run that was killed

    async def begin(self, count: int) -> None:
        """Ask for the subscriptions that stay, until all brokers know them."""
        async with asyncio.timeout(_ACTIVE_LIMIT_S):
            for _ in range(count):
                id = await self._subscribe(until_active=True)
                self._whole._lasting[id] = self.name, self._asked[id]
        self._lasting = len(self._asked)

    def count_active(self) -> None:
        """Where matches are made: from now on all that is published comes."""
        now = self._whole.now()
        for id, condition in self._asked.items():
            self._whole.note(SubscribeRow(self.name, id, condition, now, "active", now))

    async def read(self) -> None:
        """Take the lane, for ever. Ends and begins again where it was, when it is told to."""
        while True:
            reading = asyncio.create_task(self._read())
            told = asyncio.create_task(self._restart.wait())
            try:
                await asyncio.wait([reading, told], return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()
            finally:
                await end_tasks([reading, told])
            self._restart.clear()
            self._connected.clear()
            assert self._client is not None
            await self._client.close()
            self._client = await self._dial(self._number)
            self._connected.set()

    async def _read(self) -> None:
        whole, client = self._whole, self._client
        assert client is not None
        prefix = f"{whole.settings.run}-"
        while True:
            try:
                async for batch in client.deliveries(self._number):
                    for own, events in _by_subscriptions(batch, prefix):
                        whole._came(DeliveryRow(self.name, whole.now(), own, events, batch.number))
                    self._number = batch.number
            except SuspendedError as error:
                whole.note(SuspensionRow(self.name, whole.now(), error.reason))
                self._number = error.number
                await client.resume()
            except LostDeliveriesError as error:
                now = whole.now()
                whole.note(StatusRow(now, now, alarms=(str(error),)))
                self._number = None
                return

    async def churn(self) -> None:
        """Subscribe, unsubscribe and start over, one after the other."""
        whole, rng = self._whole, self._rng
        while not whole._ended:
            await asyncio.sleep(rng.expovariate(1 / whole.settings.churn_s))
            await self._connected.wait()
            extra = list(self._asked)[self._lasting :]
            kind = rng.random()
            try:
                if kind < 0.1:
                    self._restart.set()
                elif extra and (kind < 0.5 or len(extra) > 4):
                    await self._unsubscribe(rng.choice(extra))
                else:
                    await self._subscribe(until_active=False)
            except LiveError:
                pass  # it is in the history as unknown, and asked for again another time

    async def _subscribe(self, *, until_active: bool) -> str:
        whole, client = self._whole, self._client
        assert client is not None
        condition = self._condition()
        id = f"{whole.settings.run}-{self.name}-{next(self._numbers)}"
        self._asked[id] = condition
        while True:
            at = whole.now()
            outcome, answered = "unknown", None
            try:
                made = await client.subscribe(sql_of(condition), id=id, wait_s=10)
                # brokers that make matches do not know when all have it
                outcome = "partial" if made.missing or whole.matchmaking else "active"
                answered = whole.now()
            except LiveError:
                if not until_active:
                    raise
            finally:
                row = SubscribeRow(self.name, id, condition, at, outcome, answered)  # type: ignore[arg-type]
                whole.note(row)
            if outcome == "active" or whole.matchmaking or not until_active:
                return id
            await asyncio.sleep(0.2)

    async def _unsubscribe(self, id: str) -> None:
        whole, client = self._whole, self._client
        assert client is not None
        at = whole.now()
        outcome, answered = "unknown", None
        del self._asked[id]
        try:
            if not await client.unsubscribe(id, wait_s=10) and not whole.matchmaking:
                outcome, answered = "ended", whole.now()
        finally:
            whole.note(UnsubscribeRow(self.name, id, at, outcome, answered))  # type: ignore[arg-type]

    def _condition(self) -> Condition:
        """They overlap on purpose: one event is for several subscriptions of a client."""
        rng, mark = self._rng, (MARK, "=", self._whole.settings.run)
        low = rng.randrange(_TOP // 2)
        word = rng.choice(_WORDS)
        match rng.randrange(6):
            case 0:
                return ((mark, ("x", ">=", 0)),)
            case 1:
                return ((mark, ("x", ">=", low), ("x", "<", low + _TOP // 3)),)
            case 2:
                return ((mark, ("t", "=", word)),)
            case 3:
                return ((mark, ("t", "in", (word, "d")), ("x", "<", low + 20)),)
            case 4:
                return ((mark, ("t", "prefix", "a")),)
            case _:
                return ((mark, ("x", "<", low)), (mark, ("t", "=", word)))

    async def leave(self) -> None:
        if self._client is not None:
            await asyncio.gather(*(_quietly(self._client.unsubscribe(id)) for id in self._asked))
            await self._client.close()


async def _quietly(asked: Awaitable[object]) -> None:
    """Await something whose failure changes nothing."""
    with contextlib.suppress(LiveError):
        await asked


def tells_of(view: Overview) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a look says that events wait for, and what it says is lost."""
    tells: list[str] = [] if view.brokers else ["no brokers"]
    if view.leader is None and not view.matchmaking:
        tells.append("no coordinator leads")
    for broker in view.brokers:
        if broker.state != "routing":
            tells.append(f"{broker.name}: {broker.state}")
        elif broker.why:
            tells.append(f"{broker.name}: {broker.why}")
        status = broker.status
        if status is None or (broker.age_s or 0.0) >= SILENT_S:
            tells.append(f"{broker.name}: no word of it")
            continue
        if status.trouble:
            tells.append(f"{broker.name}: {status.trouble}")
        tells += [f"{broker.name}: suspended {name} ({why})" for name, why in status.suspended.items()]
        waits = {"IN": status.lag_published, **status.lag_links, **status.lag_clients}
        tells += [f"{broker.name}: {count} wait in {lane}" for lane, count in waits.items() if count]
    for epoch in view.epochs:
        late = "; ".join(f"{name} {why}" for name, why in epoch.waiting.items())
        tells += [f"epoch {epoch.epoch} {epoch.state}: {late}"] if late else []
    alarms = [
        f"{broker.name}: {alarm.what}"
        for broker in view.brokers
        if broker.status is not None
        for alarm in broker.status.alarms
    ]
    return tuple(tells), tuple(alarms)


def _by_subscriptions(
    batch: DeliveredBatch, prefix: str
) -> Iterator[tuple[tuple[str, ...], tuple[tuple[str, str], ...]]]:
    """The events of a delivery in their order, those that follow each other for the same subscriptions
    together, as (id, digest); of subscriptions only those of this run."""
    events = [(event.id, digest(event.attributes)) for event in batch_to_events(batch.events)]
    for ids, rows in batch.runs():
        own = tuple(id for id in ids if id.startswith(prefix))
        if own:
            yield own, tuple(events[row] for row in rows)
