"""Random small worlds: an overlay, subscriptions, events and their demand; and random plans for them.

The plans use every part of the plan form in every mixture, sensible or not: whatever is sound in form
must be priced as it is routed. They need not deliver everything; what schemes make must, and is tested
for it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.overlay import Link, Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.plan import (
    Admission,
    All,
    AnyOf,
    Cells,
    Channel,
    ChannelTree,
    Content,
    Entry,
    Everything,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
    Stamped,
)
from ramify.planning.plans.problem import Problem

SCHEMA = EventSchema(
    {"topic": AttributeType.STRING, "x": AttributeType.INT64, "keywords": AttributeType.STRINGS}
)
GRID = Grid((Axis("x", (3, 6)),))
FILTERS = (
    {"sql": "topic = 'a'"},
    {"sql": "topic IN ('a', 'b')"},
    {"sql": "x < 5"},
    {"sql": "x BETWEEN 2 AND 7 AND topic <> 'c'"},
    {"sql": "x IS NULL"},
    {"sql": "topic LIKE 'b%'"},
    {"keywords": ("news",)},
    {"keywords": ("news", "sport")},
    {"pattern": '{"x": [{"numeric": [">", 6]}]}'},
    {"sigma": '{"s": {"topic|startswith": "A"}, "big": {"x|gt": 6}, "condition": "s and not big"}'},
)


@dataclass(frozen=True)
class World:
    """Everything a scheme needs, and the events behind the demand."""

    overlay: Overlay
    subscriptions: tuple[Subscription, ...]
    attachments: dict[str, str]
    events: tuple[Event, ...]

    @cached_property
    def batch(self) -> pa.RecordBatch:
        return events_to_batch(self.events, SCHEMA)

    @cached_property
    def classes(self) -> Classes:
        return Classes.collapse(self.subscriptions, self.overlay, SCHEMA.attributes)

    @cached_property
    def demand(self) -> Demand:
        return tally([self.batch], self.classes, self.overlay, self.attachments, grid=GRID)

    @cached_property
    def problem(self) -> Problem:
        return Problem.of(self.overlay, self.classes, self.demand, self.attachments, grid=GRID)

    def wanted(self) -> set[tuple[str, str]]:
        """(event, subscription) pairs by plain evaluation, one by one: who must get what."""
        filters = {s.id: s.parse(SCHEMA.attributes) for s in self.subscriptions}
        return {
            (event.id, id_)
            for event in self.events
            for id_, filter_ in filters.items()
            if filter_.holds(event.values)
        }


@st.composite
def overlays(draw: st.DrawFn, most: int = 9, *, symmetric: bool = False) -> Overlay:
    """Connected, with ties, links for nothing, and prices that differ by direction."""
    count = draw(st.integers(1, most))
    pairs = {(draw(st.integers(0, i - 1)), i) for i in range(1, count)}
    every = [(i, j) for j in range(count) for i in range(j)]
    pairs |= set(draw(st.lists(st.sampled_from(every), max_size=10)) if every else [])
    prices = st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0])
    links = []
    for a, b in sorted(pairs):
        there = draw(prices)
        back = there if symmetric else draw(prices)
        links.append(Link(f"v{a}", f"v{b}", there, back, draw(st.sampled_from([1.0, 3.0, 10.0]))))
    return Overlay.build("drawn", [f"v{i}" for i in range(count)], links)


@st.composite
def worlds(draw: st.DrawFn, most: int = 9, *, symmetric: bool = False) -> World:
    overlay = draw(overlays(most, symmetric=symmetric))
    brokers = st.sampled_from(overlay.brokers)
    rows = draw(st.lists(st.tuples(brokers, st.sampled_from(FILTERS)), max_size=10))
    subscriptions = tuple(
        Subscription(f"s{i}", f"c{i}", broker, **spelled)  # type: ignore[arg-type]
        for i, (broker, spelled) in enumerate(rows)
    )
    publishers = draw(st.lists(brokers, min_size=1, max_size=4))
    attachments = {f"p{i}": broker for i, broker in enumerate(publishers)}
    attachments |= {row.client: row.broker for row in subscriptions}
    made = st.tuples(
        st.integers(0, len(publishers) - 1),
        st.sampled_from("abc"),
        st.none() | st.integers(0, 9),
        st.lists(st.sampled_from(["news", "sport", "art"]), max_size=2, unique=True),
        st.integers(0, 400),
    )
    first = datetime(2026, 1, 1, tzinfo=UTC)
    events = tuple(
        Event(
            id=f"e{i}",
            publisher=f"p{publisher}",
            time=first + timedelta(seconds=i),
            attributes={"topic": topic, "keywords": tuple(words)} | ({} if x is None else {"x": x}),
            size_bytes=size,
        )
        for i, (publisher, topic, x, words, size) in enumerate(draw(st.lists(made, max_size=12)))
    )
    return World(overlay, subscriptions, attachments, events)


@st.composite
def plans(draw: st.DrawFn, world: World) -> Plan:
    """Any mixture of channels that is sound in form."""
    made = _Drawer(draw, world)
    channels = [made.channel(f"c{i}") for i in range(draw(st.integers(0, 4)))]
    if draw(st.booleans()):
        channels += made.portfolio()
    return Plan(
        "drawn",
        world.problem.overlay,
        world.classes,
        tuple(channels),
        world.attachments,
        made.paths,
        GRID,
        made.regions,
        draw(st.sampled_from(["price", "hops", "latency", "mean_price"])),
    )


class _Drawer:
    def __init__(self, draw: st.DrawFn, world: World) -> None:
        self._draw = draw
        self._world = world
        self._n = len(world.overlay)
        self.paths: dict[tuple[int, int], tuple[int, ...]] = {}
        self._hops = all_pairs(world.overlay)
        cut = draw(st.integers(0, GRID.size))
        order = draw(st.permutations(range(GRID.size)))
        halves = (sorted(order[:cut]), sorted(order[cut:]))
        self.regions = tuple(np.array(half, dtype=np.int32) for half in halves)

    def channel(self, name: str) -> Channel:
        draw = self._draw
        pruning = draw(st.sampled_from(list(Pruning)))
        bare = pruning in (Pruning.TREE, Pruning.DESTINATIONS)
        bare = bare or (pruning is Pruning.COPIES and draw(st.booleans()))
        tree = None if bare else self._tree()
        # copies along a tree need publishers and hosts on it: use all brokers there
        if tree is not None and pruning is Pruning.COPIES:
            tree = self._tree(everyone=True)
        legs = pruning in (Pruning.FILTER, Pruning.NONE) and draw(st.booleans())
        on_tree = set(range(self._n)) if tree is None else set(tree.brokers.tolist())
        publishers = None
        if (not legs and len(on_tree) < self._n) or draw(st.booleans()):
            allowed = sorted(on_tree) if not legs else list(range(self._n))
            publishers = frozenset(draw(st.lists(st.sampled_from(allowed), max_size=4)))
        entry = self._entry(sorted(on_tree)) if legs else Entry()
        proxies = pruning in (Pruning.FILTER, Pruning.NONE)
        return Channel(
            name,
            Admission(self._content(), publishers),
            self._serves(sorted(on_tree), proxies),
            pruning,
            tree,
            entry,
        )

    def portfolio(self) -> list[Channel]:
        """Stamped channels that differ in their trees."""
        serves = Serves.at_hosts(self._some_classes(), self._world.classes)
        return [
            Channel(
                f"t{i}",
                Admission(Stamped()),
                serves,
                self._draw(st.sampled_from([Pruning.FILTER, Pruning.FILTER, Pruning.NONE])),
                self._tree(everyone=True),
            )
            for i in range(self._draw(st.integers(1, 3)))
        ]

    def _tree(self, *, everyone: bool = False) -> ChannelTree:
        draw = self._draw
        order = draw(st.permutations(range(self._n)))
        count = self._n if everyone else draw(st.integers(1, self._n))
        links = []
        for i in range(1, count):
            above = order[draw(st.integers(0, i - 1))]
            links.append((above, order[i]))
            self._join(above, order[i])
        root = order[0] if count == 1 or draw(st.booleans()) else None
        return ChannelTree(np.array(links, dtype=np.int32).reshape(-1, 2), root)

    def _join(self, u: int, v: int) -> None:
        """A path where there is no link, in one direction only."""
        path = tuple(self._hops.path(u, v))
        if len(path) > 2 and (v, u) not in self.paths:
            self.paths[u, v] = path

    def _entry(self, on_tree: list[int]) -> Entry:
        targets = np.full(self._n, -1, dtype=np.int32)
        for origin in range(self._n):
            if origin not in on_tree or self._draw(st.booleans()):
                targets[origin] = self._draw(st.sampled_from(on_tree))
                if targets[origin] != origin:
                    self._join(origin, int(targets[origin]))
        return Entry(targets)

    def _some_classes(self) -> list[int]:
        count = len(self._world.classes)
        if not count:
            return []
        return self._draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))

    def _serves(self, on_tree: list[int], proxies: bool) -> Serves:
        rows: list[tuple[int, int, int]] = []
        for k in self._some_classes():
            host = int(self._world.classes.broker[k])
            split = proxies and self._draw(st.integers(0, 3)) == 0
            for region in (0, 1) if split else (self._draw(st.sampled_from([-1, -1, 0])),):
                at = host
                if host not in on_tree or (proxies and self._draw(st.integers(0, 2)) == 0):
                    if not proxies:
                        continue
                    at = self._draw(st.sampled_from(on_tree))
                if at != host:
                    self._join(at, host)
                rows.append((k, at, region))
        columns = np.array(rows, dtype=np.int32).reshape(-1, 3).T
        return Serves(*(column.copy() for column in columns))

    def _content(self) -> Content:
        draw = self._draw
        cells = st.lists(st.integers(0, GRID.size - 1), unique=True).map(
            lambda ids: Cells(np.array(sorted(ids), dtype=np.int32))
        )
        return draw(
            st.sampled_from([Everything(), AnyOf(), AnyOf()]) | cells | self._expressions().map(Holds)
        )

    def _expressions(self) -> st.SearchStrategy[Expression]:
        count = len(self._world.classes)
        ids = st.lists(st.integers(0, max(count - 1, 0)), max_size=3 if count else 0)
        terms = ids.map(lambda given: Match(tuple(given)))
        return st.recursive(
            terms,
            lambda parts: (
                st.lists(parts, max_size=3).map(lambda given: All(tuple(given)))
                | st.lists(parts, max_size=3).map(lambda given: Some(tuple(given)))
                | parts.map(Negation)
            ),
            max_leaves=5,
        )
