"""What people run today: mirror everything everywhere, or send everything through one hub.

Problem    Carry events between sites with the tools at hand: replication, or a central broker.
Idea       `mirror_all` copies every event from its site to every other site that has any subscriber at all,
           as replicated topics and buckets do: publishers know sites, not subscriptions. `hub` sends every
           event to one site, which filters and passes it on to the sites that want it.
Guarantee  Every event reaches every broker that wants it. `mirror_all` crosses the same links for every
           event of a broker, wanted or not.
Cost       A search per publisher's broker (`mirror_all`) or two from the hub: O(m log n) each. The hub
           `best` prices the training window on `HUB_CANDIDATES` sites.
Departures A mirrored copy takes the direct link from its source wherever the overlay has one, even where a
           relay would be cheaper: replication is set up pair by pair, so on a full mesh each publisher's
           tree is a star. Sites without a direct link are reached along cheapest paths, and copies that
           share a link share it once, which flatters mirroring on sparse overlays. The leg to the hub is
           the direct link where there is one, else the cheapest path. Everything takes the leg, even what
           nobody wants: only the hub knows the subscriptions.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError, OverlayError
from ramify.network.graphs.distances import Distances, Weight, all_pairs
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.tree_kernels import OUTSIDE
from ramify.network.trees.trees import Tree, shortest_path_tree
from ramify.planning.plans.plan import Channel, Entry, Everything, Path, Plan, Pruning
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import union_of_paths
from ramify.planning.schemes.scheme import SOURCES_AT_ONCE, Progress, channel, put_together, silent

__all__ = ["HubParams", "MirrorParams", "hub", "mirror_all"]

BEST_SITE = "best"
HUB_CANDIDATES = 64
"""Sites that are priced as hub, those first that are nearest to publishers and destinations."""


@dataclass(frozen=True, slots=True)
class MirrorParams:
    """Nothing to choose."""


@dataclass(frozen=True, slots=True)
class HubParams:
    """`site`: the hub's broker by name, or `best` for the one that costs least on the training window."""

    site: str = BEST_SITE

    def __post_init__(self) -> None:
        if not isinstance(self.site, str) or not self.site:
            raise InputError(f"site = {self.site!r}. Allowed: best, or the name of a broker.")


def mirror_all(
    problem: Problem, params: MirrorParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """A channel per publisher's broker, flooded over a tree to every broker that has subscriptions."""
    made: list[Channel] = []
    hosts = np.unique(problem.classes.broker)
    sources = problem.publishers.tolist()
    for first in range(0, len(sources), SOURCES_AT_ONCE):
        part = sources[first : first + SOURCES_AT_ONCE]
        found = all_pairs(problem.overlay, _directed(problem), sources=part)
        for source, parent in zip(part, found.predecessor, strict=True):
            progress(len(made) / len(sources), "mirrors")
            made.append(_mirror(problem, _direct_first(problem.overlay, source, parent, hosts)))
    return put_together("mirror-all", problem, made)


def hub(problem: Problem, params: HubParams, rng: np.random.Generator, progress: Progress = silent) -> Plan:
    """One channel: a leg to the hub, then its tree of cheapest paths, filtered.

    Raises `OverlayError` for a site outside the overlay.
    """
    overlay = problem.overlay
    at = _best_site(problem) if params.site == BEST_SITE else _site(overlay, params.site)
    tree = shortest_path_tree(overlay, at, _directed(problem))
    made = channel(
        f"hub {overlay.brokers[at]}",
        problem,
        tree,
        np.arange(len(problem.classes)),
        content=Everything(),
        entry=Entry.to(at, len(overlay)),
        rooted=True,
    )
    return put_together("hub", problem, [made], {"hub": overlay.brokers[at]}, paths=_legs(problem, at))


def _directed(problem: Problem) -> Weight:
    """Hops where all links cost the same, which also tells free links apart; else the price."""
    return "hops" if problem.weight == "hops" else "price"


def _mirror(problem: Problem, tree: Tree) -> Channel:
    return channel(
        problem.overlay.brokers[tree.root],
        problem,
        tree,
        np.arange(len(problem.classes)),
        pruning=Pruning.NONE,
        content=Everything(),
        publishers=frozenset([tree.root]),
        rooted=True,
    )


def _direct_first(
    overlay: Overlay, source: int, parent: npt.NDArray[np.integer], hosts: npt.NDArray[np.int32]
) -> Tree:
    """Direct links to the hosts that have one, cheapest paths to the others, nothing else.

    Hanging a broker from the root closes no cycle, so what was a tree of cheapest paths stays a tree.
    """
    start, neighbor, _, _ = overlay.adjacency
    above = np.array(parent, dtype=np.int32)
    above[np.intersect1d(neighbor[start[source] : start[source + 1]], hosts)] = source
    kept = np.full(len(overlay), OUTSIDE, dtype=np.int32)
    kept[source] = -1
    for host in hosts.tolist():
        while kept[host] == OUTSIDE:
            kept[host] = above[host]
            host = int(above[host])
    return Tree.of_parents(kept, source)


def _site(overlay: Overlay, name: str) -> int:
    if name not in overlay.index:
        raise OverlayError(
            f"no site {name!r} in overlay {overlay.name}. Use best, or one of its {len(overlay)} brokers: "
            "`ramify overlay SPEC --out FILE` lists them."
        )
    return overlay.index[name]


def _toward(problem: Problem, sites: list[int]) -> Distances:
    """Cheapest paths to the sites: the rows of a search with every price turned round."""
    given = problem.overlay
    turned = Overlay(given.name, given.brokers, given.ends, given.price[:, ::-1], given.latency_ms)
    return all_pairs(turned, _directed(problem), sources=sites)


def _legs(problem: Problem, at: int) -> dict[tuple[int, int], Path]:
    """The paths of the legs that are not direct links."""
    start, neighbor, _, _ = problem.overlay.adjacency
    near = {at, *neighbor[start[at] : start[at + 1]].tolist()}
    back = _toward(problem, [at])
    return {
        (origin, at): tuple(reversed(back.path(at, origin)))
        for origin in range(len(problem.overlay))
        if origin not in near
    }


def _best_site(problem: Problem) -> int:
    """The broker through which the training window costs least; ties to the smaller index.

    Legs are taken to be cheapest paths. Sites are ranked by legs and single paths first, then
    `HUB_CANDIDATES` of them priced with paths merged. O(n m log n).
    """
    weight = problem.pattern_weight
    given = problem.demand.destinations(problem.classes)
    sent = np.bincount(problem.demand.publisher, weights=weight, minlength=len(problem.overlay))
    away = np.ones(len(given.node), dtype=np.bool_)
    away[given.start[:-1]] = False
    per_node = np.where(away, np.repeat(weight, np.diff(given.start)), 0.0)
    wanted = np.bincount(given.node, weights=per_node, minlength=len(problem.overlay))
    legs, spread = np.empty((2, len(problem.overlay)))
    for first in range(0, len(legs), SOURCES_AT_ONCE):
        part = list(range(first, min(first + SOURCES_AT_ONCE, len(legs))))
        legs[part] = _toward(problem, part).distance @ sent
        spread[part] = all_pairs(problem.overlay, _directed(problem), sources=part).distance @ wanted
    near = np.sort(np.argsort(legs + spread, kind="stable")[:HUB_CANDIDATES])
    found = all_pairs(problem.overlay, _directed(problem), sources=near.tolist())
    totals = [legs[site] + _merged(found, row, given, weight) for row, site in enumerate(near.tolist())]
    return int(near[int(np.argmin(totals))])


def _merged(found: Distances, row: int, given: TerminalSets, weight: npt.NDArray[np.float64]) -> float:
    """What the sets cost on the tree of one hub: each set with the hub for its root."""
    node = given.node.copy()
    node[given.start[:-1]] = found.sources[row]
    return union_of_paths(
        found.distance[row : row + 1].astype(np.float64),
        found.predecessor[row : row + 1].astype(np.int32),
        np.zeros(len(given), dtype=np.int64),
        given.start,
        node,
        weight,
        np.zeros(found.distance.shape[1], dtype=np.int64),
    )
