"""The checker: was the promise kept in this history? Pure, and apart from all that it checks.

    lost          acknowledged, due, and not there when the readers stopped waiting; or, for a subscription
                  that ended before, overtaken by a later event of its publisher where order is promised
    doubled       came twice to one subscription
    unexpected    not wanted, never published, refused, changed under way, published after the end of the
                  subscription was answered, or for a subscription that was never asked for
    out of order  came after a later one of the same publisher
    untold stall  a due event waited, and for longer than the run's patience no look at the status said that
                  anything waits or is wrong

An event is due to a subscription that was answered as active before its publish began, whose condition
holds, and whose end was not asked for before all had time to come: until the end of the history. What came
to a subscription that began or ended meanwhile is neither due nor unexpected.

Cost: events times subscriptions, evaluated one by one; a million a second or so.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.errors import InputError
from ramify.overlay.histories.conditions import digest, holds
from ramify.overlay.histories.rows import (
    Condition,
    DeliveryRow,
    EndRow,
    FaultRow,
    HistoryRow,
    PublishRow,
    RunRow,
    StatusRow,
    SubscribeRow,
    SuspensionRow,
    UnsubscribeRow,
)
from ramify.overlay.histories.verdict import (
    DOUBLED,
    FORFEITED,
    LOST,
    REORDERED,
    UNEXPECTED,
    UNTOLD,
    Breach,
    HistoryVerdict,
)

__all__ = ["judge"]

_SHOWN = 2
_MOST_STORIES = 100
"""Of so many breaches of a kind the shortest stories are told."""
_LOOK_GAP_S = 20.0
"""Two looks that are further apart do not say what was between them."""
_RECOVERY_WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class _EventRecord:
    id: str
    place: int
    publish: PublishRow
    values: dict[str, Any]
    digest: str

    @property
    def until(self) -> float:
        """Its publish was over then."""
        answered = self.publish.answered
        return math.inf if answered is None or self.publish.outcome == "unknown" else answered

    def is_before(self, other: "_EventRecord") -> bool:
        """Whether it was published before the other one, for sure."""
        if self.publish is other.publish:
            return self.place < other.place
        return self.until < other.publish.at


@dataclass(slots=True)
class _Interval:
    """When a subscription was active: `asked` to `over` at most, `active` to `ending` for sure."""

    id: str
    client: str
    condition: Condition
    asked: float
    active: float = math.inf
    ending: float = math.inf
    over: float = math.inf
    rows: list[str] = field(default_factory=list)


class _History:
    """The rows, sorted out."""

    def __init__(self, rows: Iterable[HistoryRow]) -> None:
        self.run: RunRow | None = None
        self.end = math.nan
        self.events: dict[str, _EventRecord] = {}
        self.intervals: dict[str, _Interval] = {}
        self.deliveries: list[DeliveryRow] = []
        self.looks: list[StatusRow] = []
        self.faults: list[FaultRow] = []
        self.outcomes: Counter[str] = Counter()
        for row in rows:
            if self.run is None and not isinstance(row, RunRow):
                raise InputError("a history begins with its run row")
            self._add(row)
        if self.run is None or math.isnan(self.end):
            raise InputError("the history has no end row: the run that wrote it did not finish")
        self.looks.sort(key=lambda look: look.at)
        self.faults.sort(key=lambda fault: fault.at)

    def _add(self, row: HistoryRow) -> None:
        match row:
            case RunRow():
                if self.run is not None:
                    raise InputError(f"the history has two run rows, {self.run.run} and {row.run}")
                self.run = row
            case PublishRow():
                self._publish(row)
            case SubscribeRow():
                self._subscribe(row)
            case UnsubscribeRow():
                found = self._interval(row.subscription, row.client)
                found.ending = min(found.ending, row.at)
                if row.outcome == "ended" and row.answered is not None:
                    found.over = min(found.over, row.answered)
                found.rows.append(
                    f"{row.at:.3f} {row.client} unsubscribes {row.subscription}: {row.outcome}"
                )
            case SuspensionRow():
                for each in self.intervals.values():
                    if each.client == row.client:
                        each.ending = min(each.ending, row.at)
                        each.rows.append(f"{row.at:.3f} {row.client} is suspended: {row.reason}")
            case DeliveryRow():
                self.deliveries.append(row)
            case StatusRow():
                self.looks.append(row)
            case FaultRow():
                self.faults.append(row)
            case EndRow():
                self.end = row.at

    def _publish(self, row: PublishRow) -> None:
        self.outcomes[row.outcome] += len(row.events)
        if row.outcome == "acknowledged" and row.answered is None:
            raise InputError(f"a publish of {row.client} at {row.at} is acknowledged without an answer")
        for place, (id, values) in enumerate(row.events):
            if id in self.events:
                raise InputError(f"event {id} was published twice: give each an id of its own")
            self.events[id] = _EventRecord(id, place, row, values, digest(values))

    def _subscribe(self, row: SubscribeRow) -> None:
        found = self.intervals.get(row.subscription)
        if found is None:
            found = _Interval(row.subscription, row.client, row.condition, row.at)
            self.intervals[row.subscription] = found
        if found.client != row.client or found.condition != row.condition:
            raise InputError(f"subscription {row.subscription} is two: give each an id of its own")
        if row.outcome == "active" and row.answered is not None:
            found.active = min(found.active, row.answered)
        found.rows.append(f"{row.at:.3f} {row.client} subscribes {row.subscription}: {row.outcome}")

    def _interval(self, id: str, client: str) -> _Interval:
        found = self.intervals.get(id)
        if found is None or found.client != client:
            raise InputError(f"{client} ended subscription {id}, which it never asked for")
        return found


@dataclass(frozen=True, slots=True)
class _Wait:
    """A due event that came, or did not."""

    event: _EventRecord
    interval: _Interval
    came: float | None


class _Case:
    """One judgement."""

    def __init__(self, history: _History) -> None:
        assert history.run is not None
        self.history, self.run = history, history.run
        self.counts: Counter[str] = Counter()
        self.found: dict[str, list[Breach]] = defaultdict(list)
        # (subscription, event) -> when it came first
        self.came: dict[tuple[str, str], float] = {}
        # (subscription, publisher) -> of what came, the one whose publish began last
        self.latest: dict[tuple[str, str], _EventRecord] = {}
        self.delivered = 0
        self.quiet = _quiet_spans(history.looks)
        self.reorders = [fault for fault in history.faults if fault.reorders]
        self.forfeits = [fault for fault in history.faults if fault.forfeits]

    def verdict(self) -> HistoryVerdict:
        for row in self.history.deliveries:
            for subscription in row.subscriptions:
                for id, seen in row.events:
                    self.delivered += 1
                    self._delivery(row, subscription, id, seen)
        waits = self._waits()
        last: dict[str, float] = {}
        for wait in waits:
            self._wait(wait)
            if wait.came is not None:
                last[wait.event.id] = max(last.get(wait.event.id, 0.0), wait.came)
        history = self.history
        return HistoryVerdict(
            history.outcomes["acknowledged"],
            history.outcomes["refused"],
            history.outcomes["unknown"],
            len(waits),
            self.delivered,
            len(history.intervals),
            Counter(fault.what for fault in history.faults),
            self.counts,
            tuple(breach for kind in self.found.values() for breach in kind),
            sorted(at - history.events[id].publish.at for id, at in last.items()),
            self._recoveries(last),
            len(history.looks),
            self.run.ordered,
        )

    # ------------------------------------------------------------------------------------- deliveries

    def _delivery(self, row: DeliveryRow, subscription: str, id: str, seen: str) -> None:
        event = self.history.events.get(id)
        interval = self.history.intervals.get(subscription)
        if (why := _unexpected(row, event, interval, id, seen)) or event is None or interval is None:
            self._report(UNEXPECTED, f"event {id} at {subscription}: {why}", event, interval, row)
            if event is not None and interval is not None and interval.client == row.client:
                self.came.setdefault((subscription, id), row.at)  # one breach is not two
            return
        if (subscription, id) in self.came:
            self._report(DOUBLED, f"event {id} at {subscription}", event, interval, row)
            return
        self.came[subscription, id] = row.at
        key = subscription, event.publish.client
        latest = self.latest.get(key)
        if latest is None or (latest.publish.at, latest.place) < (event.publish.at, event.place):
            self.latest[key] = event
        elif (
            self.run.ordered
            and event.is_before(latest)
            and not self._is_reordered(event.publish.at, row.at)
        ):
            what = f"event {id} came to {subscription} after {latest.id}, which was published later"
            self._report(REORDERED, what, event, interval, row)

    def _is_reordered(self, begin: float, end: float) -> bool:
        """Whether a fault between lets events overtake each other."""
        return any(each.at <= end and _ended(each) >= begin for each in self.reorders)

    # -------------------------------------------------------------------------------------- what is due

    def _waits(self) -> list[_Wait]:
        found = []
        intervals = [each for each in self.history.intervals.values() if each.active < math.inf]
        for event in self.history.events.values():
            if event.publish.outcome != "acknowledged":
                continue
            for interval in intervals:
                if not interval.active <= event.publish.at < interval.ending:
                    continue
                if not holds(interval.condition, event.values):
                    continue
                came = self.came.get((interval.id, event.id))
                if came is not None or interval.ending == math.inf or self._is_overtaken(event, interval):
                    found.append(_Wait(event, interval, came))
        return found

    def _is_overtaken(self, event: _EventRecord, interval: _Interval) -> bool:
        latest = self.latest.get((interval.id, event.publish.client))
        return (
            self.run.ordered
            and latest is not None
            and event.is_before(latest)
            and not self._is_reordered(event.publish.at, interval.over)
        )

    def _wait(self, wait: _Wait) -> None:
        event, interval = wait.event, wait.interval
        if wait.came is None:
            told = self._forfeit(event)
            kind = LOST if told is None else FORFEITED
            self._report(kind, f"event {event.id} never came to {interval.id}", event, interval, None)
        until = self.history.end if wait.came is None else wait.came
        begin = event.publish.answered or event.publish.at
        if until - begin > self.run.patience_s and (span := self._untold(begin, until)) is not None:
            what = (
                f"event {event.id} waited {until - begin:.1f} s for {interval.id}, and the status said "
                f"nothing from {span[0]:.3f} to {span[1]:.3f}"
            )
            self._report(UNTOLD, what, event, interval, None)

    def _forfeit(self, event: _EventRecord) -> FaultRow | None:
        """The fault that destroyed it, if an alarm tells of one since."""
        for fault in self.forfeits:
            if event.publish.at <= _ended(fault) and any(
                look.alarms and look.at >= fault.at for look in self.history.looks
            ):
                return fault
        return None

    def _untold(self, begin: float, end: float) -> tuple[float, float] | None:
        """The first part of a time in which the status said nothing for longer than the patience."""
        at = bisect_right(self.quiet, begin, key=lambda span: span[1])
        for first, last in self.quiet[at:]:
            if first >= end:
                break
            part = max(first, begin), min(last, end)
            if part[1] - part[0] > self.run.patience_s:
                return part
        return None

    # ------------------------------------------------------------------------------------------ figures

    def _recoveries(self, last: dict[str, float]) -> list[tuple[str, float]]:
        """For each single kill, the longest that a due event waited after it."""
        ranked = sorted((self.history.events[id].publish.at, at) for id, at in last.items())
        begins = [at for at, _ in ranked]
        found = []
        for k, fault in enumerate(self.history.faults):
            if not fault.is_single:
                continue
            after = self.history.faults[k + 1].at if k + 1 < len(self.history.faults) else math.inf
            until = min(fault.at + _RECOVERY_WINDOW_S, after)
            low = bisect_left(begins, fault.at - _RECOVERY_WINDOW_S)
            high = bisect_right(begins, until)
            longest = max(
                (at - max(fault.at, b) for b, at in ranked[low:high] if at > fault.at), default=0.0
            )
            found.append((fault.what, longest))
        return found

    # ------------------------------------------------------------------------------------------- stories

    def _report(
        self,
        kind: str,
        what: str,
        event: _EventRecord | None,
        interval: _Interval | None,
        row: DeliveryRow | None,
    ) -> None:
        self.counts[kind] += 1
        if self.counts[kind] > _MOST_STORIES:
            return
        self.found[kind].append(Breach(kind, what, tuple(self._story(event, interval, row))))
        self.found[kind].sort(key=lambda breach: len(breach.story))
        del self.found[kind][_SHOWN:]

    def _story(
        self, event: _EventRecord | None, interval: _Interval | None, row: DeliveryRow | None
    ) -> list[str]:
        lines: list[tuple[float, str]] = []
        begin, end = -math.inf, self.history.end
        if event is not None:
            begin = event.publish.at
            answered = event.publish.answered
            took = "" if answered is None else f", answered {answered:.3f}"
            text = (
                f"{event.publish.client} publishes {event.id} {event.values}: {event.publish.outcome}{took}"
            )
            lines.append((event.publish.at, f"{event.publish.at:.3f} {text}"))
            for subscription in self.history.intervals if row is None else row.subscriptions:
                at = self.came.get((subscription, event.id))
                if at is not None:
                    lines.append((at, f"{at:.3f} {event.id} comes to {subscription}"))
        if interval is not None:
            lines += [(float(text.split()[0]), text) for text in interval.rows]
        if row is not None:
            end = row.at
            text = f"{row.client} gets delivery {row.number} with {len(row.events)} for {row.subscriptions}"
            lines.append((row.at, f"{row.at:.3f} {text}"))
        for fault in self.history.faults:
            if fault.at <= end and _ended(fault) >= begin - self.run.patience_s:
                over = "" if fault.ended is None else f" to {fault.ended:.3f}"
                lines.append((fault.at, f"{fault.at:.3f}{over} fault: {fault.what} {fault.target}"))
        return [text for _, text in sorted(lines, key=lambda line: line[0])]


def judge(rows: Iterable[HistoryRow]) -> HistoryVerdict:
    """The verdict on a whole history. Raises `InputError` for one that contradicts itself or has no end."""
    return _Case(_History(rows)).verdict()


def _unexpected(
    row: DeliveryRow, event: _EventRecord | None, interval: _Interval | None, id: str, seen: str
) -> str:
    if event is None:
        return f"nobody published event {id}"
    if interval is None or interval.client != row.client:
        return f"{row.client} never subscribed to it"
    if event.publish.outcome == "refused":
        return "its publish was refused"
    if row.at < event.publish.at:
        return "it came before it was published"
    if row.at < interval.asked:
        return "it came before the subscription was asked for"
    if seen != event.digest:
        return "its attributes are not those that were published"
    if not holds(interval.condition, event.values):
        return "the condition of the subscription does not hold"
    if event.publish.at > interval.over:
        return "it was published after the end of the subscription was answered"
    return ""


def _ended(fault: FaultRow) -> float:
    return fault.at if fault.ended is None else fault.ended


def _quiet_spans(looks: Sequence[StatusRow]) -> list[tuple[float, float]]:
    """The times in which every look said that nothing waits and nothing is wrong."""
    found: list[tuple[float, float]] = []
    begin: float | None = None
    last = -math.inf
    for look in looks:
        if begin is not None and (look.tells or look.alarms or look.at - last > _LOOK_GAP_S):
            found.append((begin, last))
            begin = None
        if not look.tells and not look.alarms:
            begin = look.at if begin is None else begin
            last = look.answered
    if begin is not None:
        found.append((begin, last))
    return found
