"""A simulated NATS server: the client protocol, JetStream's API, and what can happen to a server.

Owns sessions, subjects and the API. All accounts are one here, with the subjects that accounts of Ramify
rename. What is on its disk (`streams`) survives `crash`; `lose_power` takes what was not synced.
"""

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from simulation.clock import WALL_S, VirtualLoop
from simulation.network import Network, SimulatedTransport
from simulation.streams import (
    ApiError,
    Consumer,
    Message,
    PullRequest,
    Stream,
    config_of,
    headers_of,
    matches,
    with_headers,
)

__all__ = ["SimulatedServer"]

MAX_PAYLOAD = 8 << 20
_PAGE = 256
_LOST_TO_FULL_DISK = 0.7
"""Of what is written while a disk is full: what is small enough still finds a place."""
_SUBJECTS_PAGE = 100_000
_RENAMED = (
    ("ramify.info.", "$JS.API.CONSUMER.INFO.OUT."),
    ("ramify.last.", "$JS.API.DIRECT.GET.OUT.out.deliver."),
    ("ramify.store.info", "$JS.API.STREAM.INFO.KV_CTL"),
    ("ramify.store.get", "$JS.API.STREAM.MSG.GET.KV_CTL"),
)
_CONNECT = b"connect"


@dataclass(eq=False)
class _Session:
    """A connection, as its server sees it."""

    server: "SimulatedServer"
    process: str
    send: Callable[[bytes], None]
    number: int
    transport: SimulatedTransport
    unread: bytearray = field(default_factory=bytearray)
    # sid -> [pattern, how many are still to be sent or None]
    subscriptions: dict[bytes, list[Any]] = field(default_factory=dict)
    to_send: list[bytes] = field(default_factory=list)
    is_open: bool = True


def _nanos(at: float) -> int:
    """The one time that a server knows of a message, in every form that it is told in."""
    return int((WALL_S + at) * 1e9)


def _stamp(at: float) -> str:
    seconds, nanos = divmod(_nanos(at), 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09}Z"


class SimulatedServer:
    """See the module."""

    def __init__(
        self, name: str, port: int, network: Network, rng: random.Random, *, always_sync: bool = True
    ) -> None:
        self.name, self.port = name, port
        self.loop: VirtualLoop = network.loop
        self.rng = rng
        self.is_up = True
        self.always_sync = always_sync
        self.streams: dict[str, Stream] = {}
        self.crashes = 0
        # a full disk: nothing can be stored
        self.is_full = False
        self.writes = 0
        self._network = network
        self._sessions: list[_Session] = []
        self._number = 0
        self._paused = False
        self._backlog: list[Callable[[], None]] = []
        self._generation = 0
        network.servers[port] = self

    @property
    def url(self) -> str:
        # a name of this machine, but none that pings are spared for
        return f"nats://localhost:{self.port}"

    # -------------------------------------------------------------------------------- what can happen

    def crash(self) -> None:
        """As kill -9."""
        if not self.is_up:
            return
        self.is_up = False
        self.crashes += 1
        self._generation += 1
        self._paused = False
        self._backlog.clear()
        for session in list(self._sessions):
            session.transport.reset()
        self._sessions.clear()
        for stream in self.streams.values():
            stream.forget_batches()
            for name in [n for n, c in stream.consumers.items() if not c.is_kept]:
                del stream.consumers[name]
            for consumer in stream.consumers.values():
                consumer.restart(self.rng, self.loop.time())

    def lose_power(self, share: float = 1.0) -> dict[str, list[Message]]:
        """As a crash; of what was not synced some is gone. Returns what that was, by stream."""
        self.crash()
        lost: dict[str, list[Message]] = {}
        for name, stream in self.streams.items():
            if not self.always_sync and stream.last_seq > stream.synced:
                keep = stream.synced + int((stream.last_seq - stream.synced) * (1 - share))
                lost[name] = stream.roll_back(keep, self.loop.time())
        return {name: gone for name, gone in lost.items() if gone}

    def start(self) -> None:
        self.is_up = True

    def pause(self) -> None:
        """As SIGSTOP: connections stay, nothing is answered."""
        self._paused = True

    @property
    def is_paused(self) -> bool:
        return self._paused

    def resume(self) -> None:
        self._paused = False
        waiting, self._backlog = self._backlog, []
        for work in waiting:
            work()

    def inject(self, subject: str, head: bytes, data: bytes) -> None:
        """Somebody publishes raw bytes."""
        if self.is_up:
            self._do(lambda: (self._publish(subject, "", head, data), self._flush())[0])  # type: ignore[func-returns-value]

    # ------------------------------------------------------------------------------------- sessions

    def accept(self, transport: SimulatedTransport, send: Callable[[bytes], None]) -> _Session:
        self._number += 1
        session = _Session(self, transport.process, send, self._number, transport)
        self._sessions.append(session)
        info = {
            "server_id": self.name,
            "server_name": self.name,
            "version": "2.15.1",
            "proto": 1,
            "headers": True,
            "jetstream": True,
            "max_payload": MAX_PAYLOAD,
            "client_id": self._number,
        }
        self._do(lambda: session.send(b"INFO " + json.dumps(info).encode() + b"\r\n"))
        return session

    def disconnected(self, session: _Session) -> None:
        session.is_open = False
        if session in self._sessions:
            self._sessions.remove(session)
        session.subscriptions.clear()
        for stream in self.streams.values():
            for consumer in stream.consumers.values():
                for request in consumer.waiting:
                    # behind another account a server does not see that nobody listens any more
                    if not self._listens(request.reply) and stream.name == "OUT":
                        request.is_dead = True

    def receive(self, session: _Session, data: bytes) -> None:
        generation = self._generation
        self._do(lambda: self._read(session, data) if generation == self._generation else None)

    def _do(self, work: Callable[[], None]) -> None:
        if self._paused:
            self._backlog.append(work)
        else:
            work()

    def _later(self, delay: float, work: Callable[[], None]) -> None:
        generation = self._generation

        def fire() -> None:
            if generation == self._generation and self.is_up:
                self._do(lambda: (work(), self._flush())[0])  # type: ignore[func-returns-value]

        self.loop.later(delay, fire)

    def _read(self, session: _Session, data: bytes) -> None:
        buffer = session.unread
        buffer += data
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            line = bytes(buffer[at:end])
            op, _, rest = line.partition(b" ")
            if op in (b"PUB", b"HPUB"):
                args = rest.split()
                total = int(args[-1])
                if len(buffer) < end + 2 + total + 2:
                    break
                body = bytes(buffer[end + 2 : end + 2 + total])
                at = end + 4 + total
                length = int(args[-2]) if op == b"HPUB" else 0
                reply = args[1].decode() if len(args) == (4 if op == b"HPUB" else 3) else ""
                self._publish(args[0].decode(), reply, body[:length], body[length:])
                continue
            at = end + 2
            if op == b"SUB":
                args = rest.split()
                session.subscriptions[args[-1]] = [args[0].decode(), None]
            elif op == b"UNSUB":
                self._unsubscribe(session, rest.split())
            elif op == b"PING":
                session.to_send.append(b"PONG\r\n")
        del buffer[:at]
        self._flush()

    def _unsubscribe(self, session: _Session, args: list[bytes]) -> None:
        if len(args) == 1:
            session.subscriptions.pop(args[0], None)
        elif args[0] in session.subscriptions:
            session.subscriptions[args[0]][1] = int(args[1])

    def _flush(self) -> None:
        for session in self._sessions:
            if session.to_send:
                data = b"".join(session.to_send)
                session.to_send.clear()
                session.send(data)

    # -------------------------------------------------------------------------------------- subjects

    def _listens(self, subject: str) -> bool:
        return any(
            matches(entry[0], subject)
            for session in self._sessions
            for entry in session.subscriptions.values()
        )

    def _deliver(self, subject: str, reply: str, head: bytes, data: bytes) -> int:
        """To all who listen; how many did."""
        count = 0
        for session in self._sessions:
            for sid, entry in list(session.subscriptions.items()):
                if entry[0] != subject and not matches(entry[0], subject):
                    continue
                count += 1
                where = subject.encode() + b" " + sid + (b" " + reply.encode() if reply else b"")
                if head:
                    sizes = f" {len(head)} {len(head) + len(data)}\r\n".encode()
                    session.to_send.append(b"HMSG " + where + sizes + head + data + b"\r\n")
                else:
                    session.to_send.append(b"MSG " + where + f" {len(data)}\r\n".encode() + data + b"\r\n")
                if entry[1] is not None:
                    entry[1] -= 1
                    if entry[1] <= 0:
                        del session.subscriptions[sid]
        return count

    def _publish(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        for short, long in _RENAMED:
            if subject.startswith(short):
                subject = long + subject.removeprefix(short)
        if subject.startswith("$JS.ACK."):
            self._acknowledged(subject)
            return
        if subject.startswith("$JS.API."):
            self._answer(subject.removeprefix("$JS.API."), reply, data)
            return
        heard = self._deliver(subject, reply, head, data)
        for stream in self.streams.values():
            if stream.captures(subject):
                heard += 1
                self._store(stream, subject, reply, head, data)
        if not heard and reply:
            self._deliver(reply, "", with_headers("503"), b"")

    def _store(self, stream: Stream, subject: str, reply: str, head: bytes, data: bytes) -> None:
        now = self.loop.time()
        if self.is_full and self.rng.random() < _LOST_TO_FULL_DISK:
            return  # it is not answered
        before = stream.last_seq
        try:
            told = stream.store(subject, head, data, now)
        except ApiError as error:
            told = {"stream": stream.name, "seq": 0, "error": error.told()}
        self.writes += stream.last_seq - before
        if self.always_sync:
            stream.synced = stream.last_seq
        if reply and told is not None:
            self._deliver(reply, "", b"", json.dumps(told).encode() if told else b"")
        if stream.last_seq == before:
            return
        fresh = stream.messages.get(stream.last_seq)
        if fresh is not None and fresh.expires:
            self._later(fresh.expires - now, lambda: self._expire(stream))
        if fresh is not None:
            self._republish(stream, fresh)
        self._serve_all(stream)

    def _republish(self, stream: Stream, message: Message) -> None:
        """Tell of a stored message, without its data, where the stream says so."""
        said = stream.config.get("republish")
        if said is None:
            return
        to = message.subject.replace(said["src"].removesuffix(">"), said["dest"].removesuffix(">"), 1)
        head = with_headers(Nats_Stream=stream.name, Nats_Sequence=message.seq)
        self._deliver(to, "", head, b"")

    def _expire(self, stream: Stream) -> None:
        marks = stream.expire(self.loop.time())
        for mark in marks:
            if mark.expires:
                self._later(mark.expires - self.loop.time(), lambda: self._expire(stream))
        if marks:
            self._serve_all(stream)

    # ------------------------------------------------------------------------------------- consumers

    def serve(self, stream: Stream) -> None:
        """Hand out what waits."""
        self._serve_all(stream)
        self._flush()

    def _serve_all(self, stream: Stream) -> None:
        for consumer in list(stream.consumers.values()):
            if consumer.waiting or "deliver_subject" in consumer.config:
                self._serve(consumer)

    def _serve(self, consumer: Consumer) -> None:
        now = self.loop.time()
        pushed = consumer.config.get("deliver_subject")
        if pushed is not None:
            while (found := consumer.next(now)) is not None:
                self._hand_out(consumer, pushed, found[0], self._place_of(consumer, *found))
            return
        while consumer.waiting:
            request = consumer.waiting[0]
            if request.expires <= now:
                self._end(consumer, request, "408 Request Timeout")
                continue
            if not request.is_dead and not self._listens(request.reply):
                consumer.waiting.popleft()
                continue
            size = consumer.size_of_next()
            if size is not None and size > request.bytes_left:
                self._end(consumer, request, "409 Message Size Exceeds MaxBytes")
                continue
            found = consumer.next(now)
            if found is None:
                if request.no_wait:
                    self._end(consumer, request, "404 No Messages")
                    continue
                return
            request.left -= 1
            reply = self._place_of(consumer, *found)
            request.bytes_left -= (size or 0) + len(reply)
            if not request.is_dead:
                self._hand_out(consumer, request.reply, found[0], reply)
            if request.left <= 0 and request.is_bounded:
                self._end(consumer, request, "409 Batch Completed")
            elif request.left <= 0:
                consumer.waiting.remove(request)
            else:
                consumer.waiting.rotate(-1)  # requests are served in turn

    def _place_of(self, consumer: Consumer, message: Message, number: int, count: int) -> str:
        stamp = _nanos(message.time)
        place = f"{count}.{message.seq}.{number}.{stamp}.{consumer.unsent}"
        return f"$JS.ACK.{consumer.stream.name}.{consumer.name}.{place}"

    def _hand_out(self, consumer: Consumer, to: str, message: Message, reply: str) -> None:
        head, data = message.head, message.data
        if consumer.config.get("headers_only"):
            head = (head[:-2] if head else b"NATS/1.0\r\n") + f"Nats-Msg-Size: {len(data)}\r\n\r\n".encode()
            data = b""
        # a message of a stream keeps its subject; it goes to whoever listens at `to`
        self._deliver_as(to, message.subject, reply, head, data)

    def _deliver_as(self, to: str, subject: str, reply: str, head: bytes, data: bytes) -> None:
        for session in self._sessions:
            for sid, entry in list(session.subscriptions.items()):
                if entry[0] != to and not matches(entry[0], to):
                    continue
                where = subject.encode() + b" " + sid + b" " + reply.encode()
                if head:
                    sizes = f" {len(head)} {len(head) + len(data)}\r\n".encode()
                    session.to_send.append(b"HMSG " + where + sizes + head + data + b"\r\n")
                else:
                    session.to_send.append(b"MSG " + where + f" {len(data)}\r\n".encode() + data + b"\r\n")

    def _end(self, consumer: Consumer, request: PullRequest, status: str) -> None:
        if request in consumer.waiting:
            consumer.waiting.remove(request)
        left = max(0, request.bytes_left) if request.bytes_left < 1 << 60 else 0
        head = with_headers(status, Nats_Pending_Messages=request.left, Nats_Pending_Bytes=left)
        self._deliver(request.reply, "", head, b"")

    def _acknowledged(self, subject: str) -> None:
        parts = subject.split(".")
        stream = self.streams.get(parts[2])
        consumer = stream.consumers.get(parts[3]) if stream else None
        if consumer is not None:
            consumer.acknowledge(int(parts[5]), int(parts[6]), self.loop.time(), self.rng)
            self._serve(consumer)

    def _redeliver(self, consumer: Consumer) -> None:
        if self.streams.get(consumer.stream.name) is not consumer.stream:
            return
        if consumer.stream.consumers.get(consumer.name) is not consumer:
            return
        again = consumer.late(self.loop.time())
        self._serve(consumer)
        wait = consumer.config.get("ack_wait", 30 * 10**9) / 1e9
        self._later(
            max(0.5, (again or self.loop.time() + wait) - self.loop.time()),
            lambda: self._redeliver(consumer),
        )

    def _beat(self, consumer: Consumer, every: float) -> None:
        stream = consumer.stream
        if stream.consumers.get(consumer.name) is not consumer:
            return
        to = consumer.config["deliver_subject"]
        if not self._listens(to):
            del stream.consumers[consumer.name]
            return
        if self.loop.time() - consumer.last_sent >= 0.9 * every:
            head = with_headers(
                "100 Idle Heartbeat", Nats_Last_Consumer=consumer.number, Nats_Last_Stream=stream.last_seq
            )
            self._deliver(to, "", head, b"")
        self._later(every, lambda: self._beat(consumer, every))

    # ------------------------------------------------------------------------------------------ API

    def _answer(self, call: str, reply: str, body: bytes) -> None:
        parts = call.split(".")
        if parts[:2] == ["CONSUMER", "MSG"]:
            self._pull(parts[3], parts[4], reply, body)
            return
        if parts[:2] == ["DIRECT", "GET"]:
            self._direct(parts[2], ".".join(parts[3:]), reply)
            return
        try:
            told = self._call(parts, config_of(body))
        except ApiError as error:
            told = {"error": error.told()}
        self._deliver(
            reply, "", b"", json.dumps({"type": "io.nats.jetstream.api.v1.response", **told}).encode()
        )
        if parts[:2] == ["CONSUMER", "CREATE"] and "error" not in told:
            self._begin(self.streams[parts[2]].consumers[told["name"]])

    def _begin(self, consumer: Consumer) -> None:
        if getattr(consumer, "begun", 0) == self._generation + 1:
            return
        consumer.begun = self._generation + 1  # type: ignore[attr-defined]
        config = consumer.config
        if "deliver_subject" in config:
            self._serve(consumer)
            every = config.get("idle_heartbeat", 0) / 1e9
            if every:
                self._later(every, lambda: self._beat(consumer, every))
        elif consumer.acks:
            self._redeliver(consumer)

    def _stream(self, name: str) -> Stream:
        if name not in self.streams:
            raise ApiError(404, 10059, "stream not found")
        return self.streams[name]

    def _consumer(self, stream: str, name: str) -> Consumer:
        found = self._stream(stream).consumers.get(name)
        if found is None:
            raise ApiError(404, 10014, "consumer not found")
        return found

    def _call(self, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
        now = self.loop.time()
        match parts:
            case ["STREAM", "NAMES"]:
                wanted = body.get("subject")
                names = [
                    n for n, s in self.streams.items() if wanted is None or wanted in s.config["subjects"]
                ]
                return {"total": len(names), "offset": 0, "limit": 1024, "streams": names or None}
            case ["STREAM", "CREATE", name]:
                if self.is_full:
                    raise ApiError(500, 10047, "insufficient storage resources available")
                if name not in self.streams:
                    self.streams[name] = Stream(body)
                return self._stream_info(self.streams[name], {})
            case ["STREAM", "UPDATE", name]:
                self._stream(name).config.update(body)
                return self._stream_info(self.streams[name], {})
            case ["STREAM", "INFO", name]:
                return self._stream_info(self._stream(name), body)
            case ["STREAM", "PURGE", name]:
                stream = self._stream(name)
                count = stream.purge(body.get("filter"), body.get("seq"))
                self._serve_all(stream)
                return {"success": True, "purged": count}
            case ["STREAM", "MSG", "GET", name]:
                return self._get(self._stream(name), body)
            case ["CONSUMER", "CREATE", name, *rest]:
                config = body["config"]
                stream = self._stream(name)
                if not rest:
                    config = {**config, "name": f"c{self.rng.getrandbits(48):012x}"}
                label = rest[0] if rest else config["name"]
                config.setdefault("name", label)
                if label not in stream.consumers:
                    stream.consumers[label] = Consumer(stream, config, now)
                return stream.consumers[label].info(now, _stamp)
            case ["CONSUMER", "INFO", stream_name, name]:
                return self._consumer(stream_name, name).info(now, _stamp)
            case ["CONSUMER", "LIST", name]:
                consumers = list(self._stream(name).consumers.values())
                at = int(body.get("offset", 0))
                some = [c.info(now, _stamp) for c in consumers[at : at + _PAGE]]
                return {"total": len(consumers), "offset": at, "limit": _PAGE, "consumers": some or None}
            case ["CONSUMER", "RESET", stream_name, name]:
                consumer = self._consumer(stream_name, name)
                consumer.reset(body.get("seq"))
                self._serve(consumer)
                return {**consumer.info(now, _stamp), "reset_seq": consumer.floor.stream + 1}
            case ["CONSUMER", "DELETE", stream_name, name]:
                self._consumer(stream_name, name)
                del self.streams[stream_name].consumers[name]
                return {"success": True}
        raise AssertionError(f"the simulated server does not know the call {'.'.join(parts)}")

    def _stream_info(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        state = stream.state()
        told: dict[str, Any] = {
            "config": stream.config,
            "created": _stamp(0.0),
            "state": state,
            "did_create": True,
        }
        wanted = body.get("subjects_filter")
        if wanted:
            found = {
                s: len(seqs) for s, seqs in sorted(stream.by_subject.items()) if seqs and matches(wanted, s)
            }
            at = int(body.get("offset", 0))
            state["subjects"] = dict(list(found.items())[at : at + _SUBJECTS_PAGE])
            told |= {"total": len(found), "offset": at, "limit": _SUBJECTS_PAGE}
        return told

    def _get(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        if "last_by_subj" in body:
            message = stream.last_of(body["last_by_subj"])
        elif "next_by_subj" in body:
            message = stream.next_of(body["next_by_subj"], body.get("seq", 0))
        else:
            message = stream.messages.get(body.get("seq", 0))
        if message is None:
            raise ApiError(404, 10037, "no message found")
        told = {"subject": message.subject, "seq": message.seq, "time": _stamp(message.time)}
        if message.head:
            told["hdrs"] = base64.b64encode(message.head).decode()
        if message.data:
            told["data"] = base64.b64encode(message.data).decode()
        return {"message": told}

    def _direct(self, name: str, subject: str, reply: str) -> None:
        stream = self.streams.get(name)
        message = stream.last_of(subject) if stream else None
        if stream is None:
            self._deliver(reply, "", with_headers("503"), b"")
            return
        if message is None:
            self._deliver(reply, "", with_headers("404 Message Not Found"), b"")
            return
        head = with_headers(
            Nats_Stream=name,
            Nats_Subject=message.subject,
            Nats_Sequence=message.seq,
            Nats_Time_Stamp=_stamp(message.time),
            **{k.replace("-", "_"): v for k, v in headers_of(message.head).items()},
        )
        self._deliver(reply, "", head, message.data)

    def _pull(self, stream_name: str, name: str, reply: str, body: bytes) -> None:
        stream = self.streams.get(stream_name)
        consumer = stream.consumers.get(name) if stream else None
        if consumer is None:
            self._deliver(reply, "", with_headers("503"), b"")
            return
        asked = config_of(body)
        now = self.loop.time()
        expires = asked.get("expires", 0) / 1e9
        request = PullRequest(
            reply,
            int(asked.get("batch", 1)),
            int(asked.get("max_bytes", 0)) or 1 << 62,
            now + (expires or 3600.0),
            bool(asked.get("no_wait")),
            bool(asked.get("max_bytes")),
        )
        most = consumer.config.get("max_waiting", 512)
        alive = [each for each in consumer.waiting if each.expires > now]
        consumer.waiting.clear()
        consumer.waiting.extend(alive)
        if len(alive) >= most:
            self._deliver(reply, "", with_headers("409 Exceeded MaxWaiting"), b"")
            return
        consumer.waiting.append(request)
        self._serve(consumer)
        if request in consumer.waiting:
            self._later(request.expires - now, lambda: self._timed_out(consumer, request))

    def _timed_out(self, consumer: Consumer, request: PullRequest) -> None:
        if request in consumer.waiting:
            self._end(consumer, request, "408 Request Timeout")
