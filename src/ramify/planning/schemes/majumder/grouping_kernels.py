"""Compiled loops of grouping: agglomeration by document overlap, merging of groups, bounds on gains, trees.

Owns the inner loops only: arrays in, arrays filled. `grouping.py` and `compute_tree.py` own what they mean.
"""

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, Ints, SmallInts, compiled

__all__ = [
    "add_links",
    "count_shared",
    "distances_on_tree",
    "hang_rest",
    "merge_by_overlap",
    "merge_documents",
    "shared_minima",
    "take_over",
    "unite_rows",
]

Floats = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int32]  # of two dimensions


@compiled
def count_shared(start: Ints, member: SmallInts, worth: Ints, clusters: Int, shared: Ints) -> None:
    """Fill how many documents each pair of clusters shares; document d is of `member[start[d]:...]`.

    `shared` holds zeros, one per pair i < j, row by row: see `_row`. O(sum of squared row lengths).
    """
    for d in range(len(start) - 1):
        for x in range(start[d], start[d + 1]):
            row = _row(np.int64(member[x]), clusters)
            for y in range(x + 1, start[d + 1]):
                shared[row + member[y]] += worth[d]


@compiled
def _row(i: Int, clusters: Int) -> int:
    """Where row i of a table of pairs begins, less i + 1: pair (i, j) is at `_row(i) + j`."""
    return i * (2 * clusters - i - 1) // 2 - i - 1  # type: ignore[no-any-return]


@compiled
def _nearest(
    k: Int, at: Int, live: SmallInts, count: Int, size: Ints, shared: Ints, clusters: Int
) -> tuple[int, float]:
    """The most similar of the live clusters after place `at`, where k is; ties to the smallest; or -1."""
    best, found = -1.0, np.int64(-1)
    row, own = _row(k, clusters), size[k]
    for x in range(at + 1, count):
        other = np.int64(live[x])
        both = shared[row + other]
        union = own + size[other] - both
        if both > best * union:
            alike = both / union if union > 0 else 0.0
            if alike > best:
                best = alike
                found = other
    return found, best  # type: ignore[return-value]


@compiled
def merge_by_overlap(
    start: Ints,
    member: SmallInts,
    worth: Ints,
    head: Ints,
    following: Ints,
    size: Ints,
    shared: Ints,
    merges: Pairs,
    similarity: Floats,
) -> int:
    """Fill the merges of clusters by largest |Di & Dj| / |Di | Dj| until one is left; rows read again.

    A pair (i, j) with i < j becomes cluster i. Ties go to the smallest i, then the smallest j. Each cluster
    keeps its nearest among the later ones; after a merge those are searched again whose nearest died or
    went away. (Merging can bring a cluster nearer to others than both its parts were, so chains of
    nearest neighbours would go wrong.) What a merged cluster shares with another is what its parts shared,
    less the documents of all three, which are found by going through the documents of j.

    `member` (-1: gone), `size` and `shared` are overwritten. `head[k]` is the first place of cluster k in
    `member` and `following` the next one of the same cluster, -1 at the end.
    """
    clusters = len(size)
    count = clusters
    document = np.empty(len(member), np.int32)
    for d in range(len(start) - 1):
        for x in range(start[d], start[d + 1]):
            document[x] = d
    live = np.empty(count, np.int32)
    nearest = np.empty(count, np.int64)
    alike = np.empty(count, np.float64)
    again = np.empty(count, np.int32)
    twice = np.zeros(count, np.int64)
    for at in range(count):
        live[at] = at
    for at in range(count):
        nearest[at], alike[at] = _nearest(at, at, live, count, size, shared, clusters)
    rescans = 0
    for step in range(len(merges)):
        i: Int = np.int64(live[0])
        for x in range(1, count):
            if alike[live[x]] > alike[i]:
                i = np.int64(live[x])
        j: Int = nearest[i]
        merges[step, 0] = i
        merges[step, 1] = j
        similarity[step] = alike[i]
        size[i] += size[j] - shared[_row(i, clusters) + j]
        _move_documents(i, j, start, member, worth, document, head, following, twice)
        kept = 0
        todo = 0
        for x in range(count):
            k: Int = np.int64(live[x])
            if k == j:
                continue
            live[kept] = k
            kept += 1
            if k == i:
                again[todo] = kept - 1
                todo += 1
                continue
            mine = _row(min(i, k), clusters) + max(i, k)
            shared[mine] += shared[_row(min(j, k), clusters) + max(j, k)] - twice[k]
            twice[k] = 0
            lost = nearest[k] == i or nearest[k] == j
            if k < i:
                union = size[k] + size[i] - shared[mine]
                now = shared[mine] / union if union > 0 else 0.0
                # The nearest was the first of equals: what is before i is strictly less alike than it was.
                if now > alike[k] or (now == alike[k] and (lost or i < nearest[k])):
                    nearest[k] = i
                    alike[k] = now
                    lost = False
            if lost:
                again[todo] = kept - 1
                todo += 1
        count = kept
        for y in range(todo):
            k = np.int64(live[again[y]])
            nearest[k], alike[k] = _nearest(k, np.int64(again[y]), live, count, size, shared, clusters)
        rescans += todo
    return rescans


@compiled
def _move_documents(
    i: Int,
    j: Int,
    start: Ints,
    member: SmallInts,
    worth: Ints,
    document: SmallInts,
    head: Ints,
    following: Ints,
    twice: Ints,
) -> None:
    """Give the documents of j to i; add to `twice[k]` those of i, j and k. O(the rows of j's documents)."""
    at = head[j]
    while at >= 0:
        after = following[at]
        d = document[at]
        common = False
        for x in range(start[d], start[d + 1]):
            common = common or member[x] == i
        if common:
            member[at] = -1
            for x in range(start[d], start[d + 1]):
                if member[x] >= 0 and member[x] != i:
                    twice[member[x]] += worth[d]
        else:
            member[at] = i
            following[at] = head[i]
            head[i] = at
        at = after
    head[j] = -1


@compiled
def merge_documents(
    a: Ints,
    a_set: Ints,
    b: Ints,
    b_set: Ints,
    pattern: Ints,
    chosen: Ints,
    shared: Ints,
    a_shared: Ints,
    b_shared: Ints,
) -> tuple[int, int]:
    """Merge two ascending lists of patterns with their sets; how many there are, and how many in both.

    `shared` are the places in the result of patterns in both lists, with the two sets beside.
    """
    i, j, count, common = 0, 0, 0, 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] < b[j]):
            pattern[count] = a[i]
            chosen[count] = a_set[i]
            i += 1
        elif i == len(a) or b[j] < a[i]:
            pattern[count] = b[j]
            chosen[count] = b_set[j]
            j += 1
        else:
            pattern[count] = a[i]
            shared[common] = count
            a_shared[common] = a_set[i]
            b_shared[common] = b_set[j]
            common += 1
            i += 1
            j += 1
        count += 1
    return count, common


@compiled
def shared_minima(
    group: Int,
    pattern: Ints,
    bound: Floats,
    weight: Floats,
    start: Ints,
    member: SmallInts,
    member_bound: Floats,
    total: Floats,
) -> None:
    """Fill per group the sum over documents shared with `group` of weight times the smaller bound.

    Pattern p is of groups `member[start[p]:start[p + 1]]` (-1: gone), each with the bound of its set.
    """
    for g in range(len(total)):
        total[g] = 0.0
    for i in range(len(pattern)):
        p = pattern[i]
        for at in range(start[p], start[p + 1]):
            g = member[at]
            if g >= 0 and g != group:
                total[g] += weight[p] * min(bound[i], member_bound[at])


@compiled
def take_over(
    group: Int,
    gone: Int,
    pattern: Ints,
    bound: Floats,
    start: Ints,
    member: SmallInts,
    member_bound: Floats,
) -> None:
    """Enter the merged group and its bounds at its patterns, once each, in place of its two parts."""
    for i in range(len(pattern)):
        p = pattern[i]
        entered = False
        for at in range(start[p], start[p + 1]):
            if member[at] == group or member[at] == gone:
                member[at] = -1 if entered else group
                member_bound[at] = bound[i]
                entered = True


@compiled
def distances_on_tree(
    order: SmallInts, parent: SmallInts, length: Floats, demand: Floats, total: Floats
) -> None:
    """Fill per broker the sum over brokers of demand times their distance on a spanning tree. O(n).

    Going down a link, what is below comes nearer by its length and all else is farther.
    """
    nodes = len(order)
    below = demand.copy()
    all_demand = 0.0
    away = 0.0
    for i in range(nodes - 1, 0, -1):
        v = order[i]
        below[parent[v]] += below[v]
        away += below[v] * length[v]
    for i in range(nodes):
        all_demand += demand[i]
    total[order[0]] = away
    for i in range(1, nodes):
        v = order[i]
        total[v] = total[parent[v]] + length[v] * (all_demand - 2 * below[v])


@compiled
def unite_rows(row_start: Ints, row_node: SmallInts, a: Ints, b: Ints, start: Ints, node: SmallInts) -> int:
    """Fill the unions of rows of ascending nodes, pair by pair; how many nodes they have in all."""
    used = 0
    start[0] = 0
    for k in range(len(a)):
        i, i_end = row_start[a[k]], row_start[a[k] + 1]
        j, j_end = row_start[b[k]], row_start[b[k] + 1]
        while i < i_end or j < j_end:
            if j == j_end or (i < i_end and row_node[i] < row_node[j]):
                node[used] = row_node[i]
                i += 1
            elif i == i_end or row_node[j] < row_node[i]:
                node[used] = row_node[j]
                j += 1
            else:
                node[used] = row_node[i]
                i += 1
                j += 1
            used += 1
        start[k + 1] = used
    return used


@compiled
def add_links(tree_start: Ints, link: SmallInts, ids: Ints, weight: Floats, count: Floats) -> None:
    """Add the weight of each set to the links of its Steiner tree."""
    for k in range(len(ids)):
        for at in range(tree_start[ids[k]], tree_start[ids[k] + 1]):
            count[link[at]] += weight[k]


@compiled
def hang_rest(
    inside: SmallInts,
    start: SmallInts,
    neighbor: SmallInts,
    weight: Floats,
    near: Floats,
    parent: SmallInts,
    queue: SmallInts,
) -> None:
    """Hang brokers with parent -2 from the others by shortest paths; `near` is how far from `inside`.

    A broker hangs from the first one met that lies on a shortest path to it; links for nothing, too. The
    tolerance is for sums in another order.
    """
    for i in range(len(inside)):
        queue[i] = inside[i]
    head, tail = 0, len(inside)
    while head < tail:
        u = queue[head]
        head += 1
        for k in range(start[u], start[u + 1]):
            v = neighbor[k]
            if parent[v] == -2 and near[u] + weight[k] <= near[v] * (1 + 1e-9):
                parent[v] = u
                queue[tail] = v
                tail += 1
