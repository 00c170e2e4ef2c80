"""Planning: how close the schemes come to the optimum, and how long they take.

On majumder's localised data (x = 2 %, 10,000 documents, 1,000 keywords) on a transit-stub overlay of
500 brokers: mult in sample, a portfolio of 16 trees held out, auto's choice against the best scheme on
a split that neither saw, and the bound, each against `opt`, a Steiner tree per document. Then the
Steiner kernel beside rustworkx on the same sets, mult at 5,000 brokers in a process of its own (time
and memory), and its time as brokers, subscriptions and documents double. SemCast on its own model (600
brokers, 7,000 distinct profiles, 10,000 messages) and Kyra on its own (500 brokers on 2,500 routers, the
clique size of its Table III read as milliseconds and as servers): the time of a plan once the kernels are
compiled, checked and priced, and how it grows. Growth is the slope of log time against log size, over four
sizes, each the best of three runs without what a run before left in the problem.

    python benchmarks/planning.py --quick     one seed, about two minutes
    python benchmarks/planning.py             three seeds, every scheme, more sets

The last line is one JSON object; the exit code is 1 when a limit is broken. Ratios hold on a busy
machine; times less so.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import rustworkx as rx

from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.network.trees.steiner import Steiner
from ramify.planning.choosing.weigh import weigh
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally, tally
from ramify.planning.plans.check import check
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import Yardstick
from ramify.planning.pricing.measures import measures
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import SCHEMES, make_plan
from ramify.planning.schemes.shared.grids import grid_for
from ramify.workloads.catalog import workload_from

LIMITS = {  # key -> the limit, and whether it is the most (or else the least) that is allowed
    "mult_over_opt": (1.10, True),
    "portfolio16_heldout_over_opt": (1.05, True),
    "auto_over_best_heldout": (1.01, True),
    "bound_over_opt": (0.97, False),
    "steiner_speedup_500": (100, False),
    "steiner_speedup_5000": (100, False),
    "mult_5000_s": (120, True),
    "mult_5000_gb": (4, True),
    "semcast_600_s": (60, True),
    "kyra_500_s": (20, True),
}
DATA = "majumder:x=2,keywords=1000,events=10000"
SHARES = (0.5, 0.25, 0.25)
# clients pick profiles with replacement: of 11,200 made, 11,200 clients pick about 7,100
SEMCAST = {"brokers": 600, "clients": 11_200, "events": 10_000}
SEMCAST_PROFILES = 7_000
SEMCAST_GROWTH = {"brokers": 150, "clients": 800, "events": 2_000}
KYRA = {"values": 1_000, "events": 10_000}
# Table III at 10 % interest; the paper's own figures, as shares of FBR's
KYRA_READINGS = {
    "100 ms": "kyra:max_distance=100,trees=20,max_servers=500,ring_limit=500",
    "100 servers": "kyra:max_distance=1000000,trees=20,max_servers=100,ring_limit=500",
}
KYRA_PAPER = {"storage": 0.20, "processing": 0.46, "node_stress": 0.78, "link_stress": 0.98, "nru": 1.16}
DOUBLINGS = 3
REPEATS = 3
# kinds of SemCast and Kyra that differ in detail only
NOT_QUICK = {f"semcast-{kind}" for kind in ("merge", "o", "filter", "delay", "best")} | {"kyra-balanced"}
MULT_5000 = "majumder:x=2,keywords=1000,events=10000,per=broker_keyword"


def main() -> None:
    options = argparse.ArgumentParser(description="See the top of the file.")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--mult-5000", action="store_true", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.mult_5000:
        print(json.dumps(mult_5000()))
        return
    seeds = [1] if asked.quick else [1, 2, 3]
    result: dict[str, Any] = {"quick": asked.quick, "seeds": seeds}
    quality = [costs(seed, asked.quick) for seed in seeds]
    for key in quality[0]:
        values = [row[key] for row in quality]
        result[key] = values[0] if isinstance(values[0], dict) else round(max_of(key, values), 4)
    for brokers, sets in ((500, 400), (5000, 40)) if asked.quick else ((500, 4000), (5000, 300)):
        result |= steiner(brokers, sets)
    result |= in_own_process()
    result["exponents"] = exponents(asked.quick)
    result |= semcast(asked.quick)
    result |= kyra()
    missed = [key for key, (limit, most) in LIMITS.items() if (result[key] > limit) == most]
    for key in missed:
        say(f"LIMIT BROKEN: {key} = {result[key]}, allowed: {LIMITS[key][0]}")
    print(json.dumps(result))
    sys.exit(1 if missed else 0)


def max_of(key: str, values: list[float]) -> float:
    """The worst seed: the largest ratio, or the smallest bound."""
    return min(values) if key == "bound_over_opt" else max(values)


def windows(overlay: Overlay, spec: str, seed: int) -> tuple[Problem, ...]:
    """The same problem on the whole log and on three random parts of it."""
    workload = workload_from(spec, overlay, seed)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    counted = Tally(classes, overlay, workload.attachments, split=Split(SHARES, seed=seed))
    for batch in workload.batches():
        counted.add(batch)
    windows = counted.windows()
    demands = (windows.whole, *windows.parts)
    return tuple(Problem.of(overlay, classes, demand, workload.attachments) for demand in demands)


def costs(seed: int, quick: bool) -> dict[str, Any]:
    overlay = overlay_from("majumder:500")
    whole, train, validation, test = windows(overlay, DATA, seed)
    yardsticks = [Yardstick(p.overlay, p.classes, p.demand) for p in (whole, train, validation, test)]
    found: dict[str, Any] = {}
    by_keyword, *_ = windows(overlay, f"{DATA},per=broker_keyword", seed)
    readings = {"one subscription per broker": whole, "one per broker and keyword": by_keyword}
    found["mult_over_opt"] = max(mult_over_opt(problem, name, seed) for name, problem in readings.items())
    found["bound_over_opt"] = yardsticks[0].bound.value / yardsticks[0].opt
    say(f"bound: {found['bound_over_opt']:.4f} of opt ({yardsticks[0].bound.certified:,} sets)")
    portfolio, seconds = timed(lambda: make_plan("portfolio:trees=16", train, seed))
    found["portfolio16_heldout_over_opt"] = price(portfolio, test.demand, yardsticks[3]).over_opt
    say(
        f"portfolio of {len(portfolio.channels)} trees, held out: "
        f"{found['portfolio16_heldout_over_opt']:.4f} of opt in {seconds:.1f} s"
    )
    names = [n for n, s in SCHEMES.items() if n != "hub" and not (quick and (s.slow or n in NOT_QUICK))]
    outcome, seconds = timed(
        lambda: weigh(train, validation.demand, test.demand, [with_budget(n) for n in names], seed=seed)
    )
    on_test = {row.name: row.test.money for row in outcome.rows if row.test is not None}
    assert outcome.chosen is not None
    assert outcome.chosen.test is not None
    found["auto_over_best_heldout"] = outcome.chosen.test.money / min(on_test.values())
    found["heldout_over_opt"] = {
        row.name: round(row.test.over_opt, 4) for row in outcome.rows if row.test is not None
    }
    say(
        f"auto chose {outcome.chosen.name} of {len(names)} schemes: "
        f"{found['auto_over_best_heldout']:.4f} of the best on unseen documents, {seconds:.1f} s"
    )
    for name, ratio in sorted(found["heldout_over_opt"].items(), key=lambda item: item[1]):
        say(f"    {name:24s} {ratio:8.4f}")
    return found


def mult_over_opt(problem: Problem, reading: str, seed: int) -> float:
    """In sample. The paper's text allows both readings of who subscribes."""
    plan, seconds = timed(lambda: make_plan("mult", problem, seed))
    ratio = price(plan, problem.demand).over_opt
    say(
        f"mult, {reading} ({len(problem.classes.class_of):,}), {problem.demand.events:,} documents: "
        f"{ratio:.4f} of opt in {seconds:.1f} s, {len(plan.channels)} trees"
    )
    return ratio


def with_budget(name: str) -> str:
    return f"{name}:seconds=10" if "seconds" in SCHEMES[name].params.__dataclass_fields__ else name


def steiner(brokers: int, count: int) -> dict[str, Any]:
    """The kernel beside rustworkx on the documents' own destination sets, both warm, same sets."""
    overlay = overlay_from(f"majumder:{brokers}")
    (whole, *_) = windows(overlay, DATA, 1)
    rng = np.random.default_rng(1)
    sets = whole.sets.take(np.sort(rng.choice(len(whole.sets), min(count, len(whole.sets)), replace=False)))
    graph = rx.PyGraph()
    graph.add_nodes_from(range(brokers))
    graph.add_edges_from([(int(a), int(b), 1.0) for a, b in overlay.ends])
    prepared = Steiner.of(overlay, "hops")
    prepared.trees(sets)  # compiled
    ours, theirs = [], []
    for _ in range(2):  # side by side; the best of each counts
        ours_found, seconds = timed(lambda: prepared.trees(sets))
        ours.append(seconds / len(sets))
        trees, seconds = timed(
            lambda: [rx.steiner_tree(graph, sets[i].tolist(), weight_fn=float) for i in range(len(sets))]
        )
        theirs.append(seconds / len(sets))
    mine_cost = float(ours_found.cost.mean())
    their_cost = float(np.mean([tree.num_edges() for tree in trees]))
    speedup = min(theirs) / min(ours)
    say(
        f"Steiner trees at {brokers:,} brokers, {len(sets)} sets of {np.diff(sets.start).mean():.1f}: "
        f"{1e6 * min(ours):.1f} us and cost {mine_cost:.3f}; rustworkx {1e6 * min(theirs):,.0f} us and "
        f"{their_cost:.3f}: {speedup:,.0f}x"
    )
    assert mine_cost <= their_cost, "the kernel must not pay for its speed with cost"
    return {
        f"steiner_speedup_{brokers}": round(speedup, 1),
        f"steiner_cost_ratio_{brokers}": round(mine_cost / their_cost, 4),
    }


def mult_5000() -> dict[str, float]:
    """mult at 5,000 brokers, 10,000 subscriptions, a 3 % sample; compiled code is loaded before."""
    small = overlay_from("majumder:60")
    make_plan("mult", sampled(small, "majumder:x=20,keywords=60,per=broker_keyword", 100), 1)
    overlay = overlay_from("majumder:5000")
    problem = sampled(overlay, MULT_5000, 300)
    plan, seconds = timed(lambda: make_plan("mult", problem, 1))
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    subscriptions = len(problem.classes.class_of)
    return {
        "mult_5000_s": round(seconds, 2),
        "mult_5000_gb": round(peak_kb * 1024 / 1e9, 2),
        "mult_5000_subscriptions": subscriptions,
        "mult_5000_trees": len(plan.channels),
        "mult_5000_over_opt": round(price(plan, problem.demand).over_opt, 4),
    }


def sampled(overlay: Overlay, spec: str, documents: int) -> Problem:
    workload = workload_from(spec, overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    demand = tally(workload.batches(0, documents), classes, overlay, workload.attachments)
    return Problem.of(overlay, classes, demand, workload.attachments)


def in_own_process() -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--mult-5000"], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    say(
        "mult at 5,000 brokers, {mult_5000_subscriptions:,} subscriptions, 300 documents: {mult_5000_s} s, "
        "{mult_5000_gb} GB at most, {mult_5000_trees} trees".format(**found)
    )
    return found


def growth(name: str, what: str, made: dict[int, Problem], spec: str) -> dict[str, Any]:
    """How the time of a plan grows with a size, over problems of several sizes."""
    times = [
        min(timed(partial(make_plan, spec, replace(problem), 1))[1] for _ in range(REPEATS))
        for problem in made.values()
    ]
    slope = float(np.polyfit(np.log(list(made)), np.log(times), 1)[0])
    shown = ", ".join(f"{t:.3f}" for t in times)
    say(f"{name}, {what} {list(made)}: {shown} s, exponent {slope:.2f}")
    return {"exponent": round(slope, 2), "sizes": list(made), "seconds": [round(t, 4) for t in times]}


def doubled(base: int) -> list[int]:
    return [base << k for k in range(DOUBLINGS + 1)]


def exponents(quick: bool) -> dict[str, Any]:
    """mult's growth, from smaller sizes with --quick."""
    base = {"brokers": 500, "subscriptions": 1250, "documents": 1250}
    if not quick:
        base = {what: 2 * size for what, size in base.items()}
    first = mult_problem(**base)
    found = {}
    for what in base:
        made = {size: mult_problem(**{**base, what: size}) for size in doubled(base[what])[1:]}
        found[what] = growth("mult", what, {base[what]: first} | made, "mult")
    return found


def mult_problem(brokers: int, subscriptions: int, documents: int) -> Problem:
    spec = f"majumder:x=2,per=broker_keyword,keywords={subscriptions // 10},events={documents}"
    return sampled(overlay_from(f"majumder:{brokers}"), spec, documents)


def semcast_problem(brokers: int, clients: int, events: int) -> Problem:
    """The paper's section 5, with what its publishers sent; as many profiles made as there are clients."""
    overlay = overlay_from(f"semcast:{brokers}")
    spec = f"semcast:clients={clients},selectivity_factor=1,events={events}"
    workload = workload_from(spec, overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    demand = tally(workload.batches(), classes, overlay, workload.attachments)
    return Problem.of(overlay, classes, demand, workload.attachments, publishers=workload.publishers)


def semcast(quick: bool) -> dict[str, Any]:
    """The time of a plan, what it comes to, and its growth."""
    make_plan("semcast", semcast_problem(60, 200, 300), 1)  # compiled
    problem = semcast_problem(**SEMCAST)
    profiles = len({filter_.key for filter_ in problem.classes.filters})
    assert profiles >= SEMCAST_PROFILES, f"{profiles} distinct profiles; draw more clients"
    plan, seconds = timed(lambda: make_plan("semcast", problem, 1))
    _, checking = timed(lambda: check(plan, problem))
    priced, pricing = timed(lambda: price(plan, problem.demand))
    spt = price(make_plan("spt-best", problem, 1), problem.demand)
    say(
        f"semcast at 600 brokers, {profiles:,} distinct profiles of {SEMCAST['clients']:,} clients, "
        f"{problem.demand.events:,} messages: {seconds:.1f} s, {len(plan.channels):,} channels; checked in "
        f"{checking:.1f} s, priced in {pricing:.1f} s: {priced.money / spt.money:.3f} of spt-best"
    )
    base = SEMCAST_GROWTH
    first = semcast_problem(**base)
    grown = {}
    for what in base:
        made = {size: semcast_problem(**{**base, what: size}) for size in doubled(base[what])[1:]}
        grown[what] = growth("semcast", what, {base[what]: first} | made, "semcast")
    found: dict[str, Any] = {
        "semcast_600_s": round(seconds, 2),
        "semcast_600_profiles": profiles,
        "semcast_600_clients": SEMCAST["clients"],
        "semcast_exponents": grown,
    }
    found["semcast_600_over_spt"] = round(priced.money / spt.money, 4)
    # as the paper counts: the way to the rendezvous point is left out
    found["semcast_600_paper_over_spt"] = round(float(plan.settings["paper_cost"]) / spt.message_count, 4)
    if not quick:
        found["semcast_variants"] = {
            name: round(price(make_plan(name, problem, 1), problem.demand).money / spt.money, 4)
            for name in SCHEMES
            if name.startswith("semcast-")
        }
    return found


def kyra_problem(values: int, events: int, overlay: Overlay | None = None) -> Problem:
    """The paper's section V, zipf-uniform, at 10 % interest."""
    overlay = overlay_from("kyra") if overlay is None else overlay
    workload = workload_from(f"kyra:values={values},events={events}", overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    grid = grid_for(classes)
    demand = tally(workload.batches(), classes, overlay, workload.attachments, grid=grid)
    return Problem.of(overlay, classes, demand, workload.attachments, grid=grid)


def kyra() -> dict[str, Any]:
    """The time of a plan, its measures beside FBR's in both readings of Table III, and its growth."""
    make_plan("kyra", kyra_problem(100, 200, overlay_from("plane:30")), 1)  # compiled
    problem = kyra_problem(KYRA["values"], KYRA["events"])
    yardstick = Yardstick(problem.overlay, problem.classes, problem.demand)
    fbr = measures(price(make_plan("fbr", problem, 1), problem.demand, yardstick)).figures()
    told, slowest = {}, 0.0
    for reading, spec in {"default": "kyra", **KYRA_READINGS}.items():
        plan, seconds = timed(partial(make_plan, spec, replace(problem), 1))
        slowest = max(slowest, seconds)
        check(plan, problem)
        mine = measures(price(plan, problem.demand, yardstick)).figures()
        told[reading] = {
            "seconds": round(seconds, 2),
            "largest_clique": plan.settings["largest_clique"],
            **{name: share(mine[key], fbr[key]) for name, key in RATIOS.items()},
        }
        say(f"kyra at 500 brokers on 2,500 routers, {reading}, of FBR's: {told[reading]}")
    ideal = {**yardstick.ideal.figures(), "nru": 1.0}
    beside = {name: share(ideal[key], fbr[key]) for name, key in RATIOS.items() if key in ideal}
    say(f"ideal multicast, of FBR's: {beside}; the paper's Kyra: {KYRA_PAPER}")
    made = {count: kyra_problem(200, 1_000, overlay_from(f"plane:{count}")) for count in doubled(64)}
    return {
        "kyra_500_s": round(slowest, 2),
        "kyra_exponents": {"brokers": growth("kyra", "brokers", made, "kyra")},
        "kyra_over_fbr": told,
        "kyra_paper_over_fbr": KYRA_PAPER,
        "ideal_multicast_over_fbr": beside,
    }


def share(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or not theirs else round(mine / theirs, 3)


RATIOS = {
    "storage": "storage_mean",
    "processing": "processing",
    "node_stress": "node_stress_mean",
    "link_stress": "link_stress_mean",
    "nru": "nru",
}


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    made = run()
    return made, time.perf_counter() - begin


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
