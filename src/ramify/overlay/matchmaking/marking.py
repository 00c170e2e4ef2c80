"""What brokers tell each other: a direction of a tree link carries advertisements (p) or subscriptions (s).

Problem    Every advertisement must meet every subscription somewhere on the path between them. A p-link
           stores the advertisements of all origins above it at its far end, an s-link the subscriptions of
           all brokers below it at its near end. Mark the links so that the least is stored.
Idea       On a valid marking a link costs sigma when it is p and tau when it is s, whatever the others are
           (Lemma 1). Marking each link by the lesser is the best conceivable; where that is valid it is
           the answer, and on a shared tree it always is. Otherwise: an s-link forces the links just below
           it in every tree to be s, and the set of s-links of the largest total eta = sigma - tau is a
           maximum-weight closure, found by one minimum cut.
Guarantee  Optimal for any set of directed trees. Among optimal markings, the one with the most s-links, so
           both ways give the same one.
Cost       O(trees x groups x depth) for the weights; greedy O(links); one maximum flow otherwise.
Departures The printed algorithm for per-source trees (Figure 6) joins only links with eta >= 0 to links
           with eta < 0 below them in one tree, and so misses what trees force on each other; it can return
           an invalid marking. Its extra flows, one per link, are one search of the residual graph.

Reference: Z. Ge, P. Ji, J. Kurose, D. Towsley, "Min-Cost Matchmaker Problem in Distributed
Publish/Subscribe Infrastructures".
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ramify.errors import LimitError
from ramify.overlay.matchmaking.marking_kernels import below_links
from ramify.overlay.matchmaking.trees import MatchTrees, plan_trees
from ramify.planning.plans.plan import Plan

__all__ = ["LinkLoads", "Marking", "PlacedFilter", "closure", "mark", "mark_trees", "weigh"]

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_CAPACITY = 2**31 - 1


class PlacedFilter(Protocol):
    """An advertisement or a subscription: one filter at one broker."""

    @property
    def broker(self) -> str:
        """Where it is."""


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """The directed links of some trees, and what each would carry.

    Attributes
    ----------
    links      int64[t, 2], each direction by itself, ascending
    sigma      int64[t]: advertisements on it when every link is p
    tau        int64[t]: subscriptions on it when every link is s
    below      int64[a, 2]: (t, q) where link q comes just after link t in some tree
    at         int64[k, n]: the link into each broker, by tree; -1 without one
    """

    links: Ints
    sigma: Ints
    tau: Ints
    below: Ints
    at: Ints

    @property
    def eta(self) -> Ints:
        """What is saved when a p-link becomes an s-link."""
        return self.sigma - self.tau

    @property
    def pub_everywhere(self) -> int:
        """PubE: the cost when advertisements go everywhere."""
        return int(self.sigma.sum())

    @property
    def sub_everywhere(self) -> int:
        """SubE: the cost when subscriptions go everywhere."""
        return int(self.tau.sum())

    def is_valid(self, publishes: Flags) -> bool:
        """Whether no p-link comes below an s-link in any tree."""
        return not bool(np.any(~publishes[self.below[:, 0]] & publishes[self.below[:, 1]]))

    @property
    def is_monotone(self) -> bool:
        """Whether every link may take the lesser of its two loads: always so on a shared tree."""
        return self.is_valid(self.sigma < self.tau)


@dataclass(frozen=True, eq=False)
class Marking:
    """A valid marking: `publishes[t]` says that link t is a p-link."""

    loads: LinkLoads
    publishes: Flags

    @property
    def cost_of_links(self) -> Ints:
        """Descriptors stored across each link."""
        return np.where(self.publishes, self.loads.sigma, self.loads.tau)

    @property
    def cost(self) -> int:
        """Descriptors stored in all."""
        return int(self.cost_of_links.sum())

    @cached_property
    def marks(self) -> dict[tuple[int, int], str]:
        """By link: "p" or "s"."""
        rows = zip(self.loads.links.tolist(), self.publishes.tolist(), strict=True)
        return {(u, v): "p" if publishes else "s" for (u, v), publishes in rows}


def weigh(trees: MatchTrees) -> LinkLoads:
    """The links of some trees and their loads. Equal directions of different trees are one link."""
    nodes = trees.parent.shape[1]
    row, child = np.nonzero(trees.parent >= 0)
    code = trees.parent[row, child].astype(np.int64) * nodes + child
    known, number = np.unique(code, return_inverse=True)
    at = np.full(trees.parent.shape, -1, dtype=np.int64)
    at[row, child] = number
    links = np.column_stack((known // max(nodes, 1), known % max(nodes, 1)))
    return LinkLoads(
        links, _sigma(trees, row, number, len(known)), _tau(trees, at, len(known)), _below(trees, at), at
    )


def mark_trees(trees: MatchTrees) -> Marking:
    """The marking of least cost, see the module."""
    loads = weigh(trees)
    publishes = loads.sigma < loads.tau
    if not loads.is_valid(publishes):
        publishes = ~closure(loads.eta, loads.below)[0]
    return Marking(loads, publishes)


def mark(plan: Plan, advertisements: Iterable[PlacedFilter]) -> tuple[Plan, Marking]:
    """A plan with its channels' links marked for these advertisements and the plan's own subscriptions.

    A direction that two channels use is one link: it has the same mark in both. Directions that lead to
    nobody get no mark. Raises `PlanError` for a channel without a tree.
    """
    counts: dict[str, int] = {}
    for each in advertisements:
        counts[each.broker] = counts.get(each.broker, 0) + 1
    trees, of = plan_trees(plan, counts)
    made = mark_trees(trees)
    marks = made.marks
    channels = list(plan.channels)
    for c, channel in enumerate(channels):
        numbers = np.unique(made.loads.at[of == c])
        used = map(tuple, made.loads.links[numbers[numbers >= 0]].tolist())
        channels[c] = replace(channel, marks={link: marks[link] for link in used})
    return replace(plan, channels=tuple(channels)), made


def closure(eta: npt.ArrayLike, below: npt.ArrayLike) -> tuple[Flags, int]:
    """The largest set of links of the most total eta that is closed downward, and the flow that shows it.

    `below[i] = (t, q)`: choosing t forces q. One maximum flow from the gains to the losses; what can still
    reach the sink is left out. The loads must add up to less than 2^31: `LimitError`.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    gain = np.asarray(eta, dtype=np.int64)
    arcs = np.asarray(below, dtype=np.int64).reshape(-1, 2)
    count = len(gain)
    most = int(np.abs(gain).sum()) + 1
    if most > MOST_CAPACITY:
        raise LimitError(
            f"the loads of {count:,} links differ by {most - 1:,} in all, more than the {MOST_CAPACITY:,} "
            "that one minimum cut can count. Mark parts of the trees, or count descriptors in larger units."
        )
    source, sink = count, count + 1
    up, down = np.flatnonzero(gain > 0), np.flatnonzero(gain < 0)
    tail = np.concatenate((np.full(len(up), source), down, arcs[:, 0]))
    head = np.concatenate((up, np.full(len(down), sink), arcs[:, 1]))
    room = np.concatenate((gain[up], -gain[down], np.full(len(arcs), most))).astype(np.int32)
    graph: Any = coo_array((room, (tail, head)), shape=(count + 2, count + 2)).tocsr()
    flow = maximum_flow(graph, source, sink)
    left = graph - flow.flow
    left.eliminate_zeros()
    reaches = breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    chosen = np.ones(count + 2, dtype=bool)
    chosen[reaches] = False
    return chosen[:count], int(flow.flow_value)


def _sigma(trees: MatchTrees, row: Ints, number: Ints, count: int) -> Ints:
    nodes = trees.parent.shape[1]
    pairs = np.unique(number * nodes + trees.origin[row])
    f = np.zeros(nodes, dtype=np.int64)
    for origin, descriptors in trees.published.items():
        f[origin] = descriptors
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, pairs // max(nodes, 1), f[pairs % max(nodes, 1)])
    return total


def _tau(trees: MatchTrees, at: Ints, count: int) -> Ints:
    groups = len(trees.broker)
    bits = np.zeros((count, (groups + 63) // 64), dtype=np.uint64)
    below_links(trees.parent, at.astype(np.int32), trees.served, trees.broker, bits)
    total = np.zeros(count, dtype=np.int64)
    for u, descriptors in enumerate(trees.wanted.tolist()):
        total += descriptors * ((bits[:, u >> 6] >> np.uint64(u & 63)) & np.uint64(1)).astype(np.int64)
    return total


def _below(trees: MatchTrees, at: Ints) -> Ints:
    row, child = np.nonzero(at >= 0)
    before = at[row, trees.parent[row, child]]
    inner = before >= 0
    count = int(at.max(initial=-1)) + 1
    pairs = np.unique(before[inner] * count + at[row[inner], child[inner]])
    return np.column_stack((pairs // max(count, 1), pairs % max(count, 1)))
