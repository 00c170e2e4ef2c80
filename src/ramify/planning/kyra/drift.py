"""Zones follow drift: what moves when the content space is divided anew by later statistics.

Owns the comparison of two plans of Kyra on the same overlay, classes and grid. Planning again with a later
demand is all that following takes; this says what it would change. A subscription moves when its proxy
changes in a cell that it touches: it must be sent to the new proxy and taken from the old one.

Guarantee: the same statistics divide alike, so nothing moves.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.planning.kyra.loads import cell_loads, touched_cells, weighed
from ramify.planning.plan import Cells, Plan
from ramify.planning.problem import Problem

__all__ = ["Drift", "clique_imbalance", "drift", "proxies_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Drift:
    """What a new division changes.

    Attributes
    ----------
    moved, of           subscriptions whose proxy changes somewhere, of how many
    cells               (broker, cell) pairs that get another proxy
    before, after       the heaviest zone of a clique over its mean zone, averaged over cliques of several
                        brokers: of the old zones and of the new, both by the new statistics
    """

    moved: int
    of: int
    cells: int
    before: float
    after: float


def drift(old: Plan, new: Plan, problem: Problem, alpha: float) -> Drift:
    """What moves from one plan to the next. `problem` has the new statistics and the grid of both.

    `InputError` for plans that do not divide this grid by proxies. O(classes * cells + brokers * cells).
    """
    if problem.grid is None:
        raise InputError(
            "without a grid there is one zone, and nothing can move. Count events with a grid."
        )
    was, now = (proxies_of(plan, problem) for plan in (old, new))
    changed = was != now
    touched = touched_cells(problem, problem.grid)
    moved = (touched & changed[problem.classes.broker]).any(axis=1)
    members = np.array([len(rows) for rows in problem.classes.members], dtype=np.int64)
    load = cell_loads(problem, problem.grid, alpha)
    return Drift(
        int(members[moved].sum()),
        int(members.sum()),
        int(changed.sum()),
        clique_imbalance(was, load),
        clique_imbalance(now, load),
    )


def proxies_of(plan: Plan, problem: Problem) -> Ints:
    """int32[n, cells]: the proxy of each broker in each cell, read from where events enter."""
    if plan.grid != problem.grid or problem.grid is None:
        raise InputError(f"plan {plan.scheme} divides another grid than the problem has. Plan it again.")
    proxy = np.full((len(plan.overlay), problem.grid.size), -1, dtype=np.int32)
    for channel in plan.channels:
        content, targets = channel.admits.content, channel.entry.targets
        if targets is None:
            raise InputError(
                f"plan {plan.scheme} has no proxies: channel {channel.name} is entered anywhere."
            )
        cells = content.cells if isinstance(content, Cells) else np.arange(problem.grid.size)
        proxy[:, cells] = targets[:, None]
    if (proxy < 0).any():
        raise InputError(f"plan {plan.scheme} leaves cells without a proxy, so it is not one of Kyra.")
    return proxy


def clique_imbalance(proxy: Ints, load: Floats) -> float:
    """The heaviest zone over the mean zone, averaged over cliques of several brokers; 1 without any.

    Brokers with the same proxies everywhere are a clique: no broker is a proxy of two.
    """
    rows, size = np.unique(proxy, axis=0, return_counts=True)
    ratios = []
    for row, brokers in zip(rows, size.tolist(), strict=True):
        mean = float(load.sum()) / brokers
        if brokers > 1 and mean:
            ratios.append(float(weighed(row, load, len(proxy)).max()) / mean)
    return float(np.mean(ratios)) if ratios else 1.0
