"""A study: one log of events, all schemes, and an honest answer to "what would it save?".

Owns the split of a log into three windows (training to plan on, validation to choose on, test to report
on), the scaling to a month, and the comparison with what is run today. It reads no files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ramify.content.filters import Filter
from ramify.errors import InputError
from ramify.network.overlay import Overlay
from ramify.planning.auto import Row, Weights, auto
from ramify.planning.catalog import SCHEMES, make_plan, scheme_from
from ramify.planning.check import check
from ramify.planning.classes import Classes
from ramify.planning.constraints import Rules, broken
from ramify.planning.demand import Demand, Tally, split_rows
from ramify.planning.plan import Plan
from ramify.planning.plan_files import read_plan
from ramify.planning.pricing import Price, price
from ramify.planning.problem import Problem
from ramify.planning.scheme import Progress, silent
from ramify.planning.yardstick import Yardstick

__all__ = ["DEFAULT_SHARES", "Comparison", "Study", "compare", "prepare"]

DEFAULT_SHARES = (0.5, 0.25, 0.25)
"""Training, validation, test."""

FEWEST_EVENTS = 40
"""Below this nothing is held back: a handful of events would decide by chance."""


@dataclass(frozen=True, slots=True)
class Study:
    """A problem with its windows. `unknown` counts events whose publisher has no known broker."""

    problem: Problem
    validation: Demand
    test: Demand
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
    """

    rows: tuple[Row, ...]
    today: Row
    best: Row | None

    @property
    def everything(self) -> tuple[Row, ...]:
        """All rows, today's among them, the cheapest on the validation window first."""
        return tuple(sorted((*self.rows, self.today), key=lambda row: row.score))

    @property
    def saving(self) -> float | None:
        """Share of today's money that the best plan saves, on the test window; None without a price."""
        before, after = self._money()
        if before is None or after is None:
            return None
        return (before - after) / before if before else 0.0

    @property
    def saving_per_month(self) -> float | None:
        """The same in money a month; None without a time span."""
        if self.best is None or self.best.test is None or self.today.test is None:
            return None
        before, after = self.today.test.money_per_month, self.best.test.money_per_month
        return None if before is None or after is None else before - after

    def _money(self) -> tuple[float | None, float | None]:
        before = self.today.test.money if self.today.test is not None else None
        after = self.best.test.money if self.best is not None and self.best.test is not None else None
        return before, after


def prepare(
    overlay: Overlay,
    classes: Classes,
    batches: Iterable[pa.RecordBatch],
    attachments: Mapping[str, str],
    *,
    publishers: Iterable[str] | None = None,
    advertisements: Mapping[int, Sequence[Filter]] | None = None,
    rules: Rules | None = None,
    sample: float = 1.0,
    hours: float | None = None,
    shares: Sequence[float] = DEFAULT_SHARES,
    seed: int = 0,
) -> Study:
    """Tally a log into three windows. One pass, memory for the distinct patterns only.

    `sample` is the share of all published events that the log holds; `hours` the time it spans, where the
    events' own times do not tell. `InputError` when the log has no usable event.
    """
    if not 0 < sample <= 1:
        raise InputError(f"sample = {sample}. Allowed: above 0, at most 1: the share of events in the log.")
    if hours is not None and not hours > 0:
        raise InputError(f"hours = {hours}. Allowed: above 0.")
    kept = rules or Rules()
    tags = kept.tags(classes.schema)
    counted = Tally(classes, overlay, attachments, tags=tags, splits=len(shares))
    rng = np.random.default_rng([seed, 17])
    for batch in batches:
        counted.add(batch, split_rows(batch.num_rows, shares, rng))
    windows = counted.demands()
    whole = counted.together()
    if not whole.events:
        unknown = sum(whole.unknown.values())
        raise InputError(
            "the log has no event to plan for"
            + (f": no broker is known for the publishers of its {unknown:,} events." if unknown else ".")
            + " Name the publishers' brokers, or give another log."
        )
    seconds = hours * 3600 if hours is not None else whole.seconds
    held_back = whole.events >= FEWEST_EVENTS and all(window.events for window in windows)
    chosen = windows if held_back else (whole,) * len(shares)
    scaled = [
        replace(window, seconds=seconds, factor=whole.events / window.events / sample) for window in chosen
    ]
    problem = Problem.of(
        overlay, classes, scaled[0], attachments, publishers=publishers, advertisements=advertisements
    )
    return Study(problem, scaled[1], scaled[2], kept, whole.unknown, whole.events, held_back)


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
    keeps = _keeper(study)
    now = _today(study, today, weights or Weights(), seed, keeps)
    asked = {
        _with_budget(spec, seconds): spec
        for spec in (_defaults() if specs is None or list(specs) == ["auto"] else specs)
        if spec != today
    }
    outcome = auto(
        study.problem,
        study.validation,
        study.test,
        list(asked),
        weights=weights,
        seed=seed,
        progress=progress,
        keeps=keeps,
    )
    rows = tuple(replace(row, name=asked[row.name]) for row in outcome.rows)
    best = min((row for row in (now, *rows) if row.allowed), key=lambda row: row.score, default=None)
    return Comparison(rows, now, best)


def _keeper(study: Study) -> Callable[[Price], list[str]]:
    """The rules that a plan breaks on a window. The plan's form is proved first."""

    def keeps(priced: Price) -> list[str]:
        check(priced.plan, study.problem)
        return [str(fault) for fault in broken(priced, study.rules)]

    return keeps


def _defaults() -> list[str]:
    return [name for name, scheme in SCHEMES.items() if not scheme.slow and name != "hub"]


def _with_budget(spec: str, seconds: float | None) -> str:
    """A spec with the budget, where the scheme takes one and the spec does not say."""
    _, scheme, _ = scheme_from(spec)
    takes = "seconds" in {field.name for field in fields(scheme.params)}
    if seconds is None or not takes or "seconds=" in spec:
        return spec
    return f"{spec}{',' if ':' in spec else ':'}seconds={seconds:g}"


def _today(
    study: Study, today: str, weights: Weights, seed: int, keeps: Callable[[Price], list[str]]
) -> Row:
    plan = _todays_plan(study, today, seed)
    windows = (study.problem.demand, study.validation, study.test)
    prices = [
        price(plan, window, Yardstick(study.problem.overlay, study.problem.classes, window))
        for window in windows
    ]
    train, judged, shown = prices
    name = today if not _is_file(today) else f"today ({plan.scheme}, {Path(today).name})"
    return Row(name, plan, train, judged, shown, score=weights.score(judged), broken=tuple(keeps(judged)))


def _todays_plan(study: Study, today: str, seed: int) -> Plan:
    if _is_file(today):
        return check(read_plan(today), study.problem)
    return make_plan(today, study.problem, seed)


def _is_file(today: str) -> bool:
    return today.endswith(".json") or Path(today).is_file()
