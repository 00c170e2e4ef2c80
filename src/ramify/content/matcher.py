"""Match batches of events against many filters at once.

    matcher = Matcher(filters)          ids are 0, 1, 2, ... in order
    id = matcher.add(filter)            a free id, without a rebuild
    matcher.remove(id)                  the id may be given out again
    matches = matcher.match(batch)      matches[row] holds the sorted ids of one row

Idea: file every box of every filter under one of its own predicates (its access path), the one that
events are expected to hit least: an equality, keyword, prefix or suffix in a hash table, a range in a
tree of buckets. For a row, look its values up and evaluate the boxes found there exactly. So a row costs
its look-ups and the boxes that share an access value with it, not the number of filters.

Guarantee: `match` gives exactly the filters for which `Filter.holds` is true. Cost: amortised
O(predicates) to add, O(boxes) to remove; see `benchmarks/matcher.py` for figures. Calls from several
threads are safe and take turns; `match(..., threads=n)` uses several threads inside.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramify.content.columns import bind_columns
from ramify.content.encoding import access_paths, encode_box
from ramify.content.filters import Box, Filter
from ramify.content.index import IndexStore, Option
from ramify.content.kernels import Columns, Index, match_rows
from ramify.errors import InputError

__all__ = ["Matcher", "Matches"]

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

    def remove(self, id_: int) -> None:
        """Take a filter out. Its boxes leave the index when they have become many."""
        with self._lock:
            if not 0 <= id_ < self._store.filters or not self._store.is_alive(id_):
                raise InputError(f"the matcher holds no filter {id_}")
            self._store.remove(id_)
            self._free_ids.append(id_)
            self._index = None

    def match(self, batch: pa.RecordBatch, threads: int = 1) -> Matches:
        """Match every row of a batch (see `ramify.content.events` for its columns)."""
        with self._lock:
            columns = bind_columns(batch, self._store.paths)
            if self._index is None:
                self._index = self._store.index()
            return _match(self._index, columns, batch.num_rows, self._store.filters, threads)

    @property
    def nbytes(self) -> int:
        """The memory of the index in bytes, spare room included."""
        return self._store.nbytes

    def _file(self, boxes: list[Box], owners: list[int]) -> None:
        """Encode boxes and file each under the access path that events are expected to hit least."""
        store = self._store
        first = store.append_boxes((encode_box(box, store.column_of) for box in boxes), owners)
        options = [[store.option(access) for access in access_paths(box)] for box in boxes]
        offered: Counter[int] = Counter(h for own in options for option in own for h in set(option.hashes))
        totals: Counter[tuple[int, int]] = Counter(
            place for own in options for option in own for place in set(option.places)
        )
        store.prepare_trees([r for own in options for option in own for r in option.ranges])
        chosen = [_cheapest(own, store, offered, totals) for own in options]
        store.file(first, chosen)


def _cheapest(
    options: list[Option], store: IndexStore, offered: Counter[int], totals: Counter[tuple[int, int]]
) -> Option | None:
    """The option with the smallest estimated chance that an event hits it; None when there is none.

    A key is taken to be as frequent among events as among the filters that offer it, a range as frequent
    as its share of the column's buckets. Being wrong costs time, never a match.
    """
    best, least = None, 2.0
    for option in options:
        chance = 0.0 if option.hashes or option.ranges else 1.0
        for h, place in zip(option.hashes, option.places, strict=True):
            have = offered[h] + store.filed_under(h)
            chance += have / (totals[place] + store.filed_at(place) + 1)
        chance += sum(store.share(r) for r in option.ranges)
        if chance < least:
            best, least = option, chance
    return best


def _match(index: Index, columns: Columns, rows: int, filters: int, threads: int) -> Matches:
    parts = max(1, min(threads, rows // _ROWS_PER_THREAD))
    if parts == 1:
        return Matches(*match_rows(index, columns, 0, rows, filters))
    cuts = [rows * k // parts for k in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        done = list(
            pool.map(lambda k: match_rows(index, columns, cuts[k], cuts[k + 1], filters), range(parts))
        )
    ends = [np.zeros(1, np.int64)]
    for part_ends, _ in done:
        ends.append(part_ends[1:] + ends[-1][-1])
    return Matches(np.concatenate(ends), np.concatenate([ids for _, ids in done]))
