"""What counts besides the money on the wire: stored filters and matchings, at the user's prices.

Owns the weights as people say them (a month) and as plans are scored with them (a window).
"""

from dataclasses import dataclass
from math import isfinite

from ramify.errors import InputError
from ramify.planning.demand.demand import Demand
from ramify.planning.pricing.price import MONTH_SECONDS, Price

__all__ = ["MonthlyWeights", "Weights"]


@dataclass(frozen=True, slots=True)
class Weights:
    """What else counts besides the bytes on the wire, in the same money, for the validation window.

    per_filter     for each filter that a broker stores, summed over brokers
    per_matching   for each time that a broker matches an event
    """

    per_filter: float = 0.0
    per_matching: float = 0.0

    def __post_init__(self) -> None:
        for name in ("per_filter", "per_matching"):
            _require_weight(name, getattr(self, name))

    def score(self, priced: Price) -> float:
        """What a plan counts. State is looked at only where it has a price."""
        total = priced.money
        if self.per_filter:
            total += self.per_filter * float(priced.state.filters.sum())
        if self.per_matching:
            total += self.per_matching * priced.matchings
        return total


@dataclass(frozen=True, slots=True)
class MonthlyWeights:
    """What else counts, as people say it: money a month for a stored filter, for a million matchings."""

    per_filter: float = 0.0
    per_million_matchings: float = 0.0

    def __post_init__(self) -> None:
        for name in ("per_filter", "per_million_matchings"):
            _require_weight(name, getattr(self, name))

    def on(self, window: Demand) -> Weights:
        """The same for one window. `InputError` for a price a month when the window's time is unknown."""
        if self.per_filter and not window.seconds:
            raise InputError(
                "a filter has a price a month, but the log spans no time. Say how long it was: --hours."
            )
        windows = window.factor * MONTH_SECONDS / (window.seconds or MONTH_SECONDS)
        return Weights(self.per_filter / windows, self.per_million_matchings / 1e6)


def _require_weight(name: str, value: float) -> None:
    if not (value >= 0 and isfinite(value)):
        raise InputError(f"{name} = {value!r}. Allowed: 0 or more.")
