"""The filter algebra: a filter is a union of boxes, a box gives each attribute a `Constraint`.

A box may ask further that fields hold together in one element of an array of objects (`joints`).

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

from ramify.content.filters.constraints import ANYTHING, Constraint, Value, value_at
from ramify.content.filters.joints import JointLiteral
from ramify.content.filters.values import ValueSet
from ramify.content.filters.work import Work, charge
from ramify.errors import FilterError

if TYPE_CHECKING:
    from ramify.content.filters.expressions import Expression

__all__ = [
    "EVERYTHING",
    "MAX_BOXES",
    "NOTHING_AT_ALL",
    "Box",
    "Filter",
    "merge_boxes",
    "products",
    "too_many_boxes",
    "unite",
]

MAX_BOXES = 1024
# An intersection or a difference of two boxes costs about as much as looking at this many pairs.
_PRODUCT = 5
# Cuts and tests of a box that cost as much as a step when it is looked at.
_PARTS_PER_STEP = 32
# Above this many boxes (constraints) not all pairs are compared: absorption is an optimisation, not a duty,
# and not worth much while a filter is still being built.
_ABSORB_MOST = 64
_ABSORB_MOST_AT_LAST = 128
_UNITE_MOST = 128


@dataclass(frozen=True)
class Box:
    """A conjunction: each named attribute lies in its Constraint, and each joint is as wanted.

    Constraints are sorted by path and never empty inside.
    """

    constraints: tuple[tuple[str, Constraint], ...] = ()
    joints: frozenset[JointLiteral] = frozenset()

    @staticmethod
    def of(
        constraints: Mapping[str, Constraint], joints: frozenset[JointLiteral] = frozenset()
    ) -> "Box | None":
        """A box, or None when it is certainly empty. Constraints that ask nothing are dropped."""
        if any(c.is_empty for c in constraints.values()):
            return None
        asked = sorted(((p, c) for p, c in constraints.items() if not c.is_anything), key=_path_of)
        return Box(tuple(asked), joints)

    def __getitem__(self, path: str) -> Constraint:
        """What is asked of `path`."""
        return self.by_path.get(path, ANYTHING)

    @cached_property
    def by_path(self) -> dict[str, Constraint]:
        """The constraints as a mapping."""
        return dict(self.constraints)

    def holds(self, attributes: Mapping[str, Value]) -> bool:
        """Whether an event's attributes lie in the box."""
        return all(
            value_at(attributes, path) in constraint for path, constraint in self.constraints
        ) and all(joint.holds(attributes) is wanted for joint, wanted in self.joints)

    def intersect(self, other: "Box") -> "Box | None":
        """Exact intersection; None when it is certainly empty."""
        if not self.constraints and not self.joints:
            return other
        joints = self.joints | other.joints
        if self.joints and other.joints and any((joint, not wanted) in joints for joint, wanted in joints):
            return None
        both = dict(self.constraints)
        for path, constraint in other.constraints:
            mine = both.get(path)
            both[path] = constraint if mine is None else mine.intersect(constraint)
            if both[path].is_empty:
                return None
        return Box(tuple(sorted(both.items(), key=_path_of)), joints)

    def misses(self, other: "Box") -> bool:
        """True only when no event is in both: as `intersect(other) is None`, without building it."""
        mine = self.by_path
        return any(path in mine and mine[path].misses(c) for path, c in other.constraints)

    def within(self, other: "Box") -> bool:
        """True only when every event of this box is in `other`."""
        mine = self.by_path
        if not other.by_path.keys() <= mine.keys():
            return False
        return all(mine[path].within(constraint) for path, constraint in other.constraints) and all(
            self._ensures(literal) for literal in other.joints
        )

    def _ensures(self, literal: JointLiteral) -> bool:
        """Whether what this box asks makes a joint come out as wanted, for certain."""
        if literal in self.joints:
            return True
        asked, wanted = literal
        if not wanted:
            return any(not held and asked.implies(joint) for joint, held in self.joints)
        return asked.follows_from(self.by_path) or any(
            held and joint.implies(asked) for joint, held in self.joints
        )

    def minus(self, other: "Box") -> "Iterator[Box]":
        """Disjoint boxes (up to undecided tests) that hold what is in this box and not in `other`."""
        rest = dict(self.constraints)
        for path, constraint in other.constraints:
            mine = rest.get(path, ANYTHING)
            for outside in constraint.complement():
                piece = mine.intersect(outside)
                if not piece.is_empty:
                    yield Box(tuple(sorted({**rest, path: piece}.items(), key=_path_of)), self.joints)
            rest[path] = mine.intersect(constraint)
            if rest[path].is_empty:
                return
        both = tuple(sorted(rest.items(), key=_path_of))
        joints = self.joints
        for joint, wanted in sorted(other.joints, key=_spelling_of):
            if (joint, wanted) not in joints:
                yield Box(both, joints | {(joint, not wanted)})
                joints |= {(joint, wanted)}

    def union(self, other: "Box") -> "Box | None":
        """Exact union when the boxes differ in one attribute only and that union is one Constraint."""
        if self.by_path.keys() != other.by_path.keys() or self.joints != other.joints:
            return None
        differs = [p for p, c in self.constraints if other.by_path[p] != c]
        if len(differs) != 1:
            return None
        merged = self[differs[0]].union(other[differs[0]])
        return None if merged is None else Box.of({**self.by_path, differs[0]: merged}, self.joints)

    @cached_property
    def weight(self) -> int:
        """Steps that it takes to go through its constraints."""
        return 1 + sum(4 + _parts(constraint) for _, constraint in self.constraints) // _PARTS_PER_STEP

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.constraints, self.joints))


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
        with Work() as work:
            return Filter(merge_boxes(products(self.boxes, other.boxes, work)))

    def union(self, other: "Filter") -> "Filter":
        """Events that either accepts."""
        return Filter(merge_boxes((*self.boxes, *other.boxes)))

    def complement(self) -> "Filter":
        """Events that this filter does not accept: the set complement, not SQL's NOT."""
        return EVERYTHING.subtract(self)

    def subtract(self, other: "Filter") -> "Filter":
        """Events that this filter accepts and `other` does not."""
        with Work() as work:
            return self.subtract_within(other, work)

    def subtract_within(self, other: "Filter", work: Work) -> "Filter":
        """As `subtract`, on a budget that others spend too."""
        near = _Neighbours(other.boxes)
        return Filter(merge_boxes(p for mine in self.boxes for p in _minus_all(mine, near.of(mine), work)))

    def covers(self, other: "Filter") -> bool:
        """True only if every event that `other` accepts is accepted by this filter.

        Exact for filters without tests and arrays of moderate size; otherwise it may say no where yes
        would be true, never the reverse.
        """
        near = _Neighbours(self.boxes)
        own = set(self.boxes)
        try:
            with Work() as work:
                return all(box in own or _covered(box, near.of(box), work) for box in other.boxes)
        except FilterError:
            return False

    def overlaps(self, other: "Filter") -> bool:
        """False only if no event is accepted by both."""
        near = _Neighbours(other.boxes)
        try:
            with Work() as work:
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
                raise too_many_boxes(most)
    kept = _merge_along_each_path(list(distinct))
    if 2 <= len(kept) <= absorb:
        kept = _absorb(kept)
    if len(kept) > most:
        raise too_many_boxes(most)
    return tuple(kept)


def too_many_boxes(most: int = MAX_BOXES) -> FilterError:
    """What to raise for a filter that does not fit into so many boxes."""
    return FilterError(
        f"the filter needs more than {most} boxes in its normal form",
        allowed=f"up to {most} alternatives after expansion: split it into several subscriptions, "
        "or use IN, BETWEEN and prefixes instead of long chains of OR under AND or NOT",
    )


def products(left: Iterable[Box], right: Iterable[Box], work: Work) -> Iterator[Box]:
    """The non-empty intersections of every pair."""
    near = _Neighbours(tuple(right))
    for a in left:
        others = near.of(a)
        for b in others:
            work.spend(_PRODUCT + a.weight + b.weight)
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
    if len(boxes) < 2:
        return boxes
    alive = dict.fromkeys(boxes)
    for path in sorted({p for box in boxes for p, _ in box.constraints}):
        charge(1 + len(alive) // 64)
        groups: dict[tuple[tuple[tuple[str, Constraint], ...], frozenset[JointLiteral]], list[Box]] = {}
        for box in [box for box in alive if path in box.by_path]:
            rest = tuple(pc for pc in box.constraints if pc[0] != path)
            groups.setdefault((rest, box.joints), []).append(box)
        for (rest, joints), members in groups.items():
            if len(members) < 2:
                continue
            charge(sum(box.weight for box in members))
            for box in members:
                del alive[box]
            for constraint in unite([box.by_path[path] for box in members]):
                united = Box.of({**dict(rest), path: constraint}, joints)
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
        return _test_shape(constraint.scalars), arrays.none, _test_shape(some)
    return _test_shape(constraint.scalars), arrays


def _test_shape(values: ValueSet) -> object:
    """The tests of a set, but for one group of which any must hold: those mostly unite."""
    wanted = [literal for literal in values.tests if literal[1]]
    return values.tests.difference(wanted) if len(wanted) == 1 else values.tests


def _unite_halves(constraints: list[Constraint]) -> list[Constraint]:
    """Halves first, so that a long list takes O(n log n) when all unite."""
    if len(constraints) <= 1:
        return constraints
    half = len(constraints) // 2
    done = _unite_halves(constraints[:half])
    for constraint in _unite_halves(constraints[half:]):
        for k, other in enumerate(done):
            charge(1)
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
        charge(len(kept) * box.weight)
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


def _parts(constraint: Constraint) -> int:
    """How many cuts and tests a constraint has, about."""
    sets = [constraint.scalars]
    if constraint.arrays is not None:
        sets += [*constraint.arrays.some, *constraint.arrays.none]
    return sum(
        len(s.numbers) + len(s.strings) + len(s.times) + sum(len(tests) for tests, _ in s.tests)
        for s in sets
    )


def _path_of(item: tuple[str, Constraint]) -> str:
    return item[0]


def _spelling_of(literal: JointLiteral) -> tuple[str, bool]:
    return literal[0].spelling, literal[1]


EVERYTHING = Filter((Box(),))
NOTHING_AT_ALL = Filter(())
