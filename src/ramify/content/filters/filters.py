"""The filter algebra: a filter is a union of boxes, a box gives each attribute a `Constraint`.

    parse  ->  expression (what the user wrote)  ->  boxes  ->  algebra, key, matcher

Filters are sets of events, so the laws are those of sets: `complement` is the set complement, which is
not SQL's NOT (`NOT x = 5` does not hold where x is NULL; the spelling has settled that before the boxes
are built). What cannot be decided (wildcards, case-less equality, CIDR) is answered on the safe side:

    covers(a, b)    True only if every event that b accepts is accepted by a
    overlaps(a, b)  False only if no event is accepted by both

A filter never holds more than `MAX_BOXES` boxes; an operation that would need more raises FilterError.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ramify.content.filters.constraints import ABSENT, ANYTHING, Constraint, Value
from ramify.errors import FilterError

if TYPE_CHECKING:
    from ramify.content.filters.expressions import Expression

__all__ = [
    "EVERYTHING",
    "MAX_BOXES",
    "NOTHING_AT_ALL",
    "Box",
    "Filter",
    "Work",
    "merge_boxes",
    "products",
    "unite",
]

MAX_BOXES = 1024
# What one algebra call may spend, in pairs of boxes looked at: about a second, then FilterError.
_WORK = 100_000
# An intersection or a difference of two boxes costs about as much as looking at this many pairs.
_PRODUCT = 5
# Above this many boxes (constraints) not all pairs are compared: absorption is an optimisation, not a duty,
# and not worth much while a filter is still being built.
_ABSORB_MOST = 128
_ABSORB_MOST_AT_LAST = 512
_UNITE_MOST = 128


class Work:
    """What one algebra call may still spend, so that a filter that explodes fails instead of hanging."""

    def __init__(self, limit: int = _WORK) -> None:
        self.left = limit

    def spend(self, steps: int) -> None:
        """Take `steps` off the budget, or raise FilterError when it is used up."""
        self.left -= steps
        if self.left < 0:
            raise _too_complex()


@dataclass(frozen=True)
class Box:
    """A conjunction: each named attribute lies in its Constraint. Sorted by path, never empty inside."""

    constraints: tuple[tuple[str, Constraint], ...] = ()

    @staticmethod
    def of(constraints: Mapping[str, Constraint]) -> "Box | None":
        """A box, or None when it is certainly empty. Constraints that ask nothing are dropped."""
        if any(c.is_empty for c in constraints.values()):
            return None
        return Box(tuple(sorted((p, c) for p, c in constraints.items() if not c.is_anything)))

    def __getitem__(self, path: str) -> Constraint:
        """What is asked of `path`."""
        return self.by_path.get(path, ANYTHING)

    @cached_property
    def by_path(self) -> dict[str, Constraint]:
        """The constraints as a mapping."""
        return dict(self.constraints)

    def holds(self, attributes: Mapping[str, Value]) -> bool:
        """Whether an event's attributes lie in the box."""
        return all(attributes.get(path, ABSENT) in constraint for path, constraint in self.constraints)

    def intersect(self, other: "Box") -> "Box | None":
        """Exact intersection; None when it is certainly empty."""
        if not self.constraints:
            return other
        both = dict(self.constraints)
        for path, constraint in other.constraints:
            mine = both.get(path)
            both[path] = constraint if mine is None else mine.intersect(constraint)
            if both[path].is_empty:
                return None
        return Box(tuple(sorted(both.items(), key=_path_of)))

    def misses(self, other: "Box") -> bool:
        """True only when no event is in both: as `intersect(other) is None`, without building it."""
        mine = self.by_path
        return any(path in mine and mine[path].misses(c) for path, c in other.constraints)

    def within(self, other: "Box") -> bool:
        """True only when every event of this box is in `other`."""
        mine = self.by_path
        if not other.by_path.keys() <= mine.keys():
            return False
        return all(mine[path].within(constraint) for path, constraint in other.constraints)

    def minus(self, other: "Box") -> "Iterator[Box]":
        """Disjoint boxes (up to undecided tests) that hold what is in this box and not in `other`."""
        rest = dict(self.constraints)
        for path, constraint in other.constraints:
            mine = rest.get(path, ANYTHING)
            for outside in constraint.complement():
                piece = mine.intersect(outside)
                if not piece.is_empty:
                    yield Box(tuple(sorted({**rest, path: piece}.items(), key=_path_of)))
            rest[path] = mine.intersect(constraint)
            if rest[path].is_empty:
                return

    def union(self, other: "Box") -> "Box | None":
        """Exact union when the boxes differ in one attribute only and that union is one Constraint."""
        if self.by_path.keys() != other.by_path.keys():
            return None
        differs = [p for p, c in self.constraints if other.by_path[p] != c]
        if len(differs) != 1:
            return None
        merged = self[differs[0]].union(other[differs[0]])
        return None if merged is None else Box.of({**self.by_path, differs[0]: merged})

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.constraints)


@dataclass(frozen=True)
class Filter:
    """A predicate on events: a union of boxes, and the expression it was parsed from (for `explain`).

    Equality and hash are those of the canonical key, so filters that mean the same compare equal
    wherever the algebra can see it (always, without tests and arrays).
    """

    boxes: tuple[Box, ...]
    expression: "Expression | None" = field(default=None, compare=False, repr=False)

    def holds(self, attributes: Mapping[str, Value]) -> bool:
        """Evaluate on one event's attributes. The plain way: O(boxes x attributes), no index."""
        return any(box.holds(attributes) for box in self.boxes)

    def intersect(self, other: "Filter") -> "Filter":
        """Events that both accept."""
        return Filter(merge_boxes(products(self.boxes, other.boxes, Work())))

    def union(self, other: "Filter") -> "Filter":
        """Events that either accepts."""
        return Filter(merge_boxes((*self.boxes, *other.boxes)))

    def complement(self) -> "Filter":
        """Events that this filter does not accept: the set complement, not SQL's NOT."""
        return EVERYTHING.subtract(self)

    def subtract(self, other: "Filter") -> "Filter":
        """Events that this filter accepts and `other` does not."""
        near = _Neighbours(other.boxes)
        work = Work()
        return Filter(merge_boxes(p for mine in self.boxes for p in _minus_all(mine, near.of(mine), work)))

    def covers(self, other: "Filter") -> bool:
        """True only if every event that `other` accepts is accepted by this filter.

        Exact for filters without tests and arrays of moderate size; otherwise it may say no where yes
        would be true, never the reverse.
        """
        near = _Neighbours(self.boxes)
        own = set(self.boxes)
        work = Work()
        try:
            return all(box in own or _covered(box, near.of(box), work) for box in other.boxes)
        except FilterError:
            return False

    def overlaps(self, other: "Filter") -> bool:
        """False only if no event is accepted by both."""
        near = _Neighbours(other.boxes)
        work = Work()
        try:
            for mine in self.boxes:
                others = near.of(mine)
                work.spend(len(others))
                if not all(mine.misses(box) for box in others):
                    return True
        except FilterError:
            return True
        return False

    @property
    def is_empty(self) -> bool:
        """True only if no event can be accepted."""
        return not self.boxes

    def simplify(self) -> "Filter":
        """The same set with boxes absorbed and merged where that is exact; keeps the expression."""
        return Filter(merge_boxes(self.boxes, absorb=_ABSORB_MOST_AT_LAST), self.expression)

    @cached_property
    def key(self) -> bytes:
        """16 bytes, equal for equal filters: see `ramify.content.filters.canonical`."""
        from ramify.content.filters.canonical import canonical_key

        return canonical_key(self.boxes)

    @property
    def paths(self) -> frozenset[str]:
        """The attributes that this filter looks at."""
        return frozenset(path for box in self.boxes for path, _ in box.constraints)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and (self.boxes == other.boxes or self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __and__(self, other: "Filter") -> "Filter":
        return self.intersect(other)

    def __or__(self, other: "Filter") -> "Filter":
        return self.union(other)

    def __invert__(self) -> "Filter":
        return self.complement()

    def __sub__(self, other: "Filter") -> "Filter":
        return self.subtract(other)


def merge_boxes(boxes: Iterable[Box], most: int = MAX_BOXES, absorb: int = _ABSORB_MOST) -> tuple[Box, ...]:
    """Absorb boxes that lie in another and merge pairs whose union is a box; at most `most` remain.

    Work is bounded: whenever twice `most` boxes have come together they must merge to `most`, and pairs
    are compared among few boxes only, so a filter that explodes ends in FilterError, not in a hang.
    """
    distinct: dict[Box, None] = {}
    room = 2 * most
    for box in boxes:
        distinct.setdefault(box)
        if len(distinct) > room:
            distinct = dict.fromkeys(_merge_along_each_path(list(distinct)))
            if len(distinct) > most:
                raise _too_many(most)
    kept = _merge_along_each_path(list(distinct))
    if 2 <= len(kept) <= absorb:
        kept = _absorb(kept)
    if len(kept) > most:
        raise _too_many(most)
    return tuple(kept)


def _too_many(most: int) -> FilterError:
    return FilterError(
        f"the filter needs more than {most} boxes in its normal form",
        allowed=f"up to {most} alternatives after expansion: split it into several subscriptions, "
        "or use IN, BETWEEN and prefixes instead of long chains of OR under AND or NOT",
    )


def _too_complex() -> FilterError:
    return FilterError(
        "the filter takes too much work to bring into its normal form",
        allowed="fewer alternatives under AND and NOT: split it into several subscriptions",
    )


def products(left: Iterable[Box], right: Iterable[Box], work: Work) -> Iterator[Box]:
    """The non-empty intersections of every pair."""
    near = _Neighbours(tuple(right))
    for a in left:
        others = near.of(a)
        work.spend(_PRODUCT * len(others))
        for b in others:
            both = a.intersect(b)
            if both is not None:
                yield both


class _Neighbours:
    """Finds the boxes that may meet a given one, so that large unions are not compared pair by pair.

    Orders the boxes along one attribute: the one that most of them bound to an interval of numbers, of
    strings or of times. Boxes that leave it open are neighbours of all.
    """

    def __init__(self, boxes: tuple[Box, ...], few: int = 8) -> None:
        self.boxes = boxes
        self.path: str | None = None
        self.line = ""
        if len(boxes) <= few:
            return
        spans = Counter((path, line) for box in boxes for path, c in box.constraints if (line := _line(c)))
        if not spans:
            return
        (self.path, self.line), _ = min(spans.items(), key=lambda item: (-item[1], item[0]))
        self.open: list[Box] = []
        bounded: list[tuple[Any, Any, int]] = []
        for k, box in enumerate(boxes):
            constraint = box[self.path]
            if _line(constraint) == self.line:
                bounded.append((*_hull(constraint, self.line), k))
            else:
                self.open.append(box)
        bounded.sort(key=lambda bound: bound[0])
        self.lows = [low for low, _, _ in bounded]
        self.highs = [high for _, high, _ in bounded]
        self.order = [boxes[k] for _, _, k in bounded]

    def of(self, box: Box) -> Sequence[Box]:
        """The boxes that `box` may meet, and perhaps more."""
        if self.path is None:
            return self.boxes
        constraint = box[self.path]
        if not getattr(constraint.scalars, self.line):
            return self.open
        low, high = _hull(constraint, self.line)
        end = len(self.lows) if high is None else bisect_left(self.lows, high)
        highs = self.highs
        return self.open + [self.order[k] for k in range(end) if highs[k] is None or highs[k] > low]


def _line(constraint: Constraint) -> str:
    """The one kind of scalar that a constraint admits and nothing else, or an empty name."""
    if constraint.absent or constraint.null or constraint.arrays is not None or constraint.scalars.booleans:
        return ""
    found = [line for line in ("numbers", "strings", "times") if getattr(constraint.scalars, line)]
    return found[0] if len(found) == 1 else ""


def _hull(constraint: Constraint, line: str) -> tuple[Any, Any]:
    """The first cut and the last, None when the set has no upper end."""
    cuts = getattr(constraint.scalars, line)
    return cuts[0], cuts[-1] if len(cuts) % 2 == 0 else None


def _minus_all(box: Box, others: Sequence[Box], work: Work) -> list[Box]:
    """What is in `box` and in none of the others, as disjoint boxes (up to undecided tests)."""
    left = [box]
    for other in others:
        work.spend(len(left))
        following: list[Box] = []
        for piece in left:
            if piece.misses(other):
                following.append(piece)
            else:
                work.spend(_PRODUCT)
                following += piece.minus(other)
        if len(following) > 2 * MAX_BOXES:
            following = list(merge_boxes(following))
        left = following
    return left


def _merge_along_each_path(boxes: list[Box]) -> list[Box]:
    """Unite boxes that are equal but for one attribute, attribute by attribute.

    Grouping by "all the others" finds every such pair without comparing all pairs: O(constraints) dict
    look-ups, and unions only where they can succeed.
    """
    alive = dict.fromkeys(boxes)
    for path in sorted({p for box in boxes for p, _ in box.constraints}):
        groups: dict[tuple[tuple[str, Constraint], ...], list[Box]] = {}
        for box in [box for box in alive if path in box.by_path]:
            groups.setdefault(tuple(pc for pc in box.constraints if pc[0] != path), []).append(box)
        for rest, members in groups.items():
            if len(members) < 2:
                continue
            for box in members:
                del alive[box]
            for constraint in unite([box.by_path[path] for box in members]):
                united = Box.of({**dict(rest), path: constraint})
                if united is not None:
                    alive.setdefault(united)
    return list(alive)


def unite(constraints: list[Constraint]) -> list[Constraint]:
    """Unite constraints where one can hold both; what cannot unite stays apart."""
    alike: dict[object, list[Constraint]] = {}
    for constraint in constraints:
        alike.setdefault(_shape(constraint), []).append(constraint)
    apart = [c for group in alike.values() for c in _unite_halves(group)]
    # Constraints of different shape rarely unite: not worth comparing all pairs of many.
    return _unite_halves(apart) if 2 <= len(apart) <= _UNITE_MOST else apart


def _shape(constraint: Constraint) -> object:
    """What must be equal for two constraints to be sure to unite."""
    arrays = constraint.arrays
    if arrays is not None and len(arrays.some) == 1:
        (some,) = arrays.some
        return constraint.scalars.tests, arrays.none, some.tests
    return constraint.scalars.tests, arrays


def _unite_halves(constraints: list[Constraint]) -> list[Constraint]:
    """Halves first, so that a long list takes O(n log n) when all unite."""
    if len(constraints) <= 1:
        return constraints
    half = len(constraints) // 2
    done = _unite_halves(constraints[:half])
    for constraint in _unite_halves(constraints[half:]):
        for k, other in enumerate(done):
            merged = other.union(constraint)
            if merged is not None:
                done[k] = merged
                break
        else:
            done.append(constraint)
    return done


def _absorb(boxes: list[Box]) -> list[Box]:
    """Drop boxes that lie within another. Fewest constraints first, since those can hold others."""
    ordered = sorted(boxes, key=lambda b: len(b.constraints))
    kept: list[Box] = []
    for box in ordered:
        if not any(box.within(other) for other in kept):
            kept = [other for other in kept if not other.within(box)]
            kept.append(box)
    return kept


def _covered(box: Box, by: Sequence[Box], work: Work) -> bool:
    """Whether `box` lies in the union `by`: subtract one after another until nothing is left."""
    work.spend(len(by))
    if any(box.within(other) for other in by):
        return True
    left = [box]
    for other in by:
        work.spend(len(left))
        following: list[Box] = []
        for piece in left:
            if piece.misses(other):
                following.append(piece)
                continue
            work.spend(_PRODUCT)
            for rest in piece.minus(other):
                work.spend(len(by))
                if not any(rest.within(o) for o in by):
                    following.append(rest)
        left = following
        if not left:
            return True
    return False


def _path_of(item: tuple[str, Constraint]) -> str:
    return item[0]


EVERYTHING = Filter((Box(),))
NOTHING_AT_ALL = Filter(())
