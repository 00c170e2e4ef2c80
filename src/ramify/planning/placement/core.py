"""Routing between brokers: what a placement costs in the core, by uniform subscriber groups.

Problem    Every sub-channel must reach the brokers of all its subscribers (the uniform subscriber group)
           from every broker where it is published.
Routings   `mst`      the minimum spanning tree of the group and the publisher's broker, on the complete
                      graph of distances between them (section III-A)
           `steiner`  a Steiner tree, which may pass through other brokers; exact up to `MOST_TABLE`
                      brokers, never dearer than `mst` above
           `paths`    shortest paths from the publisher's broker, merged: the other reading of stage 2
           `tree`     one minimum spanning tree of all brokers for everything (section II-A, Equations 7
                      and 8); what lies between the group and the publisher's broker is paid
Cost       Publishers at one broker share a tree, and with undirected prices all brokers of a group do: one
           tree per sub-channel, and one for each publishing broker outside the group.
Departures The paper takes the spanning tree for the optimum wherever prices keep the triangle inequality.
           It is not: of three brokers 2 apart and a hub 1 from each, it costs 4 and the Steiner tree 3.

Reference: Y. Zhao, J. Wu, "On the Construction of the Minimum Cost Content-Based Publish/Subscribe
Overlays", sections II-A, III-A and IV-A.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.memo import derived
from ramify.network.graphs.distances import arc_weights
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.steiner_kernels import tree_scratch
from ramify.network.trees.trees import Tree, measured, minimum_spanning_tree, tree_lengths
from ramify.planning.placement.core_kernels import MST, ONE_TREE, STEINER, Trees, fill_table, shortest
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.placement.search_kernels import SearchProblem, SearchState, fill_state

__all__ = ["MOST_TABLE", "Routing", "assess", "given_of", "state_of", "trees_of"]

Routing = Literal["mst", "steiner", "paths", "tree"]

MOST_TABLE = 11
"""Brokers up to which the costs of all sets are kept in a table."""

KEPT = 1 << 17
"""Places for costs of sets above that."""

KINDS = {"mst": MST, "steiner": STEINER, "paths": MST, "tree": ONE_TREE}


def assess(
    problem: PlacementProblem, broker: npt.ArrayLike, routing: Routing = "steiner", how: str = "given"
) -> Placement:
    """Price a placement. `InputError` for a broker that a user may not use, or one above its capacity."""
    at = np.asarray(broker, dtype=np.int32)
    load = problem.load(at)
    bad = np.flatnonzero(~problem.allowed[np.arange(len(at)), at])
    if len(bad):
        raise InputError(
            f"user {problem.users[bad[0]]!r} may not use broker {problem.core.brokers[at[bad[0]]]!r}."
        )
    over = np.flatnonzero(load > problem.room)
    if len(over):
        raise InputError(
            f"broker {problem.core.brokers[over[0]]!r} would bear {load[over[0]]:.6g} of at most "
            f"{problem.capacity[over[0]]:.6g}. Move users away from it."
        )
    trees = trees_of(problem, routing)
    state = state_of(problem, trees, at)
    core = float(state.group.sum())
    if routing == "paths":
        core = shortest(trees, state.members, state.rate_at)
    return Placement(at, problem.access_cost(at), core, load, routing, how)


def trees_of(problem: PlacementProblem, routing: Routing) -> Trees:
    """What `joined` needs to price sets of brokers by a routing. Made once per problem and routing."""
    if routing not in get_args(Routing):
        raise InputError(f"unknown routing {routing!r}. Use one of: {', '.join(get_args(Routing))}.")
    kept = derived(problem, "_trees", dict[str, Trees])
    if routing not in kept:
        kept[routing] = _trees(problem, KINDS[routing])
    return kept[routing]


def _trees(problem: PlacementProblem, kind: int) -> Trees:
    core, paths = problem.core, problem.paths
    count = len(core)
    start, neighbor, _, _ = core.adjacency
    tree = minimum_spanning_tree(core, "mean_price")
    clock, stamps, work, worth = tree_scratch(count)
    small = count <= MOST_TABLE
    places = 1 if small else KEPT
    trees = Trees(
        kind,
        _on_tree(core, tree) if kind == ONE_TREE else paths.distance.astype(np.float64),
        paths.predecessor.astype(np.int16),
        start,
        neighbor,
        arc_weights(core, "mean_price"),
        tree.order.astype(np.int32),
        tree.parent.astype(np.int32),
        tree_lengths(core, tree, "mean_price").astype(np.float64),
        np.zeros(1 << count if small else 0),
        np.zeros((places, -(-count // 64)), dtype=np.uint64),
        np.full(places, np.nan),
        np.zeros(1, dtype=np.int64),
        clock,
        stamps,
        np.empty(2 * count + 1),
        work,
        worth,
        np.empty((4, count), dtype=np.int32),
    )
    if small:
        fill_table(trees)
    return trees


def _on_tree(core: Overlay, tree: Tree) -> npt.NDArray[np.float64]:
    """float64[b, b]: distances between brokers along the one tree."""
    every = np.arange(len(core))
    return measured(core, tree, "mean_price").distance(every[:, None], every[None, :]).astype(np.float64)


def given_of(problem: PlacementProblem) -> SearchProblem:
    """The problem's arrays as the loops take them."""
    rate, subscribed = problem.groups
    return SearchProblem(rate, subscribed, problem.demand, problem.access_price, problem.room)


def state_of(problem: PlacementProblem, trees: Trees, at: npt.NDArray[np.int32]) -> SearchState:
    """Where everybody is, and every sum and tree cost that follows from it."""
    brokers = len(problem.core)
    channels = problem.groups[0].shape[1]
    state = SearchState(
        at.astype(np.int32),
        np.zeros(brokers),
        np.zeros((brokers, channels), dtype=np.int32),
        np.zeros((brokers, channels)),
        np.zeros((channels, -(-brokers // 64)), dtype=np.uint64),
        np.zeros(channels),
        np.zeros((channels, brokers)),
        np.zeros(-(-brokers // 64), dtype=np.uint64),
    )
    fill_state(given_of(problem), trees, state)
    return state
