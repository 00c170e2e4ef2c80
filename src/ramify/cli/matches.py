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
        Path, typer.Argument(metavar="PLAN", help="A plan file whose channels have trees.")
    ],
    advertisements: Annotated[
        Path | None,
        typer.Option(help="What clients publish: JSON lines in the form of subscriptions."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="Or take the advertisements of a built-in workload, such as matchmaker."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload, and of the order of packets.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate matchmaking over the trees of a plan: the matches, what is stored, what is sent.

    The protocol is that of brokers under `ramify up --matchmaking`. It runs until all is quiet.
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
