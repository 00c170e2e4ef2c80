import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from demands import sorted_rows
from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.sql import parse_sql
from ramify.errors import InputError
from ramify.pipeline.passes.sources import FrameSource
from ramify.pipeline.passes.table_files import GENERATING, HISTOGRAMS
from ramify.pipeline.tables import histograms as module
from ramify.pipeline.tables.histograms import (
    content_space,
    equal_depth_axis,
    generating,
    histograms,
    popularity,
)

SCHEMA = EventSchema(
    {"price": AttributeType.DOUBLE, "deep.name": AttributeType.STRING, "hot": AttributeType.BOOLEAN}
)
PRICE = Grid((Axis("price", (10.0, 20.0)),))
BOTH = Grid((Axis("price", (10.0, 20.0)), Axis("deep.name", ("m",))))
START = datetime(2026, 1, 1, tzinfo=UTC)


def random_events(seed: int, count: int) -> list[Event]:
    print(f"seed {seed}")
    rng = random.Random(seed)
    return [
        Event(
            f"e{k}",
            rng.choice(["ann", "bob", None]),
            START + timedelta(seconds=rng.randrange(100)),
            {
                **({"price": rng.uniform(0, 30)} if rng.random() < 0.8 else {}),
                **({"deep.name": rng.choice("aqz")} if rng.random() < 0.8 else {"deep.name": None}),
            },
            size_bytes=rng.randrange(1000),
        )
        for k in range(count)
    ]


def source(spark: SparkSession, events: list[Event], partitions: int = 2) -> FrameSource:
    table = pa.Table.from_batches([events_to_batch(events, SCHEMA)])
    return FrameSource.of(spark.createDataFrame(table).repartition(partitions))


def test_events_per_cell_equal_a_plain_loop_for_several_grids_at_once(spark: SparkSession) -> None:
    events = random_events(31, 200)
    sums: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    for event in events:
        for k, grid in enumerate((PRICE, BOTH)):
            sums[k, grid.cell(event.values)] += 1  # type: ignore[arg-type]
            sizes[k, grid.cell(event.values)] += event.size_bytes  # type: ignore[arg-type]
    wanted = sorted((*key, count, sizes[key]) for key, count in sums.items())
    for partitions in (1, 2, 7):
        found = histograms(spark, source(spark, events, partitions), (PRICE, BOTH))
        assert sorted_rows(found.toArrow().cast(HISTOGRAMS)) == wanted


def test_a_grid_too_large_to_keep_is_summed_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = events_to_batch(random_events(32, 50), SCHEMA)

    def sums() -> dict[tuple[int, int], tuple[int, int]]:
        made: dict[tuple[int, int], tuple[int, int]] = {}
        for rows in module._cells_counted(iter([batch, batch]), (PRICE, BOTH)):
            for grid, cell, events, size in zip(*(c.to_pylist() for c in rows.columns), strict=True):
                before = made.get((grid, cell), (0, 0))
                made[grid, cell] = before[0] + events, before[1] + size
        return made

    kept = sums()
    monkeypatch.setattr(module, "_DENSE_CELLS", 5)
    assert sums() == kept


def test_generating_histograms_equal_a_plain_loop_per_client(spark: SparkSession) -> None:
    events = random_events(33, 150)
    sums: dict[tuple[str | None, int], list[int]] = {}
    for event in events:
        both = sums.setdefault((event.publisher, PRICE.cell(event.values)), [0, 0])  # type: ignore[arg-type]
        both[0] += 1
        both[1] += event.size_bytes
    wanted = sorted(((*key, *both) for key, both in sums.items()), key=lambda row: (row[0] or "", row[1]))
    for partitions in (1, 7):
        found = generating(spark, source(spark, events, partitions), PRICE).toArrow().cast(GENERATING)
        assert sorted(sorted_rows(found), key=lambda row: (row[0] or "", row[1])) == wanted


def test_nothing_gives_nothing(spark: SparkSession) -> None:
    empty = source(spark, [])
    assert histograms(spark, empty, (PRICE,)).toArrow().num_rows == 0
    assert generating(spark, empty, PRICE).toArrow().num_rows == 0
    with pytest.raises(InputError, match="at least one grid"):
        histograms(spark, empty, ())


def test_the_load_of_a_cell_is_kyras() -> None:
    filters = [parse_sql(text, SCHEMA.attributes) for text in ("price < 5", "price < 12", "price > 100")]
    assert popularity(filters, PRICE).tolist() == [2, 1, 1, 0]
    counts = pa.table({"cell": [0, 1], "events": [6, 2], "bytes": [600, 600]})
    space = content_space(counts, PRICE, filters, alpha=0.5)
    assert space.column("volume").to_pylist() == [0.75, 0.25, 0.0, 0.0]
    assert space.column("weight").to_pylist() == pytest.approx([100 / 150, 300 / 150, 1, 1])
    load = [(2 / 3) ** 0.5 * 0.75 * 100 / 150, (1 / 3) ** 0.5 * 0.25 * 2, 0, 0]
    assert space.column("load").to_pylist() == pytest.approx(load)


def test_content_space_without_events_or_filters_is_all_zero() -> None:
    space = content_space(HISTOGRAMS.empty_table(), PRICE, [])
    assert np.asarray(space.column("load")).tolist() == [0.0] * 4


def test_slots_of_an_equal_depth_axis_hold_about_as_many_events_each(spark: SparkSession) -> None:
    events = random_events(35, 400)
    axes = [equal_depth_axis(spark, source(spark, events, n), "price", 4) for n in (1, 7)]
    assert axes[0] == axes[1]
    prices = sorted(e.attributes["price"] for e in events if "price" in e.attributes)  # type: ignore[type-var]
    assert axes[0].edges == tuple(prices[k * len(prices) // 4] for k in (1, 2, 3))
    sampled = equal_depth_axis(spark, source(spark, events), "price", 4, sample=100, seed=1)
    slots = Counter(sampled.slot(price) for price in prices)  # type: ignore[arg-type]
    assert max(slots.values()) < 2 * min(slots.values())


def test_axes_can_be_laid_over_texts_and_times_but_not_over_booleans(spark: SparkSession) -> None:
    events = source(spark, random_events(36, 60))
    assert set(equal_depth_axis(spark, events, "deep.name", 3).edges) <= {"q", "z"}
    assert all(edge >= START for edge in equal_depth_axis(spark, events, "time", 3).edges)
    for path, reason in (("hot", "no order"), ("nowhere", "no event has it")):
        with pytest.raises(InputError, match=reason):
            equal_depth_axis(spark, events, path, 3)
    with pytest.raises(InputError, match="fewer than two values"):
        equal_depth_axis(spark, source(spark, []), "price", 3)


def test_edges_skip_the_least_value_and_repeats() -> None:
    def edges(values: list[int], slots: int) -> tuple[int, ...]:
        return module._edges("x", pa.chunked_array([pa.array(values)]), slots)  # type: ignore[no-any-return]

    assert edges([1, 1, 1, 1, 2, 3], 3) == (2,)
    assert edges([1, 1, 1, 1, 1, 7], 2) == (7,)
    assert edges([4, 3, 2, 1], 4) == (2, 3, 4)
    with pytest.raises(InputError, match="fewer than two"):
        edges([5, 5, 5], 2)
