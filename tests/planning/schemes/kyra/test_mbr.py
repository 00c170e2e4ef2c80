"""Multicast groups of cells: the clustering and the plan."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.plans.plan import Cells, Pruning
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.kyra.groups import expected_waste, forgy
from worlds import GRID, World, worlds


@st.composite
def interests(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    cells, brokers = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    bits = draw(st.lists(st.booleans(), min_size=cells * brokers, max_size=cells * brokers))
    weight = draw(st.lists(st.integers(0, 5), min_size=cells, max_size=cells))
    return np.array(bits).reshape(cells, brokers), np.array(weight, dtype=float)


def waste_by_hand(interested: np.ndarray, weight: np.ndarray, labels: list[int]) -> float:
    """Event by event: members of the group that do not want it."""
    total = 0.0
    for cell, group in enumerate(labels):
        if group < 0:
            continue
        members = {b for c, g in enumerate(labels) if g == group for b in np.flatnonzero(interested[c])}
        total += weight[cell] * len(members - set(np.flatnonzero(interested[cell])))
    return total


@given(given_=interests(), groups=st.integers(1, 8))
def test_every_cell_that_somebody_wants_is_in_one_of_few_groups(given_: tuple, groups: int) -> None:
    interested, weight = given_
    labels = forgy(interested, weight, groups)
    assert ((labels >= 0) == interested.any(axis=1)).all()
    used = sorted(set(labels[labels >= 0].tolist()))
    assert used == list(range(len(used)))
    assert len(used) <= groups
    assert expected_waste(interested, weight, labels) == pytest.approx(
        waste_by_hand(interested, weight, labels.tolist())
    )
    kinds = {row.tobytes() for row in interested if row.any()}
    if groups >= len(kinds):
        assert expected_waste(interested, np.ones(len(weight)), labels) == 0
    one = np.where(interested.any(axis=1), 0, -1).astype(np.int32)
    assert expected_waste(interested, weight, labels) <= expected_waste(interested, weight, one)


@given(given_=interests())
def test_no_division_into_groups_wastes_less_than_none(given_: tuple) -> None:
    """Two groups against all divisions into two: k-means finds the best where cells come in two kinds."""
    interested, weight = given_
    two = interested[[0, -1]]
    cells = np.array([two[k % 2] for k in range(5)])
    weight = np.resize(weight, 5)
    labels = forgy(cells, weight, 2)
    best = min(waste_by_hand(cells, weight, list(tried)) for tried in product((0, 1), repeat=5))
    assert waste_by_hand(cells, weight, labels.tolist()) == pytest.approx(best)


def test_a_busy_group_is_spared_the_members_of_a_rare_cell() -> None:
    """The second cell would waste nothing of its own in the first group, but all of that one's events."""
    interested = np.array([[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]], dtype=bool)
    assert forgy(interested, np.array([100.0, 1.0, 1.0]), 2).tolist() == [0, 1, 1]


def first_round(interested: np.ndarray, weight: np.ndarray, groups: int) -> list[int]:
    """Every cell with the nearest of the cells that most is delivered of, cells of equal members as one."""
    kinds = sorted({tuple(row) for row in interested.tolist() if any(row)})
    rows = [tuple(row) for row in interested.tolist()]
    events = {k: sum(w for row, w in zip(rows, weight, strict=True) if row == k) for k in kinds}
    if not any(events.values()):
        events = dict.fromkeys(kinds, 1.0)
    seeds = sorted(kinds, key=lambda k: -events[k] * sum(k))[:groups]

    def waste(k: tuple[bool, ...], seed: tuple[bool, ...]) -> float:
        needless = sum(b and not a for a, b in zip(k, seed, strict=True))
        brought = sum(a and not b for a, b in zip(k, seed, strict=True))
        return events[k] * needless + events[seed] * brought

    nearest = {k: min(range(len(seeds)), key=lambda s: waste(k, seeds[s])) for k in kinds}
    return [nearest[row] if any(row) else -1 for row in rows]


@settings(max_examples=300)
@given(given_=interests(), groups=st.integers(1, 4))
def test_rounds_never_end_worse_than_the_first(given_: tuple, groups: int) -> None:
    interested, weight = given_
    begun = waste_by_hand(interested, weight, first_round(interested, weight, groups))
    assert waste_by_hand(interested, weight, forgy(interested, weight, groups).tolist()) <= begun


def test_rounds_improve_on_the_first() -> None:
    rng = np.random.default_rng(1)
    interested, weight = rng.random((40, 12)) < rng.random((40, 1)), rng.random(40)
    begun = waste_by_hand(interested, weight, first_round(interested, weight, 6))
    assert waste_by_hand(interested, weight, forgy(interested, weight, 6).tolist()) < 0.99 * begun


def test_cells_join_the_group_that_wastes_less() -> None:
    interested = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]], dtype=bool)
    labels = forgy(interested, np.ones(4), 2)
    assert labels.tolist() == [0, 0, 1, 1]


@settings(max_examples=40)
@given(world=worlds(), groups=st.integers(1, 4))
def test_an_event_goes_to_all_of_its_group_and_to_nobody_else(world: World, groups: int) -> None:
    plan = make_plan(f"mbr:groups={groups}", world.problem)
    assert len(plan.channels) <= groups
    for channel in plan.channels:
        assert channel.pruning is Pruning.NONE
        assert isinstance(channel.admits.content, Cells)
        assert channel.tree is not None
        touching = {
            int(world.classes.broker[k])
            for k, f in enumerate(world.classes.filters)
            if set(GRID.cells_touched(f)) & set(channel.admits.content.cells)
        }
        assert set(channel.tree.brokers.tolist()) == touching
        cell = int(channel.admits.content.cells[0])
        simulator = Simulator(plan)
        origin = int(channel.tree.brokers[0])
        simulator.publish(origin, cell, (), event="unwanted")
        reached = simulator.result.visits
        assert reached >= len(touching) - 1  # brokers inside the paths of tree links besides


def test_groups_are_checked() -> None:
    with pytest.raises(InputError, match="Allowed"):
        make_plan("mbr:groups=0", None)  # type: ignore[arg-type]
