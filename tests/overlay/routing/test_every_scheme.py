"""One suite for all schemes: whatever makes a plan must pass every claim here."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import DisconnectedError, OverlayError
from ramify.network.graphs.distances import arc_weights
from ramify.network.graphs.generators import line
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.network.trees.steiner import exact_cost
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import GB, Yardstick
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import SCHEMES, make_plan
from ramify.workloads.catalog import workload_from
from worlds import GRID, World, worlds

RINGS = ("kyra:max_distance=1000,ring_limit=1", "kyra-mbr:max_distance=1000,ring_limit=1")
"""All brokers in one clique that routes inside over a ring."""
NAMES = (*("hub=v0" if name == "hub" else name for name in SCHEMES), *RINGS)
every_scheme = pytest.mark.parametrize("spec", NAMES)


@every_scheme
@settings(max_examples=12)
@given(world=worlds(), seed=st.integers(0, 3))
def test_everyone_gets_every_event_once_and_every_message_was_priced(
    spec: str, world: World, seed: int
) -> None:
    plan = make_plan(spec, world.problem, seed)
    check(plan, world.problem)
    priced = price(plan, world.demand)
    done = Simulator(plan).simulate_events([world.batch])
    assert set(done.delivered) == world.wanted()
    assert all(count == 1 for count in done.delivered.values())
    assert done.repeats == 0  # nothing had to be held back
    assert Simulator(plan, once=True).simulate_events([world.batch]).delivered == done.delivered
    for name in ("messages", "payload", "wire", "leg_messages"):
        np.testing.assert_array_equal(getattr(priced, name), getattr(done, name), err_msg=name)
    for name in ("matchings", "broker_duplicates", "link_duplicates", "visits", "waste"):
        assert getattr(priced, name) == getattr(done, name), name
    assert priced.undelivered == 0
    assert priced.cost >= priced.yardstick.bound.value - 1e-12


@every_scheme
@settings(max_examples=6)
@given(world=worlds(), other=st.data())
def test_events_and_publishers_that_were_never_seen_are_delivered_too(
    spec: str, world: World, other: st.DataObject
) -> None:
    """Plans are made on a sample; any broker may publish anything afterwards."""
    plan = make_plan(spec, world.problem, 0)
    origin = other.draw(st.integers(0, len(world.overlay) - 1))
    cell = other.draw(st.integers(0, GRID.size - 1))
    # an event that a filter accepts lies in a cell that the filter touches: the grid's guarantee
    can = [k for k, filter_ in enumerate(world.classes.filters) if cell in GRID.cells_touched(filter_)]
    classes = sorted(other.draw(st.sets(st.sampled_from(can))) if can else set())
    simulator = Simulator(plan)
    simulator.publish(origin, cell, tuple(classes), event="new")
    wanted = {("new", row.id) for k in classes for row in world.classes.members[k]}
    assert set(simulator.result.delivered) == wanted


@every_scheme
def test_the_same_seed_makes_the_same_plan(spec: str) -> None:
    problem = _small_problem()
    first = make_plan(_at_home(spec), problem, 7)
    assert encode_plan(first) == encode_plan(make_plan(_at_home(spec), problem, 7))


@every_scheme
def test_a_plan_survives_its_file(spec: str) -> None:
    problem = _small_problem()
    plan = make_plan(_at_home(spec), problem, 1)
    again = decode_plan(encode_plan(plan))
    check(again, problem)
    before, after = price(plan, problem.demand), price(again, problem.demand)
    np.testing.assert_array_equal(before.wire, after.wire)


@every_scheme
@settings(max_examples=10)
@given(world=worlds(5, symmetric=True))
def test_no_plan_is_cheaper_than_the_exact_optimum(spec: str, world: World) -> None:
    """The bound itself is held against the optimum: bound <= optimum <= any plan."""
    plan = make_plan(spec, world.problem, 0)
    yardstick = Yardstick(world.problem.overlay, world.classes, world.demand)
    start, neighbor, _, _ = world.overlay.adjacency
    weight = arc_weights(world.overlay, "price")
    optimum = sum(
        exact_cost(start, neighbor, weight, int(row[0]), row[1:]) * float(yardstick.sets.weight[i])
        for i, row in enumerate(yardstick.sets[i] for i in range(len(yardstick.sets)))
    )
    assert yardstick.bound.value <= optimum / GB + 1e-12
    assert price(plan, world.demand).cost >= optimum / GB - 1e-12


@every_scheme
def test_a_single_broker_needs_no_message(spec: str) -> None:
    overlay = Overlay.build("alone", ["v0"], [])
    problem = _on(overlay, [0])
    plan = check(make_plan(spec, problem, 0), problem)
    assert price(plan, problem.demand).message_count == 0


@every_scheme
def test_without_subscriptions_or_events_there_is_still_a_plan(spec: str) -> None:
    overlay = line(3, name="line")
    renamed = Overlay("line", ["v0", "v1", "v2"], overlay.ends, overlay.price, overlay.latency_ms)
    for hosts, patterns in (([], []), ([2], []), ([], [(0, (), 1, 10)])):
        problem = _on(renamed, hosts, patterns)
        plan = check(make_plan(spec, problem, 0), problem)
        assert price(plan, problem.demand).undelivered == 0


@every_scheme
def test_links_for_nothing_are_no_trouble(spec: str) -> None:
    links = [Link.symmetric(f"v{i}", f"v{(i + 1) % 4}", 0.0) for i in range(4)]
    problem = _on(Overlay.build("free", [f"v{i}" for i in range(4)], links), [1, 2, 3])
    plan = check(make_plan(spec, problem, 0), problem)
    assert price(plan, problem.demand).cost == 0


def test_a_disconnected_overlay_is_refused_by_name() -> None:
    with pytest.raises(DisconnectedError):
        _on(Overlay.build("two", ["v0", "v1"], []), [1])


def test_a_subscription_at_an_unknown_broker_is_refused_by_name() -> None:
    from ramify.content.filters.subscriptions import Subscription

    overlay = Overlay.build("one", ["v0"], [])
    with pytest.raises(OverlayError, match="s1"):
        Classes.collapse([Subscription("s1", "c", "nowhere", sql="x = 1")], overlay, {})


def _on(overlay: Overlay, hosts: list[int], patterns: object = None) -> Problem:
    """One class per host, each wanting every event; events from broker 0."""
    from ramify.content.filters.subscriptions import Subscription

    rows = [Subscription(f"s{i}", f"c{i}", f"v{h}", sql=f"x < {i + 9}") for i, h in enumerate(hosts)]
    classes = Classes.collapse(rows, overlay, {})
    given = [(0, tuple(range(len(hosts))), 2, 20)] if patterns is None else patterns
    return Problem.of(overlay, classes, Demand.of(given))  # type: ignore[arg-type]


@cache
def _small_problem() -> Problem:
    overlay = overlay_from("majumder:40")
    workload = workload_from("majumder:x=20,keywords=60,events=300", overlay, 3)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    demand = tally(workload.batches(), classes, overlay, workload.attachments)
    return Problem.of(overlay, classes, demand, workload.attachments)


def _at_home(spec: str) -> str:
    return f"hub={_small_problem().overlay.brokers[0]}" if spec.startswith("hub") else spec
