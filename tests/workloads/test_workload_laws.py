"""What holds for every workload, whatever its model."""

import json
import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.filters.sql import parse_sql
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import DisconnectedError, InputError, OverlayError
from ramify.network.graphs.generators import random_overlay, ring
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.catalog import WORKLOADS, workload_from
from ramify.workloads.workload import BLOCK_EVENTS, Workload

SPECS = (
    "demo",
    "majumder:localized1",
    "majumder:uniform:per=broker_keyword",
    "kyra:uniform:interest=1",
    "kyra:zipf:interest=10",
    "kyra:zipf:zipf_order=shuffled,per=broker",
    "kyra:multimodal:interest=50",
    "kyra:regional:interest=10",
    "semcast:partial:clients=300",
    "semcast:disjoint:clients=300",
    "zhao_wu:users=200",
    "zhao_wu:users=200:access=random",
    "matchmaker",
)
EVENTS = 3 * BLOCK_EVENTS - 1_000
OVERLAY = random_overlay(60, 5)
MADE: dict[str, Workload] = {}


def made(spec: str) -> Workload:
    if spec not in MADE:
        MADE[spec] = workload_from(f"{spec}:events={EVENTS}", OVERLAY, 11)
    return MADE[spec]


def test_every_workload_of_the_catalog_is_tested_here() -> None:
    assert {spec.split(":")[0] for spec in SPECS} == set(WORKLOADS)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_events_are_the_same_for_any_chunking(spec: str, data: st.DataObject) -> None:
    workload = made(spec)
    start = data.draw(st.integers(0, EVENTS - 1), label="start")
    stop = data.draw(st.integers(start, min(EVENTS, start + 2 * BLOCK_EVENTS)), label="stop")
    cuts = data.draw(st.lists(st.integers(start, stop), max_size=4).map(sorted), label="cuts")
    edges = [start, *cuts, stop]
    chunks = [workload.events(a, b - a) for a, b in pairwise(edges)]
    assert pa.concat_batches(chunks).equals(workload.events(start, stop - start))


@pytest.mark.parametrize("spec", SPECS)
def test_uneven_chunks_of_the_first_thousand_make_the_first_thousand(spec: str) -> None:
    workload = made(spec)
    chunks = [workload.events(a, n) for a, n in ((0, 1), (1, 0), (1, 333), (334, 665), (999, 1))]
    assert pa.concat_batches(chunks).equals(workload.events(0, 1_000))


@pytest.mark.parametrize("spec", SPECS)
def test_the_number_of_events_changes_none_of_them(spec: str) -> None:
    shorter = workload_from(f"{spec}:events=500", OVERLAY, 11)
    assert shorter.events(0, 500).equals(made(spec).events(0, 500))
    assert shorter.subscriptions == made(spec).subscriptions


@pytest.mark.parametrize("spec", SPECS)
def test_one_seed_gives_one_workload_and_another_seed_another(spec: str) -> None:
    one, again, other = (workload_from(f"{spec}:events=500", OVERLAY, seed) for seed in (3, 3, 4))
    assert one.subscriptions == again.subscriptions
    assert one.attachments == again.attachments
    assert one.advertisements == again.advertisements
    assert one.report == again.report
    assert all(np.array_equal(one.arrays[name], again.arrays[name]) for name in one.arrays)
    assert one.events(0, 500).equals(again.events(0, 500))
    assert one.subscriptions != other.subscriptions
    columns = [name for name in one.schema.attributes if name != "id"]
    assert not one.events(0, 500).select(columns).equals(other.events(0, 500).select(columns))


@pytest.mark.parametrize("spec", SPECS)
def test_blocks_differ_from_each_other(spec: str) -> None:
    workload = made(spec)
    columns = list(workload.schema.attributes)
    first = workload.events(0, 1_000).select(columns)
    assert not first.equals(workload.events(BLOCK_EVENTS, 1_000).select(columns))


@pytest.mark.parametrize("spec", SPECS)
def test_clients_and_brokers_exist(spec: str) -> None:
    workload = made(spec)
    assert set(workload.attachments.values()) <= set(OVERLAY.brokers)
    rows = [*workload.subscriptions, *workload.advertisements]
    assert all(workload.attachments[row.client] == row.broker for row in rows)
    assert len({row.id for row in workload.subscriptions}) == len(workload.subscriptions) > 0
    batch = workload.events(0, 2_000)
    published = set(batch.column("publisher").to_pylist())
    assert published <= set(workload.publishers) <= set(workload.attachments)


@pytest.mark.parametrize("spec", SPECS)
def test_every_filter_parses_and_names_only_attributes_of_the_events(spec: str) -> None:
    workload = made(spec)
    texts = {(row.sql, row.pattern, row.keywords): row for row in workload.subscriptions}
    # Some 200 to 400 of them: thousands of ranges that differ in two numbers prove nothing more.
    for row in list(texts.values())[:: max(1, len(texts) // 200)]:
        found = row.parse(workload.schema.attributes)
        assert not found.is_empty, row
        assert found.paths <= workload.schema.attributes.keys()
    for advertisement in workload.advertisements:
        assert not parse_sql(advertisement.sql, workload.schema.attributes).is_empty


@pytest.mark.parametrize("spec", SPECS)
def test_subscription_rows_are_lines_of_a_subscription_file(spec: str) -> None:
    for row in made(spec).subscriptions[:50]:
        line = row.to_json()
        assert "\n" not in line
        read = json.loads(line)
        assert {"id", "client", "broker"} <= read.keys() <= {*Subscription.__dataclass_fields__}
        assert len({"sql", "pattern", "keywords"} & read.keys()) == 1


@pytest.mark.parametrize("spec", SPECS)
def test_batches_are_event_batches(spec: str) -> None:
    workload = made(spec)
    batch = workload.events(BLOCK_EVENTS - 10, 20)
    batch.validate(full=True)
    assert batch.schema.equals(workload.schema.arrow)
    assert len(set(batch.column("id").to_pylist())) == 20
    time = batch.column("time").cast(pa.int64()).to_numpy()
    assert (np.diff(time) == 1_000).all()  # 1,000 events per second
    assert workload.events(7, 0).num_rows == 0
    assert workload.events(7, 0).schema.equals(workload.schema.arrow)


@pytest.mark.parametrize("spec", SPECS)
def test_all_events_come_once_when_asked_for_in_batches(spec: str) -> None:
    workload = made(spec)
    ids = pa.concat_batches([batch.select(["id"]) for batch in workload.batches(5)]).column("id")
    assert len(ids) == EVENTS - 5 == len(ids.unique())


@pytest.mark.parametrize("spec", SPECS)
def test_a_workload_survives_pickling(spec: str) -> None:
    workload = made(spec)
    copy = pickle.loads(pickle.dumps(workload))
    assert copy.events(100, 300).equals(workload.events(100, 300))
    assert copy.subscriptions == workload.subscriptions


@pytest.mark.parametrize("spec", SPECS)
def test_reports_are_finite_numbers(spec: str) -> None:
    report = made(spec).report
    assert all(type(value) is float and np.isfinite(value) for value in report.values())


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (0, EVENTS + 1), (EVENTS, 1), (3, -1)])
def test_events_outside_the_workload_are_refused(start: int, count: int) -> None:
    with pytest.raises(InputError, match=f"it has {EVENTS}"):
        made("demo").events(start, count)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_a_seed_is_a_whole_number(seed: int) -> None:
    with pytest.raises(InputError, match="from 0"):
        workload_from("demo", ring(3), seed)


@pytest.mark.parametrize("name", WORKLOADS)
def test_overlays_that_cannot_carry_a_workload_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        workload_from(name, ring(0), 1)
    two = Overlay.from_arrays("two", [f"v{i}" for i in range(40)], [(i, i + 2) for i in range(38)])
    with pytest.raises((DisconnectedError, OverlayError)):
        workload_from(name, two, 1)


@pytest.mark.parametrize("spec", [s for s in SPECS if not s.startswith("matchmaker")])
def test_one_broker_is_enough(spec: str) -> None:
    workload = workload_from(f"{spec}:events=100", ring(1), 1)
    assert workload.events(0, 100).num_rows == 100
    assert set(workload.attachments.values()) == {"v0"}
