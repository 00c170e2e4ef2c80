"""Zhao and Wu's three algorithms, and the random baseline: a broker for every user.

random       Each user at a random broker with room that it may use (section VI-B).
greedy       Two-stage greedy packing (Algorithm 1): users in their order, each at the broker with the
             lowest access price that has room. O(u b).
clustering   Two-stage clustering (Algorithm 2): each broker gets the pair of users with the largest ratio
             of the traffic between them to their access prices there; then each user goes to the broker
             where its traffic with the users there, by access price, is largest. O(u b T) and the pairs,
             which are bounded by what each of them sends.
mixing       Steiner-tree mixing (section IV-B). 1: for each publisher and sub-channel a tree over users and
             brokers is grown (Algorithm 3), and the traffic on the links between users and brokers summed
             up. 2: each user draws a broker by these sums. 3: the brokers are joined. O(b T u b).

The second stage of all is routing in the core, which `assess` prices.

Departures Algorithm 1 prints users and brokers swapped, Algorithm 2 the smallest ratio; both are put right.
           Users without traffic at any cluster take the cheapest broker with room. The trees of publishers
           that enter the core at one broker differ only in the publisher itself: they are grown once, from
           that broker. A drawn broker must have room; when none of a user's has, it takes the cheapest one
           that has. Users draw from large to small, so that the large find room. Of equally long paths the
           one with the cheapest access link is taken, since it brings the tree nearest to the user.
Guarantee  None on the cost. Capacities hold; `PlacementError` when a user finds no room.

Reference: Y. Zhao, J. Wu, "On the Construction of the Minimum Cost Content-Based Publish/Subscribe
Overlays", sections III and IV.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ramify.planning.placement.capacity import gave_up
from ramify.planning.placement.core import Routing, assess
from ramify.planning.placement.heuristic_kernels import (
    best_pairs,
    cheapest_with_room,
    draw,
    largest_ratio,
    tree_weights,
)
from ramify.planning.placement.model import Placement, PlacementProblem

__all__ = ["HEURISTICS", "Heuristic", "clustering", "greedy", "mixing", "random_placement"]

Heuristic = Callable[[PlacementProblem, np.random.Generator, Routing], Placement]


def random_placement(
    problem: PlacementProblem, rng: np.random.Generator, routing: Routing = "steiner"
) -> Placement:
    """A random broker with room for each user, users in random order."""
    weight = problem.allowed.astype(np.float64)
    order = rng.permutation(len(problem.users))
    return _drawn(problem, rng, routing, "random", weight, order)


def greedy(problem: PlacementProblem, rng: np.random.Generator, routing: Routing = "steiner") -> Placement:
    """Algorithm 1. Uses no randomness."""
    order = np.arange(len(problem.users))
    at, load = _empty(problem)
    failed = cheapest_with_room(problem.access_price, problem.demand, problem.room, order, at, load)
    if failed >= 0:
        raise gave_up(problem, "greedy packing", failed, load)
    return assess(problem, at, routing, "greedy")


def clustering(
    problem: PlacementProblem, rng: np.random.Generator, routing: Routing = "steiner"
) -> Placement:
    """Algorithm 2. Uses no randomness."""
    rate, subscribed = problem.groups
    wanted = subscribed.astype(np.float64)
    at, load = _empty(problem)
    given = (rate, wanted, problem.access_price, problem.demand, problem.room)
    best_pairs(*given, at, load)
    failed = largest_ratio(*given, at, load)
    if failed >= 0:
        raise gave_up(problem, "clustering", failed, load)
    return assess(problem, at, routing, "clustering")


def mixing(problem: PlacementProblem, rng: np.random.Generator, routing: Routing = "steiner") -> Placement:
    """Steiner-tree mixing."""
    weight = mixing_weights(problem)
    order = np.argsort(-problem.demand, kind="stable")
    return _drawn(problem, rng, routing, "mixing", weight, order)


def mixing_weights(problem: PlacementProblem) -> npt.NDArray[np.float64]:
    """float64[u, b]: phase 1, the traffic on each access link over the trees of all publishers."""
    rate, subscribed = problem.groups
    weight = np.zeros(problem.access_price.shape)
    distance = problem.paths.distance.astype(np.float64)
    predecessor = problem.paths.predecessor.astype(np.int32)
    tree_weights(rate, subscribed, problem.access_price, distance, predecessor, weight)
    return weight


def _drawn(
    problem: PlacementProblem,
    rng: np.random.Generator,
    routing: Routing,
    how: str,
    weight: npt.NDArray[np.float64],
    order: npt.NDArray[np.int64],
) -> Placement:
    at, load = _empty(problem)
    chance = rng.random(len(problem.users))
    failed = draw(weight, chance, problem.access_price, problem.demand, problem.room, order, at, load)
    if failed >= 0:
        raise gave_up(problem, how, failed, load)
    return assess(problem, at, routing, how)


def _empty(problem: PlacementProblem) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    return np.full(len(problem.users), -1, dtype=np.int32), np.zeros(len(problem.core))


HEURISTICS: dict[str, Heuristic] = {
    "random": random_placement,
    "greedy": greedy,
    "clustering": clustering,
    "mixing": mixing,
}
