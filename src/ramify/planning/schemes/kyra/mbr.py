"""Multicast-based routing: MBR, the baseline of Cao and Singh (2004) after Riabov et al. (2002).

Problem    Carry events to the brokers that want them without matching on the way.
Idea       Cluster the cells of the content space into K groups by the brokers interested in them (Forgy's
           k-means, see `groups`). A multicast tree per group spans the brokers interested in
           any of its cells; an event goes to all of its group.
Guarantee  Every event reaches every broker that wants it: a filter that accepts an event touches its cell,
           so its broker is in the group. Brokers that do not want it get it too: `Price.waste`.
Cost       All distances; then O(rounds * cells * K * n) and a spanning tree of each group, O(k^2 log k).
Departures A publisher's broker that is not in the group sends to the nearest broker that is. A cell where
           nobody is interested is in no group: its events stay where they are published. Without a grid
           (nothing to cut by, or no cells were counted) there is one group, everything.

Reference: F. Cao, J. P. Singh, "Efficient Event Routing in Content-based Publish-Subscribe Service
Networks", INFOCOM 2004, sections II-B and IV-A; A. Riabov, Z. Liu, J. Wolf, P. Yu, L. Zhang, "Clustering
Algorithms for Content-Based Publication-Subscription Systems", ICDCS 2002.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.planning.plans.plan import (
    Admission,
    Cells,
    Channel,
    Content,
    Entry,
    Everything,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.kyra.groups import forgy
from ramify.planning.schemes.scheme import Progress, put_together, silent
from ramify.planning.schemes.shared.cell_loads import counted_grid, touched_cells, weighed
from ramify.planning.schemes.shared.shortest_trees import joined_tree, nearest_on
from ramify.planning.schemes.shared.ways import Length, Ways

__all__ = ["MbrParams", "plan"]

PAPER_GROUPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MbrParams:
    """`groups` at most; `weight` is what trees are short by: latency, mean_price or hops."""

    groups: int = PAPER_GROUPS
    weight: Length = "latency"

    def __post_init__(self) -> None:
        if not isinstance(self.groups, int) or self.groups < 1:
            raise InputError(f"groups = {self.groups!r}. Allowed: 1 or more.")


def plan(
    problem: Problem, params: MbrParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """A flooded tree per group of cells."""
    progress(0.0, "distances")
    ways = Ways(problem, params.weight)
    grid = counted_grid(problem)
    classes = problem.classes
    live = ~classes.vacant
    if grid is None:
        everyone = np.flatnonzero(live)
        channels = [_channel("everything", problem, ways, everyone, Everything())] if len(everyone) else []
        return put_together("mbr", problem, channels, {"realised_groups": len(channels)}, paths=ways.paths)
    touched = touched_cells(problem, grid) & live[:, None]
    interested = np.zeros((grid.size, len(problem.overlay)), dtype=np.bool_)
    for k in np.flatnonzero(touched.any(axis=1)).tolist():
        interested[touched[k], classes.broker[k]] = True
    progress(0.3, "groups of cells")
    published = weighed(problem.demand.cell, problem.pattern_weight, grid.size)
    labels = forgy(interested, published, params.groups)
    channels = []
    for group in range(int(labels.max()) + 1):
        progress(0.5 + 0.5 * group / (int(labels.max()) + 1), "trees")
        cells = np.flatnonzero(labels == group).astype(np.int32)
        members = np.flatnonzero(touched[:, cells].any(axis=1))
        channels.append(_channel(f"g{group}", problem, ways, members, Cells(cells)))
    settings = {"realised_groups": len(channels), "cells": grid.size}
    return put_together("mbr", problem, channels, settings, paths=ways.paths, grid=grid)


def _channel(
    name: str, problem: Problem, ways: Ways, classes: npt.NDArray[np.intp], content: Content
) -> Channel:
    """A tree of the hosts of some classes, flooded, entered at its nearest broker."""
    serves = Serves.at_hosts(classes, problem.classes)
    members = np.unique(serves.at)
    tree = joined_tree(ways, members)
    targets = nearest_on(ways.distance, members)
    ways.join(np.arange(len(targets)), targets)
    return Channel(name, Admission(content), serves, Pruning.NONE, tree, Entry(targets))
