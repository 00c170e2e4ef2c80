"""A process says once a second, through a pipe to its parent, that its event loop runs, and what is stuck.

Owns both ends. A pipe needs no port and no room on a disk, and ends with the process. The child finds its
end in the environment (`beat`); the parent reads the other (`Pulse`). A child that nobody started so does
nothing.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping

__all__ = ["ENVIRONMENT", "Pulse", "beat"]

ENVIRONMENT = "RAMIFY_HEARTBEAT_FD"
_EVERY_S = 1.0
_MOST_READ = 1 << 16


async def beat(say: Callable[[], Mapping[str, float]] = dict) -> None:
    """Until cancelled: write what `say` returns, name -> for how many seconds it has been stuck."""
    told = os.environ.pop(ENVIRONMENT, "")
    if not told:
        return
    fd = int(told)
    # a parent that does not read must not stop the loop
    os.set_blocking(fd, False)
    try:
        while True:
            line = json.dumps({name: round(for_s, 1) for name, for_s in say().items() if for_s})
            with contextlib.suppress(BlockingIOError):
                os.write(fd, line.encode() + b"\n")
            await asyncio.sleep(_EVERY_S)
    except OSError:
        return  # the parent is gone, and with it the need
    finally:
        os.close(fd)


class Pulse:
    """The parent's end: when the child was last heard, and what it said."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._heard_at: float | None = None
        self._rest = b""
        self.stuck: dict[str, float] = {}
        """What the child last said: name -> seconds."""

    def pipe(self) -> int:
        """A new pipe, for a process that is about to start; returns the end to give it, and close."""
        self.close()
        self._fd, given = os.pipe()
        os.set_blocking(self._fd, False)
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        return given

    @property
    def silent_s(self) -> float:
        """How long nothing was heard; 0 before the first beat, which comes when the process is ready."""
        return 0.0 if self._heard_at is None else time.monotonic() - self._heard_at

    def close(self) -> None:
        """Listen no more."""
        if self._fd is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        self._fd, self._heard_at, self._rest, self.stuck = None, None, b"", {}

    def _read(self) -> None:
        assert self._fd is not None
        try:
            data = os.read(self._fd, _MOST_READ)
        except BlockingIOError:
            return
        if not data:
            # the process ended: nothing is known of the next one
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines[-1:]:
            self._heard_at = time.monotonic()
            self.stuck = json.loads(line)
