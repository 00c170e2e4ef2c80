"""What JSON values are to the columns of a batch: the type of most of them, and which ones do not fit.

Owns the meaning of attribute types for JSON values. Values of one JSON type, the usual case, are never
looked at one by one in Python; values of several are told apart in bulk. A value that does not fit its
column is no fault: it is in `_others`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramify.content.events.attributes import AttributeType, ElementKind
from ramify.content.events.leaves import TYPE_CODES, Leaf
from ramify.content.events.others import ItemTable

__all__ = ["add_misfits", "common_kind", "fit", "list_array"]

_SLICE = 2048  # arrays whose elements are handled together
_NONE = type(None)
_INT64 = range(-(2**63), 2**63)
_EXACT = range(-(2**53), 2**53 + 1)  # integers that a double holds, and no other integer rounds to

_ELEMENT = {
    AttributeType.STRINGS: AttributeType.STRING,
    AttributeType.NUMBERS: AttributeType.DOUBLE,
}
_FITTING: dict[AttributeType, frozenset[type]] = {
    AttributeType.STRING: frozenset({str}),
    AttributeType.INT64: frozenset({int}),
    AttributeType.DOUBLE: frozenset({int, float}),
    AttributeType.BOOLEAN: frozenset({bool}),
    AttributeType.STRINGS: frozenset({list}),
    AttributeType.NUMBERS: frozenset({list}),
}
_KIND_OF: dict[type, AttributeType] = {
    str: AttributeType.STRING,
    int: AttributeType.INT64,
    float: AttributeType.DOUBLE,
    bool: AttributeType.BOOLEAN,
}
_TYPE_OF = {code: kind for kind, code in TYPE_CODES.items()}


def common_kind(leaf: Leaf) -> AttributeType | None:
    """The type that holds most of the values at a path; None when no type holds one.

    Integers and doubles count together: a fraction among them makes the column double.
    """
    found = leaf.kinds - {_NONE}
    if not found:
        return None
    if len(found) == 1 and list not in found:
        return _KIND_OF[next(iter(found))]
    votes: Counter[AttributeType] = Counter()
    for code, count in enumerate(np.bincount(leaf.codes).tolist()):
        kind = _TYPE_OF[code]
        if kind is list and count:
            votes.update(_list_votes(leaf, leaf.codes == code))
        elif kind is not _NONE and count:
            votes[AttributeType.DOUBLE if kind is int else _KIND_OF[kind]] += count
    if not votes:
        return None
    winner = max(AttributeType, key=votes.__getitem__)  # the first among equals
    return AttributeType.INT64 if winner is AttributeType.DOUBLE and float not in found else winner


def _list_votes(leaf: Leaf, mask: NDArray[np.bool_]) -> Counter[AttributeType]:
    if leaf.inside <= {str}:
        # Nothing tells the type of an empty array; absent would be wrong, since it is not NULL.
        return Counter({AttributeType.STRINGS: int(mask.sum())})
    if leaf.inside <= {int, float}:
        return Counter({AttributeType.NUMBERS: int(mask.sum())})
    lists = leaf.only(mask)
    votes: Counter[AttributeType] = Counter()
    for value in lists:
        inside = set(map(type, value))
        if inside == {str}:
            votes[AttributeType.STRINGS] += 1
        elif inside and inside <= {int, float}:
            votes[AttributeType.NUMBERS] += 1
    return votes or Counter({AttributeType.STRINGS: lists.count([])} if [] in lists else {})


def fit(leaf: Leaf, kind: AttributeType) -> "tuple[pa.Array[Any], NDArray[np.bool_] | None]":
    """The values of a type as a column without the others, and which values those are (None: all).

    A null is a null of the column where all values are there. For every type but timestamps.
    """
    build = _arrays if kind in _ELEMENT else _scalars
    if leaf.kinds <= _FITTING[kind] or (kind not in _ELEMENT and leaf.kinds - {_NONE} <= _FITTING[kind]):
        column = build(leaf.values, kind)
        if column is not None:
            return column, None
    fitting = np.zeros(len(TYPE_CODES), np.bool_)
    fitting[[TYPE_CODES[each] for each in _FITTING[kind]]] = True
    chosen = fitting[leaf.codes]
    column = build(leaf.only(chosen), kind)
    if column is None:  # other elements, or a number that would be rounded: find out which
        good = _fits_array if kind in _ELEMENT else _fits_number
        chosen[chosen] = [good(value, kind) for value in leaf.only(chosen)]
        column = build(leaf.only(chosen), kind)
        assert column is not None, "what is left fits"
    return column, chosen


def add_misfits(
    items: ItemTable, path: str, leaf: Leaf, rows: NDArray[np.int64], mask: NDArray[np.bool_] | None = None
) -> None:
    """Put values of a path where no column holds them: those of a mask, or all. Nulls are left out."""
    codes = leaf.codes
    for code in range(1, len(TYPE_CODES)):
        some = codes == code if mask is None else (codes == code) & mask
        if some.any():
            _ADDED[code](items, path, rows[some], leaf.only(some))


def _add_texts(items: ItemTable, path: str, rows: Any, values: Sequence[Any]) -> None:
    items.add_alike(path, rows, ElementKind.STRING, texts=pa.array(values, pa.string()))


def _add_integers(items: ItemTable, path: str, rows: Any, values: Sequence[Any]) -> None:
    try:
        items.add_alike(path, rows, ElementKind.INT, np.array(values, np.int64))
    except OverflowError:
        for row, value in zip(rows.tolist(), values, strict=True):
            items.add(path, row, value)


def _add_doubles(items: ItemTable, path: str, rows: Any, values: Sequence[Any]) -> None:
    items.add_alike(path, rows, ElementKind.FLOAT, np.array(values, np.float64).view(np.int64))


def _add_booleans(items: ItemTable, path: str, rows: Any, values: Sequence[Any]) -> None:
    items.add_alike(path, rows, ElementKind.BOOL, np.array(values, np.int64))


def _add_lists(items: ItemTable, path: str, rows: Any, values: Sequence[Any]) -> None:
    for row, value in zip(rows.tolist(), values, strict=True):
        items.add_array(path, row, value)


_ADDED = {1: _add_texts, 2: _add_integers, 3: _add_doubles, 4: _add_booleans, 5: _add_lists}


def _scalars(values: Sequence[Any], kind: AttributeType) -> "pa.Array[Any] | None":
    """A column of scalars and nulls; None when a number does not fit."""
    try:
        column = pa.array(values, kind.arrow)
    except (pa.ArrowInvalid, OverflowError):
        return None
    return column if kind is not AttributeType.DOUBLE or _are_finite(column) else None


def _arrays(arrays: Sequence[Any], kind: AttributeType) -> "pa.Array[Any] | None":
    """A column of arrays; None when one has an element that does not fit.

    Built from the elements of many arrays at once, since Arrow takes longer for a list of lists, but not of
    all: the elements are looked at several times and should still be in the cache.
    """
    dtype, fitting = _ELEMENT[kind].arrow, _FITTING[_ELEMENT[kind]]
    parts: list[pa.Array[Any]] = [pa.array([], dtype)]
    lengths = [np.zeros(0, np.int64)]
    for start in range(0, len(arrays), _SLICE):
        some = arrays[start : start + _SLICE]
        elements = list(chain.from_iterable(some))
        if not set(map(type, elements)) <= fitting:
            return None
        lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
        try:
            parts.append(pa.array(elements, dtype))
        except (pa.ArrowInvalid, OverflowError):
            return None
        if kind is AttributeType.NUMBERS and not _are_finite(parts[-1]):
            return None
    return list_array(np.concatenate(lengths), pa.concat_arrays(parts))


def _are_finite(column: Any) -> bool:
    return bool(np.isfinite(column.fill_null(0.0).to_numpy(zero_copy_only=False)).all())


def list_array(lengths: NDArray[np.int64], elements: "pa.Array[Any]") -> "pa.Array[Any]":
    """Lists of these lengths, end to end."""
    offsets: Any = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements)


def _fits_number(value: Any, kind: AttributeType) -> bool:
    if type(value) not in _FITTING[kind]:
        return False
    if kind is AttributeType.INT64:
        return value in _INT64
    if kind is AttributeType.DOUBLE:
        return math.isfinite(value) if type(value) is float else value in _EXACT
    return True


def _fits_array(value: Any, kind: AttributeType) -> bool:
    elements: Iterable[Any] = value if type(value) is list else (None,)
    return all(_fits_number(element, _ELEMENT[kind]) for element in elements)
