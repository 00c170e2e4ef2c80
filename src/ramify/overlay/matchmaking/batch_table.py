"""Whole batches of events along data channels: as `DataTable` routes each event, at the price of a matcher.

Owns an index of the filters of the channels, made anew when the channels of an origin have changed and an
event comes. Cost per batch: the matcher's, and O(rows x channels of the origin) bits.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.filters.filters import Filter
from ramify.content.matching.matcher import Matcher
from ramify.overlay.matchmaking.channels import Filters
from ramify.overlay.matchmaking.messages import Descriptor
from ramify.overlay.matchmaking.state import MatchState

__all__ = ["BatchSpread", "BatchTable"]

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchSpread:
    """Where the rows of a batch go: by neighbour, and by subscription here. Nobody is listed without."""

    neighbours: dict[str, Rows]
    subscriptions: dict[str, Rows]


class BatchTable:
    """See the module. It follows the broker's state."""

    def __init__(self, state: Callable[[], MatchState], filters: Filters) -> None:
        self._state = state
        self._filters = filters
        # origin -> channels, whose ends have been filed, and their index; "" is for the own advertisements
        self._filed: dict[str, tuple[Hashable, _Index]] = {}

    def inside(self, batch: pa.RecordBatch) -> Flags:
        """Which rows lie inside the advertisements here of their publisher."""
        own = self._state().own_ads
        index = self._index("", tuple((ad.id, ad.number) for ad in own.values()), own.values)
        hit = index.match(batch)
        publishers = np.array(batch.column("publisher").to_pylist(), dtype=object)
        found = np.zeros(batch.num_rows, dtype=np.bool_)
        for client in set(publishers.tolist()):
            mine = [index.place(ad) for ad in own.values() if ad.client == client]
            if mine:
                found |= (publishers == client) & hit[:, mine].any(axis=1)
        return found

    def route(self, origin: str, batch: pa.RecordBatch) -> BatchSpread:
        """Where events go that entered at broker `origin`."""
        channels = self._state().channels.get(origin, {}).values()
        key = tuple((c.ad.id, c.sub.id, c.numbers) for c in channels)
        index = self._index(origin, key, lambda: [end for c in channels for end in (c.ad, c.sub)])
        hit = index.match(batch)
        to: dict[str, Flags] = {}
        here: dict[str, Flags] = {}
        for channel in channels:
            flows = hit[:, index.place(channel.ad)] & hit[:, index.place(channel.sub)]
            found, name = (to, channel.to) if channel.to else (here, channel.sub.id)
            found[name] = found[name] | flows if name in found else flows
        return BatchSpread(_rows(to), _rows(here))

    def _index(self, origin: str, key: Hashable, ends: Callable[[], Iterable[Descriptor]]) -> "_Index":
        filed = self._filed.get(origin)
        if filed is None or filed[0] != key:
            filed = self._filed[origin] = key, _Index(ends(), self._filters)
        return filed[1]


class _Index:
    """The filters of some descriptors, equal ones once."""

    def __init__(self, descriptors: Iterable[Descriptor], filters: Filters) -> None:
        self._places: dict[tuple[str, str], int] = {}
        distinct: list[Filter] = []
        for each in descriptors:
            if (each.spelling, each.text) not in self._places:
                self._places[each.spelling, each.text] = len(distinct)
                distinct.append(filters.of(each))
        self._matcher = Matcher(distinct)

    def place(self, descriptor: Descriptor) -> int:
        return self._places[descriptor.spelling, descriptor.text]

    def match(self, batch: pa.RecordBatch) -> Flags:
        """Row by filter: whether it holds."""
        hit = np.zeros((batch.num_rows, len(self._places)), dtype=np.bool_)
        if self._places and batch.num_rows:
            matches = self._matcher.match(batch)
            hit[matches.rows, matches.ids] = True
        return hit


def _rows(flags: dict[str, Flags]) -> dict[str, Rows]:
    return {name: np.flatnonzero(rows) for name, rows in sorted(flags.items()) if rows.any()}
