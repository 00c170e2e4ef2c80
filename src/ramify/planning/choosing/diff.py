"""What differs between two plans, in words that people use: channels, links, subscriptions, clients.

Owns `diff`. Plans may number brokers and classes differently: brokers go by name, classes by the ids
of their subscriptions (in expressions by filter and broker), channels by name (of several with one name,
the first is matched with the first). Equal plans give an empty diff, and an empty diff means that both
route every event alike. Of plans whose schemes know it, it also says what drift moved (`Hooks.drift`).
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, field
from typing import Any

from ramify.planning.plans.plan import (
    All,
    Cells,
    Channel,
    Expression,
    Holds,
    Match,
    Negation,
    Path,
    Plan,
    Some,
)
from ramify.planning.schemes.catalog import drift

__all__ = ["ChannelDiff", "ClassMove", "PlanDiff", "diff"]

MOVES_SHOWN = 3

Ends = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """What changed in a channel that both plans have.

    Attributes
    ----------
    name                     of the channel
    links_added, _removed    tree links by the names of their ends, each pair and the pairs in order
    joined, left             subscriptions that it began or ceased to serve
    other                    what else changed: admits, publishers, pruning, root, entry, serves, marks
    """

    name: str
    links_added: tuple[Ends, ...] = ()
    links_removed: tuple[Ends, ...] = ()
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassMove:
    """Subscriptions of one class in both plans that changed channels together."""

    subscriptions: tuple[str, ...]
    left: tuple[str, ...]
    joined: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """From an old plan to a new one.

    Attributes
    ----------
    channels_added, _removed, _changed    by name
    subscriptions_added, _removed         ids that only one of the plans has
    subscriptions_changed                 ids whose filter, broker, client or latency bound changed
    moved                                 subscriptions of both plans that other channels serve now
    clients                               client -> (broker before, broker now); None where it was not there
    paths, legs                           (from, to) -> (brokers before, brokers now); None likewise
    other                                 what else changed: overlay, grid, rule, scheme, settings, order
    drift                                 what the schemes say that moved, where they do; no difference of
                                          its own: equal plans have one that moves nothing
    """

    channels_added: tuple[str, ...] = ()
    channels_removed: tuple[str, ...] = ()
    channels_changed: tuple[ChannelDiff, ...] = ()
    subscriptions_added: tuple[str, ...] = ()
    subscriptions_removed: tuple[str, ...] = ()
    subscriptions_changed: tuple[str, ...] = ()
    moved: tuple[ClassMove, ...] = ()
    clients: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    paths: Mapping[Ends, tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = field(
        default_factory=dict
    )
    other: tuple[str, ...] = ()
    legs: Mapping[Ends, tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = field(default_factory=dict)
    drift: object | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return self != PlanDiff()

    def __str__(self) -> str:
        """A line per kind of change, with a few examples."""
        return "\n".join(_lines(self)) if self else "no difference"

    def to_json(self) -> str:
        """All of it, as one line of JSON; paths and legs become lists, since their keys are pairs."""
        document = asdict(self)
        for name, ways in (("paths", self.paths), ("legs", self.legs)):
            document[name] = [
                {"from": a, "to": b, "before": before, "now": now} for (a, b), (before, now) in ways.items()
            ]
        return json.dumps(document, ensure_ascii=False)


def diff(old: Plan, new: Plan) -> PlanDiff:
    """What leads from one plan to the other. O(size of both plans)."""
    before, after = _View(old), _View(new)
    gone, come = (
        before.channels.keys() - after.channels.keys(),
        after.channels.keys() - before.channels.keys(),
    )
    shared = [key for key in before.channels if key in after.channels]
    changed = (_channel_diff(key, before, after) for key in shared)
    mine, theirs = before.subscriptions, after.subscriptions
    return PlanDiff(
        tuple(_name(key) for key in after.channels if key in come),
        tuple(_name(key) for key in before.channels if key in gone),
        tuple(each for each in changed if each is not None),
        tuple(sorted(theirs.keys() - mine.keys())),
        tuple(sorted(mine.keys() - theirs.keys())),
        tuple(sorted(id_ for id_ in mine.keys() & theirs.keys() if mine[id_] != theirs[id_])),
        tuple(_moves(before, after)),
        _changes(old.attachments, new.attachments),
        _changes(before.ways(old.paths), after.ways(new.paths)),
        tuple(_other(old, new)),
        _changes(before.ways(old.legs), after.ways(new.legs)),
        drift(old, new),
    )


def _name(key: tuple[str, int]) -> str:
    """A channel's name; the second and further ones of a name are numbered."""
    name, occurrence = key
    return name if not occurrence else f"{name} ({occurrence + 1})"


class _View:
    """A plan by names."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names = plan.overlay.brokers
        count: dict[str, int] = {}
        self.channels: dict[tuple[str, int], Channel] = {}
        for channel in plan.channels:
            at = count[channel.name] = count.get(channel.name, -1) + 1
            self.channels[channel.name, at] = channel
        filters = plan.classes.filters
        self.subscriptions = {
            row.id: (filters[k].key, self.names[plan.classes.broker[k]], row.client, row.latency_ms)
            for k, members in enumerate(plan.classes.members)
            for row in members
        }
        self.served = {key: self._served(channel) for key, channel in self.channels.items()}

    def _served(self, channel: Channel) -> dict[str, set[tuple[str, Hashable]]]:
        """Subscription -> where it is served, and in which cells."""
        found: dict[str, set[tuple[str, Hashable]]] = {}
        parts = (channel.serves.classes, channel.serves.at, channel.serves.region)
        for k, at, region in zip(*(part.tolist() for part in parts), strict=True):
            cells = None if region < 0 else self.plan.regions[region].tobytes()
            for row in self.plan.classes.members[k]:
                found.setdefault(row.id, set()).add((self.names[at], cells))
        return found

    def links(self, channel: Channel) -> set[Ends]:
        """The links of its tree, ends in order."""
        if channel.tree is None:
            return set()
        pairs = ((self.names[a], self.names[b]) for a, b in channel.tree.links.tolist())
        return {(a, b) if a <= b else (b, a) for a, b in pairs}

    def ways(self, given: Mapping[tuple[int, int], Path]) -> dict[Ends, tuple[str, ...]]:
        return {
            (self.names[u], self.names[v]): tuple(self.names[b] for b in path)
            for (u, v), path in given.items()
        }

    def parts(self, channel: Channel) -> dict[str, Hashable]:
        """What else makes a channel route as it does."""
        allowed, tree, targets = channel.admits.publishers, channel.tree, channel.entry.targets
        return {
            "admits": self._content(channel),
            "publishers": None if allowed is None else frozenset(self.names[b] for b in allowed),
            "pruning": channel.pruning,
            "tree": tree is None,
            "root": None if tree is None or tree.root is None else self.names[tree.root],
            "entry": frozenset(
                (self.names[o], self.names[channel.entry.target(o)])
                for o in range(0 if targets is None else len(targets))
                if channel.entry.target(o) != o
            ),
            "marks": frozenset((self.names[u], self.names[v], m) for (u, v), m in channel.marks.items()),
        }

    def _content(self, channel: Channel) -> Hashable:
        match channel.admits.content:
            case Holds(expression):
                return self._expression(expression)
            case Cells(cells):
                return cells.tobytes()
            case plain:
                return type(plain).__name__

    def _expression(self, expression: Expression) -> Hashable:
        match expression:
            case Match(classes):
                known = self.plan.classes
                named = ((known.filters[k].key, self.names[known.broker[k]]) for k in classes)
                return "any", frozenset(named)
            case All(parts):
                return "all", tuple(self._expression(part) for part in parts)
            case Some(parts):
                return "some", tuple(self._expression(part) for part in parts)
            case Negation(part):
                return "not", self._expression(part)


def _channel_diff(key: tuple[str, int], before: _View, after: _View) -> ChannelDiff | None:
    old, new = before.channels[key], after.channels[key]
    here, there = before.links(old), after.links(new)
    mine, theirs = before.served[key], after.served[key]
    was, now = before.parts(old), after.parts(new)
    other = [part for part in was if was[part] != now[part]]
    if any(mine[id_] != theirs[id_] for id_ in mine.keys() & theirs.keys()):
        other.append("serves")
    found = ChannelDiff(
        _name(key),
        tuple(sorted(there - here)),
        tuple(sorted(here - there)),
        tuple(sorted(theirs.keys() - mine.keys())),
        tuple(sorted(mine.keys() - theirs.keys())),
        tuple(other),
    )
    return None if found == ChannelDiff(_name(key)) else found


def _moves(before: _View, after: _View) -> Iterator[ClassMove]:
    """Subscriptions of both plans grouped by class and by what they left and joined."""
    was, now = _channels_of(before), _channels_of(after)
    groups: dict[tuple[int, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for id_, k in before.plan.classes.class_of.items():
        if id_ not in after.subscriptions:
            continue
        old, new = was.get(id_, set()), now.get(id_, set())
        if old != new:
            groups.setdefault((k, tuple(sorted(old - new)), tuple(sorted(new - old))), []).append(id_)
    for (_, left, joined), ids in groups.items():
        yield ClassMove(tuple(sorted(ids)), left, joined)


def _channels_of(view: _View) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key, served in view.served.items():
        for id_ in served:
            found.setdefault(id_, set()).add(_name(key))
    return found


def _changes(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }


def _other(old: Plan, new: Plan) -> Iterator[str]:
    for part in ("overlay", "grid", "rule", "scheme", "settings"):
        if getattr(old, part) != getattr(new, part):
            yield part
    names = [channel.name for channel in old.channels], [channel.name for channel in new.channels]
    common = set(names[0]) & set(names[1])
    if [n for n in names[0] if n in common] != [n for n in names[1] if n in common]:
        yield "order"


# ------------------------------------------------------------------------------------------------ text


def _lines(found: PlanDiff) -> Iterator[str]:
    yield from _line("channel", "added", found.channels_added)
    yield from _line("channel", "removed", found.channels_removed)
    yield from _line("subscription", "added", found.subscriptions_added)
    yield from _line("subscription", "removed", found.subscriptions_removed)
    yield from _line("subscription", "changed", found.subscriptions_changed)
    moves = [
        f"{id_} from {_some(move.left) or 'nowhere'} to {_some(move.joined) or 'nowhere'}"
        for move in found.moved
        for id_ in move.subscriptions
    ]
    yield from _line("subscription", "moved", tuple(moves))
    yield from _line("client", "attached elsewhere", tuple(_arrow(*item) for item in found.clients.items()))
    yield from _line("path", "changed", tuple(f"{a} - {b}" for a, b in found.paths))
    yield from _line("leg", "changed", tuple(f"{a} - {b}" for a, b in found.legs))
    for each in found.channels_changed:
        yield f"channel {each.name}: {_changed(each)}"
    if found.drift is not None:
        yield f"zones: {found.drift}"
    if found.other:
        yield f"changed: {', '.join(found.other)}"


def _changed(each: ChannelDiff) -> str:
    counts: list[tuple[str, str, Sized]] = [
        ("+", "tree link", each.links_added),
        ("-", "tree link", each.links_removed),
        ("+", "subscription", each.joined),
        ("-", "subscription", each.left),
    ]
    said = [f"{sign}{len(of)} {what}{'s' if len(of) > 1 else ''}" for sign, what, of in counts if of]
    return ", ".join(said + [f"other {part}" for part in each.other])


def _line(what: str, happened: str, names: tuple[str, ...]) -> Iterator[str]:
    if names:
        yield f"{len(names)} {what}{'s' if len(names) > 1 else ''} {happened}: {_some(names)}"


def _arrow(client: str, where: tuple[str | None, str | None]) -> str:
    return f"{client} from {where[0] or 'nowhere'} to {where[1] or 'nowhere'}"


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - MOVES_SHOWN
    return ", ".join(names[:MOVES_SHOWN]) + (f" and {more} more" if more > 0 else "")
