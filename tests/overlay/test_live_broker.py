"""What a broker takes for a step: in bounds, or exactly the step that was begun before a crash."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from ramify.overlay.live import broker as broker_module
from ramify.overlay.live.broker import CLIENTS, Broker, BrokerConfig, _Input
from ramify.overlay.live.pulling import Pulled
from ramify.overlay.live.steps import Node
from ramify.overlay.live.streams import Endpoint


class Buffer:
    """A puller without a server."""

    def __init__(self, *numbers: int) -> None:
        self.buffer = deque(Pulled(n, "ramify.publish.a", {"L": str(n)}, bytes(4), "") for n in numbers)

    def take(self) -> Pulled:
        return self.buffer.popleft()


def broker_with(positions: dict[str, int], **buffers: Buffer) -> Any:
    broker: Any = Broker(BrokerConfig("b", Endpoint("nats://127.0.0.1:1"), {}), Node("b"))
    broker._log = SimpleNamespace(positions=positions)
    for name, buffer in buffers.items():
        source = _Input(CLIENTS if name == "clients" else name, buffer, None)  # type: ignore[arg-type]
        source.inlet.forget_taken(positions.get(source.key, 0))
        broker._inputs[source.name] = source
    return broker


def taken(broker: Any) -> tuple[list[int], list[int]]:
    async def gather() -> Any:
        return broker._gather()

    published, linked = asyncio.run(gather())
    return [p.position for p in published], [m.number for m in linked]


def test_a_step_takes_the_next_in_order_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "_MOST_STEP_MESSAGES", 3)
    broker = broker_with({CLIENTS: 4}, clients=Buffer(3, 4, 5, 6), v1=Buffer(2, 1, 1, 3, 2))
    assert taken(broker) == ([5, 6], [1])
    assert taken(broker) == ([], [2])


@pytest.mark.parametrize("first", ["clients", "v1"])
def test_a_begun_step_is_taken_whole_whatever_the_bounds_and_the_order(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(broker_module, "_MOST_STEP_MESSAGES", 3)
    monkeypatch.setattr(broker_module, "_MOST_STEP_BYTES", 5)
    buffers = {"clients": Buffer(5, 6, 7, 8), "v1": Buffer(1, 2, 3)}
    ordered = {first: buffers.pop(first)} | buffers
    broker = broker_with({CLIENTS: 4}, **ordered)
    broker._begun = {CLIENTS: 7, "v1": 2, "v2": 0}
    assert taken(broker) == ([5, 6, 7], [1, 2])


def test_a_begun_step_waits_until_all_of_it_is_here() -> None:
    broker = broker_with({CLIENTS: 4}, clients=Buffer(5, 6), v1=Buffer(1))
    broker._begun = {CLIENTS: 7, "v1": 1}
    assert taken(broker) == ([], [])
    assert len(broker._inputs[CLIENTS].puller.buffer) == 2, "nothing was used up"
    broker._begun = {CLIENTS: 6, "v1": 1, "v9": 3}
    assert taken(broker) == ([], []), "an input that is not connected yet"
    broker._begun = {CLIENTS: 6, "v1": 1}
    assert taken(broker) == ([5, 6], [1])
