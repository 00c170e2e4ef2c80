"""The command that looks at a live overlay: status."""

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.live import Live

from ramify.cli.addresses import Attempts, ControlKeyOption, ControlOption, control_endpoint
from ramify.cli.app import app
from ramify.cli.console import friendly, out
from ramify.cli.directories import DirOption, directory_at
from ramify.cli.tls_options import InsecureOption, TlsCa, TlsCert, TlsKey, tls_context
from ramify.errors import InputError
from ramify.overlay.live.wire.tasks import run_to_end

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from ramify.overlay.live.host.overview import Look, Overview

__all__: list[str] = []

_LOOK_LIMIT_S = 10.0


@app.command()
@friendly
def status(
    directory: DirOption = Path("ramify-data"),
    control: ControlOption = None,
    key: ControlKeyOption = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: InsecureOption = False,
    watch: Annotated[bool, typer.Option(help="Show it again every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what runs: the leader, plans, every broker's epoch, traffic and lag, latest decisions."""
    from ramify.cli.status_text import show
    from ramify.overlay.live.host.overview import looking, looking_here

    if control is None:
        files = directory_at(directory)
        running = files.running()
        if running is None:
            raise InputError(
                "no overlay runs from this directory: start it with `ramify up`", path=str(files.path)
            )
        attempts = Attempts(running.control_url)
        place = looking_here(files, running, attempts)
    else:
        context = tls_context(tls_ca, tls_cert, tls_key)
        endpoint = control_endpoint(control, key, "status", context, insecure=insecure)
        attempts = Attempts(endpoint.url)
        place = looking(endpoint, attempts)
    try:
        view = run_to_end(_looked(place, watch and not as_json))
    except TimeoutError:
        raise attempts.error(_LOOK_LIMIT_S) from None
    if as_json:
        print(msgspec.json.encode(view).decode())
    elif not watch:
        show(view)
    if not view.routing:
        raise typer.Exit(1)


async def _looked(place: "AbstractAsyncContextManager[Look]", watch: bool) -> "Overview":
    """Look once, or until interrupted. `TimeoutError` when there is nothing to look at in time."""
    from ramify.cli.status_text import table

    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(_LOOK_LIMIT_S):
            look = await stack.enter_async_context(place)
        view = await look()
        if watch:
            with Live(console=out, refresh_per_second=2) as live:
                while True:
                    live.update(table(view, out.width))
                    await asyncio.sleep(2)
                    view = await look()
        return view
