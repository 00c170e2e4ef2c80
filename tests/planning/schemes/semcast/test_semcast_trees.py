"""SemCast's trees: always trees, within their bounds, and the same when brokers build them by messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from join_protocol import JoinNetwork
from ramify.errors import InputError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.steiner import Steiner
from ramify.network.trees.trees import Tree
from ramify.planning.plans.legs import latencies
from ramify.planning.schemes.semcast.trees import GrowingTree, TreeWays
from worlds import overlays

operations = st.lists(
    st.tuples(st.integers(0, 8), st.none() | st.sampled_from([0.0, 1.0, 2.0, 4.0, 7.0, 11.0, 20.0])),
    max_size=14,
)


def ways_of(overlay: Overlay) -> tuple[TreeWays, dict[tuple[int, int], float]]:
    return TreeWays.of(overlay, Steiner.of(overlay, "hops")), latencies(overlay)


def require_sound(tree: GrowingTree, overlay: Overlay) -> None:
    """A tree of overlay links from the root, every leaf a gateway, true distances."""
    made = Tree.of_links(len(overlay), tree.links(), tree.root)
    assert set(made.order.tolist()) == set(tree.parent)
    assert tree.gateways <= set(tree.parent)
    ms = latencies(overlay)
    for above, below in tree.links().tolist():
        assert (above, below) in ms
        assert tree.from_root_ms[below] == pytest.approx(tree.from_root_ms[above] + ms[above, below])
    for broker in tree.parent:
        assert tree.children[broker] == {b for b, above in tree.parent.items() if above == broker}
        assert tree.children[broker] or broker in tree.gateways or broker == tree.root


@settings(max_examples=150)
@given(overlay=overlays(), root=st.integers(0, 8), steps=operations, fallback=st.booleans())
def test_joins_and_leaves_keep_a_tree_and_every_bound(
    overlay: Overlay, root: int, steps: list[tuple[int, float | None]], fallback: bool
) -> None:
    n = len(overlay)
    ways, ms = ways_of(overlay)
    tree = GrowingTree(root % n, ways, ms)
    bounds: dict[int, float] = {}
    for broker, bound in steps:
        gateway = broker % n
        before = dict(tree.from_root_ms)
        if gateway in tree.gateways and bound is None:
            tree.leave(gateway)
            bounds.pop(gateway, None)
        elif bound is None:
            tree.join(gateway)
        else:
            known = gateway in tree.gateways
            kept = tree.join_within(gateway, bound, root_path=fallback)
            assert kept == (
                float(ways.ms[root % n, gateway]) <= bound
                or tree.from_root_ms.get(gateway, np.inf) <= bound
            )
            if kept:
                bounds[gateway] = bound
            elif fallback:
                assert tree.from_root_ms[gateway] == pytest.approx(float(ways.ms[root % n, gateway]))
            else:
                assert (gateway in tree.gateways) == known
        require_sound(tree, overlay)
        for gateway in tree.gateways & before.keys():
            assert tree.from_root_ms[gateway] <= before[gateway] + 1e-9
        for gateway, limit in bounds.items():
            assert tree.from_root_ms[gateway] <= limit + 1e-6


@settings(max_examples=150)
@given(
    overlay=overlays(),
    roots=st.lists(st.integers(0, 8), min_size=1, max_size=2),
    steps=st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 8), st.none() | st.sampled_from([0.0, 2.0, 4.0, 7.0, 11.0])
        ),
        max_size=14,
    ),
    fallback=st.booleans(),
    order=st.none() | st.integers(0, 9),
)
def test_brokers_build_the_same_tree_by_messages(
    overlay: Overlay,
    roots: list[int],
    steps: list[tuple[int, int, float | None]],
    fallback: bool,
    order: int | None,
) -> None:
    n = len(overlay)
    ways, ms = ways_of(overlay)
    network = JoinNetwork(n, ways, ms, None if order is None else np.random.default_rng(order))
    trees = [GrowingTree(root % n, ways, ms) for root in roots]
    for channel, root in enumerate(roots):
        network.open(channel, root % n)
    for which, broker, bound in steps:
        channel, gateway = which % len(roots), broker % n
        tree = trees[channel]
        sent = network.counts.total()
        if bound is None and gateway in tree.gateways:
            tree.leave(gateway)
            network.leave(channel, gateway)
        elif bound is None:
            came = tree.join(gateway)
            assert network.join(channel, gateway)
            assert network.counts.total() - sent == 2 * len(came)  # up the way and down again
        else:
            kept = tree.join_within(gateway, bound, root_path=fallback)
            assert network.join(channel, gateway, bound, root_path=fallback) == kept
        for number, each in enumerate(trees):
            assert network.links(number) == {(a, b) for a, b in each.links().tolist()}
            assert network.destinations[number] == each.gateways
            for other in network.brokers:
                place = other.places.get(number)
                assert (place is not None) == (other.index in each.parent)
                if place is not None:
                    assert place.children == each.children[other.index]
                    assert place.gateway == (other.index in each.gateways)
                    assert place.left is None
                    assert place.from_root_ms == pytest.approx(each.from_root_ms[other.index])


def test_a_crossed_broker_moves_onto_the_faster_path() -> None:
    """Root r; the tree goes r - a - b by 10 + 10. c asks for 5 behind b: r - d - b - c takes 1 each."""
    links = [
        Link.symmetric("r", "a", 1.0, latency_ms=10.0),
        Link.symmetric("a", "b", 1.0, latency_ms=10.0),
        Link.symmetric("r", "d", 5.0, latency_ms=1.0),
        Link.symmetric("d", "b", 5.0, latency_ms=1.0),
        Link.symmetric("b", "c", 1.0, latency_ms=1.0),
    ]
    overlay = Overlay.build("crossed", ["r", "a", "b", "c", "d"], links)
    ways = TreeWays.of(overlay, Steiner.of(overlay, "mean_price"))
    tree = GrowingTree(0, ways, latencies(overlay))
    tree.join(2)
    assert tree.links().tolist() == [[0, 1], [1, 2]]
    assert tree.join_within(3, 5.0)
    assert sorted(map(tuple, tree.links().tolist())) == [(0, 4), (2, 3), (4, 2)]  # a is not needed any more
    assert tree.from_root_ms[2] == 2.0


def test_only_gateways_leave() -> None:
    overlay = Overlay.build("two", ["a", "b"], [Link.symmetric("a", "b", 1.0)])
    ways, ms = ways_of(overlay)
    with pytest.raises(InputError, match="not a gateway"):
        GrowingTree(0, ways, ms).leave(1)
    network = JoinNetwork(2, ways, ms)
    network.open(7, 0)
    with pytest.raises(InputError, match="not a gateway"):
        network.leave(7, 1)


@given(overlay=overlays(), root=st.integers(0, 8), brokers=st.sets(st.integers(0, 8)))
def test_a_tree_can_be_taken_up_again(overlay: Overlay, root: int, brokers: set[int]) -> None:
    n = len(overlay)
    ways, ms = ways_of(overlay)
    tree = GrowingTree(root % n, ways, ms)
    for broker in sorted(brokers):
        tree.join(broker % n)
    again = GrowingTree.resume(Tree.of_links(n, tree.links(), tree.root), tree.gateways, ways, ms)
    assert (again.parent, again.children, again.gateways) == (tree.parent, tree.children, tree.gateways)
    assert again.from_root_ms == pytest.approx(tree.from_root_ms)
