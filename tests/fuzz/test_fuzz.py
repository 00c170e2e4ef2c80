"""Parsers refuse what they cannot read with the error that they document, and nothing else.

The short form of `make fuzz`: some changed inputs for each parser, and all that was ever found.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import kept, mutated
from fuzz_targets import TARGETS, RefusedError, Target

DEEP = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"(" * 10_000,
    b"NOT " * 2_400 + b"x",
    b"<a>" * 30_000,
    b"-" * 10_000,
]
LONG_NUMBERS = [
    b"9" * 5_000,
    b'{"x":' + b"9" * 5_000 + b"}",
    b'{"x":[' + b"9" * 309 + b"]}",
    b"1e999,b,nan\n",
]
BYTES = [b"", b"\0" * 100, b"\xff\xfe", b"\xef\xbb\xbf{}", b"\r\n", b'"\\ud800"']

parsers = pytest.mark.parametrize("parser", TARGETS.values(), ids=TARGETS)


def tried(parser: Target, data: bytes) -> bool:
    """Whether a parser takes its input; whatever it raises beside its own errors goes through."""
    try:
        parser(data)
    except RefusedError:
        return False
    return True


@parsers
def test_a_parser_takes_what_it_is_for(parser: Target) -> None:
    assert all(tried(parser, data) for data in parser.seeds)


@parsers
def test_what_is_no_input_is_refused_in_words(parser: Target) -> None:
    for data in (*DEEP, *LONG_NUMBERS, *BYTES):
        tried(parser, data)


@pytest.mark.parametrize("target", TARGETS)
def test_finds_stay_mended(target: str) -> None:
    for data in kept(target):
        tried(TARGETS[target], data)


@parsers
@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_changed_inputs_are_taken_or_refused_in_words(parser: Target, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        tried(parser, mutated(rng, list(parser.seeds), parser.words))
