import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ramify.content.events.events import batch_to_events
from ramify.content.filters.sql import parse_sql
from ramify.network.graphs.generators import random_overlay
from ramify.network.graphs.transit_stub import semcast as semcast_overlay
from ramify.workloads.semcast import SemcastModel, generate, mean_overlap

OVERLAY = random_overlay(200, 1)


@pytest.mark.parametrize("overlap", ["partial", "disjoint"])
@pytest.mark.parametrize(("x", "distinct"), [(1.0, 2_000), (2.0, 1_000), (4.0, 500), (3.0, 667)])
def test_there_are_n_over_x_distinct_profiles(overlap: str, x: float, distinct: int) -> None:
    params = SemcastModel(clients=2_000, selectivity_factor=x, overlap=overlap, events=1_000)
    workload = generate(OVERLAY, params, 1)
    assert workload.report["distinct_profiles"] == distinct
    texts = {row.sql for row in workload.subscriptions}
    assert len(texts) == workload.report["distinct_profiles_picked"]
    # 2,000 picks with replacement leave out (1 - 1/D)^2000 of D; four deviations are below 3 %.
    assert len(texts) / distinct == pytest.approx(1 - (1 - 1 / distinct) ** 2_000, abs=0.03)


def test_clients_are_at_gateways_and_gateways_are_a_fifth() -> None:
    workload = generate(OVERLAY, SemcastModel(events=1_000), 2)
    gateways = {OVERLAY.brokers[g] for g in workload.arrays["gateway"]}
    assert len(gateways) == 40
    assert {row.broker for row in workload.subscriptions} == gateways
    assert len({workload.attachments[p] for p in workload.publishers}) > 1


@pytest.mark.parametrize("probability", [0.0015, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_messages_match_profiles_with_the_asked_probability(probability: float, dimensions: int) -> None:
    params = SemcastModel(clients=1_000, matching_probability=probability, dimensions=dimensions)
    workload = generate(OVERLAY, params, 3)
    assert workload.report["matching_probability"] == pytest.approx(probability, rel=0.06)
    volume = (workload.arrays["profile_high"] - workload.arrays["profile_low"] + 1) / 1_000_000
    assert volume.prod(axis=1).mean() == pytest.approx(probability, rel=0.03)
    assert workload.arrays["profile_low"].min() >= 0
    assert workload.arrays["profile_high"].max() < 1_000_000


def test_a_message_matches_exactly_one_disjoint_profile() -> None:
    workload = generate(OVERLAY, SemcastModel(overlap="disjoint", clients=301, events=500), 4)
    low, high = workload.arrays["profile_low"][:, 0], workload.arrays["profile_high"][:, 0]
    assert low[0] == 0
    assert high[-1] == 999_999
    assert (low[1:] == high[:-1] + 1).all()
    assert workload.report["average_profile_overlap"] == 0
    filters = [parse_sql(text) for text in sorted({row.sql or "" for row in workload.subscriptions})]
    for event in batch_to_events(workload.events(0, 20)):
        assert sum(wanted.holds(event.attributes) for wanted in filters) <= 1


def test_the_report_counts_what_the_filters_say() -> None:
    params = SemcastModel(clients=60, matching_probability=0.2, events=100)
    workload = generate(OVERLAY, params, 5)
    filters = [parse_sql(row.sql or "") for row in workload.subscriptions]
    events = batch_to_events(workload.events(0, 100))
    matched = np.array([[wanted.holds(event.attributes) for event in events] for wanted in filters])
    assert workload.report["clients_per_message"] == pytest.approx(matched.sum() / 100)
    _, first = np.unique([row.sql for row in workload.subscriptions], return_index=True)
    assert workload.report["average_profile_overlap"] == pytest.approx(
        mean_overlap(matched[first]), rel=1e-6
    )
    brokers = np.array([row.broker for row in workload.subscriptions])
    wanted_at = np.array([matched[brokers == broker].any(axis=0) for broker in np.unique(brokers)])
    assert workload.report["aggregated_profile_overlap"] == pytest.approx(mean_overlap(wanted_at), rel=1e-6)


def test_the_default_has_the_overlap_of_table_2() -> None:
    report = generate(semcast_overlay(600, 1), SemcastModel(), 1).report
    assert 0.04 < report["aggregated_profile_overlap"] < 0.06
    assert report["gateway_brokers"] == 120


def test_aggregated_overlap_grows_with_matching_probability() -> None:
    found = [
        generate(OVERLAY, SemcastModel(matching_probability=p), 6).report["aggregated_profile_overlap"]
        for p in (0.0005, 0.002, 0.01, 0.05)
    ]
    assert found == sorted(found)
    assert found[-1] > 0.5


@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 6), st.integers(1, 8))))
def test_mean_overlap_is_the_mean_over_ordered_pairs(sets: np.ndarray) -> None:
    pairs = [
        (a & b).sum() / a.sum()
        for i, a in enumerate(sets)
        for j, b in enumerate(sets)
        if i != j and a.any()
    ]
    assert mean_overlap(sets) == pytest.approx(np.mean(pairs) if pairs else 0.0, abs=1e-6)


def test_a_latency_bound_is_given_to_every_subscription() -> None:
    bounded = generate(OVERLAY, SemcastModel(clients=50, latency_bound_ms=7, events=10), 1)
    assert {row.latency_ms for row in bounded.subscriptions} == {7}
    assert {row.latency_ms for row in generate(OVERLAY, SemcastModel(clients=50), 1).subscriptions} == {
        None
    }
