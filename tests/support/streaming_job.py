"""A streaming driver to be killed (`python streaming_job.py LOG OUT`), and a small world for tests."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ramify.content.events.events import AttributeType, Event, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.pipeline.session.session import spark_session
from ramify.pipeline.stream.samples import live_samples
from ramify.pipeline.stream.streaming import finish, follow
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.tally import TallySettings

START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp() * 1e6)
PANE_S, LATE_S, DEDUPE_S, KEEP_S = 10, 20, 40, 60
ROWS = 60
SCHEMA = EventSchema({"topic": AttributeType.STRING, "order.x": AttributeType.INT64})
OVERLAY = Overlay.build("line", ["v0", "v1", "v2"], [Link("v0", "v1", 1, 1, 1), Link("v1", "v2", 1, 1, 1)])
ATTACHED = {"ann": "v0", "bob": "v2"}
FILTERS = ("topic = 'a'", "topic IN ('a', 'b')", "`order.x` < 5", "`order.x` IS NULL AND topic <> 'c'")
SUBSCRIPTIONS = [Subscription(f"s{k}", f"c{k}", f"v{k % 3}", sql=sql) for k, sql in enumerate(FILTERS)]
CLASSES = Classes.collapse(SUBSCRIPTIONS, OVERLAY, SCHEMA.attributes)


def counting(**more: Any) -> TallySettings:
    return TallySettings.of(CLASSES, OVERLAY, ATTACHED, **more)


def random_event(rng: Random, number: int) -> Event:
    """An event about `number` seconds in: some are old, some have no time, some an unknown publisher."""
    seconds = number * 0.5 - (rng.randrange(120) if rng.random() < 0.1 else 0)
    row: dict[str, Any] = {"topic": rng.choice("abcd")}
    if rng.random() < 0.7:
        row["order.x"] = rng.randrange(10)
    when = None if rng.random() < 0.05 else START + timedelta(seconds=seconds)
    return Event(f"e{number}", rng.choice(["ann", "bob", "v1", "eve", None]), when, row, size_bytes=number)


def random_samples(rng: Random, count: int) -> list[Event]:
    """Events as they arrive: now and then one comes again, soon or much later."""
    events: list[Event] = []
    for number in range(count):
        events.append(random_event(rng, number))
        if rng.random() < 0.2:
            events.append(events[-1 - min(len(events) - 1, rng.choice([0, 1, 30, 200]))])
    return events


def start(spark: SparkSession, log: Path, out: Path) -> StreamingQuery:
    samples = live_samples(spark, log, SCHEMA, rows_per_trigger=ROWS, rows_per_task=15)
    return follow(
        spark,
        samples,
        CLASSES.filters,
        counting(),
        out,
        pane_s=PANE_S,
        late_s=LATE_S,
        dedupe_s=DEDUPE_S,
        keep_s=KEEP_S,
        merge_every=3,
    )


if __name__ == "__main__":
    log, out = Path(sys.argv[1]), Path(sys.argv[2])
    settings = {"spark.sql.shuffle.partitions": "1"}
    with spark_session("local[1]", memory="1g", conf=settings, scratch=out.parent) as session:
        finish(start(session, log, out))
