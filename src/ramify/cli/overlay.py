"""The commands of the live overlay: up, keys, broker, coordinator. See `status` for what looks at it."""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ramify.cli.addresses import server_url
from ramify.cli.app import app
from ramify.cli.console import friendly, say
from ramify.cli.directories import DirOption, directory_at
from ramify.cli.durations import HalfLifeOption, duration_s, half_life_of
from ramify.cli.logs import SparkOption
from ramify.cli.tls_options import InsecureOption, TlsCa, TlsCert, TlsKey, tls_context
from ramify.cli.weight_options import FilterWeight, MatchingWeight
from ramify.errors import InputError, LiveError, PlanError
from ramify.network.graphs.overlay import Overlay
from ramify.network.graphs.specs import overlay_from
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.pipeline.session.engine import NONE
from ramify.pipeline.session.launch import check_url
from ramify.pipeline.session.warm import AUTO

if TYPE_CHECKING:
    from ramify.overlay.control.rules import OverlayRules
    from ramify.overlay.live.host.directory import Directory
    from ramify.overlay.live.host.machine import Machine
    from ramify.overlay.live.host.overview import Overview
    from ramify.planning.plans.plan import Plan

__all__: list[str] = []

_START_LIMIT_S = 180.0

ClientsOption = Annotated[
    list[str] | None, typer.Option("--client", help="A client to let in, NAME@BROKER. Repeat it for more.")
]
MovableOption = Annotated[
    bool,
    typer.Option("--movable", help="Let every server admit every client, for `ramify move`. It stays so."),
]
SchemesOption = Annotated[
    str, typer.Option(help="Schemes that re-plans may choose from, separated by spaces.")
]
PeriodOption = Annotated[
    float, typer.Option("--replan-every", help="Weigh new plans every so many seconds; 0 is never.", min=0)
]
ThresholdOption = Annotated[
    float, typer.Option(help="Install a plan that saves more than this share of the cost.", min=0, max=1)
]
WindowOption = Annotated[
    float, typer.Option(help="Plan for the samples of the last so many seconds.", min=1)
]
LeastOption = Annotated[
    int, typer.Option(help="Weigh plans only on this many sampled events or more.", min=1)
]
SampleOption = Annotated[
    float, typer.Option(help="Share of published events that is sampled.", min=0, max=1)
]
SyncOption = Annotated[
    Literal["interval", "always"],
    typer.Option(
        help="When servers sync to the disk what they acknowledge: within two minutes, or before. What is "
        "not synced is lost with the power."
    ),
]
RulesOption = Annotated[
    Path | None,
    typer.Option(
        help="JSON: capacities, quotas, residency. Every plan must keep them; see `ramify rules`."
    ),
]
_REPLAN_SCHEMES = "explicit portfolio mult"
_FIRST_SCHEME = "explicit"


# ------------------------------------------------------------------------------------ single processes


@app.command()
@friendly
def broker(
    config: Annotated[
        list[Path],
        typer.Option("--config", help="Settings (TOML). Repeat it to run several brokers in one process."),
    ],
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus figures on this port; 0 picks one.")
    ] = None,
) -> None:
    """Run one or more brokers until Ctrl-C."""
    from ramify.overlay.live.host.broker_files import read_broker_file

    for file in config:
        read_broker_file(file).config()
    options = [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
    # another program in our place: it loads what routing needs, and not what all commands do
    serving = [sys.executable, "-m", "ramify.overlay.live.host.process", *map(str, config), *options]
    sys.stdout.flush()
    os.execv(sys.executable, serving)


@app.command()
@friendly
def coordinator(
    control: Annotated[
        str, typer.Option(help="The control server: tls://host:port, or nats:// on this machine.")
    ],
    key: Annotated[Path, typer.Option(help="The seed file of this coordinator.")],
    name: Annotated[
        str, typer.Option(help="The name of this coordinator; each needs its own.")
    ] = "coordinator",
    overlay: Annotated[
        str | None, typer.Option(help="The overlay, for a first start without --plan.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan to begin with.")] = None,
    replace_plan: Annotated[
        bool, typer.Option(help="Install --plan even if the store has another plan.")
    ] = False,
    replace_once: Annotated[str, typer.Option(hidden=True)] = "",
    scheme: Annotated[str, typer.Option(help="Scheme of the first plan, without --plan.")] = "explicit",
    clients: Annotated[
        Path | None,
        typer.Option(help="clients.json of `ramify keys`: no broker may ask for another's new clients."),
    ] = None,
    samples: Annotated[Path | None, typer.Option(help="Land samples here, as Parquet files.")] = None,
    replan_every: PeriodOption = 0.0,
    schemes: SchemesOption = _REPLAN_SCHEMES,
    threshold: ThresholdOption = 0.05,
    window: WindowOption = 600.0,
    half_life: HalfLifeOption = None,
    least_events: LeastOption = 100,
    spark: SparkOption = "local[*]",
    rules: RulesOption = None,
    per_filter: FilterWeight = None,
    per_matching: MatchingWeight = None,
    rules_once: Annotated[str, typer.Option(hidden=True)] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: InsecureOption = False,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus figures on this port; 0 picks one.")
    ] = None,
    announce: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a coordinator until Ctrl-C: it leads, or stands by for the leader."""
    from ramify.cli.coordinator_process import CoordinatorOptions, run_coordinator
    from ramify.overlay.live.wire.security import ControlRole, read_seed
    from ramify.overlay.live.wire.streams import Endpoint
    from ramify.planning.plans.files import read_plan

    check_schemes(scheme, schemes)
    check_url(spark, AUTO, NONE)
    role = ControlRole(name)
    context = tls_context(tls_ca, tls_cert, tls_key)
    seed = read_seed(key).seed
    graph = None if overlay is None else overlay_from(overlay)
    begun = None if plan is None else read_plan(plan)
    known = graph if begun is None else begun.overlay
    asked = given_rules(rules, per_filter, per_matching, known, begun)
    endpoint = Endpoint(
        server_url(control), seed, role.inbox_prefix, f"control {name}", context, insecure, key
    )
    settings = CoordinatorOptions(
        name,
        endpoint,
        graph,
        begun,
        replace_plan,
        replace_once,
        scheme,
        samples,
        replan_every,
        tuple(schemes.split()),
        threshold,
        window,
        half_life_of(half_life),
        least_events,
        spark,
        metrics_port,
        announce,
        asked,
        rules_once,
        clients,
    )
    run_coordinator(settings)


# -------------------------------------------------------------------------------------- a whole overlay


@app.command()
@friendly
def up(
    directory: DirOption = Path("ramify-data"),
    overlay: Annotated[
        str | None,
        typer.Option(help="As for `ramify plan`. [default: the directory's, cloud-regions for a new one]"),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="The plan to run, from `ramify plan --out`. It replaces the directory's plan."),
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(help="Scheme of the first plan of a new directory. [default: explicit]"),
    ] = None,
    matchmaking: Annotated[
        str | None,
        typer.Option(
            help="Run without coordinator and plans: brokers make matches over `shared` or `per-source` "
            "trees. [default: as in the directory's last run]"
        ),
    ] = None,
    client: ClientsOption = None,
    movable: MovableOption = False,
    processes: Annotated[int, typer.Option(help="How many processes the brokers share.", min=1)] = 2,
    coordinators: Annotated[
        int, typer.Option(help="How many coordinators: one leads, the others stand by.", min=1, max=9)
    ] = 1,
    sync: SyncOption = "interval",
    broker_lease: Annotated[
        int,
        typer.Option(
            help="Seconds that brokers route on while the control server is away. Changes wait as long "
            "for a broker that died.",
            min=1,
            max=3600,
        ),
    ] = 15,
    sample: SampleOption = 0.03,
    replan_every: PeriodOption = 0.0,
    schemes: SchemesOption = _REPLAN_SCHEMES,
    threshold: ThresholdOption = 0.05,
    window: WindowOption = 600.0,
    half_life: HalfLifeOption = None,
    least_events: LeastOption = 100,
    spark: SparkOption = "local[*]",
    rules: RulesOption = None,
    per_filter: FilterWeight = None,
    per_matching: MatchingWeight = None,
) -> None:
    """Run a whole overlay on this machine until Ctrl-C: servers, brokers, a coordinator."""
    from ramify.overlay.live.host.machine import Machine, MachineConfig
    from ramify.planning.plans.files import read_plan

    check_schemes(scheme or _FIRST_SCHEME, schemes)
    check_url(spark, AUTO, NONE)
    half_life_of(half_life)
    files = directory_at(directory)
    if matchmaking is None and plan is None and scheme is None:
        matchmaking = files.matchmaking or None
    if matchmaking is not None:
        given = {
            "--plan": plan,
            "--scheme": scheme,
            "--replan-every": replan_every,
            "--movable": movable,
            "--rules": rules,
            "--per-filter": per_filter,
            "--per-matching": per_matching,
        }
        _check_matchmaking(matchmaking, [name for name, value in given.items() if value])
        graph = _overlay_of(files, overlay, None)
        asked = _attached(client or [], graph)
        files.create(graph)
        files.add_clients(asked)
        matched = MachineConfig(
            *(graph, files, (), processes), matchmaking=matchmaking, sync_always=sync == "always"
        )
        run_to_end(_up(Machine(matched), None))
        return
    made = None if plan is None else read_plan(plan)
    graph = _overlay_of(files, overlay, made)
    given_rules(rules, per_filter, per_matching, graph, made)
    attached = {} if made is None else {row.client: row.broker for m in made.classes.members for row in m}
    attached |= _attached(client or [], graph)
    files.create(graph)  # last: what was refused above leaves no directory
    files.add_clients(attached)
    if movable:
        files.make_movable()
    first = ["--overlay", str(files.path / "overlay.json")]
    wish = "" if plan is None else uuid.uuid4().hex
    if plan is not None:
        # of all starts and coordinators of this run one replaces what the directory had
        first = ["--plan", str(plan.absolute()), "--replace-plan", "--replace-once", wish]
    command = [
        *(sys.executable, "-m", "ramify.cli", "coordinator", *first, "--scheme", scheme or _FIRST_SCHEME),
        *("--clients", str(files.path / "clients.json")),
        *("--replan-every", str(replan_every), "--schemes", schemes),
        *("--threshold", str(threshold), "--window", str(window), "--least-events", str(least_events)),
        *(() if half_life is None else ("--half-life", half_life)),
        *_rules_options(rules, per_filter, per_matching),
        *("--spark", spark, "--samples"),
    ]
    # each collects the samples for itself
    places = [files.path / "samples", *(files.path / f"samples-{i + 2}" for i in range(coordinators - 1))]
    config = MachineConfig(
        graph,
        files,
        [*command, str(places[0])],
        processes,
        sample_probability=sample,
        lease_s=broker_lease,
        standbys=[[*command, str(place)] for place in places[1:]],
        sync_always=sync == "always",
    )
    run_to_end(_up(Machine(config), _UpRequest(plan, wish, scheme)))


@dataclass(frozen=True)
class _UpRequest:
    """What `up` was asked to run: a plan file and the wish that names it, or a scheme for a first plan."""

    file: Path | None
    wish: str
    scheme: str | None

    def told(self, epoch: int, head: "Plan", granted: str) -> str:
        """What became of it, for people. `head` is the plan that runs, `granted` the last wish that was."""
        from ramify.planning.schemes.catalog import scheme_from

        runs = f"epoch {epoch}, plan {head.scheme}"
        if self.file is not None:
            if granted != self.wish:
                return f"{runs}; {self.file} is not installed, and the coordinator's log says why"
            return f"{runs} of {self.file}" + ("" if epoch == 1 else "; it replaces the directory's plan")
        if self.scheme is not None and scheme_from(self.scheme)[0] != head.scheme:
            return (
                f"{runs}, from the directory; --scheme {self.scheme} is only for new directories. "
                "To change the plan, give --plan"
            )
        return runs


def _overlay_of(files: "Directory", named: str | None, plan: "Plan | None") -> Overlay:
    """The overlay to run. Raises `InputError` when what is named is not what a plan is made for."""
    if plan is not None:
        if named is not None and overlay_from(named) != plan.overlay:
            raise InputError(
                f"--plan is made for {plan.overlay.name}, not for --overlay {named}: leave one of them out"
            )
        return plan.overlay
    if named is None and (files.path / "overlay.json").exists():
        return files.overlay()
    return overlay_from(named or "cloud-regions")


def _check_matchmaking(trees: str, others: Sequence[str]) -> None:
    from ramify.overlay.matchmaking.places import TREES

    if trees not in TREES:
        raise InputError(f"--matchmaking {trees[:40]!r}: give {' or '.join(TREES)}")
    if others:
        raise InputError(
            f"{', '.join(others)} cannot go with --matchmaking: matchmaking has no plans. "
            "Leave one of them out"
        )


async def _up(machine: "Machine", asked_for: _UpRequest | None) -> None:
    from ramify.overlay.live.host.process import until_signal
    from ramify.overlay.live.wire.tasks import end_tasks

    asked = asyncio.create_task(until_signal())
    running = asyncio.create_task(_run(machine, asked_for))
    try:
        await asyncio.wait([asked, running], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        await end_tasks([asked, running])
        say("stopping")
        await machine.stop()
        say(f"stopped; the data stays in {machine.directory.path}")


async def _run(machine: "Machine", asked: _UpRequest | None) -> None:
    overlay, path = machine.config.overlay, machine.directory.path
    say(f"{overlay.name}: {len(overlay)} brokers from {path}")
    running = await machine.start()
    watching = asyncio.create_task(machine.watch())
    began = time.monotonic()
    view = await until_routing(machine, _START_LIMIT_S)
    took = time.monotonic() - began
    if asked is None:
        say(f"all brokers route after {took:.1f} s")
        say(f"matches over {machine.config.matchmaking} trees, no coordinator: publishers must advertise")
    else:
        say(f"all brokers route after {took:.1f} s; control at {running.control_url}")
        say(await _told_plan(machine, view, asked))
    names = sorted(machine.directory.clients())
    example = names[0] if names else "alice"
    if not names:
        say(f"let a client in:   ramify keys --dir {path} --client alice@{overlay.brokers[0]}")
    say(f"look at it:        ramify status --dir {path}")
    say(f"subscribe:         ramify sub --dir {path} --client {example} --sql \"type = 'order.created'\"")
    said = "" if asked is not None else " --advertise \"type = 'order.created'\""
    say(f"publish:           ramify pub --dir {path} --client {example}{said} events.ndjson")
    say("Ctrl-C stops everything that was started.")
    await watching


async def until_routing(machine: "Machine", limit_s: float) -> "Overview":
    """Wait until every broker of this run routes by the newest plan. `LiveError` with what is missing."""
    from ramify.overlay.live.host.overview import looking_here

    running = machine.directory.running()
    assert running is not None
    late: list[str] = []
    try:
        async with asyncio.timeout(limit_s), looking_here(machine.directory, running) as look:
            while True:
                view = await look()
                late = view.behind(since=machine.started_at)
                if not late and len(view.brokers) == len(machine.config.overlay):
                    return view
                if failed := machine.failed():
                    raise LiveError(failed)
                await asyncio.sleep(0.3)
    except TimeoutError:
        logs = machine.directory.path / "logs"
        raise LiveError(
            f"not all brokers route after {limit_s:g} s: {', '.join(late) or 'none has registered'}. "
            f"The logs in {logs} say why."
        ) from None


async def _told_plan(machine: "Machine", view: "Overview", asked: _UpRequest) -> str:
    """Which plan runs, and what became of the one that was asked for."""
    from ramify.overlay.control.records import REPLACED
    from ramify.overlay.live.wire.store import Store
    from ramify.planning.plans.files import decode_plan

    newest = max(view.epochs, key=lambda each: each.epoch)
    store = await Store.join(machine.directory.viewer(machine.control_url))
    try:
        found = await store.get_large(newest.plan_key)
        granted = await store.get(REPLACED)
    finally:
        await store.close()
    if found is None:
        return f"epoch {newest.epoch}"
    wish = "" if granted is None else granted[0].decode()
    return asked.told(newest.epoch, decode_plan(found[0]), wish)


@app.command()
@friendly
def keys(
    directory: DirOption = Path("ramify-data"),
    overlay: Annotated[
        str | None, typer.Option(help="The overlay, for a new directory: a file or a name.")
    ] = None,
    client: ClientsOption = None,
    coordinator: Annotated[
        list[str] | None,
        typer.Option("--coordinator", help="NAME of a standby coordinator. Repeat it for more."),
    ] = None,
    movable: MovableOption = False,
    rotate: Annotated[
        list[str] | None,
        typer.Option(help="NAME of a client, broker, coordinator, viewer or operator: give it new keys."),
    ] = None,
    overlap: Annotated[
        str, typer.Option(help="How long rotated keys count yet: 30s, 10m, 1h; 0s for stolen ones.")
    ] = "10m",
    revoke: Annotated[
        list[str] | None, typer.Option(help="NAME of a client that is let in no more.")
    ] = None,
) -> None:
    """Make keys and the accounts of every server; let clients in, change keys, or keep clients out.

    An overlay that runs from the directory takes changes within a second or two. For servers of your
    own, include `accounts/<broker>.conf` in the configuration of each server, and give each broker and
    client its seed; the command says which servers to reload. Keys are made once and then kept.

    A rotated key counts for a while beside the new one. Whoever reads its key from the file goes on with
    the new one by itself when the old one ends, and nothing is lost.
    """
    from ramify.overlay.control.names import token
    from ramify.overlay.live.host.site import BrokerSite
    from ramify.overlay.live.wire.security import ClientRole, ControlRole, NeighbourRole, RouterRole

    files = directory_at(directory)
    overlap_s = _overlap_s(overlap)
    graph = files.overlay() if overlay is None else overlay_from(overlay)
    attached = _attached(client or [], graph)
    if overlay is not None:
        files.create(graph)
    files.add_clients(attached)
    files.add_coordinators(coordinator or [])
    if movable:
        files.make_movable()
    # names first: a wrong one must not leave half of the work done
    for name in rotate or []:
        files.roles_of(name)
    changed = [(name, files.rotate(name, overlap_s)) for name in rotate or []]
    left = [(name, files.revoke(name)) for name in revoke or []]
    ring, clients = files.ring, files.clients()
    site = BrokerSite(graph, files.path, clients, movable=files.movable, former=files.former())
    accounts = files.path / "accounts"
    accounts.mkdir(mode=0o700, exist_ok=True)
    reload: list[str] = []
    for name in graph.brokers:
        for role in (RouterRole(name), NeighbourRole(name), ControlRole(name)):
            ring.pair(role)
        reload += _write(accounts / f"{token(name)}.conf", site.accounts(name))
    reload += _write(accounts / "control.conf", files.control_accounts())
    say(f"keys in {ring.directory}, accounts of {len(graph)} servers and the control server in {accounts}")
    for text in client or []:
        name = text.rpartition("@")[0]
        say(f"client {name}: key {ring.path(ClientRole(name))}")
    for name in coordinator or []:
        say(f"coordinator {name}: key {ring.path(ControlRole(name))}")
    for name, roles in changed:
        made = ", ".join(ring.path(role).name for role in roles)
        say(f"{name}: new {made}; the old keys count until {_clock(overlap_s)}")
    for name, where in left:
        say(f"{name}: its key counts nowhere any more; its subscriptions at {where} end with their lease")
    if files.running() is not None:
        say("the running overlay takes this within a second or two")
    elif reload:
        _say_reloads(reload, changed, left, overlap_s)


# ------------------------------------------------------------------------------------------------ parts


def given_rules(
    file: Path | None,
    per_filter: float | None,
    per_matching: float | None,
    overlay: Overlay | None,
    plan: "Plan | None" = None,
) -> "OverlayRules | None":
    """The rules and weights that options give; None where none does.

    Raises `InputError` for a file that cannot be used, and for a plan that breaks its rules with events
    that may be published.
    """
    from ramify.overlay.control.rules import OverlayRules
    from ramify.planning.choosing.judgement import faults
    from ramify.planning.pricing.rules import Rules, read_rules
    from ramify.planning.pricing.weights import MonthlyWeights

    if file is None and per_filter is None and per_matching is None:
        return None
    rules = Rules() if file is None else read_rules(file, overlay)
    if plan is not None:
        found = faults(plan, None, rules)
        if found:
            raise PlanError("--plan breaks --rules:", map(str, found))
    return OverlayRules(rules, MonthlyWeights(per_filter or 0.0, per_matching or 0.0))


def _rules_options(file: Path | None, per_filter: float | None, per_matching: float | None) -> list[str]:
    """What a coordinator is given of them; of all starts and coordinators of this run one writes them."""
    found: list[str] = [] if file is None else ["--rules", str(file.absolute())]
    found += [] if per_filter is None else ["--per-filter", str(per_filter)]
    found += [] if per_matching is None else ["--per-matching", str(per_matching)]
    return [*found, "--rules-once", uuid.uuid4().hex] if found else []


def _attached(clients: Sequence[str], overlay: Overlay) -> dict[str, str]:
    """NAME@BROKER. The last @ counts: names may have some."""
    found: dict[str, str] = {}
    for text in clients:
        name, at, where = text.rpartition("@")
        if not at or not name or where not in overlay.index:
            some = ", ".join(overlay.brokers[:3])
            raise InputError(
                f"--client {text!r} is not NAME@BROKER with a broker of {overlay.name} ({some}, ...)"
            )
        found[name] = where
    return found


def _overlap_s(text: str) -> float:
    if text.strip() in ("0", "0s"):
        return 0.0
    try:
        return duration_s(text)
    except InputError as error:
        raise InputError(f"--overlap: {error}") from None


def _clock(ahead_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() + ahead_s))


def _say_reloads(
    changed: Sequence[str], rotated: Sequence[object], left: Sequence[object], overlap_s: float
) -> None:
    """What is to be done where servers are one's own."""
    some = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
    say(f"servers of your own: give them {some} and reload them (nats-server --signal reload)")
    if rotated:
        say("then put the new key files where those users run; they are read at the next connection")
        say(f"after {_clock(overlap_s)} run `ramify keys` again, and reload: old keys are left out then")
    if left:
        say("a client that was kept out is cut off by the reload")


def _write(path: Path, text: str) -> list[str]:
    """Write a file; its name, if that changed it."""
    try:
        if path.exists() and path.read_text() == text:
            return []
        path.write_text(text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None
    return [path.name]


def check_schemes(first: str, others: str) -> None:
    """Raise `InputError` for a scheme that is none: now, and not when a plan is to be made with it."""
    from ramify.planning.schemes.catalog import scheme_from

    for spec in (first, *others.split()):
        scheme_from(spec)
    if not others.split():
        raise InputError("--schemes is empty: choose some of `ramify list`")
