"""String tests that the interval algebra cannot express, and how each is evaluated.

A `StringTest` is one opaque question about a string: does it match a glob, equal another without regard
to case, lie in a CIDR block. The algebra never looks inside; it only knows that equal tests have equal
answers, that a test and its negation exclude each other, and how to evaluate a test on a known string.
The matcher's kernels evaluate the same tests from `StringTest.codes`; both are tested against each other.

Globs, unlike SQL and EventBridge, are one thing here: code points, `ANY_CHARACTERS` (a run of any
length, `%` or `*`) and `ONE_CHARACTER` (exactly one code point, `_`).
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from ramify.content.filters.work import charge

__all__ = [
    "ANY_CHARACTERS",
    "ONE_CHARACTER",
    "StringTest",
    "TestKind",
    "cidr",
    "fold",
    "glob",
    "glob_of",
    "has_case",
    "ignore_case",
    "literal_pieces",
    "literal_prefix",
    "may_be_implied",
    "nocase_glob",
]

ANY_CHARACTERS = -1
ONE_CHARACTER = -2


class TestKind(IntEnum):
    """What a test asks; the numbers are the opcodes of the matcher's kernel."""

    __test__ = False  # not a test case, whatever its name

    GLOB = 1
    NOCASE = 2
    NOCASE_PREFIX = 3
    NOCASE_SUFFIX = 4
    CIDR4 = 5
    CIDR6 = 6
    NOCASE_GLOB = 7


_CIDR = frozenset({TestKind.CIDR4, TestKind.CIDR6})


@dataclass(frozen=True, slots=True, order=True)
class StringTest:
    """One opaque question about a string.

    `codes` are code points with ANY and ONE for a glob; folded code points for the case-less kinds, with
    ANY and ONE for a case-less glob; (network, prefix bits) for CIDR4; (high 64 bits, low 64 bits, prefix
    bits) for CIDR6.
    """

    kind: TestKind
    codes: tuple[int, ...]

    def holds(self, text: str) -> bool:
        """Evaluate on one string. Linear for all kinds but globs, which take O(len(text) * len(codes))."""
        match self.kind:
            case TestKind.GLOB:
                return _glob_holds(self.codes, [ord(c) for c in text])
            case TestKind.NOCASE_GLOB:
                return _glob_holds(self.codes, fold(text))
            case TestKind.NOCASE:
                return fold(text) == self.codes
            case TestKind.NOCASE_PREFIX:
                return fold(text)[: len(self.codes)] == self.codes
            case TestKind.NOCASE_SUFFIX:
                return not self.codes or fold(text)[-len(self.codes) :] == self.codes
            case _:
                return _cidr_holds(self, text)

    def implies(self, other: "StringTest") -> bool:
        """True only when every string that passes this test passes `other`: sound, not complete."""
        if self == other:
            return True
        if self.kind in _CIDR or other.kind in _CIDR:
            return self.kind is other.kind and _cidr_implies(self, other)
        if self.kind is not TestKind.GLOB and other.kind is TestKind.GLOB:
            return False  # a spelling in another case passes this test and not the other
        mine, asked = self._shape, other._shape
        # the other's longest piece is letters that stand side by side in this one, if anything is implied
        if asked.longest not in (mine.text if other.kind is TestKind.GLOB else mine.folded):
            return False
        codes = mine.codes if other.kind is TestKind.GLOB else mine.folded_codes
        charge(1 + len(codes) // 16)
        return _glob_implies(codes, asked.codes)

    def describe(self) -> str:
        """A short human form."""
        if self.kind is TestKind.GLOB:
            return f"matches {_show(self.codes)!r}"
        if self.kind is TestKind.NOCASE_GLOB:
            return f"matches {_show(self.codes)!r} in any case"
        if self.kind in (TestKind.CIDR4, TestKind.CIDR6):
            return f"in {_network(self)}"
        word = {TestKind.NOCASE: "equals", TestKind.NOCASE_PREFIX: "starts with"}.get(
            self.kind, "ends with"
        )
        return f"{word} {_show(self.codes)!r} in any case"

    @property
    def _shape(self) -> "_Shape":
        return _shape(self)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A test as a glob, and what a quick comparison of two globs needs: see `StringTest.implies`."""

    codes: tuple[int, ...]
    folded_codes: tuple[int, ...]
    # the letters, with a character that no string holds in place of ANY and ONE
    text: str
    folded: str
    # the longest run of letters
    longest: str


_GAP = "\ud800"


@lru_cache(maxsize=4096)
def _shape(test: StringTest) -> _Shape:
    codes = glob_of(test)
    folded = tuple(c if c < 0 else _fold_char(chr(c)) for c in codes)
    longest = max(literal_pieces(codes), key=len, default=())
    return _Shape(codes, folded, _spelled(codes), _spelled(folded), _spelled(longest))


def _spelled(codes: Sequence[int]) -> str:
    return "".join(_GAP if c < 0 else chr(c) for c in codes)


def glob_of(test: StringTest) -> tuple[int, ...]:
    """The codes of a test that is no CIDR block, as a glob (of folded text for the case-less kinds)."""
    match test.kind:
        case TestKind.NOCASE_PREFIX:
            return (*test.codes, ANY_CHARACTERS)
        case TestKind.NOCASE_SUFFIX:
            return (ANY_CHARACTERS, *test.codes)
        case _:
            return test.codes


def literal_pieces(codes: Sequence[int]) -> list[tuple[int, ...]]:
    """The runs of letters between the ANYs and ONEs of a glob, in order."""
    pieces: list[tuple[int, ...]] = []
    start = 0
    for k in range(len(codes) + 1):
        if k == len(codes) or codes[k] < 0:
            if k > start:
                pieces.append(tuple(codes[start:k]))
            start = k + 1
    return pieces


def may_be_implied(asked: StringTest, by: frozenset[StringTest]) -> bool:
    """False only when no test of `by` implies the asked one: a quick look at all of them at once."""
    if asked.kind in _CIDR:
        return any(test.kind is asked.kind for test in by)
    return _shape(asked).longest in _texts(by)[asked.kind is not TestKind.GLOB]


@lru_cache(maxsize=256)
def _texts(tests: frozenset[StringTest]) -> tuple[str, str]:
    """The letters of all tests as they are written, and folded."""
    shapes = [_shape(test) for test in tests if test.kind not in _CIDR]
    return _GAP.join(shape.text for shape in shapes), _GAP.join(shape.folded for shape in shapes)


def glob(codes: Sequence[int]) -> tuple[int, ...]:
    """Normalise a glob: runs of ANY and ONE become ONE..ONE ANY, so that equal globs compare equal."""
    out: list[int] = []
    i = 0
    while i < len(codes):
        if codes[i] >= 0:
            out.append(codes[i])
            i += 1
            continue
        j = i
        while j < len(codes) and codes[j] < 0:
            j += 1
        run = codes[i:j]
        out += [ONE_CHARACTER] * run.count(ONE_CHARACTER) + (
            [ANY_CHARACTERS] if ANY_CHARACTERS in run else []
        )
        i = j
    return tuple(out)


def literal_prefix(codes: Sequence[int]) -> str:
    """The literal text before the first ANY or ONE."""
    out = []
    for code in codes:
        if code < 0:
            break
        out.append(chr(code))
    return "".join(out)


def ignore_case(text: str, kind: TestKind) -> StringTest:
    """A case-less equality, prefix or suffix test."""
    return StringTest(kind, fold(text))


def nocase_glob(codes: Sequence[int]) -> StringTest:
    """The case-less test of a normal glob of folded code points, in its simplest kind."""
    if ANY_CHARACTERS not in codes and ONE_CHARACTER not in codes:
        return StringTest(TestKind.NOCASE, tuple(codes))
    if min(codes[:-1], default=0) >= 0 and codes[-1] == ANY_CHARACTERS:
        return StringTest(TestKind.NOCASE_PREFIX, tuple(codes[:-1]))
    if min(codes[1:], default=0) >= 0 and codes[0] == ANY_CHARACTERS:
        return StringTest(TestKind.NOCASE_SUFFIX, tuple(codes[1:]))
    return StringTest(TestKind.NOCASE_GLOB, tuple(codes))


def has_case(code: int) -> bool:
    """Whether another character folds to the same as this one."""
    c = chr(code)
    return _fold_char(c) != code or (
        len(c.upper()) == 1 and c.upper() != c and _fold_char(c.upper()) == code
    )


def fold(text: str) -> tuple[int, ...]:
    """Fold case one code point at a time, so that lengths never change.

    EventBridge compares the upper and lower form of each character; characters whose other case is
    several characters long (such as the German sharp s) only equal themselves.
    """
    return tuple(_fold_char(c) for c in text)


def cidr(block: str) -> StringTest:
    """A test for IPv4 or IPv6 addresses in `block`; raises ValueError when it is not a CIDR block.

    As in EventBridge the prefix length is a number below 32 or 128. Host bits are dropped.
    """
    address, slash, bits = block.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()):
        raise ValueError("it needs a prefix length, such as 10.0.0.0/24")
    if "%" in address:
        raise ValueError("a zone is not allowed")
    network = ipaddress.ip_network(block, strict=False)
    if network.prefixlen == network.max_prefixlen:
        raise ValueError(
            f"the prefix length must be below {network.max_prefixlen}: match the address itself"
        )
    first = int(network.network_address)
    if network.version == 4:
        return StringTest(TestKind.CIDR4, (first, network.prefixlen))
    return StringTest(TestKind.CIDR6, (first >> 64, first & (2**64 - 1), network.prefixlen))


def _fold_char(c: str) -> int:
    low = c.lower()
    if len(low) == 1 and low.upper() == c:
        return ord(low)
    return ord(c)


def _glob_holds(codes: Sequence[int], text: Sequence[int]) -> bool:
    """Greedy two-pointer match that returns to the last ANY only, so no exponential backtracking."""
    i = j = 0
    star = mark = -1
    while i < len(text):
        if j < len(codes) and (codes[j] == text[i] or codes[j] == ONE_CHARACTER):
            i += 1
            j += 1
        elif j < len(codes) and codes[j] == ANY_CHARACTERS:
            star, mark = j, i
            j += 1
        elif star >= 0:
            mark += 1
            i, j = mark, star + 1
        else:
            return False
    while j < len(codes) and codes[j] == ANY_CHARACTERS:
        j += 1
    return j == len(codes)


def _glob_implies(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether glob `a` is contained in glob `b`: match `b` against `a` read as a text.

    ANY of `b` may swallow anything of `a`; ONE of `b` swallows a letter or ONE of `a`. Sound because each
    step maps every string of `a` to a parse of `b`.
    """
    # bit j of a mask: the symbol stands at j in b; of `reach`: the part of a read so far fits b[:j]
    masks: dict[int, int] = {}
    for j, symbol in enumerate(b):
        masks[symbol] = masks.get(symbol, 0) | 1 << j
    anys, ones = masks.get(ANY_CHARACTERS, 0), masks.get(ONE_CHARACTER, 0)
    reach = _skip_any(anys, 1)
    for symbol in a:
        after = reach & anys
        if symbol != ANY_CHARACTERS:
            after |= (reach & (masks.get(symbol, 0) | ones)) << 1
        if not after:
            return False
        reach = _skip_any(anys, after)
    return reach >> len(b) & 1 == 1


def _skip_any(anys: int, reach: int) -> int:
    """Close `reach` under passing an ANY that swallows nothing."""
    while (more := reach | (reach & anys) << 1) != reach:
        reach = more
    return reach


def _address(text: str) -> tuple[int, int] | None:
    """(version, number) of an address, or None. Zone ids and IPv4 octets with leading zeros are not."""
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.version, int(address)


def _cidr_holds(test: StringTest, text: str) -> bool:
    parsed = _address(text)
    if parsed is None:
        return False
    version, number = parsed
    if test.kind is TestKind.CIDR4:
        first, bits = test.codes
        return version == 4 and number >> (32 - bits) == first >> (32 - bits)
    high, low, bits = test.codes
    return version == 6 and number >> (128 - bits) == ((high << 64) | low) >> (128 - bits)


def _network(test: StringTest) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if test.kind is TestKind.CIDR4:
        return ipaddress.IPv4Network((test.codes[0], test.codes[1]))
    return ipaddress.IPv6Network(((test.codes[0] << 64) | test.codes[1], test.codes[2]))


def _cidr_implies(a: StringTest, b: StringTest) -> bool:
    inner, outer = _network(a), _network(b)
    return outer.prefixlen <= inner.prefixlen and int(inner.network_address) >> (
        inner.max_prefixlen - outer.prefixlen
    ) == int(outer.network_address) >> (outer.max_prefixlen - outer.prefixlen)


def _show(codes: Sequence[int]) -> str:
    return "".join("*" if c == ANY_CHARACTERS else "?" if c == ONE_CHARACTER else chr(c) for c in codes)
