"""The blocking client ends its event loop in order, wherever Ctrl-C finds it."""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lane_server import LaneServer, lane_server
from ramify.overlay.live.client.blocking import _Loop
from ramify.overlay.live.wire.tasks import run_to_end

PROGRAM = """
import sys
from ramify.overlay.live.client.blocking import BlockingClient

url, seed = sys.argv[1:]
print("begun", flush=True)
try:
    with BlockingClient.connect("alice", url, seed=seed) as client:
        for event in client.subscribe("x = 1", id="s"):
            print(event.id, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_what_is_left_in_the_loop_is_ended_before_the_loop_is_closed() -> None:
    loop = _Loop("test")
    cleaned: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # takes a while, and begins another
            await asyncio.sleep(0.01)
            cleaned.append(name)
            if name == "first":
                others.append(asyncio.create_task(forever("second")))

    others: list[asyncio.Task[None]] = []

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(forever("first"))
        await asyncio.sleep(0)
        return task

    task = loop.run(begin())
    loop.end()
    assert task.cancelled()
    assert all(each.done() for each in others)
    assert cleaned[0] == "first"
    assert loop._loop.is_closed()


def test_the_last_thing_is_done_and_its_fault_told() -> None:
    done: list[int] = []

    async def last() -> None:
        await asyncio.sleep(0.01)
        done.append(1)
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        _Loop("test").end(last())
    assert done == [1]


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupt_anywhere_leaves_no_task_and_no_closed_loop_behind(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(at: LaneServer) -> None:
        await at.deliver(["alice/s"], "e0")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "dev", "-c", PROGRAM, at.server.url, at.seed("alice")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            # while it connects, while it subscribes, or while it waits for more
            for _ in range(rng.randrange(1, 3)):
                await process.stdout.readline()
            await asyncio.sleep(rng.random() * 0.2)
            for _ in range(rng.randrange(1, 4)):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                await asyncio.sleep(rng.random() * 0.02)
            # it ends connections in order, for which it may take twenty seconds
            async with asyncio.timeout(240):
                _, said = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        text = said.decode()
        for bad in ("was destroyed", "loop is closed", "never retrieved", "never awaited"):
            assert bad not in text, text

    async def run() -> None:
        async with asyncio.timeout(240), lane_server(tmp_path) as at:
            await scenario(at)

    run_to_end(run())
