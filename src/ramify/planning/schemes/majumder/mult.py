"""Subscription groups by document overlap: MULT, Algorithm 3 of Majumder et al. (2009).

Problem    Partition subscriptions into groups, one tree each, so that the documents of a sample cross
           as few links as possible.
Idea       Start with one group per subscription. Merge the pair whose documents overlap most (Jaccard).
           Price the configuration after every merge and keep the cheapest seen.
Guarantee  None for the grouping; each tree is within O(log^2 n log log n) of its optimum (Theorem IV.1).
Cost       O(K^2) for K distinct document sets plus the sum over documents of the squared number of sets
           they are in; K - 1 trees: only the merged group is priced again.
Departures Classes with the same documents are collapsed first (they would merge first anyway). Of equally
           cheap configurations the one with fewest trees is kept. Classes that cost nothing wherever they
           are join a group by section VI with tie-breaks of our own: see `grouping.grouped_plan`.
           `most_trees` leaves configurations of more groups out. `tree="swap"` (the scheme `mult-swap`)
           prices by star decomposition and improves the trees of the cheapest configuration by swaps.

Reference: A. Majumder, N. Shrivastava, R. Rastogi, A. Srinivasan, "Scalable Content-Based Routing in
Pub/Sub Systems", INFOCOM 2009, sections V and VI.
"""

from dataclasses import asdict, dataclass
from time import perf_counter

import numpy as np

from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder.compute_tree import Method, TreeMaker, require_method
from ramify.planning.schemes.majumder.grouping import (
    Agglomeration,
    Group,
    Ledger,
    agglomerate,
    deadline_after,
    grouped_plan,
    require_limits,
)
from ramify.planning.schemes.scheme import Progress, silent

__all__ = ["MultParams", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultParams:
    """`tree` is how trees are made: star, akpw or swap. `most_trees` caps the groups.

    `seconds` is a budget for pricing and swaps: when it runs out, the cheapest configuration so far is
    planned (or, if all had too many groups, the first that is allowed), and `cut_short` is among the plan's
    settings. It does not cover the merge sequence, the Steiner trees of the destination sets,
    one quick tree per group, nor homes for classes that cost nothing.
    """

    tree: Method = "star"
    most_trees: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        require_method(self.tree)
        require_limits(self.seconds, most_trees=self.most_trees)


def plan(
    problem: Problem, params: MultParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """The cheapest configuration of the merge sequence."""
    deadline = deadline_after(params.seconds)
    ledger = Ledger(problem, TreeMaker(problem, params.tree, int(rng.integers(2**32))))
    progress(0.0, "comparing documents")
    sequence = agglomerate(problem.demand, len(problem.classes))
    merges, cut_short = _cheapest(ledger, sequence, params.most_trees, progress, deadline)
    groups = ledger.start(sequence.after(merges), deadline)
    settings = {
        **asdict(params),
        "clusters": sequence.clusters,
        "merges": merges,
        "planned_cost": sum(group.cost for group in groups),
        "cut_short": cut_short,
    }
    scheme = "mult-swap" if params.tree == "swap" else "mult"
    return grouped_plan(scheme, ledger, groups, settings, progress, deadline)


def _cheapest(
    ledger: Ledger, sequence: Agglomeration, most_trees: int | None, progress: Progress, deadline: float
) -> tuple[int, bool]:
    """After how many merges the configuration costs least, and whether time ran out before the last."""
    clusters = sequence.clusters
    first = max(0, clusters - (most_trees or clusters))  # merges until a configuration counts
    groups: list[Group | None] = [*ledger.start(sequence.after(0), deadline)]
    total = sum(group.cost for group in groups if group is not None)
    best, least = first, total if first == 0 else np.inf
    for step, (i, j) in enumerate(sequence.merges.tolist(), start=1):
        if perf_counter() > deadline:
            return best, True
        a, b = groups[i], groups[j]
        assert a is not None, "a merge is of clusters that are there"
        assert b is not None, "likewise"
        merged = ledger.joined(a, b)
        groups[i], groups[j] = merged, None
        total += merged.cost - a.cost - b.cost
        if step >= first and total <= least:
            best, least = step, total
        progress(0.9 * step / clusters, f"{clusters - step} groups cost {total:.6g}")
    return best, False
