"""The sampled events of late, as newcomers are held against them: section VI of Majumder et al. (2009).

Owns the events of the sample files that landed within a window, in memory, and which of them each filter
matches. `matching` gives a plan's demand on these events and the patterns that a newcomer matches, so that
it joins the group whose cost rises least on them.

Cost       A newcomer costs one pass of the matcher over the events kept, at most `MOST_EVENTS` and a file;
           a filter is compiled once. Beyond `SAMPLED_CLASSES` classes nothing is
           said: newcomers then join by their filters alone.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.content.matching.matcher import Matcher, Matches
from ramify.errors import InputError
from ramify.overlay.control.frames import concat
from ramify.overlay.live.coordinator.collector import read_publishers
from ramify.planning.demand.demand import MAX_TAGS, Demand
from ramify.planning.demand.tally import PatternTally, TallySettings
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules

__all__ = ["SampleWindow", "recent_files"]

_log = logging.getLogger(__name__)

MOST_EVENTS = 5_000
"""Events that are kept; of more, those of the newest files."""
SAMPLED_CLASSES = 20_000
_STALE_FILTERS = 1_000


def recent_files(directory: Path, window_s: float) -> list[Path]:
    """The files of samples that landed within a window, by name."""
    since = time.time() - window_s
    files = sorted(directory.glob("samples-*.parquet"))
    # one that was trimmed meanwhile never landed
    return [file for file in files if _landed(file, 0.0) >= since]


def _landed(file: Path, otherwise: float = inf) -> float:
    """When a file landed, in seconds since 1970; `otherwise` where it is gone."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return otherwise


class _FilterIndex:
    """One matcher for all filters of late. It grows, and is made anew when most are stale."""

    def __init__(self) -> None:
        self._matcher = Matcher()
        self._ids: dict[bytes, int] = {}

    def match(self, batch: pa.RecordBatch, filters: Sequence[Filter]) -> Matches:
        """What each event of a batch matches, ids in the order of the filters."""
        ids = self._held(filters)
        found = self._matcher.match(batch)
        order = np.argsort(ids, kind="stable")
        places = np.searchsorted(ids[order], found.ids)
        places[places == len(ids)] = 0
        mine = ids[order[places]] == found.ids
        row = np.repeat(np.arange(batch.num_rows), np.diff(found.ends))
        # a filter may stand at several places: those of a class and of a newcomer that asks the same
        ids_at, row_at = [order[places[mine]].astype(np.int32)], [row[mine]]
        for place in self._repeated(ids, order):
            again = row[found.ids == ids[place]]
            ids_at.append(np.full(len(again), place, dtype=np.int32))
            row_at.append(again)
        rows, places = np.concatenate(row_at), np.concatenate(ids_at)
        sorting = np.lexsort((places, rows))
        count = np.bincount(rows, minlength=batch.num_rows)
        ends = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        return Matches(ends, places[sorting].astype(np.int32))

    def _held(self, filters: Sequence[Filter]) -> npt.NDArray[np.int64]:
        """The matcher's number of each filter."""
        if len(self._ids) > 2 * len(filters) + _STALE_FILTERS:
            self._matcher, self._ids = Matcher(), {}
        new = {one.key: one for one in filters if one.key not in self._ids}
        self._ids |= dict(zip(new, self._matcher.extend(new.values()), strict=True))
        return np.array([self._ids[one.key] for one in filters], dtype=np.int64)

    @staticmethod
    def _repeated(ids: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> list[int]:
        """The places whose filter stands at an earlier place too."""
        same = np.flatnonzero(np.diff(ids[order]) == 0) + 1
        return [int(order[at]) for at in same]


class SampleWindow:
    """See the module. Call it from one thread at a time."""

    def __init__(self, directory: Path, window_s: float, most_events: int = MOST_EVENTS) -> None:
        self._directory, self._window_s, self._most_events = directory, window_s, most_events
        self._files: dict[str, list[pa.RecordBatch]] = {}
        self._names: tuple[str, ...] = ()
        self._joined: list[pa.RecordBatch] = []
        # when the first of the files landed
        self._landed = 0.0
        self._index = _FilterIndex()

    def matching(
        self, plan: Plan, row: Subscription, rules: Rules
    ) -> tuple[Demand, npt.NDArray[np.bool_]] | None:
        """The demand of the events kept, for a plan, and the patterns that a newcomer matches.

        None when no event is kept. The demand has the tags of the rules. Events without times span the time
        since the first of their files landed.
        """
        tags = rules.tags(plan.classes.schema)
        if len(plan.classes) > SAMPLED_CLASSES or len(tags) >= MAX_TAGS:
            return None
        batches = self._recent()
        if not batches:
            return None
        try:
            attached = {**read_publishers(self._directory), **plan.attachments}
            newcomer = row.parse(plan.classes.schema)
        except InputError as error:
            _log.warning("newcomer %s joins without samples: %s", row.id, error)
            return None
        demand = self._counted(batches, plan, [*plan.classes.filters, *tags, newcomer], attached)
        if not demand.seconds:
            demand = replace(demand, seconds=max(1.0, time.time() - self._landed))
        mine = np.uint64(1) << np.uint64(len(tags))
        matched = (demand.tags & mine) != 0
        return replace(demand, tags=demand.tags & (mine - np.uint64(1)), tag_filters=len(tags)), matched

    def _recent(self) -> list[pa.RecordBatch]:
        """The events of the window, joined; of more than there is room for, those of the newest files."""
        kept: dict[str, list[pa.RecordBatch]] = {}
        events, landed = 0, time.time()
        for path in reversed(recent_files(self._directory, self._window_s)):
            if events >= self._most_events:
                break
            batches = self._files.get(path.name)
            if batches is None:
                try:
                    batches = pq.read_table(path).to_batches()
                except (OSError, pa.ArrowInvalid) as error:
                    _log.warning("%s cannot be read: %s", path, error)
                    continue
            kept[path.name], landed = batches, min(landed, _landed(path))
            events += sum(batch.num_rows for batch in batches)
        self._files, self._landed = kept, landed
        if tuple(kept) != self._names:
            self._names = tuple(kept)
            self._joined = concat(batch for batches in kept.values() for batch in batches)
        return self._joined

    def _counted(
        self,
        batches: Sequence[pa.RecordBatch],
        plan: Plan,
        filters: Sequence[Filter],
        attached: dict[str, str],
    ) -> Demand:
        """The demand of all events; filters behind those of the classes are tags."""
        counting = TallySettings.of(plan.classes, plan.overlay, attached, grid=plan.grid)
        tally = PatternTally(counting)
        for batch in batches:
            tally.add(batch, self._index.match(batch, filters))
        return tally.windows(len(filters) - counting.classes).whole
