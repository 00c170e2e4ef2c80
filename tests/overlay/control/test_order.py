"""What goes one way comes in the order in which it was published, whatever it is for."""

from collections import deque
from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lane_messages import handed, ids_in
from ramify.content.events.events import events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.intake import ARROW_TYPE, ClientMessage
from ramify.overlay.control.names import DELIVER, name_of
from ramify.overlay.control.output import Output
from ramify.overlay.control.steps import NeighbourMessage, Node, StepResult
from ramify.overlay.routing.plan import RoutingPlan
from ramify.planning.plans.plan import Plan
from ramify.planning.schemes.catalog import make_plan
from worlds import FILTERS, SCHEMA, World, plans, worlds

SCHEMES = [
    "explicit",
    "explicit-list",
    "portfolio",
    "mult",
    "unicast",
    "hub=v0",
    "mirror-all",
    "per-source",
]
SCHEMES += ["semcast", "semcast-merge", "semcast-filter", "kyra", "kyra-mbr", "mbr", "zhao-wu"]
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: the worlds are large, and a failing one tells enough."""
ONE_TREE = ["mst", "unicast", "explicit-list", "spt-best"]
"""Plans whose one channel brings all events of a publisher to a broker by one way."""


class Network:
    """Brokers without servers: their lanes are queues, and a step takes some of what waits, by chance."""

    def __init__(self, plan: Plan, rng: Random) -> None:
        self.plan, self.rng = plan, rng
        routing = RoutingPlan(plan)
        self.nodes = {name: Node(name) for name in plan.overlay.brokers}
        for node in self.nodes.values():
            node.install(0, routing)
            node.flip(0)
        self.published: dict[str, deque[ClientMessage]] = {name: deque() for name in self.nodes}
        self.links: dict[tuple[str, str], deque[Output]] = {}
        # broker -> event -> the ways that it came
        self.ways: dict[str, dict[str, set[tuple[str, ...]]]] = {name: {} for name in self.nodes}
        # (client, subscription) -> events as they came, with the broker
        self.got: dict[tuple[str, str], list[str]] = {}

    def publish(self, world: World) -> None:
        """All events, each publisher's in order, alone or in batches."""
        mine: dict[str, list[int]] = {}
        for row, event in enumerate(world.events):
            mine.setdefault(event.publisher, []).append(row)
        for publisher, rows in mine.items():
            at = world.attachments[publisher]
            while rows:
                count = self.rng.randint(1, 4)
                some, rows = rows[:count], rows[count:]
                payload = encode_events(events_to_batch([world.events[row] for row in some], SCHEMA))
                self.published[at].append(ClientMessage(publisher, payload, ARROW_TYPE))
                for row in some:
                    self.ways[at].setdefault(world.events[row].id, set()).add((at,))

    def run(self) -> None:
        while True:
            ready = {name for name, waiting in self.published.items() if waiting}
            ready |= {to for (_, to), waiting in self.links.items() if waiting}
            if not ready:
                return
            self.step(self.rng.choice(sorted(ready)))

    def step(self, name: str) -> None:
        published = taken(self.published[name], self.rng)
        linked: list[NeighbourMessage] = []
        for (sender, to), waiting in self.links.items():
            if to == name:
                for output in taken(waiting, self.rng):
                    linked.append(NeighbourMessage(sender, 0, output.headers, output.payload))
                    for event in ids_in(output.payload):
                        for way in list(self.ways[sender][event]):
                            if len(way) < 20:
                                self.ways[name].setdefault(event, set()).add((*way, name))
        for done in self.steps(name, published, linked):
            assert not done.rejected
            for output in done.outputs:
                kind, _, to = output.lane.rpartition(".")
                if kind == DELIVER:
                    for event, id_ in handed(output):
                        self.got.setdefault((name_of(to), id_), []).append(event)
                else:
                    self.links.setdefault((name, name_of(to)), deque()).append(output)

    def steps(
        self, name: str, published: list[ClientMessage], linked: list[NeighbourMessage]
    ) -> list[StepResult]:
        """One step; or, of one message, one for each of its events."""
        node = self.nodes[name]
        if len(published) + len(linked) == 1 and self.rng.random() < 0.3:
            rows = node.step(published, linked).readable
            return [node.step(published, linked, rows=(row, row + 1)) for row in range(rows)]
        return [node.step(published, linked)]


def taken(waiting: "deque[ClientMessage] | deque[Output]", rng: Random) -> list:  # type: ignore[type-arg]
    return [
        waiting.popleft()
        for _ in range(rng.randint(0, len(waiting)) if rng.random() < 0.7 else len(waiting))
    ]


@st.composite
def crowded(draw: st.DrawFn) -> World:
    """A world in which clients have several subscriptions, and publishers many events."""
    world = draw(worlds(6))
    events = tuple(replace(event, id=f"{event.id}/{turn}") for turn in range(4) for event in world.events)
    rows = list(world.subscriptions)
    for i, (broker, spelled) in enumerate(
        draw(
            st.lists(
                st.tuples(st.sampled_from(world.overlay.brokers), st.sampled_from(FILTERS)),
                min_size=3,
                max_size=12,
            )
        )
    ):
        rows.append(Subscription(f"m{i}", f"many-{broker}", broker, **spelled))  # type: ignore[arg-type]
    at = world.attachments | {row.client: row.broker for row in rows}
    return World(world.overlay, tuple(rows), at, events)


def assert_ordered(network: Network, world: World, *, whole: bool) -> None:
    """Of each publisher, what came to a subscription by one way came in order; or all of it."""
    place = {event.id: i for i, event in enumerate(world.events)}
    publisher = {event.id: event.publisher for event in world.events}
    for (client, id_), events in network.got.items():
        assert len(set(events)) == len(events), "an event came twice"
        last: dict[object, int] = {}
        for event in events:
            ways = network.ways[world.attachments[client]][event]
            if len(ways) > 1 and not whole:
                continue  # which of the copies was handed over does not show
            key = (publisher[event], None if whole else frozenset(ways))
            assert place[event] > last.get(key, -1), (client, id_, event, events)
            last[key] = place[event]


@pytest.mark.parametrize("scheme", sorted({*SCHEMES, *ONE_TREE}))
@settings(max_examples=5, deadline=None, phases=PHASES)
@given(world=crowded(), seed=st.integers(0, 1000))
def test_schemes_keep_the_order_of_each_publisher(scheme: str, world: World, seed: int) -> None:
    network = Network(make_plan(scheme, world.problem, 1), Random(seed))
    network.publish(world)
    network.run()
    wanted = world.wanted()
    assert {(event, id_) for (_, id_), events in network.got.items() for event in events} == wanted
    assert_ordered(network, world, whole=scheme in ONE_TREE)


@settings(max_examples=30, deadline=None, phases=PHASES)
@given(data=st.data(), world=crowded(), seed=st.integers(0, 1000))
def test_any_plan_keeps_the_order_of_each_publisher(data: st.DataObject, world: World, seed: int) -> None:
    network = Network(data.draw(plans(world)), Random(seed))
    network.publish(world)
    network.run()
    assert_ordered(network, world, whole=False)
