"""Zones follow drift: what moves when the content space is divided anew by later statistics.

Owns the comparison of two plans of Kyra. Planning again with a later demand is all that following takes;
this says what it changes. A subscription moves when a part of it is served elsewhere: it must be sent to
the new proxy and taken from the old one.

Plans may have other brokers, classes and grids: brokers go by name, subscriptions by id. Where grids differ
both divisions are laid over each other, so zones are compared by content (`overlaid`): a subscription
moves where it may match an event that the two plans serve at different brokers, and a grid that is merely
cut finer moves nothing.

Guarantee: the same statistics divide alike, so nothing moves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Axis, Grid
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Cells, Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Hooks
from ramify.planning.schemes.shared.cell_loads import PAPER_ALPHA, cell_loads, weighed

__all__ = ["HOOKS", "Drift", "OverlaidGrids", "clique_imbalance", "drift", "overlaid", "proxies_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

ZONE_SCHEMES = ("kyra", "kyra-balanced", "kyra-mbr")


@dataclass(frozen=True, slots=True)
class Drift:
    """What a new division changes.

    Attributes
    ----------
    moved, of           subscriptions that are served elsewhere somewhere, of those that both plans have
                        with the same filter at the same broker
    cells               (broker, cell) pairs whose subscriptions move
    regridded           whether the grids differ; cells are then those of both laid over each other
    before, after       the heaviest zone of a clique over its mean zone, averaged over cliques of several
                        brokers: of the old zones and of the new, both by the new statistics. None where
                        that is not known: without statistics, for old zones of another grid, and for plans
                        that enter groups, not zones
    """

    moved: int
    of: int
    cells: int
    regridded: bool = False
    before: float | None = None
    after: float | None = None

    def __str__(self) -> str:
        """One line for people."""
        text = f"{self.moved:,} of {self.of:,} subscriptions move to another proxy"
        if self.before is not None and self.after is not None:
            text += f"; heaviest zone {self.before:.2f} of the mean before, {self.after:.2f} after"
        return text + ("; the grid changed, so zones were compared by content" if self.regridded else "")


def drift(old: Plan, new: Plan, demand: Demand | None = None) -> Drift | None:
    """What moves from one plan to the next; None unless both are plans of Kyra.

    `demand` holds the new statistics, by the classes and the grid of the new plan. O(classes * cells), and
    where grids differ O(classes * cells of both).
    """
    if old.scheme not in ZONE_SCHEMES or new.scheme not in ZONE_SCHEMES:
        return None
    pairs = _same_classes(old, new)
    over = overlaid(old.grid, new.grid)
    was, now = _served_at(old), _served_at(new)
    name = _numbers(old, new)
    moved, of, touched_pairs = 0, 0, set[tuple[int, int]]()
    for j, k, members in pairs:
        of += members
        cells = over.touched(new.classes.filters[k])
        before, after = was[j, over.old[cells]], now[k, over.new[cells]]
        changed = cells[np.where(before < 0, -1, name[before]) != after]
        if len(changed):
            moved += members
            host = int(new.classes.broker[k])
            touched_pairs.update((host, cell) for cell in changed.tolist())
    return Drift(moved, of, len(touched_pairs), old.grid != new.grid, *_imbalances(old, new, demand))


HOOKS = Hooks(drift=drift)


def _same_classes(old: Plan, new: Plan) -> list[tuple[int, int, int]]:
    """(old class, new class, subscriptions of both), where filter and broker are the same."""
    mine, theirs = old.classes, new.classes
    shared: dict[tuple[int, int], int] = {}
    for id_, j in mine.class_of.items():
        k = theirs.class_of.get(id_)
        if k is not None:
            shared[j, k] = shared.get((j, k), 0) + 1
    return [
        (j, k, count)
        for (j, k), count in shared.items()
        if old.overlay.brokers[mine.broker[j]] == new.overlay.brokers[theirs.broker[k]]
        and mine.filters[j].key == theirs.filters[k].key
    ]


def _numbers(old: Plan, new: Plan) -> Ints:
    """int32[n of old]: the new number of each broker; below -1 where it is gone."""
    return np.array([new.overlay.index.get(name, -2) for name in old.overlay.brokers], dtype=np.int32)


def _served_at(plan: Plan) -> Ints:
    """int32[c, cells]: where each class is served in each cell, or -1. One cell without a grid."""
    cells = 1 if plan.grid is None else plan.grid.size
    at = np.full((len(plan.classes), cells), -1, dtype=np.int32)
    for channel in plan.channels:
        content, serves = channel.admits.content, channel.serves
        mine = content.cells if isinstance(content, Cells) else np.arange(cells)
        for region in np.unique(serves.region).tolist():
            rows = serves.region == region
            here = mine if region < 0 else np.intersect1d(mine, plan.regions[region])
            at[np.ix_(serves.classes[rows], here)] = serves.at[rows, None]
    return at


def _imbalances(old: Plan, new: Plan, demand: Demand | None) -> tuple[float | None, float | None]:
    now = proxies_of(new)
    if demand is None or new.grid is None or now is None:
        return None, None
    alpha = float(new.settings.get("used_alpha", PAPER_ALPHA))
    problem = Problem.of(new.overlay, new.classes, demand, new.attachments, grid=new.grid)
    load = cell_loads(problem, new.grid, alpha)
    was = proxies_of(old)
    comparable = was is not None and old.grid == new.grid and old.overlay.brokers == new.overlay.brokers
    before = clique_imbalance(was, load) if comparable and was is not None else None
    return before, clique_imbalance(now, load)


def proxies_of(plan: Plan) -> Ints | None:
    """int32[n, cells]: the proxy of each broker in each cell, read from where events enter.

    None where a channel is entered anywhere, or nearest (`kyra-mbr`), or cells are in none: those plans
    have no proxy for every cell.
    """
    if plan.scheme not in ZONE_SCHEMES or plan.scheme == "kyra-mbr":
        return None
    cells = 1 if plan.grid is None else plan.grid.size
    proxy = np.full((len(plan.overlay), cells), -1, dtype=np.int32)
    for channel in plan.channels:
        content, targets = channel.admits.content, channel.entry.targets
        if targets is None:
            return None
        mine = content.cells if isinstance(content, Cells) else np.arange(cells)
        proxy[:, mine] = targets[:, None]
    return None if (proxy < 0).any() else proxy


def clique_imbalance(proxy: Ints, load: Floats) -> float:
    """The heaviest zone over the mean zone, averaged over cliques of several brokers; 1 without any.

    Brokers with the same proxies everywhere are a clique: no broker is a proxy of two.
    """
    rows, size = np.unique(proxy, axis=0, return_counts=True)
    ratios = []
    for row, brokers in zip(rows, size.tolist(), strict=True):
        mean = float(load.sum()) / brokers
        if brokers > 1 and mean:
            ratios.append(float(weighed(row, load, len(proxy)).max()) / mean)
    return float(np.mean(ratios)) if ratios else 1.0


# ------------------------------------------------------------------------------- grids over each other


@dataclass(frozen=True, slots=True)
class _Line:
    """An attribute as both grids cut it: the slots of both laid over each other.

    `old` and `new` are the slot of each joint slot in either grid's axis, 0 where a grid has none.
    """

    path: str
    cut: Axis | None
    apart: tuple[Axis, Axis] | None
    old: Longs
    new: Longs

    def touched(self, filter_: Filter) -> Iterator[list[int]]:
        """The joint slots that each box of a filter can hold values in."""
        for box in filter_.boxes:
            asked = box[self.path]
            if self.cut is not None:
                yield self.cut.touched(asked)
                continue
            assert self.apart is not None
            # edges of different kinds: what one axis cuts is all in the last slot of the other
            mine, theirs = self.apart
            inner = mine.slots - 1
            found = [slot for slot in mine.touched(asked) if slot < inner]
            found += [inner + slot for slot in theirs.touched(asked) if slot < theirs.slots - 1]
            rest = asked.intersect(mine.slot_sets[-1]).intersect(theirs.slot_sets[-1])
            yield found if rest.is_empty else [*found, inner + theirs.slots - 1]


@dataclass(frozen=True, slots=True)
class OverlaidGrids:
    """The cells of two grids laid over each other, numbered row by row, the last line fastest.

    `old` and `new` are int64: the cell of either grid that each lies in; 0 without a grid.
    """

    lines: tuple[_Line, ...]
    old: Longs
    new: Longs

    def touched(self, filter_: Filter) -> Longs:
        """The cells in which a filter may accept an event, ascending."""
        hit = np.zeros(tuple(len(line.old) for line in self.lines), dtype=np.bool_)
        for slots in zip(*(line.touched(filter_) for line in self.lines), strict=True):
            hit[np.ix_(*slots)] = True
        return np.flatnonzero(hit) if self.lines else np.zeros(min(1, len(filter_.boxes)), dtype=np.int64)


def overlaid(old: Grid | None, new: Grid | None) -> OverlaidGrids:
    """Two grids laid over each other; None is one cell, everything. At most the product of their cells."""
    mine = {axis.path: axis for axis in (() if old is None else old.axes)}
    theirs = {axis.path: axis for axis in (() if new is None else new.axes)}
    lines = tuple(_line(mine.get(path), theirs.get(path)) for path in dict.fromkeys((*mine, *theirs)))
    shape = tuple(len(line.old) for line in lines)
    at = np.unravel_index(np.arange(prod(shape)), shape) if lines else ()
    slots = {line.path: (line.old[where], line.new[where]) for line, where in zip(lines, at, strict=True)}

    def cells(grid: Grid | None, side: int) -> Longs:
        if grid is None:
            return np.zeros(prod(shape), dtype=np.int64)
        parts = tuple(slots[axis.path][side] for axis in grid.axes)
        return np.ravel_multi_index(parts, grid.shape).astype(np.int64)

    return OverlaidGrids(lines, cells(old, 0), cells(new, 1))


def _line(old: Axis | None, new: Axis | None) -> _Line:
    if old is None or new is None:
        axis = old or new
        assert axis is not None
        own, none = np.arange(axis.slots), np.zeros(axis.slots, dtype=np.int64)
        return _Line(axis.path, axis, None, none if old is None else own, none if new is None else own)
    if _kind(old) == _kind(new):
        both = Axis(old.path, tuple(sorted({*old.edges, *new.edges})))
        low = [both.edges[0], *both.edges]
        inside = [_slots(axis, low) for axis in (old, new)]
        return _Line(old.path, both, None, *inside)
    inner, outer = old.slots - 1, new.slots - 1
    slots = np.arange(inner + outer + 1)
    before = np.where(slots < inner, slots, inner)
    after = np.where((slots >= inner) & (slots < inner + outer), slots - inner, outer)
    return _Line(old.path, None, (old, new), before, after)


def _slots(axis: Axis, low: list[object]) -> Longs:
    """The slot of an axis that each slot of a finer one lies in: `low` are lower ends, of the first any."""
    edges = list(axis.edges)
    found = [sum(edge <= at for edge in edges) for at in low]  # type: ignore[operator]
    found[0] = 0
    return np.array([*found, axis.slots - 1], dtype=np.int64)


def _kind(axis: Axis) -> type:
    first = axis.edges[0]
    return float if isinstance(first, int | float) else type(first)
