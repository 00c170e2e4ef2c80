"""Rows of attributes as Arrow batches, for tests that hold the matcher against plain evaluation."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")


def arrow_type(value: Any) -> pa.DataType:
    """The column type that holds a value."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, datetime):
        return TIMESTAMP
    if isinstance(value, tuple):
        return pa.list_(pa.string() if not value or isinstance(value[0], str) else pa.float64())
    return pa.int64() if isinstance(value, int) else pa.float64()


def batch_of(rows: Sequence[dict[str, Any]], types: dict[str, pa.DataType] | None = None) -> pa.RecordBatch:
    """One batch; every path's values must have one type (its first value's, unless given)."""
    types = dict(types or {})
    for row in rows:
        for path, value in row.items():
            if value is not None:
                types.setdefault(path, arrow_type(value))
    columns = {
        path: pa.array([_plain(row.get(path), dtype) for row in rows], dtype)
        for path, dtype in types.items()
    }
    nulls = [sorted(path for path, value in row.items() if value is None) for row in rows]
    columns["_nulls"] = pa.array(nulls, pa.list_(pa.string()))
    return pa.record_batch(columns)


def _plain(value: Any, dtype: pa.DataType) -> Any:
    if isinstance(value, tuple):
        return [float(v) if dtype == pa.list_(pa.float64()) else v for v in value]
    return value
