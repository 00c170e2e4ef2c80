"""Frames: batches come back as they were, damaged ones are refused, joining and cutting lose nothing."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.attributes import OTHERS, LeafList
from ramify.content.events.events import AttributeType, Event, EventSchema, batch_to_events, events_to_batch
from ramify.errors import InputError, LimitError, RamifyError
from ramify.overlay.control import frames
from ramify.overlay.control.frames import (
    LINK_LIMITS,
    MOST_FRAME_BYTES,
    Limits,
    concat,
    decode_events,
    encode_events,
    split,
)

VALUES: list[st.SearchStrategy[Any]] = [
    st.integers(-2, 2),
    st.sampled_from([0.5, 2.0]),
    st.sampled_from(["", "a", "é"]),
    st.booleans(),
    st.lists(st.sampled_from(["a", "é"]), min_size=1, max_size=2).map(tuple),
    st.lists(st.sampled_from([0.5, 2.0]), min_size=1, max_size=2).map(tuple),
]


@st.composite
def batches(draw: st.DrawFn, prefix: str = "", most: int = 4) -> pa.RecordBatch:
    """Events of one publisher; each attribute is of one type, absent or null."""
    kinds = draw(st.dictionaries(st.sampled_from("xyz"), st.sampled_from(VALUES), max_size=3))
    row = st.fixed_dictionaries({}, optional={path: st.none() | kind for path, kind in kinds.items()})
    rows = draw(st.lists(row, min_size=1, max_size=most))
    publisher = draw(st.sampled_from("AB"))
    return events_to_batch(
        Event(f"{prefix}{k}", publisher, attributes=row, body=b"{}" * k, body_is_json=k == 1)
        for k, row in enumerate(rows)
    )


def plain(number: int | str, publisher: str = "a", body: bytes | None = None, **attributes: Any) -> Event:
    return Event(str(number), publisher, attributes=attributes, body=body)


def one(publisher: str, **attributes: Any) -> pa.RecordBatch:
    return events_to_batch([plain(1, publisher, **attributes)])


def events(parts: list[pa.RecordBatch]) -> list[Event]:
    return [event for part in parts for event in batch_to_events(part)]


@pytest.mark.parametrize(
    "limit", ["max_event_bytes", "max_batch_events", "max_attributes", "max_batch_bytes"]
)
def test_limits_are_positive_and_readable(limit: str) -> None:
    with pytest.raises(InputError, match=limit):
        Limits(**{limit: 0})
    with pytest.raises(InputError, match="can be read"):
        Limits(max_event_bytes=2 << 20)


# --- on the wire -------------------------------------------------------------------------------------


@given(batches(), st.integers(1, 40))
def test_frames_come_back_as_they_were(few: pa.RecordBatch, times: int) -> None:
    batch = frames.end_to_end([few] * times)
    assert decode_events(encode_events(batch)).equals(batch)
    part = batch.slice(batch.num_rows // 2)
    assert decode_events(encode_events(part)).equals(part)
    more = frames.end_to_end([batch, few.slice(0, 1)])
    assert decode_events(encode_events(more), Limits(max_batch_events=more.num_rows)).equals(more)
    with pytest.raises(LimitError, match="smaller frames"):
        decode_events(encode_events(more), Limits(max_batch_events=batch.num_rows))


def test_a_few_bytes_do_not_unpack_to_many() -> None:
    batch = events_to_batch([plain(1, body=bytes(3 << 20))])
    data = encode_events(batch)
    assert len(data) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(LimitError, match="unpacks"):
        decode_events(data, Limits(max_batch_bytes=1 << 20))
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert decode_events(data).equals(batch)


SAMPLE = encode_events(events_to_batch([plain(k, x=k, y="é", z=("a",)) for k in range(3)]))
PACKED = encode_events(events_to_batch([plain(k, x="x" * 50) for k in range(100)]))


@pytest.mark.parametrize(
    ("good", "bad"),
    [("ééé".encode(), b"\xff" * 6), (struct.pack("<4i", 0, 2, 4, 6), struct.pack("<4i", 0, 9999, 4, 6))],
)
def test_text_and_offsets_are_checked(good: bytes, bad: bytes) -> None:
    assert good in SAMPLE
    with pytest.raises(InputError, match="not an Arrow IPC stream of events"):
        decode_events(SAMPLE.replace(good, bad))


@settings(max_examples=200)
@given(
    st.sampled_from([SAMPLE, PACKED]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.floats(0, 1.5),
)
def test_damaged_frames_are_refused_or_valid(data: bytes, changes: list[Any], length: float) -> None:
    damaged = bytearray(data)
    for where, byte in changes:
        damaged[int(where * (len(damaged) - 1))] = byte
    try:
        batch = decode_events(bytes(damaged[: int(length * len(damaged))]))
    except RamifyError:
        return
    batch.validate(full=True)


# --- joining -----------------------------------------------------------------------------------------


@st.composite
def several(draw: st.DrawFn) -> list[pa.RecordBatch]:
    return [draw(batches(f"{k}/", 2)) for k in range(draw(st.integers(0, 8)))]


@given(several())
def test_joining_loses_nothing_and_keeps_the_order_of_each_publisher(parts: list[pa.RecordBatch]) -> None:
    joined = concat(parts)
    before, after = events(parts), events(joined)
    for client in "AB":
        assert [e for e in after if e.publisher == client] == [e for e in before if e.publisher == client]
    assert len(after) == len(before)
    assert all(batch.num_rows for batch in joined)


def test_batches_join_where_their_types_agree() -> None:
    def sizes(*parts: pa.RecordBatch) -> list[int]:
        return [batch.num_rows for batch in concat(parts)]

    assert concat([]) == []
    assert sizes(one("a", x=1), one("a", y="s"), one("a", x=0.5)) == [3]
    assert sizes(one("a", x=1), one("a", x="s"), one("b", x=2)) == [2, 1]
    assert sizes(one("a", x=1), one("a", x="s"), one("a", x=2)) == [1, 1, 1]
    assert sizes(one("a", x=2**53 + 1), one("b", x=0.5)) == [1, 1]
    assert sizes(one("a", x=2**53 + 1), one("b", x=1)) == [2]
    absent = events_to_batch([plain(1)], EventSchema({"x": AttributeType.STRING}))
    assert sizes(one("a", x=1), absent) == [2]


# --- cutting -----------------------------------------------------------------------------------------


def noise(length: int, seed: int) -> bytes:
    """Bytes that zstd cannot shorten."""
    return np.random.default_rng(seed).bytes(length)


@given(
    batches(most=6),
    st.lists(st.tuples(st.integers(0, 3_000), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 20_000) | st.integers(2_000, 6_000),
)
def test_parts_are_small_enough_and_hold_the_same_events_in_order(
    few: pa.RecordBatch, bodies: list[tuple[int, bool]], most_bytes: int
) -> None:
    heavy = [plain(k, body=noise(n, k) if odd else bytes(n)) for k, (n, odd) in enumerate(bodies)]
    for batch in (*concat([few, events_to_batch(heavy)]), few):
        parts = split(batch, most_bytes)
        assert events(parts) == events([batch])
        for part in parts:
            assert part.num_rows
            assert len(encode_events(part)) <= most_bytes or part.num_rows == 1
        # a batch that fits is left alone
        assert (len(encode_events(batch)) <= most_bytes) <= (len(parts) == 1 and parts[0] is batch)


def test_no_events_need_no_frame() -> None:
    assert split(one("a", x=1).slice(0, 0), 100) == []


def test_a_frame_that_is_close_to_the_limit_is_measured_exactly() -> None:
    batch = events_to_batch([plain(k, body=noise(500, k)) for k in range(40)])
    length = len(encode_events(batch))
    assert [part.num_rows for part in split(batch, length)] == [40]
    assert [part.num_rows for part in split(batch, length - 1)] == [20, 20]


@given(
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=6),
    st.integers(1, 300),
    st.sampled_from([0, 1, 700]),
    st.data(),
)
def test_packing_makes_no_batch_longer_than_it_is_taken_to(
    kinds: list[st.SearchStrategy[Any]], rows: int, length: int, data: st.DataObject
) -> None:
    row = {f"x{k}": data.draw(kind) for k, kind in enumerate(kinds)}
    some = [plain(k, body=noise(length, k), **(row if k % 3 else {})) for k in range(rows)]
    batch = events_to_batch(some)
    length = len(encode_events(batch))
    with pytest.MonkeyPatch.context() as patch:
        # whatever is taken for small without packing it is small
        patch.setattr(frames, "encode_events", lambda _: bytes(length))
        assert not frames._is_frame(batch, length - 1)


def test_what_is_cut_is_within_the_limits_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(max_batch_events=50, max_attributes=8, max_batch_bytes=20_000)
    monkeypatch.setattr(frames, "LINK_LIMITS", limits)
    many = events_to_batch([plain(k) for k in range(101)])
    wide = events_to_batch([plain(k, **{f"x{k}": k}) for k in range(20)])
    hollow = events_to_batch([plain(k, body=bytes(7_000)) for k in range(9)])
    for batch, at_least in [(many, 3), (wide, 3), (hollow, 4)]:
        with pytest.raises(LimitError):
            decode_events(encode_events(batch), limits)
        parts = split(batch)
        assert len(parts) >= at_least
        back = [decode_events(encode_events(part), limits) for part in parts]
        assert events(back) == events([batch])


def test_names_do_not_outgrow_a_frame() -> None:
    """Names are not packed, and every frame of a batch would have those of all events."""
    batch = events_to_batch([plain(k, **{f"{k}" + "x" * 2_000: 1}) for k in range(20)])
    parts = split(batch, 10_000)
    assert all(len(encode_events(part)) <= 10_000 for part in parts)
    assert len(parts) < 20
    assert events(parts) == events([batch])


def test_the_frames_of_a_broker_hold_more_than_the_message_of_a_client() -> None:
    few = events_to_batch([plain(k, x=k, body=noise(60, k)) for k in range(1_000)])
    grouped = frames.end_to_end([few] * 30)
    assert split(grouped) == [grouped]
    assert decode_events(encode_events(grouped), LINK_LIMITS).equals(grouped)
    with pytest.raises(LimitError):
        decode_events(encode_events(grouped))


def test_a_frame_beyond_what_a_server_takes_is_cut() -> None:
    heavy = events_to_batch([plain(k, body=noise(1 << 20, k)) for k in range(9)])
    parts = split(heavy)
    assert len(parts) == 2
    assert all(len(encode_events(part)) <= MOST_FRAME_BYTES for part in parts)
    assert events([decode_events(encode_events(part), LINK_LIMITS) for part in parts]) == events([heavy])


PLACED = LeafList([1, "b"], [((0, 0),), ((0, 1),)])
MIXED: list[Any] = [1, 2**60, 0.5, "a", True, None, ("a", 1), (None,), (), PLACED]


@given(st.lists(st.lists(st.sampled_from(MIXED), max_size=5), max_size=5), st.integers(1200, 6000))
def test_values_without_a_column_travel_with_their_events(rows: list[list[Any]], most: int) -> None:
    made = [
        [Event(f"{k}/{i}", "p", attributes={"x": value}, body=b"b" * 20) for i, value in enumerate(values)]
        for k, values in enumerate(rows)
    ]
    joined = concat(events_to_batch(events) for events in made)
    cut = [part for batch in joined for part in split(batch, most)]
    there = [decode_events(encode_events(part)) for part in cut]
    assert [e for part in there for e in batch_to_events(part)] == [e for events in made for e in events]
    for part in there:
        assert OTHERS not in part.schema.names or any(part.column(OTHERS).to_pylist())
