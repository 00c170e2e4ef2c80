"""`Overlay.charged`: a link over an underlay costs what its route costs there, way by way."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import OverlayError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.graphs.underlay import Underlay


@st.composite
def over_routers(draw: st.DrawFn) -> Overlay:
    """Brokers on routers, several to one as well; ties among routes; prices that differ by direction."""
    n, routers = draw(st.integers(2, 7)), draw(st.integers(1, 8))
    ends = [(draw(st.integers(0, i - 1)), i) for i in range(1, routers)]
    every = [(i, j) for j in range(routers) for i in range(j)]
    ends += draw(st.lists(st.sampled_from(every), max_size=8)) if every else []
    # Either end may come first.
    ends = [pair if draw(st.booleans()) else pair[::-1] for pair in sorted(set(ends))]
    prices = st.sampled_from([0.0, 1.0, 2.0, 5.0, 0.25])
    below = Underlay(
        routers,
        np.array(ends, dtype=np.int32).reshape(-1, 2),
        [draw(st.sampled_from([1.0, 2.0, 3.0])) for _ in ends],
        [draw(st.integers(0, routers - 1)) for _ in range(n)],
        [draw(st.sampled_from([0.5, 1.0])) for _ in range(n)],
        price=np.array([[draw(prices), draw(prices)] for _ in ends]).reshape(-1, 2),
        access_price=np.array([[draw(prices), draw(prices)] for _ in range(n)]),
    )
    pairs = draw(
        st.lists(st.sampled_from([(i, j) for i in range(n) for j in range(n) if i < j]), unique=True)
    )
    pairs = [pair if draw(st.booleans()) else pair[::-1] for pair in pairs]
    latency = [below.latency_between(a, b) for a, b in pairs]
    own = [[draw(prices), draw(prices)] for _ in pairs]
    return Overlay(
        "drawn", [f"v{i}" for i in range(n)], np.array(pairs, dtype=np.int32).reshape(-1, 2),
        np.array(own).reshape(-1, 2), latency, None, below,
    )  # fmt: skip


def paid(below: Underlay, a: int, b: int) -> float:
    """Follow the path from a to b link by link; each is paid in the direction in which it is crossed."""
    routers = len(below.ends)
    at: int | None = None  # the router that was reached; None while at the broker
    total = 0.0
    for link in below.path(a, b).tolist():
        if link >= routers:
            broker = link - routers
            leaving = at is None
            assert broker == (a if leaving else b)
            at = int(below.attachment[broker])
            total += below.link_price[link, 0 if leaving else 1]
        else:
            x, y = below.ends[link].tolist()
            assert at in (x, y)
            total += below.link_price[link, 0 if at == x else 1]
            at = y if at == x else x
    return float(total)


@settings(max_examples=60)
@given(over_routers())
def test_a_link_costs_the_links_below_it_each_in_the_direction_crossed(overlay: Overlay) -> None:
    below = overlay.underlay
    assert below is not None
    charged = overlay.charged()
    by_hand = [[paid(below, a, b), paid(below, b, a)] for a, b in overlay.ends.tolist()]
    np.testing.assert_allclose(charged.price, np.array(by_hand).reshape(-1, 2))


@settings(max_examples=30)
@given(over_routers())
def test_charging_changes_prices_alone_and_once(overlay: Overlay) -> None:
    charged = overlay.charged()
    assert charged.charged() is charged
    assert (charged.name, charged.brokers, charged.sites) == (overlay.name, overlay.brokers, overlay.sites)
    np.testing.assert_array_equal(charged.ends, overlay.ends)
    np.testing.assert_array_equal(charged.latency_ms, overlay.latency_ms)
    assert charged.underlay is overlay.underlay


@settings(max_examples=30)
@given(over_routers())
def test_the_route_that_is_paid_is_one_of_least_latency(overlay: Overlay) -> None:
    below = overlay.underlay
    assert below is not None
    graph = nx.Graph()
    graph.add_nodes_from(range(below.routers))
    for (x, y), ms in zip(below.ends.tolist(), below.latency_ms.tolist(), strict=True):
        graph.add_edge(x, y, ms=ms)
    for a, b in overlay.ends.tolist():
        taken = below.link_latency_ms[below.path(a, b)].sum()
        routers = int(below.attachment[a]), int(below.attachment[b])
        least = nx.shortest_path_length(graph, *routers, weight="ms")
        assert taken == pytest.approx(least + below.access_latency_ms[[a, b]].sum())
        np.testing.assert_array_equal(below.path(b, a), below.path(a, b)[::-1])


def test_without_an_underlay_an_overlay_is_charged_as_it_stands() -> None:
    overlay = Overlay.build("pair", ["a", "b"], [Link("a", "b", 2.0, 3.0, 1.0)])
    assert overlay.charged() is overlay


def test_brokers_on_one_router_pay_their_access_links() -> None:
    # a leaves for 1 and b receives for 20; the other way b leaves for 10 and a receives for 2.
    below = Underlay(1, [], [], [0, 0], price=0.0, access_price=[[1.0, 2.0], [10.0, 20.0]])
    overlay = Overlay.build("pair", ["a", "b"], [Link.symmetric("a", "b")], underlay=below)
    assert overlay.charged().price.tolist() == [[21.0, 12.0]]


def test_a_route_by_hand() -> None:
    # Routers 0 - 1 - 2 at 1 ms each against 0 - 2 at 5 ms: the way is over 1. There 3 + 4, back 30 + 40,
    # the second link being given from 2 to 1.
    below = Underlay(
        3, [(0, 1), (2, 1), (0, 2)], [1.0, 1.0, 5.0], [0, 2],
        price=[[3.0, 30.0], [40.0, 4.0], [0.0, 0.0]],
    )  # fmt: skip
    overlay = Overlay.build("pair", ["a", "b"], [Link.symmetric("a", "b")], underlay=below)
    assert overlay.charged().price.tolist() == [[7.0, 70.0]]


def test_a_link_without_a_route_below_is_an_error() -> None:
    below = Underlay(2, [], [], [0, 1])
    overlay = Overlay.build("pair", ["a", "b"], [Link.symmetric("a", "b")], underlay=below)
    with pytest.raises(OverlayError, match="no route between broker 0 and broker 1"):
        overlay.charged()
