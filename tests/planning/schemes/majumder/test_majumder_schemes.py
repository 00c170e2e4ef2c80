"""single, mult, mult2, hybrid: every event of any demand arrives, and plans cost what was planned."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LimitError
from ramify.network.graphs.examples import majumder_i3
from ramify.network.graphs.generators import line, random_overlay, ring
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.network.trees.trees import Tree
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.plan import AnyOf, Plan, Pruning
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes import baselines
from ramify.planning.schemes.majumder import hybrid, mult, mult2, single
from ramify.planning.schemes.majumder.compute_tree import TreeMaker
from ramify.planning.schemes.majumder.grouping import Ledger, agglomerate
from ramify.planning.schemes.scheme import silent
from ramify.workloads.catalog import workload_from

SCHEMA = {"keywords": AttributeType.STRINGS}
Make = Callable[[Problem], Plan]


def made(module: Any, params: Any, seed: int = 1) -> Make:
    return lambda problem: module.plan(problem, params, np.random.default_rng(seed), silent)


SCHEMES: dict[str, Make] = {
    "single": made(single, single.SingleParams()),
    "single akpw": made(single, single.SingleParams(tree="akpw")),
    "single-swap": made(single, single.SingleParams(tree="swap")),
    "mult": made(mult, mult.MultParams()),
    "mult-swap": made(mult, mult.MultParams(tree="swap")),
    "mult of two trees": made(mult, mult.MultParams(most_trees=2)),
    "mult2": made(mult2, mult2.Mult2Params()),
    "mult2-swap": made(mult2, mult2.Mult2Params(tree="swap")),
    "hybrid": made(hybrid, hybrid.HybridParams(clusters=4)),
}
every_scheme = pytest.mark.parametrize("name", SCHEMES)


def classes_at(overlay: Overlay, hosts: list[int]) -> Classes:
    rows = [
        Subscription(f"s{i}", f"c{i}", overlay.brokers[host], keywords=(f"k{i // 2}", f"own{i}"))
        for i, host in enumerate(hosts)
    ]
    return Classes.collapse(rows, overlay, SCHEMA)


def random_demand(rng: np.random.Generator, brokers: int, classes: int, patterns: int) -> Demand:
    rows = []
    for _ in range(patterns if classes else 0):
        matched = rng.choice(classes, size=int(rng.integers(0, min(classes, 4) + 1)), replace=False)
        rows.append((int(rng.integers(brokers)), matched.tolist(), int(rng.integers(1, 4)), 0))
    return Demand.of(rows)


def problem_from(seed: int, brokers: int, hosts: int, patterns: int, prices: list[float]) -> Problem:
    rng = np.random.default_rng(seed)
    flat = random_overlay(brokers, seed, links=min(2 * brokers, brokers * (brokers - 1) // 2))
    links = [
        Link(flat.brokers[a], flat.brokers[b], *rng.choice(prices, size=2).tolist(), 1.0)
        for a, b in flat.ends.tolist()
    ]
    overlay = Overlay.build("drawn", flat.brokers, links)
    classes = classes_at(overlay, rng.integers(brokers, size=hosts).tolist())
    return Problem.of(overlay, classes, random_demand(rng, brokers, len(classes), patterns))


def require_right(plan: Plan, problem: Problem, demands: list[Demand]) -> None:
    """Spanning trees, every class in one channel, everything delivered."""
    served = np.concatenate([np.empty(0), *(channel.serves.classes for channel in plan.channels)])
    assert sorted(served.tolist()) == list(range(len(problem.classes)))
    for channel in plan.channels:
        assert channel.tree is not None
        assert channel.pruning is Pruning.FILTER
        assert channel.admits.content == AnyOf()
        assert len(Tree.of_links(len(problem.overlay), channel.tree.links, 0)) == len(problem.overlay)
    for demand in demands:
        assert price(plan, demand).undelivered == 0


@every_scheme
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    brokers=st.integers(1, 12),
    hosts=st.integers(0, 10),
    patterns=st.integers(0, 15),
    prices=st.sampled_from([[1.0], [0.0], [0.0, 0.0, 4.0], [1.0, 2.0, 8.0]]),
)
def test_every_event_of_any_demand_arrives(
    name: str, seed: int, brokers: int, hosts: int, patterns: int, prices: list[float]
) -> None:
    problem = problem_from(seed, brokers, hosts, patterns, prices)
    other = random_demand(np.random.default_rng(seed + 1), brokers, len(problem.classes), 40)
    require_right(SCHEMES[name](problem), problem, [problem.demand, other])


def odd_problems() -> dict[str, Problem]:
    alone, path, circle = line(1), line(4), ring(5)
    free = Overlay.build("free", ["a", "b", "c"], [Link.symmetric("a", "b", 0.0), Link.symmetric("b", "c")])
    return {
        "one broker, no links": Problem.of(
            alone, classes_at(alone, [0, 0]), Demand.of([(0, [0, 1], 3, 30)])
        ),
        "one broker, nothing at all": Problem.of(alone, classes_at(alone, []), Demand.of([])),
        "no classes": Problem.of(path, classes_at(path, []), Demand.of([(1, [], 2, 0)])),
        "no demand": Problem.of(path, classes_at(path, [0, 3, 3]), Demand.of([])),
        "one class": Problem.of(circle, classes_at(circle, [2]), Demand.of([(0, [0], 1, 1)])),
        "all at the publisher's": Problem.of(
            circle, classes_at(circle, [2, 2, 2]), Demand.of([(2, [0, 1, 2], 9, 0), (2, [1], 1, 0)])
        ),
        "links for nothing": Problem.of(
            free, classes_at(free, [1, 2]), Demand.of([(0, [0], 1, 1), (0, [1], 1, 1), (1, [0, 1], 1, 1)])
        ),
    }


@every_scheme
@pytest.mark.parametrize("which", odd_problems())
def test_odd_problems_get_the_obvious_plan(name: str, which: str) -> None:
    problem = odd_problems()[which]
    plan = SCHEMES[name](problem)
    brokers = range(len(problem.overlay))
    every = Demand.of([(b, range(len(problem.classes)), 1, 1) for b in brokers])
    require_right(plan, problem, [problem.demand, every])
    if which in ("no demand", "one class", "all at the publisher's", "one broker, no links"):
        assert len(plan.channels) == 1
    if not len(problem.classes):
        assert not plan.channels


@every_scheme
def test_the_same_seed_makes_the_same_plan(name: str) -> None:
    problem = problem_from(11, 14, 12, 40, [1.0])
    again = problem_from(11, 14, 12, 40, [1.0])
    assert SCHEMES[name](problem).channels == SCHEMES[name](again).channels


@pytest.mark.parametrize("name", ["mult", "mult2", "hybrid"])
@pytest.mark.parametrize("seed", range(3))
def test_the_planned_cost_is_the_price_of_the_plan(name: str, seed: int) -> None:
    """Empty events count one each, so the planned cost is the number of messages."""
    problem = problem_from(seed, 20, 16, 60, [1.0])
    plan = SCHEMES[name](problem)
    assert plan.settings["planned_cost"] == price(plan, problem.demand).message_count


@pytest.mark.parametrize("name", ["single", "mult", "mult2"])
def test_swaps_make_no_plan_dearer(name: str) -> None:
    problem = problem_from(4, 40, 30, 120, [1.0])
    plain, better = (price(SCHEMES[n](problem), problem.demand) for n in (name, f"{name}-swap"))
    assert better.message_count <= plain.message_count
    assert better.plan.scheme == f"{name}-swap"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["single", "mult", "mult2"])
def test_swaps_make_no_plan_dearer_at_the_price_of_each_direction(name: str, seed: int) -> None:
    problem = problem_from(seed, 30, 24, 100, [1.0, 2.0, 8.0])
    problem = replace(problem, demand=replace(problem.demand, size=1_000 * problem.demand.count))
    plain, better = (price(SCHEMES[n](problem), problem.demand).cost for n in (name, f"{name}-swap"))
    assert better <= plain


@pytest.mark.parametrize("seed", range(4))
def test_one_swapped_tree_is_no_dearer_than_the_usual_ones_at_the_price_of_each_direction(
    seed: int,
) -> None:
    """Swaps that begin from the low-stretch tree alone may end above these: by 7 % in one case seen."""
    problem = problem_from(seed, 30, 24, 100, [1.0, 2.0, 8.0])
    problem = replace(problem, demand=replace(problem.demand, size=1_000 * problem.demand.count))
    found = price(SCHEMES["single-swap"](problem), problem.demand).cost
    rng = np.random.default_rng(seed)
    usual = [
        baselines.mst(problem, baselines.NoParams(), rng),
        baselines.spt(problem, baselines.SptParams("best"), rng),
    ]
    assert found <= min(price(plan, problem.demand).cost for plan in usual)


@pytest.mark.parametrize("most_trees", [None, 1, 3])
def test_mult_keeps_the_cheapest_configuration_of_the_merge_sequence(most_trees: int | None) -> None:
    problem = problem_from(8, 16, 14, 50, [1.0])
    plan = mult.plan(problem, mult.MultParams(most_trees=most_trees), np.random.default_rng(1))
    sequence = agglomerate(problem.demand, len(problem.classes))
    costs = {}
    for step in range(sequence.clusters):
        ledger = Ledger(problem, TreeMaker(problem))
        if most_trees is None or sequence.clusters - step <= most_trees:
            costs[step] = sum(group.cost for group in ledger.start(sequence.after(step)))
    assert plan.settings["planned_cost"] == min(costs.values())
    assert plan.settings["merges"] == max(step for step in costs if costs[step] == min(costs.values()))
    assert len(plan.channels) <= (most_trees or sequence.clusters)


@pytest.mark.parametrize("name", ["mult", "mult2", "hybrid"])
def test_example_i3_two_trees_are_found_where_they_beat_one(name: str) -> None:
    example = majumder_i3(8)
    index, wants = example.overlay.index, list(example.subscriptions.values())
    hosts = [index[v] for group in wants for v in group]
    rows = [
        Subscription(f"s{i}", f"c{i}", example.overlay.brokers[host], keywords=("one" if i < 4 else "two",))
        for i, host in enumerate(hosts)
    ]
    classes = Classes.collapse(rows, example.overlay, SCHEMA)
    demand = Demand.of([(0, range(4), 1, 1), (0, range(4, 8), 1, 1)])
    plan = SCHEMES[name](Problem.of(example.overlay, classes, demand))
    assert price(plan, demand).message_count == example.costs["two_trees"]
    assert len(plan.channels) == 2


def test_localised_keywords_cost_within_a_tenth_of_a_tree_per_event_and_less_when_merged_by_gain() -> None:
    """The shape of the paper's section VII on a small instance: mult within 10 %, mult2 below it."""
    overlay = overlay_from("majumder:100")
    workload = workload_from("majumder:x=5,keywords=60,per=broker_keyword,events=500", overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    demand = tally(workload.batches(), classes, overlay, workload.attachments)
    problem = Problem.of(overlay, classes, demand, workload.attachments)
    by_overlap = price(SCHEMES["mult"](problem), demand)
    by_gain = price(made(hybrid, hybrid.HybridParams(clusters=60))(problem), demand)
    assert by_overlap.over_opt < 1.10
    assert by_gain.cost <= by_overlap.cost


@pytest.mark.parametrize(
    "make",
    [
        made(mult, mult.MultParams(seconds=1e-9)),
        made(mult, mult.MultParams(seconds=1e-9, most_trees=2)),
        made(mult2, mult2.Mult2Params(seconds=1e-9)),
        made(hybrid, hybrid.HybridParams(seconds=1e-9)),
        made(single, single.SingleParams(seconds=1e-9, tree="swap")),
        made(mult2, mult2.Mult2Params(seconds=1e-9, tree="swap")),
    ],
)
def test_a_plan_that_ran_out_of_time_says_so_and_is_right(make: Make) -> None:
    problem = problem_from(2, 12, 10, 30, [1.0])
    plan = make(problem)
    assert plan.settings["cut_short"] is True
    assert "planned_cost" not in plan.settings
    assert len(plan.channels) <= plan.settings.get("most_trees", len(problem.classes))
    require_right(plan, problem, [problem.demand])


def test_mult2_refuses_to_start_with_more_groups_than_allowed() -> None:
    problem = problem_from(2, 12, 10, 30, [1.0])
    with pytest.raises(LimitError, match="Use hybrid"):
        mult2.plan(problem, mult2.Mult2Params(most_start=3), np.random.default_rng(1))


@pytest.mark.parametrize(
    ("params", "values", "allowed"),
    [
        (single.SingleParams, {"tree": "oak"}, "star, akpw, swap"),
        (single.SingleParams, {"seconds": -1.0}, "more than 0"),
        (mult.MultParams, {"most_trees": 0}, "1 or more"),
        (mult2.Mult2Params, {"most_start": 0}, "1 or more"),
        (hybrid.HybridParams, {"clusters": 0}, "1 or more"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    params: type, values: dict[str, Any], allowed: str
) -> None:
    with pytest.raises(InputError, match=allowed):
        params(**values)
