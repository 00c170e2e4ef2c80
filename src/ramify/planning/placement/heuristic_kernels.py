"""The loops of the placement heuristics, compiled. See `heuristics` for what they mean."""

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled

__all__ = ["best_pairs", "cheapest_with_room", "draw", "largest_ratio", "tree_weights"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@compiled
def _cheapest(price: Floats, demand: float, room: Floats, load: Floats) -> int:
    """The cheapest broker with room for a user; -1 when there is none."""
    best, to = np.inf, -1
    for b in range(len(room)):
        if price[b] < best and load[b] + demand <= room[b]:
            best, to = price[b], b
    return to


@compiled
def cheapest_with_room(
    access: Floats, demand: Floats, room: Floats, order: Longs, at: Ints, load: Floats
) -> int:
    """Algorithm 1: fill `at` and `load`. Returns the user that found no room, or -1."""
    for u in order:
        b = _cheapest(access[u], demand[u], room, load)
        if b < 0:
            return int(u)
        at[u] = b
        load[b] += demand[u]
    return -1


@compiled
def draw(
    weight: Floats,
    chance: Floats,
    access: Floats,
    demand: Floats,
    room: Floats,
    order: Longs,
    at: Ints,
    load: Floats,
) -> int:
    """Each user at a broker drawn by weight among those with room, else at the cheapest with room."""
    for u in order:
        total = 0.0
        for b in range(len(room)):
            if load[b] + demand[u] <= room[b]:
                total += weight[u, b]
        to = -1
        left = chance[u] * total
        for b in range(len(room) if total > 0 else 0):
            if weight[u, b] > 0 and load[b] + demand[u] <= room[b]:
                to = b
                left -= weight[u, b]
                if left < 0:
                    break
        if to < 0:
            to = _cheapest(access[u], demand[u], room, load)
        if to < 0:
            return int(u)
        at[u] = to
        load[to] += demand[u]
    return -1


@compiled
def _ratio(traffic: float, price: float) -> float:
    """Bandwidth to cost; links for nothing are best when they carry anything."""
    if traffic <= 0 or price == np.inf:
        return 0.0
    return traffic / price if price > 0 else np.inf


@compiled
def best_pairs(
    rate: Floats, wanted: Floats, access: Floats, demand: Floats, room: Floats, at: Ints, load: Floats
) -> None:
    """The first loop of Algorithm 2: per broker the free pair with the largest ratio that fits.

    The traffic of a pair is at most what both send, so its ratio is at most the larger of their own ratios
    of what they send to their price: users are tried by that, and the search ends at the best found.
    """
    users = len(rate)
    out = rate.sum(axis=1)
    bound = np.empty(users)
    for b in range(len(room)):
        for u in range(users):
            bound[u] = _ratio(out[u], access[u, b]) if at[u] < 0 else -1.0
        order = np.argsort(-bound)
        best, one, two = 0.0, -1, -1
        for place in range(users):
            i = order[place]
            if bound[i] <= best:
                break
            for later in range(place + 1, users):
                j = order[later]
                if bound[j] < 0:
                    break
                price = access[i, b] + access[j, b]
                if _ratio(out[i] + out[j], price) <= best:
                    continue
                traffic = 0.0
                for c in range(rate.shape[1]):
                    traffic += rate[i, c] * wanted[j, c] + rate[j, c] * wanted[i, c]
                ratio = _ratio(traffic, price)
                if ratio > best and load[b] + demand[i] + demand[j] <= room[b]:
                    best, one, two = ratio, i, j
        if one >= 0:
            at[one], at[two] = b, b
            load[b] += demand[one] + demand[two]


@compiled
def largest_ratio(
    rate: Floats, wanted: Floats, access: Floats, demand: Floats, room: Floats, at: Ints, load: Floats
) -> int:
    """The second loop of Algorithm 2. Returns the user that found no room, or -1."""
    users, channels = rate.shape
    sent = np.zeros((len(room), channels))
    wanting = np.zeros((len(room), channels))
    for u in range(users):
        if at[u] >= 0:
            sent[at[u]] += rate[u]
            wanting[at[u]] += wanted[u]
    for u in range(users):
        if at[u] >= 0:
            continue
        best, to = 0.0, -1
        for b in range(len(room)):
            if load[b] + demand[u] > room[b]:
                continue
            traffic = 0.0
            for c in range(channels):
                traffic += rate[u, c] * wanting[b, c] + sent[b, c] * wanted[u, c]
            ratio = _ratio(traffic, access[u, b])
            if ratio > best:
                best, to = ratio, b
        if to < 0:
            to = _cheapest(access[u], demand[u], room, load)
        if to < 0:
            return u
        at[u] = to
        load[to] += demand[u]
        sent[to] += rate[u]
        wanting[to] += wanted[u]
    return -1


@compiled
def tree_weights(
    rate: Floats, subscribed: Bools, access: Floats, distance: Floats, predecessor: Ints, weight: Floats
) -> None:
    """Phase 1 of mixing: add to `weight[u, b]` what the trees of all publishers carry on each access link.

    A publisher enters the core where its way to the nearest other subscriber begins; from there a tree is
    grown as Algorithm 3 does, for all publishers of the sub-channel that enter there together.
    """
    users, brokers = access.shape
    reach, last = _ways(access, distance)
    enters = np.empty(users, dtype=np.int64)
    sent = np.empty(brokers)
    for c in range(rate.shape[1]):
        members = np.flatnonzero(subscribed[:, c])
        _enter(rate[:, c], members, access, reach, enters)
        sent[:] = 0.0
        for u in range(users):
            if enters[u] >= 0:
                sent[enters[u]] += rate[u, c]
                weight[u, enters[u]] += rate[u, c]
        # a row per broker, so that the loop over users runs through memory in order
        far = np.empty((brokers, len(members)))
        end = np.empty((brokers, len(members)), dtype=np.int32)
        for i in range(len(members)):
            for b in range(brokers):
                far[b, i] = reach[members[i], b]
                end[b, i] = last[members[i], b]
        place = np.empty(len(members), dtype=np.int32)
        for b in range(brokers):
            if sent[b] <= 0:
                continue
            _grow(b, far, end, predecessor, place)
            for i in range(len(members)):
                u = members[i]
                weight[u, place[i]] += sent[b] - (rate[u, c] if enters[u] == b else 0.0)


@compiled
def _ways(access: Floats, distance: Floats) -> tuple[Floats, Ints]:
    """How far each user is from each broker, its access link included, and which broker that link is to."""
    users, brokers = access.shape
    reach = np.full((users, brokers), np.inf)
    last = np.full((users, brokers), -1, dtype=np.int32)
    for u in range(users):
        for end in range(brokers):
            if access[u, end] == np.inf:
                continue
            for b in range(brokers):
                far = distance[b, end] + access[u, end]
                margin = 1e-12 * far
                if far < reach[u, b] - margin or (
                    far <= reach[u, b] + margin and access[u, end] < access[u, last[u, b]]
                ):
                    reach[u, b] = far
                    last[u, b] = end
    return reach, last


@compiled
def _enter(rate: Floats, members: Longs, access: Floats, reach: Floats, enters: Longs) -> None:
    """The broker where each publisher of a sub-channel enters; -1 for those without other subscribers."""
    users, brokers = access.shape
    nearest = np.full(brokers, -1, dtype=np.int64)
    first = np.full(brokers, np.inf)
    second = np.full(brokers, np.inf)
    for v in members:
        for b in range(brokers):
            if reach[v, b] < first[b]:
                second[b] = first[b]
                first[b] = reach[v, b]
                nearest[b] = v
            elif reach[v, b] < second[b]:
                second[b] = reach[v, b]
    for u in range(users):
        enters[u] = -1
        best = np.inf
        for b in range(brokers if rate[u] > 0 else 0):
            far = access[u, b] + (second[b] if nearest[b] == u else first[b])
            if far < best or (far == best and far < np.inf and access[u, b] < access[u, enters[u]]):
                best = far
                enters[u] = b


@compiled
def _grow(root: Int, far: Floats, end: Ints, predecessor: Ints, place: Ints) -> None:
    """One tree: the user nearest to the brokers of the tree joins, with the brokers on its way.

    A user that brings no broker along changes nothing for the others. So all users that are nearer than the
    next one with a broker join with it. `far[b, i]` is from broker b to user i, whose access link is then
    to `end[b, i]`; fills `place[i]`, the broker each user joined at. O(b users).
    """
    brokers, users = far.shape
    near = far[root].copy()
    via = np.full(users, root, dtype=np.int32)
    place[:] = end[root]
    left = np.arange(users)
    inside = np.zeros(brokers, dtype=np.bool_)
    inside[root] = True
    fresh = np.empty(brokers, dtype=np.int64)
    count, limit, waiting = 0, -1.0, users
    while waiting > 0:
        at, nearest, kept = -1, np.inf, 0
        for j in range(waiting):
            i = left[j]
            # what joined before the brokers of `fresh` came in stays where it is
            if near[i] <= limit and inside[place[i]] and not _among(place[i], fresh, count):
                continue
            for k in range(count):
                if far[fresh[k], i] < near[i]:
                    near[i] = far[fresh[k], i]
                    via[i] = fresh[k]
                    place[i] = end[fresh[k], i]
            left[kept] = i
            kept += 1
            if near[i] < nearest and not inside[place[i]]:
                at, nearest = i, near[i]
        waiting = kept
        if at < 0:
            break
        limit, count = nearest, 0
        b = place[at]
        while not inside[b]:
            inside[b] = True
            fresh[count] = b
            count += 1
            b = predecessor[via[at], b]


@compiled
def _among(b: Int, fresh: Longs, count: Int) -> bool:
    for k in range(count):
        if fresh[k] == b:
            return True
    return False
