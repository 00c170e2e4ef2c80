"""What a demand would cost at best: the references that every plan's price is held against.

Owns the lower bound (no plan that pays per link crossed can beat it), the per-event Steiner reference
`opt`, and ideal multicast, the merged unicast routes. All are computed on the graph where money accrues:
the underlay when it is modelled, else the overlay. Each is computed on first use and kept.

They need no more of a demand than its distinct destination sets with their bytes and events. These come
from a demand (`Yardstick`), or as they are (`SetYardstick`), as of a log whose patterns are too many for
one memory. Either way the sets are taken in one order, so the same sets give the same figures to the bit.

`opt` and ideal multicast are reference prices, not plans: a heuristic tree per distinct destination set,
and shortest paths merged per event (`multicast`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.compiled import compiled
from ramify.network.graphs.kernels import adjacency
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.underlay import Underlay
from ramify.network.trees.steiner import Roots, Steiner, dual_ascent, lower_bounds
from ramify.network.trees.terminals import TerminalSets
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.pricing.access import access_cost
from ramify.planning.pricing.multicast import Multicast, multicast

__all__ = ["Bound", "DestinationSets", "References", "SetYardstick", "Yardstick", "steiner_costs"]

GB = 1e9
SAMPLED_SETS = 20_000
"""Distinct destination sets that the bound is computed on at most, unless more are asked for."""

MANY_TERMINALS = 48
"""Brokers of a set, on average, up to which trees are grown from every start."""

MOST_ROUTERS = 8_000
"""Routers and brokers up to which `opt` is found on the underlay: 640 MB of distances."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What no plan can beat, in money for the payload.

    `certified` of `sets` distinct destination sets were bounded. When that is all of them, `low` equals
    `value`: a certificate. Else `value` is an unbiased estimate from a random sample and `low` the
    value that the bound exceeds with 95 % confidence.
    """

    value: float
    low: float
    certified: int
    sets: int

    @property
    def exact(self) -> bool:
        """Whether every destination set was bounded."""
        return self.certified == self.sets


@dataclass(frozen=True, slots=True)
class DestinationSets:
    """Destination sets: compressed rows of brokers, the publisher's first and the others ascending.

    `size` and `count` are int64: the payload bytes and the events of each set.
    """

    start: npt.NDArray[np.int64]
    node: npt.NDArray[np.int32]
    size: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """How many sets there are."""
        return len(self.start) - 1

    @classmethod
    def of(cls, demand: Demand, classes: Classes) -> Self:
        """Those of a demand, distinct."""
        rows = demand.destinations(classes)
        return cls(rows.start, rows.node, demand.size, demand.count).distinct()

    def distinct(self) -> Self:
        """Equal sets added up, sorted by publisher, then brokers. O(brokers in sets), no loop per set."""
        summed = self.table().group_by("destinations", use_threads=False)
        return self.from_table(summed.aggregate([("size", "sum"), ("count", "sum")]))

    def table(self) -> pa.Table:
        """One row per set: its brokers as big-endian int32, which sort as bytes do, its size, its count."""
        brokers, ends = self.node.astype(">i4").tobytes(), (4 * self.start).tobytes()
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(brokers)]
        sets: Any = pa.Array.from_buffers(pa.large_binary(), len(self), buffers)
        return pa.table({"destinations": sets, "size": self.size, "count": self.count})

    @classmethod
    def from_table(cls, rows: pa.Table) -> Self:
        """From distinct rows (brokers, size, count) in any order; the names of columns do not matter."""
        named = rows.rename_columns(["destinations", "size", "count"]).sort_by("destinations")
        column: Any = named.column("destinations").cast(pa.large_binary()).combine_chunks()
        _, ends, brokers = column.buffers()
        if not len(column):
            return cls(np.zeros(1, np.int64), np.zeros(0, np.int32), *np.zeros((2, 0), np.int64))
        first = np.frombuffer(ends, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
        node = np.frombuffer(brokers, dtype=">i4")[first[0] // 4 : first[-1] // 4]
        size, count = (named.column(name).to_numpy() for name in ("size", "count"))
        return cls((first - first[0]) // 4, node.astype(np.int32), size, count)


class References(ABC):
    """What distinct destination sets cost at best. Its two kinds say where the sets come from."""

    overlay: Overlay
    sample: int
    seed: int

    @property
    def access_money(self) -> float:
        """What the links of clients cost, in money; nothing where no prices of them are known."""
        return 0.0

    @property
    @abstractmethod
    def destinations(self) -> DestinationSets:
        """The distinct destination sets, in the order of `DestinationSets.distinct`."""

    @cached_property
    def sets(self) -> TerminalSets:
        """Those that leave their broker, weighted by payload bytes."""
        given = self.destinations
        every = TerminalSets(given.start, given.node, given.size.astype(np.float64))
        return every.take(np.flatnonzero(np.diff(given.start) > 1))

    @cached_property
    def opt(self) -> float:
        """The price of a tree of its own for every event (see `steiner_costs`), headers not counted.

        Over routers where an underlay of up to `MOST_ROUTERS` nodes is modelled, else over the overlay.
        """
        return float(self._tree_costs @ self.sets.weight) / GB

    @cached_property
    def bound(self) -> Bound:
        """A dual-ascent bound per distinct destination set, weighted by bytes."""
        count = len(self.sets)
        if count <= self.sample:
            value = float(self._bounds(self.sets) @ self.sets.weight) / GB
            return Bound(value, value, count, count)
        return self._sampled_bound()

    @cached_property
    def ideal(self) -> Multicast:
        """Ideal multicast of the events."""
        given = self.destinations
        return multicast(self.overlay, given.start, given.node, given.size, given.count)

    @property
    def merged_unicast_ms(self) -> float:
        """Latency summed over the links of each event's merged shortest routes, over all events."""
        return self.ideal.ms

    def _bounds(self, sets: TerminalSets) -> npt.NDArray[np.float64]:
        below = self.overlay.underlay
        if below is None:
            return lower_bounds(self.overlay, sets, "price")
        start, neighbor, weight = _money_graph(below)
        moved = TerminalSets(sets.start, (sets.node + below.routers).astype(np.int32), sets.weight)
        return dual_ascent(start, neighbor, weight, moved)

    def _sampled_bound(self) -> Bound:
        """A ratio estimate: the share of `opt` that the bound reaches, over sets drawn by what they cost.

        Drawing set i with probability proportional to weight times tree cost makes the mean of bound / tree
        cost over the draws an unbiased estimate of total bound / opt; it varies by a percent or so from set
        to set, which makes the interval narrow. Ratios lie in 0..1 and most are 1, so a sample may hold
        none of the others: the low end is that of Maurer and Pontil (2009, Theorem 4), which allows for it.
        """
        rng = np.random.default_rng(self.seed)
        tree = self._tree_costs
        paid = self.sets.weight * tree
        if not paid.any():
            return Bound(0.0, 0.0, 0, len(self.sets))
        drawn = rng.choice(len(self.sets), size=self.sample, p=paid / paid.sum())
        unique, counts = np.unique(drawn, return_counts=True)
        ratio = self._bounds(self.sets.take(unique)) / tree[unique]
        mean = float(np.average(ratio, weights=counts))
        others = max(self.sample - 1, 1)
        variance = float(((ratio - mean) ** 2 @ counts) / others)
        doubt = np.log(2 / 0.05)
        low = mean - np.sqrt(2 * variance * doubt / self.sample) - 7 * doubt / (3 * others)
        return Bound(mean * self.opt, max(0.0, float(low)) * self.opt, len(unique), len(self.sets))

    @cached_property
    def _tree_costs(self) -> npt.NDArray[np.float64]:
        below = self.overlay.underlay
        if below is None or below.routers + len(below.attachment) > MOST_ROUTERS:
            return steiner_costs(self.overlay, self.sets)
        return _costs_below(below, self.sets)


@dataclass(frozen=True)
class Yardstick(References):
    """References for one demand. `overlay` must be `charged()`; `sample` caps the sets of the bound."""

    overlay: Overlay
    classes: Classes
    demand: Demand
    sample: int = SAMPLED_SETS
    seed: int = 0
    access: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def access_money(self) -> float:
        """What the links between clients and brokers cost, however events are routed between those."""
        return access_cost(self.access, self.classes, self.demand) / GB

    @cached_property
    def destinations(self) -> DestinationSets:
        """Those of the demand."""
        return DestinationSets.of(self.demand, self.classes)


@dataclass(frozen=True)
class SetYardstick(References):
    """References for sets that were added up elsewhere: distinct, in the order of `distinct`.

    They equal those of a demand that has the same sets, to the bit. `overlay` and `sample` as above.
    """

    overlay: Overlay
    given: DestinationSets
    sample: int = SAMPLED_SETS
    seed: int = 0

    @property
    def destinations(self) -> DestinationSets:
        """Those given."""
        return self.given


def steiner_costs(overlay: Overlay, sets: TerminalSets) -> npt.NDArray[np.float64]:
    """Money per 10^9 bytes of a tree for each set, from its root: the better of the ways we know.

    Grown block by block: from the root at the price of each direction, or, where prices are the same both
    ways, from every terminal. Where prices differ, the tree found by local search if that is cheaper; where
    they differ only from link to link, for up to `SAMPLED_SETS` sets, because it gains less there.
    """
    price = overlay.price
    # Trying every terminal as a start pays for small sets; for large ones it takes too long.
    roots: Roots = "blocks" if len(sets.node) <= MANY_TERMINALS * len(sets) else "first"
    if price.size and (price == price.flat[0]).all():
        return Steiner.of(overlay, "hops").costs(sets, roots) * float(price.flat[0])
    if np.array_equal(price[:, 0], price[:, 1]):
        steiner = Steiner.of(overlay, "mean_price")
        if len(sets) > SAMPLED_SETS:
            return steiner.costs(sets, roots)
    else:
        steiner = Steiner.of(overlay, "price")
    return np.minimum(steiner.costs(sets, roots), steiner.costs(sets, "insert"))


_searched: "WeakKeyDictionary[Underlay, Steiner]" = WeakKeyDictionary()
"""The search from every router takes seconds: once an underlay, for all windows of a log."""


def _costs_below(below: Underlay, sets: TerminalSets) -> npt.NDArray[np.float64]:
    """`steiner_costs` over routers. Where prices are the same both ways local search gains nothing."""
    if below not in _searched:
        _searched[below] = _search_below(below)
    steiner = _searched[below]
    few = len(sets.node) <= MANY_TERMINALS * len(sets)
    found = steiner.costs(sets, "blocks" if few else "first")
    return found if steiner.weight != "price" else np.minimum(found, steiner.costs(sets, "insert"))


def _search_below(below: Underlay) -> Steiner:
    """Trees over brokers, which keep their numbers, and after them the routers that they reach."""
    brokers = len(below.attachment)
    names = [*(f"broker {i}" for i in range(brokers)), *(f"router {i}" for i in range(below.routers))]
    access = np.column_stack((np.arange(brokers), brokers + below.attachment))
    prices = np.concatenate((below.access_price, below.price))
    ends = np.concatenate((access, brokers + below.ends))
    graph = Overlay.from_arrays("underlay", names, ends, price=prices)
    joined = next(part for part in graph.components() if 0 in part)
    reached = graph if len(joined) == len(graph) else graph.keep(names[i] for i in joined)
    same = np.array_equal(prices[:, 0], prices[:, 1])
    return Steiner.of(reached, "mean_price" if same else "price")


def _money_graph(
    below: Underlay,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Routers, then brokers hung on them by their access links, with a price per arc."""
    brokers = len(below.attachment)
    access = np.column_stack((below.routers + np.arange(brokers), below.attachment))
    ends = np.concatenate((below.ends, access)).astype(np.int32)
    rows = adjacency(below.routers + brokers, ends)
    return rows.start, rows.neighbor, below.link_price[rows.link, rows.direction]


@compiled
def union_of_paths(
    distance: npt.NDArray[np.float64],
    predecessor: npt.NDArray[np.int32],
    row: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    node: npt.NDArray[np.int32],
    weight: npt.NDArray[np.float64],
    stamp: npt.NDArray[np.int64],
) -> float:
    """Sum over sets of weight times the length of the union of tree paths from the root to the others.

    `stamp` holds zeros, one per node. O(links of the unions).
    """
    total = 0.0
    for i in range(len(row)):
        length = 0.0
        stamp[node[start[i]]] = i + 1
        for k in range(start[i] + 1, start[i + 1]):
            v = node[k]
            while stamp[v] != i + 1:
                stamp[v] = i + 1
                above = predecessor[row[i], v]
                length += distance[row[i], v] - distance[row[i], above]
                v = above
        total += length * weight[i]
    return total
