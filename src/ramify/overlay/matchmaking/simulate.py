"""All brokers of a matchmaking in one process: packets in any order that links allow, exact counters.

Runs the same state machines as live brokers do, over any trees, shared or one per source. For a plan
see `over_plan.py`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from ramify.content.events.events import AttributeType
from ramify.errors import InputError
from ramify.overlay.matchmaking.broker import MatchBroker, Packets
from ramify.overlay.matchmaking.messages import Ads, Descriptor, Packet, Subs
from ramify.overlay.matchmaking.state import TreePlace

__all__ = ["MatchNetwork", "Traffic", "places_of_parents"]

Lane = tuple[str, str]


@dataclass
class Traffic:
    """What was sent: packets, items by kind, and descriptors inside them."""

    packets: int = 0
    items: Counter[str] = field(default_factory=Counter)
    descriptors: int = 0

    def add(self, packet: Packet) -> None:
        """Count one packet."""
        self.packets += 1
        for item in packet.items:
            self.items[type(item).__name__] += 1
            if isinstance(item, Ads | Subs):
                self.descriptors += len(item.put) + len(item.gone)


class MatchNetwork:
    """Brokers and the packets under way between them."""

    def __init__(
        self, places: Iterable[TreePlace], schema: Mapping[str, AttributeType] | None = None, seed: int = 0
    ) -> None:
        self.schema = schema
        self.brokers = {place.name: MatchBroker(place, schema) for place in places}
        self.lanes: dict[Lane, deque[Packet]] = {}
        self.traffic = Traffic()
        self._random = Random(seed)

    def advertise(self, broker: str, *ads: Descriptor) -> None:
        """See `MatchBroker`; the packets are under way afterwards."""
        self._send(broker, self.brokers[broker].advertise(*ads))

    def subscribe(self, broker: str, *subs: Descriptor) -> None:
        """See `MatchBroker`."""
        self._send(broker, self.brokers[broker].subscribe(*subs))

    def unadvertise(self, broker: str, *ids: str) -> None:
        """See `MatchBroker`."""
        self._send(broker, self.brokers[broker].unadvertise(*ids))

    def unsubscribe(self, broker: str, *ids: str) -> None:
        """See `MatchBroker`."""
        self._send(broker, self.brokers[broker].unsubscribe(*ids))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return not self.lanes

    def step(self) -> None:
        """Deliver one packet: the first of a lane drawn at random."""
        lane = self._random.choice(sorted(self.lanes))
        packet = self.lanes[lane].popleft()
        if not self.lanes[lane]:
            del self.lanes[lane]
        self._send(lane[1], self.brokers[lane[1]].receive(lane[0], packet))

    def run(self, most: int = 10_000_000) -> int:
        """Deliver until all is quiet; how many packets that took. `InputError` after `most`."""
        for steps in range(most):
            if self.is_quiet:
                return steps
            self.step()
        raise InputError(f"matchmaking has not come to rest after {most:,} packets")

    def restart(self, broker: str) -> None:
        """Replace a broker by one restored from its snapshot."""
        self.brokers[broker] = MatchBroker.restore(self.brokers[broker].snapshot(), self.schema)

    # ---------------------------------------------------------------------------------------- what is

    @property
    def stored(self) -> int:
        """Descriptors that brokers store for others."""
        return sum(broker.state.stored for broker in self.brokers.values())

    def marks(self) -> dict[str, dict[Lane, str]]:
        """By tree: the marks of its links as their upper ends have them. A link that asks is still p."""
        found: dict[str, dict[Lane, str]] = {}
        for name, broker in sorted(self.brokers.items()):
            for origin, marks in sorted(broker.state.marks.items()):
                for child, mark in sorted(marks.items()):
                    found.setdefault(origin, {})[name, child] = "s" if mark.kind == "s" else "p"
        return found

    def invalid(self) -> list[tuple[str, Lane, Lane]]:
        """Tree, s-link and the p-link just below it: never any."""
        return [
            (origin, (u, v), (v, w))
            for origin, marks in self.marks().items()
            for (v, w), kind in marks.items()
            if kind == "p"
            for u in [self.brokers[v].state.place.parent.get(origin)]
            if u is not None and marks.get((u, v)) == "s"
        ]

    def _send(self, sender: str, packets: Packets) -> None:
        for neighbour, packet in packets.items():
            self.traffic.add(packet)
            self.lanes.setdefault((sender, neighbour), deque()).append(packet)


def places_of_parents(
    names: Iterable[str], parents: Mapping[str, Mapping[str, str]], shared: bool = False
) -> list[TreePlace]:
    """A place per broker. `parents[x][b]` is the broker above b in the tree of origin x."""
    known = list(names)
    parent: dict[str, dict[str, str]] = {name: {} for name in known}
    children: dict[str, dict[str, list[str]]] = {name: {} for name in known}
    neighbours: dict[str, set[str]] = {name: set() for name in known}
    for origin, above in sorted(parents.items()):
        for below, up in sorted(above.items()):
            parent[below][origin] = up
            children[up].setdefault(origin, []).append(below)
            neighbours[below].add(up)
            neighbours[up].add(below)
    return [
        TreePlace(name, sorted(neighbours[name]), parent[name], children[name], shared) for name in known
    ]
