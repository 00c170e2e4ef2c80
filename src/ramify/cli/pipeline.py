"""The commands that run the pipeline by itself: price, generate, tables."""

from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from ramify.cli.app import app
from ramify.cli.console import friendly, out, plain_table, say
from ramify.cli.inputs import IdField, PublisherField, TimeField, TimeUnitOption
from ramify.cli.logs import (
    AttachmentsOption,
    CountCopiesOption,
    EventsOption,
    KeepOption,
    OverlayOption,
    SchemaOption,
    SparkOption,
    SubscriptionsOption,
    WorkloadOption,
    busy,
    log_of,
    tell,
    tell_and_exit,
)
from ramify.content.events.flatten import TimeUnit
from ramify.errors import PlanError
from ramify.studies.inputs import as_plan
from ramify.studies.plans import LogPrice
from ramify.studies.plans import price as price_plan
from ramify.studies.tables import LogTables, write_tables
from ramify.studies.tables import generate as generate_log

__all__: list[str] = []


LogForm = Literal["parquet", "ndjson", "cloudevents"]


@app.command()
@friendly
def price(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    events: EventsOption = None,
    workload: WorkloadOption = None,
    attachments: AttachmentsOption = None,
    rules: Annotated[Path | None, typer.Option(help="JSON: capacities, quotas, residency.")] = None,
    sample: Annotated[
        float, typer.Option(help="Share of all events that the log holds.", min=1e-12, max=1)
    ] = 1.0,
    keep: KeepOption = 1.0,
    count_copies: CountCopiesOption = False,
    hours: Annotated[
        float | None, typer.Option(help="Hours that the log spans. [default: by the events' times]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload, and of --keep.", min=0)] = 1,
    id_field: IdField = "id",
    publisher_field: PublisherField = "publisher",
    time_field: TimeField = "time",
    time_unit: TimeUnitOption = TimeUnit.NONE,
    spark: SparkOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Price a plan on a whole log of events, where the events are."""
    plan = as_plan(plan_file)
    log = log_of(
        plan.overlay, workload, events, None, attachments, None, seed, spark,
        (id_field, publisher_field, time_field, time_unit), alone=True,
        count_copies=count_copies,
    )  # fmt: skip
    with busy(log, as_json):
        found = price_plan(plan, log, rules=rules, hours=hours, sample=sample, keep=keep, seed=seed)
    if as_json:
        print(dumps(found.figures(), allow_nan=False))
    else:
        _show_price(found)
    if found.broken:
        tell(found.rejected, as_json)
        raise PlanError("the plan breaks rules on this log:", found.broken)
    tell_and_exit(found.rejected, as_json)


def _show_price(found: LogPrice) -> None:
    out.print(Text(found.headline, style="bold"), soft_wrap=True)
    table = plain_table("figure", "value")
    table.columns[1].justify = "right"
    for name, value in found.price.figures().items():
        if isinstance(value, list):
            continue
        shown = "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        table.add_row(name.replace("_", " "), shown)
    out.print(table)


@app.command()
@friendly
def generate(
    spec: Annotated[str, typer.Argument(help="A workload, such as demo:events=1000000 or majumder:x=2.")],
    write: Annotated[str, typer.Option("--out", help="Directory or URL to write to.")],
    on: Annotated[
        str, typer.Option("--overlay", help="The overlay that its clients attach to.")
    ] = "cloud-regions",
    form: Annotated[LogForm, typer.Option(help="Form of the event files.")] = "parquet",
    files: Annotated[int | None, typer.Option(help="How many files of events.", min=1)] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 1,
    spark: SparkOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the events of a built-in workload, with its subscriptions, attachments and overlay."""
    done = generate_log(
        spec, write, overlay=on, form=form, files=files, overwrite=overwrite, seed=seed, spark=spark
    )
    if as_json:
        print(dumps({"events": done.events, "files": done.files, "bytes": done.bytes}))
        return
    say(f"{done.events:,} events in {done.files:,} files, {done.bytes / 1e6:,.1f} MB, under {write}")
    say(
        f"to plan for them: ramify plan --overlay {write}/overlay.json --events {write}/events "
        f"--subscriptions {write}/subscriptions.jsonl --attachments {write}/attachments.json"
    )


@app.command()
@friendly
def tables(
    write: Annotated[str, typer.Option("--out", help="Directory or URL to write to.")],
    overlay: OverlayOption = "cloud-regions",
    workload: WorkloadOption = None,
    events: EventsOption = None,
    subscriptions: SubscriptionsOption = None,
    attachments: AttachmentsOption = None,
    keep: KeepOption = 1.0,
    count_copies: CountCopiesOption = False,
    pane: Annotated[float, typer.Option(help="Width of a pane of time in seconds.", min=0.001)] = 300.0,
    half_life: Annotated[
        str | None,
        typer.Option(help="Half-life of selectivity, such as 1h. Without it all events count alike."),
    ] = None,
    jaccard: Annotated[
        float,
        typer.Option(help="Keep pairs of classes with at least this overlap (Jaccard).", min=0, max=1),
    ] = 0.1,
    axes: Annotated[
        list[str] | None,
        typer.Option("--axis", help="Attribute for content-space histograms. Repeat it for more."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace tables that are there.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the workload, the split and --keep.", min=0)] = 1,
    schema: SchemaOption = None,
    id_field: IdField = "id",
    publisher_field: PublisherField = "publisher",
    time_field: TimeField = "time",
    time_unit: TimeUnitOption = TimeUnit.NONE,
    spark: SparkOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write what a log says: demand, selectivity, overlap, traffic, histograms, profile, quarantine."""
    log = log_of(
        overlay, workload, events, subscriptions, attachments, schema, seed, spark,
        (id_field, publisher_field, time_field, time_unit), count_copies=count_copies,
    )  # fmt: skip
    with busy(log, as_json):
        found = write_tables(
            log,
            write,
            keep=keep,
            pane_s=pane,
            half_life=half_life,
            jaccard=jaccard,
            axes=axes or (),
            overwrite=overwrite,
            seed=seed,
        )
    if as_json:
        told = {"rows": dict(found.rows), "overlap_recall": found.recall}
        print(dumps({**told, **found.rejected.figures()}))
    else:
        _show_tables(found)
    tell_and_exit(found.rejected, as_json)


def _show_tables(found: LogTables) -> None:
    shown: Any = plain_table("table", "rows", "a row is")
    shown.columns[1].justify, shown.columns[2].no_wrap = "right", False
    for name, count in found.rows.items():
        shown.add_row(name, f"{count:,}", found.summaries[name])
    out.print(shown)
    say(f"written to {found.under}")
    if found.recall is not None:
        say(f"overlap is sketched: {100 * found.recall:.1f} % of its pairs were found, judged on a sample")
