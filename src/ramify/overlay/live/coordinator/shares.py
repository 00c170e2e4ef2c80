"""Coordinators that share the attributes: what a standby keeps and answers, what the leader asks.

Owns the leases `coordinators.<name>`, the subjects `ramify.share.<name>` and both sides of what is said
there. `shares` has the rule of who keeps what.

    show         a coordinator is there, the leader as well as a standby
    Sharer       a standby: follows the records of clients, keeps its share of them, answers
    Colleagues   the leader: asks one who is responsible for a newcomer what covers it, and before plans are
                 made, everybody what they keep

Nothing waits for a coordinator for long, and nothing depends on it: without an answer the leader decides by
what it knows itself, which is everything. The registry that it holds is the truth.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LiveError
from ramify.overlay.control.names import name_of, token
from ramify.overlay.control.records import (
    COORDINATORS,
    SHARE,
    ClientRecord,
    FilterText,
    ShareAnswer,
    ShareQuestion,
    decode,
    encode,
    subscription_of,
)
from ramify.overlay.control.registry import spelled
from ramify.overlay.control.shares import Share, compared, covering, owner, owners
from ramify.overlay.live.wire.store import INITIAL, KeyChange, Lease, Store
from ramify.overlay.live.wire.tasks import together
from ramify.planning.demand.classes import Classes

__all__ = ["Colleagues", "ShareKeeper", "ShareSync", "show"]

_log = logging.getLogger(__name__)

_ANSWER_S = 1.0
# less than the leader waits, so that it gets an answer that is a little behind rather than none
_CATCH_UP_S = 0.5
_POLL_S = 0.01
_SYNCHRONISE_S = 10.0
# one that did not answer is left alone for a while, or every revision would wait for it
_QUIET_S = 5.0
_AGAIN_S = 0.5
_PAGE_BYTES = 256 << 10
_MOST_IDS_BYTES = 512 << 10
_NAMED = 5


async def show(store: Store, name: str, lease_s: int) -> None:
    """Hold the lease that says that a coordinator is there, until cancelled.

    Trouble with the store is left to those who cannot do without it.
    """
    lease = Lease(store, f"{COORDINATORS}.{token(name)}", name, lease_s)
    try:
        while True:
            with contextlib.suppress(LiveError):
                await lease.take()
            await asyncio.sleep(0.25 * lease_s)
    finally:
        with contextlib.suppress(LiveError):
            await lease.release()


class _Present:
    """The names of coordinators that are there, of a watch."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def note(self, change: KeyChange) -> None:
        try:
            name = name_of(change.key.partition(".")[2])
        except InputError:
            return
        if change.value is None:
            self.names.discard(name)
        else:
            self.names.add(name)


# ------------------------------------------------------------------------------------------- a standby


class ShareKeeper:
    """See the module. Starts with the schema that it is given, and takes over that of whoever asks."""

    def __init__(
        self, name: str, schema: Mapping[str, AttributeType], store: Store, connection: Nats
    ) -> None:
        self.name = name
        self.share: Share | None = None
        """What it keeps; None until all records have been seen."""
        self.answered: Counter[str] = Counter()
        """Questions that got an answer other than an error, by kind."""
        self._schema = dict(schema)
        self._store, self._nats = store, connection
        self._present = _Present()
        self._know_all = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Keep and answer until cancelled; trouble is logged, and it is begun again."""
        while True:
            try:
                await self._run()
            except (LiveError, nats.errors.Error, OSError) as error:
                _log.warning("coordinator %s keeps no share for now: %s", self.name, error or repr(error))
            except Exception:
                # standing by goes on without: the leader asks nobody who does not answer
                _log.exception("coordinator %s failed at its share", self.name)
            await asyncio.sleep(_AGAIN_S)

    async def _run(self) -> None:
        subscription = await self._nats.subscribe(f"{SHARE}.{token(self.name)}", cb=self._asked)
        try:
            await together(self._watch(), self._keep())
        finally:
            self.share = None
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def _watch(self) -> None:
        self._present = _Present()
        async with contextlib.aclosing(self._store.watch(COORDINATORS)) as changes:
            async for change in changes:
                if change is INITIAL:
                    self._know_all.set()
                else:
                    before = set(self._present.names)
                    self._present.note(change)
                    if {*before, self.name} != {*self._present.names, self.name}:
                        self._changed.set()
        raise LiveError("the watch of coordinators ended")

    async def _keep(self) -> None:
        """Fill a share, and another when coordinators came or went; the one before answers meanwhile."""
        await self._know_all.wait()
        while True:
            self._changed.clear()
            share = Share(self.name, self._present.names, self._schema, self.share)
            await together(self._fill(share), _set(self._changed))

    async def _fill(self, share: Share) -> None:
        async with contextlib.aclosing(self._store.watch("clients")) as changes:
            async for change in changes:
                if change is INITIAL:
                    self.share = share
                    text = "coordinator %s of %d keeps %d subscriptions"
                    _log.info(text, self.name, len(share.coordinators), len(share))
                    for id_, why in list(share.unreadable.items())[:_NAMED]:
                        _log.warning("coordinator %s cannot keep %s: %s", self.name, id_, why)
                elif change.value is None:
                    share.drop(change.key)
                else:
                    await self._take(share, change.key, change.value)
                share.revision = max(share.revision, change.revision)
        raise LiveError("the watch of clients ended")

    async def _take(self, share: Share, key: str, value: bytes) -> None:
        try:
            record = decode(value, ClientRecord)
        except InputError as error:
            _log.warning("%s is unreadable: %s", key, error)
            return
        # beside the loop: filters take a while, and leases must be renewed
        share.put(key, record, await asyncio.to_thread(share.read, key, record))

    async def _asked(self, message: Msg) -> None:
        if not message.reply:
            return
        try:
            question = decode(message.data, ShareQuestion)
            told = await self._answer(question)
        except InputError as error:
            told = ShareAnswer(error=str(error))
        else:
            self.answered[question.op] += not told.error
        with contextlib.suppress(nats.errors.Error, OSError):
            await message.respond(encode(told))

    async def _answer(self, question: ShareQuestion) -> ShareAnswer:
        schema = _schema_of(question)
        if schema != self._schema:
            self._schema = schema
            self._changed.set()
            return ShareAnswer(error="filters are read anew, with another schema")
        until = time.monotonic() + _CATCH_UP_S
        while (share := self.share) is None or share.revision < question.at:
            if time.monotonic() > until:
                break
            await asyncio.sleep(_POLL_S)
        if share is None or share.schema != schema:
            return ShareAnswer(error="the records are not all read yet")
        if question.op == "kept":
            kept, more = share.page(question.after, _PAGE_BYTES)
            return ShareAnswer(kept=kept, more=more)
        if question.op != "covering" or question.filter is None:
            raise InputError(f"op is {question.op[:40]!r}: give covering with a filter, or kept")
        row = subscription_of("-", "-", "-", question.filter)
        filters = share.filters()
        return ShareAnswer(await asyncio.to_thread(lambda: _fitting(covering(filters, row.parse(schema)))))


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _schema_of(question: ShareQuestion) -> dict[str, AttributeType]:
    try:
        return {path: AttributeType(kind) for path, kind in question.schema.items()}
    except ValueError as error:
        raise InputError(f"the schema of a question cannot be used: {error}") from None


def _fitting(ids: list[str]) -> list[str]:
    """As many as fit in a message: fewer narrow the hint further, which harms nobody."""
    size = 0
    for at, id_ in enumerate(ids):
        # two bytes may become six in JSON
        size += 6 * len(id_) + 3
        if size > _MOST_IDS_BYTES:
            return ids[:at]
    return ids


# ------------------------------------------------------------------------------------------ the leader


@dataclass(frozen=True, slots=True)
class ShareSync:
    """What came of asking everybody: who answered, what they keep together, what differs, by coordinator.

    `lacking`: in the registry and not with one who should keep it. `beyond`: the reverse. `messages` that
    it took, both ways.
    """

    answered: tuple[str, ...]
    kept: frozenset[str]
    lacking: Mapping[str, Sequence[str]]
    beyond: Mapping[str, Sequence[str]]
    messages: int


class Colleagues:
    """See the module. `messages` counts questions and answers of this term, by kind."""

    def __init__(self, name: str, store: Store, connection: Nats) -> None:
        self.name = name
        self.messages: Counter[str] = Counter()
        self.last: ShareSync | None = None
        """What came of the last synchronisation."""
        self._store, self._nats = store, connection
        self._present = _Present()
        self._quiet: dict[str, float] = {}

    @property
    def others(self) -> frozenset[str]:
        """The coordinators that are there, but for this one."""
        return frozenset(self._present.names - {self.name})

    async def follow(self) -> None:
        """Know who is there, until cancelled."""
        async with contextlib.aclosing(self._store.watch(COORDINATORS)) as changes:
            async for change in changes:
                if change is not INITIAL:
                    self._present.note(change)
        raise LiveError("the watch of coordinators ended")

    async def hints(
        self, rows: Sequence[Subscription], schema: Mapping[str, AttributeType], at: int
    ) -> dict[str, frozenset[str]]:
        """Which subscriptions cover each newcomer, by what one that is responsible for it keeps.

        None for those that this coordinator is responsible for, and where nobody answers in a second.
        Never raises for what others do.
        """
        if not rows or not self.others:
            return {}
        paths = await asyncio.to_thread(lambda: [_paths(row, schema) for row in rows])
        whom = {row.id: self._responsible(p) for row, p in zip(rows, paths, strict=True) if p is not None}
        spell = {path: str(kind) for path, kind in schema.items()}

        async def ask(row: Subscription, name: str) -> tuple[str, ShareAnswer | None]:
            return row.id, await self._ask(name, ShareQuestion("covering", spell, at, spelled(row)))

        asked = [(row, name) for row in rows if (name := whom.get(row.id)) is not None]
        told = await asyncio.gather(*(ask(row, name) for row, name in asked))
        found = {id_: frozenset(answer.ids) for id_, answer in told if answer is not None}
        if asked:
            text = "%d of %d newcomers are decided by what other coordinators keep"
            _log.info(text, len(found), len(rows))
        return found

    def _responsible(self, paths: frozenset[str]) -> str | None:
        """An owner of one of the attributes who is not silent; None for this coordinator itself."""
        everyone, now = self.others | {self.name}, time.monotonic()
        if self.name in owners(paths, everyone):
            return None
        able = (owner(path, everyone) for path in sorted(paths))
        return next((name for name in able if self._quiet.get(name, 0.0) <= now), None)

    async def synchronise(self, wanted: Mapping[str, Subscription], classes: Classes, at: int) -> None:
        """Ask all that are there what they keep, and compare it with the registry.

        `wanted` is the registry itself, which may change meanwhile: only what it had, or lacked, from begin
        to end is a difference. Those are logged; the registry stays as it is. Raises nothing for what
        others do, and ends within a bounded time.
        """
        others = self.others
        if not others:
            return
        before, sent = dict(wanted), sum(self.messages.values())
        spell = {path: str(kind) for path, kind in classes.schema.items()}
        found = await asyncio.gather(*(self._kept(name, spell, at) for name in sorted(others)))
        told = {name: kept for name, kept in zip(sorted(others), found, strict=True) if kept is not None}
        for name in sorted(others - told.keys()):
            _log.warning("coordinator %s did not say what it keeps: plans are made without", name)
        registry = await asyncio.to_thread(_registry, before, classes)
        lacking, beyond = dict[str, list[str]](), dict[str, list[str]]()
        for name, kept in told.items():
            differs = compared(name, others | {self.name}, kept, registry)
            lacking[name] = [id_ for id_ in differs.lacking if wanted.get(id_) == before[id_]]
            beyond[name] = [id_ for id_ in differs.beyond if id_ not in wanted]
            for what, ids in (("lacks", lacking[name]), ("keeps beyond the registry", beyond[name])):
                if ids:
                    named = ", ".join(ids[:_NAMED])
                    _log.warning("coordinator %s %s %d subscriptions: %s", name, what, len(ids), named)
        kept_ids = frozenset(id_ for kept in told.values() for id_ in kept)
        messages = sum(self.messages.values()) - sent
        self.last = ShareSync(tuple(told), kept_ids, lacking, beyond, messages)
        text = "synchronised with %d of %d coordinators in %d messages: they keep %d of %d subscriptions"
        _log.info(text, len(told), len(others), messages, len(kept_ids), len(before))

    async def _kept(self, name: str, schema: dict[str, str], at: int) -> dict[str, FilterText] | None:
        """All that one keeps; None when it does not say in time."""
        found: dict[str, FilterText] = {}
        until, after = time.monotonic() + _SYNCHRONISE_S, ""
        while time.monotonic() < until:
            told = await self._ask(name, ShareQuestion("kept", schema, at, after=after))
            if told is None:
                return None
            found |= told.kept
            if not told.more or not told.kept:
                return found
            after = max(told.kept)
        return None

    async def _ask(self, name: str, question: ShareQuestion) -> ShareAnswer | None:
        """One question; None without an answer, which is logged."""
        self.messages[question.op] += 1
        try:
            answer = await self._nats.request(f"{SHARE}.{token(name)}", encode(question), timeout=_ANSWER_S)
            told = decode(answer.data, ShareAnswer)
        except (nats.errors.Error, TimeoutError, OSError, InputError) as error:
            self._quiet[name] = time.monotonic() + _QUIET_S
            _log.info("coordinator %s does not answer: %r", name, error)
            return None
        self.messages["answer"] += 1
        if told.error:
            _log.info("coordinator %s cannot answer: %s", name, told.error)
            return None
        return told


def _paths(row: Subscription, schema: Mapping[str, AttributeType]) -> frozenset[str] | None:
    """The attributes of a subscription; None where its filter cannot be read, which others will say."""
    try:
        return row.parse(schema).paths
    except InputError:
        return None


def _registry(
    wanted: Mapping[str, Subscription], classes: Classes
) -> dict[str, tuple[FilterText, frozenset[str]]]:
    """Text and attributes of each subscription. Only filters that the classes lack are parsed."""
    found: dict[str, tuple[FilterText, frozenset[str]]] = {}
    for id_, row in wanted.items():
        k = classes.class_of.get(id_)
        paths = _paths(row, classes.schema) if k is None else classes.filter_of(k).paths
        if paths is not None:
            found[id_] = spelled(row), paths
    return found
