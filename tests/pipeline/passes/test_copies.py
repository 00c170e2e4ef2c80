"""Files that repeat another one byte for byte: which are noticed, and that they count once."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import ramify
from ramify.cli import app
from ramify.content.events.events import EventSchema
from ramify.pipeline.passes import copies
from ramify.pipeline.passes.copies import copies_among
from ramify.pipeline.passes.files import Files
from ramify.pipeline.session.engine import InProcess
from ramify.studies.rejects import Rejects

MIB = 1 << 20
WANTED = [{"id": "s1", "client": "c1", "broker": "v2", "sql": "x >= 0"}]


def lengths(folder: Path) -> dict[str, int]:
    return {f"file:{path}": path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def names(found: dict[str, str]) -> dict[str, str]:
    return {Path(copy).name: Path(first).name for copy, first in found.items()}


def lines(begin: int, end: int) -> str:
    rows = ({"id": f"e{i}", "publisher": f"v{i % 5}", "x": i} for i in range(begin, end))
    return "".join(json.dumps(row) + "\n" for row in rows)


@given(contents=st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"ba"]), max_size=8))
def test_copies_are_the_files_with_equal_bytes(
    contents: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for number, content in enumerate(contents):
        (folder / f"{number}.jsonl").write_bytes(content)
    expected = {
        f"{late}.jsonl": f"{contents.index(content)}.jsonl"
        for late, content in enumerate(contents)
        if content and contents.index(content) < late
    }
    assert names(copies_among(lengths(folder))) == expected


def test_one_byte_in_the_middle_of_a_long_file_is_a_difference(tmp_path: Path) -> None:
    content = bytearray(MIB)
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "c.jsonl").write_bytes(content)
    content[MIB // 2] = 1
    (tmp_path / "b.jsonl").write_bytes(content)
    assert names(copies_among(lengths(tmp_path))) == {"c.jsonl": "a.jsonl"}


def test_files_of_different_lengths_are_not_opened_and_of_others_the_ends_are_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = copies._whole
    monkeypatch.setattr(copies, "_whole", lambda path: read.append(path) or whole(path))
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_bytes(bytes([number]) * MIB)
    assert copies_among(lengths(tmp_path)) == {}
    assert read == []
    # not there: to open one would be an error that is kept to itself, so count
    opened: list[str] = []
    monkeypatch.setattr(copies, "_ends", lambda path: opened.append(path))
    assert copies_among({f"file:/none/{length}.jsonl": length for length in range(1, 9)}) == {}
    assert opened == []
    copies_among({"file:/none/a.jsonl": 5, "file:/none/b.jsonl": 5})
    assert len(opened) == 2


def test_the_form_counts_and_what_is_not_read_as_events_does_not(tmp_path: Path) -> None:
    packed = gzip.compress(lines(0, 3).encode())
    for name in ("a.jsonl.gz", "b.json.gz", "c.jsonl", "d.txt", "e.txt"):
        (tmp_path / name).write_bytes(packed)
    remote = {"s3://bucket/a.jsonl": 7, "s3://bucket/b.jsonl": 7}
    assert names(copies_among(lengths(tmp_path) | remote)) == {"b.json.gz": "a.jsonl.gz"}


def test_a_file_that_cannot_be_read_is_no_copy(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(lines(0, 3))
    found = lengths(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    assert names(copies_among(found)) == {"c.jsonl": "b.jsonl"}


def test_a_link_to_another_given_file_is_no_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(0, 3))
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.jsonl").write_text(lines(0, 3))
    given = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "sub")]
    files = Files.of(InProcess(), given)
    assert len(files.files) == 1
    assert files.copies == {str(tmp_path / "sub" / "c.jsonl"): str(tmp_path / "a.jsonl")}
    assert files.empty == ()


def pairs(folder: Path) -> dict[str, str]:
    """The copies in `doubled`."""
    copied = {"more/a (1).jsonl": "a.jsonl", "more/z.json": "b.jsonl"}
    return {str(folder / copy): str(folder / first) for copy, first in copied.items()}


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """A log of 30 events in three files, and copies of two of them."""
    folder = tmp_path / "log"
    (folder / "more").mkdir(parents=True)
    for name, begin in (("a", 0), ("b", 10), ("c", 20)):
        (folder / f"{name}.jsonl").write_text(lines(begin, begin + 10))
    (folder / "more" / "a (1).jsonl").write_text(lines(0, 10))
    os.link(folder / "b.jsonl", folder / "more" / "z.json")
    return folder


def check_counted_once(doubled: Path, where: str) -> None:
    def read(count_copies: bool) -> ramify.Log:
        return ramify.read_log(
            str(doubled), subscriptions=WANTED, overlay="ring:5", spark=where, count_copies=count_copies
        )

    log = read(count_copies=False)
    told = log.rejected
    assert (told.events_in, told.files, bool(told)) == (30, 3, False)
    assert told.copies == pairs(doubled)
    assert "2 copied files left out" in repr(log)
    for copy, first in told.copies.items():
        assert f"{copy} is a copy of {first}, byte for byte" in repr(told)
    every = read(count_copies=True).rejected
    assert (every.events_in, every.files, every.copies) == (50, 5, {})


def test_a_copy_counts_once_and_both_names_are_told(doubled: Path) -> None:
    check_counted_once(doubled, "none")


def check_told(doubled: Path, *command: str) -> None:
    events, copied = (50, {}) if "--count-copies" in command else (30, pairs(doubled))
    result = CliRunner().invoke(app, [*command, "--events", str(doubled), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["rows_in"], found["files_left_out"], found["copies"]) == (events, len(copied), copied)
    named = [f"{copy} is a copy of {first}" for copy, first in copied.items()]
    assert [text for text in named if text in result.stderr] == named
    assert ("--count-copies" in result.stderr) == bool(copied)


def planned(folder: Path) -> tuple[str, ...]:
    wanted = folder / "subscriptions.jsonl"
    wanted.write_text("".join(json.dumps(row) + "\n" for row in WANTED))
    return "--overlay", "ring:5", "--subscriptions", str(wanted)


def test_plan_names_copies_and_counts_them_when_asked(doubled: Path, tmp_path: Path) -> None:
    command = ("plan", *planned(tmp_path), "--schemes", "mst", "--spark", "none")
    check_told(doubled, *command)
    check_told(doubled, *command, "--count-copies")


def test_on_spark_copies_count_once_in_every_command(
    spark: SparkSession, doubled: Path, tmp_path: Path
) -> None:
    handed = Files.of(spark, [str(doubled)], EventSchema(), through_spark=True)
    assert (handed.frame(spark).count(), handed.copies) == (3, pairs(doubled))
    log = ramify.read_log(str(doubled / "a.jsonl"), subscriptions=WANTED, overlay="ring:5", spark="none")
    plan = ramify.study(log).compare(["mst"])["mst"].plan
    assert plan is not None
    plan.save(tmp_path / "plan.json")
    check_told(doubled, "price", str(tmp_path / "plan.json"))
    check_told(doubled, "price", str(tmp_path / "plan.json"), "--count-copies")
    check_told(doubled, "tables", *planned(tmp_path), "--out", str(tmp_path / "tables"))


def test_of_many_copies_the_first_are_named_and_the_others_counted() -> None:
    told = Rejects(copies={f"copy{i}": "first" for i in range(13)})
    *named, more, _ = told.notes_and_copies()
    assert len(named) == 10
    assert more == "3 more files are copies"
