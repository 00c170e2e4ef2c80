"""`ramify move`: clients to other brokers while events flow, or what would be worth moving."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ramify.cli.addresses import Attempts
from ramify.cli.app import app
from ramify.cli.console import err, friendly, out, plain_table, say
from ramify.cli.directories import DirOption, directory_at
from ramify.errors import InputError, LiveError
from ramify.overlay.live.wire.tasks import run_to_end

if TYPE_CHECKING:
    from ramify.overlay.control.records import Move
    from ramify.overlay.live.coordinator.suggestions import Suggestions
    from ramify.overlay.live.host.directory import Directory
    from ramify.overlay.live.wire.store import Store
    from ramify.overlay.live.wire.streams import Endpoint

__all__: list[str] = []

STAYED = 1
"""The exit code when a client did not move although it was asked."""

_MOVE_LIMIT_S = 10.0


@app.command()
@friendly
def move(
    client: Annotated[str | None, typer.Argument(help="The client to move.")] = None,
    broker: Annotated[str | None, typer.Argument(help="The broker to move it to.")] = None,
    directory: DirOption = Path("ramify-data"),
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Show the moves that the samples suggest.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="With --suggest: also offer the moves.")] = False,
    access: Annotated[
        Path | None, typer.Option(help="With --suggest: CSV of client, broker, price of access links.")
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            help="With --suggest: how many rounds; in each, every broker moves one client.", min=1
        ),
    ] = 1,
    window: Annotated[
        float, typer.Option(help="With --suggest: look at the samples of the last so many seconds.", min=1)
    ] = 600.0,
    reason: Annotated[str, typer.Option(help="The reason that the client is told.")] = "",
    ttl: Annotated[
        float, typer.Option(help="Seconds that the old broker redirects the client by itself.", min=1)
    ] = 600.0,
    answer_within: Annotated[
        float, typer.Option(help="Seconds that the client has to answer.", min=1)
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Move a client to another broker while events flow: nothing is lost or doubled.

    The client is asked, and says yes unless its program says otherwise. Exit code 1: it stayed.
    """
    files = directory_at(directory)
    running = files.running()
    if running is not None and running.matchmaking:
        raise InputError(
            "an overlay with matchmaking cannot move clients: moves need a coordinator",
            path=str(files.path),
        )
    if running is None:
        raise InputError(
            "no overlay with a coordinator runs from this directory: start one with `ramify up --movable`",
            path=str(files.path),
        )
    asking = _MoveCommand(files, files.operator(running.control_url), reason, ttl, answer_within, as_json)
    if not suggest:
        if client is None or broker is None or apply or access is not None:
            raise InputError(
                "give a client and a broker; or --suggest, with --apply and --access if wanted"
            )
        moved = run_to_end(asking.move(client, broker))
        raise typer.Exit(0 if moved else STAYED)
    if client is not None:
        raise InputError("--suggest looks at all clients: give no client, or leave --suggest out")
    found = run_to_end(_suggested(asking, access, rounds, window))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        _show(found)
    if apply:
        moved = True
        for each in found.moves:
            try:
                moved = run_to_end(asking.move(each.client, each.foreign)) and moved
            except (InputError, LiveError) as error:
                # the others may be possible
                err.print(f"{each.client}: {error}", markup=False, highlight=False, soft_wrap=True)
                moved = False
        raise typer.Exit(0 if moved else STAYED)


class _MoveCommand:
    """What a command asks of the leader, and how it says what became of it."""

    def __init__(
        self, files: "Directory", control: "Endpoint", reason: str, ttl: float, within: float, as_json: bool
    ) -> None:
        self.files, self.control = files, control
        self._reason, self._ttl, self._within, self._json = reason, ttl, within, as_json

    async def move(self, client: str, broker: str) -> bool:
        """Offer it, and say each phase; whether the client has moved."""
        from ramify.overlay.control.moves import DONE
        from ramify.overlay.live.host.move_requests import follow, request_move

        attached = self.files.clients()
        if client not in attached:
            raise InputError(
                f"this overlay has no client {client!r}: name one of {', '.join(sorted(attached)[:5])}, ..."
            )
        if not self.files.movable and attached[client] != broker:
            raise InputError(
                f"the server of {broker!r} does not admit client {client!r}: run `ramify keys --movable` "
                "or `ramify up --movable` to let every server admit every client",
                path=str(self.files.path),
            )
        wish = await request_move(
            self.control,
            client,
            broker,
            home=attached[client],
            reason=self._reason,
            ttl_s=self._ttl,
            answer_s=self._within,
        )
        phase = ""
        store = await _connected(self.control)
        try:
            async for found in follow(store, wish):
                self._say(found)
                phase = found.phase
        finally:
            await store.close()
        return phase == DONE

    def _say(self, found: "Move") -> None:
        if self._json:
            print(msgspec.json.encode(found).decode(), flush=True)
            return
        why = f" ({found.why})" if found.why else ""
        say(f"{found.client}: {found.home} -> {found.foreign}: {found.phase}{why}")


async def _suggested(
    asking: _MoveCommand, access: Path | None, rounds: int, window_s: float
) -> "Suggestions":
    from ramify.overlay.live.coordinator.suggestions import head_plan, sampled_share, suggest
    from ramify.planning.choosing.placements import read_access

    samples = asking.files.path / "samples"
    since = time.time() - window_s
    files = [str(f) for f in sorted(samples.glob("samples-*.parquet")) if f.stat().st_mtime >= since]
    if not files:
        raise InputError(
            f"no samples of the last {window_s:g} s: publish something, or give a longer --window",
            path=str(samples),
        )
    prices = None if access is None else read_access(access)
    attached = asking.files.clients()
    store = await _connected(asking.control)
    try:
        plan, share = await head_plan(store), await sampled_share(store)
    finally:
        await store.close()
    return await asyncio.to_thread(
        suggest,
        plan,
        samples,
        files,
        share=share,
        access=prices,
        rounds=rounds,
        may_move=lambda client, _: client in attached,
    )


async def _connected(control: "Endpoint") -> "Store":
    from ramify.overlay.live.wire.store import Store

    attempts = Attempts(control.url)
    try:
        async with asyncio.timeout(_MOVE_LIMIT_S):
            return await Store.join(control, failed=attempts)
    except TimeoutError:
        raise attempts.error(_MOVE_LIMIT_S) from None


def _show(found: "Suggestions") -> None:
    table = plain_table("client", "broker", "publishes", "MB", "gets", "MB ")
    for each in found.clients:
        table.add_row(
            each.client,
            each.broker,
            f"{each.published_events:,.0f}",
            f"{each.published_bytes / 1e6:,.2f}",
            f"{each.received_events:,.0f}",
            f"{each.received_bytes / 1e6:,.2f}",
        )
    out.print(table)
    say(f"{found.events:,} sampled events; cost {found.cost:.6g}, with all moves {found.cost_after:.6g}")
    for each_move in found.moves:
        say(f"{each_move.client}: {each_move.home} -> {each_move.foreign} saves {each_move.saving:.6g}")
    if not found.moves:
        say("no move pays")
