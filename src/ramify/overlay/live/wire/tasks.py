"""Ending tasks for good, running several as one, and the signals that ask for the end.

Python 3.11's `asyncio.wait_for` can swallow a cancellation that comes just when what it waits for is done
(cpython #86296), and the NATS library uses it: a task that loops would then run on, and what waits for
its end would wait forever. So a cancellation is repeated until it is heard. `asyncio.run` cancels once what
is left at its end, such as the tasks of connections; `run_to_end` is for whole processes.
"""

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["end_tasks", "ending_signals", "run_to_end", "together"]

_T = TypeVar("_T")

_CANCEL_AGAIN_S = 0.5


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask a process to end: not a hangup where `nohup` has us ignore it."""
    both = (signal.SIGINT, signal.SIGTERM)
    return both if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*both, signal.SIGHUP)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when all have ended, however they end. Cancelling this stops the waiting."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)


def run_to_end(work: Coroutine[Any, Any, _T]) -> _T:
    """As `asyncio.run`; tasks that `work` leaves behind are cancelled until they end."""

    async def whole() -> _T:
        try:
            return await work
        finally:
            await end_tasks(asyncio.all_tasks() - {asyncio.current_task()})

    return asyncio.run(whole())


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then end the others; raises what that one raised."""
    tasks = [asyncio.create_task(each) for each in work]
    for task in tasks:
        # looked at, or the loop would complain about those that fail while all end
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(tasks)
    for task in done:
        task.result()
