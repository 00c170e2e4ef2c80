"""Events that take long to read hold up nothing but themselves."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ramify.overlay.control import intake, steps
from ramify.overlay.control.intake import BATCH_TYPE, EVENT_TYPE, ClientMessage
from ramify.overlay.control.steps import Node
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import running, seeded_world


def wide_event(id_: str, attributes: int = 300) -> dict[str, object]:
    own = {f"own-{id_}-{k}": k for k in range(attributes)}
    return {"specversion": "1.0", "id": id_, "source": "s", "type": "t", "topic": "a", "data": own}


def test_the_event_loop_goes_on_while_large_messages_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading of a large message waits here until the loop has turned ten times more."""
    turns, stood = [0], []
    read = intake.take_in_by_client

    def slow(messages: list[ClientMessage], limits: Any) -> Any:
        if sum(len(message.payload) for message in messages) > 128 << 10:
            wanted, enough = turns[0] + 10, threading.Event()
            for _ in range(500):
                if turns[0] >= wanted or enough.wait(0.01):
                    break
            stood.append(turns[0] < wanted)
        return read(messages, limits)

    monkeypatch.setattr(steps, "take_in_by_client", slow)
    world = seeded_world(3, brokers=2, subscriptions=0, events=1)
    wide = [wide_event(str(k)) for k in range(60)]

    async def turn() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0.001)

    async def run() -> None:
        async with running(make_plan("mst", world.problem, 1), world, tmp_path) as live:
            turning = asyncio.create_task(turn())
            client = await live.client("p0")
            payload = json.dumps(wide).encode()
            assert len(payload) > 128 << 10
            await client.accepted(payload, content_type=BATCH_TYPE, id="wide", give_up_s=200)
            async with asyncio.timeout(200):
                while live.brokers["v0"].counters.published < len(wide):
                    await asyncio.sleep(0.01)
            turning.cancel()

    run_to_end(run())
    assert stood
    assert not any(stood), "the loop stood still while a message was read"


def test_a_message_that_is_routed_in_parts_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    read = intake.take_in_by_client

    def counted(some: list[ClientMessage], limits: Any) -> Any:
        calls.append(len(some))
        return read(some, limits)

    monkeypatch.setattr(steps, "take_in_by_client", counted)
    node = Node("v0")
    payload = json.dumps([wide_event(str(k), 3) for k in range(4)]).encode()
    one = ClientMessage("c", payload, BATCH_TYPE, "m", 7)
    for _ in range(3):
        batches, rejected = node.take_in([one])
        assert [batch.num_rows for batch in batches] == [4]
        assert not rejected
    assert calls == [1]
    node.take_in([ClientMessage("c", json.dumps(wide_event("x")).encode(), EVENT_TYPE, "m", 8)])
    assert calls == [1, 1]
    node.forget_intake()
    node.take_in([one])
    assert calls == [1, 1, 1]
