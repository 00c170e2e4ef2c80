"""Whatever JSON an event is, its batch holds what the JSON says: compared with a walk in plain Python."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from naive_events import alike, flatten, loads
from ramify.content.events.attributes import (
    CONTEXT_NAMES,
    OTHERS,
    AttributeType,
    AttributeValue,
    Event,
    text_path,
)
from ramify.content.events.cloudevents import decode_events
from ramify.content.events.events import EventSchema, batch_to_events, events_to_batch
from ramify.content.events.flatten import decode_records
from ramify.content.events.parquet import read_parquet
from ramify.content.events.readers import read_events

NAMES = st.sampled_from(["a", "b", "a.b", "c", "", "_body", "_nulls", "_others", ".", "é"])
HUGE = st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30, 10**400])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    HUGE,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, 1.0, 1e300]),
    st.text(max_size=3),
    st.sampled_from(["2026-01-31T09:00:00Z", "2026-01-31T09:00:00.5+02:00"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=5)
SCHEMAS = st.none() | st.dictionaries(
    st.sampled_from(["a", "b", "a.b", "c", "é"]), st.sampled_from(AttributeType), max_size=4
).map(EventSchema)


def text_of(record: dict[str, Any]) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(record).encode()


def same(found: Event, expected: dict[str, AttributeValue]) -> bool:
    """Whether an event has these attributes; a time of a given schema is compared by its text."""
    mine = dict(found.attributes)
    names = mine.keys() | expected.keys()
    return all(name in mine and name in expected and alike(mine[name], expected[name]) for name in names)


def as_written(event: Event) -> dict[str, AttributeValue]:
    """The attributes with times as they were written."""
    from ramify.content.events.timestamps import canonical_texts

    found = dict(event.attributes)
    for path, value in list(found.items()):
        if hasattr(value, "astimezone"):
            canonical = canonical_texts(pa.array([value], AttributeType.TIMESTAMP.arrow))[0].as_py()
            found[path] = found.pop(text_path(path), canonical)
    return found


def check(records: list[dict[str, Any]], schema: EventSchema | None) -> None:
    texts = [text_of({"id": str(k), **record}) for k, record in enumerate(records)]
    decoded = decode_records(texts, schema)
    assert decoded.rejected == []
    assert not decoded.unaddressable
    events = batch_to_events(decoded.batch)
    assert [event.body for event in events] == texts
    for event, text in zip(events, texts, strict=True):
        expected = {p: v for p, v in flatten(loads(text)).items() if p not in CONTEXT_NAMES}
        mine = as_written(event)
        assert mine.keys() == expected.keys()
        assert all(alike(mine[path], expected[path]) for path in mine)
    _each_path_once(decoded.batch)
    assert batch_to_events(events_to_batch(events)) == events


def _each_path_once(batch: pa.RecordBatch) -> None:
    assert OTHERS not in batch.schema.names[:-1]
    if OTHERS not in batch.schema.names:
        return
    items = batch.column(OTHERS).to_pylist()
    assert any(items)
    nulls = batch.column("_nulls").to_pylist()
    for row, found in enumerate(items):
        scalars = [item["path"] for item in found if not item["list"]]
        lists = {item["path"] for item in found if item["list"]}
        assert len(set(scalars)) == len(scalars)
        assert lists.isdisjoint(scalars)
        assert (lists | set(scalars)).isdisjoint(nulls[row])
        for path in (lists | set(scalars)) & set(EventSchema.of_batch(batch).attributes):
            assert batch.column(path)[row].as_py() is None


@given(st.lists(RECORDS, max_size=12), SCHEMAS)
@example([{"a": 1}, {"a": "1"}, {"a": [{"b": 1}, {"b": None}]}], None)
@example([{"a.b": [{"c": 1}, 5], "a": {"b": 2}}], None)
@example([{"a": 0.5}, {"a": 2**53 + 1}], None)
@example([{"a": [0.5, 2**53 + 1]}, {"a": [1]}], None)
def test_a_batch_holds_what_the_json_says(
    records: list[dict[str, Any]], schema: EventSchema | None
) -> None:
    check(records, schema)


@given(st.lists(RECORDS, min_size=1, max_size=3), st.integers(8, 20), SCHEMAS)
def test_so_do_columns_that_are_made_together(
    records: list[dict[str, Any]], times: int, schema: EventSchema | None
) -> None:
    check(records * times, schema)


@given(st.lists(RECORDS, max_size=8), SCHEMAS)
def test_the_data_of_a_cloudevent_is_read_like_any_record(
    records: list[dict[str, Any]], schema: EventSchema | None
) -> None:
    envelope = {"specversion": "1.0", "source": "s", "type": "t"}
    texts = [text_of({**envelope, "id": str(k), "data": data}) for k, data in enumerate(records)]
    decoded = decode_events(texts)
    assert decoded.rejected == []
    for event, data in zip(batch_to_events(decoded.batch), records, strict=True):
        expected = flatten({"source": "s", "type": "t", "data": loads(text_of(data))})
        assert same(event, expected)
        assert event.body == text_of(data)


@given(st.lists(RECORDS, max_size=8), st.frozensets(st.sampled_from(["a", "b", "a.b", "c", ".a"])))
def test_only_paths_asked_for_are_kept(records: list[dict[str, Any]], keep: frozenset[str]) -> None:
    texts = [text_of({"id": str(k), **record}) for k, record in enumerate(records)]
    decoded = decode_records(texts, keep=keep)
    assert decoded.rejected == []
    for event, text in zip(batch_to_events(decoded.batch), texts, strict=True):
        expected = {p: v for p, v in flatten(loads(text)).items() if p in keep}
        assert event.attributes.keys() == expected.keys()
        for path, value in expected.items():
            assert _numbered_anew(event.attributes[path], value)


def _numbered_anew(one: AttributeValue, other: AttributeValue) -> bool:
    """Alike but for the numbers of arrays, which count only arrays that were looked at."""
    plain = [tuple(value) if isinstance(value, tuple) else value for value in (one, other)]
    places = [
        [[index for _, index in place] for place in getattr(value, "places", ())] for value in (one, other)
    ]
    return alike(*plain) and places[0] == places[1]


def test_numbers_beyond_a_double_are_infinite() -> None:
    texts = [b'{"id":"1","x":1e400,"y":-1e400,"z":' + b"9" * 5000 + b"}"]
    (event,) = batch_to_events(decode_records(texts).batch)
    assert event.attributes == {"x": float("inf"), "y": float("-inf"), "z": float("inf")}


def test_of_equal_keys_the_last_holds() -> None:
    (event,) = batch_to_events(decode_records([b'{"id":"1","a":1,"a":"x"}']).batch)
    assert event.attributes == {"a": "x"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("2026-01-31T09:00:00Z", False),
        ("2026-01-31T09:00:00.250Z", False),
        ("2026-01-31T09:00:00.250001Z", False),
        ("2026-01-31T09:00:00.25Z", True),
        ("2026-01-31T09:00:00.000Z", True),
        ("2026-01-31T10:00:00+01:00", True),
        ("2026-01-31t09:00:00z", True),
    ],
)
def test_the_text_of_a_time_is_kept_unless_it_is_canonical(text: str, kept: bool) -> None:
    (event,) = batch_to_events(decode_records([text_of({"id": "1", "time": text})]).batch)
    assert event.time is not None
    assert event.attributes == ({text_path("time"): text} if kept else {})


def test_what_is_no_time_stays_what_it_is() -> None:
    schema = EventSchema({"t": AttributeType.TIMESTAMP})
    values: list[Any] = ["2026-01-31T09:00:00Z", "soon", 5, ["x"], None]
    texts = [text_of({"id": str(k), "t": value}) for k, value in enumerate(values)]
    events = batch_to_events(decode_records(texts, schema).batch)
    assert [e.attributes["t"] for e in events[1:]] == ["soon", 5, ("x",), None]


def test_attributes_beyond_the_column_limit_can_be_reached() -> None:
    record = {f"k{k}": k for k in range(1100)}
    decoded = decode_records([text_of({"id": "1", **record})])
    assert len(EventSchema.of_batch(decoded.batch).attributes) == 1024
    assert batch_to_events(decoded.batch)[0].attributes == record


def test_a_long_name_above_many_elements_is_refused_cheaply() -> None:
    text = text_of({"id": "1", "n" * 1000: [{"b": 1}] * 20_000})
    (bad,) = decode_records([text]).rejected
    assert bad.reason == "too_large"


@given(st.lists(RECORDS, max_size=8), st.none() | st.frozensets(st.sampled_from(["a", "b", "a.b", "c"])))
def test_a_parquet_file_of_a_batch_comes_back_as_it_was(
    records: list[dict[str, Any]], keep: frozenset[str] | None
) -> None:
    texts = [text_of({"id": str(k), **record}) for k, record in enumerate(records)]
    batch = decode_records(texts).batch
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    (decoded,) = read_parquet(sink.getvalue(), keep=keep)
    assert decoded.rejected == []
    for event, again in zip(batch_to_events(batch), batch_to_events(decoded.batch), strict=True):
        asked = event.attributes if keep is None else keep
        for path in asked:
            assert event.attributes.get(path, "absent") == again.attributes.get(path, "absent")


def test_integers_beside_the_last_exact_double_are_kept_in_parquet_too(tmp_path: Path) -> None:
    edge = 2**53
    rows = [[edge + 1], [edge], [-edge - 1, 5]]
    table = pa.table({"id": ["1", "2", "3"], "li": rows})
    pq.write_table(table, tmp_path / "t.parquet")
    (decoded,) = read_events(tmp_path / "t.parquet")
    assert [list(event.attributes["li"]) for event in batch_to_events(decoded.batch)] == rows
    pq.write_table(pa.table({"id": ["1"], "x": [edge + 1]}), tmp_path / "i.parquet")
    (decoded,) = read_events(tmp_path / "i.parquet", EventSchema({"x": AttributeType.DOUBLE}))
    assert batch_to_events(decoded.batch)[0].attributes["x"] == edge + 1
