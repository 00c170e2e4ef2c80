"""Which classes match the same events: overlap and Jaccard of pairs, from a demand table.

Problem    For classes i < j: the events that both match, and Jaccard = both / (i + j - both); SemCast's
           overlap matrix (Papaemmanouil and Cetintemel, section 3.2.1: O_ij = both / i) follows from it.
Idea       Exact: the upper triangle of pairs is cut into blocks of rows. Each task owns one block, gets
           every pattern that has a class in it, and adds the pattern's count to a dense table; no table
           is ever moved or summed across tasks, and only pairs that are alike enough leave the task.
           Sketched: each pattern runs a number of exponential races at the rate of its count; a class
           keeps its winners, and two classes share a winner with a probability equal to their Jaccard
           (Cohen 1997; the weighted form of MinHash, Broder 1997). Classes that agree in a whole band of
           races are candidates (Indyk and Motwani 1998), and so is every pair with a rare class. The
           candidates are then counted exactly in a second pass.
Guarantee  Every reported number is exact, whatever the partitions. Exact mode reports every pair asked
           for. Sketched mode finds a pair whose Jaccard is `least` with about the probability that
           `Sketch.recall` aims at, likelier ones more often, and pairs with a rare class for certain; the
           recall is measured on a sample of classes and reported.
Cost       Exact: O(sum of squared pattern lengths) additions; 2 n^2 bytes of tables in all for n classes
           (twice that from 2^31 events on), at most about 128 MB (256 MB) of it in a task, and 100 MB of
           patterns. Sketched: 4 bytes per race and class in a task, and the same squares to count the
           candidates.
Departures One-permutation hashing would leave bins empty for classes with few events, and a pattern counts
           more than once; separate races have neither problem and vectorise.

The demand is read once (exact) or five times (sketched): have it on disk or cached for the latter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ramify.compiled import Ints, SmallInts
from ramify.errors import InputError
from ramify.pipeline.passes.passes import unpacked
from ramify.pipeline.passes.table_files import OVERLAP, spark_schema, table_schema
from ramify.pipeline.session.session import task_slots
from ramify.pipeline.tables.overlap_kernels import (
    add_pairs,
    add_pairs_among,
    add_rows,
    add_weights,
    band_keys,
    count_kept,
    fill_kept,
    lower_signatures,
    pairs_of_sets,
    suffixes,
)
from ramify.pipeline.tables.selectivity import checked_rows, class_sums, compressed_rows

__all__ = ["EXACT_CLASSES", "OverlapPairs", "Sketch", "overlap"]

EXACT_CLASSES = 20_000
"""Up to how many classes overlap is exact unless asked otherwise."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """How pairs are looked for above `EXACT_CLASSES`.

    Attributes
    ----------
    races           numbers kept per class; more find more
    recall          the probability with which a pair is to be found whose Jaccard is the least asked for
    rare_patterns   a class in at most so many rows of the demand is compared with all that share a row
    sample          how many classes at most the recall is measured on
    seed            of the races and of the sample
    """

    races: int = 128
    recall: float = 0.95
    rare_patterns: int = 16
    sample: int = 256
    seed: int = 0

    def band_races(self, least: float) -> int:
        """How many races make a band: as many as keep the recall at `least`, and at least 1."""
        missed = [(1 - least**r) ** (self.races // r) for r in range(1, self.races + 1)]
        return max((r for r, miss in enumerate(missed, 1) if 1 - miss >= self.recall), default=1)


@dataclass(frozen=True, slots=True)
class OverlapPairs:
    """The pairs that are alike enough, and how sure it is that none is missing.

    Attributes
    ----------
    pairs      a frame in the columns of `OVERLAP`; cached when sketched (`pairs.unpersist()` frees it)
    exact      whether every pair was counted
    recall     the share of the sampled classes' pairs that were found; 1 when exact; None when the sampled
               classes have no pair
    measured   how many pairs that share is of; 0 when exact
    """

    pairs: DataFrame
    exact: bool
    recall: float | None
    measured: int


def overlap(
    demand: DataFrame,
    classes_count: int,
    *,
    least: float = 0.1,
    contained: float | None = None,
    with_bytes: bool = False,
    exact: bool | None = None,
    sketch: Sketch | None = None,
) -> OverlapPairs:
    """The pairs of classes with a common event and a Jaccard of at least `least`.

    With `contained`, also the pairs where one class shares at least that part of its own events: 1
    keeps all that were covered, however small. Only exact mode can find those. `exact` overrides the
    choice by the number of classes. In exact mode `demand` may also be `Reckoned.packed`, which is faster.

    Raises
    ------
    InputError
        For a `least` outside [0, 1], or when it is 0 or `contained` is given in sketched mode.
    """
    if not 0 <= least <= 1:
        raise InputError(f"the least Jaccard must lie between 0 and 1; it is {least}")
    asked = _PairQuery(classes_count, least, 2.0 if contained is None else contained, with_bytes)
    if classes_count <= EXACT_CLASSES if exact is None else exact:
        return OverlapPairs(_exact_pairs(demand, asked), True, 1.0, 0)
    if least == 0 or contained is not None:
        raise InputError(
            f"overlap of {classes_count} classes is sketched, which finds similar pairs only: give a least "
            "Jaccard above 0 and no containment, or ask for exact"
        )
    sketch, sums = sketch or Sketch(), _Sums.of(demand, classes_count)
    pairs = _sketched_pairs(demand, asked, sketch, sums).persist()
    recall, measured = _measured_recall(demand, pairs, asked, sketch, sums.events)
    return OverlapPairs(pairs, False, recall, measured)


@dataclass(frozen=True, slots=True)
class _PairQuery:
    """How many classes there are and which pairs to keep. Goes to tasks with their code."""

    classes: int
    least: float
    contained: float
    with_bytes: bool


# --- what is sent to the task of a block: packed arrays, since rows of lists are slow in Java

_PACKED = table_schema(
    {
        "block": pa.int32(),
        "stage": pa.int32(),
        "start": pa.binary(),
        "member": pa.binary(),
        "count": pa.binary(),
        "bytes": pa.binary(),
    }
)
_EVENTS, _CANDIDATES, _PATTERNS = 0, 1, 2  # what a row holds, in the order in which tasks want it
_BLOCK_BYTES = 1 << 27
_SEGMENT = 1 << 22


def _cuts(classes: int, blocks: int) -> Ints:
    """Where blocks of rows begin, and the end: about equally many pairs each, none empty."""
    before = np.cumsum(np.arange(classes, 0, -1))
    wanted = np.linspace(0, before[-1] if classes else 0, blocks + 1)[1:-1]
    return np.unique(np.concatenate(([0], np.searchsorted(before, wanted), [classes]))).astype(np.int64)


def _packed(demand: DataFrame, classes: int, cuts: Ints) -> DataFrame:
    """Each pattern once for every block that needs it, from its first class there on.

    And for every block, from every task, the events of each class that the task met.
    """

    tasks_own = demand.columns == ["raw"]

    def pack(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums = np.zeros((3, classes + 1), np.int64)
        for start, member, count, size in _weighed(rows, classes, tasks_own):
            add_weights(start, member, count, size, np.arange(len(count)), sums)
            yield _packed_batch(_suffixes(start, member, count, size, cuts))
        events = sums[0, :-1].tobytes()
        yield _packed_batch([(k, _EVENTS, b"", b"", events, b"") for k in range(len(cuts) - 1)])

    columns = ["raw"] if tasks_own else ["classes", "count", "bytes"]
    return demand.select(*columns).mapInArrow(pack, spark_schema(_PACKED))


def _weighed(
    rows: Iterator[pa.RecordBatch], classes: int, tasks_own: bool
) -> Iterator[tuple[Ints, SmallInts, Ints, Ints]]:
    """Patterns as compressed rows with their counts and bytes."""
    if tasks_own:
        for own in unpacked(rows):
            yield *checked_rows(own.start, own.classes, classes), own.count, own.size
        return
    for batch in rows:
        count, size = np.asarray(batch.column("count")), np.asarray(batch.column("bytes"))
        yield *compressed_rows(batch.column("classes"), classes), count, size


def _suffixes(start: Ints, member: SmallInts, count: Ints, size: Ints, cuts: Ints) -> list[tuple[Any, ...]]:
    """What each block needs of some patterns."""
    parts: list[tuple[Any, ...]] = []
    row, begin, kept = np.empty(len(start), np.int64), start.copy(), np.empty_like(member)
    for block, (low, high) in enumerate(pairwise(cuts.tolist())):
        rows, filled = suffixes(start, member, low, high, row, begin, kept)
        if rows:
            chosen = row[:rows]
            arrays: list[Any] = [begin[: rows + 1], kept[:filled], count[chosen], size[chosen]]
            parts.append((block, _PATTERNS, *(array.tobytes() for array in arrays)))
    return parts


def _packed_batch(parts: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*parts, strict=True) if parts else ((),) * len(_PACKED)
    arrays = [pa.array(values, f.type) for values, f in zip(columns, _PACKED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_PACKED)


def _parts(rows: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, "_Patterns"]]:
    """In the task of a block: what was packed for it, as (block, stage, arrays)."""
    for batch in rows:
        block, stage, *columns = (batch.column(k) for k in range(len(_PACKED)))
        for k in range(batch.num_rows):
            start, member, count, size = (memoryview(column[k].as_buffer()) for column in columns)
            arrays = _Patterns(
                np.frombuffer(start, np.int64),
                np.frombuffer(member, np.int32),
                np.frombuffer(count, np.int64),
                np.frombuffer(size, np.int64),
            )
            yield block[k].as_py(), stage[k].as_py(), arrays


class _Patterns(NamedTuple):
    """Weighted patterns as compressed rows. (Keys of candidates and sums of events come in `weight`.)"""

    start: Ints
    member: SmallInts
    weight: Ints
    size: Ints

    @classmethod
    def joined(cls, parts: Sequence["_Patterns"]) -> "_Patterns":
        """Many as one."""
        shift = np.cumsum([0, *(len(part.member) for part in parts)])
        starts = [part.start[1:] + begin for part, begin in zip(parts, shift[:-1], strict=True)]
        return cls(
            np.concatenate([np.zeros(1, np.int64), *starts]),
            np.concatenate([part.member for part in parts]),
            np.concatenate([part.weight for part in parts]),
            np.concatenate([part.size for part in parts]),
        )


# --- exact


def _exact_pairs(demand: DataFrame, asked: _PairQuery) -> DataFrame:
    table_bytes = asked.classes * (asked.classes - 1) // 2 * (4 + 8 * asked.with_bytes)
    slots = task_slots(demand.sparkSession)
    cuts = _cuts(asked.classes, max(slots, -(-table_bytes // _BLOCK_BYTES)))

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _counted_block(rows, asked, cuts)

    packed = _packed(demand, asked.classes, cuts)
    apart = packed.repartitionById(max(len(cuts) - 1, 1), "block")
    return apart.mapInArrow(count, spark_schema(OVERLAP))


def _counted_block(
    rows: Iterator[pa.RecordBatch], asked: _PairQuery, cuts: Ints
) -> Iterator[pa.RecordBatch]:
    """In the task of a block: its pairs that are to be kept."""
    events = np.zeros(asked.classes, np.int64)
    table: _Table | None = None
    for block, stage, arrays in _parts(rows):
        if stage == _EVENTS:
            events += arrays.weight
            continue
        if table is None:
            table = _Table(int(cuts[block]), int(cuts[block + 1]), asked)
        table.add(arrays)
    if table is not None:
        yield from table.kept(events)


class _Table:
    """The pairs of a block, all of them: 4 bytes each, 8 from 2^31 events on, 8 more with bytes."""

    def __init__(self, low: int, high: int, asked: _PairQuery) -> None:
        self._low, self._high, self._asked = low, high, asked
        cells = int(np.arange(asked.classes - high, asked.classes - low).sum())
        self._shared: Any = np.zeros(cells, np.int32)
        self._sizes = np.zeros(cells if asked.with_bytes else 0, np.int64)
        self._seen = 0
        self._waiting: list[_Patterns] = []

    def add(self, patterns: _Patterns) -> None:
        """Count some patterns, now or when there are enough of them."""
        self._waiting.append(patterns)
        if sum(len(part.member) for part in self._waiting) > _SEGMENT:
            self._count()

    def _count(self) -> None:
        start, member, weight, size = _Patterns.joined(self._waiting)
        self._waiting = []
        self._seen += int(weight.sum())
        if self._seen >= 2**31 and self._shared.dtype == np.int32:
            self._shared = self._shared.astype(np.int64)  # no pair shares more events than were seen
        add_pairs(start, member, weight, self._low, self._high, self._asked.classes, self._shared)
        if len(self._sizes):
            add_pairs(start, member, size, self._low, self._high, self._asked.classes, self._sizes)

    def kept(self, events: Ints) -> Iterator[pa.RecordBatch]:
        """The pairs that are to be kept, some rows of the block at a time."""
        if self._waiting:
            self._count()
        step = max(1, _SEGMENT // self._asked.classes)
        for first in range(self._low, self._high, step):
            yield self._kept_rows(first, min(first + step, self._high), events)

    def _kept_rows(self, first: int, last: int, events: Ints) -> pa.RecordBatch:
        ask = (float(self._asked.least), float(self._asked.contained))
        found = count_kept(self._shared, self._low, first, last, events, *ask)
        one, other = np.empty(found, np.int32), np.empty(found, np.int32)
        shared, cell = np.empty(found, np.int64), np.empty(found, np.int64)
        fill_kept(self._shared, self._low, first, last, events, *ask, one, other, shared, cell)
        size = self._sizes[cell] if len(self._sizes) else None
        return _pair_batch(one, other, shared, size, events)


def _pair_batch(
    one: SmallInts, other: SmallInts, shared: Ints, size: Ints | None, events: Ints
) -> pa.RecordBatch:
    alike = shared / (events[one] + events[other] - shared)
    sizes = pa.nulls(len(one), pa.int64()) if size is None else pa.array(size)
    columns: list[Any] = [pa.array(one), pa.array(other), pa.array(shared), sizes, pa.array(alike)]
    return pa.RecordBatch.from_arrays(columns, schema=OVERLAP)


# --- sketched: signatures -> buckets -> candidates -> counted

_SIGNED = table_schema({"chunk": pa.int32(), "signature": pa.binary()})
_BUCKETS = table_schema({"part": pa.int32(), "bucket": pa.binary(), "class": pa.binary()})
_CHUNK = 1024  # classes whose signatures travel together
_MOST_KEYS = 1 << 22


@dataclass(frozen=True, slots=True)
class _Sums:
    """Per class its events, and how many patterns they are in."""

    events: Ints
    patterns: Ints

    @classmethod
    def of(cls, demand: DataFrame, classes_count: int) -> "_Sums":
        sums = class_sums(demand, classes_count).filter(sf.col("class") >= 0)
        table = sums.select("class", "events", "patterns").toArrow()
        made = cls(np.zeros(classes_count, np.int64), np.zeros(classes_count, np.int64))
        at = np.asarray(table.column("class"))
        made.events[at] = np.asarray(table.column("events"))
        made.patterns[at] = np.asarray(table.column("patterns"))
        return made


def _sketched_pairs(demand: DataFrame, asked: _PairQuery, sketch: Sketch, sums: _Sums) -> DataFrame:
    slots = task_slots(demand.sparkSession)
    cuts = _cuts(asked.classes, slots)
    rare = (sums.patterns > 0) & (sums.patterns <= sketch.rare_patterns)

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _counted_candidates(rows, asked, cuts)

    def with_rare(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sets = (compressed_rows(batch.column("classes"), asked.classes) for batch in rows)
        return _candidates(sets, asked, sums.events, rare, cuts)

    def in_buckets(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _candidates([_buckets(rows)], asked, sums.events, np.ones_like(rare), cuts)

    packed = spark_schema(_PACKED)
    alike = _bucketed(_signed(demand, asked, sketch), sketch.band_races(asked.least), sketch.races, slots)
    sent = (
        _packed(demand, asked.classes, cuts)
        .union(demand.select("classes").mapInArrow(with_rare, packed))
        .union(alike.mapInArrow(in_buckets, packed))
    )
    apart = sent.repartitionById(max(len(cuts) - 1, 1), "block").sortWithinPartitions("stage")
    return apart.mapInArrow(count, spark_schema(OVERLAP))


def _signed(demand: DataFrame, asked: _PairQuery, sketch: Sketch) -> DataFrame:
    """Per task the signatures of the classes it met, `_CHUNK` classes a row."""
    classes = asked.classes
    rng = np.random.default_rng(sketch.seed)
    seeds = rng.integers(0, 2**64, sketch.races, dtype=np.uint64)
    known = ("split", "pane", "publisher", "client", "cell", "tags", "classes")
    key = sf.xxhash64(*(sf.col(name) for name in known if name in demand.columns))

    def sign(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        signature = np.full((classes, sketch.races), np.inf, np.float32)
        for batch in rows:
            start, member = compressed_rows(batch.column("classes"), classes)
            keys = np.asarray(batch.column("key")).view(np.uint64)
            lower_signatures(start, member, np.asarray(batch.column("count")), keys, seeds, signature)
        for chunk in range(0, classes, _CHUNK):
            part = signature[chunk : chunk + _CHUNK]
            if np.isfinite(part[:, 0]).any():
                yield pa.record_batch(
                    [pa.array([chunk], pa.int32()), pa.array([part.tobytes()], pa.binary())], schema=_SIGNED
                )

    return demand.select(key.alias("key"), "classes", "count").mapInArrow(sign, spark_schema(_SIGNED))


def _bucketed(signed: DataFrame, band_races: int, races: int, parts: int) -> DataFrame:
    """The (bucket, class) of every class and band, packed; equal buckets in the same partition."""

    def bucket(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk, signature in _merged(rows, races):
            met = np.flatnonzero(np.isfinite(signature[:, 0]))
            bands = races // band_races
            keys = np.empty(len(met) * bands, np.uint64)
            band_keys(np.ascontiguousarray(signature[met]).view(np.uint32), band_races, keys)
            owner = np.repeat((chunk + met).astype(np.int32), bands)
            part = keys % np.uint64(parts)
            chosen = [np.flatnonzero(part == k) for k in range(parts)]
            columns: list[Any] = [
                pa.array(range(parts), pa.int32()),
                pa.array([keys[at].tobytes() for at in chosen], pa.binary()),
                pa.array([owner[at].tobytes() for at in chosen], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_BUCKETS)

    place = sf.pmod(sf.col("chunk") / sf.lit(_CHUNK), sf.lit(parts)).cast("int")
    together = signed.repartitionById(parts, place).sortWithinPartitions("chunk")
    return together.mapInArrow(bucket, spark_schema(_BUCKETS)).repartitionById(parts, "part")


def _merged(rows: Iterator[pa.RecordBatch], races: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """The chunks of a task, in order, each with the least of its signatures."""
    at, least = -1, np.empty((0, races), np.float32)
    for batch in rows:
        chunks, signatures = batch.columns
        for k in range(batch.num_rows):
            found = np.frombuffer(memoryview(signatures[k].as_buffer()), np.float32).reshape(-1, races)
            chunk = chunks[k].as_py()
            if chunk == at:
                least = np.minimum(least, found)
                continue
            if at >= 0:
                yield at, least
            at, least = chunk, found
    if at >= 0:
        yield at, least


def _buckets(rows: Iterator[pa.RecordBatch]) -> tuple[Ints, SmallInts]:
    """The classes of each bucket, as compressed rows."""
    keys, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for batch in rows:
        for k in range(batch.num_rows):
            keys.append(np.frombuffer(memoryview(batch.column(1)[k].as_buffer()), np.uint64))
            owners.append(np.frombuffer(memoryview(batch.column(2)[k].as_buffer()), np.int32))
    key, owner = np.concatenate(keys), np.concatenate(owners)
    order = np.argsort(key, kind="stable")
    key = key[order]
    begins = np.flatnonzero(np.append(key[:1] == key[:1], key[1:] != key[:-1]))
    return np.append(begins, len(key)).astype(np.int64), owner[order]


def _candidates(
    sets: Iterable[tuple[Ints, SmallInts]],
    asked: _PairQuery,
    events: Ints,
    rare: npt.NDArray[np.bool_],
    cuts: Ints,
) -> Iterator[pa.RecordBatch]:
    """The pairs within some sets, packed for their blocks; a pair may come more than once."""
    waiting: list[Ints] = []
    for start, member in sets:
        length = np.diff(start)
        before = np.concatenate(([0], np.cumsum(length * (length - 1) // 2)))
        at = 0
        while at < len(length):
            end = max(at + 1, int(np.searchsorted(before, before[at] + _MOST_KEYS, side="right")) - 1)
            out = np.empty(int(before[end] - before[at]), np.int64)
            args = (start[at : end + 1], member, events, rare, float(asked.least), out)
            waiting.append(np.unique(out[: pairs_of_sets(*args)]))
            at = end
            if sum(map(len, waiting)) > _MOST_KEYS:
                yield _packed_keys(waiting, asked.classes, cuts)
                waiting = []
    if waiting:
        yield _packed_keys(waiting, asked.classes, cuts)


def _packed_keys(waiting: Sequence[Ints], classes: int, cuts: Ints) -> pa.RecordBatch:
    keys = np.unique(np.concatenate(waiting))
    at = np.searchsorted(keys, cuts * classes)
    found = [(block, keys[at[block] : at[block + 1]]) for block in range(len(cuts) - 1)]
    return _packed_batch(
        [(k, _CANDIDATES, b"", b"", mine.tobytes(), b"") for k, mine in found if len(mine)]
    )


def _counted_candidates(
    rows: Iterator[pa.RecordBatch], asked: _PairQuery, cuts: Ints
) -> Iterator[pa.RecordBatch]:
    """In the task of a block: the candidates, which come before the patterns, counted on them."""
    events = np.zeros(asked.classes, np.int64)
    waiting: list[Ints] = [np.empty(0, np.int64)]
    pairs: _Candidates | None = None
    for block, stage, arrays in _parts(rows):
        if stage == _EVENTS:
            events += arrays.weight
        elif stage == _CANDIDATES:
            waiting.append(arrays.weight)
        else:
            if pairs is None:
                pairs = _Candidates(waiting, int(cuts[block]), int(cuts[block + 1]), asked)
            pairs.add(arrays)
    if pairs is not None:
        yield pairs.kept(events)


class _Candidates:
    """The pairs of a block that are worth counting, row by row."""

    def __init__(self, waiting: Sequence[Ints], low: int, high: int, asked: _PairQuery) -> None:
        keys = np.unique(np.concatenate(waiting))
        self._low, self._high, self._asked = low, high, asked
        self._one = (keys // asked.classes).astype(np.int32)
        self._other = (keys % asked.classes).astype(np.int32)
        self._first = np.searchsorted(self._one, np.arange(low, high + 1)).astype(np.int64)
        self._shared = np.zeros(len(keys), np.int64)
        self._sizes = np.zeros(len(keys) if asked.with_bytes else 0, np.int64)

    def add(self, patterns: _Patterns) -> None:
        """Count some patterns."""
        start, member, *worth = patterns
        for weight, sums in zip(worth, (self._shared, self._sizes), strict=True):
            if len(sums):
                add_pairs_among(
                    start, member, weight, self._low, self._high, self._first, self._other, sums
                )

    def kept(self, events: Ints) -> pa.RecordBatch:
        """The pairs that are alike enough."""
        union = events[self._one] + events[self._other] - self._shared
        keep = (self._shared > 0) & (self._shared / np.maximum(union, 1) >= self._asked.least)
        size = self._sizes[keep] if self._asked.with_bytes else None
        return _pair_batch(self._one[keep], self._other[keep], self._shared[keep], size, events)


def _measured_recall(
    demand: DataFrame, pairs: DataFrame, asked: _PairQuery, sketch: Sketch, events: Ints
) -> tuple[float | None, int]:
    """The share of the sampled classes' pairs that were found, and how many they have: counted in full."""
    classes, met = asked.classes, np.flatnonzero(events)
    most = min(sketch.sample, max(1, _MOST_KEYS // max(classes, 1)))
    sampled = np.sort(np.random.default_rng(sketch.seed).permutation(met)[:most])
    place = np.full(classes, -1, np.int32)
    place[sampled] = np.arange(len(sampled))

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shared = np.zeros((len(sampled), classes), np.int64)
        for batch in rows:
            start, member = compressed_rows(batch.column("classes"), classes)
            add_rows(start, member, np.asarray(batch.column("count")), place, shared)
        row, other = np.nonzero(shared)
        columns: list[Any] = [pa.array(sampled[row] * classes + other), pa.array(shared[row, other])]
        yield pa.RecordBatch.from_arrays(columns, names=["pair", "both"])

    partial = demand.select("classes", "count").mapInArrow(count, "pair bigint, both bigint")
    table = partial.groupBy("pair").agg(sf.sum("both").alias("both")).toArrow()
    one, other = np.divmod(np.asarray(table.column("pair")), max(classes, 1))
    both = np.asarray(table.column("both"))
    alike = (one != other) & (both / (events[one] + events[other] - both) >= asked.least)
    true = np.unique(np.minimum(one, other)[alike] * classes + np.maximum(one, other)[alike])
    if not len(true):
        return None, 0
    chosen = [int(k) for k in sampled]
    near = pairs.filter(sf.col("class_a").isin(chosen) | sf.col("class_b").isin(chosen))
    found = near.select("class_a", "class_b").toArrow()
    keys = np.asarray(found.column(0)).astype(np.int64) * classes + np.asarray(found.column(1))
    return float(np.isin(true, keys).mean()), len(true)
