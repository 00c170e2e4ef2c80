"""Names on NATS: any name has a token of its own, and nothing else is a token."""

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.overlay.control.names import MOST_BYTES, MOST_TOKEN, inbox_prefix, name_of, token

CHARACTERS = st.characters(codec="utf-8") | st.sampled_from("aB0-_=. *>$\n\0é漢😀")
NAMES = st.text(CHARACTERS, min_size=1, max_size=16)
TOKEN = re.compile(r"(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")


@given(NAMES)
def test_a_token_is_safe_and_leads_back_to_its_name(name: str) -> None:
    text = token(name)
    assert TOKEN.fullmatch(text)
    assert name_of(text) == name
    assert text == name or not re.fullmatch("[A-Za-z0-9_-]+", name)
    assert inbox_prefix("link", name).count(".") == 1


@given(NAMES, NAMES)
@example("a.b", "a=2Eb")
@example("é", "e\u0301")
@example("\u0130", "i\u0307")
def test_names_that_differ_have_tokens_that_differ(one: str, other: str) -> None:
    assume(one != other)
    assert token(one) != token(other)


@given(
    st.text(CHARACTERS | st.characters(categories=["Cs"]), max_size=12)
    | st.text("=0123456789ABCDEFabcdef", max_size=12)
    | NAMES.map(lambda name: token(name)[1:])
)
@example("")
@example("=41")  # a plain character that was escaped
@example("=2e")
@example("=C3")
@example("=C3=A")
@example("a\n")
@example("=ED=A0=80")  # half a surrogate pair
@example("=C0=AE")  # an overlong full stop
@example("\ud800")
def test_what_is_no_token_is_refused(text: str) -> None:
    try:
        name = name_of(text)
    except InputError:
        data = re.sub("=([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), text)
        try:
            decoded = data.encode("latin-1").decode()
        except UnicodeError:
            return
        assert not decoded or token(decoded) != text
    else:
        assert token(name) == text


@given(st.text(st.sampled_from("a-é.漢"), max_size=140))
@example("a" * MOST_BYTES)
@example("." * 66 + "aa")
@example("." * 67)
@example("a" * (MOST_BYTES + 1))
def test_a_name_is_refused_exactly_when_it_or_its_token_is_too_long(name: str) -> None:
    length = sum(1 if c in "a-" else 3 * len(c.encode()) for c in name)
    if 0 < len(name.encode()) <= MOST_BYTES and length <= MOST_TOKEN:
        assert len(token(name)) == length
        # files of keys and durable consumers are named like this, with names below 256 bytes
        assert len(f"client-{token(name)}.nk") < 255
        return
    with pytest.raises(InputError, match=f"at most {MOST_TOKEN}|1 to {MOST_BYTES} bytes"):
        token(name)


def test_a_token_that_no_name_may_have_is_no_token() -> None:
    assert name_of("=2E" * 66) == "." * 66
    with pytest.raises(InputError, match=f"at most {MOST_TOKEN}"):
        name_of("=2E" * 67)


def test_a_name_must_be_unicode() -> None:
    with pytest.raises(InputError, match="surrogate"):
        token("a\ud800")
