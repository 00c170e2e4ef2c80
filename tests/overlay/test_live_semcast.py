"""SemCast on real brokers: channels change under load, and brokers between gateways match nothing."""

import asyncio
from collections import Counter
from pathlib import Path

from machines import Collected, machine_of, matches, small_line, started, until_seen, wanted_by
from test_live_system import Load

from ramify.content.subscriptions import Subscription
from ramify.overlay.live.clients import Client
from ramify.overlay.live.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.directory import COORDINATOR
from ramify.overlay.live.machine import Machine
from ramify.overlay.live.tasks import end_tasks
from ramify.planning.catalog import make_plan
from ramify.planning.classes import Classes
from ramify.planning.demand import Demand
from ramify.planning.problem import Problem

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

    asyncio.run(scenario())


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
