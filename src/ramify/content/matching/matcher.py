"""Match batches of events against many filters at once.

    matcher = Matcher(filters)          ids are 0, 1, 2, ... in order
    id = matcher.add(filter)            a free id, without a rebuild
    matcher.remove(id)                  the id may be given out again
    matches = matcher.match(batch)      matches[row] holds the sorted ids of one row

Idea: file every box of every filter in a hash table, under features that an event must have to match it
(equals this, starts with that, contains these letters, lies in this interval): those of one predicate, or
of two together, that events are expected to have least often. For a row, look its own features up and
evaluate the boxes found there exactly. So a row costs its look-ups and the boxes that share such features
with it, not the number of filters.

Guarantee: `match` gives exactly the filters for which `Filter.holds` is true. Cost: amortised
O(predicates) to add, O(boxes) to remove; see `benchmarks/matcher.py` for figures. Calls from several
threads are safe and take turns; `match(..., threads=n)` uses several threads inside.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramify.content.events.columns import Columns, bind_columns
from ramify.content.filters.filters import Box, Filter
from ramify.content.matching.access import choose_options
from ramify.content.matching.encoding import encode_box
from ramify.content.matching.index import IndexStore, Option
from ramify.content.matching.kernels import match_rows
from ramify.content.matching.program import Index
from ramify.content.matching.word_kernels import match_words
from ramify.errors import InputError

__all__ = ["FrozenMatcher", "Matcher", "Matches"]

# Rows per thread below which splitting a batch costs more than it saves.
_ROWS_PER_THREAD = 2048


@dataclass(frozen=True, slots=True)
class Matches:
    """Which filters each row matches, as compressed sparse rows; the ids of a row are sorted."""

    ends: NDArray[np.int64]
    ids: NDArray[np.int32]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        """The ids of one row."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.ids[self.ends[row] : self.ends[row + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))

    @property
    def rows(self) -> NDArray[np.int64]:
        """The row of each entry of `ids`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.ends))


@dataclass(frozen=True, slots=True)
class FrozenMatcher:
    """An index that no longer changes: what the kernels read, and nothing to add filters with.

    `filters` is one more than the largest id in use, `paths` the attributes that filters look at. Safe for
    threads, without a lock.
    """

    index: Index
    paths: tuple[str, ...]
    filters: int

    def match(self, batch: pa.RecordBatch, threads: int = 1) -> Matches:
        """As `Matcher.match`."""
        columns = bind_columns(batch, self.paths)
        return _match(self.index, columns, batch.num_rows, self.filters, threads)

    @property
    def nbytes(self) -> int:
        """The memory of the index in bytes."""
        # `bytes` is the same memory as `words`
        return sum(array.nbytes for array in self.index) - self.index.bytes.nbytes


class Matcher:
    """An index over many filters. See the module."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self._store = IndexStore()
        # ids of removed filters, to be given out again
        self._free_ids: list[int] = []
        self._index: Index | None = None
        self._lock = Lock()
        self.extend(filters)

    def __len__(self) -> int:
        """How many filters it holds now."""
        return self._store.filters - len(self._free_ids)

    def add(self, filter_: Filter) -> int:
        """Add one filter; returns its id."""
        return self.extend([filter_])[0]

    def extend(self, filters: Iterable[Filter]) -> list[int]:
        """Add filters; returns their ids. Many at once are filed better and faster than one by one."""
        with self._lock:
            return self._extend(filters)

    def extend_within(self, filters: Iterable[Filter], nbytes: int) -> bool:
        """Add filters unless the index (without spare room) would grow beyond `nbytes`; says whether.

        If not, the matcher is as before. Cost then: a `compact` more.
        """
        with self._lock:
            extent = self._store.extent()
            ids = self._extend(filters)
            if self._frozen().nbytes <= nbytes:
                return True
            for id_ in ids:
                self._store.remove(id_)
            self._store.sweep()
            self._store.cut_back(extent)
            self._free_ids += [id_ for id_ in reversed(ids) if id_ < self._store.filters]
            return False

    def remove(self, id_: int) -> None:
        """Take a filter out. Its boxes leave the index when they have become many."""
        with self._lock:
            if not 0 <= id_ < self._store.filters or not self._store.is_alive(id_):
                raise InputError(f"the matcher holds no filter {id_}")
            self._store.remove(id_)
            self._free_ids.append(id_)
            self._index = None

    def match(self, batch: pa.RecordBatch, threads: int = 1) -> Matches:
        """Match every row of a batch (see `ramify.content.events.events` for its columns)."""
        with self._lock:
            columns = bind_columns(batch, self._store.paths)
            if self._index is None:
                self._index = self._store.index()
            return _match(self._index, columns, batch.num_rows, self._store.filters, threads)

    def frozen(self) -> FrozenMatcher:
        """The index as it is now, without spare room. It shares arrays: valid until the next change."""
        with self._lock:
            return self._frozen()

    def compact(self) -> None:
        """Drop what removed filters left behind, now rather than when it has become half of the index."""
        with self._lock:
            self._store.sweep()
            self._index = None

    @property
    def nbytes(self) -> int:
        """The memory of the index in bytes, spare room included."""
        return self._store.nbytes

    def _frozen(self) -> FrozenMatcher:
        store = self._store
        return FrozenMatcher(store.index(spare=False), tuple(store.paths), store.ids_in_use)

    def _extend(self, filters: Iterable[Filter]) -> list[int]:
        ids: list[int] = []
        boxes: list[Box] = []
        owners: list[int] = []
        for filter_ in filters:
            ids.append(self._free_ids.pop() if self._free_ids else self._store.new_filter())
            boxes += filter_.boxes
            owners += [ids[-1]] * len(filter_.boxes)
        self._store.activate(ids)
        self._file(boxes, owners)
        self._index = None
        return ids

    def _file(self, boxes: list[Box], owners: list[int]) -> None:
        """Encode boxes and file each where events are expected to find it least often."""
        store = self._store
        chosen = choose_options(boxes, store)
        order = sorted(range(len(boxes)), key=lambda k: _neighbourhood(chosen[k]))
        programs = [
            encode_box(
                boxes[k],
                owners[k],
                store.column_of,
                partial(store.test_of, owners[k]),
                None if (c := chosen[k]) is None else c.column,
            )
            for k in order
        ]
        store.file(store.append_boxes(programs), [chosen[k] for k in order])


def _neighbourhood(option: Option | None) -> tuple[int, int]:
    """Orders boxes so that those found together stand together in memory."""
    if option is None:
        return -1, 0
    return option.column, option.hashes[0] if option.hashes else -1


def _match(index: Index, columns: Columns, rows: int, filters: int, threads: int) -> Matches:
    parts = max(1, min(threads, rows // _ROWS_PER_THREAD))
    if parts == 1:
        return Matches(*_match_part(index, columns, 0, rows, filters))
    cuts = [rows * k // parts for k in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        done = list(
            pool.map(lambda k: _match_part(index, columns, cuts[k], cuts[k + 1], filters), range(parts))
        )
    ends = [np.zeros(1, np.int64)]
    for part_ends, _ in done:
        ends.append(part_ends[1:] + ends[-1][-1])
    return Matches(np.concatenate(ends), np.concatenate([ids for _, ids in done]))


def _match_part(
    index: Index, columns: Columns, first: int, last: int, filters: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The ends and ids of some rows, by the kernel that is fastest for the index."""
    fits, ends, ids = match_words(index, columns, first, last, filters)
    return (ends, ids) if fits else match_rows(index, columns, first, last, filters)
