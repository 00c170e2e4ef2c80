"""After `load_kernels`, routing compiles nothing, whatever the plan."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from numba.core.registry import CPUDispatcher

def compiled():
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("ramify.")]
    return {
        f"{m.__name__}.{name}": len(kernel.signatures)
        for m in modules
        for name, kernel in vars(m).items()
        if isinstance(kernel, CPUDispatcher)
    }

from ramify.content.events.events import Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.routing.form import encode_routing
from ramify.overlay.routing.plan import RoutingPlan
from ramify.overlay.routing.readiness import load_kernels
from ramify.overlay.routing.simulator import Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

overlay = overlay_from("ring:7")
names = overlay.brokers
wanted = [
    Subscription(f"s{i}", f"c{i}", names[i], sql=f"size BETWEEN {i} AND 9 AND shop LIKE 'm%'")
    for i in range(5)
]
batch = events_to_batch(
    [Event(f"e{i}", "p", None, {"size": i, "shop": "main", "tags": ("a", "b")}) for i in range(10)]
)
classes = Classes.collapse(wanted, overlay, EventSchema.of_batch(batch).attributes)
demand = Demand.of([(0, [0, 1], 4, 400), (0, [2, 3, 4], 3, 300)])
problem = Problem.of(overlay, classes, demand, {"p": names[0]})
plan = make_plan(sys.argv[1], problem)
form = encode_routing(plan)

if sys.argv[2] == "ready":
    load_kernels()
before = compiled()
RoutingPlan.read(form)
delivered = Simulator(plan).simulate_events([batch]).delivered
assert delivered
print(sorted(name for name, count in compiled().items() if before.get(name) != count))
"""


def run(scheme: str, how: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, scheme, how], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("scheme", ["mult", "explicit", "portfolio:trees=2"])
def test_the_first_event_compiles_nothing(scheme: str) -> None:
    assert run(scheme, "ready") == "[]"


def test_without_it_the_first_event_would_compile() -> None:
    assert "match_rows" in run("mult", "cold")
