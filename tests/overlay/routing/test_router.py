"""What was priced is what runs: any plan, priced and routed, message for message."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ramify.overlay.routing.router import Router, RoutingPlan
from ramify.overlay.routing.simulator import SimulationResult, Simulator
from ramify.planning.plans.check import _form
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.price import Price, price
from worlds import World, plans, worlds


def same(priced: Price, done: SimulationResult) -> None:
    for name in ("messages", "payload", "wire", "leg_messages"):
        np.testing.assert_array_equal(getattr(priced, name), getattr(done, name), err_msg=name)
    for name in ("matchings", "broker_duplicates", "link_duplicates", "visits", "waste"):
        assert getattr(priced, name) == getattr(done, name), name


@st.composite
def planned(draw: st.DrawFn) -> tuple[World, Plan]:
    world = draw(worlds())
    return world, draw(plans(world))


@given(planned())
def test_any_plan_is_routed_as_it_is_priced_pattern_by_pattern(case: tuple[World, Plan]) -> None:
    world, plan = case
    assert list(_form(plan, world.problem)) == []
    done = Simulator(plan).simulate_demand(world.demand)
    same(price(plan, world.demand), done)


@given(planned())
def test_any_plan_is_routed_as_it_is_priced_batch_by_batch(case: tuple[World, Plan]) -> None:
    world, plan = case
    done = Simulator(plan).simulate_events([world.batch])
    same(price(plan, world.demand), done)
    assert set(done.delivered) <= world.wanted()
    assert all(count == 1 for count in done.delivered.values())


@given(planned())
def test_the_matcher_is_asked_for_the_events_that_count_as_matched_and_no_others(
    case: tuple[World, Plan],
) -> None:
    """A broker that forwards by a channel's number, a label or a carried tree never looks at content."""
    world, plan = case
    asked: Counter[int] = Counter()

    class Watched(Simulator):
        def router(self, broker: int) -> Router:
            known = super().router(broker)
            plain = Router.patterns

            def patterns(events: pa.RecordBatch) -> Any:
                asked[broker] += events.num_rows
                return plain(known, events)

            known.patterns = patterns  # type: ignore[method-assign]
            return known

    done = Watched(plan).simulate_events([world.batch])
    assert asked.total() == done.matchings


@given(planned())
def test_one_copy_hands_over_and_no_broker_needs_to_remember(case: tuple[World, Plan]) -> None:
    world, plan = case
    simulator, routing = Simulator(plan), RoutingPlan(plan)
    remembering = simulator.simulate_events([world.batch])
    knowing = Simulator(plan, once=True).simulate_events([world.batch])
    assert knowing.repeats == 0
    assert np.array_equal(knowing.messages, remembering.messages)
    assert not knowing.delivered - remembering.delivered
    rows = {event: row for row, event in enumerate(world.batch.column("id").to_pylist())}
    class_of = {s.id: k for k, members in enumerate(world.classes.members) for s in members}
    for event, subscription in remembering.delivered - knowing.delivered:
        # a notification told a host about it, but no channel that carries the event serves the class
        one = world.batch.slice(rows[event], 1)
        cell, classes = simulator.pattern_of(one)
        origin = plan.origin_of(one.column("publisher")[0].as_py())
        served = [
            routing.holds(region, cell)
            for c in routing.admitted(origin, cell, classes)
            for _, region in routing.served(c, class_of[subscription])
        ]
        assert not any(served)


@given(planned())
def test_the_pricer_knows_which_subscriptions_are_not_reached(case: tuple[World, Plan]) -> None:
    world, plan = case
    priced = price(plan, world.demand)
    done = Simulator(plan).simulate_events([world.batch])
    members = [len(group) for group in world.classes.members]
    wanted = sum(int(world.demand.count[i]) * len(world.demand[i]) for i in range(len(world.demand)))
    assert priced.deliveries + priced.undelivered == wanted
    if max(members, default=1) == 1 and not any(
        len(c.serves) and (c.serves.at != world.classes.broker[c.serves.classes]).any()
        for c in plan.channels
    ):
        assert len(done.delivered) == priced.deliveries
