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

from ramify.errors import InputError
from ramify.planning.demand.splits import Split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from ramify.planning.demand.windows import Windows

__all__ = [
    "CLASS_SUMS",
    "CONTENT_SPACE",
    "DEMAND",
    "GENERATING",
    "HISTOGRAMS",
    "OVERLAP",
    "PROFILE",
    "PUBLISHED",
    "QUARANTINE",
    "SELECTIVITY",
    "SPANS",
    "TABLES",
    "TRAFFIC",
    "UNKNOWN",
    "Table",
    "read_about",
    "read_table",
    "read_windows",
    "spark_schema",
    "table_schema",
    "write_table",
]


@dataclass(frozen=True)
class Table:
    """A kind of table: what a row is, its columns, and the columns that its files are partitioned by."""

    summary: str
    schema: pa.Schema
    partitioned_by: tuple[str, ...] = ()


def table_schema(columns: Mapping[str, Any]) -> pa.Schema:
    """An Arrow schema of named columns. (The stubs of pyarrow want a list of one type.)"""
    return pa.schema(columns)


_INTS: Any = pa.list_(pa.int32())
_TOP: Any = pa.list_(pa.struct([("value", pa.string()), ("events", pa.int64())]))

DEMAND = table_schema(
    {
        "split": pa.int32(),
        "pane": pa.int64(),
        "publisher": pa.int32(),
        "client": pa.string(),
        "cell": pa.int32(),
        "tags": pa.int64(),
        "classes": _INTS,
        "destinations": _INTS,
        "count": pa.int64(),
        "bytes": pa.int64(),
    }
)
"""Per pattern: the window, the start of its pane of time in microseconds (null: none), the publisher's
broker, the client (null unless told apart), the cell (-1: none), tags as bits, the matched classes, the
brokers other than the publisher's that must get it, events and their bytes."""

QUARANTINE = table_schema(
    {
        "file": pa.string(),
        "line": pa.int64(),
        "position": pa.int64(),
        "reason": pa.string(),
        "detail": pa.string(),
        "raw": pa.binary(),
        "rows": pa.int64(),
    }
)
"""Per record, or part of a file, that could not be used: where, why, its first bytes, and how many records
it stands for (0: nobody knows)."""

UNKNOWN = table_schema({"split": pa.int32(), "publisher": pa.string(), "events": pa.int64()})
"""Per window and publisher without a known broker: its events."""

SPANS = table_schema(
    {"split": pa.int32(), "events": pa.int64(), "first_us": pa.int64(), "last_us": pa.int64()}
)
"""Per window: events, and the first and last time among them."""

CLASS_SUMS = table_schema(
    {
        "pane": pa.int64(),
        "class": pa.int32(),
        "events": pa.int64(),
        "bytes": pa.int64(),
        "patterns": pa.int64(),
    }
)
"""Per pane and class: the events and bytes it matched, and the rows of the demand table they are in."""

SELECTIVITY = table_schema(
    {
        "class": pa.int32(),
        "events": pa.int64(),
        "bytes": pa.int64(),
        "share": pa.float64(),
        "recent_events": pa.float64(),
        "recent_bytes": pa.float64(),
        "recent_share": pa.float64(),
    }
)
"""Per class: what it matched, its share of all events, and the same with decay (null without)."""

OVERLAP = table_schema(
    {
        "class_a": pa.int32(),
        "class_b": pa.int32(),
        "both": pa.int64(),
        "both_bytes": pa.int64(),
        "jaccard": pa.float64(),
    }
)
"""Per pair, class_a < class_b: events that both match, their bytes (null unless asked), and Jaccard."""

TRAFFIC = table_schema(
    {
        "publisher": pa.int32(),
        "destination": pa.int32(),
        "events": pa.int64(),
        "bytes": pa.int64(),
    }
)
"""Per pair of brokers: events published at one that the other must get; both the same: matched at home."""

PUBLISHED = table_schema(
    {
        "publisher": pa.int32(),
        "events": pa.int64(),
        "bytes": pa.int64(),
        "leaving_events": pa.int64(),
        "leaving_bytes": pa.int64(),
        "home_only_events": pa.int64(),
        "home_only_bytes": pa.int64(),
        "unmatched_events": pa.int64(),
        "unmatched_bytes": pa.int64(),
    }
)
"""Per broker: all it publishes, in three parts: some other broker wants it, only itself, nobody."""

HISTOGRAMS = table_schema(
    {"grid": pa.int32(), "cell": pa.int32(), "events": pa.int64(), "bytes": pa.int64()}
)
"""Per grid (its position) and cell: events and bytes. Cells without events have no row."""

CONTENT_SPACE = table_schema(
    {
        "cell": pa.int32(),
        "subscriptions": pa.int64(),
        "events": pa.int64(),
        "bytes": pa.int64(),
        "popularity": pa.float64(),
        "volume": pa.float64(),
        "weight": pa.float64(),
        "load": pa.float64(),
    }
)
"""Per cell, all of them in order: the counts, and what Kyra makes of them."""

GENERATING = table_schema(
    {"client": pa.string(), "cell": pa.int32(), "events": pa.int64(), "bytes": pa.int64()}
)
"""Per publishing client (null: not known) and cell: events and bytes."""

PROFILE = table_schema(
    {
        "path": pa.string(),
        "type": pa.string(),
        "events": pa.int64(),
        "present": pa.int64(),
        "nulls": pa.int64(),
        "distinct": pa.int64(),
        "distinct_error": pa.float64(),
        "least": pa.string(),
        "greatest": pa.string(),
        "mean_length": pa.float64(),
        "top": _TOP,
        "duplicates": pa.int64(),
    }
)
"""Per attribute, and for id, publisher, time and size.

events          of the whole source, the same in every row
present, nulls  with a value; with an explicit null
distinct        different values (of arrays: elements), off by `distinct_error` (relative, one standard
                deviation; 0 when exact)
least, greatest as text, cut when long; of arrays: of the elements
mean_length     of arrays that are there
top             the commonest values and in how many events they are; null where there are too many to count
duplicates      for id: events whose id another event has, less one each; else null
"""

_GRIDS = pa.schema([pa.field("grid", pa.string()), *CONTENT_SPACE])

TABLES: dict[str, Table] = {
    "demand": Table("a pattern: publisher, matched classes, destinations", DEMAND, ("split",)),
    "quarantine": Table("a record or file that could not be used", QUARANTINE, ("reason",)),
    "unknown": Table("a publisher without a known broker", UNKNOWN),
    "spans": Table("a window: its events and times", SPANS),
    "selectivity": Table("a class: what it matched, its share, with decay", SELECTIVITY),
    "overlap": Table("a pair of classes: events of both, Jaccard", OVERLAP),
    "traffic": Table("a pair of brokers: events one must get from the other", TRAFFIC),
    "published": Table("a broker: what it publishes, and how much leaves", PUBLISHED),
    "profile": Table("an attribute: type, presence, range, values", PROFILE),
    "content_space": Table("a cell of a grid: popularity, volume, weight, load", _GRIDS),
    "generating": Table("a publishing client and a cell: events", GENERATING),
}
"""Every table that is stored, by name."""


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
    import pyarrow.dataset as ds  # it loads pandas, and tasks import this module

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


def read_windows(under: str | Path, *, half_life_s: float | None = None) -> "Windows":
    """The demands of a stored demand table, with its spans and unknown publishers. O(rows log rows).

    A half-life needs a table that was written with panes; `InputError` otherwise.
    """
    from ramify.planning.demand.patterns import Patterns
    from ramify.planning.demand.windows import Span, Windows

    rows, about = read_table(under, "demand"), read_about(under, "demand")
    split = Split(tuple(about["shares"]), about["keep"], about["seed"])
    spans = {
        row["split"]: Span(row["events"], row["first_us"], row["last_us"])
        for row in read_table(under, "spans").to_pylist()
    }
    unknown = {
        (row["split"], row["publisher"]): row["events"] for row in read_table(under, "unknown").to_pylist()
    }
    return Windows.of_patterns(
        Patterns.of_table(rows),
        split,
        spans,
        unknown,
        about["tag_filters"],
        half_life_s=half_life_s,
        pane_us=about.get("pane_us", 0),
    )
