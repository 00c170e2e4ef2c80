"""The control plane's store: a key-value bucket on a control server, watches, large values and leases.

Owns the bucket CTL (a JetStream stream `KV_CTL` in account CONTROL) and how values lie in it. Keys are
tokens joined by dots; a *prefix* is one or more whole tokens. Every write has a revision, growing over the
bucket.

A coordinator makes the bucket (`connect`) and may do everything in it. All others `join` it: they read it,
write the keys that are theirs (`security`), and watch by notices, since who may create consumers may have
messages delivered anywhere. Nobody's headers can purge it: roll-ups are off. So an expired lease leaves no
mark, and watches of leases look for what has vanished.

    put        compare-and-set on the revision: of two writers one gets `ConflictError`
    watch      what is there, then `INITIAL`, then every change; after an outage, whatever was missed
    put_large  of any size: compressed, in chunks, seen whole or not at all
    Lease      one holder at a time, let go by the server when it is not renewed

A `LiveError` from a write means that its outcome is unknown: read before trying again.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import re
import time
import uuid
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

import msgspec
import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.errors import InputError, LiveError
from ramify.overlay.control.names import BUCKET, CHANGED, STORE_GET, STORE_INFO
from ramify.overlay.live.wire.streams import Endpoint, connect, disconnect

__all__ = ["INITIAL", "ConflictError", "KeyChange", "Lease", "Store"]

_STREAM = f"KV_{BUCKET}"
_SUBJECT = f"$KV.{BUCKET}"
_CHUNKS = "chunks"
_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_LONGEST_KEY = 512
_MOST_LARGE_BYTES = 1 << 30
_MOST_CHUNK_BYTES = 512 << 10
_MOST_BYTES = 1 << 30
_MARKER_S = 3600
# of a write; they count towards the server's limit
_HEADER_BYTES = 4096
_WRONG_LAST_SEQUENCE, _NO_MESSAGE, _NO_STREAM = 10071, 10037, 10059
_HEARTBEAT_S = 1.0
_VANISHED_S = 1.0
_NOTICE_LIMIT_S = 5.0
_READS_AT_ONCE = 32
_WRITE_RETRY_S = 0.1
_TRIES = 5


_OLD_ACCOUNTS = (
    "the control server does not let this user read the store: its accounts are those of an older version, "
    "or the server has another kind of store. Run `ramify keys`, and reload the server with "
    "accounts/control.conf"
)


class ConflictError(LiveError):
    """Another writer was first: read the key again, and decide again."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key's value at a revision; None when it was deleted or has expired."""

    key: str
    value: bytes | None
    revision: int


INITIAL = KeyChange("", None, 0)
"""What a watch yields once, when all that was there at its begin has been seen."""


@dataclass(frozen=True, slots=True)
class _Last:
    """The last message of a key. `value` is None for the mark of a deletion."""

    value: bytes | None
    revision: int


_WANTED: dict[str, object] = {
    "republish": {"src": f"{_SUBJECT}.>", "dest": f"{CHANGED}.>", "headers_only": True},
    # with it, one header of whoever writes one key purges all others
    "allow_rollup_hdrs": False,
    "deny_delete": True,
    "allow_msg_ttl": True,
}


class _RefusedError(LiveError):
    def __init__(self, reason: str, code: int) -> None:
        self.code = code
        super().__init__(reason)


class _Index(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What stands under the key of a large value."""

    size: int
    sha256: str
    chunks: list[str]


class Store:
    """A connection to the bucket. `connect` or `join` makes one; `close` ends it and its watches."""

    def __init__(self, connection: Nats, timeout_s: float, *, joined: bool = False) -> None:
        self._nats = connection
        self._timeout_s = timeout_s
        self._joined = joined
        self._info_api, self._get_api = (
            (STORE_INFO, STORE_GET)
            if joined
            else (f"$JS.API.STREAM.INFO.{_STREAM}", f"$JS.API.STREAM.MSG.GET.{_STREAM}")
        )
        self._watches: set[_Watch] = set()
        # what the server said when it refused something, which it does not answer
        self._forbidden = ""

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        *,
        replicas: int = 1,
        most_bytes: int = _MOST_BYTES,
        timeout_s: float = 5.0,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> "Store":
        """Connect as a coordinator, and make the bucket when there is none. `failed`: see `connect`.

        Raises `LiveError` when it cannot be reached, or has a bucket of that name without leases.
        """
        store = await cls._open(endpoint, timeout_s, failed, joined=False)
        try:
            await store._ensure(replicas, most_bytes)
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    async def join(
        cls,
        endpoint: Endpoint,
        *,
        timeout_s: float = 5.0,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> "Store":
        """Connect as any other user of the control server. A bucket that no coordinator has made yet is
        empty.

        Raises `LiveError` when it cannot be reached, or lets this user read nothing.
        """
        store = await cls._open(endpoint, timeout_s, failed, joined=True)
        try:
            await store._made_at()
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    async def _open(
        cls, endpoint: Endpoint, timeout_s: float, failed: Callable[[Exception], None], *, joined: bool
    ) -> "Store":
        made: list[Store] = []

        async def again() -> None:
            for store in made:
                store._reconnected()

        async def noted(error: Exception) -> None:
            for store in made:
                if "permissions violation" in str(error).lower():
                    store._forbidden = str(error)

        connection = await connect(endpoint, failed=failed, reconnected_cb=again, error_cb=noted)
        made.append(cls(connection, timeout_s, joined=joined))
        return made[0]

    @property
    def most_value_bytes(self) -> int:
        """What the server takes as one value, but for `put_large`."""
        return self._nats.max_payload - _HEADER_BYTES

    async def close(self) -> None:
        """Close the connection; watches end."""
        for watch in list(self._watches):
            watch.end()
        await disconnect(self._nats)

    # ----------------------------------------------------------------------------------- single values

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """A value and its revision."""
        found = await self._last(_checked(key))
        return None if found is None or found.value is None else (found.value, found.revision)

    async def put(self, key: str, value: bytes, revision: int | None = None, *, force: bool = False) -> int:
        """Write a value and return its revision, if the key's last revision is still `revision`.

        Without one the key must not exist; with `force` it may, and whatever is there is replaced. Raises
        `ConflictError` when that does not hold.
        """
        if revision is not None:
            return await self._write(_checked(key), value, revision, {})
        for _ in range(_TRIES):
            found = await self._last(_checked(key))
            if found is not None and found.value is not None and not force:
                raise ConflictError(
                    f"{key} exists at revision {found.revision}: read it, then replace that"
                )
            # the mark of a deletion may go meanwhile: then the key is still free
            with contextlib.suppress(ConflictError):
                return await self._write(key, value, found.revision if found else 0, {})
        raise ConflictError(f"{key} is written by others without a pause: try again later")

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete a key, also one of a large value; at `revision` when one is given. One that is not there
        stays so."""
        found = await self._last(_checked(key))
        if found is None or found.value is None:
            if revision is not None:
                raise ConflictError(f"{key} was deleted by another: read it again")
            return
        marks = {"KV-Operation": "DEL", "Nats-TTL": f"{_MARKER_S}s"}
        at = await self._write(key, b"", found.revision if revision is None else revision, marks)
        if _is_index(found.value):
            await self._sweep(key, at, [])

    async def keys(self, prefix: str) -> list[str]:
        """The keys that are a prefix or below it, sorted."""
        return sorted(await (self.values(prefix) if self._joined else self._revisions(prefix)))

    async def count(self, prefix: str) -> int:
        """How many keys are below a prefix. One that was deleted of late counts too. One request."""
        return len(await self._subjects(_checked(prefix)))

    async def values(self, prefix: str) -> dict[str, bytes]:
        """The values of a prefix and below it, by key. Costs a request for each."""
        turns = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(key: str) -> tuple[str, tuple[bytes, int] | None]:
            async with turns:
                return key, await self.get(key)

        found = await asyncio.gather(*map(read, sorted(await self._subjects(_checked(prefix)))))
        return {key: value[0] for key, value in found if value is not None}

    async def _revisions(self, prefix: str, *, chunks: bool = False) -> dict[str, int]:
        watch = _Watch(self, _checked(prefix, chunks=chunks), headers_only=True)
        found: dict[str, int] = {}
        try:
            async with (
                asyncio.timeout(10 * self._timeout_s),
                contextlib.aclosing(watch.changes()) as changes,
            ):
                async for change in changes:
                    if change is INITIAL:
                        return found
                    if change.value is None:
                        found.pop(change.key, None)
                    else:
                        found[change.key] = change.revision
        except TimeoutError:
            pass
        raise LiveError(f"the control server did not list {prefix} in {10 * self._timeout_s:g} s")

    def watch(self, prefix: str) -> AsyncGenerator[KeyChange, None]:
        """The values of a prefix and below it, `INITIAL`, then changes until it is closed.

        Of a key that changes fast, values between may be left out; the last is always seen. After an outage
        all is compared with what was yielded before: what changed or went away meanwhile is yielded then.
        """
        kind = _NoticeWatch if self._joined else _Watch
        return kind(self, _checked(prefix)).changes()

    # ------------------------------------------------------------------------------------ large values

    async def put_large(
        self, key: str, value: bytes, revision: int | None = None, *, force: bool = False
    ) -> int:
        """As `put`, for a value of up to 1 GiB. Costs two copies of it in memory.

        The chunks come first and the index last, so readers see the old value or the new one. Chunks that a
        write before this one left, finished or not, are removed: their writer before the index
        changed can no longer write an index.
        """
        if len(value) > _MOST_LARGE_BYTES:
            raise InputError(f"{key} has {len(value)} bytes; a value has at most {_MOST_LARGE_BYTES}")
        if revision is None:
            # what is there now, not when the index is written: see above
            found = await self._last(_checked(key))
            if found is not None and found.value is not None and not force:
                raise ConflictError(
                    f"{key} exists at revision {found.revision}: read it, then replace that"
                )
            revision = 0 if found is None else found.revision
        size = min(_MOST_CHUNK_BYTES, self._nats.max_payload // 2)
        # beside the loop: leases must be renewed meanwhile
        index, parts = await asyncio.to_thread(_packed, value, size)
        for name, part in zip(index.chunks, parts, strict=True):
            await self._write(f"{_CHUNKS}.{_checked(key)}.{name}", part, None, {})
        at = await self._write(key, msgspec.json.encode(index), revision, {})
        await self._sweep(key, at, index.chunks)
        return at

    async def get_large(self, key: str) -> tuple[bytes, int] | None:
        """A large value and its revision. Raises `LiveError` when it is damaged."""
        found = await self.get(key)
        while found is not None:
            value = await self._whole(key, found[0])
            if value is not None:
                return value, found[1]
            before, found = found, await self.get(key)
            if found is not None and found[1] == before[1]:
                raise LiveError(f"{key} lacks a chunk in the store: write it again")
        return None

    async def _whole(self, key: str, data: bytes) -> bytes | None:
        """The value behind an index; None when chunks are gone, as they are after another write."""
        try:
            index = msgspec.json.decode(data, type=_Index)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LiveError(f"{key} is not a large value: {error}. Read it with get") from None
        if not 0 <= index.size <= _MOST_LARGE_BYTES:
            raise LiveError(f"{key} claims {index.size} bytes, which no value has: write it again")
        parts: list[bytes] = []
        for name in index.chunks:
            part = await self._last(f"{_CHUNKS}.{key}.{name}")
            if part is None or part.value is None:
                return None
            parts.append(part.value)
        return await asyncio.to_thread(_unpacked, key, index, parts)

    async def _sweep(self, key: str, below: int, kept: list[str]) -> None:
        """Remove chunks that are older than an index and not in it, without a mark."""
        prefix = f"{_CHUNKS}.{key}"
        for chunk, revision in (await self._revisions(prefix, chunks=True)).items():
            own, _, name = chunk.rpartition(".")
            if own == prefix and revision < below and name not in kept:
                # by sequence, so that one that is written anew meanwhile stays
                body = json.dumps({"filter": f"{_SUBJECT}.{chunk}", "seq": revision + 1}).encode()
                await self._ask(f"$JS.API.STREAM.PURGE.{_STREAM}", body)

    # ---------------------------------------------------------------------------------------- the wire

    async def _ensure(self, replicas: int, most_bytes: int) -> None:
        try:
            told = await self._ask(self._info_api, b"")
        except _RefusedError as error:
            if error.code != _NO_STREAM:
                raise
            config: dict[str, object] = {
                "name": _STREAM,
                "subjects": [f"{_SUBJECT}.>"],
                "retention": "limits",
                "storage": "file",
                "discard": "new",
                "num_replicas": replicas,
                "max_bytes": most_bytes,
                "max_msgs_per_subject": 1,
                "max_consumers": -1,
                **_WANTED,
            }
            told = await self._ask(f"$JS.API.STREAM.CREATE.{_STREAM}", json.dumps(config).encode())
        found = told.get("config")
        if not isinstance(found, dict) or not (
            found.get("allow_msg_ttl") and found.get("max_msgs_per_subject") == 1
        ):
            reason = "cannot expire leases: it was not made by Ramify. Use another server or account"
            raise LiveError(f"bucket {BUCKET} on {self._nats.connected_url} {reason}")
        if any(found.get(key, False) != value for key, value in _WANTED.items()):
            # made by an older version, which marked expired keys; that needs roll-ups
            kept = {key: value for key, value in found.items() if key != "subject_delete_marker_ttl"}
            await self._ask(f"$JS.API.STREAM.UPDATE.{_STREAM}", json.dumps({**kept, **_WANTED}).encode())

    async def _made_at(self) -> tuple[str, int]:
        """When the bucket was made, and its last revision; empty and 0 when there is none."""
        try:
            told = await self._ask(self._info_api, b"")
        except _RefusedError as error:
            if error.code == _NO_STREAM:
                return "", 0
            raise
        state = told.get("state")
        return str(told.get("created")), int(state["last_seq"]) if isinstance(state, dict) else 0

    async def _subjects(self, prefix: str, *, itself: bool = True) -> set[str]:
        """The keys that are a prefix (`itself`) or below it, with those of which only a mark is left."""
        found: set[str] = set()
        filters = [f"{_SUBJECT}.{prefix}"] if itself else []
        for filter_ in (*filters, f"{_SUBJECT}.{prefix}.>"):
            offset = 0
            while True:
                body = json.dumps({"subjects_filter": filter_, "offset": offset}).encode()
                try:
                    told = await self._ask(self._info_api, body)
                except _RefusedError as error:
                    if error.code == _NO_STREAM:
                        return found
                    raise
                state = told.get("state")
                some = state.get("subjects") if isinstance(state, dict) else None
                if not some:
                    break
                found |= {subject.removeprefix(f"{_SUBJECT}.") for subject in some}
                offset += len(some)
                if offset >= int(str(told.get("total") or 0)):
                    break
        return found

    async def _last(self, key: str) -> _Last | None:
        """From the stream's leader, so that a write that was acknowledged is seen."""
        found = await self._read({"last_by_subj": f"{_SUBJECT}.{key}"})
        return None if found is None else _Last(found.value, found.revision)

    async def _read(self, which: Mapping[str, object]) -> KeyChange | None:
        """A message of the stream; None when there is no such message."""
        try:
            told = await self._ask(self._get_api, json.dumps(which).encode())
        except _RefusedError as error:
            if error.code in (_NO_MESSAGE, _NO_STREAM):
                return None
            raise
        message = told.get("message")
        if not isinstance(message, dict):
            raise LiveError(f"the control server's answer about {which} has no message")
        try:
            headers = base64.b64decode(message.get("hdrs", "")).decode("ascii", "replace")
            value = base64.b64decode(message.get("data", ""))
            revision = int(message["seq"])
            key = str(message["subject"]).removeprefix(f"{_SUBJECT}.")
        except (KeyError, ValueError, TypeError, binascii.Error) as error:
            raise LiveError(f"the control server's answer about {which} is unreadable: {error!r}") from None
        gone = re.search(r"^(KV-Operation|Nats-Marker-Reason):", headers, re.MULTILINE)
        return KeyChange(key, None if gone else value, revision)

    async def _write(self, key: str, value: bytes, expected: int | None, marks: Mapping[str, str]) -> int:
        headers = dict(marks)
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        try:
            told = await self._ask(f"{_SUBJECT}.{key}", value, headers)
        except _RefusedError as error:
            if error.code != _WRONG_LAST_SEQUENCE:
                raise
            raise ConflictError(f"{key} is no longer at revision {expected}: read it again") from None
        revision = told.get("seq")
        if told.get("stream") != _STREAM or not isinstance(revision, int):
            raise LiveError(f"the control server gave no revision for {key}: it said {str(told)[:200]}")
        return revision

    async def _ask(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        if not self._nats.is_connected:
            # a request would be kept and sent after the outage, when nobody waits for it
            raise LiveError(f"not connected to the control server, so nothing was sent to {subject}")
        try:
            answer = await self._nats.request(
                subject, payload, timeout=self._timeout_s, headers=dict(headers) if headers else None
            )
            told = json.loads(answer.data)
        except nats.errors.NoRespondersError as error:
            if subject in (STORE_INFO, STORE_GET):
                raise LiveError(_OLD_ACCOUNTS) from error
            raise LiveError(f"nobody answers {subject}: no coordinator has made the store yet") from error
        except (nats.errors.Error, TimeoutError, OSError, ValueError) as error:
            if self._forbidden:
                raise LiveError(
                    f"the control server forbids {subject} ({self._forbidden}): the key is that of another "
                    "kind of user. Coordinators and brokers have keys of their own; a viewer's may only "
                    "look, an operator's may also change rules and move clients"
                ) from error
            raise LiveError(f"no answer from the control server to {subject}: {error!r}") from error
        if not isinstance(told, dict):
            raise LiveError(f"the control server answered {subject} with {answer.data[:200]!r}")
        refused = told.get("error")
        if isinstance(refused, dict):
            reason = f"the control server refused {subject}: {refused.get('description')}"
            raise _RefusedError(reason, int(refused.get("err_code", 0)))
        return told

    def _reconnected(self) -> None:
        for watch in self._watches:
            watch.restart()


class _Watch:
    """One watch: a consumer without state on the server's disk, made anew whenever it may have missed."""

    def __init__(self, store: Store, prefix: str, *, headers_only: bool = False) -> None:
        self._store = store
        self._prefix = prefix
        self._headers_only = headers_only
        # messages; None says that the connection was made anew
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue(1_000)
        self._known: dict[str, int] = {}
        # those that may vanish without a word
        self._expiring: set[str] = set()
        self._stale = False
        self._ended = False

    def restart(self) -> None:
        """Look at everything again."""
        self._stale = True
        self._wake()

    def end(self) -> None:
        """Stop yielding."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)

    async def changes(self) -> AsyncGenerator[KeyChange, None]:
        told = False
        self._store._watches.add(self)
        try:
            while not self._ended:
                seen: set[str] | None = set()
                try:
                    async with contextlib.aclosing(self._once()) as changes:
                        async for change in changes:
                            if change is not INITIAL:
                                if seen is not None:
                                    seen.add(change.key)
                                if self._note(change):
                                    yield change
                                continue
                            for gone in self._gone(seen or set()):
                                yield gone
                            seen = None
                            if not told:
                                told = True
                                yield INITIAL
                except LiveError:
                    if self._store._nats.is_closed and not self._ended:
                        raise
                    await asyncio.sleep(_WRITE_RETRY_S)
        finally:
            self._store._watches.discard(self)

    def _note(self, change: KeyChange) -> bool:
        """Whether a change is news. Unequal, not greater: a bucket that was made anew counts from 1."""
        if change.value is None:
            self._expiring.discard(change.key)
            return self._known.pop(change.key, None) is not None
        news = self._known.get(change.key) != change.revision
        self._known[change.key] = change.revision
        return news

    def _gone(self, seen: set[str]) -> list[KeyChange]:
        """Keys that were yielded and are no longer there, of which not even a mark is left."""
        gone = sorted(self._known.keys() - seen)
        self._expiring -= {*gone}
        return [KeyChange(key, None, self._known.pop(key)) for key in gone]

    async def _once(self) -> AsyncGenerator[KeyChange, None]:
        """All values, `INITIAL`, and changes until something may have been missed."""
        connection = self._store._nats
        self._stale = False
        self._queue = asyncio.Queue(1_000)
        queue = self._queue
        inbox = connection.new_inbox()
        try:
            subscription = await connection.subscribe(inbox, cb=queue.put)
        except nats.errors.Error as error:
            raise LiveError(f"cannot watch {self._prefix}: {error!r}. Connect again") from error
        try:
            pending = await self._create(inbox)
            if pending == 0:
                yield INITIAL
            expected, initial = 1, pending > 0
            heard_s = looked_s = time.monotonic()
            while not self._stale and not self._ended:
                message = await self._arrived(queue)
                now_s = time.monotonic()
                if self._expiring and not initial and now_s - looked_s >= _VANISHED_S:
                    looked_s = now_s
                    itself = self._prefix in self._expiring
                    there = await self._store._subjects(self._prefix, itself=itself)
                    for gone_key in sorted(self._expiring - there):
                        yield KeyChange(gone_key, None, self._known.get(gone_key, 0))
                if message is None:
                    if now_s - heard_s >= 4 * _HEARTBEAT_S:
                        return
                    continue
                heard_s = now_s
                headers = message.headers or {}
                if headers.get("Status") is not None or not message.reply.startswith("$JS.ACK."):
                    if int(headers.get("Nats-Last-Consumer", expected - 1)) >= expected:
                        return
                    # a heartbeat comes only when nothing waits
                    left = 0
                else:
                    sequence, number, left = _place(message.reply)
                    if number != expected:
                        return
                    expected += 1
                    gone = "KV-Operation" in headers or "Nats-Marker-Reason" in headers
                    key = message.subject.removeprefix(f"{_SUBJECT}.")
                    if "Nats-TTL" in headers and not gone:
                        self._expiring.add(key)
                    yield KeyChange(key, None if gone else message.data, sequence)
                if initial and left == 0:
                    initial = False
                    yield INITIAL
        except (nats.errors.Error, OSError) as error:
            raise LiveError(f"the watch of {self._prefix} broke: {error!r}") from error
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def _arrived(self, queue: "asyncio.Queue[Msg | None]") -> Msg | None:
        """The next message; None when none came for a moment."""
        with contextlib.suppress(TimeoutError):
            # not wait_for: in Python 3.11 it can swallow a cancellation (cpython #86296)
            async with asyncio.timeout(_VANISHED_S if self._expiring else _HEARTBEAT_S):
                return await queue.get()
        return None

    async def _create(self, inbox: str) -> int:
        """Make the consumer; how many values there are. The server drops it when nobody listens."""
        name = f"watch_{uuid.uuid4().hex}"
        config = {
            "name": name,
            "deliver_policy": "last_per_subject",
            "deliver_subject": inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "filter_subjects": [f"{_SUBJECT}.{self._prefix}", f"{_SUBJECT}.{self._prefix}.>"],
            "headers_only": self._headers_only,
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30 * 10**9,
        }
        body = json.dumps({"stream_name": _STREAM, "config": config}).encode()
        told = await self._store._ask(f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}", body)
        pending = told.get("num_pending", 0)
        delivered = told.get("delivered")
        # what was delivered before the answer was written is no longer pending
        before = int(delivered.get("consumer_seq", 0)) if isinstance(delivered, dict) else 0
        return before + (pending if isinstance(pending, int) else 0)


class _NoticeWatch(_Watch):
    """A watch of one who may not create consumers: notices say that something changed, and it is read.

    A notice is only a hint. Whatever it says, the messages behind the last revision that was seen are read
    from the stream, in order.
    """

    async def _once(self) -> AsyncGenerator[KeyChange, None]:
        connection, store = self._store._nats, self._store
        self._stale = False
        queue = self._queue = asyncio.Queue(1_000)
        subjects = [f"{_SUBJECT}.{self._prefix}", f"{_SUBJECT}.{self._prefix}.>"]
        subscriptions = []
        try:
            for subject in subjects:
                notices = subject.replace(_SUBJECT, CHANGED, 1)
                subscriptions.append(await connection.subscribe(notices, cb=self._noticed))
        except nats.errors.Error as error:
            raise LiveError(f"cannot watch {self._prefix}: {error!r}. Connect again") from error
        try:
            made = await store._made_at()
            position = 0
            # of each subject by itself: the stream is asked for the next message of one filter
            for subject in subjects:
                async for change in self._behind(subject, 0):
                    position = max(position, change.revision)
                    yield change
            yield INITIAL
            looked_s = time.monotonic()
            while not self._stale and not self._ended:
                message = await self._arrived(queue)
                if message is not None and (number := _noticed_revision(message)) is not None:
                    # what waits is in what is read below
                    while not queue.empty():
                        other = queue.get_nowait()
                        number = max(number, (other and _noticed_revision(other)) or 0)
                    if number <= position:
                        continue
                elif time.monotonic() - looked_s < _NOTICE_LIMIT_S:
                    continue
                else:
                    looked_s = time.monotonic()
                    now = await store._made_at()
                    if now[0] != made[0] or now[1] < position:
                        return
                behind = position
                for subject in subjects:
                    async for change in self._behind(subject, behind):
                        position = max(position, change.revision)
                        yield change
        except (nats.errors.Error, OSError) as error:
            raise LiveError(f"the watch of {self._prefix} broke: {error!r}") from error
        finally:
            for each in subscriptions:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await each.unsubscribe()

    async def _behind(self, subject: str, position: int) -> AsyncGenerator[KeyChange, None]:
        """The messages of a subject behind a revision, in order."""
        while True:
            found = await self._store._read({"seq": position + 1, "next_by_subj": subject})
            if found is None or found.revision <= position:
                return
            position = found.revision
            yield found

    async def _noticed(self, message: Msg) -> None:
        # more notices than fit say no more than those that wait
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(message)


def _noticed_revision(message: Msg) -> int | None:
    try:
        return int((message.headers or {})["Nats-Sequence"])
    except (KeyError, ValueError):
        return None


class Lease:
    """A key that one holder has at a time. `held` turns False before the server lets the key go.

    The holder renews it well within `ttl_s` (whole seconds, from 1). When it does not, because it died,
    stalled or is cut off, the server deletes the key and another may take it. The deadline counts from
    before a request was sent, on a clock that goes on while the machine sleeps.
    """

    def __init__(self, store: Store, key: str, holder: str, ttl_s: int) -> None:
        if ttl_s < 1 or int(ttl_s) != ttl_s:
            raise InputError(f"a lease of {ttl_s} s: give whole seconds from 1")
        self._store = store
        self.key = _checked(key)
        self.holder = holder
        self.ttl_s = int(ttl_s)
        self.session = ""
        """New each time that the lease is taken; it is in the value, as JSON."""
        self._revision = 0
        self._deadline_s = -1.0

    @property
    def held(self) -> bool:
        """Whether the lease is surely this holder's now."""
        return _now_s() < self._deadline_s

    @staticmethod
    def read(value: bytes) -> tuple[str, str]:
        """Holder and session of a lease's value. Raises `InputError`."""
        try:
            told = json.loads(value)
            return str(told["holder"]), str(told["session"])
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(f"this is not a lease: {error!r}") from None

    async def take(self) -> bool:
        """Take it if nobody has it; False when somebody has. Raises `LiveError` when that is unknown."""
        if self.held:
            return await self.renew()
        found = await self._store._last(self.key)
        if found is not None and found.value is not None:
            # an earlier attempt of ours whose answer was lost
            return self._is_ours(found.value) and await self._hold(found.revision)
        self.session = uuid.uuid4().hex
        return await self._hold(0 if found is None else found.revision)

    async def renew(self) -> bool:
        """Hold it for another `ttl_s`. False when it is no longer ours: then stop what needs it.

        Raises `LiveError` when that is unknown: `held` stays as it was, until its deadline.
        """
        if self._revision == 0:
            return False
        if await self._hold(self._revision):
            return True
        # an earlier renewal may have arrived although its answer was lost
        found = await self._store._last(self.key)
        ours = found is not None and found.value is not None and self._is_ours(found.value)
        if found is not None and ours and await self._hold(found.revision):
            return True
        self._let_go()
        return False

    async def release(self) -> None:
        """Let it go at once, so that another need not wait for the server to."""
        revision = self._revision
        # first, so that nobody believes in it while the request is under way
        self._let_go()
        if revision:
            with contextlib.suppress(ConflictError):
                await self._store.delete(self.key, revision)

    async def _hold(self, expected: int) -> bool:
        started_s = _now_s()
        value = json.dumps({"holder": self.holder, "session": self.session}).encode()
        try:
            marks = {"Nats-TTL": f"{self.ttl_s}s"}
            self._revision = await self._store._write(self.key, value, expected, marks)
        except ConflictError:
            return False
        self._deadline_s = started_s + 0.75 * self.ttl_s
        return True

    def _is_ours(self, value: bytes) -> bool:
        return bool(self.session) and self.read(value) == (self.holder, self.session)

    def _let_go(self) -> None:
        self._revision, self._deadline_s = 0, -1.0


def _is_index(value: bytes) -> bool:
    try:
        msgspec.json.decode(value, type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _packed(value: bytes, size: int) -> tuple[_Index, list[bytes]]:
    packed = zlib.compress(value, 6)
    parts = [packed[at : at + size] for at in range(0, len(packed), size)]
    names = [hashlib.sha256(part).hexdigest() for part in parts]
    return _Index(len(value), hashlib.sha256(value).hexdigest(), names), parts


def _unpacked(key: str, index: _Index, parts: list[bytes]) -> bytes:
    for name, part in zip(index.chunks, parts, strict=True):
        if hashlib.sha256(part).hexdigest() != name:
            raise LiveError(f"{key} has a damaged chunk in the store: write it again")
    try:
        # one more than it should be: what claims to be small must not fill the memory
        value = zlib.decompressobj().decompress(b"".join(parts), index.size + 1)
    except zlib.error as error:
        raise LiveError(f"{key} cannot be unpacked: {error}. Write it again") from None
    if len(value) != index.size or hashlib.sha256(value).hexdigest() != index.sha256:
        raise LiveError(f"{key} is not what was written, by its hash: write it again")
    return value


def _now_s() -> float:
    # the monotonic clock of Linux stands still while the machine sleeps; the server's does not
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _checked(key: str, *, chunks: bool = False) -> str:
    if not _KEY.fullmatch(key) or len(key) > _LONGEST_KEY:
        raise InputError(
            f"{key[:80]!r} is not a key: give tokens of letters, digits and _=/- with dots between, "
            f"at most {_LONGEST_KEY} characters"
        )
    if not chunks and key.split(".", 1)[0] == _CHUNKS:
        raise InputError(f"{key[:80]!r} is not a key for values: {_CHUNKS} holds the parts of large ones")
    return key


def _place(reply: str) -> tuple[int, int, int]:
    """Revision, number in the consumer, and how many wait, of a delivered message."""
    parts = reply.split(".")
    # from the end: a longer form has the domain and account in front
    at = 2 if len(parts) <= 9 else 4
    return int(parts[at + 3]), int(parts[at + 4]), int(parts[at + 6])
