"""A client on the wire: publishing until it is accepted, and reading the own lane without loss or doubles.

Owns the client's side of the lanes. `publish` returns when the event is stored by the broker's server,
and asks again with the same id until then; the server knows ids for ten minutes, so an answer that was
lost does no harm. Before they are over it gives up with `OutcomeUnknownError`.

`deliveries` yields what comes on the lane with its number. What was yielded is acknowledged when the next
is asked for: a client that keeps the number of the last one it has dealt with, together with the effects,
and gives it as `after` when it comes back, gets every delivery exactly once. Another may get the last
ones again.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import nats.errors
import pyarrow as pa
from nats.aio.client import Client as Nats

from ramify.errors import LiveError
from ramify.overlay.live.frames import LINK_LIMITS, decode_events, encode_events
from ramify.overlay.live.intake import ARROW_TYPE
from ramify.overlay.live.lanes import Inlet, Verdict
from ramify.overlay.live.names import OUT, PUBLISH, token
from ramify.overlay.live.pulling import Puller
from ramify.overlay.live.security import INFO
from ramify.overlay.live.streams import DUPLICATE_WINDOW_S, Endpoint, connect

__all__ = ["Delivered", "LaneClient", "OutcomeUnknownError"]

_TRY_S = 2.0
_GAP_S = 0.5
_WAIT_S = 0.2


class OutcomeUnknownError(LiveError):
    """The broker's server did not answer in time: the events may have been accepted or not."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Events for some subscriptions of the client; `number` is the position on its lane."""

    number: int
    subscriptions: tuple[str, ...]
    events: pa.RecordBatch


class LaneClient:
    """See the module. One per client name and process."""

    def __init__(self, name: str, connection: Nats) -> None:
        self.name = name
        self._nats = connection

    @classmethod
    async def connect(cls, name: str, endpoint: Endpoint) -> "LaneClient":
        """Connect to the server of the client's broker."""
        return cls(name, await connect(endpoint))

    async def close(self) -> None:
        """Disconnect."""
        await self._nats.close()

    async def publish(
        self, events: pa.RecordBatch | bytes, *, id: str | None = None, give_up_s: float = 60.0
    ) -> int:
        """Publish a batch of events, or one CloudEvent as JSON; returns its place in the broker's stream.

        `id` tells two publishes apart from one that is tried again.

        Raises
        ------
        OutcomeUnknownError
            When no answer came within `give_up_s`.
        LiveError
            When the server refuses: its stream is full, or the message is too large.
        """
        headers = {"Nats-Msg-Id": id or uuid.uuid4().hex}
        if isinstance(events, pa.RecordBatch):
            headers["Content-Type"] = ARROW_TYPE
            payload = encode_events(events)
        else:
            payload = events
        deadline = time.monotonic() + min(give_up_s, DUPLICATE_WINDOW_S / 2)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise OutcomeUnknownError(
                    f"no answer to publish {headers['Nats-Msg-Id']} within {give_up_s:g} s: it may have "
                    "been accepted. Publish it again with the same id within ten minutes, or look for it."
                )
            try:
                subject = f"{PUBLISH}.{token(self.name)}"
                answer = await self._nats.request(
                    subject, payload, timeout=min(left, _TRY_S), headers=headers
                )
            except (nats.errors.Error, TimeoutError):
                await asyncio.sleep(min(0.1, max(0.0, left)))
                continue
            told = json.loads(answer.data)
            if "error" in told:
                raise LiveError(f"the broker refused the publish: {told['error'].get('description')}")
            return int(told["seq"])

    async def deliveries(self, after: int | None = None) -> AsyncIterator[Delivered]:
        """What comes on the lane after a number, in order, without end. See the module.

        Without a number it goes on after what was acknowledged last.
        """
        arrived = asyncio.Event()
        consumer = f"client_{token(self.name)}"
        puller = Puller(self._nats, OUT, consumer, arrived, f"{INFO}.{consumer}")
        # where the lane stands is known, or shows in what comes first: it comes in order after a reset
        known = after is not None or not await self._was_read()
        inlet = Inlet(after or 0)
        await puller.start()
        connections = -1
        behind, since = 0, 0.0  # a number before which something is missing, and since when
        try:
            while True:
                arrived.clear()
                if not known and connections != self._nats.stats["reconnects"]:
                    connections = self._nats.stats["reconnects"]
                    await self._insist(puller.reset)
                if puller.strayed or (behind > inlet.taken + 1 and time.monotonic() - since > _GAP_S):
                    behind = 0
                    await self._insist(puller.reset)
                if not puller.buffer:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_GAP_S):
                            await arrived.wait()
                    continue
                message = puller.take()
                number = int(message.headers.get("L", "0"))
                if not known and connections == self._nats.stats["reconnects"]:
                    inlet.forget_taken(number - 1)
                    known = True
                verdict = inlet.verdict(number) if known else Verdict.GAP
                if verdict is Verdict.GAP:
                    behind, since = max(behind, number), since if behind else time.monotonic()
                    continue
                if verdict is Verdict.OLD:
                    await puller.acknowledge(message.reply)
                    continue
                if inlet.taken >= behind:
                    behind = 0
                ids = tuple(json.loads(message.headers.get("F", "[]")))
                yield Delivered(number, ids, decode_events(message.payload, LINK_LIMITS))
                inlet.commit(number)
                await puller.acknowledge(message.reply)
        finally:
            await puller.stop()

    async def _was_read(self) -> bool:
        """Whether anything on the lane was ever acknowledged."""
        subject = f"{INFO}.client_{token(self.name)}"
        while True:
            try:
                told = json.loads((await self._nats.request(subject, b"", timeout=_TRY_S)).data)
                return int(told["ack_floor"]["stream_seq"]) > 0
            except (nats.errors.Error, TimeoutError, KeyError):
                # its router makes the consumer: until then nothing can be read
                await asyncio.sleep(_WAIT_S)

    async def _insist(self, what: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await what()
            except (LiveError, nats.errors.Error, TimeoutError):
                await asyncio.sleep(_WAIT_S)
