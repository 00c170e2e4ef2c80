"""An Arrow batch as the flat arrays that the matcher's kernels read.

A value stands in the column of its attribute, or, where it does not fit there, in the column `_others`
(see `others`). Kernels see both alike: a row's value at a path is a range of elements, of one kind or, in
an array of several types, of a kind each.

Only the columns that some filter looks at are touched, and no row is visited in Python. Fixed-width
columns are viewed or cast, strings are copied once as offsets and bytes. Any Arrow spelling of a type will
do (dictionaries, views, dates, decimals); a column that no filter could look at, such as a struct, is a
SchemaError when some filter asks for it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramify.content.events.attributes import (
    NULLS,
    OTHERS,
    RESERVED_NAMES,
    TEXT_MARK,
    AttributeType,
    ElementKind,
    text_path,
)
from ramify.content.events.timestamps import canonical_texts
from ramify.errors import SchemaError

__all__ = [
    "ABSENT_TYPE",
    "BOOL",
    "FLOAT",
    "INT",
    "MIXED",
    "NULL",
    "RUN_COLUMN",
    "RUN_FIRST",
    "RUN_KIND",
    "RUN_LAST",
    "RUN_LIST",
    "RUN_PLACED",
    "STRING",
    "TIME",
    "WHOLE_MOST",
    "Columns",
    "bind_columns",
    "ordered",
    "other_scalars",
    "plain_column",
    "whole_numbers",
]

ABSENT_TYPE, INT, FLOAT, BOOL, TIME, STRING = 0, 1, 2, 3, 4, 5
# of elements in `_others`: JSON's null, and an array whose elements are of several kinds
NULL, MIXED = 0, 6


class Columns(NamedTuple):
    """A batch's columns, flat: one row of each array per attribute that any filter looks at."""

    kind: NDArray[np.int64]  # [c] ABSENT_TYPE, INT, FLOAT, BOOL, TIME or STRING
    is_list: NDArray[np.bool_]  # [c]
    state: NDArray[np.uint8]  # [c, row] 0 absent, 1 present, 2 explicit null
    base: NDArray[np.int64]  # [c] first element of the column in `offsets` or `values`
    list_base: NDArray[np.int64]  # [c] first entry of the column in list_offsets
    list_offsets: NDArray[np.int64]  # element ranges of list columns, relative to base
    offsets: NDArray[np.int64]  # string element e is bytes[offsets[e]:offsets[e + 1]]
    bytes: NDArray[np.uint8]
    values: NDArray[np.int64]  # what predicates compare: int64, times, booleans; doubles as `ordered`
    order: NDArray[np.int64]  # in step with values: numbers as `ordered` doubles, for dyadic intervals
    whole: NDArray[np.int64]  # in step with values: whole numbers as int64, for equality
    # what rows hold beside their columns: runs of items, by row and column; empty when there is nothing
    mixed: NDArray[np.bool_]  # [c] whether any row has a run for the column
    run_start: NDArray[np.int64]  # [row] the first run of a row; one more than there are rows
    runs: NDArray[np.int64]  # [run, RUN_...]
    # item i has the value values[items_at[0] + i] and the string offsets[items_at[1] + i]
    items_at: NDArray[np.int64]
    item_kind: NDArray[np.int8]  # [item]
    place_start: NDArray[np.int64]  # [item] where its place begins; one more than there are items
    places: NDArray[np.int32]  # pairs (array, index)


RUN_COLUMN, RUN_FIRST, RUN_LAST, RUN_KIND, RUN_LIST, RUN_PLACED = 0, 1, 2, 3, 4, 5
_RUN_FIELDS = 6

WHOLE_MOST = 9.2e18


def bind_columns(batch: pa.RecordBatch, paths: Sequence[str]) -> Columns:
    """Lay out the columns of these paths. Cost: one pass over their buffers."""
    rows = batch.num_rows
    layout = _Layout(rows, len(paths))
    names = {name: k for k, name in enumerate(batch.schema.names)}
    for c, path in enumerate(paths):
        base = path.removesuffix(TEXT_MARK)
        k = None if base in RESERVED_NAMES else names.get(base)
        if k is not None:
            layout.add(c, base, batch.column(k), as_text=base != path)
    bases = [path.removesuffix(TEXT_MARK) for path in paths]
    if NULLS in names:
        layout.mark_nulls(batch.column(names[NULLS]), bases)
    if OTHERS in names:
        layout.add_items(batch.column(names[OTHERS]), paths)
    return layout.columns()


class _Layout:
    """Collects the parts of `Columns`, one attribute at a time."""

    def __init__(self, rows: int, paths: int) -> None:
        self.kind = np.full(paths, ABSENT_TYPE, np.int64)
        self.is_list = np.zeros(paths, np.bool_)
        self.state = np.zeros((paths, rows), np.uint8)
        self.base = np.zeros(paths, np.int64)
        self.list_base = np.zeros(paths, np.int64)
        self.values: list[NDArray[Any]] = []
        self.order: list[NDArray[Any]] = []
        self.whole: list[NDArray[Any]] = []
        self.size = 0
        self.offsets: list[NDArray[Any]] = []
        self.strings = 0
        self.lists: list[NDArray[Any]] = []
        self.lists_size = 0
        self.text: list[NDArray[Any]] = []
        self.text_size = 0
        self.runs = np.zeros((0, _RUN_FIELDS), np.int64)
        self.run_start = np.zeros(0, np.int64)
        self.mixed = np.zeros(paths, np.bool_)
        self.items_at = np.zeros(2, np.int64)
        self.item_kind = np.zeros(0, np.int8)
        self.place_start = np.zeros(1, np.int64)
        self.places = np.zeros(0, np.int32)

    def add(self, c: int, path: str, column: Any, *, as_text: bool = False) -> None:
        """Lay out one attribute; an all-null column of no type is absent everywhere.

        With `as_text`, times are their canonical texts; the texts that events were written with are items.
        """
        column = plain_column(column)
        if pa.types.is_null(column.type):
            return
        if as_text and pa.types.is_timestamp(column.type):
            column = canonical_texts(column.cast(AttributeType.TIMESTAMP.arrow, safe=False))
        values = column
        if _is_list(column.type):
            offsets, values = _elements(column)
            self.is_list[c] = True
            self.list_base[c] = self.lists_size
            self.lists.append(offsets)
            self.lists_size += len(offsets)
        kind = _kind_of(values.type)
        if kind == ABSENT_TYPE:
            raise SchemaError(
                f"column {path} holds {column.type}, which no filter can look at: give it one of the types "
                f"{', '.join(AttributeType)}, or rename it"
            )
        self.kind[c] = kind
        self.state[c] = np.asarray(column.is_valid()).astype(np.uint8)
        self.base[c] = self.put_values(kind, values)

    def put_values(self, kind: int, values: Any) -> int:
        if kind == STRING:
            return self.put_strings(values)
        if kind == TIME:
            values = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        elif kind == FLOAT:
            values = values.cast(pa.float64())
        else:
            values = values.cast(pa.int64())
        if values.null_count:
            values = pc.fill_null(values, 0)
        if kind == FLOAT:
            # one zero, and one NaN, which lies above every number as in Spark
            floats = np.asarray(values) + 0.0
            floats[np.isnan(floats)] = np.nan
            bits = ordered(floats)
            return self.put(bits, bits, whole_numbers(floats))
        ints = np.asarray(values)
        return self.put(ints, ordered(ints.astype(np.float64)) if kind == INT else ints, ints)

    def put_strings(self, values: Any) -> int:
        values = values.cast(pa.large_string())
        _, offsets_buffer, data_buffer = values.buffers()
        if len(values) == 0:
            offsets = np.zeros(1, np.int64)
        else:
            offsets = np.frombuffer(offsets_buffer, np.int64)[
                values.offset : values.offset + len(values) + 1
            ]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
        data = data[offsets[0] : offsets[-1]]
        shift = self.text_size - int(offsets[0])
        self.text.append(data)
        self.text_size += len(data)
        at = self.strings
        self.offsets.append(offsets + shift)
        self.strings += len(offsets)
        return at

    def put(self, values: NDArray[Any], order: NDArray[Any], whole: NDArray[Any]) -> int:
        """Append elements that are not strings; returns where they begin."""
        at = self.size
        self.values.append(values)
        self.order.append(order)
        self.whole.append(whole)
        self.size += len(values)
        return at

    def add_items(self, others: Any, paths: Sequence[str]) -> None:
        """Lay out the items of `_others` that are asked for, as runs of a row and column each."""
        offsets = np.asarray(others.offsets).astype(np.int64)
        flat = others.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        if not len(flat):
            return
        rows = np.repeat(np.arange(len(others)), np.diff(offsets))
        columns, as_text = _columns_of(flat.field("path"), paths)
        at = np.flatnonzero(columns >= 0)
        if as_text is not None:
            # a text that is asked for may stand under the time's own path, where it is not a time
            twice = np.flatnonzero(as_text >= 0)
            at = np.concatenate([at, twice])
            columns = np.concatenate([columns[at[: len(at) - len(twice)]], as_text[twice]])
        elif len(at) < len(columns):
            columns = columns[at]
        key = rows[at] * len(paths) + columns
        if len(key) and not bool((key[1:] >= key[:-1]).all()):
            order = np.argsort(key, kind="stable")
            at, key = at[order], key[order]
        if len(key):
            items = (
                flat if len(at) == len(flat) and bool((np.diff(at) == 1).all()) else flat.take(pa.array(at))
            )
            self._put_items(items)
            self._put_runs(*np.divmod(key, len(paths)), np.asarray(items.field("list")))

    def _put_items(self, items: Any) -> None:
        """The values of items: an entry each among the values and one among the strings."""
        kinds, numbers = np.asarray(items.field("kind")), np.asarray(items.field("number"))
        values, order, whole = numbers, numbers.copy(), numbers
        is_int = kinds == ElementKind.INT
        order[is_int] = ordered(numbers[is_int].astype(np.float64))
        is_float = kinds == ElementKind.FLOAT
        if is_float.any():
            floats = numbers[is_float].view(np.float64) + 0.0
            values, whole = numbers.copy(), numbers.copy()
            values[is_float] = order[is_float] = ordered(floats)
            whole[is_float] = whole_numbers(floats)
        self.items_at[0] = self.put(values, order, whole)
        self.items_at[1] = self.put_strings(items.field("text").fill_null(""))
        self.item_kind = kinds
        places = items.field("place")
        lengths = np.asarray(pc.fill_null(pc.list_value_length(places), 0)).astype(np.int64)
        self.place_start = np.concatenate([[0], np.cumsum(lengths)])
        self.places = np.asarray(places.flatten()).astype(np.int32)

    def _put_runs(self, rows: NDArray[Any], columns: NDArray[Any], in_list: NDArray[Any]) -> None:
        """Neighbouring items of one row and column are a run."""
        changes = (np.diff(rows) != 0) | (np.diff(columns) != 0)
        first = np.concatenate([[0], np.flatnonzero(changes) + 1])
        count = np.diff(np.append(first, len(rows)))
        kinds, placed = self.item_kind, np.diff(self.place_start) > 0
        kind = kinds[first].astype(np.int64)
        alike = np.ones(len(first), np.bool_)
        if len(first) < len(rows):
            alike = np.minimum.reduceat(kinds, first) == np.maximum.reduceat(kinds, first)
            placed = np.maximum.reduceat(placed, first)
        # the item of an empty array is no element; nulls, like elements of several kinds, are MIXED
        count[kind == ElementKind.EMPTY] = 0
        kind[~alike | (kind <= NULL)] = MIXED
        begin = first + np.where(kind == STRING, self.items_at[1], self.items_at[0])
        self.runs = np.empty((len(first), _RUN_FIELDS), np.int64)
        for k, field in enumerate((columns[first], begin, begin + count, kind, in_list[first], placed)):
            self.runs[:, k] = field
        self.run_start = np.searchsorted(rows[first], np.arange(self.state.shape[1] + 1)).astype(np.int64)
        self.mixed[columns[first]] = True

    def mark_nulls(self, nulls: Any, paths: Sequence[str]) -> None:
        """State 2 where a path is listed as an explicit JSON null."""
        if len(nulls) == 0 or len(nulls.values) == 0:
            return
        offsets = np.asarray(nulls.offsets).astype(np.int64)
        listed = nulls.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        rows = np.repeat(np.arange(len(nulls)), np.diff(offsets))
        first: dict[str, int] = {}
        for c, path in enumerate(paths):
            first.setdefault(path, c)
        where = pc.index_in(listed, value_set=pa.array(list(first), pa.string()))
        found = np.asarray(where.is_valid())
        numbers = np.fromiter(first.values(), np.int64, len(first))
        self.state[numbers[np.asarray(where.drop_null())], rows[found]] = 2
        for c, path in enumerate(paths):
            if first[path] != c:  # the text of a time, beside the time
                self.state[c][self.state[first[path]] == 2] = 2

    def columns(self) -> Columns:
        return Columns(
            self.kind,
            self.is_list,
            self.state,
            self.base,
            self.list_base,
            _flat(self.lists, np.int64),
            _flat(self.offsets, np.int64),
            _flat(self.text, np.uint8),
            _flat(self.values, np.int64),
            _flat(self.order, np.int64),
            _flat(self.whole, np.int64),
            self.mixed,
            self.run_start,
            self.runs,
            self.items_at,
            self.item_kind,
            self.place_start,
            self.places,
        )


def ordered(floats: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers in the order of the doubles: the bits, with those of negative numbers turned round."""
    bits = np.ascontiguousarray(floats, np.float64).view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def whole_numbers(floats: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole doubles as int64, so that 5.0 equals 5; all others, and those beyond 9.2e18, as `ordered`."""
    is_whole = (np.floor(floats) == floats) & (np.abs(floats) < WHOLE_MOST)
    return np.where(is_whole, np.where(is_whole, floats, 0.0).astype(np.int64), ordered(floats))


def other_scalars(batch: pa.RecordBatch, path: str) -> Iterator[tuple[NDArray[np.int64], Any]]:
    """The scalars at a path that stand among the others: the rows of each type, and a column of them."""
    at = batch.schema.get_field_index(OTHERS)
    if at < 0:
        return
    others: Any = batch.column(at)
    offsets = np.asarray(others.offsets).astype(np.int64)
    flat = others.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    rows = np.repeat(np.arange(len(others)), np.diff(offsets))
    mine = np.asarray(pc.equal(flat.field("path"), pa.scalar(path))) & ~np.asarray(flat.field("list"))
    kinds = np.where(mine, np.asarray(flat.field("kind")), ElementKind.NULL)
    for kind in np.unique(kinds[kinds > ElementKind.NULL]).tolist():
        some = np.flatnonzero(kinds == kind)
        yield rows[some], _scalars(ElementKind(kind), flat.take(pa.array(some)))


def _scalars(kind: ElementKind, items: Any) -> Any:
    numbers: Any = np.asarray(items.field("number"))
    match kind:
        case ElementKind.STRING:
            return items.field("text")
        case ElementKind.FLOAT:
            return pa.array(numbers.view(np.float64))
        case ElementKind.BOOL:
            return pa.array(numbers.astype(np.bool_))
        case ElementKind.TIME:
            return pa.array(numbers, pa.timestamp("us", tz="UTC"))
    return pa.array(numbers)


def _columns_of(paths: Any, asked: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Of each item the column of its path, and that of the text of its path; -1 where nobody asks.

    None for the texts when nobody asks for one.
    """
    column = {path: c for c, path in enumerate(asked)}
    coded = paths.dictionary_encode()
    names = coded.dictionary.to_pylist()
    codes = np.asarray(coded.indices)
    direct = np.array([column.get(name, -1) for name in names], np.int64)
    text = np.array([column.get(text_path(name), -1) for name in names], np.int64)
    return direct[codes], text[codes] if (text >= 0).any() else None


def _flat(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(1, dtype)


def plain_column(column: Any) -> Any:
    """A column without chunks and encodings that only save space, in one of the types we know.

    Dates become timestamps, decimals doubles; other types come back as they are.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    dtype = column.type
    if pa.types.is_dictionary(dtype):
        return plain_column(column.cast(dtype.value_type))
    if pa.types.is_run_end_encoded(dtype):
        return plain_column(pc.call_function("run_end_decode", [column]))
    if pa.types.is_string_view(dtype):
        return column.cast(pa.large_string())
    if pa.types.is_decimal(dtype):
        return column.cast(pa.float64())
    if pa.types.is_date(dtype):
        return column.cast(pa.timestamp("us"))
    if pa.types.is_uint64(dtype):
        # what does not fit int64 is compared as a double
        fits = pc.all(pc.less_equal(column, pa.scalar(2**63 - 1, pa.uint64()))).as_py()
        return column.cast(pa.int64() if fits in (True, None) else pa.float64(), safe=False)
    return column


def _elements(column: Any) -> tuple[NDArray[np.int64], Any]:
    """Offsets from 0 and the elements of a list column. Null elements are no elements."""
    # flatten leaves out what null lists own in the buffer
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = plain_column(column.flatten())
    if values.null_count:
        before = np.concatenate([[0], np.cumsum(np.asarray(values.is_valid()))])
        offsets, values = before[offsets].astype(np.int64), values.drop_null()
    return offsets, values


def _is_list(dtype: pa.DataType) -> bool:
    t = pa.types
    kinds = (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_list_view, t.is_large_list_view)
    return any(is_kind(dtype) for is_kind in kinds)


def _kind_of(dtype: pa.DataType) -> int:
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return STRING
    if pa.types.is_boolean(dtype):
        return BOOL
    if pa.types.is_integer(dtype):
        return INT
    if pa.types.is_floating(dtype):
        return FLOAT
    return TIME if pa.types.is_timestamp(dtype) else ABSENT_TYPE
