"""Subscriptions come and go: the cheapest group, tables as before, and the threshold rule."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_tables import Row, broker_table
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import Tree
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.choosing.revise import add_subscription, delete_subscription, redo
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import tally
from ramify.planning.plans.adoption import adopt
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.layout import layout_of
from ramify.planning.plans.plan import Cells, Everything, Plan, Pruning, Serves
from ramify.planning.plans.problem import Problem
from ramify.planning.plans.state import routing_state
from ramify.planning.pricing.price import price
from ramify.planning.schemes.catalog import make_plan
from ramify.planning.schemes.scheme import channel, put_together
from worlds import FILTERS, SCHEMA, World, plans, worlds

FEW = settings(max_examples=30)


@dataclass(frozen=True)
class Newcomer:
    """A plan of groups for a world, and a subscription that comes to it."""

    world: World
    plan: Plan
    row: Subscription
    demand: Demand
    matched: npt.NDArray[np.bool_]

    @property
    def after(self) -> World:
        rows = (*self.world.subscriptions, self.row)
        return World(self.world.overlay, rows, self.world.attachments, self.world.events)


def spanning(draw: st.DrawFn, overlay: Overlay) -> Tree:
    """Links in a drawn order, each kept that joins two parts."""
    part = list(range(len(overlay)))
    links = []
    for e in draw(st.permutations(range(len(overlay.ends)))):
        a, b = overlay.ends[e].tolist()
        if part[a] != part[b]:
            links.append((a, b))
            part = [part[a] if p == part[b] else p for p in part]
    return Tree.of_links(len(overlay), links, draw(st.integers(0, len(overlay) - 1)))


@st.composite
def grouped(draw: st.DrawFn, world: World) -> Plan:
    problem, count = world.problem, draw(st.integers(1, 4))
    of = [draw(st.integers(0, count - 1)) for _ in range(len(problem.classes))]
    channels = [
        channel(
            f"g{g}", problem, spanning(draw, problem.overlay), [k for k, own in enumerate(of) if own == g]
        )
        for g in range(count)
    ]
    return put_together("groups", problem, channels)


@st.composite
def newcomers(draw: st.DrawFn) -> Newcomer:
    world = draw(worlds())
    plan = draw(grouped(world))
    spelled = draw(st.sampled_from(FILTERS))
    row = Subscription("new", "newcomer", draw(st.sampled_from(world.overlay.brokers)), **spelled)  # type: ignore[arg-type]
    return Newcomer(world, plan, row, *sampled(world, plan, row))


def sampled(world: World, plan: Plan, row: Subscription) -> tuple[Demand, npt.NDArray[np.bool_]]:
    """A demand fine enough that each pattern matches the newcomer or not; and which do."""
    tags = [row.parse(SCHEMA.attributes)]
    demand = tally([world.batch], plan.classes, world.overlay, world.attachments, tags=tags)
    return demand, demand.tags != 0


def tables(plan: Plan) -> list[frozenset[Row]]:
    return [broker_table(plan, broker) for broker in range(len(plan.overlay))]


# --------------------------------------------------------------------------------------------- adding


@FEW
@given(newcomers())
def test_after_adding_every_event_reaches_exactly_its_subscriptions(case: Newcomer) -> None:
    change = add_subscription(case.plan, case.row, case.demand, case.matched)
    after = case.after
    assert set(change.plan.classes.class_of) == {row.id for row in after.subscriptions}
    check(change.plan, after.problem)
    done = Simulator(change.plan).simulate_events([after.batch])
    assert set(done.delivered) == after.wanted()
    assert set(done.delivered.values()) <= {1}


@FEW
@given(newcomers())
def test_a_change_is_redone_from_where_it_went_alone(case: Newcomer) -> None:
    change = add_subscription(case.plan, case.row, case.demand, case.matched)
    again = redo(case.plan, case.row, change.class_id, change.channels)
    assert encode_plan(again) == encode_plan(change.plan)
    # from a file, where no filter is parsed yet
    read = redo(decode_plan(encode_plan(case.plan)), case.row, change.class_id, change.channels)
    assert encode_plan(read) == encode_plan(change.plan)
    assert [f.key for f in read.classes.filters] == [f.key for f in change.plan.classes.filters]


@given(newcomers())
def test_the_chosen_group_is_the_cheapest_by_pricing_every_choice(case: Newcomer) -> None:
    change = add_subscription(case.plan, case.row, case.demand, case.matched)
    demand = change.follow(case.demand, case.matched)
    if change.class_id < len(case.plan.classes):
        assert change.increase is None
        return
    before = price(case.plan, case.demand).cost
    costs = []
    for c in range(len(case.plan.channels)):
        channels = list(case.plan.channels)
        own = [*channels[c].serves.classes.tolist(), change.class_id]
        channels[c] = replace(channels[c], serves=Serves.at_hosts(own, change.plan.classes))
        tried = replace(case.plan, classes=change.plan.classes, channels=tuple(channels))
        costs.append(price(tried, demand).cost - before)
    (chosen,) = change.channels
    assert costs[chosen] == pytest.approx(min(costs), abs=1e-15)
    assert change.increase == pytest.approx(costs[chosen], abs=1e-15)
    assert price(change.plan, demand).cost - before == pytest.approx(costs[chosen], abs=1e-15)


@FEW
@given(newcomers())
def test_after_an_addition_and_a_deletion_every_table_is_as_before(case: Newcomer) -> None:
    added = add_subscription(case.plan, case.row, case.demand, case.matched)
    deleted = delete_subscription(added.plan, case.row.id)
    assert tables(deleted.plan) == tables(case.plan)


@FEW
@given(newcomers(), st.data())
def test_deleting_and_adding_again_returns_to_equal_tables(case: Newcomer, data: st.DataObject) -> None:
    if not case.world.subscriptions:
        return
    row = data.draw(st.sampled_from(case.world.subscriptions))
    demand = case.world.demand
    matched = np.array(
        [case.plan.classes.class_of[row.id] in demand[i] for i in range(len(demand))], dtype=bool
    )
    deleted = delete_subscription(case.plan, row.id)
    less = deleted.follow(demand)
    again = add_subscription(deleted.plan, row, less, None)
    assert tables(again.plan) == tables(case.plan)
    assert again.plan.classes.class_of == case.plan.classes.class_of
    assert price(again.plan, demand).cost == price(case.plan, demand).cost
    assert matched.any() or len(less) == len(demand)


@FEW
@given(newcomers())
def test_after_deleting_the_others_still_get_everything(case: Newcomer) -> None:
    if not case.world.subscriptions:
        return
    gone, *rest = case.world.subscriptions
    plan = delete_subscription(case.plan, gone.id).plan
    world = World(case.world.overlay, tuple(rest), case.world.attachments, case.world.events)
    check(adopt(plan, world.problem), world.problem)  # where the deleted one is not numbered any more
    assert set(Simulator(plan).simulate_events([world.batch]).delivered) == world.wanted()


@pytest.mark.parametrize(
    "scheme", ["mst", "unicast", "broadcast", "per-source", "hub", "explicit", "portfolio"]
)
@settings(max_examples=6)
@given(worlds(), st.data())
def test_where_channels_serve_everybody_a_newcomer_joins_each(
    scheme: str, world: World, data: st.DataObject
) -> None:
    plan = make_plan(scheme, world.problem, 0)
    broker = data.draw(st.sampled_from(world.overlay.brokers))
    row = Subscription("new", "newcomer", broker, sql="x >= 1 AND topic = 'c'")
    change = add_subscription(plan, row, world.demand, None)
    assert change.channels == tuple(range(len(plan.channels)))
    after = World(world.overlay, (*world.subscriptions, row), world.attachments, world.events)
    check(change.plan, after.problem)
    assert set(Simulator(change.plan).simulate_events([after.batch]).delivered) == after.wanted()


# --------------------------------------------------------------------------------------------- tables


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Plan, Plan]:
    world = draw(worlds(6))
    return draw(plans(world)), draw(plans(world) | grouped(world))


@FEW
@given(pairs())
def test_a_table_has_the_entries_that_routing_state_counts(case: tuple[Plan, Plan]) -> None:
    for plan in case:
        if any((ch.serves.region >= 0).any() for ch in plan.channels):
            continue
        counted = [len({(row.channel, row.class_id) for row in table}) for table in tables(plan)]
        assert counted == routing_state(layout_of(plan)).entries.tolist()


@FEW
@given(newcomers())
def test_rows_lead_from_every_broker_to_the_class(case: Newcomer) -> None:
    known = [{(row.channel, row.class_id): row for row in table} for table in tables(case.plan)]
    for c, group in enumerate(case.plan.channels):
        for k in group.serves.classes.tolist():
            for origin in range(len(case.plan.overlay)):
                at, hops = origin, 0
                while (row := known[at][c, k]).does == "send":
                    at, hops = row.broker, hops + 1
                    assert hops < len(case.plan.overlay)
                assert (row.does, at) == ("here", case.plan.classes.broker[k])


# --------------------------------------------------------------------------------------------- choices


def square(*groups: tuple[tuple[int, int], ...], subscriptions: list[Subscription], **price: float) -> Plan:
    """Brokers a, b, c, d in a ring with a group per tree; subscriptions are dealt to groups in turn."""
    names = "abcd"
    links = [
        Link(names[i], names[(i + 1) % 4], price.get("there", 1.0), price.get("back", 1.0), 1)
        for i in range(4)
    ]
    overlay = Overlay.build("ring", names, links)
    classes = Classes.collapse(subscriptions, overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]))
    ids = np.arange(len(classes))
    return put_together(
        "groups",
        problem,
        [
            channel(f"g{g}", problem, Tree.of_links(4, tree, 0), ids[ids % len(groups) == g])
            for g, tree in enumerate(groups)
        ],
    )


RIGHT = ((0, 1), (1, 2), (2, 3))
LEFT = ((0, 3), (3, 2), (2, 1))
A = Subscription("s0", "c0", "c", sql="topic = 'a'")
B = Subscription("s1", "c1", "c", sql="topic = 'b'")
NEW = Subscription("new", "n", "b", sql="topic = 'b'")


def test_an_event_that_passes_by_already_costs_nothing_more() -> None:
    plan = square(LEFT, RIGHT, subscriptions=[A, B])
    demand = Demand.of([(0, [1], 1, 1000)])
    change = add_subscription(plan, NEW, demand, np.array([True]))
    assert (change.channels, change.increase) == ((1,), 0.0)


def test_the_price_is_that_of_the_direction_travelled() -> None:
    plan = square(LEFT, RIGHT, subscriptions=[A, B], there=5.0, back=1.0)
    demand = Demand.of([(0, [], 1, 10**9)])
    change = add_subscription(plan, replace(NEW, broker="c", sql="topic = 'c'"), demand, np.array([True]))
    assert (change.channels, change.increase) == ((0,), 2.0), "a to d and d to c go against the ring"


def test_without_documents_the_group_that_asks_for_the_same_wins() -> None:
    far = Demand.of([(0, [], 1, 1000)])
    for trees in ((LEFT, RIGHT), (RIGHT, LEFT)):
        assert add_subscription(square(*trees, subscriptions=[A, B]), NEW, far).channels == (1,)
    narrow = replace(NEW, sql="x > 4")
    ranges = [replace(A, sql="x < 3"), replace(B, sql="x BETWEEN 2 AND 9")]
    for trees in ((LEFT, RIGHT), (RIGHT, LEFT)):
        assert add_subscription(square(*trees, subscriptions=ranges), narrow, far).channels == (1,)


def test_then_the_tree_nearer_to_the_publishers_then_the_lowest_channel() -> None:
    other = replace(NEW, sql="topic = 'c'")
    near = Demand.of([(0, [], 1, 1000)])
    assert add_subscription(square(LEFT, RIGHT, subscriptions=[A, B]), other, near).channels == (1,)
    assert add_subscription(square(LEFT, LEFT, subscriptions=[A, B]), other, near).channels == (0,)
    assert add_subscription(square(RIGHT, RIGHT, subscriptions=[A, B]), other, Demand.of([])).channels == (
        0,
    )


def test_one_of_an_existing_class_changes_no_table() -> None:
    plan = square(LEFT, RIGHT, subscriptions=[A, B])
    change = add_subscription(plan, replace(A, id="again", client="else"), Demand.of([]))
    assert tables(change.plan) == tables(plan)
    assert (change.class_id, change.channels) == (0, ())
    assert [row.id for row in change.plan.classes.members[0]] == ["s0", "again"]
    assert tables(delete_subscription(change.plan, "s0").plan) == tables(plan)


def test_a_change_keeps_the_demand_in_step() -> None:
    plan = square(LEFT, RIGHT, subscriptions=[A, B])
    demand = Demand.of([(0, [0], 1, 10), (0, [], 2, 20)])
    change = add_subscription(plan, NEW, demand, np.array([False, True]))
    grown = change.follow(demand, np.array([False, True]))
    assert [grown[i].tolist() for i in range(2)] == [[0], [2]]
    shrunk = delete_subscription(change.plan, "new").follow(grown)
    assert [shrunk[i].tolist() for i in range(2)] == [[0], []]


# -------------------------------------------------------------------------------------------- refusals


def refused(plan: Plan, row: Subscription = NEW) -> str:
    with pytest.raises(PlanError, match="must be planned again") as error:
        add_subscription(plan, row, Demand.of([]))
    return str(error.value)


def test_plans_that_divide_events_otherwise_must_be_planned_again() -> None:
    plan = square(LEFT, subscriptions=[A, B])
    one = plan.channels[0]
    cells = replace(one, admits=replace(one.admits, content=Cells(np.zeros(1, dtype=np.int32))))
    assert "cells" in refused(replace(plan, channels=(cells,)))
    proxy = replace(one, serves=replace(one.serves, at=np.array([0, 0], dtype=np.int32)))
    assert "proxies" in refused(replace(plan, channels=(proxy,)))
    part = replace(one, serves=Serves.at_hosts([0], plan.classes), pruning=Pruning.NONE)
    assert "planned again" in refused(replace(plan, channels=(part,)))
    assert "no channel" in refused(replace(plan, channels=()))


def test_a_tree_that_does_not_reach_the_broker_must_be_planned_again() -> None:
    plan = square(LEFT, subscriptions=[A, B])
    short = replace(
        plan.channels[0], tree=replace(plan.channels[0].tree, links=np.array([[2, 3]], dtype=np.int32))
    )
    assert "spans" in refused(replace(plan, channels=(short,)))
    flood = replace(short, pruning=Pruning.NONE, admits=replace(short.admits, content=Everything()))
    assert "does not reach b" in refused(replace(plan, channels=(flood,)))


def test_wrong_ids_clients_and_lengths_are_refused() -> None:
    plan = square(LEFT, subscriptions=[A, B])
    with pytest.raises(InputError, match="exists already"):
        add_subscription(plan, A, Demand.of([]))
    with pytest.raises(InputError, match="no subscription 'nobody'"):
        delete_subscription(plan, "nobody")
    with pytest.raises(InputError, match="attached to 'd'"):
        add_subscription(replace(plan, attachments={"n": "d"}), NEW, Demand.of([]))
    with pytest.raises(InputError, match="says 2 patterns, the demand has 0"):
        add_subscription(plan, NEW, Demand.of([]), np.array([True, False]))


def test_a_single_broker_takes_newcomers() -> None:
    overlay = Overlay.build("one", ["a"], [])
    problem = Problem.of(overlay, Classes.collapse([], overlay, SCHEMA.attributes), Demand.of([]))
    plan = put_together("one", problem, [channel("one", problem, Tree.of_links(1, [], 0), [])])
    change = add_subscription(plan, replace(NEW, broker="a"), Demand.of([(0, [], 1, 5)]), np.array([True]))
    assert change.increase == 0.0
    assert tables(change.plan) == [frozenset({Row(0, 0, "here", 0)})]
