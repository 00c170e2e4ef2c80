"""The papers' worked examples, as overlays with the facts that the papers state about them.

Owns small fixtures that tests, docs and the lab share. Subscriptions are plain names and numbers here:
what they mean as filters is for other layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ramify.errors import OverlayError
from ramify.network.graphs.generators import ring
from ramify.network.graphs.overlay import Link, Overlay

__all__ = ["KyraExample", "MajumderExample", "kyra_figure_4", "majumder_i2", "majumder_i3"]


@dataclass(frozen=True, slots=True)
class MajumderExample:
    """One publisher, one document per subscription, its subscribers, and the costs in the text."""

    overlay: Overlay
    publisher: str
    subscriptions: Mapping[str, tuple[str, ...]]
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class KyraExample:
    """Cliques, zones and routing trees over events 0..9. Zones are inclusive ranges."""

    overlay: Overlay
    cliques: tuple[tuple[str, ...], ...]
    server_zones: Mapping[str, tuple[int, int]]
    proxy_subscriptions: Mapping[str, frozenset[int]]
    tree_zones: Mapping[str, tuple[int, int]]
    tree_links: Mapping[str, tuple[tuple[str, str], ...]]


def majumder_i2(subscribers: int = 5, x: float = 10.0) -> MajumderExample:
    """Majumder et al., Example I.2: the Steiner tree is a poor tree for documents that differ.

    A spine v0 - u1 - ... - un with steps of length x, a leaf v_i one step off each u_i, and a direct path
    of length x + 2 from v0 to each v_i. Lengths are prices. One document per subscription costs
    sum(i x + 1) on the Steiner tree (spine and leaves) and n (x + 2) - 1 on the shortest-path tree.
    """
    if subscribers < 1 or not x > 0:
        raise OverlayError("Example I.2 needs one subscriber or more and a positive x.")
    spine = ["v0", *(f"u{i}" for i in range(1, subscribers + 1))]
    leaves = [f"v{i}" for i in range(1, subscribers + 1)]
    links = [Link.symmetric(a, b, x, x) for a, b in pairwise(spine)]
    links += [Link.symmetric(u, v) for u, v in zip(spine[1:], leaves, strict=True)]
    links += [Link.symmetric("v0", v, x + 2, x + 2) for v in leaves]
    overlay = Overlay.build("majumder-i2", [*spine, *leaves], links)
    wants = {f"s{i}": (leaf,) for i, leaf in enumerate(leaves, start=1)}
    steiner = sum(i * x + 1 for i in range(1, subscribers + 1))
    return MajumderExample(overlay, "v0", wants, {"steiner": steiner, "spt": subscribers * (x + 2) - 1})


def majumder_i3(brokers: int = 8) -> MajumderExample:
    """Majumder et al., Example I.3: two trees beat any one.

    Departure: as printed (v0..vn, disjoint halves) one tree also costs n. Here v0..v(n-1) stand in a ring
    and v(n/2) wants both documents; then one tree costs 3n/2 - 1 and two cost n, the paper's figures.
    """
    if brokers < 4 or brokers % 2:
        raise OverlayError(f"Example I.3 needs an even ring of 4 brokers or more, not {brokers}.")
    half = brokers // 2
    wants = {
        "s1": tuple(f"v{i}" for i in range(1, half + 1)),
        "s2": tuple(f"v{i}" for i in range(half, brokers)),
    }
    overlay = ring(brokers, name=f"majumder-i3-{brokers}")
    return MajumderExample(overlay, "v0", wants, {"one_tree": 3 * half - 1, "two_trees": brokers})


def kyra_figure_4() -> KyraExample:
    """Cao and Singh, Figure 4: eight servers in three cliques, three routing trees. Event 9 goes C to H.

    Zones and proxy subscriptions are as printed; the router names of the printed routing tables are
    shifted and are left out, the trees are what they say once put right. The paper prints no distances:
    links inside a clique take 10 ms here, tree links between cliques 100 ms.
    """
    cliques = (("A", "B", "C"), ("D", "E"), ("F", "G", "H"))
    trees = {
        "t0": (("A", "D"), ("D", "F")),
        "t1": (("D", "E"), ("E", "B"), ("B", "G")),
        "t2": (("E", "C"), ("C", "H")),
    }
    inside = [(a, b) for clique in cliques for k, a in enumerate(clique) for b in clique[k + 1 :]]
    between = sorted({link for tree in trees.values() for link in tree} - set(inside))
    links = [Link.symmetric(a, b, latency_ms=10.0) for a, b in inside]
    links += [Link.symmetric(a, b, latency_ms=100.0) for a, b in between]
    zones = {
        "A": (0, 3),
        "B": (4, 6),
        "C": (7, 9),
        "D": (0, 4),
        "E": (5, 9),
        "F": (0, 3),
        "G": (4, 6),
        "H": (7, 9),
    }
    proxies = {
        "A": {1, 2},
        "B": (),
        "C": {7, 8},
        "D": {0, 3},
        "E": {5, 6},
        "F": {2},
        "G": {4, 5, 6},
        "H": {7, 9},
    }
    return KyraExample(
        overlay=Overlay.build("kyra-figure-4", "ABCDEFGH", links),
        cliques=cliques,
        server_zones=zones,
        proxy_subscriptions={server: frozenset(events) for server, events in proxies.items()},
        tree_zones={"t0": (0, 3), "t1": (4, 6), "t2": (7, 9)},
        tree_links=trees,
    )
