"""Compiled loops of Kyra's trees: arrays in, arrays filled. `trees.py` owns what they mean."""

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, Ints, compiled

__all__ = ["balanced_kruskal"]

Table = npt.NDArray[np.int32]  # of two dimensions


@compiled
def balanced_kruskal(ends: Table, order: Ints, balance: Int, degree: Ints, chosen: Ints) -> int:
    """Fill `chosen` with pairs that join two parts; how many. Pairs are looked at in `order`.

    Each step takes, of the first `balance` pairs that close no loop, the one whose ends' larger degree is
    least; ties to the first. Degrees are counted on. O(pairs + nodes * balance): a pair that closes a loop
    is looked at once.
    """
    pairs, nodes = len(order), len(degree)
    above = np.arange(nodes).astype(np.int32)
    following = np.arange(1, pairs + 2)  # a list of the places that are left; the first stands before them
    count = 0
    while count < nodes - 1:
        best, before_best, worst = -1, 0, 0
        before, looked = 0, 0
        at = following[0] - 1
        while at < pairs and looked < balance:
            a, b = ends[order[at], 0], ends[order[at], 1]
            larger = max(degree[a], degree[b])
            while above[a] != a:
                above[a] = above[above[a]]
                a = above[a]
            while above[b] != b:
                above[b] = above[above[b]]
                b = above[b]
            if a == b:
                following[before] = following[at + 1]
            else:
                if best < 0 or larger < worst:
                    best, before_best, worst = at, before, larger
                looked += 1
                before = at + 1
            at = following[before] - 1
        if best < 0:
            break
        following[before_best] = following[best + 1]
        a, b = ends[order[best], 0], ends[order[best], 1]
        degree[a] += 1
        degree[b] += 1
        while above[a] != a:
            a = above[a]
        while above[b] != b:
            b = above[b]
        above[max(a, b)] = min(a, b)
        chosen[count] = order[best]
        count += 1
    return count
