"""Moving users between brokers, compiled: what a move changes, moves and swaps that pay.

Owns `SearchState`, a placement with the sums that its cost is made of, kept up to date move by move. A
move of a user changes its access cost, where its rates start from, and the set of brokers of a sub-channel
only where it is the last subscriber at the old broker or the first at the new one; so most moves are
priced by two look-ups, and the others by the cached costs of the new sets.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled
from ramify.planning.placement.core_kernels import Trees, has, joined, put

__all__ = [
    "SearchProblem",
    "SearchState",
    "cost_at",
    "dearest_that_pays",
    "fill_state",
    "move",
    "move_cost",
    "moves_that_pay",
    "swaps_that_pay",
]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class SearchProblem(NamedTuple):
    """The problem: `groups` of sub-channels, what users take, prices, and capacities with their slack."""

    rate: Floats
    subscribed: Bools
    demand: Floats
    access: Floats
    room: Floats


class SearchState(NamedTuple):
    """A placement and its sums.

    at        int32[u], the broker of each user
    load      float64[b]
    wanting   int32[b, T]: subscribers at each broker
    rate_at   float64[b, T]: what is published there
    members   uint64[T, words]: the brokers with subscribers
    group     float64[T]: C2 of each sub-channel
    tree      float64[T, b]: what joining the members with a broker costs
    row       scratch, one set
    """

    at: Ints
    load: Floats
    wanting: Ints
    rate_at: Floats
    members: Words
    group: Floats
    tree: Floats
    row: Words


@compiled
def fill_state(given: SearchProblem, trees: Trees, state: SearchState) -> None:
    """Everything from `state.at`."""
    state.load[:] = 0.0
    state.wanting[:] = 0
    state.rate_at[:] = 0.0
    state.members[:] = 0
    users, channels = given.rate.shape
    for u in range(users):
        b = state.at[u]
        state.load[b] += given.demand[u]
        for c in range(channels):
            state.rate_at[b, c] += given.rate[u, c]
            if given.subscribed[u, c]:
                state.wanting[b, c] += 1
                put(state.members[c], b, True)
    for c in range(channels):
        _regroup(trees, state, c)


@compiled
def cost_at(given: SearchProblem, state: SearchState, u: Int, b: Int) -> float:
    """What user u costs at broker b while the sets stay as they are; inf where it may not be. O(T)."""
    if given.access[u, b] == np.inf:
        return np.inf
    cost = given.demand[u] * given.access[u, b]
    for c in range(given.rate.shape[1]):
        cost += given.rate[u, c] * state.tree[c, b]
    return float(cost)


@compiled
def _new_set(trees: Trees, state: SearchState, u: Int, b: Int, c: Int) -> float:
    """Put the brokers that want sub-channel c once user u is at broker b into `state.row`; their tree."""
    state.row[:] = state.members[c]
    if state.wanting[state.at[u], c] == 1:
        put(state.row, state.at[u], False)
    put(state.row, b, True)
    return joined(trees, state.row)


@compiled
def _regrouped(given: SearchProblem, trees: Trees, state: SearchState, u: Int, b: Int, c: Int) -> float:
    """C2 of sub-channel c once user u is at broker b; u wants c."""
    a, row = state.at[u], state.row
    whole = _new_set(trees, state, u, b, c)
    total: float = 0.0
    for x in range(len(state.load)):
        sent = state.rate_at[x, c]
        if x == a:
            sent -= given.rate[u, c]
        elif x == b:
            sent += given.rate[u, c]
        if sent <= 0:
            continue
        if has(row, x):
            total += sent * whole
        else:
            put(row, x, True)
            total += sent * joined(trees, row)
            put(row, x, False)
    return total


@compiled
def move_cost(
    given: SearchProblem, trees: Trees, state: SearchState, u: Int, b: Int, limit: float
) -> float:
    """By how much the cost rises when user u moves to broker b; capacity is not looked at.

    Exact below `limit`, else inf. A tree that also joins a publisher's broker is taken to cost no less than
    the one without; that decides most moves by one tree for each set that changes.
    """
    a = np.int64(state.at[u])
    rise = cost_at(given, state, u, b) - cost_at(given, state, u, a)
    least = rise
    channels = given.rate.shape[1]
    for c in range(channels if limit < np.inf else 0):
        if given.subscribed[u, c] and (state.wanting[a, c] == 1 or state.wanting[b, c] == 0):
            least += state.rate_at[:, c].sum() * _new_set(trees, state, u, b, c) - state.group[c]
            least -= given.rate[u, c] * (state.tree[c, b] - state.tree[c, a])
    if least >= limit:
        return np.inf
    for c in range(channels):
        if given.subscribed[u, c] and (state.wanting[a, c] == 1 or state.wanting[b, c] == 0):
            rise += _regrouped(given, trees, state, u, b, c) - state.group[c]
            rise -= given.rate[u, c] * (state.tree[c, b] - state.tree[c, a])
    return float(rise)


@compiled
def move(given: SearchProblem, trees: Trees, state: SearchState, u: Int, b: Int) -> None:
    """Move user u to broker b."""
    a = state.at[u]
    for c in range(given.rate.shape[1]):
        state.rate_at[a, c] = max(state.rate_at[a, c] - given.rate[u, c], 0.0)
        state.rate_at[b, c] += given.rate[u, c]
        if not given.subscribed[u, c]:
            state.group[c] += given.rate[u, c] * (state.tree[c, b] - state.tree[c, a])
            continue
        state.wanting[a, c] -= 1
        state.wanting[b, c] += 1
        if state.wanting[a, c] == 0 or state.wanting[b, c] == 1:
            if state.wanting[a, c] == 0:
                put(state.members[c], a, False)
            put(state.members[c], b, True)
            _regroup(trees, state, c)
        else:
            state.group[c] += given.rate[u, c] * (state.tree[c, b] - state.tree[c, a])
    state.load[a] -= given.demand[u]
    state.load[b] += given.demand[u]
    state.at[u] = b


@compiled
def _regroup(trees: Trees, state: SearchState, c: Int) -> None:
    """What depends on the set of sub-channel c, after it changed: a tree for each broker outside it."""
    whole = joined(trees, state.members[c])
    for x in range(len(state.load)):
        if has(state.members[c], x):
            state.tree[c, x] = whole
            continue
        state.row[:] = state.members[c]
        put(state.row, x, True)
        state.tree[c, x] = joined(trees, state.row)
    state.group[c] = (state.rate_at[:, c] * state.tree[c]).sum()


@compiled
def _hope(given: SearchProblem, trees: Trees, state: SearchState, u: Int) -> float:
    """The most that sub-channels may save because user u is the last at its broker to want them.

    A tree without that broker costs less by the way from it to the nearest other member at most, since that
    would join it again. O(T), and O(b) for each such sub-channel.
    """
    most = 0.0
    a = state.at[u]
    for c in range(given.rate.shape[1]):
        if not given.subscribed[u, c] or state.wanting[a, c] != 1:
            continue
        near = np.inf
        for x in range(len(state.load)):
            if x != a and state.wanting[x, c] > 0:
                near = min(near, trees.distance[a, x])
        most += min(state.group[c], state.rate_at[:, c].sum() * near)
    return most


@compiled
def moves_that_pay(
    given: SearchProblem, trees: Trees, state: SearchState, order: Longs, least: float, thorough: bool
) -> int:
    """Each user in turn goes to the broker with room where it saves most, if that is over `least`.

    Unless `thorough`, brokers where the user could save at most if its arrival cost nothing more are passed
    over by that bound. Spanning trees may shrink when a broker joins; such a saving may be missed. Returns
    the moves made.
    """
    made = 0
    for u in order:
        a = np.int64(state.at[u])
        now = cost_at(given, state, u, a)
        hope = np.inf if thorough else _hope(given, trees, state, u)
        best, to = -least, np.int64(-1)
        for b in range(len(state.load)):
            if b == a or given.access[u, b] == np.inf or state.load[b] + given.demand[u] > given.room[b]:
                continue
            if cost_at(given, state, u, b) - now - hope >= best:
                continue
            rise = move_cost(given, trees, state, u, b, np.inf if thorough else best)
            if rise < best:
                best, to = rise, np.int64(b)
        if to >= 0:
            move(given, trees, state, u, to)
            made += 1
    return made


@compiled
def swaps_that_pay(
    given: SearchProblem, trees: Trees, state: SearchState, order: Longs, least: float, thorough: bool
) -> int:
    """Each user in turn changes places with the first user elsewhere with a saving over `least`.

    Without `thorough`, only pairs that may save by the bound of `moves_that_pay`. Returns the swaps made.
    """
    users, brokers = len(state.at), len(state.load)
    start = np.zeros(brokers + 1, dtype=np.int64)
    for u in range(users):
        start[state.at[u] + 1] += 1
    start = np.cumsum(start)
    place = start[:-1].copy()
    listed = np.empty(users, dtype=np.int64)
    for u in range(users):
        listed[place[state.at[u]]] = u
        place[state.at[u]] += 1
    hopes = np.empty(users)
    for u in range(users):
        hopes[u] = np.inf if thorough else _hope(given, trees, state, u)
    made = 0
    for u in order:
        for b in range(brokers):
            if b == state.at[u] or given.access[u, b] == np.inf:
                continue
            gain = cost_at(given, state, u, np.int64(state.at[u])) - cost_at(given, state, u, b) + hopes[u]
            if gain <= least and not thorough:
                continue  # the partner's own gain is looked at from its side
            for i in range(start[b], start[b + 1]):
                v = listed[i]
                a = np.int64(state.at[u])
                if state.at[v] != b or a == b or given.access[v, a] == np.inf:
                    continue
                if cost_at(given, state, v, a) - cost_at(given, state, v, b) - hopes[v] - gain >= -least:
                    continue
                if _swap(given, trees, state, u, v, least):
                    made += 1
                    break
    return made


@compiled
def _swap(given: SearchProblem, trees: Trees, state: SearchState, u: Int, v: Int, least: float) -> bool:
    a, b = np.int64(state.at[u]), np.int64(state.at[v])
    more = given.demand[u] - given.demand[v]
    if state.load[b] + more > given.room[b] or state.load[a] - more > given.room[a]:
        return False
    first = move_cost(given, trees, state, u, b, np.inf)
    move(given, trees, state, u, b)
    if first + move_cost(given, trees, state, v, a, np.inf) < -least:
        move(given, trees, state, v, a)
        return True
    move(given, trees, state, u, a)
    return False


@compiled
def dearest_that_pays(
    given: SearchProblem, trees: Trees, state: SearchState, broker: Int, willing: Bools, least: float
) -> tuple[int, int, float]:
    """Of a broker's users, from the most expensive on, the first that a move pays for by over `least`.

    Returns the user, the best broker for it among those with room where it is `willing` to go, and by how
    much the cost rises; (-1, -1, 0) when no move pays. Every move is priced.
    """
    users = np.flatnonzero(state.at == broker)
    cost = np.empty(len(users))
    for i in range(len(users)):
        cost[i] = -cost_at(given, state, users[i], broker)
    for u in users[np.argsort(cost, kind="mergesort")]:
        best, to = -least, -1
        for b in range(len(state.load)):
            if b == broker or given.access[u, b] == np.inf or not willing[u, b]:
                continue
            if state.load[b] + given.demand[u] > given.room[b]:
                continue
            rise = move_cost(given, trees, state, u, b, np.inf)
            if rise < best:
                best, to = rise, b
        if to >= 0:
            return int(u), to, best
    return -1, -1, 0.0
