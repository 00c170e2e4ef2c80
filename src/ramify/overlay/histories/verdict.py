"""What a history shows: figures, and the breaches of the promise with their shortest stories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = [
    "DOUBLED",
    "FORFEITED",
    "LOST",
    "REORDERED",
    "UNEXPECTED",
    "UNTOLD",
    "Breach",
    "HistoryVerdict",
    "quantile",
]

LOST = "lost"
DOUBLED = "doubled"
UNEXPECTED = "unexpected"
REORDERED = "out of order"
UNTOLD = "untold stall"
FORFEITED = "forfeited"
"""Lost by a fault that destroyed the only copy, and the overlay said so: no breach."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One breach. `story` is what led to it, a line per row of the history that has a part in it."""

    kind: str
    what: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}: {self.what}", *(f"    {line}" for line in self.story)])


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """All of it. `counts` says how often each kind was found; `breaches` tells the shortest of each kind.

    `latency_s` is from the begin of a publish to its last due delivery; `recoveries` has, for each single
    kill, what it was and the longest that an event waited after it.
    """

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    due: int = 0
    delivered: int = 0
    subscriptions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    breaches: tuple[Breach, ...] = ()
    latency_s: Sequence[float] = ()
    recoveries: Sequence[tuple[str, float]] = ()
    looks: int = 0
    ordered: bool = True
    """Whether order was judged: it is where the history says that it is promised."""

    @property
    def recovery_s(self) -> list[float]:
        """The longest wait after each single kill."""
        return [longest for _, longest in self.recoveries]

    @property
    def is_kept(self) -> bool:
        """Whether the promise was kept."""
        return not any(count for kind, count in self.counts.items() if kind != FORFEITED)

    def figures(self) -> dict[str, object]:
        """The figures, for JSON."""
        return {
            "kept": self.is_kept,
            "acknowledged": self.acknowledged,
            "refused": self.refused,
            "unknown": self.unknown,
            "due": self.due,
            "delivered": self.delivered,
            "subscriptions": self.subscriptions,
            "faults": dict(sorted(self.faults.items())),
            **{kind.replace(" ", "_"): self.counts[kind] for kind in _KINDS},
            **({} if self.ordered else {REORDERED.replace(" ", "_"): None}),
            "latency_s_p50": quantile(self.latency_s, 0.5),
            "latency_s_p99": quantile(self.latency_s, 0.99),
            "recovery_s_p50": quantile(self.recovery_s, 0.5),
            "recovery_s_p99": quantile(self.recovery_s, 0.99),
            "recoveries": len(self.recoveries),
            "looks": self.looks,
        }

    def text(self) -> str:
        """For people: the figures, then the breaches."""
        judged = [kind for kind in _KINDS if self.ordered or kind != REORDERED]
        counts = ", ".join(f"{self.counts[kind]:,} {kind}" for kind in judged)
        counts += "" if self.ordered else "; order is not judged"
        lines = [
            f"{self.acknowledged:,} events acknowledged, {self.refused:,} refused, "
            f"{self.unknown:,} unknown",
            f"{self.due:,} deliveries due to {self.subscriptions:,} subscriptions, {self.delivered:,} came",
            f"{self.faults.total():,} faults, {self.looks:,} looks at the status",
            counts,
        ]
        if self.latency_s:
            p50, p99 = quantile(self.latency_s, 0.5), quantile(self.latency_s, 0.99)
            lines.append(f"publish to last delivery: {p50:.3f} s p50, {p99:.3f} s p99")
        if self.recoveries:
            p50, p99 = quantile(self.recovery_s, 0.5), quantile(self.recovery_s, 0.99)
            each = ", ".join(f"{what} {longest:.1f}" for what, longest in self.recoveries)
            lines.append(f"longest wait after a single kill: {p50:.1f} s p50, {p99:.1f} s p99 ({each})")
        told = Counter(breach.kind for breach in self.breaches)
        lines += [str(breach) for breach in self.breaches]
        for kind, count in self.counts.items():
            if kind != FORFEITED and count > told[kind]:
                lines.append(f"{kind}: {count - told[kind]:,} more")
        lines.append("the promise was kept" if self.is_kept else "THE PROMISE WAS BROKEN")
        return "\n".join(lines)


_KINDS = (LOST, DOUBLED, UNEXPECTED, REORDERED, UNTOLD, FORFEITED)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of all does not exceed; None of none."""
    if not values:
        return None
    ranked = sorted(values)
    return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 3)
