"""Cliques: Figure 5's rule, pair by pair, with its erratum."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.planning.schemes.kyra.cliques import cliques_of, default_distance, medoid


@st.composite
def distances(draw: st.DrawFn, most: int = 9) -> np.ndarray:
    count = draw(st.integers(1, most))
    upper = draw(
        st.lists(
            st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 8.0]),
            min_size=count * (count - 1) // 2,
            max_size=count * (count - 1) // 2,
        )
    )
    matrix = np.zeros((count, count))
    matrix[np.triu_indices(count, k=1)] = upper
    return matrix + matrix.T


def by_hand(distance: np.ndarray, max_distance: float, max_servers: int) -> list[list[int]]:
    """Figure 5, all pairs looked at in every pass; a pass that merges nothing is the last."""
    cliques = [[i] for i in range(len(distance))]

    def apart(a: list[int], b: list[int]) -> float:
        return max(float(distance[i, j]) for i in a for j in b)

    while True:
        cliques.sort(key=min)
        pairs = sorted(combinations(cliques, 2), key=lambda p: (apart(*p), min(p[0]), min(p[1])))
        allowed = [
            (a, b) for a, b in pairs if apart(a, b) <= max_distance and len(a) + len(b) <= max_servers
        ]
        if not allowed:
            return [sorted(clique) for clique in cliques]
        a, b = allowed[0]
        cliques = [clique for clique in cliques if clique not in (a, b)] + [a + b]


@given(distance=distances(), near=st.sampled_from([0.0, 1.0, 2.0, 4.0, 9.0]), most=st.integers(1, 9))
def test_cliques_are_those_of_the_printed_rule(distance: np.ndarray, near: float, most: int) -> None:
    found = [clique.tolist() for clique in cliques_of(distance, near, most)]
    assert found == by_hand(distance, near, most)


@given(distance=distances(30), near=st.floats(0, 9), most=st.integers(1, 8))
def test_cliques_divide_the_brokers_and_keep_both_limits(
    distance: np.ndarray, near: float, most: int
) -> None:
    found = cliques_of(distance, near, most)
    assert sorted(broker for clique in found for broker in clique.tolist()) == list(range(len(distance)))
    for clique in found:
        assert len(clique) <= most
        assert distance[np.ix_(clique, clique)].max() <= near


def test_the_loop_ends_where_all_are_near_but_too_many_together() -> None:
    """The printed loop would look for a pair for ever."""
    found = cliques_of(np.zeros((6, 6)), 1.0, 4)
    assert sorted(len(clique) for clique in found) == [2, 4]


def test_no_broker_no_clique_and_limits_are_checked() -> None:
    assert cliques_of(np.zeros((0, 0)), 1.0, 3) == ()
    for near, most in ((-1.0, 3), (float("nan"), 3), (1.0, 0)):
        with pytest.raises(InputError, match="Allowed"):
            cliques_of(np.zeros((2, 2)), near, most)


def test_the_nearest_share_of_pairs_is_near_and_the_medoid_is_central() -> None:
    line = np.abs(np.subtract.outer(np.arange(21.0), np.arange(21.0)))
    assert default_distance(line) == 1.0  # 20 of 210 pairs are 1 apart
    assert default_distance(np.zeros((1, 1))) == 0.0
    assert medoid(line, np.array([2, 5, 6, 7, 20], dtype=np.int32)) == 6
