"""Panes: what a stream of samples counted, batch by batch, and sliding windows summed from it.

Owns the directory that a streaming job writes and a coordinator reads (`PaneStore`). It needs pyarrow
alone: who reads the latest window starts no Spark. How samples become patterns is `streaming`.

    out/about.json            what was counted, and how: the same for every batch
    out/panes/batch=<n>/      one finished batch: patterns.parquet, facts.json and, where there
                              are any, unknown.parquet, quarantine.parquet
    out/manifest.json         what has been merged: batches up to a number, one file a pane
    out/merged/               those files

A batch appears by one rename of its directory, complete; one that is there is never written again, so a
batch that is replayed after a crash changes nothing. Merging replaces the manifest by one rename: a reader
takes the manifest, then the batches after those that it covers. What a manifest replaces is removed only
when the one after it is made; a reader that is slower still finds a file missing, and begins again. So a
reader sees every pane once, at any moment.

The directory must be in a file system with atomic renames that job and readers share. One job writes
batches; any number of processes read; merging and trimming take turns by a lock.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramify.durable import flush_directory, replace_file, write_parquet
from ramify.errors import InputError
from ramify.pipeline.passes.table_files import QUARANTINE
from ramify.planning.demand.pattern_rows import PATTERNS
from ramify.planning.demand.splits import Split
from ramify.planning.demand.windows import Span, Windows

__all__ = ["UNKNOWN", "Facts", "PaneStore"]

_UNKNOWN: dict[str, Any] = {
    "split": pa.int32(),
    "pane": pa.int64(),
    "publisher": pa.string(),
    "events": pa.int64(),
}
UNKNOWN = pa.schema(_UNKNOWN)
"""Events whose publisher has no known broker, per window of the split, pane and name."""

_PREFIX = "batch="
_TIMELESS = "none"
_TRIES = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Facts:
    """What became of the samples of a batch, or of several: `add` them up.

    `rows_in == quarantined + duplicates + dropped + thinned + unknown + counted`, always.

    Attributes
    ----------
    rows_in        samples that came in, usable or not
    quarantined    those that are no events: no id, a bad line, a damaged file (see `PaneStore.quarantine`)
    duplicates     those whose id had been counted before
    dropped        those too old to be counted at all
    late           those that came late and were counted (or thinned out, or unknown) all the same
    thinned        those not in the sample of a sample that the split takes
    unknown        those whose publisher has no known broker
    faults         rows of the quarantine; a file that breaks off is one, whatever it held
    mark_us        the newest event time so far, in microseconds; None before there was one
    oldest_pane, newest_pane    the panes that counted events are in; None when none has a time
    spans          per window of the split the events counted and the time that they span
    """

    rows_in: int = 0
    quarantined: int = 0
    duplicates: int = 0
    dropped: int = 0
    late: int = 0
    thinned: int = 0
    unknown: int = 0
    faults: int = 0
    mark_us: int | None = None
    oldest_pane: int | None = None
    newest_pane: int | None = None
    spans: Mapping[int, Span] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """Events that are in patterns."""
        left_out = self.quarantined + self.duplicates + self.dropped + self.thinned + self.unknown
        return self.rows_in - left_out

    def add(self, other: "Facts") -> "Facts":
        """What became of the samples of both."""
        names = ("rows_in", "quarantined", "duplicates", "dropped", "late", "thinned", "unknown", "faults")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        spans = {split: replace(span) for split, span in self.spans.items()}
        for split, span in other.spans.items():
            spans.setdefault(split, Span()).add(span)
        return Facts(
            **sums,
            mark_us=_either(max, self.mark_us, other.mark_us),
            oldest_pane=_either(min, self.oldest_pane, other.oldest_pane),
            newest_pane=_either(max, self.newest_pane, other.newest_pane),
            spans=dict(sorted(spans.items())),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values; `of_json` reads them."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "spans"}
        spans = {str(split): [s.events, s.first_us, s.last_us] for split, s in self.spans.items()}
        return {**plain, "spans": spans}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> "Facts":
        """What `to_json` gave."""
        spans = {int(split): Span(*values) for split, values in plain["spans"].items()}
        return cls(**{**plain, "spans": spans})


@dataclass(frozen=True, slots=True)
class _Manifest:
    """What has been merged. Batches up to `through` are in the files named here, and nowhere else.

    Attributes
    ----------
    version     counts manifests
    through     the last batch that was merged; -1 before any was
    floor_us    panes that begin before this are gone; None when none was trimmed
    panes       start of the pane (or `none`: events without a time) -> file of its patterns
    unknown     the file of unknown publishers
    quarantine  files of what could not be used, one for each merge that found any
    facts       of all merged batches together
    """

    version: int = 0
    through: int = -1
    floor_us: int | None = None
    panes: Mapping[str, str] = field(default_factory=dict)
    unknown: str | None = None
    facts: Facts = Facts()
    quarantine: tuple[str, ...] = ()

    @property
    def files(self) -> set[str]:
        return {*self.panes.values(), *([self.unknown] if self.unknown else []), *self.quarantine}


@dataclass(frozen=True, slots=True)
class _View:
    """What a reader goes by: a manifest and the finished batches after it."""

    manifest: _Manifest
    batches: tuple[int, ...]


class PaneStore:
    """The panes below a directory. Opening it costs nothing; every call reads what is there by then."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        # facts of finished batches, which never change
        self._facts: dict[int, Facts] = {}

    # --------------------------------------------------------------------------------------- reading

    @property
    def about(self) -> dict[str, Any]:
        """What was counted, and how. Raises `InputError` when nothing has been started here."""
        try:
            return dict(json.loads((self.out / "about.json").read_bytes()))
        except FileNotFoundError:
            raise InputError(
                "there are no panes here; start following samples", path=str(self.out)
            ) from None

    @property
    def pane_us(self) -> int:
        """How long a pane is, in microseconds."""
        return int(self.about["pane_us"])

    def latest(self) -> int | None:
        """The start of the newest pane that has events, in microseconds; None when there is none."""
        return self._reading(self._newest)

    def facts(self) -> Facts:
        """What became of all samples so far."""
        return self._reading(self._all_facts)

    def has(self, batch: int) -> bool:
        """Whether a batch is finished, merged or not."""
        return batch <= self._manifest().through or self._place(batch).is_dir()

    def window(
        self, width_s: float, end_us: int | None = None, *, half_life_s: float | None = None
    ) -> Windows:
        """The demands of the panes in [end - width, end), over all finished batches.

        Without an end it is that of the newest pane, which may still be filling; `end_us=store.latest()`
        leaves that one out. Each demand's `seconds` is the width. Events without a time are in no window
        (see `everything`). With a half-life, demands have what events decayed to by the last pane with any.
        Reads the files of these panes, and of batches not merged yet; O(rows log rows).

        Raises
        ------
        InputError
            When width or end is not a multiple of a pane, or there is no pane yet, or some were trimmed.
        """
        pane_us, width_us = self.pane_us, round(width_s * 1e6)
        if width_us <= 0 or width_us % pane_us or (end_us or 0) % pane_us:
            raise InputError(
                f"a window of {width_s} s that ends at {end_us}: both must be whole panes of "
                f"{pane_us / 1e6:g} s, and the width above 0",
                path=str(self.out),
            )
        if end_us is None:
            newest = self.latest()
            if newest is None:
                raise InputError("there is no pane yet; wait for the first batch", path=str(self.out))
            end_us = newest + pane_us
        low, high = end_us - width_us, end_us
        return self._reading(lambda view: self._summed(view, low, high, half_life_s))

    def everything(self) -> Windows:
        """The demands of all that is kept, events without a time among them: what one pass would count.

        Each demand's `seconds` is the time that its events span (from the first pane kept, after a trim).
        """
        return self._reading(self._whole)

    def patterns(self) -> pa.Table:
        """All rows that are kept (`PATTERNS`, pane by pane), equal ones added up, in one fixed order."""
        return self._reading(lambda view: _added_up(self._rows(view, None, None), _PATTERN_KEYS))

    def quarantine(self) -> pa.Table:
        """All that could not be used so far (`QUARANTINE`), by file and position.

        Rows that came without a file have none, and their position is the number within a task.
        """
        order: Any = [(name, "ascending") for name in ("file", "position", "reason")]
        return self._reading(self._rejects).sort_by(order)

    # --------------------------------------------------------------------------------------- writing

    def begin(self, about: Mapping[str, Any]) -> None:
        """Start the directory, or go on with one that was started for the same.

        Raises
        ------
        InputError
            When what is there was counted otherwise: its numbers mean something else.
        """
        for name in ("panes", "merged"):
            (self.out / name).mkdir(parents=True, exist_ok=True)
        wanted = json.loads(json.dumps(dict(about)))
        if not (self.out / "about.json").exists():
            replace_file(self.out / "about.json", json.dumps(wanted, indent=2, sort_keys=True).encode())
        found = self.about
        if found != wanted:
            other = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
            raise InputError(
                f"the panes here were counted with another {', '.join(other)}; take another directory",
                path=str(self.out),
            )

    def publish(
        self,
        batch: int,
        facts: Facts,
        patterns: pa.Table,
        unknown: pa.Table,
        quarantine: pa.Table | None = None,
    ) -> bool:
        """Make a batch visible, all at once; False when it was there already, and nothing is changed."""
        if self.has(batch):
            return False
        work = self.out / "panes" / f".{_PREFIX}{batch:012d}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        spread: Any = pc.min_max(patterns["pane"])
        oldest, newest = spread["min"].as_py(), spread["max"].as_py()
        faults = 0 if quarantine is None else quarantine.num_rows
        facts = replace(facts, oldest_pane=oldest, newest_pane=newest, faults=faults)
        write_parquet(work / "patterns.parquet", _added_up(patterns.select(PATTERNS.names), _PATTERN_KEYS))
        if unknown.num_rows:
            write_parquet(work / "unknown.parquet", _added_up(unknown, _UNKNOWN_KEYS))
        if quarantine is not None and quarantine.num_rows:
            write_parquet(work / "quarantine.parquet", quarantine.select(QUARANTINE.names).cast(QUARANTINE))
        replace_file(work / "facts.json", json.dumps(facts.to_json(), sort_keys=True).encode())
        os.rename(work, self._place(batch))
        flush_directory(self.out / "panes")
        return True

    def compact(self, before: int | None = None) -> int:
        """Merge the finished batches with a number below `before` (all, without) into one file a pane.

        Returns how many were merged. Only panes that these batches touch are written again. Readers and
        the job may go on meanwhile.
        """
        with self._locked():
            view = self._view()
            chosen = tuple(n for n in view.batches if before is None or n < before)
            if chosen:
                self._install(view.manifest, self._merged(view.manifest, chosen))
            return len(chosen)

    def trim(self, before_us: int) -> None:
        """Forget the panes that begin before a time. What comes for them later is not read either."""
        with self._locked():
            old = self._manifest()
            floor = max(before_us, before_us if old.floor_us is None else old.floor_us)
            kept = {
                pane: name for pane, name in old.panes.items() if pane == _TIMELESS or int(pane) >= floor
            }
            self._install(old, replace(old, version=old.version + 1, floor_us=floor, panes=kept))

    # --------------------------------------------------------------------------------------- helpers

    def _place(self, batch: int) -> Path:
        return self.out / "panes" / f"{_PREFIX}{batch:012d}"

    def _manifest(self) -> _Manifest:
        try:
            plain = json.loads((self.out / "manifest.json").read_bytes())
        except FileNotFoundError:
            return _Manifest()
        plain["quarantine"] = tuple(plain.get("quarantine", ()))
        return _Manifest(**{**plain, "facts": Facts.of_json(plain["facts"])})

    def _view(self) -> _View:
        # The manifest first: a batch that it does not cover cannot go away before the next one.
        manifest = self._manifest()
        try:
            names = os.listdir(self.out / "panes")
        except FileNotFoundError:
            names = []
        numbers = (int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX))
        return _View(manifest, tuple(sorted(n for n in numbers if n > manifest.through)))

    def _reading(self, read: Callable[[_View], T]) -> T:
        """Read by one view; again by a new one when files of it have been replaced meanwhile."""
        for _ in range(_TRIES):
            view = self._view()
            try:
                return read(view)
            except FileNotFoundError as error:
                missing = error
                if self._manifest().version == view.manifest.version:
                    break
        raise InputError(f"a file of the panes is missing: {missing}", path=str(self.out))

    def _facts_of(self, batch: int) -> Facts:
        if batch not in self._facts:
            self._facts[batch] = Facts.of_json(json.loads((self._place(batch) / "facts.json").read_bytes()))
        return self._facts[batch]

    def _all_facts(self, view: _View) -> Facts:
        self._facts = {n: facts for n, facts in self._facts.items() if n > view.manifest.through}
        whole = view.manifest.facts
        for batch in view.batches:
            whole = whole.add(self._facts_of(batch))
        return whole

    def _newest(self, view: _View) -> int | None:
        panes = [int(pane) for pane in view.manifest.panes if pane != _TIMELESS]
        newest = (self._facts_of(batch).newest_pane for batch in view.batches)
        panes += [pane for pane in newest if pane is not None]
        floor = view.manifest.floor_us
        return max((pane for pane in panes if floor is None or pane >= floor), default=None)

    def _summed(self, view: _View, low: int, high: int, half_life_s: float | None) -> Windows:
        floor = view.manifest.floor_us
        if floor is not None and low < floor:
            raise InputError(
                f"the window begins at {low}, and panes before {floor} were trimmed away; ask for a "
                "shorter or later one",
                path=str(self.out),
            )
        about = self.about
        spans = {split: Span(0, low, high) for split in range(len(about["shares"]))}
        rows, strangers = self._rows(view, low, high), self._strangers(view, low, high)
        return _windows(about, rows, spans, strangers, half_life_s)

    def _whole(self, view: _View) -> Windows:
        spans, floor = self._all_facts(view).spans, view.manifest.floor_us
        if floor is not None:
            spans = {split: _cut(span, floor) for split, span in spans.items()}
        return _windows(self.about, self._rows(view, None, None), spans, self._strangers(view, None, None))

    def _rows(self, view: _View, low: int | None, high: int | None) -> pa.Table:
        """Pattern rows of the panes in [low, high), or of all that are kept."""
        span = None if low is None or high is None else range(low, high)
        tables = [
            _read(self.out / "merged" / name, PATTERNS)
            for pane, name in view.manifest.panes.items()
            if span is None or (pane != _TIMELESS and int(pane) in span)
        ]
        for batch in view.batches:
            facts = self._facts_of(batch)
            if span is None or _touches(facts, span.start, span.stop):
                rows = _read(self._place(batch) / "patterns.parquet", PATTERNS)
                tables.append(_between(rows, low, high, view.manifest.floor_us))
        return pa.concat_tables([PATTERNS.empty_table(), *tables])

    def _strangers(self, view: _View, low: int | None, high: int | None) -> pa.Table:
        """Unknown publishers of the same panes."""
        files = [self.out / "merged" / view.manifest.unknown] if view.manifest.unknown else []
        with_any = (batch for batch in view.batches if self._facts_of(batch).unknown)
        files += [self._place(batch) / "unknown.parquet" for batch in with_any]
        floor = view.manifest.floor_us
        tables = [_between(_read(file, UNKNOWN), low, high, floor) for file in files]
        return _added_up(pa.concat_tables([UNKNOWN.empty_table(), *tables]), _UNKNOWN_KEYS)

    def _rejects(self, view: _View) -> pa.Table:
        """What could not be used, merged or not."""
        merged = [_read(self.out / "merged" / name, QUARANTINE) for name in view.manifest.quarantine]
        return pa.concat_tables([QUARANTINE.empty_table(), *merged, *map(self._rejects_of, view.batches)])

    def _rejects_of(self, batch: int) -> pa.Table:
        if not self._facts_of(batch).faults:
            return QUARANTINE.empty_table()
        return _read(self._place(batch) / "quarantine.parquet", QUARANTINE)

    def _merged(self, old: _Manifest, chosen: tuple[int, ...]) -> _Manifest:
        """Write what some batches add to the merged files; the manifest that names the new ones."""
        version, only = old.version + 1, _View(replace(old, panes={}, unknown=None), chosen)
        rows, panes = self._rows(only, None, None), dict(old.panes)
        touched: Any = pc.unique(rows["pane"])
        for pane in touched.to_pylist():
            key = _TIMELESS if pane is None else str(pane)
            own: Any = pc.is_null(rows["pane"]) if pane is None else pc.equal(rows["pane"], pa.scalar(pane))
            tables = [rows.filter(own)]
            if key in panes:
                tables.append(_read(self.out / "merged" / panes[key], PATTERNS))
            panes[key] = f"{key}-{version}.parquet"
            write_parquet(
                self.out / "merged" / panes[key], _added_up(pa.concat_tables(tables), _PATTERN_KEYS)
            )
        strangers = self._strangers(_View(old, chosen), None, None)
        unknown = f"unknown-{version}.parquet" if strangers.num_rows else None
        if unknown is not None:
            write_parquet(self.out / "merged" / unknown, strangers)
        rejects = pa.concat_tables(map(self._rejects_of, chosen))
        quarantine = (*old.quarantine, f"quarantine-{version}.parquet") if len(rejects) else old.quarantine
        if len(rejects):
            write_parquet(self.out / "merged" / quarantine[-1], rejects)
        facts = old.facts
        for batch in chosen:
            facts = facts.add(self._facts_of(batch))
        return _Manifest(version, chosen[-1], old.floor_us, panes, unknown, facts, quarantine)

    def _install(self, old: _Manifest, new: _Manifest) -> None:
        """Make a manifest the one that readers find, then remove what neither it nor the old one needs."""
        plain = {name: getattr(new, name) for name in new.__slots__ if name not in ("facts", "panes")}
        plain |= {"panes": dict(new.panes), "facts": new.facts.to_json()}
        flush_directory(self.out / "merged")
        replace_file(self.out / "manifest.json", json.dumps(plain, sort_keys=True).encode())
        for name in os.listdir(self.out / "merged"):
            if name not in old.files | new.files:
                (self.out / "merged" / name).unlink(missing_ok=True)
        for name in os.listdir(self.out / "panes"):
            if name.startswith(_PREFIX) and int(name.removeprefix(_PREFIX)) <= old.through:
                shutil.rmtree(self.out / "panes" / name, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One merge or trim at a time. The lock goes with the process that holds it."""
        with (self.out / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_PATTERN_KEYS = PATTERNS.names[:-2]
_UNKNOWN_KEYS = UNKNOWN.names[:-1]


def _added_up(rows: pa.Table, keys: list[str]) -> pa.Table:
    """Rows with equal keys as one, its other columns summed; sorted by the keys."""
    sums: Any = [(name, "sum") for name in rows.column_names if name not in keys]
    grouped = rows.group_by(keys, use_threads=False).aggregate(sums)
    grouped = grouped.rename_columns([name.removesuffix("_sum") for name in grouped.column_names])
    order: Any = [(name, "ascending") for name in keys]
    return (
        grouped.take(pc.sort_indices(grouped, sort_keys=order)).select(rows.column_names).cast(rows.schema)
    )


def _between(rows: pa.Table, low: int | None, high: int | None, floor: int | None) -> pa.Table:
    """Rows with a pane in [low, high) and not below the floor; without low, those without a time too."""
    compute: Any = pc  # the stubs take each result for a scalar
    if low is not None:
        pane = rows["pane"]
        rows = rows.filter(compute.and_(compute.greater_equal(pane, low), compute.less(pane, high)))
    if floor is not None:
        pane = rows["pane"]
        kept = compute.fill_null(compute.greater_equal(pane, floor), True)
        rows = rows.filter(kept)
    return rows


def _touches(facts: Facts, low: int, high: int) -> bool:
    if facts.oldest_pane is None or facts.newest_pane is None:
        return False
    return facts.oldest_pane < high and facts.newest_pane >= low


def _windows(
    about: Mapping[str, Any],
    rows: pa.Table,
    spans: Mapping[int, Span],
    strangers: pa.Table,
    half_life_s: float | None = None,
) -> Windows:
    split = Split(tuple(about["shares"]), about["keep"], about["seed"])
    unknown: dict[tuple[int, str | None], int] = {}
    for row in strangers.to_pylist():
        key = row["split"], row["publisher"]
        unknown[key] = unknown.get(key, 0) + row["events"]
    decay: dict[str, Any] = {"half_life_s": half_life_s, "pane_us": about["pane_us"]}
    return Windows.of_rows(rows, split, spans, unknown, about["tag_filters"], **decay)


def _cut(span: Span, floor: int) -> Span:
    if span.first_us is None or span.last_us is None:
        return span
    return Span(span.events, max(span.first_us, floor), max(span.last_us, floor))


def _either(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    return pq.ParquetFile(path).read().cast(schema)
