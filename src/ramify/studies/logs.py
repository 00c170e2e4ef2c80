"""Logs: where events are, the subscriptions to them, and what could not be used.

Owns `read_log` and `Log`, and the step from them to a source of the pipeline. A log is described first and
read when something asks for its events; what was wrong in it is then in `Log.rejected`.
"""

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from glob import iglob
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ramify.content.events.attributes import CONTEXT_NAMES, TEXT_MARK
from ramify.content.events.events import EventSchema
from ramify.content.events.flatten import FieldMapping
from ramify.content.filters.filters import Filter
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.subscriptions import Subscription, Subscriptions, read_subscriptions
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings
from ramify.planning.plans.plan import Plan
from ramify.studies.fields import field_mapping
from ramify.studies.inputs import (
    AnyAttachments,
    AnyOverlay,
    AnyPath,
    AnySchema,
    as_attachments,
    as_overlay,
    as_schema,
)
from ramify.studies.rejects import ROWS_SHOWN, RejectedRow, Rejects, several
from ramify.studies.sessions import DEFAULT_SPARK, Spark, engine_of, on_this_machine, sees_local_files
from ramify.studies.text_tables import html_lines
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload

if TYPE_CHECKING:
    from ramify.pipeline.passes.passes import PassResult
    from ramify.pipeline.passes.sources import Source

__all__ = ["AnyEvents", "AnySubscriptions", "Log", "OpenLog", "read_log"]

AnyEvents: TypeAlias = Any
"""A path, glob or URL, several of them, a list of dicts, or a table of pandas or pyarrow."""
AnySubscriptions: TypeAlias = AnyPath | Iterable[Mapping[str, Any] | Subscription]
"""A file of JSON lines, or such objects."""

_NONE_LISTED = Subscriptions((), (), ())
_BRIEF_BYTES = 32 << 20
_BRIEF_EVENTS = 100_000


def read_log(
    events: AnyEvents = None,
    *,
    subscriptions: AnySubscriptions | None = None,
    overlay: AnyOverlay = "cloud-regions",
    attachments: AnyAttachments | None = None,
    workload: str | None = None,
    schema: AnySchema | None = None,
    id_field: str | None = "id",
    publisher_field: str | None = "publisher",
    time_field: str | None = "time",
    time_unit: str = "none",
    seed: int = 1,
    spark: Spark = DEFAULT_SPARK,
    count_copies: bool = False,
) -> "Log":
    """A log of events, with the subscriptions to them.

    Only the small files are read now. The events are read when they are counted (`study`, `price`,
    `simulate`), or when you look at `Log.rejected`.

    Parameters
    ----------
    events           files, directories, globs or URLs (NDJSON, CloudEvents, Parquet), one or several; or a
                     list of dicts, or a table of pandas or pyarrow with a column `id`
    subscriptions    a file of JSON lines, or a list of dicts: id, client, broker, and sql, pattern or
                     keywords. A log without them can be priced and simulated, not studied
    overlay          an `Overlay`, a file, or a name such as `cloud-regions` or `ring:5`
    attachments      client -> broker, or a JSON file with that: where publishers are
    workload         instead of events and subscriptions: a built-in model such as `demo:events=1000`
    schema           attribute -> type, or a JSON file with that; else types are inferred
    id_field, ...    which fields of a record are its id, publisher and time; `id_field="none"` numbers
                     records, `time_unit` is `s` or `ms` where times are numbers
    seed             of the workload
    spark            where events are counted, unless the use case names another place
    count_copies     count a local file though it repeats another one byte for byte. Else it is left out,
                     and `Log.rejected.copies` names both

    Raises `InputError` for a missing file or a file of another form. Rows that cannot be used are not
    errors: see `Log.rejected`.

    >>> import ramify
    >>> log = ramify.read_log("examples/events.ndjson", subscriptions="examples/subscriptions.jsonl",
    ...                       attachments="examples/attachments.json")
    >>> log
    Log of examples/events.ndjson on cloud-regions (41 brokers), not read yet
    >>> log.rejected.reasons
    {'no_id': 1}
    >>> log
    Log of examples/events.ndjson on cloud-regions (41 brokers): 5 events in 1 file, 6 subscriptions
    not used: 1 of 5 events in 1 file, 1 of 6 subscriptions; the rest was used
    """
    graph = as_overlay(overlay)
    mapping = field_mapping(id_field, publisher_field, time_field, time_unit)
    placed, file = as_attachments(attachments)
    given = _LogSettings(graph, mapping, as_schema(schema), placed, file, count_copies)
    if workload is not None:
        if events is not None or subscriptions is not None:
            raise InputError("give a workload, or events with subscriptions, not both.")
        return Log(given, _ModelEvents(workload, workload_from(workload, graph, seed)), None, spark)
    if events is None:
        raise InputError("no events are given. Name files of events, or a workload such as demo.")
    if isinstance(subscriptions, str | os.PathLike) and not Path(subscriptions).is_file():
        raise InputError("there is no such file of subscriptions", path=os.fspath(subscriptions))
    return Log(given, _events(events, spark), subscriptions, spark)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log that can be counted: its source, the classes of its subscriptions, attachments.

    `listed` are the subscriptions as they were read, `misplaced` attachments that cannot be used, `notes`
    what may be a slip though nothing is lost, `copies` files that were left out, each with the one that
    it repeats.
    """

    source: "Source"
    classes: Classes
    attachments: Mapping[str, str]
    publishers: tuple[str, ...] | None = None
    advertisements: Mapping[int, list[Filter]] | None = None
    listed: Subscriptions = _NONE_LISTED
    misplaced: tuple[RejectedRow, ...] = ()
    notes: tuple[str, ...] = ()
    memory: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)

    def rejects(self, found: "PassResult", **given: Any) -> Rejects:
        """What a pass over it, and the reading of its subscriptions, could not use."""
        return Rejects.of(
            found,
            memory=self.memory,
            subscriptions=self.listed.bad,
            subscriptions_in=len(self.listed.bad) + len(self.listed.good),
            misplaced=self.misplaced,
            notes=self.notes,
            copies=self.copies,
            **given,
        )


class Log:
    """Events and the subscriptions to them; make one with `read_log`.

    Attributes
    ----------
    overlay     the brokers and links
    spark       where it is read unless a use case names another place
    rejected    what could not be used; the first look at it reads the log, if nothing has before
    """

    def __init__(
        self,
        given: "_LogSettings",
        events: "_EventFiles | _EventObjects | _ModelEvents",
        subscriptions: AnySubscriptions | None,
        spark: Spark,
    ) -> None:
        self.overlay = given.overlay
        self.spark = spark
        self._given = given
        self._events = events
        self._subscriptions = _rows(subscriptions)
        self._rejects: Rejects | None = None

    @property
    def workload(self) -> Workload | None:
        """The built-in model that it is of, if it is of one."""
        return self._events.workload if isinstance(self._events, _ModelEvents) else None

    @property
    def is_brief(self) -> bool:
        """Whether it is plainly small: files of this machine with some megabytes together, or objects."""
        return not isinstance(self._events, _ModelEvents) and self._events.is_brief

    @property
    def is_read(self) -> bool:
        """Whether its events have been read, so that `rejected` costs nothing."""
        return self._rejects is not None

    @property
    def rejected(self) -> Rejects:
        """What could not be used, by the last reading of the log; without one, it is read now."""
        if self._rejects is None:
            from ramify.pipeline.passes.passes import reckoned
            from ramify.pipeline.session.failures import doing

            with engine_of(self.spark, brief=self.is_brief) as session, doing("reading the log"):
                opened = self.open(session)
                counting = TallySettings.of(opened.classes, self.overlay, opened.attachments, split=Split())
                with reckoned(session, opened.source, opened.classes.filters, counting) as found:
                    self.note(opened.rejects(found))
        assert self._rejects is not None
        return self._rejects

    def note(self, rejects: Rejects, *, events_alone: bool = False) -> None:
        """Keep what a reading could not use; one of the events alone only if there is no other."""
        if not events_alone or self._rejects is None:
            self._rejects = rejects

    def open(self, session: Any) -> OpenLog:
        """Look at the files, and read the subscriptions with the types that their events have."""
        if isinstance(self._events, _ModelEvents):
            return self._generated(self.overlay)
        if self._subscriptions is None:
            source, memory = self._files(session, self._given.schema)
            attached, misplaced = self._given.attached(self.overlay)
            classes = Classes.collapse((), self.overlay, source.schema.attributes)
            return OpenLog(
                source, classes, attached, misplaced=misplaced, memory=memory, copies=source.copies
            )
        source, memory = self._files(session, self._given.schema)
        types = source.schema.attributes
        listed = read_subscriptions(self._subscriptions, types, self.overlay.index)
        if self._given.schema is None and _asked_beyond(listed, types.keys() | source.beside):
            # a field that filters ask for may come later in the log than the records looked at
            source = source.looked_through(session)
            types = source.schema.attributes
            listed = read_subscriptions(self._subscriptions, types, self.overlay.index)
        classes = Classes.collapse(listed.good, self.overlay, types, listed.filters)
        attached, misplaced = self._given.attached(self.overlay)
        places = {row.client: row.broker for row in listed.good} | attached
        # with a given schema nobody has looked which fields the events have
        held = None if self._given.schema is not None else types.keys() | source.beside
        notes = tuple(_notes(listed, held, source.conflicts))
        return OpenLog(source, classes, places, None, None, listed, misplaced, notes, memory, source.copies)

    def open_for(self, session: Any, plan: Plan) -> OpenLog:
        """The events alone, read as a plan's filters ask for them, with the plan's subscriptions."""
        attached, misplaced = self._given.attached(plan.overlay)
        if isinstance(self._events, _ModelEvents):
            drawn = self._generated(plan.overlay)
            known = {c: b for c, b in drawn.attachments.items() if b in plan.overlay.index}
            return OpenLog(drawn.source, plan.classes, {**known, **attached}, misplaced=misplaced)
        source, memory = self._files(session, EventSchema(dict(plan.classes.schema)))
        places = {**plan.attachments, **attached}
        return OpenLog(
            source, plan.classes, places, misplaced=misplaced, memory=memory, copies=source.copies
        )

    def _generated(self, overlay: Overlay) -> OpenLog:
        """The events of a workload, drawn where they are counted."""
        from ramify.pipeline.passes.generated import GeneratedEvents

        made = self.workload
        assert made is not None
        said: dict[int, list[Filter]] = {}
        for row in made.advertisements:
            if row.broker in overlay.index:
                parsed = parse_sql(row.sql, made.schema.attributes)
                said.setdefault(overlay.index[row.broker], []).append(parsed)
        classes = Classes.collapse(made.subscriptions, self.overlay, made.schema.attributes)
        attached, misplaced = self._given.attached(overlay)
        places = {**made.attachments, **attached}
        return OpenLog(
            GeneratedEvents.of(made), classes, places, made.publishers, said or None, misplaced=misplaced
        )

    def _files(self, session: Any, schema: EventSchema | None) -> tuple[Any, str | None]:
        from ramify.pipeline.passes.files import Files

        assert not isinstance(self._events, _ModelEvents)
        memory = isinstance(self._events, _EventObjects)
        paths = self._events.paths(session)
        given = self._given
        source = Files.of(session, paths, schema, given.mapping, count_copies=given.count_copies)
        return source, paths[0] if memory else None

    def __repr__(self) -> str:
        where = f"Log of {self._events} on {self.overlay.name} ({several(len(self.overlay), 'broker')})"
        if self._rejects is None:
            return f"{where}, not read yet"
        found = self._rejects
        read = f"{where}: {several(found.events_in, 'event')}"
        if found.files:
            read += f" in {several(found.files, 'file')}"
        if found.copies:
            read += f", {several(len(found.copies), 'copied file')} left out"
        if found.subscriptions_in:
            read += f", {several(found.subscriptions_in, 'subscription')}"
        return f"{read}\n{found.summary}" if found else read

    def _repr_html_(self) -> str:
        first, *rest = repr(self).split("\n")
        return html_lines(first, [*rest, *(self._rejects.lines() if self._rejects else ())])


# -------------------------------------------------------------------------------------------- the parts


@dataclass(frozen=True, slots=True)
class _LogSettings:
    """What was given besides events and subscriptions."""

    overlay: Overlay
    mapping: FieldMapping
    schema: EventSchema | None
    attachments: Mapping[str, str]
    attachments_file: str | None
    count_copies: bool = False

    def attached(self, overlay: Overlay) -> tuple[dict[str, str], tuple[RejectedRow, ...]]:
        """Client -> broker, and the entries whose broker the overlay does not have."""
        good = {client: broker for client, broker in self.attachments.items() if broker in overlay.index}
        place = self.attachments_file or "the attachments given"
        bad = (
            RejectedRow(
                "attachment",
                place,
                "bad",
                f"client {client!r} is attached to {broker!r}, but {overlay.name} has no such broker",
            )
            for client, broker in self.attachments.items()
            if broker not in overlay.index
        )
        return good, tuple(bad)


@dataclass(frozen=True, slots=True)
class _ModelEvents:
    """Events of a built-in model."""

    spec: str
    workload: Workload

    def __str__(self) -> str:
        return f"workload {self.spec}"


@dataclass(frozen=True, slots=True)
class _EventFiles:
    """Events in files."""

    given: tuple[str, ...]

    def paths(self, _: Any) -> list[str]:
        return list(self.given)

    @property
    def is_brief(self) -> bool:
        paths = [Path(path) for path in self.given]
        try:
            return all(path.is_file() for path in paths) and _bytes(paths) <= _BRIEF_BYTES
        except OSError:  # one went meanwhile: the reading of the log says so
            return False

    def __str__(self) -> str:
        first, *more = self.given
        return f"{first} and {len(more)} more" if more else first


class _EventObjects:
    """Events that were given as objects; tasks read them from a file, which goes with this object."""

    def __init__(self, events: Any) -> None:
        self._events = events
        self._path: str | None = None
        self.is_brief = len(events) <= _BRIEF_EVENTS

    def paths(self, session: Any) -> list[str]:
        if self._path is None:
            if not sees_local_files(session):
                raise InputError(
                    "only a local Spark can count events in memory. Write them to a file that the "
                    "cluster can read, and give its path."
                )
            folder = tempfile.mkdtemp(prefix="ramify-log-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._path = self._written(Path(folder))
        return [self._path]

    def _written(self, folder: Path) -> str:
        if isinstance(self._events, list):
            path = folder / "events.ndjson"
            lines = [_encoded(number, row) for number, row in enumerate(self._events, 1)]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        else:
            import pyarrow.parquet as pq

            path = folder / "events.parquet"
            pq.write_table(_table(self._events), path)
        return str(path)

    def __str__(self) -> str:
        return several(len(self._events), "event") + " in memory"


def _bytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _events(given: Any, spark: Spark) -> _EventFiles | _EventObjects:
    if isinstance(given, str | os.PathLike):
        given = [given]
    elif type(given).__module__.partition(".")[0] in ("pandas", "pyarrow"):
        return _EventObjects(given)
    rows = list(given)
    if rows and all(isinstance(row, str | os.PathLike) for row in rows):
        paths = tuple(os.fspath(row) for row in rows)
        _check_local(paths, spark)
        return _EventFiles(paths)
    return _EventObjects(rows)


def _check_local(paths: Sequence[str], spark: Spark) -> None:
    """Refuse a path that is not there, without starting Spark to find out; what Spark must say is left."""
    for path in paths if on_this_machine(spark) else ():
        if "://" in path or path.startswith("file:"):
            continue
        if set(path) & set("*?["):
            if "{" not in path and next(iglob(path, recursive=True), None) is None:
                raise InputError("no file or directory has such a name", path=path)
        elif "{" not in path and not Path(path).exists():
            raise InputError("there is no such file or directory", path=path)


def _rows(given: AnySubscriptions | None) -> str | Path | list[str] | None:
    """Subscriptions as `read_subscriptions` takes them: a path, or lines."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, os.PathLike):
        return Path(given)
    return [row.to_json() if isinstance(row, Subscription) else json.dumps(row) for row in given]


def _encoded(number: int, row: Any) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise InputError(f"event {number} of those given cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "item"):  # a scalar of numpy
        return value.item()
    raise TypeError(f"{value!r} is not a JSON value")


def _table(events: Any) -> Any:
    import pyarrow as pa

    if type(events).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(events, preserve_index=False)
    if isinstance(events, pa.RecordBatch):
        return pa.Table.from_batches([events])
    if isinstance(events, pa.Table):
        return events
    raise InputError(
        f"events of type {type(events).__name__} cannot be read. Give a table or a list of dicts."
    )


def _asked_beyond(listed: Subscriptions, held: Set[str]) -> dict[str, str]:
    """Fields that filters ask for and no event has, each with a subscription that asks."""
    found: dict[str, str] = {}
    for row, filter_ in zip(listed.good, listed.filters, strict=True):
        for path in filter_.paths:
            name = path.removesuffix(TEXT_MARK)
            if name not in held and name not in CONTEXT_NAMES:
                found.setdefault(name, row.id)
    return dict(sorted(found.items())[:ROWS_SHOWN])


def _notes(listed: Subscriptions, held: Set[str] | None, conflicts: Sequence[Any]) -> Iterable[str]:
    for path, id_ in _asked_beyond(listed, held).items() if held is not None else ():
        yield f"subscription {id_} asks for the field {path!r}, but no event has it"
    for conflict in conflicts[:ROWS_SHOWN]:
        yield (
            f"field {conflict.attribute!r} is {conflict.used} in most of the log but {conflict.other} in "
            f"{conflict.file}. A comparison is NULL where the type is another than the filter's."
        )
