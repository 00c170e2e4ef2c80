"""Compile the package's kernels, once and in one process, before test workers start.

Workers and the processes of an overlay that find no cache compile the same kernels at the same time, each
for minutes. This runs what compiles them on a small world, and names on request what it has not reached:

    python tests/support/kernels.py [--missing]
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import numpy as np
from numba.core.dispatcher import Dispatcher

import ramify
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.tally import tally
from ramify.planning.placement.composition import placement_problem
from ramify.planning.placement.local_search import local_search
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import SCHEMES, make_plan
from running import seeded_world
from worlds import GRID, World


def compile_kernels() -> None:
    """Plan, check, price and route a small world by every scheme, and place its clients."""
    world = seeded_world(1, 8, 12, 60)
    for name in SCHEMES:
        plan = make_plan("hub=v0" if name == "hub" else name, world.problem, 1)
        check(plan, world.problem)
        price(plan, world.demand)
        Simulator(plan).simulate_events([world.batch])
        # arrays of a plan from a file or a message cannot be written to: to a compiler that is another type
        price(decode_plan(encode_plan(plan)), world.demand)
    local_search(placement_problem(_by_client(world)), np.random.default_rng(1))


def _by_client(world: World) -> Problem:
    demand = tally(
        [world.batch], world.classes, world.overlay, world.attachments, grid=GRID, by_client=True
    )
    return Problem.of(world.overlay, world.classes, demand, world.attachments, grid=GRID)


def missing() -> Iterator[str]:
    """Kernels that were not compiled or loaded so far in this process."""
    for found in pkgutil.walk_packages(ramify.__path__, "ramify."):
        if "kernel" not in found.name and found.name not in sys.modules:
            continue
        for name, value in vars(importlib.import_module(found.name)).items():
            if isinstance(value, Dispatcher) and value.__module__ == found.name and not value.signatures:
                yield f"{found.name}.{name}"


if __name__ == "__main__":
    compile_kernels()
    if "--missing" in sys.argv:
        print("\n".join(missing()))
