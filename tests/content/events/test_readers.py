"""Reading logs: every record is a row or a rejection, never an exception and never lost."""

import gzip
import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramify.content.events import flatten, framing
from ramify.content.events.attributes import OTHERS, LeafList
from ramify.content.events.events import (
    AttributeType,
    DecodedBatch,
    EventSchema,
    RejectReason,
    batch_to_events,
)
from ramify.content.events.flatten import (
    MAX_DEPTH,
    MAX_RECORD_BYTES,
    FieldMapping,
    TimeUnit,
    decode_records,
    parse_timestamps,
)
from ramify.content.events.others import OTHERS_TYPE
from ramify.content.events.readers import (
    infer_schema,
    read_cloudevents,
    read_events,
    read_ndjson,
    read_parquet,
)
from ramify.errors import InputError

# A shared machine may pause for longer than Hypothesis expects of a test.

A = AttributeType
R = RejectReason

KEYS = st.sampled_from(["id", "publisher", "time", "a", "b", "a.b", "c", "", "_body", "é", "specversion"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["2024-01-01T00:00:00Z", "x"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)
WITH_ID = OBJECTS.map(lambda found: {**found, "id": "e"})
LINES = (
    st.binary(max_size=20)
    | JSON.map(lambda value: json.dumps(value).encode())
    | WITH_ID.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
).map(lambda line: line.replace(b"\n", b" "))
SCHEMAS = st.dictionaries(
    st.sampled_from(["a", "b", "a.b", "c", "é"]), st.sampled_from(list(A)), max_size=4
).map(EventSchema)


def one(record: object, schema: EventSchema | None = None, **mapping: Any) -> DecodedBatch:
    raw = record if isinstance(record, bytes) else json.dumps(record).encode()
    return decode_records([raw], schema, FieldMapping(**mapping))


def attributes(decoded: DecodedBatch) -> dict[str, Any]:
    (event,) = batch_to_events(decoded.batch)
    return dict(event.attributes)


def reasons(decoded: DecodedBatch) -> list[RejectReason]:
    return [rejected.reason for rejected in decoded.rejected]


def check(decoded: DecodedBatch, records: int) -> None:
    assert decoded.batch.num_rows + len(decoded.rejected) == records
    decoded.batch.validate(full=True)
    arrow, others = EventSchema.of_batch(decoded.batch).arrow, pa.field(OTHERS, OTHERS_TYPE)
    assert decoded.batch.schema in (arrow, arrow.append(others))
    assert all(rejected.detail and len(rejected.raw) <= 256 for rejected in decoded.rejected)
    positions = [rejected.position for rejected in decoded.rejected]
    assert positions == sorted(set(positions))


# --- laws --------------------------------------------------------------------------------------------


@given(st.lists(LINES, max_size=8), st.none() | SCHEMAS, st.integers(1, 9))
@example([b"\xef\xbb\xbf"], None, 1)
@example([b'"\\ud800"', b"1e999", b'{"id":"e","a":[1e400]}'], None, 2)
def test_every_line_is_a_row_or_a_rejection(
    lines: list[bytes], schema: EventSchema | None, batch_rows: int
) -> None:
    data = b"\n".join(lines)
    expected = [
        number
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
        if line.strip(b" \t\r\n")
    ]
    found = list(read_ndjson(data, schema, batch_rows=batch_rows))
    for decoded in found:
        check(decoded, decoded.records)
        assert EventSchema.of_batch(decoded.batch) == EventSchema.of_batch(found[0].batch)
    assert sum(decoded.records for decoded in found) == len(expected)
    rejected = [r for decoded in found for r in decoded.rejected]
    assert [r.line for r in rejected] == [expected[r.position] for r in rejected]
    for event in (e for decoded in found for e in batch_to_events(decoded.batch)):
        assert event.size_bytes == len(event.body or b"")


@given(st.lists(LINES | WITH_ID.map(lambda value: json.dumps(value).encode()), max_size=6))
def test_the_inferred_schema_accepts_what_inference_accepted(records: list[bytes]) -> None:
    first = decode_records(records)
    again = decode_records(records, EventSchema.of_batch(first.batch))
    assert again.batch.equals(first.batch)
    assert [(r.position, r.reason) for r in again.rejected] == [
        (r.position, r.reason) for r in first.rejected
    ]
    assert again.unaddressable == first.unaddressable


@given(JSON, st.integers(0, 3))
def test_depth_is_that_of_the_value(value: object, indent: int) -> None:
    def nested(inner: object) -> int:
        if isinstance(inner, dict):
            return 1 + max(map(nested, inner.values()), default=0)
        return 1 + max(map(nested, inner), default=0) if isinstance(inner, list) else 0

    assert flatten.depth(json.dumps(value, indent=indent).encode()) == nested(value)


@given(st.lists(st.datetimes(timezones=st.timezones()) | st.none(), max_size=4), st.integers(0, 9))
def test_times_are_read_as_python_reads_them(times: list[datetime | None], digits: int) -> None:
    whole = [t and t.replace(microsecond=0) for t in times]
    texts = []
    for t in whole:
        text = None if t is None else t.isoformat()
        # Historic zones have offsets with seconds, which RFC 3339 has not.
        if text is not None and len(text) > 25:
            return
        fraction = "." + "123456789"[:digits] if digits else ""
        texts.append(None if text is None else text[:19] + fraction + text[19:])
    column, bad = parse_timestamps(texts)
    micros = int("123456789"[:digits][:6].ljust(6, "0")) if digits else 0
    for row, t in enumerate(whole):
        try:
            expected = None if t is None else t.astimezone(UTC).replace(microsecond=micros)
        except OverflowError:
            assert row in bad
            continue
        assert row not in bad
        assert column[row].as_py() == expected


# --- single records ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", R.NOT_JSON),
        (b"{", R.NOT_JSON),
        (b'{"id":"e",}', R.NOT_JSON),
        (b'{"id":"e"} {}', R.NOT_JSON),
        (b'{"id":"e\x01"}', R.NOT_JSON),
        (b"[]", R.NOT_AN_OBJECT),
        (b"null", R.NOT_AN_OBJECT),
        (b"{}", R.NO_ID),
        (b'{"id":null}', R.NO_ID),
        (b'{"id":""}', R.NO_ID),
        (b'{"id":{"a":1}}', R.NO_ID),
        (b'{"id":1.5}', R.WRONG_TYPE),
        (b'{"id":true}', R.WRONG_TYPE),
        (b'{"id":"e","publisher":[]}', R.WRONG_TYPE),
        (b'{"id":"e","a":NaN}', R.NOT_JSON),
        (b'{"id":"e","a":Infinity}', R.NOT_JSON),
        (b'{"id":"e","a":-Infinity}', R.NOT_JSON),
        (b'{"id":"e","publisher":[{"a":1}]}', R.WRONG_TYPE),
        (b'{"id":["e"]}', R.WRONG_TYPE),
        (b'{"id":[["e"]]}', R.WRONG_TYPE),
        (b'{"id":"e","time":[{"a":1}]}', R.BAD_TIME),
        (b'{"id":"e","a":"\\ud800"}', R.BAD_UTF8),
        (b'{"id":"e","a":"\\udc00x"}', R.BAD_UTF8),
        (b'{"id":"e","\\ud800":1}', R.BAD_UTF8),
        (b'{"id":"e","a":"\xff"}', R.BAD_UTF8),
        (b'{"id":"e","a":"\xed\xa0\x80"}', R.BAD_UTF8),
        (b'{"id":"e","time":"yesterday"}', R.BAD_TIME),
        (b'{"id":"e","time":1700000000}', R.BAD_TIME),
        (b'{"id":"e","time":true}', R.BAD_TIME),
        (b'{"id":"e","a":"' + b"x" * MAX_RECORD_BYTES + b'"}', R.TOO_LARGE),
        (b'{"id":"e","a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", R.TOO_DEEP),
    ],
)
def test_a_bad_record_has_a_reason(record: bytes, reason: RejectReason) -> None:
    good = b'{"id":"good","a":0}'
    decoded = decode_records([good, record, good], source="log")
    check(decoded, 3)
    assert reasons(decoded) == [reason]
    assert decoded.rejected[0].position == 1
    assert decoded.rejected[0].source == "log"
    assert decoded.rejected[0].raw == record[:256]


@pytest.mark.parametrize("bomb", [b"[", b'{"a":', b'[{"a":[', b'["]",', b"[ ", b'\\"[', b"[[]"])
def test_a_nesting_bomb_is_refused_unread(bomb: bytes) -> None:
    record = (bomb * (MAX_RECORD_BYTES // len(bomb)))[:MAX_RECORD_BYTES]
    decoded = decode_records([record])
    assert reasons(decoded)[0] in (R.TOO_DEEP, R.NOT_JSON)
    if bomb in (b"[", b'{"a":', b"[ "):
        assert reasons(decoded) == [R.TOO_DEEP]


def test_brackets_inside_strings_do_not_nest() -> None:
    text = '[{"\\' * 1000
    assert attributes(one({"id": "e", "a": text})) == {"a": text}


def test_the_deepest_record_allowed_is_read() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = {"a": value}
    assert attributes(one({"id": "e", **value})) == {".".join("a" * (MAX_DEPTH - 1)): 1}


def test_colons_and_repeats_that_are_no_duplicate_keys() -> None:
    found = {"id": "e", "a": '": "x": 1', "b": [{"x": 1}, {"x": 2}], "c": {"x": {"x": 1}}}
    decoded = one(json.dumps(found, indent=1, separators=(",", "\t: ")).encode())
    elements = LeafList([1, 2], [((0, 0),), ((0, 1),)])
    assert attributes(decoded) == {"a": '": "x": 1', "b": (), "b.x": elements, "c.x.x": 1}


def test_nested_and_dotted_names_are_one_path() -> None:
    decoded = decode_records([b'{"id":"e","a":{"b":1}}', b'{"id":"f","a.b":2}'])
    assert decoded.batch.column("a.b").to_pylist() == [1, 2]


def test_null_is_told_from_absent() -> None:
    decoded = decode_records([b'{"id":"e","a":null,"b":{"c":null}}', b'{"id":"f"}', b'{"id":"g","a":1}'])
    assert decoded.batch.column("_nulls").to_pylist() == [["a", "b.c"], [], []]
    assert decoded.batch.column("a").to_pylist() == [None, None, 1]
    assert decoded.unaddressable == {}


def test_an_integer_id_or_publisher_becomes_a_string() -> None:
    (event,) = batch_to_events(one({"id": 7, "publisher": 8}).batch)
    assert (event.id, event.publisher) == ("7", "8")


def test_ids_may_repeat() -> None:
    assert decode_records([b'{"id":"e"}'] * 2).batch.num_rows == 2


def test_arrays_of_one_type_are_columns_and_empty_ones_follow() -> None:
    records = [b'{"id":"e","s":[],"n":[]}', b'{"id":"f","s":["x"],"n":[1,2.5,9007199254740993]}']
    decoded = decode_records(records)
    assert decoded.batch.column("s").to_pylist() == [[], ["x"]]
    assert decoded.batch.column("n").to_pylist() == [[], None]
    assert batch_to_events(decoded.batch)[1].attributes["n"] == (1, 2.5, 2**53 + 1)


# --- types -------------------------------------------------------------------------------------------


def test_integers_widen_to_doubles() -> None:
    decoded = decode_records(
        [b'{"id":"e","a":1}', b'{"id":"f","a":2.5}', b'{"id":"g","a":9007199254740993}']
    )
    assert decoded.batch.column("a").to_pylist() == [1.0, 2.5, None]
    assert batch_to_events(decoded.batch)[2].attributes == {"a": 2**53 + 1}


def test_a_column_has_the_type_of_most_values() -> None:
    values: list[Any] = [None, 5, "x", "y"]
    records = [json.dumps({"id": str(k), "a": value}).encode() for k, value in enumerate(values)]
    decoded = decode_records(records)
    assert decoded.batch.column("a").to_pylist() == [None, None, "x", "y"]
    assert [event.attributes["a"] for event in batch_to_events(decoded.batch)] == values


def test_strings_are_not_guessed_to_be_times() -> None:
    assert attributes(one({"id": "e", "a": "2024-01-01T00:00:00Z"})) == {"a": "2024-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, A.DOUBLE, 1.0),
        ([1, 2], A.NUMBERS, (1.0, 2.0)),
        ([], A.STRINGS, ()),
        ("2024-01-01T00:00:00.500Z", A.TIMESTAMP, datetime(2024, 1, 1, 0, 0, 0, 500000, UTC)),
    ],
)
def test_values_that_fit_a_given_schema(value: object, kind: AttributeType, expected: object) -> None:
    assert attributes(one({"id": "e", "a": value}, EventSchema({"a": kind}))) == {"a": expected}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, A.STRING),
        ("1", A.INT64),
        (1.0, A.INT64),
        (True, A.INT64),
        (1, A.BOOLEAN),
        (True, A.DOUBLE),
        (2**63, A.INT64),
        (2**70, A.DOUBLE),
        ("a", A.STRINGS),
        (["a"], A.STRING),
        ("today", A.TIMESTAMP),
        (5, A.TIMESTAMP),
    ],
)
def test_values_that_do_not_fit_a_given_schema_are_kept_beside_it(value: Any, kind: AttributeType) -> None:
    decoded = one({"id": "e", "a": value}, EventSchema({"a": kind}))
    assert decoded.batch.column("a").null_count == 1
    found = attributes(decoded)["a"]
    assert found == (tuple(value) if isinstance(value, list) else value)
    assert (found is True) == (value is True)


def test_fields_outside_a_given_schema_can_be_reached() -> None:
    decoded = one({"id": "e", "a": 1, "b": 2, "c": None}, EventSchema({"a": A.INT64, "z": A.STRING}))
    assert decoded.unaddressable == {}
    assert attributes(decoded) == {"a": 1, "b": 2, "c": None}


def test_a_wide_log_reads_like_a_narrow_one() -> None:
    records = [
        json.dumps({"id": str(i), f"k{i % 40}": i, "t": [], f"s{i % 40}": "x"}).encode() for i in range(200)
    ]
    records += [
        b'{"id":"bad","k7":"text"}',
        b'{"id":"null","k7":null}',
        b'{"id":"f","t":"2024-01-01T00:00:00Z"}',
    ]
    schema = EventSchema({f"k{i}": A.DOUBLE if i % 2 else A.INT64 for i in range(40)} | {"t": A.TIMESTAMP})
    decoded = decode_records(records, schema)
    check(decoded, 203)
    events = batch_to_events(decoded.batch)
    for row, event in enumerate(events[:200]):
        assert event.attributes == {f"k{row % 40}": row, "t": (), f"s{row % 40}": "x"}
    assert [event.attributes for event in events[200:202]] == [{"k7": "text"}, {"k7": None}]
    assert decoded.batch.column("t").null_count == 202
    assert decoded.unaddressable == {}


def test_a_long_name_above_many_fields_does_not_fill_the_memory() -> None:
    decoded = one({"id": "e", "x" * 300_000: {f"{i}": 1 for i in range(20_000)}})
    assert reasons(decoded) == [R.TOO_LARGE]
    assert "paths" in decoded.rejected[0].detail


def test_a_new_key_in_every_record_does_not_make_a_batch_explode() -> None:
    records = [
        json.dumps({"id": "e", f"k{i}": i, f"n{i}": None, f"m{i}": [{}]}).encode() for i in range(3000)
    ]
    decoded = decode_records(records)
    assert len(EventSchema.of_batch(decoded.batch).attributes) == flatten.MAX_ATTRIBUTES
    for i, event in enumerate(batch_to_events(decoded.batch)):
        assert event.attributes == {f"k{i}": i, f"n{i}": None, f"m{i}": ()}


# --- mapping -----------------------------------------------------------------------------------------


def test_mapped_fields_stay_attributes_and_hidden_ones_are_counted() -> None:
    record = {"user": {"id": 5}, "ts": 1700000000.25, "uid": "e", "id": "other", "publisher": None}
    decoded = one(record, id="uid", publisher="user.id", time="ts", time_unit=TimeUnit.SECONDS)
    (event,) = batch_to_events(decoded.batch)
    assert (event.id, event.publisher) == ("e", "5")
    assert event.time == datetime.fromtimestamp(1700000000.25, UTC)
    assert event.attributes == {"uid": "e", "user.id": 5, "ts": 1700000000.25}
    assert decoded.unaddressable == {"id": 1}


def test_milliseconds_and_strings_may_mix() -> None:
    records = [
        b'{"id":"e","time":1700000000123}',
        b'{"id":"f","time":"2024-01-01T00:00:00Z"}',
        b'{"id":"g"}',
    ]
    times = decode_records(records, mapping=FieldMapping(time_unit=TimeUnit.MILLISECONDS)).batch.column(
        "time"
    )
    assert times.to_pylist() == [
        datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        datetime(2024, 1, 1, tzinfo=UTC),
        None,
    ]


@pytest.mark.parametrize("value", [10**18, -(10**18), 1e300, 10**400])
def test_a_time_beyond_the_calendar_is_refused(value: float) -> None:
    assert reasons(one({"id": "e", "time": value}, time_unit=TimeUnit.SECONDS)) == [R.BAD_TIME]


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01T00:00Z",
        "2024-02-30T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "2024-01-01T00:00:00+24:00",
        "2024-01-01T00:00:00+01:60",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00Z\n",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-00:01",
        "٢٠٢٤-01-01T00:00:00Z",
        "",
    ],
)
def test_what_is_no_rfc_3339_time(text: str) -> None:
    column, bad = parse_timestamps([text, None, "2024-01-01t00:00:00.1234567z"])
    assert bad == [0]
    assert column.to_pylist() == [None, None, datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)]


def test_ids_are_made_from_source_and_line(tmp_path: Path) -> None:
    log = tmp_path / "log.ndjson"
    log.write_bytes(b'{"a":1}\n\nnope\n{"a":2}\n')
    (decoded,) = read_ndjson(log, mapping=FieldMapping(id=None))
    assert decoded.batch.column("id").to_pylist() == ["log.ndjson:1", "log.ndjson:4"]
    assert [(r.position, r.line, r.source) for r in decoded.rejected] == [(1, 3, "log.ndjson")]


# --- lines -------------------------------------------------------------------------------------------


def test_blank_lines_crlf_bom_and_a_missing_last_newline() -> None:
    data = b'\xef\xbb\xbf{"id":"a"}\r\n\r\n  \n{"id":"b"}\n{"id":"c"}'
    (decoded,) = read_ndjson(data)
    assert decoded.batch.column("id").to_pylist() == ["a", "b", "c"]
    assert decoded.batch.column("_body").to_pylist() == [b'{"id":"a"}', b'{"id":"b"}', b'{"id":"c"}']


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"  "])
def test_an_empty_input_is_one_empty_batch(data: bytes) -> None:
    schema = EventSchema({"a": A.NUMBERS})
    (decoded,) = read_ndjson(data, schema)
    check(decoded, 0)
    assert EventSchema.of_batch(decoded.batch) == schema


class Trickle(io.BytesIO):
    """Counts the most that is asked for at once."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.most = max(self.most, size or -1)
        assert size is not None
        assert size > 0
        return super().read(size)


@pytest.mark.parametrize("excess", [-1, 0, 1, 2, 5_000_000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("before", [b"", b'{"id":"first"}\n'])
def test_an_oversize_line_is_skipped_exactly(excess: int, end: bytes, before: bytes) -> None:
    length = MAX_RECORD_BYTES + excess
    line = b'{"id":"big","a":"' + b"x" * (length - 19) + b'"}'
    assert len(line) == length
    after = b'{"id":"last"}' if end else b""
    (decoded,) = read_ndjson(Trickle(before + line + end + after))
    ids = decoded.batch.column("id").to_pylist()
    assert ("big" in ids) == (excess <= 0)
    assert reasons(decoded) == ([R.TOO_LARGE] if excess > 0 else [])
    assert [r.line for r in decoded.rejected] == ([1 + bool(before)] if excess > 0 else [])
    assert decoded.records == 1 + bool(before) + bool(after)


def test_the_schema_of_a_stream_comes_from_its_first_batch() -> None:
    data = b'{"id":"a","x":1}\n{"id":"b","x":2}\n{"id":"c","x":"s","y":1}\n{"id":"d","x":3,"y":1}\n'
    first, second = read_ndjson(data, batch_rows=2)
    assert EventSchema.of_batch(first.batch) == EventSchema.of_batch(second.batch)
    assert [e.attributes for e in batch_to_events(second.batch)] == [{"x": "s", "y": 1}, {"x": 3, "y": 1}]


def test_fields_that_are_asked_for_are_found_in_every_record() -> None:
    rows: list[dict[str, Any]] = [{"id": str(k), "x": k, "noise": {"a": k}} for k in range(9)]
    rows[7] |= {"late": {"field": "here"}, "x": "text"}
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    found = list(read_ndjson(data, batch_rows=2, keep=frozenset({"x", "late.field"})))
    events = [event.attributes for decoded in found for event in batch_to_events(decoded.batch)]
    assert events[7] == {"x": "text", "late.field": "here"}
    assert [e["x"] for e in events] == [row["x"] for row in rows]
    assert all(e.keys() == {"x"} for e in [*events[:7], events[8]])


def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "BATCH_BYTES", 100)
    batches = list(read_ndjson(b'{"id":"a"}\n' * 50))
    assert len(batches) == 5
    assert sum(decoded.records for decoded in batches) == 50


def test_a_schema_can_be_inferred_from_more_rows(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"id":"a","x":1}\n{"id":"b","x":2.5}\n{"id":"c","y":"s"}\n')
    assert infer_schema(log).attributes == {"x": A.DOUBLE, "y": A.STRING}
    assert infer_schema(log, rows=1).attributes == {"x": A.INT64}


# --- files -------------------------------------------------------------------------------------------


def test_a_compressed_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(b'{"id":"a"}\n{"id":"b"}\n'))
    (decoded,) = read_events(log)
    assert decoded.batch.num_rows == 2
    log.write_bytes(log.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"log\.jsonl\.gz: the compressed file is damaged or cut off"):
        list(read_events(log))
    log.write_bytes(b"not gzip")
    with pytest.raises(InputError, match="damaged"):
        list(read_ndjson(log))


@pytest.mark.parametrize("name", ["no.ndjson", "no.json.gz", "no.parquet", "no.pq"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file") as error:
        list(read_events(tmp_path / name))
    assert error.value.path == str(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind of event log"):
        list(read_events(tmp_path / "log.csv"))
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        list(read_events(tmp_path / "dir.json"))
    with pytest.raises(InputError, match="binary"):
        list(read_ndjson(io.StringIO("{}")))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="binary"):
        list(read_cloudevents(io.StringIO("{}")))  # type: ignore[arg-type]


CLOUDEVENT = b'{"specversion":"1.0","id":"e","source":"s","type":"t","data":{"a":1}}'


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (b'{"id":"e","a":1}\n', {"a"}),
        (b'[{"id":"e","a":1}]', {"a"}),
        (b"\xef\xbb\xbf" + CLOUDEVENT, {"data.a", "source", "type"}),
        (b"\n" + CLOUDEVENT + b"\nnope", {"data.a", "source", "type"}),
        (b" [" + CLOUDEVENT + b"]", {"data.a", "source", "type"}),
    ],
)
def test_the_kind_of_a_json_file_is_seen_from_its_content(
    tmp_path: Path, data: bytes, paths: set[str]
) -> None:
    log = tmp_path / "log.json"
    log.write_bytes(data)
    (decoded,) = read_events(log)
    assert EventSchema.of_batch(decoded.batch).attributes.keys() == paths
    assert decoded.batch.num_rows == 1
    assert decoded.batch.column("publisher").to_pylist() == ["s" if "type" in paths else None]


def test_a_long_array_of_cloudevents_is_streamed() -> None:
    event = CLOUDEVENT.replace(b'"a":1', b'"a":"' + b'\\"]' * 1000 + b'"')
    data = b"[" + b", ".join([event] * 2000) + b"]"
    found = list(read_cloudevents(data, batch_rows=300))
    assert sum(decoded.batch.num_rows for decoded in found) == 2000
    assert all(not decoded.rejected for decoded in found)


# --- Parquet -----------------------------------------------------------------------------------------


def parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_parquet_types_that_fit_are_columns() -> None:
    data = parquet(
        {
            "id": pa.array([1, 2]),
            "publisher": pa.array(["p", None]).dictionary_encode(),
            "time": pa.array([1_700_000_000, None], pa.timestamp("s")),
            "n": pa.array([{"x": 1, "y": {"z": "q"}}, None]),
            "f": pa.array([1.5, None], pa.float32()),
            "u": pa.array([2**63 - 1, 0], pa.uint64()),
            "day": [date(2024, 1, 1), None],
            "dec": [Decimal("1.25"), Decimal("-0.50")],
            "tags": pa.array([["a", "b"], []], pa.large_list(pa.string())),
            "nums": pa.array([[1, 2], None], pa.list_(pa.int32())),
            "ok": [True, None],
        }
    )
    (decoded,) = read_parquet(data)
    check(decoded, 2)
    first, second = batch_to_events(decoded.batch)
    assert (first.id, first.publisher, first.time) == ("1", "p", datetime.fromtimestamp(1_700_000_000, UTC))
    assert first.attributes == {
        "n.x": 1,
        "n.y.z": "q",
        "f": 1.5,
        "u": 2**63 - 1,
        "day": datetime(2024, 1, 1, tzinfo=UTC),
        "dec": 1.25,
        "tags": ("a", "b"),
        "nums": (1.0, 2.0),
        "ok": True,
    }
    assert second.attributes == {"u": 0, "dec": -0.5, "tags": ()}
    # Names and values: id 2+8, publisher 9+1, time 4+8, n.x 3+8, n.y.z 5+1, f 1+8, u 1+8, day 3+8,
    # dec 3+8, tags 4+2, nums 4+16, ok 2+1.
    assert first.size_bytes == 10 + 10 + 12 + 11 + 6 + 9 + 9 + 11 + 11 + 6 + 20 + 3
    assert second.size_bytes == 10 + 9 + 11 + 4


def test_parquet_rows_that_do_not_fit_are_rejected() -> None:
    data = parquet(
        {
            "id": ["a", "b", None, "", "e", "f", "g"],
            "f": [1.0, math.nan, 2.0, 3.0, 4.0, None, 5.0],
            "nums": [[1.0], [], None, [2.0], [math.inf], [3.0], [4.0]],
            "u": pa.array([1, 2, 3, 4, 5, 2**64 - 1, 7], pa.uint64()),
            "t": pa.array([0, 0, 0, 0, 0, 0, 10**15], pa.timestamp("s")),
        }
    )
    found = list(read_parquet(data, batch_rows=2))
    assert [decoded.records for decoded in found] == [2, 2, 2, 1]
    rejected = [(r.position, r.reason) for decoded in found for r in decoded.rejected]
    assert rejected == [(2, R.NO_ID), (3, R.NO_ID), (6, R.BAD_TIME)]
    events = {e.id: e.attributes for decoded in found for e in batch_to_events(decoded.batch)}
    assert math.isnan(events["b"].pop("f"))  # type: ignore[attr-defined]
    assert events["e"]["nums"] == (math.inf,)
    assert events["f"]["u"] == 2.0**64


def test_null_lists_that_hide_elements_are_null() -> None:
    pairs = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2))
    (decoded,) = read_parquet(parquet({"id": ["a", "b", "c"], "p": pairs}))
    assert decoded.batch.column("p").to_pylist() == [[1.0, 2.0], None, None]
    assert batch_to_events(decoded.batch)[2].attributes == {"p": (3, None)}
    assert decoded.batch.column("_size_bytes").to_pylist() == [3 + 17, 3, 3]


@settings(derandomize=True)  # a new crash inside Arrow should not depend on the day
@given(st.data())
def test_any_damage_to_parquet_is_an_input_error_or_harmless(data: st.DataObject) -> None:
    whole = parquet({"id": ["a", "b"], "s": [{"x": 1, "y": ["p"]}, {"x": 2, "y": []}], "f": [0.5, 1.5]})
    places = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))
    damaged = bytearray(whole)
    for place, value in data.draw(st.lists(places, min_size=1, max_size=3)):
        damaged[place] = value
    try:
        for decoded in read_parquet(bytes(damaged[: data.draw(st.integers(0, len(whole)))])):
            check(decoded, decoded.records)
    except InputError as error:
        assert "Parquet" in str(error) or "column" in str(error)  # noqa: PT017


def test_parquet_columns_that_no_filter_reaches_are_counted() -> None:
    data = parquet(
        {
            "id": ["a", "b"],
            "raw": [b"x", None],
            "objects": [[{"x": 1}], [{"x": 2}]],
            "long": [Decimal("1." + "0" * 30)] * 2,
            "holes": [["x", None], ["y"]],
        }
    )
    (decoded,) = read_parquet(data)
    assert decoded.unaddressable == {"raw": 1, "long": 2}
    first, second = batch_to_events(decoded.batch)
    place = ((0, 0),)
    assert first.attributes == {"objects": (), "objects.x": LeafList([1], [place]), "holes": ("x", None)}
    assert second.attributes == {"objects": (), "objects.x": LeafList([2], [place]), "holes": ("y",)}
    (decoded,) = read_parquet(data, body="raw")
    assert decoded.batch.column("_body").to_pylist() == [b"x", None]
    assert "raw" not in decoded.unaddressable


def test_parquet_with_a_given_schema() -> None:
    data = parquet(
        {
            "id": ["a", "b", "c"],
            "n": pa.array([1, 2**64 - 1, None], pa.uint64()),
            "t": ["2024-01-01T00:00:00Z", "soon", None],
            "s": ["x", None, None],
            "more": [1, 2, None],
        }
    )
    schema = EventSchema({"n": A.DOUBLE, "t": A.TIMESTAMP, "z": A.STRINGS})
    (decoded,) = read_parquet(data, schema)
    check(decoded, 3)
    assert EventSchema.of_batch(decoded.batch) == schema
    assert decoded.batch.column("n").to_pylist() == [1.0, None, None]
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    events = [event.attributes for event in batch_to_events(decoded.batch)]
    assert events == [
        {"n": 1.0, "t": moment, "s": "x", "more": 1},
        {"n": 2.0**64, "t": "soon", "more": 2},
        {},
    ]
    (decoded,) = read_parquet(data, EventSchema({"s": A.INT64}), keep=frozenset({"s"}))
    assert [event.attributes for event in batch_to_events(decoded.batch)] == [{"s": "x"}, {}, {}]


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([1_700_000_000, None], TimeUnit.SECONDS, [1_700_000_000.0, None]),
        ([1_700_000_000_500.0, None], TimeUnit.MILLISECONDS, [1_700_000_000.5, None]),
        (["2023-11-14T22:13:20Z", None], TimeUnit.NONE, [1_700_000_000.0, None]),
    ],
)
def test_parquet_times(values: list[Any], unit: TimeUnit, expected: list[float | None]) -> None:
    data = parquet({"id": ["a", "b"], "ts": values})
    (decoded,) = read_parquet(data, mapping=FieldMapping(time="ts", time_unit=unit))
    times = decoded.batch.column("time").to_pylist()
    assert [t and t.timestamp() for t in times] == expected


def test_parquet_times_that_are_none() -> None:
    data = parquet({"id": ["a", "b", "c"], "time": [1.0, None, math.inf]})
    assert [r.position for r in next(read_parquet(data)).rejected] == [0, 2]
    data = parquet({"id": ["a", "b"], "time": [10**17, 5]})
    (decoded,) = read_parquet(data, mapping=FieldMapping(time_unit=TimeUnit.SECONDS))
    assert [(r.position, r.reason) for r in decoded.rejected] == [(0, R.BAD_TIME)]


@given(st.lists(WITH_ID, max_size=5))
def test_a_batch_survives_a_parquet_file(found: list[dict[str, Any]]) -> None:
    batch = decode_records([json.dumps(value).encode() for value in found]).batch
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    (decoded,) = read_parquet(sink.getvalue())
    assert decoded.batch.equals(batch)
    assert decoded.rejected == []
    assert decoded.unaddressable == {}


def test_text_in_parquet_that_is_not_utf8_is_rejected() -> None:
    broken = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 3], pa.int32()), pa.array([b"a", b"b", b"\xff"]).view(pa.string())
    )
    (decoded,) = read_parquet(parquet({"id": ["a", "b", "c"], "s": broken, "l": lists}))
    assert [(r.position, r.reason) for r in decoded.rejected] == [(1, R.BAD_UTF8), (2, R.BAD_UTF8)]
    decoded.batch.validate(full=True)


def test_damaged_parquet_is_an_error_with_the_path(tmp_path: Path) -> None:
    whole = parquet({"id": [str(i) for i in range(10_000)]})
    log = tmp_path / "log.parquet"
    middle = bytearray(whole)
    middle[100:2000] = bytes(1900)
    for data in (b"", b"PAR1", whole[:-1], whole[: len(whole) // 2], b"{}" * 100, bytes(middle)):
        log.write_bytes(data)
        with pytest.raises(InputError, match=r"log\.parquet: not a readable Parquet file"):
            list(read_events(log))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": [1]}, "no column 'id'"),
        ({"id": [1.5]}, "no column 'id' of strings or integers"),
        ({"id": [1], "publisher": [1.5]}, "publisher column"),
        ({"id": [1], "a.b": [1], "a": [{"b": 1}]}, "two columns have the path 'a.b'"),
    ],
)
def test_parquet_files_that_cannot_be_events(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        list(read_parquet(parquet(columns)))


def test_an_empty_parquet_file_is_one_empty_batch() -> None:
    (decoded,) = read_parquet(parquet({"id": pa.array([], pa.string()), "a": pa.array([], pa.int64())}))
    check(decoded, 0)
    assert EventSchema.of_batch(decoded.batch).attributes == {"a": A.INT64}


def test_parquet_ids_can_be_made_from_rows() -> None:
    found = list(read_parquet(parquet({"a": [1, 2, 3]}), mapping=FieldMapping(id=None), batch_rows=2))
    assert [i for decoded in found for i in decoded.batch.column("id").to_pylist()] == [
        "record:0",
        "record:1",
        "record:2",
    ]


def test_an_empty_array_is_an_array_whatever_its_neighbours_hold() -> None:
    alone = decode_records([b'{"id": "1", "a": []}'])
    beside = decode_records([b'{"id": "1", "a": []}', b'{"id": "2", "a": ["x"]}'])
    for decoded in (alone, beside):
        assert decoded.batch.schema.field("a").type == A.STRINGS.arrow
        assert decoded.batch.column("a")[0].as_py() == []
    numbers = decode_records([b'{"id": "1", "a": []}', b'{"id": "2", "a": [1]}'])
    assert numbers.batch.schema.field("a").type == A.NUMBERS.arrow
    assert numbers.rejected == []
