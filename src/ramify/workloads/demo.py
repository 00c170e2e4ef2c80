"""A shop that runs in many regions: orders, shipments, stock and alerts, for `make demo` and examples.

Model      Every broker is a region with a shop and a warehouse that publish. Regions differ in traffic
           (the i-th busiest has 1/i of the busiest). An event is about its own region with probability
           `locality`, else about one of the `near_regions` closest (latency). Teams subscribe at
           regions drawn by traffic, mostly to what is about their own region; some want a kind of event
           from everywhere. Filters come in all three spellings, whatever their number.
Attributes type, region, sku, price, quantity, priority (1 urgent to 5), express, delay_minutes (delayed
           shipments only), tags and keywords (arrays), customer.tier. Stock events have neither price nor
           customer, so that absence is exercised.
Parameters subscriptions        how many
           locality             the probability above, for events and for subscriptions
           near_regions         the neighbours above
           skus                 articles; the i-th most wanted has 1/i of the demand of the first
           latency_bound_ms     of subscriptions to urgent matters; 0 for none
           size_bytes           the median size; single sizes vary around it by a factor of 4 or so
           stand_ins            0, or as many of the quietest regions as publish the events of all, each
                                those of its share of the regions: as at night. The content of events
                                and their subscribers stay, so plans for the day meet another day
Arrays     traffic[b] (share of the events), subscription_broker[i] (broker indices)
Departures None: this is no paper's model.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.nearness import closest_brokers, require_brokers
from ramify.workloads.parameters import Params, count, number
from ramify.workloads.workload import (
    DrawnEvents,
    Workload,
    column,
    list_column,
    random_stream,
    string_column,
    weighted_picks,
)

__all__ = ["DemoModel", "generate"]

NAME = "demo"

TYPES = {
    "order.created": 0.42,
    "order.cancelled": 0.07,
    "order.returned": 0.06,
    "payment.failed": 0.04,
    "alert.fraud": 0.01,
    "shipment.sent": 0.24,
    "shipment.delayed": 0.08,
    "stock.low": 0.08,
}
"""Kinds of event and their shares."""

_NAMES = tuple(TYPES)
_FROM_WAREHOUSE = np.array([name.startswith(("shipment", "stock")) for name in _NAMES])
TIERS = ("bronze", "silver", "gold")
DEMO_TAGS = ("fragile", "gift", "bulky", "cold-chain", "hazmat")
CATEGORIES = ("coffee", "tea", "garden", "laptop", "phone", "camera", "toys", "books")
DEMO_KEYWORDS = (*CATEGORIES, "new", "refurbished", "sale", "recall")

DEMO_SCHEMA = EventSchema(
    {
        "type": AttributeType.STRING,
        "region": AttributeType.STRING,
        "sku": AttributeType.STRING,
        "price": AttributeType.DOUBLE,
        "quantity": AttributeType.INT64,
        "priority": AttributeType.INT64,
        "express": AttributeType.BOOLEAN,
        "delay_minutes": AttributeType.INT64,
        "tags": AttributeType.STRINGS,
        "keywords": AttributeType.STRINGS,
        "customer.tier": AttributeType.STRING,
    }
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel(Params):
    """The parameters: see the module."""

    events: int = count(20_000, 1, 10**12)
    subscriptions: int = count(200, 1, 100_000)
    locality: float = number(0.85, 0, 1)
    near_regions: int = count(4, 1, 1_000)
    skus: int = count(400, 1, 9_999)
    latency_bound_ms: float = number(2_000.0, 0, 1e9)
    stand_ins: int = count(0, 0, 1_000_000)


def generate(overlay: Overlay, params: DemoModel, seed: int) -> Workload:
    """The workload of the demonstration."""
    require_brokers(overlay, 1, NAME)
    brokers = len(overlay)
    near = closest_brokers(overlay, min(params.near_regions + 1, brokers), "latency").astype(np.int64)
    busy = 1 / np.arange(1, brokers + 1)
    traffic = random_stream(seed, NAME, "traffic").permutation(busy / busy.sum())
    subscriptions, home = _subscriptions(
        overlay, params, traffic, near, random_stream(seed, NAME, "subscriptions")
    )
    publishers = tuple(f"{role}-{broker}" for broker in overlay.brokers for role in ("shop", "warehouse"))
    draft = Workload(
        name=NAME,
        params=params,
        seed=seed,
        schema=DEMO_SCHEMA,
        subscriptions=subscriptions,
        attachments={publisher: overlay.brokers[i // 2] for i, publisher in enumerate(publishers)}
        | {row.client: row.broker for row in subscriptions},
        publishers=publishers,
        source=_Shop(
            overlay.brokers, np.cumsum(traffic), near, _publishing(traffic, params.stand_ins), params
        ),
        arrays={"traffic": traffic, "subscription_broker": home},
    )
    return replace(draft, report=_report(draft))


def _publishing(traffic: Floats, stand_ins: int) -> Ints:
    """For each region the one that publishes its events: itself, or one of the quietest in turn."""
    order = np.argsort(-traffic, kind="stable")
    if not stand_ins:
        return np.arange(len(order))
    quiet = order[-stand_ins:]
    found = np.empty(len(order), dtype=np.int64)
    found[order] = quiet[np.arange(len(order)) % len(quiet)]
    return found


@dataclass(frozen=True, slots=True)
class _Shop:
    regions: tuple[str, ...]
    cumulative_traffic: Floats
    near: Ints
    publishing: Ints
    params: DemoModel

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        kind = weighted_picks(rng, np.cumsum(list(TYPES.values())), count)
        here = weighted_picks(rng, self.cumulative_traffic, count)
        sku = weighted_picks(rng, np.cumsum(1 / np.arange(1, self.params.skus + 1)), count)
        region = about(rng, here, self.near, self.params.locality)
        no_customer = kind == _NAMES.index("stock.low")
        late = kind == _NAMES.index("shipment.delayed")
        urgent = kind == _NAMES.index("alert.fraud")
        priority = np.where(urgent, 1, 5 - np.minimum(rng.geometric(0.5, count) - 1, 4))
        attributes = {
            "type": string_column(_NAMES, kind),
            "region": string_column(self.regions, region),
            "sku": string_column([f"sku-{i:04d}" for i in range(self.params.skus)], sku),
            "price": column(np.round(rng.lognormal(3.5, 1.0, count), 2), no_customer),
            "quantity": column(np.minimum(rng.geometric(0.4, count), 50)),
            "priority": column(priority),
            "express": column(rng.random(count) < 0.2),
            "delay_minutes": column(rng.geometric(1 / 90, count), ~late),
            "tags": list_column(DEMO_TAGS, _some(rng, len(DEMO_TAGS), 2, 0.2, count)),
            "keywords": list_column((*DEMO_KEYWORDS, *self.regions), self._keywords(rng, sku, region)),
            "customer.tier": string_column(TIERS, rng.choice(3, count, p=(0.6, 0.3, 0.1)), no_customer),
        }
        size = np.round(self.params.size_bytes * rng.lognormal(0.0, 0.5, count)).astype(np.int64)
        return DrawnEvents(
            2 * self.publishing[here] + _FROM_WAREHOUSE[kind], attributes, np.maximum(size, 1)
        )

    def _keywords(self, rng: np.random.Generator, sku: Ints, region: Ints) -> Ints:
        """Category, condition, perhaps sale and recall, and the region: what keyword filters can name."""
        new, used, sale, recall = range(len(CATEGORIES), len(DEMO_KEYWORDS))
        nothing = len(DEMO_KEYWORDS) + len(self.regions)
        chance = rng.random((3, len(sku)))
        return np.column_stack(
            (
                sku % len(CATEGORIES),
                np.where(chance[0] < 0.8, new, used),
                np.where(chance[1] < 0.15, sale, nothing),
                np.where(chance[2] < 0.01, recall, nothing),
                len(DEMO_KEYWORDS) + region,
            )
        )


def about(rng: np.random.Generator, here: Ints, near: Ints, locality: float) -> Ints:
    """The region that something at `here` is about: itself, or one of the nearest others."""
    if near.shape[1] == 1:
        return here
    away = near[here, rng.integers(1, near.shape[1], size=len(here))]
    return np.where(rng.random(len(here)) < locality, here, away)


def _some(rng: np.random.Generator, names: int, most: int, chance: float, count: int) -> Ints:
    """Up to `most` of `names` per row, each draw kept with `chance`; `names` itself stands for nothing."""
    drawn = rng.integers(names, size=(count, most))
    return np.where(rng.random((count, most)) < chance, drawn, names)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a template may use: its random numbers, and the region that the team looks at."""

    rng: np.random.Generator
    region: str
    urgent_ms: float | None

    def one(self, names: tuple[str, ...]) -> str:
        return names[int(self.rng.integers(len(names)))]

    def two(self, names: tuple[str, ...]) -> tuple[str, str]:
        first, second = self.rng.choice(len(names), 2, replace=False).tolist()
        return names[first], names[second]

    def amount(self, *amounts: int) -> int:
        return int(amounts[self.rng.integers(len(amounts))])

    @property
    def region_sql(self) -> str:
        # Spark reads backslash escapes in strings; a broker may have any name.
        escaped = self.region.replace("\\", "\\\\").replace("'", "\\'")
        return f"region = '{escaped}'"


_TEMPLATES: tuple[tuple[str, Callable[[_Ask], dict[str, Any]]], ...] = (
    ("sales", lambda a: {"sql": f"type = 'order.created' AND {a.region_sql}"}),
    (
        "packing",
        lambda a: {
            "pattern": {
                "type": [{"prefix": "order."}],
                "region": [a.region],
                "priority": [{"numeric": ["<=", a.amount(2, 3)]}],
            }
        },
    ),
    ("buyers", lambda a: {"keywords": tuple((name, a.region) for name in a.two(CATEGORIES))}),
    (
        "big-orders",
        lambda a: {
            "sql": f"type = 'order.created' AND {a.region_sql} AND price >= {a.amount(50, 100, 200)}"
        },
    ),
    (
        "late-shipments",
        lambda a: {
            "pattern": {
                "type": ["shipment.delayed"],
                "region": [a.region],
                "delay_minutes": [{"numeric": [">=", a.amount(30, 60, 120)]}],
            }
        },
    ),
    (
        "gold-care",
        lambda a: {
            "sql": f"type IN ('order.cancelled', 'order.returned') AND {a.region_sql} "
            "AND customer.tier = 'gold'",
            "latency_ms": a.urgent_ms,
        },
    ),
    (
        "handling",
        lambda a: {"pattern": {"region": [a.region], "tags": list(a.two(DEMO_TAGS))}},
    ),
    ("fraud", lambda a: {"sql": "type = 'alert.fraud'", "latency_ms": a.urgent_ms}),
    (
        "outlet",
        lambda a: {"keywords": tuple((name, "sale") for name in a.two(CATEGORIES))},
    ),
    ("recalls", lambda a: {"keywords": ("recall",)}),
    (
        "restocking",
        lambda a: {"sql": f"type = 'stock.low' AND {a.region_sql} AND sku LIKE 'sku-0{a.amount(0, 1)}%'"},
    ),
    (
        "loyalty",
        lambda a: {
            "pattern": {
                "type": ["order.created", "order.returned"],
                "region": [a.region],
                "customer": {"tier": [{"anything-but": ["bronze"]}]},
            }
        },
    ),
    (
        "couriers",
        lambda a: {
            "sql": f"type LIKE 'shipment.%' AND {a.region_sql} "
            "AND (express OR array_contains(tags, 'cold-chain'))"
        },
    ),
)
"""A team and the filter that it asks for. Taken in turn, so that every spelling has its share."""


def _subscriptions(
    overlay: Overlay, params: DemoModel, traffic: Floats, near: Ints, rng: np.random.Generator
) -> tuple[tuple[Subscription, ...], Ints]:
    home = weighted_picks(rng, np.cumsum(traffic), params.subscriptions)
    region = about(rng, home, near, params.locality)
    rows = []
    for i, (at, looks_at) in enumerate(zip(home.tolist(), region.tolist(), strict=True)):
        team, ask = _TEMPLATES[i % len(_TEMPLATES)]
        broker = overlay.brokers[at]
        asked = ask(_Ask(rng, overlay.brokers[looks_at], params.latency_bound_ms or None))
        if "pattern" in asked:
            asked["pattern"] = json.dumps(asked["pattern"])
        rows.append(Subscription(f"{team}-{i:04d}", f"{team}-{broker}", broker, **asked))
    return tuple(rows), home


def _report(draft: Workload) -> dict[str, float]:
    sample = draft.sample()
    region = np.array(sample.column("region").to_pylist())
    at = np.array([draft.attachments[str(p)] for p in sample.column("publisher").to_pylist()])
    assert isinstance(draft.params, DemoModel)
    return {
        "events_about_own_region": float((region == at).mean()),
        "events_about_own_region_asked": draft.params.locality,
        "mean_size_bytes": float(sample.column("_size_bytes").to_numpy().mean()),
        "subscriptions": float(len(draft.subscriptions)),
        "subscriptions_sql": float(sum(row.sql is not None for row in draft.subscriptions)),
        "subscriptions_pattern": float(sum(row.pattern is not None for row in draft.subscriptions)),
        "subscriptions_keywords": float(sum(row.keywords is not None for row in draft.subscriptions)),
        "regions_with_subscriptions": float(len(np.unique(draft.arrays["subscription_broker"]))),
    }
