"""Steps of more messages than one write can have are cut between events, never between neighbours."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as Nats
from test_live_log import with_server

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LiveError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control import steps as steps_module
from ramify.overlay.control.frames import decode_entries
from ramify.overlay.control.names import OUT
from ramify.overlay.control.output import Output
from ramify.overlay.control.steps import Node
from ramify.overlay.live.broker import log as log_module
from ramify.overlay.live.broker.inputs import CLIENTS, OF_POSITION, ROWS_POSITION
from ramify.overlay.live.broker.log import OutLog, WriteRefusedError
from ramify.overlay.live.wire.streams import api
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import crossings, running, seeded_world
from worlds import World


@pytest.mark.parametrize("fails", [0.0, 0.25])
def test_a_batch_of_many_trees_is_routed_in_parts_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: float
) -> None:
    """Trees in headers differ from event to event: a batch may come to any number of messages a lane."""
    for module in (log_module, steps_module):
        monkeypatch.setattr(module, "MOST_MESSAGES", 6)
    # a message has few headers, so that there are many
    monkeypatch.setattr(steps_module, "_MOST_NAMED_BYTES", 40)
    chance = random.Random(5)
    commit = OutLog.commit
    stops: Counter[bool] = Counter()

    async def faulty(
        self: OutLog, outputs: Any, positions: Any, epoch: int = 0, *, divisible: bool = True
    ) -> None:
        stops[any(key.endswith(ROWS_POSITION) for key in positions)] += 1
        if chance.random() < fails:
            raise LiveError("no answer")
        await commit(self, outputs, positions, epoch, divisible=divisible)
        if chance.random() < fails:
            raise LiveError("the answer was lost")

    monkeypatch.setattr(OutLog, "commit", faulty)
    world = seeded_world(8, brokers=5, subscriptions=14, events=150)
    plan, wanted = make_plan("explicit", world.problem, 1), world.wanted()

    async def run() -> None:
        async with running(plan, world, tmp_path) as live:
            await live.publish(world, size=40)
            await live.until(len(wanted))
            assert not live.failed(), live.failed()
            assert live.delivered == Counter(dict.fromkeys(wanted, 1))
            assert live.messages() == crossings(plan, world)

    run_to_end(run())
    assert stops[True] > 3, "no batch was cut"


@pytest.mark.parametrize("filters", ["one", "each its own"])
@pytest.mark.parametrize("publisher", ["near", "far"])
def test_a_client_may_have_more_subscriptions_than_a_step_has_messages(
    tmp_path: Path, filters: str, publisher: str
) -> None:
    """With one filter, one event is for ids that no header holds; with many, a batch is a message each."""
    count, long = (400, 240) if filters == "one" else (1_000, 4)
    overlay = Overlay.build("pair", ["v0", "v1"], [Link.symmetric("v0", "v1", 1.0)])
    rows = tuple(
        Subscription(f"{i:0{long}d}", "c", "v0", sql="x >= 0" if filters == "one" else f"x = {i}")
        for i in range(count)
    )
    events = tuple(
        Event(id=f"e{i}", publisher=publisher, attributes={"x": i}, size_bytes=1)
        for i in range(1 if filters == "one" else count)
    )
    world = World(overlay, rows, {"c": "v0", "near": "v0", "far": "v1"}, events)
    plan, wanted = make_plan("mst", world.problem, 1), world.wanted()
    assert len(wanted) == count

    async def run() -> None:
        async with running(plan, world, tmp_path) as live:
            await live.publish(world, size=count)
            await live.until(count, limit_s=240)
            assert not live.failed(), live.failed()
            assert live.delivered == Counter(dict.fromkeys(wanted, 1))

    run_to_end(run())


def test_an_event_that_the_server_refuses_is_rejected_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = OutLog.commit
    world = seeded_world(8, brokers=3, subscriptions=9, events=60)
    plan = make_plan("mst", world.problem, 1)
    wanted = world.wanted()
    bad = next(event for event, _ in sorted(wanted))

    async def refusing(
        self: OutLog, outputs: Any, positions: Any, epoch: int = 0, *, divisible: bool = True
    ) -> None:
        held = [decode_entries(each.payload)[0] for each in outputs if each.payload]
        if any(bad in events.column("id").to_pylist() for events in held):
            raise WriteRefusedError("header size exceeds the maximum")
        await commit(self, outputs, positions, epoch, divisible=divisible)

    monkeypatch.setattr(OutLog, "commit", refusing)

    async def run() -> None:
        async with running(plan, world, tmp_path) as live:
            await live.publish(world, size=20)
            await live.until(sum(event != bad for event, _ in wanted), limit_s=240)
            assert not live.failed(), live.failed()
            assert live.delivered == Counter({pair: 1 for pair in wanted if pair[0] != bad})
            assert sum(broker.counters.rejects for broker in live.brokers.values()) == 1

    run_to_end(run())


@pytest.mark.parametrize("readable", [True, False])
def test_an_event_that_cannot_be_routed_is_rejected_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """A fault of ours that one event brings out, while it is routed or already while it is read."""
    world = seeded_world(8, brokers=3, subscriptions=9, events=60)
    plan = make_plan("mst", world.problem, 1)
    wanted = world.wanted()
    bad = next(event for event, _ in sorted(wanted))
    step = Node.step

    def failing(self: Node, published: Any, linked: Any, epoch: Any = None, rows: Any = (0, None)) -> Any:
        done = step(self, published, linked, epoch, rows)
        told = [step(self, published, [], epoch)] if not readable and published else [done]
        if any(bad in batch.column("id").to_pylist() for each in told for batch in each.published):
            raise ValueError("a fault")
        return done

    monkeypatch.setattr(Node, "step", failing)
    # what cannot be read is lost with its message
    size = 20 if readable else 1

    async def run() -> None:
        async with running(plan, world, tmp_path) as live:
            await live.publish(world, size=size)
            await live.until(sum(event != bad for event, _ in wanted), limit_s=240)
            assert not live.failed(), live.failed()
            assert live.delivered == Counter({pair: 1 for pair in wanted if pair[0] != bad})
            assert sum(broker.counters.rejects for broker in live.brokers.values()) == 1

    run_to_end(run())


def test_only_what_is_too_large_is_refused_for_good(tmp_path: Path) -> None:
    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        await log.load()
        large = {"F": "x" * (70 << 10)}
        for outputs in ([Output("out.link.a", b"", large)], [Output("out.link.a", b"")] * 1_200):
            with pytest.raises((WriteRefusedError, LiveError)) as found:
                await log._write(outputs, {}, {})
            assert isinstance(found.value, WriteRefusedError), found.value
            await log.load()
        # a batch that is not whole, as on a full disk: nobody knows whether it will be
        with pytest.raises(LiveError) as found:
            log._check(b'{"error": {"err_code": 10176, "description": "batch is incomplete"}}', 2)
        assert not isinstance(found.value, WriteRefusedError)

    with_server(tmp_path, what)


def test_a_write_is_bounded_in_bytes_and_a_lane_is_never_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    links = [Output(f"out.link.{i}", b"x" * 70) for i in range(3)]
    clients = [Output(f"out.deliver.{i // 2}", b"x" * 30) for i in range(8)]
    parts = log_module._parts([*clients, *links], 100)
    assert parts[0] == links, "all that neighbours get is in the first write"
    assert [len(part) for part in parts[1:]] == [2, 2, 2, 2]
    assert log_module._parts([*clients, *links]) == [[*links, *clients]]


def test_what_a_neighbour_gets_is_decided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that a crash cut, finished by a plan that was revised meanwhile, sends nothing more."""
    monkeypatch.setattr(log_module, "MOST_MESSAGES", 2)
    made = [Output(f"out.deliver.{name}", b"") for name in "xyz"] + [Output("out.link.a", b"")]
    reached = {CLIENTS: 3, CLIENTS + ROWS_POSITION: 7, CLIENTS + OF_POSITION: 4}

    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        await log.load()
        write = log._write

        async def dying(outputs: Any, *rest: Any, **more: Any) -> None:
            await write(outputs, *rest, **more)
            raise LiveError("died")

        monkeypatch.setattr(log, "_write", dying)
        with pytest.raises(LiveError, match="died"):
            await log.commit(made, reached, epoch=1)
        after = OutLog(connection)
        recovered = await after.load()
        assert dict(recovered.begun or {}) == reached
        await after.claim()
        await after.load()
        await after.commit([*made, Output("out.link.b", b"")], reached, epoch=1)
        told = await api(connection, f"STREAM.INFO.{OUT}", {"subjects_filter": "out.*.*"})
        lanes = ("link.a", "deliver.x", "deliver.y", "deliver.z")
        assert told["state"]["subjects"] == {f"out.{lane}": 1 for lane in lanes}

    with_server(tmp_path, what)
