"""Histograms over the content space: events per cell, their publishers and subscribers, and the load.

Owns the counting of a source's events into the cells of grids in one pass, the same per publishing
client, the load of a cell from its counts, and axes whose slots hold about equally many events.

Cao and Singh (Kyra, section III-B) balance zones by load = sum of popularity^alpha * volume * weight,
where an event's popularity is the share of subscriptions that want it, its volume how often it is
published, and its weight the normalised resources that it takes; here, its size over the mean size.
Zhao and Wu (section IV-A) approximate each user's generating function by a histogram over sub-channels:
`generating`.

Counts are integers, added up by cell, so the partitions do not matter.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ramify.compiled import Ints
from ramify.content.events.events import CONTEXT_NAMES, SIZE_BYTES, AttributeType
from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Axis, Grid
from ramify.errors import InputError
from ramify.pipeline.passes.sources import Source
from ramify.pipeline.passes.table_files import (
    CONTENT_SPACE,
    GENERATING,
    HISTOGRAMS,
    spark_schema,
    table_schema,
)

__all__ = [
    "KYRA_ALPHA",
    "content_space",
    "equal_depth_axis",
    "generating",
    "histograms",
    "popularity",
]

KYRA_ALPHA = 0.6101
"""Kyra's exponent of popularity, from its Figure 7. It depends on the overlay: fit it if that matters."""


_DENSE_CELLS = 1 << 20


def histograms(spark: SparkSession, source: Source, grids: Sequence[Grid]) -> DataFrame:
    """Events and bytes per cell of every grid, in the columns of `HISTOGRAMS`. One pass over the source.

    Several attributes together are one grid of several axes; each by itself, several grids. A task
    keeps 16 bytes per cell of grids up to 2^20 cells; larger ones are summed batch by batch.

    Raises
    ------
    InputError
        Without a grid.
    """
    if not grids:
        raise InputError("a histogram needs at least one grid")
    schema = spark_schema(HISTOGRAMS)

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _cells_counted((chunk.batch for chunk in source.read(rows)), grids)

    partial = source.frame(spark).mapInArrow(count, schema)
    return partial.groupBy("grid", "cell").agg(
        sf.sum("events").alias("events"), sf.sum("bytes").alias("bytes")
    )


def generating(spark: SparkSession, source: Source, grid: Grid) -> DataFrame:
    """Events and bytes per publishing client and cell, in the columns of `GENERATING`."""
    schema = spark_schema(GENERATING)

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in source.read(rows):
            cells = pa.array(grid.locate(chunk.batch).astype(np.int32))
            sizes = chunk.batch.column(SIZE_BYTES)
            table = pa.table({"client": chunk.batch.column("publisher"), "cell": cells, "size": sizes})
            summed = table.group_by(["client", "cell"]).aggregate([([], "count_all"), ("size", "sum")])
            columns: list[Any] = ["client", "cell", "count_all", "size_sum"]
            yield from summed.select(columns).rename_columns(GENERATING.names).cast(GENERATING).to_batches()

    partial = source.frame(spark).mapInArrow(count, schema)
    return partial.groupBy("client", "cell").agg(
        sf.sum("events").alias("events"), sf.sum("bytes").alias("bytes")
    )


def popularity(filters: Iterable[Filter], grid: Grid) -> Ints:
    """How many of the filters touch each cell of the grid: may accept an event there. On the driver."""
    touched = np.zeros(grid.size, dtype=np.int64)
    for filter_ in filters:
        touched[grid.cells_touched(filter_)] += 1
    return touched


def content_space(
    counts: pa.Table, grid: Grid, filters: Sequence[Filter], *, alpha: float = KYRA_ALPHA
) -> pa.Table:
    """Popularity, volume, weight and load of every cell of a grid, in the columns of `CONTENT_SPACE`.

    `counts` has the columns cell, events, bytes: rows of one grid of `histograms`, read back. Popularity
    and volume are shares of all subscriptions and events; the weight of a cell is the mean size of its
    events over that of all (1 where it has none), and load is Kyra's.
    """
    cell = np.asarray(counts.column("cell")).astype(np.int64)
    events, size = np.zeros(grid.size, np.int64), np.zeros(grid.size, np.int64)
    np.add.at(events, cell, np.asarray(counts.column("events")))
    np.add.at(size, cell, np.asarray(counts.column("bytes")))
    subscriptions = popularity(filters, grid)
    popular = subscriptions / max(len(filters), 1)
    volume = events / max(int(events.sum()), 1)
    mean = int(size.sum()) / max(int(events.sum()), 1)
    weight = np.ones(grid.size)
    np.divide(size, events * mean, out=weight, where=(events > 0) & (mean > 0))
    load = popular**alpha * volume * weight
    arrays = (np.arange(grid.size), subscriptions, events, size, popular, volume, weight, load)
    columns = zip(arrays, CONTENT_SPACE, strict=True)
    return pa.Table.from_arrays([pa.array(a, f.type) for a, f in columns], schema=CONTENT_SPACE)


def equal_depth_axis(
    spark: SparkSession, source: Source, path: str, slots: int, *, sample: int = 100_000, seed: int = 0
) -> Axis:
    """An axis that cuts an attribute into at most `slots` intervals of about equally many events.

    The edges are exact quantiles of a sample: the `sample` events with the smallest seeded hash of
    their id, so they depend neither on order nor on partitions. Values that fill several intervals make
    one.

    Raises
    ------
    InputError
        For fewer than two slots, an attribute that the source lacks or that has no order on a line (a
        boolean, an array), or when it has fewer than two distinct values in the sample.
    """
    kind = _ordered_kind(source, path)
    if slots < 2:
        raise InputError(f"an axis has at least 2 intervals; {slots} were asked for")

    def values(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in source.read(rows):
            kept = chunk.batch.select(["id", path]).rename_columns(["id", "value"])
            yield kept.filter(pc.is_valid(kept.column("value")))

    spelled = spark_schema(table_schema({"id": pa.string(), "value": kind.arrow}))
    drawn = source.frame(spark).mapInArrow(values, spelled)
    order = (sf.xxhash64(sf.lit(seed), "id"), "id", "value")
    found = drawn.orderBy(*order).limit(sample).select("value").toArrow().column("value")
    return Axis(path, _edges(path, found, slots))


def _ordered_kind(source: Source, path: str) -> AttributeType:
    fixed = {"time": AttributeType.TIMESTAMP}.get(path, AttributeType.STRING)
    kind = fixed if path in CONTEXT_NAMES else source.schema.attributes.get(path)
    ordered = (AttributeType.STRING, AttributeType.INT64, AttributeType.DOUBLE, AttributeType.TIMESTAMP)
    if kind not in ordered:
        raise InputError(
            f"no axis can be laid over {path!r}: "
            + ("no event has it" if kind is None else f"it is {kind}, which has no order")
        )
    return kind


def _edges(path: str, values: Any, slots: int) -> Any:
    """The values at the k-th of `slots` ranks, each once; not the least value: nothing lies below it."""
    column = values.combine_chunks().sort()
    ranks = [k * len(column) // slots for k in range(1, slots)] if len(column) else []
    least = column[0].as_py() if len(column) else None
    edges = sorted({column[rank].as_py() for rank in ranks} - {least})
    if not edges and len(column):  # more than a part of them has the least value: cut right above it
        above = column.filter(pc.greater(column, column[0]))
        edges = [above[0].as_py()] if len(above) else []
    if not edges:
        raise InputError(f"{path!r} has fewer than two values, so no axis can be cut; leave it out")
    return tuple(e.astimezone(UTC) for e in edges) if pa.types.is_timestamp(column.type) else tuple(edges)


def _cells_counted(batches: Iterable[pa.RecordBatch], grids: Sequence[Grid]) -> Iterator[pa.RecordBatch]:
    """In a task: the sums of its events per grid and cell."""
    dense = {k: np.zeros((2, g.size), np.int64) for k, g in enumerate(grids) if g.size <= _DENSE_CELLS}
    for batch in batches:
        size = np.asarray(batch.column(SIZE_BYTES))
        for k, grid in enumerate(grids):
            cell, code = np.unique(grid.locate(batch), return_inverse=True)
            sums = np.zeros((2, len(cell)), np.int64)
            sums[0] = np.bincount(code, minlength=len(cell))
            np.add.at(sums[1], code, size)  # bincount would weigh in doubles
            if k in dense:
                dense[k][:, cell] += sums
            else:
                yield _cell_rows(k, cell, sums)
    for k, table in dense.items():
        cell = np.flatnonzero(table[0])
        yield _cell_rows(k, cell, table[:, cell])


def _cell_rows(grid: int, cell: Ints, sums: Ints) -> pa.RecordBatch:
    arrays = (np.full(len(cell), grid), cell, *sums)
    columns = zip(arrays, HISTOGRAMS, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(a, f.type) for a, f in columns], schema=HISTOGRAMS)
