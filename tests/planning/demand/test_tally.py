"""Counting in the compiled table equals counting in a dictionary, whatever the batches."""

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event, EventSchema, events_to_batch
from ramify.content.matching.matcher import Matches
from ramify.network.graphs.generators import ring
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.patterns import PATTERNS, Patterns, class_rows
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import PatternTally, TallySettings, brokers_by_name

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PANE_US = 60_000_000
BROKERS = {"p0": 0, "p1": 1, "p2": 0}

Drawn = tuple[str | None, int | None, int, tuple[int, ...]]
drawn_events = st.lists(
    st.tuples(
        st.sampled_from(["p0", "p1", "p2", "ghost", None]),
        st.none() | st.integers(-300, 300),
        st.integers(0, 2**40),
        st.lists(st.integers(0, 11), unique=True, max_size=6).map(lambda ids: tuple(sorted(ids))),
    ),
    max_size=40,
)


def batch_of(rows: list[Drawn], first: int = 0) -> tuple[pa.RecordBatch, Matches]:
    events = [
        Event(
            f"e{first + i}", publisher, None if second is None else NOON + timedelta(seconds=second),
            size_bytes=size,
        )
        for i, (publisher, second, size, _) in enumerate(rows)
    ]  # fmt: skip
    ends = np.cumsum([0, *(len(ids) for *_, ids in rows)], dtype=np.int64)
    ids = np.array([k for *_, ids in rows for k in ids], dtype=np.int32)
    return events_to_batch(events, EventSchema({})), Matches(ends, ids)


def counting(**more: object) -> TallySettings:
    vacant = np.zeros(9, dtype=np.bool_)
    vacant[4] = True
    return TallySettings(9, vacant, BROKERS, **more)  # type: ignore[arg-type]


def by_hand(rows: list[Drawn], by_client: bool, pane_us: int) -> dict[tuple[object, ...], tuple[int, int]]:
    found: dict[tuple[object, ...], tuple[int, int]] = {}
    for publisher, second, size, ids in rows:
        if publisher not in BROKERS:
            continue
        time_us = None if second is None else int(NOON.timestamp() * 1e6) + second * 10**6
        pane = None if time_us is None or not pane_us else time_us // pane_us * pane_us
        tags = sum(1 << (k - 9) for k in ids if k >= 9)
        classes = tuple(k for k in ids if k < 9 and k != 4)
        key = (pane, BROKERS[publisher], publisher if by_client else None, tags, classes)
        count, total = found.get(key, (0, 0))
        found[key] = count + 1, total + size
    return found


def as_dict(drained: list[Patterns]) -> dict[tuple[object, ...], tuple[int, int]]:
    table = pa.Table.from_batches([patterns.batch() for patterns in drained], schema=PATTERNS)
    start, classes = class_rows(table["classes"])
    found: dict[tuple[object, ...], tuple[int, int]] = {}
    for i, row in enumerate(table.to_pylist()):
        ids = tuple(classes[start[i] : start[i + 1]].tolist())
        key = (row["pane"], row["publisher"], row["client"], row["tags"], ids)
        count, total = found.get(key, (0, 0))
        found[key] = count + row["count"], total + row["bytes"]
    return found


@given(st.lists(drawn_events, max_size=4), st.booleans(), st.sampled_from([0, PANE_US]), st.booleans())
def test_counting_equals_a_dictionary(
    batches: list[list[Drawn]], by_client: bool, pane_us: int, drain_each: bool
) -> None:
    tally = PatternTally(counting(by_client=by_client, pane_us=pane_us))
    out, first = [], 0
    for rows in batches:
        tally.add(*batch_of(rows, first))
        first += len(rows)
        if drain_each:
            out.append(tally.drain())
    out.append(tally.drain())
    everything = [row for rows in batches for row in rows]
    assert as_dict(out) == by_hand(everything, by_client, pane_us)
    lost = Counter(publisher for publisher, *_ in everything if publisher not in BROKERS)
    assert {name: count for (_, name), count in tally.unknown.items()} == lost
    seconds = [second for name, second, *_ in everything if second is not None and name in BROKERS]
    span = tally.spans.get(0)
    assert (0.0 if span is None else span.seconds) == (max(seconds) - min(seconds) if seconds else 0.0)
    assert (0 if span is None else span.events) == len(everything) - sum(lost.values())


def test_a_hundred_thousand_distinct_patterns_are_kept_apart() -> None:
    rng = np.random.default_rng(5)
    lists = {tuple(sorted(set(rng.integers(0, 300, 4).tolist()))) for _ in range(120_000)}
    rows: list[Drawn] = [("p1", None, 1, ids) for ids in lists]
    tally = PatternTally(TallySettings(300, np.zeros(300, dtype=np.bool_), BROKERS))
    for at in range(0, len(rows), 7_001):
        tally.add(*batch_of(rows[at : at + 7_001], at))
        tally.add(*batch_of(rows[at : at + 7_001], at))
    assert len(tally) == len(lists)
    drained = tally.drain()
    assert set(drained.count.tolist()) == {2}
    assert {tuple(drained.classes[a:b].tolist()) for a, b in itertools.pairwise(drained.start)} == lists
    assert len(tally) == 0


@given(st.lists(st.lists(st.integers(0, 2**31 - 1)), max_size=20), st.integers(0, 19), st.integers(0, 19))
def test_keys_of_classes_sort_as_their_lists_and_come_back(lists: list[list[int]], a: int, b: int) -> None:
    start = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    none = np.zeros(len(lists), dtype=np.int64)
    members = np.array([k for row in lists for k in row], dtype=np.int32)
    patterns = Patterns(none, none, none, none - 1, none, none, start, members, none, none)
    keys = patterns.batch().column("classes")
    texts = keys.to_pylist()
    assert sorted(range(len(lists)), key=lambda i: lists[i]) == sorted(
        range(len(lists)), key=lambda i: texts[i]
    )
    for same, ids in zip(class_rows(keys), class_rows(pa.array(lists, pa.list_(pa.int32()))), strict=True):
        assert same.tolist() == ids.tolist()
    part = keys.slice(min(a, b, len(lists)), abs(a - b))
    found_start, found = class_rows(part)
    got = [found[x:y].tolist() for x, y in itertools.pairwise(found_start)]
    assert got == lists[min(a, b, len(lists)) :][: abs(a - b)]
    whole_start, whole = class_rows(pa.chunked_array([keys, part], pa.binary()))
    assert len(whole_start) == len(keys) + len(part) + 1
    assert len(whole) == whole_start[-1]


@settings(max_examples=50)
@given(drawn_events, st.booleans(), st.randoms())
def test_a_demand_is_sorted_and_does_not_depend_on_the_order_of_its_rows(
    rows: list[Drawn], by_client: bool, random: object
) -> None:
    if not by_client:  # without tags either, only brokers and classes tell patterns apart
        rows = [(*row, tuple(k for k in ids if k < 9)) for *row, ids in rows]  # type: ignore[misc]
    tally = PatternTally(counting(by_client=by_client, pane_us=PANE_US, split=Split((0.5, 0.5))))
    tally.add(*batch_of(rows))
    table = pa.Table.from_batches([tally.drain().batch()])
    order = list(range(table.num_rows))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = table.take(pa.array(order, pa.int64()))
    one, other = (Demand.of_patterns(Patterns.of_table(rows)) for rows in (table, shuffled))
    for name in ("publisher", "client", "cell", "start", "classes", "count", "size", "tags"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.clients == other.clients
    columns = (one.publisher, one.client, one.cell, one.tags)
    found = [(*(int(column[i]) for column in columns), one[i].tolist()) for i in range(len(one))]
    assert found == sorted(found)
    assert len({str(row) for row in found}) == len(found)
    assert one.events == sum(row[0] in BROKERS for row in rows)


def test_an_attachment_to_nowhere_makes_a_publisher_unknown_even_with_the_name_of_a_broker() -> None:
    overlay = ring(3)
    a, b, _ = overlay.brokers
    found = brokers_by_name(overlay, {a: "nowhere", "x": b})
    assert a not in found
    assert found["x"] == overlay.index[b]


def test_sampling_counts_what_it_leaves_out() -> None:
    rows: list[Drawn] = [("p0", 1, 10, (1,))] * 500
    tally = PatternTally(counting(split=Split(keep=0.2, seed=3)))
    tally.add(*batch_of(rows))
    kept = tally.drain().count.tolist()
    assert sum(kept) + tally.thinned == 500
    assert 60 < sum(kept) < 140


@pytest.mark.parametrize("rows", [[], [("p0", None, 0, ())]])
def test_nothing_and_almost_nothing_are_counted(rows: list[Drawn]) -> None:
    tally = PatternTally(counting())
    tally.add(*batch_of(rows))
    assert len(tally.drain()) == len(rows)
    assert len(tally.drain()) == 0
