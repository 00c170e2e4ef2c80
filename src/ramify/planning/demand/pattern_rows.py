"""Patterns as rows of Arrow: how they travel between processes and lie in files.

Owns the schema of a pattern row and the key form of its classes. Tables that are stored for people have
lists instead (`pipeline.passes.table_files`); here the classes are bytes, big-endian, because bytes are
what engines group and sort fastest, and these sort as the lists would.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["NO_PANE", "PATTERNS", "class_keys", "class_lists", "keys_of_lists"]

_COLUMNS: dict[str, Any] = {
    "split": pa.int32(),
    "pane": pa.int64(),
    "publisher": pa.int32(),
    "client": pa.string(),
    "cell": pa.int32(),
    "tags": pa.int64(),
    "classes": pa.binary(),
    "count": pa.int64(),
    "bytes": pa.int64(),
}

PATTERNS = pa.schema(_COLUMNS)
"""One row a pattern. `tags` are the 64 bits of it; `pane` is the start of a pane of time, or null."""

NO_PANE = -(2**63)
"""The pane of an event without a time; null where patterns are stored."""

_BIG = np.dtype(">i4")


def class_keys(start: npt.NDArray[np.int64], classes: npt.NDArray[np.int32]) -> Any:
    """Compressed rows of class ids as a column of bytes, four a class, big-endian."""
    data = classes[start[0] : start[-1]].astype(_BIG)
    offsets = ((start - start[0]) * 4).astype(np.int32)
    untyped: Any = pa  # the stubs do not take arrays for buffers
    buffers = [None, untyped.py_buffer(offsets), untyped.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(start) - 1, buffers)


def class_lists(keys: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The compressed rows behind a column of keys (an array or a chunked one)."""
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    parts = [_binary_parts(chunk) for chunk in chunks]
    start = np.zeros(sum(len(offsets) - 1 for offsets, _ in parts) + 1, dtype=np.int64)
    classes = np.empty(sum(int(offsets[-1] - offsets[0]) // 4 for offsets, _ in parts), dtype=np.int32)
    row = held = 0
    for offsets, data in parts:
        low, high = int(offsets[0]) // 4, int(offsets[-1]) // 4
        start[row + 1 : row + len(offsets)] = offsets[1:] // 4 + (held - low)
        classes[held : held + high - low] = np.frombuffer(data, dtype=_BIG)[low:high]
        row, held = row + len(offsets) - 1, held + high - low
    return start, classes


def keys_of_lists(lists: Any) -> Any:
    """A column of lists of class ids as keys."""
    whole: Any = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    return class_keys(np.asarray(whole.offsets, dtype=np.int64), np.asarray(whole.values, dtype=np.int32))


def _binary_parts(chunk: Any) -> tuple[npt.NDArray[np.int64], Any]:
    _, offsets, data = chunk.buffers()
    if not len(chunk):
        return np.zeros(1, dtype=np.int64), b""
    width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
    where = np.frombuffer(offsets, dtype=width)[chunk.offset : chunk.offset + len(chunk) + 1]
    return where.astype(np.int64), b"" if data is None else data[: len(data) // 4 * 4]
