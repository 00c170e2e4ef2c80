"""What a field of a Sigma rule asks: its modifiers and listed values, as an `Expression`.

Owns the modifiers (Sigma specification 2.1, "Sigma Modifiers"), wildcards and their escapes. Rules and
conditions are in `sigma`.

What a value means
    strings    in any case, unless `cased`; * is any run, ? one character, a backslash escapes them
    numbers    the number, or a string that is its text: 4688 and "4688" match each other, either way
    * alone    any value that is not null
    null       the field is absent or null
    exists     the field is there, empty or null too
    arrays     match where an element does
A field is TRUE or FALSE, never unknown: what is not there is not matched.
"""

import ipaddress
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NoReturn

from ramify.content.filters.constraints import EVERY_ARRAY, ArraySet, Constraint
from ramify.content.filters.expressions import And, Atom, Expression, found
from ramify.content.filters.filters import unite
from ramify.content.filters.pattern import glob_match
from ramify.content.filters.regex_globs import regex_globs
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    ONE_CHARACTER,
    StringTest,
    TestKind,
    fold,
    glob,
    has_case,
    nocase_glob,
)
from ramify.content.filters.values import (
    EVERY_VALUE,
    NULL_ELEMENT,
    ValueSet,
    booleans,
    number_above,
    number_below,
    numbers_equal,
    where_tests,
)
from ramify.content.filters.work import charge
from ramify.errors import FilterError

__all__ = ["MODIFIERS", "field_expression"]

_Glob = tuple[int, ...]
_Match = ValueSet | StringTest | Constraint

_COMPARISONS: Mapping[str, Callable[[int | float], ValueSet]] = {
    "gt": lambda number: number_above(number, False),
    "gte": lambda number: number_above(number, True),
    "lt": lambda number: number_below(number, False),
    "lte": lambda number: number_below(number, True),
}
_ENCODINGS = {"utf16le": "utf-16-le", "wide": "utf-16-le", "utf16be": "utf-16-be", "utf16": "utf-16-le"}
_TEXTS = ("contains", "startswith", "endswith", "windash", "base64", "base64offset", *_ENCODINGS)
_KINDS = ("re", "cidr", "exists", *_COMPARISONS)
_FLAGS = ("all", "cased")
_REGEX_FLAGS = {"i": "i", "ignorecase": "i", "s": "s", "dotall": "s", "m": "m", "multiline": "m"}
MODIFIERS = ", ".join((*_TEXTS, *_FLAGS, *_KINDS))
_REFUSED = {
    "fieldref": "compares two fields of an event, and a filter compares fields with values",
    "expand": "stands for values that are not in the rule: write them into the rule",
    "neq": "can be said by a selection of its own, with not before it in the condition",
}
_DASHES = "-/\u2013\u2014\u2015"
_MOST_DASHES = 3
_NEVER_ARRAYS = frozenset({"id", "publisher"})
_PRESENT = Constraint(null=True, scalars=EVERY_VALUE, arrays=EVERY_ARRAY)
_NULL = Constraint(absent=True, null=True, arrays=ArraySet(some=frozenset([NULL_ELEMENT])))


def field_expression(path: str, modifiers: Sequence[str], value: Any, name: str) -> Expression:
    """`value`, or any of a list (with `all`: each of it), asked of the attribute at `path`.

    `name` is the field with its modifiers as the rule has it. Raises FilterError.
    """
    return _SigmaField(path, name, tuple(modifiers)).expression(value)


@dataclass(frozen=True, slots=True)
class _SigmaField:
    path: str
    name: str
    modifiers: tuple[str, ...]

    def expression(self, value: Any) -> Expression:
        self.check_modifiers()
        listed = value if isinstance(value, list) else [value]
        if not listed:
            self.fail("an empty list matches nothing", "a value, or a list of values")
        matches = [self.matches(item) for item in listed]
        if "all" not in self.modifiers or len(listed) == 1:
            return self.atom(value, [match for each in matches for match in each])
        return And(tuple(self.atom(item, each) for item, each in zip(listed, matches, strict=True)))

    def check_modifiers(self) -> None:
        kinds = [modifier for modifier in self.modifiers if modifier in _KINDS]
        for modifier in self.modifiers:
            if modifier in _REFUSED:
                self.fail(f"{modifier} {_REFUSED[modifier]}", MODIFIERS)
            if modifier in _REGEX_FLAGS and "re" in kinds:
                continue
            if modifier not in (*_TEXTS, *_FLAGS, *_KINDS):
                self.fail(f"unknown modifier {modifier!r}", MODIFIERS)
            if kinds and modifier in (*_TEXTS, "cased"):
                self.fail(f"{modifier} cannot stand beside {kinds[0]}", f"{kinds[0]} alone, or with all")
        if len(kinds) > 1:
            self.fail(f"{kinds[0]} and {kinds[1]} cannot stand together", "one of them")

    def atom(self, shown: Any, matches: Sequence[_Match]) -> Atom:
        """TRUE where one of the matches holds, FALSE everywhere else."""
        parts = [match for match in matches if isinstance(match, Constraint)]
        parts += [found(match) for match in matches if isinstance(match, ValueSet)]
        tests = {match for match in matches if isinstance(match, StringTest)}
        if tests:
            parts.append(found(where_tests(tests)))
        if self.path in _NEVER_ARRAYS:
            parts = [replace(part, arrays=None) for part in parts]
        text = f"{self.name}: {json.dumps(shown, ensure_ascii=False)}"
        return Atom(self.path, text, tuple(unite(parts)), None)

    def matches(self, item: Any) -> list[_Match]:
        """What one listed value accepts: any of these."""
        charge(1)
        kind = next((modifier for modifier in self.modifiers if modifier in _KINDS), None)
        if kind == "exists":
            if not isinstance(item, bool):
                self.fail("exists takes true or false", "true, false")
            return [_PRESENT if item else Constraint(absent=True)]
        if kind is not None and kind in _COMPARISONS:
            return [_COMPARISONS[kind](self.number(item, f"{kind} takes a number"))]
        if kind == "cidr":
            return [self.cidr(self.string(item, kind))]
        if kind == "re":
            return list(self.regex(self.string(item, kind)))
        return self.plain(item)

    def plain(self, item: Any) -> list[_Match]:
        """A value without a modifier that changes what kind of test it is."""
        texts = [modifier for modifier in self.modifiers if modifier in _TEXTS]
        if item is None:
            if texts:
                self.fail(f"{texts[0]} takes text, not null", "null without a modifier")
            return [_NULL]
        if not isinstance(item, str | bool | int | float):
            self.fail("a value is a string, a number, true, false or null", "no lists or maps inside")
        if texts:
            return [self.string_match(codes) for codes in self.texts(_spelled(item), texts)]
        found_text = self.string_match(_glob_codes(_spelled(item)))
        scalar = _scalar(item)
        if isinstance(scalar, bool):
            return [booleans(scalar), found_text]
        if isinstance(scalar, int | float):
            return [numbers_equal([self.number(scalar, "")]), found_text]
        return [found_text]

    def texts(self, text: str, modifiers: Sequence[str]) -> list[_Glob]:
        """The globs that a text becomes when its modifiers are applied, one after the other."""
        forms: list[_Glob | bytes] = [_glob_codes(text)]
        for modifier in modifiers:
            forms = [after for form in forms for after in self.transformed(form, modifier)]
        return [glob(self.codes(form)) for form in forms]

    def transformed(self, form: _Glob | bytes, modifier: str) -> Sequence[_Glob | bytes]:
        if modifier in _ENCODINGS:
            mark = b"\xff\xfe" if modifier == "utf16" else b""
            return [mark + self.raw(self.codes(form), modifier).decode().encode(_ENCODINGS[modifier])]
        if modifier == "base64":
            return [b64encode(self.raw(form, modifier))]
        if modifier == "base64offset":
            return self.offsets(self.raw(form, modifier))
        codes = self.codes(form)
        if modifier == "windash":
            return self.dashes(codes)
        before = () if modifier == "startswith" else (ANY_CHARACTERS,)
        after = () if modifier == "endswith" else (ANY_CHARACTERS,)
        return [(*before, *codes, *after)]

    def raw(self, form: _Glob | bytes, modifier: str) -> bytes:
        """What is encoded next: text in UTF-8, or what was encoded before."""
        if isinstance(form, bytes):
            return form
        if any(code < 0 for code in form):
            self.fail(f"{modifier} cannot encode a wildcard", "text without * and ?; contains behind it")
        return "".join(map(chr, form)).encode()

    def codes(self, form: _Glob | bytes) -> _Glob:
        if not isinstance(form, bytes):
            return form
        try:
            return tuple(map(ord, form.decode()))
        except UnicodeDecodeError:
            self.fail("the encoded value is not text: no event holds it", "base64 or base64offset behind")

    def offsets(self, data: bytes) -> list[bytes]:
        """The characters of Base64 that are sure when 0, 1 or 2 unknown bytes stand before the data.

        A character holds 6 bits: those that share bits with bytes before or behind are left out.
        """
        forms = []
        for shift in range(3):
            whole = b64encode(b"\0" * shift + data)
            forms.append(whole[-(-shift * 8 // 6) : (shift + len(data)) * 8 // 6])
        if not all(forms):
            self.fail("the value is too short for base64offset", "at least 2 bytes")
        return forms

    def dashes(self, codes: _Glob) -> list[_Glob]:
        """Every form of the dashes that begin a word, as command lines of Windows take them."""
        places = [k for k in range(len(codes)) if _begins_option(codes, k)]
        if len(places) > _MOST_DASHES:
            self.fail(f"windash on {len(places)} dashes has too many forms", f"up to {_MOST_DASHES} dashes")
        charge(4 * len(_DASHES) ** len(places))
        forms = []
        for chosen in product(_DASHES, repeat=len(places)):
            form = list(codes)
            for place, dash in zip(places, chosen, strict=True):
                form[place] = ord(dash)
            forms.append(tuple(form))
        return forms

    def string_match(self, codes: _Glob, cased: bool | None = None) -> ValueSet | StringTest:
        """The strings that match a glob, in any case unless the field is cased."""
        cased = "cased" in self.modifiers if cased is None else cased
        if codes == (ANY_CHARACTERS,):
            return EVERY_VALUE
        folded = tuple(code if code < 0 else fold(chr(code))[0] for code in codes)
        if not cased and any(code >= 0 and has_case(code) for code in folded):
            return nocase_glob(folded)
        return glob_match(codes)

    def regex(self, text: str) -> list[ValueSet | StringTest]:
        flags = {_REGEX_FLAGS[modifier] for modifier in self.modifiers if modifier in _REGEX_FLAGS}
        if "m" in flags:
            self.fail("re with the flag m looks at lines, and a filter at whole values", "re, re|i, re|s")
        try:
            globs = regex_globs(text, "s" in flags)
        except FilterError as error:
            raise FilterError(
                f"{self.name}: this regular expression cannot be decided: {error.reason}",
                text=text,
                position=error.position,
                allowed=error.allowed,
            ) from None
        every = replace(EVERY_VALUE, numbers=(), booleans=(), times=())
        return [
            every if codes == (ANY_CHARACTERS,) else self.string_match(codes, "i" not in flags)
            for codes in globs
        ]

    def cidr(self, block: str) -> StringTest:
        try:
            network = ipaddress.ip_network(block, strict=False)
        except ValueError as error:
            self.fail(f"{block!r} is not a CIDR block ({error})", "such as 10.0.0.0/8 or fe80::/10")
        if "%" in block:
            self.fail("a block has no zone", "such as fe80::/10")
        first, bits = int(network.network_address), network.prefixlen
        if network.version == 4:
            return StringTest(TestKind.CIDR4, (first, bits))
        return StringTest(TestKind.CIDR6, (first >> 64, first & (2**64 - 1), bits))

    def number(self, item: Any, wanted: str) -> int | float:
        if isinstance(item, bool) or not isinstance(item, int | float):
            self.fail(wanted, "a number, without quotes")
        if not abs(item) <= sys.float_info.max:
            self.fail("a number does not fit a double", "numbers up to 1.7e308")
        return item

    def string(self, item: Any, modifier: str) -> str:
        if not isinstance(item, str):
            self.fail(f"{modifier} takes a string", "text in quotes")
        return item

    def fail(self, reason: str, allowed: str) -> NoReturn:
        raise FilterError(f"{self.name}: {reason}", allowed=allowed)


def _glob_codes(text: str) -> _Glob:
    """Read * and ?. A backslash escapes them and itself; before anything else it is a backslash."""
    codes: list[int] = []
    k = 0
    while k < len(text):
        c = text[k]
        if c == "\\" and text[k + 1 : k + 2] in ("*", "?", "\\"):
            k += 1
            codes.append(ord(text[k]))
        else:
            codes.append({"*": ANY_CHARACTERS, "?": ONE_CHARACTER}.get(c, ord(c)))
        k += 1
    return glob(codes)


def _spelled(item: str | bool | int | float) -> str:
    return item if isinstance(item, str) else json.dumps(item)


def _scalar(item: str | bool | int | float) -> str | bool | int | float:
    """The number or boolean that a text spells as JSON does, else the text itself."""
    if not isinstance(item, str):
        return item
    if item.lower() in ("true", "false"):
        return item.lower() == "true"
    try:
        number = float(item) if "." in item or "e" in item else int(item)
    except ValueError:
        return item
    return number if _spelled(number) == item else item


def _begins_option(codes: _Glob, k: int) -> bool:
    """Whether a dash stands at k, a word behind it, and no word before it."""
    if codes[k] < 0 or chr(codes[k]) not in _DASHES:
        return False
    return not _is_word(codes[k - 1 : k]) and _is_word(codes[k + 1 : k + 2])


def _is_word(codes: _Glob) -> bool:
    return any(code >= 0 and (chr(code).isalnum() or chr(code) == "_") for code in codes)
