"""A broker's part in moves: offers handed to its clients, lanes begun and ended, clients sent on.

Owns what a broker does for the records `moves.<client>` (`moving.duty_of`), and the answers to what clients
ask about it: `where`, `offer`, and whatever a client asks that has moved away. A duty is done, and told to
the leader, again and again until the record says otherwise; each may be done twice.

Clients wait for offers without end, so an open question costs an entry of a table and no task.

    Porter    of one broker, until cancelled
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import nats.errors
from nats.aio.msg import Msg

from ramify.errors import InputError, LiveError
from ramify.overlay.control.moves import DONE, Duty, LaneEnd, duty_of, is_open
from ramify.overlay.control.names import token
from ramify.overlay.control.records import (
    MOVES,
    Answer,
    ClientPlace,
    ClientRecord,
    ForwardedRequest,
    Move,
    Refusal,
    Request,
    Status,
    decode,
)
from ramify.overlay.live.broker.client_requests import respond
from ramify.overlay.live.broker.quotas import Guard
from ramify.overlay.live.wire.pauses import STORE_LIMIT_S, TROUBLE_PAUSE_S
from ramify.overlay.live.wire.store import INITIAL, Store
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["Porter"]

_log = logging.getLogger(__name__)

_MOVE_LOOK_S = 1.0
_MOST_KEPT = 10_000
_MOST_POLLS = 8


@dataclass(frozen=True, slots=True)
class _Poll:
    """A client's question for offers, and when it has waited long enough."""

    message: Msg
    until: float


class Porter:
    """See the module. `tell` passes a request on to the leader; `record` reads what a client asked for."""

    def __init__(
        self,
        name: str,
        url: str,
        guard: Guard,
        tell: Callable[[ForwardedRequest], Awaitable[Answer]],
        store: Callable[[], Awaitable[Store]],
        record: Callable[[str], Awaitable[ClientRecord | None]],
    ) -> None:
        self._name, self._url = name, url
        self._guard, self._tell, self._store, self._record = guard, tell, store, record
        self._moves: dict[str, Move] = {}
        # several processes may use the name of a client
        self._polls: dict[str, list[_Poll]] = {}
        self._doing: dict[tuple[str, Duty], asyncio.Task[None]] = {}
        # what was said of clients before, for when the control server is away
        self._places: dict[str, ClientPlace] = {}

    async def run(self) -> None:
        """Do the duties of all moves, as they come."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            store = await self._store()
            async with contextlib.aclosing(store.watch(MOVES)) as changes:
                async for change in changes:
                    if change is INITIAL:
                        continue
                    try:
                        await self._heard(change.key, change.value)
                    except InputError as error:
                        _log.warning("broker %s: %s is unreadable: %s", self._name, change.key, error)
        finally:
            await end_tasks([sweeping, *self._doing.values()])

    async def _heard(self, key: str, value: bytes | None) -> None:
        if value is None:
            gone = [client for client in self._moves if key == f"{MOVES}.{token(client)}"]
            for client in gone:
                del self._moves[client]
            return
        move = decode(value, Move)
        self._moves[move.client] = move
        duty = duty_of(move, self._name, time.time())
        if duty in (Duty.REPLICATE, Duty.END) and (move.id, duty) not in self._doing:
            task = asyncio.create_task(self._do(move, duty))
            self._doing[move.id, duty] = task
            task.add_done_callback(lambda _: self._doing.pop((move.id, duty), None))
        await self._answer_polls(move.client)

    # ---------------------------------------------------------------------------------------- duties

    async def _do(self, move: Move, duty: Duty) -> None:
        """Do it, and tell the leader, until that answers or the move is elsewhere."""
        while self._moves.get(move.client) in (move, None):
            try:
                if duty is Duty.REPLICATE:
                    passed = self._said("replicated", move, await self._guard.begin_lane(move.client))
                else:
                    onward = LaneEnd(move.id, move.foreign, move.start)
                    passed = self._said("ended", move, await self._guard.end_lane(move.client, onward))
                answer = await self._tell(passed)
                if answer.ok or (answer.error is not None and answer.error.code == "unknown"):
                    return
            except (LiveError, InputError, nats.errors.Error, TimeoutError, OSError) as error:
                _log.warning(
                    "broker %s cannot %s for client %s yet: %s", self._name, duty.value, move.client, error
                )
            await asyncio.sleep(TROUBLE_PAUSE_S)

    def _said(self, op: str, move: Move, number: int) -> ForwardedRequest:
        return ForwardedRequest(self._name, move.client, Request(op, move.id), number=number)

    # ------------------------------------------------------------------------------- clients' questions

    async def ask(self, client: str, request: Request, message: Msg) -> Answer | None:
        """See `asking.Moves`."""
        if request.op == "where":
            return Answer(ok=True, place=await self._place(client))
        if (elsewhere := await self._redirected(client)) is not None:
            return Answer(error=elsewhere)
        if request.op != "offer":
            return None
        polls = self._polls.setdefault(client, [])
        polls.append(_Poll(message, time.monotonic() + request.wait_s))
        if len(polls) > _MOST_POLLS:
            await respond(polls.pop(0).message, Answer(ok=True))
        await self._answer_polls(client)
        return None

    async def improved(self, client: str, answer: Answer) -> Answer:
        """See `asking.Moves`. Without a leader the record says where a client is."""
        error = answer.error
        if error is None:
            return answer
        if error.code == "moved":
            url = await self._url_of(error.broker)
            return msgspec.structs.replace(answer, error=msgspec.structs.replace(error, url=url))
        if error.code == "no_coordinator":
            with contextlib.suppress(LiveError, nats.errors.Error, TimeoutError):
                place = await self._place(client)
                if place.home != self._name:
                    return Answer(error=_moved(client, place.home, place.urls.get(place.home, "")))
        return answer

    async def _redirected(self, client: str) -> Refusal | None:
        """Where a client is now that was here before, for as long as the record of a move is kept.

        A later move may have begun elsewhere before the client heard of the one from here: then its own
        record says where it is.
        """
        move = self._moves.get(client)
        if move is None:
            return None
        if duty_of(move, self._name, time.time()) is Duty.REDIRECT:
            return _moved(client, move.foreign, await self._url_of(move.foreign) or move.url)
        if move.home == self._name and move.phase != DONE:
            return None
        record = await self._record(client)
        if record is None or not record.lanes or record.broker == self._name:
            return None
        return _moved(client, record.broker, await self._url_of(record.broker))

    async def _answer_polls(self, client: str) -> None:
        """Answer a client's questions for offers, if there is an answer now."""
        move = self._moves.get(client)
        if move is None or client not in self._polls:
            return
        answer = Answer(ok=True, move=move)
        if duty_of(move, self._name, time.time()) is not Duty.HAND:
            try:
                elsewhere = await self._redirected(client)
            except (LiveError, nats.errors.Error, TimeoutError):
                return  # they ask again
            if elsewhere is None:
                return
            answer = Answer(error=elsewhere)
        for poll in self._polls.pop(client, []):
            await respond(poll.message, answer)

    async def _sweep(self) -> None:
        """Answer the questions whose time is over: there is no offer."""
        while True:
            await asyncio.sleep(_MOVE_LOOK_S)
            now, over = time.monotonic(), list[_Poll]()
            for client, polls in list(self._polls.items()):
                over += [poll for poll in polls if poll.until <= now]
                polls[:] = [poll for poll in polls if poll.until > now]
                if not polls:
                    del self._polls[client]
            for poll in over:
                await respond(poll.message, Answer(ok=True))

    # ---------------------------------------------------------------------------------------- places

    async def _place(self, client: str) -> ClientPlace:
        """Where a client is. From memory while the control server is away: moves stand still then."""
        try:
            async with asyncio.timeout(STORE_LIMIT_S):
                place = await self._read_place(client)
        except (LiveError, nats.errors.Error, TimeoutError) as error:
            if client in self._places:
                return self._places[client]
            raise LiveError(f"where client {client!r} is cannot be read now: {error!r}") from error
        self._places.pop(client, None)
        self._places[client] = place
        while len(self._places) > _MOST_KEPT:
            del self._places[next(iter(self._places))]
        return place

    async def _read_place(self, client: str) -> ClientPlace:
        record, move = await self._record(client), self._moves.get(client)
        lanes = [] if record is None else record.lanes
        home = self._name if record is None or not lanes else record.broker
        matter = {home, *(lane.broker for lane in lanes)}
        if move is not None and is_open(move):
            matter.add(move.foreign)
        urls = {broker: url for broker in sorted(matter) if (url := await self._url_of(broker))}
        return ClientPlace(self._name, home, lanes, urls)

    async def _url_of(self, broker: str) -> str:
        """Where a broker's server is, by its own word; empty when that cannot be read."""
        if broker == self._name:
            return self._url
        try:
            async with asyncio.timeout(STORE_LIMIT_S):
                found = await (await self._store()).get(f"status.{token(broker)}")
            return "" if found is None else decode(found[0], Status).url
        except (LiveError, InputError, nats.errors.Error, TimeoutError):
            return ""


def _moved(client: str, broker: str, url: str) -> Refusal:
    return Refusal("moved", f"client {client!r} has moved to broker {broker!r}: ask there", broker, url)
