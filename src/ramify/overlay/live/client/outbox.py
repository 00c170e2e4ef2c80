"""What a client publishes, as messages: events in any of their forms, checked and cut to size. Pure.

Owns the forms that `Client.publish` takes, and the ids under which a server tells a publish that is tried
again from a new one. Such an id is made from the client's secret and the ids of the events: the same events
have the same id, also after a restart, and no other client of the broker can use it up beforehand.
"""

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events.events import Event, EventSchema, events_to_batch, values_at
from ramify.errors import InputError, LimitError
from ramify.overlay.control.arrow_rows import Part, fit_types
from ramify.overlay.control.frames import MOST_FRAME_BYTES, Limits, encode_events, split
from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE, EVENT_TYPE, ClientMessage, take_in

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

    With `check`, the messages are read as the broker will read them (about a millisecond a call), so that a
    bad event is an error here and not an entry of the stream REJECTED there.

    Raises
    ------
    InputError
        For what is no event, or cannot be taken in by a broker.
    LimitError
        When one event is too large.
    """
    limits = limits or Limits()
    messages = list(_cut(events, secret, id, max_payload, limits))
    if check:
        _check_events(messages, limits)
    return messages


def _cut(
    events: Publishable, secret: bytes, id: str | None, max_payload: int, limits: Limits
) -> Iterator[Message]:
    most = min(MOST_FRAME_BYTES, max_payload - _HEADER_ROOM)
    if isinstance(events, Event):
        events = events_to_batch([events])
    if isinstance(events, pa.RecordBatch):
        return _arrow(events, secret, id, most, limits)
    if isinstance(events, Mapping):
        return _json([events], secret, id, most, limits, single=True)
    if isinstance(events, str | bytes) or not isinstance(events, Sequence):
        raise InputError(f"{type(events).__name__} is not an event: publish an Event, a dict or a batch")
    if all(isinstance(event, Event) for event in events):
        listed = [event for event in events if isinstance(event, Event)]
        return _arrow(events_to_batch(listed), secret, id, most, limits)
    if all(isinstance(event, Mapping) for event in events):
        dicts = [event for event in events if isinstance(event, Mapping)]
        return _json(dicts, secret, id, most, limits, single=False)
    raise InputError("the events are of several kinds: publish either Events or dicts at once")


def _arrow(
    batch: pa.RecordBatch, secret: bytes, id: str | None, most: int, limits: Limits
) -> Iterator[Message]:
    attributes = EventSchema.of_batch(batch).attributes
    if len(attributes) > limits.max_attributes:
        few = EventSchema(dict(islice(attributes.items(), limits.max_attributes)))
        nowhere = np.zeros(batch.num_rows, np.int64)
        batch = fit_types(Part(batch, nowhere, nowhere), few).batch  # the others go without a column
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
    if len(ids):
        sources = values_at(batch, "source")
    return [(str(source or ""), key) for source, key in zip(sources, ids, strict=True)]


def _json(
    events: Sequence[Mapping[str, Any]],
    secret: bytes,
    id: str | None,
    most: int,
    limits: Limits,
    *,
    single: bool,
) -> Iterator[Message]:
    texts: list[bytes] = []
    keys: list[tuple[str, str]] = []
    for event in events:
        if event.get("id") == "":
            raise InputError("an event has an empty id; give it one, or leave the id out to get one")
        own = event.get("id") is not None
        whole = event if own else {**event, "id": id if single and id else uuid.uuid4().hex}
        texts.append(_text(whole))
        keys.append((str(event.get("source", "")), str(whole["id"])))
        _check_size(keys[-1][1], len(texts[-1]), min(most, limits.max_event_bytes))
    for start, end in _cuts(texts, most, limits.max_batch_events):
        name = _message_id(secret, keys[start:end] if id is None else [(id, str(start))])
        if single:
            yield Message(name, EVENT_TYPE, texts[0], 1)
        else:
            yield Message(name, BATCH_TYPE, b"[" + b",".join(texts[start:end]) + b"]", end - start)


def _text(event: Mapping[str, Any]) -> bytes:
    """An event as JSON. The fast encoder makes a NaN a null, and has no integers beyond 64 bits."""
    try:
        try:
            text = msgspec.json.encode(event)
        except OverflowError:
            written = json.dumps(event, allow_nan=False, ensure_ascii=False, default=msgspec.to_builtins)
            text = written.encode()
        if b"null" in text:
            _check_finite(event)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"event {event['id']!r} cannot be written as JSON: {error}") from None
    return text


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON; leave it out")
    inside = value.values() if isinstance(value, Mapping) else value
    if isinstance(inside, Iterable) and not isinstance(inside, str | bytes | bytearray | memoryview):
        for element in inside:
            _check_finite(element)


def _check_events(messages: Sequence[Message], limits: Limits) -> None:
    """Take the messages in as a broker will: an event that it would reject is refused before it is sent."""
    sent = [ClientMessage("", message.payload, message.content_type, message.id) for message in messages]
    for bad in take_in(sent, limits)[1]:
        raise InputError(f"event {bad.event_id or ''!r} cannot be published: {bad.detail}")


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
