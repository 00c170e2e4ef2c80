"""Filters and events of the kind that security rules are about: parts of command lines, paths and scripts.

Generated, not taken from anywhere: a rule asks one to three attributes for any of a few texts that they
contain, begin or end with, without regard to case, and excludes some. Half of the events are the start of a
process (a command line of 50 to 300 bytes, two paths), half are scripts of 1 to 4 kB.
"""

import json
import sys
import time
from collections.abc import Callable

import numba
import numpy as np
import pyarrow as pa

from ramify.content.events.columns import STRING, Columns, bind_columns
from ramify.content.filters.constraints import Constraint
from ramify.content.filters.filters import Box, Filter
from ramify.content.filters.strings import ANY_CHARACTERS, StringTest, TestKind, glob, nocase_glob
from ramify.content.filters.values import where_tests
from ramify.content.matching.kernels import Index
from ramify.content.matching.literal_kernels import LITERAL_WORDS, SCAN_WORDS, scan_literals
from ramify.content.matching.matcher import Matcher

__all__ = ["make_process_events", "make_rules", "make_script_events", "substring_figures"]

TOOLS = [
    f"{a}{b}.exe"
    for a in ("cmd", "power", "reg", "net", "wmi", "cert")
    for b in ("sh", "util", "ctl", "x", "host")
]
FOLDERS = [
    "windows\\system32",
    "windows\\syswow64",
    "program files",
    "users\\public",
    "programdata",
    "temp",
]
SYLLABLES = [
    "in",
    "vo",
    "ke",
    "get",
    "set",
    "add",
    "mi",
    "ka",
    "dump",
    "pro",
    "xy",
    "ser",
    "vice",
    "tok",
    "en",
    "load",
]


class Vocabulary:
    """Words for rules and events to draw from: some are common, most are rare."""

    def __init__(self, rng: np.random.Generator, size: int = 6_000) -> None:
        parts = rng.integers(len(SYLLABLES), size=(size, 5))
        lengths = rng.integers(2, 6, size=size)
        joints = ["", "-", ".", " ", "\\"]
        self.words = [
            joints[k % 5].join(SYLLABLES[p] for p in row[:n]) + ("" if k % 3 else f"{k % 97}")
            for k, (row, n) in enumerate(zip(parts, lengths, strict=True))
        ]

    def draw(self, rng: np.random.Generator, count: int) -> list[str]:
        """Words for a rule: any of them."""
        return [self.words[k] for k in rng.integers(len(self.words), size=count)]

    def draw_common(self, rng: np.random.Generator, count: int) -> list[str]:
        """Words for an event: a few turn up all the time."""
        at = (len(self.words) * rng.random(count) ** 3).astype(int)
        return [self.words[k] for k in at]


VOCABULARY = Vocabulary(np.random.default_rng(1))


def test_of(text: str, form: str, caseless: bool) -> StringTest:
    """contains, endswith or startswith, as rules have them."""
    codes = [*map(ord, text)]
    if form != "startswith":
        codes = [ANY_CHARACTERS, *codes]
    if form != "endswith":
        codes = [*codes, ANY_CHARACTERS]
    return nocase_glob(glob(codes)) if caseless else StringTest(TestKind.GLOB, glob(codes))


def make_rules(rng: np.random.Generator, count: int, caseless: bool = True) -> list[Filter]:
    """Filters: nine in ten on process events, the others on scripts."""
    return [
        process_rule(rng, caseless) if rng.random() < 0.9 else script_rule(rng, caseless)
        for _ in range(count)
    ]


def process_rule(rng: np.random.Generator, caseless: bool) -> Filter:
    def image() -> StringTest:
        return test_of("\\" + TOOLS[rng.integers(len(TOOLS))], "endswith", caseless)

    def words(most: int) -> list[StringTest]:
        some = VOCABULARY.draw(rng, rng.integers(1, most + 1))
        return [test_of(word, "contains", caseless) for word in some]

    asked = {"command": where_tests(words(6))}
    if rng.random() < 0.5:
        asked["command"] = asked["command"].intersect(where_tests(words(3)))
    if rng.random() < 0.6:
        asked["image"] = where_tests([image() for _ in range(rng.integers(1, 4))])
    if rng.random() < 0.3:
        asked["parent"] = where_tests([image()])
    if rng.random() < 0.2:
        folder = FOLDERS[rng.integers(len(FOLDERS))]
        path = "image" if rng.random() < 0.5 else "parent"
        excluded = where_tests([test_of("c:\\" + folder, "startswith", caseless)], wanted=False)
        asked[path] = asked[path].intersect(excluded) if path in asked else excluded
    if rng.random() < 0.3:
        asked["command"] = asked["command"].intersect(where_tests(words(2), wanted=False))
    return filter_of(asked)


def script_rule(rng: np.random.Generator, caseless: bool) -> Filter:
    some = [test_of(word, "contains", caseless) for word in VOCABULARY.draw(rng, rng.integers(1, 12))]
    more = [test_of(word, "contains", caseless) for word in VOCABULARY.draw(rng, rng.integers(1, 4))]
    return filter_of({"script": where_tests(some).intersect(where_tests(more))})


def filter_of(asked: dict) -> Filter:
    box = Box.of({path: Constraint(scalars=values) for path, values in asked.items()})
    return Filter(() if box is None else (box,))


def texts(
    rng: np.random.Generator, rows: int, low: int, high: int, cased: Callable[[str], str]
) -> pa.Array:
    """Texts of so many bytes: words of the vocabulary, now and then, among others."""
    out = []
    for _ in range(rows):
        length = int(rng.integers(low, high))
        words = VOCABULARY.draw_common(rng, length // 12)
        noise = rng.integers(97, 123, size=(len(words), 6)).astype(np.uint8)
        parts = [words[k] if k % 4 == 0 else bytes(noise[k]).decode() for k in range(len(words))]
        out.append(cased(" ".join(parts))[:length])
    return pa.array(out, pa.string())


def paths(rng: np.random.Generator, rows: int, cased: Callable[[str], str]) -> pa.Array:
    folders, tools = rng.integers(len(FOLDERS), size=rows), rng.integers(len(TOOLS), size=rows)
    return pa.array([cased(f"c:\\{FOLDERS[a]}\\{TOOLS[b]}") for a, b in zip(folders, tools, strict=True)])


def make_process_events(rng: np.random.Generator, rows: int, caseless: bool = True) -> pa.RecordBatch:
    cased = str.title if caseless else str
    return pa.record_batch(
        {
            "command": texts(rng, rows, 50, 300, cased),
            "image": paths(rng, rows, cased),
            "parent": paths(rng, rows, cased),
        }
    )


def make_script_events(rng: np.random.Generator, rows: int, caseless: bool = True) -> pa.RecordBatch:
    return pa.record_batch({"script": texts(rng, rows, 1_000, 4_000, str.title if caseless else str)})


@numba.njit
def bare_scan(ix: Index, cols: Columns, rows: int) -> int:
    literals = len(ix.literals) // LITERAL_WORDS
    base = 1 + len(ix.test_heads) // 2
    memo, hits = np.full(base + literals, -1, np.int64), np.empty(literals, np.int64)
    found = 0
    for row in range(rows):
        memo[0] = row
        hit = np.int64(0)
        for c in range(len(cols.kind)):
            if cols.kind[c] == STRING and ix.scans[SCAN_WORDS * c]:
                e = cols.base[c] + row
                hit = scan_literals(
                    c,
                    cols.offsets[e],
                    cols.offsets[e + 1],
                    True,
                    cols.bytes,
                    ix.scans,
                    ix.grams,
                    ix.gram_bits,
                    ix.literals,
                    ix.literal_bytes,
                    memo,
                    base,
                    hits,
                    hit,
                )
        found += hit
    return found


def substring_figures(counts: tuple[int, ...], rounds: int, quick: bool) -> dict[str, dict[str, float]]:
    """Events per second by kind of event and number of rules, and over a bare scan of the same texts."""
    rng = np.random.default_rng(3)
    batches = {
        "process": make_process_events(rng, 8_000 if quick else 40_000),
        "script": make_script_events(rng, 1_000 if quick else 5_000),
    }
    speed: dict[str, float] = {}
    ratio: dict[str, float] = {}
    for count in counts:
        matcher = Matcher(make_rules(rng, count))
        for kind, batch in batches.items():
            name = f"{kind}_{count}"
            matched, scanned = best_seconds(matcher, batch, rounds)
            speed[name], ratio[name] = batch.num_rows / matched, scanned / matched
            per_event = len(matcher.match(batch).ids) / batch.num_rows
            print(
                f"{count:8,} rules on {kind} events: {speed[name]:9,.0f} events/s, "
                f"{per_event:.2f} matches an event, {ratio[name]:.2f} of a bare scan"
            )
    return {"events_per_s": speed, "over_bare_scan": ratio}


def best_seconds(matcher: Matcher, batch: pa.RecordBatch, rounds: int) -> tuple[float, float]:
    """The shortest times to match a batch, and to find the literals in its texts: they take turns."""
    index = matcher.frozen()
    columns = bind_columns(batch, index.paths)
    runs = (lambda: matcher.match(batch), lambda: bare_scan(index.index, columns, batch.num_rows))
    best = [float("inf"), float("inf")]
    for run in runs:
        run()  # compile
    for _ in range(rounds):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[k] = min(best[k], time.perf_counter() - start)
    return best[0], best[1]


if __name__ == "__main__":
    print(json.dumps(substring_figures((1_000, 3_000), 5, "--quick" in sys.argv)))
