"""Files of this machine listed without Spark, where Spark would find the same ones.

Owns which names Spark leaves out. Spark plans and runs a job to list files, a few tenths of a second that a
short pass would notice. What is not plainly the same to both (links, globs, odd names, what cannot be
read) is left to Spark, errors too.
"""

import os
import re
import stat

__all__ = ["local_files"]


class _UnclearError(Exception):
    """Only Spark can tell."""


def local_files(path: str) -> dict[str, int] | None:
    """The files at an absolute path, or in all directories below, with their lengths; None: ask Spark.

    The path is escaped as for Spark. Hidden files are left out as Spark does.
    """
    if not path.startswith("/") or re.search(r"(?<!\\)[*?\[{]", path):
        return None
    bare = re.sub(r"\\(.)", r"\1", path)
    found: dict[str, int] = {}
    try:
        if _is_hidden(os.path.basename(bare)):
            return None
        _add(bare, os.stat(bare), found)
    except (OSError, _UnclearError):
        return None
    return found


def _add(path: str, status: os.stat_result, found: dict[str, int]) -> None:
    """Note a file, or all those in a directory."""
    if stat.S_ISREG(status.st_mode):
        found[f"file:{path}"] = status.st_size
        return
    if not stat.S_ISDIR(status.st_mode):
        raise _UnclearError
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink() or not entry.name.isprintable():
                raise _UnclearError
            if not _is_hidden(entry.name):
                _add(entry.path, entry.stat(), found)


def _is_hidden(name: str) -> bool:
    """As Spark has it: a dot or an underscore before it, but partitions, or a copy that is not complete."""
    if name.startswith(("_metadata", "_common_metadata")):
        raise _UnclearError
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
