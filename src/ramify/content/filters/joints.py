"""Fields that must hold together: inside an array of objects, in one and the same element.

A conjunction of constraints asks each attribute for itself, so `{"d": {"a": [1], "b": [2]}}` would hold for
`{"d": [{"a": 1}, {"b": 2}]}`, where no element has both. Amazon EventBridge says no there (array
consistency), and Spark's `exists(d, x -> x.a = 1 AND x.b = 2)` does too. A `Joint` is that further
condition: one value for each of its parts, in the order of their paths, such that no two stand at different
indexes of the same array. A part that wants its field absent holds when no value of the field agrees with
the values chosen before it.

Which arrays a value stands in is its *place* (`attributes.LeafList`); scalars and elements of plain arrays
have none and agree with everything. So without arrays of objects a joint asks what the constraints ask
already. The algebra does not look inside joints: equal joints have equal answers, and `implies` is sound.

Source: the semantics of Amazon's event-ruler (array consistency), as its documentation states them.
Cost: a search with backtracking that returns to the choices at fault, as the matcher's kernel does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ramify.content.events.attributes import LeafList, Place
from ramify.content.filters.constraints import ABSENT, Constraint, Value, value_at
from ramify.content.filters.values import Scalar, ValueSet

__all__ = ["Joint", "JointLiteral", "JointPart", "root_of"]


class JointPart(NamedTuple):
    """What is asked of one field: to be absent, or to have a value in `values` (nulls included)."""

    path: str
    absent: bool
    values: ValueSet


@dataclass(frozen=True)
class Joint:
    """Parts that hold together, sorted by path. See the module."""

    parts: tuple[JointPart, ...]

    def holds(self, attributes: Mapping[str, Value]) -> bool:
        """Evaluate on one event's attributes."""
        return _Search(self.parts, attributes).found()

    def implies(self, other: "Joint") -> bool:
        """True only when every event for which this joint holds is one for which `other` does.

        More parts ask for more, and smaller sets do. Where `other` wants a field absent that does not
        follow: what counts as absent depends on the values chosen before it.
        """
        if self == other:
            return True
        mine = {part.path: part for part in self.parts}
        return all(
            not part.absent
            and part.path in mine
            and not mine[part.path].absent
            and mine[part.path].values.within(part.values)
            for part in other.parts
        )

    def follows_from(self, constraints: Mapping[str, Constraint]) -> bool:
        """True only when constraints that admit no array make the joint certain."""
        return all(_is_certain(part, constraints.get(part.path)) for part in self.parts)

    @cached_property
    def spelling(self) -> str:
        """One text per joint as it is written here: the same in every process, unlike the hash."""
        return repr([(path, absent, values.spelling) for path, absent, values in self.parts])

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.parts)


JointLiteral = tuple[Joint, bool]
"""A joint, and whether it must hold."""


def root_of(path: str) -> str:
    """The name that a path begins with. Only fields of one root can stand in one array."""
    return path.partition(".")[0]


def _is_certain(part: JointPart, constraint: Constraint | None) -> bool:
    if constraint is None or constraint.arrays is not None:
        return False
    if part.absent:
        return not constraint.null and constraint.scalars.is_empty
    return (
        not constraint.absent
        and constraint.null <= part.values.nulls
        and constraint.scalars.within(part.values)
    )


class _Search:
    """Looks for one value per part. `chosen` has the place of each part's value so far."""

    def __init__(self, parts: tuple[JointPart, ...], attributes: Mapping[str, Value]) -> None:
        self.parts = parts
        self.values = [_placed(value_at(attributes, part.path)) for part in parts]
        self.chosen: list[Place] = []

    def found(self) -> bool:
        return self._from(0) < 0

    def _from(self, level: int) -> int:
        """Choose from a level on: -1 when that succeeds, else which levels (as bits) are at fault."""
        if level == len(self.parts):
            return -1
        part, blame = self.parts[level], 0
        if part.absent:
            if any(self._quarrel(place) < 0 for _, place in self.values[level]):
                # any choice before this one might have kept the field out
                return (1 << level) - 1
            self.chosen.append(())
            below = self._from(level + 1)
            self.chosen.pop()
            return below
        tried: set[Place] = set()
        for value, place in self.values[level]:
            if place in tried or value not in part.values:
                continue
            tried.add(place)
            quarrel = self._quarrel(place)
            if quarrel >= 0:
                blame |= 1 << quarrel
                continue
            self.chosen.append(place)
            below = self._from(level + 1)
            self.chosen.pop()
            if below < 0:
                return -1
            if not below >> level & 1:
                # another value here would change nothing
                return below
            blame |= below & ~(1 << level)
        return blame

    def _quarrel(self, place: Place) -> int:
        """The first level whose value stands at another index of an array of `place`, or -1."""
        here = dict(place)
        for level, other in enumerate(self.chosen):
            if any(here.get(array, index) != index for array, index in other):
                return level
        return -1


def _placed(value: Value) -> list[tuple[Scalar | None, Place]]:
    """The values of a field, each with its place."""
    if value is ABSENT:
        return []
    if isinstance(value, LeafList):
        return list(zip(value, value.places, strict=True))
    if isinstance(value, list | tuple):
        return [(element, ()) for element in value]
    return [(value, ())]  # type: ignore[list-item]
