"""Events of several kinds in one sequence: each row has an entry that says what is so of it. Pure.

Owns how a lane keeps its order. On a link an event's entry is its routing header; for a client it is the
set of its subscriptions that the event is for. Events of different entries follow each other as they came,
in one message, instead of in a message for each entry.

    Mixture   events, the entries that they have, and which row has which
    mix       mixtures joined where their attributes agree, each publisher's events in their order
    cut       a mixture in parts, so that the entries of each can be written down
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.overlay.control.frames import concat_parts, split

__all__ = ["Mixture", "cut", "mix", "mixture_of_rows"]

Ints = npt.NDArray[np.int64]
_Entry = TypeVar("_Entry", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Mixture(Generic[_Entry]):
    """Events with their entries: row r has `entries[places[r]]`. A single entry needs no `places`."""

    events: pa.RecordBatch
    entries: tuple[_Entry, ...]
    places: Ints | None = None

    def part(self, first: int, end: int) -> "Mixture[_Entry]":
        """The rows from `first` to before `end`, with the entries that they have."""
        events = self.events.slice(first, end - first)
        if self.places is None:
            return Mixture(events, self.entries)
        return _packed(events, self.entries, self.places[first:end])

    def groups(self) -> Iterator[tuple[_Entry, Ints | None]]:
        """The rows of each entry, ascending; None for all rows."""
        if self.places is None:
            yield self.entries[0], None
            return
        order = np.argsort(self.places, kind="stable")
        ends = np.cumsum(np.bincount(self.places, minlength=len(self.entries)))
        for entry, rows in zip(self.entries, np.split(order, ends[:-1]), strict=True):
            if len(rows):
                yield entry, rows


def mixture_of_rows(
    events: pa.RecordBatch, chosen: Iterable[tuple[_Entry, Ints | None]]
) -> Mixture[_Entry]:
    """The chosen rows of a batch in its order; a row that is chosen for several entries comes with each."""
    parts = list(chosen)
    if len(parts) == 1:
        ((entry, rows),) = parts
        if rows is None or len(rows) == events.num_rows:
            return Mixture(events, (entry,))
        return Mixture(events.take(rows), (entry,))
    number: dict[_Entry, int] = {}
    everything = np.arange(events.num_rows, dtype=np.int64)
    lists = [everything if rows is None else rows for _, rows in parts]
    marks = [number.setdefault(entry, len(number)) for entry, _ in parts]
    joined = np.concatenate(lists)
    places = np.repeat(np.array(marks, np.int64), [len(each) for each in lists])
    order = np.argsort(joined, kind="stable")
    return _packed(events.take(joined[order]), tuple(number), places[order])


def mix(parts: Sequence[Mixture[_Entry]]) -> list[Mixture[_Entry]]:
    """The parts, joined where their attributes agree; each publisher's events keep their order."""
    number: dict[_Entry, int] = {}
    for part in parts:
        for entry in part.entries:
            number.setdefault(entry, len(number))
    entries = tuple(number)
    found = []
    for events, members in concat_parts([part.events for part in parts]):
        if len(number) == 1:
            found.append(Mixture(events, entries))
            continue
        places = [_places(parts[i], number) for i in members]
        found.append(_packed(events, entries, np.concatenate(places)))
    return found


def cut(
    mixture: Mixture[_Entry], most_bytes: int, size_of: Callable[[_Entry], int], most_entries: int
) -> Iterator[Mixture[_Entry]]:
    """In parts of at most `most_bytes` (see `split`), whose entries have at most so many bytes together; an
    entry that has more is alone."""
    first = 0
    for events in split(mixture.events, most_bytes):
        end = first + events.num_rows
        if mixture.places is None:
            yield Mixture(events, mixture.entries)
        else:
            part = _packed(events, mixture.entries, mixture.places[first:end])
            yield from _with_few_entries(part, size_of, most_entries)
        first = end


def _with_few_entries(
    part: Mixture[_Entry], size_of: Callable[[_Entry], int], most: int
) -> Iterator[Mixture[_Entry]]:
    sizes = [size_of(entry) for entry in part.entries]
    if part.places is None or sum(sizes) <= most:
        yield part
        return
    first, total, seen = 0, 0, set[int]()
    for row, place in enumerate(part.places.tolist()):
        if place in seen:
            continue
        if seen and total + sizes[place] > most:
            yield part.part(first, row)
            first, total, seen = row, 0, set()
        seen.add(place)
        total += sizes[place]
    yield part.part(first, part.events.num_rows)


def _places(part: Mixture[_Entry], number: dict[_Entry, int]) -> Ints:
    """The places of a part's rows among all entries."""
    here = np.array([number[entry] for entry in part.entries], np.int64)
    return np.repeat(here, part.events.num_rows) if part.places is None else here[part.places]


def _packed(events: pa.RecordBatch, entries: tuple[_Entry, ...], places: Ints) -> Mixture[_Entry]:
    """Only with the entries that some row has, in the order of their first rows."""
    used, first, inverse = np.unique(places, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    kept = tuple(entries[int(place)] for place in used[order])
    if len(kept) == 1:
        return Mixture(events, kept)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Mixture(events, kept, rank[inverse])
