"""Files of a log that repeat another one byte for byte, under any names.

Owns which files of this machine are copies. Only files of equal length and form are compared, first by
their two ends, then as a whole. So where lengths differ nothing is opened, and of files that differ hardly
more than the ends is read. It does not notice copies of files that only Spark can read, nor the same events
in other bytes.
"""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping

from ramify.content.events.readers import LogKind
from ramify.pipeline.passes.pieces import local_path

__all__ = ["copies_among"]

_END_BYTES = 64 << 10


def copies_among(lengths: Mapping[str, int]) -> dict[str, str]:
    """Each file that is a copy, with the first of the files that it equals, by the paths of Spark.

    A file that cannot be read is no copy: the pass tells what is wrong with it. Neither is an empty one.
    """
    local = (path for path, length in lengths.items() if length and path.startswith("file:/"))
    found: dict[str, str] = {}
    for equally_long in _alike(local, lambda path: _form(path, lengths[path])):
        for alike in _alike(equally_long, _ends):
            for first, *others in _alike(alike, _whole):
                found |= dict.fromkeys(others, first)
    return found


def _alike(paths: Iterable[str], key: Callable[[str], Hashable | None]) -> list[list[str]]:
    """Groups of several files that have the same key, in order; without those that have none."""
    groups: dict[Hashable, list[str]] = {}
    for path in paths:
        try:
            mark = key(path)
        except OSError:
            continue
        if mark is not None:
            groups.setdefault(mark, []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def _form(path: str, length: int) -> Hashable | None:
    kind = LogKind.of(path)
    return None if kind is None else (length, kind.parquet, kind.gzipped)


def _ends(path: str) -> bytes:
    with open(local_path(path), "rb") as stream:
        digest = hashlib.sha256(stream.read(_END_BYTES))
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END_BYTES))
        digest.update(stream.read())
    return digest.digest()


def _whole(path: str) -> bytes:
    with open(local_path(path), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
