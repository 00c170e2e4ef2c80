"""Compiled loops over sets as bits: filled, weighed, counted, and the overlap of all pairs.

Owns the inner loops only: arrays in, arrays filled. A set of messages is a row of 64-bit words, message m
being bit m % 64 of word m // 64.
"""

import numpy as np
import numpy.typing as npt

from ramify.compiled import Bytes, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined

__all__ = [
    "count_bits",
    "enlist",
    "fill_overlap",
    "ones",
    "overlap_counts",
    "set_bits",
    "shared_weight",
    "weigh_rows",
]

Floats = npt.NDArray[np.float64]

ONE = np.uint64(1)
NO_BITS = np.uint64(0)


@compiled
def set_bits(start: Ints, member: SmallInts, bits: Hashes) -> None:
    """Message m matched the profiles `member[start[m]:start[m + 1]]`: set bit m in each one's row."""
    for m in range(len(start) - 1):
        word, bit = m >> 6, ONE << np.uint64(m & 63)
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
    while word != NO_BITS:
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
            if bits[p, w] != NO_BITS:
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
        while word != NO_BITS:
            low = word & (~word + ONE)
            m = (w << 6) + np.int64(ones(low - ONE))
            entry[used, 0], entry[used, 1] = row, head[m]
            head[m] = used
            used += 1
            word ^= low
    return used  # type: ignore[no-any-return]


@compiled
def shared_weight(
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
        while word != NO_BITS:
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
        count[r] = shared_weight(r, bits, weight, head, entry, alive, shared, met)
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
        count = shared_weight(r, bits, weight, head, entry, alive, shared, met)
        met[:count].sort()
        for x in range(count):
            column[start[r] + x], both[start[r] + x] = met[x], shared[met[x]]
            shared[met[x]] = -1.0
