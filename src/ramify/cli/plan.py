"""The commands about plans: plan, diff."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ramify.cli.app import app
from ramify.cli.console import err, friendly, out, plain_table, say
from ramify.cli.durations import HalfLifeOption, half_life_of
from ramify.cli.inputs import (
    IdField,
    PublisherField,
    TimeField,
    TimeUnitOption,
    field_mapping,
)
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
    check_writable,
    engine_at,
)
from ramify.cli.measures import NAME_WIDTH, fitted, measure_table
from ramify.content.events.flatten import TimeUnit
from ramify.errors import InputError, PlanError
from ramify.network.graphs.specs import overlay_from
from ramify.planning.choosing.diff import diff
from ramify.planning.choosing.placements import (
    ALGORITHMS,
    PlacedStudy,
    place_study,
    read_access,
    read_capacity,
)
from ramify.planning.choosing.study import (
    SHARES,
    Comparison,
    Study,
    check_request,
    compare,
    grid_of,
    prepare,
    weights_for,
)
from ramify.planning.choosing.weigh import SchemeRow
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings, check_tags
from ramify.planning.demand.windows import Windows
from ramify.planning.plans.files import read_plan, write_plan
from ramify.planning.pricing.bound import GB
from ramify.planning.pricing.measures import measures
from ramify.planning.pricing.price import Price
from ramify.planning.pricing.rules import Rules, read_rules
from ramify.planning.schemes.scheme import Progress as Report
from ramify.planning.schemes.scheme import silent
from ramify.planning.schemes.shared.grids import grid_for

if TYPE_CHECKING:
    from ramify.pipeline.session.engine import Engine

__all__: list[str] = []

_REASONS_SHOWN = 3


@app.command()
@friendly
def plan(
    overlay: OverlayOption = "cloud-regions",
    workload: WorkloadOption = None,
    events: EventsOption = None,
    subscriptions: SubscriptionsOption = None,
    attachments: AttachmentsOption = None,
    schemes: Annotated[
        str | None, typer.Option(help="Schemes to try, apart by spaces; see `ramify list`.")
    ] = None,
    today: Annotated[
        str, typer.Option(help="What you run now: mirror-all, hub=<site>, another scheme, or a plan file.")
    ] = "mirror-all",
    rules: Annotated[Path | None, typer.Option(help="JSON: capacities, quotas, residency.")] = None,
    place: Annotated[
        str | None, typer.Option(help=f"Attach clients first: {', '.join(ALGORITHMS)}.")
    ] = None,
    access: Annotated[
        Path | None, typer.Option(help="With --place: CSV of client, broker, price of access links.")
    ] = None,
    capacity: Annotated[
        Path | None, typer.Option(help="With --place: CSV of broker, mb_per_s that its clients may take.")
    ] = None,
    write: Annotated[Path | None, typer.Option("--out", help="Write the chosen plan here.")] = None,
    tables: Annotated[
        str | None, typer.Option(help="Write the demand and quarantine tables (Parquet) here.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Budget of each scheme that takes one.", min=0.1)] = 20.0,
    overlap: Annotated[
        Path | None,
        typer.Option(help="Tables that SemCast builds hierarchies by, see `ramify tables --out`."),
    ] = None,
    half_life: HalfLifeOption = None,
    sample: Annotated[float, typer.Option(help="Share of all events that the log holds.")] = 1.0,
    keep: KeepOption = 1.0,
    hours: Annotated[
        float | None, typer.Option(help="Time that the log spans; else from the events' times.")
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
    from ramify.pipeline.session.failures import doing

    graph = overlay_from(overlay)
    kept = Rules() if rules is None else read_rules(rules, graph)
    split = Split(SHARES, keep, seed)
    mapping = field_mapping(id_field, publisher_field, time_field, time_unit)
    request = LogRequest.of(
        graph, workload, events, subscriptions, attachments, schema, mapping, seed, url=spark
    )
    check_writable(write)
    specs = None if schemes is None else schemes.split()
    check_request(specs, today, sample, hours)
    prices, room = _check_placement(place, access, capacity, today)
    _check_overlap(overlap, place, specs)
    decay_s = half_life_of(half_life)
    with engine_at(spark, as_json, brief=request.brief) as session, doing("reading the log"):
        log = request.open(session)
        grid = grid_of(specs, today, log.classes)
        if place is not None and grid is None:
            grid = grid_for(log.classes)
        how = {"split": split, "grid": grid, "by_client": place is not None, "half_life_s": decay_s}
        counting = TallySettings.of(log.classes, graph, log.attachments, **how)
        windows, reading = _counted(session, log, kept, counting, tables)
    if not windows.whole.events:
        reading.tell(log, as_json)
    study = prepare(
        graph,
        log.classes,
        windows,
        log.attachments,
        publishers=log.publishers,
        advertisements=log.advertisements,
        rules=kept,
        sample=sample,
        hours=hours,
        grid=grid,
    )
    if overlap is not None:
        study = _with_overlap(study, overlap, decay_s)
    placement = None
    if place is not None:
        placement = place_study(study, place, seed, access=prices, capacity=room)
        study = placement.study
        if not as_json:
            say(_placement_lines(placement))
    weights = weights_for(study, per_filter, per_matching)
    with _bar(as_json) as report:
        found = compare(
            study,
            specs,
            today=today,
            weights=weights,
            seconds=seconds,
            seed=seed,
            progress=report,
        )
    if as_json:
        summary = _summary(study, found) | reading.summary() | _placement_summary(placement)
        summary |= {} if decay_s is None else {"half_life_s": decay_s}
        print(json.dumps(summary, allow_nan=False))
    else:
        _show(study, found, half_life)
        if show_measures:
            out.print(measure_table(found.everything))
    if found.best is None:
        raise PlanError("no plan keeps every rule; none was written:", _discarded(found))
    if write is not None and found.best.plan is not None:
        write_plan(found.best.plan, write)
        if not as_json:
            say(f"plan {found.best.name} written to {write}; see `ramify explain {write} --event ...`")
    reading.report(log, as_json)


def _counted(
    spark: "Engine", log: Log, rules: Rules, counting: TallySettings, tables: str | None
) -> tuple[Windows, LogReport]:
    """The demands of a log, counted on Spark, and what became of its records."""
    from ramify.pipeline.passes.passes import reckoned

    tags = rules.tags(log.classes.schema)
    check_tags(tags)
    with reckoned(spark, log.source, [*log.classes.filters, *tags], counting) as found:
        if tables is not None:
            from ramify.pipeline.jobs import write_demand

            write_demand(found, log.classes, tables)
        return found.windows(), LogReport.of(found)


def _check_overlap(under: Path | None, place: str | None, specs: list[str] | None) -> None:
    """Refuse tables that cannot be used before any event is read."""
    if under is None:
        return
    if place is not None:
        raise InputError("--place moves clients, and the tables of --overlap are for where they are.")
    if specs is not None and not any(spec.startswith(("semcast", "auto")) for spec in specs):
        raise InputError("no scheme of --schemes goes by --overlap. Name semcast, or a variant of it.")
    if not (under / "overlap").is_dir():
        raise InputError("there is no table 'overlap' here; see `ramify tables --out`", path=str(under))


def _with_overlap(study: Study, under: Path, half_life_s: float | None) -> Study:
    """The same with the overlap of stored tables."""
    from ramify.pipeline.tables.stored_overlap import read_overlap

    stored = read_overlap(under, study.problem.classes, half_life_s=half_life_s)
    if not stored.exact:
        note = "the overlap is sketched: classes that contain others may not be known to"
        err.print(note, markup=False, highlight=False, soft_wrap=True)
    return replace(study, problem=replace(study.problem, overlap=stored.overlap))


def _check_placement(
    place: str | None, access: Path | None, capacity: Path | None, today: str
) -> tuple[dict[tuple[str, str], float] | None, dict[str, float] | None]:
    """Access prices and capacities, if any; refuses what does not go together before any event is read."""
    if place is None:
        for name, given in (("--access", access), ("--capacity", capacity)):
            if given is not None:
                raise InputError(f"{name} has no meaning without --place.")
        return None, None
    if place not in ALGORITHMS:
        raise InputError(f"--place {place}. Use one of: {', '.join(ALGORITHMS)}.")
    if Path(today).is_file():
        raise InputError(
            "--place moves clients, and a plan file is for where they are. Name a scheme for --today."
        )
    prices = None if access is None else read_access(access)
    return prices, None if capacity is None else read_capacity(capacity)


def _placement_lines(made: PlacedStudy) -> str:
    told = [
        f"placement {made.placement.how}: {made.moved} of {len(made.placement.broker)} clients move; "
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
    found = diff(read_plan(old), read_plan(new))
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


def _headline(found: Comparison) -> str:
    """The first line: the saving a month against today."""
    if found.best is None:
        return "No plan keeps every rule."
    saving, share = found.saving_per_month, found.saving
    if found.best.name == found.today.name:
        return f"Nothing is cheaper than what you run today ({found.today.name})."
    assert share is not None
    against = f"against {found.today.name}: {found.best.name}."
    verb, more = ("Saves", "") if share >= 0 else ("Costs", " more on unseen events")
    percent = f"{100 * abs(share):.1f} %"
    if saving is None:
        return f"{verb} {percent}{more} {against} (The log spans no time: --hours scales it to a month.)"
    amount = f"${abs(saving):,.2f}" if abs(saving) >= 0.01 else "less than $0.01"
    return f"{verb} {amount} a month ({percent}){more} {against}"


def _show(study: Study, found: Comparison, half_life: str | None) -> None:
    out.print(Text(_headline(found), style="bold"), soft_wrap=True)
    if half_life is not None:
        say(f"Planned for recent events (half-life {half_life}); prices are of all events.")
    windows = study.problem.demand.events, study.validation.events, study.test.events
    if study.held_back:
        say(
            f"{study.events:,} events: planned on {windows[0]:,}, chosen on {windows[1]:,}, "
            f"reported on {windows[2]:,} that neither has seen."
        )
        if study.problem.overlap is not None:
            say("SemCast's hierarchies are made of the tables of --overlap, and those of all their events.")
    else:
        say(f"Only {study.events:,} events: too few to hold any back; figures are of what was planned on.")
    out.print(_table(found))
    for reason in _discarded(found):
        err.print(f"discarded: {reason}", markup=False, highlight=False, soft_wrap=True)
    for line in _late(found):
        err.print(f"late: {line}", markup=False, highlight=False, soft_wrap=True)


def _table(found: Comparison) -> Table:
    table = plain_table(caption=_caption(found), caption_justify="left")
    table.add_column("scheme", no_wrap=True, width=NAME_WIDTH)
    widths = {"trees": 5, "cost": 7, "held-out": 8, "$": 7, "gap": 5, "p99 ms": 6, "state": 5}
    for name, width in widths.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in found.everything:
        style = "bold green" if found.best is not None and row.name == found.best.name else None
        mark = "*" if row.name == found.today.name else ""
        table.add_row(*_cells(row, mark), style=style or ("dim" if not row.allowed else None))
    for reference in _references(found):
        table.add_row(*reference, style="italic")
    return table


def _windows(found: Comparison) -> tuple[Price, Price]:
    """Today's prices on the events planned with and on unseen ones; the references are theirs."""
    train, test = found.today.train, found.today.test
    assert train is not None
    assert test is not None
    return train, test


def _references(found: Comparison) -> Iterator[list[str]]:
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


def _caption(found: Comparison) -> str:
    bound = found.today.test.yardstick.bound if found.today.test is not None else None
    certificate = "" if bound is None or bound.exact else f" (estimated from {bound.certified:,} sets)"
    return (
        f"cost, held-out: money {_unit(found)} for payload, on events planned with and unseen;\n"
        f"$: {_unit(found)}, with headers; gap: held-out over what no plan can beat{certificate};\n"
        "p99 ms: of deliveries; state: filters stored per broker; *: today; ✗: refused\n"
        "opt, multicast: a Steiner tree, and merged shortest routes, for every event"
    )


def _unit(found: Comparison) -> str:
    return "a month" if found.today.test is not None and found.today.test.per_month else "per 1,000 events"


def _scale(priced: Price) -> float:
    """From what was counted to a month, or to 1,000 events where no time is known."""
    return priced.per_month or 1_000 / priced.volume.events


def _cells(row: SchemeRow, mark: str) -> list[str]:
    mark += " ✗" if not row.allowed else ""
    name = fitted(row.name, NAME_WIDTH - len(mark)) + mark
    if row.train is None or row.test is None or row.plan is None:
        return [name, *["-"] * 7]
    train, test = row.train, row.test
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


def _discarded(found: Comparison) -> list[str]:
    """Each reason once, with the schemes that it holds for."""
    why: dict[str, list[str]] = {}
    for row in found.everything:
        if not row.allowed:
            for reason in [row.reason] if row.reason is not None else row.broken[:_REASONS_SHOWN]:
                why.setdefault(reason, []).append(row.name)
    return [f"{', '.join(names)}: {reason}" for reason, names in why.items()]


def _late(found: Comparison) -> list[str]:
    """Per scheme whose trees bound latency, who may get events later than it allows."""
    lines = []
    for row in found.everything:
        late = row.late
        if late:
            more = len(late) - _REASONS_SHOWN
            shown = "; ".join(map(str, late[:_REASONS_SHOWN])) + (f"; and {more} more" if more > 0 else "")
            lines.append(f"{row.name}: {len(late)} of its subscriptions: {shown}")
    return lines


def _summary(study: Study, found: Comparison) -> dict[str, Any]:
    bound = found.today.test.yardstick.bound if found.today.test is not None else None
    windows = dict(zip(("train", "test"), _windows(found), strict=True))
    return {
        "headline": _headline(found),
        "saving_per_month": found.saving_per_month,
        "saving": found.saving,
        "today": found.today.name,
        "chosen": None if found.best is None else found.best.name,
        "events": study.events,
        "held_back": study.held_back,
        "overlap_of_tables": study.problem.overlap is not None,
        "unknown_publishers": sum(study.unknown.values()),
        "bound": None if bound is None else {"value": bound.value, "low": bound.low, "exact": bound.exact},
        "references": {
            "opt": {name: {"cost": priced.yardstick.opt} for name, priced in windows.items()},
            "ideal_multicast": {
                name: dict(priced.yardstick.ideal.figures()) for name, priced in windows.items()
            },
        },
        "schemes": {
            row.name: {
                "allowed": row.allowed,
                "broken": list(row.broken),
                "reason": row.reason,
                "refused": [asdict(each) for each in row.refused],
                "late": [asdict(each) for each in row.late],
                "seconds": row.seconds,
                "settings": None if row.plan is None else dict(row.plan.settings),
                "train": None if row.train is None else dict(row.train.figures()),
                "test": None if row.test is None else dict(row.test.figures()),
                "measures": None if row.test is None else dict(measures(row.test).figures()),
            }
            for row in found.everything
        },
    }


# ---------------------------------------------------------------------------------------------- explain
