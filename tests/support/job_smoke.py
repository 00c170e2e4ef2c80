"""The smallest job that needs everything: executors with ramify, Arrow batches, a shuffle, rows back."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def triple(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from ramify.errors import RamifyError

    for batch in batches:
        ids = batch.column("id").to_pylist()
        name = [RamifyError.__name__] * len(ids)
        yield pa.RecordBatch.from_pydict({"id": pa.array([3 * i for i in ids], pa.int64()), "name": name})


def run(spark: SparkSession, output: Path, rows: str = "100") -> None:
    frame = spark.range(0, int(rows), 1, 7).mapInArrow(triple, "id long, name string")
    table = frame.groupBy((sf.col("id") % 10).alias("digit"), "name").agg(sf.sum("id").alias("sum"))
    answer = sorted(tuple(row) for row in table.collect())
    output.write_text("\n".join(map(str, answer)))
