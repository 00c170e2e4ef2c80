"""The examples that the papers work out, priced and routed: the numbers come out exactly.

One document has 10^9 bytes and prices are per 10^9 bytes, so that a cost is the paper's own number.
"""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

from ramify.content.events.events import EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import OverlayError
from ramify.network.graphs.examples import MajumderExample, kyra_figure_4, majumder_i2, majumder_i3
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import Tree, shortest_path_tree
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Admission, AnyOf, Channel, ChannelTree, Plan, Pruning, Serves
from ramify.planning.pricing.price import Price, price
from worlds import SCHEMA

GB = 10**9


def classes_of(example: MajumderExample, schema: EventSchema = SCHEMA) -> Classes:
    """One class per subscription and broker."""
    rows = [
        Subscription(f"{name}@{broker}", broker, broker, sql=f"topic = '{name}'")
        for name, brokers in example.subscriptions.items()
        for broker in brokers
    ]
    return Classes.collapse(rows, example.overlay, schema.attributes)


def one_document_each(example: MajumderExample, classes: Classes) -> Demand:
    """One document per subscription, published at the example's publisher."""
    origin = example.overlay.index[example.publisher]
    return Demand.of(
        (origin, [classes.class_of[f"{name}@{broker}"] for broker in brokers], 1, GB)
        for name, brokers in example.subscriptions.items()
    )


def priced(
    example: MajumderExample, trees: Iterable[tuple[ChannelTree, list[int]]], classes: Classes
) -> Price:
    """A channel per tree with the classes that it serves; checked against the simulator."""
    channels = tuple(
        Channel(f"t{i}", Admission(AnyOf()), Serves.at_hosts(served, classes), Pruning.FILTER, tree)
        for i, (tree, served) in enumerate(trees)
    )
    plan = Plan("example", example.overlay, classes, channels)
    demand = one_document_each(example, classes)
    made = price(plan, demand)
    np.testing.assert_array_equal(made.payload, Simulator(plan).simulate_demand(demand).payload)
    assert made.undelivered == 0
    return made


def links(example: MajumderExample, pairs: Iterable[tuple[str, str]]) -> ChannelTree:
    index = example.overlay.index
    rows = [(index[a], index[b]) for a, b in pairs]
    return ChannelTree(np.array(rows, dtype=np.int32).reshape(-1, 2))


def of(tree: Tree) -> ChannelTree:
    return ChannelTree(tree.links(), tree.root)


# -------------------------------------------------------------------------------------- Example I.1


def test_example_i1_prunes_the_last_hop_of_the_one_that_wants_motorola_too() -> None:
    # P at np; na wants Nokia and Motorola, nb wants Nokia: np - m - na and m - nb.
    pairs = [("np", "m"), ("m", "na"), ("m", "nb")]
    overlay = Overlay.build("i1", ["np", "m", "na", "nb"], [Link.symmetric(*pair) for pair in pairs])
    rows = [
        Subscription("both", "a", "na", keywords=(("Nokia", "Motorola"),)),
        Subscription("nokia", "b", "nb", keywords=("Nokia",)),
    ]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    tree = ChannelTree(overlay.ends, 0)
    channel = Channel("t", Admission(AnyOf()), Serves.at_hosts([0, 1], classes), Pruning.FILTER, tree)
    plan = Plan("i1", overlay, classes, (channel,))
    both = price(plan, Demand.of([(0, (0, 1), 1, GB)]))
    assert both.messages[:, 0].tolist() == [1, 1, 1]
    assert both.cost == 3.0
    nokia = price(plan, Demand.of([(0, (1,), 1, GB)]))
    assert nokia.messages[:, 0].tolist() == [1, 0, 1]
    assert nokia.cost == 2.0
    neither = price(plan, Demand.of([(0, (), 1, GB)]))
    assert neither.cost == 0.0
    steps = Simulator(plan).publish(0, -1, (1,), event="only Nokia")
    assert [(step.sender, step.receiver) for step in steps] == [(0, 1), (1, 3)]


# -------------------------------------------------------------------------------------- Example I.2


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("x", [1.0, 2.0, 10.0, 2.5])
def test_example_i2_costs_what_the_text_derives(n: int, x: float) -> None:
    example = majumder_i2(n, x)
    classes = classes_of(example)
    everyone = list(range(n))
    spine = [("v0", "u1"), *((f"u{i}", f"u{i + 1}") for i in range(1, n))]
    steiner = links(example, [*spine, *((f"u{i}", f"v{i}") for i in range(1, n + 1))])
    on_steiner = priced(example, [(steiner, everyone)], classes)
    # Document i goes i steps of x along the spine and one down.
    assert on_steiner.cost == sum(i * x + 1 for i in range(1, n + 1)) == example.costs["steiner"]
    spt = of(shortest_path_tree(example.overlay, example.overlay.index["v0"], "price"))
    on_spt = priced(example, [(spt, everyone)], classes)
    # n - 1 direct paths of x + 2; v1 is nearer over u1, at x + 1.
    assert on_spt.cost == n * (x + 2) - 1 == example.costs["spt"]
    # Each document has one destination: the shortest path is what no plan can beat.
    assert on_spt.gap == pytest.approx(1.0)
    assert on_spt.yardstick.opt == pytest.approx(on_spt.cost)


# -------------------------------------------------------------------------------------- Example I.3


def spanning_trees_of_a_ring(example: MajumderExample) -> list[ChannelTree]:
    """Every spanning tree by brute force over sets of links: those that are trees."""
    n = len(example.overlay)
    found = []
    for kept in combinations(example.overlay.ends.tolist(), n - 1):
        try:
            tree = Tree.of_links(n, list(kept), 0)
        except OverlayError:
            continue
        found.append(of(tree))
    return found


@pytest.mark.parametrize("n", [4, 6, 8, 10])
def test_example_i3_one_tree_costs_half_as_much_again_as_two(n: int) -> None:
    example = majumder_i3(n)
    classes = classes_of(example)
    everyone = list(range(len(classes)))
    single = spanning_trees_of_a_ring(example)
    assert len(single) == n  # a ring without one of its links
    best = min(priced(example, [(tree, everyone)], classes).cost for tree in single)
    assert best == 3 * n / 2 - 1 == example.costs["one_tree"]
    halves = [
        [classes.class_of[f"{name}@{broker}"] for broker in brokers]
        for name, brokers in example.subscriptions.items()
    ]
    ring = [(f"v{i}", f"v{i + 1}") for i in range(n - 1)]
    one_way = links(example, ring[: n // 2])
    other_way = links(example, [*ring[n // 2 :], (f"v{n - 1}", "v0")])
    two = priced(example, zip((one_way, other_way), halves, strict=True), classes)
    assert two.cost == n == example.costs["two_trees"]
    assert two.cost == pytest.approx(two.yardstick.bound.value)


def test_example_i3_as_printed_needs_no_second_tree() -> None:
    # v0..vn with disjoint halves, as the paper prints it: one tree costs n as well.
    n = 8
    names = [f"v{i}" for i in range(n + 1)]
    around = [Link.symmetric(a, b) for a, b in zip(names, [*names[1:], "v0"], strict=True)]
    overlay = Overlay.build("printed", names, around)
    wants = {"s1": tuple(names[1 : n // 2 + 1]), "s2": tuple(names[n // 2 + 1 :])}
    example = MajumderExample(overlay, "v0", wants, {})
    classes = classes_of(example)
    trees = spanning_trees_of_a_ring(example)
    best = min(priced(example, [(tree, list(range(len(classes))))], classes).cost for tree in trees)
    assert best == n


# ----------------------------------------------------------------------------------------- Kyra, Figure 4


def test_kyra_figure_4_sends_each_event_by_the_tree_of_its_zone() -> None:
    # Zones partition 0..9 inside each clique and over the trees; a tree has one broker of each clique.
    example = kyra_figure_4()
    for clique in example.cliques:
        covered = [
            e
            for server in clique
            for e in range(example.server_zones[server][0], example.server_zones[server][1] + 1)
        ]
        assert sorted(covered) == list(range(10))
    for name, pairs in example.tree_links.items():
        low, high = example.tree_zones[name]
        on_tree = {server for pair in pairs for server in pair}
        zones = [example.server_zones[server] for server in on_tree]
        for event in range(low, high + 1):
            holders = [z for z in zones if z[0] <= event <= z[1]]
            assert len(holders) == len(example.cliques), (name, event)
