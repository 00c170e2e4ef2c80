"""Asking for moves from outside: an operator's wish, and what becomes of it.

Owns the way there, as the operator of the control server. `request_move` has the leader offer a client
another broker; `follow` says what phases the move goes through, to its end.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from ramify.errors import LiveError
from ramify.overlay.control.moves import is_open
from ramify.overlay.control.names import OPERATE, token
from ramify.overlay.control.records import ForwardedRequest, Move, Request, decode
from ramify.overlay.live.broker.client_requests import Leader
from ramify.overlay.live.client.errors import refused
from ramify.overlay.live.coordinator.moves import move_key
from ramify.overlay.live.host.directory import OPERATOR
from ramify.overlay.live.wire.store import INITIAL, Store
from ramify.overlay.live.wire.streams import Endpoint, connect, disconnect

__all__ = ["DEFAULT_ANSWER_S", "DEFAULT_TTL_S", "follow", "request_move"]

DEFAULT_TTL_S = 600.0
"""How long the old broker redirects a client by itself."""

DEFAULT_ANSWER_S = 60.0
"""How long a client may think about an offer."""


async def request_move(
    control: Endpoint,
    client: str,
    foreign: str,
    *,
    home: str = "",
    reason: str = "",
    ttl_s: float = DEFAULT_TTL_S,
    answer_s: float = DEFAULT_ANSWER_S,
    wait_s: float = 10.0,
) -> Move:
    """Have the leader offer a client another broker. `home` says where one is that has asked for nothing.

    The same wish again is the same move while that is open. Raises `RefusedError` with what is against it,
    `LiveError` when nobody answers.
    """
    leader = Leader(f"{OPERATE}.{token(OPERATOR)}")
    async with asyncio.timeout(wait_s + 10.0):
        leader.connection = await connect(control)
    try:
        request = Request("move", wait_s=wait_s)
        wish = ForwardedRequest(home, client, request, reason, foreign, ttl_s=ttl_s, answer_s=answer_s)
        answer = await leader.ask(wish)
    finally:
        await disconnect(leader.connection)
    if answer.error is not None:
        raise refused(answer.error)
    if answer.move is None:
        raise LiveError("the coordinator answered without a move: it is of another version")
    return answer.move


async def follow(store: Store, move: Move) -> AsyncGenerator[Move, None]:
    """A move in every phase that is seen of it, the last one as it ended."""
    phase = ""
    async with contextlib.aclosing(store.watch(move_key(move.client))) as changes:
        async for change in changes:
            if change is INITIAL:
                continue
            found = None if change.value is None else decode(change.value, Move)
            if found is None or found.id != move.id:
                raise LiveError(f"the move of client {move.client!r} is no longer on record: it is over")
            if found.phase != phase:
                phase = found.phase
                yield found
            if not is_open(found):
                return
