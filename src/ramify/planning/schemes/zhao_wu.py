"""Trees per publisher's broker and sub-channel, for given attachments: Zhao and Wu, stage 2.

Problem    Clients are attached; join the brokers so that every sub-channel reaches those that want it.
Idea       Cells of the content space that the same brokers want form one group. Per group there is a tree
           over the brokers that want it; publishers' brokers among them share it, and each of the others
           has a tree with its own broker joined. Events are filtered on the way.
Trees      `steiner`, or `mst`: the paper's spanning tree of the group on distances between brokers, each
           link a path. `one`: one minimum spanning tree of all brokers for everything (section II-A,
           Equations 7 and 8), the scheme `zhao-wu-tree`.
Guarantee  Every event reaches every broker that wants it: a filter that accepts an event touches its cell.
           A Steiner tree costs at most twice the least one.
Cost       All distances; a tree for each group and each publishing broker outside it. Trees are improved
           by local search while the squares of their brokers sum up to at most `MOST_SEARCHED` (about 20
           s); beyond they are as grown, some per cent dearer. `searched` among the settings says which.
Departures The paper takes the spanning tree for the best one; it is not (see `placement.core`). Without a
           grid there is one group, everything. Where clients attach is chosen before, by `placement`.

Reference: Y. Zhao, J. Wu, "On the Construction of the Minimum Cost Content-Based Publish/Subscribe
Overlays", sections II-A, III-A and IV-B.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.trees import minimum_spanning_tree
from ramify.planning.plans.plan import (
    Admission,
    Cells,
    Channel,
    ChannelTree,
    Content,
    Everything,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Progress, channel, put_together, silent
from ramify.planning.schemes.shared.cell_loads import counted_grid, touched_cells
from ramify.planning.schemes.shared.shortest_trees import joined_tree
from ramify.planning.schemes.shared.ways import Ways

__all__ = ["Trees", "ZhaoWuParams", "plan"]

MOST_SEARCHED = 2_000_000
"""Sum over trees of the square of their brokers, up to which all are improved by local search."""

Trees = Literal["steiner", "mst", "one"]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZhaoWuParams:
    """`trees`: see the module."""

    trees: Trees = "steiner"

    def __post_init__(self) -> None:
        if self.trees not in get_args(Trees):
            raise InputError(f"trees = {self.trees!r}. Allowed: {', '.join(get_args(Trees))}.")


@dataclass(frozen=True, slots=True)
class _Group:
    """Cells with the brokers and classes that want them."""

    name: str
    content: Content
    brokers: Ints
    classes: npt.NDArray[np.intp]


def plan(
    problem: Problem, params: ZhaoWuParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """A filtered tree per group and publisher's broker. See the module."""
    if params.trees == "one":
        spanning = minimum_spanning_tree(problem.overlay, problem.weight)
        whole = channel("tree", problem, spanning, np.arange(len(problem.classes)))
        return put_together("zhao-wu-tree", problem, [whole])
    progress(0.0, "groups of cells")
    groups = list(_groups(problem))
    progress(0.2, "trees")
    asked = [(group, roots) for group in groups for roots in _roots(problem, group)]
    ways = Ways(problem, "hops" if problem.weight == "hops" else "mean_price")
    sets = [np.union1d(group.brokers, roots).astype(np.int32) for group, roots in asked]
    searched = params.trees == "steiner" and sum(len(one) ** 2 for one in sets) <= MOST_SEARCHED
    if params.trees == "mst":
        trees = [joined_tree(ways, one) for one in sets]
    else:
        trees = _steiner(problem, sets, searched)
    channels = []
    for (group, roots), tree in zip(asked, trees, strict=True):
        allowed = frozenset(roots.tolist())
        name = f"{group.name} from {problem.overlay.brokers[int(roots[0])]}"
        serves = Serves.at_hosts(group.classes, problem.classes)
        channels.append(Channel(name, Admission(group.content, allowed), serves, Pruning.FILTER, tree))
    found = {"groups": len(groups), "trees_made": len(trees), "searched": searched}
    return put_together("zhao-wu", problem, channels, found, paths=ways.paths, grid=counted_grid(problem))


def _groups(problem: Problem) -> Iterator[_Group]:
    """Cells by the set of brokers that want them; those that nobody wants are in none."""
    grid, host = counted_grid(problem), problem.classes.broker
    if grid is None:
        if len(host):
            yield _Group("everything", Everything(), np.unique(host), np.arange(len(host)))
        return
    touched = touched_cells(problem, grid)
    wanted = np.zeros((grid.size, len(problem.overlay)), dtype=np.bool_)
    for k in range(len(host)):
        wanted[touched[k], host[k]] = True
    kinds, where = np.unique(wanted, axis=0, return_inverse=True)
    for i, kind in enumerate(kinds):
        if kind.any():
            cells = np.flatnonzero(where.reshape(-1) == i).astype(np.int32)
            classes = np.flatnonzero(touched[:, cells].any(axis=1))
            content = Everything() if len(cells) == grid.size else Cells(cells)
            yield _Group(f"g{i}", content, np.flatnonzero(kind).astype(np.int32), classes)


def _roots(problem: Problem, group: _Group) -> Iterator[Ints]:
    """The publishing brokers that share a tree: those that want the group, and each other one alone."""
    inside = np.isin(problem.publishers, group.brokers)
    if inside.any():
        yield problem.publishers[inside]
    for broker in problem.publishers[~inside]:
        yield np.array([broker], dtype=np.int32)


def _steiner(problem: Problem, sets: list[Ints], searched: bool) -> list[ChannelTree]:
    asked = TerminalSets.of((int(one[0]), one.tolist()) for one in sets)
    made = problem.steiner.trees(asked, roots="insert" if searched else "first")
    links = np.stack((made.parent, made.child), axis=1).astype(np.int32)
    return [
        ChannelTree(links[made.start[i] : made.start[i + 1]], int(one[0]) if len(one) == 1 else None)
        for i, one in enumerate(sets)
    ]
