"""What the data looks like: per attribute its type, how often it is there, its range and its values.

Owns the profile of a source. It judges nothing: how attributes become axes is for `histograms`, what is
a bad record for the source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ramify.content.events import NULLS, SIZE_BYTES, AttributeType, EventSchema
from ramify.errors import InputError
from ramify.pipeline.sources import Source
from ramify.pipeline.tables import PROFILE, spark_schema, table_schema

__all__ = ["profile"]


_STANDARD_ERROR = 0.02
_ARRAYS = (AttributeType.STRINGS, AttributeType.NUMBERS)


def profile(
    spark: SparkSession, source: Source, *, exact_up_to: int = 10_000, top: int = 10, text_length: int = 64
) -> DataFrame:
    """The profile of a source: a row per attribute, the fixed ones first, in the columns of `PROFILE`.

    Distinct values are counted by HyperLogLog first; where it finds at most `exact_up_to`, exactly. The
    source is read once and its columns (no bodies) are cached meanwhile; up to five queries run on
    them. Texts are cut to `text_length` characters after comparing. Ties in `top` go to the smaller
    text.

    Raises
    ------
    InputError
        When one of the limits is not positive.
    """
    if min(exact_up_to, top, text_length) < 1:
        raise InputError("the limits of a profile must be positive")
    columns = _columns(source.schema)
    frame = _attributes(spark, source, columns).persist()
    try:
        found = _aggregated(frame, columns, text_length)
        few = [column for column in columns if found[column.name]["distinct"] <= exact_up_to]
        counted = _value_counts(frame, few, top, text_length)
        nulls = _explicit_nulls(frame)
        duplicates = _duplicates(frame)
    finally:
        frame.unpersist()
    rows = [
        _row(column, found, counted.get(column.name), nulls.get(column.path, 0), duplicates)
        for column in columns
    ]
    return spark.createDataFrame(rows, spark_schema(PROFILE))


@dataclass(frozen=True, slots=True)
class _Column:
    """An attribute, and the plain name of its column here: paths have dots, which Spark reads as fields."""

    name: str
    path: str
    kind: AttributeType

    @property
    def is_array(self) -> bool:
        return self.kind in _ARRAYS


def _columns(schema: EventSchema) -> list[_Column]:
    fixed = {
        "id": AttributeType.STRING,
        "publisher": AttributeType.STRING,
        "time": AttributeType.TIMESTAMP,
        SIZE_BYTES: AttributeType.INT64,
    }
    kinds = {**fixed, **schema.attributes}
    return [_Column(f"c{k}", path, kind) for k, (path, kind) in enumerate(kinds.items())]


def _attributes(spark: SparkSession, source: Source, columns: Sequence[_Column]) -> DataFrame:
    """The source's columns under plain names, and the lists of explicit nulls."""
    wanted = table_schema(
        {**{column.name: column.kind.arrow for column in columns}, "nulls": pa.list_(pa.string())}
    )
    paths = [*(column.path for column in columns), NULLS]

    def choose(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for chunk in source.read(rows):
            arrays = [chunk.batch.column(path) for path in paths]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return source.frame(spark).mapInArrow(choose, spark_schema(wanted))


def _aggregated(
    frame: DataFrame, columns: Sequence[_Column], text_length: int
) -> dict[str, dict[str, Any]]:
    """Per column: events, present, length, distinct (estimated), least and greatest."""
    wanted = [F.count(F.lit(1)).alias("events")]
    for column in columns:
        name = column.name
        wanted.append(F.count(name).alias(f"{name}_present"))
        if column.is_array:
            wanted.append(F.sum(F.size(name)).alias(f"{name}_length"))
        else:
            wanted += _summary(F.col(name), f"{name}_", text_length)
    row = frame.agg(*wanted).first()
    assert row is not None, "an aggregate without groups has one row"
    found = {c.name: _picked(row.asDict(), c.name) | {"events": row["events"]} for c in columns}
    for column in columns:
        if column.is_array:
            elements = frame.select(F.explode(column.name).alias("value"))
            row = elements.agg(*_summary(F.col("value"), "", text_length)).first()
            found[column.name] |= row.asDict() if row is not None else {}
    return found


def _summary(value: Column, prefix: str, text_length: int) -> list[Column]:
    def text(edge: Column) -> Column:
        return F.substring(edge.cast("string"), 1, text_length)

    return [
        F.approx_count_distinct(value, _STANDARD_ERROR).alias(f"{prefix}distinct"),
        text(F.min(value)).alias(f"{prefix}least"),
        text(F.max(value)).alias(f"{prefix}greatest"),
    ]


def _picked(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.removeprefix(f"{name}_"): v for key, v in row.items() if key.startswith(f"{name}_")}


def _value_counts(
    frame: DataFrame, columns: Sequence[_Column], top: int, text_length: int
) -> dict[str, tuple[int, list[tuple[str, int]]]]:
    """Per column with few values: how many there are, and the commonest with their events."""
    if not columns:
        return {}
    texts = [_texts(column) for column in columns]
    long = frame.select(F.explode(F.concat(*texts)).alias("v")).select("v.name", "v.value")
    counts = long.groupBy("name", "value").agg(F.count(F.lit(1)).alias("events"))
    ranked = F.array_sort(F.collect_list(F.struct((-F.col("events")).alias("rank"), "value")))
    rows = counts.groupBy("name").agg(
        F.count(F.lit(1)).alias("distinct"), F.slice(ranked, 1, top).alias("top")
    )
    found: dict[str, tuple[int, list[tuple[str, int]]]] = {column.name: (0, []) for column in columns}
    for row in rows.collect():
        tops = [(value[:text_length], -rank) for rank, value in row["top"]]
        found[row["name"]] = row["distinct"], tops
    return found


def _texts(column: _Column) -> Column:
    """The values in a column of an event, each once, as an array of (name, value); empty without any."""
    value = F.col(column.name)
    values = F.array_distinct(value) if column.is_array else F.array_compact(F.array(value))
    named = F.transform(
        values, lambda v: F.struct(F.lit(column.name).alias("name"), v.cast("string").alias("value"))
    )
    return F.coalesce(named, F.array().cast("array<struct<name:string,value:string>>"))


def _explicit_nulls(frame: DataFrame) -> dict[str, int]:
    exploded = frame.select(F.explode("nulls").alias("path"))
    rows = exploded.groupBy("path").agg(F.count(F.lit(1)).alias("events")).collect()
    return {row["path"]: row["events"] for row in rows}


def _duplicates(frame: DataFrame) -> int:
    """How many events have an id that another has, less one for each such id."""
    row = frame.agg((F.count("c0") - F.countDistinct("c0")).alias("more")).first()
    return int(row["more"]) if row is not None else 0


def _row(
    column: _Column,
    found: Mapping[str, Mapping[str, Any]],
    counted: tuple[int, list[tuple[str, int]]] | None,
    nulls: int,
    duplicates: int,
) -> tuple[Any, ...]:
    mine = found[column.name]
    present = mine["present"]
    length = mine["length"] / present if column.is_array and present else None
    return (
        column.path,
        str(column.kind),
        mine["events"],
        present,
        nulls,
        mine["distinct"] if counted is None else counted[0],
        _STANDARD_ERROR if counted is None else 0.0,
        mine["least"],
        mine["greatest"],
        length,
        None if counted is None else counted[1],
        duplicates if column.path == "id" else None,
    )
