"""Files of events as a source: listed by Spark, cut into pieces, handed out evenly, read in the tasks.

Owns the listing (files, directories, globs, URLs), the cutting and packing, the schema of many files, and
the line numbers of whole files. What a piece becomes in a task is in `pieces`.

Listing goes through Spark, so whatever Spark can read is found, with its connectors and credentials, and
as the cluster sees it; in local mode, plain files of this machine are listed without it (`local_files`).
The bytes take one of two ways. Local files (`file:`) are opened by the tasks, in pieces, with the memory of
a batch. All others come from Spark as whole files (`binaryFile`): a task holds one of them at a time, and
one beyond `spark.sql.sources.binaryFile.maxLength` (2 GiB at most) is quarantined as too large. The same
decoders read both, so both give the same events.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.events.flatten import PLAIN, FieldMapping
from ramify.content.events.readers import LogKind
from ramify.errors import InputError
from ramify.pipeline.passes.copies import copies_among
from ramify.pipeline.passes.pieces import (
    Attributes,
    FileFault,
    Piece,
    PieceReader,
    local_path,
    merged,
    shown,
)
from ramify.pipeline.passes.sources import Chunk, Reject
from ramify.pipeline.session.engine import Engine, InProcess, is_connect, runs_here, task_slots
from ramify.pipeline.session.failures import root_cause
from ramify.pipeline.session.local_files import local_files
from ramify.planning.demand.decay import NO_PANE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Conflict", "Files", "ListedFile", "absolute", "absolute_rows", "bundles", "cut", "listed"]

PIECE_BYTES = 32 << 20
"""A piece of a file is at most this long, unless it cannot be cut."""

_LEAST_BYTES = 1 << 20  # a shorter piece costs more to hand out than to read
_OPENING_BYTES = 64 << 10  # what opening a file costs, in bytes read meanwhile
_TASKS_PER_SLOT = 2  # the slots then end at about the same time, though tasks do not
_ONE_ROUND_BYTES = 64 << 20  # up to so many bytes a slot, one task: it costs 0.1 s, whatever it does
_SMALL_BYTES = 1 << 30
_TINY_BYTES = 32 << 20
_HEADS, _HEADS_THROUGH_SPARK, _HEAD_ROWS = 64, 8, 4096


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that Spark found. `path` is Spark's: a URL, not percent-encoded."""

    path: str
    length: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """An attribute that has another type in some file than in most."""

    attribute: str
    used: AttributeType
    other: AttributeType
    file: str


@dataclass(frozen=True)
class Files:
    """Files of events. Make one with `of`. Picklable: tasks get everything but the list of files.

    Attributes
    ----------
    schema           the attributes of all events that get a column
    beside           paths whose values, in the records looked at, stand beside the columns
    conflicts        attributes whose type differs between files, where the schema was inferred: values of
                     another type than the schema's are in no column, but filters reach them
    wanted           the attributes that anyone asks for, or None for all: others need not be read (they
                     are absent then) where that is cheaper, and bodies neither
    through_spark    whether the bytes come from Spark, or from files that tasks open
    empty            paths that were given and hold no file, among others that do
    by_arrival       whether panes go by when a file was last written, not by the events' own times
    copies           local files that repeat another one byte for byte, each with that one: they are not
                     among the files, so that no event counts twice
    """

    schema: EventSchema
    mapping: FieldMapping = PLAIN
    conflicts: tuple[Conflict, ...] = ()
    beside: frozenset[str] = frozenset()
    wanted: frozenset[str] | None = None
    through_spark: bool = False
    root: str = ""
    piece_bytes: int = PIECE_BYTES
    given: tuple[str, ...] = ()
    files: tuple[ListedFile, ...] = field(default=(), repr=False)
    empty: tuple[str, ...] = ()
    by_arrival: bool = False
    copies: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        spark: Engine,
        paths: Sequence[str],
        schema: EventSchema | None = None,
        mapping: FieldMapping = PLAIN,
        *,
        piece_bytes: int = PIECE_BYTES,
        through_spark: bool | None = None,
        count_copies: bool = False,
    ) -> Files:
        """The events in files, directories (all files below), globs and URLs of any kind that Spark reads.

        Without a schema, a Spark job looks at the first records of up to 64 files spread over the list:
        the type that most files have decides, integers widen to doubles, and what else differs is in
        `conflicts`. Of local files that are equal byte for byte, the first by path is kept, unless
        `count_copies` says that all of them count.

        Raises
        ------
        InputError
            When a path does not exist or holds no file, Spark cannot list it, or a file that was named
            itself is of no known kind.
        """
        # whether Spark's driver sees the files that this process sees
        here = runs_here(spark) or not is_connect(spark)
        given = tuple(dict.fromkeys(p for path in paths for p in _resolved(path, here)))
        found = _listed_here(given) if runs_here(spark) else []
        found = found or listed(spark, given)
        empty = tuple(path for path in given if not any(_is_at(file.path, path) for file in found))
        found = _distinct(found) if here else found
        _check_named(given, found)
        copies = copies_among({f.path: f.length for f in found}) if here and not count_copies else {}
        found = [file for file in found if file.path not in copies]
        remote = next((file.path for file in found if not file.path.startswith("file:/")), None)
        if through_spark is False and remote is not None:
            raise InputError("only Spark can read this file; leave out through_spark=False", path=remote)
        through_spark = remote is not None if through_spark is None else through_spark
        files = cls(
            schema or EventSchema(),
            mapping,
            through_spark=through_spark,
            root=_common_directory([file.path for file in found]),
            piece_bytes=piece_bytes,
            given=given,
            files=tuple(found),
            empty=empty,
            copies={shown(copy): shown(first) for copy, first in copies.items()},
        )
        return files if schema is not None else _inferred(spark, files)

    @property
    def small(self) -> bool:
        """Up to a gigabyte of files."""
        return sum(file.length for file in self.files) <= _SMALL_BYTES

    @property
    def tiny(self) -> bool:
        """Some megabytes of files that tasks open themselves."""
        return not self.through_spark and sum(file.length for file in self.files) <= _TINY_BYTES

    def here(self) -> Iterator[pa.RecordBatch]:
        """All pieces, in order."""
        pieces = cut(self.files, 1, self.piece_bytes, whole_lines=self.mapping.id is None)
        yield _piece_rows(pieces)

    def only(self, paths: Collection[str]) -> Files:
        """The same files, of which only these attributes are asked for."""
        return replace(self, wanted=frozenset(paths))

    def __getstate__(self) -> dict[str, Any]:
        # The list can be long, and tasks get their part of it as rows.
        return {**self.__dict__, "files": (), "given": (), "copies": {}}

    def frame(self, spark: SparkSession) -> DataFrame:
        """One row a piece: path, start, stop, length, and the content where it comes from Spark.

        Without it, the pieces are packed so that every partition has about as many bytes.
        """
        if not self.files:
            raise TypeError("this half of the source is for tasks")
        if self.through_spark:
            return _contents(spark, self)
        slots = task_slots(spark)
        pieces = cut(self.files, slots, self.piece_bytes, whole_lines=self.mapping.id is None)
        return _spread(spark, pieces, bundles(pieces, slots, self.piece_bytes))

    def read(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        """In a task: the events of some pieces. Every record is a row of a chunk or a reject."""
        reader = self._reader()
        return merged(
            self._stamped(piece, chunk) for piece in _pieces(rows) for chunk in reader.read(piece)
        )

    def arriving(self) -> Files:
        """The same files, of which panes go by when each was last written. `InputError` for remote ones."""
        if self.through_spark:
            raise InputError("only local files tell when they were written", path=self.root)
        return replace(self, by_arrival=True)

    def _stamped(self, piece: Piece, chunk: Chunk) -> Chunk:
        if not self.by_arrival:
            return chunk
        try:
            written_us = os.stat(local_path(piece.path)).st_mtime_ns // 1000
        except OSError:  # gone since it was read
            written_us = NO_PANE
        return replace(chunk, arrived=np.full(chunk.batch.num_rows, written_us, dtype=np.int64))

    def unread(self, counted: Collection[str]) -> list[Reject]:
        """One reject for each file that is not among those that were counted: Spark found it, but could
        not hand it over, since it has vanished meanwhile or must not be read."""
        text = "the file was listed, but Spark could not read it; it may be gone, damaged or forbidden"
        names = (shown(file.path) for file in self.files)
        gone = FileFault.UNREADABLE_FILE
        lost = [Reject(name, 0, 0, None, gone, text, rows=0) for name in names if name not in counted]
        nothing = "there is no file with events in it"
        void = FileFault.EMPTY_DIRECTORY
        return lost + [Reject(shown(path), 0, 0, None, void, nothing, rows=0) for path in self.empty]

    def looked_through(self, spark: Engine) -> Files:
        """The same files with the schema of all their records, not of the first ones only.

        A job that decodes every record of JSON files (of gzip files and arrays, the first 64 MiB); tiny
        files of this machine are read right here.
        """
        reader = self._reader()

        def look(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for piece in _pieces(rows):
                found = reader.whole(piece)
                if found is not None:
                    yield _schema_row(piece, found)

        if isinstance(spark, InProcess) or (self.tiny and runs_here(spark)):
            return _with_schemas(self, look(self.here()))
        return _with_schemas(self, _collected(self.frame(spark).mapInArrow(look, _SCHEMA_ROWS)))

    def _reader(self) -> PieceReader:
        return PieceReader(self.schema, self.mapping, self.root, self.wanted, self.through_spark)


def absolute(rejects: DataFrame, counted: DataFrame) -> DataFrame:
    """Rejects with positions and lines that count from the start of their files, not of their pieces.

    `rejects` and `counted` have the fields of `Reject` and `Counted` as columns; others are kept. What
    several pieces say of one file that none of them could open becomes one row.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    before = Window.partitionBy("file").orderBy("start").rowsBetween(Window.unboundedPreceding, -1)
    skipped = counted.select(
        "file",
        "start",
        sf.coalesce(sf.sum("lines").over(before), sf.lit(0)).alias("_lines"),
        sf.coalesce(sf.sum("rows_in").over(before), sf.lit(0)).alias("_rows"),
    )
    opening = sf.coalesce(sf.col("reason").isin(*FileFault.OPENING), sf.lit(False))
    number = sf.row_number().over(Window.partitionBy("file", "reason").orderBy("start"))
    told = rejects.where(opening).withColumn("_number", number)
    told = told.where((sf.col("_number") == 1) | (sf.col("rows") > 0)).drop("_number")
    once = rejects.where(~opening).unionByName(told)
    placed = once.join(sf.broadcast(skipped), ["file", "start"], "left").select(
        *(sf.col(name) for name in rejects.columns if name not in ("position", "line")),
        (sf.col("position") + sf.coalesce("_rows", sf.lit(0))).alias("position"),
        (sf.col("line") + sf.coalesce("_lines", sf.lit(0))).alias("line"),
    )
    return placed.select(*rejects.columns)


def absolute_rows(
    rejects: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What `absolute` does, for rows that are in this process."""
    before: dict[tuple[str | None, int], tuple[int, int]] = {}
    sums: dict[str | None, tuple[int, int]] = {}
    for piece in sorted(counted, key=lambda row: (row["file"], row["start"])):
        lines, rows = sums.get(piece["file"], (0, 0))
        before[piece["file"], piece["start"]] = lines, rows
        sums[piece["file"]] = lines + piece["lines"], rows + piece["count"]
    told: set[tuple[str | None, str]] = set()
    placed = []
    for row in sorted(rejects, key=lambda row: row["start"]):
        if row["reason"] in FileFault.OPENING:
            first = (row["file"], row["reason"]) not in told
            told.add((row["file"], row["reason"]))
            if not first and not row["rows"]:
                continue
        lines, rows = before.get((row["file"], row["start"]), (0, 0))
        line = None if row["line"] is None else row["line"] + lines
        placed.append({**row, "position": row["position"] + rows, "line": line})
    return placed


# --- listing -----------------------------------------------------------------------------------------


def listed(spark: Engine, paths: Sequence[str]) -> list[ListedFile]:
    """The files that Spark sees at some paths, by path; hidden ones, such as `_SUCCESS`, it skips.

    Raises
    ------
    InputError
        When Spark does not find a path, finds no file there, or cannot list it.
    """
    if not paths:
        raise InputError("no path was given; name a file, a directory or a glob")
    if isinstance(spark, InProcess):
        raise _not_here(paths)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        frame = _binary_files(spark, paths)
        names = [_plain(url) for url in frame.inputFiles()]
        lengths = {row.path: row.length for row in frame.select("path", "length").collect()}
    except (PySparkException, Py4JError) as error:
        raise _listing_fault(error, paths) from None
    # The rows leave files without a byte out; as Parquet, they are damaged, and as JSON, empty.
    found = {**dict.fromkeys(names, 0), **lengths}
    if not found:
        raise InputError("there is no file in it with events; give another path", path=shown(paths[0]))
    return [ListedFile(path, found[path]) for path in sorted(found)]


def _listed_here(paths: Sequence[str]) -> list[ListedFile]:
    """What `listed` gives, by this process alone; nothing where it takes Spark to tell."""
    found: dict[str, int] = {}
    for path in paths:
        some = local_files(path)
        if some is None:
            return []
        found |= some
    return [ListedFile(path, found[path]) for path in sorted(found)]


def _not_here(paths: Sequence[str]) -> InputError:
    """Why this process alone finds no file at the paths."""
    path = next((path for path in paths if not local_files(path)), paths[0])
    if "://" not in path and not os.path.exists(_bare(path)):
        return InputError("no file matches" if _is_glob(path) else "there is no such file", path=path)
    if local_files(path) == {}:
        return InputError("there is no file in it with events; give another path", path=_bare(path))
    advice = "only Spark can list it: leave out --spark none, or name plain files and directories"
    return InputError(advice, path=shown(path))


def _binary_files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    # Both options make Spark leave out what it cannot read, instead of failing: `Files.unread` tells.
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", True)
    reader = reader.option("ignoreMissingFiles", True).option("ignoreCorruptFiles", True)
    return reader.load(list(paths))


def _listing_fault(error: Exception, paths: Sequence[str]) -> InputError:
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException) and error.getCondition() == "PATH_NOT_FOUND":
        path = shown((error.getMessageParameters() or {}).get("path", paths[0]))
        text = "no file matches" if _is_glob(path) else "there is no such file"
        return InputError(text, path=path)
    advice = "check the path, the connector (spark.jars.packages) and the credentials"
    where = ", ".join(map(shown, paths[:3])) + (", ..." if len(paths) > 3 else "")
    return InputError(f"Spark cannot list it ({root_cause(error)}); {advice}", path=where)


def _resolved(path: str, here: bool) -> list[str]:
    """A path as Spark, which may run elsewhere, finds it.

    Local globs are expanded here where Spark sees the same files: Spark's stumble over a colon in a name.
    """
    if "://" in path or path.startswith("file:"):
        return [path]
    if os.path.exists(path):
        return [_escaped(os.path.abspath(path))]
    found = sorted(glob(path, recursive=True)) if here else []
    return [_escaped(os.path.abspath(name)) for name in found] or [path]


def _distinct(files: Sequence[ListedFile]) -> list[ListedFile]:
    """Files that are the same behind their links once, under the first of their names."""
    kept: dict[str, ListedFile] = {}
    for file in files:
        local = local_path(file.path) if file.path.startswith("file:") else None
        kept.setdefault(file.path if local is None else os.path.realpath(local), file)
    return list(kept.values())


def _plain(url: str) -> str:
    """A URL as the rows of Spark have it: not encoded, and local ones with a single slash."""
    text = unquote(url)
    return "file:/" + text[8:] if text.startswith("file:///") else text


def _is_glob(path: str) -> bool:
    return re.search(r"(?<!\\)[*?\[{]", path) is not None  # a mark that `_escaped` has not escaped


def _is_at(file: str, path: str) -> bool:
    """Whether a file is at a path or below; of globs, Spark says itself when nothing matches."""
    inside = _bare(path)
    return _is_glob(path) or _bare(file) == inside or _bare(file).startswith(inside.rstrip("/") + "/")


def _bare(path: str) -> str:
    path = re.sub(r"\\(.)", r"\1", shown(path) if path.startswith("file:") else path)
    return os.path.normpath(path) if path.startswith("/") else path.rstrip("/")


def _check_named(given: Sequence[str], found: Sequence[ListedFile]) -> None:
    named = {_bare(path) for path in given}
    for file in found:
        if _bare(file.path) in named and LogKind.of(file.path) is None:
            raise InputError(LogKind.unknown(file.path), path=shown(file.path))


def _common_directory(paths: Sequence[str]) -> str:
    first, last = min(paths), max(paths)
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, common) + 1]


# --- cutting and packing -----------------------------------------------------------------------------


def cut(
    files: Sequence[ListedFile], slots: int, piece_bytes: int = PIECE_BYTES, *, whole_lines: bool = False
) -> list[Piece]:
    """Pieces of all files, in order, of about the same length, and enough of them for all task slots.

    Compressed files, and files of no known kind, are one piece each. So are all JSON files when
    `whole_lines` is asked, as generated ids need it: they count the records of a file from its start.
    """
    total = sum(file.length for file in files)
    most = min(piece_bytes, max(_LEAST_BYTES, -(-total // _tasks(total, slots))))
    pieces = []
    for file in files:
        kind = LogKind.of(file.path)
        whole = kind is None or kind.gzipped or (whole_lines and not kind.parquet)
        parts = 1 if whole else max(1, -(-file.length // most))
        edges = [file.length * i // parts for i in range(parts + 1)]
        pieces += [Piece(file.path, start, stop, file.length) for start, stop in pairwise(edges)]
    return pieces


def bundles(pieces: Sequence[Piece], slots: int, piece_bytes: int = PIECE_BYTES) -> list[int]:
    """The number of the task that gets each piece: neighbours together, up to about a piece's bytes."""
    weights = [piece.stop - piece.start + _OPENING_BYTES for piece in pieces]
    fair = -(-sum(weights) // _tasks(sum(weights), slots))
    most = max(1, min(fair, max(piece_bytes, _LEAST_BYTES)))
    middles = [end - weight // 2 for end, weight in zip(accumulate(weights), weights, strict=True)]
    numbers = {slot: i for i, slot in enumerate(sorted({middle // most for middle in middles}))}
    return [numbers[middle // most] for middle in middles]


def _tasks(total: int, slots: int) -> int:
    """How many tasks to hand so many bytes out to."""
    return slots if total <= slots * _ONE_ROUND_BYTES else slots * _TASKS_PER_SLOT


def _spread(spark: SparkSession, pieces: Sequence[Piece], tasks: Sequence[int]) -> DataFrame:
    """The pieces in partitions of their own: a range has exactly as many as one asks for, without a
    shuffle, and each finds its pieces in a constant. (Connect knows no `parallelize`; a table joined to the
    range would be a job more.)"""
    from pyspark.sql import functions as sf

    shares: list[list[dict[str, Any]]] = [[] for _ in range(max(tasks) + 1)]
    for piece, task in zip(pieces, tasks, strict=True):
        shares[task].append({name: getattr(piece, name) for name in ("path", "start", "stop", "length")})
    texts = sf.lit([json.dumps(share) for share in shares])
    share = sf.element_at(texts, (sf.col("id") + 1).cast("int"))
    form = "array<struct<path string, start long, stop long, length long>>"
    return spark.range(0, len(shares), 1, len(shares)).select(sf.inline(sf.from_json(share, form)))


def _contents(spark: SparkSession, files: Files) -> DataFrame:
    """One row a file, with all its bytes; without them where there are none or too many."""
    from pyspark.sql import functions as sf

    limit = int(str(spark.conf.get("spark.sql.sources.binaryFile.maxLength")))
    table = pa.table(
        {
            "path": pa.array([file.path for file in files.files], pa.string()),
            "start": pa.array([0] * len(files.files), pa.int64()),
            "stop": pa.array([file.length for file in files.files], pa.int64()),
        }
    )
    known = spark.createDataFrame(table)
    # The filter on the length reaches the reader, which otherwise fails for a file that is too large.
    content = _binary_files(spark, files.given).where(sf.col("length") <= limit)
    read = content.join(sf.broadcast(known), "path").select("path", "start", "stop", "length", "content")
    rest = known.where((sf.col("stop") == 0) | (sf.col("stop") > limit))
    nothing = sf.lit(None).cast("binary").alias("content")
    return read.unionByName(rest.select("path", "start", "stop", sf.col("stop").alias("length"), nothing))


def _piece_rows(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Pieces as the rows that a task gets."""
    names = ("path", "start", "stop", "length")
    return pa.RecordBatch.from_pydict({name: [getattr(p, name) for p in pieces] for name in names})


def _pieces(rows: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in rows:
        plain = [batch.column(name).to_pylist() for name in ("path", "start", "stop", "length")]
        contents = batch.column("content") if "content" in batch.schema.names else None
        for i, (path, start, stop, length) in enumerate(zip(*plain, strict=True)):
            yield Piece(path, start, stop, length, None if contents is None else contents[i].as_buffer())


# --- the schema of many files ------------------------------------------------------------------------


def _inferred(spark: Engine, files: Files) -> Files:
    """The files with the schema that the first records of some of them have."""
    usable = [file for file in files.files if LogKind.of(file.path) is not None]
    most = min(len(usable), _HEADS_THROUGH_SPARK if files.through_spark else _HEADS)
    chosen = tuple(usable[len(usable) * i // most] for i in range(most))
    if not chosen:
        return files
    reader = files._reader()

    head_rows = max(_HEAD_ROWS, _HEADS * _HEAD_ROWS // len(chosen))

    def look(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in _pieces(rows):
            found = reader.head(piece, head_rows)
            if found is not None:
                yield _schema_row(piece, found)

    if isinstance(spark, InProcess) or (files.tiny and runs_here(spark)):
        heads = [Piece(file.path, 0, file.length, file.length) for file in chosen]
        return _with_schemas(files, look(iter([_piece_rows(heads)])))
    frame = _heads(spark, replace(files, files=chosen, given=tuple(_escaped(f.path) for f in chosen)))
    return _with_schemas(files, _collected(frame.mapInArrow(look, _SCHEMA_ROWS)))


_SCHEMA_ROWS = "path string, start long, schema string, beside array<string>"


def _schema_row(piece: Piece, found: Attributes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([piece.path], pa.string()),
            pa.array([piece.start], pa.int64()),
            pa.array([found.schema.to_json()], pa.string()),
            pa.array([sorted(found.beside)], pa.list_(pa.string())),
        ],
        names=["path", "start", "schema", "beside"],
    )


def _collected(looked: DataFrame) -> Iterator[pa.RecordBatch]:
    return iter(looked.toArrow().to_batches())


def _with_schemas(files: Files, looked: Iterator[pa.RecordBatch]) -> Files:
    """The files with the schema that parts of them agree on."""
    rows = [row for batch in looked for row in batch.to_pylist()]
    found = sorted((row["path"], row["start"], row["schema"]) for row in rows)
    schema, conflicts = _agreed((path, EventSchema.from_json(text)) for path, _, text in found)
    beside = frozenset(path for row in rows for path in row["beside"])
    return replace(files, schema=schema, conflicts=conflicts, beside=beside)


def _heads(spark: SparkSession, files: Files) -> DataFrame:
    if files.through_spark:
        return _contents(spark, files)
    pieces = [Piece(file.path, 0, file.length, file.length) for file in files.files]
    tasks = min(len(pieces), _tasks(sum(file.length for file in files.files), task_slots(spark)))
    return _spread(spark, pieces, [i * tasks // len(pieces) for i in range(len(pieces))])


def _agreed(heads: Iterable[tuple[str, EventSchema]]) -> tuple[EventSchema, tuple[Conflict, ...]]:
    """The type that most files have decides, the first among equals; integers widen to doubles.

    Integers and doubles count together.
    """
    seen: dict[str, list[tuple[AttributeType, str]]] = {}
    for path, schema in heads:
        for name, kind in schema.attributes.items():
            seen.setdefault(name, []).append((kind, shown(path)))
    types: dict[str, AttributeType] = {}
    conflicts: dict[tuple[str, AttributeType], Conflict] = {}
    for name, found in seen.items():
        families = Counter(_WIDEST.get(kind, kind) for kind, _ in found)
        family = families.most_common(1)[0][0]  # the first seen among equals
        mine = {kind for kind, _ in found if _WIDEST.get(kind, kind) is family}
        types[name] = family if len(mine) > 1 else mine.pop()
        for kind, file in found:
            if _WIDEST.get(kind, kind) is not family:
                conflicts.setdefault((name, kind), Conflict(name, types[name], kind, file))
    ordered = sorted(conflicts.values(), key=lambda c: (c.attribute, c.other))
    return EventSchema(types), tuple(ordered)


_WIDEST = {AttributeType.INT64: AttributeType.DOUBLE}


def _escaped(path: str) -> str:
    return "".join(f"\\{mark}" if mark in "\\*?[]{}" else mark for mark in path)
