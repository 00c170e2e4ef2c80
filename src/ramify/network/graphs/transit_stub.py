"""Transit-stub graphs in the manner of GT-ITM, and the topologies that the papers ran on.

Owns the model (`TransitStub`), its realisation, and one preset per paper. In three of the papers the
graph is the overlay itself; in kyra it is the underlay, with brokers attached to routers.

Model      Transit domains joined by a random graph of domains; routers of a domain joined by a random
           graph; stub domains hung on transit routers by one link, or two where they are multi-homed.
           Random graphs are drawn edge by edge with a probability and drawn again until connected.
Source     Zegura, Calvert, Bhattacharjee: How to Model an Internetwork, INFOCOM 1996. The default
           probabilities inside domains (transit 0.6, stub 0.42) are those of the 100-node sample that was
           shipped with GT-ITM: 1 domain, 4 transit routers, 3 stubs on each, 8 routers in each. It has
           no second domain to learn from; ours have some four neighbours.
Departures No positions in a plane: latencies come from a range per kind of link, as the papers give
           them. Sizes keep their total exactly and vary by `spread` around their average. After 50
           draws that are not connected, components are joined by one link each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ramify.errors import OverlayError
from ramify.network.graphs.generators import (
    MAX_LINKS,
    Seed,
    euclidean_mesh,
    nearest_links,
    random_overlay,
)
from ramify.network.graphs.overlay import Overlay, Site
from ramify.network.graphs.underlay import Underlay

__all__ = ["TransitStub", "kyra", "majumder", "matchmaker", "semcast", "transit_stub", "zhao_wu"]

Range = tuple[float, float]
Pair = tuple[int, int]

DRAWS = 50


@dataclass(frozen=True, slots=True)
class TransitStub:
    """Parameters of a transit-stub graph. Averages may be fractions: totals are rounded, then shared out.

    `links`, when given, is met exactly: links inside stubs are added or removed (never cutting a stub
    apart) instead of left to `stub_probability`. `multi_homed` is the share of stub domains with a second
    link to another transit router.
    """

    domains: int = 4
    routers_per_domain: float = 5.0
    stubs_per_router: float = 3.0
    routers_per_stub: float = 8.0
    spread: int = 0
    domain_probability: float = 0.5
    transit_probability: float = 0.6
    stub_probability: float = 0.42
    multi_homed: float = 0.0
    extra_stub_stub: int = 0
    links: int | None = None
    transit_latency_ms: Range = (50.0, 100.0)
    transit_stub_latency_ms: Range = (10.0, 40.0)
    stub_latency_ms: Range = (1.0, 5.0)

    def __post_init__(self) -> None:
        if (
            self.domains < 1
            or min(self.routers_per_domain, self.routers_per_stub) < 1
            or self.stubs_per_router < 0
        ):
            raise OverlayError(
                "a transit-stub graph needs at least one domain, and one router per domain and stub."
            )
        for name in ("domain_probability", "transit_probability", "stub_probability", "multi_homed"):
            if not 0 <= getattr(self, name) <= 1:
                raise OverlayError(f"{name} is {getattr(self, name)}. Use a share from 0 to 1.")
        for name in ("transit_latency_ms", "transit_stub_latency_ms", "stub_latency_ms"):
            low, high = getattr(self, name)
            if not 0 <= low <= high < np.inf:
                raise OverlayError(
                    f"{name} is {low}..{high}. Use a range of milliseconds, the lower first."
                )
        if self.spread < 0 or self.extra_stub_stub < 0:
            raise OverlayError("spread and extra_stub_stub count things. Use 0 or more.")

    @property
    def transit_routers(self) -> int:
        """How many transit routers there are in all."""
        return round(self.domains * self.routers_per_domain)

    @property
    def stubs(self) -> int:
        """How many stub domains there are in all."""
        return round(self.transit_routers * self.stubs_per_router)

    @property
    def stub_routers(self) -> int:
        """How many routers the stub domains hold in all."""
        return round(self.stubs * self.routers_per_stub)

    @classmethod
    def of_size(cls, nodes: int) -> "TransitStub":
        """The default proportions (25 nodes per transit router, 5 per domain) at `nodes` exactly."""
        if not 1 <= nodes <= MAX_LINKS:
            raise OverlayError(
                f"a transit-stub graph of {nodes} nodes is not possible. Ask for 1 to {MAX_LINKS:,}."
            )
        transit = max(1, round(nodes / 25))
        domains = max(1, round(transit / 5))
        stubs = min(3 * transit, nodes - transit)
        per_stub = (nodes - transit) / stubs if stubs else 1.0
        nearby = min(1.0, 4 / max(domains - 1, 1))
        return cls(domains, transit / domains, stubs / transit, per_stub, domain_probability=nearby)


@dataclass(frozen=True, slots=True)
class _Graph:
    """A realised transit-stub graph: transit routers first, then the stubs one after the other."""

    names: tuple[str, ...]
    sites: tuple[Site, ...]
    ends: npt.NDArray[np.int64]
    latency_ms: npt.NDArray[np.float64]


def transit_stub(params: TransitStub | int, seed: Seed, *, name: str | None = None) -> Overlay:
    """A transit-stub graph as the overlay itself, from parameters or a number of brokers.

    Brokers are called `t<domain>-<router>` and `s<domain>-<router>-<stub>-<router>`; their site carries
    the domain as region and "transit" or "stub" as role. Prices are 1. O(nodes + links).
    """
    if isinstance(params, int):
        params = TransitStub.of_size(params)
    graph = _realise(params, np.random.default_rng(seed))
    label = name or f"transit-stub-{len(graph.names)}"
    return Overlay.from_arrays(
        label, graph.names, graph.ends, latency_ms=graph.latency_ms, sites=graph.sites
    )


def majumder(brokers: int, seed: Seed) -> Overlay:
    """Majumder et al., section VII-A: GT-ITM graphs of 500 to 5,000 brokers (no parameters are printed)."""
    return transit_stub(brokers, seed, name=f"majumder-{brokers}")


def matchmaker(seed: Seed) -> Overlay:
    """Ge et al., section 4.1: 100 nodes, 4 of them transit nodes, the GT-ITM sample of that size."""
    return transit_stub(TransitStub(domains=1, routers_per_domain=4), seed, name="matchmaker")


def semcast(brokers: int, seed: Seed, *, kind: Literal["random", "transit-stub"] = "random") -> Overlay:
    """SemCast, section 5: up to 600 brokers in "random graphs generated with GT-ITM".

    The paper prints neither model nor degree, so both readings are offered; random has mean degree 4.
    """
    if kind == "transit-stub":
        return transit_stub(brokers, seed, name=f"semcast-{brokers}")
    return random_overlay(brokers, seed, mean_degree=4.0, name=f"semcast-{brokers}")


def zhao_wu(brokers: int, seed: Seed, *, mean_price: float = 1.0) -> Overlay:
    """Zhao and Wu, section VI: 10 to 1,000 brokers, all joined, costs that obey the triangle inequality.

    The paper prints no distribution of costs; ours are distances of random points in a square.
    """
    return euclidean_mesh(brokers, seed, mean_price=mean_price, name=f"zhao-wu-{brokers}")


KYRA = TransitStub(domains=20, spread=1, domain_probability=0.2, links=8938)
"""Cao and Singh, section V: 20 domains of 5 routers, 3 stubs each, 8 routers in each: 2,500 routers and
8,938 links; 50-100 ms inside transit (we take the same between domains), 10-40 ms to stubs, 1-5 ms inside.

8,938 links make the stubs nearly full meshes. GT-ITM counts each link in both directions, so the authors
may have had 4,469: pass `links=4469` for that reading."""


def kyra(
    seed: Seed,
    *,
    brokers: int = 500,
    nearest: int | None = None,
    links: int = 8938,
    multi_homed: float = 0.0,
    access_latency_ms: float = 1.0,
) -> Overlay:
    """Cao and Singh, section V: 500 brokers on random routers of a transit-stub underlay, 1 ms away.

    The paper routes between any two servers, so the overlay is a full mesh; `nearest=k` keeps the k
    nearest of each broker and a minimum spanning tree by latency. A link's latency is that of its route
    below. `multi_homed` is 0 or, in a remark of theirs, 0.1. Brokers get distinct
    routers while there are enough.
    """
    rng = np.random.default_rng(seed)
    graph = _realise(replace(KYRA, links=links, multi_homed=multi_homed), rng)
    if brokers < 0 or brokers * (brokers - 1) // 2 > MAX_LINKS:
        raise OverlayError(f"cannot attach {brokers} brokers. Ask for 0 to {int((2 * MAX_LINKS) ** 0.5)}.")
    attachment = rng.choice(len(graph.names), brokers, replace=brokers > len(graph.names))
    underlay = Underlay(len(graph.names), graph.ends, graph.latency_ms, attachment, access_latency_ms)
    between = underlay.latencies()
    pairs = (
        np.argwhere(np.triu(np.ones_like(between), k=1))
        if nearest is None
        else nearest_links(between, nearest)
    )
    return Overlay.from_arrays(
        "kyra" if nearest is None else f"kyra-nearest-{nearest}",
        [f"b{i}" for i in range(brokers)],
        pairs,
        latency_ms=between[pairs[:, 0], pairs[:, 1]],
        sites=[graph.sites[router] for router in attachment.tolist()],
        underlay=underlay,
    )


def _realise(params: TransitStub, rng: np.random.Generator) -> _Graph:
    domain_sizes = _share_out(params.transit_routers, params.domains, params.spread, rng, least=1)
    stub_counts = _share_out(params.stubs, params.transit_routers, params.spread, rng, least=0)
    stub_sizes = _share_out(params.stub_routers, params.stubs, 2 * params.spread, rng, least=1)

    names: list[str] = []
    sites: list[Site] = []
    domain_members: list[list[int]] = []
    for domain, size in enumerate(domain_sizes):
        domain_members.append(list(range(len(names), len(names) + size)))
        names += [f"t{domain}-{router}" for router in range(size)]
        sites += [Site(region=f"domain-{domain}", role="transit")] * size
    transit = len(names)
    stub_members: list[list[int]] = []
    stub_hosts: list[int] = []
    for host, count in enumerate(stub_counts):
        for stub in range(count):
            size = stub_sizes[len(stub_members)]
            stub_members.append(list(range(len(names), len(names) + size)))
            stub_hosts.append(host)
            names += [f"s{names[host][1:]}-{stub}-{router}" for router in range(size)]
            sites += [Site(region=sites[host].region, role="stub")] * size

    core = _transit_links(domain_members, params, rng)
    access = _access_links(stub_members, stub_hosts, transit, params, rng)
    inside = [
        pair for members in stub_members for pair in _connected(members, params.stub_probability, rng)
    ]
    if params.links is not None:
        inside = _adjust(inside, stub_members, params.links - len(core) - len(access), rng)
    parts = (
        (core, params.transit_latency_ms),
        (access, params.transit_stub_latency_ms),
        (inside, params.stub_latency_ms),
    )
    ends = np.array([pair for links, _ in parts for pair in links], dtype=np.int64).reshape(-1, 2)
    latency_ms = np.concatenate([rng.uniform(*limits, size=len(links)) for links, limits in parts])
    return _Graph(tuple(names), tuple(sites), ends, latency_ms)


def _transit_links(
    domains: Sequence[list[int]], params: TransitStub, rng: np.random.Generator
) -> list[Pair]:
    """Links inside each transit domain, and one between random routers of each joined pair of domains."""
    links = [pair for members in domains for pair in _connected(members, params.transit_probability, rng)]
    for a, b in _connected(range(len(domains)), params.domain_probability, rng):
        links.append((_pick(domains[a], rng), _pick(domains[b], rng)))
    return links


def _access_links(
    stubs: Sequence[list[int]],
    hosts: Sequence[int],
    transit: int,
    params: TransitStub,
    rng: np.random.Generator,
) -> list[Pair]:
    """A link from each stub to its transit router, second links of multi-homed stubs, stub-stub links."""
    links = [(host, _pick(members, rng)) for host, members in zip(hosts, stubs, strict=True)]
    taken = set(links)
    second = round(params.multi_homed * len(stubs)) if transit > 1 else 0
    for stub in sorted(rng.choice(len(stubs), second, replace=False).tolist()):
        other = int(rng.integers(transit - 1))
        other += other >= hosts[stub]
        taken.add((other, _pick(stubs[stub], rng)))
    for _ in range(params.extra_stub_stub if len(stubs) > 1 else 0):
        a, b = sorted(rng.choice(len(stubs), 2, replace=False).tolist())
        taken.add((_pick(stubs[a], rng), _pick(stubs[b], rng)))
    return links + sorted(taken.difference(links))


def _connected(members: Sequence[int], probability: float, rng: np.random.Generator) -> list[Pair]:
    """A random graph in which each pair is joined with `probability`, given that it is connected."""
    pairs = [(members[i], members[j]) for i in range(len(members)) for j in range(i + 1, len(members))]
    chosen: list[Pair] = []
    for _ in range(DRAWS):
        chosen = [
            pair
            for pair, hit in zip(pairs, (rng.random(len(pairs)) < probability).tolist(), strict=True)
            if hit
        ]
        if len(chosen) >= len(members) - 1 and len(_parts(members, chosen)) <= 1:
            return chosen
    parts = _parts(members, chosen)
    joined = [(_pick(sorted(parts[0]), rng), _pick(sorted(part), rng)) for part in parts[1:]]
    return sorted(chosen + [(min(pair), max(pair)) for pair in joined])


def _parts(members: Sequence[int], pairs: Sequence[Pair]) -> list[set[int]]:
    """The connected components, in the order of their first member."""
    part = {member: {member} for member in members}
    _merge(part, pairs)
    return list({id(group): group for group in part.values()}.values())


def _adjust(
    inside: list[Pair], stubs: Sequence[list[int]], wanted: int, rng: np.random.Generator
) -> list[Pair]:
    """The links inside stubs, with random ones added or removed to be `wanted`, every stub still whole."""
    every = [(a, b) for members in stubs for k, a in enumerate(members) for b in members[k + 1 :]]
    tree = set(_merge({node: {node} for members in stubs for node in members}, inside))
    if not len(tree) <= wanted <= len(every):
        raise OverlayError(
            f"the stubs cannot hold {wanted} links: {len(tree)} keep them whole, {len(every)} fill them. "
            "Choose another number of links or larger stubs."
        )
    have = set(inside)
    if wanted >= len(have):
        free = [pair for pair in every if pair not in have]
        have.update(free[k] for k in rng.choice(len(free), wanted - len(have), replace=False).tolist())
    else:
        spare = sorted(have - tree)
        have.difference_update(
            spare[k] for k in rng.choice(len(spare), len(have) - wanted, replace=False).tolist()
        )
    return sorted(have)


def _merge(part: dict[int, set[int]], pairs: Sequence[Pair]) -> list[Pair]:
    """Merge the sets of `part` along `pairs`; the pairs that joined what was apart, a spanning forest."""
    kept = []
    for a, b in pairs:
        small, large = sorted((part[a], part[b]), key=len)
        if small is not large:
            kept.append((a, b))
            large |= small
            part.update(dict.fromkeys(small, large))
    return kept


def _share_out(total: int, parts: int, spread: int, rng: np.random.Generator, *, least: int) -> list[int]:
    """`parts` sizes that sum to `total`: even shares, then units moved about, within `spread`."""
    if not parts:
        return []
    sizes = np.full(parts, total // parts)
    sizes[rng.choice(parts, total % parts, replace=False)] += 1
    low, high = max(least, total // parts - spread), total // parts + spread
    for _ in range(2 * parts * spread):
        giver, taker = rng.integers(parts, size=2).tolist()
        if giver != taker and sizes[giver] > low and sizes[taker] < high:
            sizes[giver] -= 1
            sizes[taker] += 1
    return [int(size) for size in sizes]


def _pick(members: Sequence[int], rng: np.random.Generator) -> int:
    return members[int(rng.integers(len(members)))]
