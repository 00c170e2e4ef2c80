"""Local search over placements: users move, or two change places, as long as that pays.

Idea       Start from what each of the paper's algorithms finds. Move every user in turn to the broker with
           room where the whole cost falls most; when no move pays, let two users at different brokers
           change places, which full brokers allow too. A move is priced exactly from kept sums, and sets of
           brokers by kept tree costs: see `search_kernels`.
           Above `MOST_TABLE` brokers steps towards Steiner trees are guided by spanning trees, which take
           a twentieth of the time; what they lead to is priced by Steiner trees and kept if it is cheaper.
Guarantee  Never above the best placement it starts from. Capacities hold at every step. The cost falls with
           each step, so it ends.
Cost       A pass over all moves is O(u b T) look-ups while the sets of brokers stay, a pass over swaps at
           most O(u^2); up to `SEARCHED_WHOLE` users times brokers times sub-channels nothing is passed
           over, and shaken copies of the best placement are searched too.
Beyond the paper, which has no local search.
"""

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError, PlacementError
from ramify.planning.placement.core import MOST_TABLE, Routing, assess, given_of, state_of, trees_of
from ramify.planning.placement.heuristics import HEURISTICS
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.placement.search_kernels import moves_that_pay, swaps_that_pay

__all__ = ["improved", "local_search", "starts"]

SEARCHED_WHOLE = 2_000
"""Users times brokers times sub-channels up to which every step is priced, and starts are shaken."""

SHAKES = 100
"""Shaken copies of the best placement that are searched, for small problems."""

REMOVED_SHARE = 0.3
"""Of the users, that a shake moves."""

PASSES = 1_000
"""Over all users, for moves or swaps; hardly ever more than twenty are made."""

PAYS = 1e-10
"""The share of the cost that a step must save: less is rounding."""


def local_search(
    problem: PlacementProblem,
    rng: np.random.Generator,
    routing: Routing = "steiner",
    *,
    given: Iterable[Placement] | None = None,
    seconds: float | None = None,
) -> Placement:
    """The best placement that local search finds from each of the `given`, or of `starts`.

    `seconds` ends it early; then the result may depend on the machine. Raises `PlacementError` where no
    algorithm finds a placement to start from.
    """
    until = None if seconds is None else time.monotonic() + seconds
    begun = list(starts(problem, rng, routing) if given is None else given)
    if not begun:
        raise InputError("local search needs a placement to start from. Give one, or none at all.")
    best = min(begun, key=lambda one: one.total)
    for start in begun:
        found = improved(problem, start.broker, rng, routing, until=until)
        best = min(best, found, key=lambda one: one.total)
    shakes = SHAKES if _small(problem) else 0
    for _ in range(shakes):
        found = improved(problem, _shaken(problem, best.broker, rng), rng, routing, until=until)
        best = min(best, found, key=lambda one: one.total)
    return Placement(best.broker, best.access, best.core, best.load, routing, "local search")


def starts(
    problem: PlacementProblem, rng: np.random.Generator, routing: Routing = "steiner"
) -> list[Placement]:
    """What each heuristic finds, random included. `PlacementError` when none finds any."""
    found, failures = [], []
    for heuristic in HEURISTICS.values():
        try:
            found.append(heuristic(problem, rng, routing))
        except PlacementError as error:
            if error.proven:
                raise
            failures.append(error)
    if not found:
        raise failures[0]
    return found


def improved(
    problem: PlacementProblem,
    broker: npt.NDArray[np.int32],
    rng: np.random.Generator,
    routing: Routing = "steiner",
    *,
    until: float | None = None,
) -> Placement:
    """Moves and swaps from one placement until none pays, or until a time of the monotonic clock."""
    if routing == "paths":
        raise InputError(
            "local search cannot route by 'paths', which differ by root. Use mst, steiner or tree."
        )
    guide: Routing = "mst" if routing == "steiner" and len(problem.core) > MOST_TABLE else routing
    trees, given = trees_of(problem, guide), given_of(problem)
    state = state_of(problem, trees, broker)
    least = PAYS * (problem.access_cost(broker) + float(state.group.sum()))
    thorough = _small(problem)
    for _ in range(PASSES):
        if until is not None and time.monotonic() >= until:
            break
        order = rng.permutation(len(problem.users))
        if moves_that_pay(given, trees, state, order, least, thorough):
            continue
        if not swaps_that_pay(given, trees, state, order, least, thorough):
            break
    found = assess(problem, state.at.copy(), routing, "local search")
    before = assess(problem, broker, routing, "local search")
    return min(found, before, key=lambda one: one.total)


def _small(problem: PlacementProblem) -> bool:
    rate, _ = problem.groups
    return rate.size * len(problem.core) <= SEARCHED_WHOLE


def _shaken(
    problem: PlacementProblem, broker: npt.NDArray[np.int32], rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """Some users at random brokers with room; the others stay."""
    at = broker.copy()
    load = problem.load(at)
    for u in rng.permutation(len(at))[: max(1, int(REMOVED_SHARE * len(at)))].tolist():
        load[at[u]] -= problem.demand[u]
        fits = np.flatnonzero(problem.allowed[u] & (load + problem.demand[u] <= problem.room))
        at[u] = rng.choice(fits)
        load[at[u]] += problem.demand[u]
    return at
