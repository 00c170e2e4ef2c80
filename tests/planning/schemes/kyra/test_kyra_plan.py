"""Kyra's plans: Figure 4, routing on any world, what it comes to without cliques, rings, measures."""

from dataclasses import replace
from functools import cache
from itertools import combinations
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.examples import kyra_figure_4
from ramify.network.graphs.generators import full_mesh
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.transit_stub import kyra
from ramify.network.trees.trees import Tree
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check
from ramify.planning.plans.plan import Cells, Everything, Plan, Pruning
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.measures import measures, stored_parts
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.kyra.drift import proxies_of
from ramify.planning.schemes.shared.cell_loads import counted_grid
from ramify.planning.schemes.shared.grids import grid_for
from ramify.workloads.catalog import workload_from
from worlds import GRID, World, worlds

SPECS = (
    "kyra:max_distance=1000",
    "kyra:max_distance=1000,ring_limit=1",
    "kyra:max_distance=1000,ring_limit=3,max_servers=6",
    "kyra:max_distance=4,trees=2,alpha=1",
    "kyra:max_distance=12,weight=hops,trees=1",
    "kyra-balanced:max_distance=3,weight=mean_price",
    "kyra-mbr:max_distance=1000",
    "kyra-mbr:max_distance=1000,ring_limit=2,trees=2",
    "mbr:groups=2",
    "fbr:weight=mean_price",
)
TWO_AXES = Grid((Axis("x", (2, 5, 7)), Axis("topic", ("b", "c"))))
TEN = Grid((Axis("x", tuple(range(1, 10))),))
A, B, C, D, E, F, G, H = range(8)


# ------------------------------------------------------------------------------------------ any world


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=12)
@given(world=worlds(), grid=st.sampled_from([GRID, TWO_AXES, None]))
def test_everyone_gets_every_event_once_and_every_message_was_priced(
    spec: str, world: World, grid: Grid | None
) -> None:
    problem = on_grid(world, grid)
    plan = check(make_plan(spec, problem), problem)
    assert plan.grid == (None if spec.startswith("fbr") else grid)
    priced = price(plan, problem.demand)
    done = Simulator(plan).simulate_events([world.batch])
    assert set(done.delivered) == world.wanted()
    assert all(count == 1 for count in done.delivered.values())
    assert done.repeats == 0
    for name in ("messages", "payload", "wire", "leg_messages"):
        np.testing.assert_array_equal(getattr(priced, name), getattr(done, name), err_msg=name)
    assert priced.matchings == done.matchings
    assert priced.undelivered == 0


@settings(max_examples=60)
@given(world=worlds(), near=st.sampled_from([0, 1, 4, 1000]), trees=st.integers(1, 5), two=st.booleans())
def test_each_part_of_a_subscription_is_at_one_proxy_of_its_clique(
    world: World, near: int, trees: int, two: bool
) -> None:
    problem = on_grid(world, TWO_AXES if two else GRID)
    plan = make_plan(f"kyra:max_distance={near},trees={trees}", problem)
    grid = plan.grid
    assert grid is not None
    every = np.concatenate([np.zeros(0, int), *(cells_of(plan, c) for c in range(len(plan.channels)))])
    assert sorted(every.tolist()) == list(range(grid.size))  # each cell in one channel, `other` too
    proxy = proxies_of(plan)
    assert proxy is not None
    clique = [tuple(row) for row in proxy.tolist()]
    for c, channel in enumerate(plan.channels):
        cells = cells_of(plan, c)
        for k, at in zip(channel.serves.classes.tolist(), channel.serves.at.tolist(), strict=True):
            host = int(problem.classes.broker[k])
            assert (proxy[host, cells] == at).all()
            assert clique[at] == clique[host]  # a proxy is of the subscription's own clique
        wanting = [
            k for k, f in enumerate(problem.classes.filters) if set(grid.cells_touched(f)) & set(cells)
        ]
        assert channel.serves.classes.tolist() == wanting
        assert channel.tree is not None
        assert set(np.unique(proxy[:, cells])) <= set(channel.tree.brokers.tolist())


@settings(max_examples=40)
@given(world=worlds())
def test_cliques_of_one_broker_and_one_tree_are_fbr(world: World) -> None:
    problem = world.problem
    single, fbr = make_plan("kyra:max_servers=1,trees=1", problem), make_plan("fbr", problem)
    one, other = price(single, problem.demand), price(fbr, problem.demand)
    for name in ("messages", "payload", "wire", "leg_messages", "class_ms"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("matchings", "visits", "waste", "broker_duplicates", "money"):
        assert getattr(one, name) == getattr(other, name)
    np.testing.assert_array_equal(one.state.filters, other.state.filters)
    np.testing.assert_array_equal(stored_parts(single)[0], stored_parts(fbr)[0])
    sent = [
        Simulator(plan).simulate_events([world.batch.slice(row, 1)]).messages.tolist()
        for row in range(world.batch.num_rows)
        for plan in (single, fbr)
    ]
    assert sent[::2] == sent[1::2]


def test_a_grid_without_counted_cells_is_refused() -> None:
    overlay = full_mesh(3)
    rows = [Subscription("s", "c", overlay.brokers[1], sql="x < 5")]
    classes = Classes.collapse(rows, overlay, {"x": AttributeType.INT64})
    problem = Problem.of(overlay, classes, Demand.of([(0, (0,), 1, 1)]), grid=GRID)
    for spec in ("kyra", "mbr", "kyra-mbr"):
        with pytest.raises(InputError, match="without it"):
            make_plan(spec, problem)
    assert counted_grid(replace(problem, demand=Demand.of([]))) == GRID


def test_without_a_grid_there_is_one_zone_and_one_tree() -> None:
    problem = replace(figure_4()[0], grid=None)
    plan = check(make_plan("kyra:max_distance=50", problem), problem)
    assert plan.settings["zones"] == 1
    assert len(plan.channels) == 1
    assert isinstance(plan.channels[0].admits.content, Everything)
    assert plan.channels[0].tree is not None
    assert len(plan.channels[0].tree.brokers) == 3  # one proxy per clique


@pytest.mark.parametrize(
    "bad",
    ["alpha=steep", "alpha=-1", "trees=0", "max_servers=0", "straddle=-1", "max_distance=-2", "balance=0"],
)
def test_parameters_are_checked(bad: str) -> None:
    with pytest.raises(InputError, match="Allowed"):
        make_plan(f"kyra:{bad}", figure_4()[0])


def test_zones_are_cut_by_the_attributes_named() -> None:
    problem = figure_4()[0]
    assert make_plan("kyra:attributes=x", problem).settings["attributes"] == "x"
    with pytest.raises(InputError, match="counted by x"):
        make_plan("kyra:attributes=y", problem)


def test_zones_are_cut_where_fewer_subscriptions_straddle_if_that_counts() -> None:
    """One clique of two. By x both halves are as busy, but every subscription is in both; by y none is."""
    problem = straddling()
    halves = {}
    for straddle in (0, 9):
        plan = make_plan(f"kyra:max_distance=1000,alpha=1,straddle={straddle}", problem)
        check(plan, problem)
        proxy = proxies_of(plan)
        assert proxy is not None
        halves[straddle] = proxy[0].reshape(TWO_BY_TWO.shape)[:2, :2].tolist()
    (a, b), (c, d) = halves[0]
    assert a == b != c == d
    (a, b), (c, d) = halves[9]
    assert a == c != b == d


TWO_BY_TWO = Grid((Axis("x", (5,)), Axis("y", (5,))))


def straddling() -> Problem:
    overlay = full_mesh(2)
    names = overlay.brokers
    kinds = {"x": AttributeType.INT64, "y": AttributeType.INT64}
    rows = [Subscription(f"s{i}", f"c{i}", names[i % 2], sql="y < 5" if i else "y >= 5") for i in range(3)]
    classes = Classes.collapse(rows, overlay, kinds)
    events = [
        Event(id=f"e{i}", publisher=names[0], attributes={"x": 9 * (i % 2), "y": 9 * (i > 5)})
        for i in range(8)
    ]
    batch = events_to_batch(events, EventSchema(kinds))
    demand = tally([batch], classes, overlay, {}, grid=TWO_BY_TWO)
    return Problem.of(overlay, classes, demand, grid=TWO_BY_TWO)


@pytest.mark.parametrize("servers", [2, 3])
def test_there_are_as_many_groups_as_the_largest_clique_has_brokers(servers: int) -> None:
    """Ten cells, each with other brokers that want it: more groups would be made if they were allowed."""
    overlay = full_mesh(6)
    rows = [
        Subscription(f"s{i}-{x}", f"c{i}", overlay.brokers[i], sql=f"x = {x}")
        for x in range(10)
        for i in range(6)
        if (x + 1) >> (i % 4) & 1
    ]
    classes = Classes.collapse(rows, overlay, {"x": AttributeType.INT64})
    events = [Event(id=f"e{x}", publisher=overlay.brokers[0], attributes={"x": x}) for x in range(10)]
    batch = events_to_batch(events, EventSchema({"x": AttributeType.INT64}))
    demand = tally([batch], classes, overlay, {}, grid=TEN)
    problem = Problem.of(overlay, classes, demand, grid=TEN)
    spec = f"kyra-mbr:max_distance=1000,max_servers={servers}"
    plan = check(make_plan(spec, problem), problem)
    assert plan.settings["largest_clique"] == servers
    assert plan.settings["realised_groups"] == len(plan.channels) == servers
    for trees in (1, servers + 1):
        assert len(make_plan(f"{spec},trees={trees}", problem).channels) == trees


def test_balanced_trees_spare_the_busiest_broker() -> None:
    """Degrees are counted over all trees; a longer way is the price."""
    overlay = kyra(3, brokers=60)
    workload = workload_from("kyra:zipf:values=200,events=2000", overlay, 1)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    grid = grid_for(classes)
    demand = tally(workload.batches(), classes, overlay, workload.attachments, grid=grid)
    problem = Problem.of(overlay, classes, demand, workload.attachments, grid=grid)
    found = {}
    for spec in ("kyra", "kyra-balanced"):
        plan = make_plan(spec, problem)
        trees = {channel.tree for channel in plan.channels if channel.tree is not None}
        degree = np.bincount(np.concatenate([tree.links.ravel() for tree in trees]))
        found[spec] = degree.max(), price(plan, demand).node_stress.max()
    assert found["kyra-balanced"][0] < found["kyra"][0]
    assert found["kyra-balanced"][1] < found["kyra"][1]


def test_a_large_clique_routes_over_a_ring_without_being_asked() -> None:
    """40 brokers of one site, 1 ms apart, among 170: the others are 100 ms from everybody."""
    names = [f"v{i}" for i in range(170)]
    links = [Link.symmetric(a, b, latency_ms=1.0) for a, b in combinations(names[:40], 2)]
    links += [Link.symmetric("v0", name, latency_ms=100.0) for name in names[40:]]
    overlay = Overlay.build("site", names, links)
    rows = [Subscription(f"s{i}", f"c{i}", names[i], sql=f"x BETWEEN {i} AND {i + 9}") for i in range(60)]
    classes = Classes.collapse(rows, overlay, {"x": AttributeType.INT64})
    grid = grid_for(classes)
    schema = EventSchema({"x": AttributeType.INT64})
    events = [Event(id=f"e{x}", publisher=names[2 * x], attributes={"x": x}) for x in range(60)]
    batch = events_to_batch(events, schema)
    problem = Problem.of(overlay, classes, tally([batch], classes, overlay, {}, grid=grid), grid=grid)
    plan = check(make_plan("kyra", problem), problem)
    assert (plan.settings["largest_clique"], plan.settings["rings"]) == (40, 1)
    inside = [len(path) for (u, v), path in plan.paths.items() if max(u, v) < 40]
    assert max(inside) > 2  # a link joins every two of them, and still an event goes by fingers
    assert max(inside) <= 1 + ceil(log2(40))
    done = Simulator(plan).simulate_events([batch])
    wanted = {(f"e{x}", f"s{i}") for x in range(60) for i in range(60) if i <= x <= i + 9}
    assert set(done.delivered) == wanted
    np.testing.assert_array_equal(price(plan, problem.demand).messages, done.messages)
    direct = make_plan("kyra:ring_limit=64", problem)
    assert direct.settings["rings"] == 0
    assert price(direct, problem.demand).message_count < price(plan, problem.demand).message_count


# ------------------------------------------------------------------------------------------- Figure 4


@cache
def figure_4() -> tuple[Problem, tuple[Event, ...]]:
    """The example's proxy subscriptions, each at the first server of its clique; events 0..9, once each."""
    example = kyra_figure_4()
    first = {server: clique[0] for clique in example.cliques for server in clique}
    rows = [
        Subscription(
            f"s{proxy}", f"c{proxy}", first[proxy], sql=f"x IN ({', '.join(map(str, sorted(xs)))})"
        )
        for proxy, xs in example.proxy_subscriptions.items()
        if xs
    ]
    schema = EventSchema({"x": AttributeType.INT64})
    classes = Classes.collapse(rows, example.overlay, schema.attributes)
    events = tuple(Event(id=f"e{x}", publisher="A", attributes={"x": x}, size_bytes=100) for x in range(10))
    demand = tally([events_to_batch(events, schema)], classes, example.overlay, {}, grid=TEN)
    return Problem.of(example.overlay, classes, demand, grid=TEN), events


@cache
def figure_4_plan() -> Plan:
    problem, _ = figure_4()
    return check(make_plan("kyra:max_distance=50,alpha=0.6101", problem), problem)


def test_figure_4_has_the_printed_cliques_zones_and_proxies() -> None:
    example, (problem, _) = kyra_figure_4(), figure_4()
    proxy = proxies_of(figure_4_plan())
    assert proxy is not None
    names = example.overlay.brokers
    for clique in example.cliques:
        for server in clique:
            low, high = example.server_zones[server]
            for x in range(10):
                at = names[proxy[example.overlay.index[clique[0]], x]]
                assert (at == server) == (low <= x <= high)
    served = {
        (problem.classes.spelled[k].id, names[at])
        for channel in figure_4_plan().channels
        for k, at in zip(channel.serves.classes.tolist(), channel.serves.at.tolist(), strict=True)
    }
    assert served == {(f"s{proxy}", proxy) for proxy, xs in example.proxy_subscriptions.items() if xs}


def test_figure_4_has_the_printed_trees() -> None:
    example = kyra_figure_4()
    index = example.overlay.index
    plan = figure_4_plan()
    for tree, (low, high) in example.tree_zones.items():
        wanted = {frozenset((index[a], index[b])) for a, b in example.tree_links[tree]}
        for c, channel in enumerate(plan.channels):
            cells = set(cells_of(plan, c).tolist()) - {TEN.size - 1}
            inside = {x for x in cells if low <= x <= high}
            assert not inside or inside == cells
            if inside:
                assert channel.tree is not None
                assert {frozenset(link) for link in channel.tree.links.tolist()} == wanted


def test_figure_4_routes_event_9_from_c_along_t2_to_h() -> None:
    """C is the proxy in the publisher's clique, H in that of the subscriber, F the subscriber's own."""
    problem, _ = figure_4()
    simulator = Simulator(figure_4_plan())
    (k,) = [k for k, row in enumerate(problem.classes.spelled) if row.id == "sH"]
    simulator.publish(A, 9, (k,), event="nine")
    ends, sent = problem.overlay.ends, simulator.result.messages
    crossed = {
        (int(ends[link, way]), int(ends[link, 1 - way])) for link, way in np.argwhere(sent > 0).tolist()
    }
    assert crossed == {(A, C), (C, H), (H, F)}
    assert sent.sum() == 3
    assert set(simulator.result.delivered) == {("nine", "sH")}


def test_figure_4_stores_each_part_once_a_tree() -> None:
    """t0 has parts at A, D and F; t1 at E and G; t2 at C and H. Sub-zones of one tree count once."""
    parts, known = stored_parts(figure_4_plan())
    assert parts.tolist() == [3, 2, 2, 5, 4, 3, 2, 2]
    assert known.tolist() == [3, 2, 2, 5, 4, 3, 2, 2]
    found = measures(price(figure_4_plan(), figure_4()[0].demand))
    assert found.storage_share == pytest.approx(np.mean(parts) / 7)
    assert found.nru > 0
    assert found.node_stress.shape == (8,)


# --------------------------------------------------------------------------------------------- measures


@settings(max_examples=30)
@given(world=worlds(), spec=st.sampled_from(["kyra:max_distance=1000", "kyra:max_distance=3,trees=3"]))
def test_a_server_stores_what_routing_needs_and_no_more_than_its_trees(world: World, spec: str) -> None:
    plan = make_plan(spec, world.problem)
    parts, known = stored_parts(plan)
    needed = price(plan, world.demand).state
    assert (known >= needed.filters).all()
    for broker in range(len(world.overlay)):
        triples = {
            (channel.tree, k, at)
            for channel in plan.channels
            if channel.tree is not None and broker in channel.tree.brokers
            for k, at in zip(channel.serves.classes.tolist(), channel.serves.at.tolist(), strict=True)
        }
        assert parts[broker] == len(triples)


@settings(max_examples=40)
@given(world=worlds(), near=st.sampled_from([0, 3, 1000]), grid=st.sampled_from([GRID, None]))
def test_processing_counts_the_servers_that_an_event_meets_on_its_tree(
    world: World, near: int, grid: Grid | None
) -> None:
    """By hand: from the proxy of the publisher's clique along the tree to every proxy with a match."""
    problem = on_grid(world, grid)
    plan = make_plan(f"kyra:max_distance={near}", problem)
    demand, met = problem.demand, 0
    for i in range(len(demand)):
        origin, cell = int(demand.publisher[i]), max(int(demand.cell[i]), 0)
        (c,) = [c for c in range(len(plan.channels)) if grid is None or cell in cells_of(plan, c)]
        channel = plan.channels[c]
        assert channel.tree is not None
        served = dict(zip(channel.serves.classes.tolist(), channel.serves.at.tolist(), strict=True))
        ends = {served[k] for k in demand[i].tolist() if problem.classes.broker[k] != origin}
        tree = Tree.of_links(len(world.overlay), channel.tree.links, channel.entry.target(origin))
        visited = {tree.root}
        for end in ends:
            while end not in visited:
                visited.add(end)
                end = int(tree.parent[end])
        met += int(demand.count[i]) * len(visited)
    found = measures(price(plan, demand)).processing
    assert found == pytest.approx(met / demand.events if demand.events else 0.0)


def test_processing_is_not_told_of_plans_that_flood_or_have_many_trees() -> None:
    problem, _ = figure_4()
    for spec in ("mbr", "broadcast", "per-source", "unicast"):
        assert measures(price(make_plan(spec, problem), problem.demand)).processing is None
    fbr = price(make_plan("fbr", problem), problem.demand)
    assert measures(fbr).processing == fbr.matchings_per_event


def test_measures_are_told_as_plain_numbers_for_every_kind_of_plan() -> None:
    problem, _ = figure_4()
    for spec in ("kyra:max_distance=50", "kyra-mbr:max_distance=50", "unicast", "explicit", "broadcast"):
        priced = price(make_plan(spec, problem), problem.demand)
        told = measures(priced).figures()
        assert told["nru"] == priced.resource_usage
        assert told["node_stress_max"] == priced.node_stress.max()
        assert told["storage_max"] == stored_parts(priced.plan)[0].max()
        assert (told["processing"] is None) == (spec != "kyra:max_distance=50")


# --------------------------------------------------------------------------------------------- helpers


def on_grid(world: World, grid: Grid | None) -> Problem:
    demand = tally([world.batch], world.classes, world.overlay, world.attachments, grid=grid)
    return Problem.of(world.overlay, world.classes, demand, world.attachments, grid=grid)


def cells_of(plan: Plan, c: int) -> np.ndarray:
    content = plan.channels[c].admits.content
    assert plan.grid is not None
    assert plan.channels[c].pruning is Pruning.FILTER
    return content.cells if isinstance(content, Cells) else np.arange(plan.grid.size)
