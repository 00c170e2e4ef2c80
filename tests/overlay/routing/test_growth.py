"""Channels that grow and are pruned while brokers hold different revisions lose and double nothing."""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import PlanError
from ramify.network.graphs.generators import line
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.routing.header_rules import HeaderRules
from ramify.overlay.routing.plan import AddedSubscription, RemovedSubscription, Revision, RoutingPlan
from ramify.overlay.routing.router import Frame, Router
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.choosing.revise import add_subscription, delete_subscription
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.growth import Growth
from ramify.planning.plans.lateness import TooLateError
from ramify.planning.plans.plan import (
    Admission,
    Channel,
    ChannelTree,
    Entry,
    Holds,
    Match,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from worlds import FILTERS, GRID, SCHEMA, World, worlds

SPECS = ["semcast", "semcast-merge", "semcast-noisemerge", "semcast-filter", "kyra", "kyra-mbr", "mbr"]
SPECS += ["semcast-delay", "semcast-delay:late=refuse"]
BOUNDS = st.none() | st.sampled_from([1.0, 4.0, 15.0, 40.0])


@st.composite
def histories(draw: st.DrawFn) -> tuple[World, list[Plan], list[Revision]]:
    """A world, the plans that it goes through, and the revision that leads to each from the one before."""
    world = draw(worlds(7))
    plans = [make_plan(draw(st.sampled_from(SPECS)), world.problem, 0)]
    done: list[Revision] = []
    for i in range(draw(st.integers(1, 6))):
        plan = plans[-1]
        known = sorted(plan.classes.class_of)
        if known and draw(st.booleans()):
            gone = draw(st.sampled_from(known))
            change = delete_subscription(plan, gone)
            done.append(RemovedSubscription(gone, change.growth))
        else:
            broker = draw(st.sampled_from(world.overlay.brokers))
            spelled = draw(st.sampled_from(FILTERS))
            bound = draw(BOUNDS)
            row = Subscription(f"n{i}", f"m{i}", broker, latency_ms=bound, **spelled)  # type: ignore[arg-type]
            try:
                change = add_subscription(plan, row, Demand.of([]))
            except TooLateError:
                assert plan.settings["late"] == "refuse"
                continue
            except PlanError:
                assert plan.scheme == "semcast-delay" or not plan.scheme.startswith("semcast")
                continue
            done.append(AddedSubscription(row, change.class_id, change.channels, change.growth))
        plans.append(change.plan)
    return world, plans, done


def served(plan: Plan, world: World) -> set[tuple[str, str]]:
    """(event, subscription) pairs, by plain evaluation."""
    return {
        (event.id, row.id)
        for event in world.events
        for members in plan.classes.members
        for row in members
        if row.parse(plan.classes.schema).holds(event.values)
    }


@settings(max_examples=30)
@given(histories())
def test_every_revision_serves_exactly_its_subscriptions(
    history: tuple[World, list[Plan], list[Revision]],
) -> None:
    world, plans, done = history
    routing = RoutingPlan(plans[0])
    for plan, change in zip(plans[1:], done, strict=True):
        problem = Problem.of(
            world.overlay, plan.classes, Demand.of([]), plan.attachments, grid=plan.grid or GRID
        )
        check(plan, problem)
        found = Simulator(plan, once=True).simulate_events([world.batch]).delivered
        assert found == Counter(dict.fromkeys(served(plan, world), 1))
        routing = routing.revised([change])
        assert mixed(world, plans, [routing], lambda _: 0) == found


def mixed(world: World, plans: list[Plan], routings: list[RoutingPlan], choose: object) -> Counter[object]:
    """What each subscription gets when `choose` says which revision a broker has at each of its turns."""
    found: Counter[object] = Counter()
    origin_of = plans[0].origin_of
    routers = cache(lambda revision, broker: Router(routings[revision], broker))
    rules = cache(lambda revision, broker: HeaderRules(routings[revision], broker))
    for row, event in enumerate(world.events):
        batch = world.batch.take(pa.array([row]))
        flight: list[tuple[int, int | None, Frame]] = [(origin_of(event.publisher), None, Frame(batch))]
        steps = 0
        while flight:
            steps += 1
            assert steps < 1_000, "an event goes round and round"
            broker, sender, frame = flight.pop(0)
            revision = choose(broker)  # type: ignore[operator]
            if frame.header is not None and sender is not None:
                rules(revision, broker).check(world.overlay.brokers[sender], frame.header)
            routed = routers(revision, broker).route(frame, sender, once=True)
            flight += [(to, broker, onward) for to, onward in routed.forwards]
            for delivery in routed.deliveries:
                for _, ids in routings[revision].receivers(delivery.class_id):
                    found.update((event.id, id_) for id_ in ids for _ in delivery.rows)
    return found


@settings(max_examples=60)
@given(histories(), st.integers(0, 1 << 30))
def test_brokers_with_different_revisions_lose_and_double_nothing(
    history: tuple[World, list[Plan], list[Revision]], seed: int
) -> None:
    """A subscription that every revision serves gets each event once, all others at most once."""
    world, plans, done = history
    routings = [RoutingPlan(plans[0])]
    for change in done:
        routings.append(routings[-1].revised([change]))
    held = dict.fromkeys(range(len(world.overlay)), 0)

    always = set.intersection(*(served(plan, world) for plan in plans))
    ever = set.union(*(served(plan, world) for plan in plans))
    chance = Random(seed)

    def choose(broker: int) -> int:
        held[broker] = chance.choice([held[broker], chance.randrange(held[broker], len(routings))])
        return held[broker]

    for _ in range(4):
        held = dict.fromkeys(held, 0)
        found = mixed(world, plans, routings, choose)
        assert all(count == 1 for count in found.values())
        assert always <= set(found) <= ever


def test_a_broker_that_came_back_by_another_way_takes_events_from_its_parent_alone() -> None:
    """The branch a - b was pruned, b joined again below r. While a holds the old revision, it still sends
    to b, and b must not take the event twice."""
    names = ["r", "a", "b"]
    links = [Link.symmetric(u, v, 1.0) for u, v in (("r", "a"), ("a", "b"), ("r", "b"))]
    overlay = Overlay.build("three", names, links)
    rows = [Subscription(n, n, n, sql="x >= 0") for n in ("a", "b")]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    channel = Channel(
        "one",
        Admission(Holds(Match((0, 1)))),
        Serves.at_hosts([0, 1], classes),
        Pruning.NONE,
        ChannelTree(np.array([[0, 1], [1, 2]], dtype=np.int32), 0),
        Entry.to(0, 3),
    )
    events = (Event(id="e", publisher="r", attributes={"x": 1}, size_bytes=1),)
    world = World(overlay, tuple(rows), {}, events)
    old = RoutingPlan(Plan("semcast", overlay, classes, (channel,)))
    left = old.revised([RemovedSubscription("b", Growth(without=1, pruned=((0, ((1, 2),)),)))])
    again = replace(rows[1], id="b again")
    grown = Growth(like=(1, 0), grown=((0, ((0, 2),)),))
    new = left.revised([AddedSubscription(again, 1, (0,), grown)])
    plans = [Plan("semcast", overlay, classes, (channel,))]
    assert mixed(world, plans, [old, new], lambda broker: 0 if broker == 1 else 1) == Counter(
        {("e", "a"): 1, ("e", "b again"): 1}
    )


@pytest.mark.parametrize("behind", ["publisher", "everyone else"])
def test_a_merged_hierarchy_that_empties_takes_nothing_from_the_other(behind: str) -> None:
    """What was sent on the channel for both, before the last of one left, still reaches the other."""
    overlay = line(12, name="line")
    rows = [
        Subscription("s0", "c0", overlay.brokers[10], sql="x < 6"),
        Subscription("s1", "c1", overlay.brokers[11], sql="x > 1"),
    ]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    seen = Demand.of([(0, (0, 1), 20, 0), (0, (0,), 1, 0), (0, (1,), 1, 0)])
    made = (make_plan("semcast", Problem.of(overlay, classes, seen), seed) for seed in range(20))
    plan = next(plan for plan in made if plan.settings["merges"])
    events = (Event(id="e", publisher=overlay.brokers[0], attributes={"x": 3}, size_bytes=1),)
    world = World(overlay, tuple(rows), {}, events)
    old = RoutingPlan(plan)
    new = old.revised([RemovedSubscription("s1", delete_subscription(plan, "s1").growth)])
    late = 0 if behind == "publisher" else 1
    found = mixed(world, [plan], [old, new], lambda broker: late if broker == 0 else 1 - late)
    assert found["e", "s0"] == 1


def test_an_opened_channel_is_not_rejected_where_it_is_not_known_yet() -> None:
    """A leg carries the numbers of all channels that an event enters: one that is new costs the others
    nothing."""
    from running import seeded_world

    world = seeded_world(2, 5, 8, 30)
    plan = make_plan("semcast", world.problem, 0)
    row = Subscription("new", "new", "v1", sql="topic = 'a' OR x > 100")
    change = add_subscription(plan, row, Demand.of([]))
    assert change.growth.opened
    old = RoutingPlan(plan)
    new = old.revised([AddedSubscription(row, change.class_id, change.channels, change.growth)])
    found = mixed(world, [plan], [old, new], lambda broker: int(broker % 2))
    assert {pair for pair in found if pair[1] != "new"} == served(plan, world)  # type: ignore[index]
    assert np.array_equal(new.hosts[: len(old.hosts)], old.hosts)


@pytest.mark.parametrize("behind", ["a", "b", "c"])
def test_a_leg_of_its_own_to_an_opened_channel_is_no_trouble_where_it_is_not_known_yet(behind: str) -> None:
    """a - b takes 10 ms, by c it takes 2: legs to a channel that opens at b go by c. A broker that is
    behind lets such an event go, and the event of the channel that all know arrives."""
    links = [
        Link.symmetric("a", "b", 1.0, latency_ms=10.0),
        Link.symmetric("a", "c", 1.0, latency_ms=1.0),
        Link.symmetric("c", "b", 1.0, latency_ms=1.0),
    ]
    overlay = Overlay.build("triangle", ["a", "b", "c"], links)
    classes = Classes.collapse([Subscription("s", "s", "c", sql="x = 2")], overlay, SCHEMA.attributes)
    plan = make_plan("semcast-delay", Problem.of(overlay, classes, Demand.of([])), 0)
    row = Subscription("n", "n", "b", sql="x >= 0", latency_ms=2.0)
    change = add_subscription(plan, row, Demand.of([]))
    assert change.plan.leg(0, 1) == (0, 2, 1)
    assert change.late is None
    old = RoutingPlan(plan)
    new = old.revised([AddedSubscription(row, change.class_id, change.channels, change.growth)])
    events = (Event(id="e", publisher="a", attributes={"x": 2}, size_bytes=1),)
    world = World(overlay, (), {}, events)
    late = overlay.index[behind]
    found = mixed(world, [plan], [old, new], lambda broker: int(broker != late))
    assert found["e", "s"] == 1
    assert found["e", "n"] <= 1
    assert mixed(world, [plan], [new], lambda _: 0) == Counter({("e", "s"): 1, ("e", "n"): 1})
