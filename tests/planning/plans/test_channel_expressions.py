"""Expressions are true by their forms when they are by definition: for one event, and in kernels."""

from collections.abc import Mapping
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.expressions import ChannelExpressions, expressions_of, ones
from ramify.planning.plans.layout import layout_of
from ramify.planning.plans.plan import (
    Admission,
    All,
    AnyOf,
    Channel,
    Content,
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
    evaluate,
)
from ramify.planning.pricing import walk
from ramify.planning.pricing.sums import sums_of
from ramify.planning.pricing.walk import Walker
from worlds import SCHEMA, World, plans, worlds

CLASSES = 8
PAIR = Overlay.build("pair", ["v0", "v1"], [Link.symmetric("v0", "v1")])
ROWS = [Subscription(f"s{i}", f"c{i}", "v1", sql=f"x = {i}") for i in range(CLASSES)]
KNOWN = Classes.collapse(ROWS, PAIR, SCHEMA.attributes)

terms = st.lists(st.integers(0, CLASSES - 1), max_size=3).map(lambda ids: Match(tuple(ids)))
nested = st.recursive(
    terms,
    lambda parts: (
        st.lists(parts, max_size=3).map(lambda given: All(tuple(given)))
        | st.lists(parts, max_size=3).map(lambda given: Some(tuple(given)))
        | parts.map(Negation)
    ),
    max_leaves=6,
)
conjunctions = st.lists(terms, max_size=3).map(lambda parts: All(tuple(parts)))
split = st.tuples(st.lists(terms, max_size=2), st.lists(conjunctions | nested, max_size=2)).map(
    lambda pair: All((*pair[0], *map(Negation, pair[1])))
)
"""What SemCast makes: some terms, and not some others, however nested."""
forms = terms | conjunctions | split | nested
matched = st.sets(st.integers(0, CLASSES - 1))


@given(st.lists(forms, max_size=8), st.sets(st.integers(0, CLASSES)))
def test_one_event_by_forms_is_as_by_definition(expressions: list[Expression], matched: set[int]) -> None:
    read = ChannelExpressions({3 * i: each for i, each in enumerate(expressions)})
    wanted = [3 * i for i, each in enumerate(expressions) if evaluate(each, matched)]
    assert sorted(read.holding(sorted(matched))) == wanted


@given(st.lists(forms, max_size=8))
def test_a_channel_is_filed_once_under_a_term_without_which_it_is_false(
    expressions: list[Expression],
) -> None:
    read = ChannelExpressions(dict(enumerate(expressions)))
    filed = [(c, term) for term, channels in read.filed.items() for c in channels]
    assert sorted([*read.unfiled, *(c for c, _ in filed)]) == list(range(len(expressions)))
    for c, term in filed:
        without = set(range(CLASSES)) - set(read.terms[term])
        assert not evaluate(expressions[c], without)
        assert term in ones(read.forms[c].needs)


def test_what_needs_a_term_is_looked_at_only_when_that_is_true() -> None:
    rare, common, barred = Match((1,)), Match((2, 3)), Match((4,))
    deep = Negation(All((barred, Negation(All((rare, Negation(barred)))))))
    read = ChannelExpressions(
        {0: All((common, rare)), 1: common, 2: All((common, deep)), 3: Negation(rare)}
    )
    assert {read.terms[term]: channels for term, channels in read.filed.items()} == {
        (1,): [0],
        (2, 3): [1, 2],
    }
    assert read.unfiled == [3]


# --------------------------------------------------------------------------------------------- kernels


def channel(content: Content, publishers: frozenset[int] | None) -> Channel:
    serves = Serves.at_hosts(range(0, CLASSES, 2), KNOWN)
    return Channel("c", Admission(content, publishers), serves, Pruning.DESTINATIONS)


contents: st.SearchStrategy[Content] = forms.map(Holds) | st.sampled_from(
    [Everything(), AnyOf(), Stamped()]
)
allowed = st.none() | st.sets(st.integers(0, 1)).map(frozenset)


def admits(content: Content, matched: set[int]) -> bool:
    match content:
        case Holds(expression):
            return evaluate(expression, matched)
        case Everything():
            return True
    return any(k % 2 == 0 for k in matched)


@given(
    given_=st.lists(st.tuples(contents, allowed), max_size=8),
    events=st.lists(st.tuples(st.integers(0, 1), matched), max_size=12),
)
def test_kernels_find_the_channels_that_admit_an_event_in_their_order(
    given_: list[tuple[Content, frozenset[int] | None]], events: list[tuple[int, set[int]]]
) -> None:
    """By class first, then the others ascending, stamped ones last: whatever found them."""
    made = Plan("drawn", PAIR, KNOWN, tuple(channel(*each) for each in given_))
    demand = Demand.of([(origin, classes, 1, 1) for origin, classes in events])
    with patch.object(walk, "_FIRST_RIDES", 1):
        rides = Walker(layout_of(made)).rides(demand, 0, len(demand)).columns
    for i in range(len(demand)):
        origin, seen = int(demand.publisher[i]), set(demand[i].tolist())
        taken = [
            c
            for c, (content, publishers) in enumerate(given_)
            if (publishers is None or origin in publishers) and admits(content, seen)
        ]
        by_class = [c for c in taken if isinstance(given_[c][0], AnyOf)]
        found = rides.channel[rides.pattern == i].tolist()
        assert sorted(found[: len(by_class)]) == by_class
        rest = [c for c in taken if c not in by_class]
        assert found[len(by_class) :] == sorted(rest, key=lambda c: isinstance(given_[c][0], Stamped))
        here = np.flatnonzero(rides.pattern == i)
        served = layout_of(made).tables.entry_class
        for r in here.tolist():
            entries = served[rides.entry[rides.start[r] : rides.start[r + 1]]].tolist()
            assert sorted(entries) == ([] if origin == 1 else sorted(k for k in seen if k % 2 == 0))


@settings(max_examples=60)
@given(data=st.data(), world=worlds(), room=st.sampled_from([1, 7, 40]), step=st.sampled_from([3, 8]))
def test_how_a_walk_is_cut_into_chunks_changes_nothing(
    data: st.DataObject, world: World, room: int, step: int
) -> None:
    plan = data.draw(plans(world))
    whole = sums_of(plan, world.demand)
    with (
        patch.object(walk, "MOST_CROSSINGS", room),
        patch.object(walk, "_FIRST_PATTERNS", step),
        patch.object(walk, "_FIRST_RIDES", 1),
    ):
        walker = Walker(layout_of(plan))
        chunks = list(walker.chunks(world.demand))
        parts = sums_of(plan, world.demand)
    assert [chunk.first for chunk in chunks[1:]] == [chunk.last for chunk in chunks[:-1]]
    assert (chunks[0].first, chunks[-1].last) == (0, len(world.demand)) if chunks else not len(world.demand)
    assert all(walker._room(chunk) <= room for chunk in chunks if chunk.last - chunk.first > 1)
    assert parts.to_bytes() == whole.to_bytes()


def test_a_plan_is_read_once() -> None:
    made = Plan("hand", PAIR, KNOWN, (channel(Holds(Match((1,))), None), channel(AnyOf(), None)))
    read = expressions_of(made)
    assert expressions_of(made) is read
    assert list(read.forms) == [0]


@pytest.mark.parametrize("bits", [{}, {0}, {3, 70, 71}])
def test_ones(bits: Mapping[int, None]) -> None:
    assert list(ones(sum(1 << bit for bit in bits))) == sorted(bits)
