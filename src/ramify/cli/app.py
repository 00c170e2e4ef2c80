"""The `ramify` command itself; the commands put themselves on it."""

from typing import Annotated

import typer

from ramify import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="ramify",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Content-based publish/subscribe over many sites, with planned dissemination trees.",
)


def main() -> None:
    """The `ramify` command."""
    app()


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
