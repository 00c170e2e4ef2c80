"""What the data looks like: per attribute its type, how often it is there, its range and its values.

Owns the profile of a source. It judges nothing: how attributes become axes is for `histograms`, what is
a bad record for the source.

All that is known travels in one long form of rows (what, column, data, events) that Spark sums by the
first three: tasks that read events write it, tasks that get the sums make it short, the driver merges
those. A task keeps a column's values while they are few. Once one has more than are counted exactly,
there are more in all, and a sketch of hashes does: what is exact never depends on which task read what.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ramify.content.events.events import FIXED_COLUMNS, NULLS, SIZE_BYTES, AttributeType, EventSchema
from ramify.content.events.others import others_in
from ramify.errors import InputError
from ramify.pipeline.passes.sources import Source
from ramify.pipeline.passes.table_files import PROFILE, spark_schema, table_schema
from ramify.planning.demand.splits import text_hashes

__all__ = ["profile"]

_FIXED = ("id", "publisher", "time", SIZE_BYTES)
_ID = 0
_PIECES = 64  # batches' values, before they are merged
_SKETCH, _STANDARD_ERROR = 2_560, 0.02  # hashes, and how far they are off: 1 / sqrt(_SKETCH - 2)


def profile(
    spark: SparkSession, source: Source, *, exact_up_to: int = 10_000, top: int = 10, text_length: int = 64
) -> DataFrame:
    """The profile of a source: a row per attribute, the fixed ones first, in the columns of `PROFILE`.

    A column with at most `exact_up_to` different values has them counted exactly and its commonest
    listed (ties: the smaller text first); beyond, they are estimated. Ids are always counted exactly.
    One query reads the source once, without bodies; of columns with many values, ids alone go through
    Spark's shuffle. A task holds about 2 `exact_up_to` values of a column, and a batch.

    An event that has an attribute with a value of another type than its column counts as present; range and
    values are those of the column's type.

    Texts are cut to `text_length` characters after comparing. Numbers are in their shortest form (2.0
    is 2, 1e+20), times as 2026-01-31 09:00:00.000000Z, the rest as true and false. All that is no
    number (NaN) is one value, outside every range; -0.0 is 0; nulls in arrays count for length only.

    Raises
    ------
    InputError
        When one of the limits is not positive.
    """
    if min(exact_up_to, top, text_length) < 1:
        raise InputError("the limits of a profile must be positive")
    columns = _columns(source.schema)
    narrow, form = source.only(source.schema.attributes.keys()), spark_schema(_LONG)
    long = narrow.frame(spark).mapInArrow(partial(_read, narrow, columns, exact_up_to), form)
    summed = long.groupBy("what", "column", "data").agg(sf.sum("events").alias("events"))
    short = summed.mapInArrow(partial(_shorten, exact_up_to, top), form)
    found = _Digest(exact_up_to)
    for batch in short.toArrow().cast(_LONG).to_batches():
        found.take(batch, top)
    rows = [_row(column, found, text_length) for column in columns]
    return spark.createDataFrame(rows, spark_schema(PROFILE))


@dataclass(frozen=True, slots=True)
class _Column:
    place: int
    path: str
    kind: AttributeType

    @property
    def is_array(self) -> bool:
        return self.kind in (AttributeType.STRINGS, AttributeType.NUMBERS)


def _columns(schema: EventSchema) -> list[_Column]:
    fixed = {name: AttributeType.of_arrow(FIXED_COLUMNS.field(name).type) for name in _FIXED}
    kinds = {**fixed, **schema.attributes}
    return [_Column(place, path, kind) for place, (path, kind) in enumerate(kinds.items())]


def _row(column: _Column, found: "_Digest", text_length: int) -> tuple[Any, ...]:
    place, sums, is_many = column.place, found.sums, found.is_many(column.place)
    present, distinct = sums[_What.PRESENT, place], sums[_What.DISTINCT, place]
    is_exact = place == _ID or not is_many
    kind: Any = column.kind.arrow
    edges = pa.array(found.ranges[place]).cast(kind.value_type if column.is_array else kind)
    least, greatest = [text[:text_length] for text in _texts(edges).to_pylist()] or [None, None]
    tops = found.values[place].to_pylist()
    return (
        column.path,
        str(column.kind),
        sums[_What.PRESENT, _ID],  # every event has an id
        present,
        sums[_What.NULLS, place],
        distinct if is_exact else _estimated(found.sketches[place]),
        0.0 if is_exact else _STANDARD_ERROR,
        least,
        greatest,
        sums[_What.LENGTH, place] / present if column.is_array and present else None,
        None if is_many else [(row["data"].decode()[:text_length], row["events"]) for row in tops],
        present - distinct if place == _ID else None,
    )


def _read(
    source: Source, columns: Sequence[_Column], exact_up_to: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task makes of the events that it reads."""
    digest, place = _Digest(exact_up_to), {column.path: column.place for column in columns}
    for chunk in source.read(rows):
        for column in columns:
            digest.add(column, chunk.batch.column(column.path))
        nulls = _counted(pc.list_flatten(chunk.batch.column(NULLS)))
        for path, events in zip(*(part.to_pylist() for part in nulls), strict=True):
            if path in place:
                digest.sums[_What.NULLS, place[path]] += events
        _count_others(digest, place, chunk.batch)
        if digest.values[_ID].num_rows > exact_up_to:
            yield from _long(_What.VALUE, _ID, digest.values.pop(_ID))
    for column in columns[_ID + 1 :]:
        digest.merge_values(column.place)
    yield from digest.rows(_What.VALUE)


def _count_others(digest: "_Digest", place: dict[str, int], batch: pa.RecordBatch) -> None:
    """Count the events that have an attribute with a value of another type than its column."""
    column: Any = others_in(batch)
    if column is None:
        return
    names: Any = pc.list_flatten(column).field("path").dictionary_encode()
    rows = np.repeat(np.arange(len(column)), pc.list_value_length(column).fill_null(0).to_numpy())
    size = len(names.dictionary)
    once = np.unique(rows * size + names.indices.to_numpy()) % max(1, size)
    for path, events in zip(names.dictionary.to_pylist(), np.bincount(once, minlength=size), strict=True):
        if path in place:
            digest.sums[_What.PRESENT, place[path]] += int(events)


def _shorten(exact_up_to: int, top: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task makes of summed rows: few of them."""
    digest = _Digest(exact_up_to)
    for batch in rows:
        digest.take(batch, top)
    yield from digest.rows(_What.TOP)


class _What(IntEnum):
    """What a row says of its column: the data and its events, or a number in the place of events."""

    VALUE = 0  # a value as text, and how many events have it
    TOP = 1  # the same, where DISTINCT has counted it already
    DISTINCT = 2  # different values; of too many, at least as many as are too many
    PRESENT = 3  # events with a value
    NULLS = 4  # events with an explicit null
    LENGTH = 5  # elements of all arrays
    RANGE = 6  # data: least and greatest value, as JSON
    SKETCH = 7  # data: the smallest hashes of values


_LONG = table_schema({"what": pa.int32(), "column": pa.int32(), "data": pa.binary(), "events": pa.int64()})
_VALUES = table_schema({"data": pa.binary(), "events": pa.int64()})
_COMMONEST: Any = [("events", "descending"), ("data", "ascending")]


def _long(what: _What, column: int, values: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in values.to_batches():
        same = [pa.array(np.full(batch.num_rows, n, dtype=np.int32)) for n in (what, column)]
        yield pa.RecordBatch.from_arrays([*same, *batch.columns], schema=_LONG)


@dataclass
class _Digest:
    """What is known of every column (by its place) from events, or from rows of the long form."""

    exact_up_to: int
    sums: Counter[tuple[_What, int]] = field(default_factory=Counter)
    ranges: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    sketches: dict[int, "_Hashes"] = field(default_factory=lambda: defaultdict(lambda: _NO_HASHES))
    # From events: all values, until they are too many. From rows: the commonest.
    values: dict[int, Any] = field(default_factory=lambda: defaultdict(_VALUES.empty_table))

    def add(self, column: _Column, array: Any) -> None:
        """Count the column of a batch of events."""
        place, array = column.place, array.drop_null()
        self.sums[_What.PRESENT, place] += len(array)
        if column.is_array:
            self.sums[_What.LENGTH, place] += pc.sum(pc.list_value_length(array)).as_py() or 0
        values, events = (_elements if column.is_array else _counted)(array)
        self.widen(place, _edges(values))
        texts = _texts(values)
        if self.is_many(place):
            self.hash(place, texts)
            return
        more = pa.Table.from_arrays([texts.cast(pa.binary()), events], schema=_VALUES)
        self.values[place] = pa.concat_tables([self.values[place], more])
        pieces = self.values[place].column("data").num_chunks
        if place != _ID and (pieces > _PIECES or self.values[place].num_rows > 2 * self.exact_up_to):
            self.merge_values(place)

    def merge_values(self, place: int) -> None:
        """Have every value of a column once; when there are too many, only their hashes."""
        merged = self.values[place].group_by("data", use_threads=False).aggregate([("events", "sum")])
        merged = merged.select(["data", "events_sum"]).rename_columns(_VALUES.names)
        if merged.num_rows > self.exact_up_to:
            self.sums[_What.DISTINCT, place] = self.exact_up_to + 1
            self.hash(place, merged.column("data").combine_chunks())
            merged = _VALUES.empty_table()
        self.values[place] = merged

    def hash(self, place: int, texts: Any) -> None:
        """Add values to the sketch of a column."""
        self.sketches[place] = _sketched(self.sketches[place], text_hashes(texts))

    def take(self, batch: pa.RecordBatch, top: int) -> None:
        """Merge rows, of which no two are the same value. A step in Python per row that is no value."""
        whats, columns = (batch.column(k).to_numpy() for k in range(2))
        for place in np.unique(columns[whats <= _What.TOP]).tolist():
            is_mine = (whats <= _What.TOP) & (columns == place)
            self.sums[_What.DISTINCT, place] += int((whats[is_mine] == _What.VALUE).sum())
            values = pa.Table.from_batches([batch.filter(pa.array(is_mine)).select(_VALUES.names)])
            self.hash(place, values.column("data").combine_chunks())
            if not self.is_many(place):
                both = pa.concat_tables([self.values[place], values.cast(_VALUES)])
                self.values[place] = both.sort_by(_COMMONEST)[:top]
        rest = batch.filter(pa.array(whats > _What.TOP)).to_pydict()
        for what, place, data, events in zip(*rest.values(), strict=True):
            if what == _What.RANGE:
                self.widen(place, json.loads(data))
            elif what == _What.SKETCH:
                self.sketches[place] = _sketched(self.sketches[place], np.frombuffer(data, np.uint64))
            else:
                self.sums[_What(what), place] += events

    def is_many(self, place: int) -> bool:
        """Whether there are more values than are counted exactly, as far as is known."""
        return self.sums[_What.DISTINCT, place] > self.exact_up_to

    def widen(self, place: int, edges: list[Any]) -> None:
        """Let the range of a column hold these values too."""
        known = [*self.ranges[place], *edges]
        self.ranges[place] = [min(known), max(known)] if known else []

    def rows(self, values_are: _What) -> Iterator[pa.RecordBatch]:
        """All of it as rows of the long form."""
        for place, values in self.values.items():
            yield from _long(values_are, place, values)
        rows = [(what, place, b"", number) for (what, place), number in self.sums.items()]
        rows += [(_What.RANGE, at, json.dumps(r).encode(), 1) for at, r in self.ranges.items() if r]
        rows += [(_What.SKETCH, at, hashes.tobytes(), 1) for at, hashes in self.sketches.items()]
        arrays = [pa.array([row[k] for row in rows], f.type) for k, f in enumerate(_LONG)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_LONG)


def _counted(array: Any) -> Any:
    """The different values of an array without nulls, and how often each is there."""
    return pc.value_counts(_plain(array)).flatten()


def _elements(lists: Any) -> tuple[Any, Any]:
    """The different elements of lists, and in how many lists each is."""
    elements: Any = pc.list_flatten(lists)
    owners = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
    owners = owners[elements.is_valid().to_numpy(zero_copy_only=False)]
    encoded = _plain(elements.drop_null()).dictionary_encode()
    size = len(encoded.dictionary)
    pairs: Any = pc.unique(pa.array(owners * size + encoded.indices.to_numpy()))
    return encoded.dictionary, pa.array(np.bincount(pairs.to_numpy() % max(1, size), minlength=size))


def _plain(values: Any) -> Any:
    """-0.0 becomes 0.0."""
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values


def _edges(values: Any) -> list[Any]:
    """The least and greatest value, times as microseconds; nothing without values."""
    edges: Any = pc.min_max(values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values)
    least, greatest = edges["min"].as_py(), edges["max"].as_py()
    return [] if least is None or least != least else [least, greatest]


def _texts(values: Any) -> Any:
    if pa.types.is_timestamp(values.type):
        # Without the zone, which is UTC always: Arrow would look it up in the machine's own database.
        texts: Any = values.cast(pa.timestamp("us")).cast(pa.string())
        return pc.binary_join_element_wise(texts, "Z", "")
    return values.cast(pa.string())


_Hashes = npt.NDArray[np.uint64]
_NO_HASHES: _Hashes = np.empty(0, dtype=np.uint64)


def _sketched(sketch: _Hashes, hashes: _Hashes) -> _Hashes:
    """The smallest `_SKETCH` hashes of both, ascending, each once: the same in any order."""
    if len(sketch) == _SKETCH:
        hashes = hashes[hashes < sketch[-1]]
    return np.unique(np.concatenate([sketch, hashes]))[:_SKETCH]


def _estimated(sketch: _Hashes) -> int:
    """How many hashes went in: (k - 1) / U_k of Beyer et al. (2007), doi:10.1145/1247480.1247504."""
    is_full = len(sketch) == _SKETCH
    return round((_SKETCH - 1) * 2.0**64 / float(sketch[-1])) if is_full else len(sketch)
