"""One client, or viewer, that sends whatever it likes over a raw socket: the others are served meanwhile.

How soon is measured by `benchmarks/hostile.py`; here it counts that they are, and that nothing had to be
started again.
"""

import asyncio
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile import AS_A_CLIENT, ON_CONTROL, attack
from machines import machine_of, small_line, started
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.host.overview import Overview, looking_here
from ramify.overlay.live.wire.security import ClientRole, ControlRole
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

LIMIT_S = 600.0
SERVED_S = 120.0
CLIENTS = {"alice": "v0", "bob": "v1", "mallory": "v0"}


async def served(alice: Client, subscription: object, numbers: Iterator[int]) -> None:
    """An event that is published now is acknowledged, and comes."""
    id_ = f"e{next(numbers)}"
    async with asyncio.timeout(SERVED_S):
        await alice.publish({"id": id_, "type": "t", "source": "s", "specversion": "1.0"})
        async for event in subscription:  # type: ignore[attr-defined]
            if event.id == id_:
                return


async def under(machine: Machine, seed: int) -> None:
    where, rng, numbers = machine.directory.path, random.Random(seed), iter(range(1 << 30))
    mallory = machine.directory.ring.pair(ClientRole("mallory"))
    viewer = machine.directory.ring.pair(ControlRole("viewer"))
    async with Client.at(where, "alice") as alice, Client.at(where, "bob") as bob:
        subscription = await bob.subscribe("type = 't' AND source = 's'", wait_s=60.0)
        assert not subscription.missing
        kinds = [(name, machine.urls["v0"], mallory, "mallory", kind) for name, kind in AS_A_CLIENT.items()]
        kinds += [(name, machine.control_url, viewer, "viewer", kind) for name, kind in ON_CONTROL.items()]
        rng.shuffle(kinds)
        for name, url, pair, token, kind in kinds:
            tried = asyncio.create_task(attack(url, pair, token, kind, rng))
            try:
                while not tried.done():
                    await served(alice, subscription, numbers)
                assert tried.result() > 0, name
                await served(alice, subscription, numbers)
            except TimeoutError:
                pytest.fail(f"seed {seed}: others were not served within {SERVED_S:g} s of {name!r}")
            finally:
                await end_tasks([tried])
        # who changes something is served too, and all is as it was
        again = await bob.subscribe("type = 'u'", wait_s=60.0)
        assert not again.missing
    running = machine.directory.running()
    assert running is not None
    async with looking_here(machine.directory, running) as look:
        # all that was sent has come, and was judged; what a broker says of itself comes a little later
        while not ((view := await look()).routing and _rejects(view) > 10_000):
            await asyncio.sleep(0.1)
    assert machine.restarts == {}


def _rejects(view: Overview) -> int:
    return next((each.status.rejects for each in view.brokers if each.name == "v0" and each.status), 0)


def fuzzed(directory: Path, seeds: list[int]) -> None:
    machine = machine_of(directory, small_line(2), CLIENTS)

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S * len(seeds)), started(machine):
            for seed in seeds:
                print(f"seed {seed}")
                await under(machine, seed)

    run_to_end(scenario())


def test_others_are_served_whatever_one_sends(tmp_path: Path) -> None:
    fuzzed(tmp_path / "m", [secrets.randbelow(1 << 32)])


@pytest.mark.long
def test_others_are_served_whatever_one_sends_at_length(tmp_path: Path) -> None:
    fuzzed(tmp_path / "m", [secrets.randbelow(1 << 32) for _ in range(10)])
