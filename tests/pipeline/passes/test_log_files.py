"""Files as a source: every record is a row or a reject, whatever the pieces, and the line is the file's."""

import gzip
import io
import json
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ramify.content.events import framing, records
from ramify.content.events.events import AttributeType, EventSchema, batch_to_events
from ramify.content.events.flatten import PLAIN, FieldMapping
from ramify.content.events.readers import infer_schema, read_events
from ramify.errors import InputError
from ramify.pipeline.passes.files import Conflict, Files, ListedFile, absolute, bundles, cut, listed
from ramify.pipeline.passes.pieces import Piece, PieceReader, _Part, merged
from ramify.pipeline.passes.sources import Chunk, PieceCount, Reject

A = AttributeType
SCHEMA = EventSchema({"a": A.DOUBLE, "b": A.STRING, "k": A.STRINGS})
KINDS = ("jsonl", "json.gz", "json", "parquet")


# --- a plain reading, and a reading by pieces --------------------------------------------------------


def cut_every(path: str, length: int, size: int) -> list[Piece]:
    edges = [*range(0, max(length, 1), size), length]
    return [Piece(path, a, b, length) for a, b in pairwise(edges)]


def by_pieces(reader: PieceReader, pieces: Sequence[Piece]) -> list[Chunk]:
    return [chunk for piece in pieces for chunk in reader.read(piece)]


def events(chunks: Sequence[Any]) -> list[Any]:
    return sorted((e for c in chunks for e in batch_to_events(c.batch)), key=repr)


def spelled(events: Sequence[Any]) -> list[str]:
    """Events as texts, in which NaN equals itself."""
    return [repr(replace(event, attributes=dict(sorted(event.attributes.items())))) for event in events]


def placed_by_hand(chunks: Sequence[Chunk]) -> list[tuple[Any, ...]]:
    """The rejects with positions and lines of the file, by a loop over the pieces before."""
    counted = [c for chunk in chunks for c in chunk.counted]
    found = []
    for r in (r for chunk in chunks for r in chunk.rejected):
        before = [c for c in counted if c.file == r.file and c.start < r.start]
        line = None if r.line is None else r.line + sum(c.lines for c in before)
        position = r.position + sum(c.rows_in for c in before)
        found.append((position, line, r.reason, r.detail, shown_of(r)))
    return sorted(found, key=repr)


def shown_of(reject: Any) -> bytes:
    """The bytes of a reject; how much of what follows an array is shown depends on how it was read."""
    return b"" if "array" in reject.detail else reject.raw


def check_totals(chunks: Sequence[Chunk]) -> None:
    good = sum(c.batch.num_rows for c in chunks)
    lost = sum(r.rows for c in chunks for r in c.rejected)
    assert sum(c.rows_in for chunk in chunks for c in chunk.counted) == good + lost


def check_equal(path: Path, size: int, schema: EventSchema = SCHEMA, mapping: FieldMapping = PLAIN) -> None:
    """Reading a file in pieces of `size` bytes, or from memory, is reading it as a whole."""
    plain = list(read_events(path, schema, mapping))
    expected = sorted(
        ((r.position, r.line, str(r.reason), r.detail, shown_of(r)) for d in plain for r in d.rejected),
        key=repr,
    )
    unaddressable = sum((Counter(d.unaddressable) for d in plain), Counter())
    whole = pa.py_buffer(path.read_bytes())
    length = path.stat().st_size
    reader = PieceReader(schema, mapping, root=f"file:{path.parent}/")
    for pieces in (
        cut_every(f"file:{path}", length, size),
        [Piece(f"file:{path}", 0, length, length, whole)],
    ):
        chunks = by_pieces(reader, pieces)
        assert spelled(events(chunks)) == spelled(events(plain))
        assert placed_by_hand(chunks) == expected
        assert sum((Counter(c.unaddressable) for c in chunks), Counter()) == unaddressable
        check_totals(chunks)


# --- laws, without Spark -----------------------------------------------------------------------------

GOOD = st.fixed_dictionaries(
    {"id": st.text("xyzé", min_size=1, max_size=3)},
    optional={
        "a": st.integers(0, 9) | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.text(max_size=4),
        "k": st.lists(st.text("uv", max_size=2), max_size=3),
        "other": st.integers(),
        "publisher": st.sampled_from(["p", "q"]),
    },
)
BAD: list[object] = [{"id": "x", "a": "no"}, {"b": "no id"}, [1, 2], 7, None, {"id": "x", "_body": 1}]
RECORDS = st.lists(GOOD | st.sampled_from(BAD), max_size=12)
RAW = st.sampled_from([b"", b" \t", b"{", b"\xff", b"\xef\xbb\xbf", b'{"id":"e"', b"x" * 400, b"y" * 301])
LINE = RAW | (GOOD | st.sampled_from(BAD)).map(lambda value: json.dumps(value).encode())


@given(
    st.lists(LINE, max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 80) | st.integers(200, 500),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@example([b"\xef\xbb\xbf"], b"\n", True, True, 1)
@example([b'{"id":"e"}', b'\xef\xbb\xbf{"id":"f"}'], b"\n", False, True, 11)
@example([b"x" * 400, b"y" * 301, b"{}"], b"\r\n", False, False, 7)
def test_lines_in_pieces_of_any_size_are_the_lines_of_the_file(
    tmp_path: Path, lines: list[bytes], end: bytes, mark: bool, ended: bool, size: int
) -> None:
    data = b"\xef\xbb\xbf" * mark + end.join(lines) + end * ended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "MAX_RECORD_BYTES", 300)
        patch.setattr(records, "MAX_RECORD_BYTES", 300)
        patch.setattr(framing, "_CHUNK_BYTES", 7)
        for name in ("log.jsonl", "log.ndjson.gz"):
            path = tmp_path / name
            path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
            check_equal(path, size)


@given(RECORDS, st.integers(1, 200), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_arrays_and_cloudevents_in_pieces_are_those_of_the_file(
    tmp_path: Path, found: list[Any], size: int, cloud: bool
) -> None:
    if cloud:
        found = [
            {"specversion": "1.0", "type": "t", "source": "s", **(f if isinstance(f, dict) else {})}
            for f in found
        ]
    array, lines, packed = tmp_path / "array.json", tmp_path / "lines.json", tmp_path / "array.json.gz"
    array.write_text(json.dumps(found, indent=1))
    lines.write_text("\n".join(map(json.dumps, found)))
    packed.write_bytes(gzip.compress(array.read_bytes()))
    for path in (array, lines, packed):
        check_equal(path, size)


@given(
    st.lists(
        st.tuples(st.text("xy", max_size=2), st.floats() | st.none(), st.text(max_size=3)), max_size=30
    ),
    st.integers(1, 7),
    st.integers(200, 3000),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_row_groups_in_pieces_of_any_size_are_those_of_the_file(
    tmp_path: Path, rows: list[tuple[str, float | None, str]], group: int, size: int, generated: bool
) -> None:
    ids, a, b = ([row[i] for row in rows] for i in range(3))
    table = pa.table(
        {"id": pa.array(ids, pa.string()), "a": pa.array(a, pa.float64()), "b": b, "c": [1] * len(b)}
    )
    path = tmp_path / "log.parquet"
    pq.write_table(table, path, row_group_size=group)
    check_equal(path, size, mapping=FieldMapping(id=None) if generated else PLAIN)


def test_a_piece_inside_a_long_line_is_not_read_beyond_itself() -> None:
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            found = super().read(size)
            self.taken += len(found)
            return found

    from ramify.pipeline.passes.pieces import _Part

    stream = Counting(b"x" * 10**6 + b"\n{}\n")
    part = _Part(stream, 1000, 2000)
    assert part.read(1 << 20) == b""
    assert stream.taken <= 1000
    assert part.lines == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["a.jsonl", "b.json.gz", "c.parquet", "d.txt"]), st.integers(0, 500))
    ),
    st.integers(1, 4),
    st.integers(1, 300),
)
def test_pieces_cover_their_files_and_tasks_are_even(
    found: list[tuple[str, int]], slots: int, most: int
) -> None:
    files = [ListedFile(f"file:/{i}/{name}", length) for i, (name, length) in enumerate(found)]
    pieces = cut(files, slots, most)
    for file in files:
        own = [p for p in pieces if p.path == file.path]
        assert own[0].start == 0
        assert own[-1].stop == file.length
        assert all(p.stop == q.start for p, q in pairwise(own))
        if file.path.endswith(("jsonl", "parquet")):
            assert all(p.stop - p.start <= most for p in own)
        else:
            assert len(own) == 1
    tasks = bundles(pieces, slots, most)
    assert tasks == sorted(tasks)
    assert set(tasks) == set(range(len(set(tasks))))
    weight = sum(p.stop - p.start for p in pieces) + len(pieces) * (64 << 10)
    assert len(set(tasks)) <= max(slots * 2, weight >> 20) + 1
    assert len(set(tasks)) >= min(len(pieces), slots) // 2


def test_one_large_file_keeps_every_slot_busy() -> None:
    for size, tasks in ((40 << 20, 2), (400 << 20, 13)):
        pieces = cut([ListedFile("file:/log.jsonl", size)], 2)
        assert len(pieces) == tasks
        assert bundles(pieces, 2) == list(range(tasks))
    assert len(cut([ListedFile("file:/log.jsonl", 1 << 40)], 2)) == 1 << 15


def test_small_files_share_batches_and_nothing_is_lost(tmp_path: Path) -> None:
    pieces = []
    for i in range(40):
        path = tmp_path / f"{i}.jsonl"
        path.write_text(f'{{"id":"{i}","z":1}}\nbad\n')
        pieces += cut_every(f"file:{path}", path.stat().st_size, 10)
    chunks = by_pieces(PieceReader(SCHEMA), pieces)
    (one,) = merged(iter(chunks))
    assert events([one]) == events(chunks)
    assert placed_by_hand([one]) == placed_by_hand(chunks)
    assert not one.unaddressable
    assert all(event.attributes == {"z": 1} for event in batch_to_events(one.batch))
    check_totals([one])


# --- damage ------------------------------------------------------------------------------------------


def faults(chunks: Sequence[Chunk]) -> list[tuple[str, int]]:
    return [(r.reason, r.rows) for c in chunks for r in c.rejected]


def read_in(path: Path, size: int = 100, **how: Any) -> list[Chunk]:
    chunks = by_pieces(PieceReader(SCHEMA, **how), cut_every(f"file:{path}", path.stat().st_size, size))
    check_totals(chunks)
    return chunks


def native(path: Path, rows: int, group: int) -> pa.Table:
    text = "\n".join(json.dumps({"id": str(i), "a": i, "b": f"v{i}" * 9, "k": ["u"]}) for i in range(rows))
    (path.parent / "native.jsonl").write_text(text)
    table = pa.Table.from_batches([d.batch for d in read_events(path.parent / "native.jsonl", SCHEMA)])
    pq.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)
    return table


def test_a_truncated_parquet_file_is_one_reject(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    native(path, 50, 10)
    path.write_bytes(path.read_bytes()[:-200])
    chunks = read_in(path)
    assert faults(chunks) == [("damaged_file", 1)]
    path.write_bytes(b"")
    assert faults(read_in(path)) == [("damaged_file", 1)]


def test_a_damaged_row_group_costs_its_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = native(path, 50, 10)
    data = bytearray(path.read_bytes())
    third = pq.ParquetFile(path).metadata.row_group(2)
    at = third.column(0).data_page_offset
    data[at : at + 40] = b"\xff" * 40
    path.write_bytes(data)
    for size in (150, 1500, len(data)):
        chunks = read_in(path, size)
        assert faults(chunks) == [("damaged_file", 10)]
        kept = {e.id for e in events(chunks)}
        assert kept == {str(i) for i in range(50) if not 20 <= i < 30}
        assert [position for position, *_ in placed_by_hand(chunks)] == [20]
    assert table.num_rows == 50


def test_a_broken_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(i), "b": os.urandom(30).hex()}) for i in range(400)]
    path = tmp_path / "log.jsonl.gz"
    packed = gzip.compress("\n".join(lines).encode())
    path.write_bytes(packed[: len(packed) // 2])
    chunks = read_in(path)
    assert faults(chunks) == [("damaged_file", 1)]
    kept = {e.id for e in events(chunks)}
    assert 100 < len(kept) < 300
    assert kept == {str(i) for i in range(len(kept))}
    for content in (b"no gzip at all", b""):
        path.write_bytes(content)
        assert faults(read_in(path)) == [("damaged_file", 1)]
        with pytest.raises(InputError, match="damaged or cut off"):
            list(read_events(path))


def test_a_file_without_an_id_column_is_one_reject_with_the_column(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": ["x", "y"]}), path, row_group_size=1)
    (reject,) = (r for c in read_in(path) for r in c.rejected)
    assert reject.reason == "missing_column"
    assert "'id'" in reject.detail
    pq.write_table(pa.table({"id": ["1"], "_body": ["x"]}), path)
    (event,) = (event for chunk in read_in(path) for event in batch_to_events(chunk.batch))
    assert event.attributes == {"_body": "x"}


def test_a_file_that_vanished_is_told_by_every_piece_and_counted_once() -> None:
    chunks = by_pieces(PieceReader(SCHEMA), cut_every("file:/nowhere/log.jsonl", 300, 100))
    assert faults(chunks) == [("missing_file", 1), ("missing_file", 0), ("missing_file", 0)]
    check_totals(chunks)


@pytest.mark.parametrize("size", [100, 1 << 20])
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.parquet"])
def test_a_file_that_became_shorter_since_it_was_listed_is_told_and_not_used(
    tmp_path: Path, name: str, size: int
) -> None:
    path = tmp_path / name
    lines = b"".join(b'{"id":"%d"}\n' % i for i in range(60))
    if name == "log.parquet":
        native(path, 60, 10)
    else:
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    data = path.read_bytes()
    pieces = cut_every(f"file:{path}", len(data), size)
    # cut off between two lines, and replaced by nothing: nothing but the length is wrong
    for rest in (lines[: lines.index(b"\n") + 1], b""):
        path.write_bytes(rest)
        chunks = by_pieces(PieceReader(SCHEMA), pieces)
        told = faults(chunks)
        assert (told[0], {reason for reason, _ in told}) == (("changed_file", 1), {"changed_file"})
        assert sum(rows for _, rows in told) == 1
        assert events(chunks) == []
        check_totals(chunks)


def test_what_is_appended_to_lines_after_they_were_listed_is_left_to_the_next_pass(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = "".join(f'{{"id":"{i}"}}\n' for i in range(60))
    path.write_text(lines)
    pieces = cut_every(f"file:{path}", len(lines), 100)
    path.write_text(lines + lines)
    chunks = by_pieces(PieceReader(SCHEMA), pieces)
    assert (len(events(chunks)), faults(chunks)) == (60, [])


def test_a_parquet_file_that_was_written_anew_since_it_was_listed_is_not_read_in_part(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.parquet"
    native(path, 20, 10)
    pieces = cut_every(f"file:{path}", path.stat().st_size, 200)
    native(path, 90, 10)
    assert {reason for reason, _ in faults(by_pieces(PieceReader(SCHEMA), pieces))} == {"changed_file"}


def test_what_spark_hands_over_is_as_long_as_what_was_listed() -> None:
    content = pa.py_buffer(b'{"id":"1"}\n')
    for stop, told in ((11, []), (30, [("changed_file", 1)])):
        piece = Piece("s3://bucket/log.jsonl", 0, stop, 11, content)
        assert faults(by_pieces(PieceReader(SCHEMA, through_spark=True), [piece])) == told


def test_a_file_that_becomes_shorter_while_it_is_read_is_damaged() -> None:
    class Shrinking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return b"" if self.tell() >= 40 else super().read(min(size or 40, 40 - self.tell()))

    part = _Part(Shrinking(b'{"id":"1"}\n' * 10), 11, 110)
    assert b"".join(iter(lambda: part.read(1 << 20), b"")).startswith(b'{"id":"1"}\n')
    assert isinstance(part.error, EOFError)
    whole = _Part(io.BytesIO(b'{"id":"1"}\n{"id":"2"}'), 0, 21)
    while whole.read(5):
        pass
    assert whole.error is None


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.parquet"])
def test_a_file_that_is_cut_off_anywhere_never_loses_rows_silently(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = b"".join(b'{"id":"%d"}\n' % i for i in range(12))
    if name == "log.parquet":
        native(path, 12, 5)
    else:
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    data = path.read_bytes()
    for length in range(0, len(data), 1 if name != "log.parquet" else 29):
        path.write_bytes(data[:length])
        chunks = read_in(path, 1 << 20)
        # lines may end anywhere: after a record, with its newline or without, nothing is amiss
        between = name == "log.jsonl" and (not length or data[length - 1 : length] in (b"\n", b"}"))
        assert sum(rows for _, rows in faults(chunks)) == (0 if between else 1), length
        check_totals(chunks)


def test_a_file_that_is_a_directory_or_of_no_kind_is_one_reject(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    assert faults(by_pieces(PieceReader(SCHEMA), [Piece(f"file:{tmp_path}/log.jsonl", 0, 9, 9)])) == [
        ("unreadable_file", 1)
    ]
    assert faults(by_pieces(PieceReader(SCHEMA), [Piece(f"file:{tmp_path}/x.txt", 0, 9, 9)])) == [
        ("unknown_kind", 1)
    ]


def test_what_nobody_wants_is_not_read_and_sizes_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    table = native(path, 30, 10)
    batch = pa.Table.from_batches([c.batch for c in read_in(path, wanted=frozenset({"a"}))])
    for name in ("id", "publisher", "time", "_size_bytes", "_nulls", "a"):
        assert batch.column(name).to_pylist() == table.column(name).to_pylist(), name
    for name in ("_body", "b", "k"):
        assert batch.column(name).null_count == 30, name
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(table.select(["id", "a", "b", "k"]), foreign)
    some, whole = read_in(foreign, wanted=frozenset({"a"})), read_in(foreign)
    assert events(some) == events(whole)


# --- on Spark ----------------------------------------------------------------------------------------


def ran(spark: SparkSession, files: Files) -> tuple[list[str], DataFrame, DataFrame]:
    """The events that tasks read, as texts, and the frames of rejects and counts."""

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json
        from dataclasses import asdict

        import pyarrow as pa

        from ramify.content.events.events import batch_to_events

        for chunk in files.read(rows):
            found = [("event", repr(event)) for event in batch_to_events(chunk.batch)]
            found += [
                ("reject", json.dumps(asdict(r) | {"raw": r.raw.decode("latin-1")})) for r in chunk.rejected
            ]
            found += [("counted", json.dumps(asdict(c))) for c in chunk.counted]
            yield pa.RecordBatch.from_pydict(
                {"kind": [k for k, _ in found], "text": [t for _, t in found]},
                schema=pa.schema([("kind", pa.string()), ("text", pa.string())]),
            )

    rows = files.frame(spark).mapInArrow(task, "kind string, text string").collect()
    good = sorted(row.text for row in rows if row.kind == "event")
    reject = "file string, start long, position long, line long, reason string, detail string, raw string"
    counted = "file string, start long, lines long, rows_in long"
    frames = []
    for kind, columns in (("reject", f"{reject}, rows long"), ("counted", counted)):
        texts = [(row.text,) for row in rows if row.kind == kind]
        frame = spark.createDataFrame(texts, "text string")
        frames.append(frame.select(sf.from_json("text", columns).alias("r")).select("r.*"))
    return good, frames[0], frames[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of every kind, with some bad records, one damaged file and one of no kind."""
    root = tmp_path / "logs [1] 100%"
    (root / "day=1").mkdir(parents=True)
    lines = [json.dumps({"id": str(i), "a": i, "b": "v"}) if i % 7 else "bad" for i in range(50)]
    (root / "day=1" / "log.jsonl").write_text("\n".join(lines))
    (root / "log.jsonl.gz").write_bytes(gzip.compress("\r\n\r\n".join(lines).encode()))
    (root / "log.json").write_text(json.dumps([{"id": "x", "k": ["u"]}, 5, {"id": "y"}]))
    native(root / "log.parquet", 40, 10)
    (root / "native.jsonl").rename(root / "a {b}.ndjson")
    (root / "cut.parquet").write_bytes((root / "log.parquet").read_bytes()[:-9])
    (root / "empty.json").write_bytes(b"")
    (root / "notes.txt").write_text("no events")
    (root / "_SUCCESS").write_bytes(b"")
    (root / ".log.json.crc").write_bytes(b"x")
    return root


def by_plain_readers(root: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    good, bad = [], []
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        if path.name.startswith(("_", ".")):
            continue
        try:
            found = list(read_events(path, SCHEMA))
        except InputError:
            reason = "unknown_kind" if path.suffix == ".txt" else "damaged_file"
            bad.append((str(path), 0, None, reason))
            continue
        good += [repr(event) for d in found for event in batch_to_events(d.batch)]
        bad += [(str(path), r.position, r.line, str(r.reason)) for d in found for r in d.rejected]
    return sorted(good), sorted(bad, key=repr)


@pytest.mark.parametrize(("through_spark", "piece_bytes"), [(False, 150), (False, 1 << 20), (True, 150)])
def test_a_folder_of_all_kinds_is_what_the_plain_readers_say(
    spark: SparkSession, folder: Path, through_spark: bool, piece_bytes: int
) -> None:
    path = str(folder).replace("[", "\\[").replace("]", "\\]")
    files = Files.of(spark, [path], SCHEMA, piece_bytes=piece_bytes, through_spark=through_spark)
    good, rejects, counted = ran(spark, files)
    expected, bad = by_plain_readers(folder)
    assert good == expected
    placed = absolute(rejects, counted).collect()
    assert sorted(((r.file, r.position, r.line, r.reason) for r in placed), key=repr) == bad
    total = counted.agg(sf.sum("rows_in")).first()
    assert total is not None
    assert total[0] == len(good) + sum(r.rows for r in placed)
    assert files.unread({row.file for row in counted.collect()}) == []


def test_paths_are_checked_before_anything_runs(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hollow").mkdir()
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"id":"1"}\n')
    for paths, text in (
        ([f"{tmp_path}/nope.json"], f"{tmp_path}/nope.json: there is no such file"),
        ([str(plain), f"{tmp_path}/*.zzz"], "no file matches"),
        ([f"{tmp_path}/hollow"], "there is no file in it"),
        (["nofs://host/log.json"], "Spark cannot list it"),
        ([], "no path was given"),
    ):
        with pytest.raises(InputError) as caught:
            Files.of(spark, paths, SCHEMA)
        assert text in str(caught.value)
    notes = next(folder.glob("*.txt")).rename(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"unknown kind of event log '\.txt'"):
        Files.of(spark, [str(notes)], SCHEMA)
    monkeypatch.chdir(tmp_path)
    assert [f.path for f in listed(spark, Files.of(spark, ["plain.jsonl"], SCHEMA).given)] == [
        f"file:{plain}"
    ]
    both = Files.of(
        spark, [str(tmp_path / "*.jsonl"), str(plain), f"file://{plain}"], SCHEMA, through_spark=True
    )
    assert [f.path for f in both.files] == [f"file:{plain}"]
    assert len(ran(spark, both)[0]) == 1


def test_the_first_file_decides_a_type_and_the_others_are_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"id":"1","n":1,"s":"x"}\n{"id":"2","n":2}\n')
    (tmp_path / "2.jsonl").write_text('{"id":"3","n":1.5,"s":7,"t":true}\n')
    pq.write_table(pa.table({"id": ["4"], "n": [3], "extra": ["e"]}), tmp_path / "3.parquet")
    (tmp_path / "4.parquet").write_bytes(b"no parquet")
    for through_spark in (False, True):
        files = Files.of(spark, [str(tmp_path)], through_spark=through_spark)
        assert files.schema == EventSchema(
            {"n": A.DOUBLE, "s": A.STRING, "t": A.BOOLEAN, "extra": A.STRING}
        )
        assert files.conflicts == (Conflict("s", A.STRING, A.INT64, str(tmp_path / "2.jsonl")),)
    good, rejects, _ = ran(spark, files)
    assert len(good) == 4
    assert {row.reason for row in rejects.collect()} == {"damaged_file"}
    one = Files.of(spark, [str(tmp_path / "1.jsonl")])
    assert one.schema == infer_schema(tmp_path / "1.jsonl")


def test_a_file_gone_or_too_large_is_reported_and_the_rest_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, rows in (("a", 3), ("b", 900), ("c", 4)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"id":"{name}{i}"}}\n' for i in range(rows)))
    opened = Files.of(spark, [str(tmp_path)], SCHEMA, piece_bytes=4000)
    handed = Files.of(spark, [str(tmp_path)], SCHEMA, through_spark=True)
    frame = handed.frame(spark)  # lists again, and so finds the file that goes next
    (tmp_path / "c.jsonl").rename(tmp_path / ".c")
    (tmp_path / "b.jsonl").rename(tmp_path / ".b")
    good, rejects, counted = ran(spark, opened)
    assert len(good) == 3
    rows = [(r.file, r.reason, r.rows) for r in absolute(rejects, counted).orderBy("file").collect()]
    assert rows == [(str(tmp_path / f"{name}.jsonl"), "missing_file", 1) for name in "bc"]
    assert frame.count() == 1
    assert [r.file for r in handed.unread({str(tmp_path / "a.jsonl")})] == [
        str(tmp_path / f"{name}.jsonl") for name in "bc"
    ]
    (tmp_path / ".b").rename(tmp_path / "b.jsonl")
    limit = "spark.sql.sources.binaryFile.maxLength"
    before = spark.conf.get(limit)
    spark.conf.set(limit, "1000")
    try:
        large = Files.of(spark, [str(tmp_path)], SCHEMA, through_spark=True)
        good, rejects, counted = ran(spark, large)
    finally:
        spark.conf.set(limit, str(before))
    assert len(good) == 3
    assert [(r.file, r.reason) for r in rejects.collect()] == [
        (str(tmp_path / "b.jsonl"), "file_too_large")
    ]


def test_tasks_do_not_get_the_list_of_files() -> None:
    files = Files(
        SCHEMA, given=("/x",), files=tuple(ListedFile(f"file:/x/{i}.json", 1) for i in range(10**4))
    )
    assert len(pickle.dumps(files)) < 2000
    assert pickle.loads(pickle.dumps(files)) == replace(files, given=(), files=())
    assert Files(SCHEMA).only(["a"]).wanted == {"a"}
    with pytest.raises(TypeError):
        Files(SCHEMA).frame(None)  # type: ignore[arg-type]


def test_rejects_and_counts_are_plain_values() -> None:
    assert Reject("f", 0, 0, None, "r", "d").rows == 1
    assert PieceCount("f", 0, 1, 1) == PieceCount("f", 0, 1, 1)


def test_an_empty_directory_among_other_paths_is_told_and_the_others_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "a.jsonl").write_text('{"id":"1"}\n')
    files = Files.of(spark, [str(tmp_path / "hollow"), str(tmp_path / "a.jsonl")])
    assert [file.path for file in files.files] == [f"file:{tmp_path}/a.jsonl"]
    (told,) = files.unread({str(tmp_path / "a.jsonl")})
    assert (told.file, told.reason, told.rows) == (str(tmp_path / "hollow"), "empty_directory", 0)


def test_odd_names_are_found_and_links_are_followed_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    for name in ("col:on.jsonl", "12:30.jsonl", "z#?*[1].jsonl", "back\\s.jsonl", "a b%20.jsonl"):
        (folder / name).write_text(json.dumps({"id": name}) + "\n")
    (folder / "loop").symlink_to(".")
    (folder / "again.jsonl").symlink_to("12:30.jsonl")
    whole = Files.of(spark, [str(folder)])
    assert len(whole.files) == 5
    globbed = Files.of(spark, [f"{folder}/*:*.jsonl", str(folder / "z#?*[1].jsonl")])
    assert len(globbed.files) == 3


def test_a_field_that_comes_late_is_found_by_looking_through(spark: SparkSession, tmp_path: Path) -> None:
    late = tmp_path / "late.jsonl"
    lines = [f'{{"id":"{i}","n":{i}' + (',"rare":1.5}' if i > 290 else "}") for i in range(300)]
    late.write_text("\n".join(lines))
    early = [*lines[:290], *(line.replace(',"rare":1.5', "") for line in lines[290:])]
    (tmp_path / "early.jsonl").write_text("\n".join(early))
    files = Files(EventSchema(), files=(ListedFile(f"file:{late}", late.stat().st_size),), piece_bytes=700)
    found = files.looked_through(spark)
    assert found.schema.attributes == {"n": AttributeType.INT64, "rare": AttributeType.DOUBLE}
    assert found.conflicts == ()
