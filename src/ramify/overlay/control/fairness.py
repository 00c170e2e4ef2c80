"""Fair shares of a broker's and a leader's time: what a client may ask, and whose turn is next. Pure.

Owns the budgets of clients and the queue that serves clients in turn. Time is an argument.

    TokenBucket     an amount that refills at a rate, up to a burst
    ClientBudgets   for each client: requests, and CPU seconds that its requests took
    FairQueue       one queue for each client, served round robin

A budget is charged after the work, since nobody knows before what a request takes. So a client may exceed
its budget by one request, and waits the longer for the next.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["DEFAULT_RATES", "MOST_CLIENTS", "ClientBudgets", "FairQueue", "RequestRates", "TokenBucket"]

_T = TypeVar("_T")

MOST_CLIENTS = 10_000
"""Clients whose budgets are kept. Of more, those that asked least recently have a full budget again."""


@dataclass(frozen=True, slots=True)
class RequestRates:
    """What one client may ask for over time.

    Attributes
    ----------
    requests_per_s, request_burst   how many requests, on average and at once
    cpu_share, cpu_burst_s          CPU seconds a second that its requests may take, and at once
    """

    requests_per_s: float = 100.0
    request_burst: float = 1_000.0
    cpu_share: float = 0.25
    cpu_burst_s: float = 5.0


DEFAULT_RATES = RequestRates()


class TokenBucket:
    """Holds up to `burst`, gains `rate` a second. Charges may take it below zero."""

    __slots__ = ("_at", "_left", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst = rate, burst
        self._left, self._at = burst, now

    def left(self, now: float) -> float:
        """What it holds now; below zero where more was charged than it held."""
        if now > self._at:
            self._left = min(self.burst, self._left + self.rate * (now - self._at))
            self._at = now
        return self._left

    def charge(self, amount: float, now: float) -> None:
        """Take an amount out, whether it is there or not."""
        self._left = self.left(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """How long until it holds this amount, at most its burst; 0 when it does."""
        lacking = min(amount, self.burst) - self.left(now)
        return max(0.0, lacking / self.rate)


class ClientBudgets:
    """See the module. A call costs O(1); `MOST_CLIENTS` clients are kept."""

    def __init__(self, rates: RequestRates | None = None, most: int = MOST_CLIENTS) -> None:
        self.rates = rates or DEFAULT_RATES
        self._most = most
        self._buckets: OrderedDict[str, tuple[TokenBucket, TokenBucket]] = OrderedDict()

    def wait_s(self, client: str, now: float) -> float:
        """How long a client has to wait before it may ask again; 0 when it may now."""
        requests, cpu = self._of(client, now)
        # the CPU that a request takes is not known before: anything left will do
        return max(requests.wait_s(1.0, now), cpu.wait_s(0.0, now))

    def count(self, client: str, now: float) -> None:
        """A client makes a request."""
        self._of(client, now)[0].charge(1.0, now)

    def charge(self, client: str, cpu_s: float, now: float) -> None:
        """A request of a client took so much CPU."""
        self._of(client, now)[1].charge(cpu_s, now)

    def _of(self, client: str, now: float) -> tuple[TokenBucket, TokenBucket]:
        found = self._buckets.get(client)
        if found is None:
            rates = self.rates
            found = self._buckets[client] = (
                TokenBucket(rates.requests_per_s, rates.request_burst, now),
                TokenBucket(rates.cpu_share, rates.cpu_burst_s, now),
            )
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(client)
        return found


class FairQueue(Generic[_T]):
    """What clients wait for: in order for each client, and clients in turn.

    Guarantee  Between a client's item and its turn, every other client is served at most once for each item
               that the client itself has before it, and once more.
    Cost       O(1) a call.
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[_T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many items wait."""
        return self._count

    def __iter__(self) -> Iterator[_T]:
        """All that wait, client by client."""
        return (item for line in self._lines.values() for item in line)

    def waiting(self, client: str) -> int:
        """How many items of a client wait."""
        return len(self._lines.get(client, ()))

    def put(self, client: str, item: _T) -> None:
        """Wait behind the client's other items."""
        self._lines.setdefault(client, deque()).append(item)
        self._count += 1

    def put_back(self, client: str, item: _T) -> None:
        """It was taken too early: it is next again."""
        self._lines.setdefault(client, deque()).appendleft(item)
        self._lines.move_to_end(client, last=False)
        self._count += 1

    def take(self) -> _T:
        """The next item. Raises `KeyError` when none waits."""
        client, line = self._lines.popitem(last=False)
        item = line.popleft()
        self._count -= 1
        if line:
            self._lines[client] = line  # behind all others
        return item

    def clear(self) -> None:
        """Forget all."""
        self._lines.clear()
        self._count = 0
