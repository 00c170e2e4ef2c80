"""Laws of terminal sets: their form, picking some, collapsing equal ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.network.trees.terminals import TerminalSets

Given = list[tuple[int, list[int], int]]
brokers = st.integers(0, 5)
GIVEN = st.lists(st.tuples(brokers, st.lists(brokers, max_size=6), st.integers(0, 9)), max_size=12)


def made(given: Given) -> TerminalSets:
    return TerminalSets.of([(root, hosts) for root, hosts, _ in given], [float(w) for *_, w in given])


def same(one: TerminalSets, other: TerminalSets) -> None:
    for part in ("start", "node", "weight"):
        mine, theirs = getattr(one, part), getattr(other, part)
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


@given(GIVEN)
def test_a_set_is_its_root_and_then_the_others_ascending_once(given: Given) -> None:
    sets = made(given)
    assert len(sets) == len(given)
    assert sets.start.dtype == np.int64
    assert sets.node.dtype == np.int32
    for i, (root, hosts, weight) in enumerate(given):
        assert sets[i].tolist() == [root, *sorted(set(hosts) - {root})]
        assert sets.weight[i] == weight


@given(GIVEN)
def test_sets_weigh_one_each_unless_told(given: Given) -> None:
    sets = TerminalSets.of((root, hosts) for root, hosts, _ in given)
    assert sets.weight.tolist() == [1.0] * len(given)


@given(GIVEN.filter(len), st.data())
def test_taking_keeps_order_and_repeats(given: Given, data: st.DataObject) -> None:
    sets = made(given)
    rows = data.draw(st.lists(st.integers(0, len(given) - 1), max_size=8))
    same(sets.take(rows), made([given[row] for row in rows]))
    mask = [row for row in range(len(given)) if row % 2]
    same(sets.take(np.array(mask, dtype=np.int32)), made([given[row] for row in mask]))


@given(GIVEN)
def test_taking_all_changes_nothing_and_taking_none_leaves_none(given: Given) -> None:
    sets = made(given)
    same(sets.take(np.arange(len(sets))), sets)
    none = sets.take([])
    assert (len(none), none.start.tolist(), none.node.tolist()) == (0, [0], [])


@given(GIVEN)
def test_distinct_sets_come_by_first_appearance_with_their_weights_summed(given: Given) -> None:
    sets = made(given)
    kept, where = sets.distinct()
    sums: dict[tuple[int, ...], float] = {}
    for i in range(len(sets)):
        key = tuple(sets[i].tolist())
        sums[key] = sums.get(key, 0.0) + float(sets.weight[i])
    assert [tuple(kept[j].tolist()) for j in range(len(kept))] == list(sums)
    assert kept.weight.tolist() == list(sums.values())
    assert len(where) == len(sets)
    for i in range(len(sets)):
        np.testing.assert_array_equal(kept[int(where[i])], sets[i])


@given(GIVEN)
def test_collapsing_twice_is_collapsing_once(given: Given) -> None:
    kept, _ = made(given).distinct()
    again, where = kept.distinct()
    same(again, kept)
    assert where.tolist() == list(range(len(kept)))


def test_the_same_brokers_from_another_root_are_another_set() -> None:
    kept, where = TerminalSets.of([(0, [1, 2]), (1, [0, 2]), (0, [2, 1, 0])]).distinct()
    assert where.tolist() == [0, 1, 0]
    assert kept.weight.tolist() == [2.0, 1.0]


def test_there_may_be_no_sets() -> None:
    none = TerminalSets.of([])
    kept, where = none.distinct()
    assert (len(none), len(kept), len(where)) == (0, 0, 0)


def test_sets_are_closed_to_assignment() -> None:
    with pytest.raises(AttributeError):
        TerminalSets.of([(0, [1])]).node = np.zeros(2, dtype=np.int32)  # type: ignore[misc]
