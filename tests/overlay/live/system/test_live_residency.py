"""A residency rule on real brokers: its events never cross a forbidden broker, whatever is re-planned."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machines import LIMITS, Collected, started, until_seen, wanted_by
from project import SUPPORT
from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine, MachineConfig
from ramify.overlay.live.host.overview import Overview
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.choosing.judgement import faults
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import write_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.pricing.rules import read_rules
from ramify.planning.schemes.catalog import make_plan
from running import SMALL

# from west to east: cheap through asia, less so through north, dear through south
SITES = Overlay.build(
    "sites",
    ["west", "asia", "north", "south", "east"],
    [
        Link("west", "asia", 1.0, 1.0, 1.0),
        Link("asia", "east", 1.0, 1.0, 1.0),
        Link("west", "north", 3.0, 3.0, 1.0),
        Link("north", "east", 3.0, 3.0, 1.0),
        Link("west", "south", 9.0, 9.0, 1.0),
        Link("south", "east", 9.0, 9.0, 1.0),
    ],
)
CLIENTS = {"w": "west", "r": "east"}
RULES = {"residency": [{"name": "gdpr", "events": "personal = true", "not_in": {"brokers": ["asia"]}}]}
CHEAPEST, KEEPING = "spt:root=west", "hub=north"


def _plan(spec: str) -> Plan:
    rows = [Subscription("r/all", "r", "east", "x >= 0")]
    classes = Classes.collapse(rows, SITES, {})
    return make_plan(spec, Problem.of(SITES, classes, Demand.of([]), CLIENTS))


def _machine(directory: Path) -> Machine:
    files = Directory(directory)
    files.create(SITES)
    files.add_clients(CLIENTS)
    write_plan(_plan("hub=south"), directory / "first.json")
    (directory / "rules.json").write_text(json.dumps(RULES))
    command = [
        *(sys.executable, str(SUPPORT / "tallying_coordinator.py"), "coordinator"),
        *("--plan", str(directory / "first.json"), "--rules", str(directory / "rules.json")),
        *("--samples", str(directory / "samples"), "--replan-every", "1", "--least-events", "40"),
        *("--schemes", f"{CHEAPEST} {KEEPING}"),
    ]
    return Machine(MachineConfig(SITES, files, command, 1, SMALL, LIMITS, sample_probability=1.0))


class _Writer:
    """Publishes events until it is told to stop, half of them personal."""

    def __init__(self, client: Client) -> None:
        self.accepted: list[Event] = []
        self._going = True
        self._task = asyncio.create_task(self._write(client))

    async def _write(self, client: Client) -> None:
        number = 0
        while self._going:
            some = []
            for _ in range(10):
                number += 1
                kind: dict[str, Any] = {"x": number, "personal": number % 2 == 0}
                some.append(Event(f"e{number}", attributes=kind))
            await client.publish(some, give_up_s=120)
            self.accepted += some
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        self._going = False
        await self._task

    async def end(self) -> None:
        await end_tasks([self._task])


def _command(directory: Path, *words: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "ramify.cli", words[0], "--dir", str(directory), *words[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _told(view: Overview, action: str, says: str) -> bool:
    return any(d["action"] == action and says in str(d["reason"]) for d in view.decisions)


def _at(view: Overview, broker: str) -> int:
    """Events that a broker took in since it started."""
    return next(b.status.events for b in view.brokers if b.name == broker and b.status is not None)


def _runs(epoch: int) -> Callable[[Overview], bool]:
    """Whether every broker routes by an epoch, and no other lives."""
    return lambda view: [each.epoch for each in view.epochs] == [epoch] and view.routing


def test_the_cheapest_plan_would_cross_the_forbidden_broker(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    rules = read_rules(tmp_path / "rules.json", SITES)
    demand = Demand.of([(0, [0], 100, 10_000)])
    plans = {spec: _plan(spec) for spec in (CHEAPEST, KEEPING, "hub=south")}
    money = [price(plan, demand).money for plan in plans.values()]
    assert money == sorted(money)
    assert [fault.rule for fault in faults(plans[CHEAPEST], None, rules)] == ["residency: gdpr"]
    assert not faults(plans[KEEPING], None, rules)
    assert not faults(plans["hub=south"], None, rules)


def test_events_under_a_rule_never_cross_a_forbidden_broker(tmp_path: Path) -> None:
    """Before, during and after a re-plan. Without the rule they do, and with it again they do not."""

    async def scenario() -> None:
        machine = _machine(tmp_path)
        collected, writer = Collected(), None
        async with started(machine):
            west, east = await Client.at(tmp_path, "w"), await Client.at(tmp_path, "r")
            try:
                collected.read(east)
                writer = _Writer(west)
                view = await until_seen(machine, lambda v: _told(v, "install", "residency: gdpr"))
                assert _told(view, "install", f"refused: {CHEAPEST} breaks residency: gdpr")
                view = await until_seen(machine, _runs(2))
                before = len(writer.accepted)
                view = await until_seen(
                    machine, lambda v: _at(v, "north") > 50 and len(writer.accepted) > before
                )
                assert _at(view, "south") > 0, "the first plan"
                assert _at(view, "asia") == 0
                assert view.rules is not None
                assert view.rules["rules"] == RULES
                said = await asyncio.to_thread(_command, tmp_path, "status")
                assert "rules, revision 1: residency: gdpr" in said

                said = await asyncio.to_thread(_command, tmp_path, "rules", "--clear")
                assert "rules, revision 2: none" in said
                await until_seen(machine, _runs(3))
                await until_seen(machine, lambda v: _at(v, "asia") > 50)

                file = str(tmp_path / "rules.json")
                said = await asyncio.to_thread(_command, tmp_path, "rules", "--set", file)
                assert "rules, revision 3: residency: gdpr" in said
                view = await until_seen(machine, _runs(4))
                assert _told(view, "install", "keeps rules that the plan before breaks (residency: gdpr")
                await writer.stop()
                wanted = wanted_by({"all": "x >= 0"}, writer.accepted)
                await collected.until_has(wanted, 120)
                assert collected.counts == wanted
            finally:
                if writer is not None:
                    await writer.end()
                await collected.stop()
                await west.close()
                await east.close()

    run_to_end(scenario())
