"""What is decided of expressions is so for every set of classes; splits are undone, however many."""

from functools import reduce
from itertools import chain, combinations
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.errors import LimitError
from ramify.planning.plans import implication
from ramify.planning.plans.expressions import ChannelExpressions
from ramify.planning.plans.implication import FEW_TERMS, MOST_TERMS, Implication, _fold
from ramify.planning.plans.plan import All, Expression, Match, Negation, Some, evaluate
from ramify.planning.schemes.semcast.expressions import common, hierarchy, noise

terms = st.lists(st.integers(0, 4), max_size=3).map(lambda ids: Match(tuple(ids)))
expressions = st.recursive(
    terms,
    lambda parts: (
        st.lists(parts, max_size=3).map(lambda given: All(tuple(given)))
        | st.lists(parts, max_size=3).map(lambda given: Some(tuple(given)))
        | parts.map(Negation)
        | st.tuples(parts, parts).map(lambda two: common(*two))
        | st.tuples(parts, parts).map(lambda two: noise(*two))
    ),
    max_leaves=6,
)


@st.composite
def splits(draw: st.DrawFn) -> list[Expression]:
    """Channels that splitting one again and again by others makes; sometimes one is left out."""
    parts = [hierarchy(0)]
    for _ in range(draw(st.integers(0, 4))):
        part = parts.pop(draw(st.integers(0, len(parts) - 1)))
        other = draw(expressions)
        parts += [common(part, other), noise(part, other)]
    if len(parts) > 1 and draw(st.booleans()):
        parts.pop(draw(st.integers(0, len(parts) - 1)))
    return parts


def surely(k: int, given: list[Expression]) -> bool:
    return Implication(ChannelExpressions(dict(enumerate(given)))).surely(k, tuple(range(len(given))))


def by_hand(k: int, given: list[Expression]) -> bool:
    others = [other for other in range(5) if other != k]
    subsets = chain.from_iterable(combinations(others, size) for size in range(5))
    return all(any(evaluate(e, {k, *subset}) for e in given) for subset in subsets)


@settings(max_examples=300)
@given(st.integers(0, 4), st.lists(expressions, max_size=3) | splits(), st.sampled_from([0, FEW_TERMS]))
def test_it_is_decided_as_by_trying_every_set_of_classes(k: int, given: list[Expression], few: int) -> None:
    with patch.object(implication, "FEW_TERMS", few):
        assert surely(k, given) is by_hand(k, given)


@settings(max_examples=300)
@given(st.integers(0, 4), splits())
def test_the_rule_never_accepts_what_leaves_an_event_out(k: int, given: list[Expression]) -> None:
    read = ChannelExpressions(dict(enumerate(given)))
    if _fold(list(read.forms.values()), read.made_true(k)):
        assert by_hand(k, given)


def chain_of(count: int) -> list[Expression]:
    """Hierarchy 0 merged with so many others one after the other, some of which have merged before.

    What is split further is what they share, or what is left where they share nothing.
    """
    parts, left = [], hierarchy(0)
    for h in range(1, count + 1):
        own = hierarchy(h)
        other = (own, noise(own, hierarchy(count + h)), noise(own, hierarchy(0)))[h % 3]
        both = common(left, other), noise(left, other)
        parts.append(both[h % 3 != 2])
        left = both[h % 3 == 2]
    return [*parts, left]


def test_splits_are_undone_however_many_terms_they_name() -> None:
    given = chain_of(2 * MOST_TERMS)
    assert surely(0, given)
    for missing in (0, MOST_TERMS, len(given) - 1):
        with pytest.raises(LimitError, match="Merge channels"):
            surely(0, given[:missing] + given[missing + 1 :])


@pytest.mark.parametrize("count", [FEW_TERMS + 1, MOST_TERMS - 4])
def test_where_the_rule_says_nothing_tables_decide(count: int) -> None:
    """Exactly so many of the others match, for every number: no split makes that."""
    others = [hierarchy(h) for h in range(1, count + 1)]
    none = All(tuple(map(Negation, others)))
    given: list[Expression] = [
        All((hierarchy(0), none)),
        *(All((hierarchy(0), Some((e,)))) for e in others),
    ]
    either = All((hierarchy(0), Negation(All(tuple(map(Negation, others))))))
    read = ChannelExpressions(dict(enumerate(given)))
    assert surely(0, given)
    assert surely(0, [given[0], either])
    assert not surely(0, given[1:])
    assert not surely(0, given[:-1])
    assert read.made_true(0)


def test_terms_that_share_classes_are_not_independent() -> None:
    both, one, other = Match((1, 2)), Match((1,)), Match((2,))
    zero = hierarchy(0)
    assert surely(0, [All((zero, Negation(both))), All((zero, one)), All((zero, other))])
    assert not surely(0, [All((zero, Negation(both))), All((zero, one))])
    every = reduce(common, [zero, one, other])
    assert surely(0, [every, noise(zero, one), noise(zero, other)])


def test_classes_that_the_same_channels_serve_are_decided_apart() -> None:
    decided = Implication(ChannelExpressions({0: Match((0, 1)), 1: All((Match((2,)), Match((0, 1))))}))
    assert [decided.surely(k, (0, 1)) for k in (0, 1, 2)] == [True, True, False]
    assert [decided.surely(2, channels) for channels in ((), (1,))] == [False, False]
