"""Whether a value satisfies a predicate of a box: compiled. The words of predicates are in `program`."""

import numpy as np

from ramify.compiled import Bytes, Flag, Hash, Int, Ints, compiled, inlined
from ramify.content.events.columns import BOOL, FLOAT, INT, MIXED, NULL, STRING, TIME, Columns
from ramify.content.matching.literal_kernels import test_verdict
from ramify.content.matching.program import EQUAL, LIST, ONE_OF, PREFIX, SET, TESTS, Index

__all__ = [
    "element_in_set",
    "general_holds",
    "in_set",
    "kind_at",
    "literals_hold",
    "starts_with",
    "string_at",
    "string_holds",
    "string_passes",
]

# plain constants are types of their own to numba: as arguments they would compile every callee again
_STRING, _ZERO = np.int64(STRING), np.int64(0)
_32 = np.uint64(32)


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


@inlined
def literals_hold(
    words: Ints, p: Int, data: Bytes, start: Int, end: Int, test_heads: Ints, test_codes: Ints, memo: Ints
) -> Flag:
    """All literals at p: each, any of its tests, must come out as wanted."""
    groups = words[p]
    p += 1
    hold = True
    while hold and groups > 0:
        wanted, after = words[p] == 1, p + 2 + words[p + 1]
        found = False
        p += 2
        while p < after and not found:
            found = test_verdict(words[p], data, start, end, test_heads, test_codes, memo)
            p += 1
        hold = found == wanted
        p = after
        groups -= 1
    return hold


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
def element_in_set(
    words: Ints,
    text: Bytes,
    p: Int,
    kind: Int,
    a: Int,
    b: Int,
    data: Bytes,
    test_heads: Ints,
    test_codes: Ints,
    memo: Ints,
) -> Flag:
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
    if kind == NULL:
        return (words[q] >> 2) & 1 == 1
    q += 1
    count = words[q]
    if count == 0 or not string_in_set(words, text, q + 1, count, data, a, b):
        return False
    # the literals stand at the end; the set's last word says how many words back they begin
    end = p + words[p]
    return literals_hold(words, end - words[end - 1], data, a, b, test_heads, test_codes, memo)


@compiled
def kind_at(cols: Columns, kind: Int, e: Int) -> Int:
    """The kind of an element, where `kind` is that of its column in this row."""
    return np.int64(cols.item_kind[e - cols.items_at[0]]) if kind == MIXED else kind


@compiled
def string_at(cols: Columns, kind: Int, e: Int) -> Int:
    """Where the string of an element stands in `offsets`."""
    return e - cols.items_at[0] + cols.items_at[1] if kind == MIXED else e


@compiled
def in_set(ix: Index, cols: Columns, memo: Ints, p: Int, kind: Int, e: Int) -> Flag:
    """Whether element e of a column of this kind lies in the set at p."""
    k = kind_at(cols, kind, e)
    a, b = cols.values[0], _ZERO
    if k == STRING:
        at = string_at(cols, kind, e)
        a, b = cols.offsets[at], cols.offsets[at + 1]
    else:
        a = cols.values[e]
    return element_in_set(ix.words, ix.bytes, p, k, a, b, cols.bytes, ix.test_heads, ix.test_codes, memo)


@compiled
def any_in_set(ix: Index, cols: Columns, memo: Ints, p: Int, kind: Int, first: Int, last: Int) -> Flag:
    """Whether any element of a range lies in the set at p."""
    for e in range(first, last):
        if in_set(ix, cols, memo, p, kind, e):
            return True
    return False


@compiled
def general_holds(
    ix: Index, cols: Columns, memo: Ints, p: Int, state: Int, kind: Int, first: Int, last: Int
) -> Flag:
    """Evaluate a GENERAL predicate on what one attribute holds."""
    words = ix.words
    if state == 0:
        return words[p] == 1
    if state == 2:
        return words[p + 1] == 1
    has_scalars = words[p + 2] == 1
    p += 3
    if state != LIST:
        return has_scalars and any_in_set(ix, cols, memo, p, kind, first, first + 1)
    if has_scalars:
        p += words[p]
    if words[p] == 0:
        return False
    p += 1
    for wanted in (True, False):
        count = words[p]
        p += 1
        for _ in range(count):
            if any_in_set(ix, cols, memo, p, kind, first, last) != wanted:
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


@inlined
def string_holds(
    op: Int, words: Ints, text: Bytes, q: Int, h: Hash, data: Bytes, start: Int, end: Int
) -> Flag:
    """Whether a string satisfies the predicate whose operands are at q: EQUAL, PREFIX or ONE_OF."""
    holds = False
    if op == EQUAL or op == PREFIX:
        holds = starts_with(data, start, end, text, (q + 1) * 8, words[q], op == EQUAL)
    elif op == ONE_OF:
        holds = one_of(words, text, q, h, data, start, end)
    return holds


@compiled
def string_passes(
    op: Int,
    words: Ints,
    text: Bytes,
    q: Int,
    data: Bytes,
    start: Int,
    end: Int,
    test_heads: Ints,
    test_codes: Ints,
    memo: Ints,
) -> Flag:
    """Whether a string satisfies a predicate TESTS or SET.

    Not inlined, unlike `string_holds`: numba counts the uses of every array that an inlined call is given,
    which took a third of the time of filters that have no tests.
    """
    if op == TESTS:
        return literals_hold(words, q, data, start, end, test_heads, test_codes, memo)
    return op == SET and element_in_set(
        words, text, q, _STRING, start, end, data, test_heads, test_codes, memo
    )
