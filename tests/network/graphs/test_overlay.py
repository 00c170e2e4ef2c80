"""Claims about the overlay value: what it accepts, what it refuses and why, what never changes."""

import math
import pickle
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import DisconnectedError, OverlayError
from ramify.network.graphs.generators import full_mesh, ring
from ramify.network.graphs.overlay import Link, Overlay, Site
from ramify.network.graphs.transit_stub import kyra
from ramify.network.graphs.underlay import Underlay


def triangle() -> Overlay:
    return Overlay.build(
        "triangle",
        ["a", "b", "c"],
        [Link("a", "b", 1.0, 2.0, 10.0), Link("c", "b", 3.0, 4.0, 20.0), Link("a", "c", 5.0, 6.0, 30.0)],
    )


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    return count, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


def test_arrays_and_links_tell_the_same() -> None:
    overlay = triangle()
    assert overlay.ends.tolist() == [[0, 1], [2, 1], [0, 2]]
    assert overlay.price.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert overlay.links[1] == Link("c", "b", 3.0, 4.0, 20.0)
    assert Overlay.build("triangle", overlay.brokers, overlay.links) == overlay
    assert dict(overlay.index) == {"a": 0, "b": 1, "c": 2}
    assert len(overlay) == 3


def test_an_arc_pays_the_price_of_its_direction() -> None:
    overlay = triangle()
    start, neighbor, link, direction = overlay.adjacency
    out_of_b = slice(start[1], start[2])
    assert neighbor[out_of_b].tolist() == [0, 2]
    assert overlay.price[link[out_of_b], direction[out_of_b]].tolist() == [2.0, 4.0]
    arcs = overlay.arcs_along([2, 1, 0])
    assert overlay.price[arcs[:, 0], arcs[:, 1]].tolist() == [3.0, 2.0]


def test_links_are_found_from_either_end() -> None:
    overlay = triangle()
    assert overlay.link_between("b", "c") == overlay.link_between("c", "b") == 1
    with pytest.raises(OverlayError, match="unknown broker 'z'"):
        overlay.link_between("a", "z")
    with pytest.raises(OverlayError, match="no link joins v0 and v2"):
        ring(5).link_between("v0", "v2")


@pytest.mark.parametrize(
    ("brokers", "links", "reason"),
    [
        (["a", "a"], [], "broker 'a' is given twice"),
        (["a", ""], [], "bad broker name ''"),
        (["a", " b"], [], "bad broker name"),
        (["a", "b\n"], [], "bad broker name"),
        (["a", "x" * 201], [], "bad broker name"),
        (["a"], [("a", "z", 1, 1, 1)], "unknown broker 'z'"),
        (["a"], [("a", "a", 1, 1, 1)], "a - a joins a broker to itself"),
        (["a", "b"], [("a", "b", -1, 1, 1)], "a - b has a price"),
        (["a", "b"], [("a", "b", 1, math.nan, 1)], "a - b has a price"),
        (["a", "b"], [("a", "b", 1, 1, math.nan)], "a - b has a latency"),
        (["a", "b"], [("a", "b", 1, 1, math.inf)], "a - b has a latency"),
        (["a", "b"], [("a", "b", 1, 1, 1), ("b", "a", 1, 1, 1)], "b - a is given twice"),
    ],
)
def test_faults_are_named(
    brokers: list[str], links: list[tuple[str, str, float, float, float]], reason: str
) -> None:
    with pytest.raises(OverlayError, match=reason):
        Overlay.build("bad", brokers, [Link(*link) for link in links])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Overlay.build("", ["a"], []), "no name"),
        (lambda: Overlay.from_arrays("x", ["a"], [(0, 1)]), "outside 0..0"),
        (lambda: Overlay.from_arrays("x", ["a", "b"], [(0, 2**32 + 1)]), "outside 0..1"),
        (
            lambda: Overlay.from_arrays("x", ["a", "b"], [(0, 1)], latency_ms=[1, 2]),
            "1 links, 1 prices and 2",
        ),
        (lambda: Overlay.from_arrays("x", ["a"], [], sites=[]), "0 sites for 1 brokers"),
        (
            lambda: Overlay.build("x", ["a"], [], sites={"z": Site()}),
            "site is given for an unknown broker 'z'",
        ),
        (lambda: Overlay.build("x", ["a"], [], sites={"a": Site(latitude=91)}), "latitude 91"),
        (lambda: Overlay.build("x", ["a"], [], sites={"a": Site(longitude=math.nan)}), "longitude nan"),
        (lambda: Overlay.build("x", ["a"], [], underlay=Underlay(1, [], [], [])), "attaches 0 brokers"),
        (lambda: Underlay(2, [(0, 2)], [1.0], []), "outside 0..1"),
        (lambda: Underlay(2, [(0, 1), (1, 0)], [1.0, 1.0], []), "parallel"),
        (lambda: Underlay(2, [(0, 1)], [-1.0], []), "negative"),
        (lambda: Underlay(2, [(0, 1)], [1.0, 2.0], []), "1 links and 2 latencies"),
        (lambda: Underlay(2, [(0, 1)], [1.0], [], price=-1.0), "underlay price is negative"),
        (lambda: Underlay(2, [(0, 1)], [1.0], [], price=[(1.0, math.nan)]), "underlay price is"),
        (lambda: Underlay(2, [(0, 1)], [1.0], [0], access_price=math.inf), "underlay price is"),
        (lambda: Underlay(2, [(0, 1)], [1.0], [0], access_price=[(0.0, -1.0)]), "underlay price is"),
        (lambda: Underlay(2, [(0, 1)], [1.0], [], price=[]), "1 router links and prices of shape"),
        (
            lambda: Underlay(2, [(0, 1)], [1.0], [0, 1], access_price=[1.0, 2.0]),
            r"2 access links and prices of shape \(2,\)",
        ),
        (lambda: Underlay(2, [(0, 1)], [1.0], [], price=[(1.0, 2.0)] * 2), r"shape \(2, 2\)"),
        (lambda: triangle().keep(["a", "q"]), "unknown broker 'q'"),
        (lambda: triangle().underlay_path(0), "no underlay"),
    ],
)
def test_bad_parts_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(OverlayError, match=reason):
        make()


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_one_broker_are_connected(count: int) -> None:
    overlay = Overlay.build("small", ["a"][:count], [])
    assert overlay.require_connected() is overlay
    assert len(overlay.components()) == count
    assert overlay.adjacency.start.tolist() == [0] * (count + 1)


@given(graphs())
def test_components_are_networkx_components(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    overlay = Overlay.from_arrays("g", [f"v{i}" for i in range(count)], np.array(pairs).reshape(-1, 2))
    oracle = nx.Graph(pairs)
    oracle.add_nodes_from(range(count))
    expected = {frozenset(part) for part in nx.connected_components(oracle)}
    assert {frozenset(part) for part in overlay.components()} == expected
    assert overlay.degree.tolist() == [oracle.degree(i) for i in range(count)]
    if len(expected) == 1:
        assert overlay.require_connected() is overlay
    else:
        with pytest.raises(DisconnectedError) as raised:
            overlay.require_connected()
        assert {frozenset(c) for c in raised.value.components} == {
            frozenset(f"v{i}" for i in c) for c in expected
        }
        largest = overlay.largest_component().require_connected()
        assert len(largest) == max(map(len, expected))


def test_an_overlay_cannot_be_changed() -> None:
    overlay = triangle()
    with pytest.raises(AttributeError, match="immutable"):
        overlay.name = "other"
    for array in (overlay.ends, overlay.price, overlay.latency_ms, *overlay.adjacency):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(TypeError):
        overlay.index["a"] = 7  # type: ignore[index]


def test_a_pickled_overlay_is_equal_and_still_closed() -> None:
    for overlay in (triangle(), kyra(1, brokers=6)):
        again = pickle.loads(pickle.dumps(overlay))
        assert again == overlay
        assert hash(again) == hash(overlay)
        assert not again.price.flags.writeable
    assert triangle() != ring(3)


def test_keep_renumbers_links_sites_and_attachments() -> None:
    overlay = kyra(3, brokers=8)
    part = overlay.keep(["b1", "b4", "b6"])
    assert part.brokers == ("b1", "b4", "b6")
    assert part.sites == tuple(overlay.sites[i] for i in (1, 4, 6))
    for link in part.links:
        assert link in overlay.links
    assert part.underlay is not None
    assert part.latency_ms[part.link_between("b1", "b6")] == part.underlay.latency_between(0, 2)


def test_an_underlay_route_adds_up_to_the_latency_and_is_its_own_reverse() -> None:
    overlay = kyra(5, brokers=30)
    below = overlay.underlay
    assert below is not None
    oracle = nx.Graph()
    for (a, b), ms in zip(below.ends.tolist(), below.latency_ms.tolist(), strict=True):
        oracle.add_edge(a, b, ms=ms)
    for link in range(0, len(overlay.ends), 7):
        a, b = overlay.ends[link].tolist()
        route = overlay.underlay_path(link)
        assert below.link_latency_ms[route].sum() == pytest.approx(overlay.latency_ms[link])
        shortest = nx.dijkstra_path_length(
            oracle, int(below.attachment[a]), int(below.attachment[b]), weight="ms"
        )
        assert overlay.latency_ms[link] == pytest.approx(shortest + 2.0)
        assert below.path(b, a).tolist() == route[::-1].tolist()
        assert route[0] == len(below.ends) + a
        assert route.max() < below.link_count
    np.testing.assert_allclose(below.latencies()[2, 9], below.latency_between(2, 9))


def test_an_underlay_in_two_parts_says_so() -> None:
    below = Underlay(3, [(0, 1)], [1.0], [0, 1, 2, 0])
    assert below.latency_between(0, 2) == math.inf
    assert below.path(0, 3).tolist() == [1, 4]
    assert below.path(2, 2).tolist() == []
    with pytest.raises(OverlayError, match="no route between broker 0 and broker 2"):
        below.path(0, 2)


def priced_underlay() -> Underlay:
    return Underlay(
        3,
        [(0, 1), (2, 1)],
        [5.0, 7.0],
        [0, 2, 1],
        price=[(1.0, 2.0), (3.0, 4.0)],
        access_price=[(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)],
    )


def test_underlay_prices_are_listed_by_link_id_and_direction() -> None:
    below = priced_underlay()
    assert below.link_price.tolist() == [[1, 2], [3, 4], [0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    route = below.path(0, 1)
    # Broker 0 -> router 0 -> 1 -> 2 -> broker 1: the second router link is crossed against its ends.
    assert below.link_price[route, [0, 0, 1, 1]].tolist() == [0.1, 1.0, 4.0, 0.4]


def test_underlay_prices_are_1_on_router_links_and_0_on_access_links_unless_given() -> None:
    plain = Underlay(3, [(0, 1), (2, 1)], [5.0, 7.0], [0, 2, 1])
    assert plain.price.tolist() == [[1, 1]] * 2
    assert plain.access_price.tolist() == [[0, 0]] * 3
    flat = Underlay(3, [(0, 1), (2, 1)], [5.0, 7.0], [0, 2, 1], price=0.5, access_price=0.25)
    assert flat.link_price.tolist() == [[0.5, 0.5]] * 2 + [[0.25, 0.25]] * 3
    assert Underlay(1, [], [], [], price=[], access_price=[]).link_price.shape == (0, 2)
    generated = kyra(1, brokers=4).underlay
    assert generated is not None
    assert (generated.price == 1).all()
    assert (generated.access_price == 0).all()


def test_underlay_prices_are_part_of_the_value() -> None:
    below = priced_underlay()
    again = pickle.loads(pickle.dumps(below))
    assert again == below == priced_underlay()
    assert hash(again) == hash(below)
    parts = (below.routers, below.ends, below.latency_ms, below.attachment)
    assert Underlay(*parts, access_price=below.access_price) != below
    assert Underlay(*parts, price=below.price) != below
    for array in (below.price, below.access_price, again.price, again.access_price):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


def test_underlay_prices_are_copied_and_follow_the_brokers_kept() -> None:
    mine = np.ones((1, 2))
    below = Underlay(2, [(0, 1)], [1.0], [0], price=mine, access_price=mine)
    mine[:] = 9.0
    assert (below.link_price == 1).all()
    kept = priced_underlay().keep([2, 0])
    assert kept.price.tolist() == [[1, 2], [3, 4]]
    assert kept.access_price.tolist() == [[0.5, 0.6], [0.1, 0.2]]


def test_a_symmetric_link_costs_the_same_both_ways() -> None:
    assert Link.symmetric("a", "b", 3.0) == Link("a", "b", 3.0, 3.0, 1.0)
    assert (full_mesh(4).price == 1).all()
