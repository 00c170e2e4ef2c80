"""What moves between two plans of Kyra: by statistics, by grids, by brokers, and how a diff tells it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.space import Axis, Grid
from ramify.planning.choosing.diff import diff
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, make_plans
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Cells, Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.kyra.drift import Drift, clique_imbalance, drift, overlaid, proxies_of
from ramify.planning.schemes.shared.cell_loads import cell_loads
from worlds import GRID, World, worlds

FINER = Grid((Axis("x", (1, 3, 5, 6)),))
GRIDS = (
    None,
    GRID,
    FINER,
    Grid((Axis("x", (2, 5, 7)), Axis("topic", ("b", "c")))),
    Grid((Axis("topic", ("b",)),)),
    Grid((Axis("x", ("2", "5")),)),  # the attribute was taken for a string once
)
SPECS = ("kyra:max_distance=1000", "kyra:max_distance=3,trees=3", "kyra-mbr:max_distance=1000,trees=2")


def on_grid(world: World, grid: Grid | None, seed: int | None = None) -> Problem:
    """The world on a grid; with a seed, some of its events many times over."""
    demand = tally([world.batch], world.classes, world.overlay, world.attachments, grid=grid)
    if seed is not None:
        times = np.random.default_rng(seed).choice([1, 1, 100], len(demand))
        demand = replace(demand, count=demand.count * times, size=demand.size * times)
    return Problem.of(world.overlay, world.classes, demand, world.attachments, grid=grid)


def served_at(plan: Plan, id_: str, values: dict[str, object]) -> set[str]:
    """The brokers that look after a subscription for an event, read from the plan channel by channel."""
    cell = 0 if plan.grid is None else plan.grid.cell(values)
    k = plan.classes.class_of[id_]
    found = set()
    for channel in plan.channels:
        content, serves = channel.admits.content, channel.serves
        if isinstance(content, Cells) and cell not in content.cells:
            continue
        for row in np.flatnonzero(serves.classes == k).tolist():
            region = int(serves.region[row])
            if region < 0 or cell in plan.regions[region]:
                found.add(plan.overlay.brokers[int(serves.at[row])])
    return found


@settings(max_examples=60)
@given(
    world=worlds(),
    spec=st.sampled_from(SPECS),
    other=st.sampled_from(SPECS),
    grids=st.tuples(st.sampled_from(GRIDS), st.sampled_from(GRIDS)),
    seed=st.integers(0, 9),
)
def test_what_moves_is_what_some_event_finds_elsewhere(
    world: World, spec: str, other: str, grids: tuple[Grid | None, Grid | None], seed: int
) -> None:
    """Every event that the grids can tell apart is looked up in both plans, whatever grids they have."""
    old = make_plan(spec, on_grid(world, grids[0]))
    new = make_plan(other, on_grid(world, grids[1], seed))
    found = drift(old, new)
    assert found is not None
    xs = [{}, *({"x": x} for x in range(-1, 10))]
    events = [{**x, "topic": topic, "keywords": words} for x in xs for topic in "abc" for words in WORDS]
    filters = {row.id: row.parse(world.classes.schema) for row in world.subscriptions}
    moved = {
        id_
        for id_, filter_ in filters.items()
        for values in events
        if filter_.holds(values) and served_at(old, id_, values) != served_at(new, id_, values)
    }
    assert found.moved >= len(moved)  # a filter may touch a cell in which it accepts nothing
    assert found.of == len(filters)
    assert found.regridded == (grids[0] != grids[1])
    back = drift(new, old)
    assert back is not None
    assert back.moved == found.moved


WORDS = ((), ("news",), ("sport", "art"))


@settings(max_examples=40)
@given(world=worlds(), near=st.sampled_from([1, 4, 1000]), name=st.sampled_from(["kyra", "kyra-mbr"]))
def test_the_same_statistics_move_nothing(world: World, near: int, name: str) -> None:
    spec = f"{name}:max_distance={near},alpha=0.6101"
    found = drift(make_plan(spec, world.problem), make_plan(spec, world.problem, 5), world.demand)
    assert found is not None
    assert (found.moved, found.cells, found.of) == (0, 0, len(world.subscriptions))
    assert found.before == found.after


@settings(max_examples=40)
@given(world=worlds(), spec=st.sampled_from(SPECS))
def test_a_grid_that_is_merely_finer_moves_nothing(world: World, spec: str) -> None:
    plan = make_plan(spec, world.problem)
    over = overlaid(GRID, FINER)
    assert over.new.tolist() == list(range(FINER.size))

    def cut(cells: np.ndarray) -> np.ndarray:
        return np.flatnonzero(np.isin(over.old, cells)).astype(np.int32)

    channels = []
    for channel in plan.channels:
        content = channel.admits.content
        if isinstance(content, Cells):
            channel = replace(channel, admits=replace(channel.admits, content=Cells(cut(content.cells))))
        channels.append(channel)
    regions = tuple(cut(region) for region in plan.regions)
    same = replace(plan, grid=FINER, channels=tuple(channels), regions=regions)
    for pair in ((plan, same), (same, plan)):
        found = drift(*pair)
        assert found is not None
        assert (found.moved, found.cells, found.regridded) == (0, 0, True)


@settings(max_examples=60)
@given(old=st.sampled_from(GRIDS), new=st.sampled_from(GRIDS), data=st.data())
def test_grids_laid_over_each_other_tell_both_cells(
    old: Grid | None, new: Grid | None, data: st.DataObject
) -> None:
    over = overlaid(old, new)
    values = {
        "x": data.draw(st.none() | st.integers(-1, 9) | st.sampled_from(["1", "3", "7"])),
        "topic": data.draw(st.sampled_from("abc")),
    }
    values = {path: value for path, value in values.items() if value is not None}
    here = [0 if grid is None else grid.cell(values) for grid in (old, new)]
    pairs = list(zip(over.old.tolist(), over.new.tolist(), strict=True))
    assert pairs.count((here[0], here[1])) == 1
    assert len(set(pairs)) == len(pairs)


def test_zones_follow_what_is_published(shifting: tuple[Problem, Problem]) -> None:
    """All events at one end: the zones there shrink, and load is even again."""
    before, after = shifting
    old, new = (make_plan("kyra:max_distance=1000,alpha=0.6101", problem) for problem in shifting)
    found = drift(old, new, after.demand)
    assert found is not None
    assert found.moved > 0
    assert found.before is not None
    assert found.after is not None
    assert found.after < found.before
    was, now = proxies_of(old), proxies_of(new)
    assert was is not None
    assert now is not None
    assert after.grid is not None
    load = cell_loads(after, after.grid, 0.6101)
    assert (found.before, found.after) == (clique_imbalance(was, load), clique_imbalance(now, load))
    touching = {
        row.id
        for k, row in enumerate(before.classes.spelled)
        for cell in after.grid.cells_touched(before.classes.filters[k]).tolist()
        if was[before.classes.broker[k], cell] != now[before.classes.broker[k], cell]
    }
    assert found.moved == len(touching)
    unknown = drift(old, new)
    assert unknown == replace(found, before=None, after=None)


def test_other_plans_have_no_zones(shifting: tuple[Problem, Problem]) -> None:
    plan = make_plan("kyra:max_distance=1000", shifting[0])
    for spec in ("fbr", "mst", "mbr", "unicast"):
        other = make_plan(spec, shifting[0])
        assert drift(plan, other) is None
        assert drift(other, plan) is None
        assert diff(other, plan).drift is None
        assert proxies_of(other) is None


def test_brokers_go_by_name_and_those_that_are_gone_count(shifting: tuple[Problem, Problem]) -> None:
    plan = make_plan("kyra:max_distance=1000", shifting[0])
    found = drift(plan, plan)
    assert found is not None
    assert found.moved == 0
    overlay = plan.overlay
    others = [f"other {name}" if i else name for i, name in enumerate(overlay.brokers)]
    renamed = type(overlay)(overlay.name, others, overlay.ends, overlay.price, overlay.latency_ms)
    moved = drift(plan, replace(plan, overlay=renamed))
    assert moved is not None
    here = [k for k, broker in enumerate(plan.classes.broker.tolist()) if broker == 0]
    assert moved.of == sum(len(plan.classes.members[k]) for k in here)
    assert moved.moved > 0


def test_a_diff_tells_it_in_words_and_in_json(shifting: tuple[Problem, Problem]) -> None:
    old, new = (make_plan("kyra:max_distance=1000,alpha=1", problem) for problem in shifting)
    found = diff(old, new)
    assert found.drift == drift(old, new)
    assert found.drift is not None
    lines = str(found).splitlines()
    assert f"zones: {found.drift}" in lines
    assert f"{found.drift.moved} of {found.drift.of} subscriptions move" in str(found.drift)
    told = json.loads(found.to_json())["drift"]
    assert (told["moved"], told["of"]) == (found.drift.moved, found.drift.of)
    same = diff(old, decode_plan(encode_plan(old)))
    assert not same
    assert str(same) == "no difference"
    assert same.drift == Drift(0, found.drift.of, 0)
    regridded = make_plan("kyra:max_distance=1000,alpha=1", on_grid_of(shifting[1], FINER))
    assert "compared by content" in str(diff(old, regridded).drift)


def test_a_re_plan_says_how_many_subscriptions_move(shifting: tuple[Problem, Problem]) -> None:
    before, after = shifting
    spec = "kyra:max_distance=1000,alpha=0.6101"
    old = make_plan(f"{spec},ring_limit=1", before)  # dearer, so that there is something to save
    made = ReplanResult.decode(make_plans(ReplanJob(old, [spec], after.demand, 0.0).encode()))
    assert made.plan is not None
    assert made.moves == str(drift(old, made.plan, after.demand))
    assert "after" in made.moves
    flat = ReplanResult.decode(make_plans(ReplanJob(old, ["explicit"], after.demand, 0.0).encode()))
    assert flat.plan is not None
    assert flat.moves == ""


@pytest.fixture(scope="module")
def shifting() -> tuple[Problem, Problem]:
    """Six brokers in a clique; events spread evenly, then nearly all at the low end."""
    from ramify.content.events.events import AttributeType, Event, EventSchema, events_to_batch
    from ramify.content.filters.subscriptions import Subscription
    from ramify.network.graphs.generators import full_mesh
    from ramify.planning.demand.classes import Classes

    overlay = full_mesh(6)
    names = overlay.brokers
    rows = [
        Subscription(f"s{i}", f"c{i}", names[i % 6], sql=f"x BETWEEN {i} AND {i + 2}") for i in range(18)
    ]
    schema = EventSchema({"x": AttributeType.INT64})
    classes = Classes.collapse(rows, overlay, schema.attributes)
    grid = Grid((Axis("x", tuple(range(1, 20))),))
    problems = []
    for times in (lambda x: 2, lambda x: 40 if x < 4 else 1):
        events = [
            Event(id=f"e{x}.{i}", publisher=names[x % 6], attributes={"x": x}, size_bytes=100)
            for x in range(20)
            for i in range(times(x))
        ]
        demand = tally([events_to_batch(events, schema)], classes, overlay, {}, grid=grid)
        problems.append(Problem.of(overlay, classes, demand, grid=grid))
    for problem in problems:
        check(make_plan("kyra:max_distance=1000", problem), problem)
    return problems[0], problems[1]


def on_grid_of(problem: Problem, grid: Grid) -> Problem:
    """The problem with no event counted, on another grid."""
    from ramify.planning.demand.demand import Demand

    return replace(problem, demand=Demand.of([]), grid=grid)
