"""What no column holds comes back as it went in."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events.attributes import LeafList
from ramify.content.events.others import others_of_values, values_of_others

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_scalars = st.one_of(
    st.text(max_size=5),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.integers(-(10**15), 10**15).map(lambda us: _EPOCH + timedelta(microseconds=us)),
)
_places = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(tuple)
_lists = st.lists(st.tuples(st.none() | _scalars, _places), max_size=4).map(
    lambda pairs: (
        LeafList([v for v, _ in pairs], [p for _, p in pairs])
        if any(p for _, p in pairs)
        else tuple(v for v, _ in pairs)
    )
)
_values = st.none() | _scalars | _lists
_rows = st.lists(st.dictionaries(st.text(max_size=4), _values, max_size=4), max_size=4)


def _typed(value: object) -> object:
    """A value with its type: True, 1 and 1.0 are equal to Python."""
    if isinstance(value, tuple):
        return [*map(_typed, value)], getattr(value, "places", None)
    return type(value), value


@given(_rows)
def test_values_survive_the_column(rows: list[dict[str, object]]) -> None:
    found = values_of_others(others_of_values(rows))
    assert [{p: _typed(v) for p, v in row.items()} for row in found] == [
        {p: _typed(v) for p, v in row.items()} for row in rows
    ]


def test_an_integer_beyond_64_bits_is_a_double_and_beyond_a_double_infinite() -> None:
    (found,) = values_of_others(others_of_values([{"a": 2**70, "b": -(10**400)}]))
    assert found == {"a": float(2**70), "b": float("-inf")}


def test_lists_with_other_places_differ() -> None:
    one, other = LeafList([1], [((0, 0),)]), LeafList([1], [((0, 1),)])
    assert one != other
    assert one != (1,)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(ValueError, match="2 values have 1 places"):
        LeafList([1, 2], [()])
