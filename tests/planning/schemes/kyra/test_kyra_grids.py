"""The grid that is chosen from filters, and where it goes: studies and re-plans."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.generators import line
from ramify.network.graphs.specs import overlay_from
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, grid_of, make_plans
from ramify.planning.choosing.study import SHARES, compare, grid_for_schemes, prepare
from ramify.planning.choosing.study import grid_of as study_grid
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally, tally
from ramify.planning.plans.check import check
from ramify.planning.plans.files import write_plan
from ramify.planning.plans.plan import Cells, Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.shared.grids import MOST_CELLS, grid_for
from ramify.workloads.catalog import workload_from
from worlds import World, worlds

TYPES = {
    "n": AttributeType.INT64,
    "d": AttributeType.DOUBLE,
    "s": AttributeType.STRING,
    "t": AttributeType.TIMESTAMP,
    "words": AttributeType.STRINGS,
}


def classes_of(*filters: str) -> Classes:
    overlay = line(3)
    rows = [
        Subscription(f"s{i}", f"c{i}", overlay.brokers[i % 3], sql=sql) for i, sql in enumerate(filters)
    ]
    return Classes.collapse(rows, overlay, TYPES)


# ------------------------------------------------------------------------------------------ the choice


@settings(max_examples=60)
@given(world=worlds())
def test_whatever_is_chosen_has_every_event_in_a_touched_cell(world: World) -> None:
    grid = grid_for(world.classes)
    if grid is None:
        return
    assert grid.size <= MOST_CELLS
    assert grid == grid_for(world.classes)
    for filter_ in world.classes.filters:
        touched = set(grid.cells_touched(filter_).tolist())
        for event in world.events:
            assert not filter_.holds(event.values) or grid.cell(event.values) in touched


@given(values=st.lists(st.integers(-50, 50), min_size=2, max_size=40, unique=True))
def test_values_asked_for_are_told_apart_while_there_is_room(values: list[int]) -> None:
    grid = grid_for(classes_of(*(f"n = {v}" for v in values)))
    assert grid is not None
    assert [axis.path for axis in grid.axes] == ["n"]
    assert len({grid.cell({"n": v}) for v in values}) == len(values)


@pytest.mark.parametrize(
    ("filters", "low", "high"),
    [
        (["n <= 5", "n > 5"], 5, 6),
        (["n BETWEEN 3 AND 5", "n BETWEEN 6 AND 8"], 5, 6),
        (["d <= 2.5", "d > 2.5"], 2.5, np.nextafter(2.5, 3)),
        (["s < 'm'", "s >= 'm'"], "l", "m"),
        (
            ["t < TIMESTAMP '2026-01-01T00:00:00Z'", "t >= TIMESTAMP '2026-01-01T00:00:00Z'"],
            datetime(2025, 12, 31, 23, tzinfo=UTC),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_cells_end_where_filters_do(filters: list[str], low: object, high: object) -> None:
    grid = grid_for(classes_of(*filters))
    assert grid is not None
    (axis,) = grid.axes
    below, above = grid.cell({axis.path: low}), grid.cell({axis.path: high})  # type: ignore[dict-item]
    assert below != above
    first, second = (set(grid.cells_touched(f).tolist()) for f in classes_of(*filters).filters)
    assert below in first - second or " > " in filters[1]
    assert above in second - first


def test_many_values_are_cut_at_even_ranks() -> None:
    grid = grid_for(classes_of(*(f"n = {v * v}" for v in range(1000))))
    assert grid is not None
    cells = np.bincount([grid.cell({"n": v * v}) for v in range(1000)], minlength=grid.size)
    assert grid.size == MOST_CELLS
    assert cells[cells > 0].max() <= 2 * 1000 / MOST_CELLS


def test_the_attribute_that_tells_subscriptions_apart_is_chosen() -> None:
    """All ask for the same word, half of the numbers each; ids are one each."""
    rows = [f"s = 'all' AND n = {v} AND d > 0" for v in range(20)]
    grid = grid_for(classes_of(*rows))
    assert grid is not None
    assert [axis.path for axis in grid.axes] == ["n"]


def test_an_attribute_of_which_most_ask_for_one_value_cuts_less_well() -> None:
    """Words narrow more than ranges of numbers, but two thirds of the load would be in one cell."""
    rows = [f"s = '{'hot' if i < 40 else i}' AND n BETWEEN {i} AND {i + 14}" for i in range(60)]
    grid = grid_for(classes_of(*rows))
    assert grid is not None
    assert [axis.path for axis in grid.axes] == ["n"]


def test_a_second_attribute_is_chosen_for_filters_that_do_not_ask_for_the_first() -> None:
    rows = [f"n = {v}" for v in range(30)] + [f"s = 'w{v}'" for v in range(20)]
    grid = grid_for(classes_of(*rows))
    assert grid is not None
    assert {axis.path for axis in grid.axes} == {"n", "s"}
    assert grid.size <= MOST_CELLS


def test_named_attributes_are_taken_or_refused() -> None:
    classes = classes_of("n < 5 AND s = 'a'", "n > 7 AND s = 'b'")
    named = grid_for(classes, ["s", "n"])
    assert named is not None
    assert [axis.path for axis in named.axes] == ["s", "n"]
    assert named.size <= MOST_CELLS
    for bad in (["d"], ["n", "words"]):
        with pytest.raises(InputError, match="cannot be cut"):
            grid_for(classes, bad)
    with pytest.raises(InputError, match="too few"):
        grid_for(classes, ["n"], most_cells=2)


def test_nothing_to_cut_by_is_no_grid() -> None:
    assert grid_for(classes_of()) is None
    assert grid_for(classes_of("s IS NULL", "s IS NOT NULL")) is None
    overlay = line(2)
    words = [Subscription(f"s{i}", "c", overlay.brokers[0], keywords=(f"w{i}",)) for i in range(5)]
    types = {"keywords": AttributeType.STRINGS}
    assert grid_for(Classes.collapse(words, overlay, types)) is None


# ----------------------------------------------------------------------------------- studies, re-plans


def small() -> tuple[Classes, Tally, Problem]:
    overlay = overlay_from("transit-stub:24")
    workload = workload_from("kyra:zipf:values=200,events=400", overlay, 3)
    classes = Classes.collapse(workload.subscriptions, overlay, workload.schema.attributes)
    grid = study_grid(["kyra", "mst"], "mirror-all", classes)
    counted = Tally(classes, overlay, workload.attachments, grid=grid, split=Split(SHARES))
    for batch in workload.batches():
        counted.add(batch)
    windows = counted.windows()
    study = prepare(overlay, classes, windows, workload.attachments, grid=grid)
    found = compare(study, ["kyra", "kyra-mbr", "mbr", "fbr", "mst"])
    assert all(row.allowed for row in found.rows)
    assert study.problem.grid == grid
    return classes, counted, study.problem


def test_a_study_counts_cells_where_a_scheme_divides_the_content_space() -> None:
    classes, _, problem = small()
    assert problem.grid is not None
    plan = make_plan("kyra", problem)
    assert plan.settings["zones"] > 1  # type: ignore[operator]
    assert any(isinstance(channel.admits.content, Cells) for channel in plan.channels)
    assert study_grid(["mst", "fbr"], "mirror-all", classes) is None
    assert study_grid(["mst"], "kyra", classes) == problem.grid
    assert study_grid(None, "mirror-all", classes) == problem.grid
    assert study_grid(["auto"], "mirror-all", classes) == problem.grid
    named = grid_for_schemes(["kyra:attributes=value", "mbr"], classes)
    assert named is not None
    assert [axis.path for axis in named.axes] == ["value"]


def test_the_grid_of_todays_plan_goes_first(tmp_path: Path) -> None:
    classes, _, problem = small()
    other = grid_for(classes, most_cells=7)
    workload = workload_from("kyra:zipf:values=200,events=400", problem.overlay, 3)
    demand = tally(workload.batches(), classes, problem.overlay, workload.attachments, grid=other)
    plan = make_plan("kyra", replace(problem, demand=demand, grid=other))
    write_plan(plan, tmp_path / "today.json")
    assert study_grid(["kyra"], str(tmp_path / "today.json"), classes) == other
    write_plan(make_plan("mst", problem), tmp_path / "mst.json")
    assert study_grid(["kyra"], str(tmp_path / "mst.json"), classes) == problem.grid


def made(
    plan: Plan, specs: list[str], demand: Demand | None, threshold: float | None = None
) -> ReplanResult:
    return ReplanResult.decode(make_plans(ReplanJob(plan, specs, demand, threshold).encode()))


def test_a_re_plan_divides_by_the_grid_that_its_demand_was_counted_with() -> None:
    _, _, problem = small()
    head = make_plan("unicast", problem)
    assert grid_of(head, ["mst"]) is None
    assert grid_of(head, ["mst", "kyra"]) == problem.grid
    assert grid_of(head, ["kyra:attributes=none"]) is None
    found = made(head, ["kyra"], problem.demand, threshold=0.0)
    assert found.plan is not None
    assert found.plan.grid == problem.grid
    assert found.plan.settings["zones"] > 1  # type: ignore[operator]
    check(found.plan, problem)
    assert grid_of(found.plan, ["mst"]) == problem.grid  # weighed against others on its own cells


def test_a_re_plan_without_counted_cells_still_delivers() -> None:
    _, _, problem = small()
    bare = replace(problem.demand, cell=np.full(len(problem.demand), -1, dtype=np.int32))
    found = made(make_plan("unicast", problem), ["kyra"], bare, threshold=0.0)
    assert found.plan is not None
    assert found.plan.settings["zones"] == 1


def test_a_plan_for_newcomers_divides_by_filters_alone() -> None:
    """The head's cells were counted for other classes; they say nothing about the cells chosen now."""
    _, _, problem = small()
    head = make_plan("kyra", replace(problem, grid=None))
    for demand in (None, problem.demand):
        found = made(head, ["kyra"], demand)
        assert found.plan is not None
        assert found.plan.grid == problem.grid
        assert found.plan.settings["zones"] > 1  # type: ignore[operator]
