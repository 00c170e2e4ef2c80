"""Compiled loops over weighted patterns: sums per class, pairs of classes, sketches of classes.

Owns the inner loops only: arrays in, arrays filled. `selectivity.py` and `overlap.py` own what they
mean. Pattern p stands for `weight[p]` events and matches the classes `member[start[p]:start[p + 1]]`,
ascending.

A *block* is the classes from `low` to `high - 1` with all later classes as partners: some rows of the
upper triangle of pairs i < j. A block's cells are numbered row by row: see `_row`.
"""

import math

import numpy as np
import numpy.typing as npt

from ramify.compiled import Flag, Hash, Hashes, Int, Ints, SmallInts, compiled, inlined

__all__ = [
    "add_pairs",
    "add_pairs_among",
    "add_rows",
    "add_weights",
    "band_keys",
    "count_kept",
    "fill_kept",
    "lower_signatures",
    "pairs_of_sets",
    "suffixes",
]

Floats32 = npt.NDArray[np.float32]
Table = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@compiled
def add_weights(start: Ints, member: SmallInts, weight: Ints, size: Ints, rows: Ints, sums: Ints) -> None:
    """Add some patterns to the sums of their classes: weight, size and 1, in the three rows of `sums`.

    The last column of `sums` takes every pattern once, whatever it matches.
    """
    everything = sums.shape[1] - 1
    for p in rows:
        for x in range(start[p], start[p + 1]):
            i = member[x]
            sums[0, i] += weight[p]
            sums[1, i] += size[p]
            sums[2, i] += 1
        sums[0, everything] += weight[p]
        sums[1, everything] += size[p]
        sums[2, everything] += 1


@compiled
def suffixes(
    start: Ints, member: SmallInts, low: Int, high: Int, row: Ints, begin: Ints, kept: SmallInts
) -> tuple[int, int]:
    """What a block needs of some patterns: those with a class in it that is not their last, from there on.

    Fills the patterns' numbers `row`, their `begin` (one more than rows) and `kept` classes; all three
    must be as long as the input. Gives how many rows and classes were filled.
    """
    rows, filled = 0, 0
    begin[0] = 0
    for p in range(len(start) - 1):
        x, stop = start[p], start[p + 1]
        while x < stop and member[x] < low:
            x += 1
        if stop - x < 2 or member[x] >= high:
            continue
        row[rows] = p
        for y in range(x, stop):
            kept[filled] = member[y]
            filled += 1
        rows += 1
        begin[rows] = filled
    return rows, filled


@inlined
def _row(i: Int, low: Int, classes: Int) -> Int:
    """Where row i of a block begins, less i + 1: pair (i, j) is at `_row(i) + j`."""
    before = i - low
    return before * (classes - 1 - low) - before * (before - 1) // 2 - i - 1


@compiled
def add_pairs(
    start: Ints, member: SmallInts, weight: Ints, low: Int, high: Int, classes: Int, table: Table
) -> None:
    """Add each pattern's weight to the pairs of its classes within a block. O(sum of squared lengths).

    No pattern may hold a class below `low`. The patterns are visited class by class, so that one row of
    the table is in use at a time: two to three times as fast as pattern by pattern, where nearly every
    addition misses the cache. Give it a few million classes at a time.
    """
    first, place = _by_class(start, member, low, high)
    end = np.empty((len(weight), 2), dtype=np.int64)  # side by side: one cache miss for both
    for p in range(len(weight)):
        end[p, 0], end[p, 1] = start[p + 1], weight[p]
    for i in range(low, high):
        row = _row(i, low, classes)
        for k in range(first[i - low], first[i - low + 1]):
            stop, worth = end[place[k, 1], 0], end[place[k, 1], 1]
            for y in range(np.int64(place[k, 0]) + 1, stop):
                table[row + member[y]] += worth


@compiled
def _by_class(start: Ints, member: SmallInts, low: Int, high: Int) -> tuple[Ints, SmallInts]:
    """Where the classes of a block occur, class by class: (position in `member`, pattern) each."""
    first = np.zeros(high - low + 1, dtype=np.int64)
    for p in range(len(start) - 1):
        for x in range(start[p], start[p + 1]):
            if member[x] >= high:
                break
            first[member[x] - low + 1] += 1
    for i in range(high - low):
        first[i + 1] += first[i]
    at = first[:-1].copy()
    place = np.empty((first[-1], 2), dtype=np.int32)
    for p in range(len(start) - 1):
        for x in range(start[p], start[p + 1]):
            if member[x] >= high:
                break
            i = member[x] - low
            place[at[i], 0], place[at[i], 1] = x, p
            at[i] += 1
    return first, place


@inlined
def _keeps(both: Int, one: Int, other: Int, least: float, contained: float) -> Flag:
    """Whether a pair is alike enough, or one of the two lies in the other enough."""
    return both / (one + other - both) >= least or both / min(one, other) >= contained


@compiled
def count_kept(
    table: Table, low: Int, first: Int, last: Int, events: Ints, least: float, contained: float
) -> int:
    """How many pairs of the rows `first` to `last - 1` of a block are to be kept."""
    classes, found = len(events), 0
    for i in range(first, last):
        row = _row(i, low, classes)
        for j in range(i + 1, classes):
            both = np.int64(table[row + j])
            if both and _keeps(both, events[i], events[j], least, contained):
                found += 1
    return found


@compiled
def fill_kept(
    table: Table,
    low: Int,
    first: Int,
    last: Int,
    events: Ints,
    least: float,
    contained: float,
    one: SmallInts,
    other: SmallInts,
    shared: Ints,
    cell: Ints,
) -> None:
    """Fill the pairs that `count_kept` counted, what they share, and their cells."""
    classes, at = len(events), 0
    for i in range(first, last):
        row = _row(i, low, classes)
        for j in range(i + 1, classes):
            both = np.int64(table[row + j])
            if both and _keeps(both, events[i], events[j], least, contained):
                one[at], other[at], shared[at], cell[at] = i, j, both, row + j
                at += 1


@compiled
def add_pairs_among(
    start: Ints,
    member: SmallInts,
    weight: Ints,
    low: Int,
    high: Int,
    first: Ints,
    partner: SmallInts,
    shared: Ints,
) -> None:
    """Like `add_pairs`, for the pairs (i, `partner[first[i - low]:first[i - low + 1]]`, ascending) alone.

    O(sum of squared lengths * log partners).
    """
    for p in range(len(start) - 1):
        stop = start[p + 1]
        for x in range(start[p], stop - 1):
            i = np.int64(member[x])
            if i >= high:
                break
            at, end = first[i - low], first[i - low + 1]
            for y in range(x + 1, stop):
                if at == end:
                    break
                at += np.searchsorted(partner[at:end], member[y])
                if at < end and partner[at] == member[y]:
                    shared[at] += weight[p]
                    at += 1


@compiled
def add_rows(
    start: Ints, member: SmallInts, weight: Ints, place: SmallInts, shared: npt.NDArray[np.int64]
) -> None:
    """Fill whole rows of pairs for chosen classes: class i has row `place[i]` of `shared`, -1 for none."""
    for p in range(len(start) - 1):
        for x in range(start[p], start[p + 1]):
            row = place[member[x]]
            if row >= 0:
                for y in range(start[p], start[p + 1]):
                    shared[row, member[y]] += weight[p]


@inlined
def _mixed(word: Hash) -> Hash:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def lower_signatures(
    start: Ints, member: SmallInts, weight: Ints, key: Hashes, seeds: Hashes, signature: Floats32
) -> None:
    """Lower the signatures (a row per class) of each pattern's classes to the pattern's arrival times.

    In race s pattern p arrives at an exponential time of rate `weight[p]`, drawn from its key and seed
    s alone. Two classes have the same winner with probability equal to their Jaccard over events.
    """
    races = len(seeds)
    arrival = np.empty(races, dtype=np.float32)
    for p in range(len(start) - 1):
        if weight[p] <= 0 or start[p] == start[p + 1]:
            continue
        for s in range(races):
            word = _mixed(key[p] ^ seeds[s])
            uniform = (np.float64(word >> np.uint64(11)) + 0.5) * 2.0**-53
            arrival[s] = np.float32(-math.log(uniform) / weight[p])
        for x in range(start[p], start[p + 1]):
            row = signature[member[x]]
            for s in range(races):
                row[s] = min(row[s], arrival[s])


@compiled
def band_keys(signature: npt.NDArray[np.uint32], band_races: Int, bucket: Hashes) -> None:
    """Fill a key per class and band (`bucket`, class by class): equal when all races of the band are."""
    classes, races = signature.shape
    bands = races // band_races
    for i in range(classes):
        for band in range(bands):
            word = _mixed(np.uint64(band + 1))
            for s in range(band * band_races, (band + 1) * band_races):
                word = _mixed(word ^ np.uint64(signature[i, s]))
            bucket[i * bands + band] = word


@compiled
def pairs_of_sets(
    start: Ints, member: SmallInts, events: Ints, rare: npt.NDArray[np.bool_], least: float, out: Ints
) -> int:
    """The pairs (i * classes + j, i < j) within each set that could reach a Jaccard of `least`.

    A pair needs one class that is `rare`, and weights that are near enough: the Jaccard of two classes
    is at most the smaller over the larger. Fills as much of `out` as there is; gives how many there
    are.
    """
    classes, found = len(events), 0
    for p in range(len(start) - 1):
        for x in range(start[p], start[p + 1]):
            for y in range(x + 1, start[p + 1]):
                i, j = min(member[x], member[y]), max(member[x], member[y])
                if not (rare[i] or rare[j]):
                    continue
                small, large = min(events[i], events[j]), max(events[i], events[j])
                if small >= least * large * (1.0 - 1e-12):
                    if found < len(out):
                        out[found] = np.int64(i) * classes + j
                    found += 1
    return found
