"""The router of one broker: where an event goes next, and which classes get it here, by the plan alone.

Owns the rules of `planning.plans.plan` for one broker. It is pure: no clock, no socket, no randomness;
the same frame gives the same answer. Two drivers run it: the simulator, and the live broker.

    route(frame, sender)   batches in, batches out: what drivers call
    decide(...)            one event, as far as routing can tell events apart: what `route` calls per
                           pattern

Events with the same header, cell and classes go the same way, so decisions are kept and found again.

Where several channels bring an event to the same class, it is handed over once. A driver that sees all of
an event's way looks itself (by event id). A live broker would have to remember what it handed over, through
crashes and however late a copy comes. It asks for `once` instead: every broker holds the whole plan, so it
can tell which of the copies hands over, and no memory is needed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.network.trees.terminals import TerminalSets
from ramify.overlay.routing.headers import Header, HeaderKind, carried_tree, read_carried
from ramify.overlay.routing.plan import RoutingPlan
from ramify.planning.demand.demand import NO_CELL
from ramify.planning.plans.plan import Pruning

__all__ = ["Delivery", "Frame", "RouteDecision", "RoutedFrame", "RoutedRows", "Router", "RoutingPlan"]

DECISIONS_KEPT = 500_000
"""Class ids in the decisions that a router remembers, some tens of megabytes; then it starts over."""
MOST_TREES = 16_384
"""Carried trees that a router remembers; then it starts over."""

# what a decision takes besides the ids of its classes, in ids
_OVERHEAD = 16


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """What becomes of an event at a broker.

    `forwards` are messages to neighbours in the overlay; `deliveries` the classes of this broker that
    get it; `matched` whether the broker had to match the event.
    """

    forwards: tuple[tuple[int, Header], ...] = ()
    deliveries: tuple[int, ...] = ()
    matched: bool = True


@dataclass(frozen=True, slots=True)
class Frame:
    """Events that travel together. Without a header they have just been published at this broker."""

    events: pa.RecordBatch
    header: Header | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows of a frame for one class."""

    class_id: int
    rows: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoutedFrame:
    """What becomes of a frame. `matchings` counts the events that were matched."""

    forwards: tuple[tuple[int, Frame], ...]
    deliveries: tuple[Delivery, ...]
    matchings: int


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """As `RoutedFrame`, without taking events apart: `forwards` have the rows, None for all."""

    forwards: tuple[tuple[int, Header, npt.NDArray[np.int64] | None], ...]
    deliveries: tuple[Delivery, ...]
    matchings: int


_HeaderType = TypeVar("_HeaderType", Header, Header | None)
_DecisionType = TypeVar("_DecisionType")


class _DecisionCache(dict[tuple[_HeaderType, int, int, tuple[int, ...]], _DecisionType]):
    """What was found for events of a header, sender, cell and classes; bounded by what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self._held = 0

    def keep(self, key: tuple[_HeaderType, int, int, tuple[int, ...]], found: _DecisionType) -> None:
        """Remember one more."""
        self._held += len(key[3]) + _OVERHEAD
        if self._held > DECISIONS_KEPT:
            self.clear()
            self._held = len(key[3]) + _OVERHEAD
        self[key] = found


class Router:
    """One broker's part of a plan."""

    def __init__(self, routing: RoutingPlan, broker: int) -> None:
        self._shared = routing
        self._plan = routing.plan
        self.broker = broker
        self._kept: _DecisionCache[Header | None, RouteDecision] = _DecisionCache()
        self._owned: _DecisionCache[Header, tuple[int, ...]] = _DecisionCache()
        self._carried_trees: dict[tuple[int, ...], bytes] = {}

    def route(self, frame: Frame, sender: int | None, *, once: bool = False) -> RoutedFrame:
        """Where the events of a frame go. `sender` is the neighbour it came from, None for a client.

        With `once`, of all copies of an event exactly one hands it to each class (see the module).
        """
        routed = self.route_rows(frame, sender, once=once)
        forwards = (
            (to, Frame(frame.events if rows is None else frame.events.take(rows), onward))
            for to, onward, rows in routed.forwards
        )
        return RoutedFrame(tuple(forwards), routed.deliveries, routed.matchings)

    def route_rows(self, frame: Frame, sender: int | None, *, once: bool = False) -> RoutedRows:
        """As `route`, with rows in place of their events."""
        header = frame.header
        if header is not None and header.label is not None and header.label[1] != self.broker:
            # of one to a channel that another broker's revision has opened, no subscriber of all of them
            # waits for it: it may go
            return RoutedRows(tuple((to, on, None) for to, on in self._pass_on(header)), (), 0)
        if header is not None:
            # whether a broker must match is told by the header alone: then the events are not looked at
            unseen = self.decide(header, sender, NO_CELL, ())
            if not unseen.matched:
                return RoutedRows(tuple((to, on, None) for to, on in unseen.forwards), (), 0)
        forwards: dict[tuple[int, Header], list[int]] = {}
        deliveries: dict[int, list[int]] = {}
        matchings = 0
        for (cell, classes), rows in self.patterns(frame.events):
            decision = self.decide(header, sender, cell, classes)
            matchings += len(rows) * decision.matched
            for forward in decision.forwards:
                forwards.setdefault(forward, []).extend(rows)
            handed = decision.deliveries
            if once and header is not None and handed:
                handed = self.owned(header, sender, cell, classes)
            for k in handed:
                deliveries.setdefault(k, []).extend(rows)
        count = frame.events.num_rows
        return RoutedRows(
            tuple(
                (to, onward, None if len(rows) == count else np.array(sorted(rows)))
                for (to, onward), rows in forwards.items()
            ),
            tuple(Delivery(k, np.array(sorted(rows))) for k, rows in sorted(deliveries.items())),
            matchings,
        )

    def decide(
        self, header: Header | None, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> RouteDecision:
        """What becomes of an event that matches `classes` (ascending) and lies in `cell`."""
        key = (header, -1 if sender is None else sender, cell, classes)
        found = self._kept.get(key)
        if found is None:
            found = self._decide(header, sender, cell, classes)
            self._kept.keep(key, found)
        return found

    def owned(
        self, header: Header, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The classes of this broker that this copy of an event hands it to.

        Of the ways that bring a class the event, the one without a proxy, then of the lowest channel,
        then of the lowest proxy: all brokers agree on it.
        """
        key = (header, -1 if sender is None else sender, cell, classes)
        found = self._owned.get(key)
        if found is None:
            found = self._find_owned(header, sender, cell, classes)
            self._owned.keep(key, found)
        return found

    def _find_owned(
        self, header: Header, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> tuple[int, ...]:
        shared = self._shared
        admitted = self._sent_on(header, shared.admitted(header.origin, cell, classes))
        came_by = header.label[0] if header.label is not None else sender
        at = came_by if header.kind is HeaderKind.NOTE else self.broker
        mine = []
        for k in self._hosted(classes):
            ways = [
                (server != self.broker, c, server)
                for c in admitted
                for server, region in shared.served(c, k)
                if shared.holds(region, cell)
            ]
            if ways and min(ways)[2] == at and min(ways)[1] in header.channels:
                mine.append(k)
        return tuple(mine)

    def _sent_on(self, header: Header, admitted: list[int]) -> list[int]:
        """The channels that an event was sent on: those that admit it by what is known here, as far as the
        publisher's broker did not choose otherwise, perhaps before a change. Its word counts."""
        shared = self._shared
        came = [c for c in header.channels if c < len(self._plan.channels)]
        if any(shared.is_stamped(c) for c in came):
            return [c for c in admitted if not shared.is_stamped(c)] + came
        if any(shared.is_expressed(c) for c in came) and not set(came) <= set(admitted):
            # where channels by expressions share a class, they exclude each other: this was the one
            return [c for c in admitted if not shared.is_expressed(c)] + came
        return admitted

    def _decide(
        self, header: Header | None, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> RouteDecision:
        if header is None:
            return self._publish(cell, classes)
        if header.label is not None:
            if header.label[1] != self.broker:
                return RouteDecision(tuple(self._pass_on(header)), (), matched=False)
            sender = header.label[0]
        match header.kind:
            case HeaderKind.TREE | HeaderKind.LEG:
                came_from = sender if header.kind is HeaderKind.TREE else None
                return self._arrive(header, came_from, cell, classes)
            case HeaderKind.NOTE:
                return RouteDecision((), self._hosted(classes))
            case HeaderKind.CARRIED:
                return self._carried(header, cell, classes)
            case HeaderKind.LIST:
                return self._listed(header, cell, classes)
            case HeaderKind.COPY:
                return self._copied(header, cell, classes)

    # ---------------------------------------------------------------------- at the publisher's broker

    def _publish(self, cell: int, classes: tuple[int, ...]) -> RouteDecision:
        enters: dict[int, list[int]] = {}
        for channel in self._shared.admitted(self.broker, cell, classes):
            target = self._plan.channels[channel].entry.target(self.broker)
            enters.setdefault(target, []).append(channel)
        forwards: list[tuple[int, Header]] = []
        for target, channels in enters.items():
            if target == self.broker:
                forwards += self._start(channels, cell, classes)
            else:
                header = Header(HeaderKind.LEG, self.broker, channels=tuple(channels), target=target)
                forwards.append(self._send(target, header))
        return RouteDecision(tuple(forwards), self._hosted(classes))

    def _start(
        self, channels: list[int], cell: int, classes: tuple[int, ...]
    ) -> Iterator[tuple[int, Header]]:
        """Messages of the channels that an event enters right here, at the publisher's broker."""
        here = self.broker
        on_trees = [c for c in channels if self._plan.channels[c].pruning in (Pruning.FILTER, Pruning.NONE)]
        if on_trees:
            together = Header(HeaderKind.LEG, here, channels=tuple(on_trees), target=here)
            yield from self._arrive(together, None, cell, classes).forwards
        for c in channels:
            hosts = sorted({self._shared.hosts[k] for k, *_ in self._served(c, here, cell, classes)})
            if not hosts or c in on_trees:
                continue
            match self._plan.channels[c].pruning:
                case Pruning.TREE:
                    yield from self._branch(
                        Header(HeaderKind.CARRIED, here, channels=(c,)), self._steiner(hosts)
                    )
                case Pruning.DESTINATIONS:
                    yield from self._split(Header(HeaderKind.LIST, here, channels=(c,)), hosts)
                case Pruning.COPIES:
                    for host in hosts:
                        yield self._onward(Header(HeaderKind.COPY, here, channels=(c,), target=host))

    def _steiner(self, hosts: list[int]) -> bytes:
        """The carried tree from here to the hosts, by the plan's deterministic rule."""
        key = tuple(hosts)
        found = self._carried_trees.get(key)
        if found is None:
            if len(self._carried_trees) >= MOST_TREES:
                self._carried_trees.clear()
            found = self._carried_trees[key] = self._find_steiner(hosts)
        return found

    def _find_steiner(self, hosts: list[int]) -> bytes:
        trees = self._shared.layout.steiner.trees(TerminalSets.of([(self.broker, hosts)]), "insert")
        children: dict[int, list[int]] = {}
        for above, below in zip(trees.parent.tolist(), trees.child.tolist(), strict=True):
            children.setdefault(above, []).append(below)
        return carried_tree(self.broker, children, set(hosts))

    # ------------------------------------------------------------------------------------- on the way

    def _arrive(
        self, header: Header, came_from: int | None, cell: int, classes: tuple[int, ...]
    ) -> RouteDecision:
        """An event reaches this broker on trees: send it on, hand it over, notify hosts."""
        forwards: list[tuple[int, Header]] = []
        delivered: set[int] = set()
        # host -> the channels that it is notified for
        notified: dict[int, list[int]] = {}
        matched = False
        for c in header.channels:
            if not self._shared.carries(c, self.broker, came_from):
                continue
            onward = Header(HeaderKind.TREE, header.origin, header.hops, (c,))
            served = list(self._served(c, header.origin, cell, classes))
            to: list[int] = []
            if self._plan.channels[c].pruning is Pruning.FILTER:
                matched = True
                away = {self._shared.neighbour(c, self.broker, at) for _, at in served if at != self.broker}
                to = sorted(away - {came_from})
            else:
                matched = matched or bool(self._shared.layout.tables.serves_here[c, self.broker])
                to = [broker for broker in self._shared.neighbours(c, self.broker) if broker != came_from]
            forwards += [self._send(broker, onward) for broker in to]
            for k, at in served:
                if at == self.broker:
                    host = self._shared.hosts[k]
                    if host == self.broker:
                        delivered.add(k)
                    else:
                        notified.setdefault(host, []).append(c)
        for host in sorted(notified):
            channels = tuple(dict.fromkeys(notified[host]))
            note = Header(HeaderKind.NOTE, header.origin, header.hops, channels, target=host)
            forwards.append(self._send(host, note))
        return RouteDecision(tuple(forwards), tuple(sorted(delivered)), matched)

    def _carried(self, header: Header, cell: int, classes: tuple[int, ...]) -> RouteDecision:
        wanted, _ = read_carried(header.tree)
        forwards = tuple(self._branch(header, header.tree))
        return RouteDecision(forwards, self._at_host(header, cell, classes) if wanted else (), wanted)

    def _branch(self, header: Header, tree: bytes) -> Iterator[tuple[int, Header]]:
        for child, below in read_carried(tree)[1]:
            yield self._send(child, replace(header, tree=below), logical=False)

    def _listed(self, header: Header, cell: int, classes: tuple[int, ...]) -> RouteDecision:
        wanted = self.broker in header.destinations
        rest = [broker for broker in header.destinations if broker != self.broker]
        forwards = tuple(self._split(header, rest))
        return RouteDecision(forwards, self._at_host(header, cell, classes) if wanted else (), wanted)

    def _split(self, header: Header, destinations: list[int]) -> Iterator[tuple[int, Header]]:
        groups: dict[int, list[int]] = {}
        for broker in destinations:
            groups.setdefault(self._next_hop(broker), []).append(broker)
        for following, part in groups.items():
            yield self._send(following, replace(header, destinations=tuple(part)), logical=False)

    def _copied(self, header: Header, cell: int, classes: tuple[int, ...]) -> RouteDecision:
        if header.target != self.broker:
            return RouteDecision((self._onward(header),), (), matched=False)
        return RouteDecision((), self._at_host(header, cell, classes))

    def _onward(self, header: Header) -> tuple[int, Header]:
        """A copy's next step: on the channel's tree where it has one, else by next hop."""
        (channel,) = header.channels
        bare = replace(header, label=None)
        if self._plan.channels[channel].tree is None:
            return self._send(self._next_hop(header.target), bare, logical=False)
        return self._send(self._shared.neighbour(channel, self.broker, header.target), bare)

    def _next_hop(self, destination: int) -> int:
        return int(self._shared.layout.toward.predecessor[destination, self.broker])

    # ------------------------------------------------------------------------------------------ parts

    def _served(
        self, channel: int, origin: int, cell: int, classes: tuple[int, ...]
    ) -> Iterator[tuple[int, int]]:
        """(class, serving broker) of an event's entries on a channel, without the publisher's broker."""
        shared = self._shared
        for k in classes:
            if shared.hosts[k] == origin:
                continue
            for at, region in shared.served(channel, k):
                if shared.holds(region, cell):
                    yield k, at

    def _hosted(self, classes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(k for k in classes if self._shared.hosts[k] == self.broker)

    def _at_host(self, header: Header, cell: int, classes: tuple[int, ...]) -> tuple[int, ...]:
        """The classes of this broker that a channel serves with this event."""
        (channel,) = header.channels
        found = {k for k, _ in self._served(channel, header.origin, cell, classes)}
        return tuple(k for k in sorted(found) if self._shared.hosts[k] == self.broker)

    def _send(self, to: int, header: Header, *, logical: bool = True) -> tuple[int, Header]:
        """The first crossing of a hop. A hop that is a path of several links gets a label."""
        hops = header.hops + 1
        if not logical:
            return to, replace(header, hops=hops)
        way = self._plan.leg if header.kind is HeaderKind.LEG else self._plan.path
        path = way(self.broker, to)
        label = (self.broker, to) if len(path) > 2 else None
        return path[1], replace(header, hops=hops, label=label)

    def _pass_on(self, header: Header) -> Iterator[tuple[int, Header]]:
        """The next crossing inside a path, by its label alone; none on a way that is not known here."""
        assert header.label is not None
        path = self._shared.way(header.label, leg=header.kind is HeaderKind.LEG)
        if path is not None and self.broker in path:
            yield path[path.index(self.broker) + 1], replace(header, hops=header.hops + 1)

    def patterns(self, events: pa.RecordBatch) -> Iterator[tuple[tuple[int, tuple[int, ...]], list[int]]]:
        """The distinct (cell, classes) of a batch, with their rows."""
        vacant = self._shared.vacant
        found = self._shared.matcher.match(events)
        grid = self._plan.grid
        cells = [NO_CELL] * events.num_rows if grid is None else grid.locate(events).tolist()
        # rows with equal bytes match alike: what is done per row is one slice and one lookup
        raw, width = found.ids.tobytes(), found.ids.itemsize
        ends = (found.ends * width).tolist()
        alike: dict[tuple[int, bytes], list[int]] = {}
        for row in range(len(found)):
            alike.setdefault((cells[row], raw[ends[row] : ends[row + 1]]), []).append(row)
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for (cell, ids), rows in alike.items():
            classes = tuple(k for k in np.frombuffer(ids, found.ids.dtype).tolist() if not vacant[k])
            groups.setdefault((cell, classes), []).extend(rows)
        yield from groups.items()
