"""Legs: the ways from publishers' brokers to rendezvous points.

Guarantee  A leg is the direct link where there is one, even if another way is cheaper: logical links and
           tree links of the same two brokers are one path. Else it is a path of least weight: the price,
           or hops where all links cost the same, unless told.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ramify.network.distances import Weight, all_pairs
from ramify.network.overlay import Overlay
from ramify.planning.plan import Path
from ramify.planning.semcast.trees import latencies

__all__ = ["Legs", "directed", "legs_to"]


@dataclass(frozen=True, slots=True)
class Legs:
    """`paths` are those that are not direct links; `worst_ms` is the slowest leg to each point."""

    paths: dict[tuple[int, int], Path] = field(default_factory=dict)
    worst_ms: dict[int, float] = field(default_factory=dict)


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
    back = all_pairs(turned, weight or directed(overlay), sources=wanted).predecessor
    ms = latencies(overlay)
    for row, point in enumerate(wanted):
        made.worst_ms[point] = 0.0
        after = back[row].tolist()
        for origin in origins:
            if origin == point:
                continue
            way = [origin, point]
            if (origin, point) not in ms:
                way = [origin]
                while way[-1] != point:
                    way.append(after[way[-1]])
                made.paths[origin, point] = tuple(way)
            made.worst_ms[point] = max(made.worst_ms[point], sum(ms[link] for link in pairwise(way)))
    return made
