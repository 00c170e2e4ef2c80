"""Counting events into distinct patterns, a batch at a time, with no Python per event.

Owns what tells events apart (`TallySettings`) and the count itself (`PatternTally`). A task of the pipeline
and a loop in one process count with the same code; `Tally` puts a matcher before it for the latter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.events.events import SIZE_BYTES
from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Grid
from ramify.content.matching.matcher import Matcher, Matches
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.decay import NO_PANE, checked_half_life, pane_for
from ramify.planning.demand.demand import MAX_TAGS, NO_CELL, Demand
from ramify.planning.demand.pattern_kernels import (
    COLUMNS,
    PUBLISHER,
    PatternTable,
    place_patterns,
    rough_order,
    tally_rows,
)
from ramify.planning.demand.patterns import Patterns, gather, narrowest
from ramify.planning.demand.splits import WHOLE, Split
from ramify.planning.demand.windows import Span, Windows

__all__ = ["PatternTally", "Tally", "TallySettings", "brokers_by_name", "check_tags", "tally"]

_FIRST_ROOM = 1024


@dataclass(frozen=True)
class TallySettings:
    """What tells events apart. Small and picklable: a task needs nothing else to count.

    Attributes
    ----------
    classes     how many there are; matched ids from here on are tags
    vacant      bool[classes]: those without a member, which no event counts as matching
    brokers     publisher -> index of its broker; other publishers are unknown
    grid        the content space, where cells are asked for
    by_client   whether publishing clients are told apart, or only their brokers
    split       windows and sampling
    pane_us     the width of a pane of time in microseconds; 0 when time is not told apart
    half_life_s that events decay with (`decay`); None when all count alike. Panes are then as wide as that
                needs, unless their width is given
    """

    classes: int
    vacant: npt.NDArray[np.bool_]
    brokers: Mapping[str, int]
    grid: Grid | None = None
    by_client: bool = False
    split: Split = WHOLE
    pane_us: int = 0
    half_life_s: float | None = None

    def __post_init__(self) -> None:
        half_life = checked_half_life(self.half_life_s)
        object.__setattr__(self, "half_life_s", half_life)
        if half_life is not None and not self.pane_us:
            object.__setattr__(self, "pane_us", pane_for(half_life))

    @classmethod
    def of(
        cls, classes: Classes, overlay: Overlay, attachments: Mapping[str, str], **more: Any
    ) -> "TallySettings":
        """Count for some classes on an overlay; `more` are the other attributes."""
        return cls(len(classes), classes.vacant, brokers_by_name(overlay, attachments), **more)


class PatternTally:
    """Counts batches with their matches into distinct patterns. Memory grows with patterns, not events.

    An event whose publisher has no known broker is left out and counted in `unknown`, per window and name.
    """

    def __init__(self, counting: TallySettings) -> None:
        self.counting = counting
        # events that are in no pattern, by (window, publisher)
        self.unknown: dict[tuple[int, str | None], int] = {}
        # what was counted in each window
        self.spans: dict[int, Span] = {}
        # events that were not in the sample
        self.thinned = 0
        self._vacant = np.ascontiguousarray(counting.vacant, dtype=np.uint8)
        self._brokers: dict[str | None, int] = {}
        self._clients: dict[str | None, int] = {}
        # events in the patterns
        self.events = 0
        self._patterns = 0
        self._table = PatternTable(
            slots=np.full(2 * _FIRST_ROOM, -1, dtype=np.int64),
            hashes=np.empty(0, dtype=np.uint64),
            keys=np.empty((0, COLUMNS), dtype=np.int64),
            start=np.zeros(1, dtype=np.int64),
            pool=np.empty(0, dtype=np.int32),
            events=np.empty(0, dtype=np.int64),
            sizes=np.empty(0, dtype=np.int64),
        )

    def __len__(self) -> int:
        """How many patterns there are."""
        return self._patterns

    @property
    def class_entries(self) -> int:
        """How many class ids the patterns hold together."""
        return int(self._table.start[self._patterns])

    def add(
        self, batch: pa.RecordBatch, matches: Matches, arrived: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Count a batch. `matches` has ids of classes, then of tags.

        `arrived` are the times that panes go by (microseconds) where they are not the events' own.
        """
        kept = self.counting.split.kept(batch.column("id"))
        if kept is not None:
            self.thinned += int((~kept).sum())
            batch, matches = _only(batch, matches, kept)
            arrived = None if arrived is None else arrived[kept]
        if not batch.num_rows:
            return
        rows = self._rows(batch, arrived)
        self.events += int(np.count_nonzero(rows[:, PUBLISHER] >= 0))
        self._reserve(batch.num_rows, len(matches.ids))
        self._patterns = tally_rows(
            rows,
            matches.ends,
            matches.ids,
            np.asarray(batch.column(SIZE_BYTES)),
            self.counting.classes,
            self._vacant,
            self._patterns,
            self._table,
        )

    def windows(self, tag_filters: int = 0) -> Windows:
        """The demands of what was counted and not drained; patterns in sorted order."""
        counting = self.counting
        return Windows.of_patterns(
            self.patterns(),
            counting.split,
            self.spans,
            self.unknown,
            tag_filters,
            half_life_s=counting.half_life_s,
            pane_us=counting.pane_us,
        )

    def drain(self) -> Patterns:
        """The patterns; the tally starts afresh, `unknown` and `spans` stay."""
        drained = self.patterns()
        # the room stays: the next patterns want as much
        self._patterns = self.events = 0
        self._table.slots.fill(-1)
        return drained

    def patterns(self) -> Patterns:
        """The patterns, nearly in the order of `Demand.of_patterns`.

        There it has runs to merge instead of a sort that jumps about in memory. Tasks do this side by side.
        """
        order, table = self._roughly(), self._table
        # narrow from the start: less memory to write, and to send
        kind = narrowest(int(table.pool[: self.class_entries].max(initial=0)))
        start, classes = gather(table.start[: self._patterns + 1], table.pool, order, kind)
        keys = table.keys[: self._patterns]
        split, pane, publisher, client, cell, tags = (keys[:, k][order] for k in range(COLUMNS))
        count, size = table.events[order], table.sizes[order]
        names = tuple(name for name in self._clients if name is not None)
        return Patterns(split, pane, publisher, client, cell, tags, start, classes, count, size, names)

    def _roughly(self) -> npt.NDArray[np.int64]:
        rough = np.empty(self._patterns, dtype=np.int64)
        brokers = np.ascontiguousarray(self._table.keys[: self._patterns, PUBLISHER])
        if not rough_order(brokers, self._table.start, self._table.pool, rough):
            return np.arange(self._patterns, dtype=np.int64)
        return np.argsort(rough).astype(np.int64, copy=False)

    def _rows(self, batch: pa.RecordBatch, arrived: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
        """The columns that tell events apart; tags are filled in later."""
        counting = self.counting
        rows = np.empty((batch.num_rows, COLUMNS), dtype=np.int64)
        windows = counting.split.windows(batch.column("id"))
        times = _microseconds(batch)
        brokers, clients = self._places(batch.column("publisher"), windows)
        rows[:, 0] = windows
        rows[:, 1] = _panes(times if arrived is None else arrived, counting.pane_us, batch.num_rows)
        rows[:, 2] = brokers
        rows[:, 3] = clients if counting.by_client else -1
        rows[:, 4] = NO_CELL if counting.grid is None else counting.grid.locate(batch)
        rows[:, 5] = 0
        self._stretch(windows, brokers >= 0, times)
        return rows

    def _places(
        self, publishers: Any, windows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Broker and client of every row; a Python step per distinct name of the batch only."""
        coded = publishers.dictionary_encode()
        names = [*coded.dictionary.to_pylist(), None]
        codes = np.asarray(coded.indices.fill_null(len(names) - 1), dtype=np.int64)
        broker = np.array([self.counting.brokers.get(name, -1) for name in names], dtype=np.int64)
        client = np.array(
            [self._clients.setdefault(name, len(self._clients)) for name in names[:-1]] + [-1]
        )
        lost = broker[codes] < 0
        if lost.any():
            pairs, counts = np.unique(np.stack((windows[lost], codes[lost])), axis=1, return_counts=True)
            for (window, code), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
                key = window, names[code]
                self.unknown[key] = self.unknown.get(key, 0) + count
        return broker[codes], client[codes]

    def _stretch(
        self,
        windows: npt.NDArray[np.int64],
        known: npt.NDArray[np.bool_],
        times: npt.NDArray[np.int64] | None,
    ) -> None:
        for window in np.unique(windows).tolist():
            mine = (windows == window) & known
            span = Span(int(mine.sum()))
            if times is not None and (timed := times[mine & (times != NO_PANE)]).size:
                span.first_us, span.last_us = int(timed.min()), int(timed.max())
            self.spans.setdefault(window, Span()).add(span)

    def _reserve(self, rows: int, ids: int) -> None:
        """Room for one more pattern per row and one more class per id; a table at most half full."""
        wanted, table = self._patterns + rows, self._table
        if wanted > len(table.hashes):
            room = max(wanted, len(table.hashes) * 3 // 2, _FIRST_ROOM)
            columns = {name: getattr(table, name) for name in ("hashes", "keys", "events", "sizes")}
            wider = {name: _grown(column, room) for name, column in columns.items()}
            table = table._replace(start=_grown(table.start, room + 1), **wider)
        if (held := self.class_entries) + ids > len(table.pool):
            table = table._replace(pool=_grown(table.pool, max(held + ids, len(table.pool) * 3 // 2)))
        if 2 * wanted > len(table.slots):
            slots = np.full(1 << int(2 * wanted).bit_length(), -1, dtype=np.int64)
            place_patterns(table.hashes, self._patterns, slots)
            table = table._replace(slots=slots)
        self._table = table


class Tally:
    """Matches batches and counts them into patterns: the way from events to demands in one process.

    A publisher is looked up in `attachments`; where it is not there it may name a broker itself; else the
    event is left out and counted as unknown. The pipeline does the same on many machines.
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
        split: Split = WHOLE,
        half_life_s: float | None = None,
    ) -> None:
        check_tags(tags)
        self._matcher = Matcher([*classes.filters, *tags])
        self._tag_filters = len(tags)
        how = {"grid": grid, "by_client": by_client, "split": split, "half_life_s": half_life_s}
        counting = TallySettings.of(classes, overlay, attachments, **how)
        self._counted = PatternTally(counting)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        self._counted.add(batch, self._matcher.match(batch))

    def windows(self) -> Windows:
        """What was counted so far; patterns in sorted order."""
        return self._counted.windows(self._tag_filters)


def tally(
    batches: Iterable[pa.RecordBatch],
    classes: Classes,
    overlay: Overlay,
    attachments: Mapping[str, str],
    *,
    grid: Grid | None = None,
    tags: Sequence[Filter] = (),
    by_client: bool = False,
    half_life_s: float | None = None,
) -> Demand:
    """The demand of a stream of batches, as one."""
    counted = Tally(
        classes, overlay, attachments, grid=grid, tags=tags, by_client=by_client, half_life_s=half_life_s
    )
    for batch in batches:
        counted.add(batch)
    return counted.windows().whole


def check_tags(tags: Sequence[Filter]) -> None:
    """Raise `InputError` for more tags than a pattern has bits."""
    if len(tags) > MAX_TAGS:
        raise InputError(f"{len(tags)} residency rules; a demand can keep {MAX_TAGS} apart. Merge some.")


def brokers_by_name(overlay: Overlay, attachments: Mapping[str, str]) -> dict[str, int]:
    """Publisher -> broker: by attachment, else a broker's own name. Unknown brokers are left out."""
    attached = {client: overlay.index[at] for client, at in attachments.items() if at in overlay.index}
    gone = attachments.keys() - attached.keys()
    own = {name: index for name, index in overlay.index.items() if name not in gone}
    return own | attached


def _only(
    batch: pa.RecordBatch, matches: Matches, kept: npt.NDArray[np.bool_]
) -> tuple[pa.RecordBatch, Matches]:
    lengths = np.diff(matches.ends)
    ends = np.concatenate(([0], np.cumsum(lengths[kept]))).astype(np.int64)
    ids = matches.ids[matches.ends[0] : matches.ends[-1]][np.repeat(kept, lengths)]
    return batch.filter(pa.array(kept)), Matches(ends, ids)


def _microseconds(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """The time of every row, `NO_PANE` where it has none."""
    index = batch.schema.get_field_index("time")
    if index < 0:
        return None
    column: Any = batch.column(index)
    ticks: Any = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    return np.asarray(ticks.fill_null(NO_PANE), dtype=np.int64)


def _panes(times: npt.NDArray[np.int64] | None, pane_us: int, rows: int) -> npt.NDArray[np.int64]:
    if times is None or not pane_us:
        return np.full(rows, NO_PANE, dtype=np.int64)
    return np.where(times == NO_PANE, NO_PANE, times // pane_us * pane_us)


def _grown(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    bigger = np.empty((room, *array.shape[1:]), dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger
