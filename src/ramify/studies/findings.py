"""What a comparison of schemes found: a row per scheme, the choice, and what it saves against today.

Owns `Findings` and `Candidate`: the figures that people ask for, as a table, a frame, JSON and HTML. What
is compared and chosen, and how, is `planning.choosing`'s.
"""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ramify.planning.choosing.study import Comparison, Study
from ramify.planning.choosing.weigh import SchemeRow
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.measures import measures
from ramify.planning.pricing.price import Price
from ramify.studies.rejects import Rejects, several
from ramify.studies.text_tables import html_table, text_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Candidate", "Findings"]

_REASONS_SHOWN = 3
_REASON_WIDTH = 60


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Candidate:
    """The result of one scheme. If it could not make a plan, the plan and its prices are None.

    Attributes
    ----------
    row         prices on all three windows, and how long planning took
    today       what it is held against
    """

    row: SchemeRow
    today: SchemeRow

    @property
    def name(self) -> str:
        """The spec that it was asked for by."""
        return self.row.name

    @property
    def plan(self) -> Plan | None:
        """Its plan: `plan.save("plan.json")`."""
        return self.row.plan

    @property
    def price(self) -> Price | None:
        """What the plan does with events that were used neither to plan nor to choose."""
        return self.row.test

    @property
    def allowed(self) -> bool:
        """Whether it has a plan that keeps every rule."""
        return self.row.allowed

    @property
    def broken(self) -> tuple[str, ...]:
        """The rules that its plan breaks on any event of the log."""
        return tuple(self.row.broken)

    @property
    def reason(self) -> str | None:
        """Why there is no plan."""
        return self.row.reason

    @property
    def money_per_month(self) -> float | None:
        """Money a month on unseen events, headers included; None where the log spans no time."""
        return None if self.price is None else self.price.money_per_month

    @property
    def money_per_thousand(self) -> float | None:
        """Money for 1,000 unseen events, headers included."""
        return None if self.price is None else self.price.money * 1_000 / self.price.volume.events

    @property
    def saving(self) -> float | None:
        """The share of today's money that it saves; below 0 where it costs more."""
        if self.price is None or self.today.test is None:
            return None
        before = self.today.test.money
        return (before - self.price.money) / before if before else 0.0

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it may not be chosen: rules that it breaks, or the reason that there is no plan."""
        return self.broken if self.reason is None else (self.reason,)

    def __repr__(self) -> str:
        if self.price is None:
            return f"{self.name}: no plan ({self.reason})"
        month = self.money_per_month
        money = f"{_amount(self.money_per_thousand)} per 1,000 events"
        money = money if month is None else f"{_amount(month)} a month"
        said = f"{self.name}: {money}, gap {self.price.gap:.3f}, p99 {self.price.ms.p99:,.0f} ms"
        return f"{said}; breaks {'; '.join(self.broken)}" if self.broken else said


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """The result of comparing schemes on a log; `print` it for the table, or take `best.plan`.

    Attributes
    ----------
    study          the windows that were planned on, chosen by and reported on
    comparison     all prices
    rejected       what of the log could not be used
    half_life_s    of events in planning, where they decayed

    >>> import ramify
    >>> log = ramify.read_log(workload="demo:events=400,subscriptions=20")
    >>> found = ramify.study(log).compare(["mst", "explicit"])
    >>> found.best.plan.save("plan.json")
    >>> print(found.headline)  # doctest: +ELLIPSIS
    Saves $... a month (... %) against mirror-all: explicit.
    """

    study: Study
    comparison: Comparison
    rejected: Rejects = field(default_factory=Rejects)
    half_life_s: float | None = None

    @cached_property
    def rows(self) -> tuple[Candidate, ...]:
        """A candidate per scheme, with what is run today; the cheapest by the choice first."""
        return tuple(Candidate(row, self.comparison.today) for row in self.comparison.everything)

    @property
    def best(self) -> Candidate | None:
        """The cheapest plan that keeps every rule; None where none does."""
        row = self.comparison.best
        return None if row is None else Candidate(row, self.comparison.today)

    @property
    def today(self) -> Candidate:
        """What is run now."""
        return Candidate(self.comparison.today, self.comparison.today)

    def __getitem__(self, name: str) -> Candidate:
        """The candidate of a spec."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} was not compared. Compared: {', '.join(row.name for row in self.rows)}.")

    @property
    def saving(self) -> float | None:
        """The share of what today counts that the best plan saves on unseen events; None without one."""
        return self.comparison.saving

    @property
    def saving_per_month(self) -> float | None:
        """The same in money a month; None where the log spans no time."""
        return self.comparison.saving_per_month

    @property
    def headline(self) -> str:
        """One sentence: the saving a month against today."""
        best, today = self.best, self.today.name
        if best is None:
            return "No plan keeps every rule."
        if best.name == today:
            return f"Nothing is cheaper than what you run today ({today})."
        saving, share = self.saving_per_month, self.saving
        assert share is not None
        against = f"against {today}: {best.name}."
        verb, more = ("Saves", "") if share >= 0 else ("Costs", " more on unseen events")
        percent = f"{100 * abs(share):.1f} %"
        if saving is None:
            return f"{verb} {percent}{more} {against} (Give hours, or --hours, for money a month.)"
        return f"{verb} {_amount(abs(saving))} a month ({percent}){more} {against}"

    @property
    def windows_line(self) -> str:
        """One sentence: how many events were planned on, chosen by and reported on."""
        study = self.study
        if not study.held_back:
            only = several(study.events, "event")
            return f"Only {only}: too few to hold any back, so figures are of the events planned on."
        return (
            f"{study.events:,} events: planned on {study.problem.demand.events:,}, chosen on "
            f"{study.validation.events:,}, reported on {study.test.events:,} that neither has seen."
        )

    def discarded(self) -> list[str]:
        """Why schemes may not be chosen: each reason once, with the schemes that it holds for."""
        why: dict[str, list[str]] = {}
        for row in self.rows:
            if not row.allowed:
                for reason in row.faults[:_REASONS_SHOWN]:
                    why.setdefault(reason, []).append(row.name)
        return [f"{', '.join(names)}: {reason}" for reason, names in why.items()]

    def late(self) -> list[str]:
        """Per scheme whose trees bound latency, the subscriptions that may get events too late."""
        lines = []
        for row in self.rows:
            late = row.row.late
            if late:
                more = len(late) - _REASONS_SHOWN
                shown = "; ".join(map(str, late[:_REASONS_SHOWN]))
                shown += f"; and {more} more" if more > 0 else ""
                lines.append(f"{row.name}: {len(late)} of its subscriptions: {shown}")
        return lines

    def to_frame(self) -> "pd.DataFrame":
        """A row per scheme, the cheapest by the choice first. All figures are of unseen events.

        scheme               the spec
        chosen, today        whether it is the best plan; whether it is what is run now
        allowed              whether it keeps every rule
        money_per_month      money, headers included, over 30 days; NaN where the log spans no time
        money_per_thousand   the same for 1,000 events
        saving               the share of today's money that it saves, below 0 where it costs more
        gap                  cost over what no plan can beat, 1 at best
        ms_mean, ms_p99      latency of deliveries, milliseconds
        messages             events that crossed links, each crossing counted
        wire_bytes           bytes that crossed links, headers included
        channels             trees, or other ways that events are sent by
        filters_mean         filters stored at a broker, mean
        broken               rules that it breaks, separated by semicolons
        reason               why there is no plan
        plan_seconds         time that planning took
        """
        import pandas as pd

        return pd.DataFrame([self._record(row) for row in self.rows], columns=list(_COLUMNS))

    def _record(self, row: Candidate) -> dict[str, Any]:
        told = {} if row.price is None else row.price.figures()
        best = self.best
        return {
            "scheme": row.name,
            "chosen": best is not None and row.name == best.name,
            "today": row.name == self.today.name,
            "allowed": row.allowed,
            "money_per_month": row.money_per_month,
            "money_per_thousand": row.money_per_thousand,
            "saving": row.saving,
            **{name: told.get(name) for name in _FIGURES},
            "broken": "; ".join(row.broken),
            "reason": row.reason,
            "plan_seconds": row.row.seconds,
        }

    def figures(self) -> dict[str, Any]:
        """Everything, as plain values for JSON: the choice, the references, all figures of every scheme."""
        train, test = self.comparison.today.train, self.comparison.today.test
        assert train is not None
        assert test is not None
        windows, bound = {"train": train, "test": test}, test.yardstick.bound
        return {
            "headline": self.headline,
            "saving_per_month": self.saving_per_month,
            "saving": self.saving,
            "today": self.today.name,
            "chosen": None if self.best is None else self.best.name,
            "events": self.study.events,
            "held_back": self.study.held_back,
            "overlap_of_tables": self.study.problem.overlap is not None,
            "unknown_publishers": sum(self.study.unknown.values()),
            "bound": {"value": bound.value, "low": bound.low, "exact": bound.exact},
            "references": {
                "opt": {name: {"cost": priced.yardstick.opt} for name, priced in windows.items()},
                "ideal_multicast": {
                    name: dict(priced.yardstick.ideal.figures()) for name, priced in windows.items()
                },
            },
            "schemes": {row.name: _figures(row.row) for row in self.rows},
            **({} if self.half_life_s is None else {"half_life_s": self.half_life_s}),
        }

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        monthly = self.today.money_per_month is not None
        columns = ["scheme", "$ a month" if monthly else "$ per 1,000", "saves", "gap", "p99 ms", "trees"]
        return [*columns, "breaks"], [self._row_cells(row, monthly) for row in self.rows]

    def _row_cells(self, row: Candidate, monthly: bool) -> list[str]:
        name = f"{row.name} (today)" if row.name == self.today.name else row.name
        faults = "; ".join(row.faults).replace("\n", " ")
        faults = faults if len(faults) <= _REASON_WIDTH else f"{faults[: _REASON_WIDTH - 1]}…"
        if row.price is None or row.plan is None:
            return [name, "-", "-", "-", "-", "-", faults]
        money = row.money_per_month if monthly else row.money_per_thousand
        saving = "" if row.saving is None or row.name == self.today.name else f"{100 * row.saving:.1f} %"
        return [
            name,
            f"{money:,.2f}" if money is not None and (money >= 0.01 or not money) else f"{money:.2g}",
            saving,
            f"{row.price.gap:.3f}",
            f"{row.price.ms.p99:,.0f}",
            f"{len(row.plan.channels):,}",
            faults,
        ]

    def _notes(self) -> list[str]:
        return [self.windows_line, *([self.rejected.summary] if self.rejected else [])]

    def __repr__(self) -> str:
        return "\n".join([self.headline, text_table(*self._cells()), *self._notes()])

    def _repr_html_(self) -> str:
        columns, rows = self._cells()
        best = self.best
        bold = -1 if best is None else [row.name for row in self.rows].index(best.name)
        notes = [*self._notes(), *self.rejected.lines()]
        return html_table(self.headline, columns, rows, notes, bold)


_FIGURES = ("gap", "ms_mean", "ms_p99", "messages", "wire_bytes", "channels", "filters_mean")
_COLUMNS = (
    *("scheme", "chosen", "today", "allowed", "money_per_month", "money_per_thousand", "saving"),
    *_FIGURES,
    *("broken", "reason", "plan_seconds"),
)


def _figures(row: SchemeRow) -> dict[str, Any]:
    return {
        "allowed": row.allowed,
        "broken": list(row.broken),
        "reason": row.reason,
        "refused": [asdict(each) for each in row.refused],
        "late": [asdict(each) for each in row.late],
        "seconds": row.seconds,
        "settings": None if row.plan is None else dict(row.plan.settings),
        "train": None if row.train is None else dict(row.train.figures()),
        "test": None if row.test is None else dict(row.test.figures()),
        "measures": None if row.test is None else dict(measures(row.test).figures()),
    }


def _amount(money: float | None) -> str:
    if money is None:
        return "-"
    return f"${money:,.2f}" if money >= 0.01 or not money else "less than $0.01"
