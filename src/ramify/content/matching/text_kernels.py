"""String tests in compiled form: globs, case-less comparison and CIDR blocks on UTF-8 bytes.

The same tests as `content.filters.strings`, and held against it by tests. `codes` is where the test's
codes begin in `words`, `n` how many there are; the string is data[start:end], which must be valid UTF-8.
"""

import numpy as np

from ramify.compiled import Bytes, Flag, Int, Ints, compiled
from ramify.content.filters.strings import ANY_CHARACTERS, ONE_CHARACTER, TestKind, fold

__all__ = ["fold_code", "test_holds"]


_GLOB, _NOCASE_GLOB = int(TestKind.GLOB), int(TestKind.NOCASE_GLOB)
_NOCASE_PREFIX, _NOCASE_SUFFIX = int(TestKind.NOCASE_PREFIX), int(TestKind.NOCASE_SUFFIX)
_CIDR4, _CIDR6 = int(TestKind.CIDR4), int(TestKind.CIDR6)
_ANY, _ONE = ANY_CHARACTERS, ONE_CHARACTER

# Code points beyond ASCII whose folded form differs, so that kernels fold exactly as `fold` does.
_CAPITALS = [c for c in range(128, 0x1E944) if chr(c).lower() != chr(c)]
_FOLDED = [(c, fold(chr(c))[0]) for c in _CAPITALS]
_FOLD_FROM = np.array([c for c, low in _FOLDED if c != low], dtype=np.int64)
_FOLD_TO = np.array([low for c, low in _FOLDED if c != low], dtype=np.int64)


@compiled
def decode(data: Bytes, at: Int) -> tuple[Int, Int]:
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


@compiled
def fold_code(c: Int) -> Int:
    """One code point with its case folded."""
    if c < 128:
        return c + 32 if 65 <= c <= 90 else c
    k = np.searchsorted(_FOLD_FROM, c)
    if k < len(_FOLD_FROM) and _FOLD_FROM[k] == c:
        return _FOLD_TO[k]
    return c


@compiled
def glob_holds(data: Bytes, start: Int, end: Int, words: Ints, codes: Int, n: Int, nocase: Flag) -> Flag:
    """As `ramify.content.filters.strings` does it: return to the last ANY only."""
    i, j = start, 0
    star, mark = -1, start
    while i < end:
        c, width = decode(data, i)
        if nocase:
            c = fold_code(c)
        if j < n and (words[codes + j] == c or words[codes + j] == _ONE):
            i += width
            j += 1
        elif j < n and words[codes + j] == _ANY:
            star, mark = j, i
            j += 1
        elif star >= 0:
            mark += decode(data, mark)[1]
            i, j = mark, star + 1
        else:
            return False
    while j < n and words[codes + j] == _ANY:
        j += 1
    return j == n


@compiled
def nocase_holds(kind: Int, data: Bytes, start: Int, end: Int, words: Ints, codes: Int, n: Int) -> Flag:
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
        if fold_code(c) != words[codes + k]:
            return False
        at += width
    return kind == _NOCASE_PREFIX or at == end


@compiled
def parse_ipv4(data: Bytes, start: Int, end: Int) -> Int:
    """The address as a number, or -1. No leading zeros, as Python's ipaddress has it."""
    number: Int = np.int64(0)
    octets = 0
    at = start
    while at < end:
        value: Int = 0
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


@compiled
def hex_value(b: Int) -> Int:
    if 48 <= b <= 57:
        return np.int64(b) - 48
    if 97 <= b <= 102:
        return np.int64(b) - 87
    if 65 <= b <= 70:
        return np.int64(b) - 55
    return np.int64(-1)


@compiled
def parse_ipv6(data: Bytes, start: Int, end: Int, groups: Ints) -> Flag:
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


@compiled
def cidr6_holds(data: Bytes, start: Int, end: Int, words: Ints, codes: Int) -> Flag:
    groups = np.zeros(8, np.int64)
    if not parse_ipv6(data, start, end, groups):
        return False
    bits = words[codes + 2]
    for k in range(8):
        keep = min(16, max(0, bits - 16 * k))
        word = words[codes + k // 4] >> (48 - 16 * (k % 4)) & 0xFFFF
        if keep and (groups[k] >> (16 - keep)) != (word >> (16 - keep)):
            return False
    return True


@compiled
def test_holds(kind: Int, data: Bytes, start: Int, end: Int, words: Ints, codes: Int, n: Int) -> Flag:
    """Whether a string passes one test, of a kind of `TestKind`."""
    if kind == _GLOB or kind == _NOCASE_GLOB:
        return glob_holds(data, start, end, words, codes, n, kind == _NOCASE_GLOB)
    if kind == _CIDR4:
        number = parse_ipv4(data, start, end)
        shift = 32 - words[codes + 1]
        return number >= 0 and number >> shift == words[codes] >> shift
    if kind == _CIDR6:
        return cidr6_holds(data, start, end, words, codes)
    return nocase_holds(kind, data, start, end, words, codes, n)
