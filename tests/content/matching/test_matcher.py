"""The index must accept exactly what plain evaluation accepts, whatever was added and removed before."""

import ipaddress
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batches import TIMESTAMP, batch_of
from ramify.content.events.columns import ordered, whole_numbers
from ramify.content.filters.filters import EVERYTHING, NOTHING_AT_ALL, Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.pattern import parse_pattern
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.encoding import double_of, order_of
from ramify.content.matching.matcher import Matcher
from ramify.errors import InputError, SchemaError
from strategies import filters, rows, typed_rows

Row = dict[str, Any]


def expected(held: dict[int, Filter], events: Sequence[Row]) -> list[list[int]]:
    return [sorted(id_ for id_, f in held.items() if f.holds(event)) for event in events]


def found(matcher: Matcher, batch: pa.RecordBatch, threads: int = 1) -> list[list[int]]:
    return [ids.tolist() for ids in matcher.match(batch, threads)]


@given(st.lists(filters(), max_size=12), st.lists(typed_rows(), max_size=8))
def test_index_match_equals_plain_evaluation(asked: list[Filter], events: list[Row]) -> None:
    assert found(Matcher(asked), batch_of(events)) == expected(dict(enumerate(asked)), events)


@given(st.lists(filters(), min_size=1, max_size=12), rows())
def test_values_of_unexpected_types_match_as_plainly_evaluated(asked: list[Filter], event: Row) -> None:
    assert found(Matcher(asked), batch_of([event])) == expected(dict(enumerate(asked)), [event])


class Churn(RuleBasedStateMachine):
    """Filters come and go; after every step the index agrees with plain evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.matcher = Matcher()
        self.held: dict[int, Filter] = {}

    @rule(filter_=filters())
    def add(self, filter_: Filter) -> None:
        id_ = self.matcher.add(filter_)
        assert id_ not in self.held
        self.held[id_] = filter_

    @rule(many=st.lists(filters(), min_size=1, max_size=20))
    def extend(self, many: list[Filter]) -> None:
        for id_, filter_ in zip(self.matcher.extend(many), many, strict=True):
            assert id_ not in self.held
            self.held[id_] = filter_

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.held)))
        self.matcher.remove(id_)
        del self.held[id_]

    @rule()
    def compact(self) -> None:
        self.matcher.compact()

    @rule(events=st.lists(typed_rows(), min_size=1, max_size=4))
    def match(self, events: list[Row]) -> None:
        assert found(self.matcher, batch_of(events)) == expected(self.held, events)

    @invariant()
    def counts(self) -> None:
        assert len(self.matcher) == len(self.held)


TestChurn = Churn.TestCase
TestChurn.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


# ---------------------------------------------------------------------------------- many filters, pairs

WORDS = [f"w{k}" for k in range(30)]
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def random_sql(rng: np.random.Generator) -> str:
    """A conjunction of two to four predicates of all kinds that can be indexed, and some that cannot."""

    def price() -> str:
        low = round(float(rng.normal(0, 50)), 3)
        return f"price BETWEEN {low} AND {low + float(rng.exponential(20)):.3f}"

    options = [
        lambda: f"city = 'c{rng.integers(8)}'",
        lambda: f"city IN ('c{rng.integers(8)}', 'c{rng.integers(8)}')",
        lambda: f"city <> 'c{rng.integers(8)}'",
        price,
        lambda: f"qty {'<>='[rng.integers(3)]} {rng.integers(-5, 6)}",
        lambda: f"qty IN ({rng.integers(-5, 6)}, {rng.integers(-5, 6)})",
        lambda: f"path LIKE '{'abc'[rng.integers(3)]}{'xy'[rng.integers(2)]}%'",
        lambda: f"path LIKE '%{'xyz'[rng.integers(3)]}'",
        lambda: f"path LIKE '{'abc'[rng.integers(3)]}%{'xyz'[rng.integers(3)]}'",
        lambda: f"array_contains(tags, '{WORDS[rng.integers(30)]}')",
        lambda: f"NOT array_contains(tags, '{WORDS[rng.integers(30)]}')",
        lambda: f"at > TIMESTAMP '2026-01-0{rng.integers(1, 9)} 00:00:00'",
        lambda: f"at BETWEEN TIMESTAMP '2026-01-01 0{rng.integers(9)}:00:00' AND TIMESTAMP '2026-01-02'",
        lambda: "express",
        lambda: "city IS NULL",
        lambda: "qty IS NOT NULL",
    ]
    picks = rng.choice(len(options), size=rng.integers(2, 5), replace=False)
    return " AND ".join(options[k]() for k in picks)


def random_rows(rng: np.random.Generator, count: int) -> list[Row]:
    out = []
    for _ in range(count):
        row: Row = {
            "city": f"c{rng.integers(8)}",
            "price": float(rng.normal(0, 50)),
            "qty": int(rng.integers(-5, 6)),
            "path": "".join(rng.choice(list("abcxyz"), size=rng.integers(0, 6))),
            "tags": tuple(WORDS[k] for k in rng.integers(30, size=rng.integers(0, 6))),
            "at": DAY + timedelta(seconds=int(rng.integers(-100_000, 800_000))),
            "express": bool(rng.integers(2)),
        }
        for path in list(row):
            if rng.random() < 0.1:
                del row[path]
        out.append(row)
    return out


TYPES = {
    "city": pa.string(),
    "price": pa.float64(),
    "qty": pa.int64(),
    "path": pa.string(),
    "tags": pa.list_(pa.string()),
    "at": TIMESTAMP,
    "express": pa.bool_(),
}


@pytest.mark.parametrize("seed", range(4))
def test_many_filters_equal_plain_evaluation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = [parse_sql(random_sql(rng)) for _ in range(400)]
    events = random_rows(rng, 120)
    matcher = Matcher(asked)
    assert any(len(group) > 1 for group in matcher._store.groups), "pairs of features are used"
    want = expected(dict(enumerate(asked)), events)
    assert sum(map(len, want)) > 100, "the test matches something"
    assert found(matcher, batch_of(events, TYPES)) == want


def test_one_by_one_equals_all_at_once() -> None:
    rng = np.random.default_rng(11)
    asked = [parse_sql(random_sql(rng)) for _ in range(300)]
    events = batch_of(random_rows(rng, 100), TYPES)
    one_by_one = Matcher()
    for filter_ in asked:
        one_by_one.add(filter_)
    assert found(one_by_one, events) == found(Matcher(asked), events)


FEW = ["a", "b", "c", "ab", ""]


@st.composite
def word_filters(draw: st.DrawFn) -> Filter:
    """Filters that ask for whole words of one attribute: of a list, of a scalar, of either; with more."""
    some = draw(st.lists(st.sampled_from(FEW[:4]), min_size=1, max_size=3))
    form = draw(st.sampled_from(["any", "all", "scalar", "array", "and"]))
    if form == "any":
        return parse_keywords(some, "w")
    if form == "all":
        return parse_keywords([some, [some[0]]], "w")
    if form == "scalar":
        return parse_sql("w IN (" + ", ".join(f"'{word}'" for word in some) + ")")
    held = f"array_contains(w, '{some[0]}')"
    return parse_sql(held if form == "array" else f"{held} AND n > 3")


@given(
    st.lists(word_filters(), min_size=1, max_size=30),
    st.lists(st.lists(st.sampled_from(FEW), max_size=4) | st.sampled_from(FEW), min_size=1, max_size=6),
    st.sets(st.integers(0, 29)),
    st.booleans(),
)
def test_lists_of_words_equal_plain_evaluation(
    asked: list[Filter], values: list[Any], removed: set[int], at_once: bool
) -> None:
    """Postings of one word answer for each other: not for other words, scalars or removed filters."""
    matcher = Matcher(asked if at_once else ())
    held = dict(enumerate(asked)) if at_once else {matcher.add(filter_): filter_ for filter_ in asked}
    for id_ in removed & held.keys():
        matcher.remove(id_)
        del held[id_]
    for again in asked[: len(removed)]:
        held[matcher.add(again)] = again
    for kind, arrow in ((list, pa.list_(pa.string())), (str, pa.string())):
        events = [{"w": value, "n": 5 * (i % 2)} for i, value in enumerate(values) if type(value) is kind]
        batch = batch_of(events, {"w": arrow, "n": pa.int64()})
        assert found(matcher, batch) == expected(held, events)


def test_removed_filters_leave_results_and_memory() -> None:
    rng = np.random.default_rng(12)
    asked = [parse_sql(random_sql(rng)) for _ in range(500)]
    events = random_rows(rng, 60)
    matcher = Matcher(asked)
    full = matcher.nbytes
    for id_ in range(450):
        matcher.remove(id_)
    held = {id_: asked[id_] for id_ in range(450, 500)}
    assert found(matcher, batch_of(events, TYPES)) == expected(held, events)
    assert len(matcher) == 50
    assert matcher.nbytes < full / 2


def test_churn_does_not_grow_the_index() -> None:
    rng = np.random.default_rng(13)
    matcher = Matcher(parse_sql(random_sql(rng)) for _ in range(100))
    ids = list(range(100))
    sizes = []
    for _ in range(30):
        for k in range(100):
            matcher.remove(ids[k])
            ids[k] = matcher.add(
                parse_sql(f"city = 'v{rng.integers(10**9)}' AND qty = {rng.integers(10**9)}")
            )
        sizes.append(matcher.nbytes)
    assert max(ids) < 100, "ids are used again"
    assert max(sizes[20:]) <= 2 * max(sizes[5:10])


# ---------------------------------------------------------------------------------------- edges


def test_empty_things() -> None:
    batch = batch_of([{"x": 1}])
    assert found(Matcher(), batch) == [[]]
    assert found(Matcher([EVERYTHING, NOTHING_AT_ALL]), batch) == [[0]]
    assert found(Matcher([EVERYTHING]), batch.slice(0, 0)) == []
    assert found(Matcher([EVERYTHING, parse_sql("absent IS NULL")]), pa.record_batch({"x": [1]})) == [
        [0, 1]
    ]


def test_a_filter_that_matches_nothing_has_an_id_that_can_be_removed() -> None:
    matcher = Matcher([NOTHING_AT_ALL])
    matcher.remove(0)
    assert len(matcher) == 0


@pytest.mark.parametrize("id_", [-1, 1, 7])
def test_removing_what_is_not_there_is_refused(id_: int) -> None:
    matcher = Matcher([EVERYTHING])
    with pytest.raises(InputError, match=f"no filter {id_}"):
        matcher.remove(id_)


def test_removing_twice_is_refused() -> None:
    matcher = Matcher([EVERYTHING, EVERYTHING])
    matcher.remove(0)
    with pytest.raises(InputError):
        matcher.remove(0)
    assert matcher.add(EVERYTHING) == 0


NUMBERS = [
    0,
    -1,
    2**53 - 1,
    2**53,
    2**53 + 1,
    -(2**53) - 1,
    2**62 + 1,
    2**63 - 1,
    -(2**63),
    9_200_000_000_000_000_001,
]
DOUBLES = [0.0, -0.0, 0.5, 1e-310, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 9.3e18, 1e300, -1e300]


@pytest.mark.parametrize("values", [NUMBERS, DOUBLES], ids=["int64", "double"])
def test_numbers_at_the_edges_compare_exactly(values: list[Any]) -> None:
    texts = [f"x {op} {v}" for v in NUMBERS for op in ("=", "<", "<=", ">", ">=", "<>")]
    texts += [f"x {op} {v!r}" for v in DOUBLES for op in ("=", "<", ">=")]
    texts += [f"x IN ({a}, {b})" for a in NUMBERS[:5] for b in NUMBERS[5:]]
    asked = [parse_sql(text) for text in texts]
    events = [{"x": value} for value in values]
    assert found(Matcher(asked), batch_of(events)) == expected(dict(enumerate(asked)), events)


@given(st.lists(st.floats(allow_nan=False), min_size=2))
def test_ordered_keeps_the_order_of_doubles(values: list[float]) -> None:
    floats = np.array(values) + 0.0
    bits = ordered(floats)
    assert np.array_equal(np.sort(bits), ordered(np.sort(floats)))
    assert [order_of(number) for number in values] == bits.tolist()
    assert [double_of(order) for order in bits.tolist()] == floats.tolist()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(-(2**62), 2**62))
def test_whole_numbers_are_the_integers_they_equal(values: list[float], whole: int) -> None:
    floats = np.array([*values, float(whole)]) + 0.0
    keys = whole_numbers(floats)
    for number, key in zip(floats.tolist(), keys.tolist(), strict=True):
        if abs(number) < 9e18 and number.is_integer():
            assert key == int(number)


def test_any_arrow_layout_of_a_column_matches_alike() -> None:
    rng = np.random.default_rng(5)
    asked = [parse_sql(random_sql(rng)) for _ in range(100)]
    events = random_rows(rng, 50)
    plain = batch_of(events, TYPES)
    want = found(Matcher(asked), plain)
    dictionary = plain.set_column(0, "city", plain.column("city").dictionary_encode())
    large = plain.set_column(0, "city", plain.column("city").cast(pa.large_string()))
    large = large.set_column(4, "tags", plain.column("tags").cast(pa.large_list(pa.large_string())))
    small = plain.set_column(2, "qty", plain.column("qty").cast(pa.int8()))
    millis = plain.set_column(5, "at", plain.column("at").cast(pa.timestamp("ms", tz="UTC")))
    for other in (dictionary, large, small, millis):
        assert found(Matcher(asked), other) == want
    assert found(Matcher(asked), plain.slice(7, 20)) == want[7:27]


def test_elements_of_null_lists_are_not_seen() -> None:
    offsets = pa.array([0, 1, 2], pa.int32())
    tags = pa.ListArray.from_arrays(offsets, pa.array(["a", "a"]), mask=pa.array([True, False]))
    assert found(Matcher([parse_keywords(["a"], "tags")]), pa.record_batch({"tags": tags})) == [[], [0]]


@pytest.mark.parametrize("column", [pa.array([b"a"], pa.binary()), pa.array([{"z": 1}]), pa.array([[[1]]])])
def test_a_column_that_no_filter_can_look_at_is_an_error_when_asked_for(column: Any) -> None:
    batch = pa.record_batch({"x": column, "y": [1]})
    assert found(Matcher([parse_sql("y = 1")]), batch) == [[0]]
    with pytest.raises(SchemaError, match="column x"):
        Matcher([parse_sql("x IS NULL")]).match(batch)


def test_a_column_of_nulls_is_absent() -> None:
    assert found(
        Matcher([parse_sql("x IS NULL"), parse_sql("x = 1")]), pa.record_batch({"x": pa.nulls(1)})
    ) == [[0]]


ODD_COLUMNS = [
    (pa.array([1, None, 3], pa.uint64()), [1, None, 3], "x = {}"),
    (pa.array([2**63 + 2048, None, 3], pa.uint64()), [float(2**63 + 2048), None, 3.0], "x = {}"),
    (pa.array([1.5, None, 3.0], pa.float32()), [1.5, None, 3.0], "x = {}"),
    (pa.array([Decimal("1.50"), None, Decimal("-2.25")]), [1.5, None, -2.25], "x = {}"),
    (
        pa.array([date(2026, 1, 2), None, date(1969, 1, 2)]),
        ["2026-01-02", None, "1969-01-02"],
        "x = TIMESTAMP '{}'",
    ),
    (pa.array(["a", None, "b"], pa.string_view()), ["a", None, "b"], "x = '{}'"),
    (pc.run_end_encode(pa.array(["a", None, "b"])), ["a", None, "b"], "x = '{}'"),
    (
        pa.array([["a"], None, ["b"]], pa.list_view(pa.string())),
        ["a", None, "b"],
        "array_contains(x, '{}')",
    ),
    (pa.array([["a"], None, ["b"]], pa.list_(pa.string(), 1)), ["a", None, "b"], "array_contains(x, '{}')"),
    (
        pa.array([["a"], None, ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        ["a", None, "b"],
        "array_contains(x, '{}')",
    ),
]


@pytest.mark.parametrize(
    ("column", "values", "text"), ODD_COLUMNS, ids=[str(c.type) for c, _, _ in ODD_COLUMNS]
)
def test_every_arrow_spelling_of_a_type_is_read(column: Any, values: list[Any], text: str) -> None:
    asked = [parse_sql(text.format(values[0])), parse_sql("x IS NULL"), parse_sql(text.format(values[2]))]
    assert found(Matcher(asked), pa.record_batch({"x": column})) == [[0], [1], [2]]


def test_null_elements_are_no_elements() -> None:
    asked = [parse_pattern({"x": [{"exists": True}]}), parse_keywords(["b"], "x")]
    column = pa.array([[None], ["a", None, "b"], [None, "c"], []], pa.list_(pa.string()))
    assert found(Matcher(asked), pa.record_batch({"x": column})) == [[], [0, 1], [0], []]


def test_nan_lies_above_every_number_as_in_spark() -> None:
    asked = [parse_sql(t) for t in ("x > 5", "x < 5", "x <> 5", "x = 5", "x BETWEEN 0 AND 9", "x IS NULL")]
    asked.append(parse_pattern({"x": [{"exists": True}]}))
    events = [{"x": float("nan")}, {"x": -float("nan")}, {"x": 7.0}]
    assert found(Matcher(asked), batch_of(events)) == expected(dict(enumerate(asked)), events)
    assert expected(dict(enumerate(asked)), events)[0] == [0, 2, 6]


def test_threads_give_the_same_matches() -> None:
    rng = np.random.default_rng(3)
    asked = [parse_sql(random_sql(rng)) for _ in range(50)]
    batch = batch_of(random_rows(rng, 500), TYPES)
    many = pa.Table.from_batches([batch] * 20).combine_chunks().to_batches()[0]
    matcher = Matcher(asked)
    one, two = matcher.match(many), matcher.match(many, threads=3)
    assert np.array_equal(one.ends, two.ends)
    assert np.array_equal(one.ids, two.ids)
    assert np.array_equal(one.rows, np.repeat(np.arange(len(one)), np.diff(one.ends)))


def test_a_row_with_thousands_of_elements_and_matches() -> None:
    words = tuple(f"k{k}" for k in range(3000))
    asked = [parse_keywords([word]) for word in words]
    matches = Matcher(asked).match(batch_of([{"keywords": words}, {"keywords": words[:2]}]))
    assert matches[0].tolist() == list(range(3000))
    assert matches[1].tolist() == [0, 1]


def test_changes_from_other_threads_never_tear_a_match() -> None:
    rng = np.random.default_rng(17)
    matcher = Matcher([EVERYTHING])
    batch = batch_of(random_rows(rng, 50), TYPES)
    extra = [parse_sql(random_sql(rng)) for _ in range(100)]
    failures: list[BaseException] = []

    def change() -> None:
        try:
            for _ in range(5):
                for id_ in [matcher.add(filter_) for filter_ in extra]:
                    matcher.remove(id_)
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=change)
    worker.start()
    while worker.is_alive():
        assert all(0 in ids for ids in matcher.match(batch))
    worker.join()
    assert not failures
    assert found(matcher, batch) == [[0]] * 50


# -------------------------------------------------------------------------------- string tests, compiled

TEXT = st.text(st.sampled_from("aAbBéÉßǅkK中.*%\\"), max_size=6)


@given(st.lists(TEXT, min_size=1, max_size=6), st.lists(TEXT, min_size=1, max_size=6))
def test_compiled_caseless_tests_equal_python(texts: list[str], values: list[str]) -> None:
    patterns = [{"s": [{"equals-ignore-case": t}]} for t in texts]
    patterns += [{"s": [{kind: {"equals-ignore-case": t}}]} for t in texts for kind in ("prefix", "suffix")]
    patterns += [{"s": [{"anything-but": {"equals-ignore-case": texts}}]}]
    asked = [parse_pattern(pattern) for pattern in patterns]
    events = [{"s": value} for value in values]
    assert found(Matcher(asked), batch_of(events)) == expected(dict(enumerate(asked)), events)


@given(st.lists(TEXT, min_size=1, max_size=6), st.lists(TEXT, min_size=1, max_size=6))
def test_compiled_globs_equal_python(texts: list[str], values: list[str]) -> None:
    escaped = [t.replace("\\", "\\\\") for t in texts]
    patterns = [{"s": [{"wildcard": t}]} for t in escaped if "**" not in t]
    patterns += [{"s": [{"suffix": t}, {"prefix": t}]} for t in texts]
    asked = [parse_pattern(pattern) for pattern in patterns]
    events = [{"s": value} for value in values]
    assert found(Matcher(asked), batch_of(events)) == expected(dict(enumerate(asked)), events)


ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda a: a.exploded),
    st.from_regex(r"[0-9a-fA-F:.]{0,20}", fullmatch=True),
    st.from_regex(r"(::)?([0-9a-f]{1,5}:){0,8}(1\.2\.3\.4|::|[0-9a-f]{1,4})?", fullmatch=True),
    st.sampled_from(
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1.2.3.04", "256.1.1.1", "1.2.3"]
    ),
)


@settings(max_examples=300)
@given(st.lists(ADDRESSES, min_size=1, max_size=10), st.ip_addresses(), st.integers(0, 128))
def test_compiled_cidr_equals_ipaddress(
    texts: list[str], address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int
) -> None:
    network = ipaddress.ip_network((address, bits % address.max_prefixlen), strict=False)
    asked = [parse_pattern({"ip": [{"cidr": str(network)}]}), parse_pattern({"ip": [{"cidr": "::/0"}]})]
    asked.append(parse_pattern({"ip": [{"cidr": "0.0.0.0/0"}]}))
    events = [{"ip": text} for text in [*texts, str(address)]]
    assert found(Matcher(asked), batch_of(events)) == expected(dict(enumerate(asked)), events)
