"""What all commands print with: two consoles, errors as one message, exit codes.

0 all went well; 1 some input rows could not be used (they are listed); 2 the request itself cannot be
carried out, with the reason on standard error and never a traceback.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from ramify.errors import MissingExtraError, RamifyError

__all__ = [
    "CANNOT",
    "REJECTED_SHOWN",
    "SOME_BAD_ROWS",
    "err",
    "fail",
    "friendly",
    "out",
    "plain_table",
    "say",
]

REJECTED_SHOWN = 10
SOME_BAD_ROWS = 1
CANNOT = 2

out = Console()
err = Console(stderr=True)
_P = ParamSpec("_P")


def friendly(command: Callable[_P, None]) -> Callable[_P, None]:
    """Print our own errors as one message; let anything else be seen as the bug it is."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RamifyError as error:
            _refuse(error)
        except ModuleNotFoundError as error:
            missing = MissingExtraError.of(error)
            if missing is None:
                raise
            _refuse(missing)
        except BrokenPipeError:  # the reader of our output went away
            sys.stderr.close()
            raise typer.Exit(0) from None

    return run


def _refuse(error: RamifyError) -> NoReturn:
    err.print(f"{type(error).__name__}: {error}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(CANNOT) from None


def fail(error: RamifyError) -> NoReturn:
    """Raise, where an expression is wanted."""
    raise error


def say(text: str) -> None:
    """One line of markup, never wrapped."""
    out.print(text, highlight=False, soft_wrap=True)


def plain_table(*columns: str, **options: Any) -> Table:
    """Columns apart by two spaces: what fits eighty characters."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline", **options)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table
