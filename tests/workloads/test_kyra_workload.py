import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ramify.errors import InputError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.generators import euclidean_mesh, random_overlay, ring
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.kyra import DISTRIBUTIONS, KyraModel, generate, scaled_to
from ramify.workloads.workload import Workload

OVERLAY = random_overlay(200, 1)


def wanted(workload: Workload, overlay: Overlay) -> np.ndarray:
    """bool[broker, value], from the text of the subscriptions alone."""
    assert isinstance(workload.params, KyraModel)
    matrix = np.zeros((len(overlay), workload.params.values), dtype=bool)
    for row in workload.subscriptions:
        assert row.sql is not None
        for text in row.sql.split(" OR "):
            numbers = [int(word) for word in text.split() if word.isdigit()]
            matrix[overlay.index[row.broker], numbers[0] : numbers[-1] + 1] = True
    return matrix


def cut_to_mean(shape: np.ndarray, target: float) -> np.ndarray:
    """min(1, c * shape) with the mean `target`, by bisection: the oracle of `scaled_to`."""
    low, high = 0.0, 1 / shape.min()
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * shape).mean() < target else (low, c)
    return np.minimum(1, high * shape)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("interest_percent", "tolerance"), [(1.0, 0.32), (10.0, 0.10), (50.0, 0.03)])
@pytest.mark.parametrize("per", ["range", "broker"])
def test_the_asked_share_of_brokers_wants_a_random_event(
    distribution: str, interest_percent: float, tolerance: float, per: str
) -> None:
    params = KyraModel(distribution=distribution, interest_percent=interest_percent, per=per)
    workload = generate(OVERLAY, params, 2)
    value = workload.events(0, 10_000).column("value").to_numpy()
    found = wanted(workload, OVERLAY)[:, value].mean() * 100
    assert found == pytest.approx(workload.report["interest_percent_of_sample"])
    # Four deviations of one workload: 0.078, 0.024, 0.005 for multimodal, the widest (100 seeds).
    assert found == pytest.approx(interest_percent, rel=tolerance)
    assert workload.report["interest_percent"] == pytest.approx(interest_percent, rel=tolerance)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_interest_is_right_on_average_where_single_workloads_vary(distribution: str) -> None:
    params = KyraModel(distribution=distribution, interest_percent=1, events=10)
    found = [generate(OVERLAY, params, seed).report["interest_percent"] for seed in range(40)]
    assert np.mean(found) == pytest.approx(1, abs=0.05)  # four deviations of the mean of 40


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_interest_of_a_hundred_percent_is_everything(distribution: str) -> None:
    workload = generate(OVERLAY, KyraModel(distribution=distribution, interest_percent=100), 2)
    assert workload.report["interest_percent"] == pytest.approx(100)
    assert workload.report["interest_percent_of_sample"] == 100


def test_zipf_popularity_falls_as_one_over_rank_below_the_cut() -> None:
    popularity = generate(OVERLAY, KyraModel(interest_percent=10), 3).arrays["popularity"]
    tail = popularity[popularity < 1]
    rank = np.arange(1, 1_001)[popularity < 1]
    assert np.allclose(tail * rank, tail[0] * rank[0])
    assert (np.diff(popularity) <= 0).all()


def test_shuffled_zipf_has_the_same_popularities_elsewhere() -> None:
    sorted_, shuffled = (
        generate(OVERLAY, KyraModel(zipf_order=order), 3).arrays["popularity"]
        for order in ("sorted", "shuffled")
    )
    assert not np.allclose(sorted_, shuffled)
    assert np.allclose(sorted_, -np.sort(-shuffled))


def test_multimodal_popularity_and_volume_go_together() -> None:
    arrays = generate(OVERLAY, KyraModel(distribution="multimodal", interest_percent=1), 3).arrays
    assert np.corrcoef(arrays["popularity"], arrays["volume"])[0, 1] == pytest.approx(1)
    assert arrays["volume"].sum() == pytest.approx(1)
    assert arrays["volume"].max() > 2 * arrays["volume"].min()


def test_events_follow_the_volume() -> None:
    params = KyraModel(distribution="multimodal", values=50, events=100_000)
    workload = generate(OVERLAY, params, 4)
    value = workload.events(0, 100_000).column("value").to_numpy()
    share = np.bincount(value, minlength=50) / len(value)
    assert np.abs(share - workload.arrays["volume"]).max() < 0.005


@pytest.mark.parametrize("distance", ["latency", "hops"])
@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_regional_interest_falls_with_distance_from_the_home(distance: str, gamma: float) -> None:
    overlay = euclidean_mesh(40, 6) if distance == "latency" else ring(40)
    params = KyraModel(
        distribution="regional",
        distance=distance,
        gamma=gamma,
        values=4_000,
        range_values=1,
        interest_percent=5,
    )
    workload = generate(overlay, params, 6)
    home = workload.arrays["home"]
    apart = all_pairs(overlay, "hops" if distance == "hops" else "latency").distance.astype(float)
    apart = np.maximum(apart, apart[apart > 0].min())[:, home]
    expected = cut_to_mean(apart**-gamma, 0.05)
    found = wanted(workload, overlay)
    near = apart < np.median(apart)
    assert found[near].mean() == pytest.approx(expected[near].mean(), rel=0.1)
    assert found[~near].mean() == pytest.approx(expected[~near].mean(), rel=0.1)


def test_regional_values_are_published_by_their_home_alone() -> None:
    workload = generate(OVERLAY, KyraModel(distribution="regional"), 5)
    batch = workload.events(0, 10_000)
    home = workload.arrays["home"][batch.column("value").to_numpy()]
    assert batch.column("publisher").to_pylist() == [f"pub-{OVERLAY.brokers[b]}" for b in home]
    assert len(set(home.tolist())) == len(OVERLAY)


def test_weights_are_drawn_evenly() -> None:
    weight = generate(OVERLAY, KyraModel(), 5).arrays["weight"]
    assert weight.min() >= 0
    assert weight.max() < 1
    assert weight.mean() == pytest.approx(0.5, abs=0.04)


def test_ranges_are_as_long_as_asked() -> None:
    params = KyraModel(distribution="uniform", interest_percent=1, range_values=20)
    workload = generate(OVERLAY, params, 7)
    width = wanted(workload, OVERLAY).sum() / len(workload.subscriptions)
    assert 15 < width < 22  # cut at the ends of the space, and now and then two in a row


@given(
    shape=hnp.arrays(
        np.float64, st.tuples(st.integers(1, 5), st.integers(1, 20)), elements=st.floats(1e-3, 1e3)
    ),
    target=st.floats(0.001, 1.0),
    data=st.data(),
)
def test_scaling_reaches_the_target_and_keeps_proportions(
    shape: np.ndarray, target: float, data: st.DataObject
) -> None:
    volume = np.array(
        data.draw(st.lists(st.floats(0.1, 1), min_size=shape.shape[1], max_size=shape.shape[1]))
    )
    volume /= volume.sum()
    popularity = scaled_to(shape, volume, target)
    assert popularity.max() <= 1
    assert (popularity * volume).sum() / len(shape) == pytest.approx(target, rel=1e-9)
    uncut = popularity < 1
    ratio = popularity[uncut] / shape[uncut]
    assert np.allclose(ratio, ratio[:1])


@given(shape=hnp.arrays(np.float64, (2, 6), elements=st.floats(1e-2, 1e2)), target=st.floats(0.01, 0.99))
def test_scaling_agrees_with_bisection(shape: np.ndarray, target: float) -> None:
    assert np.allclose(scaled_to(shape, np.full(6, 1 / 6), target), cut_to_mean(shape, target))


def test_regional_needs_a_value_per_broker() -> None:
    with pytest.raises(InputError, match="from 200 to 100,000"):
        generate(OVERLAY, KyraModel(distribution="regional", values=100), 1)
