"""Ideal multicast: every event to exactly the brokers that want it, along merged shortest routes.

Owns the reference that Cao and Singh measure schemes against (sections IV-A and V): multicast in the
network itself, with a tree for every set of destinations. It is no plan, since no broker could hold its
state, and no bound: routes are shortest by latency each, and their union need not be the shortest tree.

Counted where messages really travel: on the links of the underlay where one is modelled, access links
included, else on the overlay's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.compiled import compiled
from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.kernels import Adjacency, adjacency
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.underlay import Underlay

__all__ = ["Multicast", "multicast"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_SOURCES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Multicast:
    """What ideal multicast comes to.

    Attributes
    ----------
    events              that were sent, those that nobody else wants among them
    ms                  latency summed over all crossings: what NRU divides by
    cost                money for the payload, at the price of each direction
    messages            int64[links, 2]: on each link below (or of the overlay), by direction
    at_brokers          int64[n]: messages received and sent by each broker
    """

    events: int
    ms: float
    cost: float
    messages: Longs
    at_brokers: Longs

    @property
    def node_stress(self) -> Floats:
        """float64[n]: messages received and sent by each broker, per 1,000 events."""
        return self.at_brokers.astype(np.float64) * (1_000 / max(self.events, 1))

    @property
    def link_stress(self) -> Floats:
        """Messages on each link below (or of the overlay), per 1,000 events."""
        both: Floats = self.messages.sum(axis=1).astype(np.float64)
        return both * (1_000 / max(self.events, 1))

    def figures(self) -> Mapping[str, float | int]:
        """All of it as plain numbers, by the names that prices have for them."""
        nodes, links = self.node_stress, self.link_stress
        used = links[links > 0]
        return {
            "events": self.events,
            "messages": int(self.messages.sum()),
            "cost": self.cost,
            "node_stress_mean": float(nodes.mean()) if len(nodes) else 0.0,
            "node_stress_max": float(nodes.max(initial=0.0)),
            "link_stress_mean": float(links.mean()) if len(links) else 0.0,
            "link_stress_used_mean": float(used.mean()) if len(used) else 0.0,
            "link_stress_max": float(links.max(initial=0.0)),
            "resource_usage": 1.0,
        }


def multicast(overlay: Overlay, start: Longs, node: Ints, size: Longs, count: Longs) -> Multicast:
    """Send the events of each set: brokers in rows, the publisher's first, rows sorted by it.

    One search per publishing broker; O(links of the routes) to count them.
    """
    below = overlay.underlay
    prices = overlay.price if below is None else below.link_price
    messages, payload = np.zeros((2, *prices.shape), dtype=np.int64)
    rows = overlay.adjacency if below is None else adjacency(below.routers, below.ends)
    ms = 0.0
    for distance, predecessor, first, last in _searches(overlay, node[start[:-1]]):
        where = node if below is None else below.attachment[node].astype(np.int32)
        crossed, carried = np.zeros((2, len(distance)), dtype=np.int64)
        stamp = np.full(len(distance), -1, dtype=np.int64)
        count_routes(predecessor, start, where, size, count, first, last, stamp, crossed, carried)
        into = np.flatnonzero(crossed)
        ms += float(crossed[into] @ (distance[into] - distance[predecessor[into]]))
        arc = _arcs(rows, predecessor)[into]
        np.add.at(messages, (rows.link[arc], rows.direction[arc]), crossed[into])
        np.add.at(payload, (rows.link[arc], rows.direction[arc]), carried[into])
    if below is None:
        at_brokers = np.zeros(len(overlay), dtype=np.int64)
        np.add.at(at_brokers, overlay.ends, messages.sum(axis=1)[:, None])
    else:
        ms += _access(below, start, node, size, count, messages, payload)
        at_brokers = messages[len(below.ends) :].sum(axis=1)
    cost = float((payload * prices).sum()) / 1e9
    return Multicast(int(count.sum()), ms, cost, messages, at_brokers)


def _searches(overlay: Overlay, roots: Ints) -> Iterator[tuple[Floats, Ints, int, int]]:
    """Per publishing broker least latencies, predecessors, and the range of its sets."""
    sources, first = np.unique(roots, return_index=True)
    ends = [*first.tolist(), len(roots)]
    below = overlay.underlay
    for at in range(0, len(sources), _SOURCES_AT_ONCE):
        some = sources[at : at + _SOURCES_AT_ONCE].tolist()
        found = None if below is not None else all_pairs(overlay, "latency", sources=some)
        for row, source in enumerate(some):
            if found is None:
                assert below is not None
                distance, predecessor = (
                    part[0] for part in below.routes_from(int(below.attachment[source]))
                )
            else:
                distance, predecessor = found.distance[row], found.predecessor[row].astype(np.int32)
            yield distance, predecessor, ends[at + row], ends[at + row + 1]


def _arcs(rows: Adjacency, predecessor: Ints) -> Longs:
    """The arc by which each node is reached; -1 where there is none."""
    source = np.repeat(np.arange(len(rows.start) - 1, dtype=np.int32), np.diff(rows.start))
    taken = np.flatnonzero(predecessor[rows.neighbor] == source)
    arc = np.full(len(predecessor), -1, dtype=np.int64)
    arc[rows.neighbor[taken]] = taken
    return arc


def _access(
    below: Underlay, start: Longs, node: Ints, size: Longs, count: Longs, messages: Longs, payload: Longs
) -> float:
    """Count the access links: the publisher's once where an event leaves, each destination's once."""
    length = np.diff(start)
    leaves = length > 1
    sets = np.repeat(np.arange(len(length)), length)
    arrives = np.ones(len(node), dtype=np.bool_)
    arrives[start[:-1]] = False
    root = node[start[:-1]][leaves]
    mine, to = messages[len(below.ends) :], node[arrives]
    theirs, owner = payload[len(below.ends) :], sets[arrives]
    np.add.at(mine[:, 0], root, count[leaves])
    np.add.at(theirs[:, 0], root, size[leaves])
    np.add.at(mine[:, 1], to, count[owner])
    np.add.at(theirs[:, 1], to, size[owner])
    return float(mine.sum(axis=1) @ below.access_latency_ms)


@compiled
def count_routes(
    predecessor: Ints,
    start: Longs,
    node: Ints,
    size: Longs,
    count: Longs,
    first: int,
    last: int,
    stamp: Longs,
    crossed: Longs,
    carried: Longs,
) -> None:
    """Add, at each node, the events and bytes that reach it from its predecessor: each set's once.

    Sets `first` to `last` have one root, the search's. `stamp` holds -1. O(nodes of the routes).
    """
    for i in range(first, last):
        stamp[node[start[i]]] = i
        for k in range(start[i] + 1, start[i + 1]):
            v = node[k]
            while stamp[v] != i:
                stamp[v] = i
                crossed[v] += count[i]
                carried[v] += size[i]
                v = predecessor[v]
