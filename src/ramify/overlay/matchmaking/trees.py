"""The directed trees that advertisements and subscriptions meet on, one per publishing broker and channel.

Owns how they are made: out of one shared tree, out of shortest paths per publisher, out of a plan's
channels. What to mark them with is `marking.py`'s.

A tree holds only links on a path from its origin to somebody it serves: where nobody listens, nothing has
to be said. Subscriptions of one broker that the same trees serve are a *group*.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError, OverlayError, PlanError
from ramify.network.graphs.distances import Weight, all_pairs
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.tree_kernels import OUTSIDE, orient
from ramify.network.trees.trees import closed
from ramify.overlay.matchmaking.marking_kernels import keep_needed
from ramify.planning.plans.plan import Channel, Plan

__all__ = ["Descriptors", "MatchTrees", "plan_trees"]

Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

Descriptors = Mapping[int, int]
"""Broker index -> how many content descriptors it has; one filter is one descriptor."""


@dataclass(frozen=True, eq=False)
class MatchTrees:
    """Directed trees, and what is published and subscribed on them.

    Attributes
    ----------
    origin     int64[k]: the publishing broker whose tree it is; one may have several trees
    parent     int32[k, n]: the broker above; -1 at a tree's root, -2 outside
    published  f: descriptors by publishing broker
    broker     int64[u]: where each group of subscriptions is
    wanted     int64[u], g: descriptors of each group
    served     bool[k, u]: which groups a tree serves
    """

    origin: Ints
    parent: SmallInts
    published: Descriptors
    broker: Ints
    wanted: Ints
    served: Flags

    @classmethod
    def shared(cls, nodes: int, links: npt.ArrayLike, f: Descriptors, g: Descriptors) -> "MatchTrees":
        """One undirected tree, int[m, 2], used away from each publisher: a core-based tree. O(|P| n)."""
        pairs = closed(np.asarray(links, dtype=np.int32).reshape(-1, 2), np.int32)
        parent = np.empty((len(_positive(f)), nodes), dtype=np.int32)
        for row, root in enumerate(sorted(_positive(f))):
            orient(pairs, root, parent[row])
        return cls.directed(parent, f, g)

    @classmethod
    def per_source(
        cls, overlay: Overlay, f: Descriptors, g: Descriptors, weight: Weight = "price"
    ) -> "MatchTrees":
        """The tree of a publisher is the reverse of the shortest paths from subscribers to it.

        O(|P| m log n) for the paths.
        """
        # a path toward the publisher, searched from it: prices must be those of the way back
        turned = Overlay(
            overlay.name, overlay.brokers, overlay.ends, overlay.price[:, ::-1], overlay.latency_ms
        )
        found = all_pairs(turned, weight, sources=sorted(_positive(f)))
        parent = found.predecessor.astype(np.int32)
        parent[parent < 0] = OUTSIDE
        parent[np.arange(len(parent)), found.sources] = -1
        return cls.directed(parent, f, g)

    @classmethod
    def directed(cls, parent: npt.ArrayLike, f: Descriptors, g: Descriptors) -> "MatchTrees":
        """From the brokers above, one row per publisher in ascending order; each serves every subscriber.

        Raises `OverlayError` for a subscriber that a tree does not reach.
        """
        above = np.array(parent, dtype=np.int32)
        origin = np.array(sorted(_positive(f)), dtype=np.int64)
        broker = np.array(sorted(_positive(g)), dtype=np.int64)
        for row, root in enumerate(origin.tolist()):
            _prune(above[row], root, broker)
        served = np.ones((len(origin), len(broker)), dtype=bool)
        wanted = np.array([g[y] for y in broker.tolist()], dtype=np.int64)
        return cls(origin, above, _positive(f), broker, wanted, served)


def plan_trees(
    plan: Plan, advertised: Mapping[str, int], channels: Sequence[int] | None = None
) -> tuple[MatchTrees, Ints]:
    """The trees of a plan's channels, and of which channel each is.

    `advertised` is the number of advertisements by broker name; the plan's own classes are what is
    subscribed. A publishing broker has a tree on each channel that admits it, from where its events enter.
    Channels without a tree (headers, copies) have no links to mark: `PlanError`.
    """
    counts = {_index(plan.overlay, name): n for name, n in advertised.items() if n > 0}
    ids = range(len(plan.channels)) if channels is None else channels
    sets = {c: _classes_at(plan.channels[c]) for c in ids}
    broker, wanted, member = _groups(plan, sets)
    rows: list[SmallInts] = []
    origin: list[int] = []
    of: list[int] = []
    served: list[Flags] = []
    for c in ids:
        channel = plan.channels[c]
        if channel.tree is None:
            raise PlanError("the plan cannot be marked", [f"channel {channel.name} has no tree to mark"])
        groups = np.array([c in on for on in member], dtype=bool)
        for x in sorted(counts):
            if channel.admits.publishers is not None and x not in channel.admits.publishers:
                continue
            rows.append(_rooted(plan, channel, x, broker[groups]))
            origin.append(x)
            of.append(c)
            served.append(groups)
    parent = np.array(rows, dtype=np.int32).reshape(-1, len(plan.overlay))
    trees = MatchTrees(
        np.array(origin, dtype=np.int64),
        parent,
        counts,
        broker,
        wanted,
        np.array(served, dtype=bool).reshape(len(rows), len(broker)),
    )
    return trees, np.array(of, dtype=np.int64)


def _classes_at(channel: Channel) -> list[tuple[int, int]]:
    return list(zip(channel.serves.classes.tolist(), channel.serves.at.tolist(), strict=True))


def _groups(
    plan: Plan, sets: Mapping[int, Iterable[tuple[int, int]]]
) -> tuple[Ints, Ints, list[frozenset[int]]]:
    """Classes that the same channels serve at the same broker: the broker, how many descriptors, where."""
    on: dict[tuple[int, int], set[int]] = {}
    for c, entries in sets.items():
        for entry in entries:
            on.setdefault(entry, set()).add(c)
    size: dict[tuple[int, frozenset[int]], int] = {}
    for (k, at), channels in on.items():
        key = at, frozenset(channels)
        size[key] = size.get(key, 0) + len(plan.classes.members[k])
    keys = sorted((key for key, n in size.items() if n), key=lambda key: (key[0], sorted(key[1])))
    broker = np.array([at for at, _ in keys], dtype=np.int64)
    return broker, np.array([size[key] for key in keys], dtype=np.int64), [where for _, where in keys]


def _rooted(plan: Plan, channel: Channel, origin: int, ends: Ints) -> SmallInts:
    assert channel.tree is not None
    root = channel.entry.target(origin)
    if root not in channel.tree.brokers:
        name = plan.overlay.brokers[origin]
        raise PlanError(
            "the plan cannot be marked",
            [f"events of {name} do not enter the tree of channel {channel.name}: plan with that publisher"],
        )
    parent = np.empty(len(plan.overlay), dtype=np.int32)
    orient(closed(channel.tree.links, np.int32), root, parent)
    _prune(parent, root, ends)
    return parent


def _prune(parent: SmallInts, root: int, ends: Ints) -> None:
    lost = keep_needed(parent, root, ends.astype(np.int32))
    if lost >= 0:
        raise OverlayError(f"the tree of broker {root} does not reach broker {lost}, which it serves")


def _positive(counts: Descriptors) -> dict[int, int]:
    if any(n < 0 for n in counts.values()):
        raise InputError("a broker cannot have a negative number of descriptors")
    return {broker: n for broker, n in counts.items() if n > 0}


def _index(overlay: Overlay, name: str) -> int:
    if name not in overlay.index:
        raise OverlayError(f"unknown broker {name!r} in overlay {overlay.name}. Choose one of its own.")
    return overlay.index[name]
