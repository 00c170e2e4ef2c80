"""A broker that needs no coordinator: it makes matches with its neighbours, and decides what clients ask.

Owns the broker's tasks where matchmaking is the control plane: steps (`broker`,
`overlay.matchmaking.step`), requests, quotas. There is no control server, no lease, no epoch: whatever of
the overlay is connected works.

A request is done when it is in the broker's log: what clients asked for, the state of the protocol and the
packets to the neighbours are one write. That is when it is answered. Neighbours hear of it as soon as they
are there; nobody knows when all have, so an answer does not say that a subscription is active everywhere.
An advertisement is taken back once all is routed that was published before the request.

    Matchmaker    the broker with all its tasks
"""

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import nats.errors
from nats.aio.msg import Msg

from ramify.content.events.events import AttributeType
from ramify.errors import InputError, LiveError
from ramify.overlay.control.fairness import DEFAULT_RATES, RequestRates
from ramify.overlay.control.health import health
from ramify.overlay.control.names import IN, STATUS
from ramify.overlay.control.output import Output
from ramify.overlay.control.records import (
    Answer,
    ClientRecord,
    ForwardedRequest,
    Refusal,
    Status,
    encode,
)
from ramify.overlay.control.steps import StepResult
from ramify.overlay.live.broker.broker import Broker, BrokerConfig
from ramify.overlay.live.broker.client_requests import RequestDesk
from ramify.overlay.live.broker.log import LogEntry
from ramify.overlay.live.broker.quotas import Guard
from ramify.overlay.live.wire.pauses import TROUBLE_PAUSE_S
from ramify.overlay.live.wire.streams import api
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.overlay.matchmaking.state import TreePlace
from ramify.overlay.matchmaking.step import MatchNode

__all__ = ["Matchmaker", "MatchmakerConfig"]

_ANSWER_LOOK_S = 0.02
_LEAST_WAIT_S = 5.0


@dataclass(frozen=True)
class MatchmakerConfig:
    """A broker and its place in the trees (`places_of_overlay`)."""

    broker: BrokerConfig
    place: TreePlace
    look_every_s: float = 2.0
    rates: RequestRates = DEFAULT_RATES


class Matchmaker:
    """See the module. Raises `InputError` for a place that the broker's links do not reach."""

    def __init__(self, config: MatchmakerConfig) -> None:
        self.config = config
        self.name = config.broker.name
        unreached = set(config.place.neighbours) - set(config.broker.neighbours)
        if config.place.name != self.name or unreached:
            raise InputError(
                f"broker {self.name!r} is not at the place of {config.place.name!r}: its settings lack the "
                f"neighbours {sorted(unreached)}"
            )
        self.node = MatchNode(config.place, config.broker.limits)
        self.broker = Broker(config.broker, self.node, gate=self.may_route, on_commit=self._committed)
        self.guard = Guard(self.broker, self._record, self.ask)
        self.started_s = time.time()
        self.run_id = uuid.uuid4().hex
        self._open = False
        self._waiting: deque[tuple[ForwardedRequest, asyncio.Future[Answer]]] = deque()
        self._asked = asyncio.Event()

    # ------------------------------------------------------------------------------------------- what is

    def may_route(self) -> bool:
        """Whether this broker may take a step now: once it knows the suspended clients."""
        return self._open

    def status(self) -> Status:
        """Counters for people."""
        counted = self.broker.status(self.run_id, self.started_s)
        figures = replace(self.broker.figures(), ready=self._open)
        found = health(figures)
        state = self.node.match.state
        return msgspec.structs.replace(
            counted,
            revision=state.number,
            routing=self._open,
            lag_clients=self.guard.lags(),
            suspended=dict(self.guard.suspended),
            trouble=self.node.trouble or counted.trouble,
            health=found.word,
            why=found.why,
            waiting_s=figures.waiting_s,
            clients=len(self.node.clients),
            descriptors=state.stored,
            channels=sum(map(len, state.channels.values())),
        )

    def _schema(self) -> Mapping[str, AttributeType]:
        return self.node.schema

    async def _record(self, client: str) -> ClientRecord | None:
        return self.node.clients.get(client)

    def _committed(self, done: StepResult, written: Sequence[LogEntry]) -> None:
        self.guard.wrote(written)

    # ----------------------------------------------------------------------------------------- the tasks

    async def run(self) -> None:
        """Serve until cancelled, whatever servers do.

        Raises
        ------
        SupersededError
            When another router of the same broker has started since.
        InputError
            When the overlay or the trees are others than those that matches were made over.
        """
        steps = asyncio.create_task(self.broker.run())
        tasks = [steps]
        ready = asyncio.create_task(self.broker.ready.wait())
        try:
            await asyncio.wait([steps, ready], return_when=asyncio.FIRST_COMPLETED)
            if not steps.done():
                asker = RequestDesk(self.broker, self.guard, self, self._schema, rates=self.config.rates)
                parts = (
                    self._learn(),
                    self._decide(),
                    asker.run(),
                    self.guard.run(self.config.look_every_s),
                    self._tell(),
                )
                tasks += [asyncio.create_task(part) for part in parts]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks([*tasks, ready])
            while self._waiting:
                self._waiting.popleft()[1].cancel()

    async def _learn(self) -> None:
        """Learn the suspended clients, and then route."""
        while not self._open:
            try:
                await self.guard.learn(self.node.clients)
                self._open = True
                self.broker.wake()
            except (LiveError, nats.errors.Error, TimeoutError, OSError):
                await asyncio.sleep(TROUBLE_PAUSE_S)
        await asyncio.Event().wait()

    async def _tell(self) -> None:
        """Say how the broker fares to a holder of its key."""

        async def told(message: Msg) -> None:
            await message.respond(encode(self.status()))

        await self.broker.connection.subscribe(STATUS, cb=told)
        await asyncio.Event().wait()

    # ------------------------------------------------------------------------------------------ requests

    async def ask(self, passed: ForwardedRequest) -> Answer:
        """Do what a client asks, or this broker for it (`suspend`)."""
        if passed.request.op == "unadvertise" and not await self._has_routed(passed.request.wait_s):
            reason = "what was published before is not routed yet. Ask again."
            return Answer(error=Refusal("unavailable", reason))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((passed, answer))
        self._asked.set()
        return await answer

    async def _has_routed(self, wait_s: float) -> bool:
        """Wait until all is routed that clients have published here so far."""
        info = await api(self.broker.connection, f"STREAM.INFO.{IN}", {})
        last = int(info["state"]["last_seq"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_s, _LEAST_WAIT_S)):
                while self.broker.routed < last:
                    await asyncio.sleep(_ANSWER_LOOK_S)
        return self.broker.routed >= last

    async def _decide(self) -> None:
        """Write what is asked, all that waits in one write."""
        while True:
            self._asked.clear()
            if not self._waiting:
                await self._asked.wait()
                continue
            decided: list[tuple[asyncio.Future[Answer], Answer]] = []
            try:
                await self.broker.write(lambda told=decided: self._made(told), self.node.settled)  # type: ignore[misc]
            except LiveError as error:
                problem = Refusal("unavailable", f"not known to be written: {error}. Ask again.")
                decided = [(answer, Answer(error=problem)) for answer, _ in decided]
            for answer, told in decided:
                if not answer.done():
                    answer.set_result(told)

    def _made(self, decided: list[tuple[asyncio.Future[Answer], Answer]]) -> list[Output]:
        answers, outputs = self.node.apply([passed for passed, _ in self._waiting])
        decided += [(self._waiting.popleft()[1], told) for told in answers]
        return outputs
