"""Channel expressions by bits say what their plain evaluation says."""

from hypothesis import given
from hypothesis import strategies as st

from ramify.overlay.channel_expressions import ChannelExpressions
from ramify.planning.plan import All, Expression, Match, Not, Some, evaluate

TERMS = st.lists(st.integers(0, 7), max_size=3).map(lambda ids: Match(tuple(ids)))
FORMS = st.one_of(
    TERMS,
    st.lists(TERMS, max_size=3).map(lambda parts: All(tuple(parts))),
    st.tuples(st.lists(TERMS, max_size=2), st.lists(TERMS, max_size=2)).map(
        lambda pair: All((*pair[0], Not(All(tuple(pair[1])))))
    ),
    st.recursive(
        TERMS,
        lambda parts: (
            st.lists(parts, max_size=3).map(lambda given: All(tuple(given)))
            | st.lists(parts, max_size=3).map(lambda given: Some(tuple(given)))
            | parts.map(Not)
        ),
        max_leaves=6,
    ),
)


@given(st.lists(FORMS, max_size=8), st.sets(st.integers(0, 8)))
def test_bits_say_what_the_expressions_say(expressions: list[Expression], matched: set[int]) -> None:
    compiled = ChannelExpressions({3 * i: each for i, each in enumerate(expressions)})
    wanted = [3 * i for i, each in enumerate(expressions) if evaluate(each, matched)]
    assert sorted(compiled.holding(tuple(sorted(matched)))) == wanted
