"""Rows of Arrow that clients send: the checks that the JSON readers make on what they read. Pure.

Owns which rows no reader would have let in (`check_rows`), their ids (`fill_ids`) and their fitting to the
types that all events of a call have together (`fit_types`). The stream itself was checked when it was read
(`frames.read_stream`): here columns and types are known to be ours, and values are not to be trusted.

No attribute costs a row. What no column may hold is moved to `_others`: numbers that are not finite, arrays
with nulls, a value of another type than its column has in the end. A client may send that column itself; an
item that is malformed, or that contradicts a column, costs its row. A bad row costs that row alone: it is
noted in its `Part`, and nothing here raises.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramify.content.events.attributes import ElementKind
from ramify.content.events.events import (
    BODY,
    BODY_IS_JSON,
    CONTEXT_NAMES,
    FIXED_COLUMNS,
    NULLS,
    OTHERS,
    SIZE_BYTES,
    AttributeType,
    EventSchema,
    RejectReason,
)
from ramify.content.events.others import ItemTable, others_in, with_others
from ramify.content.events.records import MAX_DEPTH, depth
from ramify.overlay.control.frames import Limits, absent

__all__ = ["BAD_ARROW", "Fault", "Ints", "Mask", "Part", "check_rows", "fill_ids", "fit_types"]

Fault: TypeAlias = tuple[str, str]
"""A reason and its detail."""

BAD_ARROW = "bad_arrow"
"""The reason for Arrow that is no batch of events, or contradicts itself."""

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
    """Find the rows that no reader would have let in, measure all of them, and move what has no column."""
    batch = part.batch
    items = ItemTable()
    sizes = np.zeros(batch.num_rows, np.int64)
    counts = pc.list_value_length(batch.column(NULLS)).to_numpy(zero_copy_only=False).astype(np.int64)
    for name in batch.schema.names:
        if name in (SIZE_BYTES, BODY_IS_JSON, NULLS, OTHERS, "publisher"):
            continue
        values: Any = batch.column(name)
        valid = _mask(values.is_valid())
        _check_times(part, name, values, valid)
        strange = _strange(values)
        if strange.any():
            rows = np.flatnonzero(strange)
            items.add_column(name, rows, values.take(pa.array(rows)))
            hidden = pc.if_else(pa.array(strange), pa.scalar(None, values.type), values)
            at = part.batch.schema.get_field_index(name)
            part.batch = part.batch.set_column(at, batch.schema.field(name), hidden)
        named = 0 if name == BODY else len(name.encode())
        sizes += np.where(valid, _value_bytes(values) + named, 0)
        if name not in FIXED_COLUMNS.names:
            counts += valid
    _check_nulls(part)
    sizes += _check_items(part)
    _check_bodies(part)
    text = f"the event is longer than {limits.max_event_bytes} bytes"
    part.reject(sizes > limits.max_event_bytes, RejectReason.TOO_LARGE, text)
    text = f"the event has more than {limits.max_attributes} attributes"
    part.reject(counts > limits.max_attributes, RejectReason.TOO_LARGE, text)
    at = batch.schema.get_field_index(SIZE_BYTES)
    part.batch = part.batch.set_column(at, FIXED_COLUMNS.field(SIZE_BYTES), pa.array(sizes))
    _add_items(part, items)


def fit_types(part: Part, schema: EventSchema) -> Part:
    """A part in the settled types; values of other types, or of no column, are moved to `_others`."""
    batch = part.batch
    kinds = EventSchema.of_batch(batch).attributes
    if kinds == schema.attributes:
        return part
    items = ItemTable()
    columns: dict[str, Any] = {name: batch.column(name) for name in FIXED_COLUMNS.names}
    for path, kind in kinds.items():
        column: Any = batch.column(path)
        wanted = schema.attributes.get(path)
        misfits = _mask(column.is_valid())
        if kind is wanted:
            columns[path] = column
            continue
        if kind is AttributeType.INT64 and wanted is AttributeType.DOUBLE:
            # compared as integers: as a double 2^53 + 1 is 2^53
            whole = column.fill_null(0).to_numpy()
            misfits &= (whole > 2**53) | (whole < -(2**53))
            fitting = pc.if_else(pa.array(misfits), pa.scalar(None, column.type), column)
            columns[path] = fitting.cast(pa.float64(), safe=False)
        if misfits.any():
            rows = np.flatnonzero(misfits)
            items.add_column(path, rows, column.take(pa.array(rows)))
    arrow = schema.arrow
    arrays = [columns[f.name] if f.name in columns else absent(batch.num_rows, f.type) for f in arrow]
    fitted = with_others(pa.RecordBatch.from_arrays(arrays, schema=arrow), others_in(batch))
    done = Part(fitted, part.message, part.row, part.faults)
    _add_items(done, items)
    return done


def _add_items(part: Part, items: ItemTable) -> None:
    """Put items beside those that the rows have; all are in order afterwards."""
    known = others_in(part.batch)
    if known is not None:
        items.add_items(known)
    part.batch = with_others(part.batch, items.column(part.batch.num_rows))


def _check_times(part: Part, name: str, values: Any, valid: Mask) -> None:
    if pa.types.is_timestamp(values.type):
        ticks = values.cast(pa.int64()).fill_null(0).to_numpy()
        bad = (ticks < _FIRST_MICROSECOND) | (ticks > _LAST_MICROSECOND)
        part.reject(valid & bad, RejectReason.BAD_TIME, f"{name!r} is outside the years 1 to 9999")


def _strange(values: Any) -> Mask:
    """The rows whose value no column holds: numbers that are not finite, and arrays with those or nulls."""
    if pa.types.is_floating(values.type):
        infinite: Mask = ~np.isfinite(values.fill_null(0.0).to_numpy())
        return infinite
    if not pa.types.is_list(values.type):
        return np.zeros(len(values), np.bool_)
    elements = pc.list_flatten(values)
    strange = _mask(elements.is_null())
    if pa.types.is_floating(elements.type):
        strange |= ~np.isfinite(elements.fill_null(0.0).to_numpy())
    rows: Mask = _marked(len(values), _parents(values)[strange])
    return rows


def _check_items(part: Part) -> Ints:
    """Find the rows with an item in `_others` that no reader writes; the bytes that the items take."""
    column = others_in(part.batch)
    rows_count = part.batch.num_rows
    if column is None:
        return np.zeros(rows_count, np.int64)
    items: Any = pc.list_flatten(column)
    rows = _parents(column)

    def reject(mask: Mask, detail: str) -> None:
        part.reject(_marked(rows_count, rows[mask]), BAD_ARROW, f"an item of {OTHERS} {detail}")

    kind = items.field("kind").to_numpy()
    number = items.field("number").to_numpy()
    in_list = _mask(items.field("list"))
    text: Any = items.field("text")
    reject((kind < min(ElementKind)) | (kind > max(ElementKind)), "has an unknown kind")
    reject((kind == ElementKind.STRING) != _mask(text.is_valid()), "has a text and is no string, or none")
    reject((kind == ElementKind.BOOL) & (number != 0) & (number != 1), "is a boolean beyond 0 and 1")
    reject((kind == ElementKind.NULL) & ~in_list, f"is a null of its own; list it in {NULLS}")
    reject((kind == ElementKind.EMPTY) & ~in_list, "is an empty array and says that it is none")
    times = (number < _FIRST_MICROSECOND) | (number > _LAST_MICROSECOND)
    reject((kind == ElementKind.TIME) & times, "is outside the years 1 to 9999")
    reject(_misplaced(items.field("place"), in_list), "has a place that is none")
    _check_item_paths(part, rows, items, kind, reject)
    weight = _value_bytes(items.field("path")) + np.where(kind == ElementKind.STRING, _value_bytes(text), 8)
    return np.bincount(rows, weight, rows_count).astype(np.int64)


def _misplaced(places: Any, in_list: Mask) -> Mask:
    """Which places are no pairs of a number and an index, or stand where no array is."""
    lengths = pc.list_value_length(places).fill_null(0).to_numpy(zero_copy_only=False)
    steps: Any = pc.list_flatten(places)
    negative = _parents(places)[steps.fill_null(-1).to_numpy() < 0]
    wrong = (lengths % 2 == 1) | (lengths > 2 * MAX_DEPTH) | ((lengths > 0) & ~in_list)
    found: Mask = wrong | _marked(len(places), negative)
    return found


def _check_item_paths(part: Part, rows: Ints, items: Any, kind: Any, reject: Any) -> None:
    """A path of a row is an attribute's, and stands here or elsewhere, as one value or as one array."""
    coded = items.field("path").dictionary_encode()
    codes, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
    reject(np.array([name in CONTEXT_NAMES for name in names], np.bool_)[codes], "has the path of a field")
    key = rows * len(names) + codes
    _, inverse, times = np.unique(key, return_inverse=True, return_counts=True)
    single = ~_mask(items.field("list")) | (kind == ElementKind.EMPTY)
    reject(single & (times[inverse] > 1), "is not the only one of its path")
    taken = np.zeros(len(key), np.bool_)
    kinds = EventSchema.of_batch(part.batch).attributes
    for code, name in enumerate(names):
        if name in kinds:
            here = codes == code
            taken[here] = _mask(part.batch.column(name).is_valid())[rows[here]]
    lists: Any = part.batch.column(NULLS)
    nulls = pc.index_in(pc.list_flatten(lists), value_set=coded.dictionary)
    known = _mask(nulls.is_valid())
    null_key = _parents(lists)[known] * len(names) + nulls.drop_null().to_numpy()
    reject(taken | np.isin(key, null_key), "has a path that stands elsewhere too")


def _check_nulls(part: Part) -> None:
    """A null must have a name that an attribute can have, once, and no value beside it."""
    lists: Any = part.batch.column(NULLS)
    paths: Any = pc.list_flatten(lists)
    if not len(paths):
        return
    rows = _parents(lists)
    coded = paths.dictionary_encode()
    codes, names = coded.indices.fill_null(-1).to_numpy(), coded.dictionary.to_pylist()
    wrong = np.array([name in CONTEXT_NAMES for name in names] + [True])[codes]
    text = "_nulls lists a name that no attribute can have"
    part.reject(_marked(len(lists), rows[wrong]), BAD_ARROW, text)
    pairs = np.sort((rows << 32) + codes)
    twice = pairs[1:][pairs[1:] == pairs[:-1]] >> 32
    part.reject(_marked(len(lists), twice), BAD_ARROW, "_nulls lists a name twice")
    known = EventSchema.of_batch(part.batch).attributes
    for code, name in enumerate(names):
        if name in known:
            both = _marked(len(lists), rows[codes == code]) & _mask(part.batch.column(name).is_valid())
            part.reject(both, BAD_ARROW, f"{name!r} has a value and is in _nulls too")


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
