"""What a diff says about two plans, and that it says nothing about equal ones."""

import json
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.network.trees.trees import Tree
from ramify.planning.choosing.diff import ChannelDiff, ClassMove, PlanDiff, diff
from ramify.planning.choosing.revise import add_subscription, delete_subscription
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import All, Channel, Entry, Holds, Match, Negation, Plan, Pruning, Serves
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.scheme import channel, put_together
from worlds import SCHEMA, World, plans, worlds

ROWS = [Subscription(f"s{i}", f"c{i}", "abc"[i], sql=f"x = {i}") for i in range(3)]
ONE_WAY, OTHER_WAY = ((0, 1), (1, 2)), ((0, 2), (2, 1))


def made(
    rows: list[Subscription] = ROWS, trees: tuple[tuple[tuple[int, int], ...], ...] = (ONE_WAY, OTHER_WAY)
) -> Plan:
    """Two groups on a triangle: s0 and s1, and the others."""
    links = [Link.symmetric("a", "b"), Link.symmetric("b", "c"), Link.symmetric("a", "c")]
    overlay = Overlay.build("triangle", "abc", links)
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]))
    first = [classes.class_of[id_] for id_ in ("s0", "s1")]
    rest = sorted(set(range(len(classes))) - set(first))
    trees_made = [Tree.of_links(3, tree, 0) for tree in trees]
    return put_together(
        "made",
        problem,
        [channel("g0", problem, trees_made[0], first), channel("g1", problem, trees_made[1], rest)],
    )


def with_channel(plan: Plan, at: int, **change: object) -> Plan:
    channels: list[Channel] = list(plan.channels)
    channels[at] = replace(channels[at], **change)  # type: ignore[arg-type]
    return replace(plan, channels=tuple(channels))


def with_expression(plan: Plan, id_: str) -> Plan:
    content = Holds(All((Match((plan.classes.class_of[id_],)), Negation(Match(())))))
    return with_channel(plan, 0, admits=replace(plan.channels[0].admits, content=content))


@settings(max_examples=60)
@given(st.data())
def test_a_plan_does_not_differ_from_itself_read_back_from_its_file(data: st.DataObject) -> None:
    plan = data.draw(plans(data.draw(worlds())))
    found = diff(plan, decode_plan(encode_plan(plan)))
    assert not found
    assert found == PlanDiff()
    assert str(found) == "no difference"


def test_other_numbers_for_the_same_classes_are_no_difference() -> None:
    assert not diff(made(), made(ROWS[::-1]))
    numbered = [with_expression(made(rows), "s0") for rows in (ROWS, ROWS[::-1])]
    assert numbered[0].channels[0].admits != numbered[1].channels[0].admits
    assert not diff(*numbered)
    (changed,) = diff(numbered[0], with_expression(made(), "s1")).channels_changed
    assert changed == ChannelDiff("g0", other=("admits",))


@settings(max_examples=60)
@given(st.data())
def test_plans_that_do_not_differ_cost_the_same_and_differences_turn_round(data: st.DataObject) -> None:
    world: World = data.draw(worlds(4))
    old, new = data.draw(plans(world)), data.draw(plans(world))
    there, back = diff(old, new), diff(new, old)
    assert (there.channels_added, there.channels_removed) == (back.channels_removed, back.channels_added)
    assert {each.name: (each.links_added, each.joined, each.other) for each in there.channels_changed} == {
        each.name: (each.links_removed, each.left, each.other) for each in back.channels_changed
    }
    assert bool(there) == bool(back)
    if not there:
        assert price(old, world.demand).cost == price(new, world.demand).cost
    document = json.loads(there.to_json())
    assert len(document["channels_changed"]) == len(there.channels_changed)
    assert len(document["paths"]) == len(there.paths)


def test_a_subscription_that_comes_is_told_with_its_channel() -> None:
    change = add_subscription(made(), Subscription("s9", "c9", "a", sql="x = 2"), Demand.of([]))
    found = diff(made(), change.plan)
    assert found == PlanDiff(
        channels_changed=(ChannelDiff("g1", joined=("s9",)),), subscriptions_added=("s9",)
    )
    assert str(found) == "1 subscription added: s9\nchannel g1: +1 subscription"


def test_a_subscription_that_goes_is_told_with_its_channel() -> None:
    found = diff(made(), delete_subscription(made(), "s0").plan)
    assert found == PlanDiff(
        channels_changed=(ChannelDiff("g0", left=("s0",)),), subscriptions_removed=("s0",)
    )


def test_tree_links_are_told_by_name_in_order() -> None:
    found = diff(made(), made(trees=(OTHER_WAY, OTHER_WAY)))
    assert found.channels_changed == (ChannelDiff("g0", (("a", "c"),), (("a", "b"),)),)
    assert str(found) == "channel g0: +1 tree link, -1 tree link"


def test_a_class_that_moves_between_channels_is_told_once_with_its_subscriptions() -> None:
    twins = [*ROWS, Subscription("s3", "c3", "b", sql="x = 1")]
    old = made(twins)
    new = with_channel(old, 0, serves=Serves.at_hosts([0], old.classes))
    new = with_channel(new, 1, serves=Serves.at_hosts([1, 2], old.classes))
    found = diff(old, new)
    assert found.moved == (ClassMove(("s1", "s3"), ("g0",), ("g1",)),)
    assert "2 subscriptions moved: s1 from g0 to g1, s3 from g0 to g1" in str(found)


def test_channels_are_matched_by_name_and_by_order_within_a_name() -> None:
    plan = made()
    renamed = with_channel(plan, 1, name="g2")
    found = diff(plan, renamed)
    assert (found.channels_added, found.channels_removed) == (("g2",), ("g1",))
    same = with_channel(with_channel(plan, 0, name="g"), 1, name="g")
    assert not diff(same, same)
    fewer = replace(same, channels=same.channels[:1])
    assert diff(same, fewer).channels_removed == ("g (2)",)
    assert diff(plan, replace(plan, channels=plan.channels[::-1])).other == ("order",)


def test_whatever_else_changes_is_named() -> None:
    plan = made()
    one = plan.channels[0]
    for change, what in (
        ({"pruning": Pruning.NONE}, "pruning"),
        ({"entry": Entry.to(1, 3)}, "entry"),
        ({"admits": replace(one.admits, publishers=frozenset([0]))}, "publishers"),
        ({"admits": replace(one.admits, content=Holds(Match((0,))))}, "admits"),
        ({"tree": replace(one.tree, root=1)}, "root"),
        ({"serves": replace(one.serves, at=np.array([1, 1], dtype=np.int32))}, "serves"),
        ({"marks": {(0, 1): "p"}}, "marks"),
    ):
        assert diff(plan, with_channel(plan, 0, **change)).channels_changed == (
            ChannelDiff("g0", other=(what,)),
        )
    assert diff(plan, replace(plan, rule="hops", scheme="x", settings={"k": 1})).other == (
        "rule",
        "scheme",
        "settings",
    )


def test_clients_and_paths_are_told_before_and_after() -> None:
    plan = replace(made(), attachments={"x": "a", "gone": "b"}, paths={(0, 1): (0, 2, 1)})
    moved = replace(plan, attachments={"x": "c", "come": "b"}, paths={(1, 2): (1, 0, 2)})
    found = diff(plan, moved)
    assert found.clients == {"come": (None, "b"), "gone": ("b", None), "x": ("a", "c")}
    assert found.paths == {("a", "b"): (("a", "c", "b"), None), ("b", "c"): (None, ("b", "a", "c"))}
    assert "x from a to c" in str(found)
    assert "2 paths changed: a - b, b - c" in str(found)
    assert json.loads(found.to_json())["paths"][1] == {
        "from": "b",
        "to": "c",
        "before": None,
        "now": ["b", "a", "c"],
    }


def test_a_changed_filter_or_bound_is_told_by_id() -> None:
    slower = [replace(ROWS[0], latency_ms=5.0), *ROWS[1:]]
    assert diff(made(), made(slower)) == PlanDiff(subscriptions_changed=("s0",))
