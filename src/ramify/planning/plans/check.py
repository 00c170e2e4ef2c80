"""Whether a plan can be trusted: every fault found before any broker runs it.

Owns `check(plan, problem)`. It proves what follows from the plan alone:

- ids, brokers, cells and regions exist; classes and overlay are the problem's;
- trees are trees, on links or paths of links that exist; legs and final notifications have a path;
- whatever enters a channel enters on its tree, and what it serves is served on its tree;
- every subscription is reachable from every publisher whose events it can match: for each such pair,
  and each cell that the filter touches where cells matter, some channel that serves it there is sure to
  admit the event.

The last is decided symbolically: see `implication.py`. Latency, capacity, quota and residency need a
demand: see `planning.pricing.rules`.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from ramify.errors import OverlayError, PlanError
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.trees import Tree
from ramify.planning.plans.expressions import expressions_of
from ramify.planning.plans.implication import Implication
from ramify.planning.plans.plan import (
    All,
    AnyOf,
    Cells,
    Channel,
    Everything,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Some,
    Stamped,
)
from ramify.planning.plans.problem import Problem

__all__ = ["check", "faults", "form_faults"]

_TREE_PRUNINGS = (Pruning.FILTER, Pruning.NONE)


def check(plan: Plan, problem: Problem) -> Plan:
    """The plan itself, or `PlanError` with everything that is wrong with it."""
    found = list(faults(plan, problem))
    if found:
        raise PlanError(f"plan {plan.scheme} cannot be used on overlay {problem.overlay.name}:", found)
    return plan


def faults(plan: Plan, problem: Problem) -> Iterator[str]:
    """Every fault, one sentence each. Form first; reachability only for plans of a sound form."""
    sound = True
    for fault in _form(plan, problem):
        sound = False
        yield fault
    if sound:
        yield from _unreached(plan, problem)


def _form(plan: Plan, problem: Problem) -> Iterator[str]:
    yield from _same_world(plan, problem)
    yield from form_faults(plan)


def form_faults(plan: Plan) -> Iterator[str]:
    """What is wrong with a plan by itself, whatever the problem."""
    yield from _hosts(plan)
    n = len(plan.overlay)
    for (u, v), path in (*plan.paths.items(), *plan.legs.items()):
        yield from _path_faults(plan, u, v, path)
    if plan.regions and plan.grid is None:
        yield "it has regions but no grid that says what their cells are"
    cells = 0 if plan.grid is None else plan.grid.size
    for number, region in enumerate(plan.regions):
        if len(region) and not (region.min() >= 0 and region.max() < cells and (np.diff(region) > 0).all()):
            yield f"region {number} has cells outside 0..{cells - 1}, or not in ascending order"
    for c, channel in enumerate(plan.channels):
        where = f"channel {c} ({channel.name})"
        for fault in _channel_faults(plan, channel, n, cells):
            yield f"{where}: {fault}"
    yield from _stamped_faults(plan)


def _same_world(plan: Plan, problem: Problem) -> Iterator[str]:
    mine, theirs = plan.overlay, problem.overlay
    if mine.brokers != theirs.brokers:
        yield f"it was made for other brokers than those of overlay {theirs.name}"
    elif not np.array_equal(mine.ends, theirs.ends):
        yield f"it was made for other links than those of overlay {theirs.name}"
    elif not (
        np.array_equal(mine.price, theirs.price) and np.array_equal(mine.latency_ms, theirs.latency_ms)
    ):
        yield "it was made for other prices or latencies. Take it up with adopt(plan, problem)"
    wanted = problem.classes.class_of.keys()
    known = plan.classes.class_of.keys()
    for id_ in sorted(known - wanted)[:3]:
        yield f"it serves subscription {id_!r}, which is unknown"
    for id_ in sorted(wanted - known)[:3]:
        yield f"it does not know subscription {id_!r}"
    if plan.classes is not problem.classes:
        yield from _other_classes(plan, problem)


def _hosts(plan: Plan) -> Iterator[str]:
    mine = plan.overlay
    for client, broker in plan.attachments.items():
        if broker not in mine.index:
            yield f"it attaches client {client!r} to broker {broker!r}, which is unknown"
    for k, members in enumerate(plan.classes.members):
        host = mine.brokers[plan.classes.broker[k]] if 0 <= plan.classes.broker[k] < len(mine) else None
        for row in members:
            at = plan.attachments.get(row.client, row.broker)
            if host is None or at != host:
                yield f"subscription {row.id!r} is in a class at {host!r}, but its client is at {at!r}"


def _other_classes(plan: Plan, problem: Problem) -> Iterator[str]:
    """Subscriptions that both know, in classes that are not the same."""
    mine, theirs = plan.classes, problem.classes
    shared = mine.class_of.keys() & theirs.class_of.keys()
    pairs = {(mine.class_of[id_], theirs.class_of[id_]) for id_ in shared}
    other = {(j, k) for j, k in pairs if mine.filters[j].key != theirs.filters[k].key}
    differ = sorted(id_ for id_ in shared if (mine.class_of[id_], theirs.class_of[id_]) in other)
    for id_ in differ[:3]:
        yield f"subscription {id_!r} has another filter than it was made for"
    hosts = [(id_, mine.broker[mine.class_of[id_]], theirs.broker[theirs.class_of[id_]]) for id_ in shared]
    for id_ in sorted(id_ for id_, here, there in hosts if here != there)[:3]:
        yield f"subscription {id_!r} is at another broker than it was made for"
    if any(j != k for j, k in pairs):
        yield "it numbers classes in another way. Take it up with adopt(plan, problem)"


def _path_faults(plan: Plan, u: int, v: int, path: tuple[int, ...]) -> Iterator[str]:
    n = len(plan.overlay)
    where = f"the path for ({u}, {v})"
    if len(path) < 2 or path[0] != u or path[-1] != v or len(set(path)) < len(path):
        yield f"{where} does not lead from {u} to {v}, or visits a broker twice"
    elif not all(0 <= broker < n for broker in path):
        yield f"{where} visits a broker outside 0..{n - 1}"
    else:
        steps = np.column_stack((path[:-1], path[1:]))
        for a, b in steps[~_linked(plan.overlay, steps)].tolist():
            yield f"{where} crosses {_name(plan, a)} - {_name(plan, b)}, which is not a link"


def _channel_faults(plan: Plan, channel: Channel, n: int, cells: int) -> Iterator[str]:
    if channel.tree is None and channel.pruning in _TREE_PRUNINGS:
        yield f"pruning {channel.pruning} needs a tree"
        return
    allowed = channel.admits.publishers
    if allowed is not None and not all(0 <= broker < n for broker in allowed):
        yield f"it admits a publisher outside 0..{n - 1}"
        return
    yield from _content_faults(plan, channel, cells)
    on_tree = np.ones(n, dtype=bool)
    if channel.tree is not None:
        faults = list(_tree_faults(plan, channel, n))
        yield from faults
        if faults:
            return
        on_tree[:] = False
        on_tree[channel.tree.brokers] = True
    wrong = list(_serves_faults(plan, channel, on_tree))
    yield from wrong or _overlapping(plan, channel)
    yield from _entry_faults(plan, channel, on_tree)


def _content_faults(plan: Plan, channel: Channel, cells: int) -> Iterator[str]:
    match channel.admits.content:
        case Cells(ids):
            if plan.grid is None:
                yield "it admits cells but the plan has no grid"
            elif len(ids) and not (ids.min() >= 0 and ids.max() < cells and (np.diff(ids) > 0).all()):
                yield f"it admits cells outside 0..{cells - 1}, or not in ascending order"
        case Holds(expression):
            unknown = [k for k in _atoms_classes(expression) if not 0 <= k < len(plan.classes)]
            if unknown:
                yield f"its expression asks for class {unknown[0]}, which is unknown"
        case _:
            pass


def _tree_faults(plan: Plan, channel: Channel, n: int) -> Iterator[str]:
    tree = channel.tree
    assert tree is not None
    if tree.links.size == 0 and tree.root is None:
        yield "its tree has neither links nor a root"
        return
    root = tree.root if tree.root is not None else int(tree.links.flat[0])
    try:
        Tree.of_links(n, tree.links, root)
    except OverlayError as error:
        yield f"its tree is not a tree: {error}"
        return
    for u, v in tree.links[~_linked(plan.overlay, tree.links)].tolist():
        if not _joined(plan, u, v):
            yield f"its tree joins {_name(plan, u)} and {_name(plan, v)}: no link and no path does"
    if not channel.marks:
        return
    known = {(u, v) for u, v in tree.links.tolist()}
    for (u, v), mark in channel.marks.items():
        if mark not in ("p", "s") or not {(u, v), (v, u)} & known:
            yield f"the mark {mark!r} on ({u}, {v}) is not p or s on a link of its tree"


def _serves_faults(plan: Plan, channel: Channel, on_tree: "np.typing.NDArray[np.bool_]") -> Iterator[str]:
    serves = channel.serves
    if not len(serves.classes) == len(serves.at) == len(serves.region):
        yield "its entries are not one class, one broker and one region each"
        return
    # Entries at a class's own host, which is on the tree, need no closer look.
    known = (serves.classes >= 0) & (serves.classes < len(plan.classes))
    hosts = plan.classes.broker[np.where(known, serves.classes, 0)] if len(plan.classes) else serves.at
    inside = (serves.at >= 0) & (serves.at < len(on_tree))
    plain = known & inside & (serves.at == hosts) & (serves.region == -1)
    plain &= on_tree[np.where(inside, serves.at, 0)]
    rest = np.flatnonzero(~plain)
    parts = (serves.classes[rest], serves.at[rest], serves.region[rest])
    for k, at, region in zip(*(part.tolist() for part in parts), strict=True):
        if not 0 <= k < len(plan.classes):
            yield f"it serves class {k}, which is unknown"
        elif not 0 <= at < len(on_tree):
            yield f"it serves class {k} at broker {at}, which is unknown"
        elif not -1 <= region < len(plan.regions):
            yield f"it serves class {k} for region {region}, which is unknown"
        elif not on_tree[at]:
            yield f"it serves class {k} at {_name(plan, at)}, which is not on its tree"
        elif at != plan.classes.broker[k]:
            host = int(plan.classes.broker[k])
            if not 0 <= host < len(on_tree):
                continue  # reported with the class
            if channel.pruning not in _TREE_PRUNINGS:
                yield f"it serves class {k} at a proxy, which pruning {channel.pruning} cannot do"
            elif not _joined(plan, at, host):
                yield f"no link and no path leads from the proxy {_name(plan, at)} to {_name(plan, host)}"


def _overlapping(plan: Plan, channel: Channel) -> Iterator[str]:
    """Classes that a channel serves more than once for some event."""
    entries: dict[int, list[int]] = {}
    for k, region in zip(channel.serves.classes.tolist(), channel.serves.region.tolist(), strict=True):
        entries.setdefault(k, []).append(region)
    for k, regions in entries.items():
        if len(regions) == 1:
            continue
        cells = [plan.regions[region].tolist() for region in regions if region >= 0]
        flat = [cell for part in cells for cell in part]
        if len(cells) < len(regions) or len(set(flat)) < len(flat):
            yield f"it serves class {k} more than once for some events: regions must not overlap"


def _entry_faults(plan: Plan, channel: Channel, on_tree: "np.typing.NDArray[np.bool_]") -> Iterator[str]:
    targets = channel.entry.targets
    if targets is not None and channel.pruning not in _TREE_PRUNINGS:
        yield f"pruning {channel.pruning} starts at the publisher's broker: it takes no legs"
    if targets is not None and len(targets) != len(on_tree):
        yield f"its entry names {len(targets)} targets for {len(on_tree)} brokers"
        return
    allowed = (
        range(len(on_tree)) if channel.admits.publishers is None else sorted(channel.admits.publishers)
    )
    for origin in allowed:
        target = channel.entry.target(origin)
        if target >= len(on_tree) or not on_tree[target]:
            yield f"events of {_name(plan, origin)} would enter at broker {target}, off its tree"
        elif target != origin and (origin, target) not in plan.legs and not _joined(plan, origin, target):
            yield f"no link and no path leads from {_name(plan, origin)} to its entry {_name(plan, target)}"


def _stamped_faults(plan: Plan) -> Iterator[str]:
    stamped = [channel for channel in plan.channels if isinstance(channel.admits.content, Stamped)]
    several = len(stamped) > 1
    for channel in stamped:
        if several and channel.pruning not in _TREE_PRUNINGS:
            yield f"{channel.name}: one of several stamped channels must have a tree to be compared by"
        if several and not _serves_alike(channel, stamped[0]):
            yield (
                f"{channel.name}: stamped channels must serve the same classes for the same regions, "
                "so that any may be chosen"
            )
        if several and channel.admits.publishers != stamped[0].admits.publishers:
            yield f"{channel.name}: stamped channels must admit the same publishers"


def _serves_alike(one: Channel, other: Channel) -> bool:
    """Whether two channels serve the same classes for the same regions, wherever they do."""
    return np.array_equal(one.serves.classes, other.serves.classes) and np.array_equal(
        one.serves.region, other.serves.region
    )


def _linked(overlay: Overlay, pairs: "np.typing.NDArray[Any]") -> "np.typing.NDArray[np.bool_]":
    """Which pairs of brokers an overlay link joins. O(pairs log links)."""
    keys = _link_keys(overlay)
    a, b = np.sort(pairs, axis=1).astype(np.int64).T
    wanted = a * len(overlay) + b
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    return keys[at] == wanted if len(keys) else np.zeros(len(wanted), dtype=np.bool_)


@lru_cache(maxsize=4)
def _link_keys(overlay: Overlay) -> "np.typing.NDArray[np.int64]":
    """One ascending number per link."""
    low, high = np.sort(overlay.ends, axis=1).astype(np.int64).T
    return np.sort(low * len(overlay) + high)


def _joined(plan: Plan, u: int, v: int) -> bool:
    try:
        plan.path(u, v)
    except OverlayError:
        return False
    return True


def _name(plan: Plan, broker: int) -> str:
    return plan.overlay.brokers[broker]


# ---------------------------------------------------------------------------------------- reachability


def _unreached(plan: Plan, problem: Problem) -> Iterator[str]:
    """Subscriptions that some publisher's events would not reach."""
    reaches = [_publishers_of(plan, channel) for channel in plan.channels]
    surely = _surely_reached(plan, reaches)
    decided = Implication(expressions_of(plan))
    by_class: dict[int, list[tuple[int, int]]] | None = None
    alike, kind = _alike(reaches, len(plan.overlay))
    for k in np.flatnonzero(~surely[:, problem.publishers].all(axis=1)).tolist():
        if plan.classes.vacant[k]:
            continue
        by_class = _entries_by_class(plan) if by_class is None else by_class
        entries = by_class.get(k, [])
        host = int(plan.classes.broker[k])
        # brokers whose events can enter the same channels are all served, or none is
        missed: dict[int, str | None] = {}
        for origin in problem.publishers[~surely[k, problem.publishers]].tolist():
            if origin == host:
                continue
            of = int(kind[origin])
            if of not in missed:
                reached = [bool(alike[c, of]) for c, _ in entries]
                missed[of] = _missed(plan, k, entries, reached, decided)
            if missed[of] is not None and _may_match(plan, problem, origin, k):
                member, at = plan.classes.members[k][0].id, _name(plan, host)
                yield f"subscription {member!r} at {at} misses events of {_name(plan, origin)}{missed[of]}"
                break


def _alike(
    reaches: list["np.typing.NDArray[np.bool_]"], brokers: int
) -> tuple["np.typing.NDArray[np.bool_]", "np.typing.NDArray[np.intp]"]:
    """bool[channels, kinds]: which channels events can enter, by kind of broker; int[n]: the kinds."""
    stacked = np.array(reaches, dtype=np.bool_).reshape(len(reaches), brokers)
    numbers: dict[bytes, int] = {}
    packed = np.ascontiguousarray(np.packbits(stacked, axis=0).T)
    kind = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in packed], dtype=np.intp)
    first = np.array([np.flatnonzero(kind == number)[0] for number in range(len(numbers))], dtype=np.intp)
    return stacked[:, first], kind


def _surely_reached(
    plan: Plan, reaches: list["np.typing.NDArray[np.bool_]"]
) -> "np.typing.NDArray[np.bool_]":
    """bool[c, n]: classes that a channel without conditions brings a broker's events to. A byte each."""
    surely = np.zeros((len(plan.classes), len(plan.overlay)), dtype=np.bool_)
    done: set[tuple[bytes, bytes]] = set()
    for channel, reached in zip(plan.channels, reaches, strict=True):
        if not isinstance(channel.admits.content, AnyOf | Everything | Stamped):
            continue
        classes = channel.serves.classes[channel.serves.region < 0]
        key = (classes.tobytes(), reached.tobytes())
        if key not in done:  # the channels of a portfolio differ in their trees only
            done.add(key)
            surely[np.ix_(classes, np.flatnonzero(reached))] = True
    return surely


def _entries_by_class(plan: Plan) -> dict[int, list[tuple[int, int]]]:
    """The (channel, region) entries of each class."""
    found: dict[int, list[tuple[int, int]]] = {}
    for c, channel in enumerate(plan.channels):
        for k, region in zip(channel.serves.classes.tolist(), channel.serves.region.tolist(), strict=True):
            found.setdefault(k, []).append((c, region))
    return found


def _publishers_of(plan: Plan, channel: Channel) -> "np.typing.NDArray[np.bool_]":
    """The brokers whose events can enter a channel."""
    n = len(plan.overlay)
    reached = np.ones(n, dtype=bool)
    if channel.admits.publishers is not None:
        reached[:] = False
        reached[list(channel.admits.publishers)] = True
    if channel.tree is not None:
        on_tree = np.zeros(n, dtype=bool)
        on_tree[channel.tree.brokers] = True
        targets = np.arange(n) if channel.entry.targets is None else channel.entry.targets
        reached &= on_tree[np.where(targets < 0, np.arange(n), targets)]
    return reached


def _may_match(plan: Plan, problem: Problem, origin: int, k: int) -> bool:
    said = problem.advertisements.get(origin)
    return said is None or any(filter_.overlaps(plan.classes.filters[k]) for filter_ in said)


def _missed(
    plan: Plan, k: int, entries: list[tuple[int, int]], reaches: list[bool], decided: Implication
) -> str | None:
    """Where an event that matches class k is admitted by none of its entries; None when nowhere."""
    usable = [entry for entry, reached in zip(entries, reaches, strict=True) if reached]
    if plan.grid is None:
        asked = _expressed(plan, usable, None)
        return None if asked is None or decided.surely(k, asked) else ""
    for cell in plan.grid.cells_touched(plan.classes.filters[k]).tolist():
        asked = _expressed(plan, usable, cell)
        if asked is not None and not decided.surely(k, asked):
            return f" in cell {cell}"
    return None


def _expressed(plan: Plan, entries: list[tuple[int, int]], cell: int | None) -> tuple[int, ...] | None:
    """Channels of which one must hold for an entry to count in a cell; None when one surely does."""
    asked: list[int] = []
    for c, region in entries:
        if region >= 0 and (cell is None or not _contains(plan.regions[region], cell)):
            continue
        match plan.channels[c].admits.content:
            case Holds():
                asked.append(c)
            case Cells(cells):
                if cell is not None and _contains(cells, cell):
                    return None
            case _:
                return None
    return tuple(asked)


def _contains(cells: "np.typing.NDArray[np.int32]", cell: int) -> bool:
    at = int(np.searchsorted(cells, cell))
    return at < len(cells) and int(cells[at]) == cell


def _terms(expression: Expression) -> Iterator[frozenset[int]]:
    match expression:
        case Match(classes):
            yield frozenset(classes)
        case All(parts) | Some(parts):
            for part in parts:
                yield from _terms(part)
        case Negation(part):
            yield from _terms(part)


def _atoms_classes(expression: Expression) -> set[int]:
    return {k for term in _terms(expression) for k in term}
