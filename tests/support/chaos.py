"""Chaos on real processes: an overlay under load and faults, and the verdict on what its clients saw.

    python tests/support/chaos.py --minutes 10 [--seed N] [--scenario storm|singles|matchmaking|storage]

A run is a minute or so of faults. Each has a seed of its own, which draws the load and the faults with
their targets and lengths; a run with the same seed does the same as far as real processes go. `--seed N
--minutes 0` repeats one. A history of a run that broke the promise is kept, and its path printed: `ramify
verify FILE` judges it again. The last line is one JSON object; the exit code is 1 when a run broke the
promise.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuts import WiredMachine
from faults import Chaos, small_disk
from machines import LIMITS, started, until_routing
from project import ROOT
from ramify.errors import LiveError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.histories.checker import judge
from ramify.overlay.histories.files import HistoryFile
from ramify.overlay.histories.rows import HistoryRow
from ramify.overlay.histories.verdict import HistoryVerdict, quantile
from ramify.overlay.live.client.client import Client, PendingClient, place_of
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import MachineConfig
from ramify.overlay.live.host.overview import looking_here
from ramify.overlay.live.host.verification import Dial, Verification, VerificationSettings
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from results import add_result
from running import SMALL

LEASE_S = 4
SCENARIOS = ("storm", "singles", "matchmaking", "storage")


@dataclass(frozen=True)
class ChaosPlan:
    """A run. Without `kinds` all faults that are possible are drawn from."""

    seed: int
    scenario: str = "storm"
    duration_s: float = 50.0
    rate_per_s: float = 1000.0
    kinds: tuple[str, ...] = ()
    most_faults: int = 1000
    settle_s: float = 180.0
    ordered: bool = False
    brokers: int = 5

    @property
    def readers(self) -> dict[str, str]:
        return {f"r{i}": f"v{i}" for i in range(self.brokers)}

    @property
    def writers(self) -> dict[str, str]:
        return {f"w{i}": f"v{i}" for i in range(self.brokers)}

    @property
    def overlay(self) -> Overlay:
        """A ring: two ways between any two brokers."""
        n = self.brokers
        links = [Link(f"v{i}", f"v{(i + 1) % n}", 1.0 + i, 2.0, 5.0) for i in range(n)]
        return Overlay.build("ring", [f"v{i}" for i in range(n)], links)

    @property
    def full_at(self) -> str:
        """The broker with the small disk."""
        return f"v{self.brokers - 1}"


@dataclass
class ChaosSums:
    """Many runs as one."""

    runs: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    ordered: bool = True

    def add(self, seed: int, found: HistoryVerdict) -> None:
        self.runs += 1
        self.ordered = self.ordered and found.ordered
        self.faults.update(found.faults)
        self.recoveries += found.recoveries
        self.sums.update(
            acknowledged=found.acknowledged,
            due=found.due,
            delivered=found.delivered,
            unknown=found.unknown,
            refused=found.refused,
            **{kind.replace(" ", "_"): count for kind, count in found.counts.items()},
        )
        if not found.is_kept:
            self.broken.append(seed)

    def figures(self) -> dict[str, Any]:
        recovery_s = [longest for _, longest in self.recoveries]
        kinds = {what for what, _ in self.recoveries}
        return {
            "runs": self.runs,
            **dict(self.sums),
            "ordered": self.ordered,
            "faults": self.faults.total(),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "recovery_s_p50": quantile(recovery_s, 0.5),
            "recovery_s_p99": quantile(recovery_s, 0.99),
            "recoveries": len(recovery_s),
            "recovery_s_p50_by_kind": {
                kind: quantile([s for what, s in self.recoveries if what == kind], 0.5)
                for kind in sorted(kinds)
            },
            "broken_seeds": self.broken,
        }


def machine_for(path: Path, plan: ChaosPlan) -> WiredMachine:
    files = Directory(path)
    files.create(plan.overlay)
    files.add_clients(plan.readers | plan.writers)
    if plan.scenario == "matchmaking":
        return WiredMachine(MachineConfig(plan.overlay, files, (), 2, SMALL, LIMITS, matchmaking="shared"))
    if plan.scenario == "storm":
        files.make_movable()
    overlay = str(files.path / "overlay.json")
    command = [sys.executable, "-m", "ramify.cli", "coordinator", "--overlay", overlay, "--scheme", "mult"]
    config = MachineConfig(
        plan.overlay,
        files,
        command,
        2,
        SMALL,
        LIMITS,
        lease_s=LEASE_S,
        standbys=[] if plan.brokers < 4 else [command],
    )
    return WiredMachine(config)


async def run_chaos(path: Path, plan: ChaosPlan, history: Path) -> HistoryVerdict:
    """One run, and the verdict on it."""
    rng = random.Random(plan.seed)
    rows: list[HistoryRow] = []
    async with contextlib.AsyncExitStack() as stack:
        file = stack.enter_context(HistoryFile(history))
        disks: dict[str, Path] = {}
        place = path / "brokers" / plan.full_at
        if (not plan.kinds or "full disk" in plan.kinds) and stack.enter_context(small_disk(place)):
            disks[plan.full_at] = place
        machine = machine_for(path, plan)
        await stack.enter_async_context(started(machine))

        def sink(row: HistoryRow) -> None:
            rows.append(row)
            file.add(row)

        running = machine.directory.running()
        assert running is not None
        look = await stack.enter_async_context(looking_here(machine.directory, running))
        settings = VerificationSettings(
            f"s{plan.seed}",
            plan.seed,
            duration_s=plan.duration_s,
            rate_per_s=plan.rate_per_s,
            most_events=max(10, round(plan.rate_per_s / 20)),
            subscriptions=2,
            settle_s=plan.settle_s,
            ordered=plan.ordered,
            about=f"chaos {plan.scenario}, seed {plan.seed}",
        )
        whole = Verification(
            {name: _dial(machine, name) for name in plan.writers},
            {name: _dial(machine, name) for name in plan.readers},
            settings,
            sink,
            look,
            matchmaking=plan.scenario == "matchmaking",
        )
        running_load = asyncio.create_task(whole.run())
        chaos = asyncio.create_task(_chaos(machine, whole, rng, plan, disks))
        try:
            await asyncio.wait([running_load, chaos], return_when=asyncio.FIRST_COMPLETED)
            if running_load.done():
                running_load.result()  # only with an error, before the faults are over
            await chaos
            await running_load
        finally:
            await end_tasks([chaos, running_load])
    return judge(rows)


def _dial(machine: WiredMachine, name: str) -> Dial:
    place = place_of(machine.directory.path, name)

    def dial(after: int | None) -> PendingClient:
        url = machine.client_url(name)
        return Client.connect(name, url, seed_file=place.seed_file, after=after, timeout_s=120.0)

    return dial


async def _chaos(
    machine: WiredMachine, whole: Verification, rng: random.Random, plan: ChaosPlan, disks: dict[str, Path]
) -> None:
    await whole.publishing.wait()
    chaos = Chaos(machine, whole, rng, disks)
    until = time.monotonic() + plan.duration_s
    if plan.scenario == "singles":
        while time.monotonic() < until and chaos.done < plan.most_faults:
            await _until_routing_again(machine)
            await asyncio.sleep(3.0)
            await chaos.single_kill()
            await asyncio.sleep(12.0)
        return

    if plan.scenario == "storage":
        while time.monotonic() < until and chaos.done < plan.most_faults:
            await asyncio.sleep(rng.uniform(2.0, 5.0))
            await chaos.do(rng.choice(sorted(plan.kinds or chaos.destroyers())))
            await _until_routing_again(machine)
        return

    async def faults(kinds: list[str]) -> None:
        while time.monotonic() < until and chaos.done < plan.most_faults:
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            await chaos.do(rng.choice(kinds))

    kinds = sorted(plan.kinds or chaos.kinds())
    planned = [kind for kind in kinds if kind in ("switch", "move")]
    others = [kind for kind in kinds if kind not in planned]
    # several faults at once, plans that change meanwhile
    lines = [*[others] * 4, planned] if plan.most_faults > len(kinds) else [kinds]
    await asyncio.gather(*(faults(line) for line in lines if line))


async def _until_routing_again(machine: WiredMachine) -> None:
    """A look may fail while servers come back."""
    async with asyncio.timeout(240):
        while True:
            with contextlib.suppress(LiveError):
                await until_routing(machine)
                return
            await asyncio.sleep(0.2)


def main() -> None:
    options = argparse.ArgumentParser(description="See the top of the file.")
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--seed", type=int)
    options.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="all")
    options.add_argument("--kinds", default="", help="only these faults, separated by commas")
    options.add_argument("--keep", type=Path, default=ROOT / "build" / "chaos")
    options.add_argument("--results", action="store_true", help="add the figures to docs/results")
    asked = options.parse_args()
    seed = random.randrange(1_000_000) if asked.seed is None else asked.seed
    asked.keep.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    sums: dict[str, ChaosSums] = {}
    number = 0
    while number == 0 or time.monotonic() - begin < asked.minutes * 60:
        # two storms, then the others
        turn = ("storm", "singles", "storm", "matchmaking")[number % 4]
        scenario = turn if asked.scenario == "all" else asked.scenario
        kinds = tuple(kind for kind in asked.kinds.split(",") if kind)
        # how long events wait is measured where they hardly wait otherwise
        rate = 100.0 if scenario in ("singles", "storage") else 1000.0
        found = _one(ChaosPlan(seed + number, scenario, rate_per_s=rate, kinds=kinds), asked.keep)
        sums.setdefault(scenario, ChaosSums()).add(seed + number, found)
        number += 1
    chosen = "" if asked.scenario == "all" else f" SCENARIO={asked.scenario}"
    result = {
        "command": f"make chaos MINUTES={asked.minutes:g} SEED={seed}{chosen}",
        "seed": seed,
        **{scenario: each.figures() for scenario, each in sums.items()},
    }
    if asked.results:
        add_result("chaos", result)
    print(json.dumps(result))
    sys.exit(1 if any(each.broken for each in sums.values()) else 0)


def _one(plan: ChaosPlan, keep: Path) -> HistoryVerdict:
    history = keep / f"{plan.scenario}-{plan.seed}.jsonl"
    history.unlink(missing_ok=True)
    print(f"== {plan.scenario}, seed {plan.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="ramify-chaos-"))
    try:
        found = run_to_end(run_chaos(directory, plan, history))
    except BaseException:
        print(f"seed {plan.seed}: the run itself failed; its files are in {directory}", flush=True)
        raise
    print(found.text(), flush=True)
    if found.is_kept:
        history.unlink()
        shutil.rmtree(directory, ignore_errors=True)
    else:
        shutil.copytree(directory / "logs", keep / f"{plan.scenario}-{plan.seed}-logs", dirs_exist_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        print(f"history: {history}", flush=True)
    return found


if __name__ == "__main__":
    main()
