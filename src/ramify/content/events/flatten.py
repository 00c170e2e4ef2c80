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

from ramify.content.events.events import RESERVED_NAMES, DecodedBatch, EventSchema, RejectReason
from ramify.content.events.leaves import Leaves, Shape, conflict, shapes, sprawl
from ramify.content.events.records import (
    MAX_DEPTH,
    MAX_RECORD_BYTES,
    Fault,
    ObjectGroup,
    Records,
    depth,
    duplicate_keys,
    load,
)
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

Parser: TypeAlias = Callable[[Records, FieldMapping], ParsedRecords]
Spread: TypeAlias = Callable[[Shape, ParsedRecords], None]


def decode_records(
    records: Iterable[bytes],
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    source: str | None = None,
) -> DecodedBatch:
    """Plain JSON objects, one per element, as a batch and the rejected. Never raises for a bad record."""
    return decode(Records(list(records), source=source), parse_plain, schema, mapping)


def decode(
    records: Records,
    parse: Parser,
    schema: EventSchema | None = None,
    mapping: FieldMapping = PLAIN,
    *,
    inferred: bool = False,
) -> DecodedBatch:
    """Parse and type records: every one becomes a row or a `Rejected`. O(bytes + rows x columns).

    Without a schema the types come from the records: the first value of a path decides, integers widen
    to doubles. Reading the records again with that schema gives the same result. `inferred` says, for the
    messages only, that the schema comes from earlier records of this input.
    """
    with collector_paused():
        # Not kept in a variable: the values must be gone when the collector wakes up and counts.
        return tabulate(parse(records, mapping), records, schema, mapping, inferred=inferred)


def parse_plain(records: Records, _: FieldMapping) -> ParsedRecords:
    """The parser of plain objects: the fields are the attributes, the whole record is the body."""
    return parse_shapes(records, _spread_plain)


def parse_shapes(records: Records, spread: Spread) -> ParsedRecords:
    """Load records and `spread` the objects of each shape; refuse what no path or key can stand for."""
    parsed = ParsedRecords(Leaves(len(records.raw)), dict(records.refused))
    repeats: dict[int, Fault] = {}
    for group in load(records, parsed.faults):
        rows = np.arange(len(parsed.index), len(parsed.index) + len(group.index))
        parsed.index += group.index
        for shape in shapes(rows, group.objects):
            spread(shape, parsed)
        repeats |= _repeated_keys(records, group, parsed)
        group.objects.clear()  # now, so that the next group is decoded into the same memory
    index, faults = parsed.index, parsed.faults
    for row in parsed.leaves.sprawling:
        faults.setdefault(index[row], sprawl())
    for row in parsed.leaves.conflicting():
        faults.setdefault(index[row], conflict(records.raw[index[row]]))
    for i, fault in repeats.items():
        faults.setdefault(i, fault)
    if not faults.keys().isdisjoint(index):
        parsed.leaves.drop(row for row, i in enumerate(index) if i in faults)
    return parsed


def _spread_plain(shape: Shape, parsed: ParsedRecords) -> None:
    taken = RESERVED_NAMES.intersection(shape.keys)
    if taken:
        fault = RejectReason.RESERVED_NAME, f"the field {min(taken)!r} has a reserved name; rename it"
        parsed.faults.update(dict.fromkeys((parsed.index[row] for row in shape.rows.tolist()), fault))
        return
    parsed.leaves.add(shape)


def _repeated_keys(records: Records, group: ObjectGroup, parsed: ParsedRecords) -> dict[int, Fault]:
    """The faults of the last group's records whose bytes show more pairs than their objects have keys."""
    stop = len(parsed.index)
    keys = parsed.leaves.keys[stop - len(group.index) : stop]
    found = {}
    for k in np.flatnonzero(keys != group.pairs).tolist():
        i = group.index[k]
        if i in parsed.faults:
            continue
        fault = duplicate_keys(records.raw[i], group.objects[k], int(group.pairs[k]))
        if fault is not None:
            found[i] = fault
    return found


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
