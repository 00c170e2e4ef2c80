"""The arrays behind the matcher: programs, posting lists and the hash table, all growable.

`Matcher` decides under which features a box is filed; this module files it, and keeps the arrays compact:
removed boxes are swept out when they outnumber the others, so churn does not grow memory. A box is known
by where its program begins.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramify.content.filters.strings import StringTest
from ramify.content.matching.arrays import GrowingArray
from ramify.content.matching.encoding import Access, Feature
from ramify.content.matching.literals import StringTestStore
from ramify.content.matching.postings import (
    compact_postings,
    hash_bytes,
    hash_number,
    list_length,
    pair_hash,
    push_keys,
    push_list,
    rehash,
)
from ramify.content.matching.program import Index

__all__ = ["IndexStore", "Option", "feature_hash", "joint_hash"]

# Posting lists longer than this are all the same to the estimate.
_LONG_LIST = 4096
# Ends of ranges that are remembered per column, to guess how many values a range covers.
_ENDS = 256


@dataclass(frozen=True, slots=True)
class Option:
    """A way to file a box: any of `hashes` is looked up by every event that the box accepts.

    `classes` gives the feature classes of each hash: one, or the two of a pair. Without hashes the box is
    tried whenever `column` is present.
    """

    column: int
    hashes: tuple[int, ...] = ()
    classes: tuple[tuple[int, ...], ...] = ()
    chance: float = 1.0


class IndexStore:
    """Owns the index arrays. Not safe for threads: `Matcher` takes care of that."""

    def __init__(self) -> None:
        # path -> column number, in order of first use
        self._columns: dict[str, int] = {}
        # every box's program, one after another, and where each begins
        self.program = GrowingArray(np.int64)
        self.box_start = GrowingArray(np.int64)
        # per box: the number of another box of its filter, or -1; per filter: its first such box
        self.box_sibling = GrowingArray(np.int32)
        self.first_box = GrowingArray(np.int32)
        self.alive = GrowingArray(np.uint8)
        # linked lists of boxes, in pairs: the next posting, where the box begins (see `postings`)
        self.postings = GrowingArray(np.int32)
        # the hash table (see `program.Index`), and the lists of boxes that are found without it
        self.table = _empty_table(16)
        self.slots_taken = 0
        self.heads = GrowingArray(np.int32)
        self.heads.extend([-1])
        # per column: some ends of the ranges that filters ask for
        self.range_ends: dict[int, list[float]] = {}
        # feature classes (column, kind, length) and groups (a class or a pair), with how many are filed
        self.classes: dict[tuple[int, int, int], int] = {}
        self.class_filed: Counter[int] = Counter()
        self.groups: dict[tuple[int, ...], int] = {}
        self.removed_boxes = 0
        # the string tests of all programs, and those of each filter that has any
        self.tests = StringTestStore()
        self.filter_tests: dict[int, list[int]] = {}

    @property
    def paths(self) -> list[str]:
        """The attributes that filters look at, by column number."""
        return list(self._columns)

    @property
    def filters(self) -> int:
        """How many ids have been issued."""
        return self.alive.size

    @property
    def ids_in_use(self) -> int:
        """One more than the largest id in use."""
        used = np.flatnonzero(self.alive.used)
        return int(used[-1]) + 1 if len(used) else 0

    def column_of(self, path: str) -> int:
        """The number of a path's column, new if need be."""
        found = self._columns.get(path)
        if found is None:
            found = self._columns[path] = len(self._columns)
            self.heads.extend([-1])
        return found

    def test_of(self, owner: int, column: int, test: StringTest) -> int:
        """The number of a string test on a column, for a program of a filter."""
        number = self.tests.ask(column, test)
        self.filter_tests.setdefault(owner, []).append(number)
        return number

    def new_filter(self) -> int:
        """Issue the next id."""
        self.first_box.extend([-1])
        return self.alive.extend([0])

    def is_alive(self, id_: int) -> bool:
        """Whether an issued id is in use."""
        return bool(self.alive.data[id_])

    def activate(self, ids: Sequence[int]) -> None:
        """Mark ids as in use."""
        self.alive.data[ids] = 1

    def append_boxes(self, programs: Sequence[list[int]]) -> NDArray[np.int64]:
        """Store the programs of boxes; returns where each begins.

        Boxes should come in the order of their lists: a walk along a list then reads memory in order.
        """
        lengths = np.fromiter((len(p) for p in programs), np.int64, len(programs))
        total = int(lengths.sum())
        at = self.program.extend(np.fromiter((w for p in programs for w in p), np.int64, total))
        starts: NDArray[np.int64] = at + np.cumsum(lengths) - lengths
        first = self.box_start.extend(starts)
        self.box_sibling.extend(np.full(len(programs), -1, np.int32))
        for box, program in enumerate(programs, first):
            owner = program[0] >> 16
            self.box_sibling.data[box] = self.first_box.data[owner]
            self.first_box.data[owner] = box
        return starts

    def remove(self, id_: int) -> None:
        """Forget a filter; sweep when removed boxes outnumber the others."""
        box = int(self.first_box.data[id_])
        while box >= 0:
            self.program.data[self.box_start.data[box]] = -1
            self.removed_boxes += 1
            box = int(self.box_sibling.data[box])
        self.tests.release(self.filter_tests.pop(id_, ()))
        self.alive.data[id_] = 0
        self.first_box.data[id_] = -1
        if self.removed_boxes > 64 and self.removed_boxes * 2 > self.box_start.size:
            self.sweep()

    @property
    def boxes(self) -> int:
        """How many boxes are in use."""
        return self.box_start.size - self.removed_boxes

    def class_of(self, column: int, feature: Feature) -> int:
        """The number of a feature's class, new if need be."""
        return self.classes.setdefault((column, feature.kind, feature.length), len(self.classes))

    def remember_ends(self, access: Access) -> None:
        """Keep some of the ends of ranges, so that later ranges can be compared with them."""
        ends = self.range_ends.setdefault(self.column_of(access.path), [])
        if len(ends) < _ENDS:
            for end in (end for span in access.spans for end in span if math.isfinite(end)):
                insort(ends, end)

    def share(self, column: int, spans: Sequence[tuple[float, float]]) -> float:
        """The guessed share of values in these spans: that of the remembered ends, never none."""
        ends = self.range_ends.get(column, [])
        inside = sum(bisect_right(ends, high) - bisect_left(ends, low) for low, high in spans)
        return min(1.0, (inside + 1) / (len(ends) + 2))

    def filed_under(self, h: int) -> int:
        """How many boxes are filed under a hash (up to a bound)."""
        if self.slots_taken == 0:
            return 0
        return int(list_length(self.table, self.postings.data, np.uint64(h), _LONG_LIST))

    def file(self, starts: NDArray[np.int64], chosen: Sequence[Option | None]) -> None:
        """Put boxes, by where they begin, into the lists of their options (None: every row tries them)."""
        hashes: list[int] = []
        hashed: list[int] = []
        for start, option in zip(starts.tolist(), chosen, strict=True):
            if option is None or not option.hashes:
                self._push_list(-1 if option is None else option.column, start)
                continue
            for h, classes in zip(option.hashes, option.classes, strict=True):
                self.groups.setdefault(classes, len(self.groups))
                self.class_filed.update(classes)
                hashes.append(h)
                hashed.append(start)
        self._push_keys(np.array(hashes, np.uint64), np.array(hashed, np.int32))

    def index(self, spare: bool = True) -> Index:
        """What the kernels read, with the spare room behind it or without. Valid until the next change."""
        # classes by column, prefixes first and by length, as the kernel walks a string
        ordered = sorted(self.classes)
        number = {self.classes[place]: k for k, place in enumerate(ordered)}
        starts = np.searchsorted([place[0] for place in ordered], np.arange(len(self._columns) + 1))
        kinds, lengths = (np.array([place[k] for place in ordered], np.int64) for k in (1, 2))
        pairs = [(number[g[0]], number[g[1]] if len(g) > 1 else -1) for g in self.groups]
        groups = np.array(pairs, np.int64).reshape(-1, 2)
        program, postings, heads = (
            array.data if spare else array.used for array in (self.program, self.postings, self.heads)
        )
        return Index(
            program,
            program.view(np.uint8),
            postings,
            self.table,
            heads,
            starts.astype(np.int64),
            kinds,
            lengths,
            groups[:, 0].copy(),
            groups[:, 1].copy(),
            *self.tests.arrays(len(self._columns), spare),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, room behind their ends included."""
        parts = [value for value in vars(self).values() if isinstance(value, GrowingArray)]
        return sum(part.data.nbytes for part in parts) + self.table.nbytes + self.tests.nbytes

    def sweep(self) -> None:
        """Drop removed boxes, and lay every list out in order again."""
        old_start = self.box_start.used.copy()
        new_start = self._sweep_programs()
        swept = np.zeros(self.postings.size, np.int32)
        used = compact_postings(
            self.table, self.heads.used, self.postings.data, old_start, new_start, swept
        )
        self.postings.replace(swept[: 2 * used])
        self._resize_table()
        self.tests.sweep()
        self.removed_boxes = 0

    def extent(self) -> tuple[int, ...]:
        """How many paths, ids, feature classes and groups there are: what `cut_back` goes back to."""
        return len(self._columns), self.alive.size, len(self.classes), len(self.groups)

    def cut_back(self, extent: tuple[int, ...]) -> None:
        """Forget the paths, ids, classes and groups since then. No box in use may need them."""
        paths, ids, classes, groups = extent
        self.heads.size = 1 + paths
        self.alive.size = self.first_box.size = ids
        for named, size in ((self._columns, paths), (self.classes, classes), (self.groups, groups)):
            while len(named) > size:
                named.popitem()

    def _sweep_programs(self) -> NDArray[np.int64]:
        """Keep the programs of boxes in use. Returns where each old box begins now, or -1."""
        starts = self.box_start.used
        kept = self.program.data[starts] >= 0
        lengths = (np.append(starts[1:], self.program.size) - starts)[kept]
        begins = np.cumsum(lengths) - lengths
        words = np.repeat(starts[kept] - begins, lengths) + np.arange(int(lengths.sum()))
        new_start = np.full(len(starts), -1, np.int64)
        new_start[kept] = begins
        self.program.replace(self.program.used[words])
        self.box_start.replace(begins)
        owners = self.program.data[begins] >> 16
        order = np.argsort(owners, kind="stable")
        same = owners[order[1:]] == owners[order[:-1]]
        sibling = np.full(len(owners), -1, np.int32)
        sibling[order[1:][same]] = order[:-1][same]
        self.box_sibling.replace(sibling)
        self.first_box.data[owners] = -1
        self.first_box.data[owners[order]] = order  # the last of each owner's boxes stays
        return new_start

    def _resize_table(self, more: int = 0) -> None:
        """Make the table at most half full with `more` new hashes; those without boxes are forgotten."""
        need = 2 * (int(np.count_nonzero(self.table[1::2] >= 0)) + more)
        size = 16
        while size < need:
            size *= 2
        bigger = _empty_table(size)
        self.slots_taken = int(rehash(self.table, bigger))
        self.table = bigger

    def _push_keys(self, hashes: NDArray[np.uint64], starts: NDArray[np.int32]) -> None:
        if not len(hashes):
            return
        if 4 * (self.slots_taken + len(hashes)) > len(self.table):
            self._resize_table(len(np.unique(hashes)))
        # by hash, so that a list's postings are neighbours; last box first, since lists grow at the head
        order = np.lexsort((-starts.astype(np.int64), hashes))
        at = self._room_for_postings(len(hashes))
        words = self.program.data
        self.slots_taken += int(
            push_keys(
                self.table,
                self.postings.data,
                at,
                hashes[order],
                starts[order],
                words,
                words.view(np.uint8),
            )
        )

    def _push_list(self, column: int, start: int) -> None:
        at = self._room_for_postings(1)
        push_list(self.heads.data, column + 1, self.postings.data, at, start)

    def _room_for_postings(self, count: int) -> int:
        """Make room for postings; returns the number of the first."""
        at = self.postings.size
        self.postings.reserve(at + 2 * count)
        self.postings.size = at + 2 * count
        return at // 2


def _empty_table(slots: int) -> NDArray[np.int64]:
    table = np.zeros(2 * slots, np.int64)
    table[1::2] = -2
    return table


def feature_hash(column: int, feature: Feature) -> int:
    """The hash that the kernels compute for a feature of a value."""
    if isinstance(feature.data, bytes):
        return int(hash_bytes(column, feature.kind, np.frombuffer(feature.data, np.uint8)))
    return int(hash_number(column, feature.kind, feature.length, feature.data))


def joint_hash(a: int, b: int) -> int:
    """The hash that the kernels compute for two features of a row."""
    return int(pair_hash(np.uint64(a), np.uint64(b)))
