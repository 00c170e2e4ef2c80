"""CloudEvents in JSON: what the specification asks for, and the round trip."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events.attributes import text_path
from ramify.content.events.cloudevents import (
    ArraySplitter,
    decode_batch,
    decode_events,
    encode_batch,
    encode_event,
)
from ramify.content.events.events import (
    AttributeType,
    DecodedBatch,
    Event,
    EventSchema,
    RejectReason,
    batch_to_events,
    events_to_batch,
)
from ramify.content.events.flatten import MAX_DEPTH, MAX_RECORD_BYTES
from ramify.errors import InputError

# A shared machine may pause for longer than Hypothesis expects of a test.

A = AttributeType
R = RejectReason
MINIMAL = {"specversion": "1.0", "id": "e", "source": "/s", "type": "t"}

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NAMES = st.text("abc019", min_size=1, max_size=3)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
DATA = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PAYLOADS = (
    st.just({})
    | st.fixed_dictionaries({"data": DATA})
    | st.fixed_dictionaries(
        {"data_base64": st.binary(max_size=9).map(lambda b: base64.b64encode(b).decode())}
    )
)
EVENTS = st.builds(
    lambda known, extensions, payload: {**extensions, **MINIMAL, **known, **payload},
    st.fixed_dictionaries(
        {"id": TEXT.filter(bool), "source": TEXT.filter(bool), "type": TEXT.filter(bool)},
        optional={
            "subject": TEXT.filter(bool),
            "dataschema": TEXT.filter(bool),
            "datacontenttype": st.just("application/json"),
            "publisher": TEXT,
            "time": st.datetimes(timezones=st.just(UTC)).map(lambda t: t.isoformat()),
        },
    ),
    st.dictionaries(NAMES, TEXT, max_size=2) | st.dictionaries(NAMES, st.none(), max_size=1),
    PAYLOADS,
)


def one(**changes: Any) -> DecodedBatch:
    event = {name: value for name, value in {**MINIMAL, **changes}.items() if value is not ...}
    return decode_events([json.dumps(event).encode()])


def unsized(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(["_size_bytes"])


# --- round trips -------------------------------------------------------------------------------------


@given(st.lists(EVENTS, max_size=4), st.booleans())
def test_a_batch_survives_being_written_and_read(events: list[dict[str, Any]], ascii_only: bool) -> None:
    read = decode_batch(json.dumps(events, ensure_ascii=ascii_only, indent=1).encode())
    assert read.records == len(events)
    written = encode_batch(read.batch)
    again = decode_batch(written, EventSchema.of_batch(read.batch))
    assert again.rejected == []
    assert unsized(again.batch).equals(unsized(read.batch))
    assert encode_batch(again.batch) == written


@given(EVENTS)
def test_an_event_comes_back_with_all_that_it_said(event: dict[str, Any]) -> None:
    read = decode_events([json.dumps(event).encode()])
    assert read.rejected == []
    (value,) = batch_to_events(read.batch)
    written = encode_event(value)
    assert b"\n" not in written
    found = json.loads(written)
    expected = {name: v for name, v in event.items() if v is not None or name == "data"}
    if "time" in expected:
        assert datetime.fromisoformat(found.pop("time")) == datetime.fromisoformat(expected.pop("time"))
    if expected.get("publisher") == expected["source"]:
        del expected["publisher"]
    assert found == expected
    assert value.publisher == event.get("publisher", event["source"])


@given(
    st.lists(EVENTS | st.sampled_from([1, None, [], {}, "x]"]), max_size=5),
    st.integers(1, 40),
    st.integers(0, 2),
)
def test_an_array_is_cut_the_same_whatever_the_chunks(events: list[Any], step: int, indent: int) -> None:
    data = json.dumps(events, indent=indent).encode()
    splitter = ArraySplitter()
    cut = [
        item for start in range(0, len(data), step) for item in splitter.feed(data[start : start + step])
    ]
    assert list(splitter.finish()) == []
    assert [json.loads(record) for record, _ in cut] == events
    assert all(fault is None for _, fault in cut)


@given(st.binary(max_size=40) | st.text('[]{},"\\ a:1', max_size=30).map(str.encode))
def test_any_bytes_are_a_batch_or_a_rejection(data: bytes) -> None:
    decoded = decode_batch(data)
    assert decoded.batch.num_rows == 0
    decoded.batch.validate(full=True)


# --- reading -----------------------------------------------------------------------------------------


def test_context_and_data_become_columns() -> None:
    decoded = one(
        subject="x",
        time="2024-01-01T01:00:00+01:00",
        priority=3,
        urgent=True,
        data={"a": {"b": [1, 2]}, "n": None},
    )
    (event,) = batch_to_events(decoded.batch)
    assert (event.id, event.publisher, event.time) == ("e", "/s", datetime(2024, 1, 1, tzinfo=UTC))
    assert event.attributes == {
        "source": "/s",
        "type": "t",
        "subject": "x",
        "priority": 3,
        "urgent": True,
        "data.a.b": (1.0, 2.0),
        "data.n": None,
        text_path("time"): "2024-01-01T01:00:00+01:00",
    }
    assert json.loads(event.body or b"") == {"a": {"b": [1, 2]}, "n": None}
    assert event.body_is_json


def test_the_publisher_is_the_field_that_was_chosen() -> None:
    record = json.dumps({**MINIMAL, "subject": "x", "data": {"user": 7}}).encode()
    for field, expected in (("source", "/s"), ("subject", "x"), ("data.user", "7"), ("nothing", None)):
        assert decode_events([record], publisher=field).batch.column("publisher").to_pylist() == [expected]


def test_the_body_is_the_data_byte_for_byte() -> None:
    raw = b'{"specversion":"1.0","id":"e","source":"s","type":"t","data": { "a" : 1e2, "b":"\\u00e9" } }'
    assert decode_events([raw]).batch.column("_body").to_pylist() == [b'{ "a" : 1e2, "b":"\\u00e9" }']


@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        ("text", {"data": "text"}),
        (5, {"data": 5}),
        (None, {"data": None}),
        (["a"], {"data": ("a",)}),
        ({}, {}),
    ],
)
def test_data_that_is_no_object(data: object, attributes: dict[str, Any]) -> None:
    (event,) = batch_to_events(one(data=data).batch)
    assert {path: v for path, v in event.attributes.items() if path.startswith("data")} == attributes
    assert json.loads(event.body or b"") == data


def test_binary_data_is_a_binary_body() -> None:
    (event,) = batch_to_events(one(data_base64="AAH/").batch)
    assert (event.body, event.body_is_json) == (b"\x00\x01\xff", False)


@pytest.mark.parametrize("copies", [1, 20])
def test_a_null_in_the_place_of_the_other_data_is_absent(copies: int) -> None:
    texts = [{"data": "x", "data_base64": None}, {"data": None, "data_base64": None}, {"data_base64": None}]
    records = [json.dumps({**MINIMAL, **text}).encode() for text in texts] * copies
    batch = decode_events(records).batch
    assert batch.column("_body").to_pylist() == [b'"x"', b"null", None] * copies
    assert batch.column("_body_is_json").to_pylist() == [True, True, False] * copies


@given(st.lists(EVENTS, min_size=1, max_size=4), st.sampled_from(["source", "subject", "data.a", "data"]))
def test_an_event_is_read_the_same_alone_and_among_many(events: list[dict[str, Any]], field: str) -> None:
    records = [json.dumps(event).encode() for event in events]
    many = decode_events(records * 20, publisher=field)
    schema = EventSchema.of_batch(many.batch)
    alone = [decode_events([record], schema, publisher=field) for record in records]
    rows = [event for decoded in alone for event in batch_to_events(decoded.batch)]
    assert batch_to_events(many.batch) == rows * 20
    faults = [rejected.reason for decoded in alone for rejected in decoded.rejected]
    assert [rejected.reason for rejected in many.rejected] == faults * 20


def test_null_context_attributes_are_absent() -> None:
    decoded = one(subject=None, time=None, ext=None, publisher=None, data_base64=None)
    (event,) = batch_to_events(decoded.batch)
    assert event.attributes == {"source": "/s", "type": "t"}
    assert (event.publisher, event.time, event.body) == ("/s", None, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"specversion": ...}, R.BAD_CLOUDEVENT),
        ({"specversion": "0.3"}, R.BAD_CLOUDEVENT),
        ({"specversion": 1.0}, R.BAD_CLOUDEVENT),
        ({"id": ...}, R.NO_ID),
        ({"id": ""}, R.NO_ID),
        ({"id": 5}, R.BAD_CLOUDEVENT),
        ({"source": ...}, R.BAD_CLOUDEVENT),
        ({"source": ""}, R.BAD_CLOUDEVENT),
        ({"type": None}, R.BAD_CLOUDEVENT),
        ({"type": 5}, R.BAD_CLOUDEVENT),
        ({"subject": ""}, R.BAD_CLOUDEVENT),
        ({"datacontenttype": 5}, R.BAD_CLOUDEVENT),
        ({"myExt": "x"}, R.BAD_CLOUDEVENT),
        ({"my_ext": "x"}, R.BAD_CLOUDEVENT),
        ({"": "x"}, R.BAD_CLOUDEVENT),
        ({"ext\n": "x"}, R.BAD_CLOUDEVENT),
        ({"é": "x"}, R.BAD_CLOUDEVENT),
        ({"_body": "x"}, R.BAD_CLOUDEVENT),
        ({"ext": 1.5}, R.BAD_CLOUDEVENT),
        ({"ext": {"a": 1}}, R.BAD_CLOUDEVENT),
        ({"ext": ["a"]}, R.BAD_CLOUDEVENT),
        ({"data": 1, "data_base64": "AA=="}, R.BAD_CLOUDEVENT),
        ({"data_base64": "A"}, R.BAD_CLOUDEVENT),
        ({"data_base64": "AA==\n"}, R.BAD_CLOUDEVENT),
        ({"data_base64": "é"}, R.BAD_CLOUDEVENT),
        ({"data_base64": 5}, R.BAD_CLOUDEVENT),
        ({"time": "today"}, R.BAD_TIME),
        ({"time": 1700000000}, R.BAD_TIME),
        ({"publisher": True}, R.WRONG_TYPE),
    ],
)
def test_a_bad_event_has_a_reason(changes: dict[str, Any], reason: RejectReason) -> None:
    decoded = one(**changes)
    assert decoded.batch.num_rows == 0
    assert [r.reason for r in decoded.rejected] == [reason]


def test_one_bad_event_does_not_spoil_the_batch() -> None:
    good = json.dumps({**MINIMAL, "data": {"a": ',]}"\\'}}).encode()
    deep = json.dumps(MINIMAL).encode()[:-1] + b',"data":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"
    huge = b'"' + b"x" * MAX_RECORD_BYTES + b'"'
    twice = json.dumps(MINIMAL).encode()[:-1] + b',"id":"f"}'
    parts = [good, b"{}", good, b"NaN", b'{"a" "b"}', good, b"", deep, b"5", huge, b"\xff", twice, good]
    decoded = decode_batch(b" [\n" + b" ,\n".join(parts) + b"\n] ")
    assert decoded.batch.column("id").to_pylist()[3:] == ["f", MINIMAL["id"]]
    assert [(r.position, r.reason) for r in decoded.rejected] == [
        (1, R.BAD_CLOUDEVENT),
        (3, R.NOT_JSON),
        (4, R.NOT_JSON),
        (6, R.NOT_JSON),
        (7, R.TOO_DEEP),
        (8, R.NOT_AN_OBJECT),
        (9, R.TOO_LARGE),
        (10, R.BAD_UTF8),
    ]


@pytest.mark.parametrize(
    "data", [b"", b" ", b"{}", b"nope", json.dumps(MINIMAL).encode(), b"\xff[]", b"x[{}]"]
)
def test_a_batch_that_is_no_array_is_one_rejection(data: bytes) -> None:
    decoded = decode_batch(data)
    assert [r.reason for r in decoded.rejected] == [R.BAD_CLOUDEVENT]
    assert decoded.records == 1


def test_an_array_that_does_not_end_or_goes_on_is_reported() -> None:
    good = json.dumps(MINIMAL).encode()
    for data in (b"[" + good, b"[" + good + b"]]", b"[" + good + b"] x", b"[" + good + b"}"):
        decoded = decode_batch(data)
        assert decoded.batch.num_rows == 1
        assert [(r.position, r.reason) for r in decoded.rejected] == [(1, R.NOT_JSON)]
    assert [r.reason for r in decode_batch(b"[" + good[:-5]).rejected] == [R.NOT_JSON, R.NOT_JSON]


def test_an_empty_array_is_an_empty_batch() -> None:
    assert decode_batch(b"\xef\xbb\xbf [ ] ").records == 0


# --- writing -----------------------------------------------------------------------------------------


def test_an_event_without_a_body_takes_its_data_from_its_attributes() -> None:
    event = Event("e", "/s", None, {"source": "/s", "type": "t", "data.a.b": 1, "data.tags": ("x",)})
    assert json.loads(encode_event(event)) == {
        "specversion": "1.0",
        "id": "e",
        "source": "/s",
        "type": "t",
        "data": {"a.b": 1, "tags": ["x"]},
    }
    (back,) = batch_to_events(decode_events([encode_event(event)]).batch)
    assert back.attributes == event.attributes


def test_a_plain_event_can_be_wrapped() -> None:
    event = Event(
        "e", "client", datetime(2024, 1, 1, tzinfo=UTC), {"a.b": 1.5}, b'{"a":\n{"b":1.5}}', 9, True
    )
    written = encode_event(event, wrap_as="com.example.reading")
    assert written == (
        b'{"specversion":"1.0","id":"e","source":"client","type":"com.example.reading",'
        b'"time":"2024-01-01T00:00:00Z","data":{"a": {"b":1.5}}}'
    )
    bodiless = Event("e", None, None, {"a.b": 1.5})
    assert json.loads(encode_event(bodiless, wrap_as="t"))["data"] == {"a.b": 1.5}
    assert b"data" not in encode_event(Event("e"), wrap_as="t")
    batch = events_to_batch([bodiless, Event("f")])
    assert decode_batch(encode_batch(batch, wrap_as="t")).batch.num_rows == 2


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (Event("e"), "no source"),
        (Event("e", attributes={"source": "s"}), "no type"),
        (Event("e", attributes={"source": "s", "type": "t", "price": 1.5}), "'price' has no place"),
        (Event("e", attributes={"source": "s", "type": "t", "a.b": 1}), "'a.b' has no place"),
        (Event("e", None, None, {"source": "s", "type": "t", "data.a": 1}, b"x"), "binary body"),
    ],
)
def test_an_event_that_is_no_cloudevent_is_refused(event: Event, says: str) -> None:
    with pytest.raises(InputError, match=says):
        encode_event(event)
