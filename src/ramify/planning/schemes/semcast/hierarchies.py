"""Containment hierarchies: which profiles share a channel because one covers the other.

Problem    Profiles that cover each other may share a channel; that pays only where the tree grows little.
Idea       A profile whose sampled messages are among another's may join that one's hierarchy. Profiles are
           taken by falling rate. Each is compared: joining the hierarchy of a candidate parent, which
           raises that channel's edges, against a hierarchy of its own. The cheaper is taken; cost is rate
           times estimated edges. Edges are estimated with brokers that join in random order, the first by
           the shortest path from the rendezvous point, the others through the nearest that is in already.
Guarantee  Every profile is in exactly one hierarchy, under a parent whose sampled messages include its own,
           or whose filter covers it. A hierarchy's expression is any-of its profiles, so containment that
           only the sample shows excludes nobody.
Cost       O(containment pairs * brokers of both) for the estimates, `orders` times.
Departures Profiles with equal sampled messages contain each other and would leave no root: they are made
           one first. "The hierarchy of a parent" is that of its topmost profile, which sets the rate that
           newcomers pay for; among parents in the same hierarchy the one with the largest overlap is
           taken. A profile that matched nothing costs nothing by itself, so by the same comparison it joins
           a hierarchy whose filter covers it where that takes no further edge, else it is a root.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.2.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.content.filters.filters import Filter
from ramify.planning.demand.overlap import Overlap
from ramify.planning.schemes.semcast.kernels import edges_alone, near_alone, unite, united_edges

__all__ = [
    "MOST_COMPARED",
    "EdgeEstimate",
    "Hierarchies",
    "Reach",
    "build_hierarchies",
    "containers",
    "covering_profiles",
    "parents_by_overlap",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

NO_PARENT = -1
MOST_COMPARED = 50_000
"""Pairs of filters that are compared for profiles which matched nothing; the rest keep their channel."""


# ------------------------------------------------------------------------------------------- estimates


@dataclass(frozen=True, slots=True)
class Reach:
    """Brokers that a channel must reach, ascending, and for each order what every one pays to join.

    `near` is float64[k, orders]: the distance to the nearest that comes earlier, inf for the first.
    """

    brokers: Ints
    near: Floats


class EdgeEstimate:
    """How many edges (or how much link weight) a tree to some brokers takes: see the module.

    `distance` is between brokers, the same both ways. The orders are drawn once, so that estimates of one
    problem can be compared.
    """

    def __init__(self, distance: npt.NDArray[np.generic], orders: int, rng: np.random.Generator) -> None:
        # one type for all weights, so that kernels are compiled once
        self.distance: Floats = np.array(distance, dtype=np.float64)
        ranks = [rng.permutation(len(distance)) for _ in range(orders)]
        self.rank = np.array(ranks, dtype=np.int32).reshape(orders, len(distance))

    def reach(self, brokers: npt.ArrayLike) -> Reach:
        """Of a set of brokers. O(orders * k^2)."""
        member = np.unique(np.asarray(brokers, dtype=np.int32)).astype(np.int32)
        near = np.empty((len(member), len(self.rank)))
        near_alone(member, self.rank, self.distance, near)
        return Reach(member, near)

    def edges(self, reach: Reach, point: int) -> float:
        """What its tree takes from a rendezvous point."""
        return edges_alone(reach.brokers, reach.near, point, self.distance)

    def together(self, one: Reach, other: Reach, point: int) -> float:
        """What the tree of both takes. O(orders * k1 * k2)."""
        low = np.empty((2, max(len(one.brokers), len(other.brokers))))
        return united_edges(
            one.brokers, one.near, other.brokers, other.near, point, self.rank, self.distance, low
        )

    def unite(self, one: Reach, other: Reach) -> Reach:
        """Both as one. O(orders * k1 * k2)."""
        room = len(one.brokers) + len(other.brokers)
        member, near = np.empty(room, dtype=np.int32), np.empty((room, len(self.rank)))
        given = (one.brokers, one.near, other.brokers, other.near)
        count = unite(*given, self.rank, self.distance, member, near)
        return Reach(member[:count].copy(), near[:count].copy())


# ----------------------------------------------------------------------------------------- containment


def containers(overlap: Overlap) -> tuple[list[list[tuple[int, float]]], Ints]:
    """Candidate parents, and which profiles are one.

    For each profile c the (p, O[c][p]) with O[p][c] = 1, p not c; and for each profile the first with equal
    messages. Those that are not the first of their equals are neither parents nor have any.
    """
    count = len(overlap)
    row = np.repeat(np.arange(count), np.diff(overlap.start))
    key = row * count + overlap.column
    whole = (overlap.value >= 1) & (row != overlap.column)
    above, below = row[whole], overlap.column[whole]
    turned = below * np.int64(count) + above
    at = np.minimum(np.searchsorted(key, turned), max(len(key) - 1, 0))
    share = np.where(key[at] == turned, overlap.value[at], 0.0) if len(key) else np.zeros(0)
    first = np.arange(count, dtype=np.int32)
    equal = share >= 1
    np.minimum.at(first, below[equal], above[equal].astype(np.int32))
    found: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    heads = first == np.arange(count)
    kept = heads[above] & heads[below]
    rows = zip(above[kept].tolist(), below[kept].tolist(), share[kept].tolist(), strict=True)
    for p, c, back in rows:
        found[c].append((p, back))
    return found, first


def parents_by_overlap(overlap: Overlap) -> Ints:
    """int32[p]: the candidate parent with the largest overlap, no cost asked; -1 for roots.

    The matrix alone decides, as in the paper's Table 1. A profile equal to an earlier one hangs from it.
    """
    candidates, first = containers(overlap)
    parent = np.full(len(overlap), NO_PARENT, dtype=np.int32)
    for c, above in enumerate(candidates):
        if first[c] != c:
            parent[c] = first[c]
        elif above:
            parent[c] = max(above, key=lambda each: (each[1], -each[0]))[0]
    return parent


def covering_profiles(
    filters: Sequence[Filter], unseen: Iterable[int], most: int = MOST_COMPARED
) -> tuple[dict[int, list[int]], int]:
    """For each unseen profile the others whose filter covers it, and how many pairs were left out.

    Only filters that ask for no further attribute can cover; of those at most `most` pairs are compared.
    O(profiles * distinct sets of attributes) besides.
    """
    alike: dict[frozenset[str], list[int]] = {}
    for p, filter_ in enumerate(filters):
        alike.setdefault(frozenset(filter_.paths), []).append(p)
    fewer = {paths: [other for other in alike if other <= paths] for paths in alike}
    found: dict[int, list[int]] = {}
    room, left_out = most, 0
    for u in unseen:
        found[u] = []
        sets = fewer[frozenset(filters[u].paths)]
        asked = sorted(p for paths in sets for p in alike[paths] if p != u) if room else []
        left_out += sum(len(alike[paths]) for paths in sets) - 1 - len(asked[:room])
        for p in asked[:room]:
            if filters[p].covers(filters[u]):
                found[u].append(p)
        room -= len(asked[:room])
    return found, left_out


# ----------------------------------------------------------------------------------------- hierarchies


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """A partition of profiles.

    Attributes
    ----------
    parent    int32[p]: -1 for a root
    of        int32[p]: the hierarchy of each profile
    members   the profiles of each hierarchy, ascending
    point     int32[h]: the rendezvous point that costs were estimated with
    reach     the brokers of each
    """

    parent: Ints
    of: Ints
    members: tuple[tuple[int, ...], ...]
    point: Ints
    reach: tuple[Reach, ...]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.members)


@dataclass(slots=True)
class _HierarchyDraft:
    """A hierarchy while it is built."""

    rate: float
    point: int
    edges: float
    reach: Reach
    members: list[int]


def build_hierarchies(
    overlap: Overlap,
    hosts: Sequence[Ints],
    estimate: EdgeEstimate,
    points: npt.ArrayLike,
    covers: Callable[[list[int]], dict[int, list[int]]] = lambda unseen: {},
) -> Hierarchies:
    """Hierarchies by cost: see the module.

    `hosts` are the brokers of each profile, `points` the rendezvous point that each would have as a root,
    `covers` says for profiles that matched nothing which others cover them by syntax.
    """
    chosen = np.asarray(points, dtype=np.int32)
    candidates, first = containers(overlap)
    equals: dict[int, list[int]] = {}
    for p, head in enumerate(first.tolist()):
        equals.setdefault(head, []).append(p)
    seen = [p for p in equals if overlap.rate[p] > 0]
    # by the first of equals: a matrix that no messages realise may give them different rates
    unseen = [p for p in range(len(overlap)) if not overlap.rate[first[p]] > 0]
    made = _Builder(overlap.rate, hosts, estimate, chosen)
    for p in sorted(seen, key=lambda p: (-overlap.rate[p], p)):
        made.place(p, equals[p], candidates[p])
    covered = covers(unseen)
    for p in unseen:
        made.place(p, [p], [(other, 0.0) for other in covered.get(p, ()) if overlap.rate[other] > 0])
    return made.done()


class _Builder:
    def __init__(self, rate: Floats, hosts: Sequence[Ints], estimate: EdgeEstimate, points: Ints) -> None:
        self._rate, self._hosts, self._estimate, self._points = rate, hosts, estimate, points
        self._parent = np.full(len(rate), NO_PARENT, dtype=np.int32)
        self._of = np.full(len(rate), NO_PARENT, dtype=np.int32)
        self._made: list[_HierarchyDraft] = []

    def place(self, p: int, equal: list[int], candidates: list[tuple[int, float]]) -> None:
        """Join the cheapest hierarchy of a candidate parent, or open one; ties join."""
        brokers = np.unique(np.concatenate([self._hosts[q] for q in equal]))
        own = self._estimate.reach(brokers)
        alone = self._estimate.edges(own, int(self._points[p]))
        parents: dict[int, tuple[float, int]] = {}
        for above, share in candidates:
            tree = int(self._of[above])
            if tree != NO_PARENT:  # a matrix that no messages realise may name a parent that comes later
                parents[tree] = max(parents.get(tree, (-1.0, 0)), (share, -above))
        best, chosen, grown = float(self._rate[p]) * alone, NO_PARENT, 0.0
        for tree in sorted(parents, key=lambda tree: (-parents[tree][0], tree)):
            home = self._made[tree]
            edges = self._estimate.together(home.reach, own, home.point)
            rise = home.rate * (edges - home.edges)
            if rise < best or (rise == best and chosen == NO_PARENT):
                best, chosen, grown = rise, tree, edges
        self._parent[equal] = p
        if chosen == NO_PARENT:
            self._parent[p] = NO_PARENT
            self._of[equal] = len(self._made)
            point = int(self._points[p])
            self._made.append(_HierarchyDraft(float(self._rate[p]), point, alone, own, list(equal)))
            return
        self._parent[p] = -parents[chosen][1]
        self._of[equal] = chosen
        home = self._made[chosen]
        home.reach = self._estimate.unite(home.reach, own)
        home.edges = grown
        home.members += equal

    def done(self) -> Hierarchies:
        return Hierarchies(
            self._parent,
            self._of,
            tuple(tuple(sorted(each.members)) for each in self._made),
            np.array([each.point for each in self._made], dtype=np.int32),
            tuple(each.reach for each in self._made),
        )
