import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import batch_to_events
from ramify.content.filters.keywords import parse_keywords
from ramify.errors import InputError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.generators import line, random_overlay, ring, star
from ramify.network.graphs.transit_stub import majumder as majumder_overlay
from ramify.workloads.majumder import MajumderModel, generate
from ramify.workloads.nearness import closest_brokers, neighbourhood_size


@settings(max_examples=30, deadline=None)
@given(
    brokers=st.integers(1, 60),
    x_percent=st.sampled_from([0.5, 2.0, 15.0, 50.0, 100.0]),
    seed=st.integers(0, 1_000),
)
def test_subscribers_are_within_the_closest_x_percent_of_the_root(
    brokers: int, x_percent: float, seed: int
) -> None:
    overlay = random_overlay(brokers, seed)
    params = MajumderModel(keywords=50, x_percent=x_percent, events=10)
    workload = generate(overlay, params, seed)
    hops = all_pairs(overlay).distance.astype(int)
    size = neighbourhood_size(brokers, x_percent)
    for root, members in zip(
        workload.arrays["keyword_root"], workload.arrays["keyword_brokers"], strict=True
    ):
        order = sorted(range(brokers), key=lambda b: (hops[root, b], b))
        assert set(members.tolist()) <= set(order[:size])
        assert len(set(members.tolist())) == min(10, size)


@pytest.mark.parametrize(
    ("brokers", "percent", "expected"),
    [(500, 2, 10), (500, 15, 75), (500, 100, 500), (350, 2, 7), (10, 2, 1), (1, 0.1, 1), (101, 2, 3)],
)
def test_the_size_of_a_neighbourhood_is_rounded_up(brokers: int, percent: float, expected: int) -> None:
    assert neighbourhood_size(brokers, percent) == expected


def test_ties_go_to_the_broker_listed_first() -> None:
    assert closest_brokers(line(5), 3).tolist() == [[0, 1, 2], [1, 0, 2], [2, 1, 3], [3, 2, 4], [4, 3, 2]]
    assert closest_brokers(star(5), 3)[3].tolist() == [3, 0, 1]


def test_the_paper_s_averages_next_to_ours() -> None:
    workload = generate(majumder_overlay(500, 1), MajumderModel(), 1)
    report = workload.report
    assert report["subscribers_per_keyword"] == report["subscribers_per_keyword_paper"] == 10
    assert report["keywords"] == report["keywords_paper"] == 1_000
    assert report["documents"] == report["documents_paper"] == 10_000
    # One to three keywords, evenly: 2, less the repeats. The paper's 5 cannot be reached: see the module.
    assert 1.8 < report["keywords_per_document"] < 2.0
    assert report["documents_per_keyword"] == pytest.approx(10 * report["keywords_per_document"])


def test_one_keyword_per_document_is_as_close_to_the_paper_s_five_as_it_gets() -> None:
    params = MajumderModel(document_keywords_low=1, document_keywords_high=1)
    report = generate(ring(100), params, 1).report
    assert report["documents_per_keyword"] == 10


def test_localised_keywords_are_closer_together_than_uniform_ones() -> None:
    overlay = majumder_overlay(500, 2)
    hops = all_pairs(overlay).distance.astype(float)

    def spread(x_percent: float) -> float:
        members = generate(overlay, MajumderModel(x_percent=x_percent, events=10), 2).arrays[
            "keyword_brokers"
        ]
        return float(np.mean([hops[np.ix_(row, row)].mean() for row in members]))

    assert spread(2) < 0.7 * spread(15) < 0.7 * spread(100)


@pytest.mark.parametrize("x_percent", [2.0, 15.0, 100.0])
def test_both_readings_of_a_subscription_say_the_same(x_percent: float) -> None:
    overlay = random_overlay(80, 3)
    whole, single = (
        generate(overlay, MajumderModel(keywords=120, x_percent=x_percent, per=per, events=200), 3)
        for per in ("broker", "broker_keyword")
    )
    assert whole.events(0, 200).equals(single.events(0, 200))
    by_broker: dict[str, list[object]] = {}
    for row in single.subscriptions:
        assert row.keywords is not None
        assert len(row.keywords) == 1
        by_broker.setdefault(row.broker, []).extend(row.keywords)
    assert {row.broker: list(row.keywords or ()) for row in whole.subscriptions} == by_broker
    assert sum(map(len, by_broker.values())) == whole.arrays["broker_keyword_count"].sum()


def test_every_document_reaches_someone_and_takes_its_keywords_from_nearby_subscribers() -> None:
    overlay = random_overlay(60, 4)
    workload = generate(overlay, MajumderModel(keywords=200, events=300), 4)
    filters = [parse_keywords(row.keywords) for row in workload.subscriptions if row.keywords]
    for event in batch_to_events(workload.events(0, 100)):
        assert 1 <= len(event.attributes["keywords"]) <= 3  # type: ignore[arg-type]
        assert any(wanted.holds(event.attributes) for wanted in filters)


def test_publishers_are_drawn_from_all_brokers_evenly() -> None:
    workload = generate(ring(20), MajumderModel(keywords=50, events=20_000), 6)
    publisher = workload.events(0, 20_000).column("publisher").to_pylist()
    counts = np.unique(publisher, return_counts=True)[1]
    assert len(counts) == 20
    assert counts.min() > 850  # 1,000 expected, standard deviation 31
    assert counts.max() < 1_150


def test_a_range_of_keywords_must_not_be_empty() -> None:
    with pytest.raises(InputError, match="Allowed: 5 or more"):
        MajumderModel(document_keywords_low=5, document_keywords_high=4)
