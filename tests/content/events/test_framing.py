"""Cutting streams into records: the cuts do not depend on chunks, and batches keep their bounds."""

import io
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events import framing
from ramify.content.events.framing import array_records, elements, lines
from ramify.content.events.records import Records

# A shared machine may pause for longer than Hypothesis expects of a test.

LINES = st.lists(st.text("ab \r", max_size=6).map(str.encode), max_size=30)


@given(LINES, st.integers(1, 20), st.integers(1, 40), st.integers(1, 12))
def test_lines_and_bounds(parts: list[bytes], chunk: int, batch_bytes: int, batch_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "_CHUNK_BYTES", chunk)
        patch.setattr(framing, "BATCH_BYTES", batch_bytes)
        batches = list(lines(io.BytesIO(b"\n".join(parts)), "log", batch_rows))
    expected = [(number, part.strip()) for number, part in enumerate(parts, 1) if part.strip()]
    assert [pair for b in batches for pair in zip(b.lines or (), b.raw, strict=True)] == expected
    check_bounds(batches, batch_bytes, batch_rows)


@given(st.lists(st.integers(0, 10**6), max_size=30), st.integers(1, 20), st.integers(1, 12))
def test_elements_and_bounds(values: list[int], batch_bytes: int, batch_rows: int) -> None:
    data = str(values).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "BATCH_BYTES", batch_bytes)
        batches = list(elements(io.BytesIO(data), None, batch_rows))
    expected = [str(value).encode() for value in values]
    assert [record for batch in batches for record in batch.raw] == expected
    assert array_records(data).raw == expected
    check_bounds(batches, batch_bytes, batch_rows)


def check_bounds(batches: list[Records], batch_bytes: int, batch_rows: int) -> None:
    """A batch ends with the record that fills it, and only the last may be short."""
    position = 0
    for batch in batches:
        sizes = list(map(len, batch.raw))
        assert batch.first == position
        assert len(sizes) <= batch_rows
        assert sum(sizes[:-1]) < batch_bytes
        full = len(sizes) == batch_rows or sum(sizes) >= batch_bytes
        assert full or batch is batches[-1]
        position += len(sizes)


@pytest.mark.parametrize("cut", [lines, elements])
def test_faults_stay_with_their_records(
    cut: Callable[..., Iterator[Records]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_RECORD_BYTES", 3)
    parts = [b"1", b"12345", b"2", b"3", b"67890", b"4"]
    data = b"\n".join(parts) if cut is lines else b"[" + b",".join(parts) + b"]"
    batches = list(cut(io.BytesIO(data), None, 2))
    assert [list(batch.refused) for batch in batches] == [[1], [], [0]]
    assert [batch.first for batch in batches] == [0, 2, 4]
