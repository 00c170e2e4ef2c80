"""Steps of matchmaking without a server: steps that are lost, packets in pieces, input that is bad."""

import random
from collections import deque
from functools import partial

import pytest

from lane_messages import handed
from ramify.content.events.events import Event, events_to_batch
from ramify.errors import InputError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.intake import ARROW_TYPE, ClientMessage
from ramify.overlay.control.names import DELIVER, LINK, MATCH, name_of
from ramify.overlay.control.output import Output
from ramify.overlay.control.records import FilterText, ForwardedRequest, Request
from ramify.overlay.control.steps import NeighbourMessage
from ramify.overlay.matchmaking.messages import Count, Packet, encode_packet
from ramify.overlay.matchmaking.places import PER_SOURCE, SHARED, places_of_overlay
from ramify.overlay.matchmaking.simulate import MatchNetwork
from ramify.overlay.matchmaking.step import BAD_PACKET, OUTSIDE_ADVERTISEMENT, MatchNode
from worlds import SCHEMA

LINKS = [("v0", "v1"), ("v1", "v2"), ("v2", "v3"), ("v3", "v0"), ("v1", "v4"), ("v4", "v5"), ("v5", "v2")]
OVERLAY = Overlay.build("ring", [f"v{i}" for i in range(6)], [Link(a, b, 1.0, 2.0, 1.0) for a, b in LINKS])


class Wires:
    """Nodes and the lanes between them. A step is lost at times, before or after it was written: then the
    node goes on from what was saved."""

    def __init__(self, trees: str, seed: int, most_bytes: int) -> None:
        self.places = places_of_overlay(OVERLAY, trees)
        self.rng = random.Random(seed)
        self.most_bytes = most_bytes
        self.nodes = {name: self.node(name) for name in self.places}
        self.saved: dict[str, bytes | None] = dict.fromkeys(self.places)
        self.lanes: dict[tuple[str, str], deque[NeighbourMessage]] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.got: list[tuple[str, str]] = []
        self.rejected: list[tuple[str | None, str]] = []

    def node(self, name: str) -> MatchNode:
        node = MatchNode(self.places[name])
        node.most_bytes = self.most_bytes
        return node

    def commit(self, name: str, outputs: list[Output]) -> bool:
        """False when the step is lost."""
        fate = self.rng.random()
        if fate < 0.15:
            if fate < 0.05:
                self.nodes[name] = self.node(name)
            self.nodes[name].load(self.saved[name])
            return False
        state = [output.payload for output in outputs if output.lane == MATCH]
        if state:
            self.saved[name] = b"".join(state)
        for output in outputs:
            kind, _, to = output.lane.rpartition(".")
            if kind == LINK:
                lane = name, name_of(to)
                self.numbers[lane] = self.numbers.get(lane, 0) + 1
                linked = NeighbourMessage(name, self.numbers[lane], output.headers, output.payload)
                self.lanes.setdefault(lane, deque()).append(linked)
            elif kind == DELIVER:
                self.got += handed(output)
        if fate < 0.25:
            # written, but nobody said so
            self.nodes[name].load(self.saved[name])
        else:
            self.nodes[name].settled()
        return True

    def ask(self, name: str, client: str, *requests: Request) -> None:
        passed = [ForwardedRequest(name, client, request) for request in requests]
        while passed:
            answers, outputs = self.nodes[name].apply(passed)
            assert all(answer.ok for answer in answers), answers
            if not outputs or self.commit(name, outputs):
                passed = passed[len(answers) :]

    def publish(self, name: str, client: str, *events: Event) -> None:
        payload = encode_events(events_to_batch(list(events), SCHEMA))
        published = ClientMessage(client, payload, ARROW_TYPE, None, 7)
        while True:
            done = self.nodes[name].step([published], [])
            if self.commit(name, done.outputs):
                self.rejected += [(each.event_id, each.reason) for each in done.rejected]
                return

    def run(self) -> None:
        while self.lanes:
            lane = self.rng.choice(sorted(self.lanes))
            waiting = self.lanes[lane]
            some = [waiting[i] for i in range(min(len(waiting), self.rng.randint(1, 4)))]
            done = self.nodes[lane[1]].step([], some)
            assert not done.rejected
            assert done.fits
            if self.commit(lane[1], done.outputs):
                for _ in some:
                    waiting.popleft()
                if not waiting:
                    del self.lanes[lane]


def event(id_: str, publisher: str, x: int) -> Event:
    return Event(id=id_, publisher=publisher, attributes={"topic": "a", "x": x}, size_bytes=1)


@pytest.mark.parametrize("most_bytes", [1 << 20, 400_000])
@pytest.mark.parametrize("trees", [SHARED, PER_SOURCE])
@pytest.mark.parametrize("seed", range(8))
def test_lost_steps_change_nothing(
    trees: str, seed: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most_bytes < 1 << 20:
        # packets and states in many pieces
        monkeypatch.setattr("ramify.overlay.matchmaking.step._PIECE_BYTES", 40)
    wires = Wires(trees, seed, most_bytes)
    rng = random.Random(seed)
    names = sorted(wires.places)
    ads: dict[str, set[int]] = {name: set() for name in names}
    subs: dict[str, set[int]] = {name: set() for name in names}
    for _ in range(25):
        name, low = rng.choice(names), rng.randrange(8)
        kept, op = rng.choice([(ads, "advertise"), (subs, "subscribe")])
        if low in kept[name]:
            kept[name].remove(low)
            wires.ask(name, f"c-{name}", Request(f"un{op}", f"i{low}"))
        else:
            kept[name].add(low)
            spelled = FilterText(sql=f"x BETWEEN {low} AND {low + 2}")
            wires.ask(name, f"c-{name}", Request(op, f"i{low}", spelled))
        if rng.random() < 0.3:
            wires.run()
    wires.run()
    _same_as_simulated(wires)
    for name in names:
        wires.publish(name, f"c-{name}", *(event(f"{name}.{x}", "", x) for x in range(10)))
    wires.run()
    inside = {
        (name, x) for name in names for x in range(10) if any(low <= x <= low + 2 for low in ads[name])
    }
    expected = [
        (f"{name}.{x}", f"c-{to}/i{low}")
        for name, x in inside
        for to in names
        for low in subs[to]
        if low <= x <= low + 2
    ]
    assert sorted(wires.got) == sorted(expected)
    outside = [
        (f"{name}.{x}", OUTSIDE_ADVERTISEMENT)
        for name in names
        for x in range(10)
        if (name, x) not in inside
    ]
    assert sorted(wires.rejected, key=str) == sorted(outside, key=str)


def _same_as_simulated(wires: Wires) -> None:
    network = MatchNetwork(wires.places.values(), {})
    for name, node in wires.nodes.items():
        network.advertise(name, *node.match.state.own_ads.values())
        network.subscribe(name, *node.match.state.own_subs.values())
    network.run()
    for name, node in wires.nodes.items():
        assert node.match.state.stored == network.brokers[name].state.stored
        held = [_held(each) for each in (node.match, network.brokers[name])]
        assert held[0] == held[1]


def _held(broker: object) -> set[tuple[str, str, str, str]]:
    state = broker.state  # type: ignore[attr-defined]
    return {(c.origin, c.ad.id, c.sub.id, c.to) for held in state.channels.values() for c in held.values()}


def test_an_event_before_the_end_of_its_channel_arrives_and_one_after_it_does_not() -> None:
    """The packet with the end and the events around it are one step."""
    wires = Wires(SHARED, 0, 1 << 20)
    wires.rng.random = partial(lambda: 1.0)  # type: ignore[method-assign]
    everything = FilterText(sql="x >= 0")
    # v4 and v5 are neighbours in the tree, or have one between
    wires.ask("v0", "p", Request("advertise", "a", everything))
    wires.ask("v5", "s", Request("subscribe", "s", everything))
    wires.run()
    wires.publish("v0", "p", event("before", "p", 1))
    wires.ask("v0", "p", Request("unadvertise", "a"))
    wires.publish("v0", "p", event("after", "p", 1))
    assert [id_ for id_, _ in wires.rejected] == ["after"]
    (lane,) = wires.lanes
    # all that waits on the lane in one step, all the way
    while wires.lanes:
        lane = min(wires.lanes)
        some = list(wires.lanes.pop(lane))
        done = wires.nodes[lane[1]].step([], some)
        assert wires.commit(lane[1], done.outputs)
    assert wires.got == [("before", "s/s")]


def test_a_packet_that_cannot_be_is_rejected_and_the_rest_goes_on() -> None:
    node = MatchNode(places_of_overlay(OVERLAY, SHARED)["v0"])
    sender = node.place.neighbours[0]
    before = node.match.snapshot()
    good = NeighbourMessage(sender, 1, {"M": "1/1"}, encode_packet(Packet(1, [Count(sender, 2)])))
    bad = [
        NeighbourMessage(sender, 2, {"M": "1/1"}, b"nonsense"),
        NeighbourMessage(sender, 3, {"M": "x/y"}, b""),
        NeighbourMessage(sender, 4, {"M": "2/2"}, b""),
        NeighbourMessage(sender, 5, {"M": "1/1"}, encode_packet(Packet(9, [Count(sender, 3)]))),
    ]
    alone = node.step([], bad)
    assert [each.reason for each in alone.rejected] == [BAD_PACKET] * 4
    node.load(None)
    done = node.step([], [good, *bad])
    assert [each.position for each in done.rejected] == [2, 3, 4, 5]
    assert done.changed
    assert node.match.state.advertised[sender] == 2
    stray = NeighbourMessage(
        sender, 6, {"O": "v0", "N": "1"}, encode_events(events_to_batch([event("e", "p", 1)], SCHEMA))
    )
    assert [each.reason for each in node.step([], [stray]).rejected] == ["bad_frame"]
    assert node.match.snapshot() == before, "nothing was said to be written"


def test_a_state_of_another_place_is_refused() -> None:
    shared, per_source = (places_of_overlay(OVERLAY, trees) for trees in (SHARED, PER_SOURCE))
    node = MatchNode(shared["v1"])
    _, outputs = node.apply(
        [ForwardedRequest("v1", "p", Request("advertise", "a", FilterText(sql="x = 1")))]
    )
    saved = b"".join(output.payload for output in outputs if output.lane == MATCH)
    with pytest.raises(InputError, match="overlay or the trees were changed"):
        MatchNode(per_source["v1"]).load(saved)
    with pytest.raises(InputError, match="not what a matchmaking broker keeps"):
        node.load(saved[:9] + b"x" + saved[9:])


def test_requests_may_be_made_again_and_are_answered_by_what_is_kept() -> None:
    node = MatchNode(places_of_overlay(OVERLAY, SHARED)["v1"])

    def ask(op: str, id_: str = "", sql: str | None = None, client: str = "c") -> object:
        filter_ = None if sql is None else FilterText(sql=sql)
        (answer,), _ = node.apply([ForwardedRequest("v1", client, Request(op, id_, filter_), "quota")])
        node.settled()
        if op == "list":
            assert answer.client is not None
            return sorted([*answer.client.subscriptions, *answer.client.advertisements])
        return answer.error.code if answer.error else answer.ok

    assert ask("subscribe", "s", "x = 1") is True
    assert ask("subscribe", "s", "x = 1") is True
    assert ask("subscribe", "s", "x = 2") == "exists"
    assert ask("advertise", "a", "x = 1") is True
    assert ask("advertise", "a", "x = 2") == "exists"
    assert ask("list") == ["a", "c/s"]
    assert ask("suspend") is True
    assert not node.match.state.own_subs
    assert ask("resume") is True
    assert list(node.match.state.own_subs) == ["v1/c/s"]
    assert ask("unsubscribe", "s") is True
    assert ask("unsubscribe", "s") is True
    assert ask("unsubscribe", "t") == "unknown"
    assert ask("unadvertise", "a") is True
    assert ask("unadvertise", "a") is True
    assert ask("list") == []
    assert not node.clients
