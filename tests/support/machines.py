"""A whole overlay on this machine for tests: several processes, real clients, and what must arrive."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from ramify.content.events.events import Event
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.generators import line
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.frames import Limits
from ramify.overlay.live.client.client import Client
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Child, Machine, MachineConfig
from ramify.overlay.live.host.overview import Overview, looking_here
from ramify.overlay.live.host.server import Server
from ramify.overlay.live.wire.tasks import end_tasks
from running import SMALL

LEASE_S = 4
LIMITS = Limits(max_event_bytes=256 << 10)

RING = Overlay.build(
    "ring",
    [f"v{i}" for i in range(5)],
    [Link(f"v{i}", f"v{(i + 1) % 5}", 1.0 + i, 2.0, 5.0) for i in range(5)],
)


def small_line(brokers: int) -> Overlay:
    return line(brokers)


def machine_of(
    directory: Path, overlay: Overlay, clients: Mapping[str, str], *, scheme: str = "explicit"
) -> Machine:
    """Not started. The same directory again is the same overlay with its data."""
    files = Directory(directory)
    files.create(overlay)
    files.add_clients(clients)
    first = ["--overlay", str(files.path / "overlay.json"), "--scheme", scheme]
    command = [sys.executable, "-m", "ramify.cli", "coordinator", *first]
    config = MachineConfig(overlay, files, command, 2, SMALL, LIMITS, lease_s=LEASE_S)
    return Machine(config)


@asynccontextmanager
async def started(machine: Machine) -> AsyncIterator[Machine]:
    """Started and routing; stopped however this ends."""
    watching: asyncio.Task[None] | None = None
    try:
        await machine.start()
        watching = asyncio.create_task(machine.watch())
        await until_routing(machine)
        yield machine
    finally:
        await end_tasks([] if watching is None else [watching])
        await machine.stop()


async def until_routing(machine: Machine, limit_s: float = 240.0) -> Overview:
    return await until_seen(
        machine, lambda view: view.routing and len(view.brokers) == len(machine.config.overlay), limit_s
    )


async def until_seen(
    machine: Machine, what: Callable[[Overview], bool], limit_s: float = 240.0
) -> Overview:
    running = machine.directory.running()
    assert running is not None
    async with asyncio.timeout(limit_s), looking_here(machine.directory, running) as look:
        while True:
            view = await look()
            if what(view):
                return view
            await asyncio.sleep(0.2)


def pids(machine: Machine) -> dict[str, int]:
    """Every process that a machine runs, by name; the control server's is empty."""
    found: dict[str, int] = {}
    for name, each in {**machine._servers, **machine._children}.items():
        assert isinstance(each.server, Child | Server)
        if each.server.pid is not None and each.server.alive:
            found[name] = each.server.pid
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def began(pid: int) -> float:
    """When a process was started, in seconds since 1970."""
    with open(f"/proc/{pid}/stat") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


async def until(what: Callable[[], bool], limit_s: float = 200.0) -> None:
    async with asyncio.timeout(limit_s):
        while not what():
            await asyncio.sleep(0.05)


@contextmanager
def extra_routers(machine: Machine, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A second process for the brokers of a routers' process, as if somebody had started it by hand."""
    child = machine._children[name].server
    assert isinstance(child, Child)
    arguments = [part for part in child._arguments if part.endswith(".toml")]
    with (child.log.parent / f"{name}-second.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ramify.overlay.live.host.process", *arguments], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def send(pid: int | None, number: signal.Signals) -> None:
    assert pid is not None
    os.kill(pid, number)


class Collected:
    """Readers of clients' whole lanes; deliveries are counted by (event id, subscription id)."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    def read(self, client: Client) -> None:
        self._tasks.append(asyncio.create_task(self._read(client)))

    async def _read(self, client: Client) -> None:
        async for delivered in client.deliveries():
            for row, event in enumerate(delivered.events.column("id").to_pylist()):
                for id_ in delivered.subscriptions_of(row):
                    self.counts[event, id_] += 1

    def check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def until_has(self, wanted: Counter[tuple[str, str]], limit_s: float = 240.0) -> None:
        """Wait until all of it came, and a moment longer for what is too much."""
        try:
            async with asyncio.timeout(limit_s):
                while wanted - self.counts:
                    self.check()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            lost = wanted - self.counts
            raise AssertionError(f"{lost.total()} of {wanted.total()} lost: {list(lost)[:5]}") from None
        await asyncio.sleep(0.3)

    async def stop(self) -> None:
        await end_tasks(self._tasks)


def matches(sql: str, event: Event) -> bool:
    """By plain evaluation, without any index."""
    return Subscription("s", "c", "v", sql).parse({}).holds(event.values)


def wanted_by(filters: Mapping[str, str], events: Sequence[Event]) -> Counter[tuple[str, str]]:
    return Counter({(e.id, id_): 1 for e in events for id_, sql in filters.items() if matches(sql, e)})
