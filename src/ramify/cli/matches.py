"""The command `matches`: what brokers would tell each other to make matches over a plan's trees."""

from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ramify.cli.app import app
from ramify.cli.console import SOME_BAD_ROWS, err, friendly, say
from ramify.studies.matches import make_matches

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
    found = make_matches(plan_file, advertisements=advertisements, workload=workload, seed=seed)
    for row in found.rejected[:_BAD_SHOWN]:
        err.print(str(row), markup=False, highlight=False, soft_wrap=True)
    if len(found.rejected) > _BAD_SHOWN:
        err.print(f"and {len(found.rejected) - _BAD_SHOWN:,} more", highlight=False)
    if as_json:
        print(dumps(found.figures()))
    else:
        _show(found.figures())
    if found.rejected:
        raise typer.Exit(SOME_BAD_ROWS)


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
