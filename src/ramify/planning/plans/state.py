"""Routing state: how many filters each broker must store to route by a plan.

A broker stores a class's filter for a channel when some event may have to be forwarded through it
toward that class, when it serves the class itself, or when it admits events to the channel by matching
them. On a filtered tree the first is so exactly for the brokers on the paths from the brokers where
events enter to the one that serves the class. Any broker may publish unless the channel says otherwise.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled
from ramify.network.trees.trees import Tree
from ramify.planning.plans.layout import Layout
from ramify.planning.plans.plan import (
    All,
    AnyOf,
    Channel,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Some,
    Stamped,
)

__all__ = [
    "StoredFilters",
    "admitting",
    "asked_classes",
    "between_entries",
    "routing_state",
    "toward_entry",
]

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StoredFilters:
    """Stored filters.

    Attributes
    ----------
    filters    int64[n]: distinct filters at each broker, whatever the channels
    entries    int64[n]: (channel, class) pairs at each broker
    by_hop     mean `entries` of the brokers at each distance from their channel's root, where it has one
    """

    filters: npt.NDArray[np.int64]
    entries: npt.NDArray[np.int64]
    by_hop: tuple[float, ...]


def routing_state(layout: Layout) -> StoredFilters:
    """Count what every broker stores. O(channels * (brokers + classes * depth)), a bit per filter."""
    plan = layout.plan
    brokers = len(plan.overlay)
    filter_of = _filter_numbers(plan)
    bits = np.zeros((brokers, (int(filter_of.max(initial=-1)) >> 6) + 1), dtype=np.uint64)
    entries = np.zeros(brokers, dtype=np.int64)
    hop_sum: dict[int, list[int]] = {}
    done: set[tuple[bytes, bytes]] = set()
    for channel, tree in zip(plan.channels, layout.trees, strict=True):
        stored = np.zeros(brokers, dtype=np.int64)
        between, admits = between_entries(channel, tree, brokers), admitting(channel, brokers)
        live = ~plan.classes.vacant[channel.serves.classes]
        served = np.unique(channel.serves.classes[live])
        for where, classes in ((between, served), (admits, np.union1d(served, asked_classes(channel)))):
            stored[where] = len(classes)
            mask = _mask(filter_of, classes.astype(np.int64), bits.shape[1])
            key = (mask.tobytes(), where.tobytes())
            if key not in done:  # channels of a portfolio differ in their trees only
                done.add(key)
                bits[where] |= mask
        order = np.flatnonzero(live)[np.argsort(channel.serves.classes[live], kind="stable")]
        store_along(
            toward_entry(tree if between.any() else None, between, brokers),
            between.astype(np.uint8),
            admits.astype(np.uint8),
            channel.serves.classes[order],
            channel.serves.at[order],
            filter_of,
            np.full(brokers, -1, dtype=np.int32),
            stored,
            bits,
        )
        entries += stored
        if tree is not None and channel.tree is not None and channel.tree.root is not None:
            for broker, hop in enumerate(tree.depth_hops().tolist()):
                if hop >= 0:
                    both = hop_sum.setdefault(hop, [0, 0])
                    both[0] += int(stored[broker])
                    both[1] += 1
    by_hop = tuple(hop_sum[hop][0] / hop_sum[hop][1] for hop in sorted(hop_sum))
    return StoredFilters(np.bitwise_count(bits).sum(axis=1).astype(np.int64), entries, by_hop)


def _mask(filter_of: Ints, classes: npt.NDArray[np.int64], words: int) -> npt.NDArray[np.uint64]:
    """The filters of some classes, a bit each."""
    mask = np.zeros(words, dtype=np.uint64)
    for number in np.unique(filter_of[classes]).tolist():
        mask[number >> 6] |= np.uint64(1) << np.uint64(number & 63)
    return mask


def _filter_numbers(plan: Plan) -> Ints:
    """Classes with equal filters share a number."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(f.key, len(numbers)) for f in plan.classes.filters], dtype=np.int32)


def _publishers(channel: Channel, brokers: int) -> npt.NDArray[np.bool_]:
    allowed = channel.admits.publishers
    publishers = np.full(brokers, allowed is None)
    publishers[sorted(allowed or ())] = True
    return publishers


def admitting(channel: Channel, brokers: int) -> npt.NDArray[np.bool_]:
    """Which brokers must match an event against every class of a channel before they admit it."""
    asks = isinstance(channel.admits.content, AnyOf | Stamped | Holds)
    # Where events carry their way in a header, publishers' brokers must know the destinations.
    writes = channel.pruning in (Pruning.TREE, Pruning.DESTINATIONS, Pruning.COPIES)
    return _publishers(channel, brokers) if asks or writes else np.zeros(brokers, dtype=bool)


def between_entries(channel: Channel, tree: Tree | None, brokers: int) -> npt.NDArray[np.bool_]:
    """Which brokers forward toward every class of a filtered channel: those between its entries."""
    if channel.pruning is not Pruning.FILTER or tree is None:
        return np.zeros(brokers, dtype=bool)
    at = np.flatnonzero(_publishers(channel, brokers))
    targets = channel.entry.targets
    entered = at if targets is None else np.where(targets[at] < 0, at, targets[at])
    return _spanned(tree, entered[tree.parent[entered] != -2])


def _spanned(tree: Tree, brokers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """The brokers of the least part of a tree that joins the given ones."""
    inside = np.zeros(len(tree.parent), dtype=bool)
    if not len(brokers):
        return inside
    below = np.zeros(len(tree.parent), dtype=np.int64)
    chosen = np.unique(brokers)
    below[chosen] = 1
    for v in tree.order[:0:-1].tolist():
        below[tree.parent[v]] += below[v]
    inside[(below > 0) & (below < len(chosen))] = True
    inside[chosen] = True
    whole = np.flatnonzero(below == len(chosen))
    if len(whole):  # the lowest broker with all of them below joins them
        depth = tree.depth_hops()[whole]
        inside[whole[int(np.argmax(depth))]] = True
    return inside


def toward_entry(tree: Tree | None, stores: npt.NDArray[np.bool_], brokers: int) -> Ints:
    """Parents on the way to a broker of `stores`; -1 at the top, -2 where there is no tree."""
    if tree is None:
        return np.full(brokers, -2, dtype=np.int32)
    on_tree = np.flatnonzero(stores & (tree.parent != -2))
    root = tree.root if not len(on_tree) or stores[tree.root] else int(on_tree[0])
    return tree.rerooted(root).parent


def asked_classes(channel: Channel) -> list[int]:
    """The classes that a channel's expression asks about."""
    found: list[int] = []

    def collect(expression: Expression) -> None:
        match expression:
            case Match(classes):
                found.extend(classes)
            case All(parts) | Some(parts):
                for part in parts:
                    collect(part)
            case Negation(part):
                collect(part)

    if isinstance(channel.admits.content, Holds):
        collect(channel.admits.content.expression)
    return found


@compiled
def store_along(
    parent: Ints,
    between: npt.NDArray[np.uint8],
    admits: npt.NDArray[np.uint8],
    classes: Ints,
    at: Ints,
    filter_of: Ints,
    last: Ints,
    stored: npt.NDArray[np.int64],
    bits: npt.NDArray[np.uint64],
) -> None:
    """Each class at the broker that serves it and up the tree, until a broker between the entries.

    Classes ascend; `last` holds -1, one per broker: the class that was last stored there, so that one of
    several entries is counted once. Brokers that admit have stored everything already.
    """
    for e in range(len(classes)):
        number: Int = filter_of[classes[e]]
        v: Int = at[e]
        while v >= 0 and between[v] == 0 and last[v] != classes[e]:
            last[v] = classes[e]
            if admits[v] == 0:
                stored[v] += 1
                bits[v, number >> 6] |= np.uint64(1) << np.uint64(number & 63)
            v = parent[v]
