"""Placement: how long the algorithms take, and what they save over a random placement.

On the workload of Zhao and Wu, 10,000 users, 100 brokers on a transit-stub overlay, T = 16 sub-channels:
the seconds of each of the paper's algorithms (at most a tenth of its Table I) and of local search from all
of them, whose cost must not be above the best of the paper's three. CRR is the paper's cost reduction
ratio: the cost of the random placement over that of the algorithm. It is given for prices that keep the
triangle inequality (`crr`), for prices drawn evenly, and by the ratio of access to core prices. Then the
growth of the time as users and brokers double.

    python benchmarks/placement.py --quick     one seed, under two minutes
    python benchmarks/placement.py             three seeds, more ratios

The last line is one JSON object; the exit code is 1 when a limit is broken. Compiling is not counted.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ramify.network.graphs.specs import overlay_from
from ramify.planning.placement.heuristics import HEURISTICS
from ramify.planning.placement.local_search import improved, local_search
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.placement.rounds import in_rounds
from ramify.workloads.catalog import workload_from

LIMITS = {"greedy_s": 9.1, "clustering_s": 10.0, "mixing_s": 18.0, "local_search_s": 60.0}
MOST_OVER_BEST = 1.0
PAPER = ("greedy", "clustering", "mixing")
USERS, BROKERS, CHANNELS = 10_000, 100, 16


def main() -> None:
    options = argparse.ArgumentParser(description="See the top of the file.")
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    seeds = [1] if quick else [1, 2, 3]
    result: dict[str, Any] = {
        "quick": quick,
        "seeds": seeds,
        "users": USERS,
        "brokers": BROKERS,
        "T": CHANNELS,
    }
    say("compiling")
    measure(problem(60, 14, 1), 1)
    runs = [measure(problem(USERS, BROKERS, seed), seed) for seed in seeds]
    for key in ("greedy_s", "clustering_s", "mixing_s", "local_search_s", "local_search_over_best"):
        result[key] = max(run[key] for run in runs)
    result["crr"] = mean_of([run["crr"] for run in runs])
    result["crr_drawn_prices"] = measure(problem(USERS, BROKERS, 1, access="random"), 1)["crr"]
    ratios = (0.1, 10.0) if quick else (0.1, 0.3, 3.0, 10.0)
    result["crr_by_ratio"] = {
        str(ratio): measure(problem(USERS, BROKERS, 1, ratio=ratio), 1)["crr"] for ratio in ratios
    }
    result["tight"] = tight(quick)
    result["exponents"] = exponents()
    missed = [key for key, limit in LIMITS.items() if result[key] > limit]
    missed += ["local_search_over_best"] if result["local_search_over_best"] > MOST_OVER_BEST else []
    for key in missed:
        say(f"LIMIT BROKEN: {key} = {result[key]}, allowed: {LIMITS.get(key, MOST_OVER_BEST)}")
    print(json.dumps(result))
    sys.exit(1 if missed else 0)


def problem(
    users: int, brokers: int, seed: int, *, access: str = "metric", ratio: float = 1.0, factor: float = 2.0
) -> PlacementProblem:
    overlay = overlay_from(f"majumder:{brokers}")
    spec = (
        f"zhao_wu:users={users},sub_channels={CHANNELS},access={access},access_to_core_ratio={ratio},"
        f"capacity_factor={factor}"
    )
    workload = workload_from(spec, overlay, seed)
    return PlacementProblem.of_arrays(workload.publishers, overlay.brokers, workload.arrays)


def measure(given: PlacementProblem, seed: int) -> dict[str, Any]:
    """Every algorithm once: seconds, and the cost of random over its own."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    made: dict[str, Placement] = {}
    for name, heuristic in HEURISTICS.items():
        made[name], found[f"{name}_s"] = timed(lambda h=heuristic: h(given, rng, "steiner"))
    best = min(made[name].total for name in PAPER)
    searched, found["local_search_s"] = timed(lambda: local_search(given, rng, given=made.values()))
    found["local_search_over_best"] = searched.total / best
    made["local_search"] = searched
    random = made["random"].total
    found["crr"] = {name: round(random / one.total, 4) for name, one in made.items() if name != "random"}
    seconds = ", ".join(f"{name} {found[f'{name}_s']:.2f}" for name in made)
    say(f"{len(given.users):,} users at {len(given.core)} brokers: {seconds} s; CRR {found['crr']}")
    return found


def tight(quick: bool) -> dict[str, float]:
    """Few users a broker and little room: where the core counts and brokers fill up."""
    given = problem(1_000 if quick else 3_000, 100, 1, factor=1.05)
    rng = np.random.default_rng(1)
    greedy = HEURISTICS["greedy"](given, rng, "steiner")
    searched, seconds = timed(lambda: improved(given, greedy.broker, rng))
    spread, rounds_s = timed(
        lambda: in_rounds(given, HEURISTICS["random"](given, rng, "mst"), "mst", most=30)
    )
    say(f"tight: local search {searched.total / greedy.total:.4f} of greedy in {seconds:.1f} s")
    say(f"30 rounds of brokers: {spread.moves} moves, {spread.messages} messages, {rounds_s:.1f} s")
    return {
        "local_search_over_greedy": round(searched.total / greedy.total, 4),
        "seconds": round(seconds, 2),
        "rounds_cost_over_start": round(spread.rounds[-1].cost / spread.rounds[0].cost, 4),
        "rounds_moves": spread.moves,
        "rounds_messages": spread.messages,
    }


def exponents() -> dict[str, dict[str, float]]:
    """By how much the time grows: the exponent of seconds in users, and in brokers, over two doublings."""
    grown: dict[str, dict[str, float]] = {}
    sizes = {"users": [(2_500, 50), (10_000, 50)], "brokers": [(5_000, 30), (5_000, 120)]}
    for what, (small, large) in sizes.items():
        few, many = (measure(problem(*size, 1), 1) for size in (small, large))
        grown[what] = {
            name: round(float(np.log(many[f"{name}_s"] / few[f"{name}_s"]) / np.log(4)), 2)
            for name in (*PAPER, "local_search")
        }
    return grown


def mean_of(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(float(np.mean([row[key] for row in rows])), 4) for key in rows[0]}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    made = work()
    return made, time.perf_counter() - begin


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
