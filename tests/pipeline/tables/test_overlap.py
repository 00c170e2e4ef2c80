from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from demands import Row, demand_frame, random_rows, sorted_rows
from ramify.errors import InputError
from ramify.pipeline.passes.table_files import OVERLAP
from ramify.pipeline.tables import overlap as module
from ramify.pipeline.tables.overlap import Sketch, overlap
from ramify.pipeline.tables.overlap_kernels import lower_signatures, pairs_of_sets

Pair = tuple[object, ...]


def oracle(
    rows: list[Row], least: float = 0.0, contained: float = 2.0, with_bytes: bool = False
) -> list[Pair]:
    """Every pair that is to be kept, counted pattern by pattern."""
    events: dict[int, int] = {}
    both: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        for k in row.classes:
            events[k] = events.get(k, 0) + row.count
        for pair in combinations(row.classes, 2):
            sums = both.setdefault(pair, [0, 0])
            sums[0] += row.count
            sums[1] += row.bytes
    kept = []
    for (a, b), (shared, size) in both.items():
        alike = shared / (events[a] + events[b] - shared)
        if alike >= least or shared / min(events[a], events[b]) >= contained:
            kept.append((a, b, shared, size if with_bytes else None, alike))
    return sorted(kept)


def found(table: pa.Table) -> list[Pair]:
    return sorted_rows(table.cast(OVERLAP))


def test_pairs_equal_a_plain_loop_in_any_number_of_partitions(spark: SparkSession) -> None:
    rows = random_rows(11, 120, 12)
    for partitions in (1, 2, 7):
        made = overlap(demand_frame(spark, rows, partitions), 13, least=0.0, with_bytes=True)
        assert made.exact
        assert made.recall == 1.0
        assert found(made.pairs.toArrow()) == oracle(rows, with_bytes=True)


def test_only_similar_pairs_are_kept_and_contained_ones_where_asked(spark: SparkSession) -> None:
    rows = [
        *random_rows(12, 60, 8),
        Row((8, 9), 1, 10),
        Row((8,), 99, 10),
    ]  # 9 lies wholly within 8, which is a hundred times as large
    demand = demand_frame(spark, rows)
    similar = found(overlap(demand, 10, least=0.2).pairs.toArrow())
    assert similar == oracle(rows, 0.2)
    assert (8, 9) not in [pair[:2] for pair in similar]
    contained = found(overlap(demand, 10, least=0.2, contained=1.0).pairs.toArrow())
    assert contained == oracle(rows, 0.2, 1.0)
    assert (8, 9, 1, None, 0.01) in contained


@pytest.mark.parametrize(
    ("rows", "classes"),
    [([], 0), ([], 3), ([Row((0,))], 1), ([Row(()), Row((1,)), Row((2,), publisher=1)], 3)],
    ids=["no classes", "no events", "one class", "nothing in common"],
)
def test_there_may_be_no_pair(spark: SparkSession, rows: list[Row], classes: int) -> None:
    demand = demand_frame(spark, rows)
    assert found(overlap(demand, classes, least=0.0).pairs.toArrow()) == []


@pytest.mark.parametrize("rows", [[], [Row((1,)), Row(())]], ids=["no events", "one class"])
def test_a_sketch_may_find_no_pair_either(spark: SparkSession, rows: list[Row]) -> None:
    sketched = overlap(demand_frame(spark, rows), 2, exact=False)
    assert found(sketched.pairs.toArrow()) == []
    assert (sketched.recall, sketched.measured) == (None, 0)


def families(seed: int, classes: int, events: int, size: int = 4) -> list[Row]:
    """Families of classes that mostly match together: pairs of every similarity, and of none."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    loyal = rng.uniform(0.3, 1.0, classes)
    rows = []
    for k in range(events):
        chosen = rng.integers(0, classes // size, 3)
        near = np.unique(chosen[:, None] * size + np.arange(size))
        kept = near[rng.random(len(near)) < loyal[near]]
        rows.append(Row(tuple(kept.tolist()), int(rng.integers(1, 20)), 10, publisher=k))
    return rows


def test_sketched_pairs_are_exact_nearly_complete_and_know_how_complete(spark: SparkSession) -> None:
    rows = families(5, 400, 4000)
    sketch = Sketch(rare_patterns=0, sample=400)
    wanted = oracle(rows, 0.4, with_bytes=True)
    made = [
        overlap(
            demand_frame(spark, rows, partitions),
            400,
            least=0.4,
            with_bytes=True,
            exact=False,
            sketch=sketch,
        )
        for partitions in (1, 7)
    ]
    pairs = [found(one.pairs.toArrow()) for one in made]
    assert pairs[0] == pairs[1], "races do not depend on partitions"
    assert len(wanted) > 100
    assert set(pairs[0]) <= set(wanted), "numbers are exact"
    recall = len(pairs[0]) / len(wanted)
    print(f"recall {recall:.4f} of {len(wanted)} pairs")
    assert recall >= 0.95
    assert (made[0].recall, made[0].measured) == (pytest.approx(recall), len(wanted)), "all were sampled"


def test_pairs_with_a_rare_class_are_all_found_whatever_the_races(spark: SparkSession) -> None:
    rows = families(6, 200, 150)
    patterns = np.bincount([k for row in rows for k in row.classes], minlength=200)
    sketch = Sketch(races=1, rare_patterns=6)
    made = overlap(demand_frame(spark, rows), 200, least=0.2, exact=False, sketch=sketch)
    pairs = set(found(made.pairs.toArrow()))
    wanted = oracle(rows, 0.2)
    rare = {pair for pair in wanted if min(patterns[pair[0]], patterns[pair[1]]) <= 6}
    assert 10 < len(rare) < len(wanted)
    assert rare <= pairs <= set(wanted)


def test_what_a_sketch_cannot_find_is_refused(spark: SparkSession) -> None:
    demand = demand_frame(spark, [Row((0, 1))])
    for options in ({"least": 0.0}, {"contained": 0.5}):
        with pytest.raises(InputError, match="sketched"):
            overlap(demand, 2, exact=False, **options)
    with pytest.raises(InputError, match="between 0 and 1"):
        overlap(demand, 2, least=1.5)


patterns = st.lists(
    st.tuples(st.frozensets(st.integers(0, 9), max_size=6), st.integers(0, 2**40)), max_size=12
)


@given(patterns, st.integers(1, 12), st.booleans())
def test_blocks_together_hold_every_pair_once(
    drawn: list[tuple[frozenset[int], int]], blocks: int, with_bytes: bool
) -> None:
    rows = [Row(tuple(sorted(k)), count, 2 * count) for k, count in drawn]
    lists = pa.array([row.classes for row in rows], pa.list_(pa.int32()))
    start, member = module.compressed_rows(lists, 10)
    count = np.array([row.count for row in rows], dtype=np.int64)
    events = np.zeros(10, np.int64)
    for row in rows:
        events[list(row.classes)] += row.count
    cuts = module._cuts(10, blocks)
    assert cuts[0] == 0
    assert cuts[-1] == 10
    asked = module._PairQuery(10, 0.0, 2.0, with_bytes)
    kept: list[Pair] = []
    for block, _, *buffers in module._suffixes(start, member, count, 2 * count, cuts):
        _, _, arrays = next(
            module._parts(iter([module._packed_batch([(block, module._PATTERNS, *buffers)])]))
        )
        table = module._Table(int(cuts[block]), int(cuts[block + 1]), asked)
        table.add(arrays)
        table.add(arrays._replace(weight=0 * arrays.weight, size=0 * arrays.size))
        kept += [row for batch in table.kept(events) for row in sorted_rows(pa.table(batch))]
    wanted = list(oracle([r for r in rows if r.count], with_bytes=with_bytes))
    assert sorted(kept) == wanted


@given(st.lists(st.frozensets(st.integers(0, 7), max_size=5), max_size=8), st.data())
def test_pairs_within_sets_are_those_that_can_be_similar(
    sets: list[frozenset[int]], data: st.DataObject
) -> None:
    events = np.array(data.draw(st.lists(st.integers(1, 9), min_size=8, max_size=8)), dtype=np.int64)
    rare = np.array(data.draw(st.lists(st.booleans(), min_size=8, max_size=8)))
    members = [sorted(k, reverse=True) for k in sets]  # in any order
    start = np.cumsum([0, *map(len, members)], dtype=np.int64)
    member = np.array([k for m in members for k in m], dtype=np.int32)
    out = np.empty(100, np.int64)
    count = pairs_of_sets(start, member, events, rare, 0.5, out)
    assert pairs_of_sets(start, member, events, rare, 0.5, out[:0]) == count
    wanted = [
        a * 8 + b
        for k in sets
        for a, b in combinations(sorted(k), 2)
        if (rare[a] or rare[b]) and min(events[a], events[b]) >= 0.5 * max(events[a], events[b])
    ]
    assert sorted(out[:count].tolist()) == sorted(wanted)


def test_classes_share_a_race_as_often_as_their_jaccard_over_events() -> None:
    """Patterns of very different counts: 30 events in common of 100, in one pattern of four."""
    start, member = np.array([0, 2, 3, 4, 5]), np.array([0, 1, 0, 0, 1], dtype=np.int32)
    weight, races = np.array([30, 1, 39, 30]), 20_000
    seeds = np.random.default_rng(7).integers(0, 2**64, races, dtype=np.uint64)
    keys = np.array([11, 22, 33, 44], dtype=np.uint64)
    signature = np.full((2, races), np.inf, np.float32)
    lower_signatures(start, member, weight, keys, seeds, signature)
    share = (signature[0] == signature[1]).mean()
    assert share == pytest.approx(0.30, abs=4 * (0.3 * 0.7 / races) ** 0.5)


@given(st.floats(0.01, 1.0), st.integers(1, 256), st.floats(0.5, 0.999))
def test_bands_are_the_widest_that_keep_the_recall(least: float, races: int, recall: float) -> None:
    sketch = Sketch(races=races, recall=recall)
    width = sketch.band_races(least)
    assert 1 <= width <= races
    assert width == 1 or 1 - (1 - least**width) ** (races // width) >= recall
