"""The sampled events of late, as newcomers are held against them: section VI of Majumder et al. (2009).

Owns the events of the sample files that landed within a window, in memory, and which of them each filter
matches. `matching` gives a plan's demand on these events and the patterns that a newcomer matches, so that
it joins the group whose cost rises least on them.

Cost       A filter is held against an event once while the event is in the window. After that a newcomer
           costs O(matches log matches) of the events kept. Beyond `SAMPLED_CLASSES` classes nothing is
           said: newcomers then join by their filters alone.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.content.matching.matcher import Matcher, Matches
from ramify.errors import InputError
from ramify.overlay.live.coordinator.collector import read_publishers
from ramify.planning.demand.demand import MAX_TAGS, Demand
from ramify.planning.demand.tally import PatternTally, TallySettings
from ramify.planning.demand.windows import Windows
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules

__all__ = ["SampleWindow", "recent_files"]

_log = logging.getLogger(__name__)

MOST_EVENTS = 20_000
"""Events that are kept; of more, those of the newest files."""
SAMPLED_CLASSES = 20_000

Rows = npt.NDArray[np.int64]


def recent_files(directory: Path, window_s: float) -> list[Path]:
    """The files of samples that landed within a window, by name."""
    since, found = time.time() - window_s, []
    for file in sorted(directory.glob("samples-*.parquet")):
        try:
            landed = file.stat().st_mtime
        except FileNotFoundError:  # trimmed meanwhile
            continue
        if landed >= since:
            found.append(file)
    return found


@dataclass(slots=True)
class _SampleFile:
    """The events of a file, and the rows of each batch that a filter matches, by the filter's key."""

    batches: list[pa.RecordBatch]
    rows: dict[bytes, list[Rows]] = field(default_factory=dict)

    @property
    def events(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def hold(self, filters: Sequence[Filter]) -> None:
        """Hold the events against filters that they were not held against before."""
        new = {one.key: one for one in filters if one.key not in self.rows}
        if not new:
            return
        matcher, keys = Matcher(list(new.values())), list(new)
        found: dict[bytes, list[Rows]] = {key: [] for key in keys}
        for batch in self.batches:
            matches = matcher.match(batch)
            row = np.repeat(np.arange(batch.num_rows), np.diff(matches.ends))
            order = np.argsort(matches.ids, kind="stable")
            cuts = np.searchsorted(matches.ids[order], np.arange(len(keys) + 1))
            for k, key in enumerate(keys):
                found[key].append(row[order[cuts[k] : cuts[k + 1]]])
        self.rows |= found

    def matches(self, b: int, filters: Sequence[Filter]) -> Matches:
        """What each event of a batch matches, ids in the order of the filters."""
        rows = [self.rows[one.key][b] for one in filters]
        ids = np.repeat(np.arange(len(filters), dtype=np.int32), [len(each) for each in rows])
        row = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        order = np.argsort(row, kind="stable")
        count = np.bincount(row, minlength=self.batches[b].num_rows)
        ends = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        return Matches(ends, ids[order])


class SampleWindow:
    """See the module. Call it from one thread at a time."""

    def __init__(self, directory: Path, window_s: float, most_events: int = MOST_EVENTS) -> None:
        self._directory, self._window_s, self._most_events = directory, window_s, most_events
        self._files: dict[str, _SampleFile] = {}

    def matching(
        self, plan: Plan, row: Subscription, rules: Rules
    ) -> tuple[Demand, npt.NDArray[np.bool_]] | None:
        """The demand of the events kept, for a plan, and the patterns that a newcomer matches.

        None when no event is kept. The demand has the tags of the rules.
        """
        tags = rules.tags(plan.classes.schema)
        if len(plan.classes) > SAMPLED_CLASSES or len(tags) >= MAX_TAGS:
            return None
        files = self._recent()
        if not files:
            return None
        try:
            attached = {**read_publishers(self._directory), **plan.attachments}
            newcomer = row.parse(plan.classes.schema)
        except InputError as error:
            _log.warning("newcomer %s joins without samples: %s", row.id, error)
            return None
        demand = _counted(files, plan, [*plan.classes.filters, *tags, newcomer], attached)
        mine = np.uint64(1) << np.uint64(len(tags))
        matched = (demand.tags & mine) != 0
        return replace(demand, tags=demand.tags & (mine - np.uint64(1)), tag_filters=len(tags)), matched

    def _recent(self) -> list[_SampleFile]:
        """The files of the window, the newest as far as there is room; others are forgotten."""
        kept: dict[str, _SampleFile] = {}
        events = 0
        for path in reversed(recent_files(self._directory, self._window_s)):
            if events >= self._most_events:
                break
            file = self._files.get(path.name)
            if file is None:
                try:
                    file = _SampleFile(pq.read_table(path).to_batches())
                except (OSError, pa.ArrowInvalid) as error:
                    _log.warning("%s cannot be read: %s", path, error)
                    continue
            kept[path.name] = file
            events += file.events
        self._files = kept
        return list(kept.values())


def _counted(
    files: Sequence[_SampleFile], plan: Plan, filters: Sequence[Filter], attached: dict[str, str]
) -> Demand:
    """The demand of all events; filters behind those of the classes are tags."""
    counting = TallySettings.of(plan.classes, plan.overlay, attached, grid=plan.grid)
    tally = PatternTally(counting)
    for file in files:
        file.hold(filters)
        for b, batch in enumerate(file.batches):
            tally.add(batch, file.matches(b, filters))
    return Windows.of_rows(
        tally.drain_arrays(),
        counting.split,
        tally.spans,
        tally.unknown,
        len(filters) - counting.classes,
    ).whole
