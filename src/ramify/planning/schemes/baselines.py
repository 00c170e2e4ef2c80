"""Baselines: the plans that need no demand, or next to none, and that others are held against.

Problem    Carry every event to the brokers that want it, by the ways that every textbook has.
Idea       `unicast` sends a copy per destination broker along its shortest path. `broadcast` floods a
           minimum spanning tree. `mst` and `spt` filter on one spanning tree; `spt` can flood it instead.
           `per_source` filters on the shortest-path tree of each publisher's broker.
Guarantee  Every event reaches every broker that wants it. `unicast` and `per_source` by a path of least
           price each; `broadcast` over n - 1 links; the others over at most n - 1.
Cost       A search per root: O(m log n). `spt` with the root `best` prices the training window on the tree
           of every broker, or of as many as `network.trees.ROOT_BUDGET` allows.
Departures Unpruned trees are here because some published comparisons are only plausible with them
           (Majumder et al. 2009, Figure 5). Undirected trees are planned with the mean price of a link;
           `per_source` with the price in the direction travelled.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ramify.errors import InputError, OverlayError
from ramify.network.graphs.distances import Weight, all_pairs
from ramify.network.trees.trees import Tree, best_root_spt, minimum_spanning_tree, shortest_path_tree
from ramify.planning.plans.plan import Channel, Everything, Plan, Pruning
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import (
    SOURCES_AT_ONCE,
    NoParams,
    Progress,
    channel,
    put_together,
    silent,
)

__all__ = ["NoParams", "SptParams", "broadcast", "mst", "per_source", "spt", "unicast"]

RANDOM, BEST_ROOT = "random", "best"


@dataclass(frozen=True, slots=True)
class SptParams:
    """A shortest-path tree.

    root     `random`, `best` (on which the training window costs least), or a broker's name
    pruned   False floods the tree with everything
    """

    root: str = RANDOM
    pruned: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.root, str) or not self.root:
            raise InputError(f"root = {self.root!r}. Allowed: random, best, or the name of a broker.")


def unicast(
    problem: Problem, params: NoParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """A copy per destination broker, along its cheapest path, never merged. Nothing is planned."""
    made = channel("copies", problem, None, _everyone(problem), pruning=Pruning.COPIES)
    return put_together("unicast", problem, [made])


def broadcast(
    problem: Problem, params: NoParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """Every event over every link of a minimum spanning tree, wanted or not. O(m log m)."""
    tree = minimum_spanning_tree(problem.overlay, problem.weight)
    made = channel("flood", problem, tree, _everyone(problem), pruning=Pruning.NONE, content=Everything())
    return put_together("broadcast", problem, [made])


def mst(problem: Problem, params: NoParams, rng: np.random.Generator, progress: Progress = silent) -> Plan:
    """A minimum spanning tree with filters at every hop. O(m log m)."""
    tree = minimum_spanning_tree(problem.overlay, problem.weight)
    return put_together("mst", problem, [channel("mst", problem, tree, _everyone(problem))])


def spt(problem: Problem, params: SptParams, rng: np.random.Generator, progress: Progress = silent) -> Plan:
    """One shortest-path tree for everybody, filtered or flooded. `OverlayError` for an unknown root."""
    progress(0.0, "pricing roots" if params.root == BEST_ROOT else "shortest-path tree")
    tree = _spt(problem, params.root, rng)
    progress(0.9, "shortest-path tree")
    root = problem.overlay.brokers[tree.root]
    pruning = Pruning.FILTER if params.pruned else Pruning.NONE
    content = None if params.pruned else Everything()
    made = channel(
        f"spt of {root}", problem, tree, _everyone(problem), pruning=pruning, content=content, rooted=True
    )
    return put_together("spt", problem, [made], {"rooted_at": root})


def per_source(
    problem: Problem, params: NoParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """A channel per broker where events may enter: its own tree of cheapest paths, filtered.

    O(m log n) per publisher's broker and 12 n bytes when routed. A broker that may not publish
    (`Problem.publishers`) has no channel.
    """
    made: list[Channel] = []
    everyone, names = _everyone(problem), problem.overlay.brokers
    for tree in _trees_of(problem, _directed(problem)):
        progress(len(made) / len(problem.publishers), "shortest-path trees")
        allowed = frozenset([tree.root])
        made.append(channel(names[tree.root], problem, tree, everyone, publishers=allowed, rooted=True))
    return put_together("per-source", problem, made)


def _everyone(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(len(problem.classes))


def _directed(problem: Problem) -> Weight:
    """Hops where all links cost the same, which also tells free links apart; else the price."""
    return "hops" if problem.weight == "hops" else "price"


def _spt(problem: Problem, root: str, rng: np.random.Generator) -> Tree:
    overlay = problem.overlay
    if root == BEST_ROOT:
        return best_root_spt(overlay, problem.sets, problem.weight)
    if root == RANDOM:
        return shortest_path_tree(overlay, int(rng.integers(len(overlay))), problem.weight)
    if root not in overlay.index:
        raise OverlayError(
            f"no broker {root!r} in overlay {overlay.name}. Use random, best, or one of its "
            f"{len(overlay)} brokers: `ramify overlay SPEC --out FILE` lists them."
        )
    return shortest_path_tree(overlay, overlay.index[root], problem.weight)


def _trees_of(problem: Problem, weight: Weight) -> Iterator[Tree]:
    """The shortest-path tree of every broker that publishes, ascending."""
    sources = problem.publishers.tolist()
    for first in range(0, len(sources), SOURCES_AT_ONCE):
        part = sources[first : first + SOURCES_AT_ONCE]
        found = all_pairs(problem.overlay, weight, sources=part)
        for source, parent in zip(part, found.predecessor, strict=True):
            yield Tree.of_parents(parent, source)
