"""What comes in from clients: every event becomes a row or a rejection, whatever the bytes are."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive_events import alike, flatten
from ramify.content.events.attributes import LeafList
from ramify.content.events.events import FIXED_COLUMNS, Event, EventSchema, batch_to_events, events_to_batch
from ramify.content.events.others import OTHERS_TYPE, with_others
from ramify.overlay.control.frames import Limits, decode_events, encode_events
from ramify.overlay.control.intake import (
    ARROW_TYPE,
    BATCH_TYPE,
    EVENT_TYPE,
    RAW_BYTES,
    WRAPPED_TYPE,
    ClientMessage,
    RejectedMessage,
    take_in,
    take_in_by_client,
    to_cloudevent,
)

MINIMAL = {"specversion": "1.0", "source": "/s", "type": "t"}


def event(number: int | str, **data: Any) -> dict[str, Any]:
    return {**MINIMAL, "id": str(number), "data": data}


def as_json(events: Any) -> bytes:
    return json.dumps(events).encode()


def single(found: dict[str, Any], client: str = "alice", **more: Any) -> ClientMessage:
    return ClientMessage(client, as_json(found), **more)


def arrow(batch: pa.RecordBatch, **more: Any) -> ClientMessage:
    return ClientMessage("alice", encode_events(batch), ARROW_TYPE, **more)


def plain(**attributes: Any) -> Event:
    return Event("e", attributes={"source": "/s", "type": "t", **attributes})


def ids(batch: pa.RecordBatch | None) -> list[str]:
    return [] if batch is None else batch.column("id").to_pylist()


def unsized(batch: pa.RecordBatch | None) -> pa.RecordBatch:
    assert batch is not None
    return batch.drop_columns(["_size_bytes"])


def only(rejected: list[RejectedMessage]) -> RejectedMessage:
    (found,) = rejected
    return found


# --- against a plain evaluation ----------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    1,
    2**60,
    0.5,
    "a",
    "b",
    True,
    ["a"],
    [1, 0.5],
    [],
    ["a", 1],
    [{"z": 1}, {"z": 2}],
]
DATA = st.dictionaries(st.sampled_from("xyz"), st.sampled_from(VALUES), max_size=3)


def cut(items: list[Any], sizes: list[int]) -> list[list[Any]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(items[start : start + size])
        start += size
    return [*parts, items[start:]]


@given(st.lists(DATA, max_size=9), st.lists(st.integers(0, 3), max_size=4))
def test_every_event_is_taken_whatever_its_types_are(rows: list[dict[str, Any]], sizes: list[int]) -> None:
    events = [event(k, **row) for k, row in enumerate(rows)]
    messages = [
        ClientMessage("alice", as_json(part), position=k) for k, part in enumerate(cut(events, sizes))
    ]
    batch, rejected = take_in(messages)
    assert rejected == []
    assert ids(batch) == [str(k) for k in range(len(rows))]
    for found, row in zip(batch_to_events(batch) if batch else [], rows, strict=True):
        told = flatten({"source": "/s", "type": "t", "data": row})
        assert found.attributes.keys() == told.keys()
        assert all(alike(found.attributes[path], told[path]) for path in told)
        assert found.body == as_json(row)


TYPED = st.fixed_dictionaries(
    {},
    optional={
        "x": st.sampled_from([None, 1, 2, 0.5]),
        "y": st.sampled_from([None, "a", "é"]),
        "z": st.sampled_from([["a", "b"], []]),
    },
)


@given(
    st.lists(TYPED, max_size=8), st.lists(st.tuples(st.integers(0, 3), st.sampled_from("jbas")), max_size=4)
)
def test_the_form_of_a_message_makes_no_difference(
    rows: list[dict[str, Any]], forms: list[tuple[int, str]]
) -> None:
    events = [event(k, **row) for k, row in enumerate(rows)]
    messages: list[ClientMessage] = []
    for part, form in zip(cut(events, [n for n, _ in forms]), [*(f for _, f in forms), "a"], strict=True):
        batch, _ = take_in([ClientMessage("alice", as_json(part), BATCH_TYPE)])
        if form == "s" or batch is None:
            messages += [single(found, content_type=EVENT_TYPE) for found in part]
        elif form == "a":
            messages.append(arrow(batch))
        else:
            messages.append(ClientMessage("alice", as_json(part), BATCH_TYPE if form == "b" else None))
    mixed, rejected = take_in(messages)
    assert rejected == []
    expected, _ = take_in([ClientMessage("alice", as_json(events))])
    assert (mixed is None) == (expected is None) == (not rows)
    if rows:
        assert unsized(mixed).equals(unsized(expected))


ODD_BYTES = st.sampled_from(
    [b"", b"{", b"[", b"[{}", b"{}", b"[1,]", b"null", b"\xff", b"[" * 99, b"ARROW1"]
)


@given(
    st.lists(
        st.tuples(
            ODD_BYTES | st.binary(max_size=20) | st.lists(DATA, max_size=2).map(as_json),
            st.sampled_from(
                [None, EVENT_TYPE, BATCH_TYPE, ARROW_TYPE, "application/json; charset=utf-8", "x"]
            ),
        ),
        max_size=4,
    )
)
def test_junk_is_rejected_and_spoils_nothing(junk: list[tuple[bytes, str | None]]) -> None:
    good = [single(event(k, x=k), position=100 + k) for k in range(2)]
    bad = [ClientMessage("eve", payload, kind, position=k) for k, (payload, kind) in enumerate(junk)]
    batch, rejected = take_in([good[0], *bad, good[1]])
    assert ids(batch) == ["0", "1"]
    assert {r.client for r in rejected} <= {"eve"}
    empty = {k for k, (payload, _) in enumerate(junk) if b"".join(payload.split()) == b"[]"}
    assert {r.position for r in rejected} | empty == set(range(len(junk)))


# --- who, which, how large ---------------------------------------------------------------------------


@given(st.sampled_from(["publisher", "source"]), st.text(min_size=1, max_size=3), st.booleans())
def test_the_publisher_is_the_client_whatever_an_event_claims(
    name: str, claim: str, as_arrow: bool
) -> None:
    message = single({**event(1), name: claim}, client="mallory")
    if as_arrow:
        batch = events_to_batch([replace(plain(), publisher=claim)])
        message = replace(arrow(batch), client="mallory")
    batch, rejected = take_in([message])
    assert rejected == []
    assert batch is not None
    assert batch.column("publisher").to_pylist() == ["mallory"]
    assert name == "publisher" or as_arrow or batch.column("source").to_pylist() == [claim]


@pytest.mark.parametrize("claim", [{}, {"id": None}])
@pytest.mark.parametrize("data", [{}, {"data": {"id": 7}}])
def test_an_event_without_an_id_gets_that_of_its_message(claim: Any, data: Any) -> None:
    bare = {**MINIMAL, **claim, **data}
    batch, rejected = take_in(
        [
            single(bare, id="m"),
            ClientMessage("a", as_json([bare, event("own"), bare]), id="n"),
            single(bare),
        ]
    )
    assert ids(batch) == ["m", "n/0", "own", "n/2"]
    assert batch is not None
    assert batch.column("_size_bytes").to_pylist()[0] == len(as_json(bare))
    assert only(rejected).reason == "no_id"


def test_an_id_that_is_filled_in_hides_no_other_fault() -> None:
    twice = b'{"specversion":"1.0","source":"/s","source":"/t","type":"t"}'
    null_twice = b'{"id":null,' + twice[1:]
    empty = as_json({**MINIMAL, "id": ""})
    batch, rejected = take_in([ClientMessage("a", text, id="m") for text in (twice, null_twice, empty)])
    assert batch is not None
    assert batch.column("source").to_pylist() == ["/t", "/t"]
    assert [r.reason for r in rejected] == ["no_id"]


def test_arrow_rows_without_an_id_get_that_of_their_message() -> None:
    batch = events_to_batch([plain(), plain(), plain()])
    batch = batch.set_column(0, FIXED_COLUMNS.field("id"), pa.array([None, "x", ""], pa.string()))
    assert ids(take_in([arrow(batch, id="m")])[0]) == ["m/0", "x", "m/2"]
    taken, rejected = take_in([arrow(batch)])
    assert ids(taken) == ["x"]
    assert [r.reason for r in rejected] == ["no_id", "no_id"]


def test_source_and_id_name_an_event_within_a_message() -> None:
    other = {**event(1), "source": "/other"}
    again = [event(1), other, event(1, x="again"), event(2)]
    batch, rejected = take_in(
        [ClientMessage("a", as_json(again), position=7), single(event(1), client="b")]
    )
    assert ids(batch) == ["1", "1", "2", "1"]
    found = only(rejected)
    assert (found.reason, found.event_id, found.position, found.client) == ("duplicate_id", "1", 7, "a")


def test_each_limit_costs_only_the_events_beyond_it() -> None:
    limits = Limits(max_event_bytes=300, max_batch_events=4, max_attributes=6)
    long, wide = event("long", x="x" * 300), event("wide", **{f"a{k}": 1 for k in range(6)})
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    rows = [event("first", x="a"), long, wide, event("deep", x=deep), event("more"), event("most")]
    batch, rejected = take_in([ClientMessage("a", as_json(rows)), single(event("last"))], limits)
    assert ids(batch) == ["first", "wide", "last"]
    assert [r.reason for r in rejected] == ["too_large", "too_deep", "too_many_events"]
    assert [r.event_id for r in rejected] == ["long", "deep", None]
    wide_row, long_row = plain(**{f"a{k}": 1 for k in range(6)}), plain(x="x" * 300)
    for row, reason in [(wide_row, "too_large"), (long_row, "too_large")]:
        assert only(take_in([arrow(events_to_batch([row]))], limits)[1]).reason == reason
    many = events_to_batch([replace(plain(), id=str(k)) for k in range(6)])
    batch, rejected = take_in([arrow(many)], limits)
    assert ids(batch) == ["0", "1", "2", "3"]
    assert only(rejected).reason == "too_many_events"


def test_attributes_beyond_the_limit_have_no_column_and_can_be_reached() -> None:
    limits = Limits(max_attributes=6)  # source and type are two of them
    rows = [event(k, **{f"a{k}": k}) for k in range(7)]
    batch, rejected = take_in([ClientMessage("eve", as_json(rows))], limits)
    assert rejected == []
    assert batch is not None
    assert len(EventSchema.of_batch(batch).attributes) == 6
    assert [e.attributes[f"data.a{k}"] for k, e in enumerate(batch_to_events(batch))] == list(range(7))


def test_messages_that_are_wide_together_get_no_more_columns() -> None:
    limits = Limits(max_attributes=5)
    messages = [arrow(events_to_batch([replace(plain(**{f"a{k}": k}), id=str(k))])) for k in range(40)]
    batches, rejected = take_in_by_client([*messages, *(single(event(f"j{k}")) for k in range(3))], limits)
    assert rejected == []
    (batch,) = batches
    assert len(EventSchema.of_batch(batch).attributes) <= 20
    assert [e.attributes[f"a{k}"] for k, e in enumerate(batch_to_events(batch)[:40])] == list(range(40))


@given(st.lists(DATA, max_size=4), st.lists(DATA, max_size=4))
def test_no_client_decides_about_the_events_of_another(mine: list[Any], others: list[Any]) -> None:
    own = [single(event(f"m{k}", **row), client="alice") for k, row in enumerate(mine)]
    foreign = [single(event(f"o{k}", **row), client="bob") for k, row in enumerate(others)]
    batches, rejected = take_in_by_client([*foreign, *own])
    alone, refused = take_in(own)
    found = [e for batch in batches for e in batch_to_events(batch) if e.publisher == "alice"]
    assert [e.id for e in found] == ids(alone)
    assert [r for r in rejected if r.client == "alice"] == refused
    assert (
        [e.attributes for e in found] == [e.attributes for e in batch_to_events(alone)]
        if alone
        else not found
    )


def test_a_rejection_keeps_the_first_bytes() -> None:
    text = b"{" + b" " * (2 * RAW_BYTES)
    batch, rejected = take_in([ClientMessage("a", text + b"x", position=3)])
    assert batch is None
    assert only(rejected).raw == (text + b"x")[:RAW_BYTES]
    assert only(take_in([ClientMessage("a", b"abc", "text/plain")])[1]).reason == "content_type"


# --- Arrow that is not to be trusted -----------------------------------------------------------------

LATE = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def with_column(name: str, column: Any) -> pa.RecordBatch:
    batch = events_to_batch([plain()])
    f = pa.field(name, column.type)
    at = batch.schema.get_field_index(name)
    return batch.append_column(f, column) if at < 0 else batch.set_column(at, f, column)


def with_body(text: bytes) -> pa.RecordBatch:
    return events_to_batch([replace(plain(), body=text, body_is_json=True)])


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (with_column("x", LATE), "bad_time"),
        (with_column("time", LATE), "bad_time"),
        (with_column("_nulls", pa.array([["type"]])), "bad_arrow"),
        (with_column("_nulls", pa.array([["a", "a"]])), "bad_arrow"),
        (with_column("_nulls", pa.array([["publisher"]])), "bad_arrow"),
        (with_column("_nulls", pa.array([[None]], pa.list_(pa.string()))), "bad_arrow"),
        (with_body(b'1,"source":"/evil"'), "not_json"),
        (with_body(b"{"), "not_json"),
        (with_body(b""), "not_json"),
        (with_body(b'"\xff"'), "not_json"),
        (with_body(b"[" * 32 + b"]" * 32), "too_deep"),
        (with_body(b"[\n" * 32 + b"]" * 32), "too_deep"),
        (with_column("_nulls", pa.array([None], pa.list_(pa.string()))), "bad_arrow"),
        (with_column("_body_is_json", pa.array([None], pa.bool_())), "bad_arrow"),
        (with_column("_body", pa.array(["text"])), "bad_arrow"),
        (with_column("x", pa.array(["a"]).dictionary_encode()), "bad_arrow"),
        (with_column("x", pa.array([{"a": 1}])), "bad_arrow"),
        (with_column("x", pa.array([1], pa.int32())), "bad_arrow"),
        (
            with_column(
                "x", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
            ),
            "bad_arrow",
        ),
        (events_to_batch([plain()]).drop_columns(["_nulls"]), "bad_arrow"),
        (events_to_batch([plain()]).append_column("type", pa.array(["t"])), "bad_arrow"),
        (events_to_batch([plain()]).append_column("", pa.array(["t"])), "bad_arrow"),
    ],
)
def test_arrow_is_held_to_what_the_readers_let_in(batch: pa.RecordBatch, reason: str) -> None:
    taken, rejected = take_in([arrow(batch), single(event("good"))])
    assert ids(taken) == ["good"]
    assert only(rejected).reason == reason


@pytest.mark.parametrize("value", [float("inf"), (1.0, float("inf")), ("a", None), (True,), (), ("a", 1)])
def test_arrow_may_hold_what_no_column_does(value: Any) -> None:
    dtype = pa.array([value]).type if value and value not in [(True,), ("a", 1)] else None
    rows = [events_to_batch([plain(x=value)])]
    if dtype is not None:
        rows.append(with_column("x", pa.array([value], dtype)))
    for batch in rows:
        taken, rejected = take_in([arrow(batch)])
        assert rejected == []
        assert taken is not None
        assert batch_to_events(taken)[0].attributes["x"] == value


OF_ALL_TYPES: list[Any] = [
    1,
    2**60,
    0.5,
    "a",
    True,
    datetime(2024, 1, 1, tzinfo=UTC),
    ("a",),
    (0.5,),
    (),
]


@given(st.lists(st.sampled_from(OF_ALL_TYPES), max_size=8), st.booleans())
def test_arrow_messages_of_different_types_are_one_batch(values: list[Any], with_json: bool) -> None:
    rows = [replace(plain(x=value), id=str(k)) for k, value in enumerate(values)]
    messages = [arrow(events_to_batch([row])) for row in rows]
    messages += [single({**MINIMAL, "id": "j", "x": "text"})] if with_json else []
    batch, rejected = take_in(messages)
    assert rejected == []
    found = [] if batch is None else [e.attributes["x"] for e in batch_to_events(batch)]
    assert found == [*values, *(["text"] if with_json else [])]
    assert [type(v) is bool for v in found] == [type(v) is bool for v in [*values, *(["text"] * with_json)]]


def item(**changes: Any) -> dict[str, Any]:
    return {"path": "x", "list": False, "kind": 1, "number": 5, "text": None, "place": None, **changes}


@pytest.mark.parametrize(
    "items",
    [
        [item(kind=9)],
        [item(kind=-2)],
        [item(kind=5)],
        [item(text="a")],
        [item(kind=3, number=2)],
        [item(kind=0)],
        [item(kind=-1)],
        [item(kind=4, number=2**62)],
        [item(place=[0, 0])],
        [item(list=True, place=[0])],
        [item(list=True, place=[0, -1])],
        [item(list=True, place=[0, None])],
        [item(list=True, place=[0, 0] * 40)],
        [item(path="id")],
        [item(), item()],
        [item(), item(list=True)],
        [item(list=True, kind=-1), item(list=True)],
        [item(path="type")],
        [item(path="gone")],
        [item(path=None)],
        [item(kind=None)],
        [None],
    ],
)
def test_malformed_items_cost_their_row(items: list[Any]) -> None:
    batch = events_to_batch([plain(gone=None)])
    loose = pa.list_(pa.struct([pa.field(f.name, f.type) for f in OTHERS_TYPE.value_type]))
    column = pa.array([items], loose)
    # As a hostile sender does: the schema says that nothing is null, the buffers say otherwise.
    kids = [column.values.field(k) for k in range(6)]
    mask = column.values.is_null() if column.values.null_count else None
    inner = pa.StructArray.from_arrays(kids, fields=list(OTHERS_TYPE.value_type), mask=mask)
    hostile = pa.ListArray.from_arrays(column.offsets, inner, type=OTHERS_TYPE)
    taken, rejected = take_in([arrow(with_others(batch, hostile)), single(event("good"))])
    assert ids(taken) == ["good"]
    assert only(rejected).reason == "bad_arrow"


def test_well_formed_items_are_taken() -> None:
    values = {"x": LeafList([1, None], [((0, 0),), ((0, 1),)]), "_body": 5, "": ("a", 1), "y": ()}
    batch, rejected = take_in([arrow(events_to_batch([plain(**values)]))])
    assert rejected == []
    assert batch is not None
    assert {**batch_to_events(batch)[0].attributes} == {"source": "/s", "type": "t", **values}


def test_one_bad_body_costs_one_row() -> None:
    bodies = [b"[1", b"2]", b"3", b"4,5", b'{"a":\n1}', b"1e999"]
    rows = [replace(plain(), id=str(k), body=body, body_is_json=True) for k, body in enumerate(bodies)]
    batch, rejected = take_in([arrow(events_to_batch(rows))])
    assert ids(batch) == ["2", "4", "5"]
    assert [(r.event_id, r.raw) for r in rejected] == [("0", b"[1"), ("1", b"2]"), ("3", b"4,5")]
    assert batch is not None
    assert to_cloudevent(batch, 1)["data"] == {"a": 1}
    assert to_cloudevent(batch, 2)["data_base64"] == "MWU5OTk="


def test_a_few_bytes_do_not_unpack_to_many() -> None:
    batch = events_to_batch([replace(plain(), body=bytes(3 << 20))])
    message = arrow(batch)
    assert len(message.payload) < 10_000
    limits = Limits(max_batch_bytes=1 << 20)
    before = pa.total_allocated_bytes()
    assert only(take_in([message], limits)[1]).reason == "too_large"
    assert pa.total_allocated_bytes() - before < 1 << 20


SAMPLE = encode_events(
    take_in([ClientMessage("a", as_json([event(k, x=k, y="é", z=["a"]) for k in range(3)]))])[0]
)
PACKED = encode_events(events_to_batch([replace(plain(x="x" * 50), id=str(k)) for k in range(100)]))


@settings(max_examples=200)
@given(
    st.sampled_from([SAMPLE, PACKED]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.floats(0, 1.5),
)
def test_damaged_arrow_is_rejected_or_valid(data: bytes, changes: list[Any], length: float) -> None:
    damaged = bytearray(data)
    for where, byte in changes:
        damaged[int(where * (len(damaged) - 1))] = byte
    broken = bytes(damaged[: int(length * len(damaged))])
    taken, rejected = take_in([ClientMessage("a", broken, ARROW_TYPE, "m")])
    if taken is not None:
        out = [to_cloudevent(taken, row) for row in range(taken.num_rows)]
        assert {found.get("publisher", found["source"]) for found in out} == {"a"}
    assert taken is not None or rejected or not decode_events(broken).num_rows


# --- out again ---------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=4)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)
CLOUDEVENTS = st.fixed_dictionaries(
    {name: TEXT.filter(bool) for name in ("id", "source", "type")},
    optional={
        "data": JSON,
        "subject": TEXT.filter(bool),
        "mine": TEXT | st.integers(-5, 5) | st.booleans(),
        "time": st.datetimes(timezones=st.just(UTC)).map(lambda t: t.isoformat()),
    },
)


@given(CLOUDEVENTS, st.sampled_from(["alice", "/s"]))
def test_an_event_goes_out_as_it_came_in(found: dict[str, Any], client: str) -> None:
    batch, rejected = take_in([single({"specversion": "1.0", **found}, client=client)])
    assert rejected == []
    assert batch is not None
    out = to_cloudevent(batch, 0)
    expected = {"specversion": "1.0", **found}
    if client != found["source"]:
        expected["publisher"] = client
    assert {**out, "time": None} == {**expected, "time": None}
    assert ("time" in out) == ("time" in found)
    if "time" in found:
        assert datetime.fromisoformat(out["time"]) == datetime.fromisoformat(found["time"])
    again, _ = take_in([ClientMessage(client, msgspec.json.encode(out))])
    for name in set(batch.schema.names) - {"_size_bytes", "_body"}:
        assert unsized(again).column(name).equals(batch.column(name))


def test_an_event_that_never_was_a_cloudevent_is_wrapped() -> None:
    batch = events_to_batch([Event("e", "alice", attributes={"price": 0.5, "b": True})])
    found = to_cloudevent(batch, 0)
    assert (found["type"], found["source"], found["data"]) == (
        WRAPPED_TYPE,
        "alice",
        {"b": True, "price": 0.5},
    )
