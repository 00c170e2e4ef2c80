"""The command `matches`: what brokers would tell each other to make matches over a plan's trees."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ramify.cli.app import app
from ramify.cli.console import SOME_BAD_ROWS, err, friendly, say
from ramify.content.filters.subscriptions import Subscription, read_subscriptions
from ramify.errors import InputError
from ramify.overlay.matchmaking.marking import Marking, mark
from ramify.overlay.matchmaking.over_plan import MatchResult, match_plan
from ramify.planning.plans.files import read_plan
from ramify.planning.plans.plan import Plan
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import AdvertisementRow

__all__: list[str] = []

_BAD_SHOWN = 20


@app.command()
@friendly
def matches(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan file; its channels have trees.")
    ],
    advertisements: Annotated[
        Path | None,
        typer.Option(help="JSON lines as of subscriptions: what clients say that they publish."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Or those of a built-in workload, such as matchmaker.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the workload, and of the order that packets come in.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make matches over the trees of a plan, without a coordinator: what is stored and sent, and who meets.

    The protocol of brokers that run with `ramify up --matchmaking` is simulated until all is quiet.
    """
    plan = read_plan(plan_file)
    said, bad = _advertised(plan, advertisements, workload, seed)
    best = mark(plan, said)[1]
    found = _summary(plan, said, match_plan(plan, said, seed), best)
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)
    if bad:
        raise typer.Exit(SOME_BAD_ROWS)


def _advertised(
    plan: Plan, file: Path | None, workload: str | None, seed: int
) -> tuple[list[AdvertisementRow | Subscription], int]:
    """The advertisements, and how many could not be used: those are named."""
    if (file is None) == (workload is None):
        raise InputError("give either --advertisements or --workload: who publishes what.")
    if workload is not None:
        made = workload_from(workload, plan.overlay, seed)
        if not made.advertisements:
            raise InputError(f"workload {workload} has no advertisements. Give a file, or use matchmaker.")
        return list(made.advertisements), 0
    assert file is not None
    read = read_subscriptions(file, plan.classes.schema, plan.overlay.index)
    for row in read.bad[:_BAD_SHOWN]:
        err.print(str(row), markup=False, highlight=False, soft_wrap=True)
    if len(read.bad) > _BAD_SHOWN:
        err.print(f"and {len(read.bad) - _BAD_SHOWN:,} more", highlight=False)
    return list(read.good), len(read.bad)


def _summary(
    plan: Plan, said: list[AdvertisementRow | Subscription], matched: MatchResult, best: Marking
) -> dict[str, Any]:
    traffic = matched.traffic
    return {
        "scheme": plan.scheme,
        "advertisements": len(said),
        "subscriptions": sum(map(len, plan.classes.members)),
        "matchmakings": len(matched.networks),
        "pairs": len(matched.pairs),
        "stored": matched.stored,
        # channels that serve different subscriptions make matches apart: no marking of all is theirs
        "least": best.cost if len(matched.networks) == 1 else None,
        "advertisements_everywhere": best.loads.pub_everywhere,
        "subscriptions_everywhere": best.loads.sub_everywhere,
        "packets": traffic.packets,
        "descriptors_sent": traffic.descriptors,
        "items": dict(sorted(traffic.items.items())),
    }


def _show(found: dict[str, Any]) -> None:
    apart = f", in {found['matchmakings']:,} matchmakings" if found["matchmakings"] > 1 else ""
    say(
        f"plan {found['scheme']}: {found['advertisements']:,} advertisements, "
        f"{found['subscriptions']:,} subscriptions{apart}"
    )
    say(f"{found['pairs']:,} pairs overlap and have a data channel")
    say(
        f"{found['stored']:,} descriptors stored; with advertisements everywhere "
        f"{found['advertisements_everywhere']:,}, with subscriptions everywhere "
        f"{found['subscriptions_everywhere']:,}"
    )
    items = ", ".join(f"{kind} {count:,}" for kind, count in found["items"].items())
    say(f"{found['packets']:,} packets with {found['descriptors_sent']:,} descriptors until quiet: {items}")
