"""A given plan replaces the store's once, standbys take over, and keys that do not fit are told."""

import asyncio
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_live_coordinator import BROKERS, WORLD, Scene, play, recent, report_cost

from machines import is_running, machine_of, pids, send, small_line, started, until_seen
from obedient import obeying, until
from ramify.errors import LiveError
from ramify.network.graphs.files import write_overlay
from ramify.overlay.control.names import token
from ramify.overlay.control.records import LinkCount, Status, encode
from ramify.overlay.live.coordinator.adaptation import Replanner
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import ClientRole, accounts_config, new_user
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import write_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
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

    asyncio.run(scenario())


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


# -------------------------------------------------------------------------------------- ramify up --plan


def up_until_it_routes(directory: Path, *words: str, end: signal.Signals = signal.SIGINT) -> str:
    """Run `ramify up` until it routes, end it, and return what it said."""
    log = directory.parent / "up.log"
    command = [sys.executable, "-m", "ramify.cli", "up", "--dir", str(directory), *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 240
        while "Ctrl-C stops" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        process.send_signal(end)
        code = process.wait(timeout=240)
        assert (code == 0) is (end is not signal.SIGKILL), log.read_text()
    finally:
        process.kill()
        process.wait()
    assert not is_running(process.pid)
    return log.read_text()


def test_up_with_a_plan_replaces_what_the_directory_had_and_says_so(tmp_path: Path) -> None:
    overlay = small_line(2)
    write_overlay(overlay, tmp_path / "line.json")
    problem = Problem.of(overlay, Classes.collapse([], overlay, {}), Demand.of([]), {})
    write_plan(make_plan("mst", problem), tmp_path / "plan.json")
    data = tmp_path / "data"
    # killed: what its brokers have said of themselves outlives them
    said = up_until_it_routes(data, "--overlay", str(tmp_path / "line.json"), end=signal.SIGKILL)
    assert "epoch 1, plan explicit\n" in said
    said = up_until_it_routes(data, "--scheme", "mult", end=signal.SIGHUP)
    assert "epoch 1, plan explicit, from the directory; --scheme mult is only for new directories" in said
    assert "stopped" in said
    said = up_until_it_routes(data, "--plan", str(tmp_path / "plan.json"))
    assert "epoch 2, plan mst of" in said
    assert "it replaces the directory's plan" in said
    # the same once more is no other epoch
    assert "epoch 2, plan mst of" in up_until_it_routes(data, "--plan", str(tmp_path / "plan.json"))
