"""Proxies between the processes of an overlay: each pair can be cut or silenced, apart from all others."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ramify.overlay.control.names import CONTROL
from ramify.overlay.live.host.broker_files import BrokerFile
from ramify.overlay.live.host.machine import Machine, MachineConfig
from ramify.overlay.live.wire.tasks import end_tasks

_CHUNK_BYTES = 1 << 16


class Wire:
    """A port that leads to another one. `cut` ends its connections and takes no new ones; `silence` keeps
    them and passes nothing on."""

    def __init__(self, name: str, target: Callable[[], str]) -> None:
        self.name = name
        self._target = target
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._socket.getsockname()[1]}"
        self._is_cut = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, sock=self._socket)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far: asyncio.StreamWriter | None = None
        passing: list[asyncio.Task[None]] = []
        try:
            if self._is_cut:
                return
            place = urlsplit(self._target())
            back, far = await asyncio.open_connection(place.hostname, place.port)
            passing = [
                asyncio.create_task(self._pass(reader, far)),
                asyncio.create_task(self._pass(back, writer)),
            ]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # a server that is away, or a cut
        finally:
            for each in passing:
                each.cancel()
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._passing.wait()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass

    def cut(self) -> None:
        """End all connections; new ones end at once."""
        self._is_cut = True
        for task in self._tasks:
            task.cancel()

    def silence(self) -> None:
        """Pass nothing on, as a network does that drops packets."""
        self._passing.clear()

    def mend(self) -> None:
        """As before."""
        self._is_cut = False
        self._passing.set()

    async def stop(self) -> None:
        await self._starting
        assert self._server is not None
        self._server.close()
        self.mend()
        await end_tasks(self._tasks)


class WiredMachine(Machine):
    """A machine whose brokers, coordinators and clients reach each other's servers through wires."""

    def __init__(self, config: MachineConfig) -> None:
        super().__init__(config)
        self.wires: dict[tuple[str, str], Wire] = {}

    def _wire(self, broker: str, to: str, target: Callable[[], str]) -> str:
        if (broker, to) not in self.wires:
            self.wires[broker, to] = Wire(f"{broker} to {to or CONTROL}", target)
        return self.wires[broker, to].url

    def _broker_file(self, broker: str) -> BrokerFile:
        file = super()._broker_file(broker)
        neighbours = {
            name: replace(entry, url=self._wire(broker, name, lambda name=name: self.urls[name]))  # type: ignore[misc]
            for name, entry in file.neighbours.items()
        }
        control = file.control
        if control is not None:
            control = replace(control, url=self._wire(broker, "", lambda: self.control_url))
        return replace(file, neighbours=neighbours, control=control)

    def _commands(self, configs: Path) -> list[tuple[str, list[str]]]:
        def wired(name: str, part: str) -> str:
            return self._wire(name, "", lambda: self.control_url) if part == self.control_url else part

        return [(name, [wired(name, part) for part in parts]) for name, parts in super()._commands(configs)]

    def client_url(self, client: str) -> str:
        """Where a client reaches its broker, through a wire of its own."""
        broker = self.directory.clients()[client]
        return self._wire(f"client {client}", broker, lambda: self.urls[broker])

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*(wire.stop() for wire in self.wires.values()))
