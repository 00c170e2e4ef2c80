"""What a broker takes for a step: in bounds, or exactly the step that was begun before a crash."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest

from ramify.overlay.live.broker import inputs as inputs_module
from ramify.overlay.live.broker.inputs import CLIENTS, Input, Inputs, reached, rows_of
from ramify.overlay.live.wire.pull import PulledMessage
from ramify.overlay.live.wire.tasks import run_to_end


class Buffer:
    """A puller without a server. What it has is all that the server has: orders follow each other. `jumps`:
    number -> what its message says is before it."""

    def __init__(self, *numbers: int, jumps: Mapping[int, int] | None = None) -> None:
        before = {n: {"J": str(j)} for n, j in (jumps or {}).items()}
        self.buffer = deque(
            PulledMessage(
                *(n, "ramify.publish.a", {"L": str(n), **before.get(n, {})}, bytes(4), ""), order=order
            )
            for order, n in enumerate(numbers, 1)
        )
        self.all_wanted = False

    def take(self) -> PulledMessage:
        return self.buffer.popleft()

    def put_back(self, pulled: PulledMessage) -> None:
        self.buffer.appendleft(pulled)

    def want_all(self, on: bool) -> None:
        self.all_wanted = on


class Recording(Inputs):
    """`losses`: what was told to be lost."""

    def __init__(self, arrived: asyncio.Event) -> None:
        self.losses: list[str] = []
        super().__init__(arrived, lambda name, what: self.losses.append(what))


def inputs_with(positions: dict[str, int], **buffers: Buffer) -> Recording:
    made = Recording(asyncio.Event())
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
    assert at == {key: 4, f"{key}/rows": 3, f"{key}/of": 5}
    made.commit(found, 3)
    found = gathered(made, at, None, 9)
    assert [each.number for each in found] == [5]
    at = reached(at, found, None)
    made.commit(found, None)
    assert at[key] == 5
    assert not {f"{key}/rows", f"{key}/of"} & at.keys()
    assert sorted(each.number for each in gathered(made, at, None, 9)) == [1, 6]


def test_a_message_behind_a_jump_that_is_routed_in_part_comes_again() -> None:
    made = inputs_with({}, v1=Buffer(100, 101, jumps={100: 0}))
    found = gathered(made, {}, None, 1)
    at = reached({}, found, 3)
    made.commit(found, 3)
    (again,) = gathered(made, at, None, 9)
    assert (again.number, rows_of(at, again)) == (100, 3)


def test_a_neighbour_that_is_gone_holds_nobody_up_with_a_message_in_part() -> None:
    at = {"v1": 4, "v1/rows": 3}
    made = inputs_with(at, v1=Buffer(), clients=Buffer(1))
    assert taken(made, at) == ([1], [])


def test_a_begun_step_in_the_middle_of_a_message_is_taken_again() -> None:
    at = {CLIENTS: 4, f"{CLIENTS}/rows": 2, f"{CLIENTS}/of": 5}
    made = inputs_with(at, clients=Buffer(5, 6))
    assert taken(made, at, {CLIENTS: 4, f"{CLIENTS}/rows": 9, f"{CLIENTS}/of": 5}) == ([5], [])


def test_a_message_in_part_that_a_begun_step_did_not_take_is_not_taken_with_it() -> None:
    part = {"v1/rows": 2, "v1/of": 1}
    made = inputs_with(part, clients=Buffer(1, 2), v1=Buffer(1))
    assert taken(made, part, {CLIENTS: 2, **part}) == ([1, 2], [])


def test_what_was_routed_of_a_message_counts_for_that_message_alone() -> None:
    at = {"v1": 4, "v1/rows": 2, "v1/of": 5}
    (one,) = gathered(inputs_with(at, v1=Buffer(100, jumps={100: 4})), at, None, 9)
    assert rows_of(at, one) is None
    (one,) = gathered(inputs_with(at, v1=Buffer(5)), at, None, 9)
    assert rows_of(at, one) == 2


@pytest.mark.parametrize(
    ("before", "said"),
    [(9, ""), (6, "nothing behind number 6, and 7 to 9"), (0, "nothing behind number 0")],
)
def test_a_lane_that_jumps_from_before_our_position_lost_its_end(before: int, said: str) -> None:
    at = {"v1": 9, "v1/at": 90}
    made = inputs_with(at, v1=Buffer(8, 9, 100, 101, jumps={100: before}))
    found = gathered(made, at, None, 9)
    assert [each.number for each in found] == [100, 101]
    assert reached(at, found, None)["v1"] == 101
    assert [said in loss for loss in made.losses] == [True] * bool(said)


def test_a_lane_that_jumps_from_behind_our_position_lacks_something() -> None:
    at = {"v1": 9}
    made = inputs_with(at, v1=Buffer(100, jumps={100: 12}))
    assert taken(made, at) == ([], [])
    assert not made.losses


@pytest.mark.parametrize("begun", [None, {CLIENTS: 8}])
def test_a_hole_that_stays_is_told_with_its_range_and_the_input_goes_on(
    monkeypatch: pytest.MonkeyPatch, begun: dict[str, int] | None
) -> None:
    monkeypatch.setattr(inputs_module, "LANE_GAP_S", 0.001)

    async def scenario() -> None:
        at = {CLIENTS: 4}
        made = inputs_with(at, clients=Buffer())
        source = made[CLIENTS]
        for _ in range(inputs_module._HOLE_RESETS):
            source.puller = Buffer(8, 9)  # type: ignore[assignment]
            source.order = 0
            assert made.gather(at, begun, 9) == []
            source.stale = False
            async with asyncio.timeout(60):
                while not source.stale:
                    await asyncio.sleep(0.001)
            assert not made.losses
        # one from before the reset, out of order: it proves nothing
        stale = Buffer(0, 0, 20)
        stale.buffer.extend(Buffer(8, 9).buffer)
        stale.buffer.popleft(), stale.buffer.popleft()
        source.puller, source.order = stale, 0  # type: ignore[assignment]
        found = made.gather(at, begun, 9)
        assert "numbers 5 to 7 are gone" in made.losses[0]
        assert [each.number for each in found] == ([8, 9] if begun is None else [])

    run_to_end(scenario())
