import itertools
import math

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from demands import Row, demand_frame, random_rows, sorted_rows
from ramify.errors import InputError
from ramify.pipeline.passes.table_files import SELECTIVITY
from ramify.pipeline.tables.selectivity import class_sums, compressed_rows, selectivity

MINUTE_US = 60_000_000


def oracle(rows: list[Row], classes: int, half_life_s: float, now_us: int) -> list[tuple[float, ...]]:
    def weight(row: Row) -> float:
        age_us = 0 if row.pane is None else max(now_us - (row.pane + MINUTE_US), 0)
        return 2.0 ** (-age_us / (half_life_s * 1e6))

    total = sum(r.count for r in rows)
    recent = sum(r.count * weight(r) for r in rows)
    made = []
    for k in range(classes):
        mine = [r for r in rows if k in r.classes]
        events, lately = sum(r.count for r in mine), sum(r.count * weight(r) for r in mine)
        made.append(
            (
                k,
                events,
                sum(r.bytes for r in mine),
                events / total if total else 0.0,
                lately,
                sum(r.bytes * weight(r) for r in mine),
                lately / recent if recent else 0.0,
            )
        )
    return made


def test_selectivity_equals_a_plain_loop_and_decays_by_pane(spark: SparkSession) -> None:
    rows = random_rows(3, 80, 9)
    tables = []
    for partitions in (1, 2, 7):
        demand = demand_frame(spark, rows, partitions)
        made = selectivity(demand, 11, half_life_s=90.0, pane_us=MINUTE_US, now_us=5 * MINUTE_US)
        tables.append(sorted_rows(made.toArrow().cast(SELECTIVITY)))
    assert tables[0] == tables[1] == tables[2], "to the last bit"
    for found, wanted in zip(tables[0], oracle(rows, 11, 90.0, 5 * MINUTE_US), strict=True):
        assert found[:3] == wanted[:3]
        assert found[3:] == pytest.approx(wanted[3:], rel=1e-12)


def test_without_a_half_life_nothing_decays_and_classes_without_a_match_keep_a_row(
    spark: SparkSession,
) -> None:
    rows = [Row((0,), 3, 30), Row((), 5, 50), Row((0, 2), 2, 20)]
    found = selectivity(demand_frame(spark, rows), 4).toArrow().cast(SELECTIVITY)
    nothing = (None, None, None)
    assert sorted_rows(found) == [
        (0, 5, 50, 0.5, *nothing),
        (1, 0, 0, 0.0, *nothing),
        (2, 2, 20, 0.2, *nothing),
        (3, 0, 0, 0.0, *nothing),
    ]


def test_an_event_one_half_life_before_the_end_of_the_last_pane_counts_half(spark: SparkSession) -> None:
    rows = [Row((0,), 8, 80, pane=0), Row((0,), 1, 10, pane=2 * MINUTE_US)]
    found = selectivity(demand_frame(spark, rows), 1, half_life_s=120.0, pane_us=MINUTE_US).toArrow()
    assert found.column("recent_events").to_pylist() == [8 / 2 + 1]


def test_an_empty_demand_gives_a_row_of_zeros_for_every_class(spark: SparkSession) -> None:
    found = selectivity(demand_frame(spark, []), 2, half_life_s=1.0, pane_us=1).toArrow()
    assert [row[1:] for row in sorted_rows(found)] == [(0, 0, 0.0, 0.0, 0.0, 0.0)] * 2


def test_a_half_life_needs_panes(spark: SparkSession) -> None:
    demand = demand_frame(spark, [Row((0,))])
    with pytest.raises(InputError, match="no panes"):
        selectivity(demand, 1, half_life_s=1.0, pane_us=1)
    for half_life_s, pane_us in ((1.0, 0), (0.0, 1), (-1.0, 1), (math.nan, 1)):
        with pytest.raises(InputError, match="positive"):
            selectivity(demand, 1, half_life_s=half_life_s, pane_us=pane_us)


def test_all_events_are_counted_beside_the_classes_and_patterns_too(spark: SparkSession) -> None:
    rows = [Row((1,), 3, 30), Row((), 5, 50), Row((1,), 1, 10, publisher=1)]
    found = class_sums(demand_frame(spark, rows), 2).toArrow()
    assert sorted_rows(found) == [(None, -1, 9, 90, 3), (None, 1, 4, 40, 2)]


def test_sums_passed_on_early_add_up_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramify.pipeline.tables import selectivity as module

    rows = random_rows(4, 60, 5)
    batches = [
        pa.record_batch(
            {
                "pane": pa.array([r.pane for r in part], pa.int64()),
                "classes": pa.array([r.classes for r in part], pa.list_(pa.int32())),
                "count": pa.array([r.count for r in part]),
                "bytes": pa.array([r.bytes for r in part]),
            }
        )
        for part in (rows[:20], [], rows[20:])
    ]
    monkeypatch.setattr(module, "_MOST_CELLS", 7)
    sums: dict[tuple[object, object], int] = {}
    for batch in module._counted(iter(batches), 5):
        for row in batch.to_pylist():
            key = row["pane"], row["class"]
            sums[key] = sums.get(key, 0) + row["events"]
    for (pane, k), events in sums.items():
        mine = [r for r in rows if r.pane == pane and (k == -1 or k in r.classes)]
        assert events == sum(r.count for r in mine)
    assert {key for key in sums if key[1] == -1} == {(r.pane, -1) for r in rows}


def test_a_class_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match="class 7"):
        compressed_rows(pa.array([[1, 7]], pa.list_(pa.int32())), 7)
    with pytest.raises(InputError, match="class -1"):
        compressed_rows(pa.array([[-1, 2]], pa.list_(pa.int32())), 7)


def test_rows_of_a_sliced_column_are_its_own() -> None:
    column = pa.array([[5], [0, 1], [], [2]], pa.list_(pa.int32())).slice(1, 3)
    start, member = compressed_rows(column, 3)
    assert [member[a:b].tolist() for a, b in itertools.pairwise(start)] == [[0, 1], [], [2]]
