"""Compiled: crossings to sums, arrivals to delivery times. The last steps of `ride_kernels.py`."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.compiled import Int, compiled
from ramify.planning.plans.layout import LayoutTables
from ramify.planning.pricing.ride_kernels import DemandColumns, RideColumns

__all__ = ["Arrivals", "ChargeMemory", "CrossingColumns", "SettleMemory", "charge", "settle"]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.uint8]


class CrossingColumns(NamedTuple):
    """Hops crossed, sorted by pattern, with the bytes of their headers."""

    pattern: Ints
    hop: Ints
    header: Ints


class ChargeMemory(NamedTuple):
    """Scratch of `charge`: stamps per link and per broker."""

    of_link: Longs
    at_broker: Longs
    wanted: Longs


class SettleMemory(NamedTuple):
    """Scratch of `settle`: per class, per broker."""

    class_stamp: Longs
    class_ms: Floats
    class_hops: Ints
    host_stamp: Longs
    host_place: Longs


class Arrivals(NamedTuple):
    """The slowest arrival at each class; when and after how many links destinations were reached."""

    worst_ms: Floats
    start: Longs
    ms: Floats
    hops: Ints


@compiled
def charge(
    crossed: CrossingColumns,
    demand: DemandColumns,
    t: LayoutTables,
    memory: ChargeMemory,
    into: Longs,
    tally: Longs,
    entered: npt.NDArray[np.uint64],
) -> None:
    """Add up crossings, which come sorted by pattern, all of a pattern in one call: stamps are pattern + 1.

    `into`: messages, payload and header bytes of each arc. `tally`: broker duplicates, link duplicates,
    visits, waste. The publisher's broker has the event from its client, so that any reception there is a
    duplicate.
    """
    messages, payload, header = into[0], into[1], into[2]
    cross_pattern, cross_hop, cross_header = crossed.pattern, crossed.hop, crossed.header
    publisher, counts, sizes, tags = demand.publisher, demand.counts, demand.sizes, demand.tags
    start, classes = demand.start, demand.classes
    host, hop_start, hop_arc, label_bytes = t.host, t.hop_start, t.hop_arc, t.label_bytes
    arc_head = t.arc_head
    of_link, at_broker, wanted = memory.of_link, memory.at_broker, memory.wanted
    i: Int = -1
    stamp: Int = 0
    for c in range(len(cross_pattern)):
        if cross_pattern[c] != i:
            i = cross_pattern[c]
            stamp = i + 1
            at_broker[publisher[i]] = stamp
            for k in range(start[i], start[i + 1]):
                wanted[host[classes[k]]] = stamp
        hop = cross_hop[c]
        for k in range(hop_start[hop], hop_start[hop + 1]):
            arc = hop_arc[k]
            messages[arc] += counts[i]
            payload[arc] += sizes[i]
            header[arc] += counts[i] * (cross_header[c] + label_bytes[hop])
            link = arc >> 1
            if of_link[link] == stamp:
                tally[1] += counts[i]
            of_link[link] = stamp
            broker = arc_head[arc]
            if at_broker[broker] == stamp:
                tally[0] += counts[i]
                continue
            at_broker[broker] = stamp
            tally[2] += counts[i]
            entered[broker] |= tags[i]
            if wanted[broker] != stamp:
                tally[3] += counts[i]


@compiled
def settle(
    first: Int,
    last: Int,
    demand: DemandColumns,
    taken: RideColumns,
    t: LayoutTables,
    reach_ms: Floats,
    reach_hops: Ints,
    memory: SettleMemory,
    out: Arrivals,
    tally: Longs,
) -> None:
    """When each class and each destination broker first had the event, and which never had it.

    `tally`: deliveries, undelivered (event, class) pairs. Stamps are pattern + 1.
    """
    rides = len(taken.pattern)
    publisher, counts, start, classes = demand.publisher, demand.counts, demand.start, demand.classes
    ride_pattern, ride_start, ride_entry, chosen = taken.pattern, taken.start, taken.entry, taken.chosen
    entry_class, host = t.entry_class, t.host
    class_stamp, class_ms, class_hops = memory.class_stamp, memory.class_ms, memory.class_hops
    host_stamp, host_place = memory.host_stamp, memory.host_place
    worst_ms, out_start, out_ms, out_hops = out.worst_ms, out.start, out.ms, out.hops
    r: Int = 0
    for i in range(first, last):
        stamp = i + 1
        while r < rides and ride_pattern[r] == i:
            if chosen[r] != 0:
                for j in range(ride_start[r], ride_start[r + 1]):
                    k = entry_class[ride_entry[j]]
                    if reach_ms[j] >= 0 and (class_stamp[k] != stamp or reach_ms[j] < class_ms[k]):
                        class_stamp[k] = stamp
                        class_ms[k] = reach_ms[j]
                        class_hops[k] = reach_hops[j]
            r += 1
        found = out_start[i]
        for j in range(start[i], start[i + 1]):
            k = classes[j]
            if host[k] == publisher[i]:
                tally[0] += counts[i]
                continue
            if class_stamp[k] != stamp:
                tally[1] += counts[i]
                continue
            tally[0] += counts[i]
            worst_ms[k] = max(worst_ms[k], class_ms[k])
            broker = host[k]
            if host_stamp[broker] != stamp:
                host_stamp[broker] = stamp
                host_place[broker] = found
                out_ms[found] = class_ms[k]
                out_hops[found] = class_hops[k]
                found += 1
            elif class_ms[k] < out_ms[host_place[broker]]:
                out_ms[host_place[broker]] = class_ms[k]
                out_hops[host_place[broker]] = class_hops[k]
