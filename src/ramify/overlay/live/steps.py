"""One step of a broker: what came in on all inputs, routed, and what goes out on all lanes. Pure.

Owns how frames look on the wire, and how the events of many frames are put together so that a busy broker
routes and writes few large frames instead of many small ones. The routing itself is
`ramify.overlay.router`.

A message on a link has the frame's events as its payload and these headers:

    E   the epoch that it is routed by, from its first broker to its last
    H   the routing header (`ramify.overlay.headers`), base64
    C   of a notification: its channels (see `Router.owned`)
    N   how many events

A message to a client has N, and in F the ids of the subscriptions that its events are for, as JSON.
"""

import base64
import binascii
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ramify.errors import InputError
from ramify.overlay.headers import Header, Kind
from ramify.overlay.live.intake import (
    Limits,
    Published,
    Rejected,
    concat,
    decode_events,
    encode_events,
    take_in_by_client,
)
from ramify.overlay.live.log import Output
from ramify.overlay.live.names import DELIVER, LINK, token
from ramify.overlay.router import Frame, Router, RoutingPlan

__all__ = ["Linked", "Node", "Stepped"]


@dataclass(frozen=True, slots=True)
class Linked:
    """A message that a neighbour sent."""

    sender: str
    number: int
    headers: Mapping[str, str]
    payload: bytes


@dataclass(slots=True)
class Stepped:
    """What a step comes to. Per neighbour: events (`messages`), bytes of events and bytes of messages."""

    outputs: list[Output] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    events_in: int = 0
    frames_in: int = 0
    matchings: int = 0
    deliveries: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    payload: Counter[str] = field(default_factory=Counter)
    wire: Counter[str] = field(default_factory=Counter)


class Node:
    """A broker's routers, one per live epoch."""

    def __init__(self, name: str, limits: Limits | None = None) -> None:
        self.name = name
        self._limits = limits or Limits()
        self._routers: dict[int, tuple[RoutingPlan, Router]] = {}
        self.epoch = -1

    def install(self, epoch: int, routing: RoutingPlan) -> None:
        """Make an epoch known. Events that clients publish enter it once it is the one to `flip` to."""
        self._routers[epoch] = routing, Router(routing, routing.plan.overlay.index[self.name])

    def flip(self, epoch: int) -> None:
        """Let events that come from clients enter this epoch."""
        if epoch not in self._routers:
            raise InputError(
                f"broker {self.name} does not know epoch {epoch}; it has {sorted(self._routers)}"
            )
        self.epoch = epoch

    def retire(self, epoch: int) -> None:
        """Forget an epoch that no event is in any more."""
        if epoch != self.epoch:
            self._routers.pop(epoch, None)

    def step(self, published: Sequence[Published], linked: Sequence[Linked]) -> Stepped:
        """Route what came in. Inputs that cannot be read are rejected; the rest proceeds."""
        done = Stepped(frames_in=len(published) + len(linked))
        sends: dict[tuple[str, int, Header], list[pa.RecordBatch]] = {}
        hands: dict[tuple[str, tuple[str, ...]], list[pa.RecordBatch]] = {}
        if published:
            taken, rejected = take_in_by_client(published, self._limits)
            done.rejected += rejected
            for events in taken:
                self._route(Frame(events), None, self.epoch, done, sends, hands)
        for (sender, epoch, header), batches in self._frames(linked, done).items():
            for events in concat(batches):
                self._route(Frame(events, header), sender, epoch, done, sends, hands)
        self._write(sends, hands, done)
        return done

    def _frames(
        self, linked: Iterable[Linked], done: Stepped
    ) -> dict[tuple[str, int, Header], list[pa.RecordBatch]]:
        """The frames of links, those that are routed alike together, in the order of their first."""
        frames: dict[tuple[str, int, Header], list[pa.RecordBatch]] = {}
        for message in linked:
            try:
                epoch, header = _read_headers(message.headers)
                if epoch not in self._routers:
                    raise InputError(f"epoch {epoch} is not known here; known are {sorted(self._routers)}")
                events = decode_events(message.payload, self._limits)
            except InputError as error:
                raw = message.payload[: 64 << 10]
                done.rejected.append(
                    Rejected(message.sender, message.number, None, "bad_frame", str(error), raw)
                )
                continue
            frames.setdefault((message.sender, epoch, header), []).append(events)
        return frames

    def _route(
        self,
        frame: Frame,
        sender: str | None,
        epoch: int,
        done: Stepped,
        sends: dict[tuple[str, int, Header], list[pa.RecordBatch]],
        hands: dict[tuple[str, tuple[str, ...]], list[pa.RecordBatch]],
    ) -> None:
        routing, router = self._routers[epoch]
        overlay = routing.plan.overlay
        routed = router.route(frame, None if sender is None else overlay.index[sender], once=True)
        done.events_in += frame.events.num_rows
        done.matchings += routed.matchings
        for to, onward in routed.forwards:
            assert onward.header is not None
            key = (overlay.brokers[to], epoch, onward.header)
            sends.setdefault(key, []).append(onward.events)
        # client -> row -> the subscriptions that it is for
        wanted: dict[str, dict[int, list[str]]] = {}
        for delivery in routed.deliveries:
            for subscription in routing.plan.classes.members[delivery.class_id]:
                rows = wanted.setdefault(subscription.client, {})
                for row in delivery.rows.tolist():
                    rows.setdefault(row, []).append(subscription.id)
                done.deliveries += len(delivery.rows)
        for client, rows in wanted.items():
            groups: dict[tuple[str, ...], list[int]] = {}
            for row in sorted(rows):
                groups.setdefault(tuple(sorted(rows[row])), []).append(row)
            for ids, members in groups.items():
                part = frame.events.take(pa.array(members))
                hands.setdefault((client, ids), []).append(part)

    def _write(
        self,
        sends: Mapping[tuple[str, int, Header], list[pa.RecordBatch]],
        hands: Mapping[tuple[str, tuple[str, ...]], list[pa.RecordBatch]],
        done: Stepped,
    ) -> None:
        for (to, epoch, header), batches in sends.items():
            for events in concat(batches):
                payload = encode_events(events)
                headers = _headers(epoch, header, events.num_rows)
                done.outputs.append(Output(f"{LINK}.{token(to)}", payload, headers))
                done.messages[to] += events.num_rows
                done.payload[to] += int(np.asarray(events.column("_size_bytes")).sum())
                done.wire[to] += len(payload) + sum(len(k) + len(v) + 4 for k, v in headers.items())
        for (client, ids), batches in hands.items():
            for events in concat(batches):
                headers = {"N": str(events.num_rows), "F": json.dumps(ids)}
                lane = f"{DELIVER}.{token(client)}"
                done.outputs.append(Output(lane, encode_events(events), headers))


def _headers(epoch: int, header: Header, events: int) -> dict[str, str]:
    found = {"E": str(epoch), "H": base64.b64encode(header.encode()).decode(), "N": str(events)}
    if header.kind is Kind.NOTE:
        found["C"] = ",".join(map(str, header.channels))
    return found


def _read_headers(headers: Mapping[str, str]) -> tuple[int, Header]:
    """The epoch and the routing header of a message. Raises `InputError`."""
    try:
        epoch = int(headers["E"])
        header = Header.decode(base64.b64decode(headers["H"], validate=True))
        if header.kind is Kind.NOTE:
            header = replace(header, channels=tuple(int(c) for c in headers["C"].split(",")))
    except (KeyError, ValueError, binascii.Error) as error:
        raise InputError(f"a frame without readable headers: {error!r}") from None
    return epoch, header
