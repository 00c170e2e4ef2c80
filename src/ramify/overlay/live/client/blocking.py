"""The client for programs without an event loop: `Client` in a thread of its own, call by call.

Owns the thread. Every method is that of `Client`, waits for it, and raises what it raises. Iterating waits
too; Ctrl-C ends the waiting and loses no event.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ramify.errors import LiveError
from ramify.overlay.control.records import (
    CLIENT_LEASE_S,
    CLIENT_QUOTA_BYTES,
    Advertisement,
    ClientSubscription,
)
from ramify.overlay.live.client.client import (
    Client,
    Filter,
    LiveSubscription,
    PendingClient,
    Policy,
    place_of,
)
from ramify.overlay.live.client.inbox import ReceivedEvent
from ramify.overlay.live.client.lane import DeliveredBatch
from ramify.overlay.live.wire.tasks import end_tasks

if TYPE_CHECKING:
    from ramify.overlay.live.client.outbox import Publishable

__all__ = ["BlockingClient", "BlockingSubscription"]

_T = TypeVar("_T")

# connections are closed in order before: what is left then hangs
_END_S = 10.0
_LAST_TURNS = 8


class _Loop:
    """An event loop in a thread. The thread ends what the loop still has, even on an interrupt."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._last: Coroutine[Any, Any, None] | None = None
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._wind_up())
        finally:
            self._loop.close()

    async def _wind_up(self) -> None:
        """Do the last thing, end all tasks, and let the transports that they closed go: once the loop is
        closed it would be too late for any of it."""
        try:
            async with asyncio.timeout(_END_S):
                if self._last is not None:
                    await self._last
        except Exception as error:
            self._fault = error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                # a task that was cancelled already may be closing a connection
                if ending := {task for task in _others() if task.cancelling()}:
                    await asyncio.wait(ending, timeout=1.0)
                # those that end may begin others
                while left := _others():
                    await end_tasks(left)
                await self._loop.shutdown_asyncgens()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    def run(self, work: Coroutine[Any, Any, _T], undo: Callable[[_T], None] | None = None) -> _T:
        """Wait for something done in the loop. If the waiting is interrupted it is cancelled; if it was
        finished just then, `undo` gets the result that nobody saw."""
        if not self._thread.is_alive():
            work.close()
            raise LiveError("the client is closed")
        done: list[_T] = []

        async def noted() -> _T:
            done.append(await work)
            return done[0]

        future = asyncio.run_coroutine_threadsafe(noted(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done() or (done and undo is not None):
                future.cancel()
                self._loop.call_soon_threadsafe(lambda: undo(done[0]) if done and undo else None)
            raise

    def end(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Do a last thing, stop the loop, and wait for the thread. That takes seconds at the most, so it is
        seen through when it is interrupted. Raises what the last thing raised."""
        self._last = last
        self._loop.call_soon_threadsafe(self._loop.stop)
        interrupted: BaseException | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted
        if self._fault is not None:
            raise self._fault


def _others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


class BlockingClient:
    """`Client` without `await`. Make it with `connect` or `at`, use it with `with`, and in one thread."""

    def __init__(self, connecting: Callable[[], PendingClient]) -> None:
        made = connecting()
        self._loop = _Loop("ramify-client")
        try:
            self._client: Client = self._loop.run(_awaited(made))
        except BaseException:
            self._loop.end()
            raise
        self._is_closed = False

    @classmethod
    def connect(
        cls,
        name: str,
        url: str,
        *,
        seed: str | None = None,
        seed_file: str | Path | None = None,
        after: int | None = None,
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
        on_move: Policy = "accept",
        insecure_clear_text: bool = False,
    ) -> "BlockingClient":
        """Connect; see `Client.connect`. `on_move` is called in the client's thread."""
        return cls(
            lambda: Client.connect(
                name,
                url,
                seed=seed,
                seed_file=seed_file,
                after=after,
                timeout_s=timeout_s,
                tls=tls,
                on_move=on_move,
                insecure_clear_text=insecure_clear_text,
            )
        )

    @classmethod
    def at(
        cls,
        directory: str | Path,
        name: str,
        *,
        after: int | None = None,
        timeout_s: float = 30.0,
        on_move: Policy = "accept",
    ) -> "BlockingClient":
        """Connect to an overlay on this machine; see `Client.at`."""
        place = place_of(directory, name)
        return cls.connect(
            name, place.url, seed_file=place.seed_file, after=after, timeout_s=timeout_s, on_move=on_move
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Acknowledge what is dealt with, and disconnect."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.end(self._client.close())

    @property
    def name(self) -> str:
        """The client's name."""
        return self._client.name

    def publish(
        self, events: "Publishable", *, id: str | None = None, give_up_s: float = 60.0, check: bool = True
    ) -> int:
        """See `Client.publish`."""
        return self._loop.run(self._client.publish(events, id=id, give_up_s=give_up_s, check=check))

    def subscribe(
        self,
        filter: Filter | None = None,
        *,
        sql: str | None = None,
        pattern: Mapping[str, Any] | None = None,
        keywords: Sequence[str] | Sequence[Sequence[str]] | None = None,
        sigma: Mapping[str, Any] | None = None,
        id: str | None = None,
        quota_bytes: int = CLIENT_QUOTA_BYTES,
        lease_s: int = CLIENT_LEASE_S,
        wait_s: float = 5.0,
        raise_if_missing: bool = False,
        latency_ms: float | None = None,
    ) -> "BlockingSubscription":
        """Subscribe, and wait until it is done; see `Client.subscribe`."""

        async def subscribed() -> LiveSubscription:
            return await self._client.subscribe(
                filter,
                sql=sql,
                pattern=pattern,
                keywords=keywords,
                sigma=sigma,
                id=id,
                quota_bytes=quota_bytes,
                lease_s=lease_s,
                wait_s=wait_s,
                raise_if_missing=raise_if_missing,
                latency_ms=latency_ms,
            )

        return BlockingSubscription(self._loop, self._client, self._loop.run(subscribed()))

    def unsubscribe(self, id: str, *, wait_s: float = 5.0) -> Mapping[str, str]:
        """See `Client.unsubscribe`."""
        return self._loop.run(self._client.unsubscribe(id, wait_s=wait_s))

    def advertise(
        self,
        filter: Filter | None = None,
        *,
        sql: str | None = None,
        pattern: Mapping[str, Any] | None = None,
        keywords: Sequence[str] | Sequence[Sequence[str]] | None = None,
        sigma: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> str:
        """See `Client.advertise`."""
        return self._loop.run(
            self._client.advertise(filter, sql=sql, pattern=pattern, keywords=keywords, sigma=sigma, id=id)
        )

    def unadvertise(self, id: str) -> None:
        """See `Client.unadvertise`."""
        self._loop.run(self._client.unadvertise(id))

    def subscriptions(self) -> dict[str, ClientSubscription]:
        """See `Client.subscriptions`."""
        return self._loop.run(self._client.subscriptions())

    def advertisements(self) -> dict[str, Advertisement]:
        """See `Client.advertisements`."""
        return self._loop.run(self._client.advertisements())

    def resume(self, *, wait_s: float = 5.0) -> Mapping[str, str]:
        """See `Client.resume`."""
        return self._loop.run(self._client.resume(wait_s=wait_s))

    def deliveries(
        self, after: int | None = None, *, timeout_s: float | None = None
    ) -> Iterator[DeliveredBatch]:
        """See `Client.deliveries`; it ends when nothing came for `timeout_s`."""
        lane = self._client.deliveries(after)
        try:
            while (delivered := self._loop.run(_one(lane, timeout_s))) is not None:
                yield delivered
        finally:
            if not self._is_closed:
                self._loop.run(lane.aclose())

    def acknowledge(self, number: int) -> None:
        """See `Client.acknowledge`."""
        self._loop.run(self._client.acknowledge(number))


class BlockingSubscription:
    """An iterator of `ReceivedEvent` without end; see `LiveSubscription`."""

    def __init__(self, loop: _Loop, client: Client, subscription: LiveSubscription) -> None:
        self._loop = loop
        self._client = client
        self._subscription = subscription

    @property
    def id(self) -> str:
        """The id within the client."""
        return self._subscription.id

    @property
    def missing(self) -> Mapping[str, str]:
        """Where it was not active yet when it was made, with why."""
        return self._subscription.missing

    def get(self, timeout_s: float | None = None) -> ReceivedEvent | None:
        """The next event; None when none came in time, or the subscription has ended."""
        return self._loop.run(self._subscription.get(timeout_s), self._put_back)

    def unsubscribe(self) -> None:
        """End it."""
        self._loop.run(self._subscription.unsubscribe())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedEvent:
        found = self.get()
        if found is None:
            raise StopIteration
        return found

    def _put_back(self, event: ReceivedEvent | None) -> None:
        if event is not None:
            self._client._incoming.put_back(event)


async def _awaited(connecting: PendingClient) -> Client:
    return await connecting


async def _one(
    lane: AsyncGenerator[DeliveredBatch, None], timeout_s: float | None
) -> DeliveredBatch | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await anext(lane, None)
    except TimeoutError:
        return None
