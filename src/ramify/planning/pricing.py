"""The pricer: what a plan costs on a demand, by one rule for every scheme.

Owns `price`, the sums that a price is made from, and the definitions of its figures. A message is one
event crossing one link. Payload is the event's own size; on the wire a message also has its header
(`ramify.overlay.headers` has the form). Every figure that is per event is weighted by the events of each
pattern. What is computed from the counts (stress, state, references) is computed on first use.

A demand may be priced in parts: `sums_of` each part, add the sums, `priced` the total. All that is added is
whole numbers, and every figure is computed from the total, so that parts change nothing, to the bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from io import BytesIO
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramify.errors import LimitError
from ramify.network.overlay import Overlay
from ramify.planning.charge_kernels import charge, settle
from ramify.planning.covering import covered_state
from ramify.planning.demand import Demand
from ramify.planning.layout import Layout, layout_of, read_only
from ramify.planning.plan import Plan
from ramify.planning.state import State, routing_state
from ramify.planning.walk import Crossings, Rides, Walker
from ramify.planning.yardstick import GB, References, Yardstick

__all__ = [
    "MONTH_SECONDS",
    "Distribution",
    "Price",
    "Spread",
    "Sums",
    "Volume",
    "price",
    "priced",
    "sums_of",
]

MONTH_SECONDS = 30 * 86_400.0

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in three numbers, weighted by events. All zero when there is nothing."""

    mean: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: npt.NDArray[Any], weight: npt.NDArray[Any]) -> "Spread":
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
    def spread(self) -> Spread:
        """It in three numbers."""
        return Spread.of(self.value, self.weight)


@dataclass(frozen=True, slots=True)
class Volume:
    """What a price needs to know of a demand besides its sums: see `Demand` for the words."""

    events: int
    seconds: float = 0.0
    factor: float = 1.0
    tag_filters: int = 0


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


@dataclass(frozen=True)
class Price:
    """What a plan does with a demand.

    Attributes
    ----------
    messages, payload, wire   int64[m, 2]: messages and bytes per link; column 0 is from the link's `a`
                              to `b`
    leg_messages, _payload    int64[m, 2]: those of the legs onto trees (SemCast leaves them out of its
                              cost)
    matchings                 how often a broker matched an event: at the publisher's broker, at every
                              hop of a filtered tree, and wherever an arrival is handed to subscribers
    broker_duplicates         receptions of an event by a broker that had it already
    link_duplicates           crossings of a link by an event that had crossed it already, either way
    visits, waste             (event, broker) receptions, first ones only; those at brokers where nobody
                              wants it
    deliveries, undelivered   (event, class) pairs that were and were not handed over; a right plan has
                              none of the latter
    class_ms                  float64[c]: the longest time any event took to each class; -1 where none
                              did
    entered                   uint64[n]: the tags of all events that were at each broker
    published, wanted         uint64[n]: of those published there, of those that a class hosted there
                              matches: no plan keeps them out
    """

    layout: Layout
    volume: Volume
    yardstick: References
    messages: Longs
    payload: Longs
    wire: Longs
    leg_messages: Longs
    leg_payload: Longs
    matchings: int
    broker_duplicates: int
    link_duplicates: int
    visits: int
    waste: int
    undelivered: int
    deliveries: int
    class_ms: Floats
    entered: Bits
    published: Bits
    wanted: Bits
    hops: Spread
    ms: Spread
    given: Demand | None = field(default=None, repr=False)

    @property
    def demand(self) -> Demand:
        """What was priced, pattern by pattern; `LookupError` where only sums were given: see `volume`."""
        if self.given is None:
            raise LookupError("this price was added up from parts; its patterns were not kept")
        return self.given

    @property
    def plan(self) -> Plan:
        """What was priced."""
        return self.layout.plan

    @property
    def overlay(self) -> Overlay:
        """Where."""
        return self.plan.overlay

    @cached_property
    def cost(self) -> float:
        """Money for the payload: bytes times the price of the link in that direction."""
        return float((self.payload * self.overlay.price).sum()) / GB

    @cached_property
    def money(self) -> float:
        """Money for what is on the wire, headers included."""
        return float((self.wire * self.overlay.price).sum()) / GB

    @cached_property
    def cost_without_legs(self) -> float:
        """Money for the payload on the trees alone: SemCast's own measure."""
        return float(((self.payload - self.leg_payload) * self.overlay.price).sum()) / GB

    @property
    def message_count(self) -> int:
        """Messages on all links."""
        return int(self.messages.sum())

    @cached_property
    def gap(self) -> float:
        """Cost over the bound: how far from what no plan can beat. 1 when both are 0."""
        return _ratio(self.cost, self.yardstick.bound.value)

    @cached_property
    def over_opt(self) -> float:
        """Cost over that of a Steiner tree per event."""
        return _ratio(self.cost, self.yardstick.opt)

    @cached_property
    def node_stress(self) -> Floats:
        """float64[n]: messages received and sent by each broker, per 1,000 events."""
        total = np.zeros(len(self.overlay))
        both = self.messages.sum(axis=1)
        for column in (0, 1):
            np.add.at(total, self.overlay.ends[:, column], both)
        return self._per_thousand(total)

    @cached_property
    def link_stress(self) -> Floats:
        """Messages on each underlay link (overlay link where no underlay is modelled), per 1,000 events."""
        both = self.messages.sum(axis=1)
        below = self.overlay.underlay
        if below is None:
            return self._per_thousand(both.astype(np.float64))
        total = np.zeros(below.link_count)
        for link in np.flatnonzero(both).tolist():
            np.add.at(total, self.overlay.underlay_path(link), both[link])
        return self._per_thousand(total)

    @cached_property
    def resource_usage(self) -> float:
        """NRU: latency summed over crossings, over that of the merged unicast routes. May be below 1."""
        crossed = float((self.messages.sum(axis=1) * self.overlay.latency_ms).sum())
        return _ratio(crossed, self.yardstick.merged_unicast_ms)

    @cached_property
    def matchings_per_event(self) -> float:
        """Brokers that match, per event."""
        return self.matchings / self.volume.events if self.volume.events else 0.0

    @cached_property
    def state(self) -> State:
        """Filters stored at each broker."""
        return routing_state(self.layout)

    @cached_property
    def covered(self) -> Longs | None:
        """int64[n]: filters left at each broker when covered ones go; None where they are too many.

        See `covering.py`, which says how many can be compared.
        """
        try:
            return covered_state(self.layout)
        except LimitError:
            return None

    @cached_property
    def broker_bytes(self) -> Longs:
        """int64[n]: bytes received and sent by each broker, headers included."""
        total = np.zeros(len(self.overlay), dtype=np.int64)
        both = self.wire.sum(axis=1)
        for column in (0, 1):
            np.add.at(total, self.overlay.ends[:, column], both)
        return total

    @property
    def per_month(self) -> float:
        """Factor from what was counted to 30 days of everything published; 0 when the time is not known."""
        return self.volume.factor * MONTH_SECONDS / self.volume.seconds if self.volume.seconds > 0 else 0.0

    @cached_property
    def money_per_month(self) -> float | None:
        """Money scaled by the demand's time span and sampling factor; None when the span is not known."""
        return self.money * self.per_month if self.per_month else None

    def figures(self) -> Mapping[str, float | int | list[float] | None]:
        """All figures as plain numbers, for tables and JSON."""
        used = self.link_stress[self.link_stress > 0]
        return {
            "events": self.volume.events,
            "channels": len(self.plan.channels),
            "messages": self.message_count,
            "payload_bytes": int(self.payload.sum()),
            "wire_bytes": int(self.wire.sum()),
            "cost": self.cost,
            "cost_without_legs": self.cost_without_legs,
            "money": self.money,
            "money_per_month": self.money_per_month,
            "broker_duplicates": self.broker_duplicates,
            "link_duplicates": self.link_duplicates,
            "visits": self.visits,
            "waste": self.waste,
            "deliveries": self.deliveries,
            "undelivered": self.undelivered,
            "node_stress_mean": _mean(self.node_stress),
            "node_stress_max": _max(self.node_stress),
            "link_stress_mean": _mean(self.link_stress),
            "link_stress_used_mean": _mean(used),
            "link_stress_max": _max(self.link_stress),
            "resource_usage": _defined(self.resource_usage),
            "gap": _defined(self.gap),
            "over_opt": _defined(self.over_opt),
            "matchings_per_event": self.matchings_per_event,
            "filters_mean": _mean(self.state.filters),
            "filters_max": int(_max(self.state.filters)),
            "entries_mean": _mean(self.state.entries),
            "entries_by_hop": list(self.state.by_hop),
            "covered_mean": None if self.covered is None else _mean(self.covered),
            "hops_mean": self.hops.mean,
            "hops_p99": self.hops.p99,
            "hops_max": self.hops.max,
            "ms_mean": self.ms.mean,
            "ms_p99": self.ms.p99,
            "ms_max": self.ms.max,
        }

    def _per_thousand(self, total: Floats) -> Floats:
        return total * (1_000 / self.volume.events) if self.volume.events else total


def price(plan: Plan, demand: Demand, yardstick: References | None = None) -> Price:
    """Walk every pattern of a demand through a plan. O(hops walked); one pass, compiled.

    `yardstick` holds the demand's references; pass the same one for every plan and it is computed once.
    """
    volume = Volume(demand.events, demand.seconds, demand.factor, demand.tag_filters)
    held = yardstick or Yardstick(plan.overlay, plan.classes, demand)
    return priced(plan, sums_of(plan, demand), volume, held, demand)


def sums_of(plan: Plan, demand: Demand) -> Sums:
    """The walk alone. However a demand is cut into parts, their sums add up to those of the whole."""
    layout = layout_of(plan)
    account = _Account(layout, demand)
    walker = Walker(layout)
    for rides in walker.chunks(demand):
        account.add(rides, walker.cross(demand, rides))
    return account.sums()


def priced(
    plan: Plan, sums: Sums, volume: Volume, yardstick: References, demand: Demand | None = None
) -> Price:
    """The price that sums come to. `demand` is kept with it where there is one."""
    messages, payload, header = sums.per_arc.reshape(3, -1, 2)
    broker_duplicates, link_duplicates, visits, waste = sums.counts.tolist()
    deliveries, undelivered = sums.settled.tolist()
    return Price(
        layout=layout_of(plan),
        volume=volume,
        yardstick=yardstick,
        messages=messages,
        payload=payload,
        wire=payload + header,
        leg_messages=sums.legs[0].reshape(-1, 2),
        leg_payload=sums.legs[1].reshape(-1, 2),
        matchings=sums.matchings,
        broker_duplicates=broker_duplicates,
        link_duplicates=link_duplicates,
        visits=visits,
        waste=waste,
        deliveries=deliveries,
        undelivered=undelivered,
        class_ms=sums.worst_ms,
        entered=sums.entered,
        published=sums.published,
        wanted=sums.wanted,
        hops=sums.hops.spread,
        ms=sums.ms.spread,
        given=demand,
    )


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
        self._of_link = np.zeros(m, dtype=np.int64)
        self._at_broker, self._wanted, self._host_stamp, self._host_place = np.zeros((4, n), dtype=np.int64)
        self._class_stamp, self._class_hops = np.zeros(c, dtype=np.int64), np.zeros(c, dtype=np.int32)
        self._class_ms, self._worst_ms = np.zeros(c), np.full(c, -1.0)
        sets = demand.destinations(plan.classes)
        self._out_start = sets.start - np.arange(len(sets.start))  # destinations without the publisher
        self._out_ms = np.full(int(self._out_start[-1]), -1.0)
        self._out_hops = np.zeros(int(self._out_start[-1]), dtype=np.int32)

    def add(self, rides: Rides, crossings: Crossings) -> None:
        self._matchings += crossings.matchings
        together = (crossings.pattern, crossings.hop, crossings.header)
        if len(crossings.legs[0]):
            self._charge(*crossings.legs, self._legs, np.zeros(4, dtype=np.int64))
            both = [np.concatenate(pair) for pair in zip(crossings.legs, together, strict=True)]
            order = np.argsort(both[0], kind="stable")
            self._of_link[:] = 0  # the legs were only counted apart: they are charged now
            self._at_broker[:] = 0
            together = (both[0][order], both[1][order], both[2][order])
        self._charge(*together, self._per_arc, self._counts)
        self._settle(rides, crossings)

    def _charge(self, pattern: Ints, hop: Ints, header: Ints, into: Longs, counts: Longs) -> None:
        t, d = self._layout.tables, self._demand
        charge(
            pattern,
            hop,
            header,
            read_only(d.publisher),
            read_only(d.count),
            read_only(d.size),
            read_only(d.tags),
            read_only(d.start),
            read_only(d.classes),
            read_only(t.host),
            t.hop_start,
            t.hop_arc,
            t.label_bytes,
            t.arc_head,
            self._of_link,
            self._at_broker,
            self._wanted,
            into[0],
            into[1],
            into[2],
            counts,
            self._entered,
        )

    def _settle(self, rides: Rides, crossings: Crossings) -> None:
        t, d = self._layout.tables, self._demand
        settle(
            rides.first,
            rides.last,
            rides.count,
            read_only(d.publisher),
            read_only(d.count),
            read_only(d.start),
            read_only(d.classes),
            read_only(t.host),
            rides.pattern,
            rides.start,
            rides.entry,
            rides.chosen,
            t.entry_class,
            crossings.reach_ms,
            crossings.reach_hops,
            self._class_stamp,
            self._class_ms,
            self._class_hops,
            self._host_stamp,
            self._host_place,
            self._worst_ms,
            self._out_start,
            self._out_ms,
            self._out_hops,
            self._settled,
        )

    def sums(self) -> Sums:
        weight = np.repeat(self._demand.count, np.diff(self._out_start))
        reached = self._out_ms >= 0
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
            worst_ms=self._worst_ms,
            hops=Distribution.of(self._out_hops[reached], weight[reached]),
            ms=Distribution.of(self._out_ms[reached], weight[reached]),
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


def _ratio(value: float, reference: float) -> float:
    if reference:
        return value / reference
    return 1.0 if not value else np.inf


def _defined(ratio: float) -> float | None:
    """None where a reference is 0 and the value is not."""
    return None if np.isinf(ratio) else ratio


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _max(values: npt.NDArray[Any]) -> float:
    return float(values.max()) if len(values) else 0.0
