"""Multicast groups over cells: Forgy's k-means with expected waste for its distance (Riabov et al. 2002).

Owns the clustering of the cells of a grid by the brokers interested in them. A group's members are all
brokers interested in any of its cells; every event of the group goes to all of them. The waste of a group
is the number of members not interested in an event, expected over its events. A cell's distance from a
group is what joining it would waste: its own events at members that do not want them, the group's events at
members that the cell brings.

Guarantee: every cell that somebody is interested in is in one group; the division returned wastes least of
those seen. No bound: k-means stops at a local optimum.
"""

import numpy as np
import numpy.typing as npt

from ramify.planning.schemes.shared.cell_loads import weighed

__all__ = ["expected_waste", "forgy"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

ROUNDS = 50


def forgy(interested: Bools, weight: Floats, groups: int) -> Ints:
    """int32[cells]: the group of every cell, -1 where nobody is interested. Groups are 0, 1, ...

    `interested` is bool[cells, n], `weight` how much is published in each cell. Begins with the `groups`
    cells that most is delivered of; each round puts every cell into the nearest group of the round before.
    O(rounds * cells * groups * n), as products of matrices.
    """
    labels = np.full(len(interested), -1, dtype=np.int32)
    wanted = np.flatnonzero(interested.any(axis=1))
    if not len(wanted):
        return labels
    # cells of the same brokers are never better apart
    members, kind = np.unique(interested[wanted], axis=0, return_inverse=True)
    published = weighed(kind.ravel(), weight[wanted], len(members))
    if not published.any():
        published[:] = 1.0
    found = _clustered(members, published, min(groups, len(members)))
    labels[wanted] = found[kind.ravel()]
    # numbered by their first cell
    _, first, place = np.unique(labels[wanted], return_index=True, return_inverse=True)
    labels[wanted] = np.argsort(np.argsort(first))[place.ravel()]
    return labels


def _clustered(members: Bools, published: Floats, groups: int) -> Ints:
    if groups >= len(members):  # nothing needs to be wasted, on cells that no event was seen in either
        return np.arange(len(members), dtype=np.int32)
    size = members.sum(axis=1)
    seeds = np.argsort(-(published * size), kind="stable")[:groups]
    whole = members.astype(np.float32)
    label = _nearest(whole, published, whole[seeds], published[seeds])
    best, least = label, expected_waste(members, published, label)
    for _ in range(ROUNDS):
        used = np.unique(label)
        union = np.array([whole[label == g].max(axis=0) for g in used.tolist()])
        each = np.array([published[label == g].sum() for g in used.tolist()])
        following = _nearest(whole, published, union, each)
        if np.array_equal(used[following], label):
            break
        label = following
        waste = expected_waste(members, published, label)
        if waste < least:
            best, least = label, waste
    return best


def _nearest(
    whole: npt.NDArray[np.float32], published: Floats, union: npt.NDArray[np.float32], each: Floats
) -> Ints:
    """The group that each cell would waste least in; ties to the first."""
    common = whole @ union.T
    needless = union.sum(axis=1)[None, :] - common
    brought = whole.sum(axis=1)[:, None] - common
    nearest: Ints = (
        (published[:, None] * needless + each[None, :] * brought).argmin(axis=1).astype(np.int32)
    )
    return nearest


def expected_waste(interested: Bools, weight: Floats, labels: Ints) -> float:
    """What is published, times the members of its group that are not interested, summed over cells."""
    total = 0.0
    for group in np.unique(labels[labels >= 0]).tolist():
        cells = labels == group
        union = int(interested[cells].any(axis=0).sum())
        total += float(weight[cells] @ (union - interested[cells].sum(axis=1)))
    return total
