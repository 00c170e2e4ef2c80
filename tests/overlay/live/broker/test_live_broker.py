"""What a broker takes for a step: in bounds, or exactly the step that was begun before a crash."""

import asyncio
from collections import deque
from typing import Any

import pytest

from ramify.overlay.live.broker import inputs as inputs_module
from ramify.overlay.live.broker.inputs import CLIENTS, Input, Inputs, reached
from ramify.overlay.live.wire.pull import PulledMessage
from ramify.overlay.live.wire.tasks import run_to_end


class Buffer:
    """A puller without a server. Sequences are ten times the numbers, unless said."""

    def __init__(self, *numbers: int, sequence: int = 0) -> None:
        self.buffer = deque(
            PulledMessage(sequence or n, "ramify.publish.a", {"L": str(n)}, bytes(4), "") for n in numbers
        )
        self.all_wanted = False

    def take(self) -> PulledMessage:
        return self.buffer.popleft()

    def put_back(self, pulled: PulledMessage) -> None:
        self.buffer.appendleft(pulled)

    def want_all(self, on: bool) -> None:
        self.all_wanted = on


def inputs_with(positions: dict[str, int], **buffers: Buffer) -> Inputs:
    made = Inputs(asyncio.Event())
    for name, buffer in buffers.items():
        source = Input(CLIENTS if name == "clients" else name, buffer, None)  # type: ignore[arg-type]
        source.go_to(positions)
        made[source.name] = source
    return made


def taken(
    made: Inputs, positions: dict[str, int], begun: dict[str, int] | None = None, most: int = 8
) -> tuple[list[int], list[int]]:
    found = gathered(made, positions, begun, most)
    clients = [each.number for each in found if each.source.name == CLIENTS]
    return clients, [each.number for each in found if each.source.name != CLIENTS]


def gathered(made: Inputs, positions: dict[str, int], begun: dict[str, int] | None, most: int) -> list[Any]:
    async def gather() -> list[Any]:
        return made.gather(positions, begun, most)

    return run_to_end(gather())


def test_a_step_takes_the_next_in_order_within_its_bounds() -> None:
    at = {CLIENTS: 4}
    made = inputs_with(at, clients=Buffer(3, 4, 5, 6), v1=Buffer(2, 1, 1, 3, 2))
    assert taken(made, at, most=3) == ([5, 6], [1])
    assert taken(made, at, most=3) == ([], [2])


def test_what_is_given_back_comes_again_in_order() -> None:
    at = {CLIENTS: 4}
    made = inputs_with(at, clients=Buffer(5, 6), v1=Buffer(1, 2))
    found = gathered(made, at, None, 9)
    made.give_back(found[1:])
    assert taken(made, at) == ([6], [1, 2])


@pytest.mark.parametrize("first", ["clients", "v1"])
def test_a_begun_step_is_taken_whole_whatever_the_bounds_and_the_order(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(inputs_module, "_MOST_STEP_BYTES", 5)
    buffers = {"clients": Buffer(5, 6, 7, 8), "v1": Buffer(1, 2, 3)}
    ordered = {first: buffers.pop(first)} | buffers
    made = inputs_with({CLIENTS: 4}, **ordered)
    assert taken(made, {CLIENTS: 4}, {CLIENTS: 7, "v1": 2, "v2": 0}, 3) == ([5, 6, 7], [1, 2])


def test_a_begun_step_waits_until_all_of_it_is_here_and_asks_for_it() -> None:
    at = {CLIENTS: 4}
    buffer = Buffer(5, 6)
    made = inputs_with(at, clients=buffer, v1=Buffer(1))
    assert taken(made, at, {CLIENTS: 7, "v1": 1}) == ([], [])
    assert len(buffer.buffer) == 2, "nothing was used up"
    assert buffer.all_wanted, "what is missing may lie behind a full buffer"
    assert taken(made, at, {CLIENTS: 6, "v1": 1, "v9": 3}) == ([], []), "an input that is not connected yet"
    assert taken(made, at, {CLIENTS: 6, "v1": 1}) == ([5, 6], [1])
    assert not buffer.all_wanted


@pytest.mark.parametrize(("name", "key"), [("clients", CLIENTS), ("v1", "v1")])
def test_a_message_that_is_routed_in_part_comes_again_alone(name: str, key: str) -> None:
    at = {key: 4}
    made = inputs_with(at, **{name: Buffer(5, 6), "v2": Buffer(1)})
    found = gathered(made, at, None, 1)
    at = reached(at, found, 3)
    assert at == {key: 4, f"{key}/rows": 3}
    made.commit(found, 3)
    found = gathered(made, at, None, 9)
    assert [each.number for each in found] == [5]
    at = reached(at, found, None)
    made.commit(found, None)
    assert at[key] == 5
    assert f"{key}/rows" not in at
    assert sorted(each.number for each in gathered(made, at, None, 9)) == [1, 6]


def test_a_neighbour_that_is_gone_holds_nobody_up_with_a_message_in_part() -> None:
    at = {"v1": 4, "v1/rows": 3}
    made = inputs_with(at, v1=Buffer(), clients=Buffer(1))
    assert taken(made, at) == ([1], [])


def test_a_begun_step_in_the_middle_of_a_message_is_taken_again() -> None:
    at = {CLIENTS: 4, f"{CLIENTS}/rows": 2}
    made = inputs_with(at, clients=Buffer(5, 6))
    assert taken(made, at, {CLIENTS: 4, f"{CLIENTS}/rows": 9}) == ([5], [])


def test_a_lane_that_began_anew_is_told_and_read_from_where_it_begins() -> None:
    """Its numbers are behind ours, but its sequences ahead: it is not what came before."""
    at = {"v1": 9, "v1/at": 90}
    old = inputs_with(at, v1=Buffer(1, 2, sequence=20))
    assert taken(old, at) == ([], [])
    assert not old.restarted
    new = inputs_with(at, v1=Buffer(1, 2, sequence=95))
    found = gathered(new, at, None, 9)
    assert [each.number for each in found] == [1, 2]
    assert "began anew" in new.restarted["v1"]
    assert reached(at, found, None) == {"v1": 2, "v1/at": 95}
