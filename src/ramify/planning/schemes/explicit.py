"""Explicit: the publisher's broker matches once and writes the way into the header.

Problem    Carry every event to the brokers that want it for as little as a tree of its own costs.
Idea       There is no tree in the plan. The publisher's broker matches the event and puts into the header
           either the Steiner tree of its destinations, which the others just read (`explicit`), or the
           destinations, which every broker splits by next hop (`explicit-list`).
Guarantee  `explicit` pays for the payload what the reference `opt` pays where prices are directed; where
           they are the same both ways, within 2 (1 - 1/k) of the optimum for k terminals. `explicit-list`
           pays for the union of shortest paths. Both work for events that no sample has shown.
Cost       Nothing is planned. A broker looks the tree up per destination set, or builds it.
Departures None: explicit trees are our own. Destination lists are those of explicit multicast (Boivie et
           al., RFC 5058, doi:10.17487/RFC5058).
"""

from dataclasses import dataclass

import numpy as np

from ramify.planning.plans.plan import Plan, Pruning, Stamped
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Progress, channel, put_together, silent

__all__ = ["ExplicitParams", "plan"]


@dataclass(frozen=True, slots=True)
class ExplicitParams:
    """`lists`: the header holds the destinations instead of the tree."""

    lists: bool = False


def plan(
    problem: Problem, params: ExplicitParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """One channel without a tree that serves every class. O(classes)."""
    pruning = Pruning.DESTINATIONS if params.lists else Pruning.TREE
    name = "explicit-list" if params.lists else "explicit"
    everyone = np.arange(len(problem.classes))
    made = channel(name, problem, None, everyone, pruning=pruning, content=Stamped())
    return put_together(name, problem, [made])
