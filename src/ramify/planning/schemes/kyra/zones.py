"""Zones: the content space divided into parts of even load, each a set of cells.

Owns the partition. Along one axis zones are runs of cells, the heaviest as light as it can be. Over several
axes they are boxes, by a k-d split: each cut gives the two sides load in the proportion of the zones that
they will hold, and weighs how many subscriptions lie on both.

A partition is an int32 label per cell: every cell is in exactly one zone, the cells of events without an
attribute among them. A zone may be empty when there are more zones than cells.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["split_line", "zones_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

STEPS = 60
"""Halvings of the interval that the least heaviest load lies in: all the bits of a double, and some."""


def zones_of(
    load: Floats,
    shape: Sequence[int],
    parts: int,
    touched: Bools | None = None,
    weight: Floats | None = None,
    *,
    axes: Sequence[int] | None = None,
    straddle: float = 0.5,
) -> Ints:
    """int32[cells]: the zone of every cell of a grid of this shape, zones 0..parts - 1.

    `axes` are those that may be cut, all unless told. `touched` is bool[rows, cells], what each kind of
    subscription touches, `weight` how many there are of it; `straddle` is what it counts when all
    subscriptions of a box lie on both sides of a cut, against imbalance as a share of the box's load.
    """
    cut = list(range(len(shape))) if axes is None else sorted(set(axes))
    rest = tuple(axis for axis in range(len(shape)) if axis not in cut)
    space = load.reshape(shape).sum(axis=rest, keepdims=True)
    if sum(length > 1 for length in space.shape) <= 1:
        labels = split_line(space.ravel(), parts)
    else:
        rows = np.zeros((0, *space.shape), dtype=np.bool_)
        if touched is not None and len(touched):
            rows = _any(touched.reshape(len(touched), *shape), rest)
        each = np.ones(len(rows)) if weight is None else weight
        labels = np.empty(space.size, dtype=np.int32)
        boxes = _boxes(space, rows, each, (0,) * len(shape), space.shape, 0, parts, straddle)
        numbers = np.arange(space.size).reshape(space.shape)
        for zone, low, high in boxes:
            labels[numbers[_inside(low, high)]] = zone
    whole: Ints = np.broadcast_to(labels.reshape(space.shape), tuple(shape)).ravel().astype(np.int32)
    return whole


def split_line(load: Floats, parts: int) -> Ints:
    """int32[cells]: runs of cells whose heaviest is as light as any division into `parts` runs has it.

    Binary search with a greedy probe on prefix sums: O(cells + parts log cells) per step. The greedy runs
    may be fewer; then the heaviest of several cells are cut in two until there are enough.
    """
    prefix = np.concatenate(([0.0], np.cumsum(load)))
    low = max(float(load.max(initial=0.0)), float(prefix[-1]) / parts)
    high = float(prefix[-1])
    best = _greedy(prefix, high, parts)
    for _ in range(STEPS):
        if low >= high:
            break
        middle = (low + high) / 2
        tried = _greedy(prefix, middle, parts)
        if tried is None:
            low = middle
        else:
            best = tried
            high = min(middle, float(np.diff(prefix[tried]).max()))
        if not low < (low + high) / 2 < high:
            break
    at_low = _greedy(prefix, low, parts)
    ends = best if at_low is None else at_low
    assert ends is not None, "the whole load always fits"
    more = _cut_further(prefix, list(ends), parts)
    labels: Ints = np.repeat(np.arange(len(more) - 1, dtype=np.int32), np.diff(more))
    return labels


def _greedy(prefix: Floats, most: float, parts: int) -> list[int] | None:
    """Where runs end when each takes as many cells as fit; None when `parts` runs do not hold all."""
    ends, cells = [0], len(prefix) - 1
    while ends[-1] < cells and len(ends) <= parts:
        room = prefix[ends[-1]] + most
        # sums of the same loads in another order may differ by a rounding
        end = int(np.searchsorted(prefix, room * (1 + 1e-12), side="right")) - 1
        if end <= ends[-1]:
            return None
        ends.append(end)
    return ends if ends[-1] == cells else None


def _cut_further(prefix: Floats, ends: list[int], parts: int) -> list[int]:
    """The same runs, the heaviest cut at their most even place until there are `parts`, if cells allow."""
    while len(ends) - 1 < min(parts, len(prefix) - 1):
        runs = [(prefix[b] - prefix[a], b - a, -a) for a, b in pairwise(ends)]
        k = max((run for run in range(len(runs)) if runs[run][1] > 1), key=lambda run: runs[run])
        first, last = ends[k], ends[k + 1]
        inner = prefix[first + 1 : last]
        heavier = np.maximum(inner - prefix[first], prefix[last] - inner)
        ends.insert(k + 1, first + 1 + int(heavier.argmin()))
    return ends


# ------------------------------------------------------------------------------------------ k-d split


def _any(rows: Bools, axes: Sequence[int]) -> Bools:
    """Whether each row has anything along some axes of the grid, which stay as axes of one slot."""
    found: Bools = np.logical_or.reduce(rows, axis=tuple(axis + 1 for axis in axes), keepdims=True)
    return found


_Corner = tuple[int, ...]


def _inside(low: _Corner, high: _Corner) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(low, high, strict=True))


def _boxes(
    load: Floats,
    rows: Bools,
    weight: Floats,
    low: _Corner,
    high: _Corner,
    first: int,
    parts: int,
    straddle: float,
) -> Iterator[tuple[int, _Corner, _Corner]]:
    """(zone, low, high) of the zones `first` .. `first + parts - 1`, which divide a box."""
    box = load[_inside(low, high)]
    if parts == 1 or box.size == 1:
        yield first, low, high
        return
    here = rows[(slice(None), *_inside(low, high))]
    kept = here.reshape(len(here), box.size).any(axis=1)
    axis, cut, before = _best_cut(box, here[kept], weight[kept], parts, straddle)
    middle = tuple(low[a] + cut if a == axis else high[a] for a in range(len(low)))
    start = tuple(low[a] + cut if a == axis else low[a] for a in range(len(low)))
    yield from _boxes(load, rows, weight, low, middle, first, before, straddle)
    yield from _boxes(load, rows, weight, start, high, first + before, parts - before, straddle)


def _best_cut(
    box: Floats, rows: Bools, weight: Floats, parts: int, straddle: float
) -> tuple[int, int, int]:
    """The axis, how many slots lie before the cut, and how many zones those get. Ties to the first."""
    best: tuple[float, int, int, int] | None = None
    total, asked = float(box.sum()), max(float(weight.sum()), 1.0)
    for axis in range(box.ndim):
        slots = box.shape[axis]
        if slots < 2:
            continue
        others = tuple(a for a in range(box.ndim) if a != axis)
        share = np.cumsum(box.sum(axis=others))[:-1] / total if total else np.arange(1, slots) / slots
        seen = _any(rows, others).reshape(len(rows), slots)
        before = np.logical_or.accumulate(seen, axis=1)[:, :-1]
        after = np.logical_or.accumulate(seen[:, ::-1], axis=1)[:, ::-1][:, 1:]
        both = weight @ (before & after) / asked
        for zones in sorted({parts // 2, parts - parts // 2}):
            score = np.abs(share - zones / parts) + straddle * both
            at = int(score.argmin())
            if best is None or score[at] < best[0]:
                best = float(score[at]), axis, at + 1, zones
    assert best is not None, "a box of several cells can be cut"
    return best[1:]
