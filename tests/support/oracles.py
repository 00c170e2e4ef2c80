"""Second opinions: plain evaluators for the three spellings of a filter, with no algebra behind them.

Each works straight on Python values, in the most obvious way, and imports nothing of `ramify.content` but
the mark for an absent attribute's place in an event (a missing key). What they and the product agree on,
two independent readings of the rules agree on.

    sql_verdict       a small syntax tree of its own, in three-valued logic: True, False or None
    pattern_matches   an EventBridge pattern and an event, as decoded JSON
    keywords_match    any-of lists and disjunctions of conjunctions
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# ------------------------------------------------------------------------------------------------ SQL


@dataclass(frozen=True)
class Compare:
    path: str
    op: str
    value: Any


@dataclass(frozen=True)
class Between:
    path: str
    low: Any
    high: Any


@dataclass(frozen=True)
class In:
    path: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Like:
    """`pattern` holds literal characters and the marks "%" and "_" as one-element tuples."""

    path: str
    pattern: tuple[str | tuple[str], ...]


@dataclass(frozen=True)
class IsNull:
    path: str


@dataclass(frozen=True)
class Bare:
    """A boolean attribute on its own."""

    path: str


@dataclass(frozen=True)
class Contains:
    path: str
    value: Any


@dataclass(frozen=True)
class Const:
    value: bool | None


@dataclass(frozen=True)
class Not:
    part: Any


@dataclass(frozen=True)
class All:
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Some:
    parts: tuple[Any, ...]


def sql_verdict(node: Any, row: Mapping[str, Any]) -> bool | None:
    """SQL's TRUE, FALSE or NULL (None). A value of another type than the literal's gives NULL."""
    match node:
        case Const(value):
            return value
        case Not(part):
            return _not(sql_verdict(part, row))
        case All(parts):
            return _and([sql_verdict(p, row) for p in parts])
        case Some(parts):
            return _not(_and([_not(sql_verdict(p, row)) for p in parts]))
        case IsNull(path):
            return row.get(path) is None
        case Bare(path):
            return _compare("=", row.get(path), True)
        case Compare(path, op, value):
            return _compare(op, row.get(path), value)
        case Between(path, low, high):
            return _and([_compare(">=", row.get(path), low), _compare("<=", row.get(path), high)])
        case In(path, values):
            return _not(_and([_not(_compare("=", row.get(path), v)) for v in values]))
        case Like(path, pattern):
            value = row.get(path)
            return like_regex(pattern).fullmatch(value) is not None if isinstance(value, str) else None
        case Contains(path, value):
            found = row.get(path)
            if kind_of(found) != "array":
                return None
            # an element of another type, or null, may be the one that is looked for
            known = all(kind_of(e) == kind_of(value) for e in found)
            return any(same(e, value) for e in found) or (False if known else None)
    raise TypeError(node)


def like_regex(pattern: Sequence[str | tuple[str]]) -> re.Pattern[str]:
    """LIKE by way of a regular expression."""
    parts = [re.escape(p) if isinstance(p, str) else {"%": ".*", "_": "."}[p[0]] for p in pattern]
    return re.compile("".join(parts), re.DOTALL)


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "timestamp" if isinstance(value, datetime) else "array"


def same(a: Any, b: Any) -> bool:
    """Equal, and of one kind: Python's True == 1 must not leak in."""
    return kind_of(a) == kind_of(b) and a == b


def _compare(op: str, value: Any, literal: Any) -> bool | None:
    if value is None or literal is None or kind_of(value) != kind_of(literal):
        return None
    return {
        "=": value == literal,
        "<>": value != literal,
        "<": value < literal,
        "<=": value <= literal,
        ">": value > literal,
        ">=": value >= literal,
    }[op]


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def _and(verdicts: Sequence[bool | None]) -> bool | None:
    if any(v is False for v in verdicts):
        return False
    return None if any(v is None for v in verdicts) else True


# ------------------------------------------------------------------------------------ EventBridge patterns


def pattern_matches(pattern: Mapping[str, Any], row: Mapping[str, Any], prefix: str = "") -> bool:
    """Every field matches any of its listed values; `row` is flat, with dotted paths."""
    for name, value in pattern.items():
        if name == "$or":
            if not any(pattern_matches(part, row, prefix) for part in value):
                return False
        elif isinstance(value, Mapping):
            if not pattern_matches(value, row, f"{prefix}{name}."):
                return False
        elif not _field_matches(value, _leaves(row, prefix + name)):
            return False
    return True


def _leaves(row: Mapping[str, Any], path: str) -> list[Any]:
    """The values that a field holds: none when absent or an empty array, one per element of an array."""
    if path not in row:
        return []
    value = row[path]
    return list(value) if kind_of(value) == "array" else [value]


def _field_matches(listed: Sequence[Any], leaves: Sequence[Any]) -> bool:
    for item in listed:
        if isinstance(item, Mapping) and "exists" in item:
            if item["exists"] is (len(leaves) > 0):
                return True
        elif any(leaf_matches(item, leaf) for leaf in leaves):
            return True
    return False


def leaf_matches(item: Any, leaf: Any) -> bool:
    if not isinstance(item, Mapping):
        return same(item, leaf)
    ((operator, argument),) = item.items()
    if operator == "numeric":
        return kind_of(leaf) == "number" and all(
            _compare(op, leaf, bound) for op, bound in zip(argument[::2], argument[1::2], strict=True)
        )
    if operator == "anything-but":
        return not _listed_in_anything_but(argument, leaf)
    return isinstance(leaf, str) and _string_matches(operator, argument, leaf)


def _listed_in_anything_but(argument: Any, leaf: Any) -> bool:
    if not isinstance(argument, Mapping):
        return any(same(v, leaf) for v in (argument if isinstance(argument, list) else [argument]))
    ((operator, inner),) = argument.items()
    return isinstance(leaf, str) and any(
        _string_matches(operator, v, leaf) for v in (inner if isinstance(inner, list) else [inner])
    )


def _string_matches(operator: str, argument: Any, leaf: str) -> bool:
    if operator == "exactly":
        return leaf == argument
    if operator == "equals-ignore-case":
        return len(leaf) == len(argument) and same_letters(leaf, argument)
    if operator in ("prefix", "suffix"):
        if isinstance(argument, Mapping):
            wanted = argument["equals-ignore-case"]
            part = leaf[: len(wanted)] if operator == "prefix" else leaf[len(leaf) - len(wanted) :]
            return len(wanted) <= len(leaf) and same_letters(part, wanted)
        return leaf.startswith(argument) if operator == "prefix" else leaf.endswith(argument)
    if operator == "wildcard":
        return wildcard_regex(argument).fullmatch(leaf) is not None
    if operator == "cidr":
        try:
            return "%" not in leaf and ipaddress.ip_address(leaf) in ipaddress.ip_network(argument, False)
        except ValueError:
            return False
    raise ValueError(operator)


def wildcard_regex(text: str) -> re.Pattern[str]:
    """An EventBridge wildcard (backslash escapes) by way of a regular expression."""
    tokens = re.findall(r"\\.|.", text, re.DOTALL)
    parts = [".*" if t == "*" else re.escape(t[-1]) for t in tokens]
    return re.compile("".join(parts), re.DOTALL)


def same_letters(a: str, b: str) -> bool:
    """Equal letter by letter, where a letter equals its one-letter other case if that leads back to it."""
    return len(a) == len(b) and all(
        x == y or _cases(x, y) or _cases(y, x) for x, y in zip(a, b, strict=True)
    )


def _cases(lower: str, upper: str) -> bool:
    return lower.upper() == upper and upper.lower() == lower


# ------------------------------------------------------------------------------------------------ keywords


def keywords_match(words: Sequence[Any], held: Any) -> bool:
    """`held` is what the attribute holds: an array of words, one word, None or nothing."""
    has = list(held) if kind_of(held) == "array" else [held]
    if isinstance(words[0], str):
        return any(word in has for word in words)
    return any(all(word in has for word in clause) for clause in words)
