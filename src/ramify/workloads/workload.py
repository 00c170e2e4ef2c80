"""A workload: subscriptions, attachments, and events, any range of them on demand.

Owns advertisements, the random streams, and the assembly of event batches. The models
themselves are one module each.

Event `i` depends on the seed and on `i` alone. Events are drawn in blocks of `BLOCK_EVENTS` from a Philox
generator whose key comes from the seed and whose counter comes from the number of the block, so any range
can be made anywhere, in any order, and a cluster can share the work without talking. Streams are stable for
one version of numpy: numpy may change how its distributions use random bits.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.events.events import EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.workloads.parameters import Params

__all__ = [
    "BLOCK_EVENTS",
    "AdvertisementRow",
    "Column",
    "DrawnEvents",
    "EventSource",
    "Workload",
    "column",
    "list_column",
    "random_stream",
    "string_column",
    "weighted_picks",
]

Column: TypeAlias = "pa.Array[Any]"
"""One attribute of some events. (The stubs make arrays generic; at run time they are not.)"""

BLOCK_EVENTS = 8_192
"""Events per block. Part of the format: another size gives other events for the same seed."""

FIRST_EVENT_TIME_US = 1_767_225_600_000_000
"""When event 0 happens: 2026-01-01T00:00:00Z, in microseconds since 1970."""

LAST_EVENT_TIME_US = 253_402_300_799_999_999
"""No event happens later: the end of the year 9999, the last that logs and filters can name."""

REPORT_EVENTS = 10_000
"""How many events at most are looked at for `Workload.report`."""


@dataclass(frozen=True, slots=True)
class AdvertisementRow:
    """A filter that the events of one publishing client stay within, or one of several whose union does."""

    id: str
    client: str
    broker: str
    sql: str


class DrawnEvents(NamedTuple):
    """The random part of a block: the publisher of each event (an index), and a column per attribute.

    Without `size_bytes`, every event has the size that the parameters say.
    """

    publisher: npt.NDArray[np.int64]
    attributes: Mapping[str, Column]
    size_bytes: npt.NDArray[np.int64] | None = None


class EventSource(Protocol):
    """What a model gives a workload to draw events with. Picklable: Spark ships it to its workers."""

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        """`count` events, in order, from the generator alone."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """The outcome of a model for one overlay and one seed.

    Attributes
    ----------
    name             the model
    params, seed     what it was made with
    schema           the attributes of its events
    subscriptions    rows in a stable order; ids are unique
    advertisements   what publishers announce, where the model has that; else empty
    attachments      client -> broker, for publishers and subscribers
    publishers       the clients that publish; events refer to them
    event_count      how many events there are
    report           realised averages; `<key>_paper` is what the paper prints for a key, `<key>_asked`
                     what the parameters aim at
    arrays           the numbers behind the model, by name: see the model's module
    """

    name: str
    params: Params
    seed: int
    schema: EventSchema
    subscriptions: tuple[Subscription, ...] = field(repr=False)
    attachments: Mapping[str, str] = field(repr=False)
    publishers: tuple[str, ...] = field(repr=False)
    source: EventSource = field(repr=False)
    advertisements: tuple[AdvertisementRow, ...] = field(default=(), repr=False)
    report: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def event_count(self) -> int:
        """How many events there are."""
        return self.params.events

    def events(self, start: int, count: int) -> pa.RecordBatch:
        """Events `start` to `start + count - 1`, the same whatever was asked for before.

        Raises
        ------
        InputError
            When the range is not within the workload, or an event would happen after the year 9999.
        """
        if start < 0 or count < 0 or start + count > self.event_count:
            raise InputError(
                f"events {start} to {start + count - 1} are not all in workload {self.name}: it has "
                f"{self.event_count}, numbered from 0. Ask for a range within, or make it with more events."
            )
        _check_time(start + count - 1, self.params.events_per_second)
        key = _key(self.seed, self.name, "events")
        blocks = range(start // BLOCK_EVENTS, max(start + count - 1, start) // BLOCK_EVENTS + 1)
        parts = [self._part_of_block(key, block, start, start + count) for block in blocks]
        return parts[0] if len(parts) == 1 else _concatenated(parts)

    def batches(self, start: int = 0, count: int | None = None) -> Iterator[pa.RecordBatch]:
        """The events of a range, all from `start` unless `count` is given, a block at a time."""
        stop = self.event_count if count is None else start + count
        while start < stop:
            size = min(BLOCK_EVENTS - start % BLOCK_EVENTS, stop - start)
            yield self.events(start, size)
            start += size

    def sample(self) -> pa.RecordBatch:
        """The first events, at most `REPORT_EVENTS`: what the report is computed on."""
        return self.events(0, min(self.event_count, REPORT_EVENTS))

    def _part_of_block(
        self, key: npt.NDArray[np.uint64], block: int, start: int, stop: int
    ) -> pa.RecordBatch:
        """Those of the events `start` to `stop - 1` that are in a block."""
        # The third word of the counter: a block cannot run into the numbers of the next one.
        rng = np.random.Generator(np.random.Philox(key=key, counter=block << 128))
        drawn = self.source.draw(rng, BLOCK_EVENTS)  # always whole, or the cut would change the draw
        begin = block * BLOCK_EVENTS
        number = np.arange(max(start, begin), min(stop, begin + BLOCK_EVENTS), dtype=np.int64)
        rows = slice(max(start - begin, 0), max(start - begin, 0) + len(number))
        sizes = drawn.size_bytes
        if sizes is None:
            sizes = np.full(BLOCK_EVENTS, self.params.size_bytes, dtype=np.int64)
        columns = [drawn.attributes[path][rows] for path in self.schema.attributes]
        fixed: list[Column] = [
            _ids(self.name, self.seed, number),
            string_column(self.publishers, drawn.publisher[rows]),
            _times(number, self.params.events_per_second),
            column(sizes[rows]),
            pa.nulls(len(number), pa.binary()),
            column(np.zeros(len(number), dtype=np.bool_)),
            _lists(np.zeros(len(number) + 1), pa.array([], type=pa.string())),
        ]
        return pa.RecordBatch.from_arrays([*fixed, *columns], schema=self.schema.arrow)


def random_stream(seed: int, model: str, purpose: str) -> np.random.Generator:
    """A generator for one purpose of one model, independent of every other purpose, model and seed."""
    return np.random.Generator(np.random.Philox(key=_key(seed, model, purpose)))


def weighted_picks(
    rng: np.random.Generator, cumulative: npt.NDArray[np.float64], count: int
) -> npt.NDArray[np.int64]:
    """`count` indices, drawn with the weights whose cumulative sum is given; weight 0 is never drawn."""
    total = cumulative[-1]
    at = np.minimum(rng.random(count) * total, np.nextafter(total, 0))  # the product may round up to it
    return np.asarray(np.searchsorted(cumulative, at, side="right"), dtype=np.int64)


def column(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_] | None = None) -> Column:
    """A column of numbers or booleans, null where `absent`."""
    return cast("Column", pa.array(values, mask=absent))  # the stubs take it for one of booleans


def string_column(
    names: Sequence[str],
    indices: npt.NDArray[np.integer[Any]],
    absent: npt.NDArray[np.bool_] | None = None,
) -> Column:
    """A column of strings from a table of names and an index per row, null where `absent`."""
    return pa.array(names, type=pa.string()).take(column(indices, absent))


def list_column(names: Sequence[str], picks: npt.NDArray[np.int64]) -> Column:
    """A column of string lists: row `r` holds the distinct names at `picks[r]`, sorted by index.

    An index of `len(names)` stands for nothing.
    """
    ordered = np.sort(picks, axis=1)
    keep = ordered != len(names)
    keep[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    ends = np.cumsum(keep.sum(axis=1))
    return _lists(np.concatenate(([0], ends)), string_column(names, ordered[keep]))


def _key(seed: int, model: str, purpose: str) -> npt.NDArray[np.uint64]:
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"the seed {seed!r} is not allowed. Give a whole number from 0.")
    words = (seed, zlib.crc32(f"{model}/{purpose}".encode()))
    return np.random.SeedSequence(words).generate_state(2, np.uint64).astype(np.uint64)


def _concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    untyped: Any = pa  # the stubs do not know concat_batches yet
    return cast("pa.RecordBatch", untyped.concat_batches(parts))


def _ids(name: str, seed: int, number: npt.NDArray[np.int64]) -> Column:
    """Names from the numbers, which have eight digits, or more where they need them: never cut."""
    digits: Any = pc.utf8_lpad(column(number).cast(pa.string()), width=8, padding="0")
    prefix: Any = f"{name}-{seed}"
    return cast("Column", pc.binary_join_element_wise(prefix, digits, "-"))


def _check_time(last: int, events_per_second: float) -> None:
    """Refuse an event beyond the calendar: its time would not fit, or could not be written down."""
    if FIRST_EVENT_TIME_US + last * (1e6 / events_per_second) > LAST_EVENT_TIME_US:
        raise InputError(
            f"event {last} would happen after the year 9999 at {events_per_second:g} events per second. "
            "Give a higher rate, or ask for fewer events."
        )


def _times(number: npt.NDArray[np.int64], events_per_second: float) -> Column:
    since_first_us = np.round(number * (1e6 / events_per_second)).astype(np.int64)
    return column(FIRST_EVENT_TIME_US + since_first_us).cast(pa.timestamp("us", tz="UTC"))


def _lists(offsets: npt.NDArray[Any], values: Column) -> Column:
    narrow: Any = column(offsets.astype(np.int32))
    return pa.ListArray.from_arrays(narrow, values)
