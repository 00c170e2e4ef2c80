"""The commands that run the pipeline by itself: price, generate, tables."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from ramify.cli.app import app
from ramify.cli.console import friendly, out, plain_table, say
from ramify.cli.durations import half_life_of
from ramify.cli.inputs import IdField, PublisherField, TimeField, TimeUnitOption, field_mapping
from ramify.cli.logs import (
    AttachmentsOption,
    EventsOption,
    KeepOption,
    Log,
    LogReport,
    LogRequest,
    OverlayOption,
    SchemaOption,
    SparkOption,
    SubscriptionsOption,
    WorkloadOption,
    check_local,
    generated_log,
    log_files,
    read_attachments,
    sparked,
)
from ramify.content.events.events import EventSchema
from ramify.content.events.flatten import TimeUnit
from ramify.errors import InputError, PlanError
from ramify.network.graphs.specs import overlay_from
from ramify.planning.choosing.study import SHARES
from ramify.planning.demand.splits import Split
from ramify.planning.plans.files import read_plan
from ramify.planning.pricing.price import Price
from ramify.planning.pricing.rules import Rules, broken, read_rules
from ramify.workloads.catalog import workload_from

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
    hours: Annotated[
        float | None, typer.Option(help="Time that the log spans; else from the events' times.")
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
    from ramify.pipeline.passes.pricing import price_log
    from ramify.pipeline.session.failures import doing

    if hours is not None and not hours > 0:
        raise InputError(f"hours = {hours}. Allowed: a number above 0.")
    if (workload is None) == (not events):
        raise InputError("give --events or --workload, one of them.")
    check_local(events or [], spark)
    made = read_plan(plan_file)
    kept = Rules() if rules is None else read_rules(rules, made.overlay)
    given, misplaced = read_attachments(attachments, made.overlay)
    with sparked(spark, as_json) as session, doing("pricing the log"):
        if workload is not None:
            drawn = generated_log(workload_from(workload, made.overlay, seed), made.overlay)
            source, attached = drawn.source, drawn.attachments
        else:
            mapping = field_mapping(id_field, publisher_field, time_field, time_unit)
            source = log_files(session, events or [], EventSchema(dict(made.classes.schema)), mapping)
            attached = made.attachments
        log = Log(source, made.classes, {**attached, **given}, misplaced=misplaced)
        with price_log(
            session,
            made,
            source,
            attachments=log.attachments,
            tags=kept.tags(made.classes.schema),
            seconds=None if hours is None else hours * 3600,
            factor=1 / sample,
            split=Split(keep=keep, seed=seed),
        ) as found:
            reading, priced = LogReport.of(found.found), found.price
    if not priced.volume.events:
        reading.tell(log, as_json)
        raise InputError("the log has no event to price the plan on. Give another log.")
    faults = [str(fault) for fault in broken(priced, kept)]
    if as_json:
        figures = {"plan": made.scheme, **priced.figures(), **reading.summary(), "broken": faults}
        print(json.dumps(figures, allow_nan=False))
    else:
        _show_price(made.scheme, priced)
    if faults:
        reading.tell(log, as_json)
        raise PlanError("the plan breaks rules on this log:", faults)
    reading.report(log, as_json)


def _show_price(scheme: str, priced: Price) -> None:
    volume = priced.volume
    month = priced.money_per_month
    cost = f"${priced.money:,.6f} for them" if month is None else f"${month:,.2f} a month"
    headline = f"{scheme} on {volume.events:,} events: {cost}, {priced.gap:.3f} of what no plan can beat."
    out.print(Text(headline, style="bold"), soft_wrap=True)
    table = plain_table("figure", "value")
    table.columns[1].justify = "right"
    for name, value in priced.figures().items():
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
    on: Annotated[str, typer.Option("--overlay", help="The overlay it lives on.")] = "cloud-regions",
    form: Annotated[LogForm, typer.Option(help="What the events are written as.")] = "parquet",
    files: Annotated[int | None, typer.Option(help="How many files of events.", min=1)] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 1,
    spark: SparkOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the events of a built-in workload, with its subscriptions, attachments and overlay."""
    from ramify.pipeline.passes.generated import generate as write_workload
    from ramify.pipeline.session.failures import doing

    graph = overlay_from(on)
    made = workload_from(spec, graph, seed)
    with sparked(spark, as_json) as session, doing("writing the workload"):
        done = write_workload(
            session, made, write, form=form, files=files, overlay=graph, overwrite=overwrite
        )
    if as_json:
        print(json.dumps({"events": done.events, "files": done.files, "bytes": done.bytes}))
        return
    say(f"{done.events:,} events in {done.files:,} files, {done.bytes / 1e6:,.1f} MB, under {write}")
    say(
        f"plan for them: ramify plan --overlay {write}/overlay.json --events {write}/events "
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
    pane: Annotated[float, typer.Option(help="Width of a pane of time in seconds.", min=0.001)] = 300.0,
    half_life: Annotated[
        str | None, typer.Option(help="Half-life of selectivity, such as 1h; none counts all alike.")
    ] = None,
    jaccard: Annotated[
        float, typer.Option(help="Least overlap (Jaccard) of two classes to keep.", min=0, max=1)
    ] = 0.1,
    axes: Annotated[
        list[str] | None, typer.Option("--axis", help="Attribute to make content-space histograms of.")
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
    from ramify.pipeline.jobs import TableRequest, write_tables
    from ramify.pipeline.session.failures import doing

    graph = overlay_from(overlay)
    mapping = field_mapping(id_field, publisher_field, time_field, time_unit)
    asked = TableRequest(pane, half_life_of(half_life), jaccard, tuple(axes or ()))
    if "://" not in write and not overwrite and any(Path(write).glob("*")):
        raise InputError(
            "there are files here already; name an empty directory, or --overwrite", path=write
        )
    request = LogRequest.of(
        graph, workload, events, subscriptions, attachments, schema, mapping, seed, url=spark
    )
    with sparked(spark, as_json) as session, doing("writing the tables"):
        log = request.open(session)
        found = write_tables(
            session,
            log.source,
            log.classes,
            graph,
            log.attachments,
            write,
            asked,
            Split(SHARES, keep, seed),
        )
    reading = LogReport.of(found.found, found.shown)
    if as_json:
        print(json.dumps({"rows": found.rows, "overlap_recall": found.recall, **reading.summary()}))
    else:
        _show_tables(write, found.rows)
        if found.recall is not None:
            say(f"overlap is sketched: {100 * found.recall:.1f} % of its pairs were found, by a sample")
    reading.report(log, as_json)


def _show_tables(under: str, rows: Mapping[str, int]) -> None:
    from ramify.pipeline.passes.table_files import TABLES

    shown: Any = plain_table("table", "rows", "a row is")
    shown.columns[1].justify, shown.columns[2].no_wrap = "right", False
    for name, count in rows.items():
        shown.add_row(name, f"{count:,}", TABLES[name].summary)
    out.print(shown)
    say(f"written to {under}")
