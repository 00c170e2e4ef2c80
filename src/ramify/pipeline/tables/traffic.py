"""The traffic matrix between brokers, and what each broker publishes.

Owns the sums over a demand table by publisher and destination. What a plan makes of this traffic on
links is the pricer's business. Zhao and Wu (section I) call it the traffic matrix and start from it;
here an entry is what a broker must get, once per event, however many of its classes match.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ramify.pipeline.passes.table_files import spark_schema, table_schema
from ramify.pipeline.tables.selectivity import compressed_rows

__all__ = ["published", "traffic"]


def traffic(demand: DataFrame, hosts: Sequence[int] | None = None) -> DataFrame:
    """The traffic matrix, in the columns of `TRAFFIC`; pairs without events have no row.

    The demand lists destinations other than the publisher. With `hosts`, the broker of each class, a
    row (p, p) says how many events published at p match a class there; a second pass, 8 bytes per
    class.
    """
    sums = [sf.sum("count").alias("events"), sf.sum("bytes").alias("bytes")]
    away = demand.select("publisher", sf.explode("destinations").alias("destination"), "count", "bytes")
    matrix = away.groupBy("publisher", "destination").agg(*sums)
    if hosts is None:
        return matrix
    home = _matched_at_home(demand, np.asarray(hosts, dtype=np.int64))
    return matrix.union(home.groupBy("publisher", "destination").agg(*sums))


def published(demand: DataFrame) -> DataFrame:
    """What each broker publishes and whether it leaves, in the columns of `PUBLISHED`."""
    leaving, matched = sf.size("destinations") > 0, sf.size("classes") > 0
    parts = {"leaving": leaving, "home_only": ~leaving & matched, "unmatched": ~leaving & ~matched}
    sums = [sf.sum("count").alias("events"), sf.sum("bytes").alias("bytes")]
    for name, chosen in parts.items():
        for column, unit in (("count", "events"), ("bytes", "bytes")):
            sums.append(
                sf.sum(sf.when(chosen, sf.col(column)).otherwise(sf.lit(0))).alias(f"{name}_{unit}")
            )
    return demand.groupBy("publisher").agg(*sums)


def _matched_at_home(demand: DataFrame, hosts: "np.ndarray[Any, np.dtype[np.int64]]") -> DataFrame:
    """The patterns that match a class at their publisher's broker, summed per batch."""
    schema = spark_schema(
        table_schema(
            {"publisher": pa.int32(), "destination": pa.int32(), "count": pa.int64(), "bytes": pa.int64()}
        )
    )

    def choose(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            start, member = compressed_rows(batch.column("classes"), len(hosts))
            publisher = np.asarray(batch.column("publisher"))
            pattern = np.repeat(np.arange(len(publisher)), np.diff(start))
            at_home = hosts[member[start[0] : start[-1]]] == publisher[pattern]
            rows_ = np.unique(pattern[at_home])
            broker, code = np.unique(publisher[rows_], return_inverse=True)
            sums = np.zeros((2, len(broker)), dtype=np.int64)
            for k, name in enumerate(("count", "bytes")):
                np.add.at(sums[k], code, np.asarray(batch.column(name))[rows_])
            columns: list[Any] = [broker, broker, *sums]
            names = ["publisher", "destination", "count", "bytes"]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)

    return demand.select("publisher", "classes", "count", "bytes").mapInArrow(choose, schema)
