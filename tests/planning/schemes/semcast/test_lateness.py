"""Whose bound a SemCast plan keeps: everyone's whom some way reaches in time, wherever its roots are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_semcast_membership import require_leaves_are_gateways

from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.generators import line
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check
from ramify.planning.plans.growth import terms
from ramify.planning.plans.lateness import TooLateError, late_subscriptions
from ramify.planning.plans.plan import Holds, Plan, evaluate
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from worlds import SCHEMA, World, worlds

SPECS = (
    "semcast-delay",
    "semcast-delay:iterations=0",
    "semcast-delay:noise=merge",
    "semcast-delay:noise=never",
    "semcast-delay:rendezvous=best",
)
SHARES = st.none() | st.sampled_from([0.2, 0.99, 1.0, 1.0, 1.01, 1.5, 4.0])


def worst_ways(overlay: Overlay, publishers: list[int]) -> list[float]:
    """By Floyd and Warshall: to each broker the slowest of the fastest ways from others that publish."""
    n = len(overlay)
    far = np.full((n, n), np.inf)
    np.fill_diagonal(far, 0.0)
    for (a, b), ms in zip(overlay.ends.tolist(), overlay.latency_ms.tolist(), strict=True):
        far[a, b] = far[b, a] = min(far[a, b], ms)
    for via in range(n):
        far = np.minimum(far, far[:, via, None] + far[via])
    return [max((far[o, b] for o in publishers if o != b), default=0.0) for b in range(n)]


def require_each_once(plan: Plan, seed: int) -> None:
    """Whatever classes an event matches, of the channels that admit it one serves each of them."""
    rng = np.random.default_rng(seed)
    for _ in range(30):
        matched = frozenset(np.flatnonzero(rng.random(len(plan.classes)) < rng.random()).tolist())
        got = [
            int(k)
            for channel in plan.channels
            if isinstance(channel.admits.content, Holds)
            and evaluate(channel.admits.content.expression, matched)
            for k in channel.serves.classes
        ]
        assert matched <= set(got)
        assert len(got) == len(set(got))


@settings(max_examples=120)
@given(
    world=worlds(8),
    seed=st.integers(0, 5),
    spec=st.sampled_from(SPECS),
    few=st.booleans(),
    data=st.data(),
)
def test_a_subscription_is_late_exactly_if_no_way_reaches_it_in_time(
    world: World, seed: int, spec: str, few: bool, data: st.DataObject
) -> None:
    """And those wait no longer than they must. Nobody else pays for it: all get everything once."""
    names = sorted({at for client, at in world.attachments.items() if client.startswith("p")})
    publishers = names if few else list(world.overlay.brokers)
    least = worst_ways(world.overlay, [world.overlay.index[name] for name in publishers])
    rows = []
    for row in world.subscriptions:
        share = data.draw(SHARES)
        ms = None if share is None else share * least[world.overlay.index[row.broker]] or 1.0
        rows.append(replace(row, latency_ms=ms))
    classes = Classes.collapse(rows, world.overlay, SCHEMA.attributes)
    demand = tally([world.batch], classes, world.overlay, world.attachments)
    problem = Problem.of(world.overlay, classes, demand, world.attachments, publishers=publishers)
    plan = check(make_plan(spec, problem, seed), problem)
    must = {row.id: least[world.overlay.index[row.broker]] for row in rows}
    wanted = {
        row.id: pytest.approx(must[row.id])
        for row in rows
        if row.latency_ms is not None and must[row.id] > row.latency_ms * (1 + 1e-6)
    }
    assert {late.id: late.ms for late in late_subscriptions(plan)} == wanted
    strict = f"{spec}{',' if ':' in spec else ':'}late=refuse"
    if wanted:
        with pytest.raises(TooLateError) as refused:
            make_plan(strict, problem, seed)
        assert {late.id: late.ms for late in refused.value.late} == wanted
    else:
        assert make_plan(strict, problem, seed).channels == plan.channels
    require_each_once(plan, seed)
    require_leaves_are_gateways(plan)
    for channel in plan.channels:  # none is left over that serves nobody or can carry nothing
        assert len(channel.serves)
        assert isinstance(channel.admits.content, Holds)
        assert all(term.classes for term in terms(channel.admits.content.expression))
    done, priced = Simulator(plan).simulate_events([world.batch]), price(plan, demand)
    assert set(done.delivered) == world.wanted()
    assert all(count == 1 for count in done.delivered.values())
    np.testing.assert_array_equal(priced.messages, done.messages)
    assert plan.settings["paper_cost"] == (priced.messages - priced.leg_messages).sum()


@pytest.mark.parametrize("seed", range(8))
def test_a_random_root_out_of_the_way_is_no_reason_to_refuse(seed: int) -> None:
    overlay = line(10)
    rows = [Subscription("s", "s", overlay.brokers[1], sql="x = 1", latency_ms=1.5)]
    plan = on_line(overlay, rows, seed)
    (channel,) = plan.channels
    assert channel.tree is not None
    assert (channel.tree.root, len(channel.tree.links)) in {(1, 0), (0, 1)}


def test_who_leaves_a_hierarchy_takes_its_events_along() -> None:
    """Broker 1 wants all, soon; broker 9 little, whenever: what it does not want stays off its tree."""
    overlay = line(10)
    rows = [
        Subscription("s", "s", overlay.brokers[1], sql="x >= 0", latency_ms=1.0),
        Subscription("t", "t", overlay.brokers[9], sql="x = 1"),
    ]
    plans = [on_line(overlay, rows, seed) for seed in range(20)]
    apart = [plan for plan in plans if len(plan.channels) == 2 and plan.settings["hierarchies"] == 1]
    assert apart
    for plan in apart:
        admitted = [
            [
                isinstance(channel.admits.content, Holds)
                and evaluate(channel.admits.content.expression, set(matched))
                for channel in plan.channels
            ]
            for matched in ((0,), (0, 1))
        ]
        assert admitted == [[False, True], [True, True]]
        assert [channel.serves.classes.tolist() for channel in plan.channels] == [[1], [0]]
        assert plan.settings["paper_cost"] == 10 * len(plan.channels[0].tree.links)  # type: ignore[union-attr]


def on_line(overlay: Overlay, rows: list[Subscription], seed: int) -> Plan:
    """Published at its first broker: all want 10 events, the first subscription 3 more."""
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    demand = Demand.of([(0, tuple(range(len(rows))), 10, 100), (0, (0,), 3, 100)])
    problem = Problem.of(overlay, classes, demand, publishers=[overlay.brokers[0]])
    return check(make_plan("semcast-delay:late=refuse", problem, seed), problem)
