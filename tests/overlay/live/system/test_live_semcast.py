"""SemCast on real brokers: channels change under load, and brokers between gateways match nothing."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from test_live_system import Load

from machines import (
    LIMITS,
    Collected,
    machine_of,
    matches,
    small_line,
    started,
    until,
    until_seen,
    wanted_by,
)
from project import SUPPORT
from ramify.content.filters.subscriptions import Subscription
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.host.directory import COORDINATOR, Directory
from ramify.overlay.live.host.machine import Machine, MachineConfig
from ramify.overlay.live.host.overview import Overview
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import decode_plan, read_plan, write_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from running import SMALL

CLIENTS = {"w": "v0", "r2": "v2", "r4": "v4"}
INTERIOR = ("v1", "v3")
STAYING = {"all": ("r4", "x >= 0"), "some": ("r2", "topic IN ('a', 'b') AND x >= 1")}
PASSING = ["x <= 3", "topic = 'a' AND x = 2", "topic = 'c'", "x >= 5", "topic = 'a'"]


async def _reorganise(machine: Machine) -> None:
    """Another coordinator leads for a moment, with new channels for a given traffic, and installs them."""
    overlay = machine.config.overlay
    before = (await until_seen(machine, lambda view: bool(view.epochs))).epochs[-1].epoch
    rows = [Subscription(f"{name}/{id_}", name, CLIENTS[name], sql) for id_, (name, sql) in STAYING.items()]
    classes = Classes.collapse(rows, overlay, {})
    seen = Demand.of([(0, (0, 1), 95, 9_500), (0, (0,), 5, 500)])
    problem = Problem.of(overlay, classes, seen, machine.directory.clients())
    # rendezvous points are random: with some of them both share a channel
    made = (make_plan("semcast", problem, seed) for seed in range(30))
    plan = next(plan for plan in made if any(len(channel.serves) == 2 for channel in plan.channels))
    endpoint = machine.directory.control_endpoint(COORDINATOR, machine.control_url)
    await machine._children["coordinator"].stop()
    leading = Coordinator(CoordinatorConfig("other", endpoint, plan, replace_plan=True))
    task = asyncio.create_task(leading.run())
    try:
        await until_seen(machine, lambda v: bool(v.epochs) and v.epochs[0].epoch > before)
    finally:
        await end_tasks([task])
        await machine._children["coordinator"].start()


async def _come_and_go(clients: dict[str, Client], run: str) -> dict[str, str]:
    """Subscriptions of all kinds, covered by others and not, each for a moment."""
    made = {}
    for k, sql in enumerate(PASSING):
        name = ("r2", "r4")[k % 2]
        id_ = f"{run}{k}"
        assert not (await clients[name].subscribe(sql, id=id_, wait_s=60)).missing
        made[id_] = sql
        await asyncio.sleep(0.2)
        if k % 2:
            for gone in (id_, f"{run}{k - 1}"):
                await clients["r2" if gone.endswith(("0", "2", "4")) else "r4"].unsubscribe(gone)
    return made


def test_channels_change_under_load_and_brokers_between_match_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = machine_of(tmp_path, small_line(5), CLIENTS, scheme="semcast")
        collected, clients = Collected(), dict[str, Client]()
        load: Load | None = None
        async with started(machine):
            try:
                for name in CLIENTS:
                    clients[name] = await Client.at(tmp_path, name)
                for id_, (name, sql) in STAYING.items():
                    assert not (await clients[name].subscribe(sql, id=id_, wait_s=60)).missing
                for name in ("r2", "r4"):
                    collected.read(clients[name])
                load = Load({"w": clients["w"]})
                passing = await _come_and_go(clients, "before")
                await _reorganise(machine)
                passing |= await _come_and_go(clients, "after")
                accepted = await load.stop()
                wanted = wanted_by({id_: sql for id_, (_, sql) in STAYING.items()}, accepted)
                await collected.until_has(wanted, 120)
                assert {p: n for p, n in collected.counts.items() if p[1] in STAYING} == wanted
                events = {event.id: event for event in accepted}
                extra = collected.counts - wanted
                assert extra, "the passing subscriptions got something"
                assert set(extra.values()) == {1}
                assert all(matches(passing[id_], events[event]) for event, id_ in extra)
                await _check_counters(machine)
            finally:
                if load is not None:
                    await load.end()
                await collected.stop()
                for client in clients.values():
                    await client.close()

    run_to_end(scenario())


DRIFTING = {"w": "v0", "w4": "v4", "r1": "v1", "r3": "v3"}
WANTED = {"all": ("r3", "x >= 0"), "some": ("r1", "x >= 1")}


def _drifting(directory: Path) -> Machine:
    """A plan that fits what is published at one end; the coordinator weighs others by its own samples."""
    files, overlay = Directory(directory), small_line(5)
    files.create(overlay)
    files.add_clients(DRIFTING)
    rows = [Subscription(f"{name}/{id_}", name, DRIFTING[name], sql) for id_, (name, sql) in WANTED.items()]
    classes = Classes.collapse(rows, overlay, {})
    seen = Demand.of([(0, (0, 1), 90, 900), (0, (0,), 10, 100)])
    plan = make_plan("semcast-best", Problem.of(overlay, classes, seen, DRIFTING), 0)
    write_plan(plan, directory / "first.json")
    command = [
        *(sys.executable, str(SUPPORT / "tallying_coordinator.py"), "coordinator"),
        *("--plan", str(directory / "first.json")),
        *("--samples", str(directory / "samples"), "--replan-every", "1", "--schemes", "semcast-best"),
        *("--window", "8", "--half-life", "2s", "--least-events", "40", "--threshold", "0.2"),
    ]
    config = MachineConfig(overlay, files, command, 1, SMALL, LIMITS, sample_probability=1.0)
    return Machine(config)


def _is_installed(view: Overview) -> bool:
    return any(decision["action"] == "install" for decision in view.decisions)


async def _head(machine: Machine, view: Overview) -> Plan:
    store = await Store.join(machine.directory.viewer(machine.control_url))
    try:
        found = await store.get_large(view.epochs[-1].plan_key)
    finally:
        await store.close()
    assert found is not None
    return decode_plan(found[0])


def test_a_coordinator_reorganises_channels_by_its_own_samples_under_load(tmp_path: Path) -> None:
    """What is published moves to the other end: the rendezvous points follow, and nothing is lost."""

    async def scenario() -> None:
        machine = _drifting(tmp_path)
        collected, clients, loads = Collected(), dict[str, Client](), list[Load]()
        async with started(machine):
            try:
                for name in DRIFTING:
                    clients[name] = await Client.at(tmp_path, name)
                for name in ("r1", "r3"):
                    collected.read(clients[name])
                loads.append(Load({"w": clients["w"]}))
                await until(lambda: len(loads[0].accepted) > 100)
                view = await until_seen(machine, lambda view: bool(view.epochs))
                assert [epoch.epoch for epoch in view.epochs] == [1], "the plan fits, and stays"
                loads.append(Load({"w4": clients["w4"]}))
                accepted = await loads[0].stop()
                await until_seen(machine, _is_installed)
                view = await until_seen(
                    machine, lambda view: bool(view.epochs) and view.epochs[0].epoch > 1
                )
                assert view.routing
                await asyncio.sleep(1)
                accepted += await loads[1].stop()
                wanted = wanted_by({id_: sql for id_, (_, sql) in WANTED.items()}, accepted)
                await collected.until_has(wanted)
                assert collected.counts == wanted
                first, head = read_plan(tmp_path / "first.json"), await _head(machine, view)
                late = Demand.of([(4, (0, 1), 90, 900), (4, (0,), 10, 100)])
                assert price(head, late).cost < 0.8 * price(first, late).cost
            finally:
                for load in loads:
                    await load.end()
                await collected.stop()
                for client in clients.values():
                    await client.close()

    run_to_end(scenario())


async def _check_counters(machine: Machine) -> None:
    """Brokers without clients forwarded events and matched none."""

    view = await until_seen(
        machine, lambda view: all(b.status is not None and b.status.events for b in view.brokers)
    )
    told = {broker.name: broker.status for broker in view.brokers if broker.status is not None}
    events = Counter({name: status.events for name, status in told.items()})
    matchings = Counter({name: status.matchings for name, status in told.items()})
    assert all(events[name] > 20 for name in INTERIOR), events
    assert all(matchings[name] == 0 for name in INTERIOR), matchings
    assert all(matchings[name] > 20 for name in ("v0", "v2", "v4")), matchings
