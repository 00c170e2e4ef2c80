"""What `check` refuses, each fault by one change to a sound plan; and that what it accepts delivers."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event, events_to_batch
from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LimitError, PlanError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check, faults
from ramify.planning.plans.implication import MOST_TERMS
from ramify.planning.plans.plan import (
    Admission,
    All,
    AnyOf,
    Cells,
    Channel,
    ChannelTree,
    Content,
    Entry,
    Everything,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
    Stamped,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from worlds import FILTERS, GRID, SCHEMA, World, plans, worlds

# A ring v0 - v1 - v2 - v3 - v0. Class 0 at v1, class 1 at v2, class 2 at v3.
AROUND = (("v0", "v1"), ("v1", "v2"), ("v2", "v3"), ("v0", "v3"))
RING = Overlay.build("ring", ["v0", "v1", "v2", "v3"], [Link.symmetric(*pair) for pair in AROUND])
SUBSCRIPTIONS = (
    Subscription("s0", "c0", "v1", sql="topic = 'a'"),
    Subscription("s1", "c1", "v2", sql="x < 5"),
    Subscription("s2", "c2", "v3", keywords=("news",)),
)
CLASSES = Classes.collapse(SUBSCRIPTIONS, RING, SCHEMA.attributes)
ATTACHED = {"c0": "v1", "c1": "v2", "c2": "v3", "p": "v0"}
NOTHING = Demand.of([])
PROBLEM = Problem.of(RING, CLASSES, NOTHING, ATTACHED, grid=GRID)
LINE = ((0, 1), (1, 2), (2, 3))
EVERYONE = Serves.at_hosts([0, 1, 2], CLASSES)
FAR_END = Serves.at_hosts([2], CLASSES)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def tree(*links: tuple[int, int], root: int | None = None) -> ChannelTree:
    return ChannelTree(np.array(links, dtype=np.int32).reshape(-1, 2), root)


def channel(
    content: Content | None = None,
    serves: Serves = EVERYONE,
    pruning: Pruning = Pruning.FILTER,
    links: ChannelTree | None = None,
    publishers: frozenset[int] | None = None,
    entry: Entry | None = None,
) -> Channel:
    on = links if links is not None else tree(*LINE)
    bare = pruning in (Pruning.TREE, Pruning.DESTINATIONS, Pruning.COPIES)
    admits = Admission(content if content is not None else AnyOf(), publishers)
    return Channel("c", admits, serves, pruning, None if bare else on, entry or Entry())


def plan(*channels: Channel, **parts: object) -> Plan:
    made = Plan("hand", RING, CLASSES, channels or (channel(),), ATTACHED, {}, GRID)
    return replace(made, **parts)  # type: ignore[arg-type]


def found(bad: Plan, problem: Problem = PROBLEM) -> list[str]:
    return list(faults(bad, problem))


# ------------------------------------------------------------------------------------------ sound plans

STAMPED = channel(Stamped())
HALVES = (ints(0, 1), ints(2, 3))
STRADDLING = Serves(ints(0, 1, 2, 2), ints(1, 2, 0, 3), ints(-1, -1, 0, 1))
SHORT_CUT = {(1, 3): (1, 2, 3)}
SOUND = {
    "any-of on a filtered tree": plan(),
    "flooding": plan(channel(Everything(), pruning=Pruning.NONE)),
    "a portfolio": plan(STAMPED, replace(STAMPED, tree=tree((0, 1), (0, 3), (2, 3)))),
    "explicit": plan(channel(Stamped(), pruning=Pruning.TREE)),
    "explicit-list": plan(channel(Stamped(), pruning=Pruning.DESTINATIONS)),
    "unicast": plan(channel(pruning=Pruning.COPIES)),
    "per publisher": plan(*(channel(publishers=frozenset([v])) for v in range(4))),
    "a rendezvous point": plan(channel(entry=Entry.to(0, 4)), paths={(2, 0): (2, 1, 0)}),
    "groups": plan(*(channel(serves=Serves.at_hosts([k], CLASSES)) for k in range(3))),
    "cells that partition": plan(*(channel(Cells(half)) for half in HALVES)),
    "straddling proxies": plan(channel(serves=STRADDLING), regions=HALVES),
    "a path for a link": plan(channel(links=tree((0, 1), (1, 3), (2, 3))), paths=SHORT_CUT),
    "marks": plan(replace(channel(), marks={(0, 1): "p", (1, 0): "s", (3, 2): "s"})),
}


@pytest.mark.parametrize("kind", SOUND)
def test_sound_plans_of_every_kind_have_no_faults(kind: str) -> None:
    assert found(SOUND[kind]) == []
    assert check(SOUND[kind], PROBLEM) is SOUND[kind]


# --------------------------------------------------------------------------------------- faults of form


def changed(**parts: object) -> Callable[[], Plan]:
    return lambda: plan(**parts)


def with_channel(made: Channel, **parts: object) -> Callable[[], Plan]:
    return lambda: plan(made, **parts)


def renamed() -> Plan:
    links = [replace(link, a=link.a.replace("v0", "w0")) for link in RING.links]
    return plan(overlay=Overlay.build("other", ["w0", "v1", "v2", "v3"], links))


def fewer_links() -> Plan:
    return plan(overlay=Overlay.build("line", RING.brokers, RING.links[:3]))


def one_more_subscription() -> Plan:
    more, _ = CLASSES.with_subscription(Subscription("s9", "c0", "v1", sql="x = 1"), RING)
    return plan(classes=more)


def one_less_subscription() -> Plan:
    return plan(classes=CLASSES.without_subscription("s1")[0])


def another_filter() -> Plan:
    other = (replace(SUBSCRIPTIONS[0], sql="topic = 'b'"), *SUBSCRIPTIONS[1:])
    return plan(classes=Classes.collapse(other, RING, SCHEMA.attributes))


def a_host_that_is_no_broker() -> Plan:
    return plan(classes=replace(CLASSES, broker=ints(1, 2, 99)))


def serving(classes: np.ndarray, at: np.ndarray, region: np.ndarray, **parts: object) -> Callable[[], Plan]:
    return with_channel(channel(serves=Serves(classes, at, region)), **parts)


BARE = channel(pruning=Pruning.COPIES)
MEETING = (ints(0, 1), ints(1, 2, 3))
TWO_STAMPED = (STAMPED, replace(STAMPED, name="second"))
ANY = ints(-1, -1, -1)
FAULTS: dict[str, tuple[Callable[[], Plan], str]] = {
    "other brokers": (renamed, "other brokers than those of overlay ring"),
    "other links": (fewer_links, "other links than those of overlay ring"),
    "an unknown subscription": (one_more_subscription, "serves subscription 's9', which is unknown"),
    "a missing subscription": (one_less_subscription, "does not know subscription 's1'"),
    "another filter": (another_filter, "subscription 's0' has another filter"),
    "a client at an unknown broker": (
        changed(attachments={**ATTACHED, "p": "nowhere"}),
        "attaches client 'p' to broker 'nowhere', which is unknown",
    ),
    "a client that moved": (
        changed(attachments={**ATTACHED, "c0": "v2"}),
        "subscription 's0' is in a class at 'v1', but its client is at 'v2'",
    ),
    "a host that is no broker": (
        a_host_that_is_no_broker,
        "subscription 's2' is in a class at None, but its client is at 'v3'",
    ),
    "a path that leads elsewhere": (changed(paths={(1, 3): (1, 2)}), "does not lead from 1 to 3"),
    "a path that starts elsewhere": (changed(paths={(1, 3): (2, 3)}), "does not lead from 1 to 3"),
    "a path of one broker": (changed(paths={(1, 1): (1,)}), "does not lead from 1 to 1"),
    "a path in a circle": (changed(paths={(1, 3): (1, 2, 1, 2, 3)}), "visits a broker twice"),
    "a path out of this world": (changed(paths={(1, 3): (1, 7, 3)}), "visits a broker outside 0..3"),
    "a path across no link": (changed(paths={(0, 2): (0, 2)}), "crosses v0 - v2, which is not a link"),
    "regions without a grid": (changed(regions=HALVES, grid=None), "regions but no grid"),
    "a region outside the grid": (changed(regions=(ints(3, 4),)), "region 0 has cells outside 0..3"),
    "a region of negative cells": (changed(regions=(ints(-1, 0),)), "region 0 has cells outside 0..3"),
    "a region out of order": (changed(regions=(ints(), ints(1, 0))), "region 1 has cells outside"),
    "filtering without a tree": (
        with_channel(replace(channel(), tree=None)),
        "channel 0 (c): pruning filter needs a tree",
    ),
    "flooding without a tree": (
        with_channel(replace(channel(), tree=None, pruning=Pruning.NONE)),
        "pruning none needs a tree",
    ),
    "a publisher that is no broker": (
        with_channel(channel(publishers=frozenset([0, 4]))),
        "admits a publisher outside 0..3",
    ),
    "cells without a grid": (
        with_channel(channel(Cells(ints(0))), grid=None),
        "admits cells but the plan has no grid",
    ),
    "cells outside the grid": (with_channel(channel(Cells(ints(0, 4)))), "admits cells outside 0..3"),
    "cells given twice": (with_channel(channel(Cells(ints(1, 1)))), "or not in ascending order"),
    "an expression about an unknown class": (
        with_channel(channel(Holds(Negation(All((Match((0,)), Some((Match((3,)),)))))))),
        "expression asks for class 3, which is unknown",
    ),
    "an empty tree without a root": (with_channel(channel(links=tree())), "neither links nor a root"),
    "a cycle": (with_channel(channel(links=tree(*LINE, (0, 3)))), "its tree is not a tree"),
    "two trees": (with_channel(channel(links=tree((0, 1), (2, 3)))), "its tree is not a tree"),
    "a root off the tree": (with_channel(channel(links=tree((0, 1), root=2))), "its tree is not a tree"),
    "a root that is no broker": (with_channel(channel(links=tree(root=4))), "its tree is not a tree"),
    "a tree link that is none": (
        with_channel(channel(links=tree((0, 1), (1, 3), (2, 3)))),
        "joins v1 and v3: no link and no path does",
    ),
    "a mark of another letter": (
        with_channel(replace(channel(), marks={(0, 1): "q"})),
        "the mark 'q' on (0, 1) is not p or s",
    ),
    "a mark on no link": (
        with_channel(replace(channel(), marks={(0, 3): "p"})),
        "the mark 'p' on (0, 3) is not p or s on a link of its tree",
    ),
    "entries of different lengths": (
        serving(ints(0, 1, 2), ints(1, 2), ANY),
        "not one class, one broker and one region each",
    ),
    "an unknown class": (serving(ints(0, 1, 3), ints(1, 2, 3), ANY), "serves class 3, which is unknown"),
    "a class at no broker": (
        serving(ints(0, 1, 2), ints(1, 2, 4), ANY),
        "serves class 2 at broker 4, which is unknown",
    ),
    "a class for no region": (
        serving(ints(0, 1, 2), ints(1, 2, 3), ints(-1, -1, 0)),
        "serves class 2 for region 0, which is unknown",
    ),
    "a class off the tree": (
        with_channel(channel(links=tree((0, 1), (1, 2)), publishers=frozenset([0, 1, 2]))),
        "serves class 2 at v3, which is not on its tree",
    ),
    "a proxy where there can be none": (
        with_channel(replace(BARE, serves=Serves(ints(0, 1, 2), ints(1, 2, 2), ANY))),
        "serves class 2 at a proxy, which pruning copies cannot do",
    ),
    "a proxy that cannot reach the host": (
        serving(ints(0, 1, 2), ints(1, 2, 1), ANY),
        "no link and no path leads from the proxy v1 to v3",
    ),
    "a class served twice always": (
        serving(ints(0, 1, 2, 2), ints(1, 2, 3, 2), ints(-1, -1, -1, -1)),
        "serves class 2 more than once for some events",
    ),
    "a class served twice in a region": (
        serving(ints(0, 1, 2, 2), ints(1, 2, 3, 2), ints(-1, -1, -1, 0), regions=HALVES),
        "serves class 2 more than once for some events",
    ),
    "regions that overlap": (
        serving(ints(0, 1, 2, 2), ints(1, 2, 3, 2), ints(-1, -1, 0, 1), regions=MEETING),
        "serves class 2 more than once for some events: regions must not overlap",
    ),
    "a leg without a tree": (
        with_channel(replace(BARE, entry=Entry(ints(-1, -1, -1, -1)))),
        "pruning copies starts at the publisher's broker: it takes no legs",
    ),
    "too few targets": (
        with_channel(channel(entry=Entry(ints(0, 0)))),
        "entry names 2 targets for 4 brokers",
    ),
    "an entry off the tree": (
        with_channel(channel(serves=FAR_END, links=tree((2, 3)), entry=Entry(ints(1, 2, 2, 2)))),
        "events of v0 would enter at broker 1, off its tree",
    ),
    "an entry that is no broker": (
        with_channel(channel(entry=Entry(ints(4, -1, -1, -1)))),
        "events of v0 would enter at broker 4, off its tree",
    ),
    "a publisher off the tree without a leg": (
        with_channel(channel(serves=FAR_END, links=tree((2, 3)), entry=Entry(ints(3, -1, -1, -1)))),
        "events of v1 would enter at broker 1, off its tree",
    ),
    "a publisher off the tree, no legs at all": (
        with_channel(channel(serves=FAR_END, links=tree((2, 3)))),
        "events of v0 would enter at broker 0, off its tree",
    ),
    "a leg along nothing": (
        with_channel(channel(entry=Entry(ints(2, -1, -1, -1)))),
        "no link and no path leads from v0 to its entry v2",
    ),
    "a stamped channel without a tree among others": (
        lambda: plan(STAMPED, channel(Stamped(), pruning=Pruning.TREE)),
        "one of several stamped channels must have a tree",
    ),
    "stamped channels of different classes": (
        lambda: plan(STAMPED, replace(TWO_STAMPED[1], serves=FAR_END)),
        "second: stamped channels must serve the same classes",
    ),
    "stamped channels of different regions": (
        lambda: plan(
            STAMPED,
            replace(TWO_STAMPED[1], serves=replace(EVERYONE, region=ints(-1, -1, 0))),
            regions=(ints(0, 1, 2, 3),),
        ),
        "second: stamped channels must serve the same classes",
    ),
    "stamped channels of different publishers": (
        lambda: plan(STAMPED, replace(TWO_STAMPED[1], admits=Admission(Stamped(), frozenset([0])))),
        "second: stamped channels must admit the same publishers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_form_is_reported(fault: str) -> None:
    make, gist = FAULTS[fault]
    sentences = found(make())
    assert any(gist in sentence for sentence in sentences), sentences


def test_all_faults_come_in_one_error() -> None:
    bad = plan(channel(publishers=frozenset([9])), replace(channel(), tree=None))
    with pytest.raises(PlanError, match="plan hand cannot be used on overlay ring") as raised:
        check(bad, PROBLEM)
    assert len(raised.value.faults) == 2


# ----------------------------------------------------------------------------------------- reachability


def missed(made: Plan, problem: Problem = PROBLEM) -> list[str]:
    return [sentence for sentence in found(made, problem) if "misses events of" in sentence]


def test_a_plan_without_channels_reaches_nobody_elsewhere() -> None:
    nothing = replace(plan(), channels=(), grid=None)
    assert missed(nothing) == [
        "subscription 's0' at v1 misses events of v0",
        "subscription 's1' at v2 misses events of v0",
        "subscription 's2' at v3 misses events of v0",
    ]
    assert missed(replace(nothing, grid=GRID)) == [f"{sentence} in cell 0" for sentence in missed(nothing)]


def test_a_plan_without_channels_is_right_where_only_the_host_publishes() -> None:
    alone = Classes.collapse(SUBSCRIPTIONS[:1], RING, SCHEMA.attributes)
    problem = Problem.of(RING, alone, NOTHING, ATTACHED, publishers=["v1"])
    assert found(Plan("none", RING, alone, (), ATTACHED), problem) == []


def test_a_vacant_class_needs_no_channel() -> None:
    less, _ = CLASSES.without_subscription("s2")
    problem = Problem.of(RING, less, NOTHING, ATTACHED)
    made = plan(channel(serves=Serves.at_hosts([0, 1], less)), classes=less)
    assert found(made, problem) == []


def test_a_channel_for_some_publishers_leaves_the_others_out() -> None:
    # v0 and v2 are served; s1 is at v2 itself, so v3 is the first that it misses.
    made = plan(channel(publishers=frozenset([0, 1, 2])))
    assert [re.sub(" in cell.*", "", s) for s in missed(made)] == [
        "subscription 's0' at v1 misses events of v3",
        "subscription 's1' at v2 misses events of v3",
    ]


def test_only_publishers_that_exist_must_be_served() -> None:
    problem = Problem.of(RING, CLASSES, NOTHING, ATTACHED, publishers=["p"])
    made = plan(channel(publishers=frozenset([0])))
    assert found(made, problem) == []
    assert missed(made) != []


def test_cells_must_cover_every_cell_that_the_filter_touches() -> None:
    # x < 5 touches cells 0 (below 3) and 1 (3 to 6); the others may be in any cell.
    part = channel(Cells(ints(0, 1)), serves=Serves.at_hosts([1], CLASSES))
    rest = channel(serves=Serves.at_hosts([0, 2], CLASSES))
    assert found(plan(part, rest)) == []
    smaller = replace(part, admits=Admission(Cells(ints(0))))
    assert missed(plan(smaller, rest)) == ["subscription 's1' at v2 misses events of v0 in cell 1"]


def test_cells_of_several_channels_count_together() -> None:
    whole = plan(channel(Cells(ints(0, 3))), channel(Cells(ints(1, 2))))
    assert found(whole) == []
    assert missed(plan(channel(Cells(ints(0, 3))), channel(Cells(ints(1))))) == [
        "subscription 's0' at v1 misses events of v0 in cell 2",
        "subscription 's2' at v3 misses events of v0 in cell 2",
    ]


def test_regions_must_cover_every_cell_that_the_filter_touches() -> None:
    lacking = Serves(ints(0, 1, 2), ints(1, 2, 3), ints(-1, 0, -1))
    assert found(plan(channel(serves=lacking), regions=(ints(0, 1),))) == []
    assert missed(plan(channel(serves=lacking), regions=(ints(1, 2),))) == [
        "subscription 's1' at v2 misses events of v0 in cell 0"
    ]


def advertised(*said: str, at: int = 0) -> Problem:
    filters = [Subscription("a", "p", "v0", sql=text).parse(SCHEMA.attributes) for text in said]
    return Problem.of(
        RING, CLASSES, NOTHING, ATTACHED, publishers=["p"], advertisements={at: filters}, grid=GRID
    )


def test_an_advertisement_excuses_what_it_rules_out() -> None:
    only_a = plan(channel(serves=Serves.at_hosts([0, 2], CLASSES)))
    assert [s.split(" misses")[0] for s in missed(only_a)] == ["subscription 's1' at v2"]
    assert found(only_a, advertised("x > 7")) == []
    assert found(only_a, advertised("x > 7", "x = 5")) == []
    assert missed(only_a, advertised("x > 7", "x = 4")) != []


def test_advertising_nothing_publishes_nothing() -> None:
    assert found(replace(plan(), channels=()), advertised()) == []


E1, E2 = Match((0,)), Match((1,))


def served_by(*expressions: Expression) -> Plan:
    """Class 0 through channels of these expressions; the others through a channel of their own."""
    own = Serves.at_hosts([0], CLASSES)
    rest = channel(serves=Serves.at_hosts([1, 2], CLASSES))
    return plan(rest, *(channel(Holds(expression), serves=own) for expression in expressions))


@pytest.mark.parametrize(
    ("expressions", "covered"),
    [
        ((E1,), True),
        ((All((E1, E2)), All((E1, Negation(E2)))), True),
        ((All((E1, E2)),), False),
        ((All((E1, Negation(E2))),), False),
        ((Match((0, 1)),), True),
        ((Some((E2, E1)),), True),
        ((E2, Negation(E2)), True),
        ((E2,), False),
        ((Negation(E1),), False),
        ((All(()),), True),
        ((Some(()),), False),
        ((Match(()),), False),
        ((Negation(Match(())),), True),
        ((All((E1, E2)), All((E1, Negation(Match((1, 2))))), All((E1, Match((2,))))), True),
        ((All((E1, E2)), All((E1, Negation(Match((1, 2)))))), False),
    ],
)
def test_expressions_must_cover_every_case_together(
    expressions: tuple[Expression, ...], covered: bool
) -> None:
    sentences = missed(served_by(*expressions))
    assert (sentences == []) is covered
    assert all(sentence.startswith("subscription 's0' at v1") for sentence in sentences)


def test_expressions_and_cells_count_together() -> None:
    own = Serves.at_hosts([0], CLASSES)
    rest = channel(serves=Serves.at_hosts([1, 2], CLASSES))
    part = channel(Holds(All((E1, E2))), serves=own)
    cells = channel(Cells(ints(0, 1, 3)), serves=own)
    assert missed(plan(rest, part, cells)) == ["subscription 's0' at v1 misses events of v0 in cell 2"]
    assert found(plan(rest, part, cells, channel(Holds(Negation(E2)), serves=own))) == []


def test_more_terms_than_can_be_decided_are_a_limit() -> None:
    rows = [Subscription(f"s{i}", f"c{i}", "v1", sql=f"x = {i}") for i in range(MOST_TERMS + 2)]
    classes = Classes.collapse(rows, RING, SCHEMA.attributes)
    asked = Holds(Negation(All(tuple(Match((k,)) for k in range(len(rows))))))
    made = Plan("hand", RING, classes, (channel(asked, Serves.at_hosts(range(len(rows)), classes)),))
    with pytest.raises(LimitError, match="Merge channels"):
        list(faults(made, Problem.of(RING, classes, NOTHING)))


# ------------------------------------------------------------------------------- what is accepted, holds


@st.composite
def events_from(draw: st.DrawFn, publishers: list[str]) -> list[Event]:
    """Events that no planner has seen."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(publishers),
                st.sampled_from(["a", "b", "bb", "c"]),
                st.none() | st.integers(-1, 10),
                st.lists(st.sampled_from(["news", "sport", "art"]), max_size=3, unique=True),
            ),
            min_size=1,
            max_size=12,
        )
    )
    return [
        Event(
            id=f"n{i}",
            publisher=publisher,
            time=datetime(2026, 2, 1, tzinfo=UTC),
            attributes={"topic": topic, "keywords": tuple(words)} | ({} if x is None else {"x": x}),
            size_bytes=10,
        )
        for i, (publisher, topic, x, words) in enumerate(rows)
    ]


def delivered(made: Plan, events: list[Event]) -> dict[tuple[str, str], int]:
    return dict(Simulator(made).simulate_events([events_to_batch(events, SCHEMA)]).delivered)


def wanted(world: World, events: list[Event]) -> set[tuple[str, str]]:
    return replace(world, events=tuple(events)).wanted()


@st.composite
def checked(draw: st.DrawFn) -> tuple[World, Plan, Problem, list[Event]]:
    """A plan, its problem with some advertisements, and new events that keep to them."""
    world = draw(worlds())
    made = draw(plans(world))
    filters = [Subscription("a", "p", "v0", **f).parse(SCHEMA.attributes) for f in FILTERS]  # type: ignore[arg-type]
    said: dict[int, list[Filter]] = {}
    if draw(st.booleans()):
        brokers = st.integers(0, len(world.overlay) - 1)
        said = draw(st.dictionaries(brokers, st.lists(st.sampled_from(filters), max_size=2), max_size=3))
    problem = Problem.of(
        world.overlay, world.classes, world.demand, world.attachments, advertisements=said, grid=GRID
    )
    events = draw(events_from(list(world.overlay.brokers)))
    index = world.overlay.index
    kept = [
        event
        for event in events
        if index[event.publisher] not in said
        or any(f.holds(event.values) for f in said[index[event.publisher]])
    ]
    assume(kept)
    return world, made, problem, kept


@settings(max_examples=80)
@given(checked())
def test_subscriptions_without_a_complaint_get_every_new_event_once(
    case: tuple[World, Plan, Problem, list[Event]],
) -> None:
    world, made, problem, events = case
    complaints = [re.match(r"subscription '(\w+)' at \w+ misses", fault) for fault in faults(made, problem)]
    named = {match[1] for match in complaints if match}
    assert len(named) == len(complaints), "drawn plans are sound in form"
    excused = {row.id for group in world.classes.members if group[0].id in named for row in group}
    got = delivered(made, events)
    assert all(count == 1 for count in got.values())
    due = wanted(world, events)
    assert set(got) <= due
    assert {pair for pair in due - set(got) if pair[1] not in excused} == set()


@settings(max_examples=25)
@given(st.data())
def test_plans_without_faults_deliver_every_new_event_to_exactly_its_subscriptions(
    data: st.DataObject,
) -> None:
    world = data.draw(worlds(most=6))
    made = data.draw(plans(world))
    rest = Serves.at_hosts(np.arange(len(world.classes)), world.classes)
    spare = data.draw(st.sampled_from([Pruning.TREE, Pruning.DESTINATIONS, Pruning.COPIES]))
    more = Channel("rest", Admission(AnyOf()), rest, spare)
    if list(faults(made, world.problem)):  # what it lacks, one more channel makes good
        made = replace(made, channels=(*made.channels, more))
    assert list(faults(made, world.problem)) == []
    events = data.draw(events_from(list(world.overlay.brokers)))
    got = delivered(made, events)
    assert set(got) == wanted(world, events)
    assert all(count == 1 for count in got.values())


@settings(max_examples=20)
@given(st.data())
def test_a_complaint_is_about_a_pattern_that_is_really_missed(data: st.DataObject) -> None:
    world = data.draw(worlds(most=5))
    assume(0 < len(world.classes) <= 5)
    made = data.draw(plans(world))
    for fault in faults(made, world.problem):
        match = re.match(r"subscription '(\w+)' at \w+ misses events of (\w+) in cell (\d+)", fault)
        assert match is not None
        k, origin, cell = world.classes.class_of[match[1]], world.overlay.index[match[2]], int(match[3])
        others = [other for other in range(len(world.classes)) if other != k]
        subsets = chain.from_iterable(combinations(others, size) for size in range(len(others) + 1))
        patterns = [(origin, (k, *subset), 1, 0) for subset in subsets]
        lost = [price(made, Demand.of([p], cells=[cell])).undelivered for p in patterns]
        assert any(lost)
