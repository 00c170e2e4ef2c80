"""What a broker takes in: its inputs, what waits on them, and what one step takes.

Owns the order. Of every input the messages are taken by number, each once (`lanes`). A step takes what
waits, in bounds; or, when a crash cut a step, exactly what that one had taken.

Positions say where each input stands, by its key:

    <key>        the last message that is routed whole
    <key>/rows   of the next one, how many events are routed already, where some are
    <key>/at     of a neighbour's lane, the sequence of that last message in the neighbour's log

On a lane sequences grow with numbers. A message whose number is behind us, but whose sequence is ahead,
shows that the neighbour lost its log and began anew: what was on its way is gone, and the lane is read from
where it begins. That is told, never passed over.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nats.aio.client import Client as Nats

from ramify.errors import InputError
from ramify.overlay.control.intake import ARROW_TYPE, ClientMessage
from ramify.overlay.control.lanes import Inlet, LaneVerdict
from ramify.overlay.control.names import PROBE, name_of, token
from ramify.overlay.control.steps import NeighbourMessage
from ramify.overlay.live.wire.pauses import LANE_GAP_S
from ramify.overlay.live.wire.pull import PulledMessage, Puller

__all__ = ["CLIENTS", "ROWS_POSITION", "Input", "Inputs", "StepInput", "reached"]

_log = logging.getLogger(__name__)

CLIENTS = "*"
"""The input of what clients publish, among those of neighbours: no token is like it."""
ROWS_POSITION, AT = "/rows", "/at"

_MOST_STEP_BYTES = 8 << 20
_MOST_STEP_RECORDS = 20_000
"""What the JSON messages of a step may hold, by their commas: two bytes can be a record that is rejected,
which costs more than a hundred times as much as its bytes."""
_MOST_DIGITS = 20


class Input:
    """An input with its buffer. `due` is the last message that is safe, to be acknowledged."""

    def __init__(self, name: str, puller: Puller, connection: Nats) -> None:
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
        # the sequence of the last committed message of a lane, 0 when it is not known
        self.at = 0

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
        return len(buffer) + _left(buffer[-1]) if buffer else max(self.behind, self.puller.unread)

    def number(self, message: PulledMessage) -> int:
        """The number of a message on this input."""
        if self.name == CLIENTS:
            return message.sequence
        text = message.headers.get("L", "")
        # not one of a router's: as if it had come before
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0

    def go_to(self, positions: Mapping[str, int]) -> None:
        """Stand where the log says; what was taken beyond is to come again."""
        self.due = None
        self.inlet.forget_taken(positions.get(self.key, 0))
        self.at = positions.get(self.key + AT, 0)
        self.stale = True


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
    """The inputs by name. `arrived` is set when there may be something to do."""

    def __init__(self, arrived: asyncio.Event) -> None:
        super().__init__()
        self._arrived = arrived
        # messages that came again
        self.redeliveries = 0
        # neighbours whose lanes began anew, with what was said of it
        self.restarted: dict[str, str] = {}

    def gather(
        self, positions: Mapping[str, int], begun: Mapping[str, int] | None, most: int
    ) -> list[StepInput]:
        """What waits, at most so many messages; of a step that a crash cut, exactly its inputs, once all
        are here. They may come in another order than the first time, so no bounds hold for those."""
        if begun is not None:
            return self._again(begun) if self._is_whole(begun, positions) else []
        room, records = _MOST_STEP_BYTES, _MOST_STEP_RECORDS
        taken: list[StepInput] = []
        for source in list(self.values()):
            if source.key + ROWS_POSITION in positions:
                # a message that is routed in part is a step of its own; a neighbour that is gone holds
                # nobody up with one
                if first := next(self._take(source, source.inlet.committed + 1), None):
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

    def _again(self, begun: Mapping[str, int]) -> list[StepInput]:
        found = [each for source in self.values() for each in self._take(source, _last(begun, source.key))]
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
            if verdict is LaneVerdict.OLD and self._began_anew(source, message, number):
                verdict = source.inlet.verdict(number)
            if verdict is LaneVerdict.GAP:
                self._missed(source, number)
            elif verdict is LaneVerdict.OLD:
                self.redeliveries += 1
                if number <= source.inlet.committed and source.due is None:
                    source.again = message  # its acknowledgement was lost
            else:
                yield StepInput(source, message, number)

    def _began_anew(self, source: Input, message: PulledMessage, number: int) -> bool:
        """Whether a neighbour's lane is another than the one that our position is of: see the module."""
        if not (0 < number <= source.inlet.committed and source.at and message.sequence > source.at):
            return False
        said = (
            f"the log of {source.name} began anew: its lane is at number {number}, but "
            f"{source.inlet.taken} were read of it before. Events that were on their way from it are lost; "
            "what comes now is routed."
        )
        _log.error("%s", said)
        self.restarted[source.name] = said
        source.inlet.forget_taken(number - 1)
        source.at = 0
        return True

    def _missed(self, source: Input, number: int) -> None:
        """Something before a message did not come. After a reset that is normal for a moment: messages that
        were under way come first. If it stays so, have the input delivered again."""
        if source.watched:
            return
        source.watched = True

        def look() -> None:
            source.watched = False
            if source.inlet.taken < number - 1:
                source.stale = True
                self._arrived.set()

        asyncio.get_running_loop().call_later(LANE_GAP_S, look)

    def _is_whole(self, begun: Mapping[str, int], positions: Mapping[str, int]) -> bool:
        """Whether every input of a step that was begun is in the buffers; they ask for all of it."""
        inputs = {source.key: source for source in self.values()}
        for key in begun:
            last = _last(begun, key)
            if "/" in key or positions.get(key, 0) >= last:
                continue
            if (source := inputs.get(key)) is None or source.resetting:
                return False
            here = {source.number(message) for message in source.puller.buffer}
            if not here.issuperset(range(source.inlet.taken + 1, last + 1)):
                source.puller.want_all(True)
                return False
        return True


def reached(positions: Mapping[str, int], taken: Sequence[StepInput], end: int | None) -> dict[str, int]:
    """The positions after a step; with `end`, only so many events of its one message are routed."""
    found = dict(positions)
    for each in taken:
        key = each.source.key
        found.pop(key + ROWS_POSITION, None)
        if end is not None:
            found[key + ROWS_POSITION] = end
            continue
        found[key] = each.number
        if each.source.name != CLIENTS:
            found[key + AT] = each.message.sequence
    return found


def _last(begun: Mapping[str, int], key: str) -> int:
    """The last message of an input that a step takes in, all of it or some events."""
    return begun.get(key, 0) + (key + ROWS_POSITION in begun)


def _left(message: PulledMessage) -> int:
    """How many messages waited behind this one when it was sent."""
    return int(message.reply.rpartition(".")[2] or 0)
