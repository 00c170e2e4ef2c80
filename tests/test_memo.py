"""What is derived from a frozen value is computed once and goes with it."""

from dataclasses import dataclass, replace
from functools import cached_property

from ramify.memo import derived, is_known, preset


@dataclass(frozen=True)
class Point:
    x: int

    @cached_property
    def square(self) -> int:
        return self.x**2


def test_a_memo_is_made_once_per_value_and_is_no_part_of_it() -> None:
    point, made = Point(3), list[int]()

    def make() -> int:
        made.append(point.x)
        return point.x + 1

    assert [derived(point, "_next", make) for _ in range(3)] == [4, 4, 4]
    assert made == [3]
    assert point == Point(3)
    assert not is_known(replace(point), "_next")


def test_what_is_preset_is_not_computed() -> None:
    point = Point(3)
    assert not is_known(point, "square")
    preset(point, square=-1)
    assert is_known(point, "square")
    assert (point.square, Point(3).square) == (-1, 9)
