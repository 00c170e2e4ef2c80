"""Keeping a broker's streams small: where readers stand, and what may be forgotten.

Owns the purging. Of a lane its last message always stays, since it has the number; of what clients
published, what was routed stays as long as a client may send it again.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nats.aio.client import Client as Nats

from ramify.overlay.control.names import IN, LOG, OUT
from ramify.overlay.live.broker.log import OutLog
from ramify.overlay.live.wire.streams import Sizes, api, consumers

__all__ = ["UNSYNCED_S", "Keeper", "Reader"]

UNSYNCED_S = 130.0
"""Longer than a server keeps what it acknowledged from its disk: two minutes, unless `sync_always`."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Where the reader of a lane stands, as the server says. `floor` is a sequence of OUT, `unread` counts
    messages that it has not acknowledged, `waiting` its open requests; `active_s` is when it last got or
    acknowledged something, in seconds since 1970, 0 when that is unknown."""

    floor: int
    unread: int
    waiting: int
    active_s: float


class Keeper:
    """See the module. What was purged is remembered, so that nothing is asked for twice."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        # of each lane that is read from here, by consumer, when it was last looked at
        self.readers: dict[str, Reader] = {}
        # bytes and messages of the log, and where it ends, likewise
        self.log_bytes = self.log_messages = self.log_last = 0
        # the last message that clients published, likewise
        self.published_last = 0
        self._purged: dict[str, int] = {}
        # lane -> (since when its reader has at least this, the sequence)
        self._read: dict[str, tuple[float, int]] = {}
        # (when, what was routed then), oldest first
        self._routed: list[tuple[float, int]] = []

    async def look(self, connection: Nats) -> None:
        """See where readers stand. Cost: a request per 256 lanes."""
        info = await api(connection, f"STREAM.INFO.{OUT}", {})
        state = info["state"]
        self.log_bytes, self.log_messages = int(state["bytes"]), int(state["messages"])
        self.log_last = int(state["last_seq"])
        self.readers = {told["name"]: _reader(told) for told in await consumers(connection, OUT)}

    async def purge_lanes(
        self, log: OutLog, lanes: Iterable[tuple[str, str]], window_s: float = UNSYNCED_S
    ) -> None:
        """Forget what the readers of (consumer, lane) have had for `window_s`, at once when the log is half
        full; and all records of positions but the last.

        A reader whose disk loses its last writes can then read them again.
        """
        now = time.monotonic()
        wait_s = 0.0 if self.log_bytes > self._sizes.out // 2 else window_s
        for consumer, lane in lanes:
            floor = self.readers[consumer].floor if consumer in self.readers else 0
            since, had = self._read.setdefault(lane, (now, floor))
            if now - since < wait_s:
                continue
            had = had if wait_s else floor
            self._read[lane] = now, floor
            if had > max(1, self._purged.get(lane, 0)):
                await log.purge(lane, had)
                self._purged[lane] = had
        await log.purge(LOG, log.last)

    async def purge_published(self, connection: Nats, routed: int, window_s: float) -> None:
        """Forget publishes that were routed `window_s` ago; at once, when the stream is half full."""
        info = await api(connection, f"STREAM.INFO.{IN}", {})
        self.published_last = int(info["state"]["last_seq"])
        full = int(info["state"]["bytes"]) > self._sizes.published // 2
        now = time.monotonic()
        self._routed.append((now, routed))
        old = [seq for at, seq in self._routed if full or now - at >= window_s]
        if old and old[-1] > 1:
            await api(connection, f"STREAM.PURGE.{IN}", {"seq": old[-1]})
        self._routed = [(at, seq) for at, seq in self._routed if now - at < window_s]


def _reader(told: Mapping[str, Any]) -> Reader:
    """A consumer's state. Times are RFC 3339 in UTC, with more digits than Python reads."""
    stamps = [told.get(part, {}).get("last_active") for part in ("delivered", "ack_floor")]
    active = [datetime.fromisoformat(f"{stamp[:19]}+00:00").timestamp() for stamp in stamps if stamp]
    return Reader(
        int(told.get("ack_floor", {}).get("stream_seq", 0)),
        int(told.get("num_pending", 0)) + int(told.get("num_ack_pending", 0)),
        int(told.get("num_waiting", 0)),
        max(active, default=0.0),
    )
