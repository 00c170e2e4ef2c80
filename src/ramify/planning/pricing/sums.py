"""What a plan does with some patterns, as numbers that can be added up.

Owns `Sums`: made here from a walk of patterns through a plan, added up over any parts of a demand in any
order, and sent between processes as plain bytes. What the numbers mean is in `pricing`.
"""

from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramify.planning.demand.demand import Demand
from ramify.planning.plans.layout import Layout, layout_of
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.charge_kernels import (
    Arrivals,
    ChargeMemory,
    CrossingColumns,
    SettleMemory,
    charge,
    settle,
)
from ramify.planning.pricing.walk import Crossings, Rides, Walker, demand_columns

__all__ = ["Bits", "Distribution", "Floats", "Ints", "Longs", "Sums", "WeightedSpread", "sums_of"]

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class WeightedSpread:
    """A distribution in three numbers, weighted by events. All zero when there is nothing."""

    mean: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: npt.NDArray[Any], weight: npt.NDArray[Any]) -> "WeightedSpread":
        """The 99th percentile is the least value that 99 % of the weight does not exceed."""
        seen = Distribution.of(values, weight)
        if not len(seen.value):
            return cls(0.0, 0.0, 0.0)
        running = np.cumsum(seen.weight)
        at = min(int(np.searchsorted(running, 0.99 * running[-1])), len(seen.value) - 1)
        mean = float((seen.value * seen.weight).sum() / running[-1])
        return cls(mean, float(seen.value[at]), float(seen.value[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Distinct values, ascending, each with how often it was seen: float64 and int64, above 0."""

    value: Floats
    weight: Longs

    @classmethod
    def of(cls, values: npt.NDArray[Any], weight: npt.NDArray[Any]) -> Self:
        """From values in any order, with repeats; those that weigh nothing are left out."""
        seen = np.flatnonzero(weight)
        order = seen[np.argsort(values[seen], kind="stable")]
        ordered = np.asarray(values, dtype=np.float64)[order]
        first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        return cls(ordered[first], np.add.reduceat(weight[order], first) if len(first) else _none())

    def __add__(self, other: Self) -> Self:
        """Both together."""
        both = np.concatenate((self.value, other.value)), np.concatenate((self.weight, other.weight))
        return self.of(*both)

    @property
    def spread(self) -> WeightedSpread:
        """It in three numbers."""
        return WeightedSpread.of(self.value, self.weight)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What a plan does with some patterns, as numbers that can be added up in any order.

    O(links + brokers + classes + distinct times), however many patterns there were.

    Attributes
    ----------
    events               events of the patterns
    matchings            see `Price`
    per_arc, legs        int64[3, 2m]: messages, payload and header bytes of each direction of each link;
                         those of the legs onto trees, which are among them
    counts               int64[4]: broker duplicates, link duplicates, visits, waste
    settled              int64[2]: deliveries, undelivered
    entered              uint64[n]: the tags of all events that were at each broker
    published, wanted    uint64[n]: of those published there, of those that a class hosted there matches
    worst_ms             float64[c]: the longest time to each class; -1 where no event came
    hops, ms             of first arrivals, over (event, destination broker)
    """

    events: int
    matchings: int
    per_arc: Longs
    legs: Longs
    counts: Longs
    settled: Longs
    entered: Bits
    published: Bits
    wanted: Bits
    worst_ms: Floats
    hops: Distribution
    ms: Distribution

    def __add__(self, other: Self) -> Self:
        """Those of both parts, which must be of the same plan. Neither is changed."""
        return type(self)(
            self.events + other.events,
            self.matchings + other.matchings,
            self.per_arc + other.per_arc,
            self.legs + other.legs,
            self.counts + other.counts,
            self.settled + other.settled,
            self.entered | other.entered,
            self.published | other.published,
            self.wanted | other.wanted,
            np.maximum(self.worst_ms, other.worst_ms),
            self.hops + other.hops,
            self.ms + other.ms,
        )

    def to_bytes(self) -> bytes:
        """Plain arrays in numpy's own form: nothing in it is code."""
        out = BytesIO()
        parts = {name: getattr(self, name) for name in _PLAIN}
        for name in _SEEN:
            seen: Distribution = getattr(self, name)
            parts |= {f"{name}_value": seen.value, f"{name}_weight": seen.weight}
        np.savez(out, allow_pickle=False, **parts)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` made."""
        with np.load(BytesIO(data), allow_pickle=False) as parts:
            numbers = (int(parts["events"]), int(parts["matchings"]))
            arrays = (parts[name] for name in _PLAIN[2:])
            seen = (Distribution(parts[f"{name}_value"], parts[f"{name}_weight"]) for name in _SEEN)
            return cls(*numbers, *arrays, *seen)


_SEEN = ("hops", "ms")
_PLAIN = tuple(part.name for part in fields(Sums) if part.name not in _SEEN)


def sums_of(plan: Plan, demand: Demand) -> Sums:
    """The walk alone. However a demand is cut into parts, their sums add up to those of the whole."""
    layout = layout_of(plan)
    account = _Account(layout, demand)
    walker = Walker(layout)
    for rides in walker.chunks(demand):
        account.add(rides, walker.cross(demand, rides))
    return account.sums()


class _Account:
    """What the chunks of a walk add up to, with the working memory of the kernels."""

    def __init__(self, layout: Layout, demand: Demand) -> None:
        self._layout = layout
        self._demand = demand
        plan = layout.plan
        n, m, c = len(plan.overlay), len(plan.overlay.ends), len(plan.classes)
        self._per_arc = np.zeros((3, 2 * m), dtype=np.int64)  # messages, payload, header
        self._legs = np.zeros((3, 2 * m), dtype=np.int64)
        self._counts = np.zeros(4, dtype=np.int64)  # as `charge` says
        self._settled = np.zeros(2, dtype=np.int64)  # as `settle` says
        self._matchings = demand.events  # at the publishers' brokers
        self._entered = np.zeros(n, dtype=np.uint64)
        np.bitwise_or.at(self._entered, demand.publisher, demand.tags)
        self._columns = demand_columns(demand)
        self._charging = ChargeMemory(*(np.zeros(count, dtype=np.int64) for count in (m, n, n)))
        self._settling = SettleMemory(
            class_stamp=np.zeros(c, dtype=np.int64),
            class_ms=np.zeros(c),
            class_hops=np.zeros(c, dtype=np.int32),
            host_stamp=np.zeros(n, dtype=np.int64),
            host_place=np.zeros(n, dtype=np.int64),
        )
        sets = demand.destinations(plan.classes)
        start = sets.start - np.arange(len(sets.start))  # destinations without the publisher
        wanted = int(start[-1])
        self._arrivals = Arrivals(
            worst_ms=np.full(c, -1.0),
            start=start,
            ms=np.full(wanted, -1.0),
            hops=np.zeros(wanted, dtype=np.int32),
        )

    def add(self, rides: Rides, crossings: Crossings) -> None:
        self._matchings += crossings.matchings
        together = CrossingColumns(crossings.pattern, crossings.hop, crossings.header)
        if len(crossings.legs[0]):
            self._charge(CrossingColumns(*crossings.legs), self._legs, np.zeros(4, dtype=np.int64))
            both = [np.concatenate(pair) for pair in zip(crossings.legs, together, strict=True)]
            order = np.argsort(both[0], kind="stable")
            self._charging.of_link[:] = 0  # the legs were only counted apart: they are charged now
            self._charging.at_broker[:] = 0
            together = CrossingColumns(*(column[order] for column in both))
        self._charge(together, self._per_arc, self._counts)
        self._settle(rides, crossings)

    def _charge(self, crossed: CrossingColumns, into: Longs, counts: Longs) -> None:
        t = self._layout.tables
        charge(crossed, self._columns, t, self._charging, into, counts, self._entered)

    def _settle(self, rides: Rides, crossings: Crossings) -> None:
        settle(
            rides.first,
            rides.last,
            self._columns,
            rides.columns,
            self._layout.tables,
            crossings.reach_ms,
            crossings.reach_hops,
            self._settling,
            self._arrivals,
            self._settled,
        )

    def sums(self) -> Sums:
        weight = np.repeat(self._demand.count, np.diff(self._arrivals.start))
        reached = self._arrivals.ms >= 0
        published, wanted = self._unavoidable()
        return Sums(
            events=self._demand.events,
            matchings=self._matchings,
            per_arc=self._per_arc,
            legs=self._legs,
            counts=self._counts,
            settled=self._settled,
            entered=self._entered,
            published=published,
            wanted=wanted,
            worst_ms=self._arrivals.worst_ms,
            hops=Distribution.of(self._arrivals.hops[reached], weight[reached]),
            ms=Distribution.of(self._arrivals.ms[reached], weight[reached]),
        )

    def _unavoidable(self) -> tuple[Bits, Bits]:
        """Per broker the tags of what is published there, and of what a class hosted there matches."""
        demand, host = self._demand, self._layout.tables.host
        published, wanted = np.zeros((2, len(self._entered)), dtype=np.uint64)
        tags = np.where(demand.count > 0, demand.tags, np.uint64(0))
        if tags.any():
            np.bitwise_or.at(published, demand.publisher, tags)
            np.bitwise_or.at(wanted, host[demand.classes], np.repeat(tags, np.diff(demand.start)))
        return published, wanted


def _none() -> Longs:
    return np.zeros(0, dtype=np.int64)
