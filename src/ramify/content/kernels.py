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

`match_rows` is one long function on purpose: numba passes every array of a call as seven words, so calls
that take many arrays cost more than the work they do. What it calls takes few.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ramify.content.strings import ANY, ONE, TestKind, fold

__all__ = [
    "ABSENT_TYPE",
    "BOOL",
    "BOOLEAN_IS",
    "EQUAL",
    "EQUALS",
    "EQUALS_NOCASE",
    "FLOAT",
    "GENERAL",
    "HAS_PREFIX",
    "HAS_SUFFIX",
    "INT",
    "LONGEST_KEY",
    "NUMBER",
    "NUMBER_IN",
    "NUMBER_IS",
    "ONE_OF",
    "PREFIX",
    "SET",
    "STRING",
    "TIME",
    "TIME_IN",
    "TIME_IS",
    "Columns",
    "Index",
    "compact_postings",
    "hash_bytes",
    "hash_number",
    "list_length",
    "match_rows",
    "pair_hash",
    "push_keys",
    "push_list",
    "rehash",
]

NUMBER, EQUAL, PREFIX, ONE_OF, SET, GENERAL = 1, 2, 3, 4, 5, 6
ABSENT_TYPE, INT, FLOAT, BOOL, TIME, STRING = 0, 1, 2, 3, 4, 5
# kinds of feature; prefixes sort first, as match_rows wants them
HAS_PREFIX, EQUALS, HAS_SUFFIX, EQUALS_NOCASE = 1, 2, 3, 4
NUMBER_IS, TIME_IS, BOOLEAN_IS, NUMBER_IN, TIME_IN = 5, 6, 7, 8, 9
LONGEST_KEY = 63

_FNV = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_33 = np.uint64(33)
_32 = np.uint64(32)

_GLOB, _NOCASE = int(TestKind.GLOB), int(TestKind.NOCASE)
_NOCASE_PREFIX, _NOCASE_SUFFIX = int(TestKind.NOCASE_PREFIX), int(TestKind.NOCASE_SUFFIX)
_CIDR4, _CIDR6 = int(TestKind.CIDR4), int(TestKind.CIDR6)
_ANY, _ONE = ANY, ONE

# Code points beyond ASCII whose folded form differs, so that kernels fold exactly as `fold` does.
_FOLDED = [(c, fold(chr(c))[0]) for c in range(128, 0x1E944) if not 0xD800 <= c <= 0xDFFF]
_FOLD_FROM = np.array([c for c, low in _FOLDED if c != low], dtype=np.int64)
_FOLD_TO = np.array([low for c, low in _FOLDED if c != low], dtype=np.int64)


class Columns(NamedTuple):
    """A batch's columns, flat: one row of each array per attribute that any filter looks at."""

    kind: NDArray[np.int64]  # [c] ABSENT_TYPE, INT, FLOAT, BOOL, TIME or STRING
    is_list: NDArray[np.bool_]  # [c]
    state: NDArray[np.uint8]  # [c, row] 0 absent, 1 present, 2 explicit null
    base: NDArray[np.int64]  # [c] first element of the column in `offsets` or `values`
    list_base: NDArray[np.int64]  # [c] first entry of the column in list_offsets
    list_offsets: NDArray[np.int64]  # element ranges of list columns, relative to base
    offsets: NDArray[np.int64]  # string element e is bytes[offsets[e]:offsets[e + 1]]
    bytes: NDArray[np.uint8]
    values: NDArray[np.int64]  # what predicates compare: int64, times, booleans; doubles as `ordered`
    order: NDArray[np.int64]  # in step with values: numbers as `ordered` doubles, for dyadic intervals
    whole: NDArray[np.int64]  # in step with values: whole numbers as int64, for equality


class Index(NamedTuple):
    """The compiled filters. Heads are posting numbers, or -1; a posting is (next, where a box begins)."""

    words: NDArray[np.int64]  # the programs of all boxes
    bytes: NDArray[np.uint8]  # the same memory
    # pairs that are read together stand together: one cache miss instead of two
    postings: NDArray[np.int32]  # [2 k] the next posting or -1, [2 k + 1] where the box begins
    table: NDArray[np.int64]  # [2 k] a hash, [2 k + 1] the head of its list; head -2: the slot is free
    # [0] head of the boxes that every row must try, [1 + c] of those to try when column c is present
    heads: NDArray[np.int32]
    class_start: NDArray[np.int64]  # [c + 1] the feature classes of a column, prefixes first, by length
    class_kind: NDArray[np.int64]  # [class]
    class_length: NDArray[np.int64]  # [class] bytes of a prefix or suffix, level of an interval
    group_a: NDArray[np.int64]  # [group] a class
    group_b: NDArray[np.int64]  # [group] a second class, or -1


@njit(cache=True, nogil=True, inline="always")
def mix(h):
    h ^= h >> _33
    h *= _MIX_A
    h ^= h >> _33
    h *= _MIX_B
    h ^= h >> _33
    return h


@njit(cache=True, nogil=True, inline="always")
def seed_of(column):
    return _FNV ^ (np.uint64(column + 1) * _GOLDEN)


@njit(cache=True, nogil=True)
def hash_bytes(column, kind, data):
    """The hash of a string feature; suffixes are hashed from the end."""
    h = seed_of(column)
    n = len(data)
    for k in range(n):
        h = (h ^ np.uint64(data[n - 1 - k] if kind == HAS_SUFFIX else data[k])) * _FNV_PRIME
    return mix(h ^ np.uint64(kind))


@njit(cache=True, nogil=True, inline="always")
def hash_number(column, kind, level, value):
    """The hash of a number, time or boolean, or of the dyadic interval `value` of a level."""
    return mix(seed_of(column) ^ (np.uint64(value) * _GOLDEN) ^ np.uint64(kind + 256 * level))


@njit(cache=True, nogil=True, inline="always")
def pair_hash(a, b):
    """The hash of two features that hold together."""
    return mix(a * _GOLDEN ^ b)


@njit(cache=True, nogil=True, inline="always")
def find(table, h):
    """The head of a hash's list, or -1."""
    mask = np.uint64(len(table) // 2 - 1)
    k = np.int64(h & mask)
    wanted = np.int64(h)
    while table[2 * k + 1] != -2:
        if table[2 * k] == wanted:
            return table[2 * k + 1]
        k = (k + 1) & np.int64(mask)
    return np.int64(-1)


@njit(cache=True, nogil=True)
def find_or_free(table, h):
    """The slot of a hash, or the free one where it belongs."""
    mask = np.uint64(len(table) // 2 - 1)
    k = np.int64(h & mask)
    wanted = np.int64(h)
    while table[2 * k + 1] != -2 and table[2 * k] != wanted:
        k = (k + 1) & np.int64(mask)
    return k


@njit(cache=True, nogil=True)
def push_keys(table, postings, first_posting, hashes, starts):
    """Put boxes into the lists of their hashes. Returns how many slots were newly taken."""
    taken = 0
    for k in range(len(hashes)):
        slot = find_or_free(table, hashes[k])
        if table[2 * slot + 1] == -2:
            table[2 * slot] = np.int64(hashes[k])
            table[2 * slot + 1] = -1
            taken += 1
        posting = first_posting + k
        postings[2 * posting] = table[2 * slot + 1]
        postings[2 * posting + 1] = starts[k]
        table[2 * slot + 1] = posting
    return taken


@njit(cache=True, nogil=True)
def push_list(heads, k, postings, posting, start):
    """Put one box into the list whose head is heads[k]."""
    postings[2 * posting] = heads[k]
    postings[2 * posting + 1] = start
    heads[k] = posting


@njit(cache=True, nogil=True)
def list_length(table, postings, h, most):
    """How many postings a hash has, counted up to `most`."""
    posting = find(table, h)
    n = 0
    while posting >= 0 and n < most:
        posting = postings[2 * posting]
        n += 1
    return n


@njit(cache=True, nogil=True)
def rehash(old, new):
    """Move the hashes that have boxes to another table. Returns how many there are."""
    count = 0
    for k in range(len(old) // 2):
        if old[2 * k + 1] >= 0:
            slot = find_or_free(new, np.uint64(old[2 * k]))
            new[2 * slot] = old[2 * k]
            new[2 * slot + 1] = old[2 * k + 1]
            count += 1
    return count


@njit(cache=True, nogil=True)
def compact_list(head, postings, box_start, new_start, new_postings, used):
    """Lay one list out again without removed boxes. Returns (its new head, the next free posting).

    new_start[k] is where the box that began at box_start[k] begins now, or -1.
    """
    first = np.int64(-1)
    while head >= 0:
        start = new_start[np.searchsorted(box_start, postings[2 * head + 1])]
        if start >= 0:
            if first < 0:
                first = used
            else:
                new_postings[2 * used - 2] = used
            new_postings[2 * used] = -1
            new_postings[2 * used + 1] = start
            used += 1
        head = np.int64(postings[2 * head])
    return first, used


@njit(cache=True, nogil=True)
def compact_postings(table, heads, postings, box_start, new_start, new_postings):
    """Lay all lists out again, those of the table and of these heads. Returns how many postings are left."""
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


@njit(cache=True, nogil=True)
def compare(data, a, a_length, program_bytes, b, b_length):
    """Order of two byte strings: -1, 0 or 1."""
    n = min(a_length, b_length)
    for k in range(n):
        x, y = data[a + k], program_bytes[b + k]
        if x != y:
            return -1 if x < y else 1
    if a_length == b_length:
        return 0
    return -1 if a_length < b_length else 1


@njit(cache=True, nogil=True)
def decode(data, at):
    """The code point at a byte position of valid UTF-8, and its length."""
    b = np.int64(data[at])
    if b < 0x80:
        return b, 1
    if b < 0xE0:
        return ((b & 0x1F) << 6) | (data[at + 1] & 0x3F), 2
    if b < 0xF0:
        return ((b & 0x0F) << 12) | (np.int64(data[at + 1] & 0x3F) << 6) | (data[at + 2] & 0x3F), 3
    return (
        ((b & 0x07) << 18)
        | (np.int64(data[at + 1] & 0x3F) << 12)
        | (np.int64(data[at + 2] & 0x3F) << 6)
        | (data[at + 3] & 0x3F)
    ), 4


@njit(cache=True, nogil=True)
def fold_code(c):
    if c < 128:
        return c + 32 if 65 <= c <= 90 else c
    k = np.searchsorted(_FOLD_FROM, c)
    if k < len(_FOLD_FROM) and _FOLD_FROM[k] == c:
        return _FOLD_TO[k]
    return c


@njit(cache=True, nogil=True)
def glob_holds(data, start, end, program, codes, n):
    """As `ramify.content.strings` does it: return to the last ANY only."""
    i, j = start, 0
    star, mark = -1, start
    while i < end:
        c, width = decode(data, i)
        if j < n and (program[codes + j] == c or program[codes + j] == _ONE):
            i += width
            j += 1
        elif j < n and program[codes + j] == _ANY:
            star, mark = j, i
            j += 1
        elif star >= 0:
            mark += decode(data, mark)[1]
            i, j = mark, star + 1
        else:
            return False
    while j < n and program[codes + j] == _ANY:
        j += 1
    return j == n


@njit(cache=True, nogil=True)
def nocase_holds(kind, data, start, end, program, codes, n):
    at = start
    if kind == _NOCASE_SUFFIX:
        # step back n code points; continuation bytes are 10xxxxxx
        at = end
        for _ in range(n):
            if at <= start:
                return False
            at -= 1
            while (data[at] & 0xC0) == 0x80:
                at -= 1
    for k in range(n):
        if at >= end:
            return False
        c, width = decode(data, at)
        if fold_code(c) != program[codes + k]:
            return False
        at += width
    return kind == _NOCASE_PREFIX or at == end


@njit(cache=True, nogil=True)
def parse_ipv4(data, start, end):
    """The address as a number, or -1. No leading zeros, as Python's ipaddress has it."""
    number = np.int64(0)
    octets = 0
    at = start
    while at < end:
        value = 0
        digits = 0
        while at < end and 48 <= data[at] <= 57:
            value = value * 10 + (np.int64(data[at]) - 48)
            digits += 1
            if digits > 3:
                return np.int64(-1)
            at += 1
        if digits == 0 or value > 255 or (digits > 1 and data[at - digits] == 48):
            return np.int64(-1)
        number = number * 256 + value
        octets += 1
        if octets == 4:
            return number if at == end else np.int64(-1)
        if at >= end or data[at] != 46:
            return np.int64(-1)
        at += 1
    return np.int64(-1)


@njit(cache=True, nogil=True)
def hex_value(b):
    if 48 <= b <= 57:
        return np.int64(b) - 48
    if 97 <= b <= 102:
        return np.int64(b) - 87
    if 65 <= b <= 70:
        return np.int64(b) - 55
    return np.int64(-1)


@njit(cache=True, nogil=True)
def parse_ipv6(data, start, end, groups):
    """Fill the eight 16-bit groups; False when the text is not an IPv6 address."""
    count = 0
    gap = -1
    at = start
    if end - start < 2:
        return False
    if data[at] == 58:
        if data[at + 1] != 58:
            return False
        gap = 0
        at += 2
    while at < end:
        if count == 8:
            return False
        value = np.int64(0)
        first = at
        while at < end and hex_value(data[at]) >= 0:
            if at - first == 4:
                return False
            value = value * 16 + hex_value(data[at])
            at += 1
        if at < end and data[at] == 46:
            number = parse_ipv4(data, first, end)
            if number < 0 or count > 6:
                return False
            groups[count] = number >> 16
            groups[count + 1] = number & 0xFFFF
            count += 2
            at = end
            break
        if at == first:
            return False
        groups[count] = value
        count += 1
        if at == end:
            break
        if data[at] != 58:
            return False
        at += 1
        if at == end:
            return False
        if data[at] == 58:
            if gap >= 0:
                return False
            gap = count
            at += 1
    if gap < 0:
        return count == 8
    if count > 7:
        return False
    for k in range(count - gap):
        groups[7 - k] = groups[count - 1 - k]
    for k in range(gap, 8 - (count - gap)):
        groups[k] = 0
    return True


@njit(cache=True, nogil=True)
def cidr6_holds(data, start, end, program, codes):
    groups = np.zeros(8, np.int64)
    if not parse_ipv6(data, start, end, groups):
        return False
    bits = program[codes + 2]
    for k in range(8):
        keep = min(16, max(0, bits - 16 * k))
        word = program[codes + k // 4] >> (48 - 16 * (k % 4)) & 0xFFFF
        if keep and (groups[k] >> (16 - keep)) != (word >> (16 - keep)):
            return False
    return True


@njit(cache=True, nogil=True)
def test_holds(kind, data, start, end, program, codes, n):
    if kind == _GLOB:
        return glob_holds(data, start, end, program, codes, n)
    if kind == _CIDR4:
        number = parse_ipv4(data, start, end)
        shift = 32 - program[codes + 1]
        return number >= 0 and number >> shift == program[codes] >> shift
    if kind == _CIDR6:
        return cidr6_holds(data, start, end, program, codes)
    return nocase_holds(kind, data, start, end, program, codes, n)


@njit(cache=True, nogil=True)
def literals_hold(words, p, data, start, end):
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


@njit(cache=True, nogil=True)
def string_in_set(words, code_bytes, p, count, data, start, end):
    """Whether a string lies in one of the sorted half-open intervals whose table of offsets is at p."""
    length = end - start
    low, high = 0, count
    while low < high:  # the last interval that starts at or below the string
        middle = (low + high) // 2
        q = p + words[p + middle]
        if compare(data, start, length, code_bytes, (q + 1) * 8, words[q]) >= 0:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    q = p + words[p + low - 1]
    q += 1 + (words[q] + 7) // 8
    return words[q] < 0 or compare(data, start, length, code_bytes, (q + 1) * 8, words[q]) < 0


@njit(cache=True, nogil=True)
def element_in_set(words, code_bytes, p, kind, a, b, data):
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
    if count == 0 or not string_in_set(words, code_bytes, q + 1, count, data, a, b):
        return False
    # the literals stand at the end; the set's last word says how many words back they begin
    end = p + words[p]
    return literals_hold(words, end - words[end - 1], data, a, b)


@njit(cache=True, nogil=True)
def any_in_set(words, code_bytes, p, kind, elements, first, last, data):
    """Whether any element of a range lies in the set at p; `elements` are offsets or values by kind."""
    for e in range(first, last):
        b = elements[e + 1] if kind == STRING else 0
        if element_in_set(words, code_bytes, p, kind, elements[e], b, data):
            return True
    return False


@njit(cache=True, nogil=True)
def general_holds(words, code_bytes, p, state, is_list, kind, elements, first, last, data):
    """Evaluate a GENERAL predicate on what one attribute holds."""
    if state == 0:
        return words[p] == 1
    if state == 2:
        return words[p + 1] == 1
    has_scalars = words[p + 2] == 1
    p += 3
    if not is_list:
        return has_scalars and any_in_set(words, code_bytes, p, kind, elements, first, first + 1, data)
    if has_scalars:
        p += words[p]
    if words[p] == 0:
        return False
    p += 1
    for wanted in (True, False):
        count = words[p]
        p += 1
        for _ in range(count):
            if any_in_set(words, code_bytes, p, kind, elements, first, last, data) != wanted:
                return False
            p += words[p]
    return True


@njit(cache=True, nogil=True, inline="always")
def starts_with(data, start, end, code_bytes, at, n, whole):
    """Whether data[start:end] begins with (or is) the n bytes at `at`."""
    same = end - start == n if whole else end - start >= n
    k = 0
    while same and k < n:
        same = data[start + k] == code_bytes[at + k]
        k += 1
    return same


@njit(cache=True, nogil=True, inline="always")
def one_of(words, code_bytes, p, h, data, start, end):
    """Whether a string with this hash is one of the strings of a ONE_OF at p."""
    count, stride = words[p], words[p + 1]
    # the upper half of the hash and the length, as `encoding` packs them
    wanted = np.int64((h >> _32) << _32) | (end - start)
    p += 2
    holds = False
    for _ in range(count):
        if words[p] == wanted and starts_with(data, start, end, code_bytes, (p + 1) * 8, end - start, True):
            holds = True
            break
        p += stride
    return holds


@njit(cache=True, nogil=True)
def grown(array, need):
    """A larger copy."""
    bigger = np.empty(max(need, 2 * len(array)), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def suffix_hash(seed, data, start, end, length):
    """The hash of the last bytes of a string."""
    h = seed
    for k in range(length):
        h = (h ^ np.uint64(data[end - 1 - k])) * _FNV_PRIME
    return mix(h ^ np.uint64(HAS_SUFFIX))


@njit(cache=True, nogil=True)
def nocase_hash(seed, data, start, end):
    """The hash of a string with its ASCII letters folded."""
    h = seed
    for k in range(start, end):
        b = data[k]
        h = (h ^ np.uint64(b + 32 if 65 <= b <= 90 else b)) * _FNV_PRIME
    return mix(h ^ np.uint64(EQUALS_NOCASE))


@njit(cache=True, nogil=True)
def sort_ids(ids, begin, end):
    """Sort a part of an array in place."""
    if end - begin > 32:
        ids[begin:end] = np.sort(ids[begin:end])
        return
    for i in range(begin + 1, end):
        value = ids[i]
        j = i - 1
        while j >= begin and ids[j] > value:
            ids[j + 1] = ids[j]
            j -= 1
        ids[j + 1] = value


@njit(cache=True, nogil=True)
def match_rows(ix, cols, first_row, last_row, filters):
    """Match rows: (ends, ids), the sorted ids of row r being ids[ends[r]:ends[r + 1]].

    Cost per row: the bytes of its strings, a look-up per feature and pair of features that some box is
    filed under, and for every box found there an evaluation that mostly ends at its first predicate.
    """
    words, code_bytes = ix.words, ix.bytes
    postings, table = ix.postings, ix.table
    offsets, values, order, data = cols.offsets, cols.values, cols.order, cols.bytes
    class_kind, class_length = ix.class_kind, ix.class_length
    columns = len(cols.kind)
    kind = cols.kind
    # what the row holds, by column: state (3: present list), element range, where its hashes are
    state = np.zeros(columns, np.int64)
    first = np.zeros(columns, np.int64)
    last = np.zeros(columns, np.int64)
    hash_base = np.zeros(columns, np.int64)
    hashes = np.empty(256, np.uint64)
    # the row's features: features[class, k], k < have[class]
    features = np.empty((len(class_kind), 4), np.uint64)
    have = np.zeros(len(class_kind), np.int64)
    heads = np.empty(512, np.int64)
    seen = np.full(filters, -1, np.int32)
    ends = np.empty(last_row - first_row + 1, np.int64)
    ends[0] = 0
    ids = np.empty(max(1024, 8 * (last_row - first_row)), np.int32)
    n = 0
    for row in range(first_row, last_row):
        found = 0
        hashed = 0
        if ix.heads[0] >= 0:
            heads[0] = ix.heads[0]
            found = 1
        have[:] = 0
        for c in range(columns):
            state[c] = cols.state[c, row]
            if state[c] != 1:
                continue
            if cols.is_list[c]:
                state[c] = 3
                k = cols.list_base[c] + row
                first[c] = cols.base[c] + cols.list_offsets[k]
                last[c] = cols.base[c] + cols.list_offsets[k + 1]
                if last[c] - first[c] > features.shape[1]:
                    wider = np.empty((len(class_kind), 2 * (last[c] - first[c])), np.uint64)
                    wider[:, : features.shape[1]] = features
                    features = wider
            else:
                first[c] = cols.base[c] + row
                last[c] = first[c] + 1
            if ix.heads[1 + c] >= 0:
                if found == len(heads):
                    heads = grown(heads, found + 1)
                heads[found] = ix.heads[1 + c]
                found += 1
            seed = seed_of(c)
            if kind[c] == STRING:
                hash_base[c] = hashed
                if hashed + last[c] - first[c] > len(hashes):
                    hashes = grown(hashes, hashed + last[c] - first[c])
                for e in range(first[c], last[c]):
                    start, end = offsets[e], offsets[e + 1]
                    h = seed
                    at = start
                    f = ix.class_start[c]
                    while f < ix.class_start[c + 1] and class_kind[f] == HAS_PREFIX:
                        stop = start + class_length[f]
                        if stop > end:
                            break
                        while at < stop:
                            h = (h ^ np.uint64(data[at])) * _FNV_PRIME
                            at += 1
                        features[f, have[f]] = mix(h ^ np.uint64(HAS_PREFIX))
                        have[f] += 1
                        f += 1
                    while at < end:
                        h = (h ^ np.uint64(data[at])) * _FNV_PRIME
                        at += 1
                    h = mix(h ^ np.uint64(EQUALS))
                    hashes[hashed] = h
                    hashed += 1
                    while f < ix.class_start[c + 1]:
                        if class_kind[f] == EQUALS:
                            features[f, have[f]] = h
                            have[f] += 1
                        elif class_kind[f] == HAS_SUFFIX and class_length[f] <= end - start:
                            features[f, have[f]] = suffix_hash(seed, data, start, end, class_length[f])
                            have[f] += 1
                        elif class_kind[f] == EQUALS_NOCASE:
                            features[f, have[f]] = nocase_hash(seed, data, start, end)
                            have[f] += 1
                        f += 1
                continue
            exact, interval = NUMBER_IS, NUMBER_IN
            if kind[c] == TIME:
                exact, interval = TIME_IS, TIME_IN
            elif kind[c] == BOOL:
                exact, interval = BOOLEAN_IS, 0
            for f in range(ix.class_start[c], ix.class_start[c + 1]):
                level = class_length[f]
                for e in range(first[c], last[c]):
                    if class_kind[f] == exact:
                        features[f, have[f]] = hash_number(c, exact, 0, cols.whole[e])
                        have[f] += 1
                    elif class_kind[f] == interval:
                        features[f, have[f]] = hash_number(c, interval, level, order[e] >> level)
                        have[f] += 1
        for g in range(len(ix.group_a)):
            f = ix.group_a[g]
            f2 = ix.group_b[g]
            for i in range(have[f]):
                for j in range(1 if f2 < 0 else have[f2]):
                    h = features[f, i]
                    if f2 >= 0:
                        h = pair_hash(h, features[f2, j])
                    head = find(table, h)
                    if head >= 0:
                        if found == len(heads):
                            heads = grown(heads, found + 1)
                        heads[found] = head
                        found += 1
        begin = n
        for k in range(found):
            posting = heads[k]
            while posting >= 0:
                p = np.int64(postings[2 * posting + 1])
                posting = np.int64(postings[2 * posting])
                holds = words[p] >= 0
                owner = words[p] >> 16
                count = words[p] & 0xFFFF if holds else 0
                p += 1
                for _ in range(count):
                    head = words[p]
                    op, flags, c = head & 0xFF, (head >> 8) & 0xFF, head >> 40
                    if op == GENERAL:
                        holds = general_holds(
                            words,
                            code_bytes,
                            p + 1,
                            state[c],
                            state[c] == 3,
                            kind[c],
                            offsets if kind[c] == STRING else values,
                            first[c],
                            last[c],
                            data,
                        )
                    elif not (state[c] == 1 and flags & 1) and not (state[c] == 3 and flags & 2):
                        holds = False
                    else:
                        holds = False
                        q = p + 1
                        for e in range(first[c], last[c]):
                            if kind[c] == STRING:
                                if op == ONE_OF:
                                    h = hashes[hash_base[c] + e - first[c]]
                                    holds = one_of(words, code_bytes, q, h, data, offsets[e], offsets[e + 1])
                                elif op == EQUAL or op == PREFIX:
                                    holds = starts_with(
                                        data, offsets[e], offsets[e + 1], code_bytes, (q + 1) * 8, words[q], op == EQUAL
                                    )
                                elif op == SET:
                                    holds = element_in_set(
                                        words, code_bytes, q, STRING, offsets[e], offsets[e + 1], data
                                    )
                            elif op == NUMBER:
                                holds = kind[c] <= FLOAT and words[q] <= order[e] <= words[q + 1]
                            elif op == SET:
                                holds = element_in_set(words, code_bytes, q, kind[c], values[e], 0, data)
                            if holds:
                                break
                    if not holds:
                        break
                    p += (head >> 16) & 0xFFFFFF
                if holds and seen[owner] != row:
                    seen[owner] = row
                    if n == len(ids):
                        ids = grown(ids, n + 1)
                    ids[n] = owner
                    n += 1
        sort_ids(ids, begin, n)
        ends[row - first_row + 1] = n
    return ends, ids[:n].copy()
