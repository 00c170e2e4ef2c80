"""One piece of a file of events, in a task: from bytes to chunks that account for every record.

Owns which records belong to a piece, the opening of its bytes, and what becomes of damage; the decoders are
those of `ramify.content`. Knows no Spark: `files` lists, cuts and hands out the pieces.

A file is cut at any bytes. Of JSON lines, a piece owns the lines that begin in it; of Parquet, the row
groups that begin in it; what can only be read from its start (gzip, one JSON array) belongs to the first
piece whole. So the pieces of a file give each record once, wherever it is cut, and counting lines and
records by piece (`PieceCount`) tells afterwards which line of the file a line of a piece is.

Damage is data. A record that is no event is a `Reject`, and so is a file that cannot be opened or breaks
off: what came before it counts. Memory: one batch (a row group of Parquet), whatever the piece holds.
"""

import gzip
import os
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ramify.content.events.events import DecodedBatch, EventSchema, RejectedRecord
from ramify.content.events.flatten import PLAIN, FieldMapping
from ramify.content.events.framing import ARRAY_CUT_OFF, SNIFF_BYTES
from ramify.content.events.others import end_to_end, other_paths
from ramify.content.events.parquet import ColumnsError, LostRows, parquet_schema, read_row_groups
from ramify.content.events.readers import JsonForm, LogKind
from ramify.errors import InputError
from ramify.pipeline.passes.sources import Chunk, PieceCount, Reject

__all__ = ["Attributes", "FileFault", "Piece", "PieceReader", "local_path", "merged", "shown"]

_BATCH_ROWS = 65536
_EVERY_ROW = 1 << 40
_SCAN_BYTES = 64 << 10
_ENOUGH_ROWS, _ENOUGH_BYTES = 16384, 8 << 20  # for a batch that is worth the calls it costs


class FileFault:
    """Why a file, or the rest of it, could not be used: reasons beside those of single records."""

    UNKNOWN_KIND = "unknown_kind"
    MISSING_FILE = "missing_file"
    UNREADABLE_FILE = "unreadable_file"
    DAMAGED_FILE = "damaged_file"
    FILE_TOO_LARGE = "file_too_large"
    MISSING_COLUMN = "missing_column"
    UNUSABLE_COLUMNS = "unusable_columns"

    CHANGED_FILE = "changed_file"

    EMPTY_DIRECTORY = "empty_directory"
    OPENING = (MISSING_FILE, UNREADABLE_FILE, CHANGED_FILE)
    """What each piece of a file finds out by itself: the first claims a row, the others none."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` to `stop` of a file of `length` bytes.

    `path` is Spark's: a URL, not percent-encoded. `content` is all of the file, where Spark read it.
    """

    path: str
    start: int
    stop: int
    length: int
    content: pa.Buffer | None = None


class Attributes(NamedTuple):
    """What records hold: the attributes that get a column, and the paths of what stands beside them."""

    schema: EventSchema
    beside: frozenset[str] = frozenset()

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> "Attributes":
        """Of the rows of a batch."""
        return cls(EventSchema.of_batch(batch), other_paths(batch))


@dataclass(frozen=True, slots=True)
class PieceReader:
    """Turns pieces into chunks. Picklable.

    `root` is the part of the paths that generated ids leave out. `through_spark` says that a piece without
    content has none because Spark would not hand it over; otherwise files are opened here.
    """

    schema: EventSchema
    mapping: FieldMapping = PLAIN
    root: str = ""
    wanted: frozenset[str] | None = None
    through_spark: bool = False
    batch_rows: int = _BATCH_ROWS

    def read(self, piece: Piece) -> Iterator[Chunk]:
        """The events of a piece, its rejects, and last its counts. Never raises for what a file holds."""
        account = _Account(piece)
        kind = LogKind.of(piece.path)
        try:
            if kind is None:
                raise _FaultError(FileFault.UNKNOWN_KIND, LogKind.unknown(piece.path))
            for decoded in self._parquet(piece) if kind.parquet else self._json(piece, kind, account):
                yield account.chunk(decoded, self.schema)
        except _FaultError as fault:
            if piece.start == 0 or not fault.whole:
                yield Chunk(_nothing(self.schema), [account.fault(fault)])
            elif fault.transient:
                yield Chunk(_nothing(self.schema), [account.fault(fault, rows=0)])
        yield Chunk(_nothing(self.schema), counted=[account.counted()])

    def head(self, piece: Piece, rows: int) -> Attributes | None:
        """What the first `rows` records of a file hold; None when they cannot be read."""
        kind = LogKind.of(piece.path)
        if kind is None:
            return None
        try:
            if kind.parquet:
                with self._opened(piece) as stream:
                    return Attributes(parquet_schema(_native(stream), self.mapping))
            with self._opened(piece) as stream:
                unpacked = _unpacked(stream, kind)
                form = _form(unpacked, self.mapping)
                part: Any = _Part(unpacked, 0, None)
                return Attributes.of_batch(next(form.read(part, None, None, rows)).batch)
        except (_FaultError, InputError, OSError, EOFError, zlib.error):
            return None

    def whole(self, piece: Piece) -> Attributes | None:
        """What all records of a piece hold; None when there are none, or they cannot be read.

        Of a gzip file or an array, which are one piece whatever their length, of the first 64 MiB.
        """
        kind = LogKind.of(piece.path)
        if kind is None or kind.parquet:
            return self.head(piece, 1) if piece.start == 0 else None
        if kind.gzipped and piece.start > 0:
            return None
        try:
            with self._opened(piece) as stream:
                form, part = _begun(_unpacked(stream, kind), piece, kind, self.mapping)
                if part.done or (form.array and piece.start > 0):
                    return None
                untyped: Any = part
                found = form.read(untyped, None, None, _EVERY_ROW, inside=piece.start > 0)
                return Attributes.of_batch(next(found).batch)
        except (_FaultError, InputError, OSError, EOFError, zlib.error):
            return None

    def _json(self, piece: Piece, kind: LogKind, account: "_Account") -> Iterator[DecodedBatch]:
        if kind.gzipped and piece.start > 0:
            return
        if kind.gzipped and piece.length == 0:
            raise _damage(EOFError("it is empty"))
        with self._opened(piece) as stream:
            try:
                form, part = _begun(_unpacked(stream, kind), piece, kind, self.mapping)
            except _BROKEN as error:
                raise _damage(error) from None
            if form.array and piece.start > 0:
                return
            account.part = part
            if part.done:
                return
            name = piece.path.removeprefix(self.root)
            inside = piece.start > 0
            untyped: Any = part
            rows, keep = self.batch_rows, self.wanted
            for decoded in form.read(untyped, name, self.schema, rows, inside=inside, keep=keep):
                yield part.without_the_broken_record(decoded)
            if part.error is not None:
                raise _damage(part.error)

    def _parquet(self, piece: Piece) -> Iterator[DecodedBatch | LostRows]:
        stop = piece.stop if piece.stop < piece.length else None
        with self._opened(piece) as stream:
            try:
                yield from read_row_groups(
                    _native(stream),
                    self.schema,
                    self.mapping,
                    self.batch_rows,
                    start=piece.start,
                    stop=stop,
                    name=piece.path.removeprefix(self.root),
                    wanted=self.wanted,
                )
            except ColumnsError as error:
                reason = FileFault.MISSING_COLUMN if error.missing else FileFault.UNUSABLE_COLUMNS
                raise _FaultError(reason, error.reason, whole=True) from None
            except InputError as error:
                raise _FaultError(FileFault.DAMAGED_FILE, error.reason, whole=True) from None

    @contextmanager
    def _opened(self, piece: Piece) -> Iterator[Any]:
        if piece.content is not None:
            _check_length(piece, piece.stop, piece.content.size)
            yield pa.BufferReader(piece.content)
            return
        if piece.length == 0:
            yield pa.BufferReader(b"")
            return
        if self.through_spark:
            text = (
                f"Spark does not hand over a file of {piece.length} bytes in one row "
                "(spark.sql.sources.binaryFile.maxLength); cut it into smaller files"
            )
            raise _FaultError(FileFault.FILE_TOO_LARGE, text, whole=True)
        try:
            stream = open(local_path(piece.path), "rb")  # noqa: SIM115
        except FileNotFoundError:
            text = "the file was listed but is no longer there"
            raise _FaultError(FileFault.MISSING_FILE, text, whole=True, transient=True) from None
        except OSError as error:
            text = f"the file cannot be read: {error.strerror or error}"
            raise _FaultError(FileFault.UNREADABLE_FILE, text, whole=True, transient=True) from None
        with stream:
            _check_length(piece, piece.length, os.fstat(stream.fileno()).st_size)
            yield stream


def local_path(path: str) -> str:
    """The path in the file system that a `file:` URL of Spark means."""
    return path[7:] if path.startswith("file:///") else path.removeprefix("file:")


def shown(path: str) -> str:
    """A path of Spark's as people write it: without the scheme where it is local."""
    return local_path(path) if path.startswith("file:/") else path


# --- accounts ----------------------------------------------------------------------------------------


_BROKEN = (OSError, EOFError, zlib.error)


class _FaultError(Exception):
    """The rest of a piece cannot be used. `whole`: all pieces of the file see the same fault, and the first
    tells; `transient`: perhaps not all of them do, so the others tell too, without claiming a row."""

    def __init__(self, reason: str, detail: str, *, whole: bool = False, transient: bool = False) -> None:
        self.reason, self.detail, self.whole, self.transient = reason, detail, whole, transient
        super().__init__(detail)


def _check_length(piece: Piece, listed: int, length: int) -> None:
    """Refuse a file that is no longer what was listed. What was only appended to JSON lines does no harm:
    the lines that were there are read. Parquet has its footer at the end, so that any length tells."""
    kind = LogKind.of(piece.path)
    if length < listed or (length > listed and kind is not None and kind.parquet):
        text = (
            f"the file had {listed} bytes when it was listed and has {length} now; "
            "run again when nothing writes to it"
        )
        raise _FaultError(FileFault.CHANGED_FILE, text, whole=True, transient=True)


def _damage(error: BaseException) -> _FaultError:
    what = "the compressed file" if not isinstance(error, OSError) else "the file"
    what = "the compressed file" if isinstance(error, gzip.BadGzipFile) else what
    detail = f"{what} is damaged or cut off ({error}); copy or write it again"
    return _FaultError(FileFault.DAMAGED_FILE, detail)


class _Account:
    """Counts the records of a piece."""

    def __init__(self, piece: Piece) -> None:
        self.piece, self.file = piece, shown(piece.path)
        self.rows_in = 0
        # Where the lines come from, when there are lines.
        self.part: _Part | None = None

    def chunk(self, decoded: DecodedBatch | LostRows, schema: EventSchema) -> Chunk:
        """What some records became."""
        if isinstance(decoded, LostRows):
            lost = _FaultError(FileFault.DAMAGED_FILE, decoded.detail)
            return Chunk(_nothing(schema), [self.fault(lost, decoded.rows)])
        self.rows_in += decoded.records
        rejected = [self._reject(r) for r in decoded.rejected]
        return Chunk(decoded.batch, rejected, decoded.unaddressable)

    def fault(self, fault: _FaultError, rows: int = 1) -> Reject:
        """The reject that stands for what could not be read."""
        place = self.rows_in
        self.rows_in += rows
        return Reject(self.file, self.piece.start, place, None, fault.reason, fault.detail, b"", rows)

    def counted(self) -> PieceCount:
        """What the piece held in all."""
        lines = 0 if self.part is None else self.part.lines
        return PieceCount(self.file, self.piece.start, lines, self.rows_in)

    def _reject(self, found: RejectedRecord) -> Reject:
        file, start = self.file, self.piece.start
        return Reject(file, start, found.position, found.line, str(found.reason), found.detail, found.raw)


def _nothing(schema: EventSchema) -> pa.RecordBatch:
    arrays: list[Any] = [pa.array([], f.type) for f in schema.arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


# --- bytes -------------------------------------------------------------------------------------------


def _unpacked(stream: IO[bytes], kind: LogKind) -> Any:
    return gzip.GzipFile(fileobj=stream, mode="rb") if kind.gzipped else stream


def _native(stream: Any) -> Any:
    """What Arrow reads fastest: memory, or a file that it opens itself."""
    return stream if isinstance(stream, pa.BufferReader) else stream.name


def _begun(stream: Any, piece: Piece, kind: LogKind, mapping: FieldMapping) -> tuple[JsonForm, "_Part"]:
    form = _form(stream, mapping)
    whole = form.array or kind.gzipped
    return form, _Part(stream, 0, None) if whole else _Part(stream, piece.start, piece.stop)


def _form(stream: Any, mapping: FieldMapping) -> JsonForm:
    """What the beginning of a file, which is cheap to read again for each piece, says about it.

    Compressed files that break off within it are judged by what there is.
    """
    return JsonForm.of(_first_bytes(stream).removeprefix(BOM_UTF8), mapping)


def _first_bytes(stream: Any) -> bytes:
    head, take = b"", _taking(stream)
    try:
        while len(head) < SNIFF_BYTES and (more := take(SNIFF_BYTES - len(head))):
            head += more
    except _BROKEN:
        if not head:
            raise
    return head


def _taking(stream: Any) -> Callable[[int], bytes]:
    """How to read from a stream so that what comes before an error is not lost with it."""
    take: Callable[[int], bytes] = stream.read1 if isinstance(stream, gzip.GzipFile) else stream.read
    return take


class _Part:
    """The lines that begin in bytes `start` to `stop` of a stream (all, without `stop`), as a stream.

    A line begins after a newline. So the part begins after the first newline at or after byte `start - 1`,
    and ends with the first one at or after byte `stop - 1`. An error of the stream ends the part, too, and
    is kept. Finding the first line costs no more than reading the part.
    """

    def __init__(self, stream: Any, start: int, stop: int | None) -> None:
        self.take, self.stop = _taking(stream), stop
        # How many newlines have been read, and whether something came after the last of them.
        self.newlines, self.open_ended = 0, False
        self.error: BaseException | None = None
        begin = 0 if start == 0 else _after_newline(stream, start - 1, start if stop is None else stop - 1)
        self.done = begin is None or (stop is not None and start >= stop)
        self.at = begin or 0
        stream.seek(self.at)

    @property
    def lines(self) -> int:
        """Lines that began so far."""
        return self.newlines + self.open_ended

    def read(self, size: int) -> bytes:
        """The next bytes; none at the end."""
        if self.done:
            return b""
        try:
            chunk = self.take(size)
        except _BROKEN as error:
            self.error, chunk = error, b""
        if not chunk and self.error is None and self.stop is not None and self.at < self.stop:
            self.error = EOFError("it has become shorter while it was read")
        if self.stop is not None and self.at + len(chunk) >= self.stop:
            end = chunk.find(b"\n", max(0, self.stop - 1 - self.at))
            if end >= 0:
                self.done, chunk = True, chunk[: end + 1]
        self.at += len(chunk)
        self.newlines += chunk.count(b"\n")
        self.open_ended = not chunk.endswith(b"\n") if chunk else self.open_ended
        self.done = self.done or not chunk
        return chunk

    def without_the_broken_record(self, decoded: DecodedBatch) -> DecodedBatch:
        """What was decoded, but for the record that an error cut in two: the error stands for that."""
        if self.error is None or not decoded.rejected:
            return decoded
        last = decoded.rejected[-1]
        if last.detail == ARRAY_CUT_OFF or (self.open_ended and last.line == self.lines):
            decoded.rejected = decoded.rejected[:-1]
        return decoded


def _after_newline(stream: Any, at: int, stop: int) -> int | None:
    """The place after the first newline in bytes `at` to `stop`, if there is one."""
    stream.seek(at)
    while at < stop and (chunk := stream.read(min(_SCAN_BYTES, stop - at))):
        found: int = chunk.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(chunk)
    return None


def merged(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """All of it in fewer chunks: a batch per tiny file costs more than its rows."""
    held: list[Chunk] = []
    rows = size_bytes = 0
    for chunk in chunks:
        large = chunk.batch.num_rows >= _ENOUGH_ROWS
        if held and (large or rows >= _ENOUGH_ROWS or size_bytes >= _ENOUGH_BYTES):
            yield _one(held)
            held, rows, size_bytes = [], 0, 0
        held.append(chunk)
        rows += chunk.batch.num_rows
        size_bytes += chunk.batch.nbytes + 256 * (len(chunk.rejected) + 1)
    if held:
        yield _one(held)


def _one(chunks: Sequence[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    batches = [c.batch for c in chunks if c.batch.num_rows] or [chunks[0].batch]
    times = [c.arrived for c in chunks if c.arrived is not None]
    unaddressable: Counter[str] = Counter()
    for chunk in chunks:
        unaddressable.update(chunk.unaddressable)
    return Chunk(
        batches[0] if len(batches) == 1 else end_to_end(batches),
        [reject for chunk in chunks for reject in chunk.rejected],
        unaddressable,
        [counted for chunk in chunks for counted in chunk.counted],
        None if not times else np.concatenate(times),
    )
