"""What a broker keeps of a plan routes as the plan does: read from its form, and after any changes."""

from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.routing.form import decode_routing, encode_routing
from ramify.overlay.routing.plan import AddedSubscription, RemovedSubscription, Revision
from ramify.overlay.routing.router import Frame, RoutedFrame, Router, RoutingPlan
from ramify.planning.choosing.revise import delete_subscription, redo
from ramify.planning.plans.plan import Plan, Stamped
from ramify.planning.schemes.catalog import make_plan
from worlds import FILTERS, World, plans, worlds

SOME = settings(max_examples=60)


def walked(routing: RoutingPlan, batch: pa.RecordBatch, *, once: bool) -> list[Any]:
    """Every answer of every router to a batch that is published at each broker, in order."""
    seen: list[Any] = []
    flight: list[tuple[int, int | None, Frame]] = [
        (broker, None, Frame(batch)) for broker in range(len(routing.plan.overlay))
    ]
    routers = [Router(routing, broker) for broker in range(len(routing.plan.overlay))]
    while flight:
        broker, sender, frame = flight.pop()
        routed: RoutedFrame = routers[broker].route(frame, sender, once=once)
        seen.append(
            (
                broker,
                sender,
                [
                    (to, onward.header, onward.events.column("id").to_pylist())
                    for to, onward in routed.forwards
                ],
                [
                    (hand.class_id, hand.rows.tolist(), routing.receivers(hand.class_id))
                    for hand in routed.deliveries
                ],
                routed.matchings,
            )
        )
        flight += [(to, broker, onward) for to, onward in routed.forwards]
    return seen


def assert_same(one: RoutingPlan, other: RoutingPlan, world: World) -> None:
    assert one.hosts == other.hosts
    assert one.vacant.tolist() == other.vacant.tolist()
    for broker in range(len(one.plan.overlay)):
        assert one.clients_at(broker) == other.clients_at(broker)
    for once in (False, True):
        assert walked(one, world.batch, once=once) == walked(other, world.batch, once=once)


@st.composite
def planned(draw: st.DrawFn) -> tuple[World, Plan]:
    world = draw(worlds())
    return world, draw(plans(world))


def reached(plan: Plan, host: int) -> list[int]:
    """The channels that a class at a broker may join."""
    return [
        c
        for c, channel in enumerate(plan.channels)
        if channel.tree is None or host in channel.tree.brokers.tolist()
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[World, list[Plan], list[Revision]]:
    """Changes of a plan, and the plan after each, by `redo` and `delete_subscription`."""
    world, plan = draw(planned())
    after = [plan]
    changes: list[Revision] = []
    for i in range(draw(st.integers(0, 8))):
        plan = after[-1]
        known = sorted(plan.classes.class_of)
        if known and draw(st.booleans()):
            gone = draw(st.sampled_from(known))
            changes.append(RemovedSubscription(gone))
            after.append(delete_subscription(plan, gone).plan)
            continue
        broker = draw(st.sampled_from(plan.overlay.brokers))
        # an id may come back after it was deleted
        ids = [f"n{i}", *sorted({row.id for row in world.subscriptions} - set(known))]
        row = Subscription(
            draw(st.sampled_from(ids)),
            f"c{draw(st.integers(0, 3))}",
            broker,
            **draw(st.sampled_from(FILTERS)),
        )
        _, k = plan.classes.with_subscription(row, plan.overlay)
        may = reached(plan, plan.overlay.index[broker])
        stamped = {c for c in may if isinstance(plan.channels[c].admits.content, Stamped)}
        chosen = set(draw(st.lists(st.sampled_from(may), unique=True))) if may else set()
        if chosen & stamped:
            chosen |= stamped  # all stamped channels serve the same classes
        channels = tuple(sorted(chosen))
        changes.append(AddedSubscription(row, k, channels))
        after.append(redo(plan, row, k, channels))
    return world, after, changes


@given(histories())
@SOME
def test_a_form_that_is_read_routes_as_the_plan(case: tuple[World, list[Plan], list[Revision]]) -> None:
    world, (*_, plan), _ = case
    assert_same(RoutingPlan.read(encode_routing(plan)), RoutingPlan(plan), world)


@given(histories(), st.data())
@SOME
def test_changes_route_as_the_plan_with_them(
    case: tuple[World, list[Plan], list[Revision]], data: st.DataObject
) -> None:
    world, after, changes = case
    read = data.draw(st.booleans())
    routing = RoutingPlan.read(encode_routing(after[0])) if read else RoutingPlan(after[0])
    at, kept = 0, [(0, routing)]
    while at < len(changes):
        step = data.draw(st.integers(1, len(changes) - at))
        routing = routing.revised(changes[at : at + step])
        at += step
        kept.append((at, routing))
    # earlier ones stay what they were
    for at, made in kept:
        assert_same(made, RoutingPlan(after[at]), world)
    # and may go another way
    again, first = (
        data.draw(st.sampled_from(kept)),
        AddedSubscription(
            Subscription("other", "c9", after[0].overlay.brokers[0], sql="topic = 'b' OR x = 4"),
            0,
        ),
    )
    at, made = again
    new = replace(first, class_id=len(after[at].classes), channels=())
    other = made.revised([new])
    assert_same(other, RoutingPlan(redo(after[at], new.subscription, new.class_id, ())), world)
    assert_same(made, RoutingPlan(after[at]), world)


CHAIN = Overlay.build("chain", ["v0", "v1", "v2"], [Link("v0", "v1", 1, 1, 5), Link("v1", "v2", 1, 1, 5)])
ROWS = tuple(Subscription(f"s{i}", f"c{i % 3}", f"v{i % 3}", **FILTERS[i % 9]) for i in range(9))


@cache
def small_world() -> World:
    events = tuple(Event(id=f"e{i}", publisher="v0", attributes={"topic": "a", "x": i}) for i in range(3))
    return World(CHAIN, ROWS, {row.client: row.broker for row in ROWS}, events)


@cache
def small() -> Plan:
    return make_plan("single", small_world().problem, 1)


@cache
def small_form() -> bytes:
    return encode_routing(small())


def test_two_revisions_of_one_go_their_own_ways() -> None:
    plan = small()
    added = [
        AddedSubscription(Subscription(f"n{i}", "c0", "v0", sql=f"x = {i}"), at, (0,))
        for i, at in enumerate((9, 10, 10))
    ]
    first = RoutingPlan.read(small_form()).revised([added[0]])
    plans = [redo(plan, added[0].subscription, 9, (0,))]
    plans += [redo(plans[0], change.subscription, 10, (0,)) for change in added[1:]]
    for made, wanted in zip(
        [first, first.revised([added[1]]), first.revised([added[2]])], plans, strict=True
    ):
        assert_same(made, RoutingPlan(wanted), small_world())


@pytest.mark.parametrize(
    "change",
    [
        RemovedSubscription("nobody"),
        AddedSubscription(replace(ROWS[0], client="c9"), 0),
        AddedSubscription(Subscription("new", "c0", "v1", sql="x = 1"), 0),
        AddedSubscription(Subscription("new", "c0", "elsewhere", sql="x = 1"), 9),
        AddedSubscription(Subscription("new", "c0", "v0", sql="x = 1"), 99),
        AddedSubscription(Subscription("new", "c0", "v0", sql="x = 1"), 9, (7,)),
    ],
)
def test_changes_of_another_plan_are_refused_as_the_planner_does(change: Revision) -> None:
    plan = small()
    routing = RoutingPlan.read(encode_routing(plan))
    with pytest.raises(InputError):
        routing.revised([change])
    with pytest.raises(InputError):
        routing.revised([RemovedSubscription("s1"), change])
    assert routing.receivers(1) == (("c1", ("s1",)),)


def test_what_is_no_form_is_refused() -> None:
    content = encode_routing(small())
    for wrong in (b"", b"no form", content[:100], content[: len(content) // 2]):
        with pytest.raises(InputError):
            RoutingPlan.read(wrong)
    table = pa.table({"a": [1]}).replace_schema_metadata({"form": "ramify-routing/9"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match="ramify-routing/9"):
        RoutingPlan.read(sink.getvalue().to_pybytes())


@given(st.data())
@settings(max_examples=150)
def test_a_damaged_form_is_refused_or_read(data: st.DataObject) -> None:
    content = bytearray(small_form())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(InputError):
        decode_routing(bytes(content))


def test_filters_and_members_of_the_slim_plan_are_not_silently_empty() -> None:
    classes = RoutingPlan.read(encode_routing(small())).plan.classes
    for name in ("filters", "class_of", "vacant", "latency_ms"):
        with pytest.raises(InputError):
            getattr(classes, name)
    assert len(classes) == 9
    assert np.array_equal(classes.broker, small().classes.broker)
