"""The kernel for lists of words finds what the general one finds, and steps back where it must."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.content.events.columns import bind_columns
from ramify.content.filters.filters import Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.kernels import SORTED_AS_BITS, match_rows, sort_ids
from ramify.content.matching.matcher import FrozenMatcher, Matcher
from ramify.content.matching.word_kernels import match_words

WORDS = ["a", "b", "ab", "ba", "ü", "a longer word than most"]
REPEATED = 40


def both(matcher: FrozenMatcher, batch: pa.RecordBatch) -> tuple[bool, list[list[int]], list[list[int]]]:
    columns = bind_columns(batch, matcher.paths)
    fits, ends, ids = match_words(matcher.index, columns, 0, batch.num_rows, matcher.filters)
    plain_ends, plain_ids = match_rows(matcher.index, columns, 0, batch.num_rows, matcher.filters)
    plain = [part.tolist() for part in np.split(plain_ids, plain_ends[1:-1])]
    return fits, [part.tolist() for part in np.split(ids, ends[1:-1])] if fits else [], plain


def batch_of(values: list[Any], arrow: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, arrow)], names=["w"])


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), min_size=1, max_size=30),
    st.lists(st.none() | st.lists(st.sampled_from([*WORDS, "", "x"]), max_size=5), min_size=1, max_size=6),
    st.sets(st.integers(0, 29)),
)
def test_any_of_some_words(asked: list[list[str]], values: list[Any], removed: set[int]) -> None:
    matcher = Matcher([parse_keywords(words, "w") for words in asked])
    held = {id_: set(words) for id_, words in enumerate(asked)}
    for id_ in removed & held.keys():
        matcher.remove(id_)
        del held[id_]
    rows = values * REPEATED
    fits, found, plain = both(matcher.frozen(), batch_of(rows, pa.list_(pa.string())))
    expected = [[id_ for id_, words in held.items() if words & set(row or ())] for row in rows]
    assert plain == expected
    assert found == expected if fits else not held
    scalars = batch_of([(row or [None])[0] for row in rows], pa.string())
    fits, found, plain = both(matcher.frozen(), scalars)
    assert not fits or found == plain


@pytest.mark.parametrize(
    "other", ["w = 'a' AND n > 3", "array_contains(w, 'a') AND array_contains(w, 'b')", "n = 1"]
)
def test_other_filters_among_them_are_left_to_the_general_kernel(other: str) -> None:
    asked: list[Filter] = [parse_keywords([word], "w") for word in WORDS] + [parse_sql(other)]
    batch = batch_of([["a", "b"]] * 100, pa.list_(pa.string()))
    matcher = Matcher(asked)
    fits, _, plain = both(matcher.frozen(), batch)
    assert not fits
    assert [ids.tolist() for ids in matcher.match(batch)] == plain


def test_few_rows_and_columns_of_other_types_are_left_to_the_general_kernel() -> None:
    matcher = Matcher([parse_keywords([f"w{k}"], "w") for k in range(5000)]).frozen()
    assert not both(matcher, batch_of([["w1"]], pa.list_(pa.string())))[0]
    assert not both(matcher, batch_of([1] * 5000, pa.int64()))[0]
    assert not both(matcher, pa.RecordBatch.from_arrays([pa.array([1] * 5000)], names=["other"]))[0]


def test_room_grows_for_words_owners_and_matches() -> None:
    rng = np.random.default_rng(7)
    asked = [[f"w{k}" for k in rng.integers(0, 3000, 3)] for _ in range(9000)]
    rows = [[f"w{k}" for k in rng.integers(0, 3100, rng.integers(0, 60))] for _ in range(6000)]
    matcher = Matcher([parse_keywords(words, "w") for words in asked]).frozen()
    fits, found, plain = both(matcher, batch_of(rows, pa.list_(pa.string())))
    assert fits
    assert found == plain
    owners: dict[str, set[int]] = {}
    for id_, words in enumerate(asked):
        for word in words:
            owners.setdefault(word, set()).add(id_)
    for row in range(0, 6000, 97):
        assert found[row] == sorted(set().union(*(owners.get(word, set()) for word in rows[row])))


@given(
    st.sampled_from([1, 63, 64, 65, 4095, 4096, 4097, 70_000, SORTED_AS_BITS, SORTED_AS_BITS + 1]),
    st.randoms(use_true_random=False),
    st.integers(0, 100),
)
def test_ids_are_sorted_as_bits_or_not(filters: int, random: Any, count: int) -> None:
    ids = random.sample(range(filters), min(count, filters))
    ids = list(dict.fromkeys([*ids, filters - 1, 0]))
    array = np.array([9, *ids, 5], np.int32)
    bits = np.zeros((filters + 63) // 64 if filters <= SORTED_AS_BITS else 0, np.uint64)
    filled = np.zeros((len(bits) + 63) // 64, np.uint64)
    sort_ids(array, 1, 1 + len(ids), bits, filled)
    assert array.tolist() == [9, *sorted(ids), 5]
    assert not bits.any()
    assert not filled.any()
