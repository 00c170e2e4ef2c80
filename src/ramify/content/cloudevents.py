"""CloudEvents 1.0 in JSON: structured events and batches, in and out.

Owns the envelope: which attributes must be there, what they may be called and hold, and where the data
goes. Context attributes become columns under their own names and the fields of `data` under `data.<path>`;
the data itself, as it was written, is the body. Flattening and typing are those of every record
(`flatten`).

The publisher is the extension `publisher` where an event has one, and a field of the caller's choice
otherwise (`source`). Writing adds the extension only where the publisher is not the source, so an event
keeps its publisher whichever field was chosen. Context attributes that are null count as absent, as the
specification says; `data: null` is data.

Specification: CloudEvents 1.0.2, and its JSON Event Format, sections 2.2, 3 and 4.
"""

import base64
import binascii
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ramify.content.events import Decoded, Event, EventSchema, RejectReason, batch_to_events
from ramify.content.flatten import (
    MAX_RECORD_BYTES,
    PLAIN,
    Fault,
    FieldMapping,
    Parser,
    Records,
    Rows,
    bracket_levels,
    decode,
    duplicate_key,
    flatten,
    null_paths,
    objects,
    too_large,
    unflattened,
)
from ramify.errors import InputError

__all__ = [
    "ArraySplitter",
    "cloudevents_parser",
    "decode_batch",
    "decode_events",
    "encode_batch",
    "encode_event",
]

_JSON_WHITESPACE = b" \t\r\n"
_STRINGS = frozenset({"type", "source", "subject", "dataschema", "datacontenttype"})
_SCALARS = frozenset({str, int, bool, type(None)})


def decode_events(
    records: Iterable[bytes],
    schema: EventSchema | None = None,
    publisher: str = "source",
    *,
    source: str | None = None,
) -> Decoded:
    """Structured events, one per element. Never raises for a bad one: it is in `rejected`."""
    raw = Records(list(records), source=source)
    return decode(raw, cloudevents_parser(publisher), schema)


def decode_batch(
    data: bytes,
    schema: EventSchema | None = None,
    publisher: str = "source",
    *,
    source: str | None = None,
) -> Decoded:
    """A JSON array of events. A bad event does not spoil the others; no array at all is one `Rejected`.

    Elements are told apart by their brackets, so one that is malformed inside but balanced costs only
    itself; after an unbalanced one the rest of the array is lost with it, and reported so.
    """
    splitter = ArraySplitter()
    raw, refused = gather([*splitter.feed(data.removeprefix(BOM_UTF8)), *splitter.finish()])
    return decode(Records(raw, source=source, refused=refused), cloudevents_parser(publisher), schema)


def encode_event(event: Event, *, wrap_as: str | None = None) -> bytes:
    """One event in structured mode, on a single line.

    The context attributes are those with legal names; the body is `data` if it is JSON and `data_base64`
    if not. An event without a body takes its data from the attributes `data` or `data.*`.

    `wrap_as` makes an envelope of that type for an event that never had one: the source is its publisher,
    the data its body, or all its attributes where it has no body.

    Raises
    ------
    InputError
        When the event lacks `type` or `source`, or an attribute has no place in an envelope.
    """
    # A raw newline in JSON can only stand between tokens, so it can become a space.
    return _encoded(event, wrap_as).replace(b"\n", b" ").replace(b"\r", b" ")


def encode_batch(batch: pa.RecordBatch, *, wrap_as: str | None = None) -> bytes:
    """All rows as one JSON array, which `decode_batch` reads back, bodies byte for byte.

    Python per row. Raises like `encode_event`.
    """
    return b"[" + b",\n".join(_encoded(event, wrap_as) for event in batch_to_events(batch)) + b"]"


# --- reading -----------------------------------------------------------------------------------------


def cloudevents_parser(publisher: str = "source") -> Parser:
    """The parser of structured events, for `flatten.decode`; `publisher` is a dotted path."""
    return partial(_parse, publisher=publisher)


def _parse(records: Records, _: FieldMapping, publisher: str) -> tuple[Rows, dict[int, Fault]]:
    rows, faults = Rows(), dict(records.refused)
    data_of = msgspec.json.Decoder(_Data).decode
    for i, found, colons in objects(records, faults):
        raw = records.raw[i]
        fault = _envelope_fault(found)
        if fault is not None:
            faults[i] = fault
            continue
        has_data, encoded = "data" in found, found.get("data_base64")
        body: bytes | None = None
        if has_data:
            body = bytes(data_of(raw).data)
        elif encoded is not None:
            try:
                body = base64.b64decode(encoded, validate=True)
            except (ValueError, binascii.Error):
                faults[i] = _bad("data_base64 is not base64")
                continue
        keys = flatten(found) if type(found.get("data")) is dict else len(found)
        if keys < 0:
            faults[i] = unflattened(raw, keys)
            continue
        if keys != colons and (fault := duplicate_key(raw, keys, colons, found.values())):
            faults[i] = fault
            continue
        found.pop("data_base64", None)
        del found["specversion"]
        if nulls := null_paths(found, PLAIN.shadowed):
            for name in [path for path in nulls if path != "data" and not path.startswith("data.")]:
                del found[name]
                nulls.remove(name)
            rows.nulls[len(rows.index)] = nulls
        if "publisher" not in found:
            found["publisher"] = found.get(publisher)
        rows.index.append(i)
        rows.flat.append(found)
        rows.bodies.append(body)
        rows.body_is_json.append(has_data)
    return rows, faults


class _Data(msgspec.Struct):
    """Only the data, as it was written: it is handed back byte for byte."""

    data: msgspec.Raw


def _bad(detail: str) -> Fault:
    return RejectReason.BAD_CLOUDEVENT, detail


def _envelope_fault(found: dict[str, Any]) -> Fault | None:
    """What is wrong with the context attributes, if anything."""
    if found.get("specversion") != "1.0":
        return _bad("specversion must be the string '1.0'")
    if not found.get("id"):
        return RejectReason.NO_ID, "the event has no id; give it a non-empty string"
    for name in ("id", "source", "type"):
        if type(found.get(name)) is not str or not found[name]:
            return _bad(f"{name} must be a non-empty string")
    for name, value in found.items():
        if name == "data":
            continue
        if name == "data_base64":
            if type(value) is not str and value is not None:
                return _bad("data_base64 must be a string")
        elif not _is_legal(name):
            return _bad(f"the attribute name {name[:80]!r} may only have the characters a-z and 0-9")
        elif type(value) not in _SCALARS:
            return _bad(f"{name} must be a string, an integer or a boolean")
        elif name in _STRINGS and value is not None and (type(value) is not str or not value):
            return _bad(f"{name} must be a non-empty string")
    if "data" in found and found.get("data_base64") is not None:
        return _bad("an event has data or data_base64, not both")
    return None


@lru_cache(maxsize=4096)
def _is_legal(name: str) -> bool:
    return re.fullmatch(r"[a-z0-9]+", name) is not None


class ArraySplitter:
    """Cuts a JSON array, fed in pieces, into the bytes of its elements without decoding them.

    Feed chunks in order, then call `finish`. Each element comes with a fault if it is already known to be
    bad. Vectorised: O(n) whatever the bytes, and an element beyond the size limit is never held whole.
    """

    def __init__(self) -> None:
        # How far we are: before the '[', inside the array, or after its ']'.
        self.opened = self.closed = False
        # The state of the scan at the end of the last chunk; `held` is half of an escape pair.
        self.quoted, self.level, self.held = False, 0, b""
        # The element in progress, from its first byte that is no space.
        self.tail, self.oversize = bytearray(), False
        # Elements seen so far; anything but spaces after the array, or instead of it.
        self.elements, self.junk = 0, b""

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, Fault | None]]:
        """The elements that end in this chunk."""
        data = self.held + chunk
        escapes = len(data) - len(data.rstrip(b"\\"))
        self.held = data[len(data) - escapes % 2 :]
        data = data[: len(data) - escapes % 2]
        if not self.opened:
            data = data.lstrip(_JSON_WHITESPACE)
            self.opened = not self.junk and data[:1] == b"["
            if not self.opened:
                self.junk = self.junk or data[:256]
                return
            self.level, data = 1, data[1:]
        if self.closed:
            self.junk = self.junk or data.strip(_JSON_WHITESPACE)[:256]
            return
        if not data:
            return
        quoted, levels = bracket_levels(data, self.quoted, self.level)
        self.quoted, self.level = bool(quoted[-1]), int(levels[-1])
        plain = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(levels == 0)
        end = int(ends[0]) if len(ends) else len(data)
        cuts = np.flatnonzero((plain[:end] == 0x2C) & (levels[:end] == 1) & ~quoted[:end])
        start = 0
        for cut in cuts.tolist():
            self._append(data[start:cut])
            yield self._element()
            start = cut + 1
        self._append(data[start:end])
        if end < len(data):
            self.closed = True
            self.junk = data[end + 1 :].strip(_JSON_WHITESPACE)[:256]
            if data[end : end + 1] != b"]":
                self.junk = data[end : end + 256]
            if self.tail or self.oversize or self.elements:
                yield self._element()

    def finish(self) -> Iterator[tuple[bytes, Fault | None]]:
        """The element that the end of the input cut off, and what follows or replaces the array."""
        if not self.opened:
            yield bytes(self.junk), _bad("a batch must be a JSON array of events")
            return
        if not self.closed:
            if self.tail or self.oversize:
                yield self._element()
            fault = RejectReason.NOT_JSON, "the array does not end: the input may have been cut off"
            yield bytes(self.held), fault
        elif self.junk or self.held:
            yield self.junk, (RejectReason.NOT_JSON, "there is something after the end of the array")

    def _append(self, piece: bytes) -> None:
        if not self.tail:
            piece = piece.lstrip(_JSON_WHITESPACE)
        if not self.oversize:
            self.tail += piece
            if len(self.tail) > MAX_RECORD_BYTES:
                self.oversize = True
                del self.tail[256:]

    def _element(self) -> tuple[bytes, Fault | None]:
        record = bytes(self.tail).rstrip(_JSON_WHITESPACE)
        fault = too_large() if self.oversize else None
        self.tail, self.oversize = bytearray(), False
        self.elements += 1
        return record, fault


def gather(found: Iterable[tuple[bytes, Fault | None]]) -> tuple[list[bytes], dict[int, Fault]]:
    """Elements of a splitter as the parts of `Records`."""
    raw, refused = [], {}
    for i, (record, fault) in enumerate(found):
        raw.append(record)
        if fault is not None:
            refused[i] = fault
    return raw, refused


# --- writing -----------------------------------------------------------------------------------------


def _encoded(event: Event, wrap_as: str | None) -> bytes:
    return msgspec.json.encode(_envelope(event) if wrap_as is None else _wrapped(event, wrap_as))


def _envelope(event: Event) -> dict[str, Any]:
    context: dict[str, Any] = {"specversion": "1.0", "id": event.id}
    for name in ("source", "type"):
        value = event.attributes.get(name)
        if not isinstance(value, str) or not value:
            raise InputError(f"event {event.id!r} has no {name}, so it is no CloudEvent; wrap it as one")
        context[name] = value
    if event.publisher not in (None, context["source"]):
        context["publisher"] = event.publisher
    if event.time is not None:
        context["time"] = event.time
    for path in sorted(event.attributes):
        value = event.attributes[path]
        if path in context or path == "data" or path.startswith("data."):
            continue
        if not _is_legal(path) or isinstance(value, float | tuple):
            raise InputError(
                f"event {event.id!r}: the attribute {path!r} has no place in a CloudEvent; "
                "names have only a-z and 0-9, values are strings, integers, booleans or times"
            )
        if value is not None:
            context[path] = value
    return {**context, **_data(event, prefix="data.")}


def _wrapped(event: Event, kind: str) -> dict[str, Any]:
    context: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.publisher or "ramify",
        "type": kind,
    }
    if event.time is not None:
        context["time"] = event.time
    return {**context, **_data(event, prefix="")}


def _data(event: Event, prefix: str) -> dict[str, Any]:
    """The `data` or `data_base64` member."""
    inner = {
        path.removeprefix(prefix): v for path, v in event.attributes.items() if path.startswith(prefix)
    }
    if event.body is not None and event.body_is_json:
        return {"data": msgspec.Raw(event.body)}
    if event.body is not None:
        if prefix and inner:
            raise InputError(f"event {event.id!r} has a binary body and attributes data.*; keep one")
        return {"data_base64": base64.b64encode(event.body).decode()}
    if prefix and "data" in event.attributes:
        return {"data": event.attributes["data"]}
    return {"data": inner} if inner else {}
