"""CPU-heavy work of requests, done beside the event loop.

Owns the one thread of a process that does it. One, because threads of Python take turns: with several, the
loop would wait for each of them before its own turn. So leases are renewed and others are answered while a
request is worked on.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ramify.overlay.control.fairness import FairQueue

__all__ = ["WorkResult", "Workbench", "beside"]

_T = TypeVar("_T")

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="ramify-requests")


@dataclass(frozen=True, slots=True)
class WorkResult(Generic[_T]):
    """A result, and the CPU seconds that it took."""

    result: _T
    cpu_s: float


async def beside(work: Callable[[], _T]) -> WorkResult[_T]:
    """Do work in the thread for requests, after what was given to it before. Raises what the work does."""

    def timed() -> WorkResult[_T]:
        began = time.thread_time()
        return WorkResult(work(), time.thread_time() - began)

    return await asyncio.get_running_loop().run_in_executor(_THREAD, timed)


class Workbench:
    """Work for clients, one piece at a time, clients in turn (`FairQueue`)."""

    def __init__(self) -> None:
        self._queue: FairQueue[tuple[Callable[[], Any], asyncio.Future[WorkResult[Any]]]] = FairQueue()
        self._busy = False

    def waiting(self, client: str) -> int:
        """How much work of a client has not begun."""
        return self._queue.waiting(client)

    async def do(self, client: str, work: Callable[[], _T]) -> WorkResult[_T]:
        """Do work for a client when its turn comes. Cancelled before that, it is not done."""
        turn: asyncio.Future[WorkResult[_T]] = asyncio.get_running_loop().create_future()
        self._queue.put(client, (work, turn))
        if not self._busy:
            self._busy = True
            self._begin()
        return await turn

    def _begin(self) -> None:
        """Begin the next piece that somebody still waits for."""
        while len(self._queue):
            work, turn = self._queue.take()
            if not turn.done():
                task = asyncio.ensure_future(beside(work))
                task.add_done_callback(lambda done, turn=turn: self._end(done, turn))  # type: ignore[misc]
                return
        self._busy = False

    def _end(self, done: "asyncio.Task[WorkResult[Any]]", turn: "asyncio.Future[WorkResult[Any]]") -> None:
        if done.cancelled():
            turn.cancel()
        elif (error := done.exception()) is not None:
            if not turn.done():
                turn.set_exception(error)
        elif not turn.done():
            turn.set_result(done.result())
        self._begin()
