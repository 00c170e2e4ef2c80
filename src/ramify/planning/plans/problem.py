"""The problem: an overlay, subscriptions and publishers with their brokers, the demand, the rules.

Owns `Problem`, which every scheme turns into a plan, and what schemes share about it: the distinct
destination sets of the demand, the weight that undirected trees are planned with, all-pairs searches.
Each is computed once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ramify.content.filters.filters import Filter
from ramify.content.filters.space import Grid
from ramify.errors import InputError, OverlayError
from ramify.network.graphs.distances import Weight
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.steiner import Steiner
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.trees import link_lengths
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand

if TYPE_CHECKING:
    from ramify.planning.demand.overlap import Overlap

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """What a scheme is given. Make it with `Problem.of`, which validates.

    Attributes
    ----------
    overlay          connected, at the prices where money accrues (`Overlay.charged`)
    classes          subscriptions by filter and host
    demand           what planners may look at: the training window
    attachments      client -> broker
    publishers       int32, ascending: the brokers where events may enter
    advertisements   per publishing broker the filters that its events stay within; a broker that is not
                     there may publish anything
    grid             the content space, where a scheme partitions by one
    overlap          which profiles overlap, among those of the classes, where tables say it of more than
                     the demand holds (`Overlap.of_tables`); for schemes that go by it
    access           client -> the price of its link to its broker, per 10^9 bytes; others pay nothing
    """

    overlay: Overlay
    classes: Classes
    demand: Demand
    attachments: Mapping[str, str]
    publishers: npt.NDArray[np.int32]
    advertisements: Mapping[int, tuple[Filter, ...]] = field(default_factory=dict)
    grid: Grid | None = None
    overlap: "Overlap | None" = None
    access: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        overlay: Overlay,
        classes: Classes,
        demand: Demand,
        attachments: Mapping[str, str] | None = None,
        *,
        publishers: Iterable[str] | None = None,
        advertisements: Mapping[int, Sequence[Filter]] | None = None,
        grid: Grid | None = None,
        overlap: "Overlap | None" = None,
    ) -> "Problem":
        """Validate and put together.

        `publishers` are the clients (or brokers) that may publish; without it, every broker may. Raises
        `DisconnectedError`, `OverlayError` for a client at an unknown broker, `InputError` for a demand
        that refers to what is not there.
        """
        if not len(overlay):
            raise OverlayError(f"overlay {overlay.name} has no brokers. Nothing can be planned for it.")
        attached = dict(attachments or {})
        for client, broker in attached.items():
            if broker not in overlay.index:
                raise OverlayError(
                    f"client {client!r} is attached to broker {broker!r}, but overlay {overlay.name} has "
                    "no such broker. Correct the attachment."
                )
        where = range(len(overlay)) if publishers is None else _brokers(publishers, attached, overlay)
        entered = np.union1d(np.fromiter(where, dtype=np.int64), demand.publisher)
        _check_demand(demand, overlay, classes)
        return cls(
            overlay.require_connected().charged(),
            classes,
            demand,
            attached,
            entered.astype(np.int32),
            {broker: tuple(filters) for broker, filters in (advertisements or {}).items()},
            grid,
            overlap,
        )

    @cached_property
    def weight(self) -> Weight:
        """What undirected trees are planned with: hops where links cost the same, else the mean price."""
        price = self.overlay.price
        return "hops" if not price.size or (price == price.flat[0]).all() else "mean_price"

    @cached_property
    def lengths(self) -> npt.NDArray[np.float64]:
        """float64[m]: the weight of each link."""
        return link_lengths(self.overlay, self.weight)

    @cached_property
    def steiner(self) -> Steiner:
        """Trees by `weight`."""
        return Steiner.of(self.overlay, self.weight)

    @cached_property
    def directed_steiner(self) -> Steiner:
        """Trees by the price in each direction."""
        return Steiner.of(self.overlay, "price")

    @cached_property
    def sets(self) -> TerminalSets:
        """The distinct destination sets that leave their broker, weighted by `pattern_weight`."""
        given = self.demand.destinations(self.classes)
        merged, _ = TerminalSets(given.start, given.node, self.pattern_weight).distinct()
        return merged.take(np.flatnonzero(np.diff(merged.start) > 1))

    @cached_property
    def pattern_weight(self) -> npt.NDArray[np.float64]:
        """float64[p]: what each pattern counts in planning: its payload bytes, and one per event.

        Both decayed with age where the demand says so: every scheme then plans for what was published of
        late, while prices stay those of all events.
        """
        recent = self.demand.recent
        return self.demand.weight if recent is None else recent[0] + recent[1]


def _brokers(publishers: Iterable[str], attached: Mapping[str, str], overlay: Overlay) -> list[int]:
    found = []
    for name in publishers:
        broker = attached.get(name, name)
        if broker not in overlay.index:
            raise OverlayError(f"no broker is known for publisher {name!r}. Attach it to one.")
        found.append(overlay.index[broker])
    return found


def _check_demand(demand: Demand, overlay: Overlay, classes: Classes) -> None:
    if len(demand) and not (demand.publisher.min() >= 0 and demand.publisher.max() < len(overlay)):
        raise InputError(
            f"the demand names a broker outside 0..{len(overlay) - 1}. Tally it on this overlay."
        )
    if len(demand.classes) and not (demand.classes.min() >= 0 and demand.classes.max() < len(classes)):
        raise InputError(
            f"the demand names a class outside 0..{len(classes) - 1}. Tally it with these classes."
        )
