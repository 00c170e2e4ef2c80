"""The short form of `make chaos`: some faults on real processes, and the checker's verdict."""

import random
from pathlib import Path

import pytest

from chaos import ChaosPlan, run_chaos
from ramify.overlay.live.wire.tasks import run_to_end

# kills, a cut and bursts of a slow disk: the long form has pauses beyond every lease, and the rest
SHORT = ("cut", "kill coordinator", "kill routers", "kill server", "slow disk")


@pytest.mark.parametrize("scenario", ["storm", "matchmaking"])
def test_a_short_storm_breaks_no_promise(scenario: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 20)
    kinds = tuple(kind for kind in SHORT if scenario == "storm" or "coordinator" not in kind)
    plan = ChaosPlan(
        seed, scenario, duration_s=4.0, rate_per_s=150.0, kinds=kinds, most_faults=2, brokers=3
    )
    found = run_to_end(run_chaos(tmp_path / "m", plan, tmp_path / "history.jsonl"))
    assert found.is_kept, f"seed {seed}\n{found.text()}"
    assert found.acknowledged > 100
    assert found.due > found.acknowledged / 2
    assert found.faults.total() >= 1
    assert found.looks > 0
