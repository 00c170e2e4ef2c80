"""Content space: the grid over a few attributes that a scheme partitions by.

An `Axis` cuts one attribute at its edges into intervals and keeps one more slot for events without a
value of that kind (absent, null, another type, an array). A `Grid` is the product of its axes; its
cells are numbered row by row. Zones, groups and histograms are sets of cells; `Grid.region` turns a set
of cells into a filter, so intersecting a subscription with a zone is the filter algebra's `intersect`.

Guarantee: an event that a filter accepts always lies in one of `cells_touched(filter)`; and a cell is
left out only when the filter certainly accepts nothing in it.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramify.content.events.columns import other_scalars, plain_column
from ramify.content.filters.constraints import ABSENT, EVERY_ARRAY, Constraint, Value
from ramify.content.filters.filters import Box, Filter, merge_boxes
from ramify.content.filters.values import EVERY_VALUE, Number, ValueSet, microseconds, tidy
from ramify.errors import InputError

__all__ = ["Axis", "Grid"]

_GRID_CELLS = 1 << 24
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Axis:
    """One attribute, cut at increasing edges: all numbers, all strings or all times.

    n edges make n + 1 intervals, each closed below and open above, and slot n + 1 for everything else.
    """

    path: str
    edges: tuple[float, ...] | tuple[str, ...] | tuple[datetime, ...]

    def __post_init__(self) -> None:
        if not self.edges:
            raise InputError(f"the axis {self.path} needs at least one edge")
        kinds = {"number" if isinstance(e, int | float) else type(e).__name__ for e in self.edges}
        if (
            len(kinds) > 1
            or kinds - {"number", "str", "datetime"}
            or any(isinstance(e, bool) for e in self.edges)
        ):
            raise InputError(f"the edges of {self.path} must all be numbers, all strings or all times")
        name, cuts = self._cuts
        if name == "numbers" and not all(abs(value) <= sys.float_info.max for value, _ in cuts):
            raise InputError(f"the edges of {self.path} must be finite numbers")
        if any(a >= b for a, b in zip((getattr(EVERY_VALUE, name)[0], *cuts), cuts, strict=False)):
            raise InputError(f"the edges of {self.path} must increase (and none may be the empty string)")

    @property
    def slots(self) -> int:
        """Intervals and the slot for everything else."""
        return len(self.edges) + 2

    @cached_property
    def slot_sets(self) -> tuple[Constraint, ...]:
        """What each slot holds, in order."""
        name, cuts = self._cuts
        least = getattr(EVERY_VALUE, name)[0]
        lows = (least, *cuts)
        intervals = [
            Constraint(scalars=_values({name: (low, *cuts[k : k + 1])})) for k, low in enumerate(lows)
        ]
        others = _values({n: getattr(EVERY_VALUE, n) for n in _LINES if n != name})
        return (*intervals, Constraint(True, True, others, EVERY_ARRAY))

    def slot(self, value: Value) -> int:
        """The slot of one value."""
        for k, slot in enumerate(self.slot_sets):
            if value in slot:
                return k
        raise AssertionError("the slots of an axis cover everything")

    def locate(self, column: "pa.Array[Any] | pa.ChunkedArray[Any] | None", rows: int) -> NDArray[np.int64]:
        """The slot of every row of an attribute's column (None: no event has it)."""
        other = self.slots - 1
        out = np.full(rows, other, dtype=np.int64)
        if column is None:
            return out
        plain = plain_column(column)
        if not self._fits(plain.type):
            return out
        valid = np.asarray(plain.is_valid())
        out[valid] = self._search(plain.drop_null())
        return out

    def touched(self, constraint: Constraint) -> list[int]:
        """The slots that a constraint can hold values in. O(log edges) per cut of the constraint."""
        name, cuts = self._cuts
        found: set[int] = set()
        mine = getattr(constraint.scalars, name)
        for k in range(0, len(mine), 2):
            first = bisect_right(cuts, mine[k])
            last = bisect_right(cuts, mine[k + 1]) if k + 1 < len(mine) else len(cuts)
            if k + 1 < len(mine) and last and cuts[last - 1] == mine[k + 1]:
                last -= 1  # the interval ends right where that slot begins
            found.update(range(first, last + 1))
        if not constraint.intersect(self.slot_sets[-1]).is_empty:
            found.add(self.slots - 1)
        return sorted(found)

    @cached_property
    def _cuts(self) -> tuple[str, tuple[Any, ...]]:
        first = self.edges[0]
        if isinstance(first, str):
            return "strings", self.edges
        if isinstance(first, datetime):
            return "times", tuple(microseconds(e) for e in self.edges)  # type: ignore[arg-type]
        # float(): numpy's doubles would be spelled differently in canonical keys
        numbers = (float(e) if isinstance(e, float) else e for e in self.edges)
        return "numbers", tuple((tidy(e), 0) for e in numbers)  # type: ignore[arg-type]

    def _fits(self, dtype: pa.DataType) -> bool:
        name = self._cuts[0]
        if name == "strings":
            return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
        if name == "times":
            return pa.types.is_timestamp(dtype)
        return pa.types.is_integer(dtype) or pa.types.is_floating(dtype)

    def _search(self, values: Any) -> NDArray[np.int64]:
        name, cuts = self._cuts
        if name == "strings":
            coded = values.dictionary_encode()
            slots = np.array(
                [bisect_right(cuts, text) for text in coded.dictionary.to_pylist()], dtype=np.int64
            )
            return np.take(slots, np.asarray(coded.indices))
        if name == "times":
            values = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
            edges = np.array(cuts, dtype=np.int64)
        else:
            edges = _edges_for(values.type, [cut[0] for cut in cuts])
        return np.searchsorted(edges, np.asarray(values), side="right").astype(np.int64)


def _edges_for(dtype: pa.DataType, edges: Sequence[Number]) -> NDArray[Any]:
    """The least value of the column's type at or above each edge: exact, where a cast would round."""
    if pa.types.is_integer(dtype):
        reachable = [math.ceil(e) for e in edges if e <= _INT64_MAX]
        return np.array([max(e, _INT64_MIN) for e in reachable], dtype=np.int64)
    doubles = [(float(e), e) for e in edges]
    return np.array([d if d >= e else math.nextafter(d, math.inf) for d, e in doubles])


def _values(cuts: dict[str, Any]) -> ValueSet:
    return ValueSet(**cuts)


_LINES = ("numbers", "strings", "booleans", "times")


@dataclass(frozen=True)
class Grid:
    """A product of axes. Cell ids run row by row, the last axis fastest."""

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise InputError("a grid needs at least one axis")
        if len({axis.path for axis in self.axes}) < len(self.axes):
            raise InputError("a grid cannot have two axes on one attribute")
        if self.size > _GRID_CELLS:
            raise InputError(
                f"a grid of {self.size} cells is too large: use fewer edges or axes (2^24 cells at most)"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Slots per axis."""
        return tuple(axis.slots for axis in self.axes)

    @property
    def size(self) -> int:
        """How many cells there are."""
        return prod(axis.slots for axis in self.axes)

    def cell(self, attributes: Mapping[str, Value]) -> int:
        """The cell of one event."""
        slots = tuple(axis.slot(attributes.get(axis.path, ABSENT)) for axis in self.axes)
        return int(np.ravel_multi_index(slots, self.shape))

    def locate(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The cell of every row, without a Python loop over rows."""
        cells = np.zeros(batch.num_rows, dtype=np.int64)
        for axis in self.axes:
            index = batch.schema.get_field_index(axis.path)
            column = batch.column(index) if index >= 0 else None
            slots = axis.locate(column, batch.num_rows)
            for rows, values in other_scalars(batch, axis.path):
                slots[rows] = axis.locate(values, len(rows))
            cells = cells * axis.slots + slots
        return cells

    def cells_touched(self, filter_: Filter) -> NDArray[np.int64]:
        """The cells in which the filter may accept an event, sorted."""
        hit = np.zeros(self.shape, dtype=bool)
        for box in filter_.boxes:
            slots = [axis.touched(box[axis.path]) for axis in self.axes]
            hit[np.ix_(*slots)] = True
        return np.flatnonzero(hit).astype(np.int64)

    def region(self, cells: Iterable[int] | NDArray[np.int64]) -> Filter:
        """The filter of the events that lie in these cells. Raises FilterError past the box limit."""
        ids = np.unique(np.fromiter((int(c) for c in cells), dtype=np.int64))
        if len(ids) and (ids[0] < 0 or ids[-1] >= self.size):
            raise InputError(f"cell ids of this grid run from 0 to {self.size - 1}")
        boxes = (
            self._box([int(s) for s in slots])
            for slots in zip(*np.unravel_index(ids, self.shape), strict=True)
        )
        return Filter(merge_boxes(boxes))

    def _box(self, slots: Sequence[int]) -> Box:
        asked = {axis.path: axis.slot_sets[k] for axis, k in zip(self.axes, slots, strict=True)}
        box = Box.of(asked)
        assert box is not None, "a slot is never empty"
        return box
