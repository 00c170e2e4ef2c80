"""The commands about a Spark that stays: `ramify spark start`, `stop`, `status`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from ramify.cli.app import COMMANDS, app
from ramify.cli.console import friendly, say

__all__: list[str] = []

spark = typer.Typer(no_args_is_help=True, help=COMMANDS["spark"].help)
app.add_typer(spark, name="spark")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@spark.command()
@friendly
def start(
    slots: Annotated[int | None, typer.Option(min=1, help="Tasks at a time. [default: one a core]")] = None,
    memory: Annotated[str | None, typer.Option(help="Heap of its JVM, such as 2g.")] = None,
) -> None:
    """Start a local Spark that stays until `ramify spark stop`; later commands join it by themselves."""
    from ramify.pipeline.session import warm

    began = warm.start(slots, memory)
    say(f"Spark runs at {began.where} (pid {began.pid}); `ramify spark stop` ends it")


@spark.command()
@friendly
def stop() -> None:
    """End the Spark that `ramify spark start` began, and no other."""
    from ramify.pipeline.session import warm

    ended = warm.stop()
    say("no Spark runs" if ended is None else f"Spark at {ended.where} (pid {ended.pid}) has ended")


@spark.command()
@friendly
def status(as_json: AsJson = False) -> None:
    """Show the Spark that commands would join, if one runs."""
    from ramify.pipeline.session import warm

    running = warm.found()
    if as_json:
        shown = {} if running is None else asdict(running) | {"url": running.where}
        shown.pop("token", None)
        print(json.dumps({"runs": running is not None, **shown}))
    elif running is None:
        say("no Spark runs; `ramify spark start` starts one")
    else:
        say(f"Spark runs at {running.where} (pid {running.pid}), {running.slots} tasks at a time")
        if running.mismatch is not None:
            say(f"it {running.mismatch}: `ramify spark stop`, then start it again")
