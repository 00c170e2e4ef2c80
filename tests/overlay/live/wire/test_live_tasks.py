"""Tasks end even when a cancellation is swallowed."""

import asyncio

import pytest

from ramify.overlay.live.wire.tasks import end_tasks, run_to_end


class Deaf:
    """A task that hears only the third cancellation."""

    def __init__(self) -> None:
        self.heard = 0

    async def __call__(self) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.heard += 1
                if self.heard == 3:
                    raise


def test_a_swallowed_cancellation_is_repeated() -> None:
    deaf = Deaf()

    async def failing() -> None:
        raise ValueError

    async def scenario() -> None:
        tasks = [asyncio.create_task(deaf()), asyncio.create_task(failing())]
        await asyncio.sleep(0)
        async with asyncio.timeout(240):
            await end_tasks(tasks)
        assert all(task.done() for task in tasks)
        assert isinstance(tasks[1].exception(), ValueError)

    run_to_end(scenario())
    assert deaf.heard == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_ends_although_a_task_that_is_left_swallows_its_cancellation(fails: bool) -> None:
    """With `asyncio.run` it would not: that cancels once."""
    deaf, left = Deaf(), []

    async def scenario() -> str:
        left.append(asyncio.create_task(deaf()))
        await asyncio.sleep(0)
        if fails:
            raise ValueError("for this")
        return "done"

    if fails:
        with pytest.raises(ValueError, match="for this"):
            run_to_end(scenario())
    else:
        assert run_to_end(scenario()) == "done"
    assert deaf.heard == 3
    assert left[0].cancelled()
