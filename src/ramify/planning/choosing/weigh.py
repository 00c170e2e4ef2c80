"""The chooser: make the plan of every scheme, keep the cheapest that breaks no rule, report all honestly.

Owns the choice, wherever plans are weighed: for `ramify plan`, for live re-plans and rollbacks, with or
without a plan that runs already (the incumbent); and the row of a plan that is only priced (`row_of`).
Plans are made on the training window (`problem.demand`), chosen on a validation window, and reported on a
test window that neither planning nor choosing has seen: what was chosen for being cheap on one window looks
cheaper there than it is. Rules are judged on all events of the windows together, because a rule is broken
by a single event, and on events that may come (`judgement`).

The score of a plan is its money on the validation window, headers included, plus what the user says that
stored filters and matchings cost. Of equal scores the scheme that was tried first wins, the incumbent
before all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isfinite, nan
from time import perf_counter
from typing import Any

import numpy as np

from ramify.errors import InputError, PlanError, RamifyError
from ramify.planning.choosing.judgement import judged
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.lateness import LateSubscription, TooLateError, late_subscriptions
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import Yardstick
from ramify.planning.pricing.price import Price, Volume, price
from ramify.planning.pricing.rules import Rules
from ramify.planning.pricing.sums import WeightedSpread
from ramify.planning.pricing.weights import Weights
from ramify.planning.schemes.catalog import MAIN, SCHEMES, make_plan, scheme_from
from ramify.planning.schemes.scheme import Progress, silent

__all__ = [
    "UNDELIVERED",
    "Outcome",
    "SchemeRow",
    "row_of",
    "successors",
    "together",
    "weigh",
    "with_budget",
]

UNDELIVERED = "undelivered"
"""The rule that needs no asking for: every event reaches every subscription that it matches."""


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """What became of one scheme, or of the incumbent.

    Attributes
    ----------
    name         the spec it was asked for by
    plan         None when it could not be made; then there are no prices either
    score        on the validation window; inf without a plan
    seconds      that it took to make the plan
    broken       the rules that it breaks on any event of the windows or on one that may come, each with its
                 name first
    excused      those that no plan can keep, where that does not bar a plan (`weigh`)
    reason       why there is no plan or no price
    refused      subscriptions that it refuses for their latency bound: then there is no plan
    """

    name: str
    plan: Plan | None = None
    train: Price | None = None
    validation: Price | None = None
    test: Price | None = None
    score: float = inf
    seconds: float = 0.0
    broken: tuple[str, ...] = ()
    reason: str | None = None
    refused: tuple[LateSubscription, ...] = ()
    excused: tuple[str, ...] = ()

    @property
    def late(self) -> tuple[LateSubscription, ...]:
        """Subscriptions that a plan within latency bounds serves, and later than they allow."""
        return () if self.plan is None else late_subscriptions(self.plan)

    @property
    def allowed(self) -> bool:
        """Whether it may be chosen."""
        return self.plan is not None and not self.broken


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision.

    Attributes
    ----------
    rows         every scheme's, in the order tried
    chosen       the cheapest row that may be chosen, the incumbent's among them; None when there is none
    incumbent    the row of the plan that runs; None without one
    """

    rows: tuple[SchemeRow, ...]
    chosen: SchemeRow | None
    incumbent: SchemeRow | None = None

    @property
    def reasons(self) -> dict[str, str]:
        """Per scheme that may not be chosen, why."""
        return {
            row.name: row.reason or f"breaks {', '.join(row.broken)}"
            for row in self.rows
            if not row.allowed
        }

    def saving_of(self, row: SchemeRow) -> float:
        """The share of the incumbent's score that a row saves; 0 where the incumbent costs nothing."""
        assert self.incumbent is not None
        return _saving(self.incumbent, row)

    @property
    def challenger(self) -> SchemeRow | None:
        """The cheapest row that may be chosen and is not the incumbent; None when there is none."""
        return next(_cheapest(self.rows), None)

    def successors(self, threshold: float) -> Iterator[SchemeRow]:
        """The rows that should replace the incumbent: see `successors`. Without one, all that may run."""
        if self.incumbent is None:
            return _cheapest(self.rows)
        return successors(self.incumbent, self.rows, threshold)


def successors(incumbent: SchemeRow, rows: Sequence[SchemeRow], threshold: float) -> Iterator[SchemeRow]:
    """The rows that should replace the incumbent, the cheapest first.

    A row replaces it that may be chosen, and that saves more than the threshold, a share of what the
    incumbent counts; or any that may be chosen where the incumbent breaks a rule. `InputError` for a
    threshold below 0.
    """
    if not (isfinite(threshold) and threshold >= 0):
        raise InputError(f"threshold = {threshold!r}. Allowed: a share of the cost, 0 or more.")
    return (row for row in _cheapest(rows) if not incumbent.allowed or _saving(incumbent, row) > threshold)


def _cheapest(rows: Sequence[SchemeRow]) -> Iterator[SchemeRow]:
    """The rows that may be chosen, by score; of equal ones the first."""
    return iter(sorted((row for row in rows if row.allowed), key=lambda row: row.score))


def _saving(incumbent: SchemeRow, row: SchemeRow) -> float:
    before = incumbent.score
    return (before - row.score) / before if before > 0 else 0.0


def weigh(
    problem: Problem,
    validation: Demand,
    test: Demand | None = None,
    specs: Sequence[str] | None = None,
    *,
    whole: Demand | None = None,
    incumbent: Plan | None = None,
    rules: Rules | None = None,
    weights: Weights | None = None,
    excuse: bool = False,
    seconds: float | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Outcome:
    """Try the schemes (all of them unless told) and choose. See the module.

    `whole` is the log that the windows (training, validation, test) are parts of, each event in one of
    them; or the window itself where they are all the same. Without it rules are judged on the validation
    window. `seconds` is the budget of each scheme that takes one. The incumbent must number classes as the
    problem does.

    An event that is published where it may not be breaks its rule whatever the plan. With `excuse` that
    bars no plan: an overlay that runs must route on.

    Every plan that is priced has passed `check`. A scheme that refuses the problem, reaches a limit or
    makes a plan that does not pass becomes a row that says so. A spec that cannot be read is an
    `InputError` before anything is made.
    """
    names = list(SCHEMES) if specs is None else list(specs)
    asked = {with_budget(name, seconds): name for name in names}
    if incumbent is not None:
        _require_same_classes(incumbent.classes, problem.classes)
    demands = [problem.demand, validation, *([] if test is None else [test])]
    overlay, classes, access = problem.overlay, problem.classes, problem.access
    yardsticks = [Yardstick(overlay, classes, demand, access=access) for demand in demands]
    bench = _Bench(problem, yardsticks, whole, rules or Rules(), weights or Weights(), excuse)
    now = None if incumbent is None else bench.row(incumbent.scheme, incumbent)
    rows: list[SchemeRow] = []
    for spec, name in asked.items():
        shown = _within(progress, len(rows), len(asked), name)
        rows.append(replace(_tried(spec, bench, seed, shown), name=name))
    allowed = [row for row in (now, *rows) if row is not None and row.allowed]
    return Outcome(tuple(rows), min(allowed, key=lambda row: row.score, default=None), now)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What plans are held against."""

    problem: Problem
    yardsticks: list[Yardstick]
    whole: Demand | None
    rules: Rules
    weights: Weights
    excuse: bool

    def row(self, name: str, plan: Plan, seconds: float = 0.0) -> SchemeRow:
        """A plan priced and judged."""
        prices = [price(plan, each.demand, each) for each in self.yardsticks]
        train, validation, *further = prices
        made = row_of(plan, validation, self._judged(prices), self.rules, self.weights, excuse=self.excuse)
        return replace(made, name=name, train=train, test=further[0] if further else None, seconds=seconds)

    def _judged(self, prices: list[Price]) -> Price:
        """The price that rules are judged on."""
        if self.whole is None:
            return prices[1]
        apart = sum(part.volume.events for part in prices) == self.whole.events
        return together(self.whole, prices if apart else prices[:1])


def row_of(
    plan: Plan,
    priced: Price,
    whole: Price | None = None,
    rules: Rules | None = None,
    weights: Weights | None = None,
    *,
    excuse: bool = False,
) -> SchemeRow:
    """A plan by itself: its score, and the rules that it breaks on `whole` (else on what was priced)."""
    seen = priced if whole is None else whole
    found = judged(plan, seen, rules or Rules())
    missed = [UNDELIVERED] if seen.undelivered else []
    excused = [str(fault) for fault in found if excuse and fault.unavoidable]
    return SchemeRow(
        plan.scheme,
        plan,
        validation=priced,
        score=(weights or Weights()).score(priced),
        broken=(*missed, *(str(fault) for fault in found if str(fault) not in excused)),
        excused=tuple(excused),
    )


def _tried(spec: str, bench: _Bench, seed: int, progress: Progress) -> SchemeRow:
    began = perf_counter()
    progress(0.0, "plan")
    try:
        made = make_plan(spec, bench.problem, seed, progress)
        seconds = perf_counter() - began
        return bench.row(spec, check(made, bench.problem), seconds)
    except RamifyError as error:
        refused = error.late if isinstance(error, TooLateError) else ()
        return SchemeRow(spec, seconds=perf_counter() - began, reason=str(error), refused=refused)


def together(whole: Demand, parts: Sequence[Price]) -> Price:
    """The price of a log from those of its windows, without walking it again.

    Every event is in one window, so sums add up to those of the log to the bit. How long events took is
    left out.
    """
    assert sum(part.volume.events for part in parts) == whole.events, "windows are the parts of the log"

    def each(name: str) -> list[Any]:
        return [getattr(part, name) for part in parts]

    unknown = WeightedSpread(nan, nan, nan)
    return replace(
        parts[0],
        volume=Volume(whole.events, whole.seconds, whole.factor, whole.tag_filters),
        **{name: sum(each(name)) for name in _ADDED},
        **{name: np.bitwise_or.reduce(each(name)) for name in ("entered", "published", "wanted")},
        class_ms=np.maximum.reduce(each("class_ms")),
        hops=unknown,
        ms=unknown,
        given=None,
    )


_ADDED = (
    "messages",
    "payload",
    "wire",
    "leg_messages",
    "leg_payload",
    "matchings",
    "broker_duplicates",
    "link_duplicates",
    "visits",
    "waste",
    "undelivered",
    "deliveries",
)
"""The figures of a price that are sums over events."""


def with_budget(spec: str, seconds: float | None) -> str:
    """A spec with the budget, where the scheme takes one and the spec does not say."""
    name, scheme, params = scheme_from(spec)
    takes = "seconds" in {field.name for field in fields(scheme.params)}
    if seconds is None or not takes or "seconds=" in spec:
        return spec
    given = spec.partition(":")[2]
    if "=" in spec.partition(":")[0]:  # the short spelling of the main parameter
        given = f"{MAIN[name]}={getattr(params, MAIN[name])}"
    return f"{name}:{given}{',' if given else ''}seconds={seconds:g}"


def _within(progress: Progress, done: int, of: int, name: str) -> Progress:
    """Progress of one scheme as a part of the whole."""

    def shown(share: float, what: str) -> None:
        progress((done + share) / of, f"{name}: {what}")

    return shown


def _require_same_classes(old: Classes, new: Classes) -> None:
    """`PlanError` unless both number the classes that they share alike."""
    common = min(len(old), len(new))
    same = np.array_equal(old.broker[:common], new.broker[:common])
    theirs = new.class_of
    if not same or any(theirs.get(id_, k) != k for id_, k in old.class_of.items()):
        raise PlanError(
            "the two plans cannot be compared class by class:",
            ["they number classes differently. Plan both with the same classes"],
        )
