"""The plan: one form for what every scheme decides. Price it, check it, route by it, store it, compare it.

A plan is a set of channels over one overlay and one table of classes. A channel says which events it
admits, the tree they travel, which classes it serves where, how they get onto the tree, and how a broker
decides where to send them next. A plan is immutable and complete: a broker that holds it needs nothing else
to route.

What happens to an event that enters at broker `o` (the publisher's broker):

1. `o` hands it to its own matching classes at once; no channel ever brings it back to them.
2. Every channel that admits it carries it, and of the channels with `Stamped` content exactly one: the
   cheapest for this event from `o`, ties to the lowest channel.
3. It enters a channel at `o` itself, or after a leg at the channel's target for `o`. One copy goes to each
   target and carries the list of channels that it enters there.
4. On the tree it goes where the channel's pruning says. A served class is handed over at its host; where it
   is served by a proxy, the proxy sends one final notification to the host, however many classes match
   there.
5. A broker hands an event to a subscription once, whichever channels bring it.

A logical link (a tree's link, a leg, a final notification) from `u` to `v` is an overlay link, or the
path that `Plan.paths` holds for (u, v), or the reverse of the one for (v, u). A leg goes the way that
`Plan.legs` holds for it, if any: brokers that a link joins may need a faster way than that link, while
trees still use it. Brokers inside a path pass the event on by its label without matching; every crossing
is charged.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.content.filters.space import Grid
from ramify.errors import OverlayError
from ramify.network.graphs.distances import Weight
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes

__all__ = [
    "Admission",
    "All",
    "AnyOf",
    "Cells",
    "Channel",
    "ChannelTree",
    "Content",
    "Entry",
    "Everything",
    "Expression",
    "Holds",
    "Match",
    "Negation",
    "Path",
    "Plan",
    "Pruning",
    "Serves",
    "Some",
    "Stamped",
    "evaluate",
]

Path: TypeAlias = tuple[int, ...]
"""Broker indices from one end of a logical link to the other, both included."""

Ints = npt.NDArray[np.int32]


class Pruning(StrEnum):
    """How a broker decides where an event on a channel goes next."""

    FILTER = "filter"
    """Over a tree link when a matching class is served behind it."""
    NONE = "none"
    """Over every tree link: flood the tree."""
    TREE = "header-tree"
    """Along the tree in its header, built by the publisher's broker by the plan's rule."""
    DESTINATIONS = "header-destinations"
    """Toward the destinations in its header, split by next hop at each broker by the plan's rule."""
    COPIES = "copies"
    """One copy per destination broker, never merged: true unicast."""


# ------------------------------------------------------------------------------------------- admission


@dataclass(frozen=True, slots=True)
class Match:
    """True when the event matches any of these classes."""

    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class All:
    """True when every part is; true without parts."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """True when some part is; false without parts."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """True when the part is not."""

    part: "Expression"


Expression: TypeAlias = Match | All | Some | Negation


@dataclass(frozen=True, slots=True)
class Everything:
    """Every event, whether anyone wants it or not."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Events that match any class which the channel serves (in the region it serves it for)."""


@dataclass(frozen=True)
class Cells:
    """Events that lie in these cells of the plan's grid (ascending)."""

    cells: Ints

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cells) and np.array_equal(self.cells, other.cells)

    def __hash__(self) -> int:
        return hash(self.cells.tobytes())


@dataclass(frozen=True, slots=True)
class Holds:
    """Events for which a boolean expression over classes is true."""

    expression: Expression


@dataclass(frozen=True, slots=True)
class Stamped:
    """Events that the publisher's broker puts on this channel: see the module, step 2.

    All stamped channels of a publisher serve the same classes.
    """


Content: TypeAlias = Everything | AnyOf | Cells | Holds | Stamped


@dataclass(frozen=True, slots=True)
class Admission:
    """Which publishers AND which content. `publishers` are broker indices; None is any."""

    content: Content
    publishers: frozenset[int] | None = None


# --------------------------------------------------------------------------------------------- channel


@dataclass(frozen=True)
class ChannelTree:
    """Logical links between brokers that form a tree, and its root where the scheme has one.

    `links` is int32[k, 2]. A tree of a single broker has no links and needs a root.
    """

    links: Ints
    root: int | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ChannelTree)
            and self.root == other.root
            and np.array_equal(self.links, other.links)
        )

    def __hash__(self) -> int:
        return hash((self.root, self.links.tobytes()))

    @cached_property
    def brokers(self) -> Ints:
        """The brokers on the tree, ascending."""
        alone = [] if self.root is None else [self.root]
        return np.unique(np.append(self.links.ravel(), alone)).astype(np.int32)


@dataclass(frozen=True)
class Serves:
    """The receivers of a channel's events: entries of a class, the broker that serves it, and a region.

    `at` is the class's host, or a proxy that notifies the host. `region` is an index of `Plan.regions`; the
    entry holds only for events whose cell is in it; -1 always holds. A class may have several entries, of
    which one holds per event.
    """

    classes: Ints
    at: Ints
    region: Ints

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Serves) and all(
            np.array_equal(getattr(self, part), getattr(other, part))
            for part in ("classes", "at", "region")
        )

    def __hash__(self) -> int:
        return hash((self.classes.tobytes(), self.at.tobytes(), self.region.tobytes()))

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def at_hosts(cls, chosen: npt.ArrayLike, classes: Classes) -> "Serves":
        """These classes, each at its own host, whatever the cell."""
        ids = np.unique(np.asarray(chosen, dtype=np.int32))
        return cls(ids, classes.broker[ids], np.full(len(ids), -1, dtype=np.int32))


@dataclass(frozen=True)
class Entry:
    """How events get onto the tree. `targets` is int32[n]: for the publisher's broker `o` the event enters
    at `targets[o]`, reached by a charged leg, or right at `o` where it is -1. None: always at `o`."""

    targets: Ints | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        if self.targets is None or other.targets is None:
            return self.targets is other.targets
        return np.array_equal(self.targets, other.targets)

    def __hash__(self) -> int:
        return hash(None if self.targets is None else self.targets.tobytes())

    @classmethod
    def to(cls, target: int, brokers: int) -> "Entry":
        """A leg to one broker from everywhere: a rendezvous point, a hub."""
        return cls(np.full(brokers, target, dtype=np.int32))

    def target(self, origin: int) -> int:
        """Where events of a publisher's broker enter."""
        if self.targets is None or self.targets[origin] < 0:
            return origin
        return int(self.targets[origin])


ON_TREE = Entry()


@dataclass(frozen=True, slots=True)
class Channel:
    """See the module.

    `tree` is None where events find their way by the plan's rule (`header-*`, `copies`). `marks` are
    for the control plane: a direction (u, v) of a tree link is a "p" or an "s" link (matchmaker);
    routing ignores them.
    """

    name: str
    admits: Admission
    serves: Serves
    pruning: Pruning
    tree: ChannelTree | None = None
    entry: Entry = ON_TREE
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A set of channels. Equal plans route alike.

    Attributes
    ----------
    scheme        what made it
    overlay       the brokers and links, at the prices that money accrues at
    classes       the subscriptions by filter and host; ids in channels are positions in it
    channels      channel ids are positions here
    attachments   client -> broker, by name
    paths         logical links that are not single overlay links: (u, v) -> the brokers from u to v
    grid          the content space that cells refer to, if any channel does
    regions       sets of cells (ascending), for `Serves.region`
    rule          what header trees, next hops and the choice of a stamped channel minimise
    settings      what the scheme was asked for, for people
    legs          legs that go another way than the logical link of their ends: (u, v) -> from u to v
    """

    scheme: str
    overlay: Overlay
    classes: Classes
    channels: tuple[Channel, ...]
    attachments: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[tuple[int, int], Path] = field(default_factory=dict)
    grid: Grid | None = None
    regions: tuple[Ints, ...] = field(default=(), compare=False)  # arrays: compared in __eq__
    rule: Weight = "price"
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    legs: Mapping[tuple[int, int], Path] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same, number by number; `diff` goes by names."""
        if not isinstance(other, Plan):
            return NotImplemented
        mine, theirs = self.regions, other.regions
        return (
            all(
                getattr(self, each.name) == getattr(other, each.name)
                for each in fields(self)
                if each.compare
            )
            and len(mine) == len(theirs)
            and all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        )

    def __repr__(self) -> str:
        served = sum(map(len, self.classes.members))
        return (
            f"Plan({self.scheme!r} on {self.overlay.name}: {len(self.overlay)} brokers, "
            f"{len(self.channels)} channels, {served} subscriptions)"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file (`ramify-plan` JSON). `InputError` where that cannot be written."""
        from ramify.planning.plans.files import write_plan

        write_plan(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Plan":
        """The plan in a file, sound in form. `PlanError` or another `InputError` says what is wrong."""
        from ramify.planning.plans.files import read_plan

        return read_plan(path)

    def path(self, u: int, v: int) -> Path:
        """The brokers that a logical link from u to v crosses. `OverlayError` when it has none."""
        if (u, v) in self.paths:
            return self.paths[u, v]
        if (v, u) in self.paths:
            return self.paths[v, u][::-1]
        names = self.overlay.brokers
        self.overlay.link_between(names[u], names[v])
        return (u, v)

    def leg(self, u: int, v: int) -> Path:
        """The brokers that a leg from u to v crosses. `OverlayError` when it has none."""
        own = self.legs.get((u, v))
        return self.path(u, v) if own is None else own

    def origin_of(self, publisher: str) -> int:
        """The broker that a publishing client's events enter at; a broker's own name stands for itself."""
        broker = self.attachments.get(publisher, publisher)
        if broker not in self.overlay.index:
            raise OverlayError(
                f"no broker is known for publisher {publisher!r}. Attach the client to one, or publish "
                "with a broker's name."
            )
        return self.overlay.index[broker]


def evaluate(expression: Expression, matched: frozenset[int] | set[int]) -> bool:
    """Whether an expression is true for an event that matches exactly these classes."""
    match expression:
        case Match(classes):
            return not matched.isdisjoint(classes)
        case All(parts):
            return all(evaluate(part, matched) for part in parts)
        case Some(parts):
            return any(evaluate(part, matched) for part in parts)
        case Negation(part):
            return not evaluate(part, matched)
