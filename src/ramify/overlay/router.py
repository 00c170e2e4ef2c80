"""The router of one broker: where an event goes next, and who gets it here, by the plan alone.

Owns the rules of `ramify.planning.plan` for one broker. It is pure: no clock, no socket, no randomness;
the same frame gives the same answer. Two drivers run it: the simulator, and the live broker.

    route(frame, sender)   batches in, batches out: what drivers call
    decide(...)            one event, as far as routing can tell events apart: what `route` calls per
                           pattern

Events with the same header, cell and classes go the same way, so decisions are kept and found again.

Where several channels bring an event to the same class, it is handed over once. A driver that sees all of
an event's way looks itself (by event id); `may_repeat` tells for which classes. A live broker would have
to remember what it handed over, through crashes and however late a copy comes. It asks for `once`
instead: every broker holds the whole plan, so it can tell which of the copies hands over, and no memory
is needed.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.matcher import Matcher
from ramify.network.terminals import TerminalSets
from ramify.overlay.headers import Header, Kind, carried_tree, read_carried
from ramify.planning.demand import NO_CELL, Demand
from ramify.planning.layout import Layout, layout_of
from ramify.planning.plan import AnyOf, Cells, Everything, Holds, Plan, Pruning, Stamped, evaluate
from ramify.planning.walk import Walker

__all__ = ["Decision", "Delivery", "Frame", "Routed", "Router", "RoutingPlan"]

MOST_DECISIONS = 65_536
"""Decisions that a router remembers; then it starts over."""


@dataclass(frozen=True, slots=True)
class Decision:
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
class Routed:
    """What becomes of a frame. `matchings` counts the events that were matched."""

    forwards: tuple[tuple[int, Frame], ...]
    deliveries: tuple[Delivery, ...]
    matchings: int


class RoutingPlan:
    """A plan made ready for routing; the routers of one process share it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.layout: Layout = layout_of(plan)
        self._walker = Walker(self.layout)
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        self._regions = [frozenset(cells.tolist()) for cells in plan.regions]
        self.hosts: list[int] = plan.classes.broker.tolist()

    @cached_property
    def matcher(self) -> Matcher:
        """All filters; its ids are class ids."""
        return Matcher(self.plan.classes.filters)

    @cached_property
    def entries(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """(channel, class) -> the brokers that serve it there, each with its region."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for c, channel in enumerate(self.plan.channels):
            parts = (channel.serves.classes, channel.serves.at, channel.serves.region)
            for k, at, region in zip(*(part.tolist() for part in parts), strict=True):
                found.setdefault((c, k), []).append((at, region))
        return found

    @cached_property
    def serving(self) -> list[list[int]]:
        """The channels that serve each class."""
        found: list[list[int]] = [[] for _ in self.hosts]
        for c, k in self.entries:
            found[k].append(c)
        return found

    @cached_property
    def open_channels(self) -> list[int]:
        """The channels that admit events by something else than a class they serve."""
        channels = enumerate(self.plan.channels)
        return [c for c, channel in channels if not isinstance(channel.admits.content, AnyOf)]

    def admitted(self, origin: int, cell: int, classes: tuple[int, ...]) -> list[int]:
        """The channels that carry an event published at a broker, ascending."""
        matched = frozenset(classes)
        touched = {
            c
            for k in classes
            for c in self.serving[k]
            if self._admits(c, origin) and any(self.holds(region, cell) for _, region in self.entries[c, k])
        }
        taken = {c for c in touched if isinstance(self.plan.channels[c].admits.content, AnyOf)}
        stamped = False
        for c in self.open_channels:
            if not self._admits(c, origin):
                continue
            match self.plan.channels[c].admits.content:
                case Everything():
                    taken.add(c)
                case Cells(cells):
                    at = int(np.searchsorted(cells, cell))
                    if at < len(cells) and cells[at] == cell:
                        taken.add(c)
                case Holds(expression):
                    if evaluate(expression, matched):
                        taken.add(c)
                case Stamped():
                    stamped = stamped or c in touched
        if stamped:
            chosen = self.stamped(origin, cell, classes)
            assert chosen is not None, "some stamped channel serves a matching class"
            taken.add(chosen)
        return sorted(taken)

    def is_stamped(self, channel: int) -> bool:
        """Whether a channel carries only the events that the publisher's broker chose it for."""
        return isinstance(self.plan.channels[channel].admits.content, Stamped)

    def _admits(self, channel: int, origin: int) -> bool:
        allowed = self.plan.channels[channel].admits.publishers
        return allowed is None or origin in allowed

    def holds(self, region: int, cell: int) -> bool:
        """Whether an entry for a region counts for an event in a cell."""
        return region < 0 or cell in self._regions[region]

    def stamped(self, origin: int, cell: int, classes: tuple[int, ...]) -> int | None:
        """The stamped channel that carries an event, or None. By the pricer's own code: ties must agree."""
        one = Demand.of([(origin, classes, 1, 0)], cells=[cell])
        rides = self._walker.rides(one, 0, 1)
        for channel in rides.channel[rides.chosen != 0].tolist():
            if isinstance(self.plan.channels[channel].admits.content, Stamped):
                return int(channel)
        return None

    def neighbour(self, channel: int, here: int, there: int) -> int:
        """The next broker from `here` on a channel's tree on the way to `there`. O(log degree)."""
        tree = self.layout.trees[channel]
        assert tree is not None
        position, end = self._span(channel)
        if not position[here] <= position[there] < end[here]:
            return int(tree.parent[here])
        below = self.children(channel)[here]
        return below[bisect_right([position[child] for child in below], position[there]) - 1]

    def neighbours(self, channel: int, here: int) -> list[int]:
        """All logical neighbours on a channel's tree."""
        tree = self.layout.trees[channel]
        assert tree is not None
        above = int(tree.parent[here])
        return ([above] if above >= 0 else []) + self.children(channel)[here]

    def children(self, channel: int) -> dict[int, list[int]]:
        """The brokers below each broker of a channel's tree, in preorder."""
        if channel not in self._below:
            tree = self.layout.trees[channel]
            assert tree is not None
            below: dict[int, list[int]] = {broker: [] for broker in tree.order.tolist()}
            for above, child in tree.links().tolist():
                below[above].append(child)
            self._below[channel] = below
        return self._below[channel]

    @cached_property
    def _below(self) -> dict[int, dict[int, list[int]]]:
        return {}

    def _span(self, channel: int) -> tuple[list[int], list[int]]:
        """Preorder positions and ends: `there` hangs below `here` when its position is within."""
        if channel not in self._spans:
            tree = self.layout.trees[channel]
            assert tree is not None
            n = len(tree.parent)
            position, size = [-1] * n, [1] * n
            for at, broker in enumerate(tree.order.tolist()):
                position[broker] = at
            for broker in tree.order[:0:-1].tolist():
                size[int(tree.parent[broker])] += size[broker]
            self._spans[channel] = position, [a + b for a, b in zip(position, size, strict=True)]
        return self._spans[channel]


class Router:
    """One broker's part of a plan."""

    def __init__(self, routing: RoutingPlan, broker: int) -> None:
        self._shared = routing
        self._plan = routing.plan
        self.broker = broker
        self._kept: dict[tuple[Header | None, int, int, tuple[int, ...]], Decision] = {}
        self._owned: dict[tuple[Header, int, int, tuple[int, ...]], tuple[int, ...]] = {}

    @cached_property
    def may_repeat(self) -> frozenset[int]:
        """The classes of this broker that an event may be brought to more than once.

        By two channels that serve them; or by a notification, which is for all matching classes here.
        """
        mine = np.flatnonzero(self._plan.classes.broker == self.broker).tolist()
        here = set(mine)
        entries = self._shared.entries.items()
        if any(k in here and at != self.broker for (_, k), served in entries for at, _ in served):
            return frozenset(mine)
        return frozenset(k for k in mine if len(self._shared.serving[k]) > 1)

    def route(self, frame: Frame, sender: int | None, *, once: bool = False) -> Routed:
        """Where the events of a frame go. `sender` is the neighbour it came from, None for a client.

        With `once`, of all copies of an event exactly one hands it to each class (see the module).
        """
        header = frame.header
        if header is not None and header.label is not None and header.label[1] != self.broker:
            following, onward = self._pass_on(header)
            return Routed(((following, Frame(frame.events, onward)),), (), 0)
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
        return Routed(
            tuple(
                (to, Frame(_take(frame.events, rows), onward)) for (to, onward), rows in forwards.items()
            ),
            tuple(Delivery(k, np.array(sorted(rows))) for k, rows in sorted(deliveries.items())),
            matchings,
        )

    def decide(
        self, header: Header | None, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> Decision:
        """What becomes of an event that matches `classes` (ascending) and lies in `cell`."""
        key = (header, -1 if sender is None else sender, cell, classes)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MOST_DECISIONS:
                self._kept.clear()
            found = self._kept[key] = self._decide(header, sender, cell, classes)
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
            if len(self._owned) >= MOST_DECISIONS:
                self._owned.clear()
            found = self._owned[key] = self._find_owned(header, sender, cell, classes)
        return found

    def _find_owned(
        self, header: Header, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> tuple[int, ...]:
        shared = self._shared
        admitted = shared.admitted(header.origin, cell, classes)
        stamped = [c for c in header.channels if shared.is_stamped(c)]
        if stamped:
            # the publisher's broker chose it, perhaps before a change that is known here: its word counts
            admitted = [c for c in admitted if not shared.is_stamped(c)] + stamped
        came_by = header.label[0] if header.label is not None else sender
        at = came_by if header.kind is Kind.NOTE else self.broker
        mine = []
        for k in self._hosted(classes):
            ways = [
                (server != self.broker, c, server)
                for c in admitted
                for server, region in shared.entries.get((c, k), ())
                if shared.holds(region, cell)
            ]
            if ways and min(ways)[2] == at and min(ways)[1] in header.channels:
                mine.append(k)
        return tuple(mine)

    def _decide(
        self, header: Header | None, sender: int | None, cell: int, classes: tuple[int, ...]
    ) -> Decision:
        if header is None:
            return self._publish(cell, classes)
        if header.label is not None:
            if header.label[1] != self.broker:
                return Decision((self._pass_on(header),), (), matched=False)
            sender = header.label[0]
        match header.kind:
            case Kind.TREE | Kind.LEG:
                came_from = sender if header.kind is Kind.TREE else None
                return self._arrive(header, came_from, cell, classes)
            case Kind.NOTE:
                return Decision((), self._hosted(classes))
            case Kind.CARRIED:
                return self._carried(header, cell, classes)
            case Kind.LIST:
                return self._listed(header, cell, classes)
            case Kind.COPY:
                return self._copied(header, cell, classes)

    # ---------------------------------------------------------------------- at the publisher's broker

    def _publish(self, cell: int, classes: tuple[int, ...]) -> Decision:
        enters: dict[int, list[int]] = {}
        for channel in self._shared.admitted(self.broker, cell, classes):
            target = self._plan.channels[channel].entry.target(self.broker)
            enters.setdefault(target, []).append(channel)
        forwards: list[tuple[int, Header]] = []
        for target, channels in enters.items():
            if target == self.broker:
                forwards += self._start(channels, cell, classes)
            else:
                header = Header(Kind.LEG, self.broker, channels=tuple(channels), target=target)
                forwards.append(self._send(target, header))
        return Decision(tuple(forwards), self._hosted(classes))

    def _start(
        self, channels: list[int], cell: int, classes: tuple[int, ...]
    ) -> Iterator[tuple[int, Header]]:
        """Messages of the channels that an event enters right here, at the publisher's broker."""
        here = self.broker
        on_trees = [c for c in channels if self._plan.channels[c].pruning in (Pruning.FILTER, Pruning.NONE)]
        if on_trees:
            together = Header(Kind.LEG, here, channels=tuple(on_trees), target=here)
            yield from self._arrive(together, None, cell, classes).forwards
        for c in channels:
            hosts = sorted({self._shared.hosts[k] for k, *_ in self._served(c, here, cell, classes)})
            if not hosts or c in on_trees:
                continue
            match self._plan.channels[c].pruning:
                case Pruning.TREE:
                    yield from self._branch(Header(Kind.CARRIED, here, channels=(c,)), self._steiner(hosts))
                case Pruning.DESTINATIONS:
                    yield from self._split(Header(Kind.LIST, here, channels=(c,)), hosts)
                case Pruning.COPIES:
                    for host in hosts:
                        yield self._onward(Header(Kind.COPY, here, channels=(c,), target=host))

    def _steiner(self, hosts: list[int]) -> bytes:
        """The carried tree from here to the hosts, by the plan's deterministic rule."""
        trees = self._shared.layout.steiner.trees(TerminalSets.of([(self.broker, hosts)]), "insert")
        children: dict[int, list[int]] = {}
        for above, below in zip(trees.parent.tolist(), trees.child.tolist(), strict=True):
            children.setdefault(above, []).append(below)
        return carried_tree(self.broker, children, set(hosts))

    # ------------------------------------------------------------------------------------- on the way

    def _arrive(
        self, header: Header, came_from: int | None, cell: int, classes: tuple[int, ...]
    ) -> Decision:
        """An event reaches this broker on trees: send it on, hand it over, notify hosts."""
        forwards: list[tuple[int, Header]] = []
        delivered: set[int] = set()
        # host -> the channels that it is notified for
        notified: dict[int, list[int]] = {}
        matched = False
        for c in header.channels:
            onward = Header(Kind.TREE, header.origin, header.hops, (c,))
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
            note = Header(Kind.NOTE, header.origin, header.hops, channels, target=host)
            forwards.append(self._send(host, note))
        return Decision(tuple(forwards), tuple(sorted(delivered)), matched)

    def _carried(self, header: Header, cell: int, classes: tuple[int, ...]) -> Decision:
        wanted, _ = read_carried(header.tree)
        forwards = tuple(self._branch(header, header.tree))
        return Decision(forwards, self._at_host(header, cell, classes) if wanted else (), wanted)

    def _branch(self, header: Header, tree: bytes) -> Iterator[tuple[int, Header]]:
        for child, below in read_carried(tree)[1]:
            yield self._send(child, replace(header, tree=below), logical=False)

    def _listed(self, header: Header, cell: int, classes: tuple[int, ...]) -> Decision:
        wanted = self.broker in header.destinations
        rest = [broker for broker in header.destinations if broker != self.broker]
        forwards = tuple(self._split(header, rest))
        return Decision(forwards, self._at_host(header, cell, classes) if wanted else (), wanted)

    def _split(self, header: Header, destinations: list[int]) -> Iterator[tuple[int, Header]]:
        groups: dict[int, list[int]] = {}
        for broker in destinations:
            groups.setdefault(self._next_hop(broker), []).append(broker)
        for following, part in groups.items():
            yield self._send(following, replace(header, destinations=tuple(part)), logical=False)

    def _copied(self, header: Header, cell: int, classes: tuple[int, ...]) -> Decision:
        if header.target != self.broker:
            return Decision((self._onward(header),), (), matched=False)
        return Decision((), self._at_host(header, cell, classes))

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
            for at, region in shared.entries.get((channel, k), ()):
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
        path = self._plan.path(self.broker, to)
        label = (self.broker, to) if len(path) > 2 else None
        return path[1], replace(header, hops=hops, label=label)

    def _pass_on(self, header: Header) -> tuple[int, Header]:
        """The next crossing inside a path, by its label alone."""
        assert header.label is not None
        path = self._plan.path(*header.label)
        return path[path.index(self.broker) + 1], replace(header, hops=header.hops + 1)

    def patterns(self, events: pa.RecordBatch) -> Iterator[tuple[tuple[int, tuple[int, ...]], list[int]]]:
        """The distinct (cell, classes) of a batch, with their rows."""
        vacant = self._plan.classes.vacant
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


def _take(events: pa.RecordBatch, rows: list[int]) -> pa.RecordBatch:
    if len(rows) == events.num_rows:
        return events
    return events.take(pa.array(sorted(rows)))
