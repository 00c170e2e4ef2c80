"""An Arrow batch as the flat arrays that the matcher's kernels read.

Only the columns that some filter looks at are touched, and no row is visited in Python. Fixed-width
columns are viewed or cast, strings are copied once as offsets and bytes. An attribute of a type that
filters cannot hold (a struct, binary) counts as absent; `events.py` keeps such columns out of batches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramify.content.kernels import ABSENT_TYPE, BOOL, FLOAT, INT, STRING, TIME, Columns

__all__ = ["bind_columns"]

NULLS = "_nulls"  # the batch column that lists explicit JSON nulls: see `ramify.content.events`


def bind_columns(batch: pa.RecordBatch, paths: Sequence[str]) -> Columns:
    """Lay out the columns of these paths. Cost: one pass over their buffers."""
    rows = batch.num_rows
    layout = _Layout(rows, len(paths))
    names = {name: k for k, name in enumerate(batch.schema.names)}
    for c, path in enumerate(paths):
        k = names.get(path)
        if k is not None:
            layout.add(c, batch.column(k))
    if NULLS in names:
        layout.mark_nulls(batch.column(names[NULLS]), paths)
    return layout.columns()


class _Layout:
    """Collects the parts of `Columns`, one attribute at a time."""

    def __init__(self, rows: int, paths: int) -> None:
        self.kind = np.full(paths, ABSENT_TYPE, np.int8)
        self.is_list = np.zeros(paths, np.bool_)
        self.state = np.zeros((paths, rows), np.uint8)
        self.base = np.zeros(paths, np.int64)
        self.list_base = np.zeros(paths, np.int64)
        self.parts: dict[str, list[NDArray[Any]]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, c: int, column: Any) -> None:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = column
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            # a null list may own elements in its buffer; filling keeps offsets and values in step
            offsets = np.asarray(column.offsets).astype(np.int64)
            values = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            if _kind_of(values.type) == ABSENT_TYPE:
                return
            self.is_list[c] = True
            self.list_base[c] = self.put("list_offsets", offsets - offsets[0])
        kind = _kind_of(values.type)
        if kind == ABSENT_TYPE:
            return
        self.kind[c] = kind
        self.state[c] = np.asarray(column.is_valid()).astype(np.uint8)
        self.base[c] = self.put_values(kind, values)

    def put_values(self, kind: int, values: Any) -> int:
        if kind == STRING:
            return self.put_strings(values)
        if values.null_count:
            values = pc.fill_null(values, False if kind == BOOL else 0 if kind != TIME else pa.scalar(0, values.type))
        if kind == FLOAT:
            return self.put("floats", np.asarray(values.cast(pa.float64())))
        if kind == TIME:
            values = values.cast(pa.timestamp("us", tz=values.type.tz), safe=False)
        return self.put("ints", np.asarray(values.cast(pa.int64())))

    def put_strings(self, values: Any) -> int:
        values = values.cast(pa.large_string())
        _, offsets_buffer, data_buffer = values.buffers()
        if len(values) == 0:
            offsets = np.zeros(1, np.int64)
        else:
            offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
        data = data[offsets[0] : offsets[-1]]
        shift = self.put("bytes", data) - int(offsets[0])
        return self.put("offsets", offsets + shift)

    def put(self, name: str, values: NDArray[Any]) -> int:
        """Append to one of the flat arrays; returns where the values begin."""
        at = self.sizes.get(name, 0)
        self.parts.setdefault(name, []).append(values)
        self.sizes[name] = at + len(values)
        return at

    def mark_nulls(self, nulls: Any, paths: Sequence[str]) -> None:
        """State 2 where a path is listed as an explicit JSON null."""
        if len(nulls) == 0 or len(nulls.values) == 0:
            return
        offsets = np.asarray(nulls.offsets).astype(np.int64)
        listed = nulls.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        rows = np.repeat(np.arange(len(nulls)), np.diff(offsets))
        where = pc.index_in(listed, value_set=pa.array(list(paths), pa.string()))
        found = np.asarray(where.is_valid())
        self.state[np.asarray(where.drop_null()), rows[found]] = 2

    def columns(self) -> Columns:
        def flat(name: str, dtype: Any) -> NDArray[Any]:
            parts = self.parts.get(name, [])
            if len(parts) == 1 and parts[0].dtype == dtype:
                return np.ascontiguousarray(parts[0])
            return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(1, dtype)

        return Columns(
            self.kind,
            self.is_list,
            self.state,
            self.base,
            self.list_base,
            flat("list_offsets", np.int64),
            flat("ints", np.int64),
            flat("floats", np.float64),
            flat("offsets", np.int64),
            flat("bytes", np.uint8),
        )


def _kind_of(dtype: pa.DataType) -> int:
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return STRING
    if pa.types.is_boolean(dtype):
        return BOOL
    if pa.types.is_signed_integer(dtype) or (pa.types.is_integer(dtype) and dtype.bit_width < 64):
        return INT
    if pa.types.is_floating(dtype):
        return FLOAT
    return TIME if pa.types.is_timestamp(dtype) else ABSENT_TYPE
