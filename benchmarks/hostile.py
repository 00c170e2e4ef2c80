"""How soon others are served while one client, or viewer, sends whatever it likes (`hostile.py`).

    python benchmarks/hostile.py [--quick] [--seed N] [--rounds N]

An overlay of two brokers runs on this machine. Alice publishes an event every 50 ms at the broker that is
attacked, Bob reads at the other. The table has, for each kind of hostility, how long events took that were
published while it went on: from before the publish to the delivery.
"""

import argparse
import asyncio
import os
import random
import secrets
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from hostile import AS_A_CLIENT, ON_CONTROL, attack
from machines import machine_of, small_line, started
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.wire.security import ClientRole, ControlRole
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

EVERY_S = 0.05
LEAST_S = 1.0
WANTED_S = 2.0


class Flow:
    """When each event was published, and when it came."""

    def __init__(self, alice: Client, subscription: object) -> None:
        self._alice, self._subscription = alice, subscription
        self.began: dict[str, float] = {}
        self.took: dict[str, float] = {}

    async def publish(self) -> None:
        """Publish for good."""
        number = 0
        while True:
            id_ = f"e{number}"
            number += 1
            self.began[id_] = time.monotonic()
            await self._alice.publish({"id": id_, "type": "t", "source": "s", "specversion": "1.0"})
            await asyncio.sleep(EVERY_S)

    async def read(self) -> None:
        """Note what comes, for good."""
        async for event in self._subscription:  # type: ignore[attr-defined]
            if event.id in self.began:
                self.took[event.id] = time.monotonic() - self.began[event.id]

    async def during(self, begin_s: float, end_s: float) -> list[float]:
        """What the events took that were published in a while, once all of them came."""
        those = [id_ for id_, at in self.began.items() if begin_s <= at <= end_s]
        while any(id_ not in self.took for id_ in those):
            await asyncio.sleep(0.02)
        return sorted(self.took[id_] for id_ in those)


async def measure(machine: Machine, seed: int, rounds: int) -> float:
    """Print the table; the longest time of all."""
    rng, worst = random.Random(seed), 0.0
    where, ring = machine.directory.path, machine.directory.ring
    async with Client.at(where, "alice") as alice, Client.at(where, "bob") as bob:
        subscription = await bob.subscribe("type = 't' AND source = 's'", wait_s=60.0)
        flow = Flow(alice, subscription)
        tasks = [asyncio.create_task(flow.publish()), asyncio.create_task(flow.read())]
        try:
            print(f"{'while':<28}{'events':>8}{'median ms':>11}{'p99 ms':>9}{'longest ms':>12}")
            await asyncio.sleep(LEAST_S)
            mallory, viewer = ring.pair(ClientRole("mallory")), ring.pair(ControlRole("viewer"))
            kinds = [("nothing", "", mallory, "", None)]
            for _ in range(rounds):
                kinds += [(n, machine.urls["v0"], mallory, "mallory", k) for n, k in AS_A_CLIENT.items()]
                kinds += [
                    (f"control: {n}", machine.control_url, viewer, "", k) for n, k in ON_CONTROL.items()
                ]
            for name, url, pair, token, kind in kinds:
                begin_s = time.monotonic()
                if kind is not None:
                    await attack(url, pair, token, kind, rng)
                while time.monotonic() < begin_s + LEAST_S:
                    await asyncio.sleep(EVERY_S)
                took = await flow.during(begin_s, time.monotonic())
                p99, longest = took[int(0.99 * (len(took) - 1))], took[-1]
                worst = max(worst, longest)
                middle, p99, longest = (1e3 * each for each in (took[len(took) // 2], p99, longest))
                print(f"{name:<28}{len(took):>8}{middle:>11.0f}{p99:>9.0f}{longest:>12.0f}", flush=True)
        finally:
            await end_tasks(tasks)
    return worst


async def run(seed: int, rounds: int) -> None:
    clients = {"alice": "v0", "bob": "v1", "mallory": "v0"}
    with tempfile.TemporaryDirectory() as directory:
        machine = machine_of(Path(directory) / "m", small_line(2), clients)
        async with started(machine):
            worst = await measure(machine, seed, rounds)
        told = f"longest {worst * 1e3:.0f} ms; wanted {WANTED_S * 1e3:.0f} ms"
        print(f"{told}; restarts {machine.restarts or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    run_to_end(run(asked.seed, 1 if asked.quick else asked.rounds))


if __name__ == "__main__":
    main()
