"""All-pairs hop distances on a transit-stub overlay: time and memory, side by side with scipy.

Runs alone: `python benchmarks/apsp.py [--quick]`. Each side is measured in fresh processes of its own, so
the peak of one does not hide in the other's; the median of three counts (of one with `--quick`). The last
line is one JSON object. `apsp_5000_s` is the first call in a process that finds compiled code in numba's
cache, the call a user waits for, and `apsp_5000_again_s` the second; imports and the making of the overlay
are outside both. `compile_s` is what the first call of all adds, in an empty cache. Memory is the growth of
the peak resident size. Exits with 1 when a limit is broken.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT_S = 3.0
LIMIT_MB = 400.0


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_ours(brokers: int) -> dict[str, float]:
    from ramify.network.graphs.distances import all_pairs
    from ramify.network.graphs.transit_stub import transit_stub

    overlay = transit_stub(brokers, 1)
    assert overlay.adjacency is not None
    before = peak_mb()
    times = []
    for _ in range(2):
        began = time.perf_counter()
        found = all_pairs(overlay, "hops")
        times.append(time.perf_counter() - began)
        if len(times) == 1:
            added = peak_mb() - before
        total = int(found.distance.sum(dtype="int64"))
        del found
    return {
        "first_s": times[0],
        "again_s": times[1],
        "mb": added,
        "total": total,
        "links": len(overlay.ends),
    }


def measure_scipy(brokers: int) -> dict[str, float]:
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    from ramify.network.graphs.transit_stub import transit_stub

    overlay = transit_stub(brokers, 1)
    graph = csr_array(
        (np.ones(len(overlay.ends)), (overlay.ends[:, 0], overlay.ends[:, 1])), shape=(brokers, brokers)
    )
    before = peak_mb()
    began = time.perf_counter()
    distance, _ = shortest_path(graph, directed=False, unweighted=True, return_predecessors=True)
    took = time.perf_counter() - began
    return {"first_s": took, "mb": peak_mb() - before, "total": int(distance.sum())}


def fresh(side: str, brokers: int, times: int, **environment: str) -> dict[str, float]:
    """The median of each figure over runs in processes of their own."""
    command = [sys.executable, __file__, "--side", side, "--brokers", str(brokers)]
    rows = []
    for _ in range(times):
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="measure once instead of three times")
    parser.add_argument("--side", choices=["ours", "scipy"], help=argparse.SUPPRESS)
    parser.add_argument("--brokers", type=int, default=5000)
    options = parser.parse_args()
    if options.side:
        side = measure_ours if options.side == "ours" else measure_scipy
        print(json.dumps(side(options.brokers)))
        return 0

    brokers, times = options.brokers, 1 if options.quick else 3
    with tempfile.TemporaryDirectory() as empty:
        cold = fresh("ours", brokers, 1, NUMBA_CACHE_DIR=empty)
    fresh("ours", brokers, 1)  # fills the usual cache where it is cold
    ours = fresh("ours", brokers, times)
    scipy = fresh("scipy", brokers, times)
    assert ours["total"] == scipy["total"], "the two disagree on the sum of all distances"
    print(f"transit-stub, {brokers} brokers, {ours['links']} links, hops with predecessors")
    print(f"  {'':8}{'seconds':>10}{'peak MB':>10}")
    for name, row in (("ours", ours), ("scipy", scipy)):
        print(f"  {name:8}{row['first_s']:10.3f}{row['mb']:10.0f}")
    print(f"  second call in the same process {ours['again_s']:.3f} s")
    result = {
        f"apsp_{brokers}_s": round(ours["first_s"], 3),
        f"apsp_{brokers}_again_s": round(ours["again_s"], 3),
        f"apsp_{brokers}_mb": round(ours["mb"], 1),
        "compile_s": round(max(cold["first_s"] - ours["first_s"], 0.0), 3),
        "scipy_s": round(scipy["first_s"], 3),
        "scipy_mb": round(scipy["mb"], 1),
        "scipy_time_ratio": round(scipy["first_s"] / ours["first_s"], 2),
        "scipy_memory_ratio": round(scipy["mb"] / max(ours["mb"], 0.1), 2),
    }
    within = ours["first_s"] <= LIMIT_S and ours["mb"] <= LIMIT_MB
    if not within:
        print(f"  over the limit of {LIMIT_S} s and {LIMIT_MB} MB", file=sys.stderr)
    print(json.dumps(result))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
