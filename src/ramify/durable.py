"""Files that are there whole or not at all, also after a power cut.

Owns the one way in which Ramify replaces a file: written beside its place, flushed, renamed, and the
directory flushed. Errors of the storage are left to the callers, which know what the file was for.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["flush_directory", "replace_file", "write_parquet"]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that others see the old one or the new one, whole. Raises `OSError`."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    flush_directory(path.parent)


def write_parquet(path: Path, rows: "pa.Table") -> None:
    """As `replace_file`, for a table; its name is flushed with the directory."""
    import pyarrow.parquet as pq

    part = path.with_name(f".{path.name}.part")
    pq.write_table(rows, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def flush_directory(path: Path) -> None:
    """Have the names in a directory written down."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
