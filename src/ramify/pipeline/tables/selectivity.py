"""How many events each class matched, lately or ever: SemCast's selectivity, summed from a demand table.

Owns the sums per class (and pane) that overlap needs too, and the decay. It matches nothing: the demand
table says which classes an event matched.

Papaemmanouil and Cetintemel (SemCast, section 3.2.1) keep a window of sampled messages, one row each,
and weigh them by an exponential decay so that recent ones count more. Here the integers of a pane are
summed on Spark and the weight of the pane is applied once to its sum, in the order of time: the same
result to the last bit whatever the partitions. Departure: an event is as old as the end of its pane, so
ages are off by at most one pane.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ramify.compiled import Ints, SmallInts
from ramify.errors import InputError
from ramify.pipeline.passes.table_files import CLASS_SUMS, spark_schema
from ramify.pipeline.tables.overlap_kernels import add_weights
from ramify.planning.demand.patterns import class_rows

__all__ = [
    "ALL_CLASSES",
    "checked_rows",
    "class_sums",
    "compressed_rows",
    "selectivity",
]


ALL_CLASSES = -1
"""The class number under which `class_sums` counts every event, matched or not."""


_MOST_CELLS = 1 << 22


def selectivity(
    demand: DataFrame,
    classes_count: int,
    *,
    half_life_s: float | None = None,
    now_us: int | None = None,
    pane_us: int = 0,
) -> DataFrame:
    """Per class (all of them, in any order) what it matched, in the columns of `SELECTIVITY`.

    With a half-life, a pane that ended t seconds before `now_us` (the end of the last pane, unless
    given) counts 2^-(t / half_life_s) times; a pane that ends later, and events without a time, count
    in full. `pane_us` is how long a pane is. One pass over the demand; two with a half-life and no
    `now_us`.

    Raises
    ------
    InputError
        For a half-life that is not positive, no length of panes with one, or a demand without panes.
        In a task: for a class number that is not below `classes_count`.
    """
    sums = class_sums(demand, classes_count, by_pane=half_life_s is not None)
    recent = _no_decay()
    if half_life_s is not None:
        if not half_life_s > 0 or pane_us <= 0:
            raise InputError("the half-life and the length of a pane must both be positive")
        end_us = _last_pane(demand, half_life_s) + pane_us if now_us is None else now_us
        recent = _decayed(end_us, pane_us, half_life_s)
    panes = sf.sort_array(sf.collect_list(sf.struct("pane", "events", "bytes")))
    grouped = sums.groupBy("class").agg(
        sf.sum("events").alias("events"), sf.sum("bytes").alias("bytes"), panes.alias("panes")
    )
    return _completed(grouped.select("class", "events", "bytes", *recent), classes_count, half_life_s)


def class_sums(demand: DataFrame, classes_count: int, *, by_pane: bool = False) -> DataFrame:
    """What each class matched, in the columns of `CLASS_SUMS`, and all events as `ALL_CLASSES`.

    Classes that matched nothing have no row. Without `by_pane` the pane is null. A task keeps 24 bytes
    per class and pane, and passes sums on when that grows beyond 100 MB.
    """
    pane = sf.col("pane") if by_pane else sf.lit(None).cast("bigint").alias("pane")

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _counted(rows, classes_count)

    partial = demand.select(pane, "classes", "count", "bytes").mapInArrow(count, spark_schema(CLASS_SUMS))
    whole = [sf.sum(name).alias(name) for name in ("events", "bytes", "patterns")]
    return partial.groupBy("pane", "class").agg(*whole)


def compressed_rows(column: Any, classes_count: int) -> tuple[Ints, SmallInts]:
    """The lists of an Arrow column as compressed rows: where each begins (one more than rows), and values.

    See `class_rows`. Raises `InputError` for a class number that is not below the count.
    """
    return checked_rows(*class_rows(column), classes_count)


def checked_rows(start: Ints, member: SmallInts, classes_count: int) -> tuple[Ints, SmallInts]:
    """Compressed rows of class numbers as they are; `InputError` for one that is not below the count."""
    used = member[start[0] : start[-1]]
    if len(used) and (used.min() < 0 or used.max() >= classes_count):
        wrong = used.min() if used.min() < 0 else used.max()
        raise InputError(f"the demand names class {wrong}; there are {classes_count}, numbered from 0")
    return start, member


def _counted(rows: Iterable[pa.RecordBatch], classes_count: int) -> Iterator[pa.RecordBatch]:
    """In a task: the sums of its rows, pane by pane."""
    sums: dict[int | None, Ints] = {}
    for batch in rows:
        if not batch.num_rows:
            continue
        start, member = compressed_rows(batch.column("classes"), classes_count)
        count, size = np.asarray(batch.column("count")), np.asarray(batch.column("bytes"))
        for pane, chosen in _by_pane(batch.column("pane")):
            table = sums.setdefault(pane, np.zeros((3, classes_count + 1), dtype=np.int64))
            add_weights(start, member, count, size, chosen, table)
        if len(sums) * (classes_count + 1) > _MOST_CELLS:
            yield from _sum_rows(sums)
            sums = {}
    yield from _sum_rows(sums)


def _by_pane(column: Any) -> Iterator[tuple[int | None, Ints]]:
    """The panes of a batch with the rows that are in each."""
    coded = column.dictionary_encode(null_encoding="encode")
    code = np.asarray(coded.indices)
    order = np.argsort(code, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(code, minlength=len(coded.dictionary)))
    yield from zip(coded.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=True)


def _sum_rows(sums: dict[int | None, Ints]) -> Iterator[pa.RecordBatch]:
    for pane, table in sums.items():
        found = np.flatnonzero(table[2])
        number = np.where(found == table.shape[1] - 1, ALL_CLASSES, found).astype(np.int32)
        columns: Sequence[Any] = (
            pa.array([pane] * len(found), pa.int64()),
            pa.array(number),
            *(pa.array(table[k, found]) for k in range(3)),
        )
        yield pa.RecordBatch.from_arrays(list(columns), schema=CLASS_SUMS)


def _last_pane(demand: DataFrame, half_life_s: float) -> int:
    """The start of the last pane; 0 for an empty demand."""
    row = demand.agg(sf.max("pane").alias("last"), sf.count(sf.lit(1)).alias("rows")).first()
    assert row is not None, "an aggregate without groups has one row"
    if row["last"] is None and row["rows"]:
        raise InputError(
            f"the demand has no panes, so nothing can decay with a half-life of {half_life_s} s: "
            "make it with a length of panes, or leave the half-life out"
        )
    return int(row["last"] or 0)


def _no_decay() -> list[Column]:
    return [sf.lit(None).cast("double").alias(f"recent_{name}") for name in ("events", "bytes")]


def _decayed(now_us: int, pane_us: int, half_life_s: float) -> list[Column]:
    """The decayed sums of a class from its sorted `panes`: added up in order of time."""

    def weight(pane: Column) -> Column:
        age_us = sf.greatest(sf.lit(now_us) - (pane["pane"] + sf.lit(pane_us)), sf.lit(0))
        return sf.pow(sf.lit(2.0), -age_us / sf.lit(half_life_s * 1e6))  # no pane: `greatest` gives age 0

    def total(name: str) -> Column:
        return sf.aggregate(
            "panes", sf.lit(0.0), lambda sum_, pane: sum_ + pane[name].cast("double") * weight(pane)
        ).alias(f"recent_{name}")

    return [total("events"), total("bytes")]


def _completed(rows: DataFrame, classes_count: int, half_life_s: float | None) -> DataFrame:
    """A row for every class, and its share of all events."""
    everything = rows.filter(sf.col("class") == ALL_CLASSES).select(
        sf.max("events").alias("all_events"), sf.max("recent_events").alias("all_recent")
    )
    classes = rows.sparkSession.range(classes_count).select(sf.col("id").cast("int").alias("class"))
    joined = classes.join(rows, "class", "left").crossJoin(sf.broadcast(everything))
    without = sf.lit(None if half_life_s is None else 0.0).cast("double")
    events, recent = sf.coalesce("events", sf.lit(0)), sf.coalesce("recent_events", without)
    return joined.select(
        "class",
        events.alias("events"),
        sf.coalesce("bytes", sf.lit(0)).alias("bytes"),
        _share(events, sf.col("all_events")).alias("share"),
        recent.alias("recent_events"),
        sf.coalesce("recent_bytes", without).alias("recent_bytes"),
        sf.when(recent.isNotNull(), _share(recent, sf.col("all_recent"))).alias("recent_share"),
    )


def _share(part: Column, whole: Column) -> Column:
    return sf.when(whole > 0, part / whole).otherwise(sf.lit(0.0))
