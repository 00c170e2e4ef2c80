"""`ramify verify`: hold an overlay that runs, or a history, against what is promised."""

import asyncio
import contextlib
import fcntl
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ramify.cli.addresses import Attempts, ControlKeyOption, ControlOption, control_endpoint
from ramify.cli.app import app
from ramify.cli.console import friendly, say
from ramify.cli.directories import DirOption, directory_at
from ramify.cli.tls_options import TlsCa, TlsCert, TlsKey, tls_context
from ramify.errors import InputError, LiveError
from ramify.overlay.live.wire.tasks import run_to_end

if TYPE_CHECKING:
    import ssl

    from ramify.overlay.histories.rows import HistoryRow
    from ramify.overlay.histories.verdict import HistoryVerdict
    from ramify.overlay.live.client.client import Client, PendingClient
    from ramify.overlay.live.host.directory import ClientFile, Directory
    from ramify.overlay.live.host.overview import Look
    from ramify.overlay.live.host.verification import Dial, VerificationSettings

__all__: list[str] = []

BROKEN = 1
"""The exit code when the promise was broken."""

_LET_IN_S = 60.0
_REACH_LIMIT_S = 10.0


@app.command()
@friendly
def verify(
    history: Annotated[
        Path | None, typer.Argument(help="A history to judge; without one, a running overlay is tried.")
    ] = None,
    directory: DirOption = Path("ramify-data"),
    client_file: Annotated[
        list[Path] | None,
        typer.Option(
            help="The file of a client (client, broker, url, seed_file as JSON) of an overlay elsewhere. "
            "Give two or more, of clients that nothing else uses."
        ),
    ] = None,
    control: ControlOption = None,
    key: ControlKeyOption = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    duration: Annotated[float, typer.Option("--for", help="Seconds to publish.", min=1, max=86_400)] = 60.0,
    rate: Annotated[float, typer.Option(help="Events a second, of all clients.", min=1)] = 200.0,
    churn: Annotated[
        float, typer.Option(help="Seconds between changes of a client's subscriptions; 0 is never.", min=0)
    ] = 3.0,
    settle: Annotated[
        float, typer.Option(help="Seconds to wait for what is due after the last publish.", min=1)
    ] = 120.0,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Count events of a publisher out of order as a breach.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Publish and ask as an earlier run did.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the history here, as JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try a running overlay with clients of its own, and say whether the promise was kept.

    The clients publish marked events, subscribe to them, come and go for a while. Then the history of all
    that they did and saw is judged: lost, doubled, unexpected, out of order, and stalls that `ramify
    status` did not tell. Exit code 1: the promise was broken.
    """
    from ramify.overlay.histories.checker import judge
    from ramify.overlay.histories.files import HistoryFile, read_history
    from ramify.overlay.live.host.verification import VerificationSettings

    if history is not None:
        _tell(judge(read_history(history)), as_json)
        return
    seed = random.randrange(1 << 31) if seed is None else seed
    settings = VerificationSettings(
        uuid.uuid4().hex[:8],
        seed,
        duration,
        rate,
        churn_s=churn,
        settle_s=settle,
        ordered=ordered,
        about=" ".join(["ramify verify", str(directory.absolute())]),
    )
    rows: list[HistoryRow] = []
    with contextlib.ExitStack() as stack:
        file = None if out is None else stack.enter_context(HistoryFile(out))

        def sink(row: "HistoryRow") -> None:
            rows.append(row)
            if file is not None:
                file.add(row)

        if not as_json:
            say(f"run {settings.run}, seed {seed}: publishes for {duration:g} s")
        if client_file:
            context = tls_context(tls_ca, tls_cert, tls_key)
            run_to_end(_elsewhere(client_file, control, key, context, settings, sink))
        else:
            files = directory_at(directory)
            stack.enter_context(_alone(files))
            run_to_end(_here(files, settings, sink))
    _tell(judge(rows), as_json)


def _tell(found: "HistoryVerdict", as_json: bool) -> None:
    print(json.dumps(found.figures()) if as_json else found.text())
    if not found.is_kept:
        raise typer.Exit(BROKEN)


# ---------------------------------------------------------------------------------------- an overlay here


@contextlib.contextmanager
def _alone(files: "Directory") -> Iterator[None]:
    """Two verifications would share clients."""
    if files.running() is None:
        raise InputError(
            "no overlay runs from this directory: start it with `ramify up`", path=str(files.path)
        )
    with (files.path / "verify.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another `ramify verify` runs here: wait for it", path=str(files.path)
            ) from None
        yield


async def _here(
    files: "Directory", settings: "VerificationSettings", sink: "Callable[[HistoryRow], None]"
) -> None:
    from ramify.overlay.live.client.client import Client
    from ramify.overlay.live.host.overview import looking_here
    from ramify.overlay.live.host.verification import Verification

    running = files.running()
    assert running is not None
    brokers = files.overlay().brokers
    some = brokers[:: max(1, len(brokers) // 4)]
    names = {f"verify-{kind}-{broker}": broker for broker in some for kind in ("w", "r")}
    files.add_clients(names)
    await _let_in(files, names)
    dials = {name: _dial_here(Client, files, name) for name in names}
    writers = {name: dial for name, dial in dials.items() if name.startswith("verify-w-")}
    readers = {name: dial for name, dial in dials.items() if name.startswith("verify-r-")}
    attempts = Attempts(running.control_url)
    async with contextlib.AsyncExitStack() as stack:
        look = await _look_at(stack, looking_here(files, running, attempts), attempts)
        whole = Verification(writers, readers, settings, sink, look, matchmaking=bool(running.matchmaking))
        await whole.run()


def _dial_here(kind: "type[Client]", files: "Directory", name: str) -> "Dial":
    def dial(after: int | None) -> "PendingClient":
        return kind.at(files.path, name, after=after)

    return dial


async def _let_in(files: "Directory", names: "dict[str, str]") -> None:
    """Wait for the overlay to let the clients in."""
    limit = time.monotonic() + _LET_IN_S
    while late := [name for name in names if not files.client_file(name).exists()]:
        if time.monotonic() > limit:
            raise LiveError(
                f"the overlay has not let client {late[0]!r} in for {_LET_IN_S:g} s: see its log"
            )
        await asyncio.sleep(0.2)


async def _look_at(
    stack: contextlib.AsyncExitStack,
    place: "contextlib.AbstractAsyncContextManager[Look]",
    attempts: Attempts,
) -> "Look":
    try:
        async with asyncio.timeout(_REACH_LIMIT_S):
            return await stack.enter_async_context(place)
    except TimeoutError:
        raise attempts.error(_REACH_LIMIT_S) from None


# ------------------------------------------------------------------------------------ an overlay elsewhere


async def _elsewhere(
    places: list[Path],
    control: str | None,
    key: Path | None,
    tls: "ssl.SSLContext | None",
    settings: "VerificationSettings",
    sink: "Callable[[HistoryRow], None]",
) -> None:
    """Each client publishes and subscribes."""
    from ramify.overlay.live.host.overview import looking
    from ramify.overlay.live.host.verification import Verification

    clients = [_client_file(place) for place in places]
    names = [each.client for each in clients]
    if len(set(names)) < max(2, len(names)):
        raise InputError("give --client-file for two or more clients, each once")
    dials = {each.client: _dial_elsewhere(each, tls) for each in clients}
    async with contextlib.AsyncExitStack() as stack:
        look: Look | None = None
        if control is not None:
            attempts = Attempts(control)
            endpoint = control_endpoint(control, key, "verify", tls)
            look = await _look_at(stack, looking(endpoint, attempts), attempts)
        await Verification(dials, dials, settings, sink, look).run()


def _client_file(path: Path) -> "ClientFile":
    from ramify.overlay.live.host.directory import ClientFile

    try:
        found = msgspec.json.decode(path.read_bytes(), type=ClientFile)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not the file of a client: {error}", path=str(path)) from None
    return msgspec.structs.replace(found, seed_file=str(path.parent / found.seed_file))


def _dial_elsewhere(place: "ClientFile", tls: "ssl.SSLContext | None") -> "Dial":
    from ramify.overlay.live.client.client import Client

    def dial(after: int | None) -> "PendingClient":
        return Client.connect(place.client, place.url, seed_file=place.seed_file, after=after, tls=tls)

    return dial
