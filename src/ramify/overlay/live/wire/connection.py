"""A connection whose reading survives whatever another client put into a message.

nats-py reads subjects, replies and headers outside of any `try`: a header block that is no UTF-8, in a
message that any client may publish, ends its reading without a word, and the connection is deaf until its
pings are missed. Here such a block is read as far as it can be, a message that cannot be read at all is
dropped and told, and reading that ends for any other reason is a broken connection at once.
"""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from nats.aio.client import Client as Nats
from nats.aio.transport import Transport
from nats.errors import AuthorizationError, StaleConnectionError

__all__ = ["TRANSPORT", "SteadyConnection", "read_headers"]

_log = logging.getLogger(__name__)

TRANSPORT: ContextVar[Callable[[], Transport] | None] = ContextVar("TRANSPORT", default=None)
"""Makes the transport of every connection that is opened from here on; without one it is TCP or TLS.
All that this package and the NATS library do runs on another transport as it is, say a simulated one."""

_FIRST_LINE = b"NATS/1.0"
_STATUS_DIGITS = 3
_MOST_HEADERS = 1_000


class SteadyConnection(Nats):
    """See the module."""

    def __init__(
        self, *, trusts_announced: bool = True, seed: Callable[[], str | None] | None = None
    ) -> None:
        super().__init__()
        self._trusts_announced, self._seed = trusts_announced, seed
        self.unreadable = 0
        """Messages that were dropped because they could not be read."""

    @property
    def is_answered(self) -> bool:
        """Whether there is a connection, and the server has not left a ping unanswered until the next one.
        It may be cut off without the kernel's knowing; the library gives such a one up later."""
        return bool(self.is_connected) and self._pings_outstanding <= 1

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # in the clear a server, or whoever answers in its place, must not name others to speak to
        told = info if self._trusts_announced else {**info, "connect_urls": []}
        await super()._process_info(told, initial_connection)

    def _connect_command(self) -> bytes:
        found = None if self._seed is None else self._seed()
        if found is not None and found != self._nkeys_seed_str:
            self._nkeys_seed_str = found
            self._setup_nkeys_seed_connect()
        return super()._connect_command()

    async def _process_err(self, err_msg: str) -> None:
        if self.is_connected and "authentication" in err_msg.lower():
            # the key no longer counts there: it was rotated, or revoked. The library would close for good
            _log.warning("%s: the server cut the connection (%s)", self.options["name"], err_msg)
            await self._process_op_err(AuthorizationError())
            return
        await super()._process_err(err_msg)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return read_headers(headers) if headers else None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception as error:
            self.unreadable += 1
            if self.unreadable & (self.unreadable - 1) == 0:  # the first, and ever more rarely
                said = "a message on %r could not be read and was dropped: %r (%d so far)"
                _log.warning(said, subject[:200], error, self.unreadable)

    async def _read_loop(self) -> None:
        await super()._read_loop()
        # it returns when it was told to, and also after an error that it only logs
        if self.is_connected:
            await self._process_op_err(StaleConnectionError())


def read_headers(block: bytes) -> dict[str, str] | None:
    """The headers of a message, with `Status` and `Description` of one that a server made. Never raises.

    Of a name that occurs twice the first counts, as for the server. Bytes that are no UTF-8 become U+FFFD.
    A block that does not begin as the protocol says has no headers. O(bytes).
    """
    lines = block.split(b"\r\n", _MOST_HEADERS)
    first = lines[0]
    if not first.startswith(_FIRST_LINE):
        return None
    found: dict[str, str] = {}
    status = first[len(_FIRST_LINE) :].strip()
    code = status[:_STATUS_DIGITS]
    if code.isdigit():
        found["Status"] = code.decode()
        if said := status[_STATUS_DIGITS:].strip():
            found["Description"] = said.decode(errors="replace")
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if colon and name.split() == [name]:
            found.setdefault(name.decode(errors="replace"), value.strip().decode(errors="replace"))
    return found or None
