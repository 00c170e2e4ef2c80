"""Matchmaking: how long marking takes, what it saves, and what the protocol costs.

The workload of Ge et al., section 4.1. First per-source trees of 200 publishers and 200 subscribers on a
transit-stub overlay of 5,000 brokers: the seconds from the overlay to the optimal marking, its cost against
advertisements everywhere (PubE) and subscriptions everywhere (SubE), and how the time grows. Then the
paper's overlay of 100 brokers: the median ratios over many draws, and the protocol itself, on shared and on
per-source trees: packets, items and descriptors until all is quiet, what one more subscription and one
update cost, and whether it ends at the optimum.

    python benchmarks/matchmaking.py --quick     a few draws, under a minute
    python benchmarks/matchmaking.py             more draws, larger protocol runs

The last line is one JSON object; the exit code is 1 when a limit is broken. Ratios hold on a busy machine;
times less so.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.network.trees.trees import shortest_path_tree
from ramify.overlay.matchmaking.marking import Marking, mark_trees
from ramify.overlay.matchmaking.messages import Descriptor
from ramify.overlay.matchmaking.simulate import MatchNetwork, places_of_parents
from ramify.overlay.matchmaking.trees import MatchTrees
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload

LIMITS = {  # key -> the most that is allowed
    "marking_5000_s": 10,
    "mcm_over_best": 1.0,
    "protocol_over_optimum": 1.0,
}
SHARED, PER_SOURCE = "shared", "per_source"


def main() -> None:
    options = argparse.ArgumentParser(description="See the top of the file.")
    options.add_argument("--quick", action="store_true")
    asked = options.parse_args()
    result: dict[str, Any] = {"quick": asked.quick}
    little = overlay_from("matchmaker")
    mark_once(little, workload_of(little, 10, 1))  # loads what is compiled
    result |= large(asked.quick)
    result |= small(50 if asked.quick else 500)
    sizes = (10,) if asked.quick else (10, 20, 40)
    result["protocol"] = {
        f"{kind}_{size}": protocol(kind, size) for kind in (SHARED, PER_SOURCE) for size in sizes
    }
    over = [row["stored"] / row["optimum"] for row in result["protocol"].values()]
    result["protocol_over_optimum"] = max(over)
    missed = [key for key, limit in LIMITS.items() if result[key] > limit]
    for key in missed:
        say(f"LIMIT BROKEN: {key} = {result[key]}, allowed: {LIMITS[key]}")
    print(json.dumps(result))
    sys.exit(1 if missed else 0)


def large(quick: bool) -> dict[str, Any]:
    """The marking of 5,000 brokers, and the slope of log time against log size."""
    sizes = [1250, 2500, 5000] if quick else [1250, 2500, 5000, 10_000]
    times, exact = [], None
    for brokers in sizes:
        overlay = overlay_from(f"majumder:{brokers}")
        workload = workload_of(overlay, 200, 1)
        runs = [timed(lambda o=overlay, w=workload: mark_once(o, w)) for _ in range(2)]
        times.append(min(seconds for _, seconds in runs))
        if brokers == 5000:
            exact = runs[0][0]
    assert exact is not None
    slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    loads = exact.loads
    seconds = times[sizes.index(5000)]
    say(
        f"5,000 brokers, 200 publishers, 200 subscribers: {len(loads.links):,} links in {seconds:.2f} s; "
        f"cost {exact.cost:,}, PubE {loads.pub_everywhere:,}, SubE {loads.sub_everywhere:,}; "
        f"{'every link takes the lesser load' if loads.is_monotone else 'links disagree, one minimum cut'}"
    )
    say(f"brokers {sizes}: {', '.join(f'{t:.2f}' for t in times)} s, exponent {slope:.2f}")
    best = min(loads.pub_everywhere, loads.sub_everywhere)
    return {
        "marking_5000_s": round(seconds, 3),
        "marking_exponent": round(slope, 2),
        "mcm_over_pub_5000": round(exact.cost / loads.pub_everywhere, 4),
        "mcm_over_sub_5000": round(exact.cost / loads.sub_everywhere, 4),
        "mcm_over_best": round(exact.cost / best, 4),
    }


def small(draws: int) -> dict[str, Any]:
    """The paper's Figures 9 and 12: 10 publishers and 10 subscribers on 100 brokers."""
    overlay = overlay_from("matchmaker")
    found: dict[str, Any] = {}
    for kind in (SHARED, PER_SOURCE):
        rows = []
        for seed in range(draws):
            made = mark_trees(trees_of(overlay, workload_of(overlay, 10, seed), kind))
            rows.append(
                (made.cost, made.loads.pub_everywhere, made.loads.sub_everywhere, made.loads.is_monotone)
            )
        cost, pub, sub, alike = np.array(rows).T
        found |= {
            f"{kind}_median_cost": float(np.median(cost)),
            f"{kind}_median_over_pub": round(float(np.median(cost / pub)), 3),
            f"{kind}_median_over_sub": round(float(np.median(cost / sub)), 3),
            f"{kind}_disagree_percent": round(100 * float(1 - alike.mean()), 1),
        }
        say(
            f"{kind}, {draws} draws on 100 brokers: median cost {np.median(cost):.0f}, "
            f"PubE {np.median(pub):.0f}, SubE {np.median(sub):.0f}; "
            f"links disagree in {found[f'{kind}_disagree_percent']} %"
        )
    return found


def protocol(kind: str, size: int) -> dict[str, Any]:
    """All descriptors of a draw join at random brokers' own pace; then one more, then an update."""
    overlay = overlay_from("matchmaker")
    workload = workload_of(overlay, size, 1)
    network = MatchNetwork(
        places_of_parents(overlay.brokers, parents_of(overlay, kind), kind == SHARED), seed=1
    )
    ads, subs = defaultdict(list), defaultdict(list)
    for row in workload.advertisements:
        ads[row.broker].append(Descriptor(row.id, row.client, "sql", row.sql))
    for sub in workload.subscriptions:
        subs[sub.broker].append(Descriptor(sub.id, sub.client, "sql", sub.text))
    for broker in overlay.brokers:
        network.advertise(broker, *ads[broker])
        network.subscribe(broker, *subs[broker])
    _, seconds = timed(network.run)
    made = mark_trees(trees_of(overlay, workload, kind))
    found: dict[str, Any] = {
        "descriptors": len(workload.advertisements) + len(workload.subscriptions),
        "packets": network.traffic.packets,
        "items": dict(sorted(network.traffic.items.items())),
        "descriptors_sent": network.traffic.descriptors,
        "stored": network.stored,
        "optimum": made.cost,
        "pub_everywhere": made.loads.pub_everywhere,
        "sub_everywhere": made.loads.sub_everywhere,
        "seconds": round(seconds, 2),
    }
    last = workload.subscriptions[-1]
    found["join_packets"] = packets(network, last.broker, Descriptor("more", last.client, "sql", last.text))
    found["update_packets"] = packets(
        network, last.broker, Descriptor("more", last.client, "sql", "x < 5000")
    )
    say(
        f"protocol, {kind}, {size} + {size} brokers with {found['descriptors']} descriptors: "
        f"{found['packets']:,} packets, {found['descriptors_sent']:,} descriptors sent, "
        f"{found['stored']:,} stored (optimum {made.cost:,}), "
        f"a join {found['join_packets']} packets, an update {found['update_packets']}, {seconds:.1f} s"
    )
    return found


def packets(network: MatchNetwork, broker: str, sub: Descriptor) -> int:
    before = network.traffic.packets
    network.subscribe(broker, sub)
    network.run()
    return network.traffic.packets - before


def mark_once(overlay: Overlay, workload: Workload) -> Marking:
    return mark_trees(trees_of(overlay, workload, PER_SOURCE))


def workload_of(overlay: Overlay, size: int, seed: int) -> Workload:
    return workload_from(f"matchmaker:publishers={size},subscribers={size}", overlay, seed)


def trees_of(overlay: Overlay, workload: Workload, kind: str) -> MatchTrees:
    arrays = {name: values.tolist() for name, values in workload.arrays.items()}
    f = dict(zip(arrays["publisher_broker"], arrays["f"], strict=True))
    g = dict(zip(arrays["subscriber_broker"], arrays["g"], strict=True))
    if kind == PER_SOURCE:
        return MatchTrees.per_source(overlay, f, g)
    return MatchTrees.shared(len(overlay), core_tree(overlay), f, g)


def core_tree(overlay: Overlay) -> Any:
    """Shortest paths from a transit broker, the paper's core."""
    core = next(i for i, site in enumerate(overlay.sites) if site.role == "transit")
    return shortest_path_tree(overlay, core, "price").links()


def parents_of(overlay: Overlay, kind: str) -> dict[str, dict[str, str]]:
    """The tree of every broker, whoever will publish."""
    names = overlay.brokers
    everyone = dict.fromkeys(range(len(names)), 1)
    if kind == PER_SOURCE:
        trees = MatchTrees.per_source(overlay, everyone, everyone)
    else:
        trees = MatchTrees.shared(len(names), core_tree(overlay), everyone, everyone)
    return {
        names[x]: {names[v]: names[up] for v, up in enumerate(trees.parent[row].tolist()) if up >= 0}
        for row, x in enumerate(trees.origin.tolist())
    }


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    made = run()
    return made, time.perf_counter() - begin


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
