"""Leaf columns: what turning many objects at once says is what walking each of them says."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events.events import EventSchema, RejectReason, batch_to_events
from ramify.content.events.flatten import MAX_RECORD_BYTES, decode_records
from ramify.content.events.leaves import Leaf, Leaves, shapes

# A shared machine may pause for longer than Hypothesis expects of a test.

KEYS = st.sampled_from(["a", "b", "a.b", "c", "", "b.", "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
# Few different objects, many times each: shapes that become columns beside shapes that are walked.
CROWDS = st.lists(OBJECTS, min_size=1, max_size=3).flatmap(
    lambda pool: st.lists(st.sampled_from(pool), min_size=1, max_size=40)
)


def leaves_of(found: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        if isinstance(value, dict):
            yield from leaves_of(value, f"{prefix}{key}.")
        elif not isinstance(value, list) or not any(isinstance(v, dict | list) for v in value):
            yield prefix + key, value


def spread(objects: list[dict[str, Any]]) -> Leaves:
    leaves = Leaves(len(objects))
    for shape in shapes(np.arange(len(objects)), objects):
        leaves.add(shape)
    return leaves


def cells(leaves: Leaves) -> list[tuple[int, str, str]]:
    found = [
        (row, path, repr(value))
        for path, leaf in leaves.columns.items()
        for row, value in zip(leaf.rows.tolist(), leaf.values, strict=True)
    ]
    return sorted(found)


@given(CROWDS)
def test_columns_hold_the_leaves_of_every_object(objects: list[dict[str, Any]]) -> None:
    leaves = spread(objects)
    expected = [(row, path, repr(v)) for row, found in enumerate(objects) for path, v in leaves_of(found)]
    assert cells(leaves) == sorted(expected)
    for leaf in leaves.columns.values():
        assert leaf.kinds == set(map(type, leaf.values))


@given(CROWDS, st.data())
def test_dropped_rows_leave_nothing_behind(objects: list[dict[str, Any]], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(objects) - 1)))
    leaves = spread(objects)
    before = cells(leaves)
    leaves.drop(gone)
    assert cells(leaves) == [cell for cell in before if cell[0] not in gone]
    assert all(leaf.values for leaf in leaves.columns.values())
    for leaf in leaves.columns.values():
        assert leaf.kinds == set(map(type, leaf.values))


@given(CROWDS)
def test_a_record_is_read_the_same_alone_and_among_many(objects: list[dict[str, Any]]) -> None:
    records = [json.dumps({**found, "id": f"{row}"}).encode() for row, found in enumerate(objects)]
    many = decode_records(records)
    schema = EventSchema.of_batch(many.batch)
    alone = [decode_records([record], schema) for record in records]
    assert batch_to_events(many.batch) == [e for one in alone for e in batch_to_events(one.batch)]
    refused = [position for position, one in enumerate(alone) if one.rejected]
    assert [rejected.position for rejected in many.rejected] == refused


def test_a_leaf_is_given_back_by_row() -> None:
    leaf = Leaf()
    leaf.extend(np.array([3, 1]), ["d", None], {str, type(None)})
    leaf.add(0, "a")
    assert leaf.dense(5) == ["a", None, None, "d", None]
    assert leaf.first_row() == 0
    leaf.discard_nulls()
    assert (leaf.rows.tolist(), leaf.values, leaf.kinds) == ([3, 0], ["d", "a"], {str})


@pytest.mark.parametrize("copies", [1, 20])
def test_the_budget_for_paths_is_each_record_s_own(copies: int) -> None:
    name = "x" * 1000
    fields = {f"{i}": 1 for i in range(MAX_RECORD_BYTES // 1000)}
    inside = json.dumps({"id": "e", name: fields}).encode()
    beyond = json.dumps({"id": "e", name: {**fields, "one": 1, "two": 2}}).encode()
    shared = json.dumps({"id": "e", name: fields, "y" * 400: {f"{i}": 1 for i in range(3)}}).encode()
    decoded = decode_records([inside, beyond, shared] * copies)
    assert decoded.batch.num_rows == copies
    assert {rejected.reason for rejected in decoded.rejected} == {RejectReason.TOO_LARGE}
    assert [rejected.position % 3 for rejected in decoded.rejected] == [1, 2] * copies
