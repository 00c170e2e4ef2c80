"""The rows of a history: each says what one client, observer or fault did, and when.

Owns the file format, version 1: one JSON object a line, `kind` first. Times are seconds of one clock, which
all rows of a history share. `at` is when something was begun, `answered` when its answer came.

    run          what the history is of; the first row
    publish      events of one client that were published together, and the outcome
    subscribe    a subscription with its condition; again for the same id if it was asked for again
    unsubscribe  the end of a subscription
    suspension   a client learned that it is suspended: the promise to it ends
    delivery     events that came to a client, for these of its subscriptions, in the order of its lane
    status       what the overlay said of itself: `tells` is what events wait for, `alarms` what is lost
    fault        what was done to the overlay
    end          when the readers stopped waiting; the last row
"""

from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "FORMAT_VERSION",
    "Condition",
    "DeliveryRow",
    "EndRow",
    "FaultRow",
    "HistoryRow",
    "PublishRow",
    "RunRow",
    "StatusRow",
    "SubscribeRow",
    "SuspensionRow",
    "Term",
    "UnsubscribeRow",
]

FORMAT_VERSION = 1

Term: TypeAlias = tuple[str, str, Any]
"""(attribute, operator, value), such as ("x", "<", 5). Operators: = <> < <= > >= in prefix."""

Condition: TypeAlias = tuple[tuple[Term, ...], ...]
"""Holds if all terms of one of its rows hold."""


class RunRow(msgspec.Struct, frozen=True, tag="run", tag_field="kind", omit_defaults=True):
    """What the history is of. `ordered`: each publisher's events must come in order to each subscription.
    `patience_s`: an event that waits longer, while the status says nothing, is in an untold stall."""

    run: str
    at: float
    version: int = FORMAT_VERSION
    seed: int | None = None
    ordered: bool = False
    patience_s: float = 15.0
    about: str = ""


class PublishRow(msgspec.Struct, frozen=True, tag="publish", tag_field="kind", omit_defaults=True):
    """Events of a client, published together: (id, attributes) each. All of them have the same outcome.
    `refused`: the answer said that nothing was stored."""

    client: str
    at: float
    events: tuple[tuple[str, dict[str, Any]], ...]
    outcome: Literal["acknowledged", "refused", "unknown"]
    answered: float | None = None


class SubscribeRow(msgspec.Struct, frozen=True, tag="subscribe", tag_field="kind", omit_defaults=True):
    """A subscription. `active`: the answer said that all brokers know it; `partial`: that not all do."""

    client: str
    subscription: str
    condition: Condition
    at: float
    outcome: Literal["active", "partial", "refused", "unknown"]
    answered: float | None = None


class UnsubscribeRow(msgspec.Struct, frozen=True, tag="unsubscribe", tag_field="kind", omit_defaults=True):
    """The end of a subscription. `ended`: the answer said that all brokers know it."""

    client: str
    subscription: str
    at: float
    outcome: Literal["ended", "unknown"]
    answered: float | None = None


class SuspensionRow(msgspec.Struct, frozen=True, tag="suspension", tag_field="kind", omit_defaults=True):
    """What a client had not been sent by now is no longer promised."""

    client: str
    at: float
    reason: str = ""


class DeliveryRow(msgspec.Struct, frozen=True, tag="delivery", tag_field="kind", omit_defaults=True):
    """A delivery: (id, digest of the attributes) of each event. See `conditions.digest`."""

    client: str
    at: float
    subscriptions: tuple[str, ...]
    events: tuple[tuple[str, str], ...]
    number: int = 0


class StatusRow(msgspec.Struct, frozen=True, tag="status", tag_field="kind", omit_defaults=True):
    """A look at the overlay. Without an answer, that is what it tells."""

    at: float
    answered: float
    tells: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


class FaultRow(msgspec.Struct, frozen=True, tag="fault", tag_field="kind", omit_defaults=True):
    """What was done to the overlay, until `ended`.

    `is_single`: a kill while all else was well: how long events then waited is measured. `reorders`: order
    is not promised across it (a new plan, a move). `forfeits`: it destroyed what was stored once; the loss
    of events that were acknowledged before it ended must show as an alarm.
    """

    what: str
    at: float
    ended: float | None = None
    target: str = ""
    is_single: bool = False
    reorders: bool = False
    forfeits: bool = False


class EndRow(msgspec.Struct, frozen=True, tag="end", tag_field="kind", omit_defaults=True):
    """Nobody waits any more."""

    at: float


HistoryRow: TypeAlias = (
    RunRow
    | PublishRow
    | SubscribeRow
    | UnsubscribeRow
    | SuspensionRow
    | DeliveryRow
    | StatusRow
    | FaultRow
    | EndRow
)
