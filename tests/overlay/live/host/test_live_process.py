"""A process of brokers: a fault in one is its own."""

import asyncio
from typing import Any

import pytest

from ramify.overlay.live.broker.log import SupersededError
from ramify.overlay.live.host import process
from ramify.overlay.live.wire.tasks import run_to_end


class _Broker:
    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self._error = name, error
        self.began = asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


def test_a_fault_of_one_broker_starts_that_one_again_and_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "_AGAIN_S", 0.01)

    async def run() -> None:
        good, bad, new = _Broker("good"), _Broker("bad", KeyError("a fault of ours")), _Broker("bad")
        brokers: list[Any] = [good, bad]
        tasks = [asyncio.create_task(process.keep_running(brokers, k, lambda: new)) for k in range(2)]  # type: ignore[arg-type,return-value]
        async with asyncio.timeout(60):
            await new.began.wait()
        assert brokers == [good, new]
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()

    run_to_end(run())
    assert "a fault of ours" in caplog.text


def test_a_broker_that_another_process_runs_is_not_started_again() -> None:
    async def run() -> None:
        brokers: list[Any] = [_Broker("a", SupersededError("another router runs it"))]
        with pytest.raises(SupersededError):
            await process.keep_running(brokers, 0, lambda: pytest.fail("it was started again"))

    run_to_end(run())
