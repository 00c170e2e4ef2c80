"""Virtual time: an event loop that never waits, and everything else that a run would differ by.

Owns the loop, the clocks and the randomness of a simulated run. A *process* is all that runs in a context
where `PROCESS` has its name. It can be stopped and woken as by SIGSTOP and SIGCONT, or killed as by
SIGKILL: at whatever await its tasks are, with no `finally` run.
"""

import asyncio
import contextlib
import contextvars
import itertools
import os
import random
import selectors
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

import nats.aio.client
import nats.nuid

__all__ = ["PROCESS", "StalledError", "VirtualLoop", "simulated", "spawn"]

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("PROCESS", default="")

_NOWHERE = contextvars.Context()
WALL_S = 1_800_000_000.0
_TURN_S = 5e-6
_MOST_TURNS = 20_000
"""Turns of the loop without a timer: a task that never waits would hold up a real process too."""


class StalledError(AssertionError):
    """Nothing will ever happen again, or something happens for ever without time going on."""


class _Task(asyncio.Task):  # type: ignore[type-arg]
    """A task that sets of tasks list in the order of creation, not by address."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **options)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Jump(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        self.loop.advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        self._now = 1_000.0
        self._turns = 0
        self.rng = rng
        # the run has ended: what is left of its tasks is dropped, and none of it happens
        self.is_over = False
        self.stopped: set[str] = set()
        self._held: dict[str, list[asyncio.Handle]] = {}
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(lambda loop, work, **options: _Task(work, loop=loop, **options))
        self.faults: list[str] = []
        self.set_exception_handler(self._note_fault)

    def time(self) -> float:
        return self._now

    def advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise StalledError("nothing will ever happen again: every task waits for another")
        if timeout > 0:
            self._now += timeout
            self._turns = 0
            return
        # a turn takes a moment, or a task that yields without end would stop the world
        self._now += _TURN_S
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise StalledError(f"{_MOST_TURNS} turns of the loop without a pause")

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.is_over:
            return asyncio.Handle(callback, args, self, context)
        handle = super().call_soon(callback, *args, context=context)
        if self.stopped:
            process = handle._context.get(PROCESS, "")  # type: ignore[attr-defined]
            if process in self.stopped:
                self._ready.pop()  # type: ignore[attr-defined]
                self._held.setdefault(process, []).append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer: list[asyncio.TimerHandle] = []
        timer.append(super().call_at(when, self._fire, timer, callback, args, context=context))
        return timer[0]

    def _fire(
        self, timer: list[asyncio.TimerHandle], callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if self.stopped and PROCESS.get() in self.stopped:
            self.call_soon(self._fire, timer, callback, args)
        # what runs before it when a process wakes may cancel it
        elif not timer[0].cancelled():
            callback(*args)

    def later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """As `call_later`, for what belongs to no process."""
        return super().call_at(self._now + delay, callback, *args, context=_NOWHERE)

    def stop_process(self, process: str) -> None:
        """As SIGSTOP; for good it is SIGKILL."""
        self.stopped.add(process)

    def wake_process(self, process: str) -> None:
        """As SIGCONT."""
        self.stopped.discard(process)
        for handle in self._held.pop(process, ()):
            self._ready.append(handle)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Threads: done at once, heard of a little later."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            result, error = work(*args), None
        except Exception as fault:
            result, error = None, fault

        def tell() -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(self.rng.random() * 0.002, tell)
        return done

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        raise AssertionError(f"a simulation asks for the real network: {args}")

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Generators that a killed process leaves behind are not ended."""

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


def spawn(
    loop: VirtualLoop,
    context: contextvars.Context,
    process: str,
    work: Callable[[], Coroutine[Any, Any, Any]],
) -> "asyncio.Task[Any]":
    """Begin a process with this task, in a copy of a context."""
    context = context.copy()
    context.run(PROCESS.set, process)
    return context.run(lambda: loop.create_task(work()))


@contextlib.contextmanager
def simulated(seed: int) -> Iterator[VirtualLoop]:
    """A virtual loop, with every clock and every source of randomness of this process tied to it."""
    ours, theirs = random.Random(f"clock {seed}"), random.Random(f"code {seed}")
    _Task._numbers = itertools.count()
    loop = VirtualLoop(ours)

    def wall() -> float:
        return WALL_S + loop.time()

    def clock(_: int) -> float:
        return loop.time()

    def unique() -> uuid.UUID:
        return uuid.UUID(int=theirs.getrandbits(128), version=4)

    patches: list[tuple[Any, str, Any]] = [
        (time, "monotonic", loop.time),
        (time, "time", wall),
        (time, "time_ns", lambda: int(wall() * 1e9)),
        (time, "clock_gettime", clock),
        # threads take no time: what is charged for work depends on the machine
        (time, "thread_time", float),
        (uuid, "uuid4", unique),
        (os, "urandom", theirs.randbytes),
        (random, "random", theirs.random),
        (nats.nuid, "randbelow", theirs.randrange),
        (nats.nuid, "token_bytes", theirs.randbytes),
        (nats.aio.client, "token_hex", lambda size: theirs.randbytes(size).hex()),
    ]
    with contextlib.ExitStack() as stack:
        for place, name, instead in patches:
            stack.enter_context(mock.patch.object(place, name, instead))
        stack.callback(_end, loop)
        asyncio.set_event_loop(loop)
        yield loop


def _end(loop: VirtualLoop) -> None:
    """Drop the tasks that are left, as a process that ends does, and close the loop."""
    asyncio.set_event_loop(None)
    loop.is_over = True
    loop.set_exception_handler(lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in asyncio.all_tasks(loop):
            # a `finally` that awaits something says that it cannot
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]
    loop.close()
