"""Claims about stored panes: windows sum to what a loop gives, and no reader ever sees a pane twice."""

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.pipeline.passes.table_files import QUARANTINE
from ramify.pipeline.stream.panes import UNKNOWN, Facts, PaneStore
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.pattern_rows import PATTERNS, class_keys
from ramify.planning.demand.windows import Span

PANE = 10
ABOUT: dict[str, Any] = {
    "pane_us": PANE * 10**6,
    "shares": [0.5, 0.5],
    "keep": 0.5,
    "seed": 1,
    "tag_filters": 0,
}
Row = tuple[
    int, int | None, int, tuple[int, ...], int, int
]  # split, pane, publisher, classes, count, bytes


def patterns(rows: list[Row]) -> pa.Table:
    import numpy as np

    start = np.cumsum([0, *(len(row[3]) for row in rows)]).astype(np.int64)
    classes = np.array([k for row in rows for k in row[3]], dtype=np.int32)
    columns: list[Any] = [
        pa.array([row[0] for row in rows], pa.int32()),
        pa.array([None if row[1] is None else row[1] * PANE * 10**6 for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.int32()),
        pa.nulls(len(rows), pa.string()),
        pa.array([-1] * len(rows), pa.int32()),
        pa.array([0] * len(rows), pa.int64()),
        class_keys(start, classes),
        pa.array([row[4] for row in rows], pa.int64()),
        pa.array([row[5] for row in rows], pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=PATTERNS)


def strangers(rows: list[tuple[int, int | None, str]]) -> pa.Table:
    plain = [
        {"split": s, "pane": None if p is None else p * PANE * 10**6, "publisher": name, "events": 1}
        for s, p, name in rows
    ]
    return pa.Table.from_pylist(plain, schema=UNKNOWN)


def store_in(directory: Path) -> PaneStore:
    store = PaneStore(directory)
    store.begin(ABOUT)
    return store


def put(store: PaneStore, number: int, rows: list[Row], unknown: Any = ()) -> bool:
    counted = sum(row[4] for row in rows)
    facts = Facts(rows_in=counted + len(unknown), unknown=len(unknown), spans={0: Span(counted, 0, number)})
    return store.publish(number, facts, patterns(rows), strangers(list(unknown)))


def seen(demand: Demand) -> Counter[tuple[int, tuple[int, ...]]]:
    found: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for i in range(len(demand)):
        found[int(demand.publisher[i]), tuple(demand[i].tolist())] += int(demand.count[i])
    return found


def wanted(rows: list[Row], low: int, high: int, split: int | None = None) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for own, pane, publisher, classes, count, _ in rows:
        if pane is not None and low <= pane < high and split in (None, own):
            found[publisher, classes] += count
    return found


row = st.tuples(
    st.integers(0, 1),
    st.one_of(st.none(), st.integers(-3, 8)),
    st.integers(0, 2),
    st.sampled_from([(), (0,), (1, 3), (0, 1, 2)]),
    st.integers(1, 5),
    st.integers(0, 100),
)
batch = st.tuples(
    st.lists(row, max_size=6),
    st.lists(st.tuples(st.integers(0, 1), st.one_of(st.none(), st.integers(0, 5)), st.sampled_from("xy"))),
)
step = st.one_of(
    batch,
    st.tuples(st.just("merge"), st.one_of(st.none(), st.integers(0, 6))),
    st.tuples(st.just("trim"), st.integers(-3, 5)),
)


@settings(max_examples=60)
@given(steps=st.lists(step, max_size=10), low=st.integers(-3, 8), width=st.integers(1, 6))
def test_windows_sum_to_what_a_loop_gives_however_panes_are_merged_and_trimmed(
    steps: list[Any], low: int, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = store_in(tmp_path_factory.mktemp("panes"))
    rows: list[Row] = []
    unknown: list[tuple[int, int | None, str]] = []
    number, floor = 0, -99
    for one, other in steps:
        if one == "merge":
            store.compact(other)
        elif one == "trim":
            floor = max(floor, other)
            store.trim(other * PANE * 10**6)
        else:
            assert put(store, number, one, other)
            rows, unknown, number = rows + one, unknown + other, number + 1
    rows = [r for r in rows if r[1] is None or r[1] >= floor]
    end = (low + width) * PANE * 10**6
    if low < floor:
        with pytest.raises(InputError, match="trimmed"):
            store.window(width * PANE, end)
    else:
        windows = store.window(width * PANE, end)
        assert seen(windows.whole) == wanted(rows, low, low + width)
        for split, part in enumerate(windows.parts):
            assert seen(part) == wanted(rows, low, low + width, split)
        assert windows.whole.seconds == width * PANE
        assert windows.whole.factor == 2
        inside = [name for _, p, name in unknown if p is not None and max(low, floor) <= p < low + width]
        assert windows.whole.unknown == Counter(inside)
    assert seen(store.everything().whole) == wanted(rows, -9, 99) + timeless(rows)
    assert store.latest() == max((r[1] * PANE * 10**6 for r in rows if r[1] is not None), default=None)
    total = store.facts()
    assert total.rows_in == total.duplicates + total.dropped + total.thinned + total.unknown + total.counted


def timeless(rows: list[Row]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for _, pane, publisher, classes, count, _ in rows:
        if pane is None:
            found[publisher, classes] += count
    return found


def test_a_batch_that_is_there_is_never_written_again_merged_or_not(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert put(store, 0, [(0, 1, 0, (1,), 2, 20)])
    assert not put(store, 0, [(0, 1, 0, (1,), 9, 90)])
    for number in (1, 2):
        store.compact()
        assert put(store, number, [(0, 1, 0, (1,), 1, 1)])
    store.compact()
    assert not (tmp_path / "panes" / "batch=000000000000").exists()
    assert store.has(0)
    assert not put(store, 0, [(0, 1, 0, (1,), 9, 90)])
    assert store.everything().whole.events == 4


def test_what_a_crash_left_behind_is_not_seen_and_does_not_hinder(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    half = tmp_path / "panes" / ".batch=000000000000"
    half.mkdir()
    (half / "patterns.parquet").write_bytes(b"half")
    (tmp_path / "merged" / "10000000-1.parquet").write_bytes(b"half")
    (tmp_path / ".manifest.json.part").write_bytes(b"{")
    assert store.latest() is None
    assert put(store, 0, [(0, 1, 0, (1,), 2, 20)])
    assert store.compact() == 1
    assert store.everything().whole.events == 2


def test_batches_are_merged_into_one_file_a_pane_and_removed_a_generation_later(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for number in range(6):
        put(store, number, [(0, number % 2, 0, (number,), 1, 1), (0, None, 0, (), 1, 1)])
        if number % 2:
            assert store.compact() == 2
    assert sorted(os.listdir(tmp_path / "panes")) == ["batch=000000000004", "batch=000000000005"]
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    assert sorted(manifest["panes"]) == ["0", "10000000", "none"]
    assert len(os.listdir(tmp_path / "merged")) == 6  # those named now, and those before
    assert store.everything().whole.events == 12


def test_readers_see_every_pane_once_while_others_merge_and_write(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    store_in(tmp_path)
    done = threading.Event()
    faults: list[object] = []

    def read() -> None:
        mine, last = PaneStore(tmp_path), 0
        try:
            while not done.is_set():
                # Every batch adds 1 to each of three panes: halves or doubles would show.
                rows, per_pane = mine.patterns(), Counter[int]()
                for pane, count in zip(rows["pane"].to_pylist(), rows["count"].to_pylist(), strict=True):
                    per_pane[pane] += count
                assert len({*per_pane.values()}) <= 1
                assert last <= sum(per_pane.values()) <= 180
                last = sum(per_pane.values())
        except Exception as fault:
            faults.append(fault)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    writer = PaneStore(tmp_path)
    try:
        for number in range(60):
            put(writer, number, [(0, pane, number % 3, (pane,), 1, 1) for pane in range(3)])
            for _ in range(rng.randrange(3)):
                writer.compact(rng.choice([None, number]))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not faults
    assert writer.everything().whole.events == 180


def test_a_reader_that_was_overtaken_twice_begins_again(tmp_path: Path) -> None:
    class Slow(PaneStore):
        overtaken = 0

        def _rows(self, *args: Any) -> pa.Table:
            if self.overtaken < 1:
                self.overtaken += 1
                for number in (1, 2):
                    put(other, number, [(0, 1, 0, (1,), 2, 20)])
                    other.compact()
            return super()._rows(*args)

    other = store_in(tmp_path)
    put(other, 0, [(0, 1, 0, (1,), 2, 20)])
    reader = Slow(tmp_path)
    assert reader.facts().rows_in == 2
    assert reader.everything().whole.events == 6
    assert reader.overtaken == 1


def test_what_comes_for_a_trimmed_pane_stays_unseen(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    put(store, 0, [(0, 1, 0, (1,), 2, 20), (0, 4, 0, (1,), 3, 20)])
    store.trim(2 * PANE * 10**6)
    assert store.everything().whole.events == 3
    put(store, 1, [(0, 1, 0, (1,), 2, 20)], [(0, 1, "x"), (0, 4, "y")])
    for _ in range(2):
        assert store.everything().whole.events == 3
        assert store.everything().whole.unknown == {"y": 1}
        store.compact()


def test_panes_that_were_counted_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    store_in(tmp_path)
    with pytest.raises(InputError, match="another pane_us, seed"):
        PaneStore(tmp_path).begin({**ABOUT, "seed": 2, "pane_us": 5})


def test_windows_must_be_whole_panes_and_there_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="start following"):
        PaneStore(tmp_path / "nothing").window(PANE)
    store = store_in(tmp_path)
    with pytest.raises(InputError, match="no pane yet"):
        store.window(PANE)
    for width, end in ((PANE + 1, None), (0, None), (PANE, 5)):
        with pytest.raises(InputError, match="whole panes"):
            store.window(width, end)


def test_a_file_that_is_gone_is_reported_not_waited_for(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    put(store, 0, [(0, 1, 0, (1,), 2, 20)])
    (tmp_path / "panes" / "batch=000000000000" / "patterns.parquet").unlink()
    with pytest.raises(InputError, match="missing"):
        store.everything()


def test_reading_panes_needs_no_spark() -> None:
    code = (
        "import sys, ramify.pipeline.stream.panes; sys.exit(any('pyspark' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_could_not_be_used_is_there_before_and_after_every_merge(tmp_path: Path) -> None:
    store, expected = store_in(tmp_path), list[dict[str, Any]]()
    for number in range(6):
        if number % 3:
            place = {"file": f"{6 - number}.ndjson", "line": 3, "position": 2}
            expected.append({**place, "reason": "not_json", "detail": "no", "raw": b"{", "rows": 1})
        bad = pa.Table.from_pylist(expected[-1:] if number % 3 else [], schema=QUARANTINE)
        facts = Facts(rows_in=bad.num_rows, quarantined=bad.num_rows)
        assert store.publish(number, facts, patterns([]), strangers([]), bad)
        if number in (1, 3):
            store.compact()
        assert store.quarantine().to_pylist() == expected[::-1]
        assert (store.facts().quarantined, store.facts().faults) == (len(expected), len(expected))
    store.trim(10**18)
    assert store.compact() == 2
    assert store.quarantine().to_pylist() == expected[::-1]
    assert store.facts().counted == 0
