"""Samples become files: what brokers ship to the stream SAMPLES lands as Parquet in a directory.

Owns the directory's files:

    samples-<stream>-<first>-<last>.parquet   the events of these messages of the stream
    _publishers.json                          client -> the broker that its samples came from

A file appears whole, by a rename, under a name that is never used again. The names say how far the stream
has been landed, so after a crash nothing lands twice; the acknowledgement only lets the server forget.
Messages whose events do not fit into one table go to files of their own. Of a stream that was made anew
numbers start over, so its time of creation is in the name.

The directory is bounded: the oldest files go first. Each coordinator's collector reads the whole stream.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import nats.errors
import pyarrow as pa
from nats.aio.client import Client as Nats

from ramify.durable import flush_directory, replace_file, write_parquet
from ramify.errors import InputError, LiveError, RamifyError
from ramify.overlay.control.frames import LINK_LIMITS, concat, decode_events
from ramify.overlay.control.names import SAMPLES, name_of, token
from ramify.overlay.live.wire.pull import PulledMessage, Puller
from ramify.overlay.live.wire.streams import Endpoint, api, connect, ensure_consumer, ensure_samples

__all__ = ["PUBLISHERS", "Collector", "CollectorConfig", "read_publishers"]

PUBLISHERS = "_publishers.json"

_log = logging.getLogger(__name__)

_NAME = re.compile(r"samples-(\d+)-(\d+)-(\d+)\.parquet")
_COLLECT_PAUSE_S = 1.0


@dataclass(frozen=True)
class CollectorConfig:
    """What a collector is given.

    Attributes
    ----------
    name          of the coordinator that it belongs to: its place in the stream goes by it
    control       the control server, as a coordinator
    directory     where files land
    most_events   a file is written when so many wait, or `linger_s` after the first of them came
    keep_bytes    files that the directory holds together; the newest always stays
    """

    name: str
    control: Endpoint
    directory: Path
    most_events: int = 20_000
    linger_s: float = 2.0
    keep_bytes: int = 1 << 30


class Collector:
    """See the module. `run` goes on until it is cancelled."""

    def __init__(self, config: CollectorConfig) -> None:
        self.config = config
        self.landed = 0
        """Events that were written to files."""
        self.bad = 0
        """Messages that were no events."""
        self._publishers: dict[str, str] = {}
        self._moved = False
        self._stream = ""
        # landed, or gone from the stream before it was
        self._position = 0
        # messages that wait: number, and events where it has some
        self._taken: list[tuple[int, pa.RecordBatch | None]] = []
        self._events = 0
        self._reply = ""
        self._since = 0.0
        self._gap = False

    async def run(self) -> None:
        """Land samples. Raises `InputError` when the directory cannot be used."""
        try:
            self.config.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot make the directory for samples: {error.strerror}"
            raise InputError(reason, path=str(self.config.directory)) from error
        while True:
            try:
                connection = await connect(self.config.control)
                try:
                    await self._collect(connection)
                finally:
                    await connection.close()
            except (LiveError, nats.errors.Error, OSError) as error:
                _log.warning("samples wait: %s", error)
                await asyncio.sleep(_COLLECT_PAUSE_S)

    async def _collect(self, connection: Nats) -> None:
        consumer = f"collector_{token(self.config.name)}"
        await ensure_samples(connection)
        info = await api(connection, f"STREAM.INFO.{SAMPLES}", {})
        self._stream = re.sub(r"\D", "", str(info["created"]))
        self._position = await asyncio.to_thread(self._resume)
        self._taken, self._events = [], 0
        await ensure_consumer(connection, SAMPLES, consumer)
        arrived = asyncio.Event()
        asking = f"$JS.API.CONSUMER.INFO.{SAMPLES}.{consumer}"
        puller = Puller(connection, SAMPLES, consumer, arrived, asking)
        await puller.start()
        try:
            await self._again(connection, puller)
            while True:
                await self._wait(arrived)
                while puller.buffer and self._events < self.config.most_events:
                    self._take(puller.take())
                if not puller.buffer:
                    arrived.clear()
                if self._is_due():
                    await asyncio.to_thread(self._land)
                    await puller.acknowledge(self._reply)
                if self._gap or puller.strayed:
                    await self._again(connection, puller)
        finally:
            await puller.stop()

    async def _again(self, connection: Nats, puller: Puller) -> None:
        """Have what was not landed come again, from the first message that the stream still has."""
        info = await api(connection, f"STREAM.INFO.{SAMPLES}", {})
        gone = int(info["state"]["first_seq"]) - 1
        if not self._taken:
            self._position = max(self._position, gone)
        elif gone > self._taken[-1][0]:
            # what waits is landed first, and then the leap is seen again
            self._since = 0.0
        self._gap = False
        await puller.reset()

    async def _wait(self, arrived: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.linger_s / 2):
                await arrived.wait()

    def _take(self, message: PulledMessage) -> None:
        """Keep the events of the next message. Redelivered ones may come in any order: early ones are left
        to come again."""
        position = self._taken[-1][0] if self._taken else self._position
        if message.sequence != position + 1:
            self._gap = self._gap or message.sequence > position
            return
        batch: pa.RecordBatch | None = None
        try:
            batch = decode_events(message.payload, LINK_LIMITS)
        except RamifyError as error:
            self.bad += 1
            _log.warning("sample %d on %s is unreadable: %s", message.sequence, message.subject, error)
        if not self._taken:
            self._since = time.monotonic()
        self._taken.append((message.sequence, batch))
        if batch is not None:
            self._note(batch, message.subject)
        self._events += 0 if batch is None else batch.num_rows
        self._reply = message.reply

    def _note(self, batch: pa.RecordBatch, subject: str) -> None:
        """Where publishers are attached: the pipeline counts by broker, and events name only clients."""
        broker = name_of(subject.rpartition(".")[2])
        for name in batch.column("publisher").unique().to_pylist():
            if name is not None and self._publishers.get(name) != broker:
                self._publishers[name] = broker
                self._moved = True

    def _is_due(self) -> bool:
        late = time.monotonic() - self._since >= self.config.linger_s
        return bool(self._taken) and (late or self._events >= self.config.most_events)

    def _land(self) -> None:
        """Write what waits, in order. When this returns it is on disk."""
        if self._moved:
            replace_file(self.config.directory / PUBLISHERS, msgspec.json.encode(self._publishers))
            self._moved = False
        for first, last, table in _tables(self._taken):
            if table is not None:
                self._write(f"samples-{self._stream}-{first}-{last}.parquet", table)
                self.landed += table.num_rows
            self._position = last
        self._taken, self._events = [], 0
        self._trim()

    def _write(self, name: str, batch: pa.RecordBatch) -> None:
        path = self.config.directory / name
        write_parquet(path, pa.Table.from_batches([batch]))
        flush_directory(self.config.directory)

    def _resume(self) -> int:
        """How far the stream has been landed; what a crash left unfinished is removed."""
        self._publishers = read_publishers(self.config.directory)
        for part in self.config.directory.glob(".samples-*.part"):
            part.unlink(missing_ok=True)
        return max((int(found[3]) for found in self._files() if found[1] == self._stream), default=0)

    def _files(self) -> list[re.Match[str]]:
        names = (path.name for path in self.config.directory.iterdir())
        return [found for name in names if (found := _NAME.fullmatch(name))]

    def _trim(self) -> None:
        """Remove the oldest files while all together are too large."""
        paths = [self.config.directory / found[0] for found in self._files()]
        sized = sorted((path.stat().st_mtime_ns, path.name, path.stat().st_size) for path in paths)
        total = sum(size for *_, size in sized)
        for _, name, size in sized[:-1]:
            if total <= self.config.keep_bytes:
                return
            (self.config.directory / name).unlink(missing_ok=True)
            total -= size


def read_publishers(directory: Path) -> dict[str, str]:
    """Client -> the broker that its samples came from; empty when none has landed. Raises `InputError`."""
    file = directory / PUBLISHERS
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise InputError(
            f"is not a map from clients to brokers: {error}. Remove it", path=str(file)
        ) from None


def _tables(
    taken: Sequence[tuple[int, pa.RecordBatch | None]],
) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
    """Messages that follow each other with their events in one table: first, last, table."""
    joined = concat(batch for _, batch in taken if batch is not None)
    if len(joined) <= 1 or len(taken) == 1:
        yield taken[0][0], taken[-1][0], joined[0] if joined else None
        return
    middle = len(taken) // 2
    yield from _tables(taken[:middle])
    yield from _tables(taken[middle:])
