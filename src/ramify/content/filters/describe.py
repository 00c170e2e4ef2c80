"""Constraints in words, for explanations and errors."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ramify.content.filters.constraints import ANYTHING, ArraySet, Constraint
from ramify.content.filters.values import EVERY_ELEMENT, EVERY_VALUE, ValueSet, singletons

__all__ = ["describe_constraint", "describe_values"]

_MOST = 5


def describe_constraint(constraint: Constraint) -> str:
    """One line that says what the constraint accepts."""
    if constraint == ANYTHING:
        return "is anything"
    parts = []
    if constraint.absent:
        parts.append("is absent")
    if constraint.null:
        parts.append("is null")
    if not constraint.scalars.is_empty:
        parts.append(describe_values(constraint.scalars))
    if constraint.arrays is not None:
        parts.append(_arrays(constraint.arrays))
    return " or ".join(parts) or "is nothing"


def describe_values(values: ValueSet) -> str:
    """One line that says which scalars are in the set."""
    if values.is_every or values == EVERY_ELEMENT:
        return "is any value"
    parts = list(_numbers(values.numbers)) + list(_strings(values)) + list(_times(values.times))
    parts += {(): [], (0,): ["is a boolean"], (1,): ["is true"], (0, 1): ["is false"]}[values.booleans]
    parts += ["is null"] if values.nulls else []
    return " or ".join(parts) or "is nothing"


def _arrays(arrays: ArraySet) -> str:
    parts = [f"has an element that {describe_values(s)}" for s in arrays.some]
    parts += [f"has no element that {describe_values(n)}" for n in arrays.none]
    return "is an array" + (" that " + " and ".join(sorted(parts)) if parts else "")


def _intervals(cuts: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for k in range(0, len(cuts), 2):
        yield cuts[k], cuts[k + 1] if k + 1 < len(cuts) else None


def _numbers(cuts: Sequence[Any]) -> Iterator[str]:
    if cuts == EVERY_VALUE.numbers:
        yield "is a number"
        return
    members = singletons(cuts, "number")
    if members:
        yield _one_of([f"{m:g}" if isinstance(m, float) else str(m) for m in members])
        return
    for low, high in _intervals(cuts):
        if high is not None and low[0] == high[0]:
            yield f"= {low[0]}"
            continue
        parts = [] if low[0] == -math.inf else [f"{'>' if low[1] else '>='} {low[0]}"]
        if high is not None:
            parts.append(f"{'<=' if high[1] else '<'} {high[0]}")
        yield " and ".join(parts)


def _strings(values: ValueSet) -> Iterator[str]:
    if not values.strings:
        return
    members = singletons(values.strings, "string")
    if members is not None:
        yield _one_of([repr(m) for m in members])
        return
    tests = [
        ("" if wanted else "not ") + "(" + " or ".join(sorted(t.describe() for t in group)) + ")"
        for group, wanted in values.tests
    ]
    if values.strings == EVERY_VALUE.strings:
        ranges = ["is a string"]
    else:
        ranges = [
            f">= {low!r}" + ("" if high is None else f" and < {high!r}")
            for low, high in _intervals(values.strings)
        ]
    shown = " or ".join(ranges[:_MOST]) + (" or ..." if len(ranges) > _MOST else "")
    yield " and ".join([shown, *sorted(tests)])


def _times(cuts: Sequence[Any]) -> Iterator[str]:
    if cuts == EVERY_VALUE.times:
        yield "is a timestamp"
        return
    for low, high in _intervals(cuts):
        parts = [] if low == EVERY_VALUE.times[0] else [f">= {_time(low)}"]
        if high is not None:
            parts.append(f"< {_time(high)}")
        yield " and ".join(parts)


def _time(at: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).isoformat()
    except OverflowError:
        return f"{at} us"


def _one_of(shown: list[str]) -> str:
    if len(shown) == 1:
        return f"= {shown[0]}"
    more = len(shown) - _MOST
    return "in (" + ", ".join(shown[:_MOST]) + (f" and {more} more" if more > 0 else "") + ")"
