"""What an event holds, read from its JSON in plain Python: the oracle for readers, columns and filters.

One walk over the parsed object, value by value. It shares no code with the readers; only the form of the
answer (`LeafList`) is theirs.
"""

import json
from typing import Any

from ramify.content.events.attributes import AttributeValue, LeafList, Place, Scalar

__all__ = ["alike", "flatten", "loads"]


def loads(text: str | bytes) -> Any:
    """JSON as readers take it: the last of equal keys holds, numbers of any length are read."""
    return json.loads(text, parse_int=_integer)


def flatten(record: dict[str, Any]) -> dict[str, AttributeValue]:
    """Path -> scalar, None for an explicit null, tuple for plain arrays, `LeafList` for values with places.

    Arrays that hold an object or an array are numbered in document order. A path that is given twice is one
    array of all its values. A path without a value, and an empty object, are not there.
    """
    walk = _Walk()
    walk.enter(record, (), (), in_list=False)
    return {path: _joined(found) for path, found in walk.found.items()}


def alike(one: AttributeValue, other: AttributeValue) -> bool:
    """Whether two values are the same for every filter: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, tuple) != isinstance(other, tuple):
        return False
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return _same(one, other)
    places = (getattr(value, "places", ((),) * len(value)) for value in (one, other))
    return len(one) == len(other) and all(map(_same, one, other)) and next(places) == next(places)


class _Found:
    """The values at one path, their places, and whether an array is among what gave them."""

    def __init__(self) -> None:
        self.values: list[Scalar | None] = []
        self.places: list[Place] = []
        self.is_list = False
        self.times = 0

    def add(self, value: Any, place: Place) -> None:
        self.values.append(_scalar(value))
        self.places.append(place)


class _Walk:
    def __init__(self) -> None:
        self.found: dict[str, _Found] = {}
        self.arrays = 0

    def enter(self, value: Any, keys: tuple[str, ...], place: Place, *, in_list: bool) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self.enter(inner, (*keys, key), place, in_list=in_list)
            return
        found = self.found.setdefault(".".join(keys), _Found())
        found.is_list = found.is_list or in_list or isinstance(value, list)
        found.times += 1
        if isinstance(value, list):
            self._enter_array(value, keys, place)
        else:
            found.add(value, place)

    def _enter_array(self, array: list[Any], keys: tuple[str, ...], place: Place) -> None:
        number = self.arrays
        self.arrays += any(isinstance(element, dict | list) for element in array)
        for index, element in enumerate(array):
            if isinstance(element, list):
                self._enter_array(element, keys, (*place, (number, index)))
            elif isinstance(element, dict):
                self.enter(element, keys, (*place, (number, index)), in_list=True)
            else:
                self.found[".".join(keys)].add(element, place)


def _joined(found: _Found) -> AttributeValue:
    if found.times == 1 and not found.is_list:
        return found.values[0]
    return LeafList(found.values, found.places) if any(found.places) else tuple(found.values)


def _integer(literal: str) -> float:
    return int(literal) if len(literal) < 400 else float(literal)


def _scalar(value: Any) -> Scalar | None:
    """A number beyond 64 bits is the nearest double; beyond a double it is infinite."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return value  # type: ignore[no-any-return]


def _same(one: Scalar | None, other: Scalar | None) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other
