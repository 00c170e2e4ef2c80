"""`make simulate SEEDS=1000 [FROM=0]`, `make simulate SEED=7`: run seeds, and tell of those that fail."""

import argparse
import sys
import time

from simulation.scenario import drawn, shrunk
from simulation.world import run


def main() -> int:
    """Run the seeds that were asked for; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed, with its log")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--controlled", action="store_true", default=None)
    parser.add_argument("--most", type=int, default=5, help="stop after so many that fail")
    asked = parser.parse_args()
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    failed, began, virtual, events = [], time.process_time(), 0.0, 0
    for seed in seeds:
        scenario = drawn(seed, controlled=asked.controlled)
        started = time.process_time()
        result = run(scenario, log=asked.seed is not None)
        virtual += result.seconds
        events += result.verdict.acknowledged if result.verdict else 0
        if asked.seed is not None:
            print("\n".join(result.log))
            print(
                f"trace {result.trace}, {result.seconds:.1f} s, "
                f"{time.process_time() - started:.2f} s of CPU"
            )
        if result.is_good:
            continue
        failed.append(seed)
        if not asked.no_shrink:
            kinds = _kinds(result)
            least = shrunk(scenario, lambda each, kinds=kinds: bool(kinds & _kinds(run(each))))
            result = run(least)
            print("shrunk: ", end="")
        print(result.story())
        print(f"make simulate SEED={seed}\n", flush=True)
        if len(failed) >= asked.most:
            break
    count = len(list(seeds))
    cpu = time.process_time() - began
    print(
        f"{count - len(failed):,} of {count:,} seeds passed, {virtual / 3600:.1f} simulated hours, "
        f"{events:,} events acknowledged, {cpu:.0f} s of CPU ({cpu / max(1, count):.3f} s a seed)"
    )
    if failed:
        print("failed:", *failed)
    return bool(failed)


def _kinds(result: object) -> set[str]:
    found = {result.fault[:30]} if result.fault else set()  # type: ignore[attr-defined]
    verdict = result.verdict  # type: ignore[attr-defined]
    return found | ({kind for kind, n in verdict.counts.items() if n} if verdict else set())


if __name__ == "__main__":
    sys.exit(main())
