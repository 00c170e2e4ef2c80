"""Compiled parts of counting: a hash table of distinct patterns, and hashes of event ids.

A pattern is a row of `COLUMNS` integers and an ascending list of class ids. The table is open addressing:
`slots` holds pattern numbers or -1; the patterns themselves lie one after another in the arrays beside it,
in the order in which they were first seen.
"""

from typing import NamedTuple

import numpy as np

from ramify.compiled import Bytes, Flag, Hash, Hashes, Int, Ints, SmallInts, compiled
from ramify.content.matching.postings import FNV_PRIME, mix

__all__ = [
    "COLUMNS",
    "PUBLISHER",
    "TAGS",
    "PatternTable",
    "first_of_equals",
    "gather_lists",
    "hash_texts",
    "place_patterns",
    "rough_order",
    "settle_ties",
    "sort_patterns",
    "tally_rows",
]

COLUMNS = 6
"""split, pane, publisher, client, cell, tags."""

PUBLISHER = 2
TAGS = 5

_FNV = np.uint64(0xCBF29CE484222325)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_MOST_BROKERS, _MOST_CLASSES = 1 << 20, 1 << 21


@compiled
def hash_texts(offsets: SmallInts, data: Bytes, seed: Hash, out: Hashes) -> None:
    """A seeded 64-bit hash of each text (FNV-1a, then mixed). Part of the format: splits depend on it."""
    for k in range(len(out)):
        h = _FNV ^ seed
        for at in range(offsets[k], offsets[k + 1]):
            h = (h ^ np.uint64(data[at])) * FNV_PRIME
        out[k] = mix(h)


@compiled
def place_patterns(hashes: Hashes, patterns: Int, slots: Ints) -> None:
    """File the first `patterns` patterns in an empty table, whose length is a power of two."""
    mask = np.uint64(len(slots) - 1)
    for p in range(patterns):
        at = hashes[p] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = p


class PatternTable(NamedTuple):
    """Distinct patterns, found by hash. See the module.

    `keys` is (patterns, COLUMNS). Pattern i has the classes `pool[start[i]:start[i + 1]]`, `events[i]`
    events and `sizes[i]` bytes.
    """

    slots: Ints
    hashes: Hashes
    keys: Ints
    start: Ints
    pool: SmallInts
    events: Ints
    sizes: Ints


@compiled
def tally_rows(
    rows: Ints,
    ends: Ints,
    ids: SmallInts,
    sizes: Ints,
    classes: Int,
    vacant: Bytes,
    patterns: Int,
    table: PatternTable,
) -> Int:
    """Count rows into the table; returns how many patterns there are now.

    `rows` is (events, COLUMNS); an event whose publisher is below 0 is left out. Ids from `classes` on are
    tags: they become bits. Vacant classes are dropped. There must be room for one more pattern per row and
    one more class per id. O(ids) expected.
    """
    slots, hashes, keys, start, pool, count, size = table
    mask = np.uint64(len(slots) - 1)
    tail = start[patterns]
    for r in range(len(rows)):
        if rows[r, PUBLISHER] < 0:
            continue
        end = tail
        tags = np.uint64(rows[r, TAGS])
        h = _FNV
        for k in range(ends[r], ends[r + 1]):
            c = ids[k]
            if c >= classes:
                tags |= np.uint64(1) << np.uint64(c - classes)
            elif vacant[c] == 0:
                pool[end] = c
                end += 1
                h = (h ^ np.uint64(c + 1)) * _ODD
                h ^= h >> _HALF
        rows[r, TAGS] = np.int64(tags)
        for k in range(COLUMNS):
            h = (h ^ np.uint64(rows[r, k])) * _ODD
            h ^= h >> _HALF
        at = h & mask
        found = -1
        while slots[at] >= 0:
            p = slots[at]
            if hashes[p] == h and start[p + 1] - start[p] == end - tail:
                same = True
                for k in range(COLUMNS):
                    if keys[p, k] != rows[r, k]:
                        same = False
                        break
                if same:
                    for k in range(end - tail):
                        if pool[start[p] + k] != pool[tail + k]:
                            same = False
                            break
                if same:
                    found = p
                    break
            at = (at + np.uint64(1)) & mask
        if found < 0:
            found = patterns
            slots[at] = found
            hashes[found] = h
            for k in range(COLUMNS):
                keys[found, k] = rows[r, k]
            count[found] = 0
            size[found] = 0
            tail = end
            start[found + 1] = tail
            patterns += 1
        count[found] += 1
        size[found] += sizes[r]
    return patterns


@compiled
def compare_patterns(keys: Ints, start: Ints, classes: SmallInts, a: Int, b: Int) -> Int:
    """Order of two patterns: by their columns, then by their lists of classes; -1, 0 or 1."""
    for k in range(keys.shape[1]):
        if keys[a, k] != keys[b, k]:
            return -1 if keys[a, k] < keys[b, k] else 1
    i, j = start[a], start[b]
    while i < start[a + 1] and j < start[b + 1]:
        if classes[i] != classes[j]:
            return -1 if classes[i] < classes[j] else 1
        i += 1
        j += 1
    if i == start[a + 1] and j == start[b + 1]:
        return 0
    return -1 if i == start[a + 1] else 1


@compiled
def sort_patterns(keys: Ints, start: Ints, classes: SmallInts, order: Ints, spare: Ints) -> Ints:
    """The patterns' numbers in order: a merge sort, stable. Both arrays are used; one is the result.

    `order` holds the numbers to begin with; halves that are in order are only copied, so a good order to
    begin with saves most comparisons. numba's own sorts take no comparison. O(n log n) at worst.
    """
    n = len(order)
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            if middle < high and (
                compare_patterns(keys, start, classes, order[middle - 1], order[middle]) <= 0
            ):
                for k in range(low, high):
                    spare[k] = order[k]
                continue
            i, j = low, middle
            for k in range(low, high):
                if i < middle and (
                    j >= high or compare_patterns(keys, start, classes, order[i], order[j]) <= 0
                ):
                    spare[k] = order[i]
                    i += 1
                else:
                    spare[k] = order[j]
                    j += 1
        order, spare = spare, order
        width *= 2
    return order


@compiled
def settle_ties(
    rough: Ints, keys: Ints, start: Ints, classes: SmallInts, order: Ints, first: Bytes
) -> None:
    """Finish an order by `rough`, and mark the first of each group of equal patterns.

    Where a smaller `rough` means an earlier pattern, only rows that are equal in it need be compared.
    """
    a = 0
    while a < len(order):
        b = a + 1
        while b < len(order) and rough[order[b]] == rough[order[a]]:
            b += 1
        if b - a > 1:
            order[a:b] = sort_patterns(keys, start, classes, order[a:b].copy(), order[a:b].copy())
        first[a] = 1
        for k in range(a + 1, b):
            first[k] = compare_patterns(keys, start, classes, order[k - 1], order[k]) != 0
        a = b


@compiled
def first_of_equals(keys: Ints, start: Ints, classes: SmallInts, order: Ints, first: Bytes) -> None:
    """Mark, in an order that puts equal patterns together, the first of each."""
    for k in range(len(order)):
        first[k] = k == 0 or compare_patterns(keys, start, classes, order[k - 1], order[k]) != 0


@compiled
def rough_order(broker: Ints, start: Ints, classes: SmallInts, out: Ints) -> Flag:
    """A number for each pattern, of its broker and first two classes: a smaller one comes earlier.

    False if a number did not fit; `out` is of no use then.
    """
    for p in range(len(out)):
        held = start[p + 1] - start[p]
        first = np.int64(classes[start[p]]) + 1 if held > 0 else np.int64(0)
        second = np.int64(classes[start[p] + 1]) + 1 if held > 1 else np.int64(0)
        if broker[p] >= _MOST_BROKERS or first >= _MOST_CLASSES or second >= _MOST_CLASSES:
            return False
        out[p] = broker[p] << 42 | first << 21 | second
    return True


@compiled
def gather_lists(start: Ints, classes: SmallInts, rows: Ints, into: Ints, out: SmallInts) -> None:
    """Copy the lists of some rows, one after another, to where `into` says each begins."""
    for k in range(len(rows)):
        at = start[rows[k]]
        for i in range(into[k + 1] - into[k]):
            out[into[k] + i] = classes[at + i]
