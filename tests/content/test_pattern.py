from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import pattern_matches
from strategies import rows, patterns
from ramify.content.expressions import evaluate
from ramify.content.pattern import parse_pattern

@settings(max_examples=1000)
@given(patterns(), st.lists(rows(), min_size=3, max_size=8))
def test_p(pattern, events):
    f = parse_pattern(pattern)
    for e in events:
        v = pattern_matches(pattern, e)
        assert evaluate(f.expression, e) is v
        assert f.holds(e) is v
