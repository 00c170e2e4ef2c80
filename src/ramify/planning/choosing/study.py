"""A study: one log of events, all schemes, and an honest answer to "what would it save?".

Owns the split of a log into three windows (training to plan on, validation to choose on, test to report
on), the scaling to a month, and the comparison with what is run today. It reads no files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Grid
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.choosing.weigh import UNDELIVERED, SchemeRow, Weights, auto
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.windows import Windows
from ramify.planning.plans.adoption import adopt
from ramify.planning.plans.check import check
from ramify.planning.plans.files import read_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.bound import Yardstick
from ramify.planning.pricing.price import MONTH_SECONDS, Price, Volume, price
from ramify.planning.pricing.rules import Rules, broken
from ramify.planning.pricing.sums import WeightedSpread
from ramify.planning.schemes.catalog import MAIN, SCHEMES, make_plan, scheme_from
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
    now = _judged(study, _today(study, today, counted, seconds, seed))
    asked = {
        _with_budget(spec, seconds): spec
        for name in (["auto"] if specs is None else specs)
        for spec in (SCHEMES if name == "auto" else [name])
        if spec != today
    }
    outcome = auto(
        study.problem,
        study.validation,
        study.test,
        list(asked),
        weights=counted,
        seed=seed,
        progress=progress,
    )
    rows = tuple(_judged(study, _beside(now, replace(row, name=asked[row.name]))) for row in outcome.rows)
    best = min((row for row in (now, *rows) if row.allowed), key=lambda row: row.score, default=None)
    return Comparison(rows, now, best, counted)


def _check_scale(sample: float, hours: float | None) -> None:
    if not 0 < sample <= 1:
        raise InputError(f"sample = {sample}. Allowed: above 0, at most 1: the share of events in the log.")
    if hours is not None and not 0 < hours < np.inf:
        raise InputError(f"hours = {hours}. Allowed: a number above 0.")


def _judged(study: Study, row: SchemeRow) -> SchemeRow:
    """The row with the rules that its plan breaks on any event of the log. The plan is proved first."""
    if row.plan is None or row.train is None or row.validation is None or row.test is None:
        return row
    check(row.plan, study.problem)
    parts = [row.train, row.validation, row.test]
    everything = _together(study.whole, parts if study.held_back else parts[:1])
    missed = [UNDELIVERED] if everything.undelivered else []
    return replace(row, broken=(*missed, *(str(fault) for fault in broken(everything, study.rules))))


def _together(whole: Demand, parts: Sequence[Price]) -> Price:
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


def weights_for(study: Study, per_filter: float, per_million_matchings: float) -> Weights:
    """Weights on the validation window, from money a month for a stored filter and for a million matchings.

    `InputError` for a price a month when the time that the log spans is not known.
    """
    if per_filter and not study.validation.seconds:
        raise InputError(
            "a filter has a price a month, but the log spans no time. Say how long it was: --hours."
        )
    windows = study.validation.factor * MONTH_SECONDS / (study.validation.seconds or MONTH_SECONDS)
    return Weights(per_filter=per_filter / windows, per_matching=per_million_matchings / 1e6)


def _with_budget(spec: str, seconds: float | None) -> str:
    """A spec with the budget, where the scheme takes one and the spec does not say."""
    name, scheme, params = scheme_from(spec)
    takes = "seconds" in {field.name for field in fields(scheme.params)}
    if seconds is None or not takes or "seconds=" in spec:
        return spec
    given = spec.partition(":")[2]
    if "=" in spec.partition(":")[0]:  # the short spelling of the main parameter
        given = f"{MAIN[name]}={getattr(params, MAIN[name])}"
    return f"{name}:{given}{',' if given else ''}seconds={seconds:g}"


def _today(study: Study, today: str, weights: Weights, seconds: float | None, seed: int) -> SchemeRow:
    if _is_file(today):
        plan = check(adopt(read_plan(today), study.problem), study.problem)
        name = f"today ({plan.scheme}, {Path(today).name})"
    else:
        plan, name = make_plan(_with_budget(today, seconds), study.problem, seed), today
    train, judged, shown = (
        price(
            plan,
            window,
            Yardstick(study.problem.overlay, study.problem.classes, window, access=study.problem.access),
        )
        for window in (study.problem.demand, study.validation, study.test)
    )
    return SchemeRow(name, plan, train, judged, shown, score=weights.score(judged))


def _beside(now: SchemeRow, row: SchemeRow) -> SchemeRow:
    """The row with the references of another on the same windows, so that they are computed once."""
    if row.train is None or row.validation is None or row.test is None:
        return row
    assert now.train is not None
    assert now.validation is not None
    assert now.test is not None
    return replace(
        row,
        train=replace(row.train, yardstick=now.train.yardstick),
        validation=replace(row.validation, yardstick=now.validation.yardstick),
        test=replace(row.test, yardstick=now.test.yardstick),
    )


def _is_file(today: str) -> bool:
    return today.endswith(".json") or Path(today).is_file()
