"""The matcher's inner loops, compiled with numba: find candidates, evaluate their programs, match rows.

What a program says, and what features and groups are, is in `program`; predicates are evaluated by
`element_kernels` and `joint_kernels`.

What runs once per candidate is `inlined`: numba passes every array of a call as seven words, so calls with
many arrays cost more than the work they do.
"""

from typing import Any

import numpy as np

from ramify.compiled import Bytes, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined
from ramify.content.events.columns import (
    BOOL,
    FLOAT,
    INT,
    MIXED,
    NULL,
    RUN_COLUMN,
    RUN_FIRST,
    RUN_KIND,
    RUN_LAST,
    RUN_LIST,
    RUN_PLACED,
    STRING,
    TIME,
    Columns,
)
from ramify.content.matching.element_kernels import (
    element_in_set,
    general_holds,
    string_holds,
    string_passes,
)
from ramify.content.matching.joint_kernels import joint_holds
from ramify.content.matching.literal_kernels import LITERAL_HASH, LITERAL_WORDS, SCAN_WORDS, scan_literals
from ramify.content.matching.postings import FNV_PRIME, find, hash_number, mix, pair_hash, seed_of
from ramify.content.matching.program import (
    ALWAYS,
    ARRAY,
    BOOLEAN_IS,
    EQUALS,
    EQUALS_NOCASE,
    EXPLICIT_NULL,
    GENERAL,
    HAS_PREFIX,
    HAS_SUFFIX,
    JOINT,
    LIST,
    NUMBER,
    NUMBER_IN,
    NUMBER_IS,
    SCALAR,
    SET,
    TESTS,
    TIME_IN,
    TIME_IS,
    WANTED,
    Index,
)

__all__ = ["SORTED_AS_BITS", "grown", "match_rows", "set_bit", "take_bits"]

_ZERO = np.int64(0)
_ONE, _6, _58, _63 = np.uint64(1), np.uint64(6), np.uint64(58), np.uint64(63)
# the upper six bits of this number times 2^k differ for every k; so they say which k it was
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_AT = np.zeros(64, np.uint8)
_BIT_AT[[(0x03F79D71B4CB0A89 << k) % 2**64 >> 58 for k in range(64)]] = range(64)
# ids up to here are sorted as bits: beyond, to look for the words that are filled takes longer
SORTED_AS_BITS = 1 << 18
# no string led to a list: the complement is beyond every element
_NOTHING = np.int64(-(2**63))


@compiled
def grown(array: Any, need: Int) -> Any:
    """A larger copy. (A loop: numba's slice assignment compiles seconds of error messages.)"""
    bigger = np.empty(max(need, 2 * len(array)), array.dtype)
    for k in range(len(array)):
        bigger[k] = array[k]
    return bigger


@compiled
def widened(features: Hashes, have: Ints, width: Int) -> Hashes:
    """A copy with room for more features of each class."""
    wider = np.empty((len(features), width), np.uint64)
    for f in range(len(features)):
        for k in range(have[f]):
            wider[f, k] = features[f, k]
    return wider


@compiled
def suffix_hash(seed: Hash, data: Bytes, start: Int, end: Int, length: Int) -> Hash:
    """The hash of the last bytes of a string."""
    h = seed
    for k in range(length):
        h = (h ^ np.uint64(data[end - 1 - k])) * FNV_PRIME
    return mix(h ^ np.uint64(HAS_SUFFIX))


@compiled
def nocase_hash(seed: Hash, data: Bytes, start: Int, end: Int) -> Hash:
    """The hash of a string with its ASCII letters folded."""
    h = seed
    for k in range(start, end):
        b = data[k]
        h = (h ^ np.uint64(b + 32 if 65 <= b <= 90 else b)) * FNV_PRIME
    return mix(h ^ np.uint64(EQUALS_NOCASE))


@inlined
def lowest_bit(x: Hash) -> Hash:
    """The number of the lowest bit that is set."""
    return np.uint64(_BIT_AT[((x & (~x + _ONE)) * _DE_BRUIJN) >> _58])


@inlined
def set_bit(bits: Hashes, filled: Hashes, value: Int) -> None:
    """Set a bit, and in `filled` that of the word which it is in."""
    bit = np.uint64(value)
    word = bit >> _6
    bits[word] |= _ONE << (bit & _63)
    filled[word >> _6] |= _ONE << (word & _63)


@compiled
def take_bits(bits: Hashes, filled: Hashes, out: SmallInts, at: Int) -> Int:
    """Write the numbers of the bits that are set, ascending, from `at` on, and clear them.

    Returns the place behind the last.
    """
    for k in range(len(filled)):
        words = filled[k]
        filled[k] = 0
        while words:
            word = (np.uint64(k) << _6) | lowest_bit(words)
            words &= words - _ONE
            some = bits[word]
            bits[word] = 0
            while some:
                out[at] = np.int32((word << _6) | lowest_bit(some))
                at += 1
                some &= some - _ONE
    return at


@compiled
def sort_ids(ids: SmallInts, begin: Int, end: Int, bits: Hashes, filled: Hashes) -> None:
    """Sort distinct numbers, a part of an array, in place: many as bits if these have room, else Shell's.

    `bits` and `filled`, a bit for each word of `bits`, are 0 before and after.
    """
    if len(bits) and end - begin > max(3, len(filled) // 8):
        for k in range(begin, end):
            set_bit(bits, filled, ids[k])
        take_bits(bits, filled, ids, begin)
        return
    gap = 1
    while gap < (end - begin) // 3:
        gap = 3 * gap + 1
    while gap:
        for i in range(begin + gap, end):
            value = ids[i]
            j = i - gap
            while j >= begin and ids[j] > value:
                ids[j + gap] = ids[j]
                j -= gap
            ids[j + gap] = value
        gap //= 3


@inlined
def string_features(
    c: Int,
    start: Int,
    end: Int,
    data: Bytes,
    first_class: Int,
    last_class: Int,
    class_kind: Ints,
    class_length: Ints,
    features: Hashes,
    have: Ints,
) -> Hash:
    """Note the features of a string of column c; returns the hash of the whole string."""
    seed = seed_of(c)
    h = seed
    at = start
    f = first_class
    while f < last_class and class_kind[f] == HAS_PREFIX and class_length[f] <= end - start:
        while at < start + class_length[f]:
            h = (h ^ np.uint64(data[at])) * FNV_PRIME
            at += 1
        features[f, have[f]] = mix(h ^ np.uint64(HAS_PREFIX))
        have[f] += 1
        f += 1
    while at < end:
        h = (h ^ np.uint64(data[at])) * FNV_PRIME
        at += 1
    h = mix(h ^ np.uint64(EQUALS))
    while f < last_class:
        kind = class_kind[f]
        if kind == EQUALS:
            features[f, have[f]] = h
            have[f] += 1
        elif kind == HAS_SUFFIX and class_length[f] <= end - start:
            features[f, have[f]] = suffix_hash(seed, data, start, end, class_length[f])
            have[f] += 1
        elif kind == EQUALS_NOCASE:
            features[f, have[f]] = nocase_hash(seed, data, start, end)
            have[f] += 1
        f += 1
    return h


@inlined
def number_features(
    c: Int,
    kind: Int,
    first: Int,
    last: Int,
    whole: Ints,
    order: Ints,
    first_class: Int,
    last_class: Int,
    class_kind: Ints,
    class_length: Ints,
    features: Hashes,
    have: Ints,
) -> None:
    """Note the features of the elements of column c: what they equal, which intervals they lie in."""
    exact, interval = NUMBER_IS, NUMBER_IN
    if kind == TIME:
        exact, interval = TIME_IS, TIME_IN
    elif kind == BOOL:
        exact, interval = BOOLEAN_IS, -1
    for f in range(first_class, last_class):
        level = class_length[f]
        for e in range(first, last):
            if class_kind[f] == exact:
                features[f, have[f]] = hash_number(c, exact, 0, whole[e])
                have[f] += 1
            elif class_kind[f] == interval:
                features[f, have[f]] = hash_number(c, interval, level, order[e] >> level)
                have[f] += 1


@compiled
def nth_string(item_kind: Any, item_base: Int, first: Int, n: Int) -> Int:
    """The element that is the n-th string, counted from 0, of those of several kinds from `first` on."""
    e = first
    while item_kind[e - item_base] != STRING or n > 0:
        if item_kind[e - item_base] == STRING:
            n -= 1
        e += 1
    return e


@compiled
def match_rows(
    ix: Index, cols: Columns, first_row: Int, last_row: Int, filters: Int
) -> tuple[Ints, SmallInts]:
    """Match rows: (ends, ids), the sorted ids of row r being ids[ends[r]:ends[r + 1]].

    Cost per row: the bytes of its strings, a look-up per feature and pair of features that some box is
    filed under, and for every box found there an evaluation that mostly ends at its first predicate.

    One long function on purpose: its parts share a dozen arrays. With functions of their own that are not
    inlined it took about a third longer at 1,000 subscriptions; the reason was not isolated.
    """
    words, text, postings, table = ix.words, ix.bytes, ix.postings, ix.table
    kind, offsets, values, order, data = cols.kind, cols.offsets, cols.values, cols.order, cols.bytes
    class_start, class_kind, class_length = ix.class_start, ix.class_kind, ix.class_length
    group_a, group_b, whole, is_list = ix.group_a, ix.group_b, cols.whole, cols.is_list
    column_state, base, list_base, list_offsets = cols.state, cols.base, cols.list_base, cols.list_offsets
    column_heads, runs, run_start = ix.heads, cols.runs, cols.run_start
    item_kind, item_base, text_base = cols.item_kind, cols.items_at[0], cols.items_at[1]
    test_heads, test_codes, literals, scans = ix.test_heads, ix.test_codes, ix.literals, ix.scans
    grams, gram_bits, literal_bytes = ix.grams, ix.gram_bits, ix.literal_bytes
    columns = len(kind)
    # see `literal_kernels`: what is known about the row's strings, and the literals found in them
    memo = np.full(1 + len(test_heads) // 2 + len(literals) // LITERAL_WORDS, -1, np.int64)
    hits = np.empty(len(literals) // LITERAL_WORDS, np.int64)
    # what the row holds, by column: its state, the kind and range of its elements, whether these have
    # places, and where the hashes of its strings begin
    state = np.zeros(columns, np.int64)
    row_kind = np.zeros(columns, np.int64)
    placed = np.zeros(columns, np.bool_)
    first = np.zeros(columns, np.int64)
    last = np.zeros(columns, np.int64)
    hash_base = np.zeros(columns, np.int64)
    hashes = np.empty(256, np.uint64)
    # the row's features: features[class, k], k < have[class]
    features = np.empty((len(class_kind), 4), np.uint64)
    have = np.zeros(len(class_kind), np.int64)
    class_column = np.zeros(len(class_kind), np.int64)
    for c in range(columns):
        for f in range(class_start[c], class_start[c + 1]):
            class_column[f] = c
    # lists of boxes to try; the string that led to each, ~it if that was half of a pair, or _NOTHING
    heads = np.empty(512, np.int64)
    led_by = np.empty(512, np.int64)
    # see `sort_ids`
    bits = np.zeros((filters + 63) // 64 if filters <= SORTED_AS_BITS else 0, np.uint64)
    filled = np.zeros((len(bits) + 63) // 64, np.uint64)
    # filters that the row matched already
    seen = np.full(filters, -1, np.int32)
    ends = np.empty(last_row - first_row + 1, np.int64)
    ends[0] = 0
    ids = np.empty(max(1024, 8 * (last_row - first_row)), np.int32)
    n = 0
    for row in range(first_row, last_row):
        found = 0
        hashed = 0
        hit = np.int64(0)
        memo[0] = row
        have[:] = 0
        if columns + 1 > len(heads):
            heads, led_by = grown(heads, columns + 1), grown(led_by, columns + 1)
        if column_heads[0] >= 0:
            heads[0], led_by[0] = column_heads[0], _NOTHING
            found = 1
        run = run_start[row] if len(run_start) else _ZERO
        run_end = run_start[row + 1] if len(run_start) else _ZERO
        any_placed = False
        for c in range(columns):
            placed[c] = False
            if run < run_end and runs[run, RUN_COLUMN] == c:
                state[c] = LIST if runs[run, RUN_LIST] else 1
                row_kind[c] = runs[run, RUN_KIND]
                first[c], last[c] = runs[run, RUN_FIRST], runs[run, RUN_LAST]
                placed[c] = runs[run, RUN_PLACED] == 1
                any_placed |= placed[c]
                run += 1
                if state[c] == 1 and row_kind[c] == MIXED:
                    state[c] = 2  # a null that stands alone
                    continue
            else:
                state[c] = column_state[c, row]
                if state[c] != 1:
                    continue
                row_kind[c] = kind[c]
                first[c] = base[c] + row
                last[c] = first[c] + 1
                if is_list[c]:
                    state[c] = LIST
                    k = list_base[c] + row
                    first[c] = base[c] + list_offsets[k]
                    last[c] = base[c] + list_offsets[k + 1]
            if last[c] - first[c] > features.shape[1]:
                features = widened(features, have, 2 * (last[c] - first[c]))
            if column_heads[1 + c] >= 0:
                heads[found], led_by[found] = column_heads[1 + c], _NOTHING
                found += 1
            if row_kind[c] < STRING:
                number_features(
                    c,
                    row_kind[c],
                    first[c],
                    last[c],
                    whole,
                    order,
                    class_start[c],
                    class_start[c + 1],
                    class_kind,
                    class_length,
                    features,
                    have,
                )
                continue
            hash_base[c] = hashed
            if hashed + last[c] - first[c] > len(hashes):
                hashes = grown(hashes, hashed + last[c] - first[c])
            for e in range(first[c], last[c]):
                k, at = row_kind[c], e
                if k == MIXED:
                    k, at = np.int64(item_kind[e - item_base]), e - item_base + text_base
                if k == STRING:
                    hashes[hashed] = string_features(
                        c,
                        offsets[at],
                        offsets[at + 1],
                        data,
                        class_start[c],
                        class_start[c + 1],
                        class_kind,
                        class_length,
                        features,
                        have,
                    )
                elif k != NULL:
                    number_features(
                        c,
                        k,
                        e,
                        e + 1,
                        whole,
                        order,
                        class_start[c],
                        class_start[c + 1],
                        class_kind,
                        class_length,
                        features,
                        have,
                    )
                hashed += 1
                if k == STRING and scans[SCAN_WORDS * c]:
                    hit = scan_literals(
                        c,
                        offsets[at],
                        offsets[at + 1],
                        last[c] - first[c] == 1,
                        data,
                        scans,
                        grams,
                        gram_bits,
                        literals,
                        literal_bytes,
                        memo,
                        1 + len(test_heads) // 2,
                        hits,
                        hit,
                    )
        for k in range(hit):
            head = find(table, np.uint64(literals[LITERAL_WORDS * hits[k] + LITERAL_HASH]))
            if head >= 0:
                if found == len(heads):
                    heads, led_by = grown(heads, found + 1), grown(led_by, found + 1)
                heads[found], led_by[found] = head, _NOTHING
                found += 1
        for g in range(len(group_a)):
            a, b = group_a[g], group_b[g]
            # a string has one feature of this kind, so they stand in the order of the strings
            text_a = b < 0 or state[class_column[a]] == LIST
            text_of = class_column[a] if text_a else class_column[b]
            if class_kind[a if text_a else b] != EQUALS:
                text_of = -1
            for i in range(have[a]):
                for j in range(1 if b < 0 else have[b]):
                    h = features[a, i] if b < 0 else pair_hash(features[a, i], features[b, j])
                    head = find(table, h)
                    if head >= 0:
                        if found == len(heads):
                            heads, led_by = grown(heads, found + 1), grown(led_by, found + 1)
                        heads[found] = head
                        led_by[found] = _NOTHING
                        if text_of >= 0:
                            e = first[text_of] + (i if text_a else j)
                            if row_kind[text_of] == MIXED:
                                e = nth_string(item_kind, item_base, first[text_of], i if text_a else j)
                            led_by[found] = e if b < 0 else ~e
                        found += 1
        begin = n
        for k in range(found):
            posting, led = heads[k], led_by[k]
            alone = led >= 0
            if not alone:
                led = ~led
            # the bit of `flags` for what led here; 0 until that is seen to be the string of the list's
            # sure postings (see `postings`), which then hold without being evaluated
            settled = np.int64(0)
            while posting >= 0:
                while settled and posting >= 0 and postings[2 * posting + 1] < 0:
                    p = ~np.int64(postings[2 * posting + 1])
                    posting = np.int64(postings[2 * posting])
                    owner = words[p] >> 16
                    if owner >= 0 and (words[p + 1] >> 8) & settled and seen[owner] != row:
                        seen[owner] = row
                        if n == len(ids):
                            ids = grown(ids, n + 1)
                        ids[n] = owner
                        n += 1
                if posting < 0:
                    break
                p = np.int64(postings[2 * posting + 1])
                posting = np.int64(postings[2 * posting])
                sure = p < 0
                if sure:
                    p = ~p
                holds = words[p] >= 0
                owner = words[p] >> 16
                count = words[p] & 0xFFFF if holds else 0
                p += 1
                for _ in range(count):
                    packed = words[p]
                    op, flags, c = packed & 0xFF, (packed >> 8) & 0xFF, packed >> 40
                    if op == GENERAL:
                        holds = general_holds(
                            ix, cols, memo, p + 1, state[c], row_kind[c], first[c], last[c]
                        )
                    elif op == JOINT:
                        holds = True
                        if any_placed or flags & ALWAYS:
                            wanted = flags & WANTED == WANTED
                            holds = wanted == joint_holds(
                                ix, cols, memo, p, state, row_kind, first, last, placed
                            )
                    else:
                        holds = state[c] == 2 and flags & EXPLICIT_NULL != 0
                        if (state[c] == 1 and flags & SCALAR) or (state[c] == LIST and flags & ARRAY):
                            # the string that led here goes first: it is mostly the one that is asked for
                            hinted = row_kind[c] >= STRING and first[c] <= led < last[c]
                            # a sure posting is for that string alone; another has a list of its own
                            end = first[c] if sure else last[c]
                            for t in range(first[c] - hinted, end):
                                e = led if t < first[c] else t
                                k = row_kind[c]
                                if k == MIXED:
                                    k = np.int64(item_kind[e - item_base])
                                if k == STRING:
                                    h = hashes[hash_base[c] + e - first[c]]
                                    at = e if row_kind[c] == STRING else e - item_base + text_base
                                    if op < TESTS:
                                        holds = string_holds(
                                            op, words, text, p + 1, h, data, offsets[at], offsets[at + 1]
                                        )
                                    else:
                                        holds = string_passes(
                                            op,
                                            words,
                                            text,
                                            p + 1,
                                            data,
                                            offsets[at],
                                            offsets[at + 1],
                                            test_heads,
                                            test_codes,
                                            memo,
                                        )
                                elif op == NUMBER:
                                    holds = INT <= k <= FLOAT and words[p + 1] <= order[e] <= words[p + 2]
                                elif op == SET:
                                    holds = element_in_set(
                                        words,
                                        text,
                                        p + 1,
                                        k,
                                        values[e],
                                        _ZERO,
                                        data,
                                        test_heads,
                                        test_codes,
                                        memo,
                                    )
                                if holds:
                                    break
                    if not holds:
                        break
                    p += (packed >> 16) & 0xFFFFFF
                    if sure and alone:
                        settled = np.int64(1 if state[c] == 1 else 2)
                if holds and seen[owner] != row:
                    seen[owner] = row
                    if n == len(ids):
                        ids = grown(ids, n + 1)
                    ids[n] = owner
                    n += 1
        sort_ids(ids, begin, n, bits, filled)
        ends[row - first_row + 1] = n
    return ends, ids[:n].copy()
