"""What a broker keeps of events that it could not use: the messages of the stream REJECTED. Pure.

Owns their form. A message is about one event, with the reason in its headers and the event's first bytes as
payload; or, where many events of a client were rejected together, about many of them:

    Reason, Detail, Position   of the event, or of the first one
    Count                      how many events the message is about
    Content-Type               `application/x-ndjson` for many: a JSON object per line with client,
                               position, event_id, reason, detail and raw (base64)

A client can have thousands of events rejected with one small message, so what they cost must be small: a
message of the stream for some hundreds of them.
"""

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from ramify.overlay.control.intake import RejectedMessage
from ramify.overlay.control.names import token

__all__ = ["LINES_TYPE", "RejectEntry", "entries"]

LINES_TYPE = "application/x-ndjson"
_MOST_SINGLE = 16
_MOST_PAGE_BYTES = 256 << 10
_MOST_DETAIL = 1_000


@dataclass(frozen=True, slots=True)
class RejectEntry:
    """A message of the stream REJECTED. Its id is the same whenever it is made of the same events."""

    subject: str
    headers: dict[str, str]
    payload: bytes


def entries(rejected: Sequence[RejectedMessage]) -> Iterator[RejectEntry]:
    """What is to be kept of these, in order: a message each, or pages where a client has many. O(bytes)."""
    for client, group in groupby(rejected, key=lambda each: each.client):
        some = list(group)
        if len(some) <= _MOST_SINGLE:
            yield from _singles(client, some)
        else:
            yield from _pages(client, some)


def _singles(client: str, some: Sequence[RejectedMessage]) -> Iterator[RejectEntry]:
    seen: Counter[str] = Counter()
    for each in some:
        name = f"{each.client}/{each.position}/{each.event_id}/{each.reason}/{each.detail}"
        # two events of a message may be alike in all of that
        yield _entry(client, each, f"{name}/{seen[name]}", 1, each.raw)
        seen[name] += 1


def _pages(client: str, some: Sequence[RejectedMessage]) -> Iterator[RejectEntry]:
    lines: list[bytes] = []
    first, size, page = some[0], 0, 0
    for each in some:
        line = _line(each)
        if lines and size + len(line) > _MOST_PAGE_BYTES:
            yield _page(client, first, page, lines)
            lines, first, size, page = [], each, 0, page + 1
        lines.append(line)
        size += len(line)
    yield _page(client, first, page, lines)


def _page(client: str, first: RejectedMessage, page: int, lines: list[bytes]) -> RejectEntry:
    payload = b"".join(lines)
    name = f"{client}/{first.position}/{page}/{hashlib.blake2b(payload).hexdigest()}"
    entry = _entry(client, first, name, len(lines), payload)
    entry.headers["Content-Type"] = LINES_TYPE
    return entry


def _entry(client: str, first: RejectedMessage, name: str, count: int, payload: bytes) -> RejectEntry:
    headers = {
        "Reason": first.reason,
        "Detail": _ascii(" ".join(first.detail.split())[:_MOST_DETAIL]),
        "Position": str(first.position),
        "Count": str(count),
        # names and ids may be longer than a header
        "Nats-Msg-Id": hashlib.blake2b(name.encode(), digest_size=16).hexdigest(),
    }
    return RejectEntry(f"rejected.{token(client)}", headers, payload)


def _line(each: RejectedMessage) -> bytes:
    told = {
        "client": each.client,
        "position": each.position,
        "event_id": each.event_id,
        "reason": each.reason,
        "detail": each.detail[:_MOST_DETAIL],
        "raw": b64encode(each.raw).decode(),
    }
    return msgspec.json.encode(told) + b"\n"


def _ascii(text: str) -> str:
    """What a NATS header can hold."""
    return text.encode("ascii", "replace").decode()
