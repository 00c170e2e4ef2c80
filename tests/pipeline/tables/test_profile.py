import math
import random
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.errors import InputError
from ramify.pipeline.passes.sources import FrameSource
from ramify.pipeline.passes.table_files import PROFILE
from ramify.pipeline.tables.profile import profile

SCHEMA = EventSchema(
    {
        "a.name": AttributeType.STRING,
        "count": AttributeType.INT64,
        "price": AttributeType.DOUBLE,
        "hot": AttributeType.BOOLEAN,
        "seen": AttributeType.TIMESTAMP,
        "tags": AttributeType.STRINGS,
        "numbers": AttributeType.NUMBERS,
        "never": AttributeType.STRING,
    }
)


def random_events(seed: int, count: int) -> list[Event]:
    print(f"seed {seed}")
    rng = random.Random(seed)
    events = []
    for k in range(count):
        values: dict[str, object] = {
            "a.name": rng.choice(["x", "yy", "z" * 100, None]),
            "count": rng.randrange(-5, 5),
            "price": float(k),
            "hot": rng.random() < 0.5,
            "seen": datetime(2026, 1, rng.randrange(1, 5), tzinfo=UTC),
            "tags": tuple(rng.choice("pqr") for _ in range(rng.randrange(4))),
            "numbers": (1.5, 2.5),
        }
        kept = {path: value for path, value in values.items() if rng.random() < 0.9}
        events.append(Event(f"e{k % (count - 3)}", "ann", None, kept, size_bytes=k))  # type: ignore[arg-type]
    return events


def rows_of(
    spark: SparkSession, events: list[Event], partitions: int, **options: int
) -> dict[str, dict[str, object]]:
    table = pa.Table.from_batches([events_to_batch(events, SCHEMA)])
    source = FrameSource.of(spark.createDataFrame(table).repartition(partitions))
    found = profile(spark, source, **options).toArrow().cast(PROFILE)
    fixed = ["id", "publisher", "time", "_size_bytes"]
    assert found.column("path").to_pylist() == [*fixed, *SCHEMA.attributes]
    return {row["path"]: row for row in found.to_pylist()}


def test_counts_ranges_and_top_values_equal_a_plain_loop(spark: SparkSession) -> None:
    events = random_events(41, 60)
    found, *others = [rows_of(spark, events, partitions) for partitions in (1, 2, 7)]
    assert others == [found, found]
    for path, row in found.items():
        assert row["events"] == 60
        assert row["distinct_error"] == 0.0
        assert row["duplicates"] == (3 if path == "id" else None)
    for path in SCHEMA.attributes:
        values = [e.attributes[path] for e in events if e.attributes.get(path) is not None]
        flat = [v for value in values for v in (value if isinstance(value, tuple) else [value])]
        assert found[path]["present"] == len(values), path
        assert found[path]["nulls"] == sum(
            path in e.attributes and e.attributes[path] is None for e in events
        )
        assert found[path]["distinct"] == len(set(flat)), path
    names = Counter(e.attributes["a.name"] for e in events if e.attributes.get("a.name"))
    top = sorted(((-n, name) for name, n in names.items()))  # type: ignore[type-var]
    assert found["a.name"]["top"] == [{"value": name[:64], "events": -n} for n, name in top]  # type: ignore[index]
    tags = [e.attributes["tags"] for e in events if "tags" in e.attributes]
    assert found["tags"]["mean_length"] == sum(map(len, tags)) / len(tags)  # type: ignore[arg-type]
    assert {t["value"]: t["events"] for t in found["tags"]["top"]} == {  # type: ignore[attr-defined]
        tag: sum(tag in t for t in tags)  # type: ignore[operator]
        for tag in "pqr"
    }


def test_ranges_are_those_of_the_type_and_long_texts_are_cut(spark: SparkSession) -> None:
    found = rows_of(spark, random_events(42, 60), 2, text_length=5)
    ranges = {path: (row["least"], row["greatest"]) for path, row in found.items()}
    assert ranges["_size_bytes"] == ("0", "59")
    assert ranges["count"] == ("-5", "4")
    assert ranges["a.name"] == ("x", "zzzzz")
    assert ranges["hot"] == ("false"[:5], "true")
    assert ranges["numbers"] == ("1.5", "2.5")
    assert ranges["never"] == ranges["time"] == (None, None)
    assert found["never"]["top"] == []


def test_too_many_values_are_estimated_and_say_so_to_every_reader(spark: SparkSession) -> None:
    """There are too many in one task; none of seven tasks has too many by itself."""
    events = random_events(43, 6_000)
    found, other = (rows_of(spark, events, parts, exact_up_to=1_000, top=2) for parts in (1, 7))
    assert found == other
    for path in ("_size_bytes", "price"):
        true = 6_000 if path == "_size_bytes" else sum("price" in e.attributes for e in events)
        assert found[path]["distinct_error"] == 0.02
        assert found[path]["distinct"] == pytest.approx(true, rel=0.08)  # four standard deviations
        assert found[path]["top"] is None
    prices = [e.attributes["price"] for e in events if "price" in e.attributes]
    assert found["price"]["least"] == f"{min(prices):g}"  # type: ignore[type-var]
    assert found["price"]["greatest"] == f"{max(prices):g}"  # type: ignore[type-var]
    assert (found["id"]["distinct"], found["id"]["distinct_error"]) == (5_997, 0.0)
    assert (found["id"]["duplicates"], found["id"]["top"]) == (3, None)
    assert found["count"]["distinct_error"] == 0.0
    assert len(found["count"]["top"]) == 2  # type: ignore[arg-type]


def test_as_many_values_as_are_counted_exactly_are_not_too_many(spark: SparkSession) -> None:
    found = rows_of(spark, random_events(44, 43), 1, exact_up_to=43)
    assert (found["_size_bytes"]["distinct"], found["_size_bytes"]["distinct_error"]) == (43, 0.0)
    assert (found["id"]["distinct"], found["id"]["duplicates"]) == (40, 3)
    once = sorted(f"e{k}" for k in range(3, 40))
    top = [(name, 2) for name in ("e0", "e1", "e2")] + [(name, 1) for name in once[:7]]
    assert found["id"]["top"] == [{"value": name, "events": n} for name, n in top]


def test_values_are_spelled_as_documented(spark: SparkSession) -> None:
    noon = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
    early = datetime(1969, 12, 31, tzinfo=UTC)
    columns = {
        "id": ["a", "b", "c"],
        "d": [-0.0, 0.0, math.nan],
        "e": [1e20, 2.0, -1.5],
        "f": [math.nan] * 3,
        "t": pa.array([noon, early, None], pa.timestamp("us", tz="UTC")),
        "n": [[0.0, -0.0, None], [], [3.0, 0.0, 3.0]],
        "s": ["\u00e9\u00e9\u00e9", "\U0001f600" * 80, ""],
    }
    rows = FrameSource.of(spark.createDataFrame(pa.table(columns)))
    found = {row["path"]: row for row in profile(spark, rows).toArrow().to_pylist()}
    tops = {path: [(t["value"], t["events"]) for t in row["top"]] for path, row in found.items()}
    ranges = {path: (row["least"], row["greatest"]) for path, row in found.items()}
    assert tops["d"] == [("0", 2), ("nan", 1)]
    assert ranges["d"] == ("0", "0")
    assert (tops["f"], ranges["f"]) == ([("nan", 3)], (None, None))
    assert sorted(tops["e"]) == [("-1.5", 1), ("1e+20", 1), ("2", 1)]
    assert ranges["e"] == ("-1.5", "1e+20")
    assert ranges["t"] == ("1969-12-31 00:00:00.000000Z", "2026-01-31 12:00:00.000005Z")
    assert tops["n"] == [("0", 2), ("3", 1)]
    assert found["n"]["mean_length"] == 2.0
    assert ranges["s"] == ("", "\U0001f600" * 64)
    assert tops["s"][1] == ("\u00e9\u00e9\u00e9", 1)
    assert found["publisher"]["present"] == 0


def test_no_events_have_an_empty_profile(spark: SparkSession) -> None:
    found = rows_of(spark, [], 1)
    for row in found.values():
        assert (row["events"], row["present"], row["nulls"], row["distinct"]) == (0, 0, 0, 0)
        assert (row["least"], row["mean_length"], row["top"]) == (None, None, [])


def test_limits_must_be_positive(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="positive"):
        rows_of(spark, [], 1, top=0)
