"""What chaos does to an overlay: each fault is drawn from a seed, done, undone, noted in the history."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cuts import WiredMachine
from machines import pids, send, until, until_seen
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LiveError
from ramify.overlay.histories.conditions import sql_of
from ramify.overlay.histories.rows import FaultRow
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.host.directory import COORDINATOR
from ramify.overlay.live.host.move_requests import request_move
from ramify.overlay.live.host.overview import Overview
from ramify.overlay.live.host.server import Server
from ramify.overlay.live.host.verification import Verification
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

LONGEST_PAUSE_S = 9.0
"""Beyond every lease of the machines of tests, and every time-out of a request."""
SCHEMES = ("mult", "explicit", "single")
DISK_MIB = 96
_SWITCH_LIMIT_S = 240.0
_SWITCH_S = 40.0


def fill(file: Path) -> None:
    """Take all the room that is left."""
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as out:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while out.write(b"x" * size) == size:
                    pass


@contextmanager
def small_disk(place: Path, mib: int = DISK_MIB) -> Iterator[bool]:
    """A file system of its own at `place`, where that may be mounted; whether it is."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "ramify-chaos", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def _store_of(server: object) -> Path | None:
    return server.config.store / "jetstream" if isinstance(server, Server) else None


class Chaos:
    """Does faults on a machine that a verification runs on."""

    def __init__(
        self, machine: WiredMachine, whole: Verification, rng: random.Random, disks: dict[str, Path]
    ) -> None:
        self.machine, self.whole, self.rng = machine, whole, rng
        # broker -> where its store has a small file system
        self.disks = disks
        self.done = 0
        self._brokers = machine.config.overlay.brokers
        self._moved: dict[str, str] = {}
        # of processes that may be stopped by one fault at a time
        self._busy: set[str] = set()

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Everything that can be done here, by name."""
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "kill routers": lambda: self._kill("kill routers", self._routers()),
            "kill server": lambda: self._kill("kill server", self._broker()),
            "kill both": self._kill_both,
            "pause routers": lambda: self._pause("pause routers", self._routers()),
            "pause server": lambda: self._pause("pause server", self._broker()),
            "cut": self._cut,
            "silence": self._silence,
            "slow disk": self._slow,
        }
        if not self.whole.matchmaking:
            found |= {
                "kill control": lambda: self._kill("kill control", ""),
                "kill coordinator": lambda: self._kill("kill coordinator", self._coordinator()),
                "pause control": lambda: self._pause("pause control", ""),
                "pause coordinator": lambda: self._pause("pause coordinator", self._coordinator()),
                "switch": self._switch,
            }
            if self.machine.directory.movable:
                found["move"] = self._move
        if self.disks:
            found["full disk"] = self._full
        return found

    def destroyers(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What destroys the only copy of acknowledged events: that must be told, and the rest go on."""
        return {
            "roll back": lambda: self._destroy("roll back", self._put_back),
            "bit flip": lambda: self._destroy("bit flip", self._flip),
            "wipe": lambda: self._destroy("wipe", self._wipe),
        }

    async def do(self, kind: str) -> None:
        """One fault, from its begin to its end."""
        await (self.kinds() | self.destroyers())[kind]()
        self.done += 1

    async def single_kill(self) -> None:
        """While all is well, kill one process or server: how long events wait then is measured."""
        kinds = {"server": self._broker, "routers": self._routers}
        if not self.whole.matchmaking:
            kinds |= {"coordinator": self._coordinator, "control": lambda: ""}
        kind = self.rng.choice(sorted(kinds))
        name = kinds[kind]()
        await self._kill(f"kill {kind}", name, single=True)
        self.done += 1

    # ------------------------------------------------------------------------------------ who is hit

    def _broker(self) -> str:
        return self.rng.choice(self._brokers)

    def _routers(self) -> str:
        return self.rng.choice(sorted(n for n in self.machine._children if n.startswith("routers")))

    def _coordinator(self) -> str:
        return self.rng.choice(sorted(n for n in self.machine._children if n.startswith(COORDINATOR)))

    async def _pid(self, name: str) -> int:
        """Of a process that may be about to be started again."""
        await until(lambda: name in pids(self.machine) and name not in self._busy)
        return pids(self.machine)[name]

    def _note(self, what: str, at: float, target: str, **more: bool) -> None:
        self.whole.note(FaultRow(what, at, self.whole.now(), target or "control", **more))

    # ---------------------------------------------------------------------------------------- faults

    async def _kill(self, what: str, name: str, *, single: bool = False) -> None:
        pid = await self._pid(name)
        at = self.whole.now()
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)
        self._note(what, at, name, is_single=single)

    async def _kill_both(self) -> None:
        """A broker's server and its router at once."""
        broker, routers = self._broker(), self._routers()
        await self._kill("kill both", broker)
        await self._kill("kill both", routers)

    async def _pause(self, what: str, name: str) -> None:
        pid = await self._pid(name)
        at = self.whole.now()
        self._busy.add(name)
        try:
            with contextlib.suppress(ProcessLookupError):
                send(pid, signal.SIGSTOP)
                await asyncio.sleep(self.rng.uniform(0.5, LONGEST_PAUSE_S))
                send(pid, signal.SIGCONT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._busy.discard(name)
        self._note(what, at, name)

    async def _slow(self) -> None:
        """A server that gets on in bursts, as with a disk that stalls."""
        name = self._broker()
        pid = await self._pid(name)
        at = self.whole.now()
        with contextlib.suppress(ProcessLookupError):
            for _ in range(self.rng.randint(5, 25)):
                try:
                    send(pid, signal.SIGSTOP)
                    await asyncio.sleep(self.rng.uniform(0.02, 0.3))
                finally:
                    send(pid, signal.SIGCONT)
                await asyncio.sleep(self.rng.uniform(0.01, 0.1))
        self._note("slow disk", at, name)

    async def _cut(self) -> None:
        wire = self.rng.choice(list(self.machine.wires.values()))
        at = self.whole.now()
        wire.cut()
        try:
            await asyncio.sleep(self.rng.uniform(0.2, LONGEST_PAUSE_S))
        finally:
            wire.mend()
        self._note("cut", at, wire.name)

    async def _silence(self) -> None:
        wire = self.rng.choice(list(self.machine.wires.values()))
        at = self.whole.now()
        wire.silence()
        try:
            await asyncio.sleep(self.rng.uniform(0.2, LONGEST_PAUSE_S))
        finally:
            wire.mend()
        self._note("silence", at, wire.name)

    async def _full(self) -> None:
        broker = self.rng.choice(sorted(self.disks))
        at = self.whole.now()
        file = self.disks[broker] / "filling"
        fill(file)
        try:
            await asyncio.sleep(self.rng.uniform(1, LONGEST_PAUSE_S))
        finally:
            file.unlink(missing_ok=True)
        self._note("full disk", at, broker)

    async def _destroy(self, what: str, how: Callable[[Path], Awaitable[bool]]) -> None:
        """Change the store of a server behind its back, and have it start with that."""
        name = self._broker()
        server = self.machine._servers[name].server
        assert isinstance(server, Server)
        store = server.config.store / "jetstream"
        at = self.whole.now()
        if await how(store):
            self._note(what, at, name, forfeits=True)

    async def _stopped(self, store: Path, change: Callable[[], bool]) -> bool:
        """Stop its server, change the store, and kill the server, which has the old files open."""
        name = next(n for n, each in self.machine._servers.items() if _store_of(each.server) == store)
        pid = await self._pid(name)
        send(pid, signal.SIGSTOP)
        try:
            return change()
        finally:
            send(pid, signal.SIGKILL)

    async def _put_back(self, store: Path) -> bool:
        """What the store had some seconds ago: what was written since was not synced."""
        name = next(n for n, each in self.machine._servers.items() if _store_of(each.server) == store)
        kept = store.with_name("kept")
        shutil.rmtree(kept, ignore_errors=True)
        pid = await self._pid(name)
        send(pid, signal.SIGSTOP)
        try:
            shutil.copytree(store, kept)
        finally:
            send(pid, signal.SIGCONT)
        await asyncio.sleep(self.rng.uniform(0.5, 5.0))

        def change() -> bool:
            shutil.rmtree(store)
            kept.rename(store)
            return True

        return await self._stopped(store, change)

    async def _flip(self, store: Path) -> bool:
        def change() -> bool:
            streams = ("/IN/", "/OUT/")
            blocks = sorted(b for b in store.rglob("*.blk") if any(s in str(b) for s in streams))
            blocks = [block for block in blocks if block.stat().st_size > 0]
            if not blocks:
                return False
            block = self.rng.choice(blocks)
            with block.open("r+b") as file:
                place = self.rng.randrange(block.stat().st_size)
                file.seek(place)
                (byte,) = file.read(1)
                file.seek(place)
                file.write(bytes([byte ^ (1 << self.rng.randrange(8))]))
            return True

        return await self._stopped(store, change)

    async def _wipe(self, store: Path) -> bool:
        def change() -> bool:
            shutil.rmtree(store)
            return True

        return await self._stopped(store, change)

    async def _until(self, what: Callable[[Overview], bool]) -> Overview:
        """As `until_seen`; the control server may be away meanwhile."""
        async with asyncio.timeout(_SWITCH_LIMIT_S):
            while True:
                with contextlib.suppress(LiveError):
                    return await until_seen(self.machine, what, _SWITCH_LIMIT_S)
                await asyncio.sleep(0.2)

    async def _switch(self) -> None:
        """A coordinator with another plan takes over, for as long as the switch takes."""
        scheme = self.rng.choice(SCHEMES)
        machine, overlay = self.machine, self.machine.config.overlay
        at = self.whole.now()
        view = await self._until(lambda view: bool(view.epochs))
        before = view.epochs[-1].epoch
        homes = machine.directory.clients()
        rows = [
            Subscription(f"{name}/{id}", name, homes[name], sql_of(condition))
            for id, (name, condition) in self.whole.lasting().items()
        ]
        problem = Problem.of(overlay, Classes.collapse(rows, overlay, {}), Demand.of([]), homes)
        endpoint = machine.directory.control_endpoint(COORDINATOR, machine.control_url)
        plan = make_plan(scheme, problem)
        children = [each for name, each in machine._children.items() if name.startswith(COORDINATOR)]
        await asyncio.gather(*(each.stop() for each in children))
        leading = Coordinator(CoordinatorConfig("other", endpoint, plan, replace_plan=True))
        task = asyncio.create_task(leading.run())
        try:
            # what is the head already is not installed again
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWITCH_S):
                    await self._until(
                        lambda v: task.done() or (bool(v.epochs) and v.epochs[0].epoch > before)
                    )
            if task.done():
                task.result()
        finally:
            await end_tasks([task])
            await asyncio.gather(*(each.start() for each in children))
        self._note("switch", at, scheme, reorders=True)

    async def _move(self) -> None:
        """Offer a reader another broker. It may stay: what counts is what its events do meanwhile."""
        machine = self.machine
        client = self.rng.choice(sorted({name for name, _ in self.whole.lasting().values()}))
        home = machine.directory.clients()[client]
        at = self.whole.now()
        to = self.rng.choice([name for name in self._brokers if name != self._moved.get(client, home)])
        control = machine.directory.operator(machine.control_url)
        with contextlib.suppress(LiveError, TimeoutError):
            await request_move(control, client, to, home=home, answer_s=10.0, wait_s=2.0)
            self._moved[client] = to
            await asyncio.sleep(2.0)
        self._note("move", at, f"{client} to {to}", reorders=True)
