"""Edge-swap local search: a spanning tree on which given terminal sets cost as little as swaps can make it.

Problem    An overlay with symmetric link lengths, weighted terminal sets, a spanning tree. Lower the sum of
           weight times the length of the smallest sub-tree that joins each set.
Idea       Take out a tree link. Each set that used it falls into two sub-trees, one per side; a link (a, b)
           across the cut joins them for its length and the distances from a and from b to the nearest point
           of each side's sub-tree. Those distances, summed over the sets, follow for all brokers from one
           pass down the tree, so the best replacement is found exactly; it is made when it is cheaper.
Guarantee  The cost never rises. When `finished`, no exchange of one link lowers it by `SWAP_TOLERANCE`.
Cost       A link: O(terminals on the smaller side + those of the sets that use it + n + m), and without the
           n + m when a bound shows that nothing can be gained. A swap: O(n log n) to measure the new tree.
Departures None: the scheme is our own. Links are tried in rotation and the first that gains is swapped by
           its best replacement: looking for the best of all links took ten times as long, or more, for ends
           within 1 % either way.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, Ints, SmallInts, compiled
from ramify.errors import OverlayError
from ramify.network.graphs.distances import Weight
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.terminals import TerminalSets
from ramify.network.trees.tree_kernels import depths, fill_meetings, meeting, preorder, sort_small
from ramify.network.trees.trees import MeasuredTree, Tree, closed, link_lengths, measured

__all__ = ["SwapResult", "improve"]

Floats = npt.NDArray[np.float64]
Table = npt.NDArray[np.int32]

SWAP_TOLERANCE = 1e-9
"""Gains below this share of the start cost are rounding."""
CHUNK = 4_000_000
"""Steps between two looks at the clock: some 20 ms."""


@dataclass(frozen=True, slots=True)
class SwapResult:
    """What a search led to. `finished` is False when a budget ended it before a local optimum."""

    tree: Tree
    cost: float
    start_cost: float
    swaps: int
    finished: bool


def improve(
    overlay: Overlay,
    tree: Tree,
    sets: TerminalSets,
    weight: Weight,
    *,
    seconds: float | None = None,
    swaps: int | None = None,
    check: bool = False,
) -> SwapResult:
    """Exchange tree links for other links of the overlay until none gains, or a budget ends.

    `weight` is hops, mean_price or latency. `seconds` is looked at every few hundredths, and makes the
    result depend on the machine; without it the same input gives the same tree. With `check` every
    predicted gain is compared with the recomputed cost, and an AssertionError tells of a difference.
    Raises `OverlayError` when the tree does not span the overlay or has links that are not the overlay's.
    """
    lengths = closed(link_lengths(overlay, weight), np.float64)
    if len(tree) != len(overlay):
        raise OverlayError(
            f"the tree joins {len(tree)} of {len(overlay)} brokers. Start from a spanning tree."
        )
    before = measured(overlay, tree, weight)
    start_cost = cost = before.total(sets)
    search = _Search(overlay, before, sets, lengths, SWAP_TOLERANCE * start_cost)
    deadline = None if seconds is None else perf_counter() + seconds
    while not search.finished and (swaps is None or search.swaps < swaps):
        if deadline is not None and perf_counter() >= deadline:
            break
        left = np.iinfo(np.int64).max if swaps is None else swaps - search.swaps
        gain = search.run(1 if check else left)
        if check:
            now = measured(overlay, search.tree(), weight).total(sets)
            if not abs(cost - gain - now) <= 1e-6 * max(1.0, start_cost):
                raise AssertionError(f"a gain of {gain} was predicted, {cost - now} came of it")
            cost = now
    found = search.tree()
    return SwapResult(
        found, measured(overlay, found, weight).total(sets), start_cost, search.swaps, search.finished
    )


class SwapInput(NamedTuple):
    """What a search reads: the overlay's links, and the terminal sets, by set and by broker."""

    start: SmallInts
    neighbor: SmallInts
    link: SmallInts
    ends: SmallInts
    length: Floats
    first: Ints
    weight: Floats
    at_broker: Ints
    set_at: SmallInts


class SwapTree(NamedTuple):
    """The tree that a search changes, kept from call to call.

    `above` is the length of the link to the parent. `node` has the terminals, each set in the order of
    positions when it was last looked at. `state`: the next broker, links tried in vain since a swap, swaps,
    trees measured.
    """

    parent: SmallInts
    above: Floats
    node: SmallInts
    state: Ints


class SwapMemory(NamedTuple):
    """Arrays that `_search` fills: made outside because each one made there takes long to compile."""

    # order, and the range of positions of each broker: see MeasuredTree
    order: SmallInts
    tin: SmallInts
    tout: SmallInts
    # logarithms and table of `meeting`, depth by position
    log: SmallInts
    table: Table
    depth: Floats
    # positions of the terminals, ascending in a set, and the tree they are of
    place: SmallInts
    version: Ints
    # how often a set was met on the smaller side
    seen: SmallInts
    # the sets that use the link, and which of their terminals are below it
    cut: SmallInts
    begin: Ints
    end: Ints
    # what `_distances` sums, and its result
    touch: Floats
    inside: Floats
    near: Floats
    # no distances: `_replacement` then finds the shortest link
    flat: Floats

    @classmethod
    def of(cls, nodes: int, sets: int, terminals: int) -> "SwapMemory":
        """Room for a tree of so many brokers."""
        small, long, real = np.int32, np.int64, np.float64
        return cls(
            order=np.empty(nodes, small),
            tin=np.empty(nodes, small),
            tout=np.empty(nodes, small),
            log=np.empty(nodes + 2, small),
            table=np.empty((nodes.bit_length(), nodes), small),
            depth=np.empty(nodes, real),
            place=np.empty(terminals, small),
            version=np.zeros(sets, long),
            seen=np.zeros(sets, small),
            cut=np.empty(sets, small),
            begin=np.empty(sets, long),
            end=np.empty(sets, long),
            touch=np.empty(nodes, real),
            inside=np.empty(nodes, real),
            near=np.empty(nodes, real),
            flat=np.zeros(nodes, real),
        )


class _Search:
    """The arrays that one search works on, kept between chunks."""

    def __init__(
        self, overlay: Overlay, start: MeasuredTree, sets: TerminalSets, lengths: Floats, tolerance: float
    ) -> None:
        nodes = len(overlay)
        self.root = start.tree.root
        self.swaps = 0
        self.finished = False
        # Sets of one broker, or of no weight, cost nothing on any tree.
        used = np.flatnonzero((np.diff(sets.start) > 1) & (sets.weight > 0))
        costly = sets.take(used)
        rows = np.repeat(np.arange(len(used), dtype=np.int32), np.diff(costly.start))
        by_broker = np.argsort(costly.node, kind="stable")
        at_broker = np.concatenate(([0], np.cumsum(np.bincount(costly.node, minlength=nodes))))
        adjacency = overlay.adjacency
        self._given = SwapInput(
            start=adjacency.start,
            neighbor=adjacency.neighbor,
            link=adjacency.link,
            ends=closed(overlay.ends, np.int32),
            length=lengths,
            first=closed(costly.start, np.int64),
            weight=closed(costly.weight, np.float64),
            at_broker=closed(at_broker, np.int64),
            set_at=closed(rows[by_broker], np.int32),
        )
        parent, above = start.tree.parent.copy(), start.length.copy()
        self._tree = SwapTree(parent, above, costly.node.copy(), np.zeros(4, dtype=np.int64))
        self._memory = SwapMemory.of(nodes, len(used), len(costly.node))
        self._tolerance = tolerance

    def run(self, swaps: int) -> float:
        """Search until so many swaps are made, no swap gains or the chunk is used up; the gain."""
        tree = self._tree
        gain = _search(self.root, tree, self._given, self._memory, self._tolerance, swaps, CHUNK)
        self.swaps = int(tree.state[2])
        self.finished = bool(tree.state[1] >= len(tree.parent) - 1)
        return float(gain)

    def tree(self) -> Tree:
        """The tree as it is now."""
        return Tree.of_parents(self._tree.parent, self.root)


@compiled
def _search(
    root: Int,
    tree: SwapTree,
    given: SwapInput,
    memory: SwapMemory,
    tolerance: float,
    swaps: Int,
    chunk: Int,
) -> float:
    """Try tree links in rotation and swap those that gain; the summed gain. See the module.

    A tree link is named by its lower broker.
    """
    parent, above, node, state = tree.parent, tree.above, tree.node, tree.state
    start, neighbor, link, length = given.start, given.neighbor, given.link, given.length
    ends, first = given.ends, given.first
    order, tin, tout, near, flat = memory.order, memory.tin, memory.tout, memory.near, memory.flat
    log, table, depth = memory.log, memory.table, memory.depth
    place, version, cut = memory.place, memory.version, memory.cut
    nodes, levels = len(parent), len(table)
    work, gained, stale = np.int64(0), 0.0, True
    while state[1] < nodes - 1 and swaps > 0 and work < chunk:
        if stale:
            preorder(parent, root, order, tin, tout)
            fill_meetings(order, parent, tin, table, log)
            depths(order, parent, tin, above, depth)
            state[3] += 1
            work += nodes * levels
            stale = False
        v = np.int64(state[0])
        state[0] = (v + 1) % nodes
        if v == root:
            continue
        state[1] += 1
        low, high = np.int64(tin[v]), np.int64(tout[v])
        upper = np.int64(table[0, low])
        other, shortest = _replacement(
            low, high, upper, 1.0, start, neighbor, link, order, tin, flat, length
        )
        if other < 0:
            continue
        used, stamped = _sets_across(low, high, given, memory)
        work += stamped + min(high - low, nodes - high + low)
        if used == 0:
            continue
        for i in range(used):
            s = cut[i]
            if version[s] != state[3]:
                version[s] = state[3]
                _place(first[s], first[s + 1], node, tin, order, place)
        total, bound = _split(used, low, high, upper, given, memory)
        work += 16 * used
        if bound + total * (above[v] - shortest) <= tolerance:
            continue
        _distances(used, low, total, above, given, memory)
        work += 4 * nodes + 16 * used
        other, cheapest = _replacement(
            low, high, upper, total, start, neighbor, link, order, tin, near, length
        )
        gain = near[low] + near[upper] + total * above[v] - cheapest
        if gain <= tolerance:
            continue
        gained += gain
        a, b = np.int64(ends[other, 0]), np.int64(ends[other, 1])
        if not low <= tin[a] < high:
            a, b = b, a
        _hang(v, a, b, length[other], parent, above)
        state[1] = 0
        state[2] += 1
        swaps -= 1
        stale = True
    return gained


@compiled
def _replacement(
    low: Int,
    high: Int,
    upper: Int,
    total: float,
    start: SmallInts,
    neighbor: SmallInts,
    link: SmallInts,
    order: SmallInts,
    tin: SmallInts,
    near: Floats,
    length: Floats,
) -> tuple[int, float]:
    """The link across the cut, but for the tree's own, of least near[a] + near[b] + total * length; or -1.

    Below the cut are the positions low..high - 1; `upper` is the parent of `low`. Searched from the
    side of fewer brokers. Ties to the smaller id.
    """
    nodes = len(order)
    below = 2 * (high - low) <= nodes
    best, least = np.int64(-1), np.inf
    for i in range(high - low if below else nodes - high + low):
        at = low + i if below else (i if i < low else i + high - low)
        u = order[at]
        for k in range(start[u], start[u + 1]):
            to = tin[neighbor[k]]
            if (low <= to < high) == below:
                continue
            if (at == low and to == upper) or (at == upper and to == low):
                continue
            cost = near[at] + near[to] + total * length[link[k]]
            if cost < least or (cost == least and link[k] < best):
                least = cost
                best = np.int64(link[k])
    return best, least  # type: ignore[return-value]


@compiled
def _sets_across(low: Int, high: Int, given: SwapInput, memory: SwapMemory) -> tuple[int, int]:
    """Fill `cut` with the sets that have terminals on both sides; how many, and how many terminals seen."""
    first, at_broker, set_at = given.first, given.at_broker, given.set_at
    order, seen, cut = memory.order, memory.seen, memory.cut
    nodes = len(order)
    below = 2 * (high - low) <= nodes
    met, stamped = 0, 0
    for i in range(high - low if below else nodes - high + low):
        u = order[low + i if below else (i if i < low else i + high - low)]
        for k in range(at_broker[u], at_broker[u + 1]):
            s = set_at[k]
            stamped += 1
            if seen[s] == 0:
                cut[met] = s
                met += 1
            seen[s] += 1
    used = 0
    for i in range(met):
        s = cut[i]
        if seen[s] < first[s + 1] - first[s]:
            cut[used] = s
            used += 1
        seen[s] = 0
    return used, stamped


@compiled
def _place(
    begin: Int, end: Int, node: SmallInts, tin: SmallInts, order: SmallInts, place: SmallInts
) -> None:
    """Fill a set's positions, ascending, and bring its terminals into that order for the next time."""
    part = place[begin:end]
    for i in range(end - begin):
        part[i] = tin[node[begin + i]]
    sort_small(part, end - begin)
    for i in range(end - begin):
        node[begin + i] = order[part[i]]


@compiled
def _split(
    used: Int, low: Int, high: Int, upper: Int, given: SwapInput, memory: SwapMemory
) -> tuple[float, float]:
    """Fill which terminals are below the cut; the weight of the sets, and how far off the link is.

    The second is the sum of weight times the distances from the two ends to the sub-trees of their sides:
    no replacement gains more than that and the difference of the lengths. Above the cut the distance is
    half of d(a, p) + d(p, b) - d(a, b), with a and b the terminals next to it around the tree.
    """
    first, weight = given.first, given.weight
    cut, place, begin, end = memory.cut, memory.place, memory.begin, memory.end
    depth, table, log = memory.depth, memory.table, memory.log
    total, off = 0.0, 0.0
    for i in range(used):
        s = cut[i]
        i0, i1 = first[s], first[s + 1]
        j = i0
        while j < i1 and place[j] < low:
            j += 1
        k = j
        while k < i1 and place[k] < high:
            k += 1
        begin[i] = j
        end[i] = k
        a = np.int64(place[j - 1] if j > i0 else place[i1 - 1])
        b = np.int64(place[k] if k < i1 else place[i0])
        down = depth[meeting(np.int64(place[j]), np.int64(place[k - 1]), table, log)] - depth[low]
        up = depth[upper] - depth[meeting(min(a, upper), max(a, upper), table, log)]
        up -= depth[meeting(min(b, upper), max(b, upper), table, log)]
        up += depth[meeting(min(a, b), max(a, b), table, log)]
        total += weight[s]
        off += weight[s] * (down + up)
    return total, off


@compiled
def _distances(
    used: Int, low: Int, total: float, above: Floats, given: SwapInput, memory: SwapMemory
) -> None:
    """Fill `near`: per position, the weighted distances to the sub-trees of all cut sets on its side.

    Going down a link, a set comes nearer by its length when it is wholly below, stays when it is on both
    sides, and is farther otherwise. `touch` sums to the weight of the sets with a terminal below, since a
    set of k terminals there has k - 1 meetings of neighbours there; `inside` to those wholly below.
    """
    first, weight = given.first, given.weight
    cut, place, begin, end = memory.cut, memory.place, memory.begin, memory.end
    order, depth, table, log = memory.order, memory.depth, memory.table, memory.log
    touch, inside, near = memory.touch, memory.inside, memory.near
    nodes = len(order)
    for i in range(nodes):
        touch[i] = 0.0
        inside[i] = 0.0
    near_root, near_low = 0.0, 0.0
    for i in range(used):
        s = cut[i]
        w = weight[s]
        i0, i1, j, k = first[s], first[s + 1], begin[i], end[i]
        before = np.int64(place[j])
        touch[before] += w
        for at in range(j + 1, k):
            here = np.int64(place[at])
            touch[here] += w
            touch[meeting(before, here, table, log)] -= w
            before = here
        top = meeting(np.int64(place[j]), before, table, log)
        inside[top] += w
        near_low += w * (depth[top] - depth[low])
        head = i0 if j > i0 else k
        before = np.int64(place[head])
        touch[before] += w
        for at in range(head + 1, i1):
            if j <= at < k:
                continue
            here = np.int64(place[at])
            touch[here] += w
            touch[meeting(before, here, table, log)] -= w
            before = here
        top = meeting(np.int64(place[head]), before, table, log)
        inside[top] += w
        near_root += w * depth[top]
    for i in range(nodes - 1, 0, -1):
        if i != low:
            touch[table[0, i]] += touch[i]
            inside[table[0, i]] += inside[i]
    near[0] = near_root
    for i in range(1, nodes):
        near[i] = near[table[0, i]] + above[order[i]] * (total - touch[i] - inside[i])
        if i == low:
            near[i] = near_low


@compiled
def _hang(v: Int, a: Int, b: Int, length: float, parent: SmallInts, above: Floats) -> None:
    """Take `v` from its parent and hang its sub-tree from `b` by its broker `a`: the path a..v turns."""
    at, to = a, b
    by: Any = length
    while True:
        old, old_length = parent[at], above[at]
        parent[at] = to
        above[at] = by
        if at == v:
            break
        to, by, at = at, old_length, np.int64(old)
