"""The tables that the pipeline makes: their schemas, how they are written, how they are read back.

Owns every stored form, in one place. Tables are Parquet, partitioned where that helps the reader; a
demand has the facts that readers need beside it (`about`). Reading back needs pyarrow alone: a
coordinator reads a demand without starting Spark, and without a Python step per row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from ramify.errors import InputError
from ramify.planning.pattern_rows import PATTERNS, keys_of_lists
from ramify.planning.splits import Split
from ramify.planning.windows import Span, Windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["TABLES", "Table", "read_table", "read_windows", "spark_schema", "write_table"]


@dataclass(frozen=True)
class Table:
    """A kind of table: what a row is, its columns, and the columns that its files are partitioned by."""

    summary: str
    schema: pa.Schema
    partitioned_by: tuple[str, ...] = ()


def _schema(**columns: Any) -> pa.Schema:
    return pa.schema(columns)


_INTS: Any = pa.list_(pa.int32())

TABLES: dict[str, Table] = {
    "demand": Table(
        "distinct (window, pane, publisher, client, cell, tags, classes) with events and bytes",
        _schema(
            split=pa.int32(),
            pane=pa.int64(),
            publisher=pa.int32(),
            client=pa.string(),
            cell=pa.int32(),
            tags=pa.int64(),
            classes=_INTS,
            destinations=_INTS,
            count=pa.int64(),
            bytes=pa.int64(),
        ),
        ("split",),
    ),
    "quarantine": Table(
        "records and parts of files that could not be used, with place and reason",
        _schema(
            file=pa.string(),
            line=pa.int64(),
            position=pa.int64(),
            reason=pa.string(),
            detail=pa.string(),
            raw=pa.binary(),
            rows=pa.int64(),
        ),
        ("reason",),
    ),
    "unknown": Table(
        "publishers that no broker is known for, with their events per window",
        _schema(split=pa.int32(), publisher=pa.string(), events=pa.int64()),
    ),
    "spans": Table(
        "events and the first and last time (microseconds) of each window",
        _schema(split=pa.int32(), events=pa.int64(), first_us=pa.int64(), last_us=pa.int64()),
    ),
}
"""Every table by name."""


def spark_schema(schema: pa.Schema) -> "StructType":
    """An Arrow schema as Spark spells it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def write_table(
    frame: "DataFrame", name: str, under: str, *, about: Mapping[str, Any] | None = None
) -> str:
    """Write a table to `under/name`, over what was there; returns where it is.

    The frame must have the columns of the table, in any order. `about` are facts that readers need.
    """
    table = TABLES[name]
    where = f"{under.rstrip('/')}/{name}"
    columns = [f"`{column}`" for column in table.schema.names]
    writer = frame.select(columns).write.mode("overwrite")
    (writer.partitionBy(*table.partitioned_by) if table.partitioned_by else writer).parquet(where)
    if about is not None:
        row = frame.sparkSession.createDataFrame([(json.dumps(about, sort_keys=True),)], "about string")
        row.coalesce(1).write.mode("overwrite").text(f"{under.rstrip('/')}/{name}-about")
    return where


def read_table(under: str | Path, name: str) -> pa.Table:
    """A table that was written, in the columns of its schema. Rows come in no particular order.

    Raises
    ------
    InputError
        When there is no such table, or its files cannot be read.
    """
    where = Path(under) / name
    schema = TABLES[name].schema
    if not where.is_dir():
        raise InputError(f"there is no table {name!r} here; write it first", path=str(under))
    try:
        partitioning = ds.partitioning(flavor="hive")
        found: Any = ds.dataset(where, format="parquet", partitioning=partitioning)
        names = set(found.schema.names)
        if not names:
            return schema.empty_table()
        missing = [column for column in schema.names if column not in names]
        if missing:
            raise InputError(f"the table has no column {missing[0]!r}; write it again", path=str(where))
        return found.to_table(columns=schema.names).cast(schema)  # type: ignore[no-any-return]
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"the table cannot be read: {error}", path=str(where)) from None


def read_about(under: str | Path, name: str) -> dict[str, Any]:
    """The facts that were written beside a table."""
    where = Path(under) / f"{name}-about"
    texts = [path.read_text(encoding="utf-8") for path in sorted(where.glob("part-*"))]
    if not "".join(texts).strip():
        raise InputError(f"there is nothing about the table {name!r} here; write it again", path=str(under))
    return dict(json.loads("".join(texts)))


def read_windows(under: str | Path) -> Windows:
    """The demands of a stored demand table, with its spans and unknown publishers. O(rows log rows)."""
    rows, about = read_table(under, "demand"), read_about(under, "demand")
    split = Split(tuple(about["shares"]), about["keep"], about["seed"])
    spans = {
        row["split"]: Span(row["events"], row["first_us"], row["last_us"])
        for row in read_table(under, "spans").to_pylist()
    }
    unknown = {
        (row["split"], row["publisher"]): row["events"] for row in read_table(under, "unknown").to_pylist()
    }
    return Windows.of_rows(pattern_rows(rows), split, spans, unknown, about["tag_filters"])


def pattern_rows(demand: pa.Table) -> pa.Table:
    """Rows of a stored demand as patterns: lists of classes become keys."""
    index = demand.schema.get_field_index("classes")
    keyed = demand.set_column(index, "classes", keys_of_lists(demand["classes"]))
    return keyed.select(PATTERNS.names).cast(PATTERNS)
