"""What `ramify status` prints: leader, rules, epochs, a row per broker, trouble, suspensions, decisions.

Owns its form. Where the place is narrow the names of brokers are shortened, numbers never; what does not go
to a terminal has all the width that it needs.
"""

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ramify.cli.console import out, say
from ramify.overlay.live.host.overview import BrokerView, Overview

__all__ = ["rule_lines", "show", "table"]

_COLUMNS = ("broker", "state", "epoch", "in", "routed", "sent", "MB", "handed", "bad", "again", "lag")
_LEGEND = (
    "in: events published here; routed: those and events from neighbours; sent: over\n"
    "links, MB of payload; handed: to subscriptions; bad: rejected; again: redelivered\n"
    "and dropped; lag: waiting messages"
)
_STYLES = {"routing": "", "starting": "yellow", "catching up": "yellow"}
_SHORTEST = 9
_WAITING_SHOWN = 3


def show(view: Overview) -> None:
    """Print it all."""
    say(_first_line(view))
    if view.rules is not None:
        for line in rule_lines(view.rules):
            say(line)
    for epoch in view.epochs:
        waits = "; ".join(f"{name} {why}" for name, why in list(epoch.waiting.items())[:_WAITING_SHOWN])
        text = f"epoch {epoch.epoch}.{epoch.revision} {epoch.state}"
        say(text + (f", waiting for {waits}" if waits else ""))
    out.print(table(view, out.width if out.is_terminal else None), soft_wrap=True)
    for broker in view.brokers:
        for line in _remarks(broker):
            out.print(f"{broker.name}: {line}", soft_wrap=True, markup=False, highlight=False)
    for decided in view.decisions:
        at = decided.get("at")
        when = time.strftime("%H:%M:%S", time.localtime(at if isinstance(at, float) else 0))
        say(f"{when} {decided.get('action')}: {decided.get('reason')}")


def _first_line(view: Overview) -> str:
    if view.matchmaking:
        said = [broker.status for broker in view.brokers if broker.status is not None]
        stored, channels = (sum(getattr(s, name) for s in said) for name in ("descriptors", "channels"))
        return (
            f"no coordinator: matches over {view.matchmaking} trees; {view.clients} clients, "
            f"{stored:,} descriptors stored, {channels:,} entries of data channels"
        )
    leader = view.leader or "none: plans and subscriptions stay as they are until a coordinator runs"
    return f"leader {leader}; {view.clients} clients"


def _remarks(broker: BrokerView) -> list[str]:
    """What a broker says of itself beside its figures, also while it routes."""
    status = broker.status
    found = [f"{broker.state}: {broker.why}"] if broker.why else []
    if status is None:
        return found
    found += [f"suspended {name} ({why})" for name, why in status.suspended.items()]
    if status.trouble:
        found.append(f"trouble: {status.trouble}")
    for alarm in status.alarms:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(alarm.at))
        found.append(f"lost, {when}: {alarm.what}")
    if status.recoveries:
        times = "once" if status.recoveries == 1 else f"{status.recoveries:,} times"
        found.append(f"started over from its log {times}")
    return found


def rule_lines(record: dict[str, object] | None) -> list[str]:
    """A record of rules for people, a line for all of them and one for the weights.

    A record that cannot be used is shown as far as it can be read: the coordinator says what is wrong.
    """
    if record is None:
        return ["rules: none"]
    if "unusable" in record:
        return [f"rules: the record cannot be used: {record['unusable']}"]
    lines = [f"rules, revision {record.get('revision')}: {'; '.join(_rule_names(record)) or 'none'}"]
    per_filter, per_matching = record.get("per_filter") or 0, record.get("per_million_matchings") or 0
    if per_filter or per_matching:
        lines.append(
            f"weights: {per_filter:g} a month for a stored filter, {per_matching:g} for a million matchings"
        )
    return lines


def _rule_names(record: dict[str, Any]) -> list[str]:
    """The rules of a record by name. Read here, so that looking needs nothing that plans need."""
    rules = record.get("rules") or {}
    try:
        return [
            *(f"capacity: {broker}" for broker in rules.get("capacity_bytes_per_s", {})),
            *(f"quota: {row['a']} - {row['b']}" for row in rules.get("quota_bytes_per_month", [])),
            *(f"residency: {row['name']}" for row in rules.get("residency", [])),
        ]
    except (AttributeError, KeyError, TypeError):
        return ["damaged. Replace them: ramify rules --set FILE"]


def table(view: Overview, width: int | None) -> Text:
    """A row per broker and their sums, within `width` characters where shorter names can do that."""
    rows = [_COLUMNS, *(_row(broker) for broker in view.brokers), _sums(view.brokers)]
    styles = ["bold underline", *(_STYLES.get(broker.state, "red") for broker in view.brokers), "bold"]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
    gap = "  "
    if width is not None:
        if _SHORTEST + sum(widths[1:]) + len(gap) * (len(widths) - 1) > width:
            gap = " "
        room = width - sum(widths[1:]) - len(gap) * (len(widths) - 1)
        widths[0] = min(widths[0], max(_SHORTEST, room))
    lines = Text(no_wrap=True, overflow="ignore")
    for row, style in zip(rows, styles, strict=True):
        left = [_shortened(row[0], widths[0]).ljust(widths[0]), row[1].ljust(widths[1])]
        right = [cell.rjust(size) for cell, size in zip(row[2:], widths[2:], strict=True)]
        lines.append(gap.join((*left, *right)).rstrip(), style)
        lines.append("\n")
    lines.append(_LEGEND, "dim")
    return lines


def _row(broker: BrokerView) -> Sequence[str]:
    status = broker.status
    if status is None:
        return (broker.name, broker.state, *["-"] * (len(_COLUMNS) - 2))
    return (broker.name, broker.state, f"{status.epoch}.{status.revision}", *_told(_figures(broker)))


def _sums(brokers: Sequence[BrokerView]) -> Sequence[str]:
    columns = list(zip(*(_figures(broker) for broker in brokers), strict=True))
    return ("all", "", "", *_told([sum(column) for column in columns] or [0] * (len(_COLUMNS) - 3)))


def _figures(broker: BrokerView) -> list[float]:
    s = broker.status
    if s is None:
        return [0, 0, 0, 0.0, 0, 0, 0, 0]
    sent = sum(link.messages for link in s.links.values())
    size = sum(link.payload_bytes for link in s.links.values()) / 1e6
    lag = s.lag_published + sum(s.lag_links.values()) + sum(s.lag_clients.values())
    return [s.published, s.events, sent, size, s.deliveries, s.rejects, s.redeliveries, lag]


def _told(figures: Sequence[float]) -> list[str]:
    return [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in figures]


def _shortened(name: str, width: int) -> str:
    """Both ends stay: names of regions differ at the end."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"
