"""A client with a key and bad intentions: what it writes to its socket, by kind, from a seed.

Owns the bytes. `attack` sends one kind over connections of its own. Whoever calls it looks at how the
others fare meanwhile. What once did harm is a kind of its own, so that it stays tried: header blocks that
are none, a message of 10,000 non-events, a publish of megabytes, events with hundreds of attributes,
filters that take much work.
"""

import asyncio
import base64
import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator

import nkeys  # type: ignore[import-untyped]
import pyarrow as pa

from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE, EVENT_TYPE
from ramify.overlay.live.wire.security import KeyPair
from raw_messages import BAD_BLOCKS

__all__ = ["AS_A_CLIENT", "ON_CONTROL", "attack"]

_PATIENCE_S = 5.0
_EVENT = {"specversion": "1.0", "id": "m", "source": "s", "type": "t"}


def _pub(subject: str, body: bytes, reply: str = "") -> bytes:
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(body)}\r\n".encode() + body + b"\r\n"


def _hpub(subject: str, block: bytes, body: bytes, reply: str = "") -> bytes:
    sizes = f"{len(block)} {len(block) + len(body)}"
    return f"HPUB {subject} {reply + ' ' if reply else ''}{sizes}\r\n".encode() + block + body + b"\r\n"


def _typed(token: str, kind: str, body: bytes) -> bytes:
    return _hpub(f"ramify.publish.{token}", f"NATS/1.0\r\nContent-Type: {kind}\r\n\r\n".encode(), body)


def _noise(rng: random.Random, most: int = 300) -> bytes:
    return rng.randbytes(rng.randint(1, most))


def _garbage(rng: random.Random, token: str) -> Iterator[bytes]:
    verbs = [
        b"PUB",
        b"HPUB",
        b"SUB",
        b"UNSUB",
        b"CONNECT",
        b"PING",
        b"INFO",
        b"+OK",
        b"-ERR",
        b"MSG",
        b"\0",
    ]
    for _ in range(6):
        yield _noise(rng, 3_000) + rng.choice([b"\r\n", b"\n", b""])
        yield rng.choice(verbs) + b" " + _noise(rng) + b"\r\n"
    yield b"A" * 100_000 + b"\r\n"
    yield b'CONNECT {"verbose": ' + b"[" * 20_000 + b"\r\n"


def _halves(rng: random.Random, token: str) -> Iterator[bytes]:
    own = f"ramify.publish.{token}".encode()
    yield b"PUB " + own + b" 1000000\r\n" + _noise(rng)
    yield b"HPUB " + own + b" 20 1000\r\nNATS/1.0\r\nA: "
    yield b"PUB " + own


def _lengths(rng: random.Random, token: str) -> Iterator[bytes]:
    own = f"ramify.publish.{token}".encode()
    for sizes in (
        *(b"10 5", b"-1 5", b"5 -1", b"0 0", b"99999999999999999999 1", b"1 99999999999999999999", b"a b"),
        *(b"12 12 12", b"", b"4294967296 4294967297", b"8388609 8388609"),
    ):
        yield b"HPUB " + own + b" " + sizes + b"\r\n" + _noise(rng, 30) + b"\r\n"


def _headers(rng: random.Random, token: str) -> Iterator[bytes]:
    flood = b"NATS/1.0\r\n" + b"".join(b"H%d: v\r\n" % i for i in range(5_000)) + b"\r\n"
    same = b"NATS/1.0\r\n" + b"A: b\r\n" * 5_000 + b"\r\n"
    huge = b"NATS/1.0\r\nA: " + b"x" * 1_000_000 + b"\r\n\r\n"
    for block in (*BAD_BLOCKS, flood, same, huge):
        for subject in ("publish", "control"):
            yield _hpub(f"ramify.{subject}.{token}", block, b"{}", f"_I.client_{token}.h")
    # those that mean something to streams
    for name in ("Nats-Rollup", "Nats-Expected-Last-Sequence", "Nats-Batch-Id", "Nats-TTL", "Nats-Msg-Id"):
        for value in ("all", "1", "-1", "\xff", "9" * 40):
            block = f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()
            yield _hpub(f"ramify.publish.{token}", block, b"{}", f"_I.client_{token}.h")


def _bodies(rng: random.Random, token: str) -> Iterator[bytes]:
    api = "$JS.API.CONSUMER"
    bodies = [
        *(b"", b"{", b"null", b"[]", b'"', b"{}" * 1_000, b"[" * 50_000, b'{"batch": -1}', b"\xff\xfe"),
        b'{"batch": 999999999999, "expires": 9223372036854775807, "max_bytes": -5, "idle_heartbeat": 1}',
        b'{"seq": 18446744073709551615}',
        *(b'{"op": "%s", "id": "x"}' % op for op in (b"subscribe", b"nonsense", b"accept", b"where")),
        b'{"op": "subscribe", "id": "x", "filter": {"pattern": ' + b"[" * 3_000 + b"]" * 3_000 + b"}}",
        b'{"op": "subscribe", "id": "x", "filter": {"sql": "x LIKE \'' + b"%a" * 2_000 + b"'\"}}",
        _noise(rng, 5_000),
    ]
    for subject in (
        *(f"{api}.MSG.NEXT.OUT.client_{token}", f"{api}.RESET.OUT.client_{token}"),
        *(f"ramify.info.client_{token}", f"ramify.last.{token}", f"ramify.control.{token}"),
        *(f"$JS.ACK.OUT.client_{token}.1.1.1.1.0", f"$JS.ACK.OUT.client_{token}.x.y"),
    ):
        for body in bodies:
            yield _pub(subject, body, f"_I.client_{token}.b")


def _events(rng: random.Random, token: str) -> Iterator[bytes]:
    for body in (
        *(b"", b"[", b"null", b"{}", b"[[[]]]", b"\xff\xfe\x00", b"{" * 20_000, b'{"id": "\\ud800"}' * 2),
        json.dumps({**_EVENT, "id": "x" * 100_000}).encode(),
        json.dumps({**_EVENT, "n": 10**400}).encode(),
        json.dumps([{**_EVENT, "id": f"m{i}"} for i in range(50)] + [1, None, "x"]).encode(),
    ):
        for kind in (EVENT_TYPE, BATCH_TYPE, ARROW_TYPE, "application/x-unknown", ""):
            yield _typed(token, kind, body)
    frame = _frame()
    for _ in range(20):
        spoilt = bytearray(frame)
        for _ in range(rng.randint(1, 8)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        yield _typed(token, ARROW_TYPE, bytes(spoilt[: rng.randint(1, len(spoilt))]))
        yield _typed(token, ARROW_TYPE, bytes(spoilt))


def _frame() -> bytes:
    """A table that is one, of columns that no event has."""
    table = pa.record_batch({"id": ["a", "b"], "x": [[1, 2], None], "time": ["never", None]})
    with contextlib.suppress(Exception):
        return encode_events(table)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return sink.getvalue()


def _no_events(rng: random.Random, token: str) -> Iterator[bytes]:
    yield _typed(token, BATCH_TYPE, b"[" + b",".join([b"1"] * 10_000) + b"]")


def _wide(rng: random.Random, token: str) -> Iterator[bytes]:
    for i in range(30):
        wide = {f"a{i}_{k}": k for k in range(900)}
        yield _typed(token, EVENT_TYPE, json.dumps({**_EVENT, "id": f"w{rng.random()}", **wide}).encode())


def _large(rng: random.Random, token: str) -> Iterator[bytes]:
    body = {**_EVENT, "id": f"l{rng.random()}", "data": "x" * 200_000}
    yield _typed(
        token, BATCH_TYPE, json.dumps([{**body, "id": f"l{rng.random()}"} for _ in range(30)]).encode()
    )


def _filters(rng: random.Random, token: str) -> Iterator[bytes]:
    for i in range(30):
        hard = " AND ".join(f"(x<{k} OR y>{k + i})" for k in range(90))
        asked = {"op": "subscribe", "id": f"h{i}", "filter": {"sql": hard}, "wait_s": 0}
        yield _pub(f"ramify.control.{token}", json.dumps(asked).encode(), f"_I.client_{token}.f")


def _requests(rng: random.Random, token: str) -> Iterator[bytes]:
    for _ in range(3_000):
        yield _pub(f"ramify.control.{token}", b'{"op": "list"}', f"_I.client_{token}.r")


def _replies(rng: random.Random, token: str) -> Iterator[bytes]:
    for reply in (
        *(
            "ramify.publish.alice",
            f"ramify.publish.{token}",
            "ramify.control.bob",
            "$JS.API.STREAM.PURGE.OUT",
        ),
        *(
            "_I.client_bob.x",
            "out.log",
            "out.deliver.bob",
            "$SYS.x",
            "a" * 4_000,
            "a.*.b",
            "a.>",
            "..",
            "*",
        ),
        *("$JS.ACK.OUT.client_bob.1.1.1.1.0", "_R_.x", "ramify.info.client_bob", "\xff\xfe"),
    ):
        for subject in (f"ramify.publish.{token}", f"ramify.control.{token}", f"ramify.last.{token}"):
            yield _pub(subject, b"{}", reply)


def _subscriptions(rng: random.Random, token: str) -> Iterator[bytes]:
    for i in range(6_000):
        yield f"SUB _I.client_{token}.{i}{rng.choice(['', '.>', '.*', '.a.b.c'])} {i}\r\n".encode()
    for i in range(50):
        yield b"SUB " + _noise(rng, 50).replace(b"\r", b"").replace(b"\n", b"") + b" x%d\r\n" % i


def _slow(rng: random.Random, token: str) -> Iterator[bytes]:
    yield f"SUB _I.client_{token}.> 1\r\n".encode()
    pull = json.dumps({"batch": 1_000, "expires": 10**10}).encode()
    for i in range(4_000):
        yield _pub(f"$JS.API.CONSUMER.MSG.NEXT.OUT.client_{token}", pull, f"_I.client_{token}.{i}")
        yield _pub(f"ramify.last.{token}", b"", f"_I.client_{token}.{i}")


def _store(rng: random.Random, token: str) -> Iterator[bytes]:
    """What one who may only look can send to the control server."""
    bodies = [
        *(b"", b"{", b"null", b"[" * 50_000, _noise(rng, 3_000), b'{"seq": -1}', b'{"last_by_subj": ">"}'),
        b'{"seq": 1, "next_by_subj": "$KV.CTL.>"}',
        b'{"subjects_filter": ">", "offset": 18446744073709551615}',
    ]
    for _ in range(100):
        for subject in ("ramify.store.info", "ramify.store.get"):
            for body in bodies:
                yield _pub(subject, body, "_I.control_viewer.x")
    for subject in ("$KV.CTL.state", "ramify.coordinate.v0", "$JS.API.STREAM.DELETE.KV_CTL", "samples.v0"):
        for block in BAD_BLOCKS:
            yield _hpub(subject, block, b"{}", "_I.control_viewer.x")
    for i in range(3_000):
        yield f"SUB ramify.changed.> {i}\r\n".encode()


_Kind = Callable[[random.Random, str], Iterator[bytes]]

AS_A_CLIENT: dict[str, _Kind] = {
    "garbage": _garbage,
    "half frames": _halves,
    "lengths that are none": _lengths,
    "headers": _headers,
    "bodies of calls": _bodies,
    "bad events": _events,
    "10,000 non-events": _no_events,
    "wide events": _wide,
    "megabytes in one message": _large,
    "hard filters": _filters,
    "many requests": _requests,
    "odd replies": _replies,
    "many subscriptions": _subscriptions,
    "a slow reader": _slow,
}
"""What a client of a broker can send to its server."""

ON_CONTROL: dict[str, _Kind] = {"garbage": _garbage, "half frames": _halves, "calls of the store": _store}
"""What a viewer can send to the control server."""


class _Socket:
    """A connection of one who has a key; it is opened again when the server hangs up."""

    def __init__(self, host: str, port: int, pair: KeyPair) -> None:
        self._host, self._port, self._pair = host, port, pair
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._reader, self._writer = reader, writer
        nonce = json.loads((await reader.readline()).removeprefix(b"INFO "))["nonce"]
        signed = nkeys.from_seed(bytearray(self._pair.seed, "ascii")).sign(nonce.encode())
        said = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "raw",
            "version": "0",
            "protocol": 1,
            "nkey": self._pair.public,
            "sig": base64.urlsafe_b64encode(signed).decode().rstrip("="),
        }
        writer.write(b"CONNECT " + json.dumps(said).encode() + b"\r\nPING\r\n")
        while not (line := await reader.readline()).startswith(b"PONG"):
            if line.startswith(b"-ERR") or not line:
                raise ConnectionError(line.decode(errors="replace"))

    async def send(self, data: bytes) -> bool:
        """Write it; False when the server has hung up."""
        if self._writer is None:
            await self.open()
        assert self._writer is not None
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            self.close()
            return False
        return not self._reader.at_eof()  # type: ignore[union-attr]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def swallow(self) -> None:
        """Read whatever comes, until the server hangs up."""
        with contextlib.suppress(OSError):
            while self._reader is not None and await self._reader.read(1 << 16):
                pass


async def attack(url: str, pair: KeyPair, token: str, kind: _Kind, rng: random.Random) -> int:
    """Send all of one kind; how many pieces were sent. Connections are opened again when they are cut.

    A slow reader reads nothing; its connection stays open until all is sent or the server gives up on it.
    """
    host, _, port = url.rpartition("/")[2].rpartition(":")
    sent = 0
    socket = _Socket(host, int(port), pair)
    reading: asyncio.Task[None] | None = None
    try:
        for piece in kind(rng, token):
            if reading is None or reading.done():
                socket.close()
                await socket.open()
                if kind is not _slow:
                    reading = asyncio.create_task(socket.swallow())
                else:
                    reading = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    if not await socket.send(piece):
                        reading.cancel()
                        reading = None
            except TimeoutError:
                break  # the server takes no more from it
            sent += 1
            if kind in (_garbage, _halves, _lengths):
                # each begins anew: after an error the server hangs up
                await asyncio.sleep(0.01)
                reading and reading.cancel()
                reading = None
    finally:
        if reading is not None:
            reading.cancel()
        socket.close()
    return sent
