"""What clients published, held against what is known of it: whether the stream IN lost something.

Owns the look. Clients write to IN, so nobody counts there but the server, and a server that lost its last
writes uses their sequences again. The message that was routed last is known by the moment it was stored at:
another moment under its sequence shows another message. Moments are compared as names. Their order decides
only where the new messages begin, once it is known that there are some.
"""

import calendar
import time
from collections.abc import Mapping

from nats.aio.client import Client as Nats

from ramify.overlay.control.names import IN, PUBLISH
from ramify.overlay.live.wire.streams import ApiError, api

__all__ = ["look_at_published", "micros"]

_NO_MESSAGE = 10037


async def look_at_published(connection: Nats, routed: int | None, stored_us: int) -> tuple[int, str]:
    """Behind which sequence to go on, and what was lost, if anything. `routed` is the last message that is
    routed, None when that is not known; it was stored at `stored_us`. Cost: two requests."""
    state = (await api(connection, f"STREAM.INFO.{IN}", {}))["state"]
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if routed is None:
        told = await api(connection, f"CONSUMER.INFO.{IN}.router", {})
        floor = min(int(told["ack_floor"]["stream_seq"]), last)
        said = f"what was routed is not known any more: publishes up to {floor} count as routed"
        return (floor, said) if floor else (0, "")
    if first > routed + 1:
        return first - 1, f"what clients published has a hole: numbers {routed + 1} to {first - 1} are gone"
    if last >= routed:
        found = await _stored_us(connection, {"seq": routed}) if stored_us else None
        if found is None or found == stored_us:
            return routed, ""
    begin = await _first_after(connection, stored_us, max(first, 1), min(routed, last) + 1)
    said = f"what clients published lost its end: numbers {begin} to {routed} are gone or others now"
    return begin - 1, f"{said}, and what followed them. Their events are lost where they were not routed"


async def _first_after(connection: Nats, stored_us: int, first: int, end: int) -> int:
    """The first sequence before `end` whose message was stored later; else `end`."""
    while first < end:
        middle = (first + end) // 2
        found = await _stored_us(connection, {"seq": middle, "next_by_subj": f"{PUBLISH}.*"})
        if found is not None and found > stored_us:
            end = middle
        else:
            first = middle + 1
    return end


async def _stored_us(connection: Nats, wanted: Mapping[str, object]) -> int | None:
    """When a message was stored; None when there is none, or it cannot be read."""
    try:
        told = await api(connection, f"STREAM.MSG.GET.{IN}", wanted, missing=_NO_MESSAGE)
    except ApiError:
        return None  # damaged: it is told as a hole
    return micros(told["message"]["time"]) if told else None


def micros(stamp: str) -> int:
    """A server's time (RFC 3339 in UTC, up to nine digits behind the point) in microseconds since 1970."""
    whole, _, part = stamp.rstrip("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return seconds * 1_000_000 + int(part[:6].ljust(6, "0") or 0)
