"""The tables that brokers route by, row by row: an oracle for what `state.py` and `covering.py` count."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.planning.plans.layout import rooted_tree
from ramify.planning.plans.plan import Channel, Plan, Pruning
from ramify.planning.plans.state import admitting, asked_classes, between_entries, toward_entry

__all__ = ["Does", "Row", "broker_table"]

Does = Literal["send", "here", "notify", "admit"]
"""What a broker does with an event that matches a row's class.

send      to the next broker on the channel's tree
here      hand it to the class's subscribers
notify    send the final notification to the class's host, as its proxy
admit     put it on the channel: a leg to the row's broker where there is a tree (none where that is the
          broker itself), else the row's broker is a destination
"""


class Row(NamedTuple):
    """One row of a broker's table; brokers are indices. `region` is as in `Serves`: -1 always holds."""

    channel: int
    class_id: int
    does: Does
    broker: int
    region: int = -1


def broker_table(plan: Plan, broker: int) -> frozenset[Row]:
    """What a broker must know of classes: rows for exactly the (channel, class) pairs that it stores.

    What it stores is as in `state.py`; vacant classes are stored nowhere. O(channels * n + rows).
    """
    rows: set[Row] = set()
    for c, channel in enumerate(plan.channels):
        slice_ = _Slice(plan, c)
        if slice_.asks[broker]:
            rows.update(slice_.admits(k, broker) for k in slice_.asked())
        toward = slice_.first_steps(broker)
        for k, at, region in _entries(plan, channel).tolist():
            if slice_.everywhere[broker] or at == broker or slice_.sends(broker, int(toward[at])):
                rows.add(slice_.row(k, at, region, broker, int(toward[at])))
    return frozenset(rows)


class _Slice:
    """Who stores what of one channel, and which way it sends."""

    def __init__(self, plan: Plan, c: int) -> None:
        self._plan = plan
        self._c = c
        self._channel = plan.channels[c]
        n = len(plan.overlay)
        self._tree = rooted_tree(self._channel, n)
        self._filtered = self._tree if self._channel.pruning is Pruning.FILTER else None
        self._between = between_entries(self._channel, self._tree, n)
        self.asks = admitting(self._channel, n)
        self.everywhere = self._between | self.asks
        self._up = toward_entry(self._filtered if self._between.any() else None, self._between, n)

    def asked(self) -> list[int]:
        """The classes that it asks about and does not serve."""
        only = set(asked_classes(self._channel)) - set(self._channel.serves.classes.tolist())
        return sorted(k for k in only if not self._plan.classes.vacant[k])

    def first_steps(self, broker: int) -> npt.NDArray[np.int32]:
        """int32[n]: the next broker from here on the filtered tree on the way to each; -1 off it."""
        steps = np.full(len(self._up), -1, dtype=np.int32)
        if self._filtered is None or self._filtered.parent[broker] == -2:
            return steps
        hung = self._filtered.rerooted(broker)
        below = hung.order[1:]  # in preorder: the sub-trees of the neighbours, one after another
        near = np.flatnonzero(hung.parent[below] == broker)
        steps[below] = np.repeat(below[near], np.diff(np.append(near, len(below))))
        return steps

    def sends(self, broker: int, step: int) -> bool:
        """Whether events on the tree may have to take a step: between entries any, else away from them."""
        away = self._up[broker] != -2 and step != self._up[broker]
        return step >= 0 and bool(self._between[broker] or away)

    def row(self, k: int, at: int, region: int, broker: int, step: int) -> Row:
        """What a broker does for a class that is served at `at`, the next step on the way being `step`."""
        host = int(self._plan.classes.broker[k])
        return Row(self._c, k, *self._action(at, host, broker, step), region)

    def _action(self, at: int, host: int, broker: int, step: int) -> tuple[Does, int]:
        if broker == at:
            return ("here" if host == at else "notify"), host
        if self.sends(broker, step):
            return "send", step
        if self._tree is None or self._channel.pruning not in (Pruning.FILTER, Pruning.NONE):
            return "admit", host
        return "admit", self._channel.entry.target(broker)

    def admits(self, k: int, broker: int) -> Row:
        """For a class that is only asked about."""
        return Row(self._c, k, "admit", self._channel.entry.target(broker))


def _entries(plan: Plan, channel: Channel) -> npt.NDArray[np.int32]:
    """int32[e, 3]: (class, at, region) of the classes that have a member."""
    serves = channel.serves
    alive = ~plan.classes.vacant[serves.classes]
    return np.column_stack((serves.classes, serves.at, serves.region))[alive]
