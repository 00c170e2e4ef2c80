"""Groups of classes: how alike they are, what they cost, how they are merged, and the plan they make.

Owns what the schemes of Majumder et al. (2009) share: the merge sequence by document overlap (Algorithm 3,
`agglomerate`), groups with their destination sets and costs (`Ledger`), the greedy merging by cost
(Algorithm 2, `merge_by_gain`), homes for classes that no group needs (section VI, `grouped_plan`). A
document is an event of the demand, so a pattern seen three times is three documents. Trees are made by
`compute_tree`; the loops are in `grouping_kernels.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.compiled import Ints, SmallInts
from ramify.content.filters.filters import Filter
from ramify.content.matching.encoding import access_paths
from ramify.errors import InputError, LimitError
from ramify.network.trees.trees import Tree, same_both_ways, tree_lengths
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import price
from ramify.planning.schemes.majumder.compute_tree import TreeMaker
from ramify.planning.schemes.majumder.grouping_kernels import (
    count_shared,
    distances_on_tree,
    merge_by_overlap,
    merge_documents,
    shared_minima,
    take_over,
)
from ramify.planning.schemes.scheme import Progress, channel, put_together, silent

__all__ = [
    "MOST_CLUSTERS",
    "Agglomeration",
    "Group",
    "Ledger",
    "MergedGroups",
    "agglomerate",
    "alike",
    "deadline_after",
    "grouped_plan",
    "merge_by_gain",
    "merge_free",
    "require_limits",
]

Floats = npt.NDArray[np.float64]

MOST_CLUSTERS = 25_000
"""Clusters that `agglomerate` accepts: the table of what pairs share takes 2 K^2 bytes, here 1.25 GB."""
GAIN_TOLERANCE = 1e-9
"""Relative gains below this are rounding."""
PAIRS_COMPARED = 8
"""Members of a group that are compared with a filter, where no value of an attribute tells them apart."""
COMPARISONS = 20_000
"""Filters that are compared in all to find homes."""


def require_limits(seconds: float | None, **counts: int | None) -> None:
    """Raise `InputError` unless the budget of seconds is positive and each count is 1 or more, or None."""
    if seconds is not None and not seconds > 0:
        raise InputError(f"seconds = {seconds!r}. Allowed: more than 0, or None for no limit.")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"{name} = {count!r}. Allowed: 1 or more.")


def deadline_after(seconds: float | None) -> float:
    """When a budget that starts now ends, by `perf_counter`."""
    return np.inf if seconds is None else perf_counter() + seconds


# ------------------------------------------------------------------------------ Algorithm 3: by overlap


@dataclass(frozen=True, slots=True)
class Agglomeration:
    """Clusters of classes, merged pair by pair until one is left.

    Attributes
    ----------
    cluster      int32[c]: the first cluster of each class, -1 where no document matches it. Classes that
                 match the same documents are in one; clusters are numbered by their smallest class
    merges       int32[k - 1, 2]: clusters i < j become cluster i
    similarity   float64[k - 1]: |Di & Dj| / |Di | Dj| of each merge
    """

    cluster: SmallInts
    merges: SmallInts
    similarity: Floats

    @property
    def clusters(self) -> int:
        """How many there are before the first merge."""
        return int(self.cluster.max(initial=-1)) + 1

    def after(self, merges: int) -> SmallInts:
        """int32[c]: the cluster of each class after the first merges, numbered 0, 1, .. in order; or -1."""
        top = np.arange(self.clusters)
        top[self.merges[:merges, 1]] = self.merges[:merges, 0]  # a cluster is merged away once
        for k in range(len(top)):
            top[k] = top[top[k]]  # ascending: what k was merged into is smaller, and done
        named = np.unique(top, return_inverse=True)[1]
        found = np.full(len(self.cluster), -1, dtype=np.int32)
        found[self.cluster >= 0] = named[self.cluster[self.cluster >= 0]]
        return found


def agglomerate(demand: Demand, classes: int) -> Agglomeration:
    """Merge the two clusters whose documents overlap most, by Jaccard's coefficient, until one is left.

    Ties go to the smallest clusters. O(K^2) for K distinct document sets and few searches again per merge,
    and the sum over documents of the square of the clusters they match. Raises `LimitError` above
    `MOST_CLUSTERS`.
    """
    cluster = _same_documents(demand, np.zeros(classes, dtype=np.int32))
    count = int(cluster.max(initial=-1)) + 1
    if count > MOST_CLUSTERS:
        raise LimitError(
            f"{count} subscriptions with different documents; at most {MOST_CLUSTERS} can be merged by "
            "overlap. Plan with a smaller sample of events."
        )
    start, member, worth = _documents(demand, cluster)
    size = np.bincount(member, weights=np.repeat(worth, np.diff(start)), minlength=count).astype(np.int64)
    kind = np.int32 if size.sum() < 2**31 else np.int64
    shared: npt.NDArray[Any] = np.zeros(count * (count - 1) // 2, dtype=kind)
    count_shared(start, member, worth, count, shared)
    merges = np.empty((max(count - 1, 0), 2), dtype=np.int32)
    similarity = np.empty(len(merges))
    head, following = _places(member, count)
    merge_by_overlap(start, member, worth, head, following, size, shared, merges, similarity)
    return Agglomeration(cluster, merges, similarity)


def alike(problem: Problem) -> SmallInts:
    """int32[c]: numbers 0, 1, .. by first class, equal for classes of one broker with the same documents.

    -1 for classes that no document matches.
    """
    return _same_documents(problem.demand, problem.classes.broker)


def _same_documents(demand: Demand, kind: SmallInts) -> SmallInts:
    """The cluster of each class: those of one kind that match the same patterns are in one."""
    classes = len(kind)
    order = np.argsort(demand.classes, kind="stable")
    pattern = np.repeat(np.arange(len(demand)), np.diff(demand.start))[order].astype(np.int32)
    ends = np.searchsorted(demand.classes[order], np.arange(classes + 1)).tolist()
    cluster = np.full(classes, -1, dtype=np.int32)
    seen: dict[tuple[int, bytes], int] = {}
    for k in range(classes):
        if ends[k] < ends[k + 1]:
            key = int(kind[k]), pattern[ends[k] : ends[k + 1]].tobytes()
            cluster[k] = seen.setdefault(key, len(seen))
    return cluster


def _documents(demand: Demand, cluster: SmallInts) -> tuple[Ints, SmallInts, Ints]:
    """The distinct sets of clusters that patterns match, as compressed rows, and how many events each."""
    sums: dict[tuple[int, ...], int] = {}
    of_class = cluster.tolist()
    given, ends = demand.classes.tolist(), demand.start.tolist()
    for i, count in enumerate(demand.count.tolist()):
        row = tuple(sorted({of_class[k] for k in given[ends[i] : ends[i + 1]]}))
        if row:
            sums[row] = sums.get(row, 0) + count
    start = np.cumsum([0, *map(len, sums)], dtype=np.int64)
    member = np.array([k for row in sums for k in row], dtype=np.int32)
    return start, member, np.array(list(sums.values()), dtype=np.int64)


def _places(member: SmallInts, clusters: int) -> tuple[Ints, Ints]:
    """The first place of each cluster, and after each place the next of the same cluster; -1 where none."""
    order = np.argsort(member, kind="stable")
    following = np.full(len(member), -1, dtype=np.int64)
    same = member[order[:-1]] == member[order[1:]]
    following[order[:-1][same]] = order[1:][same]
    first = np.searchsorted(member[order], np.arange(clusters))
    return order[first].astype(np.int64), following


# -------------------------------------------------------------------------------------- groups and costs


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Classes that share a tree, the patterns that match any of them, and what they cost on the tree.

    `sets` are ids of the maker: per pattern the publisher's broker and the hosts of the group's classes.
    """

    classes: SmallInts
    pattern: Ints
    sets: Ints
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """What groups of one problem cost, by one maker of trees."""

    problem: Problem
    maker: TreeMaker

    def start(self, label: SmallInts, deadline: float = np.inf) -> list[Group]:
        """The groups 0, 1, .. of a label per class (-1: in no group), priced.

        After the deadline a group costs what its documents would on trees of their own: quick to tell.
        """
        pattern, group, ids = self._rows(label)
        ends = np.searchsorted(group, np.arange(int(label.max(initial=-1)) + 2))
        return [
            self._priced(
                np.flatnonzero(label == g).astype(np.int32), pattern[low:high], ids[low:high], deadline
            )
            for g, (low, high) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
        ]

    def joined(self, a: Group, b: Group) -> Group:
        """Two groups as one. Only documents of both need new Steiner trees."""
        pattern, chosen = np.empty((2, len(a.pattern) + len(b.pattern)), dtype=np.int64)
        shared, of_a, of_b = np.empty((3, min(len(a.pattern), len(b.pattern))), dtype=np.int64)
        count, common = merge_documents(
            a.pattern, a.sets, b.pattern, b.sets, pattern, chosen, shared, of_a, of_b
        )
        chosen[shared[:common]] = self.maker.united(of_a[:common], of_b[:common])
        classes = np.union1d(a.classes, b.classes).astype(np.int32)
        return self._priced(classes, pattern[:count].copy(), chosen[:count].copy())

    def tree(
        self, group: Group, *, deadline: float = np.inf, exchange: bool = True, trees: int = 1
    ) -> Tree:
        """The spanning tree of a group; see `TreeMaker.tree`."""
        weight = self.problem.pattern_weight[group.pattern]
        publisher = self.problem.demand.publisher[group.pattern]
        return self.maker.tree(
            group.sets, weight, publisher, deadline=deadline, exchange=exchange, trees=trees
        )

    def stays_home(self, group: Group) -> bool:
        """Whether no document of the group leaves its publisher's broker."""
        return bool((self.maker.size(group.sets) < 2).all())

    def _priced(self, classes: SmallInts, pattern: Ints, sets: Ints, deadline: float = np.inf) -> Group:
        weight = self.problem.pattern_weight[pattern]
        late = perf_counter() > deadline
        cost = self.maker.steiner_sum(sets, weight) if late else self.maker.cost(sets, weight)
        return Group(classes, pattern, sets, cost)

    def _rows(self, label: SmallInts) -> tuple[Ints, Ints, Ints]:
        """Per (group, pattern), sorted: the pattern, the group, and the id of its set."""
        demand, brokers = self.problem.demand, len(self.problem.overlay)
        of_class = label[demand.classes].astype(np.int64)
        grouped = of_class >= 0
        pattern = np.repeat(np.arange(len(demand)), np.diff(demand.start))[grouped]
        key = of_class[grouped] * len(demand) + pattern
        rows = np.unique(key)
        host = self.problem.classes.broker[demand.classes[grouped]].astype(np.int64)
        own = demand.publisher[rows % max(len(demand), 1)].astype(np.int64)
        every = np.unique(np.concatenate((key * brokers + host, rows * brokers + own)))
        first = np.searchsorted(every, rows * brokers)
        start = np.append(first, len(every)).astype(np.int64)
        ids = self.maker.ids(start, (every % brokers).astype(np.int32))
        return rows % max(len(demand), 1), rows // max(len(demand), 1), ids


# --------------------------------------------------------------------------------- Algorithm 2: by gain


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """Where greedy merging ended: `finished` when no pair gains, else the budget was used up.

    `merges` are pairs of positions in the groups it began with; (i, j) with i < j became group i. `tried`
    is how many pairs were priced.
    """

    groups: list[Group]
    merges: list[tuple[int, int]]
    finished: bool
    tried: int


def merge_by_gain(
    ledger: Ledger, groups: Sequence[Group], progress: Progress, deadline: float = np.inf
) -> MergedGroups:
    """Merge the pair with the largest gain over its cost until none gains: Algorithm 2, lazily.

    The same merges as if every pair were priced in every step, ties to the smallest positions. A pair is
    priced only when its bound is the largest left. With lb a lower bound on what joins a set, on any tree,

        cost(i and j) >= sum lb over documents of i or j, with the larger lb where a document is of both
        gain(i, j) <= slack_i + slack_j + sum over shared documents of the smaller lb

    where slack is cost less the sum of lb. It needs lb to be valid, not tight: dual ascent, rather than
    the cost of a Steiner tree, which may be above the optimum. The heap holds the bound over
    cost_i + cost_j, so it bounds the ratio that the algorithm compares.
    """
    if perf_counter() > deadline:
        return MergedGroups(list(groups), [], False, 0)
    return _Greedy(ledger, groups, deadline).run(progress, deadline)


def merge_free(ledger: Ledger, groups: Sequence[Group]) -> list[Group]:
    """The groups, with those that cost nothing as one, which costs nothing either: it needs no paid link.

    Merging them gains nothing, so Algorithm 2 leaves them apart: a tree each, for events that stay home or
    cross links for nothing.
    """
    free = [group for group in groups if not group.cost]
    return [*(group for group in groups if group.cost), *([reduce(ledger.joined, free)] if free else [])]


class _Greedy:
    """The state of one greedy merging: groups by position, candidates in a heap."""

    def __init__(self, ledger: Ledger, groups: Sequence[Group], deadline: float = np.inf) -> None:
        self.ledger = ledger
        self.groups: list[Group | None] = list(groups)
        self.weight = ledger.problem.pattern_weight
        self.merges: list[tuple[int, int]] = []
        self.tried = 0
        self._age = [0] * len(groups)
        self._slack = np.zeros(len(groups))
        self._cost = np.array([group.cost for group in groups])
        # Largest ratio first; of equals, bounds before what was priced, then the smallest positions.
        self._heap: list[tuple[float, bool, int, int, int, int]] = []
        self._late = not self._enter_patterns(groups, deadline)
        for i in range(len(groups)):
            self._late = self._late or perf_counter() > deadline
            if self._late:
                return
            self._heap += self._candidates(i, np.arange(i + 1, len(groups)))
        heapify(self._heap)

    def run(self, progress: Progress, deadline: float) -> MergedGroups:
        """Merge until nothing gains or the time is over."""
        groups, heap, ages = self.groups, self._heap, self._age
        finished = not self._late
        while heap and finished:
            _, priced, i, j, age_i, age_j = heappop(heap)
            if ages[i] != age_i or ages[j] != age_j or groups[i] is None or groups[j] is None:
                continue
            if perf_counter() > deadline:
                finished = False
                continue
            if priced:
                self._merge(i, j)
                left = len(groups) - len(self.merges)
                progress(0.9 * (1 - left / len(groups)), f"{left} groups, {self.tried} pairs priced")
                continue
            gain = self._price(i, j)
            if gain > GAIN_TOLERANCE:
                heappush(heap, (-gain, True, i, j, age_i, age_j))
        kept = [group for group in groups if group is not None]
        return MergedGroups(kept, self.merges, finished, self.tried)

    def _price(self, i: int, j: int) -> float:
        """The relative gain of a pair, as printed in Algorithm 2."""
        self.tried += 1
        apart = float(self._cost[i] + self._cost[j])
        return (apart - self._join(i, j).cost) / apart

    def _join(self, i: int, j: int) -> Group:
        a, b = self.groups[i], self.groups[j]
        assert a is not None, "candidates of groups that are gone are skipped"
        assert b is not None, "likewise"
        return self.ledger.joined(a, b)

    def _merge(self, i: int, j: int) -> None:
        merged = self._join(i, j)
        self.merges.append((i, j))
        self.groups[i], self.groups[j] = merged, None
        self._cost[i] = merged.cost
        self._age[i] += 1
        bound = self._bound(i, merged)
        take_over(i, j, merged.pattern, bound, self._start, self._member, self._member_bound)
        others = np.array([k for k, group in enumerate(self.groups) if group is not None and k != i])
        for entry in self._candidates(i, others.astype(np.int64)):
            heappush(self._heap, entry)

    def _enter_patterns(self, groups: Sequence[Group], deadline: float) -> bool:
        """Compressed rows: which groups each pattern is of, with the bound of its set; False when late."""
        bounds = []
        for i, group in enumerate(groups):
            if perf_counter() > deadline:
                return False
            bounds.append(self._bound(i, group))
        pattern = np.concatenate([np.empty(0, dtype=np.int64), *(group.pattern for group in groups)])
        order = np.argsort(pattern, kind="stable")
        patterns = len(self.ledger.problem.demand)
        self._start = np.searchsorted(pattern[order], np.arange(patterns + 1)).astype(np.int64)
        length = [len(group.pattern) for group in groups]
        self._member = np.repeat(np.arange(len(groups), dtype=np.int32), length)[order]
        self._member_bound = np.concatenate([np.empty(0), *bounds])[order]
        return True

    def _bound(self, i: int, group: Group) -> Floats:
        """The bounds of a group's sets; keeps its slack."""
        bound = self.ledger.maker.bounds(group.sets)
        self._slack[i] = max(group.cost - float(bound @ self.weight[group.pattern]), 0.0)
        return bound

    def _candidates(self, i: int, others: Ints) -> list[tuple[float, bool, int, int, int, int]]:
        """Heap entries of the pairs of i that may gain."""
        group = self.groups[i]
        assert group is not None, "candidates are for groups that are there"
        total = np.empty(len(self.groups))
        bound = self.ledger.maker.bounds(group.sets)
        shared_minima(
            i, group.pattern, bound, self.weight, self._start, self._member, self._member_bound, total
        )
        apart = self._cost[i] + self._cost[others]
        most = self._slack[i] + self._slack[others] + total[others]
        # Half the tolerance is more than rounding: what is left out gains less than the tolerance.
        ratio = most / np.where(apart > 0, apart, np.inf) + GAIN_TOLERANCE / 2
        good = ratio > GAIN_TOLERANCE
        age = self._age
        return [
            (-value, False, min(i, k), max(i, k), age[min(i, k)], age[max(i, k)])
            for value, k in zip(ratio[good].tolist(), others[good].tolist(), strict=True)
        ]


# ------------------------------------------------------------------------------------- homes and the plan


def grouped_plan(
    scheme: str,
    ledger: Ledger,
    groups: Sequence[Group],
    settings: Mapping[str, Any],
    progress: Progress,
    deadline: float = np.inf,
) -> Plan:
    """A channel per group on its own spanning tree; every class in exactly one.

    Classes of no group, and of groups whose documents never leave their broker, cost nothing wherever they
    are: by section VI they join, one after the other, the group whose cost they raise least, and all tie.
    The largest overlap of filters decides: how many filters of the group, those that joined before
    included, ask for the same value (keyword, interval) of an attribute, counted for every value; where
    no group has any, how many of `PAIRS_COMPARED` members of each overlap at all. Then the smallest mean
    distance from the publishers on the group's tree, then the smallest group.

    Where the deadline is over when the trees are made, the settings say `cut_short` and no `planned_cost`.
    """
    made = _built(scheme, ledger, groups, settings, progress, deadline, exchange=True)
    late = perf_counter() > deadline
    if ledger.maker.method != "swap" or late or same_both_ways(ledger.problem.overlay):
        return made
    # Trees are chosen by what planning counts, which is more than the payload: no dearer by that either.
    start = _built(scheme, ledger, groups, settings, silent, deadline, exchange=False)
    return min((made, start), key=lambda plan: price(plan, ledger.problem.demand).cost)


def _built(
    scheme: str,
    ledger: Ledger,
    groups: Sequence[Group],
    settings: Mapping[str, Any],
    progress: Progress,
    deadline: float,
    *,
    exchange: bool,
) -> Plan:
    problem = ledger.problem
    travelling = [group for group in groups if not ledger.stays_home(group)]
    members = [group.classes for group in travelling]
    trees = []
    for at, group in enumerate(travelling):
        trees.append(ledger.tree(group, deadline=deadline, exchange=exchange, trees=len(travelling)))
        progress(1.0 - 0.1 * (1 - at / len(travelling)), "building trees")
    stated = {name: value for name, value in settings.items() if value is not None}
    if perf_counter() > deadline:
        stated["cut_short"] = True
        stated.pop("planned_cost", None)  # it is of other trees
    rest = np.setdiff1d(np.arange(len(problem.classes)), np.concatenate([[], *members]))
    if len(rest) and not trees:
        nothing = np.empty(0, dtype=np.int64)
        members, trees = [rest.astype(np.int32)], [ledger.maker.tree(nothing, np.empty(0))]
    elif len(rest):
        home = _homes(problem, members, trees, rest.tolist())
        members = [np.union1d(own, rest[home == g]) for g, own in enumerate(members)]
    order = sorted(range(len(trees)), key=lambda g: int(members[g][0]))
    channels = [channel(f"group-{n}", problem, trees[g], members[g]) for n, g in enumerate(order)]
    return put_together(scheme, problem, channels, stated)


def _homes(
    problem: Problem, members: Sequence[SmallInts], trees: Sequence[Tree], rest: Sequence[int]
) -> Ints:
    """The group that each class of the rest joins."""
    overlap = _Overlap(problem, members)
    away = np.stack([_mean_distances(problem, tree) for tree in trees])
    home = np.empty(len(rest), dtype=np.int64)
    for at, k in enumerate(rest):
        best = overlap.largest(k)
        host = int(problem.classes.broker[k])
        home[at] = best[int(np.argmin(away[best, host]))]
        overlap.enter(k, int(home[at]))
    return home


class _Overlap:
    """Which groups have filters like a given one."""

    def __init__(self, problem: Problem, members: Sequence[SmallInts]) -> None:
        self._classes = problem.classes
        self._members = members
        self._left = COMPARISONS
        self._alike: dict[str, Counter[int]] = {}
        self._groups: dict[object, Counter[int]] = {}
        for g, own in enumerate(members):
            for k in own.tolist():
                self.enter(k, g)

    def enter(self, k: int, group: int) -> None:
        """Count what class k asks for among its group's."""
        for value in _values(self._classes.filters[k]):
            self._groups.setdefault(value, Counter())[group] += 1

    def largest(self, k: int) -> Ints:
        """The groups, ascending, that overlap most with the filter of class k; all where none does."""
        scores: Counter[int] = Counter()
        for value in _values(self._classes.filters[k]):
            scores.update(self._groups.get(value, {}))
        return self._best(scores or self._compared(k))

    def _best(self, scores: Counter[int]) -> Ints:
        most = max(scores.values(), default=0)
        if not most:
            return np.arange(len(self._members))
        return np.array(sorted(g for g, score in scores.items() if score == most), dtype=np.int64)

    def _compared(self, k: int) -> Counter[int]:
        """How many of a few members of each group overlap with the filter of class k; kept by spelling."""
        spelled, wanted = self._classes.spelled[k].text, self._classes.filters[k]
        if spelled not in self._alike:
            few = [own[:: -(-len(own) // PAIRS_COMPARED)].tolist() for own in self._members]
            self._left -= sum(map(len, few))
            if self._left < 0:
                return Counter()
            found = {
                g: sum(wanted.overlaps(self._classes.filters[m]) for m in own) for g, own in enumerate(few)
            }
            self._alike[spelled] = Counter(found)
        return self._alike[spelled]


def _values(wanted: Filter) -> Iterable[object]:
    """The values of attributes that a filter asks for: keywords, numbers, intervals of ranges."""
    return {
        (access.path, feature)
        for box in wanted.boxes
        for access in access_paths(box)
        for feature in access.features
    }


def _mean_distances(problem: Problem, tree: Tree) -> Floats:
    """Per broker the mean distance on a tree from the events' publishers, or from all where none are."""
    demand = np.zeros(len(problem.overlay))
    recent = problem.demand.recent
    np.add.at(demand, problem.demand.publisher, problem.demand.count if recent is None else recent[0])
    if not demand.any():
        demand[problem.publishers] = 1.0
    total = np.empty(len(demand))
    length = tree_lengths(problem.overlay, tree, problem.weight)
    distances_on_tree(tree.order, tree.parent, length, demand, total)
    mean: Floats = total / demand.sum()
    return mean
