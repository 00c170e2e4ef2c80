"""The tables that brokers route by: what each row says, and which rows change from one plan to the next.

Owns the rows. A broker's table follows from the plan: the routing state of `state.py`, row by row. The
router does not read them; they are what a revision changes at a broker, to be shown, counted and sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.errors import PlanError
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.layout import rooted_tree
from ramify.planning.plans.plan import Channel, Plan, Pruning
from ramify.planning.plans.state import admitting, asked_classes, between_entries, toward_entry

__all__ = ["BrokerChange", "Does", "Row", "broker_table", "require_same_classes", "table_changes"]

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


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """The rows that a broker adds and removes, in order."""

    add: tuple[Row, ...] = ()
    remove: tuple[Row, ...] = ()

    def apply(self, table: frozenset[Row]) -> frozenset[Row]:
        """The table afterwards."""
        return (table - frozenset(self.remove)) | frozenset(self.add)


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


def table_changes(old: Plan, new: Plan) -> dict[int, BrokerChange]:
    """What each broker adds and removes when one plan follows another that numbers classes alike.

    Brokers where nothing changes are left out. Channels go by their position, regions by their number.
    O(n) for each (channel, class) that is new, gone, or on a channel that has changed its way.
    """
    require_same_classes(old.classes, new.classes)
    gone: dict[int, set[Row]] = {}
    come: dict[int, set[Row]] = {}
    for c in range(max(len(old.channels), len(new.channels))):
        before, after = _listed(old, c), _listed(new, c)
        if _routes_alike(old, new, c):
            if np.array_equal(before, after):
                continue
            before, after = _without(before, after), _without(after, before)
        for plan, listed, into in ((old, before, gone), (new, after, come)):
            if len(listed):
                for broker, row in _Slice(plan, c).spread(listed.tolist()):
                    into.setdefault(broker, set()).add(row)
    changes = {}
    for broker in sorted(gone.keys() | come.keys()):
        were, are = gone.get(broker, set()), come.get(broker, set())
        if were != are:
            changes[broker] = BrokerChange(tuple(sorted(are - were)), tuple(sorted(were - are)))
    return changes


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

    def spread(self, entries: Iterable[Sequence[int]]) -> Iterator[tuple[int, Row]]:
        """The rows of entries (class, at, region) at every broker that stores them."""
        ways: dict[tuple[int, int], list[tuple[int, Does, int]]] = {}
        for k, at, region in entries:
            if at < 0:
                for broker in np.flatnonzero(self.asks).tolist():
                    yield broker, self.admits(k, broker)
                continue
            key = at, int(self._plan.classes.broker[k])
            if key not in ways:
                ways[key] = self._way(*key)
            for broker, does, target in ways[key]:
                yield broker, Row(self._c, k, does, target, region)

    def _way(self, at: int, host: int) -> list[tuple[int, Does, int]]:
        """The brokers that store what is served at one, and what each does."""
        stored = self.everywhere.copy()
        v = at
        while v >= 0 and not self._between[v]:
            stored[v] = True
            v = int(self._up[v])
        steps = np.full(len(stored), -1, dtype=np.int32)
        if self._filtered is not None:
            steps = self._filtered.rerooted(at).parent
        brokers = np.flatnonzero(stored)
        pairs = zip(brokers.tolist(), steps[brokers].tolist(), strict=True)
        return [(broker, *self._action(at, host, broker, step)) for broker, step in pairs]

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


def _listed(plan: Plan, c: int) -> npt.NDArray[np.int32]:
    """The entries of a channel, and with `at` -1 what it only asks about; none where there is no such."""
    if c >= len(plan.channels):
        return np.zeros((0, 3), dtype=np.int32)
    channel = plan.channels[c]
    asked = np.setdiff1d(asked_classes(channel), channel.serves.classes).astype(np.int32)
    asked = asked[~plan.classes.vacant[asked]]
    none = np.full(len(asked), -1, dtype=np.int32)
    return np.concatenate((_entries(plan, channel), np.column_stack((asked, none, none))))


def _without(mine: npt.NDArray[np.int32], others: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The rows that the others do not have."""
    both = np.concatenate((others, mine)).astype(np.int64) + 1
    high = both.max(axis=0, initial=0) + 1
    keys = (both[:, 0] * high[1] + both[:, 1]) * high[2] + both[:, 2]
    return mine[~np.isin(keys[len(others) :], keys[: len(others)])]


def _routes_alike(old: Plan, new: Plan, c: int) -> bool:
    """Whether the rows of an entry are the same on both plans' channels."""
    if c >= min(len(old.channels), len(new.channels)):
        return False
    a, b = old.channels[c], new.channels[c]
    return len(old.overlay) == len(new.overlay) and (a.admits, a.pruning, a.tree, a.entry) == (
        b.admits,
        b.pruning,
        b.tree,
        b.entry,
    )


def require_same_classes(old: Classes, new: Classes) -> None:
    """`PlanError` unless both number the classes that they share alike."""
    common = min(len(old), len(new))
    same = np.array_equal(old.broker[:common], new.broker[:common])
    theirs = new.class_of
    if not same or any(theirs.get(id_, k) != k for id_, k in old.class_of.items()):
        raise PlanError(
            "the two plans cannot be compared class by class:",
            ["they number classes differently. Plan both with the same classes"],
        )
