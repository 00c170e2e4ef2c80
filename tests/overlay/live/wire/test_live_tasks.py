"""Tasks end even when a cancellation is swallowed."""

import asyncio

from ramify.overlay.live.wire.tasks import end_tasks


def test_a_swallowed_cancellation_is_repeated() -> None:
    heard = 0

    async def deaf() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard += 1
                if heard == 3:
                    raise

    async def failing() -> None:
        raise ValueError

    async def scenario() -> None:
        tasks = [asyncio.create_task(deaf()), asyncio.create_task(failing())]
        await asyncio.sleep(0)
        async with asyncio.timeout(240):
            await end_tasks(tasks)
        assert all(task.done() for task in tasks)
        assert isinstance(tasks[1].exception(), ValueError)

    asyncio.run(scenario())
    assert heard == 3
