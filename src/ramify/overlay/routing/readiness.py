"""Every compiled kernel that routing uses, loaded before the first event comes.

Owns a small world that takes each of them: filters of all spellings, a tree that is filtered, and trees
in headers. The first time on a machine the kernels are compiled, for up to a minute; later they come from
numba's cache in milliseconds. A broker does this before it says that it runs: if the first event did, the
broker would not answer meanwhile and would be taken for lost.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from ramify.content.events.events import Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.routing.form import encode_routing
from ramify.overlay.routing.plan import RoutingPlan
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes import baselines, explicit

__all__ = ["load_kernels"]

_BROKERS = ("a", "b", "c", "d", "e")
_PUBLISHER = "publisher"


def load_kernels() -> None:
    """Compile or load what routing will call. Milliseconds once all is in numba's cache."""
    batch = _events()
    for plan in _plans(EventSchema.of_batch(batch)):
        RoutingPlan.read(encode_routing(plan))
        Simulator(plan).simulate_events([batch])


def _plans(schema: EventSchema) -> Iterator[Plan]:
    """A plan with a filtered tree, and one for each kind of header."""
    overlay = _overlay()
    classes = Classes.collapse(_subscriptions(), overlay, schema.attributes)
    problem = Problem.of(overlay, classes, Demand.of([]), {_PUBLISHER: "a"})
    rng = np.random.default_rng(0)
    yield baselines.mst(problem, baselines.NoParams(), rng)
    for lists in (False, True):
        yield explicit.plan(problem, explicit.ExplicitParams(lists), rng)


def _overlay() -> Overlay:
    """A ring with a chord: trees in it have choices to make."""
    ring = [(_BROKERS[i], _BROKERS[(i + 1) % len(_BROKERS)]) for i in range(len(_BROKERS))]
    links = [Link.symmetric(one, other, 1.0 + i) for i, (one, other) in enumerate([*ring, ("a", "c")])]
    return Overlay.build("ready", _BROKERS, links)


def _subscriptions() -> list[Subscription]:
    return [
        Subscription("sql", "one", "b", sql="price > 3 AND kind = 'x' AND NOT gone"),
        Subscription("like", "two", "c", sql="name LIKE '%z%' OR number IN (1, 2) OR time > '2020-01-01'"),
        Subscription("pattern", "three", "d", pattern='{"kind": [{"prefix": "x"}], "tags": ["red"]}'),
        Subscription("words", "four", "e", keywords=("sale", "red")),
        Subscription("sigma", "five", "e", sigma='{"s": {"name|endswith": "BZ"}, "condition": "not s"}'),
    ]


def _events() -> pa.RecordBatch:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    return events_to_batch(
        Event(
            f"event-{i}",
            _PUBLISHER,
            at,
            {
                "price": float(i),
                "number": i,
                "kind": "xy" if i % 2 else "x",
                "name": "abz",
                "gone": False,
                "tags": ("red",),
                "keywords": ("sale",),
            },
        )
        for i in range(8)
    )
