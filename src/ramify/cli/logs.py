"""Logs of events as commands get them: where they are, what they are counted for, what was wrong.

Owns the options that commands on logs share, the step from options to a source of the pipeline, and the
report of rows that could not be used. Spark is imported, and started, only when a command asks for it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramify.cli.console import REJECTED_SHOWN, SOME_BAD_ROWS, err
from ramify.content.events.events import CONTEXT_NAMES, EventSchema
from ramify.content.events.flatten import FieldMapping
from ramify.content.filters.filters import Filter
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.subscriptions import Subscriptions, read_subscriptions
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.windows import NOBODY
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ramify.pipeline.passes.files import Files
    from ramify.pipeline.passes.passes import PassResult, Totals
    from ramify.pipeline.passes.sources import Source
    from ramify.pipeline.session.engine import Engine

__all__ = [
    "AttachmentsOption",
    "EventsOption",
    "KeepOption",
    "Log",
    "LogReport",
    "LogRequest",
    "OverlayOption",
    "SchemaOption",
    "SparkOption",
    "SubscriptionsOption",
    "WorkloadOption",
    "check_local",
    "check_writable",
    "engine_at",
    "generated_log",
    "log_files",
    "read_attachments",
    "sparked",
]

_NAMES_IN_JSON = 100
_BRIEF_BYTES = 32 << 20

OverlayOption = Annotated[str, typer.Option(help="A file, or a name such as cloud-regions.")]
WorkloadOption = Annotated[str | None, typer.Option(help="A built-in workload, such as demo.")]
EventsOption = Annotated[
    list[str] | None,
    typer.Option(help="Event log: files, directories, globs or URLs; NDJSON, CloudEvents, Parquet."),
]
SubscriptionsOption = Annotated[Path | None, typer.Option(help="Subscriptions, JSON lines.")]
AttachmentsOption = Annotated[Path | None, typer.Option(help="JSON object: publishing client -> broker.")]
SchemaOption = Annotated[
    Path | None, typer.Option(help="JSON object: attribute -> type; else it is inferred.")
]
SparkOption = Annotated[
    str,
    typer.Option(
        help="Where Spark runs: auto joins `ramify spark start`'s or starts one, local[*] starts one, "
        "spark://host:port, sc://host:port, yarn, k8s://...; none counts in this process."
    ),
]
KeepOption = Annotated[float, typer.Option(help="Share of the log to look at, by a hash of event ids.")]


@dataclass(frozen=True, slots=True)
class Log:
    """Events and who wants them.

    `listed` are the subscriptions as they were read, `misplaced` the attachments that cannot be used.
    """

    source: "Source"
    classes: Classes
    attachments: Mapping[str, str]
    publishers: tuple[str, ...] | None = None
    advertisements: Mapping[int, list[Filter]] | None = None
    listed: Subscriptions = field(default_factory=lambda: Subscriptions((), (), ()))
    misplaced: tuple[str, ...] = ()


@contextmanager
def engine_at(url: str, quiet: bool, *, brief: bool = False) -> Iterator["Engine"]:
    """What `--spark` names, with a word on the terminal while it starts, and one when it ran already.

    `brief` says that the work is small: see `spark_session`.
    """
    from ramify.pipeline.session.warm import opened

    def joined(where: str) -> None:
        err.print(f"joined the Spark that runs at {where}", markup=False, highlight=False, soft_wrap=True)

    shown = err.is_terminal and not quiet
    waiting = err.status("starting Spark") if shown else nullcontext()
    with waiting as status, opened(url, joined, brief=brief) as engine:
        if status is not None:
            status.update("reading events")
        yield engine


@contextmanager
def sparked(url: str, quiet: bool) -> Iterator["SparkSession"]:
    """As `engine_at`, for work that only Spark does: `InputError` for none."""
    from ramify.pipeline.session.engine import NONE, InProcess

    if url == NONE:
        raise InputError("--spark none only counts a log for a plan; this command's work is Spark's.")
    with engine_at(url, quiet) as engine:
        assert not isinstance(engine, InProcess), "none was refused"
        yield engine


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A log that options ask for, as far as it can be checked without reading an event."""

    overlay: Overlay
    mapping: FieldMapping
    workload: Workload | None = None
    events: tuple[str, ...] = ()
    subscriptions: Path = Path()
    schema: EventSchema | None = None
    attachments: Mapping[str, str] = field(default_factory=dict)
    misplaced: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        overlay: Overlay,
        workload: str | None,
        events: list[str] | None,
        subscriptions: Path | None,
        attachments: Path | None,
        schema: Path | None,
        mapping: FieldMapping,
        seed: int,
        *,
        url: str,
    ) -> "LogRequest":
        """A built-in workload, or files with subscriptions."""
        if workload is not None:
            if events or subscriptions is not None:
                raise InputError("give --workload, or --events with --subscriptions, not both.")
            return cls(overlay, mapping, workload_from(workload, overlay, seed))
        if not events or subscriptions is None:
            raise InputError(
                "give --events and --subscriptions, or --workload (such as demo; see `ramify list`)."
            )
        if not subscriptions.is_file():
            raise InputError("there is no such file of subscriptions", path=str(subscriptions))
        check_local(events, url)
        types = None if schema is None else _read_schema(schema)
        attached, misplaced = read_attachments(attachments, overlay)
        return cls(overlay, mapping, None, tuple(events), subscriptions, types, attached, misplaced)

    @property
    def brief(self) -> bool:
        """Whether the log is plainly small: files of this machine with some megabytes together."""
        paths = [Path(path) for path in self.events]
        small = all(path.is_file() for path in paths)
        return bool(paths) and small and sum(path.stat().st_size for path in paths) <= _BRIEF_BYTES

    def open(self, spark: "Engine") -> Log:
        """Look at the files, and read the subscriptions with the types that their events have."""
        if self.workload is not None:
            return generated_log(self.workload, self.overlay)
        source = log_files(spark, self.events, self.schema, self.mapping)
        types = source.schema.attributes
        listed = read_subscriptions(self.subscriptions, types, self.overlay.index)
        if self.schema is None and _asked_beyond(listed, types):
            # a field that filters ask for may come later in the log than the records looked at
            source = source.looked_through(spark)
            types = source.schema.attributes
            listed = read_subscriptions(self.subscriptions, types, self.overlay.index)
        for path, id_ in _asked_beyond(listed, types).items():
            note = f"no event has the field {path!r}, which subscription {id_} asks for"
            err.print(note, markup=False, highlight=False, soft_wrap=True)
        for conflict in source.conflicts[:REJECTED_SHOWN]:
            note = (
                f"field {conflict.attribute!r} is {conflict.used} in most of the log but "
                f"{conflict.other} in {conflict.file}: such rows are not used. --schema can decide."
            )
            err.print(note, markup=False, highlight=False, soft_wrap=True)
        classes = Classes.collapse(listed.good, self.overlay, types, listed.filters)
        places = {row.client: row.broker for row in listed.good} | dict(self.attachments)
        return Log(source, classes, places, listed=listed, misplaced=self.misplaced)


def generated_log(made: Workload, overlay: Overlay) -> Log:
    """The events of a built-in workload, drawn where they are counted."""
    from ramify.pipeline.passes.generated import GeneratedEvents

    said: dict[int, list[Filter]] = {}
    for row in made.advertisements:
        said.setdefault(overlay.index[row.broker], []).append(parse_sql(row.sql, made.schema.attributes))
    classes = Classes.collapse(made.subscriptions, overlay, made.schema.attributes)
    return Log(GeneratedEvents.of(made), classes, made.attachments, made.publishers, said or None)


def log_files(
    spark: "Engine", events: Sequence[str], schema: EventSchema | None, mapping: FieldMapping
) -> "Files":
    """Files of events."""
    from ramify.pipeline.passes.files import Files

    return Files.of(spark, events, schema, mapping)


def _asked_beyond(listed: Subscriptions, types: Mapping[str, Any]) -> dict[str, str]:
    """Fields that filters ask for and the schema has not, each with a subscription that does."""
    found: dict[str, str] = {}
    for row, filter_ in zip(listed.good, listed.filters, strict=True):
        for path in filter_.paths:
            if path not in types and path not in CONTEXT_NAMES:
                found.setdefault(path, row.id)
    return dict(sorted(found.items())[:REJECTED_SHOWN])


def check_local(events: Sequence[str], url: str) -> None:
    """Refuse a path that is not there, without starting Spark to find out; what Spark must say is left."""
    for path in events if url.startswith(("local", "auto", "none")) else ():
        plain = "://" not in path and not path.startswith("file:") and not set(path) & set("*?[{")
        if plain and not Path(path).exists():
            raise InputError("there is no such file or directory", path=path)


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be made, before the work for it is done."""
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError(f"there is no directory {path.parent} to write to. Make it first.", path=str(path))


def read_attachments(path: Path | None, overlay: Overlay) -> tuple[dict[str, str], tuple[str, ...]]:
    """Client -> broker, and a sentence for every entry that names a broker the overlay has not."""
    if path is None:
        return {}, ()
    found = _json_object(path, '{"shop-1": "aws-us-east-1"}')
    good = {client: broker for client, broker in found.items() if broker in overlay.index}
    bad = (
        f"{path}: client {client!r} is attached to {broker!r}, which overlay {overlay.name} has not"
        for client, broker in found.items()
        if broker not in overlay.index
    )
    return good, tuple(bad)


def _read_schema(path: Path) -> EventSchema:
    return EventSchema(_json_object(path, '{"price": "double"}'))  # type: ignore[arg-type]  # checked there


def _json_object(path: Path, example: str) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}. Check the path.", path=str(path)) from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", path=str(path)) from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError(f"must be a JSON object such as {example}", path=str(path))
    return found


@dataclass(frozen=True, slots=True)
class LogReport:
    """What became of a log's records: totals, the first that could not be used, fields that no filter
    reaches, and events by publisher where no broker is known for it."""

    totals: "Totals"
    shown: tuple[dict[str, Any], ...]
    unreached: Mapping[str, int]
    unknown: Mapping[str, int]

    @classmethod
    def of(cls, found: "PassResult", shown: tuple[dict[str, Any], ...] | None = None) -> "LogReport":
        """From a pass; while its frames can be read, unless the first rejects are given."""
        first = found.first_rejects(REJECTED_SHOWN) if shown is None else shown
        unknown: dict[str, int] = {}
        for (_, name), events in found.unknown.items():
            unknown[name or NOBODY] = unknown.get(name or NOBODY, 0) + events
        return cls(found.totals, first, found.unreached, unknown)

    def report(self, log: Log, as_json: bool) -> None:
        """Say what could not be used, and let the exit code tell."""
        self.tell(log, as_json)
        if self.spoiled(log):
            raise typer.Exit(SOME_BAD_ROWS)

    def spoiled(self, log: Log) -> bool:
        """Whether anything could not be used."""
        return bool(log.listed.bad or log.misplaced or self.totals.faults or self.unknown)

    def tell(self, log: Log, as_json: bool) -> None:
        """Say what could not be used."""
        bad = log.listed.bad
        for line in (
            *(f"subscription not used: {row}" for row in bad[:REJECTED_SHOWN]),
            *(f"attachment not used: {text}" for text in log.misplaced[:REJECTED_SHOWN]),
            *(f"event not used: {_place(row)}: {row['detail']}" for row in self.shown),
        ):
            err.print(line, markup=False, highlight=False, soft_wrap=True)
        if self.unknown:
            names = ", ".join(f"{name} ({n:,})" for name, n in list(self.unknown.items())[:3])
            more = f" and {len(self.unknown) - 3:,} more" if len(self.unknown) > 3 else ""
            err.print(
                f"no broker is known for the publishers {names}{more}. "
                "Name one with --attachments or --publisher-field.",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        if self.unreached and not as_json:
            names = ", ".join(f"{path} ({n:,})" for path, n in list(self.unreached.items())[:10])
            err.print(
                f"fields that filters cannot reach: {names}", markup=False, highlight=False, soft_wrap=True
            )
        if self.spoiled(log):
            err.print(self._summary(log), markup=False, highlight=False, soft_wrap=True)

    def _summary(self, log: Log) -> str:
        t, bad, lost = self.totals, log.listed.bad, log.misplaced
        parts = [
            f"{t.quarantined + t.unknown:,} of {t.rows_in:,} events in {_several(t.files, 'file')}",
            f"{len(bad):,} of {len(bad) + len(log.listed.good):,} subscriptions",
            *([_several(len(lost), "attachment")] if lost else []),
        ]
        return f"not used: {', '.join(parts)}; the rest was"

    def summary(self) -> dict[str, Any]:
        """The totals for JSON."""
        t = self.totals
        return {
            "rows_in": t.rows_in,
            "rows_good": t.good,
            "rows_quarantined": t.quarantined,
            "rows_left_out": t.thinned,
            "rows_without_broker": t.unknown,
            "files": t.files,
            "publishers_without_broker": dict(list(self.unknown.items())[:_NAMES_IN_JSON]),
            "unreachable_fields": dict(self.unreached),
        }


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _place(row: Mapping[str, Any]) -> str:
    place = f"{row['file']}" if row["file"] else "a row"
    if row["line"] is not None:
        return f"{place}, line {row['line']:,}"
    return f"{place}, record {row['position']:,}" if row["rows"] else place
