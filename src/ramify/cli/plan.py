"""The commands about plans: plan, diff."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ramify.cli.app import app
from ramify.cli.console import err, friendly, out, plain_table, say
from ramify.cli.durations import HalfLifeOption
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
    tell_and_exit,
)
from ramify.cli.measures import NAME_WIDTH, fitted, measure_table
from ramify.content.events.flatten import TimeUnit
from ramify.errors import PlanError
from ramify.planning.choosing.placements import ALGORITHMS, PlacedStudy
from ramify.planning.pricing.bound import GB
from ramify.planning.pricing.price import Price
from ramify.planning.schemes.scheme import Progress as Report
from ramify.planning.schemes.scheme import silent
from ramify.studies.findings import Candidate, Findings
from ramify.studies.inputs import check_writable
from ramify.studies.plans import diff
from ramify.studies.study import study as study_log

__all__: list[str] = []


@app.command()
@friendly
def plan(
    overlay: OverlayOption = "cloud-regions",
    workload: WorkloadOption = None,
    events: EventsOption = None,
    subscriptions: SubscriptionsOption = None,
    attachments: AttachmentsOption = None,
    schemes: Annotated[
        str | None,
        typer.Option(help="Schemes to try, separated by spaces; see `ramify list`. [default: all]"),
    ] = None,
    today: Annotated[
        str, typer.Option(help="What you run now: mirror-all, hub=<site>, another scheme, or a plan file.")
    ] = "mirror-all",
    rules: Annotated[Path | None, typer.Option(help="JSON: capacities, quotas, residency.")] = None,
    place: Annotated[
        str | None, typer.Option(help=f"First choose where clients attach, by {', '.join(ALGORITHMS)}.")
    ] = None,
    access: Annotated[
        Path | None, typer.Option(help="With --place: CSV of client, broker, price of access links.")
    ] = None,
    capacity: Annotated[
        Path | None,
        typer.Option(help="With --place: CSV of broker, mb_per_s that its clients may publish and get."),
    ] = None,
    write: Annotated[Path | None, typer.Option("--out", help="Write the chosen plan here.")] = None,
    tables: Annotated[
        str | None, typer.Option(help="Write the demand and quarantine tables (Parquet) here.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Time budget of each scheme that takes one.", min=0.1)
    ] = 20.0,
    overlap: Annotated[
        Path | None,
        typer.Option(help="Tables for SemCast's hierarchies, from `ramify tables --out`."),
    ] = None,
    half_life: HalfLifeOption = None,
    sample: Annotated[float, typer.Option(help="Share of all events that the log holds.")] = 1.0,
    keep: KeepOption = 1.0,
    count_copies: CountCopiesOption = False,
    hours: Annotated[
        float | None, typer.Option(help="Hours that the log spans. [default: by the events' times]")
    ] = None,
    per_filter: Annotated[float, typer.Option(help="Money a month for a stored filter.", min=0)] = 0.0,
    per_matching: Annotated[float, typer.Option(help="Money for a million matchings.", min=0)] = 0.0,
    show_measures: Annotated[
        bool, typer.Option("--measures", help="Also show storage, processing, stress and resource usage.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 1,
    schema: SchemaOption = None,
    id_field: IdField = "id",
    publisher_field: PublisherField = "publisher",
    time_field: TimeField = "time",
    time_unit: TimeUnitOption = TimeUnit.NONE,
    spark: SparkOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Price every way to route a log of events, and keep the cheapest plan."""
    log = log_of(
        overlay, workload, events, subscriptions, attachments, schema, seed, spark,
        (id_field, publisher_field, time_field, time_unit), count_copies=count_copies,
    )  # fmt: skip
    check_writable(write)
    with busy(log, as_json):
        study = study_log(
            log,
            rules=rules,
            hours=hours,
            sample=sample,
            keep=keep,
            half_life=half_life,
            place=place,
            access=access,
            capacity=capacity,
            overlap=overlap,
            schemes=schemes,
            today=today,
            tables=tables,
            seed=seed,
        )
    if study.placement is not None and not as_json:
        say(_placement_lines(study.placement))
    with _bar(as_json) as report:
        found = study.compare(
            schemes,
            today=today,
            seconds=seconds,
            per_filter=per_filter,
            per_matching=per_matching,
            progress=report,
        )
    if as_json:
        summary = found.figures() | found.rejected.figures() | _placement_summary(study.placement)
        print(dumps(summary, allow_nan=False))
    else:
        _show(found, half_life)
        if show_measures:
            out.print(measure_table(row.row for row in found.rows))
    if found.best is None:
        raise PlanError("no plan keeps every rule, so none was written:", found.discarded())
    if write is not None and found.best.plan is not None:
        found.best.plan.save(write)
        if not as_json:
            say(f"plan {found.best.name} written to {write}; see `ramify explain {write} --event ...`")
    tell_and_exit(found.rejected, as_json)


def _placement_lines(made: PlacedStudy) -> str:
    told = [
        f"placement {made.placement.how} moves {made.moved} of {len(made.placement.broker)} clients; "
        f"access links cost {made.access:.6g} on the training window, {made.access_before:.6g} before",
        f"  with a tree for every group between brokers {made.total:.6g}, {made.total_before:.6g} before"
        + ("" if made.bound is None else f"; no placement costs less than {made.bound:.6g}"),
    ]
    for number, one in enumerate(made.rounds):
        what = f"{one.moves:,} moves" if number else "brokers tell each other what they have"
        told.append(f"  round {number}: {what}, {one.messages:,} messages, cost {one.cost / GB:.6g}")
    return "\n".join(told)


def _placement_summary(made: PlacedStudy | None) -> dict[str, Any]:
    if made is None:
        return {}
    before = made.access_before
    return {
        "placement": {
            "algorithm": made.placement.how,
            "moved": made.moved,
            "clients": len(made.placement.broker),
            "access_money": made.access,
            "access_money_before": None if before != before else before,
            "total_money": made.total,
            "total_money_before": None if made.total_before != made.total_before else made.total_before,
            "bound": made.bound,
            **({"rounds": [asdict(one) for one in made.rounds]} if made.rounds else {}),
        }
    }


@app.command(name="diff")
@friendly
def diff_plans(
    old: Annotated[Path, typer.Argument(help="A plan file.")],
    new: Annotated[Path, typer.Argument(help="Another plan file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how two plans differ: channels, tree links, subscriptions that moved, attachments, paths."""
    found = diff(old, new)
    if as_json:
        print(found.to_json())
    else:
        out.print(str(found), markup=False, highlight=False, soft_wrap=True)


# ----------------------------------------------------------------------------------------------- output


@contextmanager
def _bar(as_json: bool) -> Iterator[Report]:
    """A progress bar on standard error where that is a terminal."""
    if as_json or not err.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("planning", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)


def _show(found: Findings, half_life: str | None = None) -> None:
    out.print(Text(found.headline, style="bold"), soft_wrap=True)
    if half_life is not None:
        say(f"Schemes plan for recent events (half-life {half_life}); prices count all events.")
    say(found.windows_line)
    if found.study.held_back and found.study.problem.overlap is not None:
        say("SemCast's hierarchies are from the tables of --overlap, which count unseen events too.")
    out.print(_table(found))
    for reason in found.discarded():
        err.print(f"discarded: {reason}", markup=False, highlight=False, soft_wrap=True)
    for line in found.late():
        err.print(f"late: {line}", markup=False, highlight=False, soft_wrap=True)


def _table(found: Findings) -> Table:
    table = plain_table(caption=_caption(found), caption_justify="left")
    table.add_column("scheme", no_wrap=True, width=NAME_WIDTH)
    widths = {"trees": 5, "cost": 7, "held-out": 8, "$": 7, "gap": 5, "p99 ms": 6, "state": 5}
    for name, width in widths.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in found.rows:
        style = "bold green" if found.best is not None and row.name == found.best.name else None
        mark = "*" if row.name == found.today.name else ""
        table.add_row(*_cells(row, mark), style=style or ("dim" if not row.allowed else None))
    for reference in _references(found):
        table.add_row(*reference, style="italic")
    return table


def _windows(found: Findings) -> tuple[Price, Price]:
    """Today's prices on the events planned with and on unseen ones; the references are theirs."""
    train, test = found.today.row.train, found.today.row.test
    assert train is not None
    assert test is not None
    return train, test


def _references(found: Findings) -> Iterator[list[str]]:
    """No plans, but what plans are held against: a Steiner tree for every event, and ideal multicast."""
    train, test = _windows(found)
    costs = {
        "opt (reference)": (train.yardstick.opt, test.yardstick.opt),
        "multicast (ideal)": (train.yardstick.ideal.cost, test.yardstick.ideal.cost),
    }
    for name, (cost, held_out) in costs.items():
        gap = held_out / test.yardstick.bound.value if test.yardstick.bound.value else 1.0
        shown = _money(cost * _scale(train)), _money(held_out * _scale(test))
        yield [name, "-", *shown, "-", f"{gap:.3f}", "-", "-"]


def _caption(found: Findings) -> str:
    bound = _windows(found)[1].yardstick.bound
    certificate = "" if bound.exact else f" (estimated from {bound.certified:,} sets)"
    return (
        f"cost, held-out: money {_unit(found)} for payload, on events planned with and unseen;\n"
        f"$: {_unit(found)}, with headers; gap: held-out over what no plan can beat{certificate};\n"
        "p99 ms: of deliveries; state: filters stored per broker; *: today; ✗: refused\n"
        "opt, multicast: a Steiner tree, and merged shortest routes, for every event"
    )


def _unit(found: Findings) -> str:
    return "a month" if _windows(found)[1].per_month else "per 1,000 events"


def _scale(priced: Price) -> float:
    """From what was counted to a month, or to 1,000 events where no time is known."""
    return priced.per_month or 1_000 / priced.volume.events


def _cells(row: Candidate, mark: str) -> list[str]:
    mark += " ✗" if not row.allowed else ""
    name = fitted(row.name, NAME_WIDTH - len(mark)) + mark
    train, test = row.row.train, row.row.test
    if train is None or test is None or row.plan is None:
        return [name, *["-"] * 7]
    return [
        name,
        f"{len(row.plan.channels):,}",
        _money(train.cost * _scale(train)),
        _money(test.cost * _scale(test)),
        _money(test.money * _scale(test)),
        f"{test.gap:.3f}" if test.gap < 10 else f"{test.gap:.1f}",
        f"{test.ms.p99:,.0f}",
        f"{test.state.filters.mean():,.0f}",
    ]


def _money(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.01 or value == 0 else "<0.01"
