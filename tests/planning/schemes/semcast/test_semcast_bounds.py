"""Latency bounds on SemCast plans: legs are fastest ways, nobody is late unsaid, on plans and revisions."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_semcast_membership import require_leaves_are_gateways, require_right

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.choosing.diff import diff
from ramify.planning.choosing.revise import add_subscription, delete_subscription, redo
from ramify.planning.choosing.weigh import weigh
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.check import check, form_faults
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.lateness import TooLateError, class_ms, late_subscriptions
from ramify.planning.plans.legs import legs_to
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.semcast.membership import joined
from ramify.planning.schemes.semcast.messages import replayed, tree_messages
from ramify.planning.schemes.semcast.schemes import SemcastParams
from worlds import FILTERS, SCHEMA, World, overlays, plans, worlds

BOUNDS = st.none() | st.sampled_from([1.0, 4.0, 8.0, 15.0, 40.0])
PLAIN = "semcast-delay:iterations=0"
"""Nothing is merged: one channel serves each class, which an event for it alone takes."""


def bounded(world: World, data: st.DataObject) -> Problem:
    rows = tuple(replace(row, latency_ms=data.draw(BOUNDS)) for row in world.subscriptions)
    classes = Classes.collapse(rows, world.overlay, SCHEMA.attributes)
    demand = tally([world.batch], classes, world.overlay, world.attachments)
    return Problem.of(world.overlay, classes, demand, world.attachments)


def slowest(plan: Plan) -> list[float]:
    """By the pricer: how long an event for each class alone takes, from whichever broker is worst."""
    patterns = [(o, (k,), 1, 0) for o in range(len(plan.overlay)) for k in range(len(plan.classes))]
    return price(plan, Demand.of(patterns)).class_ms.tolist()


# ------------------------------------------------------------------------------------------------ legs


@settings(max_examples=60)
@given(world=worlds(7), seed=st.integers(0, 3))
def test_every_leg_is_a_fastest_way(world: World, seed: int) -> None:
    plan = make_plan("semcast-delay", world.problem, seed)
    check(plan, world.problem)
    fastest = all_pairs(world.overlay, "latency").distance
    links = {(int(a), int(b)) for a, b in world.overlay.ends}
    links |= {(b, a) for a, b in links}
    ends = map(tuple, world.overlay.ends.tolist())
    latency = dict(zip(ends, world.overlay.latency_ms.tolist(), strict=True))
    latency |= {(b, a): ms for (a, b), ms in latency.items()}
    for channel in plan.channels:
        for origin in range(len(world.overlay)):
            target = channel.entry.target(origin)
            if target == origin:
                continue
            way = plan.leg(origin, target)
            took = sum(latency[a, b] for a, b in pairwise(way))
            assert took == pytest.approx(float(fastest[origin, target]))
            # a link that is as fast is taken
            direct = latency.get((origin, target), np.inf)
            assert (len(way) == 2) == (direct <= took + 1e-9)
    assert set(plan.legs) <= links
    assert links.isdisjoint(plan.paths)


@settings(max_examples=60)
@given(overlay=overlays(), point=st.integers(0, 8), gateway=st.integers(0, 8))
def test_legs_say_how_long_they_take(overlay: Overlay, point: int, gateway: int) -> None:
    n = len(overlay)
    point, gateway = point % n, gateway % n
    fastest = all_pairs(overlay, "latency").distance[:, point]
    legs = legs_to(overlay, [point], range(n), "latency")
    np.testing.assert_allclose(legs.ms[point], fastest)
    others = np.delete(fastest, gateway)
    assert legs.worst_ms(point, gateway) == pytest.approx(others.max() if len(others) else -np.inf)
    cheap = legs_to(overlay, [point], range(n))
    assert not cheap.own
    assert (cheap.ms[point] >= fastest - 1e-9).all()


@settings(max_examples=60)
@given(overlay=overlays(), point=st.integers(0, 8))
def test_legs_over_no_link_are_cheapest_in_their_own_direction(overlay: Overlay, point: int) -> None:
    """By Bellman and Ford, with what each link takes toward the point."""
    n, point = len(overlay), point % len(overlay)
    takes = {}
    for (a, b), (there, back) in zip(overlay.ends.tolist(), overlay.price.tolist(), strict=True):
        takes[a, b], takes[b, a] = there, back
    if len(set(takes.values())) == 1:  # then by hops
        takes = dict.fromkeys(takes, 1.0)
    least = [0.0 if broker == point else np.inf for broker in range(n)]
    for _ in range(n):
        for (a, b), price_ in takes.items():
            least[a] = min(least[a], price_ + least[b])
    paths = legs_to(overlay, [point], range(n)).paths
    assert set(paths) == {(o, point) for o in range(n) if o != point and (o, point) not in takes}
    for (origin, _), way in paths.items():
        assert (way[0], way[-1]) == (origin, point)
        assert sum(takes[link] for link in pairwise(way)) == pytest.approx(least[origin])


def triangle() -> Overlay:
    """a - b takes 10 ms; by c it takes 2."""
    links = [
        Link.symmetric("a", "b", 1.0, latency_ms=10.0),
        Link.symmetric("a", "c", 1.0, latency_ms=1.0),
        Link.symmetric("c", "b", 1.0, latency_ms=1.0),
    ]
    return Overlay.build("triangle", ["a", "b", "c"], links)


def on(overlay: Overlay, *rows: Subscription, spec: str = "semcast-delay", seed: int = 0) -> Plan:
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]))
    return check(make_plan(spec, problem, seed), problem)


def test_neighbours_take_the_faster_way_and_trees_their_link() -> None:
    """Root b, gateway a without a bound: the tree takes the link, the leg of a goes by c."""
    row = Subscription("s", "s", "a", sql="x = 1")
    made = (on(triangle(), row, seed=seed) for seed in range(30))
    plan = next(p for p in made if p.channels[0].tree is not None and p.channels[0].tree.root == 1)
    assert plan.channels[0].tree is not None
    assert plan.channels[0].tree.links.tolist() == [[1, 0]]
    assert plan.legs == {(0, 1): (0, 2, 1)}
    assert plan.leg(0, 1) == (0, 2, 1)
    assert plan.path(1, 0) == (1, 0)
    demand = Demand.of([(0, (0,), 1, 8), (1, (0,), 1, 8), (2, (0,), 1, 8)])
    priced = price(plan, demand)
    simulator = Simulator(plan)
    for origin in range(3):
        simulator.publish(origin, -1, (0,), event=str(origin), size=8)
    np.testing.assert_array_equal(priced.messages, simulator.result.messages)
    np.testing.assert_array_equal(priced.wire, simulator.result.wire)
    np.testing.assert_array_equal(priced.leg_messages, simulator.result.leg_messages)
    assert priced.leg_messages.sum() == 2 + 1  # a's own event goes to the root too, over c
    assert decode_plan(encode_plan(plan)).legs == plan.legs


def some_way(overlay: Overlay, origin: int, target: int, rng: Random) -> tuple[int, ...]:
    """Any way that visits no broker twice, by a search that goes astray."""
    start, neighbor, _, _ = overlay.adjacency
    seen, stack = {origin}, [(origin,)]
    while stack:
        way = stack.pop()
        if way[-1] == target:
            return way
        seen.add(way[-1])
        onward = [int(b) for b in neighbor[start[way[-1]] : start[way[-1] + 1]] if int(b) not in seen]
        rng.shuffle(onward)
        stack += [(*way, b) for b in onward]
    raise AssertionError("the overlay is connected")


@settings(max_examples=60)
@given(
    world=worlds(6),
    data=st.data(),
    spec=st.sampled_from(["drawn", "semcast", "semcast-delay", "semcast-filter"]),
    seed=st.integers(0, 99),
)
def test_any_plan_may_have_legs_of_its_own(world: World, data: st.DataObject, spec: str, seed: int) -> None:
    """They are priced as they are routed, and survive a file; what goes on trees and paths stays there."""
    plan = data.draw(plans(world)) if spec == "drawn" else make_plan(spec, world.problem, seed)
    rng, legs = Random(seed), dict(plan.legs)
    for channel in plan.channels:
        for origin in range(len(world.overlay)):
            target = channel.entry.target(origin)
            if target != origin:
                legs[origin, target] = some_way(world.overlay, origin, target, rng)
    made = replace(plan, legs=legs)
    assert not list(form_faults(made))
    priced, before = price(made, world.demand), price(plan, world.demand)
    on_trees = before.messages - before.leg_messages
    np.testing.assert_array_equal(priced.messages - priced.leg_messages, on_trees)
    for once in (False, True):
        done = Simulator(made, once=once).simulate_events([world.batch])
        for name in ("messages", "payload", "wire", "leg_messages"):
            np.testing.assert_array_equal(getattr(priced, name), getattr(done, name), err_msg=name)
    assert decode_plan(encode_plan(made)).legs == legs
    assert bool(diff(plan, made)) == (legs != plan.legs)


def test_a_leg_that_is_no_way_is_a_fault() -> None:
    plan = on(triangle(), Subscription("s", "s", "a", sql="x = 1"))
    for bad in ((0, 2), (0, 1, 2, 1), (0, 7, 1)):
        assert list(form_faults(replace(plan, legs={(0, 1): bad})))


# ------------------------------------------------------------------------------------------------- late


@settings(max_examples=50)
@given(world=worlds(7), seed=st.integers(0, 3), data=st.data())
def test_a_subscription_is_late_if_an_event_may_reach_it_too_late(
    world: World, seed: int, data: st.DataObject
) -> None:
    problem = bounded(world, data)
    plan = make_plan(PLAIN, problem, seed)
    worst = slowest(plan)
    wanted = {
        row.id: worst[k]
        for k, members in enumerate(problem.classes.members)
        for row in members
        if row.latency_ms is not None and worst[k] > row.latency_ms * (1 + 1e-6)
    }
    found = late_subscriptions(plan)
    assert {late.id: pytest.approx(late.ms) for late in found} == wanted
    assert [late.id for late in found] == sorted(wanted)
    assert plan.settings["refused"] == len(found)


@settings(max_examples=40)
@given(world=worlds(7), seed=st.integers(0, 3), data=st.data())
def test_refusing_makes_no_plan_or_one_in_time(world: World, seed: int, data: st.DataObject) -> None:
    problem = bounded(world, data)
    lenient = make_plan("semcast-delay", problem, seed)
    late = late_subscriptions(lenient)
    if not late:
        strict = make_plan("semcast-delay:late=refuse", problem, seed)
        assert strict.channels == lenient.channels
        assert strict.settings["late"] == "refuse"
        return
    with pytest.raises(TooLateError) as refused:
        make_plan("semcast-delay:late=refuse", problem, seed)
    assert refused.value.late == late
    assert repr(late[0].id) in str(refused.value)
    # what can be kept, by the message, is kept
    allowed = {each.id: float(str(each).split(" ms")[1].split()[-1]) for each in late}
    eased = tuple(
        replace(row, latency_ms=allowed.get(row.id, row.latency_ms))
        for members in problem.classes.members
        for row in members
    )
    classes = Classes.collapse(eased, world.overlay, SCHEMA.attributes)
    again = Problem.of(world.overlay, classes, problem.demand, world.attachments)
    assert late_subscriptions(make_plan("semcast-delay:late=refuse", again, seed)) == ()


def test_who_is_refused_is_in_the_rows_of_auto() -> None:
    row = Subscription("s", "s", "a", sql="x = 1", latency_ms=1.0)
    classes = Classes.collapse([row], triangle(), SCHEMA.attributes)
    problem = Problem.of(triangle(), classes, Demand.of([(1, (0,), 5, 10)]))
    names = ["semcast-delay", "semcast-delay:late=refuse", "mst"]
    lenient, strict, other = weigh(problem, problem.demand, specs=names).rows
    assert [late.id for late in lenient.late] == ["s"]
    assert lenient.refused == ()
    assert strict.plan is None
    assert [late.id for late in strict.refused] == ["s"]
    assert strict.reason is not None
    assert "'s' at a allows 1 ms" in strict.reason
    assert other.late == other.refused == ()


def test_refusing_needs_trees_with_bounds() -> None:
    with pytest.raises(InputError, match="refuse"):
        SemcastParams(late="refuse")
    with pytest.raises(InputError, match="late"):
        SemcastParams(trees="delay", late="never")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- membership

steps_with_bounds = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, len(FILTERS) - 1), st.booleans(), BOUNDS), max_size=8
)


@settings(max_examples=60)
@given(
    world=worlds(7),
    steps=steps_with_bounds,
    spec=st.sampled_from(["semcast-delay", PLAIN]),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_changes_keep_every_bound_and_leave_nobody_out(
    world: World,
    steps: list[tuple[int, int, bool, float | None]],
    spec: str,
    seed: int,
    data: st.DataObject,
) -> None:
    """A subscription that stays gets nothing later; a newcomer is in time, named, or waits for a plan."""
    problem = bounded(world, data)
    plan = make_plan(spec, problem, seed)
    for number, (broker, which, leave, bound) in enumerate(steps):
        known = sorted(plan.classes.class_of)
        before = plan
        if leave and known:
            change = delete_subscription(plan, known[(broker * 7 + which) % len(known)])
        else:
            host = world.overlay.brokers[broker % len(world.overlay)]
            row = Subscription(f"n{number}", f"nc{number}", host, latency_ms=bound, **FILTERS[which])  # type: ignore[arg-type]
            try:
                change = add_subscription(plan, row, Demand.of([]))
            except PlanError:
                require_must_move(plan, row)
                continue
            remade = redo(plan, row, change.class_id, change.channels, change.growth)
            assert encode_plan(remade) == encode_plan(change.plan)
            require_told(change.plan, row, change.late is not None)
        plan = change.plan
        require_right(plan, world)
        require_leaves_are_gateways(plan)
        require_nobody_later(before, plan)
        require_messages_make_it(before, plan, number)
        assert dict(change.messages) == (
            tree_messages(before, plan) if change.growth.grown or change.growth.pruned else {}
        )
    if spec == PLAIN:
        live = {row.id for members in plan.classes.members for row in members}
        worst = slowest(plan)
        late = {
            row.id
            for k, members in enumerate(plan.classes.members)
            for row in members
            if row.latency_ms is not None and worst[k] > row.latency_ms * (1 + 1e-6)
        }
        assert {each.id for each in late_subscriptions(plan)} == late <= live


def require_must_move(plan: Plan, row: Subscription) -> None:
    """Only a newcomer to a class that is served already, and late for it, has to wait for a plan."""
    _, k = plan.classes.with_subscription(row, plan.overlay)
    assert any((channel.serves.classes == k).any() for channel in plan.channels)
    assert row.latency_ms is not None
    assert class_ms(plan, [k])[k] > row.latency_ms


def require_told(plan: Plan, row: Subscription, late: bool) -> None:
    assert (row.id in {each.id for each in late_subscriptions(plan)}) == late
    if late:  # and then no way at all is in time
        assert row.latency_ms is not None
        host = plan.overlay.index[row.broker]
        fastest = all_pairs(plan.overlay, "latency").distance[:, host]
        assert fastest.max() > row.latency_ms


def require_nobody_later(before: Plan, after: Plan) -> None:
    both = [
        k
        for k in range(len(before.classes))
        if not after.classes.vacant[k] and not before.classes.vacant[k]
    ]
    had, has = class_ms(before, both), class_ms(after, both)
    for k in both:
        assert has[k] <= had[k] + 1e-9
    for old, new in zip(before.channels, after.channels, strict=False):
        assert old.tree is not None
        assert new.tree is not None
        assert old.tree.root == new.tree.root
        ways = {below: above for above, below in old.tree.links.tolist()}
        for above, below in new.tree.links.tolist():
            assert ways.get(below, above) == above


def require_messages_make_it(before: Plan, after: Plan, seed: int) -> None:
    network = replayed(before, after, np.random.default_rng(seed))
    for c in network.destinations:
        channel = after.channels[c]
        assert channel.tree is not None
        assert network.links(c) == {(a, b) for a, b in channel.tree.links.tolist()}
        assert network.destinations[c] == set(channel.serves.at.tolist())


@settings(max_examples=60)
@given(world=worlds(7), steps=steps_with_bounds, seed=st.integers(0, 3))
def test_a_plan_that_refuses_never_has_anybody_late(
    world: World, steps: list[tuple[int, int, bool, float | None]], seed: int
) -> None:
    """A newcomer is refused exactly if no channel reaches it in time, or its class has a place."""
    plan = make_plan("semcast-delay:late=refuse", world.problem, seed)
    fastest = all_pairs(world.overlay, "latency").distance
    for number, (broker, which, leave, bound) in enumerate(steps):
        known = sorted(plan.classes.class_of)
        if leave and known:
            plan = delete_subscription(plan, known[(broker * 7 + which) % len(known)]).plan
            continue
        host = broker % len(world.overlay)
        row = Subscription(
            f"n{number}",
            f"nc{number}",
            world.overlay.brokers[host],
            latency_ms=bound,
            **FILTERS[which],  # type: ignore[arg-type]
        )
        _, k = plan.classes.with_subscription(row, plan.overlay)
        served = any((channel.serves.classes == k).any() for channel in plan.channels)
        others = np.delete(fastest[:, host], host)
        least = class_ms(plan, [k])[k] if served else float(others.max(initial=0.0))
        if bound is None or least <= bound + 1e-9:
            plan = add_subscription(plan, row, Demand.of([])).plan
        else:
            with pytest.raises(TooLateError) as refused:
                add_subscription(plan, row, Demand.of([]))
            ((id_, ms),) = ((late.id, late.ms) for late in refused.value.late)
            assert (id_, ms) == (row.id, pytest.approx(least))
        assert late_subscriptions(plan) == ()
        require_right(plan, world)


def line_of(*ms: float) -> Overlay:
    names = [f"v{i}" for i in range(len(ms) + 1)]
    pairs = zip(names, names[1:], ms, strict=False)
    return Overlay.build("line", names, [Link.symmetric(a, b, 1.0, latency_ms=t) for a, b, t in pairs])


def rooted_at(overlay: Overlay, root: int, *rows: Subscription) -> Plan:
    made = (on(overlay, *rows, seed=seed) for seed in range(60))
    return next(p for p in made if p.channels[0].tree is not None and p.channels[0].tree.root == root)


def test_a_newcomer_climbs_to_an_ancestor_that_keeps_its_bound() -> None:
    """r - a - b - g by 5 each, cheap; a - g by 2 and r - g by 6, dear. g joins below b; below a where 8 are
    allowed, below r where 6 are."""
    links = [
        Link.symmetric("r", "a", 1.0, latency_ms=5.0),
        Link.symmetric("a", "b", 1.0, latency_ms=5.0),
        Link.symmetric("b", "g", 1.0, latency_ms=5.0),
        Link.symmetric("r", "g", 9.0, latency_ms=6.0),
        Link.symmetric("a", "g", 9.0, latency_ms=2.0),
    ]
    overlay = Overlay.build("ring", ["r", "a", "b", "g"], links)
    rows = Subscription("s", "s", "b", sql="x >= 0")
    classes = Classes.collapse([rows], overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]), publishers=["r"])
    made = (make_plan("semcast-delay", problem, seed) for seed in range(60))
    plan = next(p for p in made if p.channels[0].tree is not None and p.channels[0].tree.root == 0)
    low = joined(plan, Subscription("n", "n", "g", sql="x = 1"))
    assert low.added == {0: ((2, 3),)}
    assert tree_messages(plan, low.plan) == {"Join": 1, "Accept": 1}
    for bound, above, climbs in ((8.0, 1, 1), (6.0, 0, 2)):
        soon = joined(plan, Subscription("n", "n", "g", sql="x = 1", latency_ms=bound))
        assert soon.added == {0: ((above, 3),)}
        assert soon.late is None
        # up from g to b, b asks its parent, which may ask its own; the first that can hangs g below itself
        counts = {"Join": 1, "Climb": climbs, "Graft": 1, "Adopt": 1, "Settle": 1}
        assert tree_messages(plan, soon.plan) == counts
    late = joined(plan, Subscription("n", "n", "g", sql="x = 1", latency_ms=3.0))
    assert late.added == {0: ((0, 3),)}
    assert late.late is not None
    assert late.late.ms == 6.0


def test_a_hierarchy_that_would_move_others_is_passed_over() -> None:
    """s is served at a, below b by their slow link. n at a could be in time below c, if a moved there."""
    overlay = triangle()
    rows = [Subscription("s", "s", "a", sql="x >= 0")]
    plan = rooted_at(overlay, 1, *rows)
    found = joined(plan, Subscription("n", "n", "a", sql="x = 1", latency_ms=3.0))
    assert found.opened == 1
    assert found.late is None
    assert found.plan.channels[0] == plan.channels[0]
    assert class_ms(found.plan, [1]) == {1: 2.0}


def test_a_stricter_member_of_a_class_waits_for_another_plan_if_that_helps() -> None:
    overlay = line_of(5.0, 5.0)
    row = Subscription("s", "s", "v2", sql="x = 1")
    plan = rooted_at(overlay, 2, row)
    late = add_subscription(plan, Subscription("n", "n", "v2", sql="x = 1", latency_ms=9.0), Demand.of([]))
    assert late.late is not None  # 10 from v0, whatever the plan
    plan = rooted_at(overlay, 0, row)
    strict = Subscription("n", "n", "v2", sql="x = 1", latency_ms=12.0)
    with pytest.raises(PlanError, match="planned again"):
        add_subscription(plan, strict, Demand.of([]))
    again = replace(plan, settings={**plan.settings, "late": "refuse"})
    with pytest.raises(TooLateError, match="15 ms can be kept"):
        add_subscription(again, strict, Demand.of([]))
    assert add_subscription(plan, replace(strict, latency_ms=15.0), Demand.of([])).late is None
