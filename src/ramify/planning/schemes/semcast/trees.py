"""Dissemination trees: gateways join one after the other, cheaply or within a latency bound, and leave.

Owns the rules by which a channel's tree grows and shrinks, as one place sees them; `join_protocol` has the
same rules as messages between brokers.

Low cost   A gateway joins through the nearest of the channel's present destinations (the first through the
           root): the shortest path is followed up to the first broker of the tree.
Bounded    Where that would take longer than the gateway's bound, the broker where it would connect asks its
           parent, and so on up to the root: the first that can keep the bound connects it by the fastest
           path. If none can, the gateway is refused, or connected by the fastest path from the root.
Leaving    A broker that is neither gateway nor root and has no child left leaves the tree, and then perhaps
           its parent.

Guarantee  Always a tree of overlay links from the root in which every leaf is a gateway, or the root. No
           join or leave makes the way to another gateway slower. A gateway that was not refused is reached
           within its bound.
Cost       O(destinations + path) per join, and the brokers below one that moves.
Departures A fast path may cross brokers of the tree. One that is reached sooner by it is hung below it,
           which moves its sub-tree too; one that is reached as soon already stays, and the path goes on
           from it. Either way the result is a tree. (As printed it would not be.) The bound is on the way
           from the root: callers take what the leg needs off a subscription's end-to-end bound.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", sections 3.2.4 and 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.steiner import Steiner
from ramify.network.trees.trees import Tree
from ramify.planning.plans.legs import keeps

__all__ = [
    "GrowingTree",
    "TreeWays",
]


@dataclass(frozen=True, slots=True)
class TreeWays:
    """Shortest paths of one overlay, by weight and by latency; row i of each is from broker i."""

    distance: npt.NDArray[np.generic]
    before: npt.NDArray[np.generic]
    ms: npt.NDArray[np.float64]
    before_ms: npt.NDArray[np.generic]

    @classmethod
    def of(cls, overlay: Overlay, steiner: Steiner) -> "TreeWays":
        """Reuses the searches of `steiner`, which must weigh links the same both ways."""
        fast = all_pairs(overlay, "latency")
        return cls(steiner.distance, steiner.predecessor, fast.distance, fast.predecessor)

    def nearest(self, gateway: int, destinations: Iterable[int]) -> int:
        """The destination nearest to a gateway; ties to the lowest broker."""
        at = np.fromiter(destinations, dtype=np.int64)
        far = self.distance[at, gateway]
        return int(at[far == far.min()].min())

    def toward(self, gateway: int, target: int) -> list[int]:
        """The brokers from a gateway to a target, both included, on a shortest path by weight."""
        row, way = self.before[target], [gateway]
        while way[-1] != target:
            way.append(int(row[way[-1]]))
        return way

    def fastest(self, source: int, gateway: int) -> list[int]:
        """The brokers from a source to a gateway, both included, on a path of least latency."""
        row, way = self.before_ms[source], [gateway]
        while way[-1] != source:
            way.append(int(row[way[-1]]))
        return way[::-1]


class GrowingTree:
    """A channel's tree. `links_ms` are the latencies of overlay links: see `latencies`.

    One that only shrinks needs no ways.
    """

    def __init__(self, root: int, ways: TreeWays | None, links_ms: dict[tuple[int, int], float]) -> None:
        self.root = root
        self._ways = ways
        self._ms = links_ms
        self.parent: dict[int, int] = {root: -1}
        self.children: dict[int, set[int]] = {root: set()}
        self.from_root_ms: dict[int, float] = {root: 0.0}
        self.gateways: set[int] = set()

    @classmethod
    def resume(
        cls,
        tree: Tree,
        gateways: Iterable[int],
        ways: TreeWays | None,
        links_ms: dict[tuple[int, int], float],
    ) -> "GrowingTree":
        """One that stands already."""
        made = cls(tree.root, ways, links_ms)
        for above, below in tree.links().tolist():
            made._hang(below, above)
        made.gateways = set(gateways)
        return made

    @property
    def _known(self) -> TreeWays:
        if self._ways is None:
            raise InputError("this tree was taken up without ways, to shrink only. Give them to join it.")
        return self._ways

    def join(self, gateway: int) -> list[tuple[int, int]]:
        """Low cost. Returns the (parent, child) links that came."""
        if gateway in self.gateways:
            return []
        way = self._way(gateway)
        self.gateways.add(gateway)
        return self._attach(way)

    def join_within(self, gateway: int, bound_ms: float, *, root_path: bool = True) -> bool:
        """Delay bounded; whether the bound is kept. With `root_path` a refused one is connected anyway."""
        if gateway in self.gateways and keeps(self.from_root_ms[gateway], bound_ms):
            return True
        way = self._way(gateway)
        along = sum(self._ms[a, b] for a, b in pairwise(way))
        at: int = way[-1]
        if keeps(self.from_root_ms[at] + along, bound_ms):
            self.gateways.add(gateway)
            self._attach(way)
            return True
        while at != -1 and not keeps(self.from_root_ms[at] + self._known.ms[at, gateway], bound_ms):
            at = self.parent[at]
        kept = at != -1
        if kept or root_path:
            self.gateways.add(gateway)
            self._graft(self._known.fastest(at if kept else self.root, gateway))
        return kept

    def leave(self, gateway: int) -> list[tuple[int, int]]:
        """Returns the (parent, child) links that went. `InputError` for one that is no gateway here."""
        if gateway not in self.gateways:
            raise InputError(f"broker {gateway} is not a gateway of this tree. It cannot leave it.")
        self.gateways.remove(gateway)
        return self._prune(gateway)

    def links(self) -> npt.NDArray[np.int32]:
        """int32[k, 2]: (parent, child), by ascending child."""
        rows = sorted((below, above) for below, above in self.parent.items() if above >= 0)
        return np.array([(above, below) for below, above in rows], dtype=np.int32).reshape(-1, 2)

    def _way(self, gateway: int) -> list[int]:
        """From a gateway up to the first broker of the tree."""
        if gateway in self.parent:
            return [gateway]
        others = self.gateways - {gateway}
        target = self._known.nearest(gateway, others) if others else self.root
        way = self._known.toward(gateway, target)
        return way[: next(i for i, broker in enumerate(way) if broker in self.parent) + 1]

    def _attach(self, way: list[int]) -> list[tuple[int, int]]:
        came = [(above, below) for below, above in pairwise(way)][::-1]
        for above, below in came:
            self._hang(below, above)
        return came

    def _hang(self, below: int, above: int) -> None:
        self.parent[below] = above
        self.children.setdefault(below, set())
        self.children[above].add(below)
        self.from_root_ms[below] = self.from_root_ms[above] + self._ms[above, below]

    def _graft(self, way: list[int]) -> None:
        """Along a fast path from a broker of the tree: brokers move only where that is sooner.

        Distances below those that move, and what is no longer needed, are settled at the end. Until then a
        broker's distance is never less than its parent's, so nothing can be hung below itself.
        """
        moved, loose = [], []
        for above, below in pairwise(way):
            if below not in self.parent:
                self._hang(below, above)
            elif self.from_root_ms[above] + self._ms[above, below] < self.from_root_ms[below]:
                loose.append(self.parent[below])
                self.children[self.parent[below]].discard(below)
                self._hang(below, above)
                moved.append(below)
            else:
                loose.append(above)
        for top in moved:
            self._shift(top)
        for broker in loose:
            if broker in self.parent:
                self._prune(broker)

    def _shift(self, top: int) -> None:
        """Distances below a broker that moved."""
        stack = [top]
        while stack:
            above = stack.pop()
            for below in self.children[above]:
                self.from_root_ms[below] = self.from_root_ms[above] + self._ms[above, below]
                stack.append(below)

    def _prune(self, broker: int) -> list[tuple[int, int]]:
        went = []
        while broker != self.root and broker not in self.gateways and not self.children[broker]:
            above = self.parent.pop(broker)
            del self.children[broker], self.from_root_ms[broker]
            self.children[above].discard(broker)
            went.append((above, broker))
            broker = above
        return went
