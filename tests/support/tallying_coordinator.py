"""`ramify coordinator` that counts its samples in its own process: as the pipeline does, without Spark."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from ramify.cli import app, coordinator_process
from ramify.content.filters.filters import Filter
from ramify.content.matching.matcher import Matcher
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import PatternTally, TallySettings


class Tallied(coordinator_process.SampleDemand):
    """Only what counts the files is another."""

    def counted(self, files: Sequence[str], filters: Sequence[Filter], counting: TallySettings) -> Demand:
        tally, matcher = PatternTally(counting), Matcher(filters)
        for file in files:
            landed_us = Path(file).stat().st_mtime_ns // 1000
            for batch in pq.read_table(file).to_batches():
                arrived = np.full(batch.num_rows, landed_us, dtype=np.int64)
                tally.add(batch, matcher.match(batch), arrived)
        return tally.windows(len(filters) - counting.classes).whole


if __name__ == "__main__":
    coordinator_process.SampleDemand = Tallied  # type: ignore[misc]
    sys.exit(app())
