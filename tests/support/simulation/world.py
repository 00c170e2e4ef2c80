"""One run: the real brokers, clients and coordinators of a scenario on simulated servers, and the verdict.

Owns the processes and what is done to them. What clients did and saw is a history, and the checker of
histories, which shares no code with the overlay, judges it. A run fails too if nothing can ever happen
again, if a task spins, or if a process ends that must not.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from ramify.content.events.events import AttributeType, Event, batch_to_events, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LiveError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.health import Health, health
from ramify.overlay.control.steps import Node
from ramify.overlay.histories.checker import judge
from ramify.overlay.histories.conditions import digest, holds, sql_of
from ramify.overlay.histories.rows import (
    DeliveryRow,
    EndRow,
    FaultRow,
    HistoryRow,
    PublishRow,
    RunRow,
    StatusRow,
    SubscribeRow,
    UnsubscribeRow,
)
from ramify.overlay.histories.verdict import HistoryVerdict
from ramify.overlay.live.broker.broker import Broker, BrokerConfig
from ramify.overlay.live.broker.controlled import ControlledBroker, ControlledConfig
from ramify.overlay.live.broker.log import SupersededError
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.client.lane import LaneClient
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.wire import streams
from ramify.overlay.live.wire.connection import TRANSPORT
from ramify.overlay.live.wire.streams import Endpoint, Sizes
from ramify.overlay.routing.router import RoutingPlan
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from raw_messages import BAD_BLOCKS
from simulation.clock import PROCESS, StalledError, VirtualLoop, simulated, spawn
from simulation.network import Network
from simulation.scenario import CONDITIONS, CONTROL, Act, Scenario
from simulation.server import SimulatedServer

__all__ = ["RunResult", "run"]

SCHEMA = {"x": AttributeType.INT64, "k": AttributeType.STRING}
_PATIENCE_S = 15.0
_SETTLE_S = 50.0
"""After the last fault, the last acknowledgement and the last event that came, all must have come. What a
client that died asked for stays for half a minute, and takes what is meant for the next one."""
_LONGEST_SETTLE_S = 400.0
"""Events that go on coming are late, not lost: a small log makes room every few seconds."""
_LONGEST_REPLAN_S = 60.0
_AFTER_S = 2.0
_LOOK_S = 1.0


@dataclass
class RunResult:
    """How a run ended. `trace` is a hash of every byte that was sent, and when."""

    scenario: Scenario
    verdict: HistoryVerdict | None = None
    fault: str = ""
    trace: str = ""
    log: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rows: list[HistoryRow] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.fault and self.verdict is not None and self.verdict.is_kept

    def story(self) -> str:
        lines = [f"seed {self.scenario.seed}", self.scenario.story()]
        if self.fault:
            lines.append(f"FAULT {self.fault}")
        if self.verdict is not None:
            lines.append(self.verdict.text())
        return "\n".join(lines)


class _World:
    def __init__(self, scenario: Scenario, loop: VirtualLoop) -> None:
        self.scenario, self.loop = scenario, loop
        self.rng = random.Random(f"world {scenario.seed}")
        self.network = Network(loop, random.Random(f"network {scenario.seed}"))
        self.hash = hashlib.blake2b(digest_size=8)
        self.network.trace = self._trace
        self.servers: dict[str, SimulatedServer] = {}
        for port, name in enumerate((*scenario.brokers, CONTROL), 1):
            rng = random.Random(f"server {scenario.seed} {name}")
            self.servers[name] = SimulatedServer(name, port, self.network, rng, always_sync=scenario.syncs)
        run = RunRow(
            f"seed {scenario.seed}", loop.time(), ordered=scenario.is_ordered, patience_s=_PATIENCE_S
        )
        self.rows: list[HistoryRow] = [run]
        self.numbers: Counter[str] = Counter()
        self.processes: dict[str, str] = {}
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.states: dict[str, Broker | ControlledBroker] = {}
        # of every process, also of those that are dead or were replaced
        self.brokers: list[Broker] = []
        self.dead: set[str] = set()
        self.down: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        self.to_publish: dict[str, asyncio.Queue[int]] = {}
        self.wishes: dict[str, asyncio.Queue[Act]] = {}
        self.events = 0
        self.busy: dict[str, tuple[float, tuple[tuple[str, dict[str, Any]], ...]] | None] = {}
        self.acknowledged: dict[str, dict[str, Any]] = {}
        # when the publish of an event was begun; from when on a subscription of later is surely there
        self.published: dict[str, float] = {}
        self.since: dict[str, float] = {}
        self.active: dict[str, tuple[str, int]] = dict(scenario.subscriptions)
        self.asked: set[str] = set()
        self.got: set[tuple[str, str]] = set()
        self.plan_number = 0
        # when the last fault is over, and the last publish
        self.calm_at = 0.0
        # what a process starts with: the transport is in it
        self.context = contextvars.Context()

    def _trace(self, frm: str, to: str, data: bytes) -> None:
        self.hash.update(f"{self.loop.time():.6f} {frm} {to} ".encode() + data)

    # ------------------------------------------------------------------------------------- processes

    def start(self, name: str) -> None:
        """Start a process anew; an earlier one of that name is dead, or will find itself superseded."""
        self.numbers[name] += 1
        process = f"{name}#{self.numbers[name]}"
        self.processes[name] = process
        kind, _, label = name.partition(":")
        work: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "router": lambda: self._router(label, process),
            "client": lambda: self._client(label),
            "coordinator": lambda: self._coordinator(label),
        }
        self.tasks[process] = spawn(self.loop, self.context, process, work[kind])

    def kill(self, name: str, seconds: float) -> None:
        """SIGKILL, and a new one after a while."""
        process = self.processes.get(name)
        if process is None or name in self.dead:
            return
        self.dead.add(name)
        self.calm_at = max(self.calm_at, self.loop.time() + seconds)
        self.loop.stop_process(process)
        self.network.drop(process)
        self._was_killed(name)

        def again() -> None:
            self.dead.discard(name)
            self.start(name)

        self.loop.later(seconds, again)

    def _was_killed(self, name: str) -> None:
        label = name.partition(":")[2]
        half = self.busy.pop(label, None)
        if half is not None:
            self.rows.append(PublishRow(label, half[0], half[1], "unknown"))

    async def _router(self, name: str, process: str) -> None:
        scenario = self.scenario
        config = BrokerConfig(
            name,
            Endpoint(self.servers[name].url, inbox_prefix=f"_I.router_{name}"),
            {
                other: Endpoint(self.servers[other].url, inbox_prefix=f"_I.link_{name}")
                for other in self._neighbours(name)
            },
            tuple(sorted(c for c, at in scenario.clients.items() if at == name))
            if not scenario.controlled
            else (),
            Sizes(8 << 20, scenario.out_bytes, 1 << 20, 1 << 20),
        )
        broker: Broker | ControlledBroker
        if scenario.controlled:
            control = Endpoint(self.servers[CONTROL].url, inbox_prefix=f"_I.control_{name}")
            broker = ControlledBroker(ControlledConfig(config, control, sample_probability=0.0))
        else:
            node = Node(name)
            node.install(0, RoutingPlan(self._plan(scenario.scheme)))
            node.flip(0)
            broker = Broker(config, node)
        self.states[name] = broker
        self.brokers.append(broker.broker if isinstance(broker, ControlledBroker) else broker)
        try:
            await broker.run()
        except SupersededError:
            if self.processes[f"router:{name}"] == process:
                # its supervisor starts it again, as it would after any end
                await asyncio.sleep(1.0)
                self.start(f"router:{name}")

    def _neighbours(self, name: str) -> list[str]:
        return sorted({b if a == name else a for a, b in self.scenario.links if name in (a, b)})

    def overlay(self) -> Overlay:
        links = [Link(a, b, 1.0, 1.0, 5.0) for a, b in self.scenario.links]
        return Overlay.build("simulated", list(self.scenario.brokers), links)

    def _plan(self, scheme: str) -> Plan:
        overlay, scenario = self.overlay(), self.scenario
        rows = [
            Subscription(
                f"{client}/{name}", client, scenario.clients[client], sql=sql_of(CONDITIONS[condition])
            )
            for name, (client, condition) in sorted(scenario.subscriptions.items())
        ]
        classes = Classes.collapse(rows, overlay, SCHEMA)
        return make_plan(scheme, Problem.of(overlay, classes, Demand.of([]), scenario.clients))

    async def _coordinator(self, name: str) -> None:
        control = Endpoint(self.servers[CONTROL].url, inbox_prefix=f"_I.coordinator_{name}")
        plan = self._plan(self.scheme)
        config = CoordinatorConfig(
            name,
            control,
            plan=plan,
            replace_plan=self.plan_number > 0,
            replace_once=f"plan {self.plan_number}",
        )
        await Coordinator(config).run()

    # --------------------------------------------------------------------------------------- clients

    async def _client(self, name: str) -> None:
        if self.scenario.controlled:
            await self._member(name)
            return
        server = self.servers[self.scenario.clients[name]]
        endpoint = Endpoint(server.url, inbox_prefix=f"_I.client_{name}")
        client = await LaneClient.connect(name, endpoint)
        tasks = []
        if name.startswith("w"):
            tasks.append(asyncio.create_task(self._write(name, client)))
        else:
            tasks.append(asyncio.create_task(self._read(name, client)))
        await asyncio.gather(*tasks)

    async def _member(self, name: str) -> None:
        """A client of the whole API."""
        server = self.servers[self.scenario.clients[name]]
        while True:
            try:
                client = await Client.connect(name, server.url, after=self.positions.get(name))
                break
            except LiveError:
                await asyncio.sleep(0.5)
        if name.startswith("w"):
            await self._write(name, client)
        else:
            await asyncio.gather(self._read(name, client), self._wish(name, client))

    async def _wish(self, name: str, client: Client) -> None:
        queue = self.wishes.setdefault(name, asyncio.Queue())
        while True:
            act = await queue.get()
            client_name, condition = self.scenario.newcomers[act.whom]
            at = self.loop.time()
            id, full = act.whom, CONDITIONS[condition]
            if act.kind == "subscribe":
                place = len(self.rows)
                self.rows.append(SubscribeRow(client_name, f"{name}/{id}", full, at, "unknown"))
                try:
                    found = await client.subscribe(sql=sql_of(full), id=id, wait_s=10.0)
                except LiveError:
                    continue
                outcome: Any = "partial" if found.missing else "active"
                self.rows[place] = SubscribeRow(name, f"{name}/{id}", full, at, outcome, self.loop.time())
                if outcome == "active":
                    self.since[id] = self.loop.time()
                    self.active[id] = (name, condition)
            else:
                self.active.pop(id, None)
                if not any(
                    isinstance(r, SubscribeRow) and r.subscription == f"{name}/{id}" for r in self.rows
                ):
                    continue
                place = len(self.rows)
                self.rows.append(UnsubscribeRow(name, f"{name}/{id}", at, "unknown"))
                try:
                    missing = await client.unsubscribe(id, wait_s=10.0)
                except LiveError:
                    continue
                if not missing:
                    self.rows[place] = UnsubscribeRow(name, f"{name}/{id}", at, "ended", self.loop.time())

    async def _write(self, name: str, client: LaneClient | Client) -> None:
        queue = self.to_publish[name]
        while True:
            count = await queue.get()
            events = tuple(self._event() for _ in range(count))
            at = self.loop.time()
            self.busy[name] = at, events
            whole = [Event(id, name, attributes=values) for id, values in events]
            outcome: Any = "acknowledged"
            try:
                await client.publish(events_to_batch(whole), give_up_s=200.0)
            except LiveError as error:
                outcome = "unknown" if "may have been" in str(error) else "refused"
            answered = self.loop.time()
            self.busy.pop(name, None)
            self.rows.append(PublishRow(name, at, events, outcome, answered))
            self.calm_at = max(self.calm_at, answered)
            if outcome == "acknowledged":
                self.acknowledged |= dict(events)
                self.published |= dict.fromkeys((id for id, _ in events), at)

    def _event(self) -> tuple[str, dict[str, Any]]:
        self.events += 1
        return f"e{self.events}", {"x": self.rng.randrange(8), "k": self.rng.choice("abc")}

    async def _read(self, name: str, client: LaneClient | Client) -> None:
        async with contextlib.aclosing(client.deliveries(self.positions.get(name))) as lane:  # type: ignore[type-var]
            async for delivered in lane:
                # what it does with the events, and the number, are one transaction
                came = batch_to_events(delivered.events) if delivered.events.num_rows else []
                now = self.loop.time()
                for named, rows in delivered.runs():
                    ids = tuple(f"{name}/{id.removeprefix(f'{name}/')}" for id in named)
                    seen = tuple((came[row].id, digest(dict(came[row].attributes))) for row in rows)
                    self.rows.append(DeliveryRow(name, now, ids, seen, delivered.number))
                    self.got |= {(id, event) for id in ids for event, _ in seen}
                self.positions[name] = delivered.number
                if self.rng.random() < 0.1:
                    await asyncio.sleep(0.2 * self.rng.random())

    # -------------------------------------------------------------------------------------- the acts

    def act(self, act: Act) -> None:
        """Have it happen now."""
        if act.kind == "publish":
            self.to_publish[act.who].put_nowait(act.number)
            return
        if act.kind in ("subscribe", "unsubscribe"):
            self.wishes.setdefault(act.who, asyncio.Queue()).put_nowait(act)
            return
        now = self.loop.time()
        if act.kind == "replan":
            # the new plan comes some time later; from then on there is a new order
            self.rows.append(FaultRow("replan", now, now + _LONGEST_REPLAN_S, reorders=True))
            self.scheme = act.whom
            self.plan_number += 1
            self.kill("coordinator:a", 0.5)
            return
        self.rows.append(FaultRow(act.kind, now, now + act.seconds, act.who or act.whom))
        getattr(self, "_" + act.kind.replace("-", "_"))(act)

    def _kill(self, act: Act) -> None:
        self.kill(act.who, act.seconds)

    def _kill_writing(self, act: Act) -> None:
        process = self.processes.get(act.who)
        if process is not None:
            self.network.tripwires[process] = act.number, lambda: self.kill(act.who, act.seconds)

    def _stop(self, act: Act) -> None:
        process = self.processes.get(act.who)
        if process is not None and act.who not in self.dead:
            self.loop.stop_process(process)
            self.loop.later(act.seconds, lambda: self._wake(act.who, process))

    def _wake(self, name: str, process: str) -> None:
        if self.processes.get(name) == process and name in self.dead:
            return  # it was killed meanwhile
        self.loop.wake_process(process)

    def _twin(self, act: Act) -> None:
        self.calm_at = max(self.calm_at, self.loop.time() + act.seconds)
        process = self.processes.get(act.who)
        if process is None or act.who in self.dead:
            return
        self.loop.stop_process(process)
        # the replacement starts well before the old one wakes, or after
        self.loop.later(
            0.4 * act.seconds, lambda: self.start(act.who) if act.who not in self.dead else None
        )
        self.loop.later(act.seconds, lambda: self.loop.wake_process(process))

    def _twin_writing(self, act: Act) -> None:
        process = self.processes.get(act.who)
        if process is not None:
            self.network.tripwires[process] = act.number, lambda: self._twin(act)

    def _crash(self, act: Act) -> None:
        self.servers[act.who].crash()
        self._up_again(act)

    def _power(self, act: Act) -> None:
        self.servers[act.who].lose_power()
        self._up_again(act)

    def _up_again(self, act: Act) -> None:
        count = self.down[act.who] = self.down.get(act.who, 0) + 1

        def up() -> None:
            if self.down[act.who] == count:
                self.servers[act.who].start()

        self.loop.later(act.seconds, up)

    def _pause(self, act: Act) -> None:
        self.servers[act.who].pause()
        self.loop.later(act.seconds, self.servers[act.who].resume)

    def _pair(self, act: Act) -> tuple[str, str]:
        return act.who, act.whom or self.scenario.clients[act.who.partition(":")[2]]

    def _part(self, act: Act) -> None:
        pair = self._pair(act)
        self.network.part(*pair)
        self.loop.later(act.seconds, lambda: self.network.heal(*pair))

    def _cut(self, act: Act) -> None:
        self.network.cut(*self._pair(act))

    def _slow(self, act: Act) -> None:
        pair = self._pair(act)
        self.network.slow[pair] = 0.5
        self.loop.later(act.seconds, lambda: self.network.slow.pop(pair, None))

    def _again(self, act: Act) -> None:
        for stream in self.servers[act.who].streams.values():
            for consumer in stream.consumers.values():
                if consumer.is_kept:
                    left = [seq for seq in consumer.pending if seq not in consumer.again]
                    self.rng.shuffle(left)
                    consumer.again.extend(left)
            self.servers[act.who].serve(stream)

    def _full(self, act: Act) -> None:
        server = self.servers[act.who]
        server.is_full = True

        def room() -> None:
            server.is_full = False

        self.loop.later(act.seconds, room)

    def _garbage(self, act: Act) -> None:
        head = BAD_BLOCKS[act.number % len(BAD_BLOCKS)]
        subject = "ramify.control.evil" if act.number >= 80 else "ramify.publish.evil"
        self.servers[act.who].inject(subject, head, b"")

    # --------------------------------------------------------------------------------------- the run

    def looks(self) -> None:
        """What the overlay says of itself now."""
        now = self.loop.time()
        tells: list[str] = []
        alarms: list[str] = []
        for name in self.scenario.brokers:
            process = self.processes.get(f"router:{name}", "")
            state = self.states.get(name)
            server = self.servers[name]
            if process in self.loop.stopped or state is None or not server.is_up or server.is_paused:
                # who supervises them says so: its probe of the server fails, or its look at the process
                tells.append(f"{name} does not answer")
                continue
            broker = state.broker if isinstance(state, ControlledBroker) else state
            status = state.status() if isinstance(state, ControlledBroker) else broker.status("s", 0.0)
            # only what a status has: how far neighbours have read is not in it
            clients = {c: r.unread for c, r in broker.keeper.readers.items() if c.startswith("client_")}
            lags = [status.lag_published, *status.lag_links.values(), *clients.values()]
            fares = (
                Health(status.health, status.why)
                if isinstance(state, ControlledBroker)
                else health(broker.figures())
            )
            if any(lags) or status.trouble or fares != Health("routing"):
                tells.append(f"{name}: {fares.word} {fares.why}; lag {lags} {status.trouble}")
        self.rows.append(StatusRow(now, now, tuple(tells), tuple(alarms)))

    def missing(self) -> list[tuple[str, str]]:
        """What was acknowledged and has not come to those who surely had subscribed before."""
        return [
            (name, event)
            for name, (client, condition) in self.active.items()
            for event, values in self.acknowledged.items()
            if self.published[event] >= self.since.get(name, 0.0)
            and (f"{client}/{name}", event) not in self.got
            and holds(CONDITIONS[condition], values)
        ]

    async def run(self) -> None:
        scenario, loop = self.scenario, self.loop
        self.context = contextvars.copy_context()
        self.scheme = scenario.scheme
        names = [f"router:{name}" for name in scenario.brokers]
        if scenario.controlled:
            names.append("coordinator:a")
        names += [f"client:{name}" for name in scenario.clients]
        began = loop.time()
        for name in scenario.clients:
            self.to_publish[name] = asyncio.Queue()
        for name, (client, condition) in scenario.subscriptions.items():
            row = SubscribeRow(
                client, f"{client}/{name}", CONDITIONS[condition], began - 1, "active", began - 1
            )
            self.rows.append(row)
        for name in names:
            self.start(name)
        start = began + (6.0 if scenario.controlled else 1.0)
        if scenario.controlled:
            await self._first_plan(began + 60.0)
            start = loop.time() + 0.5
        for act in scenario.acts:
            loop.later(start + act.at - loop.time(), self.act, act)
        over = start + max((act.at + act.seconds for act in scenario.acts), default=0.0)
        look_at = loop.time()
        self.calm_at = over
        came, came_at = 0, over
        while loop.time() < min(max(self.calm_at, came_at) + _SETTLE_S, self.calm_at + _LONGEST_SETTLE_S):
            if len(self.got) > came:
                came, came_at = len(self.got), loop.time()
            await asyncio.sleep(0.25)
            self._check_processes()
            if loop.time() >= look_at:
                self.looks()
                look_at += _LOOK_S
            idle = not self.busy and all(queue.empty() for queue in self.to_publish.values())
            if loop.time() > self.calm_at and idle and not self.missing():
                break
        until = loop.time() + _AFTER_S
        while loop.time() < until:
            await asyncio.sleep(0.25)
            self._check_processes()
        self.rows.append(EndRow(loop.time()))

    async def _first_plan(self, until: float) -> None:
        while self.loop.time() < until:
            states = list(self.states.values())
            if len(states) == len(self.scenario.brokers) and all(
                isinstance(each, ControlledBroker) and each.may_route() and each.status().routing
                for each in states
            ):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("no first plan within a minute, and nothing had gone wrong")

    def _check_processes(self) -> None:
        """No process may end, but a router that another one has replaced."""
        for process, task in self.tasks.items():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise AssertionError(f"{process} ended with {error!r}") from error
        for broker in self.brokers:
            if self.scenario.syncs and broker.alarms.count:
                what = "; ".join(alarm.what for alarm in broker.alarms.shown)
                raise AssertionError(f"{broker.config.name} tells of a loss, no disk lost anything: {what}")
        if self.loop.faults:
            raise AssertionError(f"in the loop: {self.loop.faults[0]}")


def run(scenario: Scenario, *, log: bool = False) -> RunResult:
    """Run a scenario. Whatever happens is in the result."""
    result = RunResult(scenario)
    handler = _Lines(result.log) if log else None
    logger = logging.getLogger("ramify")
    quiet = logging.getLogger("nats")
    before = logger.level, logger.propagate, quiet.level
    logger.propagate = False
    logger.setLevel(logging.DEBUG if log else logging.CRITICAL)
    quiet.setLevel(logging.CRITICAL)
    if handler is not None:
        logger.addHandler(handler)
    slots: dict[str, asyncio.Semaphore] = {}

    def slots_of() -> asyncio.Semaphore:
        # each process has its own
        return slots.setdefault(PROCESS.get(), asyncio.Semaphore(16))

    try:
        with simulated(scenario.seed) as loop, mock.patch.object(streams, "_slots", slots_of):
            world = _World(scenario, loop)
            if handler is not None:
                handler.loop = loop
            token = TRANSPORT.set(world.network.transport)
            try:
                loop.run_until_complete(world.run())
                result.verdict = judge(world.rows)
            except (AssertionError, StalledError) as error:
                result.fault = str(error)
            finally:
                TRANSPORT.reset(token)
                result.trace = world.hash.hexdigest()
                result.seconds = loop.time() - 1_000.0
                result.rows = world.rows
    finally:
        logger.level, logger.propagate, quiet.level = before
        if handler is not None:
            logger.removeHandler(handler)
    return result


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
        self.loop: VirtualLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        at = self.loop.time() - 1_000.0 if self.loop is not None else 0.0
        self.lines.append(f"{at:8.3f} {PROCESS.get()}: {record.getMessage()}")


def encoded(scenario: Scenario) -> str:
    """A scenario as JSON, to keep one that was shrunk."""
    import dataclasses

    return json.dumps(dataclasses.asdict(scenario))
