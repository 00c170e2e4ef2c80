"""Pulling a lane: requests bounded by bytes and messages, and what came, in a buffer.

Owns the requests to one durable consumer. NATS pushes nothing that was not asked for, so a slow reader
has at most `most_bytes` twice in memory: what was asked for and what waits. A request that got no answer
in time (a server that died, a connection that was made anew) is made again.
"""

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass

import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ramify.errors import LiveError
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["PulledMessage", "Puller"]

_EXPIRY_GRACE_S = 2.0
_FIRST_QUIET_S = 3.0
# a lane where nothing comes is asked about less and less often: an overlay may have thousands of them
_EXPIRES_S = (5.0, 10.0, 20.0, 30.0)
_SHORT_EXPIRES_S = _EXPIRES_S[:1]
_LONGEST_QUIET_S = 20.0
_QUIET_LOOK_S, _LONGEST_LOOK_S = 1.0, 5.0
# a request for fewer bytes than a message has gets nothing, for ever; servers take 8 MiB
_LARGEST_MESSAGE = 12 << 20


@dataclass(frozen=True, slots=True)
class PulledMessage:
    """A message with its place in the stream. `reply` is where to acknowledge it. `stored_us` is when the
    server stored it, in microseconds since 1970. `order` counts what the server handed out since the last
    reset, from 1: nothing lies between two messages whose orders follow each other."""

    sequence: int
    subject: str
    headers: dict[str, str]
    payload: bytes
    reply: str
    stored_us: int = 0
    order: int = 0


class Puller:
    """Keeps a buffer of messages of one consumer filled; `arrived` is set when there is something in it."""

    def __init__(
        self,
        connection: Nats,
        stream: str,
        consumer: str,
        arrived: asyncio.Event,
        info: str,
        *,
        most_bytes: int = 4 << 20,
        most_messages: int = 512,
        short: bool = False,
    ) -> None:
        """With `short`, a request stays 5 s at most, also where nothing comes.

        A server does not see that a reader in another account has died. It hands out every other message
        to a request of the dead one, for as long as that stays: so long the next reader waits for those.
        """
        self._nats = connection
        self._path = f"{stream}.{consumer}"
        self._arrived = arrived
        self._info = info
        self._most_bytes, self._most_messages = most_bytes, most_messages
        self.buffer: deque[PulledMessage] = deque()
        self._bytes = 0
        self._asked = 0
        self._asked_at = 0.0
        # requests in a row that ended with nothing, and how long the present one stays
        self._empty = 0
        self._stays_s = _SHORT_EXPIRES_S if short else _EXPIRES_S
        self._expires_s = self._stays_s[0]
        self._reconnects = connection.stats["reconnects"]
        self._changed = asyncio.Event()
        self._inbox: Subscription | None = None
        self._filler: asyncio.Task[None] | None = None
        self._came_at = time.monotonic()
        self._quiet_s = _FIRST_QUIET_S
        # the server handed something out that did not come: to a request of an earlier reader, say
        self.strayed = False
        # what the server had for this reader when it was last asked, and that did not come since
        self.unread = 0
        # messages that came more than once, as the server counts deliveries
        self.redelivered = 0
        # ask for more even when the buffer is full: something in particular is needed
        self._greedy = False

    async def start(self) -> None:
        """Begin to ask."""
        # one inbox for good: to one that was given up, a server would still hand out messages
        self._inbox = await self._nats.subscribe(self._nats.new_inbox(), cb=self._came)
        self._filler = asyncio.create_task(self._fill())

    async def stop(self) -> None:
        """Ask no more."""
        if self._filler is not None:
            await end_tasks([self._filler])
        if self._inbox is not None and not self._nats.is_closed:
            await self._inbox.unsubscribe()

    async def reset(self, after: int | None = None) -> None:
        """Have everything after what was acknowledged delivered again, in order; also what was acknowledged
        behind the sequence `after`.

        The buffer starts empty. Messages that were under way may still come before those: numbers tell.
        """
        self.buffer.clear()
        self.strayed = False
        self._bytes = self._asked = self.unread = 0
        self._stir()
        floor = await self._reset({})
        if after is not None and floor > after:
            # never forward: a stream that began anew has its messages before that
            await self._reset({"seq": after + 1})
        self._changed.set()

    async def _reset(self, asked: dict[str, int]) -> int:
        """Returns the sequence up to which everything counts as acknowledged."""
        body = json.dumps(asked).encode() if asked else b""
        answer = await self._nats.request(f"$JS.API.CONSUMER.RESET.{self._path}", body, timeout=5)
        told = json.loads(answer.data)
        if error := told.get("error"):
            raise LiveError(f"the consumer {self._path} was not reset: {error.get('description')}")
        return int(told.get("ack_floor", {}).get("stream_seq", 0))

    def take(self) -> PulledMessage:
        """The oldest message in the buffer."""
        pulled = self.buffer.popleft()
        self._bytes -= len(pulled.payload)
        self._changed.set()
        return pulled

    def want_all(self, on: bool) -> None:
        """Ask for more even when the buffer is full, as long as this is so."""
        self._greedy = on
        if on:
            self._changed.set()

    def put_back(self, pulled: PulledMessage) -> None:
        """Have a message that was taken come first again."""
        self.buffer.appendleft(pulled)
        self._bytes += len(pulled.payload)

    async def acknowledge(self, reply: str) -> None:
        """Tell the server that this message and all before it are safe."""
        await self._nats.publish(reply, b"+ACK")

    async def _came(self, message: Msg) -> None:
        headers = message.headers or {}
        # the request ended: nothing there, timed out, no room for more. What a stream has comes with a
        # subject to answer to; headers tell nothing, for clients write them
        if not message.reply:
            self._empty += self._asked == self._most_messages
            self._asked = 0
            self._changed.set()
            return
        parts = message.reply.split(".")
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>
        sequence = int(parts[-4])
        self.redelivered += int(parts[-5]) > 1
        stored_us, order = int(parts[-2]) // 1_000, int(parts[-3])
        pulled = PulledMessage(
            sequence, message.subject, headers, message.data, message.reply, stored_us, order
        )
        self.buffer.append(pulled)
        self._bytes += len(message.data)
        self.unread = 0
        self._asked = max(0, self._asked - 1)
        self._asked_at = time.monotonic()
        self._stir()
        self._arrived.set()
        if self._asked == 0:
            self._changed.set()

    def _stir(self) -> None:
        """Something happened here: what may follow is looked for soon again."""
        self._came_at = time.monotonic()
        self._quiet_s = _FIRST_QUIET_S
        self._empty = 0

    async def _fill(self) -> None:
        while True:
            self._changed.clear()
            late = time.monotonic() - self._asked_at > self._expires_s + _EXPIRY_GRACE_S
            if self._nats.stats["reconnects"] != self._reconnects:  # what was asked for is forgotten
                self._reconnects, late = self._nats.stats["reconnects"], True
                self._stir()
            room = self._bytes < self._most_bytes and len(self.buffer) < self._most_messages
            if (room or self._greedy) and (self._asked == 0 or late) and self._nats.is_connected:
                await self._ask()
            try:
                # not wait_for: before Python 3.12 it can swallow a cancellation, and stop() waits for good
                async with asyncio.timeout(
                    _QUIET_LOOK_S if self._quiet_s < _LONGEST_QUIET_S else _LONGEST_LOOK_S
                ):
                    await self._changed.wait()
            except TimeoutError:
                await self._look_for_strays()

    async def _look_for_strays(self) -> None:
        """Once it has been quiet for a while: was anything handed out that is not acknowledged?"""
        if self.buffer or time.monotonic() - self._came_at < self._quiet_s or not self._nats.is_connected:
            return
        since, self._quiet_s = self._came_at, min(2 * self._quiet_s, _LONGEST_QUIET_S)
        try:
            told = json.loads((await self._nats.request(self._info, b"", timeout=1.0)).data)
        except (nats.errors.Error, TimeoutError):
            return
        if since != self._came_at:
            return
        self._came_at = time.monotonic()
        self.unread = int(told.get("num_ack_pending", 0)) + int(told.get("num_pending", 0))
        if told.get("num_ack_pending", 0) > 0:
            self._stir()
            self.strayed = True
            self._arrived.set()

    async def _ask(self) -> None:
        assert self._inbox is not None
        self._asked, self._asked_at = self._most_messages, time.monotonic()
        self._expires_s = self._stays_s[min(self._empty, len(self._stays_s) - 1)]
        body = {
            "batch": self._most_messages,
            "max_bytes": max(self._most_bytes, _LARGEST_MESSAGE),
            "expires": int(self._expires_s * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._path}"
        await self._nats.publish(subject, json.dumps(body).encode(), reply=self._inbox.subject)
