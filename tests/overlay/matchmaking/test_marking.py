"""Marking: optimal against brute force, the papers' worked examples, and over any plan's trees."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import LimitError, OverlayError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.network.trees.trees import shortest_path_tree
from ramify.overlay.matchmaking.marking import Marking, closure, mark, mark_trees, weigh
from ramify.overlay.matchmaking.trees import MatchTrees
from ramify.planning.plans.check import faults
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.schemes.catalog import make_plan
from worlds import World, worlds

Link = tuple[int, int]
Paths = dict[tuple[int, int], list[Link]]


def paths_of(trees: MatchTrees) -> Paths:
    """(publisher, subscriber) -> the links between them, read off the parents one by one."""
    found: Paths = {}
    for row, x in enumerate(trees.origin.tolist()):
        for y in trees.broker.tolist():
            way = [y]
            while way[-1] != x:
                way.append(int(trees.parent[row, way[-1]]))
            found[x, y] = list(pairwise(reversed(way)))
    return found


def cost_by_definition(paths: Paths, f: dict[int, int], g: dict[int, int], p: set[Link]) -> int | None:
    """Equations 2 to 8, by walking messages over links; None when some pair never meets."""
    links = {link for way in paths.values() for link in way}
    stored: set[tuple[str, Link, int]] = set()
    for (x, y), way in paths.items():
        announced = 0
        while announced < len(way) and way[announced] in p:
            stored.add(("p", way[announced], x))
            announced += 1
        asked = len(way)
        while asked > 0 and way[asked - 1] not in p:
            asked -= 1
            stored.add(("s", way[asked], y))
        if announced < asked:
            return None
    assert all(link in links for _, link, _ in stored)
    return sum(f[who] if kind == "p" else g[who] for kind, _, who in stored)


def brute_force(paths: Paths, f: dict[int, int], g: dict[int, int]) -> int:
    links = sorted({link for way in paths.values() for link in way})
    costs = (
        cost_by_definition(paths, f, g, {link for link, on in zip(links, choice, strict=True) if on})
        for choice in product((False, True), repeat=len(links))
    )
    return min(cost for cost in costs if cost is not None)


def as_set(made: Marking) -> set[Link]:
    return {link for link, kind in made.marks.items() if kind == "p"}


def random_counts(rng: np.random.Generator, nodes: int) -> dict[int, int]:
    chosen = rng.choice(nodes, int(rng.integers(1, min(nodes, 3) + 1)), replace=False)
    return {int(v): int(rng.integers(1, 6)) for v in chosen}


def random_trees(rng: np.random.Generator, kind: str) -> tuple[MatchTrees, dict[int, int], dict[int, int]]:
    nodes = int(rng.integers(2, 8 if kind == "any" else 6))
    f, g = random_counts(rng, nodes), random_counts(rng, nodes)
    spanning = np.array([(int(rng.integers(v)), v) for v in range(1, nodes)])
    if kind == "shared":
        return MatchTrees.shared(nodes, spanning, f, g), f, g
    if kind == "any":
        parent = np.empty((len(f), nodes), dtype=np.int32)
        for row, root in enumerate(sorted(f)):
            order = [root, *rng.permutation([v for v in range(nodes) if v != root]).tolist()]
            parent[row, root] = -1
            for i in range(1, nodes):
                parent[row, order[i]] = order[int(rng.integers(i))]
        return MatchTrees.directed(parent, f, g), f, g
    extra = {(a, b) for a in range(nodes) for b in range(a + 1, nodes) if rng.random() < 0.5}
    ends = np.array(sorted(extra | set(map(tuple, spanning.tolist()))))
    price = rng.integers(1, 6, (len(ends), 2)).astype(float)
    if kind == "symmetric":
        price[:, 1] = price[:, 0]
    overlay = Overlay.from_arrays("tiny", [f"b{v}" for v in range(nodes)], ends, price=price)
    return MatchTrees.per_source(overlay, f, g), f, g


@pytest.mark.parametrize("kind", ["shared", "symmetric", "directed", "any"])
def test_marking_equals_brute_force(kind: str) -> None:
    """250 tiny instances of each kind, and on the way: validity, Lemma 1, greedy against the cut."""
    forced = seed = done = 0
    while done < 250:
        seed += 1
        trees, f, g = random_trees(np.random.default_rng(seed), kind)
        paths = paths_of(trees)
        made = mark_trees(trees)
        loads = made.loads
        if len(loads.links) > 10:
            continue
        done += 1
        where = f"{kind}, seed {seed}"
        assert loads.is_valid(made.publishes), where
        assert cost_by_definition(paths, f, g, as_set(made)) == made.cost, where
        assert made.cost == brute_force(paths, f, g), where
        everything = set(map(tuple, loads.links.tolist()))
        assert loads.pub_everywhere == cost_by_definition(paths, f, g, everything), where
        assert loads.sub_everywhere == cost_by_definition(paths, f, g, set()), where
        cut, flow = closure(loads.eta, loads.below)
        assert np.array_equal(cut, ~made.publishes), where
        assert made.cost == loads.pub_everywhere - (int(loads.eta.clip(0).sum()) - flow), where
        assert loads.is_monotone or kind != "shared", where
        forced += not loads.is_monotone
    assert forced or kind == "shared", "no instance needed the cut: the test shows little"


def test_weights_follow_the_direction_that_subscriptions_travel() -> None:
    """From the subscriber it is cheap over 1, back it is not: the tree is the former, reversed."""
    overlay = Overlay.from_arrays(
        "ring", "abc", [(0, 1), (1, 2), (0, 2)], price=[(9.0, 1.0), (9.0, 1.0), (1.0, 9.0)]
    )
    trees = MatchTrees.per_source(overlay, {0: 1}, {2: 1})
    assert paths_of(trees) == {(0, 2): [(0, 1), (1, 2)]}


def test_the_instance_on_which_the_printed_algorithm_fails() -> None:
    """Trees 7->1->2 and 1->2->7: marking 7->1 s and 1->2 p, as printed, is invalid; all s costs 12."""
    parent = np.full((2, 8), -2)
    parent[0, [1, 2, 7]] = -1, 1, 2
    parent[1, [7, 1, 2]] = -1, 7, 1
    # tree 7 does not serve itself and tree 1 not itself: no link of theirs leads back
    made = mark_trees(MatchTrees.directed(parent, {7: 5, 1: 2}, {2: 1, 7: 5}))
    assert made.marks == {(7, 1): "s", (1, 2): "s", (2, 7): "s"}
    assert made.cost == 12
    links = made.loads.links.tolist()
    printed = np.array([link == [1, 2] for link in links])
    assert not made.loads.is_valid(printed)


def test_figure_2() -> None:
    """A publishes two descriptors, C wants one and D three: 8 and 6 by flooding, 5 at best."""
    made = mark_trees(MatchTrees.shared(4, [(0, 1), (1, 2), (1, 3)], {0: 2}, {2: 1, 3: 3}))
    assert (made.loads.sub_everywhere, made.loads.pub_everywhere, made.cost) == (8, 6, 5)
    assert made.marks == {(0, 1): "p", (1, 2): "s", (1, 3): "p"}
    assert not made.loads.is_valid(np.array([False, True, True])), "(d): p below s"


def test_figure_5() -> None:
    """P1-A-B-C-S and P2-A-B-D-S: more is announced on AB than on BC after it."""
    p1, p2, a, b, c, d, s = range(7)
    parent = np.full((2, 7), -2)
    parent[0, [p1, a, b, c, s]] = -1, p1, a, b, c
    parent[1, [p2, a, b, d, s]] = -1, p2, a, b, d
    made = mark_trees(MatchTrees.directed(parent, {p1: 2, p2: 2}, {s: 3}))
    loads = made.loads
    sigma = {(u, v): n for (u, v), n in zip(loads.links.tolist(), loads.sigma.tolist(), strict=True)}
    assert sigma[a, b] == 4
    assert sigma[b, c] == 2
    assert not loads.is_monotone
    assert (made.cost, loads.pub_everywhere, loads.sub_everywhere) == (16, 16, 21)


def test_figure_7_flow() -> None:
    """Links a to g: the gains of a and b are lost on d; e and g become s-links."""
    eta = {"a": 1, "b": 1, "c": -1, "d": -1, "e": 1, "f": -2, "g": 0}
    at = {name: i for i, name in enumerate(eta)}
    arcs = [(at[t], at[q]) for t in "ab" for q in "df"]
    chosen, flow = closure(list(eta.values()), arcs)
    assert {name for name in eta if chosen[at[name]]} == {"e", "g"}
    assert flow == 2


def test_a_gain_that_pays_for_its_losses_is_taken() -> None:
    assert closure([3, -1, -1, -4], [(0, 1), (1, 2)])[0].tolist() == [True, True, True, False]


def test_loads_that_one_cut_cannot_count_are_refused() -> None:
    with pytest.raises(LimitError, match="larger units"):
        closure([2**31], [])


def test_nothing_published_costs_nothing() -> None:
    for f, g in (({}, {1: 2}), ({0: 3}, {})):
        made = mark_trees(MatchTrees.shared(3, [(0, 1), (1, 2)], f, g))
        assert made.cost == 0
        assert made.marks == {}


def test_a_subscriber_that_no_tree_reaches_is_named() -> None:
    with pytest.raises(OverlayError, match="does not reach broker 2"):
        MatchTrees.shared(3, [(0, 1)], {0: 1}, {2: 1})


@given(worlds(), st.sampled_from(["mst", "per-source", "single", "semcast"]), st.data())
@settings(max_examples=30, deadline=None)
def test_any_plan_with_trees_is_marked(world: World, scheme: str, data: st.DataObject) -> None:
    plan = make_plan(scheme, world.problem, 1)
    names = sorted({world.overlay.brokers[o] for o in world.problem.demand.publisher.tolist()})
    if not names:
        return
    drawn = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=6))
    marked, made = mark(plan, [Announced(name) for name in drawn])
    assert not list(faults(marked, world.problem))
    assert made.loads.is_valid(made.publishes)
    assert made.cost <= min(made.loads.pub_everywhere, made.loads.sub_everywhere)
    assert decode_plan(encode_plan(marked)).channels == marked.channels
    for channel in marked.channels:
        assert all(made.marks[link] == kind for link, kind in channel.marks.items())
    on = {link for channel in marked.channels for link in channel.marks}
    assert on == set(made.marks)


class Announced:
    """An advertisement, as far as marking looks."""

    def __init__(self, broker: str) -> None:
        self.broker = broker


def test_shared_trees_of_a_large_overlay_are_monotone() -> None:
    overlay = overlay_from("majumder:500")
    rng = np.random.default_rng(3)
    f = {int(v): int(rng.integers(1, 50)) for v in rng.choice(500, 60, replace=False)}
    g = {int(v): int(rng.integers(1, 50)) for v in rng.choice(500, 60, replace=False)}
    loads = weigh(MatchTrees.shared(500, shortest_path_tree(overlay, 0, "price").links(), f, g))
    assert loads.is_monotone
    assert np.array_equal(closure(loads.eta, loads.below)[0], loads.sigma >= loads.tau)


def test_a_publisher_with_two_trees_counts_once_on_a_link_of_both() -> None:
    """As on two channels of a plan; each group of subscriptions counts on the tree that serves it."""
    trees = MatchTrees(
        origin=np.array([0, 0]),
        parent=np.array([[-1, 0, 1], [-1, 0, -2]], dtype=np.int32),
        published={0: 5},
        broker=np.array([2, 1]),
        wanted=np.array([3, 4]),
        served=np.array([[True, False], [False, True]]),
    )
    loads = weigh(trees)
    assert loads.links.tolist() == [[0, 1], [1, 2]]
    assert loads.sigma.tolist() == [5, 5]
    assert loads.tau.tolist() == [7, 3]
