"""Sets of scalar values: the bottom of the filter algebra.

A scalar is a number (int64 and double are one line), a string, a boolean or a timestamp. A `ValueSet`
holds a set of each, as *cuts*: the sorted places where membership flips, from "outside" below the first.
Strings are ordered by code point, which is Spark's and UTF-8's byte order, so an equality, a prefix and
a range are all intervals, and union, intersection and complement are one merge of two sorted tuples.
Cuts are canonical: two sets of numbers, strings, booleans or times are equal iff their cuts are equal.

What intervals cannot say (suffixes, wildcards, case-less equality, CIDR) rides along as `tests` on the
string part: `StringTest`s that must hold or must not. Emptiness and containment of those are answered
safely: `is_empty` and `within` say True only when it is certain.

A number cut is (value, side): side 0 lies just below the value, side 1 just above it. A string cut is
the smallest string inside; the successor of "a" is "a\\0". A time cut counts microseconds since 1970.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import zip_longest
from typing import Any

from ramify.content.filters.strings import StringTest, TestKind, literal_prefix, may_be_implied
from ramify.content.filters.work import charge
from ramify.errors import FilterError

__all__ = [
    "EVERY_ELEMENT",
    "EVERY_VALUE",
    "NO_VALUE",
    "NULL_ELEMENT",
    "Cuts",
    "Literal",
    "Number",
    "Scalar",
    "ValueSet",
    "booleans",
    "cut_and",
    "cut_contains",
    "cut_not",
    "cut_or",
    "cut_within",
    "cuts_miss",
    "microseconds",
    "next_prefix",
    "number_above",
    "number_below",
    "numbers_equal",
    "prefixed",
    "singletons",
    "strings_equal",
    "times_above",
    "times_below",
    "times_equal",
    "where_tests",
]

Number = int | float
Scalar = int | float | str | bool | datetime
Cuts = tuple[Any, ...]
# (any of these tests, whether that must hold): the parts of a conjunction
Literal = tuple[frozenset[StringTest], bool]

# Tests on one set of strings: they are compared with each other, pair by pair.
MAX_TESTS = 256

_NUMBER_MIN = (-math.inf, 0)
_STRING_MIN = ""
_BOOLEAN_MIN = 0
_TIME_MIN = -(2**63)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def cut_and(a: Cuts, b: Cuts) -> Cuts:
    """Intersection. O(n log m) for the shorter n and the longer m, and the length of the result."""
    if len(a) < len(b):
        a, b = b, a
    return _clip(a, zip_longest(b[::2], b[1::2])) if b else ()


def cut_or(a: Cuts, b: Cuts) -> Cuts:
    """Union. O(len a + len b)."""
    if not a or not b:
        return a or b
    out: list[Any] = []
    i = j = 0
    inside = False
    while i < len(a) or j < len(b):
        cut = a[i] if j >= len(b) or (i < len(a) and a[i] <= b[j]) else b[j]
        i += i < len(a) and a[i] == cut
        j += j < len(b) and b[j] == cut
        now = i % 2 == 1 or j % 2 == 1
        if now != inside:
            out.append(cut)
            inside = now
    return tuple(out)


def cut_not(a: Cuts, least: Any) -> Cuts:
    """Complement within the line that starts at `least`."""
    return a[1:] if a and a[0] == least else (least, *a)


def cut_minus(a: Cuts, b: Cuts) -> Cuts:
    """Difference."""
    if not a or not b:
        return a
    return _clip(a, zip_longest((None, *b[1::2]), b[::2]))


def _clip(a: Cuts, intervals: Iterable[tuple[Any, Any]]) -> Cuts:
    """The part of `a` inside separate, ascending intervals [low, high); None is no bound."""
    out: list[Any] = []
    for low, high in intervals:
        i = 0 if low is None else bisect_right(a, low)
        j = len(a) if high is None else bisect_left(a, high)
        if i % 2:
            out.append(low)
        out += a[i:j]
        if j % 2 and high is not None:
            out.append(high)
    return tuple(out)


def cut_within(a: Cuts, b: Cuts) -> bool:
    """Whether a is a subset of b: each interval of a lies between two neighbouring cuts of b."""
    for low, high in zip_longest(a[::2], a[1::2]):
        k = bisect_right(b, low)
        if k % 2 == 0 or k != (len(b) if high is None else bisect_left(b, high)):
            return False
    return True


def cuts_miss(a: Cuts, b: Cuts) -> bool:
    """Whether a and b, neither empty, are disjoint; quick when one ends before the other begins."""
    if (len(a) % 2 == 0 and a[-1] <= b[0]) or (len(b) % 2 == 0 and b[-1] <= a[0]):
        return True
    return not cut_and(a, b)


def cut_contains(cuts: Cuts, point: Any) -> bool:
    """Membership of one point (for numbers the point of x is (x, 0)). O(log n)."""
    return bisect_right(cuts, point) % 2 == 1


@dataclass(frozen=True)
class ValueSet:
    """A set of scalars: cuts for each kind, and tests that qualify its strings.

    `nulls` says that JSON's null is inside too. Only an element of an array can be asked for it: of an
    attribute's own null a `Constraint` keeps account. `complement` is among the scalars.
    """

    numbers: Cuts = ()
    strings: Cuts = ()
    booleans: Cuts = ()
    times: Cuts = ()
    tests: frozenset[Literal] = frozenset()
    nulls: bool = False

    def __contains__(self, value: Scalar | None) -> bool:
        """Exact membership of one value."""
        if value is None:
            return self.nulls
        if isinstance(value, bool):
            return cut_contains(self.booleans, int(value))
        if isinstance(value, str):
            return cut_contains(self.strings, value) and all(
                any(t.holds(value) for t in tests) is wanted for tests, wanted in self.tests
            )
        if isinstance(value, datetime):
            return cut_contains(self.times, microseconds(value))
        if value != value:  # NaN lies above every number, as in Spark; events hold none, batches may
            return len(self.numbers) % 2 == 1
        return cut_contains(self.numbers, (value, 0))

    @cached_property
    def is_empty(self) -> bool:
        """True only when no value can be inside."""
        return not (self.numbers or self.strings or self.booleans or self.times or self.nulls)

    @property
    def is_every(self) -> bool:
        """Whether every scalar is inside."""
        return self == EVERY_VALUE

    def intersect(self, other: "ValueSet") -> "ValueSet":
        """Exact intersection."""
        return _normal(
            cut_and(self.numbers, other.numbers),
            cut_and(self.strings, other.strings),
            cut_and(self.booleans, other.booleans),
            cut_and(self.times, other.times),
            _all_of(self.tests, other.tests),
            self.nulls and other.nulls,
        )

    def union(self, other: "ValueSet") -> "ValueSet | None":
        """Exact union when one ValueSet can hold it, else None."""
        if not self.strings or not other.strings:
            tests = self.tests | other.tests
            strings = self.strings or other.strings
        elif self.tests == other.tests:
            tests, strings = self.tests, cut_or(self.strings, other.strings)
        elif not self.tests and cut_within(other.strings, self.strings):
            tests, strings = frozenset(), self.strings
        elif not other.tests and cut_within(self.strings, other.strings):
            tests, strings = frozenset(), other.strings
        else:
            either = _either(self, other)
            if either is None:
                return None
            strings, tests = either
        return _normal(
            cut_or(self.numbers, other.numbers),
            strings,
            cut_or(self.booleans, other.booleans),
            cut_or(self.times, other.times),
            tests,
            self.nulls or other.nulls,
        )

    def complement(self) -> "list[ValueSet]":
        """Sets whose union is everything else: one, and one more for each test."""
        plain = ValueSet(
            cut_not(self.numbers, _NUMBER_MIN),
            cut_not(self.strings, _STRING_MIN),
            cut_not(self.booleans, _BOOLEAN_MIN),
            cut_not(self.times, _TIME_MIN),
        )
        negated = [
            _normal((), self.strings, (), (), frozenset([(tests, not wanted)]))
            for tests, wanted in self.tests
        ]
        return [s for s in (plain, *negated) if not s.is_empty]

    def minus_plain(self, other: "ValueSet") -> "ValueSet":
        """Take away `other`, which must carry no tests: exact."""
        return _normal(
            cut_minus(self.numbers, other.numbers),
            cut_minus(self.strings, other.strings),
            cut_minus(self.booleans, other.booleans),
            cut_minus(self.times, other.times),
            self.tests,
            self.nulls and not other.nulls,
        )

    def within(self, other: "ValueSet") -> bool:
        """True only when every value of this set is in `other`."""
        return (
            cut_within(self.numbers, other.numbers)
            and cut_within(self.strings, other.strings)
            and cut_within(self.booleans, other.booleans)
            and cut_within(self.times, other.times)
            and self.nulls <= other.nulls
            and (not self.strings or self._passes(other))
        )

    def _passes(self, other: "ValueSet") -> bool:
        """Whether the strings of this set certainly pass the tests of `other`."""
        if all(_implied(self.tests, literal) for literal in other.tests):
            return True
        members = singletons(self.strings, "string")
        return members is not None and all(member in other for member in members)

    @cached_property
    def spelling(self) -> str:
        """One text per set as it is written here: the same in every process, unlike the hash."""
        tests = sorted(
            (sorted((t.kind.value, t.codes) for t in tests), wanted) for tests, wanted in self.tests
        )
        return repr((self.numbers, self.strings, self.booleans, self.times, tests, self.nulls))

    def misses(self, other: "ValueSet") -> bool:
        """True only when no value is in both: as `intersect(other).is_empty`, without building it."""
        if self.nulls and other.nulls:
            return False
        if self.numbers and other.numbers and not cuts_miss(self.numbers, other.numbers):
            return False
        if self.booleans and other.booleans and not cuts_miss(self.booleans, other.booleans):
            return False
        if self.times and other.times and not cuts_miss(self.times, other.times):
            return False
        if not self.strings or not other.strings or cuts_miss(self.strings, other.strings):
            return True
        return bool(self.tests or other.tests) and not self.intersect(other).strings

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.numbers, self.strings, self.booleans, self.times, self.tests, self.nulls))


def number_above(value: Number, inclusive: bool) -> ValueSet:
    """x >= value, or x > value."""
    return ValueSet(numbers=((tidy(value), 0 if inclusive else 1),))


def number_below(value: Number, inclusive: bool) -> ValueSet:
    """x <= value, or x < value."""
    return ValueSet(numbers=(_NUMBER_MIN, (tidy(value), 1 if inclusive else 0)))


def numbers_equal(values: Iterable[Number]) -> ValueSet:
    """x is one of these numbers."""
    cuts: list[Any] = []
    for value in sorted({tidy(v) for v in values}):
        cuts += [(value, 0), (value, 1)]
    return ValueSet(numbers=tuple(cuts))


def strings_equal(values: Iterable[str]) -> ValueSet:
    """x is one of these strings."""
    out: list[str] = []
    for value in sorted(set(values)):
        after = value + "\0"
        if out and out[-1] == value:  # "a" and "a\0" are neighbours
            out[-1] = after
        else:
            out += [value, after]
    return ValueSet(strings=tuple(out))


def strings_from(value: str, inclusive: bool) -> ValueSet:
    """x >= value, or x > value, in code point order."""
    return ValueSet(strings=(value if inclusive else value + "\0",))


def strings_below(value: str, inclusive: bool) -> ValueSet:
    """x <= value, or x < value, in code point order."""
    top = value + "\0" if inclusive else value
    return ValueSet(strings=(_STRING_MIN, top) if top else ())


def prefixed(prefix: str) -> ValueSet:
    """Strings that start with `prefix`."""
    after = next_prefix(prefix)
    return ValueSet(strings=(prefix,) if after is None else (prefix, after))


def where_tests(
    tests: Iterable[StringTest], wanted: bool = True, within: ValueSet | None = None
) -> ValueSet:
    """Strings (of `within`) for which any of the tests holds, or none of them."""
    strings = EVERY_VALUE.strings if within is None else within.strings
    asked = set(tests)
    _check_tests(len(asked))
    return _normal((), strings, (), (), frozenset([(_needed(sorted(asked)), wanted)]))


def booleans(value: bool) -> ValueSet:
    """x is this boolean."""
    return ValueSet(booleans=(1,) if value else (0, 1))


def times_above(time: datetime, inclusive: bool) -> ValueSet:
    """x >= time, or x > time."""
    return ValueSet(times=(microseconds(time) + (0 if inclusive else 1),))


def times_below(time: datetime, inclusive: bool) -> ValueSet:
    """x <= time, or x < time."""
    return ValueSet(times=(_TIME_MIN, microseconds(time) + (1 if inclusive else 0)))


def times_equal(times: Iterable[datetime]) -> ValueSet:
    """x is one of these times."""
    cuts: Cuts = ()
    for time in times:
        at = microseconds(time)
        cuts = cut_or(cuts, (at, at + 1))
    return ValueSet(times=cuts)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970, exactly; a naive time is read as UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def tidy(value: Number) -> Number:
    """One spelling per number: 5.0 becomes 5 and -0.0 becomes 0.

    An integer beyond 64 bits is the nearest double, as it is in events.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            value = float(value)
        except OverflowError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def singletons(cuts: Sequence[Any], successor: str) -> list[Any] | None:
    """The members of a finite set given by its cuts, or None when it is not (visibly) finite.

    `successor` says which cut follows a point: "number" (side 1), "string" ("\\0" behind) or "time" (+1).
    """
    if len(cuts) % 2:
        return None
    out: list[Any] = []
    for low, high in zip(cuts[::2], cuts[1::2], strict=True):
        if successor == "number":
            if low[0] != high[0]:
                return None
            out.append(low[0])
        elif successor == "time":
            if high - low > 64:
                return None
            out += range(low, high)
        else:
            if not _string_run(low, high, out):
                return None
    return out


def _string_run(low: str, high: str, out: list[Any]) -> bool:
    """Append the strings of [low, high) when high is low with a few \\0 behind it."""
    if not high.startswith(low) or high[len(low) :].strip("\0"):
        return False
    out += [low + "\0" * k for k in range(len(high) - len(low))]
    return True


def _normal(
    numbers: Cuts,
    strings: Cuts,
    bools: Cuts,
    times: Cuts,
    tests: frozenset[Literal],
    nulls: bool = False,
) -> ValueSet:
    """Build a ValueSet whose tests are needed: decided on finite sets, dropped without strings."""
    if tests and strings:
        members = singletons(strings, "string")
        if members is not None:
            undecided = ValueSet(strings=strings, tests=tests)
            strings = strings_equal(m for m in members if m in undecided).strings
            tests = frozenset()
        elif any((t, not wanted) in tests for t, wanted in tests):
            strings = ()
    if not strings:
        tests = frozenset()
    return ValueSet(numbers, strings, bools, times, tests, nulls)


def _all_of(one: frozenset[Literal], other: frozenset[Literal]) -> frozenset[Literal]:
    """Both conjunctions together, without what the rest makes certain; each is free of that already.

    None of these and none of those is none of either: a conjunction has at most one group that must not
    hold.
    """
    if not one or not other:
        return one or other
    _check_tests(sum(len(group) for group, _ in one | other))
    positive, asked = _wanted(one), _wanted(other)
    left = _unimplied(positive, asked)
    left |= _unimplied(asked, left)
    unwanted = _any_of(_unwanted(one), _unwanted(other))
    return left | {(unwanted, False)} if unwanted else left


def _unimplied(asked: frozenset[Literal], known: frozenset[Literal]) -> frozenset[Literal]:
    """The groups that must hold which the known ones do not make certain."""
    every = frozenset(test for have, _ in known for test in have)
    charge(1 + len(asked) // 3)
    return frozenset(
        literal
        for literal in asked
        if not any(may_be_implied(test, every) for test in literal[0]) or not _implied(known, literal)
    )


def _wanted(literals: frozenset[Literal]) -> frozenset[Literal]:
    return frozenset(literal for literal in literals if literal[1])


def _unwanted(literals: frozenset[Literal]) -> frozenset[StringTest]:
    """All tests of which none may hold."""
    return frozenset(test for tests, wanted in literals if not wanted for test in tests)


def _any_of(one: frozenset[StringTest], other: frozenset[StringTest]) -> frozenset[StringTest]:
    """Tests of which one holds iff one of either group does; each group is free of needless ones."""
    left = _undecided(one, other)
    return left | _undecided(other, left)


def _needed(tests: Sequence[StringTest]) -> frozenset[StringTest]:
    """The tests without those that imply another. Halves first, so that few groups are compared."""
    if len(tests) <= 1:
        return frozenset(tests)
    half = len(tests) // 2
    return _any_of(_needed(tests[:half]), _needed(tests[half:]))


def _undecided(tests: frozenset[StringTest], others: frozenset[StringTest]) -> frozenset[StringTest]:
    """The tests without those that imply one of the others."""
    charge(1 + (len(tests) + len(others)) // 4)
    suspects = [other for other in others if may_be_implied(other, tests)]
    if not suspects:
        return tests
    return frozenset(test for test in tests if not any(test.implies(other) for other in suspects))


def _either(one: ValueSet, other: ValueSet) -> tuple[Cuts, frozenset[Literal]] | None:
    """The strings of two sets together, where one set can hold them: strings, and the tests on them.

    Each side asks one group of tests that the other does not. Any of both groups will do, if a string
    that passes a test of one side is among the strings of that side anyway.
    """
    mine, theirs = one.tests - other.tests, other.tests - one.tests
    if one.strings == other.strings and not (mine and theirs):
        return one.strings, one.tests & other.tests
    if len(mine) != 1 or len(theirs) != 1:
        return None
    ((tests, wanted),), ((others, asked),) = mine, theirs
    if not wanted or not asked or len(tests) + len(others) > MAX_TESTS:
        return None
    if one.strings != other.strings and not (
        _confined(tests, one.strings) and _confined(others, other.strings)
    ):
        return None
    return cut_or(one.strings, other.strings), (one.tests & other.tests) | {(_any_of(tests, others), True)}


def _confined(tests: frozenset[StringTest], strings: Cuts) -> bool:
    """Whether a string that passes one of the tests is certainly among these."""
    if strings == EVERY_VALUE.strings:
        return True
    return all(
        test.kind is TestKind.GLOB and cut_within(prefixed(literal_prefix(test.codes)).strings, strings)
        for test in tests
    )


def _check_tests(count: int) -> None:
    """Refuse more tests than can be compared with each other, pair by pair."""
    if count > MAX_TESTS:
        raise FilterError(
            f"one attribute is put to more than {MAX_TESTS} string tests at once",
            allowed=f"up to {MAX_TESTS} wildcards, suffixes, case-less comparisons and CIDR blocks on one "
            "attribute: split the filter into several subscriptions",
        )


def _implied(known: frozenset[Literal], asked: Literal) -> bool:
    """Whether a conjunction of known literals makes the asked one certain."""
    if asked in known:
        return True
    tests, wanted = asked
    charge(1 + len(known) // 4)
    for have, held in known:
        if held and wanted and all(any(h.implies(t) for t in tests) for h in have):
            return True
        if not held and not wanted and all(any(t.implies(h) for h in have) for t in tests):
            return True
    return False


def next_prefix(prefix: str) -> str | None:
    """The least string above all that start with `prefix`; None when there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return None


NO_VALUE = ValueSet()
EVERY_VALUE = ValueSet((_NUMBER_MIN,), (_STRING_MIN,), (_BOOLEAN_MIN,), (_TIME_MIN,))
EVERY_ELEMENT = replace(EVERY_VALUE, nulls=True)
NULL_ELEMENT = ValueSet(nulls=True)
