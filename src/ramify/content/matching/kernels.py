"""The matcher's inner loops, compiled with numba: evaluate a box's program, find candidates, match rows.

Layout of a box's program, in int64 words (strings as packed UTF-8 bytes):

    box      [owner * 2^16 + predicates, predicate...]        negative: removed
    predicate[op + flags * 2^8 + words * 2^16 + column * 2^40, operand...]
      NUMBER   low high                   closed bounds, as `ordered` doubles
      EQUAL    length bytes...            the string itself
      PREFIX   length bytes...
      ONE_OF   count stride (hash and length, bytes..., padded to stride)...   a few strings
      SET      set
      GENERAL  absent null scalars? set  arrays? some set... none set...
    set      [words, numbers, (flo fhi ilo ihi)..., times, (lo hi)..., boolean mask,
              strings, at..., (lo length bytes... hi length bytes...)..., literals, literal..., length]
    literal  [wanted, tests, (kind codes code...)...]

`flags` say whether a scalar may satisfy the predicate (1) and whether an array may, by any of its
elements (2). GENERAL is everything else. Doubles are compared as integers of the same order (`ordered`).
A program has no pointers, so boxes can be moved freely, and it is short, since the time to match among
many boxes is the time to fetch their programs from memory.

A row's values have *features*: a string equals something, has prefixes and suffixes; a number equals
something and lies in one dyadic interval per level. Each feature belongs to a class (column, kind,
length or level) and has a hash. A *group* is a class, or a pair of classes, under whose hashes boxes are
filed; a row looks up its own hashes, group by group.

What runs once per candidate is `inlined`: numba passes every array of a call as seven words, so calls with
many arrays cost more than the work they do.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramify.compiled import Bytes, Flag, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined
from ramify.content.events.columns import BOOL, FLOAT, INT, STRING, TIME, Columns
from ramify.content.matching.postings import (
    EQUAL,
    EQUALS,
    FNV_PRIME,
    HAS_SUFFIX,
    ONE_OF,
    find,
    hash_number,
    mix,
    pair_hash,
    seed_of,
)
from ramify.content.matching.text_kernels import test_holds

__all__ = [
    "BOOLEAN_IS",
    "EQUAL",
    "EQUALS",
    "EQUALS_NOCASE",
    "GENERAL",
    "HAS_PREFIX",
    "HAS_SUFFIX",
    "LONGEST_KEY",
    "NUMBER",
    "NUMBER_IN",
    "NUMBER_IS",
    "ONE_OF",
    "PREFIX",
    "SET",
    "SORTED_AS_BITS",
    "TIME_IN",
    "TIME_IS",
    "Index",
    "grown",
    "match_rows",
    "set_bit",
    "starts_with",
    "take_bits",
]


NUMBER, PREFIX, SET, GENERAL = 1, 3, 5, 6  # beside EQUAL and ONE_OF
# plain constants are types of their own to numba: as arguments they would compile every callee again
_STRING, _ZERO = np.int64(STRING), np.int64(0)
# kinds of feature; prefixes sort first, as `string_features` wants them
HAS_PREFIX, EQUALS_NOCASE = 1, 4  # beside EQUALS and HAS_SUFFIX
NUMBER_IS, TIME_IS, BOOLEAN_IS, NUMBER_IN, TIME_IN = 5, 6, 7, 8, 9
LONGEST_KEY = 63
# what `match_rows` makes of a present list; 0, 1 and 2 are `Columns.state`
_LIST = 3
_ONE, _6, _32, _58, _63 = np.uint64(1), np.uint64(6), np.uint64(32), np.uint64(58), np.uint64(63)
# the upper six bits of this number times 2^k differ for every k; so they say which k it was
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_AT = np.zeros(64, np.uint8)
_BIT_AT[[(0x03F79D71B4CB0A89 << k) % 2**64 >> 58 for k in range(64)]] = range(64)
# ids up to here are sorted as bits: beyond, to look for the words that are filled takes longer
SORTED_AS_BITS = 1 << 18
# no string led to a list: the complement is beyond every element
_NOTHING = np.int64(-(2**63))


class Index(NamedTuple):
    """The compiled filters. Heads are posting numbers, or -1; a posting is (next, where a box begins)."""

    words: NDArray[np.int64]  # the programs of all boxes
    bytes: NDArray[np.uint8]  # the same memory
    # pairs that are read together stand together: one cache miss instead of two
    postings: NDArray[np.int32]  # [2 k] the next posting or -1, [2 k + 1] where the box begins, ~: sure
    table: NDArray[np.int64]  # [2 k] a hash, [2 k + 1] the head of its list; head -2: the slot is free
    # [0] head of the boxes that every row must try, [1 + c] of those to try when column c is present
    heads: NDArray[np.int32]
    class_start: NDArray[np.int64]  # [c + 1] the feature classes of a column, prefixes first, by length
    class_kind: NDArray[np.int64]  # [class]
    class_length: NDArray[np.int64]  # [class] bytes of a prefix or suffix, level of an interval
    group_a: NDArray[np.int64]  # [group] a class
    group_b: NDArray[np.int64]  # [group] a second class, or -1


@compiled
def compare(data: Bytes, a: Int, a_length: Int, text: Bytes, b: Int, b_length: Int) -> Int:
    """Order of two byte strings: -1, 0 or 1."""
    n = min(a_length, b_length)
    for k in range(n):
        x, y = data[a + k], text[b + k]
        if x != y:
            return -1 if x < y else 1
    if a_length == b_length:
        return 0
    return -1 if a_length < b_length else 1


@compiled
def literals_hold(words: Ints, p: Int, data: Bytes, start: Int, end: Int) -> Flag:
    """All literals at p: each, any of its tests, must come out as wanted."""
    count = words[p]
    p += 1
    for _ in range(count):
        wanted = words[p] == 1
        tests = words[p + 1]
        p += 2
        found = False
        for _ in range(tests):
            n = words[p + 1]
            if not found:
                found = test_holds(words[p], data, start, end, words, p + 2, n)
            p += 2 + n
        if found != wanted:
            return False
    return True


@compiled
def string_in_set(words: Ints, text: Bytes, p: Int, count: Int, data: Bytes, start: Int, end: Int) -> Flag:
    """Whether a string lies in one of the sorted half-open intervals whose table of offsets is at p."""
    length = end - start
    low, high = 0, count
    while low < high:  # the last interval that starts at or below the string
        middle = (low + high) // 2
        q = p + words[p + middle]
        if compare(data, start, length, text, (q + 1) * 8, words[q]) >= 0:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    q = p + words[p + low - 1]
    q += 1 + (words[q] + 7) // 8
    return words[q] < 0 or compare(data, start, length, text, (q + 1) * 8, words[q]) < 0


@compiled
def element_in_set(words: Ints, text: Bytes, p: Int, kind: Int, a: Int, b: Int, data: Bytes) -> Flag:
    """Whether an element lies in the set at p: a number, time or boolean a, or the string data[a:b]."""
    q = p + 1
    count = words[q]
    q += 1
    if kind == INT or kind == FLOAT:
        shift = 0 if kind == FLOAT else 2
        for k in range(count):
            if words[q + 4 * k + shift] <= a <= words[q + 4 * k + shift + 1]:
                return True
        return False
    q += 4 * count
    count = words[q]
    q += 1
    if kind == TIME:
        for k in range(count):
            if words[q + 2 * k] <= a <= words[q + 2 * k + 1]:
                return True
        return False
    q += 2 * count
    if kind == BOOL:
        return (words[q] >> a) & 1 == 1
    q += 1
    count = words[q]
    if count == 0 or not string_in_set(words, text, q + 1, count, data, a, b):
        return False
    # the literals stand at the end; the set's last word says how many words back they begin
    end = p + words[p]
    return literals_hold(words, end - words[end - 1], data, a, b)


@compiled
def any_in_set(
    words: Ints, text: Bytes, p: Int, kind: Int, elements: Ints, first: Int, last: Int, data: Bytes
) -> Flag:
    """Whether any element of a range lies in the set at p; `elements` are offsets or values by kind."""
    for e in range(first, last):
        b = elements[e + 1] if kind == STRING else _ZERO
        if element_in_set(words, text, p, kind, elements[e], b, data):
            return True
    return False


@compiled
def general_holds(
    words: Ints,
    text: Bytes,
    p: Int,
    state: Int,
    kind: Int,
    elements: Ints,
    first: Int,
    last: Int,
    data: Bytes,
) -> Flag:
    """Evaluate a GENERAL predicate on what one attribute holds."""
    if state == 0:
        return words[p] == 1
    if state == 2:
        return words[p + 1] == 1
    has_scalars = words[p + 2] == 1
    p += 3
    if state != _LIST:
        return has_scalars and any_in_set(words, text, p, kind, elements, first, first + 1, data)
    if has_scalars:
        p += words[p]
    if words[p] == 0:
        return False
    p += 1
    for wanted in (True, False):
        count = words[p]
        p += 1
        for _ in range(count):
            if any_in_set(words, text, p, kind, elements, first, last, data) != wanted:
                return False
            p += words[p]
    return True


@inlined
def starts_with(data: Bytes, start: Int, end: Int, text: Bytes, at: Int, n: Int, whole: Flag) -> Flag:
    """Whether data[start:end] begins with (or is) the n bytes at `at`."""
    same = end - start == n if whole else end - start >= n
    k = 0
    while same and k < n:
        same = data[start + k] == text[at + k]
        k += 1
    return same


@inlined
def one_of(words: Ints, text: Bytes, p: Int, h: Hash, data: Bytes, start: Int, end: Int) -> Flag:
    """Whether a string with this hash is one of the strings of a ONE_OF at p."""
    count, stride = words[p], words[p + 1]
    # the upper half of the hash and the length, as `encoding` packs them
    wanted = np.int64((h >> _32) << _32) | (end - start)
    p += 2
    holds = False
    for _ in range(count):
        if words[p] == wanted and starts_with(data, start, end, text, (p + 1) * 8, end - start, True):
            holds = True
            break
        p += stride
    return holds


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


@inlined
def string_holds(
    op: Int, words: Ints, text: Bytes, q: Int, h: Hash, data: Bytes, start: Int, end: Int
) -> Flag:
    """Whether a string satisfies the predicate whose operands are at q."""
    holds = False
    if op == EQUAL or op == PREFIX:
        holds = starts_with(data, start, end, text, (q + 1) * 8, words[q], op == EQUAL)
    elif op == ONE_OF:
        holds = one_of(words, text, q, h, data, start, end)
    elif op == SET:
        holds = element_in_set(words, text, q, _STRING, start, end, data)
    return holds


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
    column_heads = ix.heads
    columns = len(kind)
    # what the row holds, by column: its state, element range, and where the hashes of its strings begin
    state = np.zeros(columns, np.int64)
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
        have[:] = 0
        if columns + 1 > len(heads):
            heads, led_by = grown(heads, columns + 1), grown(led_by, columns + 1)
        if column_heads[0] >= 0:
            heads[0], led_by[0] = column_heads[0], _NOTHING
            found = 1
        for c in range(columns):
            state[c] = column_state[c, row]
            if state[c] != 1:
                continue
            first[c] = base[c] + row
            last[c] = first[c] + 1
            if is_list[c]:
                state[c] = _LIST
                k = list_base[c] + row
                first[c] = base[c] + list_offsets[k]
                last[c] = base[c] + list_offsets[k + 1]
                if last[c] - first[c] > features.shape[1]:
                    features = widened(features, have, 2 * (last[c] - first[c]))
            if column_heads[1 + c] >= 0:
                heads[found], led_by[found] = column_heads[1 + c], _NOTHING
                found += 1
            if kind[c] != STRING:
                number_features(
                    c,
                    kind[c],
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
                hashes[hashed] = string_features(
                    c,
                    offsets[e],
                    offsets[e + 1],
                    data,
                    class_start[c],
                    class_start[c + 1],
                    class_kind,
                    class_length,
                    features,
                    have,
                )
                hashed += 1
        for g in range(len(group_a)):
            a, b = group_a[g], group_b[g]
            # a string has one feature of this kind, so they stand in the order of the strings
            text_a = b < 0 or is_list[class_column[a]]
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
                        some = offsets if kind[c] == STRING else values
                        holds = general_holds(
                            words, text, p + 1, state[c], kind[c], some, first[c], last[c], data
                        )
                    else:
                        holds = False
                        if (state[c] == 1 and flags & 1) or (state[c] == _LIST and flags & 2):
                            # the string that led here goes first: it is mostly the one that is asked for
                            hinted = kind[c] == STRING and first[c] <= led < last[c]
                            # a sure posting is for that string alone; another has a list of its own
                            end = first[c] if sure else last[c]
                            for t in range(first[c] - hinted, end):
                                e = led if t < first[c] else t
                                if kind[c] == STRING:
                                    h = hashes[hash_base[c] + e - first[c]]
                                    holds = string_holds(
                                        op, words, text, p + 1, h, data, offsets[e], offsets[e + 1]
                                    )
                                elif op == NUMBER:
                                    holds = kind[c] <= FLOAT and words[p + 1] <= order[e] <= words[p + 2]
                                elif op == SET:
                                    holds = element_in_set(
                                        words, text, p + 1, kind[c], values[e], _ZERO, data
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
