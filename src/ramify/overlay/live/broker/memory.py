"""The memory of a broker's steps: how much one takes in, and giving back what large ones left.

An event for a thousand clients is a thousand messages, so what a step takes in does not bound what comes
out. `StepSize` learns from the steps before how many messages to take: memory stays bounded whatever the
fan-out, and where little comes out, steps are as large as they may be.
"""

import ctypes
from collections.abc import Sequence

import pyarrow as pa

from ramify.overlay.control.output import Output

__all__ = ["StepSize", "give_back"]

MOST_OUTPUTS = 4_000
MOST_OUTPUT_BYTES = 16 << 20
_MOST_EVENTS = 10_000
_FIRST = 8
_LARGE = 0.25


class StepSize:
    """How many messages the next step takes in, at most `most`; and how many events of a single one, where
    even that was too much (else None)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.messages = min(_FIRST, most)
        self.events: int | None = None
        # a step since the last `settle` came near the bounds
        self._large = False

    def learn(self, messages: int, outputs: Sequence[Output]) -> None:
        """A step took in `messages`, came to these outputs, and was written."""
        if self.events is not None:
            self.events = 2 * self.events if 2 * self.events < _MOST_EVENTS else None
            return
        share = max(len(outputs) / MOST_OUTPUTS, sum(len(o.payload) for o in outputs) / MOST_OUTPUT_BYTES)
        self._large = self._large or share > _LARGE
        if share > 1:
            self.messages = max(1, min(self.messages, int(messages / share)))
        elif share < 0.5 and messages >= self.messages:
            self.messages = min(self._most, 2 * self.messages)

    def shrink(self, messages: int, events: int = 1) -> None:
        """A step of so many messages, or so many events of one, came to more than can be written: half of
        that is tried next."""
        self._large = True
        self.messages = max(1, messages // 2)
        if messages == 1:
            self.events = max(1, events // 2)

    def settle(self) -> bool:
        """Whether there is something to give back."""
        large, self._large = self._large, False
        return large


def give_back() -> None:
    """Return free memory to the system: the allocators keep what a burst needed. Some milliseconds."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
