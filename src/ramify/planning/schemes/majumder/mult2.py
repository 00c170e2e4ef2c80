"""Subscription groups by saved cost: MULT2, Algorithm 2 of Majumder et al. (2009).

Problem    Partition subscriptions into groups, one tree each, so that the documents of a sample cross
           as few links as possible.
Idea       Start with one group per subscription. Merge the pair that saves the largest share of its cost,
           (cost_i + cost_j - cost_ij) / (cost_i + cost_j), and stop when no pair saves anything.
Guarantee  None for the grouping; no merge of two groups makes the result cheaper, by the trees that we
           make. The same merges as if every pair were priced in every step.
Cost       O(K^2) bounds for K start groups, and a tree per pair that its bound does not rule out: some
           thousands where pricing every pair would take some hundred thousand.
Departures Lazily evaluated: see `grouping.merge_by_gain`. Classes at one broker with the same documents are
           one start group (they save half, the most there is). Groups that cost nothing end as one; classes
           whose documents never leave their broker join a group by section VI: see
           `grouping.grouped_plan`. `tree="swap"` (the scheme `mult2-swap`) prices by star decomposition and
           improves the final trees by swaps.

Reference: A. Majumder, N. Shrivastava, R. Rastogi, A. Srinivasan, "Scalable Content-Based Routing in
Pub/Sub Systems", INFOCOM 2009, section V.
"""

from dataclasses import asdict, dataclass

import numpy as np

from ramify.errors import LimitError
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder.compute_tree import Method, TreeMaker, require_method
from ramify.planning.schemes.majumder.grouping import (
    Ledger,
    alike,
    deadline_after,
    grouped_plan,
    merge_by_gain,
    merge_free,
    require_limits,
)
from ramify.planning.schemes.scheme import Progress, silent

__all__ = ["Mult2Params", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mult2Params:
    """`tree` is how trees are made: star, akpw or swap. `most_start` is how many start groups are accepted.

    `seconds` is a budget: when it runs out, what is merged so far is planned, and `cut_short` is among the
    plan's settings. It does not cover the Steiner trees of the destination sets, one quick tree per group,
    nor homes for classes that cost nothing.
    """

    tree: Method = "star"
    most_start: int = 2_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        require_method(self.tree)
        require_limits(self.seconds, most_start=self.most_start)


def plan(
    problem: Problem, params: Mult2Params, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """Merge by gain from one group per class."""
    deadline = deadline_after(params.seconds)
    label = alike(problem)
    count = int(label.max(initial=-1)) + 1
    if count > params.most_start:
        raise LimitError(
            f"{count} different subscriptions; mult2 starts with at most {params.most_start}. Use hybrid, "
            "or raise most_start."
        )
    ledger = Ledger(problem, TreeMaker(problem, params.tree, int(rng.integers(2**32))))
    progress(0.0, "joining destination sets")
    merged = merge_by_gain(ledger, ledger.start(label, deadline), progress, deadline)
    groups = merge_free(ledger, merged.groups)
    settings = {
        **asdict(params),
        "start_groups": count,
        "pairs_priced": merged.tried,
        "planned_cost": sum(group.cost for group in groups),
        "cut_short": not merged.finished,
    }
    scheme = "mult2-swap" if params.tree == "swap" else "mult2"
    return grouped_plan(scheme, ledger, groups, settings, progress, deadline)
