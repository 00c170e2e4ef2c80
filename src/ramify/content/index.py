"""The arrays behind the matcher: programs, posting lists, hash table and range trees, all growable.

`Matcher` decides where a box is filed; this module files it, and keeps the arrays compact: removed boxes
and abandoned trees are swept out when they outnumber what is alive, so churn does not grow memory.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramify.content.encoding import Access, Key, Range
from ramify.content.kernels import (
    SALT_EQUAL,
    SALT_NOCASE,
    SALT_PREFIX,
    SALT_SUFFIX,
    Code,
    Index,
    bucket_of,
    compact_postings,
    hash_bytes,
    hash_number,
    list_length,
    push_keys,
    push_list,
    push_ranges,
    rehash,
)

__all__ = ["IndexStore", "Option"]

_USE_BITS = {SALT_EQUAL: 1, SALT_SUFFIX: 4, SALT_NOCASE: 8}
_USE_NUMBER, _USE_RANGE, _USE_TIME_RANGE, _USE_PREFIX = 2, 16, 32, 64
_MOST_LEAVES = 4096
# Posting lists longer than this are all the same to the estimate.
_LONG_LIST = 4096


@dataclass(frozen=True, slots=True)
class Option:
    """An access path with its hashes; `places` says for each hash which column and kind of key it is."""

    column: int
    keys: tuple[Key, ...]
    hashes: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    ranges: tuple[Range, ...]


class Growing:
    """A numpy array with room behind its end. Growth is by half, so appending is amortised O(1)."""

    def __init__(self, dtype: Any) -> None:
        self.data: NDArray[Any] = np.zeros(0, dtype)
        self.size = 0

    def reserve(self, size: int) -> None:
        """Make room for `size` entries in all."""
        if size > len(self.data):
            room = max(size, 8) if self.size == 0 else max(size, len(self.data) * 3 // 2)
            bigger = np.zeros(room, self.data.dtype)
            bigger[: self.size] = self.data[: self.size]
            self.data = bigger

    def extend(self, values: Any) -> int:
        """Append; returns where the values begin."""
        at = self.size
        self.reserve(at + len(values))
        self.data[at : at + len(values)] = values
        self.size = at + len(values)
        return at

    def replace(self, values: NDArray[Any]) -> None:
        """Take these values, with an eighth of room behind them."""
        self.data = np.zeros(len(values) + len(values) // 8 + 8, self.data.dtype)
        self.data[: len(values)] = values
        self.size = len(values)

    @property
    def used(self) -> NDArray[Any]:
        """The entries in use, as a view."""
        return self.data[: self.size]


@dataclass(slots=True)
class _Tree:
    """A range tree: buckets between bounds, heads of a heap-numbered binary tree over them."""

    base: int
    leaves: int
    bound_base: int
    lows: Growing
    highs: Growing
    boxes: Growing
    built: int = 0  # ranges filed when the buckets were last chosen
    postings: int = 0  # entries of its lists


class IndexStore:
    """Owns the index arrays. Not safe for threads: `Matcher` takes care of that."""

    def __init__(self) -> None:
        # path -> column number, in order of first use
        self._columns: dict[str, int] = {}
        # every box's program, one after another, and where each begins
        self.program = Growing(np.int64)
        self.box_start = Growing(np.int64)
        # the filter id of each box, -1 once removed
        self.box_owner = Growing(np.int32)
        # per filter: its first box, how many it has (they are neighbours), whether it is in use
        self.first_box = Growing(np.int32)
        self.box_count = Growing(np.int32)
        self.alive = Growing(np.uint8)
        # linked lists of boxes; slots, trees, columns and `always` hold their heads
        self.posting_next = Growing(np.int32)
        self.posting_box = Growing(np.int32)
        # open addressing by key hash; head -2 marks a free slot
        self.slot_hash = np.zeros(16, np.uint64)
        self.slot_head = np.full(16, -2, np.int32)
        self.slots_taken = 0
        self.always = np.full(1, -1, np.int32)
        # per column: boxes to try when it is present, which kinds of key it has, and their lengths
        self.present = Growing(np.int32)
        self.uses = Growing(np.uint8)
        self.prefix_lengths = Growing(np.uint64)
        self.suffix_lengths = Growing(np.uint64)
        # range trees by (column, 0 for numbers or 1 for times)
        self.trees: dict[tuple[int, int], _Tree] = {}
        self.tree_head = Growing(np.int32)
        self.bounds = Growing(np.float64)
        # how many boxes were filed under keys of each (column, kind)
        self.filed: Counter[tuple[int, int]] = Counter()
        self.removed_boxes = 0
        self.wasted_postings = 0

    @property
    def paths(self) -> list[str]:
        """The attributes that filters look at, by column number."""
        return list(self._columns)

    @property
    def filters(self) -> int:
        """How many ids have been issued."""
        return self.alive.size

    def column_of(self, path: str) -> int:
        """The number of a path's column, new if need be."""
        found = self._columns.get(path)
        if found is None:
            found = self._columns[path] = len(self._columns)
            self.present.extend([-1])
            self.uses.extend([0])
            self.prefix_lengths.extend([0])
            self.suffix_lengths.extend([0])
        return found

    def new_filter(self) -> int:
        """Issue the next id."""
        self.first_box.extend([0])
        self.box_count.extend([0])
        return self.alive.extend([0])

    def is_alive(self, id_: int) -> bool:
        """Whether an issued id is in use."""
        return bool(self.alive.data[id_])

    def append_boxes(self, programs: Iterable[list[int]], owners: Sequence[int]) -> int:
        """Store the programs of boxes, grouped by owner; returns the first box's number."""
        first = self.box_start.size
        starts: list[int] = []
        words: list[int] = []
        for program in programs:
            starts.append(self.program.size + len(words))
            words += program
        self.program.extend(np.array(words, np.int64))
        self.box_start.extend(np.array(starts, np.int64))
        self.box_owner.extend(np.array(owners, np.int32))
        for box, owner in enumerate(owners, first):
            if self.box_count.data[owner] == 0:
                self.first_box.data[owner] = box
            self.box_count.data[owner] += 1
        return first

    def activate(self, ids: Sequence[int]) -> None:
        """Mark ids as in use."""
        self.alive.data[ids] = 1

    def remove(self, id_: int) -> None:
        """Forget a filter; sweep when removed boxes outnumber the others."""
        first, count = int(self.first_box.data[id_]), int(self.box_count.data[id_])
        self.box_owner.data[first : first + count] = -1
        self.alive.data[id_] = 0
        self.box_count.data[id_] = 0
        self.removed_boxes += count
        if self.removed_boxes > 64 and self.removed_boxes * 2 > self.box_start.size:
            self.sweep()

    def option(self, access: Access) -> Option:
        """Hash the keys of an access path."""
        column = self.column_of(access.path)
        hashes = tuple(_hash(column, key) for key in access.keys)
        places = tuple((column, key.salt) for key in access.keys)
        return Option(column, tuple(access.keys), hashes, places, tuple(access.ranges))

    def filed_under(self, h: int) -> int:
        """How many boxes are filed under a key (up to a bound)."""
        if self.slots_taken == 0:
            return 0
        return int(
            list_length(self.slot_hash, self.slot_head, self.posting_next.data, np.uint64(h), _LONG_LIST)
        )

    def filed_at(self, place: tuple[int, int]) -> int:
        """How many boxes are filed under keys of a column and kind."""
        return self.filed[place]

    def share(self, r: Range) -> float:
        """The share of its tree's buckets that a range covers."""
        tree = self.trees[self.column_of(r.path), int(r.is_time)]
        first, last = (
            int(bucket_of(self.bounds.data, tree.bound_base, tree.leaves, edge)) for edge in (r.low, r.high)
        )
        return (last - first + 1) / tree.leaves

    def prepare_trees(self, ranges: Sequence[Range]) -> None:
        """Choose buckets for columns that meet ranges for the first time, by these ranges' own ends."""
        groups: dict[tuple[int, int], list[float]] = {}
        for r in ranges:
            place = (self.column_of(r.path), int(r.is_time))
            if place not in self.trees:
                groups.setdefault(place, []).extend(e for e in (r.low, r.high) if math.isfinite(e))
        for place, ends in groups.items():
            self.trees[place] = _Tree(0, 0, 0, Growing(np.float64), Growing(np.float64), Growing(np.int32))
            self._plant(self.trees[place], np.array(ends))
            self.uses.data[place[0]] |= _USE_TIME_RANGE if place[1] else _USE_RANGE

    def file(self, first: int, chosen: Sequence[Option | None]) -> None:
        """Put boxes, numbered from `first`, into the lists of their options."""
        hashes: list[int] = []
        hashed_boxes: list[int] = []
        lists: list[tuple[int, int]] = []
        ranged: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
        for box, option in enumerate(chosen, first):
            if option is None:
                lists.append((-1, box))
                continue
            if not option.hashes and not option.ranges:
                lists.append((option.column, box))
            for key, h, place in zip(option.keys, option.hashes, option.places, strict=True):
                self._note_key(option.column, key)
                self.filed[place] += 1
                hashes.append(h)
                hashed_boxes.append(box)
            for r in option.ranges:
                ranged.setdefault((option.column, int(r.is_time)), []).append((r.low, r.high, box))
        self._push_keys(np.array(hashes, np.uint64), np.array(hashed_boxes, np.int32))
        for place, rows in ranged.items():
            self._push_ranges(self.trees[place], rows)
        for column, box in lists:
            heads = self.always if column < 0 else self.present.data
            posting = self._room_for_postings(1)
            push_list(heads, max(column, 0), self.posting_next.data, self.posting_box.data, posting, box)

    def index(self) -> Index:
        """What the kernels read. Valid until the next change."""
        columns = len(self._columns)
        place = np.zeros((3, columns, 2), np.int64)
        for (column, kind), tree in self.trees.items():
            place[:, column, kind] = tree.base, tree.leaves, tree.bound_base
        program = self.program.data
        return Index(
            Code(program, program.view(np.float64), program.view(np.uint8)),
            self.box_start.data,
            self.box_owner.data,
            self.posting_next.data,
            self.posting_box.data,
            self.slot_hash,
            self.slot_head,
            self.always,
            self.present.data,
            self.uses.data,
            self.prefix_lengths.data,
            self.suffix_lengths.data,
            place[0],
            place[1],
            self.tree_head.data,
            place[2],
            self.bounds.data,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, room behind their ends included."""
        grown = [value for value in vars(self).values() if isinstance(value, Growing)]
        grown += [part for tree in self.trees.values() for part in (tree.lows, tree.highs, tree.boxes)]
        return sum(g.data.nbytes for g in grown) + self.slot_hash.nbytes + self.slot_head.nbytes

    def sweep(self) -> None:
        """Drop removed boxes and abandoned postings, and lay every list out in order again."""
        keep = np.flatnonzero(self.box_owner.used >= 0)
        box_map = np.full(self.box_owner.size, -1, np.int32)
        box_map[keep] = np.arange(len(keep), dtype=np.int32)
        self._sweep_programs(keep)
        for tree in self.trees.values():
            kept = box_map[tree.boxes.used] >= 0
            tree.lows.replace(tree.lows.used[kept])
            tree.highs.replace(tree.highs.used[kept])
            tree.boxes.replace(box_map[tree.boxes.used][kept])
        new_next = np.zeros(self.posting_next.size, np.int32)
        new_box = np.zeros(self.posting_next.size, np.int32)
        used = 0
        for heads in (self.slot_head, self.present.used, self.always):
            used = compact_postings(
                heads, self.posting_next.data, self.posting_box.data, box_map, new_next, new_box, used
            )
        self.posting_next.replace(new_next[:used])
        self.posting_box.replace(new_box[:used])
        self._resize_table()
        self.tree_head, self.bounds = Growing(np.int32), Growing(np.float64)
        for tree in self.trees.values():
            self._replant(tree)
        self.removed_boxes = self.wasted_postings = 0

    def _sweep_programs(self, keep: NDArray[np.int64]) -> None:
        starts = self.box_start.used
        ends = np.append(starts[1:], self.program.size)
        lengths = (ends - starts)[keep]
        new_starts = (np.cumsum(lengths) - lengths).astype(np.int64)
        words = np.repeat(starts[keep] - new_starts, lengths) + np.arange(int(lengths.sum()))
        self.program.replace(self.program.used[words])
        self.box_start.replace(new_starts)
        self.box_owner.replace(self.box_owner.used[keep])
        owners, first = np.unique(self.box_owner.used, return_index=True)
        self.first_box.data[owners] = first

    def _resize_table(self, more: int = 0) -> None:
        """Make the table at most half full with `more` new keys; keys without boxes are forgotten."""
        kept = np.flatnonzero(self.slot_head >= 0)
        size = 16
        while size < 2 * (len(kept) + more):
            size *= 2
        hashes, heads = np.zeros(size, np.uint64), np.full(size, -2, np.int32)
        rehash(self.slot_hash[kept], self.slot_head[kept], hashes, heads)
        self.slot_hash, self.slot_head, self.slots_taken = hashes, heads, len(kept)

    def _note_key(self, column: int, key: Key) -> None:
        """Let the kernel know that a column has this kind of key."""
        if key.salt == SALT_PREFIX:
            self.prefix_lengths.data[column] |= np.uint64(1 << len(_bytes(key)))
            self.uses.data[column] |= _USE_PREFIX
        elif key.salt == SALT_SUFFIX:
            self.suffix_lengths.data[column] |= np.uint64(1 << len(_bytes(key)))
        self.uses.data[column] |= _USE_BITS.get(key.salt, 0 if key.salt == SALT_PREFIX else _USE_NUMBER)

    def _push_keys(self, hashes: NDArray[np.uint64], boxes: NDArray[np.int32]) -> None:
        if not len(hashes):
            return
        if 2 * (self.slots_taken + len(hashes)) > len(self.slot_hash):
            self._resize_table(len(np.unique(hashes)))
        # in table order, so that the postings of a key are neighbours in memory
        order = np.argsort(hashes & np.uint64(len(self.slot_hash) - 1), kind="stable")
        at = self._room_for_postings(len(hashes))
        self.slots_taken += push_keys(
            self.slot_hash,
            self.slot_head,
            self.posting_next.data,
            self.posting_box.data,
            at,
            hashes[order],
            boxes[order],
        )

    def _push_ranges(self, tree: _Tree, rows: list[tuple[float, float, int]]) -> None:
        lows, highs, boxes = (np.array(column) for column in zip(*rows, strict=True))
        tree.lows.extend(lows)
        tree.highs.extend(highs)
        tree.boxes.extend(boxes)
        if tree.boxes.size > 64 + 2 * tree.built:
            # the buckets were chosen for far fewer ranges: choose again, leaving the old lists behind
            self._replant(tree)
        else:
            self._push_into(tree, lows, highs, boxes.astype(np.int32))
        if self.wasted_postings * 2 > self.posting_next.size:
            self.sweep()

    def _push_into(
        self, tree: _Tree, lows: NDArray[np.float64], highs: NDArray[np.float64], boxes: NDArray[np.int32]
    ) -> None:
        none = np.zeros(0, np.int32)
        where = (self.tree_head.data, tree.base, tree.leaves, self.bounds.data, tree.bound_base)
        need = int(push_ranges(*where, none, none, 0, lows, highs, boxes))
        at = self._room_for_postings(need)
        push_ranges(*where, self.posting_next.data, self.posting_box.data, at, lows, highs, boxes)
        tree.postings += need

    def _plant(self, tree: _Tree, ends: NDArray[np.float64]) -> None:
        """Give a tree empty lists over buckets that hold about equally many of these ends."""
        ends = np.sort(ends[np.isfinite(ends)])
        leaves = 2
        while leaves < min(len(ends), _MOST_LEAVES):
            leaves *= 2
        picks = np.linspace(0, max(0, len(ends) - 1), leaves - 1).astype(np.int64)
        tree.leaves = leaves
        tree.bound_base = self.bounds.extend(ends[picks] if len(ends) else np.zeros(leaves - 1))
        tree.base = self.tree_head.extend(np.full(2 * leaves, -1, np.int32))
        self.wasted_postings += tree.postings
        tree.postings = 0

    def _replant(self, tree: _Tree) -> None:
        """Choose buckets by the ranges that the tree holds now, and file them all again."""
        self._plant(tree, np.concatenate([tree.lows.used, tree.highs.used]))
        self._push_into(tree, tree.lows.used, tree.highs.used, tree.boxes.used)
        tree.built = tree.boxes.size

    def _room_for_postings(self, count: int) -> int:
        at = self.posting_next.size
        for part in (self.posting_next, self.posting_box):
            part.reserve(at + count)
            part.size = at + count
        return at


def _hash(column: int, key: Key) -> int:
    if isinstance(key.data, bytes):
        return int(hash_bytes(column, key.salt, np.frombuffer(key.data, np.uint8)))
    return int(hash_number(column, key.salt, key.data))


def _bytes(key: Key) -> bytes:
    assert isinstance(key.data, bytes), "prefix and suffix keys are strings"
    return key.data
