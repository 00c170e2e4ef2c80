"""Which rules a plan breaks, on the events that were seen and on those that may come.

Owns the judgement of a plan: of every plan that `weigh` tries, of a plan that is priced on a log, and of
one that runs (a plan that someone gives, a plan after a client moved or a subscription joined, the plan
that a rollback would bring back).

A residency rule is also judged on one small event of each kind that may come: at each broker where clients
are attached (everywhere, where none is), for each class that asks for events of the rule, and for all of
them at once. So a rule holds whatever a log or a sample happens to contain. Events that are published at a
forbidden broker are left out, since no plan can keep them out.

`Bars` says which subscriptions no plan can serve within the residency rules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.demand import NO_CELL, Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.price import Price, price
from ramify.planning.pricing.rules import LATENCY, BrokenRule, Residency, Rules, broken

__all__ = ["Bars", "faults", "judged", "likely_events"]

JUDGED_CLASSES = 2_000
"""Classes that are looked at one by one where no events are known; of more, every n-th."""

_Kind = tuple[int, int, int, tuple[int, ...]]
"""Tag, publishing broker, cell, matched classes."""


def judged(plan: Plan, seen: Price | None, rules: Rules) -> list[BrokenRule]:
    """The rules that a plan breaks: on events that were seen, and on events that may come (see the module).

    `seen` is the plan's price on events that were held against the tags of the rules; None where none were
    seen. Latency bounds of subscriptions are among the rules. Costs the pricing of what may come where
    there are residency rules.
    """
    found = [] if seen is None else broken(seen, rules)
    # also where events of a rule were seen: none of them may have matched a class that has just joined
    likely = likely_events(plan, rules.residency)
    if not len(likely):
        return found
    more = broken(price(plan, likely), Rules(residency=rules.residency))
    known = {fault.rule for fault in found if not fault.unavoidable}
    more = [fault for fault in more if not fault.rule.startswith(LATENCY) and fault.rule not in known]
    worse = {fault.rule for fault in more}
    return [*(fault for fault in found if fault.rule not in worse), *more]


def faults(plan: Plan, demand: Demand | None, rules: Rules) -> list[BrokenRule]:
    """The rules for which a plan may not run: those of `judged` on a demand that another plan could keep.

    The demand must have been tallied with the tags of the rules. Latency bounds are not among them: a
    subscription with one is served, late if need be. O(hops walked) for the demand.
    """
    if not rules:
        return []
    seen = None if demand is None or not demand.events else price(plan, demand)
    found = judged(plan, seen, rules)
    return [fault for fault in found if not fault.rule.startswith(LATENCY) and not fault.unavoidable]


@dataclass(frozen=True, slots=True)
class Bars:
    """The residency rules as they bar subscriptions: no plan can serve them and keep the rules.

    A rule bars a subscription that asks for its events at a forbidden broker, or at a broker that events
    from a broker with clients cannot reach without crossing a forbidden one.
    """

    rules: tuple[Residency, ...]
    tags: tuple[Filter, ...]
    hosts: tuple[frozenset[str], ...]
    """Per rule, the brokers whose subscriptions may not ask for its events."""

    @classmethod
    def of(cls, plan: Plan, rules: Rules) -> "Bars":
        """Those of a plan's overlay, attachments and schema. O(rules * links)."""
        hosts = (frozenset(_barred_hosts(plan, rule)) for rule in rules.residency)
        return cls(rules.residency, tuple(rules.tags(plan.classes.schema)), tuple(hosts))

    def against(self, row: Subscription, plan: Plan) -> tuple[BrokenRule, ...]:
        """The rules that bar a subscription. Its filter is parsed only where one may.

        None bars a subscription whose filter cannot be read: no plan takes that one anyway.
        """
        near = [at for at, hosts in enumerate(self.hosts) if row.broker in hosts]
        try:
            asked = row.parse(plan.classes.schema) if near else None
        except InputError:
            return ()
        return tuple(
            BrokenRule(
                f"residency: {self.rules[at].name}",
                f"subscription {row.id} at {row.broker} asks for events where {self.rules[at].events}, "
                "which no plan can bring there without breaking the rule",
            )
            for at in near
            if asked is not None and asked.overlaps(self.tags[at])
        )


def _barred_hosts(plan: Plan, rule: Residency) -> Iterator[str]:
    overlay, forbidden = plan.overlay, rule.forbids(plan.overlay)
    part = _parts(overlay, forbidden)
    origins = {int(part[o]) for o in _origins(plan) if not forbidden[o]}
    for name, own, at in zip(overlay.brokers, part.tolist(), forbidden.tolist(), strict=True):
        if at or origins - {own}:
            yield name


def _origins(plan: Plan) -> Sequence[int]:
    """The brokers where clients are attached; all of them where none is."""
    return sorted({plan.overlay.index[at] for at in plan.attachments.values()}) or range(len(plan.overlay))


def likely_events(plan: Plan, rules: Sequence[Residency]) -> Demand:
    """One small event of each kind under these rules that may be published; see the module."""
    tags = Rules(residency=tuple(rules)).tags(plan.classes.schema)
    pairs = zip(rules, tags, strict=True)
    kinds = [kind for tag, (rule, wanted) in enumerate(pairs) for kind in _kinds(plan, rule, wanted, tag)]
    return _demand(sorted(set(kinds)), len(rules))


def _kinds(plan: Plan, rule: Residency, wanted: Filter, tag: int) -> Iterator[_Kind]:
    classes, forbidden = plan.classes, rule.forbids(plan.overlay)
    asking = [
        k for k in range(len(classes)) if not classes.vacant[k] and classes.filter_of(k).overlaps(wanted)
    ]
    # the last is the class that has just joined, where one has
    asking = sorted({*asking[:: max(1, -(-len(asking) // JUDGED_CLASSES))], *asking[-1:]})
    for cell, near in _by_cell(plan, wanted, asking):
        for origin in (int(o) for o in _origins(plan) if not forbidden[o]):
            yield from ((tag, origin, cell, (k,)) for k in near)
            if len(near) > 1:
                yield tag, origin, cell, tuple(near)


def _by_cell(plan: Plan, wanted: Filter, asking: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The cells that events may be in, with the classes that ask for some there."""
    if plan.grid is None:
        yield NO_CELL, list(asking)
        return
    touched = {k: set(plan.grid.cells_touched(plan.classes.filter_of(k)).tolist()) for k in asking}
    for cell in plan.grid.cells_touched(wanted).tolist():
        yield cell, [k for k in asking if cell in touched[k]]


def _parts(overlay: Overlay, forbidden: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """int64[n]: brokers with one number reach each other without a forbidden one; those have -1."""
    part = np.full(len(overlay), -1, dtype=np.int64)
    start, neighbor, _, _ = overlay.adjacency
    for first in np.flatnonzero(~forbidden).tolist():
        waiting = [first] if part[first] < 0 else []
        while waiting:
            here = waiting.pop()
            if part[here] >= 0:
                continue
            part[here] = first
            waiting += [
                there
                for there in neighbor[start[here] : start[here + 1]].tolist()
                if not forbidden[there] and part[there] < 0
            ]
    return part


def _demand(kinds: Sequence[_Kind], tag_filters: int) -> Demand:
    count = len(kinds)
    ones = np.ones(count, dtype=np.int64)
    tags, publisher, cell, classes = (
        ([], [], [], []) if not kinds else tuple(map(list, zip(*kinds, strict=True)))
    )
    return Demand(
        np.array(publisher, dtype=np.int32),
        np.full(count, -1, dtype=np.int32),
        np.array(cell, dtype=np.int32),
        np.cumsum([0, *map(len, classes)]).astype(np.int64),
        np.array([k for row in classes for k in row], dtype=np.int32),
        ones,
        ones.copy(),
        np.array([1 << tag for tag in tags], dtype=np.uint64),
        tag_filters=tag_filters,
    )
