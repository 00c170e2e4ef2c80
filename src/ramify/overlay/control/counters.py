"""What a broker has done since it started, in numbers. Pure."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ramify.content.events.events import SIZE_BYTES
from ramify.overlay.control.steps import LinkTraffic, StepResult

__all__ = ["Counters"]

_EPOCHS_COUNTED = 16


@dataclass(slots=True)
class Counters:
    """What a broker has done since it started; per neighbour where that is the key.

    `entered` are events and bytes that clients published, `sent` what crossed links, both by epoch; of
    epochs that are long gone they are forgotten. `redeliveries` are messages that came again.
    """

    steps: int = 0
    frames: int = 0
    events: int = 0
    published: int = 0
    published_bytes: int = 0
    matchings: int = 0
    deliveries: int = 0
    dropped: int = 0
    strays: int = 0
    rejects: int = 0
    recoveries: int = 0
    redeliveries: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    payload_bytes: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)
    entered: dict[int, tuple[int, int]] = field(default_factory=dict)
    sent: dict[int, dict[str, LinkTraffic]] = field(default_factory=dict)

    def add(self, done: StepResult) -> None:
        """Count a step that was committed."""
        self.steps += 1
        self.frames += done.frames_in
        self.events += done.events_in
        self.matchings += done.matchings
        self.deliveries += done.deliveries
        self.dropped += done.dropped
        self.strays += done.strays
        self.rejects += len(done.rejected)
        for (epoch, to), crossed in done.sent.items():
            self.messages[to] += crossed.messages
            self.payload_bytes[to] += crossed.payload_bytes
            self.wire_bytes[to] += crossed.wire_bytes
            sum_ = self.sent.setdefault(epoch, {}).setdefault(to, LinkTraffic())
            sum_.add(crossed.messages, crossed.payload_bytes, crossed.wire_bytes)
        events = sum(batch.num_rows for batch in done.published)
        if events:
            size = sum(int(np.asarray(batch.column(SIZE_BYTES)).sum()) for batch in done.published)
            self.published += events
            self.published_bytes += size
            before = self.entered.get(done.epoch, (0, 0))
            self.entered[done.epoch] = before[0] + events, before[1] + size
        for known in (self.entered, self.sent):
            while len(known) > _EPOCHS_COUNTED:
                del known[min(known)]
