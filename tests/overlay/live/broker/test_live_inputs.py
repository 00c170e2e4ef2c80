"""What one step takes in is bounded by the work that it may cause, not by bytes alone."""

import asyncio
from collections import deque
from typing import Any

from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE
from ramify.overlay.live.broker.inputs import CLIENTS, Input, Inputs
from ramify.overlay.live.wire.pull import PulledMessage
from ramify.overlay.live.wire.tasks import run_to_end


class Buffer:
    """What `Puller` keeps, without a server."""

    def __init__(self, messages: list[PulledMessage]) -> None:
        self.buffer = deque(messages)

    def take(self) -> PulledMessage:
        return self.buffer.popleft()

    def put_back(self, message: PulledMessage) -> None:
        self.buffer.appendleft(message)


def steps_of(payload: bytes, kind: str, count: int) -> list[int]:
    """How many messages each step takes, when so many alike wait."""

    async def taken() -> list[int]:
        rows = [
            PulledMessage(n, "ramify.publish.h", {"Content-Type": kind}, payload, "$JS.ACK.0")
            for n in range(1, count + 1)
        ]
        puller: Any = Buffer(rows)
        connection: Any = None
        inputs = Inputs(asyncio.Event())
        inputs[CLIENTS] = Input(CLIENTS, puller, connection)
        found = []
        while step := inputs.gather({}, None, 512):
            found.append(len(step))
        return found

    return run_to_end(taken())


def test_a_step_takes_few_messages_with_ten_thousand_records_each() -> None:
    steps = steps_of(b"[" + b",".join([b"1"] * 10_000) + b"]", BATCH_TYPE, 40)
    assert sum(steps) == 40
    assert max(steps) <= 3


def test_a_step_takes_many_messages_with_few_records_and_all_of_arrow() -> None:
    assert steps_of(b'{"specversion": "1.0", "id": "g", "source": "shop"}', BATCH_TYPE, 512) == [512]
    assert steps_of(b"," * 10_000, ARROW_TYPE, 512) == [512]
