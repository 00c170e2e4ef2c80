"""Frames: event batches as bytes between brokers and clients, and their joining and cutting. Pure.

Owns the bytes of a batch on the wire (`encode_events`, `decode_events`), what a frame may hold (`Limits`),
and its size: `concat` joins small batches, `split` cuts large ones.

Arrow from outside is checked before it is unpacked, since a few bytes can stand for gigabytes: first schema
and lengths, then offsets and UTF-8. Values are checked where clients' events come in (`arrow_rows`).
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events.events import (
    BODY_IS_JSON,
    ENTRY,
    FIXED_COLUMNS,
    NULLS,
    OTHERS,
    AttributeType,
    EventSchema,
    widen,
)
from ramify.content.events.others import OTHERS_TYPE, end_to_end, others_in, with_others
from ramify.content.events.records import MAX_RECORD_BYTES
from ramify.errors import InputError, LimitError, RamifyError

__all__ = [
    "LINK_LIMITS",
    "MOST_FRAME_BYTES",
    "Limits",
    "absent",
    "concat",
    "concat_parts",
    "decode_entries",
    "decode_events",
    "encode_events",
    "read_stream",
    "split",
]

_COMPRESS_ABOVE_BYTES = 4 << 10
_MOST_COLUMNS = 4096
# Joined batches that may still grow. Older ones are closed, so that joining stays linear.
_OPEN_GROUPS = 16

MOST_FRAME_BYTES = 7 << 20
"""What a broker puts into one message. A server takes 8 MiB with the headers, which name subscriptions."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may hold. Nesting is bounded as in every reader (`MAX_DEPTH`).

    `max_attributes` bounds the columns of an Arrow message, and those that the events of JSON messages get;
    JSON may have more attributes, which are in `_others`. `max_batch_bytes` bounds what an Arrow message
    may unpack to.

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


LINK_LIMITS = Limits(max_batch_events=1_000_000, max_attributes=1 << 16)
"""What a broker's frame may hold, on a link or to a client: `split` makes no other. A broker puts the
events of many messages together, so the limits of one client's message are too narrow."""


# Handing a small frame's buffers to other threads takes longer than to unpack them.
_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


def encode_events(batch: pa.RecordBatch, entries: npt.NDArray[np.int64] | None = None) -> bytes:
    """A batch as an Arrow IPC stream, its buffers in zstd above 4 KiB; `_others` only with items.

    `entries` are written to the column `_entry`: which entry of the message's headers each row has.
    """
    batch = with_others(batch, others_in(batch))
    if entries is not None:
        batch = batch.append_column(_ENTRY_FIELD, pa.array(entries, pa.int32()))
    compression: Literal["zstd"] | None = "zstd" if batch.nbytes > _COMPRESS_ABOVE_BYTES else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
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
    batch, more = read_stream(data, limits or Limits())
    if more:
        raise LimitError(f"the frame has more than {batch.num_rows} events; send smaller frames")
    return batch


def decode_entries(data: bytes) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]:
    """A broker's message: events as by `decode_events` with `LINK_LIMITS`, and `_entry` if it is there."""
    entries: list[Any] = []
    batch, more = read_stream(data, LINK_LIMITS, entries)
    if more:
        raise LimitError(f"the frame has more than {batch.num_rows} events; send smaller frames")
    return batch, np.concatenate(entries) if entries else None


def concat(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The batches, joined where their attributes agree; each publisher's events keep their order.

    Attributes that one side lacks are absent there, those that no event has are dropped. Integers join
    doubles only when each value survives. Batches are kept apart beyond 4,096 attributes together.
    """
    return [batch for batch, _ in concat_parts(batches)]


def concat_parts(batches: Iterable[pa.RecordBatch]) -> list[tuple[pa.RecordBatch, list[int]]]:
    """As `concat`, each with the places of the batches that it is made of, in the order of its rows."""
    groups: list[_BatchGroup] = []
    # Frames of one kind follow each other: those need no comparison by attribute.
    for members, run in _runs(batches):
        one = _BatchGroup.of(end_to_end(run), members)
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
    return [(group.batch(), group.members) for group in groups]


def split(batch: pa.RecordBatch, most_bytes: int = MOST_FRAME_BYTES) -> list[pa.RecordBatch]:
    """The events in order, in parts that encode to at most `most_bytes` and that `LINK_LIMITS` allows.

    A single event that is larger is a part of its own: its sender must look. A part that did not fit
    at first has only the attributes that its events have, since names can be most of a frame.

    Cost: O(columns) for a batch that is small before it is packed; otherwise each cut packs both halves.
    """
    parts: list[pa.RecordBatch] = []
    waiting = [batch] if batch.num_rows else []
    while waiting:
        part = waiting.pop()
        if _is_frame(part, most_bytes):
            parts.append(part)
            continue
        used = _used(part)
        if len(used) < len(EventSchema.of_batch(part).attributes):
            waiting.append(_shaped(part, EventSchema(used)))
        elif part.num_rows == 1:
            parts.append(part)
        else:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
    return parts


def _is_frame(batch: pa.RecordBatch, most_bytes: int) -> bool:
    """Whether a batch encodes to at most `most_bytes`, and `decode_events` takes it with `LINK_LIMITS`."""
    limits = LINK_LIMITS
    unpacked = int(pa.ipc.get_record_batch_size(batch))
    if batch.num_rows > limits.max_batch_events or unpacked > limits.max_batch_bytes:
        return False
    if len(EventSchema.of_batch(batch).attributes) > limits.max_attributes:
        return False
    # Packing makes a buffer longer by a 256th and a few words at most: small ones need no packing to know.
    longest = batch.schema.serialize().size + unpacked + (unpacked >> 8)
    longest += _PACKING_BYTES * (batch.num_columns + 3)
    return longest <= most_bytes or len(encode_events(batch)) <= most_bytes


# A column has at most five buffers (a list of texts), each with its length, zstd's frame and padding;
# `_others` has those of three columns.
_PACKING_BYTES = 5 * 96


@dataclass(slots=True)
class _BatchGroup:
    """Batches that become one. `rounded` are integers that a double cannot hold."""

    parts: list[pa.RecordBatch]
    kinds: dict[str, AttributeType]
    rounded: set[str]
    publishers: set[str | None]
    members: list[int]

    @classmethod
    def of(cls, batch: pa.RecordBatch, members: list[int]) -> "_BatchGroup":
        used = _used(batch)
        integers = [p for p, k in used.items() if k is AttributeType.INT64]
        rounded = {p for p in integers if not _survives(batch.column(p))}
        publishers = set(pc.unique(batch.column("publisher")).to_pylist())
        return cls([batch], used, rounded, publishers, members)

    def fits(self, other: "_BatchGroup") -> bool:
        if len(self.kinds.keys() | other.kinds.keys()) > max(_MOST_COLUMNS, len(other.kinds)):
            return False
        for path in self.kinds.keys() & other.kinds.keys():
            wider = widen(self.kinds[path], other.kinds[path])
            if wider is None:
                return False
            if wider is AttributeType.DOUBLE and path in self.rounded | other.rounded:
                return False
        return True

    def add(self, other: "_BatchGroup") -> None:
        self.parts += other.parts
        self.members += other.members
        for path, kind in other.kinds.items():
            self.kinds[path] = widen(self.kinds.get(path, kind), kind) or kind
        self.rounded |= other.rounded
        self.publishers |= other.publishers

    def batch(self) -> pa.RecordBatch:
        schema = EventSchema(self.kinds)
        return end_to_end([_shaped(part, schema) for part in self.parts])


def _used(batch: pa.RecordBatch) -> dict[str, AttributeType]:
    """The attributes that some event has."""
    kinds = EventSchema.of_batch(batch).attributes
    return {path: kind for path, kind in kinds.items() if batch.column(path).null_count < batch.num_rows}


def _runs(batches: Iterable[pa.RecordBatch]) -> list[tuple[list[int], list[pa.RecordBatch]]]:
    """Neighbours with equal schemas, with their places; those without rows are left out."""
    runs: list[tuple[list[int], list[pa.RecordBatch]]] = []
    for place, batch in enumerate(batches):
        if not batch.num_rows:
            continue
        if not runs or not batch.schema.equals(runs[-1][1][-1].schema):
            runs.append(([], []))
        runs[-1][0].append(place)
        runs[-1][1].append(batch)
    return runs


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
            column = absent(batch.num_rows, f.type)
        arrays.append(column if column.type.equals(f.type) else column.cast(f.type, safe=False))
    return with_others(pa.RecordBatch.from_arrays(arrays, schema=arrow), others_in(batch))


def absent(rows: int, dtype: pa.DataType) -> Any:
    """A column without any value."""
    return pa.nulls(rows, dtype)  # type: ignore[call-overload]


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


def read_stream(
    data: bytes, limits: Limits, entries: list[Any] | None = None
) -> tuple[pa.RecordBatch, bool]:
    """The first `max_batch_events` rows of an IPC stream, and whether it has more. Trusts nothing.

    Where `entries` is given, a column `_entry` is allowed, and its values are added there.
    """
    try:
        batches, schema, more = _read_batches(data, limits, entries)
        if not batches:
            return pa.RecordBatch.from_pylist([], schema.arrow), more
        return end_to_end(batches), more
    except RamifyError:
        raise
    except _BROKEN as error:
        raise InputError(f"not an Arrow IPC stream of events: {str(error)[:200]}") from None


def _read_batches(
    data: bytes, limits: Limits, entries: list[Any] | None
) -> tuple[list[pa.RecordBatch], EventSchema, bool]:
    messages = _messages(data)
    message = next(messages, None)
    if message is None or message.type != "schema":
        raise InputError("an Arrow stream begins with its schema; this one does not")
    found = pa.ipc.read_schema(message)
    at = -1 if entries is None else found.get_field_index(ENTRY)
    if at >= 0:
        if found.field(at).type != pa.int32():
            raise InputError(f"the column {ENTRY} is {found.field(at).type}; it must be int32")
        found = found.remove(at)
    schema = _checked_schema(found, limits)
    reader = pa.ipc.open_stream(pa.py_buffer(data), options=_ONE_THREAD)
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
        batch = reader.read_next_batch()
        batch.validate(full=True)
        for name in (BODY_IS_JSON, NULLS):
            if batch.column(name).null_count:
                raise InputError(f"the column {name} has nulls; write a value in each row")
        if OTHERS in batch.schema.names:
            _check_items(batch.column(OTHERS))
        if entries is not None and at >= 0:
            entries.append(_entries_of(batch.column(at)))
        batch = _shaped(batch, schema)
        more = rows + batch.num_rows > limits.max_batch_events
        batches.append(batch.slice(0, limits.max_batch_events - rows))
        rows += batch.num_rows
        if more:
            return batches, schema, True
    return batches, schema, False


def _entries_of(column: Any) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise InputError(f"the column {ENTRY} has nulls; write a value in each row")
    found: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _check_items(column: Any) -> None:
    """That no item lacks what is read without a look: Arrow does not keep a sender to its schema."""
    items: Any = pc.list_flatten(column)
    if items.null_count or any(items.field(name).null_count for name in ("path", "list", "kind", "number")):
        raise InputError(f"an item of the column {OTHERS} has no path, list, kind or number")


def _messages(data: bytes) -> Iterator[Any]:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _checked_schema(found: pa.Schema, limits: Limits) -> EventSchema:
    """The attributes of a schema with exactly our columns and types."""
    attributes = len(found) - len(FIXED_COLUMNS) - (OTHERS in found.names)
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
        if f.name in _FIXED_TYPES:
            if f.type != _FIXED_TYPES[f.name]:
                raise InputError(f"the column {f.name} is {f.type}; it must be {_FIXED_TYPES[f.name]}")
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


_ENTRY_FIELD = pa.field(ENTRY, pa.int32())
_FIXED_TYPES = {**{f.name: f.type for f in FIXED_COLUMNS}, OTHERS: OTHERS_TYPE}
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
