"""What a scheme is, and the few ways in which schemes put plans together.

A scheme is a function `plan(problem, params, rng, progress) -> Plan` with a validated dataclass of
parameters. It looks at the problem's demand only, is deterministic for a generator's seed (unless a
budget of seconds cuts it short), and calls `progress(share, what)` now and then, with a share between 0
and 1.

A scheme may offer hooks (`Hooks`): what only it knows of a running plan that it made. A plan names its
scheme; the catalog finds the hooks of a plan. Nobody else asks which scheme made it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.content.filters.subscriptions import Subscription
from ramify.network.trees.trees import Tree
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.growth import NO_GROWTH, Growth
from ramify.planning.plans.lateness import LateSubscription
from ramify.planning.plans.plan import (
    Admission,
    AnyOf,
    Channel,
    ChannelTree,
    Content,
    Entry,
    Plan,
    Pruning,
    Serves,
)
from ramify.planning.plans.problem import Problem

__all__ = [
    "NO_HOOKS",
    "SOURCES_AT_ONCE",
    "Hooks",
    "NoParams",
    "PlanEntry",
    "Progress",
    "Scheme",
    "channel",
    "put_together",
    "silent",
]

SOURCES_AT_ONCE = 128
"""Brokers that are searched from at a time: bounds the memory, not the work."""

Progress: TypeAlias = Callable[[float, str], None]


def silent(share: float, what: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """How a subscription enters a running plan: the class that it becomes a member of, the channels that
    carry the class from now on, how channels grow for it, and whether it is late there."""

    class_id: int
    channels: tuple[int, ...] = ()
    growth: Growth = NO_GROWTH
    late: LateSubscription | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a scheme knows of its running plans; each is optional.

    Attributes
    ----------
    join        (plan, subscription): how a subscription of a class that no channel carries enters.
                `PlanError` where the plan must be made anew, `TooLateError` where it refuses the bound
    leave       (plan, id): how channels change when the last member of a class goes
    late        (plan, class, subscription): whether one that becomes a member of a class that is carried
                already is late there; None: it is not. Errors as for `join`
    measures    (before, after): kind -> messages that brokers send each other for a revision of channels
    drift       (old, new, demand): what moves from one plan to the next by the statistics of a demand, as
                a dataclass whose text is one line for people. None: nothing is known
    """

    join: Callable[[Plan, Subscription], PlanEntry] | None = None
    leave: Callable[[Plan, str], Growth] | None = None
    late: Callable[[Plan, int, Subscription], LateSubscription | None] | None = None
    measures: Callable[[Plan, Plan], Mapping[str, int]] | None = None
    drift: Callable[[Plan, Plan, Demand | None], object | None] | None = None


NO_HOOKS = Hooks()


@dataclass(frozen=True, slots=True)
class NoParams:
    """Nothing to choose."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to make plans.

    `params` is a frozen dataclass whose fields have defaults; `preset` are the values that this name of the
    scheme stands for. `slow` schemes are left out where a quick answer is wanted. Those with `cells` divide
    the content space: their demand is to be counted with a grid (`shared.grids.grid_for`). Those with
    `overlap` go by the overlap of stored tables where a problem has one.
    """

    summary: str
    params: type[Any]
    plan: Callable[[Problem, Any, np.random.Generator, Progress], Plan]
    preset: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False
    cells: bool = False
    overlap: bool = False
    hooks: Hooks = NO_HOOKS


def channel(
    name: str,
    problem: Problem,
    tree: Tree | None,
    classes: npt.ArrayLike,
    *,
    pruning: Pruning = Pruning.FILTER,
    content: Content | None = None,
    publishers: frozenset[int] | None = None,
    entry: Entry | None = None,
    rooted: bool = False,
) -> Channel:
    """A channel on a tree of overlay links that serves classes at their hosts; any-of them unless said."""
    made = None
    if tree is not None:
        links = tree.links().astype(np.int32)
        made = ChannelTree(links, tree.root if rooted or not len(links) else None)
    return Channel(
        name,
        Admission(AnyOf() if content is None else content, publishers),
        Serves.at_hosts(classes, problem.classes),
        pruning,
        made,
        Entry() if entry is None else entry,
    )


def put_together(
    scheme: str,
    problem: Problem,
    channels: list[Channel],
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Plan:
    """A plan for a problem."""
    return Plan(
        scheme,
        problem.overlay,
        problem.classes,
        tuple(channels),
        problem.attachments,
        settings=dict(settings or {}),
        **more,
    )
