"""An oracle: EventBridge patterns evaluated on the JSON of an event, with array consistency.

One list of fields per event, each with the arrays that it stands in; one list of alternatives per pattern;
then every way to take one field per name, in the order of the names. Nothing is shared with the package.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from oracles import leaf_matches

__all__ = ["matches"]


class _Field(NamedTuple):
    name: str
    value: Any
    membership: dict[int, int]


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether an event, as decoded JSON, matches a pattern, as decoded JSON."""
    fields = list(_Walk().fields(event, (), {}))
    return any(_rule_matches(sorted(rule.items()), fields, {}) for rule in _rules(pattern, "", [{}]))


class _Walk:
    def __init__(self) -> None:
        self.arrays = 0

    def fields(self, value: Any, names: tuple[str, ...], membership: dict[int, int]) -> Iterator[_Field]:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield from self.fields(inner, (*names, name), membership)
        elif isinstance(value, list):
            number = self.arrays
            self.arrays += 1
            for index, element in enumerate(value):
                inside = isinstance(element, Mapping | list)
                yield from self.fields(
                    element, names, {**membership, number: index} if inside else membership
                )
        else:
            yield _Field(".".join(names), value, membership)


def _rules(pattern: Mapping[str, Any], prefix: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for name, value in pattern.items():
        if name == "$or":
            rules = [rule for part in value for rule in _rules(part, prefix, rules)]
        elif isinstance(value, Mapping):
            rules = _rules(value, f"{prefix}{name}.", rules)
        else:
            rules = [{**rule, prefix + name: value} for rule in rules]
    return rules


def _rule_matches(asked: list[tuple[str, Any]], fields: list[_Field], membership: dict[int, int]) -> bool:
    if not asked:
        return True
    (name, listed), *rest = asked
    agreeing = [f for f in fields if f.name == name and _agree(f.membership, membership)]
    wants_none = any(isinstance(item, Mapping) and item.get("exists") is False for item in listed)
    if wants_none and not agreeing and _rule_matches(rest, fields, membership):
        return True
    return any(
        _value_matches(listed, f.value) and _rule_matches(rest, fields, {**membership, **f.membership})
        for f in agreeing
    )


def _agree(one: dict[int, int], other: dict[int, int]) -> bool:
    return all(other.get(array, index) == index for array, index in one.items())


def _value_matches(listed: list[Any], value: Any) -> bool:
    return any(
        item["exists"] is True
        if isinstance(item, Mapping) and "exists" in item
        else leaf_matches(item, value)
        for item in listed
    )
