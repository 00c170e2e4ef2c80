"""Whether brokers can bear their users at all, and what to say when they cannot.

Owns the proof of infeasibility: each user must fit some broker it may use, and a user may be cut into parts
for the rest (a flow from users to brokers). When even that leaves demand without a place, no placement
exists. When it does not, one may or may not exist: packing is NP-hard.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from ramify.errors import PlacementError
from ramify.planning.placement.model import PlacementProblem

__all__ = ["gave_up", "require_room"]

Ints = npt.NDArray[np.int64]


def require_room(problem: PlacementProblem) -> None:
    """Raise a proven `PlacementError` where users cannot all fit, even in parts. A linear program."""
    room = np.where(problem.allowed, problem.room, 0.0).max(axis=1)
    large = np.flatnonzero(problem.demand > room)
    if len(large):
        lacking = problem.demand[large] - room[large]
        raise _proven(
            problem, large, float(lacking.max()), "the largest lacks {:.6g} at the roomiest of them"
        )
    kinds, where = np.unique(problem.allowed, axis=0, return_inverse=True)
    demand: npt.NDArray[Any] = np.bincount(where.reshape(-1), weights=problem.demand)
    finite = np.isfinite(problem.room)
    if (kinds & ~finite).any(axis=1).all():
        return
    kind, broker, flow = _flow(kinds, demand, np.where(finite, problem.room, demand.sum()))
    missing = float(demand.sum() - flow.sum())
    if missing > 1e-9 * demand.sum():
        short = _cut(kinds, kind, broker, flow, demand)
        users = np.flatnonzero(short[where.reshape(-1)])
        raise _proven(problem, users, missing, "the brokers they may use lack {:.6g} together")


def _flow(
    kinds: npt.NDArray[np.bool_], demand: npt.NDArray[np.float64], room: npt.NDArray[np.float64]
) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """The most that users of each kind (by the brokers they may use) can put at brokers, in parts."""
    kind, broker = (axis.astype(np.int64) for axis in np.nonzero(kinds))
    flows = np.arange(len(kind))
    rows = np.concatenate((kind, len(kinds) + broker))
    ones = np.ones(2 * len(kind))
    matrix = coo_array((ones, (rows, np.tile(flows, 2))), shape=(len(kinds) + len(room), len(kind)))
    unit = max(float(demand.sum()), 1e-300)
    limits = np.concatenate((demand, room)) / unit
    found: Any = milp(-np.ones(len(kind)), constraints=LinearConstraint(matrix.tocsr(), ub=limits))
    if found.status != 0:
        raise AssertionError(f"a flow always exists, but the solver says: {found.message}")
    return kind, broker, np.asarray(found.x * unit, dtype=np.float64)


def _cut(
    kinds: npt.NDArray[np.bool_],
    kind: Ints,
    broker: Ints,
    flow: npt.NDArray[np.float64],
    demand: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """The kinds that compete for the brokers which are too small: what the residual graph reaches."""
    placed: npt.NDArray[Any] = np.bincount(kind, weights=flow, minlength=len(demand))
    short: npt.NDArray[Any] = np.asarray(placed) < demand * (1 - 1e-9)
    while True:
        reached = kinds[short].any(axis=0)
        wider = short.copy()
        wider[kind[(flow > 1e-9 * demand[kind]) & reached[broker]]] = True
        if (wider == short).all():
            return short
        short = wider


def _proven(problem: PlacementProblem, users: Ints, missing: float, detail: str) -> PlacementError:
    names = [problem.users[u] for u in users.tolist()]
    return PlacementError(
        f"no placement exists: {_some(names)} send and receive {problem.demand[users].sum():.6g}, and "
        f"{detail.format(missing)}. Raise capacities, or let these users use other brokers.",
        missing=missing,
        users=names,
        proven=True,
    )


def gave_up(
    problem: PlacementProblem, how: str, user: int, load: npt.NDArray[np.float64]
) -> PlacementError:
    """The error of an algorithm that found no broker with room for a user.

    Proven, if users cannot fit even in parts; otherwise it says that it is no proof.
    """
    try:
        require_room(problem)
    except PlacementError as proven:
        return proven
    free = np.where(problem.allowed[user], problem.room - load, -np.inf).max()
    missing = float(problem.demand[user] - free)
    return PlacementError(
        f"{how} found no broker with room for user {problem.users[user]!r}: it takes "
        f"{problem.demand[user]:.6g}, {missing:.6g} more than any broker it may use has left. That is no "
        "proof: another algorithm, another seed or the exact one may place all users.",
        missing=missing,
        users=[problem.users[user]],
        proven=False,
    )


def _some(names: list[str], most: int = 4) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    more = len(names) - most
    return f"users {listed}" + (f" and {more} more" if more > 0 else "")
