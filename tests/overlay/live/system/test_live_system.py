"""The whole system in several processes: nothing lost, nothing doubled, whatever is killed; and what
`subscribe` and `unsubscribe` promise."""

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from machines import (
    RING,
    Collected,
    began,
    extra_routers,
    is_running,
    machine_of,
    pids,
    send,
    started,
    until,
    until_routing,
    until_seen,
    wanted_by,
)
from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LiveError
from ramify.overlay.live.client.client import Client, OutcomeUnknownError, RefusedError
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.host.directory import COORDINATOR
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.host.overview import Overview
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

SEED = 20
READERS = {"r0": "v0", "r2": "v2", "r3": "v3"}
WRITERS = {"w1": "v1", "w2": "v2", "w4": "v4"}
FILTERS = {
    "low": ("r0", "x < 5"),
    "a": ("r0", "topic = 'a'"),
    "some": ("r2", "topic IN ('a', 'b') AND x >= 2"),
    "all": ("r3", "x >= 0"),
}
SWITCHES = ("mult", "semcast")
KINDS = ("routers", "server", "control", "coordinator", "woken", "silent control", "silent server")


class Load:
    """Writers that publish until they are told to stop; `accepted` is what was acknowledged."""

    def __init__(self, clients: dict[str, Client]) -> None:
        self.accepted: list[Event] = []
        self._going = True
        self._tasks = [asyncio.create_task(self._write(c, n)) for n, c in clients.items()]

    async def _write(self, client: Client, name: str) -> None:
        rng = random.Random(name)
        number = 0
        while self._going:
            some = []
            for _ in range(rng.randrange(1, 8)):
                number += 1
                kind = {"topic": rng.choice("abc"), "x": rng.randrange(10), "source": "s"}
                some.append(Event(f"{name}-{number}", attributes=kind))  # type: ignore[arg-type]
            while True:
                try:
                    await client.publish(some, give_up_s=120)
                    break
                except OutcomeUnknownError:
                    continue  # the same again: it is not doubled
            self.accepted += some
            await asyncio.sleep(rng.uniform(0.02, 0.2))

    async def stop(self) -> list[Event]:
        self._going = False
        async with asyncio.timeout(200):
            await asyncio.gather(*self._tasks)
        return self.accepted

    async def end(self) -> None:
        await end_tasks(self._tasks)


async def _fault(machine: Machine, kind: str, rng: random.Random) -> None:
    broker = rng.choice(machine.config.overlay.brokers)
    routers = rng.choice(["routers-1", "routers-2"])
    match kind:
        case "routers" | "coordinator" | "server" | "control":
            name = {"routers": routers, "server": broker, "control": ""}.get(kind, kind)
            send(await _pid(machine, name), signal.SIGKILL)
        case "silent control" | "silent server":
            # longer than every lease and every time-out of a request
            pid = await _pid(machine, "" if kind == "silent control" else broker)
            send(pid, signal.SIGSTOP)
            await asyncio.sleep(7)
            send(pid, signal.SIGCONT)
        case "woken":
            await _replaced_and_woken(machine, routers)
        case scheme:
            await _switch(machine, scheme)


async def _pid(machine: Machine, name: str) -> int:
    """Of a process that may be about to be started again."""
    await until(lambda: name in pids(machine))
    return pids(machine)[name]


async def _replaced_and_woken(machine: Machine, routers: str) -> None:
    """A process is stopped, another takes its brokers over and routes, and then the first one wakes."""
    old = await _pid(machine, routers)
    # one that has not begun to route would replace the second, not be replaced
    mine = set(machine.config.overlay.brokers[int(routers[-1]) - 1 :: 2])

    async def until_routes(since: float) -> None:
        def routes(view: Overview) -> bool:
            told = {b.name: b.status for b in view.brokers if b.state == "routing" and b.status is not None}
            return all(name in told and told[name].started >= since for name in mine)

        await until_seen(machine, routes)

    await until_routes(began(old) - 1)
    send(old, signal.SIGSTOP)
    try:
        with extra_routers(machine, routers) as second:
            # once the leases of the first are over
            await until_routes(began(second.pid) - 1)
            send(old, signal.SIGCONT)
            # it finds itself replaced and ends; its supervisor starts another, which ends the second one
            await until(lambda: not is_running(old))
            await until(lambda: second.poll() is not None)
            assert second.returncode == 3
    finally:
        with contextlib.suppress(ProcessLookupError):
            send(old, signal.SIGCONT)


async def _switch(machine: Machine, scheme: str) -> None:
    """A coordinator with another plan takes over, for as long as the switch takes."""
    overlay = machine.config.overlay
    before = (await until_seen(machine, lambda view: bool(view.epochs))).epochs[-1].epoch
    rows = [Subscription(f"{name}/{id_}", name, READERS[name], sql) for id_, (name, sql) in FILTERS.items()]
    classes = Classes.collapse(rows, overlay, {})
    problem = Problem.of(overlay, classes, Demand.of([]), machine.directory.clients())
    endpoint = machine.directory.control_endpoint(COORDINATOR, machine.control_url)
    plan = make_plan(scheme, problem)
    await machine._children["coordinator"].stop()
    leading = Coordinator(CoordinatorConfig("other", endpoint, plan, replace_plan=True))
    task = asyncio.create_task(leading.run())
    try:
        await until_seen(machine, lambda v: bool(v.epochs) and v.epochs[0].epoch > before)
    finally:
        await end_tasks([task])
        await machine._children["coordinator"].start()


async def _toggle(client: Client, seen: Counter[str]) -> None:
    """Come and go the whole time. What goes wrong meanwhile is told, and asked for again."""
    for k in range(10_000):
        for ask in (client.subscribe("x = 3", id=f"toggled{k}")._active, None):
            try:
                await (client.unsubscribe(f"toggled{k}") if ask is None else ask())
                seen["done"] += 1
            except RefusedError as error:
                seen[error.code] += 1
            await asyncio.sleep(0.3)


def test_whatever_is_killed_stopped_or_woken_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    async def scenario() -> None:
        rng = random.Random(SEED)
        machine = machine_of(tmp_path, RING, READERS | WRITERS | {"t": "v1"})
        collected, clients = Collected(), dict[str, Client]()
        load: Load | None = None
        toggling: asyncio.Task[None] | None = None
        async with started(machine):
            try:
                for name in [*READERS, *WRITERS, "t"]:
                    clients[name] = await Client.at(tmp_path, name)
                for id_, (name, sql) in FILTERS.items():
                    made = await clients[name].subscribe(sql, id=id_, wait_s=60)
                    assert not made.missing
                for name in READERS:
                    collected.read(clients[name])
                load = Load({name: clients[name] for name in WRITERS})
                toggled: Counter[str] = Counter()
                toggling = asyncio.create_task(_toggle(clients["t"], toggled))
                some = [*KINDS, *SWITCHES]
                order = [*rng.sample(some, len(some)), "routers", "server"]
                for kind in order:
                    await _fault(machine, kind, rng)
                    await asyncio.sleep(rng.uniform(0.5, 2.0))
                    collected.check()
                await until_routing(machine)
                await until(lambda: len(load.accepted) > 200 and toggled["done"] > 5)
                accepted = await load.stop()
                wanted = wanted_by({id_: sql for id_, (_, sql) in FILTERS.items()}, accepted)
                await collected.until_has(wanted, 200)
                assert collected.counts == wanted, f"seed {SEED}, {(collected.counts - wanted)}"
            finally:
                await end_tasks([] if toggling is None else [toggling])
                if load is not None:
                    await load.end()
                await collected.stop()
                for client in clients.values():
                    await client.close()

    with asyncio.Runner() as runner:
        runner.run(scenario())


# ------------------------------------------------------------------- what subscribe and unsubscribe promise


class Calm:
    """An overlay that nobody disturbs, with its clients connected."""

    def __init__(self, runner: asyncio.Runner, machine: Machine, clients: dict[str, Client]) -> None:
        self.runner, self.machine, self.clients = runner, machine, clients
        self.examples = 0


@pytest.fixture(scope="module", params=["mult", "semcast"])
def calm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    path = tmp_path_factory.mktemp("calm")
    machine = machine_of(path, RING, READERS | WRITERS | {"asking": "v2"}, scheme=request.param)

    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        opened = started(machine)
        runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))

        async def connected() -> dict[str, Client]:
            return {name: await Client.at(path, name) for name in [*READERS, *WRITERS]}

        clients = runner.run(connected())
        yield Calm(runner, machine, clients)

        async def closed() -> None:
            for client in clients.values():
                await client.close()

        runner.run(closed())


steps = st.lists(
    st.tuples(st.just("subscribe"), st.sampled_from(sorted(READERS)), st.integers(0, 9))
    | st.tuples(st.just("unsubscribe"), st.integers(0, 20), st.booleans())
    | st.tuples(st.just("publish"), st.sampled_from(sorted(WRITERS)), st.integers(0, 9)),
    min_size=8,
    max_size=24,
)


@given(steps)
@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_active_before_a_publish_gets_it_and_removed_before_a_publish_does_not(
    calm: Calm, plan: list[tuple[str, object, object]]
) -> None:
    calm.examples += 1
    calm.runner.run(_interleaved(calm.clients, plan, f"n{calm.examples}"))


async def _interleaved(
    clients: dict[str, Client], plan: list[tuple[str, object, object]], run: str
) -> None:
    told = _Told(clients, run)
    for name in READERS:
        told.collected.read(clients[name])
    try:
        for op, what, how in plan:
            if op == "subscribe":
                await told.subscribe(str(what), int(str(how)))
            elif op == "unsubscribe" and told.active:
                await told.unsubscribe(int(str(what)), settled=bool(how))
            elif op == "publish":
                await told.publish(str(what), int(str(how)))
        # the last events are for everyone: behind them nothing of the same writer is under way
        for name in READERS:
            await told.subscribe(name, 99)
        for name in WRITERS:
            await told.publish(name, 99)
        await told.collected.until_has(told.must)
        assert told.collected.counts - told.must - told.may == Counter()
    finally:
        while told.active:
            await told.unsubscribe(0, settled=False)
        await told.collected.stop()


class _Told:
    """What was asked for, and what must come of it, or may: an event that is under way when a subscription
    begins or ends may reach it or not."""

    def __init__(self, clients: dict[str, Client], run: str) -> None:
        self.clients, self.run = clients, run
        self.collected = Collected()
        self.must: Counter[tuple[str, str]] = Counter()
        self.may: Counter[tuple[str, str]] = Counter()
        # id -> client, and the largest x that it wants
        self.active: dict[str, tuple[str, int]] = {}
        self.published: dict[str, int] = {}
        self._made = 0

    async def subscribe(self, client: str, top: int) -> None:
        self._made += 1
        id_ = f"{self.run}-{self._made}"
        self.may.update({(event, id_): 1 for event, x in self.published.items() if x <= top})
        made = await self.clients[client].subscribe(f"x <= {top}", id=id_, wait_s=60)
        assert not made.missing
        self.active[id_] = client, top

    async def unsubscribe(self, which: int, *, settled: bool) -> None:
        id_ = sorted(self.active)[which % len(self.active)]
        mine = Counter({pair: n for pair, n in self.must.items() if pair[1] == id_})
        if settled:
            await self.collected.until_has(mine)
        else:
            self.must, self.may = self.must - mine, self.may + mine
        client, _ = self.active.pop(id_)
        assert not await self.clients[client].unsubscribe(id_, wait_s=60)

    async def publish(self, client: str, x: int) -> None:
        event = f"{self.run}-e{len(self.published)}"
        self.published[event] = x
        await self.clients[client].publish(Event(event, attributes={"x": x, "source": "s"}))
        self.must.update({(event, id_): 1 for id_, (_, top) in self.active.items() if x <= top})


def test_a_subscription_lives_on_without_its_client_and_without_a_coordinator(calm: Calm) -> None:
    """Data flows on when nobody decides, and a request says so."""

    async def scenario() -> None:
        clients, machine = calm.clients, calm.machine
        await clients["r0"].subscribe("x >= 0", id="kept", wait_s=60)
        await machine._children["coordinator"].stop()
        try:
            # one that gives up soon
            async with Client.at(machine.directory.path, "asking", timeout_s=5) as asking:
                with pytest.raises(LiveError, match="coordinator"):
                    await asking.subscribe("x = 1", id="nobody", wait_s=1)
            for k in range(5):
                await clients["w4"].publish(Event(f"alone{k}", attributes={"x": k, "source": "s"}))
            collected = Collected()
            collected.read(clients["r0"])
            await collected.until_has(Counter({(f"alone{k}", "kept"): 1 for k in range(5)}))
            await collected.stop()
        finally:
            await machine._children["coordinator"].start()
        await clients["r0"].unsubscribe("kept", wait_s=60)

    calm.runner.run(scenario())
