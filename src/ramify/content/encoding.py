"""Filters as the matcher wants them: each box a program (see `kernels`) and a choice of access paths.

An access path is a set of keys and ranges of which every event that the box accepts must hit one. The
matcher files the box under the path that it expects to be hit least; the program then decides exactly.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.content.constraints import ArraySet, Constraint
from ramify.content.filters import Box
from ramify.content.kernels import (
    EQUAL,
    GENERAL,
    LONGEST_KEY,
    NUMBER,
    PREFIX,
    SALT_EQUAL,
    SALT_NOCASE,
    SALT_PREFIX,
    SALT_SUFFIX,
    SET,
    TAG_BOOL,
    TAG_NUMBER,
    TAG_TIME,
)
from ramify.content.strings import StringTest, TestKind, literal_prefix
from ramify.content.values import Cuts, ValueSet, next_prefix, singletons

__all__ = ["Access", "Key", "Range", "access_paths", "encode_box"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
_MOST_KEYS = 1024


@dataclass(frozen=True, slots=True)
class Key:
    """A hash key: a string in the ways `salt` says, or a number, time or boolean under its tag."""

    path: str
    salt: int
    data: bytes | int


@dataclass(frozen=True, slots=True)
class Range:
    """A closed range of numbers (or times) that the value must fall into, widened to doubles."""

    path: str
    is_time: bool
    low: float
    high: float


@dataclass(slots=True)
class Access:
    """One way to find a box: any of these must be hit. With neither, `path` must be present."""

    path: str
    keys: list[Key] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


def encode_box(box: Box, column_of: Callable[[str], int]) -> list[int]:
    """The program of a box. Cheap predicates first; `column_of` numbers the attributes."""
    predicates = sorted(
        (_predicate(c, column_of(path)) for path, c in box.constraints), key=lambda w: (w[1] >= SET, len(w))
    )
    return [len(predicates), *(word for words in predicates for word in words)]


def access_paths(box: Box) -> Iterator[Access]:
    """Every way to find the box; none when an event may match without any of its attributes."""
    for path, constraint in box.constraints:
        if constraint.absent or constraint.null:
            continue
        options = [constraint.scalars]
        if constraint.arrays is not None:
            # one of the sets that an array must meet is enough; the smallest looks most selective
            wanted = sorted(constraint.arrays.some, key=_breadth)
            if not wanted:
                yield Access(path)
                continue
            options.append(wanted[0])
        access = Access(path)
        if all(_collect(path, values, access) for values in options if not values.is_empty):
            yield access
        yield Access(path)


def _breadth(values: ValueSet) -> tuple[bool, int]:
    access = Access("")
    return not _collect("", values, access), len(access.keys) + 1000 * len(access.ranges)


def _collect(path: str, values: ValueSet, access: Access) -> bool:
    """Add the keys and ranges that cover a value set; False when they cannot."""
    return (
        _number_access(path, values.numbers, False, access)
        and _number_access(path, values.times, True, access)
        and _boolean_access(path, values, access)
        and _string_access(path, values, access)
        and len(access.keys) <= _MOST_KEYS
    )


def _number_access(path: str, cuts: Cuts, is_time: bool, access: Access) -> bool:
    if not cuts:
        return True
    members = singletons(cuts, "time" if is_time else "number")
    if members is not None and len(members) <= _MOST_KEYS:
        tag = TAG_TIME if is_time else TAG_NUMBER
        access.keys += [Key(path, tag, bits) for m in members for bits in _number_keys(m)]
        return True
    low = float(cuts[0] if is_time else cuts[0][0])
    high = math.inf if len(cuts) % 2 else float(cuts[-1] if is_time else cuts[-1][0])
    if is_time and cuts[0] == INT_MIN:
        low = -math.inf
    if low == -math.inf and high == math.inf:
        return False
    access.ranges.append(Range(path, is_time, low, high))
    return True


def _boolean_access(path: str, values: ValueSet, access: Access) -> bool:
    access.keys += [Key(path, TAG_BOOL, int(b)) for b in (False, True) if _boolean_mask(values.booleans) >> b & 1]
    return True


def _string_access(path: str, values: ValueSet, access: Access) -> bool:
    if not values.strings:
        return True
    for low, high in _intervals(values.strings):
        if high is not None and high == low + "\0":
            access.keys.append(Key(path, SALT_EQUAL, low.encode()))
            continue
        prefix = low if high is not None and next_prefix(low) == high else _common_prefix(low, high)
        if not prefix:
            return _test_access(path, values, access)
        access.keys.append(Key(path, SALT_PREFIX, _clip(prefix.encode())))
    return True


def _test_access(path: str, values: ValueSet, access: Access) -> bool:
    """Cover a string set by one of its tests: some group that must hold, all of whose tests have a key."""
    for tests, wanted in sorted(values.tests, key=repr):
        keys = [_test_key(path, test) for test in sorted(tests)]
        if wanted and None not in keys:
            access.keys += [key for key in keys if key is not None]
            return True
    return False


def _test_key(path: str, test: StringTest) -> Key | None:
    if test.kind is TestKind.GLOB:
        prefix = literal_prefix(test.codes).encode()
        suffix = literal_prefix(test.codes[::-1])[::-1].encode()
        if len(prefix) >= len(suffix) and prefix:
            return Key(path, SALT_PREFIX, _clip(prefix))
        return Key(path, SALT_SUFFIX, suffix[-LONGEST_KEY:]) if suffix else None
    if test.kind is TestKind.NOCASE and all(c < 128 for c in test.codes):
        return Key(path, SALT_NOCASE, bytes(test.codes))
    return None


def _clip(data: bytes) -> bytes:
    return data[:LONGEST_KEY]


def _common_prefix(low: str, high: str | None) -> str:
    n = 0
    while high is not None and n < min(len(low), len(high)) and low[n] == high[n]:
        n += 1
    return low[:n]


def _number_keys(value: Any) -> list[int]:
    """The keys under which the kernel looks a number up: whole ones as themselves, others by their bits.

    A double beyond 9.2e18 goes by its bits, an int64 never does, so such numbers get both.
    """
    keys = []
    if isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        keys.append(value)
    if not keys or abs(value) >= 9.2e18:
        keys.append(int(np.float64(value).view(np.int64)))
    return keys


def _predicate(constraint: Constraint, column: int) -> list[int]:
    """[words, op, flags, column, operands...]"""
    simple = _existential(constraint)
    if simple is None:
        op, flags, operands = GENERAL, 0, _general(constraint)
    else:
        values, flags = simple
        op, operands = _simple(values)
    return [4 + len(operands), op, flags, column, *operands]


def _existential(constraint: Constraint) -> tuple[ValueSet, int] | None:
    """(values, flags) when the constraint only asks for a value, or an element, in one set."""
    if constraint.absent or constraint.null:
        return None
    scalars, arrays = constraint.scalars, constraint.arrays
    if arrays is None:
        return scalars, 1
    if len(arrays.some) != 1 or arrays.none:
        return None
    (wanted,) = arrays.some
    if scalars.is_empty:
        return wanted, 2
    return (wanted, 3) if wanted == scalars else None


def _simple(values: ValueSet) -> tuple[int, list[int]]:
    lines = [name for name in ("numbers", "strings", "booleans", "times") if getattr(values, name)]
    if lines == ["numbers"] and len(values.numbers) <= 2:
        return NUMBER, _number_bounds(values.numbers[0], values.numbers[1] if len(values.numbers) > 1 else None)
    if lines == ["strings"] and not values.tests and len(values.strings) == 2:
        low, high = values.strings
        if high == low + "\0":
            return EQUAL, _packed(low)
        if low and next_prefix(low) == high:
            return PREFIX, _packed(low)
    return SET, _set(values)


def _general(constraint: Constraint) -> list[int]:
    words = [int(constraint.absent), int(constraint.null), int(not constraint.scalars.is_empty)]
    if not constraint.scalars.is_empty:
        words += _set(constraint.scalars)
    arrays: ArraySet | None = constraint.arrays
    words.append(int(arrays is not None))
    if arrays is not None:
        for group in (arrays.some, arrays.none):
            words.append(len(group))
            for values in sorted(group, key=repr):
                words += _set(values)
    return words


def _set(values: ValueSet) -> list[int]:
    words = [(len(values.numbers) + 1) // 2]
    for low, high in _intervals(values.numbers):
        words += _number_bounds(low, high)
    words.append((len(values.times) + 1) // 2)
    for low, high in _intervals(values.times):
        words += [max(low, INT_MIN), INT_MAX if high is None else min(high - 1, INT_MAX)]
    words.append(_boolean_mask(values.booleans))
    intervals = [_string_interval(low, high) for low, high in _intervals(values.strings)]
    words.append(len(intervals))
    at = len(intervals)
    for interval in intervals:
        words.append(at)
        at += len(interval)
    for interval in intervals:
        words += interval
    literals = _literals(values)
    words += [*literals, len(literals) + 1]
    return [len(words) + 1, *words]


def _literals(values: ValueSet) -> list[int]:
    words = [len(values.tests)]
    for tests, wanted in sorted(values.tests, key=lambda t: (sorted(t[0]), t[1])):
        words += [int(wanted), len(tests)]
        for test in sorted(tests):
            words += [int(test.kind), len(test.codes), *(_signed(code) for code in test.codes)]
    return words


def _signed(word: int) -> int:
    return word - 2**64 if word > INT_MAX else word


def _string_interval(low: str, high: str | None) -> list[int]:
    return [*_packed(low), *([-1] if high is None else _packed(high))]


def _packed(text: str) -> list[int]:
    """Length in bytes, then the UTF-8 bytes packed into words in memory order."""
    data = text.encode()
    padded = data + b"\0" * (-len(data) % 8)
    return [len(data), *(int(w) for w in np.frombuffer(padded, np.int64))]


def _intervals(cuts: Cuts) -> Iterator[tuple[Any, Any]]:
    for k in range(0, len(cuts), 2):
        yield cuts[k], cuts[k + 1] if k + 1 < len(cuts) else None


def _boolean_mask(cuts: Cuts) -> int:
    return {(): 0, (0,): 3, (1,): 2, (0, 1): 1}[cuts]


def _number_bounds(low: Any, high: Any) -> list[int]:
    """Closed bounds [bits of flo, bits of fhi, ilo, ihi] of the interval between two number cuts."""
    flo, ilo = -math.inf, INT_MIN
    if low[0] != -math.inf:
        flo = _double_at_least(low[0], strictly=low[1] == 1)
        ilo = math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
    fhi, ihi = math.inf, INT_MAX
    if high is not None:
        fhi = -_double_at_least(-high[0], strictly=high[1] == 0)
        ihi = math.floor(high[0]) if high[1] else math.ceil(high[0]) - 1
    if ilo > INT_MAX or ihi < INT_MIN:
        ilo, ihi = 1, 0
    bits = np.array([flo, fhi], np.float64).view(np.int64)
    return [int(bits[0]), int(bits[1]), max(ilo, INT_MIN), min(ihi, INT_MAX)]


def _double_at_least(value: Any, strictly: bool) -> float:
    """The least double >= value, or > value. Python compares int and float exactly."""
    number = float(value)
    while number < value or (strictly and number <= value):
        number = math.nextafter(number, math.inf)
    return number
