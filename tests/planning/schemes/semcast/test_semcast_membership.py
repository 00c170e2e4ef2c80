"""Subscriptions that come and go on SemCast plans, with one coordinator or several: nobody is left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.graphs.generators import line
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Holds, Match, Plan, evaluate
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.semcast.membership import joined, left, ways_for
from worlds import FILTERS, SCHEMA, World, worlds

NAMES = ("semcast", "semcast-merge", "semcast-noisemerge", "semcast-filter", "semcast-delay")
changes = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, len(FILTERS) - 1), st.booleans()), max_size=8
)


def require_right(plan: Plan, world: World) -> None:
    """It is sound, delivers the world's events to all that want them, once, and is priced as it runs."""
    demand = tally([world.batch], plan.classes, world.overlay, world.attachments)
    check(plan, Problem.of(world.overlay, plan.classes, demand, plan.attachments))
    filters = {row.id: row.parse(SCHEMA.attributes) for rows in plan.classes.members for row in rows}
    wanted = {
        (event.id, id_)
        for event in world.events
        for id_, filter_ in filters.items()
        if filter_.holds(event.values)
    }
    done = Simulator(plan).simulate_events([world.batch])
    assert set(done.delivered) == wanted
    assert all(count == 1 for count in done.delivered.values())
    assert done.repeats == 0
    priced = price(plan, demand)
    assert priced.undelivered == 0
    np.testing.assert_array_equal(priced.messages, done.messages)


def require_leaves_are_gateways(plan: Plan) -> None:
    for channel in plan.channels:
        assert channel.tree is not None
        links = channel.tree.links
        degree = np.bincount(links.ravel(), minlength=len(plan.overlay))
        ends = set(np.flatnonzero(degree == 1).tolist()) - {channel.tree.root}
        assert ends <= set(channel.serves.at.tolist())


@settings(max_examples=50)
@given(world=worlds(7), steps=changes, name=st.sampled_from(NAMES), seed=st.integers(0, 3))
def test_any_changes_leave_a_plan_that_serves_everyone_once(
    world: World, steps: list[tuple[int, int, bool]], name: str, seed: int
) -> None:
    plan = make_plan(name, world.problem, seed)
    ways = ways_for(plan)
    for number, (broker, which, leave) in enumerate(steps):
        known = sorted(plan.classes.class_of)
        before = plan
        if leave and known:
            change = left(plan, known[(broker * 7 + which) % len(known)])
            assert change.opened is None
            assert not change.added
        else:
            host = world.overlay.brokers[broker % len(world.overlay)]
            row = Subscription(f"n{number}", f"nc{number}", host, **FILTERS[which])  # type: ignore[arg-type]
            change = joined(plan, row, ways)
            assert not change.removed
            assert not change.vanished
        plan = change.plan
        require_right(plan, world)
        require_leaves_are_gateways(plan)
        assert len(plan.channels) == len(before.channels) + (change.opened is not None)
        for c, channel in enumerate(before.channels):
            now = plan.channels[c]
            assert channel.tree is not None
            assert now.tree is not None
            had = {(int(a), int(b)) for a, b in channel.tree.links}
            has = {(int(a), int(b)) for a, b in now.tree.links}
            assert has - had == set(change.added.get(c, ()))
            assert had - has == set(change.removed.get(c, ()))
            assert (channel.admits != now.admits) == (c in change.reworded)
            assert (set(channel.serves.classes.tolist()) != set(now.serves.classes.tolist())) <= (
                c in change.channels or c in change.vanished
            )
        for c in change.vanished:
            gone = plan.channels[c]
            assert gone.admits.content == Holds(Match(()))
            assert len(gone.serves) == 0
            assert gone.tree is not None
            assert len(gone.tree.links) == 0
    assert decode_plan(encode_plan(plan)).channels == plan.channels


def test_a_covered_profile_joins_noise_channels_too() -> None:
    from test_semcast_scheme import _shared_problem

    problem = _shared_problem()
    seed = next(s for s in range(20) if make_plan("semcast", problem, s).settings["merges"])
    plan = make_plan("semcast", problem, seed)
    row = Subscription("new", "new", problem.overlay.brokers[5], sql="x < 3")
    change = joined(plan, row)
    assert change.channels == (0, 1)
    assert change.opened is None
    assert sorted(change.reworded) == [0, 1, 2]
    for matched, channel in (({2, 0}, 1), ({2, 0, 1}, 0)):
        admitted = [
            c
            for c, each in enumerate(change.plan.channels)
            if isinstance(each.admits.content, Holds) and evaluate(each.admits.content.expression, matched)
        ]
        assert admitted == [channel]
    opened = joined(plan, Subscription("o", "o", problem.overlay.brokers[5], sql="topic = 'z'"), point=3)
    assert opened.opened == 3
    assert opened.added == {3: ((3, 4), (4, 5))}


def test_of_several_hierarchies_the_one_that_takes_fewest_links_is_joined() -> None:
    """Both cover the newcomer; one is served at each end of a line, and the newcomer is at either."""
    overlay = line(9)
    ends = (overlay.brokers[0], overlay.brokers[8])
    rows = [Subscription("s0", "c0", ends[0], sql="x < 5"), Subscription("s1", "c1", ends[1], sql="x > 1")]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]))
    for seed in range(6):
        plan = make_plan("semcast", problem, seed)
        reached = [set() if c.tree is None else set(c.tree.brokers.tolist()) for c in plan.channels]
        for home, at in enumerate((0, 8)):
            change = joined(plan, Subscription("n", "n", overlay.brokers[at], sql="x = 3"))
            assert not change.added
            assert change.opened is None
            if at not in reached[1 - home]:
                assert change.channels == (home,)


def test_what_cannot_be_changed_is_refused() -> None:
    from test_semcast_scheme import _shared_problem

    problem = _shared_problem()
    plan = make_plan("semcast", problem, 0)
    with pytest.raises(InputError, match="exists already"):
        joined(plan, Subscription("s0", "c0", problem.overlay.brokers[10], sql="x < 6"))
    with pytest.raises(InputError, match="no subscription"):
        left(plan, "nobody")
    with pytest.raises(PlanError, match="mst"):
        left(make_plan("mst", problem, 0), "s0")
