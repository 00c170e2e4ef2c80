from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import rows, filters
from ramify.content.filters import EVERYTHING

EV = st.lists(rows(), min_size=3, max_size=6)

@settings(max_examples=300)
@given(filters(), filters(), EV)
def test_laws(f, g, events):
    fs = [f & g, f | g, ~f, f - g, ~(f & g), ~f | ~g, ~~f, f.simplify(), (f|g).simplify(), f & ~g]
    assert f.covers(f & g)
    assert (f | g).covers(f)
    assert (f|g).covers(g)
    assert f.covers(f)
    for e in events:
        a, b = f.holds(e), g.holds(e)
        got = [h.holds(e) for h in fs]
        assert got == [a and b, a or b, not a, a and not b, not (a and b), not (a and b), a, a, a or b, a and not b], (e, got)
        if f.covers(g): assert a or not b
        if not f.overlaps(g): assert not (a and b)
        if f.key == g.key: assert a == b
        if f.is_empty: assert not a
