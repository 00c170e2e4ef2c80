"""String tests: globs against regular expressions, case folding letter by letter, CIDR blocks."""

import ipaddress
import itertools
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import like_regex, same_letters
from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    ONE_CHARACTER,
    StringTest,
    TestKind,
    cidr,
    fold,
    glob,
    has_case,
    ignore_case,
    literal_prefix,
    may_be_implied,
    nocase_glob,
)

TEXTS = st.text("abB\0é", max_size=6)
CODES = st.lists(st.sampled_from([ANY_CHARACTERS, ONE_CHARACTER, ord("a"), ord("b"), 0]), max_size=6)


def as_regex(codes: list[int]) -> re.Pattern[str]:
    return like_regex(
        [("%",) if c == ANY_CHARACTERS else ("_",) if c == ONE_CHARACTER else chr(c) for c in codes]
    )


@given(CODES, TEXTS)
def test_globs_match_as_their_regular_expression(codes: list[int], text: str) -> None:
    test = StringTest(TestKind.GLOB, glob(codes))
    assert test.holds(text) == (as_regex(codes).fullmatch(text) is not None)


@given(CODES, TEXTS)
def test_every_string_of_a_glob_starts_with_its_literal_prefix(codes: list[int], text: str) -> None:
    if StringTest(TestKind.GLOB, glob(codes)).holds(text):
        assert text.startswith(literal_prefix(codes))


@given(st.permutations([ANY_CHARACTERS, ONE_CHARACTER, ANY_CHARACTERS, ONE_CHARACTER]))
def test_runs_of_wildcards_have_one_spelling(codes: list[int]) -> None:
    assert glob(codes) == (ONE_CHARACTER, ONE_CHARACTER, ANY_CHARACTERS)


def test_a_hostile_glob_takes_no_exponential_time() -> None:
    test = StringTest(TestKind.GLOB, glob([ANY_CHARACTERS, ord("a")] * 30 + [ord("b")]))
    assert not test.holds("a" * 2000)


def string_tests() -> st.SearchStrategy[StringTest]:
    words = st.text("abBé", max_size=3)
    kinds = st.sampled_from([TestKind.NOCASE, TestKind.NOCASE_PREFIX, TestKind.NOCASE_SUFFIX])
    return st.one_of(
        CODES.map(lambda codes: StringTest(TestKind.GLOB, glob(codes))),
        CODES.map(lambda codes: nocase_glob(glob(codes))),
        CODES.map(lambda codes: StringTest(TestKind.NOCASE_GLOB, glob(codes))),
        st.tuples(words, kinds).map(lambda wk: ignore_case(*wk)),
        st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/16", "::/0", "fe80::/10"]).map(cidr),
    )


ADDRESSES = [
    "10.0.0.1",
    "10.1.2.3",
    "11.0.0.1",
    "::1",
    "fe80::1",
    "::ffff:10.0.0.1",
    "fe80::1%eth0",
    "10.0.0.01",
]


@given(string_tests(), string_tests(), st.lists(st.one_of(TEXTS, st.sampled_from(ADDRESSES)), max_size=20))
def test_implication_is_sound(a: StringTest, b: StringTest, texts: list[str]) -> None:
    assert a.implies(a)
    if a.implies(b):
        assert all(b.holds(t) for t in texts if a.holds(t))


@given(string_tests(), st.frozensets(string_tests(), max_size=4))
def test_the_quick_look_misses_no_implication(asked: StringTest, by: frozenset[StringTest]) -> None:
    if any(test.implies(asked) for test in by):
        assert may_be_implied(asked, by)


@given(CODES, TEXTS)
def test_a_caseless_glob_is_the_glob_of_folded_text(codes: list[int], text: str) -> None:
    folded = "".join(map(chr, fold(text)))
    held = StringTest(TestKind.GLOB, glob(codes)).holds(folded)
    assert nocase_glob(glob(codes)).holds(text) == held
    assert StringTest(TestKind.NOCASE_GLOB, glob(codes)).holds(text) == held


def test_letters_have_case_where_another_letter_folds_to_the_same() -> None:
    letters = [c for c in range(0x250) if not 0xD800 <= c <= 0xDFFF]
    alike: dict[tuple[int, ...], list[int]] = {}
    for c in [*range(0x2FFF)]:
        alike.setdefault(fold(chr(c)), []).append(c)
    assert all(has_case(c) == (len(alike[fold(chr(c))]) > 1) for c in letters)


@given(CODES, CODES, CODES)
def test_implication_between_globs_is_transitive(a: list[int], b: list[int], c: list[int]) -> None:
    x, y, z = (StringTest(TestKind.GLOB, glob(codes)) for codes in (a, b, c))
    if x.implies(y) and y.implies(z):
        assert x.implies(z)


def test_implication_sees_what_it_should() -> None:
    def like(text: str) -> StringTest:
        return StringTest(
            TestKind.GLOB,
            glob([ANY_CHARACTERS if c == "%" else ONE_CHARACTER if c == "_" else ord(c) for c in text]),
        )

    assert like("%ab").implies(like("%b"))
    assert like("a_b%").implies(like("a%"))
    assert not like("%b").implies(like("%ab"))
    assert not like("%").implies(like("_%"))
    assert cidr("10.1.0.0/16").implies(cidr("10.0.0.0/8"))
    assert not cidr("10.0.0.0/8").implies(cidr("10.1.0.0/16"))
    assert not cidr("10.0.0.0/8").implies(cidr("10.0.0.0/16"))
    assert not cidr("::/0").implies(cidr("0.0.0.0/0"))


# Letters whose other case is several letters, none, or another letter's.
ODD_LETTERS = "aAzZ5\u212aßẞıİſKkµμσςΣǅǆǄŉÅåéÉ\0"


def test_folding_is_right_for_every_pair_of_odd_letters() -> None:
    for a, b in itertools.product(ODD_LETTERS, repeat=2):
        assert (fold(a) == fold(b)) == same_letters(a, b), (a, b)


@given(st.text(ODD_LETTERS, max_size=4), st.text(ODD_LETTERS, max_size=4))
def test_folding_is_the_letter_by_letter_rule(a: str, b: str) -> None:
    assert (fold(a) == fold(b)) == same_letters(a, b)
    assert ignore_case(a, TestKind.NOCASE).holds(b) == same_letters(a, b)
    assert ignore_case(a, TestKind.NOCASE_PREFIX).holds(b) == same_letters(a, b[: len(a)])
    assert ignore_case(a, TestKind.NOCASE_SUFFIX).holds(b) == same_letters(a, b[max(0, len(b) - len(a)) :])


def test_folding_keeps_the_length_of_every_letter() -> None:
    assert all(len(fold(chr(c))) == 1 for c in range(0, sys.maxunicode + 1, 7) if not 0xD800 <= c <= 0xDFFF)


@given(st.ip_addresses(), st.ip_addresses(), st.integers(0, 31))
def test_cidr_blocks_hold_what_the_standard_library_says(
    inside: ipaddress.IPv4Address, base: ipaddress.IPv4Address, bits: int
) -> None:
    block = f"{base}/{bits}"
    assert cidr(block).holds(str(inside)) == (inside in ipaddress.ip_network(block, strict=False))
    assert cidr(block).holds(str(base))


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.01", "fe80::1%eth0", "10.0.0.1 ", "1.2.3.4.5", "x"])
def test_what_is_no_address_is_in_no_block(text: str) -> None:
    assert not cidr("0.0.0.0/0").holds(text)
    assert not cidr("::/0").holds(text)


@pytest.mark.parametrize(
    "block",
    [
        "10.0.0.0",
        "10.0.0.0/32",
        "10.0.0.0/33",
        "::/128",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "10.0.0.0/255.0.0.0",
        "fe80::%1/64",
        "x/8",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/٣",
    ],
)
def test_what_amazon_calls_no_block_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        cidr(block)


def test_descriptions_say_what_is_asked() -> None:
    assert (
        StringTest(TestKind.GLOB, (ANY_CHARACTERS, ord("a"), ONE_CHARACTER)).describe() == "matches '*a?'"
    )
    assert cidr("10.0.0.5/8").describe() == "in 10.0.0.0/8"
    assert cidr("fe80::/10").describe() == "in fe80::/10"
    assert ignore_case("Ab", TestKind.NOCASE_SUFFIX).describe() == "ends with 'ab' in any case"
