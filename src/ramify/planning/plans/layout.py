"""A plan laid out in arrays, for the pricer and the router: trees rooted, hops numbered, rules as tables.

Owns the numbering of hops. A hop is a logical link in one direction. Hops 0 .. 2m - 1 are the overlay's
arcs themselves (hop 2 * link + direction); a logical link that is a path has further numbers.
`hop_start` and `hop_arc` say which arcs a hop crosses, in order.

A layout assumes a plan that `check` accepts; it raises `OverlayError` where a logical link has no path or a
tree is not a tree.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.errors import OverlayError
from ramify.memo import derived
from ramify.network.graphs.distances import Distances, all_pairs, arc_weights
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.steiner import Steiner
from ramify.network.trees.trees import Tree
from ramify.planning.plans.expressions import Form, expressions_of, ones
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
    Path,
    Plan,
    Pruning,
    Some,
    Stamped,
)

__all__ = [
    "CONTENTS",
    "OP_ALL",
    "OP_NOT",
    "OP_SOME",
    "OP_TERM",
    "PRUNINGS",
    "Hops",
    "Layout",
    "LayoutTables",
    "layout_of",
    "read_only",
    "rooted_tree",
    "routes_toward",
]

PRUNINGS = tuple(Pruning)
CONTENTS: tuple[type, ...] = (AnyOf, Stamped, Everything, Cells, Holds)
OP_TERM, OP_ALL, OP_SOME, OP_NOT = range(4)

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class LayoutTables(NamedTuple):
    """What the kernels read. C channels, n brokers, c classes, H hops, E served entries."""

    hop_start: Longs  # [H + 1]
    hop_arc: Ints
    hop_weight: Floats  # [H] by the plan's rule
    hop_ms: Floats  # [H]
    hop_length: Ints  # [H] how many arcs
    label_bytes: Ints  # [H] bytes of the label on hops of several arcs, else 0
    arc_head: Ints  # [2m] where an arc leads
    adjacent_start: Ints  # [n + 1] arcs out of each broker
    adjacent: Ints  # [2m] their heads, ascending per broker
    adjacent_arc: Ints  # [2m] their numbers
    parent: Ints  # [C, n], -1 the root, -2 not on the tree
    up: Ints  # [C, n] the hop from a broker to its parent
    down: Ints  # [C, n] the hop from its parent to a broker
    order_start: Longs  # [C + 1]
    order: Ints  # the brokers of each tree, parents first
    pruning: Ints  # [C] index of PRUNINGS
    content: Ints  # [C] index of CONTENTS
    cells_of: Ints  # [C] index of the cell sets for Cells content, else -1
    term_start: Longs  # [c + 1] the terms of expressions that each class makes true
    term: Ints
    filed_start: Longs  # [terms + 1] channels to look at when a term is true
    filed_channel: Ints
    need_start: Longs  # [C + 1] the terms that an expression needs
    need: Ints
    program_start: Longs  # [C + 1] the rest of it over terms, in postfix; empty: nothing else
    program: Ints
    any_publisher: npt.NDArray[np.uint8]  # [C]
    publisher_start: Longs  # [C + 1] sorted publishers where they are limited
    publishers: Ints
    open_start: Longs  # [n + 1] channels to look at for each publisher's broker, whatever an event matches
    open_channel: Ints
    target_row: Ints  # [C] row of `targets`, -1: always on the tree
    targets: Ints  # [rows, n]
    legs: Ints  # [rows, n] the hop to the target, -1 where none is needed
    class_start: Longs  # [c + 1] entries by class
    entry_class: Ints  # [E]
    entry_channel: Ints
    entry_at: Ints
    entry_region: Ints  # index of the cell sets, -1 always
    entry_note: Ints  # [E] the hop of the final notification, -1 where the host serves itself
    host: Ints  # [c]
    set_start: Longs  # cell sets: the regions, then those of Cells content
    set_cell: Ints
    serves_here: npt.NDArray[np.uint8]  # [C, n] whether a channel has an entry at a broker


@dataclass(frozen=True)
class Layout:
    """A plan with its tables. Make it with `layout_of`, which keeps it with the plan."""

    plan: Plan
    tables: LayoutTables
    trees: tuple[Tree | None, ...]
    hops: "Hops"

    @cached_property
    def steiner(self) -> Steiner:
        """For header trees: the plan's deterministic rule."""
        return Steiner.of(self.plan.overlay, self.plan.rule)

    @cached_property
    def toward(self) -> Distances:
        """For next hops: row d holds, for every broker, the next one on the way to d."""
        return routes_toward(self.plan.overlay, self.plan.rule)

    def uses(self, *kinds: Pruning) -> bool:
        """Whether some channel prunes in one of these ways."""
        return not self._prunings.isdisjoint(kinds)

    @cached_property
    def _prunings(self) -> frozenset[Pruning]:
        return frozenset(channel.pruning for channel in self.plan.channels)


def layout_of(plan: Plan) -> Layout:
    """The plan's layout, computed once per plan. O(channels * brokers + entries)."""
    return derived(plan, "_layout", lambda: _lay_out(plan))


def routes_toward(overlay: Overlay, rule: Any) -> Distances:
    """Shortest paths to every broker: `predecessor[d, b]` is the next broker from b on the way to d.

    One tree per destination, so that next hops taken at different brokers never form a loop, zero prices
    included.
    """
    if rule != "price":
        return all_pairs(overlay, rule)
    turned = Overlay(
        overlay.name, overlay.brokers, overlay.ends, overlay.price[:, ::-1], overlay.latency_ms
    )
    return all_pairs(turned, rule)


class Hops:
    """Numbers hops as they are asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._arc_count = 2 * len(plan.overlay.ends)
        self._brokers = len(plan.overlay)
        a, b = plan.overlay.ends.astype(np.int64).T
        keys = np.column_stack((a * self._brokers + b, b * self._brokers + a)).ravel()
        self._arc_of_key = np.argsort(keys)
        self._keys = keys[self._arc_of_key]
        ways = np.array([*plan.paths], dtype=np.int64).reshape(-1, 2)
        apart = np.concatenate((ways @ (self._brokers, 1), ways @ (1, self._brokers)))
        self._plain_arc = np.where(np.isin(self._keys, apart), -1, self._arc_of_key)
        self._number: dict[tuple[int, int], int] = {}
        self._legs: dict[tuple[int, int], int] = {}
        self._paths: list[list[int]] = []
        self.ends: list[tuple[int, int]] = []

    def numbers(self, u: Ints, v: Ints) -> Ints:
        """The hops from each u to each v. `OverlayError` when neither a link nor a path joins two."""
        wanted = u.astype(np.int64) * self._brokers + v
        found = self._found(wanted, self._plain_arc)
        for row in np.flatnonzero(found < 0).tolist():
            found[row] = self.number(int(u[row]), int(v[row]))
        return found

    def number(self, u: int, v: int) -> int:
        """The hop from u to v. `OverlayError` when neither a link nor a path joins them.

        A path of its own, in either direction, goes before the link.
        """
        if (u, v) not in self._number:
            self._number[u, v] = self._add(self._plan.path(u, v))
        return self._number[u, v]

    def leg(self, u: int, v: int) -> int:
        """The hop of a leg from u to v, which may go its own way. `OverlayError` likewise."""
        if (u, v) not in self._plan.legs:
            return self.number(u, v)
        if (u, v) not in self._legs:
            self._legs[u, v] = self._add(self._plan.legs[u, v])
        return self._legs[u, v]

    def _add(self, path: Path) -> int:
        arcs = self._arcs(path)
        if len(arcs) == 1:
            return arcs[0]
        self._paths.append(arcs)
        self.ends.append((path[0], path[-1]))
        return self._arc_count + len(self._paths) - 1

    def _arcs(self, path: Path) -> list[int]:
        way = np.array(path, dtype=np.int64)
        found: list[int] = self._found(way[:-1] * self._brokers + way[1:], self._arc_of_key).tolist()
        if -1 in found:
            at, names = found.index(-1), self._plan.overlay.brokers
            self._plan.overlay.link_between(names[path[at]], names[path[at + 1]])  # says what is wrong
        return found

    def _found(self, keys: Longs, arcs: Longs) -> Ints:
        """What `arcs` has for each key, -1 where no link does. O(keys log links)."""
        if not len(self._keys):
            return np.full(len(keys), -1, dtype=np.int32)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, arcs[at], -1).astype(np.int32)

    def arcs(self) -> tuple[Longs, Ints]:
        """Compressed rows: the arcs of each hop numbered so far."""
        lengths = np.concatenate((np.ones(self._arc_count), [len(path) for path in self._paths]))
        start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        further = [arc for path in self._paths for arc in path]
        return start, np.concatenate((np.arange(self._arc_count), further)).astype(np.int32)

    def label_bytes(self) -> Ints:
        """Bytes of the label that names both ends of a hop of several arcs."""
        plain = [0] * self._arc_count
        labelled = [
            varint_bytes(u) + varint_bytes(v) if len(path) > 1 else 0
            for (u, v), path in zip(self.ends, self._paths, strict=True)
        ]
        return np.array(plain + labelled, dtype=np.int32)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers, contiguous and not to be written: to numba anything else is another type.

    Whatever made an array, kernels then see one type and are compiled once.
    """
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def varint_bytes(value: int) -> int:
    """Bytes of a number, seven bits to a byte."""
    return max(1, (value.bit_length() + 6) // 7)


def _lay_out(plan: Plan) -> Layout:
    n = len(plan.overlay)
    count = len(plan.channels)
    hops = Hops(plan)
    trees = tuple(rooted_tree(channel, n) for channel in plan.channels)
    parent = np.full((count, n), -2, dtype=np.int32)
    up, down = np.full((2, count, n), -1, dtype=np.int32)
    for c, tree in enumerate(trees):
        if tree is None:
            continue
        parent[c] = tree.parent
        above, below = tree.links().T
        up[c, below] = hops.numbers(below, above)
        down[c, below] = hops.numbers(above, below)
    target_row, targets, legs = _entries(plan, hops)
    served = _served(plan, hops)
    set_start, set_cell, cells_of = _cell_sets(plan)
    publisher_start, publishers = _rows([sorted(c.admits.publishers or ()) for c in plan.channels])
    open_start, open_channel = _rows(_open_channels(plan))
    order_start, order = _rows([[] if tree is None else tree.order for tree in trees])
    hop_start, hop_arc = hops.arcs()
    ends = plan.overlay.ends
    near = plan.overlay.adjacency
    tables = LayoutTables(
        hop_start=hop_start,
        hop_arc=hop_arc,
        hop_weight=_summed(_per_arc(plan), hop_start, hop_arc),
        hop_ms=_summed(np.repeat(plan.overlay.latency_ms, 2), hop_start, hop_arc),
        hop_length=np.diff(hop_start).astype(np.int32),
        label_bytes=hops.label_bytes(),
        arc_head=ends[:, ::-1].ravel().astype(np.int32),
        adjacent_start=near.start,
        adjacent=near.neighbor,
        adjacent_arc=(2 * near.link + near.direction).astype(np.int32),
        parent=parent,
        up=up,
        down=down,
        order_start=order_start,
        order=order,
        pruning=np.array([PRUNINGS.index(c.pruning) for c in plan.channels], dtype=np.int32),
        content=np.array([CONTENTS.index(type(c.admits.content)) for c in plan.channels], dtype=np.int32),
        cells_of=cells_of,
        **_expressed(plan),
        any_publisher=np.array([c.admits.publishers is None for c in plan.channels], dtype=np.uint8),
        publisher_start=publisher_start,
        publishers=publishers,
        open_start=open_start,
        open_channel=open_channel,
        target_row=target_row,
        targets=targets,
        legs=legs,
        **served,
        host=plan.classes.broker,
        set_start=set_start,
        set_cell=set_cell,
        serves_here=_serves_here(plan),
    )
    return Layout(plan, LayoutTables(*(read_only(table) for table in tables)), trees, hops)


def _summed(per_arc: Floats, hop_start: Longs, hop_arc: Ints) -> Floats:
    """A quantity of arcs added up along each hop. Every hop has an arc."""
    if not len(hop_arc):
        return np.zeros(0)
    summed: Floats = np.add.reduceat(per_arc[hop_arc], hop_start[:-1])
    return summed


def _per_arc(plan: Plan) -> Floats:
    """The rule's weight of each arc, by arc number."""
    _, _, link, direction = plan.overlay.adjacency
    weight = np.empty(2 * len(plan.overlay.ends))
    weight[2 * link.astype(np.int64) + direction] = arc_weights(plan.overlay, plan.rule)
    return weight


def rooted_tree(channel: Channel, brokers: int) -> Tree | None:
    """A channel's tree, hung from its root or else from its lowest broker; `OverlayError` if it is none."""
    tree = channel.tree
    if tree is None:
        return None
    root = tree.root
    if root is None:
        if not len(tree.links):
            raise OverlayError(f"channel {channel.name} has a tree without links and without a root.")
        root = int(tree.links.min())
    return Tree.of_links(brokers, tree.links, root)


def _entries(plan: Plan, hops: Hops) -> tuple[Ints, Ints, Ints]:
    """Rows of targets and the legs to them; channels whose events enter alike share one."""
    n = len(plan.overlay)
    row = np.full(len(plan.channels), -1, dtype=np.int32)
    targets: list[Ints] = []
    legs: list[Ints] = []
    known: dict[tuple[bytes, frozenset[int] | None], int] = {}
    for c, channel in enumerate(plan.channels):
        if channel.entry.targets is None:
            continue
        allowed = channel.admits.publishers
        row[c] = known.setdefault((channel.entry.targets.tobytes(), allowed), len(targets))
        if row[c] < len(targets):
            continue
        targets.append(channel.entry.targets)
        leg = np.full(n, -1, dtype=np.int32)
        for origin, target in enumerate(channel.entry.targets.tolist()):
            if target >= 0 and target != origin and (allowed is None or origin in allowed):
                leg[origin] = hops.leg(origin, target)
        legs.append(leg)
    empty = np.zeros((0, n), dtype=np.int32)
    return (
        row,
        np.array(targets, dtype=np.int32).reshape(-1, n) if targets else empty,
        (np.array(legs, dtype=np.int32).reshape(-1, n) if legs else empty),
    )


def _served(plan: Plan, hops: Hops) -> dict[str, npt.NDArray[Any]]:
    """The entries of all channels, by class, channels ascending."""
    parts = [channel.serves for channel in plan.channels]
    channel = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
    classes = np.concatenate([np.zeros(0, np.int32), *(part.classes for part in parts)])
    at = np.concatenate([np.zeros(0, np.int32), *(part.at for part in parts)])
    region = np.concatenate([np.zeros(0, np.int32), *(part.region for part in parts)])
    order = np.argsort(classes, kind="stable")
    start = np.searchsorted(classes[order], np.arange(len(plan.classes) + 1))
    note = np.full(len(classes), -1, dtype=np.int32)
    for k in np.flatnonzero(at != plan.classes.broker[classes]).tolist():
        note[k] = hops.number(int(at[k]), int(plan.classes.broker[classes[k]]))
    return {
        "class_start": start.astype(np.int64),
        "entry_class": classes[order].astype(np.int32),
        "entry_channel": channel[order],
        "entry_at": at[order].astype(np.int32),
        "entry_region": region[order].astype(np.int32),
        "entry_note": note[order],
    }


def _cell_sets(plan: Plan) -> tuple[Longs, Ints, Ints]:
    """Compressed rows of the regions and of Cells contents, and which one each channel admits."""
    sets: list[Any] = list(plan.regions)
    cells_of = np.full(len(plan.channels), -1, dtype=np.int32)
    for c, channel in enumerate(plan.channels):
        if isinstance(channel.admits.content, Cells):
            cells_of[c] = len(sets)
            sets.append(channel.admits.content.cells)
    start, cell = _rows(sets)
    return start, cell, cells_of


def _open_channels(plan: Plan) -> list[list[int]]:
    """For each broker the channels that must be looked at for its events, whatever classes they match.

    Stamped channels come last, one after the other: of those the pricer chooses one.
    """
    always: list[list[int]] = [[] for _ in plan.overlay.brokers]
    filed = {c for channels in expressions_of(plan).filed.values() for c in channels}
    numbered = ((c, channel) for c, channel in enumerate(plan.channels) if c not in filed)
    for c, channel in sorted(numbered, key=lambda row: isinstance(row[1].admits.content, Stamped)):
        if isinstance(channel.admits.content, AnyOf):
            continue  # found through the classes it serves
        allowed = channel.admits.publishers
        for origin in range(len(plan.overlay)) if allowed is None else sorted(allowed):
            always[origin].append(c)
    return always


def _serves_here(plan: Plan) -> npt.NDArray[np.uint8]:
    here = np.zeros((len(plan.channels), len(plan.overlay)), dtype=np.uint8)
    for c, channel in enumerate(plan.channels):
        here[c, channel.serves.at] = 1
    return here


def _expressed(plan: Plan) -> dict[str, npt.NDArray[Any]]:
    """The tables of expressions: terms by class, channels by term, what each needs and its rest."""
    read = expressions_of(plan)
    tables = {
        "term": [list(ones(read.made_true(k))) for k in range(len(plan.classes))],
        "filed": [read.filed.get(term, []) for term in range(len(read.terms))],
        "need": [
            list(ones(read.forms[c].needs)) if c in read.forms else [] for c in range(len(plan.channels))
        ],
        "program": [_program(read.forms[c]) if c in read.forms else [] for c in range(len(plan.channels))],
    }
    found: dict[str, npt.NDArray[Any]] = {}
    for name, rows in tables.items():
        found[f"{name}_start"], found["filed_channel" if name == "filed" else name] = _rows(rows)
    return found


def _program(form: Form) -> list[int]:
    """What an expression asks for besides the terms it needs: TERM number, ALL count, SOME count, NOT."""
    out: list[int] = []

    def put(expression: Expression) -> None:
        match expression:
            case Match((term,)):
                out.extend((OP_TERM, term))
            case All(parts) | Some(parts):
                for part in parts:
                    put(part)
                out.extend((OP_ALL if isinstance(expression, All) else OP_SOME, len(parts)))
            case Negation(part):
                put(part)
                out.append(OP_NOT)

    bars = (Negation(All(tuple(Match((term,)) for term in ones(bar)))) for bar in form.bars)
    parts = (*bars, *form.rest)
    if parts:
        put(All(parts))
    return out


def _rows(rows: Iterable[Any]) -> tuple[Longs, Ints]:
    listed = [np.asarray(row, dtype=np.int32) for row in rows]
    start = np.cumsum([0, *(len(row) for row in listed)], dtype=np.int64)
    return start, np.concatenate([np.zeros(0, dtype=np.int32), *listed])


# Everything is a content without data: its type alone says it.
assert {Everything, AnyOf, Stamped, Cells, Holds} == set(CONTENTS)
