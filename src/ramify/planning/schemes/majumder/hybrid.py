"""Subscription groups by overlap, then by saved cost: the hybrid of Majumder et al. (2009), section V.

Problem    Partition subscriptions into groups, one tree each, so that the documents of a sample cross
           as few links as possible, for more subscriptions than Algorithm 2 can start with.
Idea       Algorithm 3 merges the groups whose documents overlap most until `clusters` are left, with no
           pricing. From there Algorithm 2 merges the pair that saves the largest share of its cost until
           none saves anything.
Guarantee  None for the grouping; no merge of two groups makes the result cheaper, by the trees that we
           make.
Cost       O(K^2) for K distinct document sets, then that of Algorithm 2 from `clusters` groups.
Departures Those of `mult` and `mult2`. The paper leaves the "manageable number" open: `clusters`.
           `tree="swap"` (the scheme `hybrid-swap`) prices by star decomposition and improves the final
           trees by swaps.

Reference: A. Majumder, N. Shrivastava, R. Rastogi, A. Srinivasan, "Scalable Content-Based Routing in
Pub/Sub Systems", INFOCOM 2009, section V.
"""

from dataclasses import asdict, dataclass

import numpy as np

from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder.compute_tree import Method, TreeMaker, require_method
from ramify.planning.schemes.majumder.grouping import (
    Ledger,
    agglomerate,
    deadline_after,
    grouped_plan,
    merge_by_gain,
    merge_free,
    require_limits,
)
from ramify.planning.schemes.scheme import Progress, silent

__all__ = ["HybridParams", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridParams:
    """`tree` is how trees are made: star, akpw or swap. `clusters` is where Algorithm 2 takes over.

    `seconds` is a budget: when it runs out, what is merged so far is planned, and `cut_short` is among the
    plan's settings. It does not cover merging by overlap, the Steiner trees of the destination sets, one
    quick tree per group, nor homes for classes that cost nothing.
    """

    tree: Method = "star"
    clusters: int = 1_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        require_method(self.tree)
        require_limits(self.seconds, clusters=self.clusters)


def plan(
    problem: Problem, params: HybridParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """Merge by overlap down to some clusters, then by gain."""
    deadline = deadline_after(params.seconds)
    progress(0.0, "comparing documents")
    sequence = agglomerate(problem.demand, len(problem.classes))
    label = sequence.after(max(0, sequence.clusters - params.clusters))
    ledger = Ledger(problem, TreeMaker(problem, params.tree, int(rng.integers(2**32))))
    merged = merge_by_gain(ledger, ledger.start(label, deadline), progress, deadline)
    groups = merge_free(ledger, merged.groups)
    settings = {
        **asdict(params),
        "start_groups": min(sequence.clusters, params.clusters),
        "pairs_priced": merged.tried,
        "planned_cost": sum(group.cost for group in groups),
        "cut_short": not merged.finished,
    }
    scheme = "hybrid-swap" if params.tree == "swap" else "hybrid"
    return grouped_plan(scheme, ledger, groups, settings, progress, deadline)
