"""A router as a process of its own, to be killed: settings, plans and current epoch are in a directory.

    <directory>/broker.json       name, urls, attachments      <directory>/plan-<epoch>.json
    <directory>/epoch             the epoch to flip to; read again and again

python broker_process.py <directory> <site directory>
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

from ramify.overlay.control.steps import Node
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.overlay.routing.router import RoutingPlan
from ramify.planning.plans.files import read_plan
from running import SMALL


async def main(directory: Path, home: Path) -> None:
    settings = json.loads((directory / "broker.json").read_text())
    plans = {int(p.stem.split("-")[1]): read_plan(p) for p in sorted(directory.glob("plan-*.json"))}
    node = Node(settings["name"])
    for epoch, plan in plans.items():
        node.install(epoch, RoutingPlan(plan))
    site = BrokerSite(plans[0].overlay, home, settings["attachments"], SMALL)
    node.flip(int((directory / "epoch").read_text()))
    broker = Broker(site.broker(settings["name"], settings["urls"]), node)
    task = asyncio.create_task(broker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    while not task.done():
        node.flip(int((directory / "epoch").read_text()))
        await asyncio.wait([task], timeout=0.05)
    if not task.cancelled() and task.exception() is not None:
        print(repr(task.exception()), file=sys.stderr)
        raise SystemExit(3)


if __name__ == "__main__":
    run_to_end(main(Path(sys.argv[1]), Path(sys.argv[2])))
