"""Compiled loops over many directed trees: what is below each link, and what a tree needs at all.

Owns the inner loops only: arrays in, arrays filled. `trees.py` and `marking.py` own what they mean.
"""

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, Ints, SmallInts, compiled
from ramify.network.trees.tree_kernels import OUTSIDE

__all__ = ["below_links", "keep_needed"]

Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


@compiled
def keep_needed(parent: SmallInts, root: Int, ends: SmallInts) -> int:
    """Put outside what is on no path from the root to one of `ends`; the first end that is off the tree.

    -1 when all are on it. O(nodes).
    """
    nodes = len(parent)
    needed = np.zeros(nodes, np.bool_)
    needed[root] = True
    for end in ends:
        at = end
        while not needed[at]:
            needed[at] = True
            at = parent[at]
            if at < 0:
                return int(end)
    for v in range(nodes):
        if not needed[v]:
            parent[v] = OUTSIDE
    return -1


@compiled
def below_links(parent: SmallInts, link: SmallInts, served: Flags, broker: Ints, bits: Words) -> None:
    """Set bit u of `bits[t]` when group u, at `broker[u]`, is below link t in a tree that serves it.

    `parent` and `link` are [trees, nodes], `served` is [trees, groups]. O(trees x groups x depth).
    """
    for k in range(len(parent)):
        for u in range(len(broker)):
            if not served[k, u]:
                continue
            at = broker[u]
            word, bit = u >> 6, np.uint64(1) << np.uint64(u & 63)
            while parent[k, at] >= 0:
                bits[link[k, at], word] |= bit
                at = parent[k, at]
