"""The placement problem of Zhao and Wu: users, brokers, prices, and what a placement costs.

Owns `PlacementProblem` (the rate of each user into each sub-channel, the sub-channels that it wants, what
links cost, what brokers can bear) and `Placement` (one broker per user, priced). Sub-channels are parts of
the content space that do not overlap: intervals of a line, or the cells of a grid over several attributes.
A subscription is the least set of them that holds it.

Cost    C1 = sum over users of the access price times what the user sends and receives. C2 = for every
        publisher and sub-channel its rate times the tree that joins its broker with the brokers of all
        subscribers; a link is paid once however many are behind it. Equal for all publishers at one broker.
Units   Rates are in any unit, the same everywhere; those made from a demand are bytes and one per event.
        Core links cost the mean of both directions: trees are undirected here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError, LimitError
from ramify.network.graphs.distances import Distances, all_pairs
from ramify.network.graphs.overlay import Overlay

__all__ = ["SLACK", "Placement", "PlacementProblem", "core_from_prices"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]

SLACK = 1e-9
"""The share of a capacity by which sums of rates may exceed it, for rounding alone."""

MOST_PAIRS = 100_000_000
"""Entries of a traffic matrix: 800 MB."""


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """What is to be placed. Make it with `of`, or `of_arrays` for the workload `zhao_wu`.

    Attributes
    ----------
    users          names, one per row of the arrays
    core           the brokers and the links between them
    rate           float64[u, T]: what each user publishes into each sub-channel
    subscribed     bool[u, T]: which sub-channels its subscriptions touch
    access_price   float64[u, b]: of the link to each broker; inf where the user may not use it
    capacity       float64[b]: what the users of a broker may send and receive together
    rate_out       float64[u]: all that a user sends
    rate_in        float64[u]: all that it receives from others
    """

    users: tuple[str, ...]
    core: Overlay
    rate: Floats
    subscribed: Bools
    access_price: Floats
    capacity: Floats
    rate_out: Floats
    rate_in: Floats

    @classmethod
    def of(
        cls,
        users: Sequence[str],
        core: Overlay,
        rate: npt.ArrayLike,
        subscribed: npt.ArrayLike,
        access_price: npt.ArrayLike,
        capacity: npt.ArrayLike | None = None,
        *,
        rate_out: npt.ArrayLike | None = None,
        rate_in: npt.ArrayLike | None = None,
    ) -> "PlacementProblem":
        """Validate and put together.

        Without `capacity` brokers bear everything. `rate_out` and `rate_in` are summed over sub-channels
        unless they are known better: sub-channels overstate what subscriptions want. Raises `InputError`,
        `DisconnectedError`.
        """
        sent, wanted = _array(rate, np.float64), _array(subscribed, np.bool_)
        _require_rates(len(users), sent, wanted)
        made = cls(
            tuple(users),
            core.require_connected(),
            sent,
            wanted,
            _array(access_price, np.float64),
            np.full(len(core), np.inf) if capacity is None else _array(capacity, np.float64),
            _array(sent.sum(axis=1) if rate_out is None else rate_out, np.float64),
            _array(heard(sent, wanted) if rate_in is None else rate_in, np.float64),
        )
        made._validate()
        return made

    @classmethod
    def of_arrays(
        cls, users: Sequence[str], brokers: Sequence[str], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> "PlacementProblem":
        """From the arrays of the workload `zhao_wu`."""
        return cls.of(
            users,
            core_from_prices(arrays["core_price"], brokers),
            arrays["rate_by_channel"],
            arrays["subscribed"],
            arrays["access_price"],
            arrays["capacity"],
            rate_out=arrays["rate_out"],
            rate_in=arrays["rate_in"],
        )

    @property
    def channels(self) -> int:
        """T, the number of sub-channels."""
        return int(self.rate.shape[1])

    @cached_property
    def demand(self) -> Floats:
        """float64[u]: b(in) + b(out), what a user takes of its broker's capacity."""
        return self.rate_in + self.rate_out

    @cached_property
    def allowed(self) -> Bools:
        """bool[u, b]: which brokers a user may use."""
        return np.isfinite(self.access_price)

    @cached_property
    def room(self) -> Floats:
        """float64[b]: capacities with the slack for rounding."""
        return self.capacity * (1 + SLACK)

    @cached_property
    def paths(self) -> Distances:
        """Shortest paths between brokers by the mean price."""
        return all_pairs(self.core, "mean_price")

    @cached_property
    def groups(self) -> tuple[Floats, Bools]:
        """`rate` and `subscribed` with sub-channels that the same users want summed up.

        Such sub-channels reach the same brokers in every placement. Those that nobody wants never leave
        their broker and are left out.
        """
        wanted = np.flatnonzero(self.subscribed.any(axis=0))
        packed = np.packbits(self.subscribed[:, wanted], axis=0)
        _, first, where = np.unique(packed, axis=1, return_index=True, return_inverse=True)
        rate = np.zeros((len(self.users), len(first)))
        np.add.at(rate.T, where.reshape(-1), self.rate[:, wanted].T)
        return rate, np.ascontiguousarray(self.subscribed[:, wanted[first]])

    def traffic_matrix(self) -> Floats:
        """float64[u, u]: what flows from each user to each other, by sub-channels. O(u^2 T)."""
        if len(self.users) ** 2 > MOST_PAIRS:
            raise LimitError(
                f"a traffic matrix of {len(self.users)} users has more than {MOST_PAIRS:,} entries. "
                "Ask for it with fewer users; no algorithm needs it whole."
            )
        matrix: Floats = self.rate @ self.subscribed.T.astype(np.float64)
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def access_cost(self, broker: npt.ArrayLike) -> float:
        """C1 of a placement."""
        at = np.asarray(broker, dtype=np.int64)
        return float(self.access_price[np.arange(len(at)), at] @ self.demand)

    def load(self, broker: npt.ArrayLike) -> Floats:
        """float64[b]: what the users of each broker send and receive."""
        at = np.asarray(broker, dtype=np.int64)
        summed: npt.NDArray[Any] = np.bincount(at, weights=self.demand, minlength=len(self.core))
        return summed.astype(np.float64, copy=False)

    def _validate(self) -> None:
        users, brokers = len(self.users), len(self.core)
        if not users or not brokers:
            raise InputError(
                f"{users} users and {brokers} brokers: a placement needs one of each at least."
            )
        shapes = {
            "access_price": (users, brokers),
            "capacity": (brokers,),
            "rate_out": (users,),
            "rate_in": (users,),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise InputError(f"{name} has the shape {array.shape}, not {shape}.")
            if not (array >= 0).all():
                raise InputError(f"{name} holds a number below 0, or none. Allowed: 0 or more.")
        for name in ("rate_out", "rate_in"):
            if not np.isfinite(getattr(self, name)).all():
                raise InputError(f"{name} holds an infinite number. Rates are finite.")
        if len(set(self.users)) < users:
            raise InputError("a user is named twice. Names of users must be unique.")
        homeless = np.flatnonzero(~np.isfinite(self.access_price).any(axis=1))
        if len(homeless):
            raise InputError(
                f"user {self.users[homeless[0]]!r} may use no broker at all ({len(homeless)} such users). "
                "Give it a finite access price to one."
            )


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """One broker per user, and what that costs.

    Attributes
    ----------
    broker    int32[u]
    access    C1
    core      C2 by `routing`
    load      float64[b], within the capacities
    routing   how brokers are joined: see `placement.core`
    how       the algorithm
    """

    broker: Ints
    access: float
    core: float
    load: Floats
    routing: str
    how: str

    @property
    def total(self) -> float:
        """C1 + C2."""
        return self.access + self.core

    def names(self, problem: PlacementProblem) -> dict[str, str]:
        """User -> broker."""
        at = (problem.core.brokers[b] for b in self.broker.tolist())
        return dict(zip(problem.users, at, strict=True))


def heard(rate: Floats, subscribed: Bools) -> Floats:
    """float64[u]: what others publish into the sub-channels that a user wants."""
    wanted = subscribed.astype(np.float64)
    others: Floats = wanted @ rate.sum(axis=0) - (wanted * rate).sum(axis=1)
    return np.maximum(others, 0.0)


def core_from_prices(core_price: npt.ArrayLike, brokers: Sequence[str]) -> Overlay:
    """The core as an overlay: what a price between every two brokers says, with no more links than needed.

    Prices are those of paths: where going through others is cheaper, that is taken, and a link that is no
    cheaper than a way through others is left out. Distances stay what they are. Inf: no link. O(b^3).
    """
    price = np.array(core_price, dtype=np.float64)
    count = len(brokers)
    if price.shape != (count, count):
        raise InputError(f"core_price has the shape {price.shape}, not {(count, count)}.")
    np.fill_diagonal(price, 0.0)
    if not (price >= 0).all():
        raise InputError("core_price holds a number below 0, or none. Allowed: 0 or more.")
    if not np.allclose(price, price.T, rtol=1e-9, atol=0):
        raise InputError("core_price differs by direction. Give the mean of both directions.")
    for k in range(count):
        np.minimum(price, price[:, k, None] + price[None, k], out=price)
    ends = []
    for a in range(count):
        through = price[a, :, None] + price
        # a detour over nothing would leave links out in a circle
        shorter = (price[a, :, None] > 0) & (price > 0)
        needless = (shorter & (through <= price[a] * (1 + 1e-12))).any(axis=0)
        ends += [(a, b) for b in range(a + 1, count) if np.isfinite(price[a, b]) and not needless[b]]
    pairs = np.array(ends, dtype=np.int32).reshape(-1, 2)
    return Overlay.from_arrays("core", tuple(brokers), pairs, price=price[pairs[:, 0], pairs[:, 1]])


def _require_rates(users: int, rate: Floats, subscribed: Bools) -> None:
    if rate.ndim != 2 or len(rate) != users:
        raise InputError(f"rate has the shape {rate.shape}. It needs a row for each of {users} users.")
    if subscribed.shape != rate.shape:
        raise InputError(f"subscribed has the shape {subscribed.shape}, not {rate.shape} as rate has.")
    if not (np.isfinite(rate) & (rate >= 0)).all():
        raise InputError("rate holds a number below 0, an infinite one, or none. Allowed: 0 or more.")


def _array(values: npt.ArrayLike, dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.asarray(values, dtype=dtype))
