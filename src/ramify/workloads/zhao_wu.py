"""Users with quadratic generating functions over a line: Zhao and Wu, section VI-A.

Model      The content space is the line [0, 1]. User i generates messages at the rate
           G_i(s) = max(0, a_i s^2 + b_i s + c_i) around the point s and subscribes to one interval. The
           paper's b_i(out) and b_i(in) are the integral of G_i, and of all other G_j over i's interval.
           Every broker has the same capacity: together `capacity_factor` times the demand of all users.
           Each user is attached to a random broker, which is the paper's baseline; placement may change it.
Parameters users                  1,000 to 10,000; brokers are 1/10 to 1/100 of them
           sub_channels           T, the bins of the generating histograms of section IV-A
           coefficient_range      a, b and c are drawn evenly from +- this
           access                 `metric`: a user lives at a random broker and a random leg away from it,
                                  so access prices obey the triangle inequality; `random`: drawn evenly
           access_to_core_ratio   mean access price / mean core price: 1 in Figure 9, varied in Figure 10
           capacity_factor        2
Arrays     coefficient[u, 3] (a, b, c), interval[u, 2], rate_out[u] = b(out), rate_in[u] = b(in),
           rate_by_channel[u, T] (the integral over each bin: its mean value is T times that),
           subscribed[u, T], access_price[u, b], core_price[b, b], capacity[b], attachment[u]
Departures T, the law of the coefficients, of the intervals and of the prices are not printed. T is 16.
           An interval lies between two points drawn evenly. Core prices are shortest paths by the mean
           price of both directions on the overlay at hand. A user whose function is negative everywhere
           stays as a subscriber. Histogram entries are rates: the paper's g_i in {0, 1} is an erratum.
           Events go to every matching subscription, the publisher's own included; b(in) leaves it out.

Reference: Y. Zhao, J. Wu, "On the Construction of the Minimum Cost Content-Based Publish/Subscribe
Overlays".
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.nearness import require_brokers
from ramify.workloads.parameters import Params, choice, count, number
from ramify.workloads.workload import (
    DrawnEvents,
    Workload,
    column,
    random_stream,
    weighted_picks,
)

__all__ = ["ZhaoWuModel", "generate"]

NAME = "zhao_wu"
DECIMALS = 6
"""Of interval ends, so that the text of a filter and the arrays hold the same numbers."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZhaoWuModel(Params):
    """The parameters: see the module."""

    users: int = count(1_000, 2, 100_000)
    sub_channels: int = count(16, 1, 10_000)
    coefficient_range: float = number(1.0, 0, 1e6, above_low=True)
    access: str = choice("metric", "metric", "random")
    access_to_core_ratio: float = number(1.0, 0, 1e6, above_low=True)
    capacity_factor: float = number(2.0, 1, 1e6)


def generate(overlay: Overlay, params: ZhaoWuModel, seed: int) -> Workload:
    """The workload of section VI-A."""
    require_brokers(overlay, 1, NAME)
    rng = random_stream(seed, NAME, "users")
    limit = params.coefficient_range
    functions = Quadratics(rng.uniform(-limit, limit, (params.users, 3)))
    interval = np.sort(np.round(rng.random((params.users, 2)), DECIMALS), axis=1)
    attachment = random_stream(seed, NAME, "attachment").integers(len(overlay), size=params.users)
    core, access = _prices(overlay, params, random_stream(seed, NAME, "prices"))
    arrays = _traffic(functions, interval, params.sub_channels)
    demand = float((arrays["rate_out"] + arrays["rate_in"]).sum())
    if not arrays["rate_out"].any():
        raise InputError(
            f"none of the {params.users} users generates anything. Take another seed or more users."
        )
    users = tuple(f"user-{u}" for u in range(params.users))
    brokers = [overlay.brokers[b] for b in attachment.tolist()]
    draft = Workload(
        name=NAME,
        params=params,
        seed=seed,
        schema=EventSchema({"value": AttributeType.DOUBLE}),
        subscriptions=tuple(
            Subscription(user, user, broker, sql=f"value >= {low:.6f} AND value <= {high:.6f}")
            for user, broker, (low, high) in zip(users, brokers, interval.tolist(), strict=True)
        ),
        attachments=dict(zip(users, brokers, strict=True)),
        publishers=users,
        source=_Messages(functions),
        arrays=arrays
        | {
            "coefficient": functions.coefficient,
            "interval": interval,
            "access_price": access,
            "core_price": core,
            "capacity": np.full(len(overlay), params.capacity_factor * demand / len(overlay)),
            "attachment": attachment,
        },
    )
    return replace(draft, report=_report(draft, demand))


class Quadratics:
    """max(0, a s^2 + b s + c) over [0, 1], for many (a, b, c): where it is positive, and its integrals.

    `low[u, 3]` and `high[u, 3]` are the pieces between 0, the roots and 1; a piece where the quadratic is
    negative has equal ends. All integrals are exact up to rounding.
    """

    def __init__(self, coefficient: Floats) -> None:
        self.coefficient = coefficient
        edges = _edges(coefficient)
        middle = (edges[:, :-1] + edges[:, 1:]) / 2
        a, b, c = (coefficient[:, i, None] for i in range(3))
        positive = (a * middle + b) * middle + c > 0
        self.low = edges[:, :-1]
        self.high = np.where(positive, edges[:, 1:], edges[:, :-1])

    def piece_integral(self) -> Floats:
        """The integral over each piece, [u, 3]."""
        return np.maximum(self._primitive(self.high) - self._primitive(self.low), 0.0)

    def over_bins(self, bins: int) -> Floats:
        """The integral over each of `bins` equal parts of [0, 1], [u, bins]."""
        edge = np.linspace(0, 1, bins + 1)
        up_to = np.zeros((len(self.coefficient), bins + 1))
        for piece in range(3):
            low, high = self.low[:, piece, None], self.high[:, piece, None]
            inside = np.clip(edge, low, high)
            up_to += self._primitive(inside) - self._primitive(low)
        return np.maximum(np.diff(up_to, axis=1), 0.0)

    def summed_up_to(self, points: Floats) -> Floats:
        """The integral from 0 to each point of the sum of all functions. O((u + points) log u).

        The sum is a cubic between neighbouring ends of pieces: coefficients enter at the low end of a
        piece and leave at its high end, and one cumulative sum has them all.
        """
        a, b, c = self.coefficient.T
        cubic = np.repeat(np.column_stack((a / 3, b / 2, c)), 3, axis=0)
        low, high = self.low.ravel(), self.high.ravel()
        at = np.concatenate((low, high))
        enter = np.column_stack((cubic, -self._primitive(self.low).ravel()))
        leave = np.column_stack((-cubic, self._primitive(self.high).ravel()))
        order = np.argsort(at, kind="stable")
        total = np.cumsum(np.concatenate((np.zeros((1, 4)), np.concatenate((enter, leave))[order])), axis=0)
        k3, k2, k1, k0 = np.moveaxis(total[np.searchsorted(at[order], points, side="right")], -1, 0)
        return np.asarray(((k3 * points + k2) * points + k1) * points + k0)

    def over_interval(self, interval: Floats) -> Floats:
        """The integral of function u over interval u."""
        low = np.clip(interval[:, :1], self.low, self.high)
        high = np.clip(interval[:, 1:], self.low, self.high)
        return np.asarray((self._primitive(high) - self._primitive(low)).sum(axis=1))

    def _primitive(self, points: Floats) -> Floats:
        a, b, c = (self.coefficient[:, i, None] for i in range(3))
        return np.asarray(((a / 3 * points + b / 2) * points + c) * points)


def _edges(coefficient: Floats) -> Floats:
    """0, the real roots within [0, 1] in order, 1: four numbers per row, repeated where there are fewer."""
    a, b, c = coefficient.T
    root = np.sqrt(np.maximum(b * b - 4 * a * c, 0.0))
    # The stable form: -b and the root never cancel. Without real roots the split is at some point of
    # constant sign, which does no harm.
    q = -0.5 * (b + np.copysign(root, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = np.column_stack((q / a, c / q))
    inner = np.sort(np.clip(np.nan_to_num(roots, nan=0.0, posinf=1.0, neginf=0.0), 0, 1), axis=1)
    return np.column_stack((np.zeros(len(a)), inner, np.ones(len(a))))


def _traffic(functions: Quadratics, interval: Floats, channels: int) -> dict[str, npt.NDArray[Any]]:
    heard = np.diff(functions.summed_up_to(interval), axis=1)[:, 0] - functions.over_interval(interval)
    edge = np.linspace(0, 1, channels + 1)
    return {
        "rate_out": functions.piece_integral().sum(axis=1),
        "rate_in": np.maximum(heard, 0.0),
        "rate_by_channel": functions.over_bins(channels),
        "subscribed": (interval[:, :1] < edge[1:]) & (interval[:, 1:] > edge[:-1]),
    }


def _prices(overlay: Overlay, params: ZhaoWuModel, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Core prices between brokers and access prices from users to brokers, scaled to the asked ratio."""
    brokers = len(overlay)
    core = all_pairs(overlay, "mean_price").distance.astype(np.float64)
    mean_core = core.sum() / (brokers * (brokers - 1)) if brokers > 1 else 0.0
    if mean_core == 0:
        mean_core = 1.0  # one broker, or links that cost nothing: access has a scale of its own
    if params.access == "random":
        access = rng.random((params.users, brokers))
    else:
        home = rng.integers(brokers, size=params.users)
        access = core[home] + rng.random((params.users, 1)) * mean_core
    return core, access * (params.access_to_core_ratio * mean_core / access.mean())


@dataclass(frozen=True, slots=True)
class _Messages:
    functions: Quadratics

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        piece = weighted_picks(rng, np.cumsum(self.functions.piece_integral()), count)
        value = self._inverse(piece, rng.random(count))
        return DrawnEvents(piece // 3, {"value": column(value)})

    def _inverse(self, piece: npt.NDArray[np.int64], share: Floats) -> Floats:
        """The point of each piece below which `share` of its integral lies.

        By bisection: the integral is a cubic that grows on the piece, and 53 halvings reach the last bit.
        """
        low = self.functions.low.ravel()[piece]
        high = self.functions.high.ravel()[piece]
        a, b, c = (self.functions.coefficient[piece // 3] / (3.0, 2.0, 1.0)).T

        def primitive(points: Floats) -> Floats:
            return np.asarray(((a * points + b) * points + c) * points)

        start = primitive(low)
        wanted = start + share * (primitive(high) - start)
        for _ in range(53):
            middle = (low + high) / 2
            below = primitive(middle) < wanted
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return low


def _report(draft: Workload, demand: float) -> dict[str, float]:
    assert isinstance(draft.params, ZhaoWuModel)
    arrays = draft.arrays
    brokers = len(arrays["core_price"])
    users = draft.params.users
    pairs = max(brokers * (brokers - 1), 1)
    width = np.diff(arrays["interval"], axis=1)
    return {
        "users": float(users),
        "users_per_broker": users / brokers,
        "users_per_broker_paper": 100.0,
        "silent_users": float((arrays["rate_out"] == 0).sum()),
        "mean_rate_out": float(arrays["rate_out"].mean()),
        "mean_rate_in": float(arrays["rate_in"].mean()),
        "mean_interval_width": float(width.mean()),
        "mean_access_price": float(arrays["access_price"].mean()),
        "mean_core_price": float(arrays["core_price"].sum() / pairs),
        "capacity_to_demand": float(arrays["capacity"].sum() / demand),
        "capacity_to_demand_paper": 2.0,
    }
