"""Place first, then plan: a study with its clients moved, for `ramify plan --place`.

Owns the names of the algorithms, the file of access prices, and the move of all windows of a study
together, so that whatever is planned on the training window can be priced on the others. What is run today
is planned for the moved clients too: the study compares ways to route, not placements.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import numpy as np

from ramify.errors import InputError
from ramify.planning.placement.composition import access_money, homes, placed, placement_problem
from ramify.planning.placement.core import assess
from ramify.planning.placement.heuristics import HEURISTICS
from ramify.planning.placement.local_search import local_search
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.placement.rounds import Round, Rounds, in_rounds
from ramify.planning.study import Study

__all__ = ["ALGORITHMS", "PlacedStudy", "place", "place_study", "read_access"]

ALGORITHMS = (*HEURISTICS, "local-search", "rounds")
"""The paper's, ours, and what brokers reach by themselves from where the clients are now."""

Access = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class PlacedStudy:
    """A study after placement, and what access links cost on its training window, in money.

    `rounds` says how brokers got there, where they did it by themselves; costs are the placement's.
    """

    study: Study
    placement: Placement
    moved: int
    access: float
    access_before: float
    rounds: tuple[Round, ...] = ()


def place(problem: PlacementProblem, algorithm: str, seed: int, start: Placement | None = None) -> Rounds:
    """A placement by one of `ALGORITHMS`; only that by rounds begins with `start`, and has any.

    Without a start it is one by greedy packing. `InputError` for another name, `PlacementError` without
    room.
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f"no placement algorithm {algorithm!r}. Use one of: {', '.join(ALGORITHMS)}.")
    rng = np.random.default_rng(seed)
    if algorithm == "rounds":
        return in_rounds(problem, start or HEURISTICS["greedy"](problem, rng, "steiner"))
    if algorithm == "local-search":
        return Rounds(local_search(problem, rng), ())
    return Rounds(HEURISTICS[algorithm](problem, rng, "steiner"), ())


def place_study(study: Study, algorithm: str, seed: int, *, access: Access | None = None) -> PlacedStudy:
    """Place the clients of a study by its training window; its demands must be by client and by cell."""
    problem = placement_problem(study.problem, access=access)
    stayed = list(homes(study.problem).values())
    allowed = all(problem.allowed[u, b] for u, b in enumerate(stayed))
    stay = assess(problem, stayed) if allowed else None
    made = place(problem, algorithm, seed, stay)
    found, where = made.placement, made.placement.names(problem)
    demands = (
        placed(replace(study.problem, demand=window), where).demand
        for window in (study.validation, study.test, study.whole)
    )
    validation, test, whole = demands
    moved = replace(
        study, problem=placed(study.problem, where), validation=validation, test=test, whole=whole
    )
    return PlacedStudy(
        moved,
        found,
        int((found.broker != np.array(stayed)).sum()),
        access_money(problem, found),
        access_money(problem, stay) if stay is not None else float("nan"),
        made.rounds,
    )


def read_access(path: str | Path) -> dict[tuple[str, str], float]:
    """Access prices from a CSV file with the columns client, broker, price (per 10^9 bytes)."""
    prices: dict[tuple[str, str], float] = {}
    with Path(path).open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        if rows.fieldnames is None or not {"client", "broker", "price"} <= set(rows.fieldnames):
            raise InputError("access prices need the columns client, broker and price.", path=str(path))
        for row in rows:
            try:
                price = float(row["price"])
            except (TypeError, ValueError):
                price = -1.0
            if not (price >= 0 and isfinite(price)):
                raise InputError(
                    f"price {row['price']!r}. Allowed: 0 or more.", path=str(path), line=rows.line_num
                )
            prices[row["client"], row["broker"]] = price
    return prices
