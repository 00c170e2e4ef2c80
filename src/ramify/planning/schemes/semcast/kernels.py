"""Compiled loops of SemCast: edge estimates and benefits of merging.

Owns the inner loops only: arrays in, arrays filled. `hierarchies` and `merging` own what they mean. Sets of
messages are rows of bits, as in `planning.demand.overlap_kernels`.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Bytes, Flag, Hashes, Int, Ints, SmallInts, compiled
from ramify.planning.demand.overlap_kernels import ones, shared_weight

__all__ = [
    "best_of_rows",
    "edges_alone",
    "merge_rows",
    "near_alone",
    "unite",
    "united_edges",
]

Floats = npt.NDArray[np.float64]


# ------------------------------------------------------------------------------------- edge estimates


@compiled
def near_alone(member: SmallInts, rank: SmallInts, distance: Floats, near: Floats) -> None:
    """near[i, o]: from member i to the nearest that comes before it in order o; inf for the first."""
    for o in range(len(rank)):
        for i in range(len(member)):
            best = np.inf
            for j in range(len(member)):
                if rank[o, member[j]] < rank[o, member[i]]:
                    best = min(best, distance[member[j], member[i]])
            near[i, o] = best


@compiled
def edges_alone(member: SmallInts, near: Floats, point: Int, distance: Floats) -> float:
    """The mean over orders of what joining costs; the first joins at the rendezvous point."""
    total = 0.0
    for o in range(near.shape[1]):
        for i in range(len(member)):
            if near[i, o] == np.inf:
                total += distance[point, member[i]]
            else:
                total += near[i, o]
    mean: float = total / max(near.shape[1], 1)
    return mean


@compiled
def _meet(
    o: Int, a: SmallInts, b: SmallInts, rank: SmallInts, distance: Floats, low_a: Floats, low_b: Floats
) -> None:
    """Lower what members of each set pay by what is near in the other."""
    for i in range(len(a)):
        u = a[i]
        before, best = rank[o, u], low_a[i]
        for j in range(len(b)):
            v = b[j]
            if u == v:
                continue
            far = distance[u, v]
            if rank[o, v] < before:
                best = min(best, far)
            elif far < low_b[j]:
                low_b[j] = far
        low_a[i] = best


@compiled
def united_edges(
    a: SmallInts,
    near_a: Floats,
    b: SmallInts,
    near_b: Floats,
    point: Int,
    rank: SmallInts,
    distance: Floats,
    low: Floats,
) -> float:
    """`edges_alone` of two sets together: O(a * b) per order. `low` is scratch, float64[2, longest]."""
    total = 0.0
    low_a, low_b = low[0], low[1]
    for o in range(len(rank)):
        low_a[: len(a)] = near_a[:, o]
        low_b[: len(b)] = near_b[:, o]
        _meet(o, a, b, rank, distance, low_a, low_b)
        i, j = 0, 0
        while i < len(a) or j < len(b):
            if j == len(b) or (i < len(a) and a[i] < b[j]):
                node, paid = a[i], low_a[i]
                i += 1
            elif i == len(a) or b[j] < a[i]:
                node, paid = b[j], low_b[j]
                j += 1
            else:
                node, paid = a[i], min(low_a[i], low_b[j])
                i += 1
                j += 1
            total += distance[point, node] if paid == np.inf else paid
    return total / max(len(rank), 1)


@compiled
def unite(
    a: SmallInts,
    near_a: Floats,
    b: SmallInts,
    near_b: Floats,
    rank: SmallInts,
    distance: Floats,
    member: SmallInts,
    near: Floats,
) -> int:
    """Both sets as one, ascending; returns how many. `member` and `near` have room for a + b."""
    count = 0
    low_a, low_b = np.empty(len(a)), np.empty(len(b))
    for o in range(len(rank)):
        low_a[:] = near_a[:, o]
        low_b[:] = near_b[:, o]
        _meet(o, a, b, rank, distance, low_a, low_b)
        i, j, count = 0, 0, 0
        while i < len(a) or j < len(b):
            if j == len(b) or (i < len(a) and a[i] < b[j]):
                member[count], near[count, o] = a[i], low_a[i]
                i += 1
            elif i == len(a) or b[j] < a[i]:
                member[count], near[count, o] = b[j], low_b[j]
                j += 1
            else:
                member[count], near[count, o] = a[i], min(low_a[i], low_b[j])
                i += 1
                j += 1
            count += 1
    return count


# ---------------------------------------------------------------------------------------------- merging


class ChannelColumns(NamedTuple):
    """Channels that may merge, a row each. They are found by their messages (`enlist`).

    `start`, `member`, `near` are the brokers of each channel and what they cost (`unite`). `best` and
    `partner` are the most that a merge saves and with which channel; `terms` are bits of the hierarchies
    that its expression names.
    """

    alive: Bytes
    bits: Hashes
    weight: Floats
    head: SmallInts
    entry: SmallInts
    rate: Floats
    edges: Floats
    point: SmallInts
    start: Ints
    member: SmallInts
    near: Floats
    terms: Hashes
    best: Floats
    partner: SmallInts


class MergeCosts(NamedTuple):
    """What merges are judged by: the estimate of edges, whether noise stays apart, the most terms."""

    rank: SmallInts
    distance: Floats
    noise: Flag
    most: Int


class MergeMemory(NamedTuple):
    """Scratch of `merge_rows`; `shared` is -1 throughout between calls."""

    shared: Floats
    met: Ints
    low: Floats


@compiled
def _benefit(
    i: Int, j: Int, common: Any, channels: ChannelColumns, costs: MergeCosts, floor: Any, low: Floats
) -> Any:
    """What merging two channels saves; 0 where it is surely not more than `floor`."""
    rate, edges, point = channels.rate, channels.edges, channels.point
    if costs.noise:
        most = common * (edges[i] + edges[j])
    else:
        most = rate[i] * edges[i] + rate[j] * edges[j]
    if most < floor:
        return 0.0
    start, member, near = channels.start, channels.member, channels.near
    at = point[i] if rate[i] > rate[j] or (rate[i] == rate[j] and i < j) else point[j]
    joined = united_edges(
        member[start[i] : start[i + 1]],
        near[start[i] : start[i + 1]],
        member[start[j] : start[j + 1]],
        near[start[j] : start[j + 1]],
        at,
        costs.rank,
        costs.distance,
        low,
    )
    if costs.noise:
        return common * (edges[i] + edges[j] - joined)
    return rate[i] * edges[i] + rate[j] * edges[j] - (rate[i] + rate[j] - common) * joined


@compiled
def _few_terms(a: Hashes, b: Hashes, most: Int) -> bool:
    total = np.int64(0)
    for w in range(len(a)):
        total += np.int64(ones(a[w] | b[w]))
    return total <= most  # type: ignore[no-any-return]


@compiled
def _merge_row(
    i: Int, channels: ChannelColumns, costs: MergeCosts, memory: MergeMemory, spread: Flag
) -> None:
    """The best merge of channel i among the live; with `spread`, the others learn of it too.

    Partner -1 where none saves; ties to the lower partner.
    """
    best, partner, terms = channels.best, channels.partner, channels.terms
    shared, met = memory.shared, memory.met
    best[i], partner[i] = 0.0, -1
    count = shared_weight(
        i, channels.bits, channels.weight, channels.head, channels.entry, channels.alive, shared, met
    )
    for x in range(count):
        j = met[x]
        common = shared[j]
        shared[j] = -1.0
        floor = min(best[i], best[j]) if spread else best[i]
        saved = _benefit(i, j, common, channels, costs, floor, memory.low)
        here = saved > best[i] or (saved > 0 and saved == best[i] and j < partner[i])
        there = spread and (saved > best[j] or (saved > 0 and saved == best[j] and i < partner[j]))
        if not (here or there) or not _few_terms(terms[i], terms[j], costs.most):
            continue
        if here:
            best[i], partner[i] = saved, j
        if there:
            best[j], partner[j] = saved, i


@compiled
def merge_rows(
    rows: SmallInts, channels: ChannelColumns, costs: MergeCosts, memory: MergeMemory, spread: Flag
) -> None:
    """The best merge of each of some channels, in their order, as `_merge_row` finds it."""
    for x in range(len(rows)):
        _merge_row(rows[x], channels, costs, memory, spread)


@compiled
def best_of_rows(live: SmallInts, best: Floats) -> int:
    """The live channel with the largest benefit; ties to the lowest; -1 when none saves."""
    found, most = -1, 0.0
    for x in range(len(live)):
        if best[live[x]] > most:
            found, most = live[x], best[live[x]]
    return found
