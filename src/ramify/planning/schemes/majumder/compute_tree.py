"""One tree for many terminal sets: COMPUTETREE, Algorithm 1 of Majumder et al. (2009), and a better one.

Problem    Weighted terminal sets (per document its publisher's broker and the subscribers' brokers). Find a
           spanning tree on which the sum of weight times the smallest sub-tree of each set is small.
Idea       Join every set by a Steiner tree of its own. Their union G' has an edge multiplicity: the weight
           of the trees that use the edge. A low-stretch tree of G' detours no edge by much, so no document.
           Brokers outside G' hang from it by shortest paths.
Guarantee  A spanning tree, within O(log^2 n log log n) of the best one (Theorem IV.1) where the low-stretch
           tree keeps its bound: see `network.trees.lowstretch`. Optimal when every set is a pair with one
           broker in common, or when G' has no cycle.
Cost       A Steiner tree per distinct set, ever; then O(m log n) for the tree and O(k log k) per set of k.
Departures The star decomposition starts from several centres and the cheapest tree is kept. `swap`: that
           tree, AKPW's, the one of the busiest links, the best shortest-path tree and the minimum spanning
           tree, each improved by exchanging links (`network.trees.swaps`), and of all these the cheapest,
           at the price in the direction travelled: our own. Where Steiner trees do not touch, G' is joined
           by shortest paths of multiplicity 0. Where all sets are pairs with one broker in common, its
           shortest-path tree is taken: the optimum. Links for nothing count as a thousandth of the shortest
           while the low-stretch tree is built.

Owns the store of terminal sets and their Steiner trees, and what a group of them costs. `TreeMaker` works
with ids of sets, so that a set which many groups share is kept and joined once.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ramify.compiled import Ints, SmallInts
from ramify.errors import InputError
from ramify.network.graphs.distances import arc_weights
from ramify.network.trees.blocks import split
from ramify.network.trees.lowstretch import akpw_tree, star_decomposition_tree
from ramify.network.trees.steiner import dual_ascent
from ramify.network.trees.swaps import improve
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.tree_kernels import kruskal
from ramify.network.trees.trees import (
    ROOT_BUDGET,
    MeasuredTree,
    Tree,
    best_root_spt,
    closed,
    directed_costs,
    measured,
    minimum_spanning_tree,
    same_both_ways,
    shortest_path_tree,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.majumder.grouping_kernels import add_links, hang_rest, unite_rows

__all__ = ["Method", "TreeMaker", "require_method"]

Method: TypeAlias = Literal["star", "akpw", "swap"]
"""How a tree is made of G': star decomposition (the paper's), AKPW, or star and others, each with swaps."""

Floats = npt.NDArray[np.float64]

NO_GAIN = 1e-3
"""The length of a link for nothing where a positive one is needed, in shares of the shortest."""
CENTRES = 4
"""Star decompositions that are tried besides the one around the centroid."""
BUSY = 16
"""Brokers that are looked at to find their centres."""
THOROUGH = 8
"""Trees of one plan up to which swaps begin from every start, not from the cheapest alone."""
ROOT_SHARE = 0.1
"""Of `ROOT_BUDGET`, per second left before a deadline: a quarter of the time goes into the best root."""


def require_method(method: str) -> None:
    """Raise `InputError` for a name that is not a `Method`."""
    if method not in get_args(Method):
        raise InputError(f"unknown tree method {method!r}. Allowed: {', '.join(get_args(Method))}.")


class TreeMaker:
    """COMPUTETREE over one problem. Keeps every terminal set with its Steiner tree, and costs of groups.

    A set is known by its brokers alone: links weigh the same both ways here, whatever broker publishes.
    `seed` is for AKPW. Results depend on the sets given and not on what was asked before.
    """

    def __init__(self, problem: Problem, method: Method = "star", seed: int = 0) -> None:
        require_method(method)
        self.problem = problem
        self.method = method
        self.seed = seed
        self.priced = 0  # groups whose tree was built to know their cost
        lengths = problem.lengths
        paid = lengths[lengths > 0]
        stand_in = float(paid.min()) * NO_GAIN if len(paid) else 1.0
        self._positive = np.where(lengths > 0, lengths, stand_in)
        self._store = _Store()
        self._bounds = np.empty(0)
        self._costs: dict[bytes, float] = {}

    def __len__(self) -> int:
        """How many distinct sets were met."""
        return len(self._store)

    def ids(self, start: Ints, node: SmallInts) -> Ints:
        """The id of each set: compressed rows of ascending brokers. New sets get a Steiner tree."""
        found, new = self._store.ids(start, node)
        if len(new):
            sets = self._store.take(new, np.ones(len(new)))
            trees = self.problem.steiner.trees(sets, "blocks")
            self._store.add_trees(trees.cost, trees.start, trees.link)
        return found

    def united(self, a: Ints, b: Ints) -> Ints:
        """The ids of the unions of sets, pair by pair."""
        store = self._store
        room = int((store.size(a) + store.size(b)).sum())
        start, node = np.empty(len(a) + 1, dtype=np.int64), np.empty(room, dtype=np.int32)
        used = unite_rows(store.start, store.node, a, b, start, node)
        return self.ids(start, node[:used])

    def sets(self, ids: Ints, weight: Floats) -> TerminalSets:
        """The sets of more than one broker that weigh anything, each once, by ascending id."""
        return self._store.take(*self._distinct(ids, weight))

    def size(self, ids: Ints) -> Ints:
        """How many brokers each set has."""
        return self._store.size(ids)

    def steiner_sum(self, ids: Ints, weight: Floats) -> float:
        """What the sets would cost on trees of their own."""
        return float(self._store.cost[ids] @ weight)

    def bounds(self, ids: Ints) -> Floats:
        """What no tree can join each set for (dual ascent, computed once per set)."""
        known = len(self._bounds)
        if known < len(self._store):
            self._bounds = np.concatenate((self._bounds, np.full(len(self._store) - known, np.nan)))
        asked = np.unique(ids)
        missing = asked[np.isnan(self._bounds[asked])]
        if len(missing):
            sets = self._store.take(missing, np.ones(len(missing)))
            # The tree is a bound of the bound: rounding must not lift one above the other.
            self._bounds[missing] = np.minimum(self._ascend(sets), self._store.cost[missing])
        return self._bounds[ids]

    def cost(self, ids: Ints, weight: Floats) -> float:
        """What the sets cost on the tree of `star` or `akpw`; `swap` is priced as `star`. Kept.

        Only the part of the tree on G' is built: the other brokers make no difference.
        """
        distinct, summed = self._distinct(ids, weight)
        key = hashlib.blake2b(distinct.tobytes() + summed.tobytes(), digest_size=16).digest()
        if key not in self._costs:
            self._costs[key] = self._priced(distinct, summed)
        return self._costs[key]

    def tree(
        self,
        ids: Ints,
        weight: Floats,
        publisher: SmallInts | None = None,
        *,
        deadline: float = np.inf,
        exchange: bool = True,
        trees: int = 1,
    ) -> Tree:
        """The spanning tree for a group of sets, one of so many `trees` of a plan.

        `swap` keeps the cheapest tree at the price in the direction travelled where the `publisher` of each
        set is given, else at the mean price. Without `exchange` it makes the tree of `star`. After the
        `deadline` (by `perf_counter`) no links are exchanged, and low-stretch trees have one centre.
        """
        chosen, weights = self._distinct(ids, weight)
        sets = self._store.take(chosen, weights)
        if not len(sets):
            return self._central()
        hub = _hub(sets)
        if hub >= 0:
            return shortest_path_tree(self.problem.overlay, hub, self.problem.weight)
        union = self._union(chosen, weights)
        if perf_counter() > deadline:
            return self._spanning(union, _heaviest(union) if union.forest else self._one(union))
        tree = self._spanning(union, self._cheapest(union, sets)[0])
        judged = self._judge(ids, weight, publisher)
        # What joins every set by its Steiner tree is the best by mean prices, not by those of each way.
        if self.method != "swap" or not exchange or (union.forest and not judged.directed):
            return tree
        return self._exchanged(
            [tree, *self._more(union, sets, deadline, trees)], sets, judged, deadline, trees
        )

    def _more(self, union: "_Union", sets: TerminalSets, deadline: float, trees: int) -> list[Tree]:
        """Trees to begin swaps from, besides the low-stretch one of `star`."""
        made = [akpw_tree(*self._multigraph(union), seed=self.seed), _heaviest(union)]
        overlay, weight = self.problem.overlay, self.problem.weight
        share = min(1.0, ROOT_SHARE * max(deadline - perf_counter(), 0.0))
        best = best_root_spt(overlay, sets, weight, budget=int(ROOT_BUDGET * share / trees))
        return [*(self._spanning(union, chosen) for chosen in made), best, self._minimum]

    def _exchanged(
        self, starts: list[Tree], sets: TerminalSets, judged: "_Judge", deadline: float, trees: int
    ) -> Tree:
        """The cheapest of the starts and of what swaps make of them; ties to the first made."""
        begun = sorted(dict.fromkeys(starts), key=judged.cost)
        made = begun[:1]
        for tree in begun if trees <= THOROUGH else begun[:1]:
            left = deadline - perf_counter()
            if left <= 0:
                break
            seconds = None if left == np.inf else left
            overlay, weight = self.problem.overlay, self.problem.weight
            # Swaps go by mean prices: with a price per direction, what they gain may be lost again.
            made.append(improve(overlay, tree, sets, weight, seconds=seconds).tree)
        return min(made, key=judged.cost)

    def _judge(self, ids: Ints, weight: Floats, publisher: SmallInts | None) -> "_Judge":
        if publisher is None or self._even:
            return _Judge(self.problem, self.sets(ids, weight), None)
        brokers = len(self.problem.overlay)
        key, where = np.unique(ids * brokers + publisher, return_inverse=True)
        summed = np.bincount(where, weights=weight, minlength=len(key)).astype(np.float64)
        kept = (self._store.size(key // brokers) > 1) & (summed > 0)
        sets = self._store.take(key[kept] // brokers, summed[kept])
        return _Judge(self.problem, sets, (key[kept] % brokers).astype(np.int32))

    @cached_property
    def _even(self) -> bool:
        return same_both_ways(self.problem.overlay)

    @cached_property
    def _minimum(self) -> Tree:
        return minimum_spanning_tree(self.problem.overlay, self.problem.weight)

    def _distinct(self, ids: Ints, weight: Floats) -> tuple[Ints, Floats]:
        """Each id once, ascending, with its summed weight, where joining it may cost anything."""
        distinct, where = np.unique(ids, return_inverse=True)
        summed = np.bincount(where, weights=weight, minlength=len(distinct)).astype(np.float64)
        kept = (self._store.size(distinct) > 1) & (summed > 0)
        return distinct[kept], summed[kept]

    def _ascend(self, sets: TerminalSets) -> Floats:
        steiner = self.problem.steiner
        blocks = steiner.blocks
        parts = split(sets, blocks)
        weights = arc_weights(steiner.overlay, steiner.weight)[blocks.arc]
        bound = dual_ascent(blocks.start, blocks.neighbor, weights, parts.apart(blocks))
        return np.bincount(parts.owner, weights=bound, minlength=len(sets)).astype(np.float64)

    def _priced(self, ids: Ints, weight: Floats) -> float:
        sets = self._store.take(ids, weight)
        if not len(sets):
            return 0.0
        self.priced += 1
        if _hub(sets) >= 0:
            return self.steiner_sum(ids, weight)
        union = self._union(ids, weight)
        if union.forest:
            return self.steiner_sum(ids, weight)
        return self._cheapest(union, sets)[1]

    def _cheapest(self, union: "_Union", sets: TerminalSets) -> tuple[SmallInts, float]:
        """The links of the cheapest tree that we make of a union, and its cost; ties to the first made."""
        inside = TerminalSets(sets.start, union.place[sets.node], sets.weight)
        made = [_heaviest(union)] if union.forest else self._low_stretch(union, inside)
        costs = [self._on_tree(union, chosen, inside) for chosen in made]
        at = int(np.argmin(costs))
        return made[at], costs[at]

    def _on_tree(self, union: "_Union", chosen: SmallInts, inside: TerminalSets) -> float:
        ends = union.ends[chosen]
        tree = Tree.of_links(len(union.brokers), ends, 0)
        length = np.zeros(len(union.brokers))
        below = np.where(tree.parent[ends[:, 1]] == ends[:, 0], ends[:, 1], ends[:, 0])
        length[below] = self.problem.lengths[union.links[chosen]]
        return MeasuredTree.of(tree, length).total(inside)

    def _union(self, ids: Ints, weight: Floats) -> "_Union":
        """G' of the sets, joined where it falls apart."""
        count = np.zeros(len(self.problem.lengths))
        store = self._store
        add_links(store.tree_start, store.link, ids, weight, count)
        union = _Union.of(self.problem, np.flatnonzero(count), count)
        if union.parts == 1:
            return union
        links = np.union1d(union.links, self._joints(union))
        joined = _Union.of(self.problem, links, count)
        return _Union(
            joined.links, joined.brokers, joined.place, joined.ends, joined.count, 1, union.forest
        )

    def _joints(self, union: "_Union") -> Ints:
        """Links of shortest paths that join the parts: the nearest to the first part, and so on."""
        steiner, brokers = self.problem.steiner, union.brokers
        label = _labels(len(brokers), union.ends)
        reached = label == label[0]
        near, source = np.full(len(brokers), np.inf), np.zeros(len(brokers), dtype=np.int64)
        fresh = brokers[reached]
        pairs: list[tuple[int, int]] = []
        while not reached.all():
            waiting = np.flatnonzero(~reached)
            rows = steiner.distance[np.ix_(fresh, brokers[waiting])]
            best = rows.argmin(axis=0)
            least = rows[best, np.arange(len(waiting))]
            nearer = least < near[waiting]
            near[waiting[nearer]], source[waiting[nearer]] = least[nearer], fresh[best[nearer]]
            at = waiting[np.argmin(near[waiting])]
            path = [int(brokers[at])]
            while path[-1] != source[at]:
                path.append(int(steiner.predecessor[source[at], path[-1]]))
            pairs += pairwise(path)
            places = union.place[path]
            joined = np.isin(label, label[places[places >= 0]]) & ~reached
            reached |= joined
            fresh = np.union1d(path, brokers[joined])
        return _link_ids(self.problem, pairs)

    def _low_stretch(self, union: "_Union", inside: TerminalSets) -> list[SmallInts]:
        """Links of low-stretch trees: AKPW's, or star decompositions around several centres.

        The algorithm lets the first centre be any node, and the choice matters more than all that follows:
        the cost over its optimum was 8 to 19 % on one union, by the centre alone.
        """
        made = [self._one(union)]
        if self.method == "akpw":
            return made
        nodes, ends, length, count = self._multigraph(union)
        # A link to nowhere, with as much multiplicity as all others, makes its end the centre of demand,
        # which is where `star_decomposition_tree` starts. It is in every tree: we leave it out again.
        lengths, counts = np.append(length, length.min()), np.append(count, max(count.sum(), 1.0))
        for centre in self._centres(union, inside):
            pairs = np.concatenate((ends, np.array([[centre, nodes]], dtype=np.int32)))
            links = star_decomposition_tree(nodes + 1, pairs, lengths, counts)
            made.append(links[links < len(ends)])
        return made

    def _one(self, union: "_Union") -> SmallInts:
        """Links of the low-stretch tree that takes least time: AKPW's, or around the centroid."""
        if self.method == "akpw":
            return akpw_tree(*self._multigraph(union), seed=self.seed)
        return star_decomposition_tree(*self._multigraph(union))

    def _multigraph(self, union: "_Union") -> tuple[int, SmallInts, Floats, Floats]:
        return len(union.brokers), union.ends, self._positive[union.links], union.count

    def _centres(self, union: "_Union", inside: TerminalSets) -> list[int]:
        """The brokers nearest to the terminals, by weight, among those whose links are used most."""
        nodes = len(union.brokers)
        used = np.bincount(union.ends.ravel(), weights=np.repeat(union.count, 2), minlength=nodes)
        busy = np.argsort(-used, kind="stable")[:BUSY]
        demand = np.bincount(
            inside.node, weights=np.repeat(inside.weight, np.diff(inside.start)), minlength=nodes
        )
        away = self.problem.steiner.distance[np.ix_(union.brokers[busy], union.brokers)] @ demand
        return [int(c) for c in busy[np.argsort(away, kind="stable")[:CENTRES]]]

    def _spanning(self, union: "_Union", chosen: SmallInts) -> Tree:
        """The tree on G', with every other broker hung from it by a shortest path."""
        problem = self.problem
        inside = Tree.of_links(len(union.brokers), union.ends[chosen], 0)
        parent = np.full(len(problem.overlay), -2, dtype=np.int32)
        above = inside.parent
        parent[union.brokers] = np.where(above >= 0, union.brokers[np.maximum(above, 0)], -1)
        near = problem.steiner.distance[union.brokers].min(axis=0).astype(np.float64)
        adjacency = problem.overlay.adjacency
        weights = arc_weights(problem.overlay, problem.weight)
        queue = np.empty(len(parent), dtype=np.int32)
        hang_rest(
            closed(union.brokers, np.int32),
            adjacency.start,
            adjacency.neighbor,
            weights,
            near,
            parent,
            queue,
        )
        return Tree.of_parents(parent, int(union.brokers[0]))

    def _central(self) -> Tree:
        """For no demand: the shortest-path tree of the broker that is nearest to all."""
        nearness = self.problem.steiner.distance.sum(axis=1, dtype=np.float64)
        return shortest_path_tree(self.problem.overlay, int(np.argmin(nearness)), self.problem.weight)


@dataclass(frozen=True, slots=True)
class _Union:
    """G': overlay links, its brokers (ascending), their places, ends by place, multiplicities."""

    links: Ints
    brokers: SmallInts
    place: SmallInts
    ends: SmallInts
    count: Floats
    parts: int
    forest: bool

    @classmethod
    def of(cls, problem: Problem, links: Ints, count: Floats) -> "_Union":
        pairs = problem.overlay.ends[links]
        inside = np.zeros(len(problem.overlay), dtype=np.bool_)
        inside[pairs.ravel()] = True
        brokers = np.flatnonzero(inside).astype(np.int32)
        place = np.full(len(problem.overlay), -1, dtype=np.int32)
        place[brokers] = np.arange(len(brokers), dtype=np.int32)
        ends = closed(place[pairs], np.int32)
        order = closed(np.arange(len(links)), np.int64)
        taken = kruskal(ends, order, len(brokers), np.empty(len(brokers), dtype=np.int32))
        return cls(links, brokers, place, ends, count[links], len(brokers) - taken, taken == len(links))


@dataclass(frozen=True, slots=True)
class _Judge:
    """What sets cost on a tree: with senders at the price of each way, else by the problem's weight."""

    problem: Problem
    sets: TerminalSets
    sender: SmallInts | None

    @property
    def directed(self) -> bool:
        return self.sender is not None

    def cost(self, tree: Tree) -> float:
        overlay = self.problem.overlay
        if self.sender is None:
            return measured(overlay, tree, self.problem.weight).total(self.sets)
        return float(directed_costs(overlay, tree, self.sets, self.sender) @ self.sets.weight)


class _Store:
    """Terminal sets by id and their Steiner trees, in arrays that grow."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._start = _ArrayList(np.int64, [0])
        self._node = _ArrayList(np.int32)
        self._cost = _ArrayList(np.float64)
        self._tree_start = _ArrayList(np.int64, [0])
        self._link = _ArrayList(np.int32)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def start(self) -> Ints:
        return self._start.values

    @property
    def node(self) -> SmallInts:
        return self._node.values

    @property
    def cost(self) -> Floats:
        return self._cost.values

    @property
    def tree_start(self) -> Ints:
        return self._tree_start.values

    @property
    def link(self) -> SmallInts:
        return self._link.values

    def size(self, ids: Ints) -> Ints:
        """How many brokers each set has."""
        sizes: Ints = self.start[ids + 1] - self.start[ids]
        return sizes

    def take(self, ids: Ints, weight: Floats) -> TerminalSets:
        """Some sets, weighted."""
        length = self.size(ids)
        start = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
        at = np.arange(int(start[-1])) + np.repeat(self.start[ids] - start[:-1], length)
        return TerminalSets(start, self.node[at], weight)

    def ids(self, start: Ints, node: SmallInts) -> tuple[Ints, Ints]:
        """The id of each row, and the new ids among them, ascending."""
        text = np.ascontiguousarray(node, dtype=np.int32).tobytes()
        ends = (start * 4).tolist()
        known, before = self._known, len(self._known)
        found = np.empty(len(ends) - 1, dtype=np.int64)
        first: list[int] = []
        for i in range(len(found)):
            at = known.setdefault(text[ends[i] : ends[i + 1]], len(known))
            if at == before + len(first):
                first.append(i)
            found[i] = at
        rows = np.array(first, dtype=np.int64)
        length = start[rows + 1] - start[rows]
        stop = np.cumsum(length)
        at_node = np.arange(int(length.sum())) + np.repeat(start[rows] - (stop - length), length)
        self._start.extend(int(self.start[-1]) + stop)
        self._node.extend(node[at_node])
        return found, np.arange(before, len(known))

    def add_trees(self, cost: Floats, start: Ints, link: SmallInts) -> None:
        """The trees of the newest sets."""
        self._tree_start.extend(int(self.tree_start[-1]) + start[1:])
        self._cost.extend(cost)
        self._link.extend(link)


class _ArrayList:
    """An array that is added to at its end; `values` is what it holds. Doubles its room."""

    def __init__(self, dtype: npt.DTypeLike, values: list[int] | None = None) -> None:
        self._room = np.empty(64, dtype=dtype)
        self._used = 0
        self.extend(np.array(values or [], dtype=dtype))

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._room[: self._used]

    def extend(self, values: npt.NDArray[Any]) -> None:
        used = self._used + len(values)
        if used > len(self._room):
            room = np.empty(max(used, 2 * len(self._room)), dtype=self._room.dtype)
            room[: self._used] = self.values
            self._room = room
        self._room[self._used : used] = values
        self._used = used


def _hub(sets: TerminalSets) -> int:
    """The broker that all sets share where all are pairs; -1 where there is none. The smaller of two."""
    if len(sets.node) != 2 * len(sets):
        return -1
    pairs = sets.node.reshape(-1, 2)
    for broker in pairs[0].tolist():
        if (pairs == broker).any(axis=1).all():
            return int(broker)
    return -1


def _heaviest(union: _Union) -> SmallInts:
    """The spanning tree of the links that most documents use; ties to the smaller link."""
    order = closed(np.argsort(-union.count, kind="stable"), np.int64)
    chosen = np.empty(len(union.brokers) - 1, dtype=np.int32)
    kruskal(union.ends, order, len(union.brokers), chosen)
    return chosen


def _labels(nodes: int, ends: SmallInts) -> Ints:
    """The part of each node, named by its smallest node."""
    label = np.arange(nodes)
    while True:
        least = np.minimum(label[ends[:, 0]], label[ends[:, 1]])
        before = label.copy()
        np.minimum.at(label, ends[:, 0], least)
        np.minimum.at(label, ends[:, 1], least)
        label = label[label]
        if np.array_equal(label, before):
            return label


def _link_ids(problem: Problem, pairs: list[tuple[int, int]]) -> Ints:
    """The overlay's numbers of links between brokers."""
    start, neighbor, link, _ = problem.overlay.adjacency
    found = []
    for a, b in pairs:
        at = int(start[a]) + int(np.searchsorted(neighbor[start[a] : start[a + 1]], b))
        found.append(int(link[at]))
    return np.unique(np.array(found, dtype=np.int64))
