"""Routing trees over some brokers: minimum spanning trees of their distances, balanced if asked.

Owns the trees of zones and groups. A link of such a tree is the way between two brokers, whatever it
crosses (`ways.py`).

Guarantee: with a balance factor of 1 a tree is Kruskal's, of least total distance. With M, each step takes
of the M shortest links that close no loop the one whose ends have the lower larger degree: degrees fall,
length grows (Kyra, section V-D). The degree of a broker is that of all trees so far: a broker alone in its
clique is on all of them, and relays for none more than it must. Counted tree by tree, the busiest broker is
no less busy than without balance, which is not what the paper shows.
"""

import numpy as np
import numpy.typing as npt

from ramify.network.trees.trees import minimum_spanning_tree
from ramify.planning.plans.plan import ChannelTree
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.shared.tree_kernels import balanced_kruskal
from ramify.planning.schemes.shared.ways import Length, Ways

__all__ = ["joined_tree", "nearest_on", "spanning_links", "whole_tree"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


def spanning_links(distance: Floats, members: Ints, balance: int = 1, degree: Longs | None = None) -> Ints:
    """int32[k - 1, 2]: a spanning tree of the members. Ties to the lower pair. O(k^2 log k + k M).

    `degree` is int64[n], of the trees before this one, which is added to it.
    """
    count = len(members)
    a, b = np.triu_indices(count, k=1)
    order = np.argsort(distance[members[a], members[b]], kind="stable")
    chosen = np.empty(max(count - 1, 0), dtype=np.int64)
    ends = np.column_stack((a, b)).astype(np.int32)
    mine = np.zeros(count, dtype=np.int64) if degree is None else degree[members]
    balanced_kruskal(ends, order.astype(np.int64), balance, mine, chosen)
    if degree is not None:
        degree[members] = mine
    links: Ints = members[ends[chosen]].astype(np.int32).reshape(-1, 2)
    return links


def joined_tree(ways: Ways, members: Ints, balance: int = 1, degree: Longs | None = None) -> ChannelTree:
    """A tree of the members, one or more, its links joined. A single one is its root."""
    links = spanning_links(ways.distance, members, balance, degree)
    ways.join(links[:, 0], links[:, 1])
    return ChannelTree(links, int(members[0]) if not len(links) else None)


def whole_tree(problem: Problem, weight: Length) -> ChannelTree:
    """The minimum spanning tree of all brokers.

    The one of all distances can be chosen among the overlay's own links, so those are enough. O(m log m).
    """
    links = minimum_spanning_tree(problem.overlay, weight).links().astype(np.int32)
    return ChannelTree(links, None if len(links) else 0)


def nearest_on(distance: Floats, members: Ints) -> Ints:
    """int32[n]: the member nearest to each broker; itself where it is one, else ties to the lowest."""
    nearest: Ints = members[distance[:, members].argmin(axis=1)].astype(np.int32)
    nearest[members] = members
    return nearest
