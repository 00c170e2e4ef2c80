"""Matching on Spark finds what plain evaluation finds, however the filters are divided into shards."""

import json
import pickle
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from batches import batch_of
from ramify.content.events.events import Event, EventSchema, batch_to_events, events_to_batch
from ramify.content.filters.filters import EVERYTHING, Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.matcher import Matcher, Matches
from ramify.errors import InputError, LimitError, SchemaError
from ramify.pipeline.passes import matching
from ramify.pipeline.passes.matching import Shards, compile_shards, join_matches, match, ship_matcher
from ramify.pipeline.session.shipping import ship, shipped
from strategies import filters, typed_rows

Row = dict[str, Any]


def listed(matches: Matches) -> list[list[int]]:
    return [ids.tolist() for ids in matches]


def naive(asked: list[Filter], events: list[Row]) -> list[list[int]]:
    return [[k for k, f in enumerate(asked) if f.holds(event)] for event in events]


# ------------------------------------------------------------------------------ shards, without Spark


@settings(max_examples=50)
@given(st.lists(filters(), max_size=12), st.lists(typed_rows(), max_size=8), st.integers(1, 12), st.data())
def test_any_sharding_finds_what_one_matcher_finds(
    tmp_path_factory: pytest.TempPathFactory,
    asked: list[Filter],
    events: list[Row],
    parts: int,
    data: st.DataObject,
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(asked)), min_size=parts, max_size=parts)))
    bounds = list(zip([0, *cuts], [*cuts, len(asked)], strict=True))
    batch = batch_of(events)
    found = [Matcher(asked[low:high]).match(batch) for low, high in bounds]
    joined = join_matches(found, [low for low, _ in bounds], batch.num_rows)
    assert listed(joined) == listed(Matcher(asked).match(batch)) == naive(asked, events)
    assert joined.ids.dtype == np.int32


@settings(max_examples=25)
@given(st.lists(filters(), max_size=12), st.lists(typed_rows(), min_size=1, max_size=8), st.data())
def test_shards_keep_to_their_size_and_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, asked: list[Filter], events: list[Row], data: st.DataObject
) -> None:
    alone = max((Matcher([f]).frozen().nbytes for f in asked), default=0)
    shard_bytes = alone + data.draw(st.integers(0, 2000))
    directory = tmp_path_factory.mktemp("shards")
    shards = compile_shards(iter(asked), directory, shard_bytes=shard_bytes)
    batches = [batch_of(events[:3]), batch_of(events[3:]), batch_of([])]
    found = list(shards.match_all(batches))
    assert [ids for _, matches in found for ids in listed(matches)] == naive(asked, events)
    assert all(batch is given_ for (batch, _), given_ in zip(found, batches, strict=True))
    assert shards.total == len(asked)
    for name in shards.names:
        assert matching.open_matcher(Path(name)).nbytes <= shard_bytes


def keyword_filters(count: int, seed: int = 1) -> Iterator[Filter]:
    rng = random.Random(seed)
    for _ in range(count):
        yield parse_keywords([f"w{rng.randrange(200)}", f"w{rng.randrange(200)}"], "tags")


def test_many_shards_are_about_as_full_as_they_may_be(tmp_path: Path) -> None:
    whole = Matcher(keyword_filters(3000)).frozen().nbytes
    shards = compile_shards(keyword_filters(3000), tmp_path, shard_bytes=whole // 5)
    assert 5 <= len(shards.names) <= 9
    assert list(shards.firsts) == sorted(set(shards.firsts))


def test_filters_are_consumed_as_a_stream(tmp_path: Path) -> None:
    made = 0

    def stream() -> Iterator[Filter]:
        nonlocal made
        for filter_ in keyword_filters(3000):
            made += 1
            yield filter_

    seen: list[int] = []

    def place(path: Path) -> str:
        seen.append(made)
        return str(path)

    whole = Matcher(keyword_filters(3000)).frozen().nbytes
    shards = compile_shards(stream(), tmp_path, shard_bytes=whole // 5, place=place)
    # when a shard is complete, no filter beyond its own and the lot that did not fit has been asked for
    for first, asked_for in zip(shards.firsts[2:], seen[1:], strict=False):
        assert asked_for <= first * 1.3


def test_one_shard_is_open_at_a_time_and_rows_held_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list(keyword_filters(600))
    whole = Matcher(asked).frozen().nbytes
    shards = compile_shards(asked, tmp_path, shard_bytes=whole // 3)
    assert len(shards.names) >= 3
    monkeypatch.setattr(matching, "HELD_ROWS", 10)
    events: list[Row] = [{"tags": (f"w{k}", f"w{k + 1}")} for k in range(40)]
    batches = [batch_of(events[k : k + 4]) for k in range(0, 40, 4)]
    taken = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch

    for done, (_, matches) in enumerate(shards.match_all(counted())):
        assert taken <= done + 3  # two batches fit, a third was asked for to know that it does not
        assert listed(matches) == naive(asked, events[4 * done : 4 * done + 4])
    assert len(matching._OPEN) <= 1


def test_things_come_back_beside_the_matches_of_their_batch(tmp_path: Path) -> None:
    shards = compile_shards([EVERYTHING], tmp_path)
    things = [("a", batch_of([{"x": 1}])), ("b", batch_of([]))]
    back = [(name, len(m)) for (name, _), m in shards.match_each(things, lambda thing: thing[1])]
    assert back == [("a", 1), ("b", 0)]


def test_no_filters_match_nothing(tmp_path: Path) -> None:
    shards = compile_shards([], tmp_path)
    assert shards == Shards((), (), 0, ())
    ((_, matches),) = shards.match_all([batch_of([{"x": 1}, {}])])
    assert listed(matches) == [[], []]


def test_a_filter_that_no_shard_can_hold_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="allow larger shards"):
        compile_shards(keyword_filters(5), tmp_path, shard_bytes=50)


def test_shards_travel_and_know_the_columns_they_need(tmp_path: Path) -> None:
    shards = compile_shards([parse_sql("`d.e` = 1 AND x > 2"), parse_sql("s = 'a'")], tmp_path)
    assert pickle.loads(pickle.dumps(shards)) == shards
    assert shards.paths == ("d.e", "s", "x")


# ------------------------------------------------------------------------------------------ on Spark

WORDS = [f"w{k}" for k in range(40)]
CITIES = ["Paris", "Zürich", "東京", "", "Oslo"]
START = datetime(2026, 1, 1, tzinfo=UTC)


def random_events(rng: random.Random, count: int) -> list[Event]:
    """Events of every attribute type, with absent and explicitly null values."""

    def maybe(row: Row, path: str, value: Any) -> None:
        chance = rng.random()
        if chance < 0.85:
            row[path] = value
        elif chance < 0.93:
            row[path] = None

    events = []
    for k in range(count):
        row: Row = {}
        maybe(row, "city", rng.choice(CITIES))
        maybe(row, "order.price", rng.randrange(-50, 1000) / 4)
        maybe(row, "order.qty", rng.randrange(10))
        maybe(row, "hot", rng.random() < 0.5)
        maybe(row, "seen", START + timedelta(hours=rng.randrange(200), microseconds=rng.randrange(2)))
        maybe(row, "tags", tuple(rng.sample(WORDS, rng.randrange(4))))
        maybe(row, "levels", tuple(float(rng.randrange(5)) for _ in range(rng.randrange(3))))
        events.append(Event(f"e{k}", "p", START + timedelta(seconds=k), row, size_bytes=k))
    return events


def random_filter(rng: random.Random) -> Filter:
    """A filter of any of the three spellings over the same attributes."""
    city, word, price = rng.choice(CITIES), rng.choice(WORDS), rng.randrange(1000) / 4
    hour = START + timedelta(hours=rng.randrange(200))
    sql = [
        f"city = '{city}' AND `order.price` < {price}",
        f"order.price BETWEEN {price} AND {price + 30} OR hot",
        f"seen >= TIMESTAMP '{hour:%Y-%m-%d %H:%M:%S}' AND NOT array_contains(tags, '{word}')",
        f"city LIKE '%{city[-1:]}' AND order.qty IN (1, {rng.randrange(10)}, NULL)",
        f"city IS NULL AND order.qty <> {rng.randrange(10)}",
        f"time < TIMESTAMP '2026-01-01 00:{rng.randrange(60):02d}:00' AND id LIKE 'e{rng.randrange(10)}%'",
    ]
    patterns: list[Row] = [
        {"city": [{"prefix": city[:2]}, None], "order": {"qty": [{"numeric": [">", rng.randrange(9)]}]}},
        {"tags": [{"anything-but": [word]}], "hot": [rng.random() < 0.5]},
        {"seen": [{"exists": False}], "city": [{"anything-but": {"suffix": "o"}}]},
        {"levels": [rng.randrange(5)], "$or": [{"tags": [word]}, {"city": [{"wildcard": "*r*"}]}]},
    ]
    match rng.randrange(3):
        case 0:
            return parse_sql(rng.choice(sql))
        case 1:
            return parse_pattern(json.dumps(rng.choice(patterns)))
    words = rng.sample(WORDS, 3)
    return parse_keywords(words if rng.random() < 0.5 else [words[:2], words[2:]], "tags")


def frame_of(spark: SparkSession, batch: pa.RecordBatch, partitions: int) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_batches([batch])).repartition(partitions)


def by_id(found: DataFrame) -> dict[str, list[int]]:
    table = found.select("id", "matches").toArrow()
    return dict(zip(table["id"].to_pylist(), table["matches"].to_pylist(), strict=True))


@pytest.mark.parametrize(("partitions", "shards_wanted"), [(1, 1), (3, 4)])
def test_all_three_spellings_through_spark_equal_plain_evaluation(
    spark: SparkSession, partitions: int, shards_wanted: int
) -> None:
    seed = 20260116 + partitions
    print("seed", seed)
    rng = random.Random(seed)
    events, asked = random_events(rng, 5000), [random_filter(rng) for _ in range(500)]
    batch = events_to_batch(events)
    limit = 2**28 if shards_wanted == 1 else Matcher(asked).frozen().nbytes // 3
    shards = ship_matcher(spark, iter(asked), shard_bytes=limit)
    assert len(shards.names) >= shards_wanted
    found = match(frame_of(spark, batch, partitions), shards)
    assert found.columns == ["id", "publisher", "time", "_size_bytes", "matches"]
    values = {event.id: event.values for event in batch_to_events(batch)}
    sample = rng.sample(sorted(values), 400)
    got = by_id(found)
    assert {id_: got[id_] for id_ in sample} == dict(
        zip(sample, naive(asked, [dict(values[id_]) for id_ in sample]), strict=True)
    )
    whole = Matcher(asked).match(batch)
    assert got == {event.id: whole[k].tolist() for k, event in enumerate(events)}


SCHEMA = EventSchema({"b": "boolean", "d.e": "int64", "s": "string", "t": "string", "tags": "array<string>",
                      "ts": "timestamp", "x": "int64", "y": "double"})  # fmt: skip


@settings(max_examples=6)
@given(st.lists(filters(), min_size=1, max_size=20), st.lists(typed_rows(), min_size=1, max_size=12))
def test_drawn_filters_through_spark_equal_plain_evaluation(
    spark: SparkSession, asked: list[Filter], rows: list[Row]
) -> None:
    events = [Event(f"e{k}", None, None, row) for k, row in enumerate(rows)]
    frame = frame_of(spark, events_to_batch(events, SCHEMA), 2)
    found = by_id(match(frame, ship_matcher(spark, asked)))
    expected = naive(asked, [dict(event.values) for event in events])
    assert found == {event.id: ids for event, ids in zip(events, expected, strict=True)}


def test_rows_without_matches_stay_and_kept_columns_are_as_they_were(spark: SparkSession) -> None:
    events = [Event("a", None, None, {"n.x": 1}), Event("b", "p", START, {"n.x": 2}, size_bytes=7)]
    frame = frame_of(spark, events_to_batch(events), 1)
    found = match(frame, ship_matcher(spark, [parse_sql("n.x = 2")]), keep=("id", "n.x", "time"))
    assert sorted(map(tuple, found.collect())) == [
        ("a", 1, None, []),
        ("b", 2, START.replace(tzinfo=None), [0]),
    ]
    assert found.schema["matches"].simpleString() == "matches:array<int>"
    assert not found.schema["matches"].nullable


def test_attributes_that_differ_in_case_only_are_told_apart(spark: SparkSession) -> None:
    frame = spark.createDataFrame(pa.table({"id": ["a", "b"], "x": [1, 2], "X": [2, 1]}))
    shards = ship_matcher(spark, [parse_sql("x = 1"), parse_sql("X = 1")])
    assert by_id(match(frame, shards, ["id"])) == {"a": [0], "b": [1]}


def test_columns_that_cannot_be_kept_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame(pa.table({"id": ["a"], "matches": [1]}))
    with pytest.raises(SchemaError, match="no column size, colour"):
        match(frame, Shards((), (), 0, ()), ["id", "size", "colour"])
    with pytest.raises(SchemaError, match="cannot be kept"):
        match(frame, Shards((), (), 0, ()), ["id", "matches"])


# ---------------------------------------------------------------------------------------- shipping


def test_a_file_is_shipped_once_and_found_by_tasks_after_it_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(b"first")
    name = ship(spark, path)
    assert ship(spark, path) == name
    path.write_bytes(b"second")
    other = ship(spark, path)
    assert other != name
    path.unlink()
    assert shipped(name).read_bytes() == b"first"

    def contents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [shipped(n).read_bytes().decode() for n in batch.column(0).to_pylist()]
            yield pa.record_batch({"text": texts})

    names = spark.createDataFrame([(name,), (other,)], "name string").repartition(2)
    assert sorted(row.text for row in names.mapInArrow(contents, "text string").collect()) == [
        "first",
        "second",
    ]


def test_files_that_are_not_there_are_said_to_be_missing(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be sent to Spark"):
        ship(spark, tmp_path / "none")
    with pytest.raises(InputError, match="Spark has no file never-sent"):
        shipped("never-sent")


def test_a_shard_stays_open_for_the_next_task_of_its_process(spark: SparkSession) -> None:
    shards = ship_matcher(spark, [EVERYTHING])

    def openings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        was = [name in matching._OPEN for name in shards.names]
        rows = sum(len(m) for _, m in shards.match_all(batches))
        yield pa.record_batch({"was": was, "rows": [rows]})

    frame = spark.range(8).repartition(8)
    found = [
        row for _ in range(2) for row in frame.mapInArrow(openings, "was boolean, rows long").collect()
    ]
    assert sum(row.rows for row in found) == 16
    assert sum(not row.was for row in found) <= 2  # two task slots, so two Python workers
