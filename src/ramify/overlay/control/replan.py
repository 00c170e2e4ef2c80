"""When a live plan is replaced: plans made and weighed, measured cost, rollback. Pure.

Owns the work of making plans as bytes in, bytes out (`ReplanJob`, `make_plans`), so that it can run in a
process of its own: a scheme may take seconds and hold the interpreter, while leases must be renewed. Owns
also the measured cost of epochs (`CostMeter`) and the record of each decision (`PlanDecision`).

A plan is installed only when it passed `check` for the problem it was made for. It is taken back when the
measured cost of a published byte rose with it by more than a tolerance.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ramify.content.filters.space import Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, OverlayError, RamifyError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.records import Status
from ramify.planning.choosing.revise import ReplanDecision, replan
from ramify.planning.choosing.study import grid_for_schemes
from ramify.planning.demand.demand import NO_CELL, Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import SCHEMES, drift, make_plan, parameters

__all__ = [
    "CostMeter",
    "EpochCost",
    "PlanDecision",
    "ReplanJob",
    "ReplanResult",
    "SchemeTrial",
    "grid_of",
    "grown",
    "has_risen",
    "make_plans",
    "spec_of",
]


# ------------------------------------------------------------------------------------------- decisions


class SchemeTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one scheme. Costs are predicted, in money for the demand."""

    spec: str
    seconds: float = 0.0
    cost: float | None = None
    reason: str = ""


class PlanDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision about plans, for people. `action`: keep, install, rollback, give_up.

    Costs of keep and install are predicted, for the demand at hand; those of a rollback are measured, per
    published GB. `saving` is a share of the old cost.
    """

    at: float
    action: str
    reason: str
    old_scheme: str = ""
    new_scheme: str = ""
    epoch: int = 0
    old_cost: float | None = None
    new_cost: float | None = None
    saving: float | None = None
    tried: list[SchemeTrial] = []


# --------------------------------------------------------------------------------------- making plans

FEWEST_TO_PART = 200
"""Events below which a plan is weighed on those that it was made for."""

Longs = npt.NDArray[np.int64]


class _Demand(msgspec.Struct, frozen=True):
    publisher: bytes
    client: bytes
    cell: bytes
    start: bytes
    classes: bytes
    count: bytes
    size: bytes
    tags: bytes
    clients: list[str]
    seconds: float
    factor: float
    recent: bytes | None = None


_ARRAYS: dict[str, Any] = {
    "publisher": np.int32,
    "client": np.int32,
    "cell": np.int32,
    "start": np.int64,
    "classes": np.int32,
    "count": np.int64,
    "size": np.int64,
    "tags": np.uint64,
}


class _Job(msgspec.Struct, frozen=True):
    plan: bytes
    demand: _Demand | None
    specs: list[str]
    threshold: float | None
    seed: int


class _Made(msgspec.Struct, frozen=True):
    tried: list[SchemeTrial]
    plan: bytes | None
    old_cost: float | None
    new_cost: float | None
    saving: float | None
    moves: str = ""


@dataclass(frozen=True)
class ReplanJob:
    """Plans to be made for the classes of a plan.

    With a threshold the cheapest is kept when it saves more than that share of what `plan` costs; without
    one the first that can be made is, and `plan` needs no channels.
    """

    plan: Plan
    specs: Sequence[str]
    demand: Demand | None = None
    threshold: float | None = None
    seed: int = 0

    def encode(self) -> bytes:
        """For the process that makes them."""
        return msgspec.msgpack.encode(
            _Job(
                encode_plan(self.plan),
                None if self.demand is None else _demand_out(self.demand),
                list(self.specs),
                self.threshold,
                self.seed,
            )
        )


@dataclass(frozen=True, slots=True)
class ReplanResult:
    """What came of a job. `plan` is None when there is nothing to install; `tried` says why.

    `moves` says how many subscriptions get another proxy, where the plan before and the new one have zones.
    """

    tried: tuple[SchemeTrial, ...]
    plan: Plan | None
    old_cost: float | None = None
    new_cost: float | None = None
    saving: float | None = None
    moves: str = ""

    @classmethod
    def decode(cls, data: bytes) -> "ReplanResult":
        """What `make_plans` gave."""
        told = msgspec.msgpack.decode(data, type=_Made)
        plan = None if told.plan is None else decode_plan(told.plan)
        return cls(tuple(told.tried), plan, told.old_cost, told.new_cost, told.saving, told.moves)


def make_plans(data: bytes) -> bytes:
    """Do a job. Schemes that refuse, fail `check` or leave events undelivered become reasons.

    A scheme is weighed on events that it has not seen, where there are enough: it plans for a random half
    and is priced, with the present plan, on the other. What is kept is made for all of them. Where events
    decay (`Demand.recent`), plans are made for the recent ones and priced on all.
    """
    job = msgspec.msgpack.decode(data, type=_Job)
    old = decode_plan(job.plan)
    demand = Demand.of([]) if job.demand is None else _demand_in(job.demand)
    grid, demand = _gridded(old, job, demand)

    def made_for(spec: str, events: Demand) -> Plan:
        problem = Problem.of(old.overlay, old.classes, events, old.attachments, grid=grid)
        return check(make_plan(spec, problem, job.seed), problem)

    seen, unseen = _halves(demand, job.seed)
    tried: list[SchemeTrial] = []
    best: tuple[str, ReplanDecision] | None = None
    for spec in job.specs:
        began = time.perf_counter()
        try:
            plan = made_for(spec, seen if job.threshold is not None else demand)
            seconds = time.perf_counter() - began
            if job.threshold is None:
                tried.append(SchemeTrial(spec, seconds))
                return msgspec.msgpack.encode(_Made(tried, encode_plan(plan), None, None, None))
            weighed = replan(old, plan, unseen, job.threshold)
        except RamifyError as error:
            tried.append(SchemeTrial(spec, time.perf_counter() - began, reason=str(error)))
            continue
        tried.append(SchemeTrial(spec, seconds, weighed.new_cost))
        if best is None or weighed.new_cost < best[1].new_cost:
            best = spec, weighed
    if best is None:
        return msgspec.msgpack.encode(_Made(tried, None, None, None, None))
    spec, weighed = best
    costs = weighed.old_cost, weighed.new_cost, weighed.saving
    if not weighed.install:
        return msgspec.msgpack.encode(_Made(tried, None, *costs))
    kept = made_for(spec, demand)
    moves = drift(old, kept, demand)
    said = "" if moves is None else str(moves)
    return msgspec.msgpack.encode(_Made(tried, encode_plan(kept), *costs, said))


def _halves(demand: Demand, seed: int) -> tuple[Demand, Demand]:
    """Two random parts of the events; twice the whole where they are too few to be parted."""
    if demand.events < FEWEST_TO_PART:
        return demand, demand
    first = np.random.default_rng(seed).binomial(demand.count, 0.5)
    return _part(demand, first), _part(demand, demand.count - first)


def _part(demand: Demand, count: Longs) -> Demand:
    """So many events of each pattern, each as large and as old as the mean, standing for all."""
    share = count / np.maximum(demand.count, 1)
    size = np.rint(demand.size * share).astype(np.int64)
    factor = demand.factor * demand.events / max(1, int(count.sum()))
    recent = None if demand.recent is None else demand.recent * share
    part = replace(demand, count=count.astype(np.int64), size=size, factor=factor, recent=recent)
    return part.take(np.flatnonzero(count))


def grid_of(plan: Plan, specs: Sequence[str]) -> Grid | None:
    """The grid that a demand must be counted with when the plan is weighed against others.

    The plan's own where it has one: both must be priced on the same cells. Else one that the filters
    suggest, where a scheme divides the content space; none where a spec cannot be read, or names attributes
    that no filter bounds. Whoever asks with the same plan and specs gets the same.
    """
    if plan.grid is not None:
        return plan.grid
    try:
        return grid_for_schemes(specs, plan.classes)
    except InputError:
        return None


def _gridded(old: Plan, job: _Job, demand: Demand) -> tuple[Grid | None, Demand]:
    """The grid to plan with, and the demand as far as it was counted with it."""
    if not bool((demand.cell != NO_CELL).all()):
        return None, demand
    grid = grid_of(old, job.specs)
    if grid is not None and old.grid is None and job.threshold is None:
        # the cells may be those of another grid; nothing is priced, so zones can go by filters alone
        return grid, Demand.of([])
    return grid, demand


def spec_of(plan: Plan, otherwise: str) -> str:
    """The spec that makes plans as this one was made; `otherwise` where no scheme has its name."""
    scheme = SCHEMES.get(plan.scheme)
    if scheme is None:
        return otherwise
    given = {name: plan.settings[name] for name in parameters(scheme) if name in plan.settings}
    written = ",".join(f"{name}={value}" for name, value in given.items())
    return f"{plan.scheme}:{written}" if written else plan.scheme


def grown(plan: Plan, wanted: Mapping[str, Subscription]) -> Plan:
    """A plan without channels, with exactly the wanted subscriptions, to make plans for.

    Classes keep their numbers. Subscriptions whose filter cannot be read are left out.
    """
    classes = plan.classes
    for id_ in sorted(classes.class_of.keys() - wanted.keys()):
        classes, _ = classes.without_subscription(id_)
    for id_ in sorted(wanted.keys() - classes.class_of.keys()):
        try:
            classes, _ = classes.with_subscription(wanted[id_], plan.overlay)
        except InputError:
            continue
    return replace(plan, classes=classes, channels=(), paths={}, legs={}, regions=())


def _demand_out(demand: Demand) -> _Demand:
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(getattr(demand, name), dtype=kind).tobytes()
        for name, kind in _ARRAYS.items()
    }
    recent = None if demand.recent is None else np.ascontiguousarray(demand.recent).tobytes()
    known: dict[str, Any] = {"seconds": demand.seconds, "factor": demand.factor, "recent": recent}
    return _Demand(**arrays, clients=list(demand.clients), **known)


def _demand_in(row: _Demand) -> Demand:
    arrays: dict[str, Any] = {
        name: np.frombuffer(getattr(row, name), dtype=kind).copy() for name, kind in _ARRAYS.items()
    }
    recent = None if row.recent is None else np.frombuffer(row.recent).reshape(2, -1).copy()
    known: dict[str, Any] = {"seconds": row.seconds, "factor": row.factor, "recent": recent}
    return Demand(**arrays, clients=tuple(row.clients), **known)


# ------------------------------------------------------------------------------------------- measured


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What was measured of an epoch: events and bytes that entered with it, and what sending them cost."""

    events: int
    size_bytes: int
    money: float

    @property
    def per_gb(self) -> float | None:
        """The price of a published GB; None when nothing was published."""
        return None if not self.size_bytes else self.money / (self.size_bytes / 1e9)

    def since(self, earlier: "EpochCost") -> "EpochCost":
        """What was added since an earlier measurement of the same epoch."""
        return EpochCost(
            self.events - earlier.events, self.size_bytes - earlier.size_bytes, self.money - earlier.money
        )


class CostMeter:
    """Adds up what brokers count, over their restarts: counts start over with a session."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Status] = {}

    def add(self, status: Status) -> None:
        """Take a broker's counters; of a session the latest count."""
        known = self._latest.get((status.broker, status.session))
        if known is None or known.at <= status.at:
            self._latest[status.broker, status.session] = status

    def cost(self, epoch: int, overlay: Overlay) -> EpochCost:
        """What an epoch cost, at the price of each direction. Links that are not the overlay's are free."""
        events = size = 0
        money = 0.0
        for status in self._latest.values():
            entered = status.entered.get(epoch, (0, 0))
            events, size = events + entered[0], size + entered[1]
            for to, sent in status.sent.get(epoch, {}).items():
                money += sent.payload_bytes / 1e9 * _price(overlay, status.broker, to)
        return EpochCost(events, size, money)

    def forget(self, epochs: Sequence[int]) -> None:
        """Drop sessions that ended and counted nothing of the epochs that still matter."""
        alive: dict[str, float] = {}
        for (broker, _), status in self._latest.items():
            alive[broker] = max(alive.get(broker, 0.0), status.started)
        self._latest = {
            key: status
            for key, status in self._latest.items()
            if status.started >= alive[key[0]]
            or any(epoch in status.entered or epoch in status.sent for epoch in epochs)
        }


def has_risen(before: EpochCost, after: EpochCost, tolerance: float) -> bool:
    """Whether a published byte costs more than before, by more than a share; no where one is unknown."""
    old, new = before.per_gb, after.per_gb
    return old is not None and new is not None and new > old * (1 + tolerance) and new > 0


def _price(overlay: Overlay, a: str, b: str) -> float:
    try:
        link = overlay.link_between(a, b)
    except OverlayError:
        return 0.0
    return float(overlay.price[link, int(overlay.ends[link, 0] != overlay.index[a])])
