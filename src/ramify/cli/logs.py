"""What commands on logs share: their options, the word while they are read, and the report of bad rows.

Rows that cannot be used are listed on standard error, and the exit code tells that there were some.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ramify.cli.console import SOME_BAD_ROWS, err
from ramify.content.events.flatten import TimeUnit
from ramify.errors import InputError, RamifyError
from ramify.network.graphs.overlay import Overlay
from ramify.studies.logs import Log, read_log
from ramify.studies.rejects import Rejects
from ramify.studies.sessions import joins_told_to

__all__ = [
    "AttachmentsOption",
    "CountCopiesOption",
    "EventsOption",
    "KeepOption",
    "OverlayOption",
    "SchemaOption",
    "SparkOption",
    "SubscriptionsOption",
    "WorkloadOption",
    "busy",
    "log_of",
    "tell",
    "tell_and_exit",
]

OverlayOption = Annotated[str, typer.Option(help="A file, or a name such as cloud-regions.")]
WorkloadOption = Annotated[str | None, typer.Option(help="A built-in workload, such as demo.")]
EventsOption = Annotated[
    list[str] | None,
    typer.Option(help="Event log: files, directories, globs or URLs; NDJSON, CloudEvents, Parquet."),
]
SubscriptionsOption = Annotated[Path | None, typer.Option(help="Subscriptions, JSON lines.")]
AttachmentsOption = Annotated[Path | None, typer.Option(help="JSON object: publishing client -> broker.")]
SchemaOption = Annotated[
    Path | None, typer.Option(help="JSON object: attribute -> type. [default: inferred]")
]
SparkOption = Annotated[
    str,
    typer.Option(
        help="Where Spark runs. auto joins the Spark of `ramify spark start`, or starts one; local[*] "
        "starts one; or spark://host:port, sc://host:port, yarn, k8s://... none counts without Spark."
    ),
]
KeepOption = Annotated[
    float, typer.Option(help="Read this share of the log, chosen by a hash of event ids.")
]
CountCopiesOption = Annotated[
    bool,
    typer.Option("--count-copies", help="Count a file though it repeats another one byte for byte."),
]

Fields = tuple[str, str, str, TimeUnit]


def log_of(
    overlay: str | Overlay,
    workload: str | None,
    events: list[str] | None,
    subscriptions: Path | None,
    attachments: Path | None,
    schema: Path | None,
    seed: int,
    spark: str,
    fields: Fields,
    *,
    alone: bool = False,
    count_copies: bool = False,
) -> Log:
    """The log that options name: a workload, or files of events with subscriptions, or `alone` without."""
    if workload is not None and (events or subscriptions is not None):
        raise InputError("give --workload, or --events with --subscriptions, not both.")
    if workload is None and (not events or (subscriptions is None and not alone)):
        what = "--events" if alone else "--events and --subscriptions"
        raise InputError(f"give {what}, or --workload (such as demo; see `ramify list`).")
    id_field, publisher_field, time_field, time_unit = fields
    return read_log(
        events or None,
        subscriptions=subscriptions,
        overlay=overlay,
        attachments=attachments,
        workload=workload,
        schema=schema,
        id_field=id_field,
        publisher_field=publisher_field,
        time_field=time_field,
        time_unit=time_unit,
        seed=seed,
        spark=spark,
        count_copies=count_copies,
    )


@contextmanager
def busy(log: Log, as_json: bool) -> Iterator[None]:
    """A word on the terminal while a log is read; what of it could not be used is told if that fails."""
    shown = err.is_terminal and not as_json
    try:
        with err.status("reading events") if shown else nullcontext(), joins_told_to(_joined):
            yield
    except RamifyError:
        if log.is_read:
            tell(log.rejected, as_json)
        raise


def _joined(where: str) -> None:
    err.print(f"joined the running Spark at {where}", markup=False, highlight=False, soft_wrap=True)


def tell_and_exit(rejects: Rejects, as_json: bool) -> None:
    """Say what could not be used, and let the exit code tell."""
    tell(rejects, as_json)
    if rejects:
        raise typer.Exit(SOME_BAD_ROWS)


def tell(rejects: Rejects, as_json: bool) -> None:
    """Say what could not be used."""
    fields = None if as_json else rejects.fields_line
    summary = rejects.summary if rejects else None
    for line in (*rejects.notes_and_copies(), *rejects.lines(), fields, summary):
        if line is not None:
            err.print(line, markup=False, highlight=False, soft_wrap=True)
