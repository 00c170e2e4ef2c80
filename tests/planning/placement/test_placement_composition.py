"""Clients out of a demand, and problems with clients moved: against tallying the moved world itself."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, OverlayError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.placement.composition import access_money, placed, placement_problem
from ramify.planning.placement.local_search import local_search
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from worlds import GRID, SCHEMA, World, worlds


def both(world: World) -> World:
    """Every other subscription is a publisher's own."""
    mixed = tuple(replace(row, client="p0") if i % 2 else row for i, row in enumerate(world.subscriptions))
    return replace(world, subscriptions=mixed)


def by_client(world: World) -> Problem:
    demand = tally(
        [world.batch], world.classes, world.overlay, world.attachments, grid=GRID, by_client=True
    )
    return Problem.of(world.overlay, world.classes, demand, world.attachments, grid=GRID)


def rows(demand: Demand, problem: Problem) -> list[tuple[object, ...]]:
    """Patterns by names, so that class numbers do not matter."""
    classes = problem.classes
    return sorted(
        (
            int(demand.publisher[i]),
            demand.clients[demand.client[i]],
            int(demand.cell[i]),
            sorted(
                (row.id, int(classes.broker[k])) for k in demand[i].tolist() for row in classes.members[k]
            ),
            int(demand.count[i]),
            int(demand.size[i]),
        )
        for i in range(len(demand))
    )


@given(world=worlds(6), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_moved_problem_is_that_of_the_moved_world(world: World, data: st.DataObject) -> None:
    world = both(world)
    problem = by_client(world)
    clients = sorted({row.client for row in world.subscriptions} | set(world.attachments))
    brokers = st.sampled_from(world.overlay.brokers)
    where = {c: data.draw(brokers) for c in clients if data.draw(st.booleans())}
    moved = placed(problem, where)
    there = World(
        world.overlay,
        tuple(replace(row, broker=where.get(row.client, row.broker)) for row in world.subscriptions),
        {**world.attachments, **where},
        world.events,
    )
    again = by_client(there)
    assert rows(moved.demand, moved) == rows(again.demand, again)
    assert moved.classes.class_of.keys() == again.classes.class_of.keys()
    assert moved.attachments == there.attachments
    plan = make_plan("mst", moved, 1)
    assert price(plan, moved.demand).money == pytest.approx(
        price(make_plan("mst", again, 1), again.demand).money
    )


@given(world=worlds(6))
@settings(max_examples=60, deadline=None)
def test_users_send_and_receive_what_the_events_say(world: World) -> None:
    world = both(world)
    problem = by_client(world)
    clients = {row.client for row in world.subscriptions} | {e.publisher for e in world.events}
    if not clients:
        return
    users = placement_problem(problem)
    assert set(users.users) == clients
    filters = [(row.client, row.parse(SCHEMA.attributes)) for row in world.subscriptions]
    sent = dict.fromkeys(users.users, 0)
    got = dict.fromkeys(users.users, 0)
    for event in world.events:
        sent[event.publisher] += 1
        for client in {c for c, f in filters if f.holds(event.values)} - {event.publisher}:
            got[client] += 1
            u, cell = users.users.index(client), GRID.cell(event.values)
            assert users.subscribed[u, cell]
    counted = replace(problem.demand, size=np.zeros_like(problem.demand.size))
    plain = placement_problem(replace(problem, demand=counted))
    assert dict(zip(plain.users, plain.rate_out.tolist(), strict=True)) == sent
    assert dict(zip(plain.users, plain.rate_in.tolist(), strict=True)) == got


@given(world=worlds(6))
@settings(max_examples=20, deadline=None)
def test_a_placement_at_hand_plans_and_prices(world: World) -> None:
    problem = by_client(world)
    if not len(problem.demand):
        return
    users = placement_problem(problem)
    best = local_search(users, np.random.default_rng(1))
    assert access_money(users, best) == pytest.approx(best.access / 1e9)
    moved = placed(problem, best.names(users))
    assert price(make_plan("spt", moved, 1), moved.demand).money >= 0


@given(world=worlds(5))
@settings(max_examples=20, deadline=None)
def test_who_may_not_move_stays(world: World) -> None:
    problem = by_client(world)
    if not len(problem.demand):
        return
    users = placement_problem(problem, stay=True)
    assert (users.allowed.sum(axis=1) == 1).all()
    best = local_search(users, np.random.default_rng(1))
    for client, broker in best.names(users).items():
        assert problem.attachments.get(client, broker) == broker
    one = users.users[0]
    given_price = {(one, name): 1.0 + i for i, name in enumerate(problem.overlay.brokers)}
    some = placement_problem(problem, access=given_price)
    assert some.access_price[0].tolist() == [1.0 + i for i in range(len(problem.overlay))]
    assert (some.allowed[1:].sum(axis=1) == 1).all()


def test_faults_are_named() -> None:
    overlay = Overlay.build("two", ["a", "b"], [Link("a", "b", 1.0, 1.0, 1.0)])
    wanted = Subscription("s", "c", "b", sql="x < 5")
    event = Event(id="e", publisher="p", time=datetime(2026, 1, 1, tzinfo=UTC), attributes={"x": 1})
    problem = by_client(World(overlay, (wanted,), {"p": "a", "c": "b"}, (event,)))
    with pytest.raises(OverlayError, match="nowhere"):
        placed(problem, {"p": "nowhere"})
    with pytest.raises(InputError, match="does not exist"):
        placement_problem(problem, access={("nobody", problem.overlay.brokers[0]): 1.0})
    with pytest.raises(InputError, match="has no such broker"):
        placement_problem(problem, capacity={"nowhere": 1.0})
    with pytest.raises(InputError, match="grid"):
        placement_problem(replace(problem, grid=None))
    nameless = replace(problem.demand, client=np.full(len(problem.demand), -1, dtype=np.int32))
    with pytest.raises(InputError, match="by client"):
        placement_problem(replace(problem, demand=nameless))
    with pytest.raises(InputError, match="publishing clients"):
        placed(replace(problem, demand=nameless), {"p": "b"})
