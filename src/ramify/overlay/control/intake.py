"""What comes in from clients, as one event batch; and the way back to CloudEvents.

Owns the checks on what a client publishes (`take_in`) and `to_cloudevent`. Pure: no clock, no socket.
JSON is read by `ramify.content`, Arrow by `frames` and `arrow_rows`; nothing here is a second reader.

Every event of a message becomes a row or a `RejectedMessage`, and nothing that a client sends raises. The
publisher column is the authenticated client, whatever an event claims: an extension `publisher` is
replaced.
"""

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ramify.content.events.cloudevents import cloudevents_parser, encode_event
from ramify.content.events.events import (
    BODY,
    FIXED_COLUMNS,
    SIZE_BYTES,
    AttributeType,
    EventSchema,
    RejectReason,
    batch_to_events,
    common_type,
    values_at,
)
from ramify.content.events.flatten import collector_paused
from ramify.content.events.framing import WHITESPACE, ArraySplitter
from ramify.content.events.others import end_to_end
from ramify.content.events.records import Records, read_object
from ramify.content.events.tabulate import PLAIN, ParsedRecords, tabulate
from ramify.errors import InputError, LimitError
from ramify.overlay.control.arrow_rows import (
    BAD_ARROW,
    Fault,
    Ints,
    Part,
    check_rows,
    fill_ids,
    fit_types,
)
from ramify.overlay.control.frames import Limits, concat, read_stream

__all__ = [
    "ARROW_TYPE",
    "BATCH_TYPE",
    "EVENT_TYPE",
    "RAW_BYTES",
    "WRAPPED_TYPE",
    "ClientMessage",
    "Limits",
    "RejectedMessage",
    "take_in",
    "take_in_by_client",
    "to_cloudevent",
]

EVENT_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"
ARROW_TYPE = "application/vnd.apache.arrow.stream"

WRAPPED_TYPE = "ramify.event"
"""The type of a CloudEvent that is made for an event which never was one."""

RAW_BYTES = 64 << 10
"""What a `RejectedMessage` keeps of the event."""

CONTENT_TYPE = "content_type"
DUPLICATE_ID = "duplicate_id"
TOO_MANY_EVENTS = "too_many_events"

# Attributes of one batch, in units of `max_attributes`: rows x columns is memory, absent or not.
_WIDEST = 4


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message of a client: `id` is its Nats-Msg-Id, `position` its sequence in the stream."""

    client: str
    payload: bytes
    content_type: str | None = None
    id: str | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """An event, or a whole message, that was not taken in.

    `reason` is a short code: one of `RejectReason`, or bad_arrow, content_type, duplicate_id and
    too_many_events. `raw` holds the first 64 KiB of the event as it was published: its JSON text, the body
    of an Arrow row, the payload when no event can be told apart.
    """

    client: str
    position: int
    event_id: str | None
    reason: str
    detail: str
    raw: bytes


def take_in(
    messages: Sequence[ClientMessage], limits: Limits | None = None
) -> tuple[pa.RecordBatch | None, list[RejectedMessage]]:
    """All good events of all messages as one batch, in order, and the others. None when none is good.

    An attribute has the type of most of its values; other values are in `_others`, and so are attributes
    beyond `max_attributes` columns. No event is rejected for an attribute. An event without an id gets the
    message's id, in a batch followed by `/` and its row; the second event of a message with the same source
    and id is rejected. `_size_bytes` is the length of the JSON text. For Arrow it is names and values
    together, as for Parquet; what the column says is not believed.

    Cost: one parse of the JSON (two when an event without an id has an `id` inside), O(cells) otherwise.
    """
    return _Intake(messages, limits or Limits()).taken()


def take_in_by_client(
    messages: Sequence[ClientMessage], limits: Limits | None = None
) -> tuple[list[pa.RecordBatch], list[RejectedMessage]]:
    """As `take_in`, but the types are settled per client, so that one client's events do not decide which
    columns another's have; the batches are joined where they agree. Order is kept per client. Never raises.
    """
    mine: dict[str, list[ClientMessage]] = {}
    for message in messages:
        mine.setdefault(message.client, []).append(message)
    batches: list[pa.RecordBatch] = []
    rejected: list[RejectedMessage] = []
    for some in mine.values():
        batch, refused = take_in(some, limits)
        batches += [] if batch is None else [batch]
        rejected += refused
    return concat(batches), rejected


def to_cloudevent(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    """An event as a CloudEvent in JSON's types: what `take_in` would take in as this row. O(columns).

    The publisher is the extension `publisher` unless it is the source. An event that never was a
    CloudEvent (Arrow without `type`, or with names that an envelope cannot hold) is wrapped as the data of
    one of type `ramify.event`. A JSON body with numbers beyond a double is handed over as `data_base64`.
    """
    (event,) = batch_to_events(batch.slice(row, 1))
    if event.body is not None and event.body_is_json and not _is_readable(event.body):
        attributes = {
            p: v for p, v in event.attributes.items() if p != "data" and not p.startswith("data.")
        }
        event = replace(event, body_is_json=False, attributes=attributes)
    try:
        text = encode_event(event)
    except InputError:
        text = encode_event(event, wrap_as=WRAPPED_TYPE)
    return read_object(text)


def _is_readable(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


# --- one call of take_in -----------------------------------------------------------------------------


_ANY_JSON = "application/json"


@lru_cache(maxsize=64)
def _media_type(content_type: str | None) -> str:
    """A content type without its parameters; JSON where there is none."""
    return (content_type or _ANY_JSON).partition(";")[0].strip().lower()


def _alike(parts: list[Part]) -> list[list[Part]]:
    """Parts that follow each other and have equal schemas, together."""
    runs: list[list[Part]] = []
    for part in parts:
        if runs and part.batch.schema.equals(runs[-1][-1].batch.schema):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


class _Intake:
    def __init__(self, messages: Sequence[ClientMessage], limits: Limits) -> None:
        self.messages = messages
        self.limits = limits
        # Rejected so far, each with (message, row), by which they are sorted at the end.
        self.refused: list[tuple[int, int, RejectedMessage]] = []
        # The JSON texts of all messages, as published and as read (with ids), and where each was.
        self.texts: list[bytes] = []
        self.records = Records([])
        self.message: list[int] = []
        self.row: list[int] = []
        self.single: set[int] = set()

    def taken(self) -> tuple[pa.RecordBatch | None, list[RejectedMessage]]:
        found = [part for k in range(len(self.messages)) if (part := self._arrow_of(k)) is not None]
        parts = [self._checked(run) for run in _alike(found)]
        with collector_paused():
            batch, whence = self._joined(parts)
        self.refused.sort(key=lambda found: found[:2])
        rejected = [found[2] for found in self.refused]
        if batch is None or not batch.num_rows:
            return None, rejected
        clients: Any = pa.array([message.client for message in self.messages], pa.string())
        at = batch.schema.get_field_index("publisher")
        return batch.set_column(
            at, FIXED_COLUMNS.field("publisher"), clients.take(pa.array(whence))
        ), rejected

    def _joined(self, parts: list[Part]) -> tuple[pa.RecordBatch | None, Ints]:
        """The rows of all parts in order, and the message of each."""
        if self.texts:
            parts = [*parts, self._tabulated(self._parsed())]
        schema = EventSchema(_settled(parts, _WIDEST * self.limits.max_attributes))
        done = [fit_types(part, schema) for part in parts]
        if not done:
            return None, np.zeros(0, np.int64)
        whole = end_to_end([part.batch for part in done])
        message = np.concatenate([part.message for part in done])
        row = np.concatenate([part.row for part in done])
        key = (message << 32) + row
        if not bool((key[1:] > key[:-1]).all()):
            order: Any = np.argsort(key)
            whole, message, row = whole.take(order), message[order], row[order]
        part = Part(whole, message, row)
        _reject_repeated(part)
        part = self._kept(part)
        return part.batch, part.message

    # -- messages

    def _arrow_of(self, k: int) -> Part | None:
        """The rows of an Arrow message; of another, its JSON texts are noted."""
        message = self.messages[k]
        kind = _media_type(message.content_type)
        if kind == ARROW_TYPE:
            return self._arrow(k)
        payload = message.payload
        if payload[:1] != b"{" or payload[-1:] != b"}":
            payload = payload.removeprefix(BOM_UTF8).strip(WHITESPACE)
        if kind == BATCH_TYPE or (kind == _ANY_JSON and payload[:1] == b"["):
            self._note_array(k, payload)
        elif kind in (EVENT_TYPE, _ANY_JSON):
            self.single.add(k)
            self._note(k, 0, payload, None)
        else:
            text = (
                f"the content type {kind[:80]!r} is unknown; use {EVENT_TYPE}, {BATCH_TYPE} or {ARROW_TYPE}"
            )
            self._refuse(k, 0, None, (CONTENT_TYPE, text), message.payload)
        return None

    def _note_array(self, k: int, payload: bytes) -> None:
        splitter, most = ArraySplitter(), self.limits.max_batch_events
        found = list(islice(splitter.feed(payload), most + 1))
        if len(found) > most:
            self._refuse_rest(k, found.pop()[0])
        else:
            found += splitter.finish()
        for row, (text, fault) in enumerate(found):
            self._note(k, row, text, fault)

    def _note(self, k: int, row: int, text: bytes, fault: tuple[RejectReason, str] | None) -> None:
        if fault is None and len(text) > self.limits.max_event_bytes:
            fault = RejectReason.TOO_LARGE, f"the event is longer than {self.limits.max_event_bytes} bytes"
        if fault is not None:
            self.records.refused[len(self.texts)] = fault
        self.texts.append(text)
        self.message.append(k)
        self.row.append(row)

    def _arrow(self, k: int) -> Part | None:
        message = self.messages[k]
        try:
            batch, more = read_stream(message.payload, self.limits)
        except LimitError as error:
            self._refuse(k, 0, None, (RejectReason.TOO_LARGE, str(error)), message.payload)
            return None
        except InputError as error:
            self._refuse(k, 0, None, (BAD_ARROW, str(error)), message.payload)
            return None
        if more:
            self._refuse_rest(k, b"")
        rows = np.arange(batch.num_rows, dtype=np.int64)
        part = Part(batch, np.full(batch.num_rows, k, np.int64), rows)
        fill_ids(part, message.id)
        return part

    def _checked(self, parts: list[Part]) -> Part:
        """Parts of one schema as one, without their faulty rows. Checks cost per call more than per row."""
        whole = end_to_end([part.batch for part in parts])
        message = np.concatenate([part.message for part in parts])
        row = np.concatenate([part.row for part in parts])
        faults: dict[int, Fault] = {}
        before = 0
        for part in parts:
            faults.update((before + at, fault) for at, fault in part.faults.items())
            before += part.batch.num_rows
        joined = Part(whole, message, row, faults)
        check_rows(joined, self.limits)
        return self._kept(joined)

    def _refuse_rest(self, k: int, raw: bytes) -> None:
        most = self.limits.max_batch_events
        text = f"the batch has more than {most} events; the others were not taken: split it"
        self._refuse(k, most, None, (TOO_MANY_EVENTS, text), raw)

    def _refuse(self, k: int, row: int, event_id: str | None, fault: Fault, raw: bytes) -> None:
        message = self.messages[k]
        found = RejectedMessage(
            message.client, message.position, event_id, str(fault[0]), fault[1], raw[:RAW_BYTES]
        )
        self.refused.append((k, row, found))

    def _kept(self, part: Part) -> Part:
        """The part without its faulty rows, which are refused."""
        if not part.faults:
            return part
        ids, bodies = part.batch.column("id"), part.batch.column(BODY)
        for row, fault in part.faults.items():
            raw = bodies[row].as_py() or b""
            self._refuse(int(part.message[row]), int(part.row[row]), ids[row].as_py(), fault, raw)
        keep = np.ones(part.batch.num_rows, np.bool_)
        keep[list(part.faults)] = False
        return Part(part.batch.filter(pa.array(keep)), part.message[keep], part.row[keep])

    # -- JSON

    def _parsed(self) -> ParsedRecords:
        """The leaf columns of all JSON events, ids filled in, those beyond the limits refused."""
        # Most events without an id show it by not having the word at all, which costs no second parse.
        raw = [text if b'"id"' in text else self._with_id(i) for i, text in enumerate(self.texts)]
        self.records.raw = raw
        parse = cloudevents_parser("publisher")
        parsed = parse(self.records, PLAIN, None)
        missing = [i for i, fault in parsed.faults.items() if fault[0] is RejectReason.NO_ID]
        filled = {i: text for i in missing if (text := self._with_id(i)) is not raw[i]}
        if filled:
            self.records.raw = [filled.get(i, text) for i, text in enumerate(raw)]
            parsed = parse(self.records, PLAIN, None)
        parsed.leaves.columns.pop("publisher", None)
        return parsed

    def _with_id(self, i: int) -> bytes:
        """The text of an event with the id that its message gives it; the same object if it gives none."""
        text, k = self.texts[i], self.message[i]
        message_id = self.messages[k].id
        if not message_id:
            return text
        own = msgspec.json.encode(message_id if k in self.single else f"{message_id}/{self.row[i]}")
        try:
            found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if found and "id" not in found:
                return b'{"id":' + own + b"," + text[1:]
            if bytes(found.get("id", b"")) != b"null":
                return text
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return text
        return msgspec.json.encode({**found, "id": msgspec.Raw(own)})

    def _tabulated(self, parsed: ParsedRecords) -> Part:
        decoded = tabulate(parsed, self.records, most_columns=self.limits.max_attributes)
        for i, fault in parsed.faults.items():
            text = self.texts[i]
            self._refuse(self.message[i], self.row[i], _id_within(text), fault, text)
        kept = [i for i in parsed.index if i not in parsed.faults] if parsed.faults else parsed.index
        batch = decoded.batch
        if self.records.raw != self.texts:  # the ids that were filled in are not part of the size
            sizes = np.fromiter((len(self.texts[i]) for i in kept), np.int64, len(kept))
            at = batch.schema.get_field_index(SIZE_BYTES)
            batch = batch.set_column(at, FIXED_COLUMNS.field(SIZE_BYTES), pa.array(sizes))
        return Part(batch, np.array(self.message, np.int64)[kept], np.array(self.row, np.int64)[kept])


def _id_within(text: bytes) -> str | None:
    try:
        found = msgspec.json.decode(text, type=_Id).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


class _Id(msgspec.Struct):
    id: Any = None


def _settled(parts: list[Part], most: int) -> dict[str, AttributeType]:
    """The type of each attribute that some event has, for those with the most values."""
    votes: dict[str, Counter[AttributeType]] = {}
    for part in parts:
        for path, kind in EventSchema.of_batch(part.batch).attributes.items():
            values = part.batch.num_rows - part.batch.column(path).null_count
            if values or len(parts) == 1:
                votes.setdefault(path, Counter())[kind] += values
    if len(votes) > most:
        kept = sorted(votes, key=lambda path: (-votes[path].total(), path))[:most]
        votes = {path: votes[path] for path in kept}
    return {path: common_type(found) for path, found in votes.items()}


def _reject_repeated(part: Part) -> None:
    """Source and id name an event: the second one in a message is the first one again."""
    ids: Any = part.batch.column("id")
    if len(ids.unique()) == len(ids):
        return
    sources: Any = pa.array([repr(source) for source in values_at(part.batch, "source")], pa.string())
    keys = np.stack([part.message, _codes(ids), _codes(sources)], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    again = np.ones(len(ids), np.bool_)
    again[first] = False
    part.reject(again, DUPLICATE_ID, "an earlier event of the message has the same source and id")


def _codes(values: Any) -> Ints:
    """Equal numbers for equal values."""
    codes: Ints = values.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    return codes
