"""A broker's log: the stream OUT, written by one router, fenced, with the positions that a write completes.

Owns the writing and the recovery. Every write names the sequence that the stream must end with, so a second
router (a replacement, or one that was stopped and woke up) cannot write after the first has: it gets
`FencedError`, and must load the log again. Outputs of one write are there whole or not at all.

    L   the number on the lane            S   positions of the inputs, on the last message of a write
    W   its writer, likewise              N   see `steps`
    B   the base of its numbers, likewise
    J   where numbers jump: the number of the message before on the lane, 0 without one
    G   in a step that needs several writes: the positions that it will reach, and so its name
    P   beside G: the epoch that clients' events of the step entered
    K   of a value in pieces: which piece this is of how many (see `value_pieces`)
    A   beside G: all that the step sends to neighbours is written

A step of more than `MOST_MESSAGES` outputs takes several writes. If the router dies between them, the log
ends with a message that has G. The next router takes in exactly the inputs up to G, routes them, and leaves
out the lanes whose last message says G already: a lane's messages of one step are always in one write. What
goes to neighbours is in the first if that can be (`Stepped.fits`, A), so a plan that was revised meanwhile
decides only which clients here get the rest.

No number is used twice on a lane, whatever the server forgets. A server that loses its last writes (a power
cut, a disk that was rolled back, a stream that was made anew) may have shown them to readers before. So
a router that starts, or whose server was away, gives new messages numbers above a new *base*, which is
higher than any number that there can have been: by count, and by the clock, which alone is left when all
else is gone. The first message of a lane above the base says in J what is before it. A reader that has
more than that knows that the lane lost its end; one that has less, that something is missing. See ADR 18.

Cost: one round trip for one output; one more, about 5 ms, for an atomic batch of several.
"""

import base64
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client as Nats

from ramify.errors import LiveError
from ramify.overlay.control.lanes import decode_positions, encode_positions
from ramify.overlay.control.names import LINK, LOG, OUT
from ramify.overlay.control.output import MOST_MESSAGES, Output
from ramify.overlay.live.wire.connection import read_headers
from ramify.overlay.live.wire.pauses import FULL_CODES
from ramify.overlay.live.wire.streams import api

__all__ = [
    "FencedError",
    "LogEnd",
    "LogEntry",
    "LogFullError",
    "OutLog",
    "SupersededError",
    "WriteRefusedError",
]


_WRONG_LAST_SEQUENCE = 10071
_NO_MESSAGE = 10037
_TOO_LARGE_CODES = frozenset({10054, 10097, 10199})
"""A message, its headers, or a batch: the only refusals that the next try cannot change."""

_SPARE_NUMBERS = 1 << 20
"""More than a server takes on one lane before it writes to its disk what it acknowledged, two minutes."""

_MOST_WRITE_BYTES = 16 << 20
"""Of one atomic write, if its lanes can be divided: the server holds it in memory until it is whole."""


class FencedError(LiveError):
    """Another router has written to this broker's log."""


class SupersededError(LiveError):
    """Another router has taken this broker over: this one must end."""


class WriteRefusedError(LiveError):
    """A write is too large for the broker's server. Nothing was written of it, and nothing ever will be."""


class LogFullError(LiveError):
    """The log has no room: neighbours and clients must read first. Nothing was written."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An output in the log: its sequence there, its number on the lane."""

    output: Output
    sequence: int
    number: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log ends. `begun` are the positions of a step of which only a part was written, `epoch` the
    one that it must be finished in: half a step in another would send events two ways. `lost` says what the
    log had for this router and has no more; empty when it has all."""

    positions: Mapping[str, int]
    begun: Mapping[str, int] | None
    epoch: int | None
    lost: str = ""


class OutLog:
    """See the module. After any exception but `LogFullError`, `load` before the next `commit`."""

    def __init__(self, connection: Nats, *, timeout_s: float = 5.0) -> None:
        self._nats = connection
        self._timeout_s = timeout_s
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._positions: Mapping[str, int] = {}
        self._begun: Mapping[str, int] | None = None
        self._epoch = 0
        self._links_done = False
        # lanes of the step that was begun, when it is the next to be committed
        self._written: dict[str, bool] = {}
        # what the last write comes to, until it is known to be there or not
        self._unsure: list[LogEntry] = []
        self._writer = uuid.uuid4().hex
        self._claimed = False
        # numbers of this router's messages are above it; and the connection that this was found on
        self._base = 0
        # the base that our last write has: who claimed the log since has a higher one, also if ours was
        # raised meanwhile
        self._sealed = 0
        self._reconnects = connection.stats["reconnects"]
        # what was lost, until the log is ours again
        self._lost = ""
        # what the last commit wrote; after an exception, what is known to be there
        self.written: list[LogEntry] = []

    @property
    def positions(self) -> Mapping[str, int]:
        """The positions of the last write."""
        return self._positions

    @property
    def last(self) -> int:
        """The sequence that the log ends with."""
        return self._last

    async def claim(self) -> None:
        """Take the broker over: a router that wrote before cannot write again, and will know why."""
        self._raise_base()
        await self._mark()

    async def _mark(self) -> None:
        """Write the positions once more, as ours."""
        marks = {"S": encode_positions(self._positions)}
        if self._begun is not None:
            marks |= _begun_marks(encode_positions(self._begun), self._epoch, self._links_done)
        await self._write([Output(LOG, b"")], {}, marks)

    def _raise_base(self) -> None:
        """See the module. A lane has at most one number for each sequence of the log."""
        self._base = max(self._base + self._last + _SPARE_NUMBERS, time.time_ns() // 1_000)

    async def load(self) -> LogEnd:
        """Read where the log ends. A log that lost what this router wrote is claimed again.

        Raises
        ------
        SupersededError
            When another router has claimed the log since this one did.
        """
        self._numbers, self._written = {}, {}
        known = self._last
        last, headers = await self._end()
        is_ours = headers.get("W") == self._writer
        base = int(headers.get("B", "0"))
        if self._claimed and not is_ours and base > self._sealed:
            raise SupersededError("another router runs this broker now: this one ends")
        if is_ours:
            self._sealed = base
        self._lost = lost = self._lost or (_loss(last, known, is_ours) if self._claimed else "")
        if self._unsure and self._unsure[-1].sequence == last and is_ours and not lost:
            self.written += self._unsure
        self._last, self._unsure = last, []
        if not lost or "S" in headers:
            # of a log that was purged, what was read of it before holds
            self._positions = decode_positions(headers.get("S", ""))
            self._begun = decode_positions(headers["G"]) if "G" in headers else None
            self._epoch = int(headers.get("P", "0"))
            self._links_done = "A" in headers
        reconnects = self._nats.stats["reconnects"]
        if not self._claimed:
            # a claim that found no room has raised it already
            self._base = max(self._base, base)
        elif lost or reconnects != self._reconnects:
            # the server may have forgotten what readers have seen
            self._raise_base()
        self._reconnects = reconnects
        if lost:
            await self._mark()
        self._lost = ""
        return LogEnd(self._positions, self._begun, None if self._begun is None else self._epoch, lost)

    async def _end(self) -> tuple[int, dict[str, str]]:
        """The last sequence, and the headers of the last message that ends a write.

        Another router may write and purge between two requests: a last message that is not there counts as
        lost only if it still is the last one.
        """
        while True:
            state = (await self._api(f"STREAM.INFO.{OUT}", {}))["state"]
            last = int(state["last_seq"])
            headers = await self._headers({"seq": last}) if last else {}
            if "S" in headers:
                return last, headers
            headers = await self._marks(last, int(state["first_seq"]))
            if int((await self._api(f"STREAM.INFO.{OUT}", {}))["state"]["last_seq"]) == last:
                return last, headers

    async def _marks(self, last: int, first: int) -> dict[str, str]:
        """The headers of the last message that ends a write. That is the last message, unless the server
        lost a part of what was written at once."""
        for sequence in range(last, max(first - 1, last - MOST_MESSAGES - 1, 0), -1):
            headers = await self._headers({"seq": sequence})
            if "S" in headers:
                return headers
        return {}

    async def check_claim(self) -> None:
        """Raise `SupersededError` when another router has claimed the log; changes nothing here."""
        _, headers = await self._end()
        is_ours = headers.get("W") == self._writer
        if self._claimed and not is_ours and int(headers.get("B", "0")) > self._sealed:
            raise SupersededError("another router runs this broker now: this one ends")

    def abandon(self) -> None:
        """Do not finish the step that was begun: what it took in is gone. What is written of it stays."""
        self._begun, self._written = None, {}

    async def number(self, lane: str) -> int:
        """The number of the last message on a lane, 0 without one."""
        if lane not in self._numbers:
            headers = await self._headers({"last_by_subj": lane})
            self._numbers[lane] = int(headers.get("L", "0"))
            self._written[lane] = self._begun is not None and (
                headers.get("G") == encode_positions(self._begun)
            )
        return self._numbers[lane]

    async def commit(
        self,
        outputs: Sequence[Output],
        positions: Mapping[str, int],
        epoch: int = 0,
        *,
        divisible: bool = True,
    ) -> None:
        """Write outputs with the positions that they complete: all of it, or an exception.

        Those that are not `divisible` are one write, however large. After an exception other than
        `LogFullError` it may have been written or not: `load` tells.
        """
        self.written = []
        if self._begun is not None:
            outputs = await self._unwritten(outputs, positions)
        parts = _parts(outputs, _MOST_WRITE_BYTES if divisible else None)
        target = encode_positions(positions)
        for i, part in enumerate(parts[:-1], 1):
            sent = not any(_is_link(output) for later in parts[i:] for output in later)
            marks = {"S": encode_positions(self._positions), **_begun_marks(target, epoch, sent)}
            await self._write(part, {"G": target}, marks)
        last = parts[-1] if parts else []
        named = {"G": target} if len(parts) > 1 or self._begun is not None else {}
        await self._write(last or [Output(LOG, b"")], named, {"S": target}, final=True)
        self._positions, self._begun = dict(positions), None

    async def _unwritten(self, outputs: Sequence[Output], positions: Mapping[str, int]) -> list[Output]:
        assert self._begun is not None
        # an input that nothing was taken from may be listed or not
        if {k: v for k, v in self._begun.items() if v} != {k: v for k, v in positions.items() if v}:
            raise LiveError(
                "a step that was written in part must be finished first: "
                f"the log says {encode_positions(self._begun)}, the router {encode_positions(positions)}"
            )
        left = []
        for output in outputs:
            if self._links_done and _is_link(output):
                continue
            await self.number(output.lane)
            if not self._written[output.lane]:
                left.append(output)
        return left

    async def _write(
        self,
        outputs: Sequence[Output],
        named: Mapping[str, str],
        marks: Mapping[str, str],
        *,
        final: bool = False,
    ) -> None:
        messages: list[tuple[Output, dict[str, str]]] = []
        numbers: dict[str, int] = {}
        for output in outputs:
            if output.lane == LOG:
                number, jump = 0, {}
            else:
                known = numbers.get(output.lane)
                before = await self.number(output.lane) if known is None else known
                number = max(before, self._base) + 1
                jump = {"J": str(before)} if before < self._base else {}
                numbers[output.lane] = number
            messages.append((output, {**output.headers, **named, **jump, "L": str(number)}))
        if final and named:
            messages[-1][1].pop("G")
        messages[-1][1].update(marks, W=self._writer, B=str(self._base))
        messages[0][1]["Nats-Expected-Last-Sequence"] = str(self._last)
        if len(messages) > 1:
            batch = uuid.uuid4().hex
            for i, (_, headers) in enumerate(messages, 1):
                headers |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(i)}
            messages[-1][1]["Nats-Batch-Commit"] = "1"
        self._unsure = [
            LogEntry(output, place, int(headers["L"]))
            for place, (output, headers) in enumerate(messages, self._last + 1)
        ]
        for output, headers in messages[:-1]:
            await self._nats.publish(output.lane, output.payload, headers=headers)
        output, headers = messages[-1]
        self._check(await self._request(output.lane, output.payload, headers), len(messages))
        self.written += self._unsure
        self._unsure = []
        self._last += len(messages)
        self._numbers.update(numbers)
        self._claimed, self._sealed = True, self._base

    def _check(self, answer: bytes, messages: int) -> None:
        told = json.loads(answer or b"{}")
        error = told.get("error")
        if error:
            code = int(error.get("err_code", 0))
            said = f"{error.get('description', 'unknown error')} ({code})"
            if code == _WRONG_LAST_SEQUENCE:
                raise FencedError(f"another router writes this broker's log: {said}")
            if code in FULL_CODES:
                raise LogFullError(f"the broker's log is full: {said}. Neighbours or clients do not read.")
            if code in _TOO_LARGE_CODES:
                raise WriteRefusedError(f"the broker's log refused a write: {said}")
            # a full disk shows as a batch that is incomplete (10176): whatever it is, it may pass
            raise LiveError(f"the broker's server did not take a write: {said}")
        if int(told.get("seq", 0)) != self._last + messages:
            raise FencedError(f"the log ends at {told.get('seq')}, not at {self._last + messages}")

    async def purge(self, lane: str, floor: int) -> None:
        """Forget the messages of a lane before a stream sequence, but never the last: it has the number.

        A reader's floor may lie beyond its lane's end: it moves on when others write.
        """
        told = await self._api(f"STREAM.MSG.GET.{OUT}", {"last_by_subj": lane}, missing=_NO_MESSAGE)
        if told:
            keep_from = min(floor, int(told["message"]["seq"]))
            await self._api(f"STREAM.PURGE.{OUT}", {"filter": lane, "seq": keep_from})

    async def value(self, lane: str) -> bytes | None:
        """The value that was last written to a lane (`value_pieces`); None when there is none."""
        last = await self._last_message(lane)
        if last is None:
            return None
        sequence, headers, data = last
        pieces = [data]
        for place in range(sequence - _pieces_of(headers) + 1, sequence):
            told = await self._api(f"STREAM.MSG.GET.{OUT}", {"seq": place})
            pieces.insert(-1, base64.b64decode(told["message"].get("data", "")))
        return b"".join(pieces)

    async def purge_value(self, lane: str) -> None:
        """Forget all values of a lane but the last."""
        last = await self._last_message(lane)
        if last is not None:
            keep_from = last[0] - _pieces_of(last[1]) + 1
            await self._api(f"STREAM.PURGE.{OUT}", {"filter": lane, "seq": keep_from})

    async def _last_message(self, lane: str) -> tuple[int, dict[str, str], bytes] | None:
        told = await self._api(f"STREAM.MSG.GET.{OUT}", {"last_by_subj": lane}, missing=_NO_MESSAGE)
        if not told:
            return None
        message = told["message"]
        data = base64.b64decode(message.get("data", ""))
        return int(message["seq"]), _headers_of(message), data

    async def last_headers(self, lane: str) -> dict[str, str]:
        """The headers of the last message on a lane; none if there is none."""
        return await self._headers({"last_by_subj": lane})

    async def _headers(self, wanted: Mapping[str, object]) -> dict[str, str]:
        """The headers of one message; none if there is no such message."""
        told = await self._api(f"STREAM.MSG.GET.{OUT}", wanted, missing=_NO_MESSAGE)
        return _headers_of(told["message"]) if told else {}

    async def _api(
        self, call: str, body: Mapping[str, object], missing: int | None = None
    ) -> dict[str, Any]:
        return await api(self._nats, call, body, timeout_s=self._timeout_s, missing=missing)

    async def _request(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> bytes:
        try:
            answer = await self._nats.request(
                subject, payload, timeout=self._timeout_s, headers=dict(headers) or None
            )
        except (nats.errors.Error, TimeoutError) as error:
            raise LiveError(f"no answer from the broker's server to {subject}: {error!r}") from error
        return bytes(answer.data)


def _loss(last: int, known: int, is_ours: bool) -> str:
    """What a router that has written up to a sequence finds no more in its log, which ends with another."""
    if last < known:
        return (
            f"the log lost its end: sequences {last + 1} to {known}. What neighbours and clients had not "
            "read of it is lost, unless it is routed again; what they had read may come again"
        )
    if not is_ours:
        return "the log was purged. What neighbours and clients had not read of it is lost"
    return ""


def _pieces_of(headers: Mapping[str, str]) -> int:
    return int(headers.get("K", "1/1").partition("/")[2])


def _headers_of(message: Mapping[str, Any]) -> dict[str, str]:
    return read_headers(base64.b64decode(message.get("hdrs", ""))) or {}


def _begun_marks(target: str, epoch: int, links_done: bool) -> dict[str, str]:
    """What the last message of a write says that does not complete its step."""
    return {"G": target, "P": str(epoch), **({"A": "1"} if links_done else {})}


def _is_link(output: Output) -> bool:
    return output.lane.startswith(LINK)


def _parts(outputs: Sequence[Output], most_bytes: int | None = None) -> list[list[Output]]:
    """Outputs in writes of at most `MOST_MESSAGES` and, unless one lane has more, `most_bytes`.

    The messages of a lane are together and in order, those for neighbours first and, if that can be, all in
    one write."""
    lanes: dict[str, list[Output]] = {}
    for output in sorted(outputs, key=_is_link, reverse=True):
        lanes.setdefault(output.lane, []).append(output)
    parts: list[list[Output]] = []
    size = 0
    for lane, messages in lanes.items():
        if len(messages) > MOST_MESSAGES:
            raise LiveError(f"{len(messages)} messages for one lane in one step: at most {MOST_MESSAGES}")
        more = sum(len(output.payload) for output in messages)
        is_large = most_bytes is not None and size + more > most_bytes and not lane.startswith(LINK)
        if not parts or is_large or len(parts[-1]) + len(messages) > MOST_MESSAGES:
            parts.append([])
            size = 0
        parts[-1] += messages
        size += more
    return parts
