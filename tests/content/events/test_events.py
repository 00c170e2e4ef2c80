"""Events as values and as rows: the schema's laws, and the round trip through Arrow."""

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events.attributes import LeafList
from ramify.content.events.events import (
    FIXED_COLUMNS,
    RESERVED_NAMES,
    AttributeType,
    Event,
    EventSchema,
    batch_to_events,
    events_to_batch,
    values_at,
)
from ramify.errors import SchemaError

# A shared machine may pause for longer than Hypothesis expects of a test.

A = AttributeType
PATHS = st.sampled_from(["a", "a.b", "price", "tags", "x y", "é"])
SCHEMAS = st.dictionaries(PATHS, st.sampled_from(list(A))).map(EventSchema)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TIMES = st.datetimes(timezones=st.just(UTC))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    A.STRING: TEXT,
    A.INT64: st.integers(-(2**63), 2**63 - 1),
    A.DOUBLE: FINITE,
    A.BOOLEAN: st.booleans(),
    A.TIMESTAMP: TIMES,
    A.STRINGS: st.lists(TEXT, max_size=3).map(tuple),
    A.NUMBERS: st.lists(FINITE, max_size=3).map(tuple),
}


def events_of(schema: EventSchema) -> st.SearchStrategy[list[Event]]:
    attributes = st.fixed_dictionaries(
        {}, optional={path: st.none() | VALUES[kind] for path, kind in schema.attributes.items()}
    )
    return st.lists(
        st.builds(
            Event,
            id=TEXT.filter(bool),
            publisher=st.none() | TEXT,
            time=st.none() | TIMES,
            attributes=attributes,
            body=st.none() | st.binary(max_size=8),
            size_bytes=st.integers(0, 2**40),
            body_is_json=st.booleans(),
        ),
        max_size=5,
    )


@given(SCHEMAS.flatmap(lambda s: st.tuples(st.just(s), events_of(s))))
def test_events_survive_the_way_to_a_batch_and_back(case: tuple[EventSchema, list[Event]]) -> None:
    schema, events = case
    batch = events_to_batch(events, schema)
    batch.validate(full=True)
    assert batch.schema == schema.arrow
    assert batch_to_events(batch) == events
    assert events_to_batch(batch_to_events(batch), schema).equals(batch)
    assert EventSchema.of_batch(batch) == schema


@given(SCHEMAS.flatmap(events_of))
def test_without_a_schema_nothing_is_lost(events: list[Event]) -> None:
    assert batch_to_events(events_to_batch(events)) == events


@given(SCHEMAS)
def test_a_schema_survives_json_and_pickle(schema: EventSchema) -> None:
    for copy in (EventSchema.from_json(schema.to_json()), pickle.loads(pickle.dumps(schema))):
        assert copy == schema
        assert hash(copy) == hash(schema)
        assert copy.arrow == schema.arrow


@given(SCHEMAS, SCHEMAS)
def test_merging_is_symmetric_and_keeps_every_path(one: EventSchema, other: EventSchema) -> None:
    numeric = {A.INT64, A.DOUBLE}
    clash = any(
        kind is not other.attributes.get(path, kind) and {kind, other.attributes[path]} != numeric
        for path, kind in one.attributes.items()
    )
    if clash:
        with pytest.raises(SchemaError, match="on one side"):
            one.merge(other)
        return
    merged = one.merge(other)
    assert merged == other.merge(one)
    assert merged.attributes.keys() == one.attributes.keys() | other.attributes.keys()
    assert merged.merge(one) == merged


def test_the_order_of_attributes_does_not_matter() -> None:
    one = EventSchema({"b": A.STRING, "a": A.INT64})
    assert one.arrow == EventSchema({"a": A.INT64, "b": A.STRING}).arrow
    assert one.arrow.names == [*FIXED_COLUMNS.names, "a", "b"]


def test_a_schema_cannot_be_changed() -> None:
    schema = EventSchema({"a": A.INT64})
    with pytest.raises(TypeError):
        schema.attributes["b"] = A.STRING  # type: ignore[index]


@pytest.mark.parametrize("name", ["", "id", "publisher", "time", *sorted(RESERVED_NAMES)])
def test_fixed_names_are_no_attributes(name: str) -> None:
    with pytest.raises(SchemaError):
        EventSchema({name: A.STRING})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "JSON object"),
        ('{"price": "float"}', "'price' has the unknown type 'float'"),
        ('{"price": ["double"]}', "unknown type"),
    ],
)
def test_a_bad_schema_file_is_explained(text: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        EventSchema.from_json(text)


@pytest.mark.parametrize("kind", list(A))
def test_types_and_arrow_agree(kind: AttributeType) -> None:
    assert AttributeType.of_arrow(kind.arrow) is kind


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pa.uint64(), A.INT64),
        (pa.float16(), A.DOUBLE),
        (pa.large_string(), A.STRING),
        (pa.dictionary(pa.int8(), pa.string()), A.STRING),
        (pa.date32(), A.TIMESTAMP),
        (pa.timestamp("ns"), A.TIMESTAMP),
        (pa.decimal128(18, 0), A.INT64),
        (pa.decimal128(15, 2), A.DOUBLE),
        (pa.large_list(pa.int8()), A.NUMBERS),
        (pa.list_(pa.string(), 2), A.STRINGS),
    ],
)
def test_arrow_types_that_fit_without_loss(dtype: pa.DataType, kind: AttributeType) -> None:
    assert AttributeType.of_arrow(dtype) is kind


@pytest.mark.parametrize(
    "dtype",
    [
        pa.binary(),
        pa.null(),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal128(38, 0),
        pa.decimal128(16, 2),
        pa.list_(pa.bool_()),
        pa.list_(pa.list_(pa.string())),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.string()),
    ],
)
def test_arrow_types_that_do_not_fit(dtype: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="no attribute type"):
        AttributeType.of_arrow(dtype)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, A.STRING),
        (True, A.INT64),
        (True, A.DOUBLE),
        (1, A.BOOLEAN),
        (1.5, A.INT64),
        (2**63, A.INT64),
        (float("inf"), A.DOUBLE),
        ("2024-01-01T00:00:00Z", A.TIMESTAMP),
        (("a", 1), A.STRINGS),
        ((1.0, True), A.NUMBERS),
        ((float("inf"),), A.NUMBERS),
        ("a", A.STRINGS),
    ],
)
def test_a_value_of_another_type_is_kept_beside_its_column(value: Any, kind: AttributeType) -> None:
    batch = events_to_batch([Event("e", attributes={"x": value})], EventSchema({"x": kind}))
    assert batch.column("x").null_count == 1
    (event,) = batch_to_events(batch)
    assert event.attributes == {"x": value}
    assert type(event.attributes["x"]) in (type(value), float)


def test_a_number_that_is_none_is_kept() -> None:
    (event,) = batch_to_events(events_to_batch([Event("e", attributes={"x": float("nan")})]))
    assert event.attributes["x"] != event.attributes["x"]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(SchemaError, match="'x' has no time zone"):
        events_to_batch([Event("e", attributes={"x": datetime(2024, 1, 1)})])


def test_an_attribute_that_the_schema_has_not_is_kept() -> None:
    events = [Event("e", attributes={"x": 1})]
    assert batch_to_events(events_to_batch(events, EventSchema({}))) == events


def test_a_column_has_the_type_of_most_values() -> None:
    values: list[Any] = [1, "1", "2", ("a", 1), LeafList([1], [((0, 0),)]), (), None, 2**63, 0.5]
    events = [Event(str(k), attributes={"x": value}) for k, value in enumerate(values)]
    batch = events_to_batch(events)
    assert EventSchema.of_batch(batch).attributes == {"x": A.DOUBLE}
    assert batch_to_events(batch) == events
    for row, value in enumerate(values_at(batch, "x", "absent")):
        assert value == values[row]
    assert values_at(batch, "y", "absent") == ["absent"] * len(values)


def test_times_are_kept_as_utc() -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    (event,) = batch_to_events(events_to_batch([Event("e", time=noon)]))
    assert event.time == noon
    assert event.time.utcoffset() == timedelta(0)


def test_a_null_is_told_from_an_absent_attribute() -> None:
    events = [Event("e", attributes={"x": None}), Event("f"), Event("g", attributes={"x": 1})]
    batch = events_to_batch(events)
    assert batch.column("_nulls").to_pylist() == [["x"], [], []]
    assert batch.column("x").to_pylist() == [None, None, 1]


def test_a_batch_of_something_else_is_refused() -> None:
    with pytest.raises(SchemaError, match="not an event batch"):
        batch_to_events(pa.RecordBatch.from_pydict({"id": ["a"]}))


@pytest.mark.parametrize("name", ["id", "publisher", "time"])
@pytest.mark.parametrize("value", [None, "x"])
def test_an_attribute_cannot_have_the_name_of_another_field(name: str, value: str | None) -> None:
    with pytest.raises(SchemaError):
        events_to_batch([Event("e", attributes={name: value})])


@pytest.mark.parametrize("name", ["", *sorted(RESERVED_NAMES)])
@pytest.mark.parametrize("value", [None, "x"])
def test_an_attribute_may_have_a_reserved_name(name: str, value: str | None) -> None:
    events = [Event("e", attributes={name: value})]
    assert batch_to_events(events_to_batch(events)) == events
    assert values_at(events_to_batch(events), name, "absent") == [value]
