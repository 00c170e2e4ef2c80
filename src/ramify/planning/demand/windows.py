"""Windows: the demands of the parts that a log is split into, and of the log as a whole.

Owns the way from counted patterns, wherever they were counted, to the demands that a study plans with,
chooses by and reports on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ramify.planning.demand.decay import Decay
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.patterns import Patterns
from ramify.planning.demand.splits import Split

__all__ = ["NOBODY", "Span", "Windows"]

NOBODY = "(no publisher)"
"""Stands for the publisher of events that name none."""


@dataclass(slots=True)
class Span:
    """How many events were counted, and the earliest and latest time among them (microseconds)."""

    events: int = 0
    first_us: int | None = None
    last_us: int | None = None

    def add(self, other: "Span") -> None:
        """Stretch over both."""
        self.events += other.events
        firsts = [us for us in (self.first_us, other.first_us) if us is not None]
        lasts = [us for us in (self.last_us, other.last_us) if us is not None]
        self.first_us, self.last_us = min(firsts, default=None), max(lasts, default=None)

    @property
    def seconds(self) -> float:
        """The time spanned; 0 when it is not known."""
        if self.first_us is None or self.last_us is None:
            return 0.0
        return (self.last_us - self.first_us) / 1e6


@dataclass(frozen=True, slots=True)
class Windows:
    """One demand per window of a split, and that of all of them together."""

    parts: tuple[Demand, ...]
    whole: Demand

    @classmethod
    def of_patterns(
        cls,
        patterns: Patterns,
        split: Split,
        spans: Mapping[int, Span],
        unknown: Mapping[tuple[int, str | None], int],
        tag_filters: int = 0,
        *,
        half_life_s: float | None = None,
        pane_us: int = 0,
    ) -> "Windows":
        """From patterns, what was counted per window, and the publishers that are unknown.

        With a half-life, demands have what events of panes `pane_us` wide have decayed to, all by the end
        of the last pane of any window. `InputError` when no event has a time.
        """
        windows = range(len(split.shares))
        decay = Decay.of(half_life_s, pane_us, patterns.pane)

        def demand(part: Patterns, of: set[int]) -> Demand:
            span = Span()
            for window in sorted(of & spans.keys()):
                span.add(spans[window])
            return Demand.of_patterns(
                part,
                seconds=span.seconds,
                factor=1 / split.keep,
                tag_filters=tag_filters,
                unknown=_named(unknown, of),
                decay=decay,
            )

        whole = demand(patterns, set(windows))
        if len(windows) == 1:
            return cls((whole,), whole)
        parts = (demand(patterns.only(window), {window}) for window in windows)
        return cls(tuple(parts), whole)


def _named(unknown: Mapping[tuple[int, str | None], int], windows: set[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (window, name), count in sorted(unknown.items(), key=lambda row: (row[0][0], row[0][1] or "")):
        if window in windows:
            found[name or NOBODY] = found.get(name or NOBODY, 0) + count
    return found
