"""How fast many filters are matched, beside the rule engines that people use from Python.

    python benchmarks/matcher.py [--quick]

One run, one machine, the same events throughout. Every subscription has three predicates out of an
equality, a range, a prefix and a set of keywords, with widths chosen so that an event matches about five
subscriptions whatever their number. The last line is one JSON object:

    events_per_s            by number of subscriptions, one thread
    ratio_rule_engine       events/s at 1,000 subscriptions over rule-engine's, same events and filters
    ratio_json_logic        the same over json-logic-qubit
    growth_1k_to_100k       time per event at 100,000 over that at 1,000 subscriptions
    bytes_per_subscription  memory of the index at 100,000 (and at 10,000 as the allocator saw it)
    add_ms                  mean time to add one subscription to 100,000 (and the median and slowest)
    substring_events_per_s  rules on parts of strings (`substrings.py`), by kind of event and rules
    substring_over_bare_scan   the same over a scan that finds the rules' literals and does nothing else
    mixed_over_plain        events with ten attributes of two types each over those of one (`mixed.py`):
                            from JSON bytes to matches, and matching alone. At most 1.3
    filter_ms               the slowest of filters made to explode, from the text to the key (CPU time)
"""

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import rule_engine
from json_logic import jsonLogic

from mixed import mixed_figures
from ramify.content.filters.constraints import ArraySet, Constraint
from ramify.content.filters.filters import Box, Filter
from ramify.content.filters.limits import FILTER_TEXT
from ramify.content.filters.sql import parse_sql
from ramify.content.filters.values import number_above, number_below, prefixed, strings_equal
from ramify.content.matching.matcher import Matcher
from ramify.errors import FilterError
from substrings import substring_figures

REGIONS = [f"region-{k:02d}" for k in range(10)]
SIDES = ["buy", "sell"]
WORDS = [f"word{k:03d}" for k in range(200)]
WORDS_PER_EVENT = 4
HEX = "0123456789abcdef"
MATCHES_PER_EVENT = 5
COUNTS = (1_000, 10_000, 100_000)
SUBSTRING_COUNTS = (1_000, 3_000)


@dataclass(frozen=True)
class Subscription:
    """Three of four predicates; None where one is not used."""

    equal: tuple[str, str] | None
    low: float | None
    high: float | None
    prefix: str | None
    words: tuple[str, ...] | None

    def filter(self) -> Filter:
        """As Ramify's filter."""
        asked = {}
        if self.equal:
            asked[self.equal[0]] = Constraint(scalars=strings_equal([self.equal[1]]))
        if self.low is not None:
            asked["price"] = Constraint(
                scalars=number_above(self.low, True).intersect(number_below(self.high, True))
            )
        if self.prefix is not None:
            asked["path"] = Constraint(scalars=prefixed(self.prefix))
        if self.words:
            asked["tags"] = Constraint(arrays=ArraySet(some=frozenset([strings_equal(self.words)])))
        return Filter((Box.of(asked),))

    def sql(self) -> str:
        """As Ramify's SQL spelling."""
        parts = []
        if self.equal:
            parts.append(f"{self.equal[0]} = '{self.equal[1]}'")
        if self.low is not None:
            parts.append(f"price BETWEEN {self.low!r}D AND {self.high!r}D")
        if self.prefix is not None:
            parts.append(f"path LIKE '{self.prefix}%'")
        if self.words:
            parts.append("(" + " OR ".join(f"array_contains(tags, '{w}')" for w in self.words) + ")")
        return " AND ".join(parts)

    def rule_engine(self) -> str:
        """As rule-engine's language."""
        parts = []
        if self.equal:
            parts.append(f'{self.equal[0]} == "{self.equal[1]}"')
        if self.low is not None:
            parts.append(f"price >= {self.low!r} and price <= {self.high!r}")
        if self.prefix is not None:
            parts.append(f'path.starts_with("{self.prefix}")')
        if self.words:
            parts.append("(" + " or ".join(f'"{w}" in tags' for w in self.words) + ")")
        return " and ".join(parts)

    def json_logic(self) -> dict:
        """As a JsonLogic rule."""
        parts = []
        if self.equal:
            parts.append({"==": [{"var": self.equal[0]}, self.equal[1]]})
        if self.low is not None:
            parts.append({"<=": [self.low, {"var": "price"}, self.high]})
        if self.prefix is not None:
            parts.append({"==": [{"substr": [{"var": "path"}, 0, len(self.prefix)]}, self.prefix]})
        if self.words:
            parts.append({"or": [{"in": [w, {"var": "tags"}]} for w in self.words]})
        return {"and": parts}


def make_events(rng: np.random.Generator, rows: int) -> pa.RecordBatch:
    words = rng.integers(len(WORDS), size=(rows, WORDS_PER_EVENT))
    tags = pa.ListArray.from_arrays(
        pa.array(np.arange(0, rows * WORDS_PER_EVENT + 1, WORDS_PER_EVENT, dtype=np.int32)),
        pa.array([WORDS[k] for k in words.ravel()]),
    )
    digits = rng.integers(16, size=(rows, 12))
    return pa.record_batch(
        {
            "side": pa.array([SIDES[k] for k in rng.integers(2, size=rows)]),
            "region": pa.array([REGIONS[k] for k in rng.integers(10, size=rows)]),
            "price": pa.array(rng.random(rows)),
            "path": pa.array(["".join(HEX[d] for d in row) for row in digits]),
            "tags": tags,
        }
    )


def make_subscriptions(rng: np.random.Generator, count: int) -> list[Subscription]:
    """Random subscriptions whose predicates multiply to a chance of MATCHES_PER_EVENT / count."""
    target = MATCHES_PER_EVENT / count
    field, values = ("side", SIDES) if count <= 1_000 else ("region", REGIONS)
    length = 2 if count > 10_000 else 1
    chance_equal, chance_prefix = 1 / len(values), 16.0**-length
    several = max(1, round(target / chance_equal / chance_prefix * len(WORDS) / WORDS_PER_EVENT))
    chance_words = 1 - (1 - several / len(WORDS)) ** WORDS_PER_EVENT
    out = []
    for _ in range(count):
        left_out = rng.integers(4)
        chance = 1.0
        equal = prefix = words = low = high = None
        if left_out != 0:
            equal, chance = (field, values[rng.integers(len(values))]), chance * chance_equal
        if left_out != 1:
            prefix = "".join(HEX[d] for d in rng.integers(16, size=length))
            chance *= chance_prefix
        if left_out != 2:
            words = tuple(WORDS[k] for k in rng.choice(len(WORDS), several, replace=False))
            chance *= chance_words
        if left_out != 3:
            width = min(1.0, target / chance)
            low = float(rng.random() * (1 - width))
            high = low + width
        out.append(Subscription(equal, low, high, prefix, words))
    return out


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def events_per_s(
    matchers: dict[int, Matcher], batch: pa.RecordBatch, rounds: int, threads: int
) -> dict[int, float]:
    """Events/s by number of subscriptions: rounds over all sizes in turn, the fastest of each counts.

    The machine is shared and noise only adds time; taking turns keeps the ratios fair.
    """
    best = dict.fromkeys(matchers, float("inf"))
    for _ in range(rounds):
        for count, matcher in matchers.items():
            best[count] = min(best[count], seconds_of(lambda m=matcher: m.match(batch, threads)))
    return {count: batch.num_rows / seconds for count, seconds in best.items()}


def other_engines(
    subscriptions: list[Subscription], batch: pa.RecordBatch, expected: list[list[int]]
) -> dict[str, float]:
    """Events/s of the other engines on some rows, checked to find the same matches."""
    events = batch.to_pylist()
    rules = [rule_engine.Rule(s.rule_engine()) for s in subscriptions]
    logics = [s.json_logic() for s in subscriptions]
    engines = {
        "rule_engine": lambda e: [k for k, rule in enumerate(rules) if rule.matches(e)],
        "json_logic": lambda e: [k for k, logic in enumerate(logics) if jsonLogic(logic, e)],
    }
    speeds = {}
    for name, engine in engines.items():
        found: list[list[int]] = []
        took = seconds_of(lambda e=engine, f=found: f.extend(e(event) for event in events))
        speeds[name] = len(events) / took
        assert found == expected, f"{name} and Ramify disagree"
    return speeds


def traced_bytes(filters: list[Filter]) -> float:
    """Bytes per filter that a matcher holds, as the allocator sees it."""
    gc.collect()
    tracemalloc.start()
    matcher = Matcher(filters)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(matcher)


def add_times(matcher: Matcher, extra: list[Filter]) -> list[float]:
    """Milliseconds of each addition."""
    return [1000 * seconds_of(lambda f=filter_: matcher.add(f)) for filter_ in extra]


def filter_times() -> dict[str, float]:
    """Milliseconds of CPU time from the text of a filter to its key, or to its refusal."""
    rows = range(400)
    globs = " OR ".join(f"s LIKE '%w{k}%'" for k in rows)
    texts = {
        "open_ranges": " AND ".join(f"(x<{k} OR y>{k + 2})" for k in rows),
        "globs": globs,
        "globs_of_two": " AND ".join(
            f"({globs[:4_000].rpartition(' OR ')[0]})".replace("s L", f"{c} L") for c in "st"
        ),
        "nested_globs": " OR ".join(f"s LIKE '%{'a%' * (k % 20)}b{k}%'" for k in range(150)),
        "rectangles": " OR ".join(f"x>{k} AND x<{k + 900} AND y>{k * 37 % 500}" for k in range(280)),
        "attributes": " OR ".join(f"c{k}={k} AND d{k % 7}<{k}" for k in rows),
    }
    out = {}
    for name, text in texts.items():
        assert len(text) <= FILTER_TEXT, name
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            with suppress(FilterError):
                _ = parse_sql(text).key
            best = min(best, 1000 * (time.process_time() - start))
        out[name] = best
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events, fewer repeats")
    args = parser.parse_args()
    rows, rounds, slow_rows = (40_000, 5, 20) if args.quick else (200_000, 9, 100)
    rng = np.random.default_rng(7)
    batch = make_events(rng, rows)
    Matcher([make_subscriptions(rng, 1_000)[0].filter()]).match(batch.slice(0, 8))  # compile
    matchers: dict[int, Matcher] = {}
    matches: dict[int, float] = {}
    for count in COUNTS:
        subscriptions = make_subscriptions(rng, count)
        filters = [s.filter() for s in subscriptions]
        for s, filter_ in list(zip(subscriptions, filters, strict=True))[:200]:
            assert parse_sql(s.sql()) == filter_, s.sql()
        start = time.perf_counter()
        matchers[count] = Matcher(filters)
        built = time.perf_counter() - start
        found = matchers[count].match(batch)
        matches[count] = len(found.ids) / rows
        print(
            f"{count:8,} subscriptions: {matches[count]:.2f} matches an event, "
            f"{matchers[count].nbytes / count:.0f} bytes each, built in {built:.1f} s"
        )
        if count == COUNTS[0]:
            expected = [ids.tolist() for ids in found][:slow_rows]
            others = other_engines(subscriptions, batch.slice(0, slow_rows), expected)
        if count == COUNTS[1]:
            traced = traced_bytes(filters)
    speed = events_per_s(matchers, batch, rounds, threads=1)
    speed2 = events_per_s(matchers, batch, rounds, threads=2)
    for count in COUNTS:
        print(f"{count:8,} subscriptions: {speed[count]:9,.0f} events/s, 2 threads {speed2[count]:9,.0f}")
    for name, value in others.items():
        print(f"{name} at {COUNTS[0]:,}: {value:,.1f} events/s")
    times = add_times(matchers[COUNTS[-1]], [s.filter() for s in make_subscriptions(rng, 2_000)])
    substrings = substring_figures(SUBSTRING_COUNTS, rounds, args.quick)
    mixed = mixed_figures(rounds, args.quick)
    print(
        json.dumps(
            {
                "events_per_s": {str(k): round(v) for k, v in speed.items()},
                "events_per_s_2_threads": {str(k): round(v) for k, v in speed2.items()},
                "matches_per_event": {str(k): round(v, 2) for k, v in matches.items()},
                "ratio_rule_engine": round(speed[COUNTS[0]] / others["rule_engine"]),
                "ratio_json_logic": round(speed[COUNTS[0]] / others["json_logic"]),
                "growth_1k_to_100k": round(speed[COUNTS[0]] / speed[COUNTS[-1]], 2),
                "bytes_per_subscription": round(matchers[COUNTS[-1]].nbytes / len(matchers[COUNTS[-1]])),
                "bytes_per_subscription_traced_10k": round(traced),
                "add_ms": round(statistics.mean(times), 3),
                "add_ms_median": round(statistics.median(times), 3),
                "add_ms_max": round(max(times), 3),
                "substring_events_per_s": {k: round(v) for k, v in substrings["events_per_s"].items()},
                "substring_over_bare_scan": {
                    k: round(v, 2) for k, v in substrings["over_bare_scan"].items()
                },
                "mixed_over_plain": round(mixed["whole"], 2),
                "mixed_over_plain_match": round(mixed["match"], 2),
                "filter_ms": {k: round(v) for k, v in filter_times().items()},
            }
        )
    )


if __name__ == "__main__":
    main()
