"""What Spark costs and gains: match and demand on a million documents, beside plain threads and SQL.

    python benchmarks/pipeline.py [--quick] [--seed N]

One run, one machine, the same Parquet throughout: 1,000,000 documents against 10,000 keyword subscriptions
(any of three words, or two more together; about 17 matches a document), and against 10,000 filters of three
predicates. Every
side is warmed up first; sides take turns and the best round counts, since noise only ever adds time.

    plain    the same reader, the same compiled matcher, the same table of patterns, in two threads without
             Spark: what a careful program for one machine would do
    spark    one pass of the pipeline, from files to the demand in this process
    sql      the join that a user would write in Spark SQL: explode, join, group, with the same result;
             measured once, after a run on an eighth of the documents; with --quick both sides get a
             quarter of them, which favours the join, since a pass has fixed costs

The last line is one JSON object; it exits with 1 when a floor is missed.

    match_docs_per_s        documents a second, match and demand, two cores
    spark_over_plain        time of the pass over that of the plain threads, keyword subscriptions
    spark_over_plain_three  likewise for filters of three predicates
    speedup_over_sql_join   time of the SQL join over that of the pass
    speedup_over_sql_any_of likewise with the words together left out, so that the join has a grouping less
                            (not with --quick)
    docs_per_s_1_core       documents a second with one task at a time, and docs_per_s_2_cores with two
    speedup_2_cores         the one over the other
    overlap_s               overlap of all pairs of subscriptions, from files to the table
    worker_mb               the largest resident set of a Python worker after matching
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.filters import Filter
from ramify.content.filters.keywords import parse_keywords
from ramify.content.filters.sql import parse_sql
from ramify.content.matching.matcher import Matcher
from ramify.network.graphs.specs import overlay_from
from ramify.pipeline.passes.files import Files
from ramify.pipeline.passes.matching import Shards, ship_matcher
from ramify.pipeline.passes.passes import reckon, reckoned
from ramify.pipeline.session.session import spark_session
from ramify.pipeline.tables.overlap import overlap
from ramify.planning.demand.patterns import PATTERNS, Patterns
from ramify.planning.demand.tally import PatternTally, TallySettings, brokers_by_name
from ramify.planning.demand.windows import Windows

DOCUMENTS, SUBSCRIPTIONS, FILES = 1_000_000, 10_000, 8
VOCABULARY, WORDS_PER_DOCUMENT, WORDS_PER_SUBSCRIPTION = 12_000, 5, 3
REGIONS = [f"region-{k:02d}" for k in range(20)]
FLOORS = {"spark_over_plain": 2.2, "spark_over_plain_three": 2.2, "overlap_s": 30.0}
LEAST = {"speedup_over_sql_join": 10.0, "speedup_over_sql_any_of": 10.0}
SCHEMA = EventSchema(
    {"keywords": AttributeType.STRINGS, "price": AttributeType.DOUBLE, "region": AttributeType.STRING}
)


def picks(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Words, the common ones more often: word k with weight 1 / (k + 2,000)."""
    cumulative = np.cumsum(1 / (np.arange(VOCABULARY) + 2_000))
    return np.searchsorted(cumulative, rng.random(shape) * cumulative[-1])


def documents(rng: np.random.Generator, first: int, rows: int, publishers: list[str]) -> pa.Table:
    words = np.sort(picks(rng, (rows, WORDS_PER_DOCUMENT)), axis=1)
    new = np.ones(words.shape, dtype=bool)
    new[:, 1:] = words[:, 1:] != words[:, :-1]
    names = pa.array([f"w{k:05d}" for k in range(VOCABULARY)])
    offsets = pa.array(np.concatenate(([0], np.cumsum(new.sum(axis=1)))).astype(np.int32))
    columns = {
        "id": pa.array([f"doc-{i}" for i in range(first, first + rows)]),
        "publisher": pa.array(publishers).take(pa.array(rng.integers(len(publishers), size=rows))),
        "time": pa.array(1_767_225_600_000_000 + 1000 * np.arange(first, first + rows)).cast(
            pa.timestamp("us", tz="UTC")
        ),
        "_size_bytes": pa.array(rng.integers(200, 2000, rows)),
        "_body": pa.nulls(rows, pa.binary()),
        "_body_is_json": pa.array(np.zeros(rows, dtype=bool)),
        "_nulls": pa.array([[]] * rows, pa.list_(pa.string())),
        "keywords": pa.ListArray.from_arrays(offsets, names.take(pa.array(words[new]))),
        "price": pa.array(rng.random(rows) * 100),
        "region": pa.array(REGIONS).take(pa.array(rng.integers(len(REGIONS), size=rows))),
    }
    return pa.table(columns, schema=SCHEMA.arrow)


def keyword_clauses(rng: np.random.Generator) -> list[list[list[str]]]:
    """Any of three words, or two more together: the papers' normal form."""
    chosen = picks(rng, (SUBSCRIPTIONS, 5)).tolist()
    named = [[f"w{word:05d}" for word in row] for row in chosen]
    return [[[a], [b], [c], sorted({d, e})] for a, b, c, d, e in named]


def three_predicates(rng: np.random.Generator) -> list[Filter]:
    words, where = picks(rng, (SUBSCRIPTIONS,)), rng.integers(len(REGIONS), size=SUBSCRIPTIONS)
    low = rng.random(SUBSCRIPTIONS) * 60
    return [
        parse_sql(
            f"region = '{REGIONS[where[k]]}' AND price BETWEEN {low[k]:.3f} AND {low[k] + 40:.3f} "
            f"AND array_contains(keywords, 'w{words[k]:05d}')",
            SCHEMA.attributes,
        )
        for k in range(SUBSCRIPTIONS)
    ]


def best_of(rounds: int, *sides: Callable[[], Any]) -> list[float]:
    """Seconds of each side; they take turns."""
    best = [float("inf")] * len(sides)
    for _ in range(rounds):
        for k, side in enumerate(sides):
            began = time.perf_counter()
            side()
            best[k] = min(best[k], time.perf_counter() - began)
    return best


class Plain:
    """The same work without Spark: each thread reads, matches and counts its own files."""

    def __init__(self, files: Files, filters: list[Filter], counting: TallySettings) -> None:
        self.matcher = Matcher(filters).frozen()
        self.files = files.only({path for filter_ in filters for path in filter_.paths})
        self.counting = counting
        self.paths = [file.path.removeprefix("file:") for file in files.files]

    def run(self) -> Windows:
        """From files to the demand."""
        with ThreadPoolExecutor(2) as pool:
            tallies = list(pool.map(self._counted, (self.paths[0::2], self.paths[1::2])))
        rows = pa.Table.from_batches([tally.drain().batch() for tally in tallies], schema=PATTERNS)
        spans = tallies[0].spans
        for window, span in tallies[1].spans.items():
            spans[window].add(span)
        return Windows.of_patterns(Patterns.of_table(rows), self.counting.split, spans, {})

    def _counted(self, paths: list[str]) -> PatternTally:
        tally = PatternTally(self.counting)
        for chunk in self.files.read(iter([pieces(paths)])):
            tally.add(chunk.batch, self.matcher.match(chunk.batch))
        return tally


def pieces(paths: list[str]) -> pa.RecordBatch:
    """Whole files, as the frame of `Files` would hand them out."""
    sizes = [Path(path).stat().st_size for path in paths]
    return pa.RecordBatch.from_pydict(
        {"path": [f"file:{p}" for p in paths], "start": [0] * len(paths), "stop": sizes, "length": sizes}
    )


def sql_join(spark: SparkSession, where: list[str], wanted: DataFrame) -> pa.Table:
    """Explode, join on the word, group by clause, by document, by what it matched: the demand, as a user
    would write it. Documents that match nothing stay, as they do in ours."""
    document = ("id", "publisher", "_size_bytes")
    words = spark.read.parquet(*where).select(*document, sf.explode_outer("keywords").alias("word"))
    hits = words.join(wanted, "word", "left").groupBy(*document, "subscription", "clause", "length")
    held = hits.agg(sf.count("word").alias("hits")).select(
        *document, sf.when(sf.col("hits") == sf.col("length"), sf.col("subscription")).alias("holds")
    )
    matched = held.groupBy(*document).agg(sf.sort_array(sf.collect_set("holds")).alias("subscriptions"))
    demand = matched.groupBy("publisher", "subscriptions")
    return demand.agg(sf.count("*").alias("count"), sf.sum("_size_bytes").alias("bytes")).toArrow()


def sql_any_of(spark: SparkSession, where: list[str], wanted: DataFrame) -> pa.Table:
    """Likewise where every clause is a single word, which saves a grouping."""
    document = ("id", "publisher", "_size_bytes")
    words = spark.read.parquet(*where).select(*document, sf.explode_outer("keywords").alias("word"))
    matched = words.join(wanted, "word", "left").groupBy(*document)
    found = matched.agg(sf.sort_array(sf.collect_set("subscription")).alias("subscriptions"))
    demand = found.groupBy("publisher", "subscriptions")
    return demand.agg(sf.count("*").alias("count"), sf.sum("_size_bytes").alias("bytes")).toArrow()


def workers_mb(spark: SparkSession) -> float:
    """The largest resident set that any Python worker has had."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"kb": [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]})

    return max(row.kb for row in spark.range(0, 8, 1, 2).mapInArrow(look, "kb long").collect()) / 1024


def compared(
    spark: SparkSession, files: Files, filters: list[Filter], counting: TallySettings, rounds: int
) -> Any:
    """Seconds of the plain threads and of the pass, having seen that both find the same."""
    plain, shipped = Plain(files, filters, counting), ship_matcher(spark, filters)
    one, (other, totals) = plain.run(), reckon(spark, files, shipped, counting)
    assert totals.good == one.whole.events == other.whole.events
    assert np.array_equal(one.whole.classes, other.whole.classes)
    assert np.array_equal(one.whole.count, other.whole.count)
    times = best_of(rounds, plain.run, lambda: reckon(spark, files, shipped, counting))
    return times, other, shipped


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, rounds = np.random.default_rng(args.seed), 2 if args.quick else 4
    overlay = overlay_from("cloud-regions")
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, spark_session("local[2]", memory="3g") as spark:
        where = Path(scratch) / "docs"
        where.mkdir()
        for k in range(FILES):
            rows = DOCUMENTS // FILES
            pq.write_table(documents(rng, k * rows, rows, overlay.brokers), where / f"{k}.parquet")
        clauses = keyword_clauses(rng)
        keywords = [parse_keywords(of) for of in clauses]
        files = Files.of(spark, [str(where)], SCHEMA)
        counting = TallySettings(
            SUBSCRIPTIONS, np.zeros(SUBSCRIPTIONS, dtype=np.bool_), brokers_by_name(overlay, {})
        )
        (plain_s, spark_s), found, shipped = compared(spark, files, keywords, counting, rounds)
        report["worker_mb"] = round(workers_mb(spark))
        report["match_docs_per_s"] = round(DOCUMENTS / spark_s)
        report["plain_docs_per_s"] = round(DOCUMENTS / plain_s)
        report["matches_per_doc"] = round(
            float((np.diff(found.whole.start) * found.whole.count).sum() / DOCUMENTS), 2
        )
        report["patterns"] = len(found.whole)
        report["spark_over_plain"] = round(spark_s / plain_s, 3)
        print(f"keywords: plain {plain_s:.2f} s, spark {spark_s:.2f} s", flush=True)
        (plain_s, three_s), *_ = compared(spark, files, three_predicates(rng), counting, rounds)
        report["spark_over_plain_three"] = round(three_s / plain_s, 3)
        print(f"three predicates: plain {plain_s:.2f} s, spark {three_s:.2f} s", flush=True)
        one_core, two_cores = best_of(
            rounds // 2,
            lambda: reckon(spark, files, shipped, counting, partitions=1),
            lambda: reckon(spark, files, shipped, counting, partitions=2),
        )
        report["docs_per_s_1_core"] = round(DOCUMENTS / one_core)
        report["docs_per_s_2_cores"] = round(DOCUMENTS / two_cores)
        report["speedup_2_cores"] = round(one_core / two_cores, 2)
        print(f"one core {one_core:.2f} s, two {two_cores:.2f} s", flush=True)
        report["overlap_s"] = round(overlapped(spark, files, shipped, counting), 1)
        paths = sorted(str(path) for path in where.iterdir())
        part = paths[: FILES // 4] if args.quick else paths
        report["speedup_over_sql_join"] = against_sql(spark, part, clauses, sql_join, counting)
        if not args.quick:
            single = [of[:-1] for of in clauses]
            report["speedup_over_sql_any_of"] = against_sql(spark, paths, single, sql_any_of, counting)
    report["missed"] = [name for name, most in FLOORS.items() if report[name] > most]
    report["missed"] += [name for name, least in LEAST.items() if report.get(name, least) < least]
    print(json.dumps(report))
    return 1 if report["missed"] else 0


def overlapped(spark: SparkSession, files: Files, filters: Shards, counting: TallySettings) -> float:
    """Seconds from files to the table of overlapping pairs, all of them counted."""
    began = time.perf_counter()
    with reckoned(spark, files, filters, counting) as found:
        rows = overlap(found.packed, SUBSCRIPTIONS).pairs.count()
    print(f"overlap: {rows:,} pairs in {time.perf_counter() - began:.1f} s", flush=True)
    return time.perf_counter() - began


def against_sql(
    spark: SparkSession,
    paths: list[str],
    clauses: list[list[list[str]]],
    join: Callable[[SparkSession, list[str], DataFrame], pa.Table],
    counting: TallySettings,
) -> float:
    """The SQL join over the pass, listing of files included; both must find the same demand."""
    filters = ship_matcher(spark, [parse_keywords(of) for of in clauses])
    named = [
        (f"sub-{i:05d}", k, len(clause), word)
        for i, of in enumerate(clauses)
        for k, clause in enumerate(of)
        for word in clause
    ]
    form = "subscription string, clause int, length int, word string"
    wanted = spark.createDataFrame(named, form).distinct().cache()
    join(spark, paths[:1], wanted)  # warm

    def ours() -> Any:
        return reckon(spark, Files.of(spark, paths, SCHEMA), filters, counting)

    ours()
    (before_s,) = best_of(2, ours)
    began = time.perf_counter()
    theirs = join(spark, paths, wanted)
    theirs_s = time.perf_counter() - began
    demand = ours()[0].whole
    assert len(demand) == theirs.num_rows, "the join found another demand"
    assert demand.events == pc.sum(theirs["count"]).as_py()
    ours_s = min(before_s, *best_of(2, ours))
    print(f"{join.__name__} {theirs_s:.1f} s, pass {ours_s:.2f} s", flush=True)
    wanted.unpersist()
    return round(theirs_s / ours_s, 1)


if __name__ == "__main__":
    raise SystemExit(main())
