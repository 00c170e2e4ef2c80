"""The SemCast schemes: the paper's own cost, latency bounds, variants, and what their parameters allow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.network.trees.trees import Tree
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.plan import All, Expression, Holds, Match, Negation, Plan, Pruning, evaluate
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan, scheme_from
from ramify.planning.schemes.semcast.schemes import SemcastParams
from worlds import SCHEMA, World, worlds

FLOODS = ("semcast", "semcast-merge", "semcast-noisemerge", "semcast-o", "semcast-delay", "semcast-best")


@pytest.mark.parametrize("name", FLOODS)
@settings(max_examples=20)
@given(world=worlds(), seed=st.integers(0, 3))
def test_the_papers_cost_is_the_messages_on_trees(name: str, world: World, seed: int) -> None:
    """Every event of a channel crosses every link of its tree once; legs are not counted."""
    plan = make_plan(name, world.problem, seed)
    priced = price(plan, world.demand)
    assert plan.settings["paper_cost"] == (priced.messages - priced.leg_messages).sum()


@settings(max_examples=30)
@given(world=worlds(), seed=st.integers(0, 3), name=st.sampled_from(FLOODS))
def test_channels_of_a_class_are_disjoint_and_cover_it(world: World, seed: int, name: str) -> None:
    """For every set of classes that an event may match: each of them is admitted exactly once."""
    plan = make_plan(name, world.problem, seed)
    count = len(world.classes)
    rng = np.random.default_rng(seed)
    for _ in range(40):
        matched = frozenset(np.flatnonzero(rng.random(count) < rng.random()).tolist())
        got = [
            int(k)
            for channel in plan.channels
            if isinstance(channel.admits.content, Holds)
            and evaluate(channel.admits.content.expression, matched)
            for k in channel.serves.classes
        ]
        assert matched <= set(got)
        assert len(got) == len(set(got))
        assert all(channel.pruning is Pruning.NONE for channel in plan.channels)


@settings(max_examples=20)
@given(world=worlds(), seed=st.integers(0, 3))
def test_filters_run_on_the_same_trees_and_save_messages(world: World, seed: int) -> None:
    flooded = make_plan("semcast", world.problem, seed)
    filtered = make_plan("semcast-filter", world.problem, seed)
    assert [channel.tree for channel in flooded.channels] == [channel.tree for channel in filtered.channels]
    assert all(channel.pruning is Pruning.FILTER for channel in filtered.channels)
    assert price(filtered, world.demand).message_count <= price(flooded, world.demand).message_count


@settings(max_examples=40)
@given(world=worlds(), seed=st.integers(0, 3), data=st.data())
def test_latency_bounds_are_kept_or_refused_by_name(world: World, seed: int, data: st.DataObject) -> None:
    limits = st.none() | st.sampled_from([1.0, 4.0, 8.0, 15.0, 40.0])
    rows = tuple(replace(row, latency_ms=data.draw(limits)) for row in world.subscriptions)
    classes = Classes.collapse(rows, world.overlay, SCHEMA.attributes)
    problem = Problem.of(world.overlay, classes, world.demand, world.attachments)
    plan = make_plan("semcast-delay", problem, seed)
    check(plan, problem)
    worst = price(plan, world.demand).class_ms
    refused = set(str(plan.settings["refused_subscriptions"]).split(", ")) - {""}
    assert len(refused) == min(8, int(plan.settings["refused"]))
    for k, members in enumerate(classes.members):
        for row in members:
            if row.latency_ms is not None and worst[k] > row.latency_ms * (1 + 1e-6):
                assert row.id in refused or int(plan.settings["refused"]) > 8


@settings(max_examples=30)
@given(world=worlds(), seed=st.integers(0, 3))
def test_publishers_that_are_not_expected_have_no_legs(world: World, seed: int) -> None:
    some = sorted(set(world.attachments.values()))
    problem = Problem.of(world.overlay, world.classes, world.demand, world.attachments, publishers=some[:1])
    plan = make_plan("semcast", problem, seed)
    check(plan, problem)
    assert price(plan, world.demand).undelivered == 0
    assert {origin for origin, _ in plan.paths} <= set(problem.publishers.tolist())


def test_overlapping_profiles_get_a_common_channel_and_two_of_noise() -> None:
    """Two profiles that share most of their messages, at neighbours far from the rendezvous points."""
    problem = _shared_problem()
    seed = next(s for s in range(20) if make_plan("semcast", problem, s).settings["merges"])
    plan = make_plan("semcast", problem, seed)
    one, other = Match((0,)), Match((1,))
    wanted: list[Expression] = [All((one, other)), All((one, Negation(other))), All((other, Negation(one)))]
    assert [c.admits.content for c in plan.channels] == [Holds(expression) for expression in wanted]
    assert [c.serves.classes.tolist() for c in plan.channels] == [[0, 1], [0], [1]]
    merged = make_plan("semcast-merge", problem, seed)
    assert [c.admits.content for c in merged.channels] == [Holds(Match((0, 1)))]
    apart = make_plan("semcast:iterations=0", problem, seed)
    assert [c.admits.content for c in apart.channels] == [Holds(one), Holds(other)]
    assert apart.settings["cut_short"]


def _shared_problem() -> Problem:
    from ramify.content.filters.subscriptions import Subscription
    from ramify.network.graphs.generators import line

    overlay = line(12, name="line")
    rows = [
        Subscription("s0", "c0", overlay.brokers[10], sql="x < 6"),
        Subscription("s1", "c1", overlay.brokers[11], sql="x > 1"),
    ]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    patterns = [(0, (0, 1), 20, 0), (0, (0,), 1, 0), (0, (1,), 1, 0)]
    return Problem.of(overlay, classes, Demand.of(patterns))


def test_the_best_rendezvous_point_is_on_the_way() -> None:
    """Publisher at one end of a line, destinations at the other: no root in between costs more."""
    plan = make_plan("semcast-best", _shared_problem(), 0)
    priced = price(plan, _shared_problem().demand)
    assert priced.message_count == 20 * 11 + 10 + 11


def test_trees_hang_from_their_rendezvous_points() -> None:
    problem = _shared_problem()
    for name in FLOODS:
        plan: Plan = make_plan(name, problem, 4)
        for channel in plan.channels:
            assert channel.tree is not None
            assert channel.tree.root is not None
            made = Tree.of_links(len(problem.overlay), channel.tree.links, channel.tree.root)
            assert set(channel.serves.at.tolist()) <= set(made.order.tolist())
            assert channel.entry.target(3) == channel.tree.root


def test_parameters_that_make_no_sense_are_refused() -> None:
    wrong = (
        {"rendezvous": "nowhere"},
        {"trees": "none"},
        {"noise": "loud"},
        {"orders": 0},
        {"most_terms": 30},
        {"iterations": -1},
        {"seconds": -1.0},
    )
    for given_ in wrong:
        with pytest.raises(InputError, match=next(iter(given_))):
            SemcastParams(**given_)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown parameter 'trees'"):
        scheme_from("semcast-o:trees=delay")
