"""A log studied: what of it is counted, where its clients are, and what the schemes make of it.

Owns `study` and `LogStudy`. Counting is the pipeline's, planning and choosing are `planning.choosing`'s.
Here they are put together, and what was asked for is checked before any event is read.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ramify.content.filters.space import Grid
from ramify.errors import InputError
from ramify.planning.choosing.placements import (
    ALGORITHMS,
    PlacedStudy,
    place_study,
    read_access,
    read_capacity,
)
from ramify.planning.choosing.study import (
    SHARES,
    Study,
    check_request,
    compare,
    grid_of,
    prepare,
    weights_for,
)
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings, check_tags
from ramify.planning.demand.windows import Windows
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.rules import Rules
from ramify.planning.schemes.catalog import SCHEMES, scheme_from
from ramify.planning.schemes.scheme import Progress, silent
from ramify.planning.schemes.shared.grids import grid_for
from ramify.studies.fields import half_life_s
from ramify.studies.findings import Findings
from ramify.studies.inputs import AnyPath, AnyPlan, AnyRules, as_rules
from ramify.studies.logs import Log, OpenLog
from ramify.studies.rejects import Rejects, several
from ramify.studies.sessions import Spark, engine_of
from ramify.studies.text_tables import html_lines

__all__ = ["LogStudy", "Schemes", "study"]

Schemes: TypeAlias = str | Sequence[str] | None
"""Specs of schemes, in a list or in one text separated by spaces; None is all built-in schemes."""

TODAY = "mirror-all"


def study(
    log: Log,
    *,
    rules: AnyRules | None = None,
    hours: float | None = None,
    sample: float = 1.0,
    keep: float = 1.0,
    half_life: str | float | None = None,
    place: str | None = None,
    access: Mapping[tuple[str, str], float] | AnyPath | None = None,
    capacity: Mapping[str, float] | AnyPath | None = None,
    overlap: AnyPath | None = None,
    schemes: Schemes = (),
    today: str | AnyPlan = TODAY,
    tables: str | None = None,
    seed: int = 1,
    spark: Spark | None = None,
) -> "LogStudy":
    """Count a log, once, for planning: half of its events to plan on, a quarter to choose by, a quarter to
    report on.

    Parameters
    ----------
    rules            capacities, quotas and residency: `Rules`, a mapping, or a JSON file
    hours            the time that the log spans, where the events' own times do not tell
    sample           the share of all published events that the log holds
    keep             the share of the log to look at, by a hash of event ids
    half_life        plan for recent events: one that is this much older counts half (`1h`, or seconds).
                     Prices count all events alike
    place            a placement algorithm: first choose where clients attach. `access` (prices by client
                     and broker) and `capacity` (10^6 bytes a second by broker) belong to it
    overlap          a directory that `write_tables` wrote: SemCast builds its hierarchies by it
    schemes, today   what `LogStudy.compare` will be asked, where that is known. Schemes that divide the
                     content space (kyra, mbr, zhao-wu) need events counted by cell: named here, the log is
                     read once, otherwise once more when they are compared
    tables           a directory to write the tables of demand and quarantine to
    seed             of the split, and of what schemes draw
    spark            where to count; that of the log unless given

    Raises `InputError` for what cannot be studied, such as a log without any usable event.

    >>> import ramify
    >>> log = ramify.read_log("examples/events.ndjson", subscriptions="examples/subscriptions.jsonl",
    ...                       attachments="examples/attachments.json")
    >>> study = ramify.study(log, rules="examples/rules.json", hours=24)
    >>> study
    Study of 4 events and 5 subscriptions on cloud-regions (41 brokers): nothing is held back, 24 hours
    not used: 1 of 5 events in 1 file, 1 of 6 subscriptions; the rest was used
    >>> found = study.compare(["mst", "explicit"], today="hub=aws-eu-central-1")
    >>> found.best.name
    'explicit'
    """
    if not isinstance(log, Log):
        raise InputError(f"a study is of a log, not of {type(log).__name__}. Make one with read_log.")
    names = _names(schemes)
    limits = _PlacementSettings.of(place, access, capacity, today)
    _check_overlap(overlap, place, names)
    settings = _StudySettings(
        as_rules(rules, log.overlay),
        Split(SHARES, keep, seed),
        sample,
        hours,
        half_life_s(half_life),
        limits,
        None if overlap is None else Path(overlap),
        seed,
        log.spark if spark is None else spark,
    )
    with _as_spec(today) as spec:
        later = not names and not isinstance(schemes, str)  # nothing is asked yet
        check_request(None if names is None or later else list(names), spec, sample, hours)
        return LogStudy(log, settings, names, spec, tables)


class LogStudy:
    """A log that was counted for planning; make one with `study`.

    Attributes
    ----------
    log          what was studied
    rules        what every plan must keep
    placement    where clients were moved to, and what that costs; None where they stayed
    rejected     what of the log this study could not use
    """

    rejected: Rejects

    def __init__(
        self,
        log: Log,
        settings: "_StudySettings",
        schemes: tuple[str, ...] | None,
        today: str,
        tables: str | None = None,
    ) -> None:
        self.log = log
        self.rules = settings.rules
        self.placement: PlacedStudy | None = None
        self._settings = settings
        self._grid: Grid | None = None
        self._count(schemes, today, tables)

    @property
    def problem(self) -> Problem:
        """What schemes are given: the overlay, the classes, and the demand of the training window."""
        return self.study.problem

    @property
    def half_life_s(self) -> float | None:
        """The half-life that events were counted with, in seconds."""
        return self._settings.half_life_s

    def compare(
        self,
        schemes: Schemes = None,
        *,
        today: str | AnyPlan = TODAY,
        seconds: float | None = 20.0,
        per_filter: float = 0.0,
        per_matching: float = 0.0,
        seed: int | None = None,
        progress: Progress = silent,
    ) -> Findings:
        """Make, check and price the plans of schemes beside what is run today, and choose.

        The chosen plan is the cheapest on the validation window that keeps every rule; figures are of the
        test window, which neither planning nor choosing has seen.

        Parameters
        ----------
        schemes         specs such as `mult` or `portfolio:trees=8`; by default all built-in schemes
        today           what you run now: a spec, a `Plan`, or a plan file
        seconds         the time budget of each scheme that takes one
        per_filter      money a month for a filter that a broker stores, counted in the choice
        per_matching    money for a million matchings
        progress        called with the share that is done and what is being done

        >>> import ramify
        >>> log = ramify.read_log(workload="demo:events=400,subscriptions=20")
        >>> found = ramify.study(log).compare(["mst", "explicit"])
        >>> found.to_frame()[["scheme", "channels", "gap"]].round(2)
               scheme  channels     gap
        0    explicit         1    1.00
        1         mst         1    1.57
        2  mirror-all        41  259.30
        """
        names = _names(schemes)
        with _as_spec(today) as spec:
            check_request(None if names is None else list(names), spec)
            placing = self._settings.place is not None
            cells = _wanted_grid(names, spec, self.problem.classes, placing)
            if cells is not None and cells != self._grid:
                self._count(names, spec)
            found = compare(
                self.study,
                None if names is None else list(names),
                today=spec,
                weights=weights_for(self.study, per_filter, per_matching),
                seconds=seconds,
                seed=self._settings.seed if seed is None else seed,
                progress=progress,
            )
        return Findings(self.study, found, self.rejected, self.half_life_s)

    def _count(self, schemes: tuple[str, ...] | None, today: str, tables: str | None = None) -> None:
        """Read and count the log, by the cells that these schemes need; then move clients."""
        from ramify.pipeline.session.failures import doing

        asked = self._settings
        with engine_of(asked.spark, brief=self.log.is_brief) as session, doing("reading the log"):
            log = self.log.open(session)
            if not len(log.classes) and not log.listed.bad:
                raise InputError("the log has no subscriptions to plan for. Give some to read_log.")
            grid = _wanted_grid(schemes, today, log.classes, asked.place is not None)
            windows = self._windows(session, log, grid, tables)
        study = prepare(
            self.log.overlay,
            log.classes,
            windows,
            log.attachments,
            publishers=log.publishers,
            advertisements=log.advertisements,
            rules=self.rules,
            sample=asked.sample,
            hours=asked.hours,
            grid=grid,
        )
        self._grid = grid
        if asked.overlap is not None:
            study = self._with_overlap(study, asked.overlap)
        if asked.place is not None:
            self.placement = place_study(
                study,
                asked.place.algorithm,
                asked.seed,
                access=asked.place.access,
                capacity=asked.place.capacity,
            )
            study = self.placement.study
        self.study = study

    def _windows(self, session: Any, log: OpenLog, grid: Grid | None, tables: str | None) -> Windows:
        """The demands of the log; what could not be used is noted with it."""
        from ramify.pipeline.passes.passes import reckoned

        asked = self._settings
        tags = self.rules.tags(log.classes.schema)
        check_tags(tags)
        counting = TallySettings.of(
            log.classes,
            self.log.overlay,
            log.attachments,
            split=asked.split,
            grid=grid,
            by_client=asked.place is not None,
            half_life_s=asked.half_life_s,
        )
        with reckoned(session, log.source, [*log.classes.filters, *tags], counting) as found:
            if tables is not None:
                from ramify.pipeline.jobs import write_demand

                write_demand(found, log.classes, tables)
            self._note(log.rejects(found))
            return found.windows()

    def _note(self, rejects: Rejects) -> None:
        """Keep what could not be used. The log keeps it too, until it is read again with other settings."""
        self.rejected = rejects
        self.log.note(rejects)

    def _with_overlap(self, study: Study, under: Path) -> Study:
        """The same with the overlap of stored tables."""
        from ramify.pipeline.tables.stored_overlap import read_overlap

        stored = read_overlap(under, study.problem.classes, half_life_s=self.half_life_s)
        if not stored.exact:
            note = "the overlap is sketched: classes that contain others may not be known to"
            self._note(replace(self.rejected, notes=(*self.rejected.notes, note)))
        return replace(study, problem=replace(study.problem, overlap=stored.overlap))

    def __repr__(self) -> str:
        study, log = self.study, self.log
        members = sum(map(len, study.problem.classes.members))
        held = "a half is held back" if study.held_back else "nothing is held back"
        hours = study.whole.seconds / 3600
        spans = f"{hours:,.4g} {'hour' if hours == 1 else 'hours'}" if hours else "of unknown time"
        said = (
            f"Study of {several(study.events, 'event')} and {several(members, 'subscription')} on "
            f"{log.overlay.name} ({several(len(log.overlay), 'broker')}): {held}, {spans}"
        )
        return f"{said}\n{self.rejected.summary}" if self.rejected else said

    def _repr_html_(self) -> str:
        first, *rest = repr(self).split("\n")
        return html_lines(first, [*rest, *self.rejected.lines()])


# -------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class _PlacementSettings:
    """How clients are placed before planning."""

    algorithm: str
    access: Mapping[tuple[str, str], float] | None
    capacity: Mapping[str, float] | None

    @classmethod
    def of(
        cls, place: str | None, access: Any, capacity: Any, today: str | AnyPlan
    ) -> "_PlacementSettings | None":
        """None without an algorithm; refuses what does not go together before any event is read."""
        if place is None:
            for name, given in (("access", access), ("capacity", capacity)):
                if given is not None:
                    raise InputError(f"{name} has no meaning without a placement (place).")
            return None
        if place not in ALGORITHMS:
            raise InputError(f"no placement algorithm {place!r}. Use one of: {', '.join(ALGORITHMS)}.")
        if isinstance(today, Plan) or Path(today).is_file():
            raise InputError(
                "a placement moves clients, and a plan fits only where they are. Name a scheme for today."
            )
        prices = read_access(Path(access)) if isinstance(access, str | os.PathLike) else access
        room = read_capacity(Path(capacity)) if isinstance(capacity, str | os.PathLike) else capacity
        return cls(place, prices, room)


@dataclass(frozen=True, slots=True)
class _StudySettings:
    """What a study was asked for."""

    rules: Rules
    split: Split
    sample: float
    hours: float | None
    half_life_s: float | None
    place: _PlacementSettings | None
    overlap: Path | None
    seed: int
    spark: Spark


@contextmanager
def _as_spec(today: str | AnyPlan) -> Iterator[str]:
    """What is run today as a text; a plan is put into a file for a while."""
    if not isinstance(today, Plan):
        yield os.fspath(today)
        return
    with tempfile.TemporaryDirectory(prefix="ramify-plan-") as folder:
        path = Path(folder) / "plan.json"
        today.save(path)
        yield str(path)


def _names(schemes: Schemes) -> tuple[str, ...] | None:
    if schemes is None:
        return None
    return tuple(schemes.split() if isinstance(schemes, str) else schemes)


def _check_overlap(under: AnyPath | None, place: str | None, schemes: tuple[str, ...] | None) -> None:
    """Refuse tables that cannot be used before any event is read."""
    if under is None:
        return
    if place is not None:
        raise InputError(
            "a placement (--place) moves clients, and overlap tables fit only where they are now. "
            "Leave one out."
        )
    if schemes and not any(spec == "auto" or scheme_from(spec)[1].overlap for spec in schemes):
        going = [name for name, scheme in SCHEMES.items() if scheme.overlap]
        raise InputError(f"none of the schemes uses overlap tables. Name one of: {', '.join(going)}.")
    if not (Path(under) / "overlap").is_dir():
        raise InputError(
            "this directory has no table 'overlap'; `ramify tables --out` writes it", path=str(under)
        )


def _wanted_grid(schemes: tuple[str, ...] | None, today: str, classes: Any, placing: bool) -> Grid | None:
    grid = grid_of(None if schemes is None else list(schemes), today, classes)
    return grid_for(classes) if placing and grid is None else grid
