"""Rows of Arrow that clients send: the checks that the JSON readers make on what they read. Pure.

Owns which rows no reader would have let in (`check_rows`), their ids (`fill_ids`) and their fitting to the
types that all events of a call have together (`fit_types`). The stream itself was checked when it was read
(`frames.read_stream`): here columns and types are known to be ours, and values are not to be trusted.

A bad row costs that row alone: it is noted in its `Part`, and nothing here raises.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramify.content.events.events import (
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
)
from ramify.content.events.records import MAX_DEPTH, depth
from ramify.content.events.timestamps import parse_timestamps
from ramify.overlay.control.frames import Limits, absent

__all__ = ["Fault", "Ints", "Mask", "Part", "check_rows", "fill_ids", "fit_types"]

Fault: TypeAlias = tuple[str, str]
"""A reason and its detail."""

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

_FIRST_MICROSECOND = -62_135_596_800 * 10**6  # the years 1 to 9999, which Python's datetime holds
_LAST_MICROSECOND = 253_402_300_800 * 10**6 - 1


@dataclass(slots=True)
class Part:
    """Rows on their way in, with the message and the place in it of each, and what is wrong with some."""

    batch: pa.RecordBatch
    message: Ints
    row: Ints
    faults: dict[int, Fault] = field(default_factory=dict)

    def reject(self, mask: Mask, reason: str, detail: str) -> None:
        """Note what is wrong with the rows of a mask; the first fault of a row stays."""
        for row in np.flatnonzero(mask).tolist():
            self.faults.setdefault(row, (reason, detail))


def fill_ids(part: Part, message_id: str | None) -> None:
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


def check_rows(part: Part, limits: Limits) -> None:
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


def fit_types(part: Part, schema: EventSchema) -> Part:
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
                _marked(batch.num_rows, bad), RejectReason.WRONG_TYPE, f"{path!r} is not an RFC 3339 time"
            )
        else:
            part.reject(
                _mask(values.is_valid()),
                RejectReason.WRONG_TYPE,
                f"{path!r} is {kind}; it must be {wanted}",
            )
            column = None
        columns[path] = absent(batch.num_rows, wanted.arrow) if column is None else column
    arrow = schema.arrow
    fitted = pa.RecordBatch.from_arrays([columns[f.name] for f in arrow], schema=arrow)
    return Part(fitted, part.message, part.row, part.faults)


def _check_values(part: Part, name: str, values: Any, valid: Mask) -> None:
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


def _check_nulls(part: Part) -> None:
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


def _check_bodies(part: Part) -> None:
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


def _value_bytes(values: Any) -> Any:
    """Bytes per value, as the Parquet reader counts them; anything where there is none."""
    dtype = values.type
    if pa.types.is_list(dtype):
        elements = pc.list_flatten(values)
        return np.bincount(_parents(values), _value_bytes(elements), len(values)).astype(np.int64)
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        return pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return np.full(len(values), 1 if pa.types.is_boolean(dtype) else 8, np.int64)


def _parents(lists: Any) -> Ints:
    """The row of each element that `list_flatten` gives."""
    return np.repeat(np.arange(len(lists)), pc.list_value_length(lists).fill_null(0).to_numpy())


def _mask(array: Any, null: bool = False) -> Mask:
    found: Mask = array.fill_null(null).to_numpy(zero_copy_only=False)
    return found


def _marked(rows: int, where: Any) -> Mask:
    mask = np.zeros(rows, np.bool_)
    mask[where] = True
    return mask
