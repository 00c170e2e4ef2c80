from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import sql_verdict
from strategies import rows, sql_text, sql_trees
from ramify.content.expressions import evaluate
from ramify.content.sql import parse_sql

@settings(max_examples=1000)
@given(sql_trees(), st.lists(rows(), min_size=3, max_size=8), st.booleans())
def test_sql(tree, events, other):
    f = parse_sql(sql_text(tree, other))
    for e in events:
        v = sql_verdict(tree, e)
        assert evaluate(f.expression, e) is v
        assert f.holds(e) is (v is True)
