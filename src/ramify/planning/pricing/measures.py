"""The measures of Cao and Singh, section IV-C, of any priced plan.

Owns storage as they count it; the rest is taken from the price. A server on a filtered tree keeps, for each
neighbour, the parts of subscriptions behind it, and its own. A part is what one proxy has of a
subscription: channels on the same tree share its parts, so that nothing is counted twice where the cells of
a zone are in several channels. On a flooded tree a server keeps what it serves. Original subscriptions,
which every server keeps for its own clients, are not counted.

`State.entries` is less for the same plan: it counts a part only at brokers between those where events of
its cells enter, which the paper's servers, joining whole trees, do not tell apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.planning.plans.plan import Cells, Channel, ChannelTree, Everything, Plan, Pruning
from ramify.planning.pricing.price import Price

__all__ = ["Measures", "measures", "stored_parts"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Measures:
    """What the paper's figures show.

    Attributes
    ----------
    storage          int64[n]: parts of subscriptions at each server
    storage_share    of all subscriptions (classes) those that a server knows of, mean over servers
    processing       servers on a tree that match an event to route it, per event: not a publisher's server
                     that sends it to a proxy, nor one that is notified at last, which the price counts too.
                     None for plans that do not filter on one tree per cell, as in the paper
    node_stress      float64[n]: messages received and sent by each server, per 1,000 events
    link_stress      messages on each link below, per 1,000 events
    nru              latency of all crossings over that of ideal multicast; may be below 1
    """

    storage: Longs
    storage_share: float
    processing: float | None
    node_stress: Floats
    link_stress: Floats
    nru: float

    def figures(self) -> Mapping[str, float | int | None]:
        """All of it as plain numbers; NRU is None where ideal multicast sends nothing and the plan does."""
        return {
            "storage_mean": _mean(self.storage),
            "storage_max": int(self.storage.max(initial=0)),
            "storage_share": self.storage_share,
            "processing": self.processing,
            "node_stress_mean": _mean(self.node_stress),
            "node_stress_max": float(self.node_stress.max(initial=0.0)),
            "link_stress_mean": _mean(self.link_stress),
            "link_stress_max": float(self.link_stress.max(initial=0.0)),
            "nru": self.nru if np.isfinite(self.nru) else None,
        }


def measures(priced: Price) -> Measures:
    """The measures of a priced plan."""
    storage, known = stored_parts(priced.plan)
    live = int((~priced.plan.classes.vacant).sum())
    return Measures(
        storage,
        float(known.mean()) / live if live else 0.0,
        _processing(priced),
        priced.node_stress,
        priced.link_stress,
        priced.resource_usage,
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _processing(priced: Price) -> float | None:
    """What the price counts as matchings, less legs and final notifications. O(matches)."""
    plan, demand = priced.plan, priced.demand
    found = _entries_by_cell(plan)
    if found is None:
        return None
    entry, at = found
    cell = demand.cell if plan.grid is not None else np.zeros(len(demand), dtype=np.int32)
    legs = int(demand.count @ (entry[demand.publisher, cell] != demand.publisher))
    row = np.repeat(np.arange(len(demand)), np.diff(demand.start))
    host, proxy = plan.classes.broker[demand.classes], at[demand.classes, cell[row]]
    notified = (proxy >= 0) & (proxy != host) & (host != demand.publisher[row])
    # one for all classes of a host
    pairs = np.unique(row[notified] * len(plan.overlay) + host[notified])
    notes = int(demand.count[pairs // len(plan.overlay)].sum())
    return (priced.matchings - legs - notes) / demand.events if demand.events else 0.0


def _entries_by_cell(plan: Plan) -> tuple[Ints, Ints] | None:
    """int32[n, cells]: where events enter; int32[c, cells]: where each class is served, or -1.

    None where a cell has several channels, or one that does not filter all its events on a tree.
    """
    cells = 1 if plan.grid is None else plan.grid.size
    own = np.arange(len(plan.overlay), dtype=np.int32)
    entry = np.repeat(own[:, None], cells, axis=1)
    at = np.full((len(plan.classes), cells), -1, dtype=np.int32)
    taken = np.zeros(cells, dtype=np.int64)
    for channel in plan.channels:
        content, targets = channel.admits.content, channel.entry.targets
        plain = channel.admits.publishers is None and not (channel.serves.region >= 0).any()
        if (
            channel.pruning is not Pruning.FILTER
            or not isinstance(content, Cells | Everything)
            or not plain
        ):
            return None
        mine = content.cells if isinstance(content, Cells) else np.arange(cells)
        taken[mine] += 1
        if targets is not None:
            entry[:, mine] = np.where(targets < 0, own, targets)[:, None]
        at[np.ix_(channel.serves.classes, mine)] = channel.serves.at[:, None]
    return None if taken.max() > 1 else (entry, at)


def stored_parts(plan: Plan) -> tuple[Longs, Longs]:
    """int64[n] twice: the parts of subscriptions at each broker, and the classes that it knows of.

    O(brokers * classes) bits, O(entries log entries).
    """
    count = len(plan.overlay)
    parts = np.zeros(count, dtype=np.int64)
    known = np.zeros((count, len(plan.classes)), dtype=np.bool_)
    by_tree: dict[ChannelTree, list[Channel]] = {}
    for channel in plan.channels:
        if channel.tree is not None and channel.pruning is Pruning.FILTER:
            by_tree.setdefault(channel.tree, []).append(channel)
            continue
        pairs = _pairs(plan, [channel])
        np.add.at(parts, pairs[:, 1], 1)
        known[pairs[:, 1], pairs[:, 0]] = True
    for tree, channels in by_tree.items():
        pairs = _pairs(plan, channels)
        parts[tree.brokers] += len(pairs)
        known[np.ix_(tree.brokers, np.unique(pairs[:, 0]))] = True
    return parts, known.sum(axis=1).astype(np.int64)


def _pairs(plan: Plan, channels: Iterable[Channel]) -> Longs:
    """The distinct (class, server) pairs of some channels, of classes that have a member."""
    rows = [np.column_stack((channel.serves.classes, channel.serves.at)) for channel in channels]
    pairs = np.unique(np.concatenate(rows), axis=0).astype(np.int64)
    live: Longs = pairs[~plan.classes.vacant[pairs[:, 0]]]
    return live
