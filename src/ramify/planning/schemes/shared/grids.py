"""The grid that zones are cut from, chosen from the filters alone: before any event is counted.

Owns the choice of attributes and of edges. Cells must be known when events are counted, so the choice looks
at no event. Edges are the bounds and values that filters name, at even ranks where they are too many; so a
slot holds about as many bounds as any other.

An attribute scores by how far filters narrow it down (the share of its slots that a filter leaves out) and
how evenly what they ask for lies over the slots (1 - 1/m for m equally popular ones). The best is taken; a
second where filters that the first does not narrow are narrowed by it. Arrays lie in one slot whatever they
hold, so attributes of array types are no choice.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, isfinite, nextafter
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType
from ramify.content.filters.constraints import Constraint
from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Axis, Grid
from ramify.errors import InputError
from ramify.planning.demand.classes import Classes

__all__ = ["MOST_CELLS", "grid_for"]

MOST_CELLS = 64
"""Of a grid that is chosen. Every cell tells patterns apart, for all schemes that share the demand."""

GRID_FILTERS = 4096
"""Filters that the choice looks at; of more an even sample."""

SECOND = 0.25
"""Of all subscriptions: how many must be narrowed by a second attribute and not by the first."""

_ARRAYS = (AttributeType.STRINGS, AttributeType.NUMBERS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Choice:
    """An attribute as an axis, and how well it can be cut."""

    axis: Axis
    narrowed: Floats  # [filters] the share of slots that each leaves out
    score: float


def grid_for(
    classes: Classes, attributes: Sequence[str] = (), *, most_cells: int = MOST_CELLS
) -> Grid | None:
    """A grid over the attributes named, or over the best one or two; None where nothing can be cut by.

    Deterministic. `InputError` for an attribute named that no filter bounds, or for fewer than 3 cells an
    axis. O(filters * boxes * slots).
    """
    filters = _sampled(classes)
    paths = list(dict.fromkeys(attributes)) or _candidates(filters, classes)
    if attributes:
        slots = int(most_cells ** (1 / len(paths)) + 1e-9)
        axes = [_axis(filters, path, slots) for path in paths]
        for path, axis in zip(paths, axes, strict=True):
            if axis is None:
                raise InputError(
                    f"zones cannot be cut by {path!r}: no filter bounds it by numbers, strings or times, "
                    f"or {most_cells} cells are too few. Name attributes that filters ask for."
                )
        return Grid(tuple(axis for axis in axes if axis is not None))
    choices = _scored(filters, paths, classes, most_cells)
    if not choices:
        return None
    second = _second(choices, filters)
    if second is not None:
        side = int(most_cells**0.5 + 1e-9)
        both = _scored(filters, [choices[0].axis.path, second], classes, side)
        if len(both) == 2:
            return Grid(tuple(choice.axis for choice in both))
    return Grid((choices[0].axis,))


def _sampled(classes: Classes) -> list[Filter]:
    live = np.flatnonzero(~classes.vacant)
    step = max(1, -(-len(live) // GRID_FILTERS))
    return [classes.filter_of(k) for k in live[::step].tolist()]


def _candidates(filters: Iterable[Filter], classes: Classes) -> list[str]:
    """The attributes that filters look at, the most frequent first; at most eight."""
    counts = Counter(path for filter_ in filters for path in filter_.paths)
    scalar = [path for path in counts if classes.schema.get(path) not in _ARRAYS]
    return sorted(scalar, key=lambda path: (-counts[path], path))[:8]


def _scored(filters: Sequence[Filter], paths: list[str], classes: Classes, slots: int) -> list[_Choice]:
    """The attributes that can be cut, the best first."""
    found = []
    for path in paths:
        axis = _axis(filters, path, slots)
        if axis is not None:
            choice = _choice(axis, filters, scalar=path in classes.schema)
            if choice.score > 0:
                found.append(choice)
    return sorted(found, key=lambda choice: (-choice.score, choice.axis.path))


def _choice(axis: Axis, filters: Sequence[Filter], *, scalar: bool) -> _Choice:
    touched = np.zeros((len(filters), axis.slots), dtype=np.bool_)
    for row, filter_ in enumerate(filters):
        for box in filter_.boxes:
            touched[row, axis.touched(box[axis.path])] = True
    # patterns also hold for arrays, which an attribute of a known scalar type never is
    seen = touched[:, :-1] if scalar else touched
    narrowed = 1 - seen.mean(axis=1) if len(filters) else np.zeros(0)
    constrained = ~touched[:, :-1].all(axis=1)
    popular = (seen[constrained] / np.maximum(seen[constrained].sum(axis=1, keepdims=True), 1)).sum(axis=0)
    total = float(popular.sum())
    effective = total**2 / float((popular**2).sum()) if total else 1.0
    mean = float(narrowed.mean()) if len(filters) else 0.0
    return _Choice(axis, narrowed, mean * (1 - 1 / effective))


def _second(choices: list[_Choice], filters: Sequence[Filter]) -> str | None:
    """An attribute that narrows enough of the filters that the best one leaves wide."""
    wide = choices[0].narrowed < 0.5
    gains = [
        (float(((other.narrowed >= 0.5) & wide).sum()), other.axis.path, other) for other in choices[1:]
    ]
    gain, path, _ = max(gains, key=lambda row: (row[0], row[1]), default=(0.0, "", None))
    return path if gain > SECOND * max(len(filters), 1) else None


# ---------------------------------------------------------------------------------------------- edges


def _axis(filters: Iterable[Filter], path: str, slots: int) -> Axis | None:
    """The attribute cut at the bounds that filters name, at even ranks; None without any."""
    found: dict[str, list[Any]] = {"numbers": [], "strings": [], "times": []}
    for filter_ in filters:
        for box in filter_.boxes:
            for kind, edges in found.items():
                edges.extend(_edges(box[path], kind))
    kind = max(found, key=lambda name: len(found[name]))
    ranked = sorted(found[kind])
    most = slots - 2
    if not ranked or most < 1:
        return None
    distinct = sorted(set(ranked))
    if len(distinct) > most:
        ranks = (np.arange(1, most + 1) * len(ranked)) // (most + 1)
        distinct = sorted({ranked[rank] for rank in ranks.tolist()})
    if kind == "times":
        return Axis(path, tuple(_EPOCH + timedelta(microseconds=edge) for edge in distinct))
    return Axis(path, tuple(distinct))


def _edges(constraint: Constraint, kind: str) -> list[Any]:
    """Where a filter's values of a kind begin and end, but not the end of a single value."""
    cuts = getattr(constraint.scalars, kind)
    edges = []
    for place, cut in enumerate(cuts):
        if place % 2 and _follows(cuts[place - 1], cut, kind):
            continue
        edge = _number(cut, ends=place % 2 == 1) if kind == "numbers" else cut
        if _is_edge(edge, kind):
            edges.append(edge)
    return edges


def _follows(low: Any, high: Any, kind: str) -> bool:
    """Whether only one value lies between two cuts."""
    if kind == "numbers":
        return bool(low[0] == high[0])
    return bool(high == low + "\0") if kind == "strings" else bool(high == low + 1)


def _number(cut: tuple[float, int], *, ends: bool) -> float:
    """The edge for a cut. Where values end with one, a little above it, or it would lie in the next slot.

    Where they begin above one, the edge is at it: to the algebra numbers lie between it and any other.
    """
    value, side = cut
    if not ends or not side or not isfinite(value):
        return value
    return value + 1 if isinstance(value, int) else nextafter(value, inf)


def _is_edge(edge: Any, kind: str) -> bool:
    if kind == "numbers":
        return isfinite(edge) and abs(edge) < 2**62
    if kind == "strings":
        return bool(edge)
    return bool(abs(edge) < 2**55)
