"""Zero lost, zero doubled, by event id at every subscriber, whatever is killed, stopped or woken."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from project import ROOT, SUPPORT
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.plans.files import write_plan
from ramify.planning.schemes.catalog import make_plan
from running import Running, seeded_world
from worlds import World

SCHEMES = ["mult", "explicit", "unicast"]


class Routers:
    """One process per broker. Processes that were replaced while stopped are kept to be woken."""

    def __init__(self, live: Running, world: World, directory: Path) -> None:
        self.live, self.directory = live, directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.old: list[subprocess.Popen[bytes]] = []
        (directory / "plans").mkdir()
        for epoch, spec in enumerate(SCHEMES):
            write_plan(make_plan(spec, world.problem, 1), directory / "plans" / f"plan-{epoch}.json")
        self.flip(0)
        for name in world.overlay.brokers:
            home = directory / "routers" / name
            home.mkdir(parents=True)
            for file in (directory / "plans").iterdir():
                (home / file.name).symlink_to(file)
            settings = {"name": name, "urls": live.urls, "attachments": world.attachments}
            (home / "broker.json").write_text(json.dumps(settings))
            self.start(name)

    def flip(self, epoch: int) -> None:
        part = self.directory / "plans" / ".epoch"
        part.write_text(str(epoch))
        part.rename(self.directory / "plans" / "epoch")

    def start(self, name: str) -> None:
        home = self.directory / "routers" / name
        with (home / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    str(SUPPORT / "broker_process.py"),
                    str(home),
                    str(self.live.site.directory),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": f"{SUPPORT}:{ROOT}/src"},
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def stop_all(self) -> None:
        for process in [*self.processes.values(), *self.old]:
            process.kill()
            process.wait()


async def _faults(live: Running, routers: Routers, rng: np.random.Generator, rounds: int) -> Counter[str]:
    """Faults one after another, some of them together with a plan switch."""
    done: Counter[str] = Counter()
    names = list(live.servers)
    for k in range(rounds):
        name = names[rng.integers(len(names))]
        kind = ["router", "server", "woken", "switch", "both"][k % 5]
        done[kind] += 1
        if kind == "switch":
            routers.flip(k % len(SCHEMES))
        if kind in ("router", "both"):
            routers.kill(name)
        if kind in ("server", "both"):
            live.servers[name].kill()
        if kind == "woken":
            process = routers.processes[name]
            process.send_signal(signal.SIGSTOP)
            routers.old.append(process)
            routers.start(name)
        await asyncio.sleep(float(rng.uniform(0.1, 0.8)))
        if kind in ("server", "both"):
            await live.servers[name].start()
        if kind in ("router", "both"):
            routers.start(name)
        if kind == "woken":
            await asyncio.sleep(3.0)
            routers.old[-1].send_signal(signal.SIGCONT)
        await asyncio.sleep(float(rng.uniform(0.2, 0.8)))
    return done


# once each; the long form has every kind four times
@pytest.mark.parametrize("faults_count", [5, pytest.param(20, marks=pytest.mark.long)])
def test_kills_stops_and_switches_lose_and_double_nothing(tmp_path: Path, faults_count: int) -> None:
    world = seeded_world(5, brokers=5, subscriptions=12, events=60)
    wanted = world.wanted()

    async def scenario() -> None:
        live = Running(world.overlay, world.attachments, tmp_path / "site")
        await asyncio.gather(*(server.start() for server in live.servers.values()))
        routers = Routers(live, world, tmp_path)
        readers = sorted({row.client for row in world.subscriptions})
        rounds = 0
        try:
            live.read(readers)
            await live.publish(world, "/first", size=5)
            await live.until(len(wanted))  # all routers run
            live.delivered.clear()
            faults = asyncio.create_task(_faults(live, routers, np.random.default_rng(7), faults_count))
            while not faults.done():
                await live.publish(world, f"/{rounds}", size=5)
                rounds += 1
            done = await faults
            assert len(done) == 5, done
            expected = Counter({(f"{e}/{r}", s): 1 for r in range(rounds) for e, s in wanted})
            await live.until(expected.total())
            assert live.delivered == expected
            assert not live.failed(), live.failed()
        except TimeoutError:
            lost = expected - live.delivered
            state = "\n".join(await live.describe())
            said = f"{lost.total()} of {expected.total()} lost, {list(lost)[:5]}\n{state}"
            raise AssertionError(said) from None
        finally:
            routers.stop_all()
            await live.stop()

    run_to_end(scenario())
