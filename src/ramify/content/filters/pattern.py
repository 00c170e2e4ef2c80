"""The EventBridge spelling: an Amazon EventBridge event pattern (JSON) as an `Expression`.

The whole published operator set: exact values, null, the empty string, prefix, suffix,
equals-ignore-case and its prefix and suffix forms, anything-but (values, lists, prefix, suffix,
equals-ignore-case, wildcard), numeric, exists, cidr, wildcard, exactly, $or, nested objects.

What a pattern means: every named field must match (AND) any of its listed values (OR). A field of the
event that is an array matches when any element does. There is no NULL logic: a predicate is true or
false. A pattern that Amazon would refuse is refused here, with the place in the text.

Where our reading needs saying
    exists     is about leaves: an empty array or object is absent, an explicit null is present
    anything-but   needs the field to be present; any value of another type is "anything but" too
    numbers    1 and 1.0 are equal; `numeric` bounds lie within +-5e9, as Amazon documents
    addresses  an exact address is a string like any other; cidr drops host bits
    dots       {"a": {"b": [1]}} and {"a.b": [1]} name the same attribute; none may be asked for twice
    times      `time`, and what a schema calls a timestamp, is not a string: only exists and null apply
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ramify.content.events.attributes import RESERVED_NAMES, AttributeType
from ramify.content.filters.constraints import ArraySet, Constraint
from ramify.content.filters.expressions import CONTEXT_TYPES, And, Atom, Expression, Or, compile_filter
from ramify.content.filters.filters import Filter, unite
from ramify.content.filters.limits import FILTER_DEPTH, FILTER_TEXT
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    StringTest,
    TestKind,
    cidr,
    glob,
    ignore_case,
    literal_prefix,
)
from ramify.content.filters.values import (
    EVERY_VALUE,
    NO_VALUE,
    ValueSet,
    booleans,
    number_above,
    number_below,
    numbers_equal,
    prefixed,
    strings_equal,
    where_tests,
)
from ramify.errors import FilterError

__all__ = ["OPERATORS", "parse_pattern", "parse_pattern_expression"]

OPERATORS = (
    "strings, numbers, true, false, null, or one of prefix, suffix, equals-ignore-case, anything-but, "
    "numeric, exists, cidr, wildcard, exactly"
)
NUMERIC_MOST = 5e9
# Names that Amazon keeps for itself inside $or.
_RESERVED = frozenset(
    {"exactly", "prefix", "suffix", "equals-ignore-case", "anything-but", "exists", "wildcard", "numeric"}
    | {"cidr", "=", "<", "<=", ">", ">=", "regex", "not-wildcard", "not-equals-ignore-case"}
    | {"date-after", "date-on-or-after", "date-before", "date-on-or-before", "in-date-range"}
    | {"ip-address-in-range", "ip-address-not-in-range"}
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|NaN|-?Infinity', re.DOTALL)
_SCALAR_TYPES = frozenset(AttributeType) - {AttributeType.STRINGS, AttributeType.NUMBERS}
_STRINGS = ValueSet(strings=EVERY_VALUE.strings)
_ABSENT = Constraint(absent=True, arrays=ArraySet(none=frozenset([EVERY_VALUE])))
_PRESENT = Constraint(null=True, scalars=EVERY_VALUE, arrays=ArraySet(some=frozenset([EVERY_VALUE])))


def parse_pattern(
    pattern: str | bytes | Mapping[str, Any], schema: Mapping[str, AttributeType] | None = None
) -> Filter:
    """Parse a pattern (JSON text, or the decoded object) to a filter.

    With a schema, attributes that it calls scalar are known not to be arrays, which lets the algebra see
    more. Raises FilterError with the text and the place.
    """
    text = _text(pattern)
    expression = parse_pattern_expression(text, schema)
    try:
        return compile_filter(expression)
    except FilterError as error:
        raise FilterError(error.reason, text=text, allowed=error.allowed) from None


def parse_pattern_expression(
    pattern: str | bytes | Mapping[str, Any], schema: Mapping[str, AttributeType] | None = None
) -> Expression:
    """Parse a pattern to its expression, without building boxes."""
    text = _text(pattern)
    if len(text) > FILTER_TEXT:
        raise FilterError(
            f"the pattern is {len(text)} characters long", allowed=f"up to {FILTER_TEXT} characters"
        )
    reader = _Reader(text, {**CONTEXT_TYPES, **(schema or {})})
    reader.check_depth()
    try:
        tree = json.loads(text, object_pairs_hook=_Object, parse_constant=reader.no_constant)
    except json.JSONDecodeError as error:
        raise FilterError(f"the pattern is not JSON ({error.msg})", text=text, position=error.pos) from None
    except (RecursionError, ValueError) as error:
        raise FilterError(f"the pattern is not JSON ({error})", text=text) from None
    if not isinstance(tree, _Object):
        raise FilterError("a pattern is a JSON object", text=text, allowed='{"field": ["value", ...]}')
    _mark(tree, reader.keys())
    return reader.fields(tree, "", False)


class _Object(list[tuple[str, Any]]):
    """A JSON object with its pairs in order, so that a repeated key is seen, and where each key stands."""

    places: list[int]


def _mark(tree: Any, keys: Iterator[int]) -> None:
    """Give every object the places of its keys, which follow each other in the text as in the tree."""
    if isinstance(tree, _Object):
        tree.places = []
        for _, value in tree:
            tree.places.append(next(keys))
            _mark(value, keys)
    elif isinstance(tree, list):
        for value in tree:
            _mark(value, keys)


@dataclass(slots=True)
class _Reader:
    text: str
    schema: dict[str, AttributeType]
    # Where the key stands that is being read.
    place: int = 0

    def members(self, tree: _Object) -> Iterator[tuple[str, Any]]:
        """The pairs of an object; errors point at the key of the pair that is being read."""
        for (name, value), place in zip(tree, tree.places, strict=True):
            self.place = place
            yield name, value

    def fields(self, tree: _Object, prefix: str, in_or: bool) -> Expression:
        """All the fields of an object: an AND."""
        if not tree:
            self.fail("empty objects are not allowed")
        parts: list[Expression] = []
        seen: set[str] = set()
        paths: set[str] = set()
        for name, value in self.members(tree):
            place = self.place
            if name in seen:
                self.fail(f"{name!r} appears twice in one object")
            seen.add(name)
            if name == "$or":
                part = self.either(value, prefix)
            elif in_or and name in _RESERVED:
                self.fail(f"{name!r} is reserved and cannot be a field name inside $or")
            elif isinstance(value, _Object):
                part = self.fields(value, f"{prefix}{name}.", in_or)
            elif isinstance(value, list):
                part = self.leaf(f"{prefix}{name}", value)
            else:
                self.fail(f"{name!r} must be an object or an array of values")
            again = paths & (mine := _paths(part))
            if again:
                self.place = place
                self.fail(f"the path {min(again)!r} is asked for more than once")
            paths |= mine
            parts.append(part)
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def either(self, value: Any, prefix: str) -> Expression:
        if not isinstance(value, list) or isinstance(value, _Object):
            self.fail("$or takes an array of objects")
        if len(value) < 2 or not all(isinstance(part, _Object) for part in value):
            self.fail("$or takes an array of at least two objects")
        parts: list[Expression] = []
        place = self.place
        for part in value:
            self.place = place
            parts.append(self.fields(part, prefix, True))
        return Or(tuple(parts))

    def leaf(self, path: str, listed: list[Any]) -> Expression:
        """One field with its listed matches: true in their union, false everywhere else."""
        if not listed:
            self.fail("empty arrays are not allowed")
        if path in RESERVED_NAMES:
            self.fail(f"{path} is not an attribute: the name is kept for the event itself")
        shown = f"{path}: {json.dumps(_plain(listed), ensure_ascii=False)}"
        declared = self.schema.get(path)
        if declared is AttributeType.TIMESTAMP and any(not _about_presence(item) for item in listed):
            self.fail(
                f"{path} is a timestamp, which patterns cannot compare: say it in SQL, "
                f"such as {path} >= TIMESTAMP '2026-01-31 00:00:00'"
            )
        scalar = declared in _SCALAR_TYPES
        parts: list[Constraint] = []
        tests: set[StringTest] = set()
        place = self.place
        for item in listed:
            self.place = place
            match = self.one(item)
            if isinstance(match, StringTest):
                tests.add(match)
            else:
                parts.append(self.of_arity(match, scalar))
        if tests:
            parts.append(self.of_arity(_any_element(where_tests(tests)), scalar))
        return Atom(path, shown, tuple(unite(parts)), None)

    def of_arity(self, constraint: Constraint, scalar: bool) -> Constraint:
        """Drop the array part of attributes that are known to be scalars."""
        if not scalar:
            return constraint
        return Constraint(constraint.absent, constraint.null, constraint.scalars, None)

    def one(self, item: Any) -> Constraint | StringTest:
        """What one listed match accepts. String tests are gathered by the caller into one atom."""
        if item is None:
            return Constraint(null=True)
        if isinstance(item, bool):
            return _any_element(booleans(item))
        if isinstance(item, int | float):
            return _any_element(numbers_equal([self.number(item)]))
        if isinstance(item, str):
            return _any_element(strings_equal([item]))
        if not isinstance(item, _Object):
            self.fail("a value must be a string, a number, true, false, null or a match expression")
        if len(item) != 1:
            self.place = item.places[1] if item else self.place
            self.fail("a match expression has exactly one key")
        ((operator, argument),) = self.members(item)
        operators: dict[str, Callable[[Any], Constraint | StringTest]] = {
            "exactly": lambda a: _any_element(strings_equal([self.string(a, "exactly")])),
            "prefix": lambda a: self.affix(a, "prefix"),
            "suffix": lambda a: self.affix(a, "suffix"),
            "equals-ignore-case": lambda a: ignore_case(self.string(a, operator), TestKind.NOCASE),
            "wildcard": self.wildcard,
            "cidr": self.cidr,
            "numeric": lambda a: _any_element(self.numeric(a)),
            "exists": self.exists,
            "anything-but": self.anything_but,
        }
        if operator not in operators:
            self.fail(f"unknown match expression {operator!r}")
        return operators[operator](argument)

    def affix(self, argument: Any, operator: str) -> Constraint | StringTest:
        if isinstance(argument, _Object):
            if len(argument) != 1 or argument[0][0] != "equals-ignore-case":
                self.fail(f'{operator} takes a string or {{"equals-ignore-case": "..."}}')
            kind = TestKind.NOCASE_PREFIX if operator == "prefix" else TestKind.NOCASE_SUFFIX
            return ignore_case(self.string(argument[0][1], operator), kind)
        text = self.string(argument, operator)
        return _any_element(prefixed(text)) if operator == "prefix" else _ends_with(text)

    def wildcard(self, argument: Any) -> Constraint | StringTest:
        return _glob_match(self.wildcard_codes(argument))

    def wildcard_codes(self, argument: Any) -> tuple[int, ...]:
        """Read * and the escapes \\* and \\\\; two stars in a row are refused, as Amazon does."""
        text = self.string(argument, "wildcard")
        codes: list[int] = []
        k = 0
        while k < len(text):
            if text[k] == "\\":
                k += 1
                if k == len(text) or text[k] not in "*\\":
                    self.fail("in a wildcard a backslash may only escape * or a backslash")
                codes.append(ord(text[k]))
            elif text[k] == "*":
                if codes and codes[-1] == ANY_CHARACTERS:
                    self.fail("a wildcard must not have two * in a row")
                codes.append(ANY_CHARACTERS)
            else:
                codes.append(ord(text[k]))
            k += 1
        return glob(codes)

    def cidr(self, argument: Any) -> StringTest:
        block = self.string(argument, "cidr")
        try:
            return cidr(block)
        except ValueError as error:
            return self.fail(f"{block!r} is not a CIDR block ({error})")

    def exists(self, argument: Any) -> Constraint:
        if not isinstance(argument, bool):
            self.fail("exists takes true or false")
        return _PRESENT if argument else _ABSENT

    def numeric(self, argument: Any) -> ValueSet:
        """["=", 5], [">", 0], ["<=", 9], [">=", 0, "<", 5]."""
        if not isinstance(argument, list) or isinstance(argument, _Object) or len(argument) not in (2, 4):
            self.fail('numeric takes ["=", 5], [">", 0] or [">=", 0, "<", 5]')
        bounds = [self.bound(argument[k], argument[k + 1]) for k in range(0, len(argument), 2)]
        (low_op, low) = bounds[0]
        if low_op == "=":
            if len(bounds) > 1:
                self.fail("too many terms behind = in numeric")
            return numbers_equal([low])
        if low_op in ("<", "<="):
            if len(bounds) > 1:
                self.fail(f"a numeric range starts with > or >=, not {low_op}")
            return number_below(low, low_op == "<=")
        above = number_above(low, low_op == ">=")
        if len(bounds) == 1:
            return above
        high_op, high = bounds[1]
        if high_op not in ("<", "<="):
            self.fail(f"a numeric range ends with < or <=, not {high_op}")
        if low >= high:
            self.fail(f"the bottom {low} of a numeric range must be below its top {high}")
        return above.intersect(number_below(high, high_op == "<="))

    def bound(self, operator: Any, number: Any) -> tuple[str, int | float]:
        if operator not in ("=", "<", "<=", ">", ">="):
            self.fail(f"unknown numeric operator {_plain(operator)!r}: it is one of = < <= > >=")
        if isinstance(number, bool) or not isinstance(number, int | float):
            self.fail(f"the value behind {operator} must be a number")
        if not -NUMERIC_MOST <= number <= NUMERIC_MOST:
            self.fail(f"numeric values lie between -5e9 and 5e9, not {number}")
        return operator, number

    def anything_but(self, argument: Any) -> Constraint:
        """Present, and not any of the listed values (or none of the listed tests holds)."""
        if isinstance(argument, _Object):
            return self.anything_but_test(argument)
        values = argument if isinstance(argument, list) else [argument]
        strings = [v for v in values if isinstance(v, str)]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if not values or (len(strings) != len(values) and len(numbers) != len(values)):
            self.fail("anything-but takes a string, a number, or a list of only strings or only numbers")
        listed = strings_equal(strings) if strings else numbers_equal(self.number(n) for n in numbers)
        (outside,) = listed.complement()
        return _other(outside)

    def anything_but_test(self, argument: _Object) -> Constraint:
        if len(argument) != 1:
            self.fail("anything-but takes one match expression")
        ((operator, inner),) = self.members(argument)
        readers: dict[str, Callable[[str], Constraint | StringTest]] = {
            "prefix": lambda text: _any_element(prefixed(text)),
            "suffix": _ends_with,
            "equals-ignore-case": lambda text: ignore_case(text, TestKind.NOCASE),
            "wildcard": self.wildcard,
        }
        if operator not in readers:
            self.fail(f"anything-but does not take {operator!r}")
        listed = inner if isinstance(inner, list) and not isinstance(inner, _Object) else [inner]
        if not listed:
            self.fail("empty arrays are not allowed")
        tests: set[StringTest] = set()
        intervals = NO_VALUE
        for item in listed:
            text = self.string(item, operator)
            if operator in ("prefix", "suffix") and not text:
                self.fail(f"anything-but with an empty {operator} matches no string")
            match = readers[operator](text)
            if isinstance(match, StringTest):
                tests.add(match)
            else:
                intervals = intervals.union(match.scalars) or intervals
        outside = EVERY_VALUE.minus_plain(intervals)
        if tests:
            kept = where_tests(tests, wanted=False, within=outside)
            outside = ValueSet(outside.numbers, kept.strings, outside.booleans, outside.times, kept.tests)
        return _other(outside)

    def number(self, number: int | float) -> int | float:
        if not abs(number) <= sys.float_info.max:
            self.fail("a number does not fit a double")
        return number

    def string(self, argument: Any, operator: str) -> str:
        if not isinstance(argument, str):
            self.fail(f"{operator} takes a string")
        return argument

    def no_constant(self, name: str) -> NoReturn:
        """Refuse NaN and Infinity, which Python's decoder would read."""
        found = [m.start() for m in _TOKEN.finditer(self.text) if m.group() == name]
        self.place = found[0] if found else 0
        self.fail(f"{name} is not a JSON number")

    def check_depth(self) -> None:
        """Refuse deep nesting before the decoder recurses into it."""
        depth = 0
        for match in _TOKEN.finditer(self.text):
            c = match.group()
            depth += (c in "[{") - (c in "]}")
            if depth > FILTER_DEPTH:
                raise FilterError(
                    "the pattern is nested too deeply",
                    text=self.text,
                    position=match.start(),
                    allowed=f"up to {FILTER_DEPTH} levels",
                )

    def keys(self) -> Iterator[int]:
        """Where the keys of all objects stand, in the order of the text."""
        for match in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?', self.text, re.DOTALL):
            if match[2]:
                yield match.start()

    def fail(self, reason: str) -> NoReturn:
        """Refuse; the place is the key that is being read."""
        raise FilterError(reason, text=self.text, position=self.place, allowed=OPERATORS)


def _text(pattern: str | bytes | Mapping[str, Any]) -> str:
    if isinstance(pattern, bytes):
        try:
            pattern = pattern.decode()
        except UnicodeDecodeError as error:
            raise FilterError(f"the pattern is not UTF-8 (byte {error.start})") from None
    if not isinstance(pattern, str):
        try:
            pattern = json.dumps(pattern, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise FilterError(f"the pattern is not JSON ({error})") from None
    if any(0xD800 <= ord(c) <= 0xDFFF for c in pattern) or re.search(r"\\u[dD][89a-fA-F]", pattern):
        _check_surrogates(pattern)
    return pattern


def _check_surrogates(text: str) -> None:
    """Refuse strings that decode to half a surrogate pair: no UTF-8 event can hold one."""
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FilterError("the pattern holds half a surrogate pair", allowed="valid Unicode text") from None
    except (ValueError, RecursionError):
        return  # said better by the parse that follows


def _paths(expression: Expression) -> set[str]:
    match expression:
        case Atom(path):
            return {path}
        case And(parts) | Or(parts):
            return {path for part in parts for path in _paths(part)}
    return set()


def _about_presence(item: Any) -> bool:
    return item is None or (isinstance(item, _Object) and [name for name, _ in item] == ["exists"])


def _any_element(values: ValueSet) -> Constraint:
    """The scalar, or some element of the array, lies in `values`."""
    return Constraint(scalars=values, arrays=ArraySet(some=frozenset([values])))


def _other(values: ValueSet) -> Constraint:
    """anything-but: as `_any_element`, and an explicit null is anything but any listed value."""
    return Constraint(null=True, scalars=values, arrays=ArraySet(some=frozenset([values])))


def _ends_with(text: str) -> Constraint | StringTest:
    return _glob_match(glob([ANY_CHARACTERS, *map(ord, text)]))


def _glob_match(codes: tuple[int, ...]) -> Constraint | StringTest:
    """The interval of a glob that has one, else its test."""
    prefix = literal_prefix(codes)
    if len(prefix) == len(codes):
        return _any_element(strings_equal([prefix]))
    if codes[len(prefix) :] == (ANY_CHARACTERS,):
        return _any_element(prefixed(prefix) if prefix else _STRINGS)
    return StringTest(TestKind.GLOB, codes)


def _plain(value: Any) -> Any:
    if isinstance(value, _Object):
        return {name: _plain(inner) for name, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
