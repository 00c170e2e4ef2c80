"""Samples of what clients publish: chosen by the event's id, shipped to the control server.

Owns the choice and the shipping. The first broker of an event decides by a hash of its id, so the choice is
the same whenever and wherever it is made; an event is taken once it is in the log, so a redelivered one
is not sampled twice. Batches go to the stream SAMPLES of the control server, without bodies, each with an
id that lets the server drop one that is sent again.

Samples are for planning: when the control server is away for long, or this process dies, some are lost
(`lost` counts those that are known). They never hold up routing.
"""

import asyncio
import contextlib
import uuid
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import nats.errors
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from nats.aio.client import Client as Nats

from ramify.content.events.events import BODY
from ramify.errors import InputError, LiveError
from ramify.overlay.control.frames import absent, concat, encode_events, split
from ramify.overlay.control.names import token

__all__ = ["DEFAULT_PROBABILITY", "Sampler", "chosen", "sampled"]

DEFAULT_PROBABILITY = 0.03

_SHIP_EVERY_S = 2.0
_MOST_FRAME_BYTES = 512 << 10
_MOST_WAITING_EVENTS = 50_000
_MOST_WAITING_FRAMES = 64


def chosen(ids: Sequence[str], probability: float) -> npt.NDArray[np.bool_]:
    """Which events are sampled, by their ids alone. About 0.2 µs each."""
    if probability >= 1.0:
        return np.ones(len(ids), dtype=np.bool_)
    sums = np.fromiter(
        (zlib.crc32(id_.encode("utf-8", "surrogatepass")) for id_ in ids), np.uint64, len(ids)
    )
    # sums of ids that count up are no random numbers yet: the finalizer of splitmix64 makes them so
    x = sums + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53 < probability


def sampled(events: pa.RecordBatch, probability: float) -> pa.RecordBatch:
    """The sampled events of a batch, without their bodies."""
    ids: list[Any] = events.column("id").to_pylist()
    some = events.take(np.flatnonzero(chosen(ids, probability)))
    at = some.schema.get_field_index(BODY)
    return some.set_column(at, some.schema.field(at), absent(some.num_rows, pa.binary()))


class Sampler:
    """See the module. `take` what was routed; `run` ships until cancelled."""

    def __init__(self, broker: str, probability: float = DEFAULT_PROBABILITY) -> None:
        if not 0.0 <= probability <= 1.0:
            raise InputError(f"the sample probability is {probability}: give 0 to 1")
        self.broker = broker
        self.probability = probability
        self.taken = 0
        self.lost = 0
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        # (id, frame, events) that are not known to be stored
        self._frames: deque[tuple[str, bytes, int]] = deque()
        self._run = uuid.uuid4().hex
        self._number = 0

    def take(self, published: Sequence[pa.RecordBatch]) -> None:
        """Choose among events that were just committed. Costs no more than the choice."""
        if not self.probability:
            return
        for events in published:
            some = sampled(events, self.probability)
            self.taken += some.num_rows
            if self._rows + some.num_rows > _MOST_WAITING_EVENTS:
                self.lost += some.num_rows
            elif some.num_rows:
                self._batches.append(some)
                self._rows += some.num_rows

    async def run(self, connected: Callable[[], Awaitable[Nats]]) -> None:
        """Ship what was chosen, every two seconds, for good."""
        connection = await connected()
        while True:
            await asyncio.sleep(_SHIP_EVERY_S)
            with contextlib.suppress(LiveError, nats.errors.Error, TimeoutError, OSError):
                await self.ship(connection)

    async def ship(self, connection: Nats) -> None:
        """Send all that waits. What gets no answer is sent again at the next call."""
        self._pack()
        while self._frames:
            id_, frame, _ = self._frames[0]
            subject = f"samples.{token(self.broker)}"
            answer = await connection.request(subject, frame, timeout=5, headers={"Nats-Msg-Id": id_})
            if b'"error"' in answer.data:
                raise LiveError(f"the control server refused samples: {answer.data[:200]!r}")
            self._frames.popleft()

    def _pack(self) -> None:
        batches, self._batches, self._rows = self._batches, [], 0
        for batch in concat(batches):
            for part in split(batch, _MOST_FRAME_BYTES):
                self._number += 1
                id_ = f"{token(self.broker)}/{self._run}/{self._number}"
                self._frames.append((id_, encode_events(part), part.num_rows))
        while len(self._frames) > _MOST_WAITING_FRAMES:
            self.lost += self._frames.popleft()[2]
