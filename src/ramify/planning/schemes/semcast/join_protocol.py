"""Joins and leaves as messages between brokers: the rules of `trees`, with no place that sees the whole.

A broker knows, for every channel it is on, its parent, its children and how far from the root it is. It
reacts to one message at a time and answers with further messages. Between two brokers messages stay in
order; beyond that any order of delivery gives the same tables, as long as one join or leave of a channel is
done before the next begins (the coordinator hands out the destinations one by one).

    Join       climbs from a gateway along its way to the first broker of the tree
    Accept     goes back down the way and hangs every broker on it
    Climb      goes from parent to parent until one can keep the bound
    Graft      goes down a fast path; Adopt and nothing answer it: hung here, or stays where it is
    Settle     goes back up that path: brokers that moved take leave of their old parents
    Distance   tells the brokers below one that moved
    Leave      takes a broker off its parent, which may leave in turn: never a gateway, never the root
    Refuse     tells a gateway that its bound cannot be kept

Guarantee  When all messages are delivered, the tables of all brokers together are the tree that
           `trees.GrowingTree` makes of the same joins and leaves.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ramify.errors import InputError
from ramify.planning.plans.legs import keeps
from ramify.planning.schemes.semcast.trees import GrowingTree, TreeWays

__all__ = [
    "Accept",
    "Adopt",
    "Climb",
    "Distance",
    "Graft",
    "Join",
    "JoinNetwork",
    "JoiningBroker",
    "Leave",
    "Message",
    "Refuse",
    "Settle",
]


@dataclass(frozen=True, slots=True)
class Join:
    """`way` is from the gateway; the receiver is `way[at]`; `ms` is what the way took so far."""

    channel: int
    way: tuple[int, ...]
    at: int
    ms: float
    bound_ms: float | None
    root_path: bool


@dataclass(frozen=True, slots=True)
class Accept:
    """The receiver is `way[at]` and hangs from `way[at + 1]`, which is `from_root_ms` away."""

    channel: int
    way: tuple[int, ...]
    at: int
    from_root_ms: float


@dataclass(frozen=True, slots=True)
class Climb:
    """Asks ancestors which of them reaches this gateway in time."""

    channel: int
    gateway: int
    bound_ms: float
    root_path: bool


@dataclass(frozen=True, slots=True)
class Graft:
    """`way` is from a broker of the tree to the gateway; the receiver is `way[at]`."""

    channel: int
    way: tuple[int, ...]
    at: int
    from_root_ms: float


@dataclass(frozen=True, slots=True)
class Adopt:
    """The sender hangs from the receiver now."""

    channel: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The gateway at the end of `way` is connected; the receiver is `way[at]`."""

    channel: int
    way: tuple[int, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Distance:
    """How far from the root the sender is now."""

    channel: int
    from_root_ms: float


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender no longer hangs from the receiver."""

    channel: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The bound of the receiver cannot be kept."""

    channel: int


Message: TypeAlias = Join | Accept | Climb | Graft | Adopt | Settle | Distance | Leave | Refuse
Envelopes: TypeAlias = list[tuple[int, Message]]


@dataclass(slots=True)
class _Place:
    """What a broker knows of a channel it is on. `left` is a parent that it has yet to take leave of."""

    parent: int
    from_root_ms: float
    children: set[int] = field(default_factory=set)
    gateway: bool = False
    left: int | None = None


class JoiningBroker:
    """One broker: `receive` a message, get those to send. Pure: nothing is sent from here."""

    def __init__(self, index: int, ways: TreeWays, links_ms: dict[tuple[int, int], float]) -> None:
        self.index = index
        self._ways, self._ms = ways, links_ms
        self.places: dict[int, _Place] = {}
        self.refused: set[int] = set()

    def open(self, channel: int) -> None:
        """Become the root of a channel."""
        self.places[channel] = _Place(-1, 0.0)

    def join(
        self,
        channel: int,
        root: int,
        destinations: Iterable[int],
        bound_ms: float | None = None,
        *,
        root_path: bool = True,
    ) -> Envelopes:
        """Become a gateway. The coordinator says the channel's root and its present destinations."""
        self.refused.discard(channel)
        place = self.places.get(channel)
        if place is not None:
            within = bound_ms is None or keeps(place.from_root_ms, bound_ms)
            if within:
                place.gateway = True
                return []
            assert bound_ms is not None
            return self._climb(Climb(channel, self.index, bound_ms, root_path))
        others = set(destinations) - {self.index}
        target = self._ways.nearest(self.index, others) if others else root
        way = tuple(self._ways.toward(self.index, target))
        request = Join(channel, way, 1, self._ms[way[0], way[1]], bound_ms, root_path)
        return [(way[1], request)]

    def leave(self, channel: int) -> Envelopes:
        """Stop being a gateway."""
        place = self.places.get(channel)
        if place is None or not place.gateway:
            raise InputError(f"broker {self.index} is not a gateway of channel {channel}. It cannot leave.")
        place.gateway = False
        return self._prune(channel)

    def receive(self, sender: int, message: Message) -> Envelopes:
        """React to a message."""
        match message:
            case Join():
                return self._asked(message)
            case Accept():
                return self._accepted(message)
            case Climb():
                return self._climb(message)
            case Graft():
                return self._grafted(sender, message)
            case Adopt(channel):
                self.places[channel].children.add(sender)
                return []
            case Settle():
                return self._settled(message)
            case Distance(channel, ms):
                return self._moved(channel, sender, ms)
            case Leave(channel):
                if channel in self.places:
                    self.places[channel].children.discard(sender)
                return self._prune(channel)
            case Refuse(channel):
                self.refused.add(channel)
                return []

    def _asked(self, request: Join) -> Envelopes:
        place = self.places.get(request.channel)
        way, at = request.way, request.at
        if place is None:
            further = request.ms + self._ms[way[at], way[at + 1]]
            onward = Join(request.channel, way, at + 1, further, request.bound_ms, request.root_path)
            return [(way[at + 1], onward)]
        if request.bound_ms is None or keeps(place.from_root_ms + request.ms, request.bound_ms):
            place.children.add(way[at - 1])
            return [(way[at - 1], Accept(request.channel, way, at - 1, place.from_root_ms))]
        return self._climb(Climb(request.channel, way[0], request.bound_ms, request.root_path))

    def _accepted(self, message: Accept) -> Envelopes:
        way, at = message.way, message.at
        ms = message.from_root_ms + self._ms[way[at], way[at + 1]]
        place = self.places[message.channel] = _Place(way[at + 1], ms)
        if at == 0:
            place.gateway = True
            return []
        place.children.add(way[at - 1])
        return [(way[at - 1], Accept(message.channel, way, at - 1, ms))]

    def _climb(self, request: Climb) -> Envelopes:
        place, gateway = self.places[request.channel], request.gateway
        if keeps(place.from_root_ms + float(self._ways.ms[self.index, gateway]), request.bound_ms):
            return self._connect(request.channel, gateway)
        if place.parent >= 0:
            return [(place.parent, request)]
        refusal: Envelopes = [(gateway, Refuse(request.channel))]
        return refusal + (self._connect(request.channel, gateway) if request.root_path else [])

    def _connect(self, channel: int, gateway: int) -> Envelopes:
        if gateway == self.index:
            self.places[channel].gateway = True
            return []
        way = tuple(self._ways.fastest(self.index, gateway))
        return [(way[1], Graft(channel, way, 1, self.places[channel].from_root_ms))]

    def _grafted(self, sender: int, message: Graft) -> Envelopes:
        channel, way, at = message.channel, message.way, message.at
        ms = message.from_root_ms + self._ms[sender, self.index]
        place = self.places.get(channel)
        sent: Envelopes = []
        if place is None:
            place = self.places[channel] = _Place(sender, ms)
            sent.append((sender, Adopt(channel)))
        elif ms < place.from_root_ms:
            place.left, place.parent, place.from_root_ms = place.parent, sender, ms
            sent.append((sender, Adopt(channel)))
        if at + 1 < len(way):
            sent.append((way[at + 1], Graft(channel, way, at + 1, place.from_root_ms)))
            return sent
        place.gateway = True
        return sent + self._settled(Settle(channel, way, at))

    def _settled(self, message: Settle) -> Envelopes:
        channel, way, at = message.channel, message.way, message.at
        place = self.places.get(channel)  # it may have left already, when its last child did
        sent: Envelopes = [(way[at - 1], Settle(channel, way, at - 1))] if at else []
        if place is not None and place.left is not None:
            if place.left != place.parent:
                sent.append((place.left, Leave(channel)))
            place.left = None
            sent += [(child, Distance(channel, place.from_root_ms)) for child in sorted(place.children)]
        return sent + self._prune(channel)

    def _moved(self, channel: int, sender: int, ms: float) -> Envelopes:
        place = self.places.get(channel)
        if place is None or place.parent != sender:
            return []  # the sender has yet to hear that this broker left
        place.from_root_ms = ms + self._ms[sender, self.index]
        return [(child, Distance(channel, place.from_root_ms)) for child in sorted(place.children)]

    def _prune(self, channel: int) -> Envelopes:
        place = self.places.get(channel)
        if place is None or place.parent < 0 or place.gateway or place.children:
            return []
        del self.places[channel]
        left = {place.parent, place.parent if place.left is None else place.left}
        return [(above, Leave(channel)) for above in sorted(left)]


class JoinNetwork:
    """Brokers and the messages between them, delivered until none is left; counts them by kind.

    Plays the coordinator too: it knows every channel's root and destinations. Messages are delivered in the
    order they were sent; with a generator, in any order that keeps those between two brokers in order.
    """

    def __init__(
        self,
        brokers: int,
        ways: TreeWays,
        links_ms: dict[tuple[int, int], float],
        rng: np.random.Generator | None = None,
    ) -> None:
        self._rng = rng
        self.brokers = [JoiningBroker(i, ways, links_ms) for i in range(brokers)]
        self.counts: Counter[str] = Counter()
        self._roots: dict[int, int] = {}
        self.destinations: dict[int, set[int]] = {}

    def open(self, channel: int, root: int) -> None:
        """A channel without gateways yet."""
        self._roots[channel] = root
        self.destinations[channel] = set()
        self.brokers[root].open(channel)

    def take_up(self, channel: int, tree: GrowingTree) -> None:
        """A channel whose tree stands already."""
        self.open(channel, tree.root)
        self.destinations[channel] = set(tree.gateways)
        for broker, above in tree.parent.items():
            place = _Place(above, tree.from_root_ms[broker], set(tree.children[broker]))
            place.gateway = broker in tree.gateways
            self.brokers[broker].places[channel] = place

    def join(
        self, channel: int, gateway: int, bound_ms: float | None = None, *, root_path: bool = True
    ) -> bool:
        """Whether the gateway is connected within its bound."""
        broker = self.brokers[gateway]
        known = self.destinations[channel]
        sent = broker.join(channel, self._roots[channel], known, bound_ms, root_path=root_path)
        self._deliver(gateway, sent)
        place = broker.places.get(channel)
        if place is not None and place.gateway:
            known.add(gateway)
        return channel not in broker.refused

    def leave(self, channel: int, gateway: int) -> None:
        """One gateway less."""
        self._deliver(gateway, self.brokers[gateway].leave(channel))
        self.destinations[channel].discard(gateway)

    def links(self, channel: int) -> set[tuple[int, int]]:
        """(parent, child) by the brokers' own tables."""
        return {
            (broker.places[channel].parent, broker.index)
            for broker in self.brokers
            if channel in broker.places and broker.places[channel].parent >= 0
        }

    def _deliver(self, sender: int, sent: Envelopes) -> None:
        queue = [(sender, target, message) for target, message in sent]
        while queue:
            at = 0
            if self._rng is not None:
                pair = queue[int(self._rng.integers(len(queue)))][:2]
                at = next(i for i, each in enumerate(queue) if each[:2] == pair)
            sender, target, message = queue.pop(at)
            self.counts[type(message).__name__] += 1
            answers = self.brokers[target].receive(sender, message)
            queue.extend((target, further, answer) for further, answer in answers)
