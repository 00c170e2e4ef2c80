"""Counted patterns on their way from the tally to a demand: one form, and two ways to write it down.

    PatternTally (hash table of a task) -> Patterns -> Demand (distinct, in order)
                                           |      ^
                                           v      |
        packed bytes        from a task to the driver, and to digests of other tasks
        rows (`PATTERNS`)   for Spark to add up across tasks; stored tables have the same columns

Owns that form, `Patterns`. The packed bytes are few and large, and a driver reads them back without a step
per pattern. Every column is the difference to its smallest number, in as few bytes as hold the largest, and
none where all are equal. Class ids and lengths then take two bytes and one: no more than a general
compression makes of them, for the cost of a copy. In rows the classes are bytes, big-endian: engines group
and sort bytes fastest, and these sort as the lists would.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.errors import InputError
from ramify.planning.demand.decay import NO_PANE
from ramify.planning.demand.pattern_kernels import gather_lists

__all__ = ["PATTERNS", "Patterns", "class_rows", "gather", "hosts_away", "narrowest"]

Array = npt.NDArray[Any]

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

_TYPES: dict[str, Any] = {
    "split": np.int32,
    "pane": np.int64,
    "publisher": np.int32,
    "client": np.int32,
    "cell": np.int32,
    "tags": np.int64,
    "count": np.int64,
    "size": np.int64,
}
_BIG = np.dtype(">i4")
_MAGIC = int.from_bytes(b"RamPat01", "little")
_FIXED = 4  # words of a header before those of the columns: magic, rows, class ids, bytes of names
_WIDTHS = {0: np.uint8, 1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
# class ids from which on a second thread saves more than it costs
_WORTH_THREADS = 1 << 20


@dataclass(frozen=True, slots=True)
class Patterns:
    """One entry a pattern in every column; the columns mean what those of `PATTERNS` do.

    `client` is an index of `clients`, or -1; `pane` may be `NO_PANE`; `size` are the bytes. Pattern i
    matches `classes[start[i]:start[i + 1]]`, of any integer type.
    """

    split: Array
    pane: Array
    publisher: Array
    client: Array
    cell: Array
    tags: Array
    start: npt.NDArray[np.int64]
    classes: Array
    count: Array
    size: Array
    clients: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many patterns there are."""
        return len(self.split)

    @classmethod
    def of_table(cls, rows: pa.Table) -> "Patterns":
        """From rows: those of `PATTERNS`, or of a stored demand table, which has lists of classes."""
        start, classes = class_rows(rows["classes"])
        client, clients = _numbered(rows["client"])
        columns = {name: _numpy(rows["bytes" if name == "size" else name], _TYPES[name]) for name in _PLAIN}
        pane: Any = rows["pane"]
        return cls(
            **columns,
            pane=_numpy(pane.fill_null(NO_PANE), np.int64),
            client=client,
            start=start,
            classes=classes,
            clients=clients,
        )

    def batch(self) -> pa.RecordBatch:
        """As pattern rows."""
        names: Any = pa.array([*self.clients, None], pa.string())
        none = self.pane == NO_PANE
        columns: list[Any] = [
            pa.array(self.split, pa.int32()),
            pa.array(np.where(none, 0, self.pane), mask=none),
            pa.array(self.publisher, pa.int32()),
            names.take(pa.array(np.where(self.client < 0, len(names) - 1, self.client))),
            pa.array(self.cell, pa.int32()),
            pa.array(self.tags, pa.int64()),
            _class_keys(self.start, self.classes),
            pa.array(self.count, pa.int64()),
            pa.array(self.size, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PATTERNS)

    def only(self, window: int) -> "Patterns":
        """The patterns of one window."""
        rows = np.flatnonzero(self.split == window)
        start, classes = gather(self.start, self.classes, rows)
        columns = {name: getattr(self, name)[rows] for name in _TYPES}
        return Patterns(**columns, start=start, classes=classes, clients=self.clients)

    def packed(self, first: int, last: int) -> bytes:
        """Some of the patterns, packed."""
        start = self.start[first : last + 1]
        client = self.client[first:last]
        names: list[str | None] = []
        if client.max(initial=-1) >= 0:
            used, client = np.unique(client, return_inverse=True)
            names = [None if k < 0 else self.clients[k] for k in used.tolist()]
        columns = [client if name == "client" else getattr(self, name)[first:last] for name in _TYPES]
        columns += [np.diff(start), self.classes[int(start[0]) : int(start[-1])]]
        spelled = json.dumps(names).encode()
        lows: list[int] = []
        parts: list[Array] = []
        for column in columns:
            low, part = _narrowed(column)
            lows += [low, part.dtype.itemsize if len(part) else 0]
            parts.append(part)
        header = [_MAGIC, last - first, len(columns[-1]), len(spelled), *lows]
        pieces: list[Array] = [np.array(header, np.int64), np.frombuffer(spelled, np.uint8), *parts]
        return b"".join(_padded(piece) for piece in pieces)

    @classmethod
    def joined(cls, packed: Sequence[Any]) -> "Patterns":
        """Packed patterns (bytes or buffers), one after the other. Cost: a pass over their bytes.

        Raises
        ------
        InputError
            When something else is among them.
        """
        parts = [_Part.of(raw) for raw in packed]
        rows = np.cumsum([0, *(part.rows for part in parts)])
        entries = np.cumsum([0, *(part.entries for part in parts)])
        numbers: dict[str, int] = {}
        codes = [[_number(numbers, name) for name in part.names] for part in parts]
        columns = {name: np.empty(int(rows[-1]), dtype) for name, dtype in _TYPES.items()}
        start = np.zeros(int(rows[-1]) + 1, np.int64)
        classes = np.empty(int(entries[-1]), np.int32)

        def fill(k: int) -> None:
            part, here = parts[k], slice(int(rows[k]), int(rows[k + 1]))
            for i, name in enumerate(_TYPES):
                part.put(i, columns[name][here])
            if part.names:
                columns["client"][here] = np.array(codes[k], np.int32)[columns["client"][here]]
            ends = start[here.start + 1 : here.stop + 1]
            part.put(len(_TYPES), ends)
            np.cumsum(ends, out=ends)
            ends += entries[k]
            part.put(len(_TYPES) + 1, classes[int(entries[k]) : int(entries[k + 1])])

        if len(classes) < _WORTH_THREADS:
            for k in range(len(parts)):
                fill(k)
        else:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(fill, range(len(parts))))
        return cls(**columns, start=start, classes=classes, clients=tuple(numbers))


_PLAIN = [name for name in _TYPES if name not in ("pane", "client")]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one packed value says of itself."""

    rows: int
    entries: int
    names: list[str | None]
    lows: list[int]
    columns: list[Array]

    @classmethod
    def of(cls, raw: Any) -> "_Part":
        data = np.frombuffer(raw, np.uint8)
        words = _FIXED + 2 * (len(_TYPES) + 2)
        if len(data) < 8 * words or (header := data[: 8 * words].view(np.int64))[0] != _MAGIC:
            raise InputError("these bytes are not packed patterns of this version")
        rows, entries, spelled = header[1:_FIXED].tolist()
        lengths = [rows] * (len(_TYPES) + 1) + [entries]
        at = 8 * words
        names = json.loads(data[at : at + spelled].tobytes())
        at += -(-spelled // 8) * 8
        columns = []
        for length, width in zip(lengths, header[_FIXED + 1 :: 2].tolist(), strict=True):
            size = length * width
            if at + size > len(data) or width not in _WIDTHS:
                raise InputError("packed patterns are cut off; run the pass again")
            columns.append(data[at : at + size].view(_WIDTHS[width]))
            at += -(-size // 8) * 8
        return cls(rows, entries, names, header[_FIXED::2].tolist(), columns)

    def put(self, column: int, out: Array) -> None:
        """Write a column's numbers; all of them fit the type of `out`."""
        part, low = self.columns[column], self.lows[column]
        if not len(part):
            out[:] = low
            return
        out[:] = part
        if low:
            # 64 bits wrap around and back
            out += np.array(low).astype(out.dtype)


def gather(
    start: npt.NDArray[np.int64], values: Array, rows: Array, kind: Any = None
) -> tuple[npt.NDArray[np.int64], Array]:
    """Some of the compressed rows, in the order given; values of type `kind`, or as they are."""
    length = np.diff(start)[rows]
    into = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
    out = np.empty(int(into[-1]), values.dtype if kind is None else kind)
    gather_lists(start, values, rows, into, out)
    return into, out


def hosts_away(
    publisher: Array, start: npt.NDArray[np.int64], host: Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Compressed rows of the distinct hosts other than the publisher's, ascending. Vectorised.

    `host` has the broker of each class of each pattern.
    """
    pattern = np.repeat(np.arange(len(publisher), dtype=np.int64), np.diff(start))
    away = host != publisher[pattern]
    span = int(host.max(initial=0)) + 1
    pairs = np.unique(pattern[away] * span + host[away])  # sorted by pattern, then host
    length = np.bincount(pairs // span, minlength=len(publisher))
    return np.concatenate(([0], np.cumsum(length))).astype(np.int64), (pairs % span).astype(np.int32)


def class_rows(column: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The classes in a column (bytes as in `PATTERNS`, or lists) as compressed rows.

    Of lists, nothing is copied but the starts.
    """
    if pa.types.is_list(column.type):
        lists: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        start = np.asarray(lists.offsets).astype(np.int64)
        return start, np.asarray(lists.values).astype(np.int32, copy=False)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
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


def _binary_parts(chunk: Any) -> tuple[npt.NDArray[np.int64], Any]:
    _, offsets, data = chunk.buffers()
    if not len(chunk):
        return np.zeros(1, dtype=np.int64), b""
    width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
    where = np.frombuffer(offsets, dtype=width)[chunk.offset : chunk.offset + len(chunk) + 1]
    return where.astype(np.int64), b"" if data is None else data[: len(data) // 4 * 4]


def _class_keys(start: npt.NDArray[np.int64], classes: Array) -> Any:
    """Compressed rows of class ids as a column of bytes, four a class, big-endian."""
    data = classes[start[0] : start[-1]].astype(_BIG)
    offsets = ((start - start[0]) * 4).astype(np.int32)
    untyped: Any = pa  # the stubs do not take arrays for buffers
    buffers = [None, untyped.py_buffer(offsets), untyped.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(start) - 1, buffers)


def narrowest(largest: int) -> Any:
    """The unsigned type with the fewest bytes that holds all numbers from 0 to `largest`."""
    return next(_WIDTHS[width] for width in (1, 2, 4, 8) if largest < 256**width)


def _narrowed(column: Array) -> tuple[int, Array]:
    """The smallest number, and the differences to it in the narrowest type; none if all are equal."""
    if not len(column):
        return 0, np.empty(0, np.uint8)
    low, high = int(column.min()), int(column.max())
    if low == high:
        return low, np.empty(0, np.uint8)
    if column.dtype.kind == "u" and column.dtype == narrowest(high):
        return 0, column  # as it is, without a copy
    kind = narrowest(high - low)
    if kind is np.uint64:
        return low, column.astype(np.int64).view(np.uint64) - np.array(low).astype(np.uint64)
    return low, (column - column.dtype.type(low)).astype(kind)


def _number(numbers: dict[str, int], name: str | None) -> int:
    return -1 if name is None else numbers.setdefault(name, len(numbers))


def _padded(piece: Array) -> bytes:
    data = np.ascontiguousarray(piece).tobytes()
    return data + bytes(-len(data) % 8)


def _numbered(column: Any) -> tuple[Array, tuple[str, ...]]:
    """Names as numbers, -1 where there is none, and the names by number."""
    whole: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    coded = whole.dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(-1), dtype=np.int32)
    return codes, tuple(coded.dictionary.to_pylist())


def _numpy(column: Any, dtype: Any) -> Array:
    return np.ascontiguousarray(column.to_numpy(), dtype=dtype).copy()
