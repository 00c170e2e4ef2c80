"""The table of `ramify plan --measures`: what Cao and Singh measure, a row per scheme.

Owns its form. Figures are those of unseen events; ideal multicast stands last, since no plan is it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from ramify.cli.console import plain_table
from ramify.planning.choosing.weigh import SchemeRow
from ramify.planning.pricing.measures import measures

__all__ = ["NAME_WIDTH", "fitted", "measure_table"]

NAME_WIDTH = 20
_NARROW = 16
"""Beside nine figures, in eighty characters."""

_LEGEND = (
    "storage: parts of subscriptions per broker, and their share of all;\n"
    "matched: brokers that match an event, for schemes with one filtered tree an event;\n"
    "node, link: messages per 1,000 events, mean and largest; NRU: latency of all\n"
    "crossings over that of ideal multicast"
)


def measure_table(rows: Iterable[SchemeRow]) -> Table:
    """A row for each scheme that was priced."""
    table = plain_table(caption=_LEGEND, caption_justify="left")
    table.padding = (0, 1, 0, 0)
    table.add_column("scheme", no_wrap=True, width=_NARROW)
    for name in ("storage", "share", "matched", "node", "max", "link", "max", "NRU"):
        table.add_column(name, justify="right", no_wrap=True)
    ideal: Mapping[str, Any] = {}
    for row in rows:
        if row.test is not None:
            table.add_row(*_cells(row.name, measures(row.test).figures()))
            ideal = row.test.yardstick.ideal.figures()
    if ideal:
        table.add_row(*_cells("ideal multicast", {**ideal, "nru": 1.0}), style="italic")
    return table


def fitted(name: str, room: int) -> str:
    """A name in so many characters."""
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _cells(name: str, told: Mapping[str, Any]) -> list[str]:
    share, nru = told.get("storage_share"), told["nru"]
    stress = [f"{where}_stress_{what}" for where in ("node", "link") for what in ("mean", "max")]
    return [
        fitted(name, _NARROW),
        _count(told.get("storage_mean")),
        "-" if share is None else f"{100 * share:.0f} %",
        _count(told.get("processing")),
        *(_count(told[key]) for key in stress),
        "-" if nru is None else f"{nru:.3f}",
    ]


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
