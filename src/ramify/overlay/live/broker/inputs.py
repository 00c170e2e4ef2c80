"""What a broker takes in: its inputs, what waits on them, and what one step takes.

Owns the order. Of every input the messages are taken by number, each once (`lanes`). A step takes what
waits, in bounds; or, when a crash cut a step, exactly what that one had taken.

Positions say where each input stands, by its key:

    <key>        the last message that is routed whole
    <key>/rows   of the next one, how many events are routed already, where some are
    <key>/of     and which number that one has
    <key>/at     of a neighbour's lane, the sequence of that last message in the neighbour's log
    */us         when that last message of clients was stored, in microseconds: what tells it from another
                 one under its number

Streams may lose what they had: a disk that was rolled back, or replaced, or a hand that purged. Then what
is gone is told with its range (`on_loss`), and the input goes on.

    a hole   The message that follows is not the next one; by the server's count there is none between.
    an end   A lane jumps from a number before ours: no number is used twice (`log`), so what comes is new.
             Of what clients published, sequences are used again: `published` tells.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramify.errors import InputError
from ramify.overlay.control.intake import ARROW_TYPE, ClientMessage
from ramify.overlay.control.lanes import Inlet, LaneVerdict
from ramify.overlay.control.names import PROBE, name_of, token
from ramify.overlay.control.steps import NeighbourMessage
from ramify.overlay.live.wire.connection import SteadyConnection
from ramify.overlay.live.wire.pauses import LANE_GAP_S
from ramify.overlay.live.wire.pull import PulledMessage, Puller

__all__ = [
    "CLIENTS",
    "OF_POSITION",
    "ROWS_POSITION",
    "Input",
    "Inputs",
    "StepInput",
    "reached",
    "rows_of",
]

_log = logging.getLogger(__name__)

CLIENTS = "*"
"""The input of what clients publish, among those of neighbours: no token is like it."""
ROWS_POSITION, OF_POSITION, AT, STORED = "/rows", "/of", "/at", "/us"

_MOST_STEP_BYTES = 8 << 20
_MOST_STEP_RECORDS = 20_000
"""What the JSON messages of a step may hold, by their commas: two bytes can be a record that is rejected,
which costs more than a hundred times as much as its bytes."""
_MOST_DIGITS = 20
_HOLE_RESETS = 2
"""How often an input is delivered again before what does not come counts as gone: what was under way from
before the first time is here by then."""


class Input:
    """An input with its buffer. `due` is the last message that is safe, to be acknowledged."""

    def __init__(self, name: str, puller: Puller, connection: SteadyConnection) -> None:
        self.name = name
        self.puller = puller
        self.connection = connection
        self.inlet = Inlet()
        self.due: PulledMessage | None = None
        self.again: PulledMessage | None = None
        # to be delivered again from what is committed
        self.stale = False
        self.resetting = False
        self.watched = False
        # what waited at the server behind the last message that was taken
        self.behind = 0
        # the sequence of the last committed message of a lane; when that of a client was stored; 0 when not
        # known
        self.at = 0
        self.stored_us = 0
        # the server's count of the last message that was not ahead, and how often one that is missing was
        # asked for
        self.order = 0
        self.asked = 0

    @property
    def key(self) -> str:
        """Its name in positions."""
        return self.name if self.name == CLIENTS else token(self.name)

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self.puller.buffer) and not self.resetting

    @property
    def lag(self) -> int:
        """Messages that wait here and, when it was last heard of, at its server."""
        buffer = self.puller.buffer
        known = len(buffer) + _left(buffer[-1]) if buffer else max(self.behind, self.puller.unread)
        # one at least, where something is missing
        return max(known, int(self.watched or self.asked > 0))

    def number(self, message: PulledMessage) -> int:
        """The number of a message on this input."""
        if self.name == CLIENTS:
            return message.sequence
        # not one of a router's: as if it had come before
        return _number(message, "L") or 0

    def before(self, message: PulledMessage) -> int:
        """The number of the message before one on this input, if it is still there."""
        jump = None if self.name == CLIENTS else _number(message, "J")
        return self.number(message) - 1 if jump is None else jump

    def go_to(self, positions: Mapping[str, int]) -> None:
        """Stand where the log says; what was taken beyond is to come again."""
        self.due = None
        self.inlet.forget_taken(positions.get(self.key, 0))
        self.at = positions.get(self.key + AT, 0)
        self.stored_us = positions.get(self.key + STORED, 0)
        self.stale = True

    @property
    def place(self) -> int:
        """The sequence behind which its stream is to be read, if it was acknowledged beyond: this broker
        may have lost what it knew. From the beginning, where something does not come: what was acknowledged
        before may count for a stream that was made anew."""
        if self.name == CLIENTS:
            return self.inlet.committed
        return 0 if self.asked else self.at


@dataclass(frozen=True, slots=True)
class StepInput:
    """A message that a step takes in."""

    source: Input
    message: PulledMessage
    number: int

    @property
    def published(self) -> ClientMessage | None:
        """As a client's; None if a neighbour sent it, or if it only tries whether messages are taken."""
        if self.source.name != CLIENTS:
            return None
        subject = self.message.subject.rsplit(".", 1)[1]
        if subject == PROBE:
            return None
        try:
            client = name_of(subject)
        except InputError:
            client = subject
        headers = self.message.headers
        kind, id_ = headers.get("Content-Type"), headers.get("Nats-Msg-Id")
        return ClientMessage(client, self.message.payload, kind, id_, self.message.sequence)

    @property
    def most_records(self) -> int:
        """More records than this a client's JSON cannot hold; 0 of what is not parsed record by record."""
        message = self.message
        if self.source.name != CLIENTS or message.headers.get("Content-Type") == ARROW_TYPE:
            return 0
        return message.payload.count(b",") + 1

    @property
    def linked(self) -> NeighbourMessage | None:
        """As a neighbour's; None if a client published it."""
        if self.source.name == CLIENTS:
            return None
        return NeighbourMessage(self.source.name, self.number, self.message.headers, self.message.payload)


class Inputs(dict[str, Input]):
    """The inputs by name. `arrived` is set when there may be something to do; `on_loss` hears the name of
    an input that lost something, and what."""

    def __init__(
        self, arrived: asyncio.Event, on_loss: Callable[[str, str], None] = lambda name, what: None
    ) -> None:
        super().__init__()
        self._arrived = arrived
        self._on_loss = on_loss
        # messages that came again
        self.redeliveries = 0

    def gather(
        self, positions: Mapping[str, int], begun: Mapping[str, int] | None, most: int
    ) -> list[StepInput]:
        """What waits, at most so many messages; of a step that a crash cut, exactly its inputs, once all
        are here. They may come in another order than the first time, so no bounds hold for those."""
        if begun is not None:
            return self._again(begun, positions) if self._is_whole(begun, positions) else []
        room, records = _MOST_STEP_BYTES, _MOST_STEP_RECORDS
        taken: list[StepInput] = []
        for source in list(self.values()):
            if source.key + ROWS_POSITION in positions:
                # a message that is routed in part is a step of its own; a neighbour that is gone holds
                # nobody up with one
                if first := next(self._take(source, None), None):
                    self.give_back(taken)
                    return [first]
                continue
            for each in self._take(source, None):
                taken.append(each)
                room -= len(each.message.payload)
                records -= each.most_records
                if min(room, records) <= 0 or len(taken) >= most:
                    return taken
        return taken

    def give_back(self, taken: Sequence[StepInput]) -> None:
        """Have messages come again, first, as if they had not been taken."""
        for each in reversed(taken):
            each.source.puller.put_back(each.message)
            each.source.inlet.taken = each.number - 1

    def commit(self, taken: Sequence[StepInput], end: int | None) -> None:
        """A step is safe. With `end` its one message is routed in part, and is to come again."""
        if end is not None:
            self.give_back(taken)
            self._arrived.set()
            return
        for each in taken:
            each.source.inlet.commit(each.number)
            each.source.due = each.message
            each.source.at = each.message.sequence if each.source.name != CLIENTS else 0
            each.source.stored_us = each.message.stored_us if each.source.name == CLIENTS else 0

    def _again(self, begun: Mapping[str, int], positions: Mapping[str, int]) -> list[StepInput]:
        lasts = [(source, _last(begun, positions, source.key)) for source in self.values()]
        found = [each for source, last in lasts for each in self._take(source, last)]
        for source in self.values():
            source.puller.want_all(False)
        return found

    def _take(self, source: Input, last: int | None) -> Iterator[StepInput]:
        """The next messages of an input, up to a number."""
        while source.waiting and (last is None or source.inlet.taken < last):
            message = source.puller.take()
            source.behind = _left(message)
            number = source.number(message)
            verdict = source.inlet.verdict(number)
            if verdict is LaneVerdict.GAP and self._follows(source, message, number):
                verdict = source.inlet.verdict(number)
            if verdict is LaneVerdict.GAP:
                self._missed(source, source.before(message))
                continue
            source.order = message.order
            if verdict is LaneVerdict.OLD:
                self.redeliveries += 1
                if number <= source.inlet.committed and source.due is None:
                    source.again = message  # its acknowledgement was lost
            else:
                source.asked = 0
                yield StepInput(source, message, number)

    def _follows(self, source: Input, message: PulledMessage, number: int) -> bool:
        """Whether a message is to be taken although its number is not the next one: see the module."""
        taken, before = source.inlet.taken, source.before(message)
        if before > taken and not (source.asked >= _HOLE_RESETS and message.order == source.order + 1):
            return False
        if before > taken:
            self._on_loss(source.name, _hole(source, taken, before))
        elif before < taken:
            self._on_loss(
                source.name,
                f"the lane from {source.name} lost its end: it has nothing behind number {before}, and "
                f"{before + 1} to {taken} were read of it before. What followed and was not read is gone",
            )
        source.inlet.taken = number - 1
        return True

    def _missed(self, source: Input, before: int) -> None:
        """A message did not come. After a reset that is normal for a moment: messages that were under way
        come first. If it stays so, have the input delivered again."""
        if source.watched:
            return
        source.watched = True

        def look() -> None:
            source.watched = False
            if source.inlet.taken < before:
                source.asked += 1
                source.stale = True
                self._arrived.set()

        asyncio.get_running_loop().call_later(LANE_GAP_S, look)

    def _is_whole(self, begun: Mapping[str, int], positions: Mapping[str, int]) -> bool:
        """Whether every input of a step that was begun is in the buffers; they ask for all of it."""
        inputs = {source.key: source for source in self.values()}
        for key in {key.partition("/")[0] for key in begun}:
            last = _last(begun, positions, key)
            if positions.get(key, 0) >= last:
                continue
            if (source := inputs.get(key)) is None or source.resetting:
                return False
            if not self._has_until(source, last):
                source.puller.want_all(True)
                return False
        return True

    def _has_until(self, source: Input, last: int) -> bool:
        """Whether the buffer of an input has all up to a number. A hole in it is told."""
        taken, order = source.inlet.taken, source.order
        for message in sorted(source.puller.buffer, key=source.number):
            number, before = source.number(message), source.before(message)
            if number > taken and before > taken:
                if source.asked >= _HOLE_RESETS and message.order == order + 1:
                    self._on_loss(source.name, _hole(source, taken, before))
                self._missed(source, before)
                return False
            taken, order = max(taken, number), message.order
        return taken >= last


def reached(positions: Mapping[str, int], taken: Sequence[StepInput], end: int | None) -> dict[str, int]:
    """The positions after a step; with `end`, only so many events of its one message are routed."""
    found = dict(positions)
    for each in taken:
        key = each.source.key
        found.pop(key + ROWS_POSITION, None)
        found.pop(key + OF_POSITION, None)
        if end is not None:
            found[key + ROWS_POSITION], found[key + OF_POSITION] = end, each.number
            continue
        found[key] = each.number
        if each.source.name != CLIENTS:
            found[key + AT] = each.message.sequence
        else:
            found[key + STORED] = each.message.stored_us
    return found


def _number(message: PulledMessage, header: str) -> int | None:
    text = message.headers.get(header, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else None


def rows_of(positions: Mapping[str, int], one: StepInput) -> int | None:
    """How many events of a message are routed by these positions; None when they say nothing of it."""
    key = one.source.key
    return positions.get(key + ROWS_POSITION) if positions.get(key + OF_POSITION) == one.number else None


def _last(begun: Mapping[str, int], positions: Mapping[str, int], key: str) -> int:
    """The last message of an input that a step takes in, all of it or some events."""
    parts = (key + ROWS_POSITION, key + OF_POSITION)
    if all(begun.get(part) == positions.get(part) for part in parts):
        return begun.get(key, 0)
    return begun.get(key + OF_POSITION) or begun.get(key, 0)


def _hole(source: Input, taken: int, before: int) -> str:
    what = "what clients published" if source.name == CLIENTS else f"the lane from {source.name}"
    return f"{what} has a hole: numbers {taken + 1} to {before} are gone"


def _left(message: PulledMessage) -> int:
    """How many messages waited behind this one when it was sent."""
    return int(message.reply.rpartition(".")[2] or 0)
