"""Which brokers are close to which: the neighbourhoods that localised models draw from."""

import math

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.network.graphs.distances import Weight, all_pairs
from ramify.network.graphs.overlay import Overlay

__all__ = ["closest_brokers", "neighbourhood_size", "require_brokers"]


def require_brokers(overlay: Overlay, least: int, why: str) -> None:
    """Refuse an overlay that is too small or not connected."""
    if len(overlay) < least:
        raise InputError(
            f"overlay {overlay.name} has {len(overlay)} brokers, {why} needs at least {least}. "
            "Take a larger overlay or ask for less."
        )
    overlay.require_connected()


def neighbourhood_size(brokers: int, percent: float) -> int:
    """How many brokers `percent` of them are: rounded up, at least one."""
    # Rounded first: 2 % of 350 is 7.000000000000001 in floating point, and that is 7 brokers.
    return min(brokers, max(1, math.ceil(round(brokers * percent / 100, 9))))


def closest_brokers(overlay: Overlay, size: int, weight: Weight = "hops") -> npt.NDArray[np.int32]:
    """For every broker, the `size` brokers closest to it, itself first.

    Ties go to the broker that the overlay lists first, so the answer is one and the same everywhere.
    """
    distance = all_pairs(overlay, weight).distance
    near = np.empty((len(overlay), size), dtype=np.int32)
    for broker, row in enumerate(distance):
        away = row.copy()
        away[broker] = -1  # first, even where another is 0 away
        near[broker] = np.argsort(away, kind="stable")[:size]
    return near
