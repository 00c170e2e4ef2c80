"""Content space: no event is lost between a filter's cells, a batch's cells and a region's filter."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.filters import EVERYTHING, NOTHING_AT_ALL, Filter
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.sql import parse_sql
from ramify.errors import FilterError, InputError
from strategies import STRINGS, TIMES, filters, rows, typed_rows

A = AttributeType
SCHEMA = EventSchema(
    {"x": A.INT64, "y": A.DOUBLE, "s": A.STRING, "t": A.STRING, "b": A.BOOLEAN, "ts": A.TIMESTAMP}
    | {"tags": A.STRINGS, "d.e": A.INT64}
)
GRID = Grid((Axis("x", (0, 1.5, 2)), Axis("s", ("a", "ab", "b")), Axis("ts", (TIMES[1], TIMES[2]))))
NUMBERS = st.one_of(st.integers(-3, 3), st.floats(-3, 3).map(lambda f: round(f, 1)))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    axes = [
        Axis("x", tuple(sorted(draw(st.sets(NUMBERS, min_size=1, max_size=4))))),
        Axis("y", tuple(sorted(draw(st.sets(NUMBERS, min_size=1, max_size=4))))),
        Axis("s", tuple(sorted(draw(st.sets(st.sampled_from(STRINGS[1:]), min_size=1, max_size=4))))),
        Axis("ts", tuple(sorted(draw(st.sets(st.sampled_from(TIMES), min_size=1, max_size=4))))),
    ]
    return Grid(tuple(draw(st.permutations(axes))[: draw(st.integers(1, 3))]))


@given(filters(), grids(), st.lists(rows(), min_size=4, max_size=8))
def test_an_accepted_event_lies_in_a_touched_cell(
    f: Filter, grid: Grid, events: list[dict[str, Any]]
) -> None:
    touched = set(grid.cells_touched(f).tolist())
    for event in events:
        assert not f.holds(event) or grid.cell(event) in touched


@given(grids(), st.lists(typed_rows(), max_size=20))
def test_a_batch_is_located_as_its_events_are(grid: Grid, events: list[dict[str, Any]]) -> None:
    batch = events_to_batch([Event(id=str(k), attributes=e) for k, e in enumerate(events)], SCHEMA)
    assert grid.locate(batch).tolist() == [grid.cell(e) for e in events]


@given(grids(), st.data(), st.lists(rows(), min_size=4, max_size=8))
@settings(max_examples=60)
def test_a_region_accepts_exactly_its_cells(
    grid: Grid, data: st.DataObject, events: list[dict[str, Any]]
) -> None:
    cells = data.draw(st.sets(st.integers(0, grid.size - 1), max_size=30))
    region = grid.region(cells)
    for event in events:
        assert region.holds(event) == (grid.cell(event) in cells)
    assert set(grid.cells_touched(region).tolist()) == cells


@given(filters(), grids(), st.lists(rows(), min_size=4, max_size=8))
@settings(max_examples=40)
def test_a_filter_is_the_union_of_its_cells(f: Filter, grid: Grid, events: list[dict[str, Any]]) -> None:
    parts = [f & grid.region([cell]) for cell in grid.cells_touched(f).tolist()[:40]]
    if len(parts) < 40:
        for event in events:
            assert f.holds(event) == any(part.holds(event) for part in parts)


def test_cells_are_left_out_where_nothing_can_be() -> None:
    grid = Grid((Axis("x", (0, 10)),))
    assert grid.cells_touched(parse_sql("x >= 0 AND x < 10")).tolist() == [1]
    assert grid.cells_touched(parse_sql("x > 10")).tolist() == [2]
    assert grid.cells_touched(parse_sql("x <= 0")).tolist() == [0, 1]
    assert grid.cells_touched(parse_sql("x IS NULL")).tolist() == [3]
    assert grid.cells_touched(parse_sql("y = 5")).tolist() == [0, 1, 2, 3]
    assert grid.cells_touched(NOTHING_AT_ALL).tolist() == []
    assert grid.region(range(grid.size)) == EVERYTHING
    assert grid.region([]) == NOTHING_AT_ALL


def test_a_region_has_the_key_of_the_same_filter() -> None:
    for edges in ((0.0, 10.0), (0, 10), (np.float64(0), np.float64(10))):
        grid = Grid((Axis("x", edges),))
        assert grid.region([1]).key == parse_sql("x >= 0 AND x < 10").key


def test_large_numbers_are_not_rounded_into_another_cell() -> None:
    at = 2**53 + 1
    for edge in (at, float(2**53), 0.5, -(2.0**70), 2.0**70):
        grid = Grid((Axis("x", (edge,)),))
        values = [at - 2, at - 1, at, at + 1, -(2**63), 2**63 - 1]
        batch = pa.record_batch({"x": pa.array(values, pa.int64())})
        assert grid.locate(batch).tolist() == [grid.cell({"x": v}) for v in values]
        doubles = [float(v) for v in values] + [math.nextafter(edge, 0), 1e300]
        batch = pa.record_batch({"x": pa.array(doubles, pa.float64())})
        assert grid.locate(batch).tolist() == [grid.cell({"x": v}) for v in doubles]


def test_columns_of_any_make_are_located() -> None:
    grid = Grid((Axis("s", ("b",)),))
    plain = pa.array(["a", None, "b", "c"])
    for column in (plain, plain.dictionary_encode(), plain.cast(pa.large_string())):
        assert grid.locate(pa.record_batch({"s": column})).tolist() == [0, 2, 1, 1]
    assert grid.locate(pa.record_batch({"s": pa.array([1, 2])})).tolist() == [2, 2]
    assert grid.locate(pa.record_batch({"t": pa.array([1, 2])})).tolist() == [2, 2]
    table = pa.chunked_array([["a"], ["b", None]])
    assert grid.axes[0].locate(table, 3).tolist() == [0, 1, 2]


def test_cells_are_numbered_row_by_row() -> None:
    assert GRID.shape == (5, 5, 4)
    assert GRID.size == 100
    assert GRID.cell({}) == 99
    assert GRID.cell({"x": -1, "s": "", "ts": TIMES[0]}) == 0
    assert GRID.cell({"x": -1, "s": "", "ts": TIMES[1]}) == 1
    assert GRID.cell({"x": -1, "s": "a", "ts": TIMES[0]}) == 4


@pytest.mark.parametrize(
    ("edges", "reason"),
    [
        ((), "needs at least one edge"),
        ((1, "a"), "must all be numbers, all strings or all times"),
        ((True,), "must all be numbers, all strings or all times"),
        (((1,),), "must all be numbers, all strings or all times"),
        ((1, 1), "must increase"),
        ((2, 1), "must increase"),
        (("b", "a"), "must increase"),
        (("",), "must increase"),
        ((math.nan,), "must be finite numbers"),
        ((-math.inf, 0), "must be finite numbers"),
        ((10**400,), "must be finite numbers"),
        ((TIMES[2], TIMES[1]), "must increase"),
    ],
)
def test_bad_edges_are_refused(edges: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Axis("x", edges)


def test_times_with_and_without_a_zone_may_be_edges() -> None:
    axis = Axis("ts", (datetime(2026, 1, 31), datetime(2026, 1, 31, 12, tzinfo=UTC)))
    assert axis.slot(datetime(2026, 1, 31, tzinfo=UTC)) == 1
    assert axis.slot(datetime(2026, 1, 31, tzinfo=UTC) - timedelta(microseconds=1)) == 0


def test_bad_grids_and_cells_are_refused() -> None:
    with pytest.raises(InputError, match="at least one axis"):
        Grid(())
    with pytest.raises(InputError, match="two axes on one attribute"):
        Grid((Axis("x", (1,)), Axis("x", (2,))))
    with pytest.raises(InputError, match="too large"):
        Grid(tuple(Axis(f"x{k}", tuple(range(300))) for k in range(3)))
    with pytest.raises(InputError, match="from 0 to 99"):
        GRID.region([100])
    with pytest.raises(InputError, match="from 0 to 99"):
        GRID.region([-1])


def test_a_region_of_too_many_boxes_is_refused() -> None:
    board = Grid((Axis("x", tuple(range(100))), Axis("y", tuple(range(100)))))
    squares = [r * 102 + c for r in range(102) for c in range(102) if (r * c) % 97 == 1 or (r + c) % 2]
    try:
        assert len(board.region(squares).boxes) <= 1024
    except FilterError as error:
        assert "more than 1024 boxes" in error.reason  # noqa: PT017


def test_decimals_and_dates_lie_where_their_numbers_and_times_do() -> None:
    numbers = pa.array([Decimal("0.5"), None, Decimal("2.5")])
    assert Axis("x", (1, 2)).locate(numbers, 3).tolist() == [0, 3, 2]
    days = pa.array([date(2026, 1, 1), None, date(2026, 1, 3)])
    assert Axis("x", (datetime(2026, 1, 2, tzinfo=UTC),)).locate(days, 3).tolist() == [0, 2, 1]
