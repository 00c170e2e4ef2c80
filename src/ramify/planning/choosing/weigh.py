"""Auto: make the plan of every scheme, choose the cheapest that keeps the rules, report them all honestly.

Owns the choice. Plans are made on the training window (`problem.demand`), chosen on a validation window,
and reported on a test window that neither planning nor choosing has seen: what was chosen for being cheap
on one window looks cheaper there than it is.

The score of a plan is its money on the validation window, headers included, plus what the user says that
stored filters and matchings cost. Of equal scores the scheme that was tried first wins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from time import perf_counter
from typing import TypeAlias

from ramify.errors import InputError, RamifyError
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.lateness import LateSubscription, TooLateError, late_subscriptions
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import Yardstick
from ramify.planning.pricing.price import Price, price
from ramify.planning.schemes.catalog import SCHEMES, make_plan, scheme_from
from ramify.planning.schemes.scheme import Progress, silent

__all__ = ["UNDELIVERED", "Outcome", "Rules", "SchemeRow", "Weights", "auto", "no_rules"]

Rules: TypeAlias = Callable[[Price], list[str]]
"""The names of the rules that a priced plan breaks."""

UNDELIVERED = "undelivered"
"""The rule that needs no asking for: every event reaches everyone who wants it."""


def no_rules(priced: Price) -> list[str]:
    """Nothing is asked of a plan."""
    return []


@dataclass(frozen=True, slots=True)
class Weights:
    """What else counts besides the bytes on the wire, in the same money, for the validation window.

    per_filter     for each filter that a broker stores, summed over brokers
    per_matching   for each time that a broker matches an event
    """

    per_filter: float = 0.0
    per_matching: float = 0.0

    def __post_init__(self) -> None:
        for name in ("per_filter", "per_matching"):
            value = getattr(self, name)
            if not (value >= 0 and isfinite(value)):
                raise InputError(f"{name} = {value!r}. Allowed: 0 or more.")

    def score(self, priced: Price) -> float:
        """What a plan counts. State is looked at only where it has a price."""
        total = priced.money
        if self.per_filter:
            total += self.per_filter * float(priced.state.filters.sum())
        if self.per_matching:
            total += self.per_matching * priced.matchings
        return total


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """What became of one scheme.

    Attributes
    ----------
    name         the spec it was asked for by
    plan         None when it could not be made; then there are no prices either
    score        on the validation window; inf without a plan
    seconds      that it took to make the plan
    broken       the rules that it breaks on the validation window
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

    @property
    def late(self) -> tuple[LateSubscription, ...]:
        """Subscriptions that a plan within latency bounds serves, and later than they allow."""
        return () if self.plan is None else late_subscriptions(self.plan)

    @property
    def allowed(self) -> bool:
        """Whether it may be chosen."""
        return self.validation is not None and not self.broken


@dataclass(frozen=True, slots=True)
class Outcome:
    """All rows in the order tried, and the chosen one: None when no plan keeps every rule."""

    rows: tuple[SchemeRow, ...]
    chosen: SchemeRow | None

    @property
    def reasons(self) -> dict[str, str]:
        """Per scheme that may not be chosen, why."""
        return {
            row.name: row.reason or f"breaks {', '.join(row.broken)}"
            for row in self.rows
            if not row.allowed
        }


def auto(
    problem: Problem,
    validation: Demand,
    test: Demand | None = None,
    specs: Sequence[str] | None = None,
    *,
    weights: Weights | None = None,
    seed: int = 0,
    progress: Progress = silent,
    keeps: Rules = no_rules,
) -> Outcome:
    """Try the schemes (all of them unless told) and choose. See the module.

    A scheme that refuses the problem or reaches a limit becomes a row that says so. A spec that cannot be
    read is an `InputError` before anything is made.
    """
    names = list(SCHEMES) if specs is None else list(specs)
    for name in names:
        scheme_from(name)
    demands = [problem.demand, validation, *([] if test is None else [test])]
    overlay, classes, access = problem.overlay, problem.classes, problem.access
    yardsticks = [Yardstick(overlay, classes, demand, access=access) for demand in demands]
    rows: list[SchemeRow] = []
    for name in names:
        shown = _within(progress, len(rows), len(names), name)
        rows.append(_tried(name, problem, yardsticks, weights or Weights(), seed, shown, keeps))
    allowed = [row for row in rows if row.allowed]
    return Outcome(tuple(rows), min(allowed, key=lambda row: row.score, default=None))


def _tried(
    name: str,
    problem: Problem,
    yardsticks: list[Yardstick],
    weights: Weights,
    seed: int,
    progress: Progress,
    keeps: Rules,
) -> SchemeRow:
    began = perf_counter()
    progress(0.0, "plan")
    try:
        made = make_plan(name, problem, seed, progress)
        seconds = perf_counter() - began
        prices = [price(made, each.demand, each) for each in yardsticks]
    except RamifyError as error:
        refused = error.late if isinstance(error, TooLateError) else ()
        return SchemeRow(name, seconds=perf_counter() - began, reason=str(error), refused=refused)
    train, judged, *further = prices
    broken = keeps(judged)
    if judged.undelivered and UNDELIVERED not in broken:
        broken = [UNDELIVERED, *broken]
    return SchemeRow(
        name,
        made,
        train,
        judged,
        further[0] if further else None,
        score=weights.score(judged),
        seconds=seconds,
        broken=tuple(broken),
    )


def _within(progress: Progress, done: int, of: int, name: str) -> Progress:
    """Progress of one scheme as a part of the whole."""

    def shown(share: float, what: str) -> None:
        progress((done + share) / of, f"{name}: {what}")

    return shown
