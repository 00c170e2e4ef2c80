"""The commands of the live overlay: up, status, keys, broker, coordinator."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.live import Live
from rich.table import Table

from ramify.cli.app import app
from ramify.cli.console import friendly, out, plain_table, say
from ramify.cli.logs import OverlayOption, SparkOption
from ramify.errors import InputError, LiveError
from ramify.network.overlay import Overlay
from ramify.network.specs import overlay_from

if TYPE_CHECKING:
    from ramify.overlay.live.directory import Directory
    from ramify.overlay.live.looking import Overview
    from ramify.overlay.live.machine import Machine

__all__: list[str] = []

_START_LIMIT_S = 180.0
_STYLES = {"routing": None, "catching up": "yellow", "lost": "red"}

DirOption = Annotated[Path, typer.Option("--dir", help="The directory of the overlay on this machine.")]
ClientsOption = Annotated[
    list[str] | None, typer.Option("--client", help="NAME@BROKER: a client to let in; several times.")
]
SchemesOption = Annotated[str, typer.Option(help="Schemes that re-plans may choose from, apart by spaces.")]
PeriodOption = Annotated[
    float, typer.Option("--replan-every", help="Seconds between two weighings of plans; 0: never.", min=0)
]
ThresholdOption = Annotated[
    float, typer.Option(help="Share of the cost that a new plan must save.", min=0, max=1)
]
WindowOption = Annotated[float, typer.Option(help="Seconds of samples that plans are made for.", min=1)]
SampleOption = Annotated[float, typer.Option(help="Share of published events that is sampled.")]
_SCHEMES = "explicit portfolio mult"


# ------------------------------------------------------------------------------------ single processes


@app.command()
@friendly
def broker(
    config: Annotated[
        list[Path], typer.Option("--config", help="Settings (TOML); several share a process.")
    ],
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus figures on this port; 0 picks one.")
    ] = None,
) -> None:
    """Run one or more brokers until Ctrl-C."""
    from ramify.overlay.live.broker_files import read_broker_file

    for file in config:
        read_broker_file(file).config()
    options = [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
    # another program in our place: it loads what routing needs, and not what all commands do
    serving = [sys.executable, "-m", "ramify.overlay.live.serving", *map(str, config), *options]
    sys.stdout.flush()
    os.execv(sys.executable, serving)


@app.command()
@friendly
def coordinator(
    control: Annotated[str, typer.Option(help="The control server, nats://host:port.")],
    key: Annotated[Path, typer.Option(help="The seed file of this coordinator.")],
    name: Annotated[
        str, typer.Option(help="Among coordinators that stand by for each other.")
    ] = "coordinator",
    overlay: Annotated[
        str | None, typer.Option(help="The overlay, for a first start without --plan.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan to begin with.")] = None,
    replace_plan: Annotated[
        bool, typer.Option(help="Install --plan although the store has another.")
    ] = False,
    scheme: Annotated[str, typer.Option(help="What makes the plan when --plan is not given.")] = "explicit",
    samples: Annotated[Path | None, typer.Option(help="Land samples here, as Parquet files.")] = None,
    replan_every: PeriodOption = 0.0,
    schemes: SchemesOption = _SCHEMES,
    threshold: ThresholdOption = 0.05,
    window: WindowOption = 600.0,
    spark: SparkOption = "local[*]",
    metrics_port: Annotated[int | None, typer.Option(help="As for brokers.")] = None,
    announce: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a coordinator until Ctrl-C: it leads, or stands by for the one that does."""
    from ramify.cli.coordinating import Coordinating, run_coordinator
    from ramify.overlay.live.security import Control, read_seed
    from ramify.overlay.live.streams import Endpoint
    from ramify.planning.plan_files import read_plan

    role = Control(name)
    endpoint = Endpoint(control, read_seed(key).seed, role.inbox_prefix, f"control {name}")
    settings = Coordinating(
        name,
        endpoint,
        None if overlay is None else overlay_from(overlay),
        None if plan is None else read_plan(plan),
        replace_plan,
        scheme,
        samples,
        replan_every,
        tuple(schemes.split()),
        threshold,
        window,
        spark,
        metrics_port,
        announce,
    )
    run_coordinator(settings)


# -------------------------------------------------------------------------------------- a whole overlay


@app.command()
@friendly
def up(
    directory: DirOption = Path("ramify-data"),
    overlay: OverlayOption = "cloud-regions",
    plan: Annotated[
        Path | None, typer.Option(help="The plan to begin with; see `ramify plan --out`.")
    ] = None,
    scheme: Annotated[
        str, typer.Option(help="What makes the first plan when --plan is not given.")
    ] = "explicit",
    client: ClientsOption = None,
    processes: Annotated[int, typer.Option(help="Processes that the brokers share.", min=1)] = 2,
    sample: SampleOption = 0.03,
    replan_every: PeriodOption = 0.0,
    schemes: SchemesOption = _SCHEMES,
    threshold: ThresholdOption = 0.05,
    window: WindowOption = 600.0,
    spark: SparkOption = "local[*]",
) -> None:
    """Run a whole overlay on this machine until Ctrl-C: servers, brokers, a coordinator."""
    from ramify.overlay.live.machine import Machine, MachineConfig
    from ramify.planning.plan_files import read_plan

    files = _directory(directory)
    made = None if plan is None else read_plan(plan)
    graph = overlay_from(overlay) if made is None else made.overlay
    files.create(graph)
    attached = {} if made is None else {row.client: row.broker for m in made.classes.members for row in m}
    files.add_clients({**attached, **_attached(client or [], graph)})
    first = (
        ["--overlay", str(files.path / "overlay.json")]
        if plan is None
        else ["--plan", str(plan.absolute())]
    )
    command = [
        *(sys.executable, "-m", "ramify.cli", "coordinator", *first, "--scheme", scheme),
        *(
            "--samples",
            str(files.path / "samples"),
            "--replan-every",
            str(replan_every),
            "--schemes",
            schemes,
        ),
        *("--threshold", str(threshold), "--window", str(window), "--spark", spark),
    ]
    config = MachineConfig(graph, files, command, processes, sample_probability=sample)
    asyncio.run(_up(Machine(config)))


async def _up(machine: "Machine") -> None:
    from ramify.overlay.live.serving import until_signal
    from ramify.overlay.live.tasks import end_tasks

    asked = asyncio.create_task(until_signal())
    running = asyncio.create_task(_run(machine))
    try:
        await asyncio.wait([asked, running], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        await end_tasks([asked, running])
        say("stopping")
        await machine.stop()
        say(f"stopped; the data stays in {machine.directory.path}")


async def _run(machine: "Machine") -> None:
    overlay, path = machine.config.overlay, machine.directory.path
    say(f"{overlay.name}: {len(overlay)} brokers from {path}")
    running = await machine.start()
    watching = asyncio.create_task(machine.watch())
    began = time.monotonic()
    view = await until_routing(machine, _START_LIMIT_S)
    plan = f"epoch {view.epochs[-1].epoch}" if view.epochs else "no plan"
    took = time.monotonic() - began
    say(f"all brokers route ({plan}) after {took:.1f} s; control at {running.control_url}")
    names = sorted(machine.directory.clients())
    example = names[0] if names else "alice"
    if not names:
        say(f"let a client in:   ramify keys --dir {path} --client alice@{overlay.brokers[0]}")
    say(f"what it does:      ramify status --dir {path}")
    say(f"subscribe:         ramify sub --dir {path} --client {example} --sql \"type = 'order.created'\"")
    say(f"publish:           ramify pub --dir {path} --client {example} events.ndjson")
    say("Ctrl-C stops everything that was started.")
    await watching


async def until_routing(machine: "Machine", limit_s: float) -> "Overview":
    """Wait until every broker routes. Raises `LiveError` with what is missing."""
    from ramify.overlay.live.looking import look
    from ramify.overlay.live.store import Store

    store = await Store.connect(machine.directory.viewer(machine.control_url))
    view: Overview | None = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                view = await look(store)
                if view.routing and len(view.brokers) == len(machine.config.overlay):
                    return view
                if failed := machine.failed():
                    raise LiveError(failed)
                await asyncio.sleep(0.3)
    except TimeoutError:
        late = [b.name for b in view.brokers if b.state != "routing"] if view else []
        logs = machine.directory.path / "logs"
        raise LiveError(
            f"not all brokers route after {limit_s:g} s: {', '.join(late) or 'none has registered'}. "
            f"The logs in {logs} say why."
        ) from None
    finally:
        await store.close()


@app.command()
@friendly
def keys(
    directory: DirOption = Path("ramify-data"),
    overlay: Annotated[
        str | None, typer.Option(help="The overlay, for a new directory: a file or a name.")
    ] = None,
    client: ClientsOption = None,
) -> None:
    """Make keys and the accounts of every server; or let clients into an overlay, also while it runs.

    For servers of your own: put `accounts/<broker>.conf` into the configuration of each server, and give
    each broker and client its seed. Keys are made once and then kept.
    """
    from ramify.overlay.live.directory import COORDINATOR, VIEWER
    from ramify.overlay.live.names import token
    from ramify.overlay.live.security import Client, Control, Neighbour, Router, accounts_config
    from ramify.overlay.live.site import Site

    files = _directory(directory)
    if overlay is not None:
        files.create(overlay_from(overlay))
    graph = files.overlay()
    files.add_clients(_attached(client or [], graph))
    ring, clients = files.ring, files.clients()
    site = Site(graph, files.path, clients)
    accounts = files.path / "accounts"
    accounts.mkdir(exist_ok=True)
    for name in graph.brokers:
        for role in (Router(name), Neighbour(name), Control(name)):
            ring.pair(role)
        _write(accounts / f"{token(name)}.conf", site.accounts(name))
    users = {name: ring.pair(Control(name)).public for name in (*graph.brokers, COORDINATOR, VIEWER)}
    _write(accounts / "control.conf", accounts_config(ring.pair(Router(".control")).public, {}, {}, users))
    say(f"keys in {ring.directory}, accounts of {len(graph)} servers and the control server in {accounts}")
    for text in client or []:
        name = text.rpartition("@")[0]
        say(f"client {name}: key {ring.path(Client(name))}")
    if files.running() is not None:
        say("the overlay that runs from here lets them in within a second")


@app.command()
@friendly
def status(
    directory: DirOption = Path("ramify-data"),
    control: Annotated[str | None, typer.Option(help="A control server elsewhere, with --key.")] = None,
    key: Annotated[Path | None, typer.Option(help="The seed file of one of its users.")] = None,
    watch: Annotated[bool, typer.Option(help="Show it anew every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what runs: the leader, plans, every broker's epoch, traffic and lag, latest decisions."""
    from ramify.overlay.live.security import Control, read_seed
    from ramify.overlay.live.streams import Endpoint

    if control is None:
        files = _directory(directory)
        running = files.running()
        if running is None:
            raise InputError("nothing runs from here: start it with `ramify up`", path=str(files.path))
        endpoint = files.viewer(running.control_url)
    else:
        if key is None:
            raise InputError("give --key with --control: the seed file of a user of the control server")
        role = Control("viewer")
        endpoint = Endpoint(control, read_seed(key).seed, role.inbox_prefix, "status")
    view = asyncio.run(_look(endpoint, watch and not as_json))
    if as_json:
        print(msgspec.json.encode(view).decode())
    elif not watch:
        _show(view)
    if not view.routing:
        raise typer.Exit(1)


async def _look(endpoint: "object", watch: bool) -> "Overview":
    from ramify.overlay.live.looking import look
    from ramify.overlay.live.store import Store
    from ramify.overlay.live.streams import Endpoint

    assert isinstance(endpoint, Endpoint)
    async with asyncio.timeout(10):
        store = await Store.connect(endpoint)
    try:
        view = await look(store)
        if watch:
            with Live(console=out, refresh_per_second=2) as live:
                while True:
                    live.update(_table(view))
                    await asyncio.sleep(2)
                    view = await look(store)
        return view
    finally:
        await store.close()


def _show(view: "Overview") -> None:
    leader = view.leader or "nobody: plans and subscriptions stay as they are until a coordinator runs"
    say(f"leader {leader}; {view.clients} clients")
    for epoch in view.epochs:
        waits = "; ".join(f"{name} {why}" for name, why in list(epoch.waiting.items())[:3])
        say(
            f"epoch {epoch.epoch}.{epoch.revision} {epoch.state}"
            + (f", waiting for {waits}" if waits else "")
        )
    out.print(_table(view))
    for broker_ in view.brokers:
        if broker_.status is None:
            continue
        for name, why in broker_.status.suspended.items():
            say(f"suspended at {broker_.name}: {name} ({why})")
        if broker_.state != "routing" and broker_.status.trouble:
            say(f"{broker_.name}: {broker_.status.trouble}")
    for decided in view.decisions:
        at = decided.get("at")
        when = time.strftime("%H:%M:%S", time.localtime(at if isinstance(at, float) else 0))
        say(f"{when} {decided.get('action')}: {decided.get('reason')}")


def _table(view: "Overview") -> Table:
    table = plain_table("broker", "state")
    columns = ("epoch", "in", "routed", "sent", "MB", "handed", "bad", "again", "lag")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = (
        "in: events published here; routed: with those from neighbours; sent: over links, MB of payload;\n"
        "handed: to subscriptions; bad: rejected; again: redelivered and dropped; lag: messages that wait"
    )
    table.caption_justify = "left"
    totals = dict.fromkeys(columns[1:], 0.0)
    for broker_ in view.brokers:
        s = broker_.status
        if s is None:
            table.add_row(broker_.name, broker_.state, *["-"] * len(columns))
            continue
        sent = sum(link.messages for link in s.links.values())
        size = sum(link.payload_bytes for link in s.links.values()) / 1e6
        lag = s.lag_published + sum(s.lag_links.values()) + sum(s.lag_clients.values())
        row = [s.published, s.events, sent, size, s.deliveries, s.rejects, s.redeliveries, lag]
        for name, value in zip(columns[1:], row, strict=True):
            totals[name] += value
        cells = [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in row]
        style = (
            None if broker_.state == "routing" else "yellow" if broker_.state == "catching up" else "red"
        )
        table.add_row(broker_.name, broker_.state, f"{s.epoch}.{s.revision}", *cells, style=style)
    sums = [f"{v:,.1f}" if n == "MB" else f"{v:,.0f}" for n, v in totals.items()]
    table.add_row("all", "", "", *sums, style="bold")
    return table


# ------------------------------------------------------------------------------------------------ parts


def _directory(path: Path) -> "Directory":
    from ramify.overlay.live.directory import Directory

    return Directory(path.absolute())


def _attached(clients: Sequence[str], overlay: Overlay) -> dict[str, str]:
    """NAME@BROKER. The last @ counts: names may have some."""
    found: dict[str, str] = {}
    for text in clients:
        name, at, where = text.rpartition("@")
        if not at or not name or where not in overlay.index:
            some = ", ".join(overlay.brokers[:3])
            raise InputError(
                f"--client {text!r}: give NAME@BROKER with a broker of {overlay.name} ({some}, ...)"
            )
        found[name] = where
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None
