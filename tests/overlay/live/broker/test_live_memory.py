"""A step's size follows its outputs: bounded whatever the fan-out, large where little comes out."""

from hypothesis import given
from hypothesis import strategies as st

from ramify.overlay.control.output import Output
from ramify.overlay.live.broker.memory import MOST_OUTPUT_BYTES, MOST_OUTPUTS, StepSize, give_back


def steps(size: StepSize, count: int, per_message: int, payload: bytes = b"") -> list[int]:
    """What comes out of steps that take in as much as they may."""
    came = []
    for _ in range(count):
        came.append(size.messages * per_message)
        size.learn(size.messages, [Output("lane", payload)] * came[-1])
    return came


@given(st.integers(0, 3 * MOST_OUTPUTS), st.integers(1, 512))
def test_outputs_are_bounded_from_the_second_step_on(per_message: int, most: int) -> None:
    size = StepSize(most)
    came = steps(size, 15, per_message)
    assert all(n <= max(MOST_OUTPUTS, per_message) for n in came[1:])
    assert 1 <= size.messages <= most


def test_bytes_count_too() -> None:
    size = StepSize(512)
    steps(size, 10, 1, bytes(MOST_OUTPUT_BYTES // 4))
    assert size.messages <= 4


def test_steps_are_as_large_as_they_may_be_where_little_comes_out() -> None:
    size = StepSize(512)
    steps(size, 6, 1)
    assert size.messages == 512
    steps(size, 2, 100)
    assert size.messages <= 40
    steps(size, 10, 1)
    assert size.messages == 512


def test_a_small_step_says_nothing_about_large_ones() -> None:
    size = StepSize(512)
    before = size.messages
    size.learn(1, [Output("lane", b"")])
    assert size.messages == before


def test_there_is_something_to_give_back_after_a_large_step_alone() -> None:
    size = StepSize(512)
    size.learn(1, [Output("lane", b"")])
    assert not size.settle()
    size.learn(1, [Output("lane", b"")] * MOST_OUTPUTS)
    assert size.settle()
    assert not size.settle()
    give_back()
