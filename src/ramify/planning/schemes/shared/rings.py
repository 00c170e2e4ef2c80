"""Rings: how brokers of a large clique reach one another when each knows only a few (Kyra, section III-A).

Owns the ways round a ring. The brokers of a clique stand in a ring in the order of their zones, which
divide the index space as the nodes of a distributed hash table do. A broker knows the ones 1, 2, 4, ...
places on, its fingers, and sends through the one that leads furthest without passing the target.

Guarantee: of k brokers any reaches any other in at most ceil(log2 k) steps; each knows ceil(log2 k).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ramify.planning.plans.plan import Path

__all__ = ["ring_steps", "without_loops"]


def ring_steps(u: int, v: int, members: Sequence[int]) -> list[int]:
    """The brokers from u to v by fingers, both included, u first. Members are in ring order."""
    places = {broker: place for place, broker in enumerate(members)}
    at, to, count = places[u], places[v], len(members)
    steps = [u]
    while at != to:
        left = (to - at) % count
        at = (at + (1 << (left.bit_length() - 1))) % count
        steps.append(members[at])
    return steps


def without_loops(brokers: Iterable[int]) -> Path:
    """A walk with every loop cut out: it visits no broker twice and has the same ends."""
    path: list[int] = []
    where: dict[int, int] = {}
    for broker in brokers:
        if broker in where:
            for left in path[where[broker] + 1 :]:
                del where[left]
            del path[where[broker] + 1 :]
        else:
            where[broker] = len(path)
            path.append(broker)
    assert all(a != b for a, b in pairwise(path))
    return tuple(path)
