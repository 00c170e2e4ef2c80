"""JetStream's streams and consumers, as far as this project uses them: what a server keeps on its disk.

Owns numbers, limits, ids, batches, what a consumer has handed out. Whoever calls it says what time it is.
`test_simulated_server` holds it against a real server.
"""

import bisect
import copy
import functools
import json
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ApiError",
    "Consumer",
    "Message",
    "PullRequest",
    "Stream",
    "headers_of",
    "matches",
    "with_headers",
]

_ACK_WAIT_S = 30.0
_BATCH_LIMIT_S = 10.0
_MOST_BATCH = 1_000


class ApiError(Exception):
    """What the API answers instead."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code, self.err_code, self.description = code, err_code, description

    def told(self) -> dict[str, Any]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


@dataclass(slots=True)
class Message:
    """A stored message; `head` is its block of headers."""

    seq: int
    subject: str
    head: bytes
    data: bytes
    time: float
    expires: float = 0.0

    @property
    def size(self) -> int:
        # a record of the file store: sequence, time, lengths and checksum beside the rest
        return len(self.subject) + len(self.data) + (len(self.head) + 34 if self.head else 30)


def headers_of(head: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            found.setdefault(name.decode("latin-1"), value.strip().decode("latin-1"))
    return found


def with_headers(status: str = "", **headers: object) -> bytes:
    lines = [f"NATS/1.0{' ' + status if status else ''}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@functools.lru_cache(maxsize=50_000)
def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern with `*` and `>`."""
    if pattern == subject:
        return True
    wanted, parts = pattern.split("."), subject.split(".")
    for i, each in enumerate(wanted):
        if each == ">":
            return len(parts) > i
        if i >= len(parts) or (each != "*" and each != parts[i]):
            return False
    return len(wanted) == len(parts)


@dataclass(slots=True)
class _Batch:
    messages: list[tuple[str, bytes, bytes]]
    begun: float


class Stream:
    """See the module."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)
        self.name: str = config["name"]
        self.messages: dict[int, Message] = {}
        self.seqs: list[int] = []
        self.by_subject: dict[str, list[int]] = {}
        self.last_seq = 0
        self.bytes = 0
        # id -> (sequence, time)
        self.ids: dict[str, tuple[int, float]] = {}
        self.consumers: dict[str, Consumer] = {}
        # what the disk surely has: a server that loses power comes back with at least that
        self.synced = 0
        self._batches: dict[str, _Batch] = {}

    # ------------------------------------------------------------------------------------- what is

    @property
    def first_seq(self) -> int:
        return self.seqs[0] if self.seqs else self.last_seq + 1

    def captures(self, subject: str) -> bool:
        return any(matches(each, subject) for each in self.config["subjects"])

    def last_of(self, subject: str) -> Message | None:
        if "*" in subject or ">" in subject:
            found = [seqs[-1] for each, seqs in self.by_subject.items() if seqs and matches(subject, each)]
            return self.messages[max(found)] if found else None
        seqs = self.by_subject.get(subject)
        return self.messages[seqs[-1]] if seqs else None

    def next_of(self, subject: str, seq: int) -> Message | None:
        """The first message of a subject from a number on."""
        for each in self.seqs[bisect.bisect_left(self.seqs, seq) :]:
            if matches(subject, self.messages[each].subject):
                return self.messages[each]
        return None

    def state(self) -> dict[str, Any]:
        subjects = sum(bool(seqs) for seqs in self.by_subject.values())
        return {
            "messages": len(self.seqs),
            "bytes": self.bytes,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "num_subjects": subjects,
            "consumer_count": len(self.consumers),
        }

    # --------------------------------------------------------------------------------------- writing

    def store(self, subject: str, head: bytes, data: bytes, now: float) -> dict[str, Any] | None:
        """What is answered to a publish; None when a batch goes on. Raises `ApiError`."""
        headers = headers_of(head) if head else {}
        if "Nats-Batch-Id" in headers:
            return self._batched(subject, head, data, headers, now)
        seq, is_double = self._one(subject, head, data, headers, now)
        return {"stream": self.name, "seq": seq, **({"duplicate": True} if is_double else {})}

    def _one(
        self, subject: str, head: bytes, data: bytes, headers: Mapping[str, str], now: float
    ) -> tuple[int, bool]:
        name = headers.get("Nats-Msg-Id")
        window = self.config.get("duplicate_window", 120 * 10**9) / 1e9
        if name:
            known = self.ids.get(name)
            if known is not None and now - known[1] < window:
                return known[0], True
        self._expect(subject, headers)
        message = Message(self.last_seq + 1, subject, head, data, now)
        ttl = headers.get("Nats-TTL")
        if ttl and self.config.get("allow_msg_ttl"):
            message.expires = now + float(ttl.removesuffix("s"))
        self._room([message])
        self._add(message)
        if name:
            self.ids[name] = (message.seq, now)
            if len(self.ids) > 4_000:
                self.ids = {k: v for k, v in self.ids.items() if now - v[1] < window}
        return message.seq, False

    def _expect(self, subject: str, headers: Mapping[str, str]) -> None:
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != self.last_seq:
            raise ApiError(400, 10071, f"wrong last sequence: {self.last_seq}")
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            last = self.last_of(subject)
            if int(expected) != (last.seq if last else 0):
                raise ApiError(400, 10071, f"wrong last sequence: {last.seq if last else 0}")

    def _room(self, messages: list[Message]) -> None:
        most = self.config.get("max_bytes", -1)
        if most is None or most <= 0:
            return
        size = sum(message.size for message in messages)
        if self.config.get("discard") == "new":
            if self.bytes + size > most:
                raise ApiError(503, 10077, "maximum bytes exceeded")
            return
        while self.seqs and self.bytes + size > most:
            self.remove(self.seqs[0])

    def _add(self, message: Message) -> None:
        self.last_seq = message.seq
        self.messages[message.seq] = message
        self.seqs.append(message.seq)
        of = self.by_subject.setdefault(message.subject, [])
        of.append(message.seq)
        self.bytes += message.size
        most = self.config.get("max_msgs_per_subject", -1)
        while most and 0 < most < len(of):
            self.remove(of[0])

    def _batched(
        self, subject: str, head: bytes, data: bytes, headers: Mapping[str, str], now: float
    ) -> dict[str, Any] | None:
        name, number = headers["Nats-Batch-Id"], int(headers["Nats-Batch-Sequence"])
        if not self.config.get("allow_atomic"):
            raise ApiError(400, 10174, "atomic publish is disabled")
        batch = self._batches.get(name)
        if number == 1:
            batch = self._batches[name] = _Batch([], now)
        elif batch is None or number != len(batch.messages) + 1 or now - batch.begun > _BATCH_LIMIT_S:
            self._batches.pop(name, None)
            if "Nats-Batch-Commit" in headers:
                raise ApiError(400, 10176, "atomic publish batch is incomplete")
            return None
        batch.messages.append((subject, head, data))
        if len(batch.messages) > _MOST_BATCH:
            del self._batches[name]
            raise ApiError(400, 10199, "atomic publish batch is too large: 1000")
        if "Nats-Batch-Commit" not in headers:
            return {}
        del self._batches[name]
        made = [Message(self.last_seq + place, *each, now) for place, each in enumerate(batch.messages, 1)]
        for each in made:
            self._expect(each.subject, headers_of(each.head))
        self._room(made)
        for each in made:
            self._add(each)
        return {"stream": self.name, "seq": self.last_seq, "batch": name, "count": len(made)}

    def forget_batches(self) -> None:
        self._batches.clear()

    def remove(self, seq: int) -> None:
        message = self.messages.pop(seq)
        self.seqs.pop(bisect.bisect_left(self.seqs, seq))
        of = self.by_subject[message.subject]
        of.pop(bisect.bisect_left(of, seq))
        self.bytes -= message.size

    def purge(self, subject: str | None, below: int | None) -> int:
        """Remove what has a subject, and is below a sequence; returns how many."""
        gone = [
            seq
            for seq, message in self.messages.items()
            if (below is None or seq < below) and (subject is None or matches(subject, message.subject))
        ]
        for seq in gone:
            message = self.messages.pop(seq)
            self.bytes -= message.size
        lost = set(gone)
        self.seqs = [seq for seq in self.seqs if seq not in lost]
        for each, seqs in self.by_subject.items():
            if seqs and (subject is None or matches(subject, each)):
                self.by_subject[each] = [seq for seq in seqs if seq not in lost]
        if subject is None and below is not None and below > self.last_seq:
            self.last_seq = max(self.last_seq, below - 1)
        for consumer in self.consumers.values():
            consumer.purged(lost, whole=subject is None)
        return len(gone)

    def expire(self, now: float) -> list[Message]:
        """Remove what has outlived its time; returns the marks that were put in its place."""
        marks = []
        for message in [m for m in self.messages.values() if 0 < m.expires <= now]:
            last = self.last_of(message.subject)
            self.remove(message.seq)
            ttl = self.config.get("subject_delete_marker_ttl")
            if ttl and last is message:
                head = with_headers(Nats_Marker_Reason="MaxAge", Nats_TTL=f"{int(ttl / 1e9)}s")
                mark = Message(self.last_seq + 1, message.subject, head, b"", now, now + ttl / 1e9)
                if "Nats-Marker-Reason" not in headers_of(message.head):
                    self._add(mark)
                    marks.append(mark)
        return marks

    # ------------------------------------------------------------------------------------ bad storage

    def roll_back(self, last: int, now: float) -> list[Message]:
        """Forget what was written after a sequence, as after a loss of power; returns it."""
        gone = [self.messages[seq] for seq in self.seqs if seq > last]
        for message in gone:
            self.remove(message.seq)
        self.last_seq = min(self.last_seq, max(last, 0))
        self.ids = {}
        for message in self.messages.values():
            name = headers_of(message.head).get("Nats-Msg-Id") if message.head else None
            if name:
                self.ids[name] = (message.seq, message.time)
        for consumer in self.consumers.values():
            consumer.roll_back(self.last_seq)
        return gone


@dataclass(slots=True)
class PullRequest:
    """A request for messages that waits."""

    reply: str
    left: int
    bytes_left: int
    expires: float
    no_wait: bool
    is_bounded: bool
    is_dead: bool = False


@dataclass(slots=True)
class _Floor:
    stream: int
    consumer: int


class Consumer:
    """What a reader of a stream was given, and has acknowledged."""

    def __init__(self, stream: Stream, config: Mapping[str, Any], created: float) -> None:
        self.stream = stream
        self.config = dict(config)
        self.name: str = config.get("durable_name") or config["name"]
        self.created = created
        filters = (
            config.get("filter_subjects") or [config["filter_subject"]]
            if (config.get("filter_subjects") or config.get("filter_subject"))
            else []
        )
        self.filters: tuple[str, ...] = tuple(filters)
        # the place in the stream behind which it goes on, and the number that was given last
        self.at = 0
        self.number = 0
        self.floor = _Floor(0, 0)
        # sequence -> (number, time, deliveries), in the order of sequences
        self.pending: dict[int, tuple[int, float, int]] = {}
        self.again: deque[int] = deque()
        self.counts: dict[int, int] = {}
        self.waiting: deque[PullRequest] = deque()
        self.last_ack = self.last_sent = 0.0
        self._snapshots: deque[tuple[int, int]] = deque(maxlen=8)
        # of a pushed consumer with deliver_policy last_per_subject: what it begins with
        self.first: deque[int] = deque()
        policy = config.get("deliver_policy", "all")
        if policy == "last_per_subject":
            self.first = deque(
                sorted(seqs[-1] for s, seqs in stream.by_subject.items() if seqs and self.takes(s))
            )
            self.at = stream.last_seq
        elif policy == "by_start_sequence":
            self.at = max(0, int(config.get("opt_start_seq", 1)) - 1)
        elif policy == "new":
            self.at = stream.last_seq
        self.acks: bool = config.get("ack_policy", "none") != "none"
        self.floor = _Floor(self.at, 0) if policy != "all" else _Floor(0, 0)

    @property
    def is_kept(self) -> bool:
        return "durable_name" in self.config

    def takes(self, subject: str) -> bool:
        return not self.filters or any(matches(each, subject) for each in self.filters)

    def _after(self, at: int) -> int | None:
        """The next sequence behind a place that it takes."""
        found: int | None = None
        for seqs in self._listed():
            place = bisect.bisect_right(seqs, at)
            if place < len(seqs) and (found is None or seqs[place] < found):
                found = seqs[place]
        return found

    def _listed(self) -> Iterator[list[int]]:
        if not self.filters:
            yield self.stream.seqs
            return
        for each in self.filters:
            if "*" in each or ">" in each:
                yield from (s for name, s in self.stream.by_subject.items() if s and matches(each, name))
            elif each in self.stream.by_subject:
                yield self.stream.by_subject[each]

    @property
    def unsent(self) -> int:
        """How many messages it was not given yet."""
        return len(self.first) + sum(len(s) - bisect.bisect_right(s, self.at) for s in self._listed())

    def size_of_next(self) -> int | None:
        """The bytes of the message that comes next, None without one."""
        seq: int | None = next((each for each in self.again if each in self.pending), None)
        if seq is None:
            seq = self._after(self.at)
        message = None if seq is None else self.stream.messages.get(seq)
        return None if message is None else len(message.data) + len(message.head) + len(message.subject)

    def next(self, now: float) -> tuple[Message, int, int] | None:
        """The next message with its number and the count of its deliveries; None when nothing waits."""
        while self.again:
            seq = self.again.popleft()
            message = self.stream.messages.get(seq)
            if seq not in self.pending or message is None:
                continue
            count = self.pending[seq][2] + 1
            self.number += 1
            self.pending[seq] = (self.number, now, count)
            self.last_sent = now
            return message, self.number, count
        if self.acks and len(self.pending) >= self.config.get("max_ack_pending", 1_000) > 0:
            return None
        seq: int | None
        while self.first:
            seq = self.first.popleft()
            if seq in self.stream.messages:
                break
        else:
            seq = self._after(self.at)
            if seq is None:
                return None
            self.at = seq
        self.number += 1
        count = self.counts.get(seq, 0) + 1
        if self.acks:
            self.pending[seq] = (self.number, now, count)
        else:
            self.floor = _Floor(max(seq, self.floor.stream), self.number)
        self.last_sent = now
        return self.stream.messages[seq], self.number, count

    def acknowledge(self, seq: int, number: int, now: float, rng: random.Random) -> None:
        """With all before it."""
        if seq <= self.floor.stream or seq > max(self.at, max(self.pending, default=0)):
            return
        self.last_ack = now
        self._snapshots.append((self.floor.stream, self.floor.consumer))
        self.floor = _Floor(seq, max(number, self.floor.consumer))
        for each in [each for each in self.pending if each <= seq]:
            del self.pending[each]

    def late(self, now: float) -> float | None:
        """Have what was not acknowledged for too long given again; when to look next."""
        wait = self.config.get("ack_wait", _ACK_WAIT_S * 10**9) / 1e9
        due = [
            seq for seq, (_, at, _) in self.pending.items() if now - at >= wait and seq not in self.again
        ]
        self.again.extend(sorted(due))
        left = [at for seq, (_, at, _) in self.pending.items() if seq not in self.again]
        return min(left) + wait if left else None

    def reset(self, seq: int | None = None) -> None:
        """Go on behind what was acknowledged, or with a sequence."""
        if seq is not None:
            self.floor = _Floor(seq - 1, 0)
        self.pending.clear()
        self.again.clear()
        self.counts.clear()
        self.at = self.floor.stream
        self.number = self.floor.consumer = 0

    def purged(self, gone: set[int], whole: bool) -> None:
        for seq in [seq for seq in self.pending if seq in gone]:
            del self.pending[seq]
        if not self.pending and (whole or gone):
            following = self._after(self.at)
            self.at = max(self.at, (following or self.stream.last_seq + 1) - 1)
            self.floor = _Floor(self.at, self.number)

    def roll_back(self, last: int) -> None:
        self.at = min(self.at, last)
        self.floor = _Floor(min(self.floor.stream, last), self.floor.consumer)
        self.pending = {seq: each for seq, each in self.pending.items() if seq <= last}

    def restart(self, rng: random.Random, now: float) -> None:
        """A server has died: requests are gone, and what was acknowledged last may be."""
        self.waiting.clear()
        self.again.clear()
        if self._snapshots and rng.random() < 0.5:
            stream, number = rng.choice(list(self._snapshots))
            if stream < self.floor.stream:
                self.floor = _Floor(stream, number)
                lost = [seq for seqs in self._listed() for seq in seqs if stream < seq <= self.at]
                for seq in sorted(lost):
                    self.pending.setdefault(seq, (0, now, 1))
        self._snapshots.clear()
        if rng.random() < 0.5:
            # what was handed out comes again, perhaps after what was not
            self.again.extend(sorted(self.pending))
        else:
            for seq in self.pending:
                self.counts[seq] = 1
            self.pending.clear()
            self.at = self.floor.stream

    def info(self, now: float, stamp: Any) -> dict[str, Any]:
        delivered = max([self.at, *self.pending])
        told: dict[str, Any] = {
            "stream_name": self.stream.name,
            "name": self.name,
            "config": copy.copy(self.config),
            "created": stamp(self.created),
            "delivered": {"consumer_seq": self.number, "stream_seq": delivered},
            "ack_floor": {"consumer_seq": self.floor.consumer, "stream_seq": self.floor.stream},
            "num_ack_pending": len(self.pending),
            "num_redelivered": sum(count > 1 for _, _, count in self.pending.values()),
            "num_waiting": sum(not request.is_dead for request in self.waiting),
            "num_pending": self.unsent,
        }
        if self.last_sent:
            told["delivered"]["last_active"] = stamp(self.last_sent)
        if self.last_ack:
            told["ack_floor"]["last_active"] = stamp(self.last_ack)
        return told


def config_of(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body or b"{}")
    return found
