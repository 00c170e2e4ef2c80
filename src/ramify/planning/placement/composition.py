"""Placement and schemes together: users from a demand, and a problem with its clients moved.

Owns the way there and back. `placement_problem` reads users out of a problem whose demand was counted by
client and by cell: what each client publishes into each cell, the cells that its filters touch, and what it
receives, event by event. `placed` moves clients: their subscriptions and what they publish; then any scheme
plans as usual. The problem then carries the price of each client's link, and so do prices of plans
(`Price.access_money`).

Prices of access links may be given. Where none are, a client may use any broker, at the price of the core
from where it is now: as if its traffic went on through its present broker. With `stay` it may not move.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError, OverlayError
from ramify.network.graphs.distances import all_pairs
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.access import expanded, received, senders
from ramify.planning.pricing.bound import GB
from ramify.planning.schemes.shared.cell_loads import counted_grid, touched_cells

__all__ = ["access_money", "homes", "placed", "placement_problem"]

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


def placement_problem(
    problem: Problem,
    *,
    access: Mapping[tuple[str, str], float] | None = None,
    capacity: Mapping[str, float] | None = None,
    stay: bool = False,
) -> PlacementProblem:
    """The clients of a problem as users to be placed; rates are bytes, and one per event.

    `access` holds prices per 10^9 bytes by (client, broker); a client that is not in it stays. `capacity`
    is in bytes of the demand, by broker; others bear everything. A publisher that is a broker itself stays.
    Raises `InputError` for a demand that was counted without clients or without a grid.
    """
    grid = counted_grid(problem)
    if grid is None:
        raise InputError("placement needs sub-channels: tally the events with a grid.")
    demand = problem.demand
    if (demand.client < 0).any():
        raise InputError("placement needs the publishing clients: tally the events by client.")
    home = homes(problem)
    users = tuple(home)
    number = {user: u for u, user in enumerate(users)}
    # exact, whatever has decayed: capacities and money are of all events
    weight = demand.weight * demand.factor
    sender = senders(demand, number)
    rate = np.zeros((len(users), grid.size))
    np.add.at(rate, (sender, demand.cell), weight)
    touched = touched_cells(problem, grid)
    subscribed = np.zeros((len(users), grid.size), dtype=np.bool_)
    for k, members in enumerate(problem.classes.members):
        for u in {number[row.client] for row in members}:
            subscribed[u] |= touched[k]
    return PlacementProblem.of(
        users,
        problem.overlay,
        rate,
        subscribed,
        _access_prices(problem, home, access, stay),
        _capacities(problem, capacity),
        rate_in=received(problem.classes, demand, number, sender, weight),
    )


def access_money(problem: PlacementProblem, placement: Placement) -> float:
    """What the access links of a placement cost, where rates are bytes and prices per 10^9 bytes."""
    return problem.access_cost(placement.broker) / GB


def placed(problem: Problem, where: Mapping[str, str]) -> Problem:
    """The same problem with clients at other brokers: `where` says at which; others stay.

    Classes are collapsed anew, and patterns that become equal are added up. What was advertised at a broker
    is known by broker alone, so afterwards every broker may publish what any could. A publisher can only be
    moved in a demand that was counted by client: `InputError` otherwise. O(demand and subscriptions).
    """
    overlay = problem.overlay
    unknown = next((at for at in where.values() if at not in overlay.index), None)
    if unknown is not None:
        raise OverlayError(f"a client is placed at {unknown!r}. Overlay {overlay.name} has no such broker.")
    moves = any(problem.attachments.get(client, at) != at for client, at in where.items())
    if moves and (problem.demand.client < 0).any():
        raise InputError(
            "clients cannot be moved in this demand: it lacks the publishing clients. Tally by client."
        )
    classes, start, made = _moved_classes(problem.classes, where, problem)
    demand = _moved_demand(problem, where, len(classes), start, made)
    said = problem.advertisements
    pooled = tuple({f.key: f for filters in said.values() for f in filters}.values())
    if not all(b in said for b in problem.publishers.tolist()):
        pooled = ()
    publishers = np.union1d(problem.publishers, demand.publisher).astype(np.int32)
    return Problem(
        overlay,
        classes,
        demand,
        {**problem.attachments, **where},
        publishers,
        dict.fromkeys(publishers.tolist(), pooled) if pooled else {},
        problem.grid,
    )


def homes(problem: Problem) -> dict[str, int]:
    """Client -> its broker now: by attachment, else of its first subscription, or where it publishes."""
    index = problem.overlay.index
    home: dict[str, int] = {}
    for members, b in zip(problem.classes.members, problem.classes.broker.tolist(), strict=True):
        for row in members:
            home.setdefault(row.client, b)
    for client, b in zip(problem.demand.client.tolist(), problem.demand.publisher.tolist(), strict=True):
        home.setdefault(problem.demand.clients[client], b)
    for client in home:
        if client in problem.attachments:
            home[client] = index[problem.attachments[client]]
    return dict(sorted(home.items()))


def _access_prices(
    problem: Problem, home: Mapping[str, int], access: Mapping[tuple[str, str], float] | None, stay: bool
) -> Floats:
    index = problem.overlay.index
    price = np.full((len(home), len(index)), np.inf)
    number = {user: u for u, user in enumerate(home)}
    for client, broker in access or ():
        if client not in number or broker not in index:
            raise InputError(f"an access price from {client!r} to {broker!r}: one of them does not exist.")
        price[number[client], index[broker]] = (access or {})[client, broker]
    distance = all_pairs(problem.overlay, "mean_price").distance
    for u, (client, b) in enumerate(home.items()):
        if np.isfinite(price[u]).any():
            continue
        broker_itself = client in index and client not in problem.attachments
        if access is not None or stay or broker_itself:
            price[u, b] = 0.0
        else:
            price[u] = distance[b]
    return price


def _capacities(problem: Problem, capacity: Mapping[str, float] | None) -> Floats:
    most = np.full(len(problem.overlay), np.inf)
    for broker, value in (capacity or {}).items():
        if broker not in problem.overlay.index:
            raise InputError(
                f"a capacity for {broker!r}. Overlay {problem.overlay.name} has no such broker."
            )
        most[problem.overlay.index[broker]] = value
    return most


def _moved_classes(
    classes: Classes, where: Mapping[str, str], problem: Problem
) -> tuple[Classes, Longs, Longs]:
    """The new classes, and for each old one the new ones of its members in compressed rows."""
    rows, filters = [], []
    for k, members in enumerate(classes.members):
        for row in members:
            rows.append(replace(row, broker=where.get(row.client, row.broker)))
            filters.append(classes.filters[k])
    made = Classes.collapse(rows, problem.overlay, classes.schema, filters)
    lists = [sorted({made.class_of[row.id] for row in members}) for members in classes.members]
    start = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return made, start, np.array([k for one in lists for k in one], dtype=np.int64)


def _moved_demand(
    problem: Problem, where: Mapping[str, str], classes: int, start: Longs, made: Longs
) -> Demand:
    demand, index = problem.demand, problem.overlay.index
    at = np.array([index[where[c]] if c in where else -1 for c in demand.clients] + [-1], dtype=np.int64)
    publisher = np.where(at[demand.client] >= 0, at[demand.client], demand.publisher)
    pattern, matched = expanded(demand, start, made, classes)
    ends = np.searchsorted(pattern, np.arange(len(demand) + 1)).astype(np.int64)
    return demand.relabel(ends, matched.astype(np.int32), publisher.astype(np.int32))
