"""Exponential decay: what an event counts for planning, by its age.

Owns the weight of a pane of time. A demand keeps exact counts beside what they have decayed to: planners
weigh patterns by the latter, prices are of the former (`Demand.recent`).

Guarantee  Integers are summed pane by pane and weighed once, in the order of time: the same to the last bit
           whatever the batches, files or partitions.
Departures An event is as old as the end of its pane, so ages are off by at most one pane: 1.1 % of a weight
           with panes of `pane_for`. One older than `MOST_HALF_LIVES` counts as if it were as old, so that
           every event counts something. One without a time counts in full.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.1.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError

__all__ = ["MOST_HALF_LIVES", "NO_PANE", "Decay", "checked_half_life", "pane_for"]

NO_PANE = -(2**63)
"""The pane of an event without a time; null where patterns are stored."""

MOST_HALF_LIVES = 64
"""The age from which on an event counts no less."""

_PANES_PER_HALF_LIFE = 64
_WIDEST_PANE_US = 1 << 50  # 35 years; sums of times and widths stay within 64 bits


def checked_half_life(half_life_s: float | None) -> float | None:
    """A half-life in seconds; None when nothing decays, which an infinite one means too."""
    if half_life_s is None or half_life_s == math.inf:
        return None
    if not half_life_s > 0:
        raise InputError(f"a half-life of {half_life_s} seconds. Allowed: above 0.")
    return float(half_life_s)


def pane_for(half_life_s: float) -> int:
    """The width of panes in microseconds that ages are told well enough by."""
    return min(max(1, round(half_life_s * 1e6 / _PANES_PER_HALF_LIFE)), _WIDEST_PANE_US)


@dataclass(frozen=True, slots=True)
class Decay:
    """How panes are weighed. Make it with `Decay.of`.

    Attributes
    ----------
    half_life_s    what is this much older counts half
    pane_us        the width of a pane in microseconds
    now_us         the end of the last pane, unless given
    """

    half_life_s: float
    pane_us: int
    now_us: int

    @classmethod
    def of(
        cls, half_life_s: float | None, pane_us: int, pane: npt.NDArray[np.int64], now_us: int | None = None
    ) -> "Decay | None":
        """For patterns of these panes; None when nothing decays. `InputError` when none has a time."""
        half_life = checked_half_life(half_life_s)
        if half_life is None:
            return None
        timed = pane[pane != NO_PANE]
        if len(pane) and (pane_us <= 0 or not len(timed)):
            raise InputError(
                f"no event has a time that is known, so nothing can decay with a half-life of "
                f"{half_life:g} s. Give events times, or leave the half-life out."
            )
        last = int(timed.max()) + pane_us if len(timed) else 0
        return cls(half_life, pane_us, last if now_us is None else now_us)

    def weights(self, pane: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """What an event of each pane counts: 1 at the end of the last one, and later."""
        timed = pane != NO_PANE
        end = np.where(timed, pane, 0) + self.pane_us
        age = np.where(timed, np.maximum(self.now_us - end, 0), 0) / (self.half_life_s * 1e6)
        weight: npt.NDArray[np.float64] = np.exp2(-np.minimum(age, MOST_HALF_LIVES))
        return weight
