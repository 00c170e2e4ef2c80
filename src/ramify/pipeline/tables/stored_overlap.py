"""Which profiles overlap, read back from stored tables for SemCast to plan by.

Owns what ties tables to the classes that they were made of. It needs pyarrow alone, no Spark.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramify.errors import InputError
from ramify.pipeline.passes.table_files import read_about, read_table
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.overlap import Overlap, Profiles

__all__ = ["StoredOverlap", "about_selectivity", "read_overlap"]


@dataclass(frozen=True, slots=True)
class StoredOverlap:
    """The overlap of tables, and whether it has every pair of classes where one contains the other."""

    overlap: Overlap
    exact: bool


def about_selectivity(classes: Classes, half_life_s: float | None) -> dict[str, Any]:
    """The facts that readers of a selectivity table need."""
    digest = hashlib.sha256(b"".join(filter_.key for filter_ in classes.filters))
    digest.update(np.packbits(np.asarray(classes.vacant, dtype=np.bool_)).tobytes())
    return {"subscriptions": digest.hexdigest(), "half_life_s": half_life_s}


def read_overlap(under: str | Path, classes: Classes, *, half_life_s: float | None = None) -> StoredOverlap:
    """The overlap of the tables below a directory, for these classes.

    With a half-life, rates are the decayed ones of the tables, which must have been made with the same.

    Raises
    ------
    InputError
        When there are no such tables, or they were made of other subscriptions or with another half-life.
    """
    wanted, found = about_selectivity(classes, half_life_s), read_about(under, "selectivity")
    if found.get("subscriptions") != wanted["subscriptions"]:
        raise InputError(
            "the tables were made of other subscriptions than are planned for; write them again",
            path=str(under),
        )
    if half_life_s is not None and found["half_life_s"] != half_life_s:
        other = "no half-life" if found["half_life_s"] is None else f"{found['half_life_s']:g} s"
        raise InputError(
            f"the half-life is {half_life_s:g} s, and the tables were made with {other}; write them again",
            path=str(under),
        )
    tables = read_table(under, "selectivity"), read_table(under, "overlap")
    overlap = Overlap.of_tables(*tables, Profiles.of(classes), recent=half_life_s is not None)
    return StoredOverlap(overlap, bool(read_about(under, "overlap")["exact"]))
