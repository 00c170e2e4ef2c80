"""Clients that pick from a limited set of profiles: Papaemmanouil and Cetintemel (SemCast), section 5.

Model      A profile is a box over `dimensions` integer attributes a1, a2, ... of [0, 1,000,000); messages
           are points drawn evenly. There are N / x distinct profiles for N clients and a profile
           selectivity factor x. Each client picks one at random and connects to a random gateway broker;
           gateways are a random fifth of the brokers. Each publisher connects to a random broker.
           partial    boxes lie anywhere; a message matches one with `matching_probability` on average
           disjoint   the distinct profiles cut a1 into equal parts, so each message matches exactly one
Parameters clients                N: 3,000 for Table 2, 7,000 for Figure 3
           selectivity_factor     x: 1, 2, 4 in Figure 8; 2 elsewhere
           overlap                the two above: Figure 3 is disjoint, Figures 5 to 7 partial
           matching_probability   the knob of Figure 4; 0.0015 gives Table 2's aggregated overlap of 0.05
           probability_spread     the sides of a box vary by this share (not printed); 0 makes all equal
           dimensions             attributes of a message (not printed)
           gateway_percent        20
           publishers             how many (not printed)
           latency_bound_ms       one bound for all subscriptions, as section 5.2 assumes; 0 for none
Arrays     profile_low[p, d], profile_high[p, d] (inclusive), profile_of_client[c], gateway[g]
           (broker indices)
Departures The paper prints "1/x %" distinct profiles: N / x is built, and as clients pick with replacement
           some are picked by nobody; `report` has what was realised. Latency bounds of section 5.2 are
           hops; here they are milliseconds, so choose an overlay whose links take 1 ms to count hops.
           Overlaps are computed exactly on a sample of messages: average profile overlap over ordered
           pairs of picked profiles, |Pi & Pj| / |Pi| where Pi matched anything, and aggregated profile
           overlap over ordered pairs of gateways with any match, of the messages that their clients want.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast: Semantic Multicast for Content-based Data
Dissemination".
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.nearness import neighbourhood_size, require_brokers
from ramify.workloads.parameters import Params, choice, count, number
from ramify.workloads.workload import DrawnEvents, Workload, column, random_stream

__all__ = ["SemcastModel", "generate"]

NAME = "semcast"
DOMAIN = 1_000_000
OVERLAP_MESSAGES = 5_000
OVERLAP_PROFILES = 2_000

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemcastModel(Params):
    """The parameters: see the module."""

    clients: int = count(3_000)
    selectivity_factor: float = number(2.0, 1, 1_000_000)
    overlap: str = choice("partial", "partial", "disjoint")
    matching_probability: float = number(0.0015, 0, 1, above_low=True)
    probability_spread: float = number(0.2, 0, 1)
    dimensions: int = count(2, 1, 8)
    gateway_percent: float = number(20.0, 0, 100, above_low=True)
    publishers: int = count(10, 1, 100_000)
    latency_bound_ms: float = number(0.0, 0, 1e9)


def generate(overlay: Overlay, params: SemcastModel, seed: int) -> Workload:
    """The workload of section 5."""
    require_brokers(overlay, 1, NAME)
    low, high = _profiles(params, random_stream(seed, NAME, "profiles"))
    rng = random_stream(seed, NAME, "clients")
    gateway = np.sort(
        rng.choice(len(overlay), neighbourhood_size(len(overlay), params.gateway_percent), replace=False)
    )
    profile = rng.integers(len(low), size=params.clients)
    broker = gateway[rng.integers(len(gateway), size=params.clients)]
    source_broker = random_stream(seed, NAME, "publishers").integers(len(overlay), size=params.publishers)
    publishers = tuple(f"pub-{i}" for i in range(params.publishers))
    draft = Workload(
        name=NAME,
        params=params,
        seed=seed,
        schema=EventSchema({f"a{d + 1}": AttributeType.INT64 for d in range(params.dimensions)}),
        subscriptions=_subscriptions(overlay, low, high, profile, broker, params),
        attachments={p: overlay.brokers[b] for p, b in zip(publishers, source_broker.tolist(), strict=True)}
        | {f"client-{c}": overlay.brokers[b] for c, b in enumerate(broker.tolist())},
        publishers=publishers,
        source=_Points(params.dimensions, params.publishers),
        arrays={"profile_low": low, "profile_high": high, "profile_of_client": profile, "gateway": gateway},
    )
    return replace(draft, report=_report(draft, broker, params))


def _profiles(params: SemcastModel, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Low and high corner of each distinct profile, both inclusive."""
    distinct = max(1, round(params.clients / params.selectivity_factor))
    shape = (distinct, params.dimensions)
    if params.overlap == "disjoint":
        edge = np.arange(distinct + 1) * DOMAIN // distinct
        low, high = np.zeros(shape, dtype=np.int64), np.full(shape, DOMAIN - 1)
        low[:, 0], high[:, 0] = edge[:-1], edge[1:] - 1
        return low, high
    # Sides are independent with mean p^(1/d), so the mean volume is exactly the matching probability.
    side = params.matching_probability ** (1 / params.dimensions)
    spread = min(params.probability_spread, 1 / side - 1)
    width = np.round(side * rng.uniform(1 - spread, 1 + spread, shape) * DOMAIN).astype(np.int64)
    width = np.clip(width, 1, DOMAIN)
    low = np.floor(rng.random(shape) * (DOMAIN - width + 1)).astype(np.int64)
    return low, low + width - 1


def _subscriptions(
    overlay: Overlay, low: Ints, high: Ints, profile: Ints, broker: Ints, params: SemcastModel
) -> tuple[Subscription, ...]:
    bounded = range(1 if params.overlap == "disjoint" else params.dimensions)
    texts = [
        " AND ".join(f"a{d + 1} BETWEEN {a[d]} AND {b[d]}" for d in bounded)
        for a, b in zip(low.tolist(), high.tolist(), strict=True)
    ]
    return tuple(
        Subscription(
            f"client-{c}",
            f"client-{c}",
            overlay.brokers[b],
            sql=texts[p],
            latency_ms=params.latency_bound_ms or None,
        )
        for c, (p, b) in enumerate(zip(profile.tolist(), broker.tolist(), strict=True))
    )


@dataclass(frozen=True, slots=True)
class _Points:
    dimensions: int
    publishers: int

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        publisher = rng.integers(self.publishers, size=count)
        points = rng.integers(DOMAIN, size=(self.dimensions, count))
        return DrawnEvents(publisher, {f"a{d + 1}": column(points[d]) for d in range(self.dimensions)})


def _report(draft: Workload, broker: Ints, params: SemcastModel) -> dict[str, float]:
    profile = draft.arrays["profile_of_client"]
    picked = np.unique(profile)
    count = min(draft.event_count, OVERLAP_MESSAGES)
    batch = draft.events(0, count)
    points = np.column_stack([batch.column(path).to_numpy() for path in draft.schema.attributes])
    matched = _matches(points, draft.arrays["profile_low"], draft.arrays["profile_high"])
    order = np.argsort(broker, kind="stable")
    _, first = np.unique(broker[order], return_index=True)
    wanted = np.logical_or.reduceat(matched[profile[order]], first, axis=0)
    chance = 1 / len(matched) if params.overlap == "disjoint" else params.matching_probability
    return {
        "clients": float(params.clients),
        "distinct_profiles": float(len(matched)),
        "distinct_profiles_picked": float(len(picked)),
        "gateway_brokers": float(len(draft.arrays["gateway"])),
        "matching_probability": float(matched[picked].mean()),
        "matching_probability_asked": chance,
        "average_profile_overlap": mean_overlap(matched[picked][:OVERLAP_PROFILES]),
        "aggregated_profile_overlap": mean_overlap(wanted),
        "clients_per_message": float(matched[profile].sum() / count),
        "gateways_per_message": float(wanted.sum() / count),
    }


def _matches(points: Ints, low: Ints, high: Ints) -> Bools:
    """bool[profile, message]."""
    matched = np.ones((len(low), len(points)), dtype=np.bool_)
    for d in range(points.shape[1]):
        at = points[:, d]
        matched &= (low[:, d, None] <= at) & (at <= high[:, d, None])
    return matched


def mean_overlap(sets: Bools) -> float:
    """The mean of |Si & Sj| / |Si| over ordered pairs i != j whose Si is not empty; 0 without any."""
    members = sets[sets.any(axis=1)].astype(np.float32)
    empty = len(sets) - len(members)
    if len(sets) < 2 or not len(members):
        return 0.0
    shared = members @ members.T
    size = np.diag(shared).astype(np.float64)
    share = (shared.sum(axis=1, dtype=np.float64) - size) / size
    return float(share.sum() / (len(members) * (len(members) - 1 + empty)))
