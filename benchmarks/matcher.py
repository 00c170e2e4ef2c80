"""How fast many filters are matched, beside the rule engines that people use from Python.

    python benchmarks/matcher.py [--quick]

One run, one machine, the same events throughout. Every subscription has three predicates out of an
equality, a range, a prefix and a set of keywords, with widths chosen so that an event matches about five
subscriptions whatever their number. The last line is one JSON object:

    events_per_s            by number of subscriptions, one thread
    ratio_rule_engine       events/s at 1,000 subscriptions over rule-engine's, same events and filters
    ratio_json_logic        the same over json-logic-qubit
    growth_1k_to_100k       time per event at 100,000 over that at 1,000 subscriptions
    bytes_per_subscription  memory held by the index at 100,000, as the allocator saw it
    add_ms                  mean time to add one subscription to 100,000 (add_ms_max: the slowest)
"""

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import rule_engine
from json_logic import jsonLogic

from ramify.content.constraints import ArraySet, Constraint
from ramify.content.filters import Box, Filter
from ramify.content.matcher import Matcher
from ramify.content.sql import parse_sql
from ramify.content.values import number_above, number_below, prefixed, strings_equal

REGIONS = [f"region-{k:02d}" for k in range(10)]
SIDES = ["buy", "sell"]
WORDS = [f"word{k:03d}" for k in range(200)]
WORDS_PER_EVENT = 4
HEX = "0123456789abcdef"
MATCHES_PER_EVENT = 5


@dataclass(frozen=True)
class Subscription:
    """Three of four predicates; None where one is not used."""

    equal: tuple[str, str] | None
    low: float | None
    high: float | None
    prefix: str | None
    words: tuple[str, ...] | None

    def filter(self) -> Filter:
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


def best_of(repeats: int, run) -> float:
    """The fastest of several runs: the machine is shared, and noise only adds time."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def others_at(subscriptions: list[Subscription], batch: pa.RecordBatch, rows: int, expected) -> dict[str, float]:
    """Events/s of the other engines on the first rows, checked to find the same matches."""
    events = batch.slice(0, rows).to_pylist()
    rules = [rule_engine.Rule(s.rule_engine()) for s in subscriptions]
    logics = [s.json_logic() for s in subscriptions]
    engines = {
        "rule_engine": lambda e: [k for k, rule in enumerate(rules) if rule.matches(e)],
        "json_logic": lambda e: [k for k, logic in enumerate(logics) if jsonLogic(logic, e)],
    }
    speeds = {}
    for name, engine in engines.items():
        start = time.perf_counter()
        found = [engine(event) for event in events]
        speeds[name] = rows / (time.perf_counter() - start)
        assert found == expected, f"{name} and Ramify disagree"
        print(f"  {name:12} {speeds[name]:12,.1f} events/s")
    return speeds


def index_bytes(filters: list[Filter]) -> tuple[Matcher, float, float]:
    """Build a matcher; the bytes it keeps, as the allocator saw it, and the seconds it took."""
    gc.collect()
    tracemalloc.start()
    matcher = Matcher(filters)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    start = time.perf_counter()
    Matcher(filters)
    return matcher, held / len(filters), time.perf_counter() - start


def add_times(matcher: Matcher, extra: list[Filter]) -> list[float]:
    times = []
    for filter_ in extra:
        start = time.perf_counter()
        matcher.add(filter_)
        times.append((time.perf_counter() - start) * 1000)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events, fewer repeats")
    args = parser.parse_args()
    rows, repeats, slow_rows = (50_000, 5, 20) if args.quick else (200_000, 9, 100)
    rng = np.random.default_rng(7)
    batch = make_events(rng, rows)
    Matcher([make_subscriptions(rng, 1_000)[0].filter()]).match(batch.slice(0, 8))  # compile
    speed: dict[int, float] = {}
    speed2: dict[int, float] = {}
    mean_matches: dict[int, float] = {}
    for count in COUNTS:
        subscriptions = make_subscriptions(rng, count)
        filters = [s.filter() for s in subscriptions]
        for s, filter_ in list(zip(subscriptions, filters, strict=True))[:200]:
            assert parse_sql(s.sql()) == filter_, s.sql()
        matcher, per_subscription, seconds = index_bytes(filters)
        matches = matcher.match(batch)
        mean_matches[count] = len(matches.ids) / rows
        speed[count] = rows / best_of(repeats, lambda m=matcher: m.match(batch))
        speed2[count] = rows / best_of(repeats, lambda m=matcher: m.match(batch, threads=2))
        print(
            f"{count:8,} subscriptions: {speed[count]:12,.0f} events/s ({speed2[count]:,.0f} with 2 threads), "
            f"{mean_matches[count]:.2f} matches an event, {per_subscription:.0f} bytes each, built in {seconds:.1f} s"
        )
        if count == 1_000:
            expected = [list(map(int, matches[r])) for r in range(slow_rows)]
            others = others_at(subscriptions, batch, slow_rows, expected)
    times = add_times(matcher, [s.filter() for s in make_subscriptions(rng, 2_000)])
    print(f"adding one to 100,000: mean {statistics.mean(times):.3f} ms, slowest {max(times):.3f} ms")
    print(
        json.dumps(
            {
                "events_per_s": {str(k): round(v) for k, v in speed.items()},
                "events_per_s_2_threads": {str(k): round(v) for k, v in speed2.items()},
                "matches_per_event": {str(k): round(v, 2) for k, v in mean_matches.items()},
                "ratio_rule_engine": round(speed[1_000] / others["rule_engine"]),
                "ratio_json_logic": round(speed[1_000] / others["json_logic"]),
                "growth_1k_to_100k": round(speed[1_000] / speed[100_000], 2),
                "bytes_per_subscription": round(per_subscription),
                "add_ms": round(statistics.mean(times), 3),
                "add_ms_max": round(max(times), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
