"""Subscriptions that may get events later than they allow, on plans whose trees bound latency.

Owns what "late" means: the slowest leg from a broker that may publish, other than the subscription's own,
and the way down the tree together take longer than the subscription's bound. It follows from the plan
alone, whatever was sampled, so that it holds for the events that are yet to come. Of a class that several
channels serve the slowest counts.

A subscription that a root would make late gets a channel at its own gateway (`late_by_root` names them). So
on the planner's plans a subscription is late only where no way is in time, and gets events as soon as any
way brings them.

A plan serves every subscription of its problem (`check` proves it), so a refused one cannot be left out of
a plan: there is no plan then, and the error says which to drop or what to allow them instead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from ramify.errors import InputError
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.layout import rooted_tree
from ramify.planning.plans.legs import ROUNDING, keeps, latencies, slowest_but
from ramify.planning.plans.plan import Channel, Plan

__all__ = [
    "LATE_SHOWN",
    "LateSubscription",
    "TooLateError",
    "bounds_latency",
    "class_ms",
    "late_by_root",
    "late_subscriptions",
    "leg_ms",
    "refuses",
]

LATE_SHOWN = 8
"""Subscriptions that are named when their bound cannot be kept."""


@dataclass(frozen=True, slots=True)
class LateSubscription:
    """A subscription at a broker that allows `bound_ms` and may wait for events up to `ms`."""

    id: str
    broker: str
    bound_ms: float
    ms: float

    def __str__(self) -> str:
        """With the least bound, in whole microseconds, that can be kept."""
        least = ceil(self.ms * 1_000) / 1_000
        return f"{self.id!r} at {self.broker} allows {self.bound_ms:g} ms, and {least:g} ms can be kept"


class TooLateError(InputError):
    """Subscriptions whose latency bound cannot be kept; `late` holds all of them."""

    def __init__(self, scheme: str, late: Iterable[LateSubscription]) -> None:
        self.late = tuple(late)
        shown = "; ".join(map(str, self.late[:LATE_SHOWN]))
        more = len(self.late) - LATE_SHOWN
        super().__init__(
            f"{scheme} refuses {len(self.late)} subscription{'s' if len(self.late) > 1 else ''}: {shown}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Allow what can be kept, leave them out, or connect them late with late=root-path."
        )


def bounds_latency(plan: Plan) -> bool:
    """Whether a plan's trees are made within latency bounds."""
    return plan.settings.get("trees") == "delay"


def refuses(plan: Plan) -> bool:
    """Whether a plan refuses subscriptions rather than serve them late."""
    return bounds_latency(plan) and plan.settings.get("late") == "refuse"


def leg_ms(
    plan: Plan, channel: Channel, ms: dict[tuple[int, int], float]
) -> "np.typing.NDArray[np.float64]":
    """float64[n]: what the leg from each broker that may publish takes, by `ms` of links; else -inf."""
    took, allowed = np.full(len(plan.overlay), -np.inf), channel.admits.publishers
    for origin in range(len(took)) if allowed is None else allowed:
        target = channel.entry.target(origin)
        way = (origin,) if target == origin else plan.leg(origin, target)
        took[origin] = sum(ms[link] for link in pairwise(way))
    return took


def late_subscriptions(plan: Plan) -> tuple[LateSubscription, ...]:
    """All that are late, by id; none on plans whose trees do not bound latency.

    O(brokers + legs) per channel that serves a bound.
    """
    if not bounds_latency(plan):
        return ()
    worst = class_ms(plan, np.flatnonzero(plan.classes.latency_ms < np.inf).tolist())
    names = plan.overlay.brokers
    found = [
        LateSubscription(row.id, names[int(plan.classes.broker[k])], row.latency_ms, ms)
        for k, ms in worst.items()
        for row in plan.classes.members[k]
        if row.latency_ms is not None and not keeps(ms, row.latency_ms)
    ]
    return tuple(sorted(found, key=lambda each: each.id))


def class_ms(plan: Plan, classes: Sequence[int]) -> dict[int, float]:
    """How long the slowest event takes to each of these classes, by whatever channel."""
    wanted, ms, hosts = np.asarray(classes, dtype=np.int64), latencies(plan.overlay), plan.classes.broker
    worst = dict.fromkeys(classes, 0.0)
    for channel in plan.channels:
        served = channel.serves.classes[np.isin(channel.serves.classes, wanted)].tolist()
        tree = rooted_tree(channel, len(plan.overlay)) if served else None
        if tree is None:
            continue
        legs, down = leg_ms(plan, channel, ms), np.zeros(len(plan.overlay))
        for above, below in tree.links().tolist():
            down[below] = down[above] + sum(ms[link] for link in pairwise(plan.path(above, below)))
        for k in served:
            host = int(hosts[k])
            worst[k] = max(worst[k], slowest_but(legs, host) + float(down[host]))
    return worst


def late_by_root(
    classes: Classes,
    ms: "np.typing.NDArray[np.float64]",
    publishers: "np.typing.NDArray[np.integer]",
    served: Iterable[tuple[int, Sequence[int]]],
) -> "np.typing.NDArray[np.int64]":
    """Classes that no tree from their roots serves in time, but a channel at their own gateway sooner.

    `served` has the root and classes of each channel, `ms` the latency of the fastest way between any two
    brokers. For a class with several bounds the strictest counts. O(channels * brokers + classes served).
    """
    bound, hosts, n = classes.latency_ms, classes.broker, len(ms)
    brokers = np.arange(n)
    by_root = np.full(len(classes), -np.inf)
    for root, row in served:
        rows = np.asarray(row, dtype=np.int64)
        asked = rows[bound[rows] < np.inf]
        if not len(asked):
            continue
        legs = np.full(n, -np.inf)
        legs[publishers] = ms[publishers, root]
        slowest = int(legs.argmax())
        others = np.where(brokers == slowest, slowest_but(legs, slowest), legs[slowest])
        by_root[asked] = np.maximum(by_root[asked], (others + ms[root])[hosts[asked]])
    late = np.flatnonzero(by_root > bound + bound * ROUNDING)
    at_once = np.empty(n)
    for gateway in np.unique(hosts[late]).tolist():
        others = publishers[publishers != gateway]
        at_once[gateway] = ms[others, gateway].max(initial=-np.inf)
    least = at_once[hosts[late]]
    return late[by_root[late] > least + least * ROUNDING]
