"""Filters as the matcher wants them: each box a program (see `program`) and a choice of access paths.

An access path is a set of features of one attribute, of which every event that the box accepts must have at
least one. The matcher files the box under the path that it expects events to have least often; the program
then decides exactly.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.content.events.columns import WHOLE_MOST
from ramify.content.filters.constraints import ArraySet, Constraint
from ramify.content.filters.filters import Box
from ramify.content.filters.joints import Joint
from ramify.content.filters.strings import StringTest, TestKind, literal_prefix
from ramify.content.filters.values import EVERY_VALUE, Cuts, Literal, ValueSet, next_prefix, singletons
from ramify.content.matching.literals import literal_of
from ramify.content.matching.postings import hash_bytes
from ramify.content.matching.program import (
    ALWAYS,
    ARRAY,
    BOOLEAN_IS,
    EQUAL,
    EQUALS,
    EQUALS_NOCASE,
    EXPLICIT_NULL,
    GENERAL,
    HAS_LITERAL,
    HAS_PREFIX,
    HAS_SUFFIX,
    JOINT,
    LONGEST_KEY,
    NUMBER,
    NUMBER_IN,
    NUMBER_IS,
    ONE_OF,
    PREFIX,
    SCALAR,
    SET,
    TESTS,
    TIME_IN,
    TIME_IS,
    WANTED,
)
from ramify.errors import FilterError

__all__ = ["Access", "Feature", "access_paths", "encode_box"]

TestNumber = Callable[[int, StringTest], int]
"""The number that the index gives a string test on a column."""

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
_MOST_FEATURES = 1024
# A range is covered by about 2^(_INTERVAL_BITS) dyadic intervals; levels are multiples of _LEVEL_STEP,
# so that a column has few classes and a value few look-ups.
_INTERVAL_BITS = 2
_LEVEL_STEP = 2
# A set of at most so many strings is searched by their hashes, a larger one by bisection.
_FEW = 16
# flags of what a pattern asks: the value itself, or an element
_FOUND = SCALAR | ARRAY


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a value can have: see `program`. `data` are bytes, a number, or an interval's number.

    `length` is the length of a prefix or suffix in bytes, or the level of a dyadic interval.
    """

    kind: int
    length: int
    data: bytes | int


@dataclass(slots=True)
class Access:
    """One way to find a box: a value of `path` must have one of the features.

    Without features, `path` must just be present. `spans` are the number ranges behind interval features,
    as (low, high) of their first and last interval: what the guess of their share is made from.
    """

    path: str
    features: list[Feature] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)


def encode_box(
    box: Box, owner: int, column_of: Callable[[str], int], test_of: TestNumber, last: int | None
) -> list[int]:
    """The program of a box, cheap predicates first. `column_of` numbers attributes, `test_of` string tests.

    The predicate on column `last`, by which the box will be found, mostly holds: it is tried last.
    """
    asked = {path: _predicates(c, column_of(path), test_of) for path, c in box.constraints}
    predicates = sorted(
        (words for programs in asked.values() for words in programs),
        key=lambda words: (words[0] >> 40 == last, words[0] & 0xFF, len(words)),
    )
    for joint, wanted in sorted(box.joints, key=lambda literal: literal[0].spelling):
        known = {
            path: asked[path][0]
            for path, absent, values in joint.parts
            if not absent and path in asked and _asks(box[path], values)
        }
        predicates.append(_joint(joint, wanted, known, predicates, column_of, test_of))
    return [owner << 16 | len(predicates), *(word for words in predicates for word in words)]


def _joint(
    joint: Joint,
    wanted: bool,
    known: Mapping[str, list[int]],
    before: list[list[int]],
    column_of: Callable[[str], int],
    test_of: TestNumber,
) -> list[int]:
    """A JOINT behind other predicates. A part refers to the `known` predicate that asks the same, or else
    has one of its own."""
    start = sum(len(words) for words in before)
    places: dict[int, int] = {}
    at = 0
    for words in before:
        places[id(words)] = at - start
        at += len(words)
    own: list[int] = []
    parts: list[int] = []
    for path, absent, values in joint.parts:
        column = column_of(path)
        if absent:
            parts += [column, 0]
        elif path in known:
            parts += [column, places[id(known[path])]]
        else:
            parts += [column, 2 + 2 * len(joint.parts) + len(own)]
            op, operands = _simple(values, column, test_of)
            own += _worded(op, _FOUND | (EXPLICIT_NULL if values.nulls else 0), operands, column)
    # It adds nothing where no value has a place, if all that it asks is asked by the box already.
    always = not wanted or len(known) < len(joint.parts)
    flags = (WANTED if wanted else 0) | (ALWAYS if always else 0)
    return _worded(JOINT, flags, [len(joint.parts), *parts, *own], 0)


def _asks(constraint: Constraint, values: ValueSet) -> bool:
    """Whether a constraint asks for a value, or an element, in just this set."""
    simple = _existential(constraint)
    return simple is not None and simple[0] == values


def access_paths(box: Box) -> Iterator[Access]:
    """Every way to find the box; none when an event may match without any of its attributes."""
    for path, constraint in box.constraints:
        if constraint.absent or constraint.null:
            continue
        options = [constraint.scalars]
        if constraint.arrays is not None:
            # one of the sets that an array must meet is enough; the smallest looks most selective
            wanted = list(constraint.arrays.some)
            if not wanted:
                yield Access(path)
                continue
            options.append(wanted[0] if len(wanted) == 1 else min(wanted, key=_breadth))
        access = Access(path)
        # a pattern asks the same of a scalar and of an element: collect it once
        distinct = [values for values in dict.fromkeys(options) if not values.is_empty]
        if all(_collect(values, access) for values in distinct):
            yield Access(path, list(dict.fromkeys(access.features)), access.spans)
        else:
            yield Access(path)
        if len(distinct) == 1:
            yield from _literal_accesses(path, distinct[0])


def _breadth(values: ValueSet) -> tuple[bool, bool, int]:
    access = Access("")
    return not _collect(values, access), bool(access.spans), len(access.features)


def _collect(values: ValueSet, access: Access) -> bool:
    """Add the features that cover a value set; False when they cannot. A null has no feature."""
    return (
        not values.nulls
        and _number_features(values.numbers, False, access)
        and _number_features(values.times, True, access)
        and _boolean_features(values, access)
        and _string_features(values, access)
        and len(access.features) <= _MOST_FEATURES
    )


def _number_features(cuts: Cuts, is_time: bool, access: Access) -> bool:
    if not cuts:
        return True
    members = singletons(cuts, "time" if is_time else "number")
    if members is not None and len(members) <= _MOST_FEATURES:
        kind = TIME_IS if is_time else NUMBER_IS
        access.features += [Feature(kind, 0, key) for m in members for key in _number_keys(m)]
        return True
    if is_time:
        low, high = cuts[0], INT_MAX if len(cuts) % 2 else cuts[-1]
    else:
        low = order_of(float(cuts[0][0]))
        high = INT_MAX if len(cuts) % 2 else order_of(float(cuts[-1][0]))
    level = max(0, (high - low).bit_length() - _INTERVAL_BITS)
    level += -level % _LEVEL_STEP
    first, last = low >> level, high >> level
    kind = TIME_IN if is_time else NUMBER_IN
    access.features += [Feature(kind, level, k) for k in range(first, last + 1)]
    access.spans.append(_span(first << level, ((last + 1) << level) - 1, is_time))
    return True


def _span(low: int, high: int, is_time: bool) -> tuple[float, float]:
    """The numbers that intervals cover, read back from their order."""
    if is_time:
        return float(low), float(high)
    return double_of(max(low, INT_MIN)), double_of(min(high, INT_MAX))


def order_of(number: float) -> int:
    """`columns.ordered` of one double."""
    (bits,) = struct.unpack("=q", struct.pack("=d", number + 0.0))
    return int(bits ^ INT_MAX if bits < 0 else bits)


def double_of(order: int) -> float:
    """The double of an order; what lies beyond the infinities becomes them."""
    (number,) = struct.unpack("=d", struct.pack("=q", order ^ INT_MAX if order < 0 else order))
    return math.copysign(math.inf, order) if math.isnan(number) else float(number)


def _boolean_features(values: ValueSet, access: Access) -> bool:
    mask = _boolean_mask(values.booleans)
    access.features += [Feature(BOOLEAN_IS, 0, b) for b in (0, 1) if mask >> b & 1]
    return True


def _string_features(values: ValueSet, access: Access) -> bool:
    if not values.strings:
        return True
    features = []
    for low, high in _intervals(values.strings):
        if high is not None and high == low + "\0":
            features.append(Feature(EQUALS, 0, low.encode()))
            continue
        prefix = low if high is not None and next_prefix(low) == high else _common_prefix(low, high)
        if not prefix:
            return _test_features(values, access)
        features.append(_prefix(prefix.encode()))
    access.features += features
    return True


def _test_features(values: ValueSet, access: Access) -> bool:
    """Cover a string set by one group of tests that must hold, each of which has a feature."""
    for tests, wanted in _ordered_tests(values):
        features = [_test_feature(test) for test in sorted(tests)]
        if wanted and None not in features:
            access.features += [feature for feature in features if feature is not None]
            return True
    return False


def _literal_accesses(path: str, values: ValueSet) -> Iterator[Access]:
    """For each group of tests that must hold: a literal of each of its tests, one of which must occur."""
    if values.numbers or values.booleans or values.times or values.nulls:
        return
    for tests, wanted in _ordered_tests(values):
        literals = [literal_of(test) for test in sorted(tests)] if wanted else []
        if literals and None not in literals and len(literals) <= _MOST_FEATURES:
            # the same in columns that are read with case and without: see `literals`
            folded = dict.fromkeys(text.lower() for text in literals if text is not None)
            yield Access(path, [Feature(HAS_LITERAL, 0, text) for text in folded])


def _test_feature(test: StringTest) -> Feature | None:
    if test.kind is TestKind.GLOB:
        prefix = literal_prefix(test.codes).encode()
        suffix = literal_prefix(test.codes[::-1])[::-1].encode()[-LONGEST_KEY:]
        if len(prefix) >= len(suffix) and prefix:
            return _prefix(prefix)
        return Feature(HAS_SUFFIX, len(suffix), suffix) if suffix else None
    if test.kind is TestKind.NOCASE and all(c < 128 for c in test.codes):
        return Feature(EQUALS_NOCASE, 0, bytes(test.codes))
    return None


def _prefix(data: bytes) -> Feature:
    return Feature(HAS_PREFIX, min(len(data), LONGEST_KEY), data[:LONGEST_KEY])


def _common_prefix(low: str, high: str | None) -> str:
    n = 0
    while high is not None and n < min(len(low), len(high)) and low[n] == high[n]:
        n += 1
    return low[:n]


def _number_keys(value: Any) -> list[int]:
    """How `columns.whole_numbers` writes a number. An int64 beyond 9.2e18 and its double differ: both."""
    keys = [value] if isinstance(value, int) and INT_MIN <= value <= INT_MAX else []
    if not keys or abs(value) >= WHOLE_MOST:
        keys.append(order_of(float(value)))
    return keys


def _predicates(constraint: Constraint, column: int, test_of: TestNumber) -> list[list[int]]:
    """The predicates, all of which must hold, that a constraint comes to."""
    arrays = constraint.arrays
    plain = not constraint.absent and not constraint.null and constraint.scalars.is_empty
    if plain and arrays is not None and len(arrays.some) > 1 and not arrays.none:
        # an array that meets several sets: one cheap predicate each (in an order that repeats)
        programs = [_simple(values, column, test_of) for values in arrays.some]
        return sorted(_worded(op, ARRAY, operands, column) for op, operands in programs)
    simple = _existential(constraint)
    if simple is None:
        return [_worded(GENERAL, 0, _general(constraint, column, test_of), column)]
    op, operands = _simple(simple[0], column, test_of)
    return [_worded(op, simple[1], operands, column)]


def _worded(op: int, flags: int, operands: list[int], column: int) -> list[int]:
    """[op, flags, words and column in one; operands...]"""
    if 1 + len(operands) >= 1 << 24:
        raise FilterError("a single predicate of the filter is too large", allowed="fewer values in it")
    return [op | flags << 8 | (1 + len(operands)) << 16 | column << 40, *operands]


def _existential(constraint: Constraint) -> tuple[ValueSet, int] | None:
    """(values, flags) when the constraint only asks for a value, or an element, in one set."""
    if constraint.absent:
        return None
    scalars, arrays = constraint.scalars, constraint.arrays
    if arrays is None:
        return None if constraint.null else (scalars, SCALAR)
    if len(arrays.some) != 1 or arrays.none:
        return None
    (wanted,) = arrays.some
    if scalars.is_empty and not constraint.null:
        return wanted, ARRAY
    if constraint.null != wanted.nulls or replace(wanted, nulls=False) != scalars:
        return None
    return wanted, _FOUND | (EXPLICIT_NULL if wanted.nulls else 0)


def _simple(values: ValueSet, column: int, test_of: TestNumber) -> tuple[int, list[int]]:
    if values.nulls:
        return SET, _set(values, column, test_of)
    lines = [name for name in ("numbers", "strings", "booleans", "times") if getattr(values, name)]
    if lines == ["numbers"] and len(values.numbers) <= 2:
        ends = [cut[0] for cut in values.numbers]
        # an int64 beyond 2^53 is not its double, but still on the same side of smaller bounds
        if all(abs(end) < 2**53 or end == -math.inf for end in ends):
            return NUMBER, _number_bounds(*next(_intervals(values.numbers)))[:2]
    if lines == ["strings"] and not values.tests and len(values.strings) == 2:
        low, high = values.strings
        if high == low + "\0":
            return EQUAL, _packed(low)
        if low and next_prefix(low) == high:
            return PREFIX, _packed(low)
    members = singletons(values.strings, "string") if lines == ["strings"] and not values.tests else None
    if members is not None and len(members) <= _FEW:
        return ONE_OF, _one_of(members, column)
    if lines == ["strings"] and values.strings == EVERY_VALUE.strings:
        return TESTS, _literals(values, column, test_of)
    return SET, _set(values, column, test_of)


def _one_of(members: list[str], column: int) -> list[int]:
    """Count, stride, then for each string half its hash with its length, and its bytes."""
    strings = []
    for member in members:
        length, *data = _packed(member)
        strings.append([_signed(string_hash(column, member) >> 32 << 32 | length), *data])
    stride = max(len(string) for string in strings)
    padded = (word for string in strings for word in [*string, *[0] * (stride - len(string))])
    return [len(members), stride, *padded]


def string_hash(column: int, text: str) -> int:
    """The hash by which the kernels know a whole string of a column."""
    return int(hash_bytes(column, EQUALS, np.frombuffer(text.encode(), np.uint8)))


def _general(constraint: Constraint, column: int, test_of: TestNumber) -> list[int]:
    words = [int(constraint.absent), int(constraint.null), int(not constraint.scalars.is_empty)]
    if not constraint.scalars.is_empty:
        words += _set(constraint.scalars, column, test_of)
    arrays: ArraySet | None = constraint.arrays
    words.append(int(arrays is not None))
    if arrays is not None:
        for group in (arrays.some, arrays.none):
            words.append(len(group))
            for values in sorted(group, key=repr):
                words += _set(values, column, test_of)
    return words


def _set(values: ValueSet, column: int, test_of: TestNumber) -> list[int]:
    words = [(len(values.numbers) + 1) // 2]
    for low, high in _intervals(values.numbers):
        words += _number_bounds(low, high)
    words.append((len(values.times) + 1) // 2)
    for low, high in _intervals(values.times):
        words += [max(low, INT_MIN), INT_MAX if high is None else min(high - 1, INT_MAX)]
    words.append(_boolean_mask(values.booleans) | values.nulls << 2)
    intervals = [_string_interval(low, high) for low, high in _intervals(values.strings)]
    words.append(len(intervals))
    at = len(intervals)
    for interval in intervals:
        words.append(at)
        at += len(interval)
    for interval in intervals:
        words += interval
    literals = _literals(values, column, test_of)
    words += [*literals, len(literals) + 1]
    return [len(words) + 1, *words]


def _literals(values: ValueSet, column: int, test_of: TestNumber) -> list[int]:
    words = [len(values.tests)]
    for tests, wanted in _ordered_tests(values):
        words += [int(wanted), len(tests), *(test_of(column, test) for test in sorted(tests))]
    return words


def _ordered_tests(values: ValueSet) -> list[Literal]:
    """The groups of tests in an order that repeats."""
    if len(values.tests) <= 1:
        return list(values.tests)
    return sorted(values.tests, key=lambda t: (sorted(t[0]), t[1]))


def _signed(word: int) -> int:
    return word - 2**64 if word > INT_MAX else word


def _string_interval(low: str, high: str | None) -> list[int]:
    return [*_packed(low), *([-1] if high is None else _packed(high))]


def _packed(text: str) -> list[int]:
    """Length in bytes, then the UTF-8 bytes packed into words in memory order."""
    data = text.encode()
    count = (len(data) + 7) // 8
    return [len(data), *struct.unpack(f"={count}q", data.ljust(8 * count, b"\0"))]


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
    # without an upper end NaN is inside: it lies above every number
    return [order_of(flo), INT_MAX if high is None else order_of(fhi), max(ilo, INT_MIN), min(ihi, INT_MAX)]


def _double_at_least(value: Any, strictly: bool) -> float:
    """The least double >= value, or > value. Python compares int and float exactly."""
    number = float(value)
    while number < value or (strictly and number <= value):
        number = math.nextafter(number, math.inf)
    return number
