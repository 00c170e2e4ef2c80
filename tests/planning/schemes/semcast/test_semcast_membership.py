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
from ramify.planning.schemes.catalog import SCHEMES, make_plan
from ramify.planning.schemes.semcast.coordinators import Coordinators
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


# ---------------------------------------------------------------------------------------- coordinators

ATTRIBUTES = tuple(SCHEMA.attributes)


def coordinators(
    world: World, owner: list[int], seed: int = 0, most: int = 10_000, half_life_s: float | None = None
) -> Coordinators:
    count = max(owner) + 1
    shares = [[name for name, i in zip(ATTRIBUTES, owner, strict=True) if i == one] for one in range(count)]
    return Coordinators(
        world.overlay,
        SCHEMA.attributes,
        shares,
        SCHEMES["semcast"],
        attachments=world.attachments,
        seed=seed,
        most_messages=most,
        half_life_s=half_life_s,
    )


@settings(max_examples=30)
@given(
    world=worlds(6),
    owner=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    cut=st.integers(0, 10),
    gone=st.sets(st.integers(0, 9)),
    most=st.sampled_from([1, 7, 10_000]),
    half_life_s=st.none() | st.just(2.0),
)
def test_however_attributes_are_shared_the_channels_are_those_of_one_coordinator(
    world: World, owner: list[int], cut: int, gone: set[int], most: int, half_life_s: float | None
) -> None:
    """Whatever came and went, how few messages they keep, and how these decay."""
    alone = coordinators(world, [0, 0, 0], most=most, half_life_s=half_life_s)
    shared = coordinators(world, owner, most=most, half_life_s=half_life_s)
    for one in (alone, shared):
        for number, row in enumerate(world.subscriptions):
            if number == cut:
                for i, event in enumerate(world.events):
                    at = world.overlay.index[world.attachments[event.publisher]]
                    one.sample(at, event.values, 3, at_s=float(i))
                one.reorganise()
                require_right(one.plan, world)
            one.subscribe(row)
            require_right(one.plan, world)
        for number in sorted(gone):
            if number < len(world.subscriptions):
                one.unsubscribe(world.subscriptions[number].id)
        require_right(one.plan, world)
        for event in world.events:
            one.sample(world.overlay.index[world.attachments[event.publisher]], event.values, 3)
        one.reorganise()
        require_right(one.plan, world)
    assert encode_plan(alone.plan) == encode_plan(shared.plan)
    for one in shared.each:
        for filter_ in one.filters.values():
            assert not filter_.paths or one.attributes & filter_.paths
        assert len(one.profiles) == len({filter_.key for filter_ in one.filters.values()})
        assert len(one.seen) <= most


@settings(max_examples=25)
@given(world=worlds(5), most=st.integers(1, 30), half_life_s=st.none() | st.just(4.0))
def test_channels_are_made_of_the_latest_messages_as_they_have_decayed(
    world: World, most: int, half_life_s: float | None
) -> None:
    """By hand: a plan for a demand of the last messages, with what profiles matched since they came."""
    one = coordinators(world, [0, 0, 0], most=most, half_life_s=half_life_s)
    half = len(world.events) // 2
    rows, late = world.subscriptions[1:], world.subscriptions[:1]
    for row in rows:
        one.subscribe(row)
    known: list[set[str]] = []
    for i, event in enumerate(world.events):
        if i == half:
            for row in late:
                one.subscribe(row)
        there = [*rows, *late] if i >= half else rows
        known.append({row.parse(SCHEMA.attributes).key for row in there})
        at = world.overlay.index[world.attachments[event.publisher]]
        one.sample(at, event.values, event.size_bytes, at_s=2.0 * i)
    if not world.events:
        return
    found = one.reorganise()
    present = sorted([*rows, *late] if half < len(world.events) else rows, key=lambda row: row.id)
    classes = Classes.collapse(present, world.overlay, SCHEMA.attributes)
    patterns = [
        (
            world.overlay.index[world.attachments[event.publisher]],
            [k for k, f in enumerate(classes.filters) if f.key in keys and f.holds(event.values)],
            1,
            event.size_bytes,
        )
        for event, keys in list(zip(world.events, known, strict=True))[-most:]
    ]
    last = len(patterns) - 1
    weights = None if half_life_s is None else [float(np.exp2(-(last - m) / 2)) for m in range(last + 1)]
    demand = Demand.of(patterns, weights=weights)
    problem = Problem.of(world.overlay, classes, demand, world.attachments)
    scheme = SCHEMES["semcast"]
    made = scheme.plan(problem, scheme.params(), np.random.default_rng(0), lambda *_: None)
    assert encode_plan(found) == encode_plan(made)


def test_what_profiles_matched_is_forgotten_with_them_and_room_is_used_again() -> None:
    overlay = line(3)
    one = Coordinators(overlay, SCHEMA.attributes, [["x"]], SCHEMES["semcast"], most_messages=5)
    for k in range(40):
        row = Subscription("s", "c", overlay.brokers[0], sql=f"x < {k}")
        one.subscribe(row)
        one.sample(0, {"x": 0})
        one.unsubscribe("s")
    (keeper,) = one.each
    assert keeper.seen.profiles == 1
    assert len(keeper.seen) == 5
    assert keeper.profiles == {}
    assert one.reorganise().channels == ()
    one.subscribe(Subscription("s", "c", overlay.brokers[0], sql="x < 9"))
    assert keeper.matched(5) == [set()] * 5, "it begins anew where another was"
    with pytest.raises(InputError, match="back in time"):
        one.sample(0, {"x": 0}, at_s=-1.0)


def test_rendezvous_points_follow_recent_messages() -> None:
    """Much was published at one end, some at the other of late; two brokers between want it."""
    overlay, scheme = line(9), SCHEMES["semcast-best"]
    roots = []
    for half_life_s in (None, 2.0):
        one = Coordinators(overlay, SCHEMA.attributes, [["x"]], scheme, half_life_s=half_life_s)
        for host in (3, 5):
            one.subscribe(Subscription(f"s{host}", f"c{host}", overlay.brokers[host], sql="x >= 0"))
        for at, messages, when in ((0, 30, 0.0), (8, 5, 100.0)):
            for _ in range(messages):
                one.sample(at, {"x": 1}, 10, at_s=when)
        (channel,) = one.reorganise().channels
        assert channel.tree is not None
        roots.append(channel.tree.root)
    assert roots == [3, 5]


@settings(max_examples=20)
@given(world=worlds(5))
def test_a_coordinator_may_be_down_as_long_as_another_keeps_what_it_kept(world: World) -> None:
    one = coordinators(world, [0 if name == "topic" else 1 for name in ATTRIBUTES])
    both = Subscription("both", "cb", world.overlay.brokers[0], sql="topic = 'a' AND x = 1")
    only = Subscription("only", "co", world.overlay.brokers[0], sql="topic = 'b'")
    one.subscribe(both, down=[0])
    one.reorganise(down=[0])
    require_right(one.plan, world)
    with pytest.raises(InputError, match="no responsible coordinator"):
        one.subscribe(only, down=[0])
    one.subscribe(only)
    with pytest.raises(InputError, match="'only' is kept only by"):
        one.reorganise(down=[0])


def test_shares_that_leave_something_open_are_refused() -> None:
    from test_semcast_scheme import _shared_problem

    overlay = _shared_problem().overlay
    scheme = SCHEMES["semcast"]
    with pytest.raises(InputError, match="two owners"):
        Coordinators(overlay, SCHEMA.attributes, [["x"], ["x"]], scheme)
    with pytest.raises(InputError, match="no coordinator"):
        Coordinators(overlay, SCHEMA.attributes, [], scheme)
    one = Coordinators(overlay, SCHEMA.attributes, [["topic"]], scheme)
    with pytest.raises(InputError, match="nobody owns attribute 'x'"):
        one.subscribe(Subscription("s", "c", overlay.brokers[0], sql="x = 1"))
