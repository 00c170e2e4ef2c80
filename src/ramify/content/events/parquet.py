"""Parquet files as event batches, column by column: no Python per row.

Owns what each column of a file is for, which Arrow types fit which attribute types, the rows that do not
fit, and the estimate of an event's size. A file that was written from event batches is recognised by its
columns and comes back as it was. A file is read as a whole (`read_parquet`), where any damage is an error,
or by the row groups that begin in a range of its bytes (`read_row_groups`), where it costs its rows only.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramify.content.events.attributes import text_path
from ramify.content.events.events import (
    CONTEXT_NAMES,
    FIXED_COLUMNS,
    NULLS,
    OTHERS,
    RESERVED_NAMES,
    SIZE_BYTES,
    AttributeType,
    DecodedBatch,
    EventSchema,
    RejectReason,
)
from ramify.content.events.framing import Source
from ramify.content.events.leaves import Leaves, sprawl
from ramify.content.events.others import OTHERS_TYPE, ItemTable, others_in, with_others
from ramify.content.events.records import Fault, Records
from ramify.content.events.tabulate import PLAIN, FieldMapping
from ramify.content.events.timestamps import TimeUnit, parse_timestamps, written_otherwise
from ramify.errors import InputError, SchemaError

__all__ = ["ColumnsError", "LostRows", "parquet_schema", "read_parquet", "read_row_groups"]

_BATCH_ROWS = 65536
_TIMESTAMP = AttributeType.TIMESTAMP.arrow
_SECOND_BOUNDS = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999, which Python's datetime holds
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def read_parquet(
    source: Source,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
    *,
    body: str | None = None,
    keep: frozenset[str] | None = None,
) -> Iterator[DecodedBatch]:
    """Rows of a Parquet file; structs are flattened to dotted paths. No Python per row.

    Without a schema, the file's own: integers, floats, short decimals, dates, timestamps (without a zone:
    UTC; below microseconds: cut), strings, booleans, lists of strings or numbers. Lists of structs, lists
    or booleans are walked, in Python, and are in `_others`, as is what does not fit the type of its column.
    Columns of other types (maps, binary) count as unaddressable. Null means absent, in a list an explicit
    null. `keep` names the paths that somebody asks for; None keeps all. `body` names a binary or string
    column to carry as the body. A file that was written from event batches is recognised and comes back as
    it was.

    `_size_bytes` is an estimate: for every value that is not null, in the columns with an attribute type,
    the bytes of the column's name plus those of the value (text: its UTF-8; numbers and times: 8;
    booleans: 1; lists: the sum over their elements).

    Raises
    ------
    InputError
        When the file is missing, damaged or cut off, or has no usable id column.
    """
    with _opened_parquet(source) as (file, name):
        layout = replace(_Layout.of(file.schema_arrow, schema, mapping, body), keep=keep)
        first = 0
        for batch in file.iter_batches(batch_size=batch_rows):
            yield _Columns(layout, batch, first, name).decoded()
            first += batch.num_rows
        if first == 0:
            nothing = pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
            yield _Columns(layout, nothing, 0, name).decoded()


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows that the footer of a file promises and that cannot be read, in place of them."""

    rows: int
    detail: str


class ColumnsError(InputError):
    """A readable file whose columns cannot make events; `missing` when one is not there."""

    def __init__(self, reason: str, *, path: str | None = None, missing: bool = False) -> None:
        self.missing = missing
        super().__init__(reason, path=path)


def read_row_groups(
    source: Source,
    schema: EventSchema,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
    *,
    start: int = 0,
    stop: int | None = None,
    name: str | None = None,
    wanted: Collection[str] | None = None,
) -> Iterator[DecodedBatch | LostRows]:
    """The rows of the row groups that begin in bytes `start` to `stop` of a file, as `read_parquet` has
    them. Ranges that cover a file give each of its rows once. Memory: one row group.

    A row group that cannot be read is `LostRows`, and the next one is read. Positions of rejected rows
    count from the first row of the range, generated ids from that of the file; `name` is for those.
    `wanted` names the attributes that are asked for: of a file that was written from event batches,
    others are not read and not checked, and bodies are left out; other files are read whole, since the
    size of an event is that of all its columns.

    Raises
    ------
    InputError
        When the file is missing or its footer is damaged; `ColumnsError` when it has no usable id column.
    """
    with _opened_parquet(source) as (file, own_name):
        layout = _Layout.of(file.schema_arrow, schema, mapping, None, wanted)
        first, origin = 0, -1
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            if start <= _begin(group) and (stop is None or _begin(group) < stop):
                origin = first if origin < 0 else origin
                for found in _group(file, index, layout, first, name or own_name, batch_rows):
                    yield found if isinstance(found, LostRows) else _moved(found, origin)
            first += group.num_rows


def parquet_schema(source: Source, mapping: FieldMapping = PLAIN) -> EventSchema:
    """The schema that `read_parquet` gives to a file, from its footer alone.

    Raises
    ------
    InputError
        As `read_parquet`.
    """
    with _opened_parquet(source) as (file, _):
        return _Layout.of(file.schema_arrow, None, mapping, None).schema


def _begin(group: Any) -> int:
    """A byte that stands for a row group: that of its first data page, which every writer gives."""
    return max(0, int(group.column(0).data_page_offset)) if group.num_columns else 0


def _group(
    file: pq.ParquetFile, index: int, layout: "_Layout", first: int, name: str | None, batch_rows: int
) -> Iterator[DecodedBatch | LostRows]:
    promised = file.metadata.row_group(index).num_rows
    done, fault = 0, "it holds fewer rows than its footer says"
    try:
        for batch in file.iter_batches(batch_rows, row_groups=[index], columns=layout.read):
            decoded = _Columns(layout, batch, first + done, name).decoded()
            done += batch.num_rows
            yield decoded
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        fault = str(error)
    if done < promised:
        detail = f"row group {index} is damaged ({fault}); write or copy the file again"
        yield LostRows(promised - done, detail)


def _moved(decoded: DecodedBatch, origin: int) -> DecodedBatch:
    if decoded.rejected:
        decoded.rejected = [replace(r, position=r.position - origin) for r in decoded.rejected]
    return decoded


@contextmanager
def _opened_parquet(source: Source) -> Iterator[tuple[pq.ParquetFile, str | None]]:
    path: str | None = None
    name: str | None = None
    opened: Any = source
    if isinstance(source, bytes):
        opened = pa.BufferReader(source)
    elif isinstance(source, str | os.PathLike):
        path, name = os.fspath(source), Path(source).name
        if Path(path).is_dir():
            raise InputError("this is a directory; give one Parquet file", path=path)
        if not Path(path).exists():
            raise InputError("there is no such file", path=path)
    try:
        with pq.ParquetFile(opened) as file:
            yield file, name
    except ColumnsError as error:
        raise ColumnsError(error.reason, path=path, missing=error.missing) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        text = (
            f"not a readable Parquet file ({error}); it may be damaged or cut off: write or copy it again"
        )
        raise InputError(text, path=path) from error


@dataclass(frozen=True)
class _Layout:
    """What each leaf column of a file is for."""

    mapping: FieldMapping
    schema: EventSchema
    kinds: dict[str, AttributeType | None]
    native: bool
    body: str | None
    read: list[str] | None = None
    keep: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        columns: pa.Schema,
        schema: EventSchema | None,
        mapping: FieldMapping,
        body: str | None,
        wanted: Collection[str] | None = None,
    ) -> "_Layout":
        """Check the columns of a file against what is asked of it."""
        native = set(_OURS) <= set(columns.names)
        leaves = list(_leaf_types("", columns))
        twice = [path for path, times in Counter(path for path, _ in leaves).items() if times > 1]
        if twice:
            raise ColumnsError(f"two columns have the path {twice[0]!r}; rename one")
        mapping = PLAIN if native else mapping
        skipped = RESERVED_NAMES | {body} if native else {body}
        kinds = {path: _kind(dtype) for path, dtype in leaves if path not in skipped}
        _check_context(kinds, mapping)
        if body is not None and not any(path == body and _is_bytes(dtype) for path, dtype in leaves):
            raise ColumnsError(
                f"there is no column {body!r} of bytes or strings to be the body", missing=True
            )
        hidden = CONTEXT_NAMES | RESERVED_NAMES | {""}
        if schema is None:
            schema = EventSchema({p: k for p, k in kinds.items() if k is not None and p not in hidden})
        keep = None if wanted is None else frozenset(wanted)
        if wanted is None or not native:
            return cls(mapping, schema, kinds, native, body, keep=keep)
        kinds = {path: kind for path, kind in kinds.items() if path in CONTEXT_NAMES or path in wanted}
        rest = [OTHERS] if OTHERS in columns.names else []
        return cls(mapping, schema, kinds, native, body, [*kinds, SIZE_BYTES, NULLS, *rest], keep)

    def asks(self, path: str) -> bool:
        """Whether somebody asks for an attribute."""
        return path not in CONTEXT_NAMES and (self.keep is None or path in self.keep)


def _check_context(kinds: Mapping[str, AttributeType | None], mapping: FieldMapping) -> None:
    if mapping.id is not None and kinds.get(mapping.id) not in _NAMES:
        text = (
            f"there is no column {mapping.id!r} of strings or integers to be the event id; "
            "name another id field, or ask for generated ids"
        )
        raise ColumnsError(text, missing=True)
    if mapping.publisher is not None and kinds.get(mapping.publisher, _TEXT) not in _NAMES:
        raise ColumnsError(f"the publisher column {mapping.publisher!r} must hold strings or integers")


_TEXT = AttributeType.STRING
_NAMES = frozenset({AttributeType.STRING, AttributeType.INT64})
_OURS = FIXED_COLUMNS.names


def _kind(dtype: pa.DataType) -> AttributeType | None:
    try:
        return AttributeType.of_arrow(dtype)
    except SchemaError:
        return None


def _is_bytes(dtype: pa.DataType) -> bool:
    return pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or _kind(dtype) is _TEXT


def _leaf_types(prefix: str, fields: Iterable[Any]) -> Iterator[tuple[str, pa.DataType]]:
    for f in fields:
        if pa.types.is_struct(f.type):
            yield from _leaf_types(f"{prefix}{f.name}.", f.type)
        else:
            yield prefix + f.name, f.type


def _leaf_arrays(prefix: str, names: Iterable[str], arrays: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for name, array in zip(names, arrays, strict=True):
        if pa.types.is_struct(array.type):
            # flatten(), unlike field(), makes the children of a null struct null.
            inner = [f.name for f in array.type]
            yield from _leaf_arrays(f"{prefix}{name}.", inner, array.flatten())
        else:
            yield prefix + name, array


class _Columns:
    """One batch of a Parquet file on its way to an event batch. `pyarrow` arrays are `Any` here: their
    stubs cannot follow types that are only known at run time."""

    def __init__(self, layout: _Layout, batch: pa.RecordBatch, first: int, name: str | None) -> None:
        self.layout = layout
        self.rows = batch.num_rows
        self.records = Records([b""] * self.rows, first=first, source=name)
        self.leaves: dict[str, Any] = dict(_leaf_arrays("", batch.schema.names, batch.columns))
        self.faults: dict[int, Fault] = {}
        self.size = np.zeros(self.rows, np.int64)
        # Rows per path whose value no filter can reach.
        self.unreached: dict[str, Any] = {}
        self.items = ItemTable()

    def decoded(self) -> DecodedBatch:
        """The batch, with the rows that do not fit taken out."""
        layout, mapping = self.layout, self.layout.mapping
        fitted: dict[str, Any] = {}
        for path, kind in layout.kinds.items():
            array = self.leaves[path]
            if kind is None:
                self._walk(path, array)
                continue
            values = self._canonical(path, array, kind)
            fitted[path] = values
            if not layout.native:
                self._weigh(path, values)
            own = path in (mapping.id, mapping.publisher, mapping.time)
            if path in CONTEXT_NAMES and not own:
                self.unreached[path] = _as_mask(array.is_valid())
            elif path not in layout.schema.attributes:
                self._move(path, _as_mask(values.is_valid()), values)
        context = [self._ids(fitted), self._names(fitted, mapping.publisher), self._times(fitted)]
        columns = [
            self._fit(path, fitted.get(path), layout.kinds.get(path), wanted)
            for path, wanted in layout.schema.attributes.items()
        ]
        arrays = [*context, *self._payload(), *columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=layout.schema.arrow)
        batch = with_others(batch, self._others())
        keep = np.ones(self.rows, bool)
        keep[list(self.faults)] = False
        if self.faults:
            batch = batch.filter(pa.array(keep))
            batch = with_others(batch, others_in(batch))
        counts = {path: int((mask & keep).sum()) for path, mask in sorted(self.unreached.items())}
        return DecodedBatch(
            batch,
            self.records.rejected(self.faults),
            {path: count for path, count in counts.items() if count},
        )

    def _others(self) -> Any:
        """The column `_others`: of a file of ours what it holds, and what has no column here."""
        if self.layout.native and OTHERS in self.leaves:
            self.items.add_items(self.leaves[OTHERS].cast(OTHERS_TYPE), self.layout.keep)
        return self.items.column(self.rows)

    def _move(self, path: str, mask: Any, values: Any) -> Any:
        """Move the values of some rows to `_others`; the values without them."""
        if not mask.any():
            return values
        if self.layout.asks(path):
            rows = np.flatnonzero(mask)
            self.items.add_column(path, rows, values.take(pa.array(rows)))
        return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)

    def _walk(self, path: str, array: Any) -> None:
        """Put the values of a column that no attribute type holds into `_others`, if they are like JSON."""
        if not _is_walkable(array.type):
            self.unreached[path] = _as_mask(array.is_valid())
            return
        leaves = Leaves(self.rows, self.layout.keep)
        for row, value in enumerate(array.to_pylist()):
            if value is not None:
                leaves.add_array(row, path, _without_nulls(value))
        self._reject(_marked(self.rows, list(leaves.sprawling)), *sprawl())
        for name, elements in leaves.elements.items():
            for row, value, place in elements.items():
                self.items.add(name, row, value, place)

    def _canonical(self, path: str, array: Any, kind: AttributeType) -> Any:
        """The values in the Arrow type of their kind; what no column of it holds is moved."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if kind is AttributeType.TIMESTAMP:
            return self._moments(path, array)
        if pa.types.is_uint64(array.type):
            beyond = _as_mask(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())))
            if path in (self.layout.mapping.id, self.layout.mapping.publisher):
                text = f"{path!r} is an integer beyond 64 bits with sign"
                self._reject(beyond, RejectReason.WRONG_TYPE, text)
            self._move(path, beyond, array.cast(pa.float64(), safe=False))
            array = pc.if_else(pa.array(beyond), pa.scalar(None, array.type), array)
        whole = _whole_numbers(array)
        array = array.cast(kind.arrow, safe=False)
        if kind is AttributeType.DOUBLE and path != self.layout.mapping.time:
            array = self._move(path, ~_as_mask(pc.is_finite(array), True), array)
        elif kind in (AttributeType.STRINGS, AttributeType.NUMBERS):
            array = self._array_elements(path, array, whole)
        if kind in (AttributeType.STRING, AttributeType.STRINGS):
            self._check_utf8(path, array)
        return array

    def _array_elements(self, path: str, array: Any, whole: Any) -> Any:
        """The arrays without those that have an element which a column would lose or round."""
        elements = pc.list_flatten(array)
        strange = _as_mask(elements.is_null())
        if whole is not None:
            big = _inexact(pc.list_flatten(whole).fill_null(0).to_numpy())
            if big.any():
                mask = _marked(self.rows, _parents(array)[big | strange])
                self._move(path, mask, whole)
                return pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
        elif pa.types.is_floating(elements.type):
            strange = strange | ~_as_mask(pc.is_finite(elements), True)
        return self._move(path, _marked(self.rows, _parents(array)[strange]), array)

    def _check_utf8(self, path: str, array: Any) -> None:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            # Rare enough for Python: Parquet writers check, but the format does not.
            raw = array.cast(pa.list_(pa.binary()) if pa.types.is_list(array.type) else pa.binary())
            bad = np.array([not _is_utf8(value) for value in raw.to_pylist()])
            self._reject(bad, RejectReason.BAD_UTF8, f"{path!r} is not UTF-8")

    def _moments(self, path: str, array: Any) -> Any:
        """Dates and timestamps as UTC microseconds. Checked first, since the cast would wrap around."""
        dtype = array.type
        if pa.types.is_date(dtype):
            array = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
            array = pc.multiply(array, 86_400).cast(pa.timestamp("s"))
        unit = array.type.unit
        low, high = (bound * _PER_SECOND[unit] for bound in _SECOND_BOUNDS)
        ticks = array.cast(pa.int64()).fill_null(0).to_numpy()
        if unit != "ns":  # 64 bits of nanoseconds end in 2262
            bad = (ticks < low) | (ticks >= high + _PER_SECOND[unit])
            self._reject(bad, RejectReason.BAD_TIME, f"{path!r} is outside the years 1 to 9999")
        return array.cast(_TIMESTAMP, safe=False)

    def _fit(self, path: str, values: Any, kind: AttributeType | None, wanted: AttributeType) -> Any:
        """The column of one attribute: the file's values, widened or parsed where that is allowed."""
        if values is None:
            return _absent(self.rows, wanted.arrow)
        if kind is wanted:
            return values
        bad = _as_mask(values.is_valid())
        column = _absent(self.rows, wanted.arrow)
        if kind is AttributeType.INT64 and wanted is AttributeType.DOUBLE:
            bad = _inexact(values.fill_null(0).to_numpy())
            return self._move(path, bad, values).cast(pa.float64(), safe=False)
        if kind is AttributeType.STRING and wanted is AttributeType.TIMESTAMP:
            column, rows = parse_timestamps(values)
            bad = _marked(self.rows, rows)
            self._keep_texts(path, values, column)
        self._move(path, bad, values)
        return column

    def _keep_texts(self, path: str, texts: Any, times: Any) -> None:
        """Note the text of each time that was not written in the canonical form."""
        name = text_path(path)
        if self.layout.asks(name):
            self._move(name, written_otherwise(texts, times), texts)

    def _ids(self, fitted: dict[str, Any]) -> Any:
        path = self.layout.mapping.id
        if path is None:
            name, first = self.records.source or "record", self.records.first
            rows = pa.array(np.arange(first, first + self.rows)).cast(pa.string())
            return pc.binary_join_element_wise(pa.scalar(name), rows, ":")  # type: ignore[call-overload]
        ids = self._names(fitted, path).fill_null("")
        bad = _lengths(ids) == 0
        self._reject(bad, RejectReason.NO_ID, f"the row has no {path!r}; give it a non-empty string")
        return ids

    def _names(self, fitted: dict[str, Any], path: str | None) -> Any:
        if path is None or path not in fitted:
            return _absent(self.rows, pa.string())
        return fitted[path].cast(pa.string())

    def _times(self, fitted: dict[str, Any]) -> Any:
        mapping = self.layout.mapping
        values = None if mapping.time is None else fitted.get(mapping.time)
        if values is None or values.type == _TIMESTAMP:
            return _absent(self.rows, _TIMESTAMP) if values is None else values
        present = _as_mask(values.is_valid())
        bad, column = present, _absent(self.rows, _TIMESTAMP)
        if values.type == pa.string():
            column, rows = parse_timestamps(values)
            bad = _marked(self.rows, rows)
            self._keep_texts("time", values, column)
        elif mapping.time_unit is not TimeUnit.NONE and values.type in (pa.int64(), pa.float64()):
            per_second = _PER_SECOND[mapping.time_unit]
            low, high = (bound * per_second for bound in _SECOND_BOUNDS)
            ticks = values.fill_null(0).to_numpy()
            bad = present & ~((ticks >= low) & (ticks <= high))
            ticks = np.where(bad, 0, ticks) * (10**6 // per_second)
            moments = pa.array(np.rint(ticks).astype(np.int64), mask=~present)
            column = moments.cast(_TIMESTAMP)
        self._reject(
            bad,
            RejectReason.BAD_TIME,
            f"{mapping.time!r} is neither an RFC 3339 time nor a number with a unit",
        )
        return column

    def _payload(self) -> list[Any]:
        """The reserved columns: as written for a file of ours, estimated otherwise."""
        if self.layout.native:
            size, body, is_json, nulls = (self._reserved(n) for n in _OURS[3:])
            return [
                size.fill_null(0),
                body,
                is_json.fill_null(False),
                pc.coalesce(nulls, pa.scalar([], FIXED_COLUMNS.field(NULLS).type)),
            ]
        body = _absent(self.rows, pa.binary())
        if self.layout.body is not None:
            body = self.leaves[self.layout.body].cast(pa.binary())
            self._weigh(self.layout.body, body)
        offsets: Any = pa.array(np.zeros(self.rows + 1, np.int32))
        nulls = pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
        return [pa.array(self.size), body, pa.array(np.zeros(self.rows, bool)), nulls]

    def _reserved(self, name: str) -> Any:
        dtype = FIXED_COLUMNS.field(name).type
        return self.leaves[name].cast(dtype) if name in self.leaves else _absent(self.rows, dtype)

    def _weigh(self, path: str, values: Any) -> None:
        """Add what this column contributes to each row's size."""
        weight = _list_lengths(values) if pa.types.is_list(values.type) else _lengths(values)
        self.size += np.where(_as_mask(values.is_valid()), weight + len(path.encode()), 0)

    def _reject(self, mask: Any, reason: RejectReason, detail: str) -> None:
        for row in np.flatnonzero(mask).tolist():
            self.faults.setdefault(row, (reason, detail))


def _inexact(integers: Any) -> Any:
    """Which integers a double would round, or share with one that it rounds: those beyond 2^53.

    Compared as integers: as a double 2^53 + 1 is 2^53.
    """
    return (integers > 2**53) | (integers < -(2**53))


def _parents(lists: Any) -> Any:
    """The row of each element.

    Not `list_parent_indices`: a null list may hide elements, which it counts and `list_flatten` leaves out.
    """
    return np.repeat(np.arange(len(lists)), pc.list_value_length(lists).fill_null(0).to_numpy())


def _list_lengths(lists: Any) -> Any:
    """Bytes of the elements of each list; anything where it is null. From offsets alone: O(rows)."""
    ends = lists.offsets.to_numpy()
    if not pa.types.is_string(lists.type.value_type):
        return np.diff(ends).astype(np.int64) * 8
    texts = lists.values
    at = (
        np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :] if len(texts) else np.zeros(1, np.int32)
    )
    return np.diff(at[ends]).astype(np.int64)


def _lengths(values: Any) -> Any:
    """Bytes per value; 0 where null."""
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return _as_mask(values.is_valid()).astype(np.int64) * (1 if pa.types.is_boolean(values.type) else 8)


def _absent(rows: int, dtype: pa.DataType) -> Any:
    return pa.nulls(rows, dtype)  # type: ignore[call-overload]


def _as_mask(array: Any, null: bool = False) -> Any:
    return array.fill_null(null).to_numpy(zero_copy_only=False)


def _marked(rows: int, where: Any) -> Any:
    mask = np.zeros(rows, bool)
    mask[where] = True
    return mask


def _whole_numbers(array: Any) -> Any:
    """Arrays of integers as such; None for other columns. As doubles, large ones would be rounded."""
    if not _is_list(array.type) or not pa.types.is_integer(array.type.value_type):
        return None
    return array.cast(pa.list_(pa.int64()), safe=False)


def _is_list(dtype: pa.DataType) -> bool:
    return pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)


def _is_walkable(dtype: Any, inside: bool = False) -> bool:
    """Whether a type is a list whose values are like JSON's: structs, lists, texts, numbers, booleans."""
    if _is_list(dtype):
        return _is_walkable(dtype.value_type, inside=True)
    if pa.types.is_struct(dtype):
        return inside and all(_is_walkable(f.type, inside=True) for f in dtype)
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return inside and (_kind(dtype) is _TEXT or any(is_kind(dtype) for is_kind in plain))


def _without_nulls(value: Any) -> Any:
    """A value without the fields of structs that are null, which means absent."""
    if isinstance(value, list):
        return [_without_nulls(element) for element in value]
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


def _is_utf8(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_utf8(element) for element in value)
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False
