"""A live plan is weighed against others: bytes in, bytes out. Pure.

Owns the work of making plans as a job (`ReplanJob`, `make_plans`), so that it can run in a process of its
own: a scheme may take seconds and hold the interpreter, while leases must be renewed. The choice is that of
`weigh`, with the plan that runs as the incumbent.

A plan is offered only when it passed `check` for the problem it was made for, and breaks no rule on the
demand or on what may be published (`judgement`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ramify.content.filters.space import Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, RamifyError
from ramify.planning.choosing.study import grid_for_schemes
from ramify.planning.choosing.weigh import Outcome, SchemeRow, row_of, weigh
from ramify.planning.demand.demand import NO_CELL, Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.files import decode_plan, encode_plan, encoded, keep_encoded
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.pricing.rules import LATENCY, Rules
from ramify.planning.pricing.weights import MonthlyWeights
from ramify.planning.schemes.catalog import drift, make_plan, parameters, scheme_from

__all__ = [
    "ReplanJob",
    "ReplanResult",
    "SchemeTrial",
    "grid_of",
    "grown",
    "make_plans",
    "spec_of",
]


class SchemeTrial(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one scheme. The cost is predicted, in money for the demand, the user's weights
    included. `broken` are the rules that its plan breaks; each begins with the name of the rule."""

    spec: str
    seconds: float = 0.0
    cost: float | None = None
    reason: str = ""
    broken: list[str] = []


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
    tag_filters: int = 0
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
    rules: dict[str, Any]
    weights: MonthlyWeights


class _JobAnswer(msgspec.Struct, frozen=True):
    tried: list[SchemeTrial]
    plan: bytes | None
    old_cost: float | None
    new_cost: float | None
    saving: float | None
    moves: str = ""
    broken: list[str] = []


@dataclass(frozen=True)
class ReplanJob:
    """Plans to be made for the classes of a plan.

    With a threshold the cheapest is kept when it saves more than that share of what `plan` costs, or when
    `plan` breaks a rule; without one the first that can be made and keeps the rules is, and `plan` needs no
    channels.
    """

    plan: Plan
    specs: Sequence[str]
    demand: Demand | None = None
    threshold: float | None = None
    seed: int = 0
    rules: Rules = field(default_factory=Rules)
    weights: MonthlyWeights = field(default_factory=MonthlyWeights)

    def encode(self) -> bytes:
        """For the process that makes them."""
        return msgspec.msgpack.encode(
            _Job(
                encoded(self.plan),
                None if self.demand is None else _demand_out(self.demand),
                list(self.specs),
                self.threshold,
                self.seed,
                self.rules.document(),
                self.weights,
            )
        )


@dataclass(frozen=True, slots=True)
class ReplanResult:
    """What came of a job. `plan` is None when there is nothing to install; `tried` says why.

    `moves` says what the schemes know to have moved (`Hooks.drift`). `broken` are the rules that the plan
    before breaks.
    """

    tried: tuple[SchemeTrial, ...]
    plan: Plan | None
    old_cost: float | None = None
    new_cost: float | None = None
    saving: float | None = None
    moves: str = ""
    broken: tuple[str, ...] = ()

    @classmethod
    def decode(cls, data: bytes) -> "ReplanResult":
        """What `make_plans` gave."""
        told = msgspec.msgpack.decode(data, type=_JobAnswer)
        plan = None if told.plan is None else keep_encoded(decode_plan(told.plan), told.plan)
        costs = told.old_cost, told.new_cost, told.saving
        return cls(tuple(told.tried), plan, *costs, told.moves, tuple(told.broken))


def make_plans(data: bytes) -> bytes:
    """Do a job. Schemes that refuse, fail `check` or break a rule become trials that say so.

    A scheme is weighed on events that it has not seen, where there are enough: it plans for a random half
    and is priced, with the present plan, on the other. What is kept is made for all of them. Where events
    decay (`Demand.recent`), plans are made for the recent ones and priced on all.
    """
    job = msgspec.msgpack.decode(data, type=_Job)
    old = decode_plan(job.plan)
    demand = Demand.of([]) if job.demand is None else _demand_in(job.demand)
    grid, demand = _gridded(old, job, demand)
    maker = _Maker(old, grid, demand, job.seed, Rules.read(job.rules), job.weights)
    specs, unread = _readable(job.specs)
    try:
        made = maker.first(specs) if job.threshold is None else maker.better(specs, job.threshold)
    except RamifyError as error:
        # what is wrong with all of them, such as a rate that the demand does not tell
        made = _JobAnswer([SchemeTrial(spec, reason=str(error)) for spec in specs], None, None, None, None)
    return msgspec.msgpack.encode(msgspec.structs.replace(made, tried=[*made.tried, *unread]))


def _readable(specs: Sequence[str]) -> tuple[list[str], list[SchemeTrial]]:
    """The specs that can be read, and why others cannot."""
    good, bad = [], []
    for spec in specs:
        try:
            scheme_from(spec)
            good.append(spec)
        except InputError as error:
            bad.append(SchemeTrial(spec, reason=str(error)))
    return good, bad


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the plans of a job."""

    old: Plan
    grid: Grid | None
    demand: Demand
    seed: int
    rules: Rules
    weights: MonthlyWeights

    def first(self, specs: Sequence[str]) -> _JobAnswer:
        """The first plan that can be made and keeps the rules.

        Latency bounds are not among them: a subscription with one is served, late if need be.
        """
        tried: list[SchemeTrial] = []
        for spec in specs:
            row = self._weighed(self.demand, self.demand, [spec]).rows[0]
            broken = tuple(fault for fault in row.broken if not fault.startswith(LATENCY))
            tried.append(_trial(replace(row, broken=broken)))
            if row.plan is not None and not broken:
                return _JobAnswer(tried, encode_plan(row.plan), None, None, None)
        return _JobAnswer(tried, None, None, None, None)

    def better(self, specs: Sequence[str], threshold: float) -> _JobAnswer:
        """The cheapest plan that should replace the old one and keeps the rules."""
        seen, unseen = _halves(self.demand, self.seed)
        outcome = self._weighed(seen, unseen, specs, self.old)
        now, best, kept = outcome.incumbent, outcome.challenger, None
        assert now is not None
        found: dict[str, SchemeRow] = {}
        for row in outcome.successors(threshold):
            # it was weighed on halves; made for all events it is another plan
            whole = found[row.name] = self._whole(row)
            if whole.allowed:
                best, kept = row, whole.plan
                break
        score, saving = (None, None) if best is None else (best.score, outcome.saving_of(best))
        moves = None if kept is None else drift(self.old, kept, self.demand)
        return _JobAnswer(
            [_trial(found.get(row.name, row), row) for row in outcome.rows],
            None if kept is None else encode_plan(kept),
            now.score,
            score,
            saving,
            "" if moves is None else str(moves),
            list(now.broken),
        )

    def _whole(self, row: SchemeRow) -> SchemeRow:
        """The plan that a row's scheme makes for all events, judged."""
        problem = self._problem(self.demand)
        made = check(make_plan(row.name, problem, self.seed), problem)
        return row_of(made, price(made, self.demand), rules=self.rules, excuse=True)

    def _weighed(
        self, seen: Demand, unseen: Demand, specs: Sequence[str], old: Plan | None = None
    ) -> Outcome:
        return weigh(
            self._problem(seen),
            unseen,
            None,
            specs,
            whole=self.demand,
            incumbent=old,
            rules=self.rules,
            weights=self.weights.on(unseen) if self.demand.events else None,
            excuse=True,
            seed=self.seed,
        )

    def _problem(self, events: Demand) -> Problem:
        old = self.old
        return Problem.of(old.overlay, old.classes, events, old.attachments, grid=self.grid)


def _trial(judged: SchemeRow, weighed: SchemeRow | None = None) -> SchemeTrial:
    """What became of a scheme: rules as judged last, the rest as it was weighed."""
    row = judged if weighed is None else weighed
    cost = row.score if row.validation is not None else None
    return SchemeTrial(row.name, row.seconds, cost, row.reason or "", list(judged.broken))


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
    that no filter bounds. The same plan and specs give the same grid.
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
    try:
        _, scheme, _ = scheme_from(plan.scheme)
    except InputError:
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
    return _Demand(**arrays, clients=list(demand.clients), tag_filters=demand.tag_filters, **known)


def _demand_in(row: _Demand) -> Demand:
    arrays: dict[str, Any] = {
        name: np.frombuffer(getattr(row, name), dtype=kind).copy() for name, kind in _ARRAYS.items()
    }
    recent = None if row.recent is None else np.frombuffer(row.recent).reshape(2, -1).copy()
    known: dict[str, Any] = {"seconds": row.seconds, "factor": row.factor, "recent": recent}
    return Demand(**arrays, clients=tuple(row.clients), tag_filters=row.tag_filters, **known)
