"""From JSON records to event batches: load, spread to leaf columns, tabulate.

Owns the order of those steps, which every JSON input shares, and the parser of plain records. The steps are
`records` (bytes to objects), `leaves` (objects to paths) and `tabulate` (paths to typed columns), whose
public names are exported here. Does not know files (`readers`); `cloudevents` hands its records to `decode`
with a parser of its own.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from ramify.content.events.events import DecodedBatch, EventSchema
from ramify.content.events.leaves import Leaves, Shape, shapes, sprawl
from ramify.content.events.records import MAX_DEPTH, MAX_RECORD_BYTES, Records, depth, load, read_object
from ramify.content.events.tabulate import MAX_ATTRIBUTES, PLAIN, FieldMapping, ParsedRecords, tabulate
from ramify.content.events.timestamps import TimeUnit, parse_timestamps

__all__ = [
    "MAX_ATTRIBUTES",
    "MAX_DEPTH",
    "MAX_RECORD_BYTES",
    "PLAIN",
    "FieldMapping",
    "Parser",
    "Records",
    "TimeUnit",
    "collector_paused",
    "decode",
    "decode_records",
    "depth",
    "parse_plain",
    "parse_shapes",
    "parse_timestamps",
]

Parser: TypeAlias = Callable[[Records, FieldMapping, frozenset[str] | None], ParsedRecords]
"""Makes leaves of records. The last argument names the paths that are asked for; None asks for all."""

Spread: TypeAlias = Callable[[Shape, ParsedRecords], None]


def decode_records(
    records: Iterable[bytes],
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    source: str | None = None,
    keep: frozenset[str] | None = None,
) -> DecodedBatch:
    """Plain JSON objects, one per element, as a batch and the rejected. Never raises for a bad record."""
    return decode(Records(list(records), source=source), parse_plain, schema, mapping, keep=keep)


def decode(
    records: Records,
    parse: Parser,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    keep: frozenset[str] | None = None,
) -> DecodedBatch:
    """Parse and type records: every one becomes a row or a `Rejected`. O(bytes + rows x columns).

    Without a schema the types come from the records: a path has the type of most of its values, and
    fractions make integers doubles. Values of another type are in `_others`, with a schema too. `keep`
    names the paths that somebody asks for; None keeps all.
    """
    with collector_paused():
        # Not kept in a variable: the values must be gone when the collector wakes up and counts.
        return tabulate(parse(records, mapping, keep), records, schema, mapping)


def parse_plain(records: Records, mapping: FieldMapping, keep: frozenset[str] | None) -> ParsedRecords:
    """The parser of plain objects: the fields are the attributes, the whole record is the body."""
    return parse_shapes(records, _spread_plain, None if keep is None else keep | mapping.paths)


def parse_shapes(records: Records, spread: Spread, keep: frozenset[str] | None) -> ParsedRecords:
    """Load records and `spread` the objects of each shape; a path that is given twice is one array."""
    parsed = ParsedRecords(Leaves(len(records.raw), keep), dict(records.refused))
    for group in load(records, parsed.faults):
        rows = np.arange(len(parsed.index), len(parsed.index) + len(group.index))
        parsed.index += group.index
        for shape in shapes(rows, group.objects):
            spread(shape, parsed)
        group.objects.clear()  # now, so that the next group is decoded into the same memory
    index, faults = parsed.index, parsed.faults
    for row in parsed.leaves.sprawling:
        faults.setdefault(index[row], sprawl())
    if not faults.keys().isdisjoint(index):
        parsed.leaves.drop(row for row, i in enumerate(index) if i in faults)
    parsed.leaves.join_repeated(lambda row: read_object(records.raw[index[row]]))
    return parsed


def _spread_plain(shape: Shape, parsed: ParsedRecords) -> None:
    parsed.leaves.add(shape)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Python's cycle collector scans all live objects again and again while a batch of dictionaries
    grows, which took a third of the time. Parsed JSON has no cycles, and a batch is bounded."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
