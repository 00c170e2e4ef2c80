"""Which rules a plan breaks, on the events that were seen and on those that may come.

Owns the judgement of one plan by itself: a plan that someone gives, a plan after a client moved or a
subscription joined, the plan that a rollback would bring back. Plans that are weighed against each other
are judged by `weigh`, on the same events by the same rules.

A residency rule is also judged on one small event of each kind that may come: at each broker where clients
are attached (everywhere, where none is), for each class that asks for events of the rule, and for all of
them at once. Kinds that no plan can keep out of the forbidden places are left out.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ramify.content.filters.filters import Filter
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.demand import NO_CELL, Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.price import price
from ramify.planning.pricing.rules import BrokenRule, Residency, Rules, broken

__all__ = ["faults", "likely_events"]

JUDGED_CLASSES = 2_000
"""Classes that are looked at one by one where no events are known; of more, every n-th."""

_Kind = tuple[int, int, int, tuple[int, ...]]
"""Tag, publishing broker, cell, matched classes."""


def faults(plan: Plan, demand: Demand | None, rules: Rules) -> list[BrokenRule]:
    """The rules that a plan breaks on a demand of its classes; see the module for what was not seen.

    The demand must have been tallied with the tags of the rules. Latency bounds of subscriptions are not
    among the rules here. O(hops walked) for the demand.
    """
    if not rules:
        return []
    found: list[BrokenRule] = []
    if demand is not None and demand.events:
        found = _asked(broken(price(plan, demand), rules))
    # also where events of a rule were seen: none of them may have matched a class that has just joined
    likely = likely_events(plan, rules.residency)
    if len(likely):
        named = {fault.rule for fault in found}
        more = _asked(broken(price(plan, likely), Rules(residency=rules.residency)))
        found += [fault for fault in more if fault.rule not in named]
    return found


def _asked(found: Sequence[BrokenRule]) -> list[BrokenRule]:
    """Those that another plan could keep."""
    return [fault for fault in found if not fault.rule.startswith("latency: ") and not fault.unavoidable]


def likely_events(plan: Plan, rules: Sequence[Residency]) -> Demand:
    """One small event of each kind under these rules that may be published; see the module."""
    tags = Rules(residency=tuple(rules)).tags(plan.classes.schema)
    pairs = zip(rules, tags, strict=True)
    kinds = [kind for tag, (rule, wanted) in enumerate(pairs) for kind in _kinds(plan, rule, wanted, tag)]
    return _demand(sorted(set(kinds)), len(rules))


def _kinds(plan: Plan, rule: Residency, wanted: Filter, tag: int) -> Iterator[_Kind]:
    classes, forbidden = plan.classes, rule.forbids(plan.overlay)
    part = _parts(plan.overlay, forbidden)
    asking = [
        k
        for k in range(len(classes))
        if not classes.vacant[k]
        and not forbidden[classes.broker[k]]
        and classes.filter_of(k).overlaps(wanted)
    ]
    # the last is the class that has just joined, where one has
    asking = sorted({*asking[:: max(1, -(-len(asking) // JUDGED_CLASSES))], *asking[-1:]})
    attached = sorted({plan.overlay.index[at] for at in plan.attachments.values()})
    origins = attached or range(len(plan.overlay))
    for cell, near in _by_cell(plan, wanted, asking):
        for origin in (int(o) for o in origins if not forbidden[o]):
            reached = tuple(k for k in near if part[classes.broker[k]] == part[origin])
            yield from ((tag, origin, cell, (k,)) for k in reached)
            if len(reached) > 1:
                yield tag, origin, cell, reached


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
