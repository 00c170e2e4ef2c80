"""The EventBridge spelling: an Amazon EventBridge event pattern (JSON) as an `Expression`.

The whole published operator set: exact values, null, the empty string, prefix, suffix,
equals-ignore-case and its prefix and suffix forms, anything-but (values, lists, prefix, suffix,
equals-ignore-case, wildcard), numeric, exists, cidr, wildcard, exactly, $or, nested objects.

What a pattern means: every named field must match (AND) any of its listed values (OR). A field of the
event that is an array matches when any element does; fields of objects in an array must match in the same
object (`joints`). There is no NULL logic: a predicate is true or false. A pattern that Amazon would refuse
is refused here, with the place in the text.

Where our reading needs saying
    exists     is about leaves: an empty array or object is absent, an explicit null is present
    anything-but   needs the field to be present; any value of another type is "anything but" too
    numbers    1 and 1.0 are equal; `numeric` takes every double, so epoch milliseconds too
    addresses  an exact address is a string like any other; cidr drops host bits
    dots       {"a": {"b": [1]}} and {"a.b": [1]} name the same attribute
    repeats    a path that is asked for again, in a later pair or in $or, replaces what was asked before
    times      `time`, and what a schema calls a timestamp, is matched as the text that it was written with
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ramify.content.events.attributes import AttributeType, text_path
from ramify.content.filters.constraints import Constraint
from ramify.content.filters.expressions import (
    CONTEXT_TYPES,
    MISSING,
    Atom,
    Expression,
    Or,
    Together,
    compile_filter,
    found,
)
from ramify.content.filters.filters import MAX_BOXES, Filter, unite
from ramify.content.filters.limits import FILTER_DEPTH, FILTER_TEXT
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    StringTest,
    TestKind,
    cidr,
    glob,
    has_case,
    ignore_case,
    literal_prefix,
)
from ramify.content.filters.values import (
    EVERY_ELEMENT,
    EVERY_VALUE,
    NO_VALUE,
    NULL_ELEMENT,
    ValueSet,
    booleans,
    number_above,
    number_below,
    numbers_equal,
    prefixed,
    strings_equal,
    where_tests,
)
from ramify.content.filters.work import COMPILE_STEPS, Work, charge
from ramify.errors import FilterError

__all__ = ["OPERATORS", "glob_match", "parse_pattern", "parse_pattern_expression"]

OPERATORS = (
    "strings, numbers, true, false, null, or one of prefix, suffix, equals-ignore-case, anything-but, "
    "numeric, exists, cidr, wildcard, exactly"
)
# Names that Amazon keeps for itself inside $or.
_RESERVED = frozenset(
    {"exactly", "prefix", "suffix", "equals-ignore-case", "anything-but", "exists", "wildcard", "numeric"}
    | {"cidr", "=", "<", "<=", ">", ">=", "regex", "not-wildcard", "not-equals-ignore-case"}
    | {"date-after", "date-on-or-after", "date-before", "date-on-or-before", "in-date-range"}
    | {"ip-address-in-range", "ip-address-not-in-range"}
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|NaN|-?Infinity', re.DOTALL)
_STRINGS = ValueSet(strings=EVERY_VALUE.strings)
_NEVER_ARRAYS = frozenset({"id", "publisher"})

_Rule = dict[str, Atom]
"""One alternative of a pattern: what is asked of each path."""

# Atoms that are copied from one alternative to another for a step of work.
_COPIES_A_STEP = 64


def parse_pattern(
    pattern: str | bytes | Mapping[str, Any], schema: Mapping[str, AttributeType] | None = None
) -> Filter:
    """Parse a pattern (JSON text, or the decoded object) to a filter.

    A schema says which attributes are timestamps. Raises FilterError with the text and the place.
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
    with Work(COMPILE_STEPS):
        asked: _Rule = {}
        rules = _added(reader.fields(tree, "", False, [{}], asked), asked)
    alternatives = [_together(rule) for rule in rules]
    return alternatives[0] if len(alternatives) == 1 else Or(tuple(alternatives))


def _added(rules: list[_Rule], asked: _Rule) -> list[_Rule]:
    """The alternatives with more asked of each of them."""
    if not asked:
        return rules
    charge(sum(map(len, rules), len(rules) * len(asked)) // _COPIES_A_STEP)
    return [{**rule, **asked} for rule in rules]


def _together(rule: _Rule) -> Expression:
    atoms = tuple(rule.values())
    return atoms[0] if len(atoms) == 1 else Together(atoms)


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

    def fields(
        self, tree: _Object, prefix: str, in_or: bool, rules: list[_Rule], asked: _Rule
    ) -> list[_Rule]:
        """An object's fields, which are an AND: they are put into `asked`, to be added to each of `rules`.

        Under $or the alternatives fork: those come back, and `asked` begins anew. A path that is asked for
        again replaces what was asked before, as at Amazon.
        """
        if not tree:
            self.fail("empty objects are not allowed")
        for name, value in self.members(tree):
            if name == "$or":
                rules = self.either(value, prefix, _added(rules, asked))
                asked.clear()
            elif in_or and name in _RESERVED:
                self.fail(f"{name!r} is reserved and cannot be a field name inside $or")
            elif isinstance(value, _Object):
                rules = self.fields(value, f"{prefix}{name}.", in_or, rules, asked)
            elif isinstance(value, list):
                atom = self.leaf(f"{prefix}{name}", value)
                asked[atom.path] = atom
            else:
                self.fail(f"{name!r} must be an object or an array of values")
        return rules

    def either(self, value: Any, prefix: str, rules: list[_Rule]) -> list[_Rule]:
        if not isinstance(value, list) or isinstance(value, _Object):
            self.fail("$or takes an array of objects")
        if len(value) < 2 or not all(isinstance(part, _Object) for part in value):
            self.fail("$or takes an array of at least two objects")
        forked: list[_Rule] = []
        place = self.place
        for part in value:
            self.place = place
            asked: _Rule = {}
            forked += _added(self.fields(part, prefix, True, rules, asked), asked)
            if len(forked) > MAX_BOXES:
                self.fail(f"the pattern has more than {MAX_BOXES} alternatives under $or")
        return forked

    def leaf(self, path: str, listed: list[Any]) -> Atom:
        """One field with its listed matches: true in their union, false everywhere else."""
        if not listed:
            self.fail("empty arrays are not allowed")
        shown = f"{path}: {json.dumps(_plain(listed), ensure_ascii=False)}"
        if self.schema.get(path) is AttributeType.TIMESTAMP:
            path = text_path(path)  # patterns know texts, not times
        parts: list[Constraint] = []
        tests: set[StringTest] = set()
        place = self.place
        for item in listed:
            self.place = place
            match = self.one(item)
            if isinstance(match, StringTest):
                tests.add(match)
            else:
                parts.append(MISSING if match is None else found(match))
        if tests:
            parts.append(found(where_tests(tests)))
        if path in _NEVER_ARRAYS:
            parts = [replace(part, arrays=None) for part in parts]
        return Atom(path, shown, tuple(unite(parts)), None)

    def one(self, item: Any) -> ValueSet | StringTest | None:
        """The values that one listed match accepts, or None where it wants the field absent.

        String tests are gathered by the caller into one set.
        """
        if item is None:
            return NULL_ELEMENT
        if isinstance(item, bool):
            return booleans(item)
        if isinstance(item, int | float):
            return numbers_equal([self.number(item)])
        if isinstance(item, str):
            return strings_equal([item])
        if not isinstance(item, _Object):
            self.fail("a value must be a string, a number, true, false, null or a match expression")
        if len(item) != 1:
            self.place = item.places[1] if item else self.place
            self.fail("a match expression has exactly one key")
        ((operator, argument),) = self.members(item)
        operators: dict[str, Callable[[Any], ValueSet | StringTest | None]] = {
            "exactly": lambda a: strings_equal([self.string(a, "exactly")]),
            "prefix": lambda a: self.affix(a, "prefix"),
            "suffix": lambda a: self.affix(a, "suffix"),
            "equals-ignore-case": lambda a: in_any_case(self.string(a, operator), TestKind.NOCASE),
            "wildcard": self.wildcard,
            "cidr": self.cidr,
            "numeric": self.numeric,
            "exists": self.exists,
            "anything-but": self.anything_but,
        }
        if operator not in operators:
            self.fail(f"unknown match expression {operator!r}")
        return operators[operator](argument)

    def affix(self, argument: Any, operator: str) -> ValueSet | StringTest:
        if isinstance(argument, _Object):
            if len(argument) != 1 or argument[0][0] != "equals-ignore-case":
                self.fail(f'{operator} takes a string or {{"equals-ignore-case": "..."}}')
            kind = TestKind.NOCASE_PREFIX if operator == "prefix" else TestKind.NOCASE_SUFFIX
            return in_any_case(self.string(argument[0][1], operator), kind)
        text = self.string(argument, operator)
        return prefixed(text) if operator == "prefix" else _ends_with(text)

    def wildcard(self, argument: Any) -> ValueSet | StringTest:
        return glob_match(self.wildcard_codes(argument))

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

    def exists(self, argument: Any) -> ValueSet | None:
        if not isinstance(argument, bool):
            self.fail("exists takes true or false")
        return EVERY_ELEMENT if argument else None

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
        return operator, self.number(number)

    def anything_but(self, argument: Any) -> ValueSet:
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
        return replace(outside, nulls=True)

    def anything_but_test(self, argument: _Object) -> ValueSet:
        if len(argument) != 1:
            self.fail("anything-but takes one match expression")
        ((operator, inner),) = self.members(argument)
        readers: dict[str, Callable[[str], ValueSet | StringTest]] = {
            "prefix": prefixed,
            "suffix": _ends_with,
            "equals-ignore-case": lambda text: in_any_case(text, TestKind.NOCASE),
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
                intervals = intervals.union(match) or intervals
        outside = EVERY_VALUE.minus_plain(intervals)
        if tests:
            kept = where_tests(tests, wanted=False, within=outside)
            outside = replace(outside, strings=kept.strings, tests=kept.tests)
        return replace(outside, nulls=True)

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


def _ends_with(text: str) -> ValueSet | StringTest:
    return glob_match(glob([ANY_CHARACTERS, *map(ord, text)]))


def in_any_case(text: str, kind: TestKind) -> ValueSet | StringTest:
    """The strings that are, begin or end so, whatever the case; a set where no letter has another case."""
    if any(has_case(ord(letter)) for letter in text):
        return ignore_case(text, kind)
    if kind is TestKind.NOCASE:
        return strings_equal([text])
    return prefixed(text) if kind is TestKind.NOCASE_PREFIX else _ends_with(text)


def glob_match(codes: tuple[int, ...]) -> ValueSet | StringTest:
    """The interval of a glob that has one, else its test."""
    prefix = literal_prefix(codes)
    if len(prefix) == len(codes):
        return strings_equal([prefix])
    if codes[len(prefix) :] == (ANY_CHARACTERS,):
        return prefixed(prefix) if prefix else _STRINGS
    return StringTest(TestKind.GLOB, codes)


def _plain(value: Any) -> Any:
    if isinstance(value, _Object):
        return {name: _plain(inner) for name, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
