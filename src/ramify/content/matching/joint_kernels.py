"""Whether the parts of a JOINT hold together in a row: compiled. What that means is in `filters.joints`."""

from typing import Any

import numpy as np

from ramify.compiled import Flag, Int, Ints, compiled, inlined
from ramify.content.events.columns import FLOAT, INT, STRING, Columns
from ramify.content.matching.element_kernels import in_set, kind_at, literals_hold, starts_with, string_at
from ramify.content.matching.program import (
    ARRAY,
    EQUAL,
    EXPLICIT_NULL,
    LIST,
    NUMBER,
    ONE_OF,
    SCALAR,
    SET,
    TESTS,
    Index,
)

__all__ = ["joint_holds"]

_ZERO = np.int64(0)
_LAST_BIT = np.int64(61)


@compiled
def part_holds(ix: Index, cols: Columns, memo: Ints, q: Int, kind: Int, e: Int) -> Flag:
    """Whether element e satisfies the predicate at q, whose flags allow it."""
    words, text = ix.words, ix.bytes
    op = words[q] & 0xFF
    k = kind_at(cols, kind, e)
    if op == SET:
        return in_set(ix, cols, memo, q + 1, kind, e)
    if op == NUMBER:
        return INT <= k <= FLOAT and words[q + 1] <= cols.order[e] <= words[q + 2]
    if k != STRING:
        return False
    at = string_at(cols, kind, e)
    start, end = cols.offsets[at], cols.offsets[at + 1]
    if op == TESTS:
        return literals_hold(words, q + 1, cols.bytes, start, end, ix.test_heads, ix.test_codes, memo)
    if op != ONE_OF:
        return starts_with(cols.bytes, start, end, text, (q + 2) * 8, words[q + 1], op == EQUAL)
    count, stride = words[q + 1], words[q + 2]
    for k in range(count):
        p = q + 3 + k * stride
        length = words[p] & 0xFFFFFFFF
        if starts_with(cols.bytes, start, end, text, (p + 1) * 8, length, True):
            return True
    return False


@compiled
def place_of(cols: Columns, kind: Int, placed: Flag, e: Int) -> tuple[Int, Int]:
    """The range of `places` that says where element e stands: empty where it has no place."""
    if not placed:
        return _ZERO, _ZERO
    item = e - cols.items_at[1 if kind == STRING else 0]
    return cols.place_start[item], cols.place_start[item + 1]


@compiled
def quarrel(places: Any, begins: Ints, ends: Ints, level: Int, begin: Int, end: Int) -> Int:
    """The first level whose choice stands at another index of an array of places[begin:end], or -1."""
    for other in range(level):
        for i in range(begins[other], ends[other], 2):
            for j in range(begin, end, 2):
                if places[i] == places[j] and places[i + 1] != places[j + 1]:
                    return other
    return np.int64(-1)


@compiled
def same_place(places: Any, a: Int, a_end: Int, b: Int, b_end: Int) -> Flag:
    """Whether two ranges of `places` say the same."""
    if a_end - a != b_end - b:
        return False
    for k in range(a_end - a):
        if places[a + k] != places[b + k]:
            return False
    return True


@inlined
def _bit(level: Int) -> Int:
    """The bit of a level; all from the last bit on share it, which costs time and nothing else."""
    return np.int64(1) << min(level, _LAST_BIT)


@inlined
def _up_to(level: Int) -> Int:
    """The bits of all levels before this one."""
    return (np.int64(1) << min(level, _LAST_BIT + 1)) - 1


@compiled
def joint_holds(
    ix: Index,
    cols: Columns,
    memo: Ints,
    p: Int,
    state: Ints,
    row_kind: Ints,
    first: Ints,
    last: Ints,
    placed: Any,
) -> Flag:
    """Whether the parts of the JOINT at p hold together in a row: see `filters.joints`.

    A search level by level, a part each. Where a level has no choice left, the search returns to the last
    level that was in the way (`blame`, as bits), not just to the one before.
    """
    words, places = ix.words, cols.places
    count = words[p + 1]
    cursor = np.zeros(count + 1, np.int64)
    begins = np.zeros(count + 1, np.int64)
    ends = np.zeros(count + 1, np.int64)
    blame = np.zeros(count + 1, np.int64)
    level = np.int64(0)
    entered = True
    while level < count:
        c, at = words[p + 2 + 2 * level], words[p + 3 + 2 * level]
        present = state[c] == 1 or state[c] == LIST
        if entered:
            cursor[level] = first[c] if present else 0
            blame[level] = 0
            begins[level] = ends[level] = 0
        done = False
        if at == 0:
            # absent: no value that agrees with the choices so far; there is nothing else to choose
            done = entered and state[c] != 2
            e = first[c]
            while done and present and e < last[c]:
                begin, end = place_of(cols, row_kind[c], placed[c], e)
                done = quarrel(places, begins, ends, level, begin, end) >= 0
                e += 1
            if entered and not done:
                blame[level] = _up_to(level)
        elif not present:
            done = entered and state[c] == 2 and words[p + at] >> 8 & EXPLICIT_NULL != 0
        elif words[p + at] >> 8 & (SCALAR if state[c] == 1 else ARRAY):
            while not done and cursor[level] < last[c]:
                e = cursor[level]
                cursor[level] += 1
                begin, end = place_of(cols, row_kind[c], placed[c], e)
                if not entered and same_place(places, begin, end, begins[level], ends[level]):
                    continue
                if not part_holds(ix, cols, memo, p + at, row_kind[c], e):
                    continue
                other = quarrel(places, begins, ends, level, begin, end)
                if other >= 0:
                    blame[level] |= _bit(other)
                    continue
                begins[level], ends[level] = begin, end
                done = True
        if done:
            level += 1
            entered = True
            continue
        fault = blame[level]
        entered = False
        target = level - 1
        while target >= 0 and not fault & _bit(target):
            target -= 1
        if target < 0:
            return False
        # levels that share a bit stay to blame
        blame[target] |= fault if target > _LAST_BIT else fault & ~_bit(target)
        level = target
    return True
