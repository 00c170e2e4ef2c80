"""Placement without a centre: brokers redirect their own users in rounds (Zhao and Wu, section IV-C).

Idea       Every broker knows the others' aggregated subscriptions, rates and load, and what links cost.
           When its turn comes it takes its most expensive user, looks for the broker where the whole cost
           falls most, and asks the user to move there; when no broker pays, it takes the next user. It
           moves one user a turn. A round gives each broker a turn, and rounds end when no move pays.
Guarantee  The cost never rises, since a broker hears of a move before its own turn; so it ends. Capacities
           hold. At the end no single move of a willing user saves anything.
Messages   A summary from every broker to every other at first. A move takes `PER_MOVE` (request_to_move,
           accept, replicate, connect, redirect) and a new summary of both brokers to all others; a request
           that the user declines takes two.
Departures The paper does not say how turns are ordered; brokers that act at once on old summaries can raise
           the cost. Which user is most expensive: by its access link and the trees of what it publishes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ramify.errors import InputError
from ramify.planning.placement.core import Routing, assess, given_of, state_of, trees_of
from ramify.planning.placement.local_search import PAYS
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.placement.search_kernels import dearest_that_pays, move

__all__ = ["PER_MOVE", "Policy", "Round", "Rounds", "in_rounds"]

Policy = Callable[[str, str], bool]
"""Whether a user (its name) moves to a broker (its name) when asked."""

PER_MOVE = 5


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round, and the cost after it."""

    moves: int
    declined: int
    messages: int
    cost: float


@dataclass(frozen=True, slots=True)
class Rounds:
    """The placement at the end, and how it came about. The first entry holds the first summaries."""

    placement: Placement
    rounds: tuple[Round, ...]

    @property
    def moves(self) -> int:
        """Over all rounds."""
        return sum(one.moves for one in self.rounds)

    @property
    def messages(self) -> int:
        """Over all rounds."""
        return sum(one.messages for one in self.rounds)


def in_rounds(
    problem: PlacementProblem,
    start: Placement,
    routing: Routing = "steiner",
    *,
    policy: Policy | None = None,
    most: int | None = None,
) -> Rounds:
    """Brokers move users from a placement on until no move pays, or for `most` rounds.

    A user that declined a broker is not asked for it again. Deterministic.
    """
    if routing == "paths":
        raise InputError(
            "brokers cannot route by 'paths' here: they differ by root. Use mst, steiner or tree."
        )
    trees, given = trees_of(problem, routing), given_of(problem)
    state = state_of(problem, trees, start.broker)
    brokers = len(problem.core)
    willing = np.ones(problem.access_price.shape, dtype=np.bool_)
    cost = problem.access_cost(state.at) + float(state.group.sum())
    least = PAYS * cost
    history = [Round(0, 0, brokers * (brokers - 1), cost)]
    while most is None or len(history) <= most:
        moves, declined, messages = 0, 0, 0
        for broker in range(brokers):
            while True:
                u, to, rise = dearest_that_pays(given, trees, state, broker, willing, least)
                if u < 0:
                    break
                if policy is not None and not policy(problem.users[u], problem.core.brokers[to]):
                    willing[u, to] = False
                    declined += 1
                    messages += 2
                    continue
                move(given, trees, state, u, to)
                cost += rise
                moves += 1
                messages += PER_MOVE + 2 * (brokers - 1)
                break
        history.append(Round(moves, declined, messages, cost))
        if not moves:
            break
    return Rounds(assess(problem, state.at.copy(), routing, "rounds"), tuple(history))
