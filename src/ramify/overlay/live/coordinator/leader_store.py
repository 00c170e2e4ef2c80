"""The control plane's store as a leader writes it: only while it leads, never over another's write.

Owns the order of writes (`overlay.control.registry` says why it matters) and the revisions for
compare-and-set.
"""

import asyncio
from collections.abc import Sequence

from ramify.errors import LiveError
from ramify.overlay.control.records import MOVES, OVERLAY, STATE
from ramify.overlay.control.registry import Write
from ramify.overlay.live.wire.store import Lease, Store

__all__ = ["Stores"]

_WRITERS = 64


class Stores:
    """The store as a leader writes it: only while it leads, and never over another's write."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.store = store
        self.lease = lease
        self.revisions: dict[str, int] = {}
        """The revisions of keys that are written by compare-and-set."""

    async def write(self, writes: Sequence[Write]) -> None:
        """Write records, then plans and changes, then the state, then moves; each kind at once.

        Raises `ConflictError` when another was first, `LiveError` when the lead or the server is lost.
        """
        turns = asyncio.Semaphore(_WRITERS)
        for kind in _KINDS:
            these = [write for write in writes if _kind(write.key) == kind]
            done = await asyncio.gather(*(self._one(w, turns) for w in these), return_exceptions=True)
            for error in done:
                if error is not None:
                    raise error

    async def delete(self, key: str) -> None:
        """Delete a key."""
        self._require_lead()
        await self.store.delete(key)
        self.revisions.pop(key, None)

    async def _one(self, write: Write, turns: asyncio.Semaphore) -> None:
        async with turns:
            self._require_lead()
            key, value = write.key, write.value
            if write.large:
                await self.store.put_large(key, value, force=key == OVERLAY)
            elif key in self.revisions:
                self.revisions[key] = await self.store.put(key, value, self.revisions[key])
            elif _kind(key) == "changes":
                await self.store.put(key, value, 0)
            else:
                self.revisions[key] = await self.store.put(key, value)

    def _require_lead(self) -> None:
        if not self.lease.held:
            raise LiveError("the lease of the leader lapsed, so nothing was written")


_KINDS = ("clients", OVERLAY, "plans", "changes", STATE, MOVES)


def _kind(key: str) -> str:
    return key.partition(".")[0]
