"""Zones: the optimal division of a line, the k-d split, loads and the exponent."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.network.graphs.generators import line, star
from ramify.network.trees.trees import minimum_spanning_tree
from ramify.planning.schemes.kyra.zones import split_line, zones_of
from ramify.planning.schemes.shared.cell_loads import PAPER_ALPHA, cell_loads, fit_alpha, touched_cells
from worlds import GRID, World, worlds

loads = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 10), st.integers(0, 5).map(float)), min_size=1, max_size=12
).map(np.array)


def least_heaviest(load: list[float], parts: int) -> float:
    """The least heaviest run of any division into at most `parts`, by dynamic programming."""

    @cache
    def best(end: int, runs: int) -> float:
        if runs == 1:
            return sum(load[:end])
        return min(max(best(cut, runs - 1), sum(load[cut:end])) for cut in range(end + 1))

    return best(len(load), parts)


@given(load=loads, parts=st.integers(1, 14))
def test_a_line_is_divided_as_evenly_as_can_be(load: np.ndarray, parts: int) -> None:
    labels = split_line(load, parts)
    heaviest = np.bincount(labels, weights=load).max()
    assert heaviest <= least_heaviest(load.tolist(), parts) * (1 + 1e-9) + 1e-9


@given(load=loads, parts=st.integers(1, 14))
def test_a_line_is_divided_into_runs_and_nobody_is_idle_without_need(load: np.ndarray, parts: int) -> None:
    labels = split_line(load, parts)
    assert len(labels) == len(load)
    assert labels[0] == 0
    assert set(np.diff(labels).tolist()) <= {0, 1}
    assert labels[-1] + 1 == min(parts, len(load))


def test_runs_that_are_left_over_halve_the_heaviest_that_can_be_cut() -> None:
    """Two runs would do for the least heaviest one; the third halves the other."""
    assert split_line(np.array([1.0, 1.0, 1.0, 1.0, 10.0]), 3).tolist() == [0, 0, 1, 1, 2]


@st.composite
def spaces(draw: st.DrawFn) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    cells = int(np.prod(shape))
    load = np.array(draw(st.lists(st.integers(0, 9), min_size=cells, max_size=cells)), dtype=float)
    rows = draw(st.integers(0, 4))
    bits = draw(st.lists(st.booleans(), min_size=rows * cells, max_size=rows * cells))
    return shape, load, np.array(bits, dtype=bool).reshape(rows, cells)


@given(space=spaces(), parts=st.integers(1, 9), lam=st.sampled_from([0.0, 0.5, 4.0]))
def test_zones_are_boxes_that_hold_every_cell_once(space: tuple, parts: int, lam: float) -> None:
    shape, load, touched = space
    labels = zones_of(load, shape, parts, touched, np.ones(len(touched)), straddle=lam).reshape(shape)
    assert labels.min() >= 0
    assert labels.max() < parts
    for zone in np.unique(labels):
        where = np.argwhere(labels == zone)
        low, high = where.min(axis=0), where.max(axis=0) + 1
        assert len(where) == np.prod(high - low)  # its hull and nothing else


@given(space=spaces(), parts=st.integers(1, 6), data=st.data())
def test_only_the_axes_that_were_named_are_cut(space: tuple, parts: int, data: st.DataObject) -> None:
    shape, load, touched = space
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    labels = zones_of(load, shape, parts, touched, axes=sorted(axes)).reshape(shape)
    for axis in set(range(len(shape))) - axes:
        assert (labels == np.take(labels, [0], axis=axis)).all()
    if len(axes) == 1:
        (axis,) = axes
        others = tuple(a for a in range(len(shape)) if a != axis)
        heaviest = np.bincount(labels.ravel(), weights=load).max()
        assert heaviest <= least_heaviest(load.reshape(shape).sum(axis=others).tolist(), parts) + 1e-9


def test_cuts_follow_the_share_of_zones_and_spare_subscriptions() -> None:
    even = np.ones(36)
    labels = zones_of(even, (6, 6), 3)
    assert sorted(np.bincount(labels).tolist()) == [12, 12, 12]
    # both axes cut the load alike; every subscription spans the first axis, so the second is cut
    rows = np.array([[k == slot for _ in range(6) for slot in range(6)] for k in range(6)])
    labels = zones_of(even, (6, 6), 2, rows, np.ones(6), straddle=1.0).reshape(6, 6)
    assert (labels == labels[0]).all()
    assert np.bincount(labels.ravel()).tolist() == [18, 18]


@settings(max_examples=40)
@given(world=worlds(), alpha=st.sampled_from([0.5, 1.0]))
def test_loads_are_those_of_the_events_one_by_one(world: World, alpha: float) -> None:
    expected = np.zeros(GRID.size)
    total = len(world.subscriptions)
    filters = [row.parse(world.classes.schema) for row in world.subscriptions]
    for event in world.events:
        popular = sum(filter_.holds(event.values) for filter_ in filters)
        if popular:
            expected[GRID.cell(event.values)] += (popular / total) ** alpha * (event.size_bytes + 1)
    found = cell_loads(world.problem, GRID, alpha)
    if expected.any():
        np.testing.assert_allclose(found, expected)
    elif world.events:
        assert (found == 1).all()  # nothing to go by
    for k, filter_ in enumerate(world.classes.filters):
        assert np.flatnonzero(touched_cells(world.problem, GRID)[k]).tolist() == (
            GRID.cells_touched(filter_).tolist()
        )


def test_without_events_subscriptions_are_the_load() -> None:
    world = World(line(2, name="two"), (), {}, ())
    assert (cell_loads(world.problem, GRID, 0.5) == 1).all()


@pytest.mark.parametrize(("overlay", "low", "high"), [(star(200), 0.9, 1.0), (line(200), 0.0, 0.15)])
def test_the_exponent_is_that_of_the_tree(overlay: object, low: float, high: float) -> None:
    """On a star an event passes its subscribers and the hub; on a chain nearly every broker."""
    tree = minimum_spanning_tree(overlay, "hops")  # type: ignore[arg-type]
    fit = fit_alpha(tree, np.random.default_rng(1))
    assert low <= fit.alpha <= high
    assert fit == fit_alpha(tree, np.random.default_rng(1))


def test_a_tree_too_small_to_tell_has_the_papers_exponent() -> None:
    assert fit_alpha(minimum_spanning_tree(line(2), "hops"), np.random.default_rng(0)).alpha == PAPER_ALPHA
