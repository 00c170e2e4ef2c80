"""The live overlay does what the simulator says: the same messages on every link, the same deliveries."""

from collections import Counter
from pathlib import Path

import pytest

from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import crossings, running, seeded_world

SCHEMES = ["explicit", "portfolio", "mult", "unicast", "hub=v0", "mirror-all"]
SCHEMES += [
    "semcast",
    "semcast-merge",
    "semcast-noisemerge",
    "semcast-o",
    "semcast-filter",
    "semcast-delay",
    "semcast-best",
]
SCHEMES += ["kyra", "kyra:ring_limit=1", "kyra-balanced", "kyra-mbr", "mbr", "fbr"]
SCHEMES += ["zhao-wu", "zhao-wu-tree"]


@pytest.mark.parametrize(
    ("brokers", "subscriptions", "events"), [(7, 16, 60), pytest.param(11, 24, 240, marks=pytest.mark.long)]
)
def test_live_equals_simulated_for_several_schemes(
    tmp_path: Path, brokers: int, subscriptions: int, events: int
) -> None:
    world = seeded_world(3, brokers, subscriptions, events)
    plans = {spec: make_plan(spec, world.problem, 1) for spec in SCHEMES}
    wanted = world.wanted()

    async def compare() -> None:
        async with running(plans[SCHEMES[0]], world, tmp_path) as live:
            for epoch, (spec, plan) in enumerate(plans.items()):
                live.install(epoch, plan)
                before, expected = live.messages(), crossings(plan, world)
                live.delivered.clear()
                await live.publish(world, f"/{spec}")
                await live.until(len(wanted))
                assert not live.failed(), live.failed()
                assert live.messages() - before == expected, spec
                assert live.delivered == Counter({(f"{e}/{spec}", s): 1 for e, s in wanted}), spec

    run_to_end(compare())
