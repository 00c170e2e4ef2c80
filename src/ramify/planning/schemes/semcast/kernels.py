"""Compiled loops of SemCast: weights of bitsets, overlap of profiles, edge estimates, benefits of merging.

Owns the inner loops only: arrays in, arrays filled. `statistics`, `hierarchies` and `merging` own what they
mean. A set of messages is a row of 64-bit words, message m being bit m % 64 of word m // 64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.compiled import Bytes, Flag, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined

__all__ = [
    "best_of_rows",
    "count_bits",
    "edges_alone",
    "enlist",
    "fill_overlap",
    "merge_row",
    "near_alone",
    "overlap_counts",
    "set_bits",
    "set_slots",
    "unite",
    "united_edges",
    "weigh_rows",
]

Floats = npt.NDArray[np.float64]

ONE = np.uint64(1)
NOTHING = np.uint64(0)


@compiled
def set_bits(start: Ints, member: SmallInts, bits: Hashes) -> None:
    """Message m matched the profiles `member[start[m]:start[m + 1]]`: set bit m in each one's row."""
    for m in range(len(start) - 1):
        word, bit = m >> 6, ONE << np.uint64(m & 63)
        for at in range(start[m], start[m + 1]):
            bits[member[at], word] |= bit


@compiled
def set_slots(start: Ints, member: SmallInts, slot: Ints, bits: Hashes) -> None:
    """The same where message m is bit `slot[m]`."""
    for m in range(len(start) - 1):
        word, bit = slot[m] >> 6, ONE << np.uint64(slot[m] & 63)
        for at in range(start[m], start[m + 1]):
            bits[member[at], word] |= bit


@inlined
def ones(word: Hash) -> Hash:
    """How many bits are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@compiled
def _weigh(word: Hash, base: Int, weight: Floats) -> float:
    """The weights of the messages of one word."""
    total = 0.0
    while word != NOTHING:
        low = word & (~word + ONE)
        total += weight[base + np.int64(ones(low - ONE))]
        word ^= low
    return total


@compiled
def weigh_rows(bits: Hashes, weight: Floats, rate: Floats) -> None:
    """The weight of each row."""
    for p in range(len(bits)):
        total = 0.0
        for w in range(bits.shape[1]):
            if bits[p, w] != NOTHING:
                total += _weigh(bits[p, w], w << 6, weight)
        rate[p] = total


@compiled
def count_bits(bits: Hashes, count: Ints) -> None:
    """How many bits each row has."""
    for p in range(len(bits)):
        total = np.int64(0)
        for w in range(bits.shape[1]):
            total += np.int64(ones(bits[p, w]))
        count[p] = total


@compiled
def enlist(row: Int, bits: Hashes, head: SmallInts, entry: SmallInts, used: Int) -> int:
    """Put a row on the list of each of its messages; returns how many entries are used then.

    The list of message m begins at entry `head[m]`; an entry is (row, next entry), -1 ending a list.
    """
    for w in range(bits.shape[1]):
        word = bits[row, w]
        while word != NOTHING:
            low = word & (~word + ONE)
            m = (w << 6) + np.int64(ones(low - ONE))
            entry[used, 0], entry[used, 1] = row, head[m]
            head[m] = used
            used += 1
            word ^= low
    return used  # type: ignore[no-any-return]


@compiled
def _shared(
    row: Int,
    bits: Hashes,
    weight: Floats,
    head: SmallInts,
    entry: SmallInts,
    alive: Bytes,
    shared: Floats,
    met: Ints,
) -> int:
    """The weight that each other live row shares with one, in `shared`, and which do, in `met`.

    Summed by ascending message, whatever the rows. `shared` holds -1 before, and where nothing is shared.
    """
    count = 0
    for w in range(bits.shape[1]):
        word = bits[row, w]
        while word != NOTHING:
            low = word & (~word + ONE)
            m = (w << 6) + np.int64(ones(low - ONE))
            word ^= low
            at = np.int64(head[m])
            while at >= 0:
                other = np.int64(entry[at, 0])
                if alive[other] and other != row:
                    if shared[other] < 0:
                        shared[other] = 0.0
                        met[count] = other
                        count += 1
                    shared[other] += weight[m]
                at = np.int64(entry[at, 1])
    return count


@compiled
def overlap_counts(bits: Hashes, weight: Floats, head: SmallInts, entry: SmallInts, count: Ints) -> None:
    """How many other rows each row shares a message with."""
    alive, shared = np.ones(len(bits), dtype=np.uint8), np.full(len(bits), -1.0)
    met = np.empty(len(bits), dtype=np.int64)
    for r in range(len(bits)):
        count[r] = _shared(r, bits, weight, head, entry, alive, shared, met)
        shared[met[: count[r]]] = -1.0


@compiled
def fill_overlap(
    bits: Hashes,
    weight: Floats,
    head: SmallInts,
    entry: SmallInts,
    start: Ints,
    column: SmallInts,
    both: Floats,
) -> None:
    """Compressed rows of the weight that pairs of rows share, columns ascending."""
    alive, shared = np.ones(len(bits), dtype=np.uint8), np.full(len(bits), -1.0)
    met = np.empty(len(bits), dtype=np.int64)
    for r in range(len(bits)):
        count = _shared(r, bits, weight, head, entry, alive, shared, met)
        met[:count].sort()
        for x in range(count):
            column[start[r] + x], both[start[r] + x] = met[x], shared[met[x]]
            shared[met[x]] = -1.0


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


@compiled
def _benefit(
    i: Int,
    j: Int,
    common: Any,
    rate: Floats,
    edges: Floats,
    point: SmallInts,
    start: Ints,
    member: SmallInts,
    near: Floats,
    rank: SmallInts,
    distance: Floats,
    noise: Flag,
    floor: Any,
    low: Floats,
) -> Any:
    """What merging two channels saves; 0 where it is surely not more than `floor`."""
    if noise:
        most = common * (edges[i] + edges[j])
    else:
        most = rate[i] * edges[i] + rate[j] * edges[j]
    if most < floor:
        return 0.0
    at = point[i] if rate[i] > rate[j] or (rate[i] == rate[j] and i < j) else point[j]
    joined = united_edges(
        member[start[i] : start[i + 1]],
        near[start[i] : start[i + 1]],
        member[start[j] : start[j + 1]],
        near[start[j] : start[j + 1]],
        at,
        rank,
        distance,
        low,
    )
    if noise:
        return common * (edges[i] + edges[j] - joined)
    return rate[i] * edges[i] + rate[j] * edges[j] - (rate[i] + rate[j] - common) * joined


@compiled
def _few_terms(a: Hashes, b: Hashes, most: Int) -> bool:
    total = np.int64(0)
    for w in range(len(a)):
        total += np.int64(ones(a[w] | b[w]))
    return total <= most  # type: ignore[no-any-return]


@compiled
def merge_row(
    i: Int,
    alive: Bytes,
    bits: Hashes,
    weight: Floats,
    head: SmallInts,
    entry: SmallInts,
    rate: Floats,
    edges: Floats,
    point: SmallInts,
    start: Ints,
    member: SmallInts,
    near: Floats,
    rank: SmallInts,
    distance: Floats,
    noise: Flag,
    terms: Hashes,
    most: Int,
    best: Floats,
    partner: SmallInts,
    shared: Floats,
    met: Ints,
    low: Floats,
    spread: Flag,
) -> None:
    """The best merge of channel i among the live; with `spread`, the others learn of it too.

    Partner -1 where none saves; ties to the lower partner. `shared` (-1 throughout), `met` and `low` are
    scratch.
    """
    best[i], partner[i] = 0.0, -1
    count = _shared(i, bits, weight, head, entry, alive, shared, met)
    for x in range(count):
        j = met[x]
        common = shared[j]
        shared[j] = -1.0
        floor = min(best[i], best[j]) if spread else best[i]
        saved = _benefit(
            i, j, common, rate, edges, point, start, member, near, rank, distance, noise, floor, low
        )
        here = saved > best[i] or (saved > 0 and saved == best[i] and j < partner[i])
        there = spread and (saved > best[j] or (saved > 0 and saved == best[j] and i < partner[j]))
        if not (here or there) or not _few_terms(terms[i], terms[j], most):
            continue
        if here:
            best[i], partner[i] = saved, j
        if there:
            best[j], partner[j] = saved, i


@compiled
def best_of_rows(live: SmallInts, best: Floats) -> int:
    """The live channel with the largest benefit; ties to the lowest; -1 when none saves."""
    found, most = -1, 0.0
    for x in range(len(live)):
        if best[live[x]] > most:
            found, most = live[x], best[live[x]]
    return found
