"""Files on their way to tasks, whatever Spark runs on: local, a cluster, or behind Connect.

Owns the names under which files travel, and where they wait meanwhile. It does not know what is in them.

    name = ship(spark, path)       on the driver
    path = shipped(name)           in a task, or on the driver again

A name holds the digest of the content, so a file is sent once per session however often it is asked for,
two files never collide, and what a process has read under a name it may keep for good. Broadcast variables
would do the same, but Connect has none; artifacts are in both. Spark fetches an artifact from where it lay
when it was added, at any later time, so files wait in a directory that lives as long as the session.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.errors import InputError
from ramify.pipeline.session.engine import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ship", "shipped", "waiting_room"]


@dataclass
class _Shipment:
    """What one session has sent: where it waits, and the names that Spark knows already."""

    directory: Path
    names: set[str] = field(default_factory=set)


_SESSIONS: MutableMapping[SparkSession, _Shipment] = weakref.WeakKeyDictionary()


def ship(spark: SparkSession, path: Path) -> str:
    """Send a file to wherever tasks run; returns the name that `shipped` finds it by.

    The file itself may be changed or removed afterwards; one below `waiting_room` is gone then. Cost: one
    read for the digest, one copy, and one way to each machine that runs tasks.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    staged = _staged(spark)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
        name = f"{path.stem}-{digest}{path.suffix}"
        if name not in staged.names:
            _stage(path, staged.directory / name)
    except OSError as error:
        raise InputError(f"the file cannot be sent to Spark: {error}", path=str(path)) from None
    if name not in staged.names:
        spark.addArtifacts(str(staged.directory / name), file=True)
        staged.names.add(name)
    return name


def shipped(name: str) -> Path:
    """Where a file is that was sent under this name. An absolute path is a file that needed no sending.

    Raises
    ------
    InputError
        When no file of that name has arrived: it was sent in another session, or the session is over.
    """
    path = Path(name)
    if path.is_absolute():
        return path
    from pyspark import SparkFiles, TaskContext

    if TaskContext.get() is not None:
        path = Path(SparkFiles.get(name))
    else:
        waiting = (staged.directory for staged in _SESSIONS.values() if name in staged.names)
        path = next(waiting, Path()) / name
    if not path.is_file():
        raise InputError(f"Spark has no file {name}: send it in the session that uses it")
    return path


def waiting_room(spark: SparkSession) -> Path:
    """A directory of the session. What is written there is moved when it is sent, not copied."""
    return _staged(spark).directory


def _staged(spark: SparkSession) -> _Shipment:
    """The session's record, new if need be."""
    found = _SESSIONS.get(spark)
    if found is None or not found.directory.is_dir():
        directory = Path(tempfile.mkdtemp(prefix="ramify-shipped-", dir=_scratch(spark)))
        # at the latest when this process ends; `spark_session` removes its scratch before
        weakref.finalize(spark, shutil.rmtree, directory, ignore_errors=True)
        found = _SESSIONS[spark] = _Shipment(directory)
    return found


def _scratch(spark: SparkSession) -> str | None:
    """Spark's own scratch directory when it is on this machine, else the system's."""
    if is_connect(spark):
        return None
    local = spark.sparkContext.getConf().get("spark.local.dir", "") or ""
    return next((part for part in local.split(",") if os.path.isdir(part)), None)


def _stage(path: Path, target: Path) -> None:
    """Give a file its travelling name: by moving one that waits already, else as a copy.

    Never by a link: a later write into the file would change what Spark has promised to its tasks.
    """
    if target.exists():
        return
    if target.parent in path.absolute().parents:
        os.replace(path, target)
    else:
        part = target.with_suffix(".part")
        shutil.copyfile(path, part)
        os.replace(part, target)
