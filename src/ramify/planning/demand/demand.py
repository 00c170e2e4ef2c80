"""Demand: what is published, as far as routing can tell events apart.

Owns the distinct (publisher, cell, matched classes) patterns with counts and bytes, as arrays that planners
and the pricer work on. How events become patterns is in `tally`, how patterns are stored in `pattern_rows`.
Events that match nothing keep a pattern, since flooding pays for them too.

Counts are exact. Where events decay with age (`decay`), what they have decayed to is kept beside them:
planners go by it, prices do not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.network.trees.terminals import TerminalSets
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.decay import Decay
from ramify.planning.demand.pattern_arrays import PatternArrays
from ramify.planning.demand.pattern_kernels import (
    first_of_equals,
    gather_lists,
    rough_order,
    settle_ties,
    sort_patterns,
)

__all__ = ["MAX_TAGS", "NO_CELL", "Demand"]

MAX_TAGS = 64
"""How many tag filters a demand can keep apart: one bit each."""

NO_CELL = -1
"""The cell of events where no grid is asked for."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Distinct patterns, one row each, in a stable order.

    Attributes
    ----------
    publisher       int32[p], the broker that the event enters at
    client          int32[p], the publishing client (an index of `clients`), -1 unless it was asked for
    cell            int32[p], the cell of the grid, -1 without a grid
    start, classes  compressed rows: pattern i matches `classes[start[i]:start[i + 1]]`, ascending
    count, size     int64[p]: events, and the sum of their sizes in bytes
    tags            uint64[p]: bit t is set when the events satisfy tag filter t (residency rules)
    seconds         the time that the events span; 0 when it is not known
    factor          how many published events each counted one stands for (1 / sampling probability)
    tag_filters     how many tag filters the events were held against; bits from here on mean nothing
    unknown         events that are not in the patterns because no broker is known for their publisher
    recent          float64[2, p]: events and bytes decayed with age, to plan by; None: all count alike
    """

    publisher: npt.NDArray[np.int32]
    client: npt.NDArray[np.int32]
    cell: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int32]
    count: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    tags: npt.NDArray[np.uint64]
    clients: tuple[str, ...] = ()
    seconds: float = 0.0
    factor: float = 1.0
    tag_filters: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    recent: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """How many patterns there are."""
        return len(self.publisher)

    def __getitem__(self, i: int) -> npt.NDArray[np.int32]:
        """The classes that pattern i matches."""
        return self.classes[self.start[i] : self.start[i + 1]]

    @property
    def events(self) -> int:
        """How many events were counted."""
        return int(self.count.sum())

    @property
    def size_bytes(self) -> int:
        """The payload of all of them."""
        return int(self.size.sum())

    @property
    def weight(self) -> npt.NDArray[np.float64]:
        """float64[p]: payload bytes and one per event, whatever their age.

        The one stands for what every message costs whatever it carries, so that empty events count too.
        """
        return self.size.astype(np.float64) + self.count

    def destinations(self, classes: Classes) -> TerminalSets:
        """Per pattern the publisher's broker and the hosts of its classes, weighted by payload bytes."""
        start, node = _hosts(self, classes.broker)
        return TerminalSets(start, node, self.size.astype(np.float64))

    @classmethod
    def of(
        cls,
        patterns: Iterable[tuple[int, Iterable[int], int, int]],
        *,
        seconds: float = 0.0,
        cells: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
    ) -> "Demand":
        """From (publisher, classes, count, bytes) rows; equal patterns are added up.

        `weights` is what an event of each row has decayed to.
        """
        sums: _Sums = {}
        for i, (publisher, classes, count, size) in enumerate(patterns):
            cell = NO_CELL if cells is None else cells[i]
            counts: _Counts = (count, size)
            if weights is not None:
                counts = (count, size, weights[i] * count, weights[i] * size)
            _add(sums, (publisher, -1, cell, 0, tuple(sorted(set(classes)))), counts)
        return _assembled(sums, (), seconds, recent=weights is not None)

    @classmethod
    def of_rows(
        cls,
        rows: pa.Table | PatternArrays,
        *,
        seconds: float = 0.0,
        factor: float = 1.0,
        tag_filters: int = 0,
        unknown: Mapping[str, int] | None = None,
        decay: Decay | None = None,
        recent: npt.NDArray[np.float64] | None = None,
    ) -> "Demand":
        """From pattern rows (`PATTERNS`) or arrays, in any order; equal patterns are added up.

        Windows and panes are not told apart, but that events decay by their panes where `decay` is given.
        `recent` is what rows have decayed to already. No Python per row; O(rows log rows).
        """
        arrays = PatternArrays.of_table(rows) if isinstance(rows, pa.Table) else rows
        client, clients = _ranked(arrays.client, arrays.clients)
        tags = arrays.tags.view(np.uint64)
        publisher, cell = (
            column.astype(np.int32, copy=False) for column in (arrays.publisher, arrays.cell)
        )
        start, classes = arrays.start, arrays.classes.astype(np.int32, copy=False)
        # flipping the first bit makes the signed order that of the unsigned bits
        bits = (tags ^ np.uint64(1 << 63)).view(np.int64)
        # a column whose numbers are all the same tells nothing apart
        varying = [column for column in (client, cell, bits) if len(column) and (column != column[0]).any()]
        keys = np.stack((publisher, *varying), axis=1, dtype=np.int64)
        order, first = _in_order(keys, start, classes)
        every = cls(
            publisher=publisher,
            client=client,
            cell=cell,
            start=start,
            classes=classes,
            count=arrays.count,
            size=arrays.size,
            tags=tags,
            clients=clients,
            seconds=seconds,
            factor=factor,
            tag_filters=tag_filters,
            unknown=dict(unknown or {}),
            recent=recent,
        )
        if len(first) == len(order):  # no two are equal
            made = every.take(order)
        else:
            count, size = (np.add.reduceat(column[order], first) for column in (every.count, every.size))
            late = None if recent is None else np.add.reduceat(recent[:, order], first, axis=1)
            made = replace(every.take(order[first]), count=count, size=size, recent=late)
        return made if decay is None else replace(made, recent=_decayed(arrays, order, first, decay))

    def scaled(self, factor: float) -> "Demand":
        """The same patterns, each event standing for `factor` times as many."""
        return replace(self, factor=self.factor * factor)

    def take(self, rows: npt.ArrayLike) -> "Demand":
        """Some of the patterns, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)
        length = np.diff(self.start)[chosen]
        start = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
        classes = np.empty(int(start[-1]), dtype=np.int32)
        gather_lists(self.start, self.classes, chosen, start, classes)
        return replace(
            self,
            publisher=self.publisher[chosen],
            client=self.client[chosen],
            cell=self.cell[chosen],
            start=start,
            classes=classes,
            count=self.count[chosen],
            size=self.size[chosen],
            tags=self.tags[chosen],
            recent=None if self.recent is None else self.recent[:, chosen],
        )

    def with_class(self, k: int, matched: npt.NDArray[np.bool_]) -> "Demand":
        """The same patterns, those in `matched` also matching class k."""
        return self._mapped(lambda i, classes: {*classes, k} if matched[i] else classes)

    def without_class(self, k: int) -> "Demand":
        """The same events with class k no longer matched; patterns that become equal are added up."""
        return self._mapped(lambda _, classes: classes - {k})

    def _mapped(self, change: Callable[[int, set[int]], set[int]]) -> "Demand":
        sums: _Sums = {}
        for i in range(len(self)):
            classes = tuple(sorted(change(i, set(self[i].tolist()))))
            place = (int(self.publisher[i]), int(self.client[i]), int(self.cell[i]), int(self.tags[i]))
            counts: _Counts = (int(self.count[i]), int(self.size[i]))
            if self.recent is not None:
                counts = (*counts, *self.recent[:, i].tolist())
            _add(sums, (*place, classes), counts)
        made = _assembled(sums, self.clients, self.seconds, recent=self.recent is not None)
        return replace(made, factor=self.factor, unknown=self.unknown, tag_filters=self.tag_filters)


_Counts = tuple[Any, ...]
"""Events and bytes, then the same decayed where that is kept."""
_Sums = dict["_Key", _Counts]
_Key = tuple[int, int, int, int, tuple[int, ...]]


def _add(sums: _Sums, key: "_Key", counts: _Counts) -> None:
    known = sums.get(key)
    sums[key] = counts if known is None else tuple(map(add, known, counts))


def _assembled(sums: _Sums, clients: tuple[str, ...], seconds: float, *, recent: bool) -> Demand:
    keys = list(sums)
    both = np.array([counts[:2] for counts in sums.values()], dtype=np.int64).reshape(-1, 2)
    late = np.array([counts[2:] for counts in sums.values()], dtype=np.float64) if recent else None
    return Demand(
        publisher=np.array([key[0] for key in keys], dtype=np.int32),
        client=np.array([key[1] for key in keys], dtype=np.int32),
        cell=np.array([key[2] for key in keys], dtype=np.int32),
        start=np.cumsum([0, *(len(key[4]) for key in keys)], dtype=np.int64),
        classes=np.array([k for key in keys for k in key[4]], dtype=np.int32),
        count=both[:, 0].copy(),
        size=both[:, 1].copy(),
        tags=np.array([key[3] for key in keys], dtype=np.uint64),
        clients=clients,
        seconds=seconds,
        recent=None if late is None else late.reshape(-1, 2).T.copy(),
    )


def _decayed(
    arrays: PatternArrays, order: npt.NDArray[np.int64], first: npt.NDArray[np.int64], decay: Decay
) -> npt.NDArray[np.float64]:
    """float64[2, p]: events and bytes of each pattern, weighed pane by pane in the order of time.

    `order` and `first` are those of `_in_order`. Sums of a pane are of integers, so that it makes no
    difference how its events came.
    """
    found = np.zeros((2, len(first)))
    if not len(order):
        return found
    pattern = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    pane = arrays.pane[order]
    place = np.lexsort((pane, pattern))
    pattern, pane, row = pattern[place], pane[place], order[place]
    begins = np.append(True, (pattern[1:] != pattern[:-1]) | (pane[1:] != pane[:-1]))
    at = np.flatnonzero(begins)
    weight = decay.weights(pane[at])
    for k, column in enumerate((arrays.count, arrays.size)):
        sums = np.add.reduceat(column[row].astype(np.int64, copy=False), at)
        found[k] = np.bincount(pattern[at], weights=sums * weight, minlength=len(first))
    return found


def _in_order(
    keys: npt.NDArray[np.int64], start: npt.NDArray[np.int64], classes: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows in the order of patterns, and where in it each distinct pattern begins."""
    marks = np.empty(len(keys), dtype=np.uint8)
    rough = np.empty(len(keys), dtype=np.int64)
    if (
        len(keys)
        and keys.shape[1] == 1
        and rough_order(np.ascontiguousarray(keys[:, 0]), start, classes, rough)
    ):
        # as is usual, only brokers and classes tell patterns apart: most are in order by the first two
        order = np.argsort(rough, kind="stable").astype(np.int64, copy=False)
        settle_ties(rough, keys, start, classes, order, marks)
    else:
        order = np.arange(len(keys), dtype=np.int64)
        order = sort_patterns(keys, start, classes, order, np.empty_like(order))
        first_of_equals(keys, start, classes, order, marks)
    return order, np.flatnonzero(marks)


def _ranked(
    codes: npt.NDArray[Any], names: tuple[str, ...]
) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """The codes of names, or -1, for the names that occur, sorted; and those."""
    used = np.unique(codes[codes >= 0]).tolist() if codes.max(initial=-1) >= 0 else []
    ordered = sorted(used, key=lambda k: names[k].encode())
    rank = np.full(len(names) + 1, -1, dtype=np.int32)
    rank[ordered] = np.arange(len(ordered))
    return rank[codes], tuple(names[k] for k in ordered)


def _hosts(
    demand: Demand, broker: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Compressed rows of (publisher, then the other hosts ascending) per pattern. Vectorised."""
    rows = len(demand)
    pattern = np.repeat(np.arange(rows), np.diff(demand.start))
    host = broker[demand.classes].astype(np.int64)
    away = host != demand.publisher[pattern]
    span = int(broker.max(initial=0)) + 1
    pairs = np.unique(pattern[away] * span + host[away])  # sorted by pattern, then host
    length = np.bincount(pairs // span, minlength=rows) + 1
    start = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
    node = np.empty(int(start[-1]), dtype=np.int32)
    first = np.zeros(len(node), dtype=np.bool_)
    first[start[:-1]] = True
    node[first] = demand.publisher
    node[~first] = pairs % span
    return start, node
