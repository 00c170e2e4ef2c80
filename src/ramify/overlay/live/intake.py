"""What comes in from clients, as one event batch; and event batches as bytes between brokers.

Owns the checks on what a client publishes (`take_in`), the bytes of a batch on the wire (`encode_events`,
`decode_events`), the joining of batches (`concat`) and the way back to CloudEvents (`to_cloudevent`). Pure:
no clock, no socket. JSON is read by `ramify.content`; nothing here is a second reader.

Every event of a message becomes a row or a `Rejected`, and nothing that a client sends raises. The
publisher column is the authenticated client, whatever an event claims: an extension `publisher` is
replaced. Arrow from outside is checked before it is unpacked, since a few bytes can stand for gigabytes.
"""

import struct
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramify.content.cloudevents import cloudevents_parser, encode_event
from ramify.content.events import (
    BODY,
    BODY_IS_JSON,
    CONTEXT_NAMES,
    FIXED_COLUMNS,
    NULLS,
    RESERVED_NAMES,
    SIZE_BYTES,
    AttributeType,
    EventSchema,
    RejectReason,
    batch_to_events,
    widen,
)
from ramify.content.flatten import _collector_paused
from ramify.content.framing import WHITESPACE, ArraySplitter
from ramify.content.leaves import Leaf
from ramify.content.records import MAX_DEPTH, MAX_RECORD_BYTES, Records, depth, duplicate_keys
from ramify.content.tabulate import PLAIN, Parsed, _kind_of, tabulate
from ramify.content.timestamps import parse_timestamps
from ramify.errors import InputError, LimitError, RamifyError

__all__ = [
    "ARROW_TYPE",
    "BATCH_TYPE",
    "EVENT_TYPE",
    "RAW_BYTES",
    "WRAPPED_TYPE",
    "Limits",
    "Published",
    "Rejected",
    "concat",
    "decode_events",
    "encode_events",
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
"""What a `Rejected` keeps of the event."""

BAD_ARROW = "bad_arrow"
CONTENT_TYPE = "content_type"
DUPLICATE_ID = "duplicate_id"
TOO_MANY_EVENTS = "too_many_events"

_COMPRESS_ABOVE_BYTES = 4 << 10
# Attributes of one batch, in units of `max_attributes`: rows x columns is memory, absent or not.
_WIDEST = 4
_MOST_COLUMNS = 4096
# Joined batches that may still grow. Older ones are closed, so that joining stays linear.
_OPEN_GROUPS = 16

_Fault: TypeAlias = tuple[str, str]
_Ints: TypeAlias = NDArray[np.int64]
_Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may hold. Nesting is bounded as in every reader (`MAX_DEPTH`).

    `max_attributes` bounds one event, and all events of one message together. `max_batch_bytes` bounds what
    an Arrow message may unpack to.

    Raises
    ------
    InputError
        For a limit below 1, or above what the readers can take.
    """

    max_event_bytes: int = MAX_RECORD_BYTES
    max_batch_events: int = 10_000
    max_attributes: int = 1_000
    max_batch_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InputError(f"the limit {name} is {getattr(self, name)}; it must be at least 1")
        if self.max_event_bytes > MAX_RECORD_BYTES:
            raise InputError(
                f"the limit max_event_bytes is {self.max_event_bytes}; "
                f"events of at most {MAX_RECORD_BYTES} bytes can be read"
            )


@dataclass(frozen=True, slots=True)
class Published:
    """A message of a client: `id` is its Nats-Msg-Id, `position` its sequence in the stream."""

    client: str
    payload: bytes
    content_type: str | None = None
    id: str | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
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
    messages: Sequence[Published], limits: Limits | None = None
) -> tuple[pa.RecordBatch | None, list[Rejected]]:
    """All good events of all messages as one batch, in order, and the others. None when none is good.

    An attribute has the type that most events give it, or the first on a tie; integers and doubles count
    as one and meet in double. An event with another type is rejected, so the messages of one call judge
    each other: see `take_in_by_client`. An event without an id gets the message's id, in a batch followed
    by `/` and its row; the second event of a message with the same source and id is rejected.
    `_size_bytes` is the length of the JSON text; for Arrow, names and values together as for Parquet (what
    the column says is not believed).

    Cost: one parse of the JSON (two when an event without an id has an `id` inside), O(cells) otherwise.

    Raises
    ------
    LimitError
        When the messages together have over four times `max_attributes`; one message alone never has.
    """
    return _Intake(messages, limits or Limits()).taken()


def take_in_by_client(
    messages: Sequence[Published], limits: Limits | None = None
) -> tuple[list[pa.RecordBatch], list[Rejected]]:
    """As `take_in`, but what one client sends decides nothing about another's events: types are settled per
    client, and the batches joined where they agree. Order is kept per client. Never raises."""
    mine: dict[str, list[Published]] = {}
    for message in messages:
        mine.setdefault(message.client, []).append(message)
    batches: list[pa.RecordBatch] = []
    rejected: list[Rejected] = []
    waiting = list(reversed(mine.values()))
    while waiting:
        some = waiting.pop()
        try:
            batch, refused = take_in(some, limits)
        except LimitError:
            waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            continue
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
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def _is_readable(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


# --- batches on the wire -----------------------------------------------------------------------------


def encode_events(batch: pa.RecordBatch) -> bytes:
    """A batch as an Arrow IPC stream, its buffers in zstd above 4 KiB."""
    compression: Literal["zstd"] | None = "zstd" if batch.nbytes > _COMPRESS_ABOVE_BYTES else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as out:
        out.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode_events(data: bytes, limits: Limits | None = None) -> pa.RecordBatch:
    """What `encode_events` wrote: schema, offsets, UTF-8 and sizes are checked, values are not.

    Raises
    ------
    InputError
        When the bytes are no event batch.
    LimitError
        When it has more events, attributes or bytes than the limits allow.
    """
    batch, more = _read_stream(data, limits or Limits())
    if more:
        raise LimitError(f"the frame has more than {batch.num_rows} events; send smaller frames")
    return batch


def concat(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches, joined where their attributes agree; each publisher's events keep their order.

    Attributes that one side lacks are absent there, those that no event has are dropped. Integers join
    doubles only when each value survives. Batches are kept apart beyond 4,096 attributes together.
    """
    groups: list[_Joined] = []
    # Frames of one kind follow each other: those need no comparison by attribute.
    for run in _runs(batch for batch in batches if batch.num_rows):
        one = _Joined.of(_one(run))
        home = None
        for group in reversed(groups[-_OPEN_GROUPS:]):
            if one.fits(group):
                home = group
            if not one.publishers.isdisjoint(group.publishers):
                break  # an earlier batch would let this one overtake its publisher's last events
        if home is None:
            groups.append(one)
        else:
            home.add(one)
    return [group.batch() for group in groups]


@dataclass(slots=True)
class _Joined:
    """Batches that become one. `rounded` are integers that a double cannot hold."""

    parts: list[pa.RecordBatch]
    kinds: dict[str, AttributeType]
    rounded: set[str]
    publishers: set[str | None]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "_Joined":
        schema = EventSchema.of_batch(batch)
        used = {p: k for p, k in schema.attributes.items() if batch.column(p).null_count < batch.num_rows}
        integers = [p for p, k in used.items() if k is AttributeType.INT64]
        rounded = {p for p in integers if not _survives(batch.column(p))}
        return cls([batch], used, rounded, set(pc.unique(batch.column("publisher")).to_pylist()))

    def fits(self, other: "_Joined") -> bool:
        if len(self.kinds.keys() | other.kinds.keys()) > max(_MOST_COLUMNS, len(other.kinds)):
            return False
        for path in self.kinds.keys() & other.kinds.keys():
            wider = widen(self.kinds[path], other.kinds[path])
            if wider is None:
                return False
            if wider is AttributeType.DOUBLE and path in self.rounded | other.rounded:
                return False
        return True

    def add(self, other: "_Joined") -> None:
        self.parts += other.parts
        for path, kind in other.kinds.items():
            self.kinds[path] = widen(self.kinds.get(path, kind), kind) or kind
        self.rounded |= other.rounded
        self.publishers |= other.publishers

    def batch(self) -> pa.RecordBatch:
        schema = EventSchema(self.kinds)
        return _one([_shaped(part, schema) for part in self.parts])


def _runs(batches: Iterable[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    """Neighbours with equal schemas."""
    runs: list[list[pa.RecordBatch]] = []
    for batch in batches:
        if runs and batch.schema.equals(runs[-1][-1].schema):
            runs[-1].append(batch)
        else:
            runs.append([batch])
    return runs


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one schema, end to end."""
    whole: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]
    return whole


def _survives(integers: Any) -> bool:
    try:
        integers.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _shaped(batch: pa.RecordBatch, schema: EventSchema) -> pa.RecordBatch:
    """A batch with the columns of a schema that its values are known to fit."""
    have = set(batch.schema.names)
    arrow = schema.arrow
    arrays: list[Any] = []
    for f in arrow:
        column: Any = batch.column(f.name) if f.name in have else None
        if column is None or column.null_count == len(column) > 0:
            column = _absent(batch.num_rows, f.type)
        arrays.append(column if column.type.equals(f.type) else column.cast(f.type, safe=False))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


# --- Arrow from outside ------------------------------------------------------------------------------

_BROKEN = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    struct.error,
    MemoryError,
)


def _read_stream(data: bytes, limits: Limits) -> tuple[pa.RecordBatch, bool]:
    """The first `max_batch_events` rows of an IPC stream, and whether it has more. Trusts nothing."""
    try:
        batches, schema, more = _read_batches(data, limits)
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
        return (whole[0] if whole else pa.RecordBatch.from_pylist([], schema.arrow)), more
    except RamifyError:
        raise
    except _BROKEN as error:
        raise InputError(f"not an Arrow IPC stream of events: {str(error)[:200]}") from None


def _read_batches(data: bytes, limits: Limits) -> tuple[list[pa.RecordBatch], EventSchema, bool]:
    messages = _messages(data)
    message = next(messages, None)
    if message is None or message.type != "schema":
        raise InputError("an Arrow stream begins with its schema; this one does not")
    found = pa.ipc.read_schema(message)
    schema = _checked_schema(found, limits)
    batches, rows, bytes_left = [], 0, limits.max_batch_bytes
    for message in messages:
        if message.type != "record batch":
            raise InputError(
                f"the stream holds a {message.type}; write record batches without dictionaries"
            )
        bytes_left -= _unpacked_bytes(message)
        if bytes_left < 0:
            raise LimitError(
                f"the stream unpacks to more than {limits.max_batch_bytes} bytes; send less at once"
            )
        batch = pa.ipc.read_record_batch(message, found)
        batch.validate(full=True)
        for name in (BODY_IS_JSON, NULLS):
            if batch.column(name).null_count:
                raise InputError(f"the column {name} has nulls; write a value in each row")
        batch = _shaped(batch, schema)
        more = rows + batch.num_rows > limits.max_batch_events
        batches.append(batch.slice(0, limits.max_batch_events - rows))
        rows += batch.num_rows
        if more:
            return batches, schema, True
    return batches, schema, False


def _messages(data: bytes) -> Iterator[Any]:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _checked_schema(found: pa.Schema, limits: Limits) -> EventSchema:
    """The attributes of a schema with exactly our columns and types."""
    attributes = len(found) - len(FIXED_COLUMNS)
    if attributes > limits.max_attributes:
        raise LimitError(
            f"the batch has {attributes} attributes; at most {limits.max_attributes} are taken"
        )
    if len(set(found.names)) < len(found):
        raise InputError("two columns have the same name; rename one")
    kinds = {}
    for f in found:
        if isinstance(f.type, pa.BaseExtensionType) or b"ARROW:extension:name" in (f.metadata or {}):
            raise InputError(f"the column {f.name!r} has an extension type; write its plain values")
        if f.name in FIXED_COLUMNS.names:
            if f.type != FIXED_COLUMNS.field(f.name).type:
                wanted = FIXED_COLUMNS.field(f.name).type
                raise InputError(f"the column {f.name} is {f.type}; it must be {wanted}")
            continue
        kind = _PLAIN_KINDS.get(f.type)
        if kind is None:
            allowed = ", ".join(str(dtype) for dtype in _PLAIN_KINDS)
            raise InputError(f"the attribute {f.name!r} is {f.type}; allowed: {allowed}")
        kinds[f.name] = kind
    missing = [name for name in FIXED_COLUMNS.names if name not in found.names]
    if missing:
        raise InputError(f"not an event batch: it has no column {', '.join(missing)}")
    return EventSchema(kinds)


_PLAIN_KINDS = {kind.arrow: kind for kind in AttributeType}


def _unpacked_bytes(message: Any) -> int:
    """The bytes that a record batch takes once it is unpacked, from the lengths that it declares.

    Arrow allocates what a compressed buffer claims to hold, and lets columns share bytes of the body; both
    make little into much. The metadata is a flatbuffer: Message.header is its third field, the buffers of
    a RecordBatch the third and the compression the fourth (Arrow columnar format, Message.fbs).
    """
    meta, body = message.metadata.to_pybytes(), message.body
    (root,) = struct.unpack_from("<I", meta)
    header = _flat(meta, root, 2)
    if header is None:
        raise InputError("a record batch has no header")
    batch = header + struct.unpack_from("<I", meta, header)[0]
    at = _flat(meta, batch, 2)
    if at is None:
        return 0
    at += struct.unpack_from("<I", meta, at)[0]
    (count,) = struct.unpack_from("<I", meta, at)
    buffers = np.frombuffer(meta, "<i8", 2 * count, at + 4).reshape(count, 2)
    if len(buffers) and (buffers.min() < 0 or int(buffers.max()) > len(body or b"")):
        raise InputError("a buffer of the record batch lies outside its body")
    if _flat(meta, batch, 3) is None:
        return int(buffers[:, 1].sum())
    total, view = 0, memoryview(body)
    for offset, length in buffers[buffers[:, 1] > 0].tolist():
        (claimed,) = struct.unpack_from("<q", view, offset)
        total += length if claimed == -1 else claimed
        if claimed < -1:
            raise InputError("a compressed buffer claims a negative length")
    return total


def _flat(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer table is; None when it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = 4 + 2 * number
    if vtable < 0 or slot >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else None


# --- one call of take_in -----------------------------------------------------------------------------


_ANY_JSON = "application/json"


@lru_cache(maxsize=64)
def _media_type(content_type: str | None) -> str:
    """A content type without its parameters; JSON where there is none."""
    return (content_type or _ANY_JSON).partition(";")[0].strip().lower()


@dataclass(slots=True)
class _Part:
    """Rows on their way in, with the message and the place in it of each, and what is wrong with some."""

    batch: pa.RecordBatch
    message: _Ints
    row: _Ints
    faults: dict[int, _Fault] = field(default_factory=dict)

    def reject(self, mask: _Mask, reason: str, detail: str) -> None:
        for row in np.flatnonzero(mask).tolist():
            self.faults.setdefault(row, (reason, detail))


class _Intake:
    def __init__(self, messages: Sequence[Published], limits: Limits) -> None:
        self.messages = messages
        self.limits = limits
        # Rejected so far, each with (message, row), by which they are sorted at the end.
        self.refused: list[tuple[int, int, Rejected]] = []
        # The JSON texts of all messages, as published and as read (with ids), and where each was.
        self.texts: list[bytes] = []
        self.records = Records([])
        self.message: list[int] = []
        self.row: list[int] = []
        self.single: set[int] = set()

    def taken(self) -> tuple[pa.RecordBatch | None, list[Rejected]]:
        parts = [part for k in range(len(self.messages)) if (part := self._arrow_of(k)) is not None]
        with _collector_paused():
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

    def _joined(self, parts: list[_Part]) -> tuple[pa.RecordBatch | None, _Ints]:
        """The rows of all parts in order, and the message of each."""
        parsed = self._parsed() if self.texts else None
        columns = {} if parsed is None else parsed.leaves.columns
        schema = EventSchema(_settled(columns, parts, self._order(parsed)))
        if len(schema.attributes) > _WIDEST * self.limits.max_attributes:
            text = f"the messages have {len(schema.attributes)} attributes together; take in fewer at once"
            raise LimitError(text)
        done = [self._kept(_fitted(part, schema)) for part in parts]
        if parsed is not None:
            done.append(self._tabulated(parsed, schema))
        if not done:
            return None, np.zeros(0, np.int64)
        whole = _one([part.batch for part in done])
        message = np.concatenate([part.message for part in done])
        row = np.concatenate([part.row for part in done])
        key = (message << 32) + row
        if not bool((key[1:] > key[:-1]).all()):
            order: Any = np.argsort(key)
            whole, message, row = whole.take(order), message[order], row[order]
        part = _Part(whole, message, row)
        _reject_repeated(part)
        part = self._kept(part)
        return part.batch, part.message

    # -- messages

    def _arrow_of(self, k: int) -> _Part | None:
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

    def _arrow(self, k: int) -> _Part | None:
        message = self.messages[k]
        try:
            batch, more = _read_stream(message.payload, self.limits)
        except LimitError as error:
            self._refuse(k, 0, None, (RejectReason.TOO_LARGE, str(error)), message.payload)
            return None
        except InputError as error:
            self._refuse(k, 0, None, (BAD_ARROW, str(error)), message.payload)
            return None
        if more:
            self._refuse_rest(k, b"")
        rows = np.arange(batch.num_rows, dtype=np.int64)
        part = _Part(batch, np.full(batch.num_rows, k, np.int64), rows)
        _fill_ids(part, message.id)
        _check_rows(part, self.limits)
        return self._kept(part)

    def _refuse_rest(self, k: int, raw: bytes) -> None:
        most = self.limits.max_batch_events
        text = f"the batch has more than {most} events; the others were not taken: split it"
        self._refuse(k, most, None, (TOO_MANY_EVENTS, text), raw)

    def _refuse(self, k: int, row: int, event_id: str | None, fault: _Fault, raw: bytes) -> None:
        message = self.messages[k]
        found = Rejected(
            message.client, message.position, event_id, str(fault[0]), fault[1], raw[:RAW_BYTES]
        )
        self.refused.append((k, row, found))

    def _kept(self, part: _Part) -> _Part:
        """The part without its faulty rows, which are refused."""
        if not part.faults:
            return part
        ids, bodies = part.batch.column("id"), part.batch.column(BODY)
        for row, fault in part.faults.items():
            raw = bodies[row].as_py() or b""
            self._refuse(int(part.message[row]), int(part.row[row]), ids[row].as_py(), fault, raw)
        keep = np.ones(part.batch.num_rows, np.bool_)
        keep[list(part.faults)] = False
        return _Part(part.batch.filter(pa.array(keep)), part.message[keep], part.row[keep])

    # -- JSON

    def _parsed(self) -> Parsed:
        """The leaf columns of all JSON events, ids filled in, those beyond the limits refused."""
        # Most events without an id show it by not having the word at all, which costs no second parse.
        raw = [text if b'"id"' in text else self._with_id(i) for i, text in enumerate(self.texts)]
        self.records.raw = raw
        parse = cloudevents_parser("publisher")
        parsed = parse(self.records, PLAIN)
        missing = [i for i, fault in parsed.faults.items() if fault[0] is RejectReason.NO_ID]
        filled = {i: text for i in missing if (text := self._with_id(i)) is not raw[i]}
        if filled:
            self.records.raw = [filled.get(i, text) for i, text in enumerate(raw)]
            parsed = parse(self.records, PLAIN)
        parsed.leaves.columns.pop("publisher", None)
        _limit_attributes(parsed, np.array(self.message, np.int64), self.limits)
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
            if bytes(found.get("id", b"")) != b"null" or duplicate_keys(
                text, msgspec.json.decode(text), -1
            ):
                return text
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return text
        return msgspec.json.encode({**found, "id": msgspec.Raw(own)})

    def _order(self, parsed: Parsed | None) -> _Ints:
        """Per row of the leaves, its place among all events."""
        index = [] if parsed is None else parsed.index
        return (np.array(self.message, np.int64)[index] << 32) + np.array(self.row, np.int64)[index]

    def _tabulated(self, parsed: Parsed, schema: EventSchema) -> _Part:
        decoded = tabulate(parsed, self.records, schema)
        for i, fault in parsed.faults.items():
            text = self.texts[i]
            self._refuse(self.message[i], self.row[i], _id_within(text), fault, text)
        kept = [i for i in parsed.index if i not in parsed.faults] if parsed.faults else parsed.index
        batch = decoded.batch
        if self.records.raw != self.texts:  # the ids that were filled in are not part of the size
            sizes = np.fromiter((len(self.texts[i]) for i in kept), np.int64, len(kept))
            at = batch.schema.get_field_index(SIZE_BYTES)
            batch = batch.set_column(at, FIXED_COLUMNS.field(SIZE_BYTES), pa.array(sizes))
        return _Part(batch, np.array(self.message, np.int64)[kept], np.array(self.row, np.int64)[kept])


def _id_within(text: bytes) -> str | None:
    try:
        found = msgspec.json.decode(text, type=_Id).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


class _Id(msgspec.Struct):
    id: Any = None


def _limit_attributes(parsed: Parsed, message_of: _Ints, limits: Limits) -> None:
    """Refuse events with too many attributes, then those that bring too many new ones into a message."""
    most, index = limits.max_attributes, np.array(parsed.index, np.int64)

    def rows() -> dict[str, _Ints]:
        return {p: leaf.rows for p, leaf in parsed.leaves.columns.items() if p not in CONTEXT_NAMES}

    def refuse(found: Iterable[int], detail: str) -> None:
        bad = list(found)
        parsed.faults.update((int(index[row]), (RejectReason.TOO_LARGE, detail)) for row in bad)
        parsed.leaves.drop(bad)

    if len(parsed.leaves.columns) <= most:
        return
    counts = np.zeros(len(index), np.int64)
    for where in rows().values():
        counts[where] += 1
    refuse(np.flatnonzero(counts > most).tolist(), f"the event has more than {most} attributes")
    first: dict[int, list[tuple[int, str]]] = {}
    found = rows()
    for path, where in found.items():
        where = np.sort(where)
        owners, at = np.unique(message_of[index[where]], return_index=True)
        for owner, k in zip(owners.tolist(), at.tolist(), strict=True):
            first.setdefault(owner, []).append((int(where[k]), path))
    beyond: set[int] = set()
    for owner, seen in first.items():
        for _, path in sorted(seen)[most:]:
            where = found[path]
            beyond.update(where[message_of[index[where]] == owner].tolist())
    refuse(
        beyond, f"the events of the message have more than {most} attributes together; split the message"
    )


# --- types -------------------------------------------------------------------------------------------

_SCALAR_KINDS: dict[type, AttributeType] = {
    str: AttributeType.STRING,
    int: AttributeType.INT64,
    float: AttributeType.DOUBLE,
    bool: AttributeType.BOOLEAN,
}


def _settled(leaves: Mapping[str, Leaf], parts: list[_Part], order: _Ints) -> dict[str, AttributeType]:
    """The type of each attribute that some event has."""
    columns: dict[str, list[tuple[_Part, AttributeType]]] = {}
    for part in parts:
        for path, kind in EventSchema.of_batch(part.batch).attributes.items():
            if part.batch.column(path).null_count < part.batch.num_rows:
                columns.setdefault(path, []).append((part, kind))
    settled = {}
    hidden = CONTEXT_NAMES | {""}
    for path in (leaves.keys() | columns.keys()) - hidden:
        leaf, typed = leaves.get(path), columns.get(path, [])
        kinds = {kind for _, kind in typed}
        own: set[AttributeType] | None = set() if leaf is None else _kinds(leaf)
        if own is not None and len(kinds | own) == 1:
            settled[path] = next(iter(kinds | own))
        else:
            winner = _voted(path, leaf, typed, order)
            if winner is not None:
                settled[path] = winner
    return settled


def _kinds(leaf: Leaf) -> set[AttributeType] | None:
    """The types of a leaf's values, if they can be told from its Python types alone."""
    kinds = leaf.kinds - {type(None)}
    if list not in kinds:
        return {_SCALAR_KINDS[kind] for kind in kinds}
    if kinds != {list}:
        return None
    elements = set(map(type, chain.from_iterable(value for value in leaf.values if value)))
    if elements == {str}:
        return {AttributeType.STRINGS}
    return {AttributeType.NUMBERS} if elements and elements <= {int, float} else None


def _voted(
    path: str, leaf: Leaf | None, typed: list[tuple[_Part, AttributeType]], order: _Ints
) -> AttributeType | None:
    """The type of most values, or of the first one on a tie; integers and doubles vote together."""
    votes: Counter[AttributeType] = Counter()
    first: dict[AttributeType, int] = {}
    seen: set[AttributeType] = set()

    def count(kind: AttributeType, values: int, earliest: int) -> None:
        seen.add(kind)
        family = AttributeType.DOUBLE if kind is AttributeType.INT64 else kind
        votes[family] += values
        first[family] = min(earliest, first.get(family, earliest))

    if leaf is not None:
        for place, value in zip(order[leaf.rows].tolist(), leaf.values, strict=True):
            kind = _kind_of(value)
            if kind is not None:
                count(kind, 1, place)
    for part, kind in typed:
        valid = _mask(part.batch.column(path).is_valid())
        where = int(np.argmax(valid))
        count(kind, int(valid.sum()), (int(part.message[where]) << 32) + int(part.row[where]))
    if not votes:
        # An empty array is no null, but tells no type.
        return AttributeType.STRINGS if leaf is not None and [] in leaf.values else None
    winner = max(votes, key=lambda family: (votes[family], -first[family]))
    return winner if winner is not AttributeType.DOUBLE or winner in seen else AttributeType.INT64


def _fitted(part: _Part, schema: EventSchema) -> _Part:
    """An Arrow part in the settled types; the rows that do not fit are faulty."""
    batch = part.batch
    kinds = EventSchema.of_batch(batch).attributes
    columns: dict[str, Any] = {name: batch.column(name) for name in FIXED_COLUMNS.names}
    for path, wanted in schema.attributes.items():
        kind = kinds.get(path)
        values: Any = None if kind is None else batch.column(path)
        if values is None or kind is wanted:
            column = values
        elif kind is AttributeType.INT64 and wanted is AttributeType.DOUBLE:
            column = values.cast(pa.float64(), safe=False)
        elif kind is AttributeType.STRING and wanted is AttributeType.TIMESTAMP:
            column, bad = parse_timestamps(values)
            part.reject(
                _marked(batch.num_rows, bad), RejectReason.WRONG_TYPE, f"{path!r} is no RFC 3339 time"
            )
        else:
            part.reject(
                _mask(values.is_valid()),
                RejectReason.WRONG_TYPE,
                f"{path!r} is {kind}; it must be {wanted}",
            )
            column = None
        columns[path] = _absent(batch.num_rows, wanted.arrow) if column is None else column
    arrow = schema.arrow
    fitted = pa.RecordBatch.from_arrays([columns[f.name] for f in arrow], schema=arrow)
    return _Part(fitted, part.message, part.row, part.faults)


# --- rows of Arrow messages --------------------------------------------------------------------------

_FIRST_MICROSECOND = -62_135_596_800 * 10**6  # the years 1 to 9999, which Python's datetime holds
_LAST_MICROSECOND = 253_402_300_800 * 10**6 - 1


def _fill_ids(part: _Part, message_id: str | None) -> None:
    """Give the rows without an id that of the message with their number, as events of a batch get it."""
    ids: Any = part.batch.column("id")
    empty = pc.binary_length(ids).fill_null(0).to_numpy() == 0
    if empty.any() and message_id:
        made: Any = pc.binary_join_element_wise(  # type: ignore[call-overload]
            pa.scalar(message_id), pa.array(part.row).cast(pa.string()), "/"
        )
        ids = pc.if_else(pa.array(empty), made, ids)
    elif empty.any():
        part.reject(empty, RejectReason.NO_ID, "neither the event nor its message has an id; give one")
        ids = ids.fill_null("")
    part.batch = part.batch.set_column(0, FIXED_COLUMNS.field("id"), ids)


def _check_rows(part: _Part, limits: Limits) -> None:
    """Find the rows whose values no reader would have let in, and measure all of them."""
    batch = part.batch
    sizes = np.zeros(batch.num_rows, np.int64)
    counts = pc.list_value_length(batch.column(NULLS)).to_numpy(zero_copy_only=False).astype(np.int64)
    for name in batch.schema.names:
        if name in (SIZE_BYTES, BODY_IS_JSON, NULLS, "publisher"):
            continue
        values: Any = batch.column(name)
        valid = _mask(values.is_valid())
        _check_values(part, name, values, valid)
        named = 0 if name == BODY else len(name.encode())
        sizes += np.where(valid, _value_bytes(values) + named, 0)
        if name not in FIXED_COLUMNS.names:
            counts += valid
    _check_nulls(part)
    _check_bodies(part)
    text = f"the event is longer than {limits.max_event_bytes} bytes"
    part.reject(sizes > limits.max_event_bytes, RejectReason.TOO_LARGE, text)
    text = f"the event has more than {limits.max_attributes} attributes"
    part.reject(counts > limits.max_attributes, RejectReason.TOO_LARGE, text)
    at = batch.schema.get_field_index(SIZE_BYTES)
    part.batch = batch.set_column(at, FIXED_COLUMNS.field(SIZE_BYTES), pa.array(sizes))


def _check_values(part: _Part, name: str, values: Any, valid: _Mask) -> None:
    dtype = values.type
    if pa.types.is_timestamp(dtype):
        ticks = values.cast(pa.int64()).fill_null(0).to_numpy()
        bad = (ticks < _FIRST_MICROSECOND) | (ticks > _LAST_MICROSECOND)
        part.reject(valid & bad, RejectReason.BAD_TIME, f"{name!r} is outside the years 1 to 9999")
    elif pa.types.is_floating(dtype):
        bad = ~np.isfinite(values.fill_null(0.0).to_numpy())
        part.reject(bad, RejectReason.NOT_FINITE, f"{name!r} is not a finite number; leave it out")
    elif pa.types.is_list(dtype):
        elements = pc.list_flatten(values)
        if elements.null_count:
            holed = _marked(len(values), _parents(values)[_mask(elements.is_null())])
            part.reject(holed, RejectReason.WRONG_TYPE, f"{name!r} has a null among its elements")
        if pa.types.is_floating(elements.type):
            strange = ~np.isfinite(elements.fill_null(0.0).to_numpy())
            bad = _marked(len(values), _parents(values)[strange])
            part.reject(bad, RejectReason.NOT_FINITE, f"{name!r} has a number that is not finite")


def _check_nulls(part: _Part) -> None:
    """A null must have a name that an attribute can have, once, and no value beside it."""
    lists: Any = part.batch.column(NULLS)
    paths: Any = pc.list_flatten(lists)
    if not len(paths):
        return
    rows = _parents(lists)
    coded = paths.dictionary_encode()
    codes, names = coded.indices.fill_null(-1).to_numpy(), coded.dictionary.to_pylist()
    illegal = CONTEXT_NAMES | RESERVED_NAMES | {""}
    wrong = np.array([name in illegal for name in names] + [True])[codes]
    text = "_nulls lists a name that no attribute can have"
    part.reject(_marked(len(lists), rows[wrong]), RejectReason.RESERVED_NAME, text)
    pairs = np.sort((rows << 32) + codes)
    twice = pairs[1:][pairs[1:] == pairs[:-1]] >> 32
    part.reject(_marked(len(lists), twice), RejectReason.CONFLICTING_PATHS, "_nulls lists a name twice")
    known = set(part.batch.schema.names) - illegal
    for code, name in enumerate(names):
        if name in known:
            both = _marked(len(lists), rows[codes == code]) & _mask(part.batch.column(name).is_valid())
            part.reject(both, RejectReason.CONFLICTING_PATHS, f"{name!r} has a value and is in _nulls too")


def _check_bodies(part: _Part) -> None:
    """A body that is said to be JSON goes out as JSON, inside an envelope: it must be one value."""
    bodies: Any = part.batch.column(BODY)
    said = _mask(part.batch.column(BODY_IS_JSON)) & _mask(bodies.is_valid())
    rows = np.flatnonzero(said)
    texts: list[bytes] = bodies.filter(pa.array(said)).to_pylist()
    part.reject(_marked(len(said), rows[_deep(texts)]), RejectReason.TOO_DEEP, _TOO_DEEP)
    if _are_json(texts):
        return
    for row, text in zip(rows.tolist(), texts, strict=True):
        try:
            text.decode()
            _AS_WRITTEN.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            part.faults.setdefault(row, (RejectReason.NOT_JSON, f"the body is said to be JSON: {error}"))


_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH - 1} levels"

# Checks the syntax without making values, which is several times faster; it lets wrong UTF-8 pass.
_AS_WRITTEN = msgspec.json.Decoder(msgspec.Raw)


def _are_json(texts: list[bytes]) -> bool:
    """Whether each text is JSON for certain. Lines are read one by one: no text leans on its neighbour."""
    joined = b"\n".join(texts)
    if not texts or joined.count(b"\n") >= len(texts):
        return not texts
    try:
        joined.decode()
        return len(_AS_WRITTEN.decode_lines(joined)) == len(texts)  # a blank line would be left out
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _deep(texts: list[bytes]) -> list[int]:
    """Which texts nest too deep to stand inside an envelope. Only those with many brackets are measured."""
    openers = b"\n".join(texts).translate(None, _NO_OPENERS).split(b"\n")
    if len(openers) > max(1, len(texts)):  # a text has lines of its own
        openers = [text.translate(None, _NO_OPENERS) for text in texts]
    many = [k for k, found in enumerate(openers) if len(found) >= MAX_DEPTH]
    return [k for k in many if depth(texts[k]) >= MAX_DEPTH]


_NO_OPENERS = bytes(set(range(256)) - set(b"[{\n"))


def _reject_repeated(part: _Part) -> None:
    """Source and id name an event: the second one in a message is the first one again."""
    ids: Any = part.batch.column("id")
    if len(ids.unique()) == len(ids):
        return
    kinds = EventSchema.of_batch(part.batch).attributes
    source: Any = part.batch.column("source") if "source" in kinds else ids
    keys = np.stack([part.message, _codes(ids), _codes(source)], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    again = np.ones(len(ids), np.bool_)
    again[first] = False
    part.reject(again, DUPLICATE_ID, "an earlier event of the message has the same source and id")


def _codes(values: Any) -> _Ints:
    """Equal numbers for equal values."""
    codes: _Ints = values.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    return codes


# --- arrays ------------------------------------------------------------------------------------------


def _value_bytes(values: Any) -> Any:
    """Bytes per value, as the Parquet reader counts them; anything where there is none."""
    dtype = values.type
    if pa.types.is_list(dtype):
        elements = pc.list_flatten(values)
        return np.bincount(_parents(values), _value_bytes(elements), len(values)).astype(np.int64)
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        return pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return np.full(len(values), 1 if pa.types.is_boolean(dtype) else 8, np.int64)


def _parents(lists: Any) -> _Ints:
    """The row of each element that `list_flatten` gives."""
    return np.repeat(np.arange(len(lists)), pc.list_value_length(lists).fill_null(0).to_numpy())


def _absent(rows: int, dtype: pa.DataType) -> Any:
    return pa.nulls(rows, dtype)  # type: ignore[call-overload]


def _mask(array: Any, null: bool = False) -> _Mask:
    found: _Mask = array.fill_null(null).to_numpy(zero_copy_only=False)
    return found


def _marked(rows: int, where: Any) -> _Mask:
    mask = np.zeros(rows, np.bool_)
    mask[where] = True
    return mask
