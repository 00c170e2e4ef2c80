"""Packed patterns come back as they were, at the limits of every width; other bytes are refused."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.planning.demand.decay import NO_PANE
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.patterns import PATTERNS, Patterns, narrowest

EDGES = [0, 1, 127, 128, 254, 255, 256, 257, 65534, 65535, 65536, 65537, 2**31 - 1]
LONG_EDGES = [*EDGES, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -1, -255, -256, -(2**31) - 1, -(2**63)]
small = st.sampled_from(EDGES) | st.integers(-(2**31), 2**31 - 1)
long = st.sampled_from(LONG_EDGES) | st.integers(-(2**63), 2**63 - 1)
names = st.none() | st.sampled_from(["", "a", "ü", '"b"', "c"])
rows = st.tuples(
    small, long, small, names, small, long, st.lists(st.sampled_from(EDGES), max_size=5), long, long
)


def arrays_of(drawn: list[tuple[Any, ...]]) -> Patterns:
    columns = [[row[k] for row in drawn] for k in range(9)]
    split, publisher, cell = (np.array(columns[k], np.int32) for k in (0, 2, 4))
    pane, tags, count, size = (np.array(columns[k], np.int64) for k in (1, 5, 7, 8))
    clients = tuple(dict.fromkeys(name for name in columns[3] if name is not None))
    client = np.array([-1 if name is None else clients.index(name) for name in columns[3]], np.int32)
    start = np.cumsum([0, *map(len, columns[6])], dtype=np.int64)
    classes = np.array([k for row in columns[6] for k in row], np.int32)
    return Patterns(
        split, pane, publisher, client, cell, tags, start, classes, count, size, clients
    )  # fmt: skip


def spelled(found: Patterns) -> list[tuple[Any, ...]]:
    return [
        (
            *(int(column[i]) for column in (found.split, found.pane, found.publisher)),
            None if found.client[i] < 0 else found.clients[found.client[i]],
            *(int(column[i]) for column in (found.cell, found.tags)),
            found.classes[found.start[i] : found.start[i + 1]].tolist(),
            *(int(column[i]) for column in (found.count, found.size)),
        )
        for i in range(len(found))
    ]


@given(st.lists(rows, max_size=12), st.lists(st.integers(0, 12), max_size=3))
def test_packed_patterns_come_back_wherever_they_are_cut(drawn: list[Any], cuts: list[int]) -> None:
    arrays = arrays_of(drawn)
    assert spelled(arrays) == drawn
    edges = sorted({0, len(drawn), *(min(cut, len(drawn)) for cut in cuts)})
    packed = [arrays.packed(a, b) for a, b in itertools.pairwise(edges)] or [arrays.packed(0, 0)]
    found = Patterns.joined([pa.py_buffer(raw) for raw in packed])
    assert spelled(found) == drawn
    for name in Patterns.__slots__[:-1]:
        assert getattr(found, name).dtype == getattr(arrays, name).dtype


@given(st.lists(rows, max_size=8))
def test_rows_of_arrow_and_arrays_say_the_same(drawn: list[Any]) -> None:
    arrays = arrays_of(drawn)
    table = pa.Table.from_batches([arrays.batch()], schema=PATTERNS)
    assert spelled(Patterns.of_table(table)) == drawn
    assert [row["pane"] for row in table.to_pylist()] == [None if r[1] == NO_PANE else r[1] for r in drawn]
    for window in {row[0] for row in drawn}:
        assert spelled(arrays.only(window)) == [row for row in drawn if row[0] == window]
    one, other = Demand.of_patterns(Patterns.of_table(table)), Demand.of_patterns(arrays)
    for name in ("publisher", "client", "cell", "start", "classes", "count", "size", "tags", "clients"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("largest", "bytes_each"),
    [(0, 1), (255, 1), (256, 2), (65535, 2), (65536, 4), (2**32 - 1, 4), (2**32, 8)],
)
def test_numbers_take_as_few_bytes_as_hold_the_largest(largest: int, bytes_each: int) -> None:
    assert np.dtype(narrowest(largest)).itemsize == bytes_each
    base = arrays_of([(0, 0, 0, None, 0, 0, [], 1, 1)] * 1000)
    size = np.full(1000, -7, np.int64)
    size[5] = largest - 7
    made = replace(base, size=size)
    spread = len(made.packed(0, 1000)) - len(base.packed(0, 1000))
    assert spread == (bytes_each * 1000 if largest else 0)


def test_many_class_ids_are_put_together_by_threads() -> None:
    rng = np.random.default_rng(3)
    start = np.arange(0, 1_200_001, 12)
    zeros = np.zeros(100_000, np.int64)
    classes = rng.integers(0, 70_000, 1_200_000).astype(np.int32)
    arrays = Patterns(
        zeros, zeros, zeros, zeros - 1, zeros, zeros, start, classes, zeros + 1, np.arange(100_000)
    )
    found = Patterns.joined([arrays.packed(a, a + 12_500) for a in range(0, 100_000, 12_500)])
    np.testing.assert_array_equal(found.classes, classes)
    np.testing.assert_array_equal(found.start, start)
    np.testing.assert_array_equal(found.size, arrays.size)


@pytest.mark.parametrize("raw", [b"", b"x" * 500, b"ARROW1\0\0" * 40])
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match="not packed patterns"):
        Patterns.joined([raw])


def test_bytes_that_were_cut_off_are_refused() -> None:
    raw = arrays_of([(0, 0, 0, None, 0, 0, [k, 300], 1, k) for k in range(100)]).packed(0, 100)
    with pytest.raises(InputError, match="cut off"):
        Patterns.joined([raw[:-16]])
