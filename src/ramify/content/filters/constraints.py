"""What a filter asks of one attribute: a set over everything the attribute can be in an event.

An attribute is absent, an explicit JSON null, a scalar, or an array of scalars and nulls (of any types; the
values of a field inside an array of objects are such an array too). The languages differ in
what they ask of each: SQL's `x = 5` wants the scalar 5 and never holds for an array; EventBridge's
`{"x": [5]}` also holds for an array with a 5 in it; SQL's `x IS NULL` does not tell null from absent,
EventBridge does. So a `Constraint` keeps the four apart, and one algebra serves all spellings:

    intersect    exact, one Constraint
    complement   exact, a list of Constraints (their union)
    union        exact when one Constraint can hold it, else None
    is_empty     True only when certain        within   True only when certain

Arrays are judged by which value sets they meet (`ArraySet`): a conjunction of "some element lies in S"
and "no element lies in S". Two patterns on one array may be met by different elements, which a plain
intersection of value sets would get wrong (and so lose events).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cached_property

from ramify.content.events.attributes import TEXT_MARK, time_text
from ramify.content.filters.values import EVERY_VALUE, NO_VALUE, Scalar, ValueSet
from ramify.content.filters.work import charge
from ramify.errors import FilterError

__all__ = [
    "ABSENT",
    "ANYTHING",
    "EVERY_ARRAY",
    "NOTHING",
    "Absent",
    "ArraySet",
    "Constraint",
    "Value",
    "value_at",
]


# What may be asked of one array at once: the sets are compared with each other, pair by pair.
MAX_ARRAY_SETS = 64


class Absent(Enum):
    """The attribute is not in the event at all."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
Value = Scalar | None | Absent | Sequence[Scalar | None]


def value_at(attributes: Mapping[str, Value], path: str) -> Value:
    """What an event holds at a path; at a `text_path`, the text of the time that it holds."""
    found = attributes.get(path, ABSENT)
    if found is not ABSENT or not path.endswith(TEXT_MARK):
        return found
    value = attributes.get(path.removesuffix(TEXT_MARK), ABSENT)
    return time_text(value) if isinstance(value, datetime) else value


@dataclass(frozen=True)
class ArraySet:
    """Arrays that have an element in each of `some` and no element in any of `none`."""

    some: frozenset[ValueSet] = frozenset()
    none: frozenset[ValueSet] = frozenset()

    def __contains__(self, elements: Sequence[Scalar | None]) -> bool:
        """Exact membership of one array."""
        return all(any(e in s for e in elements) for s in self.some) and not any(
            e in n for e in elements for n in self.none
        )

    def intersect(self, other: "ArraySet") -> "ArraySet | None":
        """Exact intersection; None when it is certainly empty."""
        return _array_set(self.some | other.some, self.none | other.none)

    def union(self, other: "ArraySet") -> "ArraySet | None":
        """Exact union when one ArraySet can hold it, else None."""
        if self.within(other):
            return other
        if other.within(self):
            return self
        if self.none == other.none and len(self.some) == len(other.some) == 1:
            (a,), (b,) = self.some, other.some
            merged = a.union(b)
            if merged is not None:
                return _array_set(frozenset([merged]), self.none)
        return None

    def complement(self) -> "list[ArraySet]":
        """Sets whose union is every other array."""
        parts = [ArraySet(none=frozenset([s])) for s in self.some]
        parts += [ArraySet(some=frozenset([n])) for n in self.none]
        return parts

    def within(self, other: "ArraySet") -> bool:
        """True only when every array of this set is in `other`."""
        if self._points and not self.none and not other.none:
            # a single string lies in a set that has it; mostly the other asks for single strings too
            return all(
                s in self.some or (not other._points and any(mine.within(s) for mine in self.some))
                for s in other.some
            )
        return all(any(mine.within(s) for mine in self.some) for s in other.some) and all(
            any(n.within(mine) for mine in self.none) for n in other.none
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.some, self.none))

    @cached_property
    def _points(self) -> bool:
        """Whether each of `some` is a single string."""
        return all(_is_point(values) for values in self.some)


def _array_set(some: frozenset[ValueSet], none: frozenset[ValueSet]) -> ArraySet | None:
    """Normalise: one plain exclusion at most, nothing asked that is excluded or implied.

    Raises FilterError when more is asked of one array than can be compared pair by pair.
    """
    if len(some) + len(none) > MAX_ARRAY_SETS:
        raise FilterError(
            f"more than {MAX_ARRAY_SETS} things are asked of one array at once",
            allowed=f"up to {MAX_ARRAY_SETS} words or values under AND: split the filter, or ask for fewer",
        )
    plain = NO_VALUE
    hard: set[ValueSet] = set()
    for n in none:
        merged = None if n.tests else plain.union(n)
        if merged is None:
            hard.add(n)
        else:
            plain = merged
    wanted = {s.minus_plain(plain) for s in some} if not plain.is_empty else set(some)
    if hard:
        charge(len(wanted) * len(hard) // 8)
        wanted = {_outside(s, hard) for s in wanted}
    if any(s.is_empty for s in wanted):
        return None
    least = _unimplied(wanted, lambda a, b: a.within(b))
    most = _unimplied({n for n in hard if not n.within(plain)}, lambda a, b: b.within(a))
    return ArraySet(frozenset(least), frozenset(most if plain.is_empty else [*most, plain]))


def _outside(values: ValueSet, hard: set[ValueSet]) -> ValueSet:
    """What is left of a set without others that have tests: exact for a part that lies in one whole."""
    for other in hard:
        values = values.minus_plain(replace(other, strings=(), tests=frozenset()))
        if values.strings and ValueSet(strings=values.strings, tests=values.tests).within(other):
            values = replace(values, strings=(), tests=frozenset())
    return values


def _is_point(values: ValueSet) -> bool:
    """Whether the set is a single string, as a keyword is: two of them never imply each other."""
    return (
        len(values.strings) == 2
        and values.strings[1] == values.strings[0] + "\0"
        and not (values.numbers or values.booleans or values.times or values.tests)
    )


def _unimplied(asked: set[ValueSet], implies: Callable[[ValueSet, ValueSet], bool]) -> list[ValueSet]:
    """What must still be asked: of two sets that imply each other one stays, the same in every process."""
    if all(_is_point(values) for values in asked):
        return list(asked)
    charge(len(asked) * len(asked) // 8)
    kept: list[ValueSet] = []
    for values in sorted(asked, key=lambda v: v.spelling) if len(asked) > 1 else asked:
        if not any(implies(other, values) for other in kept):
            kept = [other for other in kept if not implies(values, other)]
            kept.append(values)
    return kept


EVERY_ARRAY = ArraySet()


@dataclass(frozen=True)
class Constraint:
    """A set of what one attribute can be: absent, explicit null, scalars, arrays (None: no array)."""

    absent: bool = False
    null: bool = False
    scalars: ValueSet = NO_VALUE
    arrays: ArraySet | None = None

    def __contains__(self, value: Value) -> bool:
        """Exact membership of what an event holds."""
        if value is ABSENT:
            return self.absent
        if value is None:
            return self.null
        if isinstance(value, str | int | float | datetime):
            return value in self.scalars
        if isinstance(value, Sequence):
            return self.arrays is not None and value in self.arrays
        raise TypeError(f"an attribute cannot hold {type(value).__name__}")

    @cached_property
    def is_empty(self) -> bool:
        """True only when nothing can be inside."""
        return not self.absent and not self.null and self.scalars.is_empty and self.arrays is None

    @property
    def is_anything(self) -> bool:
        """Whether nothing is asked."""
        return self == ANYTHING

    def intersect(self, other: "Constraint") -> "Constraint":
        """Exact intersection."""
        arrays = None
        if self.arrays is not None and other.arrays is not None:
            arrays = self.arrays.intersect(other.arrays)
        return Constraint(
            self.absent and other.absent,
            self.null and other.null,
            self.scalars.intersect(other.scalars),
            arrays,
        )

    def misses(self, other: "Constraint") -> bool:
        """True only when nothing is in both: as `intersect(other).is_empty`, without building it."""
        if (self.absent and other.absent) or (self.null and other.null):
            return False
        if not self.scalars.misses(other.scalars):
            return False
        return self.arrays is None or other.arrays is None or self.arrays.intersect(other.arrays) is None

    def union(self, other: "Constraint") -> "Constraint | None":
        """Exact union when one Constraint can hold it, else None."""
        scalars = self.scalars.union(other.scalars)
        if scalars is None:
            return None
        if self.arrays is None or other.arrays is None:
            arrays = self.arrays or other.arrays
        else:
            arrays = self.arrays.union(other.arrays)
            if arrays is None:
                return None
        return Constraint(self.absent or other.absent, self.null or other.null, scalars, arrays)

    def complement(self) -> "list[Constraint]":
        """Constraints whose union is everything else."""
        scalars = self.scalars.complement()
        arrays = [EVERY_ARRAY] if self.arrays is None else self.arrays.complement()
        parts = []
        for k in range(max(1, len(scalars), len(arrays))):
            part = Constraint(
                k == 0 and not self.absent,
                k == 0 and not self.null,
                scalars[k] if k < len(scalars) else NO_VALUE,
                arrays[k] if k < len(arrays) else None,
            )
            if not part.is_empty:
                parts.append(part)
        return parts

    def within(self, other: "Constraint") -> bool:
        """True only when everything in this set is in `other`."""
        return self is other or (
            self.absent <= other.absent
            and self.null <= other.null
            and (self.arrays is None or (other.arrays is not None and self.arrays.within(other.arrays)))
            and self.scalars.within(other.scalars)
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.absent, self.null, self.scalars, self.arrays))


ANYTHING = Constraint(True, True, EVERY_VALUE, EVERY_ARRAY)
NOTHING = Constraint()
