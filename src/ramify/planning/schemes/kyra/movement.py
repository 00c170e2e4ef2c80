"""Subscription movement: which broker stands in for which, cell by cell (Kyra, sections III-B and III-C).

Owns the two partitions of the content space. Inside a clique each broker has a zone and is the proxy of all
subscriptions of the clique there; between cliques each routing tree has one. Both divide the same load, so
cliques of the same size are divided alike, and trees like a clique of as many brokers.

Without a grid there is one zone, everything, for one broker of each clique (its medoid), and one tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ramify.content.filters.space import Grid
from ramify.errors import InputError
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.kyra.cliques import medoid
from ramify.planning.schemes.kyra.zones import zones_of
from ramify.planning.schemes.shared.cell_loads import touched_cells, weighed

__all__ = ["Movement", "axes_of", "move", "stay"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Movement:
    """Which broker is the proxy of which subscriptions.

    Attributes
    ----------
    cliques    the brokers of each
    proxy      int32[n, cells]: the proxy of each broker's subscriptions in each cell; one cell without a
               grid
    tree       int32[cells]: the routing tree of each cell
    grid       None where everything is one cell
    """

    cliques: tuple[Ints, ...]
    proxy: Ints
    tree: Ints
    grid: Grid | None

    @property
    def zones(self) -> int:
        """Zones of the clique that has most."""
        first = [int(members[0]) for members in self.cliques]
        return max(len(np.unique(self.proxy[broker])) for broker in first)

    @cached_property
    def subzones(self) -> tuple[Ints, ...]:
        """The coarsest sets of cells in which every broker has one proxy and events take one tree.

        By their first cell; cells ascending.
        """
        column = np.vstack((self.tree[None, :], self.proxy))
        _, kind = np.unique(column, axis=1, return_inverse=True)
        sets = [np.flatnonzero(kind.ravel() == each) for each in range(int(kind.max()) + 1)]
        return tuple(cells.astype(np.int32) for cells in sorted(sets, key=lambda cells: int(cells[0])))

    def members(self, cells: npt.ArrayLike) -> Ints:
        """The brokers whose zone overlaps some cells, ascending."""
        found: Ints = np.unique(self.proxy[:, np.asarray(cells)]).astype(np.int32)
        return found


def move(
    problem: Problem,
    grid: Grid,
    cliques: tuple[Ints, ...],
    load: Floats,
    trees: int,
    *,
    axes: Sequence[int] | None = None,
    straddle: float = 0.5,
) -> Movement:
    """Divide the content space between the brokers of each clique and between `trees` trees.

    Zones go to the brokers of a clique in their order; a zone that is empty because cells are too few
    belongs to nobody's subscriptions. One partition per distinct size, O(rows * cells * log parts) each.
    """
    rows, weight = _kinds(problem, touched_cells(problem, grid))
    kept: dict[int, Ints] = {}

    def divided(parts: int) -> Ints:
        if parts not in kept:
            kept[parts] = zones_of(load, grid.shape, parts, rows, weight, axes=axes, straddle=straddle)
        return kept[parts]

    proxy = np.empty((len(problem.overlay), grid.size), dtype=np.int32)
    for members in cliques:
        proxy[members] = members[divided(len(members))]
    return Movement(cliques, proxy, divided(trees), grid)


def stay(cliques: tuple[Ints, ...], distance: Floats) -> Movement:
    """One zone: the medoid of each clique is the proxy of all of it, and there is one tree."""
    proxy = np.empty((len(distance), 1), dtype=np.int32)
    for members in cliques:
        proxy[members] = medoid(distance, members)
    return Movement(cliques, proxy, np.zeros(1, dtype=np.int32), None)


def axes_of(grid: Grid, attributes: Sequence[str]) -> list[int] | None:
    """The axes of the attributes; None for all. `InputError` for one that is not in the grid."""
    if not attributes:
        return None
    paths = [axis.path for axis in grid.axes]
    for path in attributes:
        if path not in paths:
            raise InputError(
                f"zones cannot be cut by {path!r}: events were counted by {', '.join(paths)}. Choose of "
                "those, or count with a grid that has it."
            )
    return [paths.index(path) for path in attributes]


def _kinds(problem: Problem, touched: Bools) -> tuple[Bools, Floats]:
    """The distinct sets of cells that subscriptions touch, and how many subscriptions do."""
    members = np.array([len(rows) for rows in problem.classes.members], dtype=np.float64)
    packed = np.packbits(touched, axis=1)
    _, first, kind = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return touched[first], weighed(kind.ravel(), members, len(first))
