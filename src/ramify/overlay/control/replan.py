"""When a live plan is replaced: the record of each decision, measured cost. Pure.

Owns the record of each decision (`PlanDecision`) and the measured cost of epochs (`CostMeter`). How plans
are made and weighed is in `planning.choosing.replan`.

A plan is taken back when the measured cost of a published byte rose with it by more than a tolerance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ramify.errors import OverlayError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.records import Status
from ramify.planning.choosing.replan import SchemeTrial
from ramify.planning.choosing.weigh import SchemeRow, successors
from ramify.planning.plans.plan import Plan

__all__ = ["CostMeter", "EpochCost", "PlanDecision", "measured_row", "takes_back"]


# ------------------------------------------------------------------------------------------- decisions


class PlanDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision about plans, for people. `action`: keep, install, rollback, give_up.

    Costs of keep and install are predicted, for the demand at hand; those of a rollback are measured, per
    published GB. `saving` is a share of the old cost. `broken` are the rules that the plan before
    breaks, or that the plan which was wanted would break; each begins with the name of the rule. `rules` is
    the revision of the rules that it was decided by.
    """

    at: float
    action: str
    reason: str
    old_scheme: str = ""
    new_scheme: str = ""
    epoch: int = 0
    old_cost: float | None = None
    new_cost: float | None = None
    saving: float | None = None
    tried: list[SchemeTrial] = []
    broken: list[str] = []
    rules: int = 0


# ------------------------------------------------------------------------------------------- measured


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What was measured of an epoch: events and bytes that entered with it, and what sending them cost."""

    events: int
    size_bytes: int
    money: float

    @property
    def per_gb(self) -> float | None:
        """The price of a published GB; None when nothing was published."""
        return None if not self.size_bytes else self.money / (self.size_bytes / 1e9)

    def since(self, earlier: "EpochCost") -> "EpochCost":
        """What was added since an earlier measurement of the same epoch."""
        return EpochCost(
            self.events - earlier.events, self.size_bytes - earlier.size_bytes, self.money - earlier.money
        )


class CostMeter:
    """Adds up what brokers count, over their restarts: counts start over with a session."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Status] = {}

    def add(self, status: Status) -> None:
        """Take a broker's counters; of a session the latest count."""
        known = self._latest.get((status.broker, status.session))
        if known is None or known.at <= status.at:
            self._latest[status.broker, status.session] = status

    def cost(self, epoch: int, overlay: Overlay) -> EpochCost:
        """What an epoch cost, at the price of each direction. Links that are not the overlay's are free."""
        events = size = 0
        money = 0.0
        for status in self._latest.values():
            entered = status.entered.get(epoch, (0, 0))
            events, size = events + entered[0], size + entered[1]
            for to, sent in status.sent.get(epoch, {}).items():
                money += sent.payload_bytes / 1e9 * _price(overlay, status.broker, to)
        return EpochCost(events, size, money)

    @property
    def sampled_share(self) -> float:
        """The share of published events that brokers sampled; 1 when none was."""
        published = sum(status.published for status in self._latest.values())
        sampled = sum(status.sampled for status in self._latest.values())
        return sampled / published if sampled and published else 1.0

    def forget(self, epochs: Sequence[int]) -> None:
        """Drop sessions that ended and counted nothing of the epochs that still matter."""
        alive: dict[str, float] = {}
        for (broker, _), status in self._latest.items():
            alive[broker] = max(alive.get(broker, 0.0), status.started)
        self._latest = {
            key: status
            for key, status in self._latest.items()
            if status.started >= alive[key[0]]
            or any(epoch in status.entered or epoch in status.sent for epoch in epochs)
        }


def measured_row(plan: Plan, cost: EpochCost, broken: Sequence[str] = ()) -> SchemeRow | None:
    """A plan that runs or ran, to be weighed by its measured cost; None where nothing was published."""
    per_gb = cost.per_gb
    return None if per_gb is None else SchemeRow(plan.scheme, plan, score=per_gb, broken=tuple(broken))


def takes_back(now: SchemeRow | None, before: SchemeRow | None, tolerance: float) -> bool:
    """Whether the plan before should replace the one that runs: a published byte costs more than before by
    more than the tolerance, a share of the cost before, and the plan before breaks no rule."""
    if now is None or before is None:
        return False
    bearable = replace(before, score=before.score * (1 + tolerance))
    return any(successors(now, [bearable], 0.0))


def _price(overlay: Overlay, a: str, b: str) -> float:
    try:
        link = overlay.link_between(a, b)
    except OverlayError:
        return 0.0
    return float(overlay.price[link, int(overlay.ends[link, 0] != overlay.index[a])])
