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
import math
import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache, partial
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ramify.content.events.attributes import TEXT_MARK, text_path, time_text
from ramify.content.events.events import DecodedBatch, Event, EventSchema, RejectReason, batch_to_events
from ramify.content.events.flatten import FieldMapping, Parser, decode, parse_shapes
from ramify.content.events.framing import ArraySplitter, array_records
from ramify.content.events.leaves import Leaf, Leaves, Shape
from ramify.content.events.records import Fault, Records
from ramify.content.events.tabulate import ParsedRecords
from ramify.errors import InputError

__all__ = [
    "ArraySplitter",
    "cloudevents_parser",
    "decode_batch",
    "decode_events",
    "encode_batch",
    "encode_event",
]

_REQUIRED = frozenset({"specversion", "id", "source", "type"})
_CONTEXT = frozenset({"id", "publisher", "time", "data_base64"})
_STRINGS = _REQUIRED | {"subject", "dataschema", "datacontenttype"}
_SCALARS = frozenset({str, int, bool, type(None)})


def decode_events(
    records: Iterable[bytes],
    schema: EventSchema | None = None,
    publisher: str = "source",
    *,
    source: str | None = None,
) -> DecodedBatch:
    """Structured events, one per element. Never raises for a bad one: it is in `rejected`."""
    raw = Records(list(records), source=source)
    return decode(raw, cloudevents_parser(publisher), schema)


def decode_batch(
    data: bytes,
    schema: EventSchema | None = None,
    publisher: str = "source",
    *,
    source: str | None = None,
) -> DecodedBatch:
    """A JSON array of events. A bad event does not spoil the others; no array at all is one `Rejected`.

    Elements are told apart by their brackets, so one that is malformed inside but balanced costs only
    itself; after an unbalanced one the rest of the array is lost with it, and reported so.
    """
    return decode(array_records(data, source), cloudevents_parser(publisher), schema)


def encode_event(event: Event, *, wrap_as: str | None = None) -> bytes:
    """One event in structured mode, on a single line.

    The context attributes are those with legal names; the body is `data` if it is JSON and `data_base64`
    if not. An event without a body takes its data from the attributes `data` or `data.*`, under their flat
    names; the fields of objects in arrays are an array each then.

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


def _parse(records: Records, _: FieldMapping, keep: frozenset[str] | None, publisher: str) -> ParsedRecords:
    parsed = parse_shapes(records, _spread, None if keep is None else keep | _CONTEXT | {publisher})
    leaves, faults, index = parsed.leaves, parsed.faults, parsed.index
    leaves.columns.pop("specversion", None)
    encoded = leaves.columns.pop("data_base64", Leaf())
    for path in [path for path in leaves.columns if path != "data" and not path.startswith("data.")]:
        leaves.discard_nulls(path)
    _fill_publishers(leaves, publisher)
    parsed.bodies = _bodies(parsed, records)
    parsed.body_is_json = [body is not None for body in parsed.bodies]
    encoded.discard_nulls()
    spoilt = []
    for row, text in zip(encoded.rows.tolist(), encoded.values, strict=True):
        try:
            parsed.bodies[row] = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            faults[index[row]] = _bad("data_base64 is not base64")
            spoilt.append(row)
    if spoilt:
        leaves.drop(spoilt)
    return parsed


def _spread(shape: Shape, parsed: ParsedRecords) -> None:
    columns = shape.columns()
    if _is_sound(shape.keys, columns):
        parsed.leaves.add(shape, columns=columns)
        return
    good = []
    for k, (row, found) in enumerate(zip(shape.rows.tolist(), shape.objects, strict=True)):
        fault = _envelope_fault(found)
        if fault is None:
            good.append(k)
        else:
            parsed.faults[parsed.index[row]] = fault
    parsed.leaves.add(Shape(shape.keys, shape.rows[good], [shape.objects[k] for k in good]))


def _fill_publishers(leaves: Leaves, path: str) -> None:
    """Where an event names no publisher, the field at `path` is it."""
    other = leaves.columns.get(path)
    if other is None or path == "publisher":
        return
    own = leaves.columns.setdefault("publisher", Leaf())
    free = ~np.isin(other.rows, own.rows)
    own.extend(other.rows[free], list(compress(other.values, free.tolist())), other.kinds)
    leaves.discard_nulls("publisher")


def _bodies(parsed: ParsedRecords, records: Records) -> list[bytes | None]:
    """The data of each row as it was written; None where it has none."""
    data_of = msgspec.json.Decoder(_Data).decode
    raw, faults = records.raw, parsed.faults
    return [None if i in faults else bytes(data_of(raw[i]).data) or None for i in parsed.index]


class _Data(msgspec.Struct):
    """Only the data, as it was written: it is handed back byte for byte. No JSON text is empty."""

    data: msgspec.Raw = msgspec.Raw(b"")


def _bad(detail: str) -> Fault:
    return RejectReason.BAD_CLOUDEVENT, detail


def _is_sound(keys: tuple[str, ...], columns: list[list[Any]]) -> bool:
    """Whether `_envelope_fault` would find nothing in any of these envelopes. It may say no in doubt."""
    if not _REQUIRED.issubset(keys) or ("data" in keys and "data_base64" in keys):
        return False
    for name, values in zip(keys, columns, strict=True):
        if name == "data":
            continue
        kinds = set(map(type, values))
        if name in _STRINGS:
            if kinds != {str} or not all(values):
                return False
        elif name == "data_base64":
            if not kinds <= {str, type(None)}:
                return False
        elif not (kinds <= _SCALARS and _is_legal(name)):
            return False
        if name == "specversion" and set(values) != {"1.0"}:
            return False
    return True


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


# --- writing -----------------------------------------------------------------------------------------


def _encoded(event: Event, wrap_as: str | None) -> bytes:
    return msgspec.json.encode(_envelope(event) if wrap_as is None else _wrapped(event, wrap_as))


def _envelope(event: Event) -> dict[str, Any]:
    context: dict[str, Any] = {"specversion": "1.0", "id": event.id}
    for name in ("source", "type"):
        value = event.attributes.get(name)
        if not isinstance(value, str) or not value:
            raise InputError(f"event {event.id!r} has no {name}, so it is not a CloudEvent; wrap it as one")
        context[name] = value
    if event.publisher not in (None, context["source"]):
        context["publisher"] = event.publisher
    if event.time is not None:
        context["time"] = _time_text(event, "time", event.time)
    for path in sorted(event.attributes):
        value = event.attributes[path]
        if path in context or path == "data" or path.startswith("data.") or path.endswith(TEXT_MARK):
            continue
        value = _whole(value) if isinstance(value, float) else value
        if not _is_legal(path) or isinstance(value, float | tuple):
            raise InputError(
                f"event {event.id!r}: the attribute {path!r} has no place in a CloudEvent; "
                "names have only a-z and 0-9, values are strings, integers, booleans or times"
            )
        if value is not None:
            context[path] = _json_value(event, path, value)
    return {**context, **_data(event, prefix="data.")}


def _wrapped(event: Event, kind: str) -> dict[str, Any]:
    context: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.publisher or "ramify",
        "type": kind,
    }
    if event.time is not None:
        context["time"] = _time_text(event, "time", event.time)
    return {**context, **_data(event, prefix="")}


def _data(event: Event, prefix: str) -> dict[str, Any]:
    """The `data` or `data_base64` member."""
    inner = {
        path.removeprefix(prefix): _json_value(event, path, value)
        for path, value in event.attributes.items()
        if path.startswith(prefix) and not path.endswith(TEXT_MARK)
    }
    if event.body is not None and event.body_is_json:
        return {"data": msgspec.Raw(event.body)}
    if event.body is not None:
        if prefix and inner:
            raise InputError(f"event {event.id!r} has a binary body and attributes data.*; keep one")
        return {"data_base64": base64.b64encode(event.body).decode()}
    if prefix and "data" in event.attributes:
        return {"data": _json_value(event, "data", event.attributes["data"])}
    return {"data": inner} if inner else {}


def _json_value(event: Event, path: str, value: Any) -> Any:
    """An attribute as JSON writes it. Infinity is a number beyond a double, as which it came in."""
    if isinstance(value, tuple):
        return [_json_value(event, path, element) for element in value]
    if isinstance(value, datetime):
        return _time_text(event, path, value)
    if isinstance(value, float) and math.isinf(value):
        return msgspec.Raw(b"1e999" if value > 0 else b"-1e999")
    return value


def _time_text(event: Event, path: str, time: datetime) -> str:
    """A time as it was written; where nobody wrote it, in the canonical form."""
    written = event.attributes.get(text_path(path))
    return written if isinstance(written, str) else time_text(time)


def _whole(number: float) -> Any:
    """A context attribute that is an integer beyond 64 bits, as an integer again."""
    if math.isinf(number):
        return msgspec.Raw(b"-" * (number < 0) + b"1" + b"0" * 309)
    return msgspec.Raw(str(int(number)).encode()) if number.is_integer() else number
