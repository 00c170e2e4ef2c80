"""SemCast's Table 1 and Figure 2, with the whole rule: falling rates, costs, and overlap among equals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.generators import line
from ramify.planning.demand.overlap import Overlap
from ramify.planning.schemes.semcast.hierarchies import EdgeEstimate, Hierarchies, build_hierarchies
from worked_tables import TABLE_1

RATES = [10.0, 4.0, 6.0, 9.0, 8.0, 5.0, 2.0]
PARENTS = [-1, 3, 3, -1, 0, 3, 5]  # P1..P7 are 0..6: roots P1 and P4, P6 under P4


def built(hosts: list[int], points: list[int] | None = None) -> Hierarchies:
    """On a line of ten brokers; unless told, events come from its far end, so that sharing a way pays."""
    estimate = EdgeEstimate(all_pairs(line(10, name="line")).distance, 2, np.random.default_rng(0))
    at = [np.array([host], dtype=np.int32) for host in hosts]
    return build_hierarchies(Overlap.of_dense(TABLE_1, RATES), at, estimate, points or [0] * 7)


@pytest.mark.parametrize(
    "hosts", [[5] * 7, [9, 9, 8, 8, 9, 8, 9], [4, 5, 6, 7, 8, 7, 7]], ids=["one", "two", "apart"]
)
def test_table_1_by_the_whole_rule(hosts: list[int]) -> None:
    found = built(hosts)
    assert found.parent.tolist() == PARENTS
    assert found.members == ((0, 4), (1, 2, 3, 5, 6))
    assert found.of.tolist() == [0, 1, 1, 1, 0, 1, 1]
    assert [sorted(each.brokers.tolist()) for each in found.reach] == [
        sorted({hosts[p] for p in row}) for row in found.members
    ]


@given(order=st.permutations(range(7)))
def test_table_1_whatever_the_order_of_profiles(order: list[int]) -> None:
    table = np.array(TABLE_1, dtype=float)[np.ix_(order, order)]
    rates = [RATES[p] for p in order]
    estimate = EdgeEstimate(all_pairs(line(3, name="line")).distance, 1, np.random.default_rng(0))
    at = [np.array([1], dtype=np.int32)] * 7
    found = build_hierarchies(Overlap.of_dense(table, rates), at, estimate, [0] * 7)
    named = [-1 if above < 0 else order[above] for above in found.parent.tolist()]
    assert named == [PARENTS[p] for p in order]


def test_costs_come_before_overlap() -> None:
    """P6 shares more with P4, but only P1's tree reaches its broker already."""
    found = built([9, 1, 1, 1, 9, 9, 1])
    assert found.parent[5] == 0
    assert found.parent[6] == 3  # P7 is at P4's broker, and P4 contains it too


def test_where_sharing_does_not_pay_everybody_is_a_root() -> None:
    """Each profile's own rendezvous point is its broker: alone it costs nothing, and joining does."""
    hosts = [0, 1, 2, 3, 4, 5, 6]
    found = built(hosts, hosts)
    assert found.parent.tolist() == [-1] * 7
    assert found.point.tolist() == [0, 3, 4, 2, 5, 1, 6]  # by falling rate


def test_a_profile_never_joins_one_that_comes_later() -> None:
    """No messages realise the table: with other rates a container may be rarer than what it contains."""
    rates = [10.0, 4.0, 6.0, 1.0, 8.0, 5.0, 2.0]
    estimate = EdgeEstimate(all_pairs(line(3, name="line")).distance, 1, np.random.default_rng(0))
    at = [np.array([1], dtype=np.int32)] * 7
    found = build_hierarchies(Overlap.of_dense(TABLE_1, rates), at, estimate, [0] * 7)
    assert found.parent[3] == -1
    assert found.parent[5] == 0  # P4 is not there yet


@given(rates=st.lists(st.sampled_from([0.0, 1.0, 5.0]), min_size=1, max_size=5))
def test_every_profile_is_in_one_hierarchy_whatever_a_matrix_says_of_rates(rates: list[float]) -> None:
    """Of events, profiles that contain each other have one rate; a matrix by hand may say otherwise."""
    size = len(rates)
    estimate = EdgeEstimate(all_pairs(line(3, name="line")).distance, 1, np.random.default_rng(0))
    at = [np.array([1], dtype=np.int32)] * size
    found = build_hierarchies(Overlap.of_dense(np.ones((size, size)), rates), at, estimate, [0] * size)
    assert sorted(p for row in found.members for p in row) == list(range(size))
