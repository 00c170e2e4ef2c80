"""A client that moves: its connections to several brokers, and one course through its lanes.

Owns which broker a client asks and publishes at, and what its reader takes after the end of a lane.

    Wires    connections by broker. A broker that says `moved` is asked no more: the next one is
    Course   reads like `LaneReader`, over all lanes of the client: one to its end, then the
             next. Numbers go on, and a number from before finds its lane again
    Guide    answers offers by the client's policy, and goes where the client has moved to

What was read and is not acknowledged may be of several lanes; each is acknowledged where it came from.
"""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import nats.errors

from ramify.errors import InputError, LiveError
from ramify.overlay.control.moves import next_lane, part_of
from ramify.overlay.control.names import CONTROL
from ramify.overlay.control.records import Answer, ClientPlace, Lane, Move, Refusal, Request, decode, encode
from ramify.overlay.live.client.lane import DeliveredBatch, LaneClient, LaneReader
from ramify.overlay.live.wire.pauses import REQUEST_MARGIN_S, REQUEST_PAUSE_S
from ramify.overlay.live.wire.tasks import end_tasks

__all__ = ["Course", "Guide", "Offer", "Policy", "Wires"]

_log = logging.getLogger(__name__)

_ANSWER_S = 7.0
_CLEAR_S = 20.0
# programs that end at once need not ask for offers
_OFFERS_AFTER_S = 1.0
# a router that dies with a question in hand is not noticed before
_OFFER_WAIT_S = 20.0
_OFFER_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A client is asked to move from broker `home` to broker `foreign`, whose server is at `url`."""

    id: str
    home: str
    foreign: str
    url: str
    reason: str


Policy: TypeAlias = Literal["accept", "decline"] | Callable[[Offer], bool | Awaitable[bool]]
"""What a client says to an offer: always the same, or what it decides for each."""


async def _against(policy: Policy, offer: Offer) -> str:
    """Why an offer is declined; empty when it is accepted. A policy that fails declines."""
    if policy == "accept":
        return ""
    if policy == "decline":
        return "the client stays where it is"
    try:
        said = policy(offer)
        return "" if (await said if inspect.isawaitable(said) else said) else "the client declined"
    except Exception as error:
        _log.exception("the policy of a client failed at an offer to move to %s", offer.foreign)
        return f"the client's policy failed: {error!r}"


class Wires:
    """The connections of one client. `dial` makes one to a server."""

    def __init__(self, first: LaneClient, url: str, dial: Callable[[str], Awaitable[LaneClient]]) -> None:
        self.home = first
        """Where the client asks and publishes."""
        self.went_on = asyncio.Event()
        """Set when a lane was read to its end: the client is elsewhere, whatever its home has said."""
        self._dial = dial
        self._dialed: dict[str, LaneClient] = {url: first}
        self._urls: dict[str, str] = {}
        self._brokers: dict[str, LaneClient] = {}
        self._dialing = asyncio.Lock()

    async def close(self) -> None:
        """Disconnect from all."""
        for lane in self._dialed.values():
            await lane.close()

    @property
    def all(self) -> list[LaneClient]:
        """Every connection that there is."""
        return list(self._dialed.values())

    async def reach(self, broker: str, url: str) -> LaneClient:
        """The connection to a broker, made now if there is none. Raises `LiveError` when it cannot be."""
        async with self._dialing:
            if url:
                self._urls[broker] = url
            if broker in self._brokers:
                return self._brokers[broker]
            known = self._urls.get(broker)
            if known is None:
                raise LiveError(f"the address of broker {broker!r} is not known")
            if known not in self._dialed:
                self._dialed[known] = await self._dial(known)
            self._brokers[broker] = self._dialed[known]
            return self._brokers[broker]

    async def at(self, broker: str) -> LaneClient:
        """As `reach`, however long it takes; the home is asked where the broker is."""
        while True:
            try:
                return await self.reach(broker, "")
            except LiveError as error:
                _log.debug("client %s cannot reach %s: %s", self.home.name, broker, error)
            await asyncio.sleep(REQUEST_PAUSE_S)
            await self.place()

    async def follow(self, problem: Refusal) -> None:
        """Go where a broker said that the client has moved to. Raises `LiveError` when that fails."""
        self.home = await self.reach(problem.broker, problem.url)

    async def place(self) -> ClientPlace:
        """Where the client is and what lanes it has, as its broker says. Waits until one does.

        A broker that knows no moves answers that it does not know the question: then there is one lane.
        """
        while True:
            answer = await self.ask_once(Request("where", wait_s=0.0), _ANSWER_S)
            if answer is not None and answer.place is not None:
                place = answer.place
                self._brokers.setdefault(place.here, self.home)
                self._urls |= {broker: url for broker, url in place.urls.items() if url}
                return place
            if answer is not None and answer.error is not None and answer.error.code == "bad_request":
                return ClientPlace("", "")
            await asyncio.sleep(REQUEST_PAUSE_S)

    async def ask_once(self, request: Request, limit_s: float) -> Answer | None:
        """The answer of the home; None when none came in time."""
        lane = self.home
        lane.check_allowed()
        try:
            subject = f"{CONTROL}.{lane.token}"
            told = await lane.connection.request(subject, encode(request), timeout=limit_s)
            return decode(told.data, Answer)
        except (nats.errors.Error, TimeoutError):
            return None
        except InputError as error:
            raise LiveError(f"the broker's answer to {request.op} cannot be read: {error}") from None


class Guide:
    """See the module. `ask` makes a request; `is_read` says whether the client's lane is being read."""

    def __init__(
        self,
        wires: Wires,
        policy: Policy,
        ask: Callable[[Request], Awaitable[Answer]],
        is_read: Callable[[], bool],
    ) -> None:
        self._wires, self._policy, self._ask, self._is_read = wires, policy, ask, is_read
        self._name = wires.home.name
        self._tasks = {asyncio.create_task(self._ask_for_offers())}

    async def stop(self) -> None:
        """Ask for offers no more."""
        await end_tasks(self._tasks)

    async def follow(self, problem: Refusal) -> bool:
        """Whether a broker said that the client is elsewhere; then it is asked there from now on."""
        if problem.code != "moved":
            return False
        before = self._wires.home
        try:
            await self._wires.follow(problem)
        except LiveError as error:
            _log.warning("client %s cannot follow to %s: %s", self._name, problem.broker, error)
            await asyncio.sleep(_OFFER_AGAIN_S)
            return True
        _log.info("client %s has moved to %s", self._name, problem.broker)
        if before is not self._wires.home and not self._is_read():
            task = asyncio.create_task(self._tidy(before))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    async def _ask_for_offers(self) -> None:
        await asyncio.sleep(_OFFERS_AFTER_S)
        answered = ""
        while True:
            began = time.monotonic()
            try:
                answer = await self._polled()
                error = None if answer is None else answer.error
                if error is not None and error.code == "bad_request":
                    return  # a broker that knows no moves
                if error is not None and await self.follow(error):
                    continue
                soon = time.monotonic() - began < _OFFER_AGAIN_S
                if answer is not None and answer.ok and answer.move is None and not soon:
                    continue
                if answer is not None and answer.move is not None and answer.move.id != answered:
                    await self._answer(answer.move)
                    answered = answer.move.id
            except LiveError as problem:
                _log.debug("client %s: offers cannot be asked for: %s", self._name, problem)
            except Exception:
                # offers are no reason to end, and not to hear of it would be worse than an offer missed
                _log.exception("client %s: an offer could not be dealt with", self._name)
            await asyncio.sleep(_OFFER_AGAIN_S)

    async def _polled(self) -> Answer | None:
        """What the home says of offers; None when it says nothing, or the client has gone on meanwhile."""
        self._wires.went_on.clear()
        asking = Request("offer", wait_s=_OFFER_WAIT_S)
        asked = asyncio.create_task(self._wires.ask_once(asking, _OFFER_WAIT_S + REQUEST_MARGIN_S))
        gone = asyncio.create_task(self._wires.went_on.wait())
        try:
            await asyncio.wait([asked, gone], return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            await end_tasks([asked, gone])

    async def _answer(self, move: Move) -> None:
        """Accept or decline an offer. Only a broker that is there and lets the client in is accepted."""
        offer = Offer(move.id, move.home, move.foreign, move.url, move.why)
        why = await _against(self._policy, offer)
        if not why:
            try:
                await self._wires.reach(move.foreign, move.url)
            except LiveError as error:
                why = str(error)
        request = Request("decline", move.id, reason=why) if why else Request("accept", move.id)
        answer = await self._ask(request)
        phase = "" if answer.move is None else answer.move.phase
        _log.info("client %s is asked to move to %s: %s %s", self._name, move.foreign, phase, why)

    async def _tidy(self, before: LaneClient) -> None:
        """Acknowledge the end of a lane that holds nothing else. A client that only publishes never reads
        it, and could not move back to a broker where a message waits for it."""
        with contextlib.suppress(LiveError):
            unread, waiting = await before.unread()
            # not what another process of this client waits for
            if unread == 1 and not waiting and not self._is_read():
                await _clear(before)


class Course:
    """See the module. `take` may be cancelled and called again, nothing is lost."""

    def __init__(self, wires: Wires, after: int | None) -> None:
        self._wires = wires
        self._after = after
        self._part = Lane("")
        self._reader: LaneReader | None = None
        # lanes that were read to their end, and not acknowledged to it yet
        self._past: list[LaneReader] = []
        self._clearing: list[asyncio.Task[None]] = []

    @property
    def position(self) -> int | None:
        """The number of what was taken last; None when that is not known yet."""
        return self._after if self._reader is None else self._reader.position

    async def take(self) -> DeliveredBatch:
        """The next one; see `LaneReader.take`."""
        if self._reader is None:
            self._reader = await self._begin()
        while (ended := self._reader.onward) is not None:
            end, onward = ended
            client = await self._wires.at(onward.to)
            before, part = self._reader, next_lane(self._part, end, onward)
            self._past = [reader for reader in (*self._past, before) if not reader.is_acknowledged]
            self._part, self._reader = part, _reader(client, part, part.base + part.start)
            self._wires.went_on.set()
            await before.stop()
        return await self._reader.take()

    async def acknowledge(self, number: int) -> None:
        """This one and all before it are dealt with, on whatever lane."""
        for reader in self._past:
            await reader.acknowledge(number)
        self._past = [reader for reader in self._past if not reader.is_acknowledged]
        if self._reader is not None:
            await self._reader.acknowledge(number)

    async def stop(self) -> None:
        """Read no more."""
        await end_tasks(self._clearing)
        if self._reader is not None:
            await self._reader.stop()

    async def _begin(self) -> LaneReader:
        """The reader of the part that has what comes next."""
        wires, after = self._wires, self._after
        place = await wires.place()
        if place.home != place.here:
            with contextlib.suppress(LiveError):
                wires.home = await wires.reach(place.home, "")
        if not place.lanes:
            client = wires.home
            return await self._opened(client, Lane(place.here), [])
        index = part_of(place.lanes, after)
        part = place.lanes[index]
        if after is not None and after < part.base + part.start - 1:
            raise _gone(wires.home.name, after, part.base + part.start - 1)
        if after is not None:
            self._clearing += [asyncio.create_task(self._clear(lane)) for lane in place.lanes[:index]]
        return await self._opened(await wires.at(part.broker), part, place.lanes[index + 1 :])

    async def _opened(self, client: LaneClient, part: Lane, later: list[Lane]) -> LaneReader:
        """The reader of a part, or of a later one where all of it was read before."""
        while True:
            headers = await client.last_headers()
            found = LaneReader.ended(headers)
            if found is None or (await client.unread())[0]:
                self._part = part
                return _reader(client, part, self._after)
            end, onward = found
            last = part.base + end
            if self._after is not None and self._after < last - 1:
                raise _gone(client.name, self._after, last)
            part = later.pop(0) if later else next_lane(part, end, onward)
            client = await self._wires.at(part.broker)

    async def _clear(self, lane: Lane) -> None:
        """Acknowledge what is left of a lane that the client says it has dealt with."""
        await _clear(await self._wires.at(lane.broker))


def _reader(client: LaneClient, part: Lane, after: int | None) -> LaneReader:
    return LaneReader(client, after, base=part.base, start=part.start)


def _gone(client: str, after: int, first: int) -> LiveError:
    return LiveError(
        f"the deliveries after {after} of client {client!r} were acknowledged before: go on after "
        f"{first}, and keep the position with what it stands for"
    )


async def _clear(client: LaneClient) -> None:
    """Acknowledge all of a lane that has ended. Gives up after a while: it is tried again some day."""
    ended = LaneReader.ended(headers := await client.last_headers())
    if ended is None:
        return
    reader = LaneReader(client, int(headers["L"]))
    reading = asyncio.create_task(reader.take())
    deadline = time.monotonic() + _CLEAR_S
    try:
        while (await client.unread())[0] and time.monotonic() < deadline and not reading.done():
            await asyncio.sleep(REQUEST_PAUSE_S)
    finally:
        await end_tasks([reading])
        await reader.stop()
