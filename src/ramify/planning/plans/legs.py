"""Legs: the ways from publishers' brokers to rendezvous points.

Guarantee  By latency every leg is a fastest way: the direct link only where that is as fast. By other
           weights it is the direct link where there is one, even if another way is cheaper: logical links
           and tree links of the same two brokers are one path. Else it is a path of least weight: the
           price, or hops where all links cost the same, unless told.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ramify.network.graphs.distances import Weight, all_pairs
from ramify.network.graphs.overlay import Overlay
from ramify.planning.plans.plan import Path

__all__ = [
    "ROUNDING",
    "Legs",
    "directed",
    "keeps",
    "latencies",
    "legs_to",
    "slowest_but",
]

ROUNDING = 1e-9
"""A way that exceeds its bound by less than this share keeps it."""


@dataclass(frozen=True, slots=True)
class Legs:
    """Legs to some points.

    Attributes
    ----------
    paths   for `Plan.paths`: those between brokers that no link joins
    own     for `Plan.legs`: those that are faster than the link which joins their ends
    ms      point -> float64[n]: what the leg of each publisher's broker takes; -inf for other brokers
    """

    paths: dict[tuple[int, int], Path] = field(default_factory=dict)
    own: dict[tuple[int, int], Path] = field(default_factory=dict)
    ms: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)

    def worst_ms(self, point: int, gateway: int) -> float:
        """The slowest leg to a point of events that a gateway has to wait for: see `slowest_but`."""
        return slowest_but(self.ms[point], gateway)


def slowest_but(legs_ms: npt.NDArray[np.float64], gateway: int) -> float:
    """The slowest leg but for the gateway's own, whose events it gets at once; -inf where there is none."""
    return float(max(legs_ms[:gateway].max(initial=-np.inf), legs_ms[gateway + 1 :].max(initial=-np.inf)))


def directed(overlay: Overlay) -> Weight:
    """Hops where all links cost the same, which also tells free links apart; else the price."""
    price = overlay.price
    return "hops" if not price.size or (price == price.flat[0]).all() else "price"


def legs_to(
    overlay: Overlay, points: Iterable[int], publishers: Iterable[int], weight: Weight | None = None
) -> Legs:
    """From every publisher's broker to every point. A search per point: O(m log n) each."""
    made = Legs()
    wanted, origins = sorted(set(points)), list(publishers)
    if not wanted:
        return made
    turned = Overlay(
        overlay.name, overlay.brokers, overlay.ends, overlay.price[:, ::-1], overlay.latency_ms
    )
    back = all_pairs(turned, weight or directed(overlay), sources=wanted)
    ms = latencies(overlay)
    for row, point in enumerate(wanted):
        took = made.ms[point] = np.full(len(overlay), -np.inf)
        after = back.predecessor[row].tolist()
        for origin in origins:
            if origin == point:
                took[origin] = 0.0
                continue
            direct = ms.get((origin, point))
            if direct is None or (
                weight == "latency" and not keeps(direct, float(back.distance[row, origin]))
            ):
                way = [origin]
                while way[-1] != point:
                    way.append(after[way[-1]])
                (made.paths if direct is None else made.own)[origin, point] = tuple(way)
                direct = sum(ms[link] for link in pairwise(way))
            took[origin] = direct
    return made


def keeps(ms: float, bound_ms: float) -> bool:
    """Whether a way is within a bound, but for rounding."""
    return ms <= bound_ms + abs(bound_ms) * ROUNDING


def latencies(overlay: Overlay) -> dict[tuple[int, int], float]:
    """The latency of each link, both ways."""
    rows = zip(overlay.ends.tolist(), overlay.latency_ms.tolist(), strict=True)
    there = {(a, b): ms for (a, b), ms in rows}
    return there | {(b, a): ms for (a, b), ms in there.items()}
