"""From JSON objects to leaf columns: the values at each dotted path, and the rows that they are in.

Owns what a path is: nested objects are walked, arrays are leaves, and a path is spelled nested or dotted,
but not both in one row.

The records of a log have few shapes (tuples of keys). Objects of one shape become columns together, by
slicing the list of all their values, and a column of objects is again a list of objects with few shapes.
So paths are made, and keys counted, once per shape instead of once per record. Objects of a rare shape are
walked one by one, which is cheaper than columns of a few values.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ramify.content.events.events import RejectReason
from ramify.content.events.records import MAX_RECORD_BYTES, Fault

__all__ = ["Leaf", "Leaves", "Shape", "conflict", "shapes", "sprawl"]

_FEW = 8  # objects of one shape that are walked one by one

Rows = NDArray[np.int64]


@dataclass(slots=True)
class Shape:
    """Objects with the same keys in the same order, and the row of each."""

    keys: tuple[str, ...]
    rows: Rows
    objects: Sequence[dict[str, Any]]

    def columns(self) -> list[list[Any]]:
        """The values of each key."""
        width = len(self.keys)
        values = list(chain.from_iterable(map(dict.values, self.objects)))
        return [values[k::width] for k in range(width)]


def shapes(rows: Rows, objects: Sequence[dict[str, Any]]) -> Iterator[Shape]:
    """The objects by shape, in order of first occurrence."""
    keys = list(map(tuple, objects))
    if keys and keys.count(keys[0]) == len(keys):
        yield Shape(keys[0], rows, objects)
        return
    members: dict[tuple[str, ...], list[int]] = {}
    for k, names in enumerate(keys):
        members.setdefault(names, []).append(k)
    for names, at in members.items():
        yield Shape(names, rows[at], [objects[k] for k in at])


class Leaf:
    """The values at one path and the row of each, in no particular order; None stands for a null.

    `kinds` holds the types that occur. No dataclass: a log may have as many paths as records, and the
    factories of a dataclass take longer than a rare path's values.
    """

    __slots__ = ("_rows", "kinds", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.kinds: set[type] = set()
        # 64-bit integers: grows by single rows and by whole arrays alike.
        self._rows = array("q")

    @property
    def rows(self) -> Rows:
        """The row of each value. A copy: the buffer may not grow while it is looked at."""
        return np.array(self._rows, np.int64)

    def add(self, row: int, value: Any) -> None:
        """Add one value."""
        self._rows.append(row)
        self.values.append(value)
        self.kinds.add(type(value))

    def extend(self, rows: Rows, values: Sequence[Any], kinds: set[type]) -> None:
        """Add values whose types are known."""
        self._rows.frombytes(rows.tobytes())
        self.values.extend(values)
        self.kinds |= kinds

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep only some values."""
        self._rows = array("q", self.rows[mask].tobytes())
        self.values = list(compress(self.values, mask.tolist()))
        self.kinds = set(map(type, self.values))

    def nulls(self) -> NDArray[np.bool_]:
        """Which values are nulls."""
        return np.fromiter((value is None for value in self.values), np.bool_, len(self.values))

    def discard_nulls(self) -> None:
        """Keep only the values that are no nulls."""
        if type(None) in self.kinds:
            self.keep(~self.nulls())

    def dense(self, count: int) -> list[Any]:
        """One value per row, None where there is none."""
        rows = self.rows
        if len(rows) == count and bool((rows == np.arange(count)).all()):
            return self.values
        spread: list[Any] = [None] * count
        for row, value in zip(rows.tolist(), self.values, strict=True):
            spread[row] = value
        return spread

    def first_row(self) -> int:
        """The first row that has a value or a null."""
        return self._rows[0] if len(self._rows) == 1 else int(self.rows.min())

    def in_order(self) -> Iterator[Any]:
        """The values by row."""
        order = np.argsort(self.rows, kind="stable")
        return map(self.values.__getitem__, order.tolist())


class Leaves:
    """The leaf columns of rows that are added shape by shape. `capacity` bounds the rows."""

    def __init__(self, capacity: int) -> None:
        self.columns: dict[str, Leaf] = {}
        # Keys per row, those inside arrays left out: to be compared with what the bytes show.
        self.keys = np.zeros(capacity, np.int64)
        # Rows that would need too many characters for their paths.
        self.sprawling: set[int] = set()
        # Characters of names that each row has copied into paths so far.
        self._spent = np.zeros(capacity, np.int64)
        # Whether a key has a dot, without which no path can be spelled in two ways.
        self._dotted = False

    def add(self, shape: Shape, prefix: str = "", columns: "list[list[Any]] | None" = None) -> None:
        """Add objects of one shape below `prefix`. `columns` are those of the shape, if known."""
        keys, rows = shape.keys, shape.rows
        if len(rows) < _FEW or (prefix and not self._affords(prefix, shape)):
            for row, found in zip(rows.tolist(), shape.objects, strict=True):
                self._walk(row, prefix, found)
            return
        self.keys[rows] += len(keys)
        for key, values in zip(keys, columns or shape.columns(), strict=True):
            self._add_column(prefix + key, rows, values)
            self._dotted = self._dotted or "." in key

    def _affords(self, prefix: str, shape: Shape) -> bool:
        """Pay for the paths of a shape, unless that is too much for some row."""
        # A long name above many fields is copied into each of their paths.
        cost = (len(prefix) - 1) * len(shape.keys)
        spent = self._spent[shape.rows] + cost
        if int(spent.max()) > MAX_RECORD_BYTES:
            return False
        self._spent[shape.rows] = spent
        return True

    def _add_column(self, path: str, rows: Rows, values: list[Any]) -> None:
        kinds = set(map(type, values))
        if dict not in kinds:
            self._leaf(path).extend(rows, values, kinds)
            return
        if len(kinds) > 1:
            nested = np.fromiter((type(value) is dict for value in values), np.bool_, len(values))
            others = list(compress(values, (~nested).tolist()))
            self._leaf(path).extend(rows[~nested], others, kinds - {dict})
            rows, values = rows[nested], list(compress(values, nested.tolist()))
        for shape in shapes(rows, values):
            self.add(shape, f"{path}.")

    def _walk(self, row: int, prefix: str, found: dict[str, Any]) -> None:
        keys, spent, dotted = 0, int(self._spent[row]), self._dotted
        stack = [(prefix, found)]
        while stack:
            prefix, inner = stack.pop()
            keys += len(inner)
            spent += (len(prefix) - 1) * len(inner) if prefix else 0
            if spent > MAX_RECORD_BYTES:
                self.sprawling.add(row)
                break
            for key, value in inner.items():
                dotted = dotted or "." in key
                if type(value) is dict:
                    stack.append((f"{prefix}{key}.", value))
                else:
                    self._leaf(prefix + key).add(row, value)
        self.keys[row] += keys
        self._spent[row], self._dotted = spent, dotted

    def _leaf(self, path: str) -> Leaf:
        leaf = self.columns.get(path)
        if leaf is None:
            leaf = self.columns[path] = Leaf()
        return leaf

    def conflicting(self) -> set[int]:
        """Rows that have a path twice, spelled nested and dotted."""
        found: set[int] = set()
        for leaf in self.columns.values() if self._dotted else ():
            rows = leaf.rows
            if not bool((rows[1:] > rows[:-1]).all()):
                rows.sort()
                found.update(rows[1:][rows[1:] == rows[:-1]].tolist())
        return found

    def discard_nulls(self, path: str) -> None:
        """Make the nulls at a path absent."""
        leaf = self.columns[path]
        leaf.discard_nulls()
        if not leaf.values:
            del self.columns[path]

    def drop(self, rows: Iterable[int]) -> None:
        """Forget the values of some rows, and the paths that only those had."""
        gone = np.zeros(len(self.keys), np.bool_)
        gone[list(rows)] = True
        for path, leaf in list(self.columns.items()):
            mask = ~gone[leaf.rows]
            if not mask.all():
                leaf.keep(mask)
            if not leaf.values:
                del self.columns[path]


def sprawl() -> Fault:
    """The fault of a record whose nested names make paths of absurd length."""
    text = f"the dotted paths of its fields, written out, are longer than {MAX_RECORD_BYTES} characters"
    return RejectReason.TOO_LARGE, text


def conflict(raw: bytes) -> Fault:
    """The fault of a record that spells a path in two ways."""
    twice = next(path for path, times in Counter(_paths(msgspec.json.decode(raw))).items() if times > 1)
    text = f"{twice!r} is given twice: as nested objects and as a name with dots; keep one"
    return RejectReason.CONFLICTING_PATHS, text


def _paths(found: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in found.items():
        if type(value) is dict:
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield prefix + key
