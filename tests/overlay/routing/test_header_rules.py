"""Headers from links: those that routers make pass, and no others can make a broker fail."""

import base64
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event, events_to_batch
from ramify.errors import InputError
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.mixtures import Mixture
from ramify.overlay.control.names import token
from ramify.overlay.control.steps import NeighbourMessage, Node, _headers
from ramify.overlay.routing.header_rules import HeaderRules
from ramify.overlay.routing.headers import Header, HeaderKind, carried_tree
from ramify.overlay.routing.router import Frame, Router, RoutingPlan
from ramify.planning.plans.plan import Plan
from ramify.planning.schemes.catalog import SCHEMES, make_plan
from worlds import World, plans, worlds

NAMES = tuple("hub=v0" if name == "hub" else name for name in SCHEMES)


def routed(world: World, plan: Plan) -> Iterator[tuple[int, int, Header]]:
    """All that crosses a link when a world's events are published: from, to, header."""
    shared = RoutingPlan(plan)
    routers = [Router(shared, k) for k in range(len(plan.overlay))]
    open_ones: list[tuple[int, int | None, Frame]] = []
    for row, event in enumerate(world.events):
        at = plan.overlay.index[world.attachments[event.publisher]]
        open_ones.append((at, None, Frame(world.batch.slice(row, 1))))
    while open_ones:
        here, sender, frame = open_ones.pop()
        for to, onward in routers[here].route(frame, sender).forwards:
            assert onward.header is not None
            header = Header.decode(onward.header.encode())
            if header.kind is HeaderKind.NOTE:
                header = Header(**{**_fields(header), "channels": onward.header.channels})
            yield here, to, header
            open_ones.append((to, here, Frame(onward.events, header)))


def _fields(header: Header) -> dict[str, object]:
    return {name: getattr(header, name) for name in Header.__slots__}


@pytest.mark.parametrize("spec", NAMES)
@settings(max_examples=8)
@given(world=worlds(), seed=st.integers(0, 3))
def test_whatever_a_scheme_sends_passes(spec: str, world: World, seed: int) -> None:
    plan = make_plan(spec, world.problem, seed)
    shared, names = RoutingPlan(plan), plan.overlay.brokers
    rules = [HeaderRules(shared, k) for k in range(len(names))]
    for here, to, header in routed(world, plan):
        rules[to].check(names[here], header)


@st.composite
def planned(draw: st.DrawFn) -> tuple[World, Plan]:
    world = draw(worlds())
    return world, draw(plans(world))


@given(planned())
def test_whatever_any_plan_sends_passes(case: tuple[World, Plan]) -> None:
    world, plan = case
    shared, names = RoutingPlan(plan), plan.overlay.brokers
    rules = [HeaderRules(shared, k) for k in range(len(names))]
    for here, to, header in routed(world, plan):
        rules[to].check(names[here], header)


small = st.integers(-1, 12) | st.integers(0, 1 << 29)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Headers that are well formed and mean nothing, or damaged."""
    kind = draw(st.sampled_from(list(HeaderKind)))
    number = small.map(lambda n: max(n, 0))
    children = {0: draw(st.lists(number.filter(bool), max_size=3, unique=True))}
    header = Header(
        kind,
        draw(number),
        draw(st.integers(0, 255)),
        tuple(draw(st.lists(number, max_size=3))) if kind is HeaderKind.LEG else (draw(number),),
        draw(number),
        carried_tree(0, children, {0}),
        tuple(sorted(draw(st.lists(number, max_size=3)))),
        draw(st.none() | st.tuples(number, number)),
    )
    data = header.encode()
    cut = draw(st.integers(0, len(data)))
    return draw(st.sampled_from([data, data, data, data[:cut], data[:cut] + draw(st.binary(max_size=4))]))


EPOCHS = st.sampled_from(["7", "7", "7", "7", "8", "", "-1", "x", "9" * 5000])
CHANNELS = st.sampled_from(["", "0", "0,0", "1", "99", "x", "-1", "0,1"])


@given(planned(), st.data())
@settings(max_examples=120)
def test_no_header_can_make_a_broker_fail_or_write_where_no_link_is(
    case: tuple[World, Plan], data: st.DataObject
) -> None:
    world, plan = case
    names = plan.overlay.brokers
    here = data.draw(st.integers(0, len(names) - 1))
    node = Node(names[here])
    node.install(7, RoutingPlan(plan))
    node.flip(7)
    ends = plan.overlay.ends.tolist()
    linked = [names[b if a == here else a] for a, b in ends if here in (a, b)]
    good = [(names[a], h) for a, to, h in routed(world, plan) if to == here]
    payload = encode_events(world.batch) if world.batch.num_rows else b""
    messages = []
    for number in range(data.draw(st.integers(1, 6))):
        sender = data.draw(st.sampled_from([*linked, names[here], "stranger"]))
        if good and data.draw(st.booleans()):
            # almost right: one byte of a header that is
            sender, header = data.draw(st.sampled_from(good))
            raw = bytearray(header.encode())
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
            text = base64.b64encode(bytes(raw)).decode()
        else:
            text = base64.b64encode(data.draw(hostile())).decode()
        text = data.draw(st.sampled_from([text, text, text, text[1:], "é", "*"]))
        headers = {"E": data.draw(EPOCHS), "H": text, "C": data.draw(CHANNELS), "N": "1"}
        for name in data.draw(st.lists(st.sampled_from("EHC"), max_size=1)):
            del headers[name]
        messages.append(NeighbourMessage(sender, number, headers, payload))
    done = node.step([], messages)
    lanes = {f"out.link.{token(name)}" for name in linked}
    clients = {f"out.deliver.{token(row.client)}" for row in world.subscriptions}
    assert {output.lane for output in done.outputs} <= lanes | clients
    assert all(entry.reason == "bad_frame" for entry in done.rejected)


def mixed(header: Header) -> Mixture[Header]:
    return Mixture(events_to_batch([Event("1")]), (header,))


def test_a_good_frame_is_taken_and_its_damaged_twin_is_rejected() -> None:
    world, plan, (sender, to, header) = _example()
    names = plan.overlay.brokers
    node = Node(names[to])
    node.install(3, RoutingPlan(plan))
    node.flip(3)
    payload = encode_events(world.batch)
    taken = NeighbourMessage(names[sender], 1, _headers(3, mixed(header)), payload)
    assert not node.step([], [taken]).rejected
    wrong = {
        "channel": {"channels": (999,)},
        "publisher's broker": {"origin": 77},
        "hops": {"hops": 255},
        "no link": {},
    }
    for says, fields in wrong.items():
        bad = _headers(3, mixed(Header(**{**_fields(header), **fields})))
        who = "nobody" if says == "no link" else names[sender]
        done = node.step([], [NeighbourMessage(who, 2, bad, payload), taken])
        assert [entry.reason for entry in done.rejected] == ["bad_frame"]
        assert says in done.rejected[0].detail
        assert done.events_in == world.batch.num_rows
    done = node.step([], [NeighbourMessage(names[sender], 2, _headers(9, mixed(header)), payload)])
    assert "epoch 9 is not known here" in done.rejected[0].detail


@pytest.mark.parametrize("column", ["id", "_size_bytes"])
def test_events_without_id_or_size_are_rejected(column: str) -> None:
    world, plan, (sender, to, header) = _example()
    batch = world.batch
    at = batch.schema.get_field_index(column)
    nulls = pa.nulls(batch.num_rows, batch.schema.field(at).type)
    node = Node(plan.overlay.brokers[to])
    node.install(3, RoutingPlan(plan))
    node.flip(3)
    payload = encode_events(batch.set_column(at, batch.schema.field(at), nulls))
    done = node.step(
        [], [NeighbourMessage(plan.overlay.brokers[sender], 1, _headers(3, mixed(header)), payload)]
    )
    assert [entry.reason for entry in done.rejected] == ["bad_frame"]
    assert column in done.rejected[0].detail


def _example() -> tuple[World, Plan, tuple[int, int, Header]]:
    from running import seeded_world

    world = seeded_world(3, brokers=5, subscriptions=10, events=20)
    plan = make_plan("mult", world.problem, 1)
    return world, plan, next(routed(world, plan))


def test_a_rule_says_what_is_wrong() -> None:
    _, plan, (sender, to, header) = _example()
    rules = HeaderRules(RoutingPlan(plan), to)
    rules.check(plan.overlay.brokers[sender], header)
    with pytest.raises(InputError, match="channel 4000 does not exist"):
        rules.check(
            plan.overlay.brokers[sender],
            Header(**{**_fields(header), "channels": (4000,)}),  # type: ignore[arg-type]
        )
