"""A study: one log of events, all schemes, and an honest answer to "what would it save?".

Owns the split of a log into three windows (training to plan on, validation to choose on, test to report
on), the scaling to a month, and the comparison with what is run today. It reads no files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Grid
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.choosing.weigh import SchemeRow, weigh, with_budget
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.windows import Windows
from ramify.planning.plans.adoption import adopt
from ramify.planning.plans.check import check
from ramify.planning.plans.files import read_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.rules import Rules
from ramify.planning.pricing.weights import MonthlyWeights, Weights
from ramify.planning.schemes.catalog import SCHEMES, make_plan, scheme_from
from ramify.planning.schemes.scheme import Progress, silent
from ramify.planning.schemes.shared.grids import grid_for

__all__ = [
    "SHARES",
    "Comparison",
    "Study",
    "check_request",
    "compare",
    "grid_for_schemes",
    "grid_of",
    "prepare",
    "weights_for",
]

SHARES = (0.5, 0.25, 0.25)
"""Training, validation, test."""

FEWEST_EVENTS = 40
"""Below this nothing is held back: a handful of events would decide by chance."""


@dataclass(frozen=True, slots=True)
class Study:
    """A problem with its windows.

    `whole` is the log itself: rules are judged on all of it, because a rule is broken by a single event.
    `unknown` counts events whose publisher has no known broker.
    """

    problem: Problem
    validation: Demand
    test: Demand
    whole: Demand
    rules: Rules
    unknown: Mapping[str, int]
    events: int
    held_back: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the schemes came to.

    Attributes
    ----------
    rows         every scheme's, in the order tried
    today        the row of what is run today
    best         the cheapest plan that keeps every rule, today's among them; None when none does
    weights      what counted besides money, in the choice and in the saving
    """

    rows: tuple[SchemeRow, ...]
    today: SchemeRow
    best: SchemeRow | None
    weights: Weights

    @property
    def everything(self) -> tuple[SchemeRow, ...]:
        """All rows, today's among them, the cheapest on the validation window first."""
        return tuple(sorted((*self.rows, self.today), key=lambda row: row.score))

    @property
    def saving(self) -> float | None:
        """Share of what today counts that the best plan saves, on the test window.

        Below 0 when it costs more there. None without a best plan, 0 when today counts nothing.
        """
        if self.best is None or self.best.test is None or self.today.test is None:
            return None
        before, after = self.weights.score(self.today.test), self.weights.score(self.best.test)
        return (before - after) / before if before else 0.0

    @property
    def saving_per_month(self) -> float | None:
        """The same in money a month; None without a time span."""
        if self.saving is None or self.today.test is None or not self.today.test.per_month:
            return None
        return self.saving * self.weights.score(self.today.test) * self.today.test.per_month


def check_request(
    specs: Sequence[str] | None, today: str, sample: float = 1.0, hours: float | None = None
) -> None:
    """Refuse what can be seen to be wrong before any event is read. Raises `InputError`."""
    _check_scale(sample, hours)
    if specs is not None and not specs:
        raise InputError("no scheme is named. Choose some of `ramify list`, or auto for all.")
    for spec in specs or ():
        if spec != "auto":
            scheme_from(spec)
    if _is_file(today):
        read_plan(today)
    else:
        scheme_from(today)


def prepare(
    overlay: Overlay,
    classes: Classes,
    windows: Windows,
    attachments: Mapping[str, str],
    *,
    publishers: Iterable[str] | None = None,
    advertisements: Mapping[int, Sequence[Filter]] | None = None,
    rules: Rules | None = None,
    sample: float = 1.0,
    hours: float | None = None,
    grid: Grid | None = None,
) -> Study:
    """A study of what was counted: `windows` are training, validation and test (`SHARES`).

    `sample` is the share of all published events that the log holds; `hours` the time it spans, where the
    events' own times do not tell. The events must have been held against the rules' tags, and counted with
    the grid (`grid_of`) where one is given. `InputError` when there is no usable event.
    """
    _check_scale(sample, hours)
    whole = windows.whole
    if not whole.events:
        unknown = sum(whole.unknown.values())
        raise InputError(
            "the log has no event to plan for"
            + (f": no broker is known for the publishers of its {unknown:,} events." if unknown else ".")
            + " Name the publishers' brokers, or give another log."
        )
    seconds = hours * 3600 if hours is not None else whole.seconds
    held_back = whole.events >= FEWEST_EVENTS and all(window.events for window in windows.parts)
    chosen = windows.parts if held_back else (whole,) * len(windows.parts)
    training, validation, test = (
        replace(window, seconds=seconds, factor=whole.factor * whole.events / window.events / sample)
        for window in chosen
    )
    problem = Problem.of(
        overlay,
        classes,
        training,
        attachments,
        publishers=publishers,
        advertisements=advertisements,
        grid=grid,
    )
    log = replace(whole, seconds=seconds, factor=whole.factor / sample)
    return Study(problem, validation, test, log, rules or Rules(), whole.unknown, whole.events, held_back)


def grid_of(specs: Sequence[str] | None, today: str, classes: Classes) -> Grid | None:
    """The grid that events must be counted with for these schemes; None where none of them uses cells.

    That of today's plan where it is a file with one: plans can only be compared on the same cells. Else the
    attributes that the schemes name, together, or those that the filters suggest.
    """
    if _is_file(today):
        planned = read_plan(today).grid
        if planned is not None:
            return planned
    asked = [] if _is_file(today) else [today]
    for spec in ["auto"] if specs is None else specs:
        asked += list(SCHEMES) if spec == "auto" else [spec]
    return grid_for_schemes(asked, classes)


def grid_for_schemes(specs: Iterable[str], classes: Classes) -> Grid | None:
    """A grid for the schemes among these that divide the content space; None where none does.

    Over the attributes that they name, together, or over those that the filters suggest. `InputError` for
    an attribute that no filter bounds, for a spec that cannot be read.
    """
    dividing = [params for _, scheme, params in map(scheme_from, dict.fromkeys(specs)) if scheme.cells]
    named = [path for params in dividing if hasattr(params, "paths") for path in params.paths()]
    return grid_for(classes, named) if dividing else None


def compare(
    study: Study,
    specs: Sequence[str] | None = None,
    *,
    today: str = "mirror-all",
    weights: Weights | None = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Comparison:
    """Make, check and price the plans of all schemes, and of what is run today (a scheme, or a plan file).

    `seconds` is the budget of each scheme that takes one. Every plan that is priced has passed `check`.
    """
    check_request(specs, today)
    counted = weights or Weights()
    name, incumbent = _today(study, today, seconds, seed)
    asked = [
        spec
        for each in (["auto"] if specs is None else specs)
        for spec in (SCHEMES if each == "auto" else [each])
        if spec != today
    ]
    outcome = weigh(
        study.problem,
        study.validation,
        study.test,
        asked,
        whole=study.whole,
        incumbent=incumbent,
        rules=study.rules,
        weights=counted,
        seconds=seconds,
        seed=seed,
        progress=progress,
    )
    assert outcome.incumbent is not None
    now = replace(outcome.incumbent, name=name)
    best = now if outcome.chosen is outcome.incumbent else outcome.chosen
    return Comparison(outcome.rows, now, best, counted)


def _check_scale(sample: float, hours: float | None) -> None:
    if not 0 < sample <= 1:
        raise InputError(f"sample = {sample}. Allowed: above 0, at most 1: the share of events in the log.")
    if hours is not None and not 0 < hours < np.inf:
        raise InputError(f"hours = {hours}. Allowed: a number above 0.")


def weights_for(study: Study, per_filter: float, per_million_matchings: float) -> Weights:
    """Weights on the validation window, from money a month for a stored filter and for a million matchings.

    `InputError` for a price a month when the time that the log spans is not known.
    """
    return MonthlyWeights(per_filter, per_million_matchings).on(study.validation)


def _today(study: Study, today: str, seconds: float | None, seed: int) -> tuple[str, Plan]:
    """What is run today, with a name for people."""
    if _is_file(today):
        plan = check(adopt(read_plan(today), study.problem), study.problem)
        return f"today ({plan.scheme}, {Path(today).name})", plan
    return today, make_plan(with_budget(today, seconds), study.problem, seed)


def _is_file(today: str) -> bool:
    return today.endswith(".json") or Path(today).is_file()
