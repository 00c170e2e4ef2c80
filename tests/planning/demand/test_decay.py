"""What events have decayed to equals a sum by hand, however they came; counts and prices stay."""

import contextlib
import math
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.generators import line
from ramify.planning.choosing.replan import (
    ReplanJob,
    ReplanResult,
    _demand_in,
    _demand_out,
    _part,
    make_plans,
)
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.decay import MOST_HALF_LIVES, NO_PANE, Decay, checked_half_life, pane_for
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally, TallySettings, tally
from ramify.planning.plans.files import encode_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from worlds import GRID, SCHEMA, World, worlds

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = ("publisher", "client", "cell", "start", "classes", "count", "size", "tags")


def same_counts(one: Demand, other: Demand) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


def recent_of(demand: Demand) -> np.ndarray:
    assert demand.recent is not None
    return demand.recent


def with_times(world: World, seconds: list[float | None]) -> World:
    """The same events at other times; None: at no time."""
    given = [None if s is None else NOON + timedelta(seconds=s) for s in seconds]
    events = tuple(replace(e, time=given[i % len(given)]) for i, e in enumerate(world.events))
    return replace(world, events=events)


def by_hand(world: World, demand: Demand, half_life_s: float) -> np.ndarray:
    """Event by event: an event is as old as its pane, which ends where the next begins."""
    pane_us = pane_for(half_life_s)
    ends = {
        event.id: (round(event.time.timestamp() * 1e6) // pane_us + 1) * pane_us
        for event in world.events
        if event.time is not None
    }
    now = max(ends.values())
    place = {
        (int(demand.publisher[i]), int(demand.cell[i]), tuple(demand[i].tolist())): i
        for i in range(len(demand))
    }
    filters = world.classes.filters
    cells = GRID.locate(world.batch)
    found = np.zeros((2, len(demand)))
    for event, cell in zip(world.events, cells.tolist(), strict=True):
        matched = tuple(k for k, f in enumerate(filters) if f.holds(event.values))
        at = world.overlay.index[world.attachments[event.publisher or ""]]
        age = now - ends.get(event.id, now)
        weight = 2.0 ** -(min(age / 1e6 / half_life_s, MOST_HALF_LIVES))
        found[:, place[at, cell, matched]] += weight, weight * event.size_bytes
    return found


times = st.lists(st.none() | st.floats(-5000, 5000), min_size=1, max_size=7).filter(
    lambda drawn: drawn[0] is not None
)


@settings(max_examples=60)
@given(world=worlds(5), seconds=times, half_life_s=st.sampled_from([0.5, 60.0, 86400.0]), data=st.data())
def test_decayed_counts_are_the_sum_over_events_whatever_the_batches(
    world: World, seconds: list[float | None], half_life_s: float, data: st.DataObject
) -> None:
    world = with_times(world, seconds)
    if not world.events:
        return
    given_to = (world.classes, world.overlay, world.attachments)
    found = tally([world.batch], *given_to, grid=GRID, half_life_s=half_life_s)
    same_counts(found, world.demand)
    np.testing.assert_allclose(recent_of(found), by_hand(world, found, half_life_s), rtol=1e-12)
    assert (recent_of(found)[0] > 0).all()
    assert (recent_of(found)[0] <= found.count * (1 + 1e-12)).all()
    order = data.draw(st.permutations(range(len(world.events))))
    cut = data.draw(st.integers(0, len(order)))
    counted = Tally(*given_to, grid=GRID, half_life_s=half_life_s)
    for part in (order[:cut], order[cut:]):
        counted.add(world.batch.take(np.array(part, dtype=np.int64)))
        with contextlib.suppress(InputError):  # so far nothing has a time
            counted.windows()
    again = counted.windows().whole
    same_counts(again, found)
    np.testing.assert_array_equal(recent_of(again), recent_of(found))  # to the last bit


@settings(max_examples=40)
@given(world=worlds(5), seconds=times)
def test_windows_decay_by_the_same_time_and_add_up(world: World, seconds: list[float | None]) -> None:
    world = with_times(world, seconds)
    if not world.events:
        return
    split = Split((0.5, 0.25, 0.25), seed=3)
    counted = Tally(world.classes, world.overlay, world.attachments, split=split, half_life_s=30.0)
    counted.add(world.batch)
    windows = counted.windows()
    parts = sum(recent_of(part).sum(axis=1) for part in windows.parts)
    np.testing.assert_allclose(parts, recent_of(windows.whole).sum(axis=1))


@given(world=worlds(5))
def test_without_a_half_life_or_with_an_infinite_one_nothing_decays(world: World) -> None:
    forever = tally(
        [world.batch],
        world.classes,
        world.overlay,
        world.attachments,
        grid=GRID,
        half_life_s=math.inf,
    )
    assert forever.recent is None
    same_counts(forever, world.demand)
    if world.events:
        long = tally([world.batch], world.classes, world.overlay, world.attachments, half_life_s=1e15)
        np.testing.assert_allclose(recent_of(long), np.stack((long.count, long.size)), rtol=1e-9)


@given(world=worlds(5), data=st.data())
def test_patterns_that_change_or_are_chosen_take_their_decay_along(
    world: World, data: st.DataObject
) -> None:
    if not world.events or not len(world.classes):
        return
    demand = tally([world.batch], world.classes, world.overlay, world.attachments, half_life_s=2.0)
    total = recent_of(demand).sum(axis=1)
    k = data.draw(st.integers(0, len(world.classes) - 1))
    without = demand.without_class(k)
    np.testing.assert_allclose(recent_of(without).sum(axis=1), total)
    matched = np.array([k in demand[i] for i in range(len(demand))], dtype=np.bool_)
    back = demand.with_class(k, matched)
    np.testing.assert_array_equal(recent_of(back), recent_of(demand))
    rows = data.draw(st.lists(st.integers(0, len(demand) - 1), unique=True))
    np.testing.assert_array_equal(recent_of(demand.take(rows)), recent_of(demand)[:, rows])
    sent = _demand_in(_demand_out(demand))
    np.testing.assert_array_equal(recent_of(sent), recent_of(demand))
    assert _demand_in(_demand_out(world.demand)).recent is None
    first = demand.count // 2
    parts = [_part(demand, first), _part(demand, demand.count - first)]
    np.testing.assert_allclose(sum(recent_of(part).sum(axis=1) for part in parts), total)


def test_rows_of_equal_patterns_are_weighed_one_by_one() -> None:
    rows = [(0, (1,), 2, 10), (0, (1,), 1, 4), (1, (), 3, 0)]
    demand = Demand.of(rows, weights=[0.5, 0.25, 1.0])
    assert recent_of(demand).tolist() == [[1.25, 3.0], [6.0, 0.0]]
    assert demand.count.tolist() == [3, 3]
    assert Demand.of(rows).recent is None
    assert recent_of(Demand.of([], weights=[])).shape == (2, 0)


def test_the_weight_of_a_pane() -> None:
    pane = np.array([0, 60, 120, NO_PANE, 10**9]) * np.array([10**6, 10**6, 10**6, 1, 10**6])
    decay = Decay.of(30.0, 60_000_000, np.array([0, 120_000_000]))
    assert decay is not None
    assert decay.now_us == 180_000_000
    assert decay.weights(pane).tolist() == [0.0625, 0.25, 1.0, 1.0, 1.0]
    old = replace(decay, now_us=10**18)
    assert old.weights(np.array([0])).tolist() == [2.0**-MOST_HALF_LIVES]


def test_half_lives_that_cannot_be_and_events_without_times_are_refused() -> None:
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="half-life"):
            checked_half_life(wrong)
    overlay = line(2)
    rows = [Subscription("s", "c", overlay.brokers[1], sql="x > 0")]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    batch = events_to_batch([Event("e", overlay.brokers[0])], SCHEMA)
    with pytest.raises(InputError, match="no event has a time"):
        tally([batch], classes, overlay, {}, half_life_s=60.0)
    assert tally([], classes, overlay, {}, half_life_s=60.0).events == 0
    assert TallySettings.of(classes, overlay, {}, half_life_s=64.0).pane_us == 1_000_000
    assert TallySettings.of(classes, overlay, {}, half_life_s=64.0, pane_us=5).pane_us == 5


# ------------------------------------------------------------------------------------- planning by it


def _drifting(half_life_s: float | None) -> tuple[Problem, Demand]:
    """On a line of 9: first much is wanted at the left end, then, for a minute, some at the right end.

    The demand of all of it, and that of the last minute.
    """
    overlay = line(9)
    rows = [
        Subscription(id_, f"c{id_}", overlay.brokers[at], sql=sql)
        for id_, at, sql in (("a0", 0, "topic = 'a'"), ("a1", 1, "topic = 'a'"), ("b0", 8, "topic = 'b'"))
    ]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)

    def event(i: int, at: int, topic: str, second: float) -> Event:
        when = NOON + timedelta(seconds=second)
        return Event(f"e{i}", overlay.brokers[at], when, size_bytes=100, attributes={"topic": topic})

    old = [event(i, 1, "a", i) for i in range(400)]
    new = [event(1000 + i, 7, "b", 36000 + i) for i in range(60)]
    whole = events_to_batch([*old, *new], SCHEMA)
    demand = tally([whole], classes, overlay, {}, half_life_s=half_life_s)
    late = tally([events_to_batch(new, SCHEMA)], classes, overlay, {})
    return Problem.of(overlay, classes, demand, {}), late


def test_a_hub_moves_to_where_recent_events_are_and_prices_do_not() -> None:
    always, _ = _drifting(None)
    recent, late = _drifting(600.0)
    before, after = make_plan("hub", always, 0), make_plan("hub", recent, 0)
    assert price(after, late).cost < price(before, late).cost
    assert price(after, always.demand).cost > price(before, always.demand).cost
    # what a plan costs is the same whatever has decayed
    assert price(after, recent.demand).figures() == price(after, always.demand).figures()


def test_semcast_roots_channels_where_recent_events_are() -> None:
    """A hierarchy has publishers at both ends: its rendezvous point follows the recent ones."""
    overlay = line(9)
    rows = [Subscription(f"s{at}", f"c{at}", overlay.brokers[at], sql="x >= 0") for at in (3, 5)]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    patterns = [(0, (0, 1), 50, 5000), (8, (0, 1), 10, 1000)]
    roots: dict[str, set[int | None]] = defaultdict(set)
    for name, weights in (("all", None), ("recent", [2.0**-20, 1.0])):
        problem = Problem.of(overlay, classes, Demand.of(patterns, weights=weights), {})
        np.testing.assert_allclose(
            problem.pattern_weight, [5050, 1010] if weights is None else [5050 * 2.0**-20, 1010]
        )
        for seed in range(6):
            plan = make_plan("semcast-best", problem, seed)
            roots[name] |= {c.tree.root for c in plan.channels if c.tree is not None}
    assert roots == {"all": {3}, "recent": {5}}


def test_a_job_is_made_for_recent_events_and_weighed_on_all() -> None:
    always, _ = _drifting(None)
    recent, _ = _drifting(600.0)
    bare = make_plan("mst", always, 0)
    plans = []
    for problem in (always, recent):
        job = ReplanJob(bare, ["hub"], problem.demand, seed=1)
        plan = ReplanResult.decode(make_plans(job.encode())).plan
        assert plan is not None
        assert encode_plan(plan) == encode_plan(make_plan("hub", problem, 1))
        plans.append(plan)
    assert encode_plan(plans[0]) != encode_plan(plans[1])
    weighed = ReplanResult.decode(make_plans(ReplanJob(bare, ["hub"], recent.demand, 0.0, seed=1).encode()))
    unseen = replace(recent.demand, recent=None)
    same = ReplanResult.decode(make_plans(ReplanJob(bare, ["mst"], unseen, 0.0, seed=1).encode()))
    assert weighed.old_cost is not None
    assert weighed.old_cost == same.old_cost
