"""String tests by number, and the literals that they need, found in one pass over a string: compiled.

A *literal* is text that a string must hold to pass a test: `evil` of `%evil%.exe`. All literals of a column
are looked for at once. Each has a *gram*, four of its bytes that few other literals have (fewer if it is
shorter), and stands in a list under the hash of its gram. The scan slides a window of four bytes along the
string; a bitmap says for nearly every window that no gram has its hash, and only the literals of the others
are compared, byte by byte. Where a column has case-less tests, ASCII letters are folded first.

    test     test_heads: where its codes begin, 2 literal + whether finding that is enough, or -1
             test_codes: [kind, codes, code...]
    literal  [next in its list or -1, first byte, length, end of its gram, column, gram, hash, 0]
    scan     [literals, folded?, lengths of short grams as bits, first list, mask of lists,
              first byte of the bitmap, mask of its bits, 0]     one per column
    memo     [row, verdicts by test..., finds by literal...]

A verdict is 2 (start + end) + whether the test holds, for the string data[start:end]; only empty strings
have the same sum, and they have the same verdict. A find is 2 row + whether the row has just one string in
the column: then finding the literal may decide a test. What is older than the row is no verdict and no
find, so nothing needs to be cleared.

Cost: a few operations per byte, and a comparison for each window whose gram some literal has. Many literals
of the same few letters share their grams, so the worst case is as slow as testing them one by one.
"""

import numpy as np

from ramify.compiled import Bytes, Flag, Hash, Int, Ints, SmallInts, compiled, inlined
from ramify.content.matching.text_kernels import test_holds

__all__ = [
    "GRAM",
    "LITERAL_HASH",
    "LITERAL_WORDS",
    "SCAN_WORDS",
    "place_literals",
    "scan_literals",
    "test_verdict",
]

LITERAL_WORDS, SCAN_WORDS = 8, 8
LITERAL_HASH = 6
GRAM = 4
"""Bytes of a gram."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_WINDOW = np.uint64(0xFFFFFFFF)
_8, _32, _40 = np.uint64(8), np.uint64(32), np.uint64(40)
# every byte as it is, then every byte with ASCII letters folded
_BYTES = np.concatenate([np.arange(256), np.frombuffer(bytes(range(256)).lower(), np.uint8)]).astype(
    np.uint64
)


@inlined
def gram_hash(gram: Hash) -> Int:
    """24 bits of a window, or of a short one with its length above it."""
    return np.int64((gram * _SPREAD) >> _40)


@compiled
def gram_at(text: Bytes, at: Int, length: Int) -> Hash:
    """The gram in `length` bytes of a text."""
    gram = np.uint64(0)
    for k in range(length):
        gram = (gram << _8) | np.uint64(text[at + k])
    return gram if length == GRAM else gram | (np.uint64(length) << _32)


@compiled
def place_literals(
    first: Int,
    last: Int,
    literals: Ints,
    text: Bytes,
    scans: Ints,
    grams: SmallInts,
    bits: Bytes,
    counts: SmallInts,
) -> None:
    """Choose the grams of some literals, the rarest so far, and put the literals into their lists.

    `counts`, a power of two of them, counts the grams of all literals by their hashes.
    """
    mask = len(counts) - 1
    for k in range(first, last):
        literal = LITERAL_WORDS * k
        at, length = literals[literal + 1], min(np.int64(GRAM), literals[literal + 2])
        for i in range(literals[literal + 2] - length + 1):
            counts[gram_hash(gram_at(text, at + i, length)) & mask] += 1
    for k in range(first, last):
        literal = LITERAL_WORDS * k
        at, length = literals[literal + 1], min(np.int64(GRAM), literals[literal + 2])
        best: Int = np.int64(0)
        for i in range(literals[literal + 2] - length + 1):
            count = counts[gram_hash(gram_at(text, at + i, length)) & mask]
            if count < counts[gram_hash(gram_at(text, at + best, length)) & mask]:
                best = i
        gram = gram_at(text, at + best, length)
        h = gram_hash(gram)
        scan = SCAN_WORDS * literals[literal + 4]
        if length < GRAM:
            scans[scan + 2] |= 1 << length
        bit = h & scans[scan + 6]
        bits[scans[scan + 5] + (bit >> 3)] |= 1 << (bit & 7)
        slot = scans[scan + 3] + (h & scans[scan + 4])
        literals[literal] = grams[slot]
        literals[literal + 3] = best + length
        literals[literal + 5] = np.int64(gram)
        grams[slot] = k
        scans[scan] += 1


@compiled
def find_literals(
    gram: Hash,
    h: Int,
    scan: Int,
    after: Int,
    start: Int,
    end: Int,
    alone: Flag,
    data: Bytes,
    scans: Ints,
    grams: SmallInts,
    literals: Ints,
    text: Bytes,
    memo: Ints,
    base: Int,
    hits: Ints,
    hit: Int,
) -> Int:
    """Note the literals of a list whose gram ends before `after`. Returns how many hits there are now."""
    fold = 256 * scans[scan + 1]
    find = 2 * memo[0] + (1 if alone else 0)
    k = np.int64(grams[scans[scan + 3] + (h & scans[scan + 4])])
    while k >= 0:
        literal = LITERAL_WORDS * k
        if literals[literal + 5] == np.int64(gram) and memo[base + k] != find:
            at, length = after - literals[literal + 3], literals[literal + 2]
            same = at >= start and at + length <= end
            i, text_at = np.int64(0), literals[literal + 1]
            while same and i < length:
                same = _BYTES[fold + data[at + i]] == text[text_at + i]
                i += 1
            if same:
                memo[base + k] = find
                hits[hit] = k
                hit += 1
        k = literals[literal]
    return hit


@compiled
def scan_literals(
    c: Int,
    start: Int,
    end: Int,
    alone: Flag,
    data: Bytes,
    scans: Ints,
    grams: SmallInts,
    bits: Bytes,
    literals: Ints,
    text: Bytes,
    memo: Ints,
    base: Int,
    hits: Ints,
    hit: Int,
) -> Int:
    """Find the literals of column c in the string data[start:end], each once per row.

    `base` is where the finds begin in `memo`, `hit` how many hits the row has; returns how many it has now.
    """
    scan = SCAN_WORDS * c
    fold, shorts = 256 * scans[scan + 1], scans[scan + 2]
    bits_at, mask = scans[scan + 5], scans[scan + 6]
    window = np.uint64(0)
    for i in range(start, end):
        window = ((window << _8) | _BYTES[fold + data[i]]) & _WINDOW
        h = gram_hash(window)
        bit = h & mask
        if (bits[bits_at + (bit >> 3)] >> (bit & 7)) & 1:
            hit = find_literals(
                window,
                h,
                scan,
                i + 1,
                start,
                end,
                alone,
                data,
                scans,
                grams,
                literals,
                text,
                memo,
                base,
                hits,
                hit,
            )
        if shorts:
            for length in range(1, GRAM):
                if (shorts >> length) & 1:
                    short = window & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1))
                    short |= np.uint64(length) << _32
                    h = gram_hash(short)
                    bit = h & mask
                    if (bits[bits_at + (bit >> 3)] >> (bit & 7)) & 1:
                        hit = find_literals(
                            short,
                            h,
                            scan,
                            i + 1,
                            start,
                            end,
                            alone,
                            data,
                            scans,
                            grams,
                            literals,
                            text,
                            memo,
                            base,
                            hits,
                            hit,
                        )
    return hit


@inlined
def test_verdict(
    t: Int, data: Bytes, start: Int, end: Int, test_heads: Ints, test_codes: Ints, memo: Ints
) -> Flag:
    """Whether a string of the row passes a test, which is evaluated once."""
    literal = test_heads[2 * t + 1]
    find = memo[1 + len(test_heads) // 2 + (literal >> 1)] if literal >= 0 else 2 * memo[0]
    holds = find >> 1 == memo[0]
    if holds and not find & literal & 1:
        verdict = memo[1 + t]
        if verdict >> 1 != start + end:
            p = test_heads[2 * t]
            passed = test_holds(test_codes[p], data, start, end, test_codes, p + 2, test_codes[p + 1])
            verdict = 2 * (start + end) + (1 if passed else 0)
            memo[1 + t] = verdict
        holds = verdict & 1 == 1
    return holds
