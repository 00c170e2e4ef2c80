"""The simulator: all routers of an overlay in one process, in virtual time, with exact counters.

Owns the queue of messages in flight and what is counted. It adds nothing to routing: what it counts is
what the routers decided, message by message, and must equal what the pricer says.

    simulate_demand    patterns, each as one event that stands for its count
    simulate_events    batches of events, through `Router.route`, as a live broker would
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.events.events import SIZE_BYTES
from ramify.overlay.routing.headers import Header, HeaderKind
from ramify.overlay.routing.router import Frame, Router, RoutingPlan
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan

__all__ = ["Crossing", "SimulationResult", "Simulator"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """One message: an event crossing one link."""

    at_ms: float
    sender: int
    receiver: int
    header: Header


@dataclass(slots=True)
class SimulationResult:
    """What happened. Arrays are per link and direction, as in `Price`.

    `delivered` counts (event id, subscription id) pairs; `repeats` are hand-overs to a class that had the
    event already, which the driver held back. `class_ms` is when each (event id, class) got it.
    """

    messages: npt.NDArray[np.int64]
    payload: npt.NDArray[np.int64]
    wire: npt.NDArray[np.int64]
    leg_messages: npt.NDArray[np.int64]
    matchings: int = 0
    broker_duplicates: int = 0
    link_duplicates: int = 0
    visits: int = 0
    waste: int = 0
    repeats: int = 0
    delivered: Counter[tuple[str, str]] = field(default_factory=Counter)
    class_ms: dict[tuple[str, int], float] = field(default_factory=dict)


class Simulator:
    """Drives the routers of a plan; `result` grows with everything that is published.

    With `once`, batches are routed as a live broker routes them: copies that do not hand over hand
    nothing over (`Router.owned`), instead of being held back here.
    """

    def __init__(self, plan: Plan, *, once: bool = False) -> None:
        self._once = once
        self._plan = plan
        self._routing = RoutingPlan(plan)
        self._routers: dict[int, Router] = {}
        m = len(plan.overlay.ends)
        messages, payload, wire, legs = np.zeros((4, m, 2), dtype=np.int64)
        self.result = SimulationResult(messages, payload, wire, legs)
        self._overlay = plan.overlay

    def router(self, broker: int) -> Router:
        """The router of a broker."""
        if broker not in self._routers:
            self._routers[broker] = Router(self._routing, broker)
        return self._routers[broker]

    def simulate_demand(self, demand: Demand) -> SimulationResult:
        """Every pattern as one event that counts as many; event ids are pattern numbers."""
        for i in range(len(demand)):
            classes = tuple(demand[i].tolist())
            self.publish(
                int(demand.publisher[i]),
                int(demand.cell[i]),
                classes,
                event=str(i),
                count=int(demand.count[i]),
                size=int(demand.size[i]),
            )
        return self.result

    def publish(
        self, origin: int, cell: int, classes: tuple[int, ...], *, event: str, count: int = 1, size: int = 0
    ) -> list[Crossing]:
        """One event from a broker to everyone it reaches; returns its messages in order of arrival."""
        visit = _Visit(self, {self._routing.hosts[k] for k in classes}, origin, event, count, size)
        flight: list[tuple[float, int, int, int | None, Header | None]] = [(0.0, 0, origin, None, None)]
        steps: list[Crossing] = []
        number = 0
        while flight:
            now, _, broker, sender, header = heapq.heappop(flight)
            if sender is not None and header is not None:
                steps.append(Crossing(now, sender, broker, header))
            decision = self.router(broker).decide(header, sender, cell, classes)
            visit.arrived(now, broker, decision.deliveries, decision.matched)
            for to, onward in decision.forwards:
                number += 1
                ms = visit.crossed(broker, to, onward)
                heapq.heappush(flight, (now + ms, number, to, broker, onward))
        return steps

    def pattern_of(self, event: pa.RecordBatch) -> tuple[int, tuple[int, ...]]:
        """The cell and the classes of a single event."""
        ((pattern, _),) = self.router(0).patterns(event)
        return pattern

    def simulate_events(self, batches: Iterable[pa.RecordBatch]) -> SimulationResult:
        """Batches of events, each published at its publisher's broker, frame by frame."""
        for batch in batches:
            names = batch.column("publisher").to_pylist()
            by_origin: dict[int, list[int]] = {}
            for row, name in enumerate(names):
                by_origin.setdefault(self._plan.origin_of(str(name)), []).append(row)
            for origin, rows in by_origin.items():
                self._run(origin, batch.take(pa.array(rows)))
        return self.result

    def _run(self, origin: int, events: pa.RecordBatch) -> None:
        ids = [str(value) for value in events.column("id").to_pylist()]
        wanted = self._wanted(events)
        sizes = dict(zip(ids, np.asarray(events.column(SIZE_BYTES)).tolist(), strict=True))
        visits = {event: _Visit(self, wanted[event], origin, event, 1, sizes[event]) for event in ids}
        flight: list[tuple[float, int, int, int | None, Frame]] = [(0.0, 0, origin, None, Frame(events))]
        number = 0
        while flight:
            now, _, broker, sender, frame = heapq.heappop(flight)
            routed = self.router(broker).route(frame, sender, once=self._once)
            here = [str(value) for value in frame.events.column("id").to_pylist()]
            self.result.matchings += routed.matchings
            for delivery in routed.deliveries:
                for row in delivery.rows.tolist():
                    visits[here[row]].arrived(now, broker, (delivery.class_id,), False)
            for to, onward in routed.forwards:
                number += 1
                assert onward.header is not None
                for event in onward.events.column("id").to_pylist():
                    ms = visits[str(event)].crossed(broker, to, onward.header)
                heapq.heappush(flight, (now + ms, number, to, broker, onward))

    def _wanted(self, events: pa.RecordBatch) -> dict[str, set[int]]:
        """The destination set of each event, by matching it here: for counting waste, not for routing."""
        found = self._routing.matcher.match(events)
        ids = events.column("id").to_pylist()
        return {
            str(event): {self._routing.hosts[k] for k in matched.tolist()}
            for event, matched in zip(ids, found, strict=True)
        }

    def _link(self, sender: int, receiver: int) -> tuple[int, int]:
        names = self._overlay.brokers
        link = self._overlay.link_between(names[sender], names[receiver])
        return link, int(self._overlay.ends[link, 0] != sender)


class _Visit:
    """One event's way through the overlay, and what it adds to the counters."""

    def __init__(
        self, simulator: Simulator, wanted: set[int], origin: int, event: str, count: int, size: int
    ) -> None:
        self._simulator = simulator
        self._wanted = wanted
        self._event = event
        self._count = count
        self._size = size
        self._seen = {origin}  # it has the event from its client
        self._links: set[int] = set()
        self._handed: set[int] = set()

    def crossed(self, sender: int, receiver: int, header: Header) -> float:
        """Count a message; returns the milliseconds it takes."""
        done, count = self._simulator.result, self._count
        link, direction = self._simulator._link(sender, receiver)
        done.messages[link, direction] += count
        done.payload[link, direction] += self._size
        done.wire[link, direction] += self._size + count * len(header.encode())
        if header.kind is HeaderKind.LEG:
            done.leg_messages[link, direction] += count
        done.link_duplicates += count * (link in self._links)
        self._links.add(link)
        if receiver in self._seen:
            done.broker_duplicates += count
        else:
            done.visits += count
            done.waste += count * (receiver not in self._wanted)
        self._seen.add(receiver)
        return float(self._simulator._overlay.latency_ms[link])

    def arrived(self, now: float, broker: int, classes: Iterable[int], matched: bool) -> None:
        """Hand the event to classes, each once."""
        done = self._simulator.result
        done.matchings += self._count * matched
        for k in classes:
            if k in self._handed:
                done.repeats += self._count
                continue
            self._handed.add(k)
            done.class_ms[self._event, k] = now
            for subscription in self._simulator._plan.classes.members[k]:
                done.delivered[self._event, subscription.id] += self._count
