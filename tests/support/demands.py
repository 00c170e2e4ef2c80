"""Demand tables by hand, for tests: a few rows as values, and as a Spark frame in so many partitions."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "split int, pane bigint, publisher int, client string, cell int, tags bigint, "
    "classes array<int>, destinations array<int>, count bigint, bytes bigint"
)


class Row(NamedTuple):
    """A row of a demand table."""

    classes: tuple[int, ...] = ()
    count: int = 1
    bytes: int = 100
    publisher: int = 0
    destinations: tuple[int, ...] = ()
    cell: int = -1
    pane: int | None = None


def demand_frame(spark: SparkSession, rows: Sequence[Row], partitions: int = 2) -> DataFrame:
    values = [
        (0, r.pane, r.publisher, None, r.cell, 0, list(r.classes), list(r.destinations), r.count, r.bytes)
        for r in rows
    ]
    return spark.createDataFrame(values, SCHEMA).repartition(partitions)


def random_rows(
    seed: int, rows: int, classes: int, *, brokers: int = 5, cells: int = 4, panes: int = 3
) -> list[Row]:
    """Distinct patterns, some of them without a match; class 0 of several is in many."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    made: dict[tuple[object, ...], Row] = {}
    for _ in range(rows):
        picked = {int(classes * rng.random() ** 2) for _ in range(rng.randrange(6))} if classes else set()
        row = Row(
            tuple(sorted(picked)),
            rng.randrange(1, 50),
            rng.randrange(100, 5000),
            rng.randrange(brokers),
            tuple(sorted(rng.sample(range(brokers), rng.randrange(3)))) if picked else (),
            rng.randrange(cells),
            rng.choice([None, *(k * 60_000_000 for k in range(panes))]),
        )
        made[row.classes, row.publisher, row.cell, row.pane] = row
    return [r._replace(destinations=tuple(set(r.destinations) - {r.publisher})) for r in made.values()]


def sorted_rows(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows of a table as plain values, in an order of their own."""
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row if value == value])
