"""Event logs on disk: NDJSON, CloudEvents and Parquet, as streams of `DecodedBatch`.

Owns the choice of what to read and how. Files are cut into records in `framing`, what makes a record good
is decided in `flatten` and `cloudevents`, and Parquet has a reader of its own (`parquet`). Memory is
bounded by one batch (`batch_rows` records or 64 MiB of raw input, whichever comes first) whatever the file
holds.

A stream without a given schema takes its schema from the first batch. That decides what has a column, not
what a filter can reach: later fields, and values of another type, are in `_others`. `keep` names the paths
that somebody asks for, so that a log with thousands of fields stays cheap; they are found in every record.
Every reader yields at least one `DecodedBatch`, so that an empty input has a schema too.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from ramify.content.events.cloudevents import cloudevents_parser
from ramify.content.events.events import DecodedBatch, EventSchema
from ramify.content.events.flatten import PLAIN, FieldMapping, Parser, decode, parse_plain
from ramify.content.events.framing import WHITESPACE, ArraySplitter, Source, elements, lines, opened, peeked
from ramify.content.events.parquet import read_parquet
from ramify.content.events.records import Records
from ramify.errors import InputError

__all__ = [
    "JsonForm",
    "LogKind",
    "infer_schema",
    "read_cloudevents",
    "read_events",
    "read_ndjson",
    "read_parquet",
]

_BATCH_ROWS = 65536


def read_ndjson(
    source: Source,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
    *,
    keep: frozenset[str] | None = None,
) -> Iterator[DecodedBatch]:
    """Plain JSON objects, one per line, from a path (`.gz` is decompressed), a binary file or bytes.

    Blank lines are no records. A line beyond the size limit is skipped without being held in memory.

    Raises
    ------
    InputError
        When the file cannot be read. Bad lines are in `rejected`.
    """
    with opened(source) as (stream, name):
        yield from _decoded(lines(stream, name, batch_rows), parse_plain, schema, mapping, keep)


def read_cloudevents(
    source: Source,
    schema: EventSchema | None = None,
    publisher: str = "source",
    batch_rows: int = _BATCH_ROWS,
    *,
    keep: frozenset[str] | None = None,
) -> Iterator[DecodedBatch]:
    """CloudEvents in structured mode, one per line, or in one JSON array: the first character tells.

    Raises
    ------
    InputError
        When the file cannot be read. Bad events are in `rejected`.
    """
    with opened(source) as (stream, name):
        head, stream = peeked(stream)
        cut = elements if head.lstrip(WHITESPACE).startswith(b"[") else lines
        chunks = cut(stream, name, batch_rows)
        yield from _decoded(chunks, cloudevents_parser(publisher), schema, PLAIN, keep)


def read_events(
    source: str | os.PathLike[str],
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    batch_rows: int = _BATCH_ROWS,
    *,
    keep: frozenset[str] | None = None,
) -> Iterator[DecodedBatch]:
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
    kind = LogKind.of(path.name)
    if kind is None:
        raise InputError(LogKind.unknown(path.name), path=str(path))
    if kind.parquet:
        yield from read_parquet(path, schema, mapping, batch_rows, keep=keep)
        return
    with opened(path) as (stream, name):
        head, stream = peeked(stream)
        yield from JsonForm.of(head, mapping).read(stream, name, schema, batch_rows, keep=keep)


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


@dataclass(frozen=True, slots=True)
class LogKind:
    """What the name of a file says about it: Parquet or JSON, and whether it is compressed as a whole."""

    parquet: bool
    gzipped: bool

    @classmethod
    def of(cls, name: str) -> "LogKind | None":
        """The kind of a file of this name; None for a suffix that is none of ours."""
        path = Path(name)
        gzipped = path.suffix.lower() == ".gz"
        suffix = (Path(path.stem).suffix if gzipped else path.suffix).lower()
        if suffix in (".parquet", ".pq") and not gzipped:
            return cls(parquet=True, gzipped=False)
        return cls(parquet=False, gzipped=gzipped) if suffix in (".json", ".jsonl", ".ndjson") else None

    @staticmethod
    def unknown(name: str) -> str:
        """What to say of a file that is of no kind."""
        path = Path(name)
        suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
        return (
            f"unknown kind of event log {suffix or 'without a suffix'!r}; "
            "use .json, .jsonl, .ndjson (each with or without .gz) or .parquet"
        )


@dataclass(frozen=True, slots=True)
class JsonForm:
    """What the first bytes of a JSON file say about all of it: one array or lines, and whose records."""

    array: bool
    parse: Parser
    mapping: FieldMapping

    @classmethod
    def of(cls, head: bytes, mapping: FieldMapping) -> "JsonForm":
        """The form of the file that begins with `head`: `SNIFF_BYTES`, without a byte order mark."""
        array = head.lstrip(WHITESPACE).startswith(b"[")
        if not _looks_like_cloudevents(head):
            return cls(array, parse_plain, mapping)
        publisher = "source" if mapping.publisher in (None, "publisher") else mapping.publisher
        return cls(array, cloudevents_parser(publisher), PLAIN)

    def read(
        self,
        stream: IO[bytes],
        name: str | None,
        schema: EventSchema | None,
        batch_rows: int = _BATCH_ROWS,
        *,
        inside: bool = False,
        keep: frozenset[str] | None = None,
    ) -> Iterator[DecodedBatch]:
        """The records of a stream of this form; `inside` when it begins in the middle of a file."""
        if self.array:
            chunks = elements(stream, name, batch_rows)
        else:
            chunks = lines(stream, name, batch_rows, inside=inside)
        yield from _decoded(chunks, self.parse, schema, self.mapping, keep)


def _decoded(
    chunks: Iterable[Records],
    parse: Parser,
    schema: EventSchema | None,
    mapping: FieldMapping,
    keep: frozenset[str] | None,
) -> Iterator[DecodedBatch]:
    for records in chunks:
        decoded = decode(records, parse, schema, mapping, keep=keep)
        schema = schema or EventSchema.of_batch(decoded.batch)
        yield decoded


def _looks_like_cloudevents(head: bytes) -> bool:
    """Whether the first record that can be read is a CloudEvent."""
    if head.lstrip(WHITESPACE).startswith(b"["):
        candidates = [record for record, _ in ArraySplitter().feed(head)]
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
