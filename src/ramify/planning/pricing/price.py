"""The pricer: what a plan costs on a demand, by one rule for every scheme.

Owns `price` and the definitions of its figures; the sums they are made from are in `sums`. A message is one
event crossing one link. Payload is the event's own size; on the wire a message also has its header
(`overlay.routing.headers` has the form). Every figure that is per event is weighted by the events of each
pattern. What is computed from the counts (stress, state, references) is computed on first use.

A demand may be priced in parts: `sums_of` each part, add the sums, `priced` the total. All that is added is
whole numbers, and every figure is computed from the total, so that parts change nothing, to the bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.errors import LimitError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.covering import covered_state
from ramify.planning.plans.layout import Layout, layout_of
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.state import StoredFilters, routing_state
from ramify.planning.pricing.bound import GB, References, Yardstick
from ramify.planning.pricing.sums import Bits, Floats, Longs, Sums, WeightedSpread, sums_of

__all__ = [
    "MONTH_SECONDS",
    "Price",
    "Volume",
    "price",
    "priced",
]

MONTH_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Volume:
    """What a price needs to know of a demand besides its sums: see `Demand` for the words."""

    events: int
    seconds: float = 0.0
    factor: float = 1.0
    tag_filters: int = 0


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
    hops: WeightedSpread
    ms: WeightedSpread
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

    @property
    def access_money(self) -> float:
        """Money for the links between clients and their brokers: the same for every plan (C1)."""
        return self.yardstick.access_money

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
    def state(self) -> StoredFilters:
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
            "access_money": self.access_money,
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
