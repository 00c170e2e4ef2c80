"""One step of a broker: what came in on all inputs, routed, and what goes out on all lanes. Pure.

Owns how frames look on the wire, and how the events of many frames are put together so that a busy broker
routes and writes few large frames instead of many small ones. The routing itself is
`ramify.overlay.routing.router`.

A message on a link has the frame's events as its payload and these headers:

    E   the epoch that it is routed by, from its first broker to its last
    H   the routing headers that its events have (`ramify.overlay.routing.headers`): base64, with commas
    C   if some are notifications: the channels of each (see `Router.owned`), with semicolons
    N   how many events

A message to a client has N, and in F the ids of the subscriptions that its events are for, as JSON. If the
events are for different ones, F is a list of such lists.

Where H or F has several entries, the column `_entry` of the payload says which of them each event has. So
events that are routed apart, or are for other subscriptions, still go out in the order in which they came:
per epoch and neighbour, and per client, each publisher's events keep their order.

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
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.events.events import SIZE_BYTES, AttributeType
from ramify.errors import InputError, LimitError
from ramify.overlay.control.frames import (
    MOST_FRAME_BYTES,
    Limits,
    decode_entries,
    encode_events,
)
from ramify.overlay.control.intake import ClientMessage, RejectedMessage, take_in_by_client
from ramify.overlay.control.mixtures import Mixture, cut, mix, mixture_of_rows
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


Longs = npt.NDArray[np.int64]

Deliveries: TypeAlias = dict[str, list[Mixture[tuple[str, ...]]]]
"""Client -> events, with the ids of its subscriptions that they are for."""


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


Intake: TypeAlias = tuple[list[pa.RecordBatch], list[RejectedMessage]]
"""Events that could be read, and what could not."""


def _are_same(some: Sequence[ClientMessage], others: Sequence[ClientMessage]) -> bool:
    """Whether these are the same messages; payloads are not compared when they are one object."""
    return len(some) == len(others) and all(
        a.payload is b.payload
        and (a.client, a.position, a.id, a.content_type) == (b.client, b.position, b.id, b.content_type)
        for a, b in zip(some, others, strict=True)
    )


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
        # what was read last, and from which messages: a step that is cut, or tried again, needs it again
        self._intake: tuple[tuple[ClientMessage, ...], Intake] | None = None

    def take_in(self, published: Sequence[ClientMessage]) -> Intake:
        """The events of clients' messages (`take_in_by_client`); of the same messages again it is known.

        Reading many attributes takes long. It touches nothing else of the broker, so it may be done in
        another thread before the step, which then finds it done.
        """
        messages = tuple(published)
        known = self._intake
        if known is None or not _are_same(known[0], messages):
            known = self._intake = messages, take_in_by_client(messages, self._limits)
        return known[1]

    def forget_intake(self) -> None:
        """A step is done: its messages do not come again."""
        self._intake = None

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
        wanted: dict[str, list[tuple[Longs, tuple[str, ...]]]] = {}
        for client, ids, rows in receivers:
            count = len(rows) * len(ids)
            if client in self.muted:
                done.dropped += count
                continue
            done.deliveries += count
            wanted.setdefault(client, []).append((rows, ids))
        for client, parts in wanted.items():
            hands.setdefault(client, []).append(mixture_of_rows(events, _by_subscriptions(parts)))

    def _write_link(
        self,
        to: str,
        epoch: int,
        headers_of: Callable[[Mixture[Any]], dict[str, str]],
        parts: Sequence[Mixture[Any]],
        done: StepResult,
    ) -> None:
        """Add messages to a neighbour; `headers_of` gives the headers of one."""
        for events, headers, payload in self._messages(parts, headers_of, _size_of_header, done):
            done.outputs.append(Output(f"{LINK}.{token(to)}", payload, headers))
            size = int(np.asarray(events.column(SIZE_BYTES)).sum())
            wire = len(payload) + _bytes_of(headers)
            done.sent.setdefault((epoch, to), LinkTraffic()).add(events.num_rows, size, wire)

    def _write_hands(self, hands: Deliveries, done: StepResult) -> None:
        """Add messages to clients."""
        for client, parts in hands.items():
            for some in _nameable(parts):
                for _, headers, payload in self._messages(some, _delivery_headers, _size_of_ids, done):
                    done.outputs.append(Output(f"{DELIVER}.{token(client)}", payload, headers))

    def _messages(
        self,
        parts: Sequence[Mixture[Any]],
        headers_of: Callable[[Mixture[Any]], dict[str, str]],
        size_of: Callable[[Any], int],
        done: StepResult,
    ) -> Iterator[tuple[pa.RecordBatch, dict[str, str], bytes]]:
        """Events joined where they agree, as messages that readers and server take. An event that none can
        hold is rejected."""
        most = max(1, min(MOST_FRAME_BYTES, self.most_bytes - (self.most_bytes >> 3) - _FRAMING_BYTES))
        waiting = [piece for whole in mix(parts) for piece in cut(whole, most, size_of, _MOST_NAMED_BYTES)][
            ::-1
        ]
        while waiting:
            piece = waiting.pop()
            events = piece.events
            headers, payload = headers_of(piece), encode_events(events, piece.places)
            size = len(payload) + _bytes_of(headers) + _FRAMING_BYTES
            if size <= self.most_bytes:
                yield events, headers, payload
            elif events.num_rows > 1:
                half = events.num_rows // 2
                waiting += [piece.part(half, events.num_rows), piece.part(0, half)]
            else:
                (publisher,), (id_,) = (events.column(name).to_pylist() for name in ("publisher", "id"))
                detail = (
                    f"it takes {size} bytes on the wire, and the broker's server takes {self.most_bytes}"
                )
                done.rejected.append(
                    RejectedMessage(publisher or self.name, 0, id_, TOO_LARGE, detail, b"")
                )


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
        sends: _Sends = {}
        hands: Deliveries = {}
        if published:
            taken, rejected = self.take_in(published)
            done.rejected += [] if first else rejected
            done.readable = sum(events.num_rows for events in taken)
            done.published = some_rows(taken, first, done.readable if end is None else end)
            for events in done.published:
                self._route(Mixture(events, (None,)), None, entered, done, sends, hands)
        for (sender, stamped), parts in self._frames(linked, done).items():
            joined = mix(parts)
            rows_here = sum(part.events.num_rows for part in joined)
            done.readable += rows_here
            for part in _some_parts(joined, first, rows_here if end is None else end):
                self._route(part, sender, stamped, done, sends, hands)
        for (to, stamped), going in sends.items():
            self._write_link(to, stamped, partial(_headers, stamped), going, done)
        self._write_hands(hands, done)
        return done

    def _frames(
        self, linked: Iterable[NeighbourMessage], done: StepResult
    ) -> dict[tuple[str, int], list[Mixture[Header | None]]]:
        """The frames of links, by sender and epoch, in the order in which they came."""
        frames: dict[tuple[str, int], list[Mixture[Header | None]]] = {}
        for message in linked:
            try:
                epoch, headers = _read_headers(message.headers)
                if epoch not in self._routers:
                    raise InputError(f"epoch {epoch} is not known here; known are {sorted(self._routers)}")
                for header in headers:
                    self._rules[epoch].check(message.sender, header)
                events, places = decode_entries(message.payload)
                part = _checked_mixture(whole_events(events), headers, places)
            except (InputError, LimitError) as error:
                raw = message.payload[: 64 << 10]
                done.rejected.append(
                    RejectedMessage(message.sender, message.number, None, "bad_frame", str(error), raw)
                )
                continue
            frames.setdefault((message.sender, epoch), []).append(part)
        return frames

    def _route(
        self,
        came: Mixture[Header | None],
        sender: str | None,
        epoch: int,
        done: StepResult,
        sends: "_Sends",
        hands: Deliveries,
    ) -> None:
        """Route events, those of a header together. What goes one way keeps the order in which it came."""
        routing, router = self._routers[epoch]
        overlay = routing.plan.overlay
        came_by = None if sender is None else overlay.index[sender]
        going: dict[int, list[tuple[Header | None, Longs | None]]] = {}
        receivers: list[tuple[str, tuple[str, ...], Longs]] = []
        for header, rows in came.groups():
            events = came.events if rows is None else came.events.take(rows)
            routed = router.route_rows(Frame(events, header), came_by, once=True)
            done.events_in += events.num_rows
            done.matchings += routed.matchings
            if not (routed.forwards or routed.deliveries or routed.matchings):
                done.strays += events.num_rows
            for to, onward, some in routed.forwards:
                going.setdefault(to, []).append((onward, _within(rows, some)))
            for delivery in routed.deliveries:
                wanted = delivery.rows if rows is None else rows[delivery.rows]
                receivers += [(client, ids, wanted) for client, ids in routing.receivers(delivery.class_id)]
        for to, chosen in going.items():
            key = overlay.brokers[to], epoch
            sends.setdefault(key, []).append(mixture_of_rows(came.events, chosen))
        self._hand(came.events, receivers, done, hands)


_Sends: TypeAlias = dict[tuple[str, int], list[Mixture[Header | None]]]
"""(neighbour, epoch) -> events, with their routing headers."""


def _within(rows: Longs | None, some: Longs | None) -> Longs | None:
    """Rows of a batch, by their places among some rows of it; None is all."""
    if rows is None or some is None:
        return some if rows is None else rows
    return rows[some]


def _checked_mixture(
    events: pa.RecordBatch, headers: Sequence[Header], places: Longs | None
) -> Mixture[Header | None]:
    """What a message says of its events. Raises `InputError` when column and headers do not agree."""
    if (places is None) != (len(headers) == 1):
        raise InputError(
            f"a frame with {len(headers)} routing headers, and a column that does not fit them"
        )
    if places is not None and len(places) and not 0 <= places.min() <= places.max() < len(headers):
        raise InputError(f"an event has a routing header beyond the {len(headers)} of its frame")
    return Mixture(events, tuple(headers), places)


def _some_parts(
    parts: Sequence[Mixture[Header | None]], first: int, end: int
) -> list[Mixture[Header | None]]:
    """As `some_rows`."""
    found = []
    for part in parts:
        rows = part.events.num_rows
        low, high = max(0, first), min(rows, end)
        if low < high:
            found.append(part if high - low == rows else part.part(low, high))
        first, end = first - rows, end - rows
    return found


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
    parts: list[tuple[Longs, tuple[str, ...]]],
) -> Iterator[tuple[tuple[str, ...], Longs]]:
    """The rows of a client that are for the same subscriptions, in the order of their first."""
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


def _nameable(
    parts: Sequence[Mixture[tuple[str, ...]]],
) -> Iterator[Sequence[Mixture[tuple[str, ...]]]]:
    """The events of a client, such that the subscriptions of each can be named in a header.

    Where an event is for more, it comes once for some and again for others. Each subscription is in one of
    the sequences only, so for each of them the order stays.
    """
    if all(_size_of_ids(ids) <= _MOST_NAMED_BYTES for part in parts for ids in part.entries):
        yield parts
        return
    names = sorted({id_ for part in parts for ids in part.entries for id_ in ids})
    some: set[str] = set()
    size = 0
    for id_ in names:
        more = _size_of_ids((id_,))
        if some and size + more > _MOST_NAMED_BYTES:
            yield _for_some(parts, some)
            some, size = set(), 0
        some.add(id_)
        size += more
    yield _for_some(parts, some)


def _for_some(
    parts: Sequence[Mixture[tuple[str, ...]]], some: set[str]
) -> Sequence[Mixture[tuple[str, ...]]]:
    """What is for some of a client's subscriptions."""
    found = []
    for part in parts:
        chosen = [
            (left, rows)
            for ids, rows in part.groups()
            if (left := tuple(id_ for id_ in ids if id_ in some))
        ]
        if chosen:
            found.append(mixture_of_rows(part.events, chosen))
    return found


def _size_of_ids(ids: tuple[str, ...]) -> int:
    return sum(len(json.dumps(id_)) + 2 for id_ in ids) + 4


def _delivery_headers(part: Mixture[tuple[str, ...]]) -> dict[str, str]:
    named = part.entries[0] if part.places is None else part.entries
    return {"N": str(part.events.num_rows), "F": json.dumps(named)}


def whole_events(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events of a frame, each with an id and a size. Raises `InputError`."""
    for name in ("id", SIZE_BYTES):
        if events.column(name).null_count:
            raise InputError(f"the column {name} has nulls; write a value in each row")
    return events


def _bytes_of(headers: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.items())


def _size_of_header(header: Header | None) -> int:
    """What a routing header takes among the headers of a message."""
    if header is None:
        return 0
    return 4 * ((len(header.encode()) + 2) // 3) + 1 + 8 * (len(header.channels) + 1)


def _headers(epoch: int, part: Mixture[Header]) -> dict[str, str]:
    texts = [base64.b64encode(header.encode()).decode() for header in part.entries]
    found = {"E": str(epoch), "H": ",".join(texts), "N": str(part.events.num_rows)}
    if any(header.kind is HeaderKind.NOTE for header in part.entries):
        found["C"] = ";".join(_channels_of(header) for header in part.entries)
    return found


def _channels_of(header: Header) -> str:
    return ",".join(map(str, header.channels)) if header.kind is HeaderKind.NOTE else ""


def _read_headers(headers: Mapping[str, str]) -> tuple[int, list[Header]]:
    """The epoch and the routing headers of a message. Raises `InputError`."""
    try:
        epoch = int(headers["E"])
        found = [Header.decode(base64.b64decode(text, validate=True)) for text in headers["H"].split(",")]
        if any(header.kind is HeaderKind.NOTE for header in found):
            channels = headers["C"].split(";")
            found = [
                header
                if header.kind is not HeaderKind.NOTE
                else replace(header, channels=tuple(int(c) for c in said.split(",")))
                for header, said in zip(found, channels, strict=True)
            ]
    except (KeyError, ValueError, binascii.Error) as error:
        raise InputError(f"a frame without readable headers: {error!r}") from None
    return epoch, found
