"""Compiled parts of counting: a hash table of distinct patterns, and hashes of event ids.

A pattern is a row of `COLUMNS` integers and an ascending list of class ids. The table is open addressing:
`slots` holds pattern numbers or -1; the patterns themselves lie one after another in the arrays beside it,
in the order in which they were first seen.
"""

import numpy as np

from ramify.compiled import Bytes, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined

__all__ = ["COLUMNS", "PUBLISHER", "TAGS", "hash_texts", "place_patterns", "tally_rows"]

COLUMNS = 6
"""split, pane, publisher, client, cell, tags."""

PUBLISHER = 2
TAGS = 5

_FNV = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_33 = np.uint64(33)


@inlined
def _mixed(h: Hash) -> Hash:
    """Spread over all 64 bits (the finaliser of MurmurHash3)."""
    h ^= h >> _33
    h *= _MIX_A
    h ^= h >> _33
    h *= _MIX_B
    h ^= h >> _33
    return h


@compiled
def hash_texts(offsets: SmallInts, data: Bytes, seed: Hash, out: Hashes) -> None:
    """A seeded 64-bit hash of each text (FNV-1a, then mixed). Part of the format: splits depend on it."""
    for k in range(len(out)):
        h = _FNV ^ seed
        for at in range(offsets[k], offsets[k + 1]):
            h = (h ^ np.uint64(data[at])) * _FNV_PRIME
        out[k] = _mixed(h)


@compiled
def place_patterns(hashes: Hashes, patterns: Int, slots: Ints) -> None:
    """File the first `patterns` patterns in an empty table, whose length is a power of two."""
    mask = np.uint64(len(slots) - 1)
    for p in range(patterns):
        at = hashes[p] & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = p


@compiled
def tally_rows(
    rows: Ints,
    ends: Ints,
    ids: SmallInts,
    sizes: Ints,
    classes: Int,
    vacant: Bytes,
    patterns: Int,
    slots: Ints,
    hashes: Hashes,
    keys: Ints,
    start: Ints,
    pool: SmallInts,
    count: Ints,
    size: Ints,
) -> Int:
    """Count rows into the table; returns how many patterns there are now.

    `rows` is (events, COLUMNS); an event whose publisher is below 0 is left out. Ids from `classes` on are
    tags: they become bits. Vacant classes are dropped. There must be room for one more pattern per row and
    one more class per id. O(ids) expected.
    """
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
                h = _mixed(h ^ np.uint64(c + 1))
        rows[r, TAGS] = np.int64(tags)
        for k in range(COLUMNS):
            h = _mixed(h ^ np.uint64(rows[r, k])) * _FNV_PRIME
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
