"""Conditions of subscriptions, evaluated in the most obvious way; and their SQL, for the overlay.

The oracle of the checker. It must stay apart from `ramify.content`: two readings of a filter that share no
code rarely share a mistake.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ramify.errors import InputError
from ramify.overlay.histories.rows import Condition, Term

__all__ = ["check_condition", "digest", "holds", "sql_of"]

_OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "in", "prefix")


def holds(condition: Condition, values: Mapping[str, Any]) -> bool:
    """Whether an event with these attributes is wanted."""
    return any(all(_term_holds(term, values) for term in terms) for terms in condition)


def _term_holds(term: Term, values: Mapping[str, Any]) -> bool:
    path, operator, wanted = term
    value = values.get(path)
    if value is None:
        return False
    if operator == "in":
        return any(_is_equal(value, each) for each in wanted)
    if operator == "prefix":
        return isinstance(value, str) and value.startswith(wanted)
    if isinstance(value, str) != isinstance(wanted, str):
        return False
    match operator:
        case "=":
            return _is_equal(value, wanted)
        case "<>":
            return not _is_equal(value, wanted)
        case "<":
            return bool(value < wanted)
        case "<=":
            return bool(value <= wanted)
        case ">":
            return bool(value > wanted)
        case _:
            return bool(value >= wanted)


def _is_equal(value: Any, wanted: Any) -> bool:
    return isinstance(value, str) == isinstance(wanted, str) and bool(value == wanted)


def check_condition(condition: Condition) -> None:
    """Raise `InputError` for one that cannot be evaluated."""
    if not condition or not all(condition):
        raise InputError("a condition has one or more rows, each with one or more terms")
    for path, operator, wanted in (term for terms in condition for term in terms):
        if operator not in _OPERATORS:
            raise InputError(f"operator {operator!r} of a condition is none of {' '.join(_OPERATORS)}")
        values = wanted if operator == "in" and isinstance(wanted, list | tuple) else [wanted]
        good = all(isinstance(v, str | int | float) and not isinstance(v, bool) for v in values) and values
        if not path or not good or (operator == "prefix" and not isinstance(wanted, str)):
            raise InputError(f"term {path!r} {operator} {wanted!r} of a condition compares with no value")


def sql_of(condition: Condition) -> str:
    """The same condition as a filter of the overlay. Prefixes must have no wildcards of SQL."""
    rows = [" AND ".join(_term_sql(term) for term in terms) for terms in condition]
    return rows[0] if len(rows) == 1 else " OR ".join(f"({row})" for row in rows)


def _term_sql(term: Term) -> str:
    path, operator, wanted = term
    if operator == "in":
        return f"{path} IN ({', '.join(_literal(each) for each in wanted)})"
    if operator == "prefix":
        if any(mark in wanted for mark in "%_\\"):
            raise InputError(f"prefix {wanted!r} has wildcards of SQL: give one without % _ \\")
        return f"{path} LIKE {_literal(wanted + '%')}"
    return f"{path} {operator} {_literal(wanted)}"


def _literal(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def digest(values: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that are equal for equal attributes: what came is what was published."""
    text = json.dumps(dict(values), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
