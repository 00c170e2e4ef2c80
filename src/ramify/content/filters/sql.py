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
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

from ramify.content.events.attributes import RESERVED_NAMES, AttributeType
from ramify.content.filters.constraints import EVERY_ARRAY, ArraySet, Constraint
from ramify.content.filters.expressions import (
    CONTEXT_TYPES,
    And,
    Atom,
    Constant,
    Expression,
    Not,
    Or,
    compile_filter,
)
from ramify.content.filters.filters import Filter
from ramify.content.filters.limits import FILTER_DEPTH, FILTER_TEXT
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    ONE_CHARACTER,
    StringTest,
    TestKind,
    glob,
    literal_prefix,
)
from ramify.content.filters.values import (
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

__all__ = ["ALLOWED", "FILTER_TEXT", "parse_sql", "parse_sql_expression"]

ALLOWED = "= <> != < <= > >= BETWEEN IN LIKE IS [NOT] NULL AND OR NOT array_contains"

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
_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_SYMBOL: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_OTHER_NAMES: dict[type[exp.Expr], str] = {
    exp.RegexpLike: "RLIKE",
    exp.NullSafeEQ: "<=>",
    exp.Escape: "ESCAPE",
    exp.Any: "ANY",
    exp.Cast: "CAST",
    exp.TryCast: "CAST",
    exp.Case: "CASE",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Neg: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "DIV",
    exp.Mod: "%",
    exp.DPipe: "||",
    exp.Bracket: "[",
    exp.Tuple: "a list of values",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
}
# Numbers with these suffixes (Y, S, L) are integers of so many bits.
_SUFFIX_BITS = {exp.DataType.Type.TINYINT: 8, exp.DataType.Type.SMALLINT: 16, exp.DataType.Type.BIGINT: 64}
_TIME_TYPES = frozenset(
    {
        exp.DataType.Type.TIMESTAMP,
        exp.DataType.Type.TIMESTAMPTZ,
        exp.DataType.Type.TIMESTAMPLTZ,
        exp.DataType.Type.TIMESTAMPNTZ,
        exp.DataType.Type.DATE,
    }
)
_QUERY_WORDS = frozenset({"SELECT", "WITH", "UNION", "EXCEPT", "INTERSECT", "FROM", "VALUES"})
_SUFFIXED = re.compile(r"[\d.]+(?:[eE][+-]?\d+)?(?:L|S|Y|D|F|BD)\b", re.IGNORECASE)
_SPARK_TIME = re.compile(
    r"(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})"
    r"(?::(\d{1,2})(?:\.(\d{0,9}))?(?:\s*([A-Za-z+-][A-Za-z0-9+:/_-]*))?)?)?)?)?)?"
)
_SPARK_DATE = re.compile(r"(\d{4,6}(?:-\d{1,2})?$|\d{4,6}-\d{1,2}-\d{1,2}(?=$|[ T]))")
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


def parse_sql(text: str, schema: Mapping[str, AttributeType] | None = None) -> Filter:
    """Parse a predicate to a filter. Raises FilterError with the text, the position and what is allowed."""
    expression = parse_sql_expression(text, schema)
    try:
        return compile_filter(expression)
    except FilterError as error:
        raise FilterError(error.reason, text=text, allowed=error.allowed) from None


def parse_sql_expression(text: str, schema: Mapping[str, AttributeType] | None = None) -> Expression:
    """Parse a predicate to its expression, without building boxes."""
    if len(text) > FILTER_TEXT:
        raise FilterError(
            f"the filter is {len(text)} characters long", allowed=f"up to {FILTER_TEXT} characters"
        )
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise FilterError("the filter holds half a surrogate pair", allowed="valid Unicode text")
    dialect = Dialect.get_or_raise("spark")
    try:
        tokens = dialect.tokenize(text)
    except TokenError as error:
        raise _unreadable(text, error) from None
    _check_tokens(text, tokens)
    try:
        reader = _Reader(text, {**CONTEXT_TYPES, **(schema or {})}, tokens)
        return reader.predicate(_tree(text, tokens, dialect))
    except RecursionError:
        raise FilterError("the filter is nested too deeply", text=text, allowed="fewer levels") from None


def _tree(text: str, tokens: list[Token], dialect: Dialect) -> exp.Expr:
    """Parse as a condition, so that a statement's keyword (load, desc) may be an attribute's name."""
    found: dict[str, Any] = {}
    try:
        (tree,) = dialect.parser().parse_into(exp.Condition, tokens, text)
        if tree is not None:  # a lone + is read as nothing
            return tree
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
    except RecursionError:
        raise
    except Exception:  # sqlglot itself stumbles over some nonsense: MAP( ?, ARRAY[1.5BD
        pass
    at = next((t for t in tokens if (t.line, t.col) == (found.get("line"), found.get("col"))), tokens[-1])
    is_query = str(at.text).upper() in _QUERY_WORDS
    reason = "a sub-query is not allowed" if is_query else "the predicate is not complete or not SQL"
    raise FilterError(reason, text=text, position=at.start, allowed=ALLOWED)


@dataclass(slots=True)
class _Reader:
    """Walks one parsed predicate; remembers the kind each attribute was first compared as."""

    text: str
    schema: dict[str, AttributeType]
    tokens: list[Token]
    kinds: dict[str, tuple[str, int | None]] = field(default_factory=dict)

    def predicate(self, node: exp.Expr) -> Expression:
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

    def comparison(self, node: exp.Expr) -> Expression:
        left, right, op = node.this.unnest(), node.expression.unnest(), type(node)
        if not _is_attribute(left):
            left, right, op = right, left, _FLIPPED[op]
        if not _is_attribute(left):
            for side in (right, left):
                if not isinstance(side, exp.Predicate | exp.Connector):
                    self.literal(side, None)  # refuses a function or sub-query by its own name
            self.fail("a comparison needs an attribute on one side", node)
        path = self.path(left)
        if _is_attribute(right):
            self.fail(f"two attributes cannot be compared ({path} and {self.path(right)})", right)
        value = self.literal(right, path)
        if value is None:
            return Constant(None)
        return self.atom(
            path, f"{path} {_SYMBOL[op]} {_show(value)}", _kind(value), right, _compare(op, value)
        )

    def between(self, node: exp.Between) -> Expression:
        if node.args.get("symmetric"):
            self.fail("BETWEEN SYMMETRIC is not allowed", node.this)
        path = self.attribute(node.this, "BETWEEN")
        parts: list[Expression] = []
        for op, bound in ((exp.GTE, node.args["low"]), (exp.LTE, node.args["high"])):
            value = self.literal(bound, path)
            if value is None:
                parts.append(Constant(None))
                continue
            shown = f"{path} {_SYMBOL[op]} {_show(value)}"
            parts.append(self.atom(path, shown, _kind(value), bound, _compare(op, value)))
        return And(tuple(parts))

    def membership(self, node: exp.In) -> Expression:
        path = self.attribute(node.this, "IN")
        if node.args.get("query") is not None:
            self.refuse(node.args["query"])
        if not node.expressions:
            self.fail("IN needs a list of values in brackets", node.args.get("field") or node.this)
        found = [(item, self.literal(item, path)) for item in node.expressions]
        known = [(item, value) for item, value in found if value is not None]
        kinds = {_kind(value) for _, value in known}
        if len(kinds) > 1:
            odd = next(item for item, value in known if _kind(value) != _kind(known[0][1]))
            self.fail(f"IN mixes {' and '.join(sorted(kinds))}", odd)
        if not known:
            return Constant(None)
        kind = kinds.pop()
        shown = f"{path} IN ({', '.join(_show(value) for _, value in found)})"
        values = _equal([value for _, value in known])
        if len(known) == len(found):
            return self.atom(path, shown, kind, known[0][0], values)
        # With NULL in the list IN is TRUE or NULL, never FALSE.
        self.remember(path, kind, known[0][0])
        return Atom(path, shown, (Constraint(scalars=values),), ())

    def like(self, node: exp.Like) -> Expression:
        path = self.attribute(node.this, "LIKE")
        pattern = self.literal(node.expression, None)
        if pattern is None:
            return Constant(None)
        if not isinstance(pattern, str):
            self.fail("LIKE needs one string", node.expression)
        values = like_values(self.like_codes(pattern, node.expression))
        atom = self.atom(path, f"{path} LIKE {_show(pattern)}", "string", node.expression, values)
        return Not(atom) if node.args.get("negate") else atom

    def like_codes(self, text: str, pattern: exp.Expr) -> tuple[int, ...]:
        """Read % and _; a backslash takes the next %, _ or backslash literally, as in Spark."""
        codes: list[int] = []
        k = 0
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
                codes.append(ANY_CHARACTERS if c == "%" else ONE_CHARACTER if c == "_" else ord(c))
            k += 1
        return glob(codes)

    def array_contains(self, node: exp.ArrayContains) -> Expression:
        path = self.attribute(node.this, "array_contains")
        if node.args.get("ensure_variant") is not None:
            self.fail("array_contains takes two arguments", node.args["ensure_variant"])
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
            f"array_contains({path}, {_show(value)})",
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

    def atom(self, path: str, shown: str, kind: str, at: exp.Expr, values: ValueSet) -> Atom:
        """A predicate on scalars of one kind: FALSE on the others of that kind, NULL elsewhere."""
        self.remember(path, kind, at)
        false = [part.intersect(_EVERY_OF_KIND[kind]) for part in values.complement()]
        return Atom(
            path,
            shown,
            (Constraint(scalars=values),) if not values.is_empty else (),
            tuple(Constraint(scalars=part) for part in false if not part.is_empty),
        )

    def remember(self, path: str, kind: str, at: exp.Expr) -> None:
        """Hold an attribute to one kind within the filter, and to the schema's."""
        declared = self.schema.get(path)
        if declared is not None and _KINDS[declared] != kind:
            self.fail(f"{path} is {declared.value} in the schema and is used as {kind}", at)
        known = self.kinds.get(path)
        if known is None:
            self.kinds[path] = kind, _position(at)
        elif known[0] != kind:
            first, where = known
            seen = "" if where is None else f" (position {where})"
            self.fail(f"{path} was used as {first}{seen} and is used as {kind}", at)

    def literal(self, node: exp.Expr, path: str | None) -> Scalar | None:
        """The value of a literal; a string is a time where the schema says so."""
        match node:
            case exp.Null():
                return None
            case exp.Boolean():
                return bool(node.this)
            case exp.Paren():
                return self.literal(node.this, path)
            case exp.Neg():
                inner = node.this.unnest()
                value = None if _is_attribute(inner) else self.literal(inner, path)
                if value is None or _kind(value) != "number":
                    self.fail("- is only allowed before a number", inner)
                return -value  # type: ignore[operator]
            case exp.Literal() if not node.is_string:
                return self.number(str(node.this), node, path)
            case exp.Literal() | exp.RawString():
                if path is not None and self.schema.get(path) is AttributeType.TIMESTAMP:
                    return self.time(str(node.this), node)
                return str(node.this)
            case exp.Cast() if _typed_literal(node):
                return self.time(str(node.this.this), node.this, node.to.this)
            case exp.TryCast() if self.has_suffix(node):
                return self.suffixed(node, path)
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

    def suffixed(self, node: exp.TryCast, path: str | None) -> Number:
        """A number with a type suffix: within that type's range, and rounded to it."""
        text = str(node.this.this)
        kind = node.to.this
        if kind is exp.DataType.Type.FLOAT:
            try:
                return float(struct.unpack("f", struct.pack("f", float(text)))[0])
            except OverflowError:
                self.fail(f"{text} does not fit a float", node)
        number = self.number(text, node, None if kind is exp.DataType.Type.DOUBLE else path)
        bits = _SUFFIX_BITS.get(kind)
        if bits is not None and not (isinstance(number, int) and number < 1 << (bits - 1)):
            self.fail(f"{text} does not fit {bits} bits", node)
        return number

    def joined(self, node: exp.Concat) -> str:
        """Neighbouring strings are one string; without a gap, the quote between them is part of it."""
        k = next(k for k, token in enumerate(self.tokens) if token.start == _position(node))
        parts = [str(self.tokens[k].text)]
        for token in self.tokens[k + 1 : k + len(node.expressions)]:
            gap = token.start > self.tokens[k].end + 1
            parts += ["" if gap else self.text[token.start], str(token.text)]
            k += 1
        return "".join(parts)

    def number(self, text: str, node: exp.Expr, path: str | None) -> Number:
        """A number as Spark compares it: whole ones exactly, unless the schema says double.

        A fraction that a double rounds away (9007199254740992.5) would equal an integer that it does not
        equal in Spark: refused unless only doubles can meet it (no path: elements of arrays, and 0.1D).
        """
        number: Number = math.nan
        if sum(c.isdigit() for c in text) > 38:
            self.fail("a number of more than 38 digits is not allowed", node)
        if re.fullmatch(r"\d+", text):
            number = int(text)
        elif re.fullmatch(r"\d+\.0*", text):
            number = int(text.partition(".")[0])
        elif re.fullmatch(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text):
            number = float(text)
        if path is not None and self.schema.get(path) is AttributeType.DOUBLE:
            number = _as_double(number)
        elif (
            path is not None
            and isinstance(number, float)
            and number.is_integer()
            and "e" not in text.lower()
        ):
            self.fail(f"the fraction of {text} is lost in a double: write a whole number", node)
        if not math.isfinite(_as_double(number)):
            self.fail(f"{text} is not a number that fits a double", node)
        return number

    def time(self, text: str, node: exp.Expr, kind: object = exp.DataType.Type.TIMESTAMP) -> datetime:
        """A timestamp; of a DATE only the day counts, of a TIMESTAMP_NTZ the zone does not."""
        shown = text
        if kind is exp.DataType.Type.DATE:
            day = _SPARK_DATE.match(text.strip())
            text = day[1] if day else ""
        time = read_time(text, zoned=kind is not exp.DataType.Type.TIMESTAMPNTZ)
        if time is None:
            self.fail(
                f"{shown!r} is not a timestamp such as '2026-01-31 12:30:00' or '2026-01-31T12:30:00Z'",
                node,
            )
        return time

    def attribute(self, node: exp.Expr, what: str) -> str:
        node = node.unnest()
        if not _is_attribute(node):
            if not isinstance(node, exp.Literal | exp.Boolean | exp.Null | exp.Predicate | exp.Connector):
                self.refuse(node)
            self.fail(f"{what} needs an attribute on its left", node)
        return self.path(node)

    def path(self, node: exp.Expr) -> str:
        """The dotted path of a column, however deep."""
        call = next((part for part in node.walk() if isinstance(part, exp.Func)), None)
        if call is not None:
            self.refuse(call)
        path = _dotted(node)
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            self.fail("* is not an attribute", node)
        if path in RESERVED_NAMES:
            self.fail(f"{path} is not an attribute: the name is kept for the event itself", node)
        return path

    def refuse(self, node: exp.Expr) -> NoReturn:
        """Refuse what has no place in a filter, by the name that the user knows it by."""
        if isinstance(node, exp.Query | exp.Exists):
            self.fail("a sub-query is not allowed", node, self.word("SELECT", node))
        if isinstance(node, exp.Literal):
            self.fail("a literal is not a predicate", node)
        shown = _OTHER_NAMES.get(type(node))
        if shown is None and isinstance(node, exp.Func):
            name = (str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name()).upper()
            self.fail(f"unknown function {name}", node, self.word(name, node))
        shown = shown or node.key.upper()
        self.fail(f"{shown} is not allowed", node, self.word(shown, node))

    def word(self, word: str, node: exp.Expr) -> int | None:
        """Where the keyword of a construct stands: sqlglot marks names and literals only."""
        position = _position(node)
        if position is None:
            return None
        found = [t.start for t in self.tokens if self.spells(t, word)]
        before, after = [k for k in found if k <= position], [k for k in found if k > position]
        if isinstance(node, exp.Binary):
            before = []
        return before[-1] if before else after[0] if after else position

    def spells(self, token: Token, word: str) -> bool:
        return self.text[token.start : token.end + 1].upper() == word

    def fail(self, reason: str, node: exp.Expr, position: int | None = None) -> NoReturn:
        if position is None:
            position = _position(node)
        start = self.tokens[0].start if position is None else position
        raise FilterError(reason, text=self.text, position=start, allowed=ALLOWED)


def like_values(codes: tuple[int, ...]) -> ValueSet:
    """The strings that match a glob, as an interval where possible and a test beside it where not."""
    prefix = literal_prefix(codes)
    if len(prefix) == len(codes):
        return strings_equal([prefix])
    if codes[len(prefix) :] == (ANY_CHARACTERS,):
        return prefixed(prefix)
    return where_tests([StringTest(TestKind.GLOB, codes)], within=prefixed(prefix))


def read_time(text: str, zoned: bool = True) -> datetime | None:
    """A timestamp as Spark casts a string to one (session time zone UTC), or None.

    What depends on the clock is not read: a time of day alone, 'now', 'today'.
    """
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
        return _in_utc(time, zone if zoned else None)
    except (ValueError, OverflowError, KeyError, OSError):  # KeyError, OSError: no such zone
        return None


def _in_utc(time: datetime, zone: str | None) -> datetime:
    """Read a wall-clock time in a zone: Z, UTC, an offset such as +02:00, or a region's name."""
    if zone is None or zone in ("Z", "UTC", "GMT", "UT"):
        return time.replace(tzinfo=UTC)
    offset = _OFFSET.fullmatch(zone)
    if offset is None:
        return time.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    sign, hours, minutes = offset.groups()
    shift = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if int(minutes or 0) > 59 or shift > timedelta(hours=18):
        raise ValueError("no zone is that far away")
    return (time - shift if sign == "+" else time + shift).replace(tzinfo=UTC)


def _compare(op: type[exp.Expr], value: Scalar) -> ValueSet:
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
    makers: dict[str, Callable[..., ValueSet]] = {
        "string": strings_equal,
        "timestamp": times_equal,
        "number": numbers_equal,
    }
    return makers[kind](values)


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "timestamp" if isinstance(value, datetime) else "number"


def _show(value: Scalar | None) -> str:
    """A literal as SQL writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)


def _as_double(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _dotted(node: exp.Expr) -> str:
    if isinstance(node, exp.Dot):
        return f"{_dotted(node.this)}.{_dotted(node.expression)}"
    if isinstance(node, exp.Column):
        return ".".join(str(part.this) for part in node.parts)
    return str(node.this)


def _is_attribute(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Dot | exp.Identifier)


def _typed_literal(node: exp.Cast) -> bool:
    """TIMESTAMP '...' and DATE '...', which sqlglot reads as casts; not a cast that the user wrote."""
    return (
        type(node) is exp.Cast
        and not node.meta
        and isinstance(node.this, exp.Literal)
        and node.this.is_string
        and node.to.this in _TIME_TYPES
    )


def _position(node: exp.Expr) -> int | None:
    """Where a node starts: its own mark, or the first mark inside it or else inside its parent."""
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    if not starts and node.parent is not None:
        return _position(node.parent)
    return min(starts) if starts else None


def _check_tokens(text: str, tokens: list[Token]) -> None:
    """Refuse, before the parser sees it, what it would recurse into, split or silently skip."""
    if not tokens:
        raise FilterError("the filter is empty", allowed=ALLOWED)
    depth = 0
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        kind = token.token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if depth > FILTER_DEPTH:
            raise FilterError(
                "the filter is nested too deeply",
                text=text,
                position=token.start,
                allowed=f"up to {FILTER_DEPTH} levels of brackets",
            )
        if kind is TokenType.SEMICOLON:
            reason = "only one predicate is allowed, without ;"
        elif kind is TokenType.COMMA and following and following.token_type is TokenType.R_PAREN:
            reason = "a value is missing behind the comma"
        else:
            continue
        raise FilterError(reason, text=text, position=token.start, allowed=ALLOWED)


def _unreadable(text: str, error: TokenError) -> FilterError:
    """A text that is not even tokens: almost always a quote that is not closed."""
    place = re.search(r"Missing (\S+) from \d+:(\d+)", str(error.__cause__))
    if place is None:
        return FilterError("the predicate cannot be read", text=text, allowed=ALLOWED)
    return FilterError(f"{place[1]} is not closed", text=text, position=int(place[2]), allowed=ALLOWED)
