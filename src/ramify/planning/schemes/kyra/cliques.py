"""Server cliques: brokers that are near one another, by complete-linkage clustering (Kyra, Figure 5).

Owns the merge rule. The distance of two cliques is the largest between a broker of one and a broker of the
other. Again and again the nearest two that may form one clique do: no further apart than `max_distance`,
together no more than `max_servers`.

Departure: as printed, the loop never ends when all cliques are near but too large together; here it ends
when no pair may merge.
"""

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError

__all__ = ["cliques_of", "default_distance", "medoid"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

NEAR = 0.05
"""The share of all pairs of brokers that count as near, where no distance is given."""


def cliques_of(distance: Floats, max_distance: float, max_servers: int) -> tuple[Ints, ...]:
    """The cliques by their first broker, the brokers of each ascending.

    `distance` is symmetric, [n, n]. Ties go to the clique with the lowest broker, then to the lowest
    partner. O(n^2) when few cliques have the same nearest one, as is usual; O(n^3) at worst; 8 n^2 bytes.
    """
    if not max_distance >= 0 or max_servers < 1:
        raise InputError(
            f"cliques of {max_servers} brokers within {max_distance}. Allowed: 1 or more, within 0 or more."
        )
    count = len(distance)
    if not count:
        return ()
    apart = np.where(distance <= max_distance, distance, np.inf)
    np.fill_diagonal(apart, np.inf)
    size = np.ones(count, dtype=np.int64)
    if max_servers < 2:
        apart[:] = np.inf
    part = np.arange(count)
    nearest = apart.argmin(axis=1)
    least = apart[part, nearest]
    while np.isfinite(least[i := int(least.argmin())]):
        j = int(nearest[i])  # above i: a lower one would have been found first
        _merge(apart, size, i, j, max_servers)
        part[part == j] = i
        least[j] = np.inf
        # distances only grow, so other rows keep their nearest unless it was one of the two
        stale = np.flatnonzero(np.isfinite(least) & ((nearest == i) | (nearest == j)))
        stale = np.union1d(stale, [i])
        nearest[stale] = apart[stale].argmin(axis=1)
        least[stale] = apart[stale, nearest[stale]]
    return tuple(np.flatnonzero(part == first).astype(np.int32) for first in np.unique(part))


def _merge(apart: Floats, size: npt.NDArray[np.int64], i: int, j: int, max_servers: int) -> None:
    """Put clique j into i. A pair that is too large together stays so: sizes only grow."""
    row = np.maximum(apart[i], apart[j])
    size[i] += size[j]
    row[size + size[i] > max_servers] = np.inf
    row[i] = np.inf
    apart[i], apart[:, i] = row, row
    apart[j], apart[:, j] = np.inf, np.inf


def default_distance(distance: Floats) -> float:
    """The distance within which `NEAR` of all pairs lie; 0 without a pair."""
    upper = distance[np.triu_indices(len(distance), k=1)]
    return float(np.quantile(upper, NEAR)) if len(upper) else 0.0


def medoid(distance: Floats, members: Ints) -> int:
    """The member with the least sum of distances to the others; ties to the lowest."""
    inside = distance[np.ix_(members, members)]
    return int(members[int(inside.sum(axis=1).argmin())])
