"""Byte streams between processes and servers, with what may happen to them.

Owns latency, partitions and cuts. A stream is in order and loses nothing while it lasts, as TCP; bytes of a
pair that is parted wait. When a stream is cut, what is under way is lost from an arbitrary byte on.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import ParseResult

from nats.aio.transport import Transport

from simulation.clock import PROCESS, VirtualLoop

if TYPE_CHECKING:
    from simulation.server import SimulatedServer

__all__ = ["Network", "SimulatedTransport"]


class Network:
    """The servers by port, and what is wrong between them and the processes."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.servers: dict[int, SimulatedServer] = {}
        self.transports: list[SimulatedTransport] = []
        # pairs (who, server) whose bytes wait; who is a process without its number
        self.parted: set[tuple[str, str]] = set()
        # (who, server) -> seconds that every chunk takes more
        self.slow: dict[tuple[str, str], float] = {}
        self.trace: Callable[[str, str, bytes], None] = lambda frm, to, data: None
        # process -> (the chunk that it is about to write when something happens, and what)
        self.tripwires: dict[str, tuple[int, Callable[[], None]]] = {}

    def transport(self) -> "SimulatedTransport":
        return SimulatedTransport(self, PROCESS.get())

    def latency(self, pair: tuple[str, str]) -> float:
        draw = self.rng.random()
        usual = 0.0001 + 0.0009 * draw if draw < 0.95 else 0.02 * self.rng.random()
        return usual + self.slow.get(pair, 0.0) * self.rng.random()

    def part(self, who: str, server: str) -> None:
        self.parted.add((who, server))

    def heal(self, who: str, server: str) -> None:
        self.parted.discard((who, server))
        for each in list(self.transports):
            if each.pair == (who, server):
                each.flow()

    def cut(self, who: str, server: str) -> None:
        """Reset every connection of a pair."""
        for each in list(self.transports):
            if each.pair == (who, server):
                each.reset()

    def drop(self, process: str) -> None:
        """A process has died: its kernel closes its connections."""
        for each in list(self.transports):
            if each.process == process:
                each.reset()

    def sending(self, process: str) -> None:
        """A process is about to write a chunk: some faults wait for that."""
        if process in self.tripwires:
            left, happen = self.tripwires.pop(process)
            if left > 1:
                self.tripwires[process] = left - 1, happen
            else:
                happen()


class _Direction:
    """Chunks on their way, in order."""

    def __init__(self, network: Network, pair: tuple[str, str], arrive: Callable[[bytes], None]) -> None:
        self._network, self._pair, self._arrive = network, pair, arrive
        self.under_way: deque[tuple[float, bytes]] = deque()
        self._last = 0.0
        self.closed = False

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        loop = self._network.loop
        at = max(loop.time() + self._network.latency(self._pair), self._last)
        self._last = at
        self.under_way.append((at, data))
        loop.later(at - loop.time(), self.flow)

    def flow(self) -> None:
        """Deliver what is due."""
        if self._pair in self._network.parted:
            return
        now = self._network.loop.time() + 1e-9
        while not self.closed and self.under_way and self.under_way[0][0] <= now:
            self._arrive(self.under_way.popleft()[1])

    def tear(self) -> None:
        """Lose what is under way, from some byte on."""
        if self.closed:
            return
        left = b"".join(data for _, data in self.under_way)
        if left and self._pair not in self._network.parted:
            some = left[: self._network.rng.randint(0, len(left))]
            if some:
                self._arrive(some)
        self.under_way.clear()
        self.closed = True


class SimulatedTransport(Transport):
    """A client's end of a stream: what the NATS library reads and writes."""

    def __init__(self, network: Network, process: str) -> None:
        self._network, self.process = network, process
        self.pair = ("", "")
        self._buffer = bytearray()
        self._eof = True
        self._waiter: asyncio.Future[None] | None = None
        self._to_server: _Direction | None = None
        self._to_client: _Direction | None = None
        self._session: Any = None
        self._number = 0

    # ------------------------------------------------------------------------ for the NATS library

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        network = self._network
        assert uri.port is not None
        server = network.servers[uri.port]
        self.pair = (self.process.partition("#")[0], server.name)
        self._close()
        await asyncio.sleep(network.latency(self.pair))
        until = network.loop.time() + connect_timeout
        while self.pair in network.parted:
            if network.loop.time() >= until:
                raise TimeoutError
            await asyncio.sleep(0.5)  # the kernel asks again
        if not server.is_up:
            raise ConnectionRefusedError(f"{server.name} is down")
        self._buffer, self._eof = bytearray(), False
        self._number += 1
        number = self._number
        self._to_client = _Direction(network, self.pair, lambda data: self._came(number, data))
        session = self._session = server.accept(self, self._to_client.send)
        self._to_server = _Direction(network, self.pair, lambda data: server.receive(session, data))
        network.transports.append(self)

    async def connect_tls(self, *_: Any, **__: Any) -> None:
        raise AssertionError("nothing is encrypted here")

    def write(self, payload: bytes) -> None:
        self._network.sending(self.process)
        if self.process in self._network.loop.stopped:
            # it writes when it wakes, if it does, whatever happened meanwhile
            self._network.loop.call_soon(self._write, payload)
        else:
            self._write(payload)

    def _write(self, payload: bytes) -> None:
        if self._to_server is not None and not self._to_server.closed:
            self._network.trace(self.process, self.pair[1], payload)
            self._to_server.send(payload)

    def writelines(self, payload: list[bytes]) -> None:
        if payload:
            self.write(b"".join(payload))

    async def drain(self) -> None:
        if self._to_server is None or self._to_server.closed:
            raise ConnectionResetError("the connection was reset")

    async def read(self, buffer_size: int) -> bytes:
        while not self._buffer and not self._eof:
            await self._wait()
        data = bytes(self._buffer[:buffer_size])
        del self._buffer[:buffer_size]
        return data

    async def readline(self) -> bytes:
        while b"\n" not in self._buffer and not self._eof:
            await self._wait()
        end = self._buffer.find(b"\n") + 1 or len(self._buffer)
        data = bytes(self._buffer[:end])
        del self._buffer[:end]
        return data

    def at_eof(self) -> bool:
        return self._eof and not self._buffer

    def close(self) -> None:
        """Say goodbye: the server hears of it after what was sent."""
        self._close()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    def __bool__(self) -> bool:
        # or the library would put a plain one in its place before the first connection
        return True

    # ------------------------------------------------------------------------------- for the network

    def flow(self) -> None:
        for direction in (self._to_server, self._to_client):
            if direction is not None:
                direction.flow()

    def reset(self) -> None:
        """The stream breaks: both ends hear of it, and some bytes may be lost."""
        if self._to_server is None:
            return
        session, self._session = self._session, None
        self._to_server.tear()
        if self._to_client is not None:
            self._to_client.tear()
        self._forget()
        if session is not None:
            session.server.disconnected(session)
        self._eof = True
        self._stir()

    def _close(self) -> None:
        if self._to_server is None or self._session is None:
            return
        session, self._session = self._session, None
        # what was written arrives before the end, if the server can be reached
        for _, data in list(self._to_server.under_way):
            if self.pair not in self._network.parted and not self._to_server.closed:
                session.server.receive(session, data)
        self._to_server.closed = True
        if self._to_client is not None:
            self._to_client.closed = True
        session.server.disconnected(session)
        self._forget()
        self._eof = True
        self._stir()

    def _forget(self) -> None:
        if self in self._network.transports:
            self._network.transports.remove(self)

    def _came(self, number: int, data: bytes) -> None:
        if number == self._number and not self._eof:
            self._buffer += data
            self._stir()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _stir(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
