"""The SQL spelling: a Spark SQL predicate, parsed with sqlglot, as an `Expression`.

Semantics are Spark SQL's, NULL included: an event's missing attribute is NULL. Allowed are comparisons
of one attribute with literals, IN, BETWEEN, LIKE (escape character backslash), IS [NOT] NULL,
array_contains, bare boolean attributes, TRUE, FALSE, NULL, AND, OR, NOT. Anything else is refused with its
position. Attribute names are matched with case, as JSON's are; backquotes take any name.

Types: an attribute has the type of the literals it is compared with. Within one filter it may not be
compared with two types, and with a schema it must be the schema's type (a string literal is read as a
time where the schema says timestamp, as Spark would). Where an event holds another type, the comparison
is NULL: Spark would fail the whole query there, which a broker cannot.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NoReturn
from zoneinfo import ZoneInfo

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from ramify.content.constraints import EVERY_ARRAY, ArraySet, Constraint
from ramify.content.events import AttributeType
from ramify.content.expressions import And, Atom, Constant, Expression, Not, Or, compile_filter
from ramify.content.filters import Filter
from ramify.content.strings import ANY, ONE, StringTest, TestKind, glob, literal_prefix
from ramify.content.values import (
    EVERY_VALUE,
    NO_VALUE,
    Number,
    Scalar,
    ValueSet,
    booleans,
    number_above,
    number_below,
    numbers_equal,
    prefixed,
    strings_below,
    strings_equal,
    strings_from,
    times_above,
    times_below,
    times_equal,
    where_tests,
)
from ramify.errors import FilterError

__all__ = ["ALLOWED", "MAX_TEXT", "parse_sql", "parse_sql_expression"]

ALLOWED = "= <> != < <= > >= BETWEEN IN LIKE IS [NOT] NULL AND OR NOT array_contains"
MAX_TEXT = 64 * 1024
MAX_DEPTH = 32

_KINDS = {
    AttributeType.STRING: "string",
    AttributeType.INT64: "number",
    AttributeType.DOUBLE: "number",
    AttributeType.BOOLEAN: "boolean",
    AttributeType.TIMESTAMP: "timestamp",
    AttributeType.STRINGS: "array",
    AttributeType.NUMBERS: "array of numbers",
}
_EVERY_OF_KIND = {
    "number": ValueSet(numbers=EVERY_VALUE.numbers),
    "string": ValueSet(strings=EVERY_VALUE.strings),
    "boolean": ValueSet(booleans=EVERY_VALUE.booleans),
    "timestamp": ValueSet(times=EVERY_VALUE.times),
}
_FLIPPED = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_SYMBOL = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_OTHER_NAMES: dict[type[exp.Expression], str] = {
    exp.RegexpLike: "RLIKE",
    exp.NullSafeEQ: "<=>",
    exp.Escape: "ESCAPE",
    exp.Any: "ANY",
    exp.Cast: "CAST",
    exp.TryCast: "CAST",
}
_SUFFIXED = re.compile(r"[\d.]+(?:[eE][+-]?\d+)?(?:L|S|Y|D|F|BD)\b", re.IGNORECASE)
_SPARK_TIME = re.compile(
    r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?)?)?"
    r"\s*([A-Za-z+-][A-Za-z0-9+:/_-]*)?"
)


def parse_sql(text: str, schema: Mapping[str, AttributeType] | None = None) -> Filter:
    """Parse a predicate to a filter. Raises FilterError with the text, the position and what is allowed."""
    expression = parse_sql_expression(text, schema)
    try:
        return compile_filter(expression)
    except FilterError as error:
        raise FilterError(error.reason, text=text, allowed=error.allowed) from None


def parse_sql_expression(text: str, schema: Mapping[str, AttributeType] | None = None) -> Expression:
    """Parse a predicate to its expression, without building boxes."""
    if len(text) > MAX_TEXT:
        raise FilterError(
            f"the filter is {len(text)} characters long", allowed=f"up to {MAX_TEXT} characters"
        )
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise FilterError("the filter holds half a surrogate pair", allowed="valid Unicode text")
    _check_nesting(text)
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
        return _Reader(text, dict(schema or {})).predicate(tree)
    except ParseError as error:
        raise _syntax_error(text, error) from None
    except TokenError as error:
        raise FilterError(
            f"cannot be read: {str(error).splitlines()[0]}", text=text, allowed=ALLOWED
        ) from None
    except RecursionError:
        raise FilterError("the filter is nested too deeply", text=text, allowed="fewer levels") from None


@dataclass(slots=True)
class _Reader:
    """Walks one parsed predicate; remembers the kind each attribute was first compared as."""

    text: str
    schema: dict[str, AttributeType]
    kinds: dict[str, tuple[str, int | None]] = field(default_factory=dict)

    def predicate(self, node: exp.Expression) -> Expression:
        match node:
            case exp.Paren():
                return self.predicate(node.this)
            case exp.And():
                return And(tuple(self.predicate(part) for part in node.flatten(unnest=False)))
            case exp.Or():
                return Or(tuple(self.predicate(part) for part in node.flatten(unnest=False)))
            case exp.Not():
                return Not(self.predicate(node.this))
            case exp.Boolean():
                return Constant(bool(node.this))
            case exp.Null():
                return Constant(None)
            case exp.Column() | exp.Dot() | exp.Identifier():
                path = self.path(node)
                return self.atom(path, path, "boolean", node, booleans(True))
            case exp.Is():
                return self.is_null(node)
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self.comparison(node)
            case exp.Between():
                return self.between(node)
            case exp.In():
                return self.membership(node)
            case exp.Like():
                return self.like(node)
            case exp.ArrayContains():
                return self.array_contains(node)
        return self.refuse(node)

    def comparison(self, node: exp.Expression) -> Expression:
        left, right, op = node.this, node.expression, type(node)
        if not _is_attribute(left):
            left, right, op = right, left, _FLIPPED[op]
        if not _is_attribute(left):
            self.literal(left, None)  # refuses a function or sub-query by its own name
            self.fail("a comparison needs an attribute on one side", node.this)
        path = self.path(left)
        if _is_attribute(right):
            self.fail(f"two attributes cannot be compared ({path} and {self.path(right)})", right)
        shown = f"{path} {_SYMBOL[op]} {right.sql('spark')}"
        value = self.literal(right, path)
        if value is None:
            return Constant(None)
        return self.atom(path, shown, _kind(value), right, _compare(op, value))

    def between(self, node: exp.Between) -> Expression:
        if node.args.get("symmetric"):
            self.fail("BETWEEN SYMMETRIC is not allowed", node.this)
        path = self.attribute(node.this, "BETWEEN")
        parts: list[Expression] = []
        for op, bound in ((exp.GTE, node.args["low"]), (exp.LTE, node.args["high"])):
            value = self.literal(bound, path)
            shown = f"{path} {_SYMBOL[op]} {bound.sql('spark')}"
            parts.append(
                Constant(None)
                if value is None
                else self.atom(path, shown, _kind(value), bound, _compare(op, value))
            )
        return And(tuple(parts))

    def membership(self, node: exp.In) -> Expression:
        path = self.attribute(node.this, "IN")
        if (
            node.args.get("query") is not None
            or node.args.get("unnest") is not None
            or "field" in _set(node)
        ):
            self.fail("a sub-query is not allowed", node.args.get("query") or node.this)
        if not node.expressions:
            self.fail("IN needs at least one value", node.this)
        found = [(item, self.literal(item, path)) for item in node.expressions]
        known = [(item, value) for item, value in found if value is not None]
        kinds = {_kind(value) for _, value in known}
        if len(kinds) > 1:
            odd = next(item for item, value in known if _kind(value) != _kind(known[0][1]))
            self.fail(f"IN mixes {' and '.join(sorted(kinds))}", odd)
        if not known:
            return Constant(None)
        kind = kinds.pop()
        shown = f"{path} IN ({', '.join(item.sql('spark') for item in node.expressions)})"
        values = _equal([value for _, value in known])
        if len(known) == len(found):
            return self.atom(path, shown, kind, known[0][0], values)
        # With NULL in the list IN is TRUE or NULL, never FALSE.
        self.remember(path, kind, known[0][0])
        return Atom(path, shown, (Constraint(scalars=values),), ())

    def like(self, node: exp.Like) -> Expression:
        path = self.attribute(node.this, "LIKE")
        pattern = node.expression
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            if isinstance(pattern, exp.Null):
                return Constant(None)
            self.fail("LIKE needs one string", pattern)
        values = like_values(self.like_codes(pattern))
        atom = self.atom(path, f"{path} LIKE {pattern.sql('spark')}", "string", pattern, values)
        return Not(atom) if node.args.get("negate") else atom

    def like_codes(self, pattern: exp.Literal) -> tuple[int, ...]:
        """Read % and _; a backslash takes the next %, _ or backslash literally, as in Spark."""
        text, codes, k = str(pattern.this), [], 0
        while k < len(text):
            c = text[k]
            if c == "\\":
                k += 1
                if k == len(text):
                    self.fail("a LIKE pattern must not end with the escape character", pattern)
                if text[k] not in "%_\\":
                    self.fail(f"a LIKE pattern must not escape {text[k]!r}: only %, _ and \\", pattern)
                codes.append(ord(text[k]))
            else:
                codes.append(ANY if c == "%" else ONE if c == "_" else ord(c))
            k += 1
        return glob(codes)

    def array_contains(self, node: exp.ArrayContains) -> Expression:
        path = self.attribute(node.this, "array_contains")
        if _is_attribute(node.expression):
            self.fail("array_contains needs a literal to look for", node.expression)
        value = self.literal(node.expression, None)
        if value is None:
            self.fail("array_contains cannot look for NULL", node.expression)
        numbers = _kind(value) == "number"
        if not numbers and _kind(value) != "string":
            self.fail("array_contains looks for a string or a number", node.expression)
        self.remember(path, "array of numbers" if numbers else "array", node.expression)
        values = _equal([value])
        return Atom(
            path,
            f"array_contains({path}, {node.expression.sql('spark')})",
            (Constraint(arrays=ArraySet(some=frozenset([values]))),),
            (Constraint(arrays=ArraySet(none=frozenset([values]))),),
        )

    def is_null(self, node: exp.Is) -> Expression:
        if not isinstance(node.expression, exp.Null):
            self.fail("IS takes NULL or NOT NULL only", node.expression)
        path = self.attribute(node.this, "IS NULL")
        null = Constraint(absent=True, null=True)
        return Atom(
            path, f"{path} IS NULL", (null,), (Constraint(scalars=EVERY_VALUE, arrays=EVERY_ARRAY),)
        )

    def atom(self, path: str, shown: str, kind: str, at: exp.Expression, values: ValueSet) -> Atom:
        """A predicate on scalars of one kind: FALSE on the others of that kind, NULL elsewhere."""
        self.remember(path, kind, at)
        false = [part.intersect(_EVERY_OF_KIND[kind]) for part in values.complement()]
        return Atom(
            path,
            shown,
            (Constraint(scalars=values),) if not values.is_empty else (),
            tuple(Constraint(scalars=part) for part in false if not part.is_empty),
        )

    def remember(self, path: str, kind: str, at: exp.Expression) -> None:
        """Hold an attribute to one kind within the filter, and to the schema's."""
        declared = self.schema.get(path)
        if declared is not None and _KINDS[declared] != kind:
            self.fail(f"{path} is {declared.value} in the schema and is used as {kind}", at)
        first, where = self.kinds.setdefault(path, (kind, _position(at)))
        if first != kind:
            seen = "" if where is None else f" (position {where})"
            self.fail(f"{path} was used as {first}{seen} and is used as {kind}", at)

    def literal(self, node: exp.Expression, path: str | None) -> Scalar | None:
        """The value of a literal; a string is a time where the schema says so."""
        match node:
            case exp.Null():
                return None
            case exp.Boolean():
                return bool(node.this)
            case exp.Paren():
                return self.literal(node.this, path)
            case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
                return -self.number(node.this)
            case exp.Literal() if not node.is_string:
                return self.number(node)
            case exp.Literal() | exp.RawString():
                if path is not None and self.schema.get(path) is AttributeType.TIMESTAMP:
                    return self.time(str(node.this), node)
                return str(node.this)
            case exp.Cast() if _typed_literal(node):
                return self.time(str(node.this.this), node.this)
            case exp.TryCast() if self.has_suffix(node):
                return self.number(node.this)
            case exp.Concat() if all(isinstance(e, exp.Literal) and e.is_string for e in node.expressions):
                return self.joined(node)
        if _is_attribute(node):
            self.fail("only literals may stand here, not another attribute", node)
        return self.refuse(node)

    def has_suffix(self, node: exp.TryCast) -> bool:
        """5L, 1.5D, 2BD: numbers with Spark's type suffix, which sqlglot reads as casts."""
        if not isinstance(node.this, exp.Literal) or "start" not in node.this.meta:
            # sqlglot marks no position on 1.5BD, and always marks one on what stands in CAST(...)
            return isinstance(node.this, exp.Literal)
        return _SUFFIXED.match(self.text, node.this.meta["start"]) is not None

    def joined(self, node: exp.Concat) -> str:
        """Neighbouring strings are one string; without a gap, the quote between them is part of it."""
        tokens = sqlglot.tokenize(self.text, dialect="spark")
        k = next(k for k, token in enumerate(tokens) if token.start == _position(node))
        parts = [str(tokens[k].text)]
        for token in tokens[k + 1 : k + len(node.expressions)]:
            gap = token.start > tokens[k].end + 1
            parts += ["" if gap else self.text[token.start], str(token.text)]
            k += 1
        return "".join(parts)

    def number(self, node: exp.Literal) -> Number:
        text = str(node.this)
        if re.fullmatch(r"\d+", text):
            if len(text) <= 38:
                return int(text)
            self.fail("an integer of more than 38 digits is not allowed", node)
        number = float(Decimal(text)) if re.fullmatch(r"[\d.]+(?:[eE][+-]?\d+)?", text) else math.nan
        if not math.isfinite(number):
            self.fail(f"{text} is not a number that fits a double", node)
        return number

    def time(self, text: str, node: exp.Expression) -> datetime:
        time = read_time(text)
        if time is None:
            self.fail(
                f"{text!r} is not a timestamp such as '2026-01-31 12:30:00' or '2026-01-31T12:30:00Z'", node
            )
        return time

    def attribute(self, node: exp.Expression, what: str) -> str:
        if not _is_attribute(node):
            self.fail(f"{what} needs an attribute on its left", node)
        return self.path(node)

    def path(self, node: exp.Expression) -> str:
        """The dotted path of a column, however deep."""
        if isinstance(node, exp.Dot):
            return f"{self.path(node.this)}.{self.path(node.expression)}"
        if isinstance(node, exp.Column):
            if isinstance(node.this, exp.Star):
                self.fail("* is not an attribute", node)
            return ".".join(str(part.this) for part in node.parts)
        return str(node.this)

    def refuse(self, node: exp.Expression) -> NoReturn:
        if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
            self.fail("a sub-query is not allowed", node)
        if isinstance(node, exp.Func) and type(node) not in _OTHER_NAMES:
            name = str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name()
            self.fail(f"unknown function {name.upper()}", node)
        if isinstance(node, exp.Literal | exp.Neg):
            self.fail("a literal is not a predicate", node)
        if isinstance(node, exp.Block):
            self.fail("only one predicate is allowed, without ;", node.expressions[-1])
        self.fail(f"{_OTHER_NAMES.get(type(node), node.key.upper())} is not allowed", node)

    def fail(self, reason: str, node: exp.Expression) -> NoReturn:
        raise FilterError(reason, text=self.text, position=_position(node), allowed=ALLOWED)


def like_values(codes: tuple[int, ...]) -> ValueSet:
    """The strings that match a glob, as an interval where possible and a test beside it where not."""
    prefix = literal_prefix(codes)
    if len(prefix) == len(codes):
        return strings_equal([prefix])
    if codes[len(prefix) :] == (ANY,):
        return prefixed(prefix)
    return where_tests([StringTest(TestKind.GLOB, codes)], within=prefixed(prefix))


def read_time(text: str) -> datetime | None:
    """A timestamp as Spark casts a string to one (session time zone UTC), or None."""
    match = _SPARK_TIME.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0").ljust(6, "0")[:6])
    try:
        time = datetime(
            int(year),
            int(month or 1),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            micros,
        )
        return _in_utc(time, zone)
    except (ValueError, OverflowError, KeyError, OSError):  # KeyError, OSError: no such zone
        return None


def _in_utc(time: datetime, zone: str | None) -> datetime:
    """Read a wall-clock time in a zone: Z, UTC, an offset such as +02:00, or a region's name."""
    if zone is None or zone.upper() in ("Z", "UTC", "GMT"):
        return time.replace(tzinfo=UTC)
    offset = re.fullmatch(r"([+-])(\d{1,2})(?::?(\d{2}))?", zone)
    if offset is None:
        return time.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    sign, hours, minutes = offset.groups()
    shift = timedelta(hours=int(hours), minutes=int(minutes or 0))
    return (time - shift if sign == "+" else time + shift).replace(tzinfo=UTC)


def _compare(op: type[exp.Expression], value: Scalar) -> ValueSet:
    if op is exp.EQ:
        return _equal([value])
    if op is exp.NEQ:
        (rest,) = _equal([value]).complement()
        return rest.intersect(_EVERY_OF_KIND[_kind(value)])
    inclusive = op in (exp.LTE, exp.GTE)
    above = op in (exp.GT, exp.GTE)
    if isinstance(value, bool):
        # false < true, as Spark orders them
        keep = [
            b for b in (False, True) if (b > value if above else b < value) or (inclusive and b == value)
        ]
        out = NO_VALUE
        for b in keep:
            out = out.union(booleans(b)) or out
        return out
    if isinstance(value, str):
        return (strings_from if above else strings_below)(value, inclusive)
    if isinstance(value, datetime):
        return (times_above if above else times_below)(value, inclusive)
    return (number_above if above else number_below)(value, inclusive)


def _equal(values: Iterable[Scalar]) -> ValueSet:
    values = list(values)
    kind = _kind(values[0])
    if kind == "boolean":
        out = NO_VALUE
        for value in values:
            out = out.union(booleans(bool(value))) or out
        return out
    make: Callable[..., ValueSet] = {
        "string": strings_equal,
        "timestamp": times_equal,
        "number": numbers_equal,
    }[kind]
    return make(values)


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "timestamp" if isinstance(value, datetime) else "number"


def _is_attribute(node: exp.Expression) -> bool:
    return isinstance(node, exp.Column | exp.Dot | exp.Identifier)


def _set(node: exp.Expression) -> set[str]:
    return {name for name, value in node.args.items() if value}


def _typed_literal(node: exp.Cast) -> bool:
    """TIMESTAMP '...' and DATE '...', which sqlglot reads as casts; not a cast that the user wrote."""
    return (
        type(node) is exp.Cast
        and not node.meta
        and isinstance(node.this, exp.Literal)
        and node.this.is_string
        and node.to.this
        in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.DATE)
    )


def _position(node: exp.Expression) -> int | None:
    """Where a node starts: its own mark, or the first mark inside it or else inside its parent."""
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    if not starts and node.parent is not None:
        return _position(node.parent)
    return min(starts) if starts else None


def _check_nesting(text: str) -> None:
    """Refuse deep nesting before the parser recurses into it. Brackets in strings count too: harmless."""
    depth = 0
    for position, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth > MAX_DEPTH:
            raise FilterError(
                "the filter is nested too deeply",
                text=text,
                position=position,
                allowed=f"up to {MAX_DEPTH} levels of brackets",
            )


def _syntax_error(text: str, error: ParseError) -> FilterError:
    if not text.strip():
        return FilterError("the filter is empty", allowed=ALLOWED)
    found = error.errors[0] if error.errors else {}
    context = found.get("start_context")
    position = None
    if context is not None:
        place = text.find(f"{context}{found.get('highlight') or ''}")
        position = place + len(context) if place >= 0 else None
    return FilterError(
        "the predicate is not complete or not SQL", text=text, position=position, allowed=ALLOWED
    )
