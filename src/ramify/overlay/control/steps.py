"""One step of a broker: what came in on all inputs, routed, and what goes out on all lanes. Pure.

Owns how frames look on the wire, and how the events of many frames are put together so that a busy broker
routes and writes few large frames instead of many small ones. The routing itself is
`ramify.overlay.routing.router`.

A message on a link has the frame's events as its payload and these headers:

    E   the epoch that it is routed by, from its first broker to its last
    H   the routing header (`ramify.overlay.routing.headers`), base64
    C   of a notification: its channels (see `Router.owned`)
    N   how many events

A message to a client has N, and in F the ids of the subscriptions that its events are for, as JSON.

An event that no message can hold is rejected where that shows. Deliveries to a muted client are dropped and
counted: its subscriptions are suspended (`quotas`).
"""

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.events.events import SIZE_BYTES, AttributeType
from ramify.errors import InputError, LimitError
from ramify.overlay.control.frames import (
    LINK_LIMITS,
    MOST_FRAME_BYTES,
    Limits,
    concat,
    decode_events,
    encode_events,
    split,
)
from ramify.overlay.control.intake import ClientMessage, RejectedMessage, take_in_by_client
from ramify.overlay.control.names import DELIVER, LINK, token
from ramify.overlay.control.output import MOST_MESSAGES, Output
from ramify.overlay.routing.header_rules import HeaderRules
from ramify.overlay.routing.headers import Header, HeaderKind
from ramify.overlay.routing.router import Frame, Router, RoutingPlan

__all__ = [
    "Deliveries",
    "LinkTraffic",
    "NeighbourMessage",
    "Node",
    "StepResult",
    "StepState",
    "Stepper",
    "some_rows",
    "whole_events",
]

TOO_LARGE = "too_large"
"""Why an event was rejected that no message of a server can hold."""

_MOST_NAMED_BYTES = 32 << 10
_FRAMING_BYTES = 64 << 10
"""Left in a message for subject and headers of the log."""


@dataclass(frozen=True, slots=True)
class NeighbourMessage:
    """A message that a neighbour sent."""

    sender: str
    number: int
    headers: Mapping[str, str]
    payload: bytes


@dataclass(slots=True)
class LinkTraffic:
    """What crossed a link: events, bytes of events, bytes of messages."""

    messages: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0

    def add(self, messages: int, payload_bytes: int, wire_bytes: int) -> None:
        """Count some more."""
        self.messages += messages
        self.payload_bytes += payload_bytes
        self.wire_bytes += wire_bytes


@dataclass(slots=True)
class StepResult:
    """What a step comes to.

    sent       (epoch, neighbour) -> what goes over that link
    published  the events that clients published, as they were routed, with `epoch`
    readable   how many events could be read, also those outside the rows that were asked for
    dropped    deliveries to muted clients, which nobody gets
    strays     events that came by a channel which does not lead here, by this broker's revision of the plan
    changed    the state of the stepper changed, and is among the outputs: they must be one write
    """

    outputs: list[Output] = field(default_factory=list)
    rejected: list[RejectedMessage] = field(default_factory=list)
    events_in: int = 0
    frames_in: int = 0
    matchings: int = 0
    deliveries: int = 0
    dropped: int = 0
    strays: int = 0
    epoch: int = -1
    sent: dict[tuple[int, str], LinkTraffic] = field(default_factory=dict)
    published: list[pa.RecordBatch] = field(default_factory=list)
    readable: int = 0
    changed: bool = False

    @property
    def fits(self) -> bool:
        """Whether all messages for neighbours can be written at once, and all of any lane.

        Then no crash can divide what neighbours get: half of it by one revision of a plan and half by
        another would lose events or double them.
        """
        if self.changed:
            return len(self.outputs) <= MOST_MESSAGES
        per_lane = Counter(output.lane for output in self.outputs)
        links = sum(count for lane, count in per_lane.items() if lane.startswith(LINK))
        return max(links, *per_lane.values(), 0) <= MOST_MESSAGES


Deliveries: TypeAlias = dict[tuple[str, tuple[str, ...]], list[pa.RecordBatch]]
"""(client, ids of subscriptions) -> events for them."""


class StepState(Protocol):
    """A state that steps change. A step that does has the new one among its outputs, on `state_lane`.

    The broker says when that is in the log, and what the log has. Until the one or the other, each step
    begins with the state of before.
    """

    state_lane: str

    def settled(self) -> None:
        """The state that was made last is in the log."""

    def load(self, saved: bytes | None) -> None:
        """Go on from the state that the log has; None when it has none."""


class Stepper(ABC):
    """What a broker routes with. What goes out is written here; `step` decides what that is."""

    kept: StepState | None = None

    def __init__(self, name: str, limits: Limits | None = None) -> None:
        self.name = name
        self._limits = limits or Limits()
        self.epoch = -1
        # clients whose deliveries are dropped
        self.muted: set[str] = set()
        # what a message may have, headers included; servers say how much they take
        self.most_bytes = MOST_FRAME_BYTES + (1 << 20)

    @property
    @abstractmethod
    def epochs(self) -> tuple[int, ...]:
        """The epochs that are known here."""

    @abstractmethod
    def step(
        self,
        published: Sequence[ClientMessage],
        linked: Sequence[NeighbourMessage],
        epoch: int | None = None,
        rows: tuple[int, int | None] = (0, None),
    ) -> StepResult:
        """Route what came in. Inputs that cannot be read are rejected; the rest proceeds.

        Clients' events enter the present epoch, or the one given. Of all events that can be read only
        `rows` (first, end) are routed; what cannot be is rejected with the first. More than one message can
        only be routed whole.
        """

    def _hand(
        self,
        events: pa.RecordBatch,
        receivers: Iterable[tuple[str, tuple[str, ...], npt.NDArray[np.int64]]],
        done: StepResult,
        hands: Deliveries,
    ) -> None:
        """Add what clients get of some events: (client, its subscriptions, the rows for them)."""
        # client -> (rows, the subscriptions that they are for)
        wanted: dict[str, list[tuple[npt.NDArray[np.int64], tuple[str, ...]]]] = {}
        for client, ids, rows in receivers:
            count = len(rows) * len(ids)
            if client in self.muted:
                done.dropped += count
                continue
            done.deliveries += count
            wanted.setdefault(client, []).append((rows, ids))
        for client, parts in wanted.items():
            for names, rows in _by_subscriptions(parts):
                part = events if len(rows) == events.num_rows else events.take(rows)
                hands.setdefault((client, names), []).append(part)

    def _write_link(
        self,
        to: str,
        epoch: int,
        headers_of: Callable[[int], dict[str, str]],
        batches: list[pa.RecordBatch],
        done: StepResult,
    ) -> None:
        """Add messages to a neighbour; `headers_of` gives the headers of one with so many events."""
        for events in self._pieces(batches):
            headers = headers_of(events.num_rows)
            payload = self._payload(events, headers, done)
            if payload is None:
                continue
            done.outputs.append(Output(f"{LINK}.{token(to)}", payload, headers))
            size = int(np.asarray(events.column(SIZE_BYTES)).sum())
            wire = len(payload) + _bytes_of(headers)
            done.sent.setdefault((epoch, to), LinkTraffic()).add(events.num_rows, size, wire)

    def _write_hands(self, hands: Deliveries, done: StepResult) -> None:
        """Add messages to clients."""
        for (client, ids), batches in hands.items():
            for events, named in product(self._pieces(batches), list(_named(ids))):
                headers = {"N": str(events.num_rows), "F": named}
                payload = self._payload(events, headers, done)
                if payload is not None:
                    done.outputs.append(Output(f"{DELIVER}.{token(client)}", payload, headers))

    def _payload(
        self, events: pa.RecordBatch, headers: Mapping[str, str], done: StepResult
    ) -> bytes | None:
        """The events as a message has them; None, and rejected, when no message can."""
        payload = encode_events(events)
        size = len(payload) + _bytes_of(headers) + _FRAMING_BYTES
        if size <= self.most_bytes:
            return payload
        columns = [events.column(name).to_pylist() for name in ("publisher", "id")]
        detail = f"it takes {size} bytes on the wire, and the broker's server takes {self.most_bytes}"
        for publisher, id_ in zip(*columns, strict=True):
            done.rejected.append(RejectedMessage(publisher or self.name, 0, id_, TOO_LARGE, detail, b""))
        return None

    def _pieces(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches joined where they agree, each small enough for its readers."""
        most = max(1, min(MOST_FRAME_BYTES, self.most_bytes - (self.most_bytes >> 3) - _FRAMING_BYTES))
        for events in concat(batches):
            yield from split(events, most)


class Node(Stepper):
    """A broker's routers, one per live epoch."""

    def __init__(self, name: str, limits: Limits | None = None) -> None:
        super().__init__(name, limits)
        self._routers: dict[int, tuple[RoutingPlan, Router]] = {}
        self._rules: dict[int, HeaderRules] = {}

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs that are known here."""
        return tuple(sorted(self._routers))

    def clients(self, epoch: int) -> frozenset[str]:
        """The clients that an epoch's plan has subscriptions of, at this broker."""
        routing = self._routers[epoch][0]
        return frozenset(routing.clients_at(routing.plan.overlay.index[self.name]))

    def schema(self) -> Mapping[str, AttributeType]:
        """The types of attributes that filters are read with, in the epoch that events enter."""
        known = self._routers.get(self.epoch)
        return {} if known is None else known[0].plan.classes.schema

    def install(self, epoch: int, routing: RoutingPlan) -> None:
        """Make an epoch known. Events that clients publish enter it once it is the one to `flip` to."""
        here = routing.plan.overlay.index[self.name]
        self._routers[epoch] = routing, Router(routing, here)
        self._rules[epoch] = HeaderRules(routing, here)

    def flip(self, epoch: int) -> None:
        """Let events that come from clients enter this epoch."""
        if epoch not in self._routers:
            raise InputError(
                f"broker {self.name} does not know epoch {epoch}; it has {sorted(self._routers)}"
            )
        self.epoch = epoch

    def forget(self) -> None:
        """Forget all epochs: nothing can be routed until some are installed."""
        self._routers.clear()
        self._rules.clear()
        self.epoch = -1

    def retire(self, epoch: int) -> None:
        """Forget an epoch that no event is in any more."""
        if epoch != self.epoch:
            self._routers.pop(epoch, None)
            self._rules.pop(epoch, None)

    def step(
        self,
        published: Sequence[ClientMessage],
        linked: Sequence[NeighbourMessage],
        epoch: int | None = None,
        rows: tuple[int, int | None] = (0, None),
    ) -> StepResult:
        """See `Stepper`."""
        entered = self.epoch if epoch is None else epoch
        first, end = rows
        done = StepResult(frames_in=0 if first else len(published) + len(linked), epoch=entered)
        sends: dict[tuple[str, int, Header], list[pa.RecordBatch]] = {}
        hands: Deliveries = {}
        if published:
            taken, rejected = take_in_by_client(published, self._limits)
            done.rejected += [] if first else rejected
            done.readable = sum(events.num_rows for events in taken)
            done.published = some_rows(taken, first, done.readable if end is None else end)
            for events in done.published:
                self._route(Frame(events), None, entered, done, sends, hands)
        for (sender, stamped, header), batches in self._frames(linked, done).items():
            joined = concat(batches)
            rows_here = sum(events.num_rows for events in joined)
            done.readable += rows_here
            for events in some_rows(joined, first, rows_here if end is None else end):
                self._route(Frame(events, header), sender, stamped, done, sends, hands)
        self._write(sends, hands, done)
        return done

    def _frames(
        self, linked: Iterable[NeighbourMessage], done: StepResult
    ) -> dict[tuple[str, int, Header], list[pa.RecordBatch]]:
        """The frames of links, those that are routed alike together, in the order of their first."""
        frames: dict[tuple[str, int, Header], list[pa.RecordBatch]] = {}
        for message in linked:
            try:
                epoch, header = _read_headers(message.headers)
                if epoch not in self._routers:
                    raise InputError(f"epoch {epoch} is not known here; known are {sorted(self._routers)}")
                self._rules[epoch].check(message.sender, header)
                events = whole_events(decode_events(message.payload, LINK_LIMITS))
            except (InputError, LimitError) as error:
                raw = message.payload[: 64 << 10]
                done.rejected.append(
                    RejectedMessage(message.sender, message.number, None, "bad_frame", str(error), raw)
                )
                continue
            frames.setdefault((message.sender, epoch, header), []).append(events)
        return frames

    def _route(
        self,
        frame: Frame,
        sender: str | None,
        epoch: int,
        done: StepResult,
        sends: dict[tuple[str, int, Header], list[pa.RecordBatch]],
        hands: Deliveries,
    ) -> None:
        routing, router = self._routers[epoch]
        overlay = routing.plan.overlay
        routed = router.route(frame, None if sender is None else overlay.index[sender], once=True)
        done.events_in += frame.events.num_rows
        done.matchings += routed.matchings
        if not (routed.forwards or routed.deliveries or routed.matchings):
            done.strays += frame.events.num_rows
        for to, onward in routed.forwards:
            assert onward.header is not None
            key = (overlay.brokers[to], epoch, onward.header)
            sends.setdefault(key, []).append(onward.events)
        receivers = (
            (client, ids, delivery.rows)
            for delivery in routed.deliveries
            for client, ids in routing.receivers(delivery.class_id)
        )
        self._hand(frame.events, receivers, done, hands)

    def _write(
        self,
        sends: Mapping[tuple[str, int, Header], list[pa.RecordBatch]],
        hands: Deliveries,
        done: StepResult,
    ) -> None:
        for (to, epoch, header), batches in sends.items():
            self._write_link(to, epoch, partial(_headers, epoch, header), batches, done)
        self._write_hands(hands, done)


def some_rows(batches: Sequence[pa.RecordBatch], first: int, end: int) -> list[pa.RecordBatch]:
    """The rows from `first` to before `end` of batches that lie one behind the other."""
    found = []
    for events in batches:
        low, high = max(0, first), min(events.num_rows, end)
        if low < high:
            found.append(events.slice(low, high - low))
        first, end = first - events.num_rows, end - events.num_rows
    return found


def _by_subscriptions(
    parts: list[tuple[npt.NDArray[np.int64], tuple[str, ...]]],
) -> Iterator[tuple[tuple[str, ...], npt.NDArray[np.int64]]]:
    """The rows of a client that are for the same subscriptions, ascending, in the order of their first."""
    if len(parts) == 1:  # no work per event where one filter wants many
        ((rows, ids),) = parts
        yield tuple(sorted(ids)), rows
        return
    at: dict[int, list[str]] = {}
    for rows, ids in parts:
        for row in rows.tolist():
            at.setdefault(row, []).extend(ids)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in sorted(at):
        groups.setdefault(tuple(sorted(at[row])), []).append(row)
    for names, members in groups.items():
        yield names, np.array(members)


def _named(ids: Sequence[str]) -> Iterator[str]:
    """Subscriptions as JSON lists that headers can hold: a server takes 64 KiB of them."""
    some: list[str] = []
    size = 0
    for id_ in ids:
        more = len(json.dumps(id_)) + 2
        if some and size + more > _MOST_NAMED_BYTES:
            yield json.dumps(some)
            some, size = [], 0
        some.append(id_)
        size += more
    yield json.dumps(some)


def whole_events(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events of a frame, each with an id and a size. Raises `InputError`."""
    for name in ("id", SIZE_BYTES):
        if events.column(name).null_count:
            raise InputError(f"the column {name} has nulls; write a value in each row")
    return events


def _bytes_of(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.items())


def _headers(epoch: int, header: Header, events: int) -> dict[str, str]:
    found = {"E": str(epoch), "H": base64.b64encode(header.encode()).decode(), "N": str(events)}
    if header.kind is HeaderKind.NOTE:
        found["C"] = ",".join(map(str, header.channels))
    return found


def _read_headers(headers: Mapping[str, str]) -> tuple[int, Header]:
    """The epoch and the routing header of a message. Raises `InputError`."""
    try:
        epoch = int(headers["E"])
        header = Header.decode(base64.b64decode(headers["H"], validate=True))
        if header.kind is HeaderKind.NOTE:
            header = replace(header, channels=tuple(int(c) for c in headers["C"].split(",")))
    except (KeyError, ValueError, binascii.Error) as error:
        raise InputError(f"a frame without readable headers: {error!r}") from None
    return epoch, header
