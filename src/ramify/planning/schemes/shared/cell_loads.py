"""The load of cells: what Kyra balances zones by, and the exponent in it.

Owns the cells that classes touch, the load of every cell, and the fit of alpha. The load of an event is
popularity^alpha * volume * weight: the popularity is the share of subscriptions that want it, volume times
weight are its bytes (and one per event, so that empty ones count). Load is additive, so zones are summed.

Departure: alpha depends on the metric of the overlay (about 0.3 on a plane, 0.5 with random lengths, 0.6 on
a transit-stub network), so it is fitted on the tree at hand unless a number is given; the paper's is
0.6101.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.content.filters.space import Grid
from ramify.errors import InputError
from ramify.memo import derived
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.trees import MeasuredTree, Tree
from ramify.planning.plans.problem import Problem

__all__ = ["PAPER_ALPHA", "Fit", "cell_loads", "counted_grid", "fit_alpha", "touched_cells", "weighed"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PAPER_ALPHA = 0.6101
LEVELS = 16
SETS = 24
"""Popularities that alpha is fitted on, and random sets of brokers for each."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The exponent, and the share of the variance (of logarithms) that it explains."""

    alpha: float
    r_squared: float


def counted_grid(problem: Problem) -> Grid | None:
    """The problem's grid; None without one. `InputError` when its demand was counted without it."""
    grid, cell = problem.grid, problem.demand.cell
    if grid is not None and len(cell) and not 0 <= cell.min() <= cell.max() < grid.size:
        raise InputError(
            "the problem has a grid, but its demand was counted without it: some patterns are in no cell "
            "of it. Tally the events with this grid, or leave the grid out."
        )
    return grid


def touched_cells(problem: Problem, grid: Grid) -> Bools:
    """bool[c, cells]: where each class may match, by its filter. Computed once per problem and grid."""
    kept = derived(problem, "_kyra_touched", dict[Grid, Bools])
    if grid not in kept:
        touched = np.zeros((len(problem.classes), grid.size), dtype=np.bool_)
        for k, filter_ in enumerate(problem.classes.filters):
            touched[k, grid.cells_touched(filter_)] = True
        kept[grid] = touched
    return kept[grid]


def cell_loads(problem: Problem, grid: Grid, alpha: float) -> Floats:
    """float64[cells]: the load of the training window. O(patterns and their classes).

    Where no event was seen, every cell counts as one that matches all classes which touch it; where even
    that gives nothing, all cells count the same.
    """
    demand = problem.demand
    members = np.array([len(rows) for rows in problem.classes.members], dtype=np.float64)
    total = max(float(members.sum()), 1.0)
    if demand.events:
        ends = np.concatenate(([0.0], np.cumsum(members[demand.classes])))
        wanted = ends[demand.start[1:]] - ends[demand.start[:-1]]
        load = (wanted / total) ** alpha * (wanted > 0) * problem.pattern_weight
        loads: Floats = weighed(demand.cell, load, grid.size)
    else:
        wanted = members @ touched_cells(problem, grid)
        loads = (wanted / total) ** alpha * (wanted > 0)
    return loads if loads.any() else np.ones(grid.size)


def weighed(place: npt.NDArray[np.integer[Any]], weight: Floats, count: int) -> Floats:
    """float64[count]: the weights summed by place."""
    summed: npt.NDArray[Any] = np.bincount(place, weights=weight, minlength=count)
    return summed.astype(np.float64, copy=False)


def fit_alpha(tree: Tree, rng: np.random.Generator) -> Fit:
    """How the servers that an event travels grow with those that want it (Kyra, Figure 7).

    Random sets of brokers at `LEVELS` popularities from 1 % up, `SETS` each; the share of the tree's
    brokers that the least sub-tree joining a set holds, regressed on the share in the set by logarithms.
    What all want travels everywhere, so the line goes through there. The paper's constant where the tree
    is too small to tell.
    """
    count = len(tree.order)
    sizes = np.unique(np.linspace(max(2, count // 100), max(count, 2), LEVELS).astype(np.int64))
    if len(sizes) < 3:
        return Fit(PAPER_ALPHA, 0.0)
    hops = MeasuredTree.of(tree, np.ones(len(tree.parent)))
    travelled = np.empty(len(sizes))
    for row, size in enumerate(sizes.tolist()):
        node = np.concatenate([rng.choice(tree.order, int(size), replace=False) for _ in range(SETS)])
        start = np.arange(SETS + 1, dtype=np.int64) * int(size)
        costs = hops.costs(TerminalSets(start, node.astype(np.int32), np.ones(SETS)))
        travelled[row] = (costs.mean() + 1) / count
    x, y = np.log(sizes / count), np.log(travelled)
    alpha = float(x @ y) / float(x @ x)
    spread = float(((y - y.mean()) ** 2).sum())
    return Fit(alpha, 1 - float(((y - alpha * x) ** 2).sum()) / spread if spread else 0.0)
