"""Ideal multicast and `opt` over routers, against routes merged by hand and the bound."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from test_pricing import planned_over_routers

from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.underlay import Underlay
from ramify.planning.pricing.bound import Yardstick, steiner_costs
from worlds import World, worlds


def crossed(world: World, below: Underlay | None) -> dict[tuple[int, int], tuple[int, int]]:
    """(link, direction) -> events and bytes: per pattern every link of the routes to its hosts, once."""
    overlay, demand = world.overlay, world.demand
    found = None if below is not None else all_pairs(overlay, "latency")
    total: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(len(demand)):
        origin = int(demand.publisher[i])
        hosts = {int(world.classes.broker[k]) for k in demand[i].tolist()} - {origin}
        arcs = set()
        for host in hosts:
            if found is not None:
                path = found.path(origin, host)
                for a, b in pairwise(path):
                    link = overlay.link_between(overlay.brokers[a], overlay.brokers[b])
                    arcs.add((link, int(overlay.ends[link, 0] != a)))
                continue
            assert below is not None
            at = int(below.attachment[origin])
            for link in below.path(origin, host).tolist():
                access = link - len(below.ends)
                if access >= 0:
                    arcs.add((link, int(access != origin)))
                    continue
                a, b = below.ends[link].tolist()
                arcs.add((link, int(a != at)))
                at = b if a == at else a
        for arc in arcs:
            events, size = total.get(arc, (0, 0))
            total[arc] = events + int(demand.count[i]), size + int(demand.size[i])
    return total


def check_against(world: World, yardstick: Yardstick, below: Underlay | None) -> None:
    ideal = yardstick.ideal
    total = crossed(world, below)
    assert {tuple(arc): int(ideal.messages[tuple(arc)]) for arc in np.argwhere(ideal.messages > 0)} == {
        arc: events for arc, (events, _) in total.items() if events
    }
    latency = world.overlay.latency_ms if below is None else below.link_latency_ms
    prices = world.overlay.price if below is None else below.link_price
    ms = sum(events * float(latency[link]) for (link, _), (events, _) in total.items())
    assert ideal.ms == pytest.approx(ms)
    assert yardstick.merged_unicast_ms == ideal.ms
    money = sum(size * float(prices[arc]) for arc, (_, size) in total.items()) / 1e9
    assert ideal.cost == pytest.approx(money)
    assert ideal.cost >= yardstick.bound.value * (1 - 1e-9) - 1e-18
    assert ideal.events == world.demand.events
    told = ideal.figures()
    assert told["messages"] == sum(events for events, _ in total.values())
    if ideal.events:
        stress = ideal.messages.sum(axis=1) * 1000 / ideal.events
        assert told["link_stress_max"] == pytest.approx(stress.max(initial=0))


@settings(max_examples=60)
@given(worlds(6))
def test_ideal_multicast_merges_shortest_routes_over_the_overlay(world: World) -> None:
    # ties between routes are for the search to break: latencies that no two routes share
    overlay = world.overlay
    latency = 1.0 + 2.0 ** np.arange(len(overlay.ends)) / 4096
    distinct = type(overlay)(overlay.name, overlay.brokers, overlay.ends, overlay.price, latency)
    moved = World(distinct, world.subscriptions, world.attachments, world.events)
    yardstick = Yardstick(distinct, moved.classes, moved.demand)
    check_against(moved, yardstick, None)
    ideal = yardstick.ideal
    assert ideal.at_brokers.sum() == 2 * ideal.messages.sum()  # each message is sent and received


@settings(max_examples=40)
@given(planned_over_routers())
def test_ideal_multicast_and_opt_are_counted_on_routers(case: tuple[World, object]) -> None:
    world, _ = case
    below = world.overlay.underlay
    assert below is not None
    charged = world.problem.overlay
    yardstick = Yardstick(charged, world.classes, world.demand)
    check_against(world, yardstick, below)
    ideal = yardstick.ideal
    hosts = world.demand.destinations(world.classes)
    sent = received = 0
    for i in range(len(world.demand)):
        others = int(hosts.start[i + 1] - hosts.start[i]) - 1
        sent += int(world.demand.count[i]) * (others > 0)
        received += int(world.demand.count[i]) * others
    assert ideal.at_brokers.sum() == sent + received
    assert yardstick.opt >= yardstick.bound.value * (1 - 1e-9) - 1e-18


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_router_that_branches_is_cheaper_than_links_between_brokers(count: int) -> None:
    """A star of routers: the tree over links pays the hub's arms several times."""
    from ramify.content.filters.subscriptions import Subscription
    from ramify.network.graphs.generators import full_mesh
    from ramify.planning.demand.classes import Classes
    from ramify.planning.demand.demand import Demand
    from ramify.planning.plans.problem import Problem

    mesh = full_mesh(count)
    ends = [(0, i + 1) for i in range(count)]
    below = Underlay(count + 2, ends, np.ones(count), np.arange(1, count + 1))  # a router joined to none
    overlay = type(mesh)(mesh.name, mesh.brokers, mesh.ends, mesh.price, 4.0 * np.ones(len(mesh.ends)),
                         mesh.sites, below)  # fmt: skip
    rows = [Subscription(f"s{i}", f"c{i}", mesh.brokers[i], sql="x = 1") for i in range(1, count)]
    classes = Classes.collapse(rows, overlay, {})
    demand = Demand.of([(0, tuple(range(count - 1)), 1, 10**9)])
    problem = Problem.of(overlay, classes, demand)
    yardstick = Yardstick(problem.overlay, classes, demand)
    assert yardstick.opt == yardstick.bound.value == yardstick.ideal.cost == count
    assert float(steiner_costs(problem.overlay, yardstick.sets)[0]) == 2 * (count - 1)
