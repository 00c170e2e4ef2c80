"""Ingest: records per second from NDJSON, CloudEvents and Parquet, side by side with plain decoders.

Runs alone: `python benchmarks/ingest.py [--quick] [--seed N]`. One process, one thread; the sides take
turns and the best of five rounds counts, since noise only ever adds time. Seconds are of processor time,
so that other work on the machine does not count. The rivals do less: `json.loads` per line makes
dictionaries and drops them; pyarrow's JSON reader makes columns, but stops at the first bad line, keeps no
body and leaves structs nested. The last line is one JSON object; a ratio above 1 means that we are faster.
"""

import argparse
import io
import json
import random
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from ramify.content.events.events import DecodedBatch
from ramify.content.events.readers import read_cloudevents, read_ndjson, read_parquet


def records(count: int, seed: int) -> Iterator[dict[str, object]]:
    rng = random.Random(seed)
    for i in range(count):
        yield {
            "id": f"e{i}",
            "publisher": f"client-{rng.randrange(50)}",
            "time": f"2024-01-01T{i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02}Z",
            "symbol": rng.choice(["ACME", "GLOBEX", "INITECH"]),
            "price": round(rng.uniform(1, 500), 2),
            "volume": rng.randrange(10_000),
            "urgent": rng.random() < 0.1,
        }


def nested(record: dict[str, object]) -> dict[str, object]:
    venue = {"name": "XNYS", "tier": 1, "address": {"city": "New York"}}
    return {**record, "venue": venue, "tags": ["a", "b"]}


def cloudevent(record: dict[str, object]) -> dict[str, object]:
    data = {name: record[name] for name in ("symbol", "price", "volume", "urgent")}
    context = {"specversion": "1.0", "type": "com.example.trade", "source": record["publisher"]}
    return {**context, "id": record["id"], "time": record["time"], "data": data}


def drained(batches: Iterator[DecodedBatch]) -> int:
    rows = 0
    for decoded in batches:
        assert not decoded.rejected
        rows += decoded.batch.num_rows
    return rows


def loaded(data: bytes) -> int:
    rows = 0
    for line in io.BytesIO(data):
        json.loads(line)
        rows += 1
    return rows


def measured(sides: dict[str, Callable[[], int]], rounds: int, rows: int) -> dict[str, float]:
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.process_time()
            assert side() == rows
            best[name] = min(best[name], time.process_time() - began)
    return {name: rows / seconds for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows, rounds = (20_000 if options.quick else 200_000), 5
    pa.set_cpu_count(1)

    plain = list(records(rows, options.seed))
    flat_lines = b"\n".join(json.dumps(record).encode() for record in plain)
    nested_lines = b"\n".join(json.dumps(nested(record)).encode() for record in plain)
    event_lines = b"\n".join(json.dumps(cloudevent(record)).encode() for record in plain)
    event_array = b"[" + event_lines.replace(b"\n", b",\n") + b"]"
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(plain), sink)
    parquet = sink.getvalue()
    single = pyarrow.json.ReadOptions(use_threads=False)

    sides: dict[str, Callable[[], int]] = {
        "ndjson": lambda: drained(read_ndjson(flat_lines)),
        "ndjson json.loads": lambda: loaded(flat_lines),
        "ndjson pyarrow.json": lambda: pyarrow.json.read_json(io.BytesIO(flat_lines), single).num_rows,
        "nested": lambda: drained(read_ndjson(nested_lines)),
        "nested json.loads": lambda: loaded(nested_lines),
        "nested pyarrow.json": lambda: pyarrow.json.read_json(io.BytesIO(nested_lines), single).num_rows,
        "cloudevents": lambda: drained(read_cloudevents(event_lines)),
        "cloudevents array": lambda: drained(read_cloudevents(event_array)),
        "cloudevents json.loads": lambda: loaded(event_lines),
        "parquet": lambda: drained(read_parquet(parquet)),
        "parquet pyarrow": lambda: pq.read_table(io.BytesIO(parquet), use_threads=False).num_rows,
    }
    found = measured(sides, rounds, rows)
    print(f"{rows} records, best of {rounds} rounds, seed {options.seed}")
    print(f"{'':24}{'records/s':>12}")
    for name, rate in found.items():
        print(f"{name:24}{rate:12,.0f}")
    summary: dict[str, float] = {
        f"{kind.replace(' ', '_')}_per_s": round(found[kind])
        for kind in ("ndjson", "nested", "cloudevents", "cloudevents array", "parquet")
    }
    for name, rate in found.items():
        kind, _, rival = name.partition(" ")
        if rival and rival != "array":
            summary[f"{kind}_vs_{rival}"] = round(found[kind] / rate, 3)
    print(json.dumps({"benchmark": "ingest", "rows": rows, "seed": options.seed, **summary}))


if __name__ == "__main__":
    main()
