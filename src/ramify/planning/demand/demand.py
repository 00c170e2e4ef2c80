"""Demand: what is published, as far as routing can tell events apart.

Owns the distinct (publisher, cell, matched classes) patterns with counts and bytes, as arrays that planners
and the pricer work on. How events become patterns is in `tally`, how patterns travel is in `patterns`.
Events that match nothing keep a pattern, since flooding pays for them too.

Counts are exact. Where events decay with age (`decay`), what they have decayed to is kept beside them:
planners go by it, prices do not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.network.trees.terminals import TerminalSets
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.decay import Decay
from ramify.planning.demand.pattern_kernels import (
    first_of_equals,
    rough_order,
    settle_ties,
    sort_patterns,
)
from ramify.planning.demand.patterns import Patterns, gather, hosts_away

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
        begin, away = hosts_away(self.publisher, self.start, classes.broker[self.classes])
        start = begin + np.arange(len(begin))
        node = np.insert(away, begin[:-1], self.publisher)
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

        Patterns come in the order of their first rows. `weights` is what an event of each has decayed to.
        """
        rows = list(patterns)
        lists = [sorted(set(row[1])) for row in rows]
        sums = np.array([row[2:] for row in rows], dtype=np.int64).reshape(-1, 2).T.copy()
        cell = np.full(len(rows), NO_CELL, np.int32) if cells is None else np.array(cells, np.int32)
        every = cls(
            publisher=np.array([row[0] for row in rows], dtype=np.int32),
            client=np.full(len(rows), -1, dtype=np.int32),
            cell=cell,
            start=np.array([0, *accumulate(map(len, lists))], dtype=np.int64),
            classes=np.array([k for ids in lists for k in ids], dtype=np.int32),
            count=sums[0],
            size=sums[1],
            tags=np.zeros(len(rows), dtype=np.uint64),
            seconds=seconds,
            recent=None if weights is None else np.multiply(sums, weights, dtype=np.float64),
        )
        return every._distinct()

    @classmethod
    def of_patterns(
        cls,
        patterns: Patterns,
        *,
        seconds: float = 0.0,
        factor: float = 1.0,
        tag_filters: int = 0,
        unknown: Mapping[str, int] | None = None,
        decay: Decay | None = None,
    ) -> "Demand":
        """From counted patterns in any order; equal ones are added up and all are put in order.

        Windows and panes are not told apart; with `decay`, events count by their panes. No Python
        per row; O(rows log rows).
        """
        client, clients = _ranked(patterns.client, patterns.clients)
        every = cls(
            publisher=patterns.publisher.astype(np.int32, copy=False),
            client=client,
            cell=patterns.cell.astype(np.int32, copy=False),
            start=patterns.start,
            classes=patterns.classes.astype(np.int32, copy=False),
            count=patterns.count,
            size=patterns.size,
            tags=patterns.tags.view(np.uint64),
            clients=clients,
            seconds=seconds,
            factor=factor,
            tag_filters=tag_filters,
            unknown=dict(unknown or {}),
        )
        order, first = _in_order(every)
        made = every._summed(order, first)
        return made if decay is None else replace(made, recent=_decayed(patterns, order, first, decay))

    def relabel(
        self,
        start: npt.NDArray[np.int64],
        classes: npt.NDArray[np.int32],
        publisher: npt.NDArray[np.int32] | None = None,
    ) -> "Demand":
        """The same events with other matched classes (compressed rows, ascending) and publishers.

        Patterns that become equal are added up; the others keep their order.
        """
        where = self.publisher if publisher is None else publisher
        return replace(self, publisher=where, start=start, classes=classes)._distinct()

    def _distinct(self) -> "Demand":
        """Equal patterns added up, in the order of their first rows."""
        if len(self) < 2:
            return self
        order, first = _in_order(self)
        if len(first) == len(order):
            return self
        return self._summed(order, first).take(np.argsort(order[first]))

    def _summed(self, order: npt.NDArray[np.int64], first: npt.NDArray[np.int64]) -> "Demand":
        """Equal patterns added up. `order` puts them together; `first` is where each one begins in it."""
        if len(first) == len(order):
            return self.take(order)
        count, size = (np.add.reduceat(column[order], first) for column in (self.count, self.size))
        late = None if self.recent is None else np.add.reduceat(self.recent[:, order], first, axis=1)
        return replace(self.take(order[first]), count=count, size=size, recent=late)

    def scaled(self, factor: float) -> "Demand":
        """The same patterns, each event standing for `factor` times as many."""
        return replace(self, factor=self.factor * factor)

    def take(self, rows: npt.ArrayLike) -> "Demand":
        """Some of the patterns, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)
        start, classes = gather(self.start, self.classes, chosen)
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
        # classes ascend: k goes behind the smaller ones, unless it is there
        smaller, known = (
            np.concatenate(([0], np.cumsum(is_so)))[self.start]
            for is_so in (self.classes < k, self.classes == k)
        )
        new = matched & (np.diff(known) == 0)
        classes = np.insert(self.classes, (self.start[:-1] + np.diff(smaller))[new], k)
        start = self.start + np.concatenate(([0], np.cumsum(new)))
        return self.relabel(start, classes)

    def without_class(self, *classes: int) -> "Demand":
        """The same events with these classes no longer matched; patterns that become equal are added up."""
        keep = np.isin(self.classes, classes, invert=True)
        if keep.all():
            return self
        before = np.concatenate(([0], np.cumsum(keep)))
        return self.relabel(before[self.start], self.classes[keep])


def _decayed(
    patterns: Patterns, order: npt.NDArray[np.int64], first: npt.NDArray[np.int64], decay: Decay
) -> npt.NDArray[np.float64]:
    """float64[2, p]: events and bytes of each pattern, weighed pane by pane in the order of time.

    `order` and `first` are those of `_in_order`. Sums of a pane are of integers, so that it makes no
    difference how its events came.
    """
    found = np.zeros((2, len(first)))
    if not len(order):
        return found
    pattern = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    pane = patterns.pane[order]
    place = np.lexsort((pane, pattern))
    pattern, pane, row = pattern[place], pane[place], order[place]
    begins = np.append(True, (pattern[1:] != pattern[:-1]) | (pane[1:] != pane[:-1]))
    at = np.flatnonzero(begins)
    weight = decay.weights(pane[at])
    for k, column in enumerate((patterns.count, patterns.size)):
        sums = np.add.reduceat(column[row].astype(np.int64, copy=False), at)
        found[k] = np.bincount(pattern[at], weights=sums * weight, minlength=len(first))
    return found


def _in_order(every: Demand) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows in the order of patterns, equal ones as they come, and where each distinct one begins."""
    start, classes = every.start, every.classes
    # flipping the first bit makes the signed order that of the unsigned bits
    bits = (every.tags ^ np.uint64(1 << 63)).view(np.int64)
    # a column whose numbers are all the same tells nothing apart
    columns = (every.client, every.cell, bits)
    varying = [column for column in columns if len(column) and (column != column[0]).any()]
    keys = np.stack((every.publisher, *varying), axis=1, dtype=np.int64)
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
