"""Filter-based routing: FBR, the baseline of Cao and Singh (2004).

Problem    Carry events to the brokers that want them with nothing but one tree and filters.
Idea       A minimum spanning tree of all brokers by latency; every broker knows the subscriptions behind
           each of its neighbours and forwards only where one matches, as Siena does.
Guarantee  Every event reaches every broker that wants it, over tree links only, each once.
Cost       O(m log m).
Departures The tree of the complete graph of distances is taken among the overlay's own links, where one of
           least length always is. No covering, merging or advertisements, as in the paper; how much
           covering would save is in `Price.covered`. `weight` may be another than latency.

Reference: F. Cao, J. P. Singh, "Efficient Event Routing in Content-based Publish-Subscribe Service
Networks", INFOCOM 2004, sections II-A and IV-A.
"""

from dataclasses import dataclass

import numpy as np

from ramify.planning.plans.plan import Admission, Channel, Everything, Plan, Pruning, Serves
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Progress, put_together, silent
from ramify.planning.schemes.shared.shortest_trees import whole_tree
from ramify.planning.schemes.shared.ways import Length

__all__ = ["FbrParams", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FbrParams:
    """`weight` is what the tree is short by: latency, mean_price or hops."""

    weight: Length = "latency"


def plan(
    problem: Problem, params: FbrParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """One filtered tree for everything."""
    everyone = Serves.at_hosts(np.arange(len(problem.classes)), problem.classes)
    tree = whole_tree(problem, params.weight)
    made = Channel("mst", Admission(Everything()), everyone, Pruning.FILTER, tree)
    return put_together("fbr", problem, [made])
