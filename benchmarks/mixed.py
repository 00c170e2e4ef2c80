"""Events whose attributes are now a number, now its text: what that costs against one type each.

Part of `matcher.py`. Ten attributes hold a number below 200, five of them written as a string. In plain
events these are always the same five, in mixed events they change from event to event, so both have as many
strings and numbers. A thousand patterns ask for the number and for its text, so both match alike.
"""

import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from ramify.content.events.flatten import decode_records
from ramify.content.filters.pattern import parse_pattern
from ramify.content.matching.matcher import Matcher

__all__ = ["mixed_figures"]

ATTRIBUTES, VALUES, FILTERS = 10, 200, 1_000


def mixed_figures(rounds: int, quick: bool) -> dict[str, float]:
    """Time of mixed over that of plain events: `whole` from JSON bytes to matches, `match` in memory.

    Medians of rounds that take turns.
    """
    rng = np.random.default_rng(11)
    rows = 20_000 if quick else 60_000
    numbers = rng.integers(VALUES, size=(rows, ATTRIBUTES))
    plain = [_record(k, row.tolist(), mixed=False) for k, row in enumerate(numbers)]
    mixed = [_record(k, row.tolist(), mixed=True) for k, row in enumerate(numbers)]
    matcher = Matcher([parse_pattern(_pattern(rng)) for _ in range(FILTERS)])
    batches = [decode_records(texts).batch for texts in (plain, mixed)]
    found = [matcher.match(batch) for batch in batches]
    assert found[0].ids.tolist() == found[1].ids.tolist(), "both kinds of event match alike"
    assert len(found[0].ids), "and some match"
    return {
        "whole": _ratio(
            lambda: matcher.match(decode_records(mixed).batch),
            lambda: matcher.match(decode_records(plain).batch),
            rounds,
        ),
        "match": _ratio(lambda: matcher.match(batches[1]), lambda: matcher.match(batches[0]), rounds),
    }


def _record(k: int, numbers: list[int], *, mixed: bool) -> bytes:
    fields = {f"a{c}": str(number) if (c + k * mixed) % 2 else number for c, number in enumerate(numbers)}
    return json.dumps({"id": f"e{k}", **fields}).encode()


def _pattern(rng: np.random.Generator) -> dict[str, list[int | str]]:
    columns = rng.choice(ATTRIBUTES, size=2, replace=False).tolist()
    wanted = rng.integers(VALUES, size=(2, 5)).tolist()
    return {f"a{c}": [*some, *map(str, some)] for c, some in zip(columns, wanted, strict=True)}


def _ratio(one: Callable[[], object], other: Callable[[], object], rounds: int) -> float:
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for seen, run in zip(times, (one, other), strict=True):
            start = time.perf_counter()
            run()
            seen.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])
