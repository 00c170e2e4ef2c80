"""The least cost of small placements, by a mixed integer program on HiGHS, with bounds.

Program    x[u, b]: user u is at broker b. z[u, c, arc]: what u publishes into c crosses an arc of the
           core; it is paid once, however many subscribers are behind it. f[u, c, j, arc] in 0..z: a unit
           flows from u's broker to that of every other subscriber j of c, which makes z a tree.
Guarantee  Optimal when `optimal`; no placement costs less than `bound`. `relaxed` is the bound of the
           program without integers.
Cost       Exponential; seconds at 10 users, 5 brokers, 4 sub-channels. `LimitError` above
           `MOST_VARIABLES`.
Departures The printed program counts flows per pair of brokers and leaves their union inside a sum; this is
           the linear form of what it means. Publishers of a sub-channel that want it too use one tree
           (links cost the same both ways), so one of them stands for all.

Reference: Y. Zhao, J. Wu, "On the Construction of the Minimum Cost Content-Based Publish/Subscribe
Overlays", Equations 2 to 5.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from ramify.errors import LimitError, PlacementError
from ramify.network.graphs.distances import arc_weights
from ramify.planning.placement.capacity import require_room
from ramify.planning.placement.core import assess
from ramify.planning.placement.model import Placement, PlacementProblem

__all__ = ["MOST_VARIABLES", "ExactPlacement", "exact_placement"]

MOST_VARIABLES = 100_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ExactPlacement:
    """A placement with what no other can beat."""

    placement: Placement
    bound: float
    relaxed: float
    optimal: bool


def exact_placement(problem: PlacementProblem, *, seconds: float | None = None) -> ExactPlacement:
    """The best placement with Steiner trees in the core.

    `seconds` ends the search early with the best placement so far. Raises a proven `PlacementError` when
    users do not fit, `LimitError` when the problem is too large or no placement was found in time.
    """
    require_room(problem)
    program = _Program(problem)
    relaxed = program.solve(integers=False, seconds=seconds)
    if relaxed.x is None:
        raise LimitError(f"HiGHS did not solve the relaxed program: {relaxed.message}")
    while True:
        found = program.solve(integers=True, seconds=seconds)
        if found.status == 2:
            raise _unpackable(problem)
        if found.x is None:
            raise LimitError(f"HiGHS found no placement: {found.message} Give it more seconds.")
        at = program.brokers(found.x)
        over = np.flatnonzero(problem.load(at) > problem.room)
        if not len(over):
            break
        # the solver's tolerance let a broker take more than it bears: forbid these users together
        for b in over.tolist():
            program.forbid(np.flatnonzero(at == b), b)
    bound = float(found.mip_dual_bound) if found.mip_dual_bound is not None else float(found.fun)
    placement = assess(problem, at, "steiner", "exact")
    scale = program.scale
    return ExactPlacement(placement, bound * scale, float(relaxed.fun) * scale, found.status == 0)


def _unpackable(problem: PlacementProblem) -> PlacementError:
    return PlacementError(
        f"no placement exists: the {len(problem.users)} users would fit the brokers' capacities in parts, "
        "but not whole. Raise a capacity, or let users use other brokers.",
        missing=0.0,
        users=problem.users,
        proven=True,
    )


def _sources(rate: Floats, wanted: npt.NDArray[np.bool_]) -> Floats:
    """The rates. One user stands for all that want a sub-channel; 0 where nobody else wants it."""
    told = np.where(wanted, 0.0, rate)
    for c in range(rate.shape[1]):
        who = np.flatnonzero(wanted[:, c])
        if len(who) > 1:
            told[who[0], c] = rate[who, c].sum()
    return told


class _Program:
    """The matrix, by rows of (column, value) that are collected one constraint at a time."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        core = problem.core
        start, neighbor, _, _ = core.adjacency
        self._tail = np.repeat(np.arange(len(core)), np.diff(start))
        self._head = neighbor.astype(np.int64)
        self._arcs = len(neighbor)
        users, brokers = problem.access_price.shape
        rate, wanted = _sources(*problem.groups), problem.groups[1]
        sources = np.argwhere(rate > 0).tolist()
        flows = sum(int(wanted[:, c].sum() - wanted[u, c]) for u, c in sources)
        size = users * brokers + (len(sources) + flows) * self._arcs
        if size > MOST_VARIABLES:
            raise LimitError(
                f"an exact placement of {users} users at {brokers} brokers takes {size:,} variables, more "
                f"than {MOST_VARIABLES:,}. Use local_search for this size."
            )
        self._rows: list[npt.NDArray[np.int64]] = []
        self._columns: list[npt.NDArray[np.int64]] = []
        self._values: list[Floats] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._cost = np.zeros(size)
        self._upper = np.ones(size)
        self._whole = np.zeros(size, dtype=np.int64)
        self._attach()
        self._route(rate)
        self.scale = max(float(self._cost.max()), 1e-300)

    def _add(self, columns: npt.ArrayLike, values: npt.ArrayLike, low: float, high: float) -> None:
        columns = np.asarray(columns, dtype=np.int64)
        self._rows.append(np.full(len(columns), len(self._low), dtype=np.int64))
        self._columns.append(columns)
        self._values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), columns.shape))
        self._low.append(low)
        self._high.append(high)

    def _attach(self) -> None:
        problem = self.problem
        users, brokers = problem.access_price.shape
        x = np.arange(users * brokers).reshape(users, brokers)
        price = np.where(problem.allowed, problem.access_price, 0.0) * problem.demand[:, None]
        self._cost[: x.size] = price.ravel()
        self._upper[: x.size] = problem.allowed.ravel()
        self._whole[: x.size] = 1
        for u in range(users):
            self._add(x[u], 1.0, 1, 1)
        for b in np.flatnonzero(np.isfinite(problem.capacity)).tolist():
            if problem.capacity[b] > 0:
                self._add(x[:, b], problem.demand / problem.capacity[b], -np.inf, 1)
            else:
                self._upper[x[problem.demand > 0, b]] = 0

    def _route(self, rate: Floats) -> None:
        problem = self.problem
        users, brokers = problem.access_price.shape
        wanted = problem.groups[1]
        length = arc_weights(problem.core, "mean_price")
        place = users * brokers
        arcs = np.arange(self._arcs)
        for u, c in np.argwhere(rate > 0).tolist():
            z = place + arcs
            self._cost[z] = rate[u, c] * length
            self._whole[z] = 1
            place += self._arcs
            for j in np.flatnonzero(wanted[:, c]).tolist():
                if j == u:
                    continue
                f = place + arcs
                place += self._arcs
                for arc in range(self._arcs):
                    self._add((f[arc], z[arc]), (1.0, -1.0), -np.inf, 0)
                for a in range(brokers):
                    out, into = f[self._tail == a], f[self._head == a]
                    columns = np.concatenate((out, into, (u * brokers + a, j * brokers + a)))
                    values = np.concatenate((np.ones(len(out)), -np.ones(len(into)), (-1.0, 1.0)))
                    self._add(columns, values, 0, 0)

    def forbid(self, users: npt.NDArray[np.int64], broker: int) -> None:
        """These users are never all at this broker."""
        self._add(users * len(self.problem.core) + broker, 1.0, -np.inf, len(users) - 1)

    def solve(self, *, integers: bool, seconds: float | None) -> Any:
        """HiGHS's result. Flows may be fractions: with x and z whole they prove a path as well."""
        shape = (len(self._low), len(self._cost))
        entries = (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = coo_array((np.concatenate(self._values), entries), shape=shape).tocsr()
        whole = self._whole if integers else np.zeros_like(self._whole)
        options: Any = {"mip_rel_gap": 1e-9}
        if seconds is not None:
            options["time_limit"] = seconds
        return milp(
            self._cost / self.scale,
            integrality=whole,
            bounds=Bounds(0, self._upper),
            constraints=LinearConstraint(matrix, np.array(self._low), np.array(self._high)),
            options=options,
        )

    def brokers(self, x: Floats) -> npt.NDArray[np.int32]:
        """The broker of each user in a solution."""
        shape = self.problem.access_price.shape
        chosen = np.argmax(x[: shape[0] * shape[1]].reshape(shape), axis=1)
        return np.asarray(chosen, dtype=np.int32)
