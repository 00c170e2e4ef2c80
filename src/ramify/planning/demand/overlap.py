"""What was seen of profiles: which messages each matched, rates, and which of them overlap.

Owns SemCast's selectivity matrix and overlap matrix. A profile is a distinct filter, whatever the brokers
that ask for it. A message is a sampled event, or a pattern of a demand, with a weight.

Guarantee  Weights of sets are summed by ascending message, so equal sets have equal weights to the last
           bit, and a profile that matched a subset of another's messages overlaps it by exactly 1.
Cost       A bit per (profile, message). The overlap matrix takes O(sum over messages of the square of the
           profiles matched), and memory for the pairs that share anything.
Departures The overlap matrix is O[r][c] = |r & c| / |c|, as the paper's Table 1 and its use have it; the
           text of 3.2.1 prints the transpose.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.filters.filters import Filter
from ramify.errors import InputError
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.overlap_kernels import (
    count_bits,
    enlist,
    fill_overlap,
    overlap_counts,
    set_bits,
    weigh_rows,
)

__all__ = ["Overlap", "Profiles", "Statistics"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Profiles:
    """The distinct filters of the classes that have a member.

    Attributes
    ----------
    filters     one per profile, by first class
    of_class    int32[c]: the profile of each class; -1 for a vacant one
    classes     the classes of each profile, ascending
    """

    filters: tuple[Filter, ...]
    of_class: Ints
    classes: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        """How many profiles there are."""
        return len(self.filters)

    @classmethod
    def of(cls, classes: Classes) -> "Profiles":
        """Those of a table of classes. O(classes)."""
        number: dict[bytes, int] = {}
        filters: list[Filter] = []
        asked: list[list[int]] = []
        of_class = np.full(len(classes), -1, dtype=np.int32)
        for k in np.flatnonzero(~classes.vacant).tolist():
            p = number.setdefault(classes.filters[k].key, len(number))
            if p == len(filters):
                filters.append(classes.filters[k])
                asked.append([])
            asked[p].append(k)
            of_class[k] = p
        return cls(tuple(filters), of_class, tuple(map(tuple, asked)))

    def hosts(self, classes: Classes) -> list[Ints]:
        """The brokers that ask for each profile, ascending."""
        return [np.unique(classes.broker[list(asked)]).astype(np.int32) for asked in self.classes]


# --------------------------------------------------------------------------------------------- overlap


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap matrix, sparse: row r has `column[start[r]:start[r + 1]]`, ascending, none that is 0.

    `value` is O[r][c] = |r & c| / |c|: 1 where c matched nothing that r did not. `rate` is the weight of
    each profile's messages.
    """

    start: Longs
    column: Ints
    value: Floats
    rate: Floats

    def __len__(self) -> int:
        """How many profiles there are."""
        return len(self.rate)

    def row(self, r: int) -> tuple[Ints, Floats]:
        """The columns of a row, and what is there."""
        part = slice(int(self.start[r]), int(self.start[r + 1]))
        return self.column[part], self.value[part]

    def dense(self) -> Floats:
        """The whole matrix, zeros included."""
        full = np.zeros((len(self), len(self)))
        full[np.repeat(np.arange(len(self)), np.diff(self.start)), self.column] = self.value
        return full

    @classmethod
    def of_dense(cls, matrix: npt.ArrayLike, rate: npt.ArrayLike | None = None) -> "Overlap":
        """From a full matrix, as a paper prints it. Without rates every profile has the same."""
        full = np.asarray(matrix, dtype=np.float64)
        rates = np.ones(len(full)) if rate is None else np.asarray(rate, dtype=np.float64)
        if full.shape != (len(rates), len(rates)):
            raise InputError(
                f"an overlap matrix of shape {full.shape} for {len(rates)} rates. Make it square."
            )
        r, c = np.nonzero(full)
        return _compressed(r, c, full[r, c], rates)

    @classmethod
    def of_tables(
        cls, selectivity: pa.Table, overlap: pa.Table, profiles: Profiles, *, recent: bool = False
    ) -> "Overlap":
        """From the pipeline's tables, by the names of their columns. A profile is read at its first class.

        A rate is in bytes and one per event, as `Problem.pattern_weight` has it; overlaps too where the
        table has bytes of both, else they are of events. `recent` takes the decayed rate for what a profile
        counts; overlaps are of all events either way. Raises `InputError` for a column that is missing,
        decay that was not asked for, or tables of other classes.
        """
        classes = len(profiles.of_class)
        who, events, size = (_column(selectivity, name) for name in ("class", "events", "bytes"))
        a, b, both = (_column(overlap, name) for name in ("class_a", "class_b", "both"))
        if sorted(who.tolist()) != list(range(classes)) or max([-1, *a.tolist(), *b.tolist()]) >= classes:
            raise InputError(
                f"the tables are of {len(who)} classes, and there are {classes}. Make tables of the same "
                "log and subscriptions."
            )
        asked = np.array([row[0] for row in profiles.classes], dtype=np.int64)
        counted, weight = _by_class(who, events), _by_class(who, events + size)
        rate = weight
        if recent:
            rate = _by_class(
                who, _column(selectivity, "recent_events") + _column(selectivity, "recent_bytes")
            )
            if np.isnan(rate).any():
                raise InputError(
                    "recent_events is empty: the table was made without a half-life. Give one."
                )
        both_size = _optional(overlap, "both_bytes")
        whole, shared = (counted, both) if both_size is None else (weight, both + both_size)
        profile = np.full(classes, -1, dtype=np.int64)
        profile[asked] = np.arange(len(asked))
        one, other = profile[a.astype(np.int64)], profile[b.astype(np.int64)]
        used = (one >= 0) & (other >= 0) & (both > 0)
        one, other, shared = one[used], other[used], shared[used].astype(np.float64)
        own = np.flatnonzero(counted[asked] > 0)
        r, c = np.concatenate((one, other, own)), np.concatenate((other, one, own))
        value = np.concatenate((shared, shared, whole[asked[own]])) / whole[asked[c]]
        return _compressed(r, c, value, rate[asked])


def _by_class(who: npt.NDArray[Any], values: npt.NDArray[Any]) -> Floats:
    found = np.empty(len(who))
    found[who.astype(np.int64)] = values
    return found


def _optional(table: pa.Table, name: str) -> npt.NDArray[Any] | None:
    """A column; None where it is not there, or empty."""
    known = name in table.column_names and not table.column(name).null_count
    return _column(table, name) if known else None


def _column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    if name not in table.column_names:
        raise InputError(f"the table has no column {name!r}, only {', '.join(table.column_names)}.")
    return np.asarray(table.column(name).to_numpy())


def _compressed(r: Longs, c: Longs, value: Floats, rate: Floats) -> Overlap:
    order = np.lexsort((c, r))
    start = np.searchsorted(r[order], np.arange(len(rate) + 1)).astype(np.int64)
    return Overlap(start, c[order].astype(np.int32), value[order], rate)


# ------------------------------------------------------------------------------------------ statistics


@dataclass(frozen=True)
class Statistics:
    """Which messages each profile matched, and what each message counts.

    `bits` is uint64[profiles, words], message m being bit m % 64 of word m // 64; `weight` is float64 per
    message, padded with zeros to whole words.
    """

    bits: Words
    weight: Floats

    def __len__(self) -> int:
        """How many profiles there are."""
        return len(self.bits)

    @classmethod
    def of_rows(
        cls, profiles: int, start: npt.ArrayLike, member: npt.ArrayLike, weight: npt.ArrayLike
    ) -> "Statistics":
        """Message m matched the profiles `member[start[m]:start[m + 1]]` and counts `weight[m]`."""
        padded = _padded(weight)
        bits = np.zeros((profiles, len(padded) // 64), dtype=np.uint64)
        rows = np.ascontiguousarray(start, dtype=np.int64)
        set_bits(rows, np.ascontiguousarray(member, dtype=np.int32), bits)
        return cls(bits, padded)

    @classmethod
    def of_demand(cls, demand: Demand, profiles: Profiles, weight: npt.ArrayLike) -> "Statistics":
        """A demand's patterns as messages, with a weight each: see `Problem.pattern_weight`."""
        member = profiles.of_class[demand.classes]
        kept = member >= 0
        rows = np.repeat(np.arange(len(demand)), np.diff(demand.start))[kept]
        start = np.searchsorted(rows, np.arange(len(demand) + 1))
        return cls.of_rows(len(profiles), start, member[kept], weight)

    def weighted(self, weight: npt.ArrayLike) -> "Statistics":
        """The same messages with other weights."""
        return Statistics(self.bits, _padded(weight))

    @cached_property
    def rate(self) -> Floats:
        """float64[profiles]: the weight of the messages of each."""
        return self.weigh(self.bits)

    def weigh(self, rows: Words) -> Floats:
        """The weight of sets of messages."""
        found = np.empty(len(rows))
        weigh_rows(np.ascontiguousarray(rows), self.weight, found)
        return found

    def counts(self) -> Longs:
        """int64[profiles]: messages matched, unweighted."""
        found = np.empty(len(self), dtype=np.int64)
        count_bits(self.bits, found)
        return found

    def overlap(self) -> Overlap:
        """The sparse overlap matrix."""
        lists = self.lists()
        count = np.empty(len(self), dtype=np.int64)
        overlap_counts(self.bits, self.weight, *lists, count)
        start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        column, both = np.empty(int(start[-1]), dtype=np.int32), np.empty(int(start[-1]))
        fill_overlap(self.bits, self.weight, *lists, start, column, both)
        size = self.rate[column]
        # a message whose weight has decayed to nothing still shows that two profiles meet
        value = np.divide(both, size, out=np.ones(len(both)), where=size > 0)
        own = np.flatnonzero(self.counts())
        row = np.concatenate((np.repeat(np.arange(len(self)), count), own))
        return _compressed(
            row, np.concatenate((column, own)), np.concatenate((value, np.ones(len(own)))), self.rate
        )

    def lists(self) -> tuple[Ints, Ints]:
        """The profiles of each message as linked lists: see `overlap_kernels.enlist`."""
        head = np.full(len(self.weight), -1, dtype=np.int32)
        entry = np.empty((int(self.counts().sum()), 2), dtype=np.int32)
        used = 0
        for p in range(len(self)):
            used = enlist(p, self.bits, head, entry, used)
        return head, entry


def _padded(weight: npt.ArrayLike) -> Floats:
    given = np.asarray(weight, dtype=np.float64)
    padded = np.zeros(64 * ((len(given) + 63) // 64))
    padded[: len(given)] = given
    return padded
