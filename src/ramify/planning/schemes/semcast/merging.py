"""Merging channels that partly overlap: what both carry goes once, to the destinations of both.

Problem    Hierarchies that share messages send them twice. One channel for both would send what only one of
           them wants to everybody.
Idea       Two channels become three: what both admit, to all destinations, and two noise channels with what
           only one admits, to its own. With rates r and edges e that saves
           r_both * (e_i + e_j - e_ij). The pair that saves most is merged, then the next, until none saves
           anything or a budget ends. `noise="never"` makes one channel of both instead, no noise (the
           paper's SemCast-Merge); `noise="merge"` lets noise channels merge on (SemCast-NoiseMerge).
Guarantee  At every moment the channels that serve a hierarchy have disjoint expressions whose union is the
           hierarchy's own: every message reaches every destination that wants it exactly once. The merges
           are the same as if all pairs were priced in every step.
Cost       Pairs are found through the messages that they share: O(sum over messages of the square of the
           channels) once; a channel's share of that per merge, and one more for each channel whose best
           partner is gone. Edges are estimated only for pairs that may beat what is known.
Departures The common channel goes to the UNION of destinations: the printed intersection leaves some
           without. The expressions of the channels that serve a hierarchy name at most `most_terms`
           hierarchies: what brokers evaluate and checks must decide grows with it. The common channel keeps
           the rendezvous point of the side with the higher rate.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ramify.planning.demand.overlap import Statistics
from ramify.planning.demand.overlap_kernels import enlist
from ramify.planning.plans.plan import Expression, Match
from ramify.planning.schemes.scheme import Progress, silent
from ramify.planning.schemes.semcast.expressions import common, hierarchy, noise, terms
from ramify.planning.schemes.semcast.hierarchies import EdgeEstimate, Hierarchies, Reach
from ramify.planning.schemes.semcast.kernels import (
    ChannelColumns,
    MergeCosts,
    MergeMemory,
    best_of_rows,
    merge_rows,
)

__all__ = ["Draft", "MergedChannels", "Noise", "merge_channels", "merges"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

Noise = Literal["apart", "merge", "never"]
"""What becomes of what two merged channels do not share."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A channel before it has a tree.

    Attributes
    ----------
    expression    over hierarchies: see `expressions`
    serves        the hierarchies that it carries messages to, ascending
    point         its rendezvous point
    reach         the brokers of its destinations
    bits          the sampled messages that it admits
    rate          their weight
    edges         what its tree is estimated to take
    """

    expression: Expression
    serves: tuple[int, ...]
    point: int
    reach: Reach
    bits: Words
    rate: float
    edges: float


@dataclass(frozen=True, slots=True)
class MergedChannels:
    """The channels that merging ends with, how many merges made them, whether a budget ended it."""

    channels: tuple[Draft, ...]
    merges: int
    cut_short: bool


def merge_channels(
    hierarchies: Hierarchies,
    statistics: Statistics,
    estimate: EdgeEstimate,
    *,
    noise: Noise = "apart",
    iterations: int | None = None,
    seconds: float | None = None,
    most_terms: int = 5,
    progress: Progress = silent,
) -> MergedChannels:
    """Merge while it saves: see the module. Deterministic unless `seconds` ends it."""
    work = _Merger(hierarchies, statistics, estimate, noise, most_terms)
    ends = None if seconds is None else monotonic() + seconds
    count, cut = 0, False
    while True:
        if count == iterations or (ends is not None and monotonic() >= ends):
            cut = work.saves()
            break
        if not work.step():
            break
        count += 1
        if count % 64 == 0:
            progress(min(0.99, count / max(len(hierarchies), 1)), "merging channels")
    return MergedChannels(work.channels(), count, cut)


def merges(
    hierarchies: Hierarchies,
    statistics: Statistics,
    estimate: EdgeEstimate,
    *,
    noise: Noise = "apart",
    most_terms: int = 5,
) -> Iterator[tuple[Draft, ...]]:
    """The channels before the first merge, then after each one: to look on."""
    work = _Merger(hierarchies, statistics, estimate, noise, most_terms)
    yield work.channels()
    while work.step():
        yield work.channels()


class _Merger:
    """Channels in arrays that grow; for each that may merge, its best partner."""

    def __init__(
        self,
        hierarchies: Hierarchies,
        statistics: Statistics,
        estimate: EdgeEstimate,
        noise: Noise,
        most_terms: int,
    ) -> None:
        self._hierarchies, self._statistics, self._estimate = hierarchies, statistics, estimate
        self._noise, self._most = noise, most_terms
        self._low = np.empty((2, len(estimate.distance)))
        self._costs = MergeCosts(estimate.rank, estimate.distance, noise != "never", most_terms)
        self._drafts: list[Draft] = []
        self._gone: set[int] = set()
        self._live = np.zeros(0, dtype=np.int32)
        self._pool = _Pool(statistics, len(estimate.rank), len(hierarchies))
        self._entangled = [{h} for h in range(len(hierarchies))]
        for h, members in enumerate(hierarchies.members):
            reach, point = hierarchies.reach[h], int(hierarchies.point[h])
            bits = np.bitwise_or.reduce(statistics.bits[list(members)], axis=0)
            self._add(hierarchy(h), (h,), point, reach, bits)
        # a channel that carries nothing shares nothing
        self._live = np.array([c for c, each in enumerate(self._drafts) if each.rate > 0], dtype=np.int32)
        self._note_terms(range(len(self._drafts)))
        for c in self._live.tolist():
            self._pool.enlist(c)
        self._scan(self._live)

    def channels(self) -> tuple[Draft, ...]:
        """Those there are now, oldest first."""
        return tuple(each for c, each in enumerate(self._drafts) if c not in self._gone)

    def saves(self) -> bool:
        """Whether a further merge would save anything."""
        return self._next() is not None

    def step(self) -> bool:
        """Merge the pair that saves most; False when none saves anything."""
        pair = self._next()
        if pair is not None:
            self._merge(*pair)
        return pair is not None

    def _next(self) -> tuple[int, int] | None:
        while (c := best_of_rows(self._live, self._pool.best)) >= 0:
            other = int(self._pool.partner[c])
            if self._few(c, other):
                return min(c, other), max(c, other)
            self._scan([c])  # it has become entangled with more since
        return None

    def _few(self, a: int, b: int) -> bool:
        both = self._pool.terms[a] | self._pool.terms[b]
        return int(np.bitwise_count(both).sum()) <= self._most

    def _merge(self, a: int, b: int) -> None:
        one, other = self._drafts[a], self._drafts[b]
        self._gone |= {a, b}
        lead = one if one.rate >= other.rate else other
        reach = self._estimate.unite(one.reach, other.reach)
        serves = tuple(sorted({*one.serves, *other.serves}))
        if self._noise == "never":
            united = Match(tuple(sorted(terms(one.expression) | terms(other.expression))))
            fresh = [self._add(united, serves, lead.point, reach, one.bits | other.bits)]
        else:
            shared = common(one.expression, other.expression)
            fresh = [self._add(shared, serves, lead.point, reach, one.bits & other.bits)]
            for mine, theirs in ((one, other), (other, one)):
                left = noise(mine.expression, theirs.expression)
                made = self._add(left, mine.serves, mine.point, mine.reach, mine.bits & ~theirs.bits)
                if self._noise == "merge" and self._drafts[made].rate > 0:
                    fresh.append(made)
            self._entangle(serves, terms(shared))
        stay = self._live[(self._live != a) & (self._live != b)]
        self._live = np.concatenate((stay, np.array(fresh, dtype=np.int32)))
        self._pool.alive[[a, b]] = 0
        for c in fresh:
            self._pool.enlist(c)
        self._note_terms(fresh)
        partner = self._pool.partner[self._live]
        self._scan(self._live[(partner == a) | (partner == b)])
        self._scan(fresh, spread=True)

    def _scan(self, rows: npt.ArrayLike, *, spread: bool = False) -> None:
        """Find the best merge of some channels; with `spread`, the others learn of it too."""
        pool, memory = self._pool, MergeMemory(*self._pool.scratch, self._low)
        merge_rows(np.asarray(rows, dtype=np.int32), pool.columns, self._costs, memory, spread)

    def _entangle(self, serves: tuple[int, ...], named: frozenset[int]) -> None:
        touched = set(serves)
        for h in serves:
            self._entangled[h] |= named
        if self._noise == "merge":  # other live channels may serve the same hierarchies
            stale = [int(c) for c in self._live if not touched.isdisjoint(self._drafts[c].serves)]
            self._note_terms(stale)

    def _note_terms(self, rows: "range | list[int]") -> None:
        for c in rows:
            named = set().union(*(self._entangled[h] for h in self._drafts[c].serves))
            self._pool.set_terms(c, set() if self._noise == "never" else named)

    def _add(
        self, expression: Expression, serves: tuple[int, ...], point: int, reach: Reach, bits: Words
    ) -> int:
        rate = float(self._statistics.weigh(bits[None, :])[0])
        edges = self._estimate.edges(reach, point)
        self._drafts.append(Draft(expression, serves, point, reach, bits, rate, edges))
        return self._pool.append(self._drafts[-1])


class _Pool:
    """The same channels as arrays, for kernels. Rows and entries grow by doubling."""

    def __init__(self, statistics: Statistics, orders: int, hierarchies: int) -> None:
        room = max(16, 3 * hierarchies)
        self._weight = statistics.weight
        self._count = self._entries = 0
        self._bits = np.zeros((room, statistics.bits.shape[1]), dtype=np.uint64)
        self._head = np.full(len(self._weight), -1, dtype=np.int32)
        self._entry = np.zeros((4 * room, 2), dtype=np.int32)
        self.terms = np.zeros((room, (hierarchies + 63) // 64), dtype=np.uint64)
        self.alive = np.zeros(room, dtype=np.uint8)
        self._rate, self._edges, self.best = (np.zeros(room) for _ in range(3))
        self._point, self.partner = np.zeros(room, np.int32), np.full(room, -1, np.int32)
        self._start = np.zeros(room + 1, dtype=np.int64)
        self._member = np.zeros(4 * room, dtype=np.int32)
        self._near = np.zeros((4 * room, orders))
        self.scratch = np.full(room, -1.0), np.zeros(room, dtype=np.int64)

    @property
    def columns(self) -> ChannelColumns:
        """The arrays as they are now: one that grows is another array."""
        return ChannelColumns(
            alive=self.alive,
            bits=self._bits,
            weight=self._weight,
            head=self._head,
            entry=self._entry,
            rate=self._rate,
            edges=self._edges,
            point=self._point,
            start=self._start,
            member=self._member,
            near=self._near,
            terms=self.terms,
            best=self.best,
            partner=self.partner,
        )

    def append(self, draft: Draft) -> int:
        at = self._count
        if at == len(self._rate):
            self._widen()
        first = int(self._start[at])
        last = first + len(draft.reach.brokers)
        self._member, self._near = (_with_room(part, last) for part in (self._member, self._near))
        self._bits[at], self._rate[at], self._edges[at] = draft.bits, draft.rate, draft.edges
        self._point[at] = draft.point
        self._member[first:last] = draft.reach.brokers
        self._near[first:last] = draft.reach.near
        self._start[at + 1] = last
        self._count += 1
        return at

    def enlist(self, at: int) -> None:
        """From now on others find the channel by its messages."""
        wanted = self._entries + int(np.bitwise_count(self._bits[at]).sum())
        self._entry = _with_room(self._entry, wanted)
        self._entries = enlist(at, self._bits, self._head, self._entry, self._entries)
        self.alive[at] = 1

    def set_terms(self, at: int, named: set[int]) -> None:
        self.terms[at] = 0
        for h in named:
            self.terms[at, h >> 6] |= np.uint64(1 << (h & 63))

    def _widen(self) -> None:
        more = 2 * len(self._rate)
        self._bits, self.terms, self.alive = (
            _with_room(part, more) for part in (self._bits, self.terms, self.alive)
        )
        self._rate, self._edges, self.best = (
            _with_room(part, more) for part in (self._rate, self._edges, self.best)
        )
        self._point, self.partner = (_with_room(part, more) for part in (self._point, self.partner))
        self._start = _with_room(self._start, more + 1)
        self.scratch = np.full(more, -1.0), np.zeros(more, dtype=np.int64)


def _with_room(part: Any, rows: int) -> Any:
    """The same rows with room for more, twice as much where any is needed; new ones hold zeros."""
    if rows <= len(part):
        return part
    grown = np.zeros((max(rows, 2 * len(part)), *part.shape[1:]), dtype=part.dtype)
    grown[: len(part)] = part
    return grown
