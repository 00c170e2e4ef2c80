"""Event logs on disk: NDJSON, CloudEvents and Parquet, as streams of `Decoded`.

Owns files: opening, chunks, lines, compression, and the vectorised reading of Parquet. What makes a record
good is decided in `flatten` and `cloudevents`. Memory is bounded by one batch (`batch_rows` records or
64 MiB of raw input, whichever comes first) whatever the file holds.

A stream without a given schema takes its schema from the first batch. After that, new fields count as
unaddressable and values of another type are rejected; `infer_schema` looks at more rows beforehand.
Every reader yields at least one `Decoded`, so that an empty input has a schema too.
"""

import gzip
import io
import os
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramify.content.cloudevents import ArraySplitter, cloudevents_parser, gather
from ramify.content.events import (
    CONTEXT_NAMES,
    FIXED_COLUMNS,
    RESERVED_NAMES,
    AttributeType,
    Decoded,
    EventSchema,
    RejectReason,
)
from ramify.content.flatten import (
    MAX_RECORD_BYTES,
    PLAIN,
    Fault,
    FieldMapping,
    Parser,
    Records,
    TimeUnit,
    decode,
    parse_plain,
    parse_timestamps,
    too_large,
)
from ramify.errors import InputError, SchemaError

__all__ = ["infer_schema", "read_cloudevents", "read_events", "read_ndjson", "read_parquet"]

Source: TypeAlias = str | os.PathLike[str] | bytes | IO[bytes]

_BATCH_ROWS = 65536
_BATCH_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_SNIFF_BYTES = 64 << 10
_WHITESPACE = b" \t\r\n"


def read_ndjson(
    source: Source,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[Decoded]:
    """Plain JSON objects, one per line, from a path (`.gz` is decompressed), a binary file or bytes.

    Blank lines are no records. A line beyond the size limit is skipped without being held in memory.

    Raises
    ------
    InputError
        When the file cannot be read. Bad lines are in `rejected`.
    """
    with _opened(source) as (stream, name):
        yield from _decoded(_lines(stream, name, batch_rows), parse_plain, schema, mapping)


def read_cloudevents(
    source: Source,
    schema: EventSchema | None = None,
    publisher: str = "source",
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[Decoded]:
    """CloudEvents in structured mode, one per line, or in one JSON array: the first character tells.

    Raises
    ------
    InputError
        When the file cannot be read. Bad events are in `rejected`.
    """
    with _opened(source) as (stream, name):
        head, stream = _peeked(stream)
        cut = _elements if head.lstrip(_WHITESPACE).startswith(b"[") else _lines
        yield from _decoded(cut(stream, name, batch_rows), cloudevents_parser(publisher), schema, PLAIN)


def read_events(
    source: str | os.PathLike[str],
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[Decoded]:
    """A log of any known kind: Parquet by suffix; JSON lines or one JSON array by the first character;
    CloudEvents when the first readable record has a `specversion`.

    For CloudEvents only the publisher of the mapping applies, and its default means `source`.

    Raises
    ------
    InputError
        When the suffix is none of .json, .jsonl, .ndjson (each with .gz or without), .parquet and .pq,
        or the file cannot be read.
    """
    path = Path(source)
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    if path.suffix.lower() in (".parquet", ".pq"):
        yield from read_parquet(path, schema, mapping, batch_rows)
        return
    if suffix.lower() not in (".json", ".jsonl", ".ndjson"):
        raise InputError(
            f"unknown kind of event log {suffix or 'without a suffix'!r}; "
            "use .json, .jsonl, .ndjson (each with or without .gz) or .parquet",
            path=str(path),
        )
    with _opened(path) as (stream, name):
        head, stream = _peeked(stream)
        cut = _elements if head.lstrip(_WHITESPACE).startswith(b"[") else _lines
        parse: Parser = parse_plain
        if _looks_like_cloudevents(head):
            publisher = mapping.publisher
            parse = cloudevents_parser("source" if publisher in (None, "publisher") else publisher)
            mapping = PLAIN
        yield from _decoded(cut(stream, name, batch_rows), parse, schema, mapping)


def infer_schema(
    source: str | os.PathLike[str], rows: int = 4 * _BATCH_ROWS, mapping: FieldMapping = PLAIN
) -> EventSchema:
    """The schema of the first `rows` records of a log (at most 64 MiB of them).

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    return EventSchema.of_batch(next(read_events(source, mapping=mapping, batch_rows=rows)).batch)


def read_parquet(
    source: Source,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
    *,
    body: str | None = None,
) -> Iterator[Decoded]:
    """Rows of a Parquet file; structs are flattened to dotted paths. No Python per row.

    Without a schema, the file's own: integers, floats, short decimals, dates, timestamps (without a zone:
    UTC; below microseconds: cut), strings, booleans, lists of strings or numbers. Other columns count as
    unaddressable. Null means absent. `body` names a binary or string column to carry as the body. A file
    that was written from event batches is recognised and comes back as it was.

    `_size_bytes` is an estimate: for every value that is not null, in the columns that the event keeps,
    the bytes of the column's name plus those of the value (text: its UTF-8; numbers and times: 8;
    booleans: 1; lists: the sum over their elements).

    Raises
    ------
    InputError
        When the file is missing, damaged or cut off, or has no usable id column.
    """
    with _opened_parquet(source) as (file, name):
        layout = _Layout.of(file.schema_arrow, schema, mapping, body)
        first = 0
        for batch in file.iter_batches(batch_size=batch_rows):
            yield _Columns(layout, batch, first, name).decoded()
            first += batch.num_rows
        if first == 0:
            nothing = pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
            yield _Columns(layout, nothing, 0, name).decoded()


# --- lines and elements ------------------------------------------------------------------------------

_Item: TypeAlias = tuple[bytes, int | None, Fault | None]


@contextmanager
def _opened(source: Source) -> Iterator[tuple[IO[bytes], str | None]]:
    """The source as a binary stream, and its file name. Faults of the file become `InputError`."""
    if isinstance(source, bytes):
        yield io.BytesIO(source), None
        return
    if not isinstance(source, str | os.PathLike):
        name = getattr(source, "name", None)
        yield source, os.path.basename(name) if isinstance(name, str) else None
        return
    path = Path(source)
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            yield stream, path.name  # type: ignore[misc]
    except FileNotFoundError:
        raise InputError("there is no such file", path=str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        text = f"the compressed file is damaged or cut off ({error}); copy or compress it again"
        raise InputError(text, path=str(path)) from error
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror or error}", path=str(path)) from error


class _Peeked(io.RawIOBase):
    """A stream whose first bytes were looked at and are read again."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.head: bytes = stream.read(_SNIFF_BYTES)

    def read(self, size: int = -1, /) -> bytes:
        """The head once, then what the stream has."""
        head, self.head = self.head, b""
        return head or self.stream.read(size)


def _peeked(stream: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    peeked: Any = _Peeked(stream)
    head = peeked.head
    if isinstance(head, str):
        raise InputError("the file is open as text; open it in binary mode")
    return head.removeprefix(BOM_UTF8), peeked


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    first = True
    while chunk := stream.read(_CHUNK_BYTES):
        if isinstance(chunk, str):
            raise InputError("the file is open as text; open it in binary mode")
        yield chunk.removeprefix(BOM_UTF8) if first else chunk
        first = False


def _lines(stream: IO[bytes], name: str | None, batch_rows: int) -> Iterator[Records]:
    return _batched(_each_line(stream), name, batch_rows)


def _elements(stream: IO[bytes], name: str | None, batch_rows: int) -> Iterator[Records]:
    return _batched(_each_element(stream), name, batch_rows)


def _each_line(stream: IO[bytes]) -> Iterator[_Item]:
    """The lines that are not blank, with their numbers. An oversize line keeps only its first bytes."""
    tail, skipped, number = b"", b"", 0
    for chunk in _chunks(stream):
        parts = chunk.split(b"\n")
        if not skipped:
            parts[0] = tail + parts[0]
        elif len(parts) == 1:
            continue
        else:
            number += 1
            yield skipped, number, too_large()
            del parts[0]
        tail, skipped = parts.pop(), b""
        for part in parts:
            number += 1
            # Measured before stripping, so that it does not depend on where a chunk ended.
            if len(part) > MAX_RECORD_BYTES and len(part.removesuffix(b"\r")) > MAX_RECORD_BYTES:
                yield part[:256], number, too_large()
            elif record := part.strip(_WHITESPACE):
                yield record, number, None
        if len(tail) > MAX_RECORD_BYTES + 1:
            tail, skipped = b"", tail[:256]
    if skipped or len(tail.removesuffix(b"\r")) > MAX_RECORD_BYTES:
        yield skipped or tail[:256], number + 1, too_large()
    elif record := tail.strip(_WHITESPACE):
        yield record, number + 1, None


def _each_element(stream: IO[bytes]) -> Iterator[_Item]:
    splitter = ArraySplitter()
    for chunk in _chunks(stream):
        for record, fault in splitter.feed(chunk):
            yield record, None, fault
    for record, fault in splitter.finish():
        yield record, None, fault


def _batched(items: Iterable[_Item], name: str | None, batch_rows: int) -> Iterator[Records]:
    """Records in batches, bounded in rows and in bytes."""
    first = size_bytes = 0
    raw: list[bytes] = []
    lines: list[int] = []
    refused: dict[int, Fault] = {}
    for record, line, fault in items:
        if fault is not None:
            refused[len(raw)] = fault
        raw.append(record)
        if line is not None:
            lines.append(line)
        size_bytes += len(record)
        if len(raw) >= batch_rows or size_bytes >= _BATCH_BYTES:
            yield Records(raw, lines or None, first, name, refused)
            first, size_bytes = first + len(raw), 0
            raw, lines, refused = [], [], {}
    if raw or not first:
        yield Records(raw, lines or None, first, name, refused)


def _decoded(
    chunks: Iterable[Records], parse: Parser, schema: EventSchema | None, mapping: FieldMapping
) -> Iterator[Decoded]:
    inferred = schema is None
    for records in chunks:
        decoded = decode(records, parse, schema, mapping, inferred=inferred)
        schema = schema or EventSchema.of_batch(decoded.batch)
        yield decoded


def _looks_like_cloudevents(head: bytes) -> bool:
    """Whether the first record that can be read is a CloudEvent."""
    if head.lstrip(_WHITESPACE).startswith(b"["):
        candidates = gather(ArraySplitter().feed(head))[0]
    else:
        candidates = head.split(b"\n")
    for candidate in candidates:
        try:
            found = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return "specversion" in found
    return b'"specversion"' in head


# --- Parquet -----------------------------------------------------------------------------------------

_TIMESTAMP = AttributeType.TIMESTAMP.arrow
_SECOND_BOUNDS = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999, which Python's datetime holds
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


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
    except InputError as error:
        raise InputError(error.reason, path=path) from None
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

    @classmethod
    def of(
        cls, columns: pa.Schema, schema: EventSchema | None, mapping: FieldMapping, body: str | None
    ) -> "_Layout":
        """Check the columns of a file against what is asked of it."""
        native = set(_OURS) <= set(columns.names)
        reserved = RESERVED_NAMES.intersection(columns.names)
        if reserved and not native:
            raise InputError(f"the column {min(reserved)!r} has a reserved name; rename it")
        leaves = list(_leaf_types("", columns))
        twice = [path for path, times in Counter(path for path, _ in leaves).items() if times > 1]
        if twice:
            raise InputError(f"two columns have the path {twice[0]!r}; rename one")
        mapping = PLAIN if native else mapping
        skipped = RESERVED_NAMES | {body}
        kinds = {path: _kind(dtype) for path, dtype in leaves if path not in skipped}
        if mapping.id is not None and kinds.get(mapping.id) not in _NAMES:
            raise InputError(
                f"there is no column {mapping.id!r} of strings or integers to be the event id; "
                "name another id field, or ask for generated ids"
            )
        if mapping.publisher is not None and kinds.get(mapping.publisher, _TEXT) not in _NAMES:
            raise InputError(f"the publisher column {mapping.publisher!r} must hold strings or integers")
        if body is not None and not any(path == body and _is_bytes(dtype) for path, dtype in leaves):
            raise InputError(f"there is no column {body!r} of bytes or strings to be the body")
        hidden = CONTEXT_NAMES | {""}
        if schema is None:
            schema = EventSchema({p: k for p, k in kinds.items() if k is not None and p not in hidden})
        return cls(mapping, schema, kinds, native, body)


_TEXT = AttributeType.STRING
_NAMES = frozenset({AttributeType.STRING, AttributeType.INT64})
_OURS = FIXED_COLUMNS.names
_NO_PATHS: Any = pa.scalar([], FIXED_COLUMNS.field("_nulls").type)


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
        # Rows per path whose value is in no column.
        self.unreached: dict[str, Any] = {}

    def decoded(self) -> Decoded:
        """The batch, with the rows that do not fit taken out."""
        layout, mapping = self.layout, self.layout.mapping
        fitted: dict[str, Any] = {}
        for path, kind in layout.kinds.items():
            array = self.leaves[path]
            wanted = layout.schema.attributes.get(path)
            own = path in (mapping.id, mapping.publisher, mapping.time)
            if kind is None or (wanted is None and not own):
                self.unreached[path] = _as_mask(array.is_valid())
                continue
            if kind is AttributeType.INT64 and wanted is AttributeType.DOUBLE and not own:
                kind = wanted  # straight away: an unsigned integer may fit only here
            values = self._canonical(path, array, kind)
            fitted[path] = values
            self._weigh(path, values)
        context = [self._ids(fitted), self._names(fitted, mapping.publisher), self._times(fitted)]
        columns = [
            self._fit(path, fitted.get(path), layout.kinds.get(path), wanted)
            for path, wanted in layout.schema.attributes.items()
        ]
        arrays = [*context, *self._payload(), *columns]
        keep = np.ones(self.rows, bool)
        keep[list(self.faults)] = False
        if self.faults:
            arrays = [array.filter(pa.array(keep)) for array in arrays]
        counts = {path: int((mask & keep).sum()) for path, mask in sorted(self.unreached.items())}
        return Decoded(
            pa.RecordBatch.from_arrays(arrays, schema=layout.schema.arrow),
            self.records.rejected(self.faults),
            {path: count for path, count in counts.items() if count},
        )

    def _canonical(self, path: str, array: Any, kind: AttributeType) -> Any:
        """The values in the Arrow type of their kind; rows that have none are rejected or absent."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if kind is AttributeType.TIMESTAMP:
            return self._moments(path, array)
        if pa.types.is_uint64(array.type):
            beyond = _as_mask(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())))
            self._reject(
                beyond, RejectReason.WRONG_TYPE, f"{path!r} is an integer beyond 64 bits with sign"
            )
        array = array.cast(kind.arrow, safe=False)
        if kind is AttributeType.DOUBLE:
            self._reject(~_as_mask(pc.is_finite(array), True), *_not_finite(path))
        elif kind in (AttributeType.STRINGS, AttributeType.NUMBERS):
            array = self._array_elements(path, array, kind)
        if kind in (AttributeType.STRING, AttributeType.STRINGS):
            self._check_utf8(path, array)
        return array

    def _array_elements(self, path: str, array: Any, kind: AttributeType) -> Any:
        elements, parents = _elements_of(array)
        if kind is AttributeType.NUMBERS:
            bad = _marked(self.rows, parents[~_as_mask(pc.is_finite(elements), True)])
            self._reject(bad, *_not_finite(path))
        if not elements.null_count:
            return array
        holed = _marked(self.rows, parents[_as_mask(elements.is_null())])
        self.unreached[path] = holed
        return pc.if_else(pa.array(holed), pa.scalar(None, array.type), array)

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
        if kind is AttributeType.INT64 and wanted is AttributeType.DOUBLE:
            return values.cast(pa.float64(), safe=False)
        bad = _as_mask(values.is_valid())
        text = f"{path!r} is {kind}; it must be {wanted}"
        column = _absent(self.rows, wanted.arrow)
        if kind is AttributeType.STRING and wanted is AttributeType.TIMESTAMP:
            column, rows = parse_timestamps(values)
            bad, text = _marked(self.rows, rows), f"{path!r} is not an RFC 3339 time"
        self._reject(bad, RejectReason.WRONG_TYPE, text)
        return column

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
        elif mapping.time_unit is not TimeUnit.NONE and values.type in (pa.int64(), pa.float64()):
            per_second = _PER_SECOND[mapping.time_unit]
            low, high = (bound * per_second for bound in _SECOND_BOUNDS)
            ticks = values.fill_null(0).to_numpy()
            bad = present & ~((ticks >= low) & (ticks <= high))
            ticks = np.where(bad, 0, ticks) * (10**6 // per_second)
            moments = pa.array(np.rint(ticks).astype(np.int64), mask=~present)
            column = moments.cast(_TIMESTAMP)
        self._reject(
            bad, RejectReason.BAD_TIME, f"{mapping.time!r} is no RFC 3339 time and no number with a unit"
        )
        return column

    def _payload(self) -> list[Any]:
        """The reserved columns: as written for a file of ours, estimated otherwise."""
        if self.layout.native:
            size, body, is_json, nulls = (
                self.leaves[n].cast(FIXED_COLUMNS.field(n).type) for n in _OURS[3:]
            )
            return [size.fill_null(0), body, is_json.fill_null(False), pc.coalesce(nulls, _NO_PATHS)]
        body = _absent(self.rows, pa.binary())
        if self.layout.body is not None:
            body = self.leaves[self.layout.body].cast(pa.binary())
            self._weigh(self.layout.body, body)
        offsets: Any = pa.array(np.zeros(self.rows + 1, np.int32))
        nulls = pa.ListArray.from_arrays(offsets, pa.array([], pa.string()))
        return [pa.array(self.size), body, pa.array(np.zeros(self.rows, bool)), nulls]

    def _weigh(self, path: str, values: Any) -> None:
        """Add what this column contributes to each row's size."""
        dtype = values.type
        if pa.types.is_list(dtype):
            elements, parents = _elements_of(values)
            weight = np.bincount(parents, _lengths(elements), self.rows).astype(np.int64)
        else:
            weight = _lengths(values)
        self.size += np.where(_as_mask(values.is_valid()), weight + len(path.encode()), 0)

    def _reject(self, mask: Any, reason: RejectReason, detail: str) -> None:
        for row in np.flatnonzero(mask).tolist():
            self.faults.setdefault(row, (reason, detail))


def _elements_of(lists: Any) -> tuple[Any, Any]:
    """All elements, and the row of each.

    Not `list_parent_indices`: a null list may hide elements, which it counts and `list_flatten` leaves out.
    """
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    return pc.list_flatten(lists), np.repeat(np.arange(len(lists)), lengths)


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


def _not_finite(path: str) -> Fault:
    return RejectReason.NOT_FINITE, f"{path!r} is not a finite number; leave it out"


def _is_utf8(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_utf8(element) for element in value)
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False
