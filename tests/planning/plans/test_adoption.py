"""A plan from before, on the problem as it is now: same channels, present numbers and prices."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import PlanError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.plans.adoption import adopt
from ramify.planning.plans.check import check, faults
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from worlds import SCHEMA, World, plans, worlds


def dearer(overlay: Overlay) -> Overlay:
    return Overlay(overlay.name, overlay.brokers, overlay.ends, overlay.price * 10, overlay.latency_ms)


def reordered(world: World) -> World:
    return replace(world, subscriptions=world.subscriptions[::-1])


@st.composite
def planned(draw: st.DrawFn) -> tuple[World, Plan]:
    world = draw(worlds())
    return world, draw(plans(world))


@given(planned())
def test_any_plan_routes_as_before_when_subscriptions_are_listed_in_another_order(
    case: tuple[World, Plan],
) -> None:
    world, plan = case
    other = reordered(world)
    again = adopt(decode_plan(encode_plan(plan)), other.problem)
    before, after = price(plan, world.demand), price(again, other.demand)
    np.testing.assert_array_equal(before.wire, after.wire)
    first = Simulator(plan).simulate_events([world.batch])
    second = Simulator(again).simulate_events([other.batch])
    assert first.delivered == second.delivered


@given(worlds())
def test_a_plan_that_numbers_classes_in_another_way_is_refused_until_it_is_taken_up(world: World) -> None:
    plan = make_plan("mst", world.problem)
    other = reordered(world)
    moved = any(other.classes.class_of[id_] != k for id_, k in world.classes.class_of.items())
    assert any("adopt" in fault for fault in faults(plan, other.problem)) == moved
    check(adopt(plan, other.problem), other.problem)


@given(worlds(symmetric=True))
def test_a_plan_is_priced_at_the_prices_of_today(world: World) -> None:
    plan = make_plan("explicit", world.problem)
    now = replace(world, overlay=dearer(world.overlay))
    again = check(adopt(plan, now.problem), now.problem)
    assert price(again, now.demand).cost == pytest.approx(10 * price(plan, world.demand).cost)


def test_what_is_not_the_same_is_named() -> None:
    overlay = Overlay.from_arrays("two", ["a", "b"], [(0, 1)])
    rows = (Subscription("s", "c", "a", sql="x < 5"),)
    world = World(overlay, rows, {}, ())
    plan = make_plan("mst", world.problem)
    for changed, said in (
        (replace(world, subscriptions=(Subscription("s", "c", "b", sql="x < 5"),)), "another broker now"),
        (replace(world, subscriptions=(Subscription("s", "c", "a", sql="x < 6"),)), "another filter now"),
        (replace(world, subscriptions=()), "which is unknown"),
        (replace(world, subscriptions=(*rows, Subscription("t", "c", "a", sql="x < 6"))), "does not know"),
        (replace(world, overlay=Overlay.from_arrays("two", ["b", "a"], [(0, 1)])), "other brokers"),
    ):
        with pytest.raises(PlanError, match=said):
            adopt(plan, changed.problem)
    assert SCHEMA.attributes
