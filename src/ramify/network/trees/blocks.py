"""Biconnected blocks of an overlay, and Steiner problems cut along them.

A block is a largest part that no single broker separates; a bridge is a block of one link. Blocks meet in
articulation brokers and form a tree (Hopcroft and Tarjan, CACM 16, 1973). A tree that joins a set of
brokers must pass the articulation brokers between them, so the problem falls into one per block that lies
between its terminals. This is exact: the optimum of the whole is the sum of the optima of the parts, in
the direction of payment too, and any bounds of the parts add up to one of the whole.

Owns the blocks and the cutting; trees and bounds are in `steiner.py`.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramify.compiled import Flag, Int, Ints, SmallInts, compiled
from ramify.errors import OverlayError
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.terminals import TerminalSets

__all__ = ["Blocks", "Parts", "checked", "closed", "split"]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of a connected overlay, and the graph of them taken apart. Make it with `Blocks.of`.

    Attributes
    ----------
    link            int32[m], the block of each link, from 0
    articulation    bool[n], whether removing a broker cuts others off: it lies in several blocks
    above           int32[n], the block between a broker and broker 0, -1 for broker 0
    top             int32[blocks], the broker of each block that is nearest to broker 0
    member          int64, `block * n + broker` of every broker of every block, ascending: the nodes of the
                    graph taken apart, in which an articulation broker is there once per block
    start, neighbor compressed rows of that graph, in which no arc leads to another block
    arc             int32, the arc of `overlay.adjacency` that each arc of it stands for
    """

    overlay: Overlay
    link: npt.NDArray[np.int32]
    articulation: npt.NDArray[np.bool_]
    above: npt.NDArray[np.int32]
    top: npt.NDArray[np.int32]
    member: npt.NDArray[np.int64]
    start: npt.NDArray[np.int32]
    neighbor: npt.NDArray[np.int32]
    arc: npt.NDArray[np.int32]

    @classmethod
    def of(cls, overlay: Overlay) -> Self:
        """Find them by one depth-first search. O(n + m log m); `DisconnectedError` unless connected."""
        start, neighbor, link, _ = overlay.require_connected().adjacency
        count = len(overlay)
        block, above = np.empty(len(overlay.ends), dtype=np.int32), np.empty(count, dtype=np.int32)
        top = np.empty(len(overlay.ends), dtype=np.int32)
        top = top[: _find_blocks(start, neighbor, link, block, above, top)]
        of_arc = block[link].astype(np.int64) * count
        tail = np.repeat(np.arange(count), np.diff(start))
        member, source = np.unique(of_arc + tail, return_inverse=True)
        target = np.searchsorted(member, of_arc + neighbor)
        order = np.lexsort((target, source))
        rows = np.zeros(len(member) + 1, dtype=np.int32)
        np.cumsum(np.bincount(source, minlength=len(member)), out=rows[1:])
        blocks_of = np.bincount(member % max(count, 1), minlength=count)
        apart = (rows, target[order].astype(np.int32), order.astype(np.int32))
        parts = (block, blocks_of > 1, above, top, member, *apart)
        for part in parts:
            part.setflags(write=False)
        return cls(overlay, *parts)

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self.top)


@dataclass(frozen=True, slots=True)
class Parts:
    """Steiner problems of one block each: part `i` belongs to set `owner[i]` and lies in block `block[i]`.

    Brokers keep their numbers and each part counts what its set does. The root of a part is the broker
    through which the root of the set reaches the block. The parts of a set are together, in an order in
    which each root is that of the set or in an earlier part. A set of one broker has no parts.
    Sum what belongs together with `np.bincount(owner, weights=..., minlength=len(sets))`.
    """

    sets: TerminalSets
    owner: npt.NDArray[np.int64]
    block: npt.NDArray[np.int32]

    def apart(self, blocks: Blocks) -> TerminalSets:
        """The same parts by the nodes of the graph taken apart (`Blocks.start` and `Blocks.neighbor`)."""
        block = np.repeat(self.block, np.diff(self.sets.start)).astype(np.int64)
        node = np.searchsorted(blocks.member, block * len(blocks.overlay) + self.sets.node)
        return TerminalSets(self.sets.start, node.astype(np.int32), self.sets.weight)


def split(sets: TerminalSets, blocks: Blocks) -> Parts:
    """Cut each set into one problem per block that lies between its brokers.

    The terminals of a part are the set's own in that block and the articulation brokers that lead to
    others. O(sum of the depths of the brokers in the tree of blocks), and a sort.
    """
    nodes = len(blocks.overlay)
    inputs = (blocks.above, blocks.top, *checked(sets, nodes))
    nothing = np.empty(0, dtype=np.int64)
    count = np.zeros(2, dtype=np.int64)
    _split_sets(*inputs, False, count, nothing, nothing, nothing, nothing)
    owner, block, root = (np.empty(count[0], dtype=np.int64) for _ in range(3))
    key = np.empty(count[1], dtype=np.int64)
    _split_sets(*inputs, True, count, owner, block, root, key)
    key.sort()
    part, node = np.divmod(key, nodes + 1)
    node = np.where(node == 0, root[part], node - 1).astype(np.int32)
    start = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=len(owner))))).astype(np.int64)
    return Parts(TerminalSets(start, node, sets.weight[owner]), owner, block.astype(np.int32))


def checked(sets: TerminalSets, nodes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """`start` and `node` of the sets as kernels want them, which trust their indices. O(size).

    Read-only, whatever they were: one form, so that each kernel is compiled once. Raises `OverlayError` on
    a set without a broker and on a broker that is not one of `nodes`.
    """
    start, node = sets.start, sets.node
    if len(start) < 1 or start[0] != 0 or start[-1] != len(node) or (np.diff(start) < 1).any():
        raise OverlayError("the sets do not fit their brokers. Each needs at least its root.")
    outside = (node < 0) | (node >= nodes)
    if outside.any():
        at = int(np.argmax(outside))
        which = int(np.searchsorted(start, at, side="right")) - 1
        raise OverlayError(
            f"set {which} names broker {int(node[at])}, which is not a broker index. Use 0..{nodes - 1}."
        )
    return closed(start, np.int64), closed(node, np.int32)


def closed(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A contiguous read-only view, or a copy where the type differs."""
    view = np.ascontiguousarray(array, dtype=dtype).view()
    view.setflags(write=False)
    return view


@compiled
def _find_blocks(
    start: SmallInts,
    neighbor: SmallInts,
    link: SmallInts,
    block: SmallInts,
    above: SmallInts,
    top: SmallInts,
) -> int:
    """Number the blocks of a connected graph, return how many. Depth first from node 0."""
    nodes = len(start) - 1
    order = np.zeros(nodes, dtype=np.int32)  # 0: not seen yet
    low = np.zeros(nodes, dtype=np.int32)
    entered = np.full(nodes, -1, dtype=np.int32)  # the link by which a node was reached
    arc = start[:-1].copy()
    walk = np.zeros(nodes, dtype=np.int32)
    stack = np.empty(len(block), dtype=np.int32)
    blocks, links, depth, seen = 0, 0, min(nodes, 1), 1
    if nodes:
        order[0] = low[0] = 1
    while depth > 0:
        v = walk[depth - 1]
        if arc[v] < start[v + 1]:
            u, via = neighbor[arc[v]], link[arc[v]]
            arc[v] += 1
            if via == entered[v] or order[u] > order[v]:
                continue
            stack[links] = via
            links += 1
            if order[u] == 0:
                seen += 1
                order[u] = low[u] = seen
                entered[u] = via
                walk[depth] = u
                depth += 1
            else:
                low[v] = min(low[v], order[u])
            continue
        depth -= 1
        if depth > 0:
            w = walk[depth - 1]
            low[w] = min(low[w], low[v])
            if low[v] >= order[w]:
                while True:
                    links -= 1
                    block[stack[links]] = blocks
                    if stack[links] == entered[v]:
                        break
                top[blocks] = w
                blocks += 1
    for v in range(nodes):
        above[v] = block[entered[v]] if entered[v] >= 0 else -1
    return blocks


@compiled
def _split_sets(
    above: SmallInts,
    top: SmallInts,
    set_start: Ints,
    set_node: SmallInts,
    fill: Flag,
    count: Ints,
    owner: Ints,
    block: Ints,
    root: Ints,
    key: Ints,
) -> None:
    """Count the parts and their brokers into `count`; with `fill`, write them.

    Every broker of a set climbs the tree of blocks until it meets the way of an earlier one; the first one
    climbs to the very top, so what is above the last junction is taken off again. A key is `part * (n +
    1)`, plus the broker's number and 1 unless it is the part's root: sorted, keys are the rows.
    """
    nodes = len(above)
    wanted = np.zeros(nodes, dtype=np.int64)  # the last set that leads through a node
    given = np.zeros(nodes, dtype=np.int64)  # the last set a node is a terminal of
    below = np.zeros(nodes, dtype=np.int64)  # into how many of its blocks below a wanted node leads
    chain = np.empty(nodes, dtype=np.int32)  # the wanted nodes; first those from the root to the top
    touched = np.zeros(len(top), dtype=np.int64)
    entry = np.empty(len(top), dtype=np.int32)
    inner = np.zeros(len(top), dtype=np.int64)  # the wanted nodes of a block besides its top
    number = np.empty(len(top), dtype=np.int64)
    listed = np.empty(len(top), dtype=np.int32)
    parts, keys = 0, 0
    for s in range(len(set_start) - 1):
        stamp = s + 1
        found, blocks = 0, 0
        climb = 0
        for k in range(set_start[s], set_start[s + 1]):
            v = set_node[k]
            given[v] = stamp
            born = 0
            fresh = blocks
            while wanted[v] != stamp:
                wanted[v] = stamp
                below[v] = born
                born = 0
                chain[found] = v
                found += 1
                b = above[v]
                if b < 0:
                    break
                if touched[b] != stamp:
                    touched[b] = stamp
                    inner[b] = 0
                    entry[b] = v if k == set_start[s] else top[b]
                    number[b] = 0
                    listed[blocks] = b
                    blocks += 1
                    born = 1
                inner[b] += 1
                v = top[b]
            below[v] += born
            if k == set_start[s]:
                climb = found
                continue
            # This way was climbed upwards, and a tree comes down it.
            last = blocks - 1
            while fresh < last:
                listed[fresh], listed[last] = listed[last], listed[fresh]
                fresh += 1
                last -= 1
        open_top = _trim(above, chain, climb, given, below, inner, wanted, number, stamp)
        for i in range(blocks):
            b = listed[i]
            if number[b] < 0:
                continue
            number[b] = parts
            if fill:
                owner[parts] = s
                block[parts] = b
                root[parts] = entry[b]
            if b != open_top:
                if fill:
                    key[keys] = parts * (nodes + 1) + (0 if entry[b] == top[b] else top[b] + 1)
                keys += 1
            parts += 1
        for i in range(found):
            v = chain[i]
            if wanted[v] == stamp and above[v] >= 0 and number[above[v]] >= 0:
                b = above[v]
                if fill:
                    key[keys] = number[b] * (nodes + 1) + (0 if entry[b] == v else v + 1)
                keys += 1
    count[0] = parts
    count[1] = keys


@compiled
def _trim(
    above: SmallInts,
    chain: SmallInts,
    climb: Int,
    given: Ints,
    below: Ints,
    inner: Ints,
    wanted: Ints,
    number: Ints,
    stamp: Int,
) -> int:
    """Take off what lies above the highest junction; the block that loses only its top, or -1."""
    i = climb - 1
    while i > 0:
        v = chain[i]
        if given[v] == stamp or below[v] > 1:
            return -1
        wanted[v] = 0
        b = above[chain[i - 1]]
        if inner[b] > 1:
            return int(b)
        number[b] = -1
        i -= 1
    return -1
