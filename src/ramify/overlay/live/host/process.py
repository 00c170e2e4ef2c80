"""A process of brokers: `python -m ramify.overlay.live.host.process FILE...`, which `ramify broker` runs.

Owns the process: settings in, brokers until a signal, an orderly end. Several brokers of a process share
plans, so many small ones cost little. It imports what routing needs and no more.

SIGTERM, SIGINT and SIGHUP end it with code 0. A broker that another process has taken over ends; the others
go on, and when none is left the code is 3.
"""

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

from ramify.errors import RamifyError
from ramify.overlay.live.broker.controlled import ControlledBroker
from ramify.overlay.live.broker.log import SupersededError
from ramify.overlay.live.broker.matchmaker import Matchmaker, MatchmakerConfig
from ramify.overlay.live.broker.plan_cache import PlanCache
from ramify.overlay.live.host.broker_files import BrokerFile, read_broker_file
from ramify.overlay.live.host.heartbeat import beat
from ramify.overlay.live.host.metrics import BrokerMetrics, serve_metrics
from ramify.overlay.live.wire.tasks import end_tasks, ending_signals, run_to_end
from ramify.overlay.routing.readiness import load_kernels

__all__ = ["SUPERSEDED", "do_without", "keep_running", "log_to_stderr", "serve_brokers", "until_signal"]

_log = logging.getLogger(__name__)

SUPERSEDED = 3
"""The exit code when other processes run all the brokers of this one."""


_AGAIN_S = 1.0
_AnyBroker: TypeAlias = ControlledBroker | Matchmaker


class _Absence:
    """Finds some packages not to be there."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """For the import system: None asks the next finder."""
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"a process of brokers does without {name}", name=name)


def do_without(names: Collection[str]) -> None:
    """Let packages be as good as not installed: what of them is not imported yet never will be.

    Where pandas and scipy are installed, pyarrow imports the one with the first array and numba the other
    with the first kernel. Routing uses neither: 0.3 s of CPU and 40 MB for every process of brokers.
    """
    sys.meta_path.insert(0, _Absence(names))


def log_to_stderr() -> None:
    """One line per message, with time and level."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    # every failed attempt to reach a server that is down
    logging.getLogger("nats").setLevel(logging.CRITICAL)


async def until_signal() -> None:
    """Return when the process is asked to end. A hangup counts, unless our parent ignores those."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, asked.set)
    await asked.wait()


async def serve_brokers(
    files: Sequence[BrokerFile], *, metrics_port: int | None = None, announce: Path | None = None
) -> int:
    """Run brokers until a signal; returns the exit code.

    `metrics_port` counts before those of the files; `announce` is a file to say in where metrics are.
    Kernels are compiled or loaded first: a broker that says it runs answers at once.
    Raises `InputError` for seeds that cannot be used, `LiveError` for a port that is taken.
    """
    load_kernels()
    plans = PlanCache()
    brokers: list[_AnyBroker] = [_broker(file, plans) for file in files]
    ports = [metrics_port, *(file.metrics_port for file in files)]
    port = next((port for port in ports if port is not None), None)
    if port is not None:
        url = f"http://127.0.0.1:{serve_metrics(BrokerMetrics(brokers), port)}/metrics"
        _log.info("metrics at %s", url)
        if announce is not None:
            announce.write_text(json.dumps({"metrics": url}))
    asked = asyncio.create_task(until_signal())
    beats = asyncio.create_task(beat(lambda: {each.name: each.broker.stuck_s for each in brokers}))
    tasks = {
        asyncio.create_task(keep_running(brokers, k, _again(file, plans))): k
        for k, file in enumerate(files)
    }
    _log.info("brokers %s", ", ".join(broker.name for broker in brokers))
    try:
        while tasks:
            done, _ = await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if asked in done:
                return 0
            for task in done:
                _ended(brokers[tasks.pop(task)], task)
    finally:
        await end_tasks([asked, beats, *tasks])
    return SUPERSEDED


async def keep_running(brokers: list[_AnyBroker], place: int, again: Callable[[], _AnyBroker]) -> None:
    """Run the broker at a place of the list. A fault of ours ends only that one: a new one takes its place.

    Raises what a broker itself ends with: superseded, or settings that cannot be used.
    """
    while True:
        try:
            await brokers[place].run()
            return
        except RamifyError:
            raise
        except Exception:
            _log.exception("broker %s: a fault ended it; it is started again", brokers[place].name)
        await asyncio.sleep(_AGAIN_S)
        brokers[place] = again()


def _again(file: BrokerFile, plans: PlanCache) -> Callable[[], _AnyBroker]:
    return lambda: _broker(file, plans)


def _broker(file: BrokerFile, plans: PlanCache) -> _AnyBroker:
    config = file.config()
    return Matchmaker(config) if isinstance(config, MatchmakerConfig) else ControlledBroker(config, plans)


def _ended(broker: _AnyBroker, task: "asyncio.Task[None]") -> None:
    try:
        task.result()
    except SupersededError as error:
        _log.warning("broker %s: %s", broker.name, error)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Run brokers.")
    parser.add_argument("files", nargs="+", type=Path, help="settings of brokers (TOML)")
    parser.add_argument("--metrics-port", type=int, default=None)
    parser.add_argument("--announce", type=Path, default=None)
    asked = parser.parse_args(arguments)
    log_to_stderr()
    try:
        files = [read_broker_file(file) for file in asked.files]
        # matchmakers solve for their marks with scipy
        do_without(("pandas",) if any(file.matchmaking for file in files) else ("pandas", "scipy"))
        served = serve_brokers(files, metrics_port=asked.metrics_port, announce=asked.announce)
        return run_to_end(served)
    except RamifyError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
