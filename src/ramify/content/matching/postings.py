"""Hashes of features, the table that maps them to lists of boxes, and the lists: compiled.

The table is open addressing in one array: [2 k] a hash, [2 k + 1] the first posting of its list, -1 for an
empty list, -2 for a free slot. Postings are pairs in one array: [2 k] the next posting of the list or -1,
[2 k + 1] where the box's program begins, or ~that if the posting is *sure*. Two hashes that are equal share
a list, which costs time and nothing else: every box found is evaluated.

A posting is sure when its box asks for nothing but a string, and that string is the one that the box is
filed under here. The sure postings of a list are all filed under the same string, not only the same hash
(`push_keys` compares), so one evaluation answers for all of them.
"""

import numpy as np

from ramify.compiled import Bytes, Flag, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined

__all__ = [
    "EQUAL",
    "EQUALS",
    "FNV_PRIME",
    "HAS_LITERAL",
    "HAS_SUFFIX",
    "ONE_OF",
    "compact_postings",
    "find",
    "hash_bytes",
    "hash_number",
    "list_length",
    "mix",
    "pair_hash",
    "push_keys",
    "push_list",
    "rehash",
    "seed_of",
]


# see `program`: the ops of predicates that list strings, and three kinds of feature
EQUAL, ONE_OF = 2, 4
EQUALS = 2
HAS_SUFFIX = 3  # hashed from the end
HAS_LITERAL = 10
# how far a list is searched for a sure posting to compare with
_SEARCHED = 64
FNV_PRIME = np.uint64(0x100000001B3)
_FNV = np.uint64(0xCBF29CE484222325)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_33 = np.uint64(33)


@inlined
def mix(h: Hash) -> Hash:
    """Spread a hash over all 64 bits (the finaliser of MurmurHash3)."""
    h ^= h >> _33
    h *= _MIX_A
    h ^= h >> _33
    h *= _MIX_B
    h ^= h >> _33
    return h


@inlined
def seed_of(column: Int) -> Hash:
    """Where the hashes of a column start, so that equal values of two columns differ."""
    return _FNV ^ (np.uint64(column + 1) * _GOLDEN)


@compiled
def hash_bytes(column: Int, kind: Int, data: Bytes) -> Hash:
    """The hash of a string feature; suffixes are hashed from the end."""
    h = seed_of(column)
    n = len(data)
    for k in range(n):
        h = (h ^ np.uint64(data[n - 1 - k] if kind == HAS_SUFFIX else data[k])) * FNV_PRIME
    return mix(h ^ np.uint64(kind))


@inlined
def hash_number(column: Int, kind: Int, level: Int, value: Int) -> Hash:
    """The hash of a number, time or boolean, or of the dyadic interval `value` of a level."""
    return mix(seed_of(column) ^ (np.uint64(value) * _GOLDEN) ^ np.uint64(kind + 256 * level))


@inlined
def pair_hash(a: Hash, b: Hash) -> Hash:
    """The hash of two features that hold together."""
    return mix(a * _GOLDEN ^ b)


@inlined
def find(table: Ints, h: Hash) -> Int:
    """The head of a hash's list, or -1."""
    mask = np.uint64(len(table) // 2 - 1)
    k = np.int64(h & mask)
    wanted = np.int64(h)
    while table[2 * k + 1] != -2:
        if table[2 * k] == wanted:
            return table[2 * k + 1]
        k = (k + 1) & np.int64(mask)
    return np.int64(-1)


@compiled
def find_or_free(table: Ints, h: Hash) -> Int:
    """The slot of a hash, or the free one where it belongs."""
    mask = np.uint64(len(table) // 2 - 1)
    k = np.int64(h & mask)
    wanted = np.int64(h)
    while table[2 * k + 1] != -2 and table[2 * k] != wanted:
        k = (k + 1) & np.int64(mask)
    return k


@compiled
def sole_text(words: Ints, text: Bytes, p: Int, h: Hash) -> tuple[Int, Int]:
    """(first byte, length) of the string with this hash that the box at p asks for, and for nothing else.

    (-1, 0) if the box is another, or if two of its strings have the hash.
    """
    head, packed = words[p], words[p + 1]
    op, column = packed & 0xFF, packed >> 40
    found, found_length = np.int64(-1), np.int64(0)
    if head < 0 or head & 0xFFFF != 1 or (op != EQUAL and op != ONE_OF):
        return found, found_length
    q = p + 2
    count, stride = np.int64(1), np.int64(0)
    if op == ONE_OF:
        count, stride = words[q], words[q + 1]
        q += 2
    for _ in range(count):
        length = words[q] if op == EQUAL else words[q] & 0xFFFFFFFF
        at = (q + 1) * 8
        if hash_bytes(column, EQUALS, text[at : at + length]) == h:
            if found >= 0:
                return np.int64(-1), np.int64(0)
            found, found_length = at, length
        q += stride
    return found, found_length


@compiled
def is_sure(words: Ints, text: Bytes, postings: SmallInts, posting: Int, start: Int, h: Hash) -> Flag:
    """Whether the box at `start` may be a sure posting of the list that begins with `posting`."""
    at, length = sole_text(words, text, start, h)
    if at < 0:
        return False
    for _ in range(_SEARCHED):
        if posting < 0:
            return True
        other = np.int64(postings[2 * posting + 1])
        if other < 0:
            # a removed box no longer says what it asked for
            b, b_length = sole_text(words, text, ~other, h)
            if b >= 0:
                same = b_length == length
                for k in range(min(length, b_length)):
                    same = same and text[at + k] == text[b + k]
                return same
        posting = np.int64(postings[2 * posting])
    return False


@compiled
def push_keys(
    table: Ints,
    postings: SmallInts,
    first_posting: Int,
    hashes: Hashes,
    starts: SmallInts,
    words: Ints,
    text: Bytes,
) -> Int:
    """Put boxes into the lists of their hashes. Returns how many slots were newly taken."""
    taken = 0
    for k in range(len(hashes)):
        slot = find_or_free(table, hashes[k])
        if table[2 * slot + 1] == -2:
            table[2 * slot] = np.int64(hashes[k])
            table[2 * slot + 1] = -1
            taken += 1
        posting = first_posting + k
        head, start = table[2 * slot + 1], np.int64(starts[k])
        postings[2 * posting] = head
        postings[2 * posting + 1] = (
            ~start if is_sure(words, text, postings, head, start, hashes[k]) else start
        )
        table[2 * slot + 1] = posting
    return taken


@compiled
def push_list(heads: SmallInts, k: Int, postings: SmallInts, posting: Int, start: Int) -> None:
    """Put one box into the list whose head is heads[k]."""
    postings[2 * posting] = heads[k]
    postings[2 * posting + 1] = start
    heads[k] = posting


@compiled
def list_length(table: Ints, postings: SmallInts, h: Hash, most: Int) -> Int:
    """How many postings a hash has, counted up to `most`."""
    posting = find(table, h)
    n = 0
    while posting >= 0 and n < most:
        posting = postings[2 * posting]
        n += 1
    return n


@compiled
def rehash(old: Ints, new: Ints) -> Int:
    """Move the hashes that have boxes to another table. Returns how many there are."""
    count = 0
    for k in range(len(old) // 2):
        if old[2 * k + 1] >= 0:
            slot = find_or_free(new, np.uint64(old[2 * k]))
            new[2 * slot] = old[2 * k]
            new[2 * slot + 1] = old[2 * k + 1]
            count += 1
    return count


@compiled
def compact_list(
    head: Int, postings: SmallInts, box_start: Ints, new_start: Ints, new_postings: SmallInts, used: Int
) -> tuple[Int, Int]:
    """Lay one list out again without removed boxes. Returns (its new head, the next free posting).

    new_start[k] is where the box that began at box_start[k] begins now, or -1.
    """
    first = np.int64(-1)
    while head >= 0:
        old = np.int64(postings[2 * head + 1])
        sure = old < 0
        start = new_start[np.searchsorted(box_start, ~old if sure else old)]
        if start >= 0:
            if first < 0:
                first = used
            else:
                new_postings[2 * used - 2] = used
            new_postings[2 * used] = -1
            new_postings[2 * used + 1] = ~start if sure else start
            used += 1
        head = np.int64(postings[2 * head])
    return first, used


@compiled
def compact_postings(
    table: Ints,
    heads: SmallInts,
    postings: SmallInts,
    box_start: Ints,
    new_start: Ints,
    new_postings: SmallInts,
) -> Int:
    """Lay out again the lists of the table and of these heads. Returns how many postings are left."""
    used = np.int64(0)
    for k in range(len(table) // 2):
        if table[2 * k + 1] >= 0:
            table[2 * k + 1], used = compact_list(
                table[2 * k + 1], postings, box_start, new_start, new_postings, used
            )
    for k in range(len(heads)):
        if heads[k] >= 0:
            heads[k], used = compact_list(
                np.int64(heads[k]), postings, box_start, new_start, new_postings, used
            )
    return used
