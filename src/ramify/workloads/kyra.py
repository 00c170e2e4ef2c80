"""Range subscriptions over one integer attribute, in four distributions: Kyra, section IV-B.

Model      An event is an integer `value` of [0, values). Its *popularity* is the share of brokers that
           want it, its *volume* how often it is published. The average user interest rate is the
           probability that the subscriptions of a broker match a randomly published event: 1, 10 or 50 %.
           uniform      every value equally popular, equally often published
           zipf         the i-th most popular value has popularity proportional to i^-alpha; published
                        equally often ("Zipf-uniform")
           multimodal   popularity and volume follow one mixture of Gaussians with `peaks` centers drawn
                        evenly; the standard deviation is `peak_width` of the mean distance between them
           regional     each value has a home broker that alone publishes it, and a broker wants it with
                        probability c / distance(broker, home)^gamma
           Publishers are brokers drawn evenly (regional: the home). Each value has a weight drawn evenly
           from [0, 1), the resources that its processing takes.
Parameters distribution       the four above
           interest_percent   the average user interest rate
           values             size of the content space (not printed)
           range_values       values that a broker decides on together, so that its interest comes in
                              ranges (not printed); 1 makes every value a decision of its own
           per                `range`: one subscription per range; `broker`: one per broker, its ranges
                              joined with OR
           zipf_alpha         1
           zipf_order         `sorted`: value 0 is the most popular, so that there is a hot end to
                              partition; `shuffled`: ranks lie at random (not printed)
           peaks, peak_width  5, 1/4
           gamma              1
           distance           what regional distance is measured in: latency, hops
Arrays     popularity[v] (regional: the mean over brokers), volume[v], weight[v], home[v] (regional)
Departures "Uniformly randomly distributed" is read as equal for all values. A popularity above 1 is cut
           to 1 and c is solved for again, so that the interest rate holds: at 50 % the head of Zipf is
           flat. The distance of a broker from itself is the smallest between two brokers. "Average
           distance between peaks" is taken over all pairs. The interest rate holds in expectation: at
           1 % and 200 brokers one workload is off by 5 to 8 % of it (one deviation), at 50 % by 0.5 %;
           `report` has what was realised.

Reference: F. Cao, J. P. Singh, "Efficient Event Routing in Content-based Publish-Subscribe Service
Networks".
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.nearness import require_brokers
from ramify.workloads.parameters import Params, choice, count, number
from ramify.workloads.workload import (
    DrawnEvents,
    Workload,
    column,
    random_stream,
    weighted_picks,
)

__all__ = ["DISTRIBUTIONS", "KyraModel", "generate"]

NAME = "kyra"
DISTRIBUTIONS = ("uniform", "zipf", "multimodal", "regional")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KyraModel(Params):
    """The parameters: see the module."""

    distribution: str = choice("zipf", *DISTRIBUTIONS)
    interest_percent: float = number(10.0, 0, 100, above_low=True)
    values: int = count(1_000, 2, 100_000)
    range_values: int = count(5, 1, 100_000)
    per: str = choice("range", "range", "broker")
    zipf_alpha: float = number(1.0, 0, 10)
    zipf_order: str = choice("sorted", "sorted", "shuffled")
    peaks: int = count(5, 2, 1_000)
    peak_width: float = number(0.25, 0, 10, above_low=True)
    gamma: float = number(1.0, 0, 10)
    distance: str = choice("latency", "latency", "hops")


def generate(overlay: Overlay, params: KyraModel, seed: int) -> Workload:
    """The workload of section IV-B."""
    require_brokers(overlay, 1, NAME)
    shape, volume, home = _shape_and_volume(overlay, params, random_stream(seed, NAME, "content"))
    popularity = scaled_to(shape, volume, params.interest_percent / 100)
    wanted = _interest(popularity, len(overlay), params, random_stream(seed, NAME, "subscriptions"))
    publishers = tuple(f"pub-{broker}" for broker in overlay.brokers)
    arrays = {
        "popularity": popularity.mean(axis=0),
        "volume": volume,
        "weight": random_stream(seed, NAME, "weights").random(params.values),
    }
    draft = Workload(
        name=NAME,
        params=params,
        seed=seed,
        schema=EventSchema({"value": AttributeType.INT64}),
        subscriptions=_subscriptions(overlay, wanted, params.per),
        attachments={f"{role}-{broker}": broker for role in ("pub", "sub") for broker in overlay.brokers},
        publishers=publishers,
        source=_Values(np.cumsum(volume), home, len(overlay)),
        arrays=arrays if home is None else arrays | {"home": home},
    )
    return replace(draft, report=_report(draft, wanted, params))


def scaled_to(shape: Floats, volume: Floats, target: float) -> Floats:
    """min(1, c * shape) for the c that makes its mean over rows and its `volume`-weighted sum `target`.

    Exact: sorted by shape, the cut entries come first, and the sum is linear in c between two cuts.
    """
    weight = np.broadcast_to(volume / len(shape), shape.shape).ravel()
    flat = shape.ravel()
    order = np.argsort(-flat, kind="stable")
    cut = np.concatenate(([0.0], np.cumsum(weight[order])))  # the share that is cut, if so many are
    rest = np.concatenate((np.cumsum((flat * weight)[order][::-1])[::-1], [0.0]))
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = cut[:-1] + rest[:-1] / flat[order]  # the sum when the next one is just at 1
    enough = np.flatnonzero(reached >= target)
    if not len(enough):
        return (shape > 0).astype(np.float64)  # rounding kept the sum a hair below a target of 1
    cuts = int(enough[0])
    c = float((target - cut[cuts]) / rest[cuts])
    return np.asarray(np.minimum(1.0, shape * c))


def _shape_and_volume(
    overlay: Overlay, params: KyraModel, rng: np.random.Generator
) -> tuple[Floats, Floats, npt.NDArray[np.int64] | None]:
    """Popularity up to a factor (rows: brokers, or one for all), volume, and homes when regional."""
    values = params.values
    even = np.full(values, 1 / values)
    match params.distribution:
        case "uniform":
            return np.ones((1, values)), even, None
        case "zipf":
            rank = np.arange(1, values + 1, dtype=np.float64)
            if params.zipf_order == "shuffled":
                rank = rng.permutation(rank)
            return rank[None] ** -params.zipf_alpha, even, None
        case "multimodal":
            density = _mixture(values, params, rng)
            return density[None], density / density.sum(), None
        case _:
            return _regional(overlay, params)


def _mixture(values: int, params: KyraModel, rng: np.random.Generator) -> Floats:
    peak = rng.random(params.peaks) * values
    apart = np.abs(peak[:, None] - peak)[np.triu_indices(params.peaks, k=1)]
    deviation = max(params.peak_width * apart.mean(), 0.5)  # below half a value a peak would vanish
    away = (np.arange(values) + 0.5 - peak[:, None]) / deviation
    return np.asarray(np.exp(-0.5 * away**2).sum(axis=0))


def _regional(overlay: Overlay, params: KyraModel) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    brokers = len(overlay)
    if params.values < brokers:
        raise InputError(
            f"values = {params.values} is out of range: the regional distribution gives each of the "
            f"{brokers} brokers a value of its own. Allowed: a whole number from {brokers} to 100,000."
        )
    home = np.arange(params.values) * brokers // params.values
    apart: npt.NDArray[Any] = all_pairs(
        overlay, "hops" if params.distance == "hops" else "latency"
    ).distance
    distance = apart.astype(np.float64)
    positive = distance[distance > 0]
    nearest = positive.min() if len(positive) else 1.0
    shape = np.maximum(distance, nearest) ** -params.gamma
    owned = np.bincount(home, minlength=brokers)
    return shape[:, home], 1 / (brokers * owned[home]), home


def _interest(
    popularity: Floats, brokers: int, params: KyraModel, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Which broker wants which value: each with its popularity, `range_values` at a time together."""
    width = min(params.range_values, params.values)
    segments = -(-params.values // width) + 1
    # Every broker cuts the line elsewhere, so that no value is special.
    shift = rng.integers(width, size=brokers)
    segment = (np.arange(params.values) + shift[:, None]) // width
    mood = rng.random((brokers, segments))
    return np.take_along_axis(mood, segment, axis=1) < popularity


def _subscriptions(overlay: Overlay, wanted: npt.NDArray[np.bool_], per: str) -> tuple[Subscription, ...]:
    rows = []
    for broker, mine in zip(overlay.brokers, wanted, strict=True):
        edge = np.flatnonzero(np.diff(mine, prepend=False, append=False)).reshape(-1, 2)
        texts = [_range_text(low, end - 1) for low, end in edge.tolist()]
        if per == "broker" and texts:
            rows.append(Subscription(broker, f"sub-{broker}", broker, sql=" OR ".join(texts)))
        elif per == "range":
            rows += [
                Subscription(f"{broker}/{i}", f"sub-{broker}", broker, sql=text)
                for i, text in enumerate(texts)
            ]
    return tuple(rows)


def _range_text(low: int, high: int) -> str:
    return f"value = {low}" if low == high else f"value BETWEEN {low} AND {high}"


@dataclass(frozen=True, slots=True)
class _Values:
    cumulative_volume: Floats
    home: npt.NDArray[np.int64] | None
    brokers: int

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        value = weighted_picks(rng, self.cumulative_volume, count)
        publisher = rng.integers(self.brokers, size=count) if self.home is None else self.home[value]
        return DrawnEvents(publisher, {"value": column(value)})


def _report(draft: Workload, wanted: npt.NDArray[np.bool_], params: KyraModel) -> dict[str, float]:
    value = draft.sample().column("value").to_numpy()
    weight = draft.arrays["weight"]
    return {
        "interest_percent": float((wanted @ draft.arrays["volume"]).mean()) * 100,
        "interest_percent_asked": params.interest_percent,
        "interest_percent_of_sample": float(wanted[:, value].mean()) * 100,
        "brokers": float(len(wanted)),
        "brokers_paper": 500.0,
        "brokers_without_interest": float((~wanted.any(axis=1)).sum()),
        "subscriptions": float(len(draft.subscriptions)),
        "mean_weight": float(weight.mean()),
        "values_cut_to_popularity_1": float((draft.arrays["popularity"] >= 1).sum()),
    }
