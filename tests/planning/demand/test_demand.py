"""Demand and classes: tallies against a plain loop over events, and the laws of what is added and taken."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, OverlayError
from ramify.network.graphs.generators import line
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import MAX_TAGS, Demand
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import Tally, tally
from ramify.planning.demand.windows import NOBODY
from worlds import GRID, SCHEMA, World, worlds

Key = tuple[int, int, int, int, tuple[int, ...]]
Rows = dict[Key, tuple[int, int]]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINE = line(4)


def rows_of(demand: Demand) -> Rows:
    """(publisher, client, cell, tags, classes) -> (events, bytes). No pattern is there twice."""
    found: Rows = {}
    for i in range(len(demand)):
        place = (demand.publisher[i], demand.client[i], demand.cell[i], demand.tags[i])
        key = (*map(int, place), tuple(demand[i].tolist()))
        assert key not in found
        assert list(key[4]) == sorted(set(key[4]))
        found[key] = int(demand.count[i]), int(demand.size[i])
    return found


def counted_by_hand(world: World, events: list[Event], tags: tuple[str, ...] = ()) -> Rows:
    filters = world.classes.filters
    rules = [Subscription("t", "t", "t", sql=text).parse(SCHEMA.attributes) for text in tags]
    found: Rows = {}
    for event in events:
        matched = tuple(
            k for k, f in enumerate(filters) if world.classes.members[k] and f.holds(event.values)
        )
        bits = sum(1 << t for t, rule in enumerate(rules) if rule.holds(event.values))
        origin = world.overlay.index[world.attachments.get(event.publisher, event.publisher)]
        key = (origin, -1, GRID.cell(event.attributes), bits, matched)
        count, size = found.get(key, (0, 0))
        found[key] = count + 1, size + event.size_bytes
    return found


# ---------------------------------------------------------------------------------------------- tallies


@settings(max_examples=40)
@given(worlds(), st.integers(1, 5))
def test_a_tally_is_a_plain_loop_over_events_however_they_are_batched(world: World, step: int) -> None:
    batches = [world.batch.slice(at, step) for at in range(0, world.batch.num_rows, step)]
    demand = tally(batches, world.classes, world.overlay, world.attachments, grid=GRID)
    assert rows_of(demand) == counted_by_hand(world, list(world.events))
    assert list(rows_of(demand)) == sorted(rows_of(demand))
    assert demand.events == len(world.events)
    assert demand.size_bytes == sum(event.size_bytes for event in world.events)
    spread = (len(world.events) - 1) if world.events else 0  # one event a second
    assert demand.seconds == spread


@settings(max_examples=30)
@given(worlds())
def test_without_a_grid_every_event_is_in_no_cell(world: World) -> None:
    demand = tally([world.batch], world.classes, world.overlay, world.attachments)
    summed: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for (origin, _, _, _, classes), (count, _) in counted_by_hand(world, list(world.events)).items():
        summed[origin, classes] += count
    assert {(key[0], key[4]): count for key, (count, _) in rows_of(demand).items()} == dict(summed)
    assert (demand.cell == -1).all()


@settings(max_examples=30)
@given(worlds())
def test_tags_say_which_rules_an_event_meets(world: World) -> None:
    texts = ("x < 4", "topic = 'a'", "x IS NULL")
    rules = [Subscription("t", "t", "t", sql=text).parse(SCHEMA.attributes) for text in texts]
    demand = tally([world.batch], world.classes, world.overlay, world.attachments, grid=GRID, tags=rules)
    assert rows_of(demand) == counted_by_hand(world, list(world.events), texts)


@settings(max_examples=30)
@given(worlds())
def test_clients_are_kept_apart_when_asked(world: World) -> None:
    demand = tally([world.batch], world.classes, world.overlay, world.attachments, by_client=True)
    by_hand = Counter(event.publisher for event in world.events)
    counted: Counter[str] = Counter()
    for i in range(len(demand)):
        name = demand.clients[demand.client[i]]
        assert demand.publisher[i] == world.overlay.index[world.attachments[name]]
        counted[name] += int(demand.count[i])
    assert counted == by_hand


@settings(max_examples=40)
@given(worlds(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_splits_partition_the_events(world: World, splits: int, seed: int) -> None:
    rule = Split((1 / splits,) * splits, seed=seed)
    split = rule.windows(world.batch.column("id"))
    counted = Tally(world.classes, world.overlay, world.attachments, grid=GRID, split=rule)
    counted.add(world.batch)
    demands = counted.windows().parts
    assert len(demands) == splits
    for k, demand in enumerate(demands):
        mine = [event for event, part in zip(world.events, split.tolist(), strict=True) if part == k]
        assert rows_of(demand) == counted_by_hand(world, mine)
        times = [event.time for event in mine]
        assert demand.seconds == ((max(times) - min(times)).total_seconds() if times else 0.0)
    assert sum(demand.events for demand in demands) == len(world.events)


def test_shares_are_kept_on_average_and_by_seed() -> None:
    ids = pa.array([f"event-{i}" for i in range(10_000)])
    split = Split((0.7, 0.2, 0.1), seed=1).windows(ids)
    shares = np.bincount(split, minlength=3) / 10_000
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    np.testing.assert_array_equal(split, Split((0.7, 0.2, 0.1), seed=1).windows(ids))
    assert (split != Split((0.7, 0.2, 0.1), seed=2).windows(ids)).mean() > 0.3
    assert Split().windows(ids[:5]).tolist() == [0] * 5
    assert len(Split((0.5, 0.5)).windows(ids[:0])) == 0


@given(st.lists(st.text(max_size=12)), st.integers(0, 9), st.data())
def test_the_window_of_an_event_depends_on_its_id_alone(
    names: list[str], seed: int, data: st.DataObject
) -> None:
    rule = Split((0.5, 0.25, 0.25), keep=0.5, seed=seed)
    column = pa.array([*names, *names], pa.string())
    at = data.draw(st.integers(0, len(column)))
    for whole, part in (
        (rule.windows(column), rule.windows(column[at:])),
        (rule.kept(column), rule.kept(column[at:])),
    ):
        assert whole is not None
        assert part is not None
        assert whole[at:].tolist() == part.tolist()
        assert whole[: len(names)].tolist() == whole[len(names) :].tolist()


def test_the_sample_is_independent_of_the_windows_and_scales_the_demand() -> None:
    ids = pa.array([f"event-{i}" for i in range(20_000)])
    rule = Split((0.5, 0.5), keep=0.3, seed=4)
    kept = rule.kept(ids)
    assert kept is not None
    assert kept.mean() == pytest.approx(0.3, abs=0.01)
    assert rule.windows(ids)[kept].mean() == pytest.approx(0.5, abs=0.02)
    rows = [event(f"e{i}", "p") for i in range(200)]
    thin = Tally(classes(), LINE, {"p": LINE.brokers[0]}, split=Split(keep=0.25))
    thin.add(events_to_batch(rows, SCHEMA))
    demand = thin.windows().whole
    assert 20 < demand.events < 80
    assert demand.factor == 4


@pytest.mark.parametrize(
    "wrong", [{"shares": ()}, {"shares": (0.5,)}, {"keep": 0}, {"keep": 1.1}, {"seed": -1}]
)
def test_a_split_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Allowed"):
        Split(**wrong)  # type: ignore[arg-type]


def event(name: str, publisher: str, second: float = 0.0, size: int = 10, **attributes: object) -> Event:
    return Event(
        id=name, publisher=publisher, time=NOON + timedelta(seconds=second),
        attributes={"topic": "a", **attributes}, size_bytes=size,  # type: ignore[arg-type]
    )  # fmt: skip


def classes(*rows: tuple[str, str]) -> Classes:
    made = [Subscription(f"s{i}", f"c{i}", broker, sql=text) for i, (broker, text) in enumerate(rows)]
    return Classes.collapse(made, LINE, SCHEMA.attributes)


def counted(*events: Event, **more: object) -> Demand:
    batch = events_to_batch(events, SCHEMA)
    known = classes((LINE.brokers[1], "topic = 'a'"), (LINE.brokers[2], "x > 3"))
    return tally([batch], known, LINE, {"p": LINE.brokers[0]}, **more)  # type: ignore[arg-type]


def test_unknown_publishers_are_counted_and_left_out() -> None:
    demand = counted(event("e0", "p"), event("e1", "ghost"), event("e2", "ghost"), event("e3", "other"))
    assert demand.events == 1
    assert demand.unknown == {"ghost": 2, "other": 1}


def test_a_publisher_may_be_a_broker_but_an_attachment_goes_first() -> None:
    own = LINE.brokers[3]
    assert counted(event("e0", own)).publisher.tolist() == [3]
    batch = events_to_batch([event("e0", own)], SCHEMA)
    moved = tally([batch], classes(), LINE, {own: LINE.brokers[1]})
    assert moved.publisher.tolist() == [1]


def test_unknown_publishers_are_counted_in_their_own_split() -> None:
    known = classes()
    rule = Split((0.5, 0.5))
    apart = Tally(known, LINE, {}, split=rule)
    rows = [event(f"e{i}", "ghost" if i % 3 else LINE.brokers[0]) for i in range(60)]
    batch = events_to_batch(rows, SCHEMA)
    apart.add(batch)
    for k, demand in enumerate(apart.windows().parts):
        mine = [
            row for row, at in zip(rows, rule.windows(batch.column("id")).tolist(), strict=True) if at == k
        ]
        ghosts = sum(row.publisher == "ghost" for row in mine)
        assert (demand.unknown, demand.events) == ({"ghost": ghosts}, len(mine) - ghosts)


def test_events_that_name_no_publisher_are_counted_too() -> None:
    nobody = Event(id="e0", attributes={"topic": "a"})
    assert counted(nobody, event("e1", "p")).unknown == {NOBODY: 1}


def test_events_that_match_nothing_keep_a_pattern() -> None:
    demand = counted(event("e0", "p", topic="z"), event("e1", "p", topic="z", size=5))
    assert rows_of(demand) == {(0, -1, -1, 0, ()): (2, 15)}


def test_equal_patterns_collapse() -> None:
    demand = counted(event("e0", "p"), event("e1", "p", x=9), event("e2", "p", size=1))
    assert rows_of(demand) == {(0, -1, -1, 0, (0,)): (2, 11), (0, -1, -1, 0, (0, 1)): (1, 10)}


def test_the_time_span_reaches_over_batches() -> None:
    apart = Tally(classes(), LINE, {"p": LINE.brokers[0]})
    for second in (5.0, 1.25, 3.0):
        apart.add(events_to_batch([event(f"e{second}", "p", second)], SCHEMA))
    assert apart.windows().whole.seconds == 3.75


def test_no_events_make_an_empty_demand() -> None:
    nothing = events_to_batch([], SCHEMA)
    for batches in ([], [nothing], [nothing, nothing]):
        demand = tally(batches, classes((LINE.brokers[0], "x = 1")), LINE, {}, grid=GRID)
        assert (len(demand), demand.events, demand.size_bytes, demand.seconds) == (0, 0, 0, 0.0)
        assert demand.start.tolist() == [0]
        assert len(demand.destinations(classes())) == 0


def test_more_tags_than_bits_are_refused() -> None:
    rule = Subscription("t", "t", "t", sql="x = 1").parse(SCHEMA.attributes)
    with pytest.raises(InputError, match="65 residency rules"):
        Tally(classes(), LINE, {}, tags=[rule] * (MAX_TAGS + 1))
    full = counted(event("e0", "p", x=1), tags=[rule] * MAX_TAGS)
    assert full.tags.tolist() == [2**64 - 1]


def test_vacant_classes_are_not_matched() -> None:
    known, k = classes(
        (LINE.brokers[1], "topic = 'a'"), (LINE.brokers[2], "topic = 'a'")
    ).without_subscription("s0")
    demand = tally([events_to_batch([event("e0", "p")], SCHEMA)], known, LINE, {"p": LINE.brokers[0]})
    assert k == 0
    assert demand[0].tolist() == [1]


# -------------------------------------------------------------------------------------- laws of a demand

PATTERNS = st.lists(
    st.tuples(
        st.integers(0, 3), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 5), st.integers(0, 50)
    ),
    max_size=10,
)
FIVE = classes(*((LINE.brokers[k % 4], f"x = {k}") for k in range(5)))


@settings(max_examples=50)
@given(PATTERNS)
def test_rows_are_added_up_in_order_of_first_appearance(
    given: list[tuple[int, list[int], int, int]],
) -> None:
    sums: Rows = {}
    for publisher, matched, count, size in given:
        key = (publisher, -1, -1, 0, tuple(sorted(set(matched))))
        before = sums.get(key, (0, 0))
        sums[key] = before[0] + count, before[1] + size
    demand = Demand.of(given)
    assert rows_of(demand) == sums
    assert list(rows_of(demand)) == list(sums)


def test_cells_keep_equal_patterns_apart() -> None:
    demand = Demand.of([(0, (1,), 1, 1)] * 3, cells=[0, 1, 0])
    assert demand.cell.tolist() == [0, 1]
    assert demand.count.tolist() == [2, 1]


@settings(max_examples=50)
@given(PATTERNS)
def test_destinations_are_the_publisher_and_the_other_hosts(
    given: list[tuple[int, list[int], int, int]],
) -> None:
    demand = Demand.of(given)
    sets = demand.destinations(FIVE)
    assert len(sets) == len(demand)
    for i in range(len(demand)):
        origin = int(demand.publisher[i])
        hosts = {int(FIVE.broker[k]) for k in demand[i].tolist()} - {origin}
        assert sets[i].tolist() == [origin, *sorted(hosts)]
        assert sets.weight[i] == demand.size[i]


@settings(max_examples=50)
@given(PATTERNS, st.integers(0, 4), st.data())
def test_a_class_that_is_added_and_taken_away_leaves_what_was(
    given: list[tuple[int, list[int], int, int]], k: int, data: st.DataObject
) -> None:
    demand = replace(Demand.of(given, seconds=7.0), factor=3.0, unknown={"ghost": 1})
    without = demand.without_class(k)
    assert all(k not in key[4] for key in rows_of(without))
    assert (without.events, without.size_bytes) == (demand.events, demand.size_bytes)
    assert (without.seconds, without.factor, without.unknown) == (7.0, 3.0, {"ghost": 1})
    matched = np.array([data.draw(st.booleans()) for _ in range(len(without))], dtype=bool)
    added = without.with_class(k, matched)
    for i in range(len(without)):
        expected = sorted({*without[i].tolist(), k} if matched[i] else without[i].tolist())
        assert added[i].tolist() == expected
        assert added.count[i] == without.count[i]
    assert rows_of(added.without_class(k)) == rows_of(without)
    assert rows_of(without.without_class(k)) == rows_of(without)


@settings(max_examples=50)
@given(PATTERNS, st.integers(0, 4), st.data())
def test_adding_a_class_leaves_it_where_it_was_and_adds_equal_patterns_up(
    given: list[tuple[int, list[int], int, int]], k: int, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.integers(0, 8), min_size=len(given), max_size=len(given)))
    demand = Demand.of(given, weights=[weight / 8 for weight in weights])
    matched = np.array([data.draw(st.booleans()) for _ in range(len(demand))], dtype=bool)
    sums: Rows = {}
    for i, (key, (count, size)) in enumerate(rows_of(demand).items()):
        widened = (*key[:4], tuple(sorted({*key[4], k} if matched[i] else key[4])))
        before = sums.get(widened, (0, 0))
        sums[widened] = before[0] + count, before[1] + size
    found = demand.with_class(k, matched)
    assert list(rows_of(found).items()) == list(sums.items())
    assert found.recent is not None
    assert demand.recent is not None
    np.testing.assert_array_equal(found.recent.sum(axis=1), demand.recent.sum(axis=1))


@settings(max_examples=50)
@given(PATTERNS)
def test_taking_patterns_keeps_their_order(given: list[tuple[int, list[int], int, int]]) -> None:
    demand = Demand.of(given)
    backwards = demand.take(np.arange(len(demand))[::-1])
    assert list(rows_of(backwards).items()) == list(rows_of(demand).items())[::-1]
    assert len(demand.take([])) == 0


def test_scaling_counts_events_no_differently() -> None:
    demand = Demand.of([(0, (1,), 3, 30)])
    assert (demand.scaled(10).scaled(2).factor, demand.scaled(10).events) == (20.0, 3)


# -------------------------------------------------------------------------------------------- classes


def spelled(id_: str, broker: int, **filter_: object) -> Subscription:
    return Subscription(id_, f"client-{id_}", LINE.brokers[broker], **filter_)  # type: ignore[arg-type]


# on attributes that are never arrays, a pattern asks what SQL asks
SAME = (
    {"sql": "publisher >= 'a' AND publisher < 'b'"},
    {"sql": "NOT (publisher < 'a' OR publisher >= 'b')"},
    {"pattern": '{"publisher": [{"prefix": "a"}]}'},
)


def test_one_filter_in_three_spellings_is_one_class_per_broker() -> None:
    rows = [spelled(f"{i}@{b}", b, **how) for i, how in enumerate(SAME) for b in (0, 2)]
    made = Classes.collapse(rows, LINE, SCHEMA.attributes)
    assert len(made) == 2
    assert made.broker.tolist() == [0, 2]
    assert [[row.id for row in group] for group in made.members] == [
        ["0@0", "1@0", "2@0"],
        ["0@2", "1@2", "2@2"],
    ]
    assert made.filters[0].key == made.filters[1].key
    assert made.class_of == {row.id: int(row.id.endswith("@2")) for row in rows}


def test_the_strictest_latency_bound_counts() -> None:
    rows = [
        replace(spelled("a", 0, sql="x = 1"), latency_ms=90.0),
        replace(spelled("b", 0, sql="x = 1"), latency_ms=20.0),
        spelled("c", 1, sql="x = 1"),
    ]
    assert Classes.collapse(rows, LINE, SCHEMA.attributes).latency_ms.tolist() == [20.0, np.inf]


def test_collapse_refuses_what_is_given_twice_and_what_is_nowhere() -> None:
    with pytest.raises(InputError, match="'a' is given twice"):
        Classes.collapse(
            [spelled("a", 0, sql="x = 1"), spelled("a", 1, sql="x = 2")], LINE, SCHEMA.attributes
        )
    with pytest.raises(OverlayError, match=r"'nowhere'\. Overlay line-4 has no such broker"):
        Classes.collapse([Subscription("a", "c", "nowhere", sql="x = 1")], LINE, SCHEMA.attributes)


FILTER = st.sampled_from([{"sql": "x = 1"}, {"sql": "x = 2"}, *SAME])
ROWS = st.lists(st.tuples(st.integers(0, 3), FILTER), max_size=8)


@settings(max_examples=40)
@given(ROWS)
def test_subscribing_one_by_one_collapses_as_all_at_once(given: list[tuple[int, dict[str, str]]]) -> None:
    rows = [spelled(f"s{i}", broker, **how) for i, (broker, how) in enumerate(given)]
    grown = Classes.collapse([], LINE, SCHEMA.attributes)
    for row in rows:
        before = grown.class_of
        grown, k = grown.with_subscription(row, LINE)
        assert grown.class_of == {**before, row.id: k}
    whole = Classes.collapse(rows, LINE, SCHEMA.attributes)
    assert grown.members == whole.members
    assert grown.broker.tolist() == whole.broker.tolist()
    assert [f.key for f in grown.filters] == [f.key for f in whole.filters]


@settings(max_examples=40)
@given(ROWS.filter(len), st.data())
def test_a_deleted_subscription_leaves_the_others_their_numbers(
    given: list[tuple[int, dict[str, str]]], data: st.DataObject
) -> None:
    rows = [spelled(f"s{i}", broker, **how) for i, (broker, how) in enumerate(given)]
    made = Classes.collapse(rows, LINE, SCHEMA.attributes)
    gone = data.draw(st.sampled_from(rows))
    less, k = made.without_subscription(gone.id)
    assert k == made.class_of[gone.id]
    assert less.class_of == {id_: c for id_, c in made.class_of.items() if id_ != gone.id}
    assert less.vacant[k] == (len(made.members[k]) == 1)
    assert len(less) == len(made)
    again, back = less.with_subscription(gone, LINE)
    assert back == k  # the class keeps its filter while it is vacant
    assert again.class_of == made.class_of
    with pytest.raises(InputError, match="exists already"):
        again.with_subscription(gone, LINE)
    with pytest.raises(InputError, match="there is no subscription"):
        less.without_subscription(gone.id)
