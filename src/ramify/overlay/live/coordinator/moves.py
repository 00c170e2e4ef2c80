"""A leader moves clients: offers, answers, the switch of plans, records.

Owns the moves of a term (`control.moves`) and their records `moves.<client>`. Like the book, they change
in the leader's loop alone. A phase that rests on plans is written after the state that has them, so that
a leader that goes on from the store finds nothing that is not so; what is not there yet shows in the plans.

All clients that wait for it move with one switch. The plan is the head's with their subscriptions taken out
and put in again; where its kind of plan cannot take them there, one of the same scheme is made. A move that
would make the plan break a rule of the overlay is declined.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ramify.errors import InputError, PlanError, RamifyError
from ramify.overlay.control.epochs import EpochError
from ramify.overlay.control.moves import (
    OFFERED,
    REPLICATED,
    SWITCHED,
    ClientView,
    accepted,
    declined,
    ended,
    is_open,
    lanes_after,
    lanes_left,
    looked,
    replicated,
)
from ramify.overlay.control.names import token
from ramify.overlay.control.records import (
    MOVES,
    Answer,
    ClientRecord,
    ForwardedRequest,
    Move,
    Refusal,
    decode,
    encode,
)
from ramify.overlay.control.registry import Book, BrokenRulesError, Write
from ramify.overlay.live.coordinator.adaptation import Make
from ramify.overlay.live.coordinator.leader_store import Stores
from ramify.overlay.live.wire.store import INITIAL
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, grown, spec_of
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan

__all__ = ["MOVE_OPS", "MoveConductor", "move_key"]

_log = logging.getLogger(__name__)

MOVE_OPS = frozenset({"move", "accept", "decline", "replicated", "ended", "left"})
"""Requests that are about moves."""

_STEP_RETRY_S = 0.3
_PLAN_AGAIN_S = 5.0
_LEAST_TTL_S = 1.0
_LONGEST_REASON = 500


def move_key(client: str) -> str:
    """Where a client's latest move stands."""
    return f"{MOVES}.{token(client)}"


class MoveConductor:
    """See the module. `urls` are those of the brokers' servers, as brokers say them."""

    def __init__(
        self, stores: Stores, book: Book, make: Make, scheme: str, wake: Callable[[], None]
    ) -> None:
        self.moves: dict[str, Move] = {}
        self.urls: dict[str, str] = {}
        self._stores, self._book, self._make, self._scheme, self._wake = stores, book, make, scheme, wake
        self._again_at = 0.0
        # a plan that is made because the head's kind cannot take the clients that move
        self._making: asyncio.Task[tuple[ReplanResult, Demand | None]] | None = None

    async def begin(self) -> None:
        """Go on with the moves that the store has."""
        changes = self._stores.store.watch(MOVES)
        try:
            async for change in changes:
                if change is INITIAL:
                    return
                if change.value is None:
                    continue
                self._stores.revisions[change.key] = change.revision
                try:
                    move = decode(change.value, Move)
                except InputError as error:
                    _log.warning("%s is unreadable: %s", change.key, error)
                    continue
                self.moves[move.client] = move
        finally:
            await changes.aclose()

    async def end(self) -> None:
        """Stop what is being made."""
        await end_tasks([] if self._making is None else [self._making])

    @property
    def under_way(self) -> dict[str, str]:
        """Client -> the broker that plans have begun to move it to."""
        if self._book.epochs.wanted is None:
            return {}
        at = self._book.head.at
        return {c: m.foreign for c, m in self.moves.items() if is_open(m) and at.get(c) == m.foreign}

    # -------------------------------------------------------------------------------------- requests

    async def take(self, passed: ForwardedRequest) -> Answer:
        """Do a request of `MOVE_OPS`. The same again has the same effect."""
        if passed.request.op == "move":
            return await self._offer(passed)
        if passed.request.op == "left":
            return await self._left(passed)
        move = self.moves.get(passed.client)
        if move is None or move.id != passed.request.id or move.client not in self._book.records:
            return _refused("unknown", f"client {passed.client!r} has no offer {passed.request.id[:80]!r}")
        now, op = time.time(), passed.request.op
        if passed.broker not in (move.home, move.foreign):
            return _refused("forbidden", f"broker {passed.broker!r} has no part in this move")
        if op == "accept":
            return await self._answered(accepted(looked(move, self._view(move), now), now))
        if op == "decline":
            return await self._answered(declined(move, passed.request.reason[:_LONGEST_REASON], now))
        if op == "replicated" and passed.broker == move.foreign:
            return await self._answered(replicated(move, passed.number, now))
        if op == "ended" and passed.broker == move.home:
            return await self._ended(move, passed.number, now)
        return _refused("bad_request", f"broker {passed.broker!r} has no part in this: {op}")

    async def _answered(self, move: Move) -> Answer:
        await self._put([move])
        return Answer(ok=True, move=move)

    async def _offer(self, passed: ForwardedRequest) -> Answer:
        """The operator's wish: an offer, unless there is a reason against it."""
        client, foreign = passed.client, passed.to
        known = self.moves.get(client)
        if known is not None and is_open(known):
            if known.foreign == foreign:
                return Answer(ok=True, move=known)
            return _refused("exists", f"client {client!r} is moving to {known.foreign!r}: wait for the end")
        home = self._home(passed)
        why = self._why_not(client, home, foreign)
        if why is not None:
            return Answer(error=why)
        record = self._book.records.get(client) or ClientRecord(client, home)
        now = time.time()
        move = Move(
            uuid.uuid4().hex,
            client,
            home,
            foreign,
            OFFERED,
            now,
            now + passed.answer_s,
            self.urls[foreign],
            max(_LEAST_TTL_S, passed.ttl_s),
            why=passed.reason[:_LONGEST_REASON],
        )
        await self._record(msgspec.structs.replace(record, broker=home))
        return await self._answered(move)

    def _home(self, passed: ForwardedRequest) -> str:
        """Where a client is; where the request says so, if the client has made none yet."""
        record = self._book.records.get(passed.client)
        if record is not None and (record.subscriptions or record.lanes):
            return record.broker
        attached = self._book.head.plan.attachments.get(passed.client)
        return attached or (passed.broker if record is None else record.broker)

    def _why_not(self, client: str, home: str, foreign: str) -> Refusal | None:
        book, record = self._book, self._book.records.get(client)
        held = {} if record is None else record.subscriptions
        if foreign not in book.overlay.index:
            return Refusal("bad_request", f"the overlay has no broker {foreign!r}: correct its name")
        if home not in book.overlay.index:
            return Refusal(
                "unknown", f"the broker of client {client!r} is not known: it has made no request yet"
            )
        if home == foreign:
            return Refusal("exists", f"client {client!r} is at {home!r} already")
        if any(each.suspended for each in held.values()):
            return Refusal("suspended", f"client {client!r} is suspended: it must resume before it moves")
        if record is not None and any(lane.broker == foreign for lane in record.lanes[:-1]):
            reason = f"client {client!r} has unread events at {foreign!r}: try again later"
            return Refusal("unavailable", reason)
        if foreign not in self.urls or foreign not in book.epochs.registered:
            return Refusal("unavailable", f"broker {foreign!r} cannot be reached now: try again later")
        return None

    async def _ended(self, move: Move, number: int, now: float) -> Answer:
        """The lane at home is whole: from now on the record has the client at the foreign broker."""
        record = self._book.records[move.client]
        if move.phase == SWITCHED and record.broker == move.home:
            move = ended(move, number, now)
            lanes = lanes_after(record.lanes, move)
            await self._record(msgspec.structs.replace(record, broker=move.foreign, lanes=lanes))
            await self._put([move])
            _log.info("client %s has moved from %s to %s", move.client, move.home, move.foreign)
        return Answer(ok=True, move=move)

    async def _left(self, passed: ForwardedRequest) -> Answer:
        """All is read of what came before a move; nobody needs to know of that lane any more."""
        client, id_ = passed.client, passed.request.id
        record, move = self._book.records.get(client), self.moves.get(client)
        if record is not None and move is not None and move.id == id_ and record.broker == move.home:
            # a client may be faster than the broker that says where its lane ended
            return _refused("unavailable", "the record does not have this move yet: say it again")
        if record is not None:
            if any(lane.move == id_ and lane.broker != passed.broker for lane in record.lanes):
                return _refused("forbidden", f"the lane that this is about is not at {passed.broker!r}")
            await self._record(msgspec.structs.replace(record, lanes=lanes_left(record.lanes, id_)))
        return Answer(ok=True)

    async def _record(self, record: ClientRecord) -> None:
        if self._book.records.get(record.client) != record:
            await self._stores.write(self._book.put_records([record]))

    async def _put(self, moves: Sequence[Move]) -> None:
        """Keep moves, those that changed."""
        changed = [move for move in moves if self.moves.get(move.client) != move]
        self.moves |= {move.client: move for move in changed}
        await self._stores.write([Write(move_key(move.client), encode(move)) for move in changed])
        for move in changed:
            _log.info("move of %s from %s to %s: %s", move.client, move.home, move.foreign, move.phase)
        if changed:
            self._wake()

    # ---------------------------------------------------------------------------------------- phases

    def _view(self, move: Move) -> ClientView:
        book, record = self._book, self._book.records[move.client]
        places = book.places_of(move.client)
        newest = places[book.epochs.wanted] if book.epochs.wanted is not None else record.broker
        everywhere = all(place == newest for place in places.values())
        reasons = (held.suspended for held in record.subscriptions.values())
        return ClientView(record.broker, newest, everywhere, next(filter(None, reasons), ""))

    def _on_record(self) -> list[Move]:
        return [move for move in self.moves.values() if move.client in self._book.records]

    async def settle(self) -> None:
        """Write the phases that the saved state has brought about, and forget what is long over."""
        now = time.time()
        await self._put([looked(move, self._view(move), now) for move in self._on_record()])
        for move in list(self.moves.values()):
            if not is_open(move) and now > move.at + move.ttl_s:
                del self.moves[move.client]
                await self._stores.delete(move_key(move.client))

    async def step(self) -> bool:
        """Propose the switch for every client that is ready; whether brokers must hear of a decision."""
        now = time.time()
        due = {
            move.client: move.foreign
            for move in self._on_record()
            if move.phase == REPLICATED
            and looked(move, self._view(move), now) is move
            and self._book.head.at.get(move.client) != move.foreign
        }
        if self._making is not None:
            return await self._made(due) if self._making.done() else False
        if not due or time.monotonic() < self._again_at:
            return False
        try:
            return await self._switch(due)
        except BrokenRulesError as error:
            return await self._decline(due, error)
        except PlanError as error:
            _log.info("a plan is made for clients that move: %s", error)
            self._making = asyncio.create_task(self._plan(due))
            self._making.add_done_callback(lambda _: self._wake())
            return False

    async def _switch(
        self, to: Mapping[str, str], plan: Plan | None = None, demand: Demand | None = None
    ) -> bool:
        """Raises `PlanError` when the plan cannot have clients there; waits while three epochs live."""
        try:
            _, writes = await asyncio.to_thread(self._book.move, to, plan, demand)
        except EpochError as error:
            _log.debug("clients wait to move: %s", error)
            self._again_at = time.monotonic() + _STEP_RETRY_S
            return False
        await self._stores.write(writes)
        return True

    async def _decline(self, due: Mapping[str, str], error: BrokenRulesError) -> bool:
        """End the moves with which a plan would break rules: of several clients each is tried alone."""
        if len(due) > 1:
            changed = False
            for client, foreign in due.items():
                try:
                    changed = await self._switch({client: foreign}) or changed
                except BrokenRulesError as alone:
                    changed = await self._decline({client: foreign}, alone) or changed
                except PlanError as error_alone:
                    _log.info("%s waits for a plan that has it at %s: %s", client, foreign, error_alone)
            return changed
        why = f"with the client there the plan breaks {'; '.join(error.faults)}"[:_LONGEST_REASON]
        await self._put([declined(self.moves[client], why, time.time()) for client in due])
        return False

    async def _plan(self, to: Mapping[str, str]) -> tuple[ReplanResult, Demand | None]:
        """A plan of the head's scheme that has clients at their new brokers."""
        book, head = self._book, self._book.head
        at = {**head.at, **to}
        wanted = book.served_at(at)
        rest = {id_: row for id_, row in wanted.items() if row.client not in to}
        plan = book.with_clients_at(head.plan, at)
        bare = await asyncio.to_thread(lambda: grown(grown(plan, rest), wanted))
        demand, rules = head.demand, book.rules
        made = await self._make(ReplanJob(bare, [spec_of(plan, self._scheme)], demand))
        # counted with the tags of rules that no longer hold, a demand says nothing
        return made, demand if book.rules == rules else None

    async def _made(self, due: Mapping[str, str]) -> bool:
        assert self._making is not None
        task, self._making = self._making, None
        self._again_at = time.monotonic() + _PLAN_AGAIN_S
        try:
            made, demand = task.result()
        except RamifyError as error:
            _log.warning("no plan for clients that move: %s", error)
            return False
        if made.plan is None:
            _log.warning("no plan for clients that move: %s", "; ".join(t.reason for t in made.tried))
            return False
        try:
            return bool(due) and await self._switch(due, made.plan, demand)
        except BrokenRulesError as error:
            return await self._decline(due, error)
        except PlanError as error:
            # subscriptions that came meanwhile: it is made again with them
            self._again_at = time.monotonic() + _STEP_RETRY_S
            _log.info("a plan for clients that move was overtaken: %s", error)
            return False


def _refused(code: str, reason: str) -> Answer:
    return Answer(error=Refusal(code, reason))
