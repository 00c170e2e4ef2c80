"""The `ramify` command itself, and the table of its commands.

A command's module is imported when the command is called: `--help` and `--version` import none, and no
command pays for what another needs. So the table says where each command is and what it does; a command
puts itself on `app` when its module is imported, as always with Typer. A test holds the table against
the commands.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from ramify import __version__

__all__ = ["COMMANDS", "CommandEntry", "app", "main"]


class CommandEntry(NamedTuple):
    """Where a command is, and the first line of its help."""

    module: str
    help: str


COMMANDS: Mapping[str, CommandEntry] = {
    "plan": CommandEntry("plan", "Price every way to route a log of events, and keep the cheapest plan."),
    "price": CommandEntry("pipeline", "Price a plan on a whole log of events, where the events are."),
    "diff": CommandEntry(
        "plan",
        "Say how two plans differ: channels, tree links, subscriptions that moved, attachments, paths.",
    ),
    "explain": CommandEntry(
        "explain",
        "Say what a plan does with one event: its receivers and why, the links it crosses, the cost.",
    ),
    "tables": CommandEntry(
        "pipeline",
        "Write what a log says: demand, selectivity, overlap, traffic, histograms, profile, quarantine.",
    ),
    "generate": CommandEntry(
        "pipeline",
        "Write the events of a built-in workload, with its subscriptions, attachments and overlay.",
    ),
    "spark": CommandEntry("spark", "Keep a local Spark running; later commands join it by themselves."),
    "match": CommandEntry(
        "content", "Match a log of events against subscriptions, and count the matches of each."
    ),
    "filter": CommandEntry(
        "filters", "Check a filter; with an event, explain predicate by predicate why it matches or not."
    ),
    "test-filter": CommandEntry(
        "filters",
        "Say which events a filter accepts, or whether a file of cases has the verdicts that it expects.",
    ),
    "sigma": CommandEntry(
        "sigma",
        "Write Sigma rules as subscriptions, one JSON object a line; rules that are no filters are named.",
    ),
    "overlay": CommandEntry("content", "Read or generate an overlay and show its figures."),
    "workload": CommandEntry(
        "content", "Generate a built-in workload and show its realised averages beside the paper's."
    ),
    "list": CommandEntry("content", "List the overlays, workloads and schemes that have a name."),
    "matches": CommandEntry(
        "matches",
        "Simulate matchmaking over the trees of a plan: the matches, what is stored, what is sent.",
    ),
    "up": CommandEntry(
        "overlay", "Run a whole overlay on this machine until Ctrl-C: servers, brokers, a coordinator."
    ),
    "broker": CommandEntry("overlay", "Run one or more brokers until Ctrl-C."),
    "coordinator": CommandEntry(
        "overlay", "Run a coordinator until Ctrl-C: it leads, or stands by for the leader."
    ),
    "keys": CommandEntry(
        "overlay",
        "Make keys and the accounts of every server; let clients in, change keys, or keep clients out.",
    ),
    "status": CommandEntry(
        "status",
        "Show what runs: the leader, plans, every broker's epoch, traffic and lag, latest decisions.",
    ),
    "rules": CommandEntry(
        "rules", "Show the rules and weights of a running overlay, or change them while it runs."
    ),
    "pub": CommandEntry(
        "messages",
        "Publish events. Each batch is stored before the next is read; bad lines are named and skipped.",
    ),
    "sub": CommandEntry(
        "messages",
        "Print one event a line until Ctrl-C: a CloudEvent as such, other events as published.",
    ),
    "move": CommandEntry(
        "move", "Move a client to another broker while events flow: nothing is lost or doubled."
    ),
    "verify": CommandEntry(
        "verify", "Try a running overlay with clients of its own, and say whether the promise was kept."
    ),
    "demo": CommandEntry(
        "demo", "Tell the whole story: plan a day's events over 41 cloud regions, run them live, re-plan."
    ),
}
"""Every command by name, in the order of `--help`; modules are those of `ramify.cli`."""


class _LazyGroup(TyperGroup):
    """Commands that are listed by their entries, and loaded when they are called or completed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help)
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS:  # all names, for the suggestion of a near one
            self.commands = {known: self.get_command(ctx, known) for known in COMMANDS}
        elif name not in self.commands:
            _load(COMMANDS[name].module)
            self.commands = get_group(app).commands  # those that are on the app by now
        return super().resolve_command(ctx, args)


def _load(module: str) -> None:
    """Import a command's module; one that an extra brings is named with the extra."""
    from ramify.errors import MissingExtraError

    try:
        import_module(f"ramify.cli.{module}")
    except ModuleNotFoundError as error:
        missing = MissingExtraError.of(error)
        if missing is None:
            raise
        print(f"{type(missing).__name__}: {missing}", file=sys.stderr)
        raise typer.Exit(2) from None


app = typer.Typer(
    name="ramify",
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Content-based publish/subscribe over many sites, with planned dissemination trees.",
)


# Commands whose process never has a frame of pandas.
_FRAMELESS = ("filter", "pub", "sub", "status")


def main() -> None:
    """The `ramify` command."""
    if sys.argv[1:] and sys.argv[1] in _FRAMELESS:
        sys.meta_path.insert(0, _NoFrames())
    app()


class _NoFrames(MetaPathFinder):
    """Pandas as if it were not installed.

    Where it is, pyarrow loads it with the first array: a third of a second, for nothing that we use.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("this command does without pandas", name=name)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
