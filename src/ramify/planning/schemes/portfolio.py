"""Portfolio: a few spanning trees for everybody; the publisher's broker picks the cheapest for each event.

Problem    Choose K spanning trees so that the destination sets of a sample, each on the tree where it is
           cheapest, cost as little as possible. Any event can travel any tree, so unseen sets are served
           too, nothing is sent twice, and the header grows by one small number.
Idea       Begin with one tree improved by swaps. Add trees one at a time: look at the sets that exceed
           their Steiner tree most, build for each a spanning tree that contains its Steiner tree and else
           follows the tree it travels now, keep the one that lowers the total most, and improve it on the
           sets it wins. Then Lloyd's loop (IEEE Trans. Inf. Theory 28, 1982): assign every set to its
           cheapest tree, improve each tree by swaps on its own sets, repeat until nothing is gained.
Held back  A tenth of the distinct sets, drawn by the seed, takes no part in the fit. It decides how many
           trees and how many rounds are kept, because swaps follow a small sample into its noise. The
           trees that are kept then take as many rounds with all sets, one at least.
Guarantee  On the training window never above the better of the best-root shortest-path tree and the
           minimum spanning tree: the fit never rises, the held part chooses among states that include that
           tree, the last step never rises. Every tree kept is the cheapest for some set.
Cost       A candidate tree costs O(n log n + m + terminals log terminals), a round as much per tree and
           the swaps.
Departures None: the scheme is our own. Swaps and new trees go by the mean price of a link; which of them
           are kept, and which set travels which tree, by the price in the direction travelled.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.network.trees.swaps import improve
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.tree_kernels import kruskal
from ramify.network.trees.trees import (
    Tree,
    best_root_spt,
    closed,
    directed_costs,
    measured,
    minimum_spanning_tree,
    same_both_ways,
    tree_lengths,
)
from ramify.planning.plans.plan import Plan, Stamped
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Progress, channel, put_together, silent

__all__ = ["PortfolioParams", "plan"]

Floats = npt.NDArray[np.float64]

MAX_TREES = 10_000
HELD_SHARE = 0.1
MIN_HELD = 10
"""With fewer held sets than this their choice would be chance: then none is held back."""
TREE_CANDIDATES = 64
"""Sets of most excess that a new tree is tried for. 8 cost 1 % more, 128 save less in twice the time."""
REFITS = 4
"""How often a new tree is improved on the sets it wins before the next is added."""
GAIN = 1e-6
"""A new tree or a round that gains no more than this share of the cost brings nothing."""


@dataclass(frozen=True, slots=True)
class PortfolioParams:
    """How many trees at most, and how long to look for them.

    trees     at most so many; fewer when more would not pay on the held part
    rounds    of Lloyd's loop, at most
    seconds   for the search. One that is cut short depends on the machine, and `cut_short` among the plan's
              settings tells; until then it does not. The first tree and the Steiner trees of the sets are
              made whatever it is
    """

    trees: int = 16
    rounds: int = 50
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.trees, bool) or not 1 <= self.trees <= MAX_TREES:
            raise InputError(f"trees = {self.trees!r}. Allowed: a whole number from 1 to {MAX_TREES:,}.")
        if isinstance(self.rounds, bool) or self.rounds < 0:
            raise InputError(f"rounds = {self.rounds!r}. Allowed: a whole number from 0.")
        if not 0 < self.seconds < np.inf:
            raise InputError(f"seconds = {self.seconds!r}. Allowed: a number above 0.")


def plan(
    problem: Problem, params: PortfolioParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """Stamped channels that all serve every class, one per tree. See the module."""
    deadline = perf_counter() + params.seconds
    trees = _portfolio(problem, params, rng, progress, deadline)
    cut_short = perf_counter() >= deadline
    everyone = np.arange(len(problem.classes))
    made = [
        channel(f"tree {k}", problem, tree, everyone, content=Stamped()) for k, tree in enumerate(trees)
    ]
    return put_together("portfolio", problem, made, {"trees_used": len(made), "cut_short": cut_short})


def _portfolio(
    problem: Problem,
    params: PortfolioParams,
    rng: np.random.Generator,
    progress: Progress,
    deadline: float,
) -> list[Tree]:
    first = _first(problem)
    if not len(problem.sets):
        return [first]
    search = _Search(problem, first, *_split(len(problem.sets), rng), deadline)
    search.refit()
    search.keep_if_best(0)
    while len(search.trees) < params.trees and not search.late() and search.add():
        progress(0.7 * len(search.trees) / params.trees, f"{len(search.trees)} trees")
        search.keep_if_best(0)
    for done in range(params.rounds):
        progress(0.7 + 0.25 * done / params.rounds, f"round {done + 1} of {len(search.trees)} trees")
        if search.late() or not search.refit():
            break
        search.keep_if_best(done + 1)
    return search.finished()


def _first(problem: Problem) -> Tree:
    """The cheaper of the best-root shortest-path tree and the minimum spanning tree."""
    ways = (
        best_root_spt(problem.overlay, problem.sets, problem.weight),
        minimum_spanning_tree(problem.overlay, problem.weight),
    )
    return min(ways, key=lambda tree: float(_costs(problem, tree) @ problem.sets.weight))


def _split(sets: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows to fit and the rows held back, each ascending."""
    held = int(HELD_SHARE * sets)
    order = rng.permutation(sets)
    if held < MIN_HELD:
        held = 0
    return np.sort(order[held:]), np.sort(order[:held])


class _Search:
    """The trees so far, what every set costs on each, and the best state seen by the held part."""

    def __init__(
        self,
        problem: Problem,
        first: Tree,
        fit: npt.NDArray[np.int64],
        held: npt.NDArray[np.int64],
        deadline: float,
    ) -> None:
        self.problem = problem
        self.overlay = problem.overlay
        self.sets = problem.sets
        self.fit = fit
        # Without a held part the fit chooses, which is the last state.
        self.judges = held if len(held) else fit
        self.deadline = deadline
        steiner = problem.steiner if same_both_ways(problem.overlay) else problem.directed_steiner
        self.optimum = steiner.costs(self.sets)
        self.trees = [first]
        self.costs = [self._cost(first)]  # per tree, of all sets
        self.best = [first]
        self.best_round = 0
        self.best_cost = self._judged()

    def late(self) -> bool:
        """Whether the time is over."""
        return perf_counter() >= self.deadline

    def keep_if_best(self, done: int) -> None:
        """Remember the trees after so many rounds when the held part never was cheaper before."""
        cost = self._judged()
        if cost < self.best_cost:
            self.best, self.best_round, self.best_cost = list(self.trees), done, cost

    def add(self) -> bool:
        """One more tree, unless none gains anything on the fitted sets."""
        now = np.min(self.costs, axis=0)
        excess = ((now - self.optimum) * self.sets.weight)[self.fit]
        most = self.fit[np.argsort(-excess, kind="stable")[:TREE_CANDIDATES]]
        before = self._total(now, self.fit)
        seeds = self._seeds(most)
        totals = [self._total(np.minimum(now, self._cost(tree)), self.fit) for tree in seeds]
        tree, cost, total = self._grown(seeds[int(np.argmin(totals))], now)
        if before - total <= GAIN * before:
            return False
        self.trees.append(tree)
        self.costs.append(cost)
        return True

    def refit(self) -> bool:
        """A round of Lloyd's loop over the fitted sets: whether it gained."""
        before = self._total(np.min(self.costs, axis=0), self.fit)
        self._improve_all()
        after = self._total(np.min(self.costs, axis=0), self.fit)
        return before - after > GAIN * before

    def finished(self) -> list[Tree]:
        """The best state after as many rounds with all sets, without trees that no set uses."""
        self.trees = self.best
        self.costs = [self._cost(tree) for tree in self.trees]
        self.fit = np.arange(len(self.sets))
        for _ in range(max(1, self.best_round)):
            if not self.refit() or self.late():
                break
        used = np.unique(np.argmin(self.costs, axis=0))
        return [self.trees[k] for k in used.tolist()]

    def _improve_all(self) -> None:
        """Improve each tree on the fitted sets that are cheapest on it; ties to the first tree."""
        owner = np.argmin(self.costs, axis=0)[self.fit]
        for k in range(len(self.trees)):
            mine = self.fit[owner == k]
            if not len(mine):
                continue
            better = self._improved(self.trees[k], mine)
            cost = self._cost(better)
            # Swaps go by mean prices: with a price per direction, what they gain may be lost again.
            if self._total(cost, mine) < self._total(self.costs[k], mine):
                self.trees[k], self.costs[k] = better, cost

    def _grown(self, tree: Tree, now: Floats) -> tuple[Tree, Floats, float]:
        """A new tree improved on the sets it wins, as long as that gains; its costs and the total then."""
        cost = self._cost(tree)
        total = self._total(np.minimum(now, cost), self.fit)
        for _ in range(REFITS):
            mine = self.fit[(cost < now)[self.fit]]
            if not len(mine):
                break
            better = self._improved(tree, mine)
            its_cost = self._cost(better)
            its_total = self._total(np.minimum(now, its_cost), self.fit)
            if total - its_total <= GAIN * total:
                break
            tree, cost, total = better, its_cost, its_total
        return tree, cost, total

    def _seeds(self, rows: npt.NDArray[np.int64]) -> list[Tree]:
        """For each set a spanning tree with its Steiner tree in it."""
        owner = np.argmin([cost[rows] for cost in self.costs], axis=0)
        lengths = {
            k: tree_lengths(self.overlay, self.trees[k], self.problem.weight) for k in set(owner.tolist())
        }
        found = self.problem.steiner.trees(self.sets.take(rows))
        made = []
        for i, k in enumerate(owner.tolist()):
            part = slice(int(found.start[i]), int(found.start[i + 1]))
            made.append(_around(self.trees[k], lengths[k], found.parent[part], found.child[part]))
        return made

    def _improved(self, tree: Tree, rows: npt.NDArray[np.int64]) -> Tree:
        left = max(0.0, self.deadline - perf_counter())
        mine: TerminalSets = self.sets.take(rows)
        return improve(self.overlay, tree, mine, self.problem.weight, seconds=left).tree

    def _cost(self, tree: Tree) -> Floats:
        return _costs(self.problem, tree)

    def _total(self, cost: Floats, rows: npt.NDArray[np.int64]) -> float:
        return float(cost[rows] @ self.sets.weight[rows])

    def _judged(self) -> float:
        return self._total(np.min(self.costs, axis=0), self.judges)


def _costs(problem: Problem, tree: Tree) -> Floats:
    """float64[s]: what each set costs on a tree when its root publishes, at the price of each way."""
    overlay, sets = problem.overlay, problem.sets
    if same_both_ways(overlay):
        return measured(overlay, tree, problem.weight).costs(sets)
    return directed_costs(overlay, tree, sets, sets.node[sets.start[:-1]])


def _around(tree: Tree, length: Floats, above: npt.NDArray[np.int32], below: npt.NDArray[np.int32]) -> Tree:
    """A spanning tree with the links above - below, which form a tree, and else links of `tree`.

    Of a cycle that they close with `tree` the longest of its links goes. `length` is that of the link from
    each broker's parent. O(n log n).
    """
    own = tree.links()
    own = own[np.argsort(length[own[:, 1]], kind="stable")]
    ends = closed(np.concatenate((np.column_stack((above, below)), own)), np.int32)
    chosen = np.empty(len(own), dtype=np.int32)
    kruskal(ends, closed(np.arange(len(ends)), np.int64), len(tree.parent), chosen)
    return Tree.of_links(len(tree.parent), ends[chosen], tree.root)
