"""The figures of a price, each by its definition: counted again from the simulator's messages."""

import math
from dataclasses import fields, replace
from functools import cache, reduce
from operator import add
from random import Random

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.generators import random_overlay
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.underlay import Underlay
from ramify.network.trees.trees import minimum_spanning_tree
from ramify.overlay.routing.simulator import Crossing, Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.layout import layout_of
from ramify.planning.plans.plan import (
    Admission,
    AnyOf,
    Channel,
    ChannelTree,
    Entry,
    Everything,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Stamped,
)
from ramify.planning.plans.state import routing_state
from ramify.planning.pricing.bound import DestinationSets, SetYardstick, Yardstick
from ramify.planning.pricing.price import MONTH_SECONDS, Price, Volume, price, priced
from ramify.planning.pricing.sums import Distribution, Sums, WeightedSpread, sums_of
from worlds import SCHEMA, World, plans, worlds


def with_telling_latencies(overlay: Overlay, underlay: Underlay | None = None) -> Overlay:
    """Latencies 4^i: the time of what crosses no link more than three times tells which it took."""
    latency = 4.0 ** np.arange(len(overlay.ends))
    return Overlay(
        overlay.name, overlay.brokers, overlay.ends, overlay.price, latency, overlay.sites, underlay
    )


@st.composite
def planned(draw: st.DrawFn, most: int = 7) -> tuple[World, Plan]:
    world = draw(worlds(most))
    world = replace(world, overlay=with_telling_latencies(world.overlay))
    plan = draw(plans(world))
    return world, replace(plan, channels=tuple(draw(st.permutations(plan.channels))))


@st.composite
def planned_over_routers(draw: st.DrawFn) -> tuple[World, Plan]:
    """Brokers on routers, several to one as well; an overlay link takes the route of least latency."""
    world = draw(worlds(6))
    n = len(world.overlay)
    routers = draw(st.integers(1, 6))
    ends = {(draw(st.integers(0, i - 1)), i) for i in range(1, routers)}
    every = [(i, j) for j in range(routers) for i in range(j)]
    ends |= set(draw(st.lists(st.sampled_from(every), max_size=5)) if every else [])
    prices = st.sampled_from([0.0, 1.0, 2.0, 5.0])
    below = Underlay(
        routers,
        np.array(sorted(ends), dtype=np.int32).reshape(-1, 2),
        2.0 ** np.array(draw(st.permutations(range(len(ends))))),
        [draw(st.integers(0, routers - 1)) for _ in range(n)],
        [draw(st.sampled_from([0.25, 0.5])) for _ in range(n)],
        price=np.array([[draw(prices), draw(prices)] for _ in ends]).reshape(-1, 2),
        access_price=np.array([[draw(prices), draw(prices)] for _ in range(n)]),
    )
    old = world.overlay
    latency = [below.latency_between(a, b) for a, b in old.ends.tolist()]
    overlay = Overlay(old.name, old.brokers, old.ends, old.price, latency, old.sites, below)
    world = replace(world, overlay=overlay)
    return world, draw(plans(world))


def steps_of(plan: Plan, demand: Demand) -> list[tuple[int, list[Crossing]]]:
    """The messages of each pattern's event, with how many events it stands for."""
    simulator = Simulator(plan)
    return [
        (
            int(demand.count[i]),
            simulator.publish(
                int(demand.publisher[i]), int(demand.cell[i]), tuple(demand[i].tolist()), event=str(i)
            ),
        )
        for i in range(len(demand))
    ]


# --------------------------------------------------------------------------------------- messages, money


@settings(max_examples=30)
@given(planned())
def test_every_message_is_charged_at_the_price_of_its_direction(case: tuple[World, Plan]) -> None:
    world, plan = case
    demand, overlay = world.demand, plan.overlay
    priced = price(plan, demand)
    cost = headers = 0.0
    for i, (count, steps) in enumerate(steps_of(plan, demand)):
        for step in steps:
            link = overlay.link_between(overlay.brokers[step.sender], overlay.brokers[step.receiver])
            per_byte = overlay.price[link, int(overlay.ends[link, 0] != step.sender)] / 1e9
            cost += int(demand.size[i]) * per_byte
            headers += count * len(step.header.encode()) * per_byte
    assert priced.cost == pytest.approx(cost, abs=1e-15)
    assert priced.money == pytest.approx(cost + headers, abs=1e-15)


@settings(max_examples=30)
@given(planned())
def test_node_stress_counts_what_is_sent_and_received_per_thousand_events(case: tuple[World, Plan]) -> None:
    world, plan = case
    total = np.zeros(len(plan.overlay))
    bytes_ = np.zeros(len(plan.overlay))
    for i, (count, steps) in enumerate(steps_of(plan, world.demand)):
        for step in steps:
            total[[step.sender, step.receiver]] += count
            bytes_[[step.sender, step.receiver]] += world.demand.size[i] + count * len(step.header.encode())
    priced = price(plan, world.demand)
    np.testing.assert_allclose(priced.node_stress, total * 1000 / max(world.demand.events, 1))
    np.testing.assert_array_equal(priced.broker_bytes, bytes_)


@settings(max_examples=20)
@given(planned_over_routers())
def test_link_stress_counts_messages_on_the_links_below(case: tuple[World, Plan]) -> None:
    world, plan = case
    below = plan.overlay.underlay
    assert below is not None
    total = np.zeros(below.link_count)
    for count, steps in steps_of(plan, world.demand):
        for step in steps:
            for link in below.path(step.sender, step.receiver).tolist():
                total[link] += count
    priced = price(plan, world.demand)
    np.testing.assert_allclose(priced.link_stress, total * 1000 / max(world.demand.events, 1))


@settings(max_examples=15)
@given(planned())
def test_link_stress_is_on_overlay_links_where_nothing_is_below(case: tuple[World, Plan]) -> None:
    world, plan = case
    priced = price(plan, world.demand)
    each = priced.messages.sum(axis=1) * 1000 / max(world.demand.events, 1)
    np.testing.assert_allclose(priced.link_stress, each)
    used = [stress for stress in each.tolist() if stress]
    figures = priced.figures()
    assert figures["link_stress_used_mean"] == pytest.approx(sum(used) / len(used) if used else 0.0)
    assert figures["link_stress_max"] == pytest.approx(max(used, default=0.0))


def crossed_ms(plan: Plan, demand: Demand) -> float:
    total = 0.0
    for count, steps in steps_of(plan, demand):
        for step in steps:
            link, _ = plan.overlay.arcs_along((step.sender, step.receiver))[0]
            total += count * float(plan.overlay.latency_ms[link])
    return total


def ratio(crossed: float, merged: float) -> float:
    return crossed / merged if merged else 1.0 if not crossed else math.inf


@settings(max_examples=30)
@given(planned())
def test_resource_usage_is_against_the_merged_shortest_routes(case: tuple[World, Plan]) -> None:
    world, plan = case
    graph = nx.Graph()
    graph.add_nodes_from(range(len(plan.overlay)))
    for (a, b), ms in zip(plan.overlay.ends.tolist(), plan.overlay.latency_ms.tolist(), strict=True):
        graph.add_edge(a, b, ms=ms)
    merged = 0.0
    for i in range(len(world.demand)):
        origin = int(world.demand.publisher[i])
        links = set()
        for k in world.demand[i].tolist():
            path = nx.shortest_path(graph, origin, int(world.classes.broker[k]), weight="ms")
            links |= {frozenset(step) for step in nx.utils.pairwise(path)}
        merged += int(world.demand.count[i]) * sum(graph.edges[tuple(link)]["ms"] for link in links)
    priced = price(plan, world.demand)
    assert priced.resource_usage == pytest.approx(ratio(crossed_ms(plan, world.demand), merged))


@settings(max_examples=20)
@given(planned_over_routers())
def test_resource_usage_over_routers_merges_routes_there(case: tuple[World, Plan]) -> None:
    world, plan = case
    below = plan.overlay.underlay
    assert below is not None
    merged = 0.0
    for i in range(len(world.demand)):
        origin = int(world.demand.publisher[i])
        hosts = {int(world.classes.broker[k]) for k in world.demand[i].tolist()} - {origin}
        # Latencies of router links are distinct powers of two: there is one shortest route.
        links = {link for host in hosts for link in below.path(origin, host).tolist()}
        merged += int(world.demand.count[i]) * float(below.link_latency_ms[sorted(links)].sum())
    priced = price(plan, world.demand)
    assert priced.yardstick.merged_unicast_ms == pytest.approx(merged)
    assert priced.resource_usage == pytest.approx(ratio(crossed_ms(plan, world.demand), merged))


# --------------------------------------------------------------------------------------- hops and time


def spread_by_hand(values: list[float], counts: list[int]) -> tuple[float, float, float]:
    each = sorted(value for value, count in zip(values, counts, strict=True) for _ in range(count))
    if not each:
        return 0.0, 0.0, 0.0
    return sum(each) / len(each), each[-(-99 * len(each) // 100) - 1], each[-1]


@settings(max_examples=40)
@given(planned())
def test_hops_and_milliseconds_are_of_the_first_arrival_at_each_destination(
    case: tuple[World, Plan],
) -> None:
    world, plan = case
    simulator = Simulator(plan)
    ms, hops, counts = [], [], []
    for i in range(len(world.demand)):
        origin, classes = int(world.demand.publisher[i]), tuple(world.demand[i].tolist())
        steps = simulator.publish(origin, int(world.demand.cell[i]), classes, event=str(i))
        times: dict[int, float] = {}
        for k in classes:
            host, at = int(world.classes.broker[k]), simulator.result.class_ms.get((str(i), k))
            if host != origin and at is not None:
                times[host] = min(at, times.get(host, math.inf))
        for host, at in times.items():
            ms.append(at)
            hops.append(min(s.header.hops for s in steps if s.receiver == host and s.at_ms == at))
            counts.append(int(world.demand.count[i]))
    priced = price(plan, world.demand)
    for spread, values in ((priced.ms, ms), (priced.hops, [float(h) for h in hops])):
        assert (spread.mean, spread.p99, spread.max) == pytest.approx(spread_by_hand(values, counts))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=12))
def test_a_spread_is_weighted_by_events(rows: list[tuple[int, int]]) -> None:
    values, weights = [float(v) for v, _ in rows], [w for _, w in rows]
    spread = WeightedSpread.of(np.array(values), np.array(weights, dtype=np.int64))
    assert (spread.mean, spread.p99, spread.max) == pytest.approx(spread_by_hand(values, weights))


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.7, 2.3, 41.9]), st.integers(0, 60), st.booleans())))
def test_a_distribution_in_parts_has_the_spread_of_the_whole_to_the_bit(
    rows: list[tuple[float, int, bool]],
) -> None:
    def seen(part: list[tuple[float, int, bool]]) -> Distribution:
        values = np.array([value for value, _, _ in part])
        return Distribution.of(values, np.array([weight for _, weight, _ in part], dtype=np.int64))

    both = seen([row for row in rows if row[2]]) + seen([row for row in rows if not row[2]])
    assert both.spread == seen(rows).spread
    totals = {value: sum(row[1] for row in rows if row[0] == value) for value, _, _ in sorted(rows)}
    by_hand = {value: weight for value, weight in totals.items() if weight}
    assert (both.value.tolist(), both.weight.tolist()) == (list(by_hand), list(by_hand.values()))


def test_the_99th_percentile_of_99_fast_and_1_slow_is_fast() -> None:
    for scale in (1, 3, 7, 1_000):
        spread = WeightedSpread.of(np.array([5.0, 90.0]), np.array([99 * scale, scale]))
        assert (spread.p99, spread.max) == (5.0, 90.0)
    assert WeightedSpread.of(np.array([5.0, 90.0]), np.array([98, 2])).p99 == 90.0


# ------------------------------------------------------------------------------------------- stored state


def tree_path(channel: Channel, one: int, other: int) -> set[int]:
    assert channel.tree is not None
    graph = nx.Graph(channel.tree.links.tolist())
    graph.add_nodes_from(channel.tree.brokers.tolist())
    return set(nx.shortest_path(graph, one, other))


def asked(expression: Expression) -> set[int]:
    if isinstance(expression, Match):
        return set(expression.classes)
    parts = (expression.part,) if isinstance(expression, Negation) else expression.parts
    return set().union(*(asked(part) for part in parts))


def stored_by_hand(plan: Plan, channel: Channel) -> set[tuple[int, int]]:
    """(broker, class) pairs that a channel needs, by what `state.py` says."""
    n = len(plan.overlay)
    allowed = channel.admits.publishers
    publishers = range(n) if allowed is None else sorted(allowed)
    rows = list(zip(channel.serves.classes.tolist(), channel.serves.at.tolist(), strict=True))
    served = {k for k, _ in rows}
    stored = {(at, k) for k, at in rows}
    content = channel.admits.content
    if isinstance(content, AnyOf | Stamped | Holds):
        more = asked(content.expression) if isinstance(content, Holds) else set()
        stored |= {(o, k) for o in publishers for k in served | more}
    if channel.pruning is Pruning.FILTER:
        enters = {channel.entry.target(o) for o in publishers}
        stored |= {(v, k) for e in enters for k, at in rows for v in tree_path(channel, e, at)}
    elif channel.pruning is not Pruning.NONE:
        stored |= {(o, k) for o in publishers for k in served}
    return stored


@settings(max_examples=60)
@given(planned())
def test_brokers_store_what_they_need_to_admit_forward_and_serve(case: tuple[World, Plan]) -> None:
    _, plan = case
    entries = np.zeros(len(plan.overlay), dtype=np.int64)
    filters: list[set[bytes]] = [set() for _ in plan.overlay.brokers]
    for channel in plan.channels:
        for broker, k in stored_by_hand(plan, channel):
            entries[broker] += 1
            filters[broker].add(plan.classes.filters[k].key)
    state = routing_state(layout_of(plan))
    np.testing.assert_array_equal(state.entries, entries)
    np.testing.assert_array_equal(state.filters, [len(keys) for keys in filters])


@settings(max_examples=30)
@given(planned())
def test_state_by_hop_is_the_mean_over_brokers_at_that_distance_from_their_root(
    case: tuple[World, Plan],
) -> None:
    _, plan = case
    per_hop: dict[int, list[int]] = {}
    for channel in plan.channels:
        if channel.tree is None or channel.tree.root is None:
            continue
        stored = stored_by_hand(plan, channel)
        for broker in channel.tree.brokers.tolist():
            hop = len(tree_path(channel, channel.tree.root, broker)) - 1
            per_hop.setdefault(hop, []).append(sum(at == broker for at, _ in stored))
    means = [sum(per_hop[hop]) / len(per_hop[hop]) for hop in sorted(per_hop)]
    assert routing_state(layout_of(plan)).by_hop == pytest.approx(means)


# ----------------------------------------------------------------------------------- bounds and references


def one_tree(world: World) -> Plan:
    problem = world.problem
    tree = minimum_spanning_tree(problem.overlay, problem.weight)
    serves = Serves.at_hosts(np.arange(len(world.classes)), world.classes)
    channel = Channel(
        "mst", Admission(AnyOf()), serves, Pruning.FILTER, ChannelTree(tree.links(), tree.root)
    )
    return Plan("mst", problem.overlay, world.classes, (channel,), world.attachments)


@settings(max_examples=40)
@given(worlds())
def test_no_plan_beats_the_bound(world: World) -> None:
    priced = price(one_tree(world), world.demand)
    assert priced.undelivered == 0
    bound = priced.yardstick.bound
    assert bound.exact
    assert bound.low == bound.value
    assert priced.cost >= bound.value * (1 - 1e-9) - 1e-18
    assert priced.yardstick.opt >= bound.value * (1 - 1e-9) - 1e-18
    assert priced.gap >= 1 - 1e-9
    assert priced.gap == pytest.approx(ratio(priced.cost, bound.value))


@settings(max_examples=25)
@given(planned_over_routers())
def test_no_plan_beats_the_bound_on_the_links_below(case: tuple[World, Plan]) -> None:
    world, _ = case
    priced = price(one_tree(world), world.demand)
    assert priced.cost >= priced.yardstick.bound.value * (1 - 1e-9) - 1e-18


def test_nineteen_of_twenty_sampled_bounds_have_the_exact_one_above_their_low_end() -> None:
    rng = np.random.default_rng(5)
    overlay = random_overlay(14, 5, mean_degree=3.0)
    rows = [Subscription(f"s{i}", f"c{i}", name, sql="x = 1") for i, name in enumerate(overlay.brokers)]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    demand = Demand.of(
        (int(rng.integers(14)), rng.choice(14, size=int(rng.integers(1, 6)), replace=False).tolist(), 1, 10)
        for _ in range(300)
    )
    exact = Yardstick(overlay, classes, demand).bound.value
    sampled = [Yardstick(overlay, classes, demand, sample=60, seed=seed).bound for seed in range(40)]
    assert not any(bound.exact for bound in sampled)
    assert sum(bound.low <= exact * (1 + 1e-9) for bound in sampled) >= 36
    assert np.mean([bound.value for bound in sampled]) == pytest.approx(exact, rel=0.02)


# -------------------------------------------------------------------------------------------- in parts


def heavier(draw: st.DrawFn, demand: Demand) -> Demand:
    """The same patterns with more events each, and tags: what random worlds have little of."""
    size = st.integers(0, 10**12)
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 50) | st.just(0), size, st.integers(0, 7)),
            min_size=len(demand),
            max_size=len(demand),
        )
    )
    count, size_, tags = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    made = replace(demand, count=count.copy(), size=size_.copy(), tags=tags.astype(np.uint64))
    return replace(made, seconds=3600.0, factor=2.5, tag_filters=3)


def in_parts(draw: st.DrawFn, demand: Demand) -> list[Demand]:
    """The demand's patterns dealt out in any order; the events of one pattern may go to several parts."""
    rows, shares = [], []
    for i in range(len(demand)):
        cut = draw(st.integers(0, int(demand.count[i])))
        rest = draw(st.integers(0, int(demand.size[i])))
        rows += [i, i]
        shares += [(cut, rest), (int(demand.count[i]) - cut, int(demand.size[i]) - rest)]
    count, size = np.array(shares, dtype=np.int64).reshape(-1, 2).T
    pieces = replace(demand.take(rows), count=count.copy(), size=size.copy())
    order = np.array(draw(st.permutations(range(len(rows)))), dtype=np.int64)
    part = np.array([draw(st.integers(0, 3)) for _ in rows], dtype=np.int64)
    return [pieces.take(order[part[order] == k]) for k in range(4)]


Parted = tuple[Plan, Demand, list[Demand]]


@st.composite
def parted(draw: st.DrawFn, over_routers: bool = False) -> Parted:
    world, plan = draw(planned_over_routers() if over_routers else planned())
    demand = heavier(draw, world.demand)
    return plan, demand, in_parts(draw, demand)


def same_numbers(one: object, other: object, *names: str) -> None:
    for name in names:
        left, right = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)


def grouped(parts: list[Demand], classes: Classes) -> DestinationSets:
    """The destination sets of all parts, added up as a table: what a log on many machines comes to."""
    rows = pa.concat_tables(DestinationSets.of(part, classes).table() for part in parts)
    sums = rows.group_by("destinations").aggregate([("size", "sum"), ("count", "sum")])
    return DestinationSets.from_table(sums)


def check_parts_add_up(case: Parted) -> None:
    plan, demand, parts = case
    whole = price(plan, demand)
    # As bytes and back, as they travel.
    sums = reduce(add, (Sums.from_bytes(sums_of(plan, part).to_bytes()) for part in parts))
    held = SetYardstick(plan.overlay, grouped(parts, plan.classes))
    volume = Volume(sums.events, demand.seconds, demand.factor, demand.tag_filters)
    together = priced(plan, sums, volume, held)
    assert together.figures() == whole.figures()
    assert together.yardstick.bound == whole.yardstick.bound
    names = {part.name for part in fields(Price)} - {"layout", "yardstick", "given"}
    for name in ("volume", "hops", "ms"):
        assert getattr(together, name) == getattr(whole, name)
    same_numbers(together, whole, *(names - {"volume", "hops", "ms"}))


@settings(max_examples=40)
@given(parted())
def test_parts_of_a_demand_add_up_to_the_price_of_the_whole_in_every_figure(case: Parted) -> None:
    check_parts_add_up(case)


@settings(max_examples=15)
@given(parted(over_routers=True))
def test_parts_add_up_over_routers_too(case: Parted) -> None:
    check_parts_add_up(case)


@settings(max_examples=20)
@given(planned(), st.randoms(use_true_random=False))
def test_the_order_of_patterns_changes_no_figure(case: tuple[World, Plan], random: Random) -> None:
    world, plan = case
    order = random.sample(range(len(world.demand)), len(world.demand))
    assert price(plan, world.demand.take(order)).figures() == price(plan, world.demand).figures()


@settings(max_examples=40)
@given(parted())
def test_tags_are_counted_where_events_are_published_and_where_they_are_wanted(case: Parted) -> None:
    plan, demand, _ = case
    published, wanted = [0] * len(plan.overlay), [0] * len(plan.overlay)
    for i in range(len(demand)):
        if demand.count[i]:
            published[demand.publisher[i]] |= int(demand.tags[i])
            for k in demand[i].tolist():
                wanted[plan.classes.broker[k]] |= int(demand.tags[i])
    found = price(plan, demand)
    assert (found.published.tolist(), found.wanted.tolist()) == (published, wanted)


@given(st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 300)), st.integers(0, 9))))
def test_distinct_destination_sets_are_sorted_by_publisher_then_brokers(
    rows: list[tuple[int, set[int], int]],
) -> None:
    sets = [(root, *sorted(brokers - {root})) for root, brokers, _ in rows]
    start = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    node = np.array([broker for row in sets for broker in row], dtype=np.int32)
    count = np.array([count for _, _, count in rows], dtype=np.int64)
    made = DestinationSets(start, node, 10 * count, count).distinct()
    found = [tuple(made.node[made.start[i] : made.start[i + 1]].tolist()) for i in range(len(made))]
    assert found == sorted(set(sets))
    by_hand = [sum(row[2] for row, key in zip(rows, sets, strict=True) if key == each) for each in found]
    assert made.count.tolist() == by_hand
    assert made.size.tolist() == [10 * each for each in by_hand]


def test_a_sampled_bound_is_the_same_however_the_sets_were_added_up() -> None:
    rng = np.random.default_rng(11)
    overlay = random_overlay(14, 5, mean_degree=3.0)
    rows = [Subscription(f"s{i}", f"c{i}", name, sql="x = 1") for i, name in enumerate(overlay.brokers)]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    demand = Demand.of(
        (int(rng.integers(14)), rng.choice(14, size=int(rng.integers(1, 6)), replace=False).tolist(), 1, 10)
        for _ in range(300)
    )
    parts = [demand.take(rng.permutation(np.arange(k, len(demand), 3))) for k in range(3)]
    whole = Yardstick(overlay, classes, demand, sample=60)
    added = SetYardstick(overlay, grouped(parts, classes), sample=60)
    assert not whole.bound.exact
    assert (added.bound, added.opt) == (whole.bound, whole.opt)
    assert added.merged_unicast_ms == whole.merged_unicast_ms


def test_a_price_from_sums_alone_has_no_patterns_to_show() -> None:
    overlay, classes = two_brokers()
    demand = Demand.of([(0, (1,), 1, 10**9)])
    plan = flooded(overlay, classes)
    held = Yardstick(overlay, classes, demand)
    assert price(plan, demand).demand is demand
    alone = priced(plan, sums_of(plan, demand), Volume(1), held)
    with pytest.raises(LookupError, match="patterns were not kept"):
        _ = alone.demand


# ------------------------------------------------------------------------------------- by hand, and empty


@cache
def two_brokers() -> tuple[Overlay, Classes]:
    overlay = Overlay.build("pair", ["a", "b"], [Link("a", "b", 2.0, 7.0, 3.0)])
    rows = [Subscription("s0", "c0", "a", sql="x = 1"), Subscription("s1", "c1", "b", sql="x = 1")]
    return overlay, Classes.collapse(rows, overlay, SCHEMA.attributes)


def flooded(overlay: Overlay, classes: Classes, pruning: Pruning = Pruning.FILTER) -> Plan:
    links = overlay.ends if len(overlay) == 2 else np.zeros((0, 2), dtype=np.int32)
    serves = Serves.at_hosts(np.arange(len(classes)), classes)
    content = AnyOf() if pruning is Pruning.FILTER else Everything()
    return Plan(
        "tree",
        overlay,
        classes,
        (Channel("t", Admission(content), serves, pruning, ChannelTree(links, 0)),),
    )


def test_the_sender_pays_and_money_counts_headers() -> None:
    overlay, classes = two_brokers()
    # 3 events from a: 6e9 bytes at 2 per GB; 1 event from b: 1e9 bytes at 7. Headers of TREE are 4 bytes:
    # kind, hops, origin, channel.
    demand = Demand.of([(0, (0, 1), 3, 6 * 10**9), (1, (0, 1), 1, 10**9)])
    priced = price(flooded(overlay, classes), demand)
    assert priced.cost == 19.0
    assert priced.messages.tolist() == [[3, 1]]
    assert priced.money == pytest.approx(19.0 + (3 * 4 * 2 + 1 * 4 * 7) / 1e9)
    assert (priced.deliveries, priced.undelivered, priced.matchings) == (8, 0, 8)
    assert priced.class_ms.tolist() == [3.0, 3.0]
    assert (priced.hops, priced.ms) == (WeightedSpread(1.0, 1.0, 1.0), WeightedSpread(3.0, 3.0, 3.0))


def test_money_per_month_scales_by_the_span_and_the_sampling_factor() -> None:
    overlay, classes = two_brokers()
    rows = [(0, (1,), 10, 10**9)]
    hour = price(flooded(overlay, classes), Demand.of(rows, seconds=3600.0))
    assert MONTH_SECONDS == 30 * 24 * 3600
    # 720 hours a month.
    assert hour.money_per_month == pytest.approx(720 * hour.money)
    thinned = price(flooded(overlay, classes), Demand.of(rows, seconds=3600.0).scaled(50).scaled(2))
    assert thinned.money_per_month == pytest.approx(72_000 * hour.money)
    assert thinned.cost == hour.cost
    assert price(flooded(overlay, classes), Demand.of(rows)).money_per_month is None


def test_the_same_yardstick_serves_every_plan() -> None:
    overlay, classes = two_brokers()
    demand = Demand.of([(0, (1,), 1, 10**9)])
    yardstick = Yardstick(overlay, classes, demand)
    one = price(flooded(overlay, classes), demand, yardstick)
    other = price(flooded(overlay, classes, Pruning.NONE), demand, yardstick)
    assert one.yardstick is other.yardstick
    assert (one.gap, other.gap, one.over_opt) == (1.0, 1.0, 1.0)
    assert (yardstick.bound.value, yardstick.opt, yardstick.merged_unicast_ms) == (2.0, 2.0, 3.0)


def quiet(priced: Price) -> None:
    figures = priced.figures()
    for name in ("messages", "wire_bytes", "cost", "money", "undelivered", "waste", "node_stress_max"):
        assert figures[name] == 0, name
    assert (priced.gap, priced.over_opt, priced.resource_usage) == (1.0, 1.0, 1.0)
    assert (priced.hops, priced.ms) == (WeightedSpread(0.0, 0.0, 0.0), WeightedSpread(0.0, 0.0, 0.0))


def test_no_events_cost_nothing() -> None:
    overlay, classes = two_brokers()
    priced = price(flooded(overlay, classes, Pruning.NONE), Demand.of([]))
    quiet(priced)
    assert (priced.matchings, priced.deliveries, priced.matchings_per_event) == (0, 0, 0.0)


def test_no_classes_cost_nothing_unless_flooded() -> None:
    overlay, _ = two_brokers()
    none = Classes.collapse([], overlay, SCHEMA.attributes)
    demand = Demand.of([(0, (), 5, 50)])
    quiet(price(flooded(overlay, none), demand))
    quiet(price(replace(flooded(overlay, none), channels=()), demand))
    flood = price(flooded(overlay, none, Pruning.NONE), demand)
    # Five messages that nobody wants; the publisher's broker matches, the other has nobody to match for.
    assert (flood.message_count, flood.waste, flood.visits, flood.matchings) == (5, 5, 5, 5)
    assert flood.gap == math.inf
    assert flood.resource_usage == math.inf


@pytest.mark.parametrize("pruning", [Pruning.FILTER, Pruning.NONE])
def test_one_broker_hands_over_without_a_message(pruning: Pruning) -> None:
    alone = Overlay.build("alone", ["a"], [])
    classes = Classes.collapse([Subscription("s0", "c0", "a", sql="x = 1")], alone, SCHEMA.attributes)
    priced = price(flooded(alone, classes, pruning), Demand.of([(0, (0,), 4, 40), (0, (), 1, 10)]))
    quiet(priced)
    assert (priced.deliveries, priced.visits) == (4, 0)
    assert priced.state.entries.tolist() == [1]


def test_links_for_nothing_have_a_gap_of_one() -> None:
    overlay = Overlay.build("free", ["a", "b"], [Link("a", "b", 0.0, 0.0, 1.0)])
    _, classes = two_brokers()
    priced = price(flooded(overlay, classes), Demand.of([(0, (1,), 1, 10**9)]))
    assert (priced.message_count, priced.cost, priced.gap, priced.over_opt) == (1, 0.0, 1.0, 1.0)


def test_brokers_between_an_entry_and_a_publisher_store_what_they_forward() -> None:
    # The line a - b - c - d: only c publishes, by a leg to a; class 0 is at d. Its filter is needed at c,
    # which admits, and at a, b, c and d, which forward or serve.
    overlay = Overlay.build("line", "abcd", [Link.symmetric(*pair) for pair in ("ab", "bc", "cd")])
    classes = Classes.collapse([Subscription("s0", "c0", "d", sql="x = 1")], overlay, SCHEMA.attributes)
    links = np.array([(0, 1), (1, 2), (2, 3)], dtype=np.int32)
    channel = Channel(
        "c", Admission(AnyOf(), frozenset([2])), Serves.at_hosts([0], classes), Pruning.FILTER,
        ChannelTree(links, 0), Entry.to(0, 4),
    )  # fmt: skip
    plan = Plan("hand", overlay, classes, (channel,), paths={(2, 0): (2, 1, 0)})
    assert routing_state(layout_of(plan)).entries.tolist() == [1, 1, 1, 1]


@settings(max_examples=20)
@given(planned())
def test_pricing_is_deterministic_and_leaves_the_demand_alone(case: tuple[World, Plan]) -> None:
    world, plan = case
    assume(len(world.demand))
    before = [
        getattr(world.demand, part).copy() for part in ("publisher", "start", "classes", "count", "size")
    ]
    one, other = price(plan, world.demand), price(replace(plan), world.demand)
    assert one.figures() == other.figures()
    for part, kept in zip(("publisher", "start", "classes", "count", "size"), before, strict=True):
        np.testing.assert_array_equal(getattr(world.demand, part), kept)
