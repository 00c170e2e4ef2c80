"""The links between clients and their brokers: what they carry of a demand, and what that costs.

Owns the paper's C1 (Zhao and Wu, Equation 1): every client pays for what it publishes and for what it
receives from others, an event once however many of its subscriptions match. How events are routed between
brokers changes nothing of it; where clients attach does.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand

__all__ = ["access_cost", "expanded", "received", "senders", "sent"]

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


def access_cost(access: Mapping[str, float], classes: Classes, demand: Demand) -> float:
    """Bytes of a demand on each client's link times its price in `access`, by client; others cost nothing.

    Raises `InputError` for a demand that was counted without clients. O(demand and subscriptions).
    """
    if not access:
        return 0.0
    if (demand.client < 0).any():
        raise InputError(
            "the cost of access links needs the publishing clients: tally the events by client."
        )
    names = sorted({row.client for rows in classes.members for row in rows} | set(demand.clients))
    number = {name: u for u, name in enumerate(names)}
    price = np.array([access.get(name, 0.0) for name in names])
    sender = senders(demand, number)
    out = sent(demand, sender, len(names), demand.weight)
    return float(price @ (out + received(classes, demand, number, sender, demand.weight)))


def senders(demand: Demand, number: Mapping[str, int]) -> Longs:
    """int64[p]: the number of the client that published each pattern."""
    if not len(demand):
        return np.zeros(0, dtype=np.int64)
    return np.array([number[name] for name in demand.clients], dtype=np.int64)[demand.client]


def sent(demand: Demand, sender: Longs, clients: int, weight: Floats) -> Floats:
    """What each client publishes."""
    return np.bincount(sender, weights=weight, minlength=clients).astype(np.float64)


def received(
    classes: Classes, demand: Demand, number: Mapping[str, int], sender: Longs, weight: Floats
) -> Floats:
    """What each client receives from others: an event once, however many of its subscriptions match."""
    lists = [sorted({number[row.client] for row in members}) for members in classes.members]
    start = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    client = np.array([u for one in lists for u in one], dtype=np.int64)
    pattern, user = expanded(demand, start, client, len(number))
    others = sender[pattern] != user
    summed = np.bincount(user[others], weights=weight[pattern[others]], minlength=len(number))
    return np.asarray(summed, dtype=np.float64)


def expanded(demand: Demand, start: Longs, value: Sequence[int] | Longs, most: int) -> tuple[Longs, Longs]:
    """The distinct (pattern, value) pairs, sorted; class k stands for `value[start[k]:start[k + 1]]`."""
    given = np.asarray(value, dtype=np.int64)
    pattern = np.repeat(np.arange(len(demand), dtype=np.int64), np.diff(demand.start))
    length = np.diff(start)[demand.classes]
    ends = np.cumsum(length)
    at = np.arange(int(length.sum())) + np.repeat(start[demand.classes] - (ends - length), length)
    pairs = np.unique(np.repeat(pattern, length) * max(most, 1) + given[at])
    return pairs // max(most, 1), pairs % max(most, 1)
