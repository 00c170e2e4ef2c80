"""The SQL spelling: a Spark SQL predicate, parsed with sqlglot, as an `Expression`.

Semantics are Spark SQL's, NULL included: an event's missing attribute is NULL. Allowed are comparisons
of one attribute with literals, IN, BETWEEN, LIKE and ILIKE (escape character backslash), IS [NOT] NULL,
lower and upper of an attribute with = <> IN LIKE, array_contains, exists over the elements of an array,
bare boolean attributes, TRUE, FALSE, NULL, AND, OR, NOT. Anything else is refused with its position.
Attribute names are matched with case, as JSON's are; backquotes take any name.

Types: an attribute has the type of the literals it is compared with. Within one filter it may not be
compared with two types, and with a schema it must be the schema's type (a string literal is read as a
time where the schema says timestamp, as Spark would). Where an event holds another type, the comparison
is NULL: Spark would fail the whole query there, which a broker cannot.
"""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, TokenError

from ramify.content.events.attributes import AttributeType
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
    some_element,
)
from ramify.content.filters.filters import Filter
from ramify.content.filters.limits import FILTER_DEPTH, FILTER_TEXT
from ramify.content.filters.sql_values import (
    EVERY_OF_KIND,
    as_double,
    case_codes,
    compared,
    equal_to,
    folded_codes,
    kind_of,
    like_values,
    read_time,
    spelled,
)
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    ONE_CHARACTER,
    StringTest,
    TestKind,
    glob,
    has_case,
)
from ramify.content.filters.values import (
    EVERY_ELEMENT,
    EVERY_VALUE,
    NO_VALUE,
    Number,
    Scalar,
    ValueSet,
    booleans,
    strings_equal,
    where_tests,
)
from ramify.content.filters.work import COMPILE_STEPS, Work
from ramify.errors import FilterError

__all__ = ["ALLOWED", "FILTER_TEXT", "parse_sql", "parse_sql_expression"]

ALLOWED = (
    "= <> != < <= > >= BETWEEN IN LIKE ILIKE IS [NOT] NULL AND OR NOT array_contains exists lower upper"
)

# how kinds are called that are not called as their type
_KINDS = {
    AttributeType.INT64: "number",
    AttributeType.DOUBLE: "number",
    AttributeType.STRINGS: "array of strings",
    AttributeType.NUMBERS: "array of numbers",
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
_SPARK_DATE = re.compile(r"(\d{4,6}(?:-\d{1,2})?$|\d{4,6}-\d{1,2}-\d{1,2}(?=$|[ T]))")


def parse_sql(
    text: str, schema: Mapping[str, AttributeType] | None = None, *, strict: bool = False
) -> Filter:
    """Parse a predicate to a filter. Raises FilterError with the text, the position and what is allowed.

    `strict` refuses a comparison with another type than the schema's: for rules, which would bar nothing.
    """
    expression = parse_sql_expression(text, schema, strict=strict)
    try:
        return compile_filter(expression)
    except FilterError as error:
        raise FilterError(error.reason, text=text, allowed=error.allowed) from None


def parse_sql_expression(
    text: str, schema: Mapping[str, AttributeType] | None = None, *, strict: bool = False
) -> Expression:
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
        reader = _Reader(text, {**CONTEXT_TYPES, **(schema or {})}, tokens, strict)
        tree = _tree(text, tokens, dialect)
        with Work(COMPILE_STEPS):
            return reader.predicate(tree)
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
    strict: bool = False
    kinds: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    # Inside exists: the name of the element, and the path of its array.
    element: tuple[str, str] | None = None

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
            case exp.Like() | exp.ILike():
                return self.like(node)
            case exp.ArrayContains():
                return self.array_contains(node)
            case exp.Exists() if isinstance(node.expression, exp.Lambda):
                return self.exists(node, node.expression)
        return self.refuse(node)

    def comparison(self, node: exp.Expr) -> Expression:
        left, right, op = node.this.unnest(), node.expression.unnest(), type(node)
        if _is_case_call(left) or _is_case_call(right):
            return self.case_comparison(left, right, op)
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
            path, f"{path} {_SYMBOL[op]} {spelled(value)}", kind_of(value), right, compared(op, value)
        )

    def case_comparison(self, left: exp.Expr, right: exp.Expr, op: type[exp.Expr]) -> Expression:
        """lower(s) = 'a' and the like: a test of the attribute inside."""
        if not _is_case_call(left):
            left, right = right, left
        if op not in (exp.EQ, exp.NEQ):
            self.refuse_case(left)
        if _is_attribute(right) or _is_case_call(right):
            self.fail("two attributes cannot be compared", right)
        path, shown = self.case_path(left)
        value = self.literal(right, None)
        if value is None:
            return Constant(None)
        values = self.case_values(left, [value], right)
        atom = self.atom(path, f"{shown} = {spelled(value)}", "string", right, values)
        return Not(atom) if op is exp.NEQ else atom

    def case_path(self, call: exp.Expr) -> tuple[str, str]:
        """The attribute inside lower or upper, and how the call is shown."""
        path = self.path(call.this.unnest())
        return path, f"{_case_name(call)}({path})"

    def case_values(self, call: exp.Expr, literals: list[Scalar], at: exp.Expr) -> ValueSet:
        """The strings whose lower or upper form is one of these."""
        tests: list[StringTest] = []
        for literal in literals:
            if not isinstance(literal, str):
                self.fail(f"{_case_name(call)} gives a string and is compared with {kind_of(literal)}", at)
            codes = case_codes(tuple(map(ord, literal)), upper=isinstance(call, exp.Upper))
            if codes is not None:
                tests.append(StringTest(TestKind.NOCASE, codes))
        if any(has_case(code) for test in tests for code in test.codes):
            return where_tests(tests)
        return strings_equal("".join(map(chr, test.codes)) for test in tests)

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
            shown = f"{path} {_SYMBOL[op]} {spelled(value)}"
            parts.append(self.atom(path, shown, kind_of(value), bound, compared(op, value)))
        return And(tuple(parts))

    def membership(self, node: exp.In) -> Expression:
        call = node.this.unnest()
        in_case = _is_case_call(call)
        path, name = self.case_path(call) if in_case else (self.attribute(node.this, "IN"), "")
        if node.args.get("query") is not None:
            self.refuse(node.args["query"])
        if not node.expressions:
            self.fail("IN needs a list of values in brackets", node.args.get("field") or node.this)
        found = [(item, self.literal(item, None if in_case else path)) for item in node.expressions]
        known = [(item, value) for item, value in found if value is not None]
        kinds = {kind_of(value) for _, value in known}
        if len(kinds) > 1:
            odd = next(item for item, value in known if kind_of(value) != kind_of(known[0][1]))
            self.fail(f"IN mixes {' and '.join(sorted(kinds))}", odd)
        if not known:
            return Constant(None)
        kind = kinds.pop()
        shown = f"{name or path} IN ({', '.join(spelled(value) for _, value in found)})"
        wanted = [value for _, value in known]
        values = self.case_values(call, wanted, known[0][0]) if in_case else equal_to(wanted)
        if len(known) == len(found):
            return self.atom(path, shown, kind, known[0][0], values)
        # With NULL in the list IN is TRUE or NULL, never FALSE.
        self.remember(path, kind, known[0][0])
        return Atom(path, shown, () if values.is_empty else (Constraint(scalars=values),), ())

    def like(self, node: exp.Like | exp.ILike) -> Expression:
        word = "ILIKE" if isinstance(node, exp.ILike) else "LIKE"
        call = node.this.unnest()
        in_case = _is_case_call(call)
        path, name = self.case_path(call) if in_case else (self.attribute(node.this, word), "")
        pattern = self.literal(node.expression, None)
        if pattern is None:
            return Constant(None)
        if not isinstance(pattern, str):
            self.fail(f"{word} needs one string", node.expression)
        codes: tuple[int, ...] | None = self.like_codes(pattern, node.expression)
        if word == "ILIKE" and codes is not None:  # lower(s) LIKE lower(pattern), whatever s is
            codes = folded_codes(codes)
        upper = isinstance(call, exp.Upper) and word == "LIKE"
        values = like_values(codes, in_case or word == "ILIKE", upper) if codes is not None else NO_VALUE
        atom = self.atom(
            path, f"{name or path} {word} {spelled(pattern)}", "string", node.expression, values
        )
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
        self.remember(path, f"array of {kind_of(value)}s", node.expression)
        values = equal_to([value])
        # FALSE only where every element was compared: one of another type, or null, leaves it unknown
        others = EVERY_ELEMENT.minus_plain(EVERY_OF_KIND[kind_of(value)]).union(values)
        assert others is not None, "sets without tests unite"
        return Atom(
            path,
            f"array_contains({path}, {spelled(value)})",
            (Constraint(arrays=ArraySet(some=frozenset([values]))),),
            (Constraint(arrays=ArraySet(none=frozenset([others]))),),
        )

    def exists(self, node: exp.Exists, condition: exp.Lambda) -> Expression:
        """exists(xs, x -> ...): some element of an array, or some object of one, satisfies a condition."""
        path = self.attribute(node.this, "exists")
        if self.element is not None:
            self.fail("exists inside exists is not allowed", node)
        if len(condition.expressions) != 1:
            self.fail("the condition of exists takes one name, such as x -> x > 5", node)
        name = str(condition.expressions[0].this)
        inner = replace(self, element=(name, path), kinds={}, schema={})
        body = inner.predicate(condition.this)
        shown = f"exists({path}, {name} -> {condition.this.sql(dialect='spark')})"
        try:
            return some_element(path, shown, body)
        except FilterError as error:
            self.fail(error.reason, node)

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
        false = [part.intersect(EVERY_OF_KIND[kind]) for part in values.complement()]
        return Atom(
            path,
            shown,
            (Constraint(scalars=values),) if not values.is_empty else (),
            tuple(Constraint(scalars=part) for part in false if not part.is_empty),
        )

    def remember(self, path: str, kind: str, at: exp.Expr) -> None:
        """Hold an attribute to one kind within the filter, and id, publisher and time to their own.

        What a schema says of an attribute is the type of most events: others may hold another, unless
        the caller is strict.
        """
        fixed = (self.schema if self.strict else CONTEXT_TYPES).get(path)
        if fixed is not None and _KINDS.get(fixed, fixed.value) != kind:
            self.fail(f"{path} is a {fixed.value} and is used as {kind}", at)
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
                if isinstance(inner, exp.TryCast) and self.has_suffix(inner):
                    return -self.suffixed(inner, path, negative=True)
                value = None if _is_attribute(inner) else self.literal(inner, path)
                if value is None or kind_of(value) != "number":
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

    def suffixed(self, node: exp.TryCast, path: str | None, negative: bool = False) -> Number:
        """A number with a type suffix: within that type's range, and rounded to it."""
        text = str(node.this.this)
        kind = node.to.this
        if kind is exp.DataType.Type.FLOAT:
            try:
                return float(struct.unpack("f", struct.pack("f", float(text)))[0])
            except OverflowError:
                self.fail(f"{text} does not fit a float", node)
        if kind is exp.DataType.Type.DOUBLE:
            return as_double(self.number(text, node, None))
        bits = _SUFFIX_BITS.get(kind)
        if bits is None:
            return self.number(text, node, path)
        number = self.number(text, node, None)
        if not (isinstance(number, int) and number - negative < 1 << (bits - 1)):
            self.fail(f"{text} does not fit {bits} bits", node)
        # beside a double, Spark compares the integer as one
        return as_double(number) if self.is_double(path) else number

    def is_double(self, path: str | None) -> bool:
        return path is not None and self.schema.get(path) is AttributeType.DOUBLE

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
        if self.is_double(path):
            number = as_double(number)
        elif (
            path is not None
            and isinstance(number, float)
            and number.is_integer()
            and "e" not in text.lower()
        ):
            self.fail(f"the fraction of {text} is lost in a double: write a whole number", node)
        if not math.isfinite(as_double(number)):
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
        if self.element is not None:
            path = self.below(path, node)
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            self.fail("* is not an attribute", node)
        return path

    def below(self, path: str, node: exp.Expr) -> str:
        """The path of what a condition inside exists names, which must be the element or its field."""
        assert self.element is not None, "only inside exists"
        name, array = self.element
        head, dot, rest = path.partition(".")
        if head != name:
            self.fail(f"inside exists only {name} and its fields may be named, not {path}", node)
        return f"{array}{dot}{rest}"

    def refuse(self, node: exp.Expr) -> NoReturn:
        """Refuse what has no place in a filter, by the name that the user knows it by."""
        if isinstance(node, exp.Query | exp.Exists):
            self.fail("a sub-query is not allowed", node, self.word("SELECT", node))
        if isinstance(node, exp.Literal):
            self.fail("a literal is not a predicate", node)
        if _is_case_call(node):
            self.refuse_case(node)
        shown = _OTHER_NAMES.get(type(node))
        if shown is None and isinstance(node, exp.Func):
            name = (str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name()).upper()
            self.fail(f"unknown function {name}", node, self.word(name, node))
        shown = shown or node.key.upper()
        self.fail(f"{shown} is not allowed", node, self.word(shown, node))

    def refuse_case(self, call: exp.Expr) -> NoReturn:
        name = _case_name(call)
        self.fail(f"{name} is only allowed with = <> IN and LIKE", call, self.word(name.upper(), call))

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


def _case_name(call: exp.Expr) -> str:
    return "upper" if isinstance(call, exp.Upper) else "lower"


def _is_case_call(node: exp.Expr) -> bool:
    """lower(s) or upper(s) of an attribute."""
    return (
        isinstance(node, exp.Lower | exp.Upper)
        and isinstance(node.this, exp.Expr)
        and _is_attribute(node.this.unnest())
    )


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
