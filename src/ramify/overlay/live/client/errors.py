"""What a client is told when a request was not done: one error for each thing to do about it.

    RefusedError                    has the `code` of the answer
    ├── RefusedFilterError          bad_filter, too_complex
    ├── UnknownSubscriptionError    unknown
    ├── ExistsError                 exists
    └── UnavailableError            no_coordinator, unavailable, busy; unreachable (no answer came)
    SuspendedError                  suspended, or read on the lane (`client`)
    NotEverywhereError              done, but not active at some brokers yet

All are `LiveError`.
"""

from collections.abc import Mapping

from ramify.errors import LiveError
from ramify.overlay.control.records import Refusal
from ramify.overlay.live.client.lane import SuspendedError

__all__ = [
    "TRANSIENT",
    "ExistsError",
    "NotEverywhereError",
    "RefusedError",
    "RefusedFilterError",
    "UnavailableError",
    "UnknownSubscriptionError",
    "refused",
]


class RefusedError(LiveError):
    """The broker or the coordinator refused a request. `code` is that of the answer."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{reason} ({code})")


class RefusedFilterError(RefusedError):
    """The filter is invalid or too complex."""


class UnknownSubscriptionError(RefusedError):
    """The client has no subscription or advertisement of this id."""


class ExistsError(RefusedError):
    """The id is taken by another filter: choose another id, or unsubscribe first."""


class UnavailableError(RefusedError):
    """No coordinator or broker did it in time, or the client asks too much: it may be made again later."""


class NotEverywhereError(LiveError):
    """A change is not active at some brokers yet: `missing` says where and why."""

    def __init__(self, id: str, missing: Mapping[str, str]) -> None:
        self.missing = dict(missing)
        where = "; ".join(f"{broker}: {why}" for broker, why in sorted(self.missing.items())[:5])
        super().__init__(
            f"{id!r} is not active everywhere yet ({where}). It will be; ask again to wait for it."
        )


TRANSIENT = frozenset({"no_coordinator", "unavailable", "busy"})
"""Answers that may be others a moment later: the client asks again by itself, for as long as it may."""

_ERRORS: dict[str, type[RefusedError]] = {
    "bad_filter": RefusedFilterError,
    "too_complex": RefusedFilterError,
    "unknown": UnknownSubscriptionError,
    "exists": ExistsError,
    "no_coordinator": UnavailableError,
    "unavailable": UnavailableError,
    "busy": UnavailableError,
}


def refused(problem: Refusal) -> LiveError:
    """The error of an answer."""
    if problem.code == "suspended":
        return SuspendedError("", text=f"{problem.reason}. Call resume() to go on.")
    return _ERRORS.get(problem.code, RefusedError)(problem.code, problem.reason)
