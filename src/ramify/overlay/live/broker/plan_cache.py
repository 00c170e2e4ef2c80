"""Plans as brokers route by them, read from the control store once for all brokers of a process.

Owns the reading: an epoch's plan as it was with some revision, then its changes in order, many of them in
one go. What takes long (decoding, compiling filters) is done beside the loop, so that leases are renewed
meanwhile. An epoch with a revision is one plan, however it came about: from a base and many changes, or
from a later base and few.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ramify.errors import InputError, LiveError, RamifyError
from ramify.overlay.control.records import ROUTING, LiveEpoch, decode
from ramify.overlay.control.revisions import PlanChange, PlanChanges, recorded_subscription
from ramify.overlay.live.wire.store import Store
from ramify.overlay.routing.plan import AddedSubscription, RemovedSubscription, Revision
from ramify.overlay.routing.router import RoutingPlan
from ramify.planning.plans.files import decode_plan

__all__ = ["ROUTING", "PlanCache", "revision_of"]


_KEPT = 2

_T = TypeVar("_T")


def revision_of(live: LiveEpoch) -> int:
    """The last revision that an epoch's plan has."""
    return live.changes[-1][0] if live.changes else live.base


class PlanCache:
    """See the module. For the brokers of one overlay; of each epoch the last two revisions are kept."""

    def __init__(self) -> None:
        self._made: dict[int, dict[int, RoutingPlan]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        # how often a base was read, and changes were applied: what sharing saves
        self.read = 0
        self.revised = 0

    async def routing(self, store: Store, live: LiveEpoch) -> RoutingPlan:
        """The plan of an epoch with all its changes.

        Raises `LiveError` when the store does not give it, `InputError` when it is not a plan.
        """
        wanted = revision_of(live)
        async with self._locks.setdefault(live.epoch, asyncio.Lock()):
            made = self._made.setdefault(live.epoch, {})
            if wanted not in made:
                made[wanted] = await self._make(store, live, wanted)
                for old in sorted(made)[:-_KEPT]:
                    del made[old]
            return made[wanted]

    def keep(self, epochs: tuple[int, ...]) -> None:
        """Forget all other epochs."""
        for epoch in self._made.keys() - set(epochs):
            del self._made[epoch]

    def clear(self) -> None:
        """Forget everything: the store is another one."""
        self._made.clear()

    async def _make(self, store: Store, live: LiveEpoch, wanted: int) -> RoutingPlan:
        made = self._made.get(live.epoch, {})
        at = max((revision for revision in made if live.base <= revision <= wanted), default=None)
        if at is None:
            routing, at = await self._base(store, live.plan_key), live.base
        else:
            routing = made[at]
        keys = [key for revision, key in live.changes if revision > at]
        if not keys:
            return routing
        records = await asyncio.gather(*(_changes(store, key, live.epoch) for key in keys))
        revisions = [_revision(change) for record in records for change in record.changes]
        self.revised += 1
        return await _beside(lambda: routing.revised(revisions))

    async def _base(self, store: Store, key: str) -> RoutingPlan:
        self.read += 1
        form = await store.get_large(f"{key}.{ROUTING}")
        if form is not None:
            return await _beside(lambda: RoutingPlan.read(form[0]))
        plan = await store.get_large(key)
        if plan is None:
            raise LiveError(f"the control store has no {key}: its epoch may be retired already")
        return await _beside(lambda: _ready(plan[0]))


async def _beside(what: Callable[[], _T]) -> _T:
    """Run it in a thread; only our own errors come out."""
    try:
        return await asyncio.to_thread(what)
    except RamifyError:
        raise
    except Exception as error:
        raise InputError(f"a plan of the control store cannot be used: {error!r}") from error


def _ready(content: bytes) -> RoutingPlan:
    routing = RoutingPlan(decode_plan(content))
    # made on first use otherwise, in the middle of a step
    _ = routing.matcher, routing.members
    return routing


async def _changes(store: Store, key: str, epoch: int) -> PlanChanges:
    found = await store.get(key)
    if found is None:
        raise LiveError(f"the control store has no {key}: it may have been put into a later plan")
    record = decode(found[0], PlanChanges)
    if record.epoch != epoch:
        raise InputError(f"{key} is a change of epoch {record.epoch}, not of {epoch}")
    return record


def _revision(change: PlanChange) -> Revision:
    if change.subscription is None:
        return RemovedSubscription(change.removed, change.growth)
    row = recorded_subscription(change.subscription)
    return AddedSubscription(row, change.class_id, tuple(change.channels), change.growth)
