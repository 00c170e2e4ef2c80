"""One tree for all: SINGLE, Algorithm 1 of Majumder et al. (2009).

Problem    One spanning tree of the overlay on which the documents of a sample cross as few links (or cost
           as little) as possible, when each is forwarded only toward brokers that want it.
Idea       COMPUTETREE over all destination sets: the union of one Steiner tree per document, weighted by
           how many use each link, and a low-stretch spanning tree of it.
Guarantee  Within O(log^2 n log log n) of the best tree (Theorem IV.1) as far as the low-stretch tree keeps
           its bound; every event reaches every class that it matches.
Cost       A Steiner tree per distinct destination set, then O(m log n). `swap` adds its local search.
Departures See `schemes.majumder.compute_tree`. Documents count by bytes, and one per event. `tree="swap"`
           (the scheme `single-swap`) improves that tree and others by exchanging links and keeps the
           cheapest, at the price in the direction travelled: our own.

Reference: A. Majumder, N. Shrivastava, R. Rastogi, A. Srinivasan, "Scalable Content-Based Routing in
Pub/Sub Systems", INFOCOM 2009, section IV.
"""

from dataclasses import asdict, dataclass

import numpy as np

from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder.compute_tree import Method, TreeMaker, require_method
from ramify.planning.schemes.majumder.grouping import Ledger, deadline_after, grouped_plan, require_limits
from ramify.planning.schemes.scheme import Progress, silent

__all__ = ["SingleParams", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleParams:
    """`tree` is how the tree is made: star, akpw or swap. `seconds` bounds the exchange of links.

    When it runs out, the cheapest tree so far is planned, and `cut_short` is among the plan's settings. It
    does not cover the Steiner trees of the destination sets, nor one tree made of them.
    """

    tree: Method = "star"
    seconds: float | None = None

    def __post_init__(self) -> None:
        require_method(self.tree)
        require_limits(self.seconds)


def plan(
    problem: Problem, params: SingleParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """One group of all classes on one tree."""
    deadline = deadline_after(params.seconds)
    ledger = Ledger(problem, TreeMaker(problem, params.tree, int(rng.integers(2**32))))
    progress(0.0, "joining destination sets")
    groups = ledger.start(np.zeros(len(problem.classes), dtype=np.int32), deadline)
    scheme = "single-swap" if params.tree == "swap" else "single"
    return grouped_plan(scheme, ledger, groups, asdict(params), progress, deadline)
