"""From JSON objects to leaf columns: the values at each dotted path, and the rows that they are in.

Owns what a path is. Nested objects are walked; an array of scalars is a leaf. An array that holds objects
or arrays is walked too: its values are `Elements`, each with the place where it stands. A path that a row
spells twice, nested and dotted, is an array of all its values.

The records of a log have few shapes (tuples of keys). Objects of one shape become columns together, by
slicing the list of all their values, and a column of objects is again a list of objects with few shapes.
So paths are made once per shape instead of once per record. Objects of a rare shape are walked one by one,
which is cheaper than columns of a few values, and so are arrays of objects.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramify.content.events.attributes import Place, RejectReason
from ramify.content.events.others import EMPTY
from ramify.content.events.records import MAX_RECORD_BYTES, Fault

__all__ = ["TYPE_CODES", "Elements", "Leaf", "Leaves", "Shape", "shapes", "sprawl"]

TYPE_CODES: dict[type, int] = {type(None): 0, str: 1, int: 2, float: 3, bool: 4, list: 5}
"""A number for each type that a value of JSON has in Python."""

_TYPES = list(TYPE_CODES)

_FEW = 8  # objects of one shape that are walked one by one
_NESTED = frozenset({dict, list})
# What the paths and places of a record's elements may take: each is written out, so a long name above a
# long array, or a deep one, would make a small record into a large batch.
_MOST_ELEMENT_BYTES = 4 * MAX_RECORD_BYTES

Rows = NDArray[np.int64]
_NO_ROWS = np.zeros(0, np.int64)


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

    Values of one type stand together, from when they come: told apart later, their memory would have to be
    fetched again. `kinds` holds the types that occur, `codes` the type of each value. No dataclass: a log
    may have as many paths as records, and a dataclass takes longer to make than a rare path's values.
    """

    __slots__ = ("_parts", "inside")

    def __init__(self) -> None:
        # By the code of their type: values, and the row of each, which grows by one and by whole arrays.
        self._parts: dict[int, tuple[list[Any], array[int]]] = {}
        # The types of elements that some array has had.
        self.inside: set[type] = set()

    @property
    def kinds(self) -> set[type]:
        """The types that occur."""
        return {_TYPES[code] for code in self._parts}

    @property
    def values(self) -> list[Any]:
        """All values, type by type. A copy unless they are of one type."""
        if len(self._parts) == 1:
            return next(iter(self._parts.values()))[0]
        return list(chain.from_iterable(values for values, _ in self._parts.values()))

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The code of each value's type, by `TYPE_CODES`."""
        lengths = [len(values) for values, _ in self._parts.values()]
        return np.repeat(np.array(list(self._parts), np.uint8), lengths)

    @property
    def rows(self) -> Rows:
        """The row of each value. A copy: a buffer may not grow while it is looked at."""
        return np.concatenate([_NO_ROWS, *(np.array(rows, np.int64) for _, rows in self._parts.values())])

    def only(self, mask: NDArray[np.bool_]) -> list[Any]:
        """The values of a mask, in order. Looks at no other; does not copy where it is a whole type."""
        found: list[list[Any]] = []
        start = 0
        for values, _ in self._parts.values():
            at = np.flatnonzero(mask[start : start + len(values)])
            start += len(values)
            if len(at) == len(values):
                found.append(values)
            elif len(at):
                found.append([values[k] for k in at.tolist()])
        return found[0] if len(found) == 1 else list(chain.from_iterable(found))

    def add(self, row: int, value: Any) -> None:
        """Add one value."""
        values, rows = self._part(TYPE_CODES[type(value)])
        values.append(value)
        rows.append(row)
        if type(value) is list:
            self.inside.update(map(type, value))

    def extend(self, rows: Rows, values: Sequence[Any], kinds: set[type]) -> None:
        """Add values whose types are known."""
        if len(kinds) == 1:
            self._extend(TYPE_CODES[next(iter(kinds))], rows, values)
            return
        codes = np.frombuffer(bytes(map(TYPE_CODES.__getitem__, map(type, values))), np.uint8)
        for kind in sorted(map(TYPE_CODES.__getitem__, kinds)):
            mask = codes == kind
            self._extend(kind, rows[mask], compress(values, mask.tobytes()))

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep only some values."""
        parts, self._parts = self._parts, {}
        start = 0
        for code, (values, rows) in parts.items():
            mine = mask[start : start + len(values)]
            start += len(values)
            if mine.any():
                self._extend(code, np.array(rows, np.int64)[mine], compress(values, mine.tobytes()))

    def _extend(self, code: int, rows: Rows, values: Iterable[Any]) -> None:
        own, own_rows = self._part(code)
        own.extend(values)
        own_rows.frombytes(rows.tobytes())

    def _part(self, code: int) -> "tuple[list[Any], array[int]]":
        part = self._parts.get(code)
        if part is None:
            part = self._parts[code] = [], array("q")
        return part

    def nulls(self) -> NDArray[np.bool_]:
        """Which values are nulls."""
        found: NDArray[np.bool_] = self.codes == TYPE_CODES[type(None)]
        return found

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
        return int(self.rows.min())


class Elements:
    """The values at one path that stand in arrays with objects or arrays, in order, with row and place.

    The value `EMPTY` stands for an array; it counts where no other value of its row and path does.
    """

    __slots__ = ("places", "rows", "values")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.values: list[Any] = []
        self.places: list[Place] = []

    def add(self, row: int, value: Any, place: Place) -> None:
        """Add one value."""
        self.rows.append(row)
        self.values.append(value)
        self.places.append(place)

    def keep(self, mask: Iterable[bool]) -> None:
        """Keep only some values."""
        chosen = list(mask)
        self.rows = list(compress(self.rows, chosen))
        self.values = list(compress(self.values, chosen))
        self.places = list(compress(self.places, chosen))

    def items(self) -> Iterator[tuple[int, Any, Place]]:
        """Row, value and place of each value; EMPTY once for a row that has no other."""
        done = {row for row, value in zip(self.rows, self.values, strict=True) if value is not EMPTY}
        for row, value, place in zip(self.rows, self.values, self.places, strict=True):
            if value is not EMPTY:
                yield row, value, place
            elif row not in done:
                done.add(row)
                yield row, EMPTY, ()


class Leaves:
    """The leaf columns of rows that are added shape by shape. `capacity` bounds the rows.

    `keep` names the paths that somebody asks for; the others are passed over. None asks for all.
    """

    def __init__(self, capacity: int, keep: Collection[str] | None = None) -> None:
        self.columns: dict[str, Leaf] = {}
        self.elements: dict[str, Elements] = {}
        # Rows that would need too many characters for their paths.
        self.sprawling: set[int] = set()
        # Characters of names that each row has copied into paths so far.
        self._spent = np.zeros(capacity, np.int64)
        # The same for the paths and places of elements, and the numbers that arrays have got, by row.
        self._spent_on_elements: dict[int, int] = {}
        self._arrays: dict[int, int] = {}
        # Whether a key has a dot, without which no path can be spelled in two ways.
        self._dotted = False
        self._keep = None if keep is None else frozenset(keep)
        # What stands above a path that is kept, each with a dot at its end.
        self._above = {
            path[: k + 1] for path in keep or () for k, letter in enumerate(path) if letter == "."
        }

    def add(self, shape: Shape, prefix: str = "", columns: "list[list[Any]] | None" = None) -> None:
        """Add objects of one shape below `prefix`. `columns` are those of the shape, if known."""
        keys, rows = shape.keys, shape.rows
        if len(rows) < _FEW or (prefix and not self._affords(prefix, shape)):
            for row, found in zip(rows.tolist(), shape.objects, strict=True):
                self._walk(row, prefix, found)
            return
        for key, values in zip(keys, columns or shape.columns(), strict=True):
            if self._keep is None or self._is_asked(prefix + key):
                self._add_column(prefix + key, rows, values)
                self._dotted = self._dotted or "." in key

    def add_array(self, row: int, path: str, values: list[Any]) -> None:
        """Add one array as elements, whatever it holds."""
        self._walk_array(row, path, values)

    def keeps(self, path: str) -> bool:
        """Whether somebody asks for a path."""
        return self._keep is None or path in self._keep

    def join_repeated(self, record: Callable[[int], dict[str, Any]]) -> None:
        """Make each path that a row spells twice one array of all its values; `record` reads a row."""
        rows_of = self._repeated()
        paths_of: dict[int, list[str]] = {}
        for path, rows in rows_of.items():
            self._forget(path, self._marked(rows))
            for row in rows:
                paths_of.setdefault(row, []).append(path)
        for row, paths in paths_of.items():
            again = Leaves(1, self._keep)
            again._add_fields(0, "", record(row), (), {})
            for path in paths:
                mine = self.elements.setdefault(path, Elements())
                for _, value, place in again.elements[path].items():
                    mine.add(row, value, place)

    def _repeated(self) -> dict[str, list[int]]:
        """The rows that spell a path twice, nested and dotted, where the order is not known: by path."""
        found = {}
        for path, leaf in self.columns.items() if self._dotted else ():
            elements = self.elements.get(path)
            inside = np.unique(np.array([] if elements is None else elements.rows, np.int64))
            rows = np.sort(np.concatenate([leaf.rows, inside]))
            twice = np.unique(rows[1:][rows[1:] == rows[:-1]]).tolist()
            if twice:
                found[path] = twice
        return found

    def discard_nulls(self, path: str) -> None:
        """Make the nulls at a path absent."""
        leaf = self.columns[path]
        leaf.discard_nulls()
        if not leaf.values:
            del self.columns[path]

    def drop(self, rows: Iterable[int]) -> None:
        """Forget the values of some rows, and the paths that only those had."""
        gone = self._marked(rows)
        for path in {*self.columns, *self.elements}:
            self._forget(path, gone)

    def _marked(self, rows: Iterable[int]) -> NDArray[np.bool_]:
        mask = np.zeros(len(self._spent), np.bool_)
        mask[list(rows)] = True
        return mask

    def _forget(self, path: str, gone: NDArray[np.bool_]) -> None:
        leaf, elements = self.columns.get(path), self.elements.get(path)
        if leaf is not None:
            mask = ~gone[leaf.rows]
            if not mask.all():
                leaf.keep(mask)
            if not leaf.values:
                del self.columns[path]
        if elements is not None:
            elements.keep((~gone[elements.rows]).tolist())
            if not elements.values:
                del self.elements[path]

    def _is_asked(self, path: str) -> bool:
        """Whether a path, or one below it, is asked for."""
        return self._keep is None or path in self._keep or f"{path}." in self._above

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
        if kinds.isdisjoint(_NESTED):
            self._extend(path, rows, values, kinds)
            return
        if list in kinds:
            lists = values if len(kinds) == 1 else [value for value in values if type(value) is list]
            inside = set(map(type, chain.from_iterable(lists)))
            if not inside.isdisjoint(_NESTED):
                rows, values = self._take_arrays(path, rows, values)
                kinds = set(map(type, values))
                inside = set(map(type, chain.from_iterable(v for v in values if type(v) is list)))
            if list in kinds and self.keeps(path):
                self._leaf(path).inside |= inside
        if dict not in kinds:
            self._extend(path, rows, values, kinds)
            return
        if len(kinds) > 1:
            nested = np.fromiter((type(value) is dict for value in values), np.bool_, len(values))
            others = list(compress(values, (~nested).tolist()))
            self._extend(path, rows[~nested], others, kinds - {dict})
            rows, values = rows[nested], list(compress(values, nested.tolist()))
        for shape in shapes(rows, values):
            self.add(shape, f"{path}.")

    def _take_arrays(self, path: str, rows: Rows, values: list[Any]) -> tuple[Rows, list[Any]]:
        """Walk the arrays of a column that hold objects or arrays; the rest of it."""
        left = np.ones(len(values), np.bool_)
        for k, (row, value) in enumerate(zip(rows.tolist(), values, strict=True)):
            if type(value) is list and _is_nested(value):
                self._walk_array(row, path, value)
                left[k] = False
        return rows[left], list(compress(values, left.tolist()))

    def _extend(self, path: str, rows: Rows, values: list[Any], kinds: set[type]) -> None:
        if values and (self._keep is None or path in self._keep):
            self._leaf(path).extend(rows, values, kinds)

    def _walk(self, row: int, prefix: str, found: dict[str, Any]) -> None:
        """Add one object. By recursion, in the order of the record: arrays are numbered in it."""
        spent = int(self._spent[row]) + ((len(prefix) - 1) * len(found) if prefix else 0)
        if spent > MAX_RECORD_BYTES:
            self.sprawling.add(row)
            return
        self._spent[row] = spent
        for key, value in found.items():
            path, kind = prefix + key, type(value)
            if self._keep is not None and not self._is_asked(path):
                continue
            self._dotted = self._dotted or "." in key
            if kind is dict:
                self._walk(row, f"{path}.", value)
            elif kind is list and _is_nested(value):
                self._walk_array(row, path, value)
            elif self._keep is None or path in self._keep:
                self._leaf(path).add(row, value)

    # -- arrays that hold objects or arrays

    def _walk_array(self, row: int, path: str, values: list[Any]) -> None:
        self._put(row, path, EMPTY, ())
        self._add_elements(row, path, values, (), {})

    def _add_elements(
        self, row: int, path: str, values: list[Any], place: Place, paths: dict[tuple[str, str], str]
    ) -> None:
        number = self._arrays.get(row, 0)
        if _is_nested(values):
            self._arrays[row] = number + 1
        prefix = f"{path}."
        for index, value in enumerate(values):
            if row in self.sprawling:
                return
            if type(value) is dict:
                self._add_fields(row, prefix, value, (*place, (number, index)), paths)
            elif type(value) is list:
                self._add_elements(row, path, value, (*place, (number, index)), paths)
            else:
                self._put(row, path, value, place)

    def _add_fields(
        self,
        row: int,
        prefix: str,
        found: dict[str, Any],
        place: Place,
        paths: dict[tuple[str, str], str],
    ) -> None:
        """Add the fields of an object as elements. `paths` remembers those that are written out."""
        for key, value in found.items():
            path = paths.get((prefix, key))
            if path is None:
                path = paths[prefix, key] = prefix + key
                self._dotted = self._dotted or "." in key
                self._charge(row, len(path))
            if row in self.sprawling:
                return
            if self._keep is not None and not self._is_asked(path):
                # The arrays below keep their numbers only where somebody looks at one of them.
                continue
            if type(value) is dict:
                self._charge(row, len(path))
                self._add_fields(row, f"{path}.", value, place, paths)
            elif type(value) is list:
                self._put(row, path, EMPTY, ())
                self._add_elements(row, path, value, place, paths)
            else:
                self._put(row, path, value, place)

    def _put(self, row: int, path: str, value: Any, place: Place) -> None:
        if self._keep is not None and path not in self._keep:
            return
        elements = self.elements.get(path)
        if elements is None:
            elements = self.elements[path] = Elements()
        self._charge(row, len(path) + 8 * len(place))
        elements.add(row, value, place)

    def _charge(self, row: int, size: int) -> None:
        spent = self._spent_on_elements.get(row, 0) + size
        self._spent_on_elements[row] = spent
        if spent > _MOST_ELEMENT_BYTES:
            self.sprawling.add(row)

    def _leaf(self, path: str) -> Leaf:
        leaf = self.columns.get(path)
        if leaf is None:
            leaf = self.columns[path] = Leaf()
        return leaf


def sprawl() -> Fault:
    """The fault of a record whose names make paths of absurd length."""
    text = f"the dotted paths of its fields, written out, are longer than {MAX_RECORD_BYTES} characters"
    return RejectReason.TOO_LARGE, text


def _is_nested(values: list[Any]) -> bool:
    return not _NESTED.isdisjoint(map(type, values))
