"""Demand: what is published, as far as routing can tell events apart.

Owns the distinct (publisher, cell, matched classes) patterns with counts and bytes, and how batches of
events are tallied into them, with no row per event kept. Events that match nothing keep a pattern, since
flooding pays for them too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events import SIZE_BYTES
from ramify.content.filters import Filter
from ramify.content.matcher import Matcher
from ramify.content.space import Grid
from ramify.errors import InputError
from ramify.network.overlay import Overlay
from ramify.network.terminals import TerminalSets
from ramify.planning.classes import Classes

__all__ = ["MAX_TAGS", "Demand", "Tally", "split_rows", "tally"]

MAX_TAGS = 64
"""How many tag filters a demand can keep apart: one bit each."""

NO_CELL = -1


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
    ) -> "Demand":
        """From (publisher, classes, count, bytes) rows; equal patterns are added up."""
        sums: _Sums = {}
        for i, (publisher, classes, count, size) in enumerate(patterns):
            cell = NO_CELL if cells is None else cells[i]
            _add(sums, (publisher, -1, cell, 0, tuple(sorted(set(classes)))), count, size)
        return _assembled(sums, (), seconds)

    def scaled(self, factor: float) -> "Demand":
        """The same patterns, each event standing for `factor` times as many."""
        return replace(self, factor=self.factor * factor)

    def take(self, rows: npt.ArrayLike) -> "Demand":
        """Some of the patterns, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)
        length = np.diff(self.start)[chosen]
        start = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
        at = np.arange(int(start[-1])) + np.repeat(self.start[chosen] - start[:-1], length)
        return replace(
            self,
            publisher=self.publisher[chosen],
            client=self.client[chosen],
            cell=self.cell[chosen],
            start=start,
            classes=self.classes[at],
            count=self.count[chosen],
            size=self.size[chosen],
            tags=self.tags[chosen],
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
            _add(sums, (*place, classes), int(self.count[i]), int(self.size[i]))
        made = _assembled(sums, self.clients, self.seconds)
        return replace(made, factor=self.factor, unknown=self.unknown, tag_filters=self.tag_filters)


_Sums = dict["_Key", list[int]]
_Key = tuple[int, int, int, int, tuple[int, ...]]


class Tally:
    """Counts batches of events into patterns, a batch at a time.

    Memory grows with the distinct patterns, not with events. A publisher is looked up in `attachments`;
    where it is not there it may name a broker itself; else the event is left out and counted as unknown.
    """

    def __init__(
        self,
        classes: Classes,
        overlay: Overlay,
        attachments: Mapping[str, str],
        *,
        grid: Grid | None = None,
        tags: Sequence[Filter] = (),
        by_client: bool = False,
        splits: int = 1,
    ) -> None:
        if len(tags) > MAX_TAGS:
            raise InputError(
                f"{len(tags)} residency rules; a demand can keep {MAX_TAGS} apart. Merge some."
            )
        self._matcher = Matcher([*classes.filters, *tags])
        self._classes = len(classes)
        self._tag_filters = len(tags)
        self._vacant = classes.vacant
        self._overlay = overlay
        self._attachments = attachments
        self._grid = grid
        self._by_client = by_client
        self._clients: dict[str, int] = {}
        self._sums: list[dict[_Key, list[int]]] = [{} for _ in range(splits)]
        self._times: list[list[int]] = [[] for _ in range(splits)]
        self._unknown: list[dict[str, int]] = [{} for _ in range(splits)]
        self._brokers: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch, split: npt.NDArray[np.int64] | None = None) -> None:
        """Count a batch; `split` says which demand each row belongs to."""
        found = self._matcher.match(batch)
        cells = np.full(batch.num_rows, NO_CELL) if self._grid is None else self._grid.locate(batch)
        names: list[Any] = batch.column("publisher").to_pylist()
        sizes = np.asarray(batch.column(SIZE_BYTES)).tolist()
        where = [0] * batch.num_rows if split is None else split.tolist()
        ends, ids = found.ends.tolist(), found.ids.tolist()
        for row, name in enumerate(names):
            broker = self._broker(name)
            if broker < 0:
                self._unknown[where[row]][name] = self._unknown[where[row]].get(name, 0) + 1
                continue
            classes, tags = self._parted(ids[ends[row] : ends[row + 1]])
            client = self._clients.setdefault(name, len(self._clients)) if self._by_client else -1
            _add(self._sums[where[row]], (broker, client, int(cells[row]), tags, classes), 1, sizes[row])
        self._add_times(batch, split)

    def demands(self) -> tuple[Demand, ...]:
        """What was counted so far, one demand per split; patterns in sorted order."""
        parts = zip(self._sums, self._times, self._unknown, strict=True)
        return tuple(self._demand(*part) for part in parts)

    def together(self) -> Demand:
        """What was counted so far in all splits, as one demand."""
        sums: _Sums = {}
        unknown: dict[str, int] = {}
        for part in self._sums:
            for key, (count, size) in part.items():
                _add(sums, key, count, size)
        for names in self._unknown:
            for name, count in names.items():
                unknown[name] = unknown.get(name, 0) + count
        return self._demand(sums, [time for times in self._times for time in times], unknown)

    def _demand(self, sums: _Sums, times: list[int], unknown: dict[str, int]) -> Demand:
        seconds = (max(times) - min(times)) / 1e6 if times else 0.0
        rows = {key: sums[key] for key in sorted(sums)}
        made = _assembled(rows, tuple(self._clients), seconds)
        return replace(made, unknown=dict(unknown), tag_filters=self._tag_filters)

    def _broker(self, name: str) -> int:
        if name not in self._brokers:
            at = self._attachments.get(name, name)
            self._brokers[name] = self._overlay.index.get(at, -1)
        return self._brokers[name]

    def _parted(self, ids: list[int]) -> tuple[tuple[int, ...], int]:
        """Classes and tag bits of one event's matches (ids ascend)."""
        tags = 0
        while ids and ids[-1] >= self._classes:
            tags |= 1 << (ids.pop() - self._classes)
        return tuple(k for k in ids if not self._vacant[k]), tags

    def _add_times(self, batch: pa.RecordBatch, split: npt.NDArray[np.int64] | None) -> None:
        if "time" not in batch.schema.names or not batch.num_rows:
            return
        times = batch.column("time")
        for k, kept in enumerate(self._times):
            mine = times if split is None else times.filter(pa.array(split == k))
            ends: Any = pc.min_max(mine)
            kept += [_microseconds(ends[end]) for end in ("min", "max") if ends[end].is_valid]
            kept[:] = [min(kept), max(kept)] if kept else []


def tally(
    batches: Iterable[pa.RecordBatch],
    classes: Classes,
    overlay: Overlay,
    attachments: Mapping[str, str],
    *,
    grid: Grid | None = None,
    tags: Sequence[Filter] = (),
    by_client: bool = False,
) -> Demand:
    """The demand of a stream of batches, as one."""
    counted = Tally(classes, overlay, attachments, grid=grid, tags=tags, by_client=by_client)
    for batch in batches:
        counted.add(batch)
    return counted.demands()[0]


def split_rows(rows: int, shares: Sequence[float], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """For each row the split it falls in, at random with the given shares (they sum to 1)."""
    return np.searchsorted(np.cumsum(shares)[:-1], rng.random(rows), side="right").astype(np.int64)


def _add(sums: _Sums, key: "_Key", count: int, size: int) -> None:
    both = sums.setdefault(key, [0, 0])
    both[0] += count
    both[1] += size


def _assembled(sums: _Sums, clients: tuple[str, ...], seconds: float) -> Demand:
    keys = list(sums)
    both = np.array(list(sums.values()), dtype=np.int64).reshape(-1, 2)
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
    )


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


def _microseconds(value: Any) -> int:
    return int(value.cast(pa.timestamp("us", tz=value.type.tz)).value)
