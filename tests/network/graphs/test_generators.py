"""Generators: connected, the same for a seed, and with the counts that the papers print."""

from collections.abc import Callable
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import OverlayError
from ramify.network.graphs.clouds import cloud_regions, great_circle_km, latency_from_km, region_table
from ramify.network.graphs.distances import all_pairs, figures
from ramify.network.graphs.examples import kyra_figure_4, majumder_i2, majumder_i3
from ramify.network.graphs.generators import (
    MAX_LINKS,
    euclidean_mesh,
    full_mesh,
    line,
    nearest_links,
    random_overlay,
    ring,
    star,
)
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.transit_stub import (
    TransitStub,
    kyra,
    majumder,
    matchmaker,
    semcast,
    transit_stub,
    zhao_wu,
)

SEEDED: list[Callable[[int], Overlay]] = [
    lambda seed: random_overlay(50, seed),
    lambda seed: random_overlay(12, seed, links=60),
    lambda seed: euclidean_mesh(20, seed),
    lambda seed: transit_stub(130, seed),
    lambda seed: transit_stub(TransitStub(spread=2, multi_homed=0.5, extra_stub_stub=5), seed),
    lambda seed: majumder(500, seed),
    matchmaker,
    lambda seed: semcast(80, seed),
    lambda seed: semcast(80, seed, kind="transit-stub"),
    lambda seed: zhao_wu(20, seed),
    lambda seed: kyra(seed, brokers=20, nearest=3),
]


@pytest.mark.parametrize("make", SEEDED)
def test_a_seed_decides_everything(make: Callable[[int], Overlay]) -> None:
    assert make(11) == make(11)
    assert make(11) != make(12)
    assert make(11).require_connected()


def test_a_generator_can_be_handed_in() -> None:
    assert transit_stub(60, np.random.default_rng(4)) == transit_stub(60, 4)


@pytest.mark.parametrize(
    ("overlay", "oracle"),
    [
        (ring(7), nx.cycle_graph(7)),
        (line(5), nx.path_graph(5)),
        (star(6), nx.star_graph(5)),
        (full_mesh(6), nx.complete_graph(6)),
    ],
)
def test_plain_shapes(overlay: Overlay, oracle: nx.Graph) -> None:
    assert {frozenset(pair) for pair in overlay.ends.tolist()} == {frozenset(pair) for pair in oracle.edges}
    assert len(overlay) == len(oracle)


def test_the_smallest_shapes() -> None:
    assert [len(ring(n).ends) for n in range(4)] == [0, 0, 1, 3]
    assert [len(full_mesh(n).ends) for n in range(4)] == [0, 0, 1, 3]
    assert len(star(1).ends) == len(line(0).ends) == len(random_overlay(0, 1).ends) == 0
    assert len(euclidean_mesh(1, 0)) == 1


@given(st.integers(1, 40), st.integers(0, 400), st.integers(0, 2**32))
def test_a_random_overlay_has_the_links_asked_for(brokers: int, extra: int, seed: int) -> None:
    links = min(brokers - 1 + extra, brokers * (brokers - 1) // 2)
    assert len(random_overlay(brokers, seed, links=links).require_connected().ends) == links


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**32))
def test_a_transit_stub_overlay_has_the_size_asked_for(brokers: int, seed: int) -> None:
    assert len(transit_stub(brokers, seed).require_connected()) == brokers


@settings(max_examples=60, deadline=None)
@given(
    domains=st.integers(1, 6),
    routers=st.floats(1, 6),
    stubs=st.floats(0, 3),
    size=st.floats(1, 9),
    spread=st.integers(0, 3),
    chances=st.tuples(*[st.sampled_from([0.0, 0.1, 0.5, 1.0])] * 4),
    seed=st.integers(0, 2**32),
)
def test_any_parameters_give_a_connected_graph_of_exact_size(
    domains: int,
    routers: float,
    stubs: float,
    size: float,
    spread: int,
    chances: tuple[float, ...],
    seed: int,
) -> None:
    params = TransitStub(domains, routers, stubs, size, spread, *chances)
    overlay = transit_stub(params, seed).require_connected()
    roles = [site.role for site in overlay.sites]
    assert roles.count("transit") == params.transit_routers
    assert roles.count("stub") == params.stub_routers


def test_domains_are_told_by_names_and_sites() -> None:
    overlay = transit_stub(TransitStub(domains=3), 1)
    for broker, site in zip(overlay.brokers, overlay.sites, strict=True):
        assert broker[0] == {"transit": "t", "stub": "s"}[site.role or ""]
        assert site.region == f"domain-{broker[1:].split('-')[0]}"


def test_latencies_keep_to_their_ranges() -> None:
    params = TransitStub(
        transit_latency_ms=(50, 60), transit_stub_latency_ms=(20, 30), stub_latency_ms=(1, 2)
    )
    overlay = transit_stub(params, 5)
    for link in overlay.links:
        low = {"tt": 50, "ts": 20, "ss": 1}["".join(sorted(link.a[0] + link.b[0], reverse=True))]
        assert low <= link.latency_ms <= low + (1 if low == 1 else 10)


def test_kyra_is_the_printed_network() -> None:
    overlay = kyra(1)
    below = overlay.underlay
    assert below is not None
    assert (len(overlay), below.routers, len(below.ends)) == (500, 2500, 8938)
    assert len(overlay.ends) == 500 * 499 // 2
    assert len(set(below.attachment.tolist())) == 500
    assert (below.access_latency_ms == 1.0).all()
    assert below.latency_ms.min() >= 1.0
    assert below.latency_ms.max() <= 100.0


def test_kyra_can_be_sparse_multi_homed_and_read_the_other_way() -> None:
    sparse = kyra(1, nearest=4).require_connected()
    assert len(sparse) * 2 <= len(sparse.ends) <= len(sparse) * 5
    other = kyra(1, links=4469, multi_homed=0.1, brokers=5).underlay
    plain = kyra(1, links=4469, brokers=5).underlay
    assert other is not None
    assert plain is not None
    assert len(other.ends) == len(plain.ends) == 4469
    stub_homes = [sum(a < 100 <= b for a, b in below.ends.tolist()) for below in (plain, other)]
    assert stub_homes == [300, 330]


def test_matchmaker_has_100_nodes_and_4_transit_nodes() -> None:
    overlay = matchmaker(2)
    assert len(overlay) == 100
    assert sum(site.role == "transit" for site in overlay.sites) == 4


def test_link_counts_follow_the_probabilities() -> None:
    counts = [len(matchmaker(seed).ends) for seed in range(200)]
    expected = 12 * (1 + 28 * 0.42) + 6 * 0.6
    # Conditioning on connected graphs adds a little: sparse draws are the ones thrown away.
    assert expected <= np.mean(counts) <= expected * 1.1


@pytest.mark.parametrize("brokers", [500, 5000])
def test_majumder_graphs_have_the_papers_sizes(brokers: int) -> None:
    overlay = majumder(brokers, 1).require_connected()
    assert len(overlay) == brokers
    assert 2.8 <= 2 * len(overlay.ends) / brokers <= 4.2


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ring(-1), "too few"),
        (lambda: star(0), "too few"),
        (lambda: full_mesh(10**6), "more than"),
        (lambda: random_overlay(MAX_LINKS + 1, 0), "more than"),
        (lambda: random_overlay(5, 0, links=3), "4 \\(tree\\) to 10 \\(mesh\\)"),
        (lambda: transit_stub(0, 0), "0 nodes is not possible"),
        (lambda: TransitStub(domains=0), "at least one domain"),
        (lambda: TransitStub(stub_probability=1.5), "stub_probability is 1.5"),
        (lambda: TransitStub(stub_latency_ms=(5, 1)), "stub_latency_ms is 5..1"),
        (lambda: TransitStub(spread=-1), "spread"),
        (lambda: kyra(0, links=20_000), "cannot hold"),
        (lambda: kyra(0, brokers=-1), "cannot attach"),
        (lambda: majumder_i2(0), "one subscriber"),
        (lambda: majumder_i3(7), "even ring"),
        (lambda: cloud_regions(providers=["ibm"]), "'ibm'. Choose from: aws, azure, gcp"),
        (lambda: cloud_regions(regions=["aws-moon-1"]), "aws-moon-1"),
    ],
)
def test_impossible_wishes_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(OverlayError, match=reason):
        make()


@given(st.integers(0, 15), st.integers(0, 5), st.integers(0, 2**32))
def test_nearest_links_join_everything_at_the_least_latency(count: int, nearest: int, seed: int) -> None:
    point = np.random.default_rng(seed).random((count, 2))
    distance = np.linalg.norm(point[:, None] - point[None, :], axis=2)
    pairs = {tuple(pair) for pair in nearest_links(distance, nearest).tolist()}
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_weighted_edges_from((i, j, distance[i, j]) for i, j in combinations(range(count), 2))
    tree = {tuple(sorted(pair)) for pair in nx.minimum_spanning_edges(graph, data=False)}
    close = {
        tuple(sorted((i, j)))
        for i in range(count)
        for j in sorted(set(range(count)) - {i}, key=lambda j, i=i: distance[i, j])[:nearest]
    }
    assert pairs == tree | close


def test_zhao_wu_prices_obey_the_triangle_inequality() -> None:
    overlay = zhao_wu(30, 4, mean_price=7.0)
    assert overlay.price.mean() == pytest.approx(7.0)
    direct = all_pairs(overlay, "price").distance
    for link, (a, b) in enumerate(overlay.ends.tolist()):
        assert overlay.price[link, 0] == pytest.approx(direct[a, b])


def test_example_i2_costs_what_the_paper_says() -> None:
    example = majumder_i2(6, 4.0)
    priced = all_pairs(example.overlay, "price")
    index = example.overlay.index
    wanted = [broker for brokers in example.subscriptions.values() for broker in brokers]
    assert sum(priced.between(index["v0"], index[v]) for v in wanted) == example.costs["spt"] == 6 * 6 - 1
    spine = example.overlay.keep([f"u{i}" for i in range(1, 7)] + ["v0"])
    assert sum(all_pairs(spine, "price").between(0, i) + 1 for i in range(1, 7)) == example.costs["steiner"]


@pytest.mark.parametrize("count", [4, 6, 10])
def test_example_i3_costs_what_the_paper_says(count: int) -> None:
    example = majumder_i3(count)
    ends = [tuple(pair) for pair in example.overlay.ends.tolist()]
    wants = [{example.overlay.index[v] for v in who} for who in example.subscriptions.values()]

    def cost(dropped: tuple[int, int], wanted: set[int]) -> int:
        tree = nx.Graph(pair for pair in ends if pair != dropped)
        return len({frozenset(e) for v in wanted for e in nx.utils.pairwise(nx.shortest_path(tree, 0, v))})

    single = min(sum(cost(dropped, wanted) for wanted in wants) for dropped in ends)
    double = sum(min(cost(dropped, wanted) for dropped in ends) for wanted in wants)
    assert (
        (single, double)
        == (example.costs["one_tree"], example.costs["two_trees"])
        == (3 * count // 2 - 1, count)
    )


def test_kyra_figure_4_hangs_together() -> None:
    example = kyra_figure_4()
    for clique in example.cliques:
        zones = sorted(example.server_zones[server] for server in clique)
        assert [event for low, high in zones for event in range(low, high + 1)] == list(range(10))
    for tree, (low, high) in example.tree_zones.items():
        graph = nx.Graph(example.tree_links[tree])
        assert nx.is_tree(graph)
        overlapping = {s for s, (a, b) in example.server_zones.items() if a <= high and low <= b}
        assert set(graph) == overlapping
        for a, b in graph.edges:
            example.overlay.link_between(a, b)
    for server, events in example.proxy_subscriptions.items():
        low, high = example.server_zones[server]
        assert all(low <= event <= high for event in events)


def test_cloud_prices_are_paid_by_the_sender() -> None:
    overlay = cloud_regions()

    def price(a: str, b: str) -> float:
        link = overlay.link_between(a, b)
        return float(overlay.price[link, int(overlay.brokers[overlay.ends[link, 0]] != a)])

    assert price("aws-us-east-1", "aws-us-east-2") == price("aws-us-east-2", "aws-us-east-1") == 0.01
    assert price("aws-us-east-1", "aws-sa-east-1") == 0.02
    assert price("aws-sa-east-1", "aws-us-east-1") == 0.138
    assert (
        price("gcp-us-central1", "gcp-asia-south1") == price("gcp-asia-south1", "gcp-us-central1") == 0.08
    )
    assert price("azure-eastus", "azure-westeurope") == 0.05
    assert price("aws-us-east-1", "gcp-us-east4") == 0.09
    assert price("gcp-us-east4", "aws-us-east-1") == 0.12


def test_cloud_regions_can_be_chosen_and_thinned() -> None:
    assert len(region_table()) >= 30
    assert {row.provider for row in region_table()} == {"aws", "azure", "gcp"}
    every = cloud_regions()
    assert len(every.ends) == len(every) * (len(every) - 1) // 2
    thin = cloud_regions(nearest=3).require_connected()
    assert len(thin.ends) < len(every) * 3
    two = cloud_regions(
        providers=["aws", "gcp"], regions=["aws-eu-west-1", "gcp-europe-west2", "azure-eastus"]
    )
    assert two.brokers == ("aws-eu-west-1", "gcp-europe-west2")
    assert two.sites[0].provider == "aws"
    assert len(cloud_regions(regions=[])) == 0


def test_great_circles_and_latency() -> None:
    assert great_circle_km(0, 0, 0, 180) == pytest.approx(np.pi * 6371)
    london_tokyo = great_circle_km(51.51, -0.13, 35.68, 139.69)
    assert london_tokyo == pytest.approx(9560, rel=0.01)
    assert latency_from_km(0) == 1.0
    assert latency_from_km(london_tokyo) == pytest.approx(9560 / 199.861 * 1.4 + 1, rel=0.01)


def test_figures_of_the_kyra_routers_are_reported() -> None:
    below = kyra(1, brokers=2).underlay
    assert below is not None
    routers = Overlay.from_arrays("routers", [f"r{i}" for i in range(below.routers)], below.ends)
    seen = figures(routers)
    assert (seen.brokers, seen.links, seen.components) == (2500, 8938, 1)
    assert seen.mean_degree == pytest.approx(7.15, abs=0.01)
