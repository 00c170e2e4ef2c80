"""Place first, then plan: a study with its clients moved, for `ramify plan --place`.

Owns the names of the algorithms, the files of access prices and capacities, and the move of all windows of
a study together, so that whatever is planned on the training window can be priced on the others. What is
run today is planned for the moved clients too: the study compares ways to route, not placements.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import numpy as np

from ramify.errors import InputError
from ramify.planning.choosing.study import Study
from ramify.planning.placement.composition import access_money, homes, placed, placement_problem
from ramify.planning.placement.core import assess
from ramify.planning.placement.exact import exact_placement
from ramify.planning.placement.heuristics import HEURISTICS
from ramify.planning.placement.local_search import local_search
from ramify.planning.placement.model import Placement, PlacementProblem
from ramify.planning.placement.rounds import Round, in_rounds
from ramify.planning.pricing.bound import GB

__all__ = ["ALGORITHMS", "PlacedStudy", "place_study", "read_access", "read_capacity"]

ALGORITHMS = (*HEURISTICS, "local-search", "rounds", "exact")
"""The paper's, ours, what brokers reach by themselves from where clients are, and the program for few."""

EXACT_SECONDS = 60.0

Access = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class PlacedStudy:
    """A study after placement, and what access links cost on its training window, in money.

    `total` is access and core by the placement's own model, with a tree per group; `rounds` says how
    brokers got there, where they did it by themselves; `bound` is what no placement can beat, where that
    is known. Before are NaN where a client may not stay.
    """

    study: Study
    placement: Placement
    moved: int
    access: float
    access_before: float
    total: float
    total_before: float
    rounds: tuple[Round, ...] = ()
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class _PlacementResult:
    placement: Placement
    rounds: tuple[Round, ...] = ()
    bound: float | None = None


def _place(
    problem: PlacementProblem, algorithm: str, seed: int, start: Placement | None
) -> _PlacementResult:
    """By one of `ALGORITHMS`; only that by rounds begins with `start`, or else with greedy packing."""
    if algorithm not in ALGORITHMS:
        raise InputError(f"no placement algorithm {algorithm!r}. Use one of: {', '.join(ALGORITHMS)}.")
    rng = np.random.default_rng(seed)
    if algorithm == "exact":
        best = exact_placement(problem, seconds=EXACT_SECONDS)
        return _PlacementResult(best.placement, bound=best.bound)
    if algorithm == "rounds":
        made = in_rounds(problem, start or HEURISTICS["greedy"](problem, rng, "steiner"))
        return _PlacementResult(made.placement, made.rounds)
    if algorithm == "local-search":
        return _PlacementResult(local_search(problem, rng))
    return _PlacementResult(HEURISTICS[algorithm](problem, rng, "steiner"))


def place_study(
    study: Study,
    algorithm: str,
    seed: int,
    *,
    access: Access | None = None,
    capacity: Mapping[str, float] | None = None,
) -> PlacedStudy:
    """Place the clients of a study by its training window; its demands must be by client and by cell.

    `capacity` is in 10^6 bytes a second by broker: what its clients publish and get. Raises `InputError`
    for another algorithm, `PlacementError` without room, `LimitError` for what is too large for `exact`.
    """
    problem = placement_problem(study.problem, access=access, capacity=_window_bytes(study, capacity))
    stayed = list(homes(study.problem).values())
    allowed = all(problem.allowed[u, b] for u, b in enumerate(stayed))
    fits = bool((problem.load(np.array(stayed, dtype=np.int32)) <= problem.room).all())
    stay = assess(problem, stayed) if allowed and fits else None
    made = _place(problem, algorithm, seed, stay)
    found, where = made.placement, made.placement.names(problem)
    demands = (
        placed(replace(study.problem, demand=window), where).demand
        for window in (study.validation, study.test, study.whole)
    )
    validation, test, whole = demands
    price = problem.access_price[np.arange(len(found.broker)), found.broker]
    linked = replace(
        placed(study.problem, where), access=dict(zip(problem.users, price.tolist(), strict=True))
    )
    moved = replace(study, problem=linked, validation=validation, test=test, whole=whole)
    nan = float("nan")
    return PlacedStudy(
        moved,
        found,
        int((found.broker != np.array(stayed)).sum()),
        access_money(problem, found),
        nan if stay is None else access_money(problem, stay),
        found.total / GB,
        nan if stay is None else stay.total / GB,
        made.rounds,
        None if made.bound is None else made.bound / GB,
    )


def _window_bytes(study: Study, capacity: Mapping[str, float] | None) -> dict[str, float] | None:
    """What brokers bear while the training window lasts."""
    if capacity is None:
        return None
    seconds = study.problem.demand.seconds
    if not seconds:
        raise InputError("capacities are by the second, but the log spans no time. Say how long: --hours.")
    return {broker: 1e6 * value * seconds for broker, value in capacity.items()}


def read_capacity(path: str | Path) -> dict[str, float]:
    """Capacities from a CSV file with the columns broker, mb_per_s (10^6 bytes a second)."""
    return {row["broker"]: value for row, value in _numbers(path, ("broker",), "mb_per_s")}


def read_access(path: str | Path) -> dict[tuple[str, str], float]:
    """Access prices from a CSV file with the columns client, broker, price (per 10^9 bytes)."""
    return {
        (row["client"], row["broker"]): value
        for row, value in _numbers(path, ("client", "broker"), "price")
    }


def _numbers(path: str | Path, keys: tuple[str, ...], value: str) -> Iterator[tuple[dict[str, str], float]]:
    """The rows of a CSV file with a number of 0 or more each."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", path=str(path)) from None
    rows = csv.DictReader(text.splitlines())
    if rows.fieldnames is None or not {*keys, value} <= set(rows.fieldnames):
        raise InputError(f"needs the columns {', '.join(keys)} and {value}.", path=str(path))
    for row in rows:
        try:
            found = float(row[value])
        except (TypeError, ValueError):
            found = -1.0
        if not (found >= 0 and isfinite(found)):
            reason = f"{value} {row[value]!r}. Allowed: 0 or more."
            raise InputError(reason, path=str(path), line=rows.line_num)
        yield row, found
