"""Numbered lanes: whatever order messages come in, and however often, each is taken once."""

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramify.errors import InputError
from ramify.overlay.control.lanes import Inlet, LaneVerdict, decode_positions, encode_positions


class Lane(RuleBasedStateMachine):
    """A writer, a server that loses, repeats and reorders, and a reader that crashes.

    What the reader does for good and the position it has then are written together (`effects`, `kept`);
    its `Inlet` is memory, lost in a crash. The server may forget what was acknowledged, never more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.under_way: list[int] = []
        self.acknowledged = 0
        self.effects: list[int] = []
        self.kept = 0
        self.inlet = Inlet()
        self.pending: list[int] = []

    # -- the writer and the server

    @rule(messages=st.integers(1, 5))
    def write(self, messages: int) -> None:
        self.under_way += range(self.written + 1, self.written + messages + 1)
        self.written += messages

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    @precondition(lambda self: self.written > self.acknowledged)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.under_way.append(data.draw(st.integers(self.acknowledged + 1, self.written)))

    @rule(clear=st.booleans())
    def reset(self, clear: bool) -> None:
        """All that is not acknowledged comes again, after what was under way, or instead of it."""
        self.under_way = [] if clear else self.under_way
        self.under_way += range(self.acknowledged + 1, self.written + 1)

    # -- the reader

    def take(self, number: int) -> None:
        before = self.inlet.taken
        verdict = self.inlet.verdict(number)
        if verdict is LaneVerdict.NEXT:
            self.pending.append(number)
        assert (verdict is LaneVerdict.OLD) == (
            number in {*self.effects, *self.pending} and number <= before
        )
        assert (verdict is LaneVerdict.GAP) == (number > before + 1)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.take(self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1))))

    @precondition(lambda self: self.under_way)
    @rule(messages=st.integers(1, 5))
    def deliver_in_order(self, messages: int) -> None:
        for _ in range(min(messages, len(self.under_way))):
            self.take(self.under_way.pop(0))

    @rule(upto=st.integers(0, 5))
    def commit(self, upto: int) -> None:
        """Some of what was taken becomes safe, then its position is told."""
        done, self.pending = self.pending[:upto], self.pending[upto:]
        self.effects += done
        self.kept += len(done)
        self.inlet.commit(self.kept)

    @rule(earlier=st.integers(0, 9))
    def commit_again(self, earlier: int) -> None:
        self.inlet.commit(min(earlier, self.inlet.committed))

    @rule()
    def acknowledge(self) -> None:
        self.acknowledged = self.inlet.committed

    @rule(fresh=st.booleans())
    def crash(self, fresh: bool) -> None:
        """What was only taken is gone: a new process, or one that goes back after a failed write."""
        self.pending = []
        if fresh:
            self.inlet = Inlet(self.kept)
        else:
            self.inlet.forget_taken(self.kept)

    # -- what always holds

    @invariant()
    def every_number_once_and_in_order(self) -> None:
        assert self.effects + self.pending == list(range(1, self.inlet.taken + 1))

    @invariant()
    def positions_are_those_of_the_effects(self) -> None:
        assert self.inlet.committed == self.kept == len(self.effects)
        assert self.acknowledged <= self.inlet.committed <= self.inlet.taken <= self.written

    def teardown(self) -> None:
        """However it went, one more reset brings the rest."""
        self.reset(clear=False)
        while self.under_way:
            self.take(self.under_way.pop(0))
        self.commit(self.written)
        assert self.effects == list(range(1, self.written + 1))


TestLane = Lane.TestCase
TestLane.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.lists(st.integers(1, 12), max_size=60), st.integers(0, 5))
def test_a_reader_takes_what_comes_next_and_nothing_else(came: list[int], start: int) -> None:
    inlet, expected = Inlet(start), start
    for number in came:
        wanted = (
            LaneVerdict.NEXT
            if number == expected + 1
            else LaneVerdict.OLD
            if number <= expected
            else LaneVerdict.GAP
        )
        assert inlet.verdict(number) is wanted
        expected += wanted is LaneVerdict.NEXT
    assert (inlet.taken, inlet.committed) == (expected, start)


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(0, 5))
def test_a_position_never_goes_back(told: list[int], taken: int) -> None:
    inlet = Inlet()
    for number in range(1, taken + 1):
        inlet.verdict(number)
    for k, number in enumerate(told, 1):
        inlet.commit(number)
        assert inlet.committed == max(told[:k])
        assert inlet.taken == max(taken, inlet.committed)


SOURCES = st.text(string.ascii_letters + string.digits + "-_=", min_size=1, max_size=5)


@given(st.dictionaries(SOURCES, st.integers(0, 10**18 - 1), max_size=6))
def test_positions_come_back_from_a_header(positions: dict[str, int]) -> None:
    text = encode_positions(positions)
    assert text.isascii()
    assert not set(text) & set("\r\n ")
    assert dict(decode_positions(text)) == positions
    assert encode_positions(dict(reversed(positions.items()))) == text


@given(st.text("ab:,0129 -+.٣\n", max_size=12))
@example("a")
@example("a:")
@example(":1")
@example("a:1,")
@example(",")
@example("a:-1")
@example("a:+1")
@example("a:1.5")
@example("a: 1")
@example("a:٣")
@example("a:1_0")
@example("a:" + "9" * 19)
def test_positions_are_read_only_as_source_colon_digits(text: str) -> None:
    parts = text.split(",") if text else []
    good = all(
        colon and source and 0 < len(number) <= 18 and set(number) <= set(string.digits)
        for source, colon, number in (part.rpartition(":") for part in parts)
    )
    if good:
        found = decode_positions(text)
        assert {f"{source}:{number}" for source, number in found.items()} <= {_plain(p) for p in parts}
    else:
        with pytest.raises(InputError, match="unreadable"):
            decode_positions(text)


def _plain(part: str) -> str:
    source, _, number = part.rpartition(":")
    return f"{source}:{int(number)}"


def test_a_header_with_too_many_inputs_is_refused() -> None:
    text = encode_positions({f"b{k}": k for k in range(10_001)})
    with pytest.raises(InputError, match="10001 inputs"):
        decode_positions(text)
    assert len(decode_positions(encode_positions({f"b{k}": k for k in range(10_000)}))) == 10_000
