"""Routing state with covering: the filters that a broker must keep when one may stand for another.

Owns `covered_state`, and `cover_matrix`, which finds what covers what among many filters.

On a filtered tree a broker keeps, per channel and link, the filters that are wanted behind the link. A
filter that another one kept for the same link covers adds nothing there: the event goes over anyway. What
a broker serves itself is kept as if it were one more link, and so is what it notifies each host of; what
it only has to recognise, to admit an event that it does not send on by that filter, is one set more. On
channels of any other pruning all that `state.py` says a broker stores for the channel is one set. A filter
that holds in a region stands for another only where its region holds too.

Of filters that cover each other the first stays; equal filters count once. Classes without a member are
not counted. Counts are per channel: channels do not stand for each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.content.filters.constraints import Constraint
from ramify.content.filters.filters import Filter
from ramify.content.filters.values import Cuts
from ramify.errors import LimitError
from ramify.network.trees.trees import Tree
from ramify.planning.plans.layout import Layout
from ramify.planning.plans.plan import Channel, Plan, Pruning
from ramify.planning.plans.state import admitting, asked_classes, between_entries, toward_entry

__all__ = ["COVERED_FILTERS", "cover_matrix", "covered_state"]

COVERED_FILTERS = 2_000
"""Distinct filters: what they cover is found in about two seconds at most where each is one box."""
MOST_CALLS = 50_000
"""Pairs that may be put to `Filter.covers` one by one, at 10 to 50 microseconds each."""
MOST_POINTS = 4_096
"""Intervals that an attribute is cut into; beyond, a sample of them tells which pairs to look at."""

CHUNK_BYTES = 1 << 25
"""What is laid out at a time when sets are reduced."""

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


def covered_state(layout: Layout) -> Longs:
    """int64[n]: how many filters each broker keeps. Exact, as far as `Filter.covers` can tell.

    O(channels * items * brokers) bytes touched, and a bit per (item, link) for each pair that covers.
    `LimitError` beyond `COVERED_FILTERS` distinct filters, or where too many must be compared one by one.
    """
    plan = layout.plan
    total = np.zeros(len(plan.overlay), dtype=np.int64)
    number, distinct = _numbered(plan)
    if len(distinct) > COVERED_FILTERS:
        raise LimitError(
            f"{len(distinct)} distinct filters: covering can be found among {COVERED_FILTERS}. Look at the "
            "state without covering, or at fewer subscriptions."
        )
    covers = _closed(cover_matrix(distinct))
    for channel, tree in zip(plan.channels, layout.trees, strict=True):
        items = _Items.of(plan, channel, number, covers)
        if items is not None:
            _count(channel, tree, items, total)
    return total


def cover_matrix(filters: Sequence[Filter]) -> Bools:
    """bool[f, f]: [i, j] is whether filter i covers filter j, as `Filter.covers` says.

    Idea: cut every attribute into the intervals that the filters tell apart. A filter that is one box
    covers another exactly when it holds every interval that the other touches, attribute by attribute.
    Where the coverer is a union of boxes, or tests and arrays are asked for, that is still necessary, and
    only pairs that pass are compared. O(f^2) per attribute besides those; `LimitError` when they are too
    many.
    """
    may = np.ones((len(filters), len(filters)), dtype=np.bool_)
    plain = np.array([_is_plain(filter_) for filter_ in filters], dtype=np.bool_)
    for path in sorted({path for filter_ in filters for path in filter_.paths}):
        whole = _narrow(may, filters, path)
        plain &= whole
    box = np.array([len(filter_.boxes) == 1 for filter_ in filters], dtype=np.bool_)
    undecided = may & ~((plain & box)[:, None] & plain[None, :])
    np.fill_diagonal(undecided, False)
    left = np.argwhere(undecided)
    if len(left) > MOST_CALLS:
        raise LimitError(
            f"{len(left)} pairs of filters would have to be compared one by one to find what covers what; "
            f"at most {MOST_CALLS} are. Look at the state without covering, or at fewer subscriptions."
        )
    for i, j in left.tolist():
        may[i, j] = filters[i].covers(filters[j])
    np.fill_diagonal(may, True)
    return may


# ------------------------------------------------------------------------------------ what covers what


def _is_plain(filter_: Filter) -> bool:
    """Whether intervals of scalars say all that a filter asks."""
    return bool(filter_.boxes) and all(
        not box.joints and all(c.arrays is None and not c.scalars.tests for _, c in box.constraints)
        for box in filter_.boxes
    )


def _narrow(may: Bools, filters: Sequence[Filter], path: str) -> Bools:
    """Strike pairs whose coverer misses something that the other may hold at a path.

    Returns bool[f]: for which filters the intervals were all looked at.
    """
    asked = [tuple(dict.fromkeys(box[path] for box in filter_.boxes)) for filter_ in filters]
    numbers: dict[tuple[Constraint, ...], int] = {}
    which = np.array([numbers.setdefault(each, len(numbers)) for each in asked], dtype=np.int64)
    distinct = list(numbers)
    missed = np.zeros((len(distinct), len(distinct)), dtype=np.bool_)
    whole = True
    for line in ("numbers", "strings", "booleans", "times", "arrays"):
        points = sorted({cut for each in distinct for part in each for cut in _cuts(part, line, True)})
        rank = {point: at for at, point in enumerate(points)}
        if all(len(each) == 1 and len(_cuts(each[0], line, True)) <= 2 for each in distinct):
            missed |= _outside(distinct, line, rank)
            continue
        whole &= len(points) <= MOST_POINTS
        holds = _inside(distinct, line, rank, generous=True)
        wants = _inside(distinct, line, rank, generous=False)
        missed |= (1 - holds) @ wants.T > 0
    flags = np.array([[_any(each, "absent"), _any(each, "null")] for each in distinct], dtype=np.float32)
    missed |= (1 - flags.reshape(-1, 2)) @ flags.reshape(-1, 2).T > 0
    may &= ~missed[np.ix_(which, which)]
    return np.ones(len(filters), dtype=np.bool_) if whole else np.zeros(len(filters), dtype=np.bool_)


def _any(parts: Iterable[Constraint], flag: str) -> bool:
    return any(getattr(part, flag) for part in parts)


def _cuts(constraint: Constraint, line: str, generous: bool) -> Cuts:
    """Where one kind of value is inside: all that may be, or only what surely is."""
    if line != "arrays":
        unsure = line == "strings" and constraint.scalars.tests and not generous
        cuts: Cuts = () if unsure else getattr(constraint.scalars, line)
        return cuts
    arrays = constraint.arrays
    if arrays is None:
        return ()
    if generous:  # an array of one string is accepted only if each set that it must meet holds the string
        return next((some.strings for some in arrays.some), ("",))
    if arrays.none or len(arrays.some) > 1:
        return ()
    return next((() if some.tests else some.strings for some in arrays.some), ("",))


def _outside(distinct: list[tuple[Constraint, ...]], line: str, rank: Mapping[object, int]) -> Bools:
    """[i, j]: whether j, one interval or nothing, reaches out of i, which is likewise."""
    reach = np.empty((2, 2, len(distinct)), dtype=np.int64)  # generous or not, first and last cut
    for row, (part,) in enumerate(distinct):
        for way, generous in enumerate((True, False)):
            cuts = _cuts(part, line, generous)
            low = rank[cuts[0]] if cuts else len(rank)
            high = -1 if not cuts else rank[cuts[1]] if len(cuts) == 2 else len(rank)
            reach[way, :, row] = low, high
    (low_held, high_held), (low_asked, high_asked) = reach
    found: Bools = (low_asked < low_held[:, None]) | (high_asked > high_held[:, None])
    return found


def _inside(
    distinct: list[tuple[Constraint, ...]], line: str, rank: Mapping[object, int], generous: bool
) -> npt.NDArray[np.float32]:
    """[each, interval]: 1 where an interval (from one point to the next) is inside."""
    inside = np.zeros((len(distinct), len(rank)), dtype=np.bool_)
    for row, parts in enumerate(distinct):
        for part in parts:
            cuts = _cuts(part, line, generous)
            if cuts:
                flips = np.zeros(len(rank), dtype=np.int8)
                flips[[rank[cut] for cut in cuts]] = 1
                inside[row] |= np.cumsum(flips) % 2 == 1
    step = max(1, -(-len(rank) // MOST_POINTS))
    return inside[:, ::step].astype(np.float32)


def _closed(covers: Bools) -> Bools:
    """What follows by covering twice or more. A union of boxes may be known to cover by steps only."""
    packed = np.packbits(covers, axis=1)
    for k in range(len(covers)):
        rows = np.flatnonzero(packed[:, k >> 3] & (128 >> (k & 7)))
        packed[rows] |= packed[k]
    return np.unpackbits(packed, axis=1, count=len(covers)).astype(np.bool_)


# --------------------------------------------------------------------------------------- what is kept


@dataclass(frozen=True, slots=True)
class _Items:
    """The distinct (filter, region) pairs of a channel.

    Attributes
    ----------
    held       bool[n, items]: what each broker serves to its own clients
    noted      for each broker with final notifications, bool[items] per host that it notifies
    asked      bool[items]: only asked about
    start, by  compressed rows: the items that stand for item i, which is dropped where one of them is
    """

    held: Bools
    noted: tuple[tuple[int, Bools], ...]
    asked: Bools
    start: Longs
    by: Longs

    @classmethod
    def of(
        cls, plan: Plan, channel: Channel, number: npt.NDArray[np.int64], covers: Bools
    ) -> "_Items | None":
        serves, hosts = channel.serves, plan.classes.broker
        alive = np.flatnonzero(~plan.classes.vacant[serves.classes])
        only = np.setdiff1d(asked_classes(channel), serves.classes).astype(np.int64)
        only = only[~plan.classes.vacant[only]]
        classes = np.append(serves.classes[alive], only).astype(np.int64)
        if not len(classes):
            return None
        region = np.append(serves.region[alive], np.full(len(only), -1)).astype(np.int64)
        pairs, item = np.unique(np.column_stack((number[classes], region)), axis=0, return_inverse=True)
        item = item.ravel()
        held = np.zeros((len(plan.overlay), len(pairs)), dtype=np.bool_)
        asked = np.zeros(len(pairs), dtype=np.bool_)
        asked[item[len(alive) :]] = True
        noted: dict[tuple[int, int], Bools] = {}
        at, host = serves.at[alive], hosts[serves.classes[alive]]
        own = at == host
        held[at[own], item[: len(alive)][own]] = True
        for e in np.flatnonzero(~own).tolist():
            key = (int(at[e]), int(host[e]))
            noted.setdefault(key, np.zeros(len(pairs), dtype=np.bool_))[item[e]] = True
        stands = covers[np.ix_(pairs[:, 0], pairs[:, 0])] & _region_covers(plan, pairs[:, 1])
        return cls(
            held, tuple((broker, row) for (broker, _), row in noted.items()), asked, *_standing(stands)
        )


def _count(channel: Channel, tree: Tree | None, items: _Items, total: Longs) -> None:
    """Add what the brokers keep for one channel."""
    brokers = len(total)
    between, admits = between_entries(channel, tree, brokers), admitting(channel, brokers)
    here = items.held.copy()
    for broker, row in items.noted:
        here[broker] |= row
    if channel.pruning is not Pruning.FILTER or tree is None:
        here[admits] = here.any(axis=0) | items.asked
        total += _left(here, items)
        return
    total += _left(items.held, items)
    for broker, row in items.noted:
        total[broker] += _left(row[None, :], items)[0]
    known = here.sum(axis=0, dtype=np.int32) - here > 0  # served elsewhere, and not sent on from here
    if between.any():
        hung = tree.rerooted(_root(toward_entry(tree, between, brokers)))
        below, beyond = _behind(hung, here)
        known[hung.order] = beyond
        np.add.at(total, hung.parent[hung.order[1:]], _left(below[1:], items))
        inside = between[hung.order[1:]]
        total[hung.order[1:][inside]] += _left(beyond[1:][inside], items)
        known[between] = False
    total[admits] += _left(known[admits] | items.asked, items)


def _root(parent: npt.NDArray[np.int32]) -> int:
    return int(np.flatnonzero(parent == -1)[0])


def _behind(tree: Tree, here: Bools) -> tuple[Bools, Bools]:
    """[place in preorder, item]: what is served at or below a broker, and what is served elsewhere."""
    order = tree.order
    place = np.full(len(tree.parent), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    size = np.ones(len(order), dtype=np.int64)
    for at in range(len(order) - 1, 0, -1):
        size[place[tree.parent[order[at]]]] += size[at]
    sums = np.zeros((len(order) + 1, here.shape[1]), dtype=np.int32)
    np.cumsum(here[order], axis=0, out=sums[1:])
    ends = np.arange(len(order)) + size
    below = sums[ends] - sums[:-1]
    return below > 0, sums[-1] - below > 0


def _left(sets: Bools, items: _Items) -> Longs:
    """How many items of each row of `sets` no other item of the row stands for. Bits run over rows."""
    rows = np.packbits(sets.T, axis=1)  # [item, rows / 8]
    kept = rows.copy()
    some = np.flatnonzero(np.diff(items.start))
    room = max(1, CHUNK_BYTES // max(1, rows.shape[1]))
    first = 0
    while first < len(some):
        last = max(first + 1, int(np.searchsorted(items.start[some], items.start[some[first]] + room)))
        part = some[first:last]
        low, high = int(items.start[part[0]]), int(items.start[part[-1] + 1])
        kept[part] &= ~np.bitwise_or.reduceat(rows[items.by[low:high]], items.start[part] - low, axis=0)
        first = last
    left: Longs = np.unpackbits(kept, axis=1, count=len(sets)).sum(axis=0, dtype=np.int64)
    return left


def _standing(covers: Bools) -> tuple[Longs, Longs]:
    """Compressed rows: for each item those that stand for it; of two that cover each other the lower."""
    lower = np.tri(len(covers), k=-1, dtype=np.bool_).T  # [i, j]: i before j
    stands = covers & (~covers.T | lower)
    np.fill_diagonal(stands, False)
    j, i = np.nonzero(stands.T)
    return np.searchsorted(j, np.arange(len(covers) + 1)).astype(np.int64), i.astype(np.int64)


def _region_covers(plan: Plan, regions: npt.NDArray[np.int64]) -> Bools:
    """[i, j]: whether region i holds wherever region j does."""
    known, which = np.unique(regions, return_inverse=True)
    cells = [None if r < 0 else frozenset(plan.regions[r].tolist()) for r in known.tolist()]
    table = np.array([[a is None or (b is not None and a >= b) for b in cells] for a in cells])
    return table[np.ix_(which.ravel(), which.ravel())]


def _numbered(plan: Plan) -> tuple[npt.NDArray[np.int64], list[Filter]]:
    """Classes with equal filters share a number; vacant classes have -1."""
    numbers: dict[bytes, int] = {}
    distinct: list[Filter] = []
    number = np.full(len(plan.classes), -1, dtype=np.int64)
    for k in np.flatnonzero(~plan.classes.vacant).tolist():
        filter_ = plan.classes.filters[k]
        number[k] = numbers.setdefault(filter_.key, len(numbers))
        if number[k] == len(distinct):
            distinct.append(filter_)
    return number, distinct
