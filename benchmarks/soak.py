"""The live overlay over time, past its peak, and beside hostile clients. Every run's history is judged.

An overlay of three brokers on real processes; six writers and three readers of ours that come and go, and a
coordinator that re-plans all the time. All rates are those of this load on this machine, with the clients
and the checker on it.

    python benchmarks/soak.py --quick      about three minutes
    python benchmarks/soak.py              an hour
    python benchmarks/soak.py --minutes 20

The last line is one JSON object; the exit code is 1 when a limit is broken.

    peak_events_per_s      writers publish as fast as they are answered: events from the first publish to
                           the last delivery, past which there is backpressure
    soak_events_per_s      half of that, for the time of the soak
    lag_s_p99              publish to last delivery over the soak, and of its last third over its first:
    lag_growth
    memory_mb              resident memory of all processes of the overlay at the end
    memory_growth          the median of the last third over that of the middle third, less one (no limit
                           holds for growth with --quick); and the
    memory_mb_per_h        slope of a line through both
    disk_growth            the same of the files of the overlay
    p99_hostile_s          publish to last delivery at a moderate rate while one client is hostile, by
                           what it does; and of a time right before, in which it is not:
    p99_quiet_s
    p99_hostile_over_quiet the worst of the ratios
    hostile_beyond_s       the worst of p99_hostile - 2 * p99_quiet: allowed are 2 s
    replans                plans that were installed meanwhile
    lost, doubled, ...     over all runs, as the checker judges; `acknowledged` is how many events
    missed                 the keys whose limit is broken
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.content.events.events import Event
from ramify.errors import LiveError
from ramify.network.graphs.generators import line
from ramify.overlay.control.names import PUBLISH, token
from ramify.overlay.histories.checker import judge
from ramify.overlay.histories.rows import HistoryRow
from ramify.overlay.histories.verdict import HistoryVerdict, quantile
from ramify.overlay.live.client.client import Client, PendingClient, place_of
from ramify.overlay.live.host.directory import Directory
from ramify.overlay.live.host.machine import Machine, MachineConfig
from ramify.overlay.live.host.overview import Look, looking_here
from ramify.overlay.live.host.verification import Dial, Verification, VerificationSettings
from ramify.overlay.live.wire.security import ClientRole, read_seed
from ramify.overlay.live.wire.streams import Endpoint, Sizes, connect
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

LIMITS = {  # key -> the most that is allowed
    "memory_growth": 0.10,
    "disk_growth": 0.25,
    "lag_growth": 3.0,
    "hostile_beyond_s": 2.0,
    "lost": 0,
    "doubled": 0,
    "unexpected": 0,
    "untold_stall": 0,
}
SIZES = Sizes(published=64 << 20, out=128 << 20, rejected=8 << 20, samples=8 << 20)
WRITERS = {f"w{i}": f"v{i % 3}" for i in range(6)}
READERS = {f"r{i}": f"v{i}" for i in range(3)}
HOSTILE = "hostile"
CROWD = {f"crowd{i}": f"v{i % 3}" for i in range(24)}
QUIET_PER_S = 150.0
SEGMENT_S = 120.0
SAMPLE_S = 1.0
HOSTILE_MARGIN_S = 3.0
GIANT_BYTES = 700_000
CROWD_QUOTA_BYTES = 4 << 20
GARBAGE = (
    b"BADS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 404 \xff\r\nA: b\r\n\r\n",
    b"\xff" * 90,
    b" ",
    b"\r\n\r\n",
)


def main() -> None:
    options = argparse.ArgumentParser(description="See the top of the file.")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--minutes", type=float, default=50.0, help="of the soak itself")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--hostile", nargs=2, metavar=("KIND", "DIRECTORY"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.hostile:
        run_to_end(be_hostile(asked.hostile[0], Path(asked.hostile[1])))
        return
    lengths = Lengths(40.0, 10.0, 7.0) if asked.quick else Lengths(asked.minutes * 60, 30.0, 30.0)
    with tempfile.TemporaryDirectory(prefix="ramify-soak-") as directory:
        result = {"quick": asked.quick, "seed": asked.seed}
        result |= run_to_end(figures(Path(directory) / "overlay", lengths, asked.seed))
    # a minute does not show what grows
    limits = {key: most for key, most in LIMITS.items() if not (asked.quick and key.endswith("_growth"))}
    missed = [key for key, most in limits.items() if result[key] is None or result[key] > most]
    for key in missed:
        say(f"LIMIT BROKEN: {key} = {result[key]}, allowed: {LIMITS[key]}")
    print(json.dumps(result | {"missed": missed}))
    sys.exit(1 if missed else 0)


@dataclass(frozen=True)
class Lengths:
    """Seconds of the parts."""

    soak_s: float
    peak_s: float
    hostile_s: float


def say(text: str) -> None:
    print(text, flush=True)


# -------------------------------------------------------------------------------------------- the overlay


@dataclass
class Ground:
    """An overlay that runs, and what all runs on it found together."""

    machine: Machine
    look: Look
    seed: int
    runs: int = 0

    def __post_init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.acknowledged = 0

    async def verify(self, duration_s: float, rate_per_s: float, *, churn_s: float = 2.0) -> HistoryVerdict:
        """A run of our clients, judged."""
        self.runs += 1
        rows: list[HistoryRow] = []
        settings = VerificationSettings(
            f"soak{self.runs}",
            self.seed + self.runs,
            duration_s=duration_s,
            rate_per_s=rate_per_s,
            churn_s=churn_s,
            payload_bytes=100,
        )
        path = self.machine.directory.path
        writers = {name: dial(path, name) for name in WRITERS}
        readers = {name: dial(path, name) for name in READERS}
        await Verification(writers, readers, settings, rows.append, self.look).run()
        # off the loop: the machine is looked after meanwhile
        found = await asyncio.to_thread(judge, rows)
        self.counts.update(found.counts)
        self.acknowledged += found.acknowledged
        if not found.is_kept:
            say(found.text())
        return found


def dial(path: Path, name: str) -> Dial:
    def connected(after: int | None) -> PendingClient:
        return Client.at(path, name, after=after, timeout_s=120.0)

    return connected


@contextlib.asynccontextmanager
async def ground(path: Path, seed: int) -> Any:
    """Three brokers in a line, and a coordinator that weighs plans every ten seconds."""
    files = Directory(path)
    overlay = line(3)
    files.create(overlay)
    files.add_clients(WRITERS | READERS | CROWD | {HOSTILE: "v1"})
    command = [
        *(sys.executable, "-m", "ramify.cli", "coordinator", "--overlay", str(path / "overlay.json")),
        *("--scheme", "single", "--replan-every", "10", "--schemes", "single mult explicit"),
        *("--threshold", "0", "--least-events", "20", "--window", "30", "--spark", "none"),
        *("--samples", str(path / "samples")),
    ]
    machine = Machine(MachineConfig(overlay, files, command, 2, SIZES, sample_probability=0.1))
    watching: asyncio.Task[None] | None = None
    try:
        running = await machine.start()
        watching = asyncio.create_task(machine.watch())
        async with looking_here(files, running) as look:
            async with asyncio.timeout(180):
                while not (view := await look()).routing or len(view.brokers) < len(overlay):
                    await asyncio.sleep(0.3)
            yield Ground(machine, look, seed)
    finally:
        await end_tasks([] if watching is None else [watching])
        await machine.stop()


async def figures(path: Path, lengths: Lengths, seed: int) -> dict[str, Any]:
    async with ground(path, seed) as on:
        result = await peak(on, lengths.peak_s)
        result |= await soak(on, lengths.soak_s, result["peak_events_per_s"] / 2)
        result |= await hostility(on, lengths.hostile_s)
        view = await on.look()
        result["replans"] = max(each.epoch for each in view.epochs) - 1
        kinds = ("lost", "doubled", "unexpected", "out of order", "untold stall")
        result |= {kind.replace(" ", "_"): on.counts[kind] for kind in kinds}
        return result | {"acknowledged": on.acknowledged}


# ------------------------------------------------------------------------------ past the peak, and the soak


async def peak(on: Ground, duration_s: float) -> dict[str, Any]:
    """As fast as publishes are answered: what is past the peak waits, and nothing is lost."""
    found = await on.verify(duration_s, 1e9, churn_s=0)
    per_s = found.acknowledged / (duration_s + (found.latency_s[-1] if found.latency_s else 0.0))
    say(f"peak: {found.acknowledged:,} events, {per_s:,.0f}/s")
    return {"peak_events_per_s": round(per_s)}


async def soak(on: Ground, duration_s: float, rate_per_s: float) -> dict[str, Any]:
    """At half the peak, in segments that are judged one by one."""
    samples: list[tuple[float, float, float]] = []
    sampling = asyncio.create_task(_sample(on, samples))
    lags: list[float] = []
    tails: list[float] = []
    end = time.monotonic() + duration_s
    try:
        while (left := end - time.monotonic()) > 1 or len(tails) < 3:
            segment = max(5.0, min(SEGMENT_S, duration_s / 3, left))
            found = await on.verify(segment, rate_per_s)
            lags += found.latency_s
            tails.append(quantile(found.latency_s, 0.99) or 0.0)
            say(f"soak: {found.acknowledged:,} events, p99 {tails[-1]:.3f} s, {samples[-1][1]:.0f} MB")
    finally:
        await end_tasks([sampling])
    third = max(1, len(tails) // 3)
    first, last = statistics.median(tails[:third]), statistics.median(tails[-third:])
    memory = Growth.of([(at, mb) for at, mb, _ in samples])
    disk = Growth.of([(at, mb) for at, _, mb in samples])
    return {
        "soak_s": round(duration_s),
        "soak_events_per_s": round(rate_per_s),
        "lag_s_p50": quantile(lags, 0.5),
        "lag_s_p99": quantile(lags, 0.99),
        "lag_growth": round(last / max(first, 0.1), 2),
        "memory_mb": round(samples[-1][1]),
        "memory_growth": round(memory.share, 3),
        "memory_mb_per_h": round(memory.per_h, 1),
        "disk_mb": round(samples[-1][2]),
        "disk_growth": round(disk.share, 3),
        "disk_mb_per_h": round(disk.per_h, 1),
    }


@dataclass(frozen=True)
class Growth:
    """Of a figure over the last two thirds of a time: what comes before is the filling of caches."""

    share: float
    per_h: float

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]]) -> "Growth":
        """Of (time, value)."""
        third = max(1, len(samples) // 3)
        middle, last = samples[third : 2 * third] or samples, samples[-third:]
        a, b = (statistics.median(value for _, value in part) for part in (middle, last))
        counted = samples[third:]
        slope = statistics.linear_regression(*zip(*counted, strict=True)).slope if len(counted) > 1 else 0.0
        return cls(b / max(a, 1.0) - 1, slope * 3600)


async def _sample(on: Ground, samples: list[tuple[float, float, float]]) -> None:
    begin = time.monotonic()
    while True:
        memory = sum(resident_mb(pid) for pid in children(os.getpid()))
        disk = await asyncio.to_thread(disk_mb, on.machine.directory.path)
        samples.append((time.monotonic() - begin, memory, disk))
        await asyncio.sleep(SAMPLE_S)


def children(parent: int) -> Iterator[int]:
    """All processes below one."""
    for file in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, file.read_text().split()):
                yield pid
                yield from children(pid)


def resident_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for row in Path(f"/proc/{pid}/status").read_text().splitlines():
            if row.startswith("VmRSS"):
                return int(row.split()[1]) / 1024
    return 0.0


def disk_mb(path: Path) -> float:
    """What the stores and samples take; logs are the operator's to turn over."""
    size = 0
    for folder in ("brokers", "control", "samples"):
        for place, _, names in os.walk(path / folder):
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(place, name)).st_size
    return size / 1e6


# --------------------------------------------------------------------------------------- hostile clients


async def hostility(on: Ground, duration_s: float) -> dict[str, Any]:
    """The others' latency, quiet and beside each kind of hostile client, which has a process of its own."""
    for_crowd = [await Client.at(on.machine.directory.path, name) for name in CROWD]
    for client in for_crowd:
        await client.subscribe("giant = 1", id="giants", quota_bytes=CROWD_QUOTA_BYTES)
    quiet: dict[str, float] = {}
    hostile: dict[str, float] = {}
    for kind in HOSTILITIES:
        # each beside a quiet time of its own: the machine may be busier at one time than at another
        calm = await on.verify(duration_s, QUIET_PER_S, churn_s=0)
        quiet[kind] = quantile(calm.latency_s, 0.99) or 0.0
        hostile[kind] = await _beside(on, kind, duration_s)
        say(f"{kind}: p99 {hostile[kind]:.3f} s, quiet {quiet[kind]:.3f} s")
    for client in for_crowd:
        with contextlib.suppress(LiveError):
            await client.unsubscribe("giants")
        await client.close()
    return {
        "p99_quiet_s": quiet,
        "p99_hostile_s": hostile,
        "p99_hostile_over_quiet": round(max(hostile[kind] / quiet[kind] for kind in hostile), 2),
        "hostile_beyond_s": round(max(hostile[kind] - 2 * quiet[kind] for kind in hostile), 3),
    }


async def _beside(on: Ground, kind: str, duration_s: float) -> float:
    """The p99 of the others while a client in a process of its own is hostile."""
    command = [sys.executable, __file__, "--hostile", kind, str(on.machine.directory.path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = asyncio.create_task(on.verify(duration_s, QUIET_PER_S, churn_s=0))
    try:
        # subscriptions are made beside it too; what it left behind then waits, and is waited for
        await asyncio.wait([running], timeout=duration_s + HOSTILE_MARGIN_S)
        ended = process.poll()
    finally:
        process.kill()
        process.wait()
        found = await running
    if ended is not None:
        raise RuntimeError(f"the hostile client ended by itself ({ended}): {kind}")
    return quantile(found.latency_s, 0.99) or 0.0


async def be_hostile(kind: str, path: Path) -> None:
    """Until the process is killed. What the overlay refuses is what it should do."""
    while True:
        try:
            await HOSTILITIES[kind](path)
        except Exception as error:
            print(f"{kind}: {error!r}", file=sys.stderr)
        await asyncio.sleep(0.05)


def _endpoint(path: Path) -> Endpoint:
    place = place_of(path, HOSTILE)
    role = ClientRole(HOSTILE)
    return Endpoint(place.url, read_seed(place.seed_file).seed, role.inbox_prefix, HOSTILE)


async def _rejects(path: Path) -> None:
    """Messages of ten thousand things that are no events."""
    connection = await connect(_endpoint(path))
    payload = json.dumps([1] * 10_000).encode()
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    while True:
        await connection.request(f"{PUBLISH}.{token(HOSTILE)}", payload, timeout=30, headers=headers)


async def _giants(path: Path) -> None:
    """Large events that two dozen clients asked for and do not read."""
    async with Client.at(path, HOSTILE) as client:
        for number in range(1_000_000):
            values: dict[str, Any] = {"giant": 1, "pad": "x" * GIANT_BYTES}
            await client.publish(Event(f"g{os.getpid()}.{number}", attributes=values), check=False)


async def _filters(path: Path) -> None:
    """Subscriptions whose filters are hard."""
    async with Client.at(path, HOSTILE, timeout_s=5.0) as client:
        rows = " AND ".join(f"(x < {i} OR y > {90 - i})" for i in range(90))

        async def ask(number: int) -> None:
            with contextlib.suppress(LiveError):
                await client.subscribe(
                    rows.replace("x < 0", f"x < -{number}"), id=f"hard{number}", wait_s=1
                )

        for number in range(0, 1_000_000, 8):
            await asyncio.gather(*(ask(number + k) for k in range(8)))


async def _headers(path: Path) -> None:
    """Header blocks that are none, past the checks of the library."""
    connection = await connect(_endpoint(path))
    for number in range(1_000_000):
        block = GARBAGE[number % len(GARBAGE)]
        subject = f"{PUBLISH}.{token(HOSTILE)}".encode()
        connection._transport.write(b"HPUB %s %d %d\r\n%s\r\n" % (subject, len(block), len(block), block))
        await connection._transport.drain()
        await asyncio.sleep(0.002)


async def _slow(path: Path) -> None:
    """A subscription to everything that is never read."""
    async with Client.at(path, HOSTILE) as client:
        await client.subscribe("x >= 0", id="all", quota_bytes=CROWD_QUOTA_BYTES)
        await asyncio.sleep(3600)


async def _reconnects(path: Path) -> None:
    """Connections that come and go, sixteen at a time."""

    async def one() -> None:
        connection = await connect(_endpoint(path))
        await connection.close()

    while True:
        await asyncio.gather(*(one() for _ in range(16)), return_exceptions=True)


async def _subscriptions(path: Path) -> None:
    """Thousands of NATS subscriptions on one connection."""
    connection = await connect(_endpoint(path))
    prefix = ClientRole(HOSTILE).inbox_prefix
    for number in range(5000):
        await connection.subscribe(f"{prefix}.{number}")
    await connection.flush()
    await asyncio.sleep(1.0)
    await connection.close()


HOSTILITIES: dict[str, Callable[[Path], Awaitable[None]]] = {
    "rejects": _rejects,
    "giants": _giants,
    "filters": _filters,
    "headers": _headers,
    "slow reader": _slow,
    "reconnects": _reconnects,
    "subscriptions": _subscriptions,
}


if __name__ == "__main__":
    main()
