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
    dots       {"a": {"b": [1]}} and {"a.b": [1]} name the same attribute
    times      `time`, and what a schema calls a timestamp, is not a string: only exists and null apply
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ramify.content.constraints import EVERY_ARRAY, ArraySet, Constraint
from ramify.content.events import AttributeType
from ramify.content.expressions import And, Atom, Expression, Or, compile_filter
from ramify.content.filters import Filter
from ramify.content.strings import ANY, StringTest, TestKind, cidr, glob, ignore_case, literal_prefix
from ramify.content.values import (
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
MAX_TEXT = 64 * 1024
MAX_DEPTH = 32
NUMERIC_MOST = 5e9
# Names that Amazon keeps for itself inside $or.
_RESERVED = frozenset(
    "exactly prefix suffix equals-ignore-case anything-but exists wildcard numeric cidr = < <= > >= regex "
    "not-wildcard not-equals-ignore-case date-after date-on-or-after date-before date-on-or-before "
    "in-date-range ip-address-in-range ip-address-not-in-range".split()
)
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
    if len(text) > MAX_TEXT:
        raise FilterError(
            f"the pattern is {len(text)} characters long", allowed=f"up to {MAX_TEXT} characters"
        )
    reader = _Reader(text, dict(schema or {}))
    reader.check_depth()
    try:
        tree = json.loads(text, object_pairs_hook=_Object, parse_constant=reader.no_constant)
    except json.JSONDecodeError as error:
        raise FilterError(f"the pattern is not JSON ({error.msg})", text=text, position=error.pos) from None
    except (RecursionError, ValueError) as error:
        raise FilterError(f"the pattern is not JSON ({error})", text=text) from None
    if not isinstance(tree, _Object):
        raise FilterError("a pattern is a JSON object", text=text, allowed='{"field": ["value", ...]}')
    return reader.fields(tree, "", False)


class _Object(list[tuple[str, Any]]):
    """A JSON object with its pairs in order, so that a repeated key is seen."""


@dataclass(slots=True)
class _Reader:
    text: str
    schema: dict[str, AttributeType]

    def fields(self, tree: _Object, prefix: str, in_or: bool) -> Expression:
        """All the fields of an object: an AND."""
        if not tree:
            self.fail("empty objects are not allowed", prefix.rstrip("."))
        parts: list[Expression] = []
        seen: set[str] = set()
        for name, value in tree:
            if name in seen:
                self.fail(f"{name!r} appears twice in one object", name)
            seen.add(name)
            if name == "$or":
                parts.append(self.either(value, prefix))
            elif in_or and name in _RESERVED:
                self.fail(f"{name!r} is reserved and cannot be a field name inside $or", name)
            elif isinstance(value, _Object):
                parts.append(self.fields(value, f"{prefix}{name}.", in_or))
            elif isinstance(value, list):
                parts.append(self.leaf(f"{prefix}{name}", value))
            else:
                self.fail(f"{name!r} must be an object or an array of values", name)
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def either(self, value: Any, prefix: str) -> Expression:
        if not isinstance(value, list) or isinstance(value, _Object):
            self.fail("$or takes an array of objects", "$or")
        if len(value) < 2 or not all(isinstance(part, _Object) for part in value):
            self.fail("$or takes an array of at least two objects", "$or")
        return Or(tuple(self.fields(part, prefix, True) for part in value))

    def leaf(self, path: str, listed: list[Any]) -> Expression:
        """One field with its listed matches: true in their union, false everywhere else."""
        name = path.rpartition(".")[2]
        if not listed:
            self.fail("empty arrays are not allowed", name)
        shown = f"{path}: {json.dumps(_plain(listed), ensure_ascii=False)}"
        declared = self.schema.get(path, AttributeType.TIMESTAMP if path == "time" else None)
        if declared is AttributeType.TIMESTAMP and any(not _about_presence(item) for item in listed):
            self.fail(
                f"{path} is a timestamp, which patterns cannot compare: say it in SQL, "
                f"such as {path} >= TIMESTAMP '2026-01-31 00:00:00'",
                name,
            )
        scalar = declared in _SCALAR_TYPES
        parts: list[Constraint] = []
        tests: set[StringTest] = set()
        for item in listed:
            match = self.one(item, name)
            if isinstance(match, StringTest):
                tests.add(match)
            else:
                _add(parts, self.of_arity(match, scalar))
        if tests:
            _add(parts, self.of_arity(_any_element(where_tests(tests)), scalar))
        false = _none_of(parts)
        return Atom(path, shown, tuple(parts), tuple(false))

    def of_arity(self, constraint: Constraint, scalar: bool) -> Constraint:
        """Drop the array part of attributes that are known to be scalars."""
        if not scalar:
            return constraint
        return Constraint(constraint.absent, constraint.null, constraint.scalars, None)

    def one(self, item: Any, name: str) -> Constraint | StringTest:
        """What one listed match accepts. String tests are gathered by the caller into one atom."""
        if item is None:
            return Constraint(null=True)
        if isinstance(item, bool):
            return _any_element(booleans(item))
        if isinstance(item, int | float):
            return _any_element(numbers_equal([item]))
        if isinstance(item, str):
            return _any_element(strings_equal([item]))
        if not isinstance(item, _Object):
            self.fail("a value must be a string, a number, true, false, null or a match expression", name)
        if len(item) != 1:
            self.fail("a match expression has exactly one key", item[0][0] if item else name)
        operator, argument = item[0]
        operators: dict[str, Callable[[Any], Constraint | StringTest]] = {
            "exactly": lambda a: _any_element(strings_equal([self.string(a, "exactly")])),
            "prefix": lambda a: self.affix(a, "prefix"),
            "suffix": lambda a: self.affix(a, "suffix"),
            "equals-ignore-case": lambda a: ignore_case(self.string(a, operator), TestKind.NOCASE),
            "wildcard": lambda a: self.wildcard(a),
            "cidr": self.cidr,
            "numeric": lambda a: _any_element(self.numeric(a)),
            "exists": self.exists,
            "anything-but": self.anything_but,
        }
        if operator not in operators:
            self.fail(f"unknown match expression {operator!r}", operator)
        return operators[operator](argument)

    def affix(self, argument: Any, operator: str) -> Constraint | StringTest:
        if isinstance(argument, _Object):
            if len(argument) != 1 or argument[0][0] != "equals-ignore-case":
                self.fail(f'{operator} takes a string or {{"equals-ignore-case": "..."}}', operator)
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
                    self.fail("in a wildcard a backslash may only escape * or a backslash", "wildcard")
                codes.append(ord(text[k]))
            elif text[k] == "*":
                if codes and codes[-1] == ANY:
                    self.fail("a wildcard must not have two * in a row", "wildcard")
                codes.append(ANY)
            else:
                codes.append(ord(text[k]))
            k += 1
        return glob(codes)

    def cidr(self, argument: Any) -> StringTest:
        block = self.string(argument, "cidr")
        try:
            return cidr(block)
        except ValueError as error:
            return self.fail(f"{block!r} is not a CIDR block ({error})", "cidr")

    def exists(self, argument: Any) -> Constraint:
        if not isinstance(argument, bool):
            self.fail("exists takes true or false", "exists")
        return _PRESENT if argument else _ABSENT

    def numeric(self, argument: Any) -> ValueSet:
        """["=", 5], [">", 0], ["<=", 9], [">=", 0, "<", 5]."""
        if not isinstance(argument, list) or isinstance(argument, _Object) or len(argument) not in (2, 4):
            self.fail('numeric takes ["=", 5], [">", 0] or [">=", 0, "<", 5]', "numeric")
        bounds = [self.bound(argument[k], argument[k + 1]) for k in range(0, len(argument), 2)]
        (low_op, low) = bounds[0]
        if low_op == "=":
            if len(bounds) > 1:
                self.fail("too many terms behind = in numeric", "numeric")
            return numbers_equal([low])
        if low_op in ("<", "<="):
            if len(bounds) > 1:
                self.fail(f"a numeric range starts with > or >=, not {low_op}", "numeric")
            return number_below(low, low_op == "<=")
        above = number_above(low, low_op == ">=")
        if len(bounds) == 1:
            return above
        high_op, high = bounds[1]
        if high_op not in ("<", "<="):
            self.fail(f"a numeric range ends with < or <=, not {high_op}", "numeric")
        if low >= high:
            self.fail(f"the bottom {low} of a numeric range must be below its top {high}", "numeric")
        return above.intersect(number_below(high, high_op == "<="))

    def bound(self, operator: Any, number: Any) -> tuple[str, int | float]:
        if operator not in ("=", "<", "<=", ">", ">="):
            self.fail(f"unknown numeric operator {_plain(operator)!r}: it is one of = < <= > >=", "numeric")
        if isinstance(number, bool) or not isinstance(number, int | float):
            self.fail(f"the value behind {operator} must be a number", "numeric")
        if not -NUMERIC_MOST <= number <= NUMERIC_MOST:
            self.fail(f"numeric values lie between -5e9 and 5e9, not {number}", "numeric")
        return operator, number

    def anything_but(self, argument: Any) -> Constraint:
        """Present, and not any of the listed values (or none of the listed tests holds)."""
        if isinstance(argument, _Object):
            return self.anything_but_test(argument)
        values = argument if isinstance(argument, list) else [argument]
        strings = [v for v in values if isinstance(v, str)]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if not values or (len(strings) != len(values) and len(numbers) != len(values)):
            self.fail(
                "anything-but takes a string, a number, or a list of only strings or only numbers",
                "anything-but",
            )
        (outside,) = (strings_equal(strings) if strings else numbers_equal(numbers)).complement()
        return _other(outside)

    def anything_but_test(self, argument: _Object) -> Constraint:
        if len(argument) != 1:
            self.fail("anything-but takes one match expression", "anything-but")
        operator, inner = argument[0]
        listed = inner if isinstance(inner, list) and not isinstance(inner, _Object) else [inner]
        if not listed:
            self.fail("empty arrays are not allowed", "anything-but")
        if operator not in ("prefix", "suffix", "equals-ignore-case", "wildcard"):
            self.fail(f"anything-but does not take {operator!r}", operator)
        tests: set[StringTest] = set()
        intervals = NO_VALUE
        match: Constraint | StringTest
        for item in listed:
            if operator in ("prefix", "suffix") and item == "":
                self.fail(f"anything-but with an empty {operator} matches nothing", operator)
            if operator == "wildcard":
                match = self.wildcard(item)
            elif operator == "equals-ignore-case":
                match = ignore_case(self.string(item, operator), TestKind.NOCASE)
            else:
                match = self.affix(item, operator)
            if isinstance(match, StringTest):
                tests.add(match)
            else:
                intervals = intervals.union(match.scalars) or intervals
        outside = EVERY_VALUE.minus_plain(intervals)
        if tests:
            kept = where_tests(tests, wanted=False, within=outside)
            outside = ValueSet(outside.numbers, kept.strings, outside.booleans, outside.times, kept.tests)
        return _other(outside)

    def string(self, argument: Any, operator: str) -> str:
        if not isinstance(argument, str):
            self.fail(f"{operator} takes a string", operator)
        return argument

    def no_constant(self, name: str) -> NoReturn:
        self.fail(f"{name} is not a JSON number", name)

    def check_depth(self) -> None:
        """Refuse deep nesting before the decoder recurses into it."""
        depth = 0
        for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', self.text, re.DOTALL):
            c = match.group()
            depth += (c in "[{") - (c in "]}")
            if depth > MAX_DEPTH:
                raise FilterError(
                    "the pattern is nested too deeply",
                    text=self.text,
                    position=match.start(),
                    allowed=f"up to {MAX_DEPTH} levels",
                )

    def fail(self, reason: str, near: str) -> NoReturn:
        """Refuse; the place is the first time the name stands in the text as JSON writes it."""
        place = self.text.find(json.dumps(near, ensure_ascii=False)) if near else 0
        if place < 0:
            place = self.text.find(near)
        raise FilterError(reason, text=self.text, position=place if place >= 0 else None, allowed=OPERATORS)


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


def _about_presence(item: Any) -> bool:
    return item is None or (isinstance(item, _Object) and [name for name, _ in item] == ["exists"])


def _any_element(values: ValueSet) -> Constraint:
    """The scalar, or some element of the array, lies in `values`."""
    return Constraint(scalars=values, arrays=ArraySet(some=frozenset([values])))


def _other(values: ValueSet) -> Constraint:
    """anything-but: as `_any_element`, and an explicit null is anything but any listed value."""
    return Constraint(null=True, scalars=values, arrays=ArraySet(some=frozenset([values])))


def _ends_with(text: str) -> Constraint | StringTest:
    return _glob_match(glob([ANY, *map(ord, text)]))


def _glob_match(codes: tuple[int, ...]) -> Constraint | StringTest:
    """The interval of a glob that has one, else its test."""
    prefix = literal_prefix(codes)
    if len(prefix) == len(codes):
        return _any_element(strings_equal([prefix]))
    if codes[len(prefix) :] == (ANY,):
        return _any_element(prefixed(prefix) if prefix else _STRINGS)
    return StringTest(TestKind.GLOB, codes)


def _add(parts: list[Constraint], constraint: Constraint) -> None:
    """Add to a union, merging where that is exact."""
    for k, part in enumerate(parts):
        merged = part.union(constraint)
        if merged is not None:
            parts[k] = merged
            return
    parts.append(constraint)


def _none_of(parts: list[Constraint]) -> list[Constraint]:
    """The complement of a union of constraints, as a union of constraints."""
    left = [Constraint(True, True, EVERY_VALUE, EVERY_ARRAY)]
    for part in parts:
        outside = part.complement()
        left = [both for a in left for b in outside if not (both := a.intersect(b)).is_empty]
    return left


def _plain(value: Any) -> Any:
    if isinstance(value, _Object):
        return {name: _plain(inner) for name, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
