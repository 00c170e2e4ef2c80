"""Kyra: small routing networks by subscription movement, Cao and Singh (2004).

Problem    Filter-based routing on one tree makes every broker store and match nearly all subscriptions.
Idea       Brokers near one another form a clique and divide the content space: each is the proxy of all
           subscriptions of the clique in its zone. The space is divided again between routing trees; a tree
           joins the brokers whose zone overlaps its own. An event goes to the proxy in the publisher's
           clique, is filtered along its tree, and each proxy that matches notifies the brokers that the
           subscriptions came from.
Guarantee  Every event reaches every broker that wants it: a filter that accepts an event touches its cell,
           so the proxy for that cell knows it. A broker is on the trees of its zone only.
Cost       All distances; clustering, about O(n^2); a partition per distinct size of a clique; a spanning
           tree per zone, O(k^2 log k) for the k brokers on it; a pass over (sub-zone, class) pairs.
Plan       Where an event enters depends on its cell, and an entry knows publishers only. So there is one
           channel for each set of cells in which all cliques have one proxy each; the channels of a
           routing tree share it. There are never more channels than cells.
Departures Cells are the unit of zones: see `schemes.shared.grids` for how they are chosen. Without a grid
           there is one zone, everything, per clique, and one tree: `zones` is 1 in the settings. Cliques
           end when no pair may merge (the printed loop does not end); without `max_distance` the nearest
           5 % of all pairs count as near. Alpha is fitted on the overlay. Cliques above `ring_limit`
           brokers route inside by the fingers of a ring, which the paper leaves open; see
           `KyraParams` for when that pays.
           `groups_plan` (the scheme `kyra-mbr`, the paper's section VII) moves subscriptions and floods
           multicast groups of cells instead of filtering; events enter a group at its nearest broker.

Reference: F. Cao, J. P. Singh, "Efficient Event Routing in Content-based Publish-Subscribe Service
Networks", INFOCOM 2004, sections III, V-D and VII.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.network.trees.trees import minimum_spanning_tree
from ramify.planning.plans.plan import (
    Admission,
    Cells,
    Channel,
    ChannelTree,
    Content,
    Entry,
    Everything,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.kyra.cliques import cliques_of, default_distance
from ramify.planning.schemes.kyra.groups import forgy
from ramify.planning.schemes.kyra.movement import Movement, axes_of, move, stay
from ramify.planning.schemes.scheme import Progress, put_together, silent
from ramify.planning.schemes.shared.cell_loads import (
    PAPER_ALPHA,
    Fit,
    cell_loads,
    counted_grid,
    fit_alpha,
    touched_cells,
    weighed,
)
from ramify.planning.schemes.shared.grids import MOST_CELLS
from ramify.planning.schemes.shared.shortest_trees import joined_tree, nearest_on, whole_tree
from ramify.planning.schemes.shared.ways import Length, Ways

__all__ = ["KyraParams", "MovementRun", "groups_plan", "moved", "plan"]

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

FIT = "fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class KyraParams:
    """What may be chosen.

    max_distance   between two brokers of a clique, in milliseconds (or what `weight` counts); none: see
                   `kyra.cliques.default_distance`
    max_servers    of a clique
    trees          routing trees, or groups of `kyra-mbr`; none: as many as the largest clique has brokers
    balance        M of the balanced spanning trees, see `kyra.trees`; 1 is Kruskal's
    alpha          of the load of zones: `fit`, or a number (0.6101 in the paper)
    attributes     to cut zones by, apart by +; empty: all that events are counted by
    ring_limit     brokers above which a clique routes inside over a ring, below which all know all
    straddle       what a subscription on both sides of a cut counts against imbalance, with several axes
    weight         what brokers are near by: latency, mean_price or hops

    Defaults of sizes. A zone is one cell or more and a grid that is chosen has at most `MOST_CELLS`, so
    brokers beyond as many would get no zone: that is `max_servers`. A ring takes about log2(k) / 2 steps
    for what is one between brokers that all know each other, and saves each of them k - 1 - log2(k) others
    to know. The paper runs cliques of up to 29 brokers without one in its best configurations; up to 32 an
    event should not pay several steps to spare a broker at most 26 addresses. Above, it knows 6 for 32 or
    more.
    """

    max_distance: float | None = None
    max_servers: int = MOST_CELLS
    trees: int | None = None
    balance: int = 1
    alpha: str = FIT
    attributes: str = ""
    ring_limit: int = 32
    straddle: float = 0.5
    weight: Length = "latency"

    def __post_init__(self) -> None:
        for name, least in (("max_servers", 1), ("balance", 1), ("ring_limit", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise InputError(f"{name} = {getattr(self, name)!r}. Allowed: {least} or more.")
        if self.trees is not None and self.trees < 1:
            raise InputError(f"trees = {self.trees!r}. Allowed: 1 or more, or none.")
        for name in ("max_distance", "straddle"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and isfinite(value)):
                raise InputError(f"{name} = {value!r}. Allowed: 0 or more.")
        self.exponent()

    def exponent(self) -> float | None:
        """Alpha; None where it is to be fitted. `InputError` for what is neither."""
        if self.alpha == FIT:
            return None
        try:
            value = float(self.alpha)
        except ValueError:
            value = -1.0
        if not (value >= 0 and isfinite(value)):
            raise InputError(f"alpha = {self.alpha!r}. Allowed: {FIT}, or a number of 0 or more.")
        return value

    def paths(self) -> tuple[str, ...]:
        """The attributes one by one."""
        return tuple(path.strip() for path in self.attributes.split("+") if path.strip())


@dataclass(frozen=True)
class MovementRun:
    """A movement with what it was made with."""

    movement: Movement
    ways: Ways
    settings: Mapping[str, Any]


def moved(
    problem: Problem, params: KyraParams, rng: np.random.Generator, progress: Progress = silent
) -> MovementRun:
    """Cliques and zones of a problem; rings are set up. Pure but for the ways that it collects."""
    progress(0.0, "distances")
    ways = Ways(problem, params.weight)
    near = default_distance(ways.distance) if params.max_distance is None else params.max_distance
    progress(0.2, "cliques")
    cliques = cliques_of(ways.distance, near, params.max_servers)
    largest = max(len(members) for members in cliques)
    grid = counted_grid(problem)
    fit = Fit(PAPER_ALPHA, 0.0)
    progress(0.3, "zones")
    if grid is None:
        movement = stay(cliques, ways.distance)
    else:
        given = params.exponent()
        fit = _fitted(problem, params, rng) if given is None else Fit(given, 0.0)
        load = cell_loads(problem, grid, fit.alpha)
        axes = axes_of(grid, params.paths())
        movement = move(
            problem, grid, cliques, load, params.trees or largest, axes=axes, straddle=params.straddle
        )
    rings = [members for members in cliques if len(members) > params.ring_limit]
    for members in rings:
        ways.ring(members.tolist())
    settings = {
        "cliques": len(cliques),
        "largest_clique": largest,
        "near": near,
        "zones": movement.zones,
        "rings": len(rings),
        "used_alpha": round(fit.alpha, 4),
        "alpha_r_squared": round(fit.r_squared, 4),
    }
    return MovementRun(movement, ways, settings)


def _fitted(problem: Problem, params: KyraParams, rng: np.random.Generator) -> Fit:
    return fit_alpha(minimum_spanning_tree(problem.overlay, params.weight), rng)


def plan(
    problem: Problem, params: KyraParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """A filtered tree per zone; a channel per sub-zone. See the module."""
    made = moved(problem, params, rng, progress)
    movement, ways = made.movement, made.ways
    touched = _touched(problem, movement)
    progress(0.5, "trees")
    trees: dict[int, ChannelTree] = {}
    degree = np.zeros(len(problem.overlay), dtype=np.int64)
    channels: list[Channel] = []
    for cells in movement.subzones:
        number = int(movement.tree[cells[0]])
        if number not in trees:
            mine = np.flatnonzero(movement.tree == number)
            trees[number] = _tree(problem, params, ways, movement.members(mine), degree)
            progress(0.5 + 0.4 * len(trees) / (int(movement.tree.max()) + 1), "trees")
        targets = movement.proxy[:, cells[0]].astype(np.int32)
        classes = np.flatnonzero(touched[:, cells].any(axis=1)).astype(np.int32)
        at = targets[problem.classes.broker[classes]]
        serves = Serves(classes, at, np.full(len(classes), -1, dtype=np.int32))
        name = f"t{number} cells {cells[0]}-{cells[-1]}"
        content = _content(movement, cells)
        channels.append(
            Channel(name, Admission(content), serves, Pruning.FILTER, trees[number], Entry(targets))
        )
        # a leg one way, final notifications the other
        ways.join(np.arange(len(targets)), targets)
    return _plan("kyra", problem, made, channels, {"routing_trees": len(trees)})


def groups_plan(
    problem: Problem, params: KyraParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """Subscription movement with multicast groups: a flooded tree per group of cells. See the module."""
    made = moved(problem, params, rng, progress)
    movement, ways = made.movement, made.ways
    touched = _touched(problem, movement) & ~problem.classes.vacant[:, None]
    host = problem.classes.broker
    interested = np.zeros((touched.shape[1], len(problem.overlay)), dtype=np.bool_)
    for cell in range(touched.shape[1]):
        interested[cell, movement.proxy[host[touched[:, cell]], cell]] = True
    progress(0.5, "groups of cells")
    seen = problem.demand.cell if movement.grid is not None else np.zeros(len(problem.demand), np.int32)
    published = weighed(seen, problem.pattern_weight, len(interested))
    most = params.trees or max(len(members) for members in movement.cliques)
    labels = forgy(interested, published, most)
    regions: dict[bytes, int] = {}
    degree = np.zeros(len(problem.overlay), dtype=np.int64)
    channels: list[Channel] = []
    for group in range(int(labels.max()) + 1):
        progress(0.6 + 0.4 * group / (int(labels.max()) + 1), "trees")
        cells = np.flatnonzero(labels == group).astype(np.int32)
        members = np.flatnonzero(interested[cells].any(axis=0)).astype(np.int32)
        targets = nearest_on(ways.distance, members)
        serves = _moved_entries(problem, movement, touched, cells, regions)
        ways.join(np.arange(len(targets)), targets)
        ways.join(serves.at, host[serves.classes])
        channels.append(
            Channel(
                f"g{group}",
                Admission(_content(movement, cells)),
                serves,
                Pruning.NONE,
                joined_tree(ways, members, params.balance, degree),
                Entry(targets),
            )
        )
    sets = tuple(np.frombuffer(key, dtype=np.int32) for key in regions)
    return _plan("kyra-mbr", problem, made, channels, {"realised_groups": len(channels)}, sets)


def _plan(
    scheme: str,
    problem: Problem,
    made: MovementRun,
    channels: list[Channel],
    found: Mapping[str, Any],
    regions: tuple[Ints, ...] = (),
) -> Plan:
    return put_together(
        scheme,
        problem,
        channels,
        {**made.settings, **found},
        paths=made.ways.paths,
        grid=made.movement.grid,
        regions=regions,
    )


def _touched(problem: Problem, movement: Movement) -> Bools:
    if movement.grid is None:
        return np.ones((len(problem.classes), 1), dtype=np.bool_)
    return touched_cells(problem, movement.grid)


def _content(movement: Movement, cells: Ints) -> Content:
    """The cells, or everything where they are all."""
    return Everything() if len(cells) == movement.proxy.shape[1] else Cells(cells)


def _tree(
    problem: Problem, params: KyraParams, ways: Ways, members: Ints, degree: npt.NDArray[np.int64]
) -> ChannelTree:
    if len(members) == len(problem.overlay) and params.balance == 1:
        return whole_tree(problem, params.weight)
    return joined_tree(ways, members, params.balance, degree)


def _moved_entries(
    problem: Problem, movement: Movement, touched: Bools, cells: Ints, regions: dict[bytes, int]
) -> Serves:
    """The classes that touch some cells, each at every proxy it has there, for that proxy's part of them.

    New parts are numbered in `regions`; where one proxy has all the cells the entry always holds.
    """
    rows: list[tuple[int, int, int]] = []
    host = problem.classes.broker
    parts: dict[int, list[tuple[int, Ints]]] = {}
    for members in movement.cliques:
        zone = movement.proxy[members[0], cells]
        split = [(int(at), cells[zone == at]) for at in np.unique(zone)]
        parts.update((broker, split) for broker in members.tolist())
    for k in np.flatnonzero(touched[:, cells].any(axis=1)).tolist():
        for at, part in parts[int(host[k])]:
            if not touched[k, part].any():
                continue
            region = -1
            if len(part) < len(cells):
                region = regions.setdefault(part.tobytes(), len(regions))
            rows.append((k, at, region))
    columns = np.array(rows, dtype=np.int32).reshape(-1, 3).T
    return Serves(*(np.ascontiguousarray(column) for column in columns))
