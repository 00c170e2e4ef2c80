"""Publishers and subscribers with heavy-tailed numbers of content descriptors: Ge et al., section 4.1.

Model      |P| publishers and |S| subscribers sit at random stub brokers; one may be at the broker of the
           other. Publisher x announces f(x) content descriptors and subscriber y asks for g(y), both from
           a bounded Pareto distribution with density alpha k^alpha n^(-alpha-1) / (1 - (k/p)^alpha) on
           [k, p]. As in the paper's Figure 1, a descriptor is a rectangle of a two-dimensional world: an
           advertisement or a subscription over the integer attributes x and y of [0, 10,000). An event is
           a point of one of its publisher's rectangles; every rectangle is equally active.
Parameters publishers, subscribers   10 and 10 in Figures 8 and 9, 5 to 50 in Figure 10
           pareto_k, pareto_p        1 and 100
           pareto_alpha              1.0
           side_low_percent,
           side_high_percent         sides of a rectangle, in percent of the world (not printed)
Arrays     f[x], publisher_broker[x], g[y], subscriber_broker[y] (broker indices), and the corners, both
           inclusive: advertisement_low[i, 2], advertisement_high[i, 2], subscription_low[j, 2],
           subscription_high[j, 2]
Departures Counts are whole numbers: a draw from the density is rounded to the nearest. Rectangles lie
           evenly and independently; the paper uses the counts alone and prints no geometry. Brokers whose
           site has no role count as stub brokers.

Reference: Z. Ge, P. Ji, J. Kurose, D. Towsley, "Min-Cost Matchmaker Problem in Distributed
Publish/Subscribe Infrastructures".
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.nearness import require_brokers
from ramify.workloads.parameters import Params, count, number
from ramify.workloads.workload import (
    AdvertisementRow,
    DrawnEvents,
    Workload,
    column,
    random_stream,
)

__all__ = ["MatchmakerModel", "bounded_pareto_counts", "generate"]

NAME = "matchmaker"
WORLD = 10_000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchmakerModel(Params):
    """The parameters: see the module."""

    publishers: int = count(10, 1, 100_000)
    subscribers: int = count(10, 1, 100_000)
    pareto_k: int = count(1)
    pareto_p: int = count(100)
    pareto_alpha: float = number(1.0, 0, 100, above_low=True)
    side_low_percent: float = number(5.0, 0, 100, above_low=True)
    side_high_percent: float = number(25.0, 0, 100, above_low=True)

    def __post_init__(self) -> None:
        Params.__post_init__(self)
        for low, high in (("pareto_k", "pareto_p"), ("side_low_percent", "side_high_percent")):
            if getattr(self, high) < getattr(self, low):
                raise InputError(
                    f"{high} = {getattr(self, high)} is below {low}. Allowed: {getattr(self, low)} or more."
                )


def generate(overlay: Overlay, params: MatchmakerModel, seed: int) -> Workload:
    """The workload of section 4.1."""
    stubs = np.array([i for i, site in enumerate(overlay.sites) if site.role != "transit"], dtype=np.int64)
    require_brokers(overlay, 1, NAME)
    if max(params.publishers, params.subscribers) > len(stubs):
        raise InputError(
            f"{params.publishers} publishers and {params.subscribers} subscribers do not fit: overlay "
            f"{overlay.name} has {len(stubs)} stub brokers, one of each kind at most per broker. "
            f"Allowed: a whole number from 1 to {len(stubs)}."
        )
    rng = random_stream(seed, NAME, "nodes")
    publisher_broker = rng.choice(stubs, params.publishers, replace=False)
    subscriber_broker = rng.choice(stubs, params.subscribers, replace=False)
    f = bounded_pareto_counts(params, params.publishers, rng)
    g = bounded_pareto_counts(params, params.subscribers, rng)
    ad_low, ad_high = _rectangles(int(f.sum()), params, random_stream(seed, NAME, "advertisements"))
    sub_low, sub_high = _rectangles(int(g.sum()), params, random_stream(seed, NAME, "subscriptions"))
    publishers = tuple(f"pub-{i}" for i in range(params.publishers))
    subscribers = tuple(f"sub-{i}" for i in range(params.subscribers))
    attachments = _attachments(overlay, publishers, publisher_broker) | _attachments(
        overlay, subscribers, subscriber_broker
    )
    draft = Workload(
        name=NAME,
        params=params,
        seed=seed,
        schema=EventSchema({"x": AttributeType.INT64, "y": AttributeType.INT64}),
        subscriptions=tuple(
            Subscription(f"{client}/{i}", client, attachments[client], sql=text)
            for client, i, text in _owned(subscribers, g, sub_low, sub_high)
        ),
        advertisements=tuple(
            AdvertisementRow(f"{client}/{i}", client, attachments[client], sql=text)
            for client, i, text in _owned(publishers, f, ad_low, ad_high)
        ),
        attachments=attachments,
        publishers=publishers,
        source=_Actions(np.repeat(np.arange(params.publishers), f), ad_low, ad_high),
        arrays={
            "f": f,
            "g": g,
            "publisher_broker": publisher_broker,
            "subscriber_broker": subscriber_broker,
            "advertisement_low": ad_low,
            "advertisement_high": ad_high,
            "subscription_low": sub_low,
            "subscription_high": sub_high,
        },
    )
    return replace(draft, report=_report(draft, params))


def bounded_pareto_counts(params: MatchmakerModel, size: int, rng: np.random.Generator) -> Ints:
    """Whole numbers of [k, p], from the inverse of the bounded Pareto distribution, rounded."""
    k, p, alpha = params.pareto_k, params.pareto_p, params.pareto_alpha
    tail = (k / p) ** alpha
    drawn = k * (1 - rng.random(size) * (1 - tail)) ** (-1 / alpha)
    return np.asarray(np.clip(np.round(drawn), k, p), dtype=np.int64)


def bounded_pareto_mean(params: MatchmakerModel) -> float:
    """The mean of the density, before rounding."""
    k, p, alpha = params.pareto_k, params.pareto_p, params.pareto_alpha
    if k == p:
        return float(k)
    if alpha == 1:
        return k * math.log(p / k) / (1 - k / p)
    scale = alpha * k**alpha / (1 - (k / p) ** alpha)
    return float(scale * (k ** (1 - alpha) - p ** (1 - alpha)) / (alpha - 1))


def _rectangles(size: int, params: MatchmakerModel, rng: np.random.Generator) -> tuple[Ints, Ints]:
    share = rng.uniform(params.side_low_percent, params.side_high_percent, (size, 2)) / 100
    side = np.clip(np.round(share * WORLD), 1, WORLD).astype(np.int64)
    low = rng.integers(WORLD - side + 1)
    return low, low + side - 1


def _attachments(overlay: Overlay, clients: tuple[str, ...], broker: Ints) -> dict[str, str]:
    return {client: overlay.brokers[b] for client, b in zip(clients, broker.tolist(), strict=True)}


def _owned(clients: tuple[str, ...], counts: Ints, low: Ints, high: Ints) -> list[tuple[str, int, str]]:
    """(client, number within the client, filter) of each rectangle; clients own them in order."""
    texts = [
        f"x BETWEEN {x0} AND {x1} AND y BETWEEN {y0} AND {y1}"
        for (x0, y0), (x1, y1) in zip(low.tolist(), high.tolist(), strict=True)
    ]
    numbered = [(client, i) for client, n in zip(clients, counts.tolist(), strict=True) for i in range(n)]
    return [(client, i, text) for (client, i), text in zip(numbered, texts, strict=True)]


@dataclass(frozen=True, slots=True)
class _Actions:
    owner: Ints  # the publisher of each advertised rectangle
    low: Ints
    high: Ints

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        which = rng.integers(len(self.owner), size=count)
        point = rng.integers(self.low[which], self.high[which] + 1)
        return DrawnEvents(self.owner[which], {"x": column(point[:, 0]), "y": column(point[:, 1])})


def _report(draft: Workload, params: MatchmakerModel) -> dict[str, float]:
    mean = bounded_pareto_mean(params)
    low, high = draft.arrays["subscription_low"], draft.arrays["subscription_high"]
    batch = draft.events(0, min(draft.event_count, 2_000))
    point = np.column_stack((batch.column("x").to_numpy(), batch.column("y").to_numpy()))[:, None]
    matched = np.all((low <= point) & (point <= high), axis=2).reshape(len(point), len(low))
    return {
        "publishers": float(params.publishers),
        "publishers_paper": 10.0,
        "subscribers": float(params.subscribers),
        "subscribers_paper": 10.0,
        "descriptors_per_publisher": float(draft.arrays["f"].mean()),
        "descriptors_per_publisher_asked": mean,
        "descriptors_per_subscriber": float(draft.arrays["g"].mean()),
        "descriptors_per_subscriber_asked": mean,
        "subscriptions_per_event": float(matched.sum(axis=1).mean()),
        "events_matched_percent": float(matched.any(axis=1).mean()) * 100,
    }
