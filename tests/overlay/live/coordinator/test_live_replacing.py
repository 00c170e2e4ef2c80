"""A given plan replaces the store's once, standbys take over, and keys that do not fit are told.

What `ramify up --plan` says of it is in tests/overlay/live/host/test_live_machine.py.
"""

import asyncio
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_live_coordinator import BROKERS, WORLD, Scene, play, recent, report_cost

from machines import machine_of, pids, send, small_line, started, until_seen
from obedient import obeying, until
from ramify.errors import LiveError
from ramify.overlay.control.names import token
from ramify.overlay.control.records import LinkCount, Status, encode
from ramify.overlay.live.coordinator.adaptation import Replanner
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import ClientRole, accounts_config, new_user
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules
from ramify.planning.schemes.catalog import make_plan


def test_a_wish_to_replace_the_plan_is_granted_once(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        first, given = make_plan("mst", WORLD.problem), make_plan("explicit", WORLD.problem)

        async def leads(name: str, plan: Plan, wish: str, epoch: int, scheme: str) -> None:
            scene.coordinate(name, plan=plan, replace_plan=True, replace_once=wish)
            await until(lambda: scene.coordinators[name].term is not None)
            term = scene.coordinators[name].term
            assert term is not None
            assert (term.book.epochs.wanted, term.book.head.plan.scheme) == (epoch, scheme)
            await until(lambda: term.book.epochs.live == (epoch,))
            await end_tasks([scene.tasks[name]])

        async with obeying(scene.server, BROKERS):
            await leads("k0", first, "run 1", 1, "mst")
            await leads("k0", given, "run 2", 2, "explicit")
            # planned since
            await leads("k0", first, "", 3, "mst")
            # a restart of the one, and a standby of the same run
            await leads("k0", given, "run 2", 3, "mst")
            await leads("k1", given, "run 2", 3, "mst")
            await leads("k1", given, "run 3", 4, "explicit")

    play(tmp_path, scenario)


def test_a_replan_is_held_against_the_traffic_that_it_was_made_for(tmp_path: Path) -> None:
    """Traffic that became dearer by itself takes no plan back that serves it better."""

    async def scenario(scene: Scene) -> None:
        counted, asked, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def source(plan: Plan, rules: Rules) -> Demand | None:
            if not counted.is_set():
                return None
            asked.set()
            await gate.wait()
            return await recent(plan, rules)

        replanner = Replanner(source, period_s=0.3, specs=("explicit",), enough_events=1_000)
        store = await scene.store()
        async with obeying(scene.server, BROKERS):
            await report_cost(store, 1, per_byte=1, events=10_000)
            scene.coordinate(plan=make_plan("broadcast", WORLD.problem), replanner=replanner)
            term = await scene.term()
            await until(lambda: term.plans.measured.cost(1, WORLD.overlay).events == 20_000)
            counted.set()
            await asked.wait()
            # of 12,000 events the last 2,000 cost six times as much as those before: 1.83 of all of them
            status = await _dearer(store, 12_000, 22_000)
            await until(lambda: term.plans.measured.cost(1, WORLD.overlay).events == status)
            gate.set()
            await until(lambda: term.book.epochs.target == 2)
            await report_cost(store, 2, per_byte=3)
            await until(lambda: term.plans.measured.cost(2, WORLD.overlay).events == 4_000)
            await until(lambda: term.plans._trial is None)
            assert term.plans.last is not None
            assert term.plans.last.action == "install"
            assert term.book.epochs.wanted == 2

    play(tmp_path, scenario)


async def _dearer(store: Store, events: int, sent: int) -> int:
    link = WORLD.overlay.links[0]
    for broker, to in ((link.a, link.b), (link.b, link.a)):
        count = LinkCount(events, sent * 100, sent * 120)
        status = Status(
            broker,
            "session 1",
            time.time(),
            1.0,
            entered={1: (events, events * 100)},
            sent={1: {to: count}},
        )
        await store.put(f"status.{token(broker)}", encode(status), force=True)
    return 2 * events


def test_the_key_of_another_kind_of_user_is_told_and_not_met_with_silence(tmp_path: Path) -> None:
    router, client = new_user(), new_user()
    accounts = accounts_config(router.public, {}, {"alice": client.public})
    role = ClientRole("alice")

    async def scenario() -> None:
        server = Server(ServerConfig("v0", tmp_path / "v0", accounts))
        await server.start()
        try:
            at = Endpoint(server.url, client.seed, role.inbox_prefix, "control")
            with pytest.raises(LiveError, match=r"forbids .*STREAM.INFO.*key is that of another kind"):
                async with asyncio.timeout(240):
                    await Store.connect(at, timeout_s=2.0)
        finally:
            await server.stop()

    run_to_end(scenario())


def test_the_standby_takes_over_when_the_leader_is_killed(tmp_path: Path) -> None:
    alone = machine_of(tmp_path, small_line(2), {"alice": "v0"})
    machine = Machine(replace(alone.config, standbys=[alone.config.coordinator]))

    async def scenario() -> None:
        async with started(machine):
            view = await until_seen(machine, lambda v: v.leader is not None)
            names = {"coordinator", "coordinator-2"}
            assert view.leader in names
            (standby,) = names - {view.leader}
            assert names <= pids(machine).keys()
            watching = machine._children[view.leader]
            assert watching._task is not None
            # nobody starts it again
            await end_tasks([watching._task])
            send(pids(machine)[view.leader], signal.SIGKILL)
            after = await until_seen(machine, lambda v: v.leader == standby and v.routing)
            assert [each.epoch for each in after.epochs] == [1]
            # and one more is let in while it runs
            Directory(tmp_path).add_coordinators(["late"])
            at = Directory(tmp_path).control_endpoint("late", machine.control_url)
            async with asyncio.timeout(240):
                store = await Store.connect(at)
                await store.close()

    with asyncio.Runner() as runner:
        runner.run(scenario())
