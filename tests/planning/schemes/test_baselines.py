"""Baselines, what people run today, explicit headers: what they deliver and cost, by brute force."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, OverlayError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import Price, price
from ramify.planning.schemes.catalog import MAIN, SCHEMES, make_plan, parameters, scheme_from
from worlds import SCHEMA, World, overlays, worlds

MINE = [
    *("unicast", "broadcast", "mst", "spt", "spt-best", "spt-unpruned", "spt-best-unpruned", "per-source"),
    *("explicit", "explicit-list", "mirror-all", "hub"),
]
FLOODS = ("broadcast", "spt-unpruned", "spt-best-unpruned")
GB = 1e9


def distinct_prices(overlay: Overlay) -> Overlay:
    """The same links at prices of which no two sums are equal: every shortest path is the only one."""
    price = 1 + 0.5 ** np.arange(1, overlay.price.size + 1)
    return Overlay(overlay.name, overlay.brokers, overlay.ends, price, overlay.latency_ms)


def directed(overlay: Overlay) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(overlay)))
    for (a, b), (there, back) in zip(overlay.ends.tolist(), overlay.price.tolist(), strict=True):
        graph.add_edge(a, b, weight=there)
        graph.add_edge(b, a, weight=back)
    return graph


@st.composite
def problems(draw: st.DrawFn, *, ties: bool = True) -> Problem:
    """A class at some brokers, events that match any of them from anywhere: no filter decides."""
    overlay = draw(overlays())
    overlay = overlay if ties else distinct_prices(overlay)
    hosts = draw(st.lists(st.sampled_from(overlay.brokers), max_size=6))
    rows = [Subscription(f"s{i}", f"c{i}", host, sql=f"x = {i}") for i, host in enumerate(hosts)]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    return Problem.of(overlay, classes, draw(demands(len(overlay), len(classes))))


def demands(brokers: int, classes: int) -> st.SearchStrategy[Demand]:
    matched = st.lists(st.integers(0, classes - 1)) if classes else st.just([])
    rows = st.tuples(st.integers(0, brokers - 1), matched, st.integers(1, 5), st.integers(0, 900))
    return st.builds(Demand.of, st.lists(rows, max_size=8))


def hosts_of(problem: Problem, demand: Demand, i: int) -> set[int]:
    return set(problem.classes.broker[demand[i]].tolist()) - {int(demand.publisher[i])}


def priced(name: str, problem: Problem) -> Price:
    return price(make_plan(name, problem, 3), problem.demand)


@pytest.mark.parametrize("name", MINE)
@settings(max_examples=15)
@given(data=st.data())
def test_every_plan_is_sound_and_delivers_what_was_never_seen(name: str, data: st.DataObject) -> None:
    world: World = data.draw(worlds())
    problem = world.problem
    plan = check(make_plan(name, problem, 1), problem)
    unseen = data.draw(demands(len(world.overlay), len(world.classes)))
    assert price(plan, problem.demand).undelivered == 0
    assert price(plan, unseen).undelivered == 0


@settings(max_examples=40)
@given(problem=problems())
def test_unicast_costs_the_sum_of_distances(problem: Problem) -> None:
    graph, demand = directed(problem.overlay), problem.demand
    far = dict(nx.all_pairs_dijkstra_path_length(graph))
    wanted = sum(
        int(demand.size[i]) * far[int(demand.publisher[i])][host]
        for i in range(len(demand))
        for host in hosts_of(problem, demand, i)
    )
    assert priced("unicast", problem).cost == pytest.approx(wanted / GB)


@pytest.mark.parametrize("name", ["per-source", "explicit-list"])
@settings(max_examples=40)
@given(problem=problems(ties=False))
def test_per_source_and_lists_cost_the_union_of_cheapest_directed_paths(
    name: str, problem: Problem
) -> None:
    graph, demand = directed(problem.overlay), problem.demand
    wanted = 0.0
    for i in range(len(demand)):
        paths = nx.single_source_dijkstra_path(graph, int(demand.publisher[i]))
        crossed = {arc for host in hosts_of(problem, demand, i) for arc in nx.utils.pairwise(paths[host])}
        wanted += int(demand.size[i]) * sum(graph.edges[arc]["weight"] for arc in crossed)
    assert priced(name, problem).cost == pytest.approx(wanted / GB)


@pytest.mark.parametrize("name", FLOODS)
@settings(max_examples=40)
@given(problem=problems())
def test_flooding_crosses_one_link_less_than_brokers_for_every_event(name: str, problem: Problem) -> None:
    made = priced(name, problem)
    assert made.message_count == problem.demand.events * (len(problem.overlay) - 1)


@settings(max_examples=40)
@given(problem=problems())
def test_broadcast_floods_the_tree_of_least_mean_price(problem: Problem) -> None:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(problem.overlay)))
    for (a, b), length in zip(problem.overlay.ends.tolist(), problem.lengths.tolist(), strict=True):
        graph.add_edge(a, b, weight=length)
    least = nx.minimum_spanning_tree(graph).size(weight="weight")
    assert tree_length(make_plan("broadcast", problem), problem) == pytest.approx(least)


def tree_length(plan: Plan, problem: Problem) -> float:
    tree = plan.channels[0].tree
    assert tree is not None
    names = problem.overlay.brokers
    return sum(
        problem.lengths[problem.overlay.link_between(names[a], names[b])] for a, b in tree.links.tolist()
    )


@settings(max_examples=40)
@given(problem=problems())
def test_no_root_is_cheaper_than_the_best(problem: Problem) -> None:
    """By mean price, which is what one tree for all publishers is planned with."""
    mean = problem.overlay.price.mean(axis=1)
    even = replace(
        problem,
        overlay=Overlay.from_arrays("even", problem.overlay.brokers, problem.overlay.ends, price=mean),
    )
    best = cost_as_planned(make_plan("spt-best", even), even)
    for root in even.overlay.brokers:
        assert best <= cost_as_planned(make_plan(f"spt={root}", even), even) * (1 + 1e-9)


def cost_as_planned(plan: Plan, problem: Problem) -> float:
    """Priced with the weights that planning counts: bytes, and one per event."""
    demand = replace(problem.demand, size=problem.demand.size + problem.demand.count)
    made = price(plan, demand)
    lengths = problem.lengths
    return float((made.payload.sum(axis=1) * lengths).sum())


@settings(max_examples=40)
@given(problem=problems(ties=False), data=st.data())
def test_everything_pays_the_leg_to_the_hub_then_the_union_of_paths(
    problem: Problem, data: st.DataObject
) -> None:
    graph, demand, overlay = directed(problem.overlay), problem.demand, problem.overlay
    site = data.draw(st.integers(0, len(overlay) - 1))
    paths = nx.single_source_dijkstra_path(graph, site)
    legs = tree = 0.0
    for i in range(len(demand)):
        origin, size = int(demand.publisher[i]), int(demand.size[i])
        if origin in graph[site]:
            legs += size * graph.edges[origin, site]["weight"]
        else:
            legs += size * nx.dijkstra_path_length(graph, origin, site)
        crossed = {arc for host in hosts_of(problem, demand, i) for arc in nx.utils.pairwise(paths[host])}
        tree += size * sum(graph.edges[arc]["weight"] for arc in crossed)
    made = priced(f"hub={overlay.brokers[site]}", problem)
    assert made.cost_without_legs == pytest.approx(tree / GB)
    assert made.cost == pytest.approx((legs + tree) / GB)


@settings(max_examples=40)
@given(problem=problems())
def test_the_best_hub_is_cheapest_of_all_where_every_link_costs_the_same(problem: Problem) -> None:
    flat = replace(
        problem, overlay=Overlay.from_arrays("flat", problem.overlay.brokers, problem.overlay.ends)
    )
    best = cost_as_planned(make_plan("hub", flat), flat)
    others = [cost_as_planned(make_plan(f"hub={site}", flat), flat) for site in flat.overlay.brokers]
    assert best == pytest.approx(min(others))


@settings(max_examples=40)
@given(problem=problems())
def test_mirrors_reach_exactly_the_hosts_and_take_direct_links(problem: Problem) -> None:
    hosts = set(problem.classes.broker.tolist())
    plan = make_plan("mirror-all", problem)
    for channel in plan.channels:
        assert channel.tree is not None
        (source,) = channel.admits.publishers or ()
        tree = nx.Graph(channel.tree.links.tolist())
        tree.add_node(source)
        near = {b if a == source else a for a, b in problem.overlay.ends.tolist() if source in (a, b)}
        assert hosts <= set(tree)
        assert {v for v in tree if tree.degree(v) == 1 and v != source} <= hosts
        assert near & hosts <= set(tree[source])
    assert {source for c in plan.channels for source in c.admits.publishers or ()} == set(
        problem.publishers.tolist()
    )


def test_on_a_mesh_mirrors_are_stars_even_where_relays_are_cheaper() -> None:
    links = [Link.symmetric("a", "b", 1), Link.symmetric("b", "c", 1), Link.symmetric("a", "c", 9)]
    overlay = Overlay.build("mesh", "abc", links)
    rows = [Subscription(f"s{name}", f"c{name}", name, sql="x = 1") for name in "abc"]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([(0, [], 1, 1000)]), publishers=["a"])
    made = priced("mirror-all", problem)
    assert made.message_count == 2
    assert made.cost == pytest.approx(10 * 1000 / GB)


def test_the_leg_is_cheapest_in_the_direction_of_travel() -> None:
    """From a to d by b costs 2 and back 18; by c it costs 10 and back 2."""
    links = [
        Link("a", "b", 1, 9, 1),
        Link("b", "d", 1, 9, 1),
        Link("a", "c", 5, 1, 1),
        Link("c", "d", 5, 1, 1),
    ]
    overlay = Overlay.build("square", "abcd", links)
    problem = Problem.of(overlay, Classes.collapse([], overlay, {}), Demand.of([(0, [], 1, 1000)]))
    assert priced("hub=d", problem).cost == pytest.approx(2 * 1000 / GB)


def test_a_hub_between_others_passes_on_what_it_does_not_want() -> None:
    overlay = overlay_from("line:5")
    names = overlay.brokers
    classes = Classes.collapse([Subscription("s", "c", names[4], sql="x = 1")], overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([(0, [0], 1, 10), (3, [], 1, 10)]))
    made = priced(f"hub={names[1]}", problem)
    assert made.leg_messages.sum() == 1 + 2  # 0 -> 1, and 3 -> 2 -> 1 though nobody wants it
    assert made.message_count == 3 + 3
    assert made.undelivered == 0


@pytest.mark.parametrize("name", list(SCHEMES))
@pytest.mark.parametrize("overlay", ["ring:1", "line:2", "ring:4"])
@pytest.mark.parametrize("fee", [0.0, 2.0])
def test_plain_problems_have_plain_plans(name: str, overlay: str, fee: float) -> None:
    graph = overlay_from(overlay)
    graph = Overlay.from_arrays(overlay, graph.brokers, graph.ends, price=np.full(len(graph.ends), fee))
    row = Subscription("s", "c", graph.brokers[0], sql="x = 1")
    for rows in ([], [row]):
        classes = Classes.collapse(rows, graph, SCHEMA.attributes)
        all_seen = [[], [(0, range(len(rows)), 3, 30)], [(len(graph) - 1, range(len(rows)), 1, 0)]]
        for seen in all_seen:
            problem = Problem.of(graph, classes, Demand.of(seen))
            plan = check(make_plan(name, problem), problem)
            for demand in map(Demand.of, all_seen):
                assert price(plan, demand).undelivered == 0


@settings(max_examples=8)
@given(problem=problems(), seed=st.integers(0, 9))
def test_the_same_seed_makes_the_same_plan(problem: Problem, seed: int) -> None:
    for name in MINE:
        assert make_plan(name, problem, seed) == make_plan(name, problem, seed)


def test_a_random_root_follows_the_seed() -> None:
    problem = Problem.of(
        overlay := overlay_from("ring:50"), Classes.collapse([], overlay, {}), Demand.of([])
    )
    roots = [make_plan("spt", problem, seed).settings["rooted_at"] for seed in range(5)]
    assert len(set(roots)) > 1


# ------------------------------------------------------------------------------------------- by name


def test_settings_tell_what_was_asked_for() -> None:
    problem = Problem.of(
        overlay := overlay_from("ring:4"), Classes.collapse([], overlay, {}), Demand.of([])
    )
    plan = make_plan(f"hub={overlay.brokers[2]}", problem, 5)
    assert plan.scheme == "hub"
    assert plan.settings == {"site": overlay.brokers[2], "seed": 5, "hub": overlay.brokers[2]}


def test_specs_set_parameters() -> None:
    assert scheme_from("hub=a:b,c=d")[2].site == "a:b,c=d"
    assert scheme_from("hub:site=x")[2] == scheme_from("hub=x")[2]
    assert scheme_from(" portfolio : trees = 3 , seconds=0.5 ")[2].trees == 3
    assert scheme_from("mult:seconds=none")[2].seconds is None
    assert scheme_from("mult:seconds=2")[2].seconds == 2.0
    assert scheme_from("single:tree=akpw")[2].tree == "akpw"
    assert scheme_from("single-swap")[2].tree == "swap"
    assert not scheme_from("spt-best-unpruned")[2].pruned
    assert scheme_from("spt=v3")[2].root == "v3"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("stp", "unknown scheme 'stp'. Choose one of: unicast, broadcast"),
        ("", "unknown scheme ''"),
        ("portfolio:k=3", "unknown parameter 'k' of scheme portfolio. Parameters: trees, rounds, seconds"),
        ("portfolio:3", "'3' has no value"),
        ("portfolio:trees=many", "trees = 'many' is not a whole number"),
        ("portfolio:trees=0", "trees = 0. Allowed: a whole number from 1"),
        ("portfolio:seconds=nan", "seconds = nan. Allowed"),
        ("mst:root=a", "scheme mst has no parameters"),
        ("mst=a", "scheme mst has no parameters"),
        ("spt-best:root=v1", "scheme spt-best has no parameters, so 'root' cannot be set"),
        ("spt=", "root = ''. Allowed: random, best"),
        ("hub=", "site = ''. Allowed: best"),
        ("single:tree=oak", "Allowed: star, akpw, swap"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_choices(spec: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        scheme_from(spec)
    assert says in str(caught.value)


@pytest.mark.parametrize("spec", ["hub=mars", "spt=mars", "spt-unpruned=mars"])
def test_an_unknown_site_is_named_and_how_to_list_them(spec: str) -> None:
    problem = Problem.of(
        overlay := overlay_from("ring:4"), Classes.collapse([], overlay, {}), Demand.of([])
    )
    with pytest.raises(OverlayError, match=r"'mars'.*ramify overlay SPEC --out FILE"):
        make_plan(spec, problem)


def test_every_name_has_defaults_and_its_main_parameter_exists() -> None:
    for name, scheme in SCHEMES.items():
        assert scheme_from(name)[0] == name
        assert name not in MAIN or MAIN[name] in parameters(scheme)
