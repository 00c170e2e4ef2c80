"""A compiled matcher as a file: written once, mapped into every process that matches with it.

Owns the file's form. It compiles nothing and sends nothing: see `matcher` and `pipeline.session.shipping`.

    mark     8 bytes, `RAMIFYMX`
    head     version, length of the description, its CRC-32: three little-endian 32-bit numbers
    description   JSON: number of filters, paths, and of each array its name, type, place, length, CRC-32
    arrays   raw, little-endian, each at a multiple of 64 bytes

The arrays are mapped copy-on-write and handed to the kernels as plain writable arrays: the types that the
kernels are compiled for already, so nothing is compiled twice, and one copy in the page cache serves all
processes of a machine, since nobody writes. Nothing in a file is ever executed or unpickled.

Cost: opening reads the file once, about a second per gigabyte, to compare checksums: the kernels trust the
arrays, and a flipped bit could make them read anywhere. `verify=False` skips that, for a file that this
process has checked before; opening then takes well below a millisecond whatever the size.
"""

import json
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramify.content.matching.literal_kernels import LITERAL_WORDS, SCAN_WORDS
from ramify.content.matching.matcher import FrozenMatcher, Matcher
from ramify.content.matching.program import Index
from ramify.errors import InputError

__all__ = ["FORMAT", "matcher_from_bytes", "matcher_to_bytes", "open_matcher", "write_matcher"]

FORMAT = 3
"""The version of the form. Raise it when `program.Index`, a box's program or a hash changes meaning."""

_MARK = b"RAMIFYMX"
_HEAD = struct.Struct("<III")
_ALIGN = 64
# every array of `Index` but `bytes`, which is `words` seen as bytes
_TYPES: dict[str, str] = {
    "words": "<i8",
    "postings": "<i4",
    "table": "<i8",
    "heads": "<i4",
    "class_start": "<i8",
    "class_kind": "<i8",
    "class_length": "<i8",
    "group_a": "<i8",
    "group_b": "<i8",
    "test_heads": "<i8",
    "test_codes": "<i8",
    "literals": "<i8",
    "literal_bytes": "|u1",
    "grams": "<i4",
    "gram_bits": "|u1",
    "scans": "<i8",
}


def write_matcher(matcher: Matcher | FrozenMatcher, path: Path) -> int:
    """Write a matcher; returns the size of the file in bytes. `path` appears when it is complete.

    Spare room is left out, and so are statistics that only adding filters needs. Compact the matcher first
    if many filters were removed. Nobody may change it meanwhile.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            for part in _parts(matcher):
                file.write(part)
            size = file.tell()
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return size


def open_matcher(path: Path, *, verify: bool = True) -> FrozenMatcher:
    """Map a file that `write_matcher` wrote. The mapping outlives the file's name.

    Raises
    ------
    InputError
        When the file cannot be read, is no matcher, is of another version, or is damaged. Without
        `verify`, damage inside the arrays is not noticed.
    """
    try:
        content = np.memmap(path, np.uint8, "c").view(np.ndarray)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise InputError(f"the matcher cannot be read: {error}", path=str(path)) from None
    try:
        return _frozen(content, verify)
    except InputError as error:
        raise InputError(error.reason, path=str(path)) from None


def matcher_to_bytes(matcher: Matcher | FrozenMatcher) -> bytes:
    """What `write_matcher` would write."""
    return b"".join(_parts(matcher))


def matcher_from_bytes(content: bytes | memoryview) -> FrozenMatcher:
    """The matcher in bytes that `matcher_to_bytes` made, copied once. Raises `InputError` as
    `open_matcher` does."""
    return _frozen(np.frombuffer(content, np.uint8).copy(), verify=True)


def _parts(matcher: Matcher | FrozenMatcher) -> Iterator[bytes | memoryview]:
    """The form of a matcher, piece by piece."""
    frozen = matcher.frozen() if isinstance(matcher, Matcher) else matcher
    arrays = {
        name: np.ascontiguousarray(getattr(frozen.index, name), kind) for name, kind in _TYPES.items()
    }
    yield _head(frozen, arrays)
    for array in arrays.values():
        yield _raw(array)
        yield bytes(-array.nbytes % _ALIGN)


def _frozen(content: NDArray[np.uint8], verify: bool) -> FrozenMatcher:
    """The matcher whose form this is; its arrays are views."""
    try:
        described, at = _description(content)
        arrays = {name: _array(content, at, described["arrays"][name], name, verify) for name in _TYPES}
        frozen = FrozenMatcher(_index(arrays), tuple(described["paths"]), int(described["filters"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the matcher's description is damaged ({error!r})") from None
    if not _fits(frozen):
        raise InputError("the matcher's arrays contradict each other: write it again")
    return frozen


def _head(frozen: FrozenMatcher, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Everything before the first array, padded to where that begins."""
    at = 0
    places: dict[str, list[int]] = {}
    for name, array in arrays.items():
        places[name] = [at, array.size, zlib.crc32(_raw(array))]
        at += array.nbytes + -array.nbytes % _ALIGN
    described = {"filters": frozen.filters, "paths": frozen.paths, "arrays": places}
    text = json.dumps(described).encode()
    head = _MARK + _HEAD.pack(FORMAT, len(text), zlib.crc32(text)) + text
    return head + bytes(-len(head) % _ALIGN)


def _description(content: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """What the file says about itself, and where its first array begins."""
    start = len(_MARK) + _HEAD.size
    head = content[:start].tobytes()
    if head[: len(_MARK)] != _MARK or len(head) < start:
        raise InputError("this is not a compiled matcher")
    version, length, checksum = _HEAD.unpack_from(head, len(_MARK))
    if version != FORMAT:
        raise InputError(
            f"the matcher has format {version}, and this version of Ramify reads {FORMAT}: "
            "run the same version everywhere, or compile the filters again"
        )
    if sys.byteorder != "little":
        raise InputError("compiled matchers are little-endian, and this machine is not")
    text = content[start : start + length].tobytes()
    if len(text) < length or zlib.crc32(text) != checksum:
        raise InputError("the matcher's description is damaged: write it again")
    at = start + length
    return json.loads(text), at + -at % _ALIGN


def _array(
    content: NDArray[np.uint8], start: int, place: list[int], name: str, verify: bool
) -> NDArray[Any]:
    """One array as a view of the file."""
    at, size, checksum = place
    kind = np.dtype(_TYPES[name])
    part = content[start + at : start + at + size * kind.itemsize]
    if min(at, size) < 0 or at % _ALIGN or part.nbytes != size * kind.itemsize:
        raise InputError(f"the matcher is cut off: its array {name} is not complete")
    if verify and zlib.crc32(_raw(part)) != checksum:
        raise InputError(f"the matcher is damaged: its array {name} has another checksum. Write it again")
    return part.view(kind)


def _raw(array: NDArray[Any]) -> memoryview | bytes:
    """The bytes of an array, not copied. (An empty one cannot be cast.)"""
    return array.data.cast("B") if array.size else b""


def _index(arrays: Mapping[str, NDArray[Any]]) -> Index:
    return Index(bytes=arrays["words"].view(np.uint8), **arrays)


def _fits(frozen: FrozenMatcher) -> bool:
    """Whether the arrays have the lengths that the kernels count on."""
    index, paths = frozen.index, len(frozen.paths)
    slots = len(index.table) // 2
    return (
        frozen.filters >= 0
        and len(index.heads) == paths + 1
        and len(index.class_start) == paths + 1
        and len(index.class_kind) == len(index.class_length)
        and len(index.group_a) == len(index.group_b)
        and len(index.postings) % 2 == 0
        and len(index.table) == 2 * slots
        and slots > 0
        and slots & (slots - 1) == 0
        and len(index.test_heads) % 2 == 0
        and len(index.literals) % LITERAL_WORDS == 0
        and len(index.scans) == paths * SCAN_WORDS
    )
