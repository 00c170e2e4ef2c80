"""A matcher read from its file matches as the one that was written; any other file is refused by name."""

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batches import batch_of
from project import SUPPORT
from ramify.content.filters.filters import EVERYTHING, NOTHING_AT_ALL, Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.kernels import match_rows
from ramify.content.matching.matcher import Matcher, Matches
from ramify.content.matching.matcher_files import FORMAT, open_matcher, write_matcher
from ramify.errors import InputError
from strategies import filters, rows, typed_rows

Row = dict[str, Any]
SOME = [parse_sql("x > 1 AND s LIKE 'a%'"), parse_keywords(["a", "b"], "tags"), parse_sql("s LIKE '%b'")]
EVENTS: list[Row] = [{"x": 2, "s": "ab", "tags": ("b",)}, {"x": 0, "s": "a", "tags": ()}, {}]


def listed(matches: Matches) -> list[list[int]]:
    return [ids.tolist() for ids in matches]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matchers") / "some.matcher"
    write_matcher(Matcher(SOME), path)
    return path


@given(st.lists(filters(), max_size=12), st.lists(typed_rows(), max_size=8), rows())
def test_a_matcher_from_a_file_matches_as_the_one_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, asked: list[Filter], events: list[Row], odd: Row
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn.matcher"
    matcher = Matcher(asked)
    size = write_matcher(matcher, path)
    opened = open_matcher(path)
    assert (opened.filters, path.stat().st_size) == (len(asked), size)
    for batch in (batch_of(events), batch_of([odd])):
        assert listed(opened.match(batch)) == listed(matcher.match(batch))


@given(st.lists(filters(), min_size=1, max_size=12), st.data())
def test_removed_filters_are_not_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, asked: list[Filter], data: st.DataObject
) -> None:
    matcher = Matcher(asked)
    gone = data.draw(st.sets(st.integers(0, len(asked) - 1)))
    for id_ in gone:
        matcher.remove(id_)
    events = data.draw(st.lists(typed_rows(), min_size=1, max_size=4))
    path = tmp_path_factory.getbasetemp() / "removed.matcher"
    write_matcher(matcher, path)
    opened = open_matcher(path)
    left = set(range(len(asked))) - gone
    assert opened.filters == max(left, default=-1) + 1
    assert listed(opened.match(batch_of(events))) == listed(matcher.match(batch_of(events)))


@pytest.mark.parametrize("asked", [[], [EVERYTHING], [NOTHING_AT_ALL], [NOTHING_AT_ALL, EVERYTHING]])
def test_trivial_sets_of_filters_survive(tmp_path: Path, asked: list[Filter]) -> None:
    write_matcher(Matcher(asked), tmp_path / "m")
    assert listed(open_matcher(tmp_path / "m").match(batch_of(EVENTS))) == [
        [k for k, f in enumerate(asked) if f.holds(event)] for event in EVENTS
    ]


def test_the_kernels_are_not_compiled_again_for_mapped_arrays(written: Path) -> None:
    batch = batch_of(EVENTS)
    Matcher(SOME).match(batch)
    before = list(match_rows.signatures)  # type: ignore[attr-defined]
    open_matcher(written).match(batch)
    assert list(match_rows.signatures) == before  # type: ignore[attr-defined]


def test_the_mapping_outlives_the_files_name_and_never_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_matcher(Matcher(SOME), path)
    before = path.read_bytes()
    opened = open_matcher(path)
    opened.index.words[:] = (
        opened.index.words + 0
    )  # writable, as the kernels' types want it: a private copy
    assert path.read_bytes() == before
    path.unlink()
    assert listed(opened.match(batch_of(EVENTS))) == listed(Matcher(SOME).match(batch_of(EVENTS)))


def test_arrays_begin_at_multiples_of_64_bytes_and_are_those_of_the_index(written: Path) -> None:
    frozen, opened = Matcher(SOME).frozen(), open_matcher(written)
    for name in frozen.index._fields:
        array = getattr(opened.index, name)
        assert array.ctypes.data % 64 == 0, name
        assert (array.flags.writeable, array.flags.c_contiguous) == (True, True), name
        assert (type(array), array.dtype) == (np.ndarray, getattr(frozen.index, name).dtype), name
        assert np.array_equal(array, getattr(frozen.index, name)), name
    assert opened.nbytes == frozen.nbytes <= written.stat().st_size


def test_threads_share_an_open_matcher(written: Path) -> None:
    batch = batch_of(EVENTS * 3000)
    opened = open_matcher(written)
    assert listed(opened.match(batch, threads=3)) == listed(Matcher(SOME).match(batch))


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    write_matcher(Matcher(SOME), path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        write_matcher(Matcher(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------------------------------------ bounded growth


@given(
    st.lists(filters(), max_size=6),
    st.lists(filters(), min_size=1, max_size=6),
    st.lists(filters(), max_size=6),
    st.sets(st.integers(0, 5)),
    st.lists(typed_rows(), min_size=1, max_size=6),
)
def test_filters_that_would_make_the_index_too_large_leave_it_as_it_was(
    first: list[Filter], refused: list[Filter], later: list[Filter], gone: set[int], events: list[Row]
) -> None:
    matcher = Matcher(first)
    held = dict(enumerate(first))
    for id_ in gone & held.keys():
        matcher.remove(id_)
        del held[id_]
    matcher.compact()
    before = matcher.frozen()
    assert not matcher.extend_within(refused, before.nbytes - 1)
    after = matcher.frozen()
    assert (after.nbytes, after.paths, after.filters) == (before.nbytes, before.paths, before.filters)
    held.update(zip(matcher.extend(later), later, strict=True))
    assert len(matcher) == len(held)
    assert listed(matcher.match(batch_of(events))) == [
        sorted(id_ for id_, f in held.items() if f.holds(event)) for event in events
    ]
    assert matcher.extend_within(refused, 10**9)


# ----------------------------------------------------------------------------------------- bad files


@given(st.data())
def test_a_changed_byte_is_noticed_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, written: Path, data: st.DataObject
) -> None:
    content = bytearray(written.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.matcher"
    path.write_bytes(content)
    try:
        opened = open_matcher(path)
    except InputError:
        return
    # only the padding between arrays is not covered by a checksum
    assert listed(opened.match(batch_of(EVENTS))) == listed(Matcher(SOME).match(batch_of(EVENTS)))


@given(st.data())
def test_a_file_that_was_cut_off_is_refused(
    tmp_path_factory: pytest.TempPathFactory, written: Path, data: st.DataObject
) -> None:
    content = written.read_bytes()
    last = 8 * len(Matcher(SOME).frozen().index.group_b)  # padding may follow the last array
    path = tmp_path_factory.getbasetemp() / "cut.matcher"
    padding = -last % 64
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - padding - 1))])
    for verify in (True, False):
        with pytest.raises(InputError):
            open_matcher(path, verify=verify)


def test_foreign_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "zip").write_bytes(b"PK\3\4" + bytes(200))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InputError, match="zip: this is not a compiled matcher"):
        open_matcher(tmp_path / "zip")
    for name in ("empty", "missing"):
        with pytest.raises(InputError, match=f"{name}: the matcher cannot be read"):
            open_matcher(tmp_path / name)


def test_another_version_is_refused_with_what_to_do(written: Path, tmp_path: Path) -> None:
    content = bytearray(written.read_bytes())
    content[8:12] = struct.pack("<I", FORMAT + 1)
    (tmp_path / "newer").write_bytes(content)
    with pytest.raises(InputError, match=f"format {FORMAT + 1}.*run the same version everywhere"):
        open_matcher(tmp_path / "newer")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"paths": ["x"]}, "contradict"),
        ({"filters": -1}, "contradict"),
        ({"filters": None}, "description is damaged"),
        ({"arrays": {}}, "description is damaged"),
        ({"arrays": {"words": [-64, 8, 0]}}, "cut off"),
        ({"arrays": {"words": [1, 8, 0]}}, "cut off"),
        ({"arrays": {"words": [0, 10**15, 0]}}, "cut off"),
    ],
)
def test_a_description_that_lies_is_refused(
    written: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    content = written.read_bytes()
    _, length, _ = struct.unpack_from("<III", content, 8)
    described = json.loads(content[20 : 20 + length])
    text = json.dumps({**described, **change}).encode()
    head = content[:8] + struct.pack("<III", FORMAT, len(text), zlib.crc32(text)) + text
    (tmp_path / "lies").write_bytes(head + bytes(-len(head) % 64) + content[20 + length :])
    with pytest.raises(InputError, match=reason):
        open_matcher(tmp_path / "lies", verify=False)


def test_the_same_filters_give_the_same_file_in_every_process(written: Path, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from test_matcher_files import SOME, Matcher, write_matcher
write_matcher(Matcher(SOME), Path(sys.argv[1]))
"""
    here = Path(__file__).parent
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "other")],
        check=True,
        env={"PYTHONPATH": f"{here}:{SUPPORT}", "PYTHONHASHSEED": "7"},
    )
    assert (tmp_path / "other").read_bytes() == written.read_bytes()


def test_the_form_has_not_changed_under_the_same_version(tmp_path: Path) -> None:
    write_matcher(Matcher([parse_sql("s = 'abc' AND x BETWEEN 1 AND 5")]), tmp_path / "m")
    found = (FORMAT, zlib.crc32((tmp_path / "m").read_bytes()))
    assert found == (3, 837045918), (
        "what a program or a hash means has changed: raise FORMAT, then pin the new sum"
    )
