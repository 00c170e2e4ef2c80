import numpy as np
import pytest

from ramify.content.events.events import batch_to_events
from ramify.content.filters.sql import parse_sql
from ramify.errors import InputError
from ramify.network.graphs.generators import ring
from ramify.network.graphs.transit_stub import matchmaker as matchmaker_overlay
from ramify.workloads.matchmaker import (
    MatchmakerModel,
    bounded_pareto_counts,
    bounded_pareto_mean,
    generate,
)

OVERLAY = matchmaker_overlay(1)


@pytest.mark.parametrize(
    ("k", "p", "alpha"), [(1, 100, 1.0), (1, 100, 2.0), (3, 50, 0.5), (2, 10, 1.5), (4, 4, 1.0)]
)
def test_counts_follow_the_bounded_pareto_distribution(k: int, p: int, alpha: float) -> None:
    params = MatchmakerModel(pareto_k=k, pareto_p=p, pareto_alpha=alpha)
    drawn = bounded_pareto_counts(params, 200_000, np.random.default_rng(1))
    assert k <= drawn.min()
    assert drawn.max() <= p
    if k == p:
        assert set(drawn.tolist()) == {k}
        return
    for n in (k, k + 1, (k + p) // 2, p - 1):
        # Rounding moves the step from n to n + 1 to n + 1/2; F(x) = (1 - (k/x)^alpha) / (1 - (k/p)^alpha).
        expected = (1 - (k / (n + 0.5)) ** alpha) / (1 - (k / p) ** alpha)
        assert (drawn <= n).mean() == pytest.approx(expected, abs=0.005)


def test_the_mean_of_the_paper_s_distribution() -> None:
    assert bounded_pareto_mean(MatchmakerModel()) == pytest.approx(100 / 99 * np.log(100))
    near_one = MatchmakerModel(pareto_alpha=1.000001)
    assert bounded_pareto_mean(near_one) == pytest.approx(100 / 99 * np.log(100), rel=1e-4)
    assert bounded_pareto_mean(MatchmakerModel(pareto_k=7, pareto_p=7)) == 7


def test_f_and_g_count_the_advertisements_and_subscriptions() -> None:
    workload = generate(OVERLAY, MatchmakerModel(publishers=20, subscribers=30, events=100), 2)
    for rows, counts, role in (
        (workload.advertisements, workload.arrays["f"], "pub"),
        (workload.subscriptions, workload.arrays["g"], "sub"),
    ):
        found = [sum(row.client == f"{role}-{i}" for row in rows) for i in range(len(counts))]
        assert found == counts.tolist()
        assert len(rows) == counts.sum()


def test_clients_sit_at_stub_brokers_one_of_a_kind_at_most_per_broker() -> None:
    workload = generate(OVERLAY, MatchmakerModel(publishers=50, subscribers=50, events=100), 3)
    both = set()
    for role in ("publisher_broker", "subscriber_broker"):
        brokers = workload.arrays[role].tolist()
        assert len(set(brokers)) == 50
        assert {OVERLAY.sites[b].role for b in brokers} == {"stub"}
        both |= set(brokers)
    assert len(both) < 100, "a publisher and a subscriber may share a broker"


def test_events_stay_within_an_advertisement_of_their_publisher() -> None:
    workload = generate(OVERLAY, MatchmakerModel(events=300), 4)
    announced: dict[str, list[object]] = {}
    filters = {row.id: parse_sql(row.sql) for row in workload.advertisements}
    for row in workload.advertisements:
        announced.setdefault(row.client, []).append(filters[row.id])
    for event in batch_to_events(workload.events(0, 100)):
        assert event.publisher is not None
        assert any(one.holds(event.attributes) for one in announced[event.publisher])  # type: ignore[attr-defined]


def test_the_report_counts_what_the_filters_say() -> None:
    workload = generate(OVERLAY, MatchmakerModel(events=200), 5)
    filters = [parse_sql(row.sql or "") for row in workload.subscriptions]
    events = batch_to_events(workload.events(0, 200))
    matched = np.array([[wanted.holds(event.attributes) for wanted in filters] for event in events])
    assert workload.report["subscriptions_per_event"] == pytest.approx(matched.sum() / 200)
    assert workload.report["events_matched_percent"] == pytest.approx(matched.any(axis=1).mean() * 100)
    assert matched.any()


def test_an_overlay_without_roles_has_stubs_only() -> None:
    assert generate(ring(12), MatchmakerModel(events=10), 1).report["publishers"] == 10


def test_more_publishers_than_brokers_are_refused() -> None:
    with pytest.raises(InputError, match="from 1 to 9"):
        generate(ring(9), MatchmakerModel(), 1)


@pytest.mark.parametrize(
    "given", [{"pareto_k": 9, "pareto_p": 8}, {"side_low_percent": 30.0, "side_high_percent": 20.0}]
)
def test_a_range_must_not_be_empty(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match="or more"):
        MatchmakerModel(**given)  # type: ignore[arg-type]
