"""From every kind of plan to every other, under load, broker after broker: none lost, none doubled."""

import asyncio
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ramify.overlay.live.wire.tasks import run_to_end
from ramify.overlay.routing.router import RoutingPlan
from ramify.planning.schemes.catalog import make_plan
from running import Running, running, seeded_world

# one of each way to route: trees with filters, chosen by a stamp, carried in headers, lists of
# destinations, copies, by way of a hub, flooded, a tree per source, channels by expressions (flooded, and
# filtered at every hop), zones (with filters, over rings, in groups), groups of cells
SCHEMES = [
    "mult",
    "portfolio",
    "explicit",
    "explicit-list",
    "unicast",
    "hub=v0",
    "mirror-all",
    "per-source",
    "semcast",
    "semcast-filter",
    "kyra",
    "kyra:ring_limit=1",
    "kyra-mbr",
    "mbr",
]


def every_pair(kinds: int) -> list[int]:
    """A closed walk that goes from each kind to each other exactly once (Hierholzer)."""
    left = {a: [b for b in range(kinds) if b != a] for a in range(kinds)}
    stack, walk = [0], list[int]()
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            walk.append(stack.pop())
    return walk[::-1]


def some_pairs(kinds: int, seed: int) -> list[int]:
    """A closed walk of three rounds in different orders: each kind is left and entered three times."""
    rng = np.random.default_rng(seed)
    return [0] + [int(kind) for _ in range(3) for kind in (*(1 + rng.permutation(kinds - 1)), 0)]


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_walk_leaves_and_enters_every_kind(seed: int) -> None:
    pairs = list(pairwise(some_pairs(len(SCHEMES), seed)))
    assert all(a != b for a, b in pairs)
    assert {a for a, _ in pairs} == {b for _, b in pairs} == set(range(14))


def test_the_walk_has_every_pair_once() -> None:
    walk = every_pair(len(SCHEMES))
    pairs = list(pairwise(walk))
    assert sorted(pairs) == [(a, b) for a in range(14) for b in range(14) if a != b]


@pytest.mark.parametrize(
    "walk",
    [
        pytest.param(some_pairs(len(SCHEMES), random.randrange(2**16)), id="some pairs"),
        pytest.param(every_pair(len(SCHEMES)), id="every pair", marks=pytest.mark.long),
    ],
)
def test_a_switch_between_any_two_schemes_loses_and_doubles_nothing(
    tmp_path: Path, walk: list[int]
) -> None:
    print("walk", walk)
    world = seeded_world(11, brokers=5, subscriptions=12, events=20)
    wanted = world.wanted()
    plans = [RoutingPlan(make_plan(spec, world.problem, 1)) for spec in SCHEMES]
    rng = np.random.default_rng(2)

    rounds = 0

    async def switch(live: Running, walk: list[int]) -> None:
        # the first is installed already
        for epoch, kind in enumerate(walk):
            # there is load all along, however slow it is
            while rounds < 5 * epoch // len(walk):
                await asyncio.sleep(0.005)
            for node in live.nodes.values():
                node.install(epoch, plans[kind])
            for name in rng.permutation(list(live.nodes)).tolist():
                live.nodes[name].flip(epoch)
                await asyncio.sleep(float(rng.uniform(0.0, 0.016)))

    async def scenario() -> None:
        nonlocal rounds
        async with running(plans[walk[0]].plan, world, tmp_path) as live:
            switching = asyncio.create_task(switch(live, walk))
            while not switching.done():
                await live.publish(world, f"/{rounds}", size=3)
                rounds += 1
            await switching
            assert rounds > 3
            expected = Counter({(f"{e}/{r}", s): 1 for r in range(rounds) for e, s in wanted})
            await live.until(expected.total())
            assert live.delivered == expected
            assert not live.failed(), live.failed()

    run_to_end(scenario())
