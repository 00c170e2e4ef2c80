"""What a scheme is, and the few ways in which schemes put plans together.

A scheme is a function `plan(problem, params, rng, progress) -> Plan` with a validated dataclass of
parameters. It looks at the problem's demand only, is deterministic for a generator's seed (unless a
budget of seconds cuts it short), and calls `progress(share, what)` now and then, with a share between 0
and 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.network.trees.trees import Tree
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

__all__ = ["NoParams", "Progress", "Scheme", "channel", "put_together", "silent"]

Progress: TypeAlias = Callable[[float, str], None]


def silent(share: float, what: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class NoParams:
    """Nothing to choose."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to make plans.

    `params` is a frozen dataclass whose fields have defaults; `preset` are the values that this name of the
    scheme stands for. `slow` schemes are left out where a quick answer is wanted. Those with `cells` divide
    the content space: their demand is to be counted with a grid (`kyra.grids.grid_for`).
    """

    summary: str
    params: type[Any]
    plan: Callable[[Problem, Any, np.random.Generator, Progress], Plan]
    preset: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False
    cells: bool = False


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
