import random
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ramify.content.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.errors import InputError
from ramify.pipeline.profile import profile
from ramify.pipeline.sources import Rows
from ramify.pipeline.tables import PROFILE

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
    source = Rows.of(spark.createDataFrame(table).repartition(partitions))
    found = profile(spark, source, **options).toArrow().cast(PROFILE)
    assert found.column("path").to_pylist() == [
        "id",
        "publisher",
        "time",
        "_size_bytes",
        *SCHEMA.attributes,
    ]
    return {row["path"]: row for row in found.to_pylist()}


def test_counts_ranges_and_top_values_equal_a_plain_loop(spark: SparkSession) -> None:
    events = random_events(41, 60)
    profiles = [rows_of(spark, events, partitions) for partitions in (1, 7)]
    assert profiles[0] == profiles[1]
    found = profiles[0]
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


def test_many_values_are_estimated_and_say_so(spark: SparkSession) -> None:
    found = rows_of(spark, random_events(43, 300), 2, exact_up_to=50, top=2)
    assert found["_size_bytes"]["distinct_error"] == 0.02
    assert found["_size_bytes"]["distinct"] == pytest.approx(300, rel=0.1)
    assert found["_size_bytes"]["top"] is None
    assert found["id"]["duplicates"] == 3
    assert found["count"]["distinct_error"] == 0.0
    assert len(found["count"]["top"]) == 2  # type: ignore[arg-type]


def test_no_events_have_an_empty_profile(spark: SparkSession) -> None:
    found = rows_of(spark, [], 1)
    for row in found.values():
        assert (row["events"], row["present"], row["nulls"], row["distinct"]) == (0, 0, 0, 0)
        assert (row["least"], row["mean_length"], row["top"]) == (None, None, [])


def test_limits_must_be_positive(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="positive"):
        rows_of(spark, [], 1, top=0)
