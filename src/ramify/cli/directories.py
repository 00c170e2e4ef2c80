"""The directory of an overlay on this machine, as commands name it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ramify.overlay.live.host.directory import Directory

__all__ = ["DirOption", "directory_at"]

DirOption = Annotated[Path, typer.Option("--dir", help="The directory of the overlay on this machine.")]


def directory_at(path: Path) -> "Directory":
    """The overlay of a directory on this machine."""
    from ramify.overlay.live.host.directory import Directory

    return Directory(path.absolute())
