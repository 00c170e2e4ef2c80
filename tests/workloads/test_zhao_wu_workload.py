import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from ramify.network.graphs.generators import euclidean_mesh, ring
from ramify.workloads.zhao_wu import Quadratics, ZhaoWuModel, generate

OVERLAY = euclidean_mesh(10, 1)
COEFFICIENT = st.one_of(st.just(0.0), st.floats(-5, 5).filter(lambda x: abs(x) > 1e-6))


def positive_integral(a: float, b: float, c: float, low: float, high: float) -> float:
    """By quadrature, told where the kinks are; the oracle."""
    kinks = [r.real for r in np.roots([a, b, c]) if abs(r.imag) < 1e-12 and low < r.real < high]
    return float(
        quad(lambda s: max(0.0, (a * s + b) * s + c), low, high, points=kinks or None, limit=200)[0]
    )


@settings(max_examples=200)
@given(a=COEFFICIENT, b=COEFFICIENT, c=COEFFICIENT, ends=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_integrals_of_the_positive_part_are_exact(
    a: float, b: float, c: float, ends: tuple[float, float]
) -> None:
    low, high = sorted(ends)
    assume(high - low > 1e-6)
    functions = Quadratics(np.array([[a, b, c]]))
    total = positive_integral(a, b, c, 0, 1)
    assert functions.piece_integral().sum() == pytest.approx(total, abs=1e-7)
    assert functions.over_bins(7).sum() == pytest.approx(total, abs=1e-7)
    assert functions.over_bins(7)[0, 2] == pytest.approx(positive_integral(a, b, c, 2 / 7, 3 / 7), abs=1e-7)
    wanted = positive_integral(a, b, c, low, high)
    assert functions.over_interval(np.array([[low, high]]))[0] == pytest.approx(wanted, abs=1e-7)
    assert np.diff(functions.summed_up_to(np.array([low, high])))[0] == pytest.approx(wanted, abs=1e-7)


def test_rates_in_are_what_all_others_send_into_the_interval() -> None:
    workload = generate(OVERLAY, ZhaoWuModel(users=40, events=100), 2)
    coefficient, interval = workload.arrays["coefficient"], workload.arrays["interval"]
    for user in range(40):
        heard = sum(
            positive_integral(*coefficient[other], *interval[user]) for other in range(40) if other != user
        )
        assert workload.arrays["rate_in"][user] == pytest.approx(heard, abs=1e-6)
    assert workload.arrays["rate_out"] == pytest.approx(
        [positive_integral(*row, 0, 1) for row in coefficient], abs=1e-7
    )


def test_histograms_add_up_and_subscriptions_cover_their_interval() -> None:
    workload = generate(OVERLAY, ZhaoWuModel(users=300, sub_channels=16, events=100), 3)
    arrays = workload.arrays
    assert arrays["rate_by_channel"].shape == arrays["subscribed"].shape == (300, 16)
    assert np.allclose(arrays["rate_by_channel"].sum(axis=1), arrays["rate_out"])
    for (low, high), channels in zip(arrays["interval"], arrays["subscribed"], strict=True):
        touched = {c for c in range(16) if low < (c + 1) / 16 and high > c / 16}
        assert set(np.flatnonzero(channels).tolist()) == touched


def test_events_follow_the_generating_functions() -> None:
    workload = generate(OVERLAY, ZhaoWuModel(users=5, sub_channels=8, events=200_000), 4)
    batch = workload.events(0, 200_000)
    user = np.array([int(name.rsplit("-")[-1]) for name in batch.column("publisher").to_pylist()])
    channel = np.minimum((batch.column("value").to_numpy() * 8).astype(int), 7)
    found = np.zeros((5, 8))
    np.add.at(found, (user, channel), 1 / len(user))
    rate = workload.arrays["rate_by_channel"]
    assert np.abs(found - rate / rate.sum()).max() < 0.004  # four deviations of the largest cell


def test_filters_hold_the_interval_of_the_arrays() -> None:
    workload = generate(OVERLAY, ZhaoWuModel(users=100, events=10), 5)
    for row, (low, high) in zip(workload.subscriptions, workload.arrays["interval"].tolist(), strict=True):
        assert row.sql is not None
        words = row.sql.split()
        assert (float(words[2]), float(words[6])) == (low, high)


@pytest.mark.parametrize("access", ["metric", "random"])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 8.0])
def test_prices_have_the_asked_ratio_and_capacity_is_twice_the_demand(access: str, ratio: float) -> None:
    params = ZhaoWuModel(users=500, access=access, access_to_core_ratio=ratio, events=10)
    workload = generate(OVERLAY, params, 6)
    report, arrays = workload.report, workload.arrays
    assert report["mean_access_price"] / report["mean_core_price"] == pytest.approx(ratio)
    demand = (arrays["rate_out"] + arrays["rate_in"]).sum()
    assert arrays["capacity"].sum() == pytest.approx(2 * demand)
    assert np.ptp(arrays["capacity"]) == 0
    assert arrays["access_price"].shape == (500, 10)
    assert (arrays["access_price"] >= 0).all()


def test_metric_prices_obey_the_triangle_inequality() -> None:
    workload = generate(OVERLAY, ZhaoWuModel(users=50, events=10), 7)
    core = workload.arrays["core_price"]
    access = workload.arrays["access_price"]
    assert (core[:, None, :] <= core[:, :, None] + core[None] + 1e-12).all()
    # The access metric is the core metric times a factor, from a point of its own.
    spread = access[:, :, None] - access[:, None, :]
    scale = (spread / np.where(core > 0, core, np.inf)).max()
    assert (np.abs(spread) <= scale * core + 1e-9).all()


def test_overlays_without_prices_give_access_a_scale_of_its_own() -> None:
    workload = generate(ring(1), ZhaoWuModel(users=10, events=10), 1)
    assert workload.report["mean_access_price"] == pytest.approx(1)


def test_attachments_are_the_random_baseline() -> None:
    workload = generate(OVERLAY, ZhaoWuModel(users=2_000, events=10), 8)
    counts = np.bincount(workload.arrays["attachment"], minlength=10)
    assert counts.min() > 140  # 200 expected, deviation 13
    names = [OVERLAY.brokers[b] for b in workload.arrays["attachment"]]
    assert list(workload.attachments.values()) == names
