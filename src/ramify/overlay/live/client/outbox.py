"""What a client publishes, as messages: events in any of their forms, checked and cut to size. Pure.

Owns the forms that `Client.publish` takes, and the ids under which a server tells a publish that is tried
again from a new one. Such an id is made from the client's secret and the ids of the events: the same events
have the same id, also after a restart, and no other client of the broker can use it up beforehand.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events.cloudevents import decode_events
from ramify.content.events.events import Event, EventSchema, events_to_batch
from ramify.errors import InputError, LimitError
from ramify.overlay.control.frames import MOST_FRAME_BYTES, Limits, encode_events, split
from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE, EVENT_TYPE

__all__ = ["Message", "Publishable", "outgoing"]

Publishable: TypeAlias = Event | Mapping[str, Any] | pa.RecordBatch | Sequence[Event | Mapping[str, Any]]
"""An event, a CloudEvent in JSON's types, a batch, or several of the first two (all of one kind)."""

_HEADER_ROOM = 4 << 10


@dataclass(frozen=True, slots=True)
class Message:
    """One publish: all of its events are accepted together."""

    id: str
    content_type: str
    payload: bytes
    events: int


def outgoing(
    events: Publishable,
    secret: bytes,
    *,
    id: str | None = None,
    max_payload: int = MOST_FRAME_BYTES,
    limits: Limits | None = None,
    check: bool = True,
) -> list[Message]:
    """The messages of a publish, in order. `id` stands in for the ids of the events.

    With `check`, CloudEvents are read as the broker will read them (about a millisecond a call), so that a
    bad one is an error here and not an entry of the stream REJECTED there.

    Raises
    ------
    InputError
        For what is no event, or cannot be taken in by a broker.
    LimitError
        When one event is too large.
    """
    limits = limits or Limits()
    most = min(MOST_FRAME_BYTES, max_payload - _HEADER_ROOM)
    if isinstance(events, Event):
        events = events_to_batch([events])
    if isinstance(events, pa.RecordBatch):
        return list(_arrow(events, secret, id, most, limits))
    if isinstance(events, Mapping):
        return list(_json([events], secret, id, most, limits, check, single=True))
    if isinstance(events, str | bytes) or not isinstance(events, Sequence):
        raise InputError(f"{type(events).__name__} is not an event: publish an Event, a dict or a batch")
    if all(isinstance(event, Event) for event in events):
        listed = [event for event in events if isinstance(event, Event)]
        return list(_arrow(events_to_batch(listed), secret, id, most, limits))
    if all(isinstance(event, Mapping) for event in events):
        dicts = [event for event in events if isinstance(event, Mapping)]
        return list(_json(dicts, secret, id, most, limits, check, single=False))
    raise InputError("the events are of several kinds: publish either Events or dicts at once")


def _arrow(
    batch: pa.RecordBatch, secret: bytes, id: str | None, most: int, limits: Limits
) -> Iterator[Message]:
    schema = EventSchema.of_batch(batch)
    if len(schema.attributes) > limits.max_attributes:
        raise InputError(
            f"the events have {len(schema.attributes)} attributes together; a message has at most "
            f"{limits.max_attributes}: publish them apart"
        )
    keys = _arrow_keys(batch)
    _check_values(batch, keys, limits.max_event_bytes)
    at = 0
    for start in range(0, batch.num_rows, limits.max_batch_events):
        for part in split(batch.slice(start, limits.max_batch_events), most):
            payload = encode_events(part)
            if part.num_rows == 1:
                _check_size(keys[at][1], len(payload), min(most, limits.max_event_bytes))
            name = _message_id(secret, keys[at : at + part.num_rows] if id is None else [(id, str(at))])
            yield Message(name, ARROW_TYPE, payload, part.num_rows)
            at += part.num_rows


def _check_values(batch: pa.RecordBatch, keys: list[tuple[str, str]], most: int) -> None:
    """No value alone is larger than an event may be. O(columns) for a batch that is small."""
    if batch.nbytes <= most:
        return
    columns: list[Any] = batch.columns
    for column in columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes: Any = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
            if len(sizes):
                row = int(sizes.argmax())
                _check_size(keys[row][1], int(sizes[row]), most)


def _arrow_keys(batch: pa.RecordBatch) -> list[tuple[str, str]]:
    """Source and id of each event, which name it."""
    ids: list[Any] = batch.column("id").to_pylist()
    sources: list[Any] = [""] * len(ids)
    if "source" in batch.schema.names:
        sources = batch.column("source").to_pylist()
    return [(str(source or ""), key) for source, key in zip(sources, ids, strict=True)]


def _json(
    events: Sequence[Mapping[str, Any]],
    secret: bytes,
    id: str | None,
    most: int,
    limits: Limits,
    check: bool,
    *,
    single: bool,
) -> Iterator[Message]:
    texts: list[bytes] = []
    keys: list[tuple[str, str]] = []
    for event in events:
        whole = event if event.get("id") else {**event, "id": id if single and id else uuid.uuid4().hex}
        try:
            texts.append(msgspec.json.encode(whole))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"event {whole['id']!r} cannot be written as JSON: {error}") from None
        keys.append((str(event.get("source", "")), str(whole["id"])))
        _check_size(keys[-1][1], len(texts[-1]), min(most, limits.max_event_bytes))
    if check:
        _check_events(texts, keys)
    for start, end in _cuts(texts, most, limits.max_batch_events):
        name = _message_id(secret, keys[start:end] if id is None else [(id, str(start))])
        if single:
            yield Message(name, EVENT_TYPE, texts[0], 1)
        else:
            yield Message(name, BATCH_TYPE, b"[" + b",".join(texts[start:end]) + b"]", end - start)


def _check_events(texts: list[bytes], keys: list[tuple[str, str]]) -> None:
    for bad in decode_events(texts).rejected:
        raise InputError(f"event {keys[bad.position][1]!r} cannot be published: {bad.detail}")


def _check_size(key: str, size: int, most: int) -> None:
    if size > most:
        raise LimitError(f"event {key!r} has {size} bytes; at most {most} are taken: make it smaller")


def _cuts(texts: list[bytes], most: int, rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of texts that fit into one message each."""
    start, size = 0, 2
    for k, text in enumerate(texts):
        if k > start and (size + len(text) + 1 > most or k - start >= rows):
            yield start, k
            start, size = k, 2
        size += len(text) + 1
    if start < len(texts):
        yield start, len(texts)


def _message_id(secret: bytes, keys: Sequence[tuple[str, str]]) -> str:
    digest = hashlib.blake2b(key=hashlib.sha256(secret).digest(), digest_size=16)
    for key in keys:
        for text in key:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()
