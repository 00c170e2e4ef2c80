"""Regular expressions that are globs: the part of them that string tests can decide.

A filter must be decided by intervals and string tests, and there is no test for all regular expressions.
Many that people write are a few globs: `(cmd|powershell)\\.exe$` is `*cmd.exe` or `*powershell.exe`. Those
are read here, exactly as a search with them would find (PCRE, Python's `re.search`):

    letters, escaped punctuation, \\t \\n \\r     themselves
    [abc], [0-3]                              one glob each
    (a|b), (?:a|b), a|b, x?                   one glob for each way
    ^ and $                                   at the ends; $ also stands before a final newline
    .* .+ .                                   with the flag s. Without it a dot is no newline, which no
                                              glob says; a .* at an end that is open says nothing

Anything else is refused with the reason.
"""

from dataclasses import dataclass
from itertools import product
from typing import NoReturn

from ramify.content.filters.limits import FILTER_DEPTH
from ramify.content.filters.strings import ANY_CHARACTERS, ONE_CHARACTER, glob
from ramify.content.filters.work import charge
from ramify.errors import FilterError

__all__ = ["MAX_REGEX_GLOBS", "regex_globs"]

MAX_REGEX_GLOBS = 64
"""How many globs a regular expression may be."""

_ALLOWED = "letters, escaped punctuation, [abc], (a|b), x?, ^ and $ at the ends; . .* .+ with the flag s"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r"}
# Beside the codes of globs: a run without a newline, one character that is no newline, ^ and $.
_LINE_RUN, _LINE_ONE, _START, _END = -3, -4, -5, -6

_Ways = list[list[int]]
"""The texts that a part may stand for, as codes."""


def regex_globs(regex: str, dot_all: bool = False) -> list[tuple[int, ...]]:
    """The globs of which one matches a string iff the regular expression is found in it.

    Raises FilterError, with the place, for an expression that globs cannot say.
    """
    reader = _RegexReader(regex, dot_all)
    ways = reader.either(0)
    if reader.place < len(regex):
        reader.fail("a bracket closes that was not opened")
    return list(dict.fromkeys(glob(codes) for way in ways for codes in reader.anchored(way)))


@dataclass(slots=True)
class _RegexReader:
    text: str
    dot_all: bool
    # Where the character stands that is read next.
    place: int = 0

    def either(self, depth: int) -> _Ways:
        """Branches between bars."""
        if depth > FILTER_DEPTH:
            self.fail("the regular expression is nested too deeply")
        ways = self.branch(depth)
        while self.takes("|"):
            ways = self.bounded([*ways, *self.branch(depth)])
        return ways

    def branch(self, depth: int) -> _Ways:
        ways: _Ways = [[]]
        while self.next and self.next not in "|)":
            ways = self.joined(ways, self.quantified(self.one(depth)))
        return ways

    def one(self, depth: int) -> _Ways:
        """A character, a class or a group."""
        c = self.next
        if c in "*+?{":
            self.fail(f"nothing stands before {c}")
        self.place += 1
        match c:
            case ".":
                return [[ONE_CHARACTER if self.dot_all else _LINE_ONE]]
            case "^":
                return [[_START]]
            case "$":
                return [[_END]]
            case "[":
                return self.char_class()
            case "(":
                return self.group(depth)
            case "\\":
                return [[ord(self.escape())]]
            case _:
                return [[ord(c)]]

    def group(self, depth: int) -> _Ways:
        if self.next == "?":
            if not self.text.startswith("?:", self.place):
                self.fail("looking around, flags and names in groups are not globs")
            self.place += 2
        ways = self.either(depth + 1)
        if not self.takes(")"):
            self.fail("a bracket is not closed")
        return ways

    def char_class(self) -> _Ways:
        if self.next in ("^", "]", ""):
            self.fail("a class that excludes, or is empty, is not a glob")
        found: list[str] = []
        while not self.takes("]"):
            low = self.class_member()
            if self.next == "-" and not self.text.startswith("-]", self.place):
                self.place += 1
                high = self.class_member()
                if not 0 <= ord(high) - ord(low) < MAX_REGEX_GLOBS:
                    self.fail(f"the class {low}-{high} is of too many characters, or of none")
                found += map(chr, range(ord(low), ord(high) + 1))
            else:
                found.append(low)
        return self.bounded([[ord(c)] for c in dict.fromkeys(found)])

    def class_member(self) -> str:
        c = self.next
        if c in ("", "["):
            self.fail("a class is not closed, or has a class inside")
        self.place += 1
        return self.escape() if c == "\\" else c

    def escape(self) -> str:
        c = self.next
        if not c or (c.isalnum() and c not in _CONTROLS) or not c.isascii():
            self.fail(f"\\{c} is not one character")
        self.place += 1
        return _CONTROLS.get(c, c)

    def quantified(self, ways: _Ways) -> _Ways:
        """The part with its quantifier, which is free only behind a dot."""
        c = self.next
        if c not in ("*", "+", "?", "{"):
            return ways
        dot = ways[0][0] if len(ways) == 1 and len(ways[0]) == 1 else 0
        run = {ONE_CHARACTER: ANY_CHARACTERS, _LINE_ONE: _LINE_RUN}.get(dot)
        if c == "{" or (c in "*+" and run is None):
            self.fail(f"{c} behind anything but a dot is not a glob")
        self.place += 1
        if self.next in ("+", "*", "{"):
            self.fail("two quantifiers stand behind each other")
        self.takes("?")  # lazy or not, the same strings are found
        if c == "?":
            return self.bounded([*ways, []])
        assert run is not None, "refused above"
        return [[run]] if c == "*" else [[dot, run]]

    def anchored(self, way: list[int]) -> list[tuple[int, ...]]:
        """One way as globs of the whole string."""
        starts, ends = way[:1] == [_START], way[-1:] == [_END]
        codes = way[starts : len(way) - ends]
        # An open end may hold anything, so a run there says nothing.
        while not starts and codes[:1] == [_LINE_RUN]:
            codes = codes[1:]
        while not ends and codes[-1:] == [_LINE_RUN]:
            codes = codes[:-1]
        if _START in codes or _END in codes:
            self.fail("^ and $ are globs at the ends only")
        if _LINE_RUN in codes or _LINE_ONE in codes:
            self.fail("without the flag s a dot is no newline, and globs know no such character")
        before = [] if starts else [ANY_CHARACTERS]
        if not ends:
            return [(*before, *codes, ANY_CHARACTERS)]
        return [(*before, *codes), (*before, *codes, ord("\n"))]

    def joined(self, ways: _Ways, more: _Ways) -> _Ways:
        charge(1 + len(ways) * len(more) // 4)
        if len(more) == 1:  # in place: a long text is not copied for each of its letters
            for way in ways:
                way += more[0]
            return ways
        return self.bounded([[*one, *other] for one, other in product(ways, more)])

    def bounded(self, ways: _Ways) -> _Ways:
        """The ways, if they are not too many."""
        if len(ways) > MAX_REGEX_GLOBS:
            self.fail(f"the regular expression is more than {MAX_REGEX_GLOBS} globs")
        return ways

    @property
    def next(self) -> str:
        """The next character, empty at the end."""
        return self.text[self.place : self.place + 1]

    def takes(self, c: str) -> bool:
        """Pass the next character, if it is this one."""
        if self.next != c:
            return False
        self.place += 1
        return True

    def fail(self, reason: str) -> NoReturn:
        raise FilterError(reason, text=self.text, position=self.place, allowed=_ALLOWED)
