"""Events x subscriptions on Spark: a compiled matcher that reaches every task, in parts if it must.

Owns shards: files of compiled filters, each small enough for a task's memory, and the joining of what they
find. Matching itself is `ramify.content.matching.matcher`; sending is `shipping`.

    shards = ship_matcher(spark, filters)        on the driver; ids are positions in `filters`
    shards.match_all(batches)                    in a task: pairs of (batch, Matches)
    match(events, shards)                        as a transform: a frame with a column `matches`

Filters are read as a stream and compiled some thousands at a time, so that neither all the filters nor more
than one shard's index is held. A task has one shard open at a time. With one shard, batches stream through
it, and it stays open for the next task of the same Python process. With several, a task holds a bounded
number of rows and takes them through one shard after the other.

Guarantee: any division into shards finds what one matcher finds, ids ascending. Cost per row: the
matcher's, once per shard; so shards should be as large as memory allows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ramify.content.events.events import NULLS, OTHERS, SIZE_BYTES
from ramify.content.filters.filters import Filter
from ramify.content.matching.matcher import FrozenMatcher, Matcher, Matches
from ramify.content.matching.matcher_files import open_matcher, write_matcher
from ramify.errors import LimitError, SchemaError
from ramify.pipeline.passes.sources import numbered
from ramify.pipeline.session.shipping import ship, shipped, waiting_room

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "HELD_BYTES",
    "HELD_ROWS",
    "MATCHES",
    "SHARD_BYTES",
    "Shards",
    "compile_shards",
    "join_matches",
    "map_batches",
    "match",
    "ship_matcher",
]

SHARD_BYTES = 256 * 2**20
"""The largest index that a task opens, unless told otherwise."""

HELD_ROWS = 200_000
HELD_BYTES = 64 * 2**20
"""What a task holds while it goes from shard to shard: so many rows, and so many bytes of Arrow."""

MATCHES = "matches"
"""The column that `match` adds."""

# Filters compiled at a time: few enough to hold as Python values, enough to be filed well.
_FIRST_LOT, _LARGEST_LOT = 1024, 16_384
_MOST_IDS = 2**31 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shards:
    """Compiled filters as files. Small and picklable: it travels inside closures.

    Attributes
    ----------
    names      what `shipped` finds each file by
    firsts     the id of the first filter of each
    total      how many filters there are
    paths      the attributes that any filter looks at, sorted: no other column is needed to match
    """

    names: tuple[str, ...]
    firsts: tuple[int, ...]
    total: int
    paths: tuple[str, ...]

    def match_all(
        self, batches: Iterable[pa.RecordBatch], threads: int = 1
    ) -> Iterator[tuple[pa.RecordBatch, Matches]]:
        """Match every batch, in order; ids are positions among the filters that were compiled."""
        return self.match_each(batches, lambda batch: batch, threads)

    def match_each(
        self, items: Iterable[T], batch_of: Callable[[T], pa.RecordBatch], threads: int = 1
    ) -> Iterator[tuple[T, Matches]]:
        """As `match_all`, for things that have a batch: each comes back beside its matches."""
        if len(self.names) == 1:
            matcher = _opened(self.names[0])
            for item in items:
                yield item, matcher.match(batch_of(item), threads)
            return
        for held in _lots(items, batch_of):
            batches = [batch_of(item) for item in held]
            yield from zip(held, self._through_all(batches, threads), strict=True)

    def _through_all(self, batches: Sequence[pa.RecordBatch], threads: int) -> Iterator[Matches]:
        """Take some batches through one shard after the other."""
        found: list[list[Matches]] = [[] for _ in batches]
        for name in self.names:
            matcher = _opened(name)
            for own, batch in zip(found, batches, strict=True):
                own.append(matcher.match(batch, threads))
            del matcher  # or the next would be opened beside it
        for own, batch in zip(found, batches, strict=True):
            yield join_matches(own, self.firsts, batch.num_rows)
            own.clear()


def ship_matcher(
    spark: SparkSession, filters: Iterable[Filter], *, shard_bytes: int = SHARD_BYTES
) -> Shards:
    """Compile filters and send them to wherever tasks run. See `compile_shards`."""
    with tempfile.TemporaryDirectory(dir=waiting_room(spark)) as directory:
        return compile_shards(
            filters, Path(directory), shard_bytes=shard_bytes, place=lambda path: ship(spark, path)
        )


def compile_shards(
    filters: Iterable[Filter],
    directory: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    place: Callable[[Path], str] = lambda path: str(path.absolute()),
) -> Shards:
    """Compile filters to files in a directory, none with an index of more than `shard_bytes`.

    `place` is called with every file as soon as it is complete, and says by what name tasks will find it.
    Holds at most one shard's index and some thousands of filters.

    Raises
    ------
    LimitError
        When a single filter needs more than `shard_bytes`.
    """
    names: list[str] = []
    firsts: list[int] = []
    paths: set[str] = set()
    total = 0
    for matcher, count in _shards(filters, shard_bytes):
        path = directory / f"filters-{len(names)}.matcher"
        write_matcher(matcher, path)
        names.append(place(path))
        firsts.append(total)
        paths.update(matcher.paths)
        total += count
        if total > _MOST_IDS:
            raise LimitError(f"there are more than {_MOST_IDS} filters: match them in several runs")
    return Shards(tuple(names), tuple(firsts), total, tuple(sorted(paths)))


def match(
    events: DataFrame, shards: Shards, keep: Sequence[str] = ("id", "publisher", "time", SIZE_BYTES)
) -> DataFrame:
    """The columns `keep` of every event, and `matches`: the ids of the filters it matches, ascending.

    Rows that match nothing stay, with an empty array. Only `keep` and what filters look at is read.

    Raises
    ------
    SchemaError
        When the frame has no such column to keep, or it is called `matches`.
    """
    missing = [name for name in keep if name not in events.columns]
    if missing or MATCHES in keep:
        raise SchemaError(
            f"the events have no column {', '.join(missing)} to keep"
            if missing
            else f"a column {MATCHES!r} cannot be kept: rename it"
        )
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    fields = [events.schema[name] for name in keep]
    found = StructField(MATCHES, ArrayType(IntegerType(), containsNull=False), nullable=False)
    read = {*keep, *shards.paths, NULLS, OTHERS}
    return map_batches(
        events,
        partial(_matched, shards, tuple(keep)),
        StructType([*fields, found]),
        [name for name in events.columns if name in read],
    )


def map_batches(
    frame: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """`mapInArrow` over some columns of a frame (all, unless named), whatever they are called.

    They travel under numbers (`numbered` says why), and have their own names in `function`.
    """
    there = {name: k for k, name in enumerate(frame.columns)}
    names = list(frame.columns) if columns is None else list(columns)
    return (
        numbered(frame)
        .select(*(f"c{there[name]}" for name in names))
        .mapInArrow(partial(_named, names, function), schema)
    )


def join_matches(parts: Sequence[Matches], firsts: Sequence[int], rows: int) -> Matches:
    """What several matchers found in the same rows, as one; `firsts` are added to their ids.

    Ids come out ascending when the parts' ranges of ids are. Cost: a few passes of numpy over the ids.
    """
    counts = np.zeros(rows, np.int64)
    for part in parts:
        counts += np.diff(part.ends)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    ids = np.empty(int(ends[-1]), np.int32)
    begin = ends[:-1].copy()
    for part, first in zip(parts, firsts, strict=True):
        lengths = np.diff(part.ends)
        places = np.repeat(begin - part.ends[:-1], lengths) + np.arange(len(part.ids))
        ids[places] = part.ids + np.int32(first)
        begin += lengths
    return Matches(ends, ids)


# the shard that this process has open, and those whose checksums it has compared: names hold digests
_OPEN: dict[str, FrozenMatcher] = {}
_VERIFIED: set[str] = set()


def _opened(name: str) -> FrozenMatcher:
    """The shard of that name, opened if it is not; another one is closed first."""
    found = _OPEN.get(name)
    if found is None:
        path = shipped(name)
        _OPEN.clear()
        found = open_matcher(path, verify=name not in _VERIFIED)
        if not Path(name).is_absolute():
            _VERIFIED.add(name)
            _OPEN[name] = found
    return found


def _lots(items: Iterable[T], batch_of: Callable[[T], pa.RecordBatch]) -> Iterator[list[T]]:
    """Consecutive items, as many as may be held at a time; at least one."""
    held: list[T] = []
    rows = size = 0
    for item in items:
        batch = batch_of(item)
        if held and (rows + batch.num_rows > HELD_ROWS or size + batch.nbytes > HELD_BYTES):
            yield held
            held, rows, size = [], 0, 0
        held.append(item)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield held


def _shards(filters: Iterable[Filter], shard_bytes: int) -> Iterator[tuple[FrozenMatcher, int]]:
    """Compile a stream of filters: matchers within the limit, each with how many filters it holds."""
    waiting = iter(filters)
    matcher, lot = Matcher(), _FIRST_LOT
    while some := list(islice(waiting, lot)):
        if matcher.extend_within(some, shard_bytes):
            # an eighth of a shard, so that not more of one is compiled twice
            lot = max(1, min(_LARGEST_LOT, shard_bytes * len(matcher) // matcher.frozen().nbytes // 8))
            continue
        waiting = chain(some, waiting)
        if len(matcher):
            yield matcher.frozen(), len(matcher)
            matcher = Matcher()
        elif len(some) > 1:
            lot = len(some) // 2
        else:
            raise LimitError(
                f"one filter alone needs more than the {shard_bytes:,} bytes of index that a shard may "
                "have: allow larger shards, or write the filter as several"
            )
    if len(matcher):
        yield matcher.frozen(), len(matcher)


def _named(
    names: list[str],
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: give the columns their own names again."""
    return function(batch.rename_columns(names) for batch in batches)


def _matched(
    shards: Shards, keep: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: the kept columns and the ids, as Arrow has them."""
    for batch, found in shards.match_all(batches):
        if len(found.ids) > _MOST_IDS:
            raise LimitError(
                f"{len(found):,} rows have {len(found.ids):,} matches, too many for one Arrow batch: lower "
                "spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        kept: list[Any] = [batch.column(name) for name in keep]
        ends: Any = pa.array(found.ends.astype(np.int32))
        ids = pa.ListArray.from_arrays(ends, pa.array(found.ids, pa.int32()))
        yield pa.RecordBatch.from_arrays([*kept, ids], names=[*keep, MATCHES])
