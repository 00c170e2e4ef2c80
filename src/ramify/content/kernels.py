"""The matcher's inner loops, compiled with numba: evaluate a box's program, find candidates, match rows.

Layout of a box's program, in int64 words (floats by their bits, strings as packed UTF-8 bytes):

    box      [predicates, predicate...]
    predicate[words, op, flags, column, operand...]
      NUMBER   flo fhi ilo ihi            closed bounds, for double and for int64 columns
      EQUAL    length bytes...            the string itself
      PREFIX   length bytes...
      SET      set
      GENERAL  absent null scalars? set  arrays? some set... none set...
    set      [words, numbers, (flo fhi ilo ihi)..., times, (lo hi)..., boolean mask,
              strings, offset..., (lo length bytes... hi length bytes...)..., literals, literal...]
    literal  [wanted, tests, (kind codes code...)...]

`flags` say whether a scalar may satisfy the predicate (1) and whether an array may, by any of its
elements (2). GENERAL is everything else. A program has no pointers, so boxes can be moved freely.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ramify.content.strings import ANY, ONE, TestKind, fold

__all__ = [
    "ABSENT_TYPE",
    "BOOL",
    "EQUAL",
    "FLOAT",
    "GENERAL",
    "INT",
    "NUMBER",
    "PREFIX",
    "SALT_EQUAL",
    "SALT_NOCASE",
    "SALT_PREFIX",
    "SALT_SUFFIX",
    "SET",
    "STRING",
    "TAG_BOOL",
    "TAG_NUMBER",
    "TAG_TIME",
    "TIME",
    "Code",
    "Columns",
    "Index",
    "bucket_of",
    "compact_postings",
    "hash_bytes",
    "hash_number",
    "list_length",
    "match_rows",
    "push_keys",
    "push_list",
    "push_ranges",
    "rehash",
]

NUMBER, EQUAL, PREFIX, SET, GENERAL = 1, 2, 3, 4, 5
ABSENT_TYPE, INT, FLOAT, BOOL, TIME, STRING = 0, 1, 2, 3, 4, 5
SALT_EQUAL, SALT_PREFIX, SALT_SUFFIX, SALT_NOCASE = 0x11, 0x22, 0x33, 0x44
TAG_NUMBER, TAG_TIME, TAG_BOOL = 0x55, 0x66, 0x77
LONGEST_KEY = 63

_FNV = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_33 = np.uint64(33)

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

    kind: NDArray[np.int8]  # [c] ABSENT_TYPE, INT, FLOAT, BOOL, TIME or STRING
    is_list: NDArray[np.bool_]  # [c]
    state: NDArray[np.uint8]  # [c, row] 0 absent, 1 present, 2 explicit null
    base: NDArray[np.int64]  # [c] first element of the column in ints, floats or string offsets
    list_base: NDArray[np.int64]  # [c] first entry of the column in list_offsets
    list_offsets: NDArray[np.int64]  # element ranges of list columns, relative to base
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    offsets: NDArray[np.int64]  # string element e is bytes[offsets[e]:offsets[e + 1]]
    bytes: NDArray[np.uint8]


class Code(NamedTuple):
    """The programs of all boxes: one piece of memory, read as words, doubles and bytes."""

    words: NDArray[np.int64]
    floats: NDArray[np.float64]
    bytes: NDArray[np.uint8]


class Index(NamedTuple):
    """The compiled filters. Heads are posting numbers, or -1; a posting is (next, box)."""

    code: Code
    box_start: NDArray[np.int64]
    box_owner: NDArray[np.int32]  # the filter's id, -1 once removed
    posting_next: NDArray[np.int32]
    posting_box: NDArray[np.int32]
    slot_hash: NDArray[np.uint64]
    slot_head: NDArray[np.int32]  # -2: the slot is free
    always: NDArray[np.int32]  # [1] head of the boxes that every row must try
    present: NDArray[np.int32]  # [c] head of the boxes to try when the column is present
    # [c] bits: 1 equality, 2 number keys, 4 suffix, 8 nocase, 16 ranges, 32 time ranges, 64 prefix
    uses: NDArray[np.uint8]
    prefix_lengths: NDArray[np.uint64]  # [c] bit k: some key is a prefix of k bytes
    suffix_lengths: NDArray[np.uint64]
    tree_base: NDArray[np.int64]  # [c, 2] where the range tree's heads start: numbers, times
    tree_leaves: NDArray[np.int64]  # [c, 2]
    tree_head: NDArray[np.int32]
    bound_base: NDArray[np.int64]  # [c, 2] where the tree's bucket bounds start
    bounds: NDArray[np.float64]


@njit(cache=True, nogil=True)
def mix(h):
    h ^= h >> _33
    h *= _MIX_A
    h ^= h >> _33
    h *= _MIX_B
    h ^= h >> _33
    return h


@njit(cache=True, nogil=True)
def seed_of(column):
    return _FNV ^ (np.uint64(column + 1) * _GOLDEN)


@njit(cache=True, nogil=True)
def hash_bytes(column, salt, data):
    """The key of a string in a column; suffix keys are hashed from the end."""
    h = seed_of(column)
    n = len(data)
    for k in range(n):
        h = (h ^ np.uint64(data[n - 1 - k] if salt == SALT_SUFFIX else data[k])) * _FNV_PRIME
    return mix(h ^ np.uint64(salt))


@njit(cache=True, nogil=True)
def hash_number(column, tag, bits):
    """The key of a number (int64, or the bits of a double that is not whole), time or boolean."""
    return mix(seed_of(column) ^ (np.uint64(bits) * _GOLDEN) ^ np.uint64(tag))


@njit(cache=True, nogil=True)
def find(slot_hash, slot_head, h):
    """The head of a key's postings, or -1."""
    mask = np.uint64(len(slot_hash) - 1)
    k = h & mask
    while slot_head[k] != -2:
        if slot_hash[k] == h:
            return slot_head[k]
        k = (k + np.uint64(1)) & mask
    return np.int32(-1)


@njit(cache=True, nogil=True)
def find_or_free(slot_hash, slot_head, h):
    mask = np.uint64(len(slot_hash) - 1)
    k = h & mask
    while slot_head[k] != -2 and slot_hash[k] != h:
        k = (k + np.uint64(1)) & mask
    return k


@njit(cache=True, nogil=True)
def push_keys(slot_hash, slot_head, posting_next, posting_box, first_posting, hashes, boxes):
    """Put boxes into the lists of their keys. Returns how many slots were newly taken."""
    taken = 0
    for k in range(len(hashes)):
        slot = find_or_free(slot_hash, slot_head, hashes[k])
        if slot_head[slot] == -2:
            slot_hash[slot] = hashes[k]
            slot_head[slot] = -1
            taken += 1
        posting = first_posting + k
        posting_box[posting] = boxes[k]
        posting_next[posting] = slot_head[slot]
        slot_head[slot] = posting
    return taken


@njit(cache=True, nogil=True)
def push_list(heads, k, posting_next, posting_box, posting, box):
    """Put one box into the list whose head is heads[k]."""
    posting_box[posting] = box
    posting_next[posting] = heads[k]
    heads[k] = posting


@njit(cache=True, nogil=True)
def list_length(slot_hash, slot_head, posting_next, h, most):
    """How many postings a key has, counted up to `most`."""
    posting = find(slot_hash, slot_head, h)
    n = 0
    while posting >= 0 and n < most:
        posting = posting_next[posting]
        n += 1
    return n


@njit(cache=True, nogil=True)
def rehash(old_hash, old_head, new_hash, new_head):
    """Move all keys to a larger table."""
    for k in range(len(old_hash)):
        if old_head[k] != -2:
            slot = find_or_free(new_hash, new_head, old_hash[k])
            new_hash[slot] = old_hash[k]
            new_head[slot] = old_head[k]


@njit(cache=True, nogil=True)
def bucket_of(bounds, base, leaves, value):
    """The leaf that a value falls into: how many of the leaves - 1 bounds are <= value."""
    low, high = 0, leaves - 1
    while low < high:
        middle = (low + high) // 2
        if bounds[base + middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def push_ranges(tree_head, tree_base, leaves, bounds, bound_base, posting_next, posting_box, posting, lows, highs, boxes):
    """Put boxes into the O(log leaves) tree nodes that make up their range. Returns the next posting.

    With posting_next empty nothing is written and the postings needed are counted.
    """
    write = len(posting_next) > 0
    for k in range(len(boxes)):
        left = bucket_of(bounds, bound_base, leaves, lows[k]) + leaves
        right = bucket_of(bounds, bound_base, leaves, highs[k]) + leaves + 1
        while left < right:
            if left & 1:
                if write:
                    posting_box[posting] = boxes[k]
                    posting_next[posting] = tree_head[tree_base + left]
                    tree_head[tree_base + left] = posting
                posting += 1
                left += 1
            if right & 1:
                right -= 1
                if write:
                    posting_box[posting] = boxes[k]
                    posting_next[posting] = tree_head[tree_base + right]
                    tree_head[tree_base + right] = posting
                posting += 1
            left >>= 1
            right >>= 1
    return posting


@njit(cache=True, nogil=True)
def compact_postings(heads, posting_next, posting_box, box_map, new_next, new_box, used):
    """Lay the lists of these heads out again, one after another, without removed boxes."""
    for k in range(len(heads)):
        posting = heads[k]
        if posting < 0:
            continue
        head = np.int32(-1)
        last = np.int32(-1)
        while posting >= 0:
            box = box_map[posting_box[posting]]
            if box >= 0:
                new_box[used] = box
                new_next[used] = -1
                if last >= 0:
                    new_next[last] = used
                else:
                    head = np.int32(used)
                last = np.int32(used)
                used += 1
            posting = posting_next[posting]
        heads[k] = head
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
def literals_hold(code, p, data, start, end):
    """All literals at p: each, any of its tests, must come out as wanted."""
    count = code.words[p]
    p += 1
    for _ in range(count):
        wanted = code.words[p] == 1
        tests = code.words[p + 1]
        p += 2
        found = False
        for _ in range(tests):
            n = code.words[p + 1]
            if not found:
                found = test_holds(code.words[p], data, start, end, code.words, p + 2, n)
            p += 2 + n
        if found != wanted:
            return False
    return True


@njit(cache=True, nogil=True)
def string_in_set(code, p, count, data, start, end):
    """Whether a string lies in one of the sorted half-open intervals at p, and its literals hold.

    p is the table of `count` offsets, each relative to p.
    """
    length = end - start
    low, high = 0, count
    while low < high:  # the last interval that starts at or below the string
        middle = (low + high) // 2
        q = p + code.words[p + middle]
        if compare(data, start, length, code.bytes, (q + 1) * 8, code.words[q]) >= 0:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    q = p + code.words[p + low - 1]
    q += 1 + (code.words[q] + 7) // 8
    return code.words[q] < 0 or compare(data, start, length, code.bytes, (q + 1) * 8, code.words[q]) < 0


@njit(cache=True, nogil=True)
def element_in_set(code, cols, p, kind, e):
    """Whether element e of a column lies in the set at p."""
    q = p + 1
    count = code.words[q]
    q += 1
    if kind == INT:
        value = cols.ints[e]
        for k in range(count):
            if code.words[q + 4 * k + 2] <= value <= code.words[q + 4 * k + 3]:
                return True
        return False
    if kind == FLOAT:
        number = cols.floats[e]
        for k in range(count):
            if code.floats[q + 4 * k] <= number <= code.floats[q + 4 * k + 1]:
                return True
        return False
    q += 4 * count
    count = code.words[q]
    q += 1
    if kind == TIME:
        value = cols.ints[e]
        for k in range(count):
            if code.words[q + 2 * k] <= value <= code.words[q + 2 * k + 1]:
                return True
        return False
    q += 2 * count
    if kind == BOOL:
        return (code.words[q] >> cols.ints[e]) & 1 == 1
    q += 1
    count = code.words[q]
    start, end = cols.offsets[e], cols.offsets[e + 1]
    if count == 0 or not string_in_set(code, q + 1, count, cols.bytes, start, end):
        return False
    # the literals stand at the end of the set; its first word says where they are
    return literals_hold(code, p + code.words[p] - code.words[p + code.words[p] - 1], cols.bytes, start, end)


@njit(cache=True, nogil=True)
def element_holds(code, cols, op, p, kind, e):
    """Whether element e satisfies a simple predicate whose operands are at p."""
    if op == NUMBER:
        if kind == INT:
            return code.words[p + 2] <= cols.ints[e] <= code.words[p + 3]
        return kind == FLOAT and code.floats[p] <= cols.floats[e] <= code.floats[p + 1]
    if op == SET:
        return element_in_set(code, cols, p, kind, e)
    if kind != STRING:
        return False
    n = code.words[p]
    start = cols.offsets[e]
    length = cols.offsets[e + 1] - start
    if length < n or (op == EQUAL and length != n):
        return False
    at = (p + 1) * 8
    for k in range(n):
        if cols.bytes[start + k] != code.bytes[at + k]:
            return False
    return True


@njit(cache=True, nogil=True)
def elements(cols, c, row):
    """The element range of a present value."""
    base = cols.base[c]
    if cols.is_list[c]:
        k = cols.list_base[c] + row
        return base + cols.list_offsets[k], base + cols.list_offsets[k + 1]
    return base + row, base + row + 1


@njit(cache=True, nogil=True)
def any_in_set(code, cols, p, c, first, last):
    for e in range(first, last):
        if element_in_set(code, cols, p, cols.kind[c], e):
            return True
    return False


@njit(cache=True, nogil=True)
def general_holds(code, cols, p, c, row):
    state = cols.state[c, row]
    if state == 0:
        return code.words[p] == 1
    if state == 2:
        return code.words[p + 1] == 1
    first, last = elements(cols, c, row)
    has_scalars = code.words[p + 2] == 1
    p += 3
    if not cols.is_list[c]:
        return has_scalars and element_in_set(code, cols, p, cols.kind[c], first)
    if has_scalars:
        p += code.words[p]
    if code.words[p] == 0:
        return False
    p += 1
    for wanted in (True, False):
        count = code.words[p]
        p += 1
        for _ in range(count):
            if any_in_set(code, cols, p, c, first, last) != wanted:
                return False
            p += code.words[p]
    return True


@njit(cache=True, nogil=True)
def box_holds(ix, cols, box, row):
    """Evaluate one box on one row, exactly."""
    code = ix.code
    p = ix.box_start[box]
    count = code.words[p]
    p += 1
    for _ in range(count):
        op, flags, c = code.words[p + 1], code.words[p + 2], code.words[p + 3]
        if op == GENERAL:
            if not general_holds(code, cols, p + 4, c, row):
                return False
        else:
            if cols.state[c, row] != 1:
                return False
            if cols.is_list[c]:
                if not flags & 2:
                    return False
                found = False
                first, last = elements(cols, c, row)
                for e in range(first, last):
                    if element_holds(code, cols, op, p + 4, cols.kind[c], e):
                        found = True
                        break
                if not found:
                    return False
            elif not flags & 1 or not element_holds(code, cols, op, p + 4, cols.kind[c], cols.base[c] + row):
                return False
        p += code.words[p]
    return True


@njit(cache=True, nogil=True)
def grown(array, need):
    bigger = np.empty(max(need, 2 * len(array)), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def string_heads(ix, cols, c, e, heads, n):
    """Look up every key that a string can satisfy: itself, its prefixes and suffixes, its folded form."""
    start, end = cols.offsets[e], cols.offsets[e + 1]
    uses = ix.uses[c]
    seed = seed_of(c)
    wanted = ix.prefix_lengths[c]
    h = seed
    for k in range(end - start):
        h = (h ^ np.uint64(cols.bytes[start + k])) * _FNV_PRIME
        if k < LONGEST_KEY and (wanted >> np.uint64(k + 1)) & np.uint64(1):
            head = find(ix.slot_hash, ix.slot_head, mix(h ^ np.uint64(SALT_PREFIX)))
            if head >= 0:
                heads[n] = head
                n += 1
    if uses & 1:
        head = find(ix.slot_hash, ix.slot_head, mix(h ^ np.uint64(SALT_EQUAL)))
        if head >= 0:
            heads[n] = head
            n += 1
    if uses & 4:
        wanted = ix.suffix_lengths[c]
        h = seed
        for k in range(min(end - start, LONGEST_KEY)):
            h = (h ^ np.uint64(cols.bytes[end - 1 - k])) * _FNV_PRIME
            if (wanted >> np.uint64(k + 1)) & np.uint64(1):
                head = find(ix.slot_hash, ix.slot_head, mix(h ^ np.uint64(SALT_SUFFIX)))
                if head >= 0:
                    heads[n] = head
                    n += 1
    if uses & 8:
        h = seed
        for k in range(start, end):
            h = (h ^ np.uint64(fold_code(np.int64(cols.bytes[k])) if cols.bytes[k] < 128 else cols.bytes[k])) * _FNV_PRIME
        head = find(ix.slot_hash, ix.slot_head, mix(h ^ np.uint64(SALT_NOCASE)))
        if head >= 0:
            heads[n] = head
            n += 1
    return n


@njit(cache=True, nogil=True)
def number_heads(ix, cols, c, e, heads, n):
    """Look up a number, time or boolean as a key, and in the column's range tree."""
    kind = cols.kind[c]
    uses = ix.uses[c]
    tree = 0
    if kind == FLOAT:
        number = cols.floats[e]
        whole = np.floor(number) == number and abs(number) < 9.2e18
        bits = np.int64(number) if whole else cols.floats[e : e + 1].view(np.int64)[0]
        tag = TAG_NUMBER
    else:
        bits = cols.ints[e]
        number = np.float64(bits)
        tag = TAG_NUMBER if kind == INT else TAG_TIME if kind == TIME else TAG_BOOL
        tree = 1 if kind == TIME else 0
    if uses & 2:
        head = find(ix.slot_hash, ix.slot_head, hash_number(c, tag, bits))
        if head >= 0:
            heads[n] = head
            n += 1
    if kind != BOOL and uses & (32 if tree else 16):
        leaves = ix.tree_leaves[c, tree]
        base = ix.tree_base[c, tree]
        node = bucket_of(ix.bounds, ix.bound_base[c, tree], leaves, number) + leaves
        while node:
            if ix.tree_head[base + node] >= 0:
                heads[n] = ix.tree_head[base + node]
                n += 1
            node >>= 1
    return n


@njit(cache=True, nogil=True)
def row_heads(ix, cols, row, heads):
    """The heads of all posting lists whose boxes this row could match. Returns (heads, count)."""
    n = 0
    if ix.always[0] >= 0:
        heads[0] = ix.always[0]
        n = 1
    for c in range(len(cols.kind)):
        if cols.state[c, row] != 1:
            continue
        if n + 1 >= len(heads):
            heads = grown(heads, n + 2)
        if ix.present[c] >= 0:
            heads[n] = ix.present[c]
            n += 1
        if ix.uses[c] == 0:
            continue
        first, last = elements(cols, c, row)
        for e in range(first, last):
            if n + 160 >= len(heads):
                heads = grown(heads, n + 160)
            if cols.kind[c] == STRING:
                n = string_heads(ix, cols, c, e, heads, n)
            else:
                n = number_heads(ix, cols, c, e, heads, n)
    return heads, n


@njit(cache=True, nogil=True)
def match_rows(ix, cols, first_row, last_row, filters):
    """Match rows: (ends, ids), the sorted ids of row r being ids[ends[r]:ends[r + 1]].

    Cost per row: the strings' bytes, a few look-ups per element, and the candidate boxes, each evaluated
    once per list it is found in.
    """
    ends = np.empty(last_row - first_row + 1, np.int64)
    ends[0] = 0
    out = np.empty(max(1024, 8 * (last_row - first_row)), np.int32)
    heads = np.empty(512, np.int32)
    seen = np.full(filters, -1, np.int32)
    n = 0
    for row in range(first_row, last_row):
        begin = n
        heads, found = row_heads(ix, cols, row, heads)
        for k in range(found):
            posting = heads[k]
            while posting >= 0:
                box = ix.posting_box[posting]
                owner = ix.box_owner[box]
                if owner >= 0 and seen[owner] != row and box_holds(ix, cols, box, row):
                    seen[owner] = row
                    if n == len(out):
                        out = grown(out, n + 1)
                    out[n] = owner
                    n += 1
                posting = ix.posting_next[posting]
        if n - begin > 32:
            out[begin:n] = np.sort(out[begin:n])
        else:
            for i in range(begin + 1, n):
                value = out[i]
                j = i - 1
                while j >= begin and out[j] > value:
                    out[j + 1] = out[j]
                    j -= 1
                out[j + 1] = value
        ends[row - first_row + 1] = n
    return ends, out[:n].copy()
