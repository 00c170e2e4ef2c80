"""One step of a broker that makes matches: events along data channels, packets of the protocol. Pure.

Owns how matchmaking looks on the wire, and what a broker keeps of it. Messages on links are taken in their
order, packets and events alike, and go out in the order in which they were made: so a channel is open where
an event comes that was sent over it, and an event that was sent before a channel's end still arrives.

    M   of a packet: which piece of it this is, of how many (`1/1`); the payload is the packet
    O   of events: the token of the broker that they entered at
    N   how many events               E   always 0: there are no epochs

What the broker knows (`_NodeRecord`) is written with the outputs of the step that changed it, on the lane
MATCH. It holds the state of the protocol, what clients asked for, and pieces of packets
that have not come whole.

An event outside the advertisements of its publisher is rejected (`outside_advertisement`). A packet that
cannot be is rejected (`bad_packet`), as are all that follow from that neighbour: it must begin anew.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ramify.content.events.events import AttributeType, batch_to_events
from ramify.errors import InputError, LimitError, RamifyError
from ramify.overlay.control.frames import LINK_LIMITS, Limits, concat, decode_events
from ramify.overlay.control.intake import (
    RAW_BYTES,
    ClientMessage,
    RejectedMessage,
    take_in_by_client,
    to_cloudevent,
)
from ramify.overlay.control.mixtures import Mixture
from ramify.overlay.control.names import LINK, MATCH, name_of, token
from ramify.overlay.control.output import Output, value_pieces
from ramify.overlay.control.records import (
    Advertisement,
    Answer,
    ClientRecord,
    ClientSubscription,
    ForwardedRequest,
    subscription_of,
)
from ramify.overlay.control.requests import RequestLimits, ask
from ramify.overlay.control.steps import (
    Deliveries,
    NeighbourMessage,
    Stepper,
    StepResult,
    some_rows,
    whole_events,
)
from ramify.overlay.matchmaking.batch_table import BatchTable
from ramify.overlay.matchmaking.broker import MatchBroker, Packets
from ramify.overlay.matchmaking.messages import Descriptor, decode_packet, encode_packet
from ramify.overlay.matchmaking.state import TreePlace

__all__ = ["BAD_PACKET", "OUTSIDE_ADVERTISEMENT", "MatchNode"]

OUTSIDE_ADVERTISEMENT, BAD_PACKET = "outside_advertisement", "bad_packet"
"""Why an event, or a neighbour's packet, was rejected."""

_PIECE_BYTES = 512 << 10
_MOST_GONE = 256
_MOST_PACKETS = 400
_SIZE_BYTES = 8


class _NodeRecord(msgspec.Struct):
    """What a broker keeps: see the module. `gone` are subscriptions and advertisements that were taken
    back last, so that a client that missed the answer and asks again gets the same one."""

    state: bytes
    clients: dict[str, ClientRecord] = {}
    parts: dict[str, list[bytes]] = {}
    gone: list[tuple[str, str]] = []


class _BadPacketError(Exception):
    def __init__(self, place: int, reason: str) -> None:
        self.place = place
        self.reason = reason


class _StepOutput:
    """What a step has routed and not yet written: by neighbour and origin, and by client."""

    def __init__(self) -> None:
        self.sends: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self.hands: Deliveries = {}
        # (sender, origin) -> frames that came and are not routed yet
        self.came: dict[tuple[str, str], list[pa.RecordBatch]] = {}


class MatchNode(Stepper):
    """See the module. A step with packets costs the writing of the state; one without, none of it."""

    state_lane = MATCH

    def __init__(
        self,
        place: TreePlace,
        limits: Limits | None = None,
        schema: Mapping[str, AttributeType] | None = None,
    ) -> None:
        super().__init__(place.name, limits)
        self.epoch = 0
        self.kept = self
        self.place = place
        self.schema = dict(schema or {})
        self.match = MatchBroker(place, self.schema)
        self.clients: dict[str, ClientRecord] = {}
        # the last packet that was rejected
        self.trouble = ""
        self._table = BatchTable(lambda: self.match.state, self.match.filters)
        self._parts: dict[str, list[bytes]] = {}
        self._gone: list[tuple[str, str]] = []
        self._new = self._saved = self._encoded()
        # what is decided and not known to be in the log
        self._pending: bytes | None = None
        self._changed = False

    @property
    def epochs(self) -> tuple[int, ...]:
        """There is one, for good."""
        return (0,)

    # -------------------------------------------------------------------------------------- the state

    def settled(self) -> None:
        """See `Kept`."""
        if self._pending is not None:
            self._saved, self._pending, self._changed = self._pending, None, False

    def load(self, saved: bytes | None) -> None:
        """See `Kept`. Raises `InputError` for a state that is none, or of another place."""
        self._saved, self._changed = self._new if saved is None else saved, True
        self._go_back()

    def _go_back(self) -> None:
        """Be as the log has it."""
        if not self._changed:
            return
        self._pending = None
        kept = _decoded(self._saved)
        self.match.go_back(kept.state)
        self.clients, self._parts, self._gone = kept.clients, kept.parts, kept.gone
        if self.match.state.place != self.place:
            raise InputError(
                f"broker {self.name} has made matches at another place: the overlay or the trees were "
                "changed. Give all brokers the former ones, or new directories"
            )
        self._changed = False

    def _encoded(self) -> bytes:
        data = msgspec.msgpack.encode(
            _NodeRecord(self.match.snapshot(), self.clients, self._parts, self._gone)
        )
        packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
        return len(data).to_bytes(_SIZE_BYTES, "big") + packed

    def _state_outputs(self) -> list[Output]:
        self._pending = self._encoded()
        return value_pieces(MATCH, self._pending, self._most_piece)

    @property
    def _most_piece(self) -> int:
        return max(1, min(_PIECE_BYTES, self.most_bytes // 4))

    # ----------------------------------------------------------------------------------------- steps

    def step(
        self,
        published: Sequence[ClientMessage],
        linked: Sequence[NeighbourMessage],
        epoch: int | None = None,
        rows: tuple[int, int | None] = (0, None),
    ) -> StepResult:
        """See `Stepper`."""
        bad: dict[int, str] = {}
        while True:
            self._go_back()
            try:
                return self._stepped(published, linked, rows, bad)
            except _BadPacketError as error:
                # it may have been heard in part: once more, without it
                bad[error.place] = error.reason

    def _stepped(
        self,
        published: Sequence[ClientMessage],
        linked: Sequence[NeighbourMessage],
        rows: tuple[int, int | None],
        bad: Mapping[int, str],
    ) -> StepResult:
        done = StepResult(frames_in=0 if rows[0] else len(published) + len(linked), epoch=0)
        going = _StepOutput()
        for place, message in enumerate(linked):
            if place in bad:
                self.trouble = f"a packet of {message.sender} was rejected: {bad[place]}"
                done.rejected.append(_unusable(message, BAD_PACKET, bad[place]))
            elif "M" in message.headers:
                self._route_came(going, rows, done)
                packets = self._hear(message, place)
                if packets:
                    # what was routed before goes before
                    self._write(going, done)
                    done.outputs += self._packet_outputs(packets)
            else:
                self._take_frame(message, going, rows[0] == 0, done)
        self._route_came(going, rows, done)
        if published:
            self._route_published(published, going, rows, done)
        self._write(going, done)
        if self._changed:
            done.outputs += self._state_outputs()
            done.changed = True
        return done

    def _hear(self, message: NeighbourMessage, place: int) -> Packets:
        """What a packet comes to, once all of it is here."""
        self._changed = True
        try:
            number, _, of = message.headers["M"].partition("/")
            parts = self._parts.pop(message.sender, []) if int(number) > 1 else []
            if len(parts) != int(number) - 1:
                raise InputError(f"piece {number} of a packet came after {len(parts)}")
            parts.append(message.payload)
            if len(parts) < int(of):
                self._parts[message.sender] = parts
                return {}
            return self.match.receive(message.sender, decode_packet(b"".join(parts)))
        except (RamifyError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            # what a neighbour says must not end this broker
            raise _BadPacketError(place, str(error) or repr(error)) from None

    def _packet_outputs(self, packets: Packets) -> list[Output]:
        found = []
        for neighbour, packet in packets.items():
            pieces = value_pieces(f"{LINK}.{token(neighbour)}", encode_packet(packet), self._most_piece)
            found += [
                Output(each.lane, each.payload, {"E": "0", "M": each.headers["K"]}) for each in pieces
            ]
        return found

    def _take_frame(
        self, message: NeighbourMessage, going: _StepOutput, first: bool, done: StepResult
    ) -> None:
        try:
            origin = name_of(message.headers.get("O", ""))
            if self.place.parent.get(origin) != message.sender:
                raise InputError(f"events of {origin[:80]!r} do not come here from {message.sender}")
            events = whole_events(decode_events(message.payload, LINK_LIMITS))
        except (InputError, LimitError) as error:
            if first:
                done.rejected.append(_unusable(message, "bad_frame", str(error)))
            return
        going.came.setdefault((message.sender, origin), []).append(events)

    def _route_came(self, going: _StepOutput, rows: tuple[int, int | None], done: StepResult) -> None:
        first, end = rows
        for (_, origin), batches in going.came.items():
            joined = concat(batches)
            count = sum(events.num_rows for events in joined)
            done.readable += count
            for events in some_rows(joined, first, count if end is None else end):
                if not self._route(origin, events, going, done):
                    done.strays += events.num_rows
        going.came.clear()

    def _route_published(
        self,
        published: Sequence[ClientMessage],
        going: _StepOutput,
        rows: tuple[int, int | None],
        done: StepResult,
    ) -> None:
        first, end = rows
        taken, rejected = self.take_in(published)
        done.rejected += [] if first else rejected
        done.readable += (count := sum(events.num_rows for events in taken))
        refused: list[pa.RecordBatch] = []
        for events in some_rows(taken, first, count if end is None else end):
            inside = self._table.inside(events)
            if not inside.all():
                refused.append(events.take(np.flatnonzero(~inside)))
                events = events.take(np.flatnonzero(inside))
            if events.num_rows:
                done.published.append(events)
                self._route(self.name, events, going, done)
        if refused:
            done.rejected += self._refused(refused, published)

    def _refused(
        self, batches: Iterable[pa.RecordBatch], published: Sequence[ClientMessage]
    ) -> list[RejectedMessage]:
        """Events outside, each with the message that it came in. Cost: one more reading of those."""
        places: dict[tuple[str, str], list[int]] = {}
        concerned = {name for batch in batches for name in batch.column("publisher").to_pylist()}
        for message in published:
            if message.client in concerned:
                for batch in take_in_by_client([message], self._limits)[0]:
                    for id_ in map(str, batch.column("id").to_pylist()):
                        places.setdefault((message.client, id_), []).append(message.position)
        found = []
        for batch in batches:
            for row, event in enumerate(batch_to_events(batch)):
                client, at = str(event.publisher), places.get((str(event.publisher), event.id), [])
                why = self.match.table.refusal(client, event.values)
                raw = msgspec.json.encode(to_cloudevent(batch, row))[:RAW_BYTES]
                place = at.pop(0) if at else 0
                found.append(
                    RejectedMessage(client, place, event.id, OUTSIDE_ADVERTISEMENT, why or "", raw)
                )
        return found

    def _route(self, origin: str, events: pa.RecordBatch, going: _StepOutput, done: StepResult) -> bool:
        """Whether anyone gets anything."""
        spread = self._table.route(origin, events)
        done.events_in += events.num_rows
        done.matchings += events.num_rows
        for neighbour, rows in spread.neighbours.items():
            part = events if len(rows) == events.num_rows else events.take(rows)
            going.sends.setdefault((neighbour, origin), []).append(part)
        own = self.match.state.own_subs
        receivers = (
            (own[id_].client, (_asked_id(id_),), rows)
            for id_, rows in spread.subscriptions.items()
            if id_ in own
        )
        self._hand(events, receivers, done, going.hands)
        return bool(spread.neighbours or spread.subscriptions)

    def _write(self, going: _StepOutput, done: StepResult) -> None:
        for (to, origin), batches in going.sends.items():
            parts = [Mixture(events, (origin,)) for events in batches]
            self._write_link(to, 0, partial(_headers, origin), parts, done)
        self._write_hands(going.hands, done)
        going.sends.clear()
        going.hands.clear()

    # -------------------------------------------------------------------------------------- requests

    def apply(self, requests: Sequence[ForwardedRequest]) -> tuple[list[Answer], list[Output]]:
        """Do the first of these requests, as many as one write takes, at least one: their answers, and what
        is to be written. They count when that is `settled`."""
        self._go_back()
        answers: list[Answer] = []
        outputs: list[Output] = []
        for passed in requests:
            if len(outputs) > _MOST_PACKETS:
                break
            answer, some = self._apply(passed)
            answers.append(answer)
            outputs += some
        if self._changed:
            outputs += self._state_outputs()
        return answers, outputs

    def _apply(self, passed: ForwardedRequest) -> tuple[Answer, list[Output]]:
        client, op = passed.client, passed.request.op
        before = self.clients.get(client) or ClientRecord(client, self.name)
        rules = RequestLimits(
            frozenset([self.name]),
            self.schema,
            {},
            self._owner,
            lambda name, id_: (name, id_) in self._gone,
        )
        asked = ask(before, passed, rules)
        if asked.problem is not None:
            return Answer(error=asked.problem), []
        after = asked.record
        if op == "list" or after == before:
            return Answer(ok=True, client=after if op == "list" else None), []
        self._changed = True
        self.clients = {**self.clients, client: after}
        if not (after.subscriptions or after.advertisements):
            del self.clients[client]
        gone = [(client, id_) for id_ in before.subscriptions.keys() - after.subscriptions.keys()]
        gone += [(client, id_) for id_ in before.advertisements.keys() - after.advertisements.keys()]
        self._gone = [*self._gone, *gone][-_MOST_GONE:]
        outputs: list[Output] = []
        for packets in self._tell(before, after):
            outputs += self._packet_outputs(packets)
        return Answer(ok=True, revision=self.match.state.number), outputs

    def _tell(self, before: ClientRecord, after: ClientRecord) -> Iterator[Packets]:
        """What the protocol has to say of a client's change."""
        match = self.match
        subs, new_subs = self._subs(before), self._subs(after)
        ads, new_ads = self._ads(before), self._ads(after)
        yield match.unsubscribe(*(id_ for id_ in subs if id_ not in new_subs))
        yield match.unadvertise(*(id_ for id_ in ads if id_ not in new_ads))
        yield match.advertise(*(each for id_, each in new_ads.items() if id_ not in ads))
        yield match.subscribe(*(each for id_, each in new_subs.items() if id_ not in subs))

    def _owner(self, id_: str) -> str | None:
        return next((name for name, record in self.clients.items() if id_ in record.subscriptions), None)

    def _subs(self, record: ClientRecord) -> dict[str, Descriptor]:
        """The subscriptions of a client that count, by their id in the whole overlay."""
        found = {}
        for id_, held in record.subscriptions.items():
            if not held.suspended:
                name = f"{token(self.name)}/{id_}"
                found[name] = _descriptor(name, record.client, held)
        return found

    def _ads(self, record: ClientRecord) -> dict[str, Descriptor]:
        found = {}
        for id_, said in record.advertisements.items():
            name = f"{token(self.name)}/{token(record.client)}/{id_}"
            found[name] = _descriptor(name, record.client, said)
        return found


def _descriptor(id_: str, client: str, held: ClientSubscription | Advertisement) -> Descriptor:
    spelled = subscription_of(client, "-", id_, held.filter)
    return Descriptor(id_, client, spelled.spelling, spelled.text)


def _asked_id(id_: str) -> str:
    """A subscription's id as the records here have it."""
    return id_.partition("/")[2]


def _decoded(data: bytes) -> _NodeRecord:
    try:
        size = int.from_bytes(data[:_SIZE_BYTES], "big")
        raw: Any = pa.Codec("zstd").decompress(data[_SIZE_BYTES:], size, asbytes=True)
        return msgspec.msgpack.decode(raw, type=_NodeRecord)
    except (msgspec.DecodeError, pa.ArrowException, OSError, OverflowError, MemoryError) as error:
        raise InputError(f"this is not what a matchmaking broker keeps: {error}") from None


def _headers(origin: str, part: Mixture[str]) -> dict[str, str]:
    return {"E": "0", "O": token(origin), "N": str(part.events.num_rows)}


def _unusable(message: NeighbourMessage, reason: str, detail: str) -> RejectedMessage:
    return RejectedMessage(
        message.sender, message.number, None, reason, detail, message.payload[:RAW_BYTES]
    )
