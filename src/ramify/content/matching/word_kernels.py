"""Matching where every box is found by one string alone: lists of words, as keyword subscriptions are.

Owns a faster way to what `kernels.match_rows` finds, for an index whose boxes are all filed under the whole
strings of one attribute and ask for nothing else (their postings are *sure*, see `postings`). Then the list
of a string comes to the same ids in every row, so it is walked once a batch. What rows match is collected
as bits, which need no sorting and drop what is found twice.

The hot loop has no array that it replaces: numba would count references to it at every turn. Where room
ends, it returns, and goes on with more.
"""

import numpy as np

from ramify.compiled import Bytes, Flag, Hash, Hashes, Int, Ints, SmallInts, compiled
from ramify.content.events.columns import STRING, Columns
from ramify.content.matching.element_kernels import starts_with
from ramify.content.matching.kernels import SORTED_AS_BITS, grown, set_bit, take_bits
from ramify.content.matching.postings import FNV_PRIME, find, mix, seed_of, sole_text
from ramify.content.matching.program import EQUALS, Index

__all__ = ["match_words"]

# postings a row beyond which a batch meets few of their lists twice
_POSTINGS_PER_ROW = 8
# why the loop returned
_DONE, _UNSURE, _MORE_ENTRIES, _MORE_OWNERS, _MORE_IDS = 0, 1, 2, 3, 4
# where it stands: the next row, ids written, entries made, owners in them
_ROW, _IDS, _ENTRIES, _OWNERS, _STANDS = 0, 1, 2, 3, 4


@compiled
def match_words(
    ix: Index, cols: Columns, first_row: Int, last_row: Int, filters: Int
) -> tuple[Flag, Ints, SmallInts]:
    """(true, ends, ids) as `match_rows` has them, or false first where the index is of another kind.

    Cost per row: the bytes of its strings, a look-up for each, a step per match, and a word for every 4,096
    filters. To see that the index is of another kind costs little: mostly the first rows tell.
    """
    rows = last_row - first_row
    ends = np.zeros(rows + 1, np.int64)
    ids = np.empty(0, np.int32)
    c = words_column(ix, cols)
    if c < 0 or filters > SORTED_AS_BITS or len(ix.postings) > 2 * _POSTINGS_PER_ROW * rows:
        return False, ends, ids
    known = np.zeros(len(ix.postings) // 2, np.int32)
    entries = np.empty(4096, np.int64)
    owners = np.empty(4096, np.int32)
    bits = np.zeros((filters + 63) // 64, np.uint64)
    filled = np.zeros((len(bits) + 63) // 64, np.uint64)
    ids = np.empty(max(1024, 8 * rows), np.int32)
    stands = np.zeros(_STANDS, np.int64)
    while True:
        ended = match_some(
            ix, cols, c, first_row, last_row, known, entries, owners, bits, filled, ends, ids, stands
        )
        if ended == _DONE:
            return True, ends, ids[: stands[_IDS]].copy()
        if ended == _UNSURE:
            return False, ends, ids
        if ended == _MORE_ENTRIES:
            entries = grown(entries, 2 * len(entries))
        elif ended == _MORE_OWNERS:
            owners = grown(owners, 2 * len(owners))
        else:
            ids = grown(ids, 2 * len(ids))


@compiled
def words_column(ix: Index, cols: Columns) -> Int:
    """The column whose whole strings all boxes are filed under, or -1."""
    if len(ix.group_a) != 1 or ix.group_b[0] >= 0 or ix.class_kind[ix.group_a[0]] != EQUALS:
        return np.int64(-1)
    for k in range(len(ix.heads)):
        if ix.heads[k] >= 0:
            return np.int64(-1)
    for c in range(len(cols.kind)):
        if ix.class_start[c] <= ix.group_a[0] < ix.class_start[c + 1]:
            return np.int64(c if cols.kind[c] == STRING and not cols.mixed[c] else -1)
    return np.int64(-1)


@compiled
def match_some(
    ix: Index,
    cols: Columns,
    c: Int,
    first_row: Int,
    last_row: Int,
    known: SmallInts,
    entries: Ints,
    owners: SmallInts,
    bits: Hashes,
    filled: Hashes,
    ends: Ints,
    ids: SmallInts,
    stands: Ints,
) -> Int:
    """Go on with the rows until all are done or something is in the way; says which.

    `known` has, by the head of a list, one more than the number of its entry, or 0; an entry is four words,
    where the list's string begins in the programs and its length, then its range of `owners`.
    """
    words, text, postings, table = ix.words, ix.bytes, ix.postings, ix.table
    offsets, data, list_offsets = cols.offsets, cols.bytes, cols.list_offsets
    state, base, list_base, is_list = cols.state[c], cols.base[c], cols.list_base[c], cols.is_list[c]
    flag = np.int64(2 if is_list else 1)
    seed, kind = seed_of(c), np.uint64(EQUALS)
    n = stands[_IDS]
    for row in range(first_row + stands[_ROW], last_row):
        first, last = base + row, base + row + 1
        if is_list:
            first, last = base + list_offsets[list_base + row], base + list_offsets[list_base + row + 1]
        if state[row] != 1:
            last = first
        stop, most = _DONE, np.int64(0)
        for e in range(first, last):
            start, end = offsets[e], offsets[e + 1]
            h = seed
            for k in range(start, end):
                h = (h ^ np.uint64(data[k])) * FNV_PRIME
            h = mix(h ^ kind)
            head = find(table, h)
            if head < 0:
                continue
            if known[head] == 0:
                stop = enter(words, text, postings, head, flag, h, known, entries, owners, stands)
                if stop != _DONE:
                    break
            entry = 4 * (np.int64(known[head]) - 1)
            at, length = entries[entry], entries[entry + 1]
            if starts_with(data, start, end, text, at, length, True):
                low, high = entries[entry + 2], entries[entry + 3]
                most += high - low
                for k in range(low, high):
                    set_bit(bits, filled, owners[k])
        if stop == _DONE and n + most > len(ids):
            stop = _MORE_IDS
        if stop != _DONE:
            # the row begins anew
            bits[:] = 0
            filled[:] = 0
            stands[_ROW], stands[_IDS] = row - first_row, n
            return stop
        n = take_bits(bits, filled, ids, n)
        ends[row - first_row + 1] = n
    stands[_ROW], stands[_IDS] = last_row - first_row, n
    return _DONE


@compiled
def enter(
    words: Ints,
    text: Bytes,
    postings: SmallInts,
    head: Int,
    flag: Int,
    h: Hash,
    known: SmallInts,
    entries: Ints,
    owners: SmallInts,
    stands: Ints,
) -> Int:
    """Make the entry of a list: the owners of its boxes that accept what `flag` stands for.

    Removed boxes are left out. Nothing is changed but by `_DONE`.
    """
    entry, low = 4 * stands[_ENTRIES], stands[_OWNERS]
    if entry + 4 > len(entries):
        return _MORE_ENTRIES
    at, length, high = np.int64(0), np.int64(-1), low
    posting = np.int64(head)
    while posting >= 0:
        p = ~np.int64(postings[2 * posting + 1])
        if p < 0:
            return _UNSURE
        if words[p] >= 0:
            if length < 0:
                at, length = sole_text(words, text, p, h)
            if (words[p + 1] >> 8) & flag:
                if high == len(owners):
                    return _MORE_OWNERS
                owners[high] = words[p] >> 16
                high += 1
        posting = np.int64(postings[2 * posting])
    entries[entry], entries[entry + 1], entries[entry + 2], entries[entry + 3] = at, length, low, high
    stands[_ENTRIES] += 1
    stands[_OWNERS] = high
    known[head] = stands[_ENTRIES]
    return _DONE
