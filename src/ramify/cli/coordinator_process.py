"""A coordinator's process: the leader or a standby, the collector of samples, the pipeline behind re-plans.

Owns how the pipeline is given to a coordinator: `SampleDemand` is its source of demand. The coordinator
knows neither Spark nor files.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.content.filters.filters import Filter
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.rules import OverlayRules
from ramify.overlay.live.coordinator.adaptation import Replanner
from ramify.overlay.live.coordinator.collector import Collector, CollectorConfig, read_publishers
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.coordinator.homes import ClientHomes
from ramify.overlay.live.coordinator.samples import SampleWindow, recent_files
from ramify.overlay.live.host.heartbeat import beat
from ramify.overlay.live.host.metrics import CoordinatorMetrics, serve_metrics
from ramify.overlay.live.host.process import log_to_stderr, until_signal
from ramify.overlay.live.wire.streams import Endpoint
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.choosing.replan import grid_of
from ramify.planning.demand.decay import checked_half_life
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.tally import TallySettings
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules

if TYPE_CHECKING:
    from ramify.pipeline.session.engine import Engine

__all__ = ["CoordinatorOptions", "SampleDemand", "run_coordinator"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoordinatorOptions:
    """What `ramify coordinator` was asked for."""

    name: str
    control: Endpoint
    overlay: Overlay | None
    plan: Plan | None
    replace_plan: bool
    replace_once: str
    scheme: str
    samples: Path | None
    replan_every_s: float
    schemes: tuple[str, ...]
    threshold: float
    window_s: float
    half_life_s: float | None
    least_events: int
    spark: str
    metrics_port: int | None
    announce: Path | None
    rules: OverlayRules | None = None
    rules_once: str = ""
    clients: Path | None = None


class SampleDemand:
    """The demand of the samples that landed of late, counted by the pipeline on Spark.

    One pass per call over the files of the window; Spark starts with the first call and stays. Call it from
    one thread at a time. Events are counted by cells where one of `specs`, or the plan, divides the content
    space. With a half-life they decay by when their file landed, to plan by.
    """

    def __init__(
        self,
        directory: Path,
        window_s: float,
        url: str,
        specs: Sequence[str] = (),
        half_life_s: float | None = None,
    ) -> None:
        self._directory, self._window_s, self._url = directory, window_s, url
        self._specs, self._half_life_s = tuple(specs), checked_half_life(half_life_s)
        self._open = contextlib.ExitStack()
        self._spark: Engine | None = None

    async def __call__(self, plan: Plan, rules: Rules) -> Demand | None:
        """The demand with the classes of a plan and the tags of rules; None when no sample has landed."""
        return await asyncio.to_thread(self.count, plan, rules)

    def recent(self) -> list[str]:
        """The files that landed within the window."""
        return [str(file) for file in recent_files(self._directory, self._window_s)]

    def count(self, plan: Plan, rules: Rules | None = None) -> Demand | None:
        """As calling it, in this thread.

        Events without times span the time since the first of their files landed.
        """
        began = time.time()
        files = self.recent()
        if not files:
            return None
        attached = {**read_publishers(self._directory), **plan.attachments}
        how = {"grid": grid_of(plan, self._specs), "half_life_s": self._half_life_s}
        counting = TallySettings.of(plan.classes, plan.overlay, attached, **how)
        landed = min(Path(file).stat().st_mtime for file in files)
        tags = [] if rules is None else rules.tags(plan.classes.schema)
        demand = self.counted(files, [*plan.classes.filters, *tags], counting)
        strange = sum(demand.unknown.values())
        if strange:
            _log.warning("%d sampled events come from publishers whose broker is not known", strange)
        if not demand.events:
            return None
        return demand if demand.seconds else replace(demand, seconds=max(1.0, began - landed))

    def counted(self, files: Sequence[str], filters: Sequence[Filter], counting: TallySettings) -> Demand:
        """The demand of some files, by one pass. Filters behind those of the classes are tags."""
        from ramify.pipeline.passes.files import Files
        from ramify.pipeline.passes.passes import reckoned

        spark = self._session()
        source = Files.of(spark, files)
        if source.copies:
            _log.warning("files of samples that repeat others and are not counted: %d", len(source.copies))
        if counting.half_life_s is not None:
            # publishers may leave times out, set them wrongly, or replay: when a file landed is known
            source = source.arriving()
        with reckoned(spark, source, filters, counting) as found:
            return found.windows().whole

    def _session(self) -> "Engine":
        from ramify.pipeline.session.warm import opened

        if self._spark is None:
            self._spark = self._open.enter_context(opened(self._url))
        return self._spark

    def close(self) -> None:
        """End Spark."""
        self._open.close()


def run_coordinator(asked: CoordinatorOptions) -> None:
    """Run until a signal."""
    log_to_stderr()
    run_to_end(_run(asked))


async def _run(asked: CoordinatorOptions) -> None:
    source: SampleDemand | None = None
    replanner: Replanner | None = None
    if asked.samples is not None and asked.replan_every_s > 0:
        source = SampleDemand(asked.samples, asked.window_s, asked.spark, asked.schemes, asked.half_life_s)
        replanner = Replanner(
            source,
            asked.replan_every_s,
            asked.schemes,
            asked.threshold,
            least_events=asked.least_events,
        )
    config = CoordinatorConfig(
        asked.name,
        asked.control,
        asked.plan,
        asked.overlay,
        asked.scheme,
        replace_plan=asked.replace_plan,
        replace_once=asked.replace_once,
        rules=asked.rules,
        rules_once=asked.rules_once,
        homes=ClientHomes(asked.clients),
        matching=None if asked.samples is None else SampleWindow(asked.samples, asked.window_s).matching,
    )
    coordinator = Coordinator(config, replanner)
    if asked.metrics_port is not None:
        port = serve_metrics(CoordinatorMetrics(coordinator), asked.metrics_port)
        url = f"http://127.0.0.1:{port}/metrics"
        _log.info("metrics at %s", url)
        if asked.announce is not None:
            asked.announce.write_text(json.dumps({"metrics": url}))
    beats = asyncio.create_task(beat())
    tasks = [asyncio.create_task(until_signal()), asyncio.create_task(coordinator.run())]
    if asked.samples is not None:
        collector = Collector(CollectorConfig(asked.name, asked.control, asked.samples))
        tasks.append(asyncio.create_task(collector.run()))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end_tasks([beats, *tasks])
        if source is not None:
            source.close()
