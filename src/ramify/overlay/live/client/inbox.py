"""The lanes of a client, shared by its subscriptions: which events are whose, and what may be acknowledged.

Owns the queues. A client that moves goes from one lane to the next (`Course`); here they are one. Each
delivery of the lane has a share for every subscription that it is for. A share is done when all its events
are dealt with; the lane is acknowledged up to the first delivery with a share that is not. At most
`WINDOW_MESSAGES` deliveries or `WINDOW_BYTES` (and one more) are in memory.

What comes for an id that nobody has asked for in this process waits like the rest, for one that subscribes
to it again; if the window is full of it, readers get an error that names it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from ramify.content.events.attributes import Event
from ramify.errors import LiveError
from ramify.overlay.live.client.lane import DeliveredBatch, LostDeliveriesError, SuspendedError
from ramify.overlay.live.client.moves import Course, Wires

__all__ = ["WINDOW_BYTES", "WINDOW_MESSAGES", "ClientInbox", "ReceivedEvent"]

_log = logging.getLogger(__name__)

WINDOW_MESSAGES = 256
WINDOW_BYTES = 8 << 20
"""What of a lane is read ahead and not dealt with."""

_STALL_S = 10.0


@dataclass(slots=True)
class _Share:
    """The events of one delivery for one subscription: `taken` were handed out, `done` are dealt with."""

    number: int
    events: list[Event]
    taken: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True)
class ReceivedEvent(Event):
    """An event that came for a subscription; `number` is that of its delivery on the lane."""

    number: int = 0
    _mark: "_Mark | None" = field(default=None, repr=False, compare=False)

    def done(self) -> None:
        """It is dealt with, and so are the events of its subscription before it."""
        if self._mark is not None:
            self._mark.done()


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    incoming: "ClientInbox"
    id: str
    share: _Share
    row: int

    def done(self) -> None:
        self.incoming._done(self)


class _Queue:
    def __init__(self) -> None:
        self.shares: deque[_Share] = deque()
        self.arrived = asyncio.Event()
        # subscribed to in this process
        self.is_open = False
        self.is_closed = False
        # handed out last, dealt with once the next is asked for
        self.last: _Mark | None = None


class ClientInbox:
    """See the module. Reading begins when something is first asked for."""

    def __init__(self, wires: Wires, after: int | None) -> None:
        self._wires = wires
        self._name = wires.home.name
        self._prefix = f"{self._name}/"
        self._after = after
        self._reader: Course | None = None
        self._queues: dict[str, _Queue] = {}
        # number -> shares that are not done, and bytes; in the order of the lane
        self._held: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        # something is done: for the acknowledger, and for the reader that waits for room
        self._to_tell = asyncio.Event()
        self._moved = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._fault: LiveError | None = None
        self._exclusive = False
        self._stopped = False
        # where the client was suspended, held until that is dealt with
        self._suspended_at = 0
        # done: everything up to here; and what of it the server was told
        self._finished = 0
        self._told = 0

    @property
    def is_read(self) -> bool:
        """Whether anybody has begun to read."""
        return self._reader is not None

    # ------------------------------------------------------------------------------ subscriptions

    def open(self, id: str) -> None:
        """Someone will read this subscription."""
        queue = self._queues.setdefault(id, _Queue())
        queue.is_open, queue.is_closed = True, False

    def close(self, id: str) -> None:
        """Drop what waits for a subscription and what will still come; its readers are told."""
        queue = self._queues.setdefault(id, _Queue())
        queue.is_closed = True
        shares = list(queue.shares)
        if queue.last is not None and queue.last.share not in shares:
            shares.insert(0, queue.last.share)
        for share in shares:
            self._finish(share, len(share.events))
        queue.shares.clear()
        queue.last = None
        queue.arrived.set()
        self.forgive()

    def forgive(self) -> None:
        """Read on after a fault that someone has dealt with."""
        if self._fault is None:
            return
        self._fault = self._reading = None
        if self._suspended_at:
            self._held[self._suspended_at] = 0
            self._suspended_at = 0
            self._settle()
        self._wake()

    async def next(self, id: str, timeout_s: float | None = None) -> ReceivedEvent | None:
        """The next event of a subscription. None when it has ended, or nothing came in time."""
        queue = self._queues[id]
        if queue.last is not None:
            queue.last.done()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (queue.shares or queue.is_closed or self._stopped):
                    if (fault := self._fault) is not None:
                        if isinstance(fault, LostDeliveriesError):
                            self.forgive()  # told once: what is behind it comes
                        raise fault
                    self._start()
                    queue.arrived.clear()
                    await queue.arrived.wait()
        if not queue.shares or self._stopped:
            return None
        share = queue.shares[0]
        row = share.taken
        share.taken += 1
        if share.taken == len(share.events):
            queue.shares.popleft()
        queue.last = _Mark(self, id, share, row)
        return _received(share.events[row], share.number, queue.last)

    def put_back(self, event: ReceivedEvent) -> None:
        """Undo `next`: the event was handed out and did not arrive."""
        mark = event._mark
        if mark is None or self._queues[mark.id].last is not mark:
            return
        queue, share = self._queues[mark.id], mark.share
        if share.taken == len(share.events):
            queue.shares.appendleft(share)
        share.taken -= 1
        queue.last = None

    # ------------------------------------------------------------------------------------- the lane

    async def deliveries(self, after: int | None) -> AsyncGenerator[DeliveredBatch, None]:
        """The lane as it comes, for one reader; see `LaneClient.deliveries`."""
        if self._reading is not None or self._exclusive:
            raise LiveError("this client's lane is being read already: use deliveries() or subscriptions")
        self._exclusive = True
        try:
            reader = self._reader
            if reader is None or (after is not None and after != reader.position):
                if reader is not None:
                    await reader.stop()
                self._reader = reader = Course(self._wires, self._after if after is None else after)
            while True:
                delivered = await reader.take()
                # work between two of them without waiting must not keep moves from being answered
                await asyncio.sleep(0)
                yield delivered
                await reader.acknowledge(delivered.number)
        finally:
            self._exclusive = False

    async def acknowledge(self, number: int) -> None:
        """What `deliveries` gave is dealt with, up to this number."""
        if self._reader is not None:
            await self._reader.acknowledge(number)

    async def stop(self) -> None:
        """Acknowledge what is done, and read no more."""
        self._stopped = True
        tasks = [task for task in (self._reading, self._telling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._reader is not None:
            await self._reader.acknowledge(self._finished)
            await self._reader.stop()
        self._wake()

    def _start(self) -> None:
        if self._exclusive:
            raise LiveError("this client's lane is being read by deliveries(): use one of the two")
        if self._reading is not None:
            return
        self._reader = self._reader or Course(self._wires, self._after)
        self._reading = asyncio.create_task(self._read(self._reader))
        self._telling = self._telling or asyncio.create_task(self._acknowledge(self._reader))

    async def _read(self, reader: Course) -> None:
        """Fill the queues; a fault reaches every waiting reader."""
        try:
            while True:
                await self._room()
                self._share_out(await reader.take())
        except SuspendedError as error:
            self._suspended_at = error.number
            self._hold(error.number, 1, 0)
            self._fault = error
        except LiveError as error:
            self._fault = error
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fault = LiveError(f"reading the lane failed: {error!r}")
            self._fault.__cause__ = error
        finally:
            self._wake()

    async def _acknowledge(self, reader: Course) -> None:
        while True:
            self._to_tell.clear()
            if self._finished > self._told:
                self._told = self._finished
                await reader.acknowledge(self._finished)
            await self._to_tell.wait()

    async def _room(self) -> None:
        """Wait until the window has room."""
        waited = False
        while len(self._held) >= WINDOW_MESSAGES or sum(self._sizes.values()) >= WINDOW_BYTES:
            first = next(iter(self._held))
            self._moved.clear()
            try:
                async with asyncio.timeout(_STALL_S):
                    await self._moved.wait()
            except TimeoutError:
                ids = sorted(id for id, queue in self._queues.items() if _blocks(queue, first))
                unread = [id for id in ids if not self._queues[id].is_open]
                if unread:
                    raise LiveError(
                        f"client {self._name!r} has events for {', '.join(unread[:5])}, but this process "
                        "does not read them: subscribe again, or unsubscribe"
                    ) from None
                if not waited:
                    said = "client %s: reading stops until the program reads %s"
                    _log.warning(said, self._name, ", ".join(ids[:5]))
                waited = True

    def _share_out(self, delivered: DeliveredBatch) -> None:
        ids = delivered.subscriptions
        queues = {id: self._queues.setdefault(id.removeprefix(self._prefix), _Queue()) for id in ids}
        queues = {id: queue for id, queue in queues.items() if not queue.is_closed}
        self._hold(delivered.number, len(queues), delivered.events.nbytes)
        shares = _shares(delivered, queues) if queues else {}
        for id, queue in queues.items():
            events = shares[id]
            share = _Share(delivered.number, events)
            if events:
                queue.shares.append(share)
                queue.arrived.set()
            else:
                self._finish(share, 0)

    def _hold(self, number: int, shares: int, size: int) -> None:
        self._held[number] = shares
        self._sizes[number] = size
        self._settle()

    def _done(self, mark: _Mark) -> None:
        share = mark.share
        if mark.row + 1 > share.done:
            self._finish(share, mark.row + 1)
        queue = self._queues[mark.id]
        if queue.last is mark:
            queue.last = None

    def _finish(self, share: _Share, done: int) -> None:
        was, share.done = share.done, done
        if done == len(share.events) and (was < done or not share.events):
            if share.number in self._held:
                self._held[share.number] -= 1
            self._settle()

    def _settle(self) -> None:
        """Count as finished what has no share left, up to the first that has."""
        while self._held and next(iter(self._held.values())) <= 0:
            number = next(iter(self._held))
            del self._held[number], self._sizes[number]
            self._finished = number
        self._to_tell.set()
        self._moved.set()

    def _wake(self) -> None:
        for queue in self._queues.values():
            queue.arrived.set()


def _blocks(queue: _Queue, number: int) -> bool:
    """Whether a delivery waits for this subscription."""
    last = [] if queue.last is None else [queue.last.share]
    return any(share.number == number for share in (*queue.shares, *last))


def _received(event: Event, number: int, mark: _Mark) -> ReceivedEvent:
    return ReceivedEvent(
        event.id,
        event.publisher,
        event.time,
        event.attributes,
        event.body,
        event.size_bytes,
        event.body_is_json,
        number,
        mark,
    )


def _shares(delivered: DeliveredBatch, wanted: Iterable[str]) -> dict[str, list[Event]]:
    """The events for each of the wanted subscriptions, in the order of the delivery."""
    from ramify.content.events.events import batch_to_events  # loads Arrow, as the batch has

    events = batch_to_events(delivered.events)
    if delivered.by_row is None:
        return dict.fromkeys(wanted, events)
    found: dict[str, list[Event]] = {id: [] for id in wanted}
    for event, ids in zip(events, delivered.by_row, strict=True):
        for id in ids:
            if id in found:
                found[id].append(event)
    return found
