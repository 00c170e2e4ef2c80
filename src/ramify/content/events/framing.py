"""From streams of bytes to raw records: lines, and the elements of one JSON array, in bounded batches.

Owns opening, decompression, chunks and cutting; decodes nothing. A record beyond the size limit is never
held whole, and a batch never holds more than `BATCH_BYTES` of records, whatever the input.
"""

import gzip
import io
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from ramify.content.events.events import RejectReason
from ramify.content.events.records import MAX_RECORD_BYTES, Fault, Records, bracket_levels, too_large
from ramify.errors import InputError

__all__ = [
    "ARRAY_CUT_OFF",
    "SNIFF_BYTES",
    "ArraySplitter",
    "Source",
    "array_records",
    "elements",
    "lines",
    "opened",
    "peeked",
]

Source: TypeAlias = str | os.PathLike[str] | bytes | IO[bytes]

BATCH_BYTES = 64 << 20
"""A batch of raw records ends here, even when it has fewer rows than asked for."""

WHITESPACE = b" \t\r\n"
"""What JSON takes for space."""

SNIFF_BYTES = 64 << 10
"""How much of a file is looked at to tell what it holds."""

ARRAY_CUT_OFF = "the array does not end: the input may have been cut off"
"""The detail of the fault that stands at the end of an array without one."""

_CHUNK_BYTES = 1 << 20


def lines(
    stream: IO[bytes], name: str | None, batch_rows: int, *, inside: bool = False
) -> Iterator[Records]:
    """The lines that are not blank, in batches. An oversize line keeps only its first bytes.

    `inside` says that the stream begins inside a file, where a byte order mark is part of its line.
    """
    return _batched(_line_runs(stream, inside), name, batch_rows)


def elements(stream: IO[bytes], name: str | None, batch_rows: int) -> Iterator[Records]:
    """The elements of a JSON array, in batches."""
    return _batched(_element_runs(stream), name, batch_rows)


def array_records(data: bytes, name: str | None = None) -> Records:
    """All elements of a JSON array that is in memory anyway."""
    splitter = ArraySplitter()
    run = _Run.of([*splitter.feed(data.removeprefix(BOM_UTF8)), *splitter.finish()])
    return Records(run.raw, source=name, refused=run.refused)


@contextmanager
def opened(source: Source) -> Iterator[tuple[IO[bytes], str | None]]:
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
            if path.suffix.lower() == ".gz" and path.stat().st_size == 0:
                raise EOFError("it is empty")  # Python's own reader takes it for nothing compressed
            yield stream, path.name  # type: ignore[misc]
    except FileNotFoundError:
        raise InputError("there is no such file", path=str(path)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        text = f"the compressed file is damaged or cut off ({error}); copy or compress it again"
        raise InputError(text, path=str(path)) from error
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror or error}", path=str(path)) from error


def peeked(stream: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    """The first bytes of a stream, and the stream with these bytes still in it."""
    whole: Any = _PeekedStream(stream)
    head = whole.head
    if isinstance(head, str):
        raise InputError("the file is open as text; open it in binary mode")
    return head.removeprefix(BOM_UTF8), whole


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
            data = self._after_opening(data)
        if self.closed:
            self.junk = self.junk or data.strip(WHITESPACE)[:256]
        elif self.opened and data:
            yield from self._cut(data)

    def finish(self) -> Iterator[tuple[bytes, Fault | None]]:
        """The element that the end of the input cut off, and what follows or replaces the array."""
        if not self.opened:
            fault = RejectReason.BAD_CLOUDEVENT, "a batch must be a JSON array of events"
            yield bytes(self.junk), fault
            return
        if not self.closed:
            if self.tail or self.oversize:
                yield self._element()
            yield bytes(self.held), (RejectReason.NOT_JSON, ARRAY_CUT_OFF)
        elif self.junk or self.held:
            yield self.junk, (RejectReason.NOT_JSON, "there is something after the end of the array")

    def _after_opening(self, data: bytes) -> bytes:
        data = data.lstrip(WHITESPACE)
        self.opened = not self.junk and data[:1] == b"["
        if not self.opened:
            self.junk = self.junk or data[:256]
            return b""
        self.level = 1
        return data[1:]

    def _cut(self, data: bytes) -> Iterator[tuple[bytes, Fault | None]]:
        found = bracket_levels(data, self.quoted, self.level)
        self.quoted = found.quoted
        self.level = int(found.levels[-1]) if len(found.levels) else self.level
        ends = np.flatnonzero(found.levels == 0)
        stop = int(ends[0]) if len(ends) else len(found.at)
        end = int(found.at[stop]) if len(ends) else len(data)
        commas = (found.marks[:stop] == 0x2C) & (found.levels[:stop] == 1)
        start = 0
        for cut in found.at[:stop][commas].tolist():
            if start and cut - start <= MAX_RECORD_BYTES:  # all of it is in this chunk
                self.elements += 1
                yield data[start:cut].strip(WHITESPACE), None
            else:
                self._append(data[start:cut])
                yield self._element()
            start = cut + 1
        self._append(data[start:end])
        if end < len(data):
            self.closed = True
            self.junk = data[end + 1 :].strip(WHITESPACE)[:256]
            if data[end : end + 1] != b"]":
                self.junk = data[end : end + 256]
            if self.tail or self.oversize or self.elements:
                yield self._element()

    def _append(self, piece: bytes) -> None:
        if not self.tail:
            piece = piece.lstrip(WHITESPACE)
        if not self.oversize:
            self.tail += piece
            if len(self.tail) > MAX_RECORD_BYTES:
                self.oversize = True
                del self.tail[256:]

    def _element(self) -> tuple[bytes, Fault | None]:
        record = bytes(self.tail).rstrip(WHITESPACE)
        fault = too_large() if self.oversize else None
        self.tail, self.oversize = bytearray(), False
        self.elements += 1
        return record, fault


# --- runs and batches --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """Records that were cut from one chunk, with the numbers of their lines, if they are lines."""

    raw: list[bytes]
    numbers: Sequence[int] | None = None
    refused: dict[int, Fault] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[tuple[bytes, Fault | None]]) -> "_Run":
        """What a splitter found."""
        run = cls([])
        for record, fault in found:
            if fault is not None:
                run.refused[len(run.raw)] = fault
            run.raw.append(record)
        return run


def _element_runs(stream: IO[bytes]) -> Iterator[_Run]:
    splitter = ArraySplitter()
    for chunk in _chunks(stream):
        yield _Run.of(splitter.feed(chunk))
    yield _Run.of(splitter.finish())


def _line_runs(stream: IO[bytes], inside: bool) -> Iterator[_Run]:
    tail, skipped, number = b"", b"", 0
    for chunk in _chunks(stream, inside):
        parts = chunk.split(b"\n")
        if not skipped:
            parts[0] = tail + parts[0]
        elif len(parts) == 1:
            continue
        else:
            number += 1
            yield _Run([skipped], [number], {0: too_large()})
            del parts[0]
        tail, skipped = parts.pop(), b""
        yield _run_of_lines(parts, number + 1)
        number += len(parts)
        if len(tail) > MAX_RECORD_BYTES + 1:
            tail, skipped = b"", tail[:256]
    if skipped:
        yield _Run([skipped], [number + 1], {0: too_large()})
    else:
        yield _run_of_lines([tail], number + 1)


def _run_of_lines(parts: list[bytes], first: int) -> _Run:
    numbers = range(first, first + len(parts))
    records = [part.strip(WHITESPACE) for part in parts]
    if all(records) and max(map(len, parts), default=0) <= MAX_RECORD_BYTES:
        return _Run(records, numbers)
    run, kept = _Run([]), []
    for part, record, number in zip(parts, records, numbers, strict=True):
        # Measured before stripping, so that it does not depend on where a chunk ended.
        oversize = len(part.removesuffix(b"\r")) > MAX_RECORD_BYTES
        if oversize:
            run.refused[len(run.raw)] = too_large()
        if oversize or record:
            run.raw.append(part[:256] if oversize else record)
            kept.append(number)
    run.numbers = kept
    return run


def _batched(runs: Iterable[_Run], name: str | None, batch_rows: int) -> Iterator[Records]:
    """The records of all runs in batches, bounded in rows and in bytes."""
    raw: list[bytes] = []
    numbers: list[int] = []
    refused: dict[int, Fault] = {}
    first = size_bytes = 0
    for run in runs:
        start, ends = 0, np.cumsum(np.fromiter(map(len, run.raw), np.int64, len(run.raw)))
        while start < len(run.raw):
            before = int(ends[start - 1]) if start else 0
            by_size = int(np.searchsorted(ends, before + BATCH_BYTES - size_bytes)) + 1
            stop = min(start + batch_rows - len(raw), by_size, len(run.raw))
            refused |= {len(raw) + i - start: f for i, f in run.refused.items() if start <= i < stop}
            raw += run.raw[start:stop]
            numbers += run.numbers[start:stop] if run.numbers is not None else ()
            size_bytes += int(ends[stop - 1]) - before
            start = stop
            if len(raw) >= batch_rows or size_bytes >= BATCH_BYTES:
                yield Records(raw, numbers or None, first, name, refused)
                first, size_bytes = first + len(raw), 0
                raw, numbers, refused = [], [], {}
    if raw or not first:
        yield Records(raw, numbers or None, first, name, refused)


def _chunks(stream: IO[bytes], inside: bool = False) -> Iterator[bytes]:
    first = not inside
    while chunk := stream.read(_CHUNK_BYTES):
        if isinstance(chunk, str):
            raise InputError("the file is open as text; open it in binary mode")
        yield chunk.removeprefix(BOM_UTF8) if first else chunk
        first = False


class _PeekedStream(io.RawIOBase):
    """A stream whose first bytes were looked at and are read again."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.head: bytes = stream.read(SNIFF_BYTES)

    def read(self, size: int = -1, /) -> bytes:
        """The head once, then what the stream has."""
        head, self.head = self.head, b""
        return head or self.stream.read(size)
